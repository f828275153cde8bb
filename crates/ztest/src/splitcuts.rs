//! Power cuts while mirrors are split into two pools (`zpool split`).
//!
//! A workload writes to a pool of mirrors; with some seeds a vdev was removed before, and with some
//! a resilver has just ended. Then one side of each mirror is split off, while the workload on the
//! pool goes on, and goes on after it. The run is recorded and cut as those of [`crate::cuts`] are.
//!
//! Vocabulary. The *old* pool is the one that is split, the *new* one what comes of it. A *side* is
//! a device that leaves. The new pool is *born* when its first uberblock is on one of the sides:
//! until then, and no longer, they are the old pool's.
//!
//! What must hold of the disks after a cut (the promise of `spa::devices::split`):
//!
//! * every device of the old pool is in exactly one of the two pools, the sides all in the same
//!   one;
//! * there is no new pool before the split begins; there is one from the moment on at which its
//!   settings could be made;
//! * the old pool is in the state of its txg. If the new pool is not born, all its mirrors are
//!   whole; if it is, the old pool does without the sides, whatever its txg says of them;
//! * the new pool has its name, its guid, the sides alone, and exactly the state of the last txg
//!   before the sides left, without any intent log.
//!
//! Each image is imported for writing, both pools side by side or one after the other; in one of
//! four operations go on in both, they are scrubbed, exported, imported again and compared, and the
//! checker looks at each. Some are cut again while they are imported: what the first cut decided
//! must stay.
//!
//! With one seed of eight a side cannot be read, so that the split is given up: no cut shows a new
//! pool then. With another one a side takes no writes for a while. If the new pool was born by
//! then, the sides are made blank for the old pool one after the other; a cut between may leave
//! some of them in no pool that can be imported. Then only the old pool is looked at, which must
//! have its state and be without fault, until the split has ended.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use base::{Error, ErrorKind, Guid, Nanos, Result, Txg, VdevId};
use bdev::BlockDev;
use sim::{DiskImage, DiskLog, Fault, OpKind, Rng};
use spa::{Bias, DevSpec, EngineOpts, GroupKind, ImportOpts, Pool, PoolCandidate, SplitLeaf};
use vdev::Health;
use zpl::{MountOpts, Zfs};

use crate::campaign::panic_text;
use crate::cuts::{CutTally, Recording, Steps, completions, images_at, record_with};
use crate::devices::LabDoor;
use crate::judge::{self, Verdict};
use crate::lab::{Lab, POOL, Shape, shape};
use crate::model::PoolModel;
use crate::removecuts;
use crate::scan::{scrub_clean, told, wait};
use crate::snaps::check_images;
use crate::workload::{Profile, Runner};
use crate::{Check, Fault as Finding, tree};

const fn mirror(n: usize) -> (GroupKind, Bias, usize) {
    (GroupKind::Mirror, Bias::Normal, n)
}
const LOG: (GroupKind, Bias, usize) = (GroupKind::Single, Bias::Log, 1);

/// The layouts that are split.
pub const LAYOUTS: &[Shape] = &[
    shape("mirror", &[mirror(2)]),
    shape("mirror3", &[mirror(3)]),
    shape("mirrors", &[mirror(2), mirror(3)]),
    shape("log", &[mirror(2), LOG, mirror(2)]),
    shape("removed", &[mirror(2), mirror(2), mirror(2)]),
    Shape { name: "beside", groups: &[mirror(2), mirror(2)], spares: 1, caches: 1 },
    shape("special", &[mirror(2), (GroupKind::Mirror, Bias::Special, 2), (GroupKind::Mirror, Bias::Log, 2)]),
];
/// The name of the new pool.
const OTHER: &str = "other";
/// Operations before the split.
const OPS_BEFORE: u64 = 60;
/// Operations while a vdev is removed before the split at most.
const OPS_REMOVAL: u64 = 1500;
/// Operations during the split at most; it goes on without any then.
const OPS_DURING: u64 = 400;
/// Operations after it.
const OPS_AFTER: u64 = 25;
/// Operations in each pool after the import of an image.
const OPS_LATER: u64 = 12;

/// What is made to go wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    None,
    /// A side cannot be read: the split is given up before anything is written.
    Unread,
    /// A side takes no writes for a while.
    Unwritten,
}

/// What a recording knows of its split.
#[derive(Clone, Debug)]
struct Split {
    /// Guid of the old pool.
    old: Guid,
    /// Guid of the new pool; none if the split was given up.
    new: Option<Guid>,
    /// All devices of the old pool but spares and caches, as the split begins.
    devices: BTreeSet<String>,
    /// Those that the split takes.
    sides: BTreeSet<String>,
    /// The last txg on the sides.
    at: Txg,
    /// The comment that the new pool got.
    comment: Option<String>,
    /// From when on it is cut: what was resilvered before is there.
    from: Nanos,
    /// When it began.
    begun: Nanos,
    /// When the new pool was there for certain.
    born: Nanos,
    /// When it had ended.
    done: Nanos,
    trouble: Trouble,
}

impl Split {
    /// Whether at that moment a failing device may have left the sides between the pools.
    fn is_unsure(&self, at: Nanos) -> bool {
        self.trouble == Trouble::Unwritten && (self.begun..=self.done).contains(&at)
    }
}

/// The devices of a pool by their paths, since the last side of a mirror gets another guid, with
/// their health.
fn health(pool: &Pool) -> BTreeMap<String, Health> {
    let mut all = BTreeMap::new();
    for top in pool.tree().tops.borrow().iter() {
        let config = top.config();
        for (guid, condition) in top.kind().conditions() {
            let path = config.find(guid).and_then(|c| c.path.clone()).unwrap_or_else(|| guid.to_string());
            all.insert(path, condition.health());
        }
    }
    all
}

/// Only their paths.
fn paths(pool: &Pool) -> BTreeSet<String> {
    health(pool).into_keys().collect()
}

/// A workload with the notes that a recording needs.
struct Watched<'a> {
    r: &'a mut Runner,
    steps: Steps,
    n: u64,
}

impl Watched<'_> {
    fn learn(&mut self) {
        for record in self.r.pool().txg().history() {
            self.steps.1.insert(record.txg, (record.sync_start, record.synced));
        }
    }
    async fn step(&mut self) -> Check {
        let txg = self.r.pool().txg().clone();
        let (before, changes) = (txg.open_txg(), self.r.changes);
        self.r.step().await?;
        self.steps.0.push((before, txg.open_txg(), self.r.model.clone(), self.r.changes != changes));
        if self.n.is_multiple_of(5) {
            txg.kick();
            self.r.lab.sim.rt().sleep(Nanos::from_us(150 * (self.n % 7))).await;
        }
        self.n += 1;
        self.learn();
        Ok(())
    }
}

/// Takes the second mirror away, with operations meanwhile.
async fn remove_one(r: &mut Runner) -> Check {
    let pool = r.pool();
    pool.devices().remove(&removecuts::name_of(&pool, VdevId(1))?).await.map_err(told("remove"))?;
    for n in 0..OPS_REMOVAL {
        if !pool.devices().evacuator().is_busy() {
            return pool.sync().await.map_err(told("sync"));
        }
        r.step().await?;
        if n > 100 {
            pool.rt().sleep(Nanos::from_ms(5)).await;
        }
    }
    Err("the removal does not end".into())
}

/// Makes one of the sides fail as soon as it has left the old pool, and heals it again.
async fn fail_side(lab: Rc<Lab>, pool: Rc<Pool>, trouble: Trouble, mut rng: Rng) {
    let rt = pool.rt().clone();
    let split = loop {
        if let Some(split) = pool.mos_config().split {
            break split;
        }
        rt.sleep(Nanos::from_us(20)).await;
    };
    let sides: Vec<String> =
        split.guid_list.iter().filter_map(|g| pool.mos_config().vdev_tree.find(*g)?.path.clone()).collect();
    let side = &sides[rng.below(sides.len() as u64) as usize];
    let Some(disk) = lab.disks.iter().find(|d| d.dev().info().path == *side) else { return };
    if trouble == Trouble::Unread {
        disk.fault(Fault::FailRange { kind: Some(OpKind::Read), range: 0..u64::MAX });
        return;
    }
    rt.sleep(Nanos::from_us(rng.below(12_000))).await;
    disk.fault(Fault::FailRange { kind: Some(OpKind::Write), range: 0..u64::MAX });
    rt.sleep(Nanos::from_us(rng.below(12_000))).await;
    disk.clear_faults();
}

/// The result of the split and when it ended.
type Ended = (Result<(Guid, Vec<SplitLeaf>)>, Nanos);

async fn run(r: &mut Runner, seed: u64) -> Check<(Steps, Split)> {
    let mut rng = Rng::stream(seed, 0x591);
    let trouble = match seed % 8 {
        // A spare would take the place of the side.
        _ if r.layout.shape.spares > 0 => Trouble::None,
        4 => Trouble::Unread,
        6 => Trouble::Unwritten,
        _ => Trouble::None,
    };
    if rng.percent(60) {
        r.no_logs();
    }
    r.create().await?;
    let pool = r.pool();
    let rt = pool.rt().clone();
    pool.devices().set_door(Rc::new(LabDoor(r.lab.clone())));
    for _ in 0..OPS_BEFORE {
        r.step().await?;
    }
    if r.layout.shape.name == "removed" {
        remove_one(r).await?;
    }
    let disks = health(&pool).len();
    // Not the log of a pool.
    let mut mirrored = pool.devices().choose_split(&[]).map_err(told("choose"))?;
    let any = mirrored.swap_remove(rng.below(mirrored.len() as u64) as usize).path;
    let resilver = rng.below(3);
    if resilver == 1 {
        pool.devices().offline(&any, false).await.map_err(told("offline"))?;
        for _ in 0..20 {
            r.step().await?;
        }
    }
    r.lab.start_logs(&pool).await?;
    let steps = (vec![(Txg(0), Txg(0), r.model.clone(), true)], BTreeMap::new());
    let mut w = Watched { r, steps, n: 0 };
    match resilver {
        1 => pool.devices().bring_online(&any, false).await.map_err(told("online"))?,
        2 => {
            let used = disks + w.r.layout.shape.spares + w.r.layout.shape.caches;
            let free = w.r.lab.disks.len() - 1;
            assert!(free >= used, "a disk is free");
            let new = DevSpec { dev: w.r.lab.disks[free].dev(), is_disk: false };
            pool.devices().attach(&any, new, None, false).await.map_err(told("attach"))?;
        }
        _ => {}
    }
    for _ in 0..3 {
        w.step().await?;
    }
    wait(&pool).await?;
    let from = rt.now();
    let devices = paths(&pool);
    let all = pool.devices().choose_split(&[]).map_err(told("choose"))?;
    // Another side than the last one of a mirror.
    let mut named = Vec::new();
    if rng.percent(50) {
        let top = pool.tree().top(all[rng.below(all.len() as u64) as usize].top).map_err(told("a mirror"))?;
        let config = top.config();
        let side = &config.children[rng.below(config.children.len() as u64) as usize];
        named.push(side.guid.0.to_string());
    }
    let chosen = pool.devices().choose_split(&named).map_err(told("choose"))?;
    let sides: BTreeSet<String> = chosen.into_iter().map(|l| l.path).collect();
    if trouble != Trouble::None {
        rt.spawn("a failing side", fail_side(w.r.lab.clone(), pool.clone(), trouble, Rng::stream(seed, 0x592)));
    }
    let comment = rng.percent(50).then(|| "split off".to_string());
    let begun = rt.now();
    let (first, born) = (Rc::new(Cell::new(Txg(0))), Rc::new(Cell::new(Nanos(u64::MAX))));
    let result: Rc<RefCell<Option<Ended>>> = Rc::default();
    let task = {
        let (pool, opts, result) = (pool.clone(), w.r.layout.opts(), result.clone());
        let (first, born, comment, rt) = (first.clone(), born.clone(), comment.clone(), rt.clone());
        async move {
            let settings = async |new: &Rc<Pool>| {
                born.set(rt.now());
                first.set(new.txg().history().iter().map(|r| r.txg).min().unwrap_or_default());
                match comment.clone() {
                    Some(comment) => new.set_comment(Some(comment))?,
                    None => return Ok(()),
                }
                new.sync().await
            };
            let done = pool.split(OTHER, &named, opts, settings).await;
            *result.borrow_mut() = Some((done, rt.now()));
        }
    };
    rt.spawn("split", task);
    while result.borrow().is_none() {
        match w.n < OPS_DURING {
            true => w.step().await?,
            false => rt.sleep(Nanos::from_us(200)).await,
        }
    }
    let (done, ended) = result.borrow_mut().take().ok_or("it has ended")?;
    w.learn();
    for _ in 0..OPS_AFTER {
        w.step().await?;
    }
    let new = match (done, trouble) {
        (Ok((guid, leaves)), Trouble::None | Trouble::Unwritten) => {
            let taken: BTreeSet<String> = leaves.into_iter().map(|l| l.path).collect();
            if taken != sides {
                return Err(format!("{taken:?} were split off, not {sides:?}"));
            }
            Some(guid)
        }
        (Err(_), Trouble::Unread | Trouble::Unwritten) => {
            w.r.lab.disks.iter().for_each(|d| d.clear_faults());
            None
        }
        (Err(e), Trouble::None) => return Err(format!("split: {e:?}")),
        (Ok(_), Trouble::Unread) => return Err("a side that cannot be read was split off".into()),
    };
    let stay = if new.is_some() { &devices - &sides } else { devices.clone() };
    let now = paths(&pool);
    if now != stay {
        return Err(format!("after the split of {sides:?} from {devices:?} the pool has {now:?}"));
    }
    let mut lost = false;
    if new.is_none() {
        // What took no writes stays offline.
        for (name, _) in health(&pool).into_iter().filter(|(_, h)| *h != Health::Online) {
            match pool.devices().bring_online(&name, false).await {
                // It took no labels: it is no device of the pool any more.
                Err(e) if e.kind() == ErrorKind::NotFound => lost = true,
                done => done.map_err(told("bringing a side back"))?,
            }
        }
        wait(&pool).await?;
    }
    pool.sync().await.map_err(told("sync"))?;
    w.learn();
    let at = Txg(first.get().0.saturating_sub(1));
    let done = match new {
        Some(_) => ended,
        None if lost => Nanos(u64::MAX),
        None => rt.now(),
    };
    let (old, born) = (pool.guid(), born.get());
    Ok((w.steps, Split { old, new, devices, sides, at, comment, from, begun, born, done, trouble }))
}

fn record(seed: u64) -> Check<(Recording, Split)> {
    let layout = &LAYOUTS[seed as usize % LAYOUTS.len()];
    let runner = removecuts::runner(seed, Profile::Cuts, layout)?;
    let mut split = None;
    let rec = record_with(runner, async |r: &mut Runner| {
        let (steps, how) = run(r, seed).await?;
        split = Some(how);
        Ok(steps)
    })?;
    Ok((rec, split.ok_or("no split")?))
}

/// The model of the new pool, whose file systems have its name.
fn renamed(model: &PoolModel) -> PoolModel {
    let of = |name: &String| format!("{OTHER}{}", &name[POOL.len()..]);
    PoolModel { datasets: model.datasets.iter().map(|(name, ds)| (of(name), ds.clone())).collect() }
}

/// How an image is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Both pools are imported read-only.
    Look,
    /// Both are imported for writing.
    Write,
    /// The same, and cut again meanwhile.
    Again,
    /// Operations go on in both, which are exported, checked, imported again and scrubbed.
    GoOn,
}

/// What a cut left.
struct Left {
    /// The txg of the old pool.
    txg: Txg,
    /// Whether there is a new pool.
    born: bool,
    /// Whether no intent log was replayed.
    known: bool,
    /// Of [`Way::Again`] the disks of the import.
    logs: Vec<DiskLog>,
    /// Of [`Way::GoOn`] the images at the end, of the old and of the new pool.
    images: [Vec<DiskImage>; 2],
}

/// What a cut may leave.
struct Want<'a> {
    rec: &'a Recording,
    split: &'a Split,
    /// The moment.
    at: Nanos,
    /// If it was cut again: what was left at first.
    first: Option<(Txg, bool)>,
}

/// A pool that was imported.
struct Opened {
    pool: Rc<Pool>,
    /// Its state, if it is known: not if an intent log was replayed.
    model: Option<PoolModel>,
}

impl Want<'_> {
    /// The states that a pool of that txg may have.
    fn states(&self, name: &str, txg: Txg) -> Vec<PoolModel> {
        if name == OTHER {
            return self.rec.states(self.split.at).into_iter().map(renamed).collect();
        }
        let txg = self.first.map_or(txg, |(first, _)| first);
        self.rec.states(txg).into_iter().cloned().collect()
    }

    /// The devices that the new pool, or the old one, must have.
    fn devices_of(&self, is_new: bool, born: bool) -> BTreeSet<String> {
        match (is_new, born) {
            (true, _) => self.split.sides.clone(),
            (false, true) => &self.split.devices - &self.split.sides,
            (false, false) => self.split.devices.clone(),
        }
    }

    /// The old pool and the new one, each with its devices.
    async fn candidates(&self, lab: &Lab) -> Check<(PoolCandidate, Option<PoolCandidate>)> {
        let split = self.split;
        let mut found = spa::scan(lab.disks.iter().map(|d| d.dev() as Rc<dyn BlockDev>).collect()).await;
        let text: Vec<String> = found.iter().map(|c| format!("{} {} of {}", c.name, c.guid, c.devices.len())).collect();
        let unsure = split.is_unsure(self.at);
        let at = found.iter().position(|c| c.guid == split.old).ok_or(format!("the old pool is gone: {text:?}"))?;
        let old = found.swap_remove(at);
        if old.name != POOL {
            return Err(format!("the old pool is '{}'", old.name));
        }
        let new = found.pop();
        if unsure {
            return Ok((old, None));
        }
        if !found.is_empty() {
            return Err(format!("there are more pools than two: {text:?}"));
        }
        let must = split.new.is_some() && (self.at >= split.born || self.first.is_some_and(|(_, born)| born));
        let may = split.new.is_some() && self.at >= split.begun && self.first.is_none_or(|(_, born)| born);
        match &new {
            Some(_) if !may => return Err(format!("there is a new pool: {text:?}")),
            None if must => return Err(format!("there is no new pool: {text:?}")),
            Some(new) if Some(new.guid) != split.new || new.name != OTHER => {
                return Err(format!("the new pool is {} {}, not {OTHER} {:?}", new.name, new.guid, split.new));
            }
            _ => {}
        }
        let mut pools = vec![(&old, self.devices_of(false, new.is_some()))];
        pools.extend(new.as_ref().map(|new| (new, self.devices_of(true, true))));
        for (pool, want) in pools {
            let got: BTreeSet<String> = pool.devices.iter().map(|d| d.opened.clone()).collect();
            if got != want {
                return Err(format!("pool {} has devices {got:?}, not {want:?}", pool.name));
            }
        }
        Ok((old, new))
    }

    /// Imports a pool, compares it with the model, and looks at its devices.
    async fn import(&self, lab: &Lab, found: PoolCandidate, readonly: bool, born: bool) -> Check<Opened> {
        let (name, opts) = (found.name.clone(), self.rec.layout.opts());
        let say = |what: &str| format!("{name}: {what}");
        let ubs = found.devices.iter().flat_map(|d| &d.labels.uberblocks);
        let txg = ubs.map(|u| u.ub.txg).max().unwrap_or_default();
        let pool = import(lab, found, readonly, opts).await.map_err(|e| say(&format!("import: {e:?}")))?;
        let unsure = self.split.is_unsure(self.at);
        let notices = pool.notices();
        if !notices.is_empty() && !unsure {
            return Err(say(&format!("import: {notices:?}")));
        }
        let logged = has_logs(&pool).await.map_err(|e| say(&e))?;
        if logged && name == OTHER {
            return Err(say("it has an intent log of the old pool"));
        }
        if logged && !readonly {
            replay(&pool).await.map_err(|e| say(&e))?;
            return Ok(Opened { pool, model: None });
        }
        let mut why = Vec::new();
        for state in self.states(&name, txg) {
            match tree::compare_pool(&pool, &state, &BTreeMap::new()).await {
                Ok(()) => {
                    if !readonly {
                        self.check_devices(&pool, born).await.map_err(|e| say(&e))?;
                    }
                    return Ok(Opened { pool, model: Some(state) });
                }
                Err(e) => why.push(e),
            }
        }
        Err(say(&format!("txg {txg}: {}", why.join(" / or / "))))
    }

    /// Of a pool that is imported for writing: its devices are there, and it forgets the split.
    async fn check_devices(&self, pool: &Rc<Pool>, born: bool) -> Check {
        let (split, unsure) = (self.split, self.split.is_unsure(self.at));
        pool.sync().await.map_err(told("sync"))?;
        let is_new = pool.guid() != split.old;
        if pool.mos_config().split.is_some() {
            return Err("the split is not settled".into());
        }
        if is_new && self.at >= split.done && pool.mos_config().comment != split.comment {
            return Err(format!("the comment is {:?}, not {:?}", pool.mos_config().comment, split.comment));
        }
        if unsure {
            return Ok(());
        }
        let (want, has) = (self.devices_of(is_new, born), health(pool));
        if !has.keys().eq(&want) {
            return Err(format!("its devices are {has:?}, not {want:?}"));
        }
        match has.iter().find(|(_, health)| **health != Health::Online) {
            // Before the split a device may be away, and be resilvered.
            Some((path, health)) if self.at >= split.begun && split.trouble == Trouble::None => {
                Err(format!("device {path} is {}", health.name()))
            }
            _ => Ok(()),
        }
    }
}

async fn import(lab: &Lab, found: PoolCandidate, readonly: bool, opts: EngineOpts) -> base::Result<Rc<Pool>> {
    let how = ImportOpts { readonly, ..ImportOpts::default() };
    Pool::import(lab.sim.rt(), found, how, opts).await
}

async fn has_logs(pool: &Rc<Pool>) -> Check<bool> {
    for ds in pool.dsl().all() {
        if !ds.zil_header().await.map_err(told("an intent log"))?.log.is_hole() {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn replay(pool: &Rc<Pool>) -> Check {
    for ds in pool.dsl().all() {
        let name = ds.name();
        let say = |e: Error| format!("{name}: {e:?}");
        let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await.map_err(say)?;
        if let Some(e) = fs.replayed().failed {
            return Err(format!("{name}: replay: {e:?}"));
        }
        fs.unmount().await.map_err(say)?;
    }
    Ok(())
}

/// Operations on pools that were imported, in turns; then they are exported. The models of before
/// that are those of after it.
async fn go_on(seed: u64, lab: &Rc<Lab>, rec: &Recording, pools: Vec<Opened>) -> Check<Vec<Option<PoolModel>>> {
    let mut runners = Vec::new();
    for (n, Opened { pool, model }) in pools.into_iter().enumerate() {
        wait(&pool).await?;
        runners.push(match model {
            Some(model) => Ok(Runner::on(seed.wrapping_add(n as u64), lab, pool, model, &rec.layout)?),
            None => Err(pool),
        });
    }
    for _ in 0..OPS_LATER {
        for r in runners.iter_mut().flatten() {
            r.step().await.map_err(|e| format!("after the import: {e}: after {:?}", r.trace))?;
        }
    }
    let mut models = Vec::new();
    for r in runners {
        let (pool, model) = match r {
            Ok(mut r) => {
                r.compare().await.map_err(|e| format!("after the import: {e}"))?;
                r.settle().await?;
                (r.pool(), Some(r.model.clone()))
            }
            Err(pool) => (pool, None),
        };
        while pool.dsl().has_freeing() {
            pool.sync().await.map_err(told("sync"))?;
        }
        pool.export().await.map_err(told("export"))?;
        models.push(model);
    }
    Ok(models)
}

/// Imports what was exported, compares it, and scrubs it.
async fn look_again(lab: &Lab, want: &Want<'_>, models: &[Option<PoolModel>]) -> Check {
    let (old, new) = want.candidates(lab).await.map_err(|e| format!("after the exports: {e}"))?;
    for (found, model) in [Some(old), new].into_iter().flatten().zip(models) {
        let name = found.name.clone();
        let say = |e: String| format!("{name}, imported again: {e}");
        let pool = import(lab, found, false, want.rec.layout.opts()).await.map_err(|e| say(format!("{e:?}")))?;
        if let Some(model) = model {
            tree::compare_pool(&pool, model, &BTreeMap::new()).await.map_err(say)?;
        }
        if !want.split.is_unsure(want.at) && want.at >= want.split.begun {
            scrub_clean(&pool).await.map_err(say)?;
        }
        pool.export().await.map_err(|e| say(format!("export: {e:?}")))?;
    }
    Ok(())
}

/// Looks at an image.
async fn look(seed: u64, lab: &Rc<Lab>, want: &Want<'_>, way: Way) -> Check<Left> {
    if way == Way::Again {
        lab.disks.iter().for_each(|d| d.start_log());
    }
    let (old, new) = want.candidates(lab).await?;
    let ubs = old.devices.iter().flat_map(|d| &d.labels.uberblocks);
    let txg = ubs.map(|u| u.ub.txg).max().ok_or("no uberblock")?;
    let born = new.is_some();
    let mut rng = Rng::stream(seed, 0x593);
    // The disks of the new pool by their numbers.
    let path = |c: &PoolCandidate| c.devices.iter().map(|d| d.opened.clone()).collect::<Vec<String>>();
    let theirs = new.as_ref().map(path).unwrap_or_default();
    let mut left = Left { txg, born, known: true, logs: Vec::new(), images: Default::default() };
    let (new_first, beside) = (rng.percent(50), rng.percent(50));
    let mut order: Vec<PoolCandidate> = [Some(old), new].into_iter().flatten().collect();
    if new_first {
        order.reverse();
    }
    let (mut pools, mut models) = (Vec::new(), Vec::new());
    for found in order {
        let opened = want.import(lab, found, way == Way::Look, born).await?;
        left.known &= opened.model.is_some();
        match way {
            Way::GoOn if !beside => models.extend(go_on(seed, lab, want.rec, vec![opened]).await?),
            _ => pools.push(opened),
        }
    }
    match way {
        Way::Look | Way::Write => {}
        Way::Again => left.logs = lab.disks.iter().filter_map(|d| d.take_log()).collect(),
        Way::GoOn => {
            if beside {
                models = go_on(seed, lab, want.rec, pools).await?;
            }
            if new_first {
                models.reverse();
            }
            let (new, old): (Vec<_>, Vec<_>) = lab.disks.iter().partition(|d| theirs.contains(&d.dev().info().path));
            // Where it is not sure whose the sides are, only the engine can tell the pools apart.
            if !want.split.is_unsure(want.at) {
                left.images = [old, new].map(|disks| disks.into_iter().map(|d| d.image()).collect());
            }
            look_again(lab, &Want { first: Some((txg, born)), ..*want }, &models).await?;
        }
    }
    Ok(left)
}

fn check_cut(seed: u64, images: Vec<DiskImage>, want: &Want<'_>, way: Way) -> Check<Left> {
    let lab = Rc::new(Lab::with_images(seed, images, true));
    let result = catch_unwind(AssertUnwindSafe(|| {
        let out = lab.sim.try_block_on_for(Nanos::from_secs(3600), look(seed, &lab, want, way));
        lab.sim.crash();
        let left = out.map_err(|report| format!("stalled: {report}"))??;
        for (images, name) in left.images.iter().zip([POOL, OTHER]).filter(|(images, _)| !images.is_empty()) {
            check_images(images).map_err(|e| format!("{name}: {e}"))?;
        }
        Ok(left)
    }));
    match result {
        Ok(out) => out,
        Err(panic) => {
            std::mem::forget(lab);
            Err(format!("panic: {}", panic_text(&*panic)))
        }
    }
}

/// Totals and findings of a seed.
struct Found {
    tally: CutTally,
    faults: Vec<Finding>,
}

impl Found {
    fn torn(&mut self, name: &str, why: &str) {
        self.tally.torn += 1;
        self.faults.push(format!("{name}: torn: {why}"));
    }
    /// Has zdb judge the images of a pool.
    fn judge(&mut self, name: &str, images: &[DiskImage], pool: &str, scratch: &str) {
        self.tally.zdb += 1;
        match judge::ask_about_space_of(images, scratch, pool) {
            Verdict::Good => {}
            Verdict::Missing(what) => {
                self.tally.missing += 1;
                self.faults.push(format!("{name}: missing: {what}"));
            }
            Verdict::Bad(why) => {
                self.tally.zdb_bad += 1;
                self.faults.push(format!("{name}: pool {pool}: {why}"));
            }
        }
    }
}

/// Cuts an import that ended, and looks at what that leaves.
fn cut_again(seed: u64, left: &Left, want: &Want<'_>) -> Check {
    let moments = completions(&left.logs);
    if moments.is_empty() {
        return Ok(());
    }
    let mut rng = Rng::stream(seed, 0x594);
    let seq = moments[rng.below(moments.len() as u64) as usize];
    let images: Vec<DiskImage> = (0..).zip(&left.logs).map(|(d, l)| l.cut_at(seq, seed ^ (d << 33))).collect();
    let again = Want { first: Some((left.txg, left.born)), ..*want };
    let way = [Way::Look, Way::Write, Way::GoOn][rng.below(3) as usize];
    check_cut(seed ^ 7, images, &again, way).map(drop).map_err(|e| format!("cut again at {seq}: {e}"))
}

/// Records the split of a seed and cuts it at every `every`th completion. `zdb` images of pools are
/// given to zdb.
pub fn cut_seed(seed: u64, zdb: u64, every: usize) -> (CutTally, Vec<Finding>) {
    let mut found = Found { tally: CutTally::default(), faults: Vec::new() };
    let (rec, split) = match record(seed) {
        Ok(recorded) => recorded,
        Err(e) => {
            found.torn(&format!("seed {seed}"), &format!("recording: {e}"));
            return (found.tally, found.faults);
        }
    };
    let time_of = |seq: u64| rec.logs.iter().filter_map(|l| l.time_of(seq)).max().unwrap_or_default();
    let moments = rec.completions().into_iter().filter(|seq| time_of(*seq) >= split.from);
    let moments: Vec<u64> = moments.step_by(every).collect();
    let mut replays: Vec<_> = rec.logs.iter().map(DiskLog::replay).collect();
    let zdb_every = if zdb == 0 { usize::MAX } else { (moments.len() / 4 / zdb as usize).max(1) };
    for (n, seq) in moments.iter().enumerate() {
        let cut_seed = seed.wrapping_mul(1_000_003).wrapping_add(*seq);
        let images = images_at(&mut replays, *seq, cut_seed);
        found.tally.cuts += 1;
        let at = time_of(*seq);
        let name = format!("seed {seed} cut {n} (moment {seq})");
        let want = Want { rec: &rec, split: &split, at, first: None };
        let way = match n % 4 {
            0 => Way::GoOn,
            2 if !split.is_unsure(at) => Way::Again,
            _ => Way::Write,
        };
        let left = match check_cut(cut_seed, images.clone(), &want, way) {
            Ok(left) => left,
            Err(e) => {
                found.torn(&name, &e);
                continue;
            }
        };
        let txg = left.txg;
        if rec.is_lost(txg, rec.committed(at)) {
            found.tally.lost += 1;
            found.faults.push(format!("{name}: lost: txg {txg} was found, {} was on disk", rec.committed(at)));
        }
        if txg > rec.begun(at) {
            found.tally.future += 1;
            found.faults.push(format!("{name}: future: txg {txg} was found, {} had begun", rec.begun(at)));
        }
        if n % 4 == 1 {
            match check_cut(cut_seed ^ 1, images, &want, Way::Look) {
                Ok(same) if (same.txg, same.born) == (left.txg, left.born) => {}
                Ok(other) => found.torn(&name, &format!("txg {} read-only, {txg} for writing", other.txg)),
                Err(e) => found.torn(&name, &format!("imported read-only: {e}")),
            }
        }
        if way == Way::Again
            && left.known
            && let Err(e) = cut_again(cut_seed, &left, &want)
        {
            found.torn(&name, &e);
        }
        if way == Way::GoOn && (n / 4) % zdb_every == zdb_every - 1 && found.tally.zdb < zdb {
            for (images, pool) in left.images.iter().zip([POOL, OTHER]).filter(|(images, _)| !images.is_empty()) {
                found.judge(&name, images, pool, &format!("split-{seed}-{n}"));
            }
        }
    }
    (found.tally, found.faults)
}
