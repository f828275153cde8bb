//! Pools as plain data: properties, devices, health.

use std::collections::BTreeSet;
use std::rc::Rc;

use base::Guid;
use metaslab::ClassKind;
use ondisk::feature::{FEATURES, FeatureId};
use ondisk::scan::{ScanFunc, ScanState};
use ondisk::vdev_config::{VdevConfig, VdevKind as ConfigKind};
use spa::{WorkKind, WorkState};
use vdev::{Condition, Health, Prio, Top, VdevKind};

use crate::engine::PoolEngine;
use crate::nice;
use crate::pool_props::{self, NAMES};
use crate::proto::{CheckpointView, LeafWorkView, PoolLatency, PoolView, PropView, VdevView};

/// The status of a pool that is being resilvered, in lines as `zpool status` prints them.
const RESILVERING: &str = "One or more devices is currently being resilvered.  The pool will\n\tcontinue to function, possibly in a degraded state.";

/// The figures that properties come from.
struct Figures {
    size: u64,
    alloc: u64,
    frag: Option<u8>,
}

impl PoolEngine {
    /// The pool as it is now.
    pub async fn view(&self) -> PoolView {
        let pool = &self.pool;
        let space = pool.allocator().space(ClassKind::Normal);
        let figures = Figures { size: space.total_raw, alloc: space.alloc_raw, frag: space.fragmentation };
        let vdevs = self.vdev_views();
        let suspended = pool.suspended();
        let state = match suspended {
            Some(_) => "SUSPENDED",
            None => pool.tree().health().name(),
        };
        let damaged = self.damaged_names().await;
        let scan = self.scan_view();
        // What reads found since the import, unless a scan has found out since what of it is
        // damaged for good.
        let scanned = scan.as_ref().is_some_and(|s| s.state == "FINISHED") && pool.scan_status().here;
        let unreadable = if scanned { 0 } else { pool.zio().stats().unreadable };
        let unreadable = unreadable.max(damaged.len() as u64);
        let mut unknown = Vec::new();
        for counts in [pool.features().read_counts().await, pool.features().write_counts().await] {
            unknown.extend(counts.unwrap_or_default().into_iter().filter(|(g, _)| FeatureId::by_guid(g).is_none()));
        }
        let checkpoint = match (pool.checkpoint(), pool.discarding()) {
            (Some((start, space)), _) => Some(CheckpointView { start, space, discarding: false }),
            (None, Some(space)) => Some(CheckpointView { start: 0, space, discarding: true }),
            (None, None) => None,
        };
        let (status, action) = self.status(suspended.map(|e| e.to_string()), unreadable, &vdevs);
        let aux = pool.aux();
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
        let caches = aux.caches.iter().map(config_view).collect();
        PoolView {
            name: pool.name(),
            guid: pool.guid().0,
            state: state.to_string(),
            txg: pool.uberblock().txg.0,
            status,
            action,
            props: self.pool_prop_views(&figures, state, &unknown),
            vdevs,
            caches,
            spares,
            data_errors: unreadable,
            damaged,
            scan,
            checkpoint,
        }
    }

    fn status(&self, suspended: Option<String>, unreadable: u64, vdevs: &VdevView) -> (Option<String>, Option<String>) {
        let notices = self.pool.notices();
        if let Some(cause) = suspended {
            if self.pool.txg().ended().is_none() {
                let status = format!("One or more devices are faulted in response to IO failures: {cause}.");
                let action = "Make sure the affected devices are connected, then run 'zpool clear'.";
                return (Some(status), Some(action.to_string()));
            }
            let action = "Make sure the devices work, then stop the daemon with 'weir daemon stop -f' and import the pool again.";
            return (
                Some(format!("Writing to the pool failed and it is suspended: {cause}.")),
                Some(action.to_string()),
            );
        }
        if self.is_resilvering() {
            return (Some(RESILVERING.to_string()), Some("Wait for the resilver to complete.".to_string()));
        }
        if unreadable > 0 {
            let status = "One or more devices has experienced an error resulting in data corruption. Applications may be affected.";
            let action = "Restore the file in question if possible. Otherwise restore the entire pool from backup.";
            return (Some(status.to_string()), Some(action.to_string()));
        }
        if let Some((status, action)) = trouble(vdevs) {
            return (Some(status.to_string()), Some(action.to_string()));
        }
        ((!notices.is_empty()).then(|| notices.join(" ")), None)
    }

    fn pool_prop_views(&self, f: &Figures, state: &str, unknown: &[(String, u64)]) -> Vec<PropView> {
        let mut out: Vec<PropView> = NAMES.iter().map(|name| self.pool_prop(name, f, state)).collect();
        let features = self.pool.features();
        for feature in FEATURES {
            let count = features.count(feature.guid);
            if count.is_none() && !feature.may_be_enabled() {
                continue;
            }
            let value = match count {
                None => "disabled",
                Some(0) => "enabled",
                Some(_) => "active",
            };
            out.push(row(&format!("feature@{}", feature.name), value.to_string(), value.to_string(), "local"));
        }
        for (guid, count) in unknown {
            let value = if *count > 0 { "readonly" } else { "inactive" };
            out.push(row(&format!("unsupported@{guid}"), value.to_string(), value.to_string(), "local"));
        }
        out
    }

    fn pool_prop(&self, name: &str, f: &Figures, state: &str) -> PropView {
        let pool = &self.pool;
        let stored = self.props.borrow();
        if let Some((value, local)) = pool_props::word(name, &stored) {
            return row(name, value.to_string(), value.to_string(), if local { "local" } else { "default" });
        }
        let size = |n: u64| row(name, nice::num(n), n.to_string(), "-");
        let fixed = |value: &str, source: &str| row(name, value.to_string(), value.to_string(), source);
        let optional = |value: Option<String>| match value {
            Some(v) => fixed(&v, "local"),
            None => fixed("-", "default"),
        };
        let percent = |n: u64| row(name, format!("{n}%"), n.to_string(), "-");
        match name {
            "size" => size(f.size),
            "allocated" => size(f.alloc),
            "free" => size(f.size.saturating_sub(f.alloc)),
            "capacity" => percent(capacity(f.alloc, f.size)),
            "fragmentation" => match f.frag {
                Some(frag) => percent(u64::from(frag)),
                None => fixed("-", "-"),
            },
            "altroot" => optional(self.altroot.clone()),
            "health" => fixed(state, "-"),
            "guid" => fixed(&pool.guid().0.to_string(), "-"),
            "load_guid" => fixed(&self.load_guid.to_string(), "-"),
            "version" => fixed("-", "default"),
            "bootfs" => {
                let object = stored.get("bootfs").copied().filter(|o| *o != 0);
                let all = pool.dsl().all();
                optional(object.and_then(|o| all.iter().find(|d| d.object.0 == o)).map(|d| d.name()))
            }
            // A pool below an alternate root is in no cache file.
            "cachefile" => match stored.get("cachefile").map_or(self.altroot.is_some(), |n| *n == 1) {
                true => fixed("none", "local"),
                false => fixed("-", "default"),
            },
            "checkpoint" => match pool.checkpoint() {
                Some((_, space)) if space > 0 => size(space),
                _ => fixed("-", "-"),
            },
            "dedupratio" => row(name, "1.00x".into(), "1.00".into(), "-"),
            "readonly" => fixed(if pool.is_readonly() { "on" } else { "off" }, "-"),
            "ashift" => match stored.get("ashift").filter(|n| **n != 0) {
                Some(n) => fixed(&n.to_string(), "local"),
                None => fixed("0", "default"),
            },
            "comment" => optional(pool.mos_config().comment),
            "compatibility" => match pool.mos_config().compatibility {
                Some(value) => fixed(&value, "local"),
                None => fixed("off", "default"),
            },
            "freeing" | "leaked" => {
                let n = if name == "freeing" { pool.dsl().freeing() } else { pool.dsl().leaked() };
                row(name, if n == 0 { "0".into() } else { nice::bytes(n) }, n.to_string(), "-")
            }
            _ => fixed("-", "-"),
        }
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

    fn top_view(&self, top: &Rc<Top>) -> VdevView {
        let spaces = self.pool.allocator().top_spaces();
        let space = spaces.iter().find(|s| s.vdev == top.id);
        let mut view = config_view(&top.config_ref());
        view.space = space.map_or(0, |s| s.total);
        view.alloc = space.map_or(0, |s| s.alloc);
        view.frag = space.and_then(|s| s.fragmentation);
        view.is_log = top.is_log;
        view.bias = match space.map(|s| s.class) {
            Some(ClassKind::Special) => "special".into(),
            Some(ClassKind::Dedup) => "dedup".into(),
            _ => String::new(),
        };
        node_view(&mut view, &top.kind());
        view.expandable = self.pool.expandable(top);
        self.work_view(&mut view);
        if self.is_resilvering() {
            let missing = |(guid, c): (Guid, Rc<Condition>)| (!c.missing().is_empty()).then_some(guid.0);
            let missing: BTreeSet<u64> = top.kind().conditions().into_iter().filter_map(missing).collect();
            mark_resilvering(&mut view, &missing);
        }
        view
    }

    fn is_resilvering(&self) -> bool {
        let scan = self.pool.scan_status().phys;
        scan.func == ScanFunc::Resilver && scan.state == ScanState::Scanning
    }

    /// What is said of the work on every device below.
    fn work_view(&self, view: &mut VdevView) {
        view.children.iter_mut().for_each(|c| self.work_view(c));
        if !view.children.is_empty() {
            return;
        }
        let of = |kind: WorkKind| {
            let work = self.pool.leaf_work(Guid(view.guid), kind)?;
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

fn row(name: &str, value: String, exact: String, source: &str) -> PropView {
    PropView { name: name.to_string(), value, exact, source: source.to_string() }
}

/// Puts the state of a node and of everything below it into its view.
fn node_view(view: &mut VdevView, kind: &VdevKind) {
    let errors = kind.errors();
    view.errors = [errors.read, errors.write, errors.cksum];
    let health = kind.health();
    view.state = health.name().into();
    match kind {
        VdevKind::Leaf(leaf) => {
            view.name.clone_from(&leaf.path);
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

/// Marks the leaves in use that miss something.
fn mark_resilvering(view: &mut VdevView, missing: &BTreeSet<u64>) {
    view.resilvering = view.children.is_empty() && view.state == "ONLINE" && missing.contains(&view.guid);
    view.children.iter_mut().for_each(|c| mark_resilvering(c, missing));
}

/// What is to be said, and done, about devices that are not as they should be.
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

/// A vdev as its configuration tells it, with everything below.
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
