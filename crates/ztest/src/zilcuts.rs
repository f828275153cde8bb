//! Power cuts under synchronous load: what was acknowledged is there, nothing is torn, nothing comes from the future (docs/campaigns.md).
//!
//! One recorded run of several tasks, each with a folder of its own, gives as many crashes as one likes: the disks as a cut right after any completion may leave them. Each crash is imported, claimed,
//! replayed and compared. A task knows of each of its changes when it was begun and from when on it was durable, both as the number of the last device operation that the world had seen; at a
//! cut each file, and each folder, must be in one of the states from the last durable one to the last that was begun.
//!
//! A write that was not acknowledged may be there in part, in whole units.
//!
//! * *lost*: something durable is not there;
//! * *future*: something is there that had not been begun;
//! * *torn*: a unit of data is of no version, or the pool does not import, replay or unmount.
//!
//! Some crashes are cut again while they are replayed: that must give the same. A load may also meet [`Trouble`].

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use base::{ErrorKind, Nanos, ObjectId};
use bdev::Bytes;
use dsl::crypto::{KeyFormat, KeyMaterial, NewCrypt, NewKey};
use sim::{CutStyle, DiskImage, DiskLog, Rng};
use spa::{Bias, GroupKind, ImportOpts, Pool};
use zil::{CommitPolicy, ZilStats, ZilTunables};
use zio::crypto::Suite;
use zpl::{Cred, MountOpts, SyncMode, Zfs};

use crate::campaign::panic_text;
use crate::judge::{self, Verdict};
use crate::lab::{Lab, Layout, POOL, Shape, new_fs};
use crate::zilload::{Actor, History, Names, Story, UNIT, Units, text, version_of};
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
    /// What the log did.
    pub stats: ZilStats,
    trouble: Trouble,
    /// The seed and what was drawn from it.
    name: String,
    sealed: bool,
}

/// The key of encrypted file systems.
fn key() -> KeyMaterial {
    KeyMaterial(b"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f".to_vec())
}

/// The file system that the load uses.
fn dataset(sealed: bool) -> String {
    if sealed { format!("{POOL}/sealed") } else { POOL.to_string() }
}

/// Opens it after an import, with its key.
async fn open(pool: &Rc<Pool>, sealed: bool) -> base::Result<Rc<Zfs>> {
    let name = dataset(sealed);
    if sealed {
        pool.dsl().load_key(&name, &key(), false).await?;
    }
    Zfs::open(&pool.dsl().find(&name)?, MountOpts::default()).await
}

/// Leaves hardly any room in a pool.
async fn fill(pool: &Pool, fs: &Zfs) -> Check {
    let file = fs.create(fs.root(), b"fill", 0o644, &Cred::new(0, 0), true).await.map_err(text)?;
    let data = Bytes::copy_from(&(0..64 << 10).map(|n: u32| (n * n >> 7) as u8).collect::<Vec<u8>>());
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

/// Runs the load of a seed and records what reaches the disks.
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
    let handle = lab.sim.handle();
    let work = async {
        let pool = lab.create(&layout, Vec::new()).await.map_err(text)?;
        if sealed {
            let key = NewKey { format: KeyFormat::Hex, material: key(), iters: None, location: "prompt".into() };
            let suite = [Suite::Aes256Gcm, Suite::Aes128Ccm][rng.below(2) as usize];
            let crypt = NewCrypt { suite: Some(Some(suite)), key: Some(key) };
            pool.dsl().create_fs_encrypted(&dataset(true), Vec::new(), crypt, new_fs(&lab.sim)).await.map_err(text)?;
        }
        let ds = pool.dsl().find(&dataset(sealed)).map_err(text)?;
        let sync = if rng.percent(20) { SyncMode::Always } else { SyncMode::Standard };
        let throughput = rng.percent(20);
        let fs = Zfs::open(&ds, MountOpts { sync, throughput, ..MountOpts::default() }).await.map_err(text)?;
        let mut props = fs.objset().props();
        props.recordsize = [4096, 16 << 10, 128 << 10][rng.below(3) as usize];
        fs.objset().set_props(props);
        let log = fs.log().ok_or("no log")?;
        let mut tun = ZilTunables { policy, ..ZilTunables::default() };
        if rng.percent(30) {
            tun.maxblocksize = 8192 << rng.below(4);
        }
        log.set_tunables(tun);
        let tasks = 1 + rng.below(6);
        let mut actors = Vec::new();
        for t in 0..tasks {
            let folder = format!("t{t}").into_bytes();
            let dir = fs.mkdir(fs.root(), &folder, 0o755, &Cred::new(0, 0)).await.map_err(text)?;
            let story = Rc::new(Story {
                folder,
                names: RefCell::new(History::new(Names::new())),
                files: RefCell::default(),
                versions: Cell::new(0),
            });
            actors.push(Actor {
                fs: fs.clone(),
                sim: handle.clone(),
                story,
                dir: dir.obj,
                open: BTreeMap::new(),
                next_file: (t << 32) + 1,
                always: sync == SyncMode::Always,
                rng: Rng::stream(seed, 1000 + t),
                acks: 0,
            });
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
        pool.sync().await.map_err(text)?;
        for disk in &lab.disks {
            bdev::flush(disk).await.map_err(text)?;
            disk.start_log();
        }
        let schedule = Rc::new(Schedule::draw(trouble, layout.shape, &lab.disks, steps * tasks, &mut rng));
        let mut joins = Vec::new();
        let stories: Vec<Rc<Story>> = actors.iter().map(|a| a.story.clone()).collect();
        for mut actor in actors {
            let (rt, txg, schedule) = (lab.sim.rt(), pool.txg().clone(), schedule.clone());
            joins.push(lab.sim.rt().spawn("actor", async move {
                for _ in 0..steps {
                    schedule.step();
                    if let Err(e) = actor.step().await {
                        if !trouble.excuses_errors() {
                            return Err(e);
                        }
                        // A pool that is suspended shows nothing any more.
                        if actor.look().await.is_err() {
                            break;
                        }
                    }
                    if actor.rng.percent(10) {
                        rt.sleep(Nanos::from_us(20 * actor.rng.below(100))).await;
                    }
                    if actor.rng.percent(4) {
                        txg.kick();
                    }
                }
                Ok::<u64, Fault>(actor.acks)
            }));
        }
        let mut acks = 0;
        for join in joins {
            acks += join.await?;
        }
        let logs: Vec<DiskLog> = lab.disks.iter().filter_map(|d| d.take_log()).collect();
        let stats = log.stats();
        if trouble == Trouble::LogGone {
            gone(&lab, &layout, &stories, sealed, fs, pool).await?;
        }
        Ok::<_, Fault>((logs, stories, acks, stats))
    };
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

/// After log devices disappeared: everything is there, now and after an import without them.
async fn gone(lab: &Lab, layout: &Layout, stories: &[Rc<Story>], sealed: bool, fs: Rc<Zfs>, pool: Rc<Pool>) -> Check {
    compare(stories, &fs, u64::MAX).await.map_err(|w| format!("without the log: {}", w.why()))?;
    fs.unmount().await.map_err(text)?;
    pool.export().await.map_err(text)?;
    *lab.away.borrow_mut() = log_disks(layout.shape);
    let import = ImportOpts { missing_log: true, ..ImportOpts::default() };
    let pool = lab.import_as(import, layout.opts()).await.map_err(text)?;
    let fs = open(&pool, sealed).await.map_err(text)?;
    compare(stories, &fs, u64::MAX).await.map_err(|w| format!("imported without the log: {}", w.why()))?;
    fs.unmount().await.map_err(text)?;
    pool.export().await.map_err(text)
}

/// What is wrong with a crash.
enum Wrong {
    Lost(Fault),
    Torn(Fault),
    Future(Fault),
}

impl Wrong {
    fn why(self) -> Fault {
        match self {
            Wrong::Lost(why) | Wrong::Torn(why) | Wrong::Future(why) => why,
        }
    }
}

impl Recording {
    fn completions(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self.logs.iter().flat_map(|l| l.completions()).collect();
        all.sort_unstable();
        all
    }
}

/// Compares what is in the file system with what may be there after a cut at `at`.
async fn compare(stories: &[Rc<Story>], fs: &Zfs, at: u64) -> Result<(), Wrong> {
    let torn = |what: &str, e: base::Error| Wrong::Torn(format!("{what}: {e:?}"));
    for story in stories {
        let folder = String::from_utf8_lossy(&story.folder).into_owned();
        let dir = fs.lookup(fs.root(), &story.folder).await.map_err(|e| torn(&folder, e))?;
        let mut there: BTreeMap<Vec<u8>, ObjectId> = BTreeMap::new();
        let list = fs.readdir(dir.obj, 0, 1000).await.map_err(|e| torn(&folder, e))?;
        for e in list.into_iter().filter(|e| e.name != b"." && e.name != b"..") {
            there.insert(e.name, e.obj);
        }
        let names = story.names.borrow();
        let (low, high) = names.window(at);
        let same = |n: &Names| n.len() == there.len() && n.keys().all(|k| there.contains_key(k));
        let mut why = None;
        let mut good = false;
        for k in low..=high {
            if !same(&names.steps[k].2) {
                continue;
            }
            match compare_files(fs, story, &names.steps[k].2, &there, at).await {
                Ok(()) => {
                    good = true;
                    break;
                }
                Err(e) => why = Some(e),
            }
        }
        if good {
            continue;
        }
        if let Some(why) = why {
            return Err(why);
        }
        let list: Vec<String> = there.keys().map(|n| String::from_utf8_lossy(n).into_owned()).collect();
        let what = format!("{folder} holds {list:?}, none of its states {low} to {high}");
        let later = names.steps.iter().skip(high + 1).any(|(_, _, n)| same(n));
        let earlier = names.steps.iter().take(low).any(|(_, _, n)| same(n));
        return Err(match (earlier, later) {
            (true, _) => Wrong::Lost(what),
            (false, true) => Wrong::Future(what),
            _ => Wrong::Torn(what),
        });
    }
    Ok(())
}

async fn compare_files(
    fs: &Zfs,
    story: &Story,
    names: &Names,
    there: &BTreeMap<Vec<u8>, ObjectId>,
    at: u64,
) -> Result<(), Wrong> {
    let files = story.files.borrow();
    for (name, file) in names {
        let what = format!("{}/{}", String::from_utf8_lossy(&story.folder), String::from_utf8_lossy(name));
        let torn = |e: base::Error| Wrong::Torn(format!("{what}: {e:?}"));
        let (Some(h), Some(&obj)) = (files.get(file), there.get(name)) else { continue };
        let size = fs.getattr(obj).await.map_err(torn)?.size;
        let (low, high) = h.window(at);
        let window = &h.steps[low..=high];
        // A large write is cut at block boundaries: of one that nobody has acknowledged a part may be there.
        let sizes: Vec<u64> = window.iter().map(|(_, _, u)| u.len() as u64 * UNIT).collect();
        let partly = sizes.windows(2).any(|w| w[0].min(w[1]) <= size && size <= w[0].max(w[1]));
        if !sizes.contains(&size) && !partly {
            let why = format!("{what}: {size} bytes, in none of its states {low} to {high}");
            let later = h.steps.iter().skip(high + 1).any(|(_, _, u)| u.len() as u64 * UNIT == size);
            return Err(if later { Wrong::Future(why) } else { Wrong::Lost(why) });
        }
        let mut all = Vec::with_capacity(size as usize);
        for part in fs.read(obj, 0, size).await.map_err(torn)? {
            all.extend_from_slice(&part);
        }
        for (n, bytes) in all.chunks(UNIT as usize).enumerate() {
            let version = version_of(*file, n as u64, bytes).map_err(|e| Wrong::Torn(format!("{what}: {e}")))?;
            let of = |u: &Units| u.get(n).copied().unwrap_or(0) == version;
            if window.iter().any(|(_, _, u)| of(u)) {
                continue;
            }
            let why = format!("{what}: unit {n} is of version {version}, in none of its states {low} to {high}");
            let later = h.steps.iter().skip(high + 1).any(|(_, _, u)| of(u));
            return Err(if later { Wrong::Future(why) } else { Wrong::Lost(why) });
        }
    }
    Ok(())
}

/// What a campaign came to.
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
    fn fields(&mut self) -> [(&'static str, &mut u64); 12] {
        [
            ("seeds", &mut self.seeds),
            ("cuts", &mut self.cuts),
            ("lost", &mut self.lost),
            ("torn", &mut self.torn),
            ("future", &mut self.future),
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

/// One crash: import, claim, replay, compare. With `again` the recovery itself is recorded. Gives the records replayed, the recovery's log, and the pool's images after export if asked for.
#[allow(clippy::type_complexity)]
fn recover(
    rec: &Recording,
    images: Vec<DiskImage>,
    seed: u64,
    at: u64,
    again: bool,
    export: bool,
) -> Result<(u64, Vec<DiskLog>, Vec<DiskImage>), Wrong> {
    let lab = Lab::with_images(seed, images, true);
    let work = async {
        if again {
            lab.disks.iter().for_each(|d| d.start_log());
        }
        // A log device that failed often is out of service, and what counts is in the pool: then `zpool import` asks for `-m`.
        let import = ImportOpts { missing_log: rec.trouble.needs_log(), ..ImportOpts::default() };
        let pool = lab.import_as(import, rec.layout.opts()).await.map_err(|e| Wrong::Torn(format!("import: {e:?}")))?;
        let fs = open(&pool, rec.sealed).await.map_err(|e| Wrong::Torn(format!("mount: {e:?}")))?;
        let replayed = fs.replayed();
        if let Some(e) = replayed.failed {
            return Err(Wrong::Torn(format!("replay: {e:?}")));
        }
        compare(&rec.stories, &fs, at).await?;
        let logs = if again { lab.disks.iter().filter_map(|d| d.take_log()).collect() } else { Vec::new() };
        let mut images = Vec::new();
        if export {
            fs.unmount().await.map_err(|e| Wrong::Torn(format!("unmount: {e:?}")))?;
            pool.export().await.map_err(|e| Wrong::Torn(format!("export: {e:?}")))?;
            images = lab.images();
        }
        Ok((replayed.applied, logs, images))
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
    /// Every nth cut is cut again while it is replayed; 0: none.
    pub second: u64,
    /// Every nth crash goes to zdb after replay; 0: none.
    pub zdb: u64,
    /// What goes wrong meanwhile.
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
    // Without the log devices a crash loses what only they had: nothing to compare.
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
    for moment in rec.completions().into_iter().step_by(how.every.max(1)) {
        replays.iter_mut().for_each(|r| r.to_seq(moment));
        for repeat in 0..how.repeats {
            let cut_seed = seed.wrapping_mul(1_000_003).wrapping_add(moment).wrapping_add(repeat << 48);
            let images: Vec<DiskImage> =
                (0..).zip(&replays).map(|(d, r)| r.cut(CutStyle::Seeded, cut_seed.wrapping_add(d << 40))).collect();
            tally.cuts += 1;
            let again = how.second > 0 && tally.cuts % how.second == 0;
            let judged = how.zdb > 0 && tally.cuts % how.zdb == 0;
            let what = format!("cut at {moment}.{repeat}");
            match recover(&rec, images, cut_seed, moment, again, judged) {
                Ok((applied, logs, after)) => {
                    tally.replayed += applied;
                    if again {
                        second_cut(&rec, &logs, cut_seed, moment, &mut tally, &mut |t, wrong| {
                            note(t, &mut faults, format!("{what}, cut again"), wrong);
                        });
                    }
                    if judged {
                        ask(&after, seed, moment, &mut tally, &mut faults);
                    }
                }
                Err(wrong) => note(&mut tally, &mut faults, what, wrong),
            }
        }
    }
    (tally, faults)
}

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
    if let Err(wrong) = recover(rec, images, seed ^ 7, at, false, false) {
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
