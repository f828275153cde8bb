//! The device tree changes under a workload. The long profile: `ztest --devices 0..100`.

use ztest::cuts::cut_on;
use ztest::devices::run_seed;
use ztest::judge::{self, Level, Verdict};
use ztest::lab::SHAPES;

#[test]
fn devices_come_and_go() {
    let mut made = 0;
    for (seed, name) in [(3000, "mirror"), (3001, "raidz1"), (3003, "beside")] {
        let shape = SHAPES.iter().find(|s| s.name == name).unwrap_or_else(|| panic!("no shape {name}"));
        let (images, n, refused) = run_seed(seed, shape, 24).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        made += n;
        assert!(n + refused > 4, "{n} {refused}");
        match judge::judge(&images, Level::Zdb, &format!("devices{seed}")) {
            Verdict::Good => {}
            Verdict::Missing(what) => eprintln!("NOT JUDGED: {name}: {what} is missing"),
            Verdict::Bad(why) => panic!("seed {seed}, {name}: {why}"),
        }
    }
    assert!(made > 10, "only {made} changes were made");
}

/// Power cuts while the tree changes: every image imports, with one state of the files. In the last
/// one labels are cut off behind txgs without changes, which left no uberblock.
#[test]
fn cuts_leave_a_tree() {
    for (seed, name, txgs, every) in [(3100, "mirror", 3, 60), (3101, "raidz1", 3, 60), (20_261_164, "raidz3", 4, 40)] {
        let shape = SHAPES.iter().find(|s| s.name == name).unwrap_or_else(|| panic!("no shape {name}"));
        let (tally, faults) = cut_on(seed, txgs, 0, every, false, Some(shape));
        assert!(tally.is_good() && tally.cuts > 3, "{name}: {tally:?}\n{}", faults.join("\n"));
    }
}
