//! The handler that serves texts which are made when they are opened, as `/proc` does: no file is
//! stored anywhere.
//!
//! A [`TextSource`] says what is at a path, lists folders, makes texts and takes what is written.
//! An open file is the text as it was then: reads of any length, in any order and by several
//! readers of the descriptor, are parts of one text; another open sees another text. Lengths are
//! not known before, so that files seem empty, and reads go past the kernel's cache. What is
//! written goes to the source as it comes, a write each: they are short, as `echo` makes them.
//!
//! Node ids are given out as paths are looked up, and end with the kernel's references. Names and
//! attributes are not cached by the kernel, since they change without a notice.
//!
//! The source may wait (for the engine of a pool, on a thread of its own): at most [`ASKED_MAX`]
//! requests ask it at a time, the others wait for their turn here.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use base::Result;
use bdev::Bytes;
use rt::sync::Semaphore;
use rt::{LocalBoxFuture, Rt};

use crate::dir::DirOut;
use crate::errno::{BAD_HANDLE, DENIED, Errno, INVALID, NO_ENTRY, STALE};
use crate::handler::{Attr, Caller, Entry, Handler, Opened, SetAttr, StatFs, Time, WriteHow};
use crate::mounted::{MountOpts, Mounted, mount_handler};
use crate::proto::{FOPEN_DIRECT_IO, ROOT_NODE};

const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const DT_DIR: u8 = 4;
const DT_REG: u8 = 8;
const NAME_MAX: u32 = 255;
const BLKSIZE: u32 = 4096;
/// Files and folders open at once; each holds its text.
const OPEN_MAX: usize = 4096;
/// Bytes of all open texts together.
const TEXTS_MAX: usize = 256 << 20;
/// The longest write.
const WRITE_MAX: usize = 4096;
/// Requests that ask the source at the same time.
const ASKED_MAX: u64 = 8;

/// What is at a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TextNode {
    /// A folder.
    pub is_folder: bool,
    /// Permission bits.
    pub mode: u32,
}

/// Makes texts. Paths have no slash at their ends; the root is empty.
pub trait TextSource {
    /// What is at `path`.
    fn find(&self, path: String) -> LocalBoxFuture<'_, Result<Option<TextNode>>>;
    /// The names in a folder.
    fn list(&self, path: String) -> LocalBoxFuture<'_, Result<Vec<(String, TextNode)>>>;
    /// The text of a file as it is now.
    fn read(&self, path: String) -> LocalBoxFuture<'_, Result<Vec<u8>>>;
    /// Takes what was written to a file.
    fn write(&self, path: String, data: Vec<u8>) -> LocalBoxFuture<'_, Result<()>>;
}

/// Mounts the texts of `source` at `mountpoint`, a directory; the list of mounts has `name` as
/// source and type.
pub async fn mount_texts(rt: &Rt, name: &str, source: Rc<dyn TextSource>, mountpoint: &Path) -> Result<Rc<Mounted>> {
    let opts = MountOpts {
        fsname: name.to_string(),
        subtype: Some(name.to_string()),
        nosuid: true,
        nodev: true,
        noexec: true,
        ..MountOpts::default()
    };
    let wall = rt.wall_clock();
    let begun = Time { secs: wall.secs, nanos: 0 };
    let owner = (host::effective_uid(), host::effective_gid());
    mount_handler(rt, TextsHandler::new(source, owner, begun), mountpoint, opts).await
}

struct Node {
    path: String,
    /// Of the kernel.
    references: u64,
}

/// An open file or folder.
enum Open {
    Text(Bytes),
    Names(Vec<(String, TextNode)>),
}

impl Open {
    fn size(&self) -> usize {
        match self {
            Open::Text(text) => text.len(),
            Open::Names(names) => names.iter().map(|(name, _)| name.len() + size_of::<(String, TextNode)>()).sum(),
        }
    }
}

struct TextsHandler {
    source: Rc<dyn TextSource>,
    asked: Semaphore,
    /// User and group of all files.
    owner: (u32, u32),
    /// Times of all files.
    begun: Time,
    nodes: RefCell<BTreeMap<u64, Node>>,
    ids: RefCell<BTreeMap<String, u64>>,
    last_node: Cell<u64>,
    open: RefCell<BTreeMap<u64, Rc<Open>>>,
    last_fh: Cell<u64>,
    /// Bytes of `open`.
    held: Cell<usize>,
}

type Answer<T> = std::result::Result<T, Errno>;

impl TextsHandler {
    fn new(source: Rc<dyn TextSource>, owner: (u32, u32), begun: Time) -> TextsHandler {
        TextsHandler {
            source,
            asked: Semaphore::new(ASKED_MAX),
            owner,
            begun,
            nodes: RefCell::default(),
            ids: RefCell::default(),
            last_node: Cell::new(ROOT_NODE),
            open: RefCell::default(),
            last_fh: Cell::new(0),
            held: Cell::new(0),
        }
    }

    fn path_of(&self, node: u64) -> Answer<String> {
        if node == ROOT_NODE {
            return Ok(String::new());
        }
        self.nodes.borrow().get(&node).map(|n| n.path.clone()).ok_or(STALE)
    }

    async fn find(&self, node: u64) -> Answer<(String, TextNode)> {
        let path = self.path_of(node)?;
        let _turn = self.asked.acquire(1).await;
        let found = self.source.find(path.clone()).await?;
        found.map(|n| (path, n)).ok_or(STALE)
    }

    /// The id of a path, with one more reference.
    fn refer(&self, path: &str) -> u64 {
        let known = self.ids.borrow().get(path).copied();
        let id = known.unwrap_or_else(|| {
            let id = self.last_node.get() + 1;
            self.last_node.set(id);
            self.ids.borrow_mut().insert(path.to_string(), id);
            self.nodes.borrow_mut().insert(id, Node { path: path.to_string(), references: 0 });
            id
        });
        if let Some(n) = self.nodes.borrow_mut().get_mut(&id) {
            n.references += 1;
        }
        id
    }

    fn attr(&self, node: u64, found: TextNode) -> Attr {
        let (kind, nlink) = if found.is_folder { (S_IFDIR, 2) } else { (S_IFREG, 1) };
        Attr {
            ino: node,
            atime: self.begun,
            mtime: self.begun,
            ctime: self.begun,
            crtime: self.begun,
            mode: kind | found.mode,
            nlink,
            uid: self.owner.0,
            gid: self.owner.1,
            blksize: BLKSIZE,
            ttl: Duration::ZERO,
            ..Attr::default()
        }
    }

    /// Keeps what was opened.
    fn keep(&self, open: Open) -> Answer<u64> {
        let size = open.size();
        if self.open.borrow().len() >= OPEN_MAX || self.held.get() + size > TEXTS_MAX {
            return Err(Errno(libc::ENFILE));
        }
        self.held.set(self.held.get() + size);
        let fh = self.last_fh.get() + 1;
        self.last_fh.set(fh);
        self.open.borrow_mut().insert(fh, Rc::new(open));
        Ok(fh)
    }

    fn close(&self, fh: u64) {
        if let Some(open) = self.open.borrow_mut().remove(&fh) {
            self.held.set(self.held.get() - open.size());
        }
    }

    fn opened(&self, fh: u64) -> Answer<Rc<Open>> {
        self.open.borrow().get(&fh).cloned().ok_or(BAD_HANDLE)
    }
}

/// At most `size` bytes of a text at `offset`.
fn part(text: &Bytes, offset: u64, size: u32) -> Option<Bytes> {
    let from = usize::try_from(offset).ok().filter(|at| *at < text.len())?;
    let to = from.saturating_add(size as usize).min(text.len());
    Some(text.slice(from..to))
}

impl Handler for TextsHandler {
    fn forget(&self, node: u64, count: u64) {
        let mut nodes = self.nodes.borrow_mut();
        if let Some(n) = nodes.get_mut(&node) {
            n.references = n.references.saturating_sub(count);
            if n.references == 0
                && let Some(gone) = nodes.remove(&node)
            {
                self.ids.borrow_mut().remove(&gone.path);
            }
        }
    }

    async fn lookup(&self, _: Caller, parent: u64, name: &[u8]) -> Answer<Entry> {
        let name = std::str::from_utf8(name).map_err(|_| NO_ENTRY)?;
        let folder = self.path_of(parent)?;
        let path = match (name, folder.is_empty()) {
            (".", _) => folder,
            (_, true) => name.to_string(),
            (_, false) => format!("{folder}/{name}"),
        };
        let found = {
            let _turn = self.asked.acquire(1).await;
            self.source.find(path.clone()).await?.ok_or(NO_ENTRY)?
        };
        let node = if path.is_empty() { ROOT_NODE } else { self.refer(&path) };
        Ok(Entry { node, generation: 0, ttl: Duration::ZERO, attr: self.attr(node, found) })
    }

    async fn getattr(&self, node: u64, _: Option<u64>) -> Answer<Attr> {
        let (_, found) = self.find(node).await?;
        Ok(self.attr(node, found))
    }

    async fn setattr(&self, _: Caller, node: u64, set: SetAttr) -> Answer<Attr> {
        if set.mode.is_some() || set.uid.is_some() || set.gid.is_some() {
            return Err(DENIED);
        }
        // `O_TRUNC`, and times: they mean nothing here.
        self.getattr(node, None).await
    }

    // What there is comes from the source.
    async fn mknod(&self, _: Caller, _: u64, _: &[u8], _: u32, _: (u32, u32)) -> Answer<Entry> {
        Err(DENIED)
    }
    async fn mkdir(&self, _: Caller, _: u64, _: &[u8], _: u32) -> Answer<Entry> {
        Err(DENIED)
    }
    async fn symlink(&self, _: Caller, _: u64, _: &[u8], _: &[u8]) -> Answer<Entry> {
        Err(DENIED)
    }
    async fn link(&self, _: Caller, _: u64, _: u64, _: &[u8]) -> Answer<Entry> {
        Err(DENIED)
    }
    async fn unlink(&self, _: Caller, _: u64, _: &[u8]) -> Answer<()> {
        Err(DENIED)
    }
    async fn rmdir(&self, _: Caller, _: u64, _: &[u8]) -> Answer<()> {
        Err(DENIED)
    }
    async fn rename(&self, _: Caller, _: (u64, &[u8]), _: (u64, &[u8]), _: u32) -> Answer<()> {
        Err(DENIED)
    }
    async fn create(&self, _: Caller, _: u64, _: &[u8], _: u32, _: u32, _: bool) -> Answer<(Entry, Opened)> {
        Err(DENIED)
    }

    async fn open(&self, _: Caller, node: u64, flags: u32, _: bool) -> Answer<Opened> {
        let (path, found) = self.find(node).await?;
        if found.is_folder {
            return Err(Errno(libc::EISDIR));
        }
        let text = match flags & libc::O_ACCMODE as u32 == libc::O_WRONLY as u32 {
            true => Vec::new(),
            false => {
                let _turn = self.asked.acquire(1).await;
                self.source.read(path).await?
            }
        };
        let fh = self.keep(Open::Text(Bytes::copy_from(&text)))?;
        Ok(Opened { fh, flags: FOPEN_DIRECT_IO })
    }

    async fn read(&self, _: u64, fh: u64, offset: u64, size: u32, _: bool) -> Answer<Vec<Bytes>> {
        match &*self.opened(fh)? {
            Open::Text(text) => Ok(part(text, offset, size).into_iter().collect()),
            Open::Names(_) => Err(Errno(libc::EISDIR)),
        }
    }

    async fn write(&self, _: Caller, node: u64, fh: u64, _: u64, data: Vec<Bytes>, _: WriteHow) -> Answer<u32> {
        self.opened(fh)?;
        let all: Vec<u8> = data.iter().flat_map(|part| part.iter().copied()).take(WRITE_MAX + 1).collect();
        if all.len() > WRITE_MAX {
            return Err(INVALID);
        }
        let (path, len) = (self.path_of(node)?, all.len());
        let _turn = self.asked.acquire(1).await;
        self.source.write(path, all).await?;
        u32::try_from(len).map_err(|_| INVALID)
    }

    async fn statfs(&self, _: u64) -> Answer<StatFs> {
        Ok(StatFs { bsize: BLKSIZE, frsize: BLKSIZE, namelen: NAME_MAX, ..StatFs::default() })
    }

    async fn release(&self, _: u64, fh: u64) -> Answer<()> {
        self.close(fh);
        Ok(())
    }

    async fn fsync(&self, _: u64, _: u64, _: bool) -> Answer<()> {
        Ok(())
    }

    async fn opendir(&self, node: u64) -> Answer<Opened> {
        let (path, found) = self.find(node).await?;
        if !found.is_folder {
            return Err(Errno(libc::ENOTDIR));
        }
        let names = {
            let _turn = self.asked.acquire(1).await;
            self.source.list(path).await?
        };
        Ok(Opened { fh: self.keep(Open::Names(names))?, flags: 0 })
    }

    async fn readdir(&self, node: u64, fh: u64, offset: u64, out: &mut DirOut) -> Answer<()> {
        let folder = self.path_of(node)?;
        let open = self.opened(fh)?;
        let Open::Names(names) = &*open else { return Err(Errno(libc::ENOTDIR)) };
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let own = [(".", node), ("..", ROOT_NODE)];
        let mut at = from;
        while let Some((name, ino)) = own.get(at) {
            if !out.push(name.as_bytes(), *ino, DT_DIR, at as u64 + 1, None) {
                return Ok(());
            }
            at += 1;
        }
        for (name, found) in names.iter().skip(at - own.len()) {
            let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
            // Numbers of files that nobody has looked up are not known yet; 0 would hide them.
            let ino = self.ids.borrow().get(&path).copied().unwrap_or(u64::MAX);
            let kind = if found.is_folder { DT_DIR } else { DT_REG };
            if !out.push(name.as_bytes(), ino, kind, at as u64 + 1, None) {
                break;
            }
            at += 1;
        }
        Ok(())
    }

    async fn releasedir(&self, _: u64, fh: u64) -> Answer<()> {
        self.close(fh);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_end_with_the_text() {
        let text = Bytes::copy_from(b"0123456789");
        let of = |offset, size| part(&text, offset, size).map(|p| String::from_utf8_lossy(&p).into_owned());
        let some = |s: &str| Some(s.to_string());
        assert_eq!((of(0, 4), of(4, 100), of(9, 1)), (some("0123"), some("456789"), some("9")));
        assert_eq!((of(10, 1), of(u64::MAX, u32::MAX), of(0, 0)), (None, None, some("")));
    }
}
