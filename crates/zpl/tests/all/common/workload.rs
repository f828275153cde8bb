//! Random operations, each run on a file system and on the model, whose results must agree.
//!
//! Names come from a small set, so that operations hit existing objects. A full file system is no
//! failure: the model skips operations refused for lack of space. Everything follows from the seed
//! and the results of the file system.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::{ErrorKind, ObjectId, Result, WallTime};
use bdev::Bytes;
use zpl::{Attr, Cred, Fallocate, FileKind, RenameFlags, SetAttr, SetTime, SetXattr, Zfs};

use super::model::{Kind, Make, Model, ROOT};
use super::rng::Rng;

/// The mix of operations of a workload.
#[derive(Clone, Debug)]
pub struct Mix {
    /// Names that each directory can have.
    pub names: u64,
    /// Objects from which on more is removed than made.
    pub objects_max: usize,
    /// Largest write in bytes.
    pub write_max: u64,
    /// Offsets of writes and sizes of truncations are below this.
    pub size_max: u64,
    /// One operation in so many puts something very far into a file.
    pub sparse: u64,
    /// One operation in so many waits for everything to be on disk.
    pub sync: u64,
    /// Extended attributes.
    pub xattrs: bool,
}

impl Default for Mix {
    fn default() -> Mix {
        Mix {
            names: 12,
            objects_max: 200,
            write_max: 64 << 10,
            size_max: 512 << 10,
            sparse: 64,
            sync: 200,
            xattrs: true,
        }
    }
}

/// Counts of operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Operations.
    pub ops: u64,
    /// That succeeded.
    pub done: u64,
    /// That failed for lack of space or a quota.
    pub full: u64,
    /// Bytes written.
    pub written: u64,
}

/// A workload on a file system.
pub struct Workload {
    /// The file system.
    pub fs: Rc<Zfs>,
    /// The expected state.
    pub model: Model,
    /// Counts.
    pub stats: Stats,
    /// The last operations, newest at the end: for reports.
    pub history: Vec<String>,
    ids: BTreeMap<u64, ObjectId>,
    rng: Rng,
    mix: Mix,
}

/// A disagreement, in words.
pub type Mismatch = String;

fn full(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NoSpace | ErrorKind::Quota)
}

impl Workload {
    /// On an empty file system.
    pub async fn new(fs: Rc<Zfs>, seed: u64, mix: Mix) -> Result<Workload> {
        let root = fs.getattr(fs.root()).await?;
        let model = Model::new(root.uid, root.gid, root.mode & 0o7777);
        let ids = BTreeMap::from([(ROOT, fs.root())]);
        Ok(Workload { fs, model, stats: Stats::default(), history: Vec::new(), ids, rng: Rng::new(seed), mix })
    }

    /// The file system was closed and opened again.
    pub fn reopened(&mut self, fs: Rc<Zfs>) {
        self.fs = fs;
        self.model.forget_opens();
        let model = &self.model;
        self.ids.retain(|&m, _| model.exists(m));
    }

    /// Does `ops` operations.
    pub async fn run(&mut self, ops: u64) -> Result<(), Mismatch> {
        for _ in 0..ops {
            self.step().await.map_err(|e| {
                let last: Vec<&str> = self.history.iter().rev().take(12).rev().map(String::as_str).collect();
                format!("{e}\n  after {} operations, the last being\n  {}", self.stats.ops, last.join("\n  "))
            })?;
        }
        Ok(())
    }

    fn id(&self, obj: u64) -> ObjectId {
        self.ids[&obj]
    }
    fn name(&mut self) -> Vec<u8> {
        let n = self.rng.below(self.mix.names);
        match n {
            // Long names make fat ZAPs.
            0 if self.rng.one_in(4) => vec![b'L'; 255],
            1 if self.rng.one_in(8) => vec![b'M'; 256],
            2 if self.rng.one_in(4) => "naïve-☃".repeat(6).into_bytes(),
            _ => format!("n{n}").into_bytes(),
        }
    }
    fn any(&mut self, want: impl Fn(&Kind) -> bool) -> Option<u64> {
        let list: Vec<u64> = self.model.objects().filter(|(_, o)| want(&o.kind)).map(|(k, _)| k).collect();
        if list.is_empty() { None } else { Some(*self.rng.pick(&list)) }
    }
    fn dir(&mut self) -> u64 {
        self.any(|k| matches!(k, Kind::Dir(_))).unwrap_or(ROOT)
    }
    fn file(&mut self) -> Option<u64> {
        self.any(|k| matches!(k, Kind::File(_)))
    }
    fn object(&mut self) -> u64 {
        self.any(|_| true).unwrap_or(ROOT)
    }

    /// Holds the two answers against each other; whether both succeeded.
    fn agree<T>(&mut self, what: String, real: Result<T>, model: Result<(), ErrorKind>) -> Result<Option<T>, Mismatch> {
        self.stats.ops += 1;
        let answer = match &real {
            Ok(_) => "ok".to_string(),
            Err(e) => format!("{e:?}"),
        };
        self.history.push(format!("{what}: {answer}"));
        if self.history.len() > 200 {
            self.history.drain(..100);
        }
        match (real, model) {
            (Ok(v), Ok(())) => {
                self.stats.done += 1;
                Ok(Some(v))
            }
            (Err(e), Err(k)) if e.kind() == k => Ok(None),
            (Err(e), _) if full(e.kind()) => {
                self.stats.full += 1;
                Ok(None)
            }
            (real, model) => {
                let real = real.map(drop);
                Err(format!("{what}: the file system says {real:?}, the model {model:?}"))
            }
        }
    }

    /// Does `f` on a copy of the model; keeps it if the file system did it too.
    fn both<T>(
        &mut self,
        what: String,
        real: Result<T>,
        f: impl FnOnce(&mut Model) -> Result<(), ErrorKind>,
    ) -> Result<Option<T>, Mismatch> {
        if let Err(e) = &real
            && full(e.kind())
        {
            return self.agree(what, real, Ok(()));
        }
        let answer = f(&mut self.model);
        self.agree(what, real, answer)
    }

    async fn step(&mut self) -> Result<(), Mismatch> {
        let crowded = self.model.objects().count() > self.mix.objects_max;
        let choice = self.rng.below(100);
        match choice {
            0..=19 if !crowded => self.make().await,
            0..=29 => self.remove().await,
            30..=31 => self.link().await,
            32..=41 => self.rename().await,
            42..=61 => self.write().await,
            62..=66 => self.truncate().await,
            67..=74 => self.read().await,
            75..=79 => self.setattr().await,
            80..=86 if self.mix.xattrs => self.xattr().await,
            87..=88 => self.punch().await,
            89..=90 => self.rewrite().await,
            91..=94 => self.open_or_release().await,
            _ => {
                if self.rng.one_in(self.mix.sync) {
                    let r = self.fs.sync_all().await;
                    self.agree("sync".into(), r, Ok(()))?;
                }
                self.listing().await
            }
        }
    }

    async fn make(&mut self) -> Result<(), Mismatch> {
        let (dir, name) = (self.dir(), self.name());
        let mode = [0o644, 0o755, 0o600, 0o604, 0o070, 0o777][self.rng.below(6) as usize];
        let cred = Cred::new(self.rng.below(3) as u32 * 500, self.rng.below(3) as u32 * 500);
        let what = match self.rng.below(10) {
            0..=2 => Make::Dir,
            3 => {
                let len = [5, 60, 200, 599, 4000][self.rng.below(5) as usize];
                Make::Symlink(vec![b't'; len])
            }
            4 => {
                let bits = [0o010000u32, 0o020000, 0o060000, 0o140000][self.rng.below(4) as usize];
                let dev = if bits == 0o020000 || bits == 0o060000 { 8 << 20 | 3 } else { 0 };
                Make::Special(bits, dev)
            }
            _ => Make::File,
        };
        let d = self.id(dir);
        let fs = self.fs.clone();
        let real = match &what {
            Make::File => fs.create(d, &name, mode, &cred, true).await,
            Make::Dir => fs.mkdir(d, &name, mode, &cred).await,
            Make::Symlink(t) => fs.symlink(d, &name, t, &cred).await,
            Make::Special(bits, dev) => fs.mknod(d, &name, bits | mode, *dev, &cred).await,
        };
        let text = format!("make {what:?} {:?} in {dir}", String::from_utf8_lossy(&name));
        let mut made = None;
        let got = self.both(text, real, |m| {
            made = Some(m.make(dir, &name, what, mode, cred.uid, cred.gid)?);
            Ok(())
        })?;
        if let (Some(attr), Some(obj)) = (got, made) {
            self.ids.insert(obj, attr.obj);
            self.check_attr(obj, &attr)?;
        }
        Ok(())
    }

    async fn remove(&mut self) -> Result<(), Mismatch> {
        let (dir, name, rmdir) = (self.dir(), self.name(), self.rng.one_in(3));
        let d = self.id(dir);
        let real = if rmdir { self.fs.rmdir(d, &name).await } else { self.fs.unlink(d, &name).await };
        let text = format!("{} {:?} in {dir}", if rmdir { "rmdir" } else { "unlink" }, String::from_utf8_lossy(&name));
        self.both(text, real, |m| m.remove(dir, &name, rmdir))?;
        self.forget_gone();
        Ok(())
    }

    fn forget_gone(&mut self) {
        let model = &self.model;
        self.ids.retain(|&m, _| model.exists(m));
    }

    async fn link(&mut self) -> Result<(), Mismatch> {
        let (obj, dir, name) = (self.object(), self.dir(), self.name());
        let real = self.fs.link(self.id(obj), self.id(dir), &name).await;
        let text = format!("link {obj} as {:?} in {dir}", String::from_utf8_lossy(&name));
        if let Some(attr) = self.both(text, real, |m| m.link(obj, dir, &name))? {
            self.check_attr(obj, &attr)?;
        }
        Ok(())
    }

    async fn rename(&mut self) -> Result<(), Mismatch> {
        let (from, name, to, new) = (self.dir(), self.name(), self.dir(), self.name());
        let to = if self.rng.one_in(3) { from } else { to };
        let flags = RenameFlags { noreplace: self.rng.one_in(6), exchange: self.rng.one_in(5) };
        let real = self.fs.rename(self.id(from), &name, self.id(to), &new, flags).await;
        let (a, b) = (String::from_utf8_lossy(&name).into_owned(), String::from_utf8_lossy(&new).into_owned());
        let text = format!("rename {a:?} in {from} to {b:?} in {to} {flags:?}");
        self.both(text, real, |m| m.rename(from, &name, to, &new, flags.noreplace, flags.exchange))?;
        self.forget_gone();
        Ok(())
    }

    fn offset(&mut self, size: u64) -> u64 {
        match self.rng.below(6) {
            0 => size,
            1 => size / 2,
            2 => self.rng.below(self.mix.size_max) & !0xfff,
            3 if self.rng.one_in(self.mix.sparse) => (1 << 40) + self.rng.below(1 << 20),
            _ => self.rng.below(self.mix.size_max),
        }
    }

    async fn write(&mut self) -> Result<(), Mismatch> {
        let Some(obj) = self.file() else { return Ok(()) };
        let size = self.model.data(obj).map_or(0, |d| d.size);
        let append = self.rng.one_in(6);
        let off = if append { size } else { self.offset(size) };
        let len = match self.rng.below(4) {
            0 => self.rng.below(100),
            1 => 4096 * (1 + self.rng.below(4)),
            _ => self.rng.below(self.mix.write_max) + 1,
        };
        let data = self.rng.bytes(len as usize);
        let whole = Bytes::copy_from(&data);
        let cut = self.rng.below(len + 1) as usize;
        let pieces = if self.rng.one_in(2) { vec![whole.slice(..cut), whole.slice(cut..)] } else { vec![whole] };
        let given = if append { 0 } else { off };
        let real = self.fs.write(self.id(obj), given, pieces, append).await;
        let mut wrong = None;
        let done = real.as_ref().map_or(0, |r| r.0);
        let what = format!("write {len} bytes at {off} of {obj} (size {size}, append {append}), {done} written");
        let got = self.both(what, real, |m| {
            let d = m.data_mut(obj)?;
            d.write(off, &data[..done as usize]);
            wrong = Some(d.size);
            Ok(())
        })?;
        if let (Some((written, new_size)), Some(model_size)) = (got, wrong) {
            self.stats.written += written;
            if written < len {
                self.stats.full += 1;
            }
            if new_size != model_size {
                return Err(format!("after a write file {obj} has {new_size} bytes, in the model {model_size}"));
            }
        }
        Ok(())
    }

    async fn truncate(&mut self) -> Result<(), Mismatch> {
        let obj = if self.rng.one_in(20) { Some(self.object()) } else { self.file() };
        let Some(obj) = obj else { return Ok(()) };
        let size = self.model.data(obj).map_or(0, |d| d.size);
        let new = match self.rng.below(4) {
            0 => 0,
            1 => self.rng.below(size + 1),
            _ => self.offset(size),
        };
        let set = SetAttr { size: Some(new), ..SetAttr::default() };
        let real = self.fs.setattr(self.id(obj), set).await;
        self.both(format!("truncate {obj} from {size} to {new}"), real, |m| {
            m.data_mut(obj)?.truncate(new);
            Ok(())
        })?;
        Ok(())
    }

    async fn punch(&mut self) -> Result<(), Mismatch> {
        let Some(obj) = self.file() else { return Ok(()) };
        let size = self.model.data(obj).map_or(0, |d| d.size);
        let (off, len) = (self.offset(size), self.rng.below(self.mix.size_max) + 1);
        let keep_size = self.rng.one_in(2);
        let zero = self.rng.one_in(2);
        let how = if zero { Fallocate::ZeroRange { keep_size } } else { Fallocate::PunchHole };
        let real = self.fs.fallocate(self.id(obj), how, off, len).await;
        self.both(format!("{how:?} {len} bytes at {off} of {obj} (size {size})"), real, |m| {
            let d = m.data_mut(obj)?;
            d.zero(off, off + len);
            if zero && !keep_size && off + len > d.size {
                d.truncate(off + len);
            }
            Ok(())
        })?;
        Ok(())
    }

    async fn rewrite(&mut self) -> Result<(), Mismatch> {
        let Some(obj) = self.file() else { return Ok(()) };
        let size = self.model.data(obj).map_or(0, |d| d.size);
        let (off, len) = (self.offset(size), self.rng.below(self.mix.size_max));
        let real = self.fs.rewrite(self.id(obj), off, len).await;
        self.agree(format!("rewrite {len} bytes at {off} of {obj} (size {size})"), real, Ok(()))?;
        Ok(())
    }

    async fn read(&mut self) -> Result<(), Mismatch> {
        let Some(obj) = self.file() else { return Ok(()) };
        let size = self.model.data(obj).map_or(0, |d| d.size);
        let (off, len) = (self.offset(size), self.rng.below(self.mix.write_max * 2) + 1);
        let real = self.fs.read(self.id(obj), off, len).await;
        if let Some(parts) = self.agree(format!("read {len} bytes at {off} of {obj}"), real, Ok(()))? {
            self.check_data(obj, off, len, &parts)?;
        }
        Ok(())
    }

    fn check_data(&self, obj: u64, off: u64, len: u64, parts: &[Bytes]) -> Result<(), Mismatch> {
        let got: Vec<u8> = parts.iter().flat_map(|p| p.iter().copied()).collect();
        let want = self.model.data(obj).map_err(|k| format!("object {obj}: {k:?}"))?.read(off, len);
        if got == want {
            return Ok(());
        }
        let at = got.iter().zip(&want).position(|(a, b)| a != b).unwrap_or(got.len().min(want.len()));
        Err(format!(
            "file {obj} ({}) read at {off}: {} bytes, the model has {}; they differ at {}",
            self.id(obj),
            got.len(),
            want.len(),
            off + at as u64
        ))
    }

    async fn setattr(&mut self) -> Result<(), Mismatch> {
        let obj = self.object();
        let mode = self.rng.one_in(2).then(|| [0o644, 0o755, 0o640, 0o604, 0o177, 0o1777][self.rng.below(6) as usize]);
        let is_dir = self.model.entries(obj).is_ok();
        let mode = mode.map(|m: u32| if is_dir && self.rng.one_in(3) { m | 0o2000 } else { m });
        let (uid, gid) = (
            self.rng.one_in(3).then(|| self.rng.below(5) as u32),
            self.rng.one_in(3).then(|| self.rng.below(5) as u32),
        );
        let mtime = self
            .rng
            .one_in(3)
            .then(|| (self.rng.below(1 << 33) as i64 - (1 << 31), self.rng.below(1_000_000_000) as u32));
        let set = SetAttr {
            mode,
            uid,
            gid,
            mtime: mtime.map(|(secs, nanos)| SetTime::At(WallTime { secs, nanos })),
            ..SetAttr::default()
        };
        let real = self.fs.setattr(self.id(obj), set).await;
        let got = self.both(format!("setattr {obj} {set:?}"), real, |m| {
            m.setattr(obj, mode, uid, gid, mtime);
            Ok(())
        })?;
        if let Some(attr) = got {
            self.check_attr(obj, &attr)?;
        }
        Ok(())
    }

    async fn xattr(&mut self) -> Result<(), Mismatch> {
        let obj = self.object();
        let name = format!("user.x{}", self.rng.below(6)).into_bytes();
        if self.rng.one_in(4) {
            let real = self.fs.removexattr(self.id(obj), &name).await;
            self.both(format!("removexattr {name:?} of {obj}"), real, |m| m.removexattr(obj, &name))?;
        } else {
            let len = [0, 3, 40, 200, 1000, 20_000, 40_000, 65_536][self.rng.below(8) as usize];
            let value = self.rng.bytes(len);
            let how = *self.rng.pick(&[SetXattr::Any, SetXattr::Any, SetXattr::Create, SetXattr::Replace]);
            let real = self.fs.setxattr(self.id(obj), &name, &value, how).await;
            let text = format!("setxattr {} of {len} bytes of {obj} {how:?}", String::from_utf8_lossy(&name));
            self.both(text, real, |m| {
                m.setxattr(obj, &name, &value, how == SetXattr::Create, how == SetXattr::Replace)
            })?;
        }
        self.check_xattrs(obj).await
    }

    async fn check_xattrs(&self, obj: u64) -> Result<(), Mismatch> {
        let id = self.id(obj);
        let want = &self.model.get(obj).xattrs;
        let mut names = self.fs.listxattr(id).await.map_err(|e| format!("listxattr of {obj}: {e:?}"))?;
        names.sort();
        if !names.iter().eq(want.keys()) {
            return Err(format!("object {obj} ({id}) has the extended attributes {names:?}, not {:?}", want.keys()));
        }
        for (name, value) in want {
            match self.fs.getxattr(id, name).await {
                Ok(v) if v == *value => {}
                other => {
                    let other = other.map(|v| v.len());
                    return Err(format!(
                        "extended attribute {} of {obj}: {other:?} instead of {} bytes",
                        String::from_utf8_lossy(name),
                        value.len()
                    ));
                }
            }
        }
        Ok(())
    }

    async fn open_or_release(&mut self) -> Result<(), Mismatch> {
        let opened: Vec<u64> = self.model.objects().filter(|(_, o)| o.opens > 0).map(|(k, _)| k).collect();
        if !opened.is_empty() && (opened.len() > 8 || self.rng.one_in(2)) {
            let obj = *self.rng.pick(&opened);
            self.fs.release(self.id(obj)).await;
            self.model.release(obj);
            self.agree(format!("release {obj}"), Ok(()), Ok(()))?;
            self.forget_gone();
            return Ok(());
        }
        let obj = self.object();
        let real = self.fs.open_file(self.id(obj)).await;
        self.both(format!("open {obj}"), real, |m| {
            m.open(obj);
            Ok(())
        })?;
        Ok(())
    }

    async fn listing(&mut self) -> Result<(), Mismatch> {
        let dir = self.dir();
        let batch = 1 + self.rng.below(40) as usize;
        self.check_dir(dir, batch).await?;
        self.agree(format!("list {dir}"), Ok(()), Ok(()))?;
        Ok(())
    }

    /// A directory's entries, read in batches; their objects.
    async fn check_dir(&self, dir: u64, batch: usize) -> Result<(), Mismatch> {
        let mut seen = BTreeMap::new();
        let (mut cookie, mut dots) = (0, Vec::new());
        loop {
            let list = self
                .fs
                .readdirplus(self.id(dir), cookie, batch)
                .await
                .map_err(|e| format!("readdir of {dir}: {e:?}"))?;
            let Some(last) = list.last() else { break };
            cookie = last.entry.next_cookie;
            for e in list {
                if e.entry.name == b"." || e.entry.name == b".." {
                    dots.push(e.entry.obj);
                    continue;
                }
                let kind = e.attr.ok_or_else(|| format!("{:?} in {dir} has no attributes", e.entry.name))?.kind;
                if kind != e.entry.kind {
                    return Err(format!("{:?} in {dir} is {kind:?}, its entry says {:?}", e.entry.name, e.entry.kind));
                }
                if seen.insert(e.entry.name.clone(), e.entry.obj).is_some() {
                    return Err(format!("{:?} is listed twice in {dir}", e.entry.name));
                }
            }
        }
        let want: BTreeMap<Vec<u8>, ObjectId> = self
            .model
            .entries(dir)
            .map_err(|k| format!("{dir}: {k:?}"))?
            .iter()
            .map(|(n, &o)| (n.clone(), self.id(o)))
            .collect();
        if seen != want {
            return Err(format!("directory {dir} has {seen:?}, the model {want:?}"));
        }
        if dots.first() != Some(&self.id(dir)) || dots.len() != 2 {
            return Err(format!("directory {dir} lists . and .. as {dots:?}"));
        }
        Ok(())
    }

    fn check_attr(&self, obj: u64, a: &Attr) -> Result<(), Mismatch> {
        let o = self.model.get(obj);
        let (kind, size, rdev) = match &o.kind {
            Kind::Dir(e) => (FileKind::Dir, e.len() as u64 + 2, 0),
            Kind::File(d) => (FileKind::File, d.size, 0),
            Kind::Symlink(t) => (FileKind::Symlink, t.len() as u64, 0),
            Kind::Special(bits, rdev) => (FileKind::from_mode(u64::from(*bits)).unwrap_or(FileKind::File), 0, *rdev),
        };
        let got = (a.kind, a.mode & 0o7777, a.uid, a.gid, a.nlink, a.size, a.rdev, a.obj);
        let want = (kind, o.mode, o.uid, o.gid, o.links, size, rdev, self.id(obj));
        if got != want {
            return Err(format!(
                "object {obj}: kind, mode, uid, gid, nlink, size, rdev, number are {got:?}, in the model {want:?}"
            ));
        }
        if let Some((secs, nanos)) = o.mtime
            && a.mtime != (WallTime { secs, nanos })
        {
            return Err(format!("object {obj} has the mtime {:?}, the model {secs}.{nanos}", a.mtime));
        }
        Ok(())
    }

    /// The whole tree against the model.
    pub async fn compare(&self) -> Result<(), Mismatch> {
        let mut reached = BTreeSet::new();
        for (obj, o) in self.model.objects() {
            let id = self.id(obj);
            if !reached.insert(id) {
                return Err(format!("two objects of the model are object {id}"));
            }
            let attr = self.fs.getattr(id).await.map_err(|e| format!("getattr of {obj}: {e:?}"))?;
            self.check_attr(obj, &attr)?;
            self.check_xattrs(obj).await?;
            match &o.kind {
                Kind::Dir(entries) => {
                    self.check_dir(obj, 7).await?;
                    for (name, &child) in entries {
                        let found = self.fs.lookup(id, name).await.map(|a| a.obj);
                        if found.as_ref().ok() != Some(&self.id(child)) {
                            return Err(format!("lookup of {name:?} in {obj}: {found:?}, not {}", self.id(child)));
                        }
                    }
                }
                Kind::Symlink(t) => {
                    let got = self.fs.readlink(id).await.map_err(|e| format!("readlink of {obj}: {e:?}"))?;
                    if got != *t {
                        return Err(format!(
                            "symbolic link {obj} has a target of {} bytes, not {}",
                            got.len(),
                            t.len()
                        ));
                    }
                }
                Kind::File(d) => {
                    // All of a small file, else around the written ranges.
                    let mut at = Vec::new();
                    if d.size <= 4 << 20 {
                        at.push((0, d.size + 10));
                    } else {
                        at.extend(d.written().map(|p| (p.saturating_sub(100), 4096 + 200)));
                        at.push((d.size.saturating_sub(5000), 6000));
                    }
                    for (off, len) in at {
                        let parts = self.fs.read(id, off, len).await.map_err(|e| format!("read of {obj}: {e:?}"))?;
                        self.check_data(obj, off, len, &parts)?;
                    }
                    self.check_holes(obj, id).await?;
                }
                Kind::Special(..) => {}
            }
        }
        Ok(())
    }

    /// Every written page that is not zeros is reported as data.
    async fn check_holes(&self, obj: u64, id: ObjectId) -> Result<(), Mismatch> {
        let d = self.model.data(obj).map_err(|k| format!("{k:?}"))?;
        for p in d.written().step_by(7) {
            if p >= d.size || d.read(p, 4096).iter().all(|&b| b == 0) {
                continue;
            }
            let data = self.fs.seek_data(id, p).await.map_err(|e| format!("seek_data of {obj}: {e:?}"))?;
            if data.is_none_or(|at| at >= p + 4096) {
                return Err(format!("file {obj} has data at {p}, but the next data is said to be at {data:?}"));
            }
        }
        Ok(())
    }
}
