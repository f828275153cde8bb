//! Trace events: a closed enum of the engine's events, and their listeners.
//!
//! The engine calls [`crate::Rt::trace`] with the group of the event and a closure that makes it.
//! Without a listener of that group this tests one integer, and the closure is not called. A
//! listener ([`Tracer::listen`]) subscribes to [`Groups`] and is called on the engine thread, in
//! the middle of an operation: it counts and returns, and must not call the engine. Callers that
//! know the time pass it ([`crate::Rt::trace_at`]): reading the clock would cost more than the
//! rest.
//!
//! Events hold plain numbers and task names, because this crate is below those that define I/O
//! classes and devices: `class` is the index of the I/O class, `leaf` the device's guid.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use base::Nanos;

/// The state of a txg.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TxgPhase {
    /// Transactions join it.
    Open,
    /// Closed to new transactions.
    Quiescing,
    /// Its transactions have ended.
    Quiesced,
    /// It is syncing.
    Syncing,
    /// It is on disk.
    Synced,
}

/// The state of a log block (lwb).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogPhase {
    /// It gets its first record.
    Opened,
    /// Its write is issued.
    Issued,
    /// It is durable, as are all before it; or it failed.
    Done,
}

/// Latency of a log block (lwb), by cause.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogTimes {
    /// From its first record to the issue of its write: time for further records.
    pub queue: Nanos,
    /// Its write.
    pub write: Nanos,
    /// The flush that made it durable.
    pub flush: Nanos,
    /// Other waits: for blocks before it, for others of its batch, for the flush of the next block
    /// to begin.
    pub order: Nanos,
}

/// The kind of a device error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// The device reported an error.
    Io,
    /// Data read from it had a wrong checksum.
    Checksum,
    /// The device does not respond.
    Probe,
    /// An operation took longer than `zio_slow_io_ms`.
    Delay,
    /// An operation takes, or took, longer than `zfs_deadman_ziotime_ms`.
    Deadman,
}

impl FaultKind {
    /// OpenZFS's name of the error report (ereport class).
    pub const fn class(self) -> &'static str {
        match self {
            FaultKind::Io => "io",
            FaultKind::Checksum => "checksum",
            FaultKind::Probe => "probe_failure",
            FaultKind::Delay => "delay",
            FaultKind::Deadman => "deadman",
        }
    }
}

/// The kind of a file system operation. The numbers are those of recordings (`rt::oplog`): a kind
/// keeps its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum OpKind {
    /// A name was looked up in a directory.
    Lookup = 0,
    /// Attributes were read.
    GetAttr = 1,
    /// Attributes other than the size were set.
    SetAttr = 2,
    /// The size was set; the offset is the new size.
    Truncate = 3,
    /// A file that is no directory was made in a directory, and perhaps opened.
    Create = 4,
    /// A directory was made in a directory.
    MakeDir = 5,
    /// A name that is no directory was removed from a directory.
    Remove = 6,
    /// A directory was removed from a directory.
    RemoveDir = 7,
    /// A name moved from a directory to another.
    Rename = 8,
    /// A file got another name in a directory.
    Link = 9,
    /// A file was opened.
    Open = 10,
    /// A file was closed for the last time.
    Release = 11,
    /// Bytes were read.
    Read = 12,
    /// Bytes were written.
    Write = 13,
    /// A file was made durable.
    Fsync = 14,
    /// Entries of a directory were listed.
    ReadDir = 15,
    /// A range was allocated or freed.
    Allocate = 16,
    /// Extended attributes were read or changed.
    Xattr = 17,
    /// The whole file system was made durable.
    SyncFs = 18,
}

impl OpKind {
    /// All, by number.
    pub const ALL: [OpKind; 19] = [
        OpKind::Lookup,
        OpKind::GetAttr,
        OpKind::SetAttr,
        OpKind::Truncate,
        OpKind::Create,
        OpKind::MakeDir,
        OpKind::Remove,
        OpKind::RemoveDir,
        OpKind::Rename,
        OpKind::Link,
        OpKind::Open,
        OpKind::Release,
        OpKind::Read,
        OpKind::Write,
        OpKind::Fsync,
        OpKind::ReadDir,
        OpKind::Allocate,
        OpKind::Xattr,
        OpKind::SyncFs,
    ];

    /// Its name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            OpKind::Lookup => "lookup",
            OpKind::GetAttr => "getattr",
            OpKind::SetAttr => "setattr",
            OpKind::Truncate => "truncate",
            OpKind::Create => "create",
            OpKind::MakeDir => "mkdir",
            OpKind::Remove => "remove",
            OpKind::RemoveDir => "rmdir",
            OpKind::Rename => "rename",
            OpKind::Link => "link",
            OpKind::Open => "open",
            OpKind::Release => "release",
            OpKind::Read => "read",
            OpKind::Write => "write",
            OpKind::Fsync => "fsync",
            OpKind::ReadDir => "readdir",
            OpKind::Allocate => "allocate",
            OpKind::Xattr => "xattr",
            OpKind::SyncFs => "syncfs",
        }
    }
}

/// An operation of a user on a file system, as it was answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FsOp {
    /// What it did.
    pub kind: OpKind,
    /// The thread that asked for it, by the system's number; 0 for the kernel itself.
    pub client: u32,
    /// The file system, by the number of its dataset.
    pub dataset: u64,
    /// The object: of those that change a directory, the directory.
    pub object: u64,
    /// What was found or made; the destination of a rename, the file of a link. 0 for none.
    pub target: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes asked for; 0 for operations without a range.
    pub len: u64,
    /// Durable when it ends (`O_SYNC`).
    pub sync: bool,
    /// Whether it succeeded.
    pub ok: bool,
    /// From its request to its answer: the time of the event is the end.
    pub took: Nanos,
}

/// A trace event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A txg reached a phase.
    Txg {
        /// The txg.
        txg: u64,
        /// The phase.
        phase: TxgPhase,
        /// Dirty bytes of all txgs at that time.
        dirty: u64,
        /// The dirty limit.
        limit: u64,
        /// Dirty bytes of this txg so far.
        of_txg: u64,
    },
    /// An administrative operation is on disk.
    Admin {
        /// The txg that carried it out.
        txg: u64,
        /// From the request until that txg was on disk.
        waited: Nanos,
    },
    /// A transaction passed the throttle.
    Admitted {
        /// The open txg.
        txg: u64,
        /// Total wait in the throttle.
        waited: Nanos,
        /// The delay computed by the delay curve.
        delay: Nanos,
    },
    /// An operation was issued to a device.
    Issued {
        /// The device.
        leaf: u64,
        /// The I/O class.
        class: u8,
        /// Whether it is a write.
        write: bool,
        /// Offset on the device.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Operations aggregated in it.
        items: u32,
        /// Operations of its class still queued.
        queued: u32,
        /// Operations of its class at the device, this one included.
        active: u32,
    },
    /// An operation completed; every member of an aggregate has its own event.
    Done {
        /// The device.
        leaf: u64,
        /// The I/O class.
        class: u8,
        /// Whether it is a write.
        write: bool,
        /// Bytes.
        len: u64,
        /// From request to completion.
        total: Nanos,
        /// At the device.
        disk: Nanos,
        /// Whether it succeeded.
        ok: bool,
    },
    /// A flush completed.
    Flushed {
        /// The device.
        leaf: u64,
        /// From request to completion.
        total: Nanos,
        /// Whether it succeeded.
        ok: bool,
    },
    /// A block of an intent log reached a phase.
    Log {
        /// The object set.
        objset: u64,
        /// The phase.
        phase: LogPhase,
        /// Bytes of records in it.
        bytes: u64,
        /// Its size in bytes.
        size: u64,
        /// Number of waiting commits.
        waiters: u32,
        /// Its latency by cause, as far as known; complete when done.
        times: LogTimes,
    },
    /// A device error.
    Fault {
        /// The device.
        leaf: u64,
        /// The kind of error.
        kind: FaultKind,
        /// The I/O class, if known.
        class: u8,
        /// Whether it was a write.
        write: bool,
        /// Offset on the device.
        offset: u64,
        /// Bytes; 0 if length and offset are unknown.
        len: u64,
    },
    /// A block is unreadable: no copy is good.
    Damaged {
        /// Its object set.
        objset: u64,
        /// Its object.
        object: u64,
        /// Its level.
        level: i64,
        /// Its number.
        blkid: u64,
        /// It has the right checksum, and a wrong authentication code.
        forged: bool,
    },
    /// A turn, one poll of a task, has ended. Only worlds with a real clock emit it.
    Turn {
        /// The name of the task.
        task: &'static str,
        /// Its id.
        id: u64,
        /// Duration of the poll.
        took: Nanos,
        /// The part of it for which the thread had a processor: less where the operating system or
        /// the machine below it ran something else.
        on_cpu: Nanos,
    },
    /// An operation of a user was answered.
    Op(FsOp),
}

/// Groups of events, as bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Groups(pub u32);

impl Groups {
    /// States of txgs, and administrative operations.
    pub const TXG: Groups = Groups(1);
    /// The throttle.
    pub const DELAY: Groups = Groups(2);
    /// Completed operations.
    pub const IO: Groups = Groups(4);
    /// Issued and queued operations.
    pub const QUEUE: Groups = Groups(8);
    /// Intent logs.
    pub const LOG: Groups = Groups(16);
    /// Errors of devices and damaged blocks.
    pub const FAULT: Groups = Groups(32);
    /// Turns of tasks.
    pub const TURN: Groups = Groups(64);
    /// Operations of users.
    pub const OP: Groups = Groups(128);
    /// All groups.
    pub const ALL: Groups = Groups(u32::MAX);

    /// The union of both.
    pub const fn and(self, other: Groups) -> Groups {
        Groups(self.0 | other.0)
    }
}

impl Event {
    /// The group of the event.
    pub const fn group(&self) -> Groups {
        match self {
            Event::Txg { .. } | Event::Admin { .. } => Groups::TXG,
            Event::Admitted { .. } => Groups::DELAY,
            Event::Issued { .. } => Groups::QUEUE,
            Event::Done { .. } | Event::Flushed { .. } => Groups::IO,
            Event::Log { .. } => Groups::LOG,
            Event::Fault { .. } | Event::Damaged { .. } => Groups::FAULT,
            Event::Turn { .. } => Groups::TURN,
            Event::Op(_) => Groups::OP,
        }
    }
}

/// A listener's function, called with the time and the event.
pub type Sink = Rc<dyn Fn(Nanos, &Event)>;

/// The listeners of one world.
#[derive(Default)]
pub struct Tracer {
    /// Union of the groups of all listeners.
    wanted: Cell<u32>,
    sinks: RefCell<Vec<(u64, u32, Sink)>>,
    next: Cell<u64>,
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tracer({} listen)", self.sinks.borrow().len())
    }
}

/// A subscription, which ends when this is dropped.
#[must_use = "dropping it ends the listening"]
#[derive(Debug)]
pub struct Listening {
    tracer: Weak<Tracer>,
    id: u64,
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(tracer) = self.tracer.upgrade() {
            // Drop it outside of the borrow: a sink may own anything.
            let mut sinks = tracer.sinks.borrow_mut();
            let at = sinks.iter().position(|s| s.0 == self.id);
            let gone = at.map(|at| sinks.remove(at));
            tracer.wanted.set(sinks.iter().fold(0, |all, s| all | s.1));
            drop(sinks);
            drop(gone);
        }
    }
}

impl Tracer {
    /// Calls `sink` with every event of these groups. It must not call the engine.
    pub fn listen(self: &Rc<Self>, groups: Groups, sink: impl Fn(Nanos, &Event) + 'static) -> Listening {
        let id = self.next.get();
        self.next.set(id + 1);
        self.sinks.borrow_mut().push((id, groups.0, Rc::new(sink)));
        self.wanted.set(self.wanted.get() | groups.0);
        Listening { tracer: Rc::downgrade(self), id }
    }
    /// Whether there is any listener.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.wanted.get() != 0
    }
    /// Whether one of these groups has a listener.
    #[inline(always)]
    pub fn wants(&self, groups: Groups) -> bool {
        self.wanted.get() & groups.0 != 0
    }
    /// Calls every listener of the event's group.
    #[inline(never)]
    pub fn emit(&self, now: Nanos, event: &Event) {
        let group = event.group().0;
        for (_, groups, sink) in self.sinks.borrow().iter() {
            if groups & group != 0 {
                sink(now, event);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_operations_have_the_numbers_of_recordings() {
        OpKind::ALL.iter().enumerate().for_each(|(n, kind)| assert_eq!(*kind as usize, n, "{}", kind.name()));
    }

    #[test]
    fn listeners_get_what_they_asked_for_as_long_as_they_listen() {
        let tracer: Rc<Tracer> = Rc::default();
        let seen: Rc<RefCell<Vec<(u64, u32)>>> = Rc::default();
        let sink = |who: u64| {
            let seen = seen.clone();
            move |_: Nanos, e: &Event| seen.borrow_mut().push((who, e.group().0))
        };
        let delay = Event::Admitted { txg: 1, waited: Nanos(5), delay: Nanos(4) };
        let flush = Event::Flushed { leaf: 1, total: Nanos(9), ok: true };
        assert!(!tracer.is_on());
        let a = tracer.listen(Groups::DELAY, sink(1));
        let b = tracer.listen(Groups::ALL, sink(2));
        tracer.emit(Nanos(1), &delay);
        tracer.emit(Nanos(2), &flush);
        drop(b);
        tracer.emit(Nanos(3), &flush);
        tracer.emit(Nanos(3), &delay);
        drop(a);
        assert!(!tracer.is_on());
        tracer.emit(Nanos(4), &delay);
        assert_eq!(*seen.borrow(), [(1, 2), (2, 2), (2, 4), (1, 2)]);
    }
}
