//! Top-level vdevs with data are removed: nothing is lost, and the pools are whole for all judges,
//! at the end and in the middle.

use std::rc::Rc;

use base::{ErrorKind, Nanos, VdevId};
use ondisk::indirect::RemovalState;
use sim::DiskImage;
use spa::{Bias, GroupKind, Pool};
use ztest::Check;
use ztest::campaign::drive;
use ztest::judge::{self, Level, Verdict};
use ztest::lab::Shape;
use ztest::removecuts::{LAYOUTS, check_counts, cut_seed, name_of, runner};
use ztest::scan::scrub_clean;
use ztest::snaps::check_images;
use ztest::workload::{Profile, Runner};

fn layout(name: &str) -> &'static Shape {
    LAYOUTS.iter().find(|l| l.name == name).expect("a layout of removals")
}

fn judged(images: &[DiskImage], name: &str) {
    check_images(images).unwrap_or_else(|e| panic!("{name}: {e}"));
    match judge::judge(images, Level::Zdb, name) {
        Verdict::Good => {}
        Verdict::Missing(what) => eprintln!("NOT JUDGED: {name}: {what} is missing"),
        Verdict::Bad(why) => panic!("{name}: {why}; {}", judge::keep(images, name)),
    }
}

/// Whether the removal goes on; holds it or lets it go on.
fn suspend(r: &Runner, pool: &Pool, held: bool) {
    let mut opts = r.layout.opts();
    opts.removal.suspend = held;
    pool.tune(&opts);
}

fn text(e: base::Error) -> String {
    e.to_string()
}

/// Operations until the removal has ended.
async fn until_removed(r: &mut Runner, pool: &Rc<Pool>) -> Check {
    for n in 0..4000 {
        if !pool.devices().evacuator().is_busy() {
            return Ok(());
        }
        r.step().await?;
        if n > 100 {
            pool.rt().sleep(Nanos::from_ms(5)).await;
        }
    }
    Err(format!("it does not end: {:?}", pool.devices().evacuator().status()))
}

/// Begins to remove a vdev, with operations until a third is copied; the removal is held then, with
/// everything on disk.
async fn until_middle(r: &mut Runner, pool: &Rc<Pool>, vdev: u32) -> Check {
    suspend(r, pool, true);
    remove(pool, vdev).await?;
    for _ in 0..4000 {
        let status = pool.devices().evacuator().status().ok_or("no removal")?;
        if status.record.state != RemovalState::Active {
            return Err(format!("it ended early: {status:?}"));
        }
        if status.record.copied * 3 > status.record.to_copy {
            return Ok(());
        }
        suspend(r, pool, false);
        pool.rt().sleep(Nanos::from_ms(1)).await;
        suspend(r, pool, true);
        // What it changes may be in a chunk of this txg.
        r.step().await?;
        pool.sync().await.map_err(text)?;
    }
    Err("it does not begin".into())
}

async fn remove(pool: &Pool, vdev: u32) -> Check {
    pool.devices().remove(&name_of(pool, VdevId(vdev))?).await.map_err(text)
}

fn run(seed: u64, shape: &str, work: impl AsyncFnOnce(&mut Runner) -> Check) -> Runner {
    let mut runner = runner(seed, Profile::Small, layout(shape)).expect("a runner");
    if let Err(e) = drive(&mut runner, work) {
        std::mem::forget(runner);
        panic!("seed {seed}: {e}");
    }
    runner
}

/// Vdevs go one after the other while files change, each with copies of those before it.
#[test]
fn vdevs_go_while_files_change() {
    for (seed, shape, order) in [
        (1, "three", &[1, 0][..]),
        (2, "mirrors", &[0, 2]),
        (3, "mixed", &[2, 1]),
        (6, "special", &[2, 0]),
        (7, "log", &[0]),
    ] {
        let runner = run(seed, shape, async |r: &mut Runner| {
            r.create().await?;
            for _ in 0..150 {
                r.step().await?;
            }
            let pool = r.pool();
            for vdev in order {
                remove(&pool, *vdev).await.map_err(|e| format!("vdev {vdev}: {e}"))?;
                until_removed(r, &pool).await?;
                let top = pool.tree().top(VdevId(*vdev)).map_err(text)?;
                if !top.is_indirect() {
                    return Err(format!("vdev {vdev} stays: {:?}", pool.notices()));
                }
                check_counts(&pool)?;
                r.compare().await?;
            }
            for _ in 0..50 {
                r.step().await?;
            }
            drop(pool);
            r.export().await?;
            r.import().await?;
            r.compare().await?;
            scrub_clean(&r.pool()).await?;
            for _ in 0..50 {
                r.step().await?;
            }
            r.export().await
        });
        judged(&runner.lab.images(), &format!("removed-{shape}"));
    }
}

/// Mappings are condensed while files change, over an export in the middle of it, and with a
/// checkpoint that needs the mapping from before: the pool goes back to that.
#[test]
fn mappings_are_condensed() {
    let mut middles = 0;
    for (seed, shape, checkpoint) in [(41, "three", false), (46, "mirrors", false), (44, "mixed", true)] {
        let (mut middle, mut end) = (Vec::new(), Vec::new());
        run(seed, shape, async |r: &mut Runner| {
            r.create().await?;
            for _ in 0..150 {
                r.step().await?;
            }
            let mut pool = r.pool();
            // Many entries.
            let mut opts = r.layout.opts();
            (opts.removal.max_span, opts.removal.max_segment) = (0, 8 << 10);
            pool.tune(&opts);
            remove(&pool, 1).await?;
            until_removed(r, &pool).await?;
            let entries = |pool: &Pool| pool.devices().evacuator().status().map_or(0, |s| s.entries);
            let before = entries(&pool);
            if checkpoint {
                pool.create_checkpoint().await.map_err(text)?;
            }
            let then = r.model.clone();
            r.layout.condenses = Some(Nanos::from_secs(60));
            pool.tune(&r.layout.opts());
            let mut steps = 0;
            while pool.devices().condenser().vdev().is_none() {
                if steps == 600 {
                    return Err("nothing is condensed".into());
                }
                r.step().await?;
                pool.sync().await.map_err(text)?;
                steps += 1;
            }
            pool.rt().sleep(Nanos::from_secs(65)).await;
            // It takes a minute for each entry that is needed; some mappings have none any more.
            let is_middle = pool.devices().condenser().vdev().is_some();
            let ended = pool.devices().condenser().condensed();
            middles += u32::from(is_middle);
            drop(pool);
            r.export().await?;
            middle = r.lab.images();
            r.import().await?;
            pool = r.pool();
            assert_eq!(pool.devices().condenser().vdev().is_some(), is_middle, "it goes on");
            r.layout.condenses = Some(Nanos(0));
            pool.tune(&r.layout.opts());
            for _ in 0..20 {
                r.step().await?;
            }
            pool.devices().condenser().wait().await.map_err(text)?;
            assert!(
                pool.devices().condenser().condensed() + ended > 0 && pool.notices().is_empty(),
                "{:?}",
                pool.notices()
            );
            assert!(entries(&pool) < before, "{} entries, {before} before", entries(&pool));
            drop(pool);
            r.compare().await?;
            r.export().await?;
            end = r.lab.images();
            if checkpoint {
                let import = spa::ImportOpts { to_checkpoint: true, ..spa::ImportOpts::default() };
                let pool = r.lab.import_as(import, r.layout.opts()).await.map_err(text)?;
                ztest::tree::compare_pool(&pool, &then, &std::collections::BTreeMap::new()).await?;
                pool.export().await.map_err(text)?;
            } else {
                r.import().await?;
                scrub_clean(&r.pool()).await?;
                r.export().await?;
            }
            Ok(())
        });
        judged(&middle, &format!("condensing-{shape}"));
        judged(&end, &format!("condensed-{shape}"));
    }
    assert!(middles > 0, "none was condensed for long");
}

/// An export in the middle: the pool is whole there, and the removal goes on after the import.
#[test]
fn a_removal_lives_across_imports() {
    let mut middle = Vec::new();
    let runner = run(12, "mirrors", async |r: &mut Runner| {
        r.create().await?;
        for _ in 0..200 {
            r.step().await?;
        }
        let pool = r.pool();
        until_middle(r, &pool, 1).await?;
        drop(pool);
        r.export().await?;
        middle = r.lab.images();
        r.import().await?;
        r.compare().await?;
        let pool = r.pool();
        until_removed(r, &pool).await?;
        check_counts(&pool)?;
        drop(pool);
        r.compare().await?;
        r.export().await
    });
    judged(&middle, "removal-middle");
    judged(&runner.lab.images(), "removal-continued");
}

/// A removal that is cancelled leaves no trace but its record, and can be made again.
#[test]
fn a_cancelled_removal_leaves_the_pool_as_it_was() {
    let mut middle = Vec::new();
    let runner = run(13, "three", async |r: &mut Runner| {
        r.create().await?;
        for _ in 0..200 {
            r.step().await?;
        }
        let pool = r.pool();
        let counts =
            |pool: &Pool| ["com.delphix:device_removal", "com.delphix:obsolete_counts"].map(|f| pool.feature_count(f));
        let before = counts(&pool);
        until_middle(r, &pool, 0).await?;
        let e = pool.create_checkpoint().await.expect_err("a removal is under way");
        assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
        let e = pool.devices().remove(&name_of(&pool, VdevId(1))?).await.expect_err("one at a time");
        assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
        pool.devices().evacuator().cancel().await.map_err(text)?;
        assert!(pool.devices().evacuator().cancel().await.is_err(), "there is none any more");
        assert_eq!(counts(&pool), before);
        let record = pool.devices().evacuator().status().ok_or("no record")?.record;
        assert_eq!(record.state, RemovalState::Cancelled);
        let top = pool.tree().top(VdevId(0)).map_err(text)?;
        assert!(!top.config().removing && !top.config().non_allocating);
        for _ in 0..20 {
            r.step().await?;
        }
        drop((pool, top));
        r.export().await?;
        middle = r.lab.images();
        r.import().await?;
        r.compare().await?;
        let pool = r.pool();
        suspend(r, &pool, false);
        remove(&pool, 0).await?;
        until_removed(r, &pool).await?;
        check_counts(&pool)?;
        drop(pool);
        r.export().await
    });
    judged(&middle, "removal-cancelled");
    judged(&runner.lab.images(), "removal-again");
}

/// A mirror goes although one of its sides was away and misses much; it comes back in the middle,
/// with what it had before.
#[test]
fn a_mirror_goes_while_a_side_is_incomplete() {
    for (seed, back) in [(16, false), (17, true), (18, true)] {
        let runner = run(seed, "mirrors", async |r: &mut Runner| {
            r.create().await?;
            for _ in 0..100 {
                r.step().await?;
            }
            let pool = r.pool();
            pool.devices().offline("disk0.img", false).await.map_err(text)?;
            for _ in 0..100 {
                r.step().await?;
            }
            pool.sync().await.map_err(text)?;
            until_middle(r, &pool, 0).await?;
            if back {
                pool.devices().online("disk0.img").await.map_err(text)?;
            }
            suspend(r, &pool, false);
            until_removed(r, &pool).await?;
            drop(pool);
            r.compare().await?;
            r.export().await
        });
        judged(&runner.lab.images(), &format!("removal-incomplete-{seed}"));
    }
}

/// A mirror goes while a side of those that take its data is away: it comes back complete, after
/// the removal or in the middle of it, also over imports. Then the other side is taken away.
#[test]
fn a_mirror_goes_beside_a_device_that_is_away() {
    for (seed, back) in (30..).zip(["after", "middle", "imports", "import-middle", "resilver-middle"]) {
        let names = ["disk3.img", "disk5.img"];
        let misses = |pool: &Pool| {
            let tops = pool.tree().tops.borrow().clone();
            let all = tops.iter().flat_map(|top| top.kind().conditions()).map(|(_, c)| c.missing().bounds());
            all.flatten().map(|(first, _)| first.0).collect::<Vec<u64>>()
        };
        let runner = run(seed, "mirrors", async |r: &mut Runner| {
            r.create().await?;
            for _ in 0..150 {
                r.step().await?;
            }
            let mut pool = r.pool();
            pool.sync().await.map_err(text)?;
            for name in names.iter().chain(&["disk0.img"]) {
                pool.devices().offline(name, false).await.map_err(text)?;
            }
            until_middle(r, &pool, 0).await?;
            if back.starts_with("import") {
                drop(pool);
                r.export().await?;
                r.import().await?;
                pool = r.pool();
                suspend(r, &pool, back == "import-middle");
            }
            let resilvers = back == "resilver-middle";
            if back.ends_with("middle") {
                let mut opts = r.layout.opts();
                (opts.removal.suspend, opts.scan.suspend_progress) = (true, resilvers);
                pool.tune(&opts);
                for name in names {
                    pool.devices().online(name).await.map_err(text)?;
                }
                if !resilvers {
                    pool.scan().wait().await.map_err(text)?;
                }
                pool.sync_anew().await.map_err(text)?;
                opts.removal.suspend = false;
                pool.tune(&opts);
                // What is copied already is not in the trees at its new places.
                assert!(misses(&pool).contains(&base::TXG_INITIAL.0), "{back}: {:?}", misses(&pool));
            }
            if !resilvers {
                suspend(r, &pool, false);
            }
            until_removed(r, &pool).await?;
            let status = pool.devices().evacuator().status().ok_or("no record")?;
            assert_eq!(status.record.state, RemovalState::Finished, "{back}: {status:?}");
            // One that began before the end has passed the copies over.
            pool.tune(&r.layout.opts());
            if !back.ends_with("middle") {
                for name in names {
                    pool.devices().online(name).await.map_err(text)?;
                }
            }
            pool.scan().wait().await.map_err(text)?;
            assert!(misses(&pool).is_empty(), "{back}: {:?}", misses(&pool));
            for name in ["disk2.img", "disk4.img"] {
                pool.devices().offline(name, false).await.map_err(text)?;
            }
            drop(pool);
            // Nothing is in the cache any more.
            r.export().await?;
            r.import().await?;
            r.compare().await?;
            let errors: u64 = r.pool().tree().leaves().iter().map(|l| l.errors().cksum).sum();
            assert_eq!(errors, 0, "{back}");
            r.export().await
        });
        judged(&runner.lab.images(), &format!("removal-away-{back}"));
    }
}

/// So does an error of one side of a mirror, though the other one can be read.
#[test]
fn an_error_of_one_side_cancels_the_removal() {
    use sim::OpKind::{Read, Write};
    for (seed, disk, kind) in [(34, 1, Some(Read)), (35, 2, Some(Write)), (36, 0, None)] {
        let runner = run(seed, "mirrors", async |r: &mut Runner| {
            r.create().await?;
            for _ in 0..150 {
                r.step().await?;
            }
            let pool = r.pool();
            pool.sync().await.map_err(text)?;
            suspend(r, &pool, true);
            remove(&pool, 0).await?;
            pool.sync().await.map_err(text)?;
            r.lab.disks[disk].fault(sim::Fault::FailRange { kind, range: 0..u64::MAX });
            if kind.is_none() {
                // What does not take writes is not read any more.
                pool.sync_anew().await.map_err(text)?;
            }
            suspend(r, &pool, false);
            let over = pool.rt().timeout(Nanos::from_secs(100), pool.devices().evacuator().wait()).await;
            over.ok_or("it goes on")?.map_err(text)?;
            r.lab.disks[disk].clear_faults();
            let status = pool.devices().evacuator().status().ok_or("no record")?;
            assert_eq!(status.record.state, RemovalState::Cancelled, "{status:?}");
            pool.devices().clear(None).await.map_err(text)?;
            pool.scan().wait().await.map_err(text)?;
            drop(pool);
            r.compare().await?;
            r.export().await
        });
        judged(&runner.lab.images(), &format!("removal-side-{seed}"));
    }
}

/// A copy that fails cancels the removal by itself, and nothing is lost.
#[test]
fn a_failing_device_cancels_the_removal() {
    let runner = run(14, "three", async |r: &mut Runner| {
        r.create().await?;
        for _ in 0..150 {
            r.step().await?;
        }
        let pool = r.pool();
        pool.sync().await.map_err(text)?;
        remove(&pool, 2).await?;
        // The device cannot be read for a while.
        r.lab.disks[2].fault(sim::Fault::FailRange { kind: Some(sim::OpKind::Read), range: 0..u64::MAX });
        let over = pool.rt().timeout(Nanos::from_secs(100), pool.devices().evacuator().wait()).await;
        over.ok_or("it goes on")?.map_err(text)?;
        r.lab.disks[2].clear_faults();
        let status = pool.devices().evacuator().status().ok_or("no record")?;
        assert_eq!(status.record.state, RemovalState::Cancelled, "{status:?}");
        assert!(pool.notices().iter().any(|n| n.contains("cancelled")), "{:?}", pool.notices());
        drop(pool);
        r.compare().await?;
        r.export().await
    });
    judged(&runner.lab.images(), "removal-failed");
}

/// What cannot be removed is refused, and nothing is changed.
#[test]
fn what_cannot_be_removed_is_refused() {
    run(15, "log", async |r: &mut Runner| {
        r.create().await?;
        for _ in 0..20 {
            r.step().await?;
        }
        let pool = r.pool();
        pool.create_checkpoint().await.map_err(text)?;
        let e = pool.devices().remove(&name_of(&pool, VdevId(0))?).await.expect_err("there is a checkpoint");
        assert!(e.to_string().contains("checkpoint"), "{e}");
        pool.discard_checkpoint().await.map_err(text)?;
        pool.wait_discarded().await.map_err(text)?;
        for vdev in [0, 1] {
            remove(&pool, vdev).await?;
            until_removed(r, &pool).await?;
        }
        let e = pool.devices().remove(&name_of(&pool, VdevId(2))?).await.expect_err("it is the last one");
        assert!(matches!(e.kind(), ErrorKind::Invalid | ErrorKind::NoSpace), "{e}");
        let e = pool.devices().remove(&name_of(&pool, VdevId(0))?).await.expect_err("it is gone");
        assert!(matches!(e.kind(), ErrorKind::Unsupported | ErrorKind::NotFound), "{e}");
        let devices = vec![
            spa::DevSpec { dev: r.lab.disks[4].dev(), is_disk: false },
            spa::DevSpec { dev: r.lab.disks[5].dev(), is_disk: false },
        ];
        let group = spa::Group { kind: GroupKind::Raidz(1), bias: Bias::Normal, devices };
        let layout = spa::Layout { groups: vec![group], ..spa::Layout::default() };
        let e = pool.devices().add(layout, None).await.expect_err("no raidz beside mappings");
        assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
        drop(pool);
        r.compare().await?;
        r.export().await
    });
}

/// Power cuts from the first txg of removals to their end: every state imports, is the state of its
/// txg, and can be brought to the end or cancelled. `ztest --removecuts` has many more.
#[test]
fn power_cuts_while_vdevs_are_removed() {
    let (tally, faults) = cut_seed(1, 0, 101);
    assert!(faults.is_empty() && tally.is_good(), "{faults:#?}");
    assert!(tally.cuts > 20, "{tally:?}");
}
