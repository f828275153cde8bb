//! The expected content of a pool: an in-memory POSIX file system, and a pool of them.
//!
//! The model is independent of blocks, txgs and formats. Objects have the numbers that the engine
//! gave them, so that hard links can be compared; times are taken over from the engine after an
//! operation once they were seen to be plausible (`workload`), and must stay from then on. All
//! parts are shared copy-on-write: a clone is a state.

use std::collections::BTreeMap;
use std::rc::Rc;

use base::WallTime;
use base::{ErrorKind, ObjectId};
use dsl::props::PropValue;
use zpl::{FileKind, RenameFlags};

/// Bytes of a file's content that are kept together.
const PAGE: u64 = 16 << 10;

/// A name in a directory.
pub type Name = Vec<u8>;

/// The content of a file: pages that were written, zeros in between.
#[derive(Clone, Default, Debug)]
pub struct Content {
    /// Bytes.
    pub size: u64,
    pages: BTreeMap<u64, Rc<Vec<u8>>>,
}

impl Content {
    /// Stores `data` at `off`, growing the file.
    pub fn write(&mut self, off: u64, data: &[u8]) {
        self.size = self.size.max(off + data.len() as u64);
        let mut done = 0;
        while done < data.len() {
            let at = off + done as u64;
            let within = (at % PAGE) as usize;
            let part = (PAGE as usize - within).min(data.len() - done);
            let page = self.pages.entry(at / PAGE).or_insert_with(|| Rc::new(vec![0; PAGE as usize]));
            Rc::make_mut(page)[within..within + part].copy_from_slice(&data[done..done + part]);
            done += part;
        }
    }
    /// Makes the range zeros; the size stays.
    pub fn zero(&mut self, off: u64, end: u64) {
        let end = end.min(self.size);
        if off >= end {
            return;
        }
        let (first, last) = (off / PAGE, (end - 1) / PAGE);
        let numbers: Vec<u64> = self.pages.range(first..=last).map(|(n, _)| *n).collect();
        for n in numbers {
            let (start, stop) = (off.max(n * PAGE) - n * PAGE, end.min((n + 1) * PAGE) - n * PAGE);
            if stop - start == PAGE {
                self.pages.remove(&n);
            } else if let Some(page) = self.pages.get_mut(&n) {
                Rc::make_mut(page)[start as usize..stop as usize].fill(0);
            }
        }
    }
    /// Makes `len` bytes at `off` those at `src_off` of `from`, growing the file.
    pub fn clone_range(&mut self, off: u64, from: &Content, src_off: u64, len: u64) {
        self.zero(off, off + len);
        let (first, end) = (src_off / PAGE, (src_off + len).div_ceil(PAGE));
        for (n, page) in from.pages.range(first..end) {
            let (start, stop) = (src_off.max(n * PAGE), (src_off + len).min((n + 1) * PAGE).min(from.size));
            if start < stop {
                let part = &page[(start - n * PAGE) as usize..(stop - n * PAGE) as usize];
                self.write(off + (start - src_off), part);
            }
        }
        self.size = self.size.max(off + len);
    }
    /// Sets the size.
    pub fn truncate(&mut self, size: u64) {
        if size < self.size {
            let old = self.size;
            self.zero(size, old.next_multiple_of(PAGE).min(old));
            self.pages.split_off(&size.div_ceil(PAGE));
        }
        self.size = size;
    }
    /// Compares `data` with the bytes at `off`: the offset of the first difference.
    pub fn difference(&self, off: u64, data: &[u8]) -> Option<u64> {
        let mut done = 0;
        while done < data.len() {
            let at = off + done as u64;
            let within = (at % PAGE) as usize;
            let part = (PAGE as usize - within).min(data.len() - done);
            let got = &data[done..done + part];
            let same = match self.pages.get(&(at / PAGE)) {
                Some(page) => &page[within..within + part] == got,
                None => codec::is_zero(got),
            };
            if !same {
                let page = self.pages.get(&(at / PAGE));
                let want = |i: usize| page.map_or(0, |p| p[within + i]);
                return (0..part).find(|&i| want(i) != got[i]).map(|i| at + i as u64);
            }
            done += part;
        }
        None
    }
    /// Ranges that may hold something else than zeros, in order: whole pages, cut at the size.
    pub fn data_ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.pages.keys().map(|n| n * PAGE).filter(|at| *at < self.size).map(|at| (at, (at + PAGE).min(self.size)))
    }
    /// Bytes of memory.
    pub fn footprint(&self) -> u64 {
        self.pages.len() as u64 * PAGE
    }
}

/// The content of an object.
#[derive(Clone, Debug)]
pub enum Body {
    /// A regular file.
    File(Content),
    /// A directory.
    Dir {
        /// The directory above; its own number for the root.
        parent: u64,
        /// Its entries.
        entries: BTreeMap<Name, u64>,
    },
    /// A symbolic link and its target.
    Symlink(Vec<u8>),
    /// A FIFO, socket or device.
    Special,
}

/// An object with all its attributes.
#[derive(Clone, Debug)]
pub struct Inode {
    /// Its type.
    pub kind: FileKind,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Links.
    pub nlink: u32,
    /// Device number.
    pub rdev: u64,
    /// The txg that made it, from the engine.
    pub generation: u64,
    /// Access time.
    pub atime: WallTime,
    /// Modification time.
    pub mtime: WallTime,
    /// Change time.
    pub ctime: WallTime,
    /// Creation time.
    pub crtime: WallTime,
    /// Extended attributes.
    pub xattrs: BTreeMap<Name, Rc<Vec<u8>>>,
    /// The rest.
    pub body: Body,
}

impl Inode {
    /// The size that `stat` shows.
    pub fn size(&self) -> u64 {
        match &self.body {
            Body::File(c) => c.size,
            Body::Dir { entries, .. } => entries.len() as u64 + 2,
            Body::Symlink(t) => t.len() as u64,
            Body::Special => 0,
        }
    }
    /// The content of a regular file.
    pub fn content(&self) -> Option<&Content> {
        if let Body::File(c) = &self.body { Some(c) } else { None }
    }
    /// The entries of a directory.
    pub fn entries(&self) -> Option<&BTreeMap<Name, u64>> {
        if let Body::Dir { entries, .. } = &self.body { Some(entries) } else { None }
    }
    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Dir
    }
}

/// A file system.
#[derive(Clone, Debug)]
pub struct FsModel {
    /// The root directory's number.
    pub root: u64,
    /// All objects that have a name.
    pub inodes: BTreeMap<u64, Rc<Inode>>,
    /// Longest name in bytes.
    pub longest: usize,
}

type Outcome<T = ()> = Result<T, ErrorKind>;

impl FsModel {
    /// The object; it must be there.
    pub fn get(&self, ino: u64) -> &Inode {
        &self.inodes[&ino]
    }
    /// The object, to be changed.
    pub fn get_mut(&mut self, ino: u64) -> &mut Inode {
        Rc::make_mut(self.inodes.get_mut(&ino).expect("the model has every object that it names"))
    }
    fn entries(&self, dir: u64) -> Outcome<&BTreeMap<Name, u64>> {
        self.inodes.get(&dir).ok_or(ErrorKind::NotFound)?.entries().ok_or(ErrorKind::NotDir)
    }
    fn entries_mut(&mut self, dir: u64) -> &mut BTreeMap<Name, u64> {
        match &mut self.get_mut(dir).body {
            Body::Dir { entries, .. } => entries,
            _ => unreachable!("looked up as a directory"),
        }
    }
    /// The object of that name.
    pub fn lookup(&self, dir: u64, name: &[u8]) -> Option<u64> {
        self.entries(dir).ok()?.get(name).copied()
    }
    /// Whether a new name may be made.
    pub fn check_new(&self, dir: u64, name: &[u8]) -> Outcome {
        check_name(name, self.longest)?;
        if self.entries(dir)?.contains_key(name) { Err(ErrorKind::Exists) } else { Ok(()) }
    }
    /// Enters a new object.
    pub fn insert(&mut self, dir: u64, name: &[u8], ino: u64, inode: Inode) {
        if inode.is_dir() {
            self.get_mut(dir).nlink += 1;
        }
        self.entries_mut(dir).insert(name.to_vec(), ino);
        let old = self.inodes.insert(ino, Rc::new(inode));
        assert!(old.is_none(), "object {ino} was given out twice");
    }
    /// Whether `link` may be done.
    pub fn check_link(&self, ino: u64, dir: u64, name: &[u8]) -> Outcome {
        check_name(name, self.longest)?;
        if self.get(ino).is_dir() {
            return Err(ErrorKind::Denied);
        }
        self.check_new(dir, name)
    }
    /// Does it.
    pub fn link(&mut self, ino: u64, dir: u64, name: &[u8]) {
        self.entries_mut(dir).insert(name.to_vec(), ino);
        self.get_mut(ino).nlink += 1;
    }
    /// Whether `unlink` (or `rmdir`) may be done.
    pub fn check_remove(&self, dir: u64, name: &[u8], want_dir: bool) -> Outcome<u64> {
        let ino = *self.entries(dir)?.get(name).ok_or(ErrorKind::NotFound)?;
        let inode = self.get(ino);
        match (inode.entries(), want_dir) {
            (Some(_), false) => Err(ErrorKind::IsDir),
            (None, true) => Err(ErrorKind::NotDir),
            (Some(e), true) if !e.is_empty() => Err(ErrorKind::NotEmpty),
            _ => Ok(ino),
        }
    }
    fn drop_link(&mut self, ino: u64) -> Option<Rc<Inode>> {
        let inode = self.get_mut(ino);
        if inode.is_dir() || inode.nlink == 1 {
            return self.inodes.remove(&ino);
        }
        inode.nlink -= 1;
        None
    }
    /// Takes the name away; the object if that was its last.
    pub fn remove(&mut self, dir: u64, name: &[u8]) -> Option<Rc<Inode>> {
        let ino = self.entries_mut(dir).remove(name).expect("checked");
        if self.get(ino).is_dir() {
            self.get_mut(dir).nlink -= 1;
        }
        self.drop_link(ino)
    }
    fn is_below(&self, mut ino: u64, above: u64) -> bool {
        loop {
            if ino == above {
                return true;
            }
            match &self.get(ino).body {
                Body::Dir { parent, .. } if *parent != ino => ino = *parent,
                _ => return false,
            }
        }
    }
    /// Whether `rename` may be done; false if it would change nothing.
    pub fn check_rename(&self, from: (u64, &[u8]), to: (u64, &[u8]), flags: RenameFlags) -> Outcome<bool> {
        check_name(from.1, self.longest)?;
        check_name(to.1, self.longest)?;
        let source = *self.entries(from.0)?.get(from.1).ok_or(ErrorKind::NotFound)?;
        let target = self.entries(to.0)?.get(to.1).copied();
        if flags.noreplace && target.is_some() {
            return Err(ErrorKind::Exists);
        }
        if flags.exchange && target.is_none() {
            return Err(ErrorKind::NotFound);
        }
        if target == Some(source) {
            return Ok(false);
        }
        let s = self.get(source);
        if s.is_dir() && self.is_below(to.0, source) {
            return Err(ErrorKind::Invalid);
        }
        let Some(target) = target else { return Ok(true) };
        let t = self.get(target);
        if t.is_dir() && self.is_below(from.0, target) {
            return Err(if flags.exchange { ErrorKind::Invalid } else { ErrorKind::NotEmpty });
        }
        if flags.exchange {
            return Ok(true);
        }
        match (s.is_dir(), t.entries()) {
            (false, Some(_)) => Err(ErrorKind::IsDir),
            (true, None) => Err(ErrorKind::NotDir),
            (true, Some(e)) if !e.is_empty() => Err(ErrorKind::NotEmpty),
            _ => Ok(true),
        }
    }
    /// Does it; the numbers of the source and the target.
    pub fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), exchange: bool) -> (u64, Option<u64>) {
        let source = self.lookup(from.0, from.1).expect("checked");
        let target = self.lookup(to.0, to.1);
        if exchange {
            let target = target.expect("checked");
            self.entries_mut(from.0).insert(from.1.to_vec(), target);
            self.entries_mut(to.0).insert(to.1.to_vec(), source);
            self.reparent(source, from.0, to.0);
            self.reparent(target, to.0, from.0);
            return (source, Some(target));
        }
        if target.is_some() {
            self.remove(to.0, to.1);
        }
        self.entries_mut(from.0).remove(from.1);
        self.entries_mut(to.0).insert(to.1.to_vec(), source);
        self.reparent(source, from.0, to.0);
        (source, target)
    }
    fn reparent(&mut self, ino: u64, from: u64, to: u64) {
        if from == to || !self.get(ino).is_dir() {
            return;
        }
        self.get_mut(from).nlink -= 1;
        self.get_mut(to).nlink += 1;
        if let Body::Dir { parent, .. } = &mut self.get_mut(ino).body {
            *parent = to;
        }
    }
    /// Bytes of memory for contents.
    pub fn footprint(&self) -> u64 {
        self.inodes.values().filter_map(|i| i.content()).map(Content::footprint).sum()
    }
}

/// Whether a name may be used at all, if the longest has that many bytes.
pub fn check_name(name: &[u8], longest: usize) -> Outcome {
    if name.len() > longest {
        return Err(ErrorKind::NameTooLong);
    }
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) { Err(ErrorKind::Invalid) } else { Ok(()) }
}

/// A dataset.
#[derive(Clone, Debug)]
pub struct DsModel {
    /// Values set on it.
    pub props: BTreeMap<String, PropValue>,
    /// Its content.
    pub fs: FsModel,
    /// Limits of owners: of users, groups or projects (0 to 2), of bytes or (true) objects, of that
    /// id.
    pub quotas: BTreeMap<(usize, bool, u64), u64>,
    /// Whether access times were ever on: then they are not compared.
    pub atime: bool,
}

/// A pool.
#[derive(Clone, Debug, Default)]
pub struct PoolModel {
    /// Datasets by full name.
    pub datasets: BTreeMap<String, Rc<DsModel>>,
}

impl PoolModel {
    /// The dataset, to be changed.
    pub fn ds_mut(&mut self, name: &str) -> &mut DsModel {
        Rc::make_mut(self.datasets.get_mut(name).expect("the model has every dataset that it names"))
    }
    /// Names of the datasets below `name`, and its own.
    pub fn below(&self, name: &str) -> Vec<String> {
        let prefix = format!("{name}/");
        self.datasets.keys().filter(|n| *n == name || n.starts_with(&prefix)).cloned().collect()
    }
    /// The value of a number property, inherited ones too.
    pub fn prop(&self, name: &str, prop: &str) -> u64 {
        let mut at = name;
        loop {
            if let Some(v) = self.datasets.get(at).and_then(|d| d.props.get(prop)) {
                return v.num();
            }
            match at.rsplit_once('/') {
                Some((up, _)) => at = up,
                None => return dsl::props::find(prop).map_or(0, |p| p.default_value().num()),
            }
        }
    }
    /// An object's number as the engine writes it.
    pub fn obj(ino: u64) -> ObjectId {
        ObjectId(ino)
    }
}
