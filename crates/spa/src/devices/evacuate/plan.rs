//! What is copied at once (format page 23 section 3): a pure function.

use metaslab::Run;

/// A range of the source that gets one place, in one piece.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Chunk {
    /// Where it starts.
    pub start: u64,
    /// Its bytes, gaps included.
    pub len: u64,
    /// Free ranges within it, which are not copied.
    pub gaps: Vec<Run>,
}

impl Chunk {
    /// Bytes to copy.
    pub fn used(&self) -> u64 {
        self.len - self.gaps.iter().map(|g| g.size).sum::<u64>()
    }

    /// Where it ends.
    pub fn end(&self) -> u64 {
        self.start + self.len
    }

    /// The ranges to copy, ascending.
    pub fn ranges(&self) -> Vec<Run> {
        let mut at = self.start;
        let end = Run { start: self.end(), size: 0 };
        let mut out = Vec::with_capacity(self.gaps.len() + 1);
        for gap in self.gaps.iter().copied().chain([end]) {
            out.push(Run { start: at, size: gap.start - at });
            at = gap.end();
        }
        out
    }
}

/// The next chunk of `todo`, which is ascending: at most `max` bytes, with gaps of at most `span`
/// bytes. A first range that is longer is cut, no other. None if there is nothing left.
pub(super) fn next_chunk(mut todo: impl Iterator<Item = Run>, max: u64, span: u64) -> Option<Chunk> {
    let first = todo.next()?;
    let (start, mut end) = (first.start, first.end().min(first.start + max));
    let mut gaps = Vec::new();
    if end == first.end() {
        for run in todo.take_while(|run| run.end() - start <= max) {
            if run.start - end > span {
                break;
            }
            gaps.push(Run { start: end, size: run.start - end });
            end = run.end();
        }
    }
    Some(Chunk { start, len: end - start, gaps })
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 1 << 10;

    fn runs(all: &[(u64, u64)]) -> Vec<Run> {
        all.iter().map(|(start, end)| Run { start: start * K, size: (end - start) * K }).collect()
    }

    #[test]
    fn chunks_take_small_gaps_and_cut_only_the_first_range() {
        let next = |all: &[(u64, u64)], max: u64| next_chunk(runs(all).into_iter(), max * K, 32 * K);
        let chunk = |start: u64, end: u64, gaps: &[(u64, u64)]| {
            Some(Chunk { start: start * K, len: (end - start) * K, gaps: runs(gaps) })
        };
        assert_eq!(next(&[], 100), None);
        assert_eq!(next(&[(4, 300)], 100), chunk(4, 104, &[]));
        assert_eq!(next(&[(4, 104), (105, 106)], 100), chunk(4, 104, &[]));
        assert_eq!(next(&[(4, 8), (40, 50), (83, 84)], 1000), chunk(4, 50, &[(8, 40)]));
        assert_eq!(next(&[(4, 8), (40, 50), (82, 84)], 1000), chunk(4, 84, &[(8, 40), (50, 82)]));
        assert_eq!(next(&[(0, 8), (10, 20), (30, 101)], 100), chunk(0, 20, &[(8, 10)]));
        let Some(two) = next(&[(4, 8), (40, 50), (82, 84)], 1000) else { unreachable!() };
        assert_eq!((two.used(), two.ranges()), (16 * K, runs(&[(4, 8), (40, 50), (82, 84)])));
    }

    /// Chunk by chunk everything is copied once, whatever the limit.
    #[test]
    fn chunks_cover_everything_once() {
        let all = runs(&[(0, 1), (2, 3), (50, 90), (91, 400), (500, 501), (540, 560)]);
        for max in 1..600 {
            let (mut todo, mut done) = (all.clone(), Vec::new());
            while let Some(c) = next_chunk(todo.iter().copied(), max * K, 32 * K) {
                assert!(c.len <= max * K && c.gaps.iter().all(|g| g.size > 0 && g.size <= 32 * K));
                done.extend(c.ranges());
                let rest = todo.iter().filter(|r| r.end() > c.end());
                todo =
                    rest.map(|r| Run { start: r.start.max(c.end()), size: r.end() - r.start.max(c.end()) }).collect();
            }
            let total: u64 = done.iter().map(|r| r.size).sum();
            assert_eq!(total, all.iter().map(|r| r.size).sum::<u64>());
            assert!(done.windows(2).all(|w| w[0].end() <= w[1].start));
        }
    }
}
