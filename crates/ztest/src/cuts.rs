//! Power cuts: one recorded run, cut at every completion of any of its devices.
//!
//! A workload with a txg every few operations runs on disks with a volatile cache, and all their
//! operations are logged. For each completion the disks are then put together as a power cut at
//! that moment may leave them: of the unflushed writes some are kept, some lost, some torn. Each of
//! these images is imported for writing, some read-only too, and must hold exactly one state: that
//! of the txg in its uberblock. The intent log is for another campaign ([`crate::zilcuts`]).
//!
//! * *lost*: it is older than a txg whose sync had ended by then;
//! * *future*: it is younger than any txg whose sync had begun;
//! * *torn*: it does not import, or is not the state of its txg.
//!
//! What the file systems say of their users, groups and projects must be what their dnodes say
//! ([`crate::owners`]), and the limits those of the model; a workload of its own changes these.
//!
//! To which txg an operation belongs is known from the open txg before and after it. If the two
//! differ, either is taken; the workload of this profile does nothing that needs several
//! transactions for one visible change.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use base::{Nanos, Txg};
use ondisk::blkptr::CHECKSUM_OFF;
use sim::{CutStyle, DiskImage, DiskLog, Replay};
use spa::{ImportOpts, Pool};
use vdev::Health;
use zpl::{MountOpts, Zfs};

use crate::campaign::{drive, panic_text};
use crate::devices::Changer;
use crate::expandcuts;
use crate::judge::{self, Verdict};
use crate::lab::{Lab, Layout, Shape};
use crate::model::PoolModel;
use crate::owners::check_owners;
use crate::removecuts;
use crate::snaps::check_images;
use crate::workload::{Profile, Runner};
use crate::{Check, Fault, tree};

/// A recorded run.
pub struct Recording {
    /// The log of each disk.
    pub logs: Vec<DiskLog>,
    /// The disks at the end.
    pub images: Vec<DiskImage>,
    /// The devices and limits.
    pub layout: Layout,
    /// Files were cloned.
    pub has_clones: bool,
    /// (Open txg before, open txg after, state after, whether it changed) of every operation, in
    /// order; the first is the state at the beginning.
    ops: Vec<(Txg, Txg, PoolModel, bool)>,
    /// When each txg's sync began and ended.
    synced: BTreeMap<Txg, (Nanos, Nanos)>,
}

impl Recording {
    /// States that a pool whose last txg is `txg` may have.
    pub fn states(&self, txg: Txg) -> Vec<&PoolModel> {
        // An operation that saw `txg` open and ended with a later one open belongs to either.
        let sure = self.ops.iter().rposition(|(_, after, ..)| *after <= txg).unwrap_or(0);
        let mut out: Vec<&PoolModel> = Vec::new();
        for (n, (before, after, state, _)) in self.ops.iter().enumerate() {
            if n == sure || (n > sure && *before <= txg && *after > txg) {
                out.push(state);
            }
        }
        out.reverse();
        out
    }
    /// Whether a change is missing from `txg` although it was on disk with `committed`. (A txg
    /// without changes leaves no trace.)
    pub(crate) fn is_lost(&self, txg: Txg, committed: Txg) -> bool {
        self.ops.iter().any(|(before, after, _, changed)| *changed && *before > txg && *after <= committed)
    }
    pub(crate) fn committed(&self, at: Nanos) -> Txg {
        self.synced.iter().filter(|(_, (_, end))| *end < at && end.0 > 0).map(|(t, _)| *t).max().unwrap_or_default()
    }
    pub(crate) fn begun(&self, at: Nanos) -> Txg {
        self.synced
            .iter()
            .filter(|(_, (start, _))| *start <= at && start.0 > 0)
            .map(|(t, _)| *t)
            .max()
            .unwrap_or_default()
    }
    /// Whether data without checksums was written at any time.
    pub fn lacks_checksums(&self) -> bool {
        let off = |m: &PoolModel| m.datasets.keys().any(|name| m.prop(name, "checksum") == u64::from(CHECKSUM_OFF));
        self.ops.iter().any(|(_, _, state, _)| off(state))
    }
    /// The last txg.
    pub fn last(&self) -> Txg {
        self.synced.keys().copied().max().unwrap_or_default()
    }
    /// Moments at which something completed, on any disk.
    pub fn completions(&self) -> Vec<u64> {
        completions(&self.logs)
    }
}

/// Moments at which something completed, on any of the disks.
pub fn completions(logs: &[DiskLog]) -> Vec<u64> {
    let mut all: Vec<u64> = logs.iter().flat_map(|l| l.completions()).collect();
    all.sort_unstable();
    all
}

/// The disks as a power cut at the moment `seq` may leave them: `seed` and the number of the disk
/// decide what is lost.
pub fn images_at(replays: &mut [Replay], seq: u64, seed: u64) -> Vec<DiskImage> {
    let cut = |(d, replay): (u64, &mut Replay)| {
        replay.to_seq(seq);
        replay.cut(CutStyle::Seeded, seed.wrapping_add(d << 40))
    };
    (0..).zip(replays).map(cut).collect()
}

/// Runs a workload of `txgs` txgs and records it. With `lying` the disks ignore flushes, which must
/// be noticed.
pub fn record(seed: u64, txgs: u64, lying: bool) -> Check<Recording> {
    record_on(seed, txgs, lying, None, false)
}

/// The same; with a shape, on a pool of that shape whose devices change all the time, with `all` on
/// one with every feature that weir writes.
pub fn record_on(seed: u64, txgs: u64, lying: bool, shape: Option<&'static Shape>, all: bool) -> Check<Recording> {
    let mut runner = match shape {
        Some(shape) => crate::devices::runner(seed, Profile::Cuts, shape)?,
        None => Runner::new(seed, Profile::Cuts)?,
    };
    if all {
        runner.have_all_features();
    }
    let mut changer = shape.map(|_| Changer::new(seed));
    record_with(runner, async |r: &mut Runner| run(r, txgs, lying, changer.as_mut()).await)
}

/// Records what a runner does.
pub(crate) fn record_with(mut runner: Runner, work: impl AsyncFnOnce(&mut Runner) -> Check<Steps>) -> Check<Recording> {
    let result = catch_unwind(AssertUnwindSafe(|| drive(&mut runner, work)));
    let why = match result {
        Ok(Ok((ops, synced))) => {
            let logs: Vec<DiskLog> = runner.lab.disks.iter().filter_map(|d| d.take_log()).collect();
            let images = runner.lab.images();
            let layout = runner.layout.clone();
            let has_clones = runner.clones > 0;
            runner.lab.sim.crash();
            return Ok(Recording { logs, images, layout, has_clones, ops, synced });
        }
        Ok(Err(e)) => e,
        Err(panic) => format!("panic: {}", panic_text(&*panic)),
    };
    let trace: Vec<&str> = runner.trace.iter().map(String::as_str).collect();
    let why = format!("{why}\n    after: {}", trace.join("\n           "));
    std::mem::forget(runner);
    Err(why)
}

/// The operations as [`Recording`] has them, and when each txg's sync began and ended.
pub(crate) type Steps = (Vec<(Txg, Txg, PoolModel, bool)>, BTreeMap<Txg, (Nanos, Nanos)>);

async fn run(r: &mut Runner, txgs: u64, lying: bool, mut changer: Option<&mut Changer>) -> Check<Steps> {
    r.create().await?;
    for _ in 0..20 {
        r.step().await?;
    }
    let pool = r.pool();
    r.lab.start_logs(&pool).await?;
    for disk in r.lab.disks.iter().filter(|_| lying) {
        disk.fault(sim::Fault::LyingFlush);
    }
    let txg = pool.txg().clone();
    let first = txg.last_synced();
    let mut ops = vec![(Txg(0), Txg(0), r.model.clone(), true)];
    let mut synced = BTreeMap::new();
    let mut learn = |txg: &txg::TxgPool| {
        for record in txg.history() {
            synced.insert(record.txg, (record.sync_start, record.synced));
        }
    };
    while txg.last_synced().0 < first.0 + txgs {
        let (before, changes) = (txg.open_txg(), r.changes);
        r.step().await?;
        if let Some(changer) = &mut changer
            && r.ops.is_multiple_of(3)
        {
            let lab = r.lab.clone();
            changer.step(&lab, &pool).await?;
        }
        ops.push((before, txg.open_txg(), r.model.clone(), r.changes != changes));
        if r.ops.is_multiple_of(5) {
            txg.kick();
            r.lab.sim.rt().sleep(Nanos::from_us(150 * (r.ops % 7))).await;
        }
        learn(&txg);
    }
    pool.sync().await.map_err(|e| format!("sync: {e:?}"))?;
    learn(&txg);
    Ok((ops, synced))
}

/// Totals of many cuts.
#[derive(Clone, Copy, Default, Debug)]
pub struct CutTally {
    /// Cuts.
    pub cuts: u64,
    /// Too old.
    pub lost: u64,
    /// Not a state, or not importable.
    pub torn: u64,
    /// Too young.
    pub future: u64,
    /// Images given to zdb.
    pub zdb: u64,
    /// Images in which zdb found something.
    pub zdb_bad: u64,
    /// Images that zdb could not judge.
    pub missing: u64,
}

impl CutTally {
    /// Adds up.
    pub fn add(&mut self, o: CutTally) {
        self.cuts += o.cuts;
        self.lost += o.lost;
        self.torn += o.torn;
        self.future += o.future;
        self.zdb += o.zdb;
        self.zdb_bad += o.zdb_bad;
        self.missing += o.missing;
    }
    /// That of a seed without a finding, from its cuts and images.
    pub fn of_good(figures: &[u64]) -> Option<CutTally> {
        let &[cuts, zdb] = figures else { return None };
        Some(CutTally { cuts, zdb, ..CutTally::default() })
    }
    /// Whether nothing was found.
    pub fn is_good(&self) -> bool {
        self.lost + self.torn + self.future + self.zdb_bad + self.missing == 0
    }
}

/// Work that lives across imports.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Long {
    /// The expansion of a RAID-Z.
    Expansion,
    /// The removal of a vdev with data.
    Removal,
}

/// How an image is imported.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Read-only.
    Look,
    /// For writing.
    Write,
    /// The same, and exported afterwards.
    Export,
    /// The same after the long work has come to its end, and a scrub.
    Finish,
    /// The same after the removal was cancelled.
    Cancel,
}

/// Imports images in a world of their own and compares; the txg that was found, and whether it
/// could be compared.
fn check_image(seed: u64, images: Vec<DiskImage>, rec: &Recording, way: Way, long: Option<Long>) -> Check<(Txg, bool)> {
    let lab = Lab::with_images(seed, images, true);
    let work = async {
        let found = lab.find().await.map_err(|e| format!("import: {e:?}"))?;
        let newest = found.devices.iter().flat_map(|d| &d.labels.uberblocks).max_by_key(|u| u.ub.rank());
        let txg = newest.map(|u| u.ub.txg).ok_or("no uberblock")?;
        let import = ImportOpts { readonly: way == Way::Look, ..ImportOpts::default() };
        let pool = Pool::import(lab.sim.rt(), found, import, rec.layout.opts());
        let pool = pool.await.map_err(|e| format!("import: {e:?}"))?;
        let strange = pool.notices();
        if !strange.is_empty() {
            return Err(format!("import: {strange:?}"));
        }
        let tops = pool.tree().tops.borrow().clone();
        let mut conditions = tops.iter().flat_map(|top| top.kind().conditions());
        if let Some((guid, _)) = conditions.find(|(_, c)| c.health() == Health::Unavail) {
            return Err(format!("import: txg {txg}: device {guid} was not found"));
        }
        // Mounting replays the acknowledged changes since the txg, and so goes beyond it: then only
        // a read-only import shows the txg.
        let mut logged = false;
        for ds in pool.dsl().all() {
            logged |= !ds.zil_header().await.map_err(|e| format!("{}: {e:?}", ds.name()))?.log.is_hole();
        }
        if logged && way != Way::Look {
            for ds in pool.dsl().all() {
                let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await;
                let fs = fs.map_err(|e| format!("{} does not open: {e:?}", ds.name()))?;
                if let Some(e) = fs.replayed().failed {
                    return Err(format!("{}: replay: {e:?}", ds.name()));
                }
                fs.unmount().await.map_err(|e| format!("{}: unmount: {e:?}", ds.name()))?;
            }
            pool.sync().await.map_err(|e| format!("sync: {e:?}"))?;
            check_owners(&pool, None).await.map_err(|e| format!("txg {txg}, after replay: {e}"))?;
            return Ok((pool, (txg, false)));
        }
        let mut why = Vec::new();
        let same = async |state| {
            tree::compare_pool(&pool, state, &BTreeMap::new()).await?;
            check_owners(&pool, Some(state)).await
        };
        for state in rec.states(txg) {
            match same(state).await {
                Ok(()) if matches!(way, Way::Finish | Way::Cancel) => {
                    if way == Way::Cancel && pool.devices().evacuator().is_busy() {
                        removecuts::cancel(&pool).await?;
                    }
                    expandcuts::finish(&pool).await?;
                    let after = tree::compare_pool(&pool, state, &BTreeMap::new()).await;
                    after.map_err(|e| format!("txg {txg}, at the end: {e}"))?;
                    return Ok((pool, (txg, true)));
                }
                Ok(()) => return Ok((pool, (txg, true))),
                Err(e) => why.push(e),
            }
        }
        Err(format!("txg {txg}: {}", why.join(" / or / ")))
    };
    // Of clones a comparison shows too few references, the checker too many as well.
    // It also sees whether copies of a removal under way are those of what is in use.
    let ends = matches!(way, Way::Finish | Way::Cancel);
    let wanted = rec.has_clones || long == Some(Long::Removal);
    let checked = way == Way::Export && wanted && rec.layout.shape.is_read_by_checker() || ends;
    let result = catch_unwind(AssertUnwindSafe(|| {
        let out = lab.sim.try_block_on_for(Nanos::from_secs(3600), async {
            let (pool, found) = work.await?;
            if way == Way::Export || ends {
                while checked && pool.dsl().has_freeing() {
                    pool.sync().await.map_err(|e| format!("sync: {e:?}"))?;
                }
                pool.export().await.map_err(|e| format!("export: {e:?}"))?;
            }
            Check::Ok(found)
        });
        if way == Way::Write {
            lab.sim.crash();
        }
        let found = out.map_err(|report| format!("stalled: {report}"))??;
        if checked {
            check_images(&lab.images())?;
        }
        Ok(found)
    }));
    match result {
        Ok(out) => out,
        Err(panic) => {
            std::mem::forget(lab);
            Err(format!("panic: {}", panic_text(&*panic)))
        }
    }
}

/// Records a seed and cuts it everywhere. `zdb` of the images are given to zdb. `every`: only each
/// nth cut.
pub fn cut_seed(seed: u64, txgs: u64, zdb: u64, every: usize, lying: bool) -> (CutTally, Vec<Fault>) {
    cut_on(seed, txgs, zdb, every, lying, None, false)
}

/// The same; with a shape, on a pool of that shape whose devices change all the time, with `all` on
/// one with every feature that weir writes.
pub fn cut_on(
    seed: u64,
    txgs: u64,
    zdb: u64,
    every: usize,
    lying: bool,
    shape: Option<&'static Shape>,
    all: bool,
) -> (CutTally, Vec<Fault>) {
    cut_recording(seed, record_on(seed, txgs, lying, shape, all), zdb, every, None)
}

/// The same for a pool in which owners, projects and limits change; with `all` it has every feature
/// that weir writes.
pub fn cut_owners(seed: u64, txgs: u64, zdb: u64, every: usize, all: bool) -> (CutTally, Vec<Fault>) {
    let recorded = Runner::new(seed, Profile::Cuts).and_then(|mut runner| {
        runner.have_owners(all);
        record_with(runner, async |r: &mut Runner| run(r, txgs, false, None).await)
    });
    cut_recording(seed, recorded, zdb, every, None)
}

/// Cuts a recording everywhere. `long`: what is under way in it, which some cuts bring to its end.
pub(crate) fn cut_recording(
    seed: u64,
    recorded: Check<Recording>,
    zdb: u64,
    every: usize,
    long: Option<Long>,
) -> (CutTally, Vec<Fault>) {
    let mut tally = CutTally::default();
    let mut faults = Vec::new();
    let rec = match recorded {
        Ok(rec) => rec,
        Err(e) => {
            tally.torn += 1;
            return (tally, vec![format!("seed {seed}: recording: {e}")]);
        }
    };
    let moments: Vec<u64> = rec.completions().into_iter().step_by(every).collect();
    let mut replays: Vec<_> = rec.logs.iter().map(DiskLog::replay).collect();
    let zdb_every = if zdb == 0 { usize::MAX } else { (moments.len() / zdb as usize).max(1) };
    for (n, seq) in moments.iter().enumerate() {
        let cut_seed = seed.wrapping_mul(1_000_003).wrapping_add(*seq);
        let images = images_at(&mut replays, *seq, cut_seed);
        tally.cuts += 1;
        let at = rec.logs.iter().filter_map(|l| l.time_of(*seq)).max().unwrap_or_default();
        let name = format!("seed {seed} cut {n} (moment {seq})");
        // The first writes of an import show in the comparison; those of an export show only in the
        // next import, and are those of any other export.
        let way = match n % 8 {
            6 if long.is_some() => Way::Finish,
            2 if long == Some(Long::Removal) => Way::Cancel,
            0 | 4 => Way::Export,
            _ => Way::Write,
        };
        match check_image(cut_seed, images.clone(), &rec, way, long) {
            Err(e) => {
                tally.torn += 1;
                faults.push(format!("{name}: torn: {e}"));
            }
            Ok((txg, _)) if rec.is_lost(txg, rec.committed(at)) => {
                tally.lost += 1;
                faults.push(format!("{name}: lost: txg {txg} was found, {} was on disk", rec.committed(at)));
            }
            Ok((txg, _)) if txg > rec.begun(at) => {
                tally.future += 1;
                faults.push(format!("{name}: future: txg {txg} was found, {} had begun", rec.begun(at)));
            }
            Ok((txg, compared)) if n % 8 == 0 || !compared => {
                match check_image(cut_seed ^ 1, images.clone(), &rec, Way::Look, long) {
                    Ok((same, _)) if same == txg => {}
                    Ok((other, _)) => {
                        tally.torn += 1;
                        faults.push(format!("{name}: torn: txg {other} read-only, {txg} for writing"));
                    }
                    Err(e) => {
                        tally.torn += 1;
                        faults.push(format!("{name}: torn, imported read-only: {e}"));
                    }
                }
            }
            Ok(_) => {}
        }
        if n % zdb_every == zdb_every - 1 && tally.zdb < zdb {
            tally.zdb += 1;
            let verdict = match ask(&images, seed, n) {
                Verdict::Bad(why) if why.contains(DEVICES_MOVED) => ask_later(cut_seed, &images, &rec, seed, n, why),
                other => other,
            };
            match verdict {
                Verdict::Good => {}
                Verdict::Missing(what) => {
                    tally.missing += 1;
                    faults.push(format!("{name}: missing: {what}"));
                }
                Verdict::Bad(why) => {
                    tally.zdb_bad += 1;
                    faults.push(format!("{name}: {why}"));
                }
            }
        }
    }
    (tally, faults)
}

/// zdb's words when it does not find a device of the pool's configuration.
const DEVICES_MOVED: &str = "can't open 'lab': Invalid argument";

/// Labels tell of a txg before its uberblock does. Where they have another tree (a mirror became
/// the one device that is left), zdb takes the tree from the MOS and its paths too, which are not
/// those of files in a scratch folder: the same images in the place that the paths name are good
/// (`spa_ld_trusted_config` of OpenZFS 2.1: a tree that differs gets no path from the search). Such
/// images are judged after an import and an export by weir, which write all labels anew; others
/// keep the verdict `why`.
fn ask_later(cut_seed: u64, images: &[DiskImage], rec: &Recording, seed: u64, n: usize, why: String) -> Verdict {
    let lab = Lab::with_images(cut_seed ^ 2, images.to_vec(), true);
    let ahead = lab.sim.try_block_on_for(Nanos::from_secs(3600), async {
        let found = lab.find().await.map_err(|e| format!("import: {e:?}"))?;
        let ubs = found.devices.iter().flat_map(|d| &d.labels.uberblocks);
        let newest = ubs.map(|u| u.ub.txg).max().unwrap_or_default();
        let labels = found.devices.iter().flat_map(|d| &d.labels.configs);
        let mut txgs = labels.filter_map(|(_, l)| l.as_ref().ok()?.require_u64("txg").ok());
        if txgs.all(|txg| Txg(txg) <= newest) {
            return Ok(false);
        }
        let pool = Pool::import(lab.sim.rt(), found, ImportOpts::default(), rec.layout.opts());
        let pool = pool.await.map_err(|e| format!("import: {e:?}"))?;
        pool.export().await.map_err(|e| format!("export: {e:?}"))?;
        Ok::<bool, String>(true)
    });
    match ahead {
        Ok(Ok(true)) => ask(&lab.images(), seed, n),
        Ok(Ok(false)) => Verdict::Bad(why),
        Ok(Err(e)) => Verdict::Bad(format!("{why}; {e}")),
        Err(report) => Verdict::Bad(format!("{why}; stalled: {report}")),
    }
}

fn ask(images: &[DiskImage], seed: u64, n: usize) -> Verdict {
    judge::ask_about_space(images, &format!("cut-{seed}-{n}"))
}
