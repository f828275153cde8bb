//! Writing one object: its block tree, bonus and spill block become a new dnode, which replaces the
//! committed one.
//!
//! Order of one call: a changed block size, the height of the tree, the tree itself (`sync_tree`),
//! blocks given up by early writes, bonus and spill block; then, without a wait, the new dnode
//! becomes the committed state and the txg's dirty state ends. A freed object only frees its
//! blocks.

use std::rc::Rc;

use base::{Nanos, Result};
use bdev::Bytes;
use ondisk::blkptr::{BLKPTR_SIZE, Blkptr};
use ondisk::dnode::DnodePhys;
use ondisk::version;
use rt::cost::{DMU_BLOCK, REAP};
use zio::Packed;

use crate::dirty::DirtyBlk;
use crate::dnode::{Dnode, Spill};
use crate::policy::BlockKind;
use crate::sync_block::SyncCx;
use crate::sync_tree::TreeSync;

/// Dirty blocks that are dropped at a time.
const DROPPED: usize = 64;

/// The dnode of a synced object before and after, for accounting by owner.
pub(crate) struct Synced {
    /// Before; `None` for a new object.
    pub before: Option<DnodePhys>,
    /// After; `None` for a freed object.
    pub after: Option<DnodePhys>,
}

impl SyncCx<'_> {
    /// Writes the txg's changes of the object, and makes them the committed state. `flags` are
    /// added to those of its dnode.
    pub async fn sync_dnode(&self, dn: &Dnode, flags: u8) -> Result<Synced> {
        let slot = self.txg.slot();
        let (mut phys, on_disk, mods, free, blksz, cap) = {
            let st = dn.n.st.borrow();
            let d = st.dirty[slot].as_deref().expect("only dirty objects are synced");
            assert!(d.txg == self.txg, "object {} is dirty in txg {}, not {}", dn.n.obj, d.txg, self.txg);
            (st.phys.clone(), st.on_disk, d.mods, d.free, d.blksz, d.cap)
        };
        let before = on_disk.then(|| phys.clone());
        let (otype, own) = {
            let st = dn.n.st.borrow();
            let d = st.dirty[slot].as_ref();
            (d.and_then(|d| d.otype).unwrap_or(phys.otype), d.and_then(|d| d.own))
        };
        if let Some(own) = own {
            (phys.compress, phys.checksum) = own;
        }
        let shape = dn.n.st.borrow().dirty[slot].as_ref().and_then(|d| d.shape.clone());
        let (otype, blksz) = match &shape {
            Some(shape) => {
                // The tree of before has its own size of indirect blocks, if it has any.
                shape.apply(&mut phys);
                (shape.otype, Some(shape.blksz))
            }
            None => (otype, blksz),
        };
        let mut t = TreeSync::new(self, dn, &phys, otype, blksz.unwrap_or(phys.datablksz()));

        if free {
            t.free_given_up()?;
            if on_disk {
                t.free_all(&phys).await?;
            }
            return Ok(Synced { before, after: None });
        }

        if let Some(size) = blksz.filter(|_| shape.is_none()) {
            self.keep_first_block(&t, dn, size, (&phys, on_disk)).await?;
            phys.set_datablksz(size);
        }
        phys.otype = otype;

        if let Some(cap) = cap {
            phys.maxblkid = phys.maxblkid.min(cap);
        }
        if let Some(last) = t.slot(|d| d.blocks.last()) {
            phys.maxblkid = phys.maxblkid.max(last);
        }
        t.grow(&mut phys, shape.as_ref().map_or(1, |s| s.levels));
        t.sync_all(&mut phys).await?;
        t.free_given_up()?;

        self.sync_bonus(&mut t, dn, &mut phys).await?;
        match self.os.0.ctx.features().pool_version < version::DNODE_BYTES {
            true => phys.set_used_sectors(t.used),
            false => phys.set_used_bytes(t.used),
        }
        phys.flags |= flags;
        drop(t);
        if phys.extra_slots > 0
            && let Some(feat) = &self.os.0.feat
        {
            feat.activate("org.zfsonlinux:large_dnode", self.txg);
        }
        self.replace_committed(dn, &phys, mods).await;
        Ok(Synced { before, after: Some(phys) })
    }

    /// The block size becomes `size`: block 0 keeps its content, as a dirty block of the new size.
    async fn keep_first_block(
        &self,
        t: &TreeSync<'_>,
        dn: &Dnode,
        size: u32,
        (phys, on_disk): (&DnodePhys, bool),
    ) -> Result<()> {
        let ctx = self.os.ctx();
        let (dirty, freed) = t.slot(|d| (d.blocks.contains(0), d.freed.contains(0)));
        if size != phys.datablksz() && !dirty && !freed && on_disk {
            let bp = dn.lookup(0).await?;
            if !bp.is_hole() {
                let old = ctx.read(&bp).await?;
                let (_, new) = dn.copy_of(old, size as usize).await;
                t.slot(|d| d.blocks.put(0, DirtyBlk::Mut(new)));
                if !dn.is_special() {
                    ctx.dirty_add(self.txg, u64::from(size));
                }
            }
        }
        Ok(())
    }

    /// Puts a changed bonus into `phys`, and writes or frees a changed spill block.
    async fn sync_bonus(&self, t: &mut TreeSync<'_>, dn: &Dnode, phys: &mut DnodePhys) -> Result<()> {
        let (bonus, spill, packed) = t.slot(|d| (d.bonus.clone(), d.spill.clone(), d.spill_packed.clone()));
        let mut spill_bp = phys.spill.take();
        if let Some((bonustype, bytes)) = bonus {
            phys.set_bonus(bonustype, &bytes);
        }
        match spill {
            Some(None) => {
                if let Some(bp) = spill_bp.take().filter(|bp| !bp.is_hole()) {
                    t.kill(&bp);
                }
            }
            Some(Some(content)) => {
                let old = spill_bp.unwrap_or(Blkptr::hole());
                let bp = self.write_spill(dn, phys, (content, packed), &old).await?;
                t.replace_used(&old, &bp);
                spill_bp = Some(bp);
            }
            None => {}
        }
        phys.spill = spill_bp;
        assert!(
            usize::from(phys.bonuslen) <= phys.bonus_capacity(),
            "object {}: bonus of {} bytes beside a spill pointer",
            dn.n.obj,
            phys.bonuslen
        );
        if let Some(bp) = phys.spill {
            // The area in memory is as a reader of the dnode finds it.
            let at = phys.bonus_area.len() - BLKPTR_SIZE;
            bp.write_to(&mut phys.bonus_area[at..]);
        } else if !self.os.is_raw() {
            let len = usize::from(phys.bonuslen);
            phys.bonus_area[len..].fill(0);
        }
        Ok(())
    }

    /// Writes `content` as the spill block, in place of `old`.
    async fn write_spill(
        &self,
        dn: &Dnode,
        phys: &DnodePhys,
        (content, packed): (Bytes, Option<Rc<Packed>>),
        old: &Blkptr,
    ) -> Result<Blkptr> {
        self.spend(DMU_BLOCK).await;
        let own = (phys.compress, phys.checksum);
        let kind = BlockKind { otype: phys.bonustype, level: 0, spill: true, own };
        let p = self.os.0.policy(kind, self.pass);
        let mut req = self.request(content, &p, (dn.n.obj, 0));
        req.packed = packed;
        self.put(req, None, old, true, 0).await
    }

    /// `phys` becomes the committed dnode, and the txg's dirty state ends. `mods` is the number of
    /// changes when the sync began.
    async fn replace_committed(&self, dn: &Dnode, phys: &DnodePhys, mods: u64) {
        let mut ended = {
            let mut st = dn.n.st.borrow_mut();
            let d = st.dirty[self.txg.slot()].take().expect("the txg's state stays until its sync is done");
            assert!(d.mods == mods, "object {} changed in txg {} while it was synced", dn.n.obj, self.txg);
            if d.spill.is_some() && st.dirty.iter().flatten().all(|d| d.spill.is_none()) {
                st.spill = if phys.spill.is_some() { Spill::Committed } else { Spill::None };
            }
            st.phys = phys.clone();
            st.on_disk = true;
            d
        };
        dn.n.tree_gen.set(dn.n.tree_gen.get() + 1);
        self.os.0.synced.notify_all();
        while ended.blocks.drop_some(DROPPED) {
            self.spend(Nanos(REAP.0 * DROPPED as u64)).await;
        }
    }
}
