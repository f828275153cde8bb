//! Damage of which every effect is known.

use std::collections::{BTreeMap, BTreeSet};

use base::Txg;
use ondisk::blkptr::{Blkptr, Dva};
use ondisk::label::{DATA_START, LABEL_SIZE, RING_OFFSET, label_offsets};
use ondisk::uberblock::SLOT_SHIFT_MIN;
use sim::{DiskImage, Rng};
use spa::GroupKind;
use vdev::geometry::{Draid, Stripe};
use vdev::width::Widths;

use super::blocks::{Id, Map};
use crate::lab::Shape;

/// Images on the way to ruin.
pub(super) struct Damage {
    /// The disks.
    pub images: Vec<DiskImage>,
    /// What was done, in words.
    pub told: Vec<String>,
    /// Blocks of which nothing is left.
    pub killed: BTreeSet<Id>,
    /// Whether the layout has to be named.
    pub unlabelled: bool,
    /// The image that stands at each place.
    pub order: Vec<usize>,
    /// Whether regions are lost, with blocks in them that the map does not have.
    is_region_lost: bool,
    /// Top-level vdevs: kind and disks.
    tops: Vec<(GroupKind, Vec<usize>)>,
    /// Top-level vdevs that have no redundancy left to lose.
    spent: BTreeSet<u32>,
    /// Mirrors of which no side is whole: bytes that one side keeps at a time.
    turns: BTreeMap<u32, u64>,
    ashift: u8,
    noise: Rng,
}

/// The top-level vdevs of a shape on this many disks.
fn tops(shape: &Shape, disks: usize) -> Vec<(GroupKind, Vec<usize>)> {
    if shape.groups.is_empty() {
        return (0..disks).map(|n| (GroupKind::Single, vec![n])).collect();
    }
    let mut next = 0;
    let mut take = |n: usize| {
        next += n;
        (next - n..next).collect::<Vec<usize>>()
    };
    shape.groups.iter().map(|g| (g.0, take(g.2))).collect()
}

/// The layout of a shape as the user names it.
pub(super) fn words(shape: &Shape, disks: usize) -> Vec<String> {
    let mut out = Vec::new();
    for (kind, members) in tops(shape, disks) {
        out.push(match kind {
            GroupKind::Mirror => "mirror".to_owned(),
            GroupKind::Raidz(n) => format!("raidz{n}"),
            GroupKind::Draid { parity, data, spares, .. } => {
                let data = data.map_or(String::new(), |d| format!(":{d}d"));
                format!("draid{parity}{data}:{}c:{spares}s", members.len())
            }
            GroupKind::Single => "stripe".to_owned(),
        });
        out.extend(members.iter().map(|n| format!("disk{n}.img")));
    }
    out
}

impl Damage {
    pub fn new(images: Vec<DiskImage>, shape: &Shape, ashift: u8) -> Damage {
        let tops = tops(shape, images.len());
        let order = (0..images.len()).collect();
        Damage {
            images,
            told: Vec::new(),
            killed: BTreeSet::new(),
            unlabelled: false,
            order,
            is_region_lost: false,
            tops,
            spent: BTreeSet::new(),
            turns: BTreeMap::new(),
            ashift,
            noise: Rng::new(0x0bad),
        }
    }

    fn overwrite(&mut self, disk: usize, at: u64, len: u64) {
        let size = self.images[disk].size();
        let mut at = at.min(size);
        let end = (at + len).min(size);
        while at < end {
            let mut part = vec![0; (end - at).min(1 << 16) as usize];
            self.noise.fill(&mut part);
            self.images[disk].write(at, &part);
            at += part.len() as u64;
        }
    }

    /// The stripes of a block on RAID-Z or dRAID.
    fn stripes(&self, vdev: u32, off: u64, size: u64) -> Option<Vec<Stripe>> {
        let (kind, members) = &self.tops[vdev as usize];
        match *kind {
            GroupKind::Raidz(parity) => {
                let (children, parity) = (members.len() as u64, u64::from(parity));
                let widths = Widths { children, parity, txgs: &[], progress: None };
                Some(widths.stripes(self.ashift, off, size, Txg(0)))
            }
            GroupKind::Draid { parity, data, spares } => {
                let (c, p, s) = (members.len() as u64, u64::from(parity), u64::from(spares));
                let data = data.map_or((c - s - p).min(8), u64::from);
                Some(Draid::new(p, data, c, s, self.ashift).ok()?.map(off, size))
            }
            _ => None,
        }
    }

    /// Overwrites every copy of a block, its parity too.
    fn kill(&mut self, id: Id, bp: &Blkptr) {
        for dva in bp.dvas() {
            let (vdev, off, size) = (dva.vdev().0, dva.offset(), bp.psize());
            let members = self.tops[vdev as usize].1.clone();
            match self.stripes(vdev, off, size) {
                None => members.iter().for_each(|&d| self.overwrite(d, off + DATA_START, size)),
                Some(stripes) => {
                    for c in stripes.iter().flat_map(|s| &s.columns).filter(|c| c.size > 0) {
                        self.overwrite(members[c.child], c.offset + DATA_START, c.size);
                    }
                }
            }
        }
        self.killed.insert(id);
    }

    fn kill_id(&mut self, id: &Id, map: &Map) {
        if let Some(bp) = map.table.get(id) {
            self.kill(*id, bp);
        }
    }

    /// Notes the blocks of which no copy is left.
    fn forget(&mut self, map: &Map, is_left: &mut dyn FnMut(&Damage, &Dva, u64) -> bool) {
        for (id, bp) in &map.table {
            if !bp.dvas().any(|dva| is_left(self, &dva, bp.psize())) {
                self.killed.insert(*id);
            }
        }
    }

    /// Whether it is not known of blocks beyond the map which ones are left.
    pub fn is_vague(&self) -> bool {
        self.is_region_lost || !self.turns.is_empty()
    }

    /// The image at a place.
    pub fn image(&self, place: usize) -> &DiskImage {
        // With the layout in words each stands where it was.
        &self.images[if self.unlabelled { place } else { self.order[place] }]
    }

    fn kill_some(&mut self, what: &str, ids: &[Id], count: u64, map: &Map, rng: &mut Rng) {
        if ids.is_empty() {
            return;
        }
        self.told.push(format!("{count} of {} {what}", ids.len()));
        for _ in 0..count {
            let id = ids[rng.below(ids.len() as u64) as usize];
            self.kill_id(&id, map);
        }
    }
}

/// Damage that redundancy makes good.
pub(super) fn survivable(d: &mut Damage, map: &Map, rng: &mut Rng) {
    let count = d.tops.len();
    for top in 0..count {
        let (kind, members) = d.tops[top].clone();
        let spare = match kind {
            GroupKind::Mirror => members.len() - 1,
            GroupKind::Raidz(n) => usize::from(n),
            GroupKind::Draid { parity, .. } => usize::from(parity),
            GroupKind::Single => 0,
        };
        if spare == 0 || rng.percent(30) {
            continue;
        }
        if kind == GroupKind::Mirror && rng.percent(50) {
            // In turns: no side is good for long.
            let size = members.iter().map(|&m| d.images[m].size()).min().unwrap_or(0);
            let window = 1u64 << rng.between(13, 20);
            let mut at = DATA_START;
            while at + window < size - (1 << 20) {
                for &m in &members {
                    if m != members[((at / window) % members.len() as u64) as usize] {
                        d.overwrite(m, at, window);
                    }
                }
                at += window;
            }
            d.told.push(format!("sides of mirror {top} in turns of {window}"));
            d.spent.insert(top as u32);
            d.turns.insert(top as u32, window);
            continue;
        }
        if rng.percent(60) {
            let lost = rng.between(1, spare as u64) as usize;
            let first = rng.below(members.len() as u64) as usize;
            let gone: Vec<usize> = (0..lost).map(|i| members[(first + i) % members.len()]).collect();
            for &m in &gone {
                let size = d.images[m].size();
                d.overwrite(m, 0, size);
            }
            d.told.push(format!("disks {gone:?} of vdev {top}"));
            d.spent.insert(top as u32);
        }
    }
    columns(d, map, rng);
    // Of a block that one side has to half and another to the other half no copy is whole.
    for (id, bp) in &map.table {
        let whole = |dva: &Dva| match d.turns.get(&dva.vdev().0) {
            Some(window) => dva.offset() / window == (dva.offset() + bp.psize() - 1) / window,
            None => true,
        };
        if !bp.dvas().any(|dva| whole(&dva)) {
            d.killed.insert(*id);
        }
    }
}

/// Single sectors of blocks on vdevs that are whole: of each row as many as parity makes good.
fn columns(d: &mut Damage, map: &Map, rng: &mut Rng) {
    let sector = 1u64 << d.ashift;
    let (mut blocks, mut rows) = (0, 0);
    for bp in map.table.values().filter(|_| rng.percent(20)).copied().collect::<Vec<_>>() {
        for dva in bp.dvas().filter(|dva| !d.spent.contains(&dva.vdev().0)).collect::<Vec<_>>() {
            let Some(stripes) = d.stripes(dva.vdev().0, dva.offset(), bp.psize()) else { continue };
            let members = d.tops[dva.vdev().0 as usize].1.clone();
            for stripe in &stripes {
                // Two rows with other bad columns in each: no column but those is whole.
                let deep = stripe.columns.iter().map(|c| c.size / sector).max().unwrap_or(0);
                for r in 0..deep.min(2) {
                    if !rng.percent(70) {
                        continue;
                    }
                    let first = rng.below(stripe.columns.len() as u64) as usize;
                    for i in 0..stripe.parity {
                        let c = stripe.columns[(first + i) % stripe.columns.len()];
                        if c.size > r * sector {
                            d.overwrite(members[c.child], c.offset + DATA_START + r * sector, sector);
                        }
                    }
                    rows += 1;
                }
            }
            blocks += 1;
        }
    }
    if rows > 0 {
        d.told.push(format!("{rows} rows of {blocks} blocks"));
    }
}

/// Damage that nothing makes good.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Deadly {
    /// The configurations in all labels: the layout has to be named.
    Configs,
    /// All labels, with their uberblocks.
    Labels,
    /// The rings of uberblocks in all labels.
    Ring,
    /// The newest slots of the rings.
    Slots,
    /// The newest MOS.
    Root,
    /// The configuration object and the names of datasets.
    Names,
    /// All dnodes of the newest MOS.
    Dnodes,
    /// Some of them.
    SomeDnodes,
    /// The object directory.
    Directory,
    /// Dnodes with the directories and datasets of the DSL.
    Dsl,
    /// A top-level vdev, or more devices of the only one than its redundancy can do without.
    Devices,
    /// Devices are cut off.
    Short,
    /// The object set of a file system.
    Objset,
    /// Dnodes of a file system.
    Files,
    /// Folders of a file system.
    Folders,
    /// Indirect blocks.
    Indirect,
    /// Any blocks.
    Blocks,
    /// Devices stand in other places.
    Swap,
}

/// What may stop an import; each seed begins with the next one.
const FIRST: [Deadly; 12] = [
    Deadly::Configs,
    Deadly::Labels,
    Deadly::Ring,
    Deadly::Root,
    Deadly::Names,
    Deadly::Dnodes,
    Deadly::SomeDnodes,
    Deadly::Directory,
    Deadly::Dsl,
    Deadly::Devices,
    Deadly::Short,
    Deadly::Slots,
];
/// What is done besides.
const BESIDE: [Deadly; 6] =
    [Deadly::Objset, Deadly::Files, Deadly::Folders, Deadly::Indirect, Deadly::Blocks, Deadly::Swap];
/// Kinds that are added while the pool still imports.
const MORE: [Deadly; 4] = [Deadly::Dnodes, Deadly::Ring, Deadly::Configs, Deadly::Labels];

/// Ruins a pool until it `imports` no more.
pub(super) fn deadly(d: &mut Damage, map: &Map, rng: &mut Rng, turn: u64, imports: &mut dyn FnMut(&Damage) -> bool) {
    let mut kinds = vec![FIRST[turn as usize % FIRST.len()]];
    for _ in 0..rng.below(3) {
        kinds.push(BESIDE[rng.below(BESIDE.len() as u64) as usize]);
    }
    apply(d, map, rng, &kinds);
    let skip = rng.below(MORE.len() as u64) as usize;
    for kind in MORE.iter().cycle().skip(skip).take(MORE.len()) {
        if !imports(d) {
            return;
        }
        apply(d, map, rng, &[*kind]);
    }
}

/// Does these kinds of damage.
pub(super) fn apply(d: &mut Damage, map: &Map, rng: &mut Rng, kinds: &[Deadly]) {
    let root: Vec<Id> = map.root.into_iter().collect();
    let all = |d: &mut Damage, what: &str, ids: &[Id]| {
        d.told.push(format!("all {} {what}", ids.len()));
        ids.iter().for_each(|id| d.kill_id(id, map));
    };
    for kind in kinds {
        let fs: Vec<&super::blocks::FsMap> = map.fs.values().collect();
        let one = (!fs.is_empty()).then(|| fs[rng.below(fs.len().max(1) as u64) as usize]);
        match (kind, one) {
            (Deadly::Configs, _) => wipe(d, "configurations of all labels", (0, RING_OFFSET), true),
            (Deadly::Labels, _) => wipe(d, "all labels", (0, LABEL_SIZE), true),
            (Deadly::Ring, _) => wipe(d, "all rings of uberblocks", (RING_OFFSET, LABEL_SIZE), false),
            (Deadly::Slots, _) => slots(d, rng.between(1, 3)),
            (Deadly::Devices, _) => devices(d, map, rng),
            (Deadly::Short, _) => short(d, map, rng),
            (Deadly::Swap, _) => swap(d, rng),
            (Deadly::Root, _) | (_, None) => all(d, "newest MOS", &root),
            (Deadly::Names, _) => {
                all(d, "blocks of configuration and names", &[&map.config[..], &map.names].concat());
            }
            (Deadly::Dnodes, _) => all(d, "blocks of dnodes of the MOS", &map.mos),
            (Deadly::SomeDnodes, _) => {
                d.kill_some("blocks of dnodes of the MOS", &map.mos, rng.between(1, 6), map, rng)
            }
            (Deadly::Directory, _) => all(d, "blocks of the object directory", &map.directory),
            (Deadly::Dsl, _) => all(d, "blocks that lead to the DSL", &map.dsl),
            (Deadly::Objset, Some(fs)) => all(d, "object set", &fs.root.into_iter().collect::<Vec<Id>>()),
            (Deadly::Files, Some(fs)) => {
                d.kill_some("dnode blocks of a file system", &fs.dnodes, rng.between(1, 2), map, rng);
            }
            (Deadly::Folders, Some(fs)) => d.kill_some("blocks of folders", &fs.folders, rng.between(1, 3), map, rng),
            (Deadly::Indirect, _) => {
                let ids: Vec<Id> = map.table.iter().filter(|(_, bp)| bp.level() > 0).map(|(id, _)| *id).collect();
                d.kill_some("indirect blocks", &ids, rng.between(1, 4), map, rng);
            }
            (Deadly::Blocks, _) => {
                let ids: Vec<Id> = map.table.keys().copied().collect();
                d.kill_some("blocks", &ids, rng.between(1, 20), map, rng);
            }
        }
    }
}

/// Overwrites a part of all labels.
fn wipe(d: &mut Damage, what: &str, (from, to): (u64, u64), unlabelled: bool) {
    for disk in 0..d.images.len() {
        for at in label_offsets(d.images[disk].size()) {
            d.overwrite(disk, at + from, to - from);
        }
    }
    d.told.push(what.into());
    d.unlabelled |= unlabelled;
}

/// Overwrites the slots with the newest uberblocks wherever they are.
fn slots(d: &mut Damage, count: u64) {
    let slot = 1u64 << u64::from(d.ashift).max(SLOT_SHIFT_MIN);
    let rings: Vec<_> = d.images.iter().enumerate().map(|(n, image)| super::labeled(n, image).ring).collect();
    let good = rings.iter().flatten().filter_map(|e| Some((e, e.ub.as_ref().ok()?.txg.0)));
    let newest = good.map(|(_, txg)| txg).max().unwrap_or(0);
    for (disk, ring) in rings.iter().enumerate() {
        let offsets = label_offsets(d.images[disk].size());
        for e in ring.iter().filter(|e| e.ub.as_ref().is_ok_and(|ub| ub.txg.0 + count > newest)) {
            d.overwrite(disk, offsets[e.label] + RING_OFFSET + e.slot * slot, slot);
        }
    }
    d.told.push(format!("uberblocks of the newest {count} txgs"));
}

/// Overwrites more devices than the pool can do without.
fn devices(d: &mut Damage, map: &Map, rng: &mut Rng) {
    let vdevs: BTreeSet<u32> = map.table.keys().map(|id| id.0).collect();
    let top = rng.below(d.tops.len() as u64) as u32;
    let (kind, members) = d.tops[top as usize].clone();
    let lost = match kind {
        GroupKind::Raidz(n) => usize::from(n) + 1,
        GroupKind::Draid { parity, .. } => usize::from(parity) + 1,
        GroupKind::Mirror | GroupKind::Single => members.len(),
    };
    for &m in &members[..lost] {
        let size = d.images[m].size();
        d.overwrite(m, 0, size);
    }
    d.told.push(format!("{lost} devices of vdev {top} of {}", vdevs.len()));
    d.is_region_lost = true;
    d.forget(map, &mut |_, dva, _| dva.vdev().0 != top);
}

/// Cuts devices off.
fn short(d: &mut Damage, map: &Map, rng: &mut Rng) {
    for image in &mut d.images {
        let size = image.size();
        image.resize((size * rng.between(30, 95) / 100) & !4095);
    }
    d.told.push(format!("devices cut off at {:?}", d.images.iter().map(DiskImage::size).collect::<Vec<_>>()));
    d.is_region_lost = true;
    d.forget(map, &mut |d, dva, size| {
        let (vdev, members) = (dva.vdev().0, &d.tops[dva.vdev().0 as usize].1);
        let has = |m: &usize, off: u64, len: u64| off + len + DATA_START <= d.images[*m].size();
        match d.stripes(vdev, dva.offset(), size) {
            Some(stripes) => stripes.iter().flat_map(|s| &s.columns).all(|c| has(&members[c.child], c.offset, c.size)),
            // Which side is good is not kept.
            None if d.spent.contains(&vdev) => members.iter().all(|m| has(m, dva.offset(), size)),
            None => members.iter().any(|m| has(m, dva.offset(), size)),
        }
    });
}

/// Puts devices into other places; where no label is left they have to stand right.
fn swap(d: &mut Damage, rng: &mut Rng) {
    if d.unlabelled {
        return;
    }
    let n = d.order.len();
    for i in (1..n).rev() {
        d.order.swap(i, rng.below(i as u64 + 1) as usize);
    }
    d.told.push(format!("devices in the order {:?}", d.order));
}
