//! Pools that real OpenZFS wrote: every file is found as the kernel showed it, nothing is found
//! wrong, and zdb's own output is matched.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;

use common::{Folder, extents, fixture, reference, same_text, write_image, zdb};

fn manifest_of(dir: &Path) -> String {
    let (code, text) = zdb(&["--manifest", "-p", dir.to_str().unwrap()]);
    assert_eq!(code, 0, "{text}");
    text
}

fn is_clean(dir: &Path, pool: &str) {
    let (code, text) = zdb(&["--check", "-p", dir.to_str().unwrap(), pool]);
    assert_eq!(code, 0, "{text}");
    let last = text.lines().last().unwrap();
    assert!(last.starts_with(&format!("{pool}: ")) && last.ends_with(" 0 leaked, 0 errors"), "{last}");
}

#[test]
fn the_pool_in_the_repository() {
    let folder = Folder::new("names-fixture");
    let (size, ext) = extents(&fixture("names.pack.zst"));
    write_image(&folder.path().join("d0.img"), size, &ext);
    same_text("manifest", &manifest_of(folder.path()), &String::from_utf8(fixture("names.jsonl.zst")).unwrap());
    is_clean(folder.path(), "nm");
}

/// A reference pool: manifest, check, and the output of zdb.
fn compare(name: &str, pool: &str, manifest: &str) {
    let Some((_folder, dir)) = reference(name) else { return };
    let d = dir.to_str().unwrap();
    let text = |f: &str| std::fs::read_to_string(dir.join(f)).unwrap();
    same_text(name, &manifest_of(&dir), &text(manifest));
    is_clean(&dir, pool);
    let mut labels = String::new();
    let mut i = 0;
    while dir.join(format!("d{i}.img")).exists() {
        let (_, l) = zdb(&["-l", &format!("{d}/d{i}.img")]);
        labels += &format!("### d{i}.img\n{l}");
        i += 1;
    }
    same_text(&format!("{name} -l"), &labels, &text("zdb-l.txt"));
    same_text(&format!("{name} -C"), &zdb(&["-C", "-p", d]).1, &text("zdb-C.txt"));
    let theirs: String =
        text("zdb-d.txt").lines().filter(|l| l.starts_with("Dataset ")).map(|l| format!("{l}\n")).collect();
    same_text(&format!("{name} -d"), &zdb(&["-d", "-p", d]).1, &theirs);
    // Tables of objects, without zdb's lines on features and logs.
    let table = |t: &str| -> String {
        let keep = |l: &&str| {
            l.starts_with("Dataset ") || l.trim_start().starts_with(|c: char| c.is_ascii_digit() || c == '-')
        };
        t.lines().filter(keep).map(|l| format!("{l}\n")).collect()
    };
    same_text(&format!("{name} -dd"), &table(&zdb(&["-dd", "-p", d]).1), &table(&text("zdb-dd.txt")));
    let blocks = zdb(&["-bcc", "-p", d]).1;
    // With dedup zdb counts shared space as often as it is referred to.
    let words: &[&str] =
        if name == "legacy28" { &["bp count:", "bp logical:"] } else { &["bp count:", "bp logical:", "bp allocated:"] };
    for word in words {
        let number = |t: &str| {
            t.lines().find_map(|l| l.trim().strip_prefix(*word)?.split_whitespace().next().map(str::to_owned))
        };
        assert_eq!(number(&blocks), number(&text("zdb-bcc.txt")), "{name} {word}");
    }
}

#[test]
fn single() {
    compare("single", "tank", "manifest.jsonl");
}
#[test]
fn grown() {
    compare("grown", "gr", "manifest.jsonl");
}
#[test]
fn deep() {
    compare("deep", "dp", "manifest.jsonl");
}
#[test]
fn gang() {
    compare("gang", "g", "manifest.jsonl");
}
#[test]
fn zil_left_alone() {
    compare("zil", "zil", "before.jsonl");
}
#[test]
fn stripe_of_mirrors() {
    compare("stripe", "s", "manifest.jsonl");
}
#[test]
fn raidz() {
    compare("raidz1", "z1", "manifest.jsonl");
}
/// One device of a RAID-Z2 is missing and another is overwritten in part: all files are readable,
/// and the errors name the bad columns.
#[test]
fn raidz_with_losses() {
    let Some((_folder, dir)) = reference("raidz2-missing") else { return };
    let text = std::fs::read_to_string(dir.join("manifest.jsonl")).unwrap();
    same_text("raidz2-missing", &manifest_of(&dir), &text);
    let (code, text) = zdb(&["--check", "-v", "-p", dir.to_str().unwrap()]);
    assert_eq!(code, 1);
    assert!(text.lines().filter(|l| l.contains("column at")).all(|l| l.contains("d1.img")), "{text}");
    assert!(text.contains("note: device /dev/img/d3.img") && text.contains(" 0 leaked, "), "{text}");
}
#[test]
fn removed_devices() {
    compare("removed", "rm", "manifest.jsonl");
}
#[test]
fn version_28() {
    compare("legacy28", "old", "manifest.jsonl");
}

/// Pools with dedup tables of both forms, their logs in every state: nothing is found wrong, and
/// `-D` says what the zdb of 2.4.4 says of them.
#[test]
fn dedup_tables_with_logs() {
    let fast = [
        "DDT-sha256: version=1 [FDT]; flags=0x03 [FLAT LOG]; rootobj=108",
        "DDT-sha256-zap-duplicate: dspace=49152; mspace=65536; entries=76",
        "DDT-log-sha256-1: flags=0x03 [FLUSHING CHECKPOINT]; obj=110; len=131072; txg=22; entries=2",
        "DDT-sha512-zap-unique: dspace=36864; mspace=65536; entries=13",
        "DDT-log-blake3-0: flags=0x03 [FLUSHING CHECKPOINT]; obj=118; len=262144; txg=38; entries=84",
        "dedup = 3.18, compress = 2.15, copies = 1.00, dedup * compress / copies = 6.85",
    ];
    let both = [
        "DDT-sha256: version=0 [LEGACY]; flags=0x00; rootobj=1",
        "DDT-skein: version=1 [FDT]; flags=0x03 [FLAT LOG]; rootobj=164",
        "DDT-log-skein-1: flags=0x01 [FLUSHING]; obj=166; len=0; txg=30; entries=0",
        "dedup = 2.21, compress = 2.13, copies = 1.04, dedup * compress / copies = 4.52",
    ];
    for (name, pool, wanted) in [("fastdedup", "fd", &fast[..]), ("dedup-both", "db", &both)] {
        let Some((_folder, dir)) = reference(name) else { return };
        is_clean(&dir, pool);
        let (code, text) = zdb(&["-DDD", "-p", dir.to_str().unwrap()]);
        assert_eq!(code, 0, "{text}");
        for line in wanted.iter().chain(&["DDT histogram (aggregated over all DDTs):"]) {
            assert!(text.lines().any(|l| l == *line), "{name}: {line} is not in {text}");
        }
    }
}

/// A pool in memory, as in tests of modelled disks.
#[test]
fn devices_need_not_be_files() {
    use std::rc::Rc;
    use zdb::device::{Device, Labeled};
    let (size, ext) = extents(&fixture("names.pack.zst"));
    let mut image = vec![0u8; size as usize];
    ext.iter().for_each(|(at, b)| image[*at as usize..*at as usize + b.len()].copy_from_slice(b));
    let dev = Device::over(Path::new("memory"), size, Box::new(image));
    let pool = zdb::PoolReader::from_devices(vec![Labeled::scan(Rc::new(dev))], &Default::default()).unwrap();
    let report = zdb::check(&pool, &Default::default(), &mut |_| {});
    assert!(report.is_clean() && report.blocks > 900, "{}", report.summary());
}

/// The map has the same free space as the space maps, and says so in all forms.
#[test]
fn heat_map_of_the_pool_in_the_repository() {
    use std::rc::Rc;
    use zdb::device::{Device, Labeled};
    let (size, ext) = extents(&fixture("names.pack.zst"));
    let mut image = vec![0u8; size as usize];
    ext.iter().for_each(|(at, b)| image[*at as usize..*at as usize + b.len()].copy_from_slice(b));
    let dev = Device::over(Path::new("memory"), size, Box::new(image));
    let pool = zdb::PoolReader::from_devices(vec![Labeled::scan(Rc::new(dev))], &Default::default()).unwrap();
    let map = zdb::HeatMap::of(&pool);
    let report = zdb::check(&pool, &Default::default(), &mut |_| {});
    let used: u64 = map.vdevs.iter().flat_map(|v| &v.rows).map(|r| r.size - r.free).sum();
    assert_eq!(used, report.allocated.values().sum::<u64>());
    for row in map.vdevs.iter().flat_map(|v| &v.rows) {
        let shown = row.cells.iter().sum::<f64>() / row.cells.len() as f64;
        assert!((shown - row.full()).abs() < 1e-9, "metaslab {}: {shown} and {}", row.index, row.full());
    }
    let folder = Folder::new("heat");
    let (img, page) = (folder.path().join("names.img"), folder.path().join("map.html"));
    write_image(&img, size, &ext);
    let (img, page) = (img.to_str().unwrap(), page.to_str().unwrap());
    let (code, text) = zdb(&["-mm", "--heatmap", img]);
    assert_eq!((code, text), (0, map.terminal(true)));
    let (code, text) = zdb(&["--heatmap", "--html", page, img]);
    assert_eq!((code, text.as_str()), (0, ""));
    assert_eq!(std::fs::read_to_string(page).unwrap(), map.html());
    assert_eq!(zdb(&["--html", page, img]).0, 2);
}
