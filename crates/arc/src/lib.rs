//! The adaptive replacement cache: decompressed blocks of a pool in memory, under one limit that
//! holds.
//!
//! Vocabulary. A block's key is the place and birth of its first copy: (vdev, offset, physical
//! birth). Places are reused, births are not, so an entry is never wrong, only useless. *MRU* holds
//! blocks seen once, *MFU* those seen again; each has a *ghost* list of blocks that were dropped
//! from it lately, of which only the header is left. A ghost hit shows which of the two lists was
//! too short, and moves the target of the MRU's share (Megiddo and Modha, "ARC"). Metadata and data
//! have lists of their own; data goes first as long as metadata keeps within its share. *Uncached*
//! blocks (`primarycache=none`, direct I/O) are here for a moment, in a small share of the limit,
//! first in first out: what was read ahead, or is read in several bites, is read once.
//!
//! Normal path of a read ([`Arc::read`]): hit, or miss; a miss reads through `zio`, and other
//! readers of the same block wait for that read and share its bytes. Blocks that a sync writes are
//! put in with [`Arc::insert`]: they are likely to be read again, and their memory is there
//! already.
//!
//! The limit counts the whole allocation behind every block kept (several blocks cut from one
//! allocation share its cost), every header with its slot in the table whether used or not, and the
//! charges of [`Arc::charge`]. Invariant: after every call, that sum is at most the limit, unless
//! the charges alone exceed it. Room is made before a block goes in; a block that does not fit goes
//! to the reader uncached.
//!
//! [`core::Core`] is all of the policy and bookkeeping, without waiting; [`Arc`] is the shell that
//! reads.

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

mod broker;
#[cfg(feature = "planted-bugs")]
pub mod bugs;
mod cache;
pub mod core;
mod l2;
mod policy;
mod slab;

pub use broker::{Demand, MemBroker};
pub use cache::{Arc, Keep, MemKind};
pub use core::{Accesses, ArcStats, Want};
pub use l2::{CacheDevice, CacheFigures, Held, L2Stats, L2Tunables};
