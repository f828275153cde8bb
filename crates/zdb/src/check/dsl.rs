//! Datasets and directories: links between them, deadlists, and every figure of space that they
//! keep, recomputed from the block walk.
//!
//! The rules (format page 05): a dataset refers to the blocks of its tree; a head's unique space is
//! its blocks born after its last snapshot; a snapshot's unique space is the next dataset's
//! deadlist under keys from its own predecessor on; a directory's space is its head's own, its
//! deadlists from its origin on, its children's, and reservations beyond use.

use std::collections::{BTreeMap, BTreeSet};

use base::{Result, ResultExt};
use ondisk::bpobj::{BpobjPhys, DeadlistPhys};
use ondisk::dsl::{DD_FLAG_USED_BREAKDOWN, DS_FLAG_UNIQUE_ACCURATE};
use ondisk::object_type::ObjectType;

use super::report::Sink;
use super::walk::{Births, add3};
use crate::bpobj;
use crate::dsl::{Dataset, Dir, Dsl};
use crate::pool::PoolReader;
use crate::zap;

/// Pool version that brought deadlists by key, next_clones and dd_clones.
const VERSION_DIR_CLONES: u64 = 26;
/// Pool version from which unique space is kept exactly for all.
const VERSION_UNIQUE: u64 = 9;

/// Input of the check of datasets.
pub struct DslCheck<'a> {
    /// The pool.
    pub pool: &'a PoolReader,
    /// Its datasets.
    pub dsl: &'a Dsl,
    /// Space by birth of each dataset's tree; 0 is the MOS.
    pub births: &'a BTreeMap<u64, Births>,
    /// Datasets whose trees could not be walked.
    pub skipped: &'a BTreeSet<u64>,
    /// Space that waits to be freed: in free_bpobj and the like.
    pub freeing: [u64; 3],
}

/// Space of a deadlist by key.
type Keys = BTreeMap<u64, [u64; 3]>;

fn total(b: &Births) -> [u64; 3] {
    b.values().fold([0; 3], |t, z| add3(t, *z))
}

impl DslCheck<'_> {
    /// Runs all of it.
    pub fn run(&self, sink: &mut Sink<'_>) {
        self.dir_links(sink);
        let clones = self.snapshot_links(sink);
        self.clone_links(&clones, sink);
        let dead = self.deadlists(sink);
        self.bpobjs(sink);
        self.limits(sink);
        for ds in self.dsl.datasets.values() {
            self.dataset_space(ds, &dead, sink);
        }
        for dir in self.dsl.dirs.values() {
            self.dir_space(dir, &dead, sink);
        }
    }

    fn ds(&self, obj: u64) -> Option<&Dataset> {
        self.dsl.datasets.get(&obj)
    }
    fn is_origin(ds: &Dataset) -> bool {
        ds.name.contains("/$ORIGIN")
    }

    fn dir_links(&self, sink: &mut Sink<'_>) {
        for dir in self.dsl.dirs.values() {
            for (name, child) in &dir.children {
                match self.dsl.dirs.get(child) {
                    Some(c) if c.phys.parent_obj != dir.obj => sink.error(format!(
                        "{}/{name}: parent is directory {} instead of {}",
                        dir.name, c.phys.parent_obj, dir.obj
                    )),
                    _ => {}
                }
            }
            if dir.phys.head_dataset_obj != 0
                && let Some(h) = self.ds(dir.phys.head_dataset_obj)
                && h.phys.dir_obj != dir.obj
            {
                sink.error(format!("{}: head is in directory {} instead of {}", dir.name, h.phys.dir_obj, dir.obj));
            }
        }
        if let Some(root) = self.dsl.dirs.get(&self.dsl.root)
            && root.phys.parent_obj != 0
        {
            sink.error(format!("{}: the root directory has parent {}", root.name, root.phys.parent_obj));
        }
    }

    /// File systems and snapshots below a directory, without those that are hidden or temporary.
    fn count_below(&self, dir: &Dir) -> [u64; 2] {
        let is_counted = |name: &str| !name.starts_with(['$', '%']);
        let head = self.ds(dir.phys.head_dataset_obj);
        let snaps = head.map_or(0, |h| h.snapshots.iter().filter(|(name, _)| is_counted(name)).count());
        let below = dir.children.iter().filter(|(name, _)| is_counted(name));
        let below = below.filter_map(|(_, child)| self.dsl.dirs.get(child));
        below.fold([0, snaps as u64], |[dirs, snaps], child| {
            let more = self.count_below(child);
            [dirs + 1 + more[0], snaps + more[1]]
        })
    }

    /// Checks the numbers that directories have for limits (format page 24 section 3).
    fn limits(&self, sink: &mut Sink<'_>) {
        const KEYS: [&str; 2] = ["com.joyent:filesystem_count", "com.joyent:snapshot_count"];
        let numbers = |dir: &Dir| {
            let map = self.pool.mos.object(dir.obj).and_then(|o| zap::map(&o)).at(|| dir.name.clone())?;
            let found: Vec<u64> = KEYS.iter().filter_map(|k| map.get(*k)?.as_u64()).collect();
            Ok(<[u64; 2]>::try_from(found).ok())
        };
        let mut counting = BTreeSet::new();
        for dir in self.dsl.dirs.values().filter(|d| d.zapified) {
            let Some(Some(have)) = sink.take(numbers(dir)) else { continue };
            counting.insert(dir.obj);
            let want = self.count_below(dir);
            // Snapshots that are temporary have names of their own while they last.
            if have != want {
                sink.error(format!("{}: counts {have:?} file systems and snapshots, there are {want:?}", dir.name));
            }
        }
        for dir in self.dsl.dirs.values().filter(|d| counting.contains(&d.obj)) {
            let visible = dir.children.iter().filter(|(name, _)| !name.starts_with(['$', '%']));
            for (name, _) in visible.filter(|(_, child)| !counting.contains(child)) {
                sink.error(format!("{}: counts, but '{name}' below it does not", dir.name));
            }
        }
        let active = self.pool.entry_object("features_for_write").ok().flatten().and_then(|o| zap::map_u64(&o).ok());
        let active = active.and_then(|m| m.get("com.joyent:filesystem_limits").copied()).unwrap_or(0);
        if !counting.is_empty() && active == 0 {
            sink.error("directories count, but the feature filesystem_limits is not active".to_string());
        }
    }

    /// Checks how datasets follow each other; the clones of each snapshot come back.
    fn snapshot_links(&self, sink: &mut Sink<'_>) -> BTreeMap<u64, BTreeSet<u64>> {
        let mut clones: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        let mut guids: BTreeMap<u64, &str> = BTreeMap::new();
        let mut fsids: BTreeMap<u64, &str> = BTreeMap::new();
        for ds in self.dsl.datasets.values() {
            let (n, p) = (&ds.name, &ds.phys);
            if p.dir_obj != ds.dir {
                sink.error(format!("{n}: is in directory {} instead of {}", p.dir_obj, ds.dir));
            }
            if p.prev_snap_obj != 0 {
                match self.ds(p.prev_snap_obj) {
                    None => sink.error(format!("{n}: previous snapshot {} is no dataset", p.prev_snap_obj)),
                    Some(prev) => {
                        if prev.phys.creation_txg != p.prev_snap_txg {
                            sink.error(format!(
                                "{n}: previous snapshot's txg {} instead of {}",
                                p.prev_snap_txg, prev.phys.creation_txg
                            ));
                        }
                        if prev.phys.next_snap_obj != ds.obj {
                            clones.entry(prev.obj).or_default().insert(ds.obj);
                        }
                    }
                }
            } else if p.prev_snap_txg != 0 {
                sink.error(format!("{n}: previous snapshot's txg {} without a snapshot", p.prev_snap_txg));
            }
            if ds.snapshot {
                let next = self.ds(p.next_snap_obj);
                let right =
                    next.is_some_and(|x| x.phys.prev_snap_obj == ds.obj && (x.dir == ds.dir || Self::is_origin(ds)));
                if !right {
                    sink.error(format!("{n}: next dataset {} does not follow it", p.next_snap_obj));
                }
                if p.snapnames_zapobj != 0 {
                    sink.error(format!("{n}: a snapshot with snapshot names"));
                }
            } else {
                if p.next_snap_obj != 0 {
                    sink.error(format!("{n}: a head with a next dataset {}", p.next_snap_obj));
                }
                if p.num_children != 0 {
                    sink.error(format!("{n}: a head with {} children", p.num_children));
                }
                if let Some(old) = guids.insert(p.guid, n) {
                    sink.error(format!("{n}: guid {:x} is also that of {old}", p.guid));
                }
            }
            if let Some(old) = fsids.insert(p.fsid_guid, n) {
                sink.error(format!("{n}: fsid {:x} is also that of {old}", p.fsid_guid));
            }
            if p.creation_txg > self.pool.txg().0 {
                sink.error(format!("{n}: created in txg {}", p.creation_txg));
            }
            if p.bp.is_hole() && !Self::is_origin(ds) {
                sink.note(format!("{n}: has no object set"));
            }
        }
        // The oldest snapshot of a directory, or its head, hangs on the directory's origin.
        for dir in self.dsl.dirs.values() {
            let Some(mut at) = self.ds(dir.phys.head_dataset_obj).filter(|_| dir.phys.origin_obj != 0) else {
                continue;
            };
            let mut left = self.dsl.datasets.len();
            while let Some(p) = self.ds(at.phys.prev_snap_obj).filter(|p| p.dir == dir.obj && left > 0) {
                at = p;
                left -= 1;
            }
            if at.phys.prev_snap_obj != dir.phys.origin_obj {
                sink.error(format!(
                    "{}: origin {}, but the oldest dataset hangs on {}",
                    dir.name, dir.phys.origin_obj, at.phys.prev_snap_obj
                ));
            }
        }
        clones
    }

    fn int_zap(&self, obj: u64, what: &str, sink: &mut Sink<'_>) -> BTreeSet<u64> {
        if obj == 0 {
            return BTreeSet::new();
        }
        let map = self.pool.mos.object(obj).and_then(|o| zap::int_map(&o)).at(|| what.to_owned());
        let Some(map) = sink.take(map) else { return BTreeSet::new() };
        for (k, v) in map.iter().filter(|(k, v)| k != v) {
            sink.error(format!("{what}: entry {k:x} is {v}"));
        }
        map.into_values().collect()
    }

    fn clone_links(&self, clones: &BTreeMap<u64, BTreeSet<u64>>, sink: &mut Sink<'_>) {
        let none = BTreeSet::new();
        for ds in self.dsl.datasets.values().filter(|d| d.snapshot) {
            let want = clones.get(&ds.obj).unwrap_or(&none);
            if ds.phys.num_children != 1 + want.len() as u64 {
                sink.error(format!("{}: {} children, there are {}", ds.name, ds.phys.num_children, 1 + want.len()));
            }
            let have = self.int_zap(ds.phys.next_clones_obj, &format!("{}: next clones", ds.name), sink);
            let kept =
                ds.phys.next_clones_obj != 0 || self.pool.version() >= VERSION_DIR_CLONES && !Self::is_origin(ds);
            if kept && have != *want {
                sink.error(format!("{}: next clones {have:?}, there are {want:?}", ds.name));
            }
        }
        if self.pool.version() < VERSION_DIR_CLONES {
            return;
        }
        let mut heads: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for d in self.dsl.dirs.values().filter(|d| d.phys.head_dataset_obj != 0) {
            if let Some(o) = self.ds(d.phys.origin_obj) {
                heads.entry(o.dir).or_default().insert(d.phys.head_dataset_obj);
            }
        }
        for d in self.dsl.dirs.values() {
            let have = self.int_zap(d.phys.clones, &format!("{}: clones", d.name), sink);
            let want = heads.get(&d.obj).unwrap_or(&none);
            if have != *want {
                sink.error(format!("{}: clones {have:?}, there are {want:?}", d.name));
            }
        }
    }

    /// Checks all deadlists; their space by key comes back, by dataset.
    fn deadlists(&self, sink: &mut Sink<'_>) -> BTreeMap<u64, Keys> {
        let mut out = BTreeMap::new();
        let mut owner: BTreeMap<u64, String> = BTreeMap::new();
        let empty = self.pool.entry("empty_bpobj");
        for ds in self.dsl.datasets.values().filter(|d| d.phys.deadlist_obj != 0) {
            let mut once = |obj: u64, sink: &mut Sink<'_>| {
                if Some(obj) != empty
                    && let Some(old) = owner.insert(obj, ds.name.clone())
                {
                    sink.error(format!("{}: deadlist object {obj} also belongs to {old}", ds.name));
                }
            };
            once(ds.phys.deadlist_obj, sink);
            let keys = self.deadlist(ds, &mut once, sink).at(|| format!("{}: deadlist", ds.name));
            out.insert(ds.obj, sink.take(keys).unwrap_or_default());
        }
        out
    }
    fn deadlist(&self, ds: &Dataset, once: &mut dyn FnMut(u64, &mut Sink<'_>), sink: &mut Sink<'_>) -> Result<Keys> {
        let obj = self.pool.mos.object(ds.phys.deadlist_obj)?;
        let mut keys = Keys::new();
        let Some(lists) = bpobj::deadlist(self.pool, ds.phys.deadlist_obj)? else {
            // One list, made before deadlists had keys.
            let phys = bpobj::for_each(self.pool, ds.phys.deadlist_obj, &mut |bp| {
                let k = keys.entry(bp.birth().0.saturating_sub(1)).or_default();
                *k = add3(*k, self.pool.io.charge(bp));
            })?;
            let sum = keys.values().fold([0; 3], |t, z| add3(t, *z));
            self.compare_list(&format!("{} old deadlist", ds.name), &phys, sum, sink);
            return Ok(keys);
        };
        let order: Vec<u64> = lists.keys().copied().collect();
        let mut sum = [0; 3];
        for (i, (&key, &list)) in lists.iter().enumerate() {
            once(list, sink);
            let next = order.get(i + 1).copied().unwrap_or(u64::MAX);
            let mut space = [0; 3];
            let mut strays = 0u64;
            let phys = bpobj::for_each(self.pool, list, &mut |bp| {
                space = add3(space, self.pool.io.charge(bp));
                strays += u64::from(bp.birth().0 <= key || bp.birth().0 > next);
            })?;
            if strays != 0 {
                sink.error(format!("{}: deadlist key {key} has {strays} blocks with births of other keys", ds.name));
            }
            self.compare_list(&format!("{} deadlist key {key} (object {list})", ds.name), &phys, space, sink);
            keys.insert(key, space);
            sum = add3(sum, space);
        }
        let head = DeadlistPhys::parse(obj.dn.bonus())?;
        let have = [head.used, head.comp, head.uncomp];
        if have != sum {
            sink.error(format!("{}: deadlist says {have:?}, its lists hold {sum:?}", ds.name));
        }
        // A key for each snapshot before the last one, and 0; a snapshot's may have those of
        // destroyed ones too.
        let mut want = BTreeSet::from([0]);
        let mut at = self.ds(ds.phys.prev_snap_obj);
        let mut left = self.dsl.datasets.len();
        while let Some(a) = at.filter(|a| self.ds(a.phys.prev_snap_obj).is_some() && left > 0) {
            want.insert(a.phys.prev_snap_txg);
            at = self.ds(a.phys.prev_snap_obj);
            left -= 1;
        }
        let have: BTreeSet<u64> = order.into_iter().collect();
        let right = want.is_subset(&have) && (ds.snapshot || have.len() == want.len() || self.has_bookmarks());
        let exempt = Self::is_origin(ds) && ds.snapshot;
        if !(right || exempt) {
            sink.error(format!("{}: deadlist keys {have:?}, the snapshots before the last are {want:?}", ds.name));
        }
        Ok(keys)
    }
    /// Whether a bookmark may keep its key in a head's deadlist after its snapshot is gone.
    fn has_bookmarks(&self) -> bool {
        // Keys are kept in clones' heads too, so whose bookmark it is does not matter.
        self.dsl.datasets.values().filter(|d| d.zapified && !d.snapshot).any(|d| {
            let z = self.pool.mos.object(d.obj).and_then(|o| zap::lookup(&o, b"com.delphix:bookmarks"));
            z.is_ok_and(|v| v.is_some())
        })
    }
    fn compare_list(&self, what: &str, phys: &BpobjPhys, sum: [u64; 3], sink: &mut Sink<'_>) {
        let have = [phys.bytes, phys.comp, phys.uncomp];
        let same = if phys.size < ondisk::bpobj::BPOBJ_SIZE_V1 { have[0] == sum[0] } else { have == sum };
        if !same {
            sink.error(format!("{what} says {have:?}, its blocks take {sum:?}"));
        }
    }

    /// Every list of the MOS against its own header.
    fn bpobjs(&self, sink: &mut Sink<'_>) {
        let mut lists = Vec::new();
        self.pool.mos.for_each_object(&mut |r| {
            if let Ok(o) = r
                && o.dn.otype == ObjectType::BPOBJ
                && o.dn.bonustype == ObjectType::BPOBJ_HDR
            {
                lists.push(o.num);
            }
        });
        for num in lists {
            let Some((s, phys)) = sink.take(bpobj::sum(self.pool, num)) else { continue };
            self.compare_list(&format!("block pointer list {num}"), &phys, s.space, sink);
            if s.freed != phys.num_freed {
                sink.error(format!("block pointer list {num} says {} frees, it has {}", phys.num_freed, s.freed));
            }
        }
    }

    fn dataset_space(&self, ds: &Dataset, dead: &BTreeMap<u64, Keys>, sink: &mut Sink<'_>) {
        if self.skipped.contains(&ds.obj) {
            return;
        }
        let none = Births::new();
        let births = self.births.get(&ds.obj).unwrap_or(&none);
        let p = &ds.phys;
        let (have, want) = ([p.referenced_bytes, p.compressed_bytes, p.uncompressed_bytes], total(births));
        if have != want {
            sink.error(format!("{}: referenced, compressed, uncompressed {have:?}, its blocks {want:?}", ds.name));
        }
        let exact = self.pool.version() >= VERSION_UNIQUE || p.flags & DS_FLAG_UNIQUE_ACCURATE != 0;
        let unique: Option<u64> = if !ds.snapshot {
            Some(births.range(p.prev_snap_txg + 1..).map(|(_, z)| z[0]).sum())
        } else {
            dead.get(&p.next_snap_obj).map(|keys| keys.range(p.prev_snap_txg..).map(|(_, z)| z[0]).sum())
        };
        if let Some(u) = unique.filter(|u| exact && *u != p.unique_bytes) {
            sink.error(format!("{}: unique {}, it should be {u}", ds.name, p.unique_bytes));
        }
    }

    /// A property that is not inherited: local, else received.
    fn property(&self, dir: &Dir, name: &str) -> u64 {
        let Ok(Some(obj)) = (match dir.phys.props_zapobj {
            0 => Ok(None),
            o => self.pool.mos.find(o),
        }) else {
            return 0;
        };
        let Ok(map) = zap::map(&obj) else { return 0 };
        let number = |k: &str| map.get(k).and_then(|v| v.as_u64());
        number(name).unwrap_or_else(|| {
            if map.contains_key(&format!("{name}$inherit")) { 0 } else { number(&format!("{name}$recvd")).unwrap_or(0) }
        })
    }

    fn dir_space(&self, dir: &Dir, dead: &BTreeMap<u64, Keys>, sink: &mut Sink<'_>) {
        let p = &dir.phys;
        let children: Vec<&Dir> = dir.children.iter().filter_map(|(_, o)| self.dsl.dirs.get(o)).collect();
        let child = children.iter().map(|c| c.phys.used_bytes).fold(0u64, u64::wrapping_add);
        let rsrv =
            children.iter().map(|c| c.phys.reserved.saturating_sub(c.phys.used_bytes)).fold(0u64, u64::wrapping_add);
        let (mut head, mut snap, mut refrsrv) = ([0; 3], [0; 3], 0);
        let base = dir.name.rsplit('/').next().unwrap_or("");
        let own = matches!(base, "$MOS" | "$FREE" | "$LEAK") && dir.name.matches('/').count() == 1;
        if let Some(h) = self.ds(p.head_dataset_obj) {
            let in_dir = || self.dsl.datasets.values().filter(|d| d.dir == dir.obj);
            if in_dir().any(|d| self.skipped.contains(&d.obj)) {
                return;
            }
            let origin = self.ds(p.origin_obj).map_or(0, |o| o.phys.creation_txg);
            if let Some(b) = self.births.get(&h.obj) {
                head = b.range(origin + 1..).fold(head, |t, (_, z)| add3(t, *z));
            }
            for d in in_dir() {
                if let Some(keys) = dead.get(&d.obj) {
                    snap = keys.range(origin..).fold(snap, |t, (_, z)| add3(t, *z));
                }
            }
            refrsrv = self.property(dir, "refreservation").saturating_sub(h.phys.unique_bytes);
        } else if base == "$MOS" && own {
            head = self.births.get(&0).map_or([0; 3], total);
        } else if base == "$FREE" && own {
            head = self.freeing;
        }
        if own && base == "$LEAK" {
            return;
        }
        let want = [head[0], snap[0], child, rsrv, refrsrv];
        let sum = |w: &[u64]| w.iter().fold(0u64, |a, b| a.wrapping_add(*b));
        if p.flags & DD_FLAG_USED_BREAKDOWN != 0 {
            if sum(&p.used_breakdown) != p.used_bytes {
                sink.error(format!("{}: used {}, its breakdown {:?}", dir.name, p.used_bytes, p.used_breakdown));
            }
            if p.used_breakdown != want {
                sink.error(format!(
                    "{}: used by head, snapshots, children, their reservations, refreservation {:?}, it should be {want:?}",
                    dir.name, p.used_breakdown
                ));
            }
        } else if p.used_bytes != sum(&want) {
            sink.error(format!("{}: used {}, it should be {}", dir.name, p.used_bytes, sum(&want)));
        }
        type Figure = (&'static str, u64, usize, fn(&Dir) -> u64);
        let figures: [Figure; 2] = [
            ("compressed", p.compressed_bytes, 1, |d| d.phys.compressed_bytes),
            ("uncompressed", p.uncompressed_bytes, 2, |d| d.phys.uncompressed_bytes),
        ];
        for (name, have, i, of) in figures {
            let below = children.iter().map(|c| of(c)).fold(0u64, u64::wrapping_add);
            let want = head[i].wrapping_add(snap[i]).wrapping_add(below);
            if have != want {
                sink.error(format!("{}: {name} {have}, it should be {want}", dir.name));
            }
        }
    }
}
