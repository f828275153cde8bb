//! A RAID-Z grows by a device under a workload.

use ztest::expandcuts::cut_seed;

/// Power cuts from the first txg of an expansion to its end: every state imports, is the state of
/// its txg, and can be brought to the end. `ztest --expandcuts` has many more.
#[test]
fn power_cuts_while_a_raidz_is_expanded() {
    let (tally, faults) = cut_seed(1, 0, 101);
    assert!(faults.is_empty() && tally.is_good(), "{faults:#?}");
    assert!(tally.cuts > 20, "{tally:?}");
}
