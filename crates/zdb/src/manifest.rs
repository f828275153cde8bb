//! The manifest of a pool: the user-visible content of each file system and snapshot, as lines of
//! JSON.
//!
//! One object per file, folder, link or volume, fields in a fixed order, datasets and paths sorted
//! by their bytes, snapshots by age: two pools hold the same if and only if their manifests are the
//! same text. Content is hashed: SHA-256 up to 64 MiB; beyond that over the chunks of 4096 bytes
//! that are not all zero, each preceded by its index (u64, little-endian), so that sparse files
//! cost only their data; volumes over 1 GiB by their first and last MiB.

use std::fmt::Write as _;
use std::io::Write;

use base::{Error, ErrorKind, Result, ResultExt};
use ondisk::objset::ObjsetType;
use ondisk::zpl::{Dirent, pflags};
use sha2::{Digest, Sha256};

use crate::dsl::{Dataset, Dsl};
use crate::objset::{Object, Objset};
use crate::pool::PoolReader;
use crate::zap;
use crate::zpl::{Attrs, FileSystem, rdev_major_minor, time_ns};

/// Content up to this is hashed as a whole.
const WHOLE_MAX: u64 = 64 << 20;
/// Volumes beyond this are hashed at their ends only.
const VOLUME_MAX: u64 = 1 << 30;
/// Chunk of the sparse hash.
const CHUNK: usize = 4096;
/// The inode number of a snapshot's root on Linux is this less the dataset's object.
const SNAPDIR_INO: u64 = (1 << 48) - 4;
/// Directories deeper than this are taken for damage.
const MAX_DEPTH: usize = 100_000;

/// Which datasets to list.
#[derive(Clone, Debug, Default)]
pub struct ManifestOpts {
    /// Only this dataset (and snapshot, with `@`).
    pub dataset: Option<String>,
    /// No hashes of contents.
    pub no_content: bool,
}

fn io_err(e: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("writing the manifest: {e}"))
}

/// Writes the manifest of the pool. Reports read errors to `bad` and goes on with the rest.
pub fn tree_manifest(
    pool: &PoolReader,
    opts: &ManifestOpts,
    out: &mut dyn Write,
    bad: &mut dyn FnMut(String),
) -> Result<()> {
    let dsl = Dsl::load(pool)?;
    dsl.errors.iter().for_each(|e| bad(e.clone()));
    for ds in dsl.by_name() {
        if ds.is_internal() || opts.dataset.as_ref().is_some_and(|d| *d != ds.name) {
            continue;
        }
        if let Err(e) = dataset(pool, ds, opts, out, bad) {
            if e.kind() == ErrorKind::Io && e.to_string().starts_with("writing") {
                return Err(e);
            }
            bad(format!("{}: {e}", ds.name));
        }
    }
    Ok(())
}

fn dataset(
    pool: &PoolReader,
    ds: &Dataset,
    opts: &ManifestOpts,
    out: &mut dyn Write,
    bad: &mut dyn FnMut(String),
) -> Result<()> {
    let os = pool.open_dataset(&ds.name, ds.obj, &ds.phys.bp)?;
    match os.phys.os_type {
        ObjsetType::Zfs if ds.phys.bp.encrypted() => Err(Error::unsupported("an encrypted file system needs its key")),
        ObjsetType::Zfs => {
            let fs = FileSystem::open(&os)?;
            Walker { fs: &fs, ds, opts, out, bad }.run()
        }
        ObjsetType::Zvol if !ds.snapshot => volume(&os, ds, opts, out),
        _ => Ok(()),
    }
}

/// A JSON string: control characters escaped by their numbers, the rest as it is.
fn quoted(s: &str) -> String {
    let mut o = String::with_capacity(s.len() + 2);
    o.push('"');
    for c in s.chars() {
        match c {
            '"' => o.push_str("\\\""),
            '\\' => o.push_str("\\\\"),
            '\0'..' ' | '\u{7f}' => {
                let _ = write!(o, "\\u{:04x}", c as u32);
            }
            c => o.push(c),
        }
    }
    o.push('"');
    o
}
fn hex(b: &[u8]) -> String {
    b.iter().fold(String::with_capacity(2 * b.len()), |mut s, x| {
        let _ = write!(s, "{x:02x}");
        s
    })
}

/// One line: fields in the order in which they are put.
struct Line(String);

impl Line {
    fn new(ds: &Dataset) -> Line {
        let (name, snap) = ds.name.split_once('@').map_or((ds.name.as_str(), None), |(n, s)| (n, Some(s)));
        let mut l = Line(format!("{{\"dataset\": {}", quoted(name)));
        if let Some(s) = snap {
            l.raw("snap", &quoted(s));
        }
        l
    }
    fn raw(&mut self, key: &str, value: &str) {
        let _ = write!(self.0, ", \"{key}\": {value}");
    }
    fn text(&mut self, key: &str, value: &str) {
        self.raw(key, &quoted(value));
    }
    /// Bytes as text if they are UTF-8, else in hexadecimal under `key_hex`.
    fn bytes(&mut self, key: &str, value: &[u8]) {
        match std::str::from_utf8(value) {
            Ok(s) => self.text(key, s),
            Err(_) => self.text(&format!("{key}_hex"), &hex(value)),
        }
    }
    fn finish(mut self, out: &mut dyn Write) -> Result<()> {
        self.0.push_str("}\n");
        out.write_all(self.0.as_bytes()).map_err(io_err)
    }
}

/// A pending item of a directory: an entry itself, or its subtree.
struct Item {
    /// Name; with a slash at its end for the subtree. The order of these is the order of the whole
    /// paths.
    key: Vec<u8>,
    object: u64,
}

struct Walker<'a> {
    fs: &'a FileSystem,
    ds: &'a Dataset,
    opts: &'a ManifestOpts,
    out: &'a mut dyn Write,
    bad: &'a mut dyn FnMut(String),
}

impl Walker<'_> {
    fn run(&mut self) -> Result<()> {
        let root = self.fs.os.object(self.fs.root)?;
        self.emit(&root, b".")?;
        let mut path: Vec<u8> = Vec::new();
        // Directories on the way down: the remaining items of each, and the length of its path.
        let mut stack = vec![(self.list(&root)?.into_iter(), 0usize)];
        let mut open = vec![self.fs.root];
        while let Some((items, len)) = stack.last_mut() {
            path.truncate(*len);
            let Some(item) = items.next() else {
                stack.pop();
                open.pop();
                continue;
            };
            let below = item.key.ends_with(b"/");
            path.extend_from_slice(&item.key);
            let obj = match self.fs.os.object(item.object) {
                Ok(o) => o,
                Err(e) => {
                    if !below {
                        (self.bad)(format!("{}: {}: {e}", self.ds.name, String::from_utf8_lossy(&path)));
                    }
                    continue;
                }
            };
            if !below {
                if let Err(e) = self.emit(&obj, &path) {
                    if e.to_string().starts_with("writing") {
                        return Err(e);
                    }
                    (self.bad)(format!("{}: {}: {e}", self.ds.name, String::from_utf8_lossy(&path)));
                }
                continue;
            }
            if open.contains(&item.object) || open.len() > MAX_DEPTH {
                (self.bad)(format!("{}: {}: a directory inside itself", self.ds.name, String::from_utf8_lossy(&path)));
                continue;
            }
            match self.list(&obj) {
                Ok(l) => {
                    stack.push((l.into_iter(), path.len()));
                    open.push(item.object);
                }
                Err(e) => (self.bad)(format!("{}: {}: {e}", self.ds.name, String::from_utf8_lossy(&path))),
            }
        }
        Ok(())
    }

    fn list(&mut self, dir: &Object) -> Result<Vec<Item>> {
        let mut out = Vec::new();
        for e in zap::entries(dir)? {
            let v = e.u64().ok_or_else(|| Error::corrupt(format!("entry {:?} is not a number", e.name())))?;
            let d = Dirent::unpack(v);
            let is_dir = match d.dtype {
                4 => true,
                0 => self.fs.os.find(d.object)?.is_some_and(|o| o.dn.otype.is_zap()),
                _ => false,
            };
            if is_dir {
                let mut key = e.key.clone();
                key.push(b'/');
                out.push(Item { key, object: d.object });
            }
            out.push(Item { key: e.key, object: d.object });
        }
        out.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(out)
    }

    fn emit(&mut self, obj: &Object, path: &[u8]) -> Result<()> {
        let a = self.fs.attrs(obj)?;
        let kind = match a.mode >> 12 & 0xf {
            1 => 'p',
            2 => 'c',
            4 => 'd',
            6 => 'b',
            8 => 'f',
            10 => 'l',
            12 => 's',
            t => return Err(Error::corrupt(format!("mode {:o} of unknown type {t}", a.mode))),
        };
        let mut l = Line::new(self.ds);
        l.bytes("path", path);
        l.text("type", &kind.to_string());
        l.text("mode", &format!("{:04o}", a.mode & 0o7777));
        l.raw("uid", &a.uid.to_string());
        l.raw("gid", &a.gid.to_string());
        l.raw("nlink", &a.links.to_string());
        l.raw("size", &a.size.to_string());
        l.raw("mtime_ns", &time_ns(a.times[1]).to_string());
        let ino =
            if self.ds.snapshot && obj.num == self.fs.root { SNAPDIR_INO - self.ds.obj.min(1 << 47) } else { obj.num };
        l.raw("ino", &ino.to_string());
        l.raw("blocks", &(obj.dn.used_bytes().saturating_add(256) / 512 + obj.dn.num_slots() as u64).to_string());
        l.raw("ctime_ns", &time_ns(a.times[2]).to_string());
        let flags = fs_flags(&a);
        if flags != 0 {
            l.text("flags", &format!("{flags:#x}"));
        }
        if a.projid != 0 {
            l.raw("projid", &a.projid.to_string());
        }
        match kind {
            'l' => l.bytes("target", &self.fs.target(obj, &a)?),
            'c' | 'b' => {
                let (major, minor) = rdev_major_minor(a.rdev);
                l.text("rdev", &format!("{major}:{minor}"));
            }
            'f' if !self.opts.no_content => content(obj, a.size, &mut l)?,
            _ => {}
        }
        let xattrs = self.fs.xattrs(&a)?;
        if !xattrs.is_empty() {
            let list: Vec<String> = xattrs
                .iter()
                .map(|(k, v)| format!("{}: \"{}\"", quoted(&String::from_utf8_lossy(k)), hex(v)))
                .collect();
            l.raw("xattrs", &format!("{{{}}}", list.join(", ")));
        }
        l.finish(self.out)
    }
}

/// The flags that Linux shows (`FS_IOC_GETFLAGS`).
fn fs_flags(a: &Attrs) -> u32 {
    let bit = |f: u64, v: u32| if a.flags & f != 0 { v } else { 0 };
    bit(pflags::IMMUTABLE, 0x10) | bit(pflags::APPENDONLY, 0x20) | bit(pflags::NODUMP, 0x40)
}

fn volume(os: &Objset, ds: &Dataset, opts: &ManifestOpts, out: &mut dyn Write) -> Result<()> {
    let size = zap::lookup(&os.object(2)?, b"size")?.and_then(|v| v.as_u64());
    let size = size.ok_or_else(|| Error::corrupt("the volume has no size"))?;
    let data = os.object(1)?;
    let mut l = Line::new(ds);
    l.text("type", "v");
    l.raw("size", &size.to_string());
    if !opts.no_content {
        if size > VOLUME_MAX {
            let mut h = Sha256::new();
            h.update(data.read(0, 1 << 20)?);
            h.update(data.read(size - (1 << 20), 1 << 20)?);
            l.text("sha256_ends", &hex(&h.finalize()));
        } else {
            content(&data, size, &mut l)?;
        }
    }
    l.finish(out)
}

/// Adds the hash of the first `size` bytes of an object.
fn content(obj: &Object, size: u64, l: &mut Line) -> Result<()> {
    if size <= WHOLE_MAX {
        l.text("sha256", &hex(&hash_whole(obj, size)?));
    } else {
        l.text("sha256_chunks", &hex(&hash_chunks(obj, size)?));
    }
    Ok(())
}

fn hash_whole(obj: &Object, size: u64) -> Result<[u8; 32]> {
    let mut h = Sha256::new();
    let mut at = 0u64;
    let zeros = vec![0u8; 1 << 16];
    let fill = |h: &mut Sha256, from: u64, to: u64| {
        let mut left = to.saturating_sub(from);
        while left > 0 {
            let n = left.min(zeros.len() as u64);
            h.update(&zeros[..n as usize]);
            left -= n;
        }
    };
    let bs = u64::from(obj.dn.datablksz());
    obj.for_each_data(&mut |blkid, bp| {
        let start = blkid * bs;
        if start >= size {
            return Ok(());
        }
        fill(&mut h, at, start);
        let block = obj.content(bp)?;
        let n = (size - start).min(bs);
        h.update(&block[..n as usize]);
        at = start + n;
        Ok(())
    })
    .at(|| obj.place())?;
    fill(&mut h, at, size);
    Ok(h.finalize().into())
}

fn hash_chunks(obj: &Object, size: u64) -> Result<[u8; 32]> {
    let mut h = Sha256::new();
    let bs = u64::from(obj.dn.datablksz());
    // A chunk may be of several small blocks: it is hashed when the next one begins.
    let mut index = 0u64;
    let mut chunk = [0u8; CHUNK];
    let flush = |h: &mut Sha256, index: u64, chunk: &mut [u8; CHUNK]| {
        if !codec::is_zero(chunk) {
            h.update(index.to_le_bytes());
            h.update(&chunk[..]);
            chunk.fill(0);
        }
    };
    obj.for_each_data(&mut |blkid, bp| {
        let start = blkid * bs;
        if start >= size {
            return Ok(());
        }
        let block = obj.content(bp)?;
        let n = (size - start).min(bs) as usize;
        let mut at = 0;
        while at < n {
            let pos = start + at as u64;
            let within = (pos % CHUNK as u64) as usize;
            let take = (CHUNK - within).min(n - at);
            if pos / CHUNK as u64 != index {
                flush(&mut h, index, &mut chunk);
                index = pos / CHUNK as u64;
            }
            chunk[within..within + take].copy_from_slice(&block[at..at + take]);
            at += take;
        }
        Ok(())
    })
    .at(|| obj.place())?;
    flush(&mut h, index, &mut chunk);
    Ok(h.finalize().into())
}
