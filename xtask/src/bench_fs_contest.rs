//! The contestants of the benchmark: how each is started on its image, made cold, synced and
//! stopped.
//!
//! They differ little: in a prefix for commands (zfs-fuse lives in a mount namespace), a few
//! control commands, a process whose memory counts. The job of a row is the same for all that are
//! mounted ([`mounted_job`]).

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::bench_fs::{Options, make_image};
use crate::bench_fs_jobs::{ARC_MAX, DIRTY_MAX, Figures, Row, Sizes, fio, fio_sync, fio_sync_files, output};

/// Something that does the jobs.
pub(crate) trait Contestant {
    /// Its name in the table.
    fn name(&self) -> &'static str;
    /// Begins anew, with nothing on its image.
    fn start(&mut self) -> Result<(), String>;
    /// Makes the files that a row needs, untimed.
    fn prepare(&mut self, row: Row, sizes: &Sizes) -> Result<(), String>;
    /// Drops all caches. That is in the kernel only, unless a contestant has a cache of its own.
    fn cold(&mut self) -> Result<(), String> {
        drop_caches()
    }
    /// Does a row's job and makes it durable.
    fn job(&mut self, row: Row, sizes: &Sizes) -> Result<Figures, String>;
    /// Most memory of its process since the last call, in bytes; `None` if it has no process.
    fn peak(&mut self) -> Option<u64> {
        None
    }
    /// How long tasks kept the engine's thread during the last job; `None` if it was not watched.
    fn turns(&mut self) -> Option<Turns> {
        None
    }
    /// Ends it, whatever state it is in.
    fn stop(&mut self);
}

pub fn command(args: &[impl AsRef<OsStr>]) -> Command {
    let mut cmd = Command::new(args[0].as_ref());
    cmd.args(&args[1..]);
    cmd
}

pub fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Empties the kernel's caches, which hold a contestant's files and its image.
fn drop_caches() -> Result<(), String> {
    output(command(&["sync"]))?;
    std::fs::write("/proc/sys/vm/drop_caches", "3").map_err(|e| format!("caches cannot be dropped (needs root): {e}"))
}

/// A mounted file system: where it is and how commands reach it.
#[derive(Clone, Debug, Default)]
struct Mounted {
    /// The prefix of every command.
    prefix: Vec<String>,
    /// Folder with the default record size.
    dir: PathBuf,
    /// Folder with records of 8 KiB.
    db: PathBuf,
    /// The tree to copy in.
    tree: PathBuf,
}

impl Mounted {
    fn run(&self, args: &[String]) -> Result<String, String> {
        let all: Vec<&String> = self.prefix.iter().chain(args).collect();
        output(command(&all))
    }

    /// Waits until both folders are mount points: otherwise the job would measure the file system
    /// below.
    fn wait_mounted(&self) -> Result<(), String> {
        let start = Instant::now();
        loop {
            let mut why = Ok(());
            for dir in [&self.dir, &self.db] {
                why = why.and(self.run(&["mountpoint".into(), "-q".into(), text(dir)]).map(drop));
            }
            if why.is_ok() || start.elapsed() > Duration::from_secs(10) {
                return why.map_err(|e| format!("not mounted after 10 s: {e}"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Makes the files for the random jobs and the synchronous ones.
    fn prepare(&self, row: Row, sizes: &Sizes) -> Result<(), String> {
        if let Some(threads) = row.sync_threads() {
            self.run(&fio_sync_files(&self.db, threads))?;
            return self.run(&["sync".into(), "-f".into(), text(&self.db)]).map(drop);
        }
        if row != Row::RandRead {
            return Ok(());
        }
        // Its room is needed.
        self.run(&["rm".into(), "-f".into(), text(&self.dir.join("seq"))])?;
        let mut fill = Sizes { seq: sizes.db, ..sizes.clone() };
        fill.db = 0;
        self.run(&fio(Row::SeqWrite, &self.db.join("db"), &fill, false, 0)).map(drop)
    }

    fn loop_args(&self, row: Row, sizes: &Sizes) -> Result<Vec<String>, String> {
        let me = std::env::current_exe().map_err(|e| format!("where is this program: {e}"))?;
        let mut args = vec![text(&me), "bench-fs".into(), "--job".into(), row.name().into()];
        if row == Row::Tree {
            args.extend([text(&self.tree), text(&self.dir.join("tree"))]);
        } else {
            args.extend([text(&self.dir.join("small")), sizes.files.to_string()]);
        }
        Ok(args)
    }
}

/// A row's job on a mounted file system; `sync` makes it durable.
fn mounted_job(
    m: &Mounted,
    row: Row,
    sizes: &Sizes,
    sync: &mut dyn FnMut() -> Result<(), String>,
) -> Result<Figures, String> {
    let write = row.writes();
    if let Some(threads) = row.sync_threads() {
        // The timed writes are durable already.
        return Figures::from_fio(&m.run(&fio_sync(&m.db, threads, sizes.sync_secs, false))?, true);
    }
    // Sequential jobs use the page cache as ordinary programs do; programs with random records have
    // caches of their own, so these jobs bypass it.
    let mut figures = match row {
        Row::SeqWrite | Row::SeqRead => {
            Figures::from_fio(&m.run(&fio(row, &m.dir.join("seq"), sizes, false, 0))?, write)?
        }
        Row::RandRead => Figures::from_fio(&m.run(&fio(row, &m.db.join("db"), sizes, true, 0))?, write)?,
        Row::Overwrite => {
            let mut secs = sizes.overwrite_secs;
            loop {
                let f = Figures::from_fio(&m.run(&fio(row, &m.db.join("db"), sizes, true, secs))?, write)?;
                if f.bytes >= sizes.overwrite_bytes as f64 || secs >= 300 {
                    break f;
                }
                // Too slow to show the steady state: once more, long enough.
                secs = ((secs as f64 * sizes.overwrite_bytes as f64 / f.bytes * 1.1) as u64).clamp(secs + 1, 300);
            }
        }
        _ => Figures::from_job(&m.run(&m.loop_args(row, sizes)?)?)?,
    };
    if write {
        let start = Instant::now();
        m.run(&["sync".into(), "-f".into(), text(&m.dir)])?;
        sync()?;
        figures.secs += start.elapsed().as_secs_f64();
    }
    Ok(figures)
}

/// Peak memory of a process, counted anew from now on.
fn peak_of(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kib: u64 =
        status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?.trim().trim_end_matches(" kB").parse().ok()?;
    // Where this is refused the figure is that of all rows so far.
    let _ = std::fs::write(format!("/proc/{pid}/clear_refs"), "5");
    Some(kib << 10)
}

/// The bare image file, through fio.
pub(crate) struct Raw {
    file: PathBuf,
}

impl Raw {
    /// On an image of its own.
    pub(crate) fn new(o: &Options) -> Result<Raw, String> {
        let file = o.dir.join("raw.img");
        make_image(&file, 2 << 30)?;
        Ok(Raw { file })
    }

    /// The control of a row.
    pub(crate) fn job(&self, row: Row, sizes: &Sizes) -> Result<Figures, String> {
        if let Some(threads) = row.sync_threads() {
            return Figures::from_fio(&output(command(&fio_sync(&self.file, threads, sizes.sync_secs, true)))?, true);
        }
        let out = output(command(&fio(row, &self.file, sizes, true, sizes.raw_secs)))?;
        let mut figures = Figures::from_fio(&out, row.writes())?;
        if row.writes() {
            let start = Instant::now();
            output(command(&[OsStr::new("sync"), OsStr::new("-d"), self.file.as_os_str()]))?;
            figures.secs += start.elapsed().as_secs_f64();
        }
        Ok(figures)
    }
}

/// A directory of the file system that holds the images.
pub(crate) struct Plain {
    m: Mounted,
    top: PathBuf,
}

impl Plain {
    /// In a folder called `name`.
    pub(crate) fn find(o: &Options, name: &str) -> Result<Plain, String> {
        let top = o.dir.join(name);
        let m = Mounted { prefix: Vec::new(), dir: top.clone(), db: top.clone(), tree: o.tree.clone() };
        Ok(Plain { m, top })
    }
}

impl Contestant for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }
    fn start(&mut self) -> Result<(), String> {
        let _ = std::fs::remove_dir_all(&self.top);
        std::fs::create_dir_all(&self.top).map_err(|e| format!("{}: {e}", self.top.display()))
    }
    fn prepare(&mut self, row: Row, sizes: &Sizes) -> Result<(), String> {
        if row == Row::Create || row == Row::Tree {
            let _ = std::fs::remove_dir_all(self.top.join("small"));
            let _ = std::fs::remove_dir_all(self.top.join("tree"));
        }
        // The control is asked for the same row again and again; others for the files of earlier
        // rows.
        let small = self.top.join("small/d000/file-000000");
        if (row == Row::Stat || row == Row::Remove) && !small.exists() {
            self.m.run(&self.m.loop_args(Row::Create, sizes)?)?;
        }
        self.m.prepare(row, sizes)
    }
    fn job(&mut self, row: Row, sizes: &Sizes) -> Result<Figures, String> {
        mounted_job(&self.m, row, sizes, &mut || Ok(()))
    }
    fn stop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.top);
    }
}

/// ext4 on a loop device over an image file, with the same work as a pool on an image file.
pub(crate) struct Ext4 {
    image: PathBuf,
    m: Mounted,
    up: bool,
}

impl Ext4 {
    /// On an image of its own.
    pub(crate) fn find(o: &Options) -> Result<Ext4, String> {
        if !crate::bench_fs::in_path("mkfs.ext4") {
            return Err("mkfs.ext4 is missing (apt-get install e2fsprogs)".into());
        }
        let image = o.dir.join("ext4.img");
        make_image(&image, 2 << 30)?;
        let mnt = o.dir.join("ext4");
        std::fs::create_dir_all(&mnt).map_err(|e| format!("{}: {e}", mnt.display()))?;
        let m = Mounted { prefix: Vec::new(), dir: mnt.clone(), db: mnt, tree: o.tree.clone() };
        Ok(Ext4 { image, m, up: false })
    }
}

impl Contestant for Ext4 {
    fn name(&self) -> &'static str {
        "ext4"
    }
    fn start(&mut self) -> Result<(), String> {
        self.stop();
        let (image, dir) = (text(&self.image), text(&self.m.dir));
        // Its tables at once, not in the background while others are timed.
        let lazy = "lazy_itable_init=0,lazy_journal_init=0,nodiscard";
        output(command(&["mkfs.ext4", "-q", "-F", "-E", lazy, &image]))?;
        output(command(&["mount", "-o", "loop", &image, &dir]))?;
        self.up = true;
        self.m.wait_mounted()
    }
    fn prepare(&mut self, row: Row, sizes: &Sizes) -> Result<(), String> {
        self.m.prepare(row, sizes)
    }
    fn job(&mut self, row: Row, sizes: &Sizes) -> Result<Figures, String> {
        mounted_job(&self.m, row, sizes, &mut || Ok(()))
    }
    fn stop(&mut self) {
        if std::mem::take(&mut self.up) {
            let _ = output(command(&["umount", &text(&self.m.dir)]));
        }
    }
}

/// Debian's zfs-fuse 0.7, in a mount namespace of its own with private folders for its state.
pub(crate) struct ZfsFuse {
    root: PathBuf,
    image: PathBuf,
    m: Mounted,
    daemon: Option<Child>,
    syncs: u64,
}

const ZF_MOUNT: &str = "/run/bench";

impl ZfsFuse {
    /// Downloads and unpacks the package where that was not done before.
    pub(crate) fn find(o: &Options) -> Result<ZfsFuse, String> {
        let cache = match std::env::var_os("XDG_CACHE_HOME").filter(|c| Path::new(c).is_absolute()) {
            Some(cache) => PathBuf::from(cache),
            None => {
                PathBuf::from(std::env::var_os("HOME").ok_or("neither XDG_CACHE_HOME nor HOME is set")?).join(".cache")
            }
        }
        .join("weir-bench");
        let root = cache.join("root");
        if !root.join("sbin/zfs-fuse").exists() {
            std::fs::create_dir_all(&cache).map_err(|e| format!("{}: {e}", cache.display()))?;
            let script =
                "apt-get -q download zfs-fuse libfuse2 && for d in *.deb; do dpkg -x \"$d\" root || exit 1; done";
            let mut sh = command(&["sh", "-c", script]);
            sh.current_dir(&cache);
            output(sh).map_err(|e| format!("the packages zfs-fuse and libfuse2 could not be had: {e}"))?;
        }
        let image = o.dir.join("zfs-fuse.img");
        make_image(&image, o.image)?;
        // It looks for pools in a folder, where those of the others must not be.
        let only = o.dir.join("zfs-fuse");
        let _ = std::fs::remove_dir_all(&only);
        std::fs::create_dir_all(&only).map_err(|e| format!("{}: {e}", only.display()))?;
        let link = only.join("zfs-fuse.img");
        std::os::unix::fs::symlink(&image, &link).map_err(|e| format!("{}: {e}", link.display()))?;
        let image = link;
        let dir = PathBuf::from(ZF_MOUNT);
        let m = Mounted { prefix: Vec::new(), db: dir.join("db"), dir, tree: o.tree.clone() };
        Ok(ZfsFuse { root, image, m, daemon: None, syncs: 0 })
    }

    fn tool(&self, tool: &str, args: &[&str]) -> Result<(), String> {
        let mut all =
            vec!["env".to_string(), format!("LD_LIBRARY_PATH={}", text(&self.root.join("lib/x86_64-linux-gnu")))];
        all.push(text(&self.root.join("sbin").join(tool)));
        all.extend(args.iter().map(ToString::to_string));
        self.m.run(&all).map(drop)
    }

    fn sync(&mut self) -> Result<(), String> {
        self.syncs += 1;
        self.tool("zfs", &["set", &format!("bench:sync={}", self.syncs), "tank"])
    }
}

impl Contestant for ZfsFuse {
    fn name(&self) -> &'static str {
        "zfs-fuse"
    }

    fn start(&mut self) -> Result<(), String> {
        self.stop();
        // The options are those of the package's configuration file, except for the cache.
        let script = format!(
            "mount -t tmpfs none /var/lib && mkdir -p /var/lib/zfs && mount -t tmpfs none /run && mkdir -p /run/zfs /run/lock/zfs {ZF_MOUNT} && \
             LD_LIBRARY_PATH={0}/lib/x86_64-linux-gnu exec {0}/sbin/zfs-fuse --no-daemon --no-kstat-mount --max-arc-size {1} --fuse-attr-timeout 3600 \
             --fuse-entry-timeout 3600 --fuse-mount-options default_permissions --zfs-prefetch-disable",
            self.root.display(),
            ARC_MAX >> 20
        );
        let child = command(&["unshare", "-m", "--propagation", "private", "sh", "-c", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| format!("unshare: {e}"))?;
        self.m.prefix =
            ["nsenter", "-m", "-t", &child.id().to_string(), "--"].iter().map(ToString::to_string).collect();
        self.daemon = Some(child);
        let image = text(&self.image);
        let args = ["create", "-f", "-m", ZF_MOUNT, "tank", &image];
        let start = Instant::now();
        while let Err(why) = self.tool("zpool", &args) {
            if start.elapsed() > Duration::from_secs(10) {
                return Err(why);
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        self.tool("zfs", &["create", "-o", "recordsize=8k", "tank/db"])?;
        self.m.wait_mounted()
    }

    fn prepare(&mut self, row: Row, sizes: &Sizes) -> Result<(), String> {
        self.m.prepare(row, sizes)
    }

    fn cold(&mut self) -> Result<(), String> {
        self.tool("zpool", &["export", "tank"])?;
        drop_caches()?;
        let dir = text(self.image.parent().unwrap_or(Path::new("/")));
        self.tool("zpool", &["import", "-d", &dir, "tank"])?;
        self.m.wait_mounted()
    }

    fn job(&mut self, row: Row, sizes: &Sizes) -> Result<Figures, String> {
        let m = self.m.clone();
        mounted_job(&m, row, sizes, &mut || self.sync())
    }

    fn peak(&mut self) -> Option<u64> {
        peak_of(self.daemon.as_ref()?.id())
    }

    fn stop(&mut self) {
        if self.daemon.is_none() {
            return;
        }
        // The pool may be gone already.
        let _ = self.tool("zpool", &["export", "tank"]);
        if let Some(mut child) = self.daemon.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// How long tasks kept the engine's thread during a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Turns {
    /// Turns by the time for which they used a processor: entry `n` counts those from 2^n ns on.
    pub(crate) buckets: Vec<u64>,
    /// The longest of these times in ns, and its task.
    pub(crate) longest: Option<(u64, String)>,
    /// The longest turn by the clock, in ns: also what else ran meanwhile, here or on the machine
    /// below this one.
    pub(crate) longest_by_clock: u64,
}

impl Turns {
    /// What an empty loop sees while `load` runs: its passes take no time, so longer ones are the
    /// machine's. Passes under a microsecond are not counted.
    pub(crate) fn of_empty_loop<T>(load: impl FnOnce() -> T) -> (T, Turns) {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut turns = Turns::default();
                let (mut wall, mut cpu) = (Instant::now(), thread_cpu_time());
                while !over.load(Ordering::Relaxed) {
                    let (wall_now, cpu_now) = (Instant::now(), thread_cpu_time());
                    turns.add_pass((wall_now - wall).as_nanos() as u64, (cpu_now - cpu).as_nanos() as u64);
                    (wall, cpu) = (wall_now, cpu_now);
                }
                turns
            });
            let done = load();
            over.store(true, Ordering::Relaxed);
            (done, watcher.join().unwrap_or_default())
        })
    }

    /// Adds those of another job.
    pub(crate) fn merge(&mut self, more: Turns) {
        self.buckets.resize(self.buckets.len().max(more.buckets.len()), 0);
        self.buckets.iter_mut().zip(&more.buckets).for_each(|(n, more)| *n += more);
        self.longest = self.longest.take().max(more.longest);
        self.longest_by_clock = self.longest_by_clock.max(more.longest_by_clock);
    }

    /// Adds a pass of the empty loop, which has no task.
    fn add_pass(&mut self, took: u64, on_cpu: u64) {
        if took < 1000 {
            return;
        }
        let bucket = on_cpu.max(1).ilog2() as usize;
        self.buckets.resize(self.buckets.len().max(bucket + 1), 0);
        self.buckets[bucket] += 1;
        self.longest = self.longest.take().max(Some((on_cpu, String::new())));
        self.longest_by_clock = self.longest_by_clock.max(took);
    }

    /// Of the summary that `weir trace turns --json` ends with.
    fn parse(text: &str) -> Result<Turns, String> {
        let line = text.lines().last().unwrap_or_default();
        let v: serde_json::Value = serde_json::from_str(line).map_err(|e| format!("weir trace: {e}: {line}"))?;
        let buckets = v["turns_on_cpu"]["buckets"].as_array().ok_or("weir trace gives no turns")?;
        let longest = &v["longest_on_cpu"];
        let longest = longest["on_cpu"].as_u64().zip(longest["task"].as_str().map(str::to_string));
        let longest_by_clock = v["longest_turns"][0]["took"].as_u64().unwrap_or_default();
        Ok(Turns { buckets: buckets.iter().filter_map(|n| n.as_u64()).collect(), longest, longest_by_clock })
    }
}

/// How long this thread had a processor.
fn thread_cpu_time() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// weir as users run it.
pub(crate) struct Weir {
    name: &'static str,
    /// Whether the turns of its thread are watched, and those of the last job.
    watched: bool,
    turns: Option<Turns>,
    program: PathBuf,
    image: PathBuf,
    second: PathBuf,
    dir: PathBuf,
    m: Mounted,
    up: bool,
}

impl Weir {
    /// Builds the program.
    pub(crate) fn find(o: &Options) -> Result<Weir, String> {
        let program = match &o.weir {
            Some(program) => program.canonicalize().map_err(|e| format!("{}: {e}", program.display()))?,
            None => build(&["--package", "openweir-cli", "--bin", "weir"], "weir")?,
        };
        Weir::with(o, "weir", program)
    }

    /// The program of `--before`.
    pub(crate) fn before(o: &Options) -> Result<Weir, String> {
        let program = o.before.as_ref().ok_or("it was not named")?;
        let program = program.canonicalize().map_err(|e| format!("{}: {e}", program.display()))?;
        Weir::with(o, "before", program)
    }

    fn with(o: &Options, name: &'static str, program: PathBuf) -> Result<Weir, String> {
        let (image, second) = (o.dir.join(format!("{name}.img")), o.dir.join(format!("{name}-second.img")));
        make_image(&image, o.image)?;
        make_image(&second, 512 << 20)?;
        let dir = o.dir.join(name);
        let mnt = dir.join("mnt");
        let m = Mounted { prefix: Vec::new(), db: mnt.join("db"), dir: mnt, tree: o.tree.clone() };
        let watched = o.turns && name == "weir";
        Ok(Weir { name, watched, turns: None, program, image, second, dir, m, up: false })
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut cmd = Command::new(&self.program);
        cmd.args(args)
            .env("WEIR_RUNTIME_DIR", self.dir.join("run"))
            .env("WEIR_STATE_DIR", self.dir.join("state"))
            .env("WEIR_TUNABLES", format!("zfs_arc_max={ARC_MAX},zfs_dirty_data_max={DIRTY_MAX}"));
        cmd
    }

    fn tool(&self, args: &[&str]) -> Result<String, String> {
        output(self.command(args))
    }

    /// The daemon: the process of our program that has our runtime folder.
    fn pid(&self) -> Option<u32> {
        let ours = format!("WEIR_RUNTIME_DIR={}", self.dir.join("run").display());
        let program = self.program.canonicalize().ok()?;
        std::fs::read_dir("/proc").ok()?.flatten().find_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            if std::fs::read_link(entry.path().join("exe")).ok()? != program {
                return None;
            }
            let env = std::fs::read(entry.path().join("environ")).ok()?;
            env.split(|&b| b == 0).any(|v| v == ours.as_bytes()).then_some(pid)
        })
    }
}

/// Builds something of the workspace for release; where it is.
pub(crate) fn build(what: &[&str], file: &str) -> Result<PathBuf, String> {
    let root = crate::root();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.arg("build").arg("--release").arg("--quiet").args(what).current_dir(&root);
    // Without a limit of time: a loaded machine builds for long, and cargo ends by itself.
    let status = cargo.status().map_err(|e| format!("cargo: {e}"))?;
    if !status.success() {
        return Err(format!("it cannot be built: {status}"));
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from).unwrap_or_else(|| root.join("target"));
    let path = target.join("release").join(file);
    if path.exists() { Ok(path) } else { Err(format!("{} is missing", path.display())) }
}

impl Contestant for Weir {
    fn name(&self) -> &'static str {
        self.name
    }

    fn start(&mut self) -> Result<(), String> {
        self.stop();
        // Drop the pools of an earlier run.
        for sub in ["run", "state"] {
            let _ = std::fs::remove_dir_all(self.dir.join(sub));
        }
        for sub in ["run", "state", "mnt"] {
            std::fs::create_dir_all(self.dir.join(sub)).map_err(|e| format!("{}: {e}", self.dir.display()))?;
        }
        self.up = true;
        let mountpoint = format!("mountpoint={}", self.m.dir.display());
        self.tool(&["zpool", "create", "-f", "-O", &mountpoint, "-O", "compression=off", "tank", &text(&self.image)])?;
        self.tool(&["zfs", "create", "-o", "recordsize=8k", "tank/db"])?;
        self.tool(&["zpool", "create", "-f", "-O", "mountpoint=none", "second", &text(&self.second)])?;
        if self.pid().is_none() {
            return Err("no daemon runs after 'zpool create'".into());
        }
        Ok(())
    }

    fn prepare(&mut self, row: Row, sizes: &Sizes) -> Result<(), String> {
        self.m.prepare(row, sizes)
    }

    fn cold(&mut self) -> Result<(), String> {
        self.tool(&["zpool", "export", "tank"])?;
        drop_caches()?;
        self.tool(&["zpool", "import", "-d", &text(&self.image), "tank"])?;
        self.m.wait_mounted()
    }

    fn job(&mut self, row: Row, sizes: &Sizes) -> Result<Figures, String> {
        let watch = || self.command(&["trace", "turns", "--json", "tank"]).stdout(Stdio::piped()).spawn();
        let watch = self.watched.then(watch).transpose().map_err(|e| format!("weir trace: {e}"))?;
        let done = mounted_job(&self.m, row, sizes, &mut || self.tool(&["zpool", "sync", "tank"]).map(drop));
        if let Some(watch) = watch {
            output(command(&["kill", "-INT", &watch.id().to_string()]))?;
            let said = watch.wait_with_output().map_err(|e| format!("weir trace: {e}"))?;
            self.turns = Some(Turns::parse(&String::from_utf8_lossy(&said.stdout))?);
        }
        done
    }

    fn turns(&mut self) -> Option<Turns> {
        self.turns.take()
    }

    fn peak(&mut self) -> Option<u64> {
        peak_of(self.pid()?)
    }

    fn stop(&mut self) {
        if !self.up {
            return;
        }
        self.up = false;
        // Stopping the daemon exports or at least closes imported pools.
        let _ = self.tool(&["daemon", "stop"]);
        if let Some(pid) = self.pid() {
            std::thread::sleep(Duration::from_secs(2));
            if self.pid() == Some(pid) {
                eprintln!("bench-fs: *** weir's daemon {pid} did not end when told to ***");
                let _ = output(command(&["kill", "-9", &pid.to_string()]));
                let _ = output(command(&[OsStr::new("umount"), OsStr::new("-l"), self.m.db.as_os_str()]));
                let _ = output(command(&[OsStr::new("umount"), OsStr::new("-l"), self.m.dir.as_os_str()]));
            }
        }
    }
}

/// weir's engine without FUSE, as the example `fs_speed` drives it.
pub(crate) struct Engine {
    name: &'static str,
    /// Another write throttle than the usual one.
    throttle: Option<&'static str>,
    program: PathBuf,
    image: PathBuf,
    tree: PathBuf,
    peak: Option<u64>,
}

impl Engine {
    /// Builds the example.
    pub(crate) fn find(o: &Options) -> Result<Engine, String> {
        Engine::with(o, "engine", None)
    }

    /// The same with the write throttle of 2008.
    pub(crate) fn legacy(o: &Options) -> Result<Engine, String> {
        Engine::with(o, "legacy", Some("legacy-2008"))
    }

    fn with(o: &Options, name: &'static str, throttle: Option<&'static str>) -> Result<Engine, String> {
        let program = build(&["--package", "openweir-zpl", "--example", "fs_speed"], "examples/fs_speed")?;
        let image = o.dir.join(format!("{name}.img"));
        make_image(&image, o.image)?;
        Ok(Engine { name, throttle, program, image, tree: o.tree.clone(), peak: None })
    }

    fn tool(&mut self, what: &str, args: &[String]) -> Result<String, String> {
        let mut cmd = Command::new(&self.program);
        cmd.arg(&self.image).arg(what).args(args);
        if let Some(throttle) = self.throttle {
            cmd.env("FS_SPEED_THROTTLE", throttle);
        }
        let out = output(cmd)?;
        let line = out.lines().rfind(|l| l.starts_with('{')).unwrap_or("{}");
        let v: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
        self.peak = v["vmhwm"].as_u64().or(self.peak);
        Ok(out)
    }
}

impl Contestant for Engine {
    fn name(&self) -> &'static str {
        self.name
    }
    fn start(&mut self) -> Result<(), String> {
        self.tool("init", &[]).map(drop)
    }
    fn prepare(&mut self, row: Row, sizes: &Sizes) -> Result<(), String> {
        if row != Row::RandRead {
            return Ok(());
        }
        // If there is none, its room is not taken.
        let _ = self.tool("rm", &["seq".to_string()]);
        self.tool("fill", &[sizes.db.to_string()]).map(drop)
    }
    fn cold(&mut self) -> Result<(), String> {
        // Every job is a process of its own, which imports the pool.
        drop_caches()
    }
    fn job(&mut self, row: Row, sizes: &Sizes) -> Result<Figures, String> {
        let args = match row {
            Row::SeqWrite | Row::SeqRead => vec![sizes.seq.to_string()],
            Row::RandRead => vec![sizes.db.to_string()],
            Row::Overwrite => {
                vec![sizes.db.to_string(), sizes.overwrite_secs.to_string(), sizes.overwrite_bytes.to_string()]
            }
            Row::Create | Row::Stat | Row::Remove => vec![sizes.files.to_string()],
            Row::Tree => vec![text(&self.tree)],
            Row::Sync1 | Row::Sync8 | Row::Sync64 => {
                let args = [row.sync_threads().unwrap_or(1), sizes.sync_secs].map(|n| n.to_string());
                return Figures::from_job(&self.tool("sync-write", &args)?);
            }
        };
        Figures::from_job(&self.tool(row.name(), &args)?)
    }
    fn peak(&mut self) -> Option<u64> {
        self.peak.take()
    }
    fn stop(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_read_from_the_last_line() {
        let said = r#"{"turns_on_cpu":{"buckets":[7]}}
{"turns_on_cpu":{"buckets":[0,2,1]},"longest_turns":[{"task":"a","took":9}],"longest_on_cpu":{"task":"sync","on_cpu":5}}
"#;
        let turns = Turns { buckets: vec![0, 2, 1], longest: Some((5, "sync".into())), longest_by_clock: 9 };
        assert_eq!(Turns::parse(said), Ok(turns));
        assert!(Turns::parse("weir: no pool").is_err());
    }
}
