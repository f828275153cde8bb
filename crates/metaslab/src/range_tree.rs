//! Sets of ranges with the queries of an allocator.
//!
//! A [`RangeTree`] covers one metaslab (or any area) and counts in units of its allocation size, so
//! that a segment takes eight bytes. Segments are disjoint and never touch: adjacent ones are
//! merged. They are keyed by their *end*: taking space from the front of a segment, nearly always
//! the case in a first-fit allocator, then changes a value in place. An indexed tree also keeps its
//! segments by size, for best fit and the size of the largest.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Bound::{Excluded, Unbounded};

use base::Error;

/// A range of bytes within a top-level vdev.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Run {
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub size: u64,
}

impl Run {
    /// The byte after the last.
    pub fn end(&self) -> u64 {
        self.start + self.size
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}+{:#x}", self.start, self.size)
    }
}

/// Why a range could not be added or removed; the tree is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangeError {
    /// This segment, or part of it, is in the set.
    Overlap(Run),
    /// Not all of this range is in the set.
    Missing(Run),
    /// This range lies outside the tree's area, is not whole units, or is empty.
    OutOfRange(Run),
}

impl fmt::Display for RangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RangeError::Overlap(r) => write!(f, "overlaps {r}, which is there already"),
            RangeError::Missing(r) => write!(f, "{r} is not there, or not all of it"),
            RangeError::OutOfRange(r) => write!(f, "{r} is outside, not whole units, or empty"),
        }
    }
}

impl From<RangeError> for Error {
    fn from(e: RangeError) -> Error {
        Error::corrupt(e.to_string())
    }
}

/// Buckets of a histogram of segments by size.
pub const BUCKETS: usize = 32;

/// A set of disjoint ranges. See the module's documentation.
#[derive(Clone, PartialEq, Eq)]
pub struct RangeTree {
    base: u64,
    shift: u8,
    /// Units covered.
    units: u32,
    /// Units in the set.
    total: u64,
    /// End to start, in units from `base`.
    by_end: BTreeMap<u32, u32>,
    /// (size, end), if the tree is indexed.
    by_size: Option<BTreeSet<(u32, u32)>>,
    histogram: [u32; BUCKETS],
}

impl fmt::Debug for RangeTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|r| r.to_string())).finish()
    }
}

impl RangeTree {
    /// Whether a tree can cover `size` bytes in units of `1 << shift`: sizes come from disk, so
    /// check before creating one.
    pub fn can_cover(size: u64, shift: u8) -> bool {
        shift < 64 && size.is_multiple_of(1 << shift) && size >> shift <= u64::from(u32::MAX)
    }

    /// An empty set that covers the `size` bytes from `base` on, in units of `1 << shift` bytes.
    /// `size` must be one that [`RangeTree::can_cover`].
    pub fn new(base: u64, size: u64, shift: u8) -> RangeTree {
        assert!(RangeTree::can_cover(size, shift), "a range tree cannot cover {size} bytes in units of 2^{shift}");
        RangeTree {
            base,
            shift,
            units: (size >> shift) as u32,
            total: 0,
            by_end: BTreeMap::new(),
            by_size: None,
            histogram: [0; BUCKETS],
        }
    }

    /// As [`RangeTree::new`], indexed by size.
    pub fn indexed(base: u64, size: u64, shift: u8) -> RangeTree {
        RangeTree { by_size: Some(BTreeSet::new()), ..RangeTree::new(base, size, shift) }
    }

    /// An empty set over the same area, without an index.
    pub fn empty_like(&self) -> RangeTree {
        RangeTree::new(self.base, u64::from(self.units) << self.shift, self.shift)
    }

    /// The area that the tree covers.
    pub fn area(&self) -> Run {
        Run { start: self.base, size: u64::from(self.units) << self.shift }
    }
    /// Bytes in the set.
    pub fn total(&self) -> u64 {
        self.total << self.shift
    }
    /// Segments in the set.
    pub fn len(&self) -> usize {
        self.by_end.len()
    }
    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.by_end.is_empty()
    }
    /// Segments by size: bucket b counts those of `2^b` to `2^(b+1)` units.
    pub fn histogram(&self) -> [u64; BUCKETS] {
        self.histogram.map(u64::from)
    }

    fn run(&self, start: u32, end: u32) -> Run {
        Run { start: self.base + (u64::from(start) << self.shift), size: u64::from(end - start) << self.shift }
    }

    /// Start and end in units.
    fn units_of(&self, start: u64, size: u64) -> Result<(u32, u32), RangeError> {
        let bad = RangeError::OutOfRange(Run { start, size });
        let unit = (1u64 << self.shift) - 1;
        let from = start.checked_sub(self.base).ok_or(bad)?;
        let end = from.checked_add(size).ok_or(bad)?;
        if size == 0 || from & unit != 0 || size & unit != 0 || end >> self.shift > u64::from(self.units) {
            return Err(bad);
        }
        Ok(((from >> self.shift) as u32, (end >> self.shift) as u32))
    }

    fn counted(&mut self, start: u32, end: u32) {
        let size = end - start;
        self.total += u64::from(size);
        self.histogram[size.ilog2() as usize] += 1;
        if let Some(set) = &mut self.by_size {
            set.insert((size, end));
        }
    }

    fn uncounted(&mut self, start: u32, end: u32) {
        let size = end - start;
        self.total -= u64::from(size);
        self.histogram[size.ilog2() as usize] -= 1;
        if let Some(set) = &mut self.by_size {
            set.remove(&(size, end));
        }
    }

    /// The first segment that ends after unit `at`.
    fn after(&self, at: u32) -> Option<(u32, u32)> {
        self.by_end.range((Excluded(at), Unbounded)).next().map(|(&end, &start)| (start, end))
    }

    /// Adds a range, no part of which may be in the set.
    pub fn add(&mut self, start: u64, size: u64) -> Result<(), RangeError> {
        let (s, e) = self.units_of(start, size)?;
        let right = self.after(s);
        if let Some((rs, re)) = right
            && rs < e
        {
            return Err(RangeError::Overlap(self.run(rs, re)));
        }
        let mut from = s;
        if let Some(ls) = self.by_end.remove(&s) {
            self.uncounted(ls, s);
            from = ls;
        }
        let mut to = e;
        if let Some((rs, re)) = right
            && rs == e
        {
            self.uncounted(rs, re);
            to = re;
        }
        self.by_end.insert(to, from);
        self.counted(from, to);
        Ok(())
    }

    /// Removes a range, all of which must be in the set.
    pub fn remove(&mut self, start: u64, size: u64) -> Result<(), RangeError> {
        let (s, e) = self.units_of(start, size)?;
        match self.after(s) {
            Some((ss, se)) if ss <= s && se >= e => {
                self.cut(ss, se, s, e);
                Ok(())
            }
            _ => Err(RangeError::Missing(Run { start, size })),
        }
    }

    /// Removes `s..e` from the segment `ss..se`, which contains it.
    fn cut(&mut self, ss: u32, se: u32, s: u32, e: u32) {
        self.uncounted(ss, se);
        if e < se {
            self.by_end.insert(se, e);
            self.counted(e, se);
        } else {
            self.by_end.remove(&se);
        }
        if ss < s {
            self.by_end.insert(s, ss);
            self.counted(ss, s);
        }
    }

    /// Removes the part of a range that is in the set. Ranges outside of the area are an error.
    pub fn clear_range(&mut self, start: u64, size: u64) -> Result<(), RangeError> {
        let (s, e) = self.units_of(start, size)?;
        while let Some((ss, se)) = self.after(s)
            && ss < e
        {
            self.cut(ss, se, ss.max(s), se.min(e));
        }
        Ok(())
    }

    /// Adds the part of a range that is not in the set. Ranges outside of the area are an error.
    pub fn set_range(&mut self, start: u64, size: u64) -> Result<(), RangeError> {
        self.clear_range(start, size)?;
        self.add(start, size)
    }

    /// Whether all of a range is in the set.
    pub fn contains(&self, start: u64, size: u64) -> bool {
        let Ok((s, e)) = self.units_of(start, size) else { return false };
        self.after(s).is_some_and(|(ss, se)| ss <= s && se >= e)
    }

    /// The first segment that overlaps a range.
    pub fn overlap(&self, start: u64, size: u64) -> Option<Run> {
        let (s, e) = self.units_of(start, size).ok()?;
        self.after(s).filter(|&(ss, _)| ss < e).map(|(ss, se)| self.run(ss, se))
    }

    /// The segments, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        self.by_end.iter().map(|(&end, &start)| self.run(start, end))
    }

    /// The ranges *not* in the set, ascending.
    pub fn gaps(&self) -> impl Iterator<Item = Run> + '_ {
        let ends = self.by_end.iter().map(|(&end, &start)| (start, end)).chain([(self.units, self.units)]);
        let mut at = 0;
        ends.filter_map(move |(start, end)| {
            let gap = (at < start).then(|| self.run(at, start));
            at = end;
            gap
        })
    }

    /// The complement, as an indexed set.
    pub fn complement(&self) -> RangeTree {
        let mut out = self.empty_like();
        let unit = |at: u64| ((at - self.base) >> self.shift) as u32;
        out.by_end = self.gaps().map(|r| (unit(r.end()), unit(r.start))).collect();
        out.by_size = Some(out.by_end.iter().map(|(&end, &start)| (end - start, end)).collect());
        for (&end, &start) in &out.by_end {
            out.total += u64::from(end - start);
            out.histogram[(end - start).ilog2() as usize] += 1;
        }
        out
    }

    /// Empties the set and returns its content.
    pub fn take(&mut self) -> RangeTree {
        let empty = RangeTree { by_size: self.by_size.as_ref().map(|_| BTreeSet::new()), ..self.empty_like() };
        std::mem::replace(self, empty)
    }

    /// Removes the last segment and returns it.
    pub fn pop(&mut self) -> Option<Run> {
        let (end, start) = self.by_end.pop_last()?;
        self.uncounted(start, end);
        Some(self.run(start, end))
    }

    /// Size of the largest segment; a lower bound in a tree without an index.
    pub fn largest(&self) -> u64 {
        match &self.by_size {
            Some(set) => set.last().map_or(0, |&(size, _)| u64::from(size) << self.shift),
            None => self.histogram.iter().rposition(|&n| n > 0).map_or(0, |b| 1 << (b + usize::from(self.shift))),
        }
    }

    /// The smallest segment of at least `size` bytes, of equals the first. Needs the index.
    pub fn best_fit(&self, size: u64) -> Option<Run> {
        let want = u32::try_from(size.div_ceil(1 << self.shift)).ok()?;
        let set = self.by_size.as_ref().expect("best fit is asked of indexed trees only");
        set.range((want, 0)..).next().map(|&(size, end)| self.run(end - size, end))
    }

    /// The first segment of at least `size` bytes, from the one that contains or follows `cursor`
    /// on. The search ends with the segment that starts more than `max_distance` bytes after the
    /// first one tried, but not before `min_count` segments were tried.
    pub fn first_fit(&self, cursor: u64, size: u64, max_distance: u64, min_count: usize) -> Option<Run> {
        let want = u32::try_from(size.div_ceil(1 << self.shift)).ok()?;
        let from = u32::try_from(cursor.saturating_sub(self.base) >> self.shift).ok()?;
        let reach = max_distance >> self.shift;
        let mut first = None;
        for (i, (&end, &start)) in self.by_end.range((Excluded(from), Unbounded)).enumerate() {
            let origin = *first.get_or_insert(start);
            if i >= min_count && u64::from(start - origin) > reach {
                return None;
            }
            if end - start >= want {
                return Some(self.run(start, end));
            }
        }
        None
    }

    /// Bytes of memory that the set takes, roughly.
    pub fn footprint(&self) -> usize {
        let index = if self.by_size.is_some() { 12 } else { 0 };
        size_of::<RangeTree>() + self.len() * (12 + index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UNIT: u64 = 512;
    const BASE: u64 = 1 << 24;
    const UNITS: usize = 300;

    /// The model: one flag per unit.
    fn segments(model: &[bool]) -> Vec<Run> {
        let mut out: Vec<Run> = Vec::new();
        for (i, _) in model.iter().enumerate().filter(|(_, b)| **b) {
            let start = BASE + i as u64 * UNIT;
            match out.last_mut() {
                Some(l) if l.end() == start => l.size += UNIT,
                _ => out.push(Run { start, size: UNIT }),
            }
        }
        out
    }

    fn check(t: &RangeTree, model: &[bool]) {
        let want = segments(model);
        assert_eq!(t.iter().collect::<Vec<_>>(), want);
        assert_eq!(t.total(), want.iter().map(|r| r.size).sum::<u64>());
        assert_eq!(t.largest(), want.iter().map(|r| r.size).max().unwrap_or(0));
        let mut h = [0u64; BUCKETS];
        want.iter().for_each(|r| h[(r.size / UNIT).ilog2() as usize] += 1);
        assert_eq!(t.histogram(), h);
        let not: Vec<bool> = model.iter().map(|b| !b).collect();
        assert_eq!(t.gaps().collect::<Vec<_>>(), segments(&not));
        let mut one_by_one = RangeTree::indexed(BASE, UNITS as u64 * UNIT, 9);
        segments(&not).iter().for_each(|r| one_by_one.add(r.start, r.size).unwrap());
        assert_eq!(t.complement(), one_by_one);
    }

    proptest! {
        #[test]
        fn behaves_as_flags(ops in proptest::collection::vec((0u8..6, 0usize..UNITS + 10, 0usize..40), 1..200)) {
            let mut t = RangeTree::indexed(BASE, UNITS as u64 * UNIT, 9);
            let mut model = vec![false; UNITS];
            for (op, at, n) in ops {
                let (start, size) = (BASE + at as u64 * UNIT, n as u64 * UNIT);
                let inside = n > 0 && at + n <= UNITS;
                let set = |m: &mut Vec<bool>, v| m[at..at + n].iter_mut().for_each(|b| *b = v);
                match op {
                    0 | 1 => {
                        let free = inside && model[at..at + n].iter().all(|b| !b);
                        let r = t.add(start, size);
                        prop_assert_eq!(r.is_ok(), free);
                        prop_assert_eq!(matches!(r, Err(RangeError::OutOfRange(_))), !inside);
                        if free { set(&mut model, true) }
                    }
                    2 => {
                        let there = inside && model[at..at + n].iter().all(|b| *b);
                        prop_assert_eq!(t.contains(start, size), there);
                        prop_assert_eq!(t.remove(start, size).is_ok(), there);
                        if there { set(&mut model, false) }
                    }
                    3 => {
                        prop_assert_eq!(t.clear_range(start, size).is_ok(), inside);
                        if inside { set(&mut model, false) }
                    }
                    4 => {
                        prop_assert_eq!(t.set_range(start, size).is_ok(), inside);
                        if inside { set(&mut model, true) }
                    }
                    _ => {
                        let segs = segments(&model);
                        if n > 0 {
                            let best = segs.iter().filter(|r| r.size >= size).min_by_key(|r| (r.size, r.start)).copied();
                            prop_assert_eq!(t.best_fit(size), best);
                            let first = segs.iter().filter(|r| r.end() > start).find(|r| r.size >= size).copied();
                            prop_assert_eq!(t.first_fit(start, size, u64::MAX, 0), first);
                            let near = segs.iter().filter(|r| r.end() > start).take(3).find(|r| r.size >= size).copied();
                            prop_assert_eq!(t.first_fit(start, size, 0, 3), near);
                        }
                        if inside {
                            let hit = segs.iter().find(|r| r.start < start + size && r.end() > start).copied();
                            prop_assert_eq!(t.overlap(start, size), hit);
                        }
                    }
                }
                check(&t, &model);
            }
            let all = t.take();
            check(&all, &model);
            prop_assert!(t.is_empty() && t.total() == 0 && t.largest() == 0);
        }
    }

    #[test]
    fn odd_ranges_are_refused() {
        let mut t = RangeTree::new(BASE, 1 << 20, 12);
        for (start, size) in [
            (BASE + 512, 4096),
            (BASE, 512),
            (BASE - 4096, 8192),
            (BASE + (1 << 20), 4096),
            (u64::MAX - 4095, 8192),
            (BASE, 0),
        ] {
            assert_eq!(t.add(start, size), Err(RangeError::OutOfRange(Run { start, size })));
        }
        assert!(!RangeTree::can_cover(1 << 41, 9));
        assert!(!RangeTree::can_cover(1 << 20, 64));
        assert!(RangeTree::can_cover(1 << 34, 9));
    }
}
