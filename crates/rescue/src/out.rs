//! The folder that everything is copied to.
//!
//! Names come from a damaged pool and are hostile: each is one component, made safe by
//! [`safe_name`], and no symbolic link is followed on the way to it. Nothing outside the folder is
//! touched, and nothing of the pool gets into the folder of the record. Files are written over when
//! a rescue goes on, so an interrupted one is simply written again.
//!
//! Attributes are set when a file or folder is complete: owner (as root only), extended attributes,
//! mode, access lists, times. Without root's rights folders stay writable for their owner, or
//! nothing could be put into them any more.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::rc::Rc;

use base::{Error, ErrorKind, Result};
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;

/// Longest name on Linux.
const NAME_MAX: usize = 255;
/// Room that is left on the target; below it a rescue stops.
const ROOM_MIN: u64 = 16 << 20;

/// Attributes of a file or folder.
#[derive(Clone, Debug, Default)]
pub struct Meta {
    /// Permission bits.
    pub mode: u32,
    /// Owner and group; beyond 32 bits they are not restored.
    pub owner: (u64, u64),
    /// Access and modification time: seconds and nanoseconds.
    pub times: [[u64; 2]; 2],
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A folder in the target by the names of its path.
type Folder = (Vec<Vec<u8>>, Rc<OwnedFd>);

/// The target folder.
pub struct Out {
    root: OwnedFd,
    as_root: bool,
    /// The folder that was used last.
    current: RefCell<Option<Folder>>,
    written: Cell<u64>,
    checked: Cell<u64>,
}

fn io(what: &str, name: &[u8], e: Errno) -> Error {
    let kind = if e == Errno::NOSPC || e == Errno::DQUOT { ErrorKind::NoSpace } else { ErrorKind::Io };
    Error::new(kind, format!("{what} '{}': {e}", String::from_utf8_lossy(name)))
}

/// Whether an error means that the target cannot take any more.
pub fn is_fatal(e: &Error) -> bool {
    e.kind() == ErrorKind::NoSpace
}

/// Makes the folder of the record within the target folder. Error: something else is there.
pub fn record_folder(dir: &Path) -> Result<()> {
    let say = |e: std::io::Error| Error::new(ErrorKind::Io, format!("{}: {e}", dir.display()));
    std::fs::create_dir_all(dir).map_err(say)?;
    if std::fs::symlink_metadata(dir).map_err(say)?.is_dir() {
        return Ok(());
    }
    Err(Error::invalid(format!("{} is a link and no folder: choose another target folder", dir.display())))
}

/// Opens a file of the record for writing. Error: it is a link, which is not followed.
pub fn record_file(path: &Path, how: &mut OpenOptions) -> Result<File> {
    how.custom_flags(OFlags::NOFOLLOW.bits() as i32).open(path).map_err(|e| {
        if std::fs::symlink_metadata(path).is_ok_and(|m| m.is_symlink()) {
            return Error::invalid(format!("{} is a link: remove it, or choose another target folder", path.display()));
        }
        record_error(path, &e)
    })
}

/// An error of a file of the record.
pub fn record_error(path: &Path, e: &std::io::Error) -> Error {
    Error::new(kind_of(e), format!("{}: {e}", path.display()))
}

/// `NoSpace` where the target cannot take any more.
pub fn kind_of(e: &std::io::Error) -> ErrorKind {
    match e.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
        _ => ErrorKind::Io,
    }
}

/// The name of a pool's folder in the target: that of the record is not for pools.
pub fn pool_name(name: &[u8], record: &str) -> Vec<u8> {
    let mut safe = safe_name(name);
    // Some file systems do not tell large letters from small ones.
    if safe.eq_ignore_ascii_case(record.as_bytes()) {
        safe.push(b'~');
    }
    safe
}

/// A name that is one component of a path: others are altered, and stay distinct.
pub fn safe_name(name: &[u8]) -> Vec<u8> {
    let special = name.is_empty() || name == b"." || name == b"..";
    if !special && name.len() <= NAME_MAX && !name.iter().any(|b| matches!(b, 0 | b'/')) {
        return name.to_vec();
    }
    let mut out = Vec::new();
    for &b in name {
        match b {
            0 | b'/' => out.extend_from_slice(format!("%{b:02X}").as_bytes()),
            b'.' if special => out.extend_from_slice(b"%2E"),
            _ => out.push(b),
        }
    }
    if out.is_empty() {
        out.push(b'%');
    }
    if out.len() > NAME_MAX {
        let sum = codec::checksum::sha256(name).0[0];
        out.truncate(NAME_MAX - 20);
        out.extend_from_slice(format!("~{sum:016x}").as_bytes());
    }
    out
}

const DIR_FLAGS: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Out {
    /// Opens the folder; makes it if it is not there.
    pub fn open(path: &Path) -> Result<Out> {
        let say = |e: std::io::Error| Error::new(ErrorKind::Io, format!("{}: {e}", path.display()));
        std::fs::create_dir_all(path).map_err(say)?;
        let root = rustix::fs::openat(CWD, path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let root = root.map_err(|e| Error::new(ErrorKind::Io, format!("{}: {e}", path.display())))?;
        let as_root = rustix::process::geteuid().is_root();
        Ok(Out { root, as_root, current: RefCell::default(), written: Cell::new(0), checked: Cell::new(0) })
    }

    /// The folder at `path` below the root, made where it is missing.
    pub fn dir(&self, path: &[Vec<u8>]) -> Result<Rc<OwnedFd>> {
        let (mut at, mut done) = (None, 0);
        if let Some((known, fd)) = &*self.current.borrow()
            && path.starts_with(known)
        {
            (at, done) = (Some(fd.clone()), known.len());
        }
        let mut fd = match at {
            Some(fd) => fd,
            None => Rc::new(self.root.try_clone().map_err(|e| Error::new(ErrorKind::Io, e.to_string()))?),
        };
        for name in &path[done..] {
            match rustix::fs::mkdirat(&*fd, &name[..], Mode::from_raw_mode(0o700)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(e) => return Err(io("making folder", name, e)),
            }
            let next = rustix::fs::openat(&*fd, &name[..], DIR_FLAGS, Mode::empty());
            fd = Rc::new(next.map_err(|e| io("opening folder", name, e))?);
        }
        *self.current.borrow_mut() = Some((path.to_vec(), fd.clone()));
        Ok(fd)
    }

    /// Does `work`, which makes something in the folder at `path` or on the way to it, and gives
    /// the folders that were there the times that they had.
    pub fn keeping_times<T>(&self, path: &[Vec<u8>], work: impl FnOnce() -> T) -> T {
        let mut kept = Vec::new();
        let mut at = self.root.try_clone().ok();
        for name in path {
            let next = at.and_then(|fd| rustix::fs::openat(fd, &name[..], DIR_FLAGS, Mode::empty()).ok());
            at = next.as_ref().and_then(|fd| fd.try_clone().ok());
            kept.extend(next.and_then(|fd| rustix::fs::fstat(&fd).ok().map(|stat| (fd, stat))));
        }
        let done = work();
        for (fd, stat) in kept {
            let times = Timestamps {
                last_access: Timespec { tv_sec: stat.st_atime, tv_nsec: stat.st_atime_nsec as _ },
                last_modification: Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec as _ },
            };
            // What was possible when they were set is possible again.
            let _ = rustix::fs::futimens(fd, &times);
        }
        done
    }

    /// Makes room for a new file, link or special file.
    fn clear(&self, dir: &OwnedFd, name: &[u8]) -> Result<()> {
        match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(io("replacing", name, e)),
        }
    }

    /// An empty file.
    pub fn file(&self, dir: &[Vec<u8>], name: &[u8]) -> Result<File> {
        let dir = self.dir(dir)?;
        self.clear(&dir, name)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&*dir, name, flags, Mode::from_raw_mode(0o600));
        Ok(File::from(fd.map_err(|e| io("making file", name, e))?))
    }

    /// Counts bytes that are to be written, and fails while the target is nearly full.
    pub fn room(&self, bytes: u64) -> Result<()> {
        self.written.set(self.written.get() + bytes);
        if self.written.get() - self.checked.get() < ROOM_MIN / 4 && self.checked.get() > 0 {
            return Ok(());
        }
        self.checked.set(self.written.get());
        let Ok(fs) = rustix::fs::fstatvfs(&self.root) else { return Ok(()) };
        if fs.f_bavail.saturating_mul(fs.f_frsize) < ROOM_MIN {
            return Err(Error::new(ErrorKind::NoSpace, "the target folder's file system is full"));
        }
        Ok(())
    }

    /// A symbolic link.
    pub fn symlink(&self, dir: &[Vec<u8>], name: &[u8], target: &[u8]) -> Result<()> {
        if target.is_empty() || target.contains(&0) {
            return Err(Error::corrupt("a symbolic link with an impossible target"));
        }
        let dir = self.dir(dir)?;
        self.clear(&dir, name)?;
        rustix::fs::symlinkat(target, &*dir, name).map_err(|e| io("making symbolic link", name, e))
    }

    /// Another name of a file that was written before.
    pub fn link(&self, from: (&[Vec<u8>], &[u8]), dir: &[Vec<u8>], name: &[u8]) -> Result<()> {
        let old = self.dir(from.0)?;
        let dir = self.dir(dir)?;
        self.clear(&dir, name)?;
        let done = rustix::fs::linkat(&*old, from.1, &*dir, name, AtFlags::empty());
        done.map_err(|e| io("making link", name, e))
    }

    /// A FIFO, socket or device; devices can be made by root alone.
    pub fn special(&self, dir: &[Vec<u8>], name: &[u8], mode: u64, rdev: (u64, u64)) -> Result<()> {
        let kind = FileType::from_raw_mode(mode as u32 & 0o170_000);
        if matches!(kind, FileType::BlockDevice | FileType::CharacterDevice) && !self.as_root {
            return Err(Error::new(ErrorKind::Denied, "only root can make device files"));
        }
        let dir = self.dir(dir)?;
        self.clear(&dir, name)?;
        let dev = rustix::fs::makedev(rdev.0 as u32, rdev.1 as u32);
        let made = rustix::fs::mknodat(&*dir, name, kind, Mode::from_raw_mode(0o600), dev);
        made.map_err(|e| io("making special file", name, e))
    }

    /// Sets the attributes of a complete file; what cannot be set comes back.
    pub fn finish_file(&self, file: &File, meta: &Meta) -> Vec<String> {
        self.finish(file.as_raw_fd(), None, meta, meta.mode)
    }
    /// Sets the attributes of a complete folder.
    pub fn finish_dir(&self, dir: &[Vec<u8>], meta: &Meta) -> Vec<String> {
        let mode = if self.as_root { meta.mode } else { meta.mode | 0o700 };
        match self.dir(dir) {
            Ok(fd) => self.finish(fd.as_raw_fd(), None, meta, mode),
            Err(e) => vec![e.to_string()],
        }
    }
    /// Sets the attributes of a symbolic link or special file.
    pub fn finish_name(&self, dir: &[Vec<u8>], name: &[u8], meta: &Meta, is_link: bool) -> Vec<String> {
        match self.dir(dir) {
            Ok(fd) => self.finish(fd.as_raw_fd(), Some((name, is_link)), meta, meta.mode),
            Err(e) => vec![e.to_string()],
        }
    }

    /// Sets attributes of an open file, or of a name in an open folder, by its path below
    /// `/proc/self/fd`, which leads through no link but that one.
    fn finish(&self, fd: i32, name: Option<(&[u8], bool)>, meta: &Meta, mode: u32) -> Vec<String> {
        let mut failed = Vec::new();
        let mut path = format!("/proc/self/fd/{fd}").into_bytes();
        let mut flags = AtFlags::empty();
        let mut is_link = false;
        if let Some((name, link)) = name {
            path.push(b'/');
            path.extend_from_slice(name);
            flags = AtFlags::SYMLINK_NOFOLLOW;
            is_link = link;
        }
        let mut check = |what: &str, r: Result<(), Errno>| {
            if let Err(e) = r {
                failed.push(format!("{what}: {e}"));
            }
        };
        if self.as_root {
            let id = |n: u64| u32::try_from(n).ok().filter(|n| *n != u32::MAX);
            if let (Some(uid), Some(gid)) = (id(meta.owner.0), id(meta.owner.1)) {
                let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
                check("owner", rustix::fs::chownat(CWD, &path[..], uid, gid, flags));
            } else {
                check("owner", Err(Errno::RANGE));
            }
        }
        let is_acl = |n: &[u8]| n.starts_with(b"system.");
        let set = |acls: bool, check: &mut dyn FnMut(&str, Result<(), Errno>)| {
            for (name, value) in meta.xattrs.iter().filter(|(n, _)| is_acl(n) == acls) {
                let full = with_namespace(name);
                let done = if full.contains(&0) {
                    Err(Errno::INVAL)
                } else if flags.is_empty() {
                    rustix::fs::setxattr(&path[..], &full[..], value, XattrFlags::empty())
                } else {
                    rustix::fs::lsetxattr(&path[..], &full[..], value, XattrFlags::empty())
                };
                check(&String::from_utf8_lossy(name), done);
            }
        };
        set(false, &mut check);
        if !is_link {
            let mode = Mode::from_raw_mode(mode & 0o7777);
            check("mode", rustix::fs::chmodat(CWD, &path[..], mode, AtFlags::empty()));
        }
        set(true, &mut check);
        let time = |t: [u64; 2]| Timespec { tv_sec: t[0] as i64, tv_nsec: t[1].min(999_999_999) as _ };
        let times = Timestamps { last_access: time(meta.times[0]), last_modification: time(meta.times[1]) };
        check("times", rustix::fs::utimensat(CWD, &path[..], &times, flags));
        failed
    }
}

/// The name of an attribute on Linux: those of other systems have no namespace.
fn with_namespace(name: &[u8]) -> Vec<u8> {
    const NAMESPACES: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system."];
    if NAMESPACES.iter().any(|n| name.starts_with(n)) { name.to_vec() } else { [b"user.", name].concat() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_become_one_component() {
        assert_eq!(safe_name(b"a b\xff"), b"a b\xff");
        assert_eq!(
            (safe_name(b".."), safe_name(b"."), safe_name(b"")),
            (b"%2E%2E".to_vec(), b"%2E".to_vec(), b"%".to_vec())
        );
        assert_eq!(safe_name(b"../../etc/passwd"), b"..%2F..%2Fetc%2Fpasswd");
        assert_eq!(safe_name(b"a\0b"), b"a%00b");
        let (long, other) = (safe_name(&[b'x'; 1000]), safe_name(&[b'x'; 1001]));
        assert!(long.len() <= NAME_MAX && long != other);
    }

    #[test]
    fn no_pool_gets_into_the_record() {
        assert_eq!(pool_name(b".weir-rescue", ".weir-rescue"), b".weir-rescue~");
        assert_eq!(pool_name(b".Weir-Rescue", ".weir-rescue"), b".Weir-Rescue~");
        assert_eq!(pool_name(b"..", ".weir-rescue"), b"%2E%2E");
        assert_eq!(pool_name(b"tank", ".weir-rescue"), b"tank");
    }

    /// Links that are in the target already are not followed either.
    #[test]
    fn the_record_is_not_written_through_links() {
        let top = std::env::temp_dir().join(format!("rescue-record-{}", std::process::id()));
        let (dir, victim) = (top.join("out/record"), top.join("victim"));
        std::fs::create_dir_all(top.join("out")).unwrap();
        std::fs::create_dir_all(&victim).unwrap();
        std::os::unix::fs::symlink(&victim, &dir).unwrap();
        assert!(record_folder(&dir).unwrap_err().to_string().contains("is a link"));
        std::fs::remove_file(&dir).unwrap();
        record_folder(&dir).unwrap();
        std::os::unix::fs::symlink(victim.join("new"), dir.join("state")).unwrap();
        let how = &mut File::options().create(true).append(true).clone();
        assert!(record_file(&dir.join("state"), how).unwrap_err().to_string().contains("is a link"));
        assert!(record_file(&dir.join("other"), how).is_ok());
        assert!(std::fs::read_dir(&victim).unwrap().next().is_none());
        std::fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn attributes_of_other_systems_get_a_namespace() {
        assert_eq!(with_namespace(b"user.a"), b"user.a");
        assert_eq!(with_namespace(b"a"), b"user.a");
    }

    /// A link that the pool put in the way is not followed.
    #[test]
    fn nothing_is_written_through_links() {
        let top = std::env::temp_dir().join(format!("rescue-out-{}", std::process::id()));
        let (inner, victim) = (top.join("out"), top.join("victim"));
        std::fs::create_dir_all(&victim).unwrap();
        let out = Out::open(&inner).unwrap();
        out.symlink(&[], b"a", victim.as_os_str().as_encoded_bytes()).unwrap();
        assert!(out.file(&[b"a".to_vec()], b"f").is_err());
        drop(out.file(&[], b"a").unwrap());
        assert!(std::fs::read_dir(&victim).unwrap().next().is_none());
        assert!(std::fs::symlink_metadata(inner.join("a")).unwrap().is_file());
        std::fs::remove_dir_all(&top).unwrap();
    }
}
