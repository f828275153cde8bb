//! The pools of the collection that the kernel module wrote (`shared/pools`), changed by weir and
//! judged.
//!
//! Each pool is unpacked into a folder of its own, its images are read into disks of a simulated
//! world, random operations run on it as on any pool ([`crate::snaps`]), it is exported, and the
//! judges look at it: they must have no new findings. One pool of the collection came with a fault
//! (a leak that `zpool split` left), which has to stay exactly as it was.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use dsl::crypto::KeyFormat;
use sim::DiskImage;

use crate::judge::{self, Level, Scratch, Verdict};
use crate::snaps::{load_images, run_named};

/// A pool of the collection.
#[derive(Clone, Copy, Debug)]
pub struct Reference {
    /// Its name here.
    pub name: &'static str,
    /// The archive it is in, without `.tar.zst`.
    pub archive: &'static str,
    /// Which of the disks are its own; all if empty.
    pub disks: &'static [usize],
    /// Small enough for every run of the tests.
    pub quick: bool,
}

const fn pool(name: &'static str) -> Reference {
    Reference { name, archive: name, disks: &[], quick: false }
}

const fn quick(name: &'static str) -> Reference {
    Reference { quick: true, ..pool(name) }
}

/// Every pool of the collection.
pub const REFERENCES: &[Reference] = &[
    pool("single"),
    pool("legacy28"),
    quick("upgraded"),
    pool("mirror-log"),
    pool("mirror-stale"),
    pool("raidz1"),
    pool("raidz2"),
    pool("raidz3"),
    pool("raidz-two"),
    pool("raidz2-missing"),
    pool("draid"),
    pool("stripe"),
    pool("special"),
    pool("ashift13"),
    quick("grown"),
    quick("gpt"),
    pool("spare"),
    Reference { name: "split-sa", archive: "split", disks: &[0, 2], quick: true },
    Reference { name: "split-sb", archive: "split", disks: &[1, 3], quick: false },
    pool("removed"),
    pool("checkpoint"),
    pool("features"),
    pool("encrypted"),
    pool("streams"),
    pool("gang"),
    pool("deep"),
    quick("names"),
    pool("zil"),
    pool("zil-slog"),
    // Of OpenZFS 2.4.
    pool("props24"),
    pool("gang24"),
    pool("longnames"),
    pool("expanded"),
    pool("expanding"),
    quick("clone"),
    pool("fastdedup"),
    pool("dedup-both"),
    pool("upgraded24"),
    pool("draid24"),
];

/// The key that the collection's pools are encrypted with, in each format, as its README gives
/// them.
pub fn key(format: KeyFormat) -> &'static str {
    match format {
        KeyFormat::Raw => "0123456789abcdefFEDCBA9876543210",
        KeyFormat::Hex => "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n",
        KeyFormat::Passphrase => "correct-horse-battery\n",
    }
}

/// How it went with a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Written, and no judge finds anything. A note.
    Good(String),
    /// weir imports it read-only, with this reason.
    ReadOnly(String),
    /// The archive or a judge is not there, or a judge could not look at everything.
    Missing(String),
    /// A finding.
    Bad(String),
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Outcome::Good(note) if note.is_empty() => write!(f, "good"),
            Outcome::Good(note) => write!(f, "good ({note})"),
            Outcome::ReadOnly(why) => write!(f, "read-only: {why}"),
            Outcome::Missing(what) => write!(f, "MISSING: {what}"),
            Outcome::Bad(why) => write!(f, "BAD: {why}"),
        }
    }
}

/// The folders that archives may be in: the collection beside the project, then the project's part
/// of it.
fn folders() -> Vec<PathBuf> {
    let mut out: Vec<PathBuf> = std::env::var_os("WEIR_POOLS").map(PathBuf::from).into_iter().collect();
    for at in Path::new(env!("CARGO_MANIFEST_DIR")).ancestors() {
        out.push(at.join("shared/pools"));
        out.push(at.join("tests/fixtures/pools"));
    }
    out
}

/// The disks of a pool, as they come; none if the archive is not there.
fn unpack(reference: &Reference) -> Result<Option<Vec<DiskImage>>, String> {
    let file = format!("{}.tar.zst", reference.archive);
    let Some(archive) = folders().into_iter().map(|f| f.join(&file)).find(|p| p.is_file()) else { return Ok(None) };
    let scratch = Scratch::new(&format!("reference-{}", reference.name)).map_err(|e| e.to_string())?;
    let mut tar = Command::new("tar");
    tar.arg("--zstd").arg("-xf").arg(&archive).arg("-C").arg(scratch.path()).stdin(Stdio::null());
    let status = tar.status().map_err(|e| format!("tar: {e}"))?;
    if !status.success() {
        return Err(format!("{} cannot be unpacked: {status}", archive.display()));
    }
    let all = load_images(&scratch.path().join(reference.archive))?;
    let wanted = |n: usize| reference.disks.is_empty() || reference.disks.contains(&n);
    Ok(Some(all.into_iter().enumerate().filter(|(n, _)| wanted(*n)).map(|(_, image)| image).collect()))
}

/// The disks of the archive `name`, as they come; none if it is not there.
pub fn images_of(name: &'static str) -> Option<Vec<DiskImage>> {
    unpack(&pool(name)).ok().flatten()
}

/// The first partition of a disk with a GUID partition table, any other disk as it is: others than
/// weir see no partitions in images.
pub fn without_table(disk: &DiskImage) -> DiskImage {
    const SECTOR: u64 = 512;
    let word = |at: u64| u64::from_le_bytes(disk.read_vec(at, 8).try_into().expect("eight bytes"));
    if disk.size() < 64 * SECTOR || disk.read_vec(SECTOR, 8) != b"EFI PART" {
        return disk.clone();
    }
    let entry = word(SECTOR + 72) * SECTOR;
    let (start, end) = (word(entry + 32) * SECTOR, (word(entry + 40) + 1) * SECTOR);
    let mut out = DiskImage::zeroed(end - start);
    let mut at = start;
    while at < end {
        let part = disk.read_vec(at, (1u64 << 16).min(end - at) as usize);
        if part.iter().any(|b| *b != 0) {
            out.write(at - start, &part);
        }
        at += part.len() as u64;
    }
    out
}

/// A judge's output, with differing feature counts replaced by their difference: the faults that
/// came with the pool may start from other counts now.
fn essence(text: &str) -> String {
    let mut out = Vec::new();
    for line in text.split(" | ") {
        let counts = line.split_once("expected ").and_then(|(what, rest)| {
            let (expected, actual) = rest.split_once(" != actual ")?;
            let (a, b) = (expected.trim().parse::<i64>().ok()?, actual.trim().parse::<i64>().ok()?);
            Some(format!("{what}{:+}", a - b))
        });
        out.push(counts.unwrap_or_else(|| line.trim().to_string()));
    }
    out.join(" | ")
}

/// Copies a pool, changes it and has it judged.
pub fn try_pool(reference: &Reference, seed: u64, ops: u64, level: Level) -> Outcome {
    let before = match unpack(reference) {
        Ok(Some(images)) => images,
        Ok(None) => return Outcome::Missing(format!("{}.tar.zst", reference.archive)),
        Err(e) => return Outcome::Missing(e),
    };
    judge_change(before, seed, ops, level, reference.name)
}

/// Changes a pool and has it judged: no judge finds what it did not find before.
pub fn judge_change(before: Vec<DiskImage>, seed: u64, ops: u64, level: Level, name: &str) -> Outcome {
    let changed = match run_named(before.clone(), seed, ops) {
        Ok(changed) => changed,
        Err(why) => match why.strip_prefix("read-only: ") {
            Some(why) => return Outcome::ReadOnly(why.into()),
            None => return Outcome::Bad(why),
        },
    };
    let ask = |images: &[DiskImage], when: &str| {
        let images: Vec<DiskImage> = images.iter().map(without_table).collect();
        judge::judge_pool(&images, level, &format!("{name}-{when}"), &changed.pool)
    };
    match ask(&changed.images, "after") {
        Verdict::Good => Outcome::Good(String::new()),
        Verdict::Missing(what) => Outcome::Missing(what),
        Verdict::Bad(why) => match ask(&before, "before") {
            Verdict::Bad(came) if essence(&came) == essence(&why) => {
                Outcome::Good(format!("keeps what it came with: {came}"))
            }
            before => Outcome::Bad(format!("{why} (as it came: {before:?})")),
        },
    }
}
