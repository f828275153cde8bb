//! Transaction groups and the write throttle: how changes are batched, and how fast clients may
//! make them.
//!
//! A *transaction group* (txg) is a set of changes that reaches the disk as one. It is *open* while
//! transactions join it, *quiescing* from the moment it is closed until the last transaction that
//! joined has ended, *syncing* while it is written. At most three exist at once, one of each, so
//! that clients go on while the disk works. *Dirty* bytes are changes in memory that no sync has
//! written yet.
//!
//! Normal path, for a client: [`TxgPool::throttle`] (where a client that is faster than the disk
//! waits), then [`TxgPool::hold_open`] gives the open txg and a hold on it, changes are made and
//! reported with [`TxgPool::dirty_add`], and the hold is dropped. For the pool: [`TxgPool::run`]
//! closes the open txg when a fifth of the dirty limit is in it, when 5 s have passed since the
//! last sync began, or when there is a waiter; the holds drain; the sync function is called;
//! [`TxgPool::dirty_done`] takes bytes back as their writes end; the waiters of the txg wake.
//!
//! Policy is apart from waiting: [`policy`], [`throttle`] and [`legacy`] have the decisions as pure
//! functions over numbers (behaviour sections 3.1 and 3.3), `admit` and `pool` are the shell that
//! waits. Invariants: txgs sync in order and none is skipped; a hold never waits; dirty bytes of a
//! txg are zero once it has synced; when a sync fails the pool is *suspended*, and every present
//! and later waiter gets that error.

mod admit;
mod history;
pub mod legacy;
pub mod policy;
mod pool;
pub mod throttle;

pub use history::{TxgIo, TxgRecord, TxgState};
pub use policy::{TxgTunables, delay_ns};
pub use pool::{AdminStats, TxgHold, TxgPool, TxgStats};
pub use throttle::ThrottlePolicy;
