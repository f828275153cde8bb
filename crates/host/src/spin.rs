//! Whether to look for completions for a moment before going to sleep.
//!
//! A thread that sleeps in the kernel notices a completion late: an interrupt, a wake-up, on
//! virtual machines the way back of a halted core, 20 to 100 us in all, which is as much as a fast
//! disk needs for a read and several times the cost of a FUSE request. The sender of a request pays
//! for waking the sleeper, too. So before it sleeps the engine polls the ring for a moment.
//! Measured with `bench_dmu` (rows=randr) on an SSD that ends one of 8 reads every 40 us: 0.72 of
//! the raw rate without looking, 0.9 with it, at the same CPU time an operation, since a sleep and
//! a wake-up cost as much.
//!
//! Invariants: looks in vain make further ones rare, so a slow disk, a slow client or an idle pool
//! cost at most [`SPIN_MAX`] in each of [`RARE`] waits; an engine that lost its core to another
//! thread while it looked stops looking, because others need the core.

use std::time::Duration;

/// The longest look.
pub(crate) const SPIN_MAX: Duration = Duration::from_micros(100);
/// A gap between two looks at the ring from which on another thread had the core meanwhile: a slice
/// of the scheduler is longer, interrupts are shorter.
pub(crate) const STOLEN: Duration = Duration::from_micros(500);
/// After looks in vain, one wait of so many begins with a look.
const RARE: u32 = 32;
/// Memory of success: looks in vain, one after the other, until they become rare.
const TRUST_MAX: u32 = 8;

/// The success of the last looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Spin {
    trust: u32,
    waits: u32,
}

impl Spin {
    /// How long to look before a wait, if at all.
    pub(crate) fn before_wait(&mut self) -> Option<Duration> {
        self.waits = self.waits.wrapping_add(1);
        (self.trust > 0 || self.waits.is_multiple_of(RARE)).then_some(SPIN_MAX)
    }

    /// Records a look: whether something was found, and whether the core was ours all the time.
    pub(crate) fn looked(&mut self, found: bool, alone: bool) {
        self.trust = match (found, alone) {
            (_, false) => 0,
            (true, true) => (self.trust + 2).min(TRUST_MAX),
            (false, true) => self.trust.saturating_sub(1),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_in_vain_become_rare_and_success_brings_them_back() {
        let mut s = Spin { trust: TRUST_MAX, waits: 0 };
        let mut looks = 0;
        for _ in 0..1000 {
            if s.before_wait().is_some() {
                looks += 1;
                s.looked(false, true);
            }
        }
        assert!((30..=TRUST_MAX + 1000 / RARE + 1).contains(&looks), "{looks}");
        assert!((0..RARE).any(|_| s.before_wait().is_some()));
        s.looked(true, true);
        assert!(s.before_wait().is_some() && s.before_wait().is_some());
    }

    #[test]
    fn a_core_that_others_need_is_left_to_them() {
        let mut s = Spin { trust: TRUST_MAX, waits: 1 };
        s.looked(true, false);
        assert!(s.before_wait().is_none());
    }
}
