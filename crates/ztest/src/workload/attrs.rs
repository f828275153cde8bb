//! Operations on attributes, and on files that are open and have no name.

use super::*;

impl Runner {
    pub(super) async fn setattr(&mut self) -> Check {
        let t = self.turn().await?;
        let Some(ino) = self.pick(&t, |_| true) else { return Ok(()) };
        let mut set = SetAttr::default();
        let mut mask = C;
        if self.rng.percent(40) {
            set.mode = Some([0o644, 0o755, 0o7777, 0, 0o500][self.rng.below(5) as usize]);
        }
        if self.rng.percent(30) {
            let cred = self.draw_cred();
            (set.uid, set.gid) = (Some(cred.uid), if self.rng.percent(50) { Some(cred.gid) } else { None });
        }
        if self.rng.percent(30) {
            set.mtime = Some(SetTime::At(self.draw_time()));
        } else if self.rng.percent(10) {
            set.mtime = Some(SetTime::Now);
            mask |= M;
        }
        if self.rng.percent(30) {
            set.atime = Some(SetTime::At(self.draw_time()));
        }
        if set == SetAttr::default() {
            set.mode = Some(0o700);
        }
        self.note(format!("setattr {ino} {set:?}"));
        let got = t.fs.setattr(ObjectId(ino), set).await;
        let Some(a) = self.agree("setattr", Ok(()), got)? else { return Ok(()) };
        let m = self.fs_mut(&t).get_mut(ino);
        m.mode = set.mode.unwrap_or(m.mode);
        m.uid = set.uid.unwrap_or(m.uid);
        m.gid = set.gid.unwrap_or(m.gid);
        if let Some(SetTime::At(time)) = set.mtime {
            m.mtime = time;
        }
        if let Some(SetTime::At(time)) = set.atime {
            m.atime = time;
        }
        self.adopt_attr(&t, ino, mask, &a)
    }

    pub(super) async fn setxattr(&mut self) -> Check {
        let t = self.turn().await?;
        let Some(ino) = self.pick(&t, |_| true) else { return Ok(()) };
        let name = format!("user.x{}", self.rng.below(6)).into_bytes();
        let len = match self.rng.below(10) {
            0 => 0,
            1..=5 => self.rng.below(100),
            6 | 7 => self.rng.below(3000),
            8 => self.rng.below(20_000),
            _ => self.rng.between(30_000, 65_536),
        };
        let value = self.draw_data(len as usize);
        let there = self.fs(&t).get(ino).xattrs.contains_key(&name);
        let (how, want) = match self.rng.below(5) {
            0 => (SetXattr::Create, if there { Err(ErrorKind::Exists) } else { Ok(()) }),
            1 => (SetXattr::Replace, if there { Ok(()) } else { Err(ErrorKind::NoAttr) }),
            _ => (SetXattr::Any, Ok(())),
        };
        self.note(format!("setxattr {ino} {} {len} {how:?}", text(&name)));
        let got = t.fs.setxattr(ObjectId(ino), &name, &value, how).await;
        let done = self.agree("setxattr", want, got)?.is_some();
        if done {
            self.fs_mut(&t).get_mut(ino).xattrs.insert(name, Rc::new(value));
        } else if want.is_ok() {
            self.reread_xattr(&t, ino, &name, &value).await?;
        }
        self.adopt_maybe(&t, ino, want.is_ok()).await
    }

    /// After a change that ran out of space half-way: the old value or the new one.
    async fn reread_xattr(&mut self, t: &Turn, ino: u64, name: &[u8], new: &[u8]) -> Check {
        let now = match t.fs.getxattr(ObjectId(ino), name).await {
            Ok(v) => Some(v),
            Err(e) if e.kind() == ErrorKind::NoAttr => None,
            Err(e) => return Err(format!("getxattr {ino}: {e:?}")),
        };
        let old = self.fs(t).get(ino).xattrs.get(name).map(|v| v.to_vec());
        if now != old && now.as_deref() != Some(new) {
            return Err(format!("object {ino}: extended attribute is neither old nor new after a lack of space"));
        }
        if let Some(now) = now {
            self.fs_mut(t).get_mut(ino).xattrs.insert(name.to_vec(), Rc::new(now));
        }
        Ok(())
    }

    /// Takes over the change time if it lies within the operation, else it must be as it was.
    async fn adopt_maybe(&mut self, t: &Turn, ino: u64, may: bool) -> Check {
        let a = t.fs.getattr(ObjectId(ino)).await.map_err(|e| format!("getattr {ino}: {e:?}"))?;
        let changed = a.ctime != self.fs(t).get(ino).ctime;
        self.adopt_attr(t, ino, if may && changed { C } else { 0 }, &a)
    }

    pub(super) async fn removexattr(&mut self) -> Check {
        let t = self.turn().await?;
        let Some(ino) = self.pick(&t, |i| !i.xattrs.is_empty()).or_else(|| self.pick(&t, |_| true)) else {
            return Ok(());
        };
        let name = format!("user.x{}", self.rng.below(6)).into_bytes();
        let there = self.fs(&t).get(ino).xattrs.contains_key(&name);
        self.note(format!("removexattr {ino} {}", text(&name)));
        let got = t.fs.removexattr(ObjectId(ino), &name).await;
        let want = if there { Ok(()) } else { Err(ErrorKind::NoAttr) };
        if self.agree("removexattr", want, got)?.is_some() {
            self.fs_mut(&t).get_mut(ino).xattrs.remove(&name);
        }
        self.adopt_maybe(&t, ino, want.is_ok()).await
    }

    pub(super) async fn ghost(&mut self) -> Check {
        if !self.ghosts.is_empty() && self.rng.percent(60) {
            let n = self.rng.below(self.ghosts.len() as u64) as usize;
            let mut g = self.ghosts.remove(n);
            let fs = self.mount(&g.ds.clone()).await?;
            let a = fs.getattr(ObjectId(g.ino)).await.map_err(|e| format!("open without a name: {e:?}"))?;
            if a.nlink != 0 || a.size != g.inode.size() {
                return Err(format!(
                    "open without a name: nlink {} size {}, not 0 and {}",
                    a.nlink,
                    a.size,
                    g.inode.size()
                ));
            }
            if let Body::File(c) = &mut g.inode.body {
                let data = self.draw_data(5000);
                let off = c.size / 2;
                self.note(format!("ghost {} write {off}", g.ino));
                let got = fs.write(ObjectId(g.ino), off, vec![Bytes::copy_from(&data)], false).await;
                if let Some((done, _)) = self.agree("write without a name", Ok(()), got)? {
                    c.write(off, &data[..done as usize]);
                }
                tree::compare_content(&fs, g.ino, c).await?;
            }
            if self.rng.percent(70) {
                self.note(format!("ghost {} release", g.ino));
                fs.release(ObjectId(g.ino)).await;
            } else {
                self.ghosts.push(g);
            }
            return Ok(());
        }
        let t = self.turn().await?;
        let Some((dir, name)) = self.pick_entry(&t) else { return Ok(()) };
        let ino = self.fs(&t).lookup(dir, &name).expect("picked");
        let inode = self.fs(&t).get(ino).clone();
        if inode.kind != FileKind::File {
            return Ok(());
        }
        self.note(format!("open {ino}"));
        t.fs.open_file(ObjectId(ino)).await.map_err(|e| format!("open {ino}: {e:?}"))?;
        let gone = inode.nlink == 1 && self.remove_one(&t, dir, &name, false).await?;
        if gone {
            self.ghosts.push(Ghost { ds: t.ds.clone(), ino, inode });
        } else {
            t.fs.release(ObjectId(ino)).await;
        }
        Ok(())
    }
}
