//! A log that keeps its past: records are appended and durable at once; every so many of them the
//! file system is snapshotted, and old snapshots go.
//!
//! `cargo run -p openweir --example snaplog`
#![allow(missing_docs)]

use openweir::{CreateOptions, Engine, File, FileSystem, OpenOptions, Pool, Result};

/// Bytes that stand before each record: its length.
const HEAD: usize = 4;

/// A log in a file system of its own.
pub struct SnapLog {
    pool: Pool,
    dataset: String,
    file: File,
    records: u64,
    /// Records between two snapshots.
    every: u64,
    /// Snapshots that are kept.
    keep: usize,
}

fn records(fs: &FileSystem) -> Result<Vec<Vec<u8>>> {
    let bytes = fs.read("log").wait()?;
    let mut out = Vec::new();
    let mut rest = &bytes[..];
    while let Some((head, tail)) = rest.split_first_chunk::<HEAD>() {
        let len = u32::from_le_bytes(*head) as usize;
        // A record cut short at the end was never acknowledged.
        let Some((record, tail)) = tail.split_at_checked(len) else { break };
        out.push(record.to_vec());
        rest = tail;
    }
    Ok(out)
}

impl SnapLog {
    pub fn open(pool: &Pool, dataset: &str, every: u64, keep: usize) -> Result<SnapLog> {
        if pool.dataset(dataset).wait().is_err() {
            pool.create_filesystem(dataset, &[("recordsize", "16K"), ("compression", "lz4")]).wait()?;
        }
        let fs = pool.filesystem(dataset).wait()?;
        let file = fs.open("log", OpenOptions::new().create(0o600)).wait()?;
        let records = records(&fs)?.len() as u64;
        Ok(SnapLog { pool: pool.clone(), dataset: dataset.into(), file, records, every, keep })
    }

    /// Appends a record; it is durable when this returns.
    pub fn append(&mut self, record: &[u8]) -> Result<()> {
        let mut bytes = (record.len() as u32).to_le_bytes().to_vec();
        bytes.extend_from_slice(record);
        self.file.append(bytes).wait()?;
        self.file.sync().wait()?;
        self.records += 1;
        if self.records.is_multiple_of(self.every) {
            self.pool.snapshot(&[&format!("{}@{:08}", self.dataset, self.records)], false).wait()?;
            let names: Vec<_> = self.pool.snapshots(&*self.dataset).wait()?.into_iter().map(|s| s.name).collect();
            let old: Vec<&str> = names.iter().rev().skip(self.keep).map(String::as_str).collect();
            if !old.is_empty() {
                self.pool.destroy_snapshots(&old).wait()?;
            }
        }
        Ok(())
    }

    /// The log as it was at each snapshot that is kept: its name and how many records it has.
    pub fn past(&self) -> Result<Vec<(String, usize)>> {
        let mut out = Vec::new();
        for snapshot in self.pool.snapshots(&*self.dataset).wait()? {
            let fs = self.pool.filesystem(&*snapshot.name).wait()?;
            out.push((snapshot.name, records(&fs)?.len()));
        }
        Ok(out)
    }
}

/// Writes 100 records with a snapshot every 10, of which 3 are kept.
pub fn run() -> Result<Vec<(String, usize)>> {
    let engine = Engine::start()?;
    let disk = engine.memory_device(128 << 20).wait()?;
    let pool = engine.create_pool("tank", disk, CreateOptions::default()).wait()?;
    let mut log = SnapLog::open(&pool, "tank/log", 10, 3)?;
    for n in 0..100 {
        log.append(format!("event {n}").as_bytes())?;
    }
    let past = log.past()?;
    drop(log);
    pool.export().wait()?;
    Ok(past)
}

#[allow(dead_code)]
fn main() -> Result<()> {
    for (name, records) in run()? {
        println!("{name}: {records} records");
    }
    Ok(())
}
