//! The load of the intent log's campaign: tasks that change files of their own folders, wait for
//! some of them, and record when each change was begun and acknowledged.
//!
//! Data are written in units of 4 KiB that name file, place and version; a cloned unit names the
//! file and place that it was written to. A task records of each change when it was begun and from
//! when on it was durable, both as the number of the last device operation of the world. Where the
//! world is made to fail, an operation may fail too: then the task reads the actual state, and goes
//! on from that.

mod clones;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Nanos, ObjectId};
use bdev::Bytes;
use sim::{Rng, SimHandle};
use zpl::{Cred, Fallocate, RenameFlags, Zfs};

use crate::zilseen::Unit;
use crate::{Check, Fault};

/// Bytes of a unit of data.
pub(crate) const UNIT: u64 = 4096;
/// Units of a file at most.
const UNITS_MAX: u64 = 48;
/// Files of a task at most.
const FILES_MAX: usize = 5;
/// Percentage of the steps of a task that clones which clone.
const CLONES_PERCENT: u64 = 20;

/// Something that went through states: each was begun at a moment and durable from another on.
pub(crate) struct History<T> {
    pub(crate) steps: Vec<(u64, Cell<u64>, T)>,
}

impl<T: Clone> History<T> {
    pub(crate) fn new(first: T) -> History<T> {
        History { steps: vec![(0, Cell::new(u64::MAX), first)] }
    }
    pub(crate) fn last(&self) -> &T {
        &self.steps[self.steps.len() - 1].2
    }
    pub(crate) fn begin(&mut self, at: u64, state: T) {
        self.steps.push((at, Cell::new(u64::MAX), state));
    }
    /// Everything begun so far is durable at `at`.
    pub(crate) fn durable(&self, at: u64) {
        for (_, d, _) in self.steps.iter().rev() {
            if d.get() != u64::MAX {
                break;
            }
            d.set(at);
        }
    }
    /// The states that a cut after moment `at` may show: first and last.
    pub(crate) fn window(&self, at: u64) -> (usize, usize) {
        let low = self.steps.iter().rposition(|(_, d, _)| d.get() <= at).unwrap_or(0);
        let high = self.steps.iter().rposition(|(b, _, _)| *b <= at).unwrap_or(0);
        (low, high.max(low))
    }
}

/// The units of a part of a volume, each with its version, 0 for a hole.
pub(crate) type Units = Vec<u32>;
/// The units of a file.
pub(crate) type Content = Vec<Unit>;
/// Names of a folder, and the file that each one names.
pub(crate) type Names = BTreeMap<Vec<u8>, u64>;

/// The history of one task's folder.
pub(crate) struct Story {
    pub(crate) folder: Vec<u8>,
    pub(crate) names: RefCell<History<Names>>,
    pub(crate) files: RefCell<BTreeMap<u64, History<Content>>>,
    pub(crate) versions: Cell<u32>,
    /// The objects that were its files.
    pub(crate) objects: RefCell<Vec<ObjectId>>,
    /// Ranges cloned.
    pub(crate) clones: Cell<u64>,
}

impl Story {
    /// Of a task that has done nothing yet.
    pub(crate) fn new(folder: Vec<u8>) -> Story {
        let names = RefCell::new(History::new(Names::new()));
        Story {
            folder,
            names,
            files: RefCell::default(),
            versions: Cell::new(0),
            objects: RefCell::default(),
            clones: Cell::new(0),
        }
    }
    /// Everything done so far is durable at `at`.
    pub(crate) fn all_durable(&self, at: u64) {
        self.names.borrow().durable(at);
        self.files.borrow().values().for_each(|f| f.durable(at));
    }
}

/// Commits other tasks' files, so that their waits depend on its commits. It acknowledges nothing
/// itself, so it may fail.
pub(crate) async fn stand_by(fs: Rc<Zfs>, rt: rt::Rt, stories: Vec<Rc<Story>>, working: Rc<Cell<u64>>, mut rng: Rng) {
    while working.get() > 0 {
        let story = &stories[rng.below(stories.len() as u64) as usize];
        let object = {
            let objects = story.objects.borrow();
            let newest = objects.len().min(4) as u64;
            (newest > 0).then(|| objects[objects.len() - 1 - rng.below(newest) as usize])
        };
        if let Some(object) = object {
            // It may be no more.
            let _ = fs.fsync(object).await;
        }
        rt.sleep(Nanos::from_us(20 * rng.below(60))).await;
    }
}

/// The bytes of a unit.
pub(crate) fn unit_bytes(file: u64, unit: u64, version: u32, out: &mut [u8]) {
    if version == 0 {
        out.fill(0);
        return;
    }
    let mut x = file ^ (unit << 20) ^ (u64::from(version) << 40) ^ 0x9e37_79b9_7f4a_7c15;
    for (n, word) in out.chunks_exact_mut(8).enumerate() {
        let w = match n {
            0 => file | 1 << 63,
            1 => unit,
            2 => u64::from(version),
            _ => {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                x
            }
        };
        word.copy_from_slice(&w.to_le_bytes());
    }
}

/// File, place and version that a unit names, `None` for zeros, or why it is no unit.
pub(crate) fn whose(bytes: &[u8]) -> Result<Option<(u64, u64, u32)>, String> {
    if bytes.iter().all(|&b| b == 0) {
        return Ok(None);
    }
    let word = |n: usize| bytes.get(n * 8..n * 8 + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().expect("8 bytes")));
    let (file, unit, version) = (word(0) & !(1 << 63), word(1), word(2) as u32);
    let mut want = vec![0; bytes.len()];
    unit_bytes(file, unit, version, &mut want);
    match want.iter().zip(bytes).position(|(a, b)| a != b) {
        None => Ok(Some((file, unit, version))),
        Some(n) => {
            let (head, there) = (&bytes[..24.min(bytes.len())], &bytes[n..bytes.len().min(n + 16)]);
            Err(format!("is of no version: it begins with {head:02x?}, from byte {n} on {there:02x?}"))
        }
    }
}

/// What a unit of a file holds, or why it is none; with `clones` it may be that of another place.
fn unit_there(file: u64, unit: u64, bytes: &[u8], clones: bool) -> Result<Unit, String> {
    match whose(bytes).map_err(|e| format!("unit {unit} {e}"))? {
        Some((of, place, _)) if !clones && (of, place) != (file, unit) => {
            Err(format!("unit {unit} of file {file} is unit {place} of file {of}"))
        }
        there => Ok(there),
    }
}

/// A task at work.
pub(crate) struct Actor {
    pub(crate) fs: Rc<Zfs>,
    pub(crate) sim: SimHandle,
    pub(crate) story: Rc<Story>,
    pub(crate) dir: ObjectId,
    pub(crate) open: BTreeMap<Vec<u8>, (u64, ObjectId)>,
    pub(crate) next_file: u64,
    pub(crate) always: bool,
    /// Some of its names have more than 255 bytes.
    pub(crate) long: bool,
    /// It clones files.
    pub(crate) clones: bool,
    pub(crate) rng: Rng,
    pub(crate) acks: u64,
}

pub(crate) fn text(e: base::Error) -> Fault {
    format!("{e:?}")
}

impl Actor {
    fn now(&self) -> u64 {
        self.sim.io_seq()
    }
    fn pick(&mut self) -> Option<(Vec<u8>, u64, ObjectId)> {
        if self.open.is_empty() {
            return None;
        }
        let n = self.rng.below(self.open.len() as u64) as usize;
        self.open.iter().nth(n).map(|(name, &(file, obj))| (name.clone(), file, obj))
    }
    fn fresh_name(&mut self) -> Vec<u8> {
        let n = self.rng.below(8);
        let mut name = format!("n{n}").into_bytes();
        if self.long && n > 3 {
            name.resize(130 * n as usize, b'x');
        }
        name
    }
    /// A change of names begins.
    fn names(&mut self, change: impl FnOnce(&mut Names)) {
        let at = self.now();
        let mut h = self.story.names.borrow_mut();
        let mut names = h.last().clone();
        change(&mut names);
        h.begin(at, names);
    }
    /// A change of a file begins.
    fn units(&mut self, file: u64, change: impl FnOnce(&mut Content)) {
        let at = self.now();
        let mut files = self.story.files.borrow_mut();
        let Some(h) = files.get_mut(&file) else { return };
        let mut units = h.last().clone();
        change(&mut units);
        h.begin(at, units);
    }
    /// The task's changes of names, and of this file, are durable.
    fn durable(&mut self, file: Option<u64>) {
        let at = self.now();
        self.acks += 1;
        self.story.names.borrow().durable(at);
        let files = self.story.files.borrow();
        if let Some(h) = file.and_then(|f| files.get(&f)) {
            h.durable(at);
        }
    }
    fn done(&mut self, file: Option<u64>) {
        if self.always {
            self.durable(file);
        }
    }

    /// Makes a file; none if its name is taken.
    async fn create(&mut self) -> Check<Option<(u64, ObjectId)>> {
        let name = self.fresh_name();
        if self.open.contains_key(&name) {
            return Ok(None);
        }
        let file = self.next_file;
        self.next_file += 1;
        self.story.files.borrow_mut().insert(file, History::new(Vec::new()));
        self.names(|n| {
            n.insert(name.clone(), file);
        });
        let made = self.fs.create(self.dir, &name, 0o644, &Cred::new(0, 0), true).await.map_err(text)?;
        self.open.insert(name, (file, made.obj));
        self.story.objects.borrow_mut().push(made.obj);
        self.done(None);
        Ok(Some((file, made.obj)))
    }

    pub(crate) async fn step(&mut self) -> Check {
        if self.clones && self.rng.percent(CLONES_PERCENT) {
            return self.clone_range().await;
        }
        let dir = self.dir;
        let roll = self.rng.below(100);
        match (roll, self.pick()) {
            (0..=11, _) | (_, None) if self.open.len() < FILES_MAX => {
                self.create().await?;
            }
            (12..=45, Some((_, file, obj))) => self.write(file, obj, false).await?,
            (46..=62, Some((_, file, obj))) => self.write(file, obj, true).await?,
            (63..=80, Some((_, file, obj))) => {
                self.fs.fsync(obj).await.map_err(text)?;
                self.durable(Some(file));
            }
            (81..=85, Some((name, file, _))) => {
                let new = self.fresh_name();
                if new == name {
                    return Ok(());
                }
                // The target of a rename may be another name of the same file: then nothing
                // happens.
                if self.open.get(&new).is_some_and(|(f, _)| *f == file) {
                    return Ok(());
                }
                self.names(|n| {
                    n.remove(&name);
                    n.insert(new.clone(), file);
                });
                self.fs.rename(dir, &name, dir, &new, RenameFlags::default()).await.map_err(text)?;
                if let Some(entry) = self.open.remove(&name) {
                    self.open.insert(new, entry);
                }
                // A durable rename does not make the file's data durable.
                self.done(None);
            }
            (86..=88, Some((_, file, obj))) => {
                let new = self.fresh_name();
                if self.open.contains_key(&new) {
                    return Ok(());
                }
                self.names(|n| {
                    n.insert(new.clone(), file);
                });
                self.fs.link(obj, dir, &new).await.map_err(text)?;
                self.open.insert(new, (file, obj));
                self.done(None);
            }
            (89..=92, Some((name, _, _))) => {
                self.names(|n| {
                    n.remove(&name);
                });
                self.fs.unlink(dir, &name).await.map_err(text)?;
                self.open.remove(&name);
                self.done(None);
            }
            (93..=96, Some((_, file, obj))) => {
                let size = self.rng.below(UNITS_MAX);
                self.units(file, |u| u.resize(size as usize, None));
                self.fs.truncate(obj, size * UNIT).await.map_err(text)?;
                self.done(Some(file));
            }
            (_, Some((_, file, obj))) => {
                let from = self.rng.below(UNITS_MAX);
                let len = 1 + self.rng.below(8);
                self.units(file, |u| {
                    u.iter_mut().skip(from as usize).take(len as usize).for_each(|v| *v = None);
                });
                let done = self.fs.fallocate(obj, Fallocate::PunchHole, from * UNIT, len * UNIT).await;
                done.map_err(text)?;
                self.done(Some(file));
            }
            _ => {}
        }
        Ok(())
    }

    async fn write(&mut self, file: u64, obj: ObjectId, sync: bool) -> Check {
        let from = self.rng.below(UNITS_MAX - 1);
        let most = if self.rng.percent(15) { UNITS_MAX - from } else { 3 };
        let len = 1 + self.rng.below(most.min(UNITS_MAX - from));
        let version = self.story.versions.get() + 1;
        self.story.versions.set(version);
        let mut data = vec![0; (len * UNIT) as usize];
        for n in 0..len {
            let at = (n * UNIT) as usize;
            unit_bytes(file, from + n, version, &mut data[at..at + UNIT as usize]);
        }
        self.units(file, |u| {
            let end = (from + len) as usize;
            if u.len() < end {
                u.resize(end, None);
            }
            (from..).zip(&mut u[from as usize..end]).for_each(|(n, unit)| *unit = Some((file, n, version)));
        });
        let data = vec![Bytes::copy_from(&data)];
        if sync {
            self.fs.write_sync(obj, from * UNIT, data, false).await.map_err(text)?;
            self.durable(Some(file));
        } else {
            self.fs.write(obj, from * UNIT, data, false).await.map_err(text)?;
            self.done(Some(file));
        }
        Ok(())
    }

    /// After a failure: takes over the actual state, as begun and not durable.
    pub(crate) async fn look(&mut self) -> Check {
        let list = self.fs.readdir(self.dir, 0, 1000).await.map_err(text)?;
        let known: BTreeMap<ObjectId, u64> = self.open.values().map(|&(file, obj)| (obj, file)).collect();
        self.open.clear();
        for e in list.into_iter().filter(|e| e.name != b"." && e.name != b"..") {
            // The only file without a known object is the newest.
            let file = known.get(&e.obj).copied().unwrap_or(self.next_file - 1);
            self.open.insert(e.name, (file, e.obj));
        }
        let now: Names = self.open.iter().map(|(name, &(file, _))| (name.clone(), file)).collect();
        self.names(|n| *n = now);
        let files: BTreeMap<u64, ObjectId> = self.open.values().copied().collect();
        for (file, obj) in files {
            let size = self.fs.getattr(obj).await.map_err(text)?.size;
            let mut all = Vec::with_capacity(size as usize);
            for part in self.fs.read(obj, 0, size).await.map_err(text)? {
                all.extend_from_slice(&part);
            }
            let mut units = Content::new();
            for (n, bytes) in all.chunks(UNIT as usize).enumerate() {
                units.push(unit_there(file, n as u64, bytes, self.clones)?);
            }
            self.units(file, |u| *u = units);
        }
        Ok(())
    }
}
