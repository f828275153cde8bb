//! Scrub and resilver on pools of some shapes with redundancy; the judges on what they leave.

use ztest::judge::{self, Level, Verdict};
use ztest::lab::{SHAPES, Shape};
use ztest::scan::{CutsMet, run_cuts, run_resilver, run_rot};

/// The profile `--scans` has all shapes.
const REDUNDANT: [&str; 4] = ["mirrors", "raidz1", "raidz3", "draid"];

fn shape(name: &str) -> &'static Shape {
    SHAPES.iter().find(|s| s.name == name).unwrap_or_else(|| panic!("no shape {name}"))
}

fn judge(images: &[sim::DiskImage], name: &str) {
    match judge::judge(images, Level::Zdb, name) {
        Verdict::Good => {}
        Verdict::Missing(what) => eprintln!("NOT JUDGED: {name}: {what} is missing"),
        Verdict::Bad(why) => panic!("{name}: {why}"),
    }
}

#[test]
fn rot_is_mended() {
    for (n, name) in REDUNDANT.iter().enumerate() {
        let images = run_rot(3000 + n as u64, shape(name), 8).unwrap_or_else(|e| panic!("{name}: {e}"));
        judge(&images, &format!("rot-{name}"));
    }
}

#[test]
fn what_was_missed_is_brought_back() {
    for (n, name) in REDUNDANT.iter().enumerate() {
        let images = run_resilver(3100 + n as u64, shape(name), 4).unwrap_or_else(|e| panic!("{e}"));
        judge(&images, &format!("resilver-{name}"));
    }
}

#[test]
fn power_cuts_cost_nothing() {
    let mut met = CutsMet::default();
    for (n, name) in ["mirror", "raidz2"].iter().enumerate() {
        let images = run_cuts(3200 + n as u64, shape(name), 6, &mut met).unwrap_or_else(|e| panic!("{e}"));
        judge(&images, &format!("cuts-{name}"));
    }
    assert!(met.running > 1, "the cuts met nothing: {met:?}");
}
