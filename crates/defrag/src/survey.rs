//! The files of a pool and how they lie, read once from begin to end.
//!
//! For each head file system, in order of name, each plain file: its level-0 blocks in file order
//! as [`Runs`]. Indirect blocks and dnodes are not encrypted, so file systems without their key are
//! surveyed like others, only paths need the key. Volumes are counted and left out: nothing
//! rewrites them in place. A file that cannot be read is counted and left out: in a pool that is in
//! use blocks of the state that is read may have been overwritten.
//!
//! Memory: sums, and of the [`FILES_MAX`] files that are worth most their sums each.

use std::collections::BTreeMap;

use base::{Error, ErrorKind, Result, Txg};
use ondisk::object_type::ObjectType;
use ondisk::objset::ObjsetType;
use ondisk::vdev_config::VdevKind;
use ondisk::zpl::Dirent;
use zdb::PoolReader;
use zdb::dsl::{Dataset, Dsl};
use zdb::objset::{Object, Objset};
use zdb::zap;
use zdb::zpl::FileSystem;

use crate::extents::{Place, Runs};
use crate::plan::{Candidate, Goal};
use crate::predict::Costs;
use crate::space::{BUCKETS, Space};

/// Most files that a plan considers.
const FILES_MAX: usize = 1 << 16;
/// Most names of directories in memory.
const NAMES_MAX: usize = 1 << 20;
/// Deepest path.
const DEPTH_MAX: u32 = 1024;

/// What there is in a pool.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// The files that are worth most, in no order.
    pub(crate) candidates: Vec<Candidate>,
    /// Files with blocks of their own.
    pub(crate) files: u64,
    /// Their allocated bytes.
    pub(crate) bytes: u64,
    /// Their runs.
    pub(crate) runs: u64,
    /// Files that rewriting gains too little or nothing.
    pub(crate) little: u64,
    /// Files that were worth too little to be remembered.
    pub(crate) forgotten: u64,
    /// Volumes.
    pub(crate) volumes: u64,
    /// Files, and blocks of dnodes, that could not be read.
    pub(crate) unreadable: u64,
    /// The first error of those.
    pub(crate) error: Option<String>,
}

/// What files are compared by.
pub(crate) struct Scale<'a> {
    /// Free segments of the pool.
    pub(crate) segments: [u64; BUCKETS],
    /// Times of reading.
    pub(crate) costs: &'a Costs,
    /// The goal.
    pub(crate) goal: Goal,
    /// Least share of itself that a file gains.
    pub(crate) min_gain: f64,
}

/// The txg of the newest snapshot that shares blocks with a head.
pub(crate) fn snapshot_of(head: &Dataset) -> Txg {
    Txg(head.phys.prev_snap_txg)
}

/// The file systems of a pool that may be written, in order of name.
pub(crate) fn heads(dsl: &Dsl) -> Vec<&Dataset> {
    let all = dsl.by_name().into_iter();
    all.filter(|d| !d.snapshot && !d.is_internal() && !d.phys.bp.is_hole()).collect()
}

/// The place of each block of an object that takes space, in file order. Stops at the first error,
/// its own or of `f`.
pub(crate) fn each_place(
    pool: &PoolReader,
    obj: &Object,
    snapshot: Txg,
    f: &mut dyn FnMut(Place) -> Result<()>,
) -> Result<()> {
    obj.for_each_data(&mut |blkid, bp| {
        let at = || format!("{} block {blkid}", obj.place());
        pool.io.validate(bp).map_err(|e| e.at(at()))?;
        match Place::of(bp, snapshot).map_err(|e| e.at(at()))? {
            Some(place) => f(moved(pool, place).map_err(|e| e.at(at()))?),
            None => Ok(()),
        }
    })
}

/// Where a block of a removed vdev went; in pieces if to several places.
fn moved(pool: &PoolReader, place: Place) -> Result<Place> {
    let top = zdb::vdev::top(&pool.io.tops, place.vdev)?;
    if top.kind != VdevKind::Indirect {
        return Ok(place);
    }
    let went = top.places(&pool.io.tops, place.vdev, place.offset, place.asize)?;
    match went[..] {
        [(vdev, offset, asize)] => Ok(Place { vdev, offset, asize, ..place }),
        [(vdev, offset, asize), ..] => Ok(Place { vdev, offset, asize, gang: true, ..place }),
        [] => Err(Error::corrupt("the mapping of a removed vdev has no place for it")),
    }
}

impl Survey {
    /// Reads all file systems; `progress` gets the name of each.
    pub(crate) fn of(
        pool: &PoolReader,
        dsl: &Dsl,
        space: &Space,
        scale: &Scale<'_>,
        progress: &mut dyn FnMut(&str),
    ) -> Survey {
        let mut survey = Survey::default();
        let mut best: BTreeMap<(u64, u64, u64), Candidate> = BTreeMap::new();
        for head in heads(dsl) {
            progress(&head.name);
            let os = match pool.open_dataset(&head.name, head.obj, &head.phys.bp) {
                Ok(os) => os,
                Err(e) => {
                    survey.missed(&e);
                    continue;
                }
            };
            match os.phys.os_type {
                ObjsetType::Zfs => survey.file_system(pool, &os, snapshot_of(head), space, scale, &mut best),
                ObjsetType::Zvol => survey.volumes += 1,
                _ => {}
            }
        }
        survey.candidates = best.into_values().collect();
        survey
    }

    fn missed(&mut self, e: &Error) {
        self.unreadable += 1;
        self.error.get_or_insert_with(|| e.to_string());
    }

    fn file_system(
        &mut self,
        pool: &PoolReader,
        os: &Objset,
        snapshot: Txg,
        space: &Space,
        scale: &Scale<'_>,
        best: &mut BTreeMap<(u64, u64, u64), Candidate>,
    ) {
        os.for_each_object(&mut |found| {
            let obj = match found {
                Ok(obj) if obj.dn.otype == ObjectType::PLAIN_FILE => obj,
                Ok(_) => return,
                Err(e) => return self.missed(&e),
            };
            let mut runs = Runs::default();
            let walked = each_place(pool, &obj, snapshot, &mut |p| {
                runs.push(p, space.is_fragmented(p.vdev, p.offset));
                Ok(())
            });
            if let Err(e) = walked {
                return self.missed(&e);
            }
            self.file((os.dsobj, obj.num), runs, scale, best);
        });
    }

    /// Takes a file in.
    fn file(&mut self, id: (u64, u64), runs: Runs, scale: &Scale<'_>, best: &mut BTreeMap<(u64, u64, u64), Candidate>) {
        if runs.blocks == 0 {
            return;
        }
        self.files += 1;
        self.bytes = self.bytes.saturating_add(runs.bytes);
        self.runs += runs.runs;
        let c = Candidate::new(id, runs, &scale.segments);
        let share = c.share(scale.goal, scale.costs);
        if share <= 0.0 || share < scale.min_gain {
            self.little += 1;
            return;
        }
        // Numbers above 0 are in the order of their bits.
        best.insert((c.worth(scale.goal, scale.costs).to_bits(), id.0, id.1), c);
        if best.len() > FILES_MAX {
            best.pop_first();
            self.forgotten += 1;
        }
    }
}

/// Paths of files of one file system.
pub(crate) struct Paths {
    fs: Option<FileSystem>,
    /// Names of the objects in a directory.
    dirs: BTreeMap<u64, BTreeMap<u64, String>>,
    count: usize,
}

impl Paths {
    /// Of a file system; without its key there are none.
    pub(crate) fn of(os: &Objset) -> Paths {
        Paths { fs: FileSystem::open(os).ok(), dirs: BTreeMap::new(), count: 0 }
    }

    /// The path of an object from the root of the file system on.
    pub(crate) fn path(&mut self, num: u64) -> Option<String> {
        self.find(num).ok()
    }

    fn find(&mut self, num: u64) -> Result<String> {
        let mut parts = Vec::new();
        let mut at = num;
        let root = self.fs.as_ref().map_or(0, |fs| fs.root);
        for _ in 0..DEPTH_MAX {
            if at == root {
                parts.push(String::new());
                parts.reverse();
                return Ok(parts.join("/"));
            }
            let fs = self.fs.as_ref().ok_or_else(|| Error::new(ErrorKind::Unsupported, "without a key"))?;
            let parent = fs.attrs(&fs.os.object(at)?)?.parent;
            if !self.dirs.contains_key(&parent) {
                let entries = zap::entries(&fs.os.object(parent)?)?;
                let named = |e: &zap::ZapEntry| Some((Dirent::unpack(e.u64()?).object, e.name()));
                let names: BTreeMap<u64, String> = entries.iter().filter_map(named).collect();
                self.count += names.len();
                if self.count > NAMES_MAX {
                    self.dirs.clear();
                    self.count = names.len();
                }
                self.dirs.insert(parent, names);
            }
            let name = self.dirs.get(&parent).and_then(|names| names.get(&at));
            parts.push(name.cloned().ok_or_else(|| Error::not_found("its directory does not name it"))?);
            at = parent;
        }
        Err(Error::corrupt("its directories lead to each other"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extents::at;

    #[test]
    fn the_best_files_are_remembered() {
        let costs = Costs { byte: 5.0, run: 5e6 };
        let mut segments = [0; BUCKETS];
        segments[40] = 8;
        let scale = Scale { segments, costs: &costs, goal: Goal::Read, min_gain: 0.1 };
        let (mut survey, mut best) = (Survey::default(), BTreeMap::new());
        for object in 0..FILES_MAX as u64 + 10 {
            let runs = Runs { blocks: 100, bytes: 100 << 12, stored: 100 << 12, runs: 2 + object, ..Runs::default() };
            survey.file((1, object), runs, &scale, &mut best);
        }
        assert_eq!((survey.files, survey.forgotten, best.len()), (FILES_MAX as u64 + 10, 10, FILES_MAX));
        assert_eq!(best.first_key_value().map(|(k, _)| k.2), Some(10), "those with the fewest runs are forgotten");
        let mut one = Runs::default();
        one.push(at(0, 0, 4096), false);
        survey.file((1, 1), one, &scale, &mut best);
        survey.file((1, 2), Runs::default(), &scale, &mut best);
        assert_eq!((survey.files, survey.little), (FILES_MAX as u64 + 11, 1));
    }
}
