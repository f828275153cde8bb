//! What became free and is to be trimmed (`ms_trim` of OpenZFS).
//!
//! While that is wanted, space goes into a tree of its metaslab when it becomes allocatable, so
//! after the txgs in which a rewind could need it; what is allocated leaves it. Space that was free
//! before is not in it: a trim of the whole device gets that.

use base::{Result, VdevId};

use super::Allocator;
use crate::range_tree::Run;

impl Allocator {
    /// Whether what becomes free from now on is to be trimmed. Without it, what was noted is
    /// forgotten.
    pub fn set_autotrim(&self, on: bool) {
        let mut inner = self.inner.borrow_mut();
        inner.autotrim = on;
        if !on {
            for (vdev, ms) in std::mem::take(&mut inner.trims) {
                inner.ms(vdev, ms).take_trim();
            }
        }
    }

    /// The metaslabs with space to trim, ascending.
    pub fn trims(&self) -> Vec<(VdevId, u64)> {
        self.inner.borrow().trims.iter().copied().collect()
    }

    /// Whether a metaslab is disabled.
    pub fn is_disabled(&self, vdev: VdevId, ms: u64) -> bool {
        self.inner.borrow().disabled.contains(&(vdev, ms))
    }

    /// Disables a metaslab until [`Allocator::enable`], and takes what is to be trimmed there,
    /// ascending: free space. None if there is nothing, or the vdev was removed meanwhile: then the
    /// metaslab is not disabled. Nor after its load error.
    pub async fn take_trims(&self, vdev: VdevId, ms: u64) -> Result<Option<Vec<Run>>> {
        if !self.inner.borrow_mut().trims.remove(&(vdev, ms)) {
            return Ok(None);
        }
        self.disable(vdev, ms).await?;
        let mut inner = self.inner.borrow_mut();
        let there = inner.tops.get(vdev.0 as usize).is_some_and(Option::is_some);
        Ok(Some(if there { inner.ms(vdev, ms).take_trim() } else { Vec::new() }))
    }
}
