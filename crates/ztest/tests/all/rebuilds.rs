//! Sequential rebuilds: devices that are filled in the order of the space.

use std::rc::Rc;

use base::{Nanos, WallTime};
use ondisk::feature::{FeatureId, features_of_2_1};
use ondisk::nvlist::NvList;
use ondisk::scan::{ScanFunc, ScanState};
use sim::{CutStyle, DiskImage, Fault, OpKind};
use spa::{DevSpec, NewDevice, Pool};
use vdev::Health;
use ztest::campaign::drive;
use ztest::cuts::completions;
use ztest::devices::LabDoor;
use ztest::judge::{Level, Verdict, judge};
use ztest::lab::{Lab, SHAPES};
use ztest::scan::{scrub_clean, wait};
use ztest::workload::{Profile, Runner};

fn text(e: base::Error) -> String {
    e.to_string()
}

/// A runner with one more disk than the shape takes.
fn runner(seed: u64, name: &str) -> Runner {
    let shape = SHAPES.iter().find(|s| s.name == name).expect("a known shape");
    let mut r = Runner::new(seed, Profile::Small).expect("a runner").shaped(seed, shape);
    r.layout.features = features_of_2_1();
    let largest = r.layout.devices.iter().copied().max().expect("it has devices");
    let mut images = r.lab.images();
    images.extend([DiskImage::zeroed(largest), DiskImage::zeroed(largest)]);
    r.lab = Rc::new(Lab::with_images(seed, images, true));
    r
}

fn spec(lab: &Lab, n: usize) -> DevSpec {
    DevSpec { dev: lab.disks[n].dev(), is_disk: false }
}

fn states(pool: &Pool) -> Vec<(ScanState, u64)> {
    pool.devices().rebuilds().status().iter().map(|(_, p)| (p.state, p.errors)).collect()
}

/// A resilver that begins again while blocks are in flight repairs these, too.
#[test]
fn a_resilver_that_begins_again_repairs_everything() {
    for seed in 5350..5358 {
        let mut r = runner(seed, "mirror");
        drive(&mut r, async |r: &mut Runner| {
            r.create().await?;
            let pool = r.pool();
            for _ in 0..40 {
                r.step().await?;
            }
            pool.sync().await.map_err(text)?;
            let old = pool.tree().leaves()[0].guid().0.to_string();
            pool.devices().attach(&old, spec(&r.lab, 2), None, false).await.map_err(text)?;
            for n in 0..6 {
                r.lab.sim.rt().sleep(Nanos::from_us(150 * (n + seed % 8))).await;
                pool.scan().request_resilver();
            }
            wait(&pool).await?;
            scrub_clean(&pool).await.map_err(|e| format!("seed {seed}: {e}"))?;
            r.export().await
        })
        .unwrap_or_else(|e| panic!("{e}"));
    }
}

fn misses(pool: &Pool) -> bool {
    pool.tree().tops.borrow().iter().flat_map(|t| t.kind().conditions()).any(|(_, c)| !c.missing().is_empty())
}

/// A mirror, a single disk and a draid with its spare; under way other scans and attaches of the
/// usual kind are refused. Then the new device has everything: without any of the others.
#[test]
fn a_rebuilt_device_has_everything() {
    for (seed, name) in [(5300, "mirror"), (5301, "draid"), (5302, "draid2"), (5303, "mirrors")] {
        let mut r = runner(seed, name);
        let spare = r.layout.shape.groups.iter().map(|g| g.2).sum::<usize>();
        drive(&mut r, async |r: &mut Runner| {
            r.create().await?;
            let pool = r.pool();
            pool.devices().set_door(Rc::new(LabDoor(r.lab.clone())));
            for _ in 0..40 {
                r.step().await?;
            }
            pool.sync().await.map_err(text)?;
            let lost = pool.tree().leaves()[0].guid().0.to_string();
            if name.starts_with("draid") {
                pool.devices().offline(&lost, false).await.map_err(text)?;
                let path = pool.devices().aux().spares[0].path.clone().expect("it has a name");
                pool.devices().replace(&lost, NewDevice::Spare(path), None, true).await.map_err(text)?;
            } else {
                pool.devices().attach(&lost, spec(&r.lab, spare), None, true).await.map_err(text)?;
            }
            assert!(pool.devices().rebuilds().is_active() && pool.scan().is_resilver_pending(), "{name}");
            let busy = pool.devices().attach(&lost, spec(&r.lab, spare + 1), None, false).await;
            assert!(busy.is_err_and(|e| e.to_string().contains("currently sequentially resilvering")), "{name}");
            assert!(pool.scan().start_scrub().await.is_err(), "{name}");
            assert!(pool.features().is_active(FeatureId::DeviceRebuild), "{name}: the feature is active");
            for _ in 0..5 {
                r.step().await?;
            }
            wait(&pool).await?;
            assert_eq!(states(&pool), [(ScanState::Finished, 0)], "{name}");
            assert!(
                !pool.devices().rebuilds().is_active() && !pool.features().is_active(FeatureId::DeviceRebuild),
                "{name}"
            );
            pool.sync().await.map_err(text)?;
            let of_new = pool.tree().tops.borrow().iter().flat_map(|t| t.kind().conditions()).collect::<Vec<_>>();
            let open = of_new.iter().filter(|(_, c)| c.health().is_open());
            assert!(open.clone().all(|(_, c)| c.missing().is_empty()), "{name}");
            if !name.starts_with("draid") {
                pool.devices().offline(&lost, false).await.map_err(text)?;
            }
            r.compare().await?;
            pool.scan().start_scrub().await.map_err(text)?;
            let s = wait(&pool).await?;
            assert_eq!((s.phys.errors, s.phys.processed), (0, 0), "{name}: a scrub found what was not rebuilt");
            r.export().await?;
            Ok(())
        })
        .unwrap_or_else(|e| panic!("{name}: {e}"));
        if !name.starts_with("draid") {
            match judge(&r.lab.images(), Level::Zdb, "rebuild") {
                Verdict::Good => {}
                Verdict::Missing(what) => eprintln!("NOT JUDGED: {what} is missing"),
                Verdict::Bad(why) => panic!("{name}: {why}"),
            }
        }
    }
}

/// A second device makes a rebuild begin again; a device that leaves makes it needless.
#[test]
fn a_rebuild_begins_again_or_ends() {
    let mut r = runner(5310, "mirror");
    drive(&mut r, async |r: &mut Runner| {
        r.create().await?;
        let pool = r.pool();
        pool.devices().set_door(Rc::new(LabDoor(r.lab.clone())));
        for _ in 0..40 {
            r.step().await?;
        }
        pool.sync().await.map_err(text)?;
        let old = pool.tree().leaves()[0].guid().0.to_string();
        let mut opts = r.layout.opts();
        opts.scan.suspend_progress = true;
        pool.tune(&opts);
        pool.devices().attach(&old, spec(&r.lab, 2), None, true).await.map_err(text)?;
        pool.devices().attach(&old, spec(&r.lab, 3), None, true).await.map_err(text)?;
        pool.devices().detach("disk2.img").await.map_err(text)?;
        assert!(pool.devices().rebuilds().is_active());
        pool.tune(&r.layout.opts());
        wait(&pool).await?;
        assert_eq!(states(&pool), [(ScanState::Finished, 0)]);
        assert!(!misses(&pool));
        scrub_clean(&pool).await?;
        // Nothing is left to be done.
        pool.devices().detach("disk3.img").await.map_err(text)?;
        pool.tune(&opts);
        pool.devices().attach(&old, spec(&r.lab, 2), None, true).await.map_err(text)?;
        pool.devices().detach("disk2.img").await.map_err(text)?;
        pool.tune(&r.layout.opts());
        wait(&pool).await?;
        assert_eq!(states(&pool), [(ScanState::Canceled, 0)]);
        r.compare().await?;
        r.export().await
    })
    .unwrap_or_else(|e| panic!("{e}"));
}

/// What cannot be read is not taken for rebuilt: the new device goes on missing it, and a resilver
/// follows.
#[test]
fn a_rebuild_with_errors_proves_nothing() {
    let mut r = runner(5320, "mirror");
    drive(&mut r, async |r: &mut Runner| {
        r.create().await?;
        let pool = r.pool();
        pool.devices().set_door(Rc::new(LabDoor(r.lab.clone())));
        for _ in 0..40 {
            r.step().await?;
        }
        pool.devices().detach("disk1.img").await.map_err(text)?;
        pool.sync().await.map_err(text)?;
        pool.set_failmode(vdev::FailMode::Continue);
        let old = pool.tree().leaves()[0].guid().0.to_string();
        let mut opts = r.layout.opts();
        opts.rebuild.max_segment = 1 << 20;
        pool.tune(&opts);
        r.lab.disks[0].fault(Fault::FailSome { kind: Some(OpKind::Read), per_mille: 300 });
        pool.devices().attach(&old, spec(&r.lab, 2), None, true).await.map_err(text)?;
        while pool.devices().rebuilds().is_active() {
            r.lab.sim.rt().sleep(Nanos::from_ms(1)).await;
        }
        r.lab.disks[0].clear_faults();
        let (state, errors) = states(&pool)[0];
        assert!(state == ScanState::Finished && errors > 0, "{state:?} {errors}");
        assert!(misses(&pool), "what was not read is missed still");
        eprintln!(
            "A {:?} {:?}",
            pool.scan().status().phys,
            pool.tree()
                .leaves()
                .iter()
                .map(|l| (l.guid(), l.condition.missing(), l.condition.health()))
                .collect::<Vec<_>>()
        );
        pool.devices().clear(None).await.map_err(text)?;
        wait(&pool).await?;
        eprintln!(
            "C {:?} {:?}",
            pool.scan().status().phys,
            pool.tree()
                .leaves()
                .iter()
                .map(|l| (l.guid(), l.condition.missing(), l.condition.health()))
                .collect::<Vec<_>>()
        );
        pool.sync().await.map_err(text)?;
        wait(&pool).await?;
        assert_eq!(pool.scan().status().phys.func, ScanFunc::Resilver);
        assert!(!misses(&pool));
        r.compare().await?;
        scrub_clean(&pool).await?;
        r.export().await
    })
    .unwrap_or_else(|e| panic!("{e}"));
}

/// The power goes at any moment of a rebuild, and of the rebuild that goes on after it: afterwards
/// the new device has everything.
#[test]
fn a_rebuild_goes_on_after_a_power_cut() {
    let mut r = runner(5330, "mirror");
    let mut layout = None;
    drive(&mut r, async |r: &mut Runner| {
        r.create().await?;
        let pool = r.pool();
        pool.devices().set_door(Rc::new(LabDoor(r.lab.clone())));
        for _ in 0..40 {
            r.step().await?;
        }
        r.lab.start_logs(&pool).await?;
        let old = pool.tree().leaves()[0].guid().0.to_string();
        pool.devices().attach(&old, spec(&r.lab, 2), None, true).await.map_err(text)?;
        for _ in 0..5 {
            r.step().await?;
        }
        wait(&pool).await?;
        layout = Some(r.layout.clone());
        r.export().await
    })
    .unwrap_or_else(|e| panic!("{e}"));
    let layout = layout.expect("it was set");
    let logs: Vec<_> = r.lab.disks.iter().filter_map(|d| d.take_log()).collect();
    let mut replays: Vec<_> = logs.iter().map(|l| l.replay()).collect();
    let (mut cuts, mut resumed, mut whole) = (0, 0, 0);
    let all: Vec<u64> = completions(&logs).into_iter().collect();
    let every = (all.len() / 60).max(1);
    for seq in all.into_iter().step_by(every) {
        let images: Vec<DiskImage> = replays
            .iter_mut()
            .enumerate()
            .map(|(disk, replay)| {
                replay.to_seq(seq);
                replay.cut(CutStyle::Seeded, seq * 31 + disk as u64)
            })
            .collect();
        let lab = Rc::new(Lab::with_images(seq, images, true));
        let (active, three) = lab.sim.block_on(async {
            let pool = lab.import(false, layout.opts()).await.unwrap_or_else(|e| panic!("moment {seq}: {e}"));
            let active = pool.devices().rebuilds().is_active();
            wait(&pool).await.unwrap_or_else(|e| panic!("moment {seq}: {e}"));
            pool.sync().await.unwrap_or_else(|e| panic!("moment {seq}: {e}"));
            wait(&pool).await.unwrap_or_else(|e| panic!("moment {seq}: {e}"));
            let leaves = pool.tree().leaves().len();
            scrub_clean(&pool).await.unwrap_or_else(|e| panic!("moment {seq}: {e}"));
            if leaves == 3 {
                for n in [0, 1] {
                    let name = format!("disk{n}.img");
                    pool.devices().offline(&name, true).await.unwrap_or_else(|e| panic!("moment {seq}: {e}"));
                }
                assert_eq!(pool.tree().health(), Health::Degraded);
                pool.scan().start_scrub().await.unwrap_or_else(|e| panic!("moment {seq}: {e}"));
                let s = wait(&pool).await.unwrap_or_else(|e| panic!("moment {seq}: {e}"));
                assert_eq!((s.phys.errors, s.phys.processed), (0, 0), "moment {seq}");
            }
            pool.export().await.unwrap_or_else(|e| panic!("moment {seq}: {e}"));
            (active, leaves == 3)
        });
        cuts += 1;
        resumed += usize::from(active);
        whole += usize::from(three);
    }
    assert!(cuts > 30 && resumed > 3 && whole > resumed, "{cuts} cuts, {resumed} went on, {whole} with three disks");
}

/// Events and the history tell of a rebuild.
#[test]
fn a_rebuild_is_told() {
    #[derive(Default)]
    struct Kept(std::cell::RefCell<Vec<(String, NvList)>>);
    impl spa::EventSink for Kept {
        fn post(&self, class: String, _: WallTime, payload: NvList) {
            self.0.borrow_mut().push((class, payload));
        }
    }
    let mut r = runner(5340, "mirror");
    let kept: Rc<Kept> = Rc::default();
    let sink = kept.clone();
    drive(&mut r, async move |r: &mut Runner| {
        r.create().await?;
        let pool = r.pool();
        pool.set_event_sink(sink.clone(), "pool_create");
        let old = pool.tree().leaves()[0].guid().0.to_string();
        pool.devices().attach(&old, spec(&r.lab, 2), None, true).await.map_err(text)?;
        wait(&pool).await?;
        r.export().await
    })
    .unwrap_or_else(|e| panic!("{e}"));
    let kept = kept.0.borrow();
    let resilvers = kept.iter().filter(|(c, _)| c.contains("resilver_"));
    let told: Vec<_> = resilvers.map(|(c, p)| (c.as_str(), p.str("resilver_type"))).collect();
    let [start, finish] = ["start", "finish"].map(|w| format!("sysevent.fs.zfs.resilver_{w}"));
    assert_eq!(told, [(start.as_str(), Some("sequential")), (finish.as_str(), Some("sequential"))]);
    let entries = kept.iter().filter(|(_, p)| p.str("history_internal_name") == Some("rebuild"));
    assert_eq!(entries.count(), 2);
}
