//! The commit of a txg: the sync loop, and the objects of the MOS that it keeps.

pub(crate) mod checkpoint;
pub(crate) mod config;
pub(crate) mod ddt;
mod history;
pub(crate) mod logs;
pub(crate) mod removed;
pub(crate) mod space_map;
pub(crate) mod store;
mod sync;
