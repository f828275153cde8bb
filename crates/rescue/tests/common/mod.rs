//! Pools for tests, and the comparison of a rescued tree with a manifest.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use ondisk::bytes::{le32, le64};
use rescue::out::safe_name;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// A folder that goes away with this value.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let dir = std::env::temp_dir().join(format!("rescue-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Folder(dir)
    }
    pub fn path(&self) -> &Path {
        &self.0
    }
}
impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A fixture of the checker, decompressed.
pub fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../zdb/tests/fixtures").join(name);
    let packed = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut out = Vec::new();
    zstd::Decoder::new(&packed[..]).unwrap().read_to_end(&mut out).unwrap();
    out
}

/// Writes the pool of the checker's fixture as `d0.img`; its manifest comes back.
pub fn fixture_pool(dir: &Path) -> String {
    let packed = fixture("names.pack.zst");
    let f = std::fs::File::create(dir.join("d0.img")).unwrap();
    f.set_len(le64(&packed, 0)).unwrap();
    let mut at = 8;
    while at < packed.len() {
        let (off, len) = (le64(&packed, at), le32(&packed, at + 8) as usize);
        f.write_all_at(&packed[at + 12..at + 12 + len], off).unwrap();
        at += 12 + len;
    }
    String::from_utf8(fixture("names.jsonl.zst")).unwrap()
}

/// A reference pool, unpacked; `None` with a word on standard error where they are not at hand.
pub fn reference(name: &str) -> Option<(Folder, PathBuf)> {
    let pools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/pools");
    if !pools.is_dir() {
        eprintln!("SKIPPED: {} is not there, pool {name} is not rescued", pools.display());
        return None;
    }
    let folder = Folder::new(name);
    let tar = Command::new("tar")
        .args(["--zstd", "-xf"])
        .arg(pools.join(format!("{name}.tar.zst")))
        .arg("-C")
        .arg(folder.path())
        .status()
        .unwrap();
    assert!(tar.success(), "{name} does not unpack");
    let dir = folder.path().join(name);
    Some((folder, dir))
}

/// The images in a folder, in the order of their numbers.
pub fn images(dir: &Path) -> Vec<PathBuf> {
    (0..).map(|n| dir.join(format!("d{n}.img"))).take_while(|p| p.exists()).collect()
}

/// Overwrites bytes with noise.
pub fn damage(image: &Path, at: u64, len: usize) {
    let f = std::fs::File::options().write(true).open(image).unwrap();
    let mut x = at | 1;
    let noise: Vec<u8> = (0..len)
        .map(|_| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 56) as u8
        })
        .collect();
    f.write_all_at(&noise, at).unwrap();
}

/// Runs the command; its status and output.
pub fn run(args: &[&str]) -> (i32, String) {
    let args: Vec<String> = args.iter().map(|s| s.to_string()).collect();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = rescue::main(&args, ("usage", "page"), &mut out, &mut err);
    (code, String::from_utf8_lossy(&out).into_owned() + &String::from_utf8_lossy(&err))
}

/// The report of a rescue.
pub fn report(out: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(out.join(".weir-rescue/report.json")).unwrap()).unwrap()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
}
fn hex(b: &[u8]) -> String {
    b.iter().map(|x| format!("{x:02x}")).collect()
}
fn text(v: &Value, name: &str) -> Option<Vec<u8>> {
    match v.get(format!("{name}_hex")).and_then(Value::as_str) {
        Some(h) => Some(unhex(h)),
        None => v.get(name).and_then(Value::as_str).map(|s| s.as_bytes().to_vec()),
    }
}

/// Where an entry of a manifest is in a rescued tree.
fn place(out: &Path, entry: &Value) -> PathBuf {
    let mut at = out.to_owned();
    for part in entry["dataset"].as_str().unwrap().split('/') {
        at.push(part);
    }
    if let Some(snap) = entry.get("snap").and_then(Value::as_str) {
        at.push(format!("@{snap}"));
    }
    if entry["type"] == "v" {
        at.as_mut_os_string().push(".img");
        return at;
    }
    let path = text(entry, "path").unwrap();
    for part in path.split(|b| *b == b'/').filter(|p| *p != b".") {
        at.push(std::ffi::OsStr::from_bytes(&safe_name(part)));
    }
    at
}

/// The hash of the chunks of 4096 bytes that are not all zero, each after its number.
fn chunk_hash(path: &Path) -> String {
    let mut f = std::fs::File::open(path).unwrap();
    let size = f.metadata().unwrap().len();
    let mut h = Sha256::new();
    let mut at = 0u64;
    while let Ok(data) = rustix::fs::seek(&f, rustix::fs::SeekFrom::Data(at)) {
        let end = rustix::fs::seek(&f, rustix::fs::SeekFrom::Hole(data)).unwrap().min(size);
        let mut n = data / 4096;
        while n * 4096 < end {
            let mut chunk = vec![0u8; 4096];
            let want = (size - n * 4096).min(4096) as usize;
            f.seek(SeekFrom::Start(n * 4096)).unwrap();
            f.read_exact(&mut chunk[..want]).unwrap();
            if !codec::is_zero(&chunk) {
                h.update(n.to_le_bytes());
                h.update(&chunk);
            }
            n += 1;
        }
        at = n * 4096;
    }
    hex(&h.finalize())
}

fn whole_hash(path: &Path) -> String {
    let mut h = Sha256::new();
    let mut f = std::fs::File::open(path).unwrap();
    let mut buf = vec![0u8; 1 << 20];
    loop {
        let n = f.read(&mut buf).unwrap();
        if n == 0 {
            return hex(&h.finalize());
        }
        h.update(&buf[..n]);
    }
}

/// What differs between an entry of a manifest and a rescued tree, if anything.
fn difference(out: &Path, entry: &Value, inodes: &mut BTreeMap<(String, u64), u64>) -> Option<String> {
    let path = place(out, entry);
    let say = |what: &str| Some(format!("{}: {what}", path.display()));
    let Ok(meta) = std::fs::symlink_metadata(&path) else { return say("is not there") };
    let kind = entry["type"].as_str().unwrap();
    if kind == "n" {
        return None;
    }
    if let Some(want) = entry.get("sha256").and_then(Value::as_str)
        && whole_hash(&path) != want
    {
        return say("has other content");
    }
    if let Some(want) = entry.get("sha256_chunks").and_then(Value::as_str)
        && chunk_hash(&path) != want
    {
        return say("has other content (by chunks)");
    }
    if let Some(target) = text(entry, "target")
        && std::fs::read_link(&path).unwrap().as_os_str().as_bytes() != target
    {
        return say("has another target");
    }
    if kind == "v" {
        return (meta.len() != entry["size"].as_u64().unwrap()).then(|| format!("{}: size", path.display()));
    }
    let mode = meta.mode();
    let letter = match mode & 0o170_000 {
        0o040_000 => "d",
        0o100_000 => "f",
        0o120_000 => "l",
        0o010_000 => "p",
        0o140_000 => "s",
        0o060_000 => "b",
        _ => "c",
    };
    if letter != kind {
        return say("is of another kind");
    }
    if kind != "l" && format!("{:04o}", mode & 0o7777) != entry["mode"].as_str().unwrap() {
        return say("has another mode");
    }
    if kind == "f" && Some(meta.len()) != entry["size"].as_u64() {
        return say("has another size");
    }
    let mtime = meta.mtime().wrapping_mul(1_000_000_000).wrapping_add(meta.mtime_nsec());
    if Some(mtime) != entry["mtime_ns"].as_i64() && fits_time(entry) {
        return say(&format!("was changed at {mtime}"));
    }
    if rustix::process::geteuid().is_root()
        && (Some(u64::from(meta.uid())), Some(u64::from(meta.gid()))) != (entry["uid"].as_u64(), entry["gid"].as_u64())
    {
        return say("belongs to another");
    }
    // Names of one file are one file again.
    if kind == "f" {
        let fs = format!("{}@{}", entry["dataset"], entry.get("snap").unwrap_or(&Value::Null));
        let old = inodes.entry((fs, entry["ino"].as_u64().unwrap())).or_insert(meta.ino());
        if *old != meta.ino() {
            return say("is not the same file as its other name");
        }
    }
    None
}

/// Whether the target can keep a time: most file systems end in 2446 or so and begin in 1901. What
/// is later than 2262 does not fit the manifest itself.
fn fits_time(entry: &Value) -> bool {
    if entry["path"].as_str().is_some_and(|p| p.ends_with("time+16725225600")) {
        return false;
    }
    entry["mtime_ns"].as_i64().is_some_and(|t| (-(1i64 << 31) * 1_000_000_000..4_000_000_000_000_000_000).contains(&t))
}

/// Everything that differs between a manifest and a rescued tree; `snapshots`: entries of snapshots
/// count too.
pub fn differences(out: &Path, manifest: &str, snapshots: bool) -> Vec<String> {
    differing(out, manifest, snapshots).into_iter().map(|(_, why)| why).collect()
}

/// Those differences that the report does not account for: by a finding about the file, a folder
/// above it, its dataset or the pool.
pub fn untold(out: &Path, manifest: &str, report: &Value) -> Vec<String> {
    let findings = report["findings"].as_array().unwrap();
    let pool = report["pool"].as_str().unwrap();
    let is_told = |e: &Value| {
        let mut dataset = e["dataset"].as_str().unwrap().to_owned();
        if let Some(snap) = e.get("snap").and_then(Value::as_str) {
            dataset = format!("{dataset}@{snap}");
        }
        let path = text(e, "path").unwrap_or_default();
        findings.iter().filter(|f| f["problem"] != "attributes").any(|f| {
            let at = text(f, "path").unwrap();
            let above = at.is_empty() || path.starts_with(&at) && matches!(path.get(at.len()), None | Some(b'/'));
            let whole_pool = f["dataset"] == pool && at.is_empty();
            whole_pool || f["dataset"] == dataset && (above || f["object"] != 0 && f["object"] == e["ino"])
        })
    };
    differing(out, manifest, true).into_iter().filter(|(e, _)| !is_told(e)).map(|(_, why)| why).collect()
}

/// The entries that differ, and how.
fn differing(out: &Path, manifest: &str, snapshots: bool) -> Vec<(Value, String)> {
    let mut inodes = BTreeMap::new();
    let entries = manifest.lines().map(|l| serde_json::from_str::<Value>(l).unwrap());
    let entries: Vec<Value> = entries.collect();
    let datasets: BTreeSet<&str> = entries.iter().filter_map(|e| e["dataset"].as_str()).collect();
    // The folder on which a child was mounted is under the child.
    let covered = |e: &Value| {
        let (ds, path) = (e["dataset"].as_str().unwrap_or(""), e["path"].as_str().unwrap_or(""));
        e.get("snap").is_none() && datasets.contains(&format!("{ds}/{path}")[..])
    };
    let wanted = entries.iter().filter(|e| (snapshots || e.get("snap").is_none()) && !covered(e));
    wanted.filter_map(|e| Some((e.clone(), difference(out, e, &mut inodes)?))).collect()
}
