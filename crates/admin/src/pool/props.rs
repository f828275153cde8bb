//! Properties of pools: table, parser, storage and views. No other file handles a single property.
//!
//! Most are computed. Those that can be set are numbers in the ZAP `pool_props` of the MOS, except
//! `comment` and `compatibility`, which are in the configuration.

use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::zap;
use dsl::DslPool;
use ondisk::feature::{FEATURES, FeatureId, compatibility_set, default_features, enable_closure_ids};
use ondisk::object_type::ObjectType;

use crate::engine::{PoolEngine, say};
use crate::keeper::Level;
use crate::view::pool::capacity;
use crate::view::{PropView, fmt};

/// Longest comment in bytes (`ZPROP_MAX_COMMENT`).
const COMMENT_MAX: usize = 32;
/// The MOS directory's entry.
const POOL_PROPS: &[u8] = b"pool_props";

/// Values in the MOS, by name.
pub type Stored = BTreeMap<String, u64>;

const ON_OFF: &[&str] = &["off", "on"];

/// An index property (`PROP_TYPE_INDEX`): words in order of their values.
struct IndexProp {
    name: &'static str,
    words: &'static [&'static str],
    default: u64,
}

const INDEX_PROPS: &[IndexProp] = &[
    IndexProp { name: "delegation", words: ON_OFF, default: 1 },
    IndexProp { name: "autoreplace", words: ON_OFF, default: 0 },
    IndexProp { name: "failmode", words: &["wait", "continue", "panic"], default: 0 },
    IndexProp { name: "listsnapshots", words: ON_OFF, default: 0 },
    IndexProp { name: "autoexpand", words: ON_OFF, default: 0 },
    IndexProp { name: "multihost", words: ON_OFF, default: 0 },
    IndexProp { name: "autotrim", words: ON_OFF, default: 0 },
];

/// All properties except features, in the order of `zpool get all`.
pub const NAMES: &[&str] = &[
    "size",
    "capacity",
    "altroot",
    "health",
    "guid",
    "version",
    "bootfs",
    "delegation",
    "autoreplace",
    "cachefile",
    "failmode",
    "listsnapshots",
    "autoexpand",
    "dedupratio",
    "free",
    "allocated",
    "readonly",
    "ashift",
    "comment",
    "expandsize",
    "freeing",
    "fragmentation",
    "leaked",
    "multihost",
    "checkpoint",
    "load_guid",
    "autotrim",
    "compatibility",
];

/// Short names that OpenZFS accepts, and the names of columns.
const ALIASES: &[(&str, &str)] = &[
    ("cap", "capacity"),
    ("alloc", "allocated"),
    ("dedup", "dedupratio"),
    ("frag", "fragmentation"),
    ("rdonly", "readonly"),
    ("listsnaps", "listsnapshots"),
    ("expandsz", "expandsize"),
    ("ckpoint", "checkpoint"),
    ("compat", "compatibility"),
];

/// The full name of a property, if there is one of that name (`name`, `feature@NAME` and
/// `unsupported@NAME` as well).
pub fn canonical(name: &str) -> Option<String> {
    let long = ALIASES.iter().find(|(short, _)| *short == name).map_or(name, |(_, long)| long);
    let known = long == "name" || NAMES.contains(&long);
    let feature = long.strip_prefix("feature@").is_some_and(|f| FeatureId::lookup(f).is_some());
    (known || feature || long.starts_with("unsupported@")).then(|| long.to_string())
}

/// The value of an index property, and whether it is set in this pool.
pub fn index_prop(name: &str, stored: &Stored) -> Option<(&'static str, bool)> {
    let w = INDEX_PROPS.iter().find(|w| w.name == name)?;
    let value = stored.get(name).copied();
    let text = w.words.get(value.unwrap_or(w.default) as usize).copied().unwrap_or("-");
    Some((text, value.is_some()))
}

/// Parsed properties of a list of `-o`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Wanted {
    /// `ashift`
    pub ashift: Option<u8>,
    /// `comment`
    pub comment: Option<String>,
    /// `altroot`
    pub altroot: Option<String>,
    /// `readonly`
    pub readonly: bool,
    /// Numbers for the MOS.
    pub stored: Vec<(String, u64)>,
    /// Features asked for by name: enabled or disabled.
    pub features: Vec<(FeatureId, bool)>,
    /// Features that `compatibility` allows.
    pub allowed: Option<Vec<FeatureId>>,
    /// `compatibility` as it was given.
    pub compatibility: Option<String>,
    /// True for `cachefile=none`, false for an empty `cachefile`; weir writes no cache file.
    pub no_cachefile: Option<bool>,
    /// `bootfs`, to be looked up.
    pub bootfs: Option<String>,
}

/// The command that sets a property.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// `zpool create -o`
    Create,
    /// `zpool import -o`
    Import,
    /// `zpool set`
    Set,
}

fn bad(name: &str, value: &str, values: &str) -> Error {
    Error::invalid(format!("'{value}' is not a value of property '{name}': it must be {values}"))
}

impl Wanted {
    /// Parses a list of properties.
    pub fn parse(props: &[(String, String)], when: When) -> Result<Wanted> {
        let mut out = Wanted::default();
        for (name, value) in props {
            out.take(name, value, when)?;
        }
        Ok(out)
    }

    fn take(&mut self, given: &str, value: &str, when: When) -> Result<()> {
        if let Some(feature) = given.strip_prefix("feature@") {
            return self.take_feature(feature, value, when);
        }
        let name = canonical(given).ok_or_else(|| {
            Error::invalid(format!("invalid property '{given}': 'zpool get all' lists those that there are"))
        })?;
        if let Some(w) = INDEX_PROPS.iter().find(|w| w.name == name) {
            let number = w.words.iter().position(|w| *w == value);
            let number = number.ok_or_else(|| bad(&name, value, &w.words.join(" or ")))?;
            if name == "multihost" && number == 1 {
                return Err(Error::unsupported("multihost=on needs activity checks, which weir does not do yet"));
            }
            self.stored.push((name, number as u64));
            return Ok(());
        }
        match (name.as_str(), when) {
            ("ashift", _) => {
                let shift = value.parse::<u8>().ok().filter(|n| *n == 0 || (9..=16).contains(n));
                let shift = shift.ok_or_else(|| bad("ashift", value, "0 or 9 to 16"))?;
                self.ashift = (shift != 0).then_some(shift);
                self.stored.push((name, u64::from(shift)));
            }
            ("comment", _) => {
                if value.len() > COMMENT_MAX || !value.bytes().all(|c| c.is_ascii_graphic() || c == b' ') {
                    return Err(bad("comment", value, &format!("at most {COMMENT_MAX} printable ASCII characters")));
                }
                self.comment = Some(value.to_string());
            }
            ("altroot", When::Create | When::Import) => {
                if !value.starts_with('/') {
                    return Err(bad("altroot", value, "an absolute path"));
                }
                self.altroot = Some(value.to_string());
            }
            ("readonly", When::Import) => {
                self.readonly = match value {
                    "on" => true,
                    "off" => false,
                    _ => return Err(bad("readonly", value, "on or off")),
                };
            }
            ("cachefile", _) => {
                if !value.is_empty() && value != "none" {
                    return Err(Error::unsupported("weir keeps no cache file: only cachefile=none can be set"));
                }
                self.no_cachefile = Some(value == "none");
            }
            ("compatibility", When::Create | When::Set) => {
                self.allowed = Some(allowed_features(value)?);
                self.compatibility = Some(value.to_string());
            }
            ("compatibility", When::Import) => {
                return Err(Error::invalid("property 'compatibility' cannot be set at import time"));
            }
            ("version", _) => {
                if value != "5000" {
                    return Err(Error::unsupported("weir makes pools of version 5000 (feature flags) only"));
                }
            }
            ("bootfs", When::Set) => self.bootfs = Some(value.to_string()),
            ("bootfs", _) => return Err(Error::invalid("property 'bootfs' can be set when its file system exists")),
            ("altroot" | "readonly", _) => {
                return Err(Error::new(
                    ErrorKind::ReadOnly,
                    format!("property '{name}' can be set at import time only"),
                ));
            }
            _ => {
                return Err(Error::new(ErrorKind::ReadOnly, format!("'{name}' is readonly: it is computed")));
            }
        }
        Ok(())
    }

    fn take_feature(&mut self, name: &str, value: &str, when: When) -> Result<()> {
        let id = FeatureId::lookup(name).ok_or_else(|| Error::invalid(format!("there is no feature '{name}'")))?;
        let on = match value {
            "enabled" => true,
            "disabled" if when == When::Create => false,
            "disabled" => return Err(Error::invalid(format!("feature '{name}' cannot be disabled after creation"))),
            _ => return Err(bad(&format!("feature@{name}"), value, "enabled or disabled")),
        };
        if when == When::Import {
            return Err(Error::invalid(format!("property 'feature@{name}' cannot be set at import time")));
        }
        if on && !id.get().may_be_enabled() {
            return Err(Error::unsupported(format!("feature '{name}' is not something that weir can write yet")));
        }
        self.features.push((id, on));
        Ok(())
    }

    /// The features of a new pool, dependencies included; `none_by_default` is `-d`.
    pub fn feature_set(&self, none_by_default: bool) -> Result<Vec<FeatureId>> {
        let mut set = if none_by_default { Vec::new() } else { default_features() };
        if let Some(allowed) = &self.allowed {
            set.retain(|f| allowed.contains(f));
        }
        for (id, on) in &self.features {
            set.retain(|f| f != id);
            if *on {
                set.push(*id);
            }
        }
        let closed = enable_closure_ids(&set);
        for id in &closed {
            if self.features.contains(&(*id, false)) {
                let why = format!("feature '{id}' cannot be disabled: another one that is enabled depends on it");
                return Err(Error::invalid(why));
            }
            if self.allowed.as_ref().is_some_and(|a| !a.contains(id)) {
                return Err(Error::invalid(format!("feature '{id}' is not allowed by the property 'compatibility'")));
            }
        }
        Ok(closed)
    }
}

fn allowed_features(value: &str) -> Result<Vec<FeatureId>> {
    let mut out: Option<Vec<FeatureId>> = None;
    for name in value.split(',') {
        let set = compatibility_set(name)
            .ok_or_else(|| bad("compatibility", name, "off, legacy, or names such as openzfs-2.1-linux"))?;
        out = Some(match out {
            None => set,
            Some(old) => old.into_iter().filter(|f| set.contains(f)).collect(),
        });
    }
    Ok(out.unwrap_or_default())
}

/// Reads the properties stored in the MOS.
pub async fn load(dsl: &DslPool) -> Result<Stored> {
    let Some(object) = zap::lookup_u64(dsl.directory(), POOL_PROPS).await? else { return Ok(Stored::new()) };
    let entries = zap::list(&dsl.mos().hold(ObjectId(object)).await?).await?;
    Ok(entries.into_iter().filter_map(|e| Some((String::from_utf8(e.name).ok()?, e.value.as_u64()?))).collect())
}

/// Figures for computed properties.
pub(crate) struct Figures {
    /// Bytes of the normal class.
    pub(crate) size: u64,
    /// Bytes allocated.
    pub(crate) alloc: u64,
    /// Fragmentation in percent.
    pub(crate) frag: Option<u8>,
}

impl PoolEngine {
    /// All properties in the order of `zpool get all`; `unknown` are features that weir does not
    /// know, with their counts.
    pub(crate) fn pool_prop_views(&self, f: &Figures, state: &str, unknown: &[(String, u64)]) -> Vec<PropView> {
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
        if let Some((value, local)) = index_prop(name, &stored) {
            return row(name, value.to_string(), value.to_string(), if local { "local" } else { "default" });
        }
        let size = |n: u64| row(name, fmt::num(n), n.to_string(), "-");
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
            "comment" => optional(pool.mos_config().head.comment),
            "compatibility" => match pool.mos_config().head.compatibility {
                Some(value) => fixed(&value, "local"),
                None => fixed("off", "default"),
            },
            "freeing" | "leaked" => {
                let n = if name == "freeing" { pool.dsl().freeing() } else { pool.dsl().leaked() };
                row(name, if n == 0 { "0".into() } else { fmt::bytes(n) }, n.to_string(), "-")
            }
            _ => fixed("-", "-"),
        }
    }

    /// Sets properties of an imported pool: numbers, features, comment.
    pub async fn set_pool_props(&self, wanted: Wanted) -> Result<()> {
        let dsl = self.pool.dsl().clone();
        let mut stored = wanted.stored;
        if let Some(name) = &wanted.bootfs {
            let object = match name.as_str() {
                "" | "none" => 0,
                name => dsl.find(name)?.object.0,
            };
            stored.push(("bootfs".to_string(), object));
        }
        if let Some(value) = wanted.compatibility {
            // No entry means off.
            self.pool.set_compatibility((value != "off").then_some(value))?;
        }
        if let Some(none) = wanted.no_cachefile {
            self.props.borrow_mut().insert("cachefile".to_string(), u64::from(none));
        }
        if wanted.comment.is_some() {
            self.pool.set_comment(wanted.comment.filter(|c| !c.is_empty()))?;
        }
        let compatibility = self.pool.mos_config().head.compatibility.filter(|_| !wanted.features.is_empty());
        if let Some(allowed) = compatibility.map(|c| allowed_features(&c)).transpose()?
            && let Some((id, _)) = wanted.features.iter().find(|(id, on)| *on && !allowed.contains(id))
        {
            let why =
                format!("feature '{id}' is not allowed by the property 'compatibility' of the pool: set that to off");
            return Err(Error::invalid(why));
        }
        let wanted: Vec<FeatureId> = wanted.features.iter().filter(|f| f.1).map(|f| f.0).collect();
        let features = enable_closure_ids(&wanted);
        if stored.is_empty() && features.is_empty() {
            return self.pool.sync().await;
        }
        let values = stored.clone();
        dsl.sync_task(move |dsl: Rc<DslPool>, tx| {
            Box::pin(async move {
                for id in features {
                    dsl.features().enable(id, dsl.directory(), &tx).await?;
                }
                if values.is_empty() {
                    return Ok(());
                }
                let object = match zap::lookup_u64(dsl.directory(), POOL_PROPS).await? {
                    Some(object) => dsl.mos().hold(ObjectId(object)).await?,
                    None => {
                        let dn = zap::create(dsl.mos(), ObjectType::POOL_PROPS, 0, &tx).await?;
                        zap::add_u64(dsl.directory(), POOL_PROPS, dn.object().0, &tx).await?;
                        dn
                    }
                };
                for (name, value) in values {
                    zap::update_u64(&object, name.as_bytes(), value, &tx).await?;
                }
                Ok(())
            })
        })
        .await?;
        self.props.borrow_mut().extend(stored);
        self.apply_pool_props();
        self.expand_if_wanted();
        Ok(())
    }

    /// Applies properties to the engine.
    pub(crate) fn apply_pool_props(&self) {
        let number = |name: &str| self.props.borrow().get(name).copied();
        self.pool.set_failmode(vdev::FailMode::from_number(number("failmode").unwrap_or(0)));
    }

    /// With `autoexpand=on`: expands vdevs whose devices have grown, in the background.
    pub(crate) fn expand_if_wanted(&self) {
        let wanted = self.props.borrow().get("autoexpand") == Some(&1);
        if wanted && !self.pool.is_readonly() && self.pool.suspended().is_none() {
            let pool = self.pool.clone();
            self.pool.rt().spawn("autoexpand", async move {
                if let Err(e) = pool.devices().expand_all().await {
                    let why = format!("pool '{}': its devices have grown, but it cannot use that: {e}", pool.name());
                    say(Level::Warning, &why);
                }
            });
        }
    }
}

/// A row of `zpool get`.
fn row(name: &str, value: String, exact: String, source: &str) -> PropView {
    PropView { name: name.to_string(), value, exact, source: source.to_string() }
}
#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &[(&str, &str)], when: When) -> Result<Wanted> {
        let list: Vec<(String, String)> = list.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
        Wanted::parse(&list, when)
    }

    #[test]
    fn values_are_checked() {
        let w = parse(
            &[("ashift", "12"), ("failmode", "continue"), ("comment", "my pool"), ("autoexpand", "on")],
            When::Create,
        );
        let w = w.unwrap();
        assert_eq!((w.ashift, w.comment.as_deref()), (Some(12), Some("my pool")));
        assert_eq!(w.stored, [("ashift".to_string(), 12), ("failmode".to_string(), 1), ("autoexpand".to_string(), 1)]);
        for (name, value, when) in [
            ("ashift", "8", When::Create),
            ("ashift", "17", When::Create),
            ("failmode", "explode", When::Set),
            ("size", "1G", When::Set),
            ("nonsense", "1", When::Set),
            ("readonly", "on", When::Set),
            ("altroot", "mnt", When::Create),
            ("comment", "äöü", When::Set),
            ("feature@nonsense", "enabled", When::Create),
            ("feature@lz4_compress", "active", When::Create),
            ("feature@lz4_compress", "disabled", When::Set),
            ("feature@raidz_expansion", "enabled", When::Create),
            ("version", "28", When::Create),
        ] {
            assert!(parse(&[(name, value)], when).is_err(), "{name}={value}");
        }
    }

    #[test]
    fn feature_sets_follow_their_dependencies() {
        let none = parse(&[], When::Create).unwrap();
        assert!(none.feature_set(true).unwrap().is_empty());
        assert_eq!(none.feature_set(false).unwrap(), default_features());
        let one = parse(&[("feature@hole_birth", "enabled")], When::Create).unwrap();
        assert_eq!(one.feature_set(true).unwrap(), [FeatureId::EnabledTxg, FeatureId::HoleBirth]);
        let broken = parse(&[("feature@extensible_dataset", "disabled")], When::Create).unwrap();
        assert!(broken.feature_set(false).is_err());
        let legacy = parse(&[("compatibility", "legacy")], When::Create).unwrap();
        assert!(legacy.feature_set(false).unwrap().is_empty());
        let old = parse(&[("compatibility", "openzfs-2.1-linux,grub2")], When::Create).unwrap();
        assert!(!old.feature_set(false).unwrap().contains(&FeatureId::ZstdCompress));
        let clash = parse(&[("compatibility", "legacy"), ("feature@lz4_compress", "enabled")], When::Create).unwrap();
        assert!(clash.feature_set(false).is_err());
        assert!(parse(&[("compatibility", "nonsense")], When::Create).is_err());
    }

    #[test]
    fn names_and_aliases_resolve() {
        assert_eq!(canonical("cap").as_deref(), Some("capacity"));
        assert_eq!(canonical("feature@lz4_compress").as_deref(), Some("feature@lz4_compress"));
        assert_eq!(canonical("name").as_deref(), Some("name"));
        assert_eq!(canonical("feature@x"), None);
        assert_eq!(canonical("x"), None);
    }
}
