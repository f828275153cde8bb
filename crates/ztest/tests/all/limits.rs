//! Numbers of file systems and snapshots for limits (format page 24 section 3): datasets come, move
//! and go in any order while some directories count. The checker counts again what is there.

use base::ErrorKind;
use dsl::limits::Counted;
use dsl::props::PropValue;
use ondisk::feature::FeatureId;
use sim::Rng;
use spa::Pool;
use ztest::judge::{Level, Verdict, judge};
use ztest::lab::{Lab, Layout, POOL, new_fs};
use ztest::snaps::check_images;

/// The numbers of a directory, from the names of all datasets.
fn expected(pool: &Pool, of: &str) -> [u64; 2] {
    let within = format!("{of}/");
    let names: Vec<String> = pool.dsl().all().iter().map(|d| d.name()).filter(|n| !n.contains(['$', '%'])).collect();
    let dirs = names.iter().filter(|n| n.starts_with(&within) && !n.contains('@')).count();
    [dirs as u64, 0]
}

async fn snapshots_below(pool: &Pool, of: &str) -> u64 {
    let dsl = pool.dsl();
    let mut sum = 0;
    for dir in dsl.find_dir(of).unwrap().subtree().into_iter().filter(|d| !d.is_hidden()) {
        sum += dsl.snapshots(&dsl.find(&dir.full_name()).unwrap()).await.unwrap().len() as u64;
    }
    sum
}

/// Changes that are refused for a reason of their own are no matter here.
async fn change(pool: &Pool, lab: &Lab, rng: &mut Rng, n: u64) {
    let dsl = pool.dsl();
    let heads: Vec<String> = dsl.all().iter().map(|d| d.name()).filter(|n| !n.contains(['@', '$', '%'])).collect();
    let mut pick = |list: &[String]| list[rng.below(list.len() as u64) as usize].clone();
    let (one, other) = (pick(&heads), pick(&heads));
    let snaps = dsl.snapshots(&dsl.find(&one).unwrap()).await.unwrap();
    let snaps: Vec<String> = snaps.iter().map(|s| s.name()).collect();
    match rng.below(12) {
        0..4 if heads.len() < 30 => {
            drop(dsl.create_fs(&format!("{one}/f{n}"), Vec::new(), new_fs(&lab.sim)).await);
        }
        4 | 5 => drop(dsl.snapshot(vec![format!("{one}@s{n}")], rng.percent(50), Vec::new()).await),
        6 if !snaps.is_empty() => drop(dsl.clone_snapshot(&snaps[0], &format!("{other}/c{n}"), Vec::new()).await),
        7 => drop(dsl.promote(&one).await),
        8 if one != POOL => drop(dsl.rename(&one, &format!("{other}/r{n}")).await),
        9 if one != POOL => drop(dsl.destroy_fs(&one).await),
        10 if !snaps.is_empty() => drop(dsl.destroy_snapshots(vec![snaps[0].clone()], false).await),
        11 => {
            let what = Counted::ALL[rng.below(2) as usize];
            let value = if rng.percent(20) { u64::MAX } else { rng.below(100) };
            dsl.set_props(&one, vec![(what.limit().into(), PropValue::Num(value))]).await.unwrap();
        }
        _ => {}
    }
}

#[test]
fn directories_count_what_is_below() {
    for seed in 5200..5203 {
        let mut rng = Rng::new(seed);
        let mut layout = Layout::draw(&mut rng, 128 << 20);
        layout.features = ondisk::feature::features_of_2_1();
        let lab = Lab::new(seed, &layout);
        lab.sim.block_on(async {
            let mut pool = lab.create(&layout, Vec::new()).await.unwrap();
            for n in 0..240u64 {
                change(&pool, &lab, &mut rng, n).await;
                if n % 30 != 29 {
                    continue;
                }
                let mut counting = 0;
                for dir in pool.dsl().root().subtree().into_iter().filter(|d| !d.is_hidden()) {
                    let Some(have) = pool.dsl().counts(&dir).await.unwrap() else { continue };
                    let name = dir.full_name();
                    let want = [expected(&pool, &name)[0], snapshots_below(&pool, &name).await];
                    assert_eq!(have, want, "seed {seed}: {name} after {n} changes");
                    counting += 1;
                }
                assert!(n < 100 || counting > 0, "seed {seed}: nothing counts after {n} changes");
                while pool.dsl().has_freeing() {
                    pool.sync().await.unwrap();
                }
                pool.export().await.unwrap();
                drop(pool);
                check_images(&lab.images()).unwrap_or_else(|e| panic!("seed {seed} after {n} changes: {e}"));
                pool = lab.import(false, layout.opts()).await.unwrap();
            }
            assert!(pool.features().is_active(FeatureId::FilesystemLimits));
            pool.export().await.unwrap();
        });
        match judge(&lab.images(), Level::Zdb, "limits") {
            Verdict::Good => {}
            Verdict::Missing(what) => eprintln!("NOT JUDGED: {what}"),
            Verdict::Bad(why) => panic!("seed {seed}: {why}"),
        }
    }
}

/// Each level is judged by itself, and a limit that is free does not bind.
#[test]
fn limits_bind_on_every_level() {
    let mut layout = Layout::draw(&mut Rng::new(5210), 128 << 20);
    layout.features = ondisk::feature::features_of_2_1();
    let lab = Lab::new(5210, &layout);
    lab.sim.block_on(async {
        let pool = lab.create(&layout, Vec::new()).await.unwrap();
        let dsl = pool.dsl();
        let (a, b) = (format!("{POOL}/a"), format!("{POOL}/a/b"));
        for name in [&a, &b] {
            dsl.create_fs(name, Vec::new(), new_fs(&lab.sim)).await.unwrap();
        }
        let check = async |on: &str, more: u64, free: &str| {
            let dir = dsl.find_dir(on).unwrap();
            let is_free = async |dir: &std::rc::Rc<dsl::dir::Dir>| Ok(dir.full_name() == free);
            let got = dsl.check_limit(Counted::Snapshots, &dir, more, is_free).await;
            got.map_err(|e| (e.kind(), e.to_string()))
        };
        assert_eq!(check(&b, 1000, "").await, Ok(()));
        dsl.set_props(&a, vec![("snapshot_limit".into(), PropValue::Num(3))]).await.unwrap();
        dsl.set_props(&b, vec![("snapshot_limit".into(), PropValue::Num(1))]).await.unwrap();
        dsl.snapshot(vec![format!("{a}@s")], true, Vec::new()).await.unwrap();
        for (on, more, free, over) in [
            (&b, 1, "", Some(&b)),
            (&b, 1, &b[..], None),
            (&b, 2, &b[..], Some(&a)),
            (&a, 1, "", None),
            (&a, 2, "", Some(&a)),
            (&a, 2, &a[..], None),
        ] {
            let got = check(on, more, free).await;
            let named = |name: &String| {
                got.as_ref()
                    .is_err_and(|(kind, text)| *kind == ErrorKind::Quota && text.contains(&format!("of '{name}' is")))
            };
            assert_eq!(over.is_some_and(named), got.is_err(), "{on} {more} {free}: {got:?}");
            assert_eq!(over.is_some(), got.is_err(), "{on} {more} {free}: {got:?}");
        }
        // A received limit binds like a local one.
        dsl.inherit(&b, "snapshot_limit", false).await.unwrap_err();
        let c = format!("{POOL}/c");
        dsl.create_fs(&c, Vec::new(), new_fs(&lab.sim)).await.unwrap();
        assert_eq!(check(&c, 2, "").await, Ok(()));
        let came = vec![("snapshot_limit".to_string(), PropValue::Num(1))];
        assert!(dsl.set_received(&c, came, Vec::new(), false).await.is_empty());
        assert!(check(&c, 1, "").await.is_ok() && check(&c, 2, "").await.is_err());
        pool.export().await.unwrap();
    });
}
