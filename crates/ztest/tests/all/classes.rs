//! Where blocks go: special and dedup vdevs, small blocks of files, the fallback when these are
//! full; copies, metadata with an extra one, and reads from them.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use dsl::crypto::NewCrypt;
use dsl::props::PropValue;
use metaslab::ClassKind;
use ondisk::object_type::ObjectType;
use sim::{DiskImage, Rng};
use spa::{Bias, GroupKind, Pool};
use zpl::{Cred, MountOpts, Zfs};
use ztest::judge::{self, Level, Verdict};
use ztest::lab::{Lab, Layout, POOL, SHAPES, Shape, new_fs};
use ztest::scan;
use zvol::{Volume, VolumeOpts, init_volume};

use crate::images::{Block, blocks, reader};

/// Offset of the address space on a device.
const DATA: u64 = 4 << 20;

fn layout(seed: u64, shape: &'static Shape) -> Layout {
    let mut rng = Rng::new(seed);
    let mut layout = Layout::draw(&mut rng, 192 << 20).shaped(shape, &mut rng);
    layout.features = ondisk::feature::features_of_2_1();
    layout.ashift = 9;
    layout.arc_max = 16 << 20;
    layout
}

fn judged(images: &[DiskImage], name: &str) {
    match judge::judge(images, Level::Zdb, name) {
        Verdict::Good => {}
        Verdict::Missing(what) => eprintln!("NOT JUDGED: {name}: {what} is missing"),
        Verdict::Bad(why) => panic!("{name}: {why}"),
    }
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut out = vec![0; len];
    rng.fill(&mut out);
    out
}

async fn mount(pool: &Pool, name: &str) -> Rc<Zfs> {
    let ds = pool.dsl().find(name).expect("it exists");
    Zfs::open(&ds, MountOpts::from_props(&ds)).await.expect("it opens")
}

async fn write(fs: &Zfs, name: &str, content: &[u8]) -> u64 {
    let file = fs.create(fs.root(), name.as_bytes(), 0o644, &Cred::new(0, 0), true).await.expect("created").obj;
    for (n, part) in content.chunks(128 << 10).enumerate() {
        let data = vec![bdev::Buf::copy_from(part).freeze()];
        fs.write(file, (n as u64) << 17, data, false).await.expect("written");
    }
    file.0
}

/// A volume with noise in blocks of `block` bytes, those of 4 KiB being small; its object.
async fn volume(pool: &Pool, name: &str, block: u32) -> u64 {
    let name = format!("{POOL}/{name}");
    let values = [("special_small_blocks", 4096), ("compression", 2)].map(|(n, v)| (n.into(), PropValue::Num(v)));
    let init = init_volume(1 << 20, block).expect("fits");
    pool.dsl().create_volume(&name, values.into(), NewCrypt::default(), init).await.expect("made");
    let ds = pool.dsl().find(&name).expect("it exists");
    let volume = Volume::open(&ds, VolumeOpts::from_props(&ds)).await.expect("it opens");
    volume.write(0, vec![bdev::Bytes::copy_from(&noise(11, 1 << 20))]).await.expect("written");
    volume.close().await.expect("closed");
    zvol::DATA_OBJ.0
}

async fn read(fs: &Zfs, name: &str) -> base::Result<Vec<u8>> {
    let attr = fs.lookup(fs.root(), name.as_bytes()).await?;
    Ok(fs.read(attr.obj, 0, 1 << 30).await?.iter().flat_map(|b| b.to_vec()).collect())
}

async fn set(pool: &Pool, name: &str, props: &[(&str, u64)]) {
    let values = props.iter().map(|(n, v)| ((*n).to_string(), PropValue::Num(*v))).collect();
    pool.dsl().set_props(name, values).await.expect("set");
}

async fn make(lab: &Lab, pool: &Pool, name: &str, props: &[(&str, u64)]) -> Rc<Zfs> {
    let values = props.iter().map(|(n, v)| ((*n).to_string(), PropValue::Num(*v))).collect();
    pool.dsl().create_fs(&format!("{POOL}/{name}"), values, new_fs(&lab.sim.handle())).await.expect("made");
    mount(pool, &format!("{POOL}/{name}")).await
}

/// The classes of the top-level vdevs.
fn classes(pool: &Pool) -> BTreeMap<u32, ClassKind> {
    pool.allocator().top_spaces().into_iter().map(|t| (t.vdev.0, t.class)).collect()
}

fn is_data(b: &Block) -> bool {
    matches!(b.bp.otype(), ObjectType::PLAIN_FILE | ObjectType::ZVOL) && b.bp.level() == 0
}

fn is_table(b: &Block) -> bool {
    b.bp.otype() == ObjectType::DDT_ZAP || b.bp.otype() == ObjectType::DDT_STATS
}

#[test]
fn metadata_small_blocks_and_dedup_tables_have_their_vdevs() {
    let shape = SHAPES.iter().find(|s| s.name == "special").expect("it is there");
    let layout = layout(4100, shape);
    let lab = Lab::new(4100, &layout);
    let mut files = BTreeMap::new();
    let classes = lab.sim.block_on(async {
        let pool = lab.create(&layout, vec![("atime".into(), PropValue::Num(0))]).await.expect("created");
        // A block may be as large as the limit, in stored bytes: 128 KiB that compress to 16 KiB
        // are small.
        let fs = make(&lab, &pool, "small", &[("special_small_blocks", 16 << 10), ("compression", 15)]).await;
        files.insert(("small", write(&fs, "one sector", &noise(1, 512)).await), true);
        files.insert(("small", write(&fs, "just small", &noise(2, 16 << 10)).await), true);
        files.insert(("small", write(&fs, "one more sector", &noise(3, (16 << 10) + 512)).await), false);
        files.insert(("small", write(&fs, "large", &noise(4, 700 << 10)).await), false);
        let mut text = vec![b'x'; 128 << 10];
        text[..8 << 10].copy_from_slice(&noise(5, 8 << 10));
        files.insert(("small", write(&fs, "compresses", &text).await), true);
        fs.unmount().await.expect("unmounted");
        // It need not be a power of two (2.4).
        let fs = make(&lab, &pool, "odd", &[("special_small_blocks", 5000), ("compression", 2)]).await;
        files.insert(("odd", write(&fs, "below", &noise(9, 4608)).await), true);
        files.insert(("odd", write(&fs, "above", &noise(10, 5120)).await), false);
        fs.unmount().await.expect("unmounted");
        // zdb of before 2.4 stops at such a limit.
        set(&pool, &format!("{POOL}/odd"), &[("special_small_blocks", 0)]).await;
        // Volumes have it as well since 2.4.
        files.insert(("below", volume(&pool, "below", 4096).await), true);
        files.insert(("above", volume(&pool, "above", 8192).await), false);
        let fs = make(&lab, &pool, "plain", &[("special_small_blocks", 0)]).await;
        files.insert(("plain", write(&fs, "tiny", &noise(6, 512)).await), false);
        fs.unmount().await.expect("unmounted");
        // The same content twice, so that tables of both kinds get entries.
        let fs = make(&lab, &pool, "dedup", &[("dedup", 8), ("checksum", 8), ("recordsize", 4096)]).await;
        for name in ["a", "b"] {
            files.insert(("dedup", write(&fs, name, &noise(7, 400 << 10)).await), false);
        }
        files.insert(("dedup", write(&fs, "unique", &noise(8, 200 << 10)).await), false);
        fs.unmount().await.expect("unmounted");
        let classes = classes(&pool);
        pool.export().await.expect("exported");
        classes
    });
    let images = lab.images();
    judged(&images, "classes");
    let reader = reader(&images);
    let (mut tables, mut seen) = (0, BTreeSet::new());
    for b in blocks(&reader) {
        let want = if is_table(&b) {
            tables += 1;
            ClassKind::Dedup
        } else if is_data(&b) {
            let set = b.set.rsplit('/').next().expect("a name");
            let Some((key, small)) = files.iter().find(|((s, o), _)| *s == set && *o == b.object) else { continue };
            seen.insert(*key);
            if *small { ClassKind::Special } else { ClassKind::Normal }
        } else {
            ClassKind::Special
        };
        for dva in b.bp.dvas() {
            assert_eq!(classes[&dva.vdev().0], want, "{} object {}: {}", b.set, b.object, b.bp);
        }
    }
    assert!(tables > 0, "there are dedup tables");
    assert_eq!(seen.len(), files.len(), "blocks of every file were seen");
}

/// Small blocks leave a quarter of the special class to metadata.
#[test]
fn small_blocks_leave_room_for_metadata() {
    static SHAPE: Shape = Shape {
        name: "special-only",
        groups: &[(GroupKind::Single, Bias::Normal, 1), (GroupKind::Single, Bias::Special, 1)],
        spares: 0,
        caches: 0,
    };
    let mut layout = layout(4101, &SHAPE);
    layout.devices = vec![256 << 20, 64 << 20];
    layout.dirty_max = 2 << 20;
    let lab = Lab::new(4101, &layout);
    lab.sim.block_on(async {
        let pool = lab.create(&layout, vec![("atime".into(), PropValue::Num(0))]).await.expect("created");
        let fs = make(&lab, &pool, "a", &[("special_small_blocks", 128 << 10), ("compression", 2)]).await;
        write(&fs, "fill", &noise(1, 100 << 20)).await;
        pool.sync().await.expect("synced");
        let (alloc, total) = pool.allocator().class_use(ClassKind::Special);
        assert!(alloc * 100 >= total * 70 && alloc * 100 <= total * 80, "{alloc} of {total}");
        assert!(pool.allocator().class_use(ClassKind::Normal).0 > 40 << 20);
        fs.unmount().await.expect("unmounted");
        pool.export().await.expect("exported");
    });
    judged(&lab.images(), "classes-full");
}

/// A special vdev so small that metadata does not fit: it overflows to the normal class, and
/// everything stays readable.
#[test]
fn metadata_overflows_to_the_normal_class() {
    static SHAPE: Shape = Shape {
        name: "special-tiny",
        groups: &[(GroupKind::Single, Bias::Normal, 1), (GroupKind::Single, Bias::Special, 1)],
        spares: 0,
        caches: 0,
    };
    let mut layout = layout(4102, &SHAPE);
    layout.devices = vec![256 << 20, 64 << 20];
    let lab = Lab::new(4102, &layout);
    let mut normal = 0;
    lab.sim.block_on(async {
        let pool = lab.create(&layout, vec![("atime".into(), PropValue::Num(0))]).await.expect("created");
        // Most of the special vdev is taken by blocks that are not freed for now.
        let special = classes(&pool).into_iter().find(|(_, c)| *c == ClassKind::Special).expect("there is one").0;
        let top = pool.tree().top(base::VdevId(special)).expect("it is there");
        let mut disabled = Vec::new();
        for ms in 0..top.ms_count() {
            disabled.push(pool.allocator().disable(top.id, ms).await.expect("disabled"));
        }
        let fs = make(&lab, &pool, "a", &[]).await;
        for n in 0..20 {
            write(&fs, &format!("file {n}"), &noise(n, 300 << 10)).await;
        }
        pool.sync().await.expect("synced");
        (0..top.ms_count()).for_each(|ms| pool.allocator().enable(top.id, ms));
        drop(disabled);
        for n in 0..20 {
            assert_eq!(read(&fs, &format!("file {n}")).await.expect("readable"), noise(n, 300 << 10));
        }
        fs.unmount().await.expect("unmounted");
        pool.export().await.expect("exported");
        normal = 1 - special;
    });
    let images = lab.images();
    judged(&images, "classes-overflow");
    let all = blocks(&reader(&images));
    let metadata = all.iter().filter(|b| !is_data(b) && b.bp.dvas().any(|d| d.vdev().0 == normal)).count();
    assert!(metadata > 5, "only {metadata} blocks of metadata on the normal vdev");
}

/// `copies` and `redundant_metadata`: how many places, how far apart; one of them damaged is mended
/// by a read, and by a scrub.
#[test]
fn copies_lie_apart_and_serve() {
    static SHAPE: Shape = Shape {
        name: "three",
        groups: &[
            (GroupKind::Single, Bias::Normal, 1),
            (GroupKind::Single, Bias::Normal, 1),
            (GroupKind::Single, Bias::Normal, 1),
        ],
        spares: 0,
        caches: 0,
    };
    let layout = layout(4103, &SHAPE);
    let lab = Lab::new(4103, &layout);
    // compression off, redundant_metadata all, most, none.
    let sets: [(&str, u64, u64); 5] = [("c1", 1, 0), ("c2", 2, 0), ("c3", 3, 0), ("most", 1, 1), ("none", 1, 3)];
    let content = |n: usize| noise(50 + n as u64, 500 << 10);
    lab.sim.block_on(async {
        let pool = lab.create(&layout, vec![("atime".into(), PropValue::Num(0))]).await.expect("created");
        for (n, (name, copies, redundant)) in sets.iter().enumerate() {
            let props =
                [("copies", *copies), ("redundant_metadata", *redundant), ("recordsize", 4096), ("compression", 2)];
            let fs = make(&lab, &pool, name, &props).await;
            write(&fs, "file", &content(n)).await;
            fs.unmount().await.expect("unmounted");
        }
        pool.export().await.expect("exported");
    });
    let before = lab.images();
    judged(&before, "copies");
    let all = blocks(&reader(&before));
    let mut spoiled = before.clone();
    for (name, copies, redundant) in sets {
        let of_set: Vec<&Block> = all.iter().filter(|b| b.set == format!("{POOL}/{name}")).collect();
        assert!(of_set.iter().filter(|b| is_data(b)).count() >= 125, "{name}");
        for b in of_set {
            let metadata = b.bp.otype().is_metadata() || b.bp.level() > 0;
            let extra = metadata
                && match redundant {
                    0 => true,
                    1 => b.bp.otype().is_metadata() || b.bp.level() >= 2,
                    _ => false,
                };
            let want = (copies + u64::from(extra)).min(3) as usize;
            assert_eq!(b.bp.ndvas(), want, "{name}: {}", b.bp);
            let vdevs: BTreeSet<u32> = b.bp.dvas().map(|d| d.vdev().0).collect();
            assert_eq!(vdevs.len(), want, "{name}: copies on one vdev: {}", b.bp);
            if name == "c2" || name == "c3" {
                let dva = b.bp.dva(0);
                let image = &mut spoiled[dva.vdev().0 as usize];
                image.corrupt(DATA + dva.offset(), b.bp.psize());
            }
        }
    }
    assert!(all.iter().filter(|b| b.set == "mos").all(|b| b.bp.ndvas() == 3), "the MOS has three copies");
    // A read mends the bad copies that it finds.
    let lab = Lab::with_images(1, spoiled.clone(), true);
    lab.sim.block_on(async {
        let pool = lab.import(false, layout.opts()).await.expect("imported");
        for (n, (name, ..)) in sets.iter().enumerate() {
            let fs = mount(&pool, &format!("{POOL}/{name}")).await;
            assert_eq!(read(&fs, "file").await.expect("readable"), content(n), "{name}");
            fs.unmount().await.expect("unmounted");
        }
        assert!(pool.zio().stats().repaired >= 250, "{:?}", pool.zio().stats());
        // A scrub finds the copies that no read met; then all is well.
        let s = scan::scrub(&pool).await.expect("scrubbed");
        assert_eq!(s.phys.errors, 0);
        scan::scrub_clean(&pool).await.expect("clean");
        pool.export().await.expect("exported");
    });
    judged(&lab.images(), "copies-read");
    // A scrub alone mends all of it.
    let lab = Lab::with_images(2, spoiled, true);
    lab.sim.block_on(async {
        let pool = lab.import(false, layout.opts()).await.expect("imported");
        let s = scan::scrub(&pool).await.expect("scrubbed");
        assert!(s.phys.errors == 0 && s.phys.processed >= 250 * 4096, "{s:?}");
        scan::scrub_clean(&pool).await.expect("clean");
        pool.export().await.expect("exported");
    });
    judged(&lab.images(), "copies-scrub");
}

/// On a single vdev copies lie an eighth of it apart while there is room.
#[test]
fn copies_on_one_vdev_lie_far_apart() {
    static SHAPE: Shape = Shape { name: "one", groups: &[(GroupKind::Single, Bias::Normal, 1)], spares: 0, caches: 0 };
    let mut layout = layout(4104, &SHAPE);
    layout.devices = vec![512 << 20];
    let lab = Lab::new(4104, &layout);
    let asize = lab.sim.block_on(async {
        let pool = lab.create(&layout, vec![("atime".into(), PropValue::Num(0))]).await.expect("created");
        let fs = make(&lab, &pool, "a", &[("copies", 1), ("compression", 2)]).await;
        set(&pool, &format!("{POOL}/a"), &[("copies", 2)]).await;
        write(&fs, "file", &noise(1, 2 << 20)).await;
        fs.unmount().await.expect("unmounted");
        let asize = pool.tree().top(base::VdevId(0)).expect("it is there").asize.get();
        pool.export().await.expect("exported");
        asize
    });
    let images = lab.images();
    judged(&images, "copies-one");
    let all = blocks(&reader(&images));
    let data: Vec<&Block> = all.iter().filter(|b| is_data(b)).collect();
    assert!(data.len() >= 16);
    for b in data {
        assert_eq!(b.bp.ndvas(), 2);
        let apart = b.bp.dva(0).offset().abs_diff(b.bp.dva(1).offset());
        assert!(apart >= asize / 8 - (40 << 20), "{apart} of {asize}: {}", b.bp);
    }
}
