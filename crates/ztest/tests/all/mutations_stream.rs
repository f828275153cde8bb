//! Damaged streams. The long profile: `ztest --mutate 20000 --streams`.

use ztest::mutate_stream::{StreamTally, StreamVictim, mutate_stream};

#[test]
fn damaged_streams_are_received_whole_or_leave_nothing() {
    let victim = StreamVictim::new(1).unwrap_or_else(|e| panic!("{e}"));
    let mut tally = StreamTally::default();
    let faults: Vec<String> = (0..120).filter_map(|n| mutate_stream(&victim, n, &mut tally)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    // The damage mattered, and some of it is none.
    assert!(tally.refused > 40 && tally.received > 3 && tally.kept > 5, "{tally:?}");
}
