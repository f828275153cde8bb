//! Copies what can be read from a pool that no longer imports.
//!
//! An import needs one state of the pool that is whole from the uberblock to every dataset. A
//! rescue needs none: it takes what each block's checksum proves, from any copy, any state, any
//! side of the redundancy, and says what is missing. It only reads the devices, and it needs no
//! daemon.
//!
//! What proves what: a block is proved by the checksum in the pointer to it, a root by the checksum
//! of its uberblock. Where the root of a tree is lost (an uberblock, a MOS, a dataset, an object
//! set, a block of dnodes) blocks of that form are searched for on the devices; all that they lead
//! to is proved again, only that *they* belong to the pool is likely at best, and the report says
//! so.
//!
//! Words: a *state* is the pool as of some uberblock, a *view* a dataset's object set in a state, a
//! *finding* something that is not as it was.
//!
//! The order ([`mod@rescue`]):
//!
//! 1. [`layout`]: labels of all devices give the vdevs, or the user names them; [`vdevs`] proposes
//!    contents of ranges, [`blocks`] checks them; a sector size that no label says is tried
//!    ([`evidence`]);
//! 2. [`roots`]: all uberblocks; every MOS that opens is a state, the newest first;
//! 3. [`catalog`]: datasets by the types of their objects, over all states ([`tree`] reads object
//!    sets with holes in them);
//! 4. [`scan`]: if something is lost, devices are searched; [`finds`] says what of it belongs
//!    where ([`lineage`] tells clones apart);
//! 5. [`copy`]: each dataset, file by file ([`fs`]: files over several views; [`keys`]: encrypted
//!    ones) into the target ([`out`]), with a line of [`state`] for each, from which an interrupted
//!    rescue goes on;
//! 6. [`report`].
//!
//! Policy. The newest state decides what exists. An object that is lost in it is taken from the
//! next older one; one that is free in it is gone. A damaged file is copied with holes, and its
//! last whole version beside it. Nothing is proved by age: a stale device, or a wrong one, only has
//! the wrong checksums.
//!
//! Invariants: devices are opened for reading only; everything on them is hostile, so that walks
//! are bounded by the size of the devices, memory by constants (the record of a rescue aside, which
//! has a few words for each file), and nothing panics. Nothing outside the target is written.
//!
//! Knobs: [`rescue::Opts`]. The command is `weir rescue` ([`cli`]).

#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod blocks;
pub mod catalog;
pub mod cli;
pub mod copy;
pub mod evidence;
pub mod finds;
pub mod fs;
pub mod keys;
pub mod layout;
pub mod lineage;
pub mod out;
pub mod report;
pub mod rescue;
pub mod roots;
pub mod scan;
pub mod scan_state;
mod solve;
pub mod state;
pub mod tree;
pub mod vdevs;

pub use cli::main;
pub use copy::Progress;
pub use report::Summary;
pub use rescue::{Opts, ScanWhen, rescue};
pub use state::{Finding, Problem};
