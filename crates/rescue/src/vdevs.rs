//! Devices and redundancy: every content that a range of a top-level vdev may have.
//!
//! A block is known only by its checksum, so reading means proposing contents until one has it. The
//! caller gives the test (`accept`), and [`Vdevs::read`] proposes, the likeliest first:
//!
//! 1. the range as each side of a mirror has it, or the data columns of RAID-Z as they are;
//! 2. on RAID-Z and dRAID, every set of at most as many columns as there is parity taken for lost
//!    and computed from the others;
//! 3. *sector by sector*: a range whose sides are all damaged, but at different sectors, is put
//!    together from the good sectors. On RAID-Z each row of sectors is solved by itself, since
//!    parity holds row by row. A row that agrees with its parity is taken as it is. Larger parts
//!    than a sector come first.
//!
//! While a RAID-Z is being expanded a block is where it was, where it goes, or in part there; all
//! are looked at. The search for the right content among the possible ones is in [`crate::solve`].
//!
//! Words: a *side* is what one device has of a range, with a mark at each sector that could not be
//! read. A *unit* is a part of a range with its possible contents.
//!
//! Invariants: at most [`TRIES_MAX`] contents are proposed for a range in each of these ways, and
//! for each size of the parts in the last one; nothing is ever written.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Error, Guid, Result, Txg};
use ondisk::indirect::{MappingEntry, remap};
use ondisk::label::DATA_START;
use ondisk::vdev_config::{VdevConfig, VdevKind};
use vdev::geometry::{self, Draid, Stripe, raidz_rows};
use vdev::width::Widths;
use zdb::device::Device;

use crate::solve::{Row, Side, Tries, Unit, parts, row_choices, sets};

/// Most contents that are proposed for one range in one way.
pub const TRIES_MAX: usize = 4096;
/// Removed vdevs may map into removed vdevs; no pool has this many in a row.
const REMAPS_MAX: u32 = 64;
/// Widest RAID-Z (`VDEV_RAIDZ_MAX_PARITY` and one byte of column numbers).
const COLUMNS_MAX: usize = 255;
/// Rows of the largest block that is looked for moved in part.
const ROWS_CUT_MAX: usize = 64;
/// Highest rows that are solved by themselves: the physical sector of today's disks.
const ROW_HEIGHT_MAX: usize = 4096;
/// More than any top-level vdev has: sums of offsets below it cannot overflow.
const ASIZE_MAX: u64 = 1 << 60;
/// Bytes that are read at once while devices are read from end to end.
const WINDOW: u64 = 512 << 10;

/// Devices by the guid of their leaf; several when there are copies of one.
pub type Devices = BTreeMap<Guid, Vec<Rc<Device>>>;

/// One device, with the last window that was read ahead.
struct Leaf {
    devices: Vec<Rc<Device>>,
    window: RefCell<Vec<(usize, u64, Vec<u8>)>>,
}

enum Node {
    Leaf(Leaf),
    Mirror(Vec<Node>),
    Raidz {
        parity: u64,
        /// Of the expansions that ended.
        txgs: Vec<Txg>,
        /// Sectors are being moved to one more child, the last one.
        expanding: bool,
        children: Vec<Node>,
    },
    Draid {
        layout: Box<Draid>,
        children: Vec<Node>,
    },
    /// A distributed spare: the number of its draid's spare.
    Dspare(u64),
    Indirect(OnceCell<Vec<MappingEntry>>),
}

/// A top-level vdev.
pub struct Top {
    /// log2 of the sector size.
    pub ashift: u8,
    /// Allocatable bytes.
    pub asize: u64,
    node: Node,
}

impl Top {
    /// Bytes of the headers of gang blocks here (format page 17 section 6).
    pub fn gang_header(&self) -> usize {
        match &self.node {
            Node::Draid { layout, .. } => (layout.unit_data() as usize).min(ondisk::gang::GANG_HEADER_MAX),
            _ => 1 << self.ashift.clamp(9, 16),
        }
    }
}

/// All top-level vdevs of a pool.
pub struct Vdevs {
    /// By their number.
    pub tops: Vec<Option<Top>>,
    /// Whether devices are read from end to end.
    pub streaming: Cell<bool>,
}

/// What a draid's children have in common with its distributed spares.
type Spares<'a> = Option<(&'a Draid, &'a [Node])>;

fn node(cfg: &VdevConfig, devices: &Devices, ashift: u8) -> Result<Node> {
    let children = || cfg.children.iter().map(|c| node(c, devices, ashift)).collect::<Result<Vec<Node>>>();
    Ok(match cfg.kind {
        VdevKind::Disk | VdevKind::File => {
            let devices = devices.get(&cfg.guid).cloned().unwrap_or_default();
            Node::Leaf(Leaf { devices, window: RefCell::default() })
        }
        VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare => Node::Mirror(children()?),
        VdevKind::Raidz => {
            let (n, parity) = (cfg.children.len(), cfg.nparity.unwrap_or(1));
            if !(1..=3).contains(&parity) || n as u64 <= parity || n > COLUMNS_MAX {
                return Err(Error::corrupt(format!("raidz of {n} devices with parity {parity}")));
            }
            let (txgs, expanding) = (cfg.raidz_expand_txgs.clone(), cfg.raidz_expanding);
            if (txgs.len() + usize::from(expanding)) as u64 >= n as u64 - parity || !txgs.is_sorted() {
                return Err(Error::corrupt(format!("raidz of {n} devices that was expanded {} times", txgs.len())));
            }
            Node::Raidz { parity, txgs, expanding, children: children()? }
        }
        VdevKind::Draid => Node::Draid { layout: Box::new(Draid::from_config(cfg, ashift)?), children: children()? },
        VdevKind::Dspare => Node::Dspare(cfg.dspare_id.unwrap_or(u64::MAX)),
        VdevKind::Indirect => Node::Indirect(OnceCell::new()),
        // A place without a device.
        VdevKind::Hole | VdevKind::Missing => Node::Leaf(Leaf { devices: Vec::new(), window: RefCell::default() }),
        ref other => return Err(Error::unsupported(format!("vdevs of type {other} are not known"))),
    })
}

impl Leaf {
    /// The range as each copy of the device has it.
    fn sides(&self, off: u64, len: usize, sector: usize, streaming: bool, out: &mut Vec<Side>) {
        let Some(at) = off.checked_add(DATA_START) else { return };
        for (n, device) in self.devices.iter().enumerate() {
            if streaming && self.windowed(n, device, at, len, out) {
                continue;
            }
            if let Ok(bytes) = device.read(at, len) {
                keep(out, Side { bytes, bad: Vec::new() });
                continue;
            }
            // Some sectors may be readable all the same.
            let mut side = Side { bytes: vec![0; len], bad: Vec::new() };
            let mut good = false;
            for (i, part) in side.bytes.chunks_mut(sector).enumerate() {
                let ok = device.read_at(at + (i * sector) as u64, part).is_ok();
                side.bad.push(!ok);
                good |= ok;
            }
            if good {
                keep(out, side);
            }
        }
    }

    /// The same from a window of the device that is kept for the next range; false if the window
    /// cannot be read.
    fn windowed(&self, n: usize, device: &Device, at: u64, len: usize, out: &mut Vec<Side>) -> bool {
        let mut windows = self.window.borrow_mut();
        let hit =
            windows.iter().find(|(d, from, w)| *d == n && *from <= at && at + len as u64 <= *from + w.len() as u64);
        let cut = |from: u64, w: &[u8]| w[(at - from) as usize..(at - from) as usize + len].to_vec();
        let found = match hit {
            Some((_, from, w)) => Some(cut(*from, w)),
            None => {
                let want = WINDOW.max(len as u64).min(device.size.saturating_sub(at));
                match device.read(at, want as usize) {
                    Ok(w) if w.len() >= len => {
                        let bytes = cut(at, &w);
                        windows.retain(|(d, ..)| *d != n);
                        windows.push((n, at, w));
                        Some(bytes)
                    }
                    _ => None,
                }
            }
        };
        match found {
            Some(bytes) => {
                keep(out, Side { bytes, bad: Vec::new() });
                true
            }
            None => false,
        }
    }
}

/// Adds a side unless it is there.
fn keep(out: &mut Vec<Side>, side: Side) {
    if !out.contains(&side) {
        out.push(side);
    }
}

/// A stripe and what devices have of its columns.
struct StripeSides<'a> {
    stripe: &'a Stripe,
    columns: Vec<Vec<Side>>,
}

impl StripeSides<'_> {
    fn len(&self, c: usize) -> usize {
        if c < self.stripe.parity { self.stripe.data_len_max() as usize } else { self.stripe.columns[c].len as usize }
    }
    fn whole(&self) -> Row<'_> {
        let lens: Vec<usize> = (0..self.columns.len()).map(|c| self.len(c)).collect();
        let columns = self.columns.iter().zip(&lens).map(|(sides, len)| match len {
            0 => vec![&[][..]],
            _ => sides.iter().filter(|s| s.is_whole()).map(|s| &s.bytes[..]).collect(),
        });
        Row { parity: self.stripe.parity, columns: columns.collect(), lens }
    }
    /// Row `r` of those that are `height` bytes high, a multiple of the sector size.
    fn row(&self, r: usize, height: usize, sector: usize) -> Row<'_> {
        let cut = |len: usize| (r * height).min(len)..((r + 1) * height).min(len);
        let sectors = r * height / sector..(r + 1) * height / sector;
        let lens: Vec<usize> = (0..self.columns.len()).map(|c| cut(self.len(c)).len()).collect();
        let columns = self.columns.iter().enumerate().map(|(c, sides)| {
            let range = cut(self.len(c));
            if range.is_empty() {
                return vec![&[][..]];
            }
            let mut out: Vec<&[u8]> = Vec::new();
            for side in sides.iter().filter(|s| s.has(sectors.clone())) {
                let part = &side.bytes[range.clone()];
                if !out.contains(&part) {
                    out.push(part);
                }
            }
            out
        });
        Row { parity: self.stripe.parity, columns: columns.collect(), lens }
    }
    fn rows(&self, height: usize) -> usize {
        (self.stripe.data_len_max() as usize).div_ceil(height)
    }
    /// Puts data columns, or row `r` of them, into their places.
    fn places(&self, r: Option<(usize, usize)>) -> Vec<(usize, usize)> {
        let (r, sector) = r.unwrap_or((0, usize::MAX));
        let part = |len: usize| (r.saturating_mul(sector)).min(len)..((r + 1).saturating_mul(sector)).min(len);
        let data = self.stripe.data().iter();
        data.map(|c| {
            let range = part(c.len as usize);
            (c.from as usize + range.start, range.len())
        })
        .collect()
    }
}

impl Top {
    /// The top-level vdev of a configuration on these devices. Error: a layout that cannot be.
    pub fn build(cfg: &VdevConfig, devices: &Devices) -> Result<Top> {
        let ashift = match cfg.ashift.unwrap_or(0) {
            0 => 9,
            a @ 9..=16 => a as u8,
            a => return Err(Error::corrupt(format!("vdev {}: ashift {a}", cfg.id))),
        };
        let node = node(cfg, devices, ashift)?;
        // A configuration may be older than the last growth of its devices.
        let asize = cfg.asize.unwrap_or(0).max(Top::guess_asize(&node)).min(ASIZE_MAX);
        Ok(Top { ashift, asize, node })
    }

    /// Allocatable bytes as far as devices tell.
    fn guess_asize(node: &Node) -> u64 {
        let each = |children: &[Node]| children.iter().map(Top::guess_asize).max().unwrap_or(0);
        match node {
            // To the end of the device: of one that was cut off the last labels are gone.
            Node::Leaf(l) => l.devices.iter().map(|d| d.size.saturating_sub(DATA_START)).max().unwrap_or(0),
            Node::Mirror(children) => each(children),
            Node::Raidz { children, .. } => each(children).saturating_mul(children.len() as u64),
            Node::Draid { layout, children } => layout.asize_from_child(each(children)),
            Node::Dspare(_) | Node::Indirect(_) => 0,
        }
    }

    /// Whether blocks lie on its devices.
    pub fn is_concrete(&self) -> bool {
        !matches!(self.node, Node::Indirect(_))
    }
    /// The place for the mapping of a removed vdev; `None` of any other.
    pub fn mapping(&self) -> Option<&OnceCell<Vec<MappingEntry>>> {
        if let Node::Indirect(m) = &self.node { Some(m) } else { None }
    }

    /// Bytes of a sector.
    pub fn sector(&self) -> usize {
        1 << self.ashift
    }
    /// Bytes between places where blocks may begin.
    pub fn step(&self) -> u64 {
        if let Node::Draid { layout, .. } = &self.node { layout.unit() } else { 1 << self.ashift }
    }

    /// Whether blocks are cut into columns.
    pub fn is_striped(&self) -> bool {
        !self.layouts(0, 1 << self.ashift, Txg(u64::MAX)).is_empty()
    }
    /// The ways in which a range may lie on RAID-Z or dRAID; several while it is being expanded.
    /// None on any other vdev.
    fn layouts(&self, off: u64, size: usize, birth: Txg) -> Vec<Vec<Stripe>> {
        let size = size as u64;
        match &self.node {
            Node::Raidz { parity, txgs, expanding, children } => {
                let count = children.len() as u64 - u64::from(*expanding);
                let widths = Widths { children: count, parity: *parity, txgs, progress: None };
                let mut out = vec![widths.stripes(self.ashift, off, size, birth)];
                if *expanding {
                    let moved =
                        raidz_rows(off, size, self.ashift, widths.at(birth), |_| geometry::Row::over(count + 1));
                    let still = raidz_rows(off, size, self.ashift, widths.at(birth), |_| geometry::Row::over(count));
                    out.push(moved.clone());
                    // One block may be moved in part: rows from the first on.
                    let rows = if moved.len() <= ROWS_CUT_MAX { moved.len() } else { 0 };
                    out.extend((1..rows).map(|k| [&moved[..k], &still[k..]].concat()));
                }
                out
            }
            Node::Draid { layout, .. } => vec![layout.map(off, size)],
            _ => Vec::new(),
        }
    }
    fn children(&self) -> &[Node] {
        match &self.node {
            Node::Raidz { children, .. } | Node::Draid { children, .. } => children,
            _ => &[],
        }
    }
    fn spares(&self) -> Spares<'_> {
        if let Node::Draid { layout, children } = &self.node { Some((layout, children)) } else { None }
    }
}

impl Vdevs {
    /// Over these top-level vdevs.
    pub fn new(tops: Vec<Option<Top>>) -> Vdevs {
        Vdevs { tops, streaming: Cell::new(false) }
    }
    /// Top-level vdev `id`.
    pub fn top(&self, id: u32) -> Option<&Top> {
        self.tops.get(id as usize).and_then(Option::as_ref)
    }
    /// Allocatable bytes of each, 0 where there is none.
    pub fn sizes(&self) -> Vec<u64> {
        self.tops.iter().map(|t| t.as_ref().map_or(0, |t| t.asize)).collect()
    }

    /// Every side of a range of a node.
    fn sides(&self, node: &Node, spares: Spares<'_>, off: u64, len: usize, sector: usize, out: &mut Vec<Side>) {
        match node {
            Node::Leaf(leaf) => leaf.sides(off, len, sector, self.streaming.get(), out),
            Node::Mirror(children) => children.iter().for_each(|c| self.sides(c, spares, off, len, sector, out)),
            Node::Dspare(k) => {
                // A spare's space lies on another child; spares of spares do not exist.
                if let Some((layout, children)) = spares
                    && let Some(child) = layout.spare_child(*k, off).and_then(|c| children.get(c))
                {
                    self.sides(child, None, off, len, sector, out);
                }
            }
            Node::Raidz { .. } | Node::Draid { .. } | Node::Indirect(_) => {}
        }
    }

    fn columns<'a>(&self, top: &Top, stripe: &'a Stripe, parity: bool) -> StripeSides<'a> {
        let mut it = StripeSides { stripe, columns: vec![Vec::new(); stripe.columns.len()] };
        for (i, c) in stripe.columns.iter().enumerate().filter(|(i, _)| parity || *i >= stripe.parity) {
            let (len, mut out) = (it.len(i), Vec::new());
            if let Some(child) = top.children().get(c.child).filter(|_| len > 0) {
                self.sides(child, top.spares(), c.offset, len, top.sector(), &mut out);
            }
            it.columns[i] = out;
        }
        it
    }

    /// The content of `size` bytes at `off` of vdev `id`, written in `birth`, for which `accept` is
    /// true; `None` if none of the possible contents is accepted.
    pub fn read(
        &self,
        id: u32,
        off: u64,
        size: usize,
        birth: Txg,
        accept: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Option<Vec<u8>> {
        let mut tries = Tries { left: TRIES_MAX, accept };
        let top = self.top(id)?;
        if size == 0 || off.checked_add(size as u64)? > top.asize {
            return None;
        }
        match &top.node {
            Node::Leaf(_) | Node::Mirror(_) | Node::Dspare(_) => {
                let mut sides = Vec::new();
                self.sides(&top.node, None, off, size, top.sector(), &mut sides);
                tries.copies(&sides, size, top.sector())
            }
            Node::Raidz { .. } | Node::Draid { .. } => {
                let all = top.layouts(off, size, birth);
                all.iter().enumerate().find_map(|(n, stripes)| {
                    tries.left = TRIES_MAX;
                    self.read_striped(top, stripes, size, n < 2, &mut tries)
                })
            }
            Node::Indirect(_) => {
                let mut units = Vec::new();
                self.pieces(id, off, size, 0, 0, &mut units)?;
                tries.mix(&units, size)
            }
        }
    }

    /// The parts of a range on a removed vdev, each with what the devices have where it went.
    fn pieces(&self, id: u32, off: u64, size: usize, start: usize, depth: u32, out: &mut Vec<Unit>) -> Option<()> {
        let top = self.top(id)?;
        if let Node::Indirect(mapping) = &top.node {
            if depth >= REMAPS_MAX {
                return None;
            }
            for (at, vdev, to, len) in remap(mapping.get()?, off, size as u64).ok()? {
                self.pieces(vdev.0, to, len as usize, start + at as usize, depth + 1, out)?;
            }
            return Some(());
        }
        let choices = self.plain(id, off, size, Txg(0));
        out.push(Unit { at: vec![(start, size)], choices });
        Some(())
    }

    /// Whether the device that blocks at `off` of a RAID-Z begin on is not there.
    pub fn lacks_first(&self, id: u32, off: u64) -> bool {
        let Some(top) = self.top(id) else { return false };
        let all = top.layouts(off, top.sector(), Txg(u64::MAX));
        let first = all.first().and_then(|stripes| stripes.first()).and_then(|s| s.data().first());
        let child = first.and_then(|c| top.children().get(c.child));
        child.is_some_and(Vdevs::is_absent)
    }
    fn is_absent(node: &Node) -> bool {
        match node {
            Node::Leaf(l) => l.devices.is_empty(),
            Node::Mirror(children) => children.iter().all(Vdevs::is_absent),
            _ => false,
        }
    }

    /// A range on RAID-Z or dRAID; `deep`: not only as it is.
    fn read_striped(
        &self,
        top: &Top,
        stripes: &[Stripe],
        size: usize,
        deep: bool,
        tries: &mut Tries<'_>,
    ) -> Option<Vec<u8>> {
        let sector = top.sector();
        let assemble = |sides: &StripeSides<'_>, data: &[Vec<u8>], block: &mut [u8]| {
            for ((at, len), d) in sides.places(None).into_iter().zip(data) {
                block[at..at + len].copy_from_slice(d);
            }
        };
        let mut block = vec![0; size];
        let simple: Vec<StripeSides<'_>> = stripes.iter().map(|s| self.columns(top, s, false)).collect();
        let mut complete = true;
        for sides in &simple {
            let got = sides.whole().solve(false, &mut |data, _, _| {
                assemble(sides, data, &mut block);
                true
            });
            complete &= got;
        }
        if complete && tries.offer(&block) {
            return Some(block);
        }
        if !deep {
            return None;
        }
        drop(simple);
        let all: Vec<StripeSides<'_>> = stripes.iter().map(|s| self.columns(top, s, true)).collect();
        if let [sides] = &all[..] {
            let mut found = false;
            sides.whole().solve(false, &mut |data, _, _| {
                assemble(sides, data, &mut block);
                found = tries.offer(&block);
                // Half of the tries are left for single rows.
                found || tries.left <= TRIES_MAX / 2
            });
            if found {
                return Some(block);
            }
        } else if let Some(found) = Vdevs::by_children(&all, size, tries) {
            return Some(found);
        }
        let left = tries.left.max(TRIES_MAX / 2);
        parts(size, sector, ROW_HEIGHT_MAX).find_map(|height| {
            let mut units = Vec::new();
            for sides in &all {
                for r in 0..sides.rows(height) {
                    let at = sides.places(Some((r, height)));
                    units.push(Unit { at, choices: row_choices(&sides.row(r, height, sector)) });
                }
            }
            tries.left = left;
            tries.mix(&units, size)
        })
    }

    /// Several stripes with the same children lost in each of them.
    fn by_children(all: &[StripeSides<'_>], size: usize, tries: &mut Tries<'_>) -> Option<Vec<u8>> {
        let parity = all.first()?.stripe.parity;
        let children: Vec<usize> = {
            let mut c: Vec<usize> = all.iter().flat_map(|s| s.stripe.columns.iter().map(|c| c.child)).collect();
            c.sort_unstable();
            c.dedup();
            c
        };
        let mut block = vec![0; size];
        let mut found = false;
        for k in 0..=parity {
            let stop = sets(children.len(), k, &mut |chosen| {
                let lost: Vec<usize> = chosen.iter().map(|&i| children[i]).collect();
                let complete = all.iter().all(|sides| {
                    let mut row = sides.whole();
                    for (i, c) in sides.stripe.columns.iter().enumerate() {
                        if lost.contains(&c.child) && sides.len(i) > 0 {
                            row.columns[i].clear();
                        }
                    }
                    row.solve(false, &mut |data, _, _| {
                        for ((at, len), d) in sides.places(None).into_iter().zip(data) {
                            block[at..at + len].copy_from_slice(d);
                        }
                        true
                    })
                });
                found = complete && tries.offer(&block);
                found || tries.left <= TRIES_MAX / 2
            });
            if stop {
                break;
            }
        }
        found.then_some(block)
    }

    /// The contents that a range may have, unverified: as each side has it; columns of RAID-Z that
    /// are not there are computed. Several of a mirror only.
    pub fn plain(&self, id: u32, off: u64, size: usize, birth: Txg) -> Vec<Vec<u8>> {
        let Some(top) = self.top(id) else { return Vec::new() };
        if size == 0 || off.checked_add(size as u64).is_none_or(|end| end > top.asize) {
            return Vec::new();
        }
        let all = top.layouts(off, size, birth);
        if all.is_empty() {
            let mut sides = Vec::new();
            self.sides(&top.node, None, off, size, top.sector(), &mut sides);
            return sides.into_iter().filter(Side::is_whole).map(|s| s.bytes).collect();
        }
        all.iter().take(2).filter_map(|stripes| self.plain_striped(top, stripes, size)).collect()
    }

    fn plain_striped(&self, top: &Top, stripes: &[Stripe], size: usize) -> Option<Vec<u8>> {
        let mut block = vec![0; size];
        for stripe in stripes {
            let mut sides = self.columns(top, stripe, false);
            if sides.whole().columns[stripe.parity..].iter().any(Vec::is_empty) {
                sides = self.columns(top, stripe, true);
            }
            let places = sides.places(None);
            let solved = sides.whole().solve(false, &mut |data, _, _| {
                for ((at, len), d) in places.iter().zip(data) {
                    block[*at..at + len].copy_from_slice(d);
                }
                true
            });
            if !solved {
                return None;
            }
        }
        Some(block)
    }
}
