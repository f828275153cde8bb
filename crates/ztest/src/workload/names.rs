//! Operations on names: making, linking, removing, renaming.

use super::*;

impl Runner {
    pub(super) async fn make(&mut self, kind: Kind) -> Check {
        let t = self.turn().await?;
        let dir = self.pick_dir(&t);
        let name = self.draw_name();
        let mut cred = self.draw_cred();
        let mode = [0o644, 0o600, 0o755, 0o000, 0o777, 0o4755, 0o1777, 0o2755][self.rng.below(8) as usize];
        cred.uid = if mode & 0o2000 != 0 { 0 } else { cred.uid };
        let mut want = match self.fs(&t).check_new(dir, &name) {
            Ok(()) if name == b"." || name == b".." => Err(ErrorKind::Exists),
            other => other,
        };
        let d = ObjectId(dir);
        self.note(format!("{kind:?} {dir}/{} mode {mode:o}", text(&name)));
        let (got, body, mode) = match kind {
            Kind::Create => {
                let exclusive = self.rng.percent(70);
                if !exclusive && want == Err(ErrorKind::Exists) {
                    let there = self.fs(&t).lookup(dir, &name);
                    if let Some(there) = there {
                        let is_dir = self.fs(&t).get(there).is_dir();
                        let got = t.fs.create(d, &name, mode, &cred, false).await;
                        let want = if is_dir { Err(ErrorKind::IsDir) } else { Ok(()) };
                        if let Some(a) = self.agree("create what is there", want, got)? {
                            self.adopt_attr(&t, there, 0, &a)?;
                        }
                        return Ok(());
                    }
                }
                (t.fs.create(d, &name, mode, &cred, exclusive).await, Body::File(Content::default()), mode)
            }
            Kind::Mkdir => {
                (t.fs.mkdir(d, &name, mode, &cred).await, Body::Dir { parent: dir, entries: BTreeMap::new() }, mode)
            }
            Kind::Symlink => {
                let len = [1, 10, 60, 150, 300, 1000, 4095, 4096][self.rng.below(8) as usize];
                let target = vec![b'/' + self.rng.below(20) as u8; len];
                if len > 4095 && check_name(&name, self.longest_name()).is_ok() {
                    want = Err(ErrorKind::NameTooLong);
                } else if len > 4095 {
                    return Ok(());
                }
                (t.fs.symlink(d, &name, &target, &cred).await, Body::Symlink(target), 0o777)
            }
            _ => {
                let (bits, rdev) =
                    [(0o010000, 0), (0o140000, 0), (0o020000, 5 << 20 | 1), (0o060000, 259 << 20 | 70_000)]
                        [self.rng.below(4) as usize];
                (t.fs.mknod(d, &name, mode | bits, rdev, &cred).await, Body::Special, mode)
            }
        };
        let Some(a) = self.agree("make", want, got)? else { return Ok(()) };
        let parent = self.fs(&t).get(dir).clone();
        let mut inode = made(&a, body);
        (inode.mode, inode.uid, inode.gid) = (mode, cred.uid, cred.gid);
        if parent.mode & 0o2000 != 0 {
            inode.gid = parent.gid;
            if kind == Kind::Mkdir {
                inode.mode |= 0o2000;
            }
            // A set-group-id bit for a group that the maker is not in does not occur: the maker is
            // root here.
        }
        self.fs_mut(&t).insert(dir, &name, a.obj.0, inode);
        self.adopt_attr(&t, a.obj.0, A | M | C, &a)?;
        if a.crtime != a.mtime {
            return Err(format!("object {}: made at {:?}, changed at {:?}", a.obj, a.crtime, a.mtime));
        }
        self.adopt(&t, a.obj.0, 0).await?;
        self.adopt(&t, dir, M | C).await
    }

    pub(super) async fn link(&mut self) -> Check {
        let t = self.turn().await?;
        let Some(ino) = self.pick(&t, |_| true) else { return Ok(()) };
        let dir = self.pick_dir(&t);
        let name = self.draw_name();
        if name == b"." || name == b".." {
            return Ok(());
        }
        let want = self.fs(&t).check_link(ino, dir, &name);
        self.note(format!("link {ino} {dir}/{}", text(&name)));
        let got = t.fs.link(ObjectId(ino), ObjectId(dir), &name).await;
        if self.agree("link", want, got)?.is_some() {
            self.fs_mut(&t).link(ino, dir, &name);
            self.adopt(&t, ino, C).await?;
            self.adopt(&t, dir, M | C).await?;
        }
        Ok(())
    }

    pub(super) async fn remove(&mut self, want_dir: bool) -> Check {
        let t = self.turn().await?;
        let Some((dir, name)) = self.pick_entry(&t) else { return Ok(()) };
        // Mostly the matching operation.
        let ino = self.fs(&t).lookup(dir, &name).expect("picked");
        let want_dir = if self.rng.percent(90) { self.fs(&t).get(ino).is_dir() } else { want_dir };
        self.remove_one(&t, dir, &name, want_dir).await.map(drop)
    }

    pub(super) async fn remove_one(&mut self, t: &Turn, dir: u64, name: &[u8], want_dir: bool) -> Check<bool> {
        let want = self.fs(t).check_remove(dir, name, want_dir).map(drop);
        self.note(format!("remove {dir}/{} dir {want_dir}", text(name)));
        let d = ObjectId(dir);
        let got = if want_dir { t.fs.rmdir(d, name).await } else { t.fs.unlink(d, name).await };
        if self.agree("remove", want, got)?.is_none() {
            return Ok(false);
        }
        let ino = self.fs(t).lookup(dir, name).expect("checked");
        if self.fs_mut(t).remove(dir, name).is_none() {
            self.adopt(t, ino, C).await?;
        }
        self.adopt(t, dir, M | C).await?;
        Ok(true)
    }

    pub(super) async fn rename(&mut self) -> Check {
        let t = self.turn().await?;
        let Some((dir, name)) = self.pick_entry(&t) else { return Ok(()) };
        let (to, new) = match self.pick_entry(&t) {
            Some(there) if self.rng.percent(40) => there,
            _ => (if self.rng.percent(40) { dir } else { self.pick_dir(&t) }, self.draw_name()),
        };
        if new == b"." || new == b".." {
            return Ok(());
        }
        let mut flags = RenameFlags::default();
        match self.rng.below(6) {
            0 => flags.noreplace = true,
            1 => flags.exchange = true,
            _ => {}
        }
        let want = self.fs(&t).check_rename((dir, &name), (to, &new), flags);
        self.note(format!("rename {dir}/{} to {to}/{} {flags:?}", text(&name), text(&new)));
        let got = t.fs.rename(ObjectId(dir), &name, ObjectId(to), &new, flags).await;
        if self.agree("rename", want.map(drop), got)?.is_none() || want == Ok(false) {
            return Ok(());
        }
        let (source, target) = self.fs_mut(&t).rename((dir, &name), (to, &new), flags.exchange);
        for ino in [Some(source), target].into_iter().flatten() {
            if self.fs(&t).inodes.contains_key(&ino) && ino != dir && ino != to {
                self.adopt(&t, ino, C).await?;
            }
        }
        self.adopt(&t, dir, M | C).await?;
        self.adopt(&t, to, M | C).await
    }
}
