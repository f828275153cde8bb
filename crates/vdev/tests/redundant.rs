//! Mirrors, RAID-Z and dRAID: with any loss within the redundancy and any silent damage, a read
//! returns the data as written or an error.

use std::cell::Cell;
use std::rc::Rc;

use base::{Guid, ObjectId, Txg, VdevId};
use bdev::{Bytes, MemDev};
use ondisk::label::DATA_START;
use ondisk::vdev_config::{VdevConfig, VdevKind as ConfigKind};
use rt::Rt;
use rt::cost::COPY;
use sim::{Sim, SimConfig};
use vdev::geometry::Draid;
use vdev::reflow::{Reflow, limit};
use vdev::width::{Expansions, Progress};
use vdev::{
    Absent, BlockPlace, Condition, DirtyGauge, DraidNode, Dspare, Health, Leaf, Mirror, MirrorRole, Prio,
    QueueTunables, Raidz, Top, TopSpec, VdevKind, VdevTree, Verify, leaf_asize,
};

const M: u64 = 1 << 20;

#[derive(Clone, Copy, Debug)]
enum Shape {
    Mirror(usize),
    Raidz(u64, usize),
    Draid(u64, u64, u64, u64),
    /// RAID-Z whose second child is being replaced.
    Replacing(u64, usize),
}

impl Shape {
    /// Number of disks that may fail.
    fn tolerates(self) -> usize {
        match self {
            Shape::Mirror(n) => n - 1,
            Shape::Raidz(p, _) | Shape::Draid(p, ..) | Shape::Replacing(p, _) => p as usize,
        }
    }
}

const SHAPES: &[(Shape, u8)] = &[
    (Shape::Mirror(2), 12),
    (Shape::Mirror(3), 9),
    (Shape::Raidz(1, 3), 12),
    (Shape::Raidz(1, 5), 9),
    (Shape::Raidz(2, 4), 9),
    (Shape::Raidz(2, 6), 12),
    (Shape::Raidz(3, 7), 9),
    (Shape::Draid(1, 2, 5, 1), 12),
    (Shape::Draid(2, 4, 9, 1), 9),
    (Shape::Replacing(1, 4), 12),
];

struct Bench {
    rt: Rt,
    /// The leaf at each place, without a replacing node's second leaf.
    disks: Vec<Rc<MemDev>>,
    leaves: Vec<Rc<Leaf>>,
    top: Rc<Top>,
    tree: Rc<VdevTree>,
    ashift: u8,
}

fn bench(sim: &Sim, shape: Shape, ashift: u8) -> Bench {
    let rt = sim.rt();
    let size = 160 * M;
    let n = match shape {
        Shape::Mirror(n) | Shape::Raidz(_, n) => n,
        Shape::Draid(_, _, c, _) => c as usize,
        Shape::Replacing(_, n) => n + 1,
    };
    let disks: Vec<Rc<MemDev>> = (0..n).map(|_| Rc::new(MemDev::new(&rt, size))).collect();
    let leaf = |(i, d): (usize, &Rc<MemDev>)| {
        let t = QueueTunables::default();
        Leaf::new(&rt, Guid(100 + i as u64), format!("disk{i}"), d.clone(), DirtyGauge::default(), t)
    };
    let leaves: Vec<Rc<Leaf>> = disks.iter().enumerate().map(leaf).collect();
    let mut nodes: Vec<VdevKind> = leaves.iter().cloned().map(VdevKind::Leaf).collect();
    let guid = Guid(7);
    let one = leaf_asize(size);
    let (kind, asize) = match shape {
        Shape::Mirror(_) => {
            let m = Mirror { guid, role: MirrorRole::Mirror, children: nodes, errors: Cell::default() };
            (VdevKind::Mirror(Rc::new(m)), one)
        }
        Shape::Raidz(parity, n) => {
            let r = Raidz { guid, parity, children: nodes, expansions: Expansions::default(), errors: Cell::default() };
            (VdevKind::Raidz(Rc::new(r)), one * n as u64)
        }
        Shape::Replacing(parity, n) => {
            let new = nodes.pop().expect("one more");
            let children = vec![nodes[1].clone(), new];
            let r = Mirror { guid: Guid(8), role: MirrorRole::Replacing, children, errors: Cell::default() };
            nodes[1] = VdevKind::Mirror(Rc::new(r));
            let r = Raidz { guid, parity, children: nodes, expansions: Expansions::default(), errors: Cell::default() };
            (VdevKind::Raidz(Rc::new(r)), one * n as u64)
        }
        Shape::Draid(p, d, c, s) => {
            let layout = Draid::new(p, d, c, s, ashift).expect("sane");
            let asize = layout.asize_from_child(one);
            (VdevKind::Draid(Rc::new(DraidNode { guid, layout, children: nodes, errors: Cell::default() })), asize)
        }
    };
    let top = Top::new(TopSpec {
        id: VdevId(0),
        ashift,
        asize,
        ms_shift: 24,
        ms_array: ObjectId(5),
        is_log: false,
        kind,
        config: VdevConfig::new(ConfigKind::Mirror, 0, guid),
    });
    let tree = VdevTree::new(Guid(1), vec![top.clone()]);
    Bench { rt, disks, leaves, top, tree, ashift }
}

struct Block {
    offset: u64,
    txg: Txg,
    data: Vec<u8>,
}

impl Block {
    fn place(&self) -> BlockPlace {
        let psize = self.data.len() as u64;
        BlockPlace { vdev: VdevId(0), offset: self.offset, psize, birth: self.txg, written: self.txg }
    }
}

impl Bench {
    fn noise(&self, len: usize) -> Vec<u8> {
        (0..len.div_ceil(8)).flat_map(|_| self.rt.rng_below(u64::MAX).to_le_bytes()).take(len).collect()
    }

    /// Writes blocks of all sizes one after the other from `offset` on; enough devices must be
    /// open.
    async fn fill(&self, offset: u64, count: usize, txg: Txg) -> Vec<Block> {
        let unit = self.top.asize_of(512, txg);
        let mut at = offset.next_multiple_of(unit);
        let mut out = Vec::new();
        for i in 0..count {
            let sectors = 1 + self.rt.rng_below(if i % 5 == 0 { 512 } else { 24 });
            let data = self.noise(sectors as usize * 512);
            self.top.write(at, Bytes::copy_from(&data), txg, Prio::AsyncWrite).await.expect("enough devices");
            let len = data.len() as u64;
            out.push(Block { offset: at, txg, data });
            at += self.top.asize_of(len, txg);
        }
        self.tree.flush_all().await.expect("enough devices");
        out
    }

    /// Reads as the layer above does: a first read, and reconstruction if that is wrong.
    async fn read(&self, b: &Block, repair: bool) -> (bool, u64) {
        let first = self.tree.read(b.place(), Prio::SyncRead).await;
        if let Ok(first) = &first
            && first.data[..] == b.data[..]
        {
            return (true, 0);
        }
        self.look(b, repair).await
    }

    async fn look(&self, b: &Block, repair: bool) -> (bool, u64) {
        let place = b.place();
        let data = b.data.clone();
        let verify = Verify::new(COPY.cost(place.psize), move |raw| raw == &data[..]);
        let verdict =
            self.tree.arbitrate(place, Prio::Scrub, Some(&verify), repair.then_some(Prio::Scrub)).await.expect("sane");
        verdict.done.await.expect("sound disks");
        (verdict.data.is_ok_and(|d| d[..] == b.data[..]), verdict.bad)
    }

    /// Random distinct places.
    fn choose(&self, count: usize) -> Vec<usize> {
        let mut all: Vec<usize> = (0..self.leaves.len()).collect();
        while all.len() > count {
            all.remove(self.rt.rng_below(all.len() as u64) as usize);
        }
        all
    }

    fn absent(&self, i: usize) {
        let guid = self.leaves[i].guid();
        let condition = self.leaves[i].condition.clone();
        condition.set_health(Health::Unavail);
        let kind = self.top.kind().replace(guid, &|_| {
            VdevKind::Absent(Rc::new(Absent { guid, path: "gone".into(), condition: condition.clone() }))
        });
        self.top.set_kind(kind);
    }

    fn back(&self, i: usize) {
        let leaf = &self.leaves[i];
        leaf.condition.set_health(Health::Online);
        let kind = self.top.kind().replace(leaf.guid(), &|_| VdevKind::Leaf(leaf.clone()));
        self.top.set_kind(kind);
    }

    /// Random bytes over the address space of a disk.
    fn rot(&self, i: usize, upto: u64) {
        let noise = self.noise(1 << 20);
        for at in (0..upto).step_by(1 << 20) {
            self.disks[i].poke(DATA_START + at, &noise);
        }
    }
}

/// Disks that are missing, or full of noise: every block reads, and damage is repaired so that the
/// next check finds none.
#[test]
fn nothing_is_lost_within_what_the_layout_carries() {
    for (seed, &(shape, ashift)) in SHAPES.iter().enumerate() {
        let sim = Sim::new(SimConfig::seeded(seed as u64));
        let b = bench(&sim, shape, ashift);
        sim.block_on(async {
            let mut blocks = b.fill(0, 60, Txg(4)).await;
            // Across the swap of parity on RAID-Z1, and the end of a group on dRAID.
            blocks.extend(b.fill(M - 64 * 1024, 0, Txg(4)).await);
            if matches!(shape, Shape::Draid(..)) {
                let VdevKind::Draid(d) = b.top.kind() else { unreachable!("made as one") };
                let group = d.layout.unit() * ((16 * M) >> b.ashift);
                blocks.extend(b.fill(group - 9 * d.layout.unit(), 12, Txg(4)).await);
            }
            for block in &blocks {
                assert!(block.offset < b.top.asize.get());
                assert_eq!(b.look(block, false).await, (true, 0), "{shape:?}: sound");
            }
            for round in 0..4 {
                let lost = b.choose(shape.tolerates());
                lost.iter().for_each(|i| b.absent(*i));
                assert_eq!(b.top.kind().health(), Health::Degraded);
                for block in &blocks {
                    assert!(b.read(block, false).await.0, "{shape:?} without {lost:?}");
                }
                lost.iter().for_each(|i| b.back(*i));
                assert_eq!(b.top.kind().health(), Health::Online);

                let rotten = b.choose(shape.tolerates());
                rotten.iter().for_each(|i| b.rot(*i, 40 * M));
                for block in &blocks {
                    assert!(b.read(block, round % 2 == 0).await.0, "{shape:?} with noise on {rotten:?}");
                }
                // A scrub repairs the damage that no read found.
                let mut bad = 0;
                for block in &blocks {
                    let (good, found) = b.look(block, true).await;
                    assert!(good, "{shape:?} with noise on {rotten:?}");
                    bad += found;
                }
                // On dRAID a disk may have no part of these blocks.
                let draid = matches!(shape, Shape::Draid(..));
                assert!(round % 2 == 0 || bad > 0 || draid, "{shape:?}");
                for block in &blocks {
                    assert_eq!(b.look(block, false).await, (true, 0), "{shape:?}: repaired");
                }
                let counted: u64 = b.leaves.iter().map(|l| l.errors().cksum).sum();
                assert!(counted > 0 || draid);
                let VdevKind::Draid(d) = b.top.kind() else { continue };
                // OpenZFS verifies the padding of rows: a disk of noise has zeros there again.
                let stripes = blocks.iter().flat_map(|block| d.layout.map(block.offset, block.data.len() as u64));
                let columns: Vec<_> = stripes.flat_map(|stripe| stripe.data().to_vec()).collect();
                assert!(columns.iter().any(|c| c.len < c.size), "{shape:?}: no padding");
                for c in columns {
                    let mut rest = vec![1; (c.size - c.len) as usize];
                    b.disks[c.child].peek(DATA_START + c.offset + c.len, &mut rest);
                    assert!(rest.iter().all(|byte| *byte == 0), "{shape:?}: padding at {} of {}", c.offset, c.child);
                }
            }
        });
    }
}

/// More is lost than the redundancy covers: an error, never wrong data.
#[test]
fn too_much_is_an_error() {
    for (seed, &(shape, ashift)) in SHAPES.iter().enumerate() {
        let sim = Sim::new(SimConfig::seeded(50 + seed as u64));
        let b = bench(&sim, shape, ashift);
        sim.block_on(async {
            let blocks = b.fill(0, 30, Txg(4)).await;
            let all: Vec<usize> = (0..b.leaves.len()).collect();
            all.iter().for_each(|i| b.rot(*i, 40 * M));
            for block in &blocks {
                let (good, _) = b.look(block, true).await;
                assert!(!good, "{shape:?}");
            }
            all.iter().for_each(|i| b.absent(*i));
            assert_eq!(b.top.kind().health(), Health::Unavail);
            for block in &blocks {
                let e = b.tree.read(BlockPlace { psize: 512, ..block.place() }, Prio::SyncRead).await;
                assert!(e.is_err());
            }
            assert!(b.top.write(0, Bytes::zeroed(4096), Txg(4), Prio::AsyncWrite).await.is_err());
        });
    }
}

/// A device that was offline: data written meanwhile is read from the others, and a resilver writes
/// it there.
#[test]
fn who_was_away_is_asked_last_and_catches_up() {
    for (seed, &(shape, ashift)) in SHAPES.iter().enumerate() {
        let sim = Sim::new(SimConfig::seeded(100 + seed as u64));
        let b = bench(&sim, shape, ashift);
        sim.block_on(async {
            let old = b.fill(0, 20, Txg(4)).await;
            let away = b.choose(shape.tolerates());
            away.iter().for_each(|i| b.absent(*i));
            let new = b.fill(30 * M, 40, Txg(9)).await;
            for i in &away {
                b.back(*i);
                b.leaves[*i].condition.miss(9, 10);
            }
            for block in old.iter().chain(&new) {
                let first = b.tree.read(block.place(), Prio::SyncRead).await;
                assert_eq!(first.expect("enough devices").data[..], block.data[..], "{shape:?}: at the first go");
            }
            let before: u64 = b.leaves.iter().map(|l| l.errors().cksum).sum();
            for block in &new {
                assert_eq!(b.look(block, true).await, (true, 0), "{shape:?}: not an error");
            }
            assert_eq!(before, b.leaves.iter().map(|l| l.errors().cksum).sum::<u64>());
            for i in &away {
                b.leaves[*i].condition.caught_up(10);
                assert!(!b.leaves[*i].condition.misses(Txg(9)));
            }
            // Now the others may fail.
            let others: Vec<usize> = (0..b.leaves.len()).filter(|i| !away.contains(i)).collect();
            others.iter().take(shape.tolerates()).for_each(|i| b.absent(*i));
            for block in old.iter().chain(&new) {
                assert!(b.read(block, false).await.0, "{shape:?}");
            }
        });
    }
}

/// The CPU pool does the work on large blocks: no poll is charged with more than the bound, which
/// the world asserts, and the engine's thread does the smaller part.
#[test]
fn large_blocks_leave_the_engines_thread() {
    for (seed, &(shape, ashift)) in SHAPES.iter().enumerate() {
        let sim = Sim::new(SimConfig::seeded(200 + seed as u64));
        let b = bench(&sim, shape, ashift);
        sim.block_on(async {
            let data = b.noise(8 * M as usize);
            // Side by side in one task, as the copies of a block are.
            let at = [0, 40 * M].map(|at: u64| at.next_multiple_of(b.top.alloc_unit()));
            let writes = at.map(|at| b.top.write(at, Bytes::copy_from(&data), Txg(4), Prio::AsyncWrite));
            for write in writes {
                write.await.expect("enough devices");
            }
            let blocks = at.map(|offset| Block { offset, txg: Txg(4), data: data.clone() });
            let lost = b.choose(shape.tolerates());
            lost.iter().for_each(|i| b.absent(*i));
            for block in &blocks {
                assert!(b.read(block, false).await.0, "{shape:?} without {lost:?}");
            }
            lost.iter().for_each(|i| b.back(*i));
            lost.iter().for_each(|i| b.rot(*i, 60 * M));
            for block in &blocks {
                assert!(b.look(block, true).await.0, "{shape:?} with noise on {lost:?}");
                assert_eq!(b.look(block, false).await, (true, 0), "{shape:?}: repaired");
            }
        });
        let (pool, engine) = (sim.cpu_busy(), sim.engine_busy());
        assert!(pool.0 > 9 * engine.0, "{shape:?}: {pool:?} in the pool, {engine:?} on the engine's thread");
    }
}

/// A distributed spare replaces a lost disk.
#[test]
fn distributed_spares_hold_what_a_lost_disk_held() {
    let sim = Sim::new(SimConfig::seeded(7));
    let b = bench(&sim, Shape::Draid(1, 3, 7, 2), 12);
    sim.block_on(async {
        let old = b.fill(0, 40, Txg(4)).await;
        let guid = b.leaves[2].guid();
        b.absent(2);
        let with_spare = b.top.kind().replace(guid, &|lost| {
            let condition = Rc::new(Condition::default());
            condition.miss(0, 20);
            let spare = Dspare { guid: Guid(50), path: "draid1-0-0".into(), spare: 0, condition };
            let children = vec![lost.clone(), VdevKind::Dspare(Rc::new(spare))];
            VdevKind::Mirror(Rc::new(Mirror {
                guid: Guid(51),
                role: MirrorRole::Spare,
                children,
                errors: Cell::default(),
            }))
        });
        b.top.set_kind(with_spare);
        // New writes go to the spare; old data is resilvered to it.
        let new = b.fill(50 * M, 40, Txg(30)).await;
        for block in old.iter().chain(&new) {
            assert!(b.look(block, true).await.0);
        }
        for (id, condition) in b.top.kind().conditions() {
            if id == Guid(50) {
                condition.caught_up(20);
            }
        }
        // With the spare in place one more disk may fail.
        for i in [0, 5] {
            b.absent(i);
            for block in old.iter().chain(&new) {
                let first = b.tree.read(block.place(), Prio::SyncRead).await;
                assert_eq!(first.expect("the spare has it").data[..], block.data[..]);
            }
            b.back(i);
        }
    });
}

/// A RAID-Z of `n + 1` that was expanded from `n` in txg 100.
fn expanded(sim: &Sim, parity: u64, n: usize, ashift: u8) -> Bench {
    let wide = bench(sim, Shape::Raidz(parity, n + 1), ashift);
    let raidz = Raidz {
        guid: Guid(7),
        parity,
        children: wide.top.kind().children().to_vec(),
        expansions: Expansions { txgs: vec![Txg(100)], ..Expansions::default() },
        errors: Cell::default(),
    };
    wide.top.set_kind(VdevKind::Raidz(Rc::new(raidz)));
    wide
}

/// Moves the sectors up to `end` as the expansion from `narrow` to `wide` does (format page 19).
fn move_sectors(narrow: &Bench, wide: &Bench, end: u64, ashift: u8) {
    move_to(narrow, wide, DATA_START, end, ashift);
}

/// Moves them to rows that begin at device byte `base`.
fn move_to(narrow: &Bench, wide: &Bench, base: u64, end: u64, ashift: u8) {
    let mut sector = vec![0; 1 << ashift];
    for s in 0..end >> ashift {
        let place = |w: usize, base: u64| ((s % w as u64) as usize, base + ((s / w as u64) << ashift));
        let ((from, at), (to, there)) = (place(narrow.disks.len(), DATA_START), place(wide.disks.len(), base));
        narrow.disks[from].peek(at, &mut sector);
        wide.disks[to].poke(there, &sector);
    }
}

/// Blocks that were there before an expansion, whose sectors were moved as format page 19 says,
/// are read and written as before, with devices lost too; newer ones use the new child.
#[test]
fn blocks_keep_the_width_they_were_born_with() {
    for (seed, (parity, n, ashift)) in [(1u64, 3usize, 12u8), (1, 4, 9), (2, 5, 9), (3, 5, 12)].into_iter().enumerate()
    {
        let sim = Sim::new(SimConfig::seeded(300 + seed as u64));
        let narrow = bench(&sim, Shape::Raidz(parity, n), ashift);
        let wide = expanded(&sim, parity, n, ashift);
        sim.block_on(async {
            let old = narrow.fill(M - (64 << ashift), 40, Txg(99)).await;
            let end = old.last().map(|b| b.offset + narrow.top.asize_of(b.data.len() as u64, Txg(99))).expect("some");
            move_sectors(&narrow, &wide, end, ashift);
            let new = wide.fill(end, 40, Txg(100)).await;
            let bytes = |b: &Block| b.data.len() as u64;
            let asize = |birth: Txg| new.iter().map(|b| wide.top.asize_of(bytes(b), birth)).sum::<u64>();
            assert!(asize(Txg(100)) < asize(Txg(99)), "wider blocks take less parity");
            let lost = wide.choose(parity as usize);
            for round in 0..3 {
                for block in old.iter().chain(&new) {
                    let first = wide.tree.read(block.place(), Prio::SyncRead).await.expect("enough devices");
                    assert!(first.data[..] == block.data[..], "raidz{parity} of {n}, {ashift}: {:?}", block.place());
                    assert_eq!(wide.look(block, false).await, (true, 0));
                }
                // Written again a block is the same on disk: its rows, their parity, nothing else.
                let images = || {
                    let image = |d: &Rc<MemDev>| {
                        let mut bytes = vec![0; (end / n as u64 + M) as usize];
                        d.peek(DATA_START, &mut bytes);
                        bytes
                    };
                    wide.disks.iter().map(image).collect::<Vec<_>>()
                };
                let before = images();
                for block in old.iter().chain(&new) {
                    let data = Bytes::copy_from(&block.data);
                    wide.top.write(block.offset, data, block.txg, Prio::AsyncWrite).await.expect("enough devices");
                }
                assert!(images() == before, "raidz{parity} of {n}");
                match round {
                    0 => lost.iter().for_each(|i| wide.absent(*i)),
                    _ => lost.iter().for_each(|i| wide.back(*i)),
                }
            }
        });
    }
}

/// Blocks from before an expansion survive devices that return other bytes, as many as there is
/// parity: devices of now, and ones that were bad before the sectors were moved from them.
#[test]
fn blocks_older_than_an_expansion_survive_bad_devices() {
    for (seed, (parity, n)) in [(1u64, 3usize), (1, 5), (2, 5), (3, 5)].into_iter().enumerate() {
        for was_bad_before in [false, true] {
            let sim = Sim::new(SimConfig::seeded(400 + seed as u64));
            let narrow = bench(&sim, Shape::Raidz(parity, n), 9);
            let wide = expanded(&sim, parity, n, 9);
            sim.block_on(async {
                let old = narrow.fill(0, 40, Txg(99)).await;
                let end =
                    old.last().map(|b| b.offset + narrow.top.asize_of(b.data.len() as u64, Txg(99))).expect("some");
                let worlds = if was_bad_before { &narrow } else { &wide };
                let bad = worlds.choose(parity as usize);
                let spoil = || {
                    let noise = worlds.noise((end as usize / n + 4096) & !511);
                    bad.iter().for_each(|i| worlds.disks[*i].poke(DATA_START, &noise));
                };
                if was_bad_before {
                    spoil();
                }
                move_sectors(&narrow, &wide, end, 9);
                if !was_bad_before {
                    spoil();
                }
                let mut wrong = 0;
                for block in &old {
                    let (right, bad) = wide.look(block, true).await;
                    assert!(right, "raidz{parity} of {n}: {:?}", block.place());
                    assert_eq!(wide.look(block, false).await, (true, 0), "repaired");
                    wrong += bad;
                }
                assert!(wrong > 40, "{wrong} sectors were bad");
            });
        }
    }
}

/// The same while an expansion is under way: rows are at their new places, in the scratch area, at
/// their old places, and sectors of the last ones at both. Blocks that were mended are right at
/// whichever place is read next.
#[test]
fn blocks_survive_bad_devices_while_an_expansion_is_under_way() {
    for (seed, (parity, n)) in [(1u64, 3usize), (1, 5), (2, 5), (3, 5)].into_iter().enumerate() {
        for (round, (was_bad_before, in_scratch)) in
            [(false, false), (true, false), (false, true), (true, true)].into_iter().enumerate()
        {
            let sim = Sim::new(SimConfig::seeded(500 + 10 * seed as u64 + round as u64));
            let narrow = bench(&sim, Shape::Raidz(parity, n), 9);
            let wide = bench(&sim, Shape::Raidz(parity, n + 1), 9);
            sim.block_on(async {
                let old = narrow.fill(0, if parity == 3 { 12 } else { 30 }, Txg(99)).await;
                let last = old.last().expect("some");
                let end = last.offset + narrow.top.asize_of(last.data.len() as u64, Txg(99));
                let committed = (end / 2) >> 9;
                let next = if in_scratch { committed } else { limit(committed, n as u64) };
                let worlds = if was_bad_before { &narrow } else { &wide };
                let bad = worlds.choose(parity as usize);
                let spoil = || {
                    let noise = worlds.noise((end as usize / n + 4096) & !511);
                    for i in &bad {
                        worlds.disks[*i].poke(DATA_START, &noise);
                        if in_scratch {
                            worlds.disks[*i].poke(512 << 10, &noise);
                        }
                    }
                };
                if was_bad_before {
                    spoil();
                }
                let mut image = vec![0; (end as usize / n + 4096) & !511];
                for (from, to) in narrow.disks.iter().zip(&wide.disks) {
                    from.peek(DATA_START, &mut image);
                    to.poke(DATA_START, &image);
                }
                if in_scratch {
                    // The real places of what is in the scratch area are half overwritten.
                    let noise = wide.noise((committed as usize / (n + 1)) << 9);
                    wide.disks[..n].iter().for_each(|d| d.poke(DATA_START, &noise[..noise.len() / 2]));
                    move_to(&narrow, &wide, 512 << 10, committed << 9, 9);
                } else {
                    move_sectors(&narrow, &wide, next << 9, 9);
                }
                if !was_bad_before {
                    spoil();
                }
                let progress = Progress { committed: committed << 9, next: next << 9, in_scratch };
                let reflow = Reflow::new(progress);
                let raidz = Raidz {
                    guid: Guid(7),
                    parity,
                    children: wide.top.kind().children().to_vec(),
                    expansions: Expansions { reflow: Some(reflow.clone()), ..Expansions::default() },
                    errors: Cell::default(),
                };
                wide.top.set_kind(VdevKind::Raidz(Rc::new(raidz)));
                let mut wrong = 0;
                for block in &old {
                    let (right, bad) = wide.look(block, true).await;
                    assert!(right, "raidz{parity} of {n}, {progress:?}, {was_bad_before}: {:?}", block.place());
                    assert_eq!(wide.look(block, false).await, (true, 0), "repaired");
                    wrong += bad;
                }
                assert!(wrong > 20, "{wrong} sectors were bad");
                // What was copied is right at the new places, too.
                if !in_scratch {
                    reflow.set(Progress { committed: next << 9, ..progress });
                    for block in &old {
                        assert_eq!(wide.look(block, false).await, (true, 0), "repaired at both places");
                    }
                }
            });
        }
    }
}
