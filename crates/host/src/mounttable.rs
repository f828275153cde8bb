//! The list of mounts of this process's mount namespace (`/proc/self/mountinfo`).
//!
//! Reading it never calls a file system, so it cannot block, unlike a path lookup: the path may
//! lead through a mount whose server is dead or hangs. A mount is identified by its device number,
//! which is its file system's: it stays the same when the mount is moved or copied.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use base::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::open::os_error;

const LIST: &str = "/proc/self/mountinfo";

/// Number of a file system: major and minor.
pub type DevNumber = (u32, u32);

/// A mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MountEntry {
    /// Its number.
    pub id: u64,
    /// The number of the mount that it is in.
    pub parent: u64,
    /// Its file system.
    pub dev: DevNumber,
    /// Where it is.
    pub at: PathBuf,
    /// The type, with its subtype (`fuse.zfs`).
    pub fstype: String,
    /// The mount's source.
    pub source: String,
    /// Options of the file system.
    pub options: String,
}

impl MountEntry {
    /// The user who mounted a FUSE file system.
    pub fn fuse_user(&self) -> Option<u32> {
        self.options.split(',').find_map(|o| o.strip_prefix("user_id="))?.parse().ok()
    }
}

/// All mounts, as they were at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MountTable {
    entries: Vec<MountEntry>,
    /// Places in `entries`, in order: there may be 100,000 mounts, and each is looked for.
    of_dev: HashMap<DevNumber, Vec<usize>>,
    at_path: HashMap<PathBuf, Vec<usize>>,
}

/// Blanks, tabs, newlines and backslashes stand in the list as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, more)) = rest.split_first() {
        let code = match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        out.push(code.unwrap_or(first));
        rest = if code.is_some() { &rest[4..] } else { more };
    }
    out
}

fn parse_line(line: &[u8]) -> Option<MountEntry> {
    // proc_pid_mountinfo(5): id, parent, major:minor, root, mount point, options, any number of
    // fields, "-", type, source, options.
    let mut fields = line.split(|b| *b == b' ');
    let text = |f: &[u8]| String::from_utf8_lossy(&unescape(f)).into_owned();
    let number = |f: &[u8]| std::str::from_utf8(f).ok()?.parse::<u64>().ok();
    let (id, parent) = (number(fields.next()?)?, number(fields.next()?)?);
    let dev = text(fields.next()?);
    let (major, minor) = dev.split_once(':')?;
    let dev = (major.parse().ok()?, minor.parse().ok()?);
    let at = PathBuf::from(OsString::from_vec(unescape(fields.nth(1)?)));
    fields.find(|f| *f == b"-")?;
    let (fstype, source) = (text(fields.next()?), text(fields.next()?));
    let options = fields.next().map(text).unwrap_or_default();
    Some(MountEntry { id, parent, dev, at, fstype, source, options })
}

impl MountTable {
    /// The list of this moment. Fails where `/proc` is not mounted.
    pub fn read() -> Result<MountTable> {
        std::fs::read(LIST).map(|l| MountTable::parse(&l)).map_err(|e| os_error(LIST, "cannot be read", &e))
    }

    fn parse(list: &[u8]) -> MountTable {
        MountTable::with(list.split(|b| *b == b'\n').filter_map(parse_line).collect())
    }

    fn with(entries: Vec<MountEntry>) -> MountTable {
        let mut table = MountTable { entries, ..MountTable::default() };
        for (n, e) in table.entries.iter().enumerate() {
            table.of_dev.entry(e.dev).or_default().push(n);
            table.at_path.entry(e.at.clone()).or_default().push(n);
        }
        table
    }

    /// All of them, those that were mounted first before the others.
    pub fn entries(&self) -> &[MountEntry] {
        &self.entries
    }

    fn those(&self, places: Option<&Vec<usize>>) -> Vec<&MountEntry> {
        places.into_iter().flatten().map(|n| &self.entries[*n]).collect()
    }

    /// Where a file system is mounted.
    pub fn of(&self, dev: DevNumber) -> Vec<&MountEntry> {
        self.those(self.of_dev.get(&dev))
    }

    /// The mount at `path` that hides all others there.
    pub fn top_at(&self, path: &Path) -> Option<&MountEntry> {
        let here = self.those(self.at_path.get(path));
        here.iter().rev().find(|e| here.iter().all(|other| other.parent != e.id)).copied()
    }
}

/// The list of mounts, read anew only after something was mounted or unmounted.
pub struct MountWatch {
    file: RefCell<File>,
    table: RefCell<Option<Rc<MountTable>>>,
}

impl MountWatch {
    /// Fails where `/proc` is not mounted.
    pub fn new() -> Result<MountWatch> {
        let file = File::open(LIST).map_err(|e| os_error(LIST, "cannot be opened", &e))?;
        Ok(MountWatch { file: RefCell::new(file), table: RefCell::default() })
    }

    /// The list of this moment.
    pub fn table(&self) -> Result<Rc<MountTable>> {
        let mut file = self.file.borrow_mut();
        // Without a wait.
        let changed = poll(&mut [PollFd::new(&*file, PollFlags::PRI)], Some(&Timespec::default())) != Ok(0);
        if !changed && let Some(table) = &*self.table.borrow() {
            return Ok(table.clone());
        }
        let mut list = Vec::new();
        let read = file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut list));
        read.map_err(|e| os_error(LIST, "cannot be read", &e))?;
        let table = Rc::new(MountTable::parse(&list));
        self.table.replace(Some(table.clone()));
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
40 27 0:40 / /m\\040x\\134y rw shared:7 master:2 - fuse.zfs tank/a\\040b rw,user_id=7,group_id=0
41 40 0:41 / /m\\040x\\134y rw - fuse.zfs tank rw,user_id=0
42 27 0:40 /sub /elsewhere rw - fuse.zfs tank/a\\040b rw,user_id=7,group_id=0
nonsense
43 27 x:y / /bad rw - a b c
44 27 0:44 / /bare rw - tmpfs none
";

    #[test]
    fn the_list_is_understood() {
        let t = MountTable::parse(SAMPLE.as_bytes());
        assert_eq!(t.entries().len(), 6);
        let at = PathBuf::from("/m x\\y");
        let found: Vec<_> = t.of((0, 40)).into_iter().map(|e| e.at.clone()).collect();
        assert_eq!(found, [at.clone(), PathBuf::from("/elsewhere")]);
        let first = &t.entries()[2];
        assert_eq!((first.fstype.as_str(), first.source.as_str()), ("fuse.zfs", "tank/a b"));
        assert_eq!((first.fuse_user(), t.entries()[0].fuse_user()), (Some(7), None));
        assert_eq!(t.top_at(&at).map(|e| e.id), Some(41));
        assert_eq!(t.top_at(Path::new("/nowhere")), None);
        // The one on top need not be the last in the list.
        let turned = MountTable::with(t.entries().iter().rev().cloned().collect());
        assert_eq!(turned.top_at(&at).map(|e| e.id), Some(41));
        assert_eq!(unescape(b"a\\08\\"), b"a\\08\\");
    }

    #[test]
    fn the_list_of_this_process_is_read() {
        let watch = MountWatch::new().expect("a list");
        let first = watch.table().expect("read");
        assert!(first.entries().iter().any(|e| e.at == Path::new("/proc")));
        assert_eq!(*watch.table().expect("again"), *first);
    }
}
