//! Streams received on other layouts, and power cuts meanwhile. The long profiles:
//! `ztest --receives 0..200`, `ztest --recvcuts 0..100`.

use ztest::judge::{Level, Verdict, judge};
use ztest::receives::{cuts, run_seed};

#[test]
fn random_streams_are_received_and_zdb_agrees() {
    for seed in 0..3 {
        let (counts, images) = run_seed(seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(counts.streams > 0, "seed {seed}: {counts:?}");
        match judge(&images, Level::Zdb, "receives") {
            Verdict::Good => {}
            Verdict::Missing(what) => eprintln!("NOT JUDGED: {what}"),
            Verdict::Bad(why) => panic!("seed {seed}: {why}"),
        }
    }
}

/// To its end, rolled back, kept, aborted.
#[test]
fn a_snapshot_is_received_whole_or_not_at_all() {
    let done: u64 = (1..7).map(|seed| cuts(seed, 60).unwrap_or_else(|e| panic!("seed {seed}: {e}"))).sum();
    assert!(done > 20, "{done} cuts");
}
