//! Distributions: exact percentiles of measured values, and counts by powers of two as DTrace's
//! `quantize()` prints them.

use serde::Serialize;

/// One bucket: values of at least `from_us` and less than twice that.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Bucket {
    /// Its smallest value in microseconds; 0 stands for less than one.
    pub from_us: u64,
    /// The number of values.
    pub count: u64,
}

/// The buckets of values in nanoseconds, from the first to the last that is not empty, without
/// gaps.
pub fn buckets(ns: &[u64]) -> Vec<Bucket> {
    let index = |v: u64| (v / 1000).checked_ilog2().map_or(0, |l| l as usize + 1);
    let mut counts = vec![0u64; 56];
    ns.iter().for_each(|&v| counts[index(v)] += 1);
    let first = counts.iter().position(|&c| c > 0).unwrap_or(0);
    let last = counts.iter().rposition(|&c| c > 0).unwrap_or(0);
    let from = |i: usize| if i == 0 { 0 } else { 1 << (i - 1) };
    if ns.is_empty() {
        return Vec::new();
    }
    (first..=last).map(|i| Bucket { from_us: from(i), count: counts[i] }).collect()
}

/// The buckets of values in nanoseconds as points of a curve: microseconds, at least 1, and count.
pub fn points(ns: &[u64]) -> Vec<(f64, f64)> {
    buckets(ns).into_iter().map(|b| (b.from_us.max(1) as f64, b.count as f64)).collect()
}

/// The value that `permille` thousandths of the sorted values do not exceed; 0 if there are none.
pub fn percentile(sorted: &[u64], permille: u64) -> u64 {
    let n = sorted.len() as u64;
    if n == 0 {
        return 0;
    }
    let rank = (n * permille).div_ceil(1000).clamp(1, n);
    sorted[(rank - 1) as usize]
}

/// Modes of a distribution: local maxima with at least a hundredth of all values, separated from a
/// larger neighbour by a bucket with less than half.
pub fn modes(buckets: &[Bucket]) -> usize {
    let total: u64 = buckets.iter().map(|b| b.count).sum();
    let mut modes = 0;
    // Walks up and down; a new mode begins after the counts fell below half of the one before and
    // doubled again.
    let (mut peak, mut valley, mut rising) = (0u64, 0u64, true);
    for b in buckets {
        if rising {
            if b.count > peak {
                peak = b.count;
            } else if b.count * 2 < peak {
                modes += usize::from(peak * 100 >= total);
                (rising, valley) = (false, b.count);
            }
        } else if b.count < valley {
            valley = b.count;
        } else if b.count > valley * 2 && b.count * 100 >= total {
            (rising, peak) = (true, b.count);
        }
    }
    modes + usize::from(rising && peak * 100 >= total && total > 0)
}

/// Standard deviation over mean, 0 for a mean of 0.
pub fn variation(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    if values.is_empty() {
        return 0.0;
    }
    let mean = values.iter().sum::<f64>() / n;
    let var = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
    if mean == 0.0 { 0.0 } else { var.sqrt() / mean }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_percentiles_and_modes() {
        let b = buckets(&[0, 999, 1000, 1999, 2000, 3_999, 4_000_000]);
        assert_eq!(
            (b[0], b[1], b[2]),
            (Bucket { from_us: 0, count: 2 }, Bucket { from_us: 1, count: 2 }, Bucket { from_us: 2, count: 2 })
        );
        assert_eq!(b.last().map(|b| (b.from_us, b.count)), Some((2048, 1)));
        assert!(buckets(&[]).is_empty());
        let v: Vec<u64> = (1..=1000).collect();
        assert_eq!(
            [percentile(&v, 500), percentile(&v, 990), percentile(&v, 999), percentile(&v, 1000)],
            [500, 990, 999, 1000]
        );
        assert_eq!((percentile(&[7], 999), percentile(&[], 500)), (7, 0));
        let shape =
            |counts: &[u64]| modes(&counts.iter().map(|&count| Bucket { from_us: 0, count }).collect::<Vec<_>>());
        assert_eq!(shape(&[1, 10, 100, 1000, 900, 20]), 1);
        assert_eq!(shape(&[5000, 900, 10, 0, 800, 3, 0, 0, 500]), 3);
        assert_eq!(shape(&[5000, 900, 10, 0, 3]), 1, "less than a hundredth is no mode");
        assert_eq!(shape(&[]), 0);
        assert_eq!(variation(&[3.0, 3.0]), 0.0);
        assert_eq!(variation(&[0.0, 2.0]), 1.0);
    }
}
