//! Power cuts. The long profile: `ztest --cuts 0..100 --txgs 20 --images 1000`.

use ztest::cuts::{cut_on, cut_owners, cut_seed, record_on};

#[test]
fn every_cut_leaves_one_state() {
    for seed in [2, 3] {
        let (tally, faults) = cut_seed(seed, 5, 0, 6, false);
        assert!(tally.is_good() && tally.cuts > 10, "{tally:?}\n{}", faults.join("\n"));
    }
}

/// The same where files are cloned: the references of blocks are counted, too.
#[test]
fn every_cut_counts_its_clones() {
    let mut cloned = 0;
    for seed in 0..4 {
        let (tally, faults) = cut_on(seed, 8, 0, 9, false, None, true);
        assert!(tally.is_good() && tally.cuts > 3, "{tally:?}\n{}", faults.join("\n"));
        cloned += u64::from(record_on(seed, 8, false, None, true).is_ok_and(|r| r.has_clones));
    }
    assert!(cloned > 0, "nothing was cloned");
}

/// Owners, projects and limits change: what is counted is what is there.
#[test]
fn every_cut_counts_its_owners() {
    for (seed, all) in [(1, false), (2, true)] {
        let (tally, faults) = cut_owners(seed, 8, 0, 9, all);
        assert!(tally.is_good() && tally.cuts > 5, "{tally:?}\n{}", faults.join("\n"));
    }
}

/// A log names a block without a checksum (`checksum=off`) that was not written before the cut:
/// that it does not decompress ends the log, and the file system can be mounted.
#[test]
fn a_block_without_checksum_that_was_not_written_ends_the_log() {
    let (tally, faults) = cut_seed(926_500_035, 20, 0, 7, false);
    assert!(tally.is_good() && tally.cuts > 10, "{tally:?}\n{}", faults.join("\n"));
}

#[test]
fn zdb_finds_nothing_after_a_cut() {
    if !ztest::judge::has_zdb() {
        eprintln!("NOT JUDGED: zdb is missing (zfsutils-linux)");
        return;
    }
    let (tally, faults) = cut_seed(4, 3, 1, 40, false);
    assert!(tally.is_good(), "{tally:?}\n{}", faults.join("\n"));
}

/// Disks that ignore flushes lose txgs: a check that does not detect it would prove nothing.
#[test]
fn disks_that_lie_are_noticed() {
    let (tally, _) = cut_seed(5, 6, 0, 5, true);
    assert!(tally.lost + tally.torn > 0, "{tally:?}");
}
