//! Expansions of RAID-Z: what the pool records about them (format page 19 section 3).
//!
//! The ZAP of the top-level vdev has the state of its last expansion, when it began and ended, and
//! how much was copied; while one is under way the configuration says so, too, and the uberblock
//! has the progress. Weir reads and writes RAID-Z that were expanded, and reads one that is being
//! expanded ([`vdev::width`]); it does not expand one itself yet.

use base::{ObjectId, Result, VdevId};
use dmu::zap;

use crate::pool::Pool;

const STATE: &[u8] = b"org.openzfs:raidz_expand_state";
const START_TIME: &[u8] = b"org.openzfs:raidz_expand_start_time";
const END_TIME: &[u8] = b"org.openzfs:raidz_expand_end_time";
const BYTES_COPIED: &[u8] = b"org.openzfs:raidz_expand_bytes_copied";
/// Value of the state when all sectors were moved.
const FINISHED: u64 = 2;

/// An expansion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RaidzExpand {
    /// The top-level vdev.
    pub vdev: VdevId,
    /// Whether it ended.
    pub finished: bool,
    /// When it began, in seconds since 1970.
    pub start: u64,
    /// When it ended; 0 before.
    pub end: u64,
    /// Bytes that were copied.
    pub copied: u64,
    /// Bytes that are allocated now.
    pub allocated: u64,
}

impl Pool {
    /// The expansion that is under way, or else the one that ended last.
    pub async fn raidz_expand(&self) -> Result<Option<RaidzExpand>> {
        let tops = self.tree().tops.borrow().clone();
        let mut found: Vec<RaidzExpand> = Vec::new();
        for top in tops.iter().filter(|t| t.is_concrete()) {
            let zap_top = top.config_ref().zap_top;
            let Some(object) = zap_top.filter(|o| *o != ObjectId(0)) else { continue };
            let dn = self.stack.mos.hold(object).await?;
            let Some(state) = zap::lookup_u64(&dn, STATE).await? else { continue };
            let start = zap::lookup_u64(&dn, START_TIME).await?.unwrap_or(0);
            let end = zap::lookup_u64(&dn, END_TIME).await?.unwrap_or(0);
            let copied = zap::lookup_u64(&dn, BYTES_COPIED).await?.unwrap_or(0);
            let allocated = self.top_spaces().iter().find(|s| s.vdev == top.id).map_or(0, |s| s.alloc);
            found.push(RaidzExpand { vdev: top.id, finished: state == FINISHED, start, end, copied, allocated });
        }
        Ok(found.into_iter().max_by_key(|e| (!e.finished, e.end)))
    }
}
