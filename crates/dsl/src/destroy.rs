//! Destroying a file system: its blocks are freed in the txg that removes it (format page 05 section 8).
//!
//! The tree is walked twice: first to see that every indirect block and dnode can be read, so that a damaged dataset is refused before
//! anything changed; then to free.

use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result, Txg};
use dmu::{BlockAccounting, Tx, zap};
use ondisk::blkptr::Blkptr;
use ondisk::dnode::{DNODE_SIZE, DnodePhys};
use ondisk::dsl::DslDatasetPhys;
use ondisk::feature::FeatureId;
use ondisk::object_type::ObjectType;
use ondisk::objset::ObjsetPhys;
use rt::join::join_all;
use zio::Prio;

use crate::dataset::Dataset;
use crate::pool::DslPool;
use crate::space::SpaceCheck;

/// Blocks read at once while walking.
const WALK_READS_MAX: usize = 32;

impl DslPool {
    /// Destroys a file system without children, snapshots or users.
    pub async fn destroy_fs(self: &Rc<Self>, name: &str) -> Result<()> {
        let name = name.to_string();
        self.sync_task(move |pool, tx| {
            Box::pin(async move {
                let ds = pool.find(&name)?;
                pool.check_destroy(&ds).await?;
                pool.walk(&ds, &mut |_| {}).await.map_err(|e| e.at(format!("dataset '{name}' cannot be destroyed")))?;
                pool.remove_head(&ds, &tx).await
            })
        })
        .await
    }

    async fn check_destroy(&self, ds: &Rc<Dataset>) -> Result<()> {
        let (name, dir) = (ds.name(), ds.dir());
        if dir.parent().is_none() {
            return Err(Error::invalid(format!("'{name}' is a pool: use 'zpool destroy {name}'")));
        }
        if ds.is_used() {
            return Err(Error::new(ErrorKind::Busy, format!("dataset '{name}' is in use: unmount it first")));
        }
        if let Some(child) = dir.children().first() {
            let why = format!(
                "dataset '{name}' has children such as '{}': use -r to destroy them as well",
                child.full_name()
            );
            return Err(Error::new(ErrorKind::NotEmpty, why));
        }
        if !self.snapshots(ds).await?.is_empty() || ds.phys().prev_snap_obj != self.origin_snap().0 {
            return Err(Error::unsupported(format!(
                "dataset '{name}' has or comes from snapshots, which weir cannot destroy yet"
            )));
        }
        self.check_space(SpaceCheck::ExtraReserved, 0)
    }

    /// Calls `each` with every block of the dataset that it does not share with its origin.
    async fn walk(&self, ds: &Dataset, each: &mut dyn FnMut(&Blkptr)) -> Result<()> {
        let zio = &self.core().zio;
        let floor = Txg(ds.phys().prev_snap_txg);
        let mut todo = vec![ds.phys().bp];
        while !todo.is_empty() {
            let batch = todo.split_off(todo.len().saturating_sub(WALK_READS_MAX));
            let mut inner = Vec::new();
            for bp in batch.into_iter().filter(|bp| !bp.is_hole() && bp.birth() > floor) {
                each(&bp);
                if bp.level() > 0 || bp.otype() == ObjectType::DNODE || bp.otype() == ObjectType::OBJSET {
                    inner.push(bp);
                }
            }
            let blocks = join_all(inner.iter().map(|bp| zio.read(bp, Prio::SyncRead)).collect()).await;
            for (bp, block) in inner.iter().zip(blocks) {
                let block = block?;
                if bp.level() > 0 {
                    todo.extend(Blkptr::iter_block(&block));
                } else if bp.otype() == ObjectType::OBJSET {
                    let os = ObjsetPhys::parse(&block)?;
                    push_dnode(&os.meta_dnode, &mut todo);
                    for dn in [&os.userused, &os.groupused, &os.projectused].into_iter().flatten() {
                        push_dnode(dn, &mut todo);
                    }
                } else {
                    let mut slot = 0;
                    while slot < block.len() / DNODE_SIZE {
                        let dn = DnodePhys::parse_slot(&block, slot)?;
                        slot += dn.as_ref().map_or(1, DnodePhys::num_slots);
                        if let Some(dn) = dn {
                            push_dnode(&dn, &mut todo);
                        }
                    }
                }
            }
            self.ctx().rt().yield_now().await;
        }
        Ok(())
    }

    async fn remove_head(self: &Rc<Self>, ds: &Rc<Dataset>, tx: &Tx) -> Result<()> {
        let mos = self.mos();
        let account = ds.account().clone();
        self.walk(ds, &mut |bp| account.kill(bp, tx.txg())).await?;
        let (phys, dir) = (ds.phys(), ds.dir().clone());
        assert_eq!(phys.referenced_bytes, 0, "a destroyed dataset references nothing");
        let origin_dn = mos.hold(ObjectId(phys.prev_snap_obj)).await?;
        let mut origin = origin_dn.with_bonus(DslDatasetPhys::parse)?;
        origin.num_children -= 1;
        origin_dn.set_bonus(&origin.to_bytes(), tx)?;
        zap::remove_int(&mos.hold(ObjectId(origin.next_clones_obj)).await?, ds.object.0, tx).await?;
        let origin_dir =
            self.root().child("$ORIGIN").ok_or_else(|| Error::corrupt("the pool has no directory $ORIGIN"))?;
        zap::remove_int(&mos.hold(ObjectId(origin_dir.phys().clones)).await?, ds.object.0, tx).await?;
        let deadlist = mos.hold(ObjectId(phys.deadlist_obj)).await?;
        for entry in zap::list(&deadlist).await? {
            self.drop_empty_list(ObjectId(entry.value.as_u64().unwrap_or(0)), tx).await?;
        }
        mos.free(ObjectId(phys.deadlist_obj), tx).await?;
        mos.free(ObjectId(phys.snapnames_zapobj), tx).await?;
        for guid in ds.features() {
            if let Some(id) = FeatureId::by_guid(&guid) {
                self.features().add(id, -1, tx).await?;
            }
        }
        for object in [ds.object, dir.object] {
            if mos.hold(object).await?.otype() == ObjectType::OTN_ZAP_METADATA {
                self.features().add(FeatureId::ExtensibleDataset, -1, tx).await?;
            }
            mos.free(object, tx).await?;
        }
        let dir_phys = dir.phys();
        let parent = dir.parent().expect("check_destroy refuses the root");
        if dir_phys.reserved != 0 {
            dir.set_reservation(0);
        }
        for object in [dir_phys.child_dir_zapobj, dir_phys.props_zapobj, dir_phys.clones, dir_phys.deleg_zapobj] {
            if object != 0 {
                mos.free(ObjectId(object), tx).await?;
            }
        }
        zap::remove(&mos.hold(ObjectId(parent.phys().child_dir_zapobj)).await?, dir.name().as_bytes(), tx).await?;
        ds.take_dirty();
        dir.take_dirty();
        self.drop_dataset(ds);
        ds.set_objset(None);
        dir.detach();
        Ok(())
    }
}

fn push_dnode(dn: &DnodePhys, todo: &mut Vec<Blkptr>) {
    todo.extend(dn.bps());
    todo.extend(dn.spill);
}
