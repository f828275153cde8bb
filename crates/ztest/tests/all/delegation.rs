//! Delegated permissions on disk: granted, taken away, given to creators, gone with their datasets;
//! judged by the independent checker and by zdb, which shows them.

use dsl::deleg::{GrantChange, Grants};
use dsl::{DslPool, NewHead};
use sim::{DiskImage, Rng};
use ztest::judge::{Level, Scratch, Verdict, judge, save};
use ztest::lab::{Lab, Layout, POOL, SHAPES, new_fs};
use ztest::snaps::check_images;
use ztest::zdb_run::zdb24;

fn change(who: &str, perms: &str) -> GrantChange {
    let perms = (!perms.is_empty()).then(|| perms.split(',').map(str::to_string).collect());
    GrantChange { who: who.to_string(), perms }
}

fn grants(list: &[(&str, &str)]) -> Grants {
    list.iter().map(|(who, perms)| (who.to_string(), perms.split(',').map(str::to_string).collect())).collect()
}

async fn granted(dsl: &DslPool, name: &str) -> Grants {
    dsl.grants(&dsl.find_dir(name).unwrap()).await.unwrap()
}

/// Both judges, and what zdb says about an object. zdb never counts the ZAPs of holders (it counts
/// the outer ones only), and takes each for leaked: that is excused while there are some.
fn judged(images: &[DiskImage], object: u64, name: &str, holders: bool) -> Option<String> {
    check_images(images).unwrap();
    let is_holder = |line: &str| line.contains("MOS object ") && line.ends_with(" (DSL permissions) leaked");
    match judge(images, Level::Zdb, name) {
        Verdict::Good => assert!(!holders, "zdb counts holders now"),
        Verdict::Missing(what) => eprintln!("NOT JUDGED: {what} is missing"),
        Verdict::Bad(why) => assert!(holders && why.split(" | ").all(is_holder), "{why}"),
    }
    let scratch = Scratch::new(name).unwrap();
    save(images, scratch.path()).unwrap();
    let dir = scratch.path().to_str().unwrap();
    let said = zdb24(&["-e", "-p", dir, "-dddd", POOL, &object.to_string()]);
    if said.is_none() {
        eprintln!("NOT JUDGED: zdb of 2.4 is missing");
    }
    said.map(|(_, text)| text)
}

#[test]
fn permissions_come_and_go_with_their_objects() {
    let mut rng = Rng::new(4700);
    let shape = SHAPES.iter().find(|s| s.name == "mirror").unwrap();
    let mut layout = Layout::draw(&mut rng, 128 << 20).shaped(shape, &mut rng);
    layout.features = ondisk::feature::features_of_2_1();
    let lab = Lab::new(4700, &layout);
    let (a, b) = (format!("{POOL}/a"), format!("{POOL}/a/b"));
    let sim = lab.sim.handle();
    let object_of = |pool: &spa::Pool, name: &str| pool.dsl().find_dir(name).unwrap().phys().deleg_zapobj;
    let first = lab.sim.block_on(async {
        let pool = lab.create(&layout, Vec::new()).await.unwrap();
        let dsl = pool.dsl();
        dsl.create_fs(&a, Vec::new(), new_fs(&sim)).await.unwrap();
        let all = [
            change("ul$1000", "snapshot,compress"),
            change("ud$1000", "snapshot"),
            change("gd$100", "send"),
            change("el$", "userprop"),
            change("c-$", "destroy,mount"),
            change("C-$", "@ops"),
            change("s-$@ops", "hold,release"),
            change("S-$@ops", "@more"),
        ];
        dsl.grant(&a, all.to_vec()).await.unwrap();
        dsl.grant(POOL, vec![change("c-$", "rollback")]).await.unwrap();
        let want = grants(&[
            ("C-$", "@ops"),
            ("S-$@ops", "@more"),
            ("c-$", "destroy,mount"),
            ("el$", "userprop"),
            ("gd$100", "send"),
            ("s-$@ops", "hold,release"),
            ("ud$1000", "snapshot"),
            ("ul$1000", "compression,snapshot"),
        ]);
        assert_eq!(granted(dsl, &a).await, want);
        // What is refused changes nothing, and neither does what comes before it in the list.
        for bad in ["ul$x", "ul1000"] {
            assert!(dsl.grant(&a, vec![change("ul$7", "send"), change(bad, "send")]).await.is_err());
        }
        assert!(dsl.grant(&a, vec![change("ul$7", "send"), change("ul$8", "fly")]).await.is_err());
        assert!(dsl.grant(&a, vec![change("ul$7", "")]).await.is_err());
        assert_eq!(granted(dsl, &a).await, want);
        // Creators get theirs: of a file system, a clone and what is received.
        let at_b = grants(&[("Ul$1000", "@ops"), ("ul$1000", "destroy,mount,rollback")]);
        dsl.create_dataset(&b, NewHead::plain_fs(1000, new_fs(&sim))).await.unwrap();
        assert_eq!(granted(dsl, &b).await, at_b);
        dsl.snapshot(vec![format!("{b}@s")], false, Vec::new()).await.unwrap();
        dsl.clone_snapshot_by(7, &format!("{b}@s"), &format!("{POOL}/c"), Vec::new()).await.unwrap();
        assert_eq!(granted(dsl, &format!("{POOL}/c")).await, grants(&[("ul$7", "rollback")]));
        let upward = dsl.grants_upward(&dsl.find_dir(&b).unwrap()).await.unwrap();
        assert_eq!(upward, [at_b, want, grants(&[("c-$", "rollback")])]);
        pool.export().await.unwrap();
        let pool = lab.import(false, layout.opts()).await.unwrap();
        let first = object_of(&pool, &a);
        pool.export().await.unwrap();
        first
    });
    if let Some(text) = judged(&lab.images(), first, "delegation-made", true) {
        assert!(text.contains("DSL permissions"), "{text}");
        for who in ["ul$1000 = ", "C-$ = ", "s-$@ops = ", "el$ = "] {
            assert!(text.contains(who), "{who}: {text}");
        }
        // A holder has its permissions, each with 0.
        let line = text.lines().find(|l| l.contains("s-$@ops = ")).unwrap();
        let holder: u64 = line.split_whitespace().last().unwrap().parse().unwrap();
        let text = judged(&lab.images(), holder, "delegation-holder", true).unwrap();
        assert!(text.contains("hold = 0") && text.contains("release = 0"), "{text}");
    }
    lab.sim.block_on(async {
        let pool = lab.import(false, layout.opts()).await.unwrap();
        let dsl = pool.dsl();
        // A holder goes with its last permission; what is not granted is passed over.
        let less = [change("ul$1000", "snapshot,compression,send"), change("ud$1000", "send"), change("ul$9", "send")];
        dsl.revoke(&a, less.to_vec(), false).await.unwrap();
        dsl.revoke(&a, vec![change("s-$@ops", ""), change("S-$@ops", ""), change("gl$5", "")], false).await.unwrap();
        let left = [
            ("C-$", "@ops"),
            ("c-$", "destroy,mount"),
            ("el$", "userprop"),
            ("gd$100", "send"),
            ("ud$1000", "snapshot"),
        ];
        assert_eq!(granted(dsl, &a).await, grants(&left));
        // And below.
        dsl.revoke(POOL, vec![change("ul$1000", "destroy"), change("ul$7", "")], true).await.unwrap();
        assert_eq!(granted(dsl, &b).await, grants(&[("Ul$1000", "@ops"), ("ul$1000", "mount,rollback")]));
        assert!(granted(dsl, &format!("{POOL}/c")).await.is_empty());
        dsl.destroy_fs(&format!("{POOL}/c")).await.unwrap();
        dsl.destroy_snapshots(vec![format!("{b}@s")], false).await.unwrap();
        dsl.destroy_fs(&b).await.unwrap();
        let mut lines = Vec::new();
        let fault = pool
            .read_history(async |r| {
                if let (Some(name), Some(text)) = (r.str("internal_name"), r.str("history internal str"))
                    && name.starts_with("permission")
                {
                    assert!(r.u64("dsid").is_some_and(|n| n > 0));
                    lines.push(format!("{} {name} {text}", r.str("dsname").unwrap_or("")));
                }
                Ok(())
            })
            .await
            .unwrap();
        assert!(fault.is_none());
        for line in [
            "lab/a permission update ul$1000 compression",
            "lab/a permission update S-$@ops @more",
            "lab permission update c-$ rollback",
            "lab/a permission remove ul$1000 send",
            "lab/a permission who remove gl$5",
            "lab/a/b permission remove ul$1000 destroy",
            "lab/c permission who remove ul$7",
        ] {
            assert!(lines.iter().any(|l| l == line), "{line}: {lines:#?}");
        }
        // Of creators there are none.
        assert_eq!(lines.iter().filter(|l| l.contains(" update ")).count(), 12, "{lines:#?}");
        pool.export().await.unwrap();
    });
    judged(&lab.images(), first, "delegation-less", true);
    // With the last file systems go all that they have, and with its last holder the root has an
    // empty ZAP: nothing is left that no judge finds a name for.
    lab.sim.block_on(async {
        let pool = lab.import(false, layout.opts()).await.unwrap();
        assert!(granted(pool.dsl(), &a).await.len() == 5);
        pool.dsl().destroy_fs(&a).await.unwrap();
        pool.dsl().revoke(POOL, vec![change("c-$", "")], false).await.unwrap();
        pool.export().await.unwrap();
    });
    judged(&lab.images(), first, "delegation-gone", false);
}
