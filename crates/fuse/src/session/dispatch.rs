//! Requests and handler calls: each operation calls one method of the [`Handler`] and puts its
//! result into a reply.

use std::cell::Cell;
use std::rc::Rc;

use host::{WEIR_IOC_CLONE, WEIR_IOC_CLONE_SOURCE, WEIR_IOC_SHARE_EQUAL};
use rt::sync::Pass;

use super::reply::{Reply, empty, sized};
use super::request::{Request, take_data};
use super::{HEAD, IO_MAX, MAX_BACKGROUND, SMALL_OUTPUT_MAX, Session, WANTED};
use crate::dir::DirOut;
use crate::errno::{DENIED, Errno, INVALID, IO, NO_SYS, RANGE, through_handle};
use crate::handler::{COPY_MAX, Caller, Entry, Handler, Opened, WriteHow};
use crate::proto::{
    self, FOPEN_DIRECT_IO, FS_IOC_FSSETXATTR, FS_IOC_SETFLAGS, InHeader, Init, InitReply, Op, init, opcode,
};
use crate::wire::Put;

impl<H: Handler> Session<H> {
    /// Serves one request, reply included.
    pub(super) async fn serve(self: &Rc<Self>, request: &mut Request) {
        let core = &self.core;
        core.count(|s| s.requests += 1);
        let Ok(h) = InHeader::parse(&request.head) else { return };
        let no_reply = matches!(h.opcode, opcode::FORGET | opcode::BATCH_FORGET);
        let result = self.answer(request, &h).await;
        match result {
            Ok(reply) => core.reply(h.unique, reply),
            Err(_) if no_reply => {}
            Err(e) => core.send_error(h.unique, e),
        }
    }

    async fn answer(self: &Rc<Self>, request: &mut Request, h: &InHeader) -> Result<Reply, Errno> {
        if h.len as usize != request.len {
            self.core.count(|s| s.refused += 1);
            return Err(INVALID);
        }
        if h.opcode == opcode::WRITE {
            return self.write(request, h).await;
        }
        let mut copy = Vec::new();
        let parsed = request.args(h, &mut copy).and_then(|a| Op::parse(h.opcode, a, self.core.setxattr_ext.get()));
        let op = parsed.inspect_err(|_| self.core.count(|s| s.refused += 1))?;
        let (begun, found) = (self.op_begun(h, &op), Cell::new(0));
        let result = match self.enter(h, &op).await {
            Ok(_pass) => self.dispatch(h, op, &found).await,
            Err(e) => Err(e),
        };
        self.op_done(begun, found.get(), result.is_ok());
        result
    }

    /// Waits while the file system is suspended, and keeps it from that while the pass lives.
    /// Requests that may wait for the kernel enter by themselves, later.
    async fn enter(&self, h: &InHeader, op: &Op<'_>) -> Result<Option<Pass>, Errno> {
        let fs = &self.handler;
        match op {
            Op::Init(_) | Op::Forget { .. } | Op::BatchForget { .. } | Op::Destroy | Op::Interrupt { .. } => Ok(None),
            Op::SyncFs | Op::Ioctl { .. } | Op::Lseek { .. } | Op::Other => Ok(None),
            // What is closed may have gone.
            Op::Release { .. } | Op::ReleaseDir { .. } => Ok(fs.enter(h.node, false).await.unwrap_or_default()),
            // Asked of a node that the kernel does not know.
            Op::Lookup { name: b"." } => fs.enter(h.node, false).await,
            Op::Read { .. }
            | Op::Fsync { .. }
            | Op::FsyncDir { .. }
            | Op::ReadDir { .. }
            | Op::Fallocate { .. }
            | Op::CopyFileRange { .. }
            | Op::GetAttr { fh: Some(_) }
            | Op::Statx { fh: Some(_) } => fs.enter(h.node, true).await.map_err(through_handle),
            _ => fs.enter(h.node, true).await,
        }
    }

    /// A `WRITE`, whose data lie in the buffers of the request.
    async fn write(self: &Rc<Self>, request: &mut Request, h: &InHeader) -> Result<Reply, Errno> {
        // Parsed first: taking the data needs the buffers that the arguments lie beside.
        let mut copy = Vec::new();
        let op = request.args(h, &mut copy).and_then(|args| Op::parse(h.opcode, args, true));
        let size_here = request.len.checked_sub(HEAD + h.ext);
        let Ok(Op::Write { fh, offset, size, kill_suidgid, from_cache, sync, direct }) = op else {
            self.core.count(|s| s.refused += 1);
            return Err(INVALID);
        };
        if size_here != Some(size as usize) || !self.core.initialized.get() {
            self.core.count(|s| s.refused += 1);
            return Err(INVALID);
        }
        let begun = op.as_ref().ok().and_then(|op| self.op_begun(h, op));
        let data = take_data(&mut request.data, size as usize);
        let how = WriteHow { kill_suidgid, from_cache, sync, direct: direct && !from_cache };
        let done = match self.handler.enter(h.node, true).await {
            Ok(_pass) => self.handler.write(h.caller, h.node, fh, offset, data, how).await,
            Err(e) => Err(through_handle(e)),
        };
        self.op_done(begun, 0, done.is_ok());
        if done == Err(DENIED) && from_cache {
            // The file has become immutable: a forbidden store to a shared mapping must not be
            // visible.
            let (core, node) = (self.core.clone(), h.node);
            self.rt.spawn("fuse drop pages", async move { core.drop_pages(node).await });
        }
        let n = done?;
        let reply = Reply::small(|s| {
            s.u32(n);
            s.u32(0);
        });
        let past_cache = direct && !from_cache && self.core.direct_is_coherent.get();
        if past_cache && n > 0 && self.handler.may_be_cached(h.node, fh) {
            let (core, node, unique) = (self.core.clone(), h.node, h.unique);
            self.detach("fuse direct write", async move {
                core.drop_pages_in(node, offset, n.into()).await;
                core.reply(unique, reply);
            });
            return Ok(Reply::Nothing);
        }
        Ok(reply)
    }

    /// Serves a request; the node of the entry in its reply goes to `found`.
    async fn dispatch(self: &Rc<Self>, h: &InHeader, op: Op<'_>, found: &Cell<u64>) -> Result<Reply, Errno> {
        let (who, node, fs) = (h.caller, h.node, &self.handler);
        let entry = |e: &Entry| {
            found.set(e.node);
            Reply::entry(e)
        };
        if let Op::Init(i) = op {
            return self.negotiate(&i);
        }
        if !self.core.initialized.get() {
            return Err(IO);
        }
        Ok(match op {
            Op::Lookup { name } => entry(&fs.lookup(who, node, name).await?),
            Op::Forget { count } => {
                fs.forget(node, count);
                Reply::Nothing
            }
            Op::BatchForget { list } => {
                proto::forgets(list).for_each(|(node, count)| fs.forget(node, count));
                Reply::Nothing
            }
            Op::GetAttr { fh } => Reply::attr(&fs.getattr(node, fh).await?),
            Op::Statx { fh } => Reply::statx(&fs.getattr(node, fh).await?),
            Op::SetAttr(set) => Reply::attr(&fs.setattr(who, node, set).await?),
            Op::ReadLink => Reply::Bytes(fs.readlink(node).await?),
            Op::Symlink { name, target } => entry(&fs.symlink(who, node, name, target).await?),
            Op::MkNod { name, mode, rdev, umask } => {
                entry(&fs.mknod(Caller { umask, ..who }, node, name, mode, rdev).await?)
            }
            Op::MkDir { name, mode, umask } => entry(&fs.mkdir(Caller { umask, ..who }, node, name, mode).await?),
            Op::Unlink { name } => empty(fs.unlink(who, node, name).await)?,
            Op::RmDir { name } => empty(fs.rmdir(who, node, name).await)?,
            Op::Rename { name, new_dir, new_name, flags } => {
                empty(fs.rename(who, (node, name), (new_dir, new_name), flags).await)?
            }
            Op::Link { node: from, name } => entry(&fs.link(who, from, node, name).await?),
            Op::Open { flags, kill_suidgid } => {
                let o = self.opened(fs.open(who, node, flags, kill_suidgid).await?);
                self.core.count_open(true);
                Reply::opened(&o)
            }
            Op::Create { name, mode, umask, flags, kill_suidgid } => {
                let (e, o) = fs.create(Caller { umask, ..who }, node, name, mode, flags, kill_suidgid).await?;
                found.set(e.node);
                self.created(&e, o)
            }
            Op::TmpFile { mode, umask, flags, kill_suidgid } => {
                let (e, o) = fs.tmpfile(Caller { umask, ..who }, node, mode, flags, kill_suidgid).await?;
                found.set(e.node);
                self.created(&e, o)
            }
            Op::Read { fh, offset, size, direct } => {
                Reply::Data(fs.read(node, fh, offset, size.min(IO_MAX as u32), direct).await?)
            }
            Op::Write { .. } => return Err(INVALID),
            Op::StatFs => {
                let st = fs.statfs(node).await?;
                Reply::small(|s| proto::put_statfs(s, &st))
            }
            Op::Release { fh } => {
                let released = fs.release(node, fh).await;
                self.core.count_open(false);
                empty(released)?
            }
            Op::Fsync { fh, datasync } | Op::FsyncDir { fh, datasync } => empty(fs.fsync(node, fh, datasync).await)?,
            Op::SetXattr { name, value, flags, kill_sgid } => {
                empty(fs.setxattr(node, name, value, flags, kill_sgid).await)?
            }
            Op::GetXattr { name, size } => sized(fs.getxattr(node, name).await?, size)?,
            Op::ListXattr { size } => sized(fs.listxattr(who, node).await?, size)?,
            Op::RemoveXattr { name } => empty(fs.removexattr(node, name).await)?,
            Op::OpenDir => {
                let o = fs.opendir(node).await?;
                self.core.count_open(true);
                Reply::opened(&o)
            }
            Op::ReadDir { fh, offset, size, plus } => {
                let mut out = DirOut::new((size as usize).min(IO_MAX), plus);
                fs.readdir(node, fh, offset, &mut out).await?;
                Reply::Listing(out.into_reply())
            }
            Op::ReleaseDir { fh } => {
                let released = fs.releasedir(node, fh).await;
                self.core.count_open(false);
                empty(released)?
            }
            Op::Destroy => Reply::Empty,
            Op::Ioctl { fh, cmd, input, out_size } => self.ioctl(who, (node, fh), cmd, input, out_size).await?,
            Op::Fallocate { fh, offset, len, mode } => empty(fs.fallocate(who, node, fh, offset, len, mode).await)?,
            Op::Lseek { fh, offset, whence } if fs.may_be_mapped(node) => {
                self.detach_lseek(h, fh, offset, whence);
                Reply::Nothing
            }
            Op::Lseek { fh, offset, whence } => {
                let at = fs.lseek(node, fh, offset, whence).await?;
                Reply::small(|s| s.u64(at))
            }
            Op::CopyFileRange { offset, to, to_offset, len } => {
                let n = fs.copy_file_range(who, (node, offset), (to, to_offset), len.min(COPY_MAX)).await?;
                let n = u32::try_from(n).map_err(|_| IO)?;
                Reply::small(|s| {
                    s.u32(n);
                    s.u32(0);
                })
            }
            Op::SyncFs => empty(fs.syncfs().await)?,
            // Every request ends by itself; after this error the kernel sends no more of these.
            Op::Interrupt { .. } | Op::Init(_) | Op::Other => return Err(NO_SYS),
        })
    }

    /// The reply to a request that made and opened a file, which it counts as open.
    fn created(&self, e: &Entry, o: Opened) -> Reply {
        let o = self.opened(o);
        self.core.count_open(true);
        Reply::small(|s| {
            proto::put_entry(s, e);
            proto::put_open(s, &o);
        })
    }

    async fn ioctl(&self, who: Caller, at: (u64, u64), cmd: u32, input: &[u8], out_size: u32) -> Result<Reply, Errno> {
        // Stores to shared mappings from before the change of flags may still be written, as may be
        // what is cloned.
        let clones = matches!(cmd, WEIR_IOC_CLONE_SOURCE | WEIR_IOC_CLONE | WEIR_IOC_SHARE_EQUAL);
        if clones || matches!(cmd, FS_IOC_SETFLAGS | FS_IOC_FSSETXATTR) {
            self.core.drop_pages(at.0).await;
        }
        let out = {
            let _pass = self.handler.enter(at.0, true).await.map_err(through_handle)?;
            self.handler.ioctl(who, at, cmd, input).await
        };
        if cmd == WEIR_IOC_CLONE {
            // The kernel knows neither the new contents nor the new size.
            self.core.drop_pages(at.0).await;
        }
        let out = out?;
        if out.len() > out_size.min(SMALL_OUTPUT_MAX) as usize {
            return Err(RANGE);
        }
        let mut body = vec![0; 16];
        body.extend(out);
        Ok(Reply::Bytes(body))
    }

    /// `LSEEK` of a file that may be mapped, in a task of its own: it may wait for the kernel.
    fn detach_lseek(self: &Rc<Self>, h: &InHeader, fh: u64, offset: u64, whence: u32) {
        let (session, node, unique) = (self.clone(), h.node, h.unique);
        self.detach("fuse lseek", async move {
            match session.handler.lseek(node, fh, offset, whence).await {
                Ok(at) => session.core.reply(unique, Reply::small(|s| s.u64(at))),
                Err(e) => session.core.send_error(unique, e),
            }
        });
    }

    /// The handler's flags of an open file, less those that the kernel handles wrongly.
    fn opened(&self, o: Opened) -> Opened {
        let without = if self.core.direct_is_coherent.get() { 0 } else { FOPEN_DIRECT_IO };
        Opened { flags: o.flags & !without, ..o }
    }

    /// The first request: negotiates abilities.
    fn negotiate(&self, i: &Init) -> Result<Reply, Errno> {
        let mut r = InitReply {
            minor: proto::MINOR_MAX.min(i.minor),
            max_readahead: i.max_readahead.max(IO_MAX as u32),
            flags: 0,
            max_background: MAX_BACKGROUND,
            congestion: MAX_BACKGROUND / 4 * 3,
            max_write: IO_MAX as u32,
            max_pages: (IO_MAX / 4096) as u16,
        };
        if i.major > proto::MAJOR {
            // The kernel sends INIT again with our version.
            return Ok(Reply::small(|s| proto::put_init(s, &r)));
        }
        if i.major < proto::MAJOR || i.minor < proto::MINOR_MIN || i.flags & init::MAX_PAGES == 0 {
            return Err(Errno(libc::EPROTO));
        }
        if self.core.initialized.replace(true) {
            return Err(INVALID);
        }
        let mut wanted = WANTED | if self.core.writeback { init::WRITEBACK_CACHE } else { 0 };
        if self.core.posix_acl {
            // Which bits a new file gets is known only here, where the default ACL is.
            wanted |= init::POSIX_ACL | init::DONT_MASK;
        }
        r.flags = i.flags & wanted;
        self.core.minor.set(r.minor);
        self.core.setxattr_ext.set(r.flags & init::SETXATTR_EXT != 0);
        self.core.direct_is_coherent.set(r.flags & init::DIRECT_IO_ALLOW_MMAP != 0);
        Ok(Reply::small(|s| proto::put_init(s, &r)))
    }
}
