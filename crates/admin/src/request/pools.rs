//! Requests about whole pools: create, destroy, import, export, properties, history.

use std::collections::BTreeSet;
use std::rc::Rc;

use base::{Error, Result};
use ondisk::feature::FeatureId;
use ondisk::version;
use serde::{Deserialize, Serialize};

use super::{Changes, Cx, Direction, Kind, Lane, Report, Request, Rights, Secret};
use crate::engine::PoolEngine;
use crate::fs::temp_props::TempProps;
use crate::pool::compatibility::allowed_features;
use crate::pool::props::{Wanted, When};
use crate::pool_set::Running;
use crate::view::pool::DISABLED;
use crate::view::{Candidate, Created, DedupView, HistoryLine, Imported, PoolView, SplitDone, VdevProps};

/// The requests of this file.
pub(super) const KINDS: &[Kind] = &[
    Kind::of::<PoolCreate>(),
    Kind::of::<PoolDestroy>(),
    Kind::of::<PoolScan>(),
    Kind::of::<PoolImport>(),
    Kind::of::<PoolExport>(),
    Kind::of::<PoolCheckpoint>(),
    Kind::of::<PoolDdtPrune>(),
    Kind::of::<PoolPrefetch>(),
    Kind::of::<PoolDedup>(),
    Kind::of::<PoolUpgradable>(),
    Kind::of::<PoolUpgrade>(),
    Kind::of::<PoolHistory>(),
    Kind::of::<Pools>(),
    Kind::of::<PoolSet>(),
    Kind::of::<VdevGet>(),
    Kind::of::<VdevSet>(),
    Kind::of::<PoolSync>(),
    Kind::of::<PoolFreeze>(),
    Kind::of::<PoolReguid>(),
    Kind::of::<PoolSplit>(),
];

/// `zpool create`.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct PoolCreate {
    /// Its name.
    pub name: String,
    /// Its devices: absolute paths.
    pub devices: Vec<String>,
    /// Make files that do not exist, of this many bytes.
    pub size: Option<u64>,
    /// Pool properties and `feature@NAME`.
    pub props: Vec<(String, String)>,
    /// Properties of the root file system.
    pub fs_props: Vec<(String, String)>,
    /// `-m`.
    pub mountpoint: Option<String>,
    /// `-R`.
    pub altroot: Option<String>,
    /// `-f`: devices of exported or foreign pools may be used.
    pub force: bool,
    /// `-n`: check only.
    pub dry_run: bool,
    /// `-d`: no features but those named.
    pub no_features: bool,
    /// `-t`: the name on disk; `name` is that until the export.
    #[serde(default)]
    pub on_disk_name: Option<String>,
    /// The key of the root file system, if its properties ask for one.
    #[serde(default)]
    pub key: Option<Secret>,
}

impl Request for PoolCreate {
    const NAME: &'static str = "PoolCreate";
    const TITLE: &'static str = "zpool create";
    type Reply = Created;
    fn changes(&self) -> Changes {
        Changes::visits_to(&self.name)
    }
    fn run(self, cx: &Cx<'_>) -> Result<Created> {
        cx.pools.pool_create(self)
    }
}

/// `zpool destroy`. The history goes with the pool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolDestroy {
    /// Its name.
    pub pool: String,
    /// Unmount file systems in use.
    pub force: bool,
}

impl Request for PoolDestroy {
    const NAME: &'static str = "PoolDestroy";
    const TITLE: &'static str = "zpool destroy";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::Exports(BTreeSet::from([self.pool.clone()]))
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        cx.pools.pool_destroy(&self.pool, self.force)
    }
}

/// The search for pools.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Search {
    /// Files, devices and folders (`-d`); empty: the remembered paths, then /dev.
    pub paths: Vec<String>,
    /// Destroyed pools only (`-D`).
    pub destroyed: bool,
    /// Only the pools of this cache file, in the folders where it has their devices (`-c`).
    #[serde(default)]
    pub cache_file: Option<String>,
}

/// `zpool import` without a pool: look for pools.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolScan(pub Search);

impl Request for PoolScan {
    const NAME: &'static str = "PoolScan";
    const TITLE: &'static str = "zpool import";
    type Reply = Vec<Candidate>;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<Vec<Candidate>> {
        cx.pools.pool_scan(&self.0, cx.progress)
    }
}

/// `zpool import`.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct PoolImport {
    /// Where to look.
    pub search: Search,
    /// Name or guid; none for all.
    pub pool: Option<String>,
    /// A new name.
    pub new_name: Option<String>,
    /// `-f`.
    pub force: bool,
    /// `-N`: do not mount.
    pub no_mount: bool,
    /// `-o` without a value: options of the mounts.
    #[serde(default)]
    pub mount: TempProps,
    /// `-R`.
    pub altroot: Option<String>,
    /// `-o`: pool properties; `readonly=on`.
    pub props: Vec<(String, String)>,
    /// `-F`: if the newest state is damaged, one of the last few before it.
    #[serde(default)]
    pub rewind: bool,
    /// `-T`: the newest state of this txg or before.
    #[serde(default)]
    pub to_txg: Option<u64>,
    /// `-n`: only report what `-F` would do.
    #[serde(default)]
    pub dry_run: bool,
    /// `-m`: also without a log device.
    #[serde(default)]
    pub missing_log: bool,
    /// `-t`: the new name is for this import only.
    #[serde(default)]
    pub temporary_name: bool,
    /// `--rewind-to-checkpoint`.
    #[serde(default)]
    pub to_checkpoint: bool,
}

impl Request for PoolImport {
    const NAME: &'static str = "PoolImport";
    const TITLE: &'static str = "zpool import";
    type Reply = Imported;
    fn changes(&self) -> Changes {
        Changes::Imports
    }
    fn run(self, cx: &Cx<'_>) -> Result<Imported> {
        cx.pools.pool_import(self, cx.progress)
    }
}

/// `zpool export`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolExport {
    /// Their names.
    pub pools: Vec<String>,
    /// All that are imported.
    pub all: bool,
    /// Unmount file systems in use.
    pub force: bool,
    /// `-F`: their devices say that they are in use, and they stay in their cache files.
    #[serde(default)]
    pub stays_cached: bool,
}

impl Request for PoolExport {
    const NAME: &'static str = "PoolExport";
    const TITLE: &'static str = "zpool export";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::Exports(self.pools.iter().cloned().collect())
    }
    fn lane(&self) -> Lane {
        if self.force { Lane::Control } else { Lane::Work }
    }
    fn title(&self) -> &'static str {
        if self.force { "zpool export -f" } else { Self::TITLE }
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        cx.pools.pool_export(&self, cx.progress)
    }
}

/// `zpool checkpoint`: take or discard a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolCheckpoint {
    /// The pool.
    pub pool: String,
    /// Discard it.
    pub discard: bool,
    /// Wait until its space is free.
    pub wait: bool,
}

impl Request for PoolCheckpoint {
    const NAME: &'static str = "PoolCheckpoint";
    const TITLE: &'static str = "zpool checkpoint";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::pool_of(&self.pool)
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let PoolCheckpoint { pool, discard, wait } = self;
        cx.on_pool(&pool, move |e| async move { e.checkpoint(discard, wait).await })
    }
}

/// `zpool ddtprune`: drop entries of dedup tables that have one reference.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolDdtPrune {
    /// The pool.
    pub pool: String,
    /// Those that have not changed for so many days.
    pub days: Option<u64>,
    /// So many percent of them, the oldest first.
    pub percent: Option<u64>,
}

impl Request for PoolDdtPrune {
    const NAME: &'static str = "PoolDdtPrune";
    const TITLE: &'static str = "zpool ddtprune";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::pool_of(&self.pool)
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let PoolDdtPrune { pool, days, percent } = self;
        cx.on_pool(&pool, move |e| async move { e.ddt_prune(days, percent).await })
    }
}

/// `zpool prefetch`: read tables into the cache.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolPrefetch {
    /// The pool.
    pub pool: String,
    /// Dedup tables.
    pub ddt: bool,
    /// Tables of cloned blocks.
    pub brt: bool,
}

impl Request for PoolPrefetch {
    const NAME: &'static str = "PoolPrefetch";
    const TITLE: &'static str = "zpool prefetch";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let PoolPrefetch { pool, ddt, brt } = self;
        cx.on_pool(&pool, move |e| async move { e.pool.prefetch_tables(ddt, brt).await })
    }
}

/// `zpool history`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolHistory {
    /// The pool.
    pub pool: String,
}

impl Request for PoolHistory {
    const NAME: &'static str = "PoolHistory";
    const TITLE: &'static str = "zpool history";
    const STREAM: Option<Direction> = Some(Direction::ToClient);
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        cx.report_on_pool(&self.pool, |e, to| async move { e.history(to).await })
    }
}

impl Report for PoolHistory {
    type Item = HistoryLine;
}

/// The dedup tables of a pool (`zpool status -D`). It reads them, so it is not a part of
/// [`Pools`], which answers for a suspended pool too.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolDedup {
    /// The pool.
    pub pool: String,
}

impl Request for PoolDedup {
    const NAME: &'static str = "PoolDedup";
    const TITLE: &'static str = "zpool status -D";
    const RIGHTS: Rights = Rights::Anyone;
    type Reply = DedupView;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<DedupView> {
        cx.on_pool(&self.pool, |e| async move { e.dedup().await })
    }
}

/// Everything about these pools (all if empty).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pools {
    /// Their names.
    pub names: Vec<String>,
}

impl Request for Pools {
    const NAME: &'static str = "Pools";
    const TITLE: &'static str = "zpool status";
    const RIGHTS: Rights = Rights::Anyone;
    type Reply = Vec<PoolView>;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<Vec<PoolView>> {
        let mut views = cx.pools.pool_views(&self.names)?;
        for view in views.iter_mut().filter(|v| v.status.is_none()) {
            let Some(running) = cx.pools.running(&view.name) else { continue };
            // A set that cannot be read says nothing about the pool.
            let Ok(Some(allowed)) = allowed_on(&running) else { continue };
            let missing = move |e: Rc<PoolEngine>| async move { Ok(e.features_to_enable(Some(&allowed))) };
            if running.thread.with_pool(missing).is_ok_and(|missing| !missing.is_empty()) {
                (view.status, view.action) = (Some(DISABLED.0.to_string()), Some(DISABLED.1.to_string()));
            }
        }
        if cx.caller.public {
            // Only the owner may see names of files.
            views.iter_mut().for_each(|v| v.damaged.clear());
        }
        Ok(views)
    }
}

/// `zpool set`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolSet {
    /// The pool.
    pub pool: String,
    /// The property.
    pub name: String,
    /// Its value.
    pub value: String,
}

impl Request for PoolSet {
    const NAME: &'static str = "PoolSet";
    const TITLE: &'static str = "zpool set";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::pool_of(&self.pool)
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let PoolSet { pool, name, value } = self;
        let running = cx.pools.need_running(&pool)?;
        let sets_multihost = name == "multihost";
        let wanted = Wanted::parse(&[(name, value)], When::Set).and_then(|mut wanted| {
            if !wanted.features.is_empty() {
                wanted.allowed = allowed_on(&running)?;
            }
            Ok(wanted)
        });
        let wanted = wanted.map_err(|e| e.at(format!("cannot set property for '{pool}'")))?;
        // These are in the configuration, which the file has.
        let in_file = wanted.cache_file.is_some() || wanted.compatibility.is_some() || wanted.comment.is_some();
        let before = in_file.then(|| cx.pools.cache_file_of(&running));
        // Not on the engine's thread: the file with the id may be in one of its own mounts.
        let identity = sets_multihost.then(host::host_identity);
        cx.on(&running, move |e| async move {
            if let (Some(identity), Some(host)) = (identity, host::Handle::of(e.pool.rt())) {
                host.set_identity(identity);
            }
            e.set_pool_props(wanted).await.map_err(|e| e.at(format!("cannot set property for '{pool}'")))
        })?;
        if let Some(before) = before {
            cx.pools.update_cache_file(&running, before.as_deref());
        }
        Ok(())
    }
}

/// The features that `compatibility` lets a pool have; none stands for all. The files that it may
/// name are read here, not by the engine's thread.
fn allowed_on(running: &Running) -> Result<Option<Vec<FeatureId>>> {
    let value = running.thread.with_pool(|e| async move { Ok(e.pool.mos_config().head.compatibility) })?;
    value.map(|v| allowed_features(&v)).transpose()
}

/// The features that `zpool upgrade` would enable.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolUpgradable {
    /// The pool.
    pub pool: String,
}

impl Request for PoolUpgradable {
    const NAME: &'static str = "PoolUpgradable";
    const TITLE: &'static str = "zpool upgrade";
    const RIGHTS: Rights = Rights::Anyone;
    type Reply = Vec<String>;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<Vec<String>> {
        let running = cx.pools.need_running(&self.pool)?;
        let allowed = allowed_on(&running)?;
        cx.on(&running, move |e| async move { Ok(names(&e.features_to_enable(allowed.as_deref()))) })
    }
}

/// `zpool upgrade` of a pool: gives it a version, and with feature flags enables all features that
/// weir writes and `compatibility` allows; the reply names them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolUpgrade {
    /// The pool.
    pub pool: String,
    /// Its new version; not older than the one that it has.
    pub version: u64,
}

impl Request for PoolUpgrade {
    const NAME: &'static str = "PoolUpgrade";
    const TITLE: &'static str = "zpool upgrade";
    type Reply = Vec<String>;
    fn changes(&self) -> Changes {
        Changes::pool_of(&self.pool)
    }
    fn run(self, cx: &Cx<'_>) -> Result<Vec<String>> {
        let pool = self.pool;
        let running = cx.pools.need_running(&pool)?;
        let allowed = allowed_on(&running)?;
        let to = self.version;
        cx.on(&running, move |e| async move {
            let legacy = e.pool.mos_config().head.compatibility.as_deref() == Some("legacy");
            if to > e.pool.version() && legacy {
                let why = "Upgrade not performed because 'compatibility' property set to 'legacy'.";
                return Err(Error::invalid(why));
            }
            e.pool.upgrade(to).await.map_err(|e| e.at(format!("cannot upgrade '{pool}'")))?;
            if to < version::FEATURES {
                return Ok(Vec::new());
            }
            let missing = e.features_to_enable(allowed.as_deref());
            let features = missing.iter().map(|id| (*id, true)).collect();
            let wanted = Wanted { features, ..Wanted::default() };
            e.set_pool_props(wanted).await.map_err(|e| e.at(format!("cannot upgrade '{pool}'")))?;
            Ok(names(&missing))
        })
    }
}

fn names(features: &[FeatureId]) -> Vec<String> {
    features.iter().map(|id| id.get().name.to_string()).collect()
}

/// `zpool get` of vdevs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VdevGet {
    /// The pool.
    pub pool: String,
    /// The vdevs; none: all.
    pub vdevs: Vec<String>,
}

impl Request for VdevGet {
    const NAME: &'static str = "VdevGet";
    const TITLE: &'static str = "zpool get";
    const RIGHTS: Rights = Rights::Anyone;
    type Reply = Vec<VdevProps>;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<Vec<VdevProps>> {
        let VdevGet { pool, vdevs } = self;
        let running = cx.pools.need_running(&pool)?;
        cx.on(&running, move |e| async move { e.vdev_props(&vdevs).await })
    }
}

/// `zpool set` of a vdev.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VdevSet {
    /// The pool.
    pub pool: String,
    /// The vdev.
    pub vdev: String,
    /// The property.
    pub name: String,
    /// Its value.
    pub value: String,
}

impl Request for VdevSet {
    const NAME: &'static str = "VdevSet";
    const TITLE: &'static str = "zpool set";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::pool_of(&self.pool)
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let VdevSet { pool, vdev, name, value } = self;
        let running = cx.pools.need_running(&pool)?;
        cx.on(&running, move |e| async move {
            let set = e.set_vdev_prop(&vdev, &name, &value).await;
            set.map_err(|e| e.at(format!("cannot set property for '{vdev}'")))
        })
    }
}

/// `zpool sync`: put everything on disk in these pools (all if empty).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolSync {
    /// Their names.
    pub names: Vec<String>,
    /// `-f`: a txg goes to disk even if nothing has changed.
    #[serde(default)]
    pub force: bool,
}

impl Request for PoolSync {
    const NAME: &'static str = "PoolSync";
    const TITLE: &'static str = "zpool sync";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::Unrecorded
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let names = if self.names.is_empty() { cx.pools.running_names() } else { self.names };
        let force = self.force;
        cx.on_pools(&names, move |e| async move {
            if force && !e.pool.is_readonly() { e.pool.sync_anew().await } else { e.pool.sync().await }
        })
    }
}

/// `zpool freeze`: until the export only intent logs change what is on disk.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolFreeze {
    /// The pool.
    pub pool: String,
}

impl Request for PoolFreeze {
    const NAME: &'static str = "PoolFreeze";
    const TITLE: &'static str = "zpool freeze";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::Unrecorded
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        cx.on_pools(&[self.pool], move |e| async move { e.pool.freeze().await })
    }
}

/// `zpool reguid`: give a pool another guid.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolReguid {
    /// The pool.
    pub pool: String,
    /// The guid; none: one drawn at random.
    pub guid: Option<u64>,
}

impl Request for PoolReguid {
    const NAME: &'static str = "PoolReguid";
    const TITLE: &'static str = "zpool reguid";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::pool_of(&self.pool)
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        cx.pools.reguid(cx, &self.pool, self.guid)
    }
}

/// `zpool split`: make a pool of one device of each mirror of another.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct PoolSplit {
    /// The pool.
    pub pool: String,
    /// The new pool.
    pub new_name: String,
    /// The devices that it gets; of mirrors without one of these it gets the last.
    pub devices: Vec<String>,
    /// `-o` without a value: options of its mounts.
    #[serde(default)]
    pub mount: TempProps,
    /// `-o`: its properties.
    pub props: Vec<(String, String)>,
    /// `-R`: import it, with this alternate root.
    pub altroot: Option<String>,
    /// `-n`: only tell the layout.
    pub dry_run: bool,
    /// `-g`: guids in the layout.
    pub guids: bool,
}

impl Request for PoolSplit {
    const NAME: &'static str = "PoolSplit";
    const TITLE: &'static str = "zpool split";
    type Reply = SplitDone;
    fn changes(&self) -> Changes {
        if self.dry_run { Changes::Unrecorded } else { Changes::visits_to(&self.pool) }
    }
    fn run(self, cx: &Cx<'_>) -> Result<SplitDone> {
        cx.pools.pool_split(self, cx.progress)
    }
}
