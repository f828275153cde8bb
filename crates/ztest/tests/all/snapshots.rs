//! Snapshots, clones and operations on them. The long profiles: `ztest --snapshots 0..200`,
//! `ztest --snapcuts 0..60`.

use ztest::judge::{Level, Verdict, judge};
use ztest::snaps::{Cut, cuts, run_seed};

#[test]
fn model_and_checker_agree() {
    for seed in 0..4 {
        if let Err(e) = run_seed(seed, 70) {
            panic!("{e}");
        }
    }
}

#[test]
fn zdb_agrees() {
    let images = run_seed(11, 80).unwrap_or_else(|e| panic!("{e}"));
    match judge(&images, Level::Zdb, "snapshots") {
        Verdict::Good => {}
        Verdict::Missing(what) => eprintln!("NOT JUDGED: {what}"),
        Verdict::Bad(why) => panic!("{why}"),
    }
}

#[test]
fn power_cuts_while_snapshots_are_destroyed() {
    let n = cuts(1, Cut::Snapshots, 9).unwrap_or_else(|e| panic!("{e}"));
    assert!(n > 2, "{n}");
}

#[test]
fn power_cuts_while_rolling_back() {
    let n = cuts(2, Cut::Rollback, 9).unwrap_or_else(|e| panic!("{e}"));
    assert!(n > 2, "{n}");
}

#[test]
fn power_cuts_while_a_file_system_is_destroyed() {
    let n = cuts(3, Cut::FileSystem, 9).unwrap_or_else(|e| panic!("{e}"));
    assert!(n > 2, "{n}");
}

#[test]
fn power_cuts_while_clones_come_and_go() {
    for (seed, what) in [(4, Cut::Clone), (5, Cut::Promote), (6, Cut::Deferred)] {
        let n = cuts(seed, what, 5).unwrap_or_else(|e| panic!("{what:?}: {e}"));
        assert!(n > 10, "{what:?}: {n}");
    }
}

/// Half-freed trees of several levels: zdb goes on where the freeing stopped.
#[test]
fn power_cuts_while_trees_are_freed() {
    let n = cuts(7, Cut::Rollback, 33).unwrap_or_else(|e| panic!("{e}"));
    assert!(n > 5, "{n}");
}
