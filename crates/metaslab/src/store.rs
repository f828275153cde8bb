//! The source of space maps, and their replay.

use base::{Error, ObjectId, Result, ResultExt, VdevId};
use ondisk::space_map::{Entry, MapType, entries};
use rt::LocalBoxFuture;

use crate::range_tree::{RangeTree, Run};

/// The state of a metaslab in the last commit.
#[derive(Clone, Debug)]
pub struct LoadedMap {
    /// Free ranges (absolute in the top-level vdev) in an indexed tree that covers exactly the
    /// metaslab: the [`RangeTree::complement`] of what [`Replay::finish`] returns.
    pub free: RangeTree,
    /// `smp_alloc` of the header.
    pub alloc: i64,
    /// Histogram of the header, if it has one.
    pub histogram: Option<[u64; 32]>,
    /// The space map object; `None` if the metaslab never had one.
    pub object: Option<ObjectId>,
    /// Bytes of entries.
    pub length: u64,
}

/// Reads space maps; implemented in `spa`.
pub trait SpaceMapStore {
    /// The content of the space map of metaslab `ms` of `vdev` as of the last commit, or of any
    /// commit until the future resolves. It must be the whole content of one commit; changes taken
    /// with `take_changes` whose txg is not committed should not be in it, but are harmless.
    fn load<'a>(&'a self, vdev: VdevId, ms: u64) -> LocalBoxFuture<'a, Result<LoadedMap>>;
}

/// Replays the space map of one metaslab, entry by entry, from an all-free state. Overlapping
/// allocations, frees of free space, and ranges outside of the metaslab are damage.
#[derive(Clone, Debug)]
pub struct Replay {
    allocated: RangeTree,
    shift: u8,
    count: u64,
}

impl Replay {
    /// A replay for the metaslab that covers `range` of its vdev, in units of `1 << shift` bytes
    /// (the vdev's ashift).
    pub fn new(range: Run, shift: u8) -> Replay {
        Replay { allocated: RangeTree::new(range.start, range.size, shift), shift, count: 0 }
    }

    /// Replays `data`: the entries of the map or the next of several parts, each of whole entries
    /// (blocks of the object are).
    pub fn entries(&mut self, data: &[u8]) -> Result<()> {
        let base = self.allocated.area().start;
        for entry in entries(data, u32::from(self.shift)) {
            let Entry::Run { kind, offset, size, .. } = entry? else { continue };
            let Some(start) = base.checked_add(offset) else {
                return Err(Error::corrupt(format!("space map entry at offset {offset:#x} is beyond its metaslab")));
            };
            match kind {
                MapType::Alloc => self.alloc(Run { start, size })?,
                MapType::Free => self.free(Run { start, size })?,
            }
        }
        Ok(())
    }

    /// An allocation, absolute in the top-level vdev.
    pub fn alloc(&mut self, run: Run) -> Result<()> {
        self.count += 1;
        self.allocated.add(run.start, run.size).at(|| format!("space map entry {}: ALLOC {run}", self.count))
    }

    /// A free, absolute in the top-level vdev.
    pub fn free(&mut self, run: Run) -> Result<()> {
        self.count += 1;
        self.allocated.remove(run.start, run.size).at(|| format!("space map entry {}: FREE {run}", self.count))
    }

    /// Segments of allocated space so far.
    pub fn segments(&self) -> usize {
        self.allocated.len()
    }

    /// The allocated ranges; `Corrupt` unless they add up to `smp_alloc`, the figure of the map's
    /// header.
    pub fn finish(self, smp_alloc: i64) -> Result<RangeTree> {
        if i64::try_from(self.allocated.total()) != Ok(smp_alloc) {
            return Err(Error::corrupt(format!(
                "space map entries add up to {} bytes, its header says {smp_alloc}",
                self.allocated.total()
            )));
        }
        Ok(self.allocated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::ErrorKind;
    use ondisk::space_map::Encoder;

    #[test]
    fn replays_what_was_encoded_and_refuses_damage() {
        let area = Run { start: 3 << 24, size: 1 << 24 };
        let mut e = Encoder::new(9, 16 << 10, 0, true);
        e.group(MapType::Alloc, 1, 4);
        e.run(MapType::Alloc, 0, 1 << 24);
        e.group(MapType::Free, 1, 5);
        e.run(MapType::Free, 4096, 8192);
        let data = e.finish();
        let mut r = Replay::new(area, 9);
        r.entries(&data).expect("good");
        let bad = r.clone();
        let t = r.finish((1 << 24) - 8192).expect("adds up");
        assert_eq!(t.gaps().collect::<Vec<_>>(), [Run { start: area.start + 4096, size: 8192 }]);
        assert_eq!(bad.clone().finish(0).expect_err("does not add up").kind(), ErrorKind::Corrupt);
        for (kind, offset, size) in [
            (MapType::Free, 4096u64, 512u64),
            (MapType::Alloc, 0, 512),
            (MapType::Alloc, 8192, 8192),
            (MapType::Free, 1 << 24, 512),
            (MapType::Alloc, 1 << 40, 512),
        ] {
            let mut e = Encoder::new(9, 16 << 10, 0, true);
            e.run(kind, offset, size);
            let error = bad.clone().entries(&e.finish()).expect_err("damage");
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().contains("space map entry 3"), "{error}");
        }
    }
}
