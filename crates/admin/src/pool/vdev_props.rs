//! Properties of vdevs: table, parser and views of `zpool get|set PROPERTY POOL VDEV`. No other
//! file handles a single one.
//!
//! Those that can be set are kept with the vdev, as OpenZFS keeps them; of them `allocating` and
//! `path` alone change what weir does. User properties are texts whose names have a colon.

use std::collections::BTreeMap;

use base::{Error, Guid, Result};
use dmu::zap::ZapValue;
use ondisk::vdev_config::{VdevConfig, VdevKind as ConfigKind};
use vdev::LeafStats;

use crate::engine::PoolEngine;
use crate::pool::devices::pool_device_name;
use crate::view::pool::capacity;
use crate::view::{PropView, VdevProps, VdevView, fmt};

/// Longest text in bytes (`ZAP_MAXVALUELEN`).
const TEXT_MAX: usize = 8192;
/// Where the paths of devices begin (`vdev_prop_set` of OpenZFS 2.4).
const DEVICES: &str = "/dev/";
/// Longest path in bytes, with the NUL at its end (Linux).
const PATH_MAX: usize = 4096;
/// A text of the pool's own in the ZAP of a top-level vdev.
const BIAS_KEY: &str = "org.zfsonlinux:allocation_bias";

/// What a property is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It cannot be set.
    Computed(Show),
    /// on or off, and its default.
    Flag(bool),
    /// The same, of a RAID-Z or dRAID only.
    ParityFlag,
    /// A number, or that of the system.
    Number,
    /// A text.
    Text,
    /// Whether new blocks go to a top-level vdev.
    Allocating,
    /// Where the device of a leaf is.
    Path,
}

/// The computed properties.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Show {
    Capacity,
    State,
    Guid,
    Asize,
    Psize,
    Ashift,
    Size,
    Free,
    Allocated,
    Expandsize,
    Fragmentation,
    Parity,
    Parent,
    Children,
    Numchildren,
    Errors(usize),
    SlowIos,
    Ops(bool),
    Bytes(bool),
    /// A number that weir does not count.
    Zero,
    /// off, of every vdev.
    Off,
    TrimSupport,
    /// off, of a leaf of a RAID-Z or dRAID: weir reads from all of them.
    SitOut,
    /// Nothing, by default.
    Nothing,
    /// Bytes, 0 by default.
    NoBytes,
}

/// All properties in the order of `zpool get all` (OpenZFS 2.4; seen in the pool `props24`).
const PROPS: &[(&str, Kind)] = &[
    ("capacity", Kind::Computed(Show::Capacity)),
    ("state", Kind::Computed(Show::State)),
    ("guid", Kind::Computed(Show::Guid)),
    ("asize", Kind::Computed(Show::Asize)),
    ("psize", Kind::Computed(Show::Psize)),
    ("ashift", Kind::Computed(Show::Ashift)),
    ("size", Kind::Computed(Show::Size)),
    ("free", Kind::Computed(Show::Free)),
    ("allocated", Kind::Computed(Show::Allocated)),
    ("comment", Kind::Text),
    ("expandsize", Kind::Computed(Show::Expandsize)),
    ("fragmentation", Kind::Computed(Show::Fragmentation)),
    ("bootsize", Kind::Computed(Show::NoBytes)),
    ("parity", Kind::Computed(Show::Parity)),
    ("path", Kind::Path),
    ("devid", Kind::Computed(Show::Nothing)),
    ("physpath", Kind::Computed(Show::Nothing)),
    ("encpath", Kind::Computed(Show::Nothing)),
    ("fru", Kind::Computed(Show::Nothing)),
    ("parent", Kind::Computed(Show::Parent)),
    ("children", Kind::Computed(Show::Children)),
    ("numchildren", Kind::Computed(Show::Numchildren)),
    ("read_errors", Kind::Computed(Show::Errors(0))),
    ("write_errors", Kind::Computed(Show::Errors(1))),
    ("checksum_errors", Kind::Computed(Show::Errors(2))),
    ("initialize_errors", Kind::Computed(Show::Zero)),
    ("null_ops", Kind::Computed(Show::Zero)),
    ("read_ops", Kind::Computed(Show::Ops(false))),
    ("write_ops", Kind::Computed(Show::Ops(true))),
    ("free_ops", Kind::Computed(Show::Zero)),
    ("claim_ops", Kind::Computed(Show::Zero)),
    ("trim_ops", Kind::Computed(Show::Zero)),
    ("null_bytes", Kind::Computed(Show::Zero)),
    ("read_bytes", Kind::Computed(Show::Bytes(false))),
    ("write_bytes", Kind::Computed(Show::Bytes(true))),
    ("free_bytes", Kind::Computed(Show::Zero)),
    ("claim_bytes", Kind::Computed(Show::Zero)),
    ("trim_bytes", Kind::Computed(Show::Zero)),
    ("removing", Kind::Computed(Show::Off)),
    ("allocating", Kind::Allocating),
    ("failfast", Kind::Flag(true)),
    ("checksum_n", Kind::Number),
    ("checksum_t", Kind::Number),
    ("io_n", Kind::Number),
    ("io_t", Kind::Number),
    ("slow_io_n", Kind::Number),
    ("slow_io_t", Kind::Number),
    ("trim_support", Kind::Computed(Show::TrimSupport)),
    ("trim_errors", Kind::Computed(Show::Zero)),
    ("slow_ios", Kind::Computed(Show::SlowIos)),
    ("sit_out", Kind::Computed(Show::SitOut)),
    ("autosit", Kind::ParityFlag),
    ("slow_io_events", Kind::Flag(true)),
];

fn find(name: &str) -> Option<Kind> {
    PROPS.iter().find(|p| p.0 == name).map(|p| p.1)
}

/// Whether a vdev can have a property of that name.
pub fn is_known(name: &str) -> bool {
    name == "name" || find(name).is_some() || dsl::props::is_user_prop(name)
}

/// A parsed change of a property.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// A value that is kept with the vdev; none: the default.
    Value(Option<ZapValue>),
    /// `allocating`.
    Allocating(bool),
    /// `path`.
    Path(String),
}

/// Parses a value.
fn parse(name: &str, value: &str, kind: &ConfigKind) -> Result<Change> {
    let flag = || match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(Error::invalid(format!("'{name}' must be one of 'on | off'"))),
    };
    let text = || match value.len() {
        0 => Ok(Change::Value(None)),
        1..TEXT_MAX if !value.contains('\0') => Ok(Change::Value(Some(ZapValue::from_str_nul(value)))),
        _ => Err(Error::invalid(format!("the value of '{name}' is too long: it may have {} bytes", TEXT_MAX - 1))),
    };
    match find(name) {
        Some(Kind::Computed(Show::SitOut)) => {
            let why = "weir reads from every device of a vdev: 'zpool offline' takes one out of use";
            Err(Error::unsupported(format!("'{name}' cannot be set: {why}")))
        }
        Some(Kind::Computed(_)) => Err(Error::invalid(format!("property '{name}' is read-only"))),
        Some(Kind::Flag(_)) => Ok(Change::Value(Some(ZapValue::from_u64(flag()?.into())))),
        Some(Kind::ParityFlag) if matches!(kind, ConfigKind::Raidz | ConfigKind::Draid) => {
            Ok(Change::Value(Some(ZapValue::from_u64(flag()?.into()))))
        }
        Some(Kind::ParityFlag) => Err(Error::invalid(format!("only a raidz or draid has the property '{name}'"))),
        Some(Kind::Number) if value == "none" => Ok(Change::Value(None)),
        Some(Kind::Number) => Ok(Change::Value(Some(ZapValue::from_u64(dsl::props::parse_size(value)?)))),
        Some(Kind::Text) => text(),
        Some(Kind::Allocating) => Ok(Change::Allocating(flag()?)),
        Some(Kind::Path) if !value.starts_with(DEVICES) => {
            Err(Error::invalid(format!("'{name}' must be the path of a device, which begins with '{DEVICES}'")))
        }
        Some(Kind::Path) if value.len() >= PATH_MAX || value.contains('\0') => {
            Err(Error::invalid(format!("the value of '{name}' is too long: it may have {} bytes", PATH_MAX - 1)))
        }
        Some(Kind::Path) => Ok(Change::Path(value.to_string())),
        None if dsl::props::is_user_prop(name) && !name.starts_with('-') => text(),
        None => Err(Error::invalid(format!("a vdev has no property '{name}'"))),
    }
}

/// A vdev, with what is shown of it.
struct Look {
    view: VdevView,
    parent: Option<String>,
    config: Option<VdevConfig>,
    is_top: bool,
    /// A leaf below a RAID-Z or dRAID.
    is_parity_leaf: bool,
    /// Sums of its devices.
    stats: LeafStats,
    allocating: Option<bool>,
    values: BTreeMap<String, ZapValue>,
}

fn row(name: &str, value: String, exact: String, source: &str) -> PropView {
    PropView { name: name.to_string(), value, exact, source: source.to_string() }
}

impl Look {
    fn is_leaf(&self) -> bool {
        self.config.is_some() && self.view.children.is_empty()
    }

    fn show(&self, name: &str, kind: Kind) -> Option<PropView> {
        let word = |on: bool| if on { "on" } else { "off" }.to_string();
        let own = self.values.get(name);
        let source = if own.is_some() { "local" } else { "default" };
        let same = |text: String, source: &str| row(name, text.clone(), text, source);
        let number = own.and_then(ZapValue::as_u64);
        Some(match kind {
            Kind::Computed(Show::SitOut) if !self.is_parity_leaf => return None,
            Kind::Computed(show) => self.computed(name, show),
            Kind::Flag(default) => same(number.map_or(word(default), |n| word(n != 0)), source),
            Kind::ParityFlag if self.view.parity == 0 => return None,
            Kind::ParityFlag => same(number.map_or(word(false), |n| word(n != 0)), source),
            Kind::Number => match number.filter(|n| *n != u64::MAX) {
                Some(n) => row(name, fmt::num(n), n.to_string(), source),
                None => same("-".into(), "default"),
            },
            Kind::Text => same(own.and_then(ZapValue::as_text).unwrap_or_else(|| "-".into()), source),
            Kind::Allocating => match self.allocating {
                _ if self.config.is_none() => same(word(true), "default"),
                Some(on) => same(word(on), if on { "default" } else { "local" }),
                None => same("-".into(), "-"),
            },
            Kind::Path => match self.config.as_ref().and_then(|c| c.path.clone()) {
                Some(path) => same(path, "-"),
                None => same("-".into(), "default"),
            },
        })
    }

    fn computed(&self, name: &str, show: Show) -> PropView {
        let v = &self.view;
        let same = |text: String, source: &str| row(name, text.clone(), text, source);
        let nothing = || same("-".into(), "default");
        let bytes = |n: u64| row(name, fmt::num(n), n.to_string(), "-");
        let percent = |n: u64| row(name, format!("{n}%"), n.to_string(), "-");
        let (sized, config) = (!self.is_leaf() || self.is_top, self.config.as_ref());
        let stats = &self.stats;
        let list = || v.children.iter().map(|c| c.name.clone()).collect::<Vec<_>>().join(",");
        match show {
            Show::Capacity => percent(if sized { capacity(v.alloc, v.space) } else { 0 }),
            Show::State => same(v.state.clone(), "-"),
            Show::Guid => same(v.guid.to_string(), "-"),
            Show::Asize => bytes(match config.and_then(|c| c.asize) {
                Some(n) => n,
                None if self.is_leaf() => vdev::leaf_asize(v.psize),
                None => 0,
            }),
            Show::Psize => bytes(if self.is_leaf() { v.psize } else { 0 }),
            Show::Ashift => same(config.and_then(|c| c.ashift).unwrap_or(0).to_string(), "-"),
            Show::Size => bytes(if sized { v.space } else { 0 }),
            Show::Free => bytes(if sized { v.space.saturating_sub(v.alloc) } else { 0 }),
            Show::Allocated => bytes(if sized { v.alloc } else { 0 }),
            Show::Expandsize if v.expandable > 0 => bytes(v.expandable),
            Show::Expandsize => same("-".into(), "-"),
            Show::Fragmentation => percent(v.frag.unwrap_or(0).into()),
            Show::Parity => same(v.parity.to_string(), "-"),
            Show::Parent => self.parent.clone().map_or_else(nothing, |p| same(p, "-")),
            Show::Children if v.children.is_empty() => nothing(),
            Show::Children => same(list(), "-"),
            Show::Numchildren => same(v.children.len().to_string(), "-"),
            Show::Errors(which) => bytes(v.errors.get(which).copied().unwrap_or(0)),
            Show::Ops(write) => bytes(if write { stats.write_ops } else { stats.read_ops }),
            Show::Bytes(write) => bytes(if write { stats.write_bytes } else { stats.read_bytes }),
            Show::SlowIos => bytes(v.slow_ios),
            Show::Zero => bytes(0),
            Show::Off | Show::SitOut => same("off".into(), "-"),
            Show::TrimSupport if self.is_leaf() => same("on".into(), "-"),
            Show::TrimSupport => same("-".into(), "-"),
            Show::Nothing => nothing(),
            Show::NoBytes => same("0".into(), "default"),
        }
    }

    /// User properties: its own, and those that vdevs before it have.
    fn user_props(&self, seen: &mut Vec<String>) -> Vec<PropView> {
        let texts = self
            .values
            .iter()
            .filter(|(name, v)| dsl::props::is_user_prop(name) && name.as_str() != BIAS_KEY && v.as_text().is_some());
        for (name, _) in texts {
            if !seen.contains(name) {
                seen.push(name.clone());
            }
        }
        let show = |name: &String| match self.values.get(name).and_then(ZapValue::as_text) {
            Some(text) => row(name, text.clone(), text, "local"),
            None => row(name, "-".into(), "-".into(), "default"),
        };
        seen.iter().map(show).collect()
    }
}

/// All vdevs below, each with its parent's name, in the order of `zpool status`.
fn flatten(view: &VdevView, parent: Option<&str>, out: &mut Vec<(VdevView, Option<String>)>) {
    out.push((view.clone(), parent.map(str::to_string)));
    view.children.iter().for_each(|c| flatten(c, Some(&view.name), out));
}

fn add(sum: &mut LeafStats, more: &LeafStats) {
    sum.read_ops += more.read_ops;
    sum.write_ops += more.write_ops;
    sum.read_bytes += more.read_bytes;
    sum.write_bytes += more.write_bytes;
}

impl PoolEngine {
    /// The properties of these vdevs, or of all if none is named.
    pub(crate) async fn vdev_props(&self, names: &[String]) -> Result<Vec<VdevProps>> {
        let devices = self.pool.devices();
        let mut all = Vec::new();
        flatten(&self.vdev_views(), None, &mut all);
        let mut chosen = Vec::new();
        for name in names {
            let guid = devices.guid_of(&pool_device_name(&self.pool, name))?;
            chosen.extend(all.iter().find(|(v, _)| v.guid == guid.0).cloned());
        }
        if names.is_empty() {
            chosen = all;
        }
        let tops = self.pool.tree().tops.borrow().clone();
        let (mut out, mut seen) = (Vec::new(), Vec::new());
        for (mut view, parent) in chosen {
            let guid = Guid(view.guid);
            let top = tops.iter().find(|t| t.guid() == guid);
            let config = tops.iter().find_map(|t| match t.guid() == guid {
                true => Some(t.config()),
                false => t.config_ref().find(guid).cloned(),
            });
            let ashift = tops.iter().find(|t| t.config_ref().find(guid).is_some()).map(|t| u64::from(t.ashift));
            let above = tops.iter().find(|t| t.config_ref().find(guid).is_some());
            let in_parity = above.is_some_and(|t| matches!(t.config_ref().kind, ConfigKind::Raidz | ConfigKind::Draid));
            let config =
                config.map(|c| VdevConfig { ashift: c.ashift.or(ashift.filter(|_| c.children.is_empty())), ..c });
            let below = tops.iter().find_map(|t| t.kind().find(guid)).map(|k| k.leaves()).unwrap_or_default();
            let mut stats = LeafStats::default();
            below.iter().for_each(|leaf| add(&mut stats, &leaf.stats()));
            if config.is_none() {
                let space = self.pool.space();
                (view.space, view.alloc, view.frag) = (space.total_raw, space.alloc_raw, space.fragmentation);
                view.name = "root-0".into();
            }
            let look = Look {
                allocating: devices.allocating(guid).filter(|_| config.is_some()),
                values: devices.vdev_values(guid).await?,
                is_top: top.is_some(),
                is_parity_leaf: view.children.is_empty() && in_parity,
                stats,
                view,
                parent,
                config,
            };
            let mut props: Vec<PropView> = PROPS.iter().filter_map(|(name, kind)| look.show(name, *kind)).collect();
            props.extend(look.user_props(&mut seen));
            out.push(VdevProps { name: look.view.name.clone(), kind: look.view.kind.clone(), props });
        }
        Ok(out)
    }

    /// `zpool set NAME=VALUE POOL VDEV`.
    pub(crate) async fn set_vdev_prop(&self, vdev: &str, name: &str, value: &str) -> Result<()> {
        let devices = self.pool.devices();
        let guid = devices.guid_of(&pool_device_name(&self.pool, vdev))?;
        let kind = {
            let tops = self.pool.tree().tops.borrow();
            tops.iter().find_map(|t| Some(t.config_ref().find(guid)?.kind.clone())).unwrap_or(ConfigKind::Root)
        };
        match parse(name, value, &kind)? {
            Change::Value(value) => devices.set_vdev_value(guid, name, value).await,
            Change::Allocating(on) => devices.set_allocating(guid, on).await,
            Change::Path(path) => devices.set_path(guid, &path).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked() {
        let number = |n| Change::Value(Some(ZapValue::from_u64(n)));
        let text = |t| Change::Value(Some(ZapValue::from_str_nul(t)));
        let long = "x".repeat(TEXT_MAX);
        for (name, value, kind, want) in [
            ("failfast", "off", ConfigKind::Mirror, Some(number(0))),
            ("failfast", "0", ConfigKind::Mirror, None),
            ("io_n", "20", ConfigKind::File, Some(number(20))),
            ("io_n", "1K", ConfigKind::File, Some(number(1024))),
            ("io_n", "none", ConfigKind::File, Some(Change::Value(None))),
            ("io_n", "many", ConfigKind::File, None),
            ("comment", "bay 4", ConfigKind::Root, Some(text("bay 4"))),
            ("comment", "", ConfigKind::Root, Some(Change::Value(None))),
            ("comment", &long, ConfigKind::Root, None),
            ("org.test:slot", "4", ConfigKind::Disk, Some(text("4"))),
            ("-org.test:slot", "4", ConfigKind::Disk, None),
            ("autosit", "on", ConfigKind::Raidz, Some(number(1))),
            ("autosit", "on", ConfigKind::Mirror, None),
            ("allocating", "off", ConfigKind::Mirror, Some(Change::Allocating(false))),
            ("path", "/dev/disk/by-id/x", ConfigKind::Disk, Some(Change::Path("/dev/disk/by-id/x".into()))),
            ("path", "disk1", ConfigKind::Disk, None),
            ("path", "", ConfigKind::Disk, None),
            ("state", "ONLINE", ConfigKind::Mirror, None),
            ("sit_out", "on", ConfigKind::Disk, None),
            ("nonsense", "1", ConfigKind::Mirror, None),
        ] {
            assert_eq!(parse(name, value, &kind).ok(), want, "{name}={value}");
        }
    }
}
