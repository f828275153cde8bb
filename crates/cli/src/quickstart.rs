//! `weir quickstart`: a tour on a scratch pool that checks itself.
//!
//! The same steps in two ways: through a daemon of its own and a mount, where FUSE works; through
//! the library [`openweir`] in this process, where it does not. Everything is in one scratch
//! folder, which is removed at the end, also after a failure.

use std::path::{Path, PathBuf};
use std::time::Instant;

use admin::engine::PoolEngine;
use admin::request::{
    Datasets, DeviceLatency, PoolCreate, PoolDestroy, PoolExport, PoolImport, PoolSync, Pools, Request, Search, Select,
};
use admin::view::fmt;
use admin::view::{Created, DatasetView, Imported, PoolLatency, PoolView};
use base::{Error, ErrorKind, Result};
use daemon::Client;
use daemon::paths::{Env, Paths};
use openweir::{CreateOptions, Device, ImportOptions};

use crate::progress::Bar;
use crate::tree::{self, Direct, Item, Mounted, Store, told};
use crate::zpool::parse_for;
use crate::zpool_out::{self, LIST_COLUMNS, Style};
use crate::{Done, Fail, absolute, print};

const POOL: &str = "quickstart";
/// Files of the pool.
const DEVICES: usize = 2;
/// A device is at least this large, in bytes.
const DEVICE_MIN: u64 = 256 << 20;
/// Longest path of a folder that a socket may be in, in bytes (`sun_path` has 108).
const SOCKET_DIR_MAX: usize = 90;

/// Runs `weir quickstart ARGS`.
pub fn run(args: &[String]) -> Done {
    let p =
        parse_for("quickstart", args, "", &[("dir", true, 'd'), ("tree", true, 't'), ("no-mount", false, 'n')], "")?;
    if !p.operands.is_empty() {
        return Err(Fail::Usage("too many arguments".into(), ""));
    }
    let dir = match p.value('d') {
        Some(dir) => PathBuf::from(absolute(dir)?),
        None => std::env::temp_dir(),
    };
    let tree = p.value('t').map(absolute).transpose()?.map(PathBuf::from);
    let scratch = Scratch::new(&dir)?;
    let mounting = if p.has('n') { Err(Error::unsupported("--no-mount")) } else { daemon::fuse_front::usable() };
    let result = tour(&scratch, tree, mounting);
    let place = scratch.0.display().to_string();
    drop(scratch);
    result?;
    print(&format!("\nEverything is as it should be; '{place}' is removed again.\n"));
    Ok(())
}

/// The scratch folder.
struct Scratch(PathBuf);

impl Scratch {
    fn new(dir: &Path) -> Result<Scratch> {
        let path = dir.join(format!("weir-quickstart-{}", std::process::id()));
        let made = std::fs::create_dir(&path);
        made.map_err(|e| Error::new(ErrorKind::Io, format!("cannot make '{}': {e}", path.display())))?;
        Ok(Scratch(path))
    }
    fn devices(&self) -> Vec<PathBuf> {
        (0..DEVICES).map(|i| self.0.join(format!("disk{i}.img"))).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn say(step: &str) {
    print(&format!("\n==> {step}\n"));
}

/// The tree to copy.
struct Source {
    root: PathBuf,
    items: Vec<Item>,
    bytes: u64,
}

impl Source {
    fn of(scratch: &Scratch, given: Option<PathBuf>) -> Result<Source> {
        let root = match given {
            Some(root) => root,
            None => {
                let root = scratch.0.join("tree");
                let program = std::env::current_exe();
                let program =
                    program.map_err(|e| Error::new(ErrorKind::Io, format!("this program cannot find itself: {e}")))?;
                tree::generate(&root, &program)?;
                root
            }
        };
        let (items, left_out) = tree::scan(&root)?;
        let bytes = items.iter().filter(|i| i.link_to.is_none()).map(|i| i.attrs.size).sum();
        say(&format!("The tree: {} things, {} in '{}'", items.len(), fmt::bytes(bytes), root.display()));
        if left_out > 0 {
            print(&format!("    ({left_out} more are left out: devices, sockets, or not readable)\n"));
        }
        Ok(Source { root, items, bytes })
    }

    /// Size of each device, with room to spare even if nothing compresses.
    fn device_size(&self) -> u64 {
        let files = self.items.len() as u64 * 8192;
        let need = (self.bytes + files) * 3 / 2 / DEVICES as u64 + (128 << 20);
        need.max(DEVICE_MIN).next_multiple_of(1 << 20)
    }

    fn timed(&self, what: &str, work: impl FnOnce(&mut dyn FnMut(u64)) -> Result<()>) -> Result<()> {
        let started = Instant::now();
        let mut bar = Bar::new();
        let mut done = 0;
        work(&mut |n| {
            done += n;
            bar.show(what, done, self.bytes);
        })?;
        bar.clear();
        let secs = started.elapsed().as_secs_f64().max(1e-6);
        let rate = fmt::bytes((self.bytes as f64 / secs) as u64);
        print(&format!("    {secs:.2} s, {rate}/s, {:.0} things/s\n", self.items.len() as f64 / secs));
        Ok(())
    }

    fn copy(&self, into: &mut dyn Store) -> Result<()> {
        self.timed("copying", |moved| tree::copy(&self.root, &self.items, into, moved))
    }

    fn compare(&self, with: &mut dyn Store) -> Result<()> {
        self.timed("comparing", |moved| tree::compare(&self.root, &self.items, with, moved))
    }
}

fn tour(scratch: &Scratch, given: Option<PathBuf>, mounting: Result<()>) -> Done {
    let source = Source::of(scratch, given)?;
    match mounting {
        Ok(()) => mounted_tour(scratch, &source)?,
        Err(why) => {
            say("Nothing can be mounted here, so the engine works in this process");
            print(&format!("    {why}\n"));
            direct_tour(scratch, &source)?;
        }
    }
    Ok(())
}

fn show(pool: &PoolView, root: Option<&DatasetView>, latency: &PoolLatency) {
    let columns: Vec<String> = LIST_COLUMNS.iter().map(|c| c.to_string()).collect();
    print(&zpool_out::status(pool, Style::default(), None));
    print("\n");
    print(&zpool_out::list(std::slice::from_ref(pool), &columns, Style { verbose: true, ..Style::default() }));
    print(&histograms(latency));
    let prop =
        |name: &str| root.and_then(|r| r.props.iter().find(|p| p.name == name)).map_or("-", |p| p.value.as_str());
    let (logical, used) = (prop("logicalused"), prop("used"));
    print(&format!("\ncompression ratio: {} ({logical} of data in {used})\n", prop("compressratio")));
}

// ---- through a daemon and a mount ----

struct Tour<'a> {
    client: &'a Client,
    bar: Bar,
}

impl Tour<'_> {
    fn ask<R: Request>(&mut self, request: &R) -> Result<R::Reply> {
        let bar = &mut self.bar;
        let answer = self.client.ask(request, None, &mut |what, done, total| bar.show(what, done, total));
        self.bar.clear();
        answer
    }
}

fn mounted_tour(scratch: &Scratch, source: &Source) -> Result<()> {
    // A socket's path is short; that of a deep scratch folder may be too long.
    let short = scratch.0.as_os_str().len() <= SOCKET_DIR_MAX - 4;
    let runtime = if short {
        scratch.0.join("run")
    } else {
        std::env::temp_dir().join(format!("weir-run-{}", std::process::id()))
    };
    let env = Env {
        weir_runtime_dir: Some(runtime.clone()),
        weir_state_dir: Some(scratch.0.join("state")),
        uid: host::effective_uid(),
        ..Env::default()
    };
    let program = std::env::current_exe();
    let program = program.map_err(|e| Error::new(ErrorKind::Io, format!("this program cannot find itself: {e}")))?;
    let client = Client::new(Paths::of(&env), program);
    let result = with_daemon(scratch, source, &client);
    // The daemon must end before the folder is removed, also after a failure.
    let stopped = client.stop(true);
    if !short {
        let _ = std::fs::remove_dir_all(runtime);
    }
    result.and(stopped.map(|_| ()))
}

fn with_daemon(scratch: &Scratch, source: &Source, client: &Client) -> Result<()> {
    let mut tour = Tour { client, bar: Bar::new() };
    let at = scratch.0.join("mnt");
    let text = |p: &Path| p.display().to_string();
    let size = source.device_size();
    say(&format!(
        "zpool create -O compression=lz4 -m {} --size {} {POOL} disk0.img disk1.img",
        text(&at),
        fmt::bytes(size)
    ));
    let create = PoolCreate {
        name: POOL.to_string(),
        devices: scratch.devices().iter().map(|d| text(d)).collect(),
        size: Some(size),
        fs_props: vec![("compression".to_string(), "lz4".to_string())],
        mountpoint: Some(text(&at)),
        ..PoolCreate::default()
    };
    let _: Created = tour.ask(&create)?;
    say(&format!("Copying the tree into the mounted file system '{}'", text(&at)));
    let mut store = Mounted(at.clone());
    source.copy(&mut store)?;
    say("zpool sync");
    tour.ask(&PoolSync { names: Vec::new(), force: false })?;
    say("Reading it back");
    source.compare(&mut store)?;
    say("zpool status; zpool list -v; latencies");
    let pools: Vec<PoolView> = tour.ask(&Pools { names: Vec::new() })?;
    let select = Select { filesystems: true, depth: Some(0), names: vec![POOL.to_string()], ..Select::default() };
    let roots: Vec<DatasetView> = tour.ask(&Datasets(select))?;
    let latency: PoolLatency = tour.ask(&DeviceLatency { pool: POOL.to_string() })?;
    if let Some(pool) = pools.first() {
        show(pool, roots.first(), &latency);
    }
    say(&format!("zpool export {POOL}; zpool import -d {} {POOL}", text(&scratch.0)));
    tour.ask(&PoolExport { pools: vec![POOL.to_string()], all: false, force: false, stays_cached: false })?;
    let import = PoolImport {
        search: Search { paths: vec![text(&scratch.0)], ..Search::default() },
        pool: Some(POOL.to_string()),
        ..PoolImport::default()
    };
    let imported: Imported = tour.ask(&import)?;
    if let Some(notice) = imported.notices.first().or(imported.failures.first()).or(imported.unmounted.first()) {
        return Err(Error::new(ErrorKind::Io, notice.clone()));
    }
    say("Comparing every byte again, from the devices");
    source.compare(&mut store)?;
    say(&format!("zpool destroy {POOL}"));
    tour.ask(&PoolDestroy { pool: POOL.to_string(), force: true })
}

// ---- with a pool in this process ----

/// What [`show`] prints, from the pool itself.
fn views(pool: &openweir::Pool) -> Result<(PoolView, Vec<DatasetView>, PoolLatency)> {
    let views = pool.engine().local(|inside| async move {
        let view = PoolEngine::new(inside.pool(POOL)?, None, Default::default());
        let select = Select { filesystems: true, depth: Some(0), names: vec![POOL.to_string()], ..Select::default() };
        let roots = view.select(&select).await?;
        Ok((view.view().await, roots, view.latency()))
    });
    views.wait().map_err(told)
}

fn direct_tour(scratch: &Scratch, source: &Source) -> Result<()> {
    let size = source.device_size();
    let memory = host::physmem_bytes();
    say(&format!("A pool '{POOL}' with compression=lz4 on two files of {}", fmt::bytes(size)));
    let disks: Vec<Device> = scratch.devices().into_iter().map(|path| Device::new_file(path, size)).collect();
    let options = CreateOptions { memory, ..CreateOptions::default() };
    let options = options.property("compression", "lz4").property("mountpoint", "none");
    let pool = openweir::Pool::create(POOL, disks, options).wait().map_err(told)?;
    let fs = pool.filesystem(POOL).wait().map_err(told)?;
    say("Copying the tree into its file system");
    let mut store = Direct(fs);
    source.copy(&mut store)?;
    say("Writing everything to the devices");
    pool.sync().wait().map_err(told)?;
    say("Reading it back");
    source.compare(&mut store)?;
    say("zpool status; zpool list -v; latencies");
    let (view, roots, latency) = views(&pool)?;
    show(&view, roots.first(), &latency);
    say("Exporting and importing the pool");
    drop(store);
    pool.export().wait().map_err(told)?;
    drop(pool);
    let devices = scratch.devices().into_iter().map(Device::path).collect();
    let options = ImportOptions { memory, ..ImportOptions::default() };
    let pool = openweir::Pool::import(devices, options).wait().map_err(told)?;
    let fs = pool.filesystem(POOL).wait().map_err(told)?;
    say("Comparing every byte again, from the devices");
    source.compare(&mut Direct(fs))?;
    say("Destroying the pool");
    pool.destroy().wait().map_err(told)
}

// ---- latencies ----

/// Histograms of the classes with operations, in the layout of DTrace's `quantize`.
fn histograms(latency: &PoolLatency) -> String {
    let mut out = String::new();
    for (class, counts) in latency.classes.iter().zip(&latency.disk) {
        let total: u64 = counts.iter().sum();
        if total == 0 {
            continue;
        }
        let first = counts.iter().position(|n| *n > 0).unwrap_or(0);
        let last = counts.iter().rposition(|n| *n > 0).unwrap_or(0);
        out.push_str(&format!(
            "\n  {class}: time at the device\n           value  ------------- Distribution ------------- count\n"
        ));
        for (bucket, n) in counts.iter().enumerate().take(last + 1).skip(first) {
            let bar = "@".repeat((u128::from(*n) * 40 / u128::from(total)) as usize);
            out.push_str(&format!("      {:>10} |{bar:<40} {n}\n", span(1 << bucket)));
        }
    }
    out
}

/// Nanoseconds with a fitting unit.
fn span(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} us", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{} s", ns / 1_000_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_show_what_happened() {
        let mut counts = vec![0; 37];
        counts[13] = 30;
        counts[15] = 10;
        let latency = PoolLatency {
            classes: vec!["sync_read".into(), "async_write".into()],
            total: vec![vec![0; 37]; 2],
            disk: vec![vec![0; 37], counts],
        };
        let text = histograms(&latency);
        assert!(!text.contains("sync_read"));
        assert!(text.contains(&format!("            8 us |{}{} 30\n", "@".repeat(30), " ".repeat(10))), "{text}");
        assert_eq!(text.lines().count(), 1 + 2 + 3, "{text}");
        assert_eq!(span(1 << 20), "1 ms");
    }
}
