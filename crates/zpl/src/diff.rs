//! What changed in a file system between a snapshot and a later state: the lines of `zfs diff`.
//!
//! **Words.** The *from* side is the earlier snapshot, the *to* side the later one. What a side
//! knows of an object is a [`Seen`]: the attributes that are compared, and its path, which is found
//! through its parents ([`Side::path`]).
//!
//! **Normal path.** `dsl::diff` finds the numbers of objects that may have changed. [`Diff::next`]
//! looks each up on both sides, and [`compare`] decides what is said of it. The lines come in the
//! order of object numbers.
//!
//! The rules are those of OpenZFS, with their consequences: an object without a path is said to be
//! absent; one that changed but not its change time is left out; of a file with several names only
//! that of its PARENT is known, and what is said is how many names it got or lost.
//!
//! **Memory.** A side keeps the names of the directories that it searched last, and their paths, up
//! to [`NAMES_MAX`] bytes and [`PATHS_MAX`] paths; larger directories are searched entry by entry.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result, WallTime};
use dmu::sa::ZnodeAttrs;
use dmu::{Dnode, zap};
use dsl::diff::{Changes, Run};
use ondisk::zpl::{Dirent, S_IFDIR, S_IFMT, pflags};

use crate::fs::Zfs;
use crate::node::wall_time;

/// Bytes of names that a side keeps.
const NAMES_MAX: usize = 4 << 20;
/// Paths of directories that a side keeps.
const PATHS_MAX: usize = 4096;
/// Entries of a directory that are read at once.
const BATCH: usize = 128;
/// Bytes that a kept name takes besides its own.
const NAME_COST: usize = 64;
/// Most parts of a path.
const DEPTH_MAX: usize = 4096;
/// What stands for the name of a hidden directory with attributes, as in OpenZFS.
const XATTR_DIR: &[u8] = b"<xattrdir>";
/// What stands for the path of a removed object that was open, as in OpenZFS.
const QUEUED: &[u8] = b"(on_delete_queue)";

/// The kind of a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// It is new.
    Added,
    /// It is gone.
    Removed,
    /// Its content or attributes changed.
    Modified,
    /// It has more or, if negative, fewer names.
    Links(i64),
    /// It has this path now.
    Renamed(Vec<u8>),
}

/// A line of `zfs diff`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Line {
    /// What happened.
    pub change: Change,
    /// The path below the root, with a leading slash.
    pub path: Vec<u8>,
    /// The mode, with its type.
    pub mode: u64,
    /// The change time; of what is gone the last one.
    pub ctime: WallTime,
}

/// A result of [`Diff::next`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Item {
    /// A change.
    Line(Line),
    /// An object of a side could not be read; the others can.
    Failed {
        /// The object.
        object: ObjectId,
        /// The name of the side's dataset.
        dataset: String,
        /// Why.
        why: String,
    },
}

/// Where an object is.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Place {
    At(Vec<u8>),
    /// Removed, but open when the snapshot was made.
    Queued,
    /// It does not exist, is no file, or has no name.
    Nowhere,
    Failed(String),
}

/// What a side knows of an object; the attributes of one that does not exist are 0.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Seen {
    place: Place,
    mode: u64,
    generation: u64,
    links: u64,
    ctime: [u64; 2],
}

impl Seen {
    fn nothing(place: Place) -> Seen {
        Seen { place, mode: 0, generation: 0, links: 0, ctime: [0; 2] }
    }
    fn of(place: Place, a: &ZnodeAttrs) -> Seen {
        Seen { place, mode: a.mode, generation: a.generation, links: a.links, ctime: a.ctime }
    }
    /// The path that is printed; `None`: it is not there.
    fn path(&self) -> Option<&[u8]> {
        match &self.place {
            Place::At(path) => Some(path),
            Place::Queued => Some(QUEUED),
            Place::Nowhere | Place::Failed(_) => None,
        }
    }
    fn line(&self, change: Change, path: &[u8]) -> Line {
        Line { change, path: path.to_vec(), mode: self.mode, ctime: wall_time(self.ctime) }
    }
}

/// What is said of an object in use on the *to* side, or a neighbour of one.
fn compare(from: &Seen, to: &Seen) -> Vec<Line> {
    let kind = |s: &Seen| s.mode & S_IFMT;
    let links = match kind(from) == S_IFDIR || kind(to) == S_IFDIR || from.links == 0 || to.links == 0 {
        true => 0,
        false => (to.links as i64).wrapping_sub(from.links as i64),
    };
    let more = |side: &Seen, otherwise: Change, path: &[u8]| match links {
        0 => vec![side.line(otherwise, path)],
        n => vec![side.line(Change::Links(n), path)],
    };
    let (old, new) = match (from.path(), to.path()) {
        (None, None) => return Vec::new(),
        (None, Some(path)) => return more(to, Change::Added, path),
        (Some(path), None) => return more(from, Change::Removed, path),
        (Some(old), Some(new)) => (old, new),
    };
    if kind(from) != kind(to) || from.generation != to.generation {
        return vec![from.line(Change::Removed, old), to.line(Change::Added, new)];
    }
    if from.ctime == to.ctime {
        return Vec::new();
    }
    let moved = if old == new { Change::Modified } else { Change::Renamed(new.to_vec()) };
    match links {
        n if n < 0 => more(to, moved, new),
        _ => more(to, moved, old),
    }
}

/// What is said of an object whose number is free on the *to* side.
fn gone(from: &Seen) -> Vec<Line> {
    match &from.place {
        Place::At(path) => vec![from.line(Change::Removed, path)],
        _ => Vec::new(),
    }
}

/// The differences of two states of a file system, one after the other.
pub struct Diff {
    changes: Changes,
    from: Side,
    to: Side,
    /// What is left of the last run: the next number, and the last one.
    run: Option<(u64, Run)>,
    ready: VecDeque<Item>,
}

impl Diff {
    /// The differences of `from` and `to`, whose objects `changes` found; none of the two changes
    /// meanwhile.
    pub fn new(changes: Changes, from: Rc<Zfs>, to: Rc<Zfs>) -> Diff {
        Diff { changes, from: Side::new(from), to: Side::new(to), run: None, ready: VecDeque::new() }
    }

    /// The next difference. Errors: those of blocks by which objects are found; those of single
    /// objects are items.
    pub async fn next(&mut self) -> Result<Option<Item>> {
        while self.ready.is_empty() {
            let (at, run) = match self.run.take() {
                Some((at, run)) => (at, run),
                None => match self.changes.next().await? {
                    Some(run) => (run.first, run),
                    None => return Ok(None),
                },
            };
            let object = match run.used {
                true => Some(ObjectId(at)),
                false => self.from.fs.objset().objects(ObjectId(at)).await?,
            };
            let Some(object) = object.filter(|o| o.0 <= run.last) else { continue };
            if object.0 < run.last {
                self.run = Some((object.0 + 1, run));
            }
            match run.used {
                true => self.in_use(object).await,
                false => self.freed(object).await,
            }
        }
        Ok(self.ready.pop_front())
    }

    async fn in_use(&mut self, object: ObjectId) {
        // The number of the meta-dnode is no object's.
        if object == ObjectId::META {
            return;
        }
        let (from, to) = (self.from.see(object).await, self.to.see(object).await);
        // One complaint for an object is enough.
        if !self.complain(object, &from, false) {
            self.complain(object, &to, true);
        }
        self.ready.extend(compare(&from, &to).into_iter().map(Item::Line));
    }

    async fn freed(&mut self, object: ObjectId) {
        let from = self.from.see(object).await;
        self.complain(object, &from, false);
        self.ready.extend(gone(&from).into_iter().map(Item::Line));
    }

    fn complain(&mut self, object: ObjectId, seen: &Seen, later: bool) -> bool {
        let Place::Failed(why) = &seen.place else { return false };
        let side = if later { &self.to } else { &self.from };
        self.ready.push_back(Item::Failed { object, dataset: side.fs.name(), why: why.clone() });
        true
    }
}

/// Names in a directory. They share one allocation, so that giving them up is a matter of
/// microseconds.
#[derive(Default)]
struct Names {
    /// Where the first name of each object is.
    index: BTreeMap<u64, Range<usize>>,
    text: Vec<u8>,
}

impl Names {
    fn add(&mut self, object: u64, name: &[u8]) {
        let start = self.text.len();
        if let Entry::Vacant(free) = self.index.entry(object) {
            self.text.extend_from_slice(name);
            free.insert(start..self.text.len());
        }
    }
    fn get(&self, object: ObjectId) -> Option<Vec<u8>> {
        self.index.get(&object.0).map(|at| self.text[at.clone()].to_vec())
    }
}

/// A state of the file system, and what was read of it lately.
struct Side {
    fs: Rc<Zfs>,
    /// Paths of directories.
    paths: BTreeMap<u64, Vec<u8>>,
    /// Names in directories, by object, and the bytes that they take.
    names: BTreeMap<u64, Names>,
    bytes: usize,
}

impl Side {
    fn new(fs: Rc<Zfs>) -> Side {
        Side { fs, paths: BTreeMap::new(), names: BTreeMap::new(), bytes: 0 }
    }

    async fn see(&mut self, object: ObjectId) -> Seen {
        let absent = |e: Error| match e.kind() {
            ErrorKind::NotFound => Place::Nowhere,
            _ => Place::Failed(e.to_string()),
        };
        let node = match self.fs.node(object).await {
            Ok(node) => node,
            Err(e) => return Seen::nothing(absent(e)),
        };
        let attrs = match self.fs.stored_attrs(&node).await {
            Ok(attrs) => attrs,
            Err(e) => return Seen::nothing(Place::Failed(e.to_string())),
        };
        let place = match self.path(object, &attrs).await {
            Ok(place) => place,
            Err(e) => absent(e),
        };
        Seen::of(place, &attrs)
    }

    /// The path of an object by its PARENT and that directory's entries, and so on to the root.
    /// Errors: `NotFound` without one; others for damaged objects.
    async fn path(&mut self, object: ObjectId, attrs: &ZnodeAttrs) -> Result<Place> {
        if let Some(queue) = self.fs.unlinked()
            && zap::lookup_int(queue, object.0).await?.is_some()
        {
            return Ok(Place::Queued);
        }
        let (mut at, mut attrs) = (object, *attrs);
        let mut parts: Vec<Vec<u8>> = Vec::new();
        let mut path = Vec::new();
        let mut first_dir = None;
        loop {
            if parts.len() >= DEPTH_MAX {
                return Err(Error::corrupt(format!("the folders above object {object} go in a circle")));
            }
            let parent = ObjectId(attrs.parent);
            if parent == at {
                break;
            }
            let node = self.fs.node(parent).await?;
            let above = self.fs.stored_attrs(&node).await?;
            let is_xattr_dir = attrs.flags & pflags::XATTR != 0 && attrs.mode & S_IFMT == S_IFDIR;
            let is_dir = above.mode & S_IFMT == S_IFDIR;
            parts.push(match (is_xattr_dir, is_dir) {
                (true, _) => XATTR_DIR.to_vec(),
                (false, true) => self.name_in(&node.dn, at).await?,
                (false, false) => return Err(Error::corrupt(format!("object {parent}, its folder, is none"))),
            });
            if is_dir && parts.len() == 1 {
                first_dir = Some(parent);
            }
            if let Some(known) = self.paths.get(&parent.0) {
                path = known.clone();
                break;
            }
            (at, attrs) = (parent, above);
        }
        // The last part is the object's own name.
        let own = if parts.is_empty() { None } else { Some(parts.remove(0)) };
        for part in parts.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(part);
        }
        if let Some(dir) = first_dir {
            if self.paths.len() >= PATHS_MAX {
                self.paths.clear();
            }
            self.paths.insert(dir.0, path.clone());
        }
        path.push(b'/');
        path.extend(own.into_iter().flatten());
        Ok(Place::At(path))
    }

    /// The name of `object` in a directory, the first of several. Error: `NotFound`.
    async fn name_in(&mut self, dir: &Dnode, object: ObjectId) -> Result<Vec<u8>> {
        let missing = || Error::not_found(format!("object {object} has no name in its folder"));
        let key = dir.object().0;
        if let Some(known) = self.names.get(&key) {
            return known.get(object).ok_or_else(missing);
        }
        let mut cursor = zap::Cursor::new(dir);
        let (mut names, mut bytes) = (Names::default(), 0usize);
        let mut found = None;
        loop {
            let batch = cursor.next_batch(BATCH).await?;
            self.fs.rt.spend(rt::cost::ZPL_OP).await;
            if batch.is_empty() {
                break;
            }
            for (entry, _) in batch {
                let Some(target) = entry.value.as_u64().map(|v| Dirent::unpack(v).object) else { continue };
                if target == object.0 && found.is_none() {
                    found = Some(entry.name.clone());
                }
                bytes = bytes.saturating_add(entry.name.len() + NAME_COST);
                if bytes <= NAMES_MAX {
                    names.add(target, &entry.name);
                }
            }
            // Too large to be kept.
            if bytes > NAMES_MAX {
                names = Names::default();
                if found.is_some() {
                    break;
                }
            }
        }
        if bytes <= NAMES_MAX {
            if self.bytes + bytes > NAMES_MAX {
                self.names.clear();
                self.bytes = 0;
            }
            self.names.insert(key, names);
            self.bytes += bytes;
        }
        found.ok_or_else(missing)
    }
}

#[cfg(test)]
mod tests {
    use ondisk::zpl::S_IFREG;

    use super::*;

    /// A file in words: where it is, or `-`, then `g` generation, `l` links, `c` change time, `d`
    /// if it is a directory.
    fn seen(text: &str) -> Seen {
        let mut words = text.split_whitespace();
        let place = match words.next().unwrap() {
            "-" => Place::Nowhere,
            "queued" => Place::Queued,
            "bad" => Place::Failed("it is damaged".into()),
            path => Place::At(path.into()),
        };
        let mut out = Seen { mode: S_IFREG | 0o644, links: 1, ..Seen::nothing(place) };
        for word in words {
            let (letter, n) = word.split_at(1);
            let n = n.parse().unwrap_or(0);
            match letter {
                "g" => out.generation = n,
                "l" => out.links = n,
                "c" => out.ctime = [n, 0],
                "d" => out.mode = S_IFDIR | 0o755,
                _ => panic!("{text}"),
            }
        }
        out
    }

    fn said(lines: &[Line]) -> String {
        let line = |l: &Line| {
            let path = |p: &[u8]| String::from_utf8_lossy(p).into_owned();
            let own = path(&l.path);
            match &l.change {
                Change::Added => format!("+{own}"),
                Change::Removed => format!("-{own}"),
                Change::Modified => format!("M{own}"),
                Change::Links(n) => format!("M{own}({n:+})"),
                Change::Renamed(to) => format!("R{own}>{}", path(to)),
            }
        };
        lines.iter().map(line).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_letter_has_its_reason() {
        for (from, to, want) in [
            ("/a g5 c1", "/a g5 c1", ""),
            ("/a g5 c1", "/a g5 c2", "M/a"),
            ("/a g5 c1", "/b g5 c2", "R/a>/b"),
            // A rename that did not touch the file, as that of its folder.
            ("/d/a g5 c1", "/e/a g5 c1", ""),
            ("- l0", "/a g5", "+/a"),
            ("/a g5", "- l0", "-/a"),
            ("/a g5 c1", "/b g6 c2", "-/a +/b"),
            ("/a g5 c1", "/a g5 c1 d", "-/a +/a"),
            ("/a g5 c1 l1", "/a g5 c2 l2", "M/a(+1)"),
            ("/a g5 c1 l3", "/b g5 c2 l1", "M/b(-2)"),
            ("/a g5 c1 l1", "/b g5 c2 l2", "M/a(+1)"),
            ("/a g5 c1 l2 d", "/a g5 c2 l3 d", "M/a"),
            // Its name was that of a link that is gone: the path is unknown, the links are not.
            ("/a g5 c1 l2", "- g5 c2 l1", "M/a(-1)"),
            ("- g5 c1 l1", "/a g5 c2 l2", "M/a(+1)"),
            ("- g5 c1 l2", "/a g5 c2 l2", "+/a"),
            ("/a g5 c1", "queued g5 c2 l0", "R/a>(on_delete_queue)"),
            ("queued g5 c1 l0", "queued g5 c1 l0", ""),
            ("bad l0", "/a g5", "+/a"),
            ("bad l0", "bad l0", ""),
            ("- l0", "- l0", ""),
        ] {
            assert_eq!(said(&compare(&seen(from), &seen(to))), want, "{from} | {to}");
        }
        assert_eq!(said(&gone(&seen("/a g5"))), "-/a");
        assert!(["queued l0", "- l1", "bad l0"].iter().all(|s| gone(&seen(s)).is_empty()));
    }
}
