//! `weir lab replay`: recorded operations of users (`rt::oplog`) in virtual time, on any layout,
//! device model and settings.
//!
//! **Closed loop.** Each client keeps the order of its operations and the time between them
//! ([`plan`]): a program that waits for its answers goes on earlier on a faster pool and later on a
//! slower one, as it would. An open loop by recorded times would pile up on a slower pool what no
//! program had asked for yet; only the kernel's own writes come by the clock. An operation also
//! waits until the file that it is about has been made.
//!
//! **What is not in a recording.** Contents: blocks are zeros, stored uncompressed at their full
//! size. Names: see [`plan`]. The pool: it is new, its files were written one after the other, and
//! the cache is empty when the replay begins. All file systems are replayed as one, with the
//! properties of the one that has most operations. With [`Replay::warm`] what is there before is
//! read once, so that the cache has it as far as it has room.
//!
//! **The engine's thread.** It also reads requests and answers them, and its processor is not that
//! of the cost table ([`rt::cost`]), nor are its caches as warm. A recording tells how long it
//! worked. Of what a replay with the recorded settings does not account for, up to
//! [`REQUEST_MAX`] for each request is spent before it, as a part of the time that its client lets
//! pass; for the rest all work of the engine takes longer ([`Thread`]).
//!
//! Latencies on both sides are from the request to its answer within the engine: the kernel's part
//! is in neither.

mod plan;
mod report;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Error, ErrorKind, Nanos, ObjectId, Result};
use bdev::Bytes;
use rt::Rt;
use rt::oplog::PROPS;
use rt::sync::Notify;
use rt::trace::OpKind;
use sim::{DiskImage, Sim, SimDisk, SimHandle};
use spa::{EngineOpts, Pool};
use zpl::{Cred, RenameFlags, Zfs};

pub use crate::layout::LayoutSpec;
pub use plan::Plan;
pub use report::{KindReport, Latency, Report};
pub use rt::oplog::{FILE_MAX, Recording, parse};

use crate::calibrate::LIMITS;
use crate::device::Device;
use crate::parts::Watch;
use crate::stage;
use plan::{Act, Chain, ROOT, Slot};

/// Bytes of one write when files are made before the replay.
const FILL: u64 = 1 << 20;
/// Steps between two reports of progress.
const SHOWN_EVERY: u64 = 512;
/// Microseconds below which an operation did not wait for a device.
const HIT: f64 = 50.0;
/// Bytes that a pool needs for each byte of files: metadata, labels, and what is kept in reserve.
const USED_FACTOR: f64 = 1.1;
/// The least size of a device.
const SIZE_MIN: u64 = 256 << 20;
/// What reading a request and answering it takes of the engine's thread at most: of 46 us for each
/// write of 8 KiB, 14 were in these calls (`perf record` of the load `overwrite` of
/// docs/bench-replay.py), and bytes are counted apart ([`REQUEST`]).
const REQUEST_MAX: Nanos = Nanos::from_us(10);
/// Bytes of a request that cost as much as what each request costs: reading 16 KiB from FUSE, in
/// pages that are new, takes about as long as the call and the wake-up.
const REQUEST: u64 = 16 << 10;
/// A thread that is slower has done something else, such as a scrub, or was stopped.
const PERCENT_MAX: f64 = 1_000.0;
/// Entries that a listing takes at a time.
const LIST: usize = 128;

/// The parameters of a replay.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Its vdevs.
    pub layout: LayoutSpec,
    /// The model of each device, by name ([`Replay::check`]).
    pub model: String,
    /// The model of log devices; none: the same.
    pub log_model: Option<String>,
    /// Properties of the file system beside those recorded.
    pub props: Vec<(String, String)>,
    /// Settings of the engine.
    pub opts: EngineOpts,
    /// Cores for heavy work.
    pub cores: usize,
    /// log2 of the allocation unit.
    pub ashift: u8,
    /// Seed of the world.
    pub seed: u64,
    /// The cache has what is there before, as far as it has room; else it is empty.
    pub warm: bool,
    /// How fast the engine's thread is.
    pub thread: Thread,
}

/// How fast the thread of an engine is ([`Replay::recorded_thread`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Thread {
    /// Its time for a request without bytes.
    pub request: Nanos,
    /// Time of its work in percent of what the cost table says.
    pub percent: u64,
}

impl Default for Thread {
    /// As the cost table has it, with requests that cost nothing.
    fn default() -> Thread {
        Thread { request: Nanos(0), percent: 100 }
    }
}

/// Where an object is now.
#[derive(Clone, Copy)]
struct Place {
    obj: Option<ObjectId>,
    dir: ObjectId,
    name: u64,
}

/// The replay while it runs.
struct Stage {
    rt: Rt,
    sim: SimHandle,
    /// [`Thread::request`].
    request: Nanos,
    fs: Rc<Zfs>,
    slots: Vec<Slot>,
    places: RefCell<Vec<Place>>,
    /// Something was made.
    made: Notify,
    opens: RefCell<BTreeMap<u64, u64>>,
    next_name: Cell<u64>,
    /// Recorded and replayed latencies of what worked, by kind.
    samples: RefCell<BTreeMap<OpKind, [Vec<u64>; 2]>>,
    failed: Cell<u64>,
    last_end: Cell<Nanos>,
    /// Steps that are over, and all of them.
    steps: (Cell<u64>, u64),
    progress: Rc<dyn Fn(u64, u64)>,
}

/// What a request counts for its cost: that of one without bytes is 1.
fn weight(kind: OpKind, len: u64) -> f64 {
    match kind {
        OpKind::Read | OpKind::Write => 1.0 + len as f64 / REQUEST as f64,
        _ => 1.0,
    }
}

/// The thread that worked for `worked` where the cost table says `known`, without `requests`
/// requests (by [`weight`]).
fn thread_of(worked: Nanos, known: Nanos, requests: f64) -> Thread {
    let each = worked.since(known).0 as f64 / requests.max(1.0);
    let request = Nanos(each.min(REQUEST_MAX.0 as f64) as u64);
    let rest = worked.0 as f64 - request.0 as f64 * requests;
    let percent = (rest / known.0.max(1) as f64 * 100.0).clamp(100.0, PERCENT_MAX);
    Thread { request, percent: percent as u64 }
}

fn name_of(name: u64) -> Vec<u8> {
    format!("n{name}").into_bytes()
}

impl Replay {
    /// Fails if a parameter is out of range.
    pub fn check(&self) -> Result<()> {
        Device::of(&self.model)?;
        self.log_model.as_deref().map(Device::of).transpose()?;
        match () {
            () if !(1..=1024).contains(&self.cores) => Err(Error::invalid("a replay needs 1 to 1024 cores")),
            () if !(9..=16).contains(&self.ashift) => Err(Error::invalid("a replay needs an ashift of 9 to 16")),
            () => Ok(()),
        }
    }

    /// `recordsize` of the file system with most operations, in bytes; 128 KiB if it is not known.
    pub fn recordsize(&self, recording: &Recording) -> u64 {
        let of = |plan: Plan| recording.header.get(&format!("dataset.{}.recordsize", plan.dataset))?.parse().ok();
        Plan::new(recording).ok().and_then(of).unwrap_or(128 << 10)
    }

    /// Whether the recorded pool had a warm cache when it began: whether a replay with one comes
    /// closer to the median and the 99th percentile of reads, or without any of all data. What
    /// takes less than [`HIT`] is a hit, however long.
    pub fn looks_warm(&self, recording: &Recording) -> Result<bool> {
        let apart = |warm: bool| {
            let report = Replay { warm, ..self.clone() }.run(recording)?;
            let ratio = |a: f64, b: f64| (a.max(HIT) / b.max(HIT)).ln().abs();
            let of = |g: &KindReport| {
                let (a, b) = (g.recorded, g.predicted);
                ratio(a.p50_us, b.p50_us) + ratio(a.p99_us, b.p99_us)
            };
            let group = report.groups.iter().find(|g| g.kind == "reads").or(report.groups.last());
            Ok::<f64, Error>(group.map_or(0.0, of))
        };
        Ok(apart(true)? <= apart(false)?)
    }

    /// The thread with which a replay with these settings, which are those of the recorded pool,
    /// works as long as that pool's engine did; that of the cost table if that is not known.
    pub fn recorded_thread(&self, recording: &Recording) -> Result<Thread> {
        let Some(worked) = recording.worked else { return Ok(Thread::default()) };
        let report = Replay { thread: Thread::default(), ..self.clone() }.run(recording)?;
        let requests: f64 = recording.ops.iter().map(|o| weight(o.op.kind, o.op.len)).sum();
        Ok(thread_of(worked, Nanos((report.worked_seconds[1] * 1e9) as u64), requests))
    }

    /// Runs it.
    pub fn run(&self, recording: &Recording) -> Result<Report> {
        self.run_showing(recording, Rc::new(|_, _| {}))
    }

    /// Runs it; `progress` is told now and then how many operations are over, and how many there
    /// are.
    pub fn run_showing(&self, recording: &Recording, progress: Rc<dyn Fn(u64, u64)>) -> Result<Report> {
        self.check()?;
        let plan = Plan::new(recording)?;
        let sim = stage::world(self.seed, (self.opts.arc_max * 2).max(1 << 30), self.cores);
        let writes = recording.ops.iter().filter(|o| o.op.kind == OpKind::Write);
        let written = writes.map(|o| o.op.len.min(1 << 20)).fold(0, u64::saturating_add);
        let before: u64 = plan.slots.iter().filter_map(|s| s.before).sum();
        let size = self.device_size(recording, before, written);
        let device = Device::of(&self.model)?;
        let log = self.log_model.as_deref().map(Device::of).transpose()?;
        let disk = |n: usize| {
            let seed = self.seed.wrapping_mul(256).wrapping_add(n as u64);
            let device = log.as_ref().filter(|_| self.layout.is_log(n)).unwrap_or(&device);
            stage::disk(&sim.handle(), DiskImage::zeroed(size), device.one_of(seed), seed)
        };
        let disks = (0..self.layout.devices()).map(disk).collect::<Vec<_>>();
        let done = self.on(&sim, &disks, recording, &plan, progress);
        stage::end(&sim, &disks);
        done
    }

    /// Bytes of each device: those before the replay, and the free ones that the recorded pool had
    /// on each, since the sizes of writes follow from them; at most what `before` and `written`
    /// bytes can ever need. Without a record of them that.
    fn device_size(&self, recording: &Recording, before: u64, written: u64) -> u64 {
        let ample = (before + written).saturating_mul(3).saturating_add(8 << 30).next_multiple_of(1 << 30);
        let free = recording.header.get("device_free").and_then(|text| text.parse::<u64>().ok());
        let share = (before as f64 * USED_FACTOR / self.layout.data_devices().max(1.0)) as u64;
        free.map_or(ample, |free| share.saturating_add(free).clamp(SIZE_MIN, ample).next_multiple_of(1 << 20))
    }

    fn on(
        &self,
        sim: &Sim,
        disks: &[SimDisk],
        recording: &Recording,
        plan: &Plan,
        progress: Rc<dyn Fn(u64, u64)>,
    ) -> Result<Report> {
        let header = |prop: &str| recording.header.get(&format!("dataset.{}.{prop}", plan.dataset));
        // Blocks are stored uncompressed, whatever was recorded.
        let recorded = PROPS.iter().filter(|prop| **prop != "compression");
        let mut props = vec![("compression", "off")];
        let own = |name: &str| self.props.iter().any(|(own, _)| own == name);
        props.extend(recorded.filter(|prop| !own(prop)).filter_map(|prop| Some((*prop, header(prop)?))));
        props.extend(self.props.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let begun = sim.block_on(async {
            let layout = self.layout.on(disks.iter().map(stage::device).collect());
            let opts = self.opts.clone();
            let (pool, fs) = stage::new_fs_on(&sim.rt(), layout, opts, self.ashift, &props).await?;
            let stage = Stage::fill((sim.handle(), self.thread.request), fs, &pool, plan, progress).await?;
            if self.warm {
                stage.warm().await?;
            }
            Ok::<_, Error>((pool.clone(), stage))
        });
        let (pool, stage) = begun?;
        sim.handle().set_engine_percent(self.thread.percent);
        let (begin, worked) = (sim.now(), sim.rt().worked());
        let watch = Watch::begin(&sim.rt());
        let tasks: Vec<_> = plan
            .chains
            .iter()
            .map(|chain| {
                let (stage, chain) = (stage.clone(), chain.clone());
                sim.rt().spawn("replay", async move { stage.follow(begin, &chain).await })
            })
            .collect();
        sim.block_on(async {
            for task in tasks {
                task.await;
            }
        });
        if let Some(e) = pool.txg().ended() {
            return Err(e);
        }
        let worked = sim.rt().worked().since(worked);
        let span = stage.last_end.get().since(begin);
        Ok(self.report(recording, plan, &stage, (span, worked, watch), sim.digest()))
    }

    fn report(
        &self,
        recording: &Recording,
        plan: &Plan,
        stage: &Stage,
        (span, worked, watch): (Nanos, Nanos, Watch),
        digest: u64,
    ) -> Report {
        let seconds = |n: Nanos| n.0 as f64 / 1e9;
        let spans = [seconds(plan.span), seconds(span)];
        let bytes = |kind: OpKind| {
            let of_kind = recording.ops.iter().filter(|o| o.op.kind == kind && o.op.ok);
            of_kind.map(|o| o.op.len as f64).sum::<f64>()
        };
        let rates = |kind| spans.map(|s| bytes(kind) / s.max(1e-9));
        let samples = stage.samples.take();
        let group = |name, kinds: &[OpKind]| {
            let [mut recorded, mut predicted] = [Vec::new(), Vec::new()];
            for [a, b] in samples.iter().filter(|(kind, _)| kinds.contains(kind)).map(|(_, both)| both) {
                recorded.extend_from_slice(a);
                predicted.extend_from_slice(b);
            }
            KindReport::of(name, recorded, predicted)
        };
        let writes = [OpKind::Write, OpKind::Fsync, OpKind::SyncFs];
        let all = [&[OpKind::Read][..], &writes].concat();
        let groups = [group("reads", &[OpKind::Read]), group("writes", &writes), group("data", &all)];
        let moved = bytes(OpKind::Read) + bytes(OpKind::Write);
        let parts = watch.end(spans[1], groups[2].count, moved).values;
        let groups = groups.into_iter().filter(|g| g.count > 0).collect();
        let kinds = samples.iter().map(|(kind, [a, b])| KindReport::of(kind.name(), a.clone(), b.clone()));
        let time_fits = (spans[1] / spans[0].max(1e-9) - 1.0).abs() * 100.0 <= LIMITS.0;
        Report {
            seed: self.seed,
            model: self.model.clone(),
            ops: recording.ops.len() as u64,
            failed: stage.failed.get(),
            lost: recording.lost,
            complete: recording.is_complete(),
            recorded_seconds: spans[0],
            predicted_seconds: spans[1],
            read_bytes_per_s: rates(OpKind::Read),
            write_bytes_per_s: rates(OpKind::Write),
            kinds: kinds.collect(),
            groups,
            time_fits,
            worked_seconds: [recording.worked.map_or(0.0, seconds), seconds(worked)],
            parts,
            digest: format!("{digest:016x}"),
        }
    }
}

impl Stage {
    /// Makes what is there before, and empties the cache.
    async fn fill(
        (sim, request): (SimHandle, Nanos),
        fs: Rc<Zfs>,
        pool: &Rc<Pool>,
        plan: &Plan,
        progress: Rc<dyn Fn(u64, u64)>,
    ) -> Result<Rc<Stage>> {
        let (root, cred) = (fs.root(), Cred::new(0, 0));
        let place = |n| Place { obj: None, dir: root, name: n as u64 };
        let mut places: Vec<Place> = (0..plan.slots.len()).map(place).collect();
        places[ROOT].obj = Some(root);
        for first in 1..plan.slots.len() {
            // From the outermost directory that is not there yet.
            let mut path = Vec::new();
            let mut at = first;
            while places[at].obj.is_none() && plan.slots[at].before.is_some() {
                path.push(at);
                at = plan.slots[at].dir;
            }
            while let Some(s) = path.pop() {
                let (slot, name) = (&plan.slots[s], name_of(s as u64));
                places[s].dir = places[slot.dir].obj.unwrap_or(root);
                let dir = places[s].dir;
                let obj = match slot.is_dir {
                    true => fs.mkdir(dir, &name, 0o755, &cred).await?.obj,
                    false => fs.create(dir, &name, 0o644, &cred, true).await?.obj,
                };
                places[s].obj = Some(obj);
                let size = slot.before.filter(|_| !slot.is_dir).unwrap_or(0);
                let mut done = 0;
                while done < size {
                    let len = (size - done).min(FILL);
                    fs.write(obj, done, vec![Bytes::zeroed(len as usize)], false).await?;
                    done += len;
                }
            }
        }
        // The first commit of a file system makes its log, which takes a txg: long ago in a pool in
        // use.
        let first = fs.create(root, b"first", 0o644, &cred, true).await?.obj;
        fs.write_sync(first, 0, vec![Bytes::zeroed(512)], false).await?;
        fs.unlink(root, b"first").await?;
        fs.sync_all().await?;
        let limit = pool.arc().limit();
        pool.arc().set_limit(0);
        pool.arc().set_limit(limit);
        Ok(Rc::new(Stage {
            last_end: Cell::new(sim.rt().now()),
            rt: sim.rt(),
            sim,
            request,
            fs,
            slots: plan.slots.clone(),
            next_name: Cell::new(places.len() as u64),
            places: RefCell::new(places),
            made: Notify::new(),
            opens: RefCell::default(),
            samples: RefCell::default(),
            failed: Cell::new(0),
            steps: (Cell::new(0), plan.chains.iter().map(|chain| chain.steps.len() as u64).sum()),
            progress,
        }))
    }

    /// Reads all files that are there.
    async fn warm(&self) -> Result<()> {
        for (s, slot) in self.slots.iter().enumerate().filter(|(_, slot)| !slot.is_dir) {
            let size = slot.before.unwrap_or(0);
            let mut done = 0;
            while done < size {
                let len = (size - done).min(FILL);
                self.fs.read(self.obj(s), done, len).await?;
                done += len;
            }
        }
        Ok(())
    }

    /// Follows a chain of a replay that began at `begin`.
    async fn follow(&self, begin: Nanos, chain: &Chain) {
        let mut last = begin;
        for step in &chain.steps {
            let from = if chain.by_clock { begin } else { last };
            let cost = self.request_of(step.kind, step.act);
            self.rt.sleep_until(from + Nanos(step.wait.0.saturating_sub(cost.0))).await;
            self.is_made(step.act).await;
            self.sim.stall(cost);
            let at = self.rt.now();
            let worked = self.act(step.act).await.is_ok();
            last = self.rt.now();
            self.last_end.set(self.last_end.get().max(last));
            self.steps.0.set(self.steps.0.get() + 1);
            if self.steps.0.get().is_multiple_of(SHOWN_EVERY) {
                (self.progress)(self.steps.0.get(), self.steps.1);
            }
            match (worked, step.counts) {
                (true, true) => {
                    let mut samples = self.samples.borrow_mut();
                    let [recorded, predicted] = samples.entry(step.kind).or_default();
                    recorded.push(step.took.0);
                    predicted.push(last.since(at).0);
                }
                (false, true) => self.failed.set(self.failed.get() + 1),
                (_, false) => {}
            }
        }
    }

    /// What a request costs beside what the engine charges.
    fn request_of(&self, kind: OpKind, act: Act) -> Nanos {
        let len = match act {
            Act::Read(_, _, len) | Act::Write(_, _, len, _) => len,
            _ => 0,
        };
        Nanos((self.request.0 as f64 * weight(kind, len)) as u64)
    }

    /// Waits until the objects of a step have been made.
    async fn is_made(&self, act: Act) {
        let needs = match act {
            Act::SyncFs => [ROOT, ROOT],
            Act::Make(s) => [self.slots[s].dir; 2],
            Act::Lookup(a, b) => [a, b.unwrap_or(a)],
            Act::Move(a, b) | Act::Link(a, b) => [a, b],
            Act::GetAttr(a)
            | Act::Touch(a)
            | Act::Truncate(a, _)
            | Act::Remove(a)
            | Act::Open(a)
            | Act::Release(a)
            | Act::Read(a, ..)
            | Act::Write(a, ..)
            | Act::Fsync(a)
            | Act::List(a)
            | Act::Xattr(a) => [a, a],
        };
        while needs.iter().any(|&s| self.places.borrow()[s].obj.is_none()) {
            self.made.notified().await;
        }
    }

    fn place(&self, slot: usize) -> Place {
        self.places.borrow()[slot]
    }

    /// The object of a slot; none that exists if it could not be made.
    fn obj(&self, slot: usize) -> ObjectId {
        self.place(slot).obj.unwrap_or(ObjectId(0))
    }

    fn new_name(&self) -> u64 {
        let name = self.next_name.get();
        self.next_name.set(name + 1);
        name
    }

    async fn act(&self, act: Act) -> Result<()> {
        let fs = &self.fs;
        match act {
            Act::Lookup(dir, None) => match fs.lookup(self.obj(dir), b"missing").await {
                Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
                other => other.map(drop),
            },
            Act::Lookup(_, Some(slot)) => {
                let place = self.place(slot);
                if slot == ROOT {
                    return fs.getattr(self.obj(ROOT)).await.map(drop);
                }
                fs.lookup(place.dir, &name_of(place.name)).await.map(drop)
            }
            Act::GetAttr(s) => fs.getattr(self.obj(s)).await.map(drop),
            Act::Touch(s) => fs.touch_ctime(self.obj(s)).await.map(drop),
            Act::Truncate(s, size) => fs.truncate(self.obj(s), size).await,
            Act::Make(_) | Act::Remove(_) | Act::Move(..) | Act::Link(..) => self.change(act).await,
            Act::Open(s) => self.act_open(self.obj(s)).await,
            Act::Release(s) => {
                let obj = self.obj(s);
                // Opened before the recording began, if it is not open here.
                let count = self.opens.borrow().get(&obj.0).copied().unwrap_or(0);
                if count > 0 {
                    self.opens.borrow_mut().insert(obj.0, count - 1);
                    fs.release(obj).await;
                }
                Ok(())
            }
            Act::Read(s, offset, len) => fs.read(self.obj(s), offset, len).await.map(drop),
            Act::Write(s, offset, len, sync) => {
                let data = vec![Bytes::zeroed(len as usize)];
                match sync {
                    true => fs.write_sync(self.obj(s), offset, data, false).await.map(drop),
                    false => fs.write(self.obj(s), offset, data, false).await.map(drop),
                }
            }
            Act::Fsync(s) => fs.fsync(self.obj(s)).await,
            Act::List(s) => fs.readdir(self.obj(s), 0, LIST).await.map(drop),
            Act::Xattr(s) => fs.listxattr(self.obj(s)).await.map(drop),
            Act::SyncFs => fs.sync_fs().await,
        }
    }

    async fn act_open(&self, obj: ObjectId) -> Result<()> {
        self.fs.open_file(obj).await?;
        *self.opens.borrow_mut().entry(obj.0).or_default() += 1;
        Ok(())
    }

    /// Makes, removes, moves or links.
    async fn change(&self, act: Act) -> Result<()> {
        let (fs, cred) = (&self.fs, Cred::new(0, 0));
        match act {
            Act::Make(s) => {
                let (dir, name) = (self.obj(self.slots[s].dir), name_of(s as u64));
                let made = match self.slots[s].is_dir {
                    true => fs.mkdir(dir, &name, 0o755, &cred).await,
                    false => fs.create(dir, &name, 0o644, &cred, true).await,
                };
                // Whoever waits for it must go on, and fails.
                let obj = made.as_ref().map_or(ObjectId(0), |a| a.obj);
                self.places.borrow_mut()[s] = Place { obj: Some(obj), dir, name: s as u64 };
                self.made.notify_all();
                made?;
                // Whoever makes a file has it open.
                if self.slots[s].is_dir { Ok(()) } else { self.act_open(obj).await }
            }
            Act::Remove(s) => {
                let (place, name) = (self.place(s), name_of(self.place(s).name));
                match self.slots[s].is_dir {
                    true => fs.rmdir(place.dir, &name).await,
                    false => fs.unlink(place.dir, &name).await,
                }
            }
            Act::Move(s, dir) => {
                let (place, to, name) = (self.place(s), self.obj(dir), self.new_name());
                let how = RenameFlags::default();
                fs.rename(place.dir, &name_of(place.name), to, &name_of(name), how).await?;
                self.places.borrow_mut()[s] = Place { dir: to, name, ..place };
                Ok(())
            }
            Act::Link(s, dir) => {
                let name = name_of(self.new_name());
                fs.link(self.obj(s), self.obj(dir), &name).await.map(drop)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use rt::oplog::{Header, OpRecord};
    use rt::trace::FsOp;

    use super::*;

    /// Three clients that each make a file, write it 30 times, read what was there before, make
    /// theirs durable and remove it; with 1 ms of their own between operations.
    fn recording() -> Recording {
        let mut ops = Vec::new();
        for client in 1..=3u32 {
            let file = 100 + u64::from(client);
            let mut at = u64::from(client) * 100;
            let mut add = |kind, object, target, offset, len, sync| {
                at += 1000;
                let took = Nanos::from_us(200);
                let op = FsOp { kind, client, dataset: 7, object, target, offset, len, sync, ok: true, took };
                ops.push(OpRecord { end: Nanos::from_us(at + 200), op });
                at += 200;
            };
            add(OpKind::Lookup, 3, 0, 0, 0, false);
            add(OpKind::Create, 3, file, 0, 0, false);
            (0..30).for_each(|n| add(OpKind::Write, file, 0, n * 8192, 8192, n % 3 == 0));
            (0..10).for_each(|n| add(OpKind::Read, 50, 0, n * 65_536, 4096, false));
            add(OpKind::Fsync, file, 0, 0, 0, false);
            add(OpKind::GetAttr, file, 0, 0, 0, false);
            add(OpKind::Release, file, 0, 0, 0, false);
            add(OpKind::Remove, 3, 0, 0, 0, false);
        }
        ops.sort_by_key(|o| o.end);
        let pairs = vec![("dataset.7.recordsize".into(), "8192".into()), ("dataset.7.atime".into(), "off".into())];
        Recording { header: Header { pairs }, ops, lost: 0, span: Some(Nanos::from_ms(60)), worked: None }
    }

    fn replay(model: &str, layout: &str, seed: u64) -> Report {
        let layout = LayoutSpec::parse(layout).unwrap();
        replay_of(layout, model, seed).run(&recording()).unwrap()
    }

    fn replay_of(layout: LayoutSpec, model: &str, seed: u64) -> Replay {
        let opts = EngineOpts::for_memory(1 << 30);
        Replay {
            layout,
            model: model.into(),
            log_model: None,
            props: Vec::new(),
            opts,
            cores: 2,
            ashift: 12,
            seed,
            warm: false,
            thread: Thread::default(),
        }
    }

    #[test]
    fn a_recording_is_replayed_on_any_devices() {
        let fast = replay("fixed:50:2000", "single", 1);
        assert_eq!((fast.ops, fast.failed), (recording().ops.len() as u64, 0), "{fast:?}");
        assert_eq!(fast, replay("fixed:50:2000", "single", 1), "equal seeds, equal reports");
        let slow = replay("fixed:5000:2000", "single", 1);
        let of = |r: &Report, kind: &str| {
            let found = r.kinds.iter().find(|k| k.kind == kind).unwrap();
            (found.count, found.recorded.p50_us, found.predicted.p50_us)
        };
        assert_eq!((of(&fast, "write").0, of(&fast, "read").0, of(&fast, "remove").0), (90, 30, 3));
        assert_eq!(of(&fast, "write").1, 200.0);
        // The first read of what was there before takes as long as the device.
        let part = |r: &Report, name: &str| r.parts[name];
        assert!(part(&slow, "read_disk.p99_us") >= 5000.0 && part(&fast, "read_disk.p99_us") < 1000.0, "{slow:?}");
        assert!(part(&slow, "log_write.mean_us") > part(&fast, "log_write.mean_us"), "{slow:?}");
        // What is durable waits for the device; what is read was not in the cache.
        assert!(of(&fast, "fsync").2 < 1000.0, "{fast:?}");
        assert!(of(&slow, "fsync").2 >= 5000.0, "{slow:?}");
        assert!(slow.kinds.iter().find(|k| k.kind == "read").unwrap().predicted.max_us >= 5000.0, "{slow:?}");
        // Clients keep their own time, 46 ms each, and wait longer on the slow one.
        assert!(fast.predicted_seconds >= 0.046, "{fast:?}");
        assert!(slow.predicted_seconds > fast.predicted_seconds + 0.050, "{slow:?}");
    }

    #[test]
    fn a_warm_cache_has_what_is_there_before() {
        let warm = Replay { warm: true, ..replay_of(LayoutSpec::single(), "fixed:5000:2000", 1) };
        let r = warm.run(&recording()).unwrap();
        assert!(r.kinds.iter().find(|k| k.kind == "read").unwrap().predicted.max_us < 1000.0, "{r:?}");
        // The recording's reads took 200 us.
        assert!(warm.looks_warm(&recording()).unwrap());
        let slow = Recording { ops: recording().ops.into_iter().map(slower).collect(), ..recording() };
        assert!(!warm.looks_warm(&slow).unwrap());
    }

    #[test]
    fn the_thread_is_as_slow_as_recorded() {
        let base = replay_of(LayoutSpec::single(), "fixed:50:2000", 1);
        assert_eq!(base.recorded_thread(&recording()).unwrap(), Thread::default(), "not known");
        let known = base.run(&recording()).unwrap().worked_seconds[1];
        let idle = Recording { worked: Some(Nanos(1000)), ..recording() };
        assert_eq!(base.recorded_thread(&idle).unwrap(), Thread::default());
        let busy = Recording { worked: Some(Nanos((known * 1e9) as u64 + 6_000_000)), ..recording() };
        let thread = base.recorded_thread(&busy).unwrap();
        assert!(thread.request == REQUEST_MAX && thread.percent > 200, "{thread:?}");
        let report = Replay { thread, ..base.clone() }.run(&busy).unwrap();
        let [recorded, replayed] = report.worked_seconds;
        // A slower engine has fewer, larger log blocks, so it is not exact.
        assert!((replayed / recorded - 1.0).abs() < 0.1, "{recorded} {replayed}");
        // Three clients wait for the one thread.
        let p99 = |r: &Report| r.groups.iter().find(|g| g.kind == "writes").unwrap().predicted.p99_us;
        assert!(p99(&report) > p99(&base.run(&busy).unwrap()) + 20.0, "{report:?}");
        // One that was recorded as slower than any is not believed.
        let stopped = Recording { worked: Some(Nanos(60_000_000_000)), ..recording() };
        assert_eq!(base.recorded_thread(&stopped).unwrap().percent, PERCENT_MAX as u64);
    }

    fn slower(mut o: OpRecord) -> OpRecord {
        if o.op.kind == OpKind::Read {
            (o.op.took, o.end) = (Nanos::from_ms(5), o.end + Nanos::from_ms(5));
        }
        o
    }

    #[test]
    fn free_space_is_as_recorded() {
        let mut r = recording();
        let of = |r: &Recording, layout| {
            replay_of(LayoutSpec::parse(layout).unwrap(), "nvme", 0).device_size(r, 2 << 30, 1 << 30)
        };
        assert_eq!(of(&r, "single"), 17 << 30, "ample");
        r.header.pairs.push(("device_free".into(), (1u64 << 30).to_string()));
        let gib = (1u64 << 30) as f64;
        let near = |size: u64, want: f64| (size as f64 / gib - want).abs() < 0.01;
        assert!(near(of(&r, "single"), 3.2) && near(of(&r, "raidz1:3"), 2.1), "{}", of(&r, "single"));
        r.header.pairs.last_mut().unwrap().1 = u64::MAX.to_string();
        assert_eq!(of(&r, "single"), 17 << 30, "never more than can be used");
        r.header.pairs.last_mut().unwrap().1 = "0".into();
        assert_eq!(replay_of(LayoutSpec::single(), "nvme", 0).device_size(&r, 0, 0), SIZE_MIN);
    }

    #[test]
    fn layouts_are_used() {
        let r = replay("nvme", "raidz1:3,log-single", 2);
        assert_eq!(r.failed, 0, "{r:?}");
        let bad = replay_of(LayoutSpec::parse("log-single").unwrap(), "nvme", 0);
        assert!(bad.run(&recording()).is_err(), "a pool of a log alone");
        assert!(Replay { model: "tape".into(), ..bad }.check().is_err());
    }
}
