//! `zpool attach POOL raidzP-ID DEVICE`: the expansion of a RAID-Z begins (format page 19 section
//! 5).
//!
//! The new device becomes the last child in the txg in which the expansion begins, so that a power
//! cut leaves a RAID-Z of n children, or one of n + 1 that is being expanded. It misses nothing:
//! nothing lies on it yet. [`super::reflow`] moves the sectors.

use std::rc::Rc;

use base::{Error, ErrorKind, Result};
use ondisk::feature::FeatureId;
use vdev::labels::init_labels;
use vdev::reflow::{boot_program, scratch_bytes};
use vdev::reshape::{Shape, begin_expansion};
use vdev::{Raidz, Top, VdevKind};

use super::Devices;
use super::attach::{check_device, preview_of};
use super::objects::{create_vdev_zap, zap_map};
use super::raidz_expand::record_begin;
use crate::devices::layout::{DevSpec, leaf_config};

fn busy(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Busy, why.into())
}

/// The RAID-Z of a vdev; an error if its expansion cannot begin.
fn expandable(devices: &Devices, top: &Top) -> Result<Rc<Raidz>> {
    let VdevKind::Raidz(raidz) = top.kind() else {
        return Err(Error::invalid("only a raidz can be expanded"));
    };
    if !devices.stack.features.is_enabled(FeatureId::RaidzExpansion) {
        return Err(Error::unsupported("raidz_expansion feature must be enabled in order to attach a device to raidz"));
    }
    if devices.stack.tree.tops.borrow().iter().any(|t| t.kind().reflow().is_some()) {
        return Err(busy("raidz expansion in progress"));
    }
    if devices.works.is_running_on(top) {
        return Err(busy("its devices are being trimmed or initialized: wait for the end, or suspend that with -s"));
    }
    let is_plain = |c: &VdevKind| matches!(c, VdevKind::Leaf(l) if l.condition.health().is_open());
    if !raidz.children.iter().all(is_plain) {
        let why = "a device of the raidz is not available, or being replaced: an expansion needs them all";
        return Err(Error::new(ErrorKind::Io, why));
    }
    let children = raidz.children.len() as u64 + 1;
    if children > 255 || children << top.ashift > scratch_bytes(top.ashift) {
        return Err(Error::unsupported(format!("a raidz cannot have {children} devices with ashift={}", top.ashift)));
    }
    if top.config_ref().zap_top.is_none_or(|o| o.0 == 0) {
        return Err(Error::unsupported("the pool is from before vdevs had properties, and cannot be expanded"));
    }
    Ok(raidz)
}

impl Devices {
    /// Adds a device to the RAID-Z `target`, and begins its expansion.
    pub(super) async fn expand_raidz(&self, target: &str, new: DevSpec, ashift: Option<u8>) -> Result<()> {
        self.checkpoint.check_none()?;
        let (top, guid) = self.find(target)?;
        let raidz = expandable(self, &top)?;
        if let Some(leaf) = boot_program(&raidz, top.ashift).await? {
            return Err(busy(format!(
                "the reserved boot area needed for the expansion is already being used by a boot loader, on {}",
                leaf.dev.info().path
            )));
        }
        let first = raidz.children.first().and_then(VdevKind::guid).unwrap_or(guid);
        drop(raidz);
        check_device(&top, &top.kind(), first, &new, ashift)?;
        let mut config = leaf_config(&self.stack.rt, &new, 0);
        let shape = begin_expansion(&top.shape(), preview_of(&config))?;
        let label = self.config.label_in(&top, &shape.config, config.guid)?;
        drop(shape);
        init_labels(&*new.dev, &label).await?;
        let (maker, id) = (self.leaf_maker()?, top.id);
        drop(top);
        self.changes
            .make(move |devices, tx| {
                Box::pin(async move {
                    let top = devices.stack.tree.top(id)?;
                    if let Err(e) = expandable(devices, &top) {
                        return Ok(Err(e));
                    }
                    if let Some(map) = zap_map(&devices.stack).await? {
                        config.zap_leaf = Some(create_vdev_zap(&devices.stack.mos, &map, tx).await?.object());
                    }
                    config.create_txg = top.config_ref().create_txg;
                    let (path, new_guid) = (new.dev.info().path.clone(), config.guid);
                    devices.stack.features.add(FeatureId::RaidzExpansion, 1, tx).await?;
                    let now = devices.stack.rt.wall_clock().secs.max(0) as u64;
                    record_begin(&devices.stack, &top, now, tx).await?;
                    // No awaits from here on: another device may come back at any moment, so the
                    // change applies to the current tree.
                    let leaf = maker.leaf(new_guid, path.clone(), new.dev.clone(), Rc::default());
                    let before = match top.kind() {
                        VdevKind::Raidz(r) => Rc::downgrade(&r.expansions.era),
                        _ => Default::default(),
                    };
                    let shape = begin_expansion(&top.shape(), Shape { kind: VdevKind::Leaf(leaf), config })?;
                    let children = shape.kind.children().len();
                    top.set_shape(shape);
                    devices.expander.begin(&top, before);
                    let log = |what: &'static str, text: String| devices.stack.core.log_internal(what, text, tx.txg());
                    log("vdev attach", format!("attach vdev={path} to vdev={}", top.id));
                    let pool = devices.config.name();
                    log("raidz vdev expansion started", format!("{pool} vdev {} new width {children}", top.id));
                    devices.events.post_vdev("vdev_attach", new_guid);
                    devices.config.mark_dirty();
                    Ok(Ok(()))
                })
            })
            .await?;
        self.expander.run();
        Ok(())
    }
}
