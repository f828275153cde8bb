//! Dedup tables with logs (format page 20): files of few kinds of blocks, written, overwritten,
//! removed, kept by snapshots and clones, against a model of their contents. The checker recounts
//! every table, log and histogram from the pointers of the pool; the zdb of 2.4 judges the ends.

use std::collections::BTreeMap;
use std::rc::Rc;

use bdev::Buf;
use dsl::crypto::{KeyFormat, KeyMaterial, NewCrypt, NewKey};
use dsl::props::PropValue;
use ondisk::ddt::LogHeader;
use ondisk::feature::FeatureId;
use ondisk::object_type::ObjectType;
use sim::{CutStyle, DiskImage, DiskLog, Rng};
use spa::{ImportOpts, Pool, PruneBy};
use zio::crypto::Suite;
use zpl::{Cred, MountOpts, Zfs};
use ztest::judge::{Verdict, judge24_with};
use ztest::lab::{Lab, Layout, POOL, SHAPES, new_fs};
use ztest::reference::{images_of, key};
use ztest::snaps::check_images;

pub(crate) const BLOCK: usize = 4096;
const FAST: FeatureId = FeatureId::FastDedup;

/// The blocks of each file, by their kinds.
type Files = BTreeMap<String, Vec<u64>>;

/// What a pool must hold: files of file systems and snapshots.
type Model = BTreeMap<String, Files>;

pub(crate) fn world(seed: u64, shape: &str) -> (Lab, Layout) {
    let mut rng = Rng::new(seed);
    let shape = SHAPES.iter().find(|s| s.name == shape).expect("a known shape");
    let mut layout = Layout::draw(&mut rng, 128 << 20).shaped(shape, &mut rng);
    layout.features = ondisk::feature::features_of_2_1();
    // Labels list the other feature, so that the zdb of 2.4 is asked.
    layout.features.extend([FAST, FeatureId::VdevZapsV2]);
    layout.dirty_max = 64 << 20;
    (Lab::new(seed, &layout), layout)
}

/// Properties of file systems with small blocks of their own size.
pub(crate) fn props(dedup: u64) -> Vec<(String, PropValue)> {
    let all = [("recordsize", BLOCK as u64), ("compression", 2), ("atime", 0), ("dedup", dedup)];
    all.map(|(name, value)| (name.to_string(), PropValue::Num(value))).to_vec()
}

pub(crate) async fn import(lab: &Lab, layout: &Layout) -> Rc<Pool> {
    lab.import_as(ImportOpts::default(), layout.opts()).await.unwrap()
}

pub(crate) async fn mount(pool: &Pool, name: &str) -> Rc<Zfs> {
    let (ds, readonly) = match name.contains('@') {
        true => (pool.dsl().find_snapshot(name).await.unwrap(), true),
        false => (pool.dsl().find(name).unwrap(), false),
    };
    Zfs::open(&ds, MountOpts { readonly, ..MountOpts::from_props(&ds) }).await.unwrap()
}

/// The bytes of a kind of block.
pub(crate) fn bytes_of(kind: u64) -> Vec<u8> {
    let mut rng = Rng::new(kind);
    let mut out = vec![0; BLOCK];
    rng.fill(&mut out);
    out
}

/// Writes blocks of these kinds from block `at` of a file on, which is made if it is not there.
pub(crate) async fn write(fs: &Zfs, name: &str, at: usize, kinds: &[u64]) {
    let file = match fs.lookup(fs.root(), name.as_bytes()).await {
        Ok(found) => found.obj,
        Err(_) => fs.create(fs.root(), name.as_bytes(), 0o644, &Cred::new(0, 0), true).await.unwrap().obj,
    };
    for (n, kind) in kinds.iter().enumerate() {
        let data = vec![Buf::copy_from(&bytes_of(*kind)).freeze()];
        fs.write(file, ((at + n) * BLOCK) as u64, data, false).await.unwrap();
    }
}

async fn compare(pool: &Pool, model: &Model) {
    for (name, files) in model {
        let fs = mount(pool, name).await;
        for (file, kinds) in files {
            let found = fs.lookup(fs.root(), file.as_bytes()).await;
            let found = found.unwrap_or_else(|e| panic!("{name}/{file}: {e}"));
            let have: Vec<u8> = fs.read(found.obj, 0, 1 << 30).await.unwrap().iter().flat_map(|b| b.to_vec()).collect();
            assert_eq!(have.len(), kinds.len() * BLOCK, "{name}/{file}");
            for (n, kind) in kinds.iter().enumerate() {
                assert!(have[n * BLOCK..][..BLOCK] == bytes_of(*kind), "{name}/{file}: block {n} has other bytes");
            }
        }
        fs.unmount().await.unwrap();
    }
}

/// The encryption of a file system with a hexadecimal key of its own.
pub(crate) fn sealed_by_hex() -> NewCrypt {
    let (format, material) = (KeyFormat::Hex, KeyMaterial::new(key(KeyFormat::Hex).as_bytes()));
    let key = NewKey { format, material, iters: None, location: "prompt".into() };
    NewCrypt { suite: Some(Some(Suite::Aes256Gcm)), key: Some(key) }
}

/// Loads the keys of all encryption roots, which are those of the collection.
pub(crate) async fn unlock(pool: &Pool) {
    let dsl = pool.dsl();
    for root in dsl.encryption_roots(&dsl.root().name()).unwrap() {
        let info = dsl.crypt_info(&dsl.find_dir(&root).unwrap()).expect("it is encrypted");
        dsl.load_key(&root, &KeyMaterial::new(key(info.format).as_bytes()), false).await.unwrap();
    }
}

async fn drain(pool: &Pool) {
    while pool.dsl().has_freeing() {
        pool.sync().await.unwrap();
    }
    pool.sync().await.unwrap();
}

/// A random change of a random file of `name`: most blocks are of few kinds, some of their own.
async fn change(pool: &Pool, model: &mut Model, name: &str, fresh: &mut u64, rng: &mut Rng) {
    let fs = mount(pool, name).await;
    let file = format!("f{}", rng.below(6));
    let files = model.get_mut(name).unwrap();
    if files.contains_key(&file) && rng.percent(25) {
        fs.unlink(fs.root(), file.as_bytes()).await.unwrap();
        files.remove(&file);
    } else {
        let blocks = files.entry(file.clone()).or_default();
        let at = rng.below(blocks.len() as u64 + 1) as usize;
        let kinds: Vec<u64> = (0..=rng.below(30))
            .map(|_| {
                if rng.percent(70) {
                    return rng.below(25);
                }
                *fresh += 1;
                1000 + *fresh
            })
            .collect();
        write(&fs, &file, at, &kinds).await;
        blocks.resize(blocks.len().max(at + kinds.len()), 0);
        blocks[at..at + kinds.len()].copy_from_slice(&kinds);
    }
    fs.unmount().await.unwrap();
}

pub(crate) fn judge(images: &[DiskImage], name: &str, pool: &str) {
    check_images(images).unwrap_or_else(|e| panic!("{name}: {e}"));
    match judge24_with(images, name, pool, &["-bcc", "-dd", "-dddd", "-DDD"]) {
        Verdict::Good => {}
        Verdict::Missing(what) => eprintln!("NOT JUDGED: {what} is missing"),
        Verdict::Bad(why) => panic!("{name}: {why}"),
    }
}

/// The headers of the logs on the images.
fn logs(images: &[DiskImage]) -> Vec<LogHeader> {
    let mut out = Vec::new();
    crate::images::reader(images).mos.for_each_object(&mut |o| {
        let o = o.unwrap();
        if o.dn.otype == ObjectType::OTN_U64_METADATA && o.dn.bonuslen == 64 {
            out.push(LogHeader::parse(o.dn.bonus()).unwrap());
        }
    });
    out
}

/// Everything in random order, on mirrors and on a pool with a dedup vdev, with and without
/// `verify`: sha256, skein with `verify`, blake3; in file systems that are encrypted, too.
#[test]
fn files_share_blocks_in_any_order() {
    for (seed, shape, dedup, sealed) in
        [(1, "mirror", 8, false), (2, "special", 0x10c, false), (3, "raidz1", 14, false), (4, "special", 0x10d, true)]
    {
        let crypt = || if sealed { sealed_by_hex() } else { NewCrypt::default() };
        let (lab, layout) = world(seed, shape);
        let mut rng = Rng::new(seed);
        let mut fresh = 0;
        lab.sim.block_on(async {
            let mut pool = lab.create(&layout, props(dedup)).await.unwrap();
            let mut model = Model::new();
            for n in ["a", "b"] {
                let name = format!("{POOL}/{n}");
                pool.dsl().create_fs_encrypted(&name, Vec::new(), crypt(), new_fs(&lab.sim)).await.unwrap();
                model.insert(name, Files::new());
            }
            for round in 0..18u64 {
                for _ in 0..6 {
                    let heads: Vec<String> = model.keys().filter(|n| !n.contains('@')).cloned().collect();
                    let name = &heads[rng.below(heads.len() as u64) as usize];
                    change(&pool, &mut model, name, &mut fresh, &mut rng).await;
                }
                let head = format!("{POOL}/{}", ["a", "b"][rng.below(2) as usize]);
                let snap = format!("{head}@{round}");
                if rng.percent(50) {
                    pool.dsl().snapshot(vec![snap.clone()], false, Vec::new()).await.unwrap();
                    model.insert(snap.clone(), model[&head].clone());
                    if rng.percent(30) {
                        let clone = format!("{POOL}/c{round}");
                        pool.dsl().clone_snapshot(&snap, &clone, Vec::new()).await.unwrap();
                        model.insert(clone, model[&snap].clone());
                    }
                }
                let clones: Vec<String> = model.keys().filter(|n| n.contains("/c")).cloned().collect();
                if rng.percent(40) && !clones.is_empty() {
                    let gone = &clones[rng.below(clones.len() as u64) as usize];
                    pool.dsl().destroy_fs(gone).await.unwrap();
                    model.remove(gone);
                }
                let snaps: Vec<String> = model.keys().filter(|n| n.contains('@')).cloned().collect();
                if rng.percent(50) && !snaps.is_empty() {
                    let gone = snaps[rng.below(snaps.len() as u64) as usize].clone();
                    // One with a clone stays.
                    if pool.dsl().destroy_snapshots(vec![gone.clone()], false).await.is_ok() {
                        model.remove(&gone);
                    }
                }
                drain(&pool).await;
                check_images(&lab.images()).unwrap_or_else(|e| panic!("seed {seed} round {round}: {e}"));
                if round % 4 == 3 {
                    pool.export().await.unwrap();
                    drop(pool);
                    pool = import(&lab, &layout).await;
                    unlock(&pool).await;
                    compare(&pool, &model).await;
                }
            }
            assert!(pool.features().is_active(FAST));
            pool.export().await.unwrap();
            drop(pool);
            judge(&lab.images(), &format!("dedup-{seed}"), POOL);

            let pool = import(&lab, &layout).await;
            ztest::scan::scrub_clean(&pool).await.unwrap();
            let mut left: Vec<String> = model.keys().cloned().collect();
            // Clones before the snapshots that they are of, these before their heads.
            left.sort_by_key(|n| (!n.contains("/c"), !n.contains('@')));
            for name in left {
                match name.contains('@') {
                    true => pool.dsl().destroy_snapshots(vec![name], false).await.unwrap(),
                    false => pool.dsl().destroy_fs(&name).await.unwrap(),
                };
            }
            // Until the logs are flushed.
            for _ in 0..40 {
                drain(&pool).await;
                lab.sim.rt().sleep(base::Nanos::from_secs(6)).await;
            }
            assert!(!pool.features().is_active(FAST), "the tables are gone");
            pool.export().await.unwrap();
            drop(pool);
            assert!(logs(&lab.images()).is_empty());
            judge(&lab.images(), &format!("dedup-gone-{seed}"), POOL);
        });
    }
}

/// Logs with thousands of entries are flushed over several txgs: with a checkpoint in between the
/// pool is exported, judged, and used on; in the end an idle pool has empty logs.
#[test]
fn large_logs_are_flushed_in_parts() {
    let (lab, mut layout) = world(11, "mirror");
    layout.arc_max = 64 << 20;
    let name = format!("{POOL}/a");
    lab.sim.block_on(async {
        let pool = lab.create(&layout, props(8)).await.unwrap();
        pool.dsl().create_fs(&name, Vec::new(), new_fs(&lab.sim)).await.unwrap();
        let mut files = Files::new();
        let fs = mount(&pool, &name).await;
        for n in 0..3u64 {
            let kinds: Vec<u64> = (0..1000).map(|k| n * 900 + k).collect();
            write(&fs, &format!("f{n}"), 0, &kinds).await;
            files.insert(format!("f{n}"), kinds);
            pool.sync().await.unwrap();
        }
        let all = |pool: &Pool| pool.features().is_active(FAST);
        assert!(all(&pool));
        fs.unmount().await.unwrap();
        let model = Model::from([(name.clone(), files)]);
        let mut parts = 0;
        let mut pool = Some(pool);
        for round in 0..40 {
            // A change, so that there is a txg.
            let now = match pool.take() {
                Some(pool) => pool,
                None => import(&lab, &layout).await,
            };
            let fs = mount(&now, &name).await;
            fs.setattr(fs.root(), zpl::SetAttr { mode: Some(0o700 + round % 8), ..Default::default() }).await.unwrap();
            fs.unmount().await.unwrap();
            now.sync().await.unwrap();
            let headers = logs(&lab.images());
            assert_eq!(headers.len(), 2);
            let half = headers.iter().any(|h| h.checkpoint.is_some());
            if half {
                parts += 1;
            }
            if half && parts < 3 {
                now.export().await.unwrap();
                drop(now);
                judge(&lab.images(), &format!("dedup-parts-{parts}"), POOL);
            } else {
                check_images(&lab.images()).unwrap_or_else(|e| panic!("round {round}: {e}"));
                pool = Some(now);
            }
        }
        assert!(parts >= 2, "{parts} rounds ended in the middle of a log");
        let pool = match pool {
            Some(pool) => pool,
            None => import(&lab, &layout).await,
        };
        lab.sim.rt().sleep(base::Nanos::from_secs(200)).await;
        assert!(logs(&lab.images()).iter().all(|h| h.length == 0), "{:?}", logs(&lab.images()));
        compare(&pool, &model).await;
        pool.export().await.unwrap();
        drop(pool);
        judge(&lab.images(), "dedup-flushed", POOL);
    });
}

/// The same data written again after its last file went, before and after the log is flushed: the
/// first finds the block that is still there, the second writes another one.
#[test]
fn blocks_come_back_until_they_are_flushed() {
    let (lab, layout) = world(21, "mirror");
    let name = format!("{POOL}/a");
    lab.sim.block_on(async {
        let pool = lab.create(&layout, props(8)).await.unwrap();
        pool.dsl().create_fs(&name, Vec::new(), new_fs(&lab.sim)).await.unwrap();
        let fs = mount(&pool, &name).await;
        let place = async |file: &str| {
            let obj = fs.lookup(fs.root(), file.as_bytes()).await.unwrap().obj;
            let dn = fs.dataset().objset().await.unwrap().hold(obj).await.unwrap();
            dn.block_pointer(0).await.unwrap()
        };
        write(&fs, "one", 0, &[7]).await;
        drain(&pool).await;
        let first = place("one").await;
        assert!(first.dedup());
        fs.unlink(fs.root(), b"one").await.unwrap();
        drain(&pool).await;
        check_images(&lab.images()).unwrap();
        write(&fs, "two", 0, &[7]).await;
        drain(&pool).await;
        let second = place("two").await;
        assert!(second.same_place(&first), "{second} and {first}");
        assert!(second.birth() > second.phys_birth());
        check_images(&lab.images()).unwrap();
        fs.unlink(fs.root(), b"two").await.unwrap();
        lab.sim.rt().sleep(base::Nanos::from_secs(200)).await;
        drain(&pool).await;
        assert!(!pool.features().is_active(FAST));
        write(&fs, "three", 0, &[7]).await;
        drain(&pool).await;
        let third = place("three").await;
        assert_eq!(third.birth(), third.phys_birth());
        fs.unmount().await.unwrap();
        pool.export().await.unwrap();
        drop(pool);
        judge(&lab.images(), "dedup-back", POOL);
    });
}

/// Tables from before the feature was enabled keep their form, and get a new one when they were
/// empty.
#[test]
fn old_tables_stay_as_they_are() {
    let (lab, mut layout) = world(31, "mirror");
    layout.features.retain(|f| *f != FAST);
    lab.sim.block_on(async {
        let pool = lab.create(&layout, props(8)).await.unwrap();
        let fs = mount(&pool, POOL).await;
        write(&fs, "old", 0, &[1, 2, 3, 1, 2]).await;
        drain(&pool).await;
        let enabled = pool.dsl().sync_task(|dsl, tx| Box::pin(async move { dsl.enable_features(&[FAST], &tx).await }));
        enabled.await.unwrap();
        write(&fs, "more", 0, &[1, 4, 4]).await;
        drain(&pool).await;
        assert_eq!(pool.features().count(FAST.get().guid), Some(0));
        let model = Model::from([(
            POOL.to_string(),
            Files::from([("old".into(), vec![1, 2, 3, 1, 2]), ("more".into(), vec![1, 4, 4])]),
        )]);
        fs.unmount().await.unwrap();
        compare(&pool, &model).await;
        pool.export().await.unwrap();
        drop(pool);
        judge(&lab.images(), "dedup-old", POOL);
        let pool = import(&lab, &layout).await;
        let fs = mount(&pool, POOL).await;
        for name in ["old", "more"] {
            fs.unlink(fs.root(), name.as_bytes()).await.unwrap();
        }
        drain(&pool).await;
        write(&fs, "new", 0, &[1, 1, 9]).await;
        drain(&pool).await;
        assert_eq!(pool.features().count(FAST.get().guid), Some(1));
        fs.unmount().await.unwrap();
        pool.export().await.unwrap();
        drop(pool);
        judge(&lab.images(), "dedup-new", POOL);
    });
}

/// Which blocks of a file have entries.
async fn dedup_bits(fs: &Zfs, file: &str, blocks: u64) -> Vec<bool> {
    let obj = fs.lookup(fs.root(), file.as_bytes()).await.unwrap().obj;
    let dn = fs.dataset().objset().await.unwrap().hold(obj).await.unwrap();
    let mut out = Vec::new();
    for n in 0..blocks {
        out.push(dn.block_pointer(n).await.unwrap().dedup());
    }
    out
}

/// Above the quota known data still finds its blocks, other data gets no entries.
#[test]
fn a_quota_stops_new_entries() {
    let (lab, layout) = world(51, "mirror");
    lab.sim.block_on(async {
        let pool = lab.create(&layout, props(8)).await.unwrap();
        let fs = mount(&pool, POOL).await;
        write(&fs, "a", 0, &[1, 2, 3]).await;
        pool.sync().await.unwrap();
        assert!(pool.dedup_table_size() > 0);
        pool.set_dedup_quota(1);
        write(&fs, "b", 0, &[4, 2, 5, 3]).await;
        pool.sync().await.unwrap();
        assert_eq!(dedup_bits(&fs, "b", 4).await, [false, true, false, true]);
        pool.set_dedup_quota(spa::DEDUP_QUOTA_NONE);
        write(&fs, "c", 0, &[4, 1]).await;
        pool.sync().await.unwrap();
        assert_eq!(dedup_bits(&fs, "c", 2).await, [true, true]);
        let figures = pool.dedup_figures().await.unwrap();
        assert_eq!(figures.entries, 4);
        // Block 4 once; 1, 2 and 3 twice.
        assert_eq!((figures.histogram[0][0], figures.histogram[1][0], figures.histogram[1][4]), (1, 3, 6));
        let (stored, referenced) = pool.dedup_sizes();
        assert_eq!(referenced * 4, stored * 7);
        fs.unmount().await.unwrap();
        pool.export().await.unwrap();
        drop(pool);
        judge(&lab.images(), "dedup-quota", POOL);
    });
}

/// Pruned entries leave their blocks, which are freed like others; the same data gets another
/// entry.
#[test]
fn pruned_blocks_stay_and_go() {
    let (lab, layout) = world(61, "mirror");
    lab.sim.block_on(async {
        let pool = lab.create(&layout, props(8)).await.unwrap();
        let fs = mount(&pool, POOL).await;
        let kinds: Vec<u64> = (0..300).collect();
        write(&fs, "once", 0, &kinds).await;
        write(&fs, "twice", 0, &[1000, 1001, 1000, 1001]).await;
        pool.sync().await.unwrap();
        assert_eq!(pool.prune_dedup(PruneBy::Percent(100)).await.unwrap(), 0, "all of them are in the log");
        lab.sim.rt().sleep(base::Nanos::from_secs(200)).await;
        assert_eq!(pool.dedup_figures().await.unwrap().entries, 302);
        assert_eq!(pool.prune_dedup(PruneBy::Age(86_400)).await.unwrap(), 0, "none is a day old");
        assert_eq!(pool.prune_dedup(PruneBy::Percent(100)).await.unwrap(), 300);
        check_images(&lab.images()).unwrap();
        // One comes back while its pruning is in the log, others later.
        write(&fs, "again", 0, &[7]).await;
        drain(&pool).await;
        check_images(&lab.images()).unwrap();
        lab.sim.rt().sleep(base::Nanos::from_secs(200)).await;
        assert_eq!(pool.dedup_figures().await.unwrap().entries, 3);
        write(&fs, "again", 1, &[8, 9, 1000]).await;
        drain(&pool).await;
        assert_eq!(dedup_bits(&fs, "once", 300).await, [true; 300]);
        // One of them is in its ZAP and, with another reference, in the log: it counts as two.
        assert_eq!(pool.dedup_figures().await.unwrap().entries, 6);
        ztest::scan::scrub_clean(&pool).await.unwrap();
        fs.unmount().await.unwrap();
        pool.export().await.unwrap();
        drop(pool);
        judge(&lab.images(), "dedup-pruned", POOL);
        let pool = import(&lab, &layout).await;
        let fs = mount(&pool, POOL).await;
        for name in ["again", "once", "twice"] {
            fs.unlink(fs.root(), name.as_bytes()).await.unwrap();
            drain(&pool).await;
            check_images(&lab.images()).unwrap_or_else(|e| panic!("without {name}: {e}"));
        }
        fs.unmount().await.unwrap();
        lab.sim.rt().sleep(base::Nanos::from_secs(200)).await;
        assert!(!pool.features().is_active(FAST));
        pool.export().await.unwrap();
        drop(pool);
        judge(&lab.images(), "dedup-pruned-gone", POOL);
    });
}

/// A power cut at any moment while files that share blocks with others come and go: what was not
/// touched has its bytes, and tables and logs fit to the pointers.
#[test]
fn power_cuts_while_blocks_are_shared() {
    let (lab, layout) = world(41, "mirror");
    let mut rng = Rng::new(41);
    let (keep, work) = (format!("{POOL}/keep"), format!("{POOL}/work"));
    let (model, logs) = lab.sim.block_on(async {
        let pool = lab.create(&layout, props(8)).await.unwrap();
        let (mut model, mut fresh) = (Model::new(), 0);
        for name in [&keep, &work] {
            pool.dsl().create_fs(name, Vec::new(), new_fs(&lab.sim)).await.unwrap();
            model.insert(name.clone(), Files::new());
        }
        for _ in 0..10 {
            change(&pool, &mut model, &keep, &mut fresh, &mut rng).await;
        }
        lab.start_logs(&pool).await.unwrap();
        for _ in 0..22 {
            for _ in 0..3 {
                change(&pool, &mut model, &work, &mut fresh, &mut rng).await;
            }
            pool.sync().await.unwrap();
        }
        model.remove(&work);
        let logs: Vec<DiskLog> = lab.disks.iter().filter_map(|d| d.take_log()).collect();
        pool.export().await.unwrap();
        (model, logs)
    });
    let mut moments: Vec<u64> = logs.iter().flat_map(|l| l.completions()).collect();
    moments.sort_unstable();
    let every = moments.len().div_ceil(60).max(1);
    let mut replays: Vec<_> = logs.iter().map(DiskLog::replay).collect();
    for (n, seq) in moments.into_iter().enumerate().step_by(every) {
        let images: Vec<DiskImage> = (0u64..)
            .zip(&mut replays)
            .map(|(d, replay)| {
                replay.to_seq(seq);
                replay.cut(CutStyle::Seeded, seq.wrapping_add(d << 40))
            })
            .collect();
        let lab = Lab::with_images(seq, images, true);
        lab.sim.block_on(async {
            let pool = import(&lab, &layout).await;
            compare(&pool, &model).await;
            let fs = mount(&pool, &work).await;
            write(&fs, "after", 0, &[0, 1, 2, 3, 4]).await;
            fs.unmount().await.unwrap();
            drain(&pool).await;
            pool.export().await.unwrap();
        });
        check_images(&lab.images()).unwrap_or_else(|e| panic!("cut {n}: {e}"));
    }
}

/// The kernel's pools with such tables: the checker recounts what they have, and after changes by
/// weir they are good.
#[test]
fn tables_of_the_kernel_are_used() {
    for (name, pool_name) in [("fastdedup", "fd"), ("dedup-both", "db")] {
        let Some(images) = images_of(name) else {
            eprintln!("NOT RUN: {name}.tar.zst is missing");
            continue;
        };
        check_images(&images).unwrap_or_else(|e| panic!("{name} as it came: {e}"));
        let lab = Lab::with_images(1, images, true);
        let opts = spa::EngineOpts::for_memory(1 << 30);
        lab.sim.block_on(async {
            let pool = lab.import_as(ImportOpts::default(), opts.clone()).await.unwrap();
            let root = pool.name();
            assert!(root == pool_name || !root.is_empty());
            for head in pool.dsl().all().into_iter().filter(|ds| !ds.name().contains('@')) {
                let ds = head.name();
                drop(head);
                if pool.dsl().find(&ds).unwrap().objset().await.is_err() || ds == root {
                    continue;
                }
                let fs = mount(&pool, &ds).await;
                write(&fs, "by weir", 0, &[1, 2, 3, 1]).await;
                fs.unmount().await.unwrap();
                pool.sync().await.unwrap();
                check_images(&lab.images()).unwrap_or_else(|e| panic!("{ds}: {e}"));
            }
            pool.export().await.unwrap();
            drop(pool);
            judge(&lab.images(), name, &root);
            let pool = lab.import_as(ImportOpts::default(), opts.clone()).await.unwrap();
            ztest::scan::scrub_clean(&pool).await.unwrap();
            // All entries reach the ZAPs.
            lab.sim.rt().sleep(base::Nanos::from_secs(300)).await;
            pool.export().await.unwrap();
            drop(pool);
            judge(&lab.images(), &format!("{name}-flushed"), &root);
        });
    }
}
