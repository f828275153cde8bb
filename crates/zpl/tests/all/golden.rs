//! File systems that the real kernel wrote, read entry by entry against the manifests made from its
//! mounts.
//!
//! The pools are in `../shared/pools` beside the project (or `$WEIR_POOLS`), and not part of it:
//! the tests report missing ones.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use base::{ErrorKind, ObjectId};
use bdev::{BlockDev, MemDev};
use serde_json::Value;
use spa::{ImportOpts, Pool};
use zpl::{FileKind, MountOpts, Zfs};

fn pools() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/pools");
    let dir = std::env::var_os("WEIR_POOLS").map_or(beside, PathBuf::from);
    dir.is_dir().then_some(dir)
}

/// Unpacks a pool into a folder of its own; none if it is not there.
fn unpack(name: &str) -> Option<PathBuf> {
    let Some(dir) = pools() else {
        eprintln!("NOT RUN: the reference pools are not at ../shared/pools");
        return None;
    };
    let to = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("zpl-golden");
    std::fs::create_dir_all(&to).unwrap();
    if !to.join(name).join("manifest.jsonl").exists() {
        let tar = dir.join(format!("{name}.tar.zst"));
        let done = std::process::Command::new("tar").arg("--zstd").arg("-xf").arg(tar).arg("-C").arg(&to).status();
        assert!(done.unwrap().success(), "tar of {name}");
    }
    Some(to.join(name))
}

fn load(rt: &rt::Rt, path: &Path) -> Rc<dyn BlockDev> {
    use std::io::Read;
    let mut f = std::fs::File::open(path).unwrap();
    let size = f.metadata().unwrap().len();
    let dev = MemDev::new(rt, size);
    let mut buf = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let n = f.read(&mut buf).unwrap();
        if n == 0 {
            return Rc::new(dev);
        }
        for (i, chunk) in buf[..n].chunks(64 << 10).enumerate() {
            if chunk.iter().any(|&b| b != 0) {
                dev.poke(at + (i << 16) as u64, chunk);
            }
        }
        at += n as u64;
    }
}

fn hex(s: &str) -> Vec<u8> {
    (0..s.len() / 2).map(|i| u8::from_str_radix(&s[2 * i..2 * i + 2], 16).unwrap()).collect()
}

fn to_hex(b: &[u8]) -> String {
    b.iter().map(|x| format!("{x:02x}")).collect()
}

/// A text field, or its `_hex` form.
fn text(v: &Value, key: &str) -> Vec<u8> {
    match v.get(format!("{key}_hex")) {
        Some(h) => hex(h.as_str().unwrap()),
        None => v[key].as_str().unwrap_or_default().as_bytes().to_vec(),
    }
}

fn kind_letter(k: FileKind) -> &'static str {
    match k {
        FileKind::File => "f",
        FileKind::Dir => "d",
        FileKind::Symlink => "l",
        FileKind::Fifo => "p",
        FileKind::Socket => "s",
        FileKind::BlockDev => "b",
        FileKind::CharDev => "c",
    }
}

/// As the manifests have it: 64 bits, whatever the year.
fn nanos(t: base::WallTime) -> i64 {
    t.secs.wrapping_mul(1_000_000_000).wrapping_add(i64::from(t.nanos))
}

fn digest(b: &[u8]) -> String {
    codec::checksum::sha256(b).0.iter().map(|w| format!("{w:016x}")).collect()
}

async fn content_hash(fs: &Zfs, obj: ObjectId, size: u64, chunked: bool) -> String {
    if !chunked {
        let parts = fs.read(obj, 0, size).await.unwrap();
        let all: Vec<u8> = parts.iter().flat_map(|p| p.iter().copied()).collect();
        return digest(&all);
    }
    // Only data ranges need a comparison: everything else is zeros.
    let mut all = Vec::new();
    let mut at = 0;
    while let Some(data) = fs.seek_data(obj, at).await.unwrap() {
        let hole = fs.seek_hole(obj, data).await.unwrap().unwrap();
        let first = data / 4096 * 4096;
        let mut pos = first;
        while pos < hole {
            let mut chunk = vec![0; 4096];
            let mut n = 0;
            for p in fs.read(obj, pos, 4096).await.unwrap() {
                chunk[n..n + p.len()].copy_from_slice(&p);
                n += p.len();
            }
            if chunk.iter().any(|&b| b != 0) {
                all.extend_from_slice(&(pos / 4096).to_le_bytes());
                all.extend_from_slice(&chunk);
            }
            pos += 4096;
        }
        at = pos.max(hole);
    }
    digest(&all)
}

struct Checker {
    fs: Rc<Zfs>,
    dirs: BTreeMap<Vec<u8>, ObjectId>,
    /// Names by directory, as the manifest has them.
    names: BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>>,
    hashes: BTreeMap<u64, String>,
    /// A log was replayed: times and allocated space have changed.
    replayed: bool,
}

impl Checker {
    async fn check(&mut self, v: &Value) -> Result<(), String> {
        let path = text(v, "path");
        let attr = if path == b"." {
            self.dirs.insert(b".".to_vec(), self.fs.root());
            self.fs.getattr(self.fs.root()).await
        } else {
            let (parent, name) = match path.iter().rposition(|&c| c == b'/') {
                Some(i) => (path[..i].to_vec(), path[i + 1..].to_vec()),
                None => (b".".to_vec(), path.clone()),
            };
            let dir = *self.dirs.get(&parent).ok_or("its folder is not in the manifest before it")?;
            self.names.entry(parent).or_default().insert(name.clone());
            self.fs.lookup(dir, &name).await
        };
        let a = attr.map_err(|e| format!("{e:?}"))?;
        if a.kind == FileKind::Dir {
            self.dirs.insert(path.clone(), a.obj);
        }
        let mut wrong = Vec::new();
        let mut same = |what: &str, got: String, want: String| {
            if got != want {
                wrong.push(format!("{what} is {got}, not {want}"));
            }
        };
        let num =
            |key: &str| v[key].as_i64().map(i128::from).or(v[key].as_u64().map(i128::from)).unwrap_or(0).to_string();
        same("type", kind_letter(a.kind).into(), v["type"].as_str().unwrap().into());
        same("mode", format!("{:04o}", a.mode & 0o7777), v["mode"].as_str().unwrap().into());
        same("uid", a.uid.to_string(), num("uid"));
        same("gid", a.gid.to_string(), num("gid"));
        same("nlink", a.nlink.to_string(), num("nlink"));
        same("size", a.size.to_string(), num("size"));
        // The root of a snapshot that the kernel mounted in .zfs has a number of its own there.
        if path != b"." || v.get("snap").is_none() {
            same("ino", a.obj.to_string(), num("ino"));
        }
        if !self.replayed {
            same("mtime", nanos(a.mtime).to_string(), num("mtime_ns"));
            same("ctime", nanos(a.ctime).to_string(), num("ctime_ns"));
            same("blocks", a.blocks.to_string(), num("blocks"));
        }
        // The manifests name three flags only.
        same("flags", format!("{:#x}", a.ioc_flags() & 0x70), v["flags"].as_str().unwrap_or("0x0").into());
        same("projid", a.projid.to_string(), num("projid"));
        if let Some(rdev) = v["rdev"].as_str() {
            same("rdev", format!("{}:{}", a.rdev >> 20, a.rdev & 0xfffff), rdev.into());
        }
        if a.kind == FileKind::Symlink {
            let target = self.fs.readlink(a.obj).await.map_err(|e| format!("{e:?}"))?;
            same("target", to_hex(&target), to_hex(&text(v, "target")));
        }
        let mut xattrs = BTreeMap::new();
        for name in self.fs.listxattr(a.obj).await.map_err(|e| format!("{e:?}"))? {
            let value = self.fs.getxattr(a.obj, &name).await.map_err(|e| format!("{e:?}"))?;
            xattrs.insert(String::from_utf8_lossy(&name).into_owned(), to_hex(&value));
        }
        let want: BTreeMap<String, String> = v["xattrs"]
            .as_object()
            .map(|m| m.iter().map(|(k, v)| (k.clone(), v.as_str().unwrap().to_string())).collect())
            .unwrap_or_default();
        same("xattrs", format!("{xattrs:?}"), format!("{want:?}"));
        for (key, chunked) in [("sha256", false), ("sha256_chunks", true)] {
            if let Some(want) = v[key].as_str() {
                let hash = match self.hashes.get(&a.obj.0) {
                    Some(h) => h.clone(),
                    None => content_hash(&self.fs, a.obj, a.size, chunked).await,
                };
                same(key, hash.clone(), want.into());
                self.hashes.insert(a.obj.0, hash);
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    }

    /// Directories have exactly the entries of the manifest.
    async fn listings(&self) -> Result<(), String> {
        for (path, &dir) in &self.dirs {
            let mut seen = BTreeSet::new();
            let mut cookie = 0;
            loop {
                let list = self.fs.readdir(dir, cookie, 100).await.map_err(|e| format!("{e:?}"))?;
                let Some(last) = list.last() else { break };
                cookie = last.next_cookie;
                for e in list {
                    if e.name != b"." && e.name != b".." && !seen.insert(e.name.clone()) {
                        return Err(format!("{:?} is listed twice", e.name));
                    }
                }
            }
            let want = self.names.get(path).cloned().unwrap_or_default();
            if seen != want {
                let extra: Vec<_> = seen.symmetric_difference(&want).map(|n| String::from_utf8_lossy(n)).collect();
                return Err(format!("{:?}: {extra:?} only on one side", String::from_utf8_lossy(path)));
            }
        }
        Ok(())
    }
}

/// Reads everything in a pool against a manifest.
fn check_pool(name: &str, manifest: &str) {
    check_pool_as(name, manifest, false);
}

/// With `replay` the pool is imported for writing, and its intent logs are replayed.
fn check_pool_as(name: &str, manifest: &str, replay: bool) {
    let Some(dir) = unpack(name) else { return };
    let manifest = std::fs::read_to_string(dir.join(manifest)).unwrap();
    let mut groups: BTreeMap<(String, Option<String>), Vec<Value>> = BTreeMap::new();
    for line in manifest.lines() {
        let v: Value = serde_json::from_str(line).unwrap();
        let key = (v["dataset"].as_str().unwrap().to_string(), v["snap"].as_str().map(str::to_string));
        groups.entry(key).or_default().push(v);
    }
    let mut disks: Vec<PathBuf> = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).collect();
    disks.retain(|p| p.extension().is_some_and(|e| e == "img"));
    disks.sort();
    crate::common::run(7, |rt| async move {
        let devs = disks.iter().map(|p| load(&rt, p)).collect();
        let mut found = spa::scan(devs).await;
        let import = ImportOpts { readonly: !replay, force: true, ..ImportOpts::default() };
        let pool = Pool::import(rt.clone(), found.remove(0), import, crate::common::opts()).await.unwrap();
        let mut bad = Vec::new();
        let mut good = 0;
        for ((ds, snap), entries) in &groups {
            if entries.iter().all(|v| v["type"] == "v" || v["type"] == "n") {
                continue;
            }
            let dataset = match snap {
                Some(s) => pool.dsl().find_snapshot(&format!("{ds}@{s}")).await.unwrap(),
                None => pool.dsl().find(ds).unwrap(),
            };
            let opts = MountOpts { xattr: zpl::XattrMode::Sa, ..MountOpts::from_props(&dataset) };
            let fs = match Zfs::open(&dataset, opts).await {
                Ok(fs) => fs,
                Err(e) => {
                    bad.push(format!("{}: {e:?}", dataset.name()));
                    continue;
                }
            };
            if replay {
                let done = fs.replayed();
                println!("{}: {done:?}", dataset.name());
                if let Some(e) = done.failed {
                    bad.push(format!("{}: replay: {e:?}", dataset.name()));
                }
            } else {
                let denied = fs.create(fs.root(), b"new", 0o644, &crate::common::ROOT_CRED, true).await;
                assert_eq!(denied.unwrap_err().kind(), ErrorKind::ReadOnly);
            }
            let mut c = Checker {
                fs: fs.clone(),
                dirs: BTreeMap::new(),
                names: BTreeMap::new(),
                hashes: BTreeMap::new(),
                replayed: replay,
            };
            for v in entries {
                if v["type"] == "v" || v["type"] == "n" {
                    continue;
                }
                match c.check(v).await {
                    Ok(()) => good += 1,
                    Err(e) => {
                        bad.push(format!("{} {}: {e}", dataset.name(), String::from_utf8_lossy(&text(v, "path"))))
                    }
                }
            }
            if let Err(e) = c.listings().await {
                bad.push(format!("{}: {e}", dataset.name()));
            }
            fs.unmount().await.unwrap();
        }
        let shown: Vec<&String> = bad.iter().take(30).collect();
        assert!(bad.is_empty(), "{good} entries are right, {} wrong: {shown:#?}", bad.len());
        assert!(good > 0);
    });
}

#[test]
fn names_of_every_kind() {
    check_pool("names", "manifest.jsonl");
}

#[test]
fn expanded() {
    check_pool("grown", "manifest.jsonl");
}

#[test]
fn upgraded_from_version_10() {
    check_pool("upgraded", "manifest.jsonl");
}

#[test]
fn log_not_replayed() {
    check_pool("zil", "before.jsonl");
}

#[test]
fn log_replayed() {
    check_pool_as("zil", "manifest.jsonl", true);
}

#[test]
fn log_on_log_devices_replayed() {
    check_pool_as("zil-slog", "manifest.jsonl", true);
}

#[test]
#[ignore = "minutes for each pool: `cargo xtask campaign --only golden` runs it"]
fn single() {
    check_pool("single", "manifest.jsonl");
}

#[test]
#[ignore = "minutes for each pool: `cargo xtask campaign --only golden` runs it"]
fn gang() {
    check_pool("gang", "manifest.jsonl");
}

#[test]
#[ignore = "minutes for each pool: `cargo xtask campaign --only golden` runs it"]
fn deep() {
    check_pool("deep", "manifest.jsonl");
}
