//! A file system in memory, with the semantics of POSIX and Linux.
//!
//! Objects are numbered by the model itself. Errors are only kinds. File data are sparse, in pages,
//! so that files of any size can be modelled.

use std::collections::BTreeMap;

use base::ErrorKind;

/// The result of an operation of the model.
pub type Res<T> = Result<T, ErrorKind>;

/// Granule of file data in bytes.
const PAGE: u64 = 4096;

/// The type of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    Dir(BTreeMap<Vec<u8>, u64>),
    File(Data),
    Symlink(Vec<u8>),
    /// Type bits of the mode, device number.
    Special(u32, u64),
}

/// Content of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Data {
    pub size: u64,
    pages: BTreeMap<u64, Vec<u8>>,
}

impl Data {
    pub fn write(&mut self, off: u64, data: &[u8]) {
        let mut at = 0usize;
        while at < data.len() {
            let pos = off + at as u64;
            let from = (pos % PAGE) as usize;
            let n = (PAGE as usize - from).min(data.len() - at);
            let page = self.pages.entry(pos / PAGE).or_insert_with(|| vec![0; PAGE as usize]);
            page[from..from + n].copy_from_slice(&data[at..at + n]);
            at += n;
        }
        if !data.is_empty() {
            self.size = self.size.max(off + data.len() as u64);
        }
    }
    pub fn read(&self, off: u64, len: u64) -> Vec<u8> {
        let end = off.saturating_add(len).min(self.size);
        let mut out = Vec::new();
        let mut pos = off;
        while pos < end {
            let from = pos % PAGE;
            let n = (PAGE - from).min(end - pos) as usize;
            match self.pages.get(&(pos / PAGE)) {
                Some(p) => out.extend_from_slice(&p[from as usize..from as usize + n]),
                None => out.resize(out.len() + n, 0),
            }
            pos += n as u64;
        }
        out
    }
    /// Makes a range read as zeros.
    pub fn zero(&mut self, off: u64, end: u64) {
        let end = end.min(self.size);
        if off >= end {
            return;
        }
        let pages: Vec<u64> = self.pages.range(off / PAGE..=(end - 1) / PAGE).map(|(&p, _)| p).collect();
        for p in pages {
            let start = p * PAGE;
            let (from, to) = (off.max(start) - start, (end - start).min(PAGE));
            if from == 0 && to == PAGE {
                self.pages.remove(&p);
            } else if let Some(page) = self.pages.get_mut(&p) {
                page[from as usize..to as usize].fill(0);
            }
        }
    }
    pub fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.zero(size, self.size);
            self.pages.split_off(&size.div_ceil(PAGE));
        }
        self.size = size;
    }
    /// Offsets of pages that were written.
    pub fn written(&self) -> impl Iterator<Item = u64> + '_ {
        self.pages.keys().map(|p| p * PAGE)
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Object {
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Of a directory 2 + its subdirectories.
    pub links: u32,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Modification time if it was set, and nothing has changed it since.
    pub mtime: Option<(i64, u32)>,
    pub opens: u32,
    parent: u64,
}

/// The file system.
#[derive(Clone, Debug)]
pub struct Model {
    objects: BTreeMap<u64, Object>,
    next: u64,
}

/// The root directory.
pub const ROOT: u64 = 1;

/// The object to create.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Make {
    File,
    Dir,
    Symlink(Vec<u8>),
    Special(u32, u64),
}

impl Model {
    pub fn new(uid: u32, gid: u32, mode: u32) -> Model {
        let kind = Kind::Dir(BTreeMap::new());
        let root =
            Object { kind, mode, uid, gid, links: 2, xattrs: BTreeMap::new(), mtime: None, opens: 0, parent: ROOT };
        Model { objects: BTreeMap::from([(ROOT, root)]), next: ROOT + 1 }
    }
    pub fn get(&self, obj: u64) -> &Object {
        &self.objects[&obj]
    }
    pub fn exists(&self, obj: u64) -> bool {
        self.objects.contains_key(&obj)
    }
    pub fn objects(&self) -> impl Iterator<Item = (u64, &Object)> {
        self.objects.iter().map(|(&k, v)| (k, v))
    }
    fn get_mut(&mut self, obj: u64) -> &mut Object {
        self.objects.get_mut(&obj).expect("the model gave this number")
    }
    pub fn entries(&self, dir: u64) -> Res<&BTreeMap<Vec<u8>, u64>> {
        match &self.get(dir).kind {
            Kind::Dir(e) => Ok(e),
            _ => Err(ErrorKind::NotDir),
        }
    }
    fn entries_mut(&mut self, dir: u64) -> &mut BTreeMap<Vec<u8>, u64> {
        let o = self.get_mut(dir);
        o.mtime = None;
        match &mut o.kind {
            Kind::Dir(e) => e,
            _ => panic!("object {dir} was checked to be a directory"),
        }
    }
    fn is_dir(&self, obj: u64) -> bool {
        matches!(self.get(obj).kind, Kind::Dir(_))
    }
    fn check_name(name: &[u8]) -> Res<()> {
        match name.len() {
            0 => Err(ErrorKind::Invalid),
            n if n > 255 => Err(ErrorKind::NameTooLong),
            _ => Ok(()),
        }
    }
    pub fn lookup(&self, dir: u64, name: &[u8]) -> Res<u64> {
        Model::check_name(name)?;
        self.entries(dir)?.get(name).copied().ok_or(ErrorKind::NotFound)
    }

    pub fn make(&mut self, dir: u64, name: &[u8], what: Make, mode: u32, uid: u32, gid: u32) -> Res<u64> {
        Model::check_name(name)?;
        if self.entries(dir)?.contains_key(name) {
            return Err(ErrorKind::Exists);
        }
        if self.get(dir).links == 0 {
            return Err(ErrorKind::NotFound);
        }
        let is_dir = what == Make::Dir;
        let (mut mode, mut gid) = (mode, gid);
        let d = self.get(dir);
        if d.mode & 0o2000 != 0 {
            gid = d.gid;
            if is_dir {
                mode |= 0o2000;
            }
        }
        let (kind, mode) = match what {
            Make::File => (Kind::File(Data::default()), mode),
            Make::Dir => (Kind::Dir(BTreeMap::new()), mode),
            Make::Symlink(t) => (Kind::Symlink(t), 0o777),
            Make::Special(bits, rdev) => (Kind::Special(bits, rdev), mode),
        };
        let obj = self.next;
        self.next += 1;
        let links = if is_dir { 2 } else { 1 };
        let o = Object { kind, mode, uid, gid, links, xattrs: BTreeMap::new(), mtime: None, opens: 0, parent: dir };
        self.objects.insert(obj, o);
        self.entries_mut(dir).insert(name.to_vec(), obj);
        if is_dir {
            self.get_mut(dir).links += 1;
        }
        Ok(obj)
    }

    pub fn link(&mut self, obj: u64, dir: u64, name: &[u8]) -> Res<()> {
        Model::check_name(name)?;
        self.entries(dir)?;
        if self.is_dir(obj) {
            return Err(ErrorKind::Denied);
        }
        if self.entries(dir)?.contains_key(name) {
            return Err(ErrorKind::Exists);
        }
        if self.get(obj).links == 0 || self.get(dir).links == 0 {
            return Err(ErrorKind::NotFound);
        }
        self.entries_mut(dir).insert(name.to_vec(), obj);
        let o = self.get_mut(obj);
        o.links += 1;
        o.parent = dir;
        Ok(())
    }

    fn drop_link(&mut self, obj: u64) {
        let o = self.get_mut(obj);
        o.links = if matches!(o.kind, Kind::Dir(_)) { 0 } else { o.links - 1 };
        if o.links == 0 && o.opens == 0 {
            self.objects.remove(&obj);
        }
    }

    pub fn remove(&mut self, dir: u64, name: &[u8], dir_wanted: bool) -> Res<()> {
        let obj = self.lookup(dir, name)?;
        match (self.is_dir(obj), dir_wanted) {
            (true, false) => return Err(ErrorKind::IsDir),
            (false, true) => return Err(ErrorKind::NotDir),
            (true, true) if !self.entries(obj)?.is_empty() => return Err(ErrorKind::NotEmpty),
            _ => {}
        }
        self.entries_mut(dir).remove(name);
        if dir_wanted {
            self.get_mut(dir).links -= 1;
        }
        self.drop_link(obj);
        Ok(())
    }

    /// Whether `obj` is `dir` or above it.
    pub fn is_above(&self, obj: u64, dir: u64) -> bool {
        let mut at = dir;
        loop {
            if at == obj {
                return true;
            }
            // The parent of a directory that was removed may be gone too.
            if at == ROOT || !self.exists(at) {
                return false;
            }
            at = self.get(at).parent;
        }
    }

    pub fn rename(&mut self, from: u64, name: &[u8], to: u64, new: &[u8], noreplace: bool, exchange: bool) -> Res<()> {
        if noreplace && exchange {
            return Err(ErrorKind::Invalid);
        }
        Model::check_name(name)?;
        Model::check_name(new)?;
        let source = self.lookup(from, name)?;
        let target = self.entries(to)?.get(new).copied();
        if self.get(to).links == 0 {
            return Err(ErrorKind::NotFound);
        }
        if noreplace && target.is_some() {
            return Err(ErrorKind::Exists);
        }
        if exchange && target.is_none() {
            return Err(ErrorKind::NotFound);
        }
        if target == Some(source) {
            return Ok(());
        }
        let source_dir = self.is_dir(source);
        if source_dir && self.is_above(source, to) {
            return Err(ErrorKind::Invalid);
        }
        if let Some(t) = target {
            let t_dir = self.is_dir(t);
            if t_dir && self.is_above(t, from) {
                return Err(if exchange { ErrorKind::Invalid } else { ErrorKind::NotEmpty });
            }
            if exchange {
                self.entries_mut(from).insert(name.to_vec(), t);
                self.entries_mut(to).insert(new.to_vec(), source);
                self.get_mut(source).parent = to;
                self.get_mut(t).parent = from;
                if from != to {
                    let (s, t) = (u32::from(source_dir), u32::from(t_dir));
                    let f = self.get_mut(from);
                    f.links = f.links + t - s;
                    let d = self.get_mut(to);
                    d.links = d.links + s - t;
                }
                return Ok(());
            }
            match (source_dir, t_dir) {
                (false, true) => return Err(ErrorKind::IsDir),
                (true, false) => return Err(ErrorKind::NotDir),
                (true, true) if !self.entries(t)?.is_empty() => return Err(ErrorKind::NotEmpty),
                _ => {}
            }
            self.entries_mut(to).remove(new);
            if t_dir {
                self.get_mut(to).links -= 1;
            }
            self.drop_link(t);
        }
        self.entries_mut(from).remove(name);
        self.entries_mut(to).insert(new.to_vec(), source);
        self.get_mut(source).parent = to;
        if source_dir && from != to {
            self.get_mut(from).links -= 1;
            self.get_mut(to).links += 1;
        }
        Ok(())
    }

    pub fn data(&self, obj: u64) -> Res<&Data> {
        match &self.get(obj).kind {
            Kind::File(d) => Ok(d),
            Kind::Dir(_) => Err(ErrorKind::IsDir),
            _ => Err(ErrorKind::Invalid),
        }
    }
    pub fn data_mut(&mut self, obj: u64) -> Res<&mut Data> {
        let o = self.get_mut(obj);
        match &mut o.kind {
            Kind::File(d) => {
                o.mtime = None;
                Ok(d)
            }
            Kind::Dir(_) => Err(ErrorKind::IsDir),
            _ => Err(ErrorKind::Invalid),
        }
    }
    pub fn setattr(
        &mut self,
        obj: u64,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        mtime: Option<(i64, u32)>,
    ) {
        let o = self.get_mut(obj);
        o.mode = mode.unwrap_or(o.mode);
        o.uid = uid.unwrap_or(o.uid);
        o.gid = gid.unwrap_or(o.gid);
        o.mtime = mtime.or(o.mtime);
    }
    pub fn setxattr(&mut self, obj: u64, name: &[u8], value: &[u8], create: bool, replace: bool) -> Res<()> {
        let x = &mut self.get_mut(obj).xattrs;
        match x.contains_key(name) {
            true if create => return Err(ErrorKind::Exists),
            false if replace => return Err(ErrorKind::NoAttr),
            _ => {}
        }
        x.insert(name.to_vec(), value.to_vec());
        Ok(())
    }
    pub fn removexattr(&mut self, obj: u64, name: &[u8]) -> Res<()> {
        self.get_mut(obj).xattrs.remove(name).map(drop).ok_or(ErrorKind::NoAttr)
    }
    pub fn open(&mut self, obj: u64) {
        self.get_mut(obj).opens += 1;
    }
    /// Closes; the object goes if it has no name.
    pub fn release(&mut self, obj: u64) {
        let o = self.get_mut(obj);
        o.opens -= 1;
        if o.opens == 0 && o.links == 0 {
            self.objects.remove(&obj);
        }
    }
    /// A new mount: nothing is open any more.
    pub fn forget_opens(&mut self) {
        self.objects.retain(|_, o| {
            o.opens = 0;
            o.links > 0
        });
    }
}
