//! The load of `cargo xtask kill9` that waits with `sync`, `syncfs` or `fsync`: small files, made
//! under one name and renamed to another.
//!
//! `sync` and `syncfs` return no error when a file system has ended meanwhile, so an uncached name
//! is looked up in it before their return counts.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

use crate::kill9::draw;

/// How a load waits for its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ack {
    /// `sync(2)`.
    Sync,
    /// `syncfs(2)`.
    SyncFs,
    /// `fsync(2)` of the file, then of its folder.
    Fsync,
}

/// The words of `--ack`.
pub(crate) fn acks(word: &str) -> Option<Vec<Ack>> {
    Some(match word {
        "sync" => vec![Ack::Sync],
        "syncfs" => vec![Ack::SyncFs],
        "fsync" => vec![Ack::Fsync],
        "all" => vec![Ack::Sync, Ack::SyncFs, Ack::Fsync],
        _ => return None,
    })
}

/// The load.
pub(crate) struct Files {
    thread: JoinHandle<u64>,
    folder: PathBuf,
    seed: u64,
}

/// The result of the load.
pub(crate) struct Made {
    folder: PathBuf,
    seed: u64,
    acked: u64,
}

fn content(seed: u64, n: u64) -> Vec<u8> {
    let mut rng = seed ^ n;
    let len = 1 + draw(&mut rng, 6000);
    (0..len).map(|_| draw(&mut rng, 256) as u8).collect()
}

/// Makes file `n`; with `fsync` it is durable on return.
fn make(folder: &Path, seed: u64, n: u64, fsync: bool) -> std::io::Result<()> {
    let (new, name) = (folder.join(format!("new{n}")), folder.join(format!("file{n}")));
    let mut file = File::create(&new)?;
    file.write_all(&content(seed, n))?;
    std::fs::rename(&new, &name)?;
    if fsync {
        file.sync_all()?;
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

/// Whether the file system still answers.
fn answers(folder: &Path, n: u64) -> bool {
    std::fs::symlink_metadata(folder.join(format!("asked{n}"))).is_err_and(|e| e.kind() == ErrorKind::NotFound)
}

fn run(folder: &Path, seed: u64, acks: &[Ack]) -> u64 {
    let (mut n, mut acked, mut rng) = (0, 0, seed);
    loop {
        let ack = acks[draw(&mut rng, acks.len() as u64) as usize];
        for _ in 0..1 + draw(&mut rng, 20) {
            n += 1;
            if make(folder, seed, n, ack == Ack::Fsync).is_err() {
                return acked;
            }
        }
        let mut sync = Command::new("sync");
        sync.stdout(Stdio::null()).stderr(Stdio::null());
        let durable = match ack {
            Ack::Fsync => true,
            Ack::Sync => sync.status().is_ok_and(|s| s.success()),
            Ack::SyncFs => sync.arg("-f").arg(folder).status().is_ok_and(|s| s.success()),
        };
        if !durable || !answers(folder, n) {
            return acked;
        }
        acked = n;
    }
}

impl Files {
    pub(crate) fn start(folder: &Path, acks: &[Ack], seed: u64) -> Result<Files, String> {
        let folder = folder.join("files");
        std::fs::create_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let (theirs, acks) = (folder.clone(), acks.to_vec());
        Ok(Files { thread: std::thread::spawn(move || run(&theirs, seed, &acks)), folder, seed })
    }

    pub(crate) fn end(self) -> Result<Made, String> {
        let acked = self.thread.join().map_err(|_| "the thread that makes files panicked".to_string())?;
        Ok(Made { folder: self.folder, seed: self.seed, acked })
    }
}

impl Made {
    /// Every file that was acknowledged is there under its last name; how many there are.
    pub(crate) fn check(&self) -> Result<u64, String> {
        for n in 1..=self.acked {
            let name = self.folder.join(format!("file{n}"));
            let there = std::fs::read(&name).map_err(|e| format!("file {n} of {}: {e}", self.acked))?;
            if there != content(self.seed, n) {
                return Err(format!("file {n} of {} is not what was written", self.acked));
            }
            if self.folder.join(format!("new{n}")).exists() {
                return Err(format!("file {n} of {} has its old name, too", self.acked));
            }
        }
        Ok(self.acked)
    }
}
