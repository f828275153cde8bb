//! Streams of datasets that use features of OpenZFS 2.3: what they say in BEGIN, who takes them,
//! and that the copy has the features' keys.

use base::{ErrorKind, ObjectId};
use dsl::props::PropValue;
use dsl::receive::ReceiveOpts;
use dsl::send::SendOpts;
use ondisk::feature::FeatureId;
use ondisk::stream::{Record, features};
use spa::{GroupKind, Pool};
use zpl::{Cred, MountOpts, Zfs};

use crate::common::World;
use crate::streams::{
    assert_same, create, create_encrypted, create_of, create_with, export, load_key, objects, parts, receive, send,
};

fn count(pool: &Pool, id: FeatureId) -> Option<u64> {
    pool.features().count(id.get().guid)
}

async fn files(pool: &Pool, fs: &str, dir: Option<&[u8]>, names: impl Iterator<Item = Vec<u8>>) {
    let ds = pool.dsl().find(fs).unwrap();
    let zfs = Zfs::open(&ds, MountOpts::from_props(&ds)).await.unwrap();
    let at = match dir {
        Some(dir) => zfs.mkdir(zfs.root(), dir, 0o755, &Cred::new(0, 0)).await.unwrap().obj,
        None => zfs.root(),
    };
    for name in names {
        zfs.create(at, &name, 0o644, &Cred::new(0, 0), true).await.unwrap();
    }
    zfs.unmount().await.unwrap();
}

/// Long names, of 256 bytes and more.
fn long(letter: char, n: usize) -> impl Iterator<Item = Vec<u8>> {
    (0..n).map(move |i| format!("{letter}{i}-").bytes().cycle().take(256 + i * 7 % 768).collect())
}

#[test]
fn streams_with_long_names_are_received() {
    for raw in [false, true] {
        let world = World::with_sizes(1, &[96 << 20, 96 << 20, 64 << 20]);
        world.sim.block_on(async {
            let more = [FeatureId::Longname];
            let from = create_with(&world, "from", GroupKind::Single, &[0], 12, &more).await;
            let to = create_with(&world, "to", GroupKind::Single, &[1], 9, &more).await;
            let old = create(&world, "old", GroupKind::Single, &[2], 9).await;
            let props = || vec![("longname".to_string(), PropValue::Num(1))];
            match raw {
                true => create_encrypted(&world, &from, "from/fs", props()).await,
                false => drop(from.dsl().create_fs("from/fs", props(), world.new_fs()).await.unwrap()),
            }
            let opts = SendOpts { raw, ..SendOpts::default() };
            let snap = async |name: &str| {
                from.sync().await.unwrap();
                from.dsl().snapshot(vec![format!("from/fs@{name}")], false, Vec::new()).await.unwrap();
            };
            files(&from, "from/fs", None, (0..40).map(|i| format!("short{i}").into_bytes())).await;
            snap("0").await;
            files(&from, "from/fs", Some(&[b'd'; 1023]), long('a', 300)).await;
            snap("1").await;
            files(&from, "from/fs", None, long('b', 100)).await;
            snap("2").await;
            // The head and two snapshots.
            assert_eq!(count(&from, FeatureId::Longname), Some(3));

            for (name, base, has) in
                [("0", None, false), ("1", Some("from/fs@0"), true), ("2", Some("from/fs@1"), true)]
            {
                let stream = send(&from, &format!("from/fs@{name}"), base, opts).await;
                let (Record::Begin(begin), _) = &parts(&stream)[0] else { panic!("it begins with BEGIN") };
                assert_eq!(begin.features() & features::LONGNAME != 0, has, "{name}");
                let whole = send(&from, &format!("from/fs@{name}"), None, opts).await;
                let refused = receive(&old, "old/fs@x", &whole, ReceiveOpts::default()).await;
                match has {
                    true => {
                        let e = refused.unwrap_err();
                        assert!(e.kind() == ErrorKind::Unsupported && e.to_string().contains("'longname'"), "{e}");
                    }
                    false => drop(refused.unwrap()),
                }
                if old.dsl().find("old/fs").is_ok() {
                    old.dsl().destroy_snapshots(vec!["old/fs@x".into()], false).await.unwrap();
                    old.dsl().destroy_fs("old/fs").await.unwrap();
                }
                let target = format!("to/fs@{name}");
                receive(&to, &target, &stream, ReceiveOpts::default()).await.unwrap();
                receive(&to, &format!("to/whole{name}@x"), &whole, ReceiveOpts::default()).await.unwrap();
                if raw {
                    for fs in ["fs".to_string(), format!("whole{name}")] {
                        // Only the first snapshot of a file system brings its key.
                        let _ = load_key(&to, &format!("to/{fs}")).await;
                    }
                }
                let want = objects(&from, &format!("from/fs@{name}")).await;
                assert_same(name, &want, &objects(&to, &target).await);
                assert_same(name, &want, &objects(&to, &format!("to/whole{name}@x")).await);
            }
            to.sync().await.unwrap();
            // to/fs, two of its snapshots, two file systems with a snapshot each.
            assert_eq!(count(&to, FeatureId::Longname), Some(7));
            let ds = to.dsl().find_snapshot("to/fs@2").await.unwrap();
            let zfs = Zfs::open(&ds, MountOpts { readonly: true, ..MountOpts::from_props(&ds) }).await.unwrap();
            let dir: ObjectId = zfs.lookup(zfs.root(), &[b'd'; 1023]).await.unwrap().obj;
            for name in long('a', 300) {
                zfs.lookup(dir, &name).await.unwrap();
            }
            zfs.unmount().await.unwrap();
            export([from, to, old]).await;
        });
    }
}

#[test]
fn streams_with_large_micro_zaps_are_received() {
    let world = World::with_sizes(2, &[96 << 20, 96 << 20, 64 << 20]);
    world.sim.block_on(async {
        let more = [FeatureId::LargeMicrozap];
        let from = create_with(&world, "from", GroupKind::Single, &[0], 12, &more).await;
        let to = create_with(&world, "to", GroupKind::Single, &[1], 9, &more).await;
        let old = create(&world, "old", GroupKind::Single, &[2], 9).await;
        let ctx = from.dsl().ctx();
        ctx.set_tunables(dmu::DmuTunables { zap_micro_max: 300 << 10, ..ctx.tunables() });
        drop(from.dsl().create_fs("from/fs", Vec::new(), world.new_fs()).await.unwrap());
        let snap = async |name: &str| {
            from.sync().await.unwrap();
            from.dsl().snapshot(vec![format!("from/fs@{name}")], false, Vec::new()).await.unwrap();
        };
        let names = |from: usize, to: usize| (from..to).map(|i| format!("file {i}").into_bytes());
        files(&from, "from/fs", None, names(0, 1500)).await;
        snap("0").await;
        files(&from, "from/fs", None, names(1500, 3000)).await;
        snap("1").await;
        // Now fat.
        files(&from, "from/fs", None, names(3000, 5000)).await;
        snap("2").await;
        assert_eq!(count(&from, FeatureId::LargeMicrozap), Some(3));
        let plain = SendOpts::default();
        let large = SendOpts { large_blocks: true, ..plain };
        for (name, base, has) in [("0", None, false), ("1", Some("from/fs@0"), true), ("2", Some("from/fs@1"), true)] {
            let snap = format!("from/fs@{name}");
            if has {
                let mut sink = crate::streams::Collect::default();
                let e = from.dsl().send(&snap, base, plain, &mut sink).await.map(drop).unwrap_err();
                assert!(e.kind() == ErrorKind::Unsupported && e.to_string().contains("need -L"), "{e}");
                assert!(sink.0.is_empty());
                let whole = send(&from, &snap, None, large).await;
                let e = receive(&old, "old/fs@x", &whole, ReceiveOpts::default()).await.unwrap_err();
                assert!(e.kind() == ErrorKind::Unsupported && e.to_string().contains("'large_microzap'"), "{e}");
            }
            let stream = send(&from, &snap, base, large).await;
            let (Record::Begin(begin), _) = &parts(&stream)[0] else { panic!("it begins with BEGIN") };
            assert_eq!(begin.features() & features::LARGE_MICROZAP != 0, has, "{name}");
            receive(&to, &format!("to/fs@{name}"), &stream, ReceiveOpts::default()).await.unwrap();
            assert_same(name, &objects(&from, &snap).await, &objects(&to, &format!("to/fs@{name}")).await);
        }
        to.sync().await.unwrap();
        assert_eq!(count(&to, FeatureId::LargeMicrozap), Some(3));
        export([from, to, old]).await;
    });
}

/// What the DMU writes changes with the features that a running pool gets, as with those of a new
/// or an imported pool.
#[test]
fn features_of_a_running_pool_reach_the_dmu() {
    use FeatureId::{EmbeddedData, HoleBirth, LargeMicrozap, Longname, Lz4Compress, PhysicalRewrite, Zilsaxattr};
    let world = World::with_sizes(3, &[64 << 20]);
    world.sim.block_on(async {
        let pool = create_of(&world, "tank", GroupKind::Single, &[0], 9, Vec::new()).await;
        assert_eq!(pool.dsl().ctx().features(), dmu::DmuFeatures::default());
        let mut want = dmu::DmuFeatures::default();
        for id in [EmbeddedData, HoleBirth, Lz4Compress, Zilsaxattr, Longname, PhysicalRewrite, LargeMicrozap] {
            let all =
                pool.dsl().sync_task(move |dsl, tx| Box::pin(async move { dsl.enable_features(&[id], &tx).await }));
            all.await.unwrap();
            match id {
                EmbeddedData => want.embedded_data = true,
                HoleBirth => want.hole_birth = true,
                Lz4Compress => want.lz4 = true,
                Zilsaxattr => want.zilsaxattr = true,
                Longname => want.longname = true,
                PhysicalRewrite => want.physical_rewrite = true,
                _ => want.large_microzap = true,
            }
            assert_eq!(pool.dsl().ctx().features(), want, "{id}");
        }
        export([pool]).await;
    });
}

/// The time of the last change of a directory's snapshots is that of the change, is found again
/// after an import, and is stored only where directories can have named values.
#[test]
fn changes_of_snapshots_leave_their_time() {
    for stored in [true, false] {
        let world = World::with_sizes(4, &[64 << 20]);
        world.sim.block_on(async {
            let features = if stored { ondisk::feature::features_of_2_1() } else { Vec::new() };
            let pool = create_of(&world, "tank", GroupKind::Single, &[0], 9, features).await;
            let dsl = pool.dsl().clone();
            for fs in ["tank/a", "tank/b"] {
                dsl.create_fs(fs, Vec::new(), world.new_fs()).await.unwrap();
            }
            let of = |dsl: &dsl::DslPool, fs: &str| dsl.find(fs).unwrap().dir().snapshots_changed();
            let count = || count(&pool, FeatureId::ExtensibleDataset);
            let (rt, before) = (world.sim.rt(), count());
            assert_eq!((of(&dsl, "tank/a"), of(&dsl, "tank/b")), (None, None));
            let mut last = None;
            for step in 0..3 {
                rt.sleep(base::Nanos::from_secs(100)).await;
                let begun = rt.wall_clock();
                match step {
                    0 => dsl.snapshot(vec!["tank/a@1".into()], false, Vec::new()).await.unwrap(),
                    1 => dsl.rename_snapshot("tank/a@1", "tank/a@2", false).await.unwrap(),
                    _ => dsl.destroy_snapshots(vec!["tank/a@2".into()], false).await.map(drop).unwrap(),
                }
                let (changed, now) = (of(&dsl, "tank/a").unwrap(), rt.wall_clock());
                let key = |t: base::WallTime| (t.secs, t.nanos);
                assert!(key(begun) <= key(changed) && key(changed) <= key(now), "{begun:?} {changed:?} {now:?}");
                last = Some(changed);
                assert_eq!(of(&dsl, "tank/b"), None);
                // The directory; the snapshot and its head have features of their own.
                assert!(!stored || count() > before);
            }
            drop(dsl);
            pool.export().await.unwrap();
            drop(pool);
            let mut found = spa::scan(vec![world.dev(0).dev]).await;
            let opts = spa::EngineOpts::for_memory(1 << 30);
            let pool = Pool::import(rt, found.remove(0), spa::ImportOpts::default(), opts).await.unwrap();
            assert_eq!(of(pool.dsl(), "tank/a"), last.filter(|_| stored));
            assert_eq!(of(pool.dsl(), "tank/b"), None);
            export([pool]).await;
        });
    }
}
