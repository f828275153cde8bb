//! Random workloads against the model; the judges see the pools where they are installed. The long
//! profile: `ztest --workloads 0..200`.

use ztest::campaign::{Effort, run_seed};
use ztest::judge::{self, Level, Verdict};
use ztest::workload::Profile;

fn run(seed: u64, profile: Profile, effort: Effort) {
    let images = run_seed(seed, profile, effort).unwrap_or_else(|e| panic!("{e}"));
    match judge::judge(&images, Level::Zdb, &format!("test-{profile:?}-{seed}")) {
        Verdict::Good => {}
        Verdict::Missing(what) => eprintln!("NOT JUDGED: seed {seed}: {what} is missing"),
        Verdict::Bad(why) => panic!("seed {seed} ({profile:?}): {why}"),
    }
}

#[test]
fn a_bit_of_everything() {
    run(1000, Profile::Small, Effort { ops: 60, lives: 2 });
}

#[test]
fn all_codecs() {
    run(1003, Profile::Codecs, Effort { ops: 60, lives: 2 });
}

#[test]
fn a_pool_that_gets_full() {
    run(1005, Profile::Full, Effort { ops: 10, lives: 1 });
}

#[test]
fn many_files() {
    run(1006, Profile::Many, Effort { ops: 300, lives: 1 });
}

#[test]
fn sparse_files() {
    run(1007, Profile::Sparse, Effort { ops: 80, lives: 2 });
}

/// Two runs of one seed are the same run.
#[test]
fn a_seed_is_a_run() {
    let run = || run_seed(1008, Profile::Small, Effort { ops: 30, lives: 1 }).unwrap_or_else(|e| panic!("{e}"));
    let (a, b) = (run(), run());
    assert!(a == b, "the disks differ");
}
