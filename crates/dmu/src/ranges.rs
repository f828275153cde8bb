//! A set of numbers as disjoint ranges: which blocks a transaction group frees.

use std::collections::BTreeMap;

/// Disjoint, non-touching half-open ranges. A range that ends at `u64::MAX` has no end.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct RangeSet(BTreeMap<u64, u64>);

impl RangeSet {
    /// Adds `start..end`, merged with the ranges that it touches.
    pub fn insert(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let (mut start, mut end) = (start, end);
        if let Some((&s, &e)) = self.0.range(..=start).next_back()
            && e >= start
        {
            start = s;
            end = end.max(e);
        }
        while let Some((&s, &e)) = self.0.range(start..).next() {
            if s > end {
                break;
            }
            end = end.max(e);
            self.0.remove(&s);
        }
        self.0.insert(start, end);
    }
    /// The end of the range that holds `x`.
    pub fn end_of(&self, x: u64) -> Option<u64> {
        self.0.range(..=x).next_back().filter(|&(_, &e)| x < e).map(|(_, &e)| e)
    }
    pub fn contains(&self, x: u64) -> bool {
        self.end_of(x).is_some()
    }
    /// Whether one range holds all of `start..end`.
    pub fn covers(&self, start: u64, end: u64) -> bool {
        self.end_of(start).is_some_and(|e| e >= end)
    }
    /// The smallest member at or after `x`.
    pub fn next_from(&self, x: u64) -> Option<u64> {
        if self.contains(x) { Some(x) } else { self.0.range(x..).next().map(|(&s, _)| s) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn against_a_set() {
        let mut seed = 12345u64;
        let mut rnd = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        let (mut r, mut m) = (RangeSet::default(), BTreeSet::new());
        for _ in 0..3000 {
            let a = rnd(64);
            let b = a + rnd(8);
            r.insert(a, b);
            m.extend(a..b);
            for x in 0..72 {
                assert_eq!(r.contains(x), m.contains(&x));
                assert_eq!(r.next_from(x), m.range(x..).next().copied());
                assert_eq!(r.covers(x, x + 3), (x..x + 3).all(|y| m.contains(&y)));
            }
            if m.len() > 45 {
                r = RangeSet::default();
                m.clear();
            }
        }
    }
}
