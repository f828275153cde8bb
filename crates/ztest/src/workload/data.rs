//! Operations on the content of files.

use zpl::{ReadHow, WriteHow};

use super::*;

/// Requests with `O_DIRECT` have multiples of it.
const PAGE: usize = 4096;

/// Every other request at a page is one around the cache.
fn is_direct(off: u64) -> bool {
    off.is_multiple_of(PAGE as u64) && (off / PAGE as u64).is_multiple_of(2)
}

impl Runner {
    /// Whether blocks may have entries in dedup tables with logs.
    fn has_fast_dedup(&self) -> bool {
        self.layout.features.contains(&ondisk::feature::FeatureId::FastDedup)
    }

    /// Fills `data` with one of few sectors, again and again: blocks are often the same then. Not
    /// always, and only in pools with fast dedup.
    pub(super) fn draws_few_sectors(&mut self, data: &mut [u8]) -> bool {
        if !self.has_fast_dedup() || !self.rng.percent(30) {
            return false;
        }
        let mut sector = [0; 512];
        Rng::new(self.rng.below(12)).fill(&mut sector);
        data.iter_mut().zip(sector.iter().cycle()).for_each(|(d, s)| *d = *s);
        true
    }

    /// A value of the property `dedup`, sometimes, in pools with fast dedup.
    pub(super) fn draw_dedup(&mut self) -> Option<(&'static str, PropValue)> {
        const DEDUP: [&str; 8] = ["on", "verify", "sha512", "skein", "edonr,verify", "blake3", "blake3,verify", "off"];
        if !self.has_fast_dedup() || !self.rng.percent(20) {
            return None;
        }
        let value = DEDUP[self.rng.below(DEDUP.len() as u64) as usize];
        let parsed = dsl::props::find("dedup").and_then(|p| p.parse(value).ok());
        Some(("dedup", parsed.expect("the table has valid words")))
    }

    pub(super) async fn write(&mut self, append: bool) -> Check {
        let t = self.turn().await?;
        let Some(ino) = self.pick_file(&t) else { return self.make(Kind::Create).await };
        let size = self.fs(&t).get(ino).size();
        let off = if append { size } else { self.draw_offset(size) };
        let len = self.draw_len() as usize;
        let direct = is_direct(off);
        let len = if direct && len > PAGE { len - len % PAGE } else { len };
        let data = self.draw_data(len);
        self.note(format!("write {ino} {off}+{len} append {append} direct {direct} size {size}"));
        let how = WriteHow { append, sync: false, direct };
        let got = t.fs.write_as(ObjectId(ino), off, self.pieces(&data), how).await;
        let Some((done, new_size)) = self.agree("write", Ok(()), got)? else { return Ok(()) };
        self.wrote(&t, ino, off, &data, done, new_size)?;
        self.adopt(&t, ino, if done == 0 { 0 } else { M | C }).await
    }

    pub(super) fn wrote(&mut self, t: &Turn, ino: u64, off: u64, data: &[u8], done: u64, new_size: u64) -> Check {
        if done > data.len() as u64 || (done == 0 && !data.is_empty()) {
            return Err(format!("object {ino}: {done} of {} bytes were written", data.len()));
        }
        if done < data.len() as u64 {
            self.full += 1;
        }
        let Body::File(c) = &mut self.fs_mut(t).get_mut(ino).body else { unreachable!("picked as a file") };
        if done > 0 {
            c.write(off, &data[..done as usize]);
        }
        if c.size != new_size {
            return Err(format!("object {ino}: the size is said to be {new_size}, not {}", c.size));
        }
        Ok(())
    }

    /// The data in one or several slices.
    pub(super) fn pieces(&mut self, data: &[u8]) -> Vec<Bytes> {
        let whole = Bytes::copy_from(data);
        if data.len() < 2 || self.rng.percent(60) {
            return vec![whole];
        }
        let at = self.rng.between(1, data.len() as u64 - 1) as usize;
        vec![whole.slice(..at), whole.slice(at..)]
    }

    pub(super) async fn truncate(&mut self) -> Check {
        let t = self.turn().await?;
        let Some(ino) = self.pick_file(&t) else { return Ok(()) };
        let size = self.fs(&t).get(ino).size();
        let new = match self.rng.below(6) {
            0 => 0,
            1 => self.draw_offset(size),
            2 => size,
            _ => self.rng.below(size + 1),
        };
        self.note(format!("truncate {ino} from {size} to {new}"));
        let got = if self.rng.percent(50) {
            t.fs.truncate(ObjectId(ino), new).await
        } else {
            t.fs.setattr(ObjectId(ino), SetAttr { size: Some(new), ..SetAttr::default() }).await.map(drop)
        };
        if self.agree("truncate", Ok(()), got)?.is_some() {
            if let Body::File(c) = &mut self.fs_mut(&t).get_mut(ino).body {
                c.truncate(new);
            }
            self.adopt(&t, ino, M | C).await?;
        }
        Ok(())
    }

    pub(super) async fn rewrite(&mut self) -> Check {
        let t = self.turn().await?;
        let Some(ino) = self.pick_file(&t) else { return Ok(()) };
        let size = self.fs(&t).get(ino).size();
        let off = if self.rng.percent(30) { 0 } else { self.draw_offset(size) };
        let len = if self.rng.percent(30) { 0 } else { self.draw_len() };
        let physical =
            self.layout.features.contains(&ondisk::feature::FeatureId::PhysicalRewrite) && self.rng.percent(60);
        self.note(format!("rewrite {ino} {off}+{len} size {size} physical {physical}"));
        let before = match physical && self.rng.percent(30) {
            true => Some(self.pointers(&t, ino).await?),
            false => None,
        };
        let got = match physical {
            true => t.fs.rewrite_physically(ObjectId(ino), off, len).await,
            false => t.fs.rewrite(ObjectId(ino), off, len).await,
        };
        // Nothing that a program sees changes, even if it failed halfway.
        self.agree("rewrite", Ok(()), got)?;
        if let Some(before) = before {
            let after = self.pointers(&t, ino).await?;
            for (blkid, (old, new)) in before.iter().zip(&after).enumerate() {
                let has_place = !new.is_hole() && !new.is_embedded() && !new.is_gang() && !new.dedup();
                let keeps = old == new || new.is_rewritten() && new.logical_birth() == old.logical_birth();
                if has_place && !keeps {
                    return Err(format!("object {ino} block {blkid} has another birth: {old} became {new}"));
                }
            }
        }
        self.adopt(&t, ino, 0).await
    }

    /// The first pointers of a file as they are on disk, once all is.
    async fn pointers(&self, t: &Turn, ino: u64) -> Check<Vec<ondisk::blkptr::Blkptr>> {
        const MOST: u64 = 200;
        let say = |e: base::Error| format!("pointers of {ino}: {e:?}");
        self.pool().sync().await.map_err(say)?;
        let dn = t.fs.objset().hold(ObjectId(ino)).await.map_err(say)?;
        let mut out = Vec::new();
        for blkid in 0..=dn.max_blkid().min(MOST) {
            out.push(dn.block_pointer(blkid).await.map_err(say)?);
        }
        Ok(out)
    }

    pub(super) async fn fallocate(&mut self) -> Check {
        let t = self.turn().await?;
        let Some(ino) = self.pick_file(&t) else { return Ok(()) };
        let size = self.fs(&t).get(ino).size();
        let off = self.draw_offset(size);
        let len = if self.rng.percent(30) { self.rng.between(1, size + 1) } else { self.draw_len().max(1) };
        let keep_size = self.rng.percent(50);
        let what = match self.rng.below(3) {
            0 => Fallocate::PunchHole,
            1 => Fallocate::ZeroRange { keep_size },
            _ => Fallocate::Allocate { keep_size },
        };
        self.note(format!("fallocate {ino} {what:?} {off}+{len} size {size}"));
        let got = t.fs.fallocate(ObjectId(ino), what, off, len).await;
        if self.agree("fallocate", Ok(()), got)?.is_none() {
            // Nothing, or the zeros without the new size.
            let a = t.fs.getattr(ObjectId(ino)).await.map_err(|e| format!("{e:?}"))?;
            if a.mtime != self.fs(&t).get(ino).mtime {
                return Err(format!("object {ino}: changed although fallocate failed"));
            }
            return Ok(());
        }
        let end = off + len;
        let mut changed = false;
        if let Body::File(c) = &mut self.fs_mut(&t).get_mut(ino).body {
            if !matches!(what, Fallocate::Allocate { .. }) && off < c.size {
                c.zero(off, end);
                changed = true;
            }
            let grow =
                matches!(what, Fallocate::ZeroRange { keep_size: false } | Fallocate::Allocate { keep_size: false });
            if grow && end > c.size {
                c.truncate(end);
                changed = true;
            }
        }
        self.adopt(&t, ino, if changed { M | C } else { 0 }).await
    }

    pub(super) async fn read(&mut self) -> Check {
        let t = self.turn().await?;
        let Some(ino) = self.pick_file(&t) else { return Ok(()) };
        let size = self.fs(&t).get(ino).size();
        let (off, len) = (self.draw_offset(size), self.draw_len());
        self.note(format!("read {ino} {off}+{len}"));
        let how = ReadHow { noatime: false, direct: is_direct(off) };
        let got = t.fs.read_as(ObjectId(ino), off, len, how).await.map_err(|e| format!("read {ino}: {e:?}"))?;
        let total: u64 = got.iter().map(|b| b.len() as u64).sum();
        if total != len.min(size.saturating_sub(off)) {
            return Err(format!("object {ino}: {total} bytes of {len} at {off}, size {size}"));
        }
        let mut at = off;
        for part in got {
            if let Some(d) = self.fs(&t).get(ino).content().and_then(|c| c.difference(at, &part)) {
                return Err(format!("object {ino}: byte {d} is wrong"));
            }
            at += part.len() as u64;
        }
        Ok(())
    }
}
