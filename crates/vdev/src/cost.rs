//! Worst-case space of a block: the charge to transactions before anything is written. Pure.
//!
//! A block is stored in one piece, or, when free space is fragmented, as a gang block: then its
//! data is at worst split into single allocation units, each with the padding and the parity of a
//! separate block. A header points to two or three pieces or headers, so that `n` pieces need at
//! most 3/4 `n` headers (pairs under triples). A header has one copy more than the data, at most
//! three. OpenZFS multiplies by 24 instead (`spa_asize_inflation`: 4 for a sector on RAID-Z3, 3
//! copies, 2 for gang headers), which is too little for blocks below the allocation unit and too
//! much for all others.

/// Maximum number of copies.
const COPIES_MAX: u64 = 3;
/// Bytes of a gang header.
const GANG_HEADER: u64 = 512;

/// Worst-case bytes of `copies` copies of a block of `psize` bytes, where a block of n bytes takes
/// `asize(n)` and pieces are multiples of `unit` bytes. `copies` is 1 to 3.
pub fn worst_asize(psize: u64, copies: u64, unit: u64, asize: impl Fn(u64) -> u64) -> u64 {
    if psize == 0 {
        return 0;
    }
    let whole = asize(psize).saturating_mul(copies);
    let pieces = psize.div_ceil(unit.max(1));
    // An allocation unit cannot be divided.
    if pieces == 1 {
        return whole;
    }
    let headers = (pieces * 3 / 4) * (copies + 1).min(COPIES_MAX);
    let gang = pieces.saturating_mul(asize(unit)).saturating_mul(copies);
    whole.max(gang.saturating_add(headers.saturating_mul(asize(GANG_HEADER))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::{Draid, raidz_asize};

    const KIB: u64 = 1 << 10;

    #[test]
    fn charges_follow_the_geometry() {
        let flat = |ashift: u8| move |n: u64| n.next_multiple_of(1 << ashift);
        for (psize, copies, ashift, want) in [
            // Below the unit of allocation: the unit.
            (512, 1, 9, 512),
            (512, 3, 13, 3 * 8 * KIB),
            (4 * KIB, 2, 12, 8 * KIB),
            (1, 1, 16, 64 * KIB),
            // 2 pieces and 1 header in 2 copies.
            (1024, 1, 9, 2 * 512 + 2 * 512),
            // 32 pieces, 24 headers in 2 or 3 copies.
            (128 * KIB, 1, 12, 128 * KIB + 24 * 2 * 4 * KIB),
            (128 * KIB, 3, 12, 3 * 128 * KIB + 24 * 3 * 4 * KIB),
            (0, 3, 12, 0),
        ] {
            assert_eq!(worst_asize(psize, copies, 1 << ashift, flat(ashift)), want, "{psize} {copies} {ashift}");
        }
        // RAID-Z: a sector takes its parity.
        for (children, parity, ashift, psize, copies, want) in [
            (3, 1, 12, 512, 1, 8 * KIB),
            (6, 3, 13, 512, 3, 3 * 32 * KIB),
            (5, 2, 12, 8 * KIB, 1, 2 * 12 * KIB + 2 * 12 * KIB),
        ] {
            let asize = |n| raidz_asize(n, ashift, children, parity);
            assert_eq!(worst_asize(psize, copies, 1 << ashift, asize), want, "raidz{parity} of {children}, {psize}");
        }
        // dRAID: a piece takes a sector of every column of its group.
        let draid = Draid::new(2, 4, 9, 1, 12).expect("a layout");
        assert_eq!(worst_asize(512, 1, draid.unit_data(), |n| draid.asize(n)), 24 * KIB);
        assert_eq!(worst_asize(128 * KIB, 1, draid.unit_data(), |n| draid.asize(n)), 8 * 24 * KIB + 6 * 2 * 24 * KIB);
    }

    #[test]
    fn nothing_takes_more() {
        // However a block is divided in three, down to units, it stays within its charge.
        fn divided(psize: u64, copies: u64, unit: u64, asize: &dyn Fn(u64) -> u64) -> u64 {
            if psize <= unit {
                return asize(psize) * copies;
            }
            let (mut left, mut sum) = (psize, asize(GANG_HEADER) * (copies + 1).min(3));
            for g in 0..3 {
                let piece = left.div_ceil(3 - g).next_multiple_of(unit).min(left);
                left -= piece;
                if piece > 0 {
                    sum += divided(piece, copies, unit, asize);
                }
            }
            sum
        }
        for (children, parity) in [(3, 1), (5, 2), (6, 3), (11, 3)] {
            for ashift in [9, 12, 13] {
                let asize = |n| raidz_asize(n, ashift, children, parity);
                for sectors in 1..300 {
                    let psize = sectors * 512;
                    for copies in 1..=3 {
                        let charge = worst_asize(psize, copies, 1 << ashift, asize);
                        assert!(divided(psize, copies, 1 << ashift, &asize) <= charge, "{psize} {copies} {ashift}");
                        assert!(asize(psize) * copies <= charge);
                    }
                }
            }
        }
    }
}
