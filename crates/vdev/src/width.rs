//! The width of a RAID-Z: how many columns a block has there, by its birth (format page 19).
//!
//! A RAID-Z grows by one child at a time. The sectors of older blocks are moved when it does, but
//! their number, parity and order stay: a block keeps the *logical width* of the txg in which it
//! was written. It decides columns, parity and allocated size. The *physical width*, the number of
//! children, decides on which child and where each sector is, whatever its age.
//!
//! While the sectors are being moved, those from the start of the address space up to the committed
//! *progress* are at their new places, over all children; a row of a block of which a sector is
//! beyond it is still at its old place, over all children but the last. Sectors of such a row that
//! were copied already have a second place, the new one, which writes must keep equal
//! ([`Widths::second_places`], [`crate::reflow`]). New blocks have the old logical width until the
//! expansion ends.
//!
//! Everything that depends on a width asks [`Widths`], which every RAID-Z makes of its children and
//! its [`Expansions`]. Without one both widths are the same for all blocks. The charge to datasets
//! ([`crate::Top::dsize`]) uses the original width always, since it is counted when a block is
//! written and again when it is freed.

use std::rc::Rc;

use base::Txg;

use crate::geometry::{Column, Row, Stripe, raidz_asize, raidz_map, raidz_rows};
use crate::reflow::{Reflow, SCRATCH_BACK};

/// A birth before every expansion: its blocks have the original width.
pub const ORIGINAL: Txg = Txg(0);

/// The expansions of a RAID-Z.
#[derive(Clone, Default, Debug)]
pub struct Expansions {
    /// The first txg of the wider blocks of each that ended, rising (`raidz_expand_txgs`).
    pub txgs: Vec<Txg>,
    /// The one that is under way.
    pub reflow: Option<Rc<Reflow>>,
    /// All nodes of a RAID-Z share it from the beginning of an expansion to that of the next:
    /// without a reference to it no I/O that began earlier is under way.
    pub era: Rc<()>,
}

impl Expansions {
    /// The widths of a RAID-Z of `children` with `parity`.
    pub fn widths(&self, children: u64, parity: u64) -> Widths<'_> {
        let progress = self.reflow.as_ref().map(|r| r.progress());
        Widths { children, parity, txgs: &self.txgs, progress }
    }
}

/// How far an expansion that is under way has come, in bytes of the address space.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Progress {
    /// What is below was moved, and the uberblock on disk says so.
    pub committed: u64,
    /// What is below was copied, or is being copied; at least `committed`.
    pub next: u64,
    /// What is below `committed` is valid in the scratch area alone.
    pub in_scratch: bool,
}

impl Progress {
    /// One of which nothing is being copied.
    pub fn at(committed: u64) -> Progress {
        Progress { committed, next: committed, in_scratch: false }
    }
}

/// Columns of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Width {
    /// All columns, more than `parity`.
    pub columns: u64,
    /// Those of parity, 1 to 3.
    pub parity: u64,
}

impl Width {
    /// Allocated bytes of a block of `psize` bytes.
    pub fn asize(self, psize: u64, ashift: u8) -> u64 {
        raidz_asize(psize, ashift, self.columns, self.parity)
    }
}

/// A device of a RAID-Z at some time: its number, of as many as there were.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Device {
    /// Its number among the children.
    pub child: u64,
    /// The children that there were.
    pub children: u64,
}

/// The widths that a RAID-Z has and had.
#[derive(Clone, Copy, Debug)]
pub struct Widths<'a> {
    /// Its children: the physical width.
    pub children: u64,
    /// Its parity columns, which no expansion changes.
    pub parity: u64,
    /// The first txg of the wider blocks of each expansion that ended, rising; with one that is
    /// under way fewer than `children - parity`.
    pub txgs: &'a [Txg],
    /// That of the expansion that is under way.
    pub progress: Option<Progress>,
}

impl Widths<'_> {
    /// The logical width of blocks born in `birth`, or written in that txg now.
    pub fn at(&self, birth: Txg) -> Width {
        let after = (self.txgs.len() - self.txgs.partition_point(|t| *t <= birth)) as u64;
        Width { columns: self.children - self.under_way() - after, parity: self.parity }
    }

    fn under_way(&self) -> u64 {
        u64::from(self.progress.is_some())
    }

    /// The stripes of `psize` bytes (not 0) at `offset`, born in `birth`.
    pub fn stripes(&self, ashift: u8, offset: u64, psize: u64, birth: Txg) -> Vec<Stripe> {
        let Width { columns, parity } = self.at(birth);
        let all = self.children;
        match self.progress {
            None if columns == all => vec![raidz_map(offset, psize, ashift, columns, parity)],
            None => raidz_rows(offset, psize, ashift, self.at(birth), |_| Row::over(all)),
            Some(progress) => {
                raidz_rows(offset, psize, ashift, self.at(birth), |end| match end <= progress.committed >> ashift {
                    true => Row { children: all, back: if progress.in_scratch { SCRATCH_BACK } else { 0 } },
                    false => Row::over(all - 1),
                })
            }
        }
    }

    /// The second places of the sectors of a block, its stripes and columns as those of
    /// [`Widths::stripes`]; a column without one has size 0. None if no column has one.
    pub fn second_places(&self, ashift: u8, offset: u64, psize: u64, birth: Txg) -> Vec<Stripe> {
        let Some(progress) = self.progress else { return Vec::new() };
        let width = self.at(birth);
        let (committed, next) = (progress.committed >> ashift, progress.next >> ashift);
        let first = offset >> ashift;
        // The last row counts as a whole one.
        if first >= next || first + (width.asize(psize, ashift) >> ashift) + width.columns <= committed {
            return Vec::new();
        }
        let all = self.children;
        let mut rows = raidz_rows(offset, psize, ashift, width, |_| Row::over(all));
        let mut found = false;
        for (k, row) in (0..).zip(&mut rows) {
            let is_moved = first + k * width.columns + row.columns.len() as u64 <= committed;
            for column in row.columns.iter_mut().filter(|c| c.size > 0) {
                let sector = (column.offset >> ashift) * all + column.child as u64;
                if is_moved || sector >= next {
                    column.size = 0;
                    continue;
                }
                found = true;
                if progress.in_scratch && sector < committed {
                    column.offset = column.offset.wrapping_sub(SCRATCH_BACK);
                }
            }
        }
        if found { rows } else { Vec::new() }
    }

    /// The devices of now, then those of before each expansion, also of one that is under way, back
    /// to the first.
    pub fn devices(&self) -> Vec<Device> {
        let earlier = self.txgs.len() as u64 + self.under_way();
        let widths = (self.children - earlier..=self.children).rev();
        widths.flat_map(|children| (0..children).map(move |child| Device { child, children })).collect()
    }

    /// Whether a column of one sector, of a stripe in that `row`, is on that device, or was before
    /// an expansion.
    pub fn is_on(&self, device: Device, row: Row, column: &Column) -> bool {
        if device.children == self.children || column.size == 0 {
            return device.children == self.children && column.child as u64 == device.child;
        }
        row.sector(column) % device.children == device.child
    }

    /// The range of child `own` (offset, length) that holds `len` bytes at `start` and no other
    /// data, only their parity; none while an expansion is under way. Of whole rows the widths of
    /// blocks do not matter; the swap of single parity stays within the range.
    pub fn child_range(&self, ashift: u8, own: usize, start: u64, len: u64) -> Option<(u64, u64)> {
        if self.progress.is_some() {
            return None;
        }
        // Sectors go round the children row by row.
        let row = |sector: u64| sector / self.children + u64::from(sector % self.children > own as u64);
        let (first, end) = (row(start >> ashift), row((start + len) >> ashift));
        (end > first).then_some((first << ashift, (end - first) << ashift))
    }

    /// The children that the allocatable bytes are on: all, when an expansion has ended.
    fn counted(&self) -> u64 {
        self.children - self.under_way()
    }

    /// Bytes needed on each child for `asize` allocatable bytes.
    pub fn child_asize(&self, asize: u64) -> u64 {
        asize.div_ceil(self.counted())
    }

    /// Allocatable bytes with `child` bytes on each child; `None` beyond 2^64.
    pub fn asize_from_child(&self, child: u64) -> Option<u64> {
        child.checked_mul(self.counted())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const GROWN: Txg = Txg(100);

    fn ended(txgs: &[u64]) -> Vec<Txg> {
        txgs.iter().copied().map(Txg).collect()
    }

    #[test]
    fn the_birth_decides() {
        let thrice = ended(&[100, 200, 300]);
        let widths = Widths { children: 7, parity: 2, txgs: &thrice, progress: None };
        for (birth, columns) in [(0, 4), (99, 4), (100, 5), (199, 5), (200, 6), (299, 6), (300, 7), (u64::MAX, 7)] {
            assert_eq!(widths.at(Txg(birth)), Width { columns, parity: 2 }, "born in {birth}");
        }
        let fourth = Widths { txgs: &thrice[1..], progress: Some(Progress::at(0)), ..widths };
        for (birth, columns) in [(0, 4), (199, 4), (200, 5), (299, 5), (300, 6), (u64::MAX, 6)] {
            assert_eq!(fourth.at(Txg(birth)), Width { columns, parity: 2 }, "born in {birth}");
        }
        let never = Widths { txgs: &[], ..widths };
        assert_eq!((never.at(ORIGINAL), never.at(Txg(5))), (never.at(GROWN), Width { columns: 7, parity: 2 }));
    }

    /// Sizes of page 09 section 3 for n of each age; a block of one sector, as a gang header is,
    /// takes the same at every width.
    #[test]
    fn sizes_follow_the_birth() {
        let asize = |children, parity, psize, birth| {
            Widths { children, parity, txgs: &[GROWN], progress: None }.at(Txg(birth)).asize(psize, 9)
        };
        assert_eq!((asize(6, 1, 128 << 10, 99), asize(6, 1, 128 << 10, 100)), (163_840, 157_696));
        // Of 28 and 24 sectors, whole threes.
        assert_eq!((asize(6, 2, 8 << 10, 99), asize(6, 2, 8 << 10, 100)), (30 << 9, 24 << 9));
        for parity in 1..=3 {
            for birth in [99, 100] {
                assert_eq!(asize(parity + 3, parity, 512, birth), (parity + 1) << 9);
            }
        }
    }

    /// What the format page says of every sector of a block: (row, column) to its child, its
    /// offset there, and for data its number in the block.
    fn sectors(offset: u64, psize: u64, ashift: u8, l: u64, w: u64, p: u64) -> Vec<(u64, u64, u64, u64, Option<u64>)> {
        let s = psize.div_ceil(1 << ashift);
        let (q, r) = (s / (l - p), s % (l - p));
        let bc = if r == 0 { 0 } else { r + p };
        let tot = s + p * (q + u64::from(r != 0));
        let rows = tot.div_ceil(l);
        let mut out = Vec::new();
        for k in 0..rows {
            for c in (0..tot.min(l)).filter(|c| k + 1 < rows || bc == 0 || *c < bc) {
                let place = match c {
                    0 | 1 if p == 1 && offset >> 20 & 1 == 1 => 1 - c,
                    c => c,
                };
                let at = (offset >> ashift) + k * l + place;
                let number = c.checked_sub(p).map(|d| match r == 0 || c < bc {
                    true => d * rows + k,
                    false => r * rows + (d - r) * (rows - 1) + k,
                });
                out.push((k, c, at % w, (at / w) << ashift, number));
            }
        }
        out
    }

    /// Cuts columns into sectors, in the same form but without row and column.
    fn cut(stripes: &[Stripe], ashift: u8) -> BTreeMap<(u64, u64), Option<u64>> {
        let mut out = BTreeMap::new();
        for stripe in stripes {
            for (i, c) in stripe.columns.iter().enumerate() {
                for s in 0..c.size >> ashift {
                    let number = (i >= stripe.parity).then_some((c.from >> ashift) + s);
                    assert!(out.insert((c.child as u64, c.offset + (s << ashift)), number).is_none());
                }
            }
        }
        out
    }

    /// Before and after an expansion every sector is where the format page has it; the block has as
    /// many as it is allocated, without padding.
    #[test]
    fn sectors_are_where_the_format_page_has_them() {
        for (old, parity) in [(2u64, 1u64), (3, 1), (5, 1), (4, 2), (6, 2), (4, 3), (7, 3)] {
            let widths = Widths { children: old + 1, parity, txgs: &[GROWN], progress: None };
            for (ashift, i) in [9u8, 12].into_iter().flat_map(|a| (0..300u64).map(move |i| (a, i))) {
                let psize = 512 * (1 + (i * 37) % 300);
                let offset = (7 + i * 41) << ashift;
                for (birth, l) in [(Txg(99), old), (GROWN, old + 1)] {
                    let stripes = widths.stripes(ashift, offset, psize, birth);
                    let want = sectors(offset, psize, ashift, l, old + 1, parity);
                    let place = |&(_, _, child, at, number): &(u64, u64, u64, u64, Option<u64>)| ((child, at), number);
                    assert_eq!(cut(&stripes, ashift), want.iter().map(place).collect(), "{psize} at {offset}");
                    let taken = widths.at(birth).asize(psize, ashift);
                    let used = (want.len() as u64) << ashift;
                    assert!(used <= taken && taken - used <= parity << ashift);
                    let data = |s: &Stripe| s.data().iter().map(|c| c.len).sum::<u64>();
                    assert_eq!(stripes.iter().map(data).sum::<u64>(), psize);
                }
            }
        }
    }

    /// While an expansion is under way the rows that end within the progress are at their new
    /// places, the others at their old ones.
    #[test]
    fn rows_move_one_by_one() {
        for (old, parity) in [(3u64, 1u64), (5, 1), (4, 2), (6, 3)] {
            for i in 0..200u64 {
                let (psize, offset) = (512 * (1 + (i * 37) % 100), (7 + i * 41) << 9);
                let progress = offset + ((i % 120) << 9);
                let at = Progress::at(progress);
                let widths = Widths { children: old + 1, parity, txgs: &[], progress: Some(at) };
                let by_width = |w: u64| sectors(offset, psize, 9, old, w, parity);
                let (still, moved) = (by_width(old), by_width(old + 1));
                let end = |row: u64| {
                    let total = still.len() as u64;
                    (offset >> 9) + row * old + total.min(old)
                };
                let want = still.iter().zip(&moved).map(|(a, b)| if end(a.0) << 9 <= progress { b } else { a });
                let place = |&(_, _, child, at, number): &(u64, u64, u64, u64, Option<u64>)| ((child, at), number);
                let stripes = widths.stripes(9, offset, psize, Txg(7));
                assert_eq!(cut(&stripes, 9), want.map(place).collect(), "{psize} at {offset}, {progress} moved");
                // Rows that are not moved have their copied sectors at the new place, too.
                let next = progress + ((i % 7) << 9);
                let widths = Widths { progress: Some(Progress { next, ..at }), ..widths };
                let copied = |c: u64, k: u64| {
                    let place = if parity == 1 && offset >> 20 & 1 == 1 && c < 2 { 1 - c } else { c };
                    offset + ((k * old + place) << 9) < next
                };
                let second = still.iter().zip(&moved).filter(|(a, _)| end(a.0) << 9 > progress && copied(a.1, a.0));
                let second: BTreeMap<_, _> = second.map(|(_, b)| place(b)).collect();
                let places = widths.second_places(9, offset, psize, Txg(7));
                assert_eq!(places.is_empty(), second.is_empty());
                assert_eq!(cut(&places, 9), second, "{psize} at {offset}, {progress} moved, {next} copied");
            }
        }
    }

    /// Every sector is on one device of each time: that where the mapping of the time had it.
    #[test]
    fn sectors_were_on_one_device_at_each_time() {
        let twice = ended(&[100, 200]);
        let widths = Widths { children: 6, parity: 1, txgs: &twice, progress: None };
        let at = |committed: u64, in_scratch| Progress { in_scratch, ..Progress::at(committed << 9) };
        // While the second one is under way rows are at either place; a sector that is at its old
        // one is on the same device as before.
        let all = [None, Some(at(0, false)), Some(at(1015, false)), Some(at(1015, true)), Some(at(9999, false))];
        for progress in all {
            let widths = Widths { txgs: &twice[..2 - usize::from(progress.is_some())], progress, ..widths };
            let devices = widths.devices();
            assert_eq!(devices.len(), 6 + 5 + 4);
            for (offset, psize) in [(7u64, 5u64), (1000, 40), (12, 1)].map(|(o, s)| (o << 9, s << 9)) {
                let stripes = widths.stripes(9, offset, psize, Txg(1));
                // Columns 0 and 1 have changed places where bit 20 is set: not here.
                for (k, stripe) in (0..).zip(&stripes) {
                    for (c, column) in (0..).zip(&stripe.columns).filter(|(_, c)| c.size > 0) {
                        let is_on = |d: &Device| widths.is_on(*d, stripe.row, column);
                        let on: Vec<Device> = devices.iter().copied().filter(is_on).collect();
                        let sector = (offset >> 9) + k * 4 + c;
                        let now = Device { child: column.child as u64, children: 6 };
                        let want = [5, 4].map(|children| Device { child: sector % children, children });
                        assert_eq!(on, [now, want[0], want[1]], "sector {sector}, {progress:?}");
                    }
                }
            }
        }
    }

    /// A row of an older block has its own parity: no two of its sectors are on one child, and the
    /// columns that are empty in the last row are there, for Q and R count them.
    #[test]
    fn rows_stand_for_themselves() {
        let widths = Widths { children: 6, parity: 2, txgs: &[GROWN], progress: None };
        let rows = widths.stripes(9, 7 << 9, 4 << 9, Txg(1));
        let places = |s: &Stripe| s.columns.iter().map(|c| (c.child, c.offset >> 9, c.len)).collect::<Vec<_>>();
        assert_eq!(rows.len(), 2, "three data columns: a full row and one with a single sector");
        assert_eq!(places(&rows[0]), [(1, 1, 0), (2, 1, 0), (3, 1, 512), (4, 1, 512), (5, 1, 512)]);
        assert_eq!(places(&rows[1])[..3], [(0, 2, 0), (1, 2, 0), (2, 2, 512)]);
        assert!(rows[1].data()[1..].iter().all(|c: &Column| (c.size, c.len) == (0, 0)));
        assert_eq!(rows[1].data()[0].from, 512, "the first data column has two sectors");
    }
}
