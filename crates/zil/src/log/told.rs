//! Commits that have nothing to tell: all records that they have to carry are in blocks, which may
//! still be under way ([`super`]).

use std::rc::Rc;

use super::Inner;
use crate::itx::Lists;
use crate::lwb::Lwb;
use crate::policy::CommitPolicy;

impl Inner {
    /// Whether all records that a commit of `object` has to carry are in blocks.
    pub(super) fn has_told(&self, object: u64, lists: &Lists) -> bool {
        // What was before 2017 knew no such thing.
        self.tun.get().policy == CommitPolicy::Modern
            && !self.broken.get()
            && !lists.sync.iter().any(|itx| itx.concerns(object))
            && !self.chain.borrow().packing.iter().any(|owner| owner.is_none_or(|o| o == object))
    }
    /// Of these blocks those that are not over, in their order; `None` if one of them failed.
    pub(super) fn still_telling(&self, object: u64) -> Option<Vec<Rc<Lwb>>> {
        let chain = self.chain.borrow();
        let told = [None, Some(object)].into_iter().filter_map(|owner| chain.told.get(&owner)?.upgrade());
        let mut blocks = told.map(|l| (!l.failed.get()).then_some(l)).collect::<Option<Vec<_>>>()?;
        blocks.retain(|l| !l.is_over());
        blocks.sort_by_key(|l| l.place());
        Some(blocks)
    }
}
