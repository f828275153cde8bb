//! Snapshots, clones and operations on them. The long profiles: `ztest --snapshots 0..200`,
//! `ztest --snapcuts 0..60`.

use ztest::judge::{Level, Verdict};
use ztest::snaps::{Cut, cuts, has_rewrites, judge, run_seed};

#[test]
fn model_and_checker_agree() {
    // With and without blocks that are written anew.
    assert!((0..4).any(has_rewrites) && !(0..4).all(has_rewrites));
    for seed in 0..4 {
        if let Err(e) = run_seed(seed, 70) {
            panic!("{e}");
        }
    }
}

#[test]
fn zdb_agrees() {
    let seeds = [true, false].map(|with| (11..).find(|seed| has_rewrites(*seed) == with).expect("half of them"));
    for seed in seeds {
        let images = run_seed(seed, 80).unwrap_or_else(|e| panic!("{e}"));
        match judge(&images, Level::Zdb, seed) {
            Verdict::Good => {}
            Verdict::Missing(what) => eprintln!("NOT JUDGED: {what}"),
            Verdict::Bad(why) => panic!("seed {seed}: {why}"),
        }
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
