//! Top-level vdevs come, grow and go; metaslabs are disabled and enabled.
//!
//! A disabled metaslab (`metaslab_disable` of OpenZFS) allocates nothing, while initializing or
//! trim work on its free ranges. An allocation that finds no space while any metaslab is disabled
//! waits until one is enabled again.

use std::cmp::Reverse;
use std::rc::Rc;

use base::{Error, ObjectId, Result, VdevId};
use rt::sync::Notify;
use vdev::Top;

use super::class::{ClassKind, Group};
use super::{Allocator, TopState};
use crate::metaslab::Metaslab;
use crate::range_tree::{RangeTree, Run};

/// Summary of a metaslab that is not loaded: its entry in the metaslab array and the header of its
/// space map.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MsSummary {
    /// Its space map object; `None` if it was never used.
    pub object: Option<ObjectId>,
    /// `smp_alloc`.
    pub alloc: i64,
    /// Its histogram, if the map has the long header.
    pub histogram: Option<[u64; 32]>,
    /// Bytes of entries.
    pub length: u64,
}

impl Allocator {
    /// Adds the metaslabs of `top` (its `ms_shift` is set), `summaries` one for each in order, to
    /// `class`. A normal vdev with many metaslabs reserves the one with the least allocated for the
    /// intent log. The arguments may come from disk: impossible values are `Corrupt`.
    pub fn add_top(&self, top: Rc<Top>, class: ClassKind, summaries: Vec<MsSummary>) -> Result<()> {
        let (vdev, shift) = (top.id, top.ms_shift.get());
        let bad = |what: String| Err(Error::corrupt(format!("top-level vdev {vdev}: {what}")));
        if !(9..=62).contains(&shift) || shift < top.ashift || !RangeTree::can_cover(1 << shift, top.ashift) {
            return bad(format!("metaslabs of 2^{shift} bytes in units of 2^{}", top.ashift));
        }
        if top.ms_count() == 0 || summaries.len() as u64 != top.ms_count() {
            return bad(format!("{} metaslabs are described, it has {}", summaries.len(), top.ms_count()));
        }
        let size = 1u64 << shift;
        for (i, s) in summaries.iter().enumerate() {
            let fits = u64::try_from(s.alloc).is_ok_and(|a| a <= size && a.is_multiple_of(1 << top.ashift));
            if !fits || s.object.is_none() && s.alloc != 0 {
                return bad(format!("metaslab {i} has {} of {size} bytes allocated", s.alloc));
            }
        }
        let mut inner = self.inner.borrow_mut();
        let at = vdev.0 as usize;
        if inner.tops.len() <= at {
            inner.tops.resize_with(at + 1, || None);
        }
        assert!(inner.tops[at].is_none(), "top-level vdev {vdev} was added before");
        let embedded = (class == ClassKind::Normal && summaries.len() as u64 > inner.tunables.embedded_slog_min_ms)
            .then(|| summaries.iter().enumerate().min_by_key(|(_, s)| s.alloc).map(|(i, _)| i))
            .flatten();
        let mut state = TopState { top: top.clone(), class, ms_shift: shift, metaslabs: Vec::new() };
        let main = inner.groups.len();
        let mut groups = vec![Group::new(class, &top)];
        if embedded.is_some() {
            groups.push(Group::new(ClassKind::EmbeddedLog, &top));
        }
        for (i, s) in summaries.into_iter().enumerate() {
            let own = usize::from(embedded == Some(i));
            let (start, size) = top.ms_range(i as u64);
            let run = Run { start, size };
            let ms = Metaslab::new(run, top.ashift, s.object, s.length, s.alloc as u64, s.histogram, main + own);
            let g = &mut groups[own];
            g.total += size;
            g.alloc += ms.committed.0;
            g.by_weight.insert((Reverse(ms.weight), i as u64));
            if let Some(f) = ms.fragmentation {
                g.known = (g.known.0 + 1, g.known.1 + u64::from(f));
            }
            state.metaslabs.push(ms);
        }
        for g in groups {
            let index = inner.groups.len();
            inner.classes[g.class as usize].groups.push(index);
            inner.groups.push(g);
        }
        inner.tops[at] = Some(state);
        Ok(())
    }

    /// Adds one metaslab for each of `summaries` to a vdev that has grown, in the vdev's class.
    pub fn grow_top(&self, vdev: VdevId, summaries: Vec<MsSummary>) -> Result<()> {
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        let state = inner.tops.get_mut(vdev.0 as usize).and_then(Option::as_mut);
        let state = state.ok_or_else(|| Error::corrupt(format!("no space is known on top-level vdev {vdev}")))?;
        let group = inner.groups.iter().position(|g| g.vdev == vdev && g.class == state.class);
        let group = group.expect("a vdev has a group of its class");
        for s in summaries {
            let i = state.metaslabs.len() as u64;
            let (start, size) = state.top.ms_range(i);
            let run = Run { start, size };
            let ms = Metaslab::new(run, state.top.ashift, s.object, s.length, s.alloc as u64, s.histogram, group);
            let g = &mut inner.groups[group];
            g.total += size;
            g.alloc += ms.committed.0;
            g.by_weight.insert((Reverse(ms.weight), i));
            if let Some(f) = ms.fragmentation {
                g.known = (g.known.0 + 1, g.known.1 + u64::from(f));
            }
            state.metaslabs.push(ms);
        }
        Ok(())
    }

    /// Stops allocation on a vdev that is being removed (`metaslab_group_passivate` of OpenZFS), or
    /// allows it again. Frees still work.
    pub fn set_passive(&self, vdev: VdevId, passive: bool) {
        let mut inner = self.inner.borrow_mut();
        let inner = &mut *inner;
        for (index, g) in inner.groups.iter_mut().enumerate().filter(|(_, g)| g.vdev == vdev) {
            let class = &mut inner.classes[g.class as usize];
            class.groups.retain(|i| *i != index);
            if !passive {
                class.groups.push(index);
                class.groups.sort_unstable();
            }
            (class.rotor, class.used) = (0, 0);
            g.active = [None; 3];
        }
    }

    /// Bytes of a vdev in use, deferred frees included; one more while changes are pending.
    pub fn in_use(&self, vdev: VdevId) -> u64 {
        let inner = self.inner.borrow();
        let own = inner.groups.iter().filter(|g| g.vdev == vdev);
        let pending = inner.pending.iter().any(|(v, _)| *v == vdev);
        own.map(|g| g.alloc).sum::<u64>() + u64::from(pending)
    }

    /// The space map objects of a vdev.
    pub fn space_maps(&self, vdev: VdevId) -> Vec<ObjectId> {
        let inner = self.inner.borrow();
        let top = inner.tops.get(vdev.0 as usize).and_then(Option::as_ref);
        top.iter().flat_map(|t| &t.metaslabs).filter_map(|m| m.object).collect()
    }

    /// Drops a vdev without space in use. Its id may be added again.
    pub fn remove_top(&self, vdev: VdevId) {
        assert_eq!(self.in_use(vdev), 0, "a vdev that is removed has nothing on it");
        self.forget_top(vdev);
    }

    /// Drops a vdev, whatever is in use on it: all of that has copies elsewhere. For the beginning
    /// of the sync of a txg, which has changed nothing on it.
    pub fn forget_top(&self, vdev: VdevId) {
        self.set_passive(vdev, true);
        let mut inner = self.inner.borrow_mut();
        inner.tops[vdev.0 as usize] = None;
        inner.loaded.retain(|(v, _)| *v != vdev);
        inner.pending.retain(|(v, _)| *v != vdev);
        inner.dirty.iter_mut().for_each(|d| d.retain(|(v, _)| *v != vdev));
        inner.disabled.retain(|(v, _)| *v != vdev);
        inner.trims.retain(|(v, _)| *v != vdev);
        // Groups are referred to by index: these stay, without space.
        for g in inner.groups.iter_mut().filter(|g| g.vdev == vdev) {
            (g.vdev, g.total, g.known) = (VdevId(u32::MAX), 0, (0, 0));
            (g.alloc, g.deferred) = (0, 0);
            g.by_weight.clear();
        }
    }

    /// What is in use in a metaslab and was freed in no txg yet, ascending: without what waits to
    /// return. The load error of the metaslab.
    pub async fn live(&self, vdev: VdevId, ms: u64) -> Result<Vec<Run>> {
        self.load(vdev, ms).await?;
        // It stays loaded until the next await.
        Ok(self.inner.borrow_mut().ms(vdev, ms).live().unwrap_or_default())
    }

    /// What is in use in a metaslab according to its space map, ascending, and whether allocations
    /// of txgs that were not synced yet are missing in it. The load error of the metaslab.
    pub async fn allocated(&self, vdev: VdevId, ms: u64) -> Result<(Vec<Run>, bool)> {
        self.load(vdev, ms).await?;
        // It stays loaded until the next await.
        let mut inner = self.inner.borrow_mut();
        let m = inner.ms(vdev, ms);
        Ok((m.allocated_in_map().unwrap_or_default(), m.is_allocating()))
    }

    /// Bytes of [`Allocator::live`] in all metaslabs of a vdev that allocates nothing.
    pub fn live_bytes(&self, vdev: VdevId) -> u64 {
        let inner = self.inner.borrow();
        let top = inner.tops.get(vdev.0 as usize).and_then(Option::as_ref);
        top.iter().flat_map(|t| &t.metaslabs).map(Metaslab::live_bytes).sum()
    }

    /// Free segments of a vdev that has no new blocks, by their size: how many have 2^b bytes and
    /// more, for b from 0 on; as of the space maps.
    pub fn free_histogram(&self, vdev: VdevId) -> [u64; 64] {
        let inner = self.inner.borrow();
        let mut out = [0; 64];
        let Some(top) = inner.tops.get(vdev.0 as usize).and_then(Option::as_ref) else { return out };
        for (b, n) in top.metaslabs.iter().flat_map(|m| m.free_histogram().into_iter().enumerate()) {
            out[(b + usize::from(top.top.ashift)).min(63)] += n;
        }
        out
    }

    /// Stops allocation in a metaslab until [`Allocator::enable`], and returns its free ranges,
    /// which hold no live data. Calls nest.
    pub async fn disable(&self, vdev: VdevId, ms: u64) -> Result<Vec<Run>> {
        {
            let mut inner = self.inner.borrow_mut();
            inner.ms(vdev, ms).disabled += 1;
            inner.disabled.insert((vdev, ms));
        }
        let loaded = self.load(vdev, ms).await;
        let free = self.inner.borrow_mut().ms(vdev, ms).loaded().map(|l| l.free.iter().collect());
        if loaded.is_err() {
            self.enable(vdev, ms);
        }
        loaded.map(|()| free.unwrap_or_default())
    }

    /// Undoes [`Allocator::disable`].
    pub fn enable(&self, vdev: VdevId, ms: u64) {
        let mut inner = self.inner.borrow_mut();
        // The vdev may have been removed meanwhile.
        if inner.tops.get(vdev.0 as usize).is_some_and(Option::is_some) {
            let m = inner.ms(vdev, ms);
            m.disabled = m.disabled.saturating_sub(1);
            if m.disabled > 0 {
                return;
            }
        }
        inner.disabled.remove(&(vdev, ms));
        inner.enabled.notify_all();
    }

    /// The event to wait for before `NoSpace`, if a metaslab is disabled: it may have the space.
    pub(super) fn wait_for_enable(&self) -> Option<Rc<Notify>> {
        let inner = self.inner.borrow();
        (!inner.disabled.is_empty()).then(|| inner.enabled.clone())
    }
}
