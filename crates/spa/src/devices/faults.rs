//! Devices with errors: faulted or degraded, probed, removed, replaced by a hot spare.
//!
//! A leaf counts its errors; ten of a kind within ten minutes are too many, as for zed: failed
//! operations make it *faulted*, wrong contents *degraded*. A device without a replica is degraded
//! only, never faulted. After a failed operation the device is probed; one that cannot read its
//! labels is removed. A hot spare, if there is one, stands in for a device that is removed, faulted
//! or degraded, as zed has it. Without diagnosis (`fault_diagnosis`), as where zed does not run,
//! devices that do not answer are removed, and nothing else is done.

use base::{ErrorKind, Guid};
use ondisk::feature::FeatureId;
use rt::trace::FaultKind;
use vdev::{FaultCause, Health, MirrorRole, VdevKind, VdevTree};

use super::Devices;
use super::attach::NewDevice;
use super::find::in_tree;
use super::presence::REASON_BYTES;

impl Devices {
    /// `fault_diagnosis`.
    pub(crate) fn set_auto_ashift(&self, auto: super::layout::AutoAshift) {
        self.auto_ashift.set(auto);
    }
    pub(crate) fn set_diagnosis(&self, on: bool) {
        self.diagnoses.set(on);
    }

    /// Faults or degrades leaves with too many errors, at the beginning of the sync of a txg. True
    /// if a device was faulted or degraded.
    fn apply_error_limits(&self) -> bool {
        let mut lost = false;
        let tops = self.stack.tree.tops.borrow().clone();
        for top in tops {
            for leaf in top.open_leaves() {
                let Some(cause) = leaf.condition.take_fault().filter(|_| self.diagnoses.get()) else { continue };
                let guid = leaf.guid();
                let needed = !top.kind().outage(Some(guid)).is_empty();
                let health = match cause {
                    FaultCause::Io if !needed => Health::Faulted,
                    _ => Health::Degraded,
                };
                if leaf.condition.health() == health {
                    continue;
                }
                lost = true;
                self.is_back.borrow_mut().remove(&guid);
                if health == Health::Faulted {
                    self.change_health(&leaf.condition, health);
                } else {
                    leaf.condition.set_health(health);
                }
                top.update_config(|c| {
                    if let Some(c) = c.find_mut(guid) {
                        (c.faulted, c.degraded) = (health == Health::Faulted, health == Health::Degraded);
                        c.aux_state = Some("err_exceeded".into());
                    }
                });
                self.config.mark_dirty();
            }
        }
        lost
    }

    /// Acts on device errors, at the beginning of the sync of a txg. A task probes the devices.
    pub(super) fn check_errors(&self) {
        let lost = self.apply_error_limits();
        let suspects = take_suspects(&self.stack.tree);
        self.events.post_states();
        if !lost && !suspects {
            return;
        }
        let Some(me) = self.me.upgrade() else { return };
        self.stack.rt.spawn("device_watch", async move {
            if suspects {
                me.probe_devices().await;
            }
            if me.diagnoses.get() {
                me.activate_spares().await;
            }
        });
    }

    /// Probes the devices with errors: those that do not answer are removed.
    async fn probe_devices(&self) {
        let tops = self.stack.tree.tops.borrow().clone();
        for top in tops {
            for leaf in top.open_leaves() {
                if leaf.errors().read + leaf.errors().write == 0 {
                    continue;
                }
                let gone = !leaf.probe().await;
                if gone && top.kind().outage(Some(leaf.guid())).is_empty() {
                    leaf.trace_fault(FaultKind::Probe, 0, false, 0, 0);
                    if let Err(e) = bdev::read(&*leaf.dev, 0, REASON_BYTES).await {
                        self.events.note_reason(leaf.guid(), &e);
                    }
                    self.change_health(&leaf.condition, Health::Removed);
                    let guid = leaf.guid();
                    top.update_config(|c| {
                        if let Some(c) = c.find_mut(guid) {
                            c.removed = true;
                        }
                    });
                    self.config.mark_dirty();
                }
            }
        }
    }

    /// Attaches a hot spare for every device that has too many errors or is gone, and has none.
    pub(super) async fn activate_spares(&self) {
        for (target, path) in leaves_without_spare(&self.stack.tree) {
            // In the order of the list, as zed has it: the distributed spares are at its end.
            let aux = self.aux.get();
            for spare in aux.spares.iter().filter(|s| !in_tree(&self.stack.tree, s.guid)) {
                let name = spare.guid.0.to_string();
                // A distributed spare is filled fastest in the order of the space, as zed has it.
                let enabled = self.stack.features.is_enabled(FeatureId::DeviceRebuild);
                let sequential = spare.dspare_id.is_some() && enabled && !self.scan.is_resilvering();
                match self.replace(&target.0.to_string(), NewDevice::Spare(name), None, sequential).await {
                    Ok(()) => {
                        self.events.post_vdev("vdev_spare", spare.guid);
                        let spare = spare.path.clone().unwrap_or_default();
                        self.notices.push(format!("the hot spare '{spare}' stands in for '{path}'"));
                        break;
                    }
                    Err(e) if e.kind() == ErrorKind::Interrupted || e.kind() == ErrorKind::Suspended => return,
                    // Too small, in use by another pool, or absent: try the next one.
                    Err(_) => {}
                }
            }
        }
    }
}

/// Whether operations failed on any device since the last call.
fn take_suspects(tree: &VdevTree) -> bool {
    // Visit every leaf, so that each flag is cleared.
    tree.leaves().iter().filter(|l| l.condition.take_probe_wanted() && l.condition.health().is_open()).count() > 0
}

/// Leaves that are gone, faulted or degraded and have no spare: guid, path.
fn leaves_without_spare(tree: &VdevTree) -> Vec<(Guid, String)> {
    let mut out = Vec::new();
    for top in tree.tops.borrow().iter().filter(|t| !t.is_log && t.is_usable()) {
        let kind = top.kind();
        for (guid, condition) in kind.conditions() {
            let bad = !matches!(condition.health(), Health::Online | Health::Offline);
            let covered = kind.parent_of(guid).and_then(|p| p.role());
            let covered = matches!(covered, Some(MirrorRole::Spare | MirrorRole::Replacing));
            if bad && !covered && matches!(kind.find(guid), Some(VdevKind::Leaf(_) | VdevKind::Absent(_))) {
                let path = top.config_ref().find(guid).and_then(|c| c.path.clone()).unwrap_or_default();
                out.push((guid, path));
            }
        }
    }
    out
}
