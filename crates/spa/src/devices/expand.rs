//! Expansion onto grown devices: `zpool online -e` and the property `autoexpand` (format page 14
//! section 3).
//!
//! The labels at the end of a device move with its size; their old place becomes address space. The
//! number of metaslabs grows, their size stays.

use std::rc::Rc;

use base::{Error, Result};
use metaslab::{ClassKind, MsSummary};
use vdev::{Top, VdevKind, leaf_asize};

use super::Devices;
use crate::stack::METASLABS_MAX;

/// The allocatable bytes of a top-level vdev with the current sizes of its devices; None if one of
/// them is absent.
pub(super) fn asize_now(kind: &VdevKind) -> Option<u64> {
    let smallest =
        |children: &[VdevKind]| children.iter().map(asize_now).collect::<Option<Vec<_>>>()?.into_iter().min();
    match kind {
        VdevKind::Leaf(l) => Some(leaf_asize(l.dev.size())),
        VdevKind::Mirror(m) => smallest(&m.children),
        VdevKind::Raidz(r) => r.widths().asize_from_child(smallest(&r.children)?),
        VdevKind::Draid(d) => {
            let children: Vec<&VdevKind> = d.children.iter().collect();
            let sizes = children.into_iter().map(asize_now).collect::<Option<Vec<_>>>()?;
            Some(d.layout.asize_from_child(sizes.into_iter().min()?))
        }
        // As large as the rest.
        VdevKind::Dspare(_) => Some(u64::MAX),
        _ => None,
    }
}

impl Devices {
    /// Bytes by which a top-level vdev can grow.
    pub fn expandable(&self, top: &Top) -> u64 {
        let asize = asize_now(&top.kind()).filter(|n| *n != u64::MAX).unwrap_or(0);
        let unit = 1u64 << top.ms_shift.get().max(1);
        (asize / unit * unit).saturating_sub(top.asize.get() / unit * unit)
    }

    /// Looks for the present sizes of the devices in use.
    pub(super) fn refresh_sizes(&self) {
        for leaf in self.stack.tree.leaves().iter().filter(|l| l.condition.health().is_open()) {
            let was = leaf.dev.size();
            // One that does not answer keeps its size.
            if leaf.dev.refresh_size().is_ok_and(|now| now != was) {
                // The labels at its end have moved.
                self.config.mark_dirty();
            }
        }
    }

    /// Expands every top-level vdev to the size of its devices.
    pub async fn expand_all(&self) -> Result<()> {
        let tops = self.stack.tree.tops.borrow().clone();
        for top in tops.iter().filter(|t| t.is_usable()) {
            self.expand_top(top).await?;
        }
        Ok(())
    }

    /// Expands a top-level vdev to the size of its devices.
    pub(super) async fn expand_top(&self, top: &Rc<Top>) -> Result<()> {
        for leaf in top.open_leaves() {
            leaf.dev.refresh_size()?;
        }
        let Some(asize) = asize_now(&top.kind()).filter(|n| *n != u64::MAX) else { return Ok(()) };
        let shift = top.ms_shift.get();
        if asize <= top.asize.get() || shift == 0 {
            return Ok(());
        }
        let count = asize >> shift;
        if count > METASLABS_MAX {
            return Err(Error::invalid(format!("top-level vdev {} would have {count} metaslabs", top.id)));
        }
        let top = top.clone();
        self.changes
            .make(move |devices, tx| {
                Box::pin(async move {
                    let more = count.saturating_sub(top.ms_count());
                    let size = || devices.stack.alloc.space(ClassKind::Normal).total_raw;
                    let before = size();
                    top.asize.set(asize);
                    top.update_config(|c| c.expansion_time = Some(devices.stack.rt.wall_clock().secs.max(0) as u64));
                    devices.stack.alloc.grow_top(top.id, vec![MsSummary::default(); more as usize])?;
                    let (now, name) = (size(), devices.config.name());
                    if now != before {
                        let text = format!("pool '{name}' size: {now}(+{})", now.saturating_sub(before));
                        devices.stack.core.log_internal("vdev online", text, tx.txg());
                    }
                    devices.config.mark_dirty();
                    Ok(Ok(()))
                })
            })
            .await
    }
}
