//! `cargo xtask bench-fs`: how fast weir is, beside zfs-fuse, a plain directory and the bare image
//! file.
//!
//! **Contestants.** *weir* is the program as users run it: a pool on an image file, mounted through
//! FUSE. *engine* is the same engine without FUSE (`crates/zpl/examples/fs_speed.rs`). *zfs-fuse*
//! is Debian's package, unpacked into a cache folder and run from there in a mount namespace of its
//! own, never installed. *plain* is a directory of the file system that holds the images. *ext4* is
//! a file system of its own on a loop device, for the rows of synchronous writes.
//!
//! **Controls.** A shared machine changes from minute to minute, so no figure stands alone: right
//! before every job of a contestant the same job runs on a control, and the ratio is reported. For
//! reads and writes of one file the control is *raw*: fio with the same threads, depth and block
//! size and O_DIRECT on an image file. For jobs with many files it is the plain directory. Ratios
//! between contestants come from the same run, in which their jobs of one row follow each other. A
//! table holds medians over the runs.
//!
//! **An older weir.** `--before PROGRAM` adds *before*, weir as that program has it, which does
//! each job beside *weir*: the table of the two tells whether a row became slower. In every second
//! run the contestants of all rows go the other way round.
//!
//! **Turns.** `--turns` watches the engine's thread during the jobs of *weir* (`weir trace turns`)
//! and adds a table of how long its tasks kept it at a time. Where a machine gives fewer processors
//! than its threads want, a turn lasts longer than its work: the table shows both, and the control
//! of the row is done once more beside an empty loop, whose longest pass says what the machine does
//! to a thread that does nothing.
//!
//! **Rules.** Every image was written once, in full, before any contestant gets it: the first write
//! to a block of a sparse file costs the host something that later ones do not. Time includes
//! making the data durable: `zpool sync`, for zfs-fuse (which has no such command) a property set,
//! which waits for a txg as well, for a directory `syncfs`, for raw `fdatasync`. *Cold* means
//! exported and imported again, with the kernel's caches dropped. Overwrites go on for 60 s and at
//! least five times `zfs_dirty_data_max` (256 MiB), so that they show the steady state.
//!
//! The normal path: [`run`] reads the options, makes the images, starts every contestant that is
//! installed and warns about the others, then for every run and row lets control and contestant do
//! the job ([`crate::bench_fs_jobs`]), and prints and writes the tables
//! ([`crate::bench_fs_table`]).

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bench_fs_contest::{Contestant, Engine, Ext4, Plain, Raw, Turns, Weir, ZfsFuse};
use crate::bench_fs_jobs::{self as jobs, Figures, Row, Sizes};
use crate::bench_fs_table::{self as table, Results};

/// The parsed command line.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Folder of images, mount points and results; on the medium that is to be measured.
    pub(crate) dir: PathBuf,
    /// How many times everything is measured.
    pub(crate) runs: usize,
    /// Smaller sizes, to try the benchmark itself.
    pub(crate) quick: bool,
    /// Whether docs/benchmarks.md is changed.
    pub(crate) write: bool,
    /// Contestants by name; empty for all.
    pub(crate) only: Vec<String>,
    /// Rows by name; empty for all.
    pub(crate) rows: Vec<String>,
    /// The tree that is copied in.
    pub(crate) tree: PathBuf,
    /// A weir that is built already; otherwise it is built.
    pub(crate) weir: Option<PathBuf>,
    /// An older weir to measure beside it.
    pub(crate) before: Option<PathBuf>,
    /// Whether the turns of weir's thread are watched.
    pub(crate) turns: bool,
    /// Whether everything measured goes before all other work of the machine.
    pub(crate) first: bool,
    /// Bytes of an image.
    pub(crate) image: u64,
}

const USAGE: &str = "usage: cargo xtask bench-fs [--dir DIR] [--runs N] [--quick] [--write] [--only NAME,...] [--rows NAME,...] [--tree DIR] [--weir PROGRAM] [--before PROGRAM] [--turns] [--first]\n\
    contestants: weir engine zfs-fuse plain, and if named legacy (the engine with the write throttle of 2008) and ext4 (on a loop device);\n\
    rows: seq-write seq-read rand-read overwrite create stat remove tree, and if named sync-1 sync-8 sync-64 (each write durable, 1 to 64 threads; with ext4 if no contestant is named)";

impl Options {
    fn parse(args: &[String]) -> Result<Options, String> {
        let mut o = Options {
            dir: crate::root().join("target/bench"),
            runs: 0,
            quick: false,
            write: false,
            only: Vec::new(),
            rows: Vec::new(),
            tree: PathBuf::new(),
            weir: None,
            before: None,
            turns: false,
            first: false,
            // Dirty data counts 24-fold against the free space (spa_asize_inflation): with less
            // room writers would wait for that.
            image: 9 << 30,
        };
        let mut it = args.iter();
        while let Some(arg) = it.next() {
            let mut value = || it.next().cloned().ok_or_else(|| format!("{arg} needs a value\n{USAGE}"));
            let list = |v: String| v.split(',').map(str::to_string).collect::<Vec<_>>();
            match arg.as_str() {
                "--dir" => o.dir = PathBuf::from(value()?),
                "--runs" => o.runs = value()?.parse().map_err(|_| format!("--runs needs a number\n{USAGE}"))?,
                "--quick" => o.quick = true,
                "--write" => o.write = true,
                "--only" => o.only = list(value()?),
                "--rows" => o.rows = list(value()?),
                "--weir" => o.weir = Some(PathBuf::from(value()?)),
                "--before" => o.before = Some(PathBuf::from(value()?)),
                "--turns" => o.turns = true,
                "--first" => o.first = true,
                "--tree" => o.tree = PathBuf::from(value()?),
                other => return Err(format!("unknown option {other}\n{USAGE}")),
            }
        }
        if o.runs == 0 {
            o.runs = if o.quick { 1 } else { 3 };
        }
        if o.tree.as_os_str().is_empty() {
            let known = ["/usr/include", "/usr/share/doc", "/usr/lib/python3", "/usr/share"];
            o.tree =
                known.iter().map(PathBuf::from).find(|p| p.is_dir()).ok_or("no tree to copy: name one with --tree")?;
        }
        if let Some(bad) = o.rows.iter().find(|r| Row::ALL.iter().all(|row| row.name() != r.as_str())) {
            return Err(format!("there is no row '{bad}'\n{USAGE}"));
        }
        if let Some(bad) = o
            .only
            .iter()
            .find(|c| !["weir", "before", "engine", "legacy", "zfs-fuse", "plain", "ext4"].contains(&c.as_str()))
        {
            return Err(format!("there is no contestant '{bad}'\n{USAGE}"));
        }
        // Rows that use the files of an earlier row add that row.
        for (row, earlier) in
            [("seq-read", "seq-write"), ("overwrite", "rand-read"), ("stat", "create"), ("remove", "create")]
        {
            let has = |name: &str| o.rows.iter().any(|r| r == name);
            if has(row) && !has(earlier) {
                o.rows.push(earlier.into());
            }
        }
        std::fs::create_dir_all(&o.dir).map_err(|e| format!("{}: {e}", o.dir.display()))?;
        o.dir = o.dir.canonicalize().map_err(|e| format!("{}: {e}", o.dir.display()))?;
        Ok(o)
    }

    fn wants(&self, name: &str) -> bool {
        // The throttle of 2008 and ext4 are of interest in some rows only.
        let usual = match name {
            "legacy" => false,
            "before" => return self.before.is_some(),
            "ext4" => Row::ALL.iter().any(|row| row.sync_threads().is_some() && self.wants_row(*row)),
            _ => true,
        };
        self.only.is_empty() && usual || self.only.iter().any(|n| n == name)
    }

    fn wants_row(&self, row: Row) -> bool {
        self.rows.is_empty() && row.sync_threads().is_none() || self.rows.iter().any(|n| n == row.name())
    }
}

/// Runs the command.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    if args.first().map(String::as_str) == Some("--job") {
        // The loops over many files run in a process of their own, because a contestant's mount may
        // be in another mount namespace.
        return jobs::child(&args[1..]);
    }
    let o = Options::parse(args)?;
    if !in_path("fio") {
        return Err("fio is missing: install it (apt-get install fio)".into());
    }
    if o.first && std::env::var_os(FIRST).is_none() {
        return go_first(args);
    }
    let sizes = if o.quick { Sizes::quick() } else { Sizes::full() };
    let mut contestants: Vec<Box<dyn Contestant>> = Vec::new();
    let mut missing = Vec::new();
    // zfs-fuse first: its mount namespace begins as a copy, and would keep the mounts of others
    // busy.
    for name in ["zfs-fuse", "weir", "before", "engine", "legacy", "plain", "ext4"] {
        if !o.wants(name) {
            continue;
        }
        let found: Result<Box<dyn Contestant>, String> = match name {
            "weir" => Weir::find(&o).map(|c| Box::new(c) as Box<dyn Contestant>),
            "before" => Weir::before(&o).map(|c| Box::new(c) as Box<dyn Contestant>),
            "engine" => Engine::find(&o).map(|c| Box::new(c) as Box<dyn Contestant>),
            "legacy" => Engine::legacy(&o).map(|c| Box::new(c) as Box<dyn Contestant>),
            "ext4" => Ext4::find(&o).map(|c| Box::new(c) as Box<dyn Contestant>),
            "zfs-fuse" => ZfsFuse::find(&o).map(|c| Box::new(c) as Box<dyn Contestant>),
            _ => Plain::find(&o, "plain").map(|c| Box::new(c) as Box<dyn Contestant>),
        };
        match found {
            Ok(c) => contestants.push(c),
            Err(why) => missing.push((name.to_string(), why)),
        }
    }
    for (name, why) in &missing {
        eprintln!("bench-fs: *** NOT MEASURED: {name}: {why} ***");
    }
    let raw = Raw::new(&o)?;
    let mut control = Plain::find(&o, "control")?;
    control.start()?;
    let mut results = Results::new(&o, &sizes, missing);
    for n in 0..o.runs {
        if let Err(why) = one_run(&o, &sizes, n, &mut contestants, &raw, &mut control, &mut results) {
            contestants.iter_mut().for_each(|c| c.stop());
            return Err(why);
        }
    }
    control.stop();
    let text = table::markdown(&results);
    println!("{text}");
    let file = o.dir.join("results.json");
    std::fs::write(&file, results.json()).map_err(|e| format!("{}: {e}", file.display()))?;
    if o.write {
        table::write_doc(&crate::root().join("docs/benchmarks.md"), &text)?;
    }
    Ok(())
}

/// Set in the process that has the highest priority.
const FIRST: &str = "WEIR_BENCH_FIRST";

/// Runs this command once more with the highest priority, so that other work of a shared machine
/// disturbs less. Where the kernel groups processes by session, the group's priority counts, so it
/// gets a session of its own.
fn go_first(args: &[String]) -> Result<(), String> {
    let me = std::env::current_exe().map_err(|e| format!("where is this program: {e}"))?;
    let script = "echo -20 >/proc/self/autogroup 2>/dev/null; exec nice -n -20 \"$@\"";
    let mut cmd = Command::new("setsid");
    cmd.args(["-w", "sh", "-c", script, "sh"]).arg(me).arg("bench-fs").args(args).env(FIRST, "1");
    let status = cmd.status().map_err(|e| format!("setsid: {e}"))?;
    if status.success() { Ok(()) } else { Err("the benchmark failed".into()) }
}

fn one_run(
    o: &Options,
    sizes: &Sizes,
    n: usize,
    contestants: &mut Vec<Box<dyn Contestant>>,
    raw: &Raw,
    control: &mut Plain,
    results: &mut Results,
) -> Result<(), String> {
    let mut up = Vec::new();
    for mut c in contestants.drain(..) {
        eprintln!("bench-fs: run {}: starting {}", n + 1, c.name());
        match c.start() {
            Ok(()) => up.push(c),
            Err(why) => {
                c.stop();
                eprintln!("bench-fs: *** NOT MEASURED: {}: {why} ***", c.name());
                results.missing.push((c.name().to_string(), why));
            }
        }
    }
    *contestants = up;
    for row in Row::ALL {
        if !o.wants_row(row) {
            continue;
        }
        // Every second run the other way round: the order can decide more than the program.
        let mut order: Vec<&mut Box<dyn Contestant>> = contestants.iter_mut().collect();
        if n % 2 == 1 {
            order.reverse();
        }
        for c in order {
            let against = match row.one_file() {
                true => raw.job(row, sizes)?,
                false if c.name() == "plain" => Figures::default(),
                false => measured(control, row, sizes, o)?,
            };
            match measured(c.as_mut(), row, sizes, o) {
                Ok(figures) => {
                    eprintln!("bench-fs: {:<10} {:<9} {}", row.name(), c.name(), table::rate(row, &figures));
                    results.add(n, row, c.name(), figures, against);
                }
                Err(why) => {
                    eprintln!("bench-fs: *** {} FAILED in {}: {why} ***", c.name(), row.name());
                    results.failed.push((c.name().to_string(), row, why));
                }
            }
            if let Some(turns) = c.turns() {
                results.turns(row, turns);
                // The same load once more beside the loop, which would slow the control's own job.
                let loads = || match row.one_file() {
                    true => raw.job(row, sizes).map(drop),
                    false => measured(control, row, sizes, o).map(drop),
                };
                let (done, empty) = Turns::of_empty_loop(loads);
                done?;
                results.empty_loop(row, empty);
            }
            if let Some(peak) = c.peak() {
                results.peak(row, c.name(), peak);
            }
        }
    }
    contestants.iter_mut().for_each(|c| c.stop());
    Ok(())
}

/// One job of one contestant, prepared for its row.
fn measured(c: &mut dyn Contestant, row: Row, sizes: &Sizes, o: &Options) -> Result<Figures, String> {
    c.prepare(row, sizes)?;
    if row.cold() {
        c.cold()?;
    }
    if row == Row::Tree {
        // The source comes from memory, even if the caches were dropped before.
        jobs::warm(&o.tree)?;
    }
    c.job(row, sizes)
}

/// True if a program can be found.
pub(crate) fn in_path(program: &str) -> bool {
    ["/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/bin"].iter().any(|d| Path::new(d).join(program).exists())
}

/// Writes every block of an image once; one that has its size was.
pub(crate) fn make_image(path: &Path, bytes: u64) -> Result<(), String> {
    if std::fs::metadata(path).is_ok_and(|m| m.len() == bytes) {
        return Ok(());
    }
    eprintln!("bench-fs: writing {} once ({} MiB)", path.display(), bytes >> 20);
    let part = path.with_extension("part");
    let _ = std::fs::remove_file(&part);
    let mut fio = Command::new("fio");
    fio.args(["--name=image", "--rw=write", "--bs=1M", "--direct=1", "--ioengine=psync", "--fallocate=none"]);
    fio.args(["--refill_buffers=1", "--end_fsync=1", "--minimal"]);
    fio.arg(format!("--filename={}", part.display())).arg(format!("--size={bytes}"));
    jobs::output(fio)?;
    std::fs::rename(&part, path).map_err(|e| format!("{}: {e}", path.display()))
}
