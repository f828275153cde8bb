//! The operations that take space, one function for each [`Kind`], and the rewrites that outgrow
//! the intent log.
//!
//! Every operation returns false if it was refused for lack of space; any other error is a finding.
//! The model follows what the file system acknowledged.

use bdev::Bytes;
use rt::join::{join_all, join2};
use zpl::{Cred, MountOpts, RenameFlags, SetXattr, Zfs};

use super::{Filler, Kind, REWRITTEN_MAX, SPAN_MAX, TRACKED, WRITERS, context, is_full, new_fs_of, opts};
use crate::Check;
use crate::lab::POOL;

impl Filler {
    /// One operation; false if it was refused for lack of space.
    pub(super) async fn step(&mut self, kind: Kind) -> Check<bool> {
        match kind {
            Kind::Append => self.append().await,
            Kind::Sync => self.append_tracked().await,
            Kind::Burst => self.burst().await,
            Kind::Small => self.small().await,
            Kind::Overwrite => self.overwrite().await,
            Kind::Xattr => self.xattr().await,
            Kind::FileSystem => self.file_system().await,
            Kind::Holes => self.holes().await,
            Kind::Rename => self.rename().await,
            Kind::Folder => self.folder().await,
        }
    }

    /// Appends to a large file, or to a new one.
    async fn append(&mut self) -> Check<bool> {
        let name = match self.pick() {
            Some(name) if self.rng.percent(90) => name,
            _ => match self.create().await? {
                Some(name) => name,
                None => return Ok(false),
            },
        };
        let data = match self.rng.below(3) {
            0 => self.plan.recordsize,
            1 => self.rng.between(1, 8192),
            _ => self.rng.between(1, 2 << 20),
        };
        let data = self.bytes(data as usize);
        let off = self.files[&name].data.len() as u64;
        self.put(&name, off, data, false).await
    }

    /// Makes a small file.
    async fn small(&mut self) -> Check<bool> {
        let Some(name) = self.create().await? else { return Ok(false) };
        let len = self.rng.between(1, 3000) as usize;
        let data = self.bytes(len);
        self.put(&name, 0, data, false).await
    }

    /// Overwrites a part of a file.
    async fn overwrite(&mut self) -> Check<bool> {
        let Some(name) = self.pick() else { return Ok(true) };
        let len = self.files[&name].data.len() as u64;
        if len == 0 {
            return Ok(true);
        }
        let off = self.rng.below(len);
        let most = (len - off).min(512 << 10);
        let n = self.rng.between(1, most);
        let data = self.bytes(n as usize);
        self.put(&name, off, data, false).await
    }

    /// Sets an attribute.
    async fn xattr(&mut self) -> Check<bool> {
        let Some(name) = self.pick() else { return Ok(true) };
        let len = if self.rng.percent(50) { self.rng.between(1, 200) } else { self.rng.between(1, 40_000) };
        let value = self.bytes(len as usize);
        let file = self.files.get_mut(&name).expect("picked");
        match self.fs.setxattr(file.obj, b"user.x", &value, SetXattr::Any).await {
            Ok(()) => {
                file.xattr = Some(value);
                Ok(true)
            }
            // The old one may be gone: replacing an attribute in a file of its own is not
            // one transaction.
            Err(e) if is_full(&e) => {
                file.xattr = None;
                Ok(false)
            }
            Err(e) => Err(format!("setxattr: {e:?}")),
        }
    }

    /// Makes a file system with a file.
    async fn file_system(&mut self) -> Check<bool> {
        let name = format!("{POOL}/fs{}", self.others.len());
        if self.others.len() >= 200 {
            return Ok(false);
        }
        match self.pool.dsl().create_fs(&name, Vec::new(), new_fs_of(&self.handle)).await {
            Ok(_) => {}
            Err(e) if is_full(&e) => return Ok(false),
            Err(e) => return Err(format!("create_fs: {e:?}")),
        }
        self.others.push(name.clone());
        let ds = self.pool.dsl().find(&name).map_err(context("find"))?;
        let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await.map_err(context("mount of a new file system"))?;
        let made = fs.create(fs.root(), b"file", 0o644, &Cred::new(0, 0), true).await;
        let made = match made {
            Ok(a) => fs.write(a.obj, 0, vec![Bytes::copy_from(&self.bytes(4000))], false).await.map(|_| ()),
            Err(e) => Err(e),
        };
        fs.unmount().await.map_err(context("unmount of a new file system"))?;
        match made {
            Ok(()) => Ok(true),
            Err(e) if is_full(&e) => Ok(false),
            Err(e) => Err(format!("a file of a new file system: {e:?}")),
        }
    }

    /// Makes a few files and removes every other one.
    async fn holes(&mut self) -> Check<bool> {
        let (mut names, mut all) = (Vec::new(), true);
        for _ in 0..24 {
            let Some(name) = self.create().await? else { return Ok(false) };
            let len = self.plan.recordsize.min(16 << 10) as usize;
            let data = self.bytes(len);
            all &= self.put(&name, 0, data, false).await?;
            names.push(name);
        }
        for name in names.iter().step_by(2) {
            self.remove(name).await?;
        }
        Ok(all)
    }

    /// Renames a file.
    async fn rename(&mut self) -> Check<bool> {
        let Some(name) = self.pick() else { return Ok(true) };
        let (root, to) = (self.fs.root(), self.name());
        match self.fs.rename(root, &name, root, &to, RenameFlags::default()).await {
            Ok(()) => {
                let file = self.files.remove(&name).expect("picked");
                self.files.insert(to, file);
                Ok(true)
            }
            Err(e) if is_full(&e) => Ok(false),
            Err(e) => Err(format!("rename: {e:?}")),
        }
    }

    /// Makes a folder.
    async fn folder(&mut self) -> Check<bool> {
        let name = [b"dir-", &self.name()[..]].concat();
        match self.fs.mkdir(self.fs.root(), &name, 0o755, &Cred::new(0, 0)).await {
            Ok(_) => {
                self.folders.push(name);
                Ok(true)
            }
            Err(e) if is_full(&e) => Ok(false),
            Err(e) => Err(format!("mkdir: {e:?}")),
        }
    }

    /// A synchronous append to a tracked file.
    pub(super) async fn append_tracked(&mut self) -> Check<bool> {
        let n = self.rng.below(TRACKED as u64) as usize;
        let len = if self.rng.percent(30) { self.plan.recordsize } else { self.rng.between(1, 64 << 10) };
        let (name, data) = (self.tracked[n].clone(), self.bytes(len as usize));
        let off = self.files[&name].data.len() as u64;
        let done = self.put(&name, off, data, true).await?;
        if let Some(g) = self.grown.as_mut().filter(|_| done).map(|g| &mut g[n]) {
            g.data = self.files[&name].data.clone();
            g.durable.push((self.handle.io_seq(), g.data.len()));
            self.met.acks += 1;
        }
        Ok(done)
    }

    /// Writes a part of a file over and over in one txg, which takes no more than that part, and
    /// then makes it durable together with appends to the tracked files: their log needs more than
    /// the pool has left, so all of them have to wait for their txg.
    pub(super) async fn rewrite(&mut self) -> Check {
        let mut calm = opts(&self.layout, &self.plan);
        (calm.txg.txg_timeout, calm.txg.dirty_data_max, calm.txg.wrlog_data_max) = (SPAN_MAX, 1 << 30, 4 << 30);
        self.pool.tune(&calm);
        if let Some(name) = self.create().await? {
            let dsl = self.pool.dsl();
            let used = dsl.root().phys().used_bytes;
            let room = dsl.space().room(used, dsl::space::SpaceCheck::Reserved).min(REWRITTEN_MAX);
            let piece = if self.rng.percent(50) { 24 << 10 } else { self.plan.recordsize.max(16 << 10) };
            let data = self.bytes(piece as usize);
            let mut written = 0;
            while written < room {
                let off = self.rng.below(4) * piece;
                if !self.put(&name, off, data.clone(), false).await? {
                    break;
                }
                written += piece;
            }
            self.commit_with_tracked(&name).await?;
        }
        self.pool.tune(&opts(&self.layout, &self.plan));
        self.alive()
    }

    /// Makes a file durable while every tracked file is appended to.
    async fn commit_with_tracked(&mut self, name: &[u8]) -> Check {
        let appends: Vec<(Vec<u8>, Vec<u8>)> =
            self.tracked.clone().into_iter().map(|n| (n, self.bytes(3000))).collect();
        let (fs, handle, obj) = (&self.fs, &self.handle, self.files[name].obj);
        let commit = async { fs.fsync(obj).await.map_err(context("fsync of what was rewritten")) };
        let tasks = appends.iter().map(|(name, data)| {
            let file = &self.files[name];
            let (obj, off, buf) = (file.obj, file.data.len() as u64, vec![Bytes::copy_from(data)]);
            async move { (fs.write_sync(obj, off, buf, false).await, handle.io_seq()) }
        });
        let (done, got) = join2(commit, join_all(tasks.collect())).await;
        done?;
        for (n, ((got, at), (name, data))) in got.into_iter().zip(&appends).enumerate() {
            match got {
                Ok((done, _)) => {
                    let file = self.files.get_mut(name).expect("tracked files stay");
                    file.data.extend_from_slice(&data[..done as usize]);
                    if let Some(g) = self.grown.as_mut().map(|g| &mut g[n]) {
                        g.data.clone_from(&file.data);
                        g.durable.push((at, g.data.len()));
                        self.met.acks += 1;
                    }
                }
                Err(e) if is_full(&e) => self.met.refused += 1,
                Err(e) => return Err(format!("an append beside a commit: {e:?}")),
            }
        }
        Ok(())
    }

    /// Appends to several files side by side; false if one was refused.
    async fn burst(&mut self) -> Check<bool> {
        let mut names = std::collections::BTreeSet::new();
        for _ in 0..WRITERS {
            names.extend(self.pick());
        }
        let mut writes = Vec::new();
        for name in &names {
            let len = if self.rng.percent(50) { self.plan.recordsize } else { self.rng.between(1, 128 << 10) };
            let data = self.bytes(len as usize);
            writes.push((name.clone(), data, self.rng.percent(20)));
        }
        let fs = &self.fs;
        let tasks = writes.iter().map(|(name, data, sync)| {
            let file = &self.files[name];
            let (obj, off, buf) = (file.obj, file.data.len() as u64, vec![Bytes::copy_from(data)]);
            async move {
                match sync {
                    true => fs.write_sync(obj, off, buf, false).await,
                    false => fs.write(obj, off, buf, false).await,
                }
            }
        });
        let mut all = true;
        for (got, (name, data, _)) in join_all(tasks.collect()).await.into_iter().zip(&writes) {
            match got {
                Ok((done, _)) => {
                    let file = self.files.get_mut(name).expect("picked");
                    file.data.extend_from_slice(&data[..done as usize]);
                    all &= done as usize == data.len();
                }
                Err(e) if is_full(&e) => all = false,
                Err(e) => return Err(format!("write of a burst: {e:?}")),
            }
        }
        Ok(all)
    }
}
