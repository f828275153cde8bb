//! Damaged images that are written to. The long profile: `ztest --mutate 10000 --write`.

use ztest::mutate_write::{WriteTally, WriteVictim, mutate_write};

#[test]
fn damaged_pools_are_changed_or_refused() {
    let victim = WriteVictim::new(1).unwrap_or_else(|e| panic!("{e}"));
    let mut tally = WriteTally::default();
    let faults: Vec<String> = (0..60).filter_map(|n| mutate_write(&victim, n, &mut tally)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    // The damage mattered, and most operations went on.
    assert!(tally.refused > 0 && tally.failed > 0 && tally.worked > 300 && tally.again > 20, "{tally:?}");
}

/// A count of clones that cannot grow, a list that can never become empty, an export while a scrub
/// walks, figures of deadlists, fill counts and lengths of space maps whose sum overflows: each
/// once ended the engine or kept it busy for ever. A sync task that no txg ran once kept a pool
/// that was given up, with its devices, in memory; so did an import that failed after its first
/// txg.
#[test]
fn what_once_panicked_is_an_error() {
    let mut tally = WriteTally::default();
    for (victim, number) in [
        (2, 436),
        (45, 9123),
        (57, 11518),
        (101, 20_395),
        (300, 60_093),
        (368, 73_748),
        (4_626_854, 925_370_855),
        (4_626_858, 925_371_720),
    ] {
        let victim = WriteVictim::new(victim).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(mutate_write(&victim, number, &mut tally), None);
    }
}
