//! Search, import, export and destroy of pools.
//!
//! A search opens every candidate read-only and without a lock, groups devices by pool, and keeps
//! one path of each device. An import opens those of one pool, exclusively, on its engine thread.

use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Error, ErrorKind, Result, Txg};
use bdev::BlockDev;
use host::{Direct, HostDev, Lock, OpenOpts};
use rt::Rt;
use spa::{EngineOpts, ImportOpts, Pool, PoolCandidate, PoolState, States, Unsupported};

use crate::engine::{EngineThread, PoolEngine, Progress, set_current};
use crate::fs::mounts::{Force, advise_force, remove_dir};
use crate::fs::places::clear_dead_mounts;
use crate::fs::temp_props::TempProps;
use crate::keeper::KnownPool;
use crate::pool::cache_file;
use crate::pool::create::{open_device, stored_props};
use crate::pool::props::{Wanted, When};
use crate::pool_set::{PoolSet, Running, join_errors};
use crate::request::{PoolExport, PoolImport, Search};
use crate::view::pool::config_view;
use crate::view::{Candidate, Imported, VdevView};

/// Files and devices of one search at most.
const SEARCH_MAX: usize = 100_000;
/// Folders of /dev to search; its others have only links to the same devices.
const DEV_DIRS: &[&str] = &["/dev", "/dev/mapper"];

/// Time that devices may stay locked after their daemon was killed: the kernel first ends its I/O
/// under way.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// Interval between tries of their locks.
const LOCK_RETRY: Duration = Duration::from_millis(20);

/// A pool that a search found, as plain data.
#[derive(Clone, Debug)]
struct Found {
    candidate: Candidate,
    /// One path of each device.
    devices: Vec<String>,
}

/// The paths that a search looks at.
fn search_paths(search: &Search, remembered: Vec<String>) -> Result<Vec<PathBuf>> {
    let mut out: Vec<PathBuf> = Vec::new();
    let add_dir = |dir: &Path, files: bool, out: &mut Vec<PathBuf>| -> std::io::Result<()> {
        let mut names: Vec<PathBuf> = std::fs::read_dir(dir)?.filter_map(|e| Some(e.ok()?.path())).collect();
        names.sort();
        for path in names {
            let Ok(meta) = std::fs::metadata(&path) else { continue };
            let kind = meta.file_type();
            let fits = kind.is_block_device() || (files && kind.is_file() && meta.len() >= 1 << 20);
            if fits && out.len() < SEARCH_MAX {
                out.push(path);
            }
        }
        Ok(())
    };
    if search.paths.is_empty() {
        out.extend(remembered.into_iter().map(PathBuf::from).filter(|p| p.exists()));
        for dir in DEV_DIRS {
            let _ = add_dir(Path::new(dir), false, &mut out);
        }
    }
    for path in &search.paths {
        let path = Path::new(path);
        let fail = |e: std::io::Error| Error::not_found(format!("cannot search '{}': {e}", path.display()));
        if std::fs::metadata(path).map_err(fail)?.is_dir() {
            add_dir(path, true, &mut out).map_err(fail)?;
        } else {
            out.push(path.to_path_buf());
        }
    }
    let mut seen = Vec::new();
    out.retain(|p| {
        let real = std::fs::canonicalize(p).unwrap_or_else(|_| p.clone());
        let new = !seen.contains(&real);
        seen.push(real);
        new
    });
    Ok(out)
}

/// Finds pools; with `examine` also checks whether their features allow an import.
async fn search_here(rt: Rt, paths: Vec<PathBuf>, examine: Option<EngineOpts>, progress: Arc<Progress>) -> Vec<Found> {
    progress.begin("searching devices", paths.len() as u64);
    let mut devices: Vec<Rc<dyn BlockDev>> = Vec::new();
    for path in paths {
        let opts = OpenOpts { write: false, direct: Direct::Auto, lock: Lock::None };
        if let Ok(dev) = HostDev::open(&rt, &path, opts) {
            let dev: Rc<dyn BlockDev> = dev;
            // Only devices with a label stay open: there may be thousands of others.
            if spa::is_candidate(&dev).await {
                devices.push(dev);
            }
        }
        progress.step();
    }
    let mut out = Vec::new();
    for pool in spa::scan(devices).await {
        // No label tells which of the missing vdevs were removed.
        let removed = match examine.as_ref().filter(|_| !pool.missing_tops().is_empty()) {
            Some(opts) => Pool::removed_tops(&rt, &pool, opts).await.unwrap_or_default(),
            None => Vec::new(),
        };
        let mut found = found(&pool, &removed);
        // A pool with missing devices cannot be opened; other errors are reported by the import.
        if let Some(opts) = examine.as_ref().filter(|_| found.candidate.state != "UNAVAIL")
            && let Ok(unsupported) = Pool::unsupported(&rt, &pool, opts).await
        {
            note_unsupported(&mut found.candidate, unsupported);
        }
        out.push(found);
    }
    out
}

/// Adds to a listing that features prevent an import, or a writable one.
fn note_unsupported(c: &mut Candidate, unsupported: Unsupported) {
    let Unsupported { read, write } = unsupported;
    let (status, action, features) = match (read.is_empty(), write.is_empty()) {
        (true, true) => return,
        (false, _) => (
            "The pool uses the following feature(s) not supported on this system:",
            "The pool cannot be imported. Access the pool on a system that supports the required feature(s), or recreate the pool from backup.",
            read,
        ),
        (true, false) => (
            "The pool can only be accessed in read-only mode on this system. It cannot be accessed in read-write mode because it uses the following feature(s) not supported on this system:",
            "The pool cannot be imported in read-write mode. Import the pool with \"-o readonly=on\", access the pool on a system that supports the required feature(s), or recreate the pool from backup.",
            write,
        ),
    };
    (c.status, c.action) = (Some(status.to_string()), action.to_string());
    c.features = features
        .into_iter()
        .map(|f| if f.description.is_empty() { f.guid } else { format!("{} ({})", f.guid, f.description) })
        .collect();
    c.state = "UNAVAIL".into();
    (c.vdevs.state, c.vdevs.why) = ("UNAVAIL".into(), Some("unsupported feature(s)".into()));
}

/// `removed`: the ids of vdevs that are not missing but removed.
fn found(pool: &PoolCandidate, removed: &[u64]) -> Found {
    // Of several paths of one device, the first with the newest label.
    let mut best: BTreeMap<u64, (u64, String)> = BTreeMap::new();
    for d in &pool.devices {
        let entry = best.entry(d.config.guid.0).or_insert_with(|| (0, String::new()));
        if entry.1.is_empty() || d.config.txg.0 > entry.0 {
            *entry = (d.config.txg.0, d.opened.clone());
        }
    }
    let devices: Vec<String> = best.values().map(|(_, p)| p.clone()).collect();
    Found { candidate: describe(pool, &best, removed), devices }
}

/// The listing of one pool as `zpool import` shows it.
fn describe(pool: &PoolCandidate, paths: &BTreeMap<u64, (u64, String)>, removed: &[u64]) -> Candidate {
    let mut missing = pool.missing_tops();
    missing.retain(|id| !removed.contains(id));
    let mut root = VdevView {
        kind: "root".into(),
        name: pool.name.clone(),
        guid: pool.guid.0,
        state: "ONLINE".into(),
        ..VdevView::default()
    };
    for id in 0..pool.top_level_count().min(4096) {
        if pool.config.hole_array.contains(&id) || removed.contains(&id) {
            continue;
        }
        let Some(device) = pool.devices.iter().filter(|d| d.config.vdev_tree.id == id).max_by_key(|d| d.config.txg)
        else {
            let state = "UNAVAIL".to_string();
            let why = Some("cannot open".to_string());
            root.children.push(VdevView {
                kind: "missing".into(),
                name: format!("missing-{id}"),
                state,
                why,
                ..VdevView::default()
            });
            continue;
        };
        let tree = &device.config.vdev_tree;
        let mut view = config_view(tree);
        mark(&mut view, paths);
        root.children.push(view);
    }
    let destroyed = pool.state == PoolState::Destroyed;
    let mut status =
        destroyed.then(|| "The pool was destroyed, but can be imported using the '-Df' flags.".to_string());
    let mut action = "The pool can be imported using its name or numeric identifier.".to_string();
    if destroyed {
        action = "The pool can be imported using its name or numeric identifier and the '-D' flag.".to_string();
    }
    if pool.state == PoolState::Active {
        let host = pool.hostname.clone().unwrap_or_else(|| "another host".to_string());
        status = Some(format!("The pool was last accessed by {host} and was not exported."));
        action = "The pool can be imported using its name or numeric identifier; add '-f' if it was another host."
            .to_string();
    }
    let lost = root.children.iter().any(|v| v.state == "UNAVAIL" && !v.is_log);
    let degraded = root.children.iter().any(|v| v.state != "ONLINE");
    if !missing.is_empty() || lost {
        status = Some("One or more devices are missing from the system.".to_string());
        action =
            "The pool cannot be imported. Attach the missing devices, or name their folder with '-d', and try again."
                .to_string();
        root.state = "UNAVAIL".into();
        root.why = Some("missing device".into());
    } else if degraded {
        status = Some("One or more devices are missing from the system.".to_string());
        action = "The pool can be imported despite missing or damaged devices. The fault tolerance of the pool may be compromised if imported."
            .to_string();
        root.state = "DEGRADED".into();
    }
    Candidate {
        name: pool.name.clone(),
        guid: pool.guid.0,
        state: root.state.clone(),
        destroyed,
        status,
        action,
        features: Vec::new(),
        vdevs: root,
    }
}

fn mark(view: &mut VdevView, paths: &BTreeMap<u64, (u64, String)>) {
    if view.children.is_empty() {
        match paths.get(&view.guid) {
            Some((_, path)) => view.name.clone_from(path),
            None if view.kind == "dspare" => {}
            None => {
                view.state = "UNAVAIL".into();
                view.why = Some("cannot open".into());
            }
        }
        return;
    }
    view.children.iter_mut().for_each(|c| mark(c, paths));
    let lost = view.children.iter().filter(|c| matches!(c.state.as_str(), "UNAVAIL" | "OFFLINE" | "FAULTED")).count();
    let tolerates = match view.parity {
        0 => view.children.len() - 1,
        n => n as usize,
    };
    if lost > tolerates {
        view.state = "UNAVAIL".into();
        view.why = Some("insufficient replicas".into());
    } else if view.children.iter().any(|c| c.state != "ONLINE") {
        view.state = "DEGRADED".into();
    }
}

/// The parameters of an import, for its engine thread.
struct Job {
    guid: u64,
    /// The name to find it by if no pool has that guid.
    or_name: Option<String>,
    devices: Vec<String>,
    opts: ImportOpts,
    engine: EngineOpts,
    altroot: Option<String>,
    wanted: Wanted,
    /// The options of its mounts; none: nothing is mounted.
    mount: Option<TempProps>,
}

/// An import that succeeded.
pub(crate) struct Outcome {
    name: String,
    guid: u64,
    /// Notices for the user.
    pub notices: Vec<String>,
    /// Errors of mounts.
    pub failures: Vec<String>,
}

/// The import, on the engine thread.
async fn import_here(rt: Rt, job: Job, progress: Arc<Progress>) -> Result<Outcome> {
    let mut devices = Vec::new();
    for path in &job.devices {
        let opened = open_device(&rt, path, !job.opts.readonly).map_err(|e| match e.kind() {
            ErrorKind::ReadOnly => Error::new(ErrorKind::ReadOnly, format!("{e}: import with -o readonly=on")),
            _ => e,
        });
        devices.push(opened?.0);
    }
    let mut found = spa::scan(devices).await;
    let at = found.iter().position(|c| c.guid.0 == job.guid);
    let at = at.or_else(|| found.iter().position(|c| job.or_name.as_ref() == Some(&c.name)));
    let at = at.ok_or_else(|| Error::not_found("its devices have gone away"))?;
    let candidate = found.swap_remove(at);
    let pool = Pool::import(rt.clone(), candidate, job.opts, job.engine).await?;
    let props = stored_props(&pool).await?;
    let engine = PoolEngine::new(pool.clone(), job.altroot, props);
    if !pool.is_readonly()
        && job.wanted != Wanted::default()
        && let Err(e) = engine.set_pool_props(job.wanted).await
    {
        pool.export().await?;
        return Err(e);
    }
    set_current(engine.clone());
    let mut failures = Vec::new();
    let admin = engine.admin.acquire(1).await;
    // As in OpenZFS, where `-N` is about file systems.
    engine.show_volumes().await;
    if let Some(temp) = job.mount {
        failures.extend(engine.mount_all(temp, &progress).await.iter().map(|e| e.to_string()));
    }
    drop(admin);
    let mut notices = pool.notices();
    notices.extend(engine.mounts.take_notices());
    Ok(Outcome { name: pool.name(), guid: pool.guid().0, notices, failures })
}

impl PoolSet {
    fn search(&self, search: &Search, examine: bool, progress: &Arc<Progress>) -> Result<Vec<Found>> {
        let listed = search.cache_file.as_ref().map(|file| cache_file::listed(Path::new(file))).transpose()?;
        let paths = match &listed {
            // A folder that is gone has no devices.
            Some(listed) => {
                let folders = listed.folders.iter().filter(|f| f.is_dir()).filter_map(|f| f.to_str());
                let paths: Vec<String> = folders.map(str::to_string).collect();
                match paths.is_empty() {
                    true => Vec::new(),
                    false => search_paths(&Search { paths, ..Search::default() }, Vec::new())?,
                }
            }
            None => search_paths(search, self.keeper.remembered_paths())?,
        };
        let progress = progress.clone();
        let examine = examine.then(|| self.engine_opts("", 1));
        let thread = EngineThread::start(Some(self.keeper.clone()))?;
        let found = thread
            .call(move |rt| {
                let rt = rt.clone();
                async move { search_here(rt, paths, examine, progress).await }
            })
            .wait()?;
        let running = self.all_running();
        let mut out = found;
        out.retain(|f| !running.iter().any(|r| r.guid() == f.candidate.guid));
        if let Some(listed) = listed {
            out.retain(|f| listed.guids.contains(&f.candidate.guid));
        }
        Ok(out)
    }

    /// `zpool import` without a pool.
    pub(crate) fn pool_scan(&self, search: &Search, progress: &Arc<Progress>) -> Result<Vec<Candidate>> {
        let mut found = self.search(search, true, progress)?;
        found.retain(|f| f.candidate.destroyed == search.destroyed);
        Ok(found.into_iter().map(|f| f.candidate).collect())
    }

    /// `zpool import` of one pool or all.
    pub(crate) fn pool_import(&self, request: PoolImport, progress: &Arc<Progress>) -> Result<Imported> {
        let wanted = Wanted::parse(&request.props, When::Import)?;
        if let Some(name) = &request.new_name {
            spa::check_pool_name(name)?;
        }
        let _namespace = self.namespace();
        let mut found = self.search(&request.search, false, progress)?;
        found.retain(|f| f.candidate.destroyed == request.search.destroyed);
        if let Some(wanted) = &request.pool {
            let guid = wanted.parse::<u64>().ok();
            let by_name: Vec<Found> = found.iter().filter(|f| f.candidate.name == *wanted).cloned().collect();
            let by_guid: Vec<Found> = found.into_iter().filter(|f| guid == Some(f.candidate.guid)).collect();
            found = if by_guid.is_empty() { by_name } else { by_guid };
            if found.is_empty() {
                if self.running(wanted).is_some() {
                    let why = "a pool with that name is already imported";
                    return Err(Error::new(ErrorKind::Exists, format!("cannot import '{wanted}': {why}")));
                }
                let advice = "no such pool available: name the folder of its devices with -d";
                return Err(Error::not_found(format!("cannot import '{wanted}': {advice}")));
            }
            if found.len() > 1 {
                let ids: Vec<String> = found.iter().map(|f| f.candidate.guid.to_string()).collect();
                let why = format!("more than one matching pool: import by numeric ID instead ({})", ids.join(", "));
                return Err(Error::invalid(format!("cannot import '{wanted}': {why}")));
            }
        }
        let mut out = Imported::default();
        for f in found {
            let name = f.candidate.name.clone();
            match self.import_found(&f, &request, &wanted, progress) {
                Ok(done) => {
                    out.pools.extend(Some(done.name).filter(|n| !n.is_empty()));
                    out.notices.extend(done.notices);
                    out.unmounted.extend(done.failures);
                }
                Err(e) if request.pool.is_some() => return Err(cannot_import(&name, e)),
                Err(e) => out.failures.push(cannot_import(&name, e).to_string()),
            }
        }
        Ok(out)
    }

    fn import_found(
        &self,
        f: &Found,
        request: &PoolImport,
        wanted: &Wanted,
        progress: &Arc<Progress>,
    ) -> Result<Outcome> {
        let name = request.new_name.clone().unwrap_or_else(|| f.candidate.name.clone());
        if self.running(&name).is_some() {
            return Err(Error::new(ErrorKind::Exists, "a pool with that name is already imported: give it a new name"));
        }
        let altroot = request.altroot.clone().or(wanted.altroot.clone());
        let states = match request.to_txg {
            Some(txg) => States::UpTo(Txg(txg)),
            None if request.rewind => States::Last,
            None => States::Newest,
        };
        let opts = ImportOpts {
            new_name: request.new_name.clone(),
            readonly: wanted.readonly,
            force: request.force,
            destroyed: request.search.destroyed,
            states,
            missing_log: request.missing_log,
            temporary_name: request.temporary_name,
            to_checkpoint: request.to_checkpoint,
        };
        if request.dry_run {
            return self.rewind_of(&f.candidate.name, f.candidate.guid, f.devices.clone(), states);
        }
        self.import_devices(
            (f.candidate.guid, None),
            f.devices.clone(),
            opts,
            altroot,
            wanted.clone(),
            (!request.no_mount).then_some(request.mount),
            progress,
        )
    }

    /// The effect of `-F` or `-T` on a pool, in a sentence.
    fn rewind_of(&self, name: &str, guid: u64, devices: Vec<String>, states: States) -> Result<Outcome> {
        let engine = self.engine_opts(name, 1);
        let thread = EngineThread::start(Some(self.keeper.clone()))?;
        let rewind = thread
            .call(move |rt| {
                let rt = rt.clone();
                async move {
                    let open = |path: &String| open_device(&rt, path, false).map(|(dev, _)| dev);
                    let devices = devices.iter().map(open).collect::<Result<Vec<_>>>()?;
                    let found = spa::scan(devices).await.into_iter().find(|c| c.guid.0 == guid);
                    let candidate = found.ok_or_else(|| Error::not_found("its devices have gone away"))?;
                    Pool::rewind_of(rt.clone(), &candidate, states, engine).await
                }
            })
            .wait()??;
        let sentence = match rewind {
            None => format!("The newest state of pool '{name}' can be opened: nothing would be given up."),
            Some(r) => format!(
                "Would be able to return {name} to its state as of txg {}: approximately {} seconds of changes would be given up.",
                r.txg, r.lost_secs
            ),
        };
        Ok(Outcome { name: String::new(), guid, notices: vec![sentence], failures: Vec::new() })
    }

    #[allow(clippy::too_many_arguments, reason = "one caller for commands, one for the start")]
    fn import_devices(
        &self,
        (guid, or_name): (u64, Option<String>),
        devices: Vec<String>,
        opts: ImportOpts,
        altroot: Option<String>,
        mut wanted: Wanted,
        mount: Option<TempProps>,
        progress: &Arc<Progress>,
    ) -> Result<Outcome> {
        let readonly = opts.readonly;
        // Properties of the import itself are not stored.
        (wanted.readonly, wanted.altroot) = (false, None);
        let job = Job {
            guid,
            or_name,
            devices: devices.clone(),
            opts,
            // Tunables of this pool alone follow when its name is known.
            engine: self.engine_opts("", 1),
            altroot: altroot.clone(),
            wanted,
            mount,
        };
        let thread = EngineThread::start(Some(self.keeper.clone()))?;
        let progress = progress.clone();
        let done = thread
            .call(move |rt| {
                let rt = rt.clone();
                async move { import_here(rt, job, progress).await }
            })
            .wait()??;
        let name = done.name.clone();
        if done.guid != guid {
            self.keeper.change_guid(guid, done.guid)?;
        }
        let guid = done.guid;
        let known = KnownPool { name: name.clone(), guid, devices, imported: true, altroot, readonly };
        self.add_running(Arc::new(Running::new(name, guid, thread)), known, "pool_import")?;
        Ok(done)
    }

    /// Imports a pool that the last daemon had imported. If that was just killed its devices may
    /// still be locked.
    pub(crate) fn import_last(
        &self,
        pool: &KnownPool,
        devices: &[String],
        opts: &ImportOpts,
        mount: TempProps,
        progress: &Arc<Progress>,
    ) -> Result<Outcome> {
        let until = Instant::now() + LOCK_WAIT;
        loop {
            // The last daemon may have ended before it noted that the pool has another guid.
            let of = (pool.guid, Some(pool.name.clone()));
            let (devices, opts, altroot) = (devices.to_vec(), opts.clone(), pool.altroot.clone());
            match self.import_devices(of, devices, opts, altroot, Wanted::default(), Some(mount), progress) {
                Err(e) if e.kind() == ErrorKind::Busy && Instant::now() < until => std::thread::sleep(LOCK_RETRY),
                done => return done,
            }
        }
    }

    /// At the start of the daemon: imports the pools that were imported when the last one ended.
    /// Returns notices and errors.
    pub(crate) fn import_remembered(&self) -> Vec<String> {
        let _namespace = self.namespace();
        let progress = Progress::new();
        let mut failures = Vec::new();
        for pool in self.keeper.remembered().into_iter().filter(|p| p.imported) {
            let opts = ImportOpts {
                // Keep the name on disk: the last import wrote its name there, unless it was
                // temporary.
                new_name: None,
                readonly: pool.readonly,
                // This host imported it last.
                force: true,
                destroyed: false,
                ..ImportOpts::default()
            };
            let devices: Vec<String> = pool.devices.iter().filter(|d| Path::new(d).exists()).cloned().collect();
            let result = if devices.is_empty() {
                Err(Error::not_found("its devices are not there"))
            } else {
                self.import_last(&pool, &devices, &opts, TempProps::default(), &progress)
            };
            match result {
                Ok(done) => failures.extend(done.notices.into_iter().chain(done.failures)),
                Err(e) => failures.push(cannot_import(&pool.name, e).to_string()),
            }
        }
        failures
    }

    /// `zpool export`.
    pub(crate) fn pool_export(&self, request: &PoolExport, progress: &Arc<Progress>) -> Result<()> {
        let _namespace = self.namespace();
        let names: Vec<String> = match request.all {
            true => self.all_running().iter().map(|r| r.name.clone()).collect(),
            false => request.pools.clone(),
        };
        progress.begin("exporting pools", names.len() as u64);
        // A failure does not stop the others.
        let mut errors = Vec::new();
        for name in &names {
            errors.extend(self.export_one(name, request).err());
            progress.step();
        }
        join_errors(errors)
    }

    fn export_one(&self, name: &str, request: &PoolExport) -> Result<()> {
        let running = self.need_running(name)?;
        let force = request.force;
        // As OpenZFS's "hard" export: for others it is still in use.
        let state = if request.stays_cached { PoolState::Active } else { PoolState::Exported };
        let cache_file = self.cache_file_of(&running);
        running
            .thread
            .with_pool(move |engine| async move { close(&engine, force, state).await })
            .map_err(|e| e.at(format!("cannot export '{name}'")))?;
        if !request.stays_cached {
            self.leave_cache_file(cache_file.as_deref(), running.guid());
        }
        self.remove_running(&running);
        self.keeper.exported(running.guid())
    }

    /// `zpool destroy`.
    pub(crate) fn pool_destroy(&self, name: &str, force: bool) -> Result<()> {
        let _namespace = self.namespace();
        let running = self.need_running(name).map_err(|_| no_such_pool(name))?;
        let cache_file = self.cache_file_of(&running);
        running
            .thread
            .with_pool(move |engine| async move { close(&engine, force, PoolState::Destroyed).await })
            .map_err(|e| e.at(format!("cannot destroy '{name}'")))?;
        self.leave_cache_file(cache_file.as_deref(), running.guid());
        self.remove_running(&running);
        self.keeper.forget(running.guid())
    }
}

/// The error of a pool that is not imported.
pub fn no_such_pool(name: &str) -> Error {
    Error::not_found(format!("cannot open '{name}': no such pool"))
}

fn cannot_import(name: &str, e: Error) -> Error {
    let prefix = format!("cannot import '{name}'");
    if e.to_string().starts_with(&prefix) { e } else { e.at(prefix) }
}

/// Unmounts everything and closes the pool; on failure the file systems are mounted again.
async fn close(engine: &Rc<PoolEngine>, force: bool, state: PoolState) -> Result<()> {
    if force && engine.pool.suspended().is_some() {
        // Before the lock: its holder may wait for the devices.
        engine.pool.give_up().await;
    }
    let _admin = engine.admin.acquire(1).await;
    if engine.pool.suspended().is_some() {
        if !force {
            let command = if state == PoolState::Destroyed { "destroy" } else { "export" };
            let why = format!(
                "pool I/O is currently suspended: 'zpool clear' tries again, 'zpool {command} -f' gives up what could not be written"
            );
            return Err(Error::new(ErrorKind::Suspended, why));
        }
        engine.end_all_use(Force::Full).await?;
        if state == PoolState::Destroyed {
            engine.pool.mark_destroyed().await;
        }
        return Ok(());
    }
    // As in OpenZFS, faults keep it: they would be gone without notice.
    if !engine.injections.is_empty() {
        let why = "pool is busy: faults are injected into it: 'zinject -c all' ends them";
        return Err(Error::new(ErrorKind::Busy, why));
    }
    if !force {
        let command = if state == PoolState::Destroyed { "zpool destroy -f" } else { "zpool export -f" };
        engine.end_volume_use(false).await.map_err(|e| advise_force(e, command))?;
    }
    let unmounted = engine.end_all_use(Force::asked(force)).await?;
    if let Err(e) = engine.pool.close(state).await {
        engine.mount_again(&unmounted).await;
        engine.show_volumes().await;
        return Err(e);
    }
    clear_dead_mounts(&engine.pool.name(), None).await?;
    for name in unmounted.iter().rev().map(|u| &u.name) {
        if let Ok(dir) = engine.pool.dsl().find_dir(name)
            && let Some(place) = engine.own_mount_dir(&dir)
        {
            remove_dir(place).await;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use spa::UnsupportedFeature;

    use super::*;

    #[test]
    fn searches_take_folders_and_files() {
        let dir = host::TempDir::new("search").unwrap();
        host::create_sparse(dir.join("a.img"), 64 << 20).unwrap();
        host::create_sparse(dir.join("b.img"), 64 << 20).unwrap();
        std::fs::write(dir.join("note.txt"), b"short").unwrap();
        let paths = |list: &[&str]| {
            let paths = list.iter().map(|n| dir.join(n).display().to_string()).collect();
            search_paths(&Search { paths, ..Search::default() }, Vec::new())
        };
        assert_eq!(paths(&["."]).unwrap().len(), 2);
        assert_eq!(paths(&[".", "a.img"]).unwrap().len(), 2);
        assert_eq!(paths(&["note.txt"]).unwrap().len(), 1);
        assert!(paths(&["nothing"]).is_err());
    }

    #[test]
    fn listings_tell_of_features() {
        let feature = |guid: &str, about: &str| UnsupportedFeature { guid: guid.into(), description: about.into() };
        let noted = |read: Vec<UnsupportedFeature>, write: Vec<UnsupportedFeature>| {
            let mut c = Candidate { state: "ONLINE".into(), ..Candidate::default() };
            note_unsupported(&mut c, Unsupported { read, write });
            c
        };
        let (a, b) = (feature("x:a", "About a."), feature("x:b", ""));
        assert_eq!(noted(vec![], vec![]).state, "ONLINE");
        let c = noted(vec![], vec![a.clone(), b.clone()]);
        assert!(c.state == "UNAVAIL" && c.action.contains("\"-o readonly=on\""), "{c:?}");
        assert_eq!(c.features, ["x:a (About a.)", "x:b"]);
        // Features that prevent reading come first.
        let c = noted(vec![b], vec![a]);
        assert!(c.state == "UNAVAIL" && c.action.starts_with("The pool cannot be imported. "), "{c:?}");
        assert_eq!(c.features, ["x:b"]);
    }
}
