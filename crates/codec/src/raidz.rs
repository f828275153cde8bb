//! RAID-Z parity: the parity columns of a row, and lost data columns from those that are left
//! (format page 09, sections 4 and 5).
//!
//! Vocabulary. A *row* is one block as it lies on a RAID-Z or dRAID vdev: k *data columns* D_0 ..
//! D_(k-1) and one to three *parity columns* P, Q, R. All arithmetic is byte by byte in GF(2^8)
//! with the polynomial 0x11d, where addition is xor:
//!
//! * P = sum of D_i,
//! * Q = sum of w_i D_i with the *weight* w_i = 2^(k-1-i),
//! * R = sum of w_i^2 D_i.
//!
//! So parity y is the sum of D_i w_i^y, computed from the left by Horner's rule with the factor
//! 2^y. A data column shorter than the longest one counts as if zeros followed it. Indexes here are
//! those of data columns; geometry (which column is on which child, the parity swap of raidz1) is
//! the business of the vdev.
//!
//! **Reconstruction.** With m data columns lost, m parity columns give m equations: each
//! *syndrome*, the parity plus the same sum over the columns that are left, is the weighted sum of
//! the lost columns. The m x m matrix of weights is invertible for any rows and any columns (k <=
//! 255 makes the weights distinct; see the test of all minors), so every choice of m parity columns
//! will do.
//!
//! Lost parity columns need no function of their own: reconstruct the data, then [`generate`].

mod kernel;

use std::sync::LazyLock;

pub use kernel::Kernel;
use kernel::{Lost, Output};

/// The most data columns of a row: with more, weights would repeat.
pub const DATA_COLUMNS_MAX: usize = 255;

/// The most parity columns of a row: P, Q and R.
pub const PARITY_MAX: usize = 3;

/// Computes the parity columns of a row: P if there is one, P and Q if two, P, Q and R if three.
/// Their old content does not matter.
///
/// Data columns may differ in length; each parity column must be as long as the longest of them.
/// Lengths need not be multiples of anything, though multiples of 512 bytes are the fast case.
///
/// # Panics
/// If there are no or more than 255 data columns, no or more than 3 parity columns, or a parity
/// column has another length.
pub fn generate(data: &[&[u8]], parity: &mut [&mut [u8]]) {
    generate_by(best(), data, parity);
}

/// Computes the data columns `missing` (indexes into `data`, ascending) from the other data columns
/// and from parity.
///
/// `parity[y]` is parity column y (P, Q, R) where it may be used, and `None` where it is lost or
/// shall be left out, as when all ways to read a damaged row are tried one by one. Of those given,
/// the first `missing.len()` are used. The slices of the missing columns have their full length;
/// their old content does not matter. With nothing missing nothing is done.
///
/// The result follows from the given columns, right or wrong: only the block's checksum can verify
/// it.
///
/// # Panics
/// If `missing` is not ascending or out of range, if fewer parity columns are given than columns
/// are missing, or if lengths are not as [`generate`] has them.
pub fn reconstruct(data: &mut [&mut [u8]], missing: &[usize], parity: &[Option<&[u8]>]) {
    reconstruct_by(best(), data, missing, parity);
}

/// [`generate`] by one kernel.
///
/// # Panics
/// As `generate`, and if this machine does not have the kernel.
#[doc(hidden)]
pub fn generate_with(kernel: Kernel, data: &[&[u8]], parity: &mut [&mut [u8]]) {
    assert!(Kernel::available().contains(&kernel), "this machine has no {kernel:?}");
    generate_by(kernel, data, parity);
}

/// [`reconstruct`] by one kernel.
///
/// # Panics
/// As `reconstruct`, and if this machine does not have the kernel.
#[doc(hidden)]
pub fn reconstruct_with(kernel: Kernel, data: &mut [&mut [u8]], missing: &[usize], parity: &[Option<&[u8]>]) {
    assert!(Kernel::available().contains(&kernel), "this machine has no {kernel:?}");
    reconstruct_by(kernel, data, missing, parity);
}

/// The best kernel of this machine, found out once per process.
fn best() -> Kernel {
    static BEST: LazyLock<Kernel> = LazyLock::new(|| Kernel::available()[0]);
    *BEST
}

fn generate_by(kernel: Kernel, data: &[&[u8]], parity: &mut [&mut [u8]]) {
    let len = check(data.iter().map(|c| c.len()));
    assert!((1..=PARITY_MAX).contains(&parity.len()), "{} parity columns", parity.len());
    assert!(parity.iter().all(|p| p.len() == len), "a parity column is not as long as the longest data column");
    kernel::run(kernel, data, len, Output::Parity(parity));
}

fn reconstruct_by(kernel: Kernel, data: &mut [&mut [u8]], missing: &[usize], parity: &[Option<&[u8]>]) {
    let len = check(data.iter().map(|c| c.len()));
    let (k, m) = (data.len(), missing.len());
    assert!(missing.is_sorted_by(|a, b| a < b) && missing.iter().all(|&x| x < k), "missing columns {missing:?} of {k}");
    assert!(parity.len() <= PARITY_MAX, "{} parity columns", parity.len());
    assert!(
        parity.iter().flatten().all(|p| p.len() == len),
        "a parity column is not as long as the longest data column"
    );
    let mut used = [None; PARITY_MAX];
    let (mut rows, mut found) = ([0; PARITY_MAX], 0);
    for (y, p) in parity.iter().enumerate() {
        if p.is_some() && found < m {
            used[y] = *p;
            rows[found] = y;
            found += 1;
        }
    }
    assert!(found == m, "{m} columns are missing, but only {found} parity columns are given");
    let factors = solve(k, missing, &rows[..m]);

    let mut left: Vec<&[u8]> = Vec::with_capacity(k);
    let mut lost = Vec::with_capacity(m);
    for (i, column) in data.iter_mut().enumerate() {
        if missing.contains(&i) {
            left.push(&[]);
            lost.push(column);
        } else {
            left.push(column);
        }
    }
    kernel::run(kernel, &left, len, Output::Lost(Lost { parity: used, columns: lost, factors }));
}

/// The length of the longest column; asserts that their number is one that weights allow.
fn check(lengths: impl ExactSizeIterator<Item = usize>) -> usize {
    let count = lengths.len();
    assert!((1..=DATA_COLUMNS_MAX).contains(&count), "{count} data columns");
    lengths.max().unwrap_or(0)
}

/// Powers of 2, twice over so that sums of two logarithms need no reduction, and logarithms to
/// base 2.
const EXP_LOG: ([u8; 510], [u8; 256]) = {
    let (mut exp, mut log) = ([0u8; 510], [0u8; 256]);
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
static EXP: [u8; 510] = EXP_LOG.0;
static LOG: [u8; 256] = EXP_LOG.1;

/// The product of `a` and `b`.
fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 { 0 } else { EXP[usize::from(LOG[usize::from(a)]) + usize::from(LOG[usize::from(b)])] }
}

/// The inverse of `a`, which is not 0.
fn inverse(a: u8) -> u8 {
    assert!(a != 0, "0 has no inverse");
    EXP[255 - usize::from(LOG[usize::from(a)])]
}

/// The factor of data column `i` of `k` in parity column `y`.
fn weight(y: usize, i: usize, k: usize) -> u8 {
    EXP[y * (k - 1 - i) % 255]
}

/// The factors that turn syndromes into lost columns: lost column j is the sum over t of `[j][t]`
/// times the syndrome of parity column `rows[t]`. This is the inverse of the matrix of weights, by
/// elimination.
fn solve(k: usize, missing: &[usize], rows: &[usize]) -> [[u8; PARITY_MAX]; PARITY_MAX] {
    let m = missing.len();
    let mut weights = [[0u8; PARITY_MAX]; PARITY_MAX];
    let mut inverted = [[0u8; PARITY_MAX]; PARITY_MAX];
    for t in 0..m {
        for (j, &x) in missing.iter().enumerate() {
            weights[t][j] = weight(rows[t], x, k);
        }
        inverted[t][t] = 1;
    }
    for c in 0..m {
        let pivot = (c..m).find(|&r| weights[r][c] != 0).expect("every minor of the weights is invertible");
        weights.swap(c, pivot);
        inverted.swap(c, pivot);
        let f = inverse(weights[c][c]);
        for j in 0..m {
            weights[c][j] = mul(weights[c][j], f);
            inverted[c][j] = mul(inverted[c][j], f);
        }
        for r in (0..m).filter(|&r| r != c) {
            let f = weights[r][c];
            for j in 0..m {
                weights[r][j] ^= mul(weights[c][j], f);
                inverted[r][j] ^= mul(inverted[c][j], f);
            }
        }
    }
    inverted
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes that look random, the same every time.
    fn noise(len: usize, seed: u64) -> Vec<u8> {
        let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        (0..len)
            .map(|_| {
                z ^= z << 13;
                z ^= z >> 7;
                z ^= z << 17;
                (z >> 32) as u8
            })
            .collect()
    }

    fn mul_slowly(mut a: u8, mut b: u8) -> u8 {
        let mut product = 0;
        while b != 0 {
            product ^= if b & 1 != 0 { a } else { 0 };
            a = (a << 1) ^ if a & 0x80 != 0 { 0x1d } else { 0 };
            b >>= 1;
        }
        product
    }

    /// Parity as format page 09 words it: copy the first column, then multiply and add each next
    /// one.
    fn parity_by_horner(data: &[Vec<u8>], y: usize, len: usize) -> Vec<u8> {
        let factor = [1, 2, 4][y];
        let mut row = vec![0; len];
        for column in data {
            for (i, p) in row.iter_mut().enumerate() {
                *p = mul_slowly(*p, factor) ^ column.get(i).copied().unwrap_or(0);
            }
        }
        row
    }

    fn parity_of(kernel: Kernel, data: &[Vec<u8>], count: usize) -> Vec<Vec<u8>> {
        let len = data.iter().map(Vec::len).max().unwrap();
        let mut parity = vec![vec![0xa5; len]; count];
        let columns: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let mut rows: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        generate_with(kernel, &columns, &mut rows);
        parity
    }

    /// All subsets of 0..n with at most `max` elements.
    fn subsets(n: usize, max: usize) -> Vec<Vec<usize>> {
        let mut all = vec![vec![]];
        let mut from = 0;
        for _ in 0..max {
            let to = all.len();
            for s in from..to {
                for x in all[s].last().map_or(0, |l| l + 1)..n {
                    let longer = all[s].iter().copied().chain([x]).collect();
                    all.push(longer);
                }
            }
            from = to;
        }
        all
    }

    fn check_all_losses(kernel: Kernel, data: &[Vec<u8>]) {
        let parity = parity_of(Kernel::Scalar, data, 3);
        for missing in subsets(data.len(), 3) {
            for rows in subsets(3, 3).into_iter().filter(|r| r.len() >= missing.len()) {
                let mut hurt = data.to_vec();
                missing.iter().for_each(|&x| hurt[x].fill(0x5a));
                let given: Vec<Option<&[u8]>> =
                    (0..3).map(|y| rows.contains(&y).then_some(parity[y].as_slice())).collect();
                let mut columns: Vec<&mut [u8]> = hurt.iter_mut().map(Vec::as_mut_slice).collect();
                reconstruct_with(kernel, &mut columns, &missing, &given);
                assert!(hurt == data, "{kernel:?}: {missing:?} of {} by {rows:?}", data.len());
            }
        }
    }

    #[test]
    fn the_field() {
        for a in 0..=255u8 {
            for b in 0..=255u8 {
                assert_eq!(mul(a, b), mul_slowly(a, b), "{a} * {b}");
            }
            if a != 0 {
                assert_eq!(mul(a, inverse(a)), 1);
            }
        }
    }

    #[test]
    fn parity_is_what_the_format_says() {
        for k in 1..=12usize {
            for short in [0, 1, 37, 100, 512] {
                let data: Vec<Vec<u8>> =
                    (0..k).map(|i| noise(if i < k.div_ceil(2) { 1024 } else { 1024 - short }, i as u64 + 1)).collect();
                for kernel in Kernel::available() {
                    for count in 1..=3 {
                        for (y, row) in parity_of(kernel, &data, count).iter().enumerate() {
                            assert!(*row == parity_by_horner(&data, y, 1024), "{kernel:?}: {k} columns, parity {y}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn lengths_and_places_are_free() {
        // Columns of any lengths in any order, also empty ones, at odd addresses.
        for seed in 1..400u64 {
            let dice = noise(16, seed);
            let k = 1 + usize::from(dice[0]) % 6;
            let data: Vec<Vec<u8>> =
                (0..k).map(|i| noise(usize::from(dice[1 + i]) * 3 % 300, seed + i as u64)).collect();
            let len = data.iter().map(Vec::len).max().unwrap();
            for kernel in Kernel::available() {
                for (y, row) in parity_of(kernel, &data, 3).iter().enumerate() {
                    assert!(*row == parity_by_horner(&data, y, len), "{kernel:?}: seed {seed}, parity {y}");
                }
                let off = 1 + usize::from(dice[9] % 15);
                let wide: Vec<u8> = noise(2048, seed);
                let mut p = vec![0; 2048];
                generate_with(kernel, &[&wide[off..off + 1027], &wide[off + 3..off + 900]], &mut [&mut p[7..7 + 1027]]);
                let expected =
                    parity_by_horner(&[wide[off..off + 1027].to_vec(), wide[off + 3..off + 900].to_vec()], 0, 1027);
                assert!(p[7..7 + 1027] == expected && p[..7] == [0; 7] && p[7 + 1027..].iter().all(|b| *b == 0));
            }
        }
    }

    #[test]
    fn every_loss_that_parity_allows_is_made_good() {
        for kernel in Kernel::available() {
            for k in 1..=7 {
                check_all_losses(kernel, &(0..k).map(|i| noise(640, i as u64 + 9)).collect::<Vec<_>>());
                let sectors = |i| if i < 2 { 1024 } else { 512 };
                check_all_losses(kernel, &(0..k).map(|i| noise(sectors(i), i as u64 + 9)).collect::<Vec<_>>());
                let odd = |i: usize| [300, 33, 0, 301, 299, 64, 5][i];
                check_all_losses(kernel, &(0..k).map(|i| noise(odd(i), i as u64 + 9)).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn wide_rows() {
        let data: Vec<Vec<u8>> = (0..255).map(|i| noise(96, i + 1)).collect();
        let parity = parity_of(Kernel::Scalar, &data, 3);
        for (y, row) in parity.iter().enumerate() {
            assert!(*row == parity_by_horner(&data, y, 96));
        }
        for kernel in Kernel::available() {
            for missing in [[0, 1, 2], [0, 100, 254], [252, 253, 254]] {
                let mut hurt = data.clone();
                missing.iter().for_each(|&x| hurt[x].fill(0));
                let given: Vec<Option<&[u8]>> = parity.iter().map(|p| Some(p.as_slice())).collect();
                let mut columns: Vec<&mut [u8]> = hurt.iter_mut().map(Vec::as_mut_slice).collect();
                reconstruct_with(kernel, &mut columns, &missing, &given);
                assert!(hurt == data, "{kernel:?} {missing:?}");
            }
        }
    }

    #[test]
    fn every_minor_of_the_weights_is_invertible() {
        // Weights depend on k - 1 - i alone, and multiplying all columns by a constant changes no
        // rank: only the differences of positions count, so the first of them may be the last
        // column.
        let k = DATA_COLUMNS_MAX;
        for a in 0..k - 1 {
            for rows in [[0, 1], [0, 2], [1, 2]] {
                solve(k, &[a, k - 1], &rows);
            }
            for b in a + 1..k - 1 {
                solve(k, &[a, b, k - 1], &[0, 1, 2]);
            }
        }
    }

    #[test]
    #[should_panic(expected = "only 1 parity columns are given")]
    fn too_little_parity_is_a_bug_of_the_caller() {
        let (mut a, mut b, p) = ([0u8; 8], [0u8; 8], [0u8; 8]);
        reconstruct(&mut [&mut a, &mut b], &[0, 1], &[Some(&p)]);
    }
}
