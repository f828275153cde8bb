//! Possible contents of a range, and the search for the one that is right.
//!
//! A range is made of units: parts with a few possible contents each. [`Tries`] offers combinations
//! of them until one is accepted, and never more than its bound. [`Row`] is the arithmetic of
//! RAID-Z for one row of sectors or one whole stripe: the data columns that follow from those that
//! are there, for every set of columns that may be wrong.

use std::ops::Range;

use codec::raidz;

/// Most contents of one row of sectors that are kept.
const ROW_MAX: usize = 320;
/// Most ways to combine differing sides of columns, for one set of lost columns.
const VERSIONS_MAX: usize = 16;
/// Bytes of the parts in which ranges are put together before single sectors are tried, the largest
/// first: damage is rarely as small as a sector of 512 bytes, and large parts make few
/// combinations.
const PARTS: [usize; 3] = [64 << 10, 16 << 10, 4096];

/// A range as one device has it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Side {
    pub bytes: Vec<u8>,
    /// Sectors that could not be read; empty when all could.
    pub bad: Vec<bool>,
}

impl Side {
    pub fn is_whole(&self) -> bool {
        self.bad.is_empty()
    }
    /// Whether all of these sectors could be read.
    pub fn has(&self, mut sectors: Range<usize>) -> bool {
        sectors.all(|s| !self.bad.get(s).copied().unwrap_or(false))
    }
}

/// The sizes of parts that are tried of a range of `size` bytes, from the largest to one sector;
/// none of them reaches `max` bytes but the sector.
pub(crate) fn parts(size: usize, sector: usize, max: usize) -> impl Iterator<Item = usize> {
    let coarse = PARTS.into_iter().filter(move |p| *p <= max && *p < size && p.is_multiple_of(sector) && *p > sector);
    coarse.chain([sector])
}

/// A place in `bytes` of a unit and its possible contents.
pub(crate) struct Unit {
    pub at: Vec<(usize, usize)>,
    pub choices: Vec<Vec<u8>>,
}

impl Unit {
    fn put(&self, choice: usize, block: &mut [u8]) {
        let mut rest = &self.choices[choice][..];
        for &(at, len) in &self.at {
            let (now, later) = rest.split_at(len);
            block[at..at + len].copy_from_slice(now);
            rest = later;
        }
    }
}

/// The attempts that are left for a range.
pub(crate) struct Tries<'a> {
    pub left: usize,
    pub accept: &'a mut dyn FnMut(&[u8]) -> bool,
}

impl Tries<'_> {
    pub fn offer(&mut self, block: &[u8]) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        (self.accept)(block)
    }

    /// Offers every combination of the units' contents, if there are not too many.
    pub fn mix(&mut self, units: &[Unit], size: usize) -> Option<Vec<u8>> {
        let open: Vec<&Unit> = units.iter().filter(|u| u.choices.len() > 1).collect();
        let total = open.iter().try_fold(1usize, |n, u| n.checked_mul(u.choices.len()));
        if units.iter().any(|u| u.choices.is_empty()) || total.is_none_or(|n| n > self.left) {
            return None;
        }
        let mut block = vec![0; size];
        units.iter().for_each(|u| u.put(0, &mut block));
        let mut at = vec![0usize; open.len()];
        loop {
            if self.offer(&block) {
                return Some(block);
            }
            // The next combination: an odometer.
            let mut i = 0;
            loop {
                let unit = open.get(i)?;
                at[i] += 1;
                if at[i] < unit.choices.len() {
                    unit.put(at[i], &mut block);
                    break;
                }
                at[i] = 0;
                unit.put(0, &mut block);
                i += 1;
            }
        }
    }

    /// A range of which each side is a copy.
    pub fn copies(&mut self, sides: &[Side], size: usize, sector: usize) -> Option<Vec<u8>> {
        if let Some(side) = sides.iter().filter(|s| s.is_whole()).find(|s| self.offer(&s.bytes)) {
            return Some(side.bytes.clone());
        }
        if sides.len() < 2 {
            return None;
        }
        let left = self.left;
        parts(size, sector, usize::MAX).find_map(|part| {
            self.left = left;
            let units: Vec<Unit> = (0..size.div_ceil(part))
                .map(|i| {
                    let range = i * part..((i + 1) * part).min(size);
                    let sectors = i * part / sector..range.end.div_ceil(sector);
                    let mut choices: Vec<Vec<u8>> = Vec::new();
                    for side in sides.iter().filter(|s| s.has(sectors.clone())) {
                        let bytes = side.bytes[range.clone()].to_vec();
                        if !choices.contains(&bytes) {
                            choices.push(bytes);
                        }
                    }
                    Unit { at: vec![(range.start, range.len())], choices }
                })
                .collect();
            self.mix(&units, size)
        })
    }
}

/// The columns of a stripe or of a row of one: all contents of each, parity first; a column that is
/// empty there has one empty content.
pub(crate) struct Row<'a> {
    pub parity: usize,
    pub columns: Vec<Vec<&'a [u8]>>,
    /// Bytes of each column.
    pub lens: Vec<usize>,
}

/// Calls `f` with every set of `k` of `0..n` until it returns true.
pub(crate) fn sets(n: usize, k: usize, f: &mut dyn FnMut(&[usize]) -> bool) -> bool {
    fn go(from: usize, n: usize, k: usize, chosen: &mut Vec<usize>, f: &mut dyn FnMut(&[usize]) -> bool) -> bool {
        if k == 0 {
            return f(chosen);
        }
        for i in from..(n + 1).saturating_sub(k) {
            chosen.push(i);
            let stop = go(i + 1, n, k - 1, chosen, f);
            chosen.pop();
            if stop {
                return true;
            }
        }
        false
    }
    go(0, n, k, &mut Vec::with_capacity(k), f)
}

/// Takes the data columns of a solution, and how many of how many parity columns agree; true: no
/// more.
pub type Visit<'a> = dyn FnMut(&[Vec<u8>], usize, usize) -> bool + 'a;

impl Row<'_> {
    /// Calls `f` with the data columns of every solution until it returns true, fewest lost columns
    /// first. The number says how many of the parity columns that were not needed agree (counted
    /// only if `judge`), and how many there are.
    pub fn solve(&self, judge: bool, f: &mut Visit<'_>) -> bool {
        let data = &self.columns[self.parity..];
        let missing: Vec<usize> = (0..data.len()).filter(|&i| data[i].is_empty()).collect();
        let rows: Vec<usize> = (0..self.parity).filter(|&y| !self.columns[y].is_empty()).collect();
        let most = rows.len().min(data.len());
        for k in missing.len()..=most {
            let stop = sets(data.len(), k, &mut |lost| {
                let sensible =
                    missing.iter().all(|m| lost.contains(m)) && lost.iter().all(|&i| self.lens[self.parity + i] > 0);
                sensible
                    && sets(rows.len(), k, &mut |chosen| {
                        let used: Vec<usize> = chosen.iter().map(|&c| rows[c]).collect();
                        self.versions(lost, &used, &rows, judge, f)
                    })
            });
            if stop {
                return true;
            }
        }
        false
    }

    /// The solutions with one set of lost columns and parity columns: one for each combination of
    /// contents of the columns that are used.
    fn versions(&self, lost: &[usize], used: &[usize], rows: &[usize], judge: bool, f: &mut Visit<'_>) -> bool {
        let p = self.parity;
        let wanted = |c: usize| if c < p { used.contains(&c) } else { !lost.contains(&(c - p)) };
        let mut at = vec![0usize; self.columns.len()];
        for _ in 0..VERSIONS_MAX {
            let mut data: Vec<Vec<u8>> = (p..self.columns.len())
                .map(|c| if wanted(c) { self.columns[c][at[c]].to_vec() } else { vec![0; self.lens[c]] })
                .collect();
            if !lost.is_empty() {
                let known: Vec<Option<&[u8]>> = (0..p).map(|y| wanted(y).then(|| self.columns[y][at[y]])).collect();
                let mut slices: Vec<&mut [u8]> = data.iter_mut().map(|d| &mut d[..]).collect();
                raidz::reconstruct(&mut slices, lost, &known);
            }
            let spare: Vec<usize> = rows.iter().copied().filter(|y| !used.contains(y)).collect();
            let agree = if judge && !spare.is_empty() { self.agreeing(&data, &spare) } else { 0 };
            if f(&data, agree, spare.len()) {
                return true;
            }
            let mut c = 0;
            loop {
                if c == self.columns.len() {
                    return false;
                }
                if wanted(c) && at[c] + 1 < self.columns[c].len() {
                    at[c] += 1;
                    break;
                }
                at[c] = 0;
                c += 1;
            }
        }
        false
    }

    /// How many of these parity columns are those of the data.
    fn agreeing(&self, data: &[Vec<u8>], rows: &[usize]) -> usize {
        let len = data.iter().map(Vec::len).max().unwrap_or(0);
        let slices: Vec<&[u8]> = data.iter().map(|d| &d[..]).collect();
        let mut made = vec![vec![0u8; len]; self.parity];
        let mut out: Vec<&mut [u8]> = made.iter_mut().map(|m| &mut m[..]).collect();
        raidz::generate(&slices, &mut out);
        rows.iter().filter(|&&y| self.columns[y].iter().any(|c| *c == &made[y][..])).count()
    }
}

/// The contents that a row of sectors may have, joined; if parity that was not needed confirms
/// some, those alone.
pub(crate) fn row_choices(row: &Row<'_>) -> Vec<Vec<u8>> {
    let (mut confirmed, mut rest): (Vec<Vec<u8>>, Vec<Vec<u8>>) = Default::default();
    let there = row.columns[..row.parity].iter().filter(|c| !c.is_empty()).count();
    row.solve(true, &mut |data, agree, spare| {
        let joined = data.concat();
        if agree > 0 {
            if !confirmed.contains(&joined) {
                confirmed.push(joined);
            }
            // Nothing was taken for lost.
            return spare == there;
        }
        if confirmed.is_empty() && !rest.contains(&joined) {
            rest.push(joined);
        }
        rest.len() >= ROW_MAX
    });
    if confirmed.is_empty() { rest } else { confirmed }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parity columns and data columns of a stripe.
    fn stripe(data: usize, parity: usize, len: usize) -> Vec<Vec<u8>> {
        let columns: Vec<Vec<u8>> =
            (0..data).map(|i| (0..len).map(|b| (b * 37 + i * 91 + b * b) as u8).collect()).collect();
        let slices: Vec<&[u8]> = columns.iter().map(|c| &c[..]).collect();
        let mut made = vec![vec![0u8; len]; parity];
        let mut out: Vec<&mut [u8]> = made.iter_mut().map(|m| &mut m[..]).collect();
        raidz::generate(&slices, &mut out);
        made.into_iter().chain(columns).collect()
    }
    fn row(columns: &[Vec<u8>], parity: usize, missing: &[usize]) -> Vec<Vec<u8>> {
        let lens = columns.iter().map(Vec::len).collect();
        let there = |i: usize, c: &'static [u8]| if missing.contains(&i) { vec![] } else { vec![c] };
        let leaked: Vec<Vec<&[u8]>> =
            columns.iter().enumerate().map(|(i, c)| there(i, Box::leak(c.clone().into_boxed_slice()))).collect();
        row_choices(&Row { parity, columns: leaked, lens })
    }

    #[test]
    fn what_is_missing_follows_from_the_rest() {
        for (data, parity) in [(1usize, 1usize), (3, 1), (4, 2), (5, 3)] {
            let columns = stripe(data, parity, 64);
            let whole = columns[parity..].concat();
            for k in 0..=parity {
                sets(columns.len(), k, &mut |missing| {
                    let got = row(&columns, parity, missing);
                    assert_eq!(got.first(), Some(&whole), "{data}+{parity} without {missing:?}");
                    false
                });
            }
            let too_many: Vec<usize> = (0..=parity).collect();
            assert!(row(&columns, parity, &too_many[..]).len() <= 1);
        }
    }

    #[test]
    fn what_is_wrong_is_among_the_choices_and_spare_parity_knows_it() {
        for (data, parity) in [(3usize, 1usize), (4, 2), (5, 3)] {
            let good = stripe(data, parity, 64);
            let whole = good[parity..].concat();
            for bad in 0..good.len() {
                let mut columns = good.clone();
                columns[bad][3] ^= 0x40;
                let got = row(&columns, parity, &[]);
                assert!(got.contains(&whole), "{data}+{parity} with {bad} wrong");
                if parity > 1 {
                    assert_eq!(got, std::slice::from_ref(&whole), "one wrong column shows");
                }
            }
        }
    }

    #[test]
    fn combinations_are_offered_until_one_is_right() {
        let unit = |at, choices: &[u8]| Unit { at: vec![(at, 1)], choices: choices.iter().map(|c| vec![*c]).collect() };
        let units = [unit(0, b"ab"), unit(1, b"c"), unit(2, b"def")];
        let mut seen = Vec::new();
        let mut accept = |b: &[u8]| {
            seen.push(b.to_vec());
            b == b"bcf"
        };
        let mut tries = Tries { left: 100, accept: &mut accept };
        assert_eq!(tries.mix(&units, 3), Some(b"bcf".to_vec()));
        assert_eq!(seen.len(), 6);
        let mut never = |_: &[u8]| false;
        let mut tries = Tries { left: 5, accept: &mut never };
        assert_eq!(tries.mix(&units, 3), None, "six are too many");
        assert_eq!(tries.left, 5);
    }

    #[test]
    fn good_sectors_of_bad_copies_make_a_good_one() {
        let good: Vec<u8> = (0..4096u32).map(|i| (i * 7) as u8).collect();
        let (mut a, mut b) = (good.clone(), good.clone());
        a[100] ^= 1;
        b[2000] ^= 1;
        let mut bad = vec![false; 8];
        bad[7] = true;
        let sides =
            [Side { bytes: a, bad: Vec::new() }, Side { bytes: b, bad: Vec::new() }, Side { bytes: good.clone(), bad }];
        let mut accept = |x: &[u8]| x == good;
        let mut tries = Tries { left: 4096, accept: &mut accept };
        assert_eq!(tries.copies(&sides, 4096, 512), Some(good.clone()));
    }

    /// Of 128 KiB eight pages of 4 KiB are bad, on one side or the other: too many combinations of
    /// sectors, few of pages.
    #[test]
    fn damaged_pages_are_taken_as_a_whole() {
        let good: Vec<u8> = (0..128u32 << 10).map(|i| (i * 7 + (i >> 8)) as u8).collect();
        let (mut a, mut b) = (good.clone(), good.clone());
        for page in 0..8 {
            let side = if page % 3 == 0 { &mut a } else { &mut b };
            side[page * 16384 + 4096..][..4096].fill(0xee);
        }
        let sides = [a, b].map(|bytes| Side { bytes, bad: Vec::new() });
        let mut accept = |x: &[u8]| x == good;
        let mut tries = Tries { left: 4096, accept: &mut accept };
        assert_eq!(tries.copies(&sides, good.len(), 512), Some(good.clone()));
    }
}
