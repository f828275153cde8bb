//! The handler that serves the volumes of a pool as regular files, in folders as their datasets
//! are.
//!
//! **File**: a volume, or a snapshot of one; its length is the volume's size. **Folder**: a file
//! system with volumes below it; the root of the mount is the pool.
//!
//! A file is like a disk: its length changes with the volume only, so `O_TRUNC` changes nothing and
//! writes end at its end with `ENOSPC`; `fsync` is a flush, `fallocate` punches holes and zeroes
//! ranges. Reads and writes go past the kernel's page cache, since a volume may be written
//! elsewhere at the same time (NBD) and is in the pool's own cache.
//!
//! Node ids are objects of datasets, but for the root. Names change without a notice to the kernel,
//! so that it caches neither names nor attributes: every walk looks a name up again, which renews
//! the path of its node. A node whose path leads to something else by now is stale.
//!
//! An open file is a use of its volume ([`VolumeUse`]). The source may end it (the pool is exported
//! by force); requests for the file then fail with `EIO`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use base::Result;
use bdev::Bytes;
use rt::{LocalBoxFuture, Rt};
use zvol::Volume;

use crate::dir::DirOut;
use crate::errno::{DENIED, Errno, INVALID, IO, NO_ENTRY, NO_SYS, NOT_SUPPORTED, STALE};
use crate::handler::{Attr, Caller, Entry, Handler, Opened, SetAttr, StatFs, Time, WriteHow};
use crate::mounted::{MountOpts, Mounted, mount_handler};
use crate::proto::{FOPEN_DIRECT_IO, FOPEN_NOFLUSH, FOPEN_PARALLEL_DIRECT_WRITES, ROOT_NODE};

const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const DT_DIR: u8 = 4;
const DT_REG: u8 = 8;
/// Longest name of a file: that of a dataset is not longer.
const NAME_MAX: u32 = 255;
/// Preferred sizes of transfers: pages at least, and no more than a request carries well.
const BLKSIZE: (u32, u32) = (4096, 128 << 10);
/// Files open at once; each holds its volume.
const FILES_MAX: usize = 4096;
/// `FALLOC_FL_KEEP_SIZE`, `FALLOC_FL_PUNCH_HOLE` and `FALLOC_FL_ZERO_RANGE` of `linux/falloc.h`.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 0x10;

/// What is at a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VolumeNode {
    /// The dataset's object, which is above 1.
    pub object: u64,
    /// A folder; the rest is 0.
    pub is_folder: bool,
    /// Size of the volume in bytes.
    pub size: u64,
    /// Its blocks in bytes.
    pub block_size: u32,
    /// It cannot be written.
    pub read_only: bool,
    /// Bytes that it refers to.
    pub referenced: u64,
    /// When it was made, in seconds since 1970.
    pub created: u64,
}

impl VolumeNode {
    /// A folder.
    pub fn folder(object: u64) -> VolumeNode {
        VolumeNode { object, is_folder: true, ..VolumeNode::default() }
    }
}

/// Finds and opens volumes. Paths are names of datasets.
pub trait VolumeSource {
    /// What is at `path`.
    fn find<'a>(&'a self, path: &'a str) -> LocalBoxFuture<'a, Result<Option<VolumeNode>>>;
    /// The names in a folder, in order, each with whether it is a folder and its object.
    fn list<'a>(&'a self, folder: &'a str) -> LocalBoxFuture<'a, Result<Vec<(String, bool, u64)>>>;
    /// Opens the volume at `path`.
    fn open<'a>(&'a self, path: &'a str) -> LocalBoxFuture<'a, Result<Rc<dyn VolumeUse>>>;
}

/// The use of a volume by an open file.
pub trait VolumeUse {
    /// The volume; none when the source has ended the use.
    fn volume(&self) -> Option<Rc<Volume>>;
    /// Ends the use.
    fn close(&self);
}

/// Mounts the volumes of `pool` at `mountpoint`, a directory.
pub async fn mount_volumes(
    rt: &Rt,
    pool: &str,
    source: Rc<dyn VolumeSource>,
    mountpoint: &Path,
) -> Result<Rc<Mounted>> {
    let opts = MountOpts {
        fsname: pool.to_string(),
        subtype: Some("zvol".into()),
        nosuid: true,
        nodev: true,
        noexec: true,
        ..MountOpts::default()
    };
    let owner = (host::effective_uid(), host::effective_gid());
    mount_handler(rt, VolumesHandler::new(pool, source, owner), mountpoint, opts).await
}

struct Node {
    path: String,
    /// Of the kernel.
    references: u64,
}

struct VolumesHandler {
    pool: String,
    source: Rc<dyn VolumeSource>,
    /// User and group of all files.
    owner: (u32, u32),
    nodes: RefCell<BTreeMap<u64, Node>>,
    files: RefCell<BTreeMap<u64, Rc<dyn VolumeUse>>>,
    last_fh: Cell<u64>,
}

/// What `fallocate` asks for, within a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Range {
    /// Nothing is to be done.
    Nothing,
    /// So many bytes become a hole.
    Punch(u64),
    /// So many bytes become zeros.
    Zero(u64),
}

/// Decides about a `fallocate` of `len` bytes at `offset` of a file of `size` bytes.
fn range_of(mode: u32, offset: u64, len: u64, size: u64) -> std::result::Result<Range, Errno> {
    let within = len.min(size.saturating_sub(offset));
    let beyond = within < len && mode & KEEP_SIZE == 0;
    match mode {
        _ if beyond => Err(Errno(libc::ENOSPC)),
        0 | KEEP_SIZE => Ok(Range::Nothing),
        _ if within == 0 => Ok(Range::Nothing),
        _ if mode == PUNCH_HOLE | KEEP_SIZE => Ok(Range::Punch(within)),
        _ if mode & !KEEP_SIZE == ZERO_RANGE => Ok(Range::Zero(within)),
        _ => Err(NOT_SUPPORTED),
    }
}

/// The first `len` bytes of `data`.
fn cut(data: Vec<Bytes>, mut len: usize) -> Vec<Bytes> {
    let mut out = Vec::with_capacity(data.len());
    for part in data {
        let n = part.len().min(len);
        if n == 0 {
            break;
        }
        len -= n;
        out.push(part.slice(..n));
    }
    out
}

impl VolumesHandler {
    fn new(pool: &str, source: Rc<dyn VolumeSource>, owner: (u32, u32)) -> VolumesHandler {
        let (nodes, files, last_fh) = (RefCell::default(), RefCell::default(), Cell::new(0));
        VolumesHandler { pool: pool.to_string(), source, owner, nodes, files, last_fh }
    }

    fn path_of(&self, node: u64) -> std::result::Result<String, Errno> {
        if node == ROOT_NODE {
            return Ok(self.pool.clone());
        }
        let nodes = self.nodes.borrow();
        nodes.get(&node).map(|n| n.path.clone()).ok_or(STALE)
    }

    /// What a node is, with its path.
    async fn find(&self, node: u64) -> std::result::Result<(String, VolumeNode), Errno> {
        let path = self.path_of(node)?;
        match self.source.find(&path).await? {
            Some(found) if node == ROOT_NODE || found.object == node => Ok((path, found)),
            _ => Err(STALE),
        }
    }

    /// A file of this session: its volume.
    fn volume(&self, fh: u64) -> std::result::Result<Rc<Volume>, Errno> {
        self.files.borrow().get(&fh).and_then(|f| f.volume()).ok_or(IO)
    }

    fn attr(&self, node: u64, found: &VolumeNode) -> Attr {
        let created = Time { secs: i64::try_from(found.created).unwrap_or(i64::MAX), nanos: 0 };
        let (mode, nlink) = match (found.is_folder, found.read_only) {
            (true, _) => (S_IFDIR | 0o755, 2),
            (false, true) => (S_IFREG | 0o400, 1),
            (false, false) => (S_IFREG | 0o600, 1),
        };
        Attr {
            ino: node,
            size: found.size,
            blocks: found.referenced.div_ceil(512),
            atime: created,
            mtime: created,
            ctime: created,
            crtime: created,
            mode,
            nlink,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: (0, 0),
            blksize: found.block_size.clamp(BLKSIZE.0, BLKSIZE.1),
            ttl: Duration::ZERO,
        }
    }
}

impl Handler for VolumesHandler {
    fn forget(&self, node: u64, count: u64) {
        let mut nodes = self.nodes.borrow_mut();
        if let Some(n) = nodes.get_mut(&node) {
            n.references = n.references.saturating_sub(count);
            if n.references == 0 {
                nodes.remove(&node);
            }
        }
    }

    async fn end(&self) {
        let files = self.files.take();
        files.values().for_each(|f| f.close());
    }

    async fn lookup(&self, _: Caller, parent: u64, name: &[u8]) -> std::result::Result<Entry, Errno> {
        let name = std::str::from_utf8(name).map_err(|_| NO_ENTRY)?;
        let path = match name {
            "." => self.path_of(parent)?,
            _ => format!("{}/{name}", self.path_of(parent)?),
        };
        let found = self.source.find(&path).await?.ok_or(NO_ENTRY)?;
        let node = if path == self.pool { ROOT_NODE } else { found.object };
        if node != ROOT_NODE {
            let mut nodes = self.nodes.borrow_mut();
            let known = nodes.entry(node).or_insert_with(|| Node { path: String::new(), references: 0 });
            known.path = path;
            known.references += 1;
        }
        Ok(Entry { node, generation: 0, ttl: Duration::ZERO, attr: self.attr(node, &found) })
    }

    async fn getattr(&self, node: u64, _: Option<u64>) -> std::result::Result<Attr, Errno> {
        let (_, found) = self.find(node).await?;
        Ok(self.attr(node, &found))
    }

    async fn setattr(&self, _: Caller, node: u64, set: SetAttr) -> std::result::Result<Attr, Errno> {
        let (_, found) = self.find(node).await?;
        if set.mode.is_some() || set.uid.is_some() || set.gid.is_some() {
            return Err(DENIED);
        }
        match set.size {
            // `O_TRUNC`, which means nothing for disks either.
            None | Some(0) => {}
            Some(size) if size == found.size => {}
            Some(_) => return Err(INVALID),
        }
        Ok(self.attr(node, &found))
    }

    // Commands make, rename and destroy volumes.
    async fn mknod(&self, _: Caller, _: u64, _: &[u8], _: u32, _: (u32, u32)) -> std::result::Result<Entry, Errno> {
        Err(DENIED)
    }
    async fn mkdir(&self, _: Caller, _: u64, _: &[u8], _: u32) -> std::result::Result<Entry, Errno> {
        Err(DENIED)
    }
    async fn symlink(&self, _: Caller, _: u64, _: &[u8], _: &[u8]) -> std::result::Result<Entry, Errno> {
        Err(DENIED)
    }
    async fn link(&self, _: Caller, _: u64, _: u64, _: &[u8]) -> std::result::Result<Entry, Errno> {
        Err(DENIED)
    }
    async fn unlink(&self, _: Caller, _: u64, _: &[u8]) -> std::result::Result<(), Errno> {
        Err(DENIED)
    }
    async fn rmdir(&self, _: Caller, _: u64, _: &[u8]) -> std::result::Result<(), Errno> {
        Err(DENIED)
    }
    async fn rename(&self, _: Caller, _: (u64, &[u8]), _: (u64, &[u8]), _: u32) -> std::result::Result<(), Errno> {
        Err(DENIED)
    }
    async fn create(
        &self,
        _: Caller,
        _: u64,
        _: &[u8],
        _: u32,
        _: u32,
        _: bool,
    ) -> std::result::Result<(Entry, Opened), Errno> {
        Err(DENIED)
    }

    async fn open(&self, _: Caller, node: u64, flags: u32, _: bool) -> std::result::Result<Opened, Errno> {
        let (path, found) = self.find(node).await?;
        if found.is_folder {
            return Err(Errno(libc::EISDIR));
        }
        if found.read_only && flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32 {
            return Err(Errno(libc::EROFS));
        }
        if self.files.borrow().len() >= FILES_MAX {
            return Err(Errno(libc::ENFILE));
        }
        let file = self.source.open(&path).await?;
        let fh = self.last_fh.get() + 1;
        self.last_fh.set(fh);
        self.files.borrow_mut().insert(fh, file);
        // Whoever needs durability asks for it: closing a file is no flush.
        Ok(Opened { fh, flags: FOPEN_DIRECT_IO | FOPEN_NOFLUSH | FOPEN_PARALLEL_DIRECT_WRITES })
    }

    async fn read(&self, _: u64, fh: u64, offset: u64, size: u32, _: bool) -> std::result::Result<Vec<Bytes>, Errno> {
        Ok(self.volume(fh)?.read(offset, size.into()).await?)
    }

    async fn write(
        &self,
        _: Caller,
        _: u64,
        fh: u64,
        offset: u64,
        data: Vec<Bytes>,
        how: WriteHow,
    ) -> std::result::Result<u32, Errno> {
        let volume = self.volume(fh)?;
        let len: usize = data.iter().map(|d| d.len()).sum();
        let within = (len as u64).min(volume.size().saturating_sub(offset)) as usize;
        if within == 0 && len > 0 {
            return Err(Errno(libc::ENOSPC));
        }
        let data = if within < len { cut(data, within) } else { data };
        match how.sync {
            true => volume.write_sync(offset, data).await?,
            false => volume.write(offset, data).await?,
        }
        u32::try_from(within).map_err(|_| INVALID)
    }

    fn may_be_cached(&self, _: u64, _: u64) -> bool {
        // A mapping brings pages into the kernel's cache.
        true
    }

    async fn statfs(&self, _: u64) -> std::result::Result<StatFs, Errno> {
        Ok(StatFs { bsize: BLKSIZE.1, frsize: BLKSIZE.0, namelen: NAME_MAX, ..StatFs::default() })
    }

    async fn release(&self, _: u64, fh: u64) -> std::result::Result<(), Errno> {
        let file = self.files.borrow_mut().remove(&fh);
        if let Some(file) = file {
            file.close();
        }
        Ok(())
    }

    async fn fsync(&self, node: u64, fh: u64, _: bool) -> std::result::Result<(), Errno> {
        if self.files.borrow().contains_key(&fh) {
            return Ok(self.volume(fh)?.flush().await?);
        }
        // A folder.
        self.path_of(node).map(drop)
    }

    async fn syncfs(&self) -> std::result::Result<(), Errno> {
        let files: Vec<Rc<dyn VolumeUse>> = self.files.borrow().values().cloned().collect();
        for volume in files.iter().filter_map(|f| f.volume()) {
            volume.flush().await?;
        }
        Ok(())
    }

    async fn readdir(&self, node: u64, _: u64, offset: u64, out: &mut DirOut) -> std::result::Result<(), Errno> {
        let (path, found) = self.find(node).await?;
        if !found.is_folder {
            return Err(Errno(libc::ENOTDIR));
        }
        let mut names = vec![(".".to_string(), true, node), ("..".to_string(), true, ROOT_NODE)];
        names.extend(self.source.list(&path).await?);
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (n, (name, is_folder, object)) in names.iter().enumerate().skip(from) {
            let kind = if *is_folder { DT_DIR } else { DT_REG };
            if !out.push(name.as_bytes(), *object, kind, n as u64 + 1, None) {
                break;
            }
        }
        Ok(())
    }

    async fn fallocate(
        &self,
        _: Caller,
        _: u64,
        fh: u64,
        offset: u64,
        len: u64,
        mode: u32,
    ) -> std::result::Result<(), Errno> {
        let volume = self.volume(fh)?;
        match range_of(mode, offset, len, volume.size())? {
            Range::Nothing => Ok(()),
            Range::Punch(n) => Ok(volume.discard(offset, n).await?),
            Range::Zero(n) => Ok(volume.write_zeroes(offset, n, false).await?),
        }
    }

    async fn lseek(&self, _: u64, fh: u64, offset: u64, whence: u32) -> std::result::Result<u64, Errno> {
        let volume = self.volume(fh)?;
        let nothing = Errno(libc::ENXIO);
        if offset >= volume.size() {
            return Err(nothing);
        }
        match whence as i32 {
            libc::SEEK_DATA => volume.next_data(offset).await?.ok_or(nothing),
            libc::SEEK_HOLE => Ok(volume.next_hole(offset).await?),
            _ => Err(NO_SYS),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_with_the_file() {
        let no_space = Err(Errno(libc::ENOSPC));
        let table = [
            (0, 0, 100, Ok(Range::Nothing)),
            (0, 50, 51, no_space),
            (KEEP_SIZE, 50, 51, Ok(Range::Nothing)),
            (PUNCH_HOLE | KEEP_SIZE, 10, 20, Ok(Range::Punch(20))),
            (PUNCH_HOLE | KEEP_SIZE, 90, 20, Ok(Range::Punch(10))),
            (PUNCH_HOLE | KEEP_SIZE, 100, 20, Ok(Range::Nothing)),
            (ZERO_RANGE, 10, 20, Ok(Range::Zero(20))),
            (ZERO_RANGE, 90, 20, no_space),
            (ZERO_RANGE | KEEP_SIZE, 90, 20, Ok(Range::Zero(10))),
            (ZERO_RANGE | KEEP_SIZE, u64::MAX, u64::MAX, Ok(Range::Nothing)),
            (8, 0, 10, Err(NOT_SUPPORTED)),
            (PUNCH_HOLE, 0, 10, Err(NOT_SUPPORTED)),
        ];
        for (mode, offset, len, want) in table {
            assert_eq!(range_of(mode, offset, len, 100), want, "{mode} {offset} {len}");
        }
    }

    #[test]
    fn data_is_cut_at_the_end() {
        let data = || vec![Bytes::copy_from(b"abc"), Bytes::copy_from(b"de")];
        for (len, want) in [(0, ""), (2, "ab"), (3, "abc"), (4, "abcd"), (5, "abcde"), (9, "abcde")] {
            let parts = cut(data(), len);
            let all: Vec<u8> = parts.iter().flat_map(|p| p.to_vec()).collect();
            assert_eq!(all, want.as_bytes(), "{len}");
            assert!(parts.iter().all(|p| !p.is_empty()));
        }
    }
}
