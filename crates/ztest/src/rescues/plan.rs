//! Damage of which every effect is known.

use std::collections::{BTreeMap, BTreeSet};

use base::Txg;
use ondisk::blkptr::{Blkptr, Dva};
use ondisk::label::{DATA_START, LABEL_SIZE, label_offsets};
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
        Damage {
            images,
            told: Vec::new(),
            killed: BTreeSet::new(),
            unlabelled: false,
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
                let widths = Widths { children: members.len() as u64, parity: u64::from(parity), expand_txgs: &[] };
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

    fn kill_some(&mut self, what: &str, ids: &[Id], count: u64, map: &Map, rng: &mut Rng) {
        if ids.is_empty() {
            return;
        }
        self.told.push(format!("{count} of {} {what}", ids.len()));
        for _ in 0..count {
            let id = ids[rng.below(ids.len() as u64) as usize];
            if let Some(bp) = map.table.get(&id) {
                self.kill(id, bp);
            }
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
pub(super) fn deadly(d: &mut Damage, map: &Map, rng: &mut Rng, seed: u64) {
    let root: Vec<Id> = map.root.into_iter().collect();
    let kinds = 1 + rng.below(3);
    for n in 0..kinds {
        let kind = if n == 0 { seed / 12 % 8 } else { rng.below(8) };
        let fs: Vec<&super::blocks::FsMap> = map.fs.values().collect();
        let one = (!fs.is_empty()).then(|| fs[rng.below(fs.len().max(1) as u64) as usize]);
        match (kind, one) {
            (0, _) => wipe(d, false),
            (1, _) => wipe(d, true),
            (2, _) | (_, None) => d.kill_some("newest MOS", &root, 1, map, rng),
            (3, _) => {
                let all: Vec<Id> = map.config.iter().chain(&map.names).copied().collect();
                for id in all {
                    d.kill_some("blocks of configuration and names", &[id], 1, map, rng);
                }
            }
            (4, _) => {
                let count = rng.between(1, 6);
                d.kill_some("blocks of the MOS", &map.mos, count, map, rng);
            }
            (5, Some(fs)) => {
                let ids: Vec<Id> = fs.root.into_iter().collect();
                d.kill_some("object set", &ids, 1, map, rng);
            }
            (6, Some(fs)) => {
                let count = rng.between(1, 2);
                d.kill_some("dnode blocks of a file system", &fs.dnodes, count, map, rng);
            }
            _ => {
                let all: Vec<Id> = map.table.keys().copied().collect();
                let count = rng.between(1, 20);
                d.kill_some("blocks", &all, count, map, rng);
            }
        }
    }
}

/// Overwrites all labels: the configurations, or the uberblocks as well.
fn wipe(d: &mut Damage, uberblocks: bool) {
    let len = if uberblocks { LABEL_SIZE } else { LABEL_SIZE / 2 };
    for disk in 0..d.images.len() {
        for at in label_offsets(d.images[disk].size()) {
            d.overwrite(disk, at, len);
        }
    }
    d.told.push(if uberblocks { "all labels" } else { "all configurations of labels" }.into());
    d.unlabelled = true;
}
