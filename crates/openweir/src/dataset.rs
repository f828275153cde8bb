//! Datasets: file systems, snapshots and clones by name, and their properties.
//!
//! Names are full: `tank/photos` is a file system, `tank/photos@monday` a snapshot of it,
//! `tank/photos#monday` a bookmark. Changes of datasets are made by the next txg, and the call ends
//! when that is on disk: the change is durable then, and takes as long as a txg does. Several such
//! calls at once share one.

use std::collections::BTreeSet;
use std::rc::Rc;

use dsl::Dataset;
use dsl::crypto::KeyMaterial;
use dsl::props::{self, PropKind, PropSource, PropValue};
use ondisk::objset::ObjsetType;
use zpl::{Case, FsCreateProps, InitOwner};

use crate::call::Call;
use crate::error::{Error, ErrorKind, Result};
use crate::inside::PoolState;
use crate::pool::Pool;

/// The kind of a dataset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DatasetKind {
    /// A file system.
    Filesystem,
    /// A volume, which this crate only lists.
    Volume,
    /// A snapshot of either.
    Snapshot,
}

/// A dataset with its figures of space, as of the last txg on disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DatasetInfo {
    /// Its full name.
    pub name: String,
    /// Its kind.
    pub kind: DatasetKind,
    /// Its guid.
    pub guid: u64,
    /// Bytes that destroying it would free; of a file system with everything below it and its
    /// snapshots.
    pub used: u64,
    /// Bytes that can still be written to it; 0 for a snapshot.
    pub available: u64,
    /// Bytes that it refers to, shared with others or not.
    pub referenced: u64,
    /// The same before compression.
    pub logical_referenced: u64,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// The txg that made it.
    pub created_txg: u64,
    /// The snapshot that it was cloned from.
    pub origin: Option<String>,
}

/// A property of a dataset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Property {
    /// Its name.
    pub name: String,
    /// Its value as `zfs get` prints it: `128K`, `on`, `lz4`.
    pub value: String,
    /// Its value as `zfs get -p` prints it: `131072`.
    pub exact: String,
    /// Where the value comes from.
    pub source: Source,
}

/// Where a value comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Source {
    /// It is computed.
    None,
    /// The default: it is not set.
    Default,
    /// It is set here.
    Local,
    /// It came with a stream.
    Received,
    /// It is set on that file system above.
    Inherited(String),
}

fn owned(given: &[(&str, &str)]) -> Vec<(String, String)> {
    given.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect()
}

/// Parses values as `zfs set` does.
pub(crate) fn parse_props(given: &[(String, String)], creating: bool) -> Result<Vec<(String, PropValue)>> {
    let mut out: Vec<(String, PropValue)> = Vec::new();
    for (name, text) in given {
        let Some(known) = props::find(name) else {
            if !props::is_user_prop(name) || text.len() >= 8192 {
                return Err(Error::invalid(format!("invalid property '{name}'")).about(name.clone()));
            }
            out.push((name.clone(), PropValue::Text(text.clone())));
            continue;
        };
        if props::is_default_quota(known.name) {
            return Err(Error::invalid(format!("'{name}' can be set by the command 'zfs set' only")));
        }
        match known.kind {
            PropKind::ReadOnly => return Err(Error::new(ErrorKind::ReadOnly, format!("'{name}' is read-only"))),
            PropKind::Once if !creating => {
                return Err(Error::new(ErrorKind::ReadOnly, format!("'{name}' is set when a dataset is made only")));
            }
            _ => {}
        }
        if matches!(known.name, "volsize" | "volblocksize") {
            return Err(Error::invalid(format!("'{name}' is a property of volumes")));
        }
        let value = known.parse(text)?;
        out.retain(|(n, _)| n != known.name);
        out.push((known.name.to_string(), value));
    }
    Ok(out)
}

/// Takes those properties out that are kept in the file system itself, and returns its initial
/// content.
pub(crate) fn init_of(rt: &rt::Rt, props: &mut Vec<(String, PropValue)>) -> dsl::Init {
    let mut fs = FsCreateProps::default();
    props.retain(|(name, value)| {
        match name.as_str() {
            "normalization" => fs.normalization = value.num(),
            "casesensitivity" => {
                fs.casesensitivity = match value.num() {
                    0 => Case::Sensitive,
                    1 => Case::Insensitive,
                    _ => Case::Mixed,
                }
            }
            "utf8only" => fs.utf8only = value.num() != 0,
            "version" => fs.version = Some(value.num()),
            _ => return true,
        }
        false
    });
    let (uid, gid) = owner(rt);
    zpl::init_fs(InitOwner { uid, gid, mode: 0o755, time: rt.wall_clock() }, fs)
}

/// The default owner of new files: this process's user; user 0 in a simulation, which is the same
/// everywhere.
pub(crate) fn owner(rt: &rt::Rt) -> (u32, u32) {
    match host::Handle::of(rt) {
        Some(_) => (host::effective_uid(), host::effective_gid()),
        None => (0, 0),
    }
}

/// The dataset or snapshot of that name.
pub(crate) async fn find(state: &PoolState, name: &str) -> Result<Rc<Dataset>> {
    let dsl = state.pool.dsl();
    let found = if name.contains('@') { dsl.find_snapshot(name).await } else { dsl.find(name) };
    found.map_err(|e| Error::from(e).about(name))
}

async fn info(state: &PoolState, ds: &Dataset) -> Result<DatasetInfo> {
    let (phys, dir) = (ds.phys(), ds.dir());
    let snapshot = ds.is_snapshot();
    let origin = match snapshot {
        true => None,
        false => state.pool.dsl().origin_of(ds).await?.map(|o| o.name()),
    };
    let kind = match snapshot {
        true => DatasetKind::Snapshot,
        false if ds.os_type().await? == ObjsetType::Zvol => DatasetKind::Volume,
        false => DatasetKind::Filesystem,
    };
    Ok(DatasetInfo {
        name: ds.name(),
        kind,
        guid: phys.guid,
        used: if snapshot { phys.unique_bytes } else { dir.phys().used_bytes },
        available: if snapshot { 0 } else { ds.available() },
        referenced: phys.referenced_bytes,
        logical_referenced: phys.uncompressed_bytes,
        created: phys.creation_time,
        created_txg: phys.creation_txg,
        origin,
    })
}

fn source(s: PropSource) -> Source {
    match s {
        PropSource::Default => Source::Default,
        PropSource::Local => Source::Local,
        PropSource::Received => Source::Received,
        PropSource::Inherited(from) => Source::Inherited(from),
        _ => Source::None,
    }
}

/// A property that is kept, not computed.
fn kept(ds: &Dataset, name: &str) -> Property {
    let (value, from) = ds.dir().prop(name);
    let print = |exact| match props::find(name) {
        Some(known) => known.format(&value, exact),
        None => value.text().to_string(),
    };
    let name = props::find(name).map_or(name, |p| p.name).to_string();
    Property { name, value: print(false), exact: print(true), source: source(from) }
}

fn computed(i: &DatasetInfo, name: &str) -> Option<Property> {
    let size = |n: u64| (base::NiceNum(n).to_string(), n.to_string());
    let same = |s: String| (s.clone(), s);
    let name = props::find(name).map_or(name, |p| p.name);
    let (value, exact) = match name {
        "type" => same(
            match i.kind {
                DatasetKind::Filesystem => "filesystem",
                DatasetKind::Volume => "volume",
                DatasetKind::Snapshot => "snapshot",
            }
            .into(),
        ),
        "used" => size(i.used),
        "available" if i.kind != DatasetKind::Snapshot => size(i.available),
        "referenced" => size(i.referenced),
        "logicalreferenced" => size(i.logical_referenced),
        "creation" => same(i.created.to_string()),
        "createtxg" => same(i.created_txg.to_string()),
        "guid" => same(i.guid.to_string()),
        "origin" => same(i.origin.clone()?),
        _ => return None,
    };
    Some(Property { name: name.to_string(), value, exact, source: Source::None })
}

async fn get(state: &PoolState, ds: &Dataset, name: &str) -> Result<Property> {
    let unknown = || Error::new(ErrorKind::NotFound, format!("it has no property '{name}'")).about(ds.name());
    if ds.is_snapshot() && props::is_user_prop(name) {
        let own = state.pool.dsl().snapshot_props(ds).await?;
        if let Some((value, is_received)) = own.get(name) {
            let text = value.text().to_string();
            let source = if *is_received { Source::Received } else { Source::Local };
            return Ok(Property { name: name.into(), value: text.clone(), exact: text, source });
        }
    }
    let user = props::is_user_prop(name);
    match props::find(name) {
        None if !user => Err(unknown()),
        // They are kept in file systems, which may not be open.
        Some(p) if props::is_default_quota(p.name) => Err(unknown()),
        Some(p) if p.kind == PropKind::ReadOnly => computed(&info(state, ds).await?, name).ok_or_else(unknown),
        _ => {
            let p = kept(ds, name);
            if user && p.value.is_empty() { Err(unknown()) } else { Ok(p) }
        }
    }
}

/// A file system with everything below it and all of their snapshots, dependents first.
async fn subtree(state: &PoolState, ds: &Rc<Dataset>) -> Result<Vec<String>> {
    let dsl = state.pool.dsl();
    let prefix = format!("{}/", ds.name());
    let mut heads: Vec<_> =
        dsl.all().into_iter().filter(|d| d.object == ds.object || d.name().starts_with(&prefix)).collect();
    heads.reverse();
    let mut out = Vec::new();
    for head in heads {
        out.extend(dsl.snapshots(&head).await?.iter().map(|s| s.name()));
        out.push(head.name());
    }
    Ok(out)
}

impl Pool {
    /// All file systems and volumes in order of name, parents first.
    pub fn datasets(&self) -> Call<Vec<DatasetInfo>> {
        self.0.call(|state| async move {
            let mut out = Vec::new();
            for ds in state.pool.dsl().all() {
                out.push(info(&state, &ds).await?);
            }
            Ok(out)
        })
    }

    /// The snapshots of a file system, oldest first.
    pub fn snapshots(&self, name: impl Into<String>) -> Call<Vec<DatasetInfo>> {
        let name = name.into();
        self.0.call(move |state| async move {
            let head = find(&state, &name).await?;
            let mut out = Vec::new();
            for snap in state.pool.dsl().snapshots(&head).await? {
                out.push(info(&state, &snap).await?);
            }
            Ok(out)
        })
    }

    /// A dataset or snapshot. [`ErrorKind::NotFound`] if there is none of that name.
    pub fn dataset(&self, name: impl Into<String>) -> Call<DatasetInfo> {
        let name = name.into();
        self.0.call(move |state| async move {
            let ds = find(&state, &name).await?;
            info(&state, &ds).await
        })
    }

    /// Makes a file system. The one above it must exist; properties are given as `zfs create -o`
    /// takes them.
    ///
    /// # Errors
    /// [`ErrorKind::Exists`], [`ErrorKind::NotFound`] for the parent, [`ErrorKind::Invalid`] for
    /// names and values that cannot be, [`ErrorKind::NoSpace`].
    pub fn create_filesystem(&self, name: impl Into<String>, props: &[(&str, &str)]) -> Call<()> {
        let (name, given) = (name.into(), owned(props));
        self.0.call(move |state| async move {
            let mut props = parse_props(&given, true)?;
            let init = init_of(state.pool.rt(), &mut props);
            let _admin = state.admin.acquire(1).await;
            let made = state.pool.dsl().create_fs(&name, props, init).await;
            made.map(drop).map_err(|e| Error::from(e).about(name))
        })
    }

    /// Makes snapshots, all of one moment, or none. Names are full: `tank/a@now`. With `recursive`
    /// everything below each file system gets one as well.
    pub fn snapshot(&self, names: &[&str], recursive: bool) -> Call<()> {
        let names: Vec<String> = names.iter().map(|n| n.to_string()).collect();
        self.0.call(move |state| async move {
            let _admin = state.admin.acquire(1).await;
            Ok(state.pool.dsl().snapshot(names, recursive, Vec::new()).await?)
        })
    }

    /// Makes a file system that begins with the content of a snapshot and shares its blocks.
    pub fn clone_snapshot(
        &self,
        snapshot: impl Into<String>,
        name: impl Into<String>,
        props: &[(&str, &str)],
    ) -> Call<()> {
        let (snapshot, name, given) = (snapshot.into(), name.into(), owned(props));
        self.0.call(move |state| async move {
            let props = parse_props(&given, false)?;
            let _admin = state.admin.acquire(1).await;
            let made = state.pool.dsl().clone_snapshot(&snapshot, &name, props).await;
            made.map(drop).map_err(|e| Error::from(e).about(name))
        })
    }

    /// A clone and the file system that it was made from change roles: the snapshots up to the
    /// origin are the clone's from then on.
    pub fn promote(&self, name: impl Into<String>) -> Call<()> {
        let name = name.into();
        self.0.call(move |state| async move {
            let _admin = state.admin.acquire(1).await;
            state.pool.dsl().promote(&name).await.map_err(|e| Error::from(e).about(name))
        })
    }

    /// Gives a file system, with everything below it, or a snapshot another name in this pool.
    /// Handles on it stay good.
    pub fn rename(&self, from: impl Into<String>, to: impl Into<String>) -> Call<()> {
        let (from, to) = (from.into(), to.into());
        self.0.call(move |state| async move {
            let _admin = state.admin.acquire(1).await;
            let dsl = state.pool.dsl();
            let done = match from.contains('@') {
                true => dsl.rename_snapshot(&from, &to, false).await,
                false => dsl.rename(&from, &to).await,
            };
            done.map_err(|e| Error::from(e).about(from))
        })
    }

    /// Takes a file system back to its most recent snapshot, whose full name is given: later writes
    /// are lost. [`crate::FileSystem`] handles stay good, files that were open are
    /// [`ErrorKind::Stale`].
    ///
    /// # Errors
    /// [`ErrorKind::Exists`] or [`ErrorKind::Busy`] if there are snapshots or bookmarks after that
    /// one.
    pub fn rollback(&self, snapshot: impl Into<String>) -> Call<()> {
        let snapshot = snapshot.into();
        self.0.call(move |state| async move {
            let _admin = state.admin.acquire(1).await;
            let fs = snapshot.split('@').next().unwrap_or_default();
            let head = find(&state, fs).await?;
            find(&state, &snapshot).await?;
            let aside = state.set_aside(&head).await?;
            let done = state.pool.dsl().rollback(&snapshot).await;
            if let Some(fs) = aside {
                if done.is_ok() {
                    fs.epoch.set(fs.epoch.get() + 1);
                }
                let head = find(&state, &head.name()).await?;
                state.bring_back(&fs, &head).await?;
            }
            done.map_err(|e| Error::from(e).about(snapshot))
        })
    }

    /// Destroys a file system, a snapshot or a bookmark. With `recursive` everything below a file
    /// system and its snapshots go as well; clones are never destroyed along. The space is freed in
    /// the background.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if handles are open on it, or something depends on it;
    /// [`ErrorKind::Invalid`] for the pool's root file system.
    pub fn destroy_dataset(&self, name: impl Into<String>, recursive: bool) -> Call<()> {
        let name = name.into();
        self.0.call(move |state| async move {
            let _admin = state.admin.acquire(1).await;
            let done = destroy(&state, &name, recursive).await;
            done.map_err(|e| e.about(name))
        })
    }

    /// Destroys snapshots, all in one txg or none.
    pub fn destroy_snapshots(&self, names: &[&str]) -> Call<()> {
        let names: Vec<String> = names.iter().map(|n| n.to_string()).collect();
        self.0.call(move |state| async move {
            let _admin = state.admin.acquire(1).await;
            Ok(state.pool.dsl().destroy_snapshots(names, false).await?)
        })
    }

    /// Holds a snapshot under a tag: it cannot be destroyed before the tag is released.
    pub fn hold(&self, snapshot: impl Into<String>, tag: impl Into<String>) -> Call<()> {
        let (snapshot, tag) = (snapshot.into(), tag.into());
        self.0.call(move |state| async move { Ok(state.pool.dsl().hold(&tag, vec![snapshot], false).await?) })
    }

    /// Releases a hold.
    pub fn release(&self, snapshot: impl Into<String>, tag: impl Into<String>) -> Call<()> {
        let (snapshot, tag) = (snapshot.into(), tag.into());
        self.0.call(move |state| async move { Ok(state.pool.dsl().release(&tag, vec![snapshot], false).await?) })
    }

    /// Makes the bookmark `to` (`tank/a#mark`) of a snapshot or another bookmark.
    pub fn bookmark(&self, from: impl Into<String>, to: impl Into<String>) -> Call<()> {
        let (from, to) = (from.into(), to.into());
        self.0.call(move |state| async move { Ok(state.pool.dsl().create_bookmark(&from, &to).await?) })
    }

    /// A property of a dataset or snapshot: one that can be set, one of users (`module:name`), or
    /// `type`, `used`, `available`, `referenced`, `logicalreferenced`, `creation`, `createtxg`,
    /// `guid`, `origin`. [`ErrorKind::NotFound`] if it has none of that name.
    pub fn get(&self, dataset: impl Into<String>, property: impl Into<String>) -> Call<Property> {
        let (dataset, property) = (dataset.into(), property.into());
        self.0.call(move |state| async move {
            let ds = find(&state, &dataset).await?;
            get(&state, &ds, &property).await
        })
    }

    /// All properties of a dataset or snapshot, in the order of `zfs get all`, those of users last.
    pub fn get_all(&self, dataset: impl Into<String>) -> Call<Vec<Property>> {
        let dataset = dataset.into();
        self.0.call(move |state| async move {
            let ds = find(&state, &dataset).await?;
            let known = props::PROPS.iter().filter(|p| p.kind != PropKind::Shown);
            let mut names: Vec<String> = known.map(|p| p.name.to_string()).collect();
            let mut user: BTreeSet<String> = BTreeSet::new();
            let mut dir = Some(ds.dir());
            while let Some(d) = dir {
                user.extend(d.local_props().into_keys().filter(|n| props::is_user_prop(n)));
                dir = d.parent();
            }
            if ds.is_snapshot() {
                user.extend(state.pool.dsl().snapshot_props(&ds).await?.into_keys());
            }
            names.extend(user);
            let mut out = Vec::new();
            for name in names {
                match get(&state, &ds, &name).await {
                    Ok(p) => out.push(p),
                    Err(e) if e.kind() == ErrorKind::NotFound => {}
                    Err(e) => return Err(e),
                }
            }
            Ok(out)
        })
    }

    /// Sets properties of a dataset, all or none, as `zfs set` takes them; of a snapshot those of
    /// users (`module:name`) only. File systems that are open follow at once.
    pub fn set(&self, dataset: impl Into<String>, props: &[(&str, &str)]) -> Call<()> {
        let (dataset, given) = (dataset.into(), owned(props));
        self.0.call(move |state| async move {
            let values = parse_props(&given, false).map_err(|e| e.about(dataset.clone()))?;
            let _admin = state.admin.acquire(1).await;
            let done = match dataset.contains('@') {
                true => {
                    let values = values.into_iter().map(|(n, v)| (n, Some(v))).collect();
                    state.pool.dsl().set_snapshot_props(&dataset, values).await
                }
                false => state.pool.dsl().set_props(&dataset, values).await,
            };
            state.refresh_opts();
            done.map_err(|e| Error::from(e).about(dataset))
        })
    }

    /// Drops the value that is set here, so that the dataset takes that of those above it again.
    pub fn inherit(&self, dataset: impl Into<String>, property: impl Into<String>) -> Call<()> {
        let (dataset, property) = (dataset.into(), property.into());
        self.0.call(move |state| async move {
            let _admin = state.admin.acquire(1).await;
            let done = match dataset.contains('@') {
                true => state.pool.dsl().set_snapshot_props(&dataset, vec![(property, None)]).await,
                false => state.pool.dsl().inherit(&dataset, &property, false).await,
            };
            state.refresh_opts();
            done.map_err(|e| Error::from(e).about(dataset))
        })
    }

    /// Loads the key of an encrypted file system, and of those that share it: a passphrase, 64
    /// hexadecimal digits or 32 bytes, as its `keyformat` says. Keys derived from it are kept in
    /// locked memory and overwritten when unloaded; the bytes given here are freed without
    /// overwriting.
    pub fn load_key(&self, dataset: impl Into<String>, key: Vec<u8>) -> Call<()> {
        let dataset = dataset.into();
        self.0.call(move |state| async move {
            let done = state.pool.dsl().load_key(&dataset, &KeyMaterial::new(key), false).await;
            done.map_err(|e| Error::from(e).about(dataset))
        })
    }

    /// Unloads the key. [`ErrorKind::Busy`] while file systems that need it are open.
    pub fn unload_key(&self, dataset: impl Into<String>) -> Call<()> {
        let dataset = dataset.into();
        self.0.call(move |state| async move {
            state.pool.dsl().unload_key(&dataset).await.map_err(|e| Error::from(e).about(dataset))
        })
    }
}

async fn destroy(state: &PoolState, name: &str, recursive: bool) -> Result<()> {
    let dsl = state.pool.dsl();
    if name.contains('#') {
        return Ok(dsl.destroy_bookmark(name).await?);
    }
    if name.contains('@') {
        return Ok(dsl.destroy_snapshots(vec![name.to_string()], false).await?);
    }
    let ds = find(state, name).await?;
    if ds.dir().parent().is_none() {
        return Err(Error::invalid("the root file system of a pool goes with the pool"));
    }
    if !recursive {
        return Ok(dsl.destroy_fs(name).await?);
    }
    for name in subtree(state, &ds).await? {
        match name.contains('@') {
            true => dsl.destroy_snapshots(vec![name], false).await?,
            false => dsl.destroy_fs(&name).await?,
        }
    }
    Ok(())
}
