//! Datasets: create, destroy, rename, properties, snapshots, keys, volumes, and the rules for
//! mounts.

mod acl_notice;
mod allow;
mod dependents;
mod diff;
pub mod files;
pub mod front_end;
mod heal;
pub mod keys;
pub mod mounts;
pub mod open_volumes;
pub mod ops;
pub mod owners;
pub mod places;
pub(crate) mod receive;
mod receive_package;
mod rights;
mod send;
pub mod shares;
pub mod snaps;
mod suspended;
pub mod temp_props;
pub mod volume_folder;
pub mod volumes;
