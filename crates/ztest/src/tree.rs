//! Comparing a pool with the model: every name, attribute and byte.

use std::collections::BTreeMap;
use std::rc::Rc;

use base::ObjectId;
use spa::Pool;
use zpl::{Attr, MountOpts, Zfs};

use crate::Check;
use crate::model::{Body, Content, DsModel, FsModel, Inode, PoolModel};

/// Bytes that are read at once.
const READ: u64 = 1 << 20;
/// Holes of a file that are read at each end; in between only the ranges that the engine reports as
/// data.
const HOLE_READ_MAX: u64 = 4 << 20;

/// Marks findings that are errors of the engine, not other content than there should be.
const REFUSED: &str = "refused: ";

fn say<T>(what: &str, r: base::Result<T>) -> Check<T> {
    r.map_err(|e| format!("{REFUSED}{what}: {e:?}"))
}

/// Whether the engine gave an error, rather than something wrong.
pub fn is_refusal(fault: &str) -> bool {
    fault.contains(REFUSED)
}

/// Compares the attributes of `stat`.
pub fn compare_attr(a: &Attr, ino: u64, m: &Inode, atime: bool) -> Check {
    let got = (a.kind, a.mode & 0o7777, a.uid, a.gid, a.nlink, a.size, a.rdev, a.generation);
    let want = (m.kind, m.mode, m.uid, m.gid, m.nlink, m.size(), m.rdev, m.generation);
    if got != want {
        return Err(format!("object {ino}: (kind, mode, uid, gid, nlink, size, rdev, gen) are {got:?}, not {want:?}"));
    }
    if (a.mtime, a.ctime, a.crtime) != (m.mtime, m.ctime, m.crtime) {
        return Err(format!(
            "object {ino}: times are m {:?} c {:?} cr {:?}, not m {:?} c {:?} cr {:?}",
            a.mtime, a.ctime, a.crtime, m.mtime, m.ctime, m.crtime
        ));
    }
    if !atime && a.atime != m.atime {
        return Err(format!("object {ino}: atime is {:?}, not {:?}", a.atime, m.atime));
    }
    Ok(())
}

/// Compares a file's bytes; large holes are looked at through `seek_data`.
pub async fn compare_content(fs: &Zfs, ino: u64, c: &Content) -> Check {
    let obj = ObjectId(ino);
    let mut at = 0;
    while at < c.size {
        if c.size - at > HOLE_READ_MAX {
            // Sparse: nothing but zeros may be skipped.
            match say(&format!("seek_data {ino}"), fs.seek_data(obj, at).await)? {
                None => {
                    if let Some((s, _)) = c.data_ranges().find(|(_, e)| *e > at) {
                        let rest = c
                            .data_ranges()
                            .any(|(s, e)| e > at && c.difference(s, &vec![0; (e - s) as usize]).is_some());
                        if rest {
                            return Err(format!("object {ino}: no data after {at}, there should be some at {s}"));
                        }
                    }
                    break;
                }
                Some(data) => {
                    if data < at {
                        return Err(format!("object {ino}: seek_data({at}) goes back to {data}"));
                    }
                    for (s, e) in c.data_ranges().skip_while(|(_, e)| *e <= at).take_while(|(s, _)| *s < data) {
                        let (s, e) = (s.max(at), e.min(data));
                        if let Some(d) = c.difference(s, &vec![0; (e - s) as usize]) {
                            return Err(format!("object {ino}: byte {d} is in a hole"));
                        }
                    }
                    at = data;
                }
            }
        }
        let parts = say(&format!("read {ino} at {at}"), fs.read(obj, at, READ).await)?;
        let got: u64 = parts.iter().map(|p| p.len() as u64).sum();
        let want = READ.min(c.size - at);
        if got != want {
            return Err(format!("object {ino}: {got} bytes were read at {at}, not {want}"));
        }
        for part in parts {
            if let Some(d) = c.difference(at, &part) {
                return Err(format!(
                    "object {ino}: byte {d} of {} is wrong: {} (block size {})",
                    c.size,
                    part[(d - at) as usize],
                    say("getattr", fs.getattr(obj).await)?.blksize
                ));
            }
            at += part.len() as u64;
        }
    }
    Ok(())
}

/// Lists a directory, a batch at a time.
pub async fn list(fs: &Zfs, ino: u64, batch: usize) -> Check<BTreeMap<Vec<u8>, u64>> {
    let mut out = BTreeMap::new();
    let mut cookie = 0;
    loop {
        let entries = say(&format!("readdir {ino}"), fs.readdir(ObjectId(ino), cookie, batch).await)?;
        let Some(last) = entries.last() else { return Ok(out) };
        if last.next_cookie == cookie {
            return Err(format!("directory {ino}: the listing stands still at {cookie}"));
        }
        cookie = last.next_cookie;
        for e in entries {
            if e.name != b"." && e.name != b".." && out.insert(e.name.clone(), e.obj.0).is_some() {
                return Err(format!("directory {ino}: '{}' is listed twice", String::from_utf8_lossy(&e.name)));
            }
        }
    }
}

/// Compares an object with all that it has.
pub async fn compare_inode(fs: &Zfs, ino: u64, m: &Inode, atime: bool) -> Check {
    let a = say(&format!("getattr {ino}"), fs.getattr(ObjectId(ino)).await)?;
    compare_attr(&a, ino, m, atime)?;
    match &m.body {
        Body::File(c) => compare_content(fs, ino, c).await?,
        Body::Symlink(t) => {
            let got = say(&format!("readlink {ino}"), fs.readlink(ObjectId(ino)).await)?;
            if &got != t {
                return Err(format!("symbolic link {ino} has another target"));
            }
        }
        Body::Dir { entries, parent } => {
            let got = list(fs, ino, if entries.len() > 500 { 1000 } else { 7 }).await?;
            if &got != entries {
                let extra: Vec<_> = got.iter().filter(|(n, _)| !entries.contains_key(*n)).take(3).collect();
                let missing: Vec<_> = entries.iter().filter(|(n, _)| !got.contains_key(*n)).take(3).collect();
                return Err(format!("directory {ino}: too much {extra:?}, missing {missing:?} (or other objects)"));
            }
            let up = say("lookup ..", fs.lookup(ObjectId(ino), b"..").await)?;
            if up.obj.0 != *parent {
                return Err(format!("directory {ino}: '..' is {}, not {parent}", up.obj));
            }
        }
        Body::Special => {}
    }
    let mut names = say(&format!("listxattr {ino}"), fs.listxattr(ObjectId(ino)).await)?;
    names.sort();
    if !names.iter().eq(m.xattrs.keys()) {
        return Err(format!("object {ino}: extended attributes are {names:?}, not {:?}", m.xattrs.keys()));
    }
    for (name, value) in &m.xattrs {
        let got = say(&format!("getxattr {ino}"), fs.getxattr(ObjectId(ino), name).await)?;
        if got != **value {
            return Err(format!(
                "object {ino}: extended attribute {name:?} has another value ({} bytes, not {})",
                got.len(),
                value.len()
            ));
        }
    }
    Ok(())
}

/// Compares a file system.
pub async fn compare_fs(fs: &Zfs, model: &FsModel, atime: bool) -> Check {
    if fs.root().0 != model.root {
        return Err(format!("the root is {}, not {}", fs.root(), model.root));
    }
    for (ino, m) in &model.inodes {
        compare_inode(fs, *ino, m, atime).await?;
    }
    // Looking up is another path than listing.
    for (ino, m) in &model.inodes {
        for (name, want) in m.entries().into_iter().flatten().take(64) {
            let got = say("lookup", fs.lookup(ObjectId(*ino), name).await)?;
            if got.obj.0 != *want {
                return Err(format!("directory {ino}: '{}' is {}, not {want}", String::from_utf8_lossy(name), got.obj));
            }
        }
    }
    Ok(())
}

/// Compares names and properties of the datasets.
pub fn compare_datasets(pool: &Pool, model: &PoolModel) -> Check {
    let mut names: Vec<String> = pool.dsl().all().iter().map(|d| d.name()).collect();
    names.sort();
    if !names.iter().eq(model.datasets.keys()) {
        return Err(format!("datasets are {names:?}, not {:?}", model.datasets.keys().collect::<Vec<_>>()));
    }
    for ds in pool.dsl().all() {
        let want: &DsModel = &model.datasets[&ds.name()];
        let got = ds.dir().local_props();
        if got != want.props {
            return Err(format!("properties of {} are {got:?}, not {:?}", ds.name(), want.props));
        }
    }
    Ok(())
}

/// Compares the whole pool. `mounted` are file systems in use; others are opened for the
/// comparison.
pub async fn compare_pool(pool: &Rc<Pool>, model: &PoolModel, mounted: &BTreeMap<String, Rc<Zfs>>) -> Check {
    compare_datasets(pool, model)?;
    for (name, ds) in &model.datasets {
        let at = |e: String| format!("{name}: {e}");
        match mounted.get(name) {
            Some(fs) => compare_fs(fs, &ds.fs, ds.atime).await.map_err(at)?,
            None => {
                let handle = say(name, pool.dsl().find(name))?;
                let opts = MountOpts { readonly: true, ..MountOpts::from_props(&handle) };
                let fs = say(name, Zfs::open(&handle, opts).await)?;
                let result = compare_fs(&fs, &ds.fs, ds.atime).await.map_err(at);
                say(name, fs.unmount().await)?;
                result?;
            }
        }
    }
    Ok(())
}
