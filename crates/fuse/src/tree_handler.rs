//! Serves the requests of a session of several file systems: each goes to the member that its node
//! is in.
//!
//! See [`crate::tree`] for the translation of nodes and inode numbers.

use std::rc::Rc;

use bdev::Bytes;
use rt::sync::Pass;

use crate::dir::DirOut;
use crate::errno::{Errno, OTHER_DEVICE};
use crate::handler::{Attr, Caller, Entry, Handler, Opened, SetAttr, StatFs, WriteHow};
use crate::session::Kernel;
use crate::tree::Tree;

/// The handler of a [`Tree`].
pub(crate) struct TreeHandler(pub(crate) Rc<Tree>);

impl Handler for TreeHandler {
    fn forget(&self, node: u64, count: u64) {
        self.0.forget(node, count);
    }
    fn begin(&self, kernel: Kernel) {
        self.0.begin(kernel);
    }
    fn traced(&self, node: u64) -> Option<(u64, u64)> {
        let at = self.0.enter(node).ok()?;
        at.member.fs.traced(at.node)
    }
    async fn enter(&self, node: u64, check: bool) -> Result<Option<Pass>, Errno> {
        let (member, node) = {
            let at = self.0.enter(node)?;
            (at.member.clone(), at.node)
        };
        member.fs.enter(node, check).await
    }
    async fn end(&self) {
        self.0.end().await;
    }
    async fn lookup(&self, who: Caller, parent: u64, name: &[u8]) -> Result<Entry, Errno> {
        let at = self.0.enter(parent)?;
        at.entry(at.member.fs.lookup(who, at.node, name).await?).await
    }
    async fn getattr(&self, node: u64, fh: Option<u64>) -> Result<Attr, Errno> {
        let at = self.0.enter(node)?;
        Ok(at.attr(at.member.fs.getattr(at.node, fh).await?))
    }
    async fn setattr(&self, who: Caller, node: u64, set: SetAttr) -> Result<Attr, Errno> {
        let at = self.0.enter(node)?;
        Ok(at.attr(at.member.fs.setattr(who, at.node, set).await?))
    }
    async fn readlink(&self, node: u64) -> Result<Vec<u8>, Errno> {
        let at = self.0.enter(node)?;
        at.member.fs.readlink(at.node).await
    }
    async fn symlink(&self, who: Caller, parent: u64, name: &[u8], target: &[u8]) -> Result<Entry, Errno> {
        let at = self.0.enter(parent)?;
        at.entry(at.member.fs.symlink(who, at.node, name, target).await?).await
    }
    async fn mknod(&self, who: Caller, parent: u64, name: &[u8], mode: u32, rdev: (u32, u32)) -> Result<Entry, Errno> {
        let at = self.0.enter(parent)?;
        at.entry(at.member.fs.mknod(who, at.node, name, mode, rdev).await?).await
    }
    async fn mkdir(&self, who: Caller, parent: u64, name: &[u8], mode: u32) -> Result<Entry, Errno> {
        let at = self.0.enter(parent)?;
        at.entry(at.member.fs.mkdir(who, at.node, name, mode).await?).await
    }
    async fn unlink(&self, who: Caller, parent: u64, name: &[u8]) -> Result<(), Errno> {
        let at = self.0.enter(parent)?;
        at.member.fs.unlink(who, at.node, name).await
    }
    async fn rmdir(&self, who: Caller, parent: u64, name: &[u8]) -> Result<(), Errno> {
        let at = self.0.enter(parent)?;
        at.check_uncovered(who, name).await?;
        at.member.fs.rmdir(who, at.node, name).await
    }
    async fn rename(&self, who: Caller, from: (u64, &[u8]), to: (u64, &[u8]), flags: u32) -> Result<(), Errno> {
        let (at, dest) = (self.0.enter(from.0)?, self.0.enter(to.0)?);
        if !Rc::ptr_eq(&at.member, &dest.member) {
            return Err(OTHER_DEVICE);
        }
        at.check_uncovered(who, from.1).await?;
        dest.check_uncovered(who, to.1).await?;
        at.member.fs.rename(who, (at.node, from.1), (dest.node, to.1), flags).await
    }
    async fn link(&self, who: Caller, node: u64, parent: u64, name: &[u8]) -> Result<Entry, Errno> {
        let (of, at) = (self.0.enter(node)?, self.0.enter(parent)?);
        if !Rc::ptr_eq(&of.member, &at.member) {
            return Err(OTHER_DEVICE);
        }
        at.entry(at.member.fs.link(who, of.node, at.node, name).await?).await
    }
    async fn open(&self, who: Caller, node: u64, flags: u32, kill_suidgid: bool) -> Result<Opened, Errno> {
        let at = self.0.enter(node)?;
        let opened = at.member.fs.open(who, at.node, flags, kill_suidgid).await?;
        at.member.open.up(1);
        Ok(opened)
    }
    async fn create(
        &self,
        who: Caller,
        parent: u64,
        name: &[u8],
        mode: u32,
        flags: u32,
        kill_suidgid: bool,
    ) -> Result<(Entry, Opened), Errno> {
        let at = self.0.enter(parent)?;
        let (e, opened) = at.member.fs.create(who, at.node, name, mode, flags, kill_suidgid).await?;
        at.member.open.up(1);
        Ok((at.entry(e).await?, opened))
    }
    async fn tmpfile(
        &self,
        who: Caller,
        parent: u64,
        mode: u32,
        flags: u32,
        kill_suidgid: bool,
    ) -> Result<(Entry, Opened), Errno> {
        let at = self.0.enter(parent)?;
        let (e, opened) = at.member.fs.tmpfile(who, at.node, mode, flags, kill_suidgid).await?;
        at.member.open.up(1);
        Ok((at.entry(e).await?, opened))
    }
    async fn read(&self, node: u64, fh: u64, offset: u64, size: u32, direct: bool) -> Result<Vec<Bytes>, Errno> {
        let at = self.0.enter(node)?;
        at.member.fs.read(at.node, fh, offset, size, direct).await
    }
    async fn write(
        &self,
        who: Caller,
        node: u64,
        fh: u64,
        offset: u64,
        data: Vec<Bytes>,
        how: WriteHow,
    ) -> Result<u32, Errno> {
        let at = self.0.enter(node)?;
        at.member.fs.write(who, at.node, fh, offset, data, how).await
    }
    fn may_be_cached(&self, node: u64, fh: u64) -> bool {
        self.0.enter(node).is_ok_and(|at| at.member.fs.may_be_cached(at.node, fh))
    }
    fn may_be_mapped(&self, node: u64) -> bool {
        self.0.enter(node).is_ok_and(|at| at.member.fs.may_be_mapped(at.node))
    }
    async fn statfs(&self, node: u64) -> Result<StatFs, Errno> {
        let at = self.0.enter(node)?;
        at.member.fs.statfs(at.node).await
    }
    async fn release(&self, node: u64, fh: u64) -> Result<(), Errno> {
        // A member that has left has no open files.
        let Ok(at) = self.0.enter(node) else { return Ok(()) };
        let released = at.member.fs.release(at.node, fh).await;
        at.member.open.down(at.member.open.count().min(1));
        released
    }
    async fn fsync(&self, node: u64, fh: u64, datasync: bool) -> Result<(), Errno> {
        let at = self.0.enter(node)?;
        at.member.fs.fsync(at.node, fh, datasync).await
    }
    async fn opendir(&self, node: u64) -> Result<Opened, Errno> {
        let at = self.0.enter(node)?;
        let opened = at.member.fs.opendir(at.node).await?;
        at.member.open.up(1);
        Ok(opened)
    }
    async fn readdir(&self, node: u64, fh: u64, offset: u64, out: &mut DirOut) -> Result<(), Errno> {
        let at = Rc::new(self.0.enter(node)?);
        out.set_view(at.clone());
        at.member.fs.readdir(at.node, fh, offset, out).await
    }
    async fn releasedir(&self, node: u64, fh: u64) -> Result<(), Errno> {
        let Ok(at) = self.0.enter(node) else { return Ok(()) };
        let released = at.member.fs.releasedir(at.node, fh).await;
        at.member.open.down(at.member.open.count().min(1));
        released
    }
    async fn setxattr(&self, node: u64, name: &[u8], value: &[u8], flags: u32, kill_sgid: bool) -> Result<(), Errno> {
        let at = self.0.enter(node)?;
        at.member.fs.setxattr(at.node, name, value, flags, kill_sgid).await
    }
    async fn getxattr(&self, node: u64, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let at = self.0.enter(node)?;
        at.member.fs.getxattr(at.node, name).await
    }
    async fn listxattr(&self, caller: Caller, node: u64) -> Result<Vec<u8>, Errno> {
        let at = self.0.enter(node)?;
        at.member.fs.listxattr(caller, at.node).await
    }
    async fn removexattr(&self, node: u64, name: &[u8]) -> Result<(), Errno> {
        let at = self.0.enter(node)?;
        at.member.fs.removexattr(at.node, name).await
    }
    async fn fallocate(&self, who: Caller, node: u64, fh: u64, offset: u64, len: u64, mode: u32) -> Result<(), Errno> {
        let at = self.0.enter(node)?;
        at.member.fs.fallocate(who, at.node, fh, offset, len, mode).await
    }
    async fn lseek(&self, node: u64, fh: u64, offset: u64, whence: u32) -> Result<u64, Errno> {
        let at = self.0.enter(node)?;
        at.member.fs.lseek(at.node, fh, offset, whence).await
    }
    async fn copy_file_range(&self, who: Caller, from: (u64, u64), to: (u64, u64), len: u64) -> Result<u64, Errno> {
        let (at, dest) = (self.0.enter(from.0)?, self.0.enter(to.0)?);
        if !Rc::ptr_eq(&at.member, &dest.member) {
            return Err(OTHER_DEVICE);
        }
        at.member.fs.copy_file_range(who, (at.node, from.1), (dest.node, to.1), len).await
    }
    async fn syncfs(&self) -> Result<(), Errno> {
        for member in self.0.members() {
            member.fs.syncfs().await?;
        }
        Ok(())
    }
    async fn ioctl(&self, who: Caller, (node, fh): (u64, u64), cmd: u32, input: &[u8]) -> Result<Vec<u8>, Errno> {
        let at = self.0.enter(node)?;
        at.member.fs.ioctl(who, (at.node, fh), cmd, input).await
    }
}
