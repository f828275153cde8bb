//! Properties of pools: table, parser, storage and views. No other file handles a single property.
//!
//! Most are computed. Those that can be set are numbers in the ZAP `pool_props` of the MOS,
//! except `comment` and `compatibility`, which are in the configuration. There are user
//! properties as well: texts whose names have a colon (OpenZFS 2.2).

use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::{Tx, zap};
use dsl::DslPool;
use dsl::props::is_user_prop;
use ondisk::feature::{FEATURES, FeatureId, default_features, enable_closure_ids};
use ondisk::label::version_supported;
use ondisk::object_type::ObjectType;
use ondisk::version;
use rt::LocalBoxFuture;

use crate::engine::{PoolEngine, say};
use crate::keeper::Level;
use crate::kstat::module::bit;
use crate::pool::cache_file::CacheFile;
use crate::pool::compatibility::allowed_features;
use crate::view::pool::capacity;
use crate::view::{PropView, fmt};

/// Longest value of a user property in bytes, with its end (`ZAP_MAXVALUELEN`).
const TEXT_MAX: usize = 8192;
/// Longest comment in bytes (`ZPROP_MAX_COMMENT`).
const COMMENT_MAX: usize = 32;
/// The MOS directory's entry.
const POOL_PROPS: &[u8] = b"pool_props";

/// Values in the MOS, by name.
#[derive(Default, Debug)]
pub struct Stored {
    numbers: BTreeMap<String, u64>,
    /// User properties.
    texts: BTreeMap<String, String>,
}

impl Stored {
    /// A number, if it is set.
    pub fn get(&self, name: &str) -> Option<&u64> {
        self.numbers.get(name)
    }
}

const ON_OFF: &[&str] = &["off", "on"];

/// A property: all that there is to know of it, except where it takes effect.
struct Prop {
    name: &'static str,
    /// Short names that OpenZFS accepts, and the names of columns.
    aliases: &'static [&'static str],
    kind: Kind,
}

/// Takes a value that a command gives.
type Take = fn(&mut Wanted, &str, When) -> Result<()>;
/// Its row of `zpool get`.
type Show = fn(&Look<'_>) -> PropView;

/// How a property is set and shown.
enum Kind {
    /// An index property (`PROP_TYPE_INDEX`): words in order of the numbers that the MOS has for
    /// them, and the default.
    Words(&'static [&'static str], u64),
    /// It cannot be set.
    Computed(Show),
    /// By functions of its own.
    Own(Take, Show),
}

/// A property without other names.
const fn prop(name: &'static str, kind: Kind) -> Prop {
    Prop { name, aliases: &[], kind }
}

/// A property with another name.
const fn short(name: &'static str, aliases: &'static [&'static str], kind: Kind) -> Prop {
    Prop { name, aliases, kind }
}

/// All properties except features, in the order of `zpool get all`.
const PROPS: &[Prop] = &[
    prop("size", Kind::Computed(|l| l.size(l.figures.size))),
    short("capacity", &["cap"], Kind::Computed(|l| l.percent(capacity(l.figures.alloc, l.figures.size)))),
    prop("altroot", Kind::Own(take_altroot, |l| l.optional(l.engine.altroot.clone()))),
    prop("health", Kind::Computed(|l| l.fixed(l.state, "-"))),
    prop("guid", Kind::Computed(|l| l.fixed(&l.engine.pool.guid().0.to_string(), "-"))),
    prop("version", Kind::Own(take_version, show_version)),
    prop("bootfs", Kind::Own(take_bootfs, show_bootfs)),
    prop("delegation", Kind::Words(ON_OFF, 1)),
    prop("autoreplace", Kind::Words(ON_OFF, 0)),
    prop("cachefile", Kind::Own(take_cachefile, show_cachefile)),
    prop("failmode", Kind::Words(&["wait", "continue", "panic"], 0)),
    short("listsnapshots", &["listsnaps"], Kind::Words(ON_OFF, 0)),
    prop("autoexpand", Kind::Words(ON_OFF, 0)),
    short("dedupratio", &["dedup"], Kind::Computed(show_dedupratio)),
    prop("free", Kind::Computed(|l| l.size(l.figures.size.saturating_sub(l.figures.alloc)))),
    short("allocated", &["alloc"], Kind::Computed(|l| l.size(l.figures.alloc))),
    short("readonly", &["rdonly"], Kind::Own(take_readonly, show_readonly)),
    prop("ashift", Kind::Own(take_ashift, show_ashift)),
    prop("comment", Kind::Own(take_comment, |l| l.optional(l.engine.pool.mos_config().head.comment))),
    short("expandsize", &["expandsz"], Kind::Computed(show_expandsize)),
    prop("freeing", Kind::Computed(|l| l.bytes(l.engine.pool.dsl().freeing()))),
    short("fragmentation", &["frag"], Kind::Computed(show_fragmentation)),
    prop("leaked", Kind::Computed(|l| l.bytes(l.engine.pool.dsl().leaked()))),
    prop("multihost", Kind::Words(ON_OFF, 0)),
    short("checkpoint", &["ckpoint"], Kind::Computed(show_checkpoint)),
    prop("load_guid", Kind::Computed(|l| l.fixed(&l.engine.load_guid.to_string(), "-"))),
    prop("autotrim", Kind::Words(ON_OFF, 0)),
    short("compatibility", &["compat"], Kind::Own(take_compatibility, show_compatibility)),
    short("bcloneused", &["bclone_used"], Kind::Computed(|l| l.bytes(l.engine.pool.cloned().0))),
    short("bclonesaved", &["bclone_saved"], Kind::Computed(|l| l.bytes(l.engine.pool.cloned().1))),
    short("bcloneratio", &["bclone_ratio"], Kind::Computed(show_bcloneratio)),
    prop("dedup_table_size", Kind::Computed(|l| l.size(l.engine.pool.dedup_table_size()))),
    prop("dedup_table_quota", Kind::Own(take_dedup_quota, show_dedup_quota)),
    prop("last_scrubbed_txg", Kind::Computed(|l| l.fixed(&l.engine.pool.scan().last_scrubbed().0.to_string(), "-"))),
];

fn find(name: &str) -> Option<&'static Prop> {
    PROPS.iter().find(|p| p.name == name || p.aliases.contains(&name))
}

/// The names of all properties except features; those that can be set only if `settable`.
pub fn names(settable: bool) -> impl Iterator<Item = &'static str> {
    PROPS.iter().filter(move |p| !settable || !matches!(p.kind, Kind::Computed(_))).map(|p| p.name)
}

/// What the values of a property are, in one phrase; for those that are no words.
fn phrase(name: &str) -> &'static str {
    match name {
        "capacity" | "fragmentation" => "<percent>",
        "altroot" => "<path>",
        "health" => "<state>",
        "guid" | "load_guid" => "<guid>",
        "version" => "<version>",
        "bootfs" => "<filesystem>",
        "cachefile" => "<file> | none",
        "dedupratio" | "bcloneratio" => "<ratio>",
        "readonly" => "on | off",
        "ashift" => "<ashift, 9-16, or 0=default>",
        "comment" => "<comment-string>",
        "compatibility" => "<file[,file...]> | off | legacy",
        "dedup_table_quota" => "<size> | none | auto",
        "last_scrubbed_txg" => "<txg>",
        _ => "<size>",
    }
}

/// An attribute of a property in `properties.pool` of [`crate::kstat::module`].
pub(crate) fn attribute(name: &str, attribute: &str) -> Option<String> {
    let of_text = ["altroot", "bootfs", "cachefile", "comment", "compatibility", "health"];
    let kind = &find(name)?.kind;
    Some(match (attribute, kind) {
        ("type", Kind::Words(..)) => "index".into(),
        ("type", _) => if of_text.contains(&name) { "string" } else { "number" }.into(),
        ("readonly", kind) => bit(matches!(kind, Kind::Computed(_))),
        ("setonce", _) => bit(false),
        ("visible", _) => bit(true),
        ("values", Kind::Words(words, _)) => words.join(" | "),
        ("values", _) => phrase(name).into(),
        ("default", Kind::Words(words, default)) => words.get(*default as usize)?.to_string(),
        ("default", _) => if of_text.contains(&name) { "" } else { "0" }.into(),
        _ => return None,
    })
}

/// The full name of a property, if there is one of that name (`name`, `feature@NAME` and
/// `unsupported@NAME` as well).
pub fn canonical(name: &str) -> Option<String> {
    let long = find(name).map_or(name, |p| p.name);
    let known = long == "name" || find(name).is_some();
    let feature = long.strip_prefix("feature@").is_some_and(|f| FeatureId::lookup(f).is_some());
    let named = known || feature || is_user_prop(long);
    (named || long.starts_with("unsupported@")).then(|| long.to_string())
}

/// The value of an index property, and whether it is set in this pool.
fn index_prop(name: &str, stored: &Stored) -> Option<(&'static str, bool)> {
    let Kind::Words(words, default) = find(name)?.kind else { return None };
    let value = stored.get(name).copied();
    let text = words.get(value.unwrap_or(default) as usize).copied().unwrap_or("-");
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
    /// User properties; without a text they go.
    pub user: Vec<(String, String)>,
    /// Features asked for by name: enabled or disabled.
    pub features: Vec<(FeatureId, bool)>,
    /// Features that `compatibility` allows, the one given or else that of the pool.
    pub allowed: Option<Vec<FeatureId>>,
    /// `compatibility` as it was given.
    pub compatibility: Option<String>,
    /// `cachefile`
    pub cache_file: Option<CacheFile>,
    /// `version`, if it is not the usual one.
    pub version: Option<u64>,
    /// `bootfs`, to be looked up.
    pub bootfs: Option<String>,
}

/// What the history says of properties that are set, but for `bootfs`, which is a name until then.
fn notes_of(wanted: &Wanted) -> Vec<String> {
    let texts = [("comment", &wanted.comment), ("compatibility", &wanted.compatibility)];
    let mut out: Vec<String> = texts.iter().filter_map(|(n, v)| Some(format!("{n}={}", v.as_ref()?))).collect();
    out.extend(wanted.stored.iter().map(|(name, number)| format!("{name}={number}")));
    out.extend(wanted.user.iter().map(|(name, text)| format!("{name}={text}")));
    out.extend(wanted.features.iter().filter(|f| f.1).map(|(id, _)| format!("feature@{id}=enabled")));
    out
}

/// Adds that to the history, with the changes themselves.
fn note_all(dsl: &DslPool, notes: Vec<String>, tx: &Tx) {
    notes.into_iter().for_each(|text| dsl.core().log_internal("set", text, tx.txg()));
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
        if is_user_prop(given) {
            return self.take_user(given, value, when);
        }
        let unknown =
            || Error::invalid(format!("invalid property '{given}': 'zpool get all' lists those that there are"));
        let name = canonical(given).ok_or_else(unknown)?;
        match find(&name).map(|p| &p.kind) {
            Some(Kind::Words(words, _)) => {
                let number = words.iter().position(|w| *w == value);
                let number = number.ok_or_else(|| bad(&name, value, &words.join(" or ")))?;
                self.stored.push((name, number as u64));
                Ok(())
            }
            Some(Kind::Own(take, _)) => take(self, value, when),
            Some(Kind::Computed(_)) | None => {
                Err(Error::new(ErrorKind::ReadOnly, format!("'{name}' is readonly: it is computed")))
            }
        }
    }

    fn take_user(&mut self, name: &str, value: &str, when: When) -> Result<()> {
        if when == When::Import {
            return Err(Error::invalid(format!("property '{name}' cannot be set at import time")));
        }
        if name.starts_with('-') || value.contains('\0') {
            return Err(Error::invalid(format!("invalid property '{name}'")));
        }
        if value.len() >= TEXT_MAX {
            let why = format!("the value of '{name}' is too long: it may have {} bytes", TEXT_MAX - 1);
            return Err(Error::invalid(why));
        }
        self.user.push((name.to_string(), value.to_string()));
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
        if self.version.is_some() {
            if !self.features.is_empty() {
                return Err(Error::invalid("'feature@' and 'version' properties cannot be specified together"));
            }
            return Ok(Vec::new());
        }
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

fn import_only(name: &str) -> Error {
    Error::new(ErrorKind::ReadOnly, format!("property '{name}' can be set at import time only"))
}

fn take_altroot(to: &mut Wanted, value: &str, when: When) -> Result<()> {
    match when {
        When::Set => return Err(import_only("altroot")),
        _ if !value.starts_with('/') => return Err(bad("altroot", value, "an absolute path")),
        _ => to.altroot = Some(value.to_string()),
    }
    Ok(())
}

fn take_version(to: &mut Wanted, value: &str, when: When) -> Result<()> {
    if when == When::Import {
        return Err(Error::invalid("property 'version' cannot be set at import time"));
    }
    let number = value.parse::<u64>().ok().filter(|n| version_supported(*n));
    let number = number.ok_or_else(|| Error::unsupported(format!("property 'version' number {value} is invalid")))?;
    // A new pool has feature flags if nothing else is said.
    to.version = Some(number).filter(|n| when == When::Set || *n < version::FEATURES);
    Ok(())
}

/// Pools with feature flags have no version to show.
fn show_version(l: &Look<'_>) -> PropView {
    match l.engine.pool.version() {
        version::FEATURES => l.fixed("-", "default"),
        n => l.fixed(&n.to_string(), "local"),
    }
}

fn take_bootfs(to: &mut Wanted, value: &str, when: When) -> Result<()> {
    if when != When::Set {
        return Err(Error::invalid("property 'bootfs' can be set when its file system exists"));
    }
    to.bootfs = Some(value.to_string());
    Ok(())
}

fn show_bootfs(l: &Look<'_>) -> PropView {
    let object = l.stored.get("bootfs").copied().filter(|o| *o != 0);
    let all = l.engine.pool.dsl().all();
    l.optional(object.and_then(|o| all.iter().find(|d| d.object.0 == o)).map(|d| d.name()))
}

fn take_cachefile(to: &mut Wanted, value: &str, _: When) -> Result<()> {
    to.cache_file = Some(CacheFile::parse(value)?);
    Ok(())
}

/// A pool below an alternate root is in no cache file, if nothing is said.
fn show_cachefile(l: &Look<'_>) -> PropView {
    let below = l.engine.altroot.is_some();
    match &*l.engine.cache_file.borrow() {
        CacheFile::Usual if below => l.fixed("none", "local"),
        file => l.optional(file.shown()),
    }
}

fn take_readonly(to: &mut Wanted, value: &str, when: When) -> Result<()> {
    to.readonly = match (when, value) {
        (When::Import, "on") => true,
        (When::Import, "off") => false,
        (When::Import, _) => return Err(bad("readonly", value, "on or off")),
        _ => return Err(import_only("readonly")),
    };
    Ok(())
}

fn show_readonly(l: &Look<'_>) -> PropView {
    l.fixed(if l.engine.pool.is_readonly() { "on" } else { "off" }, "-")
}

fn take_ashift(to: &mut Wanted, value: &str, _: When) -> Result<()> {
    let shift = value.parse::<u8>().ok().filter(|n| *n == 0 || (9..=16).contains(n));
    let shift = shift.ok_or_else(|| bad("ashift", value, "0 or 9 to 16"))?;
    to.ashift = (shift != 0).then_some(shift);
    to.stored.push(("ashift".to_string(), u64::from(shift)));
    Ok(())
}

fn show_ashift(l: &Look<'_>) -> PropView {
    match l.stored.get("ashift").filter(|n| **n != 0) {
        Some(n) => l.fixed(&n.to_string(), "local"),
        None => l.fixed("0", "default"),
    }
}

fn take_comment(to: &mut Wanted, value: &str, _: When) -> Result<()> {
    if value.len() > COMMENT_MAX || !value.bytes().all(|c| c.is_ascii_graphic() || c == b' ') {
        return Err(bad("comment", value, &format!("at most {COMMENT_MAX} printable ASCII characters")));
    }
    to.comment = Some(value.to_string());
    Ok(())
}

fn show_expandsize(l: &Look<'_>) -> PropView {
    let tops = l.engine.pool.tree().tops.borrow().clone();
    let tops = tops.iter().filter(|t| !t.is_log && t.is_usable());
    match tops.map(|t| l.engine.pool.devices().expandable(t)).sum() {
        0 => l.fixed("-", "-"),
        bytes => l.size(bytes),
    }
}

fn show_fragmentation(l: &Look<'_>) -> PropView {
    match l.figures.frag {
        Some(frag) => l.percent(u64::from(frag)),
        None => l.fixed("-", "-"),
    }
}

/// As OpenZFS (`brt_get_ratio`): in whole hundredths, rounded down.
/// How often something is referenced on average, in hundredths, rounded down: 100 where there is
/// nothing (format page 18 section 4; `ddt_get_pool_dedup_ratio` of OpenZFS).
fn ratio_hundredths(all: u128, one: u64) -> u64 {
    u64::try_from((all * 100).checked_div(u128::from(one)).unwrap_or(100)).unwrap_or(u64::MAX)
}

fn show_bcloneratio(l: &Look<'_>) -> PropView {
    let (used, saved) = l.engine.pool.cloned();
    l.ratio(u128::from(used) + u128::from(saved), used)
}

fn show_dedupratio(l: &Look<'_>) -> PropView {
    let (stored, referenced) = l.engine.pool.dedup_sizes();
    l.ratio(referenced.into(), stored)
}

fn take_dedup_quota(to: &mut Wanted, value: &str, when: When) -> Result<()> {
    if when == When::Import {
        return Err(Error::invalid("property 'dedup_table_quota' cannot be set at import time"));
    }
    let quota = match value {
        "none" => spa::DEDUP_QUOTA_NONE,
        "auto" => spa::DEDUP_QUOTA_AUTO,
        size => dsl::props::parse_size(size).map_err(|_| bad("dedup_table_quota", value, "a size, none or auto"))?,
    };
    to.stored.push(("dedup_table_quota".to_string(), quota));
    Ok(())
}

fn show_dedup_quota(l: &Look<'_>) -> PropView {
    let stored = l.stored.get("dedup_table_quota").copied();
    match stored.unwrap_or(spa::DEDUP_QUOTA_AUTO) {
        spa::DEDUP_QUOTA_AUTO => l.fixed("auto", "default"),
        spa::DEDUP_QUOTA_NONE => row(l.name, "none".into(), "0".into(), "local"),
        n => row(l.name, fmt::num(n), n.to_string(), "local"),
    }
}

fn show_checkpoint(l: &Look<'_>) -> PropView {
    match l.engine.pool.checkpoint() {
        Some((_, space)) if space > 0 => l.size(space),
        _ => l.fixed("-", "-"),
    }
}

fn take_compatibility(to: &mut Wanted, value: &str, when: When) -> Result<()> {
    if when == When::Import {
        return Err(Error::invalid("property 'compatibility' cannot be set at import time"));
    }
    to.allowed = Some(allowed_features(value)?);
    to.compatibility = Some(value.to_string());
    Ok(())
}

fn show_compatibility(l: &Look<'_>) -> PropView {
    match l.engine.pool.mos_config().head.compatibility {
        Some(value) => l.fixed(&value, "local"),
        None => l.fixed("off", "default"),
    }
}

/// Reads the properties stored in the MOS.
pub async fn load(dsl: &DslPool) -> Result<Stored> {
    let Some(object) = zap::lookup_u64(dsl.directory(), POOL_PROPS).await? else { return Ok(Stored::default()) };
    let entries = zap::list(&dsl.mos().hold(ObjectId(object)).await?).await?;
    let mut stored = Stored::default();
    for e in entries {
        let Ok(name) = String::from_utf8(e.name) else { continue };
        if let Some(number) = e.value.as_u64() {
            stored.numbers.insert(name, number);
        } else if let Some(text) = e.value.as_text().filter(|_| is_user_prop(&name)) {
            stored.texts.insert(name, text);
        }
    }
    Ok(stored)
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

/// What a property is shown of.
struct Look<'a> {
    name: &'static str,
    engine: &'a PoolEngine,
    stored: &'a Stored,
    figures: &'a Figures,
    /// The state of the pool.
    state: &'a str,
}

impl Look<'_> {
    fn size(&self, n: u64) -> PropView {
        row(self.name, fmt::num(n), n.to_string(), "-")
    }
    /// As [`Look::size`], with a unit unless it is 0.
    fn bytes(&self, n: u64) -> PropView {
        row(self.name, if n == 0 { "0".into() } else { fmt::bytes(n) }, n.to_string(), "-")
    }
    fn percent(&self, n: u64) -> PropView {
        row(self.name, format!("{n}%"), n.to_string(), "-")
    }
    /// Of all references to one of them, as `2.52x`.
    fn ratio(&self, all: u128, one: u64) -> PropView {
        let hundredths = ratio_hundredths(all, one);
        let text = format!("{}.{:02}", hundredths / 100, hundredths % 100);
        row(self.name, format!("{text}x"), text, "-")
    }
    fn fixed(&self, value: &str, source: &str) -> PropView {
        row(self.name, value.to_string(), value.to_string(), source)
    }
    /// A value that may be set.
    fn optional(&self, value: Option<String>) -> PropView {
        match value {
            Some(v) => self.fixed(&v, "local"),
            None => self.fixed("-", "default"),
        }
    }
}

impl PoolEngine {
    /// All properties in the order of `zpool get all`; `unknown` are features that weir does not
    /// know, with their counts.
    pub(crate) fn pool_prop_views(&self, f: &Figures, state: &str, unknown: &[(String, u64)]) -> Vec<PropView> {
        let stored = self.props.borrow();
        let show = |prop: &'static Prop| {
            let look = Look { name: prop.name, engine: self, stored: &stored, figures: f, state };
            match prop.kind {
                Kind::Words(..) => {
                    let (value, local) = index_prop(prop.name, &stored).unwrap_or(("-", false));
                    look.fixed(value, if local { "local" } else { "default" })
                }
                Kind::Computed(show) | Kind::Own(_, show) => show(&look),
            }
        };
        let mut out: Vec<PropView> = PROPS.iter().map(show).collect();
        for feature in FEATURES {
            let count = self.pool.feature_count(feature.guid);
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
        out.extend(stored.texts.iter().map(|(name, text)| row(name, text.clone(), text.clone(), "local")));
        out
    }

    /// The features that `zpool upgrade` would enable: those that weir writes, that the pool does
    /// not have, and that are allowed with all that they depend on.
    pub(crate) fn features_to_enable(&self, allowed: Option<&[FeatureId]>) -> Vec<FeatureId> {
        if self.pool.version() < version::FEATURES {
            return Vec::new();
        }
        let is_allowed = |id: &FeatureId| allowed.is_none_or(|a| a.contains(id));
        let missing = |id: &FeatureId| {
            let closure = enable_closure_ids(&[*id]);
            self.pool.feature_count(id.get().guid).is_none()
                && closure.iter().all(|f| f.get().may_be_enabled() && is_allowed(f))
        };
        FEATURES.iter().map(|f| f.id).filter(missing).collect()
    }

    /// Sets properties of an imported pool: numbers, features, comment.
    pub async fn set_pool_props(&self, wanted: Wanted) -> Result<()> {
        let dsl = self.pool.dsl().clone();
        let mut notes = notes_of(&wanted);
        self.upgrade_for(&wanted).await?;
        let features: Vec<FeatureId> = wanted.features.iter().filter(|f| f.1).map(|f| f.0).collect();
        if let Some(allowed) = &wanted.allowed
            && let Some(id) = enable_closure_ids(&features).iter().find(|id| !allowed.contains(id))
        {
            let why =
                format!("feature '{id}' is not allowed by the property 'compatibility' of the pool: set that to off");
            return Err(Error::invalid(why));
        }
        let mut stored = wanted.stored;
        if let Some(name) = &wanted.bootfs {
            let object = match name.as_str() {
                "" | "none" => 0,
                name => dsl.find(name)?.object.0,
            };
            notes.push(format!("bootfs={object}"));
            stored.push(("bootfs".to_string(), object));
        }
        if let Some(value) = wanted.compatibility {
            // No entry means off.
            self.pool.set_compatibility((value != "off").then_some(value))?;
        }
        if let Some(file) = wanted.cache_file {
            *self.cache_file.borrow_mut() = file;
        }
        if wanted.comment.is_some() {
            self.pool.set_comment(wanted.comment.filter(|c| !c.is_empty()))?;
        }
        let user = wanted.user;
        if stored.is_empty() && features.is_empty() && user.is_empty() {
            if !notes.is_empty() {
                let note = move |dsl: Rc<DslPool>, tx: Rc<Tx>| {
                    note_all(&dsl, notes, &tx);
                    Box::pin(async { Ok(()) }) as LocalBoxFuture<'static, Result<()>>
                };
                dsl.sync_task(note).await?;
            }
            return self.pool.sync().await;
        }
        let (values, texts) = (stored.clone(), user.clone());
        let stores = dsl.sync_task(move |dsl: Rc<DslPool>, tx| {
            Box::pin(async move {
                dsl.enable_features(&features, &tx).await?;
                note_all(&dsl, notes, &tx);
                if values.is_empty() && texts.is_empty() {
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
                for (name, text) in texts {
                    if !text.is_empty() {
                        zap::update_text(&object, name.as_bytes(), &text, &tx).await?;
                    } else if zap::lookup(&object, name.as_bytes()).await?.is_some() {
                        zap::remove(&object, name.as_bytes(), &tx).await?;
                    }
                }
                Ok(())
            })
        });
        let multihost = stored.iter().rfind(|(name, _)| name == "multihost").map(|(_, on)| *on == 1);
        self.pool.change_multihost(multihost.unwrap_or(self.pool.has_multihost()), stores).await?;
        {
            let mut props = self.props.borrow_mut();
            props.numbers.extend(stored);
            for (name, text) in user {
                if text.is_empty() {
                    props.texts.remove(&name);
                } else {
                    props.texts.insert(name, text);
                }
            }
        }
        self.apply_pool_props();
        self.expand_if_wanted();
        Ok(())
    }

    /// Applies properties to the engine.
    pub(crate) fn apply_pool_props(&self) {
        let number = |name: &str| self.props.borrow().get(name).copied();
        self.pool.set_failmode(vdev::FailMode::from_number(number("failmode").unwrap_or(0)));
        self.pool.set_autotrim(number("autotrim") == Some(1));
        self.pool.set_dedup_quota(number("dedup_table_quota").unwrap_or(spa::DEDUP_QUOTA_AUTO));
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
    fn ratios_are_rounded_down() {
        for (saved, used, want) in [(0, 0, 100), (0, 100, 100), (352, 231, 252), (2, 3, 166), (u64::MAX, 1, u64::MAX)] {
            assert_eq!(ratio_hundredths(u128::from(saved) + u128::from(used), used), want, "{used} {saved}");
        }
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
            ("feature@draid_failure_domains", "enabled", When::Create),
            ("version", "29", When::Create),
            ("version", "-1", When::Set),
            ("version", "28", When::Import),
            ("org.test:slot", "1", When::Import),
            ("-org.test:slot", "1", When::Set),
            ("org.test:slot", &"x".repeat(TEXT_MAX), When::Set),
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
        assert_eq!(canonical("org.test:slot").as_deref(), Some("org.test:slot"));
        assert_eq!(canonical("Org:slot"), None);
    }
}
