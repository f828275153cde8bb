//! Volumes for edges: what is known of one without opening it, and the folder with their files.
//!
//! **Folder**: the front end's view of all volumes of the pool, which are files in it
//! ([`FrontEnd::show_volumes`]). It is there from the first volume on, until the pool is closed; a
//! pool without volumes has none.
//!
//! Invariants: a volume with `volmode=none` has no file; a snapshot of a volume has one with
//! `snapdev=visible`. A file is a hold on its volume ([`OpenVolumes`]) while it is open.
//!
//! [`OpenVolumes`]: crate::fs::open_volumes::OpenVolumes

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::rc::Rc;

use base::{Error, ErrorKind, Nanos, Result};
use dsl::Dataset;
use ondisk::objset::ObjsetType;
use rt::cost::ZPL_OP;

use crate::engine::{PoolEngine, front_end, say};
use crate::fs::front_end::{ActiveMount, FrontEnd};
use crate::fs::mounts::{make_dirs, remove_dir};
use crate::fs::open_volumes::VolumeHold;
use crate::fs::places::{clear_dead_mounts, path_blocking};
use crate::fs::volumes::geometry;
use crate::keeper::Level;

/// `volmode=none` (format page 16 section 8).
const VOLMODE_NONE: u64 = 3;
/// `snapdev=visible`.
const SNAPDEV_VISIBLE: u64 = 1;
/// Time for the folder's unmount.
const UNMOUNT_LIMIT: Nanos = Nanos::from_secs(60);

/// What is known of a volume without opening it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeInfo {
    /// The dataset, or the snapshot.
    pub name: String,
    /// Its object, which no other dataset of the pool has.
    pub object: u64,
    /// `volsize` in bytes.
    pub size: u64,
    /// `volblocksize` in bytes.
    pub block_size: u32,
    /// Nothing can be written.
    pub read_only: bool,
    /// Bytes that it refers to.
    pub referenced: u64,
    /// When it was made, in seconds since 1970.
    pub created: u64,
}

/// What a name in the folder stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VolumeEntry {
    /// A file system with volumes below it; the object of the dataset.
    Folder(u64),
    /// A volume.
    Volume(VolumeInfo),
}

/// A name in a folder of the folder.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct VolumeName {
    /// The last part of the dataset's name; a snapshot's has its volume's before it.
    pub name: String,
    /// It is a folder.
    pub is_folder: bool,
    /// The dataset's object.
    pub object: u64,
}

/// The folder of a pool, and where it is.
#[derive(Default)]
pub struct VolumeFolder(RefCell<Option<(PathBuf, Rc<dyn ActiveMount>)>>);

impl VolumeFolder {
    /// Where it is, if it is there.
    pub fn path(&self) -> Option<PathBuf> {
        self.0.borrow().as_ref().filter(|(_, front)| front.is_alive()).map(|(at, _)| at.clone())
    }
}

/// Whether a dataset is a volume, or the snapshot of one.
async fn is_volume(ds: &Dataset) -> bool {
    ds.os_type().await.is_ok_and(|t| t == ObjsetType::Zvol)
}

/// Whether a volume is to have a file; `ds` is a head or a snapshot.
fn is_shown(ds: &Dataset) -> bool {
    let number = |name: &str| ds.dir().prop(name).0.num();
    number("volmode") != VOLMODE_NONE && (!ds.is_snapshot() || number("snapdev") == SNAPDEV_VISIBLE)
}

impl PoolEngine {
    /// What is known of a volume, or of the snapshot of one.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` if it is a file system.
    pub async fn volume_info(&self, name: &str) -> Result<VolumeInfo> {
        let missing = || Error::not_found(format!("cannot open '{name}': dataset does not exist"));
        let dsl = self.pool.dsl();
        let ds = match name.contains('@') {
            true => dsl.find_snapshot(name).await.map_err(|_| missing())?,
            false => dsl.find(name).map_err(|_| missing())?,
        };
        if ds.os_type().await? != ObjsetType::Zvol {
            return Err(Error::invalid(format!("'{name}' is no volume: 'zfs list -t volume' shows those that are")));
        }
        self.info_of(&ds).await
    }

    async fn info_of(&self, ds: &Dataset) -> Result<VolumeInfo> {
        let (size, block_size) = geometry(ds).await?;
        let read_only = ds.is_snapshot() || !ds.is_writable() || ds.dir().prop("readonly").0.num() != 0;
        let phys = ds.phys();
        Ok(VolumeInfo {
            name: ds.name(),
            object: ds.object.0,
            size,
            block_size,
            read_only: read_only || self.pool.is_readonly(),
            referenced: phys.referenced_bytes,
            created: phys.creation_time,
        })
    }

    /// The volumes that have files, in order of name; snapshots follow their volume.
    pub async fn shown_volumes(&self) -> Vec<Rc<Dataset>> {
        let mut out = Vec::new();
        for ds in self.pool.dsl().all() {
            self.pool.rt().spend(ZPL_OP).await;
            if !is_shown(&ds) || !is_volume(&ds).await {
                continue;
            }
            out.push(ds.clone());
            if ds.dir().prop("snapdev").0.num() == SNAPDEV_VISIBLE {
                // Snapshots that cannot be listed now have no files now.
                out.extend(self.pool.dsl().snapshots(&ds).await.unwrap_or_default());
            }
        }
        out
    }

    /// What a path in the folder stands for: `tank/vol`, `tank/folder`. None: nothing.
    pub async fn volume_entry(&self, path: &str) -> Result<Option<VolumeEntry>> {
        let dsl = self.pool.dsl();
        let found = if path.contains('@') { dsl.find_snapshot(path).await.ok() } else { dsl.find(path).ok() };
        let Some(ds) = found else { return Ok(None) };
        if is_volume(&ds).await {
            return if is_shown(&ds) { Ok(Some(VolumeEntry::Volume(self.info_of(&ds).await?))) } else { Ok(None) };
        }
        // The root is there even if nothing else is.
        let mut there = path == self.pool.name();
        let below = format!("{path}/");
        for other in dsl.all() {
            self.pool.rt().spend(ZPL_OP).await;
            if there {
                break;
            }
            there = other.name().starts_with(&below) && is_shown(&other) && is_volume(&other).await;
        }
        Ok(there.then_some(VolumeEntry::Folder(ds.object.0)))
    }

    /// The names in a folder of the folder, in order.
    pub async fn volumes_in(&self, folder: &str) -> Result<Vec<VolumeName>> {
        let (mut out, mut seen) = (Vec::new(), BTreeSet::new());
        for ds in self.shown_volumes().await {
            let name = ds.name();
            let Some(rest) = name.strip_prefix(folder).and_then(|r| r.strip_prefix('/')) else { continue };
            let Some((first, _)) = rest.split_once('/') else {
                out.push(VolumeName { name: rest.to_string(), is_folder: false, object: ds.object.0 });
                continue;
            };
            if seen.insert(first.to_string())
                && let Ok(dir) = self.pool.dsl().find(&format!("{folder}/{first}"))
            {
                out.push(VolumeName { name: first.to_string(), is_folder: true, object: dir.object.0 });
            }
        }
        out.sort();
        Ok(out)
    }

    /// Has the front end show the folder, if there are volumes and it is not there. A folder that
    /// cannot be shown is a warning in the log.
    pub async fn show_volumes(&self) {
        if self.folder.path().is_some() {
            return;
        }
        let Ok(front_end) = front_end() else { return };
        if front_end.usable().is_err() || self.shown_volumes().await.is_empty() {
            return;
        }
        let name = self.pool.name();
        if let Err(e) = self.show_folder(&*front_end, &name).await {
            say(Level::Warning, &format!("the volumes of '{name}' have no files: {e}"));
        }
    }

    async fn show_folder(&self, front_end: &dyn FrontEnd, name: &str) -> Result<()> {
        let at = front_end.volumes_at(name);
        clear_dead_mounts(name, Some(&at)).await?;
        let place = at.clone();
        path_blocking(self.pool.rt(), &at, move || make_dirs(&place)).await??;
        let front = front_end.show_volumes(self.pool.rt(), name, VolumesOf(())).await?;
        let old = self.folder.0.replace(Some((at, front)));
        drop(old);
        Ok(())
    }

    /// Takes the folder away. [`ErrorKind::Busy`], and nothing changed, if a program is in it,
    /// unless `force`.
    pub(crate) async fn hide_volumes(&self, force: bool) -> Result<()> {
        let folder = self.folder.0.take();
        let Some((at, front)) = folder else { return Ok(()) };
        if front.is_alive() {
            let unmounted = match self.pool.rt().timeout(UNMOUNT_LIMIT, front.unmount(force, false)).await {
                Some(result) => result,
                None => Err(Error::new(ErrorKind::Busy, "a request to it does not end")),
            };
            if let Err(e) = unmounted {
                let why = format!("pool or dataset is busy: the folder of volumes '{}' is in use: {e}", at.display());
                self.folder.0.replace(Some((at, front)));
                return Err(Error::new(e.kind(), why));
            }
        }
        remove_dir(at).await;
        Ok(())
    }
}

/// The volumes of the pool of this engine thread, for the front end's folder.
pub struct VolumesOf(());

impl VolumesOf {
    /// [`PoolEngine::volume_entry`]
    pub async fn find(&self, path: &str) -> Result<Option<VolumeEntry>> {
        crate::engine::current()?.volume_entry(path).await
    }
    /// [`PoolEngine::volumes_in`]
    pub async fn list(&self, folder: &str) -> Result<Vec<VolumeName>> {
        crate::engine::current()?.volumes_in(folder).await
    }
    /// [`PoolEngine::open_volume`]
    pub async fn open(&self, path: &str) -> Result<VolumeHold> {
        crate::engine::current()?.open_volume(path, "its file").await
    }
}
