//! The history ring on disk against a list of all commands.

use crate::common::World;
use sim::Rng;
use spa::{ImportOpts, Pool};

async fn commands(pool: &Pool) -> Vec<String> {
    let mut records = Vec::new();
    let fault = pool
        .read_history(async |r| {
            records.push(r);
            Ok(())
        })
        .await
        .unwrap();
    assert!(fault.is_none(), "{fault:?}");
    records.iter().filter_map(|r| r.str("history command")).map(str::to_string).collect()
}

/// The first command stays, and so do the newest ones without a gap. Returns how many are gone.
fn check(got: &[String], all: &[String]) -> usize {
    assert_eq!(got[0], all[0]);
    let tail = &got[1..];
    assert_eq!(tail, &all[all.len() - tail.len()..]);
    all.len() - got.len()
}

#[test]
fn the_ring_keeps_the_first_and_the_newest() {
    for seed in 0..2 {
        let world = World::new(seed, 1);
        let mut rng = Rng::new(seed);
        world.sim.block_on(async {
            let mut pool = world.create().await;
            let mut all: Vec<String> = Vec::new();
            let mut gone = Vec::new();
            for _ in 0..30 {
                for _ in 0..1 + rng.below(40) {
                    // Some are cut, and some have letters of several bytes at the cut.
                    let letter = if rng.percent(50) { "x" } else { "ä" };
                    let command = format!("zfs set a:n={} {}", all.len(), letter.repeat(rng.below(400) as usize));
                    pool.log_command(&command, 7);
                    all.push(command);
                }
                // Unwritten commands count.
                gone.push(check(&commands(&pool).await, &all));
                pool.sync().await.unwrap();
                if rng.percent(30) {
                    pool.export().await.unwrap();
                    drop(pool);
                    pool = world.import(ImportOpts::default()).await.unwrap();
                }
            }
            pool.export().await.unwrap();
            assert!(gone[..4] == [0; 4] && gone.is_sorted() && gone[29] > 0, "{gone:?}");
        });
    }
}

#[test]
fn a_long_command_is_cut_between_letters() {
    let world = World::new(3, 1);
    world.sim.block_on(async {
        let pool = world.create().await;
        let long = format!("a{}", "ä".repeat(20_000));
        pool.log_command(&long, 0);
        pool.sync().await.unwrap();
        let got = commands(&pool).await.remove(0);
        assert!(long.starts_with(&got) && (16 << 10) - 1 <= got.len() + 1 && got.len() <= 16 << 10, "{}", got.len());
        pool.export().await.unwrap();
    });
}
