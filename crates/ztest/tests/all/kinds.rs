//! A scrub mends blocks of every type: one side of a mirror is noise, and afterwards both sides are
//! the same wherever a pointer leads.

use std::collections::BTreeSet;
use std::rc::Rc;

use dsl::props::PropValue;
use ondisk::blkptr::Blkptr;
use ondisk::label::DATA_START;
use ondisk::object_type::ObjectType;
use sim::{DiskImage, Rng};
use spa::Pool;
use zpl::{Cred, MountOpts, Zfs};
use ztest::lab::{Lab, Layout, SHAPES};
use ztest::scan;
use ztest::surgery::Patient;

/// The types in the pool below. Blocks of intent logs and of files are checked separately.
const KINDS: [ObjectType; 17] = [
    ObjectType::OBJECT_DIRECTORY,
    ObjectType::PACKED_NVLIST,
    ObjectType::BPOBJ,
    ObjectType::SPACE_MAP,
    ObjectType::DNODE,
    ObjectType::OBJSET,
    ObjectType::DSL_DS_SNAP_MAP,
    ObjectType::DSL_PROPS,
    ObjectType::NEXT_CLONES,
    ObjectType::DEADLIST,
    ObjectType::DSL_CLONES,
    ObjectType::DDT_ZAP,
    ObjectType::DDT_STATS,
    ObjectType::SPA_HISTORY,
    ObjectType::USERGROUP_USED,
    ObjectType::DIRECTORY,
    ObjectType::SA_ATTR_LAYOUTS,
];

const ASHIFT: u8 = 9;

async fn mounted(pool: &Pool, name: &str) -> Rc<Zfs> {
    let ds = pool.dsl().find(name).unwrap();
    Zfs::open(&ds, MountOpts::from_props(&ds)).await.unwrap()
}

/// Writes files of several blocks that belong to several users; some of them twice, which dedup
/// finds.
async fn files(fs: &Zfs, tag: &str, seed: u64, count: u64) {
    for n in 0..count {
        let name = format!("{tag}{n}-{}", "x".repeat(60));
        let cred = Cred::new(1000 + n as u32, 2000 + n as u32);
        let file = fs.create(fs.root(), name.as_bytes(), 0o644, &cred, true).await.unwrap().obj;
        for part in 0..3 {
            let mut data = vec![0; 20 << 10];
            Rng::new(seed << 32 | (n % (count - 2)) << 8 | part).fill(&mut data);
            fs.write(file, part * (20 << 10), vec![bdev::Buf::copy_from(&data).freeze()], false).await.unwrap();
        }
    }
}

/// A pool with snapshots and blocks that only they have, a clone, dead blocks, dedup tables,
/// history, space by owner, a tree that is being freed, and intent logs that are never replayed.
async fn make(lab: &Lab, layout: &Layout) -> Rc<Pool> {
    let props =
        vec![("recordsize".to_string(), PropValue::Num(8 << 10)), ("compression".to_string(), PropValue::Num(2))];
    let pool = lab.create(layout, props).await.unwrap();
    let dsl = pool.dsl();
    dsl.create_fs("lab/fs", vec![("dedup".into(), PropValue::Num(1))], ztest::lab::new_fs(&lab.sim)).await.unwrap();
    for n in 0..100 {
        pool.log_command(&format!("zfs set a:b={n} lab {}", "y".repeat(100)), 0);
    }
    let fs = mounted(&pool, "lab/fs").await;
    for round in 0..4 {
        files(&fs, &format!("f{round}-"), round, 30).await;
        if round > 1 {
            // Only the snapshots have them now.
            for n in 0..30 {
                fs.unlink(fs.root(), format!("f{}-{n}-{}", round - 2, "x".repeat(60)).as_bytes()).await.unwrap();
            }
        }
        dsl.snapshot(vec![format!("lab/fs@s{round}")], false, Vec::new()).await.unwrap();
    }
    dsl.clone_snapshot("lab/fs@s1", "lab/clone", Vec::new()).await.unwrap();
    let clone = mounted(&pool, "lab/clone").await;
    files(&clone, "c", 9, 20).await;
    clone.unmount().await.unwrap();
    dsl.destroy_snapshots(vec!["lab/fs@s2".into()], false).await.unwrap();
    dsl.create_fs("lab/gone", Vec::new(), ztest::lab::new_fs(&lab.sim)).await.unwrap();
    let gone = mounted(&pool, "lab/gone").await;
    files(&gone, "g", 10, 40).await;
    gone.unmount().await.unwrap();
    dsl.set_freed_per_txg(1);
    dsl.destroy_fs("lab/gone").await.unwrap();
    pool.sync().await.unwrap();
    for n in 0..10 {
        let file = fs.create(fs.root(), format!("log{n}").as_bytes(), 0o644, &Cred::new(0, 0), true).await.unwrap().obj;
        fs.write(file, 0, vec![bdev::Buf::copy_from(&[n as u8; 5000]).freeze()], false).await.unwrap();
        fs.fsync(file).await.unwrap();
    }
    std::mem::forget(fs);
    pool
}

/// The places of a block where the sides of the mirror differ.
fn differs(images: &[DiskImage], bp: &Blkptr) -> bool {
    let side = |i: usize, at: u64| images[i].read_vec(at + DATA_START, bp.psize() as usize);
    bp.dvas().any(|dva| side(0, dva.offset()) != side(1, dva.offset()))
}

#[test]
fn a_scrub_mends_blocks_of_every_kind() {
    let mut rng = Rng::new(3400);
    let shape = SHAPES.iter().find(|s| s.name == "mirror").expect("known");
    let mut layout = Layout::draw(&mut rng, 64 << 20).shaped(shape, &mut rng);
    layout.features = ondisk::feature::features_of_2_1();
    // Small objects would have no blocks.
    layout.features.retain(|f| *f != ondisk::feature::FeatureId::EmbeddedData);
    layout.devices.fill(96 << 20);
    layout.ashift = ASHIFT;
    let lab = Lab::new(3400, &layout);
    let pool = lab.sim.block_on(make(&lab, &layout));
    lab.sim.crash();
    let mut images = lab.images();
    std::mem::forget((pool, lab));
    let mut noise = vec![0; 1 << 20];
    for at in (DATA_START..images[1].size() - (1 << 20)).step_by(noise.len()) {
        rng.fill(&mut noise);
        images[1].write(at, &noise);
    }
    let lab = Lab::with_images(3401, images, true);
    let logs = lab.sim.block_on(async {
        let pool = lab.import(false, layout.opts()).await.unwrap();
        pool.dsl().set_freed_per_txg(1);
        let s = scan::scrub(&pool).await.unwrap();
        assert!(s.phys.errors == 0 && s.phys.processed > 1 << 20, "{s:?}");
        assert!(pool.scan().damaged_blocks().await.unwrap().is_empty());
        let header = pool.dsl().find("lab/fs").unwrap().zil_header().await.unwrap();
        let logs = zil::replay::blocks_of(pool.zio(), &header).await.unwrap();
        pool.sync().await.unwrap();
        pool.export().await.unwrap();
        logs
    });
    let images = lab.images();
    // The last block of the chain was never written: the log ends where it does not verify.
    let end =
        logs.iter().rposition(|bp| bp.checksum_algo() == Some(codec::ChecksumAlgo::Zilog2)).expect("a log was left");
    assert!(end > 3, "{logs:?}");
    for bp in logs.iter().enumerate().filter(|(n, _)| *n != end).map(|(_, bp)| bp) {
        assert!(!differs(&images, bp), "log block {bp}");
    }
    let patient = Patient::open(images.clone(), ASHIFT).unwrap();
    let mut met = BTreeSet::new();
    for block in &patient.blocks {
        assert!(!differs(&images, &block.bp), "{}: {}", block.bp.otype().name(), block.bp);
        met.insert(block.bp.otype().0);
    }
    let lacking: Vec<_> = KINDS.iter().filter(|k| !met.contains(&k.0)).map(|k| k.name()).collect();
    assert!(lacking.is_empty(), "the pool has no blocks of these kinds: {lacking:?}");
    let of_files = patient.blocks.iter().filter(|b| b.bp.otype() == ObjectType::PLAIN_FILE).count();
    assert!(of_files > 500, "{of_files}");
}
