//! Devices that programs wait for while others use them as well: how fast one is, and what its
//! flushes cost.
//!
//! Two rules bind at such a device, if it is fast ([`Sharing`]): operations without a waiting
//! caller are short and few, and their writes are flushed early. A flush may hold up every read
//! until all that was written before it is durable (a virtual disk of 300 MB/s: 1.2 ms for each MiB
//! written since the flush before it, so one at the end of a txg of 64 MiB stops every program for
//! 75 ms). Then a leaf flushes on its own when so much is written that a flush takes about
//! [`FLUSH_NS_GOAL`]; the flush of the txg has little left to do.

use base::Nanos;

use crate::policy::Prio;

/// How long a device counts as shared after an operation with a waiting caller.
const SHARED_SPAN: Nanos = Nanos::from_ms(100);
/// Time for 1 MiB at which a device is fast: 4 ms, 262 MB/s. At a slower one seeks are what others
/// wait for, and short operations make more of them.
const FAST_NS_PER_MIB_MAX: u64 = 4_000_000;
/// Time for 1 MiB above which one that was fast is slow: 6 ms, 175 MB/s. One short operation at a
/// time is slower than the device is, about half as fast at a virtual disk of 700 MB/s. A nearline
/// disk with its cache and flushes takes 9 ms for 1 MiB of a file that is written in order.
const SLOW_NS_PER_MIB_MIN: u64 = 6_000_000;
/// Operations that tell how fast a device is have at least this many bytes.
const SPEED_BYTES_MIN: u64 = 128 << 10;
/// About so many bytes of large operations, the last ones, tell how fast a device is: several times
/// what a disk's own cache takes without a flush in a short txg.
const SPEED_MEMORY_BYTES: u64 = 64 << 20;
/// Bytes of large operations before a device is known to be slow.
const SPEED_KNOWN_BYTES: u64 = 16 << 20;
/// One operation counts as at most this long for each that was at the device, a long seek and some
/// turns of a disk: now and then a virtual disk stands still for 100 ms and more.
const SPEED_OPERATION_NS_MAX: u64 = 20_000_000;
/// A flush counts as at most this long for 1 MiB of large writes before it: 52 MB/s.
const SPEED_FLUSH_NS_PER_MIB_MAX: u64 = 20_000_000;

/// What a flush should take at most at a shared device, about what a read of such a device takes;
/// twice what one of next to nothing takes, if that is more. Between two values that were measured
/// (`docs/benchmarks.md`): with 0.25 ms a receive is a third slower, with 1 ms an eighth.
const FLUSH_NS_GOAL: u64 = 500_000;
/// A flush after at most this many written bytes tells what one of nothing takes.
const FLUSH_BYTES_NOTHING: u64 = 64 << 10;
/// A flush after at least this many tells what each MiB adds.
const FLUSH_BYTES_SOME: u64 = 256 << 10;
/// No early flush after less.
const FLUSH_BYTES_MIN: u64 = 128 << 10;
/// Weight of a flush in the averages, as a part of so many.
const FLUSH_WEIGHT: u64 = 8;

/// What the last flushes of a device took, as a fixed part and one for each MiB before it.
#[derive(Default, Debug)]
struct FlushCost {
    fixed: Option<Nanos>,
    per_mib: Option<Nanos>,
}

impl FlushCost {
    /// A flush after `written` bytes took `took`. One that took longer than any device needs (a
    /// virtual disk that stands still) counts as 20 ms, and 20 ms for each MiB.
    fn took(&mut self, written: u64, took: Nanos) {
        let average = |old: Option<Nanos>, new: u64| {
            Some(Nanos(old.map_or(new, |old| (old.0 * (FLUSH_WEIGHT - 1) + new) / FLUSH_WEIGHT)))
        };
        if written <= FLUSH_BYTES_NOTHING {
            self.fixed = average(self.fixed, took.0.min(SPEED_OPERATION_NS_MAX));
        } else if written >= FLUSH_BYTES_SOME {
            let variable = took.0.saturating_sub(self.fixed.unwrap_or_default().0);
            let per_mib = (u128::from(variable) << 20) / u128::from(written);
            self.per_mib = average(self.per_mib, per_mib.min(u128::from(SPEED_FLUSH_NS_PER_MIB_MAX)) as u64);
        }
    }

    /// The bytes after which a flush takes about as long as it should; none if that is unknown.
    fn bytes_max(&self) -> Option<u64> {
        let (fixed, per_mib) = (self.fixed?.0, self.per_mib?.0);
        let variable = FLUSH_NS_GOAL.saturating_sub(fixed).max(fixed);
        Some(((variable << 20) / per_mib.max(1)).max(FLUSH_BYTES_MIN))
    }
}

/// Bytes written since a flush began.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Unflushed {
    /// All.
    all: u64,
    /// Those of large operations.
    large: u64,
}

/// Whether programs wait for a device that others use as well. Such a device, if it is fast, gets
/// short operations from those others: what is at the device already is what a program waits for.
///
/// Its speed is that of all operations at it together: an operation counts the time since the one
/// before it completed. The time that an operation takes itself would depend on how many others are
/// at the device, so that a device full of long operations would never count as fast. A flush after
/// large writes counts too: a disk takes them into its cache fast, and works for them then.
#[derive(Default, Debug)]
pub(crate) struct Sharing {
    /// When the last operation with a waiting caller completed.
    waited: Option<Nanos>,
    /// When the last large operation, or a flush that counts, completed.
    large: Option<Nanos>,
    /// Time in which the device worked for large operations, earlier ones weighing less.
    busy: Nanos,
    /// Bytes of the large operations within that time, weighed alike; 0 before the first one.
    bytes: u64,
    /// Bytes of the writes that completed after the last flush began.
    unflushed: Unflushed,
    flush: FlushCost,
    /// The device is slow; as long as nothing is known, it is not.
    is_slow: bool,
}

impl Sharing {
    /// An operation, or several as one, with `len` bytes completed `now`, and was given to the
    /// device at `started`; `beside` others are still at the device.
    pub fn completed(&mut self, (prio, write): (Prio, bool), len: u64, beside: u32, started: Nanos, now: Nanos) {
        if prio.has_waiter() {
            self.waited = Some(now);
        }
        if write {
            self.unflushed.all = self.unflushed.all.saturating_add(len);
        }
        if len >= SPEED_BYTES_MIN {
            let weight = u128::from(SPEED_MEMORY_BYTES.saturating_sub(len));
            let less = |sum: u64| (u128::from(sum) * weight / u128::from(SPEED_MEMORY_BYTES)) as u64;
            (self.busy, self.bytes) = (Nanos(less(self.busy.0)), less(self.bytes).saturating_add(len));
            if write {
                self.unflushed.large = self.unflushed.large.saturating_add(len);
            }
            self.worked(started, now, Nanos(SPEED_OPERATION_NS_MAX * (1 + u64::from(beside))));
        }
    }

    /// A flush begins; returns the bytes that it makes durable.
    pub fn flush_begins(&mut self) -> Unflushed {
        std::mem::take(&mut self.unflushed)
    }

    /// The flush of `bytes` that was given to the device at `started` completed `now`.
    pub fn flushed(&mut self, bytes: Unflushed, started: Nanos, now: Nanos) {
        self.flush.took(bytes.all, now.since(started));
        if bytes.large > 0 {
            self.worked(started, now, Nanos((bytes.large >> 10).saturating_mul(SPEED_FLUSH_NS_PER_MIB_MAX >> 10)));
        }
    }

    /// Whether so much is written that a flush, if programs wait for the device, is due.
    pub fn wants_flush(&self) -> bool {
        self.flush.bytes_max().is_some_and(|max| self.unflushed.all >= max)
    }

    fn worked(&mut self, started: Nanos, now: Nanos, max: Nanos) {
        let worked = now.since(self.large.map_or(started, |at| at.max(started))).min(max);
        self.busy = Nanos(self.busy.0.saturating_add(worked.0));
        self.large = Some(now);
        let bound = if self.is_slow { FAST_NS_PER_MIB_MAX } else { SLOW_NS_PER_MIB_MIN };
        if self.bytes >= SPEED_KNOWN_BYTES {
            self.is_slow = u128::from(self.busy.0) << 20 > u128::from(self.bytes) * u128::from(bound);
        }
    }

    /// Whether the device is fast and shared, with `waiting` operations at it for which callers
    /// wait.
    pub fn is_shared(&self, waiting: u32, now: Nanos) -> bool {
        let lately = self.waited.is_some_and(|at| now.since(at) < SHARED_SPAN);
        (waiting > 0 || lately) && !self.is_slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_devices_that_are_shared_get_short_operations_from_others() {
        let (ms, mib) = (Nanos::from_ms, 1 << 20);
        let mut at = Sharing::default();
        assert!(!at.is_shared(0, ms(1)));
        assert!(at.is_shared(1, ms(1)), "a caller waits");
        at.completed((Prio::Scrub, false), mib, 0, ms(0), ms(1));
        assert!(!at.is_shared(0, ms(1)));
        at.completed((Prio::SyncRead, false), 4096, 0, ms(1), ms(2));
        assert!(at.is_shared(0, ms(101)) && !at.is_shared(0, ms(102)));
        // A disk becomes slow, and fast again.
        let mut now = 2;
        let mut one_by_one = |at: &mut Sharing, took| {
            for _ in 0..200 {
                at.completed((Prio::Scrub, false), mib, 0, ms(now), ms(now + took));
                now += took + 100;
            }
            ms(now)
        };
        for (took, is_shared) in [(5, true), (7, false), (5, false), (3, true), (5, true)] {
            let end = one_by_one(&mut at, took);
            assert_eq!(at.is_shared(3, end), is_shared, "{took} ms");
        }
        // It stands still once.
        let end = one_by_one(&mut at, 3);
        at.completed((Prio::Scrub, false), mib / 8, 0, end, end + ms(5000));
        assert!(at.is_shared(3, end + ms(5000)));
        // Ten at once, which all end after 40 ms, are 10 MiB in 40 ms.
        let full = |each| {
            let mut at = Sharing::default();
            (0..200u64)
                .for_each(|i| at.completed((Prio::Scrub, false), mib, 9, ms(i / 10 * each), ms(i / 10 * each + each)));
            at.is_shared(1, ms(200 * each))
        };
        assert_eq!((full(40), full(100)), (true, false));
        // The cache of a disk takes 16 MiB at 2 ms each; a flush of 150 ms brings them to the disk.
        let cached = |flush: u64| {
            let mut at = Sharing::default();
            let mut now = 0;
            for _ in 0..4 {
                for _ in 0..16 {
                    at.completed((Prio::AsyncWrite, true), mib, 0, ms(now), ms(now + 2));
                    now += 2;
                }
                let bytes = at.flush_begins();
                at.flushed(bytes, ms(now), ms(now + flush));
                // One that brings no large write to it.
                let none = at.flush_begins();
                at.flushed(none, ms(now + flush), ms(now + flush + 1000));
                now += flush + 1000;
            }
            (0..16).for_each(|i| at.completed((Prio::AsyncWrite, true), mib, 0, ms(now + i * 2), ms(now + i * 2 + 2)));
            at.is_shared(1, ms(now + 32))
        };
        assert_eq!((cached(10), cached(150)), (true, false));
        at.completed((Prio::Scrub, true), mib, 0, Nanos(0), Nanos(u64::MAX));
        at.completed((Prio::Scrub, true), u64::MAX, 0, Nanos(0), Nanos(u64::MAX));
        let bytes = at.flush_begins();
        at.flushed(bytes, Nanos(0), Nanos(u64::MAX));
        assert!(!at.is_shared(0, Nanos(u64::MAX)), "sums cannot overflow");
    }

    #[test]
    fn flushes_come_so_often_that_one_is_short() {
        let us = |n| Nanos(n * 1000);
        // (us of a flush of nothing, us for each MiB, flushes due after bytes)
        for (fixed, per_mib, want) in [
            (0, 1000, 1 << 19),
            (100, 1600, 1 << 18),
            (10, 1, 490 << 20),
            (600, 1200, 1 << 19),
            (5000, 1000, 5 << 20),
            (0, 15_000, FLUSH_BYTES_MIN),
        ] {
            let mut at = Sharing::default();
            let mut now = Nanos(0);
            let mut write_until = |at: &mut Sharing, bytes: u64| {
                for _ in 0..bytes >> 17 {
                    assert!(!at.wants_flush(), "{fixed} {per_mib}");
                    at.completed((Prio::AsyncWrite, true), 1 << 17, 0, now, now + us(1));
                    now = now + us(1);
                }
            };
            let flush = |at: &mut Sharing| {
                let bytes = at.flush_begins();
                at.flushed(bytes, us(0), us(fixed + per_mib * bytes.all / (1 << 20)));
            };
            write_until(&mut at, 64 << 20);
            flush(&mut at);
            assert!(!at.wants_flush());
            flush(&mut at);
            // What the first one said before the fixed part was known passes.
            for _ in 0..50 {
                (0..512).for_each(|_| at.completed((Prio::AsyncWrite, true), 1 << 17, 0, Nanos(0), us(1)));
                flush(&mut at);
            }
            write_until(&mut at, want);
            assert!(at.wants_flush(), "{fixed} {per_mib}");
            flush(&mut at);
            assert!(!at.wants_flush());
        }
    }
}
