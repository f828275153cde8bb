//! The rescued tree against the model.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use base::Result;
use rescue::out::safe_name;
use rescue::{Finding, Problem, Summary};
use serde_json::Value;
use zpl::FileKind;

use super::Met;
use super::blocks::Map;
use super::plan::Damage;
use crate::Check;
use crate::model::{Body, Content, FsModel, Inode, PoolModel};

/// A file of the model.
struct File<'a> {
    dataset: &'a str,
    path: Vec<u8>,
    object: u64,
    inode: &'a Inode,
    /// The folders above it.
    above: Vec<u64>,
}

/// All files and links of a file system, by the first of their names.
fn files<'a>(dataset: &'a str, fs: &'a FsModel) -> Vec<File<'a>> {
    let mut out = Vec::new();
    let mut todo = vec![(fs.root, Vec::new(), vec![fs.root])];
    while let Some((dir, path, above)) = todo.pop() {
        let Some(entries) = fs.get(dir).entries() else { continue };
        for (name, object) in entries {
            let mut at: Vec<u8> = path.clone();
            if !at.is_empty() {
                at.push(b'/');
            }
            at.extend_from_slice(name);
            let inode = fs.get(*object);
            if inode.is_dir() {
                let mut above = above.clone();
                above.push(*object);
                todo.push((*object, at, above));
            } else {
                out.push(File { dataset, path: at, object: *object, inode, above: above.clone() });
            }
        }
    }
    out
}

/// Whether two inodes have the same content; `longer`: the length is not known, and whole blocks
/// came back.
fn is_same(path: &Path, inode: &Inode, except: &[(u64, u64)], longer: bool) -> Check {
    let meta = std::fs::symlink_metadata(path).map_err(|e| e.to_string())?;
    match &inode.body {
        Body::Symlink(target) => {
            let got = std::fs::read_link(path).map_err(|e| e.to_string())?;
            if got.as_os_str().as_bytes() == target { Ok(()) } else { Err("another target".into()) }
        }
        Body::File(c) => {
            if meta.len() != c.size && !(longer && meta.len() > c.size) {
                return Err(format!("{} bytes, not {}", meta.len(), c.size));
            }
            content(path, c, except)
        }
        _ => Ok(()),
    }
}

/// Compares a file outside some ranges with its content.
fn content(path: &Path, c: &Content, except: &[(u64, u64)]) -> Check {
    let file = std::fs::File::open(path).map_err(|e| e.to_string())?;
    let mut at = 0;
    // Sparse files are larger than anything that can be read; their pages are what counts.
    let mut ranges: Vec<(u64, u64)> = c.data_ranges().collect();
    ranges.push((c.size.saturating_sub(1 << 16), c.size));
    ranges.push((0, c.size.min(1 << 20)));
    ranges.sort_unstable();
    for (from, to) in ranges {
        at = at.max(from);
        while at < to {
            let missing = except.iter().find(|(a, b)| *a <= at && at < *b);
            if let Some((_, end)) = missing {
                at = *end;
                continue;
            }
            let next = except.iter().map(|(a, _)| *a).filter(|a| *a > at).min().unwrap_or(to);
            let mut buf = vec![0; (to.min(next) - at).min(1 << 16) as usize];
            file.read_exact_at(&mut buf, at).map_err(|e| format!("at {at}: {e}"))?;
            if let Some(d) = c.difference(at, &buf) {
                return Err(format!("byte {d} of {} is wrong", c.size));
            }
            at += buf.len() as u64;
        }
    }
    Ok(())
}

fn place(dir: &Path, dataset: &str, path: &[u8]) -> PathBuf {
    let mut at = dir.to_owned();
    dataset.split('/').for_each(|p| at.push(p));
    for part in path.split(|b| *b == b'/') {
        at.push(std::ffi::OsStr::from_bytes(&safe_name(part)));
    }
    at
}

/// The findings of the report by dataset and object.
struct Findings {
    all: Vec<Finding>,
    by: BTreeMap<(String, u64), Vec<usize>>,
    datasets: Vec<String>,
    /// No uberblock is left.
    blind: bool,
}

impl Findings {
    fn read(summary: &Summary) -> Check<Findings> {
        let text = std::fs::read(&summary.json).map_err(|e| e.to_string())?;
        let json: Value = serde_json::from_slice(&text).map_err(|e| format!("report.json: {e}"))?;
        let list = json.get("findings").and_then(Value::as_array).ok_or("report.json has no findings")?;
        let all: Option<Vec<Finding>> = list.iter().map(Finding::from_json).collect();
        let all = all.ok_or("report.json has a strange finding")?;
        let mut by: BTreeMap<(String, u64), Vec<usize>> = BTreeMap::new();
        for (n, f) in all.iter().enumerate() {
            by.entry((f.dataset.clone(), f.object)).or_default().push(n);
        }
        let blind = json.get("newest_uberblock").is_none_or(Value::is_null);
        Ok(Findings { all, by, datasets: summary.datasets.clone(), blind })
    }
    fn of(&self, dataset: &str, object: u64) -> impl Iterator<Item = &Finding> {
        let found = self.by.get(&(dataset.to_owned(), object));
        found.into_iter().flatten().map(|n| &self.all[*n])
    }
    /// Whether a file that is not there is accounted for: itself, a folder above it, or its
    /// dataset.
    fn tells(&self, dataset: &str, f: &File<'_>) -> bool {
        let serious = |x: &Finding| x.problem != Problem::Attributes;
        let whole = self.all.iter().any(|x| x.dataset == dataset && x.path.is_empty() && serious(x));
        whole
            || self.of(dataset, f.object).any(serious)
            || f.above.iter().any(|dir| self.of(dataset, *dir).any(serious))
            || self.all.iter().any(|x| {
                x.dataset == dataset
                    && serious(x)
                    && f.path.starts_with(&x.path)
                    && f.path.get(x.path.len()) == Some(&b'/')
            })
    }
}

/// Judges a rescue.
pub(super) fn judge(
    states: &[PoolModel],
    map: &Map,
    damage: &Damage,
    result: Result<Summary>,
    dir: &Path,
    met: &mut Met,
) -> Check {
    let newest = states.last().ok_or("no state")?;
    let mut all = Vec::new();
    for (name, ds) in &newest.datasets {
        all.extend(files(name, &ds.fs));
    }
    met.files += all.len() as u64;
    let intact = |f: &File<'_>| match map.fs.get(f.dataset) {
        Some(fs) => {
            let mut objects = f.above.clone();
            objects.push(f.object);
            fs.is_intact(&objects, &damage.killed)
        }
        None => !damage.is_vague(),
    };
    let wanted = all.iter().filter(|f| intact(f)).count() as u64;
    met.intact += wanted;
    let summary = match result {
        Ok(summary) => summary,
        Err(_) if wanted == 0 => return Ok(()),
        Err(e) => return Err(format!("{wanted} files are intact, but: {e}")),
    };
    let findings = Findings::read(&summary)?;
    // Datasets whose names are lost have others.
    let unknown: Vec<&String> = findings.datasets.iter().filter(|d| !newest.datasets.contains_key(*d)).collect();
    let mut inodes: BTreeMap<(String, u64), (u64, PathBuf)> = BTreeMap::new();
    let mut faults = Vec::new();
    for f in &all {
        let say = |what: String| format!("{}: /{}: {what}", f.dataset, String::from_utf8_lossy(&f.path));
        let names = std::iter::once(f.dataset).chain(unknown.iter().map(|d| d.as_str()));
        let places: Vec<(&str, PathBuf)> = names.map(|d| (d, place(dir, d, &f.path))).collect();
        let good = places.iter().find(|(_, p)| is_same(p, f.inode, &[], false).is_ok());
        if let Some((d, p)) = good {
            met.good += 1;
            // All names of a file are one file, whatever else happened to it.
            let ino = std::fs::symlink_metadata(p).map(|m| m.ino()).unwrap_or(0);
            let first = inodes.entry(((*d).to_owned(), f.object)).or_insert((ino, p.clone()));
            if first.0 != ino && intact(f) && f.inode.content().is_some() {
                faults.push(say(format!("is another file than {}", first.1.display())));
            }
            continue;
        }
        if intact(f) {
            let why = is_same(&places[0].1, f.inode, &[], false).err().unwrap_or_default();
            faults.push(say(format!("is intact and does not come back: {why}")));
            continue;
        }
        let Some((d, _)) = places.iter().find(|(_, p)| std::fs::symlink_metadata(p).is_ok()) else {
            if !findings.tells(f.dataset, f)
                && unknown.iter().all(|d| !findings.tells(d, f))
                && findings.datasets.iter().any(|d| d == f.dataset)
            {
                faults.push(say("is not there and not in the report".into()));
            }
            continue;
        };
        met.partly += 1;
        faults.extend(partial(dir, d, f, &findings, states).err().map(say));
    }
    let some: BTreeSet<String> = faults.into_iter().take(6).collect();
    if some.is_empty() { Ok(()) } else { Err(some.into_iter().collect::<Vec<_>>().join(" | ")) }
}

/// A file that came back other than it was last: damaged outside of missing ranges it is not, and
/// an older one is as it was once.
fn partial(dir: &Path, dataset: &str, f: &File<'_>, findings: &Findings, states: &[PoolModel]) -> Check {
    let path = &place(dir, dataset, &f.path);
    // A finding names one of the names of a file; in an older state others may be names of it.
    let ino = |p: &Path| std::fs::symlink_metadata(p).ok().map(|m| m.ino());
    let stands_here = |x: &Finding| {
        x.path == f.path
            || !x.path.is_empty() && ino(&place(dir, dataset, &x.path)).is_some_and(|i| ino(path) == Some(i))
    };
    // Under an older name there may be another file.
    let here: Vec<&Finding> =
        findings.all.iter().filter(|x| x.dataset == dataset && (x.object == f.object || stands_here(x))).collect();
    let longer = here.iter().any(|x| x.problem == Problem::Attributes);
    // What is said of this place is about whatever object had it; what is said of the object, at
    // another of its names, holds here only if it is the object that is here.
    let damaged = || here.iter().filter(|x| x.problem == Problem::Damaged);
    if let Some(x) = damaged().find(|x| stands_here(x)).or_else(|| damaged().next()) {
        return is_same(path, f.inode, &x.missing, longer).or_else(|why| {
            // In a dataset that is older as a whole the damaged file is, too.
            let once = was_ever(states, path, &x.missing, longer)
                || !stands_here(x) && findings.tells(dataset, f) && was_ever(states, path, &[], longer);
            if once { Ok(()) } else { Err(format!("is damaged beyond its missing ranges: {why}")) }
        });
    }
    // Without any uberblock it is not known how new the newest state is; the report says that.
    if !findings.tells(dataset, f) && !findings.blind {
        return Err("differs, and the report does not say so".into());
    }
    // A folder may have had the name; what is in it is judged by itself.
    let is_dir = std::fs::symlink_metadata(path).is_ok_and(|m| m.is_dir());
    if is_dir || was_ever(states, path, &[], longer) { Ok(()) } else { Err("is as it never was".into()) }
}

/// Whether any file had this content, outside some ranges, in a state or between two of them: a txg
/// may end within an operation. Each byte is then as before or as after.
fn was_ever(states: &[PoolModel], path: &Path, except: &[(u64, u64)], longer: bool) -> bool {
    let whole = |s: &PoolModel| {
        let mut inodes = s.datasets.values().flat_map(|ds| ds.fs.inodes.values());
        inodes.any(|i| i.content().is_some() && is_same(path, i, except, longer).is_ok())
    };
    let links = |s: &PoolModel| {
        let mut inodes = s.datasets.values().flat_map(|ds| ds.fs.inodes.values());
        inodes.any(|i| i.content().is_none() && !i.is_dir() && is_same(path, i, except, longer).is_ok())
    };
    let special = |s: &PoolModel, kind| s.datasets.values().any(|ds| ds.fs.inodes.values().any(|i| i.kind == kind));
    let mode = std::fs::symlink_metadata(path).map_or(0, |m| m.mode());
    match FileKind::from_mode(u64::from(mode)) {
        Some(FileKind::Symlink) => states.iter().any(links),
        Some(FileKind::File) => {
            states.iter().any(whole) || states.windows(2).any(|w| was_between(&w[0], &w[1], path, except, longer))
        }
        Some(FileKind::Dir) | None => false,
        Some(kind) => states.iter().any(|s| special(s, kind)),
    }
}

fn was_between(from: &PoolModel, to: &PoolModel, path: &Path, except: &[(u64, u64)], longer: bool) -> bool {
    let Ok(file) = std::fs::File::open(path) else { return false };
    let Ok(len) = file.metadata().map(|m| m.len()) else { return false };
    let between = |a: &Content, b: &Content| {
        if !(longer || len == a.size || len == b.size) {
            return false;
        }
        let ranges = a.data_ranges().chain(b.data_ranges()).chain([(0, len.min(1 << 20))]);
        ranges.map(|(from, to)| (from, to.min(len))).all(|(from, to)| {
            let mut buf = vec![0; to.saturating_sub(from) as usize];
            file.read_exact_at(&mut buf, from).is_ok()
                && (from..to).zip(&buf).all(|(at, byte)| {
                    let one = std::slice::from_ref(byte);
                    let is_missing = except.iter().any(|(a, b)| (*a..*b).contains(&at));
                    is_missing || a.difference(at, one).is_none() || b.difference(at, one).is_none()
                })
        })
    };
    from.datasets.iter().filter_map(|(name, ds)| Some((ds, to.datasets.get(name)?))).any(|(a, b)| {
        a.fs.inodes.iter().any(|(object, inode)| {
            let later = b.fs.inodes.get(object).and_then(|i| i.content());
            inode.content().zip(later).is_some_and(|(a, b)| between(a, b))
        })
    })
}
