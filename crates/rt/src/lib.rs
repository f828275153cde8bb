//! The runtime interface: the engine's only access to the outside world.
//!
//! [`World`] is the interface of a world (clock, timers, tasks, randomness, CPU jobs, identity);
//! `host` implements it over the operating system, `sim` in virtual time. The engine holds an
//! [`Rt`], a cheap handle on its world, and waits only through this crate: [`sync`] has FIFO locks
//! and queues, [`join`] runs several futures in one task, [`rank`] orders locks, [`turn`] bounds
//! how long a task keeps the thread, [`cost`] has CPU costs, [`trace`] has trace events,
//! [`oplog`] the recorded form of operations.
//!
//! Everything here is single-threaded: one thread owns a pool, futures are `!Send`, state is `Rc`
//! and `Cell`. Only the closure given to [`Rt::cpu`] and its result cross threads.

pub mod cost;
mod handle;
pub mod join;
pub mod oplog;
pub mod rank;
pub mod sync;
pub mod trace;
pub mod turn;
mod world;

pub use handle::{JoinHandle, Rt, Sleep, Spend, YieldNow};
pub use rank::{Rank, TaskLocks};
pub use turn::{Place, Turn, place_of};
pub use world::{CpuClass, HostIdentity, TaskId, TimerId, World};

/// A boxed future that is not `Send`: the return type of object-safe async methods.
pub type LocalBoxFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + 'a>>;
