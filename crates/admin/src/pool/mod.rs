//! Pools as wholes: create, import, export, their devices, properties, scans, history and events.

pub mod cache_file;
pub(crate) mod compatibility;
pub mod create;
pub mod devices;
mod history;
pub mod import;
pub(crate) mod inject;
pub mod labels;
pub mod props;
pub mod record;
mod scan;
mod split;
pub mod trace;
pub mod vdev_props;
pub mod vdev_spec;
mod version;
pub mod zevents;
