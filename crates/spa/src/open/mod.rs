//! Pools begin here: they are created, found on devices, imported.

mod assemble;
mod claim;
pub(crate) mod create;
pub(crate) mod explain;
pub(crate) mod import;
pub(crate) mod multihost;
pub(crate) mod partition;
pub(crate) mod rewind;
mod split;
pub(crate) mod unsupported;
