//! Pools are filled to the last block, in every way at once, and must return ENOSPC: never be
//! suspended, never lose written data.
//!
//! A seed draws a layout, an allocation unit, record size, copies, compression, encryption, limits,
//! whether blocks are stored in pieces (gang blocks), and the mixture of operations that fill:
//! large files, thousands of small ones, file systems, attributes, overwriting blocks of a
//! snapshot, synchronous writes, several writers at once, files between which others are removed. A
//! *round*:
//!
//! 1. operations until every kind that takes space was refused several times in a row;
//! 2. snapshots are destroyed, a tenth of the files is removed or truncated, properties change, all
//!    of which must work; then writing must work again.
//!
//! Of some seeds the disks of the first round are recorded from before its first refusal until room
//! was made: power is cut at completions of that time. The pool imports then, holds every append to
//! the *tracked* files that was acknowledged, and after removing files it can be written. Tracked
//! files take synchronous appends only.
//!
//! A quarter of the seeds have *rewrites*: in a pool nearly full a part of a file is written over
//! again within one txg until its log needs more than the pool has left, and made durable beside
//! appends to the tracked files. These commits find no room for a log block, and must wait for
//! their txg.
//!
//! Where tracked files hold more than three quarters of all bytes, which a tenth of the others
//! would not bring back, the largest of them is emptied before room is made.
//!
//! Everything is compared with the model, with nothing in the cache, and after an export and an
//! import.
//!
//! The parameters are in [`plan`], the operations in [`ops`], power cuts in [`mod@recover`].

mod ops;
mod plan;
mod recover;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use base::{ErrorKind, Nanos, ObjectId};
use bdev::Bytes;
use dsl::crypto::{KeyFormat, KeyMaterial, NewCrypt, NewKey};
use dsl::props::PropValue;
use sim::{DiskImage, DiskLog, Rng, SimHandle};
use spa::Pool;
use zpl::{Cred, MountOpts, Zfs};

pub use self::plan::{KINDS, Kind, Limit, Plan};
use self::recover::recover;
use crate::campaign::panic_text;
use crate::cuts::completions;
use crate::lab::{Lab, Layout, POOL, Shape};
use crate::losses::cold;
use crate::{Check, Fault};

/// The most simulated time that a seed may take.
const SPAN_MAX: Nanos = Nanos::from_secs(24 * 3600);
/// Refusals in a row of a kind after which it counts as filled.
const REFUSALS: u64 = 4;
/// Operations of a fill at most.
const OPS_MAX: u64 = 60_000;
/// Txgs within which removed space can be written again: frees are deferred for two, and large
/// files are freed in the background.
const TXGS_BACK: u64 = 12;
/// Power cuts of one seed.
const CUTS: u64 = 6;
/// Operations that are recorded at most.
const OPS_RECORDED: u64 = 1500;
/// Files of synchronous appends.
const TRACKED: usize = 6;
/// Writers of a burst.
const WRITERS: usize = 8;
/// Bytes that are written over at most in one txg.
const REWRITTEN_MAX: u64 = 256 << 20;
/// The key of encrypted ones.
const KEY: &[u8] = b"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";

/// Totals of many seeds.
#[derive(Clone, Copy, Default, Debug)]
pub struct Met {
    /// Operations that were refused with ENOSPC or EDQUOT.
    pub refused: u64,
    /// Gang blocks written.
    pub gangs: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Appends acknowledged before a cut.
    pub acks: u64,
    /// Commits that found no room for a log block and waited for their txg.
    pub stalls: u64,
}

impl Met {
    /// The figures as a state file has them.
    pub fn figures(&self) -> Vec<u64> {
        vec![self.refused, self.gangs, self.cuts, self.acks, self.stalls]
    }
}

struct File {
    obj: ObjectId,
    data: Vec<u8>,
    xattr: Option<Vec<u8>>,
}

/// A tracked file while its disks are recorded: from which completion on how much of it is durable.
struct Grown {
    name: Vec<u8>,
    data: Vec<u8>,
    durable: Vec<(u64, usize)>,
}

/// The recording of the disks and files.
type Recorded = (Vec<DiskLog>, Vec<Grown>);

/// Disks that a seed leaves, exported.
pub struct Filled {
    /// At the end.
    pub images: Vec<DiskImage>,
    /// After the last power cut and the recovery from it.
    pub recovered: Option<Vec<DiskImage>>,
}

struct Filler {
    lab: Rc<Lab>,
    handle: SimHandle,
    layout: Layout,
    plan: Plan,
    rng: Rng,
    pool: Rc<Pool>,
    fs: Rc<Zfs>,
    files: BTreeMap<Vec<u8>, File>,
    others: Vec<String>,
    snapshots: Vec<String>,
    next: u64,
    met: Met,
    tracked: Vec<Vec<u8>>,
    folders: Vec<Vec<u8>>,
    /// While the disks are recorded.
    grown: Option<Vec<Grown>>,
}

fn is_full(e: &base::Error) -> bool {
    matches!(e.kind(), ErrorKind::NoSpace | ErrorKind::Quota)
}

fn context(what: &'static str) -> impl FnOnce(base::Error) -> Fault {
    move |e| format!("{what}: {e:?}")
}

/// Mounts the file system to fill, with its key.
async fn mount(pool: &Rc<Pool>, plan: &Plan) -> Check<Rc<Zfs>> {
    let ds = pool.dsl().find(&plan.home()).map_err(context("find"))?;
    if plan.sealed {
        match pool.dsl().load_key(&plan.home(), &KeyMaterial::new(KEY), false).await {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::Exists => {}
            Err(e) => return Err(format!("loading the key: {e:?}")),
        }
    }
    Zfs::open(&ds, MountOpts::from_props(&ds)).await.map_err(context("mount"))
}

impl Filler {
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.rng.fill(&mut data);
        if self.plan.compression != "off" && self.rng.percent(30) {
            // Half of it compresses.
            data[..len / 2].fill(7);
        }
        data
    }

    fn name(&mut self) -> Vec<u8> {
        self.next += 1;
        format!("f{:06}", self.next).into_bytes()
    }

    fn pick(&mut self) -> Option<Vec<u8>> {
        let free: Vec<&Vec<u8>> = self.files.keys().filter(|n| !self.tracked.contains(n)).collect();
        if free.is_empty() {
            return None;
        }
        let at = self.rng.below(free.len() as u64) as usize;
        Some(free[at].clone())
    }

    fn alive(&self) -> Check {
        match self.pool.suspended() {
            Some(e) => Err(format!("the pool is suspended: {e:?}")),
            None => Ok(()),
        }
    }

    /// Writes, and notes how much was written; false if nothing was, for lack of space.
    async fn put(&mut self, name: &[u8], off: u64, data: Vec<u8>, sync: bool) -> Check<bool> {
        let file = self.files.get_mut(name).expect("only files of the model are written");
        let buf = Bytes::copy_from(&data);
        let got = match sync {
            true => self.fs.write_sync(file.obj, off, vec![buf], false).await,
            false => self.fs.write(file.obj, off, vec![buf], false).await,
        };
        match got {
            Ok((done, _)) => {
                let (off, done) = (off as usize, done as usize);
                if file.data.len() < off + done {
                    file.data.resize(off + done, 0);
                }
                file.data[off..off + done].copy_from_slice(&data[..done]);
                Ok(done > 0)
            }
            Err(e) if is_full(&e) => Ok(false),
            Err(e) => Err(format!("write: {e:?}")),
        }
    }

    async fn create(&mut self) -> Check<Option<Vec<u8>>> {
        let name = self.name();
        match self.fs.create(self.fs.root(), &name, 0o644, &Cred::new(0, 0), true).await {
            Ok(a) => {
                self.files.insert(name.clone(), File { obj: a.obj, data: Vec::new(), xattr: None });
                Ok(Some(name))
            }
            Err(e) if is_full(&e) => Ok(None),
            Err(e) => Err(format!("create: {e:?}")),
        }
    }

    async fn remove(&mut self, name: &[u8]) -> Check {
        self.fs.unlink(self.fs.root(), name).await.map_err(context("unlink on a full pool"))?;
        self.files.remove(name);
        Ok(())
    }

    /// Makes the tracked files.
    async fn track(&mut self) -> Check {
        while self.tracked.len() < TRACKED {
            let name = self.create().await?.ok_or("an empty pool is full")?;
            self.tracked.push(name);
        }
        Ok(())
    }

    /// From now on the disks are recorded.
    async fn record(&mut self) -> Check {
        self.lab.start_logs(&self.pool).await?;
        let now = self.handle.io_seq();
        let grown = self.tracked.iter().map(|name| {
            let data = self.files[name].data.clone();
            Grown { name: name.clone(), durable: vec![(now, data.len())], data }
        });
        self.grown = Some(grown.collect());
        Ok(())
    }

    /// Operations until each kind was refused several times in a row, or so many after it is nearly
    /// full where that is to be recorded.
    async fn fill(&mut self, recorded: bool) -> Check {
        let mut refused = [0u64; KINDS.len()];
        let (mut first, mut rewrites) = (None, self.plan.rewrites);
        let total: u64 = self.plan.weights.iter().sum();
        for n in 0..OPS_MAX {
            let mut at = self.rng.below(total);
            let mut k = 0;
            while at >= self.plan.weights[k] {
                at -= self.plan.weights[k];
                k += 1;
            }
            if first.is_some() && self.rng.percent(15) {
                self.append_tracked().await?;
            }
            match self.step(KINDS[k]).await {
                Ok(true) => refused[k] = 0,
                Ok(false) => {
                    refused[k] += 1;
                    self.met.refused += 1;
                }
                Err(e) => return Err(format!("operation {n}, {:?}: {e}", KINDS[k])),
            }
            self.alive()?;
            if recorded && first.is_none() && (self.is_nearly_full() || refused.iter().any(|&r| r > 0)) {
                first = Some(n);
                self.record().await?;
            }
            if rewrites && self.is_nearly_full() {
                rewrites = false;
                self.rewrite().await.map_err(|e| format!("operation {n}, rewriting: {e}"))?;
            }
            match self.rng.below(400) {
                0 => self.pool.sync().await.map_err(context("sync"))?,
                1..=9 => self.pool.txg().kick(),
                10 if self.plan.snapshots => self.snapshot().await?,
                11 => self.tidy().await?,
                _ => {}
            }
            let takes = |k: usize| self.plan.weights[k] > 0 && KINDS[k] != Kind::Rename;
            let full = (0..KINDS.len()).all(|k| !takes(k) || refused[k] >= REFUSALS);
            if full || first.is_some_and(|first| n > first + OPS_RECORDED) {
                return Ok(());
            }
        }
        // Small changes may be taken for ever where compression or overwriting makes them free.
        Ok(())
    }

    async fn snapshot(&mut self) -> Check {
        let name = format!("{}@s{}", self.plan.home(), self.snapshots.len());
        match self.pool.dsl().snapshot(vec![name.clone()], false, Vec::new()).await {
            Ok(()) => self.snapshots.push(name),
            Err(e) if is_full(&e) => self.met.refused += 1,
            Err(e) => return Err(format!("snapshot: {e:?}")),
        }
        Ok(())
    }

    /// Administrative operations on a full pool.
    async fn tidy(&mut self) -> Check {
        if let Some(name) = self.pick() {
            let len = self.files[&name].data.len() / 2;
            let file = self.files.get_mut(&name).expect("picked");
            self.fs.truncate(file.obj, len as u64).await.map_err(context("truncate"))?;
            file.data.truncate(len);
        }
        let value = PropValue::Num(0);
        self.pool.dsl().set_props(POOL, vec![("quota".into(), value)]).await.map_err(context("setting a property"))
    }

    async fn compare(&mut self) -> Check {
        cold(&self.pool);
        for (name, file) in &self.files {
            let text = String::from_utf8_lossy(name);
            let a = self.fs.lookup(self.fs.root(), name).await.map_err(|e| format!("{text}: {e:?}"))?;
            if a.size != file.data.len() as u64 {
                return Err(format!("{text} has {} bytes, should have {}", a.size, file.data.len()));
            }
            let parts = self.fs.read(a.obj, 0, a.size).await.map_err(|e| format!("{text}: {e:?}"))?;
            let mut at = 0;
            for part in parts {
                if part[..] != file.data[at..at + part.len()] {
                    return Err(format!("{text}: other bytes after {at}"));
                }
                at += part.len();
            }
            if let Some(value) = &file.xattr {
                match self.fs.getxattr(a.obj, b"user.x").await {
                    Ok(got) if got == *value => {}
                    got => {
                        return Err(format!("{text}: attribute of {} bytes: {:?}", value.len(), got.map(|g| g.len())));
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes room, which must work, and uses it.
    async fn relieve(&mut self) -> Check {
        self.pool.sync().await.map_err(context("sync of a full pool"))?;
        let snapshots = std::mem::take(&mut self.snapshots);
        if !snapshots.is_empty() {
            // Removing files that snapshots hold frees nothing, and must work all the same.
            if let Some(name) = self.pick() {
                self.remove(&name).await?;
            }
            self.pool.dsl().destroy_snapshots(snapshots, false).await.map_err(context("destroying snapshots"))?;
        }
        let names: Vec<Vec<u8>> = self.files.keys().filter(|n| !self.tracked.contains(n)).cloned().collect();
        let tenth = names.len().div_ceil(10);
        // Remove the largest, so that it frees a useful amount.
        let mut by_size = names.clone();
        by_size.sort_by_key(|n| std::cmp::Reverse(self.files[n].data.len()));
        for name in by_size.iter().take(tenth) {
            self.remove(name).await?;
        }
        let tenth = self.folders.len().div_ceil(10);
        for name in self.folders.drain(..tenth) {
            self.fs.rmdir(self.fs.root(), &name).await.map_err(context("rmdir"))?;
        }
        for name in self.others.split_off(self.others.len() / 2) {
            self.pool.dsl().destroy_fs(&name).await.map_err(context("destroying a file system"))?;
        }
        self.tidy().await?;
        self.alive()?;
        for _ in 0..TXGS_BACK {
            self.pool.sync().await.map_err(context("sync after removing"))?;
            self.handle.rt().sleep(Nanos::from_ms(50)).await;
        }
        let Some(name) = self.create().await? else {
            return Err(format!("no file can be made after a tenth of the files is gone: {}", self.space()));
        };
        let data = self.bytes(4096);
        if !self.put(&name, 0, data, false).await? {
            return Err(format!("nothing can be written after a tenth of the files is gone: {}", self.space()));
        }
        self.pool.sync().await.map_err(context("sync"))?;
        self.alive()
    }

    /// Ends the recording of the disks.
    fn recorded(&mut self) -> Option<Recorded> {
        let grown = self.grown.take()?;
        Some((self.lab.disks.iter().filter_map(|d| d.take_log()).collect(), grown))
    }

    /// Bytes of the tracked files, and of all files.
    fn sizes(&self) -> (usize, usize) {
        let tracked = self.tracked.iter().map(|n| self.files[n].data.len()).sum();
        (tracked, self.files.values().map(|f| f.data.len()).sum())
    }

    /// Most bytes are in files that are never removed.
    fn is_mostly_tracked(&self) -> bool {
        let (tracked, all) = self.sizes();
        tracked > all / 4 * 3
    }

    /// Empties the largest tracked file, which must work on a full pool.
    async fn truncate_tracked(&mut self) -> Check {
        let Some(name) = self.tracked.iter().max_by_key(|n| self.files[*n].data.len()) else { return Ok(()) };
        let file = self.files.get_mut(name).expect("tracked files stay");
        self.fs.truncate(file.obj, 0).await.map_err(context("truncate"))?;
        file.data.clear();
        Ok(())
    }

    /// Less than a sixth is left.
    fn is_nearly_full(&self) -> bool {
        let dsl = self.pool.dsl();
        let (used, size) = (dsl.root().phys().used_bytes, dsl.space().adjusted(dsl::space::SpaceCheck::Normal));
        used > size - size / 6
    }

    fn space(&self) -> String {
        let dsl = self.pool.dsl();
        let (tracked, all) = self.sizes();
        let home = dsl.find(&self.plan.home()).map(|ds| ds.dir().phys().used_bytes).unwrap_or(0);
        format!(
            "{:?}, used {}, home {home}; {} files of {all} bytes, {tracked} of them tracked, {} folders, {} file systems",
            dsl.space(),
            dsl.root().phys().used_bytes,
            self.files.len(),
            self.folders.len(),
            self.others.len()
        )
    }
}

fn new_fs_of(sim: &SimHandle) -> dsl::Init {
    let time = sim.rt().wall_clock();
    zpl::init_fs(zpl::InitOwner { uid: 0, gid: 0, mode: 0o755, time }, zpl::FsCreateProps::default())
}

/// The layout of a seed in that shape.
pub fn layout(rng: &mut Rng, shape: &'static Shape) -> Layout {
    let size = (64 + rng.below(64)) << 20;
    let mut layout = Layout::draw(rng, size);
    layout.features = ondisk::feature::features_of_2_1();
    layout = layout.shaped(shape, rng);
    layout.ashift = 9 + rng.below(5) as u8;
    layout
}

/// The engine's settings.
fn opts(layout: &Layout, plan: &Plan) -> spa::EngineOpts {
    let mut opts = layout.opts();
    opts.zio.gang_above = plan.gang_above;
    opts
}

/// A pool as planned, empty.
async fn create(lab: &Lab, layout: &Layout, plan: &Plan) -> Check<Rc<Pool>> {
    let mut props: Vec<(String, PropValue)> = vec![
        ("atime".into(), PropValue::Num(0)),
        ("recordsize".into(), PropValue::Num(plan.recordsize)),
        ("copies".into(), PropValue::Num(plan.copies)),
    ];
    let parse = |name: &str, value: &str| dsl::props::find(name).expect("known").parse(value).expect("a value of it");
    props.push(("compression".into(), parse("compression", plan.compression)));
    if plan.dedup {
        props.push(("dedup".into(), parse("dedup", "on")));
    }
    let pool = lab.create(layout, props).await.map_err(context("create"))?;
    pool.tune(&opts(layout, plan));
    let (new, number) = (new_fs_of(&lab.sim), PropValue::Num);
    let limit = match plan.limit {
        Limit::Pool => Vec::new(),
        Limit::Quota(n) => vec![("quota".to_string(), number(n))],
        Limit::Refquota(n) => vec![("refquota".to_string(), number(n))],
        Limit::Reserved(n) => {
            let held = vec![("reservation".to_string(), number(n))];
            let made = pool.dsl().create_fs(&format!("{POOL}/held"), held, new_fs_of(&lab.sim)).await;
            match made {
                Err(e) if !is_full(&e) => return Err(format!("creating a reservation: {e:?}")),
                _ => Vec::new(),
            }
        }
    };
    if plan.home() != POOL {
        let material = KeyMaterial::new(KEY);
        let key = NewKey { format: KeyFormat::Hex, material, iters: None, location: "prompt".into() };
        let crypt = match plan.sealed {
            true => NewCrypt { suite: Some(Some(zio::crypto::Suite::Aes256Gcm)), key: Some(key) },
            false => NewCrypt::default(),
        };
        pool.dsl().create_fs_encrypted(&plan.home(), limit, crypt, new).await.map_err(context("creating the home"))?;
    }
    Ok(pool)
}

async fn live(lab: Rc<Lab>, layout: Layout, plan: Plan, rng: Rng, met: &mut Met) -> Check<Recorded> {
    let pool = create(&lab, &layout, &plan).await?;
    let fs = mount(&pool, &plan).await?;
    let handle = lab.sim.handle();
    let mut f = Filler {
        lab: lab.clone(),
        handle,
        layout,
        plan,
        rng,
        pool,
        fs,
        files: BTreeMap::new(),
        others: Vec::new(),
        snapshots: Vec::new(),
        next: 0,
        met: *met,
        tracked: Vec::new(),
        folders: Vec::new(),
        grown: None,
    };
    let done = rounds(&mut f).await;
    f.met.gangs += f.pool.zio().stats().gangs;
    f.met.stalls += f.fs.log().map_or(0, |log| log.stats().stalls);
    *met = f.met;
    let recorded = done.map_err(|e| format!("{e}\n    {}", f.space()))?;
    f.fs.unmount().await.map_err(context("unmount"))?;
    f.pool.export().await.map_err(context("export"))?;
    f.pool = lab.import(false, opts(&f.layout, &f.plan)).await.map_err(context("import"))?;
    f.fs = mount(&f.pool, &f.plan).await?;
    f.compare().await.map_err(|e| format!("imported: {e}"))?;
    f.fs.unmount().await.map_err(context("unmount"))?;
    f.pool.export().await.map_err(context("export"))?;
    Ok(recorded)
}

async fn rounds(f: &mut Filler) -> Check<Recorded> {
    let mut recorded = None;
    f.track().await?;
    for round in 0..2 {
        f.fill(round == 0 && f.plan.cuts).await.map_err(|e| format!("round {round}: {e}"))?;
        f.compare().await.map_err(|e| format!("round {round}, full: {e}"))?;
        if f.is_mostly_tracked() {
            // A tenth of the other files would free too little. Truncating a tracked file removes
            // acknowledged data, so the recording ends first.
            recorded = f.recorded().or(recorded);
            f.truncate_tracked().await.map_err(|e| format!("round {round}, tracked files: {e}"))?;
        }
        f.relieve().await.map_err(|e| format!("round {round}, making room: {e}"))?;
        recorded = f.recorded().or(recorded);
        f.compare().await.map_err(|e| format!("round {round}, with room: {e}"))?;
    }
    Ok(recorded.unwrap_or_default())
}

/// Runs a seed; its disks at the end, exported.
pub fn run_seed(seed: u64, shape: &'static Shape, met: &mut Met) -> Check<Filled> {
    let mut rng = Rng::stream(seed, 0xf111);
    let (layout, plan) = (layout(&mut rng, shape), Plan::draw(&mut rng));
    run(seed, layout, plan, met)
}

/// Runs a seed on such a pool.
pub fn run(seed: u64, layout: Layout, plan: Plan, met: &mut Met) -> Check<Filled> {
    let rng = Rng::stream(seed, 0xf112);
    let text = format!("{} of {:?}, ashift {}, {plan:?}", layout.shape.name, layout.devices, layout.ashift);
    let lab = Rc::new(Lab::new(seed, &layout));
    let result = catch_unwind(AssertUnwindSafe(|| {
        let work = live(lab.clone(), layout.clone(), plan.clone(), rng, met);
        lab.sim.try_block_on_for(SPAN_MAX, work).map_err(|report| format!("stalled: {report}"))?
    }));
    let (logs, grown) = match result {
        Ok(Ok(recorded)) => recorded,
        Ok(Err(e)) => {
            std::mem::forget(lab);
            return Err(format!("{text}: {e}"));
        }
        Err(panic) => {
            std::mem::forget(lab);
            return Err(format!("{text}: panic: {}", panic_text(&*panic)));
        }
    };
    let moments = completions(&logs);
    let mut rng = Rng::stream(seed, 0xf113);
    let mut recovered = None;
    for _ in 0..if moments.is_empty() { 0 } else { CUTS } {
        let at = moments[rng.below(moments.len() as u64) as usize];
        let images = (0..).zip(&logs).map(|(d, l)| l.cut_at(at, seed ^ (d << 33))).collect();
        met.cuts += 1;
        let cut = || recover(images, (&layout, &plan), &grown, at, rng.next_u64());
        let cut = catch_unwind(AssertUnwindSafe(cut));
        let cut = cut.unwrap_or_else(|p| Err(format!("panic: {}", panic_text(&*p))));
        recovered = Some(cut.map_err(|e| format!("{text}: power cut at {at}: {e}"))?);
    }
    Ok(Filled { images: lab.images(), recovered })
}
