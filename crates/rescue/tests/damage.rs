//! Pools that no import takes: what is left comes back, what is missing is in the report.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::{Path, PathBuf};

use common::{Folder, damage, differences, fixture_pool, images, reference, report, run, untold};
use ondisk::blkptr::Blkptr;
use ondisk::label::{DATA_START, LABEL_SIZE, label_offsets};
use zdb::PoolReader;
use zdb::dsl::Dsl;

fn dir(p: &Path) -> &str {
    p.to_str().unwrap()
}

fn wipe_labels(image: &Path, configs_only: bool) {
    let size = std::fs::metadata(image).unwrap().len();
    for at in label_offsets(size) {
        damage(image, at, if configs_only { LABEL_SIZE as usize / 2 } else { LABEL_SIZE as usize });
    }
}

/// Overwrites every copy of a block on devices that are top-level vdevs of one device or mirrors of
/// all devices.
fn kill(images: &[PathBuf], mirrored: bool, bp: &Blkptr) {
    for dva in bp.dvas() {
        let on: &[PathBuf] = if mirrored { images } else { std::slice::from_ref(&images[dva.vdev().0 as usize]) };
        on.iter().for_each(|i| damage(i, dva.offset() + DATA_START, bp.psize() as usize));
    }
}

struct Pool {
    folder: Folder,
    out: Folder,
    manifest: String,
}

impl Pool {
    fn new(name: &str) -> Pool {
        let folder = Folder::new(name);
        let manifest = fixture_pool(folder.path());
        Pool { folder, out: Folder::new(&format!("{name}-out")), manifest }
    }
    fn image(&self) -> PathBuf {
        self.folder.path().join("d0.img")
    }
    fn open(&self) -> PoolReader {
        PoolReader::open(&[self.image()]).unwrap()
    }
    fn kill(&self, bp: &Blkptr) {
        kill(&[self.image()], false, bp);
    }
    fn rescue(&self, args: &[&str]) -> (i32, String) {
        let mut all = vec!["-q", "-s", "-o", dir(self.out.path())];
        all.extend_from_slice(args);
        run(&all)
    }
    fn whole(&self) -> Vec<String> {
        differences(self.out.path(), &self.manifest, true)
    }
}

#[test]
fn configurations_are_gone_from_all_labels_but_the_layout_is_named() {
    let p = Pool::new("configs");
    wipe_labels(&p.image(), true);
    let (code, text) = p.rescue(&[dir(p.folder.path())]);
    assert!(code == 2 && text.contains("name the layout"), "{text}");
    let (code, text) = p.rescue(&["stripe", dir(&p.image())]);
    assert_eq!(code, 0, "{text}{}", report(p.out.path()));
    assert_eq!(p.whole(), Vec::<String>::new());
}

/// Nothing is left that leads to a root: the MOS is found by its form.
#[test]
fn labels_and_uberblocks_are_gone() {
    let p = Pool::new("labels");
    wipe_labels(&p.image(), false);
    let (_, text) = p.rescue(&["stripe", dir(&p.image())]);
    let report = report(p.out.path());
    assert!(report["newest_uberblock"].is_null() && report["searched"] == true, "{text}{report}");
    let bad = differences(&p.out.path().join("x"), "", true);
    assert!(bad.is_empty());
    // The name of the pool is in the configuration object; the content must be all there.
    assert_eq!(p.whole(), Vec::<String>::new(), "{text}{report}");
}

#[test]
fn the_newest_mos_is_destroyed() {
    let p = Pool::new("mos");
    let bp = p.open().ub.rootbp;
    p.kill(&bp);
    let (_, text) = p.rescue(&[dir(p.folder.path())]);
    let report = report(p.out.path());
    assert!(report["newest_state"].as_u64() < report["newest_uberblock"].as_u64(), "{report}");
    assert_eq!(p.whole(), Vec::<String>::new(), "{text}{report}");
}

#[test]
fn the_configuration_object_is_gone() {
    let p = Pool::new("config");
    let q = p.open();
    let obj = q.entry_object("config").unwrap().unwrap();
    p.kill(&obj.bp(0).unwrap());
    let (code, text) = p.rescue(&[dir(p.folder.path())]);
    assert_eq!(code, 0, "{text}");
    assert_eq!(p.whole(), Vec::<String>::new());
}

/// The names of child datasets are lost, in all states of the pool: the datasets are not.
#[test]
fn names_of_datasets_are_gone() {
    let p = Pool::new("childmap");
    let q = p.open();
    let dsl = Dsl::load(&q).unwrap();
    let zap = dsl.dirs[&dsl.root].phys.child_dir_zapobj;
    let bp = q.mos.object(zap).unwrap().bp(0).unwrap();
    if bp.is_embedded() {
        return;
    }
    p.kill(&bp);
    let (code, text) = p.rescue(&["--scan", "never", dir(p.folder.path())]);
    let report = report(p.out.path());
    let names: Vec<&str> = report["datasets"].as_array().unwrap().iter().map(|d| d.as_str().unwrap()).collect();
    assert!(names.len() > 1, "{code} {text} {names:?}");
}

/// The object set of a file system is lost in the newest state.
#[test]
fn an_object_set_is_gone() {
    let p = Pool::new("objset");
    let q = p.open();
    let dsl = Dsl::load(&q).unwrap();
    let ds = dsl.find("nm/sens").unwrap();
    p.kill(&ds.phys.bp);
    let (code, text) = p.rescue(&[dir(p.folder.path())]);
    let report = report(p.out.path());
    assert_eq!(code, 1, "{text}");
    let told = report["findings"].as_array().unwrap().iter().any(|f| {
        f["dataset"] == "nm/sens"
            && f["path"] == ""
            && ["older", "lost", "found"].contains(&f["problem"].as_str().unwrap())
    });
    assert!(told, "{report}");
    let bad = p.whole();
    assert!(bad.iter().all(|b| b.contains("/nm/sens")), "{bad:?}");
}

/// A block of dnodes is lost: its files are in the report or come from older states, all others
/// come back.
#[test]
fn a_block_of_dnodes_is_gone() {
    let p = Pool::new("dnodes");
    let q = p.open();
    let dsl = Dsl::load(&q).unwrap();
    let ds = dsl.find("nm/sens").unwrap();
    let os = q.open_dataset(&ds.name, ds.obj, &ds.phys.bp).unwrap();
    let last = os.meta().dn.maxblkid;
    let bp = os.meta().bp(last).unwrap();
    p.kill(&bp);
    let (code, text) = p.rescue(&[dir(p.folder.path())]);
    let report = report(p.out.path());
    assert_eq!(code, 1, "{text}");
    assert!(p.whole().iter().all(|bad| bad.contains("/nm/sens")), "{text}{:?}", p.whole());
    assert_eq!(untold(p.out.path(), &p.manifest, &report), Vec::<String>::new(), "{report}");
}

/// Of a mirror one side is gone and the other one rotten in other places than a third copy.
#[test]
fn both_sides_of_a_mirror_are_rotten() {
    let Some((_folder, from)) = reference("gpt") else { return };
    let all = images(&from);
    // One page of 32 KiB is bad on one side or the other: no large block is whole anywhere. The
    // partition begins at 1 MiB.
    for at in (6u64 << 20..60 << 20).step_by(32 << 10) {
        damage(&all[(at >> 15 & 1) as usize], at, 4096);
    }
    let out = Folder::new("rotten-out");
    let (_, text) = run(&["-q", "-s", "-o", dir(out.path()), dir(&from)]);
    let manifest = std::fs::read_to_string(from.join("manifest.jsonl")).unwrap();
    let bad = differences(out.path(), &manifest, true);
    assert!(bad.is_empty(), "{text}{bad:?}");
}

/// A raidz1 of which two devices have unreadable places, but never in the same row.
#[test]
fn raidz_with_more_holes_than_parity() {
    let Some((_folder, from)) = reference("raidz1") else { return };
    let all = images(&from);
    for row in (0..8u64 << 20).step_by(4 * 8192) {
        damage(&all[0], DATA_START + row, 4096);
        damage(&all[1], DATA_START + row + 16384, 4096);
    }
    let out = Folder::new("holes-out");
    let (_, text) = run(&["-q", "-s", "-o", dir(out.path()), dir(&from)]);
    let manifest = std::fs::read_to_string(from.join("manifest.jsonl")).unwrap();
    // Rows of a block are apart from each other; what has more damaged rows than can be tried is
    // reported.
    assert_eq!(untold(out.path(), &manifest, &report(out.path())), Vec::<String>::new(), "{text}");
}

/// Whole pools of the kernel without labels, by the layout that the user names.
#[test]
fn kernel_pools_without_labels() {
    for (name, layout) in [("raidz2", "raidz2"), ("gpt", ""), ("draid", "draid2:4d:9c:1s"), ("raidz1", "raidz1")] {
        if layout.is_empty() {
            continue;
        }
        let Some((_folder, from)) = reference(name) else { return };
        let all = images(&from);
        all.iter().for_each(|i| wipe_labels(i, true));
        let out = Folder::new(&format!("{name}-named"));
        let mut args = vec!["-q", "-s", "-o", dir(out.path()), layout];
        args.extend(all.iter().map(|p| dir(p)));
        let (_, text) = run(&args);
        let manifest = std::fs::read_to_string(from.join("manifest.jsonl")).unwrap();
        let bad = differences(out.path(), &manifest, true);
        assert!(bad.is_empty(), "{name}: {text}{:?}", &bad[..bad.len().min(5)]);
    }
}

/// Kernel pools whose newest MOS is destroyed, and one device of which lost its labels.
#[test]
fn kernel_pools_without_their_newest_state() {
    for (name, mirrored) in [("single", false), ("ashift13", true), ("features", false)] {
        let Some((_folder, from)) = reference(name) else { return };
        let all = images(&from);
        let bp = PoolReader::open(&all).unwrap().ub.rootbp;
        kill(&all, mirrored, &bp);
        wipe_labels(&all[0], true);
        let out = Folder::new(&format!("{name}-older"));
        let o = dir(out.path());
        let (code, text) = if all.len() == 1 {
            run(&["-q", "-s", "-o", o, "stripe", dir(&all[0])])
        } else {
            run(&["-q", "-s", "-o", o, dir(&from)])
        };
        let manifest = std::fs::read_to_string(from.join("manifest.jsonl")).unwrap();
        let bad = differences(out.path(), &manifest, true);
        assert!(bad.is_empty(), "{name}: {code} {text}{:?}", &bad[..bad.len().min(5)]);
    }
}
