//! Objects and object sets: dnodes, block trees, transactions, syncing, ZAPs, system attributes.
//!
//! An *object set* is an array of objects (the MOS, a file system, a volume). An *object* is a
//! dnode: a tree of data blocks of one size, plus a small *bonus* and perhaps a *spill* block. All
//! changes are made under a [`Tx`], which belongs to a transaction group; they stay in memory until
//! [`Objset::sync`] of that group writes them copy-on-write.
//!
//! Reading order of the code: `ctx` (the context of the pool), `tx`, `dnode` (reading and
//! dirtying), `dirty` (dirty blocks of a txg), `early` (blocks that an intent log stores before the
//! sync), `tree` (walking committed block trees), `alloc` (object numbers), `objset`, `policy` (how
//! a block is stored), `sync_block`, `sync_tree`, `sync_dnode` and `sync` (writing), `userused`
//! (space by owner), `count` (the same for what is there already), `raw` (writing without the key);
//! on top of them `zap`, `sa`, `bpobj`.

/// Whether a bug is planted: only in builds with the feature `planted-bugs`.
#[cfg(feature = "planted-bugs")]
macro_rules! planted {
    ($bug:ident) => {
        $crate::bugs::planted($crate::bugs::Bug::$bug)
    };
}
/// Whether a bug is planted: only in builds with the feature `planted-bugs`.
#[cfg(not(feature = "planted-bugs"))]
macro_rules! planted {
    ($bug:ident) => {
        false
    };
}

pub mod bpobj;
#[cfg(feature = "planted-bugs")]
pub mod bugs;
pub mod sa;
pub mod zap;

mod alloc;
mod charge;
mod clone;
mod count;
mod ctx;
mod dirty;
mod dnode;
mod dnode_io;
mod early;
mod objset;
mod pieces;
mod policy;
mod ranges;
pub mod ranks;
mod raw;
mod sync;
mod sync_block;
mod sync_dnode;
mod sync_tree;
mod tree;
mod tx;
mod userused;

pub use alloc::ObjSpec;
pub use arc::Keep;
pub use clone::CloneSource;
pub use ctx::{
    BlockAccounting, DmuCtx, DmuFeatures, DmuTunables, FeatureUse, ObjsetProps, Prefetch, PrimaryCache, ReadAheadStats,
    RedundantMetadata, Reservation, SpaceGate, TxSpace,
};
pub use dnode::Dnode;
pub use objset::{IntentLog, Objset, ObjsetHooks};
pub use pieces::{Pieces, write_per_tx};
pub use raw::{RawMeta, Shape};
pub use sync::SyncedRoot;
pub use tx::{Tx, TxPlan};
