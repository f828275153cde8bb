//! RAID-Z rows: the places of a block's columns, the content of the parity columns, and lost
//! columns from the others (format page 09 sections 3 to 5).
//!
//! Parity is over GF(2^8) with polynomial 0x11d: row y is the sum of the data columns times powers
//! of 2^y, the last one times 1. Columns shorter than the longest count as zero at their ends.
//! Losing k data columns leaves k unknowns; any k parity rows give equations for them.

/// A range of one child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Which child of the vdev.
    pub child: usize,
    /// Offset in the child's space.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// A column of a block: its sectors from the first row on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    /// Bytes.
    pub size: u64,
    /// Where they are, in order: one range, or sector by sector where the widths differ.
    pub parts: Vec<Part>,
}

/// The widths of a block and of its vdev (format page 19).
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Children over which the block was laid out.
    pub logical: u64,
    /// Children over which sectors lie now; while they are being moved, those of the moved ones.
    pub physical: u64,
    /// Sectors before this one were moved; `None` if all are where they belong.
    pub moved: Option<u64>,
    /// Columns of parity.
    pub parity: u64,
    /// log2 of the sector size.
    pub ashift: u32,
}

/// The columns of `size` bytes (rounded up to sectors) at `off`, parity columns first. There may be
/// fewer than the logical width.
pub fn columns(shape: Shape, off: u64, size: u64) -> Vec<Column> {
    let Shape { logical: l, physical, moved, parity, ashift } = shape;
    let (b, s) = (off >> ashift, size.div_ceil(1 << ashift));
    let (q, r) = (s / (l - parity), s % (l - parity));
    let big = if r == 0 { 0 } else { r + parity };
    let count = if q == 0 { big } else { l };
    let sector = |row: u64, place: u64| {
        let first = b + row * l;
        // A row is moved as a whole.
        let width = if moved.is_some_and(|m| first + count > m) { physical - 1 } else { physical };
        let at = first + place;
        Part { child: (at % width) as usize, offset: (at / width) << ashift, size: 1 << ashift }
    };
    let column = |c: u64| {
        let rows = q + u64::from(c < big);
        // Single parity changes places with the first data column in every other MiB.
        let place = if parity == 1 && off & (1 << 20) != 0 && c < 2 && count > 1 { 1 - c } else { c };
        let size = rows << ashift;
        let parts = match moved.is_none() && l == physical {
            true => vec![Part { size, ..sector(0, place) }],
            false => (0..rows).map(|row| sector(row, place)).collect(),
        };
        Column { size, parts }
    };
    (0..count).map(column).collect()
}

/// Powers of 2, twice over, and logarithms.
const EXP_LOG: ([u8; 512], [u8; 256]) = {
    let (mut exp, mut log) = ([0u8; 512], [0u8; 256]);
    let (mut x, mut i) = (1u32, 0);
    while i < 255 {
        exp[i] = x as u8;
        exp[i + 255] = x as u8;
        log[x as usize] = i as u8;
        x <<= 1;
        if x & 0x100 != 0 {
            x ^= 0x11d;
        }
        i += 1;
    }
    (exp, log)
};
static EXP: [u8; 512] = EXP_LOG.0;
static LOG: [u8; 256] = EXP_LOG.1;

fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 { 0 } else { EXP[usize::from(LOG[usize::from(a)]) + usize::from(LOG[usize::from(b)])] }
}
/// The inverse of `a`, which is not 0.
fn inv(a: u8) -> u8 {
    EXP[255 - usize::from(LOG[usize::from(a)])]
}
/// The factor of data column `i` of `k` in parity row `y`.
fn weight(y: usize, i: usize, k: usize) -> u8 {
    EXP[y * (k - 1 - i) % 255]
}
/// Adds `factor` times `src` to the beginning of `dst`.
fn add_times(dst: &mut [u8], src: &[u8], factor: u8) {
    for (d, s) in dst.iter_mut().zip(src) {
        *d ^= mul(*s, factor);
    }
}

/// Parity row `y` (0, 1, 2) over data columns, `len` bytes long.
pub fn parity_row(data: &[Vec<u8>], y: usize, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    for (i, d) in data.iter().enumerate() {
        add_times(&mut out, d, weight(y, i, data.len()));
    }
    out
}

/// Computes the data columns `lost` from the others and the parity columns `rows`, as many;
/// `parity[y]` are those that can be read. False when that cannot be done.
pub fn reconstruct(data: &mut [Vec<u8>], lost: &[usize], parity: &[Option<Vec<u8>>], rows: &[usize]) -> bool {
    let (n, k) = (data.len(), lost.len());
    if rows.len() != k
        || rows.iter().any(|&y| parity.get(y).is_none_or(Option::is_none))
        || lost.iter().any(|&x| x >= n)
    {
        return false;
    }
    // Each parity row less the known columns (the syndrome): the weighted sum of the lost ones.
    let mut rest: Vec<Vec<u8>> = Vec::with_capacity(k);
    for &y in rows {
        let mut s = parity[y].clone().unwrap_or_default();
        for (i, d) in data.iter().enumerate().filter(|(i, _)| !lost.contains(i)) {
            add_times(&mut s, d, weight(y, i, n));
        }
        rest.push(s);
    }
    let mut m: Vec<Vec<u8>> = rows.iter().map(|&y| lost.iter().map(|&x| weight(y, x, n)).collect()).collect();
    for c in 0..k {
        let Some(p) = (c..k).find(|&r| m[r][c] != 0) else { return false };
        m.swap(c, p);
        rest.swap(c, p);
        let f = inv(m[c][c]);
        m[c].iter_mut().for_each(|v| *v = mul(*v, f));
        rest[c].iter_mut().for_each(|v| *v = mul(*v, f));
        for r in (0..k).filter(|&r| r != c) {
            let f = m[r][c];
            if f != 0 {
                let (row, sum) = (m[c].clone(), rest[c].clone());
                add_times(&mut m[r], &row, f);
                add_times(&mut rest[r], &sum, f);
            }
        }
    }
    for (&x, s) in lost.iter().zip(&rest) {
        let len = data[x].len();
        data[x].copy_from_slice(&s[..len]);
    }
    true
}

/// A way to read a row: data columns taken as lost, and the parity rows that give them.
pub type Attempt = (Vec<usize>, Vec<usize>);

/// Most ways that are tried.
const MAX_ATTEMPTS: usize = 20_000;

/// All choices of `k` of `n` things, in order.
pub fn choices(n: usize, k: usize) -> Vec<Vec<usize>> {
    let mut out = vec![Vec::new()];
    for _ in 0..k {
        let longer = out.iter().flat_map(|c: &Vec<usize>| {
            (c.last().map_or(0, |l| l + 1)..n).map(|x| c.iter().copied().chain([x]).collect::<Vec<_>>())
        });
        out = longer.take(MAX_ATTEMPTS).collect();
    }
    out
}

/// All ways to read a row of `ndata` data columns that take some as lost. Fewest first; in very
/// wide vdevs not all.
pub fn attempts(ndata: usize, parity: usize) -> Vec<Attempt> {
    let mut out = Vec::new();
    for k in 1..=parity.min(ndata) {
        let rows = choices(parity, k);
        for lost in choices(ndata, k) {
            out.extend(rows.iter().map(|rows| (lost.clone(), rows.clone())));
        }
    }
    out.truncate(MAX_ATTEMPTS);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_of_the_format() {
        // Five children: one sector with single parity takes two columns; three sectors four; 128
        // KiB all five.
        let whole = |n, parity| Shape { logical: n, physical: n, moved: None, parity, ashift: 9 };
        let sizes = |p, size| columns(whole(5, p), 0, size).iter().map(|c| c.size).collect::<Vec<_>>();
        assert_eq!(sizes(1, 512), [512, 512]);
        assert_eq!(sizes(1, 1536), [512; 4]);
        assert_eq!(sizes(1, 131_072), [32_768; 5]);
        assert_eq!(sizes(3, 512), [512; 4]);
        let c = columns(whole(3, 1), 4 * 512, 1024);
        assert_eq!((c[0].parts[0].child, c[0].parts[0].offset), (1, 512));
        assert_eq!((c[2].parts[0].child, c[2].parts[0].offset), (0, 1024));
        let swapped = columns(whole(3, 1), 1 << 20, 1024);
        assert_eq!((swapped[0].parts[0].child, swapped[1].parts[0].child), (0, 2));
    }

    /// Seven sectors of data from sector 4 on, laid out over three children: rows of sectors 4 to
    /// 6, 7 to 9, 10 to 12 and 13 to 14.
    #[test]
    fn older_blocks_lie_sector_by_sector() {
        let old = Shape { logical: 3, physical: 4, moved: None, parity: 1, ashift: 9 };
        let places = |shape| {
            let of = |c: &Column| c.parts.iter().map(|p| (p.child, p.offset >> 9)).collect::<Vec<_>>();
            columns(shape, 4 << 9, 7 << 9).iter().map(of).collect::<Vec<_>>()
        };
        let moved =
            [vec![(0, 1), (3, 1), (2, 2), (1, 3)], vec![(1, 1), (0, 2), (3, 2), (2, 3)], vec![(2, 1), (1, 2), (0, 3)]];
        assert_eq!(places(old), moved);
        assert_eq!(places(Shape { moved: Some(16), ..old }), moved);
        let still =
            [vec![(1, 1), (1, 2), (1, 3), (1, 4)], vec![(2, 1), (2, 2), (2, 3), (2, 4)], vec![(0, 2), (0, 3), (0, 4)]];
        assert_eq!(places(Shape { moved: Some(0), ..old }), still);
        // The last row counts as a full one.
        assert_eq!(places(Shape { moved: Some(15), ..old })[0][2..], [(2, 2), (1, 4)]);
        // Up to the middle of the third row, which stays.
        let mut half = moved.clone();
        for (column, from) in half.iter_mut().zip(&still) {
            column[2..].copy_from_slice(&from[2..]);
        }
        assert_eq!(places(Shape { moved: Some(12), ..old }), half);
    }

    #[test]
    fn every_loss_that_parity_allows_is_made_good() {
        for ndata in 1..6usize {
            let data: Vec<Vec<u8>> = (0..ndata)
                .map(|i| (0..if i < 2 { 64 } else { 48 }).map(|b| (b * 37 + i * 91 + b * b) as u8).collect())
                .collect();
            let parity: Vec<Option<Vec<u8>>> = (0..3).map(|y| Some(parity_row(&data, y, 64))).collect();
            for (lost, rows) in attempts(ndata, 3) {
                let mut hurt = data.clone();
                lost.iter().for_each(|&x| hurt[x].fill(0xee));
                assert!(reconstruct(&mut hurt, &lost, &parity, &rows), "{lost:?} {rows:?}");
                assert_eq!(hurt, data, "{lost:?} by {rows:?}");
            }
        }
    }
}
