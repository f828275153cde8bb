//! Power cuts while a top-level vdev with data is removed.
//!
//! A workload writes to a pool of several vdevs. Then one of them is removed, and the workload,
//! which overwrites and deletes what is being copied, goes on until that has ended; with most seeds
//! another one follows, on which are copies of the first. The run is recorded and cut as those of
//! [`crate::cuts`] are; of eight images one is brought to the end of the removal, in another one
//! the removal is cancelled, and both are scrubbed and checked. With one seed of four the removal
//! is cancelled in the middle, and begun again. With two of three the mappings are condensed soon,
//! with half of those slowly, over many txgs.

use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Nanos, Txg, VdevId};
use ondisk::feature::FeatureId;
use sim::Rng;
use spa::{Bias, GroupKind, Pool};

use crate::cuts::{CutTally, Long, Recording, Steps, cut_recording, record_with};
use crate::lab::{Lab, Shape, shape};
use crate::scan::told;
use crate::workload::{Profile, Runner};
use crate::{Check, Fault as Finding};

const ONE: (GroupKind, Bias, usize) = (GroupKind::Single, Bias::Normal, 1);
const MIRROR: (GroupKind, Bias, usize) = (GroupKind::Mirror, Bias::Normal, 2);

/// The layouts that vdevs are removed from.
pub const LAYOUTS: &[Shape] = &[
    shape("three", &[ONE, ONE, ONE]),
    shape("mirrors", &[MIRROR, MIRROR, MIRROR]),
    shape("mixed", &[ONE, MIRROR, (GroupKind::Mirror, Bias::Normal, 3)]),
    shape("special", &[ONE, ONE, (GroupKind::Mirror, Bias::Special, 2)]),
    shape("log", &[ONE, ONE, ONE, (GroupKind::Single, Bias::Log, 1)]),
];
/// Bytes of each device: so large that one of two can go, with the slop that the other one keeps.
pub const SIZE: u64 = 176 << 20;
/// Operations before the removal.
const OPS_BEFORE: u64 = 120;
/// Operations during a removal at most.
const OPS_MAX: u64 = 1500;

/// Operations until a mapping is condensed at most.
const CONDENSING_OPS_MAX: u64 = 400;

/// How the mappings of a seed are condensed (`Layout::condenses`).
pub(crate) fn condenses(seed: u64) -> Option<Nanos> {
    [None, Some(Nanos(0)), Some(Nanos::from_us(300))][(seed / 2 % 3) as usize]
}

/// Cancels the removal; it may have ended meanwhile.
pub(crate) async fn cancel(pool: &Rc<Pool>) -> Check {
    match pool.devices().evacuator().cancel().await {
        Err(e) if e.kind() != base::ErrorKind::NotFound => Err(format!("cancelling: {e}")),
        _ => Ok(()),
    }
}

/// The name of a top-level vdev for commands.
pub fn name_of(pool: &Pool, vdev: VdevId) -> Check<String> {
    Ok(pool.tree().top(vdev).map_err(told("the vdev"))?.guid().0.to_string())
}

async fn run(r: &mut Runner, seed: u64) -> Check<Steps> {
    let mut rng = Rng::stream(seed, 0x4e3);
    r.create().await?;
    let pool = r.pool();
    for _ in 0..OPS_BEFORE {
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
    let groups = r.layout.shape.groups;
    let mut victims: Vec<u32> = (0..groups.len() as u32).filter(|i| groups[*i as usize].1 != Bias::Log).collect();
    // One vdev of the normal class has to stay.
    let normal = |v: &u32| groups[*v as usize].1 == Bias::Normal;
    let first = victims.swap_remove(rng.below(victims.len() as u64) as usize);
    let mut order = vec![first];
    if rng.percent(70) {
        let stays = victims.iter().filter(|v| normal(v)).count();
        let next = victims.into_iter().find(|v| !normal(v) || stays > 1);
        order.extend(next);
    }
    let mut cancelled = !seed.is_multiple_of(4);
    let mut n = 0;
    while let Some(vdev) = order.first().copied().map(VdevId) {
        pool.devices().remove(&name_of(&pool, vdev)?).await.map_err(told("remove"))?;
        learn(&txg);
        let stop = rng.between(5, 30);
        let mut steps = 0;
        while pool.devices().evacuator().is_busy() && steps < OPS_MAX {
            let (before, changes) = (txg.open_txg(), r.changes);
            r.step().await?;
            ops.push((before, txg.open_txg(), r.model.clone(), r.changes != changes));
            if n % 5 == 0 {
                txg.kick();
                r.lab.sim.rt().sleep(Nanos::from_us(150 * (n % 7))).await;
            }
            if steps == stop && !cancelled {
                cancelled = true;
                cancel(&pool).await?;
            }
            learn(&txg);
            (n, steps) = (n + 1, steps + 1);
        }
        if pool.devices().evacuator().is_busy() {
            return Err(format!("the removal does not end: {:?}", pool.devices().evacuator().status()));
        }
        let top = pool.tree().top(vdev).map_err(told("the vdev"))?;
        if top.is_indirect() {
            order.remove(0);
        } else if !pool.notices().is_empty() {
            return Err(format!("the removal was cancelled: {:?}", pool.notices()));
        }
        for _ in 0..10 {
            let (before, changes) = (txg.open_txg(), r.changes);
            r.step().await?;
            ops.push((before, txg.open_txg(), r.model.clone(), r.changes != changes));
        }
    }
    if r.layout.condenses.is_some() && r.layout.features.contains(&FeatureId::ObsoleteCounts) {
        let condenser = pool.devices().condenser();
        let mut steps = 0;
        while condenser.condensed() == 0 || condenser.vdev().is_some() {
            if steps == CONDENSING_OPS_MAX && condenser.vdev().is_none() {
                // Too little of what was copied became obsolete.
                break;
            }
            if steps == CONDENSING_OPS_MAX {
                return Err(format!("condensing: {:?}", (condenser.condensed(), condenser.vdev())));
            }
            let (before, changes) = (txg.open_txg(), r.changes);
            r.step().await?;
            ops.push((before, txg.open_txg(), r.model.clone(), r.changes != changes));
            if steps % 5 == 0 {
                txg.kick();
                r.lab.sim.rt().sleep(Nanos::from_us(150 * (steps % 7))).await;
            }
            learn(&txg);
            steps += 1;
        }
    }
    pool.sync().await.map_err(told("sync"))?;
    learn(&txg);
    check_counts(&pool)?;
    Ok((ops, synced))
}

/// Everything that was to be copied was copied, or freed meanwhile.
pub fn check_counts(pool: &Pool) -> Check {
    let status = pool.devices().evacuator().status().ok_or("nothing was removed")?;
    let r = status.record;
    let lacks_entries = status.entries == 0 && r.to_copy > 0 && pool.devices().condenser().condensed() == 0;
    if r.copied != r.to_copy || r.end < r.start || lacks_entries {
        return Err(format!("the record of the removal is {r:?}, {} entries", status.entries));
    }
    Ok(())
}

/// A runner on a pool that vdevs are removed from.
pub fn runner(seed: u64, profile: Profile, layout: &'static Shape) -> Check<Runner> {
    let mut runner = crate::devices::runner(seed, profile, layout)?;
    runner.layout.devices.fill(SIZE);
    runner.lab = Rc::new(Lab::new(seed, &runner.layout));
    // All that a removal needs.
    runner.layout.features = ondisk::feature::features_of_2_1();
    match seed % 6 {
        0 => runner.layout.features.retain(|f| *f != FeatureId::ObsoleteCounts),
        1 | 3 | 5 => runner.have_all_features(),
        _ => {}
    }
    runner.layout.condenses = condenses(seed);
    Ok(runner)
}

fn record(seed: u64) -> Check<Recording> {
    let layout = &LAYOUTS[seed as usize % LAYOUTS.len()];
    record_with(runner(seed, Profile::Cuts, layout)?, async |r: &mut Runner| run(r, seed).await)
}

/// Records the removal of a seed and cuts it at every `every`th completion. `zdb` of the images are
/// given to zdb.
pub fn cut_seed(seed: u64, zdb: u64, every: usize) -> (CutTally, Vec<Finding>) {
    cut_recording(seed, record(seed), zdb, every, Some(Long::Removal))
}
