//! What tasks of one engine wait on: locks, counters, queues. Single-threaded, first come first
//! served.
//!
//! Every wait here is *cancel-safe*: a future dropped before it became ready leaves its queue, and
//! one dropped between being granted and being polled hands the grant on to the next. Every grant
//! is made by the one who releases, in queue order, so nobody who comes later overtakes. Wakers are
//! called outside of every borrow.

pub mod gate;
mod list;
pub mod lock;
pub mod mpsc;
pub mod notify;
pub mod oneshot;
pub mod range;
pub mod semaphore;

pub use gate::{Gate, Pass};
pub use lock::{
    Mutex, MutexGuard, OwnedMutexGuard, OwnedReadGuard, OwnedWriteGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
pub use mpsc::channel;
pub use notify::{Notified, Notify};
pub use oneshot::oneshot;
pub use range::{RangeGuard, RangeLock};
pub use semaphore::{Permit, Semaphore};

pub use crate::rank::Rank;

/// Another name of [`Gate`].
pub type WaitGroup = Gate;
