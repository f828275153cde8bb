//! Copies from a vdev that is being removed: each side of a mirror is filled from its own one.

use std::cell::Cell;
use std::rc::Rc;

use base::{ErrorKind, Guid, ObjectId, Txg, VdevId};
use bdev::{Bytes, MemDev};
use ondisk::label::DATA_START;
use ondisk::vdev_config::{VdevConfig, VdevKind as ConfigKind};
use rt::Rt;
use sim::{Sim, SimConfig};
use vdev::evacuate::{Moved, copy};
use vdev::{
    ALWAYS, DeviceFault, DirtyGauge, FaultyOps, Health, Leaf, Mirror, MirrorRole, QueueTunables, Top, TopSpec, Trouble,
    TxgSet, VdevKind,
};

const M: u64 = 1 << 20;

struct Vdev {
    disks: Vec<Rc<MemDev>>,
    leaves: Vec<Rc<Leaf>>,
    top: Rc<Top>,
}

/// A mirror of so many disks, or a single one.
fn vdev(rt: &Rt, id: u32, sides: usize) -> Vdev {
    let disks: Vec<Rc<MemDev>> = (0..sides).map(|_| Rc::new(MemDev::new(rt, 64 * M))).collect();
    let leaf = |(i, d): (usize, &Rc<MemDev>)| {
        let t = QueueTunables::default();
        Leaf::new(rt, Guid(100 + i as u64), format!("disk{i}"), d.clone(), DirtyGauge::default(), t)
    };
    let leaves: Vec<Rc<Leaf>> = disks.iter().enumerate().map(leaf).collect();
    let children: Vec<VdevKind> = leaves.iter().cloned().map(VdevKind::Leaf).collect();
    let mirror = Mirror { guid: Guid(7), role: MirrorRole::Mirror, children, errors: Cell::default() };
    let kind = if sides == 1 { VdevKind::Leaf(leaves[0].clone()) } else { VdevKind::Mirror(Rc::new(mirror)) };
    let top = Top::new(TopSpec {
        id: VdevId(id),
        ashift: 9,
        asize: 32 * M,
        ms_shift: 24,
        ms_array: ObjectId(5),
        is_log: false,
        kind,
        config: VdevConfig::new(ConfigKind::Mirror, id.into(), Guid(7)),
    });
    Vdev { disks, leaves, top }
}

/// Fills a range of a disk with a byte.
async fn fill(disk: &MemDev, at: u64, len: u64, byte: u8) {
    bdev::write(disk, DATA_START + at, Bytes::copy_from(&vec![byte; len as usize])).await.expect("written");
}

/// The byte that a range of a disk has everywhere, if there is one.
async fn byte_at(disk: &MemDev, at: u64, len: u64) -> Option<u8> {
    let data = bdev::read(disk, DATA_START + at, len as usize).await.expect("read");
    data.iter().all(|b| *b == data[0]).then(|| data[0])
}

#[test]
fn sides_are_copied_apart() {
    let sim = Sim::new(SimConfig::seeded(1));
    let rt = sim.rt();
    sim.block_on(async {
        // (Sides of the source, those that are away, of the destination; the sides it gets.)
        for (from, away, to, want) in [
            (1, None, 1, &[1][..]),
            (1, None, 3, &[1, 1, 1]),
            (2, None, 2, &[1, 2]),
            (2, None, 3, &[1, 2, 1]),
            (3, None, 2, &[1, 2]),
            (3, None, 1, &[1]),
            (2, Some(0usize), 2, &[2, 2]),
            (3, Some(1), 3, &[1, 3, 3]),
        ] {
            let (source, destination) = (vdev(&rt, 0, from), vdev(&rt, 1, to));
            for (n, disk) in (1u8..).zip(&source.disks) {
                fill(disk, 4 * M, 3 * M, n).await;
            }
            if let Some(n) = away {
                source.leaves[n].condition.set_health(Health::Faulted);
            }
            let ranges = [
                Moved { from: 4 * M, to: 9 * M, len: 512 },
                Moved { from: 4 * M + 1024, to: 9 * M + 1024, len: 2 * M + 512 },
            ];
            copy(&source.top, &destination.top, &ranges, Txg(9)).await.expect("copied");
            for (disk, want) in destination.disks.iter().zip(want) {
                for (at, len, want) in [
                    (9 * M, 512, *want),
                    (9 * M + 512, 512, 0),
                    (9 * M + 1024, 2 * M + 512, *want),
                    (11 * M + 1536, 512, 0),
                ] {
                    assert_eq!(byte_at(disk, at, len).await, Some(want), "{from} to {to}, {at}");
                }
            }
        }
    });
}

#[test]
fn a_side_that_misses_something_is_not_read() {
    let sim = Sim::new(SimConfig::seeded(2));
    let rt = sim.rt();
    sim.block_on(async {
        let (source, destination) = (vdev(&rt, 0, 2), vdev(&rt, 1, 2));
        fill(&source.disks[1], 0, M, 2).await;
        source.leaves[0].condition.miss(5, 6);
        let range = [Moved { from: 0, to: 0, len: M }];
        copy(&source.top, &destination.top, &range, Txg(9)).await.expect("copied");
        for disk in &destination.disks {
            assert_eq!(byte_at(disk, 0, M).await, Some(2));
        }
        // Not even if there is no other: what it has may be older.
        source.leaves[1].condition.miss(7, 8);
        let e = copy(&source.top, &destination.top, &range, Txg(9)).await.expect_err("both miss something");
        assert_eq!(e.kind(), ErrorKind::Io, "{e}");
        source.leaves[1].condition.set_missing(TxgSet::new());
        source.leaves.iter().for_each(|l| l.condition.set_health(Health::Offline));
        assert!(copy(&source.top, &destination.top, &range, Txg(9)).await.is_err(), "nothing can be read");
    });
}

#[test]
fn a_device_that_is_away_misses_copies_of_every_birth() {
    let sim = Sim::new(SimConfig::seeded(3));
    let rt = sim.rt();
    sim.block_on(async {
        let (source, destination) = (vdev(&rt, 0, 2), vdev(&rt, 1, 2));
        for (n, disk) in (1u8..).zip(&source.disks) {
            fill(disk, 0, M, n).await;
        }
        let range = [Moved { from: 0, to: 0, len: M }];
        destination.leaves[1].condition.set_health(Health::Offline);
        copy(&source.top, &destination.top, &range, Txg(9)).await.expect("one side takes it");
        assert_eq!(
            (byte_at(&destination.disks[0], 0, M).await, byte_at(&destination.disks[1], 0, M).await),
            (Some(1), Some(0))
        );
        let missing = |n: usize| destination.leaves[n].condition.missing().bounds();
        assert_eq!((missing(0), missing(1)), (None, Some((Txg(4), Txg(9)))));
        assert!(destination.leaves[1].condition.misses_copies());
        destination.leaves[0].condition.set_health(Health::Faulted);
        let e = copy(&source.top, &destination.top, &range, Txg(9)).await.expect_err("nobody takes it");
        assert_eq!(e.kind(), ErrorKind::Io, "{e}");
    });
}

/// A device in use that fails is an error, though the copy is made as well as it can be.
#[test]
fn a_device_that_fails_is_an_error() {
    let sim = Sim::new(SimConfig::seeded(4));
    let rt = sim.rt();
    sim.block_on(async {
        for (reads, want) in [(true, (Some(2), Some(2))), (false, (Some(1), Some(0)))] {
            let (source, destination) = (vdev(&rt, 0, 2), vdev(&rt, 1, 2));
            for (n, disk) in (1u8..).zip(&source.disks) {
                fill(disk, 0, M, n).await;
            }
            let (leaf, ops) = match reads {
                true => (&source.leaves[0], FaultyOps::Read),
                false => (&destination.leaves[1], FaultyOps::Write),
            };
            leaf.condition.faults.add(DeviceFault::new(Trouble::Refuse, ops, None, ALWAYS));
            let range = [Moved { from: 0, to: 0, len: M }];
            let e = copy(&source.top, &destination.top, &range, Txg(9)).await.expect_err("it is told");
            assert_eq!(e.kind(), ErrorKind::Io, "{e}");
            let got = (byte_at(&destination.disks[0], 0, M).await, byte_at(&destination.disks[1], 0, M).await);
            assert_eq!(got, want);
        }
    });
}
