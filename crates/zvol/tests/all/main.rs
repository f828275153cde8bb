//! Volumes, and all that the pools of the kernel hold.
#![allow(clippy::unwrap_used)]

mod changes;
mod common;
mod reference_pools;
mod volume;
#[path = "../../../spa/tests/all/common/mod.rs"]
mod world;
