//! The user-visible content of every file system, snapshot and volume of a pool, read through the
//! engine: one JSON object each, with the fields of the manifests that come with reference pools.

use std::rc::Rc;

use base::{ObjectId, Result, WallTime};
use bdev::Bytes;
use dsl::Dataset;
use ondisk::objset::ObjsetType;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use spa::Pool;
use zpl::{Attr, FileKind, MountOpts, Zfs, ioc_flags};
use zvol::{Volume, VolumeOpts};

/// Content up to this size is hashed as a whole, larger content in chunks.
const WHOLE_MAX: u64 = 64 << 20;
/// Larger volumes are hashed at their ends only.
const VOLUME_MAX: u64 = 1 << 30;
const CHUNK: u64 = 4096;
const READ: u64 = 1 << 20;
/// The inode number of a snapshot's root on Linux is this less the dataset's object.
const SNAPDIR_INO: u64 = (1 << 48) - 4;
/// Entries per listing call.
const LISTING: usize = 500;

/// The manifest of a pool, and the datasets that the engine does not open, with its sentence.
#[derive(Default)]
pub struct Manifest {
    pub lines: Vec<Value>,
    pub refused: Vec<(String, String)>,
}

pub async fn manifest(pool: &Pool) -> Manifest {
    let mut out = Manifest::default();
    for ds in pool.dsl().all() {
        // The dataset of a receive under way is hidden.
        if ds.dir().name().starts_with('%') {
            continue;
        }
        let mut list = vec![ds.clone()];
        list.extend(pool.dsl().snapshots(&ds).await.unwrap());
        for ds in list {
            if let Err(e) = dataset(&ds, &mut out.lines).await {
                out.refused.push((ds.name(), e.to_string()));
            }
        }
    }
    out
}

async fn dataset(ds: &Rc<Dataset>, out: &mut Vec<Value>) -> Result<()> {
    if ds.objset().await?.os_type() == ObjsetType::Zvol {
        out.push(volume(ds).await?);
        return Ok(());
    }
    let fs = Zfs::open(ds, MountOpts::from_props(ds)).await?;
    let root = fs.getattr(fs.root()).await?;
    out.push(line(&fs, b".", root).await);
    let mut todo = vec![(Vec::new(), fs.root())];
    while let Some((path, dir)) = todo.pop() {
        for (name, attr) in entries(&fs, dir).await? {
            let mut below = path.clone();
            below.extend_from_slice(&name);
            out.push(line(&fs, &below, attr).await);
            if attr.kind == FileKind::Dir {
                below.push(b'/');
                todo.push((below, attr.obj));
            }
        }
    }
    fs.unmount().await
}

async fn entries(fs: &Zfs, dir: ObjectId) -> Result<Vec<(Vec<u8>, Attr)>> {
    let mut out = Vec::new();
    let mut cookie = 0;
    loop {
        let some = fs.readdirplus(dir, cookie, LISTING).await?;
        let Some(last) = some.last() else { return Ok(out) };
        cookie = last.entry.next_cookie;
        for e in some {
            if e.entry.name == b"." || e.entry.name == b".." {
                continue;
            }
            // Each path to the object must give the same entry.
            let found = fs.lookup(dir, &e.entry.name).await?;
            assert_eq!((found.obj, found.kind), (e.entry.obj, e.entry.kind), "{:?}", e.entry);
            assert_eq!(e.attr, Some(found), "{:?}", e.entry);
            out.push((e.entry.name, found));
        }
    }
}

fn hex(b: &[u8]) -> String {
    b.iter().map(|x| format!("{x:02x}")).collect()
}

fn put_bytes(o: &mut Map<String, Value>, key: &str, value: &[u8]) {
    match std::str::from_utf8(value) {
        Ok(s) => o.insert(key.into(), s.into()),
        Err(_) => o.insert(format!("{key}_hex"), hex(value).into()),
    };
}

/// Nanoseconds since 1970; beyond 64 bits (after 2262) they wrap, as in programs that ask Linux for
/// nanoseconds.
fn time_ns(t: WallTime) -> i64 {
    t.secs.wrapping_mul(1_000_000_000).wrapping_add(i64::from(t.nanos))
}

fn named(ds: &Dataset) -> Map<String, Value> {
    let name = ds.name();
    let mut o = Map::new();
    match name.split_once('@') {
        Some((fs, snap)) => {
            o.insert("dataset".into(), fs.into());
            o.insert("snap".into(), snap.into());
        }
        None => {
            o.insert("dataset".into(), name.into());
        }
    }
    o
}

async fn line(fs: &Zfs, path: &[u8], a: Attr) -> Value {
    let mut o = named(fs.dataset());
    put_bytes(&mut o, "path", path);
    if let Err(e) = fill_line(fs, &a, &mut o).await {
        o.insert("error".into(), e.to_string().into());
    }
    o.into()
}

async fn fill_line(fs: &Zfs, a: &Attr, o: &mut Map<String, Value>) -> Result<()> {
    let kind = match a.kind {
        FileKind::Fifo => "p",
        FileKind::CharDev => "c",
        FileKind::Dir => "d",
        FileKind::BlockDev => "b",
        FileKind::File => "f",
        FileKind::Symlink => "l",
        FileKind::Socket => "s",
    };
    let snapshot_root = fs.dataset().is_snapshot() && a.obj == fs.root();
    let ino = if snapshot_root { SNAPDIR_INO - fs.dataset().object.0 } else { a.obj.0 };
    for (key, value) in [
        ("type", json!(kind)),
        ("mode", json!(format!("{:04o}", a.mode & 0o7777))),
        ("uid", json!(a.uid)),
        ("gid", json!(a.gid)),
        ("nlink", json!(a.nlink)),
        ("size", json!(a.size)),
        ("ino", json!(ino)),
        ("blocks", json!(a.blocks)),
        ("mtime_ns", json!(time_ns(a.mtime))),
        ("ctime_ns", json!(time_ns(a.ctime))),
    ] {
        o.insert(key.into(), value);
    }
    // The kernel's manifests leave out that a project is inherited.
    let flags = a.ioc_flags() & !ioc_flags::PROJINHERIT;
    if flags != 0 {
        o.insert("flags".into(), format!("{flags:#x}").into());
    }
    if a.projid != 0 {
        o.insert("projid".into(), a.projid.into());
    }
    let mut xattrs = Map::new();
    for name in fs.listxattr(a.obj).await? {
        let value = fs.getxattr(a.obj, &name).await?;
        xattrs.insert(String::from_utf8_lossy(&name).into_owned(), hex(&value).into());
    }
    if !xattrs.is_empty() {
        o.insert("xattrs".into(), xattrs.into());
    }
    match a.kind {
        FileKind::Symlink => put_bytes(o, "target", &fs.readlink(a.obj).await?),
        FileKind::CharDev | FileKind::BlockDev => {
            let (major, minor) = (a.rdev >> 20, a.rdev & 0xf_ffff);
            o.insert("rdev".into(), format!("{major}:{minor}").into());
        }
        FileKind::File if a.size <= WHOLE_MAX => {
            let mut h = Sha256::new();
            let mut at = 0;
            while at < a.size {
                let data = fs.read(a.obj, at, READ).await?;
                data.iter().for_each(|b| h.update(&b[..]));
                at += data.iter().map(|b| b.len() as u64).sum::<u64>();
            }
            o.insert("sha256".into(), hex(&h.finalize()).into());
        }
        FileKind::File => {
            let mut h = Chunks::default();
            let mut at = fs.seek_data(a.obj, 0).await?;
            while let Some(data) = at {
                let end = fs.seek_hole(a.obj, data).await?.unwrap_or(a.size);
                let mut pos = data;
                while pos < end {
                    let some = fs.read(a.obj, pos, READ.min(end - pos)).await?;
                    pos = h.add(pos, &some);
                }
                at = fs.seek_data(a.obj, end).await?;
            }
            o.insert("sha256_chunks".into(), h.finish().into());
        }
        _ => {}
    }
    Ok(())
}

async fn volume(ds: &Rc<Dataset>) -> Result<Value> {
    let vol = Volume::open(ds, VolumeOpts::default()).await?;
    let mut o = named(ds);
    o.insert("type".into(), "v".into());
    o.insert("size".into(), vol.size().into());
    let content = async {
        let mut h = Sha256::new();
        if vol.size() > VOLUME_MAX {
            for at in [0, vol.size() - READ] {
                vol.read(at, READ).await?.iter().for_each(|b| h.update(&b[..]));
            }
            return Ok(("sha256_ends", hex(&h.finalize())));
        }
        if vol.size() > WHOLE_MAX {
            let mut h = Chunks::default();
            let mut at = 0;
            while at < vol.size() {
                at = h.add(at, &vol.read(at, READ).await?);
            }
            return Ok(("sha256_chunks", h.finish()));
        }
        let mut at = 0;
        while at < vol.size() {
            vol.read(at, READ).await?.iter().for_each(|b| h.update(&b[..]));
            at += READ;
        }
        Ok(("sha256", hex(&h.finalize())))
    };
    let content: Result<_> = content.await;
    match content {
        Ok((key, hash)) => o.insert(key.into(), hash.into()),
        Err(e) => o.insert("error".into(), e.to_string().into()),
    };
    Ok(o.into())
}

/// The hash over the chunks that are not all zero. Data come in order of their offsets.
struct Chunks {
    hash: Sha256,
    index: u64,
    chunk: [u8; CHUNK as usize],
}

impl Default for Chunks {
    fn default() -> Chunks {
        Chunks { hash: Sha256::new(), index: 0, chunk: [0; CHUNK as usize] }
    }
}

impl Chunks {
    /// Adds data at `pos`; returns its end.
    fn add(&mut self, mut pos: u64, data: &[Bytes]) -> u64 {
        for part in data {
            let mut part = &part[..];
            while !part.is_empty() {
                if pos / CHUNK != self.index {
                    self.flush();
                    self.index = pos / CHUNK;
                }
                let within = (pos % CHUNK) as usize;
                let n = part.len().min(CHUNK as usize - within);
                self.chunk[within..within + n].copy_from_slice(&part[..n]);
                part = &part[n..];
                pos += n as u64;
            }
        }
        pos
    }
    fn flush(&mut self) {
        if !codec::is_zero(&self.chunk) {
            self.hash.update(self.index.to_le_bytes());
            self.hash.update(self.chunk);
            self.chunk.fill(0);
        }
    }
    fn finish(mut self) -> String {
        self.flush();
        hex(&self.hash.finalize())
    }
}
