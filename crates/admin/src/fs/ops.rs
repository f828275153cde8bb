//! Operations on file systems: create, set, inherit, rename, mount, unmount, on the pool's engine
//! thread.
//!
//! Each holds the pool's `admin` lock while it runs. Steps of mounting that can fail (a missing
//! front end, a folder that cannot be made, a file system in use) come before the change of the
//! pool; if the change fails, the file systems are mounted again.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use base::{Error, ErrorKind, Result};
use dsl::props::{self, DatasetKind, PropKind, PropValue};
use dsl::{Dataset, Dir, NewHead, check_name};
use ondisk::objset::ObjsetType;

use crate::engine::{PoolEngine, front_end};
use crate::fs::files::{self, OnceProps};
use crate::fs::keys::take_crypt;
use crate::fs::mounts::{self, Force, MountPoint, Unmounted, make_dirs, remove_dirs};
use crate::fs::owners::{no_default, take_limits};
use crate::fs::places::{check_real_place, path_blocking};
use crate::fs::shares::{Protocol, nfs};
use crate::fs::temp_props::{MountHow, TempProps};
use crate::fs::volumes::{AUTO, NewVolume};
use crate::request::{MountAt, Secret};

/// Properties that apply to a mounted file system or an open volume at once.
const MOUNT_PROPS: &[&str] =
    &["readonly", "atime", "relatime", "exec", "setuid", "devices", "xattr", "acltype", "sync", "logbias", "longname"];

/// `canmount=noauto`.
const CANMOUNT_NOAUTO: u64 = 2;

/// Who makes a dataset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Maker {
    /// The user, who gets what is granted to creators.
    pub uid: u32,
    /// User and group that the root folder of a new file system belongs to; none: those of the
    /// daemon. It is mounted in that case only.
    pub owner: Option<(u32, u32)>,
}

impl Maker {
    /// Whether file systems that it makes are left to be mounted by the owner of the daemon.
    pub(crate) fn leaves_unmounted(self) -> bool {
        self.owner.is_some()
    }
}

/// What a new dataset is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewHow {
    /// A volume; none: a file system.
    pub volume: Option<NewVolume>,
    /// Create missing parents as well.
    pub parents: bool,
    /// Leave it unmounted.
    pub no_mount: bool,
    /// Who makes it.
    pub maker: Maker,
}

/// How a dataset is renamed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RenameHow {
    /// Create missing parents.
    pub parents: bool,
    /// Leave mounts where they are.
    pub no_remount: bool,
    /// Unmount file systems in use.
    pub force: bool,
    /// Who makes the parents.
    pub maker: Maker,
}

/// Refuses the name of what a receive has not finished, which is no name, as in OpenZFS.
pub(super) fn check_not_partial(name: &str) -> Result<()> {
    match name.split('/').any(|part| part.starts_with('%')) {
        true => Err(Error::invalid(format!("invalid character '%' in name '{name}'"))),
        false => Ok(()),
    }
}

/// Whether the value is valid, for share properties; true for others.
fn is_share(name: &str, value: &str) -> bool {
    match name {
        "sharenfs" => nfs::is_valid(value),
        "sharesmb" => matches!(value, "on" | "off"),
        _ => true,
    }
}

/// Parses and checks properties of a file system or volume.
pub fn parse_props(given: &[(String, String)], of: DatasetKind, creating: bool) -> Result<Vec<(String, PropValue)>> {
    let mut out: Vec<(String, PropValue)> = Vec::new();
    for (name, text) in given {
        let Some(known) = props::find(name) else {
            if !props::is_user_prop(name) {
                return Err(Error::invalid(format!("invalid property '{name}'")));
            }
            if text.len() >= 8192 {
                return Err(Error::invalid(format!("'{name}' is too long: its value has more than 8191 bytes")));
            }
            out.push((name.clone(), PropValue::Text(text.clone())));
            continue;
        };
        if props::is_default_quota(known.name) {
            return Err(no_default(known.name));
        }
        if !known.applies_to(of) {
            return Err(Error::invalid(format!("'{}' does not apply to datasets of this type", known.name)));
        }
        match known.kind {
            PropKind::ReadOnly => {
                return Err(Error::new(ErrorKind::ReadOnly, format!("'{}' is readonly", known.name)));
            }
            PropKind::Once if !creating => {
                let why = format!("'{}' is readonly: it can be set at creation time only", known.name);
                return Err(Error::new(ErrorKind::ReadOnly, why));
            }
            _ => {}
        }
        if known.name == "mountpoint" {
            mounts::check_mountpoint(text)?;
        }
        if !is_share(known.name, text) {
            return Err(Error::invalid(format!("'{}' cannot be set to invalid options: '{text}'", known.name)));
        }
        let value = match (known.name, text.as_str()) {
            ("version", "current") => PropValue::Num(5),
            ("refreservation", "auto") if of == DatasetKind::Volume => PropValue::Num(AUTO),
            _ => known.parse(text)?,
        };
        out.retain(|(n, _)| n != known.name);
        out.push((known.name.to_string(), value));
    }
    Ok(out)
}

/// Datasets of a directory and all below it, parents first.
fn below(dir: &Rc<Dir>) -> Vec<Rc<Dir>> {
    let mut out = vec![dir.clone()];
    let mut at = 0;
    while at < out.len() {
        out.extend(out[at].children().into_iter().filter(|c| !c.name().starts_with('$')));
        at += 1;
    }
    out
}

/// Datasets whose value of `prop` changes with that of `dir`.
fn affected(dir: &Rc<Dir>, prop: &str) -> Vec<String> {
    let inherits = props::find(prop).is_none_or(|p| p.inheritable());
    fn walk(dir: &Rc<Dir>, prop: &str, out: &mut Vec<String>) {
        for child in dir.children().into_iter().filter(|c| !c.name().starts_with('$')) {
            if !child.local_props().contains_key(prop) {
                out.push(child.full_name());
                walk(&child, prop, out);
            }
        }
    }
    let mut out = vec![dir.full_name()];
    if inherits {
        walk(dir, prop, &mut out);
    }
    out
}

impl PoolEngine {
    pub(crate) fn find(&self, name: &str) -> Result<Rc<Dataset>> {
        let name = self.resolve(name)?;
        self.pool
            .dsl()
            .find(&name)
            .map_err(|_| Error::not_found(format!("cannot open '{name}': dataset does not exist")))
    }

    /// `zfs create`. The answer is a list of warnings.
    pub async fn fs_create(
        &self,
        name: &str,
        given: Vec<(String, String)>,
        how: NewHow,
        key: Option<Secret>,
    ) -> Result<Vec<String>> {
        let _admin = self.admin.acquire(1).await;
        self.mounts.take_notices();
        let created = self.create_inner(name, given, how, key).await;
        created.map_err(|e| e.at(format!("cannot create '{name}'")))?;
        if how.volume.is_some() {
            self.show_volumes().await;
        }
        Ok(self.mounts.take_notices())
    }

    pub(crate) async fn create_inner(
        &self,
        name: &str,
        mut given: Vec<(String, String)>,
        how: NewHow,
        key: Option<Secret>,
    ) -> Result<()> {
        let dsl = self.pool.dsl();
        dsl.check_new_name(name)?;
        if let Ok(there) = dsl.find(name) {
            let is_volume = self.props_kind(&there).await == DatasetKind::Volume;
            if how.parents && is_volume == how.volume.is_some() {
                return Ok(());
            }
            return Err(Error::new(ErrorKind::Exists, "dataset already exists"));
        }
        let crypt = take_crypt(&mut given, key)?;
        let kind = if how.volume.is_some() { DatasetKind::Volume } else { DatasetKind::Filesystem };
        let limits = take_limits(&mut given, kind)?;
        let mut props = parse_props(&given, kind, true)?;
        let missing = self.missing_parents(name);
        if !missing.is_empty() && !how.parents {
            return Err(Error::not_found("parent does not exist: use -p to create it as well"));
        }
        // What is made takes after the nearest parent that exists.
        let above = missing.first().map_or(name, String::as_str).rsplit_once('/').map_or(name, |(above, _)| above);
        let above = dsl.find(above).map_err(|_| Error::not_found("parent does not exist"))?;
        let usual = OnceProps::default().below(&above).await?;
        let init = match how.volume {
            Some(volume) => self.plan_volume(volume, &mut props)?,
            None => {
                let once = OnceProps::take(&mut props)?;
                once.check(self.pool.version())?;
                files::init_root(self.pool.rt(), once.below(&above).await?, how.maker.owner)
            }
        };
        // A volume is mounted nowhere, but file systems made above it are.
        let (innermost, innermost_props) = match how.volume {
            Some(_) => (missing.last().map(String::as_str), &[][..]),
            None => (Some(name), &props[..]),
        };
        let mut path = None;
        if let Some(fs) = innermost {
            self.check_future_place(fs, innermost_props).await?;
            path = self.future_mount_point(fs, innermost_props);
        }
        let made = match &path {
            Some(path) if !how.no_mount => {
                mounts::usable()?;
                let there = path.clone();
                path_blocking(self.pool.rt(), path, move || make_dirs(&there)).await??
            }
            _ => Vec::new(),
        };
        let mut created: Vec<String> = Vec::new();
        let result = async {
            for parent in missing {
                let init = files::init_root(self.pool.rt(), usual, how.maker.owner);
                dsl.create_dataset(&parent, NewHead::plain_fs(how.maker.uid, init)).await?;
                created.push(parent);
            }
            let os_type = if how.volume.is_some() { ObjsetType::Zvol } else { ObjsetType::Zfs };
            dsl.create_dataset(name, NewHead { os_type, props, crypt, creator: how.maker.uid, init }).await?;
            created.push(name.to_string());
            // Parents may be mounted where the new one is not to be.
            if !how.no_mount && (path.is_some() || mounts::usable().is_ok()) {
                self.mount_new(&created).await?;
            }
            self.set_limits(&dsl.find(name)?, &limits).await
        };
        if let Err(e) = result.await {
            for fs in created.iter().rev() {
                // Errors of the clean-up are ignored: the first error counts.
                let _ = self.unmount(fs, Force::Full).await;
                let _ = dsl.destroy_fs(fs).await;
            }
            host::blocking(move || remove_dirs(&made)).await?;
            return Err(e);
        }
        Ok(())
    }

    /// The parents of a new dataset that do not exist yet, outermost first.
    fn missing_parents(&self, name: &str) -> Vec<String> {
        let ends = name.match_indices('/').map(|(i, _)| &name[..i]);
        ends.filter(|above| self.pool.dsl().find(above).is_err()).map(str::to_string).collect()
    }

    /// Mounts those of these new datasets that are mounted automatically.
    async fn mount_new(&self, created: &[String]) -> Result<()> {
        for name in created {
            let ds = self.pool.dsl().find(name)?;
            let mountable = ds.dir().prop("canmount").0.num() == 1
                && matches!(self.mount_point(&ds.dir()), MountPoint::Path(_))
                && self.props_kind(&ds).await == DatasetKind::Filesystem;
            if mountable {
                self.mount(&ds, TempProps::default()).await?;
            }
        }
        Ok(())
    }

    /// Refuses properties of a new file system that would mount it over a folder of the system.
    pub(crate) async fn check_future_place(&self, name: &str, props: &[(String, PropValue)]) -> Result<()> {
        match self.future_mount_point(name, props) {
            Some(path) => self.check_mount_place(path).await,
            None => Ok(()),
        }
    }

    async fn check_mount_place(&self, path: PathBuf) -> Result<()> {
        let there = path.clone();
        path_blocking(self.pool.rt(), &path, move || check_real_place(&there)).await?
    }

    /// The automatic mount point of a file system that does not exist yet.
    fn future_mount_point(&self, name: &str, props: &[(String, PropValue)]) -> Option<PathBuf> {
        let own = |wanted: &str| props.iter().find(|(n, _)| n == wanted).map(|(_, v)| v);
        if own("canmount").is_some_and(|v| v.num() != 1) {
            return None;
        }
        let value = match own("mountpoint") {
            Some(value) => value.text().to_string(),
            None => {
                let mut above = name;
                let dir = loop {
                    above = above.rsplit_once('/')?.0;
                    if let Ok(dir) = self.pool.dsl().find_dir(above) {
                        break dir;
                    }
                };
                let value = dir.prop("mountpoint").0.text().to_string();
                if !value.starts_with('/') {
                    return None;
                }
                format!("{}{}", value.trim_end_matches('/'), &name[above.len()..])
            }
        };
        match mounts::mount_point(&value, self.altroot.as_deref()) {
            MountPoint::Path(path) => Some(path),
            _ => None,
        }
    }

    /// `zfs set`. The answer is a list of warnings. `no_remount`: leave mounts and shares as they
    /// are.
    pub async fn fs_set(&self, name: &str, given: &[(String, String)], no_remount: bool) -> Result<Vec<String>> {
        let _admin = self.admin.acquire(1).await;
        self.mounts.take_notices();
        self.set_inner(name, given, no_remount).await?;
        Ok(self.mounts.take_notices())
    }

    pub(crate) async fn set_inner(&self, name: &str, given: &[(String, String)], no_remount: bool) -> Result<()> {
        let ds = self.find(name)?;
        let kind = self.props_kind(&ds).await;
        let cannot = |e: Error| e.at(format!("cannot set property for '{name}'"));
        let mut given = given.to_vec();
        let limits = take_limits(&mut given, kind).map_err(cannot)?;
        let version = if kind == DatasetKind::Filesystem { files::take_version(&mut given) } else { Ok(None) };
        let version = version.map_err(cannot)?;
        let values = parse_props(&given, kind, false).map_err(cannot)?;
        // A mounted file system stays so, unless it is not to be mounted at all.
        let stays = |(n, v): &&(String, PropValue)| n == "canmount" && v.num() != 0 && self.mounts.is_open(&ds.name());
        let left =
            |(n, _): &&(String, PropValue)| no_remount && matches!(n.as_str(), "mountpoint" | "sharenfs" | "sharesmb");
        let names = values.iter().filter(|p| !stays(p) && !left(p)).map(|(n, _)| n.clone());
        let names: Vec<String> = names.collect();
        for (_, value) in values.iter().filter(|(n, _)| n == "mountpoint") {
            if let MountPoint::Path(path) = mounts::mount_point(value.text(), self.altroot.as_deref()) {
                let checked = self.check_mount_place(path).await;
                checked.map_err(cannot)?;
            }
        }
        self.check_limits(&ds, &limits).await.map_err(cannot)?;
        if let Some(version) = version {
            self.set_version(&ds, version).await.map_err(cannot)?;
        }
        if values.is_empty() {
            return self.set_limits(&ds, &limits).await.map_err(cannot);
        }
        let dsl = self.pool.dsl().clone();
        let target = ds.name();
        let set = async {
            match kind {
                DatasetKind::Volume => self.set_volume_props(&ds, values).await,
                _ => dsl.set_props(&target, values).await,
            }
        };
        self.change_props(&ds, &names, set).await.map_err(cannot)?;
        self.set_limits(&ds, &limits).await.map_err(cannot)
    }

    /// `zfs inherit`. The answer is a list of warnings.
    pub async fn fs_inherit(&self, name: &str, prop: &str, recursive: bool, received: bool) -> Result<Vec<String>> {
        let _admin = self.admin.acquire(1).await;
        self.mounts.take_notices();
        self.inherit_inner(name, prop, recursive, received).await?;
        Ok(self.mounts.take_notices())
    }

    async fn inherit_inner(&self, name: &str, prop: &str, recursive: bool, received: bool) -> Result<()> {
        let prop = props::find(prop).map_or(prop, |p| p.name).to_string();
        if name.contains('@') {
            let dsl = self.pool.dsl();
            self.find(name.split('@').next().unwrap_or(""))?;
            dsl.find_snapshot(name).await?;
            let done = dsl.inherit_snapshot_prop(name, &prop, received).await;
            return done.map_err(|e| e.at(format!("cannot inherit {prop} for '{name}'")));
        }
        let ds = self.find(name)?;
        let all: Vec<String> =
            if recursive { below(&ds.dir()).iter().map(|d| d.full_name()).collect() } else { vec![ds.name()] };
        for target in all {
            let ds = self.pool.dsl().find(&target)?;
            if recursive && props::is_user_prop(&prop) {
                self.drop_from_snapshots(&ds, &prop, received).await?;
            }
            let own = ds.dir().local_props();
            let has = |name: &str| own.contains_key(name);
            if recursive && !has(&prop) && !has(&format!("{prop}$recvd")) {
                continue;
            }
            let dsl = self.pool.dsl().clone();
            let (name, one) = (target.clone(), prop.clone());
            self.change_props(
                &ds,
                std::slice::from_ref(&prop),
                async move { dsl.inherit(&name, &one, received).await },
            )
            .await
            .map_err(|e| e.at(format!("cannot inherit {prop} for '{target}'")))?;
        }
        Ok(())
    }

    /// Removes a user property from all snapshots of `ds`.
    async fn drop_from_snapshots(&self, ds: &Rc<Dataset>, prop: &str, received: bool) -> Result<()> {
        let dsl = self.pool.dsl();
        for snap in dsl.snapshots(ds).await? {
            if received || dsl.snapshot_props(&snap).await?.contains_key(prop) {
                dsl.inherit_snapshot_prop(&snap.name(), prop, received).await?;
            }
        }
        Ok(())
    }

    /// Runs `change`, which changes these properties of `ds`, and moves or refreshes the affected
    /// mounts.
    pub(super) async fn change_props(
        &self,
        ds: &Rc<Dataset>,
        names: &[String],
        change: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        let has = |n: &str| names.iter().any(|m| m == n);
        if has("mountpoint") || has("canmount") {
            let prop = if has("mountpoint") { "mountpoint" } else { "canmount" };
            return self.change_place(ds, prop, change).await;
        }
        change.await?;
        if has("volmode") || has("snapdev") {
            self.show_volumes().await;
        }
        if has("snapdir") {
            affected(&ds.dir(), "snapdir").iter().for_each(|name| self.mounts.root_changed(name));
        }
        let mut touched: Vec<String> = Vec::new();
        for prop in names.iter().filter(|n| MOUNT_PROPS.contains(&n.as_str())) {
            for name in affected(&ds.dir(), prop) {
                // The new value replaces a temporary one.
                self.mounts.change_temp(&name, |temp| temp.clear(prop));
                touched.push(name);
            }
        }
        let shared: Vec<Protocol> = Protocol::ALL.iter().copied().filter(|p| has(p.prop())).collect();
        if !shared.is_empty() {
            let names: BTreeSet<String> = shared.iter().flat_map(|p| affected(&ds.dir(), p.prop())).collect();
            let names: Vec<String> = names.into_iter().collect();
            self.share_these(&names, &shared).await;
        }
        touched.sort();
        touched.dedup();
        for name in touched {
            let ds = self.pool.dsl().find(&name)?;
            self.volumes.refresh(&ds);
            if self.refresh_mount(&ds) {
                if has("acltype") {
                    self.warn_of_acltype(&ds);
                }
            } else {
                let again = self.unmount_these(std::slice::from_ref(&name), Force::No).await.map_err(|e| {
                    e.at("the property is set but takes effect only when the file system is mounted anew")
                })?;
                if let Some(e) = self.mount_again(&again).await.into_iter().next() {
                    return Err(e);
                }
            }
        }
        Ok(())
    }

    /// A change of `mountpoint` or `canmount`: unmount, change, mount at the new place.
    async fn change_place(&self, ds: &Rc<Dataset>, prop: &str, change: impl Future<Output = Result<()>>) -> Result<()> {
        let names = affected(&ds.dir(), prop);
        let had_path = matches!(self.mount_point(&ds.dir()), MountPoint::Path(_));
        let dirs: Vec<Rc<Dir>> = names.iter().filter_map(|n| self.pool.dsl().find_dir(n).ok()).collect();
        let unmounted = self.unmount_these(&names, Force::No).await?;
        if let Err(e) = change.await {
            self.mount_again(&unmounted).await;
            return Err(e);
        }
        drop(dirs);
        let mut errors = Vec::new();
        for Unmounted { name, temp, .. } in &unmounted {
            let ds = self.pool.dsl().find(name)?;
            let mountable =
                ds.dir().prop("canmount").0.num() != 0 && matches!(self.mount_point(&ds.dir()), MountPoint::Path(_));
            if mountable {
                errors.extend(self.mount(&ds, *temp).await.err());
            }
        }
        // File systems that had no mount point or canmount=off before are mounted as at an import.
        let newly = !had_path || prop == "canmount";
        if newly && unmounted.is_empty() && mounts::usable().is_ok() {
            for (_, name) in self.places_to_mount(TempProps::default()).await {
                if names.contains(&name) {
                    errors.extend(self.mount(&self.pool.dsl().find(&name)?, TempProps::default()).await.err());
                }
            }
        }
        match errors.into_iter().next() {
            Some(e) => Err(e.at("the property is set")),
            None => Ok(()),
        }
    }

    /// `zfs rename`.
    pub async fn fs_rename(&self, from: &str, to: &str, how: RenameHow) -> Result<()> {
        let _admin = self.admin.acquire(1).await;
        let ds = self.find(from)?;
        self.rename_inner(&ds, to, how).await.map_err(|e| e.at(format!("cannot rename '{from}'")))
    }

    async fn rename_inner(
        &self,
        ds: &Rc<Dataset>,
        to: &str,
        RenameHow { parents, no_remount, force, maker }: RenameHow,
    ) -> Result<()> {
        let from = ds.name();
        check_not_partial(&from)?;
        check_name(to)?;
        let dsl = self.pool.dsl();
        if to.split('/').next() != Some(self.pool.name().as_str()) {
            return Err(Error::new(ErrorKind::CrossDevice, "datasets must be within same pool"));
        }
        if dsl.find(to).is_ok() {
            return Err(Error::new(ErrorKind::Exists, format!("dataset already exists: '{to}'")));
        }
        if ds.dir().parent().is_none() {
            return Err(Error::invalid(
                "it is the root of a pool: a pool is renamed by importing it under another name",
            ));
        }
        let mut created: Vec<String> = Vec::new();
        let names: Vec<String> = below(&ds.dir()).iter().map(|d| d.full_name()).collect();
        let dir = ds.dir();
        let old_place = match self.props_kind(ds).await {
            DatasetKind::Volume => MountPoint::None,
            _ => self.mount_point(&dir),
        };
        let renamed = async {
            if parents && let Some((parent, _)) = to.rsplit_once('/') {
                let ends = parent.match_indices('/').map(|(i, _)| i).chain([parent.len()]);
                for above in ends.map(|i| &parent[..i]) {
                    if dsl.find(above).is_err() {
                        let parent = above.rsplit_once('/').map_or(above, |(parent, _)| parent);
                        let usual = OnceProps::default().below(&*dsl.find(parent)?).await?;
                        let init = files::init_root(self.pool.rt(), usual, maker.owner);
                        dsl.create_dataset(above, NewHead::plain_fs(maker.uid, init)).await?;
                        created.push(above.to_string());
                    }
                }
            }
            // With -u mounts stay where they are, under the new name.
            let unmounted =
                if no_remount { Vec::new() } else { self.unmount_these(&names, Force::asked(force)).await? };
            if let Err(e) = dsl.rename(&from, to).await {
                self.mount_again(&unmounted).await;
                return Err(e);
            }
            Ok(unmounted)
        };
        let unmounted = match renamed.await {
            Ok(unmounted) => unmounted,
            Err(e) => {
                for name in created.iter().rev() {
                    let _ = dsl.destroy_fs(name).await;
                }
                return Err(e);
            }
        };
        if no_remount {
            self.mounts.renamed(&from, to);
            return Ok(());
        }
        if let MountPoint::Path(path) = old_place
            && self.mount_point(&dir) != MountPoint::Path(path.clone())
        {
            mounts::remove_dir(path).await;
        }
        // Those of snapshots stay.
        self.mounts.renamed(&from, to);
        let mut errors = Vec::new();
        for name in created {
            let parent = dsl.find(&name)?;
            if matches!(self.mount_point(&parent.dir()), MountPoint::Path(_)) && mounts::usable().is_ok() {
                errors.extend(self.mount(&parent, TempProps::default()).await.err());
            }
        }
        let new_name = |n: String| match n.strip_prefix(&from) {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{to}{rest}"),
            _ => n,
        };
        for Unmounted { name, temp, at } in unmounted {
            let ds = dsl.find(&new_name(name))?;
            match self.mount_point(&ds.dir()) {
                MountPoint::Path(_) => errors.extend(self.mount(&ds, temp).await.err()),
                // Where mount(8) had it.
                MountPoint::Legacy => errors.extend(self.mount_at(&ds, temp, at.as_deref()).await.err()),
                MountPoint::None => {}
            }
        }
        match errors.into_iter().next() {
            Some(e) => Err(e.at("it has its new name")),
            None => Ok(()),
        }
    }

    /// Fails for a volume.
    pub(super) async fn check_mountable_kind(&self, ds: &Dataset) -> Result<()> {
        if self.props_kind(ds).await == DatasetKind::Volume {
            let why = "operation not applicable to datasets of this type";
            return Err(Error::invalid(format!("cannot open '{}': {why}", ds.name())));
        }
        Ok(())
    }

    /// `zfs mount`. The answer is a list of warnings.
    pub async fn fs_mount(&self, name: &str, how: MountHow, at: Option<MountAt>) -> Result<Vec<String>> {
        let _admin = self.admin.acquire(1).await;
        if name.contains('@') {
            return self.mount_snapshot(name, how, at).await;
        }
        let ds = self.find(name)?;
        self.check_mountable_kind(&ds).await?;
        if let Some(at) = at.as_ref().filter(|_| !how.remount) {
            self.check_given_place(&ds, at)?;
            if let Some(there) = self.mounts.path_of(&ds.name())
                && there != Path::new(&at.path)
            {
                // One file system has one mount, which may be at several places.
                self.check_mount_place(PathBuf::from(&at.path)).await?;
                let bound = front_end()?.bind(&there, Path::new(&at.path)).await;
                return bound.map(|()| Vec::new()).map_err(|e| e.at(format!("cannot mount '{name}'")));
            }
        }
        // The tunable is for what is mounted by itself.
        if ds.redaction().is_some() && !how.temp.redacted && !how.remount {
            let why = "Dataset is not complete, was created by receiving a redacted zfs send stream.";
            return Err(Error::invalid(format!("cannot mount '{name}': {why}")));
        }
        self.mounts.take_notices();
        if how.remount {
            self.remount(&ds, how.temp).await.map_err(|e| e.at(format!("cannot remount '{name}'")))?;
        } else {
            let at = at.map(|at| PathBuf::from(at.path));
            self.mount_at(&ds, how.temp, at.as_deref()).await?;
        }
        Ok(self.mounts.take_notices())
    }

    /// `mount -t zfs` of a snapshot.
    async fn mount_snapshot(&self, name: &str, how: MountHow, at: Option<MountAt>) -> Result<Vec<String>> {
        let ds = self.pool.dsl().find_snapshot(name).await?;
        self.check_mountable_kind(&ds).await?;
        if how.remount {
            let cannot = |e: Error| e.at(format!("cannot remount '{name}'"));
            return match (self.mounts.path_of(name), how.temp.readonly) {
                (None, _) => Err(cannot(Error::not_found("not currently mounted"))),
                (Some(_), Some(false)) => Err(cannot(Error::new(ErrorKind::ReadOnly, "a snapshot is read-only"))),
                (Some(_), _) => Ok(Vec::new()),
            };
        }
        let at = at.map(|at| PathBuf::from(at.path));
        self.mount_at(&ds, how.temp, at.as_deref()).await?;
        Ok(Vec::new())
    }

    /// Whether mount(8) may mount a file system at a place of its choice.
    fn check_given_place(&self, ds: &Dataset, at: &MountAt) -> Result<()> {
        let (name, path) = (ds.name(), &at.path);
        match (self.mount_point(&ds.dir()), at.util) {
            (MountPoint::Legacy, false) | (MountPoint::None | MountPoint::Path(_), true) => Ok(()),
            (MountPoint::Legacy, true) => Err(Error::invalid(format!(
                "filesystem '{name}' cannot be mounted using 'zfs mount': use 'mount -t zfs {name} {path}'"
            ))),
            (MountPoint::None | MountPoint::Path(_), false) => Err(Error::invalid(format!(
                "filesystem '{name}' cannot be mounted using 'mount': use 'zfs set mountpoint=legacy {name}' or 'zfs mount {name}'"
            ))),
        }
    }

    /// Replaces the temporary properties of a mount; mounts it again if the kernel evaluates one of
    /// them.
    async fn remount(&self, ds: &Rc<Dataset>, temp: TempProps) -> Result<()> {
        let name = ds.name();
        if self.mounts.path_of(&name).is_none() {
            return Err(Error::not_found("not currently mounted"));
        }
        let before = self.mounts.temp_of(&name);
        // The folder below the mount is still not empty.
        let redacted = temp.redacted || before.redacted;
        let temp = TempProps { over: temp.over || before.over, redacted, ..temp };
        self.mounts.change_temp(&name, |t| *t = temp);
        if self.refresh_mount(ds) {
            return Ok(());
        }
        match self.unmount_these(std::slice::from_ref(&name), Force::No).await {
            Ok(again) => self.mount_again(&again).await.into_iter().next().map_or(Ok(()), Err),
            Err(e) => {
                self.mounts.change_temp(&name, |t| *t = before);
                self.refresh_mount(ds);
                Err(e)
            }
        }
    }

    /// `zfs unmount` by name. `keys`: also unloads the keys of unmounted encryption roots.
    pub async fn fs_unmount(&self, name: &str, force: bool, keys: bool) -> Result<()> {
        let _admin = self.admin.acquire(1).await;
        let ds = self.find(name)?;
        self.check_mountable_kind(&ds).await?;
        let name = ds.name();
        if ds.dir().prop("mountpoint").0.text() == "legacy" && self.mounts.path_of(&name).is_some() {
            let why = format!("cannot unmount '{name}': legacy mountpoint: use umount(8) to unmount this filesystem");
            return Err(Error::invalid(why));
        }
        // By force also one unmounted from outside with open files.
        if self.mounts.path_of(&name).is_none() && !(force && self.mounts.is_open(&name)) {
            return Err(Error::not_found(format!("cannot unmount '{name}': not currently mounted")));
        }
        // As in OpenZFS, what is below it in the pool goes, too, wherever it is mounted, but for
        // what is mounted by hand.
        let dsl = self.pool.dsl();
        let is_legacy = |n: &str| dsl.find_dir(n).is_ok_and(|d| d.prop("mountpoint").0.text() == "legacy");
        let goes = |n: &String| {
            let is_below = n.strip_prefix(&name).is_some_and(|rest| rest.starts_with('/'));
            is_below && !n.contains('@') && !is_legacy(n)
        };
        let mut names: Vec<String> = self.mounts.list().into_iter().map(|(n, _)| n).filter(goes).collect();
        names.push(name.clone());
        let unmounted = self.unmount_these(&names, Force::asked(force)).await?;
        if keys { self.unload_keys_of(&unmounted).await } else { Ok(()) }
    }

    /// `zfs unmount -a`.
    pub async fn fs_unmount_all(&self, force: bool, keys: bool) -> Result<()> {
        let _admin = self.admin.acquire(1).await;
        // As in OpenZFS, what is mounted by hand is unmounted by hand.
        let dsl = self.pool.dsl();
        let by_hand = |name: &str| {
            let noauto = dsl.find_dir(name).is_ok_and(|d| d.prop("canmount").0.num() == CANMOUNT_NOAUTO);
            noauto || self.mounts.given_place_of(name).is_some()
        };
        let names: Vec<String> = self.mounts.list().into_iter().map(|(n, _)| n).filter(|n| !by_hand(n)).collect();
        let unmounted = self.unmount_these(&names, Force::asked(force)).await?;
        if keys { self.unload_keys_of(&unmounted).await } else { Ok(()) }
    }

    /// Unloads the keys of the encryption roots among these. If one is in use elsewhere they are
    /// mounted again, as far as they have their keys.
    async fn unload_keys_of(&self, unmounted: &[Unmounted]) -> Result<()> {
        let dsl = self.pool.dsl();
        for Unmounted { name, .. } in unmounted.iter().rev() {
            let info = dsl.crypt_info(&*dsl.find_dir(name)?);
            if info.is_some_and(|i| i.root == *name && i.available)
                && let Err(e) = dsl.unload_key(name).await
            {
                self.mount_again(unmounted).await;
                return Err(e.at(format!("cannot unmount '{name}'")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(list: &[(&str, &str)], creating: bool) -> Result<Vec<(String, PropValue)>> {
        let list: Vec<(String, String)> = list.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
        parse_props(&list, DatasetKind::Filesystem, creating)
    }

    #[test]
    fn properties_are_checked_before_anything_is_done() {
        let ok = parse(&[("compress", "lz4"), ("mountpoint", "/x"), ("org.me:note", "hi"), ("utf8only", "on")], true);
        let names: Vec<String> = ok.unwrap().into_iter().map(|(n, _)| n).collect();
        assert_eq!(names, ["compression", "mountpoint", "org.me:note", "utf8only"]);
        for (name, value, creating) in [
            ("nonsense", "1", true),
            ("used", "1", true),
            ("utf8only", "on", false),
            ("mountpoint", "relative", true),
            ("encryption", "on", true),
            ("volsize", "1G", true),
            ("recordsize", "3K", false),
            ("compression", "best", false),
            ("sharenfs", "ON", false),
            ("sharenfs", "sss", false),
            ("sharesmb", "guest", false),
        ] {
            assert!(parse(&[(name, value)], creating).is_err(), "{name}={value}");
        }
        for value in ["on", "off", "rw", "rw=@10.0.0.0/8,no_root_squash,crossmnt"] {
            assert!(parse(&[("sharenfs", value)], false).is_ok(), "{value}");
        }
        assert!(parse(&[("version", "current")], true).is_ok());
    }
}
