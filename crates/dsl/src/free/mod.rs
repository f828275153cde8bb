//! Blocks that datasets no longer use: the lists that keep those of snapshots (deadlists, remap
//! deadlists) and of clones (livelists), the destruction of heads, and the work in the background
//! that frees what was destroyed.

pub mod deadlist;
pub(crate) mod destroy;
pub(crate) mod freeing;
pub(crate) mod livelist;
pub(crate) mod remap;
