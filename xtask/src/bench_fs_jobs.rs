//! The jobs of the benchmark: fio's command lines, the loops over many files, and the figures of
//! both.
//!
//! A job is done by a process: fio, or this program itself as `xtask bench-fs --job ...`, started
//! directly or through `nsenter`. Both answer with JSON, which becomes [`Figures`]. The example
//! `fs_speed` answers in the second form too.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// A line of the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Row {
    /// A new file is written from begin to end, 1 MiB at a time.
    SeqWrite,
    /// It is read, cold, 1 MiB at a time.
    SeqRead,
    /// 8 threads read blocks of 8 KiB at random, cold, each block once.
    RandRead,
    /// 8 threads overwrite blocks of 8 KiB at random.
    Overwrite,
    /// Files of 1 KiB are created, 1000 in a directory.
    Create,
    /// They are listed and their attributes read, cold.
    Stat,
    /// They are removed.
    Remove,
    /// A tree is copied in.
    Tree,
    /// One thread overwrites its file 8 KiB at a time, each write durable before the next.
    Sync1,
    /// The same with 8 threads.
    Sync8,
    /// The same with 64 threads.
    Sync64,
}

impl Row {
    /// All, in the order in which they run: later ones use what earlier ones made.
    pub(crate) const ALL: [Row; 11] = [
        Row::SeqWrite,
        Row::SeqRead,
        Row::RandRead,
        Row::Overwrite,
        Row::Create,
        Row::Stat,
        Row::Remove,
        Row::Tree,
        Row::Sync1,
        Row::Sync8,
        Row::Sync64,
    ];

    /// Its name in options, files and jobs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Row::SeqWrite => "seq-write",
            Row::SeqRead => "seq-read",
            Row::RandRead => "rand-read",
            Row::Overwrite => "overwrite",
            Row::Create => "create",
            Row::Stat => "stat",
            Row::Remove => "remove",
            Row::Tree => "tree",
            Row::Sync1 => "sync-1",
            Row::Sync8 => "sync-8",
            Row::Sync64 => "sync-64",
        }
    }
    /// Threads of a row in which each write is durable before the next.
    pub(crate) fn sync_threads(self) -> Option<u64> {
        match self {
            Row::Sync1 => Some(1),
            Row::Sync8 => Some(8),
            Row::Sync64 => Some(64),
            _ => None,
        }
    }
    /// True if the job is about one large file, so that fio does it and *raw* is the control.
    pub(crate) fn one_file(self) -> bool {
        matches!(self, Row::SeqWrite | Row::SeqRead | Row::RandRead | Row::Overwrite) || self.sync_threads().is_some()
    }
    /// True if nothing may be cached before.
    pub(crate) fn cold(self) -> bool {
        matches!(self, Row::SeqRead | Row::RandRead | Row::Stat)
    }
    /// True if the rate is bytes per second, not operations.
    pub(crate) fn in_bytes(self) -> bool {
        matches!(self, Row::SeqWrite | Row::SeqRead | Row::Tree)
    }
    /// True if something is changed, so that the time includes making it durable.
    pub(crate) fn writes(self) -> bool {
        !matches!(self, Row::SeqRead | Row::RandRead | Row::Stat)
    }
}

/// How much is done.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    /// Bytes of the file written and read in sequence.
    pub(crate) seq: u64,
    /// Bytes of the file read and overwritten at random.
    pub(crate) db: u64,
    /// Seconds of overwriting, at least.
    pub(crate) overwrite_secs: u64,
    /// Bytes overwritten, at least.
    pub(crate) overwrite_bytes: u64,
    /// Seconds of overwriting the raw file.
    pub(crate) raw_secs: u64,
    /// Small files.
    pub(crate) files: u64,
    /// Seconds of synchronous writes.
    pub(crate) sync_secs: u64,
}

/// Bytes of the file that each thread of the synchronous rows overwrites from begin to end, again
/// and again.
pub(crate) const SYNC_FILE: u64 = 8 << 20;

/// `zfs_dirty_data_max` in all contestants that have it.
pub(crate) const DIRTY_MAX: u64 = 256 << 20;
/// `zfs_arc_max` in all contestants that have it.
pub(crate) const ARC_MAX: u64 = 512 << 20;
/// Threads of the random jobs.
pub(crate) const THREADS: u64 = 8;
const PER_DIR: u64 = 1000;
const SMALL: usize = 1024;

impl Sizes {
    /// Those of the published table.
    pub(crate) fn full() -> Sizes {
        Sizes {
            seq: 2 << 30,
            db: 1 << 30,
            overwrite_secs: 60,
            overwrite_bytes: 5 * DIRTY_MAX,
            raw_secs: 20,
            files: 20_000,
            sync_secs: 10,
        }
    }
    /// Those that only show that everything works.
    pub(crate) fn quick() -> Sizes {
        Sizes {
            seq: 512 << 20,
            db: 128 << 20,
            overwrite_secs: 8,
            overwrite_bytes: 0,
            raw_secs: 3,
            files: 3_000,
            sync_secs: 3,
        }
    }
}

/// The figures of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Figures {
    /// Seconds, of making it durable too.
    pub(crate) secs: f64,
    /// Bytes read or written.
    pub(crate) bytes: f64,
    /// Operations.
    pub(crate) ops: f64,
    /// Latencies of single operations in microseconds: median, 99 %, 99.9 %, longest.
    pub(crate) lat: [f64; 4],
}

impl Figures {
    /// Bytes or operations per second, as the row counts.
    pub(crate) fn rate(&self, row: Row) -> f64 {
        if self.secs <= 0.0 { 0.0 } else { (if row.in_bytes() { self.bytes } else { self.ops }) / self.secs }
    }

    /// The figures from fio's `--output-format=json`.
    pub(crate) fn from_fio(text: &str, write: bool) -> Result<Figures, String> {
        // Notes of fio may come before the JSON.
        let json = text.find('{').map_or("", |at| &text[at..]);
        let v: Value = serde_json::from_str(json).map_err(|e| format!("fio's answer: {e}: {text}"))?;
        let job = &v["jobs"][0];
        if job["error"].as_i64().unwrap_or(-1) != 0 {
            return Err(format!("fio: error {} in the job", job["error"]));
        }
        let side = &job[if write { "write" } else { "read" }];
        let num = |v: &Value| v.as_f64().unwrap_or(0.0);
        let clat = &side["clat_ns"];
        let pct = |p: &str| num(&clat["percentile"][p]) / 1000.0;
        let f = Figures {
            secs: num(&side["runtime"]) / 1000.0,
            bytes: num(&side["io_bytes"]),
            ops: num(&side["total_ios"]),
            lat: [pct("50.000000"), pct("99.000000"), pct("99.900000"), num(&clat["max"]) / 1000.0],
        };
        if f.ops == 0.0 { Err(format!("fio did nothing: {text}")) } else { Ok(f) }
    }

    /// The figures from a job of this program.
    pub(crate) fn from_job(text: &str) -> Result<Figures, String> {
        let line = text.lines().rfind(|l| l.starts_with('{')).unwrap_or("");
        let v: Value = serde_json::from_str(line).map_err(|e| format!("a job's answer: {e}: {text}"))?;
        let num = |name: &str| v[name].as_f64().unwrap_or(0.0);
        Ok(Figures {
            secs: num("secs"),
            bytes: num("bytes"),
            ops: num("ops"),
            lat: [num("p50"), num("p99"), num("p999"), num("max")],
        })
    }
}

/// The common part of fio's command lines.
fn fio_args() -> Vec<String> {
    let fixed = ["fio", "--name=job", "--ioengine=psync", "--thread", "--group_reporting", "--fallocate=none"];
    fixed.into_iter().chain(["--output-format=json"]).map(str::to_string).collect()
}

/// How fio does a row on `file`.
pub(crate) fn fio(row: Row, file: &Path, sizes: &Sizes, direct: bool, secs: u64) -> Vec<String> {
    let mut args = fio_args();
    args.push(format!("--filename={}", file.display()));
    args.push(format!("--direct={}", u8::from(direct)));
    let more = match row {
        Row::SeqWrite => vec!["--rw=write".into(), "--bs=1M".into(), format!("--size={}", sizes.seq)],
        Row::SeqRead => vec!["--rw=read".into(), "--bs=1M".into(), format!("--size={}", sizes.seq)],
        // A part of the file for each thread, so that none hits data that another has read.
        Row::RandRead | Row::Overwrite => vec![
            "--bs=8k".into(),
            format!("--numjobs={THREADS}"),
            format!("--size={}", sizes.db / THREADS),
            format!("--offset_increment={}", sizes.db / THREADS),
            format!("--rw={}", if row == Row::RandRead { "randread" } else { "randwrite" }),
        ],
        _ => Vec::new(),
    };
    args.extend(more);
    if row == Row::Overwrite {
        args.extend(["--time_based".into(), format!("--runtime={secs}"), "--norandommap".into()]);
    }
    args
}

/// How fio writes synchronously: to a file of each thread in the folder `at`, or, on the bare image
/// `at`, to a part for each.
pub(crate) fn fio_sync(at: &Path, threads: u64, secs: u64, bare: bool) -> Vec<String> {
    let mut args = sync_files(at, threads, bare);
    args.extend(["--bs=8k".into(), "--sync=dsync".into(), "--time_based".into(), format!("--runtime={secs}")]);
    args
}

/// How fio makes the files of [`fio_sync`].
pub(crate) fn fio_sync_files(at: &Path, threads: u64) -> Vec<String> {
    let mut args = sync_files(at, threads, false);
    args.push("--bs=1M".into());
    args
}

fn sync_files(at: &Path, threads: u64, bare: bool) -> Vec<String> {
    let mut args = fio_args();
    args.extend(["--rw=write".into(), format!("--numjobs={threads}"), format!("--size={SYNC_FILE}")]);
    if bare {
        args.extend([format!("--filename={}", at.display()), format!("--offset_increment={SYNC_FILE}")]);
        args.push("--direct=1".into());
    } else {
        args.extend([format!("--directory={}", at.display()), "--filename_format=sync-$jobnum".into()]);
    }
    args
}

/// Runs a program to its end; returns its output. It is killed when it takes longer than any job
/// may.
pub(crate) fn output(mut cmd: Command) -> Result<String, String> {
    const LIMIT: Duration = Duration::from_secs(900);
    let what = format!("{cmd:?}");
    let mut child = cmd
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("{what}: {e}"))?;
    let drain = |mut from: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            // Unread output is only missing in a message.
            let _ = from.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        })
    };
    let out = child.stdout.take().map(|s| drain(Box::new(s)));
    let err = child.stderr.take().map(|s| drain(Box::new(s)));
    let start = Instant::now();
    let status = loop {
        match child.try_wait().map_err(|e| format!("{what}: {e}"))? {
            Some(status) => break status,
            None if start.elapsed() > LIMIT => {
                let _ = child.kill();
                return Err(format!("{what}: not done after {} s", LIMIT.as_secs()));
            }
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    let join = |t: Option<std::thread::JoinHandle<String>>| t.and_then(|t| t.join().ok()).unwrap_or_default();
    let (out, err) = (join(out), join(err));
    if status.success() { Ok(out) } else { Err(format!("{what}: {status}: {}{}", out.trim(), err.trim())) }
}

fn walk(dir: &Path, visit: &mut dyn FnMut(&Path, &fs::Metadata) -> std::io::Result<()>) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let meta = fs::symlink_metadata(&path)?;
        visit(&path, &meta)?;
        if meta.is_dir() {
            walk(&path, visit)?;
        }
    }
    Ok(())
}

/// Reads a tree, so that the kernel has it in memory.
pub(crate) fn warm(tree: &Path) -> Result<(), String> {
    walk(tree, &mut |path, meta| {
        if meta.is_file() {
            std::io::copy(&mut File::open(path)?, &mut std::io::sink())?;
        }
        Ok(())
    })
    .map_err(|e| format!("{}: {e}", tree.display()))
}

/// Latencies of single operations.
#[derive(Default)]
struct Laps {
    ns: Vec<u64>,
    bytes: u64,
}

impl Laps {
    fn time<T>(&mut self, what: impl FnOnce() -> std::io::Result<T>) -> std::io::Result<T> {
        let start = Instant::now();
        let out = what()?;
        self.ns.push(start.elapsed().as_nanos() as u64);
        Ok(out)
    }

    fn json(mut self, secs: f64) -> Value {
        self.ns.sort_unstable();
        let at = |part: f64| {
            let i = ((self.ns.len() as f64 * part) as usize).min(self.ns.len().saturating_sub(1));
            self.ns.get(i).map_or(0.0, |&ns| ns as f64 / 1000.0)
        };
        json!({ "secs": secs, "bytes": self.bytes, "ops": self.ns.len(), "p50": at(0.5), "p99": at(0.99), "p999": at(0.999), "max": at(1.0) })
    }
}

fn small_file(dir: &Path, i: u64) -> PathBuf {
    dir.join(format!("d{:03}", i / PER_DIR)).join(format!("file-{i:06}"))
}

/// `xtask bench-fs --job WHAT ARGS...`: does a loop and prints its figures.
pub(crate) fn child(args: &[String]) -> Result<(), String> {
    let arg = |i: usize| args.get(i).map(String::as_str).unwrap_or("");
    let (what, dir) = (arg(0), Path::new(arg(1)));
    let count: u64 = arg(2).parse().unwrap_or(0);
    let mut laps = Laps::default();
    let start = Instant::now();
    let done = match what {
        "create" => (0..count).try_for_each(|i| {
            if i % PER_DIR == 0 {
                fs::create_dir_all(dir.join(format!("d{:03}", i / PER_DIR)))?;
            }
            let data = [i as u8 | 1; SMALL];
            laps.bytes += SMALL as u64;
            laps.time(|| File::create(small_file(dir, i))?.write_all(&data))
        }),
        "stat" => fs::read_dir(dir).and_then(|dirs| {
            for sub in dirs {
                for entry in fs::read_dir(sub?.path())? {
                    let path = entry?.path();
                    laps.time(|| fs::symlink_metadata(&path))?;
                }
            }
            Ok(())
        }),
        "remove" => (0..count).try_for_each(|i| {
            laps.time(|| fs::remove_file(small_file(dir, i)))?;
            if i % PER_DIR == PER_DIR - 1 || i + 1 == count {
                fs::remove_dir(dir.join(format!("d{:03}", i / PER_DIR)))?;
            }
            Ok(())
        }),
        "tree" => copy_tree(dir, Path::new(arg(2)), &mut laps),
        other => return Err(format!("there is no job '{other}'")),
    };
    done.map_err(|e| format!("{what} in {}: {e}", dir.display()))?;
    println!("{}", laps.json(start.elapsed().as_secs_f64()));
    Ok(())
}

/// Copies files, directories and symbolic links as `cp -r` does, one after the other.
fn copy_tree(from: &Path, to: &Path, laps: &mut Laps) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    let mut buf = vec![0u8; 1 << 20];
    walk(from, &mut |path, meta| {
        let new = to.join(path.strip_prefix(from).map_err(std::io::Error::other)?);
        let mut bytes = 0;
        laps.time(|| {
            if meta.is_dir() {
                fs::create_dir(&new)
            } else if meta.is_symlink() {
                std::os::unix::fs::symlink(fs::read_link(path)?, &new)
            } else if meta.is_file() {
                let (mut source, mut target) = (File::open(path)?, File::create(&new)?);
                loop {
                    let n = source.read(&mut buf)?;
                    if n == 0 {
                        break;
                    }
                    target.write_all(&buf[..n])?;
                    bytes += n as u64;
                }
                target.set_permissions(meta.permissions())
            } else {
                Ok(())
            }
        })?;
        laps.bytes += bytes;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_come_from_fio() {
        let text = r#"note: something
            {"jobs":[{"error":0,"write":{"runtime":2000,"io_bytes":4096000,"total_ios":500,
            "clat_ns":{"max":7000000,"percentile":{"50.000000":1000,"99.000000":20000,"99.900000":300000}}}}]}"#;
        let f = Figures::from_fio(text, true).expect("fits");
        assert_eq!(f, Figures { secs: 2.0, bytes: 4_096_000.0, ops: 500.0, lat: [1.0, 20.0, 300.0, 7000.0] });
        assert_eq!(f.rate(Row::SeqWrite), 2_048_000.0);
        assert_eq!(f.rate(Row::Overwrite), 250.0);
        assert!(Figures::from_fio(text, false).is_err());
        assert!(Figures::from_fio(r#"{"jobs":[{"error":5}]}"#, true).is_err());
    }

    #[test]
    fn figures_come_from_jobs() {
        let laps = Laps { ns: (1..=1000).map(|i| i * 1000).collect(), bytes: 10 };
        let f = Figures::from_job(&format!("hello\n{}\n", laps.json(2.0))).expect("fits");
        assert_eq!(f, Figures { secs: 2.0, bytes: 10.0, ops: 1000.0, lat: [501.0, 991.0, 1000.0, 1000.0] });
    }

    #[test]
    fn random_jobs_share_no_block() {
        let args = fio(Row::RandRead, Path::new("/x"), &Sizes::full(), true, 0);
        assert!(args.contains(&format!("--offset_increment={}", (1u64 << 30) / 8)));
        assert!(args.contains(&format!("--size={}", (1u64 << 30) / 8)));
    }
}
