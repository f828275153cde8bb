//! Whether to look for completions for a moment before going to sleep.
//!
//! A thread that sleeps in the kernel hears of a completion some 20 us late (interrupt, wake-up, on virtual machines the way back from the halted
//! core), which is a fair part of what a fast disk needs for a read. So while devices have operations of ours, the engine looks at the ring for a
//! moment first: on an SSD at 8 reads in flight the next one ends after about 40 us. Measured with `bench_dmu` (rows=randr) on such a disk:
//! 0.72 of the raw rate without looking, 0.9 with it, at the same CPU time an operation, since a sleep and a wake-up cost as much.
//!
//! Invariants: nothing is looked for when no device operation is in flight (an idle pool sleeps); looks that come to nothing make further ones rare, so a
//! slow disk costs at most [`SPIN_MAX`] in each of [`RARE`] waits.

use std::time::Duration;

/// The longest look.
pub(crate) const SPIN_MAX: Duration = Duration::from_micros(100);
/// After looks in vain, one wait of so many begins with a look.
const RARE: u32 = 32;
/// How much success is remembered: looks in vain, one after the other, until they become rare.
const TRUST_MAX: u32 = 8;

/// What the last looks came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Spin {
    trust: u32,
    waits: u32,
}

impl Spin {
    /// How long to look before a wait, if at all, with `in_flight` operations at devices.
    pub(crate) fn before_wait(&mut self, in_flight: u32) -> Option<Duration> {
        if in_flight == 0 {
            return None;
        }
        self.waits = self.waits.wrapping_add(1);
        (self.trust > 0 || self.waits.is_multiple_of(RARE)).then_some(SPIN_MAX)
    }

    /// What a look came to.
    pub(crate) fn looked(&mut self, found: bool) {
        self.trust = if found { (self.trust + 2).min(TRUST_MAX) } else { self.trust.saturating_sub(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_pools_sleep() {
        let mut s = Spin::default();
        s.looked(true);
        assert!((0..1000).all(|_| s.before_wait(0).is_none()));
    }

    #[test]
    fn looks_in_vain_become_rare_and_success_brings_them_back() {
        let mut s = Spin { trust: TRUST_MAX, waits: 0 };
        let mut looks = 0;
        for _ in 0..1000 {
            if s.before_wait(3).is_some() {
                looks += 1;
                s.looked(false);
            }
        }
        assert!((30..=TRUST_MAX + 1000 / RARE + 1).contains(&looks), "{looks}");
        let first = (0..RARE).find(|_| s.before_wait(1).is_some());
        assert!(first.is_some());
        s.looked(true);
        assert!(s.before_wait(1).is_some() && s.before_wait(1).is_some());
    }
}
