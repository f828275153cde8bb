//! Requests around the cache (`O_DIRECT`, property `direct`), and what stays in it
//! (`primarycache`).

use base::ObjectId;
use bdev::Bytes;
use dmu::{ObjsetProps, PrimaryCache};
use spa::Pool;
use zpl::{DirectMode, MountOpts, ReadHow, WriteHow};

use crate::common::{Setup, World, with_pool};

const RECORD: usize = 128 << 10;
const DIRECT: WriteHow = WriteHow { append: false, sync: false, direct: true };

fn noise(len: usize, seed: u8) -> Vec<u8> {
    let mut x = u64::from(seed) + 1;
    let mut next = || {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (x >> 33) as u8
    };
    (0..len).map(|_| next()).collect()
}

async fn write(w: &World, obj: ObjectId, off: u64, data: &[u8], how: WriteHow) {
    let (n, _) = w.fs.write_as(obj, off, vec![Bytes::copy_from(data)], how).await.unwrap();
    assert_eq!(n, data.len() as u64);
}

/// Bytes of data that the cache keeps.
fn kept(pool: &Pool) -> u64 {
    pool.arc().stats().data_bytes
}

/// Whether the device has `data` somewhere.
fn is_on_device(w: &World, data: &[u8]) -> bool {
    let mut all = vec![0; 64 << 20];
    w.dev.peek(0, &mut all);
    all.chunks_exact(4096).any(|sector| sector == &data[..4096])
}

#[test]
fn whole_blocks_are_written_at_once_and_only_once() {
    with_pool(Setup::default(), |w| async move {
        let f = w.file("a").await;
        write(&w, f, 0, &noise(3 * RECORD, 1), WriteHow::default()).await;
        w.pool.sync().await.unwrap();
        let before = kept(&w.pool);
        // The first and the last block only in part.
        let data = noise(3 * RECORD, 2);
        write(&w, f, 4096, &data, DIRECT).await;
        let blocks = [&data[..RECORD - 4096], &data[RECORD - 4096..2 * RECORD - 4096], &data[2 * RECORD - 4096..]];
        assert!(!is_on_device(&w, blocks[0]), "it waits for its txg");
        assert!(is_on_device(&w, blocks[1]), "a whole block");
        assert!(is_on_device(&w, blocks[2]), "a whole block");
        assert_eq!(w.read(f, 4096, data.len() as u64).await, data);
        w.pool.sync().await.unwrap();
        assert!(is_on_device(&w, blocks[0]));
        assert_eq!(w.read(f, 4096, data.len() as u64).await, data);
        // Two of the four blocks were stored around the cache; their old content went from it.
        assert!(kept(&w.pool) <= before + 2 * RECORD as u64);
    });
}

#[test]
fn the_property_decides() {
    use DirectMode::{Always, Disabled, Standard};
    with_pool(Setup::default(), |w| async move {
        let f = w.file("a").await;
        write(&w, f, 0, &noise(2 * RECORD, 1), WriteHow::default()).await;
        w.pool.sync().await.unwrap();
        for (seed, (direct, asked, len, at_once)) in [
            (Standard, true, RECORD, true),
            (Standard, false, RECORD, false),
            (Disabled, true, RECORD, false),
            (Always, false, RECORD, true),
            // No multiple of a page.
            (Always, false, RECORD + 1, false),
            (Standard, true, RECORD + 1, false),
            // Less than a block.
            (Standard, true, RECORD / 2, false),
        ]
        .into_iter()
        .enumerate()
        {
            w.fs.set_opts(MountOpts { direct, ..w.fs.opts() });
            let data = noise(len, 10 + seed as u8);
            write(&w, f, 0, &data, WriteHow { direct: asked, ..WriteHow::default() }).await;
            assert_eq!(is_on_device(&w, &data), at_once, "{direct:?} {asked} {len}");
            w.pool.sync().await.unwrap();
            assert!(is_on_device(&w, &data));
            assert_eq!(w.read(f, 0, len as u64).await, data);
        }
    });
}

/// A direct write is durable as others are: with its txg, or with the commit of `O_SYNC`.
#[test]
fn a_durable_write_around_the_cache_survives_a_power_cut() {
    with_pool(Setup::default(), |mut w| async move {
        let f = w.file("a").await;
        w.fs.write_sync(f, 0, vec![Bytes::copy_from(&[0; 512])], false).await.unwrap();
        w.pool.sync().await.unwrap();
        let before = w.fs.log().unwrap().stats();
        let data = noise(RECORD, 3);
        write(&w, f, 0, &data, WriteHow { sync: true, ..DIRECT }).await;
        let stats = w.fs.log().unwrap().stats();
        assert_eq!((stats.indirect - before.indirect, stats.copied - before.copied), (1, 0));
        // What is on the device now is what a power cut leaves.
        let dev = std::rc::Rc::new(bdev::MemDev::new(&w.rt, 512 << 20));
        let mut all = vec![0; 512 << 20];
        w.dev.peek(0, &mut all);
        dev.poke(0, &all);
        w.dev = dev;
        w.import().await;
        assert_eq!(w.read(f, 0, RECORD as u64).await, data);
    });
}

#[test]
fn what_is_not_kept_is_read_from_the_device_again() {
    const LEN: u64 = 40 * RECORD as u64;
    with_pool(Setup::default(), |mut w| async move {
        let f = w.file("a").await;
        let data = noise(LEN as usize, 4);
        write(&w, f, 0, &data, WriteHow::default()).await;
        for (primary_cache, direct, keeps) in [
            (PrimaryCache::All, false, true),
            (PrimaryCache::All, true, false),
            (PrimaryCache::Metadata, false, false),
            (PrimaryCache::None, false, false),
        ] {
            w.reimport().await;
            let os = w.fs.objset().clone();
            os.set_props(ObjsetProps { primary_cache, ..os.props() });
            let before = w.pool.arc().stats();
            for at in (0..LEN).step_by(RECORD) {
                let how = ReadHow { noatime: true, direct };
                let parts = w.fs.read_as(f, at, RECORD as u64, how).await.unwrap();
                let got: Vec<u8> = parts.iter().flat_map(|b| b.to_vec()).collect();
                assert!(got == data[at as usize..at as usize + RECORD], "{primary_cache:?} {direct} at {at}");
            }
            let stats = w.pool.arc().stats();
            let grown = stats.data_bytes - before.data_bytes;
            assert_eq!(grown >= LEN, keeps, "{primary_cache:?} {direct}: {grown} bytes");
            assert!(keeps || grown == 0, "{primary_cache:?} {direct}: {grown} bytes");
            assert!(stats.uncached_bytes <= (64 << 20) / 16 * 2);
            // Read ahead or not, each block came once.
            assert!(stats.misses - before.misses <= 48, "{primary_cache:?} {direct}: {}", stats.misses - before.misses);
        }
    });
}
