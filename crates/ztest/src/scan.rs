//! Scrub and resilver: rot and losses within the redundancy of the layout are found, mended, and
//! verified afterwards.

use std::rc::Rc;

use base::Nanos;
use ondisk::scan::{ScanFunc, ScanState};
use ondisk::vdev_config::VdevKind as ConfigKind;
use sim::{DiskImage, Rng};
use spa::{DevSpec, GroupKind, NewDevice, Pool, ScanStatus};
use vdev::{Health, MirrorRole, VdevKind};

use crate::campaign::drive;
use crate::devices::LabDoor;
use crate::lab::{Lab, Shape};
use crate::workload::{Profile, Runner};
use crate::{Check, Fault};

/// Start of the address space on a device, and the size of the labels at its end.
pub(crate) const FRONT: u64 = 4 << 20;
pub(crate) const BACK: u64 = 512 << 10;
/// The longest that a scan may take, in virtual time.
const SCAN_MAX: Nanos = Nanos::from_secs(6 * 3600);

pub(crate) fn told(what: &str) -> impl Fn(base::Error) -> Fault {
    move |e| format!("{what}: {e:?}")
}

/// Waits for the scan that runs, but not for ever.
pub async fn wait(pool: &Rc<Pool>) -> Check<ScanStatus> {
    match pool.rt().timeout(SCAN_MAX, pool.scan().wait()).await {
        None => Err(format!("the scan does not end: {:?}", pool.scan().status())),
        Some(result) => {
            result.map_err(told("waiting for the scan"))?;
            Ok(pool.scan().status())
        }
    }
}

/// Waits until no device is rebuilt in the order of the space, as distributed spares are by
/// themselves: until then no other is attached.
pub async fn no_rebuild(pool: &Rc<Pool>) -> Check {
    while pool.devices().rebuilds().is_active() {
        wait(pool).await?;
        pool.rt().sleep(Nanos::from_ms(1)).await;
    }
    Ok(())
}

/// Scrubs and waits.
pub async fn scrub(pool: &Rc<Pool>) -> Check<ScanStatus> {
    pool.scan().start_scrub().await.map_err(told("scrub"))?;
    let s = wait(pool).await?;
    if (s.phys.func, s.phys.state) != (ScanFunc::Scrub, ScanState::Finished) {
        return Err(format!("the scrub did not end: {s:?}"));
    }
    Ok(s)
}

/// Spares that stand in are not needed any more. Returns whether there were any.
pub async fn give_spares_back(pool: &Rc<Pool>) -> Check<bool> {
    let spares: Vec<_> = pool.mos_config().vdev_tree.iter().filter(|c| c.kind == ConfigKind::Spare).cloned().collect();
    for spare in &spares {
        let last = spare.children.last().ok_or("a spare without children")?;
        pool.devices().detach(&last.guid.0.to_string()).await.map_err(told("giving a spare back"))?;
    }
    Ok(!spares.is_empty())
}

/// Between two scrubs: the next txgs may have a spare stand in for a device in which the first one
/// found many errors. The second one would mend what is rebuilt then, or be canceled.
pub async fn settle_spares(pool: &Rc<Pool>) -> Check {
    for _ in 0..2 {
        pool.sync().await.map_err(told("sync"))?;
        wait(pool).await?;
        no_rebuild(pool).await?;
    }
    if give_spares_back(pool).await? {
        wait(pool).await?;
    }
    Ok(())
}

/// Scrubs a pool that must be without fault.
pub async fn scrub_clean(pool: &Rc<Pool>) -> Check {
    let s = scrub(pool).await?;
    let damaged = pool.scan().damaged_blocks().await.map_err(told("damaged blocks"))?;
    if s.phys.errors != 0 || s.phys.processed != 0 || !damaged.is_empty() {
        return Err(format!(
            "a scrub found {} errors and mended {} bytes: {damaged:?}",
            s.phys.errors, s.phys.processed
        ));
    }
    for top in pool.tree().tops.borrow().iter() {
        for (guid, condition) in top.kind().conditions() {
            if !condition.missing().is_empty() {
                return Err(format!("device {guid} still misses {:?}", condition.missing()));
            }
        }
    }
    Ok(())
}

/// Puts a disk that the pool does not have in the place of every device that is not there, brings
/// back those that were taken out, and mends everything. False if nothing was wrong.
pub async fn make_whole(lab: &Rc<Lab>, pool: &Rc<Pool>) -> Check<bool> {
    wait(pool).await?;
    let mut wrong = false;
    let tops = pool.tree().tops.borrow().clone();
    pool.devices().set_door(Rc::new(LabDoor(lab.clone())));
    for top in &tops {
        for (guid, condition) in top.kind().conditions() {
            let kind = top.kind();
            let Some(node) = kind.find(guid) else { continue };
            if condition.health() == Health::Online && !matches!(node, VdevKind::Absent(_)) {
                continue;
            }
            wrong = true;
            let name = guid.0.to_string();
            let replaced = kind.parent_of(guid).and_then(|p| p.role()) == Some(MirrorRole::Replacing);
            match node {
                // Another is about to take its place.
                VdevKind::Absent(_) if replaced => {}
                VdevKind::Absent(_) => {
                    let free = blank(lab, pool).ok_or("no disk is free")?;
                    let new = NewDevice::Device(DevSpec { dev: lab.disks[free].dev(), is_disk: false });
                    no_rebuild(pool).await?;
                    pool.devices().replace(&name, new, None, false).await.map_err(told("replace"))?;
                }
                _ => pool.devices().bring_online(&name, false).await.map_err(told("online"))?,
            }
        }
    }
    if !wrong {
        return Ok(false);
    }
    wait(pool).await?;
    for _ in 0..3 {
        pool.sync().await.map_err(told("sync"))?;
    }
    let spares: Vec<_> = pool.mos_config().vdev_tree.iter().filter(|c| c.kind == ConfigKind::Spare).cloned().collect();
    for spare in spares {
        let last = spare.children.last().ok_or("a spare without children")?;
        pool.devices().detach(&last.guid.0.to_string()).await.map_err(told("giving a spare back"))?;
    }
    let first = scrub(pool).await?;
    if first.phys.errors != 0 {
        return Err(format!("the first scrub of a pool made whole: {:?}", first.phys));
    }
    scrub_clean(pool).await?;
    // Devices with many wrong blocks stay degraded until the errors are cleared.
    pool.devices().clear_errors(None).map_err(told("clear"))?;
    wait(pool).await?;
    match pool.tree().health() {
        Health::Online => Ok(true),
        health => Err(format!("the pool is {health:?} still")),
    }
}

/// A disk without a label.
fn blank(lab: &Lab, pool: &Pool) -> Option<usize> {
    let config = pool.mos_config();
    let used = |n: usize| config.vdev_tree.iter().any(|c| c.path.as_deref() == Some(&format!("disk{n}.img")));
    (0..lab.disks.len()).find(|n| !used(*n) && lab.disks[*n].peek(0, 256 << 10).iter().all(|b| *b == 0))
}

/// How many devices each top-level vdev of a shape may lose, with the numbers of its devices.
fn tolerances(shape: &Shape) -> Vec<(usize, Vec<usize>)> {
    let mut at = 0;
    let each = shape.groups.iter().map(|&(kind, _, n)| {
        let tolerates = match kind {
            GroupKind::Single => 0,
            GroupKind::Mirror => n - 1,
            GroupKind::Raidz(p) | GroupKind::Draid { parity: p, .. } => usize::from(p),
        };
        at += n;
        (tolerates, (at - n..at).collect())
    });
    each.collect()
}

/// As many devices as the shape can do without, drawn from each vdev.
pub fn draw_losses(shape: &Shape, rng: &mut Rng) -> Vec<usize> {
    let mut out = Vec::new();
    for (tolerates, mut devices) in tolerances(shape) {
        for _ in 0..tolerates {
            out.push(devices.swap_remove(rng.below(devices.len() as u64) as usize));
        }
    }
    out.sort_unstable();
    out
}

/// Overwrites the address space of a device with noise, all of it or in places.
fn rot(image: &mut DiskImage, rng: &mut Rng, all: bool) {
    let end = image.size() - BACK;
    let mut noise = vec![0u8; 1 << 20];
    for b in noise.chunks_mut(8) {
        b.copy_from_slice(&rng.next_u64().to_le_bytes()[..b.len()]);
    }
    let mut at = FRONT;
    while at < end {
        let n = (end - at).min(noise.len() as u64);
        if all || rng.percent(60) {
            image.write(at, &noise[..n as usize]);
        }
        at += n;
    }
}

/// A workload, then noise on as many devices as the layout can do without, then a scrub that mends
/// everything. Returns the disks, exported.
pub fn run_rot(seed: u64, shape: &'static Shape, ops: u64) -> Result<Vec<DiskImage>, Fault> {
    let mut rng = Rng::new(seed ^ 0x5c4b);
    let mut runner = Runner::new(seed, Profile::Small)?.shaped(seed, shape);
    // Blocks without a checksum may rot undetected.
    runner.keep_checksums();
    drive(&mut runner, async |r: &mut Runner| {
        r.create().await?;
        for _ in 0..ops {
            r.step().await?;
        }
        r.export().await
    })?;
    let mut images = runner.lab.images();
    let lost = draw_losses(shape, &mut rng);
    // A little data may leave devices of a draid empty, and places of any device.
    let mut sure = false;
    for i in &lost {
        let all = rng.percent(50);
        rot(&mut images[*i], &mut rng, all);
        sure |= all && !shape.groups.iter().any(|g| matches!(g.0, GroupKind::Draid { .. }));
    }
    runner.lab = Rc::new(Lab::with_images(seed.wrapping_mul(77), images, true));
    drive(&mut runner, async |r: &mut Runner| {
        r.import().await?;
        let pool = r.pool();
        let s = scrub(&pool).await?;
        if s.phys.errors != 0 || sure && s.phys.processed == 0 {
            return Err(format!("{lost:?} are noise, and a scrub found {:?}", s.phys));
        }
        settle_spares(&pool).await?;
        scrub_clean(&pool).await.map_err(|e| format!("the second time, {lost:?} were noise: {e}"))?;
        drop(pool);
        r.compare().await?;
        r.export().await
    })?;
    Ok(runner.lab.images())
}

/// A workload in whose middle devices go away and come back stale or full of noise; they are
/// resilvered, and then others go.
pub fn run_resilver(seed: u64, shape: &'static Shape, ops: u64) -> Result<Vec<DiskImage>, Fault> {
    let mut rng = Rng::new(seed ^ 0x7e51);
    let mut runner = Runner::new(seed, Profile::Small)?.shaped(seed, shape);
    let mut lost = Vec::new();
    for life in 0..5u64 {
        let back = std::mem::take(&mut lost);
        if life % 2 == 1 {
            lost = draw_losses(shape, &mut rng);
        }
        *runner.lab.away.borrow_mut() = lost.clone();
        let run = drive(&mut runner, async |r: &mut Runner| {
            if life == 0 {
                r.create().await?;
            } else {
                r.import().await?;
            }
            if !back.is_empty() {
                let s = wait(&r.pool()).await?;
                if (s.phys.func, s.phys.state, s.phys.errors) != (ScanFunc::Resilver, ScanState::Finished, 0) {
                    return Err(format!("{back:?} came back, and the scan is {s:?}"));
                }
                r.pool().sync().await.map_err(told("sync"))?;
                scrub_clean(&r.pool()).await.map_err(|e| format!("after resilvering {back:?}: {e}"))?;
            }
            for _ in 0..ops {
                r.step().await?;
            }
            r.compare().await?;
            r.export().await
        });
        run.map_err(|e| format!("{}, life {life} without {lost:?}: {e}", shape.name))?;
        runner.lab = Rc::new(runner.lab.reborn(seed.wrapping_mul(1000).wrapping_add(life + 1)));
    }
    Ok(runner.lab.images())
}

/// Totals of many power cuts.
#[derive(Clone, Copy, Default, Debug)]
pub struct CutsMet {
    /// Power cuts.
    pub cuts: u64,
    /// Of them while a resilver or scrub ran.
    pub running: u64,
    /// Imports that resumed a running scan beyond its beginning.
    pub resumed: u64,
}

/// Devices come back stale; the power fails again and again during the resilver, until it is done.
/// Then the devices that were whole go away.
pub fn run_cuts(seed: u64, shape: &'static Shape, ops: u64, met: &mut CutsMet) -> Result<Vec<DiskImage>, Fault> {
    let mut rng = Rng::new(seed ^ 0xc075);
    let mut runner = Runner::new(seed, Profile::Small)?.shaped(seed, shape);
    let lost = draw_losses(shape, &mut rng);
    for life in 0..2u64 {
        if life == 1 {
            *runner.lab.away.borrow_mut() = lost.clone();
        }
        drive(&mut runner, async |r: &mut Runner| {
            if life == 0 {
                r.create().await?
            } else {
                r.import().await?
            }
            for _ in 0..ops * (1 + 3 * life) {
                r.step().await?;
            }
            r.export().await
        })?;
        runner.lab = Rc::new(runner.lab.reborn(seed.wrapping_mul(1000).wrapping_add(life + 1)));
    }
    let mut span = 4_000_000u64;
    for cut in 0..40u64 {
        let sleep = Nanos(rng.below(span));
        // Sooner or later it must have the time to end.
        span += span / 4;
        let scrubs = cut % 3 == 2;
        let steps = rng.below(3);
        let (running, resumed) = drive(&mut runner, async |r: &mut Runner| {
            r.import_cut().await?;
            let pool = r.pool();
            let phys = pool.scan().status().phys;
            let resumed = phys.state == ScanState::Scanning && phys.examined > 0;
            // A few blocks in each round, or those of one txg.
            if seed.is_multiple_of(2) {
                pool.scan().set_memory(3 << 10);
            } else {
                let mut opts = r.layout.opts();
                opts.scan.legacy = true;
                pool.tune(&opts);
            }
            // Work takes time, in which a scan may end.
            if cut % 2 == 1 {
                for _ in 0..steps {
                    r.step().await?;
                }
                r.settle().await?;
            }
            if scrubs && pool.scan().status().phys.state != ScanState::Scanning {
                pool.scan().start_scrub().await.map_err(told("scrub"))?;
            }
            pool.rt().sleep(sleep).await;
            let missing = pool
                .tree()
                .tops
                .borrow()
                .iter()
                .any(|top| top.kind().conditions().iter().any(|(_, c)| !c.missing().is_empty()));
            Ok((missing || pool.scan().status().phys.state == ScanState::Scanning, resumed))
        })
        .map_err(|e| format!("{}, cut {cut}: {e}", shape.name))?;
        met.cuts += 1;
        met.running += u64::from(running);
        met.resumed += u64::from(resumed);
        let images =
            runner.lab.disks.iter().enumerate().map(|(n, d)| d.power_cut(rng.next_u64().wrapping_add(n as u64)));
        let images: Vec<DiskImage> = images.collect();
        runner.lab.sim.crash();
        runner.forget();
        runner.lab = Rc::new(Lab::with_images(seed.wrapping_mul(999).wrapping_add(cut), images, true));
        if !running {
            break;
        }
    }
    drive(&mut runner, async |r: &mut Runner| {
        r.import_cut().await?;
        wait(&r.pool()).await?;
        r.pool().sync().await.map_err(told("sync"))?;
        scrub_clean(&r.pool()).await?;
        r.compare().await?;
        r.export().await
    })
    .map_err(|e| format!("{}, after the cuts: {e}", shape.name))?;
    let images = runner.lab.images();
    runner.lab = Rc::new(runner.lab.reborn(seed ^ 77));
    // The others go: the resilvered devices must carry the pool.
    let others = tolerances(shape).into_iter().flat_map(|(tolerates, devices)| {
        devices.into_iter().filter(|d| !lost.contains(d)).take(tolerates).collect::<Vec<usize>>()
    });
    *runner.lab.away.borrow_mut() = others.collect();
    drive(&mut runner, async |r: &mut Runner| {
        r.import().await?;
        r.compare().await?;
        r.export().await
    })
    .map_err(|e| format!("{}, without the devices that were never away: {e}", shape.name))?;
    Ok(images)
}
