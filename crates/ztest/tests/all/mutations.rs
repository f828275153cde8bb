//! Damaged images. The long profile: `ztest --mutate 10000`.

use ztest::mutate::{MutateTally, Victim, check_surgery, mutate};

#[test]
fn damage_gives_an_error_or_the_truth() {
    let victim = Victim::new(1).unwrap_or_else(|e| panic!("{e}"));
    check_surgery(&victim).unwrap_or_else(|e| panic!("{e}"));
    let mut tally = MutateTally::default();
    let faults: Vec<String> = (0..60).filter_map(|n| mutate(&victim, n, &mut tally)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    // Damage of all kinds was there: some refused, some read around, some without effect.
    assert!(tally.refused > 0 && tally.errors > 0 && tally.intact > 0, "{tally:?}");
}

/// Damage that once ended an import or a read with a panic; found by the campaign.
#[test]
fn what_once_panicked_is_read() {
    let mut tally = MutateTally::default();
    let victim = Victim::new(4_628_109).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(mutate(&victim, 925_621_995, &mut tally), None);
}
