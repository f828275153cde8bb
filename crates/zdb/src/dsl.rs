//! The tree of DSL directories and the datasets in them, read whole.
//!
//! Directories lead to each other by their child ZAPs; a directory leads to its head dataset, and
//! that to its snapshots by name. Cycles and absurd depths are errors; a directory or dataset that
//! cannot be read is reported and left out, so that one bad object does not hide the rest of the
//! pool.

use std::collections::{BTreeMap, BTreeSet};

use base::{Error, Result, ResultExt};
use ondisk::dsl::{DslDatasetPhys, DslDirPhys};

use crate::objset::Object;
use crate::pool::PoolReader;
use crate::zap;

/// Longest name of a dataset in bytes, with some room; deeper trees are damage.
const MAX_NAME: usize = 1024;

/// A directory.
#[derive(Clone, Debug)]
pub struct Dir {
    /// Its object.
    pub obj: u64,
    /// Its full name.
    pub name: String,
    /// Its bonus.
    pub phys: DslDirPhys,
    /// Whether the object is a ZAP with values attached.
    pub zapified: bool,
    /// Child directories by name, in the order of the ZAP.
    pub children: Vec<(String, u64)>,
}

/// A dataset: head or snapshot.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// Its object.
    pub obj: u64,
    /// Its full name, with `@` in a snapshot's.
    pub name: String,
    /// Whether it is a snapshot.
    pub snapshot: bool,
    /// The directory that it was found in.
    pub dir: u64,
    /// Its bonus.
    pub phys: DslDatasetPhys,
    /// Whether the object is a ZAP with values attached.
    pub zapified: bool,
    /// Snapshots of a head by name, in the order of the ZAP.
    pub snapshots: Vec<(String, u64)>,
}

/// All directories and datasets.
#[derive(Clone, Debug, Default)]
pub struct Dsl {
    /// Directories by object.
    pub dirs: BTreeMap<u64, Dir>,
    /// Datasets by object.
    pub datasets: BTreeMap<u64, Dataset>,
    /// The root directory.
    pub root: u64,
    /// Read errors.
    pub errors: Vec<String>,
}

impl Dsl {
    /// Reads the whole tree. Only a missing root directory is an error.
    pub fn load(pool: &PoolReader) -> Result<Dsl> {
        let root = pool
            .entry("root_dataset")
            .ok_or_else(|| Error::corrupt("the MOS directory has no entry 'root_dataset'"))?;
        let mut dsl = Dsl { root, ..Dsl::default() };
        let mut todo = vec![(root, pool.name().to_owned())];
        while let Some((obj, name)) = todo.pop() {
            if dsl.dirs.contains_key(&obj) {
                dsl.errors.push(format!("directory object {obj} is there as {} and {name}", dsl.dirs[&obj].name));
                continue;
            }
            if name.len() > MAX_NAME {
                dsl.errors.push(format!("directory object {obj}: its name is longer than {MAX_NAME} bytes"));
                continue;
            }
            match dsl.load_dir(pool, obj, &name) {
                Ok(children) => todo.extend(children.into_iter().map(|(n, o)| (o, format!("{name}/{n}")))),
                Err(e) => dsl.errors.push(format!("{name}: {e}")),
            }
        }
        if !dsl.dirs.contains_key(&root) {
            return Err(Error::corrupt(dsl.errors.pop().unwrap_or_default()).at("root directory"));
        }
        Ok(dsl)
    }

    fn load_dir(&mut self, pool: &PoolReader, obj: u64, name: &str) -> Result<Vec<(String, u64)>> {
        let o = pool.mos.object(obj)?;
        if o.dn.bonustype != ondisk::object_type::ObjectType::DSL_DIR {
            return Err(Error::corrupt(format!("object {obj} has a bonus of type {}", o.dn.bonustype)));
        }
        let phys = DslDirPhys::parse(o.dn.bonus()).at(|| o.place())?;
        let children = if phys.child_dir_zapobj == 0 {
            Vec::new()
        } else {
            match names(&pool.mos.object(phys.child_dir_zapobj)?) {
                Ok(v) => v,
                Err(e) => {
                    self.errors.push(format!("{name}: children: {e}"));
                    Vec::new()
                }
            }
        };
        if phys.head_dataset_obj != 0
            && let Err(e) = self.load_head(pool, obj, phys.head_dataset_obj, name)
        {
            self.errors.push(format!("{name}: {e}"));
        }
        let dir = Dir { obj, name: name.to_owned(), phys, zapified: o.dn.otype.is_zap(), children: children.clone() };
        self.dirs.insert(obj, dir);
        Ok(children)
    }
    fn load_head(&mut self, pool: &PoolReader, dir: u64, obj: u64, name: &str) -> Result<()> {
        let mut head = dataset(pool, obj, dir, name.to_owned(), false)?;
        if head.phys.snapnames_zapobj != 0 {
            head.snapshots = names(&pool.mos.object(head.phys.snapnames_zapobj)?).at(|| "snapshot names")?;
        }
        let snaps = head.snapshots.clone();
        if let Some(old) = self.datasets.insert(obj, head) {
            self.errors.push(format!("dataset object {obj} is there as {} and {name}", old.name));
        }
        for (snap, obj) in snaps {
            let name = format!("{name}@{snap}");
            if let Some(old) = self.datasets.get(&obj) {
                self.errors.push(format!("dataset object {obj} is there as {} and {name}", old.name));
                continue;
            }
            match dataset(pool, obj, dir, name.clone(), true) {
                Ok(d) => drop(self.datasets.insert(obj, d)),
                Err(e) => self.errors.push(format!("{name}: {e}")),
            }
        }
        Ok(())
    }

    /// Heads and snapshots in the order of zdb: children first, then a head's snapshots, then the
    /// head.
    pub fn in_zdb_order(&self) -> Vec<&Dataset> {
        let mut out = Vec::new();
        let mut seen = BTreeSet::new();
        // (directory, next child): depth first without recursion.
        let mut stack = vec![(self.root, 0usize)];
        seen.insert(self.root);
        while let Some((obj, next)) = stack.pop() {
            let Some(dir) = self.dirs.get(&obj) else { continue };
            if let Some((_, child)) = dir.children.get(next) {
                stack.push((obj, next + 1));
                if seen.insert(*child) {
                    stack.push((*child, 0));
                }
                continue;
            }
            if let Some(head) = self.datasets.get(&dir.phys.head_dataset_obj) {
                out.extend(head.snapshots.iter().filter_map(|(_, o)| self.datasets.get(o)));
                out.push(head);
            }
        }
        out
    }
    /// Heads by name, each followed by its snapshots, the oldest first.
    pub fn by_name(&self) -> Vec<&Dataset> {
        let mut v: Vec<&Dataset> = self.datasets.values().collect();
        let key = |d: &Dataset| {
            let head = d.name.split('@').next().unwrap_or("").to_owned();
            (head, d.snapshot, if d.snapshot { d.phys.creation_txg } else { 0 }, d.obj)
        };
        v.sort_by_key(|d| key(d));
        v
    }
    /// The dataset with this name or object number.
    pub fn find(&self, name: &str) -> Option<&Dataset> {
        let by_name = self.datasets.values().find(|d| d.name == name);
        by_name.or_else(|| name.parse().ok().and_then(|o| self.datasets.get(&o)))
    }
}

impl Dataset {
    /// Whether this is below one of the pool's internal directories.
    pub fn is_internal(&self) -> bool {
        self.name.split_once('/').is_some_and(|(_, n)| n.starts_with('$'))
    }
}

fn names(obj: &Object) -> Result<Vec<(String, u64)>> {
    Ok(zap::entries(obj)?.into_iter().filter_map(|e| Some((e.name(), e.u64()?))).collect())
}

fn dataset(pool: &PoolReader, obj: u64, dir: u64, name: String, snapshot: bool) -> Result<Dataset> {
    let o = pool.mos.object(obj)?;
    if o.dn.bonustype != ondisk::object_type::ObjectType::DSL_DATASET {
        return Err(Error::corrupt(format!("object {obj} has a bonus of type {}", o.dn.bonustype)));
    }
    let phys = DslDatasetPhys::parse(o.dn.bonus()).at(|| o.place())?;
    Ok(Dataset { obj, name, snapshot, dir, phys, zapified: o.dn.otype.is_zap(), snapshots: Vec::new() })
}
