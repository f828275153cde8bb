//! Pools that no import takes, rescued. The long profile: `ztest --rescues 0..200`.

use ztest::lab::{SHAPES, Shape, shape_of};
use ztest::rescues::{Met, Spoil, run_shape, run_spoilt};

fn shape(name: &str) -> &'static Shape {
    SHAPES.iter().find(|s| s.name == name).unwrap_or_else(|| panic!("no shape {name}"))
}

#[test]
fn what_is_left_comes_back() {
    let mut met = Met::default();
    for seed in 7000..7012 {
        run_shape(seed, shape_of(seed), &mut met).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    assert!(met.stopped >= 11 && met.intact > 40 && met.good > met.partly && met.unlabelled > 0, "{met:?}");
}

#[test]
fn encrypted_file_systems_come_back() {
    let mut met = Met::default();
    for seed in 7100..7112 {
        run_shape(seed, shape("mirror"), &mut met).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    assert!(met.sealed > 0, "{met:?}");
}

/// Files whose attribute layout is lost, with their lengths, are told as damaged.
#[test]
fn lost_lengths_are_told() {
    for seed in [931_135_010, 931_135_052, 931_135_057] {
        let mut met = Met::default();
        run_shape(seed, shape("raidz2"), &mut met).unwrap();
        assert!(met.partly > 3, "{met:?}");
    }
}

/// A file that moved out of a folder of which only an older state is left comes back where it is.
#[test]
fn moved_files_come_back_where_they_are() {
    run_shape(931_134_234, shape("raidz-two"), &mut Met::default()).unwrap();
}

/// The metadata on mirrors can be read with any sector size; only that of the data is right.
#[test]
fn the_sector_size_of_the_data_counts() {
    let mut met = Met::default();
    run_shape(931_134_286, shape("special"), &mut met).unwrap();
    assert!(met.unlabelled == 1 && met.intact > 4, "{met:?}");
}

/// The judge notices a file that is missing or wrong, and a report that does not say so.
#[test]
fn the_judge_notices_mistakes() {
    let seed = 7200;
    for (how, why) in [
        (Spoil::Remove, "is intact and does not come back"),
        (Spoil::Flip, "is intact and does not come back: byte 0"),
        (Spoil::Lengthen, "is intact and does not come back"),
        (Spoil::Untell, "the report"),
    ] {
        let verdict = run_spoilt(seed, shape("stripe"), how);
        assert!(verdict.as_ref().is_err_and(|e| e.contains(why)), "{how:?}: {verdict:?}");
    }
}
