//! `zpool reopen`: looks for the devices of a pool anew, without waiting for an error on them.
//!
//! A device that answers and has its label stays open. One that does not is closed, and the one at
//! its path is opened in its place if its label is the right one; so is one that was not there
//! before. The sizes of those in use are looked up anew: `expandsize` is what they have grown by.
//! What the administrator or errors took out of use stays so, and a device that holds data without
//! another copy is never closed.

use std::rc::Rc;

use base::{Guid, Result};
use ondisk::label::DeviceLabel;
use ondisk::scan::{ScanFunc, ScanState};
use vdev::labels::{LeafLabels, read_labels};
use vdev::{Condition, Health, Leaf, VdevKind};

use super::Devices;

/// What a look at the devices met.
#[derive(Clone, Copy, Default)]
struct Looked {
    /// There were devices to reopen.
    any: bool,
    /// One of them was in use, and is not any more.
    lost: bool,
}

impl Devices {
    /// Opens the devices that do not answer again. A resilver writes what devices in use miss, in
    /// place of a running scan; with `keep_scrub` a running scrub goes on instead (`-n`).
    pub async fn reopen_all(&self, keep_scrub: bool) -> Result<()> {
        let admin = self.begin_change().await?;
        let looked = self.look_again(true).await;
        self.refresh_sizes();
        drop(admin);
        self.reopened(looked).await?;
        let phys = self.scan.status().phys;
        let scrubs = phys.state == ScanState::Scanning && phys.func == ScanFunc::Scrub;
        let tops = self.stack.tree.tops.borrow().clone();
        let misses = tops.iter().flat_map(|top| top.kind().conditions());
        let misses = misses.filter(|(_, c)| c.health().is_open()).any(|(_, c)| !c.missing().is_empty());
        if misses && !(keep_scrub && scrubs) {
            self.scan.request_resilver();
        }
        Ok(())
    }

    /// Before a scrub begins: devices in use that do not answer or have lost their labels are
    /// closed, or opened anew.
    pub async fn reopen_lost(&self) -> Result<()> {
        let admin = self.begin_change().await?;
        let looked = self.look_again(false).await;
        drop(admin);
        if looked.any { self.reopened(looked).await } else { Ok(()) }
    }

    /// What follows: events, the configuration on disk, and spares for devices that are not found.
    async fn reopened(&self, looked: Looked) -> Result<()> {
        self.events.post_states();
        self.stack.sync().await?;
        if looked.lost && self.diagnoses.get() {
            self.activate_spares().await;
        }
        Ok(())
    }

    /// Reopens devices in use that do not answer, and if `closed_too` those that are not there.
    async fn look_again(&self, closed_too: bool) -> Looked {
        let (mut looked, tops) = (Looked::default(), self.stack.tree.tops.borrow().clone());
        for top in &tops {
            let all: Vec<_> = top.kind().conditions().into_iter().map(|(guid, c)| (guid, c.health())).collect();
            for (guid, health) in all {
                let leaf = match top.kind().find(guid) {
                    Some(VdevKind::Leaf(leaf)) => Some(leaf),
                    _ => None,
                };
                let looks = match (health, leaf) {
                    (Health::Unavail | Health::Removed, _) => closed_too,
                    (Health::Online | Health::Degraded, Some(leaf)) => !self.answers(&leaf).await,
                    _ => false,
                };
                let needed = health.is_open() && !top.kind().outage(Some(guid)).is_empty();
                if looks && !needed {
                    looked.any = true;
                    match self.reopen(top, guid, true).await {
                        Ok(()) => {}
                        Err(e) => self.notices.push_once(e.to_string()),
                    }
                    let is_open = |(g, c): &(_, Rc<Condition>)| *g == guid && c.health().is_open();
                    looked.lost |= health.is_open() && !top.kind().conditions().iter().any(is_open);
                }
            }
        }
        looked
    }

    /// Whether a device answers and has a label of its own.
    pub(super) async fn answers(&self, leaf: &Leaf) -> bool {
        if !leaf.probe().await {
            return false;
        }
        let Ok(labels) = read_labels(&*leaf.dev).await else { return false };
        self.has_own_label(&labels, leaf.guid())
    }

    /// Whether one of these labels is that of device `guid` of this pool.
    pub(super) fn has_own_label(&self, labels: &LeafLabels, guid: Guid) -> bool {
        let all = labels.configs.iter().filter_map(|(_, c)| DeviceLabel::from_nvlist(c.as_ref().ok()?).ok());
        let is_own = |l: DeviceLabel| matches!(l, DeviceLabel::Pool(c) if self.stack.tree.is_own_guid(c.pool_guid) && c.guid == guid);
        all.into_iter().any(is_own)
    }
}
