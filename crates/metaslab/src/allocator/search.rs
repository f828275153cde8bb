//! The choice of a place: class, group, metaslab, segment.
//!
//! A search goes through the classes that may serve the request, in each through three *tiers* of
//! distance from the block's other copies, and in each tier through the groups from the rotor on.
//! In a group the active metaslab of that copy comes first, then the others by weight. A metaslab
//! that is not loaded ends the search with [`Found::Load`]: the caller loads it and searches again.

use std::ops::Bound::{Excluded, Unbounded};

use base::{Txg, VdevId};
use ondisk::blkptr::Dva;

use super::Inner;
use super::class::ClassKind;
use crate::metaslab::{Metaslab, State};
use crate::weight::Weight;

pub(super) enum Found {
    At(Dva),
    Load(VdevId, u64),
    Nothing,
}

/// Required distance from other copies of the block: copies are kept apart, to survive local
/// damage.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tier {
    /// At least an eighth of the vdev away from other copies, in no metaslab that is active for
    /// other copies.
    Far,
    /// In a metaslab without other copies.
    Apart,
    /// Anywhere, without a limit on the search.
    Any,
}

impl Inner {
    pub(super) fn search(&mut self, class: ClassKind, psize: u64, txg: Txg, avoid: &[Dva]) -> Found {
        assert!(psize > 0, "an allocation of nothing was asked for");
        for &choice in class.choices() {
            let count = self.classes[choice as usize].groups.len();
            for tier in [Tier::Far, Tier::Apart, Tier::Any] {
                let first = self.first_group(choice, avoid);
                for i in 0..count {
                    let at = (first + i) % count;
                    let group = self.classes[choice as usize].groups[at];
                    // A pool may be imported without a log device, which may come back later.
                    let top = &self.groups[group].top;
                    if top.is_log && !top.is_usable() {
                        continue;
                    }
                    if tier == Tier::Far && count > 1 && self.too_fragmented(choice, group) {
                        continue;
                    }
                    match self.alloc_in_group(group, psize, txg, avoid, tier) {
                        Found::Nothing => {}
                        Found::At(dva) => {
                            self.advance_rotor(choice, at, dva.asize(), avoid.is_empty());
                            return Found::At(dva);
                        }
                        load => return load,
                    }
                }
            }
            if count > 0 {
                self.classes[choice as usize].left = Some(txg);
            }
        }
        Found::Nothing
    }

    /// Index of the first group to search: a further copy starts at the group after the last
    /// copy's.
    fn first_group(&self, class: ClassKind, avoid: &[Dva]) -> usize {
        let c = &self.classes[class as usize];
        let place = |dva: &Dva| c.groups.iter().position(|&g| self.groups[g].vdev == dva.vdev());
        avoid.last().and_then(place).map_or(c.rotor, |p| p + 1)
    }

    fn too_fragmented(&self, class: ClassKind, group: usize) -> bool {
        let limit = self.tunables.mg_fragmentation_threshold;
        let over = |g: usize| self.groups[g].fragmentation().is_some_and(|f| f > limit);
        over(group) && !self.classes[class as usize].groups.iter().all(|&g| over(g))
    }

    /// Counts `asize` bytes allocated from the group at `at`, and advances the rotor after the
    /// group's share.
    fn advance_rotor(&mut self, class: ClassKind, at: usize, asize: u64, counts: bool) {
        let rotates = matches!(class, ClassKind::Log | ClassKind::EmbeddedLog);
        let (mut total, mut free) = (0u128, 0u128);
        let c = &self.classes[class as usize];
        if c.groups.len() < 2 || !counts {
            return;
        }
        for &g in &c.groups {
            total += u128::from(self.groups[g].total);
            free += u128::from(self.groups[g].total - self.groups[g].alloc.min(self.groups[g].total));
        }
        let g = &self.groups[c.groups[at]];
        let own = u128::from(g.total - g.alloc.min(g.total));
        let plain = u128::from(self.tunables.aliquot);
        // A vdev emptier than the class average gets a larger share, so that vdevs fill up
        // together.
        let share = if free == 0 || g.total == 0 { plain } else { plain * own * total / (free * u128::from(g.total)) };
        let share = share.clamp(plain / 4, plain * 4) as u64;
        let (count, c) = (c.groups.len(), &mut self.classes[class as usize]);
        if c.rotor != at {
            (c.rotor, c.used) = (at, 0);
        }
        c.used += asize;
        if rotates || c.used >= share {
            (c.rotor, c.used) = ((at + 1) % count, 0);
        }
    }

    fn alloc_in_group(&mut self, group: usize, psize: u64, txg: Txg, avoid: &[Dva], tier: Tier) -> Found {
        let copy = avoid.len().min(2);
        let g = &self.groups[group];
        let (vdev, asize) = (g.vdev, g.top.asize_of(psize, txg));
        let distance = g.top.asize.get() >> 3;
        if let Some((ms, _)) = g.active[copy]
            && self.is_far_enough(vdev, ms, avoid, tier, distance)
            && let Some(dva) = self.alloc_in_metaslab(vdev, ms, asize, txg)
        {
            return Found::At(dva);
        }
        let (mut tries, mut after) = (0, None);
        loop {
            let g = &self.groups[group];
            let next = match after {
                None => g.by_weight.first(),
                Some(key) => g.by_weight.range((Excluded(key), Unbounded)).next(),
            };
            let Some(&(weight, ms)) = next else { return Found::Nothing };
            after = Some((weight, ms));
            if weight.0 == Weight(0) && tier != Tier::Any {
                return Found::Nothing;
            }
            tries += 1;
            if tier != Tier::Any && tries > self.tunables.find_max_tries {
                return Found::Nothing;
            }
            let in_use = g.active.iter().enumerate().any(|(i, a)| i != copy && a.is_some_and(|(m, _)| m == ms));
            if tier == Tier::Far && in_use || !self.is_far_enough(vdev, ms, avoid, tier, distance) {
                continue;
            }
            let m = self.ms(vdev, ms);
            // Weights are estimates: histograms on disk count adjacent segments separately, and do
            // not include later frees. In the last tier check the metaslab itself.
            let may_fit = if tier == Tier::Any { m.largest_allocatable() >= asize } else { weight.0.may_fit(asize) };
            if m.broken.is_some() || m.disabled > 0 || !may_fit {
                continue;
            }
            if !m.is_loaded() {
                if m.object.is_some() || matches!(m.state, State::Loading(_)) {
                    return Found::Load(vdev, ms);
                }
                // Never used: no space map to read.
                self.finish_load(vdev, ms, Ok(None)).expect("an untouched metaslab is free");
            }
            if let Some(dva) = self.alloc_in_metaslab(vdev, ms, asize, txg) {
                let weight = self.ms(vdev, ms).weight;
                let old = self.groups[group].active[copy].replace((ms, weight));
                if let Some((old, _)) = old {
                    self.change(vdev, old, Metaslab::reweigh);
                }
                return Found::At(dva);
            }
            // Its weight was too high, for instance after later allocations.
            self.change(vdev, ms, Metaslab::reweigh);
        }
    }

    fn alloc_in_metaslab(&mut self, vdev: VdevId, ms: u64, asize: u64, txg: Txg) -> Option<Dva> {
        let top = self.tops[vdev.0 as usize].as_mut().expect("metaslabs are named by the allocator");
        let start = top.metaslabs[ms as usize].allocate(asize, txg, &self.tunables)?;
        self.mark_dirty(vdev, ms, txg);
        Some(Dva::new(vdev, start, asize, false))
    }

    fn is_far_enough(&self, vdev: VdevId, ms: u64, avoid: &[Dva], tier: Tier, distance: u64) -> bool {
        let Some(top) = self.tops[vdev.0 as usize].as_ref() else { return false };
        let start = ms << top.ms_shift;
        let apart = |dva: &Dva| {
            let other = dva.offset() >> top.ms_shift;
            match tier {
                Tier::Far => other != ms && start.abs_diff(other << top.ms_shift) >= distance,
                Tier::Apart => other != ms,
                Tier::Any => true,
            }
        };
        avoid.iter().filter(|d| d.vdev() == vdev).all(apart)
    }
}
