//! Power cuts while a RAID-Z is expanded.
//!
//! A workload writes to a pool on a RAID-Z; blocks lie all over it, since metaslabs are disabled in
//! turn. Then a disk is attached, and the workload goes on until the expansion has ended. After
//! that files are rewritten, most of them so that their blocks keep their logical births, which are
//! before the expansion. The run is recorded and cut as those of [`crate::cuts`] are; of eight
//! images one is brought to the end of the expansion, scrubbed and checked. With one seed of three
//! a device is lost for a while in the middle, as long as the expansion waits.

use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Nanos, Txg, VdevId};
use ondisk::feature::FeatureId;
use sim::{Fault, Rng};
use spa::{Bias, DevSpec, GroupKind, Pool};

use crate::cuts::{CutTally, Long, Recording, Steps, cut_recording, record_with};
use crate::devices::LabDoor;
use crate::lab::{Shape, shape};
use crate::scan::{scrub_clean, told, wait};
use crate::workload::{Profile, Runner};
use crate::{Check, Fault as Finding};

const fn raidz(parity: u8, n: usize) -> (GroupKind, Bias, usize) {
    (GroupKind::Raidz(parity), Bias::Normal, n)
}

/// The layouts that are expanded.
pub const LAYOUTS: &[Shape] = &[
    shape("raidz1-3", &[raidz(1, 3)]),
    shape("raidz1-2", &[raidz(1, 2)]),
    shape("raidz2-4", &[raidz(2, 4)]),
    shape("raidz1-5", &[raidz(1, 5)]),
    shape("raidz3-5", &[raidz(3, 5)]),
    shape("raidz1-mirror", &[raidz(1, 4), (GroupKind::Mirror, Bias::Normal, 2)]),
];
/// Operations before the expansion.
const OPS_BEFORE: u64 = 120;
/// Operations during the expansion at most.
const OPS_MAX: u64 = 2000;
/// Rewrites after the expansion.
const REWRITES: u64 = 32;
/// The longest that an expansion may take, in virtual time.
const EXPANSION_MAX: Nanos = Nanos::from_secs(3600);

/// Metaslabs of the RAID-Z that are disabled.
#[derive(Default)]
struct Held(Vec<u64>);

impl Held {
    /// Allows allocation again, and disables others, at most half of them.
    async fn change(&mut self, pool: &Rc<Pool>, rng: &mut Rng) {
        self.free(pool);
        let Ok(top) = pool.tree().top(VdevId(0)) else { return };
        let count = top.ms_count();
        let first = rng.below(count);
        for ms in (first..first + rng.below(count / 2 + 1)).map(|ms| ms % count) {
            if pool.allocator().disable(VdevId(0), ms).await.is_ok() {
                self.0.push(ms);
            }
        }
    }
    fn free(&mut self, pool: &Rc<Pool>) {
        self.0.drain(..).for_each(|ms| pool.allocator().enable(VdevId(0), ms));
    }
}

/// Waits for the end of the expansion or removal, and of condensing, and scrubs the pool, in which
/// nothing must be wrong.
pub(crate) async fn finish(pool: &Rc<Pool>) -> Check {
    let start = pool.rt().now();
    // Devices that missed a txg at the cut are resilvered first.
    while pool.devices().expander().is_busy() || pool.devices().evacuator().is_busy() {
        if pool.rt().now().since(start) > EXPANSION_MAX {
            let removal = pool.devices().evacuator().status();
            return Err(format!("it does not end: {:?}, {removal:?}", pool.raidz_expand().await));
        }
        pool.rt().sleep(Nanos::from_ms(50)).await;
    }
    wait(pool).await?;
    let condensed = pool.rt().timeout(EXPANSION_MAX, pool.devices().condenser().wait()).await;
    condensed.ok_or("condensing does not end")?.map_err(told("condensing"))?;
    pool.sync().await.map_err(told("sync"))?;
    scrub_clean(pool).await.map_err(|e| format!("at the end: {e}"))
}

async fn run(r: &mut Runner, seed: u64) -> Check<Steps> {
    let mut rng = Rng::stream(seed, 0xe9a);
    let mut held = Held::default();
    r.create().await?;
    let pool = r.pool();
    pool.devices().set_door(Rc::new(LabDoor(r.lab.clone())));
    for n in 0..OPS_BEFORE {
        if n % 8 == 0 {
            held.change(&pool, &mut rng).await;
        }
        r.step().await?;
    }
    r.lab.start_logs(&pool).await?;
    let txg = pool.txg().clone();
    let mut ops = vec![(Txg(0), Txg(0), r.model.clone(), true)];
    let mut synced = BTreeMap::new();
    let mut learn = |txg: &txg::TxgPool| {
        for record in txg.history() {
            synced.insert(record.txg, (record.sync_start, record.synced));
        }
    };
    let members: usize = r.layout.shape.groups.iter().map(|g| g.2).sum();
    let new = DevSpec { dev: r.lab.disks[members].dev(), is_disk: false };
    let top = pool.tree().top(VdevId(0)).map_err(told("the raidz"))?;
    let before = top.asize.get();
    pool.devices().attach(&top.guid().0.to_string(), new, None, false).await.map_err(told("attach"))?;
    learn(&txg);
    // The raidz is the first vdev.
    let raidz = r.layout.shape.groups[0].2;
    let lost = (seed % 3 == 2)
        .then(|| (if rng.percent(25) { members } else { rng.below(raidz as u64) as usize }, rng.below(60)));
    let back = rng.between(5, 60);
    let mut n = 0;
    while pool.devices().expander().is_busy() && n < OPS_MAX {
        if let Some((disk, at)) = lost {
            if n == at {
                r.lab.disks[disk].fault(Fault::Offline);
            }
            if n == at + back {
                r.lab.disks[disk].clear_faults();
                let name = format!("disk{disk}.img");
                pool.devices().bring_online(&name, false).await.map_err(told("bringing a device back"))?;
            }
        }
        if n % 8 == 0 {
            held.change(&pool, &mut rng).await;
        }
        let (before, changes) = (txg.open_txg(), r.changes);
        r.step().await?;
        ops.push((before, txg.open_txg(), r.model.clone(), r.changes != changes));
        if n % 5 == 0 {
            txg.kick();
            r.lab.sim.rt().sleep(Nanos::from_us(150 * (n % 7))).await;
        }
        if n > 300 {
            // It waits for a resilver, or has much to copy.
            r.lab.sim.rt().sleep(Nanos::from_ms(20)).await;
        }
        learn(&txg);
        n += 1;
    }
    // Blocks of the old width get new places, of the new width, and keep their logical births.
    for n in 0..REWRITES {
        let (before, changes) = (txg.open_txg(), r.changes);
        r.rewrite_one().await?;
        ops.push((before, txg.open_txg(), r.model.clone(), r.changes != changes));
        if n % 8 == 0 {
            pool.sync().await.map_err(told("sync"))?;
            learn(&txg);
        }
    }
    held.free(&pool);
    pool.sync().await.map_err(told("sync"))?;
    learn(&txg);
    if pool.devices().expander().is_busy() {
        return Err(format!("the expansion does not end: {:?}", pool.raidz_expand().await));
    }
    if top.asize.get() <= before {
        return Err(format!("the raidz has {} bytes as before", top.asize.get()));
    }
    Ok((ops, synced))
}

fn record(seed: u64) -> Check<Recording> {
    let shape = &LAYOUTS[seed as usize % LAYOUTS.len()];
    let mut runner = crate::devices::runner(seed, Profile::Cuts, shape)?;
    runner.layout.features.extend([FeatureId::RaidzExpansion, FeatureId::PhysicalRewrite]);
    record_with(runner, async |r: &mut Runner| run(r, seed).await)
}

/// Records the expansion of a seed and cuts it at every `every`th completion. `zdb` of the images
/// are given to zdb.
pub fn cut_seed(seed: u64, zdb: u64, every: usize) -> (CutTally, Vec<Finding>) {
    cut_recording(seed, record(seed), zdb, every, Some(Long::Expansion))
}
