//! Volumes, and all that the pools of the kernel hold.
#![allow(clippy::unwrap_used)]

mod common;
mod reference_pools;
mod volume;
