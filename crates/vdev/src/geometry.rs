//! The columns of a block on RAID-Z and dRAID: pure functions of offset and size (format page 09
//! sections 3 and 10).
//!
//! A *stripe* is a block, or the part of one in one redundancy group, cut into *columns*: first the
//! parity columns, then the data columns, each one contiguous range of one child. Data fill the
//! first data column completely, then the second, and so on. A block on RAID-Z is one stripe, on
//! dRAID one or two. A block that is older than an expansion of its RAID-Z is one stripe for each
//! row of sectors, with columns of one sector (format page 19 section 1).

use base::{Error, Result};
use ondisk::vdev_config::VdevConfig;

use crate::draid_seeds::SEEDS;
use crate::width::Width;

/// Bytes of a dRAID row on one child.
const ROW: u64 = 16 << 20;
/// First word of the state of the generator of permutations.
const PERM_STATE: u64 = 0xd_7a1d_5eed;

/// One column of a stripe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Column {
    /// Index of the child.
    pub child: usize,
    /// Offset in the child's address space, in bytes.
    pub offset: u64,
    /// Bytes on the child, whole sectors; 0 if the column is empty in its row.
    pub size: u64,
    /// Start of the column's data in the block; 0 of a parity column.
    pub from: u64,
    /// Bytes of data, at most `size`; the rest is zero padding. 0 of a parity column.
    pub len: u64,
}

/// A block, or a part of it, with its own parity.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stripe {
    /// Number of parity columns, which come first.
    pub parity: usize,
    /// Parity columns, then data columns.
    pub columns: Vec<Column>,
    /// How the numbers of its sectors give their places; over no children except on RAID-Z.
    pub row: Row,
}

impl Stripe {
    /// The data columns.
    pub fn data(&self) -> &[Column] {
        &self.columns[self.parity..]
    }
    /// Bytes of the longest data column, and so of parity.
    pub fn data_len_max(&self) -> u64 {
        self.data().iter().map(|c| c.len).max().unwrap_or(0)
    }
}

/// Allocated bytes of a block of `psize` bytes on a RAID-Z of `children` with `parity`.
pub fn raidz_asize(psize: u64, ashift: u8, children: u64, parity: u64) -> u64 {
    let sectors = psize.div_ceil(1 << ashift);
    let total = sectors + parity * sectors.div_ceil(children - parity);
    total.next_multiple_of(parity + 1) << ashift
}

/// The stripe of `psize` bytes at `offset` of a RAID-Z of `children` with `parity` (fewer than
/// `children`); `psize` is not 0.
pub fn raidz_map(offset: u64, psize: u64, ashift: u8, children: u64, parity: u64) -> Stripe {
    let sector = 1u64 << ashift;
    let (b, s) = (offset >> ashift, psize.div_ceil(sector));
    let (first, base) = (b % children, (b / children) << ashift);
    let (q, r) = (s / (children - parity), s % (children - parity));
    let long = if r == 0 { 0 } else { r + parity };
    let count = if q == 0 { long } else { children };
    let mut from = 0;
    let mut columns: Vec<Column> = (0..count)
        .map(|c| {
            let size = (q + u64::from(c < long)) << ashift;
            let len = if c < parity { 0 } else { size.min(psize - from) };
            let wrapped = first + c >= children;
            let column = Column {
                child: ((first + c) % children) as usize,
                offset: base + u64::from(wrapped) * sector,
                size,
                from: if c < parity { 0 } else { from },
                len,
            };
            from += len;
            column
        })
        .collect();
    swap_parity(&mut columns, offset, parity);
    Stripe { parity: parity as usize, columns, row: Row::over(children) }
}

/// Where a row of sectors lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Row {
    /// The children that it lies over.
    pub children: u64,
    /// Bytes by which it lies before its place on each of them; offsets wrap.
    pub back: u64,
}

impl Row {
    /// A row at its place over so many children.
    pub fn over(children: u64) -> Row {
        Row { children, back: 0 }
    }

    /// The number of the sector that a column of one sector (not empty) has there.
    pub fn sector(self, column: &Column) -> u64 {
        column.offset.wrapping_add(self.back) / column.size * self.children + column.child as u64
    }
}

/// The rows of `psize` bytes (not 0) at `offset` of a RAID-Z, in the order of a block of `width`
/// (format page 19 section 1). `place` says where a row lies, by the number of the sector behind
/// it.
pub fn raidz_rows(offset: u64, psize: u64, ashift: u8, width: Width, place: impl Fn(u64) -> Row) -> Vec<Stripe> {
    let Width { columns, parity } = width;
    let sector = 1u64 << ashift;
    let (b, s) = (offset >> ashift, psize.div_ceil(sector));
    let (q, r) = (s / (columns - parity), s % (columns - parity));
    let long = if r == 0 { 0 } else { r + parity };
    let count = if q == 0 { long } else { columns };
    let rows = q + u64::from(r > 0);
    let row = |k: u64| {
        let row = place(b + k * columns + count);
        let Row { children, back } = row;
        let column = |c: u64| {
            let at = b + k * columns + c;
            let there = k < q || c < long;
            // The number of a data sector in the block.
            let number = c.checked_sub(parity).filter(|_| there).map(|d| match r == 0 || c < long {
                true => d * rows + k,
                false => r * rows + (d - r) * q + k,
            });
            let from = number.map_or(0, |n| n * sector);
            Column {
                child: (at % children) as usize,
                offset: ((at / children) << ashift).wrapping_sub(back),
                size: if there { sector } else { 0 },
                from,
                len: if number.is_some() { sector.min(psize - from) } else { 0 },
            }
        };
        let mut columns: Vec<Column> = (0..count).map(column).collect();
        swap_parity(&mut columns, offset, parity);
        Stripe { parity: parity as usize, columns, row }
    };
    (0..rows).map(row).collect()
}

/// Single parity changes places with the first data column in every other MiB.
fn swap_parity(columns: &mut [Column], offset: u64, parity: u64) {
    if parity == 1 && offset & (1 << 20) != 0 && columns.len() > 1 {
        let (a, b) = (columns[0], columns[1]);
        (columns[0].child, columns[0].offset) = (b.child, b.offset);
        (columns[1].child, columns[1].offset) = (a.child, a.offset);
    }
}

/// The layout of a dRAID.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Draid {
    /// Parity columns of a group.
    pub parity: u64,
    /// Data columns of a group.
    pub data: u64,
    /// Children.
    pub children: u64,
    /// Distributed spares.
    pub spares: u64,
    /// Groups in a slice.
    groups: u64,
    ashift: u8,
    /// Row by row, a byte an entry.
    permutations: Vec<u8>,
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

impl Draid {
    /// A dRAID of `children` devices in groups of `data` and `parity` columns with `spares`.
    /// `Invalid` for an impossible layout.
    pub fn new(parity: u64, data: u64, children: u64, spares: u64, ashift: u8) -> Result<Draid> {
        let bad = |why: String| Err(Error::invalid(format!("draid of {children} devices: {why}")));
        if !(1..=3).contains(&parity) || data == 0 || data > 255 {
            return bad(format!("{parity} parity and {data} data columns cannot be"));
        }
        if !(2..=255).contains(&children) || spares > 100 || data + parity + spares > children {
            return bad(format!("it cannot have groups of {} and {spares} spares", data + parity));
        }
        if !(9..=16).contains(&ashift) {
            return bad(format!("ashift {ashift} cannot be"));
        }
        let (width, disks) = (data + parity, children - spares);
        let groups = disks / greatest_common_divisor(width, disks);
        Ok(Draid { parity, data, children, spares, groups, ashift, permutations: permutations(children as usize) })
    }

    /// The layout that a configuration describes.
    pub fn from_config(config: &VdevConfig, ashift: u8) -> Result<Draid> {
        let need = |key: &str, n: Option<u64>| {
            n.ok_or_else(|| Error::corrupt(format!("draid {}: its configuration has no {key}", config.guid)))
        };
        let (parity, data) = (need("nparity", config.nparity)?, need("draid_ndata", config.draid_ndata)?);
        let spares = need("draid_nspares", config.draid_nspares)?;
        let draid = Draid::new(parity, data, config.children.len() as u64, spares, ashift)
            .map_err(|e| Error::corrupt(e.to_string()))?;
        if config.draid_ngroups != Some(draid.groups) {
            return Err(Error::corrupt(format!("draid {}: it has {:?} groups", config.guid, config.draid_ngroups)));
        }
        Ok(draid)
    }

    /// Groups in a slice: `draid_ngroups`.
    pub fn groups(&self) -> u64 {
        self.groups
    }
    fn width(&self) -> u64 {
        self.data + self.parity
    }
    /// Bytes of a group.
    fn group_size(&self) -> u64 {
        self.width() * ROW
    }
    /// Rows of a slice.
    fn slice_rows(&self) -> u64 {
        self.groups * self.width() / (self.children - self.spares)
    }
    /// Bytes that offsets and sizes of allocations are multiples of.
    pub fn unit(&self) -> u64 {
        self.width() << self.ashift
    }
    /// Bytes of data in one unit.
    pub fn unit_data(&self) -> u64 {
        self.data << self.ashift
    }
    /// Allocated bytes of a block of `psize` bytes.
    pub fn asize(&self, psize: u64) -> u64 {
        psize.div_ceil(self.unit_data()) * self.unit()
    }
    /// The first part of a range of whole units that can be read as one block: its rows are in one
    /// group. Allocated bytes, and bytes of data. `most`: bytes of a column.
    pub fn rebuild_part(&self, start: u64, size: u64, most: u64) -> (u64, u64) {
        let rows = (most.min(base::MAX_BLOCK / self.data) >> self.ashift).max(1);
        let group_left = self.group_size() - start % self.group_size();
        let asize = size.min(rows * self.unit()).min(group_left);
        (asize, asize / self.unit() * self.unit_data())
    }
    /// Allocatable bytes, given those of the smallest child: whole rows less two reserved ones, and
    /// of their space whole groups.
    pub fn asize_from_child(&self, child: u64) -> u64 {
        let rows = (child / ROW).saturating_sub(2);
        rows * ROW * (self.children - self.spares) / self.group_size() * self.group_size()
    }

    /// Bytes needed on each child for `asize` allocatable bytes.
    pub fn child_asize(&self, asize: u64) -> u64 {
        (asize.div_ceil((self.children - self.spares) * ROW) + 2) * ROW
    }

    /// The ranges of `child` that hold the whole units among `len` bytes from `start`.
    pub fn child_ranges(&self, child: usize, start: u64, len: u64) -> Vec<(u64, u64)> {
        let (g, n) = (self.width(), self.children - self.spares);
        let start = start.next_multiple_of(self.unit());
        let end = start.max((start.saturating_add(len)) / self.unit() * self.unit());
        let (mut at, mut out) = (start, Vec::new());
        while at < end {
            let group = at / self.group_size();
            let stop = end.min((group + 1) * self.group_size());
            let (p, k) = (group / self.groups, group % self.groups);
            let (first, row) = ((k * g) % n, p * self.slice_rows() + (k * g) / n);
            let (from, to) = ((at % self.group_size()) / g, (stop - group * self.group_size()) / g);
            for i in (0..g).filter(|i| self.disk(p, (first + i) % n) == child) {
                let row = row + u64::from(first + i >= n);
                out.push((row * ROW + from, to - from));
            }
            at = stop;
        }
        out
    }

    /// The child that is disk `i` of permutation `p`.
    fn disk(&self, p: u64, i: u64) -> usize {
        let c = self.children;
        let rows = self.permutations.len() as u64 / c;
        let p = p % (rows * c);
        let at = (p / c) * c + i;
        ((u64::from(self.permutations[at as usize]) + p % c) % c) as usize
    }

    /// The child that holds distributed spare `k` at `offset` of the children.
    pub fn spare_child(&self, k: u64, offset: u64) -> Option<usize> {
        (k < self.spares).then(|| self.disk(offset / (ROW * self.slice_rows()), self.children - 1 - k))
    }

    /// The stripes of `psize` bytes at `offset`. Two where the block crosses the end of a group.
    pub fn map(&self, offset: u64, psize: u64) -> Vec<Stripe> {
        let mut out = Vec::with_capacity(1);
        let (mut offset, mut from) = (offset, 0);
        while from < psize {
            let room = (self.group_size() - offset % self.group_size()) / self.unit() * self.unit_data();
            let part = (psize - from).min(room.max(self.unit_data()));
            out.push(self.stripe(offset, from, part));
            from += part;
            offset = (offset / self.group_size() + 1) * self.group_size();
        }
        out
    }

    fn stripe(&self, offset: u64, start: u64, psize: u64) -> Stripe {
        let (g, n) = (self.width(), self.children - self.spares);
        let group = offset / self.group_size();
        let (p, k) = (group / self.groups, group % self.groups);
        let first = (k * g) % n;
        let row = p * self.slice_rows() + (k * g) / n;
        let within = (offset % self.group_size()) / g;
        let at = row * ROW + within;
        let sectors = psize.div_ceil(1 << self.ashift);
        let (q, r) = (sectors / self.data, sectors % self.data);
        let size = (q + u64::from(r > 0)) << self.ashift;
        let mut from = start;
        let columns = (0..g).map(|i| {
            let long = r > 0 && i < self.parity + r;
            let own = (q + u64::from(long)) << self.ashift;
            let len = if i < self.parity { 0 } else { own.min(start + psize - from) };
            let wrapped = first + i >= n;
            let column = Column {
                child: self.disk(p, (first + i) % n),
                offset: at + u64::from(wrapped) * ROW,
                size,
                from: if i < self.parity { 0 } else { from },
                len,
            };
            from += len;
            column
        });
        Stripe { parity: self.parity as usize, columns: columns.collect(), row: Row::over(0) }
    }
}

/// All permutations of `c` children, one after the other.
fn permutations(c: usize) -> Vec<u8> {
    let (rows, seed, _) = SEEDS[c - 2];
    let mut state = (PERM_STATE, seed);
    let mut next = || {
        let (a, b) = state;
        let result = a.wrapping_add(b).rotate_left(17).wrapping_add(a);
        let b = b ^ a;
        state = (a.rotate_left(49) ^ b ^ (b << 21), b.rotate_left(28));
        result
    };
    let mut row: Vec<u8> = (0..c).map(|i| i as u8).collect();
    let mut out = Vec::with_capacity(c * usize::from(rows));
    for _ in 0..rows {
        for j in (1..c).rev() {
            row.swap(j, (next() % (j as u64 + 1)) as usize);
        }
        out.extend_from_slice(&row);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_the_format_page() {
        for (psize, n, p, want) in
            [(512, 5, 1, 1024), (1536, 5, 1, 2048), (131_072, 5, 1, 163_840), (512, 5, 2, 1536), (512, 5, 3, 2048)]
        {
            assert_eq!(raidz_asize(psize, 9, n, p), want, "{psize} on {n} with {p}");
        }
    }

    /// Every byte of every block is in exactly one column, columns of one block do not overlap, and
    /// adjacent blocks share no sector.
    #[test]
    fn columns_are_apart_and_complete() {
        for (n, p) in [(2u64, 1u64), (3, 1), (5, 1), (4, 2), (6, 2), (7, 3), (4, 3)] {
            for ashift in [9u8, 12] {
                let sector = 1u64 << ashift;
                let mut used = std::collections::BTreeSet::new();
                let mut offset = (1 << 20) - 5 * sector;
                for i in 0..200u64 {
                    let psize = 512 * (1 + (i * 37) % 300);
                    let stripe = raidz_map(offset, psize, ashift, n, p);
                    let mut at = 0;
                    for (i, c) in stripe.columns.iter().enumerate() {
                        assert!(c.size >= c.len && c.size.is_multiple_of(sector) && c.size > 0);
                        if i >= stripe.parity {
                            assert_eq!(c.from, at);
                            at += c.len;
                        }
                        for s in 0..c.size / sector {
                            assert!(used.insert((c.child, c.offset + s * sector)), "{n} {p} {offset} {psize}");
                        }
                    }
                    assert_eq!(at, psize);
                    let total: u64 = stripe.columns.iter().map(|c| c.size).sum();
                    let asize = raidz_asize(psize, ashift, n, p);
                    assert!(total <= asize && asize - total <= p * sector);
                    offset += asize;
                }
            }
        }
    }

    #[test]
    fn ranges_of_children_are_where_blocks_lie() {
        let draid = Draid::new(2, 4, 9, 1, 12).expect("sane");
        let start = draid.group_size() - 7 * draid.unit();
        let len = 20 * draid.unit();
        let mut wanted: Vec<(usize, u64)> = Vec::new();
        for u in 0..20 {
            for s in draid.map(start + u * draid.unit(), draid.unit_data()) {
                wanted.extend(s.columns.iter().map(|c| (c.child, c.offset)));
            }
        }
        wanted.sort_unstable();
        let mut got = Vec::new();
        for child in 0..9 {
            for (at, n) in draid.child_ranges(child, start, len) {
                got.extend((0..n / 4096).map(|s| (child, at + s * 4096)));
            }
        }
        got.sort_unstable();
        assert_eq!(got, wanted);
    }

    #[test]
    fn permutations_are_those_of_the_format() {
        for c in 2..=255 {
            let map = permutations(c);
            assert_eq!(map.len(), c * usize::from(SEEDS[c - 2].0));
            // fletcher4 works on words; lengths are multiples of 256, so nothing is left over.
            let a = codec::fletcher::fletcher4(&map).0[0];
            assert_eq!(a, SEEDS[c - 2].2, "{c} children");
        }
    }

    #[test]
    fn draid_columns_are_apart() {
        for (p, d, c, s) in [(2u64, 4u64, 9u64, 1u64), (1, 2, 5, 0), (1, 3, 11, 2), (3, 5, 24, 3)] {
            let draid = Draid::new(p, d, c, s, 12).expect("sane");
            let mut used = std::collections::BTreeSet::new();
            // Across the ends of some groups.
            let mut offset = draid.group_size() - 40 * draid.unit();
            for i in 0..120u64 {
                let psize = 4096 * (1 + (i * 31) % 60) - if i % 3 == 0 { 512 } else { 0 };
                let mut at = 0;
                let mut total = 0;
                for stripe in draid.map(offset, psize) {
                    let mut children = std::collections::BTreeSet::new();
                    for (i, col) in stripe.columns.iter().enumerate() {
                        assert!(children.insert(col.child));
                        total += col.size;
                        if i >= stripe.parity {
                            assert!(col.len == 0 || col.from == at);
                            at += col.len;
                        }
                        for s in 0..col.size / 4096 {
                            assert!(used.insert((col.child, col.offset + s * 4096)));
                        }
                    }
                }
                assert_eq!((at, total), (psize, draid.asize(psize)));
                offset += draid.asize(psize);
            }
            // A distributed spare is a disk that no column is on.
            for k in 0..s {
                for stripe in draid.map(5 * draid.group_size(), 1 << 20) {
                    let at = stripe.columns[0].offset;
                    assert!(draid.spare_child(k, at).is_some_and(|child| child < c as usize));
                    let spare = draid.spare_child(k, stripe.columns[0].offset).expect("exists");
                    assert!(stripe.columns.iter().all(|col| col.offset != at || col.child != spare));
                }
            }
        }
        assert!(Draid::new(2, 4, 6, 1, 12).is_err());
    }
}
