//! The throttle policies: values of one enum, chosen per pool and changed at run time.
//!
//! * `openzfs`: the curve of [`crate::policy`], for dirty data and for the intent log, whichever
//!   delays longer.
//! * `openzfs-2013`: the curve as it first came, without a limit for the intent log. Dirty bytes
//!   are taken back device by device as each writes its part of a block ([`part_share`] computes
//!   the share); later versions wait for the whole block.
//! * `legacy-2008`: a limit per txg, learned from how fast txgs were written ([`crate::legacy`]).
//! * `smoothing`: the curve, and for some seconds after the dirty share fell below it a small delay
//!   that goes on.
//! * `none`: no delay; at the limit all transactions block.

use base::{Error, Nanos, Result};

use crate::policy::{TxgTunables, delay_ns, wrlog_delay_ns};

/// Which throttle a pool has.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ThrottlePolicy {
    /// The delay curve of OpenZFS 2.1 and later.
    #[default]
    OpenZfs,
    /// The delay curve as of 2013.
    OpenZfs2013,
    /// The write limit of 2008 to 2013.
    Legacy2008,
    /// The delay curve, with delays that outlast the overload.
    Smoothing,
    /// No delays.
    None,
}

impl ThrottlePolicy {
    /// All of them, in the order of their numbers (tunable `throttle`).
    pub const ALL: [ThrottlePolicy; 5] = [
        ThrottlePolicy::OpenZfs,
        ThrottlePolicy::OpenZfs2013,
        ThrottlePolicy::Legacy2008,
        ThrottlePolicy::Smoothing,
        ThrottlePolicy::None,
    ];

    /// The name that commands use.
    pub const fn name(self) -> &'static str {
        match self {
            ThrottlePolicy::OpenZfs => "openzfs",
            ThrottlePolicy::OpenZfs2013 => "openzfs-2013",
            ThrottlePolicy::Legacy2008 => "legacy-2008",
            ThrottlePolicy::Smoothing => "smoothing",
            ThrottlePolicy::None => "none",
        }
    }

    /// The policy of that name.
    pub fn parse(name: &str) -> Result<ThrottlePolicy> {
        ThrottlePolicy::ALL.into_iter().find(|p| p.name() == name).ok_or_else(|| {
            let all: Vec<&str> = ThrottlePolicy::ALL.iter().map(|p| p.name()).collect();
            Error::invalid(format!("'{name}' is not a throttle policy: there are {}", all.join(", ")))
        })
    }

    /// Whether a txg is closed because of its share of the dirty limit. In 2008 only time and the
    /// write limit closed one.
    pub const fn closes_by_share(self) -> bool {
        !matches!(self, ThrottlePolicy::Legacy2008)
    }

    /// Whether dirty bytes are taken back device by device ([`part_share`]), not when the whole
    /// block is written.
    pub const fn retires_by_part(self) -> bool {
        matches!(self, ThrottlePolicy::OpenZfs2013)
    }
}

/// When the dirty share was last above the share at which delays begin ([`Load::above`]), `dirty`
/// bytes being dirty `now`; `above` is the answer before. Only `smoothing` asks.
pub fn above_after(above: Option<Nanos>, dirty: u64, now: Nanos, t: &TxgTunables) -> Option<Nanos> {
    match t.policy {
        ThrottlePolicy::Smoothing if dirty > t.delay_min() => Some(now),
        ThrottlePolicy::Smoothing => above,
        _ => None,
    }
}

/// Input of a transaction's delay.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Load {
    /// Dirty bytes.
    pub dirty: u64,
    /// Bytes of intent log that no txg has made unnecessary yet.
    pub wrlog: u64,
    /// When the dirty share was last above the share at which delays begin; none: never.
    pub above: Option<Nanos>,
    /// The time.
    pub now: Nanos,
}

/// How long a transaction is delayed, by the pool's policy. The write limit of 2008 does not work
/// by delays of this kind.
pub fn delay(load: &Load, t: &TxgTunables) -> Nanos {
    match t.policy {
        ThrottlePolicy::OpenZfs => delay_ns(load.dirty, t).max(wrlog_delay_ns(load.wrlog, t)),
        ThrottlePolicy::OpenZfs2013 => delay_ns(load.dirty, t),
        ThrottlePolicy::Smoothing => {
            delay_ns(load.dirty, t).max(wrlog_delay_ns(load.wrlog, t)).max(smoothing_ns(load, t))
        }
        ThrottlePolicy::Legacy2008 | ThrottlePolicy::None => Nanos(0),
    }
}

/// The rest of a delay after the overload: `smoothing_scale * dirty / (max - dirty)` for
/// `write_smoothing` after the dirty share was above the share where delays begin, then nothing.
pub fn smoothing_ns(load: &Load, t: &TxgTunables) -> Nanos {
    let within = load.above.is_some_and(|at| load.now < at + t.write_smoothing);
    if !within || load.dirty == 0 {
        return Nanos(0);
    }
    if load.dirty >= t.dirty_data_max {
        return t.delay_max;
    }
    let ns = u128::from(t.smoothing_scale) * u128::from(load.dirty) / u128::from(t.dirty_data_max - load.dirty);
    Nanos(u64::try_from(ns).unwrap_or(u64::MAX)).min(t.delay_max)
}

/// Dirty bytes of a block of `size` that are taken back when physical write number `nth` (from 0)
/// of `copies` has been written: equal shares, rounded down; the last one takes the rest.
pub fn part_share(size: u64, copies: u64, nth: u64) -> u64 {
    let copies = copies.max(1);
    let share = size / copies;
    if nth + 1 >= copies { size - share * (copies - 1) } else { share }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(policy: ThrottlePolicy) -> TxgTunables {
        TxgTunables { policy, ..TxgTunables::default() }
    }

    #[test]
    fn names_are_parsed_back_and_others_refused() {
        for p in ThrottlePolicy::ALL {
            assert_eq!(ThrottlePolicy::parse(p.name()).expect("its own name"), p);
        }
        let e = ThrottlePolicy::parse("openzf").expect_err("no such policy").to_string();
        assert!(e.contains("legacy-2008"), "{e}");
    }

    #[test]
    fn questions_of_each_policy() {
        use ThrottlePolicy::*;
        for p in ThrottlePolicy::ALL {
            assert_eq!(p.retires_by_part(), p == OpenZfs2013, "{}", p.name());
        }
        let (old, now) = (Some(Nanos(1)), Nanos(2));
        for p in ThrottlePolicy::ALL {
            let t = with(p);
            for (dirty, want) in [(t.delay_min(), old), (t.delay_min() + 1, Some(now)), (0, old)] {
                let want = want.filter(|_| p == Smoothing);
                assert_eq!(above_after(old, dirty, now, &t), want, "{} at {dirty}", p.name());
            }
        }
    }

    #[test]
    fn the_delay_of_each_policy() {
        const GIB: u64 = 1 << 30;
        // 4 GiB limit. Dirty 80 %: 500 us; log of 8 GiB limit at 90 %: 500000 * (7.2 - 4.8) / (8 -
        // 7.2) = 1.5 ms, less the rounding of the shares.
        let load = |dirty_pm: u64, log_pm: u64, above: Option<u64>, now: u64| Load {
            dirty: 4 * GIB / 1000 * dirty_pm,
            wrlog: 8 * GIB / 1000 * log_pm,
            above: above.map(Nanos::from_ms),
            now: Nanos::from_ms(now),
        };
        use ThrottlePolicy::*;
        let us = |p, l: &Load| delay(l, &with(p)).0 / 1000;
        let both = load(800, 900, Some(0), 1);
        assert_eq!((us(OpenZfs, &both), us(OpenZfs2013, &both)), (1499, 499));
        assert_eq!((us(Legacy2008, &both), us(None, &both), us(Smoothing, &both)), (0, 0, 1499));
        // 100000 * 0.5 / 0.5 = 100 us, as long as the overload was less than 5 s ago.
        for (above, now, want) in
            [(Some(1000), 1000, 99), (Some(1000), 5999, 99), (Some(1000), 6000, 0), (Option::None, 1, 0)]
        {
            assert_eq!(us(Smoothing, &load(500, 0, above, now)), want, "{above:?} at {now}");
        }
        // 100000 * 0.25 / 0.75 = 33 us; 0.9 / 0.1 = 900 us but the curve gives 1.5 ms.
        assert_eq!(us(Smoothing, &load(250, 0, Some(0), 1)), 33);
        assert_eq!(us(Smoothing, &load(900, 0, Some(0), 1)), 1499);
        assert_eq!(us(Smoothing, &load(1001, 0, Some(0), 1)), 100_000);
        assert_eq!(us(Smoothing, &load(0, 0, Some(0), 1)), 0);
        let wild = TxgTunables { smoothing_scale: u64::MAX, dirty_data_max: u64::MAX, ..with(Smoothing) };
        assert_eq!(delay(&Load { dirty: u64::MAX - 1, ..both }, &wild), wild.delay_max, "no overflow");
    }

    #[test]
    fn copies_take_back_equal_shares_and_all_together() {
        for (size, copies, want) in [
            (8192, 1, vec![8192]),
            (8192, 2, vec![4096, 4096]),
            (8192, 3, vec![2730, 2730, 2732]),
            (5, 3, vec![1, 1, 3]),
            (2, 3, vec![0, 0, 2]),
            (7, 0, vec![7]),
        ] {
            let got: Vec<u64> = (0..copies.max(1)).map(|n| part_share(size, copies, n)).collect();
            assert_eq!(got, want);
            assert_eq!(got.iter().sum::<u64>(), size);
        }
    }
}
