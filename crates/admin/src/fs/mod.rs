//! Datasets: create, destroy, rename, properties, snapshots, keys, and the rules for mounts.

mod acl_notice;
mod dependents;
pub mod files;
pub mod front_end;
pub mod keys;
pub mod mounts;
pub mod ops;
pub mod places;
mod receive;
mod receive_package;
mod send;
pub mod snaps;
pub mod temp_props;
