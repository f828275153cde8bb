//! `cargo xtask kill9`: kills the daemon without warning while programs write and sync their data,
//! and checks that all acknowledged data is there.
//!
//! **A round.** Five loads work in a mounted file system at once: fio with a checksum in every
//! block and a flush after each, sqlite with a rollback journal, sqlite with a write-ahead log,
//! records appended to pages of 8 KiB as PostgreSQL writes its log, and small files that are made
//! and renamed and then made durable by `--ack`: with `sync`, `syncfs`, `fsync`, or each of them in
//! turn (the default is `fsync`; `sync` reaches mounts by root on Linux 6.18 and later). After a
//! while that the seed draws the daemon gets signal 9. The loads end with the error that they get;
//! each has a record of its acknowledged data. The next command starts a daemon, which imports the
//! pool and replays its log; then every load looks for its data.
//!
//! In every other round the daemon keeps its writes in memory until a flush (`WEIR_HOLD_WRITES`),
//! so that writes without a flush are lost as in a power cut: on plain files the page cache would
//! hide a missing flush.
//!
//! With `--held` another process works in the mounted folder and has a file open there while the
//! daemon is killed, and stays until the data were looked for: the dead mount must not be in the
//! way. With `--nested` the loads work in a file system mounted within another one. Both work for
//! plain users, too.
//!
//! Every [`ROUNDS_PER_POOL`] rounds the pool is exported, given to zdb, and made anew: in turn
//! with the features of OpenZFS 2.1, and with all, if `ZFS24_DIR` names a folder with a zdb of 2.4.
//! The last line is `rounds=N held=N acks=N lost=0 broken=0 zdb=N`: *lost* counts loads whose
//! acknowledged data were not there, *broken* rounds in which the pool, the mount or a data base
//! could not be used.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::bench_fs::in_path;
use crate::bench_fs_contest::{build, command, text};
use crate::bench_fs_jobs::output;
use crate::kill9_files::{Ack, Files, acks};

/// Rounds after which zdb looks at the pool.
const ROUNDS_PER_POOL: u64 = 20;
/// Bytes of the pool's image.
const IMAGE_BYTES: u64 = 2 << 30;
/// Bytes of a page of the appended log.
const PAGE: usize = 8192;
/// `O_DSYNC` of Linux on all architectures but a few old ones.
const O_DSYNC: i32 = 0o10000;
/// How long a daemon may take to end or to start.
const PATIENCE: Duration = Duration::from_secs(60);

const USAGE: &str = "usage: cargo xtask kill9 [--rounds N] [--seed N] [--dir DIR] [--weir PROGRAM] [--ack sync|syncfs|fsync|all] [--held] [--nested]";

/// Writes rows, one transaction each, and prints the number of each that is committed. `extra` also
/// makes the removal of a rollback journal durable: sqlite opens the folder for that and syncs it,
/// but takes a folder that cannot be opened for success (`unixDelete`). So a file system that has
/// ended meanwhile must not count as success: an uncached name is looked up in it.
const SQLITE_WRITE: &str = "
import os, sqlite3, sys, zlib
path, mode, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
def blob(n): return zlib.crc32(b'%d' % n).to_bytes(4, 'big') * (1 + n * 37 % 700)
db = sqlite3.connect(path, isolation_level=None)
db.execute('pragma journal_mode=' + mode)
db.execute('pragma synchronous=extra')
db.execute('create table if not exists t (id integer primary key, v blob)')
n = first
while True:
    n += 1
    db.execute('begin')
    db.execute('insert into t values (?, ?)', (n, blob(n)))
    if n % 5 == 0: db.execute('delete from t where id = ?', (n - 3,))
    db.execute('commit')
    os.statvfs(os.path.dirname(path))
    print(n, flush=True)
";

/// Checks a data base of [`SQLITE_WRITE`]: prints the newest row, or fails.
const SQLITE_READ: &str = "
import sqlite3, sys, zlib
def blob(n): return zlib.crc32(b'%d' % n).to_bytes(4, 'big') * (1 + n * 37 % 700)
db = sqlite3.connect(sys.argv[1])
good = db.execute('pragma integrity_check').fetchone()[0]
if good != 'ok': sys.exit('integrity check: ' + good)
have = dict(db.execute('select id, v from t'))
last = max(have, default=0)
for n in range(1, last + 1):
    gone = any(m % 5 == 0 and m - 3 == n for m in range(n, min(n + 4, last + 1)))
    if gone != (n not in have): sys.exit('row %d of %d' % (n, last))
    if not gone and have[n] != blob(n): sys.exit('row %d is not what was written' % n)
print(last)
";

struct Options {
    rounds: u64,
    seed: u64,
    dir: PathBuf,
    weir: PathBuf,
    /// How the load of small files waits; None: as the mount allows.
    acks: Option<Vec<Ack>>,
    held: bool,
    nested: bool,
}

impl Options {
    fn parse(args: &[String]) -> Result<Options, String> {
        let (mut rounds, mut seed, mut dir, mut weir) = (200, 1, crate::root().join("target/kill9"), None);
        let (mut wanted, mut held, mut nested) = (None, false, false);
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--held" => {
                    held = true;
                    continue;
                }
                "--nested" => {
                    nested = true;
                    continue;
                }
                _ => {}
            }
            let value = args.next().ok_or_else(|| format!("{arg} takes a value\n{USAGE}"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("{arg} {value}: not a number\n{USAGE}"));
            match arg.as_str() {
                "--rounds" => rounds = number()?,
                "--seed" => seed = number()?,
                "--dir" => dir = PathBuf::from(value),
                "--weir" => weir = Some(PathBuf::from(value)),
                "--ack" => wanted = Some(acks(value).ok_or_else(|| format!("--ack {value}: unknown\n{USAGE}"))?),
                _ => return Err(format!("unknown option {arg}\n{USAGE}")),
            }
        }
        let weir = match weir {
            Some(program) => program.canonicalize().map_err(|e| format!("{}: {e}", program.display()))?,
            None => build(&["--package", "openweir-cli", "--bin", "weir"], "weir")?,
        };
        std::fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        let dir = dir.canonicalize().map_err(|e| format!("{}: {e}", dir.display()))?;
        Ok(Options { rounds, seed, dir, weir, acks: wanted, held, nested })
    }
}

/// Totals of the rounds.
#[derive(Default)]
struct Tally {
    rounds: u64,
    held: u64,
    acks: u64,
    lost: u64,
    broken: u64,
    zdb: u64,
}

/// Runs the command.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let o = Options::parse(args)?;
    for program in ["fio", "python3", "zdb"] {
        if !in_path(program) {
            return Err(format!("{program} is missing: install it (apt-get install fio python3 zfsutils-linux)"));
        }
    }
    let mut yard = Yard { o, held: false, zdb24: None };
    let mut tally = Tally::default();
    let mut rng = yard.o.seed;
    for round in 0..yard.o.rounds {
        if let Err(why) = yard.round(round, &mut rng, &mut tally) {
            tally.broken += 1;
            eprintln!("kill9: BROKEN round {round} of seed {}: {why}", yard.o.seed);
            // Keep the files of a bad round for analysis; the next rounds begin anew.
            yard.end();
            yard.fresh(round + 1)?;
        }
    }
    yard.end();
    let t = &tally;
    println!("rounds={} held={} acks={} lost={} broken={} zdb={}", t.rounds, t.held, t.acks, t.lost, t.broken, t.zdb);
    if t.lost + t.broken == 0 { Ok(()) } else { Err("acknowledged data were lost".into()) }
}

/// A number below `n`: the generator of Knuth's MMIX.
pub(crate) fn draw(rng: &mut u64, n: u64) -> u64 {
    *rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*rng >> 33) % n
}

/// The zdb of OpenZFS 2.4.
pub(crate) fn zdb24() -> Option<PathBuf> {
    Some(Path::new(&std::env::var_os("ZFS24_DIR")?).join("bin/zdb24")).filter(|path| path.is_file())
}

/// Where it happens: a pool, its mount, the daemon.
struct Yard {
    o: Options,
    /// Whether the daemon that runs holds writes.
    held: bool,
    /// The zdb of OpenZFS 2.4, if the pool has features of that.
    zdb24: Option<PathBuf>,
}

impl Yard {
    fn mount(&self) -> PathBuf {
        self.o.dir.join("mnt")
    }

    /// Where the loads work.
    fn work(&self) -> PathBuf {
        if self.o.nested { self.mount().join("sub") } else { self.mount() }
    }

    /// How often something is mounted where the loads work, and whether the last mount there is one
    /// that `sync` reaches.
    fn mounts(&self) -> (usize, bool) {
        let list = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        // Those of plain users are served within the mount around them.
        let place = text(&if is_root() { self.work() } else { self.mount() });
        let types: Vec<&str> =
            list.lines().filter(|l| l.split(' ').nth(1) == Some(&*place)).filter_map(|l| l.split(' ').nth(2)).collect();
        (types.len(), types.last().is_some_and(|t| t.starts_with("fuseblk")))
    }

    /// Whether the load of small files is to wait with `sync` or `syncfs`, which takes a mount that
    /// they reach.
    fn wants_sync(&self) -> bool {
        self.o.acks.as_ref().is_some_and(|acks| acks.iter().any(|a| *a != Ack::Fsync))
    }

    /// How the load of small files waits.
    fn acks(&self) -> Result<Vec<Ack>, String> {
        let (_, reached) = self.mounts();
        match &self.o.acks {
            Some(acks) if !reached && acks.iter().any(|a| *a != Ack::Fsync) => {
                Err("sync does not reach this mount (before Linux 6.18, or not root): use --ack fsync".into())
            }
            Some(acks) => Ok(acks.clone()),
            None => Ok(acks(if reached { "all" } else { "fsync" }).expect("words of --ack")),
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut cmd = Command::new(&self.o.weir);
        cmd.args(args)
            .env("WEIR_RUNTIME_DIR", self.o.dir.join("run"))
            .env("WEIR_STATE_DIR", self.o.dir.join("state"))
            .env("WEIR_SYNC_DEVICES", if self.wants_sync() { "1" } else { "0" })
            .env("WEIR_HOLD_WRITES", if self.held { "1" } else { "0" });
        cmd
    }

    fn weir(&self, args: &[&str]) -> Result<String, String> {
        output(self.command(args))
    }

    /// The daemon's process, if one runs.
    fn daemon(&self) -> Option<u32> {
        let text = self.command(&["daemon", "status"]).stderr(Stdio::null()).output().ok()?.stdout;
        let text = String::from_utf8_lossy(&text).into_owned();
        text.strip_prefix("daemon ")?.split_whitespace().next()?.parse().ok()
    }

    /// Ends everything.
    fn end(&self) {
        let _ = self.command(&["daemon", "stop", "-f"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
        if let Some(pid) = self.daemon() {
            let _ = kill(pid);
        }
        let mut detach = if is_root() { command(&["umount", "-l"]) } else { command(&["fusermount3", "-uz"]) };
        let _ = detach.arg(self.mount()).stderr(Stdio::null()).status();
    }

    /// A new pool.
    fn fresh(&mut self, round: u64) -> Result<(), String> {
        self.end();
        for sub in ["run", "state", "mnt", "disk"] {
            let _ = std::fs::remove_dir_all(self.o.dir.join(sub));
            std::fs::create_dir_all(self.o.dir.join(sub)).map_err(|e| format!("{sub}: {e}"))?;
        }
        let disks: Vec<PathBuf> = (0..2).map(|n| self.o.dir.join(format!("disk/{n}.img"))).collect();
        for disk in &disks {
            let made = File::create(disk).and_then(|f| f.set_len(IMAGE_BYTES));
            made.map_err(|e| format!("{}: {e}", disk.display()))?;
        }
        let mountpoint = format!("mountpoint={}", self.mount().display());
        let disks: Vec<String> = disks.iter().map(|d| d.display().to_string()).collect();
        let mut args = vec!["zpool", "create", "-f", "-O", &mountpoint, "pool", &disks[0]];
        let pool = round / ROUNDS_PER_POOL;
        self.zdb24 = zdb24().filter(|_| (pool + self.o.seed).is_multiple_of(2));
        if self.zdb24.is_none() {
            args.splice(3..3, ["-o", "compatibility=openzfs-2.1-linux"]);
        }
        // With and without a log device.
        if pool % 2 == 1 {
            args.extend(["log", &disks[1]]);
        }
        self.weir(&args)?;
        if self.o.nested {
            self.weir(&["zfs", "create", "pool/sub"])?;
        }
        Ok(())
    }

    /// Exports the pool and runs zdb.
    fn judge(&mut self, tally: &mut Tally) -> Result<(), String> {
        self.weir(&["zpool", "export", "pool"])?;
        let disks = text(&self.o.dir.join("disk"));
        let zdb = self.zdb24.as_deref().map_or("zdb".into(), text);
        // Without the machine's list of pools, which other judges write.
        let args = [&zdb, "-U", "/nonexistent/zpool.cache", "-e", "-p", &disks, "-bcc", "pool"];
        output(command(&args)).map_err(|e| format!("{zdb}: {e}"))?;
        tally.zdb += 1;
        Ok(())
    }

    fn round(&mut self, round: u64, rng: &mut u64, tally: &mut Tally) -> Result<(), String> {
        let held = round % 2 == 1;
        if round.is_multiple_of(ROUNDS_PER_POOL) {
            self.fresh(round)?;
        }
        if held != self.held {
            // The daemon that runs is of the other kind; ending it exports nothing and loses
            // nothing.
            self.weir(&["daemon", "stop"])?;
            self.held = held;
            self.weir(&["zpool", "list"])?;
        }
        let folder = self.work().join(format!("r{round}"));
        std::fs::create_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let pid = self.daemon().ok_or("no daemon runs")?;
        let files = Files::start(&folder, &self.acks()?, draw(rng, u64::MAX))?;
        let holder = if self.o.held { Some(Holder::start(&folder)?) } else { None };
        let appender = Appender::start(&folder, draw(rng, 2) == 0, draw(rng, u64::MAX))?;
        let fio = Fio::start(&folder, draw(rng, 1 << 30))?;
        let journal = Sqlite::start(&folder, "delete")?;
        let wal = Sqlite::start(&folder, "wal")?;
        std::thread::sleep(Duration::from_millis(400 + draw(rng, 1200)));
        kill(pid)?;
        let (appended, written, rows, wal_rows) = (appender.end(), fio.end(), journal.end(), wal.end());
        let made = files.end();
        // The next command starts a daemon, which imports the pool again.
        self.held = false;
        self.weir(&["zpool", "list"])?;
        let until = Instant::now() + PATIENCE;
        while !folder.is_dir() {
            if Instant::now() > until {
                return Err(format!("{} is not there after the daemon was started again", folder.display()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let (mounts, _) = self.mounts();
        if mounts != 1 {
            return Err(format!(
                "{} is mounted {mounts} times after the daemon was started again",
                self.work().display()
            ));
        }
        let mut lost = Vec::new();
        let mut check = |what: &str, outcome: Result<u64, String>| match outcome {
            Ok(acks) => tally.acks += acks,
            Err(why) => lost.push(format!("{what}: {why}")),
        };
        check("append", appended.and_then(|a| a.check()));
        check("fio", written.and_then(|w| w.check()));
        check("sqlite with a journal", rows.and_then(|r| r.check()));
        check("sqlite with a log", wal_rows.and_then(|r| r.check()));
        check("small files", made.and_then(|m| m.check()));
        drop(holder);
        tally.rounds += 1;
        tally.held += u64::from(held);
        tally.lost += lost.len() as u64;
        for why in &lost {
            eprintln!("kill9: LOST round {round} of seed {} (held: {held}): {why}", self.o.seed);
        }
        if lost.is_empty() {
            std::fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        }
        if (round + 1).is_multiple_of(ROUNDS_PER_POOL) || round + 1 == self.o.rounds {
            self.judge(tally)?;
            eprintln!("kill9: {} rounds, {} acknowledgements, lost {}", tally.rounds, tally.acks, tally.lost);
        }
        Ok(())
    }
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

/// A process that works in a folder and has a file open there.
struct Holder(Child);

impl Holder {
    fn start(folder: &Path) -> Result<Holder, String> {
        let path = folder.join("held");
        let file = OpenOptions::new().create(true).truncate(true).read(true).write(true).open(&path);
        let file = file.map_err(|e| format!("{}: {e}", path.display()))?;
        let child = Command::new("sleep").arg("infinity").current_dir(folder).stdin(file).spawn();
        Ok(Holder(child.map_err(|e| format!("sleep: {e}"))?))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Signal 9, and the wait until the process is gone.
fn kill(pid: u32) -> Result<(), String> {
    output(command(&["kill", "-9", &pid.to_string()]))?;
    let until = Instant::now() + PATIENCE;
    let zombie = || {
        std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .is_ok_and(|s| s.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')))
    };
    // The first thread may be gone while others still hold the devices and the socket.
    let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, |list| list.count());
    let alive = || threads() > 1 || (threads() == 1 && !zombie());
    while alive() {
        if Instant::now() > until {
            return Err(format!("process {pid} does not end after signal 9"));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// Records appended to pages of 8 KiB; a commit writes the page that it is on, whole, and waits for
/// it.
struct Appender {
    thread: std::thread::JoinHandle<(u64, u64)>,
    path: PathBuf,
    seed: u64,
}

/// The result of an appender: bytes of records acknowledged, and how many acknowledgements.
struct Appended {
    path: PathBuf,
    seed: u64,
    bytes: u64,
    acks: u64,
}

/// The byte of the stream at `at`.
fn stream_byte(seed: u64, at: u64) -> u8 {
    let mut x = seed ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 29;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    // Never 0, the content of a page that was never written.
    (x >> 56) as u8 | 1
}

impl Appender {
    fn start(folder: &Path, dsync: bool, seed: u64) -> Result<Appender, String> {
        let path = folder.join("append");
        let flags = if dsync { O_DSYNC } else { 0 };
        let file = OpenOptions::new().create(true).truncate(true).write(true).custom_flags(flags).open(&path);
        let file = file.map_err(|e| format!("{}: {e}", path.display()))?;
        let thread = std::thread::spawn(move || {
            let (mut at, mut acked, mut acks, mut rng) = (0u64, 0, 0, seed);
            loop {
                let begin = at - at % PAGE as u64;
                at += 20 + draw(&mut rng, 3000);
                let end = at.next_multiple_of(PAGE as u64);
                let pages: Vec<u8> = (begin..end).map(|n| if n < at { stream_byte(seed, n) } else { 0 }).collect();
                if file.write_all_at(&pages, begin).is_err() || (!dsync && file.sync_data().is_err()) {
                    return (acked, acks);
                }
                acked = at;
                acks += 1;
            }
        });
        Ok(Appender { thread, path, seed })
    }

    fn end(self) -> Result<Appended, String> {
        let (bytes, acks) = self.thread.join().map_err(|_| "the thread that appends panicked".to_string())?;
        Ok(Appended { path: self.path, seed: self.seed, bytes, acks })
    }
}

impl Appended {
    fn check(&self) -> Result<u64, String> {
        let data = std::fs::read(&self.path).map_err(|e| e.to_string())?;
        let good = (0..).zip(&data).take_while(|&(n, &b)| b == stream_byte(self.seed, n)).count() as u64;
        if good < self.bytes {
            return Err(format!("{} bytes were acknowledged, {good} of {} are there", self.bytes, data.len()));
        }
        Ok(self.acks)
    }
}

/// fio, a checksum in every block, a flush after each.
struct Fio {
    child: Child,
    args: Vec<String>,
}

struct Written {
    args: Vec<String>,
    acks: u64,
}

impl Fio {
    fn start(folder: &Path, seed: u64) -> Result<Fio, String> {
        let file = folder.join("fio");
        let mut args: Vec<String> =
            ["--name=kill", "--bs=4k", "--verify=crc32c", "--fallocate=none", "--verify_state_save=0"]
                .iter()
                .map(|a| a.to_string())
                .collect();
        args.push(format!("--randseed={seed}"));
        args.push(format!("--filename={}", file.display()));
        let mut cmd = Command::new("fio");
        cmd.args(&args).args(["--rw=write", "--size=64m", "--fsync=1", "--do_verify=0", "--output-format=json"]);
        cmd.stdout(Stdio::piped()).stderr(Stdio::null());
        let child = cmd.spawn().map_err(|e| format!("fio: {e}"))?;
        Ok(Fio { child, args })
    }

    fn end(self) -> Result<Written, String> {
        let out = self.child.wait_with_output().map_err(|e| format!("fio: {e}"))?;
        let text = String::from_utf8_lossy(&out.stdout);
        // Fio prints errors before the JSON object.
        let v: serde_json::Value =
            text.find('{').and_then(|n| serde_json::from_str(&text[n..]).ok()).unwrap_or_default();
        let count = |v: &serde_json::Value| v["total_ios"].as_u64().unwrap_or(0);
        let job = &v["jobs"][0];
        // The last flush that fio counts is the one that failed.
        let acks = count(&job["write"]).min(count(&job["sync"])).saturating_sub(1);
        Ok(Written { args: self.args, acks })
    }
}

impl Written {
    fn check(&self) -> Result<u64, String> {
        if self.acks == 0 {
            return Ok(0);
        }
        let mut cmd = Command::new("fio");
        // A job that reads checks each block; one that writes would begin with an empty file.
        cmd.args(&self.args).args(["--rw=read", "--verify_fatal=1"]).arg(format!("--size={}k", self.acks * 4));
        output(cmd).map_err(|e| format!("of {} blocks: {e}", self.acks))?;
        Ok(self.acks)
    }
}

/// sqlite, one small transaction after the other.
struct Sqlite {
    child: Child,
    reader: std::thread::JoinHandle<u64>,
    path: PathBuf,
}

struct Rows {
    path: PathBuf,
    last: u64,
}

impl Sqlite {
    fn start(folder: &Path, mode: &str) -> Result<Sqlite, String> {
        let path = folder.join(format!("{mode}.db"));
        let mut cmd = Command::new("python3");
        cmd.args(["-c", SQLITE_WRITE]).arg(&path).args([mode, "0"]);
        cmd.stdout(Stdio::piped()).stderr(Stdio::null()).stdin(Stdio::null());
        let mut child = cmd.spawn().map_err(|e| format!("python3: {e}"))?;
        let out = child.stdout.take().ok_or("no output of python3")?;
        let reader = std::thread::spawn(move || {
            BufReader::new(out).lines().map_while(Result::ok).filter_map(|l| l.parse().ok()).last().unwrap_or(0)
        });
        Ok(Sqlite { child, reader, path })
    }

    fn end(mut self) -> Result<Rows, String> {
        let last = self.reader.join().map_err(|_| "the thread that reads panicked".to_string())?;
        self.child.wait().map_err(|e| format!("python3: {e}"))?;
        Ok(Rows { path: self.path, last })
    }
}

impl Rows {
    fn check(&self) -> Result<u64, String> {
        if self.last == 0 {
            return Ok(0);
        }
        let mut cmd = Command::new("python3");
        cmd.args(["-c", SQLITE_READ]).arg(&self.path);
        let said = output(cmd)?;
        let there: u64 = said.trim().parse().map_err(|_| format!("python3 said {said:?}"))?;
        if there < self.last {
            return Err(format!("row {} was committed, the newest there is {there}", self.last));
        }
        Ok(self.last)
    }
}
