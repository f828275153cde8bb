//! Pools that are whole: everything comes back as the kernel showed it.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;

use common::{Folder, differences, fixture_pool, images, reference, report, run};

fn dir(p: &Path) -> &str {
    p.to_str().unwrap()
}

/// Rescues a reference pool with all snapshots and compares it with its manifest; `allowed`:
/// problems that it has.
fn whole(name: &str, manifest: &str, more: &[&str], allowed: &[&str]) {
    let Some((_folder, from)) = reference(name) else { return };
    let out = Folder::new(&format!("{name}-out"));
    let mut args = vec!["-q", "-s", "-o", dir(out.path())];
    args.extend_from_slice(more);
    args.push(dir(&from));
    let (_, text) = run(&args);
    let report = report(out.path());
    let findings = report["findings"].as_array().unwrap();
    let odd: Vec<_> = findings.iter().filter(|f| !allowed.contains(&f["problem"].as_str().unwrap())).take(5).collect();
    assert!(odd.is_empty(), "{name}: {text}{odd:?}");
    let manifest = std::fs::read_to_string(from.join(manifest)).unwrap();
    let bad = differences(out.path(), &manifest, true);
    assert!(bad.is_empty(), "{name}: {} differ: {:?}", bad.len(), &bad[..bad.len().min(8)]);
}

#[test]
fn the_pool_in_the_repository() {
    let folder = Folder::new("whole");
    let manifest = fixture_pool(folder.path());
    let out = Folder::new("whole-out");
    let (code, text) = run(&["-q", "-s", dir(folder.path()), "-o", dir(out.path())]);
    assert_eq!(code, 0, "{text}{}", report(out.path()));
    let bad = differences(out.path(), &manifest, true);
    assert!(bad.is_empty(), "{bad:?}");
    // Once more: nothing is left to do, and the report is the same.
    let before = report(out.path());
    let (code, _) = run(&["-q", "-s", dir(folder.path()), "-o", dir(out.path())]);
    assert_eq!((code, report(out.path())), (0, before));
}

/// A dry run reads all and writes the report alone.
#[test]
fn dry_runs_copy_nothing() {
    let folder = Folder::new("dry");
    fixture_pool(folder.path());
    let out = Folder::new("dry-out");
    let (code, text) = run(&["-q", "-n", dir(folder.path()), "-o", dir(out.path())]);
    assert_eq!(code, 0, "{text}");
    let names: Vec<_> = std::fs::read_dir(out.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, [".weir-rescue"]);
    assert!(report(out.path())["files"].as_u64().unwrap() > 10);
}

/// What was cut off goes on, and what was copied is not copied again.
#[test]
fn an_interrupted_rescue_goes_on() {
    let folder = Folder::new("resume");
    let manifest = fixture_pool(folder.path());
    let out = Folder::new("resume-out");
    let args = ["-q", "-s", dir(folder.path()), "-o", dir(out.path())];
    run(&args);
    let record = out.path().join(".weir-rescue/state");
    let lines = std::fs::read_to_string(&record).unwrap();
    let keep: Vec<&str> = lines.lines().take(40).collect();
    std::fs::write(&record, keep.join("\n") + "\n{\"file\":[1").unwrap();
    // Of the files that are done one is altered: it must stay so.
    let done: serde_json::Value = serde_json::from_str(keep[5]).unwrap();
    assert!(done.get("file").is_some());
    let (code, text) = run(&args);
    assert_eq!(code, 0, "{text}");
    assert!(differences(out.path(), &manifest, true).is_empty());
    assert!(std::fs::read_to_string(&record).unwrap().lines().count() >= lines.lines().count());
}

#[test]
fn wrong_use_is_refused() {
    let out = Folder::new("wrong");
    let o = dir(out.path());
    assert_eq!(run(&["-o", o]).0, 2);
    assert_eq!(run(&["-o", o, "/nonexistent/x"]).0, 2);
    let folder = Folder::new("wrong-empty");
    std::fs::File::create(folder.path().join("d0.img")).unwrap().set_len(64 << 20).unwrap();
    let (code, text) = run(&["-q", "-o", o, dir(folder.path())]);
    assert!(code == 2 && text.contains("name the layout"), "{text}");
    let image = folder.path().join("d0.img");
    let (code, text) = run(&["-q", "-o", o, "--scan", "always", "stripe", dir(&image)]);
    assert!(code == 2 && text.contains("0 uberblocks"), "{text}");
}

#[test]
fn single() {
    whole("single", "manifest.jsonl", &[], &["attributes"]);
}
#[test]
fn old_versions() {
    whole("legacy28", "manifest.jsonl", &[], &["attributes"]);
    whole("upgraded", "manifest.jsonl", &[], &["attributes"]);
}
#[test]
fn mirrors() {
    whole("mirror-log", "manifest.jsonl", &[], &["attributes"]);
    whole("mirror-stale", "manifest.jsonl", &[], &["attributes"]);
    whole("gpt", "manifest.jsonl", &[], &["attributes"]);
    whole("spare", "manifest.jsonl", &[], &["attributes"]);
    whole("stripe", "manifest.jsonl", &[], &["attributes"]);
}
#[test]
fn raidz() {
    whole("raidz1", "manifest.jsonl", &[], &["attributes"]);
    whole("raidz3", "manifest.jsonl", &[], &["attributes"]);
    whole("raidz-two", "manifest.jsonl", &[], &["attributes"]);
    whole("raidz2-missing", "manifest.jsonl", &[], &["attributes"]);
    whole("special", "manifest.jsonl", &[], &["attributes"]);
}
#[test]
fn draid_and_expanded_raidz() {
    whole("draid", "manifest.jsonl", &[], &["attributes"]);
    whole("expanded", "manifest.jsonl", &[], &["attributes"]);
}
#[test]
fn removed_devices_and_gangs() {
    whole("removed", "manifest.jsonl", &[], &["attributes"]);
    whole("gang", "manifest.jsonl", &[], &["attributes"]);
    whole("deep", "manifest.jsonl", &[], &["attributes"]);
}
#[test]
fn features() {
    whole("features", "manifest.jsonl", &[], &["attributes"]);
    whole("clone", "manifest.jsonl", &[], &["attributes"]);
    whole("longnames", "manifest.jsonl", &[], &["attributes"]);
}

/// With the keys everything comes back, without them nothing of what is encrypted.
#[test]
fn encrypted() {
    let keys = Folder::new("keys");
    let file = |name: &str, text: &str| {
        let path = keys.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let pass = file("pass", "correct-horse-battery\n");
    let raw = file("raw", "0123456789abcdefFEDCBA9876543210");
    let hex = file("hex", "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n");
    whole("encrypted", "manifest.jsonl", &["-k", &pass, "-k", &raw, "-k", &hex], &["attributes"]);
    let Some((_folder, from)) = reference("encrypted") else { return };
    let out = Folder::new("encrypted-none");
    let (code, text) = run(&["-q", "-o", dir(out.path()), dir(&from)]);
    let report = report(out.path());
    assert_eq!(code, 1, "{text}");
    assert!(report["problems"]["skipped"].as_u64().unwrap() >= 6, "{}", report["problems"]);
    assert!(report["problems"].get("lost").is_none() && report["problems"].get("damaged").is_none());
}

#[test]
fn every_image_is_opened_for_reading_only() {
    let Some((_folder, from)) = reference("grown") else { return };
    let before: Vec<Vec<u8>> = images(&from).iter().map(|i| std::fs::read(i).unwrap()).collect();
    let out = Folder::new("readonly-out");
    run(&["-q", "--scan", "always", "-o", dir(out.path()), dir(&from)]);
    let after: Vec<Vec<u8>> = images(&from).iter().map(|i| std::fs::read(i).unwrap()).collect();
    assert!(before == after);
}
