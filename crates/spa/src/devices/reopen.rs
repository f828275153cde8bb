//! `zpool reopen`: looks for the devices of a pool anew, without waiting for an error on them.
//!
//! A device that answers stays open. One that does not is closed, and the one at its path is opened
//! in its place if its label is the right one; so is one that was not there before. The sizes of
//! those in use are looked up anew: `expandsize` is what they have grown by. What the
//! administrator or errors took out of use stays so, and a device that holds data without another
//! copy is never closed.

use base::Result;
use ondisk::scan::{ScanFunc, ScanState};
use vdev::{Health, VdevKind};

use super::Devices;

impl Devices {
    /// Opens the devices that do not answer again. A resilver writes what devices in use miss, in
    /// place of a running scan; with `keep_scrub` a running scrub goes on instead (`-n`).
    pub async fn reopen_all(&self, keep_scrub: bool) -> Result<()> {
        let admin = self.begin_change().await?;
        let tops = self.stack.tree.tops.borrow().clone();
        for top in &tops {
            let all: Vec<_> = top.kind().conditions().into_iter().map(|(guid, c)| (guid, c.health())).collect();
            for (guid, health) in all {
                let leaf = match top.kind().find(guid) {
                    Some(VdevKind::Leaf(leaf)) => Some(leaf),
                    _ => None,
                };
                let looks = match (health, leaf) {
                    (Health::Unavail | Health::Removed, _) => true,
                    (Health::Online | Health::Degraded, Some(leaf)) => !leaf.probe().await,
                    _ => false,
                };
                let needed = health.is_open() && !top.kind().outage(Some(guid)).is_empty();
                if looks && !needed {
                    match self.reopen(top, guid, true).await {
                        Ok(()) => {}
                        Err(e) => self.notices.push_once(e.to_string()),
                    }
                }
            }
        }
        self.refresh_sizes();
        drop(admin);
        self.events.post_states();
        self.stack.sync().await?;
        let phys = self.scan.status().phys;
        let scrubs = phys.state == ScanState::Scanning && phys.func == ScanFunc::Scrub;
        let misses = tops.iter().flat_map(|top| top.kind().conditions());
        let misses = misses.filter(|(_, c)| c.health().is_open()).any(|(_, c)| !c.missing().is_empty());
        if misses && !(keep_scrub && scrubs) {
            self.scan.request_resilver();
        }
        Ok(())
    }
}
