//! `zpool add`: more top-level vdevs, spares and caches. [`crate::devices`] has the path of a
//! change.

use std::rc::Rc;

use base::{Error, ErrorKind, Result};
use dmu::Tx;
use metaslab::{MsSummary, RangeTree};
use ondisk::feature::FeatureId;
use ondisk::vdev_config::VdevConfig;
use vdev::labels::init_labels;
use vdev::{Top, VdevTree};

use super::Devices;
use crate::commit::config::Config;
use crate::commit::store::Geometry;
use crate::devices::aux::AuxDevices;
use crate::devices::layout::{Layout, make_top};
use crate::devices::objects::{create_top_objects, zap_map};
use crate::stack::{METASLABS_MAX, class_named};

impl Devices {
    /// Adds devices: top-level vdevs of any layout, hot spares, caches. `ashift` is for new
    /// top-level vdevs; by default their devices determine it.
    pub async fn add(&self, layout: Layout, ashift: Option<u8>) -> Result<()> {
        let _admin = self.begin_change().await?;
        self.check_addition(&layout)?;
        let maker = self.leaf_maker()?;
        let mut ids = free_ids(&self.stack.tree);
        let mut tops = Vec::new();
        for group in &layout.groups {
            let id = ids.next().expect("there is always one more");
            let top = make_top(&maker, id, group, ashift)?;
            top.update_config(|c| c.alloc_bias = group.bias.word().map(str::to_string));
            top.set_undeflated(self.stack.tree.is_undeflated());
            if top.ms_count() == 0 || top.ms_count() > METASLABS_MAX {
                return Err(Error::invalid(format!("the new vdev would have {} metaslabs", top.ms_count())));
            }
            if !RangeTree::can_cover(1 << top.ms_shift.get(), top.ashift) {
                return Err(Error::invalid("the new vdev is too large"));
            }
            let evacuated = self.evacuator.vdev().and_then(|id| self.stack.tree.top(id).ok());
            if evacuated.is_some_and(|e| e.ashift != top.ashift) {
                let why = "a device of the pool is being removed: until then only vdevs of its sector size are added";
                return Err(Error::invalid(why));
            }
            tops.push(top);
        }
        let aux = AuxDevices::of_new(&self.stack.rt, &layout, &tops);
        label_new_tops(&self.config, &tops).await?;
        aux.write_labels(&layout, self.config.version()).await?;
        let counts: Vec<(FeatureId, i64)> =
            layout.features().into_iter().map(|id| (id, layout.feature_count(id))).collect();
        let added = self
            .changes
            .make(move |devices, tx| {
                Box::pin(async move {
                    // The ids are still free: there is one administrative change at a time.
                    for top in &tops {
                        devices.insert_top(top, tx).await?;
                    }
                    for (id, count) in counts {
                        devices.stack.features.add(id, count, tx).await?;
                    }
                    if !aux.spares.is_empty() || !aux.caches.is_empty() {
                        let mut all = devices.aux.get();
                        all.spares.extend(aux.spares);
                        all.caches.extend(aux.caches);
                        devices.aux.change(&devices.stack, all, tx).await?;
                    }
                    Ok(Ok(()))
                })
            })
            .await;
        self.use_caches();
        added
    }

    /// Refuses a layout that cannot be added to this pool.
    fn check_addition(&self, layout: &Layout) -> Result<()> {
        layout.check_devices()?;
        if layout.check_version(self.config.version()).is_err() {
            return Err(Error::unsupported("pool must be upgraded to add these vdevs"));
        }
        for id in layout.features() {
            if !self.stack.features.is_enabled(id) {
                let name = id.get().name;
                let why = format!(
                    "the pool's feature '{name}' is not enabled: 'zpool set feature@{name}=enabled' enables it"
                );
                return Err(Error::unsupported(why));
            }
        }
        let tops = self.stack.tree.tops.borrow();
        let removed = self.evacuator.is_busy() || tops.iter().any(|t| t.is_indirect());
        let parity = |g: &crate::Group| matches!(g.kind, crate::GroupKind::Raidz(_) | crate::GroupKind::Draid { .. });
        if removed && layout.groups.iter().any(parity) {
            return Err(Error::invalid("pools with removed devices cannot have a raidz or draid added"));
        }
        Ok(())
    }

    /// Puts a new top-level vdev into the tree and its space into the allocator.
    async fn insert_top(&self, top: &Rc<Top>, tx: &Tx) -> Result<()> {
        fn born(c: &mut VdevConfig, txg: base::Txg) {
            c.create_txg = Some(txg);
            c.children.iter_mut().for_each(|c| born(c, txg));
        }
        top.update_config(|c| born(c, tx.txg()));
        let bias = top.config_ref().alloc_bias.clone();
        let map = zap_map(&self.stack).await?;
        if map.is_none() && bias.is_some() && !top.is_log {
            return Err(Error::new(ErrorKind::Unsupported, "the pool has no ZAPs to keep an allocation class in"));
        }
        create_top_objects(&self.stack.mos, map.as_ref(), top, tx).await?;
        let geometry = Geometry { ms_shift: top.ms_shift.get(), ashift: top.ashift, unit: top.alloc_unit() };
        self.stack.store.set_geometry(top.id, geometry);
        {
            let mut tops = self.stack.tree.tops.borrow_mut();
            let at = top.id.0 as usize;
            if at < tops.len() {
                tops[at] = top.clone();
            } else {
                assert_eq!(at, tops.len(), "new vdevs come after the others");
                tops.push(top.clone());
            }
        }
        let summaries = vec![MsSummary::default(); top.ms_count() as usize];
        self.stack.alloc.add_top(top.clone(), class_named(bias.as_deref(), top.is_log), summaries)?;
        self.config.mark_dirty();
        Ok(())
    }
}

/// Ids for new top-level vdevs: those of holes, then new ones.
fn free_ids(tree: &VdevTree) -> impl Iterator<Item = u32> + use<> {
    let tops = tree.tops.borrow();
    let holes: Vec<u32> = tops.iter().filter(|t| t.is_hole()).map(|t| t.id.0).collect();
    holes.into_iter().chain(tops.len() as u32..)
}

/// Writes labels with txg 0 and empty uberblock rings to the devices of new vdevs.
async fn label_new_tops(config: &Config, tops: &[Rc<Top>]) -> Result<()> {
    let mut config = config.at(base::Txg(0));
    for top in tops {
        let at = top.id.0 as usize;
        let children = &mut config.vdev_tree.children;
        if at < children.len() {
            children[at] = top.config();
        } else {
            children.push(top.config());
        }
    }
    config.vdev_children = Some(config.vdev_tree.children.len() as u64);
    for top in tops {
        for leaf in top.leaves() {
            let label = config.label_for(top.id.0 as usize, leaf.guid()).expect("the configuration has it");
            init_labels(&*leaf.dev, &label.to_nvlist()).await?;
        }
    }
    Ok(())
}
