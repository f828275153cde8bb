//! What happens when the devices give no choice: the pool is *suspended* until somebody has looked
//! after them (the property `failmode`).
//!
//! A write of a txg that no copy took, a flush or a label that failed wherever it was to go, are
//! not given up: whoever issued them waits at the gate ([`FailGate::suspend`]) and tries again when
//! `zpool clear` opens it ([`FailGate::resume`]). So nothing is lost while the devices are away,
//! and nothing of a txg is taken for written that is not. With `failmode=wait` reads of what only
//! those devices have wait as well, and so does every new transaction; with `failmode=continue`
//! such reads and all new transactions fail, and what other devices have can be read. `panic` is
//! taken for `wait`: a daemon that serves other pools does not end itself.
//!
//! The gate is *armed* while a pool runs that can be written. Before (import, creation) and after
//! ([`FailGate::give_up`]: the pool is closed without what it could not write) errors are simply
//! errors.

use std::cell::{Cell, RefCell};

use base::{Error, ErrorKind, Result};
use rt::sync::Notify;

/// The property `failmode`; numbers are those that pools store.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum FailMode {
    /// Everything waits for `zpool clear`.
    #[default]
    Wait = 0,
    /// New writes fail; what can be read is read.
    Continue = 1,
    /// As `Wait`.
    Panic = 2,
}

impl FailMode {
    /// The mode that a pool stores as `n`; what is not known is `wait`.
    pub fn from_number(n: u64) -> FailMode {
        match n {
            1 => FailMode::Continue,
            2 => FailMode::Panic,
            _ => FailMode::Wait,
        }
    }
}

/// The gate of one pool.
#[derive(Default)]
pub struct FailGate {
    mode: Cell<FailMode>,
    armed: Cell<bool>,
    given_up: Cell<bool>,
    /// Why the pool is suspended, if it is.
    cause: RefCell<Option<Error>>,
    times: Cell<u64>,
    changed: Notify,
}

fn suspended(cause: &Error) -> Error {
    Error::new(ErrorKind::Suspended, format!("pool I/O is currently suspended: {cause}"))
}

impl FailGate {
    /// The pool runs: from now on what cannot be written waits.
    pub fn arm(&self) {
        self.armed.set(true);
    }
    /// The mode.
    pub fn mode(&self) -> FailMode {
        self.mode.get()
    }
    /// Changes the mode; those who wait as transactions and readers look again.
    pub fn set_mode(&self, mode: FailMode) {
        self.mode.set(mode);
        self.changed.notify_all();
    }
    /// Whether failures wait here now.
    pub fn holds(&self) -> bool {
        self.armed.get() && !self.given_up.get()
    }
    /// Why the pool is suspended, if it is.
    pub fn cause(&self) -> Option<Error> {
        self.cause.borrow().clone()
    }
    /// Whether the pool is suspended.
    pub fn is_suspended(&self) -> bool {
        self.cause.borrow().is_some()
    }
    /// How often it was.
    pub fn times(&self) -> u64 {
        self.times.get()
    }
    /// Lets everybody try again.
    pub fn resume(&self) {
        self.cause.take();
        self.changed.notify_all();
    }
    /// From now on errors are errors: the pool ends without what could not be written.
    pub fn give_up(&self) {
        self.given_up.set(true);
        self.changed.notify_all();
    }

    /// Suspends the pool because of `cause` and waits until it is resumed. An error if it is given
    /// up, or if the gate does not hold: then `cause` itself.
    pub async fn suspend(&self, cause: &Error) -> Result<()> {
        if !self.holds() || cause.kind() != ErrorKind::Io {
            return Err(cause.clone());
        }
        {
            let mut slot = self.cause.borrow_mut();
            if slot.is_none() {
                *slot = Some(cause.clone());
                self.times.set(self.times.get() + 1);
                self.changed.notify_all();
            }
        }
        while self.is_suspended() {
            if !self.holds() {
                return Err(suspended(cause));
            }
            self.changed.notified().await;
        }
        Ok(())
    }

    /// Waits until the pool is suspended, and says why: for those who must not wait for
    /// `zpool clear`.
    pub async fn suspension(&self) -> Error {
        loop {
            if let Some(cause) = self.cause() {
                return suspended(&cause);
            }
            self.changed.notified().await;
        }
    }

    /// Waits until the pool is not suspended, or says that it is, as the mode wants: where new
    /// transactions come by.
    pub async fn pass(&self) -> Result<()> {
        loop {
            let Some(cause) = self.cause().filter(|_| self.holds()) else { return Ok(()) };
            if self.mode.get() == FailMode::Continue {
                return Err(suspended(&cause));
            }
            self.changed.notified().await;
        }
    }
}
