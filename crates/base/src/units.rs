//! Units: time, alignment and the way OpenZFS prints sizes.

use std::fmt;
use std::ops::{Add, Sub};

/// Monotonic nanoseconds of the world that the engine runs in; a moment or a span.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Nanos(pub u64);

impl Nanos {
    /// From whole microseconds.
    pub const fn from_us(us: u64) -> Nanos {
        Nanos(us * 1_000)
    }
    /// From whole milliseconds.
    pub const fn from_ms(ms: u64) -> Nanos {
        Nanos(ms * 1_000_000)
    }
    /// From whole seconds.
    pub const fn from_secs(s: u64) -> Nanos {
        Nanos(s * 1_000_000_000)
    }
    /// The span from `earlier` to `self`, 0 if `earlier` is later.
    pub fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
    /// The same in seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}
impl Add for Nanos {
    type Output = Nanos;
    fn add(self, rhs: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(rhs.0))
    }
}
impl Sub for Nanos {
    type Output = Nanos;
    fn sub(self, rhs: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(rhs.0))
    }
}

/// Wall-clock time since 1970 UTC, as files record it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct WallTime {
    /// Seconds since 1970, negative before.
    pub secs: i64,
    /// Nanoseconds within the second, 0..1_000_000_000.
    pub nanos: u32,
}

/// `v` rounded up to a multiple of `unit`, which must be a power of two.
pub const fn align_up(v: u64, unit: u64) -> u64 {
    (v + unit - 1) & !(unit - 1)
}
/// `v` rounded down to a multiple of `unit`, which must be a power of two.
pub const fn align_down(v: u64, unit: u64) -> u64 {
    v & !(unit - 1)
}

/// A number of bytes (or of anything) as `zpool list` prints it: at most five characters, `9.77K`,
/// `128K`, `1.40G`.
///
/// The number is divided by 1024 until it is below 1024; a whole quotient prints without a
/// fraction, any other with as many of two decimals as fit (the rule of OpenZFS's `zfs_nicenum`).
#[derive(Clone, Copy, Debug)]
pub struct NiceNum(pub u64);

impl fmt::Display for NiceNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut index = 0usize;
        let mut n = self.0;
        while n >= 1024 {
            n /= 1024;
            index += 1;
        }
        let unit = ["", "K", "M", "G", "T", "P", "E"][index];
        let div = 1u64 << (10 * index);
        if index == 0 || self.0.is_multiple_of(div) {
            return f.pad(&format!("{n}{unit}"));
        }
        let val = self.0 as f64 / div as f64;
        for decimals in (0..=2).rev() {
            let s = format!("{val:.decimals$}{unit}");
            if s.len() <= 5 {
                return f.pad(&s);
            }
        }
        f.pad(&format!("{n}{unit}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nicenum_prints_as_openzfs_does() {
        for (v, want) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1K"),
            (10_004, "9.77K"),
            (131_072, "128K"),
            (1_503_238_553, "1.40G"),
            (1 << 40, "1T"),
            (999 * 1024 + 512, "1000K"),
            (123_456_789, "118M"),
        ] {
            assert_eq!(NiceNum(v).to_string(), want, "{v}");
        }
    }
}
