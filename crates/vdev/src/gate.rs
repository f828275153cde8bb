//! Pool suspension (the property `failmode`): I/O that fails beyond redundancy *suspends* the pool
//! until `zpool clear`.
//!
//! A txg's write of which every copy failed, or a flush or label that failed on every device, is
//! not dropped: its issuer waits at the gate ([`FailGate::suspend`]) and retries when `zpool clear`
//! opens it ([`FailGate::resume`]). So no data is lost while devices are offline, and a txg never
//! counts failed writes as written. With `failmode=wait` reads that need those devices wait as
//! well, and so does every new transaction; with `failmode=continue` such reads and all new
//! transactions fail, and data on other devices can be read. `panic` acts as `wait`: the daemon
//! serves other pools too.
//!
//! The gate is *armed* while a writable pool runs. Before (import, creation) and after
//! ([`FailGate::give_up`]: the pool is closed without its failed writes) errors are returned to the
//! caller.

use std::cell::{Cell, RefCell};

use base::{Error, ErrorKind, Result};
use rt::sync::Notify;

/// The property `failmode`, with the stored numbers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum FailMode {
    /// Everything waits for `zpool clear`.
    #[default]
    Wait = 0,
    /// New writes fail; readable data is still read.
    Continue = 1,
    /// As `Wait`.
    Panic = 2,
}

impl FailMode {
    /// The mode stored as `n`; unknown numbers are `wait`.
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
    /// The pool runs: from now on failed I/O suspends it.
    pub fn arm(&self) {
        self.armed.set(true);
    }
    /// The mode.
    pub fn mode(&self) -> FailMode {
        self.mode.get()
    }
    /// Changes the mode; waiting transactions and readers check it again.
    pub fn set_mode(&self, mode: FailMode) {
        self.mode.set(mode);
        self.changed.notify_all();
    }
    /// Whether a failure now suspends the pool.
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
    /// Number of suspensions so far.
    pub fn times(&self) -> u64 {
        self.times.get()
    }
    /// Ends the suspension: all waiters retry.
    pub fn resume(&self) {
        self.cause.take();
        self.changed.notify_all();
    }
    /// From now on errors are returned: the pool is closed without its failed writes.
    pub fn give_up(&self) {
        self.given_up.set(true);
        self.changed.notify_all();
    }

    /// Suspends the pool because of `cause` and waits until it is resumed. An error if the pool is
    /// given up, or `cause` itself if the gate does not hold.
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

    /// Waits until the pool is suspended and returns the error: for callers that must not wait for
    /// `zpool clear`.
    pub async fn suspension(&self) -> Error {
        loop {
            if let Some(cause) = self.cause() {
                return suspended(&cause);
            }
            self.changed.notified().await;
        }
    }

    /// Called by new transactions: waits until the pool is not suspended, or returns the error with
    /// `failmode=continue`.
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
