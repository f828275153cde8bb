//! Operations on snapshots, clones and bookmarks, and destroy, on the pool's engine thread.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::{Error, ErrorKind, Result};
use dsl::props::{DatasetKind, PropValue};
use dsl::{Dataset, check_name};

use crate::engine::{PoolEngine, Progress};
use crate::fs::dependents::{destroy_refusal, rollback_refusal};
use crate::fs::mounts::{self, Force, Unmounted};
use crate::fs::ops::{NewHow, check_not_partial, parse_props};
use crate::fs::owners::{check_no_defaults, take_limits};
use crate::fs::temp_props::TempProps;
use crate::view::{Destroyed, HoldView};

/// Snapshots destroyed in one txg at most.
const SNAPSHOTS_PER_TXG: usize = 500;

/// The datasets that a command destroys, in that order.
#[derive(Default)]
struct Plan {
    names: Vec<String>,
    seen: BTreeSet<String>,
}

impl Plan {
    fn push(&mut self, name: String) {
        self.names.push(name);
    }
}

impl PoolEngine {
    /// `zfs snapshot`: all of this pool in one txg.
    pub async fn snap_create(&self, names: Vec<String>, recursive: bool, given: &[(String, String)]) -> Result<()> {
        let _admin = self.admin.acquire(1).await;
        let props = given.iter().map(|(n, v)| (n.clone(), PropValue::Text(v.clone()))).collect();
        self.pool.dsl().snapshot(names, recursive, props).await
    }

    /// `zfs destroy`: returns the datasets that are, or with `dry_run` would be, destroyed.
    pub async fn destroy(&self, name: &str, how: DestroyHow, progress: &Progress) -> Result<Destroyed> {
        let _admin = self.admin.acquire(1).await;
        let what = || format!("cannot destroy '{name}'");
        if name.contains('#') {
            if how.dry_run {
                return Ok(Destroyed { names: vec![name.to_string()], reclaim: None });
            }
            self.pool.dsl().destroy_bookmark(name).await.map_err(|e| e.at(what()))?;
            return Ok(Destroyed { names: vec![name.to_string()], reclaim: None });
        }
        let mut plan = Plan::default();
        let mut reclaim = None;
        if let Some((fs, list)) = name.split_once('@') {
            self.find(fs)?;
            // OpenZFS takes -R of a snapshot as -r with clones.
            let recursive = how.recursive || how.clones;
            let snaps = self.resolve_snapspec(fs, list, recursive).await.map_err(|e| e.at(what()))?;
            if snaps.is_empty() {
                return Err(Error::not_found("could not find any snapshots to destroy; check snapshot names."));
            }
            let mut clones = Vec::new();
            for group in &snaps {
                for snap in group {
                    for clone in self.pool.dsl().clones_of(snap).await? {
                        clones.push(clone.name());
                    }
                }
            }
            if !clones.is_empty() && !how.clones && !how.defer {
                let mut refused = Vec::new();
                for snap in snaps.iter().flatten() {
                    let dependents = self.dependents(snap).await?;
                    refused.extend(destroy_refusal("snapshot", &snap.name(), false, &dependents));
                }
                let text: Vec<String> = refused.iter().map(Error::to_string).collect();
                return Err(Error::new(ErrorKind::Busy, text.join("\n")));
            }
            if how.clones {
                for clone in clones {
                    self.plan_fs(&clone, &mut plan).await.map_err(|e| e.at(what()))?;
                }
            }
            reclaim = Some(self.reclaimable(&snaps).await.unwrap_or(0));
            for snap in snaps.into_iter().flatten() {
                if plan.seen.insert(snap.name()) {
                    plan.push(snap.name());
                }
            }
        } else {
            let ds = self.find(name)?;
            let name = ds.name();
            let recursive = how.recursive || how.clones;
            let is_pool = ds.dir().parent().is_none();
            if is_pool && !recursive {
                let why = format!(
                    "operation does not apply to pools\nuse 'zfs destroy -r {name}' to destroy all datasets in the pool\nuse 'zpool destroy {name}' to destroy the pool itself"
                );
                return Err(Error::invalid(why).at(what()));
            }
            if !how.clones {
                let mut dependents = self.dependents(&ds).await?;
                // What an interrupted receive left goes with its file system.
                dependents.retain(|n| !n.contains('%'));
                if let Some(e) = destroy_refusal(self.kind_of(&ds).await, &name, recursive, &dependents) {
                    return Err(e);
                }
            }
            self.plan_fs(&name, &mut plan).await.map_err(|e| e.at(what()))?;
            if is_pool {
                plan.names.retain(|n| *n != name);
            }
        }
        if !how.dry_run {
            self.destroy_planned(&plan.names, how, progress).await?;
        }
        Ok(Destroyed { names: plan.names, reclaim })
    }

    /// Resolves a list `a,b%c` of snapshots of a file system, oldest first; also of those below if
    /// `recursive`.
    async fn resolve_snapspec(&self, fs: &str, list: &str, recursive: bool) -> Result<Vec<Vec<Rc<Dataset>>>> {
        let dsl = self.pool.dsl();
        let top = self.find(fs)?;
        let prefix = format!("{}/", top.name());
        let heads =
            dsl.all().into_iter().filter(|d| d.object == top.object || recursive && d.name().starts_with(&prefix));
        let mut out = Vec::new();
        for head in heads {
            let all = dsl.snapshots(&head).await?;
            let at = |name: &str| all.iter().position(|s| s.snapname() == name);
            let mut chosen = BTreeSet::new();
            for part in list.split(',') {
                match part.split_once('%') {
                    Some((from, to)) => {
                        let missing =
                            |n: &str| Error::not_found(format!("snapshot '{}@{n}' does not exist", head.name()));
                        let first = if from.is_empty() { Some(0) } else { at(from) };
                        let last = if to.is_empty() { all.len().checked_sub(1) } else { at(to) };
                        match (first, last) {
                            (Some(first), Some(last)) => chosen.extend(first..=last),
                            (None, _) if !recursive => return Err(missing(from)),
                            (_, None) if !recursive && !to.is_empty() => return Err(missing(to)),
                            _ => {}
                        }
                    }
                    None => chosen.extend(at(part)),
                }
            }
            let group: Vec<Rc<Dataset>> = chosen.into_iter().map(|i| all[i].clone()).collect();
            if !group.is_empty() {
                out.push(group);
            }
        }
        Ok(out)
    }

    /// Bytes that destroying these would free.
    async fn reclaimable(&self, groups: &[Vec<Rc<Dataset>>]) -> Result<u64> {
        let dsl = self.pool.dsl();
        let mut sum = 0;
        for group in groups {
            let mut start = 0;
            for i in 0..group.len() {
                let goes_on = group.get(i + 1).is_some_and(|n| n.phys().prev_snap_obj == group[i].object.0);
                if !goes_on {
                    sum += dsl.space_of_snapshots(&group[start], &group[i]).await?;
                    start = i + 1;
                }
            }
        }
        Ok(sum)
    }

    /// Adds a file system after its dependents.
    async fn plan_fs(&self, name: &str, plan: &mut Plan) -> Result<()> {
        let head = self.pool.dsl().find(name)?;
        let mut all = self.dependents(&head).await?;
        all.push(name.to_string());
        for name in all {
            if plan.seen.insert(name.clone()) {
                plan.push(name);
            }
        }
        Ok(())
    }

    /// Destroys these datasets in order. Errors name the dataset.
    async fn destroy_planned(&self, names: &[String], how: DestroyHow, progress: &Progress) -> Result<()> {
        let dsl = self.pool.dsl();
        let heads: Vec<String> = names.iter().filter(|n| !n.contains('@')).cloned().collect();
        self.close_volumes(names, how.force).await.map_err(|e| mounts::advise_force(e, "-f"))?;
        let unmounted = self.unmount_these(&heads, Force::asked(how.force)).await?;
        progress.begin("destroying", names.len() as u64);
        let mut gone: BTreeSet<&String> = BTreeSet::new();
        let mut at = 0;
        let mut result = Ok(());
        while at < names.len() && result.is_ok() {
            let run: Vec<String> =
                names[at..].iter().take_while(|n| n.contains('@')).take(SNAPSHOTS_PER_TXG).cloned().collect();
            if run.is_empty() {
                let name = &names[at];
                let is_volume = self.props_kind(&*dsl.find(name)?).await == DatasetKind::Volume;
                let place = if is_volume { None } else { self.own_mount_dir(&*dsl.find_dir(name)?) };
                result = dsl.destroy_fs(name).await.map_err(|e| e.at(format!("cannot destroy '{name}'")));
                if result.is_ok() {
                    gone.insert(name);
                    if let Some(place) = place {
                        mounts::remove_dir(place).await;
                    }
                }
                at += 1;
            } else {
                at += run.len();
                result = dsl.destroy_snapshots(run, how.defer).await;
            }
            progress.step();
        }
        // File systems that still exist, and others that were mounted within destroyed ones.
        let again: Vec<Unmounted> = unmounted.into_iter().filter(|u| !gone.contains(&u.name)).collect();
        self.mount_again(&again).await;
        result
    }

    /// What a rollback destroys: later snapshots, clones of them, and bookmarks.
    pub(crate) async fn rolled_over(&self, name: &str, how: DestroyHow) -> Result<Vec<String>> {
        if !how.recursive && !how.clones {
            return Ok(Vec::new());
        }
        let dsl = self.pool.dsl();
        let head = self.find(name.split('@').next().unwrap_or(name))?;
        let at = dsl.find_snapshot(name).await?.phys().creation_txg;
        let mut plan = Plan::default();
        for snap in dsl.snapshots(&head).await?.into_iter().filter(|s| s.phys().creation_txg > at) {
            if how.clones {
                for clone in dsl.clones_of(&snap).await? {
                    self.plan_fs(&clone.name(), &mut plan).await?;
                }
            }
            plan.push(snap.name());
        }
        let marks = dsl.bookmarks(&head).await?.into_iter().filter(|m| m.creation_txg() > at);
        plan.names.extend(marks.map(|m| format!("{}#{}", head.name(), m.name)));
        Ok(plan.names)
    }

    /// `zfs rollback`.
    pub async fn rollback(&self, name: &str, how: DestroyHow, progress: &Progress) -> Result<()> {
        let _admin = self.admin.acquire(1).await;
        let what = || format!("cannot rollback to '{name}'");
        let dsl = self.pool.dsl();
        let (fs, _) = name
            .split_once('@')
            .ok_or_else(|| Error::invalid(format!("cannot open '{name}': missing '@' delimiter in snapshot name")))?;
        let head = self.find(fs)?;
        let snap = dsl.find_snapshot(name).await?;
        let at = snap.phys().creation_txg;
        let newer: Vec<Rc<Dataset>> =
            dsl.snapshots(&head).await?.into_iter().filter(|s| s.phys().creation_txg > at).collect();
        let marks: Vec<String> = dsl
            .bookmarks(&head)
            .await?
            .into_iter()
            .filter(|m| m.creation_txg() > at)
            .map(|m| format!("{fs}#{}", m.name))
            .collect();
        if !how.recursive && !how.clones && (!newer.is_empty() || !marks.is_empty()) {
            let names: Vec<String> = newer.iter().map(|s| s.name()).chain(marks).collect();
            return Err(rollback_refusal(name, false, &names));
        }
        let mut plan = Plan::default();
        let mut clones = Vec::new();
        for snap in &newer {
            for clone in dsl.clones_of(snap).await? {
                clones.push(clone.name());
            }
        }
        if !clones.is_empty() && !how.clones {
            let mut names = Vec::new();
            for snap in &newer {
                names.extend(self.dependents(snap).await?);
            }
            return Err(rollback_refusal(name, true, &names));
        }
        for clone in clones {
            self.plan_fs(&clone, &mut plan).await.map_err(|e| e.at(what()))?;
        }
        plan.names.extend(newer.iter().map(|s| s.name()));
        // First: this finds a dataset in use before anything is destroyed.
        self.close_volumes(&[head.name()], how.force).await.map_err(|e| e.at(what()))?;
        let mut unmounted = Vec::new();
        if !self.can_suspend(&head.name()) {
            let force = Force::full(how.force);
            unmounted = self.unmount_these(&[head.name()], force).await.map_err(|e| e.at(what()))?;
        }
        drop(newer);
        let done = async {
            self.destroy_planned(&plan.names, how, progress).await?;
            for mark in marks {
                dsl.destroy_bookmark(&mark).await?;
            }
            self.while_suspended(&head.name(), dsl.rollback(name)).await
        };
        let done = done.await;
        let errors = self.mount_again(&unmounted).await;
        done.map_err(|e| e.at(what()))?;
        errors.into_iter().next().map_or(Ok(()), |e| Err(e.at("the file system is rolled back")))
    }

    /// `zfs clone`.
    /// The answer is a list of warnings.
    pub async fn clone_fs(
        &self,
        snap: &str,
        name: &str,
        given: &[(String, String)],
        how: NewHow,
    ) -> Result<Vec<String>> {
        let _admin = self.admin.acquire(1).await;
        self.mounts.take_notices();
        self.clone_inner(snap, name, given, how).await?;
        self.show_volumes().await;
        Ok(self.mounts.take_notices())
    }

    async fn clone_inner(&self, snap: &str, name: &str, given: &[(String, String)], how: NewHow) -> Result<()> {
        let what = || format!("cannot create '{name}'");
        check_name(name).map_err(|e| e.at(what()))?;
        let dsl = self.pool.dsl();
        if dsl.find(name).is_ok() {
            if how.parents {
                return Ok(());
            }
            return Err(Error::new(ErrorKind::Exists, "dataset already exists").at(what()));
        }
        let mut kind = DatasetKind::Filesystem;
        let mut from = None;
        if snap.contains('@') {
            kind = self.props_kind(&*self.find(snap.split('@').next().unwrap_or(""))?).await;
            from = Some(dsl.find_snapshot(snap).await?);
        }
        // What can be written is of the newest version, and so is its clone.
        let is_newest = |p: &&(String, String)| p.0 == "version" && matches!(p.1.as_str(), "5" | "current");
        let mut given: Vec<_> = given.iter().filter(|p| !is_newest(p)).cloned().collect();
        check_no_defaults(&given).map_err(|e| e.at(what()))?;
        let limits = take_limits(&mut given, kind).map_err(|e| e.at(what()))?;
        let mut props = parse_props(&given, kind, false).map_err(|e| e.at(what()))?;
        if kind == DatasetKind::Filesystem {
            self.check_future_place(name, &props).await.map_err(|e| e.at(what()))?;
        } else if let Some(from) = from {
            if props.iter().any(|(n, _)| n == "volsize") {
                let why = "'volsize' of a clone is that of its snapshot: set it afterwards";
                return Err(Error::invalid(why).at(what()));
            }
            self.resolve_auto(&from, &mut props).await.map_err(|e| e.at(what()))?;
        }
        if how.parents
            && let Some((parent, _)) = name.rsplit_once('/')
            && dsl.find(parent).is_err()
        {
            let above =
                NewHow { volume: None, parents: true, no_mount: how.maker.leaves_unmounted(), maker: how.maker };
            self.create_inner(parent, Vec::new(), above, None).await.map_err(|e| e.at(what()))?;
        }
        let ds = dsl.clone_snapshot_by(how.maker.uid, snap, name, props).await.map_err(|e| e.at(what()))?;
        // What was received redacted is mounted only where that is asked for.
        let is_whole = ds.redaction().is_none() || self.mounts_redacted.get();
        let mountable = !how.no_mount
            && is_whole
            && ds.dir().prop("canmount").0.num() == 1
            && matches!(self.mount_point(&ds.dir()), mounts::MountPoint::Path(_))
            && ds.objset().await?.os_type() == ondisk::objset::ObjsetType::Zfs;
        if mountable && mounts::usable().is_ok() {
            self.mount(&ds, TempProps::default())
                .await
                .map_err(|e| e.at(format!("'{name}' is made but not mounted")))?;
        }
        self.set_limits(&ds, &limits).await.map_err(|e| e.at(format!("'{name}' is made, without its limits")))
    }

    /// `zfs promote`.
    pub async fn promote(&self, name: &str) -> Result<()> {
        let _admin = self.admin.acquire(1).await;
        check_not_partial(name).map_err(|e| e.at(format!("cannot promote '{name}'")))?;
        let ds = self.find(name)?;
        self.pool.dsl().promote(&ds.name()).await
    }

    /// `zfs rename` of a snapshot.
    pub async fn snap_rename(&self, from: &str, to: &str, recursive: bool) -> Result<()> {
        let _admin = self.admin.acquire(1).await;
        let to = match to.strip_prefix('@') {
            Some(last) => format!("{}@{last}", from.split('@').next().unwrap_or("")),
            None => to.to_string(),
        };
        self.pool.dsl().find_snapshot(from).await?;
        let done = self.pool.dsl().rename_snapshot(from, &to, recursive).await;
        done.map_err(|e| e.at(format!("cannot rename '{from}'")))?;
        self.mounts.renamed(from, &to);
        Ok(())
    }

    /// `zfs hold` and `zfs release`: all at once if possible, else one by one; returns the errors.
    pub async fn hold(&self, tag: &str, names: Vec<String>, recursive: bool, release: bool) -> Vec<Error> {
        let _admin = self.admin.acquire(1).await;
        let dsl = self.pool.dsl();
        let change = |names: Vec<String>| async move {
            if release { dsl.release(tag, names, recursive).await } else { dsl.hold(tag, names, recursive).await }
        };
        match change(names.clone()).await {
            Err(e) if names.len() < 2 => return vec![e],
            Err(_) => {}
            Ok(()) => return Vec::new(),
        }
        let mut errors = Vec::new();
        for name in names {
            errors.extend(change(vec![name]).await.err());
        }
        errors
    }

    /// `zfs holds`.
    pub async fn holds(&self, names: &[String], recursive: bool) -> Result<Vec<HoldView>> {
        let dsl = self.pool.dsl();
        let mut out = Vec::new();
        for name in names {
            let (fs, snap) =
                name.split_once('@').ok_or_else(|| Error::invalid(format!("'{name}' is not a snapshot")))?;
            let groups = self.resolve_snapspec(fs, snap, recursive).await?;
            if groups.is_empty() {
                return Err(Error::not_found(format!("cannot open '{name}': dataset does not exist")));
            }
            for snap in groups.into_iter().flatten() {
                for hold in dsl.holds(&snap).await? {
                    out.push(HoldView { name: snap.name(), tag: hold.tag, time: hold.time });
                }
            }
        }
        Ok(out)
    }

    /// `zfs bookmark`.
    pub async fn bookmark(&self, from: &str, to: &str) -> Result<()> {
        let _admin = self.admin.acquire(1).await;
        let fs = from.split(['@', '#']).next().unwrap_or("");
        let of = |n: &str, sign: char| match n.strip_prefix(sign) {
            Some(last) => format!("{fs}{sign}{last}"),
            None => n.to_string(),
        };
        let (from, to) = (from.to_string(), of(to, '#'));
        if from.contains('@') {
            self.pool.dsl().find_snapshot(&from).await?;
        }
        self.pool.dsl().create_bookmark(&from, &to).await.map_err(|e| e.at(format!("cannot create bookmark '{to}'")))
    }

    /// `zfs redact`. It may take long, so other commands may change the pool meanwhile.
    pub async fn redact(&self, snapshot: &str, book: &str, by: &[String]) -> Result<()> {
        self.pool.dsl().redact(snapshot, book, by).await
    }

    /// `zfs set` and `zfs inherit` of a user property of a snapshot.
    pub async fn snap_set(&self, name: &str, values: &BTreeMap<String, Option<String>>) -> Result<()> {
        let _admin = self.admin.acquire(1).await;
        self.pool.dsl().find_snapshot(name).await?;
        let values = values.iter().map(|(n, v)| (n.clone(), v.clone().map(PropValue::Text))).collect();
        let done = self.pool.dsl().set_snapshot_props(name, values).await;
        done.map_err(|e| e.at(format!("cannot set property for '{name}'")))
    }
}

/// Options of a destroy.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DestroyHow {
    /// And everything below.
    pub recursive: bool,
    /// And clones, wherever they are.
    pub clones: bool,
    /// Defer the destruction of snapshots with holds or clones.
    pub defer: bool,
    /// Unmount file systems in use.
    pub force: bool,
    /// Only list what would be destroyed.
    pub dry_run: bool,
}
