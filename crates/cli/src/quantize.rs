//! Distributions as DTrace prints them: `quantize()`, one line per power of two with a bar.

use std::fmt::Write as _;

/// Width of the longest bar.
const BAR: u64 = 40;

/// The lines of a distribution: each value with its count, in order; one empty line before and
/// after as `quantize()` has it.
pub fn quantize(buckets: &[(u64, u64)]) -> String {
    let mut out = format!("{:>16}  {:-^40} count    \n", "value", " Distribution ");
    let total: u64 = buckets.iter().map(|b| b.1).sum();
    if total == 0 {
        return out;
    }
    let (first, last) = (buckets[0].0, buckets[buckets.len() - 1].0);
    let mut line = |value: u64, count: u64| {
        // Rounded to the nearest, as the original does.
        let (part, all) = (u128::from(count) * u128::from(BAR), u128::from(total));
        let n = ((2 * part + all) / (2 * all)) as usize;
        let _ = writeln!(out, "{value:>16} |{:<40} {count:<9}", "@".repeat(n));
    };
    if first > 0 {
        line(first / 2, 0);
    }
    for &(value, count) in buckets {
        line(value, count);
    }
    line((last * 2).max(1), 0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_like_the_original() {
        let text = quantize(&[(8, 1), (16, 0), (32, 3)]);
        assert_eq!(
            text,
            "           value  ------------- Distribution ------------- count    \n               4 |                                         0        \n               8 |@@@@@@@@@@                               1        \n              16 |                                         0        \n              32 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@           3        \n              64 |                                         0        \n"
        );
        assert!(!quantize(&[]).contains('@'));
    }
}
