//! Counts of values by power of two.

use std::ops::Deref;

/// A histogram of `N` buckets: bucket b counts values of 2^b up to twice that; the first counts 0
/// too, the last everything above. Counts wrap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Log2<const N: usize>([u64; N]);

impl<const N: usize> Default for Log2<N> {
    fn default() -> Log2<N> {
        Log2([0; N])
    }
}

impl<const N: usize> Log2<N> {
    /// Counts a value.
    #[inline]
    pub fn add(&mut self, value: u64) {
        let n = &mut self.0[((value | 1).ilog2() as usize).min(N - 1)];
        *n = n.wrapping_add(1);
    }
    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Log2<N>) {
        self.0.iter_mut().zip(&other.0).for_each(|(a, b)| *a = a.wrapping_add(*b));
    }
    /// How many values were counted.
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, n| sum.wrapping_add(*n))
    }
    /// The counts without the empty buckets at the end.
    pub fn used(&self) -> &[u64] {
        let end = self.0.iter().rposition(|&n| n > 0).map_or(0, |last| last + 1);
        &self.0[..end]
    }
}

impl<const N: usize> Deref for Log2<N> {
    type Target = [u64; N];
    fn deref(&self) -> &[u64; N] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stand_by_their_power_of_two() {
        let mut h = Log2::<4>::default();
        for value in [0, 1, 2, 3, 4, 7, 8, 15, 16, u64::MAX] {
            h.add(value);
        }
        assert_eq!((*h, h.total()), ([2, 2, 2, 4], 10));
        let mut other = Log2::<4>::default();
        other.add(5);
        assert_eq!(other.used(), [0, 0, 1]);
        other.merge(&h);
        assert_eq!(*other, [2, 2, 3, 4]);
        assert!(Log2::<4>::default().used().is_empty());
    }
}
