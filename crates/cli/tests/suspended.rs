//! `zfs rollback` and `zfs receive` of a file system in use, from outside.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use common::world::World;
use common::{WEIR, outcome_of};

/// Runs `suspended.py`, whose checks these are.
fn below_its_users(how: &str) {
    let Some(w) = World::of_root(&format!("suspended-{how}")) else { return };
    w.ok(&format!("zpool create --size 256M -O mountpoint={} tank a.img", w.path("m")));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suspended.py");
    let done = outcome_of(w.command("python3").args([script, WEIR, &w.path("fs"), how]).output().unwrap());
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    w.ok("zpool scrub -w tank");
    assert!(w.ok("zpool status tank").contains("errors: No known data errors"));
    w.ok("zpool export tank");
    w.ok("zdb --check -p . tank");
}

#[test]
fn a_file_system_in_use_is_rolled_back() {
    below_its_users("rollback");
}

#[test]
fn a_file_system_in_use_is_received_into() {
    below_its_users("receive");
}

#[test]
fn a_rollback_that_fails_changes_nothing() {
    below_its_users("failing");
}
