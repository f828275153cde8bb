//! Corrective receive: damaged blocks of a snapshot come back from its streams, whatever form those
//! have, and what is not that very block is not written.

use std::rc::Rc;

use base::{ErrorKind, ObjectId, Result};
use dmu::Objset;
use dsl::receive::{Healed, Input};
use dsl::send::SendOpts;
use ondisk::blkptr::Blkptr;
use ondisk::bpobj::Bookmark;
use ondisk::label::DATA_START;
use ondisk::stream::Record;
use sim::Rng;
use spa::{ImportOpts, Pool};

use crate::common::World;
use crate::streams::{Feed, Sent, assert_same, export, joined, load_key, objects, parts, send, sender};

/// A block of data with its place.
struct Block {
    object: u64,
    blkid: u64,
    bp: Blkptr,
}

async fn objset(pool: &Pool, snap: &str) -> Objset {
    pool.dsl().find_snapshot(snap).await.unwrap().objset().await.unwrap()
}

/// The blocks of data that a stream of `snap` since `since` brings as WRITEs.
async fn blocks(pool: &Pool, snap: &str, since: Option<&str>) -> Vec<Block> {
    let since = match since {
        Some(name) => pool.dsl().find_snapshot(name).await.unwrap().phys().creation_txg,
        None => 0,
    };
    let (os, mut out, mut from) = (objset(pool, snap).await, Vec::new(), ObjectId(1));
    while let Some(object) = os.objects(from).await.unwrap() {
        from = ObjectId(object.0 + 1);
        let dn = os.hold(object).await.unwrap();
        for blkid in 0..=dn.max_blkid().min(1000) {
            let bp = dn.block_pointer(blkid).await.unwrap();
            // A micro ZAP may be small enough for its pointer.
            if !bp.is_hole() && !bp.is_embedded() && bp.logical_birth().0 > since {
                out.push(Block { object: object.0, blkid, bp });
            }
        }
    }
    out
}

/// Damages all copies of some of the blocks on the only disk.
fn damage<'a>(world: &World, blocks: &'a [Block], rng: &mut Rng) -> Vec<&'a Block> {
    let mut hit = Vec::new();
    for block in blocks.iter().filter(|b| b.bp.checksum_algo().is_some()) {
        if hit.is_empty() || rng.percent(30) {
            for dva in block.bp.dvas() {
                let len = 1 + rng.below(block.bp.psize());
                world.disks[0].corrupt(DATA_START + dva.offset(), len);
            }
            hit.push(block);
        }
    }
    hit
}

/// Imports the pool: nothing of it is cached.
async fn import(world: &World) -> Rc<Pool> {
    let candidate = world.find(&[0]).await;
    Pool::import(world.sim.rt(), candidate, ImportOpts::default(), crate::common::opts()).await.unwrap()
}

/// How many of the blocks cannot be read.
async fn unreadable(pool: &Pool, snap: &str, blocks: &[&Block]) -> usize {
    let (os, mut bad) = (objset(pool, snap).await, 0);
    for block in blocks {
        let dn = os.hold(ObjectId(block.object)).await.unwrap();
        bad += usize::from(dn.read_block(block.blkid).await.is_err_and(|e| e.kind() == ErrorKind::Checksum));
    }
    bad
}

async fn heal(pool: &Pool, snap: &str, stream: &[u8]) -> Result<Healed> {
    let mut feed = Feed::new(stream);
    let mut input = Input::new(pool.dsl().ctx().rt().clone(), &mut feed);
    let head = input.begin().await.unwrap().unwrap();
    let healed = pool.dsl().begin_heal(snap, &head).await?.data(&mut input).await;
    pool.scan().forget_healed(&healed.blocks).await.unwrap();
    Ok(healed)
}

async fn scrub(pool: &Pool) -> Vec<Bookmark> {
    pool.scan().start_scrub().await.unwrap();
    pool.scan().wait().await.unwrap();
    pool.scan().damaged_blocks().await.unwrap()
}

fn letters(text: &str) -> SendOpts {
    let has = |letter| text.contains(letter);
    SendOpts { large_blocks: has('L'), embedded: has('e'), compressed: has('c'), raw: has('w') }
}

#[test]
fn damaged_blocks_come_back_from_streams() {
    // Compression of the file system (off, lz4, gzip-6, zstd), letters of the streams, record size.
    let all = [(2, "", 131_072), (15, "", 131_072), (15, "ce", 16384), (10, "", 131_072), (16, "Lc", 1 << 20)];
    for (seed, (compression, how, recordsize)) in (0u64..).zip(all) {
        let world = World::with_sizes(seed, &[256 << 20]);
        let mut rng = Rng::new(seed);
        world.sim.block_on(async {
            let props = [("compression", compression), ("recordsize", recordsize), ("copies", 1 + seed % 2)];
            let sent = Sent { props: &props, ..Sent::default() };
            let mut pool = sender(&world, &mut rng, 12, sent, &["a", "b"]).await;
            let how = letters(how);
            let a = send(&pool, "from/fs@a", None, how).await;
            let b = send(&pool, "from/fs@b", Some("from/fs@a"), how).await;
            let before = objects(&pool, "from/fs@b").await;
            let (old, new) =
                (blocks(&pool, "from/fs@a", None).await, blocks(&pool, "from/fs@b", Some("from/fs@a")).await);
            pool.export().await.unwrap();
            let (old, new) = (damage(&world, &old, &mut rng), damage(&world, &new, &mut rng));
            pool = import(&world).await;
            let what = format!("seed {seed}");
            assert_eq!(unreadable(&pool, "from/fs@a", &old).await, old.len(), "{what}");
            assert_eq!(unreadable(&pool, "from/fs@b", &new).await, new.len(), "{what}");
            assert_eq!(scrub(&pool).await.len(), old.len() + new.len(), "{what}");

            // Streams of other snapshots, and changed ones with right sums, write nothing.
            let image = world.disks[0].image();
            let e = heal(&pool, "from/fs@b", &a).await.unwrap_err();
            assert!(e.kind() == ErrorKind::Invalid && e.to_string().contains("doesn't match"), "{e}");
            assert_eq!(world.disks[0].image().first_difference(&image), None, "{what}");
            let mut changed = parts(&b);
            for (record, payload) in &mut changed {
                if let Record::Write(w) = record
                    && w.compression == 0
                {
                    payload[0] ^= 1;
                }
            }
            let healed = heal(&pool, "from/fs@b", &joined(&changed)).await.unwrap();
            if !how.compressed {
                assert_eq!((healed.blocks.len(), healed.lost), (0, new.len() as u64), "{what}: {:?}", healed.error);
                let e = healed.error.unwrap();
                assert!(e.kind() == ErrorKind::Checksum && e.to_string().contains("not able to reconstruct"), "{e}");
                assert_eq!(unreadable(&pool, "from/fs@b", &new).await, new.len(), "{what}");
            }

            // One that breaks off has healed what it had.
            let half = heal(&pool, "from/fs@a", &a[..a.len() / 2]).await.unwrap();
            assert_eq!(half.error.as_ref().map(|e| e.kind()), Some(ErrorKind::Corrupt), "{what}");
            let rest = heal(&pool, "from/fs@a", &a).await.unwrap();
            assert!(rest.error.is_none(), "{what}: {:?}", rest.error);
            assert_eq!(half.blocks.len() + rest.blocks.len(), old.len(), "{what}");
            let healed_b = heal(&pool, "from/fs@b", &b).await.unwrap();
            assert!(healed_b.error.is_none(), "{what}: {:?}", healed_b.error);
            assert_eq!(healed_b.blocks.len() + healed.blocks.len(), new.len(), "{what}");
            // The list of damage is empty before the next scrub, and after it.
            assert_eq!(pool.scan().damaged_blocks().await.unwrap(), []);
            assert_eq!(scrub(&pool).await, []);
            pool.export().await.unwrap();
            let pool = import(&world).await;
            assert_same(&what, &before, &objects(&pool, "from/fs@b").await);
            assert_eq!(pool.scan().damaged_blocks().await.unwrap(), []);
            // A sound snapshot is left alone.
            let none = heal(&pool, "from/fs@a", &a).await.unwrap();
            assert!(none.blocks.is_empty() && none.error.is_none());
            export([pool]).await;
        });
    }
}

#[test]
fn encrypted_snapshots_are_healed_raw_without_the_key_and_otherwise_with_it() {
    for (seed, compression) in [(41, 2), (42, 15)] {
        let world = World::with_sizes(seed, &[256 << 20]);
        let mut rng = Rng::new(seed);
        world.sim.block_on(async {
            let sent = Sent { props: &[("compression", compression)], encrypted: true };
            let mut pool = sender(&world, &mut rng, 12, sent, &["a"]).await;
            let raw = send(&pool, "from/fs@a", None, letters("w")).await;
            let before = objects(&pool, "from/fs@a").await;
            let all = blocks(&pool, "from/fs@a", None).await;
            for how in ["w", "", "Lc"] {
                let stream = send(&pool, "from/fs@a", None, letters(how)).await;
                pool.export().await.unwrap();
                let hit = damage(&world, &all, &mut rng);
                pool = import(&world).await;
                let what = format!("seed {seed}, {how}");
                assert_eq!(scrub(&pool).await.len(), hit.len(), "{what}");
                if how != "w" {
                    let e = heal(&pool, "from/fs@a", &stream).await.unwrap_err();
                    assert!(e.kind() == ErrorKind::Denied && e.to_string().contains("key must be loaded"), "{e}");
                    load_key(&pool, "from/fs").await.unwrap();
                    assert_eq!(unreadable(&pool, "from/fs@a", &hit).await, hit.len(), "{what}");
                }
                // A MAC that is not the pointer's is one of another block.
                let mut changed = parts(&raw);
                for (record, _) in &mut changed {
                    if let Record::Write(w) = record {
                        w.crypt.mac[3] ^= 1;
                    }
                }
                let none = heal(&pool, "from/fs@a", &joined(&changed)).await.unwrap();
                assert_eq!((none.blocks.len(), none.lost), (0, hit.len() as u64), "{what}");
                let healed = heal(&pool, "from/fs@a", &stream).await.unwrap();
                assert!(healed.error.is_none(), "{what}: {:?}", healed.error);
                assert_eq!(healed.blocks.len(), hit.len(), "{what}");
                assert_eq!(pool.scan().damaged_blocks().await.unwrap(), []);
                assert_eq!(scrub(&pool).await, []);
                if how == "w" {
                    load_key(&pool, "from/fs").await.unwrap();
                }
                assert_same(&what, &before, &objects(&pool, "from/fs@a").await);
            }
            export([pool]).await;
        });
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let world = World::with_sizes(45, &[192 << 20; 2]);
    let mut rng = Rng::new(45);
    world.sim.block_on(async {
        let pool = sender(&world, &mut rng, 12, Sent::default(), &["a", "b"]).await;
        let a = send(&pool, "from/fs@a", None, SendOpts::default()).await;
        let refused = async |snap: &str, stream: &[u8], kind: ErrorKind, why: &str| {
            let e = heal(&pool, snap, stream).await.unwrap_err();
            assert!(e.kind() == kind && e.to_string().contains(why), "{snap}: {e:?}");
        };
        refused("from/fs@no", &a, ErrorKind::NotFound, "must specify an existing snapshot to heal").await;
        refused("from/no@a", &a, ErrorKind::NotFound, "must specify an existing snapshot to heal").await;
        refused("from/fs@b", &a, ErrorKind::Invalid, "doesn't match the snapshot").await;
        // Nothing in it names an object that the snapshot does not have.
        let mut elsewhere = parts(&a);
        for (record, _) in &mut elsewhere {
            if let Record::Write(w) = record {
                w.object = ObjectId(1 << 30);
            }
        }
        let none = heal(&pool, "from/fs@a", &joined(&elsewhere)).await.unwrap();
        assert_eq!(none.error.unwrap().kind(), ErrorKind::Corrupt);
        let flipped = {
            let mut bytes = a.clone();
            let at = bytes.len() / 2;
            bytes[at] ^= 2;
            bytes
        };
        let none = heal(&pool, "from/fs@a", &flipped).await.unwrap();
        assert!(none.blocks.is_empty() && none.error.is_some());
        // While it is healed a snapshot stays.
        let mut feed = Feed::new(&a);
        let mut input = Input::new(pool.dsl().ctx().rt().clone(), &mut feed);
        let head = input.begin().await.unwrap().unwrap();
        let healing = pool.dsl().begin_heal("from/fs@a", &head).await.unwrap();
        let e = pool.dsl().destroy_snapshots(vec!["from/fs@a".into()], false).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
        assert!(healing.data(&mut input).await.error.is_none());
        drop(healing);
        pool.dsl().destroy_snapshots(vec!["from/fs@a".into()], false).await.unwrap();
        export([pool]).await;
    });
}
