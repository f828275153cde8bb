//! [`FileSystem`]: files and directories by path.
//!
//! A path is relative to the root of its file system, with or without a slash in front; `.` and
//! `..` are understood, and symbolic links are followed within the file system (an absolute target
//! begins at its root). Names are bytes: a path may be anything that [`std::path::Path`] can hold.
//! Permission bits and ACLs are kept but not checked: the handle permits everything. New files
//! belong to the user that this process runs as, unless set by [`FileSystem::with_owner`].

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use base::ObjectId;
use zpl::{Attr, Cred, FileKind as Kind, RenameFlags, SetAttr, SetTime, SetXattr, Zfs};

use crate::call::Call;
use crate::dataset::{find, owner};
use crate::engine::Attended;
use crate::error::{Error, ErrorKind, Result};
use crate::events::system_time;
use crate::file::File;
use crate::inside::{FsState, PoolState};
use crate::pool::{Pool, PoolInner};

/// Symbolic links followed on one path at most, as Linux does.
const LINKS_MAX: u32 = 40;
/// Entries that are read in one step of a listing.
const ENTRIES: usize = 1024;

/// The type of an entry in a file system.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl From<Kind> for FileKind {
    fn from(k: Kind) -> FileKind {
        match k {
            Kind::File => FileKind::File,
            Kind::Dir => FileKind::Dir,
            Kind::Symlink => FileKind::Symlink,
            Kind::Fifo => FileKind::Fifo,
            Kind::Socket => FileKind::Socket,
            Kind::CharDev => FileKind::CharDevice,
            Kind::BlockDev => FileKind::BlockDevice,
        }
    }
}

/// Attributes of something in a file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stat {
    /// Its object number, unique in the file system while it exists.
    pub object: u64,
    /// Its type.
    pub kind: FileKind,
    /// Permission bits with set-id and sticky, 0 to 0o7777.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links; of a directory 2 and its subdirectories.
    pub links: u32,
    /// Bytes; of a directory its entries and 2; of a symbolic link the length of its target.
    pub size: u64,
    /// Bytes of space that it takes, as of the last txg on disk.
    pub allocated: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// When it was read last, as far as the property `atime` keeps that.
    pub accessed: SystemTime,
    /// When its content changed.
    pub modified: SystemTime,
    /// When anything about it changed.
    pub changed: SystemTime,
    /// When it was made.
    pub created: SystemTime,
}

impl From<Attr> for Stat {
    fn from(a: Attr) -> Stat {
        Stat {
            object: a.obj.0,
            kind: a.kind.into(),
            mode: a.mode & 0o7777,
            uid: a.uid,
            gid: a.gid,
            links: a.nlink,
            size: a.size,
            allocated: a.blocks.saturating_mul(512),
            block_size: a.blksize,
            accessed: system_time(a.atime),
            modified: system_time(a.mtime),
            changed: system_time(a.ctime),
            created: system_time(a.crtime),
        }
    }
}

/// An entry of a directory; `.` and `..` are left out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// Its name.
    pub name: Vec<u8>,
    /// Its object number.
    pub object: u64,
    /// Its type.
    pub kind: FileKind,
}

impl DirEntry {
    /// Its name as text; bytes that are not UTF-8 are replaced.
    pub fn name_lossy(&self) -> String {
        String::from_utf8_lossy(&self.name).into_owned()
    }
}

/// Attributes to be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Change {
    /// Permission bits, 0 to 0o7777.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// When it was read last.
    pub accessed: Option<SystemTime>,
    /// When its content changed.
    pub modified: Option<SystemTime>,
}

/// Space of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Space {
    /// Bytes that it refers to.
    pub referenced: u64,
    /// Bytes that can still be written.
    pub available: u64,
    /// Objects that there can still be.
    pub objects_free: u64,
    /// Bytes of a record.
    pub record_size: u32,
}

/// How a file is opened. Reading is always possible; writing unless the file system is read-only.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenOptions {
    pub(crate) create: Option<u32>,
    pub(crate) exclusive: bool,
    pub(crate) truncate: bool,
}

impl OpenOptions {
    /// A file that exists.
    pub fn new() -> OpenOptions {
        OpenOptions::default()
    }
    /// Makes the file with these permission bits if it does not exist.
    #[must_use]
    pub fn create(self, mode: u32) -> OpenOptions {
        OpenOptions { create: Some(mode), ..self }
    }
    /// Makes the file with these permission bits; it must not exist ([`ErrorKind::Exists`]).
    #[must_use]
    pub fn create_new(self, mode: u32) -> OpenOptions {
        OpenOptions { create: Some(mode), exclusive: true, ..self }
    }
    /// Makes the file empty.
    #[must_use]
    pub fn truncate(self) -> OpenOptions {
        OpenOptions { truncate: true, ..self }
    }
}

/// A file system in use. Cheap to clone; all handles on one dataset are the same file system. It
/// keeps its pool open, and its dataset from being destroyed. When the last handle is dropped its
/// use ends in the background.
#[derive(Clone)]
pub struct FileSystem {
    pub(crate) inner: Arc<FsInner>,
    owner: Option<(u32, u32)>,
}

pub(crate) struct FsInner {
    pub(crate) pool: Arc<PoolInner>,
    pub(crate) id: u64,
    name: String,
    readonly: bool,
}

impl std::fmt::Debug for FileSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FileSystem({})", self.inner.name)
    }
}

impl Drop for FsInner {
    fn drop(&mut self) {
        let id = self.id;
        let job = move |state: Rc<PoolState>| async move {
            state.drop_fs(id).await;
            Ok(())
        };
        drop(self.pool.send(job, Attended::No));
    }
}

impl FsInner {
    /// Runs `f` with the file system on its thread.
    pub(crate) fn call<T, F, Fut>(&self, f: F) -> Call<T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Zfs>, Rc<FsState>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T>> + 'static,
    {
        self.send(f, Attended::Yes)
    }

    /// As [`FsInner::call`]; with [`Attended::No`] the call must be dropped.
    pub(crate) fn send<T, F, Fut>(&self, f: F, attended: Attended) -> Call<T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Zfs>, Rc<FsState>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T>> + 'static,
    {
        let id = self.id;
        let job = move |state: Rc<PoolState>| async move {
            let fs = state.fs_state(id)?;
            f(fs.zfs()?, fs).await
        };
        self.pool.send(job, attended)
    }
}

impl Pool {
    /// Opens the file system or snapshot of that name; a snapshot, and everything in a pool
    /// imported read-only, is read-only. Its intent log, if a crash left one, is replayed first.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Denied`] for an encrypted one whose key is not loaded;
    /// [`ErrorKind::Invalid`] for a volume.
    pub fn filesystem(&self, name: impl Into<String>) -> Call<FileSystem> {
        let (name, pool) = (name.into(), self.0.clone());
        self.0.engine.run({
            let id = self.0.id();
            move |inside| {
                let (begun, new) = (inside.pool(id).and_then(|s| s.enter().map(|pass| (s, pass))), inside.next_id());
                async move {
                    let (state, _pass) = begun?;
                    let _admin = state.admin.acquire(1).await;
                    let ds = find(&state, &name).await?;
                    let fs = state.open_fs(&ds, new).await.map_err(|e| e.about(name.clone()))?;
                    let readonly = fs.zfs()?.opts().readonly;
                    Ok(FileSystem { inner: Arc::new(FsInner { pool, id: fs.id, name, readonly }), owner: None })
                }
            }
        })
    }
}

fn bytes(path: impl AsRef<Path>) -> Vec<u8> {
    path.as_ref().as_os_str().as_bytes().to_vec()
}

fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

pub(crate) fn about<T>(path: &[u8], result: base::Result<T>) -> Result<T> {
    result.map_err(|e| Error::from(e).about(shown(path)))
}

/// Splits a path into the directory's part and the last name.
fn split(path: &[u8]) -> Result<(&[u8], &[u8])> {
    let trimmed = path.iter().rposition(|&c| c != b'/').map_or(&path[..0], |at| &path[..=at]);
    let (dir, name) = match trimmed.iter().rposition(|&c| c == b'/') {
        Some(at) => (&trimmed[..at], &trimmed[at + 1..]),
        None => (&trimmed[..0], trimmed),
    };
    match name {
        b"" | b"." | b".." => Err(Error::invalid("the path ends with no name").about(shown(path))),
        _ => Ok((dir, name)),
    }
}

/// The object that a path names.
pub(crate) async fn walk(fs: &Zfs, path: &[u8], follow_last: bool) -> Result<Attr> {
    let mut links = 0;
    let mut todo: Vec<Vec<u8>> = path.rsplit(|&c| c == b'/').filter(|p| !p.is_empty()).map(<[u8]>::to_vec).collect();
    let mut at = about(path, fs.getattr(fs.root()).await)?;
    while let Some(name) = todo.pop() {
        let next = about(path, fs.lookup(at.obj, &name).await)?;
        if next.kind != Kind::Symlink || (todo.is_empty() && !follow_last) {
            at = next;
            continue;
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(Error::invalid("too many levels of symbolic links").about(shown(path)));
        }
        let target = about(path, fs.readlink(next.obj).await)?;
        if target.starts_with(b"/") {
            at = about(path, fs.getattr(fs.root()).await)?;
        }
        todo.extend(target.rsplit(|&c| c == b'/').filter(|p| !p.is_empty()).map(<[u8]>::to_vec));
    }
    Ok(at)
}

/// The directory that a path's last name is in, and that name.
async fn walk_parent<'a>(fs: &Zfs, path: &'a [u8]) -> Result<(ObjectId, &'a [u8])> {
    let (dir, name) = split(path)?;
    let at = walk(fs, dir, true).await.map_err(|e| e.about(shown(path)))?;
    if at.kind != Kind::Dir {
        return Err(Error::new(ErrorKind::NotDir, "a part of the path is no directory").about(shown(path)));
    }
    Ok((at.obj, name))
}

pub(crate) fn cred(fs: &Zfs, owner_wanted: Option<(u32, u32)>) -> Cred {
    let (uid, gid) = owner_wanted.unwrap_or_else(|| owner(fs.objset().ctx().rt()));
    Cred::new(uid, gid)
}

pub(crate) async fn read_all(fs: &Zfs, obj: ObjectId, off: u64, len: u64) -> base::Result<Vec<u8>> {
    let parts = fs.read(obj, off, len).await?;
    let mut out = Vec::with_capacity(parts.iter().map(|b| b.len()).sum());
    parts.iter().for_each(|b| out.extend_from_slice(b));
    Ok(out)
}

/// Writes everything, at `off` or at the end; where it begins.
pub(crate) async fn write_all(fs: &Zfs, obj: ObjectId, off: u64, data: Vec<u8>, append: bool) -> base::Result<u64> {
    let mut rest = bdev::Bytes::from(data);
    let (mut off, mut first) = (off, None);
    loop {
        let len = rest.len() as u64;
        if len == 0 {
            return Ok(first.unwrap_or(off));
        }
        let (n, size) = fs.write(obj, off, vec![rest.clone()], append).await?;
        let began = if append { size.saturating_sub(n) } else { off };
        first.get_or_insert(began);
        off = began + n;
        // A partial write: the next try returns the error, or goes on.
        rest = rest.slice(n as usize..);
    }
}

impl FileSystem {
    /// The name under which it was opened.
    pub fn name(&self) -> &str {
        &self.inner.name
    }
    /// Whether nothing can be changed.
    pub fn is_readonly(&self) -> bool {
        self.inner.readonly
    }
    /// The pool that it is in.
    pub fn pool(&self) -> Pool {
        Pool(self.inner.pool.clone())
    }
    /// A handle through which things are made that belong to this user and group.
    #[must_use]
    pub fn with_owner(&self, uid: u32, gid: u32) -> FileSystem {
        FileSystem { inner: self.inner.clone(), owner: Some((uid, gid)) }
    }

    /// Opens a regular file. It lives on while it is open, even if its name is taken away.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Exists`] with `create_new`, [`ErrorKind::IsDir`],
    /// [`ErrorKind::Invalid`] for neither file nor directory.
    pub fn open(&self, path: impl AsRef<Path>, options: OpenOptions) -> Call<File> {
        let (path, owner, inner) = (bytes(path), self.owner, self.inner.clone());
        self.inner.call(move |fs, state| async move {
            let attr = match options.create {
                Some(mode) => {
                    let (dir, name) = walk_parent(&fs, &path).await?;
                    match fs.create(dir, name, mode, &cred(&fs, owner), options.exclusive).await {
                        Ok(a) if a.kind == Kind::Symlink => walk(&fs, &path, true).await?,
                        other => about(&path, other)?,
                    }
                }
                None => walk(&fs, &path, true).await?,
            };
            match attr.kind {
                Kind::File => {}
                Kind::Dir => return Err(Error::new(ErrorKind::IsDir, "it is a directory").about(shown(&path))),
                _ => return Err(Error::invalid("it is no regular file").about(shown(&path))),
            }
            about(&path, fs.open_file(attr.obj).await)?;
            let file = File::new(inner, attr.obj, state.epoch.get(), &path);
            if options.truncate && attr.size > 0 {
                about(&path, fs.truncate(attr.obj, 0).await)?;
            }
            Ok(file)
        })
    }

    /// Everything in a regular file.
    pub fn read(&self, path: impl AsRef<Path>) -> Call<Vec<u8>> {
        let path = bytes(path);
        self.inner.call(move |fs, _| async move {
            let a = walk(&fs, &path, true).await?;
            about(&path, read_all(&fs, a.obj, 0, u64::MAX).await)
        })
    }

    /// Makes a regular file with this content, or gives it to one that exists. Not atomic: a power
    /// cut may leave part of it. For an atomic replacement write under another name, then
    /// [`File::sync`] and [`FileSystem::rename`].
    pub fn write(&self, path: impl AsRef<Path>, data: impl Into<Vec<u8>>) -> Call<()> {
        let (path, data, owner) = (bytes(path), data.into(), self.owner);
        self.inner.call(move |fs, _| async move {
            let (dir, name) = walk_parent(&fs, &path).await?;
            let mut a = about(&path, fs.create(dir, name, 0o644, &cred(&fs, owner), false).await)?;
            if a.kind == Kind::Symlink {
                a = walk(&fs, &path, true).await?;
            }
            if a.size > 0 {
                about(&path, fs.truncate(a.obj, 0).await)?;
            }
            about(&path, write_all(&fs, a.obj, 0, data, false).await).map(drop)
        })
    }

    /// Makes a directory with permission bits 0o755.
    pub fn mkdir(&self, path: impl AsRef<Path>) -> Call<()> {
        let (path, owner) = (bytes(path), self.owner);
        self.inner.call(move |fs, _| async move {
            let (dir, name) = walk_parent(&fs, &path).await?;
            about(&path, fs.mkdir(dir, name, 0o755, &cred(&fs, owner)).await).map(drop)
        })
    }

    /// Makes a directory and those above it that do not exist. It is no error if all do.
    pub fn mkdir_all(&self, path: impl AsRef<Path>) -> Call<()> {
        let (path, owner) = (bytes(path), self.owner);
        self.inner.call(move |fs, _| async move {
            let mut at = fs.root();
            for name in path.split(|&c| c == b'/').filter(|n| !n.is_empty() && n != b".") {
                let made = match fs.mkdir(at, name, 0o755, &cred(&fs, owner)).await {
                    Err(e) if e.kind() == base::ErrorKind::Exists => about(&path, fs.lookup(at, name).await)?,
                    other => about(&path, other)?,
                };
                if made.kind != Kind::Dir {
                    return Err(Error::new(ErrorKind::NotDir, "a part of the path is no directory").about(shown(&path)));
                }
                at = made.obj;
            }
            Ok(())
        })
    }

    /// Removes an empty directory. [`ErrorKind::NotEmpty`], [`ErrorKind::NotDir`].
    pub fn rmdir(&self, path: impl AsRef<Path>) -> Call<()> {
        let path = bytes(path);
        self.inner.call(move |fs, _| async move {
            let (dir, name) = walk_parent(&fs, &path).await?;
            about(&path, fs.rmdir(dir, name).await)
        })
    }

    /// Removes a name of something that is no directory; with its last name it goes, once it is not
    /// open any more.
    pub fn unlink(&self, path: impl AsRef<Path>) -> Call<()> {
        let path = bytes(path);
        self.inner.call(move |fs, _| async move {
            let (dir, name) = walk_parent(&fs, &path).await?;
            about(&path, fs.unlink(dir, name).await)
        })
    }

    /// Gives something another name, atomically. An object of that name is removed, if it may be
    /// (an empty directory for a directory).
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Call<()> {
        let (from, to) = (bytes(from), bytes(to));
        self.inner.call(move |fs, _| async move {
            let (dir, name) = walk_parent(&fs, &from).await?;
            let (new_dir, new_name) = walk_parent(&fs, &to).await?;
            about(&from, fs.rename(dir, name, new_dir, new_name, RenameFlags::default()).await)
        })
    }

    /// Gives something that is no directory one more name.
    pub fn link(&self, existing: impl AsRef<Path>, new: impl AsRef<Path>) -> Call<()> {
        let (existing, new) = (bytes(existing), bytes(new));
        self.inner.call(move |fs, _| async move {
            let a = walk(&fs, &existing, false).await?;
            let (dir, name) = walk_parent(&fs, &new).await?;
            about(&new, fs.link(a.obj, dir, name).await).map(drop)
        })
    }

    /// Makes a symbolic link at `path` to `target`, which need not exist.
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Call<()> {
        let (target, path, owner) = (bytes(target), bytes(path), self.owner);
        self.inner.call(move |fs, _| async move {
            let (dir, name) = walk_parent(&fs, &path).await?;
            about(&path, fs.symlink(dir, name, &target, &cred(&fs, owner)).await).map(drop)
        })
    }

    /// The target of a symbolic link. [`ErrorKind::Invalid`] if it is none.
    pub fn readlink(&self, path: impl AsRef<Path>) -> Call<Vec<u8>> {
        let path = bytes(path);
        self.inner.call(move |fs, _| async move {
            let a = walk(&fs, &path, false).await?;
            about(&path, fs.readlink(a.obj).await)
        })
    }

    /// Attributes of the object at a path; of a symbolic link those of its target.
    pub fn stat(&self, path: impl AsRef<Path>) -> Call<Stat> {
        let path = bytes(path);
        self.inner.call(move |fs, _| async move { Ok(walk(&fs, &path, true).await?.into()) })
    }

    /// As [`FileSystem::stat`], of a symbolic link itself.
    pub fn lstat(&self, path: impl AsRef<Path>) -> Call<Stat> {
        let path = bytes(path);
        self.inner.call(move |fs, _| async move { Ok(walk(&fs, &path, false).await?.into()) })
    }

    /// Changes attributes; all of them as they are then.
    pub fn change(&self, path: impl AsRef<Path>, change: Change) -> Call<Stat> {
        let path = bytes(path);
        self.inner.call(move |fs, _| async move {
            let a = walk(&fs, &path, true).await?;
            let set = SetAttr {
                mode: change.mode,
                uid: change.uid,
                gid: change.gid,
                size: None,
                atime: change.accessed.map(set_time),
                mtime: change.modified.map(set_time),
            };
            Ok(about(&path, fs.setattr(a.obj, set).await)?.into())
        })
    }

    /// All entries of a directory, in the order of its hash.
    pub fn readdir(&self, path: impl AsRef<Path>) -> Call<Vec<DirEntry>> {
        let path = bytes(path);
        self.inner.call(move |fs, _| async move {
            let mut out = Vec::new();
            let mut cookie = 0;
            loop {
                let (entries, next) = page(&fs, &path, cookie, ENTRIES).await?;
                out.extend(entries);
                match next {
                    Some(next) => cookie = next,
                    None => return Ok(out),
                }
            }
        })
    }

    /// About `max` entries of a directory, for those with very many: `cookie` is 0 for the first
    /// and the result of the call before for the others, which is None at the end. An entry that is
    /// there all the time comes exactly once, even if others are made or removed meanwhile.
    pub fn readdir_page(&self, path: impl AsRef<Path>, cookie: u64, max: usize) -> Call<(Vec<DirEntry>, Option<u64>)> {
        let path = bytes(path);
        self.inner.call(move |fs, _| async move { page(&fs, &path, cookie, max.max(3)).await })
    }

    /// The value of an extended attribute (`user.note`, for example). [`ErrorKind::NoAttr`] if
    /// there is none.
    pub fn get_xattr(&self, path: impl AsRef<Path>, name: impl Into<Vec<u8>>) -> Call<Vec<u8>> {
        let (path, name) = (bytes(path), name.into());
        self.inner.call(move |fs, _| async move {
            let a = walk(&fs, &path, true).await?;
            about(&path, fs.getxattr(a.obj, &name).await)
        })
    }

    /// Sets an extended attribute, new or not. [`ErrorKind::TooBig`] for more than 64 KiB;
    /// [`ErrorKind::Unsupported`] with `xattr=off`.
    pub fn set_xattr(&self, path: impl AsRef<Path>, name: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Call<()> {
        let (path, name, value) = (bytes(path), name.into(), value.into());
        self.inner.call(move |fs, _| async move {
            let a = walk(&fs, &path, true).await?;
            about(&path, fs.setxattr(a.obj, &name, &value, SetXattr::Any).await)
        })
    }

    /// The names of all extended attributes.
    pub fn list_xattrs(&self, path: impl AsRef<Path>) -> Call<Vec<Vec<u8>>> {
        let path = bytes(path);
        self.inner.call(move |fs, _| async move {
            let a = walk(&fs, &path, true).await?;
            about(&path, fs.listxattr(a.obj).await)
        })
    }

    /// Removes an extended attribute. [`ErrorKind::NoAttr`] if there is none.
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: impl Into<Vec<u8>>) -> Call<()> {
        let (path, name) = (bytes(path), name.into());
        self.inner.call(move |fs, _| async move {
            let a = walk(&fs, &path, true).await?;
            about(&path, fs.removexattr(a.obj, &name).await)
        })
    }

    /// Makes a directory's names durable: everything that was made, removed or renamed before is on
    /// disk, or in the intent log.
    pub fn sync_path(&self, path: impl AsRef<Path>) -> Call<()> {
        let path = bytes(path);
        self.inner.call(move |fs, _| async move {
            let a = walk(&fs, &path, true).await?;
            about(&path, fs.fsync(a.obj).await)
        })
    }

    /// Waits until everything that was done before in this file system is on disk.
    pub fn sync(&self) -> Call<()> {
        self.inner.call(|fs, _| async move { Ok(fs.sync_all().await?) })
    }

    /// The space figures.
    pub fn space(&self) -> Call<Space> {
        self.inner.call(|fs, _| async move {
            let s = fs.statfs();
            let unit = u64::from(s.frsize);
            Ok(Space {
                referenced: fs.dataset().phys().referenced_bytes,
                available: s.avail.saturating_mul(unit),
                objects_free: s.ffree,
                record_size: s.bsize,
            })
        })
    }
}

async fn page(fs: &Zfs, path: &[u8], cookie: u64, max: usize) -> Result<(Vec<DirEntry>, Option<u64>)> {
    let dir = walk(fs, path, true).await?;
    if dir.kind != Kind::Dir {
        return Err(Error::new(ErrorKind::NotDir, "it is no directory").about(shown(path)));
    }
    let entries = about(path, fs.readdir(dir.obj, cookie, max).await)?;
    let next = entries.last().map(|e| e.next_cookie);
    let named = entries.into_iter().filter(|e| e.name != b"." && e.name != b"..");
    let named = named.map(|e| DirEntry { name: e.name, object: e.obj.0, kind: e.kind.into() });
    Ok((named.collect(), next))
}

fn set_time(t: SystemTime) -> SetTime {
    let wall = match t.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(d) => base::WallTime { secs: i64::try_from(d.as_secs()).unwrap_or(i64::MAX), nanos: d.subsec_nanos() },
        Err(e) => {
            let before = i128::try_from(e.duration().as_nanos()).unwrap_or(i128::MAX);
            let nanos = -before;
            let secs = i64::try_from(nanos.div_euclid(1_000_000_000)).unwrap_or(i64::MIN);
            base::WallTime { secs, nanos: nanos.rem_euclid(1_000_000_000) as u32 }
        }
    };
    SetTime::At(wall)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_a_last_name() {
        assert_eq!(split(b"a/b/c").unwrap(), (&b"a/b"[..], &b"c"[..]));
        assert_eq!(split(b"/c//").unwrap(), (&b""[..], &b"c"[..]));
        for bad in [&b""[..], b"/", b"a/..", b"."] {
            assert_eq!(split(bad).unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
        }
    }

    #[test]
    fn times_go_there_and_back() {
        for secs in [-5i64, 0, 7] {
            let t = base::WallTime { secs, nanos: 250_000_000 };
            assert_eq!(set_time(system_time(t)), SetTime::At(t));
        }
    }
}
