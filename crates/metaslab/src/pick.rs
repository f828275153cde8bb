//! The choice of a free segment in a metaslab: the allocators of OpenZFS, as pure functions.
//!
//! [`Method::Dynamic`] is first fit from a cursor on while there is room, then best fit.
//! [`Method::Cursor`] uses up the largest segment from its begin to its end, then the next largest.
//! [`Method::NewDynamic`] goes on in the segment at the cursor, else looks for one in which a whole
//! clump of such blocks fits. Cursors are hints: what is at them need not be free.

use crate::range_tree::{RangeTree, Run};
use crate::tunables::AllocTunables;

/// `metaslab_ndf_clump_shift`: a new segment has room for 2 to the power of this such blocks.
const NDF_CLUMP_SHIFT: u32 = 4;

/// `zfs_active_allocator`: how a metaslab chooses a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Method {
    /// First fit, or best fit in a full or fragmented metaslab.
    #[default]
    Dynamic,
    /// The largest segment from begin to end.
    Cursor,
    /// Clumps.
    NewDynamic,
}

impl Method {
    /// All of them.
    pub const ALL: [Method; 3] = [Method::Dynamic, Method::Cursor, Method::NewDynamic];

    /// OpenZFS's name.
    pub const fn name(self) -> &'static str {
        match self {
            Method::Dynamic => "dynamic",
            Method::Cursor => "cursor",
            Method::NewDynamic => "new-dynamic",
        }
    }

    /// By OpenZFS's name.
    pub fn parse(name: &str) -> Option<Method> {
        Method::ALL.into_iter().find(|m| m.name() == name)
    }
}

/// The begin of `asize` free bytes in a metaslab of `ms_size`, and the cursors after it. `None` if
/// no segment is that large. `cursors` are by the lowest set bit of a size.
pub(crate) fn pick(
    free: &RangeTree,
    cursors: &mut [u64; 64],
    asize: u64,
    ms_size: u64,
    t: &AllocTunables,
) -> Option<u64> {
    if free.largest() < asize {
        return None;
    }
    let own = asize.trailing_zeros() as usize & 63;
    match t.method {
        Method::Dynamic => dynamic(free, &mut cursors[own], asize, ms_size, t),
        // One cursor for all sizes.
        Method::Cursor => cursor(free, &mut cursors[0], asize),
        Method::NewDynamic => new_dynamic(free, &mut cursors[own], asize),
    }
}

fn dynamic(free: &RangeTree, cursor: &mut u64, asize: u64, ms_size: u64, t: &AllocTunables) -> Option<u64> {
    let roomy = free.largest() >= t.df_alloc_threshold && free.total() * 100 / ms_size >= t.df_free_pct;
    let found = roomy.then(|| free.first_fit(*cursor, asize, t.df_max_search, t.min_search_count)).flatten();
    take(found.or_else(|| free.best_fit(asize))?.start, cursor, asize)
}

fn cursor(free: &RangeTree, cursor: &mut u64, asize: u64) -> Option<u64> {
    let start = if free.contains(*cursor, asize) { *cursor } else { free.best_fit(free.largest())?.start };
    take(start, cursor, asize)
}

fn new_dynamic(free: &RangeTree, cursor: &mut u64, asize: u64) -> Option<u64> {
    let here: Option<Run> = free.overlap(*cursor, asize).filter(|run| run.size >= asize);
    let clump = 1u64.checked_shl(asize.ilog2() + 1 + NDF_CLUMP_SHIFT).unwrap_or(u64::MAX);
    let found = here.or_else(|| free.best_fit(clump.min(free.largest())))?;
    take(found.start, cursor, asize)
}

fn take(start: u64, cursor: &mut u64, asize: u64) -> Option<u64> {
    *cursor = start + asize;
    Some(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    const M: u64 = 1 << 20;

    fn tree(runs: &[(u64, u64)]) -> RangeTree {
        let mut f = RangeTree::indexed(0, 64 * M, 9);
        runs.iter().for_each(|&(s, n)| f.add(s, n).expect("disjoint"));
        f
    }

    /// Takes blocks of these sizes one after the other.
    fn taken(f: &mut RangeTree, method: Method, sizes: &[u64]) -> Vec<Option<u64>> {
        let t = AllocTunables { method, ..AllocTunables::default() };
        let mut cursors = [0; 64];
        let mut one = |&size: &u64| {
            let start = pick(f, &mut cursors, size, 64 * M, &t)?;
            f.remove(start, size).expect("free");
            Some(start)
        };
        sizes.iter().map(&mut one).collect()
    }

    #[test]
    fn the_cursor_uses_up_the_largest_segment() {
        let mut f = tree(&[(512, 8192), (M, 12288), (2 * M, 8192)]);
        let starts = taken(&mut f, Method::Cursor, &[8192, 4096, 4096, 8192, 4096, 4096]);
        assert_eq!(starts, [Some(M), Some(M + 8192), Some(512), Some(2 * M), Some(4608), None]);
        // All sizes share a cursor, and an end that is too short is left behind.
        let mut f = tree(&[(512, 8192), (M, 12288)]);
        assert_eq!(taken(&mut f, Method::Cursor, &[8192, 8192, 8192]), [Some(M), Some(512), None]);
    }

    #[test]
    fn clumps_are_looked_for() {
        // 4096 wants 128 KiB: the smallest segment of at least that, not the smallest that fits.
        let mut f = tree(&[(M, 4096), (2 * M, M), (4 * M, 128 << 10), (8 * M, 8 * M)]);
        let starts = taken(&mut f, Method::NewDynamic, &[4096, 4096, 65536]);
        assert_eq!(starts, [Some(4 * M), Some(4 * M + 4096), Some(8 * M)]);
        // Without one, the largest; and the segment at the cursor as long as it is large enough.
        let mut f = tree(&[(M, 4096), (2 * M, 12288), (3 * M, 8192)]);
        let starts = taken(&mut f, Method::NewDynamic, &[4096, 4096, 4096, 4096, 4096, 4096, 4096]);
        let want = [2 * M, 2 * M + 4096, 2 * M + 8192, 3 * M, 3 * M + 4096, M].map(Some);
        assert_eq!((&starts[..6], starts[6]), (&want[..], None));
    }

    #[test]
    fn every_method_finds_what_is_there_and_nothing_else() {
        for method in Method::ALL {
            assert_eq!(Method::parse(method.name()), Some(method));
            let mut f = tree(&(0..200).map(|i| (i * 65536, 4096 + i % 7 * 512)).collect::<Vec<_>>());
            let (total, sizes) = (f.total(), [512, 1024, 4096, 3584, 512].repeat(400));
            let starts = taken(&mut f, method, &sizes);
            let used: u64 = starts.iter().zip(&sizes).filter(|(s, _)| s.is_some()).map(|(_, n)| n).sum();
            assert_eq!(f.total(), total - used, "{method:?}");
            assert_eq!(starts.last(), Some(&None), "{method:?}: it is full");
            assert_eq!(f.total(), 0, "{method:?}: the smallest size uses all");
        }
        assert_eq!(Method::parse("fastest"), None);
    }

    #[test]
    fn the_dynamic_allocator_changes_its_ways() {
        let t = AllocTunables::default();
        let tree = |runs: &[(u64, u64)]| {
            let mut f = RangeTree::indexed(0, 16 * M, 9);
            runs.iter().for_each(|&(s, n)| f.add(s, n).expect("disjoint"));
            f
        };
        // Roomy: first fit from the cursor, which moves.
        let f = tree(&[(0, 4096), (M, 8 * M), (12 * M, 4096)]);
        let mut cursors = [0; 64];
        let dynamic = |f: &RangeTree, cursors: &mut [u64; 64], asize| pick(f, cursors, asize, 16 * M, &t);
        assert_eq!(dynamic(&f, &mut cursors, 4096), Some(0));
        assert_eq!(cursors[12], 4096);
        assert_eq!(dynamic(&f, &mut cursors, 4096), Some(M));
        cursors = [10 * M; 64];
        assert_eq!(dynamic(&f, &mut cursors, 4096), Some(12 * M));
        // No fit behind the cursor: the best fit anywhere.
        assert_eq!(dynamic(&f, &mut cursors, 8192), Some(M));
        // Fragmented: best fit at once.
        let f = tree(&[(0, 65536), (M, 8192), (2 * M, 65536), (3 * M, 4096)]);
        cursors = [0; 64];
        assert_eq!(dynamic(&f, &mut cursors, 4096), Some(3 * M));
        assert_eq!(dynamic(&f, &mut cursors, 8000), Some(M));
        assert_eq!(dynamic(&f, &mut cursors, 65537), None);
        // Nearly full: best fit despite a large segment.
        let f = tree(&[(0, 512 << 10), (M, 4096)]);
        cursors = [0; 64];
        assert_eq!(dynamic(&f, &mut cursors, 4096), Some(M));
        // The search from the cursor ends after 16 MiB and 100 segments.
        let mut f = RangeTree::indexed(0, 64 * M, 9);
        (0..200).for_each(|i| f.add(i * 128 * 1024, 512).expect("disjoint"));
        f.add(60 * M, M).expect("disjoint");
        let short = AllocTunables { df_free_pct: 0, ..t.clone() };
        assert_eq!(f.first_fit(0, 4096, short.df_max_search, short.min_search_count), None);
        assert!(f.first_fit(0, 4096, 64 * M, 0).is_some());
    }
}
