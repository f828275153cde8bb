//! Expansions of RAID-Z: what the pool records about them (format page 19 section 3).
//!
//! The ZAP of the top-level vdev has the state of its last expansion, when it began and ended, and
//! how much was copied; while one is under way the configuration says so, too, and the uberblock
//! has the progress. [`super::reflow`] does the work.

use base::{ObjectId, Result, VdevId};
use dmu::{Dnode, Tx, zap};
use vdev::Top;

use crate::pool::Pool;
use crate::stack::Stack;

const STATE: &[u8] = b"org.openzfs:raidz_expand_state";
const START_TIME: &[u8] = b"org.openzfs:raidz_expand_start_time";
const END_TIME: &[u8] = b"org.openzfs:raidz_expand_end_time";
const BYTES_COPIED: &[u8] = b"org.openzfs:raidz_expand_bytes_copied";
/// Value of the state while sectors are moved.
const RUNNING: u64 = 1;
/// Value of the state when all sectors were moved.
const FINISHED: u64 = 2;

/// The ZAP of a top-level vdev; none in a pool from before vdevs had ZAPs.
async fn zap_of(stack: &Stack, top: &Top) -> Result<Option<Dnode>> {
    let object = top.config_ref().zap_top.filter(|o| *o != ObjectId(0));
    match object {
        Some(object) => stack.mos.hold(object).await.map(Some),
        None => Ok(None),
    }
}

async fn drop_entry(dn: &Dnode, name: &[u8], tx: &Tx) -> Result<()> {
    if zap::lookup_u64(dn, name).await?.is_some() { zap::remove(dn, name, tx).await } else { Ok(()) }
}

/// Records that an expansion of the vdev begins, at `now` in seconds since 1970.
pub(super) async fn record_begin(stack: &Stack, top: &Top, now: u64, tx: &Tx) -> Result<()> {
    let Some(dn) = zap_of(stack, top).await? else { return Ok(()) };
    zap::update_u64(&dn, STATE, RUNNING, tx).await?;
    zap::update_u64(&dn, START_TIME, now, tx).await?;
    drop_entry(&dn, END_TIME, tx).await?;
    drop_entry(&dn, BYTES_COPIED, tx).await
}

/// Records how many bytes were copied. The MOS changes in any case: a txg without changes has no
/// uberblock.
pub(super) async fn record_copied(stack: &Stack, top: &Top, bytes: u64, tx: &Tx) -> Result<()> {
    match zap_of(stack, top).await? {
        Some(dn) => {
            drop_entry(&dn, BYTES_COPIED, tx).await?;
            zap::update_u64(&dn, BYTES_COPIED, bytes, tx).await
        }
        None => Ok(()),
    }
}

/// Records that the expansion of the vdev ended, at `now` in seconds since 1970.
pub(super) async fn record_end(stack: &Stack, top: &Top, now: u64, tx: &Tx) -> Result<()> {
    let Some(dn) = zap_of(stack, top).await? else { return Ok(()) };
    zap::update_u64(&dn, STATE, FINISHED, tx).await?;
    zap::update_u64(&dn, END_TIME, now, tx).await
}

/// Bytes that the expansion of the vdev copied by the record.
pub(super) async fn recorded_copied(stack: &Stack, top: &Top) -> Result<u64> {
    match zap_of(stack, top).await? {
        Some(dn) => Ok(zap::lookup_u64(&dn, BYTES_COPIED).await?.unwrap_or(0)),
        None => Ok(0),
    }
}

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
    /// It waits until all devices of the vdev are healthy.
    pub waiting: bool,
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
            let recorded = zap::lookup_u64(&dn, BYTES_COPIED).await?.unwrap_or(0);
            let (now, waiting) = self.devices().expander().figures(top.id).unwrap_or((recorded, false));
            let copied = now.max(recorded);
            let allocated = self.top_spaces().iter().find(|s| s.vdev == top.id).map_or(0, |s| s.alloc);
            found.push(RaidzExpand {
                vdev: top.id,
                finished: state == FINISHED,
                start,
                end,
                copied,
                allocated,
                waiting,
            });
        }
        Ok(found.into_iter().max_by_key(|e| (!e.finished, e.end)))
    }
}
