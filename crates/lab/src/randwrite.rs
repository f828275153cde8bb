//! `weir lab randwrite FILE`: random writes to a file of a real file system.
//!
//! The program of the article on fragmentation ("random writes of 8 KiB by eight processes"): each
//! thread opens the file, and until the time is over it writes a block of random bytes at a random
//! block of the file. The published program opens with `O_APPEND`, with which Linux appends
//! whatever the offset says; this one does not.
//!
//! It has a real clock, real threads and a real disk, so nothing of it repeats
//! to the byte.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use base::{Error, Result};
use serde::Serialize;
use sim::Rng;

use crate::hist::{self, Bucket};

/// The parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Params {
    /// The file.
    pub file: PathBuf,
    /// Bytes of a new file; none: the file is there, and its contents may be lost.
    pub size: Option<u64>,
    /// Threads.
    pub threads: u32,
    /// Bytes of a write.
    pub block: u64,
    /// Seconds.
    pub seconds: u64,
    /// Each write is durable before the next (`fdatasync`).
    pub sync: bool,
    /// What is left to chance.
    pub seed: u64,
}

/// The result.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// Bytes of the file.
    pub size: u64,
    /// Writes.
    pub writes: u64,
    /// Writes a second.
    pub iops: f64,
    /// Bytes a second.
    pub bytes_per_s: f64,
    /// Median latency.
    pub latency_p50_us: f64,
    /// 99th percentile.
    pub latency_p99_us: f64,
    /// 99.9th percentile.
    pub latency_p999_us: f64,
    /// The longest.
    pub latency_max_us: f64,
    /// Writes by latency.
    pub latency_histogram: Vec<Bucket>,
    /// Bytes written in each second.
    pub bytes_by_second: Vec<u64>,
}

impl Params {
    fn bad(&self, what: impl std::fmt::Display) -> Error {
        Error::invalid(format!("{}: {what}", self.file.display()))
    }

    /// Opens the file, or makes it and fills it with random bytes; its size.
    fn open(&self) -> Result<(File, u64)> {
        let bad = |e: std::io::Error| self.bad(e);
        let Some(size) = self.size else {
            let file = OpenOptions::new().write(true).open(&self.file).map_err(bad)?;
            let meta = file.metadata().map_err(bad)?;
            if !meta.is_file() {
                return Err(self.bad("it is no regular file"));
            }
            return Ok((file, meta.len()));
        };
        let file = OpenOptions::new().write(true).create_new(true).open(&self.file).map_err(bad)?;
        let mut rng = Rng::stream(self.seed, 0);
        let mut chunk = vec![0; 1 << 20];
        for at in (0..size).step_by(chunk.len()) {
            rng.fill(&mut chunk);
            let len = (size - at).min(chunk.len() as u64) as usize;
            file.write_all_at(&chunk[..len], at).map_err(bad)?;
        }
        file.sync_all().map_err(bad)?;
        Ok((file, size))
    }

    /// Runs it; `each_second` gets the seconds that are over.
    pub fn run(&self, each_second: &mut dyn FnMut(u64)) -> Result<Report> {
        let (file, size) = self.open()?;
        let blocks = size / self.block.max(1);
        if blocks == 0 {
            return Err(self.bad(format!("it has {size} bytes, less than a block of {}", self.block)));
        }
        let (over, written) = (AtomicBool::new(false), AtomicU64::new(0));
        let begin = Instant::now();
        let mut by_second = Vec::new();
        let done: Vec<Result<Vec<u64>>> = std::thread::scope(|scope| {
            let (file, over, written) = (&file, &over, &written);
            let thread = |n: u32| scope.spawn(move || self.write(file, blocks, u64::from(n) + 1, over, written));
            let threads: Vec<_> = (0..self.threads).map(thread).collect();
            let mut before = 0;
            for second in 1..=self.seconds {
                let end = begin + Duration::from_secs(second);
                std::thread::sleep(end.saturating_duration_since(Instant::now()));
                let now = written.load(Ordering::Relaxed);
                by_second.push(now - before);
                before = now;
                each_second(second);
                if threads.iter().any(std::thread::ScopedJoinHandle::is_finished) {
                    break;
                }
            }
            over.store(true, Ordering::Relaxed);
            let gone = || Err(self.bad("a thread of the study panicked"));
            threads.into_iter().map(|t| t.join().unwrap_or_else(|_| gone())).collect()
        });
        let seconds = begin.elapsed().as_secs_f64();
        let mut all = Vec::new();
        for latencies in done {
            all.extend(latencies?);
        }
        all.sort_unstable();
        let us = |permille| hist::percentile(&all, permille) as f64 / 1000.0;
        let writes = all.len() as u64;
        Ok(Report {
            size,
            writes,
            iops: writes as f64 / seconds,
            bytes_per_s: (writes * self.block) as f64 / seconds,
            latency_p50_us: us(500),
            latency_p99_us: us(990),
            latency_p999_us: us(999),
            latency_max_us: us(1000),
            latency_histogram: hist::buckets(&all),
            bytes_by_second: by_second,
        })
    }

    /// One thread: the latency of each write in ns.
    fn write(&self, file: &File, blocks: u64, stream: u64, over: &AtomicBool, written: &AtomicU64) -> Result<Vec<u64>> {
        let mut rng = Rng::stream(self.seed, stream);
        let mut block = vec![0; self.block as usize];
        let mut latencies = Vec::new();
        while !over.load(Ordering::Relaxed) {
            rng.fill(&mut block);
            let at = rng.below(blocks) * self.block;
            let begin = Instant::now();
            file.write_all_at(&block, at).map_err(|e| self.bad(e))?;
            if self.sync {
                file.sync_data().map_err(|e| self.bad(e))?;
            }
            latencies.push(begin.elapsed().as_nanos() as u64);
            written.fetch_add(self.block, Ordering::Relaxed);
        }
        Ok(latencies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_the_file_change_and_nothing_else() {
        let dir = std::env::temp_dir().join(format!("weir-randwrite-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder");
        let file = dir.join("f");
        let new = Params { file, size: Some(40 << 10), threads: 2, block: 8 << 10, seconds: 1, sync: false, seed: 1 };
        let report = new.run(&mut |_| {}).expect("a run");
        assert!(report.writes > 0 && report.size == 40 << 10, "{report:?}");
        assert_eq!(report.latency_histogram.iter().map(|b| b.count).sum::<u64>(), report.writes);
        assert_eq!(std::fs::metadata(&new.file).expect("the file").len(), 40 << 10, "nothing was appended");
        let again = new.run(&mut |_| {}).expect_err("the file is there").to_string();
        assert!(again.contains("exists"), "{again}");
        let old = Params { size: None, ..new.clone() };
        assert!(old.run(&mut |_| {}).expect("a run").writes > 0);
        let e = Params { block: 1 << 20, ..old.clone() }.run(&mut |_| {}).expect_err("too small").to_string();
        assert!(e.contains("less than a block"), "{e}");
        assert!(Params { file: dir.clone(), ..old }.run(&mut |_| {}).is_err());
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
