//! Trim and initialize: work stopped by an export goes on after the import, where it was.

use std::num::NonZeroU64;
use std::rc::Rc;

use base::Nanos;
use sim::Rng;
use spa::{Pool, WorkCommand, WorkKind, WorkState};
use ztest::campaign::drive;
use ztest::judge::{Level, Verdict, judge};
use ztest::lab::{Lab, Layout, SHAPES};
use ztest::workload::{Profile, Runner};

fn percent(pool: &Pool, kind: WorkKind) -> (WorkState, u64) {
    let guid = pool.tree().leaves()[0].guid();
    pool.devices().works().get(guid, kind).map_or((WorkState::None, 0), |w| (w.state(), w.percent()))
}

#[test]
fn works_go_on_after_an_import() {
    let mut layout = Layout::draw(&mut Rng::new(4500), 64 << 20);
    layout.devices = vec![512 << 20];
    layout.features = ondisk::feature::features_of_2_1();
    assert!(SHAPES[0].groups.is_empty());
    for (seed, kind) in [(4500, WorkKind::Initialize), (4501, WorkKind::Trim)] {
        let lab = Lab::new(seed, &layout);
        lab.sim.block_on(async {
            let pool = lab.create(&layout, Vec::new()).await.expect("created");
            pool.devices().works().change(kind, WorkCommand::Start(None), &[]).await.expect("begun");
            while percent(&pool, kind).1 < 20 {
                pool.rt().sleep(Nanos::from_us(100)).await;
            }
            let running = pool.devices().works().change(kind, WorkCommand::Forget, &[]).await;
            assert_eq!(running.map_err(|e| e.kind()), Err(base::ErrorKind::Busy));
            pool.export().await.expect("exported");
            let pool = lab.import(false, layout.opts()).await.expect("imported");
            let (state, at) = percent(&pool, kind);
            assert!(state == WorkState::Active && (20..100).contains(&at), "{kind:?}: {state:?}, {at} %");
            // Suspended work stays so over an import, and goes on when resumed.
            pool.devices().works().change(kind, WorkCommand::Suspend, &[]).await.expect("suspended");
            let (_, at) = percent(&pool, kind);
            pool.export().await.expect("exported");
            let pool = lab.import(false, layout.opts()).await.expect("imported");
            pool.rt().sleep(Nanos::from_secs(10)).await;
            assert_eq!(percent(&pool, kind), (WorkState::Suspended, at), "{kind:?}");
            pool.devices().works().change(kind, WorkCommand::Start(None), &[]).await.expect("begun again");
            assert!(percent(&pool, kind).1 >= at);
            pool.devices().works().wait(kind).await.expect("ends");
            assert_eq!(percent(&pool, kind), (WorkState::Complete, 100));
            // What is forgotten is as if it had never begun, for the next import, too.
            pool.devices().works().change(kind, WorkCommand::Forget, &[]).await.expect("forgotten");
            assert_eq!(percent(&pool, kind), (WorkState::None, 0));
            pool.export().await.expect("exported");
            let pool = lab.import(false, layout.opts()).await.expect("imported");
            assert_eq!(percent(&pool, kind), (WorkState::None, 0));
            pool.export().await.expect("exported");
        });
        if kind == WorkKind::Initialize {
            // The pattern is everywhere but in allocated space.
            let image = lab.images().remove(0);
            let pattern = 0xdead_beef_dead_beeeu64.to_le_bytes();
            let words = image.read_vec(4 << 20, 500 << 20);
            let hits = words.chunks_exact(8).filter(|w| **w == pattern).count();
            assert!(hits * 8 > 470 << 20, "{} MiB", (hits * 8) >> 20);
        }
        match judge(&lab.images(), Level::Zdb, "works") {
            Verdict::Good => {}
            Verdict::Missing(what) => eprintln!("NOT JUDGED: {what} is missing"),
            Verdict::Bad(why) => panic!("{why}"),
        }
    }
}

/// A trim keeps to its rate, over a suspension and an import too, and hears commands meanwhile.
#[test]
fn a_trim_keeps_to_its_rate() {
    let mut layout = Layout::draw(&mut Rng::new(4502), 64 << 20);
    layout.devices = vec![512 << 20];
    layout.features = ondisk::feature::features_of_2_1();
    let lab = Lab::new(4502, &layout);
    lab.sim.block_on(async {
        let pool = lab.create(&layout, Vec::new()).await.expect("created");
        let works = |pool: &Pool| pool.devices().works().clone();
        let (trim, rate) = (WorkKind::Trim, NonZeroU64::new(16 << 20));
        let start = pool.rt().now();
        works(&pool).change(trim, WorkCommand::Start(rate), &[]).await.expect("begun");
        pool.rt().sleep(Nanos::from_secs(10)).await;
        let (_, at) = percent(&pool, trim);
        assert!((20..=40).contains(&at), "{at} % after 10 s of some 30");
        let before = pool.rt().now();
        works(&pool).change(trim, WorkCommand::Suspend, &[]).await.expect("suspended");
        assert!(pool.rt().now().0 - before.0 < 3_000_000_000);
        pool.export().await.expect("exported");
        let pool = lab.import(false, layout.opts()).await.expect("imported");
        let again = pool.rt().now();
        works(&pool).change(trim, WorkCommand::Start(None), &[]).await.expect("begun again");
        works(&pool).wait(trim).await.expect("ends");
        let took = (before.0 - start.0 + pool.rt().now().0 - again.0) / 1_000_000_000;
        assert!((25..=34).contains(&took), "{took} s");
        // Without a rate, once it was complete, there is none.
        let again = pool.rt().now();
        works(&pool).change(trim, WorkCommand::Start(None), &[]).await.expect("begun anew");
        works(&pool).wait(trim).await.expect("ends");
        assert!(pool.rt().now().0 - again.0 < 2_000_000_000);
        pool.export().await.expect("exported");
    });
    match judge(&lab.images(), Level::Zdb, "works-rate") {
        Verdict::Good => {}
        Verdict::Missing(what) => eprintln!("NOT JUDGED: {what} is missing"),
        Verdict::Bad(why) => panic!("{why}"),
    }
}

/// Work does not keep a device that is taken offline, and goes on where it was when it is online.
#[test]
fn a_trim_goes_on_when_its_device_is_online_again() {
    let mut rng = Rng::new(4503);
    let shape = SHAPES.iter().find(|s| s.name == "mirror").expect("a mirror");
    let mut layout = Layout::draw(&mut rng, 64 << 20).shaped(shape, &mut rng);
    layout.devices.iter_mut().for_each(|size| *size = 256 << 20);
    layout.features = ondisk::feature::features_of_2_1();
    let lab = std::rc::Rc::new(Lab::new(4503, &layout));
    lab.sim.block_on(async {
        let pool = lab.create(&layout, Vec::new()).await.expect("created");
        let devices = pool.devices();
        devices.set_door(std::rc::Rc::new(ztest::devices::LabDoor(lab.clone())));
        let trim = WorkKind::Trim;
        devices.works().change(trim, WorkCommand::Start(NonZeroU64::new(16 << 20)), &[]).await.expect("begun");
        pool.rt().sleep(Nanos::from_secs(3)).await;
        let leaf = pool.tree().leaves()[0].path();
        devices.offline(&leaf, false).await.expect("offline");
        // It notices, and ends.
        pool.rt().sleep(Nanos::from_secs(2)).await;
        devices.bring_online(&leaf, false).await.expect("online");
        let (state, at) = percent(&pool, trim);
        assert!(state == WorkState::Active && at > 0, "{state:?}, {at} %");
        devices.works().wait(trim).await.expect("ends");
        assert_eq!(percent(&pool, trim), (WorkState::Complete, 100));
        pool.export().await.expect("exported");
    });
}

/// Who waits for the work on one device does not wait for others.
#[test]
fn one_waits_for_the_devices_that_were_named() {
    let mut layout = Layout::draw(&mut Rng::new(4505), 64 << 20);
    layout.devices = vec![128 << 20, 512 << 20];
    let lab = Lab::new(4505, &layout);
    lab.sim.block_on(async {
        let pool = lab.create(&layout, Vec::new()).await.expect("created");
        let works = pool.devices().works();
        works.change(WorkKind::Initialize, WorkCommand::Start(None), &[]).await.expect("begun");
        let state = |n: usize| {
            let guid = pool.tree().leaves()[n].guid();
            works.get(guid, WorkKind::Initialize).expect("it was begun").state()
        };
        works.wait_for(WorkKind::Initialize, &["disk0.img".to_string()]).await.expect("ends");
        assert_eq!((state(0), state(1)), (WorkState::Complete, WorkState::Active));
        works.wait(WorkKind::Initialize).await.expect("ends");
        assert_eq!(state(1), WorkState::Complete);
        let e = works.wait_for(WorkKind::Trim, &["disk7.img".to_string()]).await;
        assert!(e.is_err(), "no such device");
        pool.export().await.expect("exported");
    });
}

/// With `autotrim` the disks soon hold no more than what is in use, and nothing that is in use is
/// lost, a txg of before included.
#[test]
fn freed_space_is_trimmed() {
    for (seed, shape) in [(4510, "mirror"), (4511, "raidz1"), (4512, "draid1"), (4513, "single")] {
        let shape = SHAPES.iter().find(|s| s.name == shape).unwrap_or(&SHAPES[0]);
        let mut r = Runner::new(seed, Profile::Small).expect("a runner").shaped(seed, shape);
        Rc::get_mut(&mut r.lab).expect("its only user").autotrim = true;
        drive(&mut r, async |r: &mut Runner| {
            let text = |e: base::Error| e.to_string();
            r.create().await?;
            let pool = r.pool();
            for _ in 0..40 {
                r.step().await?;
            }
            for _ in 0..12 {
                pool.sync().await.map_err(text)?;
                r.lab.sim.rt().sleep(Nanos::from_secs(6)).await;
            }
            let done: u64 = r.lab.disks.iter().map(|d| d.counters().discards).sum();
            assert!(done > 0, "seed {seed}: nothing was trimmed");
            r.compare().await?;
            pool.scan().start_scrub().await.map_err(text)?;
            pool.scan().wait().await.map_err(text)?;
            assert_eq!(pool.scan().status().phys.errors, 0, "seed {seed}");
            // Without it nothing more is trimmed.
            pool.set_autotrim(false);
            for _ in 0..10 {
                r.step().await?;
            }
            let done = || r.lab.disks.iter().map(|d| d.counters().discards).sum::<u64>();
            let before = done();
            for _ in 0..5 {
                pool.sync().await.map_err(text)?;
                r.lab.sim.rt().sleep(Nanos::from_secs(6)).await;
            }
            assert_eq!(done(), before, "seed {seed}");
            r.export().await
        })
        .unwrap_or_else(|e| panic!("{e}"));
    }
}
