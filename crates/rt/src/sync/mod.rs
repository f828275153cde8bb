//! Synchronization between tasks of one engine: locks, counters, queues. Single-threaded, first
//! come first served.
//!
//! Every wait here is *cancel-safe*: a future dropped before it became ready leaves its queue, and
//! one dropped between grant and poll passes the grant on to the next waiter. The release grants,
//! in queue order, so a later waiter never overtakes. Wakers are called outside of every borrow.

pub mod gate;
mod list;
pub mod lock;
pub mod notify;
pub mod oneshot;
pub mod range;
pub mod semaphore;

pub use gate::{Gate, Pass};
pub use lock::{Mutex, MutexGuard, OwnedMutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use notify::{Notified, Notify};
pub use oneshot::oneshot;
pub use range::{RangeGuard, RangeLock};
pub use semaphore::{Permit, Semaphore};

pub use crate::rank::Rank;
