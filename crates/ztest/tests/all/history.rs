//! The pool's history: commands and internal events, read back by us, by the independent checker
//! and by zdb.

use dsl::props::PropValue;
use sim::Rng;
use zpl::{MountOpts, Zfs};
use ztest::judge::{Level, Scratch, Verdict, has_zdb, judge, save};
use ztest::lab::{Lab, Layout, POOL, SHAPES, new_fs};
use ztest::scan;
use ztest::zdb_run::zdb;

use crate::images::reader;

/// The events in order, each with its dataset.
const EVENTS: [(&str, &str, &str); 22] = [
    ("create", "", "pool version 5000; software version weir-"),
    ("create", "lab/a", ""),
    ("set", "lab/a", "atime=0"),
    ("set", "lab/a", "compression=15"),
    ("snapshot", "lab@s", ""),
    ("snapshot", "lab/a@s", ""),
    ("hold", "lab/a@s", "tag=keep temp=0 refs=1"),
    ("clone", "lab/c", "origin=lab/a@s ("),
    ("promote", "lab/c", ""),
    ("promote", "lab/a", ""),
    ("bookmark", "lab/a", "name=m creation_txg="),
    ("remove bookmark", "lab/a", "name=m"),
    ("rename", "lab/c", "-> lab/d"),
    ("release", "lab/a@s", "tag=keep refs=0"),
    ("rename", "lab/a@s", "-> @t"),
    ("clone swap", "lab/a", "parent=a"),
    ("inherit", "lab/a", "compression="),
    ("scan setup", "", "func=1 mintxg=0 maxtxg="),
    ("scan done", "", "errors=0"),
    ("detach", "", "vdev=disk1.img"),
    ("destroy", "lab/d", ""),
    ("import", "", "pool version 5000; software version weir-"),
];

#[test]
fn events_are_recorded() {
    let mut rng = Rng::new(4300);
    let shape = SHAPES.iter().find(|s| s.name == "mirror").expect("it is there");
    let mut layout = Layout::draw(&mut rng, 128 << 20).shaped(shape, &mut rng);
    layout.features = ondisk::feature::features_of_2_1();
    let lab = Lab::new(4300, &layout);
    lab.sim.block_on(async {
        let fs = |name: &str| format!("{POOL}/{name}");
        let pool = lab.create(&layout, Vec::new()).await.expect("created");
        let dsl = pool.dsl();
        let props = vec![("atime".to_string(), PropValue::Num(0))];
        dsl.create_fs(&fs("a"), props, new_fs(&lab.sim.handle())).await.expect("made");
        dsl.set_props(&fs("a"), vec![("compression".into(), PropValue::Num(15))]).await.expect("set");
        pool.log_command("zfs set compression=lz4 lab/a", 7);
        dsl.snapshot(vec!["lab@s".into()], true, Vec::new()).await.expect("made");
        dsl.hold("keep", vec![fs("a@s")], false).await.expect("held");
        dsl.clone_snapshot(&fs("a@s"), &fs("c"), Vec::new()).await.expect("made");
        dsl.promote(&fs("c")).await.expect("promoted");
        dsl.promote(&fs("a")).await.expect("and back");
        dsl.create_bookmark(&fs("a@s"), &fs("a#m")).await.expect("made");
        dsl.destroy_bookmark(&fs("a#m")).await.expect("gone");
        dsl.rename(&fs("c"), &fs("d")).await.expect("renamed");
        dsl.release("keep", vec![fs("a@s")], false).await.expect("released");
        dsl.rename_snapshot(&fs("a@s"), &fs("a@t"), false).await.expect("renamed");
        dsl.rollback(&fs("a@t")).await.expect("rolled back");
        dsl.inherit(&fs("a"), "compression", false).await.expect("inherited");
        scan::scrub_clean(&pool).await.expect("clean");
        pool.devices().detach("disk1.img").await.expect("detached");
        dsl.destroy_fs(&fs("d")).await.expect("gone");
        pool.export().await.expect("exported");
        lab.away.borrow_mut().push(1);
        let pool = lab.import(false, layout.opts()).await.expect("imported");
        let ds = pool.dsl().find(POOL).expect("it exists");
        let root = Zfs::open(&ds, MountOpts::from_props(&ds)).await.expect("it opens");
        root.unmount().await.expect("unmounted");
        let mut records = Vec::new();
        let fault = pool
            .read_history(async |r| {
                records.push(r);
                Ok(())
            })
            .await
            .expect("readable");
        assert!(fault.is_none());
        let mut events = EVENTS.iter().peekable();
        let (mut last, mut commands) = (0, 0);
        for r in &records {
            let Some(name) = r.str("internal_name") else {
                commands += 1;
                continue;
            };
            let txg = r.u64("history txg").expect("a txg");
            assert!(txg >= last, "{r:?}");
            last = txg;
            let text = r.str("history internal str").expect("a text");
            let of = r.str("dsname").unwrap_or("");
            if events.peek().is_some_and(|(n, d, t)| *n == name && *d == of && text.starts_with(t))
                && let Some((_, d, _)) = events.next().filter(|(_, d, _)| !d.is_empty())
            {
                assert!(r.u64("dsid").is_some_and(|n| n > 0), "{d}");
            }
        }
        assert_eq!(commands, 1);
        assert_eq!(events.next(), None, "the first that is missing of {records:#?}");
        pool.export().await.expect("exported");
    });
    let images = lab.images()[..1].to_vec();
    match judge(&images, Level::Zdb, "history") {
        Verdict::Good => {}
        Verdict::Missing(what) => eprintln!("NOT JUDGED: {what} is missing"),
        Verdict::Bad(why) => panic!("{why}"),
    }
    let mut ours = Vec::new();
    ::zdb::dump::history(&reader(&images), true, &mut ours).expect("readable");
    let ours = String::from_utf8_lossy(&ours).into_owned();
    assert!(ours.contains("scan setup") && ours.contains("zfs set compression=lz4 lab/a"), "{ours}");
    if !has_zdb() {
        eprintln!("NOT JUDGED: zdb is missing");
        return;
    }
    let scratch = Scratch::new("history-zdb").expect("a folder");
    save(&images, scratch.path()).expect("saved");
    let dir = scratch.path().to_str().expect("a folder of ours");
    let (_, text) = zdb(&["-e", "-p", dir, "-hh", POOL]).expect("zdb runs");
    for word in ["snapshot", "lab/a@s", "scan setup", "func=1", "clone swap", "zfs set compression=lz4 lab/a"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}
