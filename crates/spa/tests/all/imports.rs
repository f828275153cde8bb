//! Export and import: what is kept, and what an import does without.

use std::rc::Rc;

use crate::common::{POOL, World, opts};
use spa::{Bias, Group, GroupKind, ImportOpts, Layout, Pool};

#[test]
fn an_import_finds_what_the_export_left() {
    let world = World::new(1, 2);
    world.sim.block_on(async {
        let pool = world.create().await;
        let guid = pool.guid();
        pool.set_comment(Some("shelf 3".into())).unwrap();
        pool.export().await.unwrap();
        drop(pool);
        let found = world.find(&[0, 1]).await;
        assert_eq!((found.name.as_str(), found.guid, found.state), (POOL, guid, spa::PoolState::Exported));
        assert_eq!((found.top_level_count(), found.missing_tops()), (2, vec![]));
        assert_eq!(world.find(&[1]).await.missing_tops(), [0]);
        let pool = world.import(ImportOpts::default()).await.unwrap();
        assert_eq!(pool.mos_config().comment.as_deref(), Some("shelf 3"));
        // A second import of a pool that is in use needs force, whoever uses it.
        assert_eq!(world.find(&[0, 1]).await.state, spa::PoolState::Active);
        pool.destroy().await.unwrap();
        drop(pool);
        assert_eq!(world.find(&[0, 1]).await.state, spa::PoolState::Destroyed);
    });
}

#[test]
fn an_import_goes_by_its_options_from_the_start() {
    let world = World::new(7, 1);
    world.sim.block_on(async {
        world.create().await.export().await.unwrap();
        let found = world.find(&[0]).await;
        let how = spa::EngineOpts { nesting: 1, ..opts() };
        let pool = Pool::import(world.sim.rt(), found, ImportOpts::default(), how).await.unwrap();
        let name = format!("{POOL}/a");
        assert_eq!(pool.dsl().check_new_name(&name).unwrap_err().kind(), base::ErrorKind::NameTooLong);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_pool_that_is_read_only_is_not_changed() {
    let world = World::new(2, 1);
    world.sim.block_on(async {
        world.create().await.export().await.unwrap();
        let size = world.disks[0].image().size() as usize;
        let before = world.disks[0].image().read_vec(0, size);
        let how = ImportOpts { readonly: true, ..ImportOpts::default() };
        let pool = world.import(how).await.unwrap();
        assert!(pool.is_readonly());
        assert_eq!(pool.set_comment(None).unwrap_err().kind(), base::ErrorKind::ReadOnly);
        let new = pool.dsl().create_fs(&format!("{POOL}/a"), Vec::new(), world.new_fs()).await;
        assert_eq!(new.err().unwrap().kind(), base::ErrorKind::ReadOnly);
        pool.log_command("zfs create tank/a", 0);
        pool.sync().await.unwrap();
        pool.read_history(async |r| {
            assert!(r.str("history command").is_none(), "{r:?}");
            Ok(())
        })
        .await
        .unwrap();
        pool.export().await.unwrap();
        assert!(world.disks[0].image().read_vec(0, size) == before, "the disk was written");
    });
}

#[test]
fn a_missing_log_device_is_done_without_on_demand() {
    let world = World::new(3, 3);
    world.sim.block_on(async {
        let group = |kind, bias, devices| Group { kind, bias, devices };
        let groups = vec![
            group(GroupKind::Single, Bias::Normal, vec![world.dev(0)]),
            group(GroupKind::Mirror, Bias::Log, vec![world.dev(1), world.dev(2)]),
        ];
        let pool = world.create_as(Layout { groups, ..Layout::default() }).await.unwrap();
        pool.export().await.unwrap();
        drop(pool);
        let rt = world.sim.rt();
        let there = world.find(&[0]).await;
        assert!(Pool::import(rt.clone(), there, ImportOpts::default(), opts()).await.is_err());
        let how = ImportOpts { missing_log: true, ..ImportOpts::default() };
        let pool = Pool::import(rt, world.find(&[0]).await, how, opts()).await.unwrap();
        pool.dsl().create_fs(&format!("{POOL}/made"), Vec::new(), world.new_fs()).await.unwrap();
        pool.export().await.unwrap();
        drop(pool);
        let pool = world.import(ImportOpts::default()).await.unwrap();
        pool.dsl().find(&format!("{POOL}/made")).unwrap();
        pool.export().await.unwrap();
    });
}

/// The only log device can go offline with a log in use: the log goes on elsewhere, is replayed
/// after a crash that way, and comes back to the device when that is online.
#[test]
fn the_only_log_device_goes_offline_and_comes_back() {
    let world = World::new(7, 2);
    world.sim.block_on(async {
        let group = |bias, device| Group { kind: GroupKind::Single, bias, devices: vec![device] };
        let groups = vec![group(Bias::Normal, world.dev(0)), group(Bias::Log, world.dev(1))];
        let mut pool = world.create_as(Layout { groups, ..Layout::default() }).await.unwrap();
        let open = async |pool: &Pool| {
            let fs = zpl::Zfs::open(&pool.dsl().find(POOL).unwrap(), zpl::MountOpts::default()).await.unwrap();
            let root = fs.root();
            (fs, root)
        };
        let on_log = |pool: &Pool| pool.allocator().in_use(base::VdevId(1));
        let mut files = Vec::new();
        for round in 0..3u8 {
            let (fs, root) = open(&pool).await;
            let mut write = async |n: u8| {
                let name = vec![b'a' + round, b'a' + n];
                let file = fs.create(root, &name, 0o644, &zpl::Cred::default(), true).await.unwrap().obj;
                let data = vec![round * 8 + n + 1; 100_000];
                fs.write(file, 0, vec![bdev::Buf::copy_from(&data).freeze()], true).await.unwrap();
                fs.fsync(file).await.unwrap();
                files.push((name, data));
            };
            write(0).await;
            assert!(on_log(&pool) > 0, "round {round}");
            pool.devices().offline("disk1.img", round == 1).await.unwrap();
            assert_eq!(on_log(&pool), 0, "round {round}");
            assert!(pool.devices().offline("disk0.img", true).await.is_err());
            write(1).await;
            assert_eq!(on_log(&pool), 0, "round {round}");
            if round == 2 {
                pool.devices().bring_online("disk1.img", false).await.unwrap();
                write(2).await;
                assert!(on_log(&pool) > 0);
            }
            // A crash: what was written last is in the log only.
            drop(fs);
            drop(pool);
            // Offline for good, it need not be there.
            let there = if round == 0 { world.find(&[0]).await } else { world.find(&[0, 1]).await };
            pool = Pool::import(world.sim.rt(), there, ImportOpts::default(), opts()).await.unwrap();
            let (fs, root) = open(&pool).await;
            for (name, data) in &files {
                let file = fs.lookup(root, name).await.unwrap().obj;
                let read = fs.read(file, 0, data.len() as u64).await.unwrap();
                assert!(read.iter().flat_map(|b| b.iter()).eq(data), "{name:?}");
            }
            fs.unmount().await.unwrap();
            drop(fs);
            if round == 0 {
                // Back, with the device there.
                pool.export().await.unwrap();
                drop(pool);
                pool = world.import(ImportOpts::default()).await.unwrap();
                pool.devices().online("disk1.img").await.unwrap();
            }
        }
        pool.export().await.unwrap();
    });
}

/// A program that embeds the engine may open the devices again as soon as an export has returned:
/// nothing of the pool lives on.
#[test]
fn an_exported_pool_lets_go_of_its_devices() {
    let world = World::new(5, 2);
    world.sim.block_on(async {
        let mirror = Group { kind: GroupKind::Mirror, bias: Bias::Normal, devices: vec![world.dev(0), world.dev(1)] };
        let pool = world.create_as(Layout { groups: vec![mirror], ..Layout::default() }).await.unwrap();
        let fs = zpl::Zfs::open(&pool.dsl().find(POOL).unwrap(), zpl::MountOpts::default()).await.unwrap();
        let file = fs.create(fs.root(), b"f", 0o644, &zpl::Cred::default(), true).await.unwrap().obj;
        fs.write(file, 0, vec![bdev::Buf::zeroed(1 << 20).freeze()], true).await.unwrap();
        fs.unmount().await.unwrap();
        drop(fs);
        pool.scan().start_scrub().await.unwrap();
        pool.scan().wait().await.unwrap();
        pool.export().await.unwrap();
        let leaves: Vec<_> = pool.tree().leaves().iter().map(Rc::downgrade).collect();
        drop(pool);
        let held: Vec<usize> = leaves.iter().map(std::rc::Weak::strong_count).collect();
        assert_eq!(held, [0, 0]);
    });
}
