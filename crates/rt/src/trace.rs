//! Trace events: every interesting moment of the engine as one variant of a closed enum, and who
//! listens.
//!
//! The engine says [`crate::Rt::trace`] with the group of the event and a closure that makes it. As
//! long as nobody listens to that group this is one look at a number; the closure is not called. A
//! listener ([`Tracer::listen`]) names the [`Groups`] it wants and is called on the engine thread,
//! in the middle of what happens: it counts and returns, and never calls the engine. Where the
//! moment is known already it is given along ([`crate::Rt::trace_at`]): a look at the clock would
//! cost more than all the rest.
//!
//! Events are plain numbers and names of tasks, because this crate stands below those that know
//! what a class or a device is: `class` is the index of the I/O class, `leaf` the device's guid.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

use base::Nanos;

/// Where a txg is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TxgPhase {
    /// Transactions join.
    Open,
    /// Closed.
    Quiescing,
    /// Its transactions have ended.
    Quiesced,
    /// Its sync has begun.
    Syncing,
    /// It is on disk.
    Synced,
}

/// Where a block of an intent log is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogPhase {
    /// Its first record goes into it.
    Opened,
    /// Going to its device.
    Issued,
    /// Durable, as is everything before it; or failed.
    Done,
}

/// Where the time of a block of an intent log went.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LogTimes {
    /// From its first record until it went to its device: time for company.
    pub queue: Nanos,
    /// Its write.
    pub write: Nanos,
    /// The flush that made it durable.
    pub flush: Nanos,
    /// What it waited besides: for blocks before it, for others of its batch, for the flush of the
    /// next block to begin.
    pub order: Nanos,
}

/// What was wrong with an operation or with what it read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// The device said that it failed.
    Io,
    /// What was read was not what had been written.
    Checksum,
    /// The device could not be reached at all.
    Probe,
}

impl FaultKind {
    /// OpenZFS's name of the error report.
    pub const fn class(self) -> &'static str {
        match self {
            FaultKind::Io => "io",
            FaultKind::Checksum => "checksum",
            FaultKind::Probe => "probe_failure",
        }
    }
}

/// Something that happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A txg reached a phase.
    Txg {
        /// Which.
        txg: u64,
        /// The phase.
        phase: TxgPhase,
        /// Dirty bytes of all txgs at that moment.
        dirty: u64,
        /// The dirty limit.
        limit: u64,
        /// Bytes that were made dirty in this txg so far.
        of_txg: u64,
    },
    /// What an administrator asked for is on disk.
    Admin {
        /// The txg that carried it out.
        txg: u64,
        /// From being asked for until that txg was on disk.
        waited: Nanos,
    },
    /// A transaction passed the throttle.
    Admitted {
        /// The txg that is open.
        txg: u64,
        /// How long it waited in the throttle, all told.
        waited: Nanos,
        /// What the delay curve said.
        delay: Nanos,
    },
    /// An operation went to a device.
    Issued {
        /// The device.
        leaf: u64,
        /// The I/O class.
        class: u8,
        /// A write.
        write: bool,
        /// Where.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Operations that were gathered in it.
        items: u32,
        /// Operations of its class that still wait.
        queued: u32,
        /// Operations of its class at the device, this one included.
        active: u32,
    },
    /// An operation that somebody asked for is over; of a gathered one each member reports.
    Done {
        /// The device.
        leaf: u64,
        /// The I/O class.
        class: u8,
        /// A write.
        write: bool,
        /// Bytes.
        len: u64,
        /// From being asked for to its end.
        total: Nanos,
        /// At the device.
        disk: Nanos,
        /// It worked.
        ok: bool,
    },
    /// A flush is over.
    Flushed {
        /// The device.
        leaf: u64,
        /// From being asked for to its end.
        total: Nanos,
        /// It worked.
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
        /// Who waits for it.
        waiters: u32,
        /// Where its time went, as far as it is known: all of it when it is done.
        times: LogTimes,
    },
    /// Something was wrong with a device.
    Fault {
        /// The device.
        leaf: u64,
        /// What.
        kind: FaultKind,
        /// The I/O class, if it is known.
        class: u8,
        /// It was a write.
        write: bool,
        /// Where on the device.
        offset: u64,
        /// Bytes; 0 if neither this nor the place is known.
        len: u64,
    },
    /// A block could not be had from anywhere.
    Damaged {
        /// Its object set.
        objset: u64,
        /// Its object.
        object: u64,
        /// Its level.
        level: i64,
        /// Its number.
        blkid: u64,
    },
    /// A turn is over: one poll of a task. Only worlds with a real clock say it.
    Turn {
        /// The name of the task.
        task: &'static str,
        /// Its id.
        id: u64,
        /// How long the poll took.
        took: Nanos,
    },
}

/// Kinds of events, as bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Groups(pub u32);

impl Groups {
    /// Phases of txgs, and administrative operations that they carried out.
    pub const TXG: Groups = Groups(1);
    /// The throttle.
    pub const DELAY: Groups = Groups(2);
    /// Ends of operations.
    pub const IO: Groups = Groups(4);
    /// What goes to devices, and what waits.
    pub const QUEUE: Groups = Groups(8);
    /// Intent logs.
    pub const LOG: Groups = Groups(16);
    /// Errors of devices and damaged blocks.
    pub const FAULT: Groups = Groups(32);
    /// Turns of tasks.
    pub const TURN: Groups = Groups(64);
    /// Everything.
    pub const ALL: Groups = Groups(u32::MAX);

    /// Both.
    pub const fn and(self, other: Groups) -> Groups {
        Groups(self.0 | other.0)
    }
}

impl Event {
    /// The kind of the event.
    pub const fn group(&self) -> Groups {
        match self {
            Event::Txg { .. } | Event::Admin { .. } => Groups::TXG,
            Event::Admitted { .. } => Groups::DELAY,
            Event::Issued { .. } => Groups::QUEUE,
            Event::Done { .. } | Event::Flushed { .. } => Groups::IO,
            Event::Log { .. } => Groups::LOG,
            Event::Fault { .. } | Event::Damaged { .. } => Groups::FAULT,
            Event::Turn { .. } => Groups::TURN,
        }
    }
}

/// Who is called with an event and its moment.
pub type Sink = Rc<dyn Fn(Nanos, &Event)>;

/// Who listens in one world.
#[derive(Default)]
pub struct Tracer {
    /// All groups that somebody wants.
    wanted: Cell<u32>,
    sinks: RefCell<Vec<(u64, u32, Sink)>>,
    next: Cell<u64>,
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tracer({} listen)", self.sinks.borrow().len())
    }
}

/// Somebody listens, for as long as this lives.
#[must_use = "dropping it ends the listening"]
#[derive(Debug)]
pub struct Listening {
    tracer: Weak<Tracer>,
    id: u64,
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(tracer) = self.tracer.upgrade() {
            // Dropped outside of the borrow: a sink may own anything.
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
    /// Whether somebody listens to anything.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.wanted.get() != 0
    }
    /// Whether somebody listens to one of these groups.
    #[inline(always)]
    pub fn wants(&self, groups: Groups) -> bool {
        self.wanted.get() & groups.0 != 0
    }
    /// Tells whoever wants to know.
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
