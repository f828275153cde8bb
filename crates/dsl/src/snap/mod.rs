//! Snapshots and what descends from them: holds, bookmarks, clones, rollback, promotion, and their
//! destruction.

pub(crate) mod bookmark;
pub(crate) mod clone;
pub(crate) mod destroy;
pub(crate) mod promote;
pub(crate) mod snapshot;
pub(crate) mod temporary;
