//! Trees of files: generates one, copies one into a file system, compares it with the copy.
//!
//! The file system is a [`Store`]: the folder of its mount, or one of a pool that is open in this
//! process, if nothing can be mounted.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, FileTimes};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base::{Error, ErrorKind, Result};
use openweir::{Change, FileKind, FileSystem, OpenOptions};

/// Bytes moved at once.
const CHUNK: usize = 1 << 20;

/// Attributes that are copied and compared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attrs {
    /// `d`, `f` or `l`.
    pub kind: char,
    /// Permission bits.
    pub mode: u32,
    /// Bytes of a file.
    pub size: u64,
    /// Modification time: seconds and nanoseconds.
    pub mtime: (i64, u32),
    /// The target of a symbolic link.
    pub target: Vec<u8>,
}

/// A file system to copy a tree into.
pub trait Store {
    /// Makes a folder.
    fn make_dir(&mut self, at: &Path) -> Result<()>;
    /// Makes a file with the content of `from`.
    fn put_file(&mut self, at: &Path, from: &mut dyn Read, moved: &mut dyn FnMut(u64)) -> Result<()>;
    /// Makes a symbolic link.
    fn put_symlink(&mut self, at: &Path, target: &[u8]) -> Result<()>;
    /// Makes a hard link.
    fn put_link(&mut self, at: &Path, old: &Path) -> Result<()>;
    /// Sets mode and time.
    fn set_attrs(&mut self, at: &Path, attrs: &Attrs) -> Result<()>;
    /// The attributes at a path.
    fn attrs(&mut self, at: &Path) -> Result<Attrs>;
    /// The content of a file, piece by piece.
    fn read_file(&mut self, at: &Path, size: u64, piece: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()>;
}

fn fail(path: &Path, e: &io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("'{}': {e}", path.display()))
}

/// An entry of a tree, its path relative to the root of the tree.
#[derive(Clone, Debug)]
pub struct Item {
    /// Its path.
    pub path: PathBuf,
    /// Its attributes.
    pub attrs: Attrs,
    /// An earlier name of the same file.
    pub link_to: Option<PathBuf>,
}

/// All entries below a folder, folders before their content, in order of name. Entries of other
/// types, and those that cannot be read, are left out and counted.
pub fn scan(root: &Path) -> Result<(Vec<Item>, u64)> {
    let mut out = Vec::new();
    let mut left_out = 0;
    let mut names: BTreeMap<(u64, u64), PathBuf> = BTreeMap::new();
    let mut todo = vec![PathBuf::new()];
    while let Some(dir) = todo.pop() {
        let full = root.join(&dir);
        let entries = match fs::read_dir(&full) {
            Ok(entries) => entries,
            Err(e) if dir.as_os_str().is_empty() => return Err(fail(&full, &e)),
            Err(_) => {
                left_out += 1;
                continue;
            }
        };
        let mut children: Vec<PathBuf> = entries.filter_map(|e| Some(dir.join(e.ok()?.file_name()))).collect();
        children.sort();
        for path in children {
            let full = root.join(&path);
            let Ok(meta) = fs::symlink_metadata(&full) else {
                left_out += 1;
                continue;
            };
            let attrs = attrs_of(&full, &meta)?;
            let Some(attrs) = attrs.filter(|a| a.kind != 'f' || File::open(&full).is_ok()) else {
                left_out += 1;
                continue;
            };
            let mut link_to = None;
            if attrs.kind == 'f' && meta.nlink() > 1 {
                let first = names.entry((meta.dev(), meta.ino())).or_insert_with(|| path.clone());
                link_to = (*first != path).then(|| first.clone());
            }
            if attrs.kind == 'd' {
                todo.push(path.clone());
            }
            out.push(Item { path, attrs, link_to });
        }
    }
    Ok((out, left_out))
}

fn attrs_of(path: &Path, meta: &fs::Metadata) -> Result<Option<Attrs>> {
    let kind = match meta.file_type() {
        t if t.is_dir() => 'd',
        t if t.is_file() => 'f',
        t if t.is_symlink() => 'l',
        _ => return Ok(None),
    };
    let target = match kind {
        'l' => fs::read_link(path).map_err(|e| fail(path, &e))?.as_os_str().as_bytes().to_vec(),
        _ => Vec::new(),
    };
    Ok(Some(Attrs {
        kind,
        mode: meta.permissions().mode() & 0o7777,
        size: if kind == 'f' { meta.len() } else { 0 },
        mtime: (meta.mtime(), meta.mtime_nsec() as u32),
        target,
    }))
}

/// Copies a tree; `moved` gets the number of bytes of each step.
pub fn copy(root: &Path, items: &[Item], into: &mut dyn Store, moved: &mut dyn FnMut(u64)) -> Result<()> {
    for item in items {
        match (item.attrs.kind, &item.link_to) {
            ('d', _) => into.make_dir(&item.path)?,
            ('l', _) => into.put_symlink(&item.path, &item.attrs.target)?,
            (_, Some(old)) => into.put_link(&item.path, old)?,
            _ => {
                let full = root.join(&item.path);
                let mut file = File::open(&full).map_err(|e| fail(&full, &e))?;
                into.put_file(&item.path, &mut file, moved)?;
            }
        }
    }
    // Last, and from the inside out: a new entry changes the time of its folder, and a mode may
    // forbid it.
    for item in items.iter().rev().filter(|i| i.attrs.kind != 'l') {
        into.set_attrs(&item.path, &item.attrs)?;
    }
    Ok(())
}

/// Compares every byte and attribute; the error names the first difference.
pub fn compare(root: &Path, items: &[Item], with: &mut dyn Store, moved: &mut dyn FnMut(u64)) -> Result<()> {
    for item in items {
        let at = |what: &str| Error::corrupt(format!("'{}' {what}", item.path.display()));
        let mut seen = with.attrs(&item.path)?;
        if seen.kind == 'l' {
            (seen.mode, seen.mtime, seen.size) = (item.attrs.mode, item.attrs.mtime, item.attrs.size);
        }
        if seen != item.attrs {
            return Err(at(&format!("has other attributes: {seen:?}, not {:?}", item.attrs)));
        }
        if item.attrs.kind == 'f' && item.link_to.is_none() {
            let full = root.join(&item.path);
            let mut file = File::open(&full).map_err(|e| fail(&full, &e))?;
            let mut ours = vec![0; CHUNK];
            let mut len = 0;
            with.read_file(&item.path, item.attrs.size, &mut |piece| {
                for part in piece.chunks(CHUNK) {
                    let ours = &mut ours[..part.len()];
                    file.read_exact(ours).map_err(|e| fail(&full, &e))?;
                    if ours != part {
                        return Err(at("has other content"));
                    }
                    len += part.len() as u64;
                    moved(part.len() as u64);
                }
                Ok(())
            })?;
            if len != item.attrs.size {
                return Err(at("is shorter than it was"));
            }
        }
    }
    Ok(())
}

/// A file system mounted at a folder.
pub struct Mounted(pub PathBuf);

impl Store for Mounted {
    fn make_dir(&mut self, at: &Path) -> Result<()> {
        let full = self.0.join(at);
        fs::create_dir(&full).map_err(|e| fail(&full, &e))
    }
    fn put_file(&mut self, at: &Path, from: &mut dyn Read, moved: &mut dyn FnMut(u64)) -> Result<()> {
        let full = self.0.join(at);
        let mut work = || -> io::Result<()> {
            let mut file = File::create_new(&full)?;
            let mut buf = vec![0; CHUNK];
            loop {
                let n = from.read(&mut buf)?;
                if n == 0 {
                    return Ok(());
                }
                file.write_all(&buf[..n])?;
                moved(n as u64);
            }
        };
        work().map_err(|e| fail(&full, &e))
    }
    fn put_symlink(&mut self, at: &Path, target: &[u8]) -> Result<()> {
        let full = self.0.join(at);
        std::os::unix::fs::symlink(OsStr::from_bytes(target), &full).map_err(|e| fail(&full, &e))
    }
    fn put_link(&mut self, at: &Path, old: &Path) -> Result<()> {
        let full = self.0.join(at);
        fs::hard_link(self.0.join(old), &full).map_err(|e| fail(&full, &e))
    }
    fn set_attrs(&mut self, at: &Path, attrs: &Attrs) -> Result<()> {
        let full = self.0.join(at);
        let work = || -> io::Result<()> {
            let file = File::open(&full)?;
            file.set_times(FileTimes::new().set_modified(time_of(attrs.mtime)))?;
            file.set_permissions(fs::Permissions::from_mode(attrs.mode))
        };
        work().map_err(|e| fail(&full, &e))
    }
    fn attrs(&mut self, at: &Path) -> Result<Attrs> {
        let full = self.0.join(at);
        let meta = fs::symlink_metadata(&full).map_err(|e| fail(&full, &e))?;
        attrs_of(&full, &meta)?.ok_or_else(|| Error::corrupt(format!("'{}' is something else now", full.display())))
    }
    fn read_file(&mut self, at: &Path, _size: u64, piece: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let full = self.0.join(at);
        let mut file = File::open(&full).map_err(|e| fail(&full, &e))?;
        let mut buf = vec![0; CHUNK];
        loop {
            match file.read(&mut buf).map_err(|e| fail(&full, &e))? {
                0 => return Ok(()),
                n => piece(&buf[..n])?,
            }
        }
    }
}

/// A file system of a pool that is open in this process.
pub struct Direct(pub FileSystem);

/// An error of the library as one of the commands.
pub fn told(e: openweir::Error) -> Error {
    Error::new(ErrorKind::Io, e.to_string())
}

/// Seconds and nanoseconds since 1970.
fn parts_of(time: SystemTime) -> (i64, u32) {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => (since.as_secs() as i64, since.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            let carry = i64::from(before.subsec_nanos() > 0);
            (-(before.as_secs() as i64) - carry, (1_000_000_000 - before.subsec_nanos()) % 1_000_000_000)
        }
    }
}

/// The opposite of [`parts_of`].
fn time_of((secs, nanos): (i64, u32)) -> SystemTime {
    let since = Duration::new(secs.unsigned_abs(), 0);
    let whole = if secs < 0 { UNIX_EPOCH - since } else { UNIX_EPOCH + since };
    whole + Duration::from_nanos(u64::from(nanos))
}

impl Store for Direct {
    fn make_dir(&mut self, at: &Path) -> Result<()> {
        self.0.mkdir(at).wait().map_err(told)
    }
    fn put_file(&mut self, at: &Path, from: &mut dyn Read, moved: &mut dyn FnMut(u64)) -> Result<()> {
        let file = self.0.open(at, OpenOptions::new().create_new(0o644)).wait().map_err(told)?;
        let mut buf = vec![0; CHUNK];
        let mut off = 0;
        loop {
            let n = from.read(&mut buf).map_err(|e| fail(at, &e))?;
            if n == 0 {
                return Ok(());
            }
            file.write_at(off, &buf[..n]).wait().map_err(told)?;
            off += n as u64;
            moved(n as u64);
        }
    }
    fn put_symlink(&mut self, at: &Path, target: &[u8]) -> Result<()> {
        self.0.symlink(OsStr::from_bytes(target), at).wait().map_err(told)
    }
    fn put_link(&mut self, at: &Path, old: &Path) -> Result<()> {
        self.0.link(old, at).wait().map_err(told)
    }
    fn set_attrs(&mut self, at: &Path, attrs: &Attrs) -> Result<()> {
        let change = Change { mode: Some(attrs.mode), modified: Some(time_of(attrs.mtime)), ..Change::default() };
        self.0.change(at, change).wait().map(drop).map_err(told)
    }
    fn attrs(&mut self, at: &Path) -> Result<Attrs> {
        let a = self.0.lstat(at).wait().map_err(told)?;
        let kind = match a.kind {
            FileKind::Dir => 'd',
            FileKind::File => 'f',
            FileKind::Symlink => 'l',
            _ => '?',
        };
        let target = if kind == 'l' { self.0.readlink(at).wait().map_err(told)? } else { Vec::new() };
        let size = if kind == 'f' { a.size } else { 0 };
        Ok(Attrs { kind, mode: a.mode, size, mtime: parts_of(a.modified), target })
    }
    fn read_file(&mut self, at: &Path, size: u64, piece: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let file = self.0.open(at, OpenOptions::new()).wait().map_err(told)?;
        let mut off = 0;
        while off < size {
            let part = file.read_at(off, CHUNK).wait().map_err(told)?;
            if part.is_empty() {
                break;
            }
            piece(&part)?;
            off += part.len() as u64;
        }
        Ok(())
    }
}

/// Generates a tree of about 40 MiB in the folder `root`: many small texts, some large ones, random
/// data, a sparse file, links, unusual names, modes and times, and a copy of `program`.
pub fn generate(root: &Path, program: &Path) -> Result<()> {
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    const WORDS: &[&str] =
        &["river", "dam", "weir", "flow", "block", "pool", "water", "level", "gate", "even", "stream", "sluice"];
    let mut text = |bytes: usize| {
        let mut out = String::new();
        while out.len() < bytes {
            let n = random();
            out.push_str(WORDS[n as usize % WORDS.len()]);
            out.push(if n % 11 == 0 { '\n' } else { ' ' });
        }
        out.truncate(bytes);
        out.into_bytes()
    };
    let work = |text: &mut dyn FnMut(usize) -> Vec<u8>| -> io::Result<()> {
        fs::create_dir(root)?;
        for dir in ["many", "large", "odd", "odd/deep"] {
            fs::create_dir(root.join(dir))?;
        }
        for i in 0..1000 {
            if i % 100 == 0 {
                fs::create_dir(root.join(format!("many/{:02}", i / 100)))?;
            }
            fs::write(root.join(format!("many/{:02}/{i:04}.txt", i / 100)), text(i * 7 % 6000))?;
        }
        fs::write(root.join("large/text"), text(8 << 20))?;
        let mut noise = vec![0u8; 8 << 20];
        host::entropy(&mut noise);
        fs::write(root.join("large/noise"), &noise)?;
        let sparse = File::create(root.join("large/sparse"))?;
        sparse.set_len(64 << 20)?;
        std::os::unix::fs::FileExt::write_all_at(&sparse, b"in the middle", 33 << 20)?;
        fs::write(root.join("odd/empty"), b"")?;
        fs::write(root.join("odd/one"), b"x")?;
        fs::write(root.join("odd/name with blanks, ümläuts and \u{1f30a}"), b"names are bytes\n")?;
        fs::write(root.join(format!("odd/{}", "n".repeat(255))), b"the longest name\n")?;
        fs::hard_link(root.join("odd/one"), root.join("odd/deep/same as one"))?;
        std::os::unix::fs::symlink("../one", root.join("odd/deep/link"))?;
        std::os::unix::fs::symlink("nowhere at all", root.join("odd/dangling"))?;
        fs::set_permissions(root.join("odd/one"), fs::Permissions::from_mode(0o640))?;
        let old = File::open(root.join("odd/empty"))?;
        old.set_times(FileTimes::new().set_modified(UNIX_EPOCH + Duration::new(86_400, 123_456_789)))?;
        fs::copy(program, root.join("large/program")).map(|_| ())
    };
    work(&mut text).map_err(|e| fail(root, &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_equal_until_it_is_changed() {
        let dir = host::TempDir::new("tree").unwrap();
        let (from, to) = (dir.join("from"), dir.join("to"));
        fs::create_dir_all(from.join("a/b")).unwrap();
        fs::create_dir(&to).unwrap();
        fs::write(from.join("a/f"), b"hello").unwrap();
        fs::hard_link(from.join("a/f"), from.join("a/b/g")).unwrap();
        std::os::unix::fs::symlink("f", from.join("a/l")).unwrap();
        let (items, left_out) = scan(&from).unwrap();
        assert_eq!((items.len(), left_out), (5, 0));
        let mut store = Mounted(to.clone());
        let mut bytes = 0;
        copy(&from, &items, &mut store, &mut |n| bytes += n).unwrap();
        assert_eq!(bytes, 5);
        compare(&from, &items, &mut store, &mut |_| {}).unwrap();
        assert_eq!(fs::metadata(to.join("a/f")).unwrap().nlink(), 2);
        let before = fs::metadata(to.join("a/f")).unwrap().modified().unwrap();
        fs::write(to.join("a/f"), b"hellO").unwrap();
        File::open(to.join("a/f")).unwrap().set_times(FileTimes::new().set_modified(before)).unwrap();
        let e = compare(&from, &items, &mut store, &mut |_| {}).unwrap_err();
        assert!(e.to_string().contains("content"), "{e}");
        fs::remove_file(to.join("a/l")).unwrap();
        assert!(compare(&from, &items, &mut store, &mut |_| {}).is_err());
    }
}
