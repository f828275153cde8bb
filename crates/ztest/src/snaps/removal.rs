//! Vdevs with data are removed while snapshots, clones and file systems come and go.
//!
//! The model does not change. What is destroyed, rolled back or rewritten meanwhile is in every
//! part of the removal: copied, on its way, not reached. Some removals are cancelled, some are
//! refused for want of space, and the last one may be under way at the end.

use std::rc::Rc;

use base::{ErrorKind, VdevId};
use ondisk::feature::{FeatureId, features_of_2_1};
use sim::Rng;
use vdev::Top;

use super::Snaps;
use crate::Check;
use crate::lab::Lab;
use crate::removecuts::{LAYOUTS, SIZE, cancel, condenses, name_of};

/// Whether vdevs are removed from the pool of a seed.
fn has_removals(seed: u64) -> bool {
    Rng::stream(seed, 0x5056).percent(30)
}

impl Snaps {
    /// If [`has_removals`], with a layout that vdevs can be removed from.
    pub(super) fn with_removals(mut self, seed: u64) -> Snaps {
        if has_removals(seed) {
            let layout = &mut self.layout;
            layout.shape = &LAYOUTS[seed as usize % LAYOUTS.len()];
            layout.devices = vec![SIZE; layout.shape.groups.iter().map(|g| g.2).sum()];
            let lacks = |f: &FeatureId| !layout.features.contains(f);
            let missing: Vec<FeatureId> = features_of_2_1().into_iter().filter(lacks).collect();
            layout.features.extend(missing);
            layout.condenses = condenses(seed);
            self.lab = Rc::new(Lab::new(seed, &self.layout));
            self.removals = Some(Rng::stream(seed, 0x5057));
        }
        self
    }

    /// Begins to remove a vdev, or cancels the removal that is under way, in pools for that.
    pub(super) async fn change_removal(&mut self) -> Check {
        let Some(rng) = &mut self.removals else { return Ok(()) };
        let (cancels, draw) = (rng.percent(30), rng.next_u64());
        let pool = self.pool();
        let data = |tops: &[Rc<Top>]| -> Vec<VdevId> {
            tops.iter().filter(|t| t.is_concrete() && !t.is_log).map(|t| t.id).collect()
        };
        let data = data(&pool.tree().tops.borrow());
        let top = data[(draw % data.len() as u64) as usize];
        if pool.devices().evacuator().is_busy() {
            if cancels {
                self.note("zpool remove -s".into());
                cancel(&pool).await?;
            }
            return Ok(());
        }
        let removed = pool.devices().remove(&name_of(&pool, top)?).await;
        self.note(format!("zpool remove vdev {top}: {removed:?}"));
        match removed {
            Err(e) if !matches!(e.kind(), ErrorKind::NoSpace | ErrorKind::Invalid | ErrorKind::Busy) => {
                Err(format!("zpool remove: {e:?}"))
            }
            _ => Ok(()),
        }
    }
}
