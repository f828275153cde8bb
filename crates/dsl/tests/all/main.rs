//! Datasets, snapshots and properties.
#![allow(clippy::unwrap_used)]

#[path = "../../../spa/tests/all/common/mod.rs"]
mod common;
mod deadlist;
mod encrypted_clones;
mod heal;
mod newer;
mod props;
mod receive;
mod receive_faults;
mod receive_raw;
mod redact;
mod rewrite;
mod send;
mod snapshots;
mod streams;
