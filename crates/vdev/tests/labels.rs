//! A device keeps a label through any failed writes and power cuts.

use std::rc::Rc;

use base::{Guid, Txg};
use bdev::{BlockDev, Bytes};
use ondisk::blkptr::Blkptr;
use ondisk::label::ConfigRegion;
use ondisk::nvlist::{NvList, NvValue};
use ondisk::uberblock::Uberblock;
use rt::Rt;
use sim::{CutStyle, DiskImage, Fault, Model, OpKind, Rng, Sim, SimConfig, SimDisk};
use vdev::labels::{self, LabelPair, LeafLabels, read_labels};
use vdev::{DirtyGauge, Leaf, QueueTunables};

const SIZE: u64 = 2 << 20;
const GUID: u64 = 77;

fn config(txg: u64) -> NvList {
    NvList::new().with("txg", NvValue::Uint64(txg)).with("guid", NvValue::Uint64(GUID))
}

fn leaf_over(rt: &Rt, dev: Rc<dyn BlockDev>) -> Rc<Leaf> {
    Leaf::new(rt, Guid(GUID), "/dev/model".into(), dev, DirtyGauge::default(), QueueTunables::default())
}

/// The labels of an image, and how many of them are whole.
fn labels_of(image: DiskImage) -> (LeafLabels, usize) {
    let sim = Sim::new(SimConfig::seeded(1));
    let disk = SimDisk::from_image(&sim.handle(), image, Model::random(), 1);
    let labels = sim.block_on(read_labels(&*disk.dev())).expect("large enough");
    let whole = labels.configs.iter().filter(|(_, c)| c.as_ref().is_ok_and(|c| c.contains("guid"))).count();
    (labels, whole)
}

/// The label part of commits, as the pool makes them; failures change nothing of the order.
async fn commit(leaf: &Rc<Leaf>, txg: u64) {
    let mut region = ConfigRegion::new(&config(txg)).expect("a small list");
    for pair in [LabelPair::First, LabelPair::Second] {
        let _ = labels::write_config(leaf, pair, &mut region).await;
        let _ = leaf.flush().await;
    }
}

/// Commits on a disk that fails some of its writes and flushes, each failed write leaving a torn
/// label; a power cut at any completion; commits on the disk that is left, and so on.
#[test]
fn a_device_always_keeps_a_label() {
    let (mut cuts, mut torn) = (0, 0);
    for seed in 0..16 {
        let mut rng = Rng::stream(seed, 0x1abe1);
        let mut image = DiskImage::zeroed(SIZE);
        for life in 0..4 {
            let sim = Sim::new(SimConfig::seeded(seed));
            let handle = sim.handle();
            let disk = SimDisk::from_image(&handle, image.clone(), Model::random(), rng.next_u64());
            let (fails, flush_fails) = (rng.below(1001), rng.below(2) * rng.below(500));
            let log = sim.block_on(async {
                let dev = disk.dev();
                if life == 0 {
                    labels::init_labels(&*dev, &config(1)).await.expect("a sound disk");
                }
                let leaf = leaf_over(&handle.rt(), dev.clone());
                leaf.note_labels(&read_labels(&*dev).await.expect("large enough"));
                disk.start_log();
                disk.fault(Fault::FailSome { kind: Some(OpKind::Write), per_mille: fails });
                disk.fault(Fault::FailSome { kind: Some(OpKind::Flush), per_mille: flush_fails });
                for txg in 2..5 {
                    commit(&leaf, txg).await;
                }
                disk.clear_faults();
                for txg in 5..7 {
                    commit(&leaf, txg).await;
                }
                disk.take_log().expect("it was started")
            });
            let (_, whole) = labels_of(disk.image());
            assert_eq!(whole, 4, "seed {seed} life {life}: labels that a sound disk takes are written again");
            let mut moments: Vec<u64> = log.completions().collect();
            moments.push(0);
            let next = rng.below(moments.len() as u64) as usize;
            for (n, moment) in moments.into_iter().enumerate() {
                let cut = log.cut_at(moment, rng.next_u64());
                let (_, whole) = labels_of(cut.clone());
                assert!(whole > 0, "seed {seed} life {life}: no label after a power cut at {moment}");
                cuts += 1;
                torn += usize::from(whole < 4);
                if n == next {
                    image = cut;
                }
            }
        }
    }
    assert!(cuts > 500 && torn > cuts / 4, "{cuts} cuts, {torn} with torn labels");
}

/// A device that grew has its last two labels elsewhere: until they are written there, the first
/// two are not overwritten at once.
#[test]
fn a_device_that_grew_keeps_a_label() {
    for seed in 0..8 {
        let sim = Sim::new(SimConfig::seeded(seed));
        let handle = sim.handle();
        let disk = SimDisk::from_image(&handle, DiskImage::zeroed(SIZE), Model::random(), seed);
        let dev = disk.dev();
        let leaf = sim.block_on(async {
            labels::init_labels(&*dev, &config(1)).await.expect("a sound disk");
            let leaf = leaf_over(&handle.rt(), dev.clone());
            disk.grow(2 * SIZE);
            dev.refresh_size().expect("it is there");
            leaf
        });
        disk.start_log();
        disk.fault(Fault::FailSome { kind: Some(OpKind::Write), per_mille: 700 });
        sim.block_on(async {
            for txg in 2..5 {
                commit(&leaf, txg).await;
            }
        });
        let log = disk.take_log().expect("it was started");
        for moment in log.completions() {
            let (_, whole) = labels_of(log.cut_at(moment, seed ^ moment));
            assert!(whole > 0, "seed {seed}: no label after a power cut at {moment}");
        }
        let (_, whole) = labels_of(disk.power_cut_with(CutStyle::KeepStable, seed));
        assert!(whole > 0, "seed {seed}: no label at the end");
    }
}

/// The labels at the new end of a device that grew have every uberblock that the first one has, and
/// nothing of what was there before.
#[test]
fn a_device_that_grew_has_all_uberblocks_in_every_label() {
    let ub = |txg| Uberblock::new(Txg(txg), 1, 2, Blkptr::hole());
    for (seed, again) in [(0, false), (1, true)] {
        let sim = Sim::new(SimConfig::seeded(seed));
        let handle = sim.handle();
        let disk = SimDisk::from_image(&handle, DiskImage::zeroed(SIZE), Model::random(), seed);
        let dev = disk.dev();
        let rings = sim.block_on(async {
            labels::init_labels(&*dev, &config(1)).await.expect("a sound disk");
            let mut leaf = leaf_over(&handle.rt(), dev.clone());
            for txg in 2..9 {
                commit(&leaf, txg).await;
                labels::write_uberblock(&leaf, 12, &ub(txg)).await.expect("a sound disk");
            }
            disk.grow(2 * SIZE);
            let garbage = Bytes::copy_from(&vec![0x5a; 512 << 10]);
            dev.refresh_size().expect("it is there");
            bdev::write(&*dev, 2 * SIZE - (512 << 10), garbage).await.expect("a sound disk");
            if again {
                leaf = leaf_over(&handle.rt(), dev.clone());
                leaf.note_labels(&read_labels(&*dev).await.expect("large enough"));
            }
            commit(&leaf, 9).await;
            labels::write_uberblock(&leaf, 12, &ub(9)).await.expect("a sound disk");
            let found = read_labels(&*dev).await.expect("large enough");
            assert!(found.damage.is_empty(), "seed {seed}: {:?}", found.damage);
            let of = |label| {
                let these = found.uberblocks.iter().filter(move |u| u.label == label);
                these.map(|u| (u.slot, u.ub.txg)).collect::<Vec<_>>()
            };
            [0, 1, 2, 3].map(of)
        });
        assert_eq!(rings[0].len(), 8, "seed {seed}");
        assert!(rings.iter().all(|r| *r == rings[0]), "seed {seed}: {rings:?}");
    }
}
