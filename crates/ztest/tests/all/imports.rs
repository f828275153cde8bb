//! A pool under a temporary name, and its history of commands; the judges on both.

use sim::Rng;
use spa::{ImportOpts, Pool};
use ztest::judge::{Level, Verdict, judge};
use ztest::lab::{Lab, Layout, POOL, SHAPES};
use ztest::snaps::check_images;

fn lab(seed: u64, shape: &str) -> (Lab, Layout) {
    let mut rng = Rng::new(seed);
    let mut layout = Layout::draw(&mut rng, 100 << 20);
    layout.features = ondisk::feature::features_of_2_1();
    let shape = SHAPES.iter().find(|s| s.name == shape).expect("a known shape");
    let layout = layout.shaped(shape, &mut rng);
    (Lab::new(seed, &layout), layout)
}

fn good(lab: &Lab, name: &str) {
    let images = lab.images();
    check_images(&images).unwrap();
    match judge(&images, Level::Zdb, name) {
        Verdict::Good => {}
        Verdict::Missing(what) => eprintln!("NOT JUDGED: {what}"),
        Verdict::Bad(why) => panic!("{why}"),
    }
}

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

#[test]
fn a_pool_remembers_commands() {
    let (lab, layout) = lab(1, "stripe");
    lab.sim.block_on(async {
        let pool = lab.create(&layout, Vec::new()).await.unwrap();
        pool.log_command("zpool create lab", 0);
        pool.sync().await.unwrap();
        // Far more than the ring of 128 KiB holds.
        for n in 0..900 {
            pool.log_command(&format!("zfs set a:b={n} lab {}", "x".repeat(n % 200)), 1000);
            if n % 60 == 0 {
                pool.sync().await.unwrap();
            }
        }
        // Commands not yet written are shown too.
        assert_eq!(commands(&pool).await.last().unwrap().split(' ').nth(2), Some("a:b=899"));
        pool.export().await.unwrap();
        drop(pool);
        let pool = lab.import_as(ImportOpts::default(), layout.opts()).await.unwrap();
        let all = commands(&pool).await;
        assert_eq!(all[0], "zpool create lab");
        assert!(all.len() > 200 && all.len() < 900, "{}", all.len());
        let numbers: Vec<u64> = all[1..].iter().map(|c| c[12..].split(' ').next().unwrap().parse().unwrap()).collect();
        assert!(numbers.windows(2).all(|w| w[1] == w[0] + 1) && numbers.last() == Some(&899));
        assert_eq!(
            Pool::rewind_of(lab.sim.rt(), &lab.find().await.unwrap(), spa::States::Last, layout.opts()).await.unwrap(),
            None
        );
        pool.export().await.unwrap();
    });
    good(&lab, "history");
}

#[test]
fn a_name_for_a_while() {
    let (lab, layout) = lab(2, "mirror");
    lab.sim.block_on(async {
        lab.create(&layout, Vec::new()).await.unwrap().export().await.unwrap();
        let how = ImportOpts { new_name: Some("other".into()), temporary_name: true, ..ImportOpts::default() };
        let pool = lab.import_as(how, layout.opts()).await.unwrap();
        assert_eq!((pool.name().as_str(), pool.dsl().root().name().as_str()), ("other", "other"));
        pool.log_command("zpool import -t lab other", 0);
        pool.export().await.unwrap();
        drop(pool);
        assert_eq!(lab.find().await.unwrap().name, POOL);
        let pool = lab.import_as(ImportOpts::default(), layout.opts()).await.unwrap();
        assert_eq!(pool.name(), POOL);
        pool.export().await.unwrap();
    });
    good(&lab, "temporary");
}
