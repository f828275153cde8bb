//! Cutting a recorded run of synchronous load: the power fails right after any completion of a
//! device, and everything that was acknowledged is there afterwards.
//!
//! A [`Recording`] is the log of the disks under a load, and a [`Subject`]: what the load changed,
//! with the history of its own. For each cut the disks are put together as it may leave them. The
//! pool is imported and claimed, the subject opens what it used, which replays the intent log, and
//! looks; what it sees must be legal at that moment. Some cuts are cut again while they are
//! replayed: that must give the same. Some go to zdb, and those of pools with every
//! feature to the checker. A crash with the same bytes as an earlier one wherever its recovery read
//! is only judged ([`Memory`]).

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use base::Nanos;
use sim::{CutStyle, DiskImage, DiskLog, Rng};
use spa::{ImportOpts, Pool};
use zil::ZilStats;

use crate::campaign::panic_text;
use crate::cuts::completions;
use crate::judge::{self, Verdict};
use crate::lab::{Lab, Layout};
use crate::owners::check_owners;
use crate::snaps::check_images;
use crate::zilseen::{Memory, Wrong};
use crate::ziltrouble::Trouble;
use crate::{Check, Fault};

/// What a load changed.
pub(crate) trait Subject {
    /// What is open after an import.
    type Open;
    /// The state that is there.
    type Seen: PartialEq + Debug;
    /// Opens what the load used, and gives the number of records that were replayed.
    async fn open(&self, pool: &Rc<Pool>) -> Result<(Self::Open, u64), Wrong>;
    /// Reads everything.
    async fn look(&self, open: &Self::Open) -> Result<Self::Seen, Wrong>;
    /// Closes it before an export.
    async fn close(&self, open: Self::Open) -> Result<(), Wrong>;
    /// Compares what was seen with the states that a cut after the device operation `at` may show.
    fn judge(&self, seen: &Self::Seen, at: u64) -> Result<(), Wrong>;
    /// Ranges of files cloned in the recording.
    fn clones(&self) -> u64 {
        0
    }
}

/// A recorded run.
pub(crate) struct Recording<S> {
    pub(crate) logs: Vec<DiskLog>,
    pub(crate) layout: Layout,
    pub(crate) subject: S,
    /// Commits acknowledged.
    pub(crate) acks: u64,
    /// Statistics of the log.
    pub(crate) stats: ZilStats,
    /// How it is imported.
    pub(crate) import: ImportOpts,
    /// The seed and the parameters drawn from it.
    pub(crate) name: String,
}

/// Runs a load in a world; a panic or a stall is an error.
pub(crate) fn run_world<T>(lab: Lab, work: impl AsyncFnOnce(&Lab) -> Check<T>) -> Check<T> {
    let result = catch_unwind(AssertUnwindSafe(|| {
        let run = lab.sim.try_block_on_for(Nanos::from_secs(3600), work(&lab));
        run.map_err(|report| format!("stalled: {report}"))?
    }));
    match result {
        Ok(Ok(out)) => {
            lab.sim.crash();
            Ok(out)
        }
        Ok(Err(e)) => {
            std::mem::forget(lab);
            Err(e)
        }
        Err(panic) => {
            std::mem::forget(lab);
            Err(format!("panic: {}", panic_text(&*panic)))
        }
    }
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
    /// Images in which it, or the checker, found something.
    pub zdb_bad: u64,
    /// Images that zdb could not judge.
    pub missing: u64,
    /// Commits acknowledged in the recordings.
    pub acks: u64,
    /// Log blocks that failed, and commits that found no room, in the recordings.
    pub failures: u64,
    /// Ranges of files cloned in the recordings.
    pub clones: u64,
    /// Images given to the checker after replay.
    pub checked: u64,
}

impl ZilTally {
    fn fields(&mut self) -> [(&'static str, &mut u64); 15] {
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
            ("clones", &mut self.clones),
            ("checked", &mut self.checked),
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
    /// Those images, with nothing left to be freed in the background.
    check: bool,
}

/// The result of a recovery.
struct Recovery<T> {
    seen: Rc<T>,
    /// Records replayed.
    applied: u64,
    /// Offset and length of the reads of each disk, up to the end of the comparison's reads.
    reads: Vec<Vec<(u64, u64)>>,
    logs: Vec<DiskLog>,
    images: Vec<DiskImage>,
}

/// Recovers from a crash: import, claim, replay, look.
fn recover<S: Subject>(
    rec: &Recording<S>,
    images: Vec<DiskImage>,
    seed: u64,
    asked: Asked,
) -> Result<Recovery<S::Seen>, Wrong> {
    let lab = Lab::with_images(seed, images, true);
    let subject = &rec.subject;
    let work = async {
        for disk in &lab.disks {
            disk.watch_reads();
            if asked.log {
                disk.start_log();
            }
        }
        let import = lab.import_as(rec.import.clone(), rec.layout.opts()).await;
        let pool = import.map_err(|e| Wrong::Torn(format!("import: {e:?}")))?;
        let (open, applied) = subject.open(&pool).await?;
        let seen = Rc::new(subject.look(&open).await?);
        let reads = lab.disks.iter().map(|d| d.take_reads()).collect();
        let logs = if asked.log { lab.disks.iter().filter_map(|d| d.take_log()).collect() } else { Vec::new() };
        let mut images = Vec::new();
        if asked.export || asked.check {
            subject.close(open).await?;
            pool.sync().await.map_err(|e| Wrong::Torn(format!("sync: {e:?}")))?;
            check_owners(&pool, None).await.map_err(Wrong::Torn)?;
            while asked.check && pool.dsl().has_freeing() {
                pool.sync().await.map_err(|e| Wrong::Torn(format!("sync: {e:?}")))?;
            }
            pool.export().await.map_err(|e| Wrong::Torn(format!("export: {e:?}")))?;
            images = lab.images();
        }
        Ok(Recovery { seen, applied, reads, logs, images })
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
    /// The pool has every feature that weir writes, and files have long names.
    pub all: bool,
}

/// Of the crashes that are known already every so many is recovered nevertheless.
const KNOWN_AGAIN: u64 = 50;
/// One crash of a pool with every feature in so many goes to the checker after replay.
const CHECKED: u64 = 12;

/// A campaign's totals and findings so far.
struct Findings {
    tally: ZilTally,
    faults: Vec<Fault>,
    name: String,
}

impl Findings {
    fn note(&mut self, what: &str, wrong: Wrong) {
        let (count, word, why) = match wrong {
            Wrong::Lost(why) => (&mut self.tally.lost, "lost", why),
            Wrong::Torn(why) => (&mut self.tally.torn, "torn", why),
            Wrong::Future(why) => (&mut self.tally.future, "future", why),
        };
        *count += 1;
        self.faults.push(format!("{} {what}: {word}: {why}", self.name));
    }
}

/// Cuts a recording of a seed as `how` says; a recording that failed is a finding.
pub(crate) fn cut_recording<S: Subject>(
    seed: u64,
    recorded: Check<Recording<S>>,
    how: Cutting,
) -> (ZilTally, Vec<Fault>) {
    let tally = ZilTally { seeds: 1, ..ZilTally::default() };
    let rec = match recorded {
        Ok(rec) => rec,
        Err(e) => return (ZilTally { torn: 1, ..tally }, vec![e]),
    };
    let mut found = Findings { tally, faults: Vec::new(), name: rec.name.clone() };
    (found.tally.acks, found.tally.failures) = (rec.acks, rec.stats.failures + rec.stats.stalls);
    found.tally.clones = rec.subject.clones();
    // Without the log devices a crash loses the records on them: nothing to compare.
    if how.trouble == Trouble::LogGone {
        return (found.tally, found.faults);
    }
    let mut replays: Vec<_> = rec.logs.iter().map(DiskLog::replay).collect();
    let mut memory = Memory::default();
    for moment in completions(&rec.logs).into_iter().step_by(how.every.max(1)) {
        replays.iter_mut().for_each(|r| r.to_seq(moment));
        for repeat in 0..how.repeats {
            let cut_seed = seed.wrapping_mul(1_000_003).wrapping_add(moment).wrapping_add(repeat << 48);
            let images: Vec<DiskImage> =
                (0..).zip(&replays).map(|(d, r)| r.cut(CutStyle::Seeded, cut_seed.wrapping_add(d << 40))).collect();
            found.tally.cuts += 1;
            cut_once(&rec, (cut_seed, moment, repeat), images, how, &mut memory, &mut found);
        }
    }
    (found.tally, found.faults)
}

/// One cut: its recovery is judged.
fn cut_once<S: Subject>(
    rec: &Recording<S>,
    (cut_seed, moment, repeat): (u64, u64, u64),
    images: Vec<DiskImage>,
    how: Cutting,
    memory: &mut Memory<S::Seen>,
    found: &mut Findings,
) {
    let mut draw = Rng::stream(cut_seed, 0xa5c);
    let (log, export) = (draw.one_in(how.second), draw.one_in(how.zdb));
    let asked = Asked { log, export, check: how.all && draw.one_in(CHECKED) };
    let what = format!("cut at {moment}.{repeat}");
    let known = memory.find(&images);
    // One known crash in so many is recovered again, to verify the memory.
    if let Some((seen, applied)) = &known
        && !asked.log
        && !asked.export
        && !asked.check
        && !draw.one_in(KNOWN_AGAIN)
    {
        found.tally.alike += 1;
        found.tally.replayed += applied;
        if let Err(wrong) = rec.subject.judge(seen, moment) {
            found.note(&what, wrong);
        }
        return;
    }
    let done = match recover(rec, images.clone(), cut_seed, asked) {
        Ok(done) => done,
        Err(wrong) => return found.note(&what, wrong),
    };
    found.tally.replayed += done.applied;
    if let Err(wrong) = rec.subject.judge(&done.seen, moment) {
        found.note(&what, wrong);
    }
    if asked.log {
        second_cut(rec, &done.logs, (cut_seed, moment), how, &what, found);
    }
    if asked.export {
        ask(&done.images, &what, found);
    }
    if asked.check {
        check(&done.images, &what, found);
    }
    match known {
        Some((seen, _)) if seen != done.seen => {
            let why = format!("one crash gave two states: {seen:?} and {:?}", done.seen);
            found.note(&what, Wrong::Torn(why));
        }
        Some(_) => {}
        None => memory.learn(images, done.reads, done.seen, done.applied),
    }
}

/// Cuts the recovery from a crash, and recovers from that.
fn second_cut<S: Subject>(
    rec: &Recording<S>,
    logs: &[DiskLog],
    (seed, at): (u64, u64),
    how: Cutting,
    what: &str,
    found: &mut Findings,
) {
    let moments = completions(logs);
    if moments.is_empty() {
        return;
    }
    let mut rng = Rng::stream(seed, 0x2ec);
    let moment = moments[rng.below(moments.len() as u64) as usize];
    let images = (0..).zip(logs).map(|(d, l)| l.cut_at(moment, seed ^ (d << 33))).collect();
    found.tally.second += 1;
    let what = format!("{what}, cut again");
    let done = match recover(rec, images, seed ^ 7, Asked { check: how.all, ..Asked::default() }) {
        Ok(done) => done,
        Err(wrong) => return found.note(&what, wrong),
    };
    if let Err(wrong) = rec.subject.judge(&done.seen, at) {
        found.note(&what, wrong);
    }
    if how.all {
        check(&done.images, &what, found);
    }
}

/// Gives images to the checker.
fn check(images: &[DiskImage], what: &str, found: &mut Findings) {
    found.tally.checked += 1;
    if let Err(why) = check_images(images) {
        found.tally.zdb_bad += 1;
        found.faults.push(format!("{} {what}: {why}", found.name));
    }
}

/// Gives images to zdb.
fn ask(images: &[DiskImage], what: &str, found: &mut Findings) {
    found.tally.zdb += 1;
    match judge::ask_about_space(images, "zilcut") {
        Verdict::Good => {}
        Verdict::Missing(why) => {
            found.tally.missing += 1;
            found.faults.push(format!("{} {what}: missing: {why}", found.name));
        }
        Verdict::Bad(why) => {
            found.tally.zdb_bad += 1;
            found.faults.push(format!("{} {what}: {why}", found.name));
        }
    }
}
