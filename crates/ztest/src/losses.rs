//! Devices are lost at random moments: as many as the layout tolerates, at the completion of some
//! operation of theirs, each in its own way.
//!
//! A *loss* is a device and its kind of failure ([`Way`]); it *strikes* when the device completes
//! an operation that the seed has drawn, mid-txg or not. A *round*:
//!
//! 1. losses are drawn for every top-level vdev and armed; files change, and everything is read
//!    again and again with nothing in the cache;
//! 2. perhaps the pool is exported and imported, or the power fails, with the devices as they are;
//! 3. each device is brought back (stale, rotten or whole) or replaced, while files go on changing;
//!    the missing data is resilvered;
//! 4. a scrub mends the rot; a second one must find nothing, and every device must be whole.
//!
//! Afterwards devices go that were never lost: the mended ones have to carry the pool.
//!
//! Throughout, every read must return the data written, and no operation may fail.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use base::{ErrorKind, Guid, Nanos};
use ondisk::vdev_config::VdevKind as ConfigKind;
use sim::{DiskImage, Fault, OpKind, Rng, SimDisk};
use spa::{Bias, DevSpec, GroupKind, NewDevice, Pool};
use vdev::{Health, VdevKind};

use crate::campaign::{drive, panic_text};
use crate::devices::{LabDoor, devices_text, runner};
use crate::lab::{Lab, Shape, shape};
use crate::scan::{BACK, FRONT, give_spares_back, no_rebuild, scrub, scrub_clean, settle_spares, told, wait};
use crate::workload::{Profile, Runner};
use crate::{Check, Fault as Finding};

const fn mirror(n: usize) -> (GroupKind, Bias, usize) {
    (GroupKind::Mirror, Bias::Normal, n)
}
const fn raidz(parity: u8, n: usize) -> (GroupKind, Bias, usize) {
    (GroupKind::Raidz(parity), Bias::Normal, n)
}
const fn draid(parity: u8, data: u8, spares: u8, n: usize) -> (GroupKind, Bias, usize) {
    (GroupKind::Draid { parity, data: Some(data), spares }, Bias::Normal, n)
}

/// The layouts that devices are lost from.
pub const LAYOUTS: &[Shape] = &[
    shape("mirror2", &[mirror(2)]),
    shape("raidz1-3", &[raidz(1, 3)]),
    shape("mirror3", &[mirror(3)]),
    shape("raidz2-5", &[raidz(2, 5)]),
    shape("draid1", &[draid(1, 2, 1, 5)]),
    shape("raidz3-6", &[raidz(3, 6)]),
    shape("mirror4", &[mirror(4)]),
    shape("draid2", &[draid(2, 4, 1, 9)]),
    shape("mirror2-mirror3", &[mirror(2), mirror(3)]),
    shape("raidz1-5", &[raidz(1, 5)]),
    shape("draid3", &[draid(3, 3, 1, 8)]),
    shape("raidz1-raidz2", &[raidz(1, 4), raidz(2, 4)]),
    shape("draid1-bare", &[draid(1, 2, 0, 4)]),
    shape("raidz2-mirror3", &[raidz(2, 4), mirror(3)]),
    shape("raidz3-5", &[raidz(3, 5)]),
];

/// The failure of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Operations fail: so many of a thousand of that kind.
    Errors(Option<OpKind>, u64),
    /// It is pulled out.
    Gone,
    /// Noise over its content: that share of it in percent, and the labels if so.
    Rot(u64, bool),
    /// It has an old content again, labels too.
    Reverted,
    /// So many of a thousand writes are lost, but reported as done.
    Lying(u64),
}

impl Way {
    fn draw(rng: &mut Rng) -> Way {
        match rng.below(10) {
            0 | 1 => {
                let kind = [None, Some(OpKind::Write), Some(OpKind::Read)][rng.below(3) as usize];
                Way::Errors(kind, [50, 300, 1000][rng.below(3) as usize])
            }
            2..=4 => Way::Gone,
            5..=7 => Way::Rot([100, 100, 40][rng.below(3) as usize], rng.percent(25)),
            8 => Way::Reverted,
            _ => Way::Lying([30, 500, 1000][rng.below(3) as usize]),
        }
    }
    fn spoils_labels(self) -> bool {
        matches!(self, Way::Rot(_, true) | Way::Errors(..))
    }
    /// The fault that stays with the device until it is cleared.
    fn fault(self) -> Option<Fault> {
        match self {
            Way::Errors(kind, per_mille) => Some(Fault::FailSome { kind, per_mille }),
            Way::Gone => Some(Fault::Offline),
            Way::Lying(per_mille) => Some(Fault::LoseSome { per_mille }),
            Way::Rot(..) | Way::Reverted => None,
        }
    }
}

/// Totals of many seeds.
#[derive(Clone, Copy, Default, Debug)]
pub struct Met {
    /// Devices lost.
    pub lost: u64,
    /// Of them in the middle of work, not at its end.
    pub midway: u64,
    /// Devices replaced.
    pub replaced: u64,
    /// Bytes that first scrubs mended.
    pub mended: u64,
}

impl Met {
    /// Adds up.
    pub fn add(&mut self, o: Met) {
        self.lost += o.lost;
        self.midway += o.midway;
        self.replaced += o.replaced;
        self.mended += o.mended;
    }
    /// The figures as a state file has them.
    pub fn figures(&self) -> [u64; 4] {
        [self.lost, self.midway, self.replaced, self.mended]
    }
    /// From a state file.
    pub fn of(figures: &[u64]) -> Option<Met> {
        let &[lost, midway, replaced, mended] = figures else { return None };
        Some(Met { lost, midway, replaced, mended })
    }
}

struct Loss {
    disk: usize,
    guid: Guid,
    way: Way,
    struck: Rc<Cell<bool>>,
    /// Its content when it was armed.
    old: DiskImage,
    seed: u64,
}

impl Loss {
    /// Lets it happen, unless it did.
    fn strike(&self, disk: &SimDisk) {
        strike(disk, self.way, &self.struck, &self.old, self.seed);
    }
}

fn strike(disk: &SimDisk, way: Way, struck: &Cell<bool>, old: &DiskImage, seed: u64) {
    if struck.replace(true) {
        return;
    }
    if let Some(fault) = way.fault() {
        disk.fault(fault);
    }
    match way {
        Way::Rot(share, labels) => rot(disk, share, labels, &mut Rng::new(seed)),
        Way::Reverted => disk.restore(old),
        Way::Errors(..) | Way::Gone | Way::Lying(_) => {}
    }
}

/// Noise over so many percent of the parts of a disk that hold something.
pub fn rot(disk: &SimDisk, share: u64, labels: bool, rng: &mut Rng) {
    let image = disk.image();
    let (front, back) = (FRONT, image.size() - BACK);
    let mut parts: Vec<(u64, usize)> = Vec::new();
    let listed = image.for_each_part(|at, bytes| {
        parts.push((at, bytes.len()));
        Ok(())
    });
    listed.expect("a list cannot fail");
    for (at, len) in parts {
        let end = at + len as u64;
        let own = (at.max(front), end.min(back));
        let whole = if labels { (at, end) } else { own };
        if whole.0 < whole.1 && rng.percent(share) {
            let mut noise = vec![0; (whole.1 - whole.0) as usize];
            rng.fill(&mut noise);
            disk.poke(whole.0, &noise);
        }
    }
}

fn number(path: &str) -> Option<usize> {
    path.strip_prefix("disk")?.strip_suffix(".img")?.parse().ok()
}

/// Of each top-level vdev how many devices it can do without, and its devices.
fn groups(pool: &Pool) -> Vec<(usize, Vec<(usize, Guid)>)> {
    let tops = pool.tree().tops.borrow().clone();
    let each = tops.iter().map(|top| {
        let kind = top.kind();
        let tolerates = match &kind {
            VdevKind::Mirror(m) => m.children.len() - 1,
            VdevKind::Raidz(r) => r.parity as usize,
            VdevKind::Draid(d) => d.layout.parity as usize,
            _ => 0,
        };
        let devices = kind.leaves().iter().filter_map(|l| Some((number(&l.path())?, l.guid()))).collect();
        (tolerates, devices)
    });
    each.collect()
}

/// Draws the losses of a round, and arms them.
fn arm(lab: &Lab, pool: &Pool, rng: &mut Rng) -> Vec<Loss> {
    let mut out = Vec::new();
    // All at one moment, or each at its own.
    let together = rng.percent(25);
    for (tolerates, mut devices) in groups(pool) {
        let n = if rng.percent(60) { tolerates } else { rng.below(tolerates as u64 + 1) as usize };
        for _ in 0..n {
            let (disk, guid) = devices.swap_remove(rng.below(devices.len() as u64) as usize);
            let (way, seed) = (Way::draw(rng), rng.next_u64());
            let old = lab.disks[disk].image();
            out.push(Loss { disk, guid, way, struck: Rc::default(), old, seed });
        }
    }
    let moment = |rng: &mut Rng| {
        let bits = rng.below(11);
        rng.between(1 << bits, 2 << bits)
    };
    if together && let Some(first) = out.first() {
        let all: Vec<_> =
            out.iter().map(|l| (lab.disks[l.disk].clone(), l.way, l.struck.clone(), l.old.clone(), l.seed)).collect();
        lab.disks[first.disk].at_completion(moment(rng), move || {
            all.iter().for_each(|(disk, way, struck, old, seed)| strike(disk, *way, struck, old, *seed));
        });
    } else {
        for l in &out {
            let (disk, way, struck, old, seed) =
                (lab.disks[l.disk].clone(), l.way, l.struck.clone(), l.old.clone(), l.seed);
            lab.disks[l.disk].at_completion(moment(rng), move || strike(&disk, way, &struck, &old, seed));
        }
    }
    out
}

/// Throws the cache away.
pub fn cold(pool: &Pool) {
    let limit = pool.arc().limit();
    pool.arc().set_limit(0);
    pool.arc().set_limit(limit);
}

/// Files change, txgs are written, everything is read.
async fn work(r: &mut Runner, rng: &mut Rng, ops: u64) -> Check {
    let pool = r.pool();
    for n in 0..ops {
        r.step().await?;
        match rng.below(10) {
            0..4 => pool.txg().kick(),
            4 => pool.sync().await.map_err(told("sync"))?,
            5 => r.lab.sim.rt().sleep(Nanos::from_us(rng.below(3000))).await,
            _ => {}
        }
        if n % 8 == 7 {
            cold(&pool);
            r.compare().await?;
        }
    }
    cold(&pool);
    r.compare().await
}

fn door(r: &Runner) {
    r.pool().devices().set_door(Rc::new(LabDoor(r.lab.clone())));
}

/// A disk that the pool does not have, one that it never had if there is one.
fn fresh(lab: &Lab, pool: &Pool, had: &mut BTreeSet<usize>) -> Check<DevSpec> {
    let used: BTreeSet<usize> = groups(pool).into_iter().flat_map(|(_, d)| d).map(|(n, _)| n).collect();
    let config = pool.mos_config();
    let named: BTreeSet<usize> =
        config.vdev_tree.iter().filter_map(|c| number(c.path.as_deref()?.trim_end_matches("/old"))).collect();
    had.extend(used.iter().chain(&named));
    let free = |n: &usize| !used.contains(n) && !named.contains(n);
    let all = || (0..lab.disks.len()).filter(free);
    let n = all().find(|n| !had.contains(n)).or_else(|| all().next()).ok_or("no disk is free")?;
    lab.disks[n].clear_faults();
    Ok(DevSpec { dev: lab.disks[n].dev(), is_disk: false })
}

/// Brings every lost device back, or puts another in its place; the missing data is resilvered.
async fn mend(r: &mut Runner, rng: &mut Rng, losses: &[Loss], had: &mut BTreeSet<usize>, met: &mut Met) -> Check {
    let pool = r.pool();
    for loss in losses {
        let disk = r.lab.disks[loss.disk].clone();
        disk.clear_faults();
        let name = loss.guid.0.to_string();
        let at = |e: base::Error| format!("disk {} ({:?}): {e:?}", loss.disk, loss.way);
        let mut back = rng.percent(60);
        if back {
            match pool.devices().bring_online(&name, false).await {
                Ok(()) => {}
                // Its labels cannot be read any more: they are noise, or their last write was
                // partial.
                Err(e) if loss.way.spoils_labels() && e.kind() == ErrorKind::NotFound => back = false,
                Err(e) => return Err(at(e)),
            }
        }
        if !back {
            if rng.percent(40) {
                disk.fault(Fault::Offline);
            }
            let new = fresh(&r.lab, &pool, had)?;
            // A distributed spare may begin to stand in at any time.
            loop {
                no_rebuild(&pool).await?;
                match pool.devices().replace(&name, NewDevice::Device(new.clone()), None, false).await {
                    Err(e) if e.kind() == ErrorKind::Busy && pool.devices().rebuilds().is_active() => {}
                    done => break done.map_err(at)?,
                }
            }
            met.replaced += 1;
        }
        for _ in 0..rng.below(3) {
            r.step().await?;
        }
    }
    for _ in 0..4 {
        r.step().await?;
    }
    wait(&pool).await?;
    for _ in 0..3 {
        r.step().await?;
        pool.sync().await.map_err(told("sync"))?;
    }
    wait(&pool).await?;
    give_spares_back(&pool).await?;
    let config = pool.mos_config();
    if let Some(c) = config.vdev_tree.iter().find(|c| matches!(c.kind, ConfigKind::Replacing | ConfigKind::Spare)) {
        return Err(format!("a replacement did not end: {c:?}"));
    }
    Ok(())
}

/// One scrub mends the rot; another finds nothing, and every device is whole.
async fn settle(r: &mut Runner, met: &mut Met) -> Check {
    let pool = r.pool();
    let first = scrub(&pool).await?;
    if first.phys.errors != 0 {
        let damaged = pool.scan().damaged_blocks().await.map_err(told("damaged blocks"))?;
        return Err(format!("the first scrub: {:?}, damaged: {damaged:?}", first.phys));
    }
    met.mended += first.phys.processed;
    settle_spares(&pool).await?;
    scrub_clean(&pool).await.map_err(|e| format!("the second scrub: {e}"))?;
    let tops = pool.tree().tops.borrow().clone();
    for top in tops {
        for (guid, condition) in top.kind().conditions() {
            if condition.health() != Health::Online {
                pool.devices().bring_online(&guid.0.to_string(), false).await.map_err(told("online at the end"))?;
            }
        }
    }
    wait(&pool).await?;
    if pool.tree().health() != Health::Online {
        return Err(format!("the pool is {:?}: {}", pool.tree().health(), devices_text(&pool)));
    }
    cold(&pool);
    r.compare().await
}

/// The world goes on with the devices as they are: imported again, or after a power cut.
fn reopen(r: &mut Runner, rng: &mut Rng, losses: &[Loss]) -> Check {
    if rng.percent(50) {
        return drive(r, async |r: &mut Runner| {
            r.export().await?;
            r.import_cut().await
        })
        .map_err(|e| format!("exported and imported: {e}"));
    }
    drive(r, async |r: &mut Runner| r.settle().await)?;
    let images: Vec<DiskImage> = r.lab.disks.iter().map(|d| d.power_cut(rng.next_u64())).collect();
    r.lab.sim.crash();
    r.forget();
    r.lab = Rc::new(Lab::with_images(rng.next_u64(), images, true));
    for loss in losses {
        if let Some(fault) = loss.way.fault() {
            r.lab.disks[loss.disk].fault(fault);
        }
    }
    drive(r, async |r: &mut Runner| r.import_cut().await).map_err(|e| format!("after a power cut: {e}"))
}

fn live(
    r: &mut Runner,
    seed: u64,
    ops: u64,
    met: &mut Met,
    told_of: &mut Vec<String>,
) -> Result<Vec<DiskImage>, Finding> {
    let mut rng = Rng::stream(seed, 0x1055);
    let (mut had, mut lost) = (BTreeSet::new(), BTreeSet::new());
    drive(r, async |r: &mut Runner| {
        r.create().await?;
        door(r);
        for _ in 0..ops / 3 {
            r.step().await?;
        }
        Ok(())
    })?;
    for round in 0..2 {
        let losses = arm(&r.lab, &r.pool(), &mut rng);
        met.lost += losses.len() as u64;
        lost.extend(losses.iter().map(|l| l.disk));
        let list: Vec<String> = losses.iter().map(|l| format!("disk {} {:?}", l.disk, l.way)).collect();
        told_of.push(format!("round {round}: {}", list.join(", ")));
        drive(r, async |r: &mut Runner| work(r, &mut rng, ops).await)?;
        for loss in &losses {
            met.midway += u64::from(loss.struck.get());
            loss.strike(&r.lab.disks[loss.disk]);
        }
        if rng.percent(50) {
            told_of.push("reopened".into());
            reopen(r, &mut rng, &losses)?;
            door(r);
        }
        drive(r, async |r: &mut Runner| {
            work(r, &mut rng, ops / 3).await.map_err(|e| format!("without the devices: {e}"))?;
            mend(r, &mut rng, &losses, &mut had, met).await.map_err(|e| format!("mending: {e}"))?;
            settle(r, met).await
        })?;
        told_of.push("mended".into());
    }
    let others = groups(&r.pool()).into_iter().flat_map(|(tolerates, mut devices)| {
        devices.sort_by_key(|(n, _)| lost.contains(n));
        devices.into_iter().take(tolerates).map(|(n, _)| n).collect::<Vec<usize>>()
    });
    let others: Vec<usize> = others.collect();
    let members: BTreeSet<usize> =
        groups(&r.pool()).into_iter().flat_map(|(_, devices)| devices).map(|(n, _)| n).collect();
    drive(r, async |r: &mut Runner| r.export().await)?;
    let mut images = r.lab.images();
    // Devices lost for good keep partial or old labels: exclude them.
    for (_, image) in images.iter_mut().enumerate().filter(|(n, _)| !members.contains(n)) {
        *image = DiskImage::zeroed(image.size());
    }
    told_of.push(format!("without {others:?}"));
    r.lab = Rc::new(Lab::with_images(seed ^ 0x07e5, images.clone(), true));
    *r.lab.away.borrow_mut() = others;
    drive(r, async |r: &mut Runner| {
        let pool = r.lab.import(true, r.layout.opts()).await.map_err(told("import"))?;
        r.pool = Some(pool);
        r.compare().await?;
        r.export().await
    })?;
    Ok(images)
}

/// Runs a seed; its disks at the end, exported.
pub fn run_seed(seed: u64, shape: &'static Shape, ops: u64, met: &mut Met) -> Result<Vec<DiskImage>, Finding> {
    let mut runner = runner(seed, Profile::Small, shape)?;
    // Blocks without a checksum may rot undetected.
    runner.keep_checksums();
    let mut told_of = Vec::new();
    let result = catch_unwind(AssertUnwindSafe(|| live(&mut runner, seed, ops, met, &mut told_of)));
    let why = match result {
        Ok(Ok(images)) => return Ok(images),
        Ok(Err(e)) => e,
        Err(panic) => format!("panic: {}", panic_text(&*panic)),
    };
    let trace: Vec<&str> = runner.trace.iter().map(String::as_str).collect();
    let why = format!(
        "{}: operation {}: {why}\n    {}\n    after: {}",
        shape.name,
        runner.ops,
        told_of.join("\n    "),
        trace.join("\n           ")
    );
    std::mem::forget(runner);
    Err(why)
}
