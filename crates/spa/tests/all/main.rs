//! Pools that are created, imported and changed.
#![allow(clippy::unwrap_used)]

mod common;
mod devices;
mod history;
mod imports;
mod multihost;
mod raidz_expand;
