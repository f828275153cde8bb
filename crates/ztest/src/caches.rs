//! Cache devices under a workload: fed while files change, damaged, cut off from power in the
//! middle of a feed, found again.
//!
//! Memory is short and feeds are frequent, so that much is read from the devices. In each round the
//! workload runs, and everything is read and compared with the model; from the second round on
//! bytes of the cache devices are changed and operations of theirs fail meanwhile. Then the pool is
//! brought to its disks, everything is read again, so that feeds go on, and at some completion of a
//! cache device the power goes: what the disks have then is imported, the caches are found again,
//! and the model must be there. With some seeds the pool is exported instead. With every third seed
//! so much is written first that feeds come round to the front of the device. Nothing on a cache
//! device may ever show: what is read is what the model says, and the pool has no errors.

use std::cell::RefCell;
use std::rc::Rc;

use base::Nanos;
use bdev::Bytes;
use dsl::props::PropValue;
use sim::{CutStyle, DiskImage, OpKind, Rng};
use spa::{Bias, GroupKind};
use zpl::{Cred, MountOpts, Zfs};

use crate::campaign::drive;
use crate::devices::LabDoor;
use crate::lab::{Lab, POOL, Shape, new_fs};
use crate::losses::cold;
use crate::scan::told;
use crate::workload::{Profile, Runner};
use crate::{Check, Fault as Finding};

/// The layouts that have caches; these are the last disks.
pub const LAYOUTS: &[Shape] = &[
    Shape { name: "one", groups: &[(GroupKind::Single, Bias::Normal, 1)], spares: 0, caches: 1 },
    Shape { name: "mirror", groups: &[(GroupKind::Mirror, Bias::Normal, 2)], spares: 0, caches: 2 },
    Shape {
        name: "special",
        groups: &[(GroupKind::Raidz(1), Bias::Normal, 3), (GroupKind::Mirror, Bias::Special, 2)],
        spares: 0,
        caches: 1,
    },
];
/// Rounds of a seed.
const ROUNDS: u64 = 4;
/// Where the rings of the caches begin, after the largest header.
const RING: u64 = (4 << 20) + (64 << 10);

/// What the caches did in all rounds.
#[derive(Clone, Copy, Default, Debug)]
pub struct Met {
    /// Blocks read from caches.
    pub hits: u64,
    /// Blocks there that were not what they should be.
    pub bad: u64,
    /// Blocks that were found again.
    pub rebuilt: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Caches that were fed to their end and on.
    pub rounds: u64,
}

impl Met {
    /// Its figures in the order of their names.
    pub fn figures(&self) -> [u64; 5] {
        [self.hits, self.bad, self.rebuilt, self.cuts, self.rounds]
    }
}

/// The disks that are caches.
fn caches(r: &Runner) -> std::ops::Range<usize> {
    let count = r.layout.shape.groups.iter().map(|g| g.2).sum::<usize>();
    count..count + r.layout.shape.caches
}

fn door(r: &Runner) {
    r.pool().devices().set_door(Rc::new(LabDoor(r.lab.clone())));
}

/// Changes bytes of a cache, or has an operation of it fail.
fn hurt(r: &Runner, rng: &mut Rng) {
    let all = caches(r);
    let disk = &r.lab.disks[all.start + rng.below(all.len() as u64) as usize];
    match rng.below(10) {
        0 => drop(disk.fail_nth(Some(OpKind::Read), rng.below(20))),
        1 => drop(disk.fail_nth(Some(OpKind::Write), rng.below(20))),
        2 => disk.corrupt(RING - (60 << 10), 512),
        _ => {
            // Feeds begin at the front.
            let len = 512 << rng.below(8);
            let span = (disk.image().size() - RING - (1 << 20)) >> rng.below(6);
            disk.corrupt((RING + rng.below(span)) & !511, len);
        }
    }
}

/// Writes in a file system of its own until every cache was fed more than it holds.
async fn go_round(r: &Runner, rng: &mut Rng, met: &mut Met) -> Check {
    const LEN: usize = 1 << 20;
    let (pool, name) = (r.pool(), format!("{POOL}/round"));
    let all = [("recordsize", 128 << 10), ("primarycache", 2), ("secondarycache", 2), ("checksum", 1), ("dedup", 0)];
    let props = all.into_iter().map(|(name, n)| (name.to_string(), PropValue::Num(n))).collect();
    pool.dsl().create_fs(&name, props, new_fs(&r.lab.sim)).await.map_err(told("create"))?;
    let ds = pool.dsl().find(&name).map_err(told("find"))?;
    let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await.map_err(told("mount"))?;
    let file = fs.create(fs.root(), b"file", 0o644, &Cred::new(0, 0), false).await.map_err(told("create"))?.obj;
    let is_round = || pool.arc().caches().iter().all(|c| c.write_bytes > c.size + c.size / 8);
    let mut left = 400;
    while !is_round() {
        left -= 1;
        if left == 0 {
            return Err(format!("caches are not fed: {:?}", pool.arc().caches()));
        }
        let data: Vec<u8> = (0..LEN / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
        fs.write(file, 0, vec![Bytes::copy_from(&data)], false).await.map_err(told("write"))?;
        pool.sync().await.map_err(told("sync"))?;
        r.lab.sim.rt().sleep(Nanos::from_ms(25)).await;
    }
    met.rounds += pool.arc().caches().len() as u64;
    fs.unmount().await.map_err(told("unmount"))?;
    drop(ds);
    pool.dsl().destroy_fs(&name).await.map_err(told("destroy"))
}

/// Files change and everything is read; with `hurts` the caches are damaged meanwhile.
async fn work(r: &mut Runner, rng: &mut Rng, hurts: bool) -> Check {
    let pool = r.pool();
    for n in 0..40 {
        r.step().await?;
        match rng.below(10) {
            0..3 => pool.txg().kick(),
            3 => pool.sync().await.map_err(told("sync"))?,
            4..7 => r.lab.sim.rt().sleep(Nanos::from_us(rng.below(60_000))).await,
            _ => {}
        }
        if hurts && rng.percent(30) {
            hurt(r, rng);
        }
        if n % 8 == 7 {
            cold(&pool);
            r.compare().await?;
        }
    }
    Ok(())
}

/// Brings everything to the disks, reads on, and gives what the disks have at some moment of that.
async fn cut(r: &mut Runner, rng: &mut Rng) -> Check<Vec<DiskImage>> {
    r.settle().await?;
    let pool = r.pool();
    let taken: Rc<RefCell<Option<Vec<DiskImage>>>> = Rc::default();
    let (slot, disks, seed) = (taken.clone(), r.lab.disks.clone(), rng.next_u64());
    let images = move || {
        let cut = |(n, d): (u64, &sim::SimDisk)| d.what_if_cut(CutStyle::Seeded, seed.wrapping_add(n << 40));
        (0..).zip(&disks).map(cut).collect::<Vec<DiskImage>>()
    };
    let late = images.clone();
    let all = caches(r);
    let disk = &r.lab.disks[all.start + rng.below(all.len() as u64) as usize];
    let bits = rng.below(8);
    disk.at_completion(rng.between(1, 1 << bits), move || *slot.borrow_mut() = Some(images()));
    for _ in 0..3 {
        cold(&pool);
        r.compare().await?;
        r.lab.sim.rt().sleep(Nanos::from_us(rng.below(60_000))).await;
    }
    Ok(taken.take().unwrap_or_else(late))
}

/// Adds up what the caches did since the pool was opened. `sound`: nothing was damaged yet.
fn learn(r: &Runner, met: &mut Met, sound: bool) -> Check {
    let s = r.pool().arc().l2_stats();
    met.hits += s.hits;
    met.bad += s.cksum_bad;
    met.rebuilt += s.rebuild_bufs;
    if sound && (s.cksum_bad, s.io_error, s.writes_error) != (0, 0, 0) {
        return Err(format!("nothing was damaged: {s:?}"));
    }
    let errors = r.pool().zio().stats();
    if (errors.checksum_errors, errors.read_errors) != (0, 0) {
        return Err(format!("the pool is blamed: {errors:?}"));
    }
    Ok(())
}

fn live(r: &mut Runner, seed: u64, met: &mut Met) -> Check<Vec<DiskImage>> {
    let mut rng = Rng::stream(seed, 0xcac4e);
    drive(r, async |r: &mut Runner| {
        r.create().await?;
        door(r);
        if seed.is_multiple_of(3) { go_round(r, &mut rng, met).await } else { Ok(()) }
    })?;
    for round in 0..ROUNDS {
        let hurts = round > 0 && seed % 5 != 4;
        drive(r, async |r: &mut Runner| work(r, &mut rng, hurts).await).map_err(|e| format!("round {round}: {e}"))?;
        let exports = rng.percent(30);
        let images = match exports {
            true => None,
            false => Some(drive(r, async |r: &mut Runner| cut(r, &mut rng).await)?),
        };
        learn(r, met, round == 0)?;
        if let Some(images) = images {
            met.cuts += 1;
            r.lab.sim.crash();
            r.forget();
            r.lab = Rc::new(Lab::with_images(rng.next_u64(), images, true));
        }
        drive(r, async |r: &mut Runner| {
            if exports {
                r.export().await?;
                r.lab.disks.iter().for_each(|d| d.clear_faults());
            }
            r.import_cut().await?;
            door(r);
            r.lab.sim.rt().sleep(Nanos::from_ms(500)).await;
            r.compare().await
        })
        .map_err(|e| format!("round {round}, imported: {e}"))?;
    }
    learn(r, met, false)?;
    drive(r, async |r: &mut Runner| r.export().await)?;
    Ok(r.lab.images())
}

/// Runs a seed; the disks at the end.
pub fn run_seed(seed: u64, shape: &'static Shape, met: &mut Met) -> Result<Vec<DiskImage>, Finding> {
    let mut r = Runner::new(seed, Profile::Small)?.shaped(seed, shape);
    let mut rng = Rng::stream(seed, 0xcac4);
    r.layout.arc_max = [1 << 20, 3 << 20, 16 << 20][rng.below(3) as usize];
    if seed.is_multiple_of(3) {
        // What waits to be fed is a share of it.
        r.layout.arc_max = 16 << 20;
    }
    if rng.percent(30) {
        r.have_all_features();
    }
    live(&mut r, seed, met).map_err(|e| format!("seed {seed} ({}): {e}", shape.name))
}
