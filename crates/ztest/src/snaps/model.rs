//! The model: a tree of file systems with the names and bytes of their files, now and at each
//! snapshot.
//!
//! A snapshot has an identity that later ones exceed; clones, bookmarks and promotions refer to it.
//! Every operation that the engine acknowledged is repeated on the model, and [`compare`] reads
//! everything back.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use spa::Pool;
use zpl::{MountOpts, Zfs};

use super::Snaps;
use crate::Check;

/// Names and bytes of the files of a file system.
pub(super) type Files = BTreeMap<String, Vec<u8>>;

/// A file system of the model.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Fs {
    pub(super) files: Files,
    /// Snapshots, oldest first.
    pub(super) snaps: Vec<Snap>,
    /// Identity of the snapshot that it was cloned from.
    pub(super) origin: Option<u64>,
    pub(super) bookmarks: BTreeMap<String, u64>,
    /// Not a file system that can be written: a volume, an old version.
    pub(super) foreign: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Snap {
    pub(super) id: u64,
    pub(super) name: String,
    pub(super) files: Files,
    pub(super) holds: BTreeSet<String>,
    pub(super) deferred: bool,
}

/// The model of a pool.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Model {
    pub(super) fs: BTreeMap<String, Fs>,
}

impl Model {
    pub(super) fn clones_of(&self, id: u64) -> Vec<String> {
        self.fs.iter().filter(|(_, f)| f.origin == Some(id)).map(|(n, _)| n.clone()).collect()
    }
    pub(super) fn below(&self, name: &str) -> Vec<String> {
        let prefix = format!("{name}/");
        self.fs.keys().filter(|n| *n == name || n.starts_with(&prefix)).cloned().collect()
    }
    pub(super) fn snap(&self, id: u64) -> Option<(&str, &Snap)> {
        self.fs.iter().find_map(|(n, f)| f.snaps.iter().find(|s| s.id == id).map(|s| (n.as_str(), s)))
    }
    /// Drops deferred snapshots that nothing needs any more.
    pub(super) fn settle(&mut self) {
        let clones: BTreeSet<u64> = self.fs.values().filter_map(|f| f.origin).collect();
        for f in self.fs.values_mut() {
            f.snaps.retain(|s| !(s.deferred && s.holds.is_empty() && !clones.contains(&s.id)));
        }
    }
}

/// Reads every file system and snapshot through `reader`, and compares.
pub(super) async fn compare(pool: &Rc<Pool>, model: &Model, reader: &Snaps) -> Check {
    let dsl = pool.dsl();
    let got: Vec<String> = dsl.all().iter().map(|d| d.name()).collect();
    let want: BTreeSet<&String> = model.fs.keys().collect();
    if got.iter().collect::<BTreeSet<_>>() != want {
        return Err(format!("file systems are {got:?}, not {want:?}"));
    }
    for (name, f) in &model.fs {
        let ds = dsl.find(name).map_err(|e| format!("{name}: {e:?}"))?;
        if !f.foreign && reader.read_head(name).await? != f.files {
            return Err(format!("{name}: other files than there should be"));
        }
        let snaps = dsl.snapshots(&ds).await.map_err(|e| format!("{name}: {e:?}"))?;
        let names: Vec<String> = snaps.iter().map(|s| s.snapname()).collect();
        let want: Vec<String> = f.snaps.iter().map(|s| s.name.clone()).collect();
        if names != want {
            return Err(format!("{name}: snapshots are {names:?}, not {want:?}"));
        }
        for (snap, want) in snaps.iter().zip(&f.snaps).filter(|_| !f.foreign) {
            let fs =
                Zfs::open(snap, MountOpts::from_props(snap)).await.map_err(|e| format!("{}: {e:?}", snap.name()))?;
            let files = reader.read_files(&fs).await.map_err(|e| format!("{}: {e:?}", snap.name()))?;
            fs.unmount().await.map_err(|e| format!("{}: {e:?}", snap.name()))?;
            if files != want.files {
                return Err(format!("{}: other files than there should be", snap.name()));
            }
            let holds = dsl.holds(snap).await.map_err(|e| format!("{}: {e:?}", snap.name()))?;
            if holds.iter().map(|h| h.tag.clone()).collect::<BTreeSet<_>>() != want.holds {
                return Err(format!("{}: holds are {holds:?}", snap.name()));
            }
        }
        let marks = dsl.bookmarks(&ds).await.map_err(|e| format!("{name}: {e:?}"))?;
        if marks.iter().map(|m| m.name.clone()).collect::<BTreeSet<_>>() != f.bookmarks.keys().cloned().collect() {
            return Err(format!("{name}: bookmarks are {marks:?}"));
        }
        let origin = dsl.origin_of(&ds).await.map_err(|e| format!("{name}: {e:?}"))?.map(|s| s.name());
        let want = f.origin.and_then(|id| model.snap(id)).map(|(fs, s)| format!("{fs}@{}", s.name));
        if origin != want {
            return Err(format!("{name}: its origin is {origin:?}, not {want:?}"));
        }
    }
    Ok(())
}
