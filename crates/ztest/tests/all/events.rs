//! The events that a pool posts (`zpool events`), against the operations on it.

use std::cell::RefCell;
use std::rc::Rc;

use base::{Nanos, WallTime};
use ondisk::nvlist::NvList;
use sim::{Fault, OpKind};
use spa::EventSink;
use vdev::{ALWAYS, DeviceFault, FaultyOps, Trouble};
use ztest::campaign::drive;
use ztest::devices::LabDoor;
use ztest::lab::SHAPES;
use ztest::workload::{Profile, Runner};

#[derive(Default)]
struct Kept(RefCell<Vec<(String, NvList)>>);

impl EventSink for Kept {
    fn post(&self, class: String, time: WallTime, payload: NvList) {
        assert!(time.nanos < 1_000_000_000);
        assert_eq!(payload.str("pool"), Some(ztest::lab::POOL), "{class}");
        self.0.borrow_mut().push((class, payload));
    }
}

impl Kept {
    fn of(&self, end: &str) -> Vec<NvList> {
        self.0.borrow().iter().filter(|(c, _)| c.ends_with(end)).map(|(_, p)| p.clone()).collect()
    }
}

/// A disk fails, is cleared, is taken out and comes back, while scrubs run.
#[test]
fn events_tell_what_happened() {
    let shape = SHAPES.iter().find(|s| s.name == "mirror").expect("it is there");
    let mut r = Runner::new(3300, Profile::Small).expect("a runner").shaped(3300, shape);
    let kept: Rc<Kept> = Rc::default();
    let theirs = kept.clone();
    drive(&mut r, async move |r: &mut Runner| {
        let text = |e: base::Error| e.to_string();
        r.create().await?;
        let pool = r.pool();
        pool.set_event_sink(theirs.clone(), "pool_create");
        pool.devices().set_door(Rc::new(LabDoor(r.lab.clone())));
        for _ in 0..5 {
            r.step().await?;
        }
        pool.sync().await.map_err(text)?;
        assert_eq!(theirs.of("pool_create").len(), 1);
        let all = theirs.0.borrow().clone();
        let opening: Vec<_> = all.iter().take_while(|(class, _)| !class.ends_with(".pool_create")).collect();
        assert!(!opening.is_empty() && opening.iter().all(|(class, _)| class.ends_with(".history_event")));
        assert!(opening.iter().any(|(_, p)| p.str("history_internal_name") == Some("create")));
        assert!(theirs.of(".io").is_empty() && theirs.of("statechange").is_empty());
        let pause = Nanos::from_ms(200);
        pool.scan().start_scrub().await.map_err(text)?;
        pool.scan().wait().await.map_err(text)?;
        assert_eq!((theirs.of("scrub_start").len(), theirs.of("scrub_finish").len()), (1, 1));
        // Every write to one disk fails until it is given up.
        r.lab.disks[0].fault(Fault::FailSome { kind: Some(OpKind::Write), per_mille: 1000 });
        for _ in 0..10 {
            r.step().await?;
            pool.sync().await.map_err(text)?;
            r.lab.sim.rt().sleep(pause).await;
        }
        let errors = theirs.of("ereport.fs.zfs.io");
        assert!(!errors.is_empty() && errors.len() <= 20 * 60, "{}", errors.len());
        let guid = pool.tree().leaves()[0].guid().0;
        for e in &errors {
            assert_eq!(e.u64("vdev_guid"), Some(guid));
            assert_eq!((e.str("parent_type"), e.u64("zio_err")), (Some("mirror"), Some(5)));
            assert!(e.contains("vdev_path") && e.list("detector").is_some() && !e.contains("version"));
        }
        let changes = theirs.of("resource.fs.zfs.statechange");
        assert_eq!(
            (changes.len(), changes[0].u64("vdev_state"), changes[0].u64("vdev_laststate")),
            (1, Some(5), Some(7))
        );
        r.lab.disks[0].clear_faults();
        pool.devices().clear(None).await.map_err(text)?;
        pool.sync().await.map_err(text)?;
        pool.scan().wait().await.map_err(text)?;
        assert_eq!(theirs.of("vdev_clear").len(), 1);
        assert_eq!((theirs.of("resilver_start").len(), theirs.of("resilver_finish").len()), (1, 1));
        let name = pool.tree().leaves()[1].guid().0.to_string();
        pool.devices().offline(&name, true).await.map_err(text)?;
        pool.sync().await.map_err(text)?;
        pool.devices().bring_online(&name, false).await.map_err(text)?;
        pool.sync().await.map_err(text)?;
        let states: Vec<_> = theirs.of("statechange").iter().map(|p| p.u64("vdev_state")).collect();
        assert_eq!(states, [5, 7, 2, 7].map(Some));
        assert_eq!(theirs.of("vdev_online").len(), 1);
        pool.scan().wait().await.map_err(text)?;
        // The internal history and the events get the same entries.
        let history = theirs.of("history_event");
        let scans = history.iter().filter(|p| p.str("history_internal_name") == Some("scan done")).count();
        assert_eq!(scans, theirs.of("resilver_finish").len() + theirs.of("scrub_finish").len());
        r.compare().await?;
        r.export().await
    })
    .unwrap_or_else(|e| panic!("{e}"));
    assert!(kept.of("config_sync").len() > 2);
    assert_eq!((kept.of("pool_export").len(), kept.of("checksum").len(), kept.of(".data").len()), (1, 0, 0));
}

/// Rot on a disk: a scrub mends it and reports its place.
#[test]
fn wrong_contents_are_reported() {
    let shape = SHAPES.iter().find(|s| s.name == "mirror").expect("it is there");
    let mut r = Runner::new(3301, Profile::Small).expect("a runner").shaped(3301, shape);
    let kept: Rc<Kept> = Rc::default();
    let theirs = kept.clone();
    drive(&mut r, async move |r: &mut Runner| {
        let text = |e: base::Error| e.to_string();
        r.create().await?;
        let pool = r.pool();
        pool.set_event_sink(theirs.clone(), "pool_create");
        for _ in 0..10 {
            r.step().await?;
        }
        pool.sync().await.map_err(text)?;
        r.lab.disks[0].fault(Fault::FlipOnRead { range: 4 << 20..64 << 20 });
        pool.scan().start_scrub().await.map_err(text)?;
        pool.scan().wait().await.map_err(text)?;
        r.lab.disks[0].clear_faults();
        r.lab.sim.rt().sleep(Nanos::from_ms(200)).await;
        let wrong = theirs.of("ereport.fs.zfs.checksum");
        assert!(!wrong.is_empty());
        let guid = pool.tree().leaves()[0].guid().0;
        for e in &wrong {
            assert_eq!((e.u64("vdev_guid"), e.u64("zio_err")), (Some(guid), Some(52)));
            assert!(e.u64("zio_offset").is_some_and(|at| at >= 4 << 20) && e.u64("zio_size").is_some_and(|n| n >= 512));
        }
        assert!(theirs.of(".data").is_empty(), "the other disk had all");
        r.export().await
    })
    .unwrap_or_else(|e| panic!("{e}"));
}

/// Operations until something is to be written.
async fn change(r: &mut Runner) -> ztest::Check {
    while r.pool().txg().dirty() == 0 {
        r.step().await?;
    }
    Ok(())
}

/// Operations that a device does not end are reported while they hang, and again when they end
/// late; what takes less is not, and no second has more than its limit.
#[test]
fn operations_that_hang_are_reported() {
    let shape = SHAPES.iter().find(|s| s.name == "mirror").expect("it is there");
    let mut r = Runner::new(3303, Profile::Small).expect("a runner").shaped(3303, shape);
    let kept: Rc<Kept> = Rc::default();
    drive(&mut r, async move |r: &mut Runner| {
        let text = |e: base::Error| e.to_string();
        r.create().await?;
        let (pool, rt) = (r.pool(), r.lab.sim.rt());
        pool.set_event_sink(kept.clone(), "pool_create");
        let mut opts = r.layout.opts();
        (opts.queue.hung_io_ms, opts.events.deadman_check_ms) = (5_000, 1_000);
        pool.tune(&opts);
        let delay = |secs: u64| {
            let delay = Trouble::Delay { span: Nanos::from_secs(secs), lanes: 1000 };
            let fault = DeviceFault::new(delay, FaultyOps::Write, None, ALWAYS);
            pool.tree().leaves()[1].condition.faults.add(fault.clone());
            fault
        };
        let end = |fault| pool.tree().leaves()[1].condition.faults.remove(&fault);
        // A txg whose writes to one side take less, then one whose writes take longer.
        let short = delay(2);
        change(r).await?;
        pool.sync().await.map_err(text)?;
        end(short);
        assert_eq!(kept.of("deadman").len(), 0);
        let long = delay(10);
        change(r).await?;
        let syncing = rt.spawn("sync", {
            let pool = pool.clone();
            async move { pool.sync().await }
        });
        rt.sleep(Nanos::from_ms(9_500)).await;
        // Seconds 5 to 9, the oldest of the device each time.
        let seen = kept.of("deadman");
        assert!((3..=5).contains(&seen.len()), "{}", seen.len());
        assert!(seen.iter().all(|e| e.u64("vdev_guid") == Some(pool.tree().leaves()[1].guid().0)));
        assert!(seen.iter().all(|e| e.u64("zio_err") == Some(0) && e.u64("zio_size").is_some_and(|n| n > 0)));
        end(long);
        syncing.await.map_err(text)?;
        // Now because the txg takes long, and off.
        (opts.queue.hung_io_ms, opts.events.hung_sync_ms) = (300_000, 5_000);
        for on in [true, false] {
            opts.events.deadman = on;
            pool.tune(&opts);
            rt.sleep(Nanos::from_secs(2)).await;
            let before = kept.of("deadman").len();
            let long = delay(10);
            change(r).await?;
            pool.sync().await.map_err(text)?;
            end(long);
            assert_eq!(kept.of("deadman").len() > before, on);
        }
        drop(pool);
        r.compare().await?;
        r.export().await
    })
    .unwrap_or_else(|e| panic!("{e}"));
}
