//! Pools as plain data: properties, devices, health.

use std::rc::Rc;

use ondisk::feature::{FEATURES, FeatureId, Support};
use ondisk::vdev_config::{VdevConfig, VdevKind as ConfigKind};
use vdev::{Prio, Top, VdevKind};

use crate::engine::PoolEngine;
use crate::nice;
use crate::pool_props::{self, NAMES};
use crate::proto::{PoolLatency, PoolView, PropView, VdevView};

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
        let space = pool.allocator().space(metaslab::ClassKind::Normal);
        let figures = Figures { size: space.total_raw, alloc: space.alloc_raw, frag: space.fragmentation };
        let vdevs = self.vdevs();
        let suspended = pool.txg().ended();
        let missing = vdevs.children.iter().any(|v| v.state == "UNAVAIL");
        let state = match (&suspended, missing) {
            (Some(_), _) => "SUSPENDED",
            (None, true) => "DEGRADED",
            (None, false) => "ONLINE",
        };
        let unreadable = pool.zio().stats().unreadable;
        let mut unknown = Vec::new();
        for counts in [pool.features().read_counts().await, pool.features().write_counts().await] {
            unknown.extend(counts.unwrap_or_default().into_iter().filter(|(g, _)| FeatureId::by_guid(g).is_none()));
        }
        let (status, action) = self.status(suspended.map(|e| e.to_string()), unreadable);
        PoolView {
            name: pool.name(),
            guid: pool.guid().0,
            state: state.to_string(),
            txg: pool.uberblock().txg.0,
            status,
            action,
            props: self.pool_prop_views(&figures, state, &unknown),
            vdevs,
            data_errors: unreadable,
        }
    }

    fn status(&self, suspended: Option<String>, unreadable: u64) -> (Option<String>, Option<String>) {
        let notices = self.pool.notices();
        if let Some(cause) = suspended {
            let action = "Make sure the devices work, then stop the daemon with 'weir daemon stop -f' and import the pool again.";
            return (
                Some(format!("Writing to the pool failed and it is suspended: {cause}.")),
                Some(action.to_string()),
            );
        }
        if unreadable > 0 {
            let status = "One or more devices has experienced an error resulting in data corruption. Applications may be affected.";
            let action = "Restore the file in question if possible. Otherwise restore the entire pool from backup.";
            return (Some(status.to_string()), Some(action.to_string()));
        }
        ((!notices.is_empty()).then(|| notices.join(" ")), None)
    }

    fn pool_prop_views(&self, f: &Figures, state: &str, unknown: &[(String, u64)]) -> Vec<PropView> {
        let mut out: Vec<PropView> = NAMES.iter().map(|name| self.pool_prop(name, f, state)).collect();
        let features = self.pool.features();
        for feature in FEATURES {
            let count = features.count(feature.guid);
            if count.is_none() && feature.support < Support::Write {
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
            "cachefile" => fixed("none", "local"),
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

    fn vdevs(&self) -> VdevView {
        let tops = self.pool.tree().tops.borrow().clone();
        let children = tops.iter().filter(|t| !matches!(t.kind, VdevKind::Hole)).map(|t| self.top_view(t)).collect();
        VdevView {
            kind: "root".into(),
            name: self.pool.name(),
            guid: self.pool.guid().0,
            state: "ONLINE".into(),
            children,
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
        match &top.kind {
            VdevKind::Leaf(leaf) => {
                let errors = leaf.stats().errors;
                view.name.clone_from(&leaf.path);
                view.errors = [errors.read, errors.write, errors.cksum];
                view.psize = leaf.dev.size();
            }
            _ => {
                view.state = "UNAVAIL".into();
                view.why = Some("cannot open".into());
            }
        }
        view
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

/// Percent of `size` that is allocated.
pub fn capacity(alloc: u64, size: u64) -> u64 {
    if size == 0 { 0 } else { (u128::from(alloc) * 100 / u128::from(size)) as u64 }
}

/// A vdev as its configuration tells it, with everything below.
pub fn config_view(config: &VdevConfig) -> VdevView {
    let name = match (&config.kind, &config.path) {
        (_, Some(path)) => path.clone(),
        (ConfigKind::Raidz, None) => format!("raidz{}-{}", config.nparity.unwrap_or(1), config.id),
        (kind, None) => format!("{}-{}", kind.name(), config.id),
    };
    VdevView {
        kind: config.kind.name().to_string(),
        name,
        guid: config.guid.0,
        state: "ONLINE".into(),
        is_log: config.is_log == Some(1),
        children: config.children.iter().map(config_view).collect(),
        ..VdevView::default()
    }
}
