//! Random operations against the model, with new mounts and imports in between.

use crate::common::workload::{Mix, Workload};
use crate::common::{Setup, World, run};

fn workload(seed: u64, setup: Setup, mix: Mix, rounds: u32, ops: u64) {
    run(seed, |rt| async move {
        let mut w = World::new(rt, setup).await;
        let mut work = Workload::new(w.fs.clone(), seed, mix).await.expect("a new file system");
        for round in 0..rounds {
            work.run(ops).await.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            match round % 3 {
                0 => w.fs.sync_all().await.expect("sync"),
                1 => w.remount().await,
                _ => w.reimport().await,
            }
            if round % 3 > 0 {
                work.reopened(w.fs.clone());
            }
            work.compare().await.unwrap_or_else(|e| panic!("seed {seed} round {round}: {e}"));
        }
        assert!(
            work.stats.done > u64::from(rounds) * ops / 3,
            "most operations meet a reason not to be done: {:?}",
            work.stats
        );
        w.fs.unmount().await.expect("unmount");
        w.pool.export().await.expect("export");
    });
}

#[test]
fn plain() {
    for seed in 0..3 {
        workload(seed, Setup::default(), Mix::default(), 4, 300);
    }
}

#[test]
fn small_records_and_xattr_directories() {
    let setup = Setup { props: vec![("recordsize", 4096), ("xattr", 1), ("dnodesize", 1)], ..Setup::default() };
    workload(100, setup, Mix { sync: 10, ..Mix::default() }, 6, 250);
}

#[test]
fn large_records_and_large_dnodes() {
    let setup = Setup { props: vec![("recordsize", 1 << 20), ("xattr", 2), ("dnodesize", 2048)], ..Setup::default() };
    workload(200, setup, Mix { write_max: 600 << 10, size_max: 4 << 20, ..Mix::default() }, 4, 200);
}

#[test]
fn records_of_16_mib() {
    let setup = Setup { props: vec![("recordsize", 16 << 20), ("compression", 15)], ..Setup::default() };
    let mix = Mix { names: 4, objects_max: 8, write_max: 5 << 20, size_max: 40 << 20, ..Mix::default() };
    workload(250, setup, mix, 3, 60);
}

#[test]
fn names_only() {
    let mix = Mix { names: 6, objects_max: 60, write_max: 100, size_max: 1000, xattrs: false, ..Mix::default() };
    workload(300, Setup::default(), mix, 3, 1500);
}

/// Takes its seeds from `WEIR_SEEDS`, FROM..TO.
#[test]
#[ignore = "long: `cargo xtask campaign --only model` runs it"]
fn many_seeds() {
    let range = std::env::var("WEIR_SEEDS").unwrap_or_else(|_| "1000..1020".into());
    let (from, to) = range.split_once("..").expect("WEIR_SEEDS is FROM..TO");
    for seed in from.parse().expect("a number")..to.parse().expect("a number") {
        let props = vec![
            ("recordsize", [512, 4096, 8192, 131_072, 1 << 20][seed as usize % 5]),
            ("xattr", 1 + seed / 5 % 2),
            ("compression", [2, 15, 3, 16, 5, 14][seed as usize / 10 % 6]),
            ("dnodesize", [0, 1, 1024, 4096][seed as usize / 3 % 4]),
            ("atime", seed / 7 % 2),
        ];
        let mix = Mix {
            names: 4 + seed % 20,
            write_max: [1000, 20_000, 300_000][seed as usize % 3],
            size_max: [5000, 200_000, 3_000_000][seed as usize / 3 % 3],
            sync: [3, 30, 300][seed as usize / 2 % 3],
            ..Mix::default()
        };
        workload(seed, Setup { props, ..Setup::default() }, mix, 5, 400);
        println!("seed {seed} good");
    }
}
