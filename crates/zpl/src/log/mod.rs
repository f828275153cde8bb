//! Records for the intent log: one for each operation, added within its transaction and under its
//! locks, so that the records are in the order of the operations.
//!
//! Every commit includes the changes of names; changes of one object (its data, size, attributes)
//! are part of that object's commits. A change without a record type is a barrier: a commit then
//! waits for the txg.

pub(crate) mod replay;

use std::rc::Rc;

use base::{ErrorKind, ObjectId, Result};
use bdev::Bytes;
use dmu::sa::ZnodeAttrs;
use dmu::{Dnode, Tx};
use ondisk::blkptr::Blkptr;
use ondisk::zil_record::{ClonedBlocks, Create, LrAttr, LrSetattr, Make, Op, setattr};
use ondisk::zpl::pflags;
use rt::LocalBoxFuture;
use zil::{GetData, StoredBlock, SyncMode, Zilog};

use crate::fs::Zfs;
use crate::node::{Node, times};
use crate::types::{FileKind, SetAttr, SetTime};

/// A new object as records have it.
fn create_of(dn: &Dnode, a: &ZnodeAttrs) -> Create {
    Create {
        dir: a.parent,
        object: dn.object().0,
        slots: (dn.dnode_size() / 512) as u8,
        mode: a.mode,
        uid: a.uid,
        gid: a.gid,
        generation: a.generation,
        crtime: a.crtime,
        rdev: a.rdev,
    }
}

impl Zfs {
    /// The log, unless a replay runs or `sync=disabled`.
    fn active_zilog(&self) -> Option<Zilog> {
        let on = self.replaying.get().is_none() && self.opts().sync != SyncMode::Disabled;
        if on { self.log() } else { None }
    }

    fn log_record(&self, log: &Zilog, op: &Op<'_>, object: Option<ObjectId>, tx: &Tx) {
        match op.encode() {
            Ok(record) => log.record(record, object, tx.txg()),
            Err(_) => log.barrier(object, tx.txg()),
        }
    }

    /// Logs the creation of an object in a directory.
    pub(crate) fn log_create(&self, kind: FileKind, dn: &Dnode, a: &ZnodeAttrs, name: &[u8], target: &[u8], tx: &Tx) {
        let Some(log) = self.active_zilog() else { return };
        let make = match kind {
            FileKind::Dir => Make::Dir,
            FileKind::Symlink => Make::Symlink,
            _ => Make::File,
        };
        let body = create_of(dn, a);
        self.log_record(&log, &Op::Create { make, body, attr: None, acl: None, name, target }, None, tx);
    }

    /// Logs the removal of a name; `gone` is the object if it was the last name.
    pub(crate) fn log_remove(&self, dir: ObjectId, name: &[u8], is_dir: bool, gone: Option<ObjectId>, tx: &Tx) {
        let Some(log) = self.active_zilog() else { return };
        self.log_record(&log, &Op::Remove { dir: dir.0, name, is_dir }, None, tx);
        if let Some(obj) = gone {
            log.remove_async(obj);
        }
    }

    pub(crate) fn log_link(&self, dir: ObjectId, object: ObjectId, name: &[u8], tx: &Tx) {
        let Some(log) = self.active_zilog() else { return };
        self.log_record(&log, &Op::Link { dir: dir.0, object: object.0, name }, None, tx);
    }

    /// Logs a rename. The object's data must be durable no later than its new name: programs that
    /// replace a file by a new one rely on that.
    pub(crate) fn log_rename(
        &self,
        (from, name): (ObjectId, &[u8]),
        (to, new_name): (ObjectId, &[u8]),
        object: ObjectId,
        tx: &Tx,
    ) {
        let Some(log) = self.active_zilog() else { return };
        log.async_to_sync(object);
        self.log_record(&log, &Op::Rename { from: from.0, to: to.0, name, new_name }, None, tx);
    }

    /// Logs the exchange of two names; the data of both objects become durable with it.
    pub(crate) fn log_exchange(
        &self,
        (from, name): (ObjectId, &[u8]),
        (to, new_name): (ObjectId, &[u8]),
        objects: [ObjectId; 2],
        tx: &Tx,
    ) {
        let Some(log) = self.active_zilog() else { return };
        objects.into_iter().for_each(|obj| log.async_to_sync(obj));
        self.log_newer(&log, &Op::Exchange { from: from.0, to: to.0, name, new_name }, None, tx);
    }

    /// Logs a rename that left `whiteout` at the old name.
    pub(crate) fn log_whiteout(
        &self,
        (whiteout, a): (&Dnode, &ZnodeAttrs),
        name: &[u8],
        (to, new_name): (ObjectId, &[u8]),
        object: ObjectId,
        tx: &Tx,
    ) {
        let Some(log) = self.active_zilog() else { return };
        log.async_to_sync(object);
        self.log_newer(&log, &Op::Whiteout { body: create_of(whiteout, a), to: to.0, name, new_name }, None, tx);
    }

    /// Logs a change of an extended attribute in the system attributes; no value: it is removed.
    /// Not for unlinked files.
    pub(crate) fn log_sa_xattr(&self, obj: ObjectId, a: &ZnodeAttrs, name: &[u8], value: Option<&[u8]>, tx: &Tx) {
        let Some(log) = self.active_zilog().filter(|_| a.links > 0) else { return };
        match value {
            // The record's form of a removal is a value without bytes.
            Some([]) => log.barrier(Some(obj), tx.txg()),
            _ if !log.tunables().saxattr => log.barrier(Some(obj), tx.txg()),
            _ => {
                let op = Op::SetSaXattr { object: obj.0, name, value: value.unwrap_or_default() };
                self.log_newer(&log, &op, Some(obj), tx);
            }
        }
    }

    /// Logs a record that OpenZFS knows since 2.2: a barrier where older ones may read the log.
    fn log_newer(&self, log: &Zilog, op: &Op<'_>, object: Option<ObjectId>, tx: &Tx) {
        if self.os.ctx().features().zilsaxattr {
            self.log_record(log, op, object, tx);
        } else {
            log.barrier(object, tx.txg());
        }
    }

    /// Logs a write; `commit`: the data are to be durable at once.
    pub(crate) fn log_write(&self, n: &Node, off: u64, data: &[Bytes], commit: bool, unlinked: bool, tx: &Tx) {
        let Some(log) = self.active_zilog() else { return };
        // An unlinked file cannot be found after a crash.
        if !unlinked {
            log.write(n.obj(), off, data, u64::from(n.dn.block_size()), commit, false, tx.txg());
        }
    }

    /// Logs a truncation, extension or free of a range; `len` 0 means to the end. Not for unlinked
    /// files, which do not survive a crash.
    pub(crate) fn log_truncate(&self, (obj, links): (ObjectId, u64), off: u64, len: u64, tx: &Tx) {
        let Some(log) = self.active_zilog().filter(|_| links > 0) else { return };
        self.log_record(&log, &Op::Truncate { object: obj.0, offset: off, length: len }, Some(obj), tx);
    }

    /// Logs clones of `blocks` at `off`. Not for unlinked files.
    pub(crate) fn log_clone(
        &self,
        (obj, links): (ObjectId, u64),
        (offset, length): (u64, u64),
        block_size: u64,
        blocks: &[Blkptr],
        tx: &Tx,
    ) {
        let Some(log) = self.active_zilog().filter(|_| links > 0) else { return };
        let bytes: Vec<u8> = blocks.iter().flat_map(Blkptr::to_bytes).collect();
        let op = Op::CloneRange { object: obj.0, offset, length, block_size, blocks: ClonedBlocks::new(&bytes) };
        self.log_record(&log, &op, Some(obj), tx);
    }

    /// Logs a change of attributes.
    pub(crate) fn log_setattr(&self, obj: ObjectId, set: &SetAttr, a: &ZnodeAttrs, tx: &Tx) {
        let Some(log) = self.active_zilog().filter(|_| a.links > 0) else { return };
        let mut out = LrSetattr::default();
        let time = |t: Option<SetTime>, stored: [u64; 2]| match t {
            Some(SetTime::At(t)) => times(t),
            _ => stored,
        };
        for (named, bit) in [
            (set.mode.is_some(), setattr::MODE),
            (set.uid.is_some(), setattr::UID),
            (set.gid.is_some(), setattr::GID),
            (set.atime.is_some(), setattr::ATIME),
            (set.mtime.is_some(), setattr::MTIME),
        ] {
            out.mask |= if named { bit } else { 0 };
        }
        (out.mode, out.uid, out.gid, out.size) = (a.mode, a.uid, a.gid, a.size);
        (out.atime, out.mtime) = (time(set.atime, a.atime), time(set.mtime, a.mtime));
        self.log_record(&log, &Op::Setattr { object: obj.0, set: out, attr: None }, Some(obj), tx);
    }

    /// Logs a change of flags or project.
    pub(crate) fn log_flags(&self, obj: ObjectId, attr: LrAttr, tx: &Tx) {
        let Some(log) = self.active_zilog() else { return };
        let set = LrSetattr { mask: setattr::XVATTR, ..LrSetattr::default() };
        self.log_record(&log, &Op::Setattr { object: obj.0, set, attr: Some(attr) }, Some(obj), tx);
    }

    /// Logs a change that has no record type.
    pub(crate) fn log_barrier(&self, obj: Option<ObjectId>, tx: &Tx) {
        if let Some(log) = self.active_zilog() {
            log.barrier(obj, tx.txg());
        }
    }

    /// The object with its attributes, if it exists and has a name or is part of extended
    /// attributes.
    async fn findable_node(&self, object: u64) -> Result<Option<(Node, ZnodeAttrs)>> {
        let found = async {
            let n = self.node(ObjectId(object)).await?;
            let a = self.attrs(&n).await?;
            Ok((n, a))
        };
        match found.await {
            Ok((_, a)) if a.links == 0 && a.flags & pflags::XATTR == 0 => Ok(None),
            Ok(found) => Ok(Some(found)),
            Err(e) => {
                let e: base::Error = e;
                if e.kind() == ErrorKind::NotFound { Ok(None) } else { Err(e) }
            }
        }
    }
}

impl GetData for Zfs {
    fn copy(&self, object: u64, offset: u64, length: u64) -> LocalBoxFuture<'_, Result<Option<Vec<Bytes>>>> {
        Box::pin(async move {
            let Some((n, _)) = self.findable_node(object).await? else { return Ok(None) };
            let _data = n.st.data.read(offset, length).await;
            let Some((n, a)) = self.findable_node(object).await? else { return Ok(None) };
            if offset >= a.size {
                return Ok(None);
            }
            n.dn.read_range(offset, length.min(a.size - offset)).await.map(Some)
        })
    }

    fn store(&self, object: u64, offset: u64, length: u64) -> LocalBoxFuture<'_, Result<Option<StoredBlock>>> {
        Box::pin(async move {
            let Some((n, _)) = self.findable_node(object).await? else { return Ok(None) };
            let (blkid, block) = {
                let _data = n.st.data.read(0, u64::MAX).await;
                let Some((n, a)) = self.findable_node(object).await? else { return Ok(None) };
                let size = u64::from(n.dn.block_size());
                if offset >= a.size {
                    return Ok(None);
                }
                if offset % size + length > size {
                    return Err(base::Error::invalid(format!("file {object} has smaller blocks than before")));
                }
                (offset / size, n.dn.read_block(offset / size).await?)
            };
            StoredBlock::store(&self.os, &n.dn, blkid, block).await.map(Some)
        })
    }
}

/// Checks that `Rc<Zfs>` coerces to the log's data source.
const _: fn(Rc<Zfs>) -> Rc<dyn GetData> = |fs| fs;
