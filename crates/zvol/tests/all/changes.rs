//! Volumes that are written: what was flushed survives a crash, ranges, sizes, reservations.

use std::rc::Rc;

use base::ErrorKind;
use bdev::Bytes;
use dsl::crypto::NewCrypt;
use dsl::props::PropValue;
use spa::{ImportOpts, Pool};
use zpl::{Cred, MountOpts, Zfs};
use zvol::{SyncMode, Volume, VolumeOpts, init_volume};

use crate::world::{POOL, World};

const VOL: &str = "tank/vol";

async fn create(pool: &Pool, size: u64, block: u32, props: &[(&str, u64)]) {
    let props = props.iter().map(|(n, v)| (n.to_string(), PropValue::Num(*v))).collect();
    pool.dsl().create_volume(VOL, props, NewCrypt::default(), init_volume(size, block).unwrap()).await.unwrap();
}

async fn open(pool: &Pool, how: VolumeOpts) -> Rc<Volume> {
    Volume::open(&pool.dsl().find(VOL).unwrap(), how).await.unwrap()
}

async fn read(vol: &Volume, off: u64, len: u64) -> Vec<u8> {
    vol.read(off, len).await.unwrap().iter().flat_map(|b| b.to_vec()).collect()
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = sim::Rng::new(seed);
    (0..len).map(|_| rng.next_u64() as u8).collect()
}

fn data(seed: u64, len: usize) -> Vec<Bytes> {
    vec![Bytes::copy_from(&noise(seed, len))]
}

#[test]
fn what_was_flushed_survives_a_crash() {
    // Small writes are copied into the log, large ones and those with throughput are blocks of
    // their own.
    for (seed, block, throughput, sync) in [
        (1, 512, false, SyncMode::Standard),
        (2, 8192, false, SyncMode::Standard),
        (3, 16 << 10, true, SyncMode::Standard),
        (4, 128 << 10, false, SyncMode::Always),
    ] {
        let world = World::new(seed, 1);
        let how = VolumeOpts { sync, throughput, ..VolumeOpts::default() };
        let mut want = vec![0; 1 << 20];
        let images = world.sim.block_on(async {
            let pool = world.create().await;
            create(&pool, 1 << 20, block, &[]).await;
            let vol = open(&pool, how).await;
            pool.sync().await.unwrap();
            for (n, (off, len)) in
                [(0, 4096), (100, 70_000), (300_000, 5000), (600_000, 200_000)].into_iter().enumerate()
            {
                vol.write(off as u64, data(n as u64, len)).await.unwrap();
                want[off..off + len].copy_from_slice(&noise(n as u64, len));
            }
            vol.discard(50_000, 30_000).await.unwrap();
            want[50_000..80_000].fill(0);
            vol.write_zeroes(650_000, 10_000, false).await.unwrap();
            want[650_000..660_000].fill(0);
            vol.flush().await.unwrap();
            vol.write_sync(900_000, data(9, 1000)).await.unwrap();
            want[900_000..901_000].copy_from_slice(&noise(9, 1000));
            world.reborn(seed + 100)
        });
        world.sim.crash();
        let world = images;
        world.sim.block_on(async {
            let pool = world.import(ImportOpts::default()).await.unwrap();
            let vol = open(&pool, how).await;
            let replayed = vol.replayed().clone();
            assert!(replayed.failed.is_none() && replayed.applied > 0, "{replayed:?}");
            assert!(read(&vol, 0, 1 << 20).await == want, "block {block}");
            vol.close().await.unwrap();
            pool.export().await.unwrap();
            drop(pool);
            // Once more, without a log.
            let pool = world.import(ImportOpts { readonly: true, ..ImportOpts::default() }).await.unwrap();
            let vol = open(&pool, VolumeOpts::default()).await;
            assert!(vol.is_read_only() && read(&vol, 0, 1 << 20).await == want);
            vol.close().await.unwrap();
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn ranges_and_uses_are_checked() {
    let world = World::new(7, 1);
    world.sim.block_on(async {
        let pool = world.create().await;
        create(&pool, 64 << 10, 16 << 10, &[]).await;
        let vol = open(&pool, VolumeOpts::default()).await;
        assert_eq!((vol.size(), vol.block_size(), vol.is_read_only()), (64 << 10, 16 << 10, false));
        for (off, len) in [(64 << 10, 1), (65_000, 1000), (u64::MAX, 2)] {
            let e = vol.write(off, data(1, len)).await.unwrap_err();
            assert!(e.kind() == ErrorKind::Invalid && e.to_string().contains(VOL), "{e}");
            assert!(
                vol.discard(off, len as u64).await.is_err() && vol.write_zeroes(off, len as u64, false).await.is_err()
            );
        }
        vol.write(0, Vec::new()).await.unwrap();
        vol.discard(64 << 10, 0).await.unwrap();
        vol.write(10, data(1, 40_000)).await.unwrap();
        // A second user may only read.
        let ds = vol.dataset().clone();
        assert_eq!(Volume::open(&ds, VolumeOpts::default()).await.err().unwrap().kind(), ErrorKind::Busy);
        let reader = Volume::open(&ds, VolumeOpts { readonly: true, ..VolumeOpts::default() }).await.unwrap();
        assert!(read(&reader, 10, 40_000).await == noise(1, 40_000));
        reader.set_opts(VolumeOpts::default());
        assert_eq!(reader.write(0, data(1, 1)).await.unwrap_err().kind(), ErrorKind::ReadOnly);
        reader.close().await.unwrap();
        vol.set_opts(VolumeOpts { readonly: true, ..VolumeOpts::default() });
        assert_eq!(vol.discard(0, 1).await.unwrap_err().kind(), ErrorKind::ReadOnly);
        vol.set_opts(VolumeOpts::default());
        vol.discard(0, 1).await.unwrap();
        // A snapshot keeps what was there, and cannot be written.
        pool.dsl().snapshot(vec![format!("{VOL}@s")], false, Vec::new()).await.unwrap();
        vol.discard(0, 64 << 10).await.unwrap();
        let snap = pool.dsl().find_snapshot(&format!("{VOL}@s")).await.unwrap();
        let old = Volume::open(&snap, VolumeOpts::default()).await.unwrap();
        assert!(old.is_read_only() && read(&old, 10, 40_000).await == noise(1, 40_000));
        old.close().await.unwrap();
        assert!(read(&vol, 0, 64 << 10).await.iter().all(|b| *b == 0) && vol.next_data(0).await.unwrap().is_none());
        assert!(ds.is_used());
        assert_eq!(pool.dsl().destroy_fs(VOL).await.unwrap_err().kind(), ErrorKind::Busy);
        vol.close().await.unwrap();
        assert!(!ds.is_used() && vol.read(0, 1).await.is_err() && vol.write(0, data(1, 1)).await.is_err());
        pool.export().await.unwrap();
    });
}

#[test]
fn a_new_size_cuts_off_or_adds_zeros() {
    let world = World::new(8, 1);
    world.sim.block_on(async {
        let pool = world.create().await;
        create(&pool, 256 << 10, 8192, &[]).await;
        let vol = open(&pool, VolumeOpts::default()).await;
        vol.write(0, data(1, 256 << 10)).await.unwrap();
        for bad in [0, 100_000, 1 << 63] {
            assert_eq!(vol.set_size(bad).await.unwrap_err().kind(), ErrorKind::Invalid, "{bad}");
        }
        pool.sync().await.unwrap();
        let before = vol.dataset().phys().referenced_bytes;
        vol.set_size(64 << 10).await.unwrap();
        assert!(vol.write(64 << 10, data(1, 1)).await.is_err());
        pool.sync().await.unwrap();
        let after = vol.dataset().phys().referenced_bytes;
        // What leads to the blocks is as large as before.
        assert!(after < before / 2, "{after} of {before}");
        vol.set_size(128 << 10).await.unwrap();
        let mut want = noise(1, 256 << 10);
        want.truncate(64 << 10);
        want.resize(128 << 10, 0);
        assert!(read(&vol, 0, u64::MAX).await == want);
        vol.write(100_000, data(2, 10_000)).await.unwrap();
        want[100_000..110_000].copy_from_slice(&noise(2, 10_000));
        vol.close().await.unwrap();
        pool.export().await.unwrap();
        drop(pool);
        let pool = world.import(ImportOpts::default()).await.unwrap();
        let vol = open(&pool, VolumeOpts::default()).await;
        assert!(vol.size() == 128 << 10 && read(&vol, 0, u64::MAX).await == want);
        vol.close().await.unwrap();
        pool.export().await.unwrap();
    });
}

/// Tasks that change the same blocks at the same time do not disturb each other's bytes.
#[test]
fn neighbours_share_blocks() {
    let world = World::new(9, 1);
    world.sim.block_on(async {
        let pool = world.create().await;
        create(&pool, 1 << 20, 64 << 10, &[]).await;
        let vol = open(&pool, VolumeOpts::default()).await;
        let share: u64 = (1 << 20) / 7;
        let tasks: Vec<_> = (0..7)
            .map(|t| {
                let (vol, rt) = (vol.clone(), world.sim.rt());
                world.sim.rt().spawn("writer", async move {
                    let mut rng = sim::Rng::new(t);
                    let mut mine = vec![0; share as usize];
                    for n in 0..60 {
                        let off = rng.below(share - 1);
                        let len = 1 + rng.below((share - off).min(90_000));
                        let range = off as usize..(off + len) as usize;
                        match rng.below(10) {
                            0..6 => {
                                vol.write(t * share + off, data(t * 1000 + n, len as usize)).await.unwrap();
                                mine[range].copy_from_slice(&noise(t * 1000 + n, len as usize));
                            }
                            6..8 => {
                                vol.discard(t * share + off, len).await.unwrap();
                                mine[range].fill(0);
                            }
                            8 => vol.flush().await.unwrap(),
                            _ => rt.sleep(base::Nanos::from_us(rng.below(5000))).await,
                        }
                        if rng.percent(5) {
                            vol.dataset().opened().unwrap().ctx().txg().kick();
                        }
                        assert!(read(&vol, t * share, share).await == mine, "task {t} step {n}");
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
        vol.close().await.unwrap();
        pool.export().await.unwrap();
    });
}

/// A thick volume can be written in full when nobody else can write any more.
#[test]
fn a_reservation_is_kept_for_the_volume() {
    let world = World::new(10, 1);
    world.sim.block_on(async {
        let pool = world.create().await;
        let dsl = pool.dsl();
        let reserved = dsl.volume_reservation(8 << 20, 16 << 10, 1);
        assert!(reserved > 8 << 20);
        let init = || init_volume(8 << 20, 16 << 10).unwrap();
        let props = |n: u64| vec![("refreservation".to_string(), PropValue::Num(n))];
        let e = dsl.create_volume("tank/big", props(1 << 40), NewCrypt::default(), init()).await.err().unwrap();
        assert_eq!(e.kind(), ErrorKind::NoSpace);
        assert!(dsl.find("tank/big").is_err());
        let before = dsl.root().available();
        create(&pool, 8 << 20, 16 << 10, &[("refreservation", reserved), ("compression", 2)]).await;
        let used = before - dsl.root().available();
        assert!((reserved..reserved + (1 << 20)).contains(&used), "{used} of {reserved}");
        let fs = Zfs::open(&dsl.find(POOL).unwrap(), MountOpts::default()).await.unwrap();
        let file = fs.create(fs.root(), b"fill", 0o644, &Cred::new(0, 0), true).await.unwrap();
        let mut at = 0;
        loop {
            match fs.write(file.obj, at, data(at, 128 << 10), false).await {
                Ok((n, _)) => at += n,
                Err(e) => break assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}"),
            }
        }
        let vol = open(&pool, VolumeOpts::default()).await;
        for n in 0..64 {
            vol.write(n << 17, data(n, 128 << 10)).await.unwrap();
        }
        vol.flush().await.unwrap();
        // A snapshot would need the space once more.
        let e = dsl.snapshot(vec![format!("{VOL}@s")], false, Vec::new()).await.unwrap_err();
        assert!(e.kind() == ErrorKind::NoSpace && e.to_string().contains("out of space"), "{e}");
        vol.close().await.unwrap();
        fs.unmount().await.unwrap();
        pool.export().await.unwrap();
    });
}

/// Volumes have no children, and what they store themselves is no property of the DSL.
#[test]
fn volumes_stand_at_the_end_of_the_tree() {
    let world = World::new(11, 1);
    world.sim.block_on(async {
        let pool = world.create().await;
        let dsl = pool.dsl();
        create(&pool, 1 << 20, 16 << 10, &[]).await;
        dsl.create_fs("tank/fs", Vec::new(), world.new_fs()).await.unwrap();
        dsl.snapshot(vec![format!("{VOL}@s")], false, Vec::new()).await.unwrap();
        let under = |e: base::Error| assert!(e.to_string().contains("parent is not a filesystem"), "{e}");
        under(dsl.create_fs("tank/vol/fs", Vec::new(), world.new_fs()).await.err().unwrap());
        under(dsl.clone_snapshot("tank/vol@s", "tank/vol/c", Vec::new()).await.err().unwrap());
        under(dsl.rename("tank/fs", "tank/vol/fs").await.unwrap_err());
        for name in ["volsize", "volblocksize"] {
            let one = vec![(name.to_string(), PropValue::Num(1 << 20))];
            assert!(dsl.set_props(VOL, one.clone()).await.is_err());
            let init = init_volume(1 << 20, 16 << 10).unwrap();
            assert!(dsl.create_volume("tank/v2", one, NewCrypt::default(), init).await.is_err());
        }
        for (size, block) in [(0, 16 << 10), (1000, 512), (1 << 20, 3000), (1 << 20, 256)] {
            assert_eq!(init_volume(size, block).err().unwrap().kind(), ErrorKind::Invalid, "{size} {block}");
        }
        dsl.clone_snapshot("tank/vol@s", "tank/c", Vec::new()).await.unwrap();
        dsl.promote("tank/c").await.unwrap();
        dsl.destroy_fs(VOL).await.unwrap();
        pool.export().await.unwrap();
    });
}
