//! Writing an object set: every dirty object in order, then space by owner, then the dnodes, then
//! the object set's block.
//!
//! Order of one call: the tree of each dirty object (`sync_dnode`), whose new dnode goes into a
//! dirty block of the meta-dnode; the accounting objects, with the sums of the objects' changes
//! (`userused`); the meta-dnode's own tree; the block itself. The sync does not wait for device
//! writes: all pointers are final when their blocks are issued, and the caller waits for
//! [`SyncedRoot::done`] before it commits the txg.
//!
//! May be called again in a later pass of the same txg. Then blocks born in this txg are
//! overwritten in place where they fit.

use std::rc::Rc;

use base::{ObjectId, Result, SYNC_PASS_REWRITE, Txg};
use bdev::Buf;
use ondisk::blkptr::Blkptr;
use ondisk::dnode::{DNODE_SIZE, DNODE_USEROBJUSED_ACCOUNTED, DNODE_USERUSED_ACCOUNTED, DNODES_PER_BLOCK};
use ondisk::object_type::ObjectType;
use ondisk::objset::{
    OBJSET_PROJECTQUOTA_COMPLETE, OBJSET_SIZE_V3, OBJSET_USERACCOUNTING_COMPLETE, OBJSET_USEROBJACCOUNTING_COMPLETE,
    ObjsetType,
};
use ondisk::version;
use ondisk::zil::ZilHeader;
use zio::WriteDone;

use crate::dnode::{Dnode, DnodeInner};
use crate::objset::{Objset, ObjsetInner};
use crate::policy::BlockKind;
use crate::sync_block::SyncCx;
use crate::sync_dnode::Synced;
use crate::tx::Tx;
use crate::userused::Deltas;

/// A synced object set.
#[derive(Debug)]
pub struct SyncedRoot {
    /// Its new block.
    pub bp: Blkptr,
    /// Writes in flight; the caller waits for them before it commits the txg.
    pub done: Vec<WriteDone>,
}

/// Marks the object set as syncing; dropping it removes the mark, also after an error.
struct Syncing<'a>(&'a ObjsetInner);

impl Drop for Syncing<'_> {
    fn drop(&mut self) {
        self.0.sync_task.set(None);
        self.0.synced.notify_all();
    }
}

impl Objset {
    /// Writes all changes of `txg`; `None` if there are none. `pass` counts the sync passes of the
    /// txg from 1.
    pub async fn sync(&self, txg: Txg, pass: u32) -> Result<Option<SyncedRoot>> {
        if !self.is_dirty(txg) {
            return Ok(None);
        }
        assert!(
            !self.0.sealed || self.is_raw() || self.0.dirty[txg.slot()].borrow().is_empty(),
            "object set {} is opened without its key",
            self.0.id
        );
        assert!(self.0.sync_task.get().is_none(), "object set {} is synced twice at once", self.0.id);
        self.0.sync_task.set(Some(self.0.ctx.rt().current_task()));
        self.0.sync_in_place.set(pass >= SYNC_PASS_REWRITE);
        let _syncing = Syncing(&self.0);
        let cx = SyncCx::new(self, txg, pass);
        let slot = txg.slot();
        let mut change = self.0.header[slot].take().unwrap_or_default();
        let log = self.0.log.borrow().as_ref().and_then(std::rc::Weak::upgrade);
        if let Some(log) = log.filter(|_| pass == 1)
            && let Some(header) = log.sync(txg)?
        {
            change.zil = Some(header);
        }
        if let Some(header) = change.zil {
            self.note_log(&header, txg);
        }
        let needs = self.0.needs[slot].take();
        if let Some(feat) = &self.0.feat {
            needs.into_iter().for_each(|guid| feat.activate(guid, txg));
        }
        let flags = change.flags.unwrap_or(self.0.phys.borrow().flags);
        // In an upgraded pool there is room for the space of owners from now on.
        if self.0.ctx.features().pool_version >= version::USERSPACE {
            let mut phys = self.0.phys.borrow_mut();
            if !phys.has_user_accounting() {
                phys.size = OBJSET_SIZE_V3;
            }
        }
        let (counting, counted_upto) = self.counting_in(txg, flags, change.counted_upto);
        let kinds = flags | counting;
        if kinds & OBJSET_PROJECTQUOTA_COMPLETE != 0 {
            self.0.phys.borrow_mut().size = OBJSET_SIZE_V3;
        }
        if change.recount != 0 {
            self.drop_sums(change.recount, txg).await?;
        }
        let accounts = self.os_type() == ObjsetType::Zfs && self.0.phys.borrow().has_user_accounting();
        let mut dn_flags = 0;
        if accounts && kinds & OBJSET_USERACCOUNTING_COMPLETE != 0 {
            dn_flags |= DNODE_USERUSED_ACCOUNTED;
        }
        if accounts && kinds & OBJSET_USEROBJACCOUNTING_COMPLETE != 0 {
            dn_flags |= DNODE_USEROBJUSED_ACCOUNTED;
        }

        let mut deltas = Deltas::new(flags, counting, counted_upto);
        while let Some(n) = self.next_dirty_object(slot) {
            let dn = Dnode { os: self.0.clone(), n };
            cx.spend(rt::cost::DMU_OBJECT).await;
            let old_ids = if dn_flags != 0 { deltas.owners_before(&dn).await? } else { None };
            let synced = cx.sync_dnode(&dn, dn_flags).await?;
            if dn_flags != 0 {
                deltas.note(&dn, &synced, old_ids).await?;
            }
            self.store_dnode(&dn, &synced, txg).await?;
            self.0.dirty[slot].borrow_mut().remove(&dn.n.obj.0);
        }
        deltas.apply(self, txg).await?;
        self.note_counted(counted_upto, flags);
        for obj in [ObjectId::USERUSED, ObjectId::GROUPUSED, ObjectId::PROJECTUSED] {
            let dirty = self.0.dirty[slot].borrow_mut().remove(&obj.0);
            if let Some(n) = dirty {
                cx.sync_dnode(&Dnode { os: self.0.clone(), n }, 0).await?;
            }
        }
        let dirty = self.0.dirty[slot].borrow_mut().remove(&0);
        if dirty.is_some() {
            cx.sync_dnode(&self.meta(), 0).await?;
        }
        assert!(
            self.0.dirty[slot].borrow().is_empty(),
            "object set {} was changed in txg {txg} while it was synced",
            self.0.id
        );

        // The block itself.
        let (block, fill) = {
            let mut phys = self.0.phys.borrow_mut();
            phys.flags = flags;
            if let Some(zil) = change.zil {
                phys.zil_header = zil;
            }
            phys.meta_dnode = self.0.meta.st.borrow().phys.clone();
            let accounting = self.0.accounting.borrow();
            let dnode = |i: usize| {
                let st = accounting[i].as_ref()?.st.borrow();
                st.on_disk.then(|| st.phys.clone())
            };
            (phys.userused, phys.groupused, phys.projectused) = (dnode(0), dnode(1), dnode(2));
            let fill = phys.meta_dnode.fill();
            if let Some(key) = self.0.ctx.key() {
                (phys.portable_mac, phys.local_mac) = key.objset_macs(&phys);
            } else if let Some(raw) = &*self.0.raw.borrow() {
                (phys.portable_mac, phys.local_mac) = (raw.portable_mac.get(), [0; 32]);
            }
            (Buf::copy_from(&phys.to_bytes()).freeze(), fill)
        };
        let p = self.0.policy(BlockKind::new(ObjectType::OBJSET, 0), pass);
        let mut req = p.request(&self.0, block, (ObjectId(0), 0), txg);
        req.fill = fill;
        let bp = cx.put(req, None, &self.0.root.get(), true, 0).await?;
        self.0.root.set(bp);
        Ok(Some(SyncedRoot { bp, done: cx.done.take() }))
    }

    /// The header of the intent log changes in `txg`: a file system with a log has the feature of
    /// the records of OpenZFS 2.2, one without does not (format page 17 section 3).
    fn note_log(&self, header: &ZilHeader, txg: Txg) {
        const FEATURE: &str = "org.openzfs:zilsaxattr";
        let Some(feat) = self.0.feat.as_ref().filter(|_| self.os_type() == ObjsetType::Zfs) else { return };
        if header.log.is_hole() {
            feat.deactivate(FEATURE, txg);
            self.0.log_feature.set(None);
        } else if self.0.ctx.features().zilsaxattr {
            feat.activate(FEATURE, txg);
            if self.0.log_feature.get().is_none() {
                self.0.log_feature.set(Some(txg));
            }
        }
    }

    /// The first dirty object that lives in the meta-dnode.
    fn next_dirty_object(&self, slot: usize) -> Option<Rc<DnodeInner>> {
        let dirty = self.0.dirty[slot].borrow();
        dirty.range(1..ObjectId::PROJECTUSED.0).next().map(|(_, n)| n.clone())
    }

    /// Puts the dnode into its block, or clears its slots; a freed object leaves the cache.
    async fn store_dnode(&self, dn: &Dnode, synced: &Synced, txg: Txg) -> Result<()> {
        let obj = dn.n.obj.0;
        let (blkid, slot) = (obj / DNODES_PER_BLOCK as u64, (obj % DNODES_PER_BLOCK as u64) as usize);
        let from = slot * DNODE_SIZE;
        let tx = Tx::syncing(txg);
        match &synced.after {
            Some(phys) => {
                let to = from + phys.size();
                self.meta().modify(blkid, (from, to), &tx, |b| phys.write_to(&mut b[from..to])).await
            }
            None => {
                if let Some(before) = &synced.before {
                    let to = from + before.size();
                    self.meta().modify(blkid, (from, to), &tx, |b| b[from..to].fill(0)).await?;
                }
                let gone = {
                    let mut st = dn.n.st.borrow_mut();
                    st.on_disk = false;
                    st.dirty[txg.slot()].take()
                };
                drop(gone);
                dn.n.tree_gen.set(dn.n.tree_gen.get() + 1);
                dn.n.detach_all();
                let left = self.0.map.borrow_mut().remove(&obj);
                self.0.note_evicted(usize::from(left.is_some()));
                self.0.alloc.borrow_mut().freed += 1;
                Ok(())
            }
        }
    }
}
