//! Cache devices: nothing on them shows. The long profile: `ztest --caches 0..100`.

use ztest::caches::{LAYOUTS, Met, run_seed};
use ztest::judge::{self, Level, Verdict};

#[test]
fn caches_are_fed_damaged_cut_and_found_again() {
    let mut met = Met::default();
    for (seed, shape) in (100..).zip(LAYOUTS.iter().chain(LAYOUTS)) {
        let images = run_seed(seed, shape, &mut met).unwrap_or_else(|e| panic!("{e}"));
        match judge::judge(&images, Level::Zdb, &format!("caches{seed}")) {
            Verdict::Good => {}
            Verdict::Missing(what) => eprintln!("NOT JUDGED: {seed}: {what} is missing"),
            Verdict::Bad(why) => panic!("seed {seed}: {why}"),
        }
    }
    assert!(met.hits > 300 && met.bad > 0 && met.rebuilt > 50 && met.cuts > 5 && met.rounds > 0, "{met:?}");
}
