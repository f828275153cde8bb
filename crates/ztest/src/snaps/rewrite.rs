//! Files are written anew without a change of their content, most of them so that their blocks keep
//! their logical births (`zfs rewrite -P`).
//!
//! The model does not change. Sometimes a snapshot is made before and one after it: the stream
//! between them must have no block but those that cannot keep their birth, embedded and gang
//! blocks, and no pointer of another may be younger than the first snapshot.

use std::collections::BTreeSet;

use base::{ObjectId, Txg};
use dsl::send::SendOpts;
use ondisk::feature::FeatureId;
use ondisk::stream::{RECORD_SIZE, Record, StreamReader};

use super::model::Snap;
use super::{Snaps, is_full};
use crate::Check;
use crate::receives::Collect;

impl Snaps {
    /// Whether the pool has the feature for it.
    pub(super) fn can_rewrite(&self) -> bool {
        self.layout.features.contains(&FeatureId::PhysicalRewrite)
    }

    pub(super) async fn rewrite(&mut self) -> Check {
        let name = self.pick_fs();
        if self.model.fs[&name].foreign {
            return Ok(());
        }
        let (physical, whole) = (self.rng.percent(85), self.rng.percent(70));
        let sent = physical && self.rng.percent(50);
        let (off, len) = if whole { (0, 0) } else { (self.rng.below(200_000), 1 + self.rng.below(200_000)) };
        let files: Vec<String> = self.model.fs[&name].files.keys().cloned().collect();
        let files: Vec<String> = files.into_iter().filter(|_| self.rng.percent(70)).collect();
        self.note(format!("rewrite {name} {files:?} at {off}+{len} physical {physical} sent {sent}"));
        let before = if sent { self.snapshot_of(&name).await? } else { None };
        self.rewrite_files(&name, &files, (off, len), physical).await?;
        if let Some(before) = before
            && let Some(after) = self.snapshot_of(&name).await?
        {
            self.check_stream(&before, &after).await?;
        }
        Ok(())
    }

    /// Rewrites that range (offset, length; 0: to the end) of some files.
    async fn rewrite_files(&self, name: &str, files: &[String], range: (u64, u64), physical: bool) -> Check {
        let (off, len) = range;
        self.with_fs(name, async |fs| {
            for file in files {
                let obj = fs.lookup(fs.root(), file.as_bytes()).await?.obj;
                let done = match physical {
                    true => fs.rewrite_physically(obj, off, len).await,
                    false => fs.rewrite(obj, off, len).await,
                };
                match done {
                    Err(e) if is_full(&e) => return Ok(()),
                    other => drop(other?),
                }
            }
            Ok(())
        })
        .await
    }

    /// Rewrites most files of a file system, so that all or some of their blocks keep their logical
    /// births.
    pub(super) async fn rewrite_most(&mut self, name: &str) -> Check {
        let files: Vec<String> = self.model.fs[name].files.keys().cloned().collect();
        let files: Vec<String> = files.into_iter().filter(|_| self.rng.percent(80)).collect();
        let range = if self.rng.percent(60) { (0, 0) } else { (self.rng.below(100_000), 1 + self.rng.below(200_000)) };
        self.note(format!("rewrite {name} {files:?} at {range:?}"));
        self.rewrite_files(name, &files, range, true).await
    }

    /// Makes a snapshot that has no other's name; none if the pool is full.
    async fn snapshot_of(&mut self, name: &str) -> Check<Option<String>> {
        let id = self.id();
        let snap = format!("p{id}");
        let full = format!("{name}@{snap}");
        let got = self.pool().dsl().snapshot(vec![full.clone()], false, Vec::new()).await;
        if !self.agree("snapshot", Ok(()), got)? {
            return Ok(None);
        }
        let f = self.model.fs.get_mut(name).expect("picked");
        let files = f.files.clone();
        f.snaps.push(Snap { id, name: snap, files, holds: BTreeSet::new(), deferred: false });
        Ok(Some(full))
    }

    /// Between the snapshots nothing changed but the places of blocks.
    async fn check_stream(&self, before: &str, after: &str) -> Check {
        let say = |e: base::Error| format!("{before} to {after}: {e:?}");
        let (pool, mut sink) = (self.pool(), Collect::default());
        pool.dsl().send(after, Some(before), SendOpts::default(), &mut sink).await.map_err(say)?;
        let from = Txg(pool.dsl().find_snapshot(before).await.map_err(say)?.phys().creation_txg);
        let os = pool.dsl().find_snapshot(after).await.map_err(say)?.objset().await.map_err(say)?;
        for (object, offset) in written(&sink.0).map_err(say)? {
            let dn = os.hold(object).await.map_err(say)?;
            let blkid = offset / u64::from(dn.block_size());
            let bp = dn.block_pointer(blkid).await.map_err(say)?;
            if bp.logical_birth() <= from || !bp.is_embedded() && !bp.is_gang() {
                return Err(format!("{before} to {after}: object {object} block {blkid} is sent again: {bp}"));
            }
        }
        Ok(())
    }
}

/// The blocks that a stream has: objects and offsets.
fn written(stream: &[u8]) -> base::Result<Vec<(ObjectId, u64)>> {
    let (mut reader, mut rest, mut out) = (StreamReader::without_sums(), stream, Vec::new());
    while let Some((head, tail)) = rest.split_first_chunk::<RECORD_SIZE>() {
        let frame = reader.record(head)?;
        let (payload, tail) = tail.split_at(reader.payload_left() as usize);
        reader.payload(payload);
        match frame.record {
            Record::Write(w) => out.push((w.object, w.offset)),
            Record::WriteEmbedded(w) => out.push((w.to.object, w.to.offset)),
            _ => {}
        }
        rest = tail;
    }
    Ok(out)
}
