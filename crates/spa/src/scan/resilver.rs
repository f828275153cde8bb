//! When a resilver begins, and which devices wait for the next one.
//!
//! A resilver is asked for whenever a device in use may miss something ([`Scan::request_resilver`]:
//! it came back, or was attached). If none runs, it begins with one of the next txgs, in place of a
//! running scrub. If one runs, the device came too late for it: what it misses is not in the range
//! of the running one, or was visited while it was away.
//!
//! Without the feature `resilver_defer` the running one begins again, with all devices. With it the
//! resilver of the late device is *deferred*: the device's configuration says so
//! (`resilver_defer`), the running one goes on and leaves the device's dirty time log as it is, and
//! when it has ended the next one begins, for all that were deferred. So does
//! [`Scan::restart_resilver`] (`zpool resilver`), at once. The feature is counted once while a
//! device waits.
//!
//! Both are decided before the configuration of a txg is written, so flags and count change in one
//! txg. After a crash the flags on disk are as good: the resumed resilver leaves out who has one.

use std::rc::Rc;

use base::{Guid, Result, Txg};
use dmu::Tx;
use ondisk::feature::FeatureId;
use ondisk::scan::ScanFunc;
use vdev::{Condition, Top, TxgSet};

use super::{FUTURE, Scan};

/// Whether a device in use that misses `missing` needs another resilver than the running one, of
/// blocks born after `min` and before `max`. `in_scan`: it was in use all the time since that
/// began.
fn is_late(missing: &TxgSet, in_scan: bool, (min, max): (Txg, Txg)) -> bool {
    missing.bounds().is_some_and(|(first, last)| !in_scan || (min.0 != 0 && first <= min) || last >= max)
}

impl Scan {
    /// Requests a resilver of the txgs that devices in use miss by their dirty time logs: it begins
    /// with one of the next txgs, if there is work, in place of a running scan, or after a running
    /// resilver. Called when a device comes back or is attached.
    pub fn request_resilver(&self) {
        if !self.stack.readonly {
            self.resilver_wanted.set(true);
            self.stack.txg.kick();
        }
    }

    /// As [`Scan::request_resilver`], in place of a running resilver as well: no device waits.
    pub fn restart_resilver(&self) {
        self.resilver_now.set(!self.stack.readonly);
        self.request_resilver();
    }

    /// Requests a resilver once `from` is synced: newly attached leaves miss only txgs before it.
    pub(crate) async fn resilver_from(&self, from: Txg) -> Result<()> {
        self.stack.txg.wait_synced(from).await?;
        self.request_resilver();
        Ok(())
    }

    /// Whether a requested resilver has not begun, or is being begun or ended.
    pub fn is_resilver_pending(&self) -> bool {
        self.is_resilver_due() && !self.stack.readonly && !self.closed.get()
    }

    /// Whether a resilver is requested, or is being begun or ended.
    pub(super) fn is_resilver_due(&self) -> bool {
        let due = self.resilver_wanted.get() || self.resilver_switching.get() || self.rebuilding.get();
        due || self.starts_deferred()
    }

    /// Whether a resilver is under way or requested.
    pub(crate) fn is_resilvering(&self) -> bool {
        let due = self.resilver_wanted.get() || self.resilver_switching.get() || self.starts_deferred();
        due || self.is_running_resilver()
    }

    fn is_running_resilver(&self) -> bool {
        self.is_scanning() && self.func() == ScanFunc::Resilver
    }

    /// Whether the next txg takes the devices that wait.
    pub(super) fn starts_deferred(&self) -> bool {
        let at_once = self.resilver_now.get() || self.tunables.get().defer_off;
        let is_open = !self.stack.readonly && !self.closed.get();
        is_open && self.stack.features.is_active(FeatureId::ResilverDefer) && (at_once || !self.is_running_resilver())
    }

    /// Every leaf of the tree, with its top-level vdev.
    fn leaves(&self) -> Vec<(Rc<Top>, Guid, Rc<Condition>)> {
        let tops = self.stack.tree.tops.borrow();
        let of = |top: &Rc<Top>| {
            let all = top.kind().conditions().into_iter();
            all.map(|(guid, condition)| (top.clone(), guid, condition)).collect::<Vec<_>>()
        };
        tops.iter().flat_map(of).collect()
    }

    /// The range of txgs that devices in use miss: the one before the first, and the one after the
    /// last.
    pub(super) fn resilver_window(&self) -> Option<(Txg, Txg)> {
        let mut window: Option<(u64, u64)> = None;
        for (_, _, condition) in self.leaves() {
            if let Some((first, last)) = condition.missing().bounds().filter(|_| condition.health().is_open()) {
                let (min, max) = window.unwrap_or((u64::MAX, 0));
                window = Some((min.min(first.0.saturating_sub(1)), max.max(last.0.saturating_add(1))));
            }
        }
        window.map(|(min, max)| (Txg(min), Txg(max)))
    }

    /// At the beginning of the sync of a txg, before the configuration is taken: devices that came
    /// too late for the running resilver are marked, and those marked are taken when it has ended.
    pub(crate) async fn defer_resilvers(&self, tx: &Tx) -> Result<()> {
        let features = &self.stack.features;
        if self.starts_deferred() {
            let count = features.count(FeatureId::ResilverDefer.get().guid).unwrap_or(0);
            features.add(FeatureId::ResilverDefer, -(count as i64), tx).await?;
            if self.clear_deferred() {
                let text = format!("errors={}", self.now.borrow().phys.errors);
                self.stack.core.log_internal("starting deferred resilver", text, tx.txg());
                self.resilver_now.set(self.is_running_resilver());
                self.resilver_wanted.set(true);
            }
            self.config.mark_dirty();
            self.changed.notify_all();
        }
        let may_defer = features.is_enabled(FeatureId::ResilverDefer) && !self.tunables.get().defer_off;
        let asked = self.resilver_wanted.get() && !self.resilver_now.get() && !self.closed.get();
        if asked && may_defer && self.is_running_resilver() {
            self.resilver_wanted.set(false);
            if self.mark_late() {
                if !features.is_active(FeatureId::ResilverDefer) {
                    features.add(FeatureId::ResilverDefer, 1, tx).await?;
                }
                self.config.mark_dirty();
            }
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Takes the marks off; whether a device in use that had one misses something.
    fn clear_deferred(&self) -> bool {
        let mut needed = false;
        for (top, guid, condition) in self.leaves() {
            if is_deferred(&top, guid) {
                set_deferred(&top, guid, false);
                needed |= condition.health().is_open() && !condition.missing().is_empty();
            }
        }
        needed
    }

    /// Marks the devices that the running resilver does not bring everything; false if there are
    /// none without a mark.
    fn mark_late(&self) -> bool {
        let window = {
            let phys = self.now.borrow().phys;
            (phys.min_txg, phys.max_txg)
        };
        let mut any = false;
        for (top, guid, condition) in self.leaves() {
            let late = condition.health().is_open() && is_late(&condition.missing(), condition.is_in_scan(), window);
            if late && !is_deferred(&top, guid) {
                set_deferred(&top, guid, true);
                any = true;
            }
        }
        any
    }

    /// A requested resilver begins (syncing context).
    pub(super) async fn begin_resilver(&self, txg: Txg, tx: &Tx) -> Result<()> {
        if self.closed.get() || self.rebuilding.get() || !self.resilver_wanted.replace(false) {
            return Ok(());
        }
        let Some((min, max)) = self.resilver_window() else {
            self.resilver_now.set(false);
            return Ok(());
        };
        if max > txg && max.0 <= txg.0 + FUTURE {
            // Some missing txgs are not synced yet: retry in a later txg.
            self.resilver_wanted.set(true);
            return Ok(());
        }
        self.resilver_now.set(false);
        let switch = async {
            if self.is_scanning() {
                self.end(false, tx).await?;
            }
            if self.errors.is_running() {
                self.end_errors(false, tx).await?;
            }
            // An unreadable log counts as everything missing.
            self.begin(ScanFunc::Resilver, min, max.min(txg), tx).await
        };
        self.while_switching(switch).await
    }

    /// At import: the devices in use take part in the resilver that goes on, but for those that
    /// wait. Requests one if that does not cover all.
    pub(super) fn resume_resilver(&self) {
        for (top, guid, condition) in self.leaves() {
            condition.set_in_scan(condition.health().is_open() && !is_deferred(&top, guid));
        }
        let covered = self.is_running_resilver() && {
            let phys = self.now.borrow().phys;
            self.resilver_window().is_none_or(|(min, max)| phys.min_txg <= min && phys.max_txg >= max)
        };
        if !covered && self.resilver_window().is_some() {
            self.resilver_wanted.set(true);
        }
    }
}

/// Whether the resilver of a leaf is deferred.
pub(super) fn is_deferred(top: &Top, leaf: Guid) -> bool {
    top.config_ref().find(leaf).is_some_and(|c| c.resilver_defer)
}

fn set_deferred(top: &Top, leaf: Guid, deferred: bool) {
    top.update_config(|c| {
        if let Some(leaf) = c.find_mut(leaf) {
            leaf.resilver_defer = deferred;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_late_if_the_running_resilver_leaves_something_out() {
        let set = |start, end| {
            let mut set = TxgSet::new();
            set.add(start, end);
            set
        };
        let window = (Txg(9), Txg(30));
        assert!(!is_late(&TxgSet::new(), false, window), "it misses nothing");
        assert!(!is_late(&set(10, 30), true, window));
        assert!(is_late(&set(10, 30), false, window), "it was away for a while");
        assert!(is_late(&set(10, 31), true, window), "what was written since");
        assert!(is_late(&set(9, 12), true, window), "what was written before");
        assert!(!is_late(&set(0, 12), true, (Txg(0), Txg(30))), "from the beginning on");
        assert!(is_late(&TxgSet::all(), true, (Txg(0), Txg(30))), "an unreadable log");
    }
}
