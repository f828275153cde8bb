//! The datasets of a pool, from all states of its MOS that are left.
//!
//! The *stack* is every MOS that can be opened, the newest first. Directories and datasets are
//! found by the types of their objects, not by following names, so that one lost ZAP hides nothing;
//! what is lost of the newest MOS is looked for in the next one, and so on. Names come from the
//! ZAPs of any state; what has none is named after its object (`dir-12`, `snap-34`).
//!
//! A dataset has *views*: its object sets in all states that can be opened, the newest first, and
//! those that a scan found for it. Which file comes from which is the business of [`crate::fs`].

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::{Error, Txg};
use ondisk::blkptr::Blkptr;
use ondisk::dsl::{DslDatasetPhys, DslDirPhys};
use ondisk::object_type::ObjectType;

use zio::DataKey;

use crate::finds::Finds;
use crate::state::Problem;
use crate::tree::{Lookup, Objset};

/// Longest name of a dataset, with some room.
const NAME_MAX: usize = 1024;
/// Most states of one dataset that are kept.
const VIEWS_MAX: usize = 64;
/// Most states of one dataset that are tried.
const STATES_MAX: usize = 1024;

/// A dataset.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// Its full name, with `@` in a snapshot's.
    pub name: String,
    /// Its object; 0 if it was found by a scan.
    pub obj: u64,
    /// Its guid.
    pub guid: u64,
    /// Its directory.
    pub dir: u64,
    /// Whether it is a snapshot.
    pub snapshot: bool,
    /// Pointer to its newest object set that is known.
    pub bp: Blkptr,
    /// Pointers that only a scan found.
    pub found: Vec<Blkptr>,
    /// Whether `bp` is from the newest MOS.
    pub is_newest: bool,
}

/// Something about a dataset that is lost with the MOS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Flaw {
    /// Name of the dataset, or of the one above it.
    pub dataset: String,
    /// `Lost`, `Older` or `Names`.
    pub problem: Problem,
    /// A sentence.
    pub note: String,
    /// Whether it is about snapshots alone.
    pub of_snapshots: bool,
}

/// All datasets.
#[derive(Default)]
pub struct Catalog {
    /// By name; heads before their snapshots.
    pub datasets: Vec<Dataset>,
    /// What is lost.
    pub flaws: Vec<Flaw>,
    /// Whether the newest state of the pool is lost, so that all of it is as of an older one.
    pub newest_is_lost: bool,
    /// Whether dnodes of the MOS are lost in every state.
    pub is_partial: bool,
    /// Whether dnodes of the newest MOS are lost.
    pub newest_is_partial: bool,
}

/// Directories and datasets by object, from all states.
#[derive(Default)]
struct Dsl {
    dirs: BTreeMap<u64, DslDirPhys>,
    sets: BTreeMap<u64, DslDatasetPhys>,
    /// Datasets that are not from the newest MOS.
    older: BTreeSet<u64>,
    /// Ranges of objects that are lost in every state: first and end.
    lost: Vec<(u64, u64)>,
    newest_lost: bool,
}

/// The parts of `range` that lie within `wanted`.
fn within(wanted: &[(u64, u64)], range: (u64, u64)) -> impl Iterator<Item = (u64, u64)> + '_ {
    let parts = wanted.iter().map(move |w| (w.0.max(range.0), w.1.min(range.1)));
    parts.filter(|(a, b)| a < b)
}

impl Dsl {
    fn read(stack: &[Objset]) -> Dsl {
        let mut it = Dsl { lost: vec![(0, u64::MAX)], ..Dsl::default() };
        for (n, mos) in stack.iter().enumerate() {
            let wanted = std::mem::take(&mut it.lost);
            if wanted.is_empty() {
                break;
            }
            mos.for_each(&mut |o| match o {
                Ok(o) if within(&wanted, (o.num, o.num + 1)).next().is_some() => match o.dn.bonustype {
                    ObjectType::DSL_DIR => {
                        if let Ok(phys) = DslDirPhys::parse(o.dn.bonus()) {
                            it.dirs.insert(o.num, phys);
                        }
                    }
                    ObjectType::DSL_DATASET => {
                        if let Ok(phys) = DslDatasetPhys::parse(o.dn.bonus()) {
                            it.sets.insert(o.num, phys);
                            if n > 0 {
                                it.older.insert(o.num);
                            }
                        }
                    }
                    _ => {}
                },
                Ok(_) => {}
                Err((first, count, _)) => {
                    it.lost.extend(within(&wanted, (first, first.saturating_add(count))));
                    it.newest_lost |= n == 0;
                }
            });
        }
        it
    }
}

/// The names in a ZAP of the MOS by object, from all states if the newest one has lost some. The
/// flag: all were there in the first state that has the object.
fn names(stack: &[Objset], zap: u64) -> (BTreeMap<u64, String>, bool) {
    let (mut out, mut first, mut whole) = (BTreeMap::new(), true, false);
    if zap == 0 {
        return (out, true);
    }
    for mos in stack {
        let entries = match mos.find(zap) {
            Lookup::There(o) => o.entries(),
            Lookup::Free => continue,
            Lookup::Lost(_) => {
                first = false;
                continue;
            }
        };
        for (name, obj) in entries.numbers() {
            out.entry(obj).or_insert_with(|| String::from_utf8_lossy(name).into_owned());
        }
        if entries.lost.is_empty() {
            whole = first;
            break;
        }
        first = false;
    }
    (out, whole)
}

impl Catalog {
    /// Reads it; `pool` is the name of the root.
    pub fn read(stack: &[Objset], finds: &Finds, pool: &str) -> Catalog {
        let dsl = Dsl::read(stack);
        let mut it =
            Catalog { is_partial: !dsl.lost.is_empty(), newest_is_partial: dsl.newest_lost, ..Catalog::default() };
        let mut dir_names: BTreeMap<u64, String> = BTreeMap::new();
        let mut nameless = Vec::new();
        for (num, dir) in &dsl.dirs {
            let (known, whole) = names(stack, dir.child_dir_zapobj);
            if !whole {
                nameless.push(*num);
            }
            for (child, name) in known {
                // Older states may name what has moved: the child knows its parent.
                if dsl.dirs.get(&child).is_none_or(|c| c.parent_obj == *num) {
                    dir_names.entry(child).or_insert(name);
                }
            }
        }
        for num in nameless {
            let above = path(num, &dsl.dirs, &dir_names, pool).unwrap_or_else(|| format!("{pool}/dir-{num}"));
            it.flaw(above, Problem::Names, "names of datasets below it are from older states or lost", false);
        }
        if let Some((first, end)) = dsl.lost.first() {
            let note = format!("objects from {first} to {end} are lost in every state: datasets may be missing");
            it.flaw(pool.to_owned(), Problem::Lost, note, false);
        }
        if dsl.newest_lost {
            let note = "objects of its newest state are lost, and what only they knew: newer datasets may be missing";
            it.flaw(pool.to_owned(), Problem::Older, note, false);
        }
        let mut heads: BTreeMap<u64, (u64, String)> = BTreeMap::new();
        for (num, dir) in dsl.dirs.iter().filter(|(_, d)| d.head_dataset_obj != 0) {
            if let Some(name) = path(*num, &dsl.dirs, &dir_names, pool)
                && !name.split('/').any(|part| part.starts_with('$'))
            {
                heads.insert(dir.head_dataset_obj, (*num, name));
            }
        }
        for (head, (dir, name)) in &heads {
            match dsl.sets.get(head) {
                Some(phys) => it.add(&dsl, *head, phys, *dir, name.clone()),
                None => it.flaw(name.clone(), Problem::Lost, format!("its dataset object {head} is lost"), false),
            }
        }
        let mut snap_names: BTreeMap<u64, String> = BTreeMap::new();
        for (head, (_, name)) in &heads {
            let Some(phys) = dsl.sets.get(head) else { continue };
            let (known, whole) = names(stack, phys.snapnames_zapobj);
            if !whole {
                it.flaw(name.clone(), Problem::Names, "names of its snapshots are from older states or lost", true);
            }
            snap_names.extend(known);
        }
        let of_dir: BTreeMap<u64, &String> = heads.values().map(|(dir, name)| (*dir, name)).collect();
        for (num, phys) in dsl.sets.iter().filter(|(_, p)| p.is_snapshot()) {
            let Some(fs) = of_dir.get(&phys.dir_obj) else { continue };
            let snap = snap_names.get(num).cloned().unwrap_or_else(|| format!("snap-{num}"));
            it.add(&dsl, *num, phys, phys.dir_obj, format!("{fs}@{snap}"));
        }
        it.add_found(finds, stack.is_empty());
        it.make_names_distinct();
        it.datasets.sort_by_key(|a| (a.name.replace('/', "\0"), a.obj));
        it
    }

    fn flaw(&mut self, dataset: String, problem: Problem, note: impl Into<String>, of_snapshots: bool) {
        self.flaws.push(Flaw { dataset, problem, note: note.into(), of_snapshots });
    }

    fn add(&mut self, dsl: &Dsl, obj: u64, phys: &DslDatasetPhys, dir: u64, name: String) {
        if !phys.bp.is_hole() {
            let (found, is_newest) = (Vec::new(), !dsl.older.contains(&obj));
            let snapshot = phys.is_snapshot();
            self.datasets.push(Dataset { name, obj, guid: phys.guid, dir, snapshot, bp: phys.bp, found, is_newest });
        }
    }

    /// Adds what a scan found: other states of known datasets, and datasets whose objects are lost.
    fn add_found(&mut self, finds: &Finds, all: bool) {
        let mut unknown: BTreeMap<u64, Dataset> = BTreeMap::new();
        for phys in finds.datasets.iter().filter(|p| !p.bp.is_hole()) {
            if let Some(known) = self.datasets.iter_mut().find(|d| d.guid == phys.guid) {
                // Each state was found once.
                if known.bp != phys.bp {
                    known.found.push(phys.bp);
                }
                continue;
            }
            // What the MOS does not know any more was destroyed, unless the MOS is damaged.
            if !self.is_partial && !self.newest_is_partial && !all {
                continue;
            }
            let new = Dataset {
                name: format!("dataset-{:x}", phys.guid),
                obj: 0,
                guid: phys.guid,
                dir: phys.dir_obj,
                snapshot: phys.is_snapshot(),
                bp: phys.bp,
                found: Vec::new(),
                is_newest: false,
            };
            let entry = unknown.entry(phys.guid).or_insert_with(|| new.clone());
            if phys.bp.birth() > entry.bp.birth() {
                let older = std::mem::replace(entry, new);
                entry.found = older.found;
                entry.found.push(older.bp);
            } else if entry.bp != phys.bp {
                entry.found.push(phys.bp);
            }
        }
        self.datasets.extend(unknown.into_values());
    }

    fn make_names_distinct(&mut self) {
        let mut seen = BTreeSet::new();
        for d in &mut self.datasets {
            if !seen.insert(d.name.clone()) {
                d.name = format!("{}~{:x}", d.name, d.guid);
                seen.insert(d.name.clone());
            }
        }
    }
}

/// The full name of a directory; `None` for a loop, or a name that is too long.
fn path(mut dir: u64, dirs: &BTreeMap<u64, DslDirPhys>, names: &BTreeMap<u64, String>, pool: &str) -> Option<String> {
    let mut parts = Vec::new();
    let mut seen = BTreeSet::new();
    loop {
        let phys = dirs.get(&dir);
        if phys.is_some_and(|p| p.parent_obj == 0) {
            parts.push(pool.to_owned());
            break;
        }
        if !seen.insert(dir) || seen.len() > NAME_MAX {
            return None;
        }
        parts.push(names.get(&dir).map_or_else(|| format!("dir-{dir}"), |n| clean(n)));
        match phys {
            Some(p) => dir = p.parent_obj,
            // The directory above is lost.
            None => {
                parts.push(pool.to_owned());
                break;
            }
        }
    }
    parts.reverse();
    let name = parts.join("/");
    (name.len() <= NAME_MAX).then_some(name)
}

/// A component of a dataset's name: hostile ones must not look like several.
fn clean(name: &str) -> String {
    let safe = name.replace(['/', '@', '\0'], "_");
    if safe.is_empty() || safe == "." || safe == ".." { format!("{safe}_") } else { safe }
}

/// The states of a dataset.
pub struct Views {
    /// The newest first.
    pub all: Vec<Objset>,
    /// Why the newest one that is known cannot be opened.
    pub failed: Option<Error>,
    /// Whether the first one was found, and no pointer led to it.
    pub is_first_found: bool,
}

impl Dataset {
    /// Its views.
    pub fn views(&self, stack: &[Objset], finds: &Finds, key: Option<&Rc<DataKey>>) -> Views {
        let (mut views, newest, failed) = self.known_views(stack, finds, key);
        // A snapshot never changes. What is younger than the state in the newest MOS was never
        // committed; if that MOS is lost, or what it says of this dataset, younger states count.
        let known = self.snapshot || self.is_newest && !finds.beyond;
        let limit = newest.filter(|_| known).unwrap_or(Txg(u64::MAX));
        let first = views.first().map(|v| v.txg);
        for os in finds.of_dataset(self, &views, limit, key) {
            if views.iter().all(|v| !v.same_as(&os)) {
                views.push(os);
            }
        }
        views.sort_by_key(|v| std::cmp::Reverse(v.txg));
        let is_first_found = views.first().is_some_and(|v| first.is_none_or(|f| v.txg > f));
        Views { all: views, failed, is_first_found }
    }

    /// The views that pointers lead to, the newest first; the birth of the newest pointer, and why
    /// it leads nowhere if so.
    pub fn known_views(
        &self,
        stack: &[Objset],
        finds: &Finds,
        key: Option<&Rc<DataKey>>,
    ) -> (Vec<Objset>, Option<Txg>, Option<Error>) {
        let mut bps: Vec<Blkptr> = vec![self.bp];
        for mos in stack.iter().filter(|_| self.obj != 0) {
            let Lookup::There(o) = mos.find(self.obj) else { continue };
            if let Ok(phys) = DslDatasetPhys::parse(o.dn.bonus())
                && phys.guid == self.guid
                && !bps.contains(&phys.bp)
            {
                bps.push(phys.bp);
            }
        }
        bps.extend(self.found.iter().copied());
        bps.sort_by_key(|bp| std::cmp::Reverse(bp.birth()));
        bps.truncate(STATES_MAX);
        let newest = bps.first().copied();
        let mut views: Vec<Objset> = Vec::new();
        let mut failed = None;
        for (n, bp) in bps.iter().filter(|bp| !bp.is_hole()).enumerate() {
            let Some(io) = stack.first().map(|m| &m.io).or(finds.io.as_ref()) else { break };
            match Objset::open(io, bp) {
                Ok(os) if views.iter().all(|v| !v.same_as(&os)) => views.push(os.with_key(key.cloned())),
                Ok(_) => {}
                Err(e) if n == 0 => failed = Some(e),
                Err(_) => {}
            }
            if views.len() >= VIEWS_MAX {
                break;
            }
        }
        (views, newest.map(|bp| bp.birth()), failed)
    }
}

/// The states of `stack` without those that are the same.
pub fn stack_of(mut all: Vec<Objset>) -> Rc<[Objset]> {
    all.sort_by_key(|m| std::cmp::Reverse(m.txg));
    let mut out: Vec<Objset> = Vec::new();
    for mos in all {
        if out.iter().all(|m| !m.same_as(&mos)) {
            out.push(mos);
        }
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    // The fields are of a struct inside of it.
    #[expect(clippy::field_reassign_with_default)]
    fn dir(parent: u64) -> DslDirPhys {
        let mut d = DslDirPhys::default();
        d.parent_obj = parent;
        d
    }

    #[test]
    fn paths_of_directories() {
        let dirs = BTreeMap::from([(2, dir(0)), (5, dir(2)), (6, dir(5)), (7, dir(8)), (8, dir(7)), (9, dir(99))]);
        let names = BTreeMap::from([(5, "a".to_owned()), (6, "../b".to_owned())]);
        let path = |d| path(d, &dirs, &names, "p");
        assert_eq!(path(2).as_deref(), Some("p"));
        assert_eq!(path(6).as_deref(), Some("p/a/.._b"));
        assert_eq!(path(7), None, "directories in a circle");
        assert_eq!(path(9).as_deref(), Some("p/dir-99/dir-9"));
    }

    #[test]
    fn parts_of_ranges() {
        let wanted = [(0, 10), (20, 30)];
        assert_eq!(within(&wanted, (5, 25)).collect::<Vec<_>>(), [(5, 10), (20, 25)]);
        assert_eq!(within(&wanted, (10, 20)).count(), 0);
    }
}
