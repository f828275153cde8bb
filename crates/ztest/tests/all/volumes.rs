//! Volumes, and power cuts under their load. The long profiles: `ztest --volumes 0..200`,
//! `ztest --volcuts 0..100 --images 100`.

use ztest::judge::{Level, Verdict, judge};
use ztest::lab::shape_of;
use ztest::volcuts::cut_seed;
use ztest::volumes::run_seed;
use ztest::zilcuts::Cutting;
use ztest::ziltrouble::Trouble;

#[test]
fn model_and_checker_agree() {
    for seed in 0..4 {
        if let Err(e) = run_seed(seed, shape_of(seed), 50) {
            panic!("{e}");
        }
    }
}

#[test]
fn zdb_agrees() {
    let images = run_seed(11, shape_of(11), 60).unwrap_or_else(|e| panic!("{e}"));
    match judge(&images, Level::Zdb, "volumes") {
        Verdict::Good => {}
        Verdict::Missing(what) => eprintln!("NOT JUDGED: {what}"),
        Verdict::Bad(why) => panic!("{why}"),
    }
}

#[test]
fn what_was_flushed_survives_power_cuts() {
    let how = Cutting { all: false, trouble: Trouble::None, steps: 15, repeats: 1, every: 11, second: 40, zdb: 0 };
    let (mut cuts, mut acks, mut replayed) = (0, 0, 0);
    for seed in 0..3 {
        let (t, faults) = cut_seed(seed, how);
        assert!(t.is_good() && faults.is_empty(), "{faults:?}");
        (cuts, acks, replayed) = (cuts + t.cuts, acks + t.acks, replayed + t.replayed);
    }
    assert!(cuts > 30 && acks > 20 && replayed > 0, "{cuts} {acks} {replayed}");
}
