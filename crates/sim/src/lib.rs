//! The laboratory's world: virtual time, a seeded executor, modelled devices, power cuts.
//!
//! A [`Sim`] implements [`rt::World`]. Its clock stands still while anything can run and then jumps
//! to the next event, so an hour of pool time takes as long as the work in it. Which of several
//! ready tasks runs next is drawn from the seed: each seed is another interleaving, and the same
//! seed is the same run, bit for bit, which [`SimHandle::digest`] proves.
//!
//! Vocabulary. A *turn* fires one event or polls one task. An *event* is a timer, a device
//! completion, or a step of a CPU job. A *life* is the time between two power cuts: a `Sim` ends
//! with [`SimHandle::crash`], its disks go on as [`DiskImage`]s into the next `Sim`.
//!
//! A typical test:
//!
//! ```
//! use base::Nanos;
//! use sim::{Model, Sim, SimConfig, SimDisk};
//!
//! let sim = Sim::new(SimConfig::seeded(7));
//! let disk = SimDisk::new(&sim, 64 << 20, Model::nvme(), 1);
//! let rt = sim.rt();
//! sim.block_on(async {
//!     bdev::write(&disk, 0, bdev::Bytes::zeroed(4096)).await.unwrap();
//!     rt.sleep(Nanos::from_secs(1)).await;
//! });
//! let after_the_cut = disk.power_cut(99);
//! sim.crash();
//! let sim = Sim::new(SimConfig::seeded(8));
//! let disk = SimDisk::from_image(&sim, after_the_cut, Model::nvme(), 1);
//! # drop(disk);
//! ```

pub mod devices;
mod exec;
mod report;
mod rng;
mod timers;
mod world;

pub use devices::{
    Counters, CutStyle, DiskConfig, DiskImage, DiskLog, Fault, FaultId, HddModel, HostCpu, HostLatency, Model, OpKind,
    Replay, SimDisk, SsdModel,
};
pub use exec::Sim;
pub use report::{BlockedTask, StallCause, StallReport};
pub use rng::Rng;
pub use world::{Pick, SimConfig, SimHandle};
