//! Commits without records of their own to pack: all records that they carry are in log blocks,
//! which may still be in flight ([`super`]).

use std::rc::Rc;

use super::Inner;
use crate::itx::Lists;
use crate::lwb::Lwb;
use crate::policy;

impl Inner {
    /// Whether all records that a commit of `object` has to carry are in blocks.
    pub(super) fn all_packed(&self, object: u64, lists: &Lists) -> bool {
        policy::may_skip_packing(self.tunables().policy)
            && !self.broken.get()
            && !lists.sync.iter().any(|itx| itx.concerns(object))
            && !self.chain.borrow().packing.iter().any(|owner| owner.is_none_or(|o| o == object))
    }
    /// Of these blocks those in flight, in the order of the chain; `None` if one of them failed.
    pub(super) fn lwbs_in_flight(&self, object: u64) -> Option<Vec<Rc<Lwb>>> {
        let chain = self.chain.borrow();
        let last = [None, Some(object)].into_iter().filter_map(|owner| chain.last_lwb.get(&owner)?.upgrade());
        let mut blocks = last.map(|l| (!l.failed.get()).then_some(l)).collect::<Option<Vec<_>>>()?;
        blocks.retain(|l| !l.is_flush_done());
        blocks.sort_by_key(|l| l.seq());
        Some(blocks)
    }
}
