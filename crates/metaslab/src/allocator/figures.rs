//! Space figures of classes and top-level vdevs.

use base::{Txg, VdevId};

use super::Allocator;
use super::class::{ClassKind, Group};

/// Space figures of a class, as of the last commit. The `_raw` ones are bytes of the vdevs, the
/// others are deflated, as charged to datasets.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ClassSpace {
    /// All metaslabs, deflated.
    pub total: u64,
    /// Allocated, deferred frees included, deflated.
    pub alloc: u64,
    /// Freed less than two txgs ago, deflated.
    pub deferred: u64,
    /// All metaslabs.
    pub total_raw: u64,
    /// Allocated, deferred frees included.
    pub alloc_raw: u64,
    /// Freed less than two txgs ago.
    pub deferred_raw: u64,
    /// Lower bound of the largest free segment, more than half of it.
    pub largest_free: u64,
    /// In percent; `None` if too few metaslabs know theirs.
    pub fragmentation: Option<u8>,
}

/// Space figures of a top-level vdev as of the last commit, in bytes of the vdev, the metaslab
/// reserved for the intent log included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TopSpace {
    /// The vdev.
    pub vdev: VdevId,
    /// Its class.
    pub class: ClassKind,
    /// Bytes in its metaslabs.
    pub total: u64,
    /// Allocated, deferred frees included.
    pub alloc: u64,
    /// Freed less than two txgs ago.
    pub deferred: u64,
    /// In percent; `None` if too few metaslabs know theirs.
    pub fragmentation: Option<u8>,
}

impl Allocator {
    /// Allocated and total bytes of a class, as of the last commit; cheap.
    pub fn class_use(&self, class: ClassKind) -> (u64, u64) {
        let inner = self.inner.borrow();
        let groups = inner.groups.iter().filter(|g| g.class == class);
        groups.fold((0, 0), |(alloc, total), g| (alloc + g.alloc, total + g.total))
    }

    /// The last txg of which an allocation had to leave a class, since it had no room; none since
    /// the import, or if the class has no vdevs.
    pub fn class_left(&self, class: ClassKind) -> Option<Txg> {
        self.inner.borrow().classes[class as usize].left
    }

    /// Space figures of a class.
    pub fn space(&self, class: ClassKind) -> ClassSpace {
        let inner = self.inner.borrow();
        let mut out = ClassSpace::default();
        let (mut frag, mut known) = (0u128, true);
        // Groups of vdevs that are gone have no space.
        for g in inner.groups.iter().filter(|g| g.class == class && g.total > 0) {
            out.total_raw += g.total;
            out.alloc_raw += g.alloc;
            out.deferred_raw += g.deferred;
            out.total += g.top.dsize(g.total);
            out.alloc += g.top.dsize(g.alloc);
            out.deferred += g.top.dsize(g.deferred);
            let best = g.by_weight.first().and_then(|(w, _)| w.0.index());
            out.largest_free = out.largest_free.max(best.map_or(0, |i| 1 << i));
            match g.fragmentation() {
                Some(f) => frag += u128::from(f) * u128::from(g.total),
                None => known = false,
            }
        }
        out.fragmentation = (known && out.total_raw > 0).then(|| (frag / u128::from(out.total_raw)) as u8);
        out
    }

    /// Space figures of every top-level vdev, ascending.
    pub fn top_spaces(&self) -> Vec<TopSpace> {
        let inner = self.inner.borrow();
        let mut out: Vec<TopSpace> = Vec::new();
        for top in inner.tops.iter().flatten() {
            let vdev = top.top.id;
            let groups = || inner.groups.iter().filter(|g| g.vdev == vdev);
            out.push(TopSpace {
                vdev,
                class: top.class,
                total: groups().map(|g| g.total).sum(),
                alloc: groups().map(|g| g.alloc).sum(),
                deferred: groups().map(|g| g.deferred).sum(),
                fragmentation: groups().find(|g| g.class == top.class).and_then(Group::fragmentation),
            });
        }
        out
    }
}
