//! Physical rewrites: blocks that were written anew and keep their logical birth, as streams, the
//! accounts of snapshots and the key of the feature see them.

use std::rc::Rc;

use base::{ObjectId, Txg};
use dsl::receive::ReceiveOpts;
use dsl::send::SendOpts;
use ondisk::blkptr::Blkptr;
use ondisk::feature::FeatureId;
use ondisk::stream::Record;
use sim::Rng;
use spa::{GroupKind, Pool};
use zpl::diff::{Diff, Item};
use zpl::{Cred, MountOpts, Zfs};

use crate::common::World;
use crate::streams::{
    assert_same, create, create_encrypted, create_with, export, load_key, objects, parts, receive, send, send_redacted,
};

/// Blocks of the file of a test.
const BLOCKS: u64 = 200;
const SIZE: u64 = 8 << 10;

fn noise(rng: &mut Rng, len: u64) -> Vec<u8> {
    (0..len / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
}

async fn mount(pool: &Pool) -> Rc<Zfs> {
    let ds = pool.dsl().find("from/fs").unwrap();
    Zfs::open(&ds, MountOpts::from_props(&ds)).await.unwrap()
}

async fn write(fs: &Zfs, file: ObjectId, block: u64, data: &[u8]) {
    fs.write(file, block * SIZE, vec![bdev::Buf::copy_from(data).freeze()], false).await.unwrap();
}

async fn snap(pool: &Pool, name: &str) {
    pool.sync().await.unwrap();
    pool.dsl().snapshot(vec![format!("from/fs@{name}")], false, Vec::new()).await.unwrap();
}

async fn pointers(fs: &Zfs, file: ObjectId) -> Vec<Blkptr> {
    let dn = fs.objset().hold(file).await.unwrap();
    let mut out = Vec::new();
    for blkid in 0..=dn.max_blkid() {
        out.push(dn.block_pointer(blkid).await.unwrap());
    }
    out
}

/// The offsets of the WRITE records for an object.
fn written(stream: &[u8], file: ObjectId) -> Vec<u64> {
    let of = |(record, _): (Record, Vec<u8>)| match record {
        Record::Write(w) if w.object == file => Some(w.offset / SIZE),
        Record::WriteEmbedded(w) if w.to.object == file => Some(w.to.offset / SIZE),
        _ => None,
    };
    parts(stream).into_iter().filter_map(of).collect()
}

async fn free_space(pool: &Pool) -> u64 {
    while pool.dsl().has_freeing() {
        pool.sync().await.unwrap();
    }
    // What is freed can be used again after two more txgs.
    for _ in 0..4 {
        pool.sync().await.unwrap();
    }
    let space = pool.space();
    space.alloc - space.deferred
}

/// A file system with a file of incompressible blocks, in a pool with the feature.
async fn sender(world: &World, raw: bool, props: &[(&str, u64)]) -> (Rc<Pool>, Rc<Zfs>, ObjectId) {
    let pool = create_with(world, "from", GroupKind::Single, &[0], 12, &[FeatureId::PhysicalRewrite]).await;
    let props = [&[("recordsize", SIZE), ("atime", 0)], props].concat();
    let props = props.iter().map(|(n, v)| (n.to_string(), dsl::props::PropValue::Num(*v))).collect();
    match raw {
        true => create_encrypted(world, &pool, "from/fs", props).await,
        false => drop(pool.dsl().create_fs("from/fs", props, world.new_fs()).await.unwrap()),
    }
    let fs = mount(&pool).await;
    let file = fs.create(fs.root(), b"file", 0o644, &Cred::new(0, 0), false).await.unwrap().obj;
    write(&fs, file, 0, &noise(&mut Rng::new(1), BLOCKS * SIZE)).await;
    pool.sync().await.unwrap();
    (pool, fs, file)
}

#[test]
fn incremental_streams_leave_out_what_was_rewritten() {
    for raw in [false, true] {
        let world = World::with_sizes(1, &[96 << 20, 96 << 20]);
        world.sim.block_on(async {
            let (pool, fs, file) = sender(&world, raw, &[]).await;
            let to = create(&world, "to", GroupKind::Single, &[1], 9).await;
            let count = || pool.features().count(FeatureId::PhysicalRewrite.get().guid);
            snap(&pool, "a").await;
            let before = pointers(&fs, file).await;
            assert_eq!(count(), Some(0));
            // Block 3 changes first, block 5 after it was marked, in one txg with the rewrite.
            write(&fs, file, 3, &noise(&mut Rng::new(2), SIZE)).await;
            assert_eq!(fs.rewrite_physically(file, 0, 0).await.unwrap(), (BLOCKS - 1) * SIZE);
            write(&fs, file, 5, &[9; 100]).await;
            snap(&pool, "b").await;
            let after = pointers(&fs, file).await;
            let now = pool.dsl().find_snapshot("from/fs@b").await.unwrap().phys().creation_txg;
            for (n, (old, new)) in before.iter().zip(&after).enumerate() {
                let is_new = n == 3 || n == 5;
                assert_eq!(new.is_rewritten(), !is_new, "block {n}");
                assert_eq!(new.logical_birth() == old.logical_birth(), !is_new, "block {n}");
                assert!(new.dva(0) != old.dva(0) && new.birth() == new.phys_birth(), "block {n}");
                // Raw streams carry MACs that depend on those of blocks that they leave out.
                assert_eq!(
                    raw && new.mac() == old.mac() && new.salt_iv() == old.salt_iv(),
                    raw && !is_new,
                    "block {n}"
                );
                assert!(new.birth() > old.birth() && new.birth() <= Txg(now), "block {n}");
            }
            assert_eq!(count(), Some(2), "the head and its new snapshot have the key");
            let opts = SendOpts { raw, ..SendOpts::default() };
            let stream = send(&pool, "from/fs@b", Some("from/fs@a"), opts).await;
            assert_eq!(written(&stream, file), [3, 5], "raw {raw}");

            // A second rewrite keeps the same births; one that is not physical sends everything.
            fs.rewrite_physically(file, 0, 0).await.unwrap();
            snap(&pool, "c").await;
            let again = pointers(&fs, file).await;
            assert!(again.iter().zip(&after).all(|(x, y)| x.logical_birth() == y.logical_birth()));
            let second = send(&pool, "from/fs@c", Some("from/fs@b"), opts).await;
            assert_eq!(written(&second, file), []);
            fs.rewrite(file, 0, 0).await.unwrap();
            snap(&pool, "d").await;
            let third = send(&pool, "from/fs@d", Some("from/fs@c"), opts).await;
            assert_eq!(written(&third, file), (0..BLOCKS).collect::<Vec<_>>());

            // What is received is the same, and a stream of all has all.
            receive(&to, "to/fs@a", &send(&pool, "from/fs@a", None, opts).await, ReceiveOpts::default()).await.unwrap();
            if raw {
                load_key(&to, "to/fs").await.unwrap();
            }
            for (name, stream) in [("b", &stream), ("c", &second), ("d", &third)] {
                receive(&to, &format!("to/fs@{name}"), stream, ReceiveOpts::default()).await.unwrap();
                let want = objects(&pool, &format!("from/fs@{name}")).await;
                assert_same(name, &want, &objects(&to, &format!("to/fs@{name}")).await);
            }
            assert_eq!(written(&send(&pool, "from/fs@c", None, opts).await, file).len(), BLOCKS as usize);
            fs.unmount().await.unwrap();
            export([pool, to]).await;
        });
    }
}

/// Snapshots hold the blocks from before a rewrite, and not those from after it, however old their
/// content is: the space is there again when it should be, to the byte.
#[test]
fn snapshots_hold_blocks_by_the_time_of_their_rewrite() {
    let world = World::with_sizes(2, &[96 << 20]);
    world.sim.block_on(async {
        let (pool, fs, file) = sender(&world, false, &[]).await;
        let unique =
            async |name: &str| pool.dsl().find_snapshot(&format!("from/fs@{name}")).await.unwrap().phys().unique_bytes;
        snap(&pool, "a").await;
        let bytes = BLOCKS * SIZE;
        let (small, base) = (bytes / 4, free_space(&pool).await);
        // What no snapshot has is freed by the next rewrite.
        for _ in 0..3 {
            fs.rewrite_physically(file, 0, 0).await.unwrap();
            pool.sync().await.unwrap();
            let used = free_space(&pool).await;
            assert!(used.abs_diff(base + bytes) < small, "{used} {base}");
            assert!(unique("a").await >= bytes);
        }
        snap(&pool, "b").await;
        fs.rewrite_physically(file, 0, 0).await.unwrap();
        snap(&pool, "c").await;
        fs.rewrite_physically(file, 0, 0).await.unwrap();
        assert!(free_space(&pool).await.abs_diff(base + 3 * bytes) < small);
        for name in ["a", "b", "c"] {
            assert!(unique(name).await.abs_diff(bytes) < small, "{name}: {}", unique(name).await);
        }
        for (name, left) in [("b", 2), ("a", 1), ("c", 0)] {
            pool.dsl().destroy_snapshots(vec![format!("from/fs@{name}")], false).await.unwrap();
            let used = free_space(&pool).await;
            assert!(used.abs_diff(base + left * bytes) < small, "{name}: {used} {base}");
        }
        let want = noise(&mut Rng::new(1), bytes);
        let got: Vec<u8> = fs.read(file, 0, bytes).await.unwrap().iter().flat_map(|b| b.to_vec()).collect();
        assert!(got == want);
        fs.unmount().await.unwrap();
        pool.dsl().destroy_fs("from/fs").await.unwrap();
        free_space(&pool).await;
        assert_eq!(pool.features().count(FeatureId::PhysicalRewrite.get().guid), Some(0));
        export([pool]).await;
    });
}

/// A block that becomes a hole or fits its pointer is a new one; one of a dedup table stays.
#[test]
fn what_is_not_stored_anew_keeps_nothing() {
    let world = World::with_sizes(3, &[96 << 20]);
    world.sim.block_on(async {
        let (pool, fs, file) = sender(&world, false, &[("dedup", 1), ("checksum", 8)]).await;
        let count = || pool.features().count(FeatureId::PhysicalRewrite.get().guid);
        let before = pointers(&fs, file).await;
        assert!(before.iter().all(Blkptr::dedup));
        snap(&pool, "a").await;
        fs.rewrite_physically(file, 0, 0).await.unwrap();
        snap(&pool, "b").await;
        assert_eq!(pointers(&fs, file).await, before, "the table has the blocks already");
        assert_eq!(count(), Some(0));
        let stream = send(&pool, "from/fs@b", Some("from/fs@a"), SendOpts::default()).await;
        assert_eq!(written(&stream, file), []);
        // No reference was lost or counted twice: what follows frees all of them.
        let props = |dedup| dmu::ObjsetProps { dedup, ..fs.objset().props() };
        fs.objset().set_props(props(None));
        fs.rewrite_physically(file, 0, 0).await.unwrap();
        pool.sync().await.unwrap();
        let alone = pointers(&fs, file).await;
        assert!(alone.iter().zip(&before).all(|(x, y)| !x.dedup() && x.logical_birth() == y.logical_birth()));
        assert!(alone.iter().all(Blkptr::is_rewritten) && count() == Some(1));

        // Zeros and one letter, stored as they are.
        write(&fs, file, 0, &[0; SIZE as usize]).await;
        write(&fs, file, 1, &[7; SIZE as usize]).await;
        pool.sync().await.unwrap();
        assert!(pointers(&fs, file).await[..2].iter().all(|bp| !bp.is_hole() && !bp.is_embedded()));
        let lz4 = zio::Compression { algo: zio::CompressAlgo::Lz4, ..fs.objset().props().compression };
        fs.objset().set_props(dmu::ObjsetProps { compression: lz4, ..fs.objset().props() });
        fs.rewrite_physically(file, 0, 2 * SIZE).await.unwrap();
        pool.sync().await.unwrap();
        let now = pointers(&fs, file).await;
        assert!(now[0].is_hole() && now[1].is_embedded(), "{:?} {:?}", now[0], now[1]);
        for bp in &now[..2] {
            assert!(!bp.is_rewritten() && bp.logical_birth() > alone[0].phys_birth(), "{bp}");
        }
        let got: Vec<u8> = fs.read(file, 0, 2 * SIZE).await.unwrap().iter().flat_map(|b| b.to_vec()).collect();
        assert!(got[..SIZE as usize].iter().all(|b| *b == 0) && got[SIZE as usize..].iter().all(|b| *b == 7));
        fs.unmount().await.unwrap();
        export([pool]).await;
    });
}

/// The lines of a difference: `M` and so on, and the path.
async fn differences(pool: &Pool, from: &str, to: &str) -> Vec<String> {
    let open = async |name: &str| {
        let ds = pool.dsl().find_snapshot(&format!("from/fs@{name}")).await.unwrap();
        Zfs::open_uncounted(&ds, MountOpts::default()).await.unwrap()
    };
    let (from, to) = (open(from).await, open(to).await);
    let changes = pool.dsl().changes(from.dataset(), to.dataset()).await.unwrap();
    let mut diff = Diff::new(changes, from, to);
    let mut out = Vec::new();
    while let Some(item) = diff.next().await.unwrap() {
        let Item::Line(line) = item else { panic!("a line fails") };
        out.push(format!("{:?} {}", line.change, String::from_utf8_lossy(&line.path)));
    }
    out
}

/// Differences name what changed. A file that was rewritten did not, whether its blocks keep their
/// logical births or not; nor is it sent from a bookmark if they do.
#[test]
fn differences_leave_out_what_was_rewritten() {
    let world = World::with_sizes(4, &[96 << 20]);
    world.sim.block_on(async {
        let (pool, fs, file) = sender(&world, false, &[]).await;
        let cred = Cred::new(0, 0);
        let changed = fs.create(fs.root(), b"changed", 0o644, &cred, false).await.unwrap().obj;
        write(&fs, changed, 0, &noise(&mut Rng::new(3), 4 * SIZE)).await;
        snap(&pool, "a").await;
        pool.dsl().create_bookmark("from/fs@a", "from/fs#a").await.unwrap();
        assert_eq!(fs.rewrite_physically(file, 0, 0).await.unwrap(), BLOCKS * SIZE);
        snap(&pool, "b").await;
        assert_eq!(differences(&pool, "a", "b").await, Vec::<String>::new());
        fs.rewrite_physically(changed, 0, 0).await.unwrap();
        write(&fs, changed, 1, &noise(&mut Rng::new(4), SIZE)).await;
        snap(&pool, "c").await;
        for from in ["a", "b"] {
            assert_eq!(differences(&pool, from, "c").await, ["Modified /changed"]);
        }
        let stream = send(&pool, "from/fs@c", Some("from/fs#a"), SendOpts::default()).await;
        assert_eq!((written(&stream, file), written(&stream, changed)), (vec![], vec![1]));
        fs.rewrite(file, 0, 0).await.unwrap();
        snap(&pool, "d").await;
        assert_eq!(differences(&pool, "c", "d").await, Vec::<String>::new());
        fs.unmount().await.unwrap();
        export([pool]).await;
    });
}

/// A redaction snapshot that rewrote a block still has its content: the block is not left out.
#[test]
fn redacted_copies_have_what_a_redaction_snapshot_rewrote() {
    let world = World::with_sizes(5, &[96 << 20, 96 << 20]);
    world.sim.block_on(async {
        let (pool, fs, file) = sender(&world, false, &[]).await;
        let to = create(&world, "to", GroupKind::Single, &[1], 9).await;
        snap(&pool, "base").await;
        fs.unmount().await.unwrap();
        let dsl = pool.dsl();
        dsl.clone_snapshot("from/fs@base", "from/copy", Vec::new()).await.unwrap();
        let copy = Zfs::open(&dsl.find("from/copy").unwrap(), MountOpts::default()).await.unwrap();
        write(&copy, file, 3, &noise(&mut Rng::new(2), SIZE)).await;
        copy.rewrite_physically(file, 0, 0).await.unwrap();
        write(&copy, file, 5, &noise(&mut Rng::new(3), SIZE)).await;
        // One that is not physical is a new block: the redaction snapshot gave the old one up.
        pool.sync().await.unwrap();
        copy.rewrite(file, 7 * SIZE, SIZE).await.unwrap();
        copy.unmount().await.unwrap();
        pool.sync().await.unwrap();
        dsl.snapshot(vec!["from/copy@x".into()], false, Vec::new()).await.unwrap();
        dsl.redact("from/fs@base", "book", &["from/copy@x".to_string()]).await.unwrap();
        let stream = send_redacted(&pool, "from/fs@base", None, "book", SendOpts::default()).await;
        let left_out: Vec<u64> = (0..BLOCKS).filter(|n| !written(&stream, file).contains(n)).collect();
        assert_eq!(left_out, [3, 5, 7]);
        receive(&to, "to/fs@base", &stream, ReceiveOpts::default()).await.unwrap();
        // What follows has what was left out, and brings the copy to the same.
        let rest = send(&pool, "from/copy@x", Some("from/fs@base"), SendOpts::default()).await;
        assert_eq!(written(&rest, file), [3, 5, 7]);
        receive(&to, "to/copy@x", &rest, ReceiveOpts::default()).await.unwrap();
        assert_same("copy", &objects(&pool, "from/copy@x").await, &objects(&to, "to/copy@x").await);
        export([pool, to]).await;
    });
}
