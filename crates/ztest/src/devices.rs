//! The device tree changes while files do: random `add`, `attach`, `replace`, `detach`, `offline`,
//! `online` and `remove` on a pool with free disks beside it.
//!
//! Only the files are modelled: with any tree, everything must read as written, and a refused
//! change must have changed nothing. The kind of the error shows whether a refusal is legal;
//! anything else is a finding.

use std::rc::Rc;

use base::{Error, ErrorKind};
use bdev::BlockDev;
use ondisk::vdev_config::{VdevConfig, VdevKind as ConfigKind};
use sim::Rng;
use spa::{Bias, DevSpec, DeviceDoor, Group, GroupKind, Layout, NewDevice, Pool};

use crate::Check;
use crate::lab::{Lab, Shape};
use crate::workload::{Profile, Runner};
use vdev::{Health, VdevKind};

/// Free disks beside each pool.
const FREE: usize = 6;

/// The disks of a world by name.
pub struct LabDoor(pub Rc<Lab>);

impl DeviceDoor for LabDoor {
    fn open<'a>(&'a self, path: &'a str) -> rt::LocalBoxFuture<'a, base::Result<Rc<dyn BlockDev>>> {
        Box::pin(async move {
            let number = path.strip_prefix("disk").and_then(|p| p.strip_suffix(".img")).and_then(|n| n.parse().ok());
            let away = self.0.away.borrow().clone();
            let number = number.filter(|n: &usize| !away.contains(n));
            let disk = number.and_then(|n| self.0.disks.get(n));
            let disk = disk.ok_or_else(|| Error::not_found(format!("'{path}' is not there")))?;
            if !disk.open_again() {
                return Err(Error::invalid(format!("'{path}' is shorter than it was")));
            }
            Ok(disk.dev() as Rc<dyn BlockDev>)
        })
    }
}

/// A runner for the seed with disks to spare.
pub fn runner(seed: u64, profile: Profile, shape: &'static Shape) -> Check<Runner> {
    let mut runner = Runner::new(seed, profile)?.shaped(seed, shape);
    if shape.groups.is_empty() {
        // All disks would be taken.
        return Err("the shape must say how many disks it takes".into());
    }
    let largest = runner.layout.devices.iter().copied().max().unwrap_or(64 << 20);
    runner.layout.devices.extend([largest; FREE]);
    runner.lab = Rc::new(Lab::new(seed, &runner.layout));
    Ok(runner)
}

/// Draws changes of the tree.
pub struct Changer {
    rng: Rng,
    /// Changes made.
    pub made: u64,
    /// Changes refused.
    pub refused: u64,
    /// The last action.
    pub last: String,
}

/// States of the devices, their missing txgs, and the scan.
pub fn devices_text(pool: &Pool) -> String {
    let mut all = Vec::new();
    for top in pool.tree().tops.borrow().iter() {
        for (guid, condition) in top.kind().conditions() {
            let path = top.config().find(guid).and_then(|c| c.path.clone()).unwrap_or_default();
            let missing = condition.missing();
            all.push(format!("{path} {} misses {:?}", condition.health().name(), missing.runs()));
        }
    }
    format!("{}; {:?}", all.join(", "), pool.scan().status().phys)
}

fn leaves(pool: &Pool) -> Vec<VdevConfig> {
    let tops = pool.tree().tops.borrow().clone();
    tops.iter().flat_map(|t| t.config().leaves().cloned().collect::<Vec<_>>()).collect()
}

impl Changer {
    /// One for the seed.
    pub fn new(seed: u64) -> Changer {
        Changer { rng: Rng::stream(seed, 991), made: 0, refused: 0, last: String::new() }
    }

    /// A disk that the pool does not have.
    fn free_disks(&mut self, lab: &Lab, pool: &Pool) -> Vec<DevSpec> {
        let aux = pool.devices().aux();
        let used: Vec<String> = leaves(pool)
            .into_iter()
            .chain(aux.spares)
            .chain(aux.caches)
            .filter_map(|c| Some(c.path?.trim_end_matches("/old").to_string()))
            .collect();
        let free = lab.disks.iter().map(|d| d.dev()).filter(|d| !used.contains(&d.info().path));
        let mut free: Vec<DevSpec> = free.map(|dev| DevSpec { dev, is_disk: false }).collect();
        for i in (1..free.len()).rev() {
            free.swap(i, self.rng.below(i as u64 + 1) as usize);
        }
        free
    }

    /// Makes one change.
    pub async fn step(&mut self, lab: &Rc<Lab>, pool: &Rc<Pool>) -> Check {
        pool.devices().set_door(Rc::new(LabDoor(lab.clone())));
        let mut free = self.free_disks(lab, pool);
        let all = leaves(pool);
        let leaf = all[self.rng.below(all.len() as u64) as usize].clone();
        let name = leaf.guid.0.to_string();
        // Half of the devices, where it can be, so that both ways are met.
        let rebuilds = |kind: VdevKind| matches!(kind, VdevKind::Leaf(_) | VdevKind::Mirror(_) | VdevKind::Draid(_));
        let of = pool.tree().tops.borrow().iter().find(|t| t.kind().find(leaf.guid).is_some()).cloned();
        let sequential = leaf.guid.0 % 2 == 1 && of.is_some_and(|top| rebuilds(top.kind()));
        let aux = pool.devices().aux();
        let (what, result) = match self.rng.below(100) {
            0..12 if free.len() > 2 => {
                let (kind, bias, n) = [
                    (GroupKind::Single, Bias::Normal, 1),
                    (GroupKind::Mirror, Bias::Normal, 2),
                    (GroupKind::Raidz(1), Bias::Normal, 3),
                    (GroupKind::Single, Bias::Log, 1),
                    (GroupKind::Mirror, Bias::Special, 2),
                    (GroupKind::Single, Bias::Log, 1),
                ][self.rng.below(6) as usize];
                let devices: Vec<DevSpec> = free.drain(..n.min(free.len())).collect();
                let layout = Layout { groups: vec![Group { kind, bias, devices }], ..Layout::default() };
                (format!("add {kind:?} {bias:?}"), pool.devices().add(layout, None).await)
            }
            12..20 if free.len() > 1 => {
                let (mut spares, mut caches) = (Vec::new(), Vec::new());
                let list = if self.rng.percent(70) { &mut spares } else { &mut caches };
                list.extend(free.pop());
                let layout = Layout { groups: Vec::new(), spares, caches };
                ("add spare or cache".into(), pool.devices().add(layout, None).await)
            }
            20..40 if !free.is_empty() => {
                let new = free.remove(0);
                let what = format!("attach {} to {leaf:?}", new.dev.info().path);
                (what, pool.devices().attach(&name, new, None, sequential).await)
            }
            40..60 if !free.is_empty() => {
                let new = free.remove(0);
                let what = format!("replace {:?} with {}", leaf.path, new.dev.info().path);
                (what, pool.devices().replace(&name, NewDevice::Device(new), None, sequential).await)
            }
            60..66 if !aux.spares.is_empty() => {
                let spare =
                    aux.spares[self.rng.below(aux.spares.len() as u64) as usize].path.clone().unwrap_or_default();
                let what = format!("replace {:?} with spare {spare}", leaf.path);
                (what, pool.devices().replace(&name, NewDevice::Spare(spare), None, sequential).await)
            }
            66..86 => (format!("detach {:?}", leaf.path), pool.devices().detach(&name).await),
            86..90 => {
                let logs: Vec<VdevConfig> =
                    pool.tree().tops.borrow().iter().filter(|t| t.is_log).map(|t| t.config()).collect();
                let mut all: Vec<VdevConfig> = logs.into_iter().chain(aux.spares).chain(aux.caches).collect();
                if self.rng.percent(50) {
                    // One with data, which takes some time.
                    all = pool.tree().tops.borrow().iter().filter(|t| t.is_concrete()).map(|t| t.config()).collect();
                }
                match all.get(self.rng.below(all.len().max(1) as u64) as usize) {
                    Some(c) => (
                        format!("remove {:?} {:?}", c.kind, c.path),
                        pool.devices().remove(&c.guid.0.to_string()).await,
                    ),
                    None => return Ok(()),
                }
            }
            90..95 => {
                let temporary = self.rng.percent(30);
                (format!("offline {:?}", leaf.path), pool.devices().offline(&name, temporary).await)
            }
            _ => {
                let offline: Vec<&VdevConfig> =
                    all.iter().filter(|c| c.offline && c.kind != ConfigKind::Dspare).collect();
                match offline.first() {
                    Some(c) => (format!("online {:?}", c.path), pool.devices().online(&c.guid.0.to_string()).await),
                    None => return Ok(()),
                }
            }
        };
        self.last = format!("{what}: {}", result.as_ref().map_or_else(|e| e.to_string(), |()| "done".into()));
        match result {
            Ok(()) => self.made += 1,
            Err(e) => {
                self.refused += 1;
                use ErrorKind::*;
                if !matches!(e.kind(), Busy | Unsupported | Invalid | Range | NotFound | NoSpace) {
                    return Err(format!("{what}: {e:?}"));
                }
            }
        }
        Ok(())
    }
}

/// Runs a seed: files and devices change, exports and imports in between; the disks at the end.
/// Also how many changes were made and refused.
pub fn run_seed(seed: u64, shape: &'static Shape, ops: u64) -> Check<(Vec<sim::DiskImage>, u64, u64)> {
    let mut runner = runner(seed, Profile::Small, shape)?;
    let mut changer = Changer::new(seed);
    let mut trace: Vec<String> = Vec::new();
    for life in 0..3u64 {
        let run = crate::campaign::drive(&mut runner, async |r: &mut Runner| {
            if life == 0 {
                r.create().await?;
            } else {
                r.import().await?;
                r.compare().await.map_err(|e| format!("after import: {e}"))?;
            }
            for n in 0..ops {
                r.step().await?;
                if n % 4 == 3 {
                    let (lab, pool) = (r.lab.clone(), r.pool());
                    changer.step(&lab, &pool).await?;
                    trace.push(changer.last.clone());
                    if std::env::var_os("ZTEST_TRACE").is_some() {
                        eprintln!("       {}", changer.last);
                    }
                }
            }
            r.compare().await?;
            if life > 0 {
                // Devices that were taken out come back, replacements end.
                let pool = r.pool();
                let tops = pool.tree().tops.borrow().clone();
                let conditions = tops.iter().flat_map(|top| top.kind().conditions());
                let away: Vec<_> = conditions.filter(|(_, c)| c.health() == Health::Offline).map(|(g, _)| g).collect();
                for guid in away {
                    // A replacement that ends meanwhile takes its old device out of the pool.
                    let is_there = || pool.tree().tops.borrow().iter().any(|top| top.kind().find(guid).is_some());
                    match pool.devices().bring_online(&guid.0.to_string(), false).await {
                        Err(e) if is_there() || e.kind() != ErrorKind::NotFound => {
                            return Err(format!("online {guid}: {e}"));
                        }
                        Ok(()) | Err(_) => {}
                    }
                }
                pool.scan().wait().await.map_err(|e| format!("resilver: {e}"))?;
                for _ in 0..3 {
                    r.step().await?;
                    pool.sync().await.map_err(|e| format!("sync: {e}"))?;
                }
                let config = pool.mos_config();
                if let Some(c) = config.vdev_tree.iter().find(|c| c.kind == ConfigKind::Replacing) {
                    return Err(format!("a replacement did not end: {c:?}: {}", devices_text(&pool)));
                }
                r.compare().await.map_err(|e| format!("after the resilver: {e}"))?;
            }
            r.export().await
        });
        let told = || trace.iter().rev().take(12).cloned().collect::<Vec<_>>().join("\n    ");
        if let Err(e) = run {
            let text = format!("{}, life {life}: {e}\n    {}", shape.name, told());
            std::mem::forget(runner);
            return Err(text);
        }
        runner.lab = Rc::new(runner.lab.reborn(seed.wrapping_mul(1000).wrapping_add(life + 1)));
    }
    Ok((runner.lab.images(), changer.made, changer.refused))
}
