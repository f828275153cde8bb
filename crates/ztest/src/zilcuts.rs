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
//! * *lost*: something durable is not there;
//! * *future*: something is there that had not been begun;
//! * *torn*: a unit of data is of no version, or the pool does not import, replay or unmount.
//!
//! Some crashes are cut again while they are replayed: that must give the same. A load may also
//! meet [`Trouble`].

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use base::{ErrorKind, Nanos};
use bdev::Bytes;
use dsl::crypto::{KeyFormat, KeyMaterial, NewCrypt, NewKey};
use sim::{CutStyle, DiskImage, DiskLog, Rng, SimDisk};
use spa::{Bias, GroupKind, ImportOpts, Pool};
use txg::TxgPool;
use zil::{CommitPolicy, ZilStats, ZilTunables};
use zio::crypto::Suite;
use zpl::{Cred, MountOpts, SyncMode, Zfs};

use crate::campaign::panic_text;
use crate::judge::{self, Verdict};
use crate::lab::{Lab, Layout, POOL, Shape, new_fs};
use crate::zilload::{Actor, Story, stand_by, text};
use crate::zilseen::{Memory, Seen, Wrong};
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

/// A recorded run.
pub struct Recording {
    logs: Vec<DiskLog>,
    layout: Layout,
    stories: Vec<Rc<Story>>,
    /// Commits acknowledged.
    pub acks: u64,
    /// Statistics of the log.
    pub stats: ZilStats,
    trouble: Trouble,
    /// The seed and the parameters drawn from it.
    name: String,
    sealed: bool,
}

/// The key of encrypted file systems.
fn key() -> KeyMaterial {
    KeyMaterial::new(b"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f")
}

/// The file system that the load uses.
fn dataset(sealed: bool) -> String {
    if sealed { format!("{POOL}/sealed") } else { POOL.to_string() }
}

/// Opens it after an import, with its key.
async fn open(pool: &Rc<Pool>, sealed: bool, how: MountOpts) -> base::Result<Rc<Zfs>> {
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
async fn mount(pool: &Rc<Pool>, sealed: bool, how: MountOpts, recordsize: u32, tun: ZilTunables) -> Check<Rc<Zfs>> {
    pool.dsl().zil_tunables().set(tun);
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
}

/// The logs of the disks, the stories of the tasks, commits acknowledged, statistics of the log.
type Recorded = (Vec<DiskLog>, Vec<Rc<Story>>, u64, ZilStats);

/// Runs the load of a seed and records the operations of the disks.
pub fn record(seed: u64, steps: u64, trouble: Trouble) -> Check<Recording> {
    let mut rng = Rng::stream(seed, 0x21c);
    let mut layout = Layout::draw(&mut rng, 64 << 20);
    layout.features = ondisk::feature::default_features();
    let fit: Vec<&Shape> = SHAPES.iter().filter(|s| !trouble.needs_log() || !log_disks(s).is_empty()).collect();
    let shape = fit[rng.below(fit.len() as u64) as usize];
    layout = layout.shaped(shape, &mut rng);
    let policy = CommitPolicy::ALL[rng.below(3) as usize];
    let sealed = rng.percent(20);
    let with = if sealed { ", encrypted" } else { "" };
    let name = format!("seed {seed} ({}, {}, {}{with})", shape.name, policy.name(), trouble.name());
    let lab = Lab::new(seed, &layout);
    let load = Load { seed, steps, trouble, policy, sealed };
    let work = run_load(&lab, &layout, load, &mut rng);
    let result = catch_unwind(AssertUnwindSafe(|| {
        lab.sim.try_block_on_for(Nanos::from_secs(3600), work).map_err(|report| format!("stalled: {report}"))?
    }));
    match result {
        Ok(Ok((logs, stories, acks, stats))) => {
            lab.sim.crash();
            Ok(Recording { logs, layout, stories, acks, stats, trouble, name, sealed })
        }
        Ok(Err(e)) => {
            std::mem::forget(lab);
            Err(format!("{name}: recording: {e}"))
        }
        Err(panic) => {
            std::mem::forget(lab);
            Err(format!("{name}: recording: panic: {}", panic_text(&*panic)))
        }
    }
}

/// Makes the pool, fills it as far as the load needs, and runs the load on logged disks.
async fn run_load(lab: &Lab, layout: &Layout, load: Load, rng: &mut Rng) -> Check<Recorded> {
    let Load { seed, steps, trouble, policy, sealed } = load;
    let handle = lab.sim.handle();
    let mut pool = create_pool(lab, layout, sealed, rng).await?;
    let sync = if rng.percent(20) { SyncMode::Always } else { SyncMode::Standard };
    let how = MountOpts { sync, throughput: rng.percent(20), ..MountOpts::default() };
    let recordsize = [4096, 16 << 10, 128 << 10][rng.below(3) as usize];
    let mut tun = ZilTunables { policy, ..ZilTunables::default() };
    if rng.percent(30) {
        tun.maxblocksize = 8192 << rng.below(4);
    }
    let mut fs = mount(&pool, sealed, how, recordsize, tun).await?;
    let tasks = 1 + rng.below(6);
    let mut actors = Vec::new();
    for t in 0..tasks {
        let folder = format!("t{t}").into_bytes();
        let dir = fs.mkdir(fs.root(), &folder, 0o755, &Cred::new(0, 0)).await.map_err(text)?;
        actors.push(Actor {
            fs: fs.clone(),
            sim: handle.clone(),
            story: Rc::new(Story::new(folder)),
            dir: dir.obj,
            open: BTreeMap::new(),
            next_file: (t << 32) + 1,
            always: sync == SyncMode::Always,
            rng: Rng::stream(seed, 1000 + t),
            acks: 0,
        });
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
    start_logs(lab, &pool).await?;
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

/// An empty pool, with an encrypted file system if `sealed`.
async fn create_pool(lab: &Lab, layout: &Layout, sealed: bool, rng: &mut Rng) -> Check<Rc<Pool>> {
    let pool = lab.create(layout, Vec::new()).await.map_err(text)?;
    if sealed {
        let key = NewKey { format: KeyFormat::Hex, material: key(), iters: None, location: "prompt".into() };
        let suite = [Suite::Aes256Gcm, Suite::Aes128Ccm][rng.below(2) as usize];
        let crypt = NewCrypt { suite: Some(Some(suite)), key: Some(key) };
        pool.dsl().create_fs_encrypted(&dataset(true), Vec::new(), crypt, new_fs(&lab.sim)).await.map_err(text)?;
    }
    Ok(pool)
}

/// Syncs and flushes until every disk is settled, then logs the disks.
async fn start_logs(lab: &Lab, pool: &Pool) -> Check {
    // A txg may begin to sync by itself at any time.
    loop {
        pool.sync().await.map_err(text)?;
        for disk in &lab.disks {
            bdev::flush(disk).await.map_err(text)?;
        }
        if lab.disks.iter().all(SimDisk::is_settled) {
            break;
        }
    }
    lab.disks.iter().for_each(SimDisk::start_log);
    Ok(())
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

impl Recording {
    fn completions(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self.logs.iter().flat_map(|l| l.completions()).collect();
        all.sort_unstable();
        all
    }
}

/// Compares the file system with the states allowed after a cut at `at`.
async fn compare(stories: &[Rc<Story>], fs: &Zfs, at: u64) -> Result<(), Wrong> {
    Seen::look(stories, fs).await?.judge(stories, at)
}

/// Totals of a campaign.
#[derive(Clone, Copy, Default, Debug)]
pub struct ZilTally {
    /// Seeds done.
    pub seeds: u64,
    /// Cuts.
    pub cuts: u64,
    /// Acknowledged data that was not there.
    pub lost: u64,
    /// Data of no version, pools that do not import.
    pub torn: u64,
    /// Data that had not been written.
    pub future: u64,
    /// Cuts that left, wherever the recovery from another one of them read, the same bytes as that:
    /// not recovered again, but judged.
    pub alike: u64,
    /// Records replayed.
    pub replayed: u64,
    /// Cuts while a crash was replayed.
    pub second: u64,
    /// Images given to zdb after replay.
    pub zdb: u64,
    /// Images in which it found something.
    pub zdb_bad: u64,
    /// Images that zdb could not judge.
    pub missing: u64,
    /// Commits acknowledged in the recordings.
    pub acks: u64,
    /// Log blocks that failed, and commits that found no room, in the recordings.
    pub failures: u64,
}

impl ZilTally {
    fn fields(&mut self) -> [(&'static str, &mut u64); 13] {
        [
            ("seeds", &mut self.seeds),
            ("cuts", &mut self.cuts),
            ("lost", &mut self.lost),
            ("torn", &mut self.torn),
            ("future", &mut self.future),
            ("alike", &mut self.alike),
            ("replayed", &mut self.replayed),
            ("second", &mut self.second),
            ("zdb", &mut self.zdb),
            ("zdb_bad", &mut self.zdb_bad),
            ("missing", &mut self.missing),
            ("acks", &mut self.acks),
            ("failures", &mut self.failures),
        ]
    }
    /// Adds up.
    pub fn add(&mut self, mut o: ZilTally) {
        for ((_, a), (_, b)) in self.fields().into_iter().zip(o.fields()) {
            *a += *b;
        }
    }
    /// Whether nothing was found.
    pub fn is_good(&self) -> bool {
        self.lost + self.torn + self.future + self.zdb_bad + self.missing == 0
    }
    /// As a line without the number of seeds.
    pub fn line(mut self) -> String {
        let words: Vec<String> = self.fields().into_iter().skip(1).map(|(n, v)| format!("{n}={v}")).collect();
        words.join(" ")
    }
    /// From such a line.
    pub fn parse(line: &str) -> ZilTally {
        let mut out = ZilTally { seeds: 1, ..ZilTally::default() };
        for word in line.split_whitespace() {
            if let Some((name, value)) = word.split_once('=')
                && let Some((_, field)) = out.fields().into_iter().find(|(n, _)| *n == name)
            {
                *field = value.parse().unwrap_or(0);
            }
        }
        out
    }
}

/// Further results wanted of a recovery.
#[derive(Clone, Copy, Default)]
struct Asked {
    /// Its own log.
    log: bool,
    /// The pool's images after an export.
    export: bool,
}

/// The result of a recovery.
struct Recovery {
    seen: Rc<Seen>,
    /// Records replayed.
    applied: u64,
    /// Offset and length of the reads of each disk, up to the end of the comparison's reads.
    reads: Vec<Vec<(u64, u64)>>,
    logs: Vec<DiskLog>,
    images: Vec<DiskImage>,
}

/// Recovers from a crash: import, claim, replay, look.
fn recover(rec: &Recording, images: Vec<DiskImage>, seed: u64, asked: Asked) -> Result<Recovery, Wrong> {
    let lab = Lab::with_images(seed, images, true);
    let work = async {
        for disk in &lab.disks {
            disk.watch_reads();
            if asked.log {
                disk.start_log();
            }
        }
        // A log device that failed often is out of service, and its records are in the pool: then
        // `zpool import` needs `-m`.
        let import = ImportOpts { missing_log: rec.trouble.needs_log(), ..ImportOpts::default() };
        let pool = lab.import_as(import, rec.layout.opts()).await.map_err(|e| Wrong::Torn(format!("import: {e:?}")))?;
        let fs =
            open(&pool, rec.sealed, MountOpts::default()).await.map_err(|e| Wrong::Torn(format!("mount: {e:?}")))?;
        let replayed = fs.replayed();
        if let Some(e) = replayed.failed {
            return Err(Wrong::Torn(format!("replay: {e:?}")));
        }
        let seen = Rc::new(Seen::look(&rec.stories, &fs).await?);
        let reads = lab.disks.iter().map(|d| d.take_reads()).collect();
        let logs = if asked.log { lab.disks.iter().filter_map(|d| d.take_log()).collect() } else { Vec::new() };
        let mut images = Vec::new();
        if asked.export {
            fs.unmount().await.map_err(|e| Wrong::Torn(format!("unmount: {e:?}")))?;
            pool.export().await.map_err(|e| Wrong::Torn(format!("export: {e:?}")))?;
            images = lab.images();
        }
        Ok(Recovery { seen, applied: replayed.applied, reads, logs, images })
    };
    let result = catch_unwind(AssertUnwindSafe(|| {
        lab.sim
            .try_block_on_for(Nanos::from_secs(3600), work)
            .unwrap_or_else(|report| Err(Wrong::Torn(format!("stalled: {report}"))))
    }));
    match result {
        Ok(out) => {
            lab.sim.crash();
            out
        }
        Err(panic) => {
            std::mem::forget(lab);
            Err(Wrong::Torn(format!("panic: {}", panic_text(&*panic))))
        }
    }
}

/// How a seed is cut.
#[derive(Clone, Copy, Debug)]
pub struct Cutting {
    /// Operations of each task.
    pub steps: u64,
    /// Cuts at each completion.
    pub repeats: u64,
    /// Only each nth completion.
    pub every: usize,
    /// One cut in so many is cut again while it is replayed; 0: none.
    pub second: u64,
    /// One crash in so many goes to zdb after replay; 0: none.
    pub zdb: u64,
    /// The trouble injected meanwhile.
    pub trouble: Trouble,
}

/// Records a seed and cuts it.
pub fn cut_seed(seed: u64, how: Cutting) -> (ZilTally, Vec<Fault>) {
    let mut tally = ZilTally { seeds: 1, ..ZilTally::default() };
    let mut faults = Vec::new();
    let rec = match record(seed, how.steps, how.trouble) {
        Ok(rec) => rec,
        Err(e) => {
            tally.torn += 1;
            return (tally, vec![e]);
        }
    };
    (tally.acks, tally.failures) = (rec.acks, rec.stats.failures + rec.stats.stalls);
    // Without the log devices a crash loses the records on them: nothing to compare.
    if how.trouble == Trouble::LogGone {
        return (tally, faults);
    }
    let name = &rec.name;
    let note = |tally: &mut ZilTally, faults: &mut Vec<Fault>, what: String, wrong: Wrong| {
        let (count, word, why) = match wrong {
            Wrong::Lost(why) => (&mut tally.lost, "lost", why),
            Wrong::Torn(why) => (&mut tally.torn, "torn", why),
            Wrong::Future(why) => (&mut tally.future, "future", why),
        };
        *count += 1;
        faults.push(format!("{name} {what}: {word}: {why}"));
    };
    let mut replays: Vec<_> = rec.logs.iter().map(DiskLog::replay).collect();
    let mut memory = Memory::default();
    for moment in rec.completions().into_iter().step_by(how.every.max(1)) {
        replays.iter_mut().for_each(|r| r.to_seq(moment));
        for repeat in 0..how.repeats {
            let cut_seed = seed.wrapping_mul(1_000_003).wrapping_add(moment).wrapping_add(repeat << 48);
            let images: Vec<DiskImage> =
                (0..).zip(&replays).map(|(d, r)| r.cut(CutStyle::Seeded, cut_seed.wrapping_add(d << 40))).collect();
            tally.cuts += 1;
            let mut draw = Rng::stream(cut_seed, 0xa5c);
            let asked = Asked { log: draw.one_in(how.second), export: draw.one_in(how.zdb) };
            let what = format!("cut at {moment}.{repeat}");
            let known = memory.find(&images);
            // One known crash in so many is recovered again, to verify the memory.
            if let Some((seen, applied)) = &known
                && !asked.log
                && !asked.export
                && !draw.one_in(KNOWN_AGAIN)
            {
                tally.alike += 1;
                tally.replayed += applied;
                if let Err(wrong) = seen.judge(&rec.stories, moment) {
                    note(&mut tally, &mut faults, what, wrong);
                }
                continue;
            }
            let done = match recover(&rec, images.clone(), cut_seed, asked) {
                Ok(done) => done,
                Err(wrong) => {
                    note(&mut tally, &mut faults, what, wrong);
                    continue;
                }
            };
            tally.replayed += done.applied;
            if let Err(wrong) = done.seen.judge(&rec.stories, moment) {
                note(&mut tally, &mut faults, what.clone(), wrong);
            }
            if asked.log {
                second_cut(&rec, &done.logs, cut_seed, moment, &mut tally, &mut |t, wrong| {
                    note(t, &mut faults, format!("{what}, cut again"), wrong);
                });
            }
            if asked.export {
                ask(&done.images, seed, moment, &mut tally, &mut faults);
            }
            match known {
                Some((seen, _)) if seen != done.seen => {
                    let why = format!("one crash gave two states: {seen:?} and {:?}", done.seen);
                    note(&mut tally, &mut faults, what, Wrong::Torn(why));
                }
                Some(_) => {}
                None => memory.learn(images, done.reads, done.seen, done.applied),
            }
        }
    }
    (tally, faults)
}

/// How often a suspended pool is looked for, in virtual time.
const KEEPER_EVERY: Nanos = Nanos::from_us(500);
/// Of the crashes that are known already every so many is recovered nevertheless.
const KNOWN_AGAIN: u64 = 50;

/// Cuts the recovery from a crash, and recovers from that.
fn second_cut(
    rec: &Recording,
    logs: &[DiskLog],
    seed: u64,
    at: u64,
    tally: &mut ZilTally,
    found: &mut dyn FnMut(&mut ZilTally, Wrong),
) {
    let mut moments: Vec<u64> = logs.iter().flat_map(|l| l.completions()).collect();
    moments.sort_unstable();
    if moments.is_empty() {
        return;
    }
    let mut rng = Rng::stream(seed, 0x2ec);
    let moment = moments[rng.below(moments.len() as u64) as usize];
    let images = (0..).zip(logs).map(|(d, l)| l.cut_at(moment, seed ^ (d << 33))).collect();
    tally.second += 1;
    let done = recover(rec, images, seed ^ 7, Asked::default());
    if let Err(wrong) = done.and_then(|done| done.seen.judge(&rec.stories, at)) {
        found(tally, wrong);
    }
}

fn ask(images: &[DiskImage], seed: u64, n: u64, tally: &mut ZilTally, faults: &mut Vec<Fault>) {
    tally.zdb += 1;
    let verdict = match judge::Scratch::new(&format!("zilcut-{seed}-{n}")) {
        Ok(scratch) => match judge::save(images, scratch.path()) {
            Ok(()) => judge::ask_zdb(scratch.path(), &["-bcc"]),
            Err(e) => Verdict::Missing(e),
        },
        Err(e) => Verdict::Missing(e.to_string()),
    };
    match verdict {
        Verdict::Good => {}
        Verdict::Missing(what) => {
            tally.missing += 1;
            faults.push(format!("seed {seed} cut at {n}: missing: {what}"));
        }
        Verdict::Bad(why) => {
            tally.zdb_bad += 1;
            faults.push(format!("seed {seed} cut at {n}: {why}"));
        }
    }
}
