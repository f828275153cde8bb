//! Power cuts under synchronous load: acknowledged changes are there, nothing is torn, nothing
//! comes from the future (docs/campaigns.md).
//!
//! One recorded run of several tasks, each with a folder of its own, gives as many crashes as one
//! likes: the disks as a cut right after any completion may leave them. Each crash is imported,
//! claimed, replayed and compared. A task records of each of its changes when it was begun and from
//! when on it was durable, both as the number of the last device operation of the world; at a cut
//! each file, and each folder, must be in one of the states from the last durable one to the last
//! that was begun.
//!
//! A write that was not acknowledged may be there in part, in whole units.
//!
//! In pools with every feature tasks clone files too. The checker looks at some of the pools after
//! replay, and counts the references of blocks.
//!
//! * *lost*: something durable is not there;
//! * *future*: something is there that had not been begun;
//! * *torn*: a unit of data is of no version, or the pool does not import, replay or unmount.
//!
//! Some crashes are cut again while they are replayed: that must give the same. A load may also
//! meet [`Trouble`].

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{ErrorKind, Nanos};
use bdev::Bytes;
use dsl::crypto::{KeyFormat, KeyMaterial, NewCrypt, NewKey};
use dsl::props::PropValue;
use sim::{DiskLog, Rng, SimHandle};
use spa::{Bias, GroupKind, ImportOpts, Pool};
use txg::TxgPool;
use zil::{CommitPolicy, ZilStats, ZilTunables};
use zio::ZioOpts;
use zio::crypto::Suite;
use zpl::{Cred, MountOpts, SyncMode, Zfs};

pub use crate::cutting::{Cutting, ZilTally};
use crate::cutting::{Recording, Subject, cut_recording, run_world};
use crate::lab::{Lab, Layout, POOL, Shape, new_fs};
use crate::zilload::{Actor, Story, stand_by, text};
use crate::zilseen::{Seen, Wrong};
use crate::ziltrouble::{Schedule, Trouble, log_disks};
use crate::{Check, Fault};

const fn shape(name: &'static str, groups: &'static [(GroupKind, Bias, usize)]) -> Shape {
    Shape { name, groups, spares: 0, caches: 0 }
}

/// Layouts of the campaign: each kind of pool, with and without log devices.
pub const SHAPES: &[Shape] = &[
    shape("single", &[(GroupKind::Single, Bias::Normal, 1)]),
    shape("stripe", &[(GroupKind::Single, Bias::Normal, 1), (GroupKind::Single, Bias::Normal, 1)]),
    shape("mirror", &[(GroupKind::Mirror, Bias::Normal, 2)]),
    shape("raidz1", &[(GroupKind::Raidz(1), Bias::Normal, 3)]),
    shape("raidz2", &[(GroupKind::Raidz(2), Bias::Normal, 4)]),
    shape("raidz3", &[(GroupKind::Raidz(3), Bias::Normal, 5)]),
    shape("single-log", &[(GroupKind::Single, Bias::Normal, 1), (GroupKind::Single, Bias::Log, 1)]),
    shape(
        "stripe-logs",
        &[
            (GroupKind::Single, Bias::Normal, 1),
            (GroupKind::Single, Bias::Normal, 1),
            (GroupKind::Single, Bias::Log, 1),
            (GroupKind::Single, Bias::Log, 1),
        ],
    ),
    shape("mirror-log", &[(GroupKind::Mirror, Bias::Normal, 2), (GroupKind::Mirror, Bias::Log, 2)]),
    shape("raidz1-log", &[(GroupKind::Raidz(1), Bias::Normal, 3), (GroupKind::Single, Bias::Log, 1)]),
];

/// The folders that the load changes.
struct Folders {
    stories: Vec<Rc<Story>>,
    /// The file system is encrypted.
    sealed: bool,
}

impl Subject for Folders {
    type Open = Rc<Zfs>;
    type Seen = Seen;

    async fn open(&self, pool: &Rc<Pool>) -> Result<(Rc<Zfs>, u64), Wrong> {
        let opened = open(pool, self.sealed, MountOpts::default()).await;
        let fs = opened.map_err(|e| Wrong::Torn(format!("mount: {e:?}")))?;
        let replayed = fs.replayed();
        match replayed.failed {
            Some(e) => Err(Wrong::Torn(format!("replay: {e:?}"))),
            None => Ok((fs, replayed.applied)),
        }
    }
    async fn look(&self, fs: &Rc<Zfs>) -> Result<Seen, Wrong> {
        Seen::look(&self.stories, fs).await
    }
    async fn close(&self, fs: Rc<Zfs>) -> Result<(), Wrong> {
        fs.unmount().await.map_err(|e| Wrong::Torn(format!("unmount: {e:?}")))
    }
    fn judge(&self, seen: &Seen, at: u64) -> Result<(), Wrong> {
        seen.judge(&self.stories, at)
    }
    fn clones(&self) -> u64 {
        self.stories.iter().map(|s| s.clones.get()).sum()
    }
}

/// The key of encrypted file systems.
pub(crate) fn key() -> KeyMaterial {
    KeyMaterial::new(b"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f")
}

/// The file system that the load uses.
pub(crate) fn dataset(sealed: bool) -> String {
    if sealed { format!("{POOL}/sealed") } else { POOL.to_string() }
}

/// Opens it after an import, with its key.
pub(crate) async fn open(pool: &Rc<Pool>, sealed: bool, how: MountOpts) -> base::Result<Rc<Zfs>> {
    let name = dataset(sealed);
    if sealed {
        match pool.dsl().load_key(&name, &key(), false).await {
            // Since it was created.
            Err(e) if e.kind() != ErrorKind::Exists => return Err(e),
            _ => {}
        }
    }
    Zfs::open(&pool.dsl().find(&name)?, how).await
}

/// Opens it for a load.
pub(crate) async fn mount(
    pool: &Rc<Pool>,
    sealed: bool,
    how: MountOpts,
    recordsize: u32,
    tun: ZilTunables,
) -> Check<Rc<Zfs>> {
    pool.dsl().intent_logs().set_tunables(tun);
    let fs = open(pool, sealed, how).await.map_err(text)?;
    let mut props = fs.objset().props();
    props.recordsize = recordsize;
    fs.objset().set_props(props);
    fs.log().ok_or("no log")?;
    Ok(fs)
}

/// Leaves hardly any room in a pool.
async fn fill(pool: &Pool, fs: &Zfs) -> Check {
    let file = fs.create(fs.root(), b"fill", 0o644, &Cred::new(0, 0), true).await.map_err(text)?;
    let data = Bytes::copy_from(&(0..64 << 10).map(|n: u32| ((n * n) >> 7) as u8).collect::<Vec<u8>>());
    let mut at = 0;
    loop {
        match fs.write(file.obj, at, vec![data.clone()], false).await {
            Ok(_) => at += data.len() as u64,
            Err(e) if e.kind() == ErrorKind::NoSpace => break,
            Err(e) => return Err(text(e)),
        }
        if (at / data.len() as u64).is_multiple_of(64) {
            pool.sync().await.map_err(text)?;
        }
    }
    pool.sync().await.map_err(text)?;
    // Room for some of the load.
    fs.truncate(file.obj, at - at / 16).await.map_err(text)
}

/// The parameters of a load.
#[derive(Clone, Copy)]
struct Load {
    seed: u64,
    /// Steps of each task.
    steps: u64,
    trouble: Trouble,
    policy: CommitPolicy,
    /// The file system is encrypted.
    sealed: bool,
    /// The pool has every feature.
    all: bool,
}

/// The logs of the disks, the stories of the tasks, commits acknowledged, statistics of the log.
type Recorded = (Vec<DiskLog>, Vec<Rc<Story>>, u64, ZilStats);

/// Runs the load of a seed and records the operations of the disks.
fn record(seed: u64, how: Cutting) -> Check<Recording<Folders>> {
    let Cutting { steps, trouble, all, .. } = how;
    let mut rng = Rng::stream(seed, 0x21c);
    let mut layout = Layout::draw(&mut rng, 64 << 20);
    layout.features = if all { crate::lab::all_features() } else { ondisk::feature::features_of_2_1() };
    let fit: Vec<&Shape> = SHAPES.iter().filter(|s| !trouble.needs_log() || !log_disks(s).is_empty()).collect();
    let shape = fit[rng.below(fit.len() as u64) as usize];
    layout = layout.shaped(shape, &mut rng);
    let policy = CommitPolicy::ALL[rng.below(3) as usize];
    let sealed = rng.percent(20);
    let with = if sealed { ", encrypted" } else { "" };
    let name = format!("seed {seed} ({}, {}, {}{with})", shape.name, policy.name(), trouble.name());
    let load = Load { seed, steps, trouble, policy, sealed, all };
    let ran = run_world(Lab::new(seed, &layout), async |lab| run_load(lab, &layout, load, &mut rng).await);
    let (logs, stories, acks, stats) = ran.map_err(|e| format!("{name}: recording: {e}"))?;
    // A log device that failed often is out of service, and its records are in the pool: then
    // `zpool import` needs `-m`.
    let import = ImportOpts { missing_log: trouble.needs_log(), ..ImportOpts::default() };
    Ok(Recording { logs, layout, subject: Folders { stories, sealed }, acks, stats, import, name })
}

/// Records a seed and cuts it.
pub fn cut_seed(seed: u64, how: Cutting) -> (ZilTally, Vec<Fault>) {
    cut_recording(seed, record(seed, how), how)
}

/// Makes the pool, fills it as far as the load needs, and runs the load on logged disks.
async fn run_load(lab: &Lab, layout: &Layout, load: Load, rng: &mut Rng) -> Check<Recorded> {
    let Load { seed, steps, trouble, policy, sealed, all } = load;
    let handle = lab.sim.handle();
    let mut pool = create_pool(lab, layout, sealed, rng).await?;
    let sync = if rng.percent(20) { SyncMode::Always } else { SyncMode::Standard };
    let how = MountOpts { sync, throughput: rng.percent(20), longname: all, ..MountOpts::default() };
    let recordsize = [4096, 16 << 10, 128 << 10][rng.below(3) as usize];
    if all {
        // A replay clones blocks into files only where the property allows blocks of that size.
        let value = vec![("recordsize".to_string(), PropValue::Num(recordsize.into()))];
        pool.dsl().set_props(&dataset(sealed), value).await.map_err(text)?;
    }
    let mut tun = ZilTunables { policy, ..ZilTunables::default() };
    if rng.percent(30) {
        tun.maxblocksize = 8192 << rng.below(4);
    }
    // A source that is not on disk is not cloned, or waited for.
    let clones_wait_off = all && rng.percent(40);
    pool.zio().set_opts(ZioOpts { clones_wait_off, ..pool.zio().opts() });
    let mut fs = mount(&pool, sealed, how, recordsize, tun).await?;
    let tasks = 1 + rng.below(6);
    let mut actors = Vec::new();
    for t in 0..tasks {
        actors.push(new_actor(&fs, &handle, (seed, t), sync, all).await?);
    }
    if rng.percent(30) {
        // Existing files with nothing in memory: logging must then read their data first.
        for actor in &mut actors {
            for _ in 0..steps / 4 {
                actor.step().await?;
            }
        }
        fs.unmount().await.map_err(text)?;
        pool.export().await.map_err(text)?;
        pool = lab.import(false, layout.opts()).await.map_err(text)?;
        pool.zio().set_opts(ZioOpts { clones_wait_off, ..pool.zio().opts() });
        fs = mount(&pool, sealed, how, recordsize, tun).await?;
        for actor in &mut actors {
            actor.fs = fs.clone();
            actor.story.all_durable(handle.io_seq());
        }
    }
    if trouble == Trouble::Full {
        fill(&pool, &fs).await?;
    }
    pool.sync().await.map_err(text)?;
    // The first commit makes the log, which takes a txg.
    if rng.percent(80) {
        let file = fs.create(fs.root(), b"first", 0o644, &Cred::new(0, 0), true).await.map_err(text)?;
        fs.fsync(file.obj).await.map_err(text)?;
    }
    lab.start_logs(&pool).await?;
    let schedule = Rc::new(Schedule::draw(trouble, layout.shape, &lab.disks, steps * tasks, rng));
    let mut joins = Vec::new();
    let stories: Vec<Rc<Story>> = actors.iter().map(|a| a.story.clone()).collect();
    let working = Rc::new(Cell::new(tasks));
    // Percentage of steps after which the next commit begins another chain.
    let new_chains = if rng.percent(40) { 6 } else { 1 };
    for n in 0..rng.below(3) {
        let rng = Rng::stream(seed, 2000 + n);
        lab.sim.rt().spawn("bystander", stand_by(fs.clone(), lab.sim.rt(), stories.clone(), working.clone(), rng));
    }
    if trouble.excuses_errors() {
        lab.sim.rt().spawn("keeper", keep(pool.clone(), lab.sim.rt(), working.clone()));
    }
    for actor in actors {
        let task = Task { actor, load, new_chains, schedule: schedule.clone(), working: working.clone() };
        joins.push(lab.sim.rt().spawn("actor", task.run(lab.sim.rt(), pool.txg().clone())));
    }
    let mut acks = 0;
    for join in joins {
        acks += join.await?;
    }
    let logs: Vec<DiskLog> = lab.disks.iter().filter_map(|d| d.take_log()).collect();
    let stats = fs.log().ok_or("no log")?.stats();
    if trouble == Trouble::LogGone {
        gone(lab, layout, &stories, sealed, fs, pool).await?;
    }
    Ok((logs, stories, acks, stats))
}

/// Task `t` of the load of a seed, with its folder.
pub(crate) async fn new_actor(
    fs: &Rc<Zfs>,
    sim: &SimHandle,
    (seed, t): (u64, u64),
    sync: SyncMode,
    all: bool,
) -> Check<Actor> {
    let folder = format!("t{t}").into_bytes();
    let dir = fs.mkdir(fs.root(), &folder, 0o755, &Cred::new(0, 0)).await.map_err(text)?;
    Ok(Actor {
        fs: fs.clone(),
        sim: sim.clone(),
        story: Rc::new(Story::new(folder)),
        dir: dir.obj,
        open: BTreeMap::new(),
        next_file: (t << 32) + 1,
        always: sync == SyncMode::Always,
        long: all,
        clones: all,
        rng: Rng::stream(seed, 1000 + t),
        acks: 0,
    })
}

/// An empty pool, with an encrypted file system if `sealed`.
pub(crate) async fn create_pool(lab: &Lab, layout: &Layout, sealed: bool, rng: &mut Rng) -> Check<Rc<Pool>> {
    let pool = lab.create(layout, Vec::new()).await.map_err(text)?;
    if sealed {
        let key = NewKey { format: KeyFormat::Hex, material: key(), iters: None, location: "prompt".into() };
        let suite = [Suite::Aes256Gcm, Suite::Aes128Ccm][rng.below(2) as usize];
        let crypt = NewCrypt { suite: Some(Some(suite)), key: Some(key) };
        pool.dsl().create_fs_encrypted(&dataset(true), Vec::new(), crypt, new_fs(&lab.sim)).await.map_err(text)?;
    }
    Ok(pool)
}

/// A task of the load.
struct Task {
    actor: Actor,
    load: Load,
    /// Percentage of steps after which the next commit begins another chain.
    new_chains: u64,
    schedule: Rc<Schedule>,
    /// Tasks that are not done.
    working: Rc<Cell<u64>>,
}

impl Task {
    /// Takes its steps; the commits that were acknowledged.
    async fn run(mut self, rt: rt::Rt, txg: TxgPool) -> Check<u64> {
        let trouble = self.load.trouble;
        for _ in 0..self.load.steps {
            self.schedule.step();
            if let Err(e) = self.actor.step().await {
                if !trouble.excuses_errors() {
                    return Err(e);
                }
                // A suspended pool cannot be read any more.
                if self.actor.look().await.is_err() {
                    break;
                }
            }
            if self.actor.rng.percent(10) {
                rt.sleep(Nanos::from_us(20 * self.actor.rng.below(100))).await;
            }
            if self.actor.rng.percent(4) {
                txg.kick();
            }
            if self.actor.rng.percent(self.new_chains) {
                match self.actor.fs.objset().end_log_chain().await {
                    Err(e) if !trouble.excuses_errors() => return Err(text(e)),
                    _ => {}
                }
            }
        }
        self.working.set(self.working.get() - 1);
        Ok(self.actor.acks)
    }
}

/// Lets a suspended pool go on until the load is over, as `zpool clear` does.
async fn keep(pool: Rc<Pool>, rt: rt::Rt, working: Rc<Cell<u64>>) {
    while working.get() > 0 {
        if pool.suspended().is_some() {
            // A repeated failure suspends it again.
            let _ = pool.devices().clear(None).await;
        }
        rt.sleep(KEEPER_EVERY).await;
    }
}

/// After log devices disappeared: everything is there, now and after an import without them.
async fn gone(lab: &Lab, layout: &Layout, stories: &[Rc<Story>], sealed: bool, fs: Rc<Zfs>, pool: Rc<Pool>) -> Check {
    compare(stories, &fs, u64::MAX).await.map_err(|w| format!("without the log: {}", w.why()))?;
    fs.unmount().await.map_err(text)?;
    pool.export().await.map_err(text)?;
    *lab.away.borrow_mut() = log_disks(layout.shape);
    let import = ImportOpts { missing_log: true, ..ImportOpts::default() };
    let pool = lab.import_as(import, layout.opts()).await.map_err(text)?;
    let fs = open(&pool, sealed, MountOpts::default()).await.map_err(text)?;
    compare(stories, &fs, u64::MAX).await.map_err(|w| format!("imported without the log: {}", w.why()))?;
    fs.unmount().await.map_err(text)?;
    pool.export().await.map_err(text)
}

/// Compares the file system with the states allowed after a cut at `at`.
pub(crate) async fn compare(stories: &[Rc<Story>], fs: &Zfs, at: u64) -> Result<(), Wrong> {
    Seen::look(stories, fs).await?.judge(stories, at)
}

/// How often a suspended pool is looked for, in virtual time.
const KEEPER_EVERY: Nanos = Nanos::from_us(500);
