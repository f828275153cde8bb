//! The seam: the one door through which the engine meets the world.
//!
//! [`World`] is what a world must offer (clock, timers, tasks, randomness, CPU jobs, identity);
//! `host` implements it over the operating system, `sim` in virtual time. The engine holds an
//! [`Rt`], a cheap handle on its world, and waits only through this crate: [`sync`] has the FIFO
//! locks and queues, [`join`] the ways to run several futures in one task, [`rank`] the order in
//! which locks may be taken, [`turn`] how long a task keeps the thread, [`cost`] what work costs,
//! [`trace`] what instruments hear.
//!
//! Everything here is single-threaded: one thread owns a pool, futures are `!Send`, state is `Rc`
//! and `Cell`. The only thing that crosses threads is the closure given to [`Rt::cpu`] and its
//! result.

pub mod cost;
mod handle;
pub mod join;
pub mod rank;
pub mod sync;
pub mod trace;
pub mod turn;
mod world;

pub use handle::{JoinHandle, Rt, Sleep, Spend, YieldNow};
pub use rank::{Rank, TaskLocks};
pub use turn::{Place, Turn, place_of};
pub use world::{CpuClass, HostIdentity, TaskId, TimerId, World};
