//! Streams received on other layouts. The long profile: `ztest --receives 0..200`.

use ztest::judge::{Level, Verdict, judge};
use ztest::receives::run_seed;

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
