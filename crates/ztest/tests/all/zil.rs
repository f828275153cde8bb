//! Intent logs. The long profile: `ztest --campaign --cuts 1000000 --seed 0`.

use std::path::Path;
use std::rc::Rc;

use ondisk::bytes::put_le64;
use ondisk::zil::{Record, records};
use ondisk::zil_record::Op;
use sim::DiskImage;
use spa::{EngineOpts, ImportOpts, Pool};
use zdb::device::{Device, Labeled, ReadAt};
use zdb::{CheckOpts, PoolReader};
use zil::chain::Walk;
use zpl::{MountOpts, Zfs};
use ztest::lab::Lab;
use ztest::zilcuts::{Cutting, ZilTally, cut_seed};

#[path = "../../../zvol/tests/common/archive.rs"]
#[allow(clippy::unwrap_used, dead_code)]
mod archive;

struct Image(DiskImage);

impl ReadAt for Image {
    fn read_at(&self, off: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.0.read(off, buf);
        Ok(())
    }
}

/// The disks of the pool that OpenZFS left with logs when its power failed.
fn images() -> Vec<DiskImage> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/pools/zil.tar.zst");
    let disks = archive::unpack(&path).into_iter().filter(|(name, _)| name.ends_with(".img"));
    disks
        .map(|(_, file)| {
            let mut image = DiskImage::zeroed(file.size);
            file.parts.iter().for_each(|(at, part)| image.write(*at, part));
            image
        })
        .collect()
}

async fn import(lab: &Lab, readonly: bool) -> Rc<Pool> {
    let mut found = spa::scan(lab.disks.iter().map(|d| d.dev()).collect()).await;
    let import = ImportOpts { readonly, force: true, ..ImportOpts::default() };
    Pool::import(lab.sim.rt(), found.remove(0), import, EngineOpts::for_memory(1 << 30)).await.expect("imports")
}

/// Whether a record is what we would have written.
fn same(record: &Record<'_>) -> bool {
    let op = Op::parse(record).expect("records of OpenZFS are understood");
    let Ok(mut ours) = op.encode() else { return false };
    put_le64(&mut ours, 16, record.txg.0);
    put_le64(&mut ours, 24, record.seq);
    // What stands behind the last name up to a multiple of 8 means nothing.
    ours.len() == record.bytes.len() && ours[..ours.len() - 7] == record.bytes[..ours.len() - 7]
}

#[test]
fn records_of_openzfs_are_what_ours_are() {
    let lab = Lab::with_images(1, images(), false);
    let count = lab.sim.block_on(async {
        let pool = import(&lab, true).await;
        let mut count = std::collections::BTreeMap::new();
        for ds in pool.dsl().all() {
            let header = ds.zil_header().await.expect("a header");
            let mut walk = Walk::new(header.log);
            while let Some(step) = walk.step(pool.zio()).await.expect("readable") {
                let Some(block) = step.block else { break };
                for record in records(&block.bytes, block.chain.records) {
                    let record = record.expect("records are whole");
                    assert!(same(&record), "record {} of type {} of {}", record.seq, record.txtype, ds.name());
                    *count.entry(record.txtype).or_insert(0) += 1;
                }
            }
        }
        count
    });
    assert!(count.len() >= 8 && count.values().sum::<u64>() > 500, "{count:?}");
}

#[test]
fn replayed_pools_are_whole() {
    let lab = Lab::with_images(2, images(), true);
    lab.sim.block_on(async {
        let pool = import(&lab, false).await;
        let mut applied = 0;
        for ds in pool.dsl().all() {
            // The volume keeps its log until somebody opens it.
            let Ok(fs) = Zfs::open(&ds, MountOpts::from_props(&ds)).await else { continue };
            let done = fs.replayed();
            assert!(done.failed.is_none(), "{done:?}");
            applied += done.applied;
            fs.unmount().await.expect("unmounted");
        }
        assert!(applied > 500, "{applied}");
        pool.export().await.expect("exported");
    });
    let labeled = lab
        .images()
        .into_iter()
        .map(|image| Labeled::scan(Rc::new(Device::over(Path::new("image"), image.size(), Box::new(Image(image))))));
    let reader = PoolReader::from_devices(labeled.collect(), &zdb::OpenOpts::default()).expect("a pool");
    let report = zdb::check(&reader, &CheckOpts::default(), &mut |_| {});
    assert!(report.errors.is_empty() && report.leaked == 0, "{:?}", report.errors);
}

#[test]
fn nothing_acknowledged_is_lost() {
    let mut all = ZilTally::default();
    for seed in 0..5 {
        let how = Cutting { steps: 10, repeats: 1, every: 12, second: 9, zdb: 0 };
        let (tally, faults) = cut_seed(seed, how);
        assert!(tally.is_good(), "{tally:?}\n{}", faults.join("\n"));
        all.add(tally);
    }
    assert!(all.cuts > 30 && all.replayed > 5 && all.acks > 20, "{all:?}");
}

#[test]
fn zdb_finds_nothing_after_replay() {
    if !ztest::judge::has_zdb() {
        eprintln!("NOT JUDGED: zdb is missing (zfsutils-linux)");
        return;
    }
    let how = Cutting { steps: 10, repeats: 1, every: 40, second: 0, zdb: 2 };
    let (tally, faults) = cut_seed(11, how);
    assert!(tally.is_good() && tally.zdb > 0, "{tally:?}\n{}", faults.join("\n"));
}
