//! The property `autotrim`: space that was freed is discarded on the devices, a while later.
//!
//! The allocator notes what becomes allocatable ([`metaslab::Allocator::set_autotrim`]). A *turn*
//! is due after the commit of a txg: it takes every `trim_txg_batch`-th metaslab of each top-level
//! vdev, so that a metaslab has that many txgs to gather freed space into few long ranges, and each
//! is disabled for a short time only. In a turn the metaslabs of a vdev follow each other; vdevs,
//! and the devices of one, are worked on side by side. A pool without txgs gets its turns by time.
//!
//! Skipped: devices that cannot discard or are out of use, ranges below `trim_bytes_min`, metaslabs
//! that a trim or an initialization of the whole device has disabled, vdevs that are being removed
//! or expanded (what is noted stays noted there). A discard that fails is not tried again: it costs
//! only the use of that space by the device. What was noted before an export is forgotten.
//!
//! Invariant: only space that is free, and that no rewind to a txg before the last two needs, is
//! discarded; it is not allocated meanwhile.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::VdevId;
use metaslab::Run;
use ondisk::label::DATA_START;
use rt::join::join_all;
use rt::sync::Notify;
use vdev::reshape::leaf_ranges;
use vdev::{Leaf, Top, VdevKind};

use super::leaf_work::LeafWorks;

/// The automatic trim of a pool.
#[derive(Default)]
pub(super) struct Autotrim {
    on: Cell<bool>,
    /// The number of the next turn.
    turn: Cell<u64>,
    /// Turns are being taken.
    running: Cell<bool>,
    /// The vdevs that are being worked on.
    busy: RefCell<BTreeSet<VdevId>>,
    /// A txg was committed, or the trim is to end.
    due: Notify,
    /// A vdev is not worked on any more, or all turns are over.
    over: Notify,
}

/// The metaslabs of a turn, by vdev.
fn of_turn(noted: &[(VdevId, u64)], turn: u64, batch: u64) -> BTreeMap<VdevId, Vec<u64>> {
    let batch = batch.max(1);
    let mut out: BTreeMap<VdevId, Vec<u64>> = BTreeMap::new();
    for (vdev, ms) in noted.iter().filter(|(_, ms)| ms % batch == turn % batch) {
        out.entry(*vdev).or_default().push(*ms);
    }
    out
}

impl LeafWorks {
    /// Sets the property.
    pub fn set_autotrim(&self, on: bool) {
        if self.auto.on.replace(on) != on {
            self.stack.alloc.set_autotrim(on);
            self.auto.due.notify_all();
        }
    }

    /// A txg was committed: a turn is due.
    pub(crate) fn autotrim_due(self: &Rc<Self>) {
        self.auto.due.notify_all();
        let ends = self.is_closing() || self.stack.txg.ended().is_some();
        if !self.auto.on.get() || ends || self.auto.running.get() || self.stack.alloc.trims().is_empty() {
            return;
        }
        self.auto.running.set(true);
        let works = self.clone();
        self.stack.rt.spawn("autotrim", async move {
            works.take_turns().await;
            works.auto.running.set(false);
            works.auto.over.notify_all();
        });
    }

    /// Takes turns until nothing is noted any more.
    async fn take_turns(&self) {
        loop {
            let noted = self.stack.alloc.trims();
            if noted.is_empty() || !self.may_autotrim() {
                return;
            }
            let turn = self.auto.turn.replace(self.auto.turn.get() + 1);
            let these = of_turn(&noted, turn, self.tunables().trim_txg_batch);
            let each = these.into_iter().map(|(vdev, all)| async move {
                self.auto.busy.borrow_mut().insert(vdev);
                self.trim_top(vdev, &all).await;
                self.auto.busy.borrow_mut().remove(&vdev);
                self.auto.over.notify_all();
            });
            join_all(each.collect()).await;
            let timeout = self.stack.txg.tunables().txg_timeout;
            let _ = self.stack.rt.timeout(timeout, self.auto.due.notified()).await;
        }
    }

    fn may_autotrim(&self) -> bool {
        self.auto.on.get() && !self.is_closing() && self.stack.txg.ended().is_none()
    }

    /// The vdev, if it may be worked on now.
    fn free_top(&self, vdev: VdevId) -> Option<Rc<Top>> {
        let top = self.stack.tree.top(vdev).ok()?;
        let rests = top.config_ref().removing || top.leaves().iter().any(|l| self.is_held(l.guid()));
        (self.may_autotrim() && !rests && top.kind().reflow().is_none()).then_some(top)
    }

    async fn trim_top(&self, vdev: VdevId, all: &[u64]) {
        for ms in all {
            let Some(top) = self.free_top(vdev) else { return };
            if self.stack.alloc.is_disabled(vdev, *ms) {
                continue;
            }
            // One that cannot be loaded allocates nothing, and is worked on no more.
            let Ok(Some(runs)) = self.stack.alloc.take_trims(vdev, *ms).await else { continue };
            let disabled = !planted!(TrimNotDisabled);
            if !disabled {
                self.stack.alloc.enable(vdev, *ms);
            }
            let leaves = top.open_leaves().into_iter().filter(|l| l.dev.info().supports_discard);
            let each = leaves.map(|leaf| self.trim_leaf(&top, leaf, &runs));
            join_all(each.collect()).await;
            if disabled {
                self.stack.alloc.enable(vdev, *ms);
            }
        }
    }

    /// Discards the parts of `runs` that are on a device.
    async fn trim_leaf(&self, top: &Rc<Top>, leaf: Rc<Leaf>, runs: &[Run]) {
        let tunables = self.tunables();
        let step = self.trim_step(&leaf);
        let guid = leaf.guid();
        drop(leaf);
        for run in runs {
            let ranges = leaf_ranges(&top.kind(), top.ashift, guid, run.start, run.size);
            for (offset, len) in ranges {
                let mut at = offset;
                while at < offset + len && len >= tunables.trim_bytes_min {
                    // The device is held for one discard: it may be closed in between.
                    let leaf = match top.kind().find(guid) {
                        Some(VdevKind::Leaf(leaf)) if leaf.condition.health().is_open() => leaf,
                        _ => return,
                    };
                    if self.free_top(top.id).is_none() {
                        return;
                    }
                    let n = step.min(offset + len - at);
                    if leaf.discard(DATA_START + at, n).await.is_err() {
                        return;
                    }
                    at += n;
                }
            }
        }
    }

    /// Waits until nothing on the devices of a vdev is worked on. The caller has marked them, so
    /// that no turn begins with it.
    pub(super) async fn autotrim_leaves(&self, vdev: VdevId) {
        while self.auto.busy.borrow().contains(&vdev) {
            self.auto.over.notified().await;
        }
    }

    /// Waits for the end of the turns, when the pool is closed or the property is off.
    pub async fn autotrim_ends(&self) {
        self.auto.due.notify_all();
        while self.auto.running.get() {
            self.auto.over.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metaslab_has_its_turn() {
        let noted: Vec<_> = (0..3).flat_map(|v| (0..50).map(move |ms| (VdevId(v), ms))).collect();
        for batch in [0, 1, 7, 32, 100] {
            let mut seen = Vec::new();
            for turn in 5..5 + batch.max(1) {
                for (vdev, all) in of_turn(&noted, turn, batch) {
                    seen.extend(all.into_iter().map(|ms| (vdev, ms)));
                }
            }
            seen.sort_unstable();
            assert_eq!(seen, noted, "batch {batch}");
        }
    }
}
