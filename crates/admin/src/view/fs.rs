//! Datasets as plain data: every property with its value, its exact value and its source, in the
//! order of `zfs get all`.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use base::{Error, ObjectId, Result};
use dmu::zap;
use dsl::limits::Counted;
use dsl::props::{self, DatasetKind, PropSource, PropType, PropValue};
use dsl::{Dataset, dir::Used};
use ondisk::dsl::{DS_FLAG_DEFER_DESTROY, DslDatasetPhys};
use ondisk::objset::ObjsetType;
use ondisk::zpl::MASTER_NODE_OBJ;
use ondisk::zpl::master_key::{self, DEFAULT_QUOTAS};

use crate::engine::PoolEngine;
use crate::fs::owners::OwnerProp;
use crate::request::Select;
use crate::view::fmt;
use crate::view::{DatasetView, PropView};

/// Properties that the file system itself stores.
#[derive(Clone, Default, Debug)]
struct Inside {
    volume: bool,
    clones: String,
    /// Values of `written@...`.
    since: Vec<(String, u64)>,
    numbers: BTreeMap<&'static str, u64>,
    /// The token of an interrupted receive.
    token: Option<String>,
}

fn row(name: &str, value: impl Into<String>, exact: impl Into<String>, source: &str) -> Option<PropView> {
    Some(PropView { name: name.to_string(), value: value.into(), exact: exact.into(), source: source.to_string() })
}

impl PoolEngine {
    /// The selected datasets of this pool, in order of name; snapshots follow their head, bookmarks
    /// follow the snapshots.
    pub async fn select(&self, select: &Select) -> Result<Vec<DatasetView>> {
        let dsl = self.pool.dsl();
        let mut wanted: Vec<(String, bool)> = Vec::new();
        for name in &select.names {
            let name = self.resolve(name)?;
            if name.contains('@') {
                dsl.find_snapshot(&name).await.map_err(|_| missing(&name))?;
            } else {
                let fs = name.split('#').next().unwrap_or("");
                dsl.find(fs).map_err(|_| missing(&name))?;
            }
            wanted.push((name, true));
        }
        if select.names.is_empty() {
            wanted.push((self.pool.name(), false));
        }
        let depth = if select.names.is_empty() { None } else { select.depth };
        let mut out: Vec<DatasetView> = Vec::new();
        for (name, named) in wanted {
            if name.contains('@') {
                let snap = dsl.find_snapshot(&name).await?;
                out.push(self.dataset_view(&snap, &select.wanted).await);
                continue;
            }
            if let Some((fs, mark)) = name.split_once('#') {
                let all = dsl.bookmarks(&*dsl.find(fs)?).await?;
                let found = all.into_iter().find(|m| m.name == mark).ok_or_else(|| missing(&name))?;
                out.push(self.bookmark_view(fs, &found).await);
                continue;
            }
            for ds in dsl.all() {
                let Some(level) = level_below(&name, &ds.name()) else { continue };
                // What receives is shown by its name only.
                if ds.dir().is_hidden() && level > 0 {
                    continue;
                }
                if depth.is_some_and(|d| level > d) {
                    continue;
                }
                let heads = select.volumes || select.filesystems;
                if heads {
                    let view = self.dataset_view(&ds, &select.wanted).await;
                    let fits = if view.kind == "volume" { select.volumes } else { select.filesystems };
                    // A named dataset is shown whatever its type, unless only snapshots are
                    // selected, or more than the named ones.
                    if fits || (named && level == 0 && !select.by_type) {
                        out.push(view);
                    }
                }
                // A snapshot is one level below its file system.
                let inside = depth.is_none_or(|d| level < d || (!heads && d == 0 && !select.by_type));
                if select.snapshots && inside {
                    for snap in dsl.snapshots(&ds).await? {
                        out.push(self.dataset_view(&snap, &select.wanted).await);
                    }
                }
                if select.bookmarks && inside {
                    let name = ds.name();
                    for mark in dsl.bookmarks(&ds).await? {
                        out.push(self.bookmark_view(&name, &mark).await);
                    }
                }
            }
        }
        Ok(out)
    }

    /// A dataset's name from a name or a path below one of its mounts.
    pub fn resolve(&self, name: &str) -> Result<String> {
        if !name.starts_with('/') {
            return Ok(name.to_string());
        }
        self.mounts
            .holding(Path::new(name))
            .ok_or_else(|| Error::not_found(format!("cannot open '{name}': not a path of a mounted weir file system")))
    }

    /// Objects in the delete queue of a file system, 0 of one that is not mounted: then nothing
    /// frees them.
    pub(crate) async fn delete_queue(&self, name: &str) -> Result<u64> {
        let ds = self.find(name)?;
        let os = ds.objset().await?;
        if os.os_type() != ObjsetType::Zfs {
            return Err(Error::invalid(format!("cannot open '{name}': it is no file system")));
        }
        if self.mounts.path_of(name).is_none() {
            return Ok(0);
        }
        let master = os.hold(ObjectId(MASTER_NODE_OBJ)).await?;
        let queue = zap::lookup_u64(&master, master_key::DELETE_QUEUE.as_bytes()).await?;
        let Some(queue) = queue else { return Ok(0) };
        zap::count(&os.hold(ObjectId(queue)).await?).await
    }

    async fn inside(&self, ds: &Dataset, wanted: &[String]) -> Inside {
        let mut out = Inside::default();
        // A snapshot is of the type of its head, which is often known without a read.
        let head = if ds.is_snapshot() { ds.dir().head() } else { None };
        let typed = head.as_deref().unwrap_or(ds).os_type().await;
        out.volume = typed.is_ok_and(|t| t == ObjsetType::Zvol);
        let needs = |names: &[&str]| wanted.is_empty() || wanted.iter().any(|w| names.contains(&w.as_str()));
        if needs(&["written"])
            && let Some(written) = self.written(ds).await
        {
            out.numbers.insert("written", written);
        }
        if needs(&["userrefs"])
            && ds.is_snapshot()
            && let Ok(holds) = self.pool.dsl().holds(ds).await
        {
            out.numbers.insert("userrefs", holds.len() as u64);
        }
        let counted = Counted::ALL.map(Counted::count);
        if needs(&counted)
            && !ds.is_snapshot()
            && let Ok(Some(counts)) = self.pool.dsl().counts(&ds.dir()).await
        {
            out.numbers.extend(counted.into_iter().zip(counts));
        }
        if ds.is_snapshot() && needs(&["clones"]) {
            let clones = self.pool.dsl().clones_of(ds).await.unwrap_or_default();
            out.clones = clones.iter().filter(|d| !d.dir().is_hidden()).map(|d| d.name()).collect::<Vec<_>>().join(",");
        }
        if needs(&["receive_resume_token"])
            && !ds.is_snapshot()
            && let Ok(head) = self.pool.dsl().find(&ds.name())
        {
            out.token = self.pool.dsl().resume_token(&head).await.ok().flatten();
        }
        for name in wanted.iter().filter_map(|w| w.strip_prefix("written@")) {
            if let Some(n) = self.written_since(ds, name).await {
                out.since.push((format!("written@{name}"), n));
            }
        }
        if ds.is_snapshot()
            && !needs(&["version", "utf8only", "normalization", "casesensitivity", "volsize", "volblocksize"])
            && !needs(&DEFAULT_QUOTAS)
        {
            return out;
        }
        let Ok(os) = ds.objset().await else { return out };
        if out.volume {
            if let Ok(props) = os.hold(ObjectId(2)).await
                && let Ok(Some(size)) = zap::lookup_u64(&props, b"size").await
            {
                out.numbers.insert("volsize", size);
            }
            if let Ok(data) = os.hold(ObjectId(1)).await {
                out.numbers.insert("volblocksize", u64::from(data.block_size()));
            }
        } else if let Ok(master) = os.hold(ObjectId(MASTER_NODE_OBJ)).await {
            for (name, key) in [
                ("version", master_key::VERSION),
                ("utf8only", master_key::UTF8ONLY),
                ("normalization", master_key::NORMALIZATION),
                ("casesensitivity", master_key::CASESENSITIVITY),
            ]
            .into_iter()
            .chain(DEFAULT_QUOTAS.map(|name| (name, name)))
            {
                if let Ok(Some(n)) = zap::lookup_u64(&master, key.as_bytes()).await {
                    out.numbers.insert(name, n);
                }
            }
        }
        out
    }

    /// Bytes written since the previous snapshot: bytes referenced now but not then, that is the
    /// growth plus the deadlist.
    async fn written(&self, ds: &Dataset) -> Option<u64> {
        let phys = ds.phys();
        let mos = self.pool.dsl().mos();
        let before = mos.hold(ObjectId(phys.prev_snap_obj)).await.ok()?.with_bonus(DslDatasetPhys::parse).ok()?;
        let dead = mos.hold(ObjectId(phys.deadlist_obj)).await.ok()?;
        let given_up = dead.with_bonus(|b| b.first_chunk::<8>().map(|n| u64::from_le_bytes(*n)))?;
        (phys.referenced_bytes + given_up).checked_sub(before.referenced_bytes)
    }

    /// `written@snapshot`, also with a full name after the `@`.
    async fn written_since(&self, ds: &Dataset, since: &str) -> Option<u64> {
        let dsl = self.pool.dsl();
        let full = if since.contains('@') { since.to_string() } else { format!("{}@{since}", ds.dir().full_name()) };
        let snap = dsl.find_snapshot(&full).await.ok()?;
        dsl.written_since(ds, &snap).await.ok()
    }

    /// A bookmark as data.
    async fn bookmark_view(&self, fs: &str, mark: &dsl::Bookmark) -> DatasetView {
        // One whose list cannot be read is shown without it.
        let redaction = self.pool.dsl().redaction_of(mark).await.ok().flatten();
        bookmark_view(fs, mark, redaction.as_ref())
    }

    async fn dataset_view(&self, ds: &Rc<Dataset>, wanted: &[String]) -> DatasetView {
        let inside = self.inside(ds, wanted).await;
        let origin = match self.pool.dsl().origin_of(ds).await {
            Ok(Some(snap)) => Some(snap.name()),
            _ => None,
        };
        let (kind, shown) = match (ds.is_snapshot(), inside.volume) {
            (true, false) => ("snapshot", DatasetKind::Snapshot),
            (true, true) => ("snapshot", DatasetKind::VolumeSnapshot),
            (false, true) => ("volume", DatasetKind::Volume),
            (false, false) => ("filesystem", DatasetKind::Filesystem),
        };
        let asked = |name: &str| wanted.iter().any(|w| w == name);
        let shown = props::shown_of(shown);
        let usual = shown.iter().filter(|name| wanted.is_empty() || asked(name));
        // Properties that OpenZFS does not have are listed only if set.
        let set = |name: &str| wanted.is_empty() && ds.dir().prop(name).0.num() != 0;
        let limits = dsl::iolimit::PROPS.iter().filter(|name| kind == "filesystem" && (asked(name) || set(name)));
        let mut props: Vec<PropView> = usual
            .chain(limits)
            .filter_map(|name| self.dataset_prop(ds, name, kind, &inside, origin.as_deref()))
            .collect();
        if !ds.is_snapshot() && (inside.token.is_some() || asked("receive_resume_token")) {
            let token = inside.token.as_deref().unwrap_or("-");
            props.extend(row("receive_resume_token", token, token, "-"));
        }
        // It is not listed, but tools ask for it.
        if asked("inconsistent") {
            let partial = u64::from(ds.is_partial()).to_string();
            props.extend(row("inconsistent", partial.clone(), partial, "-"));
        }
        // Nor this, which tells snapshots that raw increments can start from.
        if asked("ivsetguid") {
            let guid = match ds.dir().is_encrypted() {
                true => self.pool.dsl().ivset_guid(ds.object).await.ok().flatten(),
                false => None,
            };
            let guid = guid.map_or("-".to_string(), |guid| guid.to_string());
            props.extend(row("ivsetguid", guid.clone(), guid, "-"));
        }
        let snaps = self.pool.dsl().dataset_redaction(ds).await.ok().flatten();
        if snaps.is_some() || asked("redact_snaps") {
            let snaps = redact_snaps(snaps.as_deref());
            props.extend(row("redact_snaps", snaps.as_str(), snaps.as_str(), "-"));
        }
        for name in wanted.iter().filter(|w| OwnerProp::parse(w).is_some()) {
            props.extend(self.owner_prop(ds, name).await);
        }
        // OpenZFS shows these as local, and scripts skip lines with a dash.
        props.extend(inside.since.iter().filter_map(|(name, n)| row(name, fmt::bytes(*n), n.to_string(), "local")));
        let user = wanted.is_empty() || wanted.iter().any(|w| props::is_user_prop(w));
        if !user {
            return DatasetView { name: ds.name(), kind: kind.to_string(), props };
        }
        let own = if ds.is_snapshot() {
            self.pool.dsl().snapshot_props(ds).await.unwrap_or_default()
        } else {
            Default::default()
        };
        let mut names: Vec<String> = Vec::new();
        let mut dir = Some(ds.dir());
        while let Some(d) = dir {
            let own = d.local_props().into_keys().map(|n| n.strip_suffix("$recvd").unwrap_or(&n).to_string());
            names.extend(own.filter(|n| props::is_user_prop(n) && !n.contains('$')));
            dir = d.parent();
        }
        names.extend(own.keys().cloned());
        names.sort();
        names.dedup();
        for name in names {
            let (value, source) = match own.get(&name) {
                Some((value, false)) => (value.clone(), PropSource::Local),
                Some((value, true)) => (value.clone(), PropSource::Received),
                None => ds.dir().prop(&name),
            };
            let is_own = own.contains_key(&name);
            // One that was received and is passed over, with none above it.
            if !is_own && source == PropSource::Default {
                continue;
            }
            let text = match &value {
                PropValue::Text(t) => t.clone(),
                PropValue::Num(n) => n.to_string(),
            };
            let source = if is_own { source.to_string() } else { source_of(&source, ds) };
            props.extend(row(&name, text.clone(), text, &source));
        }
        DatasetView { name: ds.name(), kind: kind.to_string(), props }
    }

    /// The temporary value of the mount of `ds`, if it differs from the stored one.
    fn temporary(&self, ds: &Dataset, prop: &str) -> Option<u64> {
        let name = ds.name();
        let changed = self.mounts.temp_of(&name).changed(&ds.dir(), prop);
        changed.filter(|_| self.mounts.path_of(&name).is_some())
    }

    fn dataset_prop(
        &self,
        ds: &Dataset,
        name: &str,
        kind: &str,
        inside: &Inside,
        origin: Option<&str>,
    ) -> Option<PropView> {
        let phys = ds.phys();
        let dir = ds.dir().phys();
        let size = |n: u64| row(name, fmt::bytes(n), n.to_string(), "-");
        let number = |n: u64| row(name, n.to_string(), n.to_string(), "-");
        let ratio = |a: u64, b: u64| {
            let r = fmt::ratio(fmt::hundredths(a, b));
            row(name, format!("{r}x"), r, "-")
        };
        let share = |which: Used| size(dir.used_breakdown[which as usize]);
        let refratio = || ratio(phys.uncompressed_bytes, phys.compressed_bytes);
        let snapshot = ds.is_snapshot();
        match name {
            "type" => row(name, kind, kind, "-"),
            "creation" => row(name, fmt::date(phys.creation_time), phys.creation_time.to_string(), "-"),
            "used" => size(if snapshot { phys.unique_bytes } else { dir.used_bytes }),
            "available" => size(ds.available()),
            "referenced" => size(phys.referenced_bytes),
            "compressratio" if snapshot => refratio(),
            "compressratio" => ratio(dir.uncompressed_bytes, dir.compressed_bytes),
            "refcompressratio" => refratio(),
            "mounted" => {
                let word = if self.mounts.path_of(&ds.name()).is_some() { "yes" } else { "no" };
                row(name, word, word, "-")
            }
            "origin" => origin.and_then(|o| row(name, o, o, "-")),
            "createtxg" => number(phys.creation_txg),
            "snapshots_changed" => {
                let secs = ds.dir().snapshots_changed()?.secs.try_into().ok()?;
                row(name, fmt::date_with_seconds(secs), secs.to_string(), "-")
            }
            "guid" => number(phys.guid),
            "objsetid" => number(ds.object.0),
            "usedbysnapshots" => share(Used::Snap),
            "usedbydataset" => share(Used::Head),
            "usedbychildren" => size(
                dir.used_breakdown[Used::Child as usize].saturating_add(dir.used_breakdown[Used::ChildRsrv as usize]),
            ),
            "usedbyrefreservation" => share(Used::RefRsrv),
            "written" if phys.prev_snap_txg <= 1 => size(phys.referenced_bytes),
            "written" => match inside.numbers.get(name) {
                Some(n) => size(*n),
                None => row(name, "-", "-", "-"),
            },
            "clones" => {
                let text = inside.clones.clone();
                (!text.is_empty()).then(|| row(name, text.clone(), text, "-")).flatten()
            }
            "logicalused" => size(dir.uncompressed_bytes),
            "logicalreferenced" => size(phys.uncompressed_bytes),
            "defer_destroy" => {
                let word = if phys.flags & DS_FLAG_DEFER_DESTROY != 0 { "on" } else { "off" };
                row(name, word, word, "-")
            }
            // As OpenZFS shows them: no limit is 0.
            _ if props::is_default_quota(name) => {
                let limit = inside.numbers.get(name).copied().unwrap_or(0);
                row(name, base::NiceNum(limit).to_string(), limit.to_string(), "-")
            }
            "userrefs" => number(inside.numbers.get(name).copied().unwrap_or(0)),
            "filesystem_count" | "snapshot_count" => match inside.numbers.get(name) {
                Some(n) => row(name, n.to_string(), n.to_string(), "-"),
                None => row(name, "none", u64::MAX.to_string(), "default"),
            },
            "encryption" | "keylocation" | "keyformat" | "pbkdf2iters" | "encryptionroot" | "keystatus" => {
                self.crypt_prop(ds, name)
            }
            "mountpoint" => {
                let (value, source) = ds.dir().prop(name);
                let text = crate::fs::mounts::with_altroot(value.text(), self.altroot.as_deref());
                let text = if value.text().starts_with('/') { text } else { value.text().to_string() };
                row(name, text.clone(), text, &source_of(&source, ds))
            }
            "version" | "utf8only" | "normalization" | "casesensitivity" | "volsize" | "volblocksize" => {
                let value = inside.numbers.get(name).copied().map(PropValue::Num);
                let known = props::find(name)?;
                let value = value.unwrap_or_else(|| known.default_value());
                let source = match name {
                    "volsize" => "local",
                    "volblocksize" if value == known.default_value() => "default",
                    _ => "-",
                };
                row(name, format_value(known, &value, false), format_value(known, &value, true), source)
            }
            _ => {
                let known = props::find(name)?;
                let (mut value, source) = ds.dir().prop(name);
                let mut source = source_of(&source, ds);
                if !snapshot && let Some(n) = self.temporary(ds, name) {
                    (value, source) = (PropValue::Num(n), "temporary".to_string());
                }
                row(name, format_value(known, &value, false), format_value(known, &value, true), &source)
            }
        }
    }

    /// A property of encryption.
    fn crypt_prop(&self, ds: &Dataset, name: &str) -> Option<PropView> {
        let Some(info) = self.pool.dsl().crypt_info(&ds.dir()) else {
            return match name {
                "encryption" => row(name, "off", "off", "default"),
                "pbkdf2iters" => row(name, "0", "0", "default"),
                "encryptionroot" | "keystatus" => None,
                _ => row(name, "none", "none", "default"),
            };
        };
        let location = ds.dir().prop("keylocation").0.text().to_string();
        let text = match name {
            "encryption" => info.suite.name().to_string(),
            "keyformat" => info.format.name().to_string(),
            "pbkdf2iters" => info.iters.to_string(),
            "encryptionroot" => info.root,
            "keystatus" => if info.available { "available" } else { "unavailable" }.to_string(),
            _ if info.is_root => return row(name, location.clone(), location, "local"),
            _ => return row(name, "none", "none", "default"),
        };
        row(name, text.clone(), text, "-")
    }
}

/// As `Prop::format`, but bytes below 1024 print with their unit as `zfs` does.
fn format_value(prop: &props::Prop, value: &PropValue, exact: bool) -> String {
    if exact && matches!(prop.ty, PropType::Size { .. }) {
        return value.num().to_string();
    }
    let text = prop.format(value, exact);
    // Numbers of operations have decimal suffixes.
    if prop.name.starts_with("iolimit_op_") && value.num() != 0 {
        return value.num().to_string();
    }
    let is_size =
        matches!(prop.ty, PropType::Size { .. }) && !matches!(prop.name, "filesystem_limit" | "snapshot_limit");
    let small = value.num() < 1024 && text.bytes().all(|c| c.is_ascii_digit());
    if is_size && !exact && small && prop.name != "special_small_blocks" { format!("{text}B") } else { text }
}

/// The value of `redact_snaps`.
fn redact_snaps(snaps: Option<&[u64]>) -> String {
    match snaps {
        None => "-".to_string(),
        Some([]) => "none".to_string(),
        Some(snaps) => snaps.iter().map(u64::to_string).collect::<Vec<_>>().join(","),
    }
}

fn bookmark_view(fs: &str, mark: &dsl::Bookmark, redaction: Option<&dsl::Redaction>) -> DatasetView {
    let number = |name: &str, n: u64| row(name, n.to_string(), n.to_string(), "-");
    let mut props = Vec::new();
    props.extend(row("type", "bookmark", "bookmark", "-"));
    props.extend(row("creation", fmt::date(mark.creation_time()), mark.creation_time().to_string(), "-"));
    if let Some(n) = mark.referenced() {
        props.extend(row("referenced", fmt::bytes(n), n.to_string(), "-"));
    }
    props.extend(number("createtxg", mark.creation_txg()));
    props.extend(number("guid", mark.guid()));
    if let Some(redaction) = redaction {
        let snaps = redact_snaps(Some(&redaction.snaps));
        props.extend(row("redact_snaps", snaps.as_str(), snaps.as_str(), "-"));
    }
    DatasetView { name: format!("{fs}#{}", mark.name), kind: "bookmark".to_string(), props }
}

/// A snapshot inherits local values of its file system.
fn source_of(source: &PropSource, ds: &Dataset) -> String {
    match source {
        PropSource::Local | PropSource::Received if ds.is_snapshot() => {
            format!("inherited from {}", ds.dir().full_name())
        }
        other => other.to_string(),
    }
}

fn missing(name: &str) -> Error {
    Error::not_found(format!("cannot open '{name}': dataset does not exist"))
}

/// Levels of `name` below `above`; none if it is not below.
fn level_below(above: &str, name: &str) -> Option<u32> {
    let rest = name.strip_prefix(above)?;
    match rest.as_bytes().first() {
        None => Some(0),
        Some(b'/') => Some(rest.bytes().filter(|c| *c == b'/').count() as u32),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_count_slashes_below() {
        for (above, name, want) in [
            ("tank", "tank", Some(0)),
            ("tank", "tank/a", Some(1)),
            ("tank", "tank/a/b", Some(2)),
            ("tank/a", "tank/ab", None),
            ("tank/a", "tank", None),
        ] {
            assert_eq!(level_below(above, name), want, "{above} {name}");
        }
    }

    #[test]
    fn sizes_print_with_their_unit() {
        let show = |name: &str, n: u64| format_value(props::find(name).unwrap(), &PropValue::Num(n), false);
        assert_eq!(show("recordsize", 512), "512B");
        assert_eq!(show("recordsize", 131_072), "128K");
        assert_eq!(show("special_small_blocks", 0), "0");
        assert_eq!(show("quota", 0), "none");
        assert_eq!(
            (show("iolimit_op_total", 100), show("iolimit_op_read", 1_500_000)),
            ("100".into(), "1500000".into())
        );
        assert_eq!((show("iolimit_op_total", 0), show("iolimit_bw_total", 100)), ("none".into(), "100B".into()));
        assert_eq!(show("snapshot_limit", u64::MAX), "none");
        assert_eq!(show("copies", 2), "2");
    }
}
