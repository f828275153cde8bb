//! Pools as plain data: properties, devices, health.

use std::collections::BTreeSet;
use std::rc::Rc;

use base::{Guid, Result};
use dsl::crypto::Errata;
use metaslab::ClassKind;
use ondisk::indirect::{MAPPING_ENTRY_SIZE, RemovalState};
use ondisk::scan::{ScanFunc, ScanState};
use ondisk::vdev_config::{VdevConfig, VdevKind as ConfigKind};
use ondisk::version;
use spa::{WorkKind, WorkState};
use vdev::{Condition, Health, Prio, Top, VdevKind};

use crate::engine::PoolEngine;
use crate::pool::props::Figures;
use crate::view::{
    CheckpointView, DedupView, ExpandView, LeafWorkView, PoolLatency, PoolView, RebuildView, RemovalView, VdevView,
};

/// The status text of a resilvering pool, in the lines of `zpool status`.
const RESILVERING: &str = "One or more devices is currently being resilvered.  The pool will\n\tcontinue to function, possibly in a degraded state.";

impl PoolEngine {
    /// The pool as it is now.
    pub async fn view(&self) -> PoolView {
        let pool = &self.pool;
        let space = pool.space();
        let figures = Figures { size: space.total_raw, alloc: space.alloc_raw, frag: space.fragmentation };
        let vdevs = self.vdev_views();
        let suspended = pool.suspended();
        let state = self.state_name();
        let damaged = self.damaged_names().await;
        let scan = self.scan_view();
        let error_scrub = self.error_scrub_view();
        let unreadable = damaged.len() as u64;
        let unknown = pool.unknown_features().await;
        let checkpoint = match (pool.checkpoint(), pool.discarding()) {
            (Some((start, space)), _) => Some(CheckpointView { start, space, discarding: false }),
            (None, Some(space)) => Some(CheckpointView { start: 0, space, discarding: true }),
            (None, None) => None,
        };
        // Informational: without it the rest is as good.
        let name_of = |top: &Rc<Top>| config_view(&top.config_ref()).name;
        let expand = pool.raidz_expand().await.ok().flatten().map(|e| ExpandView {
            vdev: pool.tree().top(e.vdev).map_or(String::new(), |top| name_of(&top)),
            id: e.vdev.0.into(),
            finished: e.finished,
            start: e.start,
            end: e.end,
            now: pool.rt().wall_clock().secs.max(0) as u64,
            copied: e.copied,
            total: e.allocated,
            waiting: e.waiting,
        });
        let rebuilds = pool.devices().rebuilds().status().into_iter().map(|(vdev, phys)| RebuildView {
            vdev: pool.tree().top(vdev).map_or(String::new(), |top| name_of(&top)),
            state: match phys.state {
                ScanState::Finished => "FINISHED",
                ScanState::Canceled => "CANCELED",
                ScanState::Scanning | ScanState::None => "SCANNING",
            }
            .into(),
            start: phys.start_time,
            end: phys.end_time,
            time_ms: phys.time_ms,
            to_examine: phys.estimate,
            examined: phys.scanned,
            issued: phys.issued,
            processed: phys.rebuilt,
            errors: phys.errors,
        });
        let rebuilds = rebuilds.collect();
        let removal = pool.devices().evacuator().status().map(|r| {
            let top = pool.tree().top(r.record.vdev);
            RemovalView {
                vdev: top.map_or(String::new(), |top| match top.is_indirect() {
                    true => format!("indirect-{}", top.id),
                    false => name_of(&top),
                }),
                id: r.record.vdev.0.into(),
                state: match r.record.state {
                    RemovalState::Finished => "FINISHED",
                    RemovalState::Cancelled => "CANCELED",
                    RemovalState::Active | RemovalState::None => "SCANNING",
                }
                .into(),
                start: r.record.start,
                end: r.record.end,
                now: pool.rt().wall_clock().secs.max(0) as u64,
                to_copy: r.record.to_copy,
                copied: r.record.copied,
                memory: r.entries * MAPPING_ENTRY_SIZE as u64,
            }
        });
        // Informational, too.
        let errata = pool.dsl().errata().await.ok().flatten();
        let told = |(status, action): (&str, &str)| (Some(status.to_string()), Some(action.to_string()));
        let mut msgid = None;
        let (status, action) = match (self.problem(suspended.map(|e| e.to_string()), unreadable, &vdevs), errata) {
            (Some((status, action)), _) => (Some(status), action),
            (None, Some(errata)) => {
                msgid = Some("ZFS-8000-ER".to_string());
                told(match errata {
                    Errata::OldKeys => OLD_KEYS,
                    Errata::NoIvSets => NO_IV_SETS,
                })
            }
            (None, None) => self.advice().map_or((None, None), told),
        };
        let aux = pool.devices().aux();
        let in_use = |c: &VdevConfig| pool.tree().tops.borrow().iter().any(|t| t.kind().find(c.guid).is_some());
        let spare = |c: &VdevConfig| {
            let mut view = config_view(c);
            (view.state, view.why) = match in_use(c) {
                true => ("INUSE".to_string(), Some("currently in use".to_string())),
                false => ("AVAIL".to_string(), None),
            };
            view
        };
        let spares = aux.spares.iter().map(spare).collect();
        let caches = self.cache_views();
        PoolView {
            name: pool.name(),
            guid: pool.guid().0,
            state: state.to_string(),
            txg: pool.uberblock().txg.0,
            status,
            action,
            msgid,
            props: self.pool_prop_views(&figures, state, &unknown),
            vdevs,
            removed: self.removed_views(),
            caches,
            spares,
            data_errors: unreadable,
            damaged,
            scan,
            error_scrub,
            checkpoint,
            expand,
            rebuilds,
            removal,
        }
    }

    /// Its cache devices, with what those in use hold.
    pub(crate) fn cache_views(&self) -> Vec<VdevView> {
        let figures = self.pool.arc().caches();
        let view = |c: &VdevConfig| {
            let mut view = config_view(c);
            if let Some(f) = figures.iter().find(|f| f.guid == c.guid) {
                (view.space, view.alloc) = (f.size, f.alloc);
                view.errors = [f.read_errors, f.write_errors, f.checksum_errors];
            }
            view
        };
        self.pool.devices().aux().caches.iter().map(view).collect()
    }

    /// Its dedup tables, from disk where they are not in the cache.
    pub(crate) async fn dedup(&self) -> Result<DedupView> {
        let d = self.pool.dedup_figures().await?;
        Ok(DedupView { entries: d.entries, disk: d.disk, memory: d.memory, histogram: d.histogram })
    }

    /// What is wrong with the pool or its devices, and what to do.
    fn problem(
        &self,
        suspended: Option<String>,
        unreadable: u64,
        vdevs: &VdevView,
    ) -> Option<(String, Option<String>)> {
        let notices = self.pool.notices();
        if let Some(cause) = suspended {
            if self.pool.txg().ended().is_none() {
                let status = format!("One or more devices are faulted in response to IO failures: {cause}.");
                let action = "Make sure the affected devices are connected, then run 'zpool clear'.";
                return Some((status, Some(action.to_string())));
            }
            let action = "Make sure the devices work, then stop the daemon with 'weir daemon stop -f' and import the pool again.";
            return Some((
                format!("Writing to the pool failed and it is suspended: {cause}."),
                Some(action.to_string()),
            ));
        }
        if self.is_resilvering() {
            return Some((RESILVERING.to_string(), Some("Wait for the resilver to complete.".to_string())));
        }
        if unreadable > 0 {
            let status = "One or more devices has experienced an error resulting in data corruption. Applications may be affected.";
            let action = "Restore the file in question if possible. Otherwise restore the entire pool from backup.";
            return Some((status.to_string(), Some(action.to_string())));
        }
        if let Some((status, action)) = trouble(vdevs) {
            return Some((status.to_string(), Some(action.to_string())));
        }
        (!notices.is_empty()).then(|| (notices.join(" "), None))
    }

    /// What the pool's form keeps it from, and what to do.
    fn advice(&self) -> Option<(&'static str, &'static str)> {
        if self.pool.version() < version::FEATURES {
            return Some(LEGACY);
        }
        // With a value its sets may be in files: the request looks there.
        let is_open = self.pool.mos_config().head.compatibility.is_none();
        (is_open && !self.features_to_enable(None).is_empty()).then_some(DISABLED)
    }

    pub(crate) fn vdev_views(&self) -> VdevView {
        let tops = self.pool.tree().tops.borrow().clone();
        let shown = tops.iter().filter(|t| !t.is_hole() && !t.is_indirect());
        VdevView {
            kind: "root".into(),
            name: self.pool.name(),
            guid: self.pool.guid().0,
            state: self.pool.tree().health().name().into(),
            children: shown.map(|t| self.top_view(t)).collect(),
            ..VdevView::default()
        }
    }

    /// Views of the vdevs that were removed, each with the number of those before it that are
    /// there.
    fn removed_views(&self) -> Vec<(usize, VdevView)> {
        let (mut before, mut out) = (0, Vec::new());
        for top in self.pool.tree().tops.borrow().iter().filter(|t| !t.is_hole()) {
            if !top.is_indirect() {
                before += 1;
                continue;
            }
            let view = VdevView {
                kind: "indirect".into(),
                name: format!("indirect-{}", top.id),
                guid: top.guid().0,
                state: "ONLINE".into(),
                ..VdevView::default()
            };
            out.push((before, view));
        }
        out
    }

    fn top_view(&self, top: &Rc<Top>) -> VdevView {
        let spaces = self.pool.top_spaces();
        let space = spaces.iter().find(|s| s.vdev == top.id);
        let mut view = config_view(&top.config_ref());
        view.space = space.map_or(0, |s| s.total);
        view.alloc = space.map_or(0, |s| s.alloc);
        view.frag = space.and_then(|s| s.fragmentation);
        view.is_log = top.is_log;
        (view.removing, view.noalloc) = (top.config_ref().removing, top.config_ref().non_allocating);
        view.bias = match space.map(|s| s.class) {
            Some(ClassKind::Special) => "special".into(),
            Some(ClassKind::Dedup) => "dedup".into(),
            _ => String::new(),
        };
        node_view(&mut view, &top.kind());
        explain_faults(&mut view, &top.config_ref());
        view.expandable = self.pool.devices().expandable(top);
        self.work_view(&mut view, &top.kind());
        if self.is_resilvering() {
            let missing = |(guid, c): (Guid, Rc<Condition>)| (!c.missing().is_empty()).then_some(guid.0);
            let missing: BTreeSet<u64> = top.kind().conditions().into_iter().filter_map(missing).collect();
            mark_resilvering(&mut view, &missing);
            mark_deferred(&mut view, &top.config_ref());
        }
        let phys = self.pool.scan().status().phys;
        if phys.func == ScanFunc::Scrub && phys.state == ScanState::Scanning {
            let repaired = |(guid, c): (Guid, Rc<Condition>)| (c.scan_repaired() > 0).then_some(guid.0);
            let repaired: BTreeSet<u64> = top.kind().conditions().into_iter().filter_map(repaired).collect();
            mark_repairing(&mut view, &repaired);
        }
        view
    }

    fn is_resilvering(&self) -> bool {
        let scan = self.pool.scan().status().phys;
        let resilvers = scan.func == ScanFunc::Resilver && scan.state == ScanState::Scanning;
        resilvers || self.pool.devices().rebuilds().is_active()
    }

    /// Views of the trim or initialization of every device below.
    fn work_view(&self, view: &mut VdevView, kind: &VdevKind) {
        view.children.iter_mut().for_each(|c| self.work_view(c, kind));
        if !view.children.is_empty() {
            return;
        }
        let of = |kind: WorkKind| {
            let work = self.pool.devices().works().get(Guid(view.guid), kind)?;
            let state = match work.state() {
                WorkState::Active => "ACTIVE",
                WorkState::Suspended => "SUSPENDED",
                WorkState::Complete => "COMPLETE",
                _ => return None,
            };
            Some(LeafWorkView { state: state.into(), percent: work.percent(), time: work.time() })
        };
        view.trim = of(WorkKind::Trim);
        view.init = of(WorkKind::Initialize);
        view.no_trim = match kind.find(Guid(view.guid)) {
            // As in OpenZFS, which knows what a device can when it has opened it.
            Some(VdevKind::Leaf(leaf)) => !leaf.dev.info().supports_discard || !leaf.condition.has_been_open(),
            _ => true,
        };
    }

    /// Latencies of all devices together.
    pub fn latency(&self) -> PoolLatency {
        let mut out = PoolLatency {
            classes: Prio::ALL.iter().map(|p| p.name().to_string()).collect(),
            total: vec![vec![0; vdev::LATENCY_BUCKETS]; Prio::ALL.len()],
            disk: vec![vec![0; vdev::LATENCY_BUCKETS]; Prio::ALL.len()],
        };
        for leaf in self.pool.tree().leaves() {
            let stats = leaf.stats();
            for class in 0..Prio::ALL.len() {
                for bucket in 0..vdev::LATENCY_BUCKETS {
                    out.total[class][bucket] += stats.latency[class][bucket];
                    out.disk[class][bucket] += stats.disk_latency[class][bucket];
                }
            }
        }
        out
    }
}

/// Tells devices that a command declared faulted from those with too many errors, and those that
/// left from those that no import has seen.
fn explain_faults(view: &mut VdevView, config: &VdevConfig) {
    let of = config.find(Guid(view.guid));
    let left = view.children.is_empty() && of.is_some_and(|c| !c.not_present);
    if left && let Some(path) = view.why.as_deref().and_then(|why| why.strip_prefix("was ")) {
        (view.name, view.why) = (path.to_string(), Some("cannot open".into()));
    }
    let is_faulted = view.state == Health::Faulted.name() && view.children.is_empty();
    let of_errors = |c: &VdevConfig| c.aux_state.as_deref() == Some("err_exceeded");
    if is_faulted && of.is_some_and(|c| !of_errors(c)) {
        view.why = Some("external device fault".into());
    }
    view.children.iter_mut().for_each(|c| explain_faults(c, config));
}

/// Fills the states of a node and of its children into its view.
fn node_view(view: &mut VdevView, kind: &VdevKind) {
    let errors = kind.errors();
    view.errors = [errors.read, errors.write, errors.cksum];
    let health = kind.health();
    view.state = health.name().into();
    match kind {
        VdevKind::Leaf(leaf) => {
            view.slow_ios = leaf.slow_ios();
            view.name = leaf.path();
            view.psize = leaf.dev.size();
            if health == Health::Faulted {
                view.why = Some("too many errors".into());
            }
        }
        VdevKind::Absent(absent) if health == Health::Unavail => {
            view.name = absent.guid.0.to_string();
            view.why = Some(format!("was {}", absent.path));
        }
        VdevKind::Missing => view.why = Some("cannot open".into()),
        _ if health == Health::Unavail => view.why = Some("insufficient replicas".into()),
        _ => {}
    }
    for (view, kind) in view.children.iter_mut().zip(kind.children()) {
        node_view(view, kind);
    }
}

/// Status and action texts of errata 3.
const OLD_KEYS: (&str, &str) = (
    "Errata #3 detected. Encrypted datasets have keys of the first format: they are only read, and not sent raw.",
    "Copy them to new encrypted datasets with 'zfs send' without -w, then destroy them. Until then 'zfs mount -o ro' mounts them.",
);

/// Status and action texts of errata 4.
const NO_IV_SETS: (&str, &str) = (
    "Errata #4 detected. Encrypted snapshots, and bookmarks of them, do not name their set of IVs. What receives a raw increment on such a snapshot can be damaged by it.",
    "Enable the feature 'bookmark_v2'. Copy such snapshots if they are still needed, with 'zfs send' without -w, then destroy them.",
);

/// Status and action texts of a pool from before feature flags.
const LEGACY: (&str, &str) = (
    "The pool is formatted using a legacy on-disk format. The pool can still be used, but some features are unavailable.",
    "Upgrade the pool using 'zpool upgrade'. Once this is done, the pool will no longer be accessible on software that does not support feature flags.",
);

/// Status and action texts of a pool that lacks features that it may have.
pub(crate) const DISABLED: (&str, &str) = (
    "Some supported and requested features are not enabled on the pool. The pool can still be used, but some features are unavailable.",
    "Enable all features using 'zpool upgrade'. Once this is done, the pool may no longer be accessible by software that does not support the features.",
);

/// Marks the leaves in use that a scrub has repaired something of.
fn mark_repairing(view: &mut VdevView, repaired: &BTreeSet<u64>) {
    // A device with many errors is still repaired.
    let works = matches!(view.state.as_str(), "ONLINE" | "DEGRADED");
    view.repairing = view.children.is_empty() && works && repaired.contains(&view.guid);
    view.children.iter_mut().for_each(|c| mark_repairing(c, repaired));
}

/// Marks the leaves in use with missing txgs.
fn mark_resilvering(view: &mut VdevView, missing: &BTreeSet<u64>) {
    view.resilvering = view.children.is_empty() && view.state == "ONLINE" && missing.contains(&view.guid);
    view.children.iter_mut().for_each(|c| mark_resilvering(c, missing));
}

/// Marks the leaves in use that wait for the next resilver.
fn mark_deferred(view: &mut VdevView, config: &VdevConfig) {
    view.deferred = view.resilvering && config.find(Guid(view.guid)).is_some_and(|leaf| leaf.resilver_defer);
    view.resilvering &= !view.deferred;
    view.children.iter_mut().for_each(|c| mark_deferred(c, config));
}

/// Status and action texts for faulty devices.
fn trouble(root: &VdevView) -> Option<(&'static str, &'static str)> {
    fn any(v: &VdevView, f: &dyn Fn(&VdevView) -> bool) -> bool {
        if v.children.is_empty() { f(v) } else { v.children.iter().any(|c| any(c, f)) }
    }
    let leaf_is = |state: &str| any(root, &|v| v.state == state);
    if root.state == "UNAVAIL" {
        return Some((
            "One or more devices could not be opened. There are insufficient replicas for the pool to continue functioning.",
            "Attach the missing device and online it using 'zpool online'.",
        ));
    }
    if leaf_is("UNAVAIL") {
        return Some((
            "One or more devices could not be opened. Sufficient replicas exist for the pool to continue functioning in a degraded state.",
            "Attach the missing device and online it using 'zpool online'.",
        ));
    }
    if leaf_is("FAULTED") {
        return Some((
            "One or more devices are faulted in response to persistent errors. Sufficient replicas exist for the pool to continue functioning in a degraded state.",
            "Replace the faulted device, or use 'zpool clear' to mark the device repaired.",
        ));
    }
    if any(root, &|v| v.errors != [0; 3]) {
        return Some((
            "One or more devices has experienced an unrecoverable error. An attempt was made to correct the error. Applications are unaffected.",
            "Determine if the device needs to be replaced, and clear the errors using 'zpool clear' or replace the device with 'zpool replace'.",
        ));
    }
    leaf_is("OFFLINE").then_some((
        "One or more devices has been taken offline by the administrator. Sufficient replicas exist for the pool to continue functioning in a degraded state.",
        "Online the device using 'zpool online' or replace the device with 'zpool replace'.",
    ))
}

/// Percent of `size` that is allocated.
pub fn capacity(alloc: u64, size: u64) -> u64 {
    if size == 0 { 0 } else { (u128::from(alloc) * 100 / u128::from(size)) as u64 }
}

/// A vdev from its configuration, with its children.
pub fn config_view(config: &VdevConfig) -> VdevView {
    let name = match (&config.kind, &config.path) {
        (_, Some(path)) => path.clone(),
        (ConfigKind::Raidz, None) => format!("raidz{}-{}", config.nparity.unwrap_or(1), config.id),
        (ConfigKind::Draid, None) => format!(
            "draid{}:{}d:{}c:{}s-{}",
            config.nparity.unwrap_or(1),
            config.draid_ndata.unwrap_or(0),
            config.children.len(),
            config.draid_nspares.unwrap_or(0),
            config.id
        ),
        (kind, None) => format!("{}-{}", kind.name(), config.id),
    };
    VdevView {
        kind: config.kind.name().to_string(),
        name,
        guid: config.guid.0,
        state: if config.offline { "OFFLINE" } else { "ONLINE" }.into(),
        is_log: config.is_log == Some(1),
        parity: config.nparity.unwrap_or(0),
        children: config.children.iter().map(config_view).collect(),
        ..VdevView::default()
    }
}
