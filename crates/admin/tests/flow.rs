//! Flow control in the daemon: settings that change under load, and instruments against an
//! independent count.
#![allow(clippy::unwrap_used)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use admin::pool::trace::Counters;
use admin::tunables::{Settings, TABLE};
use base::Nanos;
use bdev::Bytes;
use lab::throttle::{Stage, Study};
use rt::trace::{Event, Groups};
use sim::Rng;
use txg::ThrottlePolicy;

const MIB: u64 = 1 << 20;
/// The maximum of a limit in this test, so that a run fits into this machine.
const MOST_BYTES: u64 = 64 * MIB;

fn study(seed: u64) -> Study {
    Study {
        bandwidth: 10 * MIB,
        offered: 40 * MIB,
        block: 32 << 10,
        threads: 10,
        mem: 256 * MIB,
        seed,
        ..Study::default()
    }
}

/// Endless writers, and the bytes they wrote.
fn writers(stage: &Stage, threads: u32, block: u64, pause: Nanos) -> Rc<Cell<u64>> {
    let files = stage.sim.block_on(stage.files(threads)).unwrap();
    let written: Rc<Cell<u64>> = Rc::default();
    for ino in files {
        let (fs, written, rt) = (stage.fs.clone(), written.clone(), stage.sim.rt());
        let rt2 = rt.clone();
        drop(rt.spawn("writer", async move {
            // The same 4 MiB repeatedly, so that the device does not fill up.
            for n in 0u64.. {
                let off = n * block % (4 * MIB);
                fs.write(ino, off, vec![Bytes::zeroed(block as usize)], false).await.expect("nothing fails here");
                written.set(written.get() + block);
                rt2.sleep(pause).await;
            }
        }));
    }
    written
}

/// Any value: the minimum, the maximum, above the maximum, or between.
fn any_value(rng: &mut Rng, t: &admin::tunables::Tunable) -> u64 {
    let most = if t.unit == admin::tunables::Unit::Bytes { t.max.min(MOST_BYTES.max(t.min)) } else { t.max };
    match rng.below(4) {
        0 => t.min,
        1 => most,
        2 => t.min + rng.below((most - t.min).min(100) + 1),
        _ => t.min + rng.below((most - t.min).saturating_add(1).max(1)),
    }
}

/// Every 10 ms another setting changes to a random value: nothing stalls, nothing asserts, and once
/// the pool is below a lowered limit, dirty data never exceeds the limit plus the transactions
/// under way.
fn hostile(seed: u64, seconds: u64) {
    let study = study(seed);
    let stage = study.stage().unwrap();
    let written = writers(&stage, study.threads, study.block, Nanos::from_us(8_000));
    let mut rng = Rng::new(seed ^ 0x5eed);
    let mut settings = Settings::for_memory(study.mem);
    // Bytes that a transaction may add after its admission: its block and the metadata on the path.
    let under_way = u64::from(study.threads) * (study.block + 512 * 1024);
    let (mut highest_since_over, mut changes) = (None::<u64>, 0u64);
    let (mut seen, mut quiet, mut synced) = (0, 0, stage.pool.txg().last_synced());
    for step in 0..seconds * 100 {
        // A scrub runs most of the time: its settings change under it as well.
        if step % 250 == 100 {
            let pool = stage.pool.clone();
            drop(stage.sim.rt().spawn("scrub", async move { drop(pool.scan().start_scrub().await) }));
        }
        let tunable = &TABLE[rng.below(TABLE.len() as u64) as usize];
        if tunable.name != "zfs_arc_max" {
            tunable.put(&mut settings, any_value(&mut rng, tunable));
            stage.pool.tune(&settings.engine);
            changes += 1;
        }
        for _ in 0..10 {
            stage.sim.run_for(Nanos::from_ms(1));
            let t = stage.pool.txg().tunables();
            let dirty = stage.pool.txg().dirty();
            if t.policy == ThrottlePolicy::Legacy2008 {
                // Its limit is one of each txg, of which there may be three.
                highest_since_over = None;
                continue;
            }
            let allowed = t.dirty_data_max + under_way;
            if dirty <= allowed {
                highest_since_over = None;
                continue;
            }
            // Above a lowered limit, or after a policy without one: nothing may be admitted.
            let start = *highest_since_over.get_or_insert(dirty + under_way);
            assert!(
                dirty <= start,
                "seed {seed}, step {step}: {dirty} dirty, {} allowed, {settings:?}",
                t.dirty_data_max
            );
        }
        assert!(stage.pool.txg().ended().is_none(), "seed {seed}: {:?}", stage.pool.txg().ended());
        // Nothing stalls: within 30 s a writer progresses and a txg is synced.
        let (now, txg) = (written.get(), stage.pool.txg().last_synced());
        quiet = if now > seen && txg > synced { 0 } else { quiet + 1 };
        if quiet == 0 {
            (seen, synced) = (now, txg);
        }
        assert!(
            quiet < 3000,
            "seed {seed}, step {step}: nobody got on for 30 s: {:?} {settings:?}",
            stage.pool.txg().stats()
        );
    }
    // With normal settings everything works as before.
    stage.pool.tune(&Settings::for_memory(study.mem).engine);
    stage.sim.run_for(Nanos::from_secs(20));
    assert_ne!(stage.pool.scan().status().phys.func, ondisk::scan::ScanFunc::None, "scrubs were begun");
    let pool = stage.pool.clone();
    let _ = stage.sim.block_on(async move { pool.scan().stop_scrub().await });
    let before = written.get();
    stage.sim.run_for(Nanos::from_secs(20));
    let rate = (written.get() - before) / 20;
    assert!(rate > 8 * MIB, "seed {seed}: {rate} bytes a second after {changes} changes");
    stage.sim.block_on(stage.pool.sync()).unwrap();
    println!("seed {seed}: {seconds} s, {changes} changes, {} MiB written", written.get() / MIB);
}

/// `WEIR_HOSTILE=first..last,seconds` runs more than the test command does.
#[test]
fn settings_that_change_all_the_time_neither_stall_nor_break_the_limit() {
    let more = std::env::var("WEIR_HOSTILE").ok();
    let (seeds, seconds) = match more.as_deref().and_then(|m| m.split_once(',')) {
        Some((range, seconds)) => {
            let (a, b) = range.split_once("..").unwrap();
            (a.parse().unwrap()..b.parse().unwrap(), seconds.parse().unwrap())
        }
        None => (0u64..2, 10u64),
    };
    seeds.for_each(|seed| hostile(seed, seconds));
}

/// The counts of a listener, of the instrument, and of the device itself.
#[test]
fn instruments_agree_with_the_device() {
    let study = Study { bandwidth: 50 * MIB, block: 8 << 10, mem: 1 << 30, ..study(3) };
    let stage = study.stage().unwrap();
    let files = stage.sim.block_on(stage.files(4)).unwrap();
    stage.sim.block_on(stage.pool.sync()).unwrap();
    let before = stage.disk.counters();
    let leaf_before = stage.pool.tree().leaves()[0].stats();
    let counting: Rc<RefCell<Counters>> = Rc::default();
    // The second counter keeps plain sums.
    #[derive(Default)]
    struct Sums {
        events: Cell<u64>,
        issued: [Cell<u64>; 2],
        issued_bytes: [Cell<u64>; 2],
        done_bytes: [Cell<u64>; 2],
        flushes: Cell<u64>,
        admitted: Cell<u64>,
        synced: Cell<u64>,
    }
    let sums: Rc<Sums> = Rc::default();
    let add = |c: &Cell<u64>, n: u64| c.set(c.get() + n);
    let (c, s) = (counting.clone(), sums.clone());
    let listening = stage.sim.rt().tracer().listen(Groups::ALL, move |now, event| {
        c.borrow_mut().note(now, event);
        add(&s.events, 1);
        match *event {
            Event::Issued { write, len, .. } => {
                add(&s.issued[usize::from(write)], 1);
                add(&s.issued_bytes[usize::from(write)], len);
            }
            Event::Done { write, len, .. } => add(&s.done_bytes[usize::from(write)], len),
            Event::Flushed { .. } => add(&s.flushes, 1),
            Event::Admitted { .. } => add(&s.admitted, 1),
            Event::Txg { phase: rt::trace::TxgPhase::Synced, .. } => add(&s.synced, 1),
            _ => {}
        }
    });
    let (fs, pool) = (stage.fs.clone(), stage.pool.clone());
    let (txg0, began) = (pool.txg().last_synced().0, stage.sim.now());
    stage.sim.block_on(async {
        for n in 0..600u64 {
            for (i, ino) in files.iter().enumerate() {
                let len = if n % 7 == 0 { 100 } else { 8 << 10 };
                fs.write(*ino, n * (8 << 10) + i as u64, vec![Bytes::zeroed(len)], false).await.unwrap();
            }
        }
        pool.sync().await.unwrap();
    });
    drop(listening);
    let disk = stage.disk.counters();
    let view = counting.borrow_mut().take(stage.sim.now().since(began));
    let get = |c: &Cell<u64>| c.get();
    // The listener and the device.
    assert_eq!(get(&sums.issued[0]), disk.reads - before.reads);
    assert_eq!(get(&sums.issued[1]), disk.writes - before.writes);
    assert_eq!(get(&sums.issued_bytes[0]), disk.read_bytes - before.read_bytes);
    assert_eq!(get(&sums.issued_bytes[1]), disk.write_bytes - before.write_bytes);
    assert_eq!(get(&sums.done_bytes[1]), disk.write_bytes - before.write_bytes, "writes are gathered without gaps");
    assert_eq!(get(&sums.flushes), disk.flushes - before.flushes);
    assert!(disk.writes > before.writes && disk.flushes > before.flushes);
    // The instrument and both.
    let kind = |name: &str| view.io.iter().find(|(n, _)| n == name).map(|(_, d)| d.clone()).unwrap_or_default();
    assert_eq!(view.events, get(&sums.events));
    assert_eq!(kind("write").bytes, disk.write_bytes - before.write_bytes);
    assert_eq!(kind("flush").count, disk.flushes - before.flushes);
    assert_eq!(view.undelayed + view.delay.count, get(&sums.admitted));
    assert_eq!(view.txgs.len() as u64, get(&sums.synced));
    assert_eq!(view.txgs.len() as u64, pool.txg().last_synced().0 - txg0);
    let classes: u64 = view.io.iter().filter(|(n, _)| n.contains('q')).map(|(_, d)| d.count).sum();
    assert_eq!(classes, kind("read").count + kind("write").count);
    // The counters that `zpool iostat` shows.
    let leaf = stage.pool.tree().leaves()[0].stats();
    assert_eq!(leaf.write_bytes - leaf_before.write_bytes, disk.write_bytes - before.write_bytes);
    assert_eq!(leaf.device_ops - leaf_before.device_ops, disk.writes + disk.reads - before.writes - before.reads);
}

/// Limits of a dataset apply to it and all below it, and change while operations wait.
#[test]
fn datasets_are_held_to_their_limits() {
    let study = Study { bandwidth: 200 * MIB, mem: 1 << 30, ..study(5) };
    let stage = study.stage().unwrap();
    let set = |name: &str, prop: &str, value: &str| {
        let value = dsl::props::find(prop).unwrap().parse(value).unwrap();
        stage.sim.block_on(stage.pool.dsl().set_props(name, vec![(prop.to_string(), value)])).unwrap();
    };
    let written = writers(&stage, 4, 32 << 10, Nanos::from_us(100));
    let rate = |seconds: u64| {
        let before = written.get();
        stage.sim.run_for(Nanos::from_secs(seconds));
        (written.get() - before) / seconds
    };
    let free = rate(2);
    assert!(free > 40 * MIB, "{free}");
    set("lab", "iolimit_bw_write", "4M");
    rate(1);
    let held = rate(10);
    assert!((held as f64 / (4 * MIB) as f64 - 1.0).abs() < 0.02, "{held}");
    // Operations: 16 a second of 32 KiB.
    set("lab", "iolimit_op_total", "16");
    rate(1);
    let held = rate(10);
    assert!((held as f64 / (16 * 32 * 1024) as f64 - 1.0).abs() < 0.07, "{held}");
    set("lab", "iolimit_op_total", "none");
    // Under this limit one operation would take half an hour; when it is removed, waiting
    // operations continue at once.
    set("lab", "iolimit_bw_total", "16");
    assert!(rate(5) < 64 << 10);
    set("lab", "iolimit_bw_total", "none");
    set("lab", "iolimit_bw_write", "none");
    assert!(rate(2) > 40 * MIB);
}

/// Latency of administrative operations: the histogram against the test's own clock, on an idle
/// pool and beside writers.
#[test]
fn administrative_operations_are_timed() {
    let study = Study { bandwidth: 20 * MIB, mem: 1 << 30, ..study(6) };
    let stage = study.stage().unwrap();
    let counting: Rc<RefCell<Counters>> = Rc::default();
    let seen: Rc<RefCell<Vec<(u64, u64)>>> = Rc::default();
    let (c, s) = (counting.clone(), seen.clone());
    let listening = stage.sim.rt().tracer().listen(Groups::TXG, move |now, event| {
        c.borrow_mut().note(now, event);
        if let Event::Admin { txg, waited } = *event {
            s.borrow_mut().push((txg, waited.0));
        }
    });
    let before = stage.pool.txg().admin_stats();
    let mut own = Vec::new();
    let set = |value: &str| {
        let value = dsl::props::find("atime").unwrap().parse(value).unwrap();
        let began = stage.sim.now();
        stage.sim.block_on(stage.pool.dsl().set_props("lab", vec![("atime".into(), value)])).unwrap();
        (stage.pool.txg().last_synced().0, stage.sim.now().since(began).0)
    };
    own.push(set("on"));
    let _written = writers(&stage, 4, 32 << 10, Nanos::from_us(100));
    stage.sim.run_for(Nanos::from_secs(3));
    for n in 0..10 {
        own.push(set(if n % 2 == 0 { "off" } else { "on" }));
        stage.sim.run_for(Nanos::from_ms(137));
    }
    drop(listening);
    // The caller goes on in a turn after the one that ended its wait, which may have worked on.
    let late = |(seen, own): (&(u64, u64), &(u64, u64))| (own.0 == seen.0).then(|| own.1.checked_sub(seen.1)).flatten();
    let late: Vec<Option<u64>> = seen.borrow().iter().zip(&own).map(late).collect();
    assert_eq!(seen.borrow().len(), own.len());
    assert!(late.iter().all(|l| l.is_some_and(|ns| ns < 1_000)), "txg and time of each: {late:?}");
    let own = seen.take();
    assert!(own[0].1 < own[1].1, "beside writers it takes longer: {own:?}");
    let stats = stage.pool.txg().admin_stats();
    assert_eq!(stats.count() - before.count(), own.len() as u64);
    assert_eq!(stats.time.0 - before.time.0, own.iter().map(|o| o.1).sum::<u64>());
    for (bucket, n) in stats.buckets.iter().enumerate() {
        let mine = own.iter().filter(|o| (o.1 / 1000).max(1).ilog2() as usize == bucket).count() as u64;
        assert_eq!(n - before.buckets[bucket], mine, "bucket {bucket}");
    }
    let view = counting.borrow_mut().take(Nanos(1));
    assert_eq!((view.admin.count, view.admin.sum), (own.len() as u64, own.iter().map(|o| (o.1 / 1000) as f64).sum()));
}
