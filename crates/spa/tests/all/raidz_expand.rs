//! Expansions of RAID-Z: what is refused, what changes, and what a fresh import sees.

use crate::common::{POOL, World};
use base::{ErrorKind, Nanos, VdevId};
use bdev::Bytes;
use ondisk::feature::FeatureId;
use spa::{Bias, Group, GroupKind, ImportOpts, Layout, Pool, PoolSpec};
use vdev::reflow::BOOT_PROGRAM;

/// A pool on a raidz1 of the first disks.
async fn create(world: &World, disks: usize, features: Vec<FeatureId>) -> std::rc::Rc<Pool> {
    let devices = (0..disks).map(|n| world.dev(n)).collect();
    let groups = vec![Group { kind: GroupKind::Raidz(1), bias: Bias::Normal, devices }];
    let spec = PoolSpec {
        version: None,
        name: POOL.into(),
        devices: Layout { groups, ..Layout::default() },
        ashift: Some(12),
        features,
        comment: None,
        fs_props: Vec::new(),
        init: world.new_fs(),
    };
    Pool::create(world.sim.rt(), spec, crate::common::opts()).await.unwrap()
}

fn with_expansion() -> Vec<FeatureId> {
    let mut features = ondisk::feature::features_of_2_1();
    features.push(FeatureId::RaidzExpansion);
    features
}

async fn wait(pool: &Pool) {
    while pool.devices().expander().is_busy() {
        pool.rt().sleep(Nanos::from_ms(20)).await;
    }
}

#[test]
fn what_cannot_be_expanded_is_refused() {
    let world = World::with_sizes(1, &[80 << 20, 80 << 20, 80 << 20, 80 << 20, 64 << 20]);
    world.sim.block_on(async {
        let pool = create(&world, 3, ondisk::feature::features_of_2_1()).await;
        let refused = async |pool: &Pool, n: usize| {
            let before = (pool.uberblock().txg, pool.tree().guid_sum());
            let e = pool.devices().attach("raidz1-0", world.dev(n), None, false).await.unwrap_err();
            assert_eq!((pool.uberblock().txg, pool.tree().guid_sum()), before, "{e}");
            e.kind()
        };
        assert_eq!(refused(&pool, 3).await, ErrorKind::Unsupported, "the feature is not enabled");
        pool.destroy().await.unwrap();
        drop(pool);
        let pool = create(&world, 3, with_expansion()).await;
        assert_eq!(refused(&pool, 4).await, ErrorKind::Range, "the device is too small");
        pool.devices().offline("disk1.img", false).await.unwrap();
        pool.sync().await.unwrap();
        assert_eq!(refused(&pool, 3).await, ErrorKind::Io, "a device is away");
        pool.devices().online("disk1.img").await.unwrap();
        pool.sync().await.unwrap();
        pool.scan().wait().await.unwrap();
        pool.sync().await.unwrap();
        // A disk from which FreeBSD starts has a program where the first part would go.
        let at = 512 << 10;
        let sector = |start: &[u8]| Bytes::copy_from(&[start, &vec![0; 4096 - start.len()]].concat());
        bdev::write(&*world.dev(2).dev, at, sector(&BOOT_PROGRAM)).await.unwrap();
        assert_eq!(refused(&pool, 3).await, ErrorKind::Busy, "a boot program is there");
        bdev::write(&*world.dev(2).dev, at, sector(&BOOT_PROGRAM[..4])).await.unwrap();
        pool.create_checkpoint().await.unwrap();
        let e = pool.devices().attach("raidz1-0", world.dev(3), None, false).await.unwrap_err();
        assert!(e.to_string().contains("checkpoint"), "{e}");
        assert_eq!(refused(&pool, 3).await, ErrorKind::Busy, "there is a checkpoint");
    });
}

#[test]
fn an_expansion_goes_on_after_an_import() {
    let world = World::with_sizes(2, &[80 << 20; 5]);
    world.sim.block_on(async {
        let pool = create(&world, 3, with_expansion()).await;
        let top = pool.tree().top(VdevId(0)).unwrap();
        let before = top.asize.get();
        pool.devices().attach("raidz1-0", world.dev(3), None, false).await.unwrap();
        assert_eq!(pool.feature_count("org.openzfs:raidz_expansion"), Some(1));
        let e = pool.devices().attach("raidz1-0", world.dev(4), None, false).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
        assert_eq!(pool.create_checkpoint().await.unwrap_err().kind(), ErrorKind::Busy);
        let status = pool.raidz_expand().await.unwrap().unwrap();
        assert!(!status.finished && status.start > 0 && status.end == 0, "{status:?}");
        drop(top);
        pool.export().await.unwrap();
        drop(pool);
        let pool = world.import(ImportOpts::default()).await.unwrap();
        wait(&pool).await;
        let top = pool.tree().top(VdevId(0)).unwrap();
        assert!(top.asize.get() > before, "{} {before}", top.asize.get());
        let config = top.config();
        assert_eq!((config.children.len(), config.raidz_expanding, config.raidz_expand_txgs.len()), (4, false, 1));
        assert!(pool.raidz_expand().await.unwrap().unwrap().finished);
        // A scrub begins by itself.
        pool.scan().wait().await.unwrap();
        assert_eq!(pool.scan().status().phys.errors, 0);
        // The next expansion.
        pool.devices().attach("raidz1-0", world.dev(4), None, false).await.unwrap();
        wait(&pool).await;
        assert_eq!(top.config().raidz_expand_txgs.len(), 2);
        assert_eq!(pool.uberblock().raidz_reflow.0, 0);
        drop(top);
        pool.export().await.unwrap();
    });
}
