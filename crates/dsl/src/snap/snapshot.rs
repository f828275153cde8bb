//! Snapshots: making, naming and holding them (format pages 05 section 6, 15 section 6).
//!
//! A snapshot takes over the head's root pointer, figures and deadlist; the head continues with an
//! empty deadlist and without unique space. All snapshots of one call are made in one txg, or none:
//! so all have the state at the end of that txg.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result, WallTime};
use dmu::zap::ZapValue;
use dmu::{Tx, zap};
use ondisk::dsl::{DS_FLAG_DEFER_DESTROY, DS_FLAG_UNIQUE_ACCURATE};
use ondisk::feature::FeatureId;
use ondisk::object_type::ObjectType;
use ondisk::version;
use rt::LocalBoxFuture;

use crate::dataset::Dataset;
use crate::dir::Dir;
use crate::free::deadlist::Deadlist;
use crate::limits::Counted;
use crate::pool::{DslPool, NAME_MAX};
use crate::props::{self, PropValue};
use crate::space::SpaceCheck;

/// Key of a directory's number of snapshots, kept if limits were ever used.
/// Key of the time when a directory's snapshots changed last (`snapshots_changed`, format page 17
/// section 8): seconds and nanoseconds.
pub(crate) const SNAPS_CHANGED_KEY: &[u8] = b"com.ixsystems:snapshots_changed";
/// Key of the guid of an encrypted snapshot's set of IVs (format page 12).
pub(crate) const DATASET_KEY_IVSET: &[u8] = b"com.datto:ivset_guid";
/// Longest tag of a hold (`MAXNAMELEN` less the object's number in hexadecimal and a dash).
const TAG_MAX: usize = 256 - 18;

/// A moment as [`SNAPS_CHANGED_KEY`] has it.
pub(crate) fn moment(value: &ZapValue) -> Option<WallTime> {
    match value.as_u64s()?[..] {
        [secs, nanos] => Some(WallTime { secs: secs.cast_signed(), nanos: nanos.try_into().ok()? }),
        _ => None,
    }
}

/// Checks the last part of a snapshot's or bookmark's name, and the length of the whole.
pub(crate) fn check_component(full: &str, part: &str) -> Result<()> {
    if full.len() > NAME_MAX {
        return Err(Error::new(
            ErrorKind::NameTooLong,
            format!("name is too long: '{full}' has more than {NAME_MAX} bytes"),
        ));
    }
    if part.is_empty() {
        return Err(Error::invalid(format!("empty component or misplaced '@' or '#' delimiter in name '{full}'")));
    }
    match part.chars().find(|c| !(c.is_ascii_alphanumeric() || "-_.: ".contains(*c))) {
        Some(c) => Err(Error::invalid(format!("invalid character '{c}' in name '{full}'"))),
        None => Ok(()),
    }
}

/// A user's hold on a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hold {
    /// Its name.
    pub tag: String,
    /// When it was made, in seconds since 1970.
    pub time: u64,
}

impl DslPool {
    /// Heads of a directory and of all below it, parents first.
    pub(crate) fn heads_below(&self, dir: &Rc<Dir>) -> Vec<Rc<Dataset>> {
        let mut out = Vec::new();
        let mut todo = vec![dir.clone()];
        while let Some(dir) = todo.pop() {
            if dir.is_hidden() {
                continue;
            }
            out.extend(dir.head());
            todo.extend(dir.children().into_iter().rev());
        }
        out
    }

    /// Makes snapshots, all in one txg or none: `names` are full names `fs@snap`; with `recursive`
    /// those of all file systems below are made as well. `props` are user properties that all of
    /// them get.
    pub async fn snapshot(
        self: &Rc<Self>,
        names: Vec<String>,
        recursive: bool,
        props: Vec<(String, PropValue)>,
    ) -> Result<()> {
        for name in &names {
            let (fs, snap) = name
                .split_once('@')
                .ok_or_else(|| Error::invalid(format!("missing '@' delimiter in snapshot name '{name}'")))?;
            crate::check_name(fs)?;
            check_component(name, snap)?;
        }
        if let Some((name, _)) = props.iter().find(|(name, _)| !props::is_user_prop(name)) {
            return Err(Error::invalid(format!("this property can not be modified for snapshots: '{name}'")));
        }
        if !props.is_empty() {
            self.check_version(version::SNAP_PROPS, "pool must be upgraded to set properties of snapshots")?;
        }
        self.sync_task_again(move |pool, tx| -> LocalBoxFuture<'static, Result<()>> {
            let (names, props) = (names.clone(), props.clone());
            Box::pin(async move { pool.snapshot_in(&names, recursive, &props, false, &tx).await })
        })
        .await
    }

    /// As [`DslPool::snapshot`], in a task that is running. With `trial` it only makes the checks.
    pub async fn snapshot_in(
        self: &Rc<Self>,
        names: &[String],
        recursive: bool,
        props: &[(String, PropValue)],
        trial: bool,
        tx: &Rc<Tx>,
    ) -> Result<()> {
        let (pool, tx) = (self.clone(), tx.clone());
        let mut wanted: Vec<(Rc<Dataset>, String)> = Vec::new();
        let mut seen = BTreeSet::new();
        for name in names {
            let Some((fs, snap)) = name.split_once('@') else { continue };
            let head = pool.find(fs)?;
            let heads = if recursive { pool.heads_below(&head.dir()) } else { vec![head.clone()] };
            // Below it, what is received in part is passed over.
            let is_wanted = |h: &Rc<Dataset>| h.object == head.object || !h.is_partial();
            for head in heads.into_iter().filter(is_wanted) {
                if seen.insert((head.object, snap.to_string())) {
                    wanted.push((head, snap.to_string()));
                }
            }
        }
        for (head, snap) in &wanted {
            pool.check_snapshot(head, snap, &tx).await?;
        }
        let heads: BTreeSet<ObjectId> = wanted.iter().map(|(h, _)| h.object).collect();
        if heads.len() < wanted.len() {
            return Err(Error::invalid("multiple snapshots of same fs not allowed"));
        }
        pool.check_space(SpaceCheck::Normal, 3 * wanted.len() as u64)?;
        if trial {
            return Ok(());
        }
        for (head, snap) in &wanted {
            let made = pool.make_snapshot(head, snap, props, &tx).await;
            pool.fail_txg_on_error(made)?;
        }
        Ok(())
    }

    pub(super) async fn check_snapshot(&self, head: &Rc<Dataset>, snap: &str, tx: &Tx) -> Result<()> {
        let full = format!("{}@{snap}", head.name());
        check_component(&full, snap)?;
        if head.is_partial() {
            let why = format!("cannot create snapshot '{full}': '{}' was received in part only", head.name());
            return Err(Error::new(ErrorKind::Busy, why));
        }
        let phys = head.phys();
        // One snapshot per txg; and unsynced changes of this txg would be missing.
        if phys.prev_snap_txg >= tx.txg().0 || head.opened().is_some_and(|os| os.is_dirty(tx.txg())) {
            return Err(ErrorKind::Restart.into());
        }
        let names = self.mos().hold(ObjectId(phys.snapnames_zapobj)).await?;
        if zap::lookup_u64(&names, snap.as_bytes()).await?.is_some() {
            return Err(Error::new(
                ErrorKind::Exists,
                format!("cannot create snapshot '{full}': dataset already exists"),
            ));
        }
        // The unique space now belongs to the snapshot, so the refreservation needs the same space
        // again.
        let needed = head.refreservation().min(phys.unique_bytes);
        if needed > head.dir().available() {
            let why =
                format!("cannot create snapshot '{full}': out of space: there is no room to keep its refreservation");
            return Err(Error::new(ErrorKind::NoSpace, why));
        }
        Ok(())
    }

    /// Makes one snapshot (syncing context).
    pub(crate) async fn make_snapshot(
        &self,
        head: &Rc<Dataset>,
        snap: &str,
        props: &[(String, PropValue)],
        tx: &Tx,
    ) -> Result<Rc<Dataset>> {
        let mos = self.mos();
        let (dir, h) = (head.dir(), head.phys());
        let mut p = self.new_dataset_phys(&dir, tx);
        p.prev_snap_obj = h.prev_snap_obj;
        p.prev_snap_txg = h.prev_snap_txg;
        p.next_snap_obj = head.object.0;
        p.num_children = 1;
        p.deadlist_obj = h.deadlist_obj;
        p.referenced_bytes = h.referenced_bytes;
        p.compressed_bytes = h.compressed_bytes;
        p.uncompressed_bytes = h.uncompressed_bytes;
        p.flags = h.flags;
        p.bp = h.bp;
        if !props.is_empty() {
            let dn = zap::create(mos, ObjectType::DSL_PROPS, 0, tx).await?;
            for (name, value) in props {
                match value {
                    PropValue::Num(n) => zap::update_u64(&dn, name.as_bytes(), *n, tx).await?,
                    PropValue::Text(t) => zap::update_text(&dn, name.as_bytes(), t, tx).await?,
                }
            }
            p.props_obj = dn.object().0;
        }
        let object = self.write_new_dataset(&p, tx).await?;
        let features = head.load_features().await?;
        self.copy_features(object, &features, tx).await?;
        self.remap_to_snapshot(head, object, tx).await?;
        if features.contains_key("com.datto:encryption") {
            let guid = self.ctx().rt().new_guid().0;
            zap::add_u64(&mos.hold(object).await?, DATASET_KEY_IVSET, guid, tx).await?;
        }
        if h.prev_snap_obj != 0 {
            let prev = self.hold_dataset(ObjectId(h.prev_snap_obj)).await?;
            if prev.phys().next_snap_obj == head.object.0 {
                prev.change(|p| p.next_snap_obj = object.0);
            } else {
                self.replace_clone(&prev, head.object, object, tx).await?;
            }
        }
        self.load_marks(head).await?;
        let old = head.take_deadlist().await?;
        let mut keys: BTreeSet<u64> =
            if old.is_flat() { self.chain_keys(ObjectId(h.prev_snap_obj)).await? } else { old.keys().collect() };
        drop(old);
        keys.insert(h.prev_snap_txg);
        keys.extend(DslPool::mark_txgs(head, h.prev_snap_txg));
        let list = Deadlist::create(self, keys, tx).await?;
        let accurate = if self.version() >= version::UNIQUE { DS_FLAG_UNIQUE_ACCURATE } else { 0 };
        head.change(|p| {
            p.flags |= accurate;
            p.deadlist_obj = list.object.0;
            p.prev_snap_obj = object.0;
            p.prev_snap_txg = tx.txg().0;
        });
        head.put_deadlist(list);
        head.set_unique(0);
        zap::add_u64(&mos.hold(ObjectId(h.snapnames_zapobj)).await?, snap.as_bytes(), object.0, tx).await?;
        self.count(Counted::Snapshots, &dir, 1, tx).await?;
        self.snapshots_change(&dir, tx).await?;
        self.core().notify_watch(|w| w.snapshotted(head.object, object));
        let ds = self.new_dataset(object, p, Some(features), dir, false);
        ds.set_snapname(snap);
        self.core().log_internal_ds("snapshot", (ds.name(), object), String::new(), tx);
        Ok(ds)
    }

    /// The guid of the IV set of an encrypted snapshot, if it has one.
    pub async fn ivset_guid(&self, snap: ObjectId) -> Result<Option<u64>> {
        let dn = self.mos().hold(snap).await?;
        if dn.otype() != ObjectType::OTN_ZAP_METADATA {
            return Ok(None);
        }
        zap::lookup_u64(&dn, DATASET_KEY_IVSET).await
    }

    /// Keys of a deadlist after the snapshot `from` and those before it.
    pub(crate) async fn chain_keys(&self, from: ObjectId) -> Result<BTreeSet<u64>> {
        let mut keys = BTreeSet::new();
        let mut at = from;
        let mut seen = BTreeSet::new();
        while at.0 != 0 {
            if !seen.insert(at) {
                return Err(Error::corrupt(format!("the snapshots before object {from} go in a circle")));
            }
            let p = self.hold_dataset(at).await?.phys();
            keys.insert(p.prev_snap_txg);
            at = ObjectId(p.prev_snap_obj);
        }
        Ok(keys)
    }

    /// Keys of the deadlist of a clone made from `origin`: those of the deadlist of the directory's
    /// head below the txg of `origin`.
    pub(crate) async fn keys_below(&self, dir: &Rc<Dir>, origin: &Dataset) -> Result<Vec<u64>> {
        let head = dir.head().ok_or_else(|| Error::corrupt(format!("'{}' has no head", dir.full_name())))?;
        let txg = origin.phys().creation_txg;
        let list = head.take_deadlist().await?;
        let keys: Vec<u64> = if list.is_flat() {
            self.chain_keys(origin.object).await?.into_iter().collect()
        } else {
            list.keys().filter(|k| *k < txg).collect()
        };
        head.put_deadlist(list);
        Ok(keys)
    }

    /// Replaces a dataset in the list of a snapshot's clones.
    pub(crate) async fn replace_clone(&self, snap: &Dataset, old: ObjectId, new: ObjectId, tx: &Tx) -> Result<()> {
        let clones = snap.phys().next_clones_obj;
        if clones == 0 {
            return Ok(());
        }
        let dn = self.mos().hold(ObjectId(clones)).await?;
        match zap::remove_int(&dn, old.0, tx).await {
            // Old pools have no such lists for their first snapshots.
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            other => other?,
        }
        zap::add_int(&dn, new.0, new.0, tx).await
    }

    /// A snapshot of the directory was made, renamed or destroyed now (syncing context): the
    /// property `snapshots_changed`, which lasts where directories can have named values.
    pub(crate) async fn snapshots_change(&self, dir: &Dir, tx: &Tx) -> Result<()> {
        let now = self.ctx().rt().wall_clock();
        dir.set_snapshots_changed(Some(now));
        if !self.features().is_enabled(FeatureId::ExtensibleDataset) {
            return Ok(());
        }
        let value = ZapValue::from_u64s(&[now.secs.cast_unsigned(), now.nanos.into()]);
        zap::update(&self.zapify(dir.object, tx).await?, SNAPS_CHANGED_KEY, &value, tx).await
    }

    /// Renames a snapshot; with `recursive` also the snapshots of that name below.
    pub async fn rename_snapshot(self: &Rc<Self>, from: &str, to: &str, recursive: bool) -> Result<()> {
        let (from, to) = (from.to_string(), to.to_string());
        self.sync_task_again(move |pool, tx| -> LocalBoxFuture<'static, Result<()>> {
            let (from, to) = (from.clone(), to.clone());
            Box::pin(async move { pool.rename_snapshot_in(&from, &to, recursive, false, &tx).await })
        })
        .await
    }

    /// As [`DslPool::rename_snapshot`], in a task that is running. With `trial` it only makes the
    /// checks.
    pub async fn rename_snapshot_in(
        self: &Rc<Self>,
        from: &str,
        to: &str,
        recursive: bool,
        trial: bool,
        tx: &Rc<Tx>,
    ) -> Result<()> {
        let (pool, tx) = (self.clone(), tx.clone());
        let split = |n: &str| match n.split_once('@') {
            Some((fs, snap)) => Ok((fs.to_string(), snap.to_string())),
            None => Err(Error::invalid(format!("'{n}' is not the name of a snapshot"))),
        };
        let ((fs, old), (other, new)) = (split(from)?, split(to)?);
        if fs != other {
            return Err(Error::new(
                ErrorKind::CrossDevice,
                "snapshots must be part of same dataset: only the part behind '@' can change",
            ));
        }
        pool.find_snapshot(from).await?;
        let head = pool.find(&fs)?;
        let heads = if recursive { pool.heads_below(&head.dir()) } else { vec![head] };
        let mut todo = Vec::new();
        for head in heads {
            let Some(snap) = pool.snapshot_of(&head, &old).await? else { continue };
            let full = format!("{}@{new}", head.name());
            check_component(&full, &new)?;
            if pool.snapshot_of(&head, &new).await?.is_some() {
                return Err(Error::new(ErrorKind::Exists, format!("dataset already exists: '{full}'")));
            }
            todo.push((head, snap));
        }
        pool.check_space(SpaceCheck::Reserved, todo.len() as u64)?;
        if trial {
            return Ok(());
        }
        for (head, snap) in todo {
            let renamed = async {
                let names = pool.mos().hold(ObjectId(head.phys().snapnames_zapobj)).await?;
                zap::remove(&names, old.as_bytes(), &tx).await?;
                zap::add_u64(&names, new.as_bytes(), snap.object.0, &tx).await?;
                pool.snapshots_change(&head.dir(), &tx).await
            };
            pool.fail_txg_on_error(renamed.await)?;
            let of = (format!("{}@{old}", head.name()), snap.object);
            pool.core().log_internal_ds("rename", of, format!("-> @{new}"), &tx);
            snap.set_snapname(&new);
        }
        Ok(())
    }

    /// Sets user properties of a snapshot; `None` removes one.
    pub async fn set_snapshot_props(
        self: &Rc<Self>,
        name: &str,
        values: Vec<(String, Option<PropValue>)>,
    ) -> Result<()> {
        let name = name.to_string();
        self.sync_task_again(move |pool, tx| -> LocalBoxFuture<'static, Result<()>> {
            let (name, values) = (name.clone(), values.clone());
            Box::pin(async move { pool.set_snapshot_props_in(&name, &values, false, &tx).await })
        })
        .await
    }

    /// Sets user properties of a snapshot that came with a stream (`$recvd`), which count where
    /// there is no local value.
    pub async fn set_received_snapshot_props(
        self: &Rc<Self>,
        name: &str,
        values: Vec<(String, PropValue)>,
    ) -> Result<()> {
        let name = name.to_string();
        self.sync_task_again(move |pool, tx| -> LocalBoxFuture<'static, Result<()>> {
            let (name, values) = (name.clone(), values.clone());
            Box::pin(async move {
                let snap = pool.find_snapshot(&name).await?;
                pool.check_space(SpaceCheck::ExtraReserved, 2)?;
                let stored = values.into_iter().filter(|(prop, _)| props::is_user_prop(prop));
                let stored: Vec<_> = stored.map(|(prop, value)| (format!("{prop}$recvd"), Some(value))).collect();
                pool.fail_txg_on_error(pool.write_snapshot_props(&snap, &stored, &tx).await)
            })
        })
        .await
    }

    /// `zfs inherit` of a user property of a snapshot: its local value goes, and one that was
    /// received does not count any more, or with `received` counts again.
    pub async fn inherit_snapshot_prop(self: &Rc<Self>, name: &str, prop: &str, received: bool) -> Result<()> {
        let (name, prop) = (name.to_string(), prop.to_string());
        self.sync_task_again(move |pool, tx| -> LocalBoxFuture<'static, Result<()>> {
            let (name, prop) = (name.clone(), prop.clone());
            Box::pin(async move {
                let snap = pool.find_snapshot(&name).await?;
                let stored = pool.stored_snapshot_props(&snap).await?;
                let hides = !received && stored.contains_key(&format!("{prop}$recvd"));
                pool.set_snapshot_props_in(&name, &[(prop.clone(), None)], false, &tx).await?;
                let mark = [(format!("{prop}$inherit"), hides.then_some(PropValue::Num(0)))];
                pool.fail_txg_on_error(pool.write_snapshot_props(&snap, &mark, &tx).await)
            })
        })
        .await
    }

    /// As [`DslPool::set_snapshot_props`], in a task that is running. With `trial` it only makes
    /// the checks.
    pub async fn set_snapshot_props_in(
        self: &Rc<Self>,
        name: &str,
        values: &[(String, Option<PropValue>)],
        trial: bool,
        tx: &Rc<Tx>,
    ) -> Result<()> {
        let pool = self;
        let snap = pool.find_snapshot(name).await?;
        pool.check_version(version::SNAP_PROPS, "pool must be upgraded to set properties of snapshots")?;
        if let Some((prop, _)) = values.iter().find(|(prop, _)| !props::is_user_prop(prop)) {
            return Err(Error::invalid(format!("this property can not be modified for snapshots: '{prop}'")));
        }
        pool.check_space(SpaceCheck::ExtraReserved, 2)?;
        if trial {
            return Ok(());
        }
        pool.fail_txg_on_error(pool.write_snapshot_props(&snap, values, tx).await)
    }

    /// Writes properties of a snapshot by the names that they are stored under.
    async fn write_snapshot_props(
        &self,
        snap: &Dataset,
        values: &[(String, Option<PropValue>)],
        tx: &Rc<Tx>,
    ) -> Result<()> {
        let dn = match snap.phys().props_obj {
            0 => {
                let dn = zap::create(self.mos(), ObjectType::DSL_PROPS, 0, tx).await?;
                snap.change(|p| p.props_obj = dn.object().0);
                dn
            }
            object => self.mos().hold(ObjectId(object)).await?,
        };
        for (prop, value) in values {
            match value {
                Some(PropValue::Num(n)) => zap::update_u64(&dn, prop.as_bytes(), *n, tx).await?,
                Some(PropValue::Text(t)) => zap::update_text(&dn, prop.as_bytes(), t, tx).await?,
                None => match zap::remove(&dn, prop.as_bytes(), tx).await {
                    Err(e) if e.kind() == ErrorKind::NotFound => {}
                    other => other?,
                },
            }
        }
        Ok(())
    }

    /// The user properties of a snapshot itself, each with whether it was received: a local value
    /// hides that.
    pub async fn snapshot_props(&self, snap: &Dataset) -> Result<BTreeMap<String, (PropValue, bool)>> {
        let stored = self.stored_snapshot_props(snap).await?;
        let mut out = BTreeMap::new();
        for (key, value) in &stored {
            match key.split_once('$') {
                None => out.insert(key.clone(), (value.clone(), false)),
                Some((name, "recvd"))
                    if !stored.contains_key(name) && !stored.contains_key(&format!("{name}$inherit")) =>
                {
                    out.insert(name.to_string(), (value.clone(), true))
                }
                Some(_) => None,
            };
        }
        Ok(out)
    }

    async fn stored_snapshot_props(&self, snap: &Dataset) -> Result<BTreeMap<String, PropValue>> {
        match snap.phys().props_obj {
            0 => Ok(Default::default()),
            object => self.read_props(ObjectId(object)).await,
        }
    }

    /// The holds of a snapshot in order of name.
    pub async fn holds(&self, snap: &Dataset) -> Result<Vec<Hold>> {
        let object = snap.phys().userrefs_obj;
        if object == 0 {
            return Ok(Vec::new());
        }
        let mut out = Vec::new();
        for entry in zap::list(&self.mos().hold(ObjectId(object)).await?).await? {
            let tag = String::from_utf8_lossy(&entry.name).into_owned();
            out.push(Hold { tag, time: entry.value.as_u64().unwrap_or(0) });
        }
        out.sort_by(|a, b| a.tag.cmp(&b.tag));
        Ok(out)
    }
    pub(crate) async fn hold_count(&self, snap: &Dataset) -> Result<u64> {
        match snap.phys().userrefs_obj {
            0 => Ok(0),
            object => zap::count(&self.mos().hold(ObjectId(object)).await?).await,
        }
    }

    /// The snapshots of a command: those named, with `recursive` also those of the same name below.
    async fn resolve_snapshots(&self, names: &[String], recursive: bool) -> Result<Vec<Rc<Dataset>>> {
        let mut out = Vec::new();
        for name in names {
            let first = self.find_snapshot(name).await;
            if !recursive {
                out.push(first?);
                continue;
            }
            let (fs, snap) = name.split_once('@').unwrap_or((name, ""));
            let before = out.len();
            for head in self.heads_below(&self.find_dir(fs)?) {
                out.extend(self.snapshot_of(&head, snap).await?);
            }
            if out.len() == before {
                first?;
            }
        }
        Ok(out)
    }

    /// Holds snapshots: they cannot be destroyed before the hold is released. All or none.
    pub async fn hold(self: &Rc<Self>, tag: &str, names: Vec<String>, recursive: bool) -> Result<()> {
        if tag.is_empty() || tag.len() > TAG_MAX {
            return Err(Error::invalid(format!("a hold's tag has 1 to {TAG_MAX} bytes")));
        }
        let tag = tag.to_string();
        self.sync_task_again(move |pool, tx| -> LocalBoxFuture<'static, Result<()>> {
            let (tag, names) = (tag.clone(), names.clone());
            Box::pin(async move {
                let snaps = pool.resolve_snapshots(&names, recursive).await?;
                pool.check_version(version::HOLDS, "pool must be upgraded")?;
                for snap in &snaps {
                    if pool.holds(snap).await?.iter().any(|h| h.tag == tag) {
                        let why = format!("cannot hold snapshot '{}': tag already exists on this dataset", snap.name());
                        return Err(Error::new(ErrorKind::Exists, why));
                    }
                }
                pool.check_space(SpaceCheck::Reserved, snaps.len() as u64)?;
                let now = pool.ctx().rt().wall_clock().secs.max(0) as u64;
                for snap in &snaps {
                    let held = async {
                        if snap.phys().userrefs_obj == 0 {
                            let dn = zap::create(pool.mos(), ObjectType::USERREFS, 0, &tx).await?;
                            snap.change(|p| p.userrefs_obj = dn.object().0);
                        }
                        let dn = pool.mos().hold(ObjectId(snap.phys().userrefs_obj)).await?;
                        zap::add_u64(&dn, tag.as_bytes(), now, &tx).await
                    };
                    pool.fail_txg_on_error(held.await)?;
                    let refs = pool.hold_count(snap).await?;
                    let text = format!("tag={tag} temp=0 refs={refs}");
                    pool.core().log_internal_ds("hold", (snap.name(), snap.object), text, &tx);
                }
                Ok(())
            })
        })
        .await
    }

    /// Releases holds; a snapshot marked for deferred destruction is destroyed with its last hold.
    pub async fn release(self: &Rc<Self>, tag: &str, names: Vec<String>, recursive: bool) -> Result<()> {
        let tag = tag.to_string();
        self.sync_task(move |pool, tx| -> LocalBoxFuture<'static, Result<()>> {
            Box::pin(async move {
                let snaps = pool.resolve_snapshots(&names, recursive).await?;
                let mut held = Vec::new();
                for snap in snaps {
                    if pool.holds(&snap).await?.iter().any(|h| h.tag == tag) {
                        held.push(snap);
                    } else if !recursive {
                        let why =
                            format!("cannot release hold from snapshot '{}': no such tag on this dataset", snap.name());
                        return Err(Error::not_found(why));
                    }
                }
                for snap in held {
                    let done = async {
                        let dn = pool.mos().hold(ObjectId(snap.phys().userrefs_obj)).await?;
                        zap::remove(&dn, tag.as_bytes(), &tx).await?;
                        pool.forget_temporary(snap.object, &tag, &tx).await?;
                        let text = format!("tag={tag} refs={}", pool.hold_count(&snap).await?);
                        pool.core().log_internal_ds("release", (snap.name(), snap.object), text, &tx);
                        pool.destroy_if_deferred(&snap, &tx).await
                    };
                    pool.fail_txg_on_error(done.await)?;
                }
                Ok(())
            })
        })
        .await
    }

    /// Destroys a snapshot marked for deferred destruction, if it has no holds or clones now.
    pub(crate) async fn destroy_if_deferred(&self, snap: &Rc<Dataset>, tx: &Tx) -> Result<()> {
        let p = snap.phys();
        let due = p.flags & DS_FLAG_DEFER_DESTROY != 0 && p.num_children <= 1 && self.hold_count(snap).await? == 0;
        if due { self.remove_snapshot(snap, tx).await } else { Ok(()) }
    }
}
