//! Weight and fragmentation of a metaslab: pure functions of its histogram (format page 06 sections
//! 3 and 4, `metaslab_weight`).

use crate::range_tree::BUCKETS;

/// Badness in percent of free space in segments of 512 bytes, 1 KiB, ... 16 MiB; larger ones are
/// perfect.
pub const FRAGMENTATION_TABLE: [u8; 16] = [100, 100, 98, 95, 90, 80, 70, 60, 50, 40, 30, 20, 15, 10, 5, 0];

/// Fragmentation in percent of a metaslab whose free segments `histogram` counts: bucket b is
/// `2^(b + shift)` bytes and more. 0 if nothing is free.
pub fn fragmentation(histogram: &[u64; BUCKETS], shift: u8) -> u8 {
    let (mut free, mut bad) = (0u128, 0u128);
    for (b, &count) in histogram.iter().enumerate() {
        let log2 = b + usize::from(shift);
        let space = u128::from(count) << log2.min(48);
        let row = log2.saturating_sub(9).min(FRAGMENTATION_TABLE.len() - 1);
        free += space;
        bad += space * u128::from(FRAGMENTATION_TABLE[row]);
    }
    bad.checked_div(free).unwrap_or(0) as u8
}

/// A metaslab's weight: the higher, the better. Laid out as OpenZFS prints it: bit 60 set for
/// space-based weights; else bits 54 to 59 are the log2 of the largest free segments' size and the
/// bits below count them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Weight(pub u64);

const SPACE_BASED: u64 = 1 << 60;
const INDEX_SHIFT: u32 = 54;
const COUNT_MASK: u64 = (1 << INDEX_SHIFT) - 1;

impl Weight {
    /// Weight of an empty metaslab of `size` bytes.
    pub fn empty(size: u64) -> Weight {
        Weight::segments(size.max(1).ilog2(), 1)
    }

    fn segments(index: u32, count: u64) -> Weight {
        Weight(u64::from(index) << INDEX_SHIFT | count.min(COUNT_MASK))
    }

    /// Weight of a metaslab with the free segments of `histogram`: bucket b is `2^(b + shift)`
    /// bytes and more. 0 if nothing is free.
    pub fn from_histogram(histogram: &[u64; BUCKETS], shift: u8) -> Weight {
        match histogram.iter().rposition(|&n| n > 0) {
            Some(b) => Weight::segments(b as u32 + u32::from(shift), histogram[b]),
            None => Weight(0),
        }
    }

    /// Weight of a metaslab of which only the free bytes, and perhaps the fragmentation, are known.
    pub fn from_space(free: u64, fragmentation: Option<u8>) -> Weight {
        if free == 0 {
            return Weight(0);
        }
        let percent = match fragmentation {
            Some(f) if f > 0 => 100 - (u128::from(f.min(100)) - 1),
            _ => 100,
        };
        let space = (u128::from(free) * percent / 100) as u64;
        Weight(SPACE_BASED | space.min(SPACE_BASED - 1))
    }

    /// log2 of the size of the largest free segments, of a segment-based weight above 0.
    pub fn index(self) -> Option<u32> {
        (self.0 != 0 && self.0 & SPACE_BASED == 0).then_some((self.0 >> INDEX_SHIFT) as u32 & 0x3f)
    }

    /// Whether an allocation of `asize` bytes may succeed; an estimate, since the weight counts
    /// powers of two only.
    pub fn may_fit(self, asize: u64) -> bool {
        match self.index() {
            Some(index) => asize.checked_shr(index + 1).unwrap_or(0) == 0,
            None => self.0 != 0 && asize <= self.0 & (SPACE_BASED - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hist(rows: &[(usize, u64)]) -> [u64; BUCKETS] {
        let mut h = [0; BUCKETS];
        rows.iter().for_each(|&(b, n)| h[b] = n);
        h
    }

    #[test]
    fn fragmentation_by_the_table() {
        for (shift, rows, want) in [
            (9, &[][..], 0),
            (9, &[(0, 7)][..], 100),
            (9, &[(2, 7)], 98),
            (9, &[(15, 1)], 0),
            (9, &[(25, 3)], 0),
            (12, &[(0, 5)], 95),
            (12, &[(5, 1)], 50),
            // 1 MiB in 4 KiB pieces and 3 MiB in 1 MiB pieces: (95 + 3 * 20) / 4.
            (12, &[(0, 256), (8, 3)], 38),
            // 16 MiB whole, 16 MiB in pieces of 128 KiB.
            (9, &[(15, 1), (8, 128)], 25),
        ] {
            assert_eq!(fragmentation(&hist(rows), shift), want, "{rows:?} at {shift}");
        }
        assert_eq!(fragmentation(&[u64::MAX; BUCKETS], 63), 0, "absurd counts do not overflow");
    }

    #[test]
    fn weights_order_metaslabs() {
        let w = |rows: &[(usize, u64)]| Weight::from_histogram(&hist(rows), 9);
        assert_eq!(w(&[(3, 5), (1, 100)]).0, (12 << 54) + 5);
        assert_eq!(w(&[(3, 5), (1, 100)]).index(), Some(12));
        assert_eq!(w(&[]), Weight(0));
        assert!(Weight::empty(1 << 24) > w(&[(14, 1)]));
        assert!(w(&[(15, 1)]) == Weight::empty(1 << 24));
        assert!(w(&[(5, 1)]) > w(&[(4, 1000)]));
        assert!(w(&[(4, 2)]) > w(&[(4, 1)]));
        assert!(w(&[(0, 1)]) > w(&[]));
        for (weight, asize, want) in [
            (w(&[(3, 1)]), 4096, true),
            (w(&[(3, 1)]), 8191, true),
            (w(&[(3, 1)]), 8192, false),
            (w(&[]), 512, false),
            (Weight::empty(1 << 24), 1 << 24, true),
            (Weight::from_space(4096, None), 4096, true),
            (Weight::from_space(4096, None), 8192, false),
            (Weight::from_space(0, None), 512, false),
        ] {
            assert_eq!(weight.may_fit(asize), want, "{weight:?} for {asize}");
        }
        for (free, frag, want) in [
            (1000, None, 1000),
            (1000, Some(0), 1000),
            (1000, Some(1), 1000),
            (1000, Some(51), 500),
            (1000, Some(100), 10),
        ] {
            assert_eq!(Weight::from_space(free, frag).0 & !SPACE_BASED, want, "{free} {frag:?}");
        }
    }
}
