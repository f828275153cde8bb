//! Features of OpenZFS 2.2 and later that weir writes, on pools of its own: brought into use on new
//! and on old pools, kept through changes of the devices, judged by the zdb of 2.4.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::ObjectId;
use dmu::zap;
use dsl::props::PropValue;
use ondisk::feature::FeatureId;
use ondisk::label::DATA_START;
use ondisk::vdev_config::VdevConfig;
use sim::{DiskImage, Rng};
use spa::{Bias, DevSpec, Group, GroupKind, ImportOpts, NewDevice, Pool};
use zpl::{Cred, MountOpts, Zfs};
use ztest::judge::{Verdict, judge24};
use ztest::lab::{Lab, Layout, POOL, SHAPES};
use ztest::snaps::check_images;

pub(crate) fn world(seed: u64, features: &[FeatureId]) -> (Lab, Layout) {
    let mut rng = Rng::new(seed);
    let mut layout = Layout::draw(&mut rng, 64 << 20);
    layout.features = ondisk::feature::features_of_2_1();
    layout.features.extend(features);
    let shape = SHAPES.iter().find(|s| s.name == "mirror").expect("a known shape");
    let layout = layout.shaped(shape, &mut rng);
    let mut images: Vec<DiskImage> = layout.devices.iter().map(|n| DiskImage::zeroed(*n)).collect();
    // Two more for changes of the devices.
    let most = *layout.devices.iter().max().expect("some");
    images.extend([DiskImage::zeroed(most), DiskImage::zeroed(most)]);
    (Lab::with_images(seed, images, true), layout)
}

/// A mirror of the first two disks.
pub(crate) async fn create(lab: &Lab, layout: &Layout) -> Rc<Pool> {
    let devices = (0..2).map(|n| dev(lab, n)).collect();
    let devices = spa::Layout {
        groups: vec![Group { kind: GroupKind::Mirror, bias: Bias::Normal, devices }],
        ..spa::Layout::default()
    };
    let spec = spa::PoolSpec {
        version: None,
        name: POOL.into(),
        devices,
        ashift: Some(layout.ashift),
        features: layout.features.clone(),
        comment: None,
        fs_props: Vec::new(),
        init: ztest::lab::new_fs(&lab.sim),
    };
    Pool::create(lab.sim.rt(), spec, layout.opts()).await.unwrap()
}

fn dev(lab: &Lab, n: usize) -> DevSpec {
    DevSpec { dev: lab.disks[n].dev(), is_disk: false }
}

/// Enables a feature as `zpool set feature@NAME=enabled` does.
async fn enable(pool: &Pool, id: FeatureId) {
    let done = pool.dsl().sync_task(move |dsl, tx| Box::pin(async move { dsl.enable_features(&[id], &tx).await }));
    done.await.unwrap();
}

/// The ZAPs of a vdev and of those below it.
fn zaps(v: &VdevConfig) -> Vec<u64> {
    let own = [v.zap_root, v.zap_top, v.zap_leaf].into_iter().flatten().map(|o| o.0);
    let mut out: Vec<u64> = own.chain(v.children.iter().flat_map(zaps)).collect();
    out.sort_unstable();
    out
}

/// The list of all vdev ZAPs has those of the configuration, that of the root among them, which is
/// `root` if it was there before.
async fn check_zaps(pool: &Pool, root: Option<ObjectId>) -> ObjectId {
    let tree = pool.mos_config().vdev_tree;
    let have = tree.zap_root.expect("the root has a ZAP");
    assert!(root.is_none_or(|r| r == have), "the ZAP of the root changed from {root:?} to {have}");
    let map = zap::lookup_u64(pool.dsl().directory(), b"com.delphix:vdev_zap_map").await.unwrap().unwrap();
    let map = pool.mos().hold(ObjectId(map)).await.unwrap();
    let mut listed: Vec<u64> = zap::list(&map).await.unwrap().iter().map(|e| e.value.as_u64().unwrap()).collect();
    listed.sort_unstable();
    assert_eq!(listed, zaps(&tree));
    assert_eq!(pool.features().count(FeatureId::VdevZapsV2.get().guid), Some(1));
    have
}

pub(crate) fn judge(lab: &Lab, disks: &[usize], name: &str) {
    let all = lab.images();
    let images: Vec<DiskImage> = disks.iter().map(|n| all[*n].clone()).collect();
    check_images(&images).unwrap();
    match judge24(&images, name, POOL) {
        Verdict::Good => {}
        Verdict::Missing(what) => eprintln!("NOT JUDGED: {what} is missing"),
        Verdict::Bad(why) => panic!("{name}: {why}"),
    }
}

/// The root's ZAP comes with the creation of a pool, or with the feature, and stays through every
/// change of the devices.
#[test]
fn the_root_vdev_has_a_zap() {
    for (seed, at_creation) in [(1, true), (2, false)] {
        let with: &[FeatureId] = if at_creation { &[FeatureId::VdevZapsV2] } else { &[] };
        let (lab, layout) = world(seed, with);
        lab.sim.block_on(async {
            let pool = create(&lab, &layout).await;
            if !at_creation {
                assert_eq!(pool.mos_config().vdev_tree.zap_root, None);
                enable(&pool, FeatureId::VdevZapsV2).await;
            }
            let root = Some(check_zaps(&pool, None).await);
            pool.devices().attach("disk1.img", dev(&lab, 2), None, false).await.unwrap();
            pool.scan().wait().await.unwrap();
            check_zaps(&pool, root).await;
            pool.devices().detach("disk0.img").await.unwrap();
            check_zaps(&pool, root).await;
            pool.devices().replace("disk1.img", NewDevice::Device(dev(&lab, 3)), None, false).await.unwrap();
            pool.scan().wait().await.unwrap();
            pool.sync().await.unwrap();
            check_zaps(&pool, root).await;
            let log = Group { kind: GroupKind::Single, bias: Bias::Log, devices: vec![dev(&lab, 0)] };
            pool.devices().add(spa::Layout { groups: vec![log], ..spa::Layout::default() }, None).await.unwrap();
            check_zaps(&pool, root).await;
            pool.devices().remove("disk0.img").await.unwrap();
            check_zaps(&pool, root).await;
            pool.export().await.unwrap();
            drop(pool);
            judge(&lab, &[2, 3], &format!("root-zap-{seed}"));
            let listed = lab.find().await.unwrap().config.features_for_read;
            assert!(listed.iter().any(|f| f == FeatureId::VdevZapsV2.get().guid), "labels list {listed:?}");
            let pool = lab.import_as(ImportOpts::default(), layout.opts()).await.unwrap();
            check_zaps(&pool, root).await;
            pool.export().await.unwrap();
        });
    }
}

/// The names of what the error log lists, as `dataset[@snapshot] object`.
pub(crate) async fn listed(pool: &Pool) -> BTreeSet<String> {
    let mut names = BTreeMap::new();
    for head in pool.dsl().all() {
        for ds in pool.dsl().snapshots(&head).await.unwrap().into_iter().chain([head]) {
            names.insert(ds.object.0, ds.name());
        }
    }
    let all = pool.scan().damaged_blocks().await.unwrap();
    all.iter().map(|b| format!("{} {}.{}", names[&b.objset], b.object, b.blkid)).collect()
}

pub(crate) async fn mount(pool: &Pool, name: &str) -> Rc<Zfs> {
    let (ds, readonly) = match name.contains('@') {
        true => (pool.dsl().find_snapshot(name).await.unwrap(), true),
        false => (pool.dsl().find(name).unwrap(), false),
    };
    Zfs::open(&ds, MountOpts { readonly, ..MountOpts::from_props(&ds) }).await.unwrap()
}

/// Writes a block of noise to a file, which is made if it is not there; returns its object.
pub(crate) async fn write(fs: &Zfs, name: &[u8], fill: u8) -> ObjectId {
    let file = match fs.lookup(fs.root(), name).await {
        Ok(found) => found.obj,
        Err(_) => fs.create(fs.root(), name, 0o644, &Cred::new(0, 0), false).await.unwrap().obj,
    };
    let mut rng = Rng::new(u64::from(fill));
    let noise: Vec<u8> = (0..1024).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    fs.write(file, 0, vec![bdev::Buf::copy_from(&noise).freeze()], false).await.unwrap();
    file
}

/// Damages every copy of the first block of a file.
pub(crate) async fn damage(lab: &Lab, pool: &Pool, name: &str, file: ObjectId) {
    let ds = match name.contains('@') {
        true => pool.dsl().find_snapshot(name).await.unwrap(),
        false => pool.dsl().find(name).unwrap(),
    };
    let dn = ds.objset().await.unwrap().hold(file).await.unwrap();
    let bp = dn.block_pointer(0).await.unwrap();
    assert!(!bp.is_hole() && !bp.is_embedded() && !bp.is_gang());
    for dva in bp.dvas() {
        for disk in &lab.disks[..2] {
            disk.corrupt(DATA_START + dva.offset(), dva.asize());
        }
    }
}

/// The error log is the object of the MOS directory, or 0: its ZAP, and those in it.
async fn log_objects(pool: &Pool) -> Vec<u64> {
    let mut out = Vec::new();
    for entry in [b"errlog_last".as_slice(), b"errlog_scrub"] {
        let log = zap::lookup_u64(pool.dsl().directory(), entry).await.unwrap().unwrap_or(0);
        if log != 0 {
            let zaps = zap::list(&pool.mos().hold(ObjectId(log)).await.unwrap()).await.unwrap();
            out.push(log);
            out.extend(zaps.iter().filter_map(|e| e.value.as_u64()));
        }
    }
    out
}

fn set(names: &[String]) -> BTreeSet<String> {
    names.iter().cloned().collect()
}

/// Damaged blocks are named in every dataset that has them, in a log of the new form as in one that
/// was converted to it; the log follows promotions and destroys, and goes with the damage.
#[test]
fn the_error_log_knows_heads() {
    for (seed, at_creation) in [(11, true), (12, false)] {
        let with: &[FeatureId] = if at_creation { &[FeatureId::HeadErrlog] } else { &[] };
        let (lab, layout) = world(seed, with);
        let (fs, s1, s2, c) = (format!("{POOL}/f"), format!("{POOL}/f@1"), format!("{POOL}/f@2"), format!("{POOL}/c"));
        lab.sim.block_on(async {
            let pool = create(&lab, &layout).await;
            let dsl = pool.dsl().clone();
            dsl.create_fs(&fs, Vec::new(), ztest::lab::new_fs(&lab.sim)).await.unwrap();
            let m = mount(&pool, &fs).await;
            let (old, both) = (write(&m, b"old", 1).await, write(&m, b"both", 2).await);
            // Born before the txg of the snapshot.
            pool.sync().await.unwrap();
            dsl.snapshot(vec![s1.clone()], false, Vec::new()).await.unwrap();
            // In the first snapshot `old` is another block.
            write(&m, b"old", 3).await;
            pool.sync().await.unwrap();
            dsl.snapshot(vec![s2.clone()], false, Vec::new()).await.unwrap();
            let late = write(&m, b"late", 4).await;
            pool.sync().await.unwrap();
            m.unmount().await.unwrap();
            dsl.clone_snapshot(&s1, &c, Vec::new()).await.unwrap();
            pool.sync().await.unwrap();
            damage(&lab, &pool, &s1, old).await;
            damage(&lab, &pool, &fs, both).await;
            damage(&lab, &pool, &fs, late).await;
            pool.export().await.unwrap();
            drop(pool);

            let pool = lab.import_as(ImportOpts::default(), layout.opts()).await.unwrap();
            assert_eq!(ztest::scan::scrub(&pool).await.unwrap().phys.errors, 3);
            if !at_creation {
                // The oldest dataset of each, as the old form has it.
                let only = [format!("{s1} {old}.0"), format!("{s1} {both}.0"), format!("{fs} {late}.0")];
                assert_eq!(listed(&pool).await, set(&only));
                enable(&pool, FeatureId::HeadErrlog).await;
            }
            assert_eq!(pool.features().count(FeatureId::HeadErrlog.get().guid), Some(1));
            let mut all = set(&[format!("{fs} {late}.0"), format!("{s1} {old}.0"), format!("{c} {old}.0")]);
            all.extend([&fs, &s1, &s2, &c].map(|ds| format!("{ds} {both}.0")));
            assert_eq!(listed(&pool).await, all);
            pool.export().await.unwrap();
            drop(pool);

            let pool = lab.import_as(ImportOpts::default(), layout.opts()).await.unwrap();
            let dsl = pool.dsl().clone();
            assert_eq!(listed(&pool).await, all, "the log on disk");
            // The head, then its inner ZAP: one head has all of it.
            assert_eq!(log_objects(&pool).await.len(), 2);
            let m = mount(&pool, &fs).await;
            write(&m, b"late", 5).await;
            write(&m, b"both", 6).await;
            m.unmount().await.unwrap();
            pool.sync().await.unwrap();
            all.remove(&format!("{fs} {late}.0"));
            all.remove(&format!("{fs} {both}.0"));
            assert_eq!(listed(&pool).await, all, "what was overwritten is not named");

            dsl.promote(&c).await.unwrap();
            let renamed = |from: &BTreeSet<String>| -> BTreeSet<String> {
                from.iter().map(|n| n.replace(&s1, &format!("{c}@1"))).collect()
            };
            let all = renamed(&all);
            assert_eq!(listed(&pool).await, all, "a promotion changes names only");
            assert_eq!(log_objects(&pool).await.len(), 3, "a head more");
            let heads = log_objects(&pool).await;

            dsl.destroy_snapshots(vec![s2.clone()], false).await.unwrap();
            dsl.destroy_fs(&fs).await.unwrap();
            pool.sync().await.unwrap();
            let left: BTreeSet<String> = all.into_iter().filter(|n| !n.starts_with(&fs)).collect();
            assert_eq!(listed(&pool).await, left);
            assert!(log_objects(&pool).await.len() < heads.len(), "the head that is gone has no ZAP any more");

            dsl.destroy_snapshots(vec![format!("{c}@1")], false).await.unwrap();
            dsl.destroy_fs(&c).await.unwrap();
            pool.sync().await.unwrap();
            assert!(listed(&pool).await.is_empty());
            assert_eq!(ztest::scan::scrub(&pool).await.unwrap().phys.errors, 0);
            assert!(log_objects(&pool).await.is_empty());
            pool.export().await.unwrap();
            drop(pool);
            judge(&lab, &[0, 1], &format!("errlog-{seed}"));
        });
    }
}

/// The pool of the collection with an error log of the kernel: named is what its manifest could not
/// read, before and after a scrub of weir that finds the same blocks.
#[test]
fn the_error_log_of_the_kernel_is_kept() {
    let Some(images) = ztest::reference::images_of("errlog") else {
        eprintln!("SKIPPED: errlog.tar.zst is not there");
        return;
    };
    let lost = ["el/c", "el/f", "el/f@1", "el/f@2"].map(|ds| (ds, "inboth")).into_iter().chain([
        ("el/c", "onlylive"),
        ("el/f@1", "onlylive"),
        ("el/f@2", "onlylive"),
        ("el/c", "onlysnap"),
        ("el/f@1", "onlysnap"),
        ("el/f", "later"),
        ("el/f@2", "later"),
        ("el/g", "whole"),
    ]);
    let lost: BTreeSet<String> = lost.map(|(ds, file)| format!("{ds}/{file}")).collect();
    let lab = Lab::with_images(1, images, true);
    lab.sim.block_on(async {
        let opts = spa::EngineOpts::for_memory(1 << 30);
        let names = async |pool: &Pool| {
            let mut out = BTreeSet::new();
            for line in listed(pool).await {
                let (ds, block) = line.split_once(' ').unwrap();
                let object: u64 = block.split_once('.').unwrap().0.parse().unwrap();
                let fs = mount(pool, ds).await;
                let path = fs.path_of(ObjectId(object)).await.unwrap();
                out.insert(format!("{ds}{}", String::from_utf8_lossy(&path)));
                fs.unmount().await.unwrap();
            }
            out
        };
        let pool = lab.import_as(ImportOpts { readonly: true, ..ImportOpts::default() }, opts.clone()).await.unwrap();
        assert_eq!(names(&pool).await, lost);
        pool.export().await.unwrap();
        drop(pool);
        let pool = lab.import_as(ImportOpts::default(), opts).await.unwrap();
        assert_eq!(names(&pool).await, lost);
        // The kernel counted six before a file was removed.
        assert_eq!(ztest::scan::scrub(&pool).await.unwrap().phys.errors, 6);
        assert_eq!(names(&pool).await, lost);
        pool.export().await.unwrap();
    });
}

/// The pool of the collection with limits for ids that have none of their own: 7 MiB for each user
/// in one file system.
#[test]
fn default_quotas_hold_for_everybody() {
    let Some(images) = ztest::reference::images_of("props24") else {
        eprintln!("SKIPPED: props24.tar.zst is not there");
        return;
    };
    let lab = Lab::with_images(1, images, true);
    lab.sim.block_on(async {
        let pool = lab.import_as(ImportOpts::default(), spa::EngineOpts::for_memory(1 << 30)).await.unwrap();
        // As `zfs get` of the kernel says.
        let changed = pool.dsl().find("pp/q2").unwrap().dir().snapshots_changed();
        assert_eq!(changed.unwrap().secs, 1_795_386_211);
        // 50 MiB in the other one, which are not used up.
        for (name, uid, most) in [("pp/q2", 77, Some(7)), ("pp/q", 78, None)] {
            let fs = mount(&pool, name).await;
            let file = fs.create(fs.root(), b"file", 0o644, &Cred::new(uid, 4000), false).await.unwrap().obj;
            let mut rng = Rng::new(u64::from(uid));
            let (mut written, mut refused) = (0, None);
            while written < 9 && refused.is_none() {
                let noise: Vec<u8> = (0..128 << 10).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
                let wrote = fs.write(file, written << 20, vec![bdev::Buf::copy_from(&noise).freeze()], false).await;
                // Limits are compared with what is on disk.
                pool.sync().await.unwrap();
                match wrote {
                    Ok(_) => written += 1,
                    Err(e) => refused = Some(e),
                }
            }
            match (most, refused) {
                (Some(most), Some(e)) => {
                    assert!(e.kind() == base::ErrorKind::Quota && e.to_string().contains("user 77"), "{e}");
                    assert!((most - 1..=most + 1).contains(&written), "{written} MiB of {most}");
                }
                (None, None) => {}
                (_, refused) => panic!("{name}: {written} MiB, then {refused:?}"),
            }
            fs.unlink(fs.root(), b"file").await.unwrap();
            fs.unmount().await.unwrap();
        }
        pool.export().await.unwrap();
    });
}

/// With `dynamic_gang_header` active blocks in pieces have headers of a unit of allocation, which
/// the zdb of 2.4 reads; those from before stay.
#[test]
fn gang_blocks_have_large_headers() {
    let (lab, mut layout) = world(21, &[FeatureId::DynamicGangHeader]);
    layout.ashift = 12;
    let mut opts = layout.opts();
    opts.zio.gang_above = 20_000;
    lab.sim.block_on(async {
        let pool = create(&lab, &layout).await;
        pool.tune(&opts);
        let content = |seed: u64| -> Vec<u8> {
            let mut rng = Rng::new(seed);
            (0..128 << 10).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
        };
        let fs = mount(&pool, POOL).await;
        let file = async |fs: &Zfs, name: &[u8], seed: u64| {
            let file = fs.create(fs.root(), name, 0o644, &Cred::new(0, 0), false).await.unwrap().obj;
            fs.write(file, 0, vec![bdev::Buf::copy_from(&content(seed)).freeze()], false).await.unwrap();
            file
        };
        let old = file(&fs, b"old", 1).await;
        fs.unmount().await.unwrap();
        pool.sync().await.unwrap();
        let active = pool.dsl().sync_task(|dsl, tx| {
            Box::pin(async move { dsl.features().add(FeatureId::DynamicGangHeader, 1, &tx).await })
        });
        active.await.unwrap();
        pool.export().await.unwrap();
        drop(pool);

        let pool = lab.import_as(ImportOpts::default(), opts.clone()).await.unwrap();
        let fs = mount(&pool, POOL).await;
        let new = file(&fs, b"new", 2).await;
        pool.sync().await.unwrap();
        let mut pieces = Vec::new();
        for object in [old, new] {
            let bp = fs.dataset().objset().await.unwrap().hold(object).await.unwrap().block_pointer(0).await.unwrap();
            assert!(bp.is_gang());
            pieces.push(pool.zio().gang_pieces(&bp, zio::Prio::SyncRead).await.unwrap().len());
        }
        assert_eq!(pieces, [3, 7]);
        fs.unmount().await.unwrap();
        pool.export().await.unwrap();
        drop(pool);
        judge(&lab, &[0, 1], "large-gang-headers");

        let pool = lab.import_as(ImportOpts::default(), opts.clone()).await.unwrap();
        ztest::scan::scrub_clean(&pool).await.unwrap();
        let fs = mount(&pool, POOL).await;
        for (object, seed) in [(old, 1), (new, 2)] {
            let got: Vec<u8> = fs.read(object, 0, 1 << 20).await.unwrap().iter().flat_map(|b| b.to_vec()).collect();
            assert!(got == content(seed));
            fs.write(object, 0, vec![bdev::Buf::copy_from(&content(seed + 2)).freeze()], false).await.unwrap();
        }
        fs.unmount().await.unwrap();
        pool.export().await.unwrap();
        drop(pool);
        // Freed and allocated again.
        judge(&lab, &[0, 1], "large-gang-headers-after");
    });
}

/// Names of up to 1023 bytes, many in one directory and some removed again, in a file system, its
/// snapshot and a clone: on pools that were made with the feature, and that got it later.
#[test]
fn long_names_are_as_zdb_reads_them() {
    for (seed, at_creation) in [(31, true), (32, false)] {
        // Labels list the other feature, so that the zdb of 2.4 is asked.
        let with: &[FeatureId] = if at_creation { &[FeatureId::Longname, FeatureId::VdevZapsV2] } else { &[] };
        let (lab, layout) = world(seed, with);
        let (fs, snap, clone) = (format!("{POOL}/f"), format!("{POOL}/f@1"), format!("{POOL}/c"));
        lab.sim.block_on(async {
            let pool = create(&lab, &layout).await;
            let dsl = pool.dsl().clone();
            let on = || vec![("longname".to_string(), PropValue::Num(1))];
            if !at_creation {
                let e = dsl.create_fs(&fs, on(), ztest::lab::new_fs(&lab.sim)).await.map(drop).unwrap_err();
                assert!(e.to_string().contains("feature@longname=enabled"), "{e}");
                enable(&pool, FeatureId::Longname).await;
            }
            assert_eq!(pool.features().count(FeatureId::Longname.get().guid), Some(0));
            pool.export().await.unwrap();
            drop(pool);
            let pool = lab.import_as(ImportOpts::default(), layout.opts()).await.unwrap();
            let dsl = pool.dsl().clone();
            dsl.create_fs(&fs, on(), ztest::lab::new_fs(&lab.sim)).await.unwrap();
            let m = mount(&pool, &fs).await;
            let name = |n: usize| -> Vec<u8> { format!("{n}-").bytes().cycle().take(240 + n * 13 % 784).collect() };
            for n in 0..500 {
                m.create(m.root(), &name(n), 0o644, &Cred::new(0, 0), true).await.unwrap();
            }
            m.unmount().await.unwrap();
            pool.sync().await.unwrap();
            dsl.snapshot(vec![snap.clone()], false, Vec::new()).await.unwrap();
            dsl.clone_snapshot(&snap, &clone, Vec::new()).await.unwrap();
            let m = mount(&pool, &fs).await;
            for n in (0..500).filter(|n| n % 3 != 0) {
                m.unlink(m.root(), &name(n)).await.unwrap();
            }
            m.unmount().await.unwrap();
            // A clone does not inherit from its origin's properties, but it has the names.
            let m = mount(&pool, &clone).await;
            assert!(!m.opts().longname);
            m.unlink(m.root(), &name(60)).await.unwrap();
            m.unmount().await.unwrap();
            assert_eq!(pool.features().count(FeatureId::Longname.get().guid), Some(3));
            pool.export().await.unwrap();
            drop(pool);
            judge(&lab, &[0, 1], &format!("long-names-{seed}"));

            let pool = lab.import_as(ImportOpts::default(), layout.opts()).await.unwrap();
            let m = mount(&pool, &fs).await;
            for n in 0..500 {
                assert_eq!(m.lookup(m.root(), &name(n)).await.is_ok(), n % 3 == 0, "{n}");
            }
            m.unmount().await.unwrap();
            pool.dsl().destroy_fs(&clone).await.unwrap();
            pool.dsl().destroy_snapshots(vec![snap.clone()], false).await.unwrap();
            pool.sync().await.unwrap();
            assert_eq!(pool.features().count(FeatureId::Longname.get().guid), Some(1));
            pool.dsl().destroy_fs(&fs).await.unwrap();
            pool.sync().await.unwrap();
            assert_eq!(pool.features().count(FeatureId::Longname.get().guid), Some(0));
            pool.export().await.unwrap();
            drop(pool);
            judge(&lab, &[0, 1], &format!("long-names-{seed}-gone"));
        });
    }
}

/// Micro ZAPs of up to 1 MiB in a file system, its snapshot and a clone; one grows into a fat ZAP,
/// and with a lower tunable one in use becomes fat when it must grow.
#[test]
fn large_micro_zaps_are_as_zdb_reads_them() {
    let (lab, layout) = world(51, &[FeatureId::LargeMicrozap, FeatureId::VdevZapsV2]);
    let fs = format!("{POOL}/f");
    let count = |pool: &Pool, id: FeatureId| pool.features().count(id.get().guid);
    let name = |n: usize| format!("a file with a number {n:06}").into_bytes();
    lab.sim.block_on(async {
        let pool = create(&lab, &layout).await;
        let dsl = pool.dsl().clone();
        dsl.create_fs(&fs, Vec::new(), ztest::lab::new_fs(&lab.sim)).await.unwrap();
        let m = mount(&pool, &fs).await;
        let root = m.root();
        let me = Cred::new(0, 0);
        let mut dirs = Vec::new();
        let block = async |m: &Zfs, dir: ObjectId| m.objset().hold(dir).await.unwrap().block_size();
        for (dir, files) in [(b"a", 2047), (b"b", 2048), (b"c", 9000), (b"d", 16_383)] {
            let dir = m.mkdir(root, dir, 0o755, &me).await.unwrap().obj;
            // Links: an entry for each, and one file.
            let file = m.create(dir, &name(0), 0o644, &me, true).await.unwrap().obj;
            for n in 1..files {
                m.link(file, dir, &name(n)).await.unwrap();
            }
            dirs.push((dir, files));
            if files == 2047 {
                pool.sync().await.unwrap();
                assert_eq!(count(&pool, FeatureId::LargeMicrozap), Some(0));
            }
        }
        pool.sync().await.unwrap();
        assert_eq!(count(&pool, FeatureId::LargeMicrozap), Some(1));
        let mut sizes = Vec::new();
        for (dir, _) in &dirs {
            sizes.push(block(&m, *dir).await);
        }
        assert_eq!(sizes, [131_072, 131_584, 576_512, 1 << 20]);
        m.unmount().await.unwrap();
        dsl.snapshot(vec![format!("{fs}@1")], false, Vec::new()).await.unwrap();
        dsl.clone_snapshot(&format!("{fs}@1"), &format!("{POOL}/c"), Vec::new()).await.unwrap();
        assert_eq!(count(&pool, FeatureId::LargeMicrozap), Some(3));
        pool.export().await.unwrap();
        drop(pool);
        judge(&lab, &[0, 1], "large-micro-zaps");

        let mut opts = layout.opts();
        opts.dmu = dmu::DmuTunables::default();
        let pool = lab.import_as(ImportOpts::default(), opts).await.unwrap();
        let m = mount(&pool, &fs).await;
        for (dir, files) in &dirs {
            let file = m.lookup(*dir, &name(1)).await.unwrap().obj;
            for n in (0..*files).step_by(3) {
                m.unlink(*dir, &name(n)).await.unwrap();
            }
            // Places of removed entries are taken again; the block does not shrink.
            for n in (0..*files).step_by(3) {
                m.link(file, *dir, &name(n)).await.unwrap();
            }
        }
        assert_eq!(block(&m, dirs[2].0).await, 576_512);
        for (dir, _) in &dirs[2..] {
            let file = m.lookup(*dir, &name(1)).await.unwrap().obj;
            // A block of 576,512 bytes has seven places left.
            for n in 0..8 {
                m.link(file, *dir, format!("one more {n}").as_bytes()).await.unwrap();
            }
            assert_eq!(block(&m, *dir).await, 16 << 10, "fat");
        }
        for (dir, files) in &dirs {
            for n in (0..*files).step_by(7) {
                m.lookup(*dir, &name(n)).await.unwrap();
            }
        }
        m.unmount().await.unwrap();
        ztest::scan::scrub_clean(&pool).await.unwrap();
        pool.export().await.unwrap();
        drop(pool);
        judge(&lab, &[0, 1], "large-micro-zaps-after");
    });
}

/// Labels and the configuration have the unit of allocation of new vdevs, as the kernel's.
#[test]
fn new_vdevs_say_their_unit() {
    for (seed, name, unit) in [(61, "mirror", 4096), (62, "draid", 8192)] {
        let mut rng = Rng::new(seed);
        let shape = SHAPES.iter().find(|s| s.name == name).expect("a known shape");
        let mut layout = Layout::draw(&mut rng, 64 << 20).shaped(shape, &mut rng);
        layout.features = ondisk::feature::features_of_2_1();
        layout.features.push(FeatureId::VdevZapsV2);
        layout.ashift = 12;
        let lab = Lab::new(seed, &layout);
        lab.sim.block_on(async {
            let pool = lab.create(&layout, Vec::new()).await.unwrap();
            let of = |pool: &Pool| pool.mos_config().vdev_tree.children[0].min_alloc;
            assert_eq!(of(&pool), Some(unit));
            pool.export().await.unwrap();
            drop(pool);
            let pool = lab.import_as(ImportOpts::default(), layout.opts()).await.unwrap();
            assert_eq!(of(&pool), Some(unit));
            pool.export().await.unwrap();
        });
        for disk in &lab.disks {
            let label = lab.sim.block_on(vdev::labels::read_labels(&*disk.dev())).unwrap();
            let config = label.best_config().expect("a member has a label");
            assert_eq!(config.vdev_tree.min_alloc, Some(unit));
        }
        // The checker does not read dRAID.
        if name == "mirror" {
            judge(&lab, &[0, 1], name);
        }
    }
}

/// What the kernel stored with vdevs is read; values of weir, and a vdev that takes no new blocks,
/// are as the zdb of 2.4 wants them, and last.
#[test]
fn vdevs_keep_their_properties() {
    let text = zap::ZapValue::from_str_nul;
    if let Some(images) = ztest::reference::images_of("props24") {
        let lab = Lab::with_images(1, images, true);
        lab.sim.block_on(async {
            let pool = lab.import_as(ImportOpts::default(), spa::EngineOpts::for_memory(1 << 30)).await.unwrap();
            let devices = pool.devices();
            let root = devices.vdev_values(devices.guid_of("root-0").unwrap()).await.unwrap();
            assert_eq!(root["comment"], text("the whole pool"));
            assert_eq!(root["org.test:note"], text("user property"));
            let mirror = devices.vdev_values(devices.guid_of("mirror-0").unwrap()).await.unwrap();
            let numbers = ["checksum_n", "checksum_t", "io_n", "failfast"].map(|name| mirror[name].as_u64());
            assert_eq!(numbers, [Some(20), Some(300), Some(7), Some(0)]);
            pool.export().await.unwrap();
        });
    } else {
        eprintln!("SKIPPED: props24.tar.zst is not there");
    }
    let shape = SHAPES.iter().find(|s| s.name == "mirrors").expect("a known shape");
    let mut rng = Rng::new(71);
    let mut layout = Layout::draw(&mut rng, 64 << 20).shaped(shape, &mut rng);
    layout.features = ondisk::feature::features_of_2_1();
    layout.features.push(FeatureId::VdevZapsV2);
    // The others need room for all that a vdev has, beside the slop space.
    layout.devices.fill(256 << 20);
    let all: Vec<usize> = (0..layout.devices.len()).collect();
    let lab = Lab::new(71, &layout);
    lab.sim.block_on(async {
        let pool = lab.create(&layout, Vec::new()).await.unwrap();
        let [first, second] = ["mirror-0", "mirror-1"].map(|name| pool.devices().guid_of(name).unwrap());
        let root = pool.devices().guid_of("root").unwrap();
        for vdev in [root, first] {
            pool.devices().set_vdev_value(vdev, "comment", Some(text("a comment"))).await.unwrap();
            pool.devices().set_vdev_value(vdev, "io_n", Some(zap::ZapValue::from_u64(9))).await.unwrap();
            pool.devices().set_vdev_value(vdev, "io_n", None).await.unwrap();
            pool.devices().set_vdev_value(vdev, "io_n", None).await.unwrap();
        }
        let available = |pool: &Pool| pool.dsl().root().available();
        let before = available(&pool);
        pool.devices().set_allocating(second, false).await.unwrap();
        assert_eq!(pool.devices().set_allocating(first, false).await.unwrap_err().kind(), base::ErrorKind::Invalid);
        pool.export().await.unwrap();
        drop(pool);
        judge(&lab, &all, "vdev-props");

        let pool = lab.import_as(ImportOpts::default(), layout.opts()).await.unwrap();
        let values = pool.devices().vdev_values(first).await.unwrap();
        assert_eq!((values["comment"].clone(), values.get("io_n")), (text("a comment"), None));
        assert_eq!([first, second, root].map(|v| pool.devices().allocating(v)), [Some(true), Some(false), None]);
        assert!(available(&pool) < before / 2, "the space of a vdev without new blocks does not count");
        let on_second = |pool: &Pool| pool.top_spaces().iter().find(|s| s.vdev.0 == 1).unwrap().alloc;
        let had = on_second(&pool);
        let fs = mount(&pool, POOL).await;
        let file = fs.create(fs.root(), b"file", 0o644, &Cred::new(0, 0), false).await.unwrap().obj;
        for n in 0..64u64 {
            let noise: Vec<u8> = (0..16 << 10).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
            fs.write(file, n << 17, vec![bdev::Buf::copy_from(&noise).freeze()], false).await.unwrap();
        }
        fs.unmount().await.unwrap();
        pool.sync().await.unwrap();
        // Blocks of the MOS were freed there meanwhile.
        assert!(on_second(&pool) <= had, "{} {had}", on_second(&pool));
        pool.devices().set_allocating(second, true).await.unwrap();
        pool.sync().await.unwrap();
        assert!(available(&pool) > before - (16 << 20), "{} {before}", available(&pool));
        pool.export().await.unwrap();
        drop(pool);
        judge(&lab, &all, "vdev-props-after");
    });
}

/// Pools for OpenZFS 2.4 note which txg was synced when, and the kernel's notes go on.
#[test]
fn txgs_have_their_times() {
    const KEYS: [&[u8]; 3] = [
        b"com.klarasystems:txg_log_time:months",
        b"com.klarasystems:txg_log_time:days",
        b"com.klarasystems:txg_log_time:minutes",
    ];
    let rings = async |pool: &Pool| {
        let mut out = Vec::new();
        for key in KEYS {
            let ring = zap::lookup(pool.dsl().directory(), key).await.unwrap();
            out.push(ring.map(|v| v.as_u64s().expect("words")));
        }
        out
    };
    let points =
        |rings: &[Option<Vec<u64>>]| -> Vec<u64> { rings.iter().map(|r| r.as_ref().map_or(0, |r| r[2])).collect() };
    for with in [true, false] {
        let features: &[FeatureId] = if with { &[FeatureId::DynamicGangHeader, FeatureId::VdevZapsV2] } else { &[] };
        let (lab, layout) = world(81, features);
        lab.sim.block_on(async {
            let pool = create(&lab, &layout).await;
            let write = async |n: usize| {
                let name = format!("{POOL}/f{n}");
                pool.dsl().create_fs(&name, Vec::new(), ztest::lab::new_fs(&lab.sim)).await.unwrap();
                pool.sync().await.unwrap();
            };
            for (n, secs) in [0, 1, 700, 10, 90_000, 700].into_iter().enumerate() {
                lab.sim.rt().sleep(base::Nanos::from_secs(secs)).await;
                write(n).await;
            }
            let now = rings(&pool).await;
            // The first one; after 700 s; after a day; after 700 s more.
            assert_eq!(points(&now), if with { [1, 2, 1] } else { [0, 0, 0] });
            if let Some(months) = &now[0] {
                assert_eq!((months.len(), months[..3].to_vec(), months[4]), (515, vec![0, 1, 1], 4));
            }
            pool.export().await.unwrap();
        });
        judge(&lab, &[0, 1], "times");
    }
    let Some(images) = ztest::reference::images_of("props24") else {
        eprintln!("SKIPPED: props24.tar.zst is not there");
        return;
    };
    let lab = Lab::with_images(82, images, true);
    lab.sim.block_on(async {
        let pool = lab.import_as(ImportOpts::default(), spa::EngineOpts::for_memory(1 << 30)).await.unwrap();
        pool.export().await.unwrap();
        drop(pool);
        let pool = lab
            .import_as(ImportOpts { readonly: true, ..ImportOpts::default() }, spa::EngineOpts::for_memory(1 << 30))
            .await
            .unwrap();
        let now = rings(&pool).await;
        let months = now[0].as_ref().unwrap();
        assert_eq!(months[..5], [0, 1, 1, 1_795_386_203, 4]);
        assert!(points(&now).iter().sum::<u64>() > 2, "{:?}", points(&now));
        pool.export().await.unwrap();
    });
}

/// Blocks that were written anew and keep their logical birth are scrubbed although their content
/// is older than the last snapshot, damage of them belongs to the datasets that have them, and the
/// zdb of 2.4 finds nothing leaked after snapshots and clones of them came and went.
#[test]
fn rewritten_blocks_are_as_zdb_counts_them() {
    let (lab, layout) = world(51, &[FeatureId::PhysicalRewrite]);
    lab.sim.block_on(async {
        let pool = create(&lab, &layout).await;
        let (dsl, [s1, s2, c]) = (pool.dsl().clone(), ["@1", "@2", "/c"].map(|name| format!("{POOL}{name}")));
        let fs = mount(&pool, POOL).await;
        let (file, other) = (write(&fs, b"file", 1).await, write(&fs, b"other", 2).await);
        for name in [&s1, &s2] {
            pool.sync().await.unwrap();
            dsl.snapshot(vec![name.clone()], false, Vec::new()).await.unwrap();
            for object in [file, other] {
                assert!(fs.rewrite_physically(object, 0, 0).await.unwrap() > 0);
            }
        }
        pool.sync().await.unwrap();
        assert_eq!(pool.features().count(FeatureId::PhysicalRewrite.get().guid), Some(2), "the head and the second");
        dsl.clone_snapshot(&s2, &c, Vec::new()).await.unwrap();
        assert_eq!(pool.features().count(FeatureId::PhysicalRewrite.get().guid), Some(3));
        // One side only: a scrub mends it, if it looks.
        let bp = fs.objset().hold(file).await.unwrap().block_pointer(0).await.unwrap();
        let newest = dsl.find_snapshot(&s2).await.unwrap().phys().creation_txg;
        assert!(bp.is_rewritten() && bp.logical_birth().0 < newest && bp.birth().0 > newest);
        lab.disks[0].corrupt(DATA_START + bp.dva(0).offset(), bp.dva(0).asize());
        let scrubbed = ztest::scan::scrub(&pool).await.unwrap().phys;
        assert!(scrubbed.errors == 0 && scrubbed.processed > 0, "{scrubbed:?}");
        ztest::scan::scrub_clean(&pool).await.unwrap();
        fs.unmount().await.unwrap();
        pool.export().await.unwrap();
        drop((fs, dsl, pool));
        judge(&lab, &[0, 1], "rewritten");

        let pool = lab.import_as(ImportOpts::default(), layout.opts()).await.unwrap();
        damage(&lab, &pool, &s2, other).await;
        assert_eq!(ztest::scan::scrub(&pool).await.unwrap().phys.errors, 1);
        // Of those that have the block the oldest is named, without head_errlog.
        assert_eq!(listed(&pool).await, set(&[format!("{s2} {other}.0")]));
        let m = mount(&pool, &c).await;
        m.rewrite_physically(file, 0, 0).await.unwrap();
        m.unmount().await.unwrap();
        pool.dsl().destroy_fs(&c).await.unwrap();
        pool.dsl().destroy_snapshots(vec![s2], false).await.unwrap();
        let fs = mount(&pool, POOL).await;
        fs.rewrite_physically(file, 0, 0).await.unwrap();
        fs.unmount().await.unwrap();
        while pool.dsl().has_freeing() {
            pool.sync().await.unwrap();
        }
        pool.dsl().destroy_snapshots(vec![s1], false).await.unwrap();
        pool.export().await.unwrap();
        drop(pool);
        judge(&lab, &[0, 1], "rewritten-after");
    });
}
