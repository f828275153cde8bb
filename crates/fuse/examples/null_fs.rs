//! A file system that does nothing, to measure the cost of FUSE itself: `cargo run --release -p
//! openweir-fuse --example null_fs -- DIR` mounts it and measures with one client thread,
//! `... -- DIR serve` serves until it is unmounted.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use bdev::Bytes;
use fuse::{Attr, Caller, Entry, Errno, Handler, MountOpts, Opened, StatFs, errno, mount_handler};
use host::{Engine, EngineConfig};

const FILE: u64 = 2;
const SIZE: u64 = 1 << 30;

struct NullFs;

fn attr(node: u64) -> Attr {
    let (mode, nlink, size) = if node == FILE { (0o100666, 1, SIZE) } else { (0o040777, 2, 2) };
    Attr { ino: node, mode, nlink, size, blksize: 131_072, ..Attr::default() }
}

impl Handler for NullFs {
    async fn lookup(&self, _: Caller, _: u64, name: &[u8]) -> Result<Entry, Errno> {
        match name {
            b"file" => Ok(Entry { node: FILE, ttl: Duration::from_secs(3600), attr: attr(FILE), ..Entry::default() }),
            _ => Err(errno::NO_ENTRY),
        }
    }
    async fn getattr(&self, node: u64, _: Option<u64>) -> Result<Attr, Errno> {
        Ok(attr(node))
    }
    async fn open(&self, _: Caller, _: u64, _: u32, _: bool) -> Result<Opened, Errno> {
        // Direct: every read and write becomes a request.
        Ok(Opened { fh: 0, flags: 1 })
    }
    async fn read(&self, _: u64, _: u64, offset: u64, size: u32, _: bool) -> Result<Vec<Bytes>, Errno> {
        let n = u64::from(size).min(SIZE.saturating_sub(offset));
        Ok(vec![Bytes::zeroed(n as usize)])
    }
    async fn write(
        &self,
        _: Caller,
        _: u64,
        _: u64,
        _: u64,
        data: Vec<Bytes>,
        _: fuse::WriteHow,
    ) -> Result<u32, Errno> {
        Ok(data.iter().map(|d| d.len() as u32).sum())
    }
    async fn statfs(&self, _: u64) -> Result<StatFs, Errno> {
        Ok(StatFs { bsize: 4096, frsize: 4096, namelen: 255, ..StatFs::default() })
    }
}

fn per_second(name: &str, threads: usize, bytes: usize, op: impl Fn() + Send + Sync + Copy) {
    let span = Duration::from_millis(700);
    let (mut best, mut all, cpu) = (0.0f64, 0, engine_cpu());
    for _ in 0..3 {
        let counts: usize = std::thread::scope(|s| {
            let run = || {
                let (begin, mut n) = (Instant::now(), 0);
                while begin.elapsed() < span {
                    for _ in 0..8 {
                        op();
                    }
                    n += 8;
                }
                n
            };
            let threads: Vec<_> = (0..threads).map(|_| s.spawn(run)).collect();
            threads.into_iter().map(|t| t.join().expect("a client does not panic")).sum()
        });
        all += counts;
        best = best.max(counts as f64 / span.as_secs_f64());
    }
    let rate = if bytes > 0 { format!(", {:.2} GB/s", best * bytes as f64 / 1e9) } else { String::new() };
    let cpu = (engine_cpu() - cpu) as f64 / all as f64 / 1e3;
    println!(
        "{name} [{threads}]: {:.0}k/s, {:.1} us, {cpu:.2} us of the engine's CPU{rate}",
        best / 1e3,
        threads as f64 * 1e6 / best
    );
}

/// CPU time of the first thread, the engine's, in nanoseconds: steadier than wall time on a shared
/// machine.
fn engine_cpu() -> u64 {
    let path = format!("/proc/self/task/{}/schedstat", std::process::id());
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

fn measure(dir: &Path) -> std::io::Result<()> {
    let path = dir.join("file");
    let file = &std::fs::OpenOptions::new().read(true).write(true).open(&path)?;
    let path = &path;
    for threads in [1, 4] {
        per_second("getattr", threads, 0, || {
            file.metadata().expect("stat");
        });
        per_second("open+release", threads, 0, || drop(std::fs::File::open(path).expect("open")));
        for (size, name) in [(4096, "4K"), (131_072, "128K"), (1 << 20, "1M")] {
            let read = || {
                BUF.with_borrow_mut(|b| {
                    b.resize(1 << 20, 1);
                    file.read_exact_at(&mut b[..size], 0).expect("read");
                });
            };
            per_second(&format!("read {name}"), threads, size, read);
            let write = || {
                BUF.with_borrow_mut(|b| {
                    b.resize(1 << 20, 1);
                    file.write_all_at(&b[..size], 0).expect("write");
                });
            };
            per_second(&format!("write {name}"), threads, size, write);
        }
    }
    Ok(())
}

thread_local!(static BUF: std::cell::RefCell<Vec<u8>> = const { std::cell::RefCell::new(Vec::new()) });

fn main() -> base::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let dir = args.get(1).cloned().unwrap_or_else(|| "/tmp/null_fs".into());
    let serve_only = args.get(2).is_some_and(|a| a == "serve");
    let engine = Engine::new(EngineConfig::default())?;
    let rt = engine.rt();
    engine.block_on(async {
        let opts = MountOpts { fsname: "null".into(), subtype: Some("null".into()), ..MountOpts::default() };
        let mounted = mount_handler(&rt, NullFs, Path::new(&dir), opts).await?;
        if serve_only {
            mounted.ended().await;
            return Ok(());
        }
        let measured = host::blocking(move || measure(Path::new(&dir))).await?;
        println!("{:?}", mounted.stats());
        mounted.unmount(false, false).await?;
        measured.map_err(|e| base::Error::new(base::ErrorKind::Io, e.to_string()))
    })
}
