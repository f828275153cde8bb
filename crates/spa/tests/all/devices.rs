//! The devices of a pool: names, states, dirty time logs and changes, against what a fresh import
//! sees.

use crate::common::{POOL, World, opts};
use base::{ErrorKind, Guid, Txg};
use ondisk::feature::FeatureId;
use ondisk::nvlist::NvList;
use spa::{Bias, Group, GroupKind, ImportOpts, Layout, Pool, PoolSpec};
use vdev::{Health, TxgSet};

fn mirror(world: &World, disks: std::ops::Range<usize>) -> Layout {
    let devices = disks.map(|n| world.dev(n)).collect();
    Layout { groups: vec![Group { kind: GroupKind::Mirror, bias: Bias::Normal, devices }], ..Layout::default() }
}

/// Health and missing txgs of every leaf.
fn leaves(pool: &Pool) -> Vec<(Health, TxgSet)> {
    let tops = pool.tree().tops.borrow();
    tops.iter().flat_map(|t| t.kind().conditions()).map(|(_, c)| (c.health(), c.missing())).collect()
}

/// One txg with a change.
async fn write(pool: &Pool, n: u64) -> Txg {
    let name = format!("{POOL}@s{n}");
    pool.dsl().snapshot(vec![name], false, Vec::new()).await.unwrap();
    pool.uberblock().txg
}

#[test]
fn what_an_absent_device_misses_is_on_disk() {
    let world = World::new(1, 2);
    world.sim.block_on(async {
        let pool = world.create_as(mirror(&world, 0..2)).await.unwrap();
        let first = write(&pool, 0).await;
        assert!(leaves(&pool).iter().all(|(h, m)| *h == Health::Online && m.is_empty()));
        pool.devices().offline("disk1.img", false).await.unwrap();
        let mut written = Vec::new();
        for n in 1..4 {
            written.push(write(&pool, n).await);
        }
        let (health, missing) = leaves(&pool).remove(1);
        assert_eq!(health, Health::Offline);
        assert!(written.iter().all(|t| missing.contains(*t)), "{written:?} {missing:?}");
        assert!(!missing.contains(first), "{missing:?}");
        assert!(leaves(&pool)[0].1.is_empty());
        pool.export().await.unwrap();
        drop(pool);
        // The last device that holds the data cannot be taken away, in this import or the next.
        let pool = world.import(ImportOpts::default()).await.unwrap();
        let (health, again) = leaves(&pool).remove(1);
        assert_eq!(health, Health::Offline);
        assert!(written.iter().all(|t| again.contains(*t)), "{again:?}");
        assert!(pool.devices().offline("disk0.img", true).await.is_err());
        pool.devices().online("disk1.img").await.unwrap();
        pool.sync().await.unwrap();
        pool.scan().wait().await.unwrap();
        pool.sync().await.unwrap();
        assert!(leaves(&pool).iter().all(|(h, m)| *h == Health::Online && m.is_empty()), "{:?}", leaves(&pool));
        pool.export().await.unwrap();
        drop(pool);
        let pool = world.import(ImportOpts::default()).await.unwrap();
        assert!(leaves(&pool).iter().all(|(h, m)| *h == Health::Online && m.is_empty()));
        pool.export().await.unwrap();
    });
}

#[test]
fn a_command_names_a_device_in_several_ways() {
    let world = World::new(2, 3);
    world.sim.block_on(async {
        let mut layout = mirror(&world, 0..2);
        layout.spares = vec![world.dev(2)];
        let pool = world.create_as(layout).await.unwrap();
        let guid = pool.tree().leaves()[1].guid().0.to_string();
        for name in ["disk1.img", &guid] {
            pool.devices().offline(name, true).await.unwrap();
            assert_eq!(leaves(&pool)[1].0, Health::Offline, "{name}");
            pool.devices().online(name).await.unwrap();
            assert_eq!(leaves(&pool)[1].0, Health::Online, "{name}");
        }
        for name in ["disk9.img", "", "1", "disk1"] {
            assert_eq!(pool.devices().offline(name, true).await.unwrap_err().kind(), ErrorKind::NotFound, "'{name}'");
        }
        assert!(pool.devices().has_spare("disk2.img") && !pool.devices().has_spare("disk1.img"));
        pool.devices().remove("disk2.img").await.unwrap();
        assert!(!pool.devices().has_spare("disk2.img"));
        pool.export().await.unwrap();
        drop(pool);
        let how = ImportOpts::default();
        let rt = world.sim.rt();
        let pool = Pool::import(rt, world.find(&[0, 1]).await, how, crate::common::opts()).await.unwrap();
        assert!(pool.devices().aux().spares.is_empty(), "the list on disk is empty, too");
        pool.export().await.unwrap();
    });
}

/// A change of the devices is in the configuration of the MOS, in the labels and in the tree.
#[test]
fn a_change_is_everywhere() {
    let world = World::new(3, 3);
    world.sim.block_on(async {
        let pool = world.create_as(mirror(&world, 0..2)).await.unwrap();
        let single = Group { kind: GroupKind::Single, bias: Bias::Normal, devices: vec![world.dev(2)] };
        pool.devices().add(Layout { groups: vec![single], ..Layout::default() }, None).await.unwrap();
        let before = pool.mos_config();
        assert_eq!((before.vdev_children, before.vdev_tree.children.len()), (Some(2), 2));
        pool.devices().detach("disk1.img").await.unwrap();
        assert!(pool.devices().detach("disk0.img").await.is_err(), "nothing else has its data");
        let config = pool.mos_config();
        assert_eq!(config.vdev_tree.children[0].children.len(), 0, "a mirror of one is that device");
        pool.export().await.unwrap();
        drop(pool);
        let found = world.find(&[0, 2]).await;
        assert_eq!((found.top_level_count(), found.missing_tops()), (2, vec![]));
        assert!(spa::scan(vec![world.disks[1].dev()]).await.is_empty(), "its label is of no pool");
        let pool = Pool::import(world.sim.rt(), found, ImportOpts::default(), crate::common::opts()).await.unwrap();
        assert_eq!(pool.mos_config().vdev_tree.children, config.vdev_tree.children);
        pool.export().await.unwrap();
    });
}

/// A new guid is in every label and in the configuration; it is refused while a device is away, and
/// while there is a checkpoint.
#[test]
fn a_new_guid_is_everywhere() {
    let world = World::new(4, 2);
    world.sim.block_on(async {
        let pool = world.create_as(mirror(&world, 0..2)).await.unwrap();
        let old = pool.guid();
        let refused = async |new: Option<u64>, kind: ErrorKind| {
            assert_eq!(pool.devices().change_guid(new.map(Guid)).await.unwrap_err().kind(), kind);
            assert_eq!((pool.guid(), pool.mos_config().pool_guid), (old, old));
        };
        refused(Some(0), ErrorKind::Invalid).await;
        refused(Some(old.0), ErrorKind::Exists).await;
        pool.devices().offline("disk1.img", true).await.unwrap();
        refused(None, ErrorKind::Io).await;
        pool.devices().online("disk1.img").await.unwrap();
        pool.create_checkpoint().await.unwrap();
        refused(None, ErrorKind::Busy).await;
        pool.discard_checkpoint().await.unwrap();
        assert_eq!(pool.devices().change_guid(Some(Guid(77))).await.unwrap(), Guid(77));
        let drawn = pool.devices().change_guid(None).await.unwrap();
        assert!(drawn != old && drawn.0 != 77 && pool.guid() == drawn);
        let mut lines = Vec::new();
        let each = async |record: NvList| {
            lines.extend(record.str("history internal str").filter(|l| l.starts_with("old=")).map(str::to_string));
            Ok(())
        };
        pool.read_history(each).await.unwrap();
        assert_eq!(lines, [format!("old={old} new=77"), format!("old=77 new={drawn}")]);
        let config = pool.mos_config();
        assert_eq!((config.pool_guid, config.vdev_tree.guid), (drawn, drawn));
        pool.export().await.unwrap();
        drop(pool);
        for disk in &world.disks {
            let labels = vdev::labels::read_labels(&*disk.dev()).await.unwrap();
            for (n, label) in &labels.configs {
                assert_eq!(label.as_ref().unwrap().u64("pool_guid"), Some(drawn.0), "label {n}");
            }
        }
        let pool = world.import(ImportOpts::default()).await.unwrap();
        assert_eq!((pool.guid(), pool.mos_config().pool_guid), (drawn, drawn));
        assert!(leaves(&pool).iter().all(|(h, m)| *h == Health::Online && m.is_empty()));
        pool.export().await.unwrap();
    });
}

/// A checkpoint needs space maps of whole vdevs, which entries of one word cannot always address:
/// 2^47 units.
#[test]
fn a_vdev_may_be_too_large_for_a_checkpoint() {
    for (petabytes, v2, fits) in [(64, false, true), (65, false, false), (65, true, true)] {
        let world = World::with_sizes(petabytes, &[petabytes << 50]);
        world.sim.block_on(async {
            let mut features = ondisk::feature::features_of_2_1();
            if !v2 {
                features.retain(|f| !matches!(f, FeatureId::SpacemapV2 | FeatureId::LogSpacemap));
            }
            let spec = PoolSpec {
                version: None,
                name: POOL.into(),
                devices: vec![world.dev(0)].into(),
                ashift: Some(9),
                features,
                comment: None,
                fs_props: Vec::new(),
                init: world.new_fs(),
            };
            let pool = Pool::create(world.sim.rt(), spec, opts()).await.unwrap();
            let made = pool.create_checkpoint().await;
            assert_eq!(made.as_ref().err().map(|e| e.kind()), (!fits).then_some(ErrorKind::Unsupported), "{petabytes}");
            assert_eq!(pool.checkpoint().is_some(), fits);
            pool.export().await.unwrap();
        });
    }
}

/// A device that was added after the checkpoint is no part of the pool that goes back to it, also
/// if a power cut comes at once.
#[test]
fn going_back_to_a_checkpoint_leaves_later_devices() {
    for exports in [false, true] {
        let world = World::new(9, 2);
        world.sim.block_on(async {
            let one = Group { kind: GroupKind::Single, bias: Bias::Normal, devices: vec![world.dev(0)] };
            let pool = world.create_as(Layout { groups: vec![one], ..Layout::default() }).await.unwrap();
            let make = async |pool: &Pool, name: &str| {
                pool.dsl().create_fs(&format!("{POOL}/{name}"), Vec::new(), world.new_fs()).await.unwrap();
            };
            make(&pool, "before").await;
            pool.create_checkpoint().await.unwrap();
            let more = Group { kind: GroupKind::Single, bias: Bias::Normal, devices: vec![world.dev(1)] };
            pool.devices().add(Layout { groups: vec![more], ..Layout::default() }, None).await.unwrap();
            make(&pool, "after").await;
            pool.export().await.unwrap();
            drop(pool);
            // A look at it changes nothing.
            let look = ImportOpts { to_checkpoint: true, readonly: true, ..ImportOpts::default() };
            let back = ImportOpts { to_checkpoint: true, ..ImportOpts::default() };
            for how in [look, back] {
                let readonly = how.readonly;
                let pool = world.import(how).await.unwrap();
                assert_eq!(pool.tree().tops.borrow().len(), 1);
                pool.dsl().find(&format!("{POOL}/before")).unwrap();
                assert!(pool.dsl().find(&format!("{POOL}/after")).is_err());
                if exports || readonly {
                    pool.export().await.unwrap();
                }
            }
            for there in [vec![0, 1], vec![0]] {
                let candidate = world.find(&there).await;
                let pool = Pool::import(world.sim.rt(), candidate, ImportOpts::default(), opts()).await.unwrap();
                assert_eq!((pool.tree().tops.borrow().len(), pool.checkpoint()), (1, None));
                pool.dsl().find(&format!("{POOL}/before")).unwrap();
                assert!(pool.dsl().find(&format!("{POOL}/after")).is_err());
                make(&pool, &format!("later{}", there.len())).await;
                pool.export().await.unwrap();
            }
        });
    }
}
