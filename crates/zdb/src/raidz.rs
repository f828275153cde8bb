//! RAID-Z rows: the places of a block's columns, the content of the parity columns, and lost
//! columns from the others (format page 09 sections 3 to 5).
//!
//! Parity is over GF(2^8) with polynomial 0x11d: row y is the sum of the data columns times powers
//! of 2^y, the last one times 1. Columns shorter than the longest count as zero at their ends.
//! Losing k data columns leaves k unknowns; any k parity rows give equations for them.

/// A column of a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Column {
    /// Which child of the vdev.
    pub child: usize,
    /// Offset in the child's space.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// The columns of `size` bytes (rounded up to sectors) at `off` of a vdev of `n` children, parity
/// columns first. There may be fewer than `n`.
pub fn columns(n: u64, parity: u64, ashift: u32, off: u64, size: u64) -> Vec<Column> {
    let (b, s) = (off >> ashift, size.div_ceil(1 << ashift));
    let (first, row) = (b % n, (b / n) << ashift);
    let (q, r) = (s / (n - parity), s % (n - parity));
    let big = if r == 0 { 0 } else { r + parity };
    let count = if q == 0 { big } else { n };
    let mut out: Vec<Column> = (0..count)
        .map(|c| Column {
            child: ((first + c) % n) as usize,
            offset: row + if first + c >= n { 1 << ashift } else { 0 },
            size: (q + u64::from(c < big)) << ashift,
        })
        .collect();
    // Single parity changes places with the first data column in every other MiB.
    if parity == 1 && off & (1 << 20) != 0 && out.len() > 1 {
        let (a, b) = (out[0], out[1]);
        out[0] = Column { size: a.size, ..b };
        out[1] = Column { size: b.size, ..a };
    }
    out
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
fn choices(n: usize, k: usize) -> Vec<Vec<usize>> {
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
        let sizes = |p, size| columns(5, p, 9, 0, size).iter().map(|c| c.size).collect::<Vec<_>>();
        assert_eq!(sizes(1, 512), [512, 512]);
        assert_eq!(sizes(1, 1536), [512; 4]);
        assert_eq!(sizes(1, 131_072), [32_768; 5]);
        assert_eq!(sizes(3, 512), [512; 4]);
        let c = columns(3, 1, 9, 4 * 512, 1024);
        assert_eq!((c[0].child, c[0].offset, c[2].child, c[2].offset), (1, 512, 0, 1024));
        let swapped = columns(3, 1, 9, 1 << 20, 1024);
        assert_eq!((swapped[0].child, swapped[1].child), (0, 2));
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
