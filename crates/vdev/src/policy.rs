//! The choice of a leaf queue's next class: classes, limits and priorities (OpenZFS
//! `vdev_queue.c`).
//!
//! Every operation belongs to a class. A class has a minimum and a maximum of operations in flight
//! at one leaf. First come the classes that are below their minimum, round-robin from the one after
//! the last served, so that no class starves; then, in the order of priority, classes below their
//! maximum. Two rules bend the limits: the maximum of async writes rises with the pool's dirty data
//! (little: favour reads; much: write at full depth), and the *non-interactive* classes (scrub,
//! removal, initializing, rebuild) get few operations while interactive ones are in flight.
//!
//! The choice is a function of [`QueueState`], the tunables and the gauge; `leaf` only counts and
//! submits.

use std::cell::Cell;
use std::rc::Rc;

use rt::CpuClass;

/// The I/O classes in the order of their priority.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Prio {
    /// A read with a waiting caller.
    SyncRead,
    /// A write with a waiting caller: the intent log.
    SyncWrite,
    /// Prefetch.
    AsyncRead,
    /// Writes of a syncing txg.
    AsyncWrite,
    /// Scrub and resilver.
    Scrub,
    /// Device removal.
    Removal,
    /// Initializing free space.
    Initializing,
    /// Trim.
    Trim,
    /// Sequential rebuild.
    Rebuild,
}

/// Number of classes.
pub const CLASSES: usize = 9;

impl Prio {
    /// All classes in the order of their priority.
    pub const ALL: [Prio; CLASSES] = [
        Prio::SyncRead,
        Prio::SyncWrite,
        Prio::AsyncRead,
        Prio::AsyncWrite,
        Prio::Scrub,
        Prio::Removal,
        Prio::Initializing,
        Prio::Trim,
        Prio::Rebuild,
    ];

    /// The class of CPU jobs for operations of this class: those with a waiting caller go before
    /// the compression of a txg.
    pub fn cpu_class(self) -> CpuClass {
        if self.has_waiter() { CpuClass::Urgent } else { CpuClass::Bulk }
    }

    /// The index in [`Prio::ALL`] and in every array by class.
    pub const fn index(self) -> usize {
        self as usize
    }
    /// The name that `zpool iostat -q` uses for the class.
    pub const fn name(self) -> &'static str {
        match self {
            Prio::SyncRead => "syncq_read",
            Prio::SyncWrite => "syncq_write",
            Prio::AsyncRead => "asyncq_read",
            Prio::AsyncWrite => "asyncq_write",
            Prio::Scrub => "scrubq_read",
            Prio::Removal => "removalq",
            Prio::Initializing => "initq_write",
            Prio::Trim => "trimq_write",
            Prio::Rebuild => "rebuildq_write",
        }
    }
    /// Whether the class is interactive; the others give way to interactive ones. Trim is.
    pub const fn is_interactive(self) -> bool {
        !matches!(self, Prio::Scrub | Prio::Removal | Prio::Initializing | Prio::Rebuild)
    }
    /// Whether a caller waits for operations of the class.
    pub const fn has_waiter(self) -> bool {
        matches!(self, Prio::SyncRead | Prio::SyncWrite)
    }
    /// Whether the class is served in the order of arrival; the others go by offset within
    /// half-second buckets.
    pub const fn is_fifo(self) -> bool {
        matches!(self, Prio::SyncRead | Prio::SyncWrite | Prio::Trim)
    }
}

/// The scheduler of a leaf (property `scheduler` of OpenZFS 2.4; `deadline` is for comparison).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Scheduler {
    /// The best one for the device. OpenZFS's rule uses `on` for files and rotating disks; weir so
    /// far for every device.
    #[default]
    Auto,
    /// Classes with minimums and maximums.
    On,
    /// First come, first served, all at once: no classes, no limits, no aggregation.
    Off,
    /// The scheduler of before 2013: one order by deadline and offset, one depth for all classes.
    Deadline,
}

impl Scheduler {
    /// All schedulers, by number (tunable `scheduler`).
    pub const ALL: [Scheduler; 4] = [Scheduler::Auto, Scheduler::On, Scheduler::Off, Scheduler::Deadline];

    /// The name that commands use.
    pub const fn name(self) -> &'static str {
        match self {
            Scheduler::Auto => "auto",
            Scheduler::On => "on",
            Scheduler::Off => "off",
            Scheduler::Deadline => "deadline",
        }
    }
}

/// Why a leaf tries to issue operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// An operation was queued.
    Arrival,
    /// An operation completed.
    Completion,
}

/// The scheduler of before 2013: how many operations may be issued now (`zfs_vdev_min_pending` 4,
/// `zfs_vdev_max_pending` 10, `zfs_vdev_ramp_rate` 2).
pub fn deadline_room(cause: Cause, active: u32, t: &QueueTunables) -> u32 {
    match cause {
        Cause::Arrival => t.min_pending.max(1).saturating_sub(active),
        Cause::Completion => t.max_pending.max(1).saturating_sub(active).min(t.ramp_rate.max(1)),
    }
}

/// The scheduler of before 2013: the deadline of an operation that arrived at `since`, in ns;
/// smaller is sooner.
pub fn deadline(since: u64, prio: Prio, time_shift: u32) -> u64 {
    let priority = match prio {
        Prio::SyncRead | Prio::SyncWrite => 0,
        Prio::AsyncWrite => 4,
        Prio::AsyncRead => 6,
        Prio::Rebuild | Prio::Removal => 10,
        Prio::Scrub | Prio::Initializing | Prio::Trim => 20,
    };
    (since >> time_shift.min(63)).saturating_add(priority)
}

/// Bounds of the operations that one class may have in flight at one leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClassLimits {
    /// Served before priorities count (`zfs_vdev_*_min_active`).
    pub min_active: u32,
    /// Never more than this (`zfs_vdev_*_max_active`).
    pub max_active: u32,
}

/// The tunables of the leaf queue, with OpenZFS's defaults except where a field says otherwise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueTunables {
    /// The scheduler (tunable `scheduler`).
    pub scheduler: Scheduler,
    /// Of `deadline`: an arriving operation is issued at once below this many in flight
    /// (`zfs_vdev_min_pending`).
    pub min_pending: u32,
    /// Of `deadline`: limit of operations in flight (`zfs_vdev_max_pending`).
    pub max_pending: u32,
    /// Of `deadline`: limit of operations issued per completion (`zfs_vdev_ramp_rate`).
    pub ramp_rate: u32,
    /// Of `deadline`: resolution of time, as a shift of nanoseconds (`zfs_vdev_time_shift`; 6 at
    /// first, later 29).
    pub time_shift: u32,
    /// `zfs_vdev_<class>_{min,max}_active`, by [`Prio::index`].
    pub classes: [ClassLimits; CLASSES],
    /// `zfs_vdev_max_active`: operations in flight at one leaf, all classes together.
    pub max_active: u32,
    /// `zfs_vdev_async_write_active_min_dirty_percent`: below it async writes have their minimum in
    /// flight at most.
    pub async_write_min_dirty_percent: u32,
    /// `zfs_vdev_async_write_active_max_dirty_percent`: above it async writes have their maximum;
    /// between the two it rises linearly.
    pub async_write_max_dirty_percent: u32,
    /// `zfs_vdev_nia_delay`: completions without interactive work before non-interactive classes
    /// get their maximum.
    pub nia_delay: u32,
    /// `zfs_vdev_nia_credit`: non-interactive operations that may be issued between two interactive
    /// completions.
    pub nia_credit: u32,
    /// `zfs_vdev_aggregation_limit`: longest aggregated operation in bytes, on rotating media.
    pub aggregation_limit: u64,
    /// `zfs_vdev_aggregation_limit_non_rotating`: the same for other media. OpenZFS has 128 KiB;
    /// here it is 1 MiB, because each operation costs a system call and aggregation costs no copy.
    pub aggregation_limit_non_rotating: u64,
    /// The same at a device that is fast and shared ([`crate::sharing`]), for operations without a
    /// waiting caller (`vdev_shared_aggregation_limit`). With 256 KiB a reader beside a send waited
    /// 0.4 as long as with 1 MiB (p99, `docs/bench-send.py`). With 128 KiB and fewer async writes
    /// the median beside a writer was 0.8 of that with 256 KiB; the p99 stayed.
    pub aggregation_limit_shared: u64,
    /// Async writes in flight at such a device before they rise (`vdev_shared_async_write_active`);
    /// at most the minimum of the class counts. One operation of 128 KiB after another is 0.7 to
    /// 1.0 of the bytes a second that two at once are, and what a reader waits for is half of it.
    pub async_write_shared_active: u32,
    /// `zfs_vdev_read_gap_limit`: reads up to this many bytes apart are aggregated; the gap is read
    /// and dropped. (Writes are aggregated only without a gap: `zfs_vdev_write_gap_limit` concerns
    /// padding of RAID-Z.)
    pub read_gap: u64,
    /// `zio_slow_io_ms`: an operation that takes longer at the device, in ms, counts as slow.
    pub slow_io_ms: u32,
    /// `zfs_deadman_ziotime_ms`: an operation that takes longer at the device, in ms, hangs.
    pub hung_io_ms: u32,
}

impl Default for QueueTunables {
    fn default() -> QueueTunables {
        let limits = |min_active, max_active| ClassLimits { min_active, max_active };
        QueueTunables {
            scheduler: Scheduler::Auto,
            min_pending: 4,
            max_pending: 10,
            ramp_rate: 2,
            time_shift: 29,
            classes: [
                limits(10, 10),
                limits(10, 10),
                limits(1, 3),
                limits(2, 10),
                limits(1, 3),
                limits(1, 2),
                limits(1, 1),
                limits(1, 2),
                limits(1, 3),
            ],
            max_active: 1000,
            async_write_min_dirty_percent: 30,
            async_write_max_dirty_percent: 60,
            nia_delay: 5,
            nia_credit: 5,
            aggregation_limit: 1 << 20,
            aggregation_limit_non_rotating: 1 << 20,
            aggregation_limit_shared: 128 << 10,
            async_write_shared_active: 1,
            read_gap: 32 << 10,
            slow_io_ms: 30_000,
            hung_io_ms: 300_000,
        }
    }
}

impl QueueTunables {
    /// The limits of a class.
    pub fn class(&self, prio: Prio) -> ClassLimits {
        self.classes[prio.index()]
    }

    /// How many operations of a class may be in flight before others have theirs.
    fn min_active(&self, prio: Prio, is_shared: bool) -> u32 {
        let min = self.class(prio).min_active;
        if is_shared && prio == Prio::AsyncWrite { min.min(self.async_write_shared_active) } else { min }
    }

    /// How many async writes may be in flight when `dirty_percent` of the dirty-data limit is used.
    /// Division truncates, as in OpenZFS. At a device that is fast and shared ([`crate::sharing`])
    /// they have a minimum of their own and rise from [`SHARED_RISE_PERCENT`] to the limit: a
    /// program that waits for the device comes before a txg while delays of writers can hold the
    /// rest back.
    pub fn async_write_limit(&self, dirty_percent: u32, is_shared: bool) -> u32 {
        let (min_active, max_active) =
            (self.min_active(Prio::AsyncWrite, is_shared), self.class(Prio::AsyncWrite).max_active);
        let (low, high) = (self.async_write_min_dirty_percent, self.async_write_max_dirty_percent);
        let (low, high) = if is_shared { (SHARED_RISE_PERCENT.max(low), high.max(100)) } else { (low, high) };
        if dirty_percent < low {
            return min_active;
        }
        if dirty_percent >= high || high <= low {
            return max_active;
        }
        let rise = u64::from(max_active.saturating_sub(min_active));
        min_active + (u64::from(dirty_percent - low) * rise / u64::from(high - low)) as u32
    }
}

/// Where the rise of async writes begins at a device that is fast and shared, in percent of the
/// dirty-data limit. Delays, which begin at 60, hold a writer of 128 KiB records at about 80 of
/// 300 MB/s; with a rise from 60 on, five operations were in flight then in place of one, and
/// readers beside a receive waited 1.4 times as long (p99, `docs/bench-send.py`).
const SHARED_RISE_PERCENT: u32 = 90;

/// Dirty data in percent of the pool's limit: set by the transaction layer, read by every leaf
/// queue.
#[derive(Clone, Default, Debug)]
pub struct DirtyGauge(pub Rc<Cell<u32>>);

impl DirtyGauge {
    /// Dirty data in percent of the limit.
    pub fn percent(&self) -> u32 {
        self.0.get()
    }
    /// Sets it.
    pub fn set(&self, percent: u32) {
        self.0.set(percent);
    }
}

/// The input of the choice: operations queued and in flight, by class.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct QueueState {
    /// Waiting operations.
    pub queued: [u32; CLASSES],
    /// Operations at the device; an aggregate counts once, for the class of its leading operation.
    pub active: [u32; CLASSES],
    /// Index of the class served last.
    pub last_class: usize,
    /// Interactive operations at the device.
    pub interactive_active: u32,
    /// While interactive operations are in flight: remaining non-interactive ones to issue.
    /// Otherwise: completions since the last interactive one.
    pub nia_credit: u32,
    /// The device is fast and shared ([`crate::sharing`]).
    pub is_shared: bool,
}

impl QueueState {
    /// Operations at the device.
    pub fn total_active(&self) -> u32 {
        self.active.iter().sum()
    }

    /// An operation of `prio` is issued.
    pub fn issued(&mut self, prio: Prio) {
        self.active[prio.index()] += 1;
        self.last_class = prio.index();
        if prio.is_interactive() {
            self.interactive_active += 1;
            if self.interactive_active == 1 {
                self.nia_credit = 1;
            }
        } else if self.interactive_active > 0 {
            self.nia_credit = self.nia_credit.saturating_sub(1);
        }
    }

    /// An operation of `prio` completed.
    pub fn completed(&mut self, prio: Prio, t: &QueueTunables) {
        self.active[prio.index()] -= 1;
        if prio.is_interactive() {
            self.interactive_active -= 1;
            self.nia_credit = if self.interactive_active == 0 { 0 } else { t.nia_credit };
        } else if self.interactive_active == 0 {
            self.nia_credit = self.nia_credit.saturating_add(1);
        }
    }

    /// Operations at the device for which callers wait.
    pub fn waited_for(&self) -> u32 {
        Prio::ALL.into_iter().filter(|p| p.has_waiter()).map(|p| self.active[p.index()]).sum()
    }

    /// The longest aggregate that a class may have, of a device with that limit.
    pub fn aggregation_limit(&self, prio: Prio, limit: u64, t: &QueueTunables) -> u64 {
        if self.is_shared && !prio.has_waiter() { limit.min(t.aggregation_limit_shared) } else { limit }
    }

    fn min_active(&self, prio: Prio, t: &QueueTunables) -> u32 {
        let min = t.min_active(prio, self.is_shared);
        if prio.is_interactive() || self.interactive_active == 0 { min } else { min.min(self.nia_credit) }
    }

    fn max_active(&self, prio: Prio, t: &QueueTunables, dirty_percent: u32) -> u32 {
        let ClassLimits { min_active, max_active } = t.class(prio);
        if prio == Prio::AsyncWrite {
            return t.async_write_limit(dirty_percent, self.is_shared);
        }
        if prio.is_interactive() {
            max_active
        } else if self.interactive_active > 0 {
            min_active.min(self.nia_credit)
        } else if self.is_shared || self.nia_credit < t.nia_delay {
            min_active.max(1)
        } else {
            max_active
        }
    }

    /// The class to issue next, if any may.
    pub fn next_class(&self, t: &QueueTunables, dirty_percent: u32) -> Option<Prio> {
        if self.total_active() >= t.max_active.max(1) {
            return None;
        }
        let waits = |p: Prio| self.queued[p.index()] > 0;
        let active = |p: Prio| self.active[p.index()];
        let round_robin = (1..=CLASSES).map(|i| Prio::ALL[(self.last_class + i) % CLASSES]);
        round_robin
            .into_iter()
            .find(|&p| waits(p) && active(p) < self.min_active(p, t))
            .or_else(|| Prio::ALL.into_iter().find(|&p| waits(p) && active(p) < self.max_active(p, t, dirty_percent)))
            // With all maximums 0 issue one operation anyway, or the queue would stall.
            .or_else(|| Prio::ALL.into_iter().find(|&p| waits(p) && self.total_active() == 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(queued: &[(Prio, u32)], active: &[(Prio, u32)]) -> QueueState {
        let mut s = QueueState { last_class: CLASSES - 1, ..QueueState::default() };
        for &(p, n) in queued {
            s.queued[p.index()] = n;
        }
        for &(p, n) in active {
            (0..n).for_each(|_| s.issued(p));
        }
        s.last_class = CLASSES - 1;
        s
    }

    #[test]
    fn the_ramp_of_async_writes() {
        let t = QueueTunables::default();
        for (percent, want) in [
            (0, 2),
            (29, 2),
            (30, 2),
            (33, 2),
            (34, 3),
            (45, 6),
            (56, 8),
            (57, 9),
            (59, 9),
            (60, 10),
            (61, 10),
            (100, 10),
            (400, 10),
        ] {
            assert_eq!(t.async_write_limit(percent, false), want, "{percent} %");
        }
        for (percent, want) in [(0, 1), (60, 1), (89, 1), (90, 1), (92, 2), (95, 5), (99, 9), (100, 10), (400, 10)] {
            assert_eq!(t.async_write_limit(percent, true), want, "{percent} % of a shared device");
        }
        let late = QueueTunables { async_write_max_dirty_percent: 100, ..t.clone() };
        assert_eq!((late.async_write_limit(65, true), late.async_write_limit(65, false)), (1, 6));
        let flat = QueueTunables { async_write_min_dirty_percent: 60, async_write_max_dirty_percent: 30, ..t };
        assert_eq!((flat.async_write_limit(59, false), flat.async_write_limit(60, false)), (2, 10));
        assert_eq!((flat.async_write_limit(89, true), flat.async_write_limit(95, true)), (1, 5));
    }

    #[test]
    fn classes_without_a_waiter_are_held_back_at_a_shared_device() {
        let (t, mib) = (QueueTunables::default(), 1 << 20);
        let mut s = state(&[(Prio::Scrub, 9)], &[(Prio::Scrub, 1)]);
        s.nia_credit = 100;
        assert_eq!(s.next_class(&t, 0), Some(Prio::Scrub));
        assert_eq!(s.aggregation_limit(Prio::Scrub, mib, &t), mib);
        s.is_shared = true;
        assert_eq!(s.next_class(&t, 0), None, "one at a time");
        assert_eq!(s.aggregation_limit(Prio::Scrub, mib, &t), 128 << 10);
        assert_eq!(s.aggregation_limit(Prio::AsyncWrite, 4096, &t), 4096);
        assert_eq!(s.aggregation_limit(Prio::SyncRead, mib, &t), mib);
        let mut s = state(&[(Prio::AsyncWrite, 9)], &[(Prio::AsyncWrite, 1)]);
        assert_eq!(s.next_class(&t, 80), Some(Prio::AsyncWrite));
        s.is_shared = true;
        assert_eq!((s.next_class(&t, 80), s.next_class(&t, 99)), (None, Some(Prio::AsyncWrite)));
    }

    #[test]
    fn minimums_go_round_then_priorities() {
        use Prio::*;
        let t = QueueTunables::default();
        let all = [(SyncRead, 50), (SyncWrite, 50), (AsyncRead, 50), (AsyncWrite, 50), (Trim, 50)];
        type Case<'a> = (&'a [(Prio, u32)], u32, Option<Prio>);
        let table: &[Case] = &[
            (&[], 0, Some(SyncRead)),
            (&[(SyncRead, 10)], 0, Some(SyncWrite)),
            (&[(SyncRead, 10), (SyncWrite, 10)], 0, Some(AsyncRead)),
            (&[(SyncRead, 10), (SyncWrite, 10), (AsyncRead, 1)], 0, Some(AsyncWrite)),
            (&[(SyncRead, 10), (SyncWrite, 10), (AsyncRead, 1), (AsyncWrite, 2)], 0, Some(Trim)),
            // Every minimum is served: now priorities.
            (&[(SyncRead, 10), (SyncWrite, 10), (AsyncRead, 1), (AsyncWrite, 2), (Trim, 1)], 0, Some(AsyncRead)),
            (&[(SyncRead, 10), (SyncWrite, 10), (AsyncRead, 3), (AsyncWrite, 2), (Trim, 1)], 0, Some(Trim)),
            (&[(SyncRead, 10), (SyncWrite, 10), (AsyncRead, 3), (AsyncWrite, 2), (Trim, 1)], 70, Some(AsyncWrite)),
            (&[(SyncRead, 10), (SyncWrite, 10), (AsyncRead, 3), (AsyncWrite, 10), (Trim, 2)], 70, None),
        ];
        for (active, dirty, want) in table {
            assert_eq!(state(&all, active).next_class(&t, *dirty), *want, "{active:?} at {dirty} %");
        }
        // Round-robin: after a sync read was served, the others' minimums come first.
        let mut s = state(&all, &[]);
        let mut order = Vec::new();
        for _ in 0..6 {
            let p = s.next_class(&t, 0).expect("all have room");
            s.issued(p);
            order.push(p);
        }
        assert_eq!(order, [SyncRead, SyncWrite, AsyncRead, AsyncWrite, Trim, SyncRead]);
        assert_eq!(state(&[], &[]).next_class(&t, 100), None);
        let few = QueueTunables { max_active: 2, ..QueueTunables::default() };
        assert_eq!(state(&all, &[(SyncRead, 2)]).next_class(&few, 0), None);
    }

    #[test]
    fn scrub_gives_way_and_comes_back() {
        use Prio::*;
        let t = QueueTunables::default();
        let mut s = state(&[(Scrub, 100)], &[(SyncRead, 1)]);
        assert_eq!(s.nia_credit, 1);
        assert_eq!(s.next_class(&t, 0), Some(Scrub));
        s.issued(Scrub);
        assert_eq!((s.nia_credit, s.next_class(&t, 0)), (0, None));
        s.completed(Scrub, &t);
        assert_eq!(s.next_class(&t, 0), None, "the credit is used up");
        s.issued(SyncRead);
        s.completed(SyncRead, &t);
        assert_eq!((s.nia_credit, s.next_class(&t, 0)), (5, Some(Scrub)));
        s.completed(SyncRead, &t);
        assert_eq!(s.interactive_active, 0);
        // Alone now: one at a time, until five have completed.
        for _ in 0..5 {
            assert_eq!(s.next_class(&t, 0), Some(Scrub));
            s.issued(Scrub);
            assert_eq!(s.next_class(&t, 0), None);
            s.completed(Scrub, &t);
        }
        (0..3).for_each(|_| s.issued(Scrub));
        assert_eq!(s.next_class(&t, 0), None);
        s.completed(Scrub, &t);
        assert_eq!(s.next_class(&t, 0), Some(Scrub), "three at most, and two are in flight");
    }

    #[test]
    fn the_scheduler_of_before_2013() {
        let t = QueueTunables::default();
        // (cause, at the device, room): four on arrival, then two more for each that is over, ten
        // at most.
        for (cause, active, room) in [
            (Cause::Arrival, 0, 4),
            (Cause::Arrival, 3, 1),
            (Cause::Arrival, 4, 0),
            (Cause::Arrival, 9, 0),
            (Cause::Completion, 0, 2),
            (Cause::Completion, 8, 2),
            (Cause::Completion, 9, 1),
            (Cause::Completion, 10, 0),
        ] {
            assert_eq!(deadline_room(cause, active, &t), room, "{cause:?} with {active}");
        }
        let s = |shift: u32, ns: u64, p| deadline(ns, p, shift);
        assert_eq!(s(6, 640, Prio::SyncRead), 10);
        assert_eq!(s(6, 640, Prio::AsyncWrite), 14);
        assert_eq!(s(29, 3 << 29, Prio::Scrub), 23);
        assert!(s(29, 1 << 29, Prio::AsyncRead) < s(29, 8 << 29, Prio::SyncRead), "age wins in the end");
        assert_eq!(s(99, u64::MAX, Prio::SyncWrite), 1);
    }

    #[test]
    fn maximums_of_nothing_let_one_at_a_time_through() {
        let nothing = QueueTunables {
            classes: [ClassLimits { min_active: 0, max_active: 0 }; CLASSES],
            max_active: 0,
            ..QueueTunables::default()
        };
        for p in Prio::ALL {
            assert_eq!(state(&[(p, 3)], &[]).next_class(&nothing, 0), Some(p));
            assert_eq!(state(&[(p, 3)], &[(p, 1)]).next_class(&nothing, 0), None);
        }
        // A minimum above the maximum counts as it stands.
        let odd = QueueTunables {
            classes: [ClassLimits { min_active: 5, max_active: 2 }; CLASSES],
            ..QueueTunables::default()
        };
        assert_eq!(odd.async_write_limit(50, false), 5);
        assert_eq!(state(&[(Prio::SyncRead, 9)], &[(Prio::SyncRead, 4)]).next_class(&odd, 0), Some(Prio::SyncRead));
        assert_eq!(state(&[(Prio::SyncRead, 9)], &[(Prio::SyncRead, 5)]).next_class(&odd, 0), None);
    }
}
