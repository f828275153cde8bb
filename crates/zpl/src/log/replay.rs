//! Replay of the intent log (format page 07 sections 4 and 5), before the file system is used
//! otherwise.
//!
//! Most records are the operations of this crate with explicit object numbers, generations and
//! times. [`Zfs::finish`] marks each record as replayed in the transaction that completes it. Where
//! a record takes more than one transaction only the last one marks it: after a crash in between
//! the whole record is replayed again, with the same result.

use base::{Error, ErrorKind, ObjectId, Result, WallTime};
use bdev::Bytes;
use dmu::sa::{SaAttr, SaHandle};
use dmu::zap;
use ondisk::blkptr::Blkptr;
use ondisk::nvlist::NvValue;
use ondisk::object_type::ObjectType;
use ondisk::zil::Record;
use ondisk::zil_record::{ClonedBlocks, Create, LrAcl, LrAttr, LrSetattr, Make, Op, WriteData, setattr};
use ondisk::zpl::pflags;
use rt::LocalBoxFuture;
use zio::Prio;

use crate::data::FILE_SIZE_MAX;
use crate::data::clone::{PIECE_BLOCKS, Told};
use crate::fs::Zfs;
use crate::names::create::New;
use crate::names::rename::Whiteout;
use crate::node::{Node, exact_file_spec, kind_of};
use crate::types::{Cred, Fallocate, FileKind, RenameFlags, SetAttr, SetTime};
use crate::xattr::dir::DIR_MODE;
use crate::xattr::{SA_VALUE_MAX, value_of};

/// The bits of optional attributes in records, and the stored flags.
const LR_TO_PFLAGS: [(u32, u64); 15] = [
    (0x2, pflags::ARCHIVE),
    (0x4, pflags::SYSTEM),
    (0x8, pflags::READONLY),
    (0x10, pflags::HIDDEN),
    (0x20, pflags::NOUNLINK),
    (0x40, pflags::IMMUTABLE),
    (0x80, pflags::APPENDONLY),
    (0x100, pflags::NODUMP),
    (0x200, pflags::OPAQUE),
    (0x400, pflags::AV_QUARANTINED),
    (0x800, pflags::AV_MODIFIED),
    (0x2000, pflags::REPARSE),
    (0x8000, pflags::OFFLINE),
    (0x10000, pflags::SPARSE),
    (0x20000, pflags::PROJINHERIT),
];
/// The record has a creation time.
const LR_CREATETIME: u32 = 0x1;
/// The record has a project.
const LR_PROJID: u32 = 0x40000;

/// Applies the flags of a record.
fn flags_after(flags: u64, attr: &LrAttr) -> u64 {
    LR_TO_PFLAGS
        .iter()
        .filter(|(bit, _)| attr.named & bit != 0)
        .fold(flags, |f, (bit, flag)| if attr.set & u64::from(*bit) != 0 { f | flag } else { f & !flag })
}

/// The record of a change of flags from `old` to `new`.
pub(crate) fn lr_attr_of(old: u64, new: u64) -> LrAttr {
    let mut out = LrAttr::default();
    for (bit, flag) in LR_TO_PFLAGS {
        if (old ^ new) & flag != 0 {
            out.named |= bit;
            out.set |= if new & flag != 0 { u64::from(bit) } else { 0 };
        }
    }
    out
}

/// The record of a project.
pub(crate) fn lr_attr_project(projid: u64) -> LrAttr {
    LrAttr { named: LR_PROJID, set: u64::from(LR_PROJID), projid, ..LrAttr::default() }
}

impl zil::replay::Replay for Zfs {
    fn apply<'a>(&'a self, record: &'a Record<'a>, op: &'a Op<'a>) -> LocalBoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.replaying.set(Some(record.seq));
            let done = self.redo(op, record.seq).await;
            self.replaying.set(None);
            self.replay_eof.set(None);
            done
        })
    }
}

impl Zfs {
    async fn redo(&self, op: &Op<'_>, seq: u64) -> Result<()> {
        match *op {
            Op::Create { make: Make::XattrDir, ref body, .. } => self.redo_xattr_dir(body).await,
            Op::Create { make, ref body, ref attr, ref acl, name, target } => {
                let kind = match make {
                    Make::Dir => FileKind::Dir,
                    Make::Symlink => FileKind::Symlink,
                    _ => kind_of(ObjectId(body.object), body.mode)?,
                };
                let target = (make == Make::Symlink).then_some(target);
                let mode = (body.mode & 0o7777) as u32;
                let new = New { kind, mode, rdev: body.rdev, target, exclusive: true, exact: Some(*body) };
                let completes = attr.is_none() && acl.is_none();
                self.replaying.set(if completes { Some(seq) } else { Some(seq - 1) });
                match self.make(ObjectId(body.dir), name, &Cred::default(), new).await {
                    // Created before a crash, without its attributes or ACL.
                    Err(e) if e.kind() == ErrorKind::Exists && !completes => {}
                    made => drop(made?),
                }
                self.replaying.set(Some(seq));
                if completes {
                    return Ok(());
                }
                let n = self.node(ObjectId(body.object)).await?;
                self.redo_extra(&n, attr.as_ref(), acl.as_ref()).await
            }
            Op::Remove { dir, name, is_dir } => {
                let dir = ObjectId(dir);
                if is_dir { self.rmdir(dir, name).await } else { self.unlink(dir, name).await }
            }
            Op::Link { dir, object, name } => self.link(ObjectId(object), ObjectId(dir), name).await.map(drop),
            Op::Rename { from, to, name, new_name } => {
                self.rename(ObjectId(from), name, ObjectId(to), new_name, RenameFlags::default()).await
            }
            Op::Exchange { from, to, name, new_name } => {
                let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
                self.rename(ObjectId(from), name, ObjectId(to), new_name, flags).await
            }
            Op::Whiteout { body, to, name, new_name } => {
                if kind_of(ObjectId(body.object), body.mode)? != FileKind::CharDev {
                    return Err(Error::corrupt(format!("a whiteout in an intent log has the mode {:o}", body.mode)));
                }
                let (from, to) = (ObjectId(body.dir), ObjectId(to));
                self.rename_as(from, name, to, new_name, RenameFlags::default(), Some(Whiteout::Exact(body))).await
            }
            Op::SetSaXattr { object, name, value } => {
                let n = self.node(ObjectId(object)).await?;
                self.redo_sa_xattr(&n, name, value).await
            }
            Op::Write { object, offset, length, data } => {
                let obj = ObjectId(object);
                match data {
                    WriteData::Here(d) => self.redo_write(obj, offset, Bytes::copy_from(d)).await,
                    WriteData::Block(bp) => self.redo_block(obj, offset, length, &bp).await,
                }
            }
            Op::CloneRange { object, offset, length, block_size, blocks } => {
                self.redo_clone(ObjectId(object), (offset, length), block_size, blocks).await
            }
            Op::Write2 { object, offset, length } => {
                let end = end_of(offset, length)?;
                let n = self.node(ObjectId(object)).await?;
                if end > self.attrs(&n).await?.size {
                    self.truncate(n.obj(), end).await
                } else {
                    self.mark_replayed().await
                }
            }
            Op::Truncate { object, offset, length } => self.redo_truncate(ObjectId(object), offset, length).await,
            Op::Setattr { object, ref set, ref attr } => {
                self.redo_setattr(ObjectId(object), set, attr.as_ref(), seq).await
            }
            Op::Acl { old: true, .. } => {
                Err(Error::unsupported("the intent log sets an access control list in the form from before version 3"))
            }
            Op::Acl { object, ref acl, .. } => {
                let n = self.node(ObjectId(object)).await?;
                self.redo_extra(&n, None, Some(acl)).await
            }
        }
    }

    /// Marks the record as replayed, in a transaction of its own.
    async fn mark_replayed(&self) -> Result<()> {
        let tx = self.plan().assign().await?;
        self.finish(tx);
        Ok(())
    }

    /// Sets or, without a value, removes an extended attribute in the system attributes.
    async fn redo_sa_xattr(&self, n: &Node, name: &[u8], value: &[u8]) -> Result<()> {
        let too_big = |what: String| Error::new(ErrorKind::TooBig, format!("intent log: {what}"));
        if value.len() > SA_VALUE_MAX {
            return Err(too_big(format!("an extended attribute of {} bytes", value.len())));
        }
        let text = std::str::from_utf8(name)
            .map_err(|_| Error::corrupt("the name of an extended attribute in an intent log is not UTF-8"))?;
        let mut list = self.sa_list(n).await?;
        if value.is_empty() {
            if value_of(&list, name).is_none() {
                return self.mark_replayed().await;
            }
            list.remove(text);
        } else {
            list.put(text, NvValue::ByteArray(value.to_vec()));
        }
        if self.store_sa_list(n, &list, None, None).await? {
            return Ok(());
        }
        Err(too_big(format!("extended attributes of object {} do not fit into its attributes", n.obj())))
    }

    async fn redo_xattr_dir(&self, body: &Create) -> Result<()> {
        let n = self.node(ObjectId(body.dir)).await?;
        let a = self.live_attrs(&n).await?;
        let tx = self.plan_layout().create(1).bonus(&n.dn).spill(&n.dn).assign().await?;
        let spec = exact_file_spec(ObjectType::DIRECTORY, body.slots);
        let dn = zap::create_at(&self.os, ObjectId(body.object), spec, self.normflags, &tx).await?;
        let mut x = self.xattr_node_attrs(&a, DIR_MODE, n.obj(), 2, 2);
        (x.uid, x.gid, x.generation) = (body.uid, body.gid, body.generation);
        if body.mode != 0 {
            x.mode = body.mode;
        }
        for t in [&mut x.atime, &mut x.mtime, &mut x.ctime, &mut x.crtime] {
            *t = body.crtime;
        }
        self.init_attrs(&dn, &mut x, false, None, &tx).await?;
        self.change_attrs(&n, &tx, |a| a.xattr = body.object).await?;
        self.finish(tx);
        Ok(())
    }

    /// Writes all of `data`; a partial write is an error.
    async fn redo_write(&self, obj: ObjectId, offset: u64, data: Bytes) -> Result<()> {
        let len = data.len() as u64;
        let (done, _) = self.write(obj, offset, vec![data], false).await?;
        if done == len || len == 0 {
            return if len == 0 { self.mark_replayed().await } else { Ok(()) };
        }
        Err(Error::new(ErrorKind::NoSpace, format!("only {done} of {len} bytes of file {obj} could be written again")))
    }

    /// A write whose data are in a block of their own (WR_INDIRECT): writes the whole block at its
    /// place, but the file ends where the write did.
    async fn redo_block(&self, obj: ObjectId, offset: u64, length: u64, bp: &Blkptr) -> Result<()> {
        let end = end_of(offset, length)?;
        self.node(obj).await?;
        if bp.is_hole() && bp.lsize() == 0 {
            let len = usize::try_from(length).ok().filter(|&n| n as u64 <= base::MAX_BLOCK);
            let len = len.ok_or_else(|| Error::corrupt(format!("intent log: a write of {length} bytes of zeros")))?;
            return self.redo_write(obj, offset, Bytes::zeroed(len)).await;
        }
        let lsize = bp.lsize();
        let base = if length < lsize { offset - offset % lsize } else { offset };
        let ctx = self.os.ctx();
        let data = ctx.zio().read_with(bp, ctx.key().map(|k| &**k), Prio::SyncRead).await?;
        self.replay_eof.set(Some(end));
        self.redo_write(obj, base, data).await
    }

    /// Clones blocks again. The claim of the log holds a reference to each of them.
    async fn redo_clone(
        &self,
        obj: ObjectId,
        (offset, length): (u64, u64),
        blksz: u64,
        blocks: ClonedBlocks<'_>,
    ) -> Result<()> {
        let bad = |why: String| Error::corrupt(format!("intent log: clones of {why}"));
        let end = end_of(offset, length)?;
        let count = blocks.len() as u64;
        let fits = blksz > 0 && blksz <= base::MAX_BLOCK && blksz.is_multiple_of(512) && offset.is_multiple_of(blksz);
        if !fits || count > PIECE_BLOCKS || length.div_ceil(blksz) != count || end > FILE_SIZE_MAX {
            return Err(bad(format!("{count} blocks of {blksz} bytes for {length} bytes at {offset}")));
        }
        let n = self.node(obj).await?;
        let _data = n.st.data.write(0, u64::MAX).await;
        let a = self.attrs(&n).await?;
        self.check_file(&n, &a)?;
        let own = u64::from(n.dn.block_size());
        if own > blksz || own < blksz && n.dn.max_blkid() > 0 {
            return Err(bad(format!("blocks of {blksz} bytes in a file with blocks of {own}")));
        }
        if length == 0 {
            return self.mark_replayed().await;
        }
        let blocks: Vec<Blkptr> = blocks.iter().collect();
        self.put_clones(&n, &a, (offset, length), blksz, &blocks, Told::Change).await.map(drop)
    }

    async fn redo_truncate(&self, obj: ObjectId, offset: u64, length: u64) -> Result<()> {
        let end = end_of(offset, length)?;
        let n = self.node(obj).await?;
        let size = self.attrs(&n).await?.size;
        if offset > size {
            return self.truncate(obj, end).await;
        }
        if length == 0 {
            return self.truncate(obj, offset).await;
        }
        let seq = self.replaying.get();
        // Mark as the record before, since the record is not complete; replaying it twice is
        // harmless.
        self.replaying.set(seq.map(|s| s - 1));
        let punched = self.fallocate(obj, Fallocate::PunchHole, offset, length).await;
        self.replaying.set(seq);
        punched?;
        if end > size { self.truncate(obj, end).await } else { self.mark_replayed().await }
    }

    async fn redo_setattr(&self, obj: ObjectId, set: &LrSetattr, attr: Option<&LrAttr>, seq: u64) -> Result<()> {
        let n = self.node(obj).await?;
        let a = self.attrs(&n).await?;
        let has = |bit: u64| set.mask & bit != 0;
        let time =
            |t: [u64; 2]| Some(SetTime::At(WallTime { secs: t[0] as i64, nanos: (t[1] % 1_000_000_000) as u32 }));
        let id = |v: u64| u32::try_from(v).map_err(|_| Error::unsupported("an owner of a foreign domain"));
        let others = SetAttr {
            mode: has(setattr::MODE).then_some((set.mode & 0o7777) as u32),
            uid: if has(setattr::UID) { Some(id(set.uid)?) } else { None },
            gid: if has(setattr::GID) { Some(id(set.gid)?) } else { None },
            size: None,
            atime: if has(setattr::ATIME) { time(set.atime) } else { None },
            mtime: if has(setattr::MTIME) { time(set.mtime) } else { None },
        };
        self.replaying.set(Some(seq - 1));
        if has(setattr::SIZE) {
            self.truncate(obj, set.size).await?;
        }
        if let Some(attr) = attr {
            self.redo_extra(&n, Some(attr), None).await?;
        }
        self.replaying.set(Some(seq));
        self.set_other_attrs(&n, kind_of(obj, a.mode)?, others).await
    }

    /// Applies the flags, creation time, project and ACL of a record.
    async fn redo_extra(&self, n: &Node, attr: Option<&LrAttr>, acl: Option<&LrAcl<'_>>) -> Result<()> {
        let tx = self.plan_layout().bonus(&n.dn).spill(&n.dn).assign().await?;
        let sa = SaHandle::open(&n.dn, self.sa.get())?;
        let lock = n.st.attrs.lock().await;
        let mut a = sa.attrs().await?;
        let mut projid = None;
        if let Some(attr) = attr {
            a.flags = flags_after(a.flags, attr);
            if attr.named & LR_CREATETIME != 0 {
                a.crtime = attr.crtime;
            }
            if attr.named & LR_PROJID != 0 && self.projects.get() {
                a.projid = attr.projid;
                a.flags |= pflags::PROJID;
                projid = Some(attr.projid.to_le_bytes());
            }
        }
        let mut more: Vec<(SaAttr, Option<&[u8]>)> = Vec::new();
        if let Some(p) = &projid {
            more.push((SaAttr::Projid, Some(&p[..])));
        }
        if let Some(acl) = acl {
            a.dacl_count = acl.count;
            a.flags &= !pflags::ACL_TRIVIAL;
            more.push((SaAttr::DaclAces, Some(acl.bytes)));
        }
        a.ctime = self.now();
        if more.is_empty() {
            sa.set_attrs(&a, &tx).await?;
        } else {
            sa.update(Some(&a), &more, &tx).await?;
        }
        drop(lock);
        self.finish(tx);
        Ok(())
    }
}

fn end_of(offset: u64, length: u64) -> Result<u64> {
    offset.checked_add(length).ok_or_else(|| Error::corrupt("an intent log record ends beyond the largest offset"))
}
