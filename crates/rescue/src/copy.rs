//! Copying one dataset: the walk over its folders, files with what is missing of them, and what has
//! lost its name.
//!
//! The walk goes from the root by names, without recursion. Each file is copied block by block; a
//! range that is lost stays a hole and is reported. If an older state has the whole file, that is
//! put beside it (`NAME~txg-N`), since an older file may be worth more than a damaged one.
//!
//! If anything of the dataset was lost, all its objects are looked through in the end: files and
//! folders that no name led to go to `lost+found` as `#OBJECT`.
//!
//! A child dataset has a folder in the folder of its parent. What the parent has at that place
//! itself (hidden while the child is mounted) goes to `NAME~under`.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt;

use base::{Error, Result};
use ondisk::object_type::ObjectType;
use ondisk::zpl::{S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK, pflags};
use zdb::zpl::{Attrs, rdev_major_minor};

use crate::fs::{Found, Item, Origin, Zpl};
use crate::out::{Meta, Out, is_fatal, kind_of, safe_name};
use crate::state::{Finding, Problem, State};
use crate::tree::{Object, Part};

/// Deeper folders are taken for damage.
const DEPTH_MAX: usize = 2048;
/// Folders above an object without a name that are followed.
const CLIMB_MAX: usize = 4096;
/// Where files without names go.
const LOST_DIR: &[u8] = b"lost+found";

/// How far a rescue is.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// What is done now.
    pub what: String,
    /// Of the search: bytes done and all.
    pub scanned: (u64, u64),
    /// Files copied in this run.
    pub files: u64,
    /// Bytes written in this run.
    pub bytes: u64,
    /// Findings of this run.
    pub findings: u64,
}

/// Numbers of objects, four thousand to an entry.
#[derive(Default)]
struct Numbers(BTreeMap<u64, Box<[u64; 64]>>);

impl Numbers {
    /// Adds a number; false if it is there.
    fn insert(&mut self, n: u64) -> bool {
        let words = self.0.entry(n >> 12).or_insert_with(|| Box::new([0; 64]));
        let (word, bit) = ((n >> 6 & 63) as usize, 1u64 << (n & 63));
        let new = words[word] & bit == 0;
        words[word] |= bit;
        new
    }
    fn contains(&self, n: u64) -> bool {
        self.0.get(&(n >> 12)).is_some_and(|w| w[(n >> 6 & 63) as usize] & 1 << (n & 63) != 0)
    }
}

/// What all datasets share.
pub struct Copier<'a> {
    /// The target; without one everything is read and nothing is written but the record.
    pub out: Option<&'a Out>,
    /// The record.
    pub state: &'a mut State,
    /// Told now and then.
    pub progress: &'a mut dyn FnMut(&Progress),
    /// How far it is.
    pub at: Progress,
    /// Datasets that were left out in this run, which another one may copy.
    pub skipped: Vec<Finding>,
}

/// A dataset that is being copied.
struct Walk<'a, 'b> {
    c: &'a mut Copier<'b>,
    zpl: &'a Zpl,
    name: &'a str,
    guid: u64,
    seen: Numbers,
    /// Whether anything was lost.
    loss: bool,
}

/// A folder that is being copied.
struct Frame {
    items: std::vec::IntoIter<Item>,
    meta: Meta,
    object: u64,
    /// Whether its names are of an older state: what they led to may have moved.
    is_older: bool,
}

/// What is known of an object besides its content.
struct Known {
    attrs: Attrs,
    /// Whether the attributes are made up: its kind and its length are lost.
    is_bare: bool,
    /// What of it is lost.
    lost: Vec<String>,
}

/// The place of an object: in the target, and as the dataset has it.
#[derive(Clone, Debug, Default)]
struct Place {
    dir: Vec<Vec<u8>>,
    name: Vec<u8>,
    path: Vec<u8>,
}

/// What is to be done for a dataset.
pub struct Task<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its guid.
    pub guid: u64,
    /// Where it goes.
    pub base: Vec<Vec<u8>>,
    /// Names in its root that other datasets take.
    pub reserved: BTreeSet<Vec<u8>>,
    /// Whether dnodes of it are lost.
    pub is_partial: bool,
}

fn finding(dataset: &str, path: &[u8], object: u64, problem: Problem, note: impl Into<String>) -> Finding {
    Finding {
        dataset: dataset.to_owned(),
        path: path.to_vec(),
        object,
        problem,
        size: 0,
        missing: Vec::new(),
        note: note.into(),
    }
}

impl Copier<'_> {
    /// Records a finding.
    pub fn report(&mut self, f: &Finding) -> Result<()> {
        self.at.findings += 1;
        self.state.finding(f)
    }
    /// Records a finding about a whole dataset.
    pub fn report_dataset(&mut self, name: &str, problem: Problem, note: impl Into<String>) -> Result<()> {
        self.report(&finding(name, b"", 0, problem, note))
    }
    /// Notes that a dataset is left out.
    pub fn skip_dataset(&mut self, name: &str, note: impl Into<String>) {
        self.at.findings += 1;
        self.skipped.push(finding(name, b"", 0, Problem::Skipped, note));
    }
    fn tell(&mut self) {
        (self.progress)(&self.at);
    }

    /// Copies a file system.
    pub fn file_system(&mut self, task: &Task<'_>, zpl: &Zpl) -> Result<()> {
        self.at.what = format!("copying {}", task.name);
        self.tell();
        if let Some(out) = self.out {
            // The walk meets the same error, and reports it.
            let above = &task.base[..task.base.len().saturating_sub(1)];
            let _ = out.keeping_times(above, || out.dir(&task.base));
        }
        let mut walk =
            Walk { c: self, zpl, name: task.name, guid: task.guid, seen: Numbers::default(), loss: task.is_partial };
        walk.seen.insert(zpl.shares);
        walk.seen.insert(zpl.unlinked);
        let out = walk.c.out;
        let mut names = BTreeSet::new();
        match zpl.find(zpl.root) {
            Found::There(root, origin) => {
                if origin != Origin::Newest {
                    walk.origin(&finding(task.name, b"", zpl.root, Problem::Older, ""), origin)?;
                }
                names = walk.tree(&root, origin, task)?;
            }
            Found::Free => walk.lost(b"", zpl.root, "there is no root folder")?,
            Found::Lost(e) => walk.lost(b"", zpl.root, format!("the root folder: {e}"))?,
        }
        if walk.loss {
            let mut lost_dir = LOST_DIR.to_vec();
            while names.contains(&lost_dir) || task.reserved.contains(&lost_dir) {
                lost_dir.push(b'~');
            }
            let nameless = || walk.nameless(task, lost_dir);
            match out {
                Some(out) => out.keeping_times(&task.base, nameless)?,
                None => nameless()?,
            }
        }
        Ok(())
    }

    /// Copies a volume of `size` bytes to a file.
    pub fn volume(&mut self, task: &Task<'_>, states: &[Object], size: u64) -> Result<()> {
        match self.out {
            Some(out) => out
                .keeping_times(&task.base[..task.base.len().saturating_sub(1)], || self.volume_at(task, states, size)),
            None => self.volume_at(task, states, size),
        }
    }
    fn volume_at(&mut self, task: &Task<'_>, states: &[Object], size: u64) -> Result<()> {
        let (dir, name) = task.base.split_at(task.base.len().saturating_sub(1));
        let place = Place { dir: dir.to_vec(), name: name.concat(), path: Vec::new() };
        let Some(newest) = states.first() else {
            return self.report_dataset(task.name, Problem::Lost, "its data object is lost");
        };
        self.at.what = format!("copying {}", task.name);
        self.tell();
        if self.state.is_done(task.guid, newest.num) {
            return Ok(());
        }
        let mut f = finding(task.name, b"", newest.num, Problem::Damaged, "");
        let bytes = self.content(newest, size, &place, None, &mut f)?;
        let damaged = !f.missing.is_empty();
        if damaged && let Some(older) = states[1..].iter().find(|o| o.is_complete()) {
            let beside = Place { name: [&place.name[..], b"~older"].concat(), ..place };
            let mut other = finding(task.name, b"", newest.num, Problem::Older, "");
            self.content(older, size, &beside, None, &mut other)?;
            f.note.push_str("; an older state that is complete is beside it");
        }
        self.at.files += 1;
        self.at.findings += u64::from(damaged);
        self.state.file_done((task.guid, newest.num), bytes, None, damaged.then_some(&f))
    }

    /// Writes the first `size` bytes of an object; what is lost goes to `f`. Returns the bytes that
    /// were written.
    fn content(&mut self, obj: &Object, size: u64, place: &Place, meta: Option<&Meta>, f: &mut Finding) -> Result<u64> {
        let file = self.out.map(|out| out.file(&place.dir, &place.name)).transpose()?;
        f.size = size;
        let say = |e: std::io::Error| {
            Error::new(kind_of(&e), format!("writing '{}': {e}", String::from_utf8_lossy(&place.name)))
        };
        if let Some(file) = &file {
            file.set_len(size).map_err(say)?;
        }
        let bs = u64::from(obj.dn.datablksz());
        let mut bytes = 0;
        obj.for_each(&mut |part| {
            let (from, to, lost) = match part {
                Part::Block(blk, bp) => {
                    let from = blk.saturating_mul(bs);
                    let to = from.saturating_add(bs).min(size);
                    if from >= to {
                        return Ok(());
                    }
                    match obj.content(&bp) {
                        Ok(content) => {
                            let n = (to - from) as usize;
                            if let (Some(out), Some(file)) = (self.out, &file)
                                && !codec::is_zero(&content[..n])
                            {
                                out.room(n as u64)?;
                                file.write_all_at(&content[..n], from).map_err(say)?;
                            }
                            bytes += n as u64;
                            self.at.bytes += n as u64;
                            if self.at.bytes >> 22 != (self.at.bytes - n as u64) >> 22 {
                                (self.progress)(&self.at);
                            }
                            return Ok(());
                        }
                        Err(e) => (from, to, e),
                    }
                }
                Part::Lost(blk, count, e) => {
                    (blk.saturating_mul(bs).min(size), blk.saturating_add(count).saturating_mul(bs).min(size), e)
                }
            };
            f.miss(from, to);
            if f.note.is_empty() {
                f.note = lost.to_string();
            }
            Ok(())
        })?;
        if let (Some(out), Some(file), Some(meta)) = (self.out, &file, meta) {
            let failed = out.finish_file(file, meta);
            if !failed.is_empty() && f.note.is_empty() {
                f.note = failed.join("; ");
            }
        }
        Ok(bytes)
    }
}

impl Walk<'_, '_> {
    fn lost(&mut self, path: &[u8], object: u64, why: impl Into<String>) -> Result<()> {
        self.loss = true;
        self.c.report(&finding(self.name, path, object, Problem::Lost, why))
    }
    /// Reports something that is not of the newest state.
    fn origin(&mut self, f: &Finding, origin: Origin) -> Result<()> {
        let mut f = f.clone();
        match origin {
            Origin::Newest => return Ok(()),
            Origin::Older(txg) => {
                f.problem = Problem::Older;
                f.note = format!("as of txg {txg}: what is newer of it is lost");
            }
            Origin::Found => {
                f.problem = Problem::Found;
                f.note = "found by the form of its dnode: that it belongs here is not proved".into();
            }
        }
        self.c.report(&f)
    }

    /// The attributes of an object, as far as they are left, and why not all are.
    fn attrs(&self, obj: &Object) -> Known {
        let e = match self.zpl.attrs(obj) {
            Ok(attrs) => return Known { attrs, is_bare: false, lost: Vec::new() },
            Err(e) => e,
        };
        let lost = vec![e.to_string()];
        if let Ok(attrs) = self.zpl.attrs_without_spill(obj) {
            return Known { attrs, is_bare: false, lost };
        }
        // All that is left is the content.
        let mode = if obj.dn.otype == ObjectType::DIRECTORY { S_IFDIR | 0o700 } else { S_IFREG | 0o600 };
        let attrs = Attrs { mode, size: obj.dn.data_len(), links: 1, ..Attrs::default() };
        Known { attrs, is_bare: true, lost }
    }
    fn meta(&self, a: &Attrs) -> (Meta, Vec<String>) {
        let (xattrs, lost) = self.zpl.xattrs(a);
        let meta = Meta { mode: a.mode as u32, owner: (a.uid, a.gid), times: [a.times[0], a.times[1]], xattrs };
        (meta, lost)
    }

    /// Copies everything below the root folder; the names in it come back.
    fn tree(&mut self, root: &Object, origin: Origin, task: &Task<'_>) -> Result<BTreeSet<Vec<u8>>> {
        self.seen.insert(root.num);
        let place = Place { dir: task.base.clone(), ..Place::default() };
        let Some(frame) = self.enter(root, origin, &place)? else { return Ok(BTreeSet::new()) };
        let names = frame.items.as_slice().iter().map(|i| safe_name(&i.name)).collect();
        self.walk(frame, place, task)?;
        Ok(names)
    }

    /// Begins a folder, whose place is all of `place.dir`.
    fn enter(&mut self, dir: &Object, origin: Origin, place: &Place) -> Result<Option<Frame>> {
        let Known { attrs: a, mut lost, .. } = self.attrs(dir);
        let (meta, more) = self.meta(&a);
        lost.extend(more);
        if !lost.is_empty() {
            self.c.report(&finding(self.name, &place.path, dir.num, Problem::Attributes, lost.join("; ")))?;
        }
        let (items, lost) = self.zpl.list(dir);
        if !lost.is_empty() {
            self.loss = true;
            self.c.report(&finding(self.name, &place.path, dir.num, Problem::Names, lost.join("; ")))?;
        }
        if let Some(out) = self.c.out
            && let Err(e) = out.dir(&place.dir)
        {
            if is_fatal(&e) {
                return Err(e);
            }
            self.c.report(&finding(self.name, &place.path, dir.num, Problem::Skipped, e.to_string()))?;
            return Ok(None);
        }
        let is_older = origin != Origin::Newest;
        Ok(Some(Frame { items: items.into_iter(), meta, object: dir.num, is_older }))
    }

    /// Ends a folder.
    fn leave(&mut self, frame: &Frame, place: &Place) -> Result<()> {
        let Some(out) = self.c.out else { return Ok(()) };
        let failed = out.finish_dir(&place.dir, &frame.meta);
        if failed.is_empty() {
            return Ok(());
        }
        self.c.report(&finding(self.name, &place.path, frame.object, Problem::Attributes, failed.join("; ")))
    }

    /// Copies a folder and everything below it.
    fn walk(&mut self, top: Frame, place: Place, task: &Task<'_>) -> Result<()> {
        let depth = task.base.len();
        let mut stack = vec![(top, place)];
        while let Some((frame, place)) = stack.last_mut() {
            let Some(item) = frame.items.next() else {
                if let Some((frame, place)) = stack.pop() {
                    self.leave(&frame, &place)?;
                }
                continue;
            };
            if frame.is_older && self.has_moved(item.object, frame.object) {
                continue;
            }
            let mut path = place.path.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(&item.name);
            let mut name = safe_name(&item.name);
            if place.dir.len() == depth && task.reserved.contains(&name) && !self.is_empty_dir(item.object) {
                name.extend_from_slice(b"~under");
            }
            let at = Place { dir: place.dir.clone(), name, path };
            let too_deep = stack.len() >= DEPTH_MAX;
            if let Some((frame, at)) = self.item(&item, at, too_deep)? {
                stack.push((frame, at));
            }
        }
        Ok(())
    }

    /// Whether an object, as it is last, is known to be in another folder than `dir`. It is copied
    /// there, or as one without a name if that folder is lost.
    fn has_moved(&self, object: u64, dir: u64) -> bool {
        match self.zpl.find(object) {
            Found::There(o, Origin::Newest) => {
                let Known { attrs: a, is_bare, .. } = self.attrs(&o);
                let has_one_name = a.links == 1 || o.dn.otype == ObjectType::DIRECTORY;
                !is_bare && has_one_name && a.parent != dir
            }
            _ => false,
        }
    }

    fn is_empty_dir(&self, object: u64) -> bool {
        match self.zpl.find(object) {
            Found::There(o, _) => o.dn.otype == ObjectType::DIRECTORY && self.zpl.list(&o).0.is_empty(),
            _ => false,
        }
    }

    /// Copies what a name leads to; a folder comes back to be walked.
    fn item(&mut self, item: &Item, at: Place, too_deep: bool) -> Result<Option<(Frame, Place)>> {
        match self.zpl.find(item.object) {
            Found::There(o, origin) => self.object(&o, origin, at, too_deep),
            Found::Free if item.older => Ok(None),
            Found::Free => {
                self.lost(&at.path, item.object, "its name is there, its object is not")?;
                Ok(None)
            }
            Found::Lost(e) => {
                self.lost(&at.path, item.object, e.to_string())?;
                Ok(None)
            }
        }
    }

    fn object(&mut self, o: &Object, origin: Origin, at: Place, too_deep: bool) -> Result<Option<(Frame, Place)>> {
        let known = self.attrs(o);
        if known.attrs.mode & S_IFMT == S_IFDIR {
            if !self.seen.insert(o.num) || too_deep {
                self.lost(&at.path, o.num, "a folder that is inside itself, has two places or is too deep")?;
                return Ok(None);
            }
            self.origin(&finding(self.name, &at.path, o.num, Problem::Older, ""), origin)?;
            let place = Place { dir: [&at.dir[..], &[at.name]].concat(), name: Vec::new(), path: at.path };
            return Ok(self.enter(o, origin, &place)?.map(|f| (f, place)));
        }
        let again = !self.seen.insert(o.num);
        let done = match self.file(o, origin, known, &at, again) {
            Err(e) if !is_fatal(&e) => {
                self.c.report(&finding(self.name, &at.path, o.num, Problem::Skipped, e.to_string()))
            }
            done => done,
        };
        done.map(|()| None)
    }

    /// Copies a file, link or special file.
    fn file(&mut self, o: &Object, origin: Origin, known: Known, at: &Place, again: bool) -> Result<()> {
        let key = (self.guid, o.num);
        if again || self.c.state.is_done(key.0, key.1) {
            let here: Vec<Vec<u8>> = [&at.dir[..], std::slice::from_ref(&at.name)].concat();
            if let Some(first) = self.c.state.first_name(key.0, key.1) {
                return match (self.c.out, first.split_last()) {
                    (Some(out), Some((name, dir))) if first != here => out.link((dir, name), &at.dir, &at.name),
                    _ => Ok(()),
                };
            }
            if again {
                let note = "another name of a file that was copied under its first one";
                return self.c.report(&finding(self.name, &at.path, o.num, Problem::Names, note));
            }
            return Ok(());
        }
        let Known { attrs: a, is_bare, mut lost } = known;
        let (meta, more) = self.meta(&a);
        lost.extend(more);
        let mut f = finding(self.name, &at.path, o.num, Problem::Damaged, "");
        let mut bytes = 0;
        match a.mode & S_IFMT {
            S_IFREG => {
                bytes = self.c.content(o, a.size, at, Some(&meta), &mut f)?;
                let is_whole = f.missing.is_empty();
                if is_whole && !f.note.is_empty() {
                    lost.push(std::mem::take(&mut f.note));
                }
                if is_bare {
                    let gap = if f.note.is_empty() { "" } else { "; " };
                    f.note.push_str(&format!("{gap}its length is lost: it ends with its last block"));
                }
                if is_bare || !is_whole {
                    self.whole_older(o, at, &mut f)?;
                }
            }
            S_IFLNK => match self.zpl.target(o, &a) {
                Ok(target) => {
                    if let Some(out) = self.c.out {
                        out.symlink(&at.dir, &at.name, &target)?;
                        lost.extend(out.finish_name(&at.dir, &at.name, &meta, true));
                    }
                }
                Err(e) => return self.lost(&at.path, o.num, format!("symbolic link: {e}")),
            },
            S_IFIFO | S_IFSOCK | S_IFCHR | S_IFBLK => {
                if let Some(out) = self.c.out {
                    out.special(&at.dir, &at.name, a.mode, rdev_major_minor(a.rdev))?;
                    lost.extend(out.finish_name(&at.dir, &at.name, &meta, false));
                }
            }
            kind => return self.lost(&at.path, o.num, format!("mode {kind:o} is of no kind of file")),
        }
        let damaged = is_bare || !f.missing.is_empty();
        if !damaged && origin != Origin::Newest {
            self.origin(&f, origin)?;
        }
        if !lost.is_empty() {
            self.c.report(&finding(self.name, &at.path, o.num, Problem::Attributes, lost.join("; ")))?;
        }
        self.loss |= damaged;
        self.c.at.findings += u64::from(damaged);
        self.c.at.files += 1;
        if self.c.at.files.is_multiple_of(64) {
            self.c.tell();
        }
        let first = (a.links > 1).then(|| [&at.dir[..], std::slice::from_ref(&at.name)].concat());
        self.c.state.file_done(key, bytes, first, damaged.then_some(&f))
    }

    /// Puts an older state of a damaged file beside it, if there is one that is whole.
    fn whole_older(&mut self, o: &Object, at: &Place, f: &mut Finding) -> Result<()> {
        for (older, txg) in self.zpl.older(o) {
            let Known { attrs: a, is_bare, .. } = self.attrs(&older);
            if is_bare || a.mode & S_IFMT != S_IFREG || !older.is_complete() {
                continue;
            }
            let name = safe_name(&[&at.name[..], format!("~txg-{txg}").as_bytes()].concat());
            let beside = Place { name, ..at.clone() };
            let mut other = finding(self.name, &at.path, o.num, Problem::Older, "");
            let (meta, _) = self.meta(&a);
            self.c.content(&older, a.size, &beside, Some(&meta), &mut other)?;
            f.note.push_str(&format!("; the whole file as of txg {txg} is beside it"));
            break;
        }
        Ok(())
    }

    /// Copies files and folders that no name led to.
    fn nameless(&mut self, task: &Task<'_>, lost_dir: Vec<u8>) -> Result<()> {
        let base: Vec<Vec<u8>> = [&task.base[..], &[lost_dir]].concat();
        if let Found::There(set, _) = self.zpl.find(self.zpl.unlinked) {
            for (_, waiting) in set.entries().numbers() {
                self.seen.insert(waiting);
            }
        }
        let mut todo: BTreeSet<u64> = BTreeSet::new();
        for view in &self.zpl.views {
            view.for_each(&mut |o| {
                if let Ok(o) = o
                    && matches!(o.dn.otype, ObjectType::PLAIN_FILE | ObjectType::DIRECTORY)
                    && matches!(o.dn.bonustype, ObjectType::SA | ObjectType::ZNODE)
                    && !self.seen.contains(o.num)
                {
                    todo.insert(o.num);
                }
            });
        }
        todo.extend(self.zpl.adopted_numbers().filter(|n| !self.seen.contains(*n)));
        for num in todo {
            // The folder above comes first: it may lead here by name.
            for n in [self.highest(num), num] {
                if self.seen.contains(n) {
                    continue;
                }
                let Found::There(o, origin) = self.zpl.find(n) else { continue };
                let a = self.attrs(&o).attrs;
                if a.flags & pflags::XATTR != 0 || a.links == 0 {
                    continue;
                }
                let name = format!("#{n}").into_bytes();
                let at = Place { dir: base.clone(), path: [b"lost+found/", &name[..]].concat(), name };
                let note = format!("its name is lost; it was in folder object {}", a.parent);
                self.c.report(&finding(self.name, &at.path, n, Problem::Names, note))?;
                if let Some((frame, place)) = self.object(&o, origin, at, false)? {
                    self.walk(frame, place, task)?;
                }
            }
        }
        Ok(())
    }

    /// The highest folder without a name above an object, or the object.
    fn highest(&self, num: u64) -> u64 {
        let (mut at, mut steps) = (num, 0);
        while steps < CLIMB_MAX {
            let Found::There(o, _) = self.zpl.find(at) else { break };
            let a = self.attrs(&o).attrs;
            if a.parent == at || a.parent == 0 || self.seen.contains(a.parent) || a.flags & pflags::XATTR != 0 {
                break;
            }
            match self.zpl.find(a.parent) {
                Found::There(p, _) if p.dn.otype == ObjectType::DIRECTORY => at = a.parent,
                _ => break,
            }
            steps += 1;
        }
        at
    }
}
