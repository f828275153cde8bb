//! Streams received: those of a kernel, and of random file systems on other layouts; what was
//! received is what was sent, and sent on it is the same stream.

use std::collections::BTreeMap;
use std::rc::Rc;

use base::ErrorKind;
use bdev::BlockDev;
use dsl::props::PropValue;
use dsl::receive::{RECV, ReceiveOpts};
use dsl::send::SendOpts;
use ondisk::stream::{Record, Token};
use sim::{DiskImage, Rng};
use spa::{EngineOpts, GroupKind, ImportOpts, Pool};
use zpl::{MountOpts, Zfs};

use crate::common::World;
use crate::snapshots::{check_dir, check_fs};
use crate::streams::{
    Sent, assert_alike, assert_same, change, create, export, joined, objects, parts, receive, resumed, send, sender,
    snapshot, unpack,
};

fn force() -> ReceiveOpts {
    ReceiveOpts { force: true, ..ReceiveOpts::default() }
}

fn letters(text: &str) -> SendOpts {
    SendOpts {
        large_blocks: text.contains('L'),
        embedded: text.contains('e'),
        compressed: text.contains('c'),
        raw: text.contains('w'),
    }
}

/// The pool `streams` on the first disk, imported to be read.
async fn import_kernels(world: &World) -> Rc<Pool> {
    let devices: Vec<Rc<dyn BlockDev>> = vec![world.disks[0].dev()];
    let candidate = spa::scan(devices).await.remove(0);
    let import = ImportOpts { readonly: true, ..ImportOpts::default() };
    Pool::import(world.sim.rt(), candidate, import, EngineOpts::for_memory(256 << 20)).await.unwrap()
}

#[test]
fn a_kernels_streams_become_the_kernels_snapshots() {
    let Some(dir) = unpack() else { return };
    let images = vec![DiskImage::load(dir.join("d0.img")).unwrap(), DiskImage::zeroed(256 << 20)];
    let world = World::over(1, images);
    world.sim.block_on(async {
        let from = import_kernels(&world).await;
        let pool = create(&world, "tank", GroupKind::Single, &[1], 9).await;
        let file = |name: &str| std::fs::read(dir.join(format!("{name}.zstream"))).unwrap();
        for (target, name, of) in [
            ("tank/full@1", "full", "str/src@1"),
            ("tank/full@2", "incremental", "str/src@2"),
            ("tank/packed@1", "compressed", "str/src@1"),
        ] {
            let received = receive(&pool, target, &file(name), ReceiveOpts::default()).await.unwrap();
            assert_eq!((received.snapshot.as_str(), received.bytes), (target, file(name).len() as u64));
            assert_same(target, &objects(&from, of).await, &objects(&pool, target).await);
            let (ours, theirs) = (
                pool.dsl().find_snapshot(target).await.unwrap().phys(),
                from.dsl().find_snapshot(of).await.unwrap().phys(),
            );
            assert_eq!((ours.guid, ours.creation_time), (theirs.guid, theirs.creation_time), "{target}");
            assert_eq!(ours.flags & 1, 0);
            // Block by block as it came: what is sent on is the same.
            let (to, since, how) = match name {
                "full" => ("tank/full@1", None, ""),
                "incremental" => ("tank/full@2", Some("tank/full@1"), ""),
                _ => ("tank/packed@1", None, "ce"),
            };
            let (ours, theirs) = (send(&pool, to, since, letters(how)).await, file(name));
            // Holes at the end of an object are not made again, as in OpenZFS.
            let written = |stream: &[u8]| {
                let mut parts = parts(stream);
                parts.retain(|(record, _)| !matches!(record, Record::Free(_)));
                joined(&parts)
            };
            assert_alike(target, &written(&ours), &written(&theirs));
        }
        // Only what was compressed is so still.
        let used = |name: &str| pool.dsl().find(name).unwrap().phys().referenced_bytes;
        assert!(used("tank/packed") * 2 < used("tank/full"));
        check_dir(&pool.dsl().root());
        assert_eq!(pool.dsl().all().iter().filter(|d| d.name().contains(RECV)).count(), 0);
        pool.export().await.unwrap();
        from.export().await.unwrap();
    });
}

#[test]
fn a_receive_that_a_kernel_began_has_the_kernels_token() {
    let Some(dir) = unpack() else { return };
    let world = World::over(2, vec![DiskImage::load(dir.join("d0.img")).unwrap()]);
    world.sim.block_on(async {
        let pool = import_kernels(&world).await;
        let dsl = pool.dsl();
        let token = async |name: &str| dsl.resume_token(&dsl.find(name).unwrap()).await.unwrap();
        let zfs_get = std::fs::read_to_string(dir.join("zfs-get.tsv")).unwrap();
        for name in ["str/half", "str/full"] {
            let line = zfs_get.lines().find(|l| l.starts_with(&format!("{name}\treceive_resume_token\t"))).unwrap();
            // Packed by another library, it may look different.
            let theirs = Token::list_of(line.split('\t').nth(2).unwrap()).unwrap();
            assert_eq!(Token::list_of(&token(name).await.unwrap()).unwrap(), theirs, "{name}");
        }
        assert_eq!(token("str/src").await, None);
        pool.export().await.unwrap();
    });
}

#[test]
fn a_stream_goes_on_only_where_it_stopped() {
    let Some(dir) = unpack() else { return };
    let world = World::with_sizes(3, &[256 << 20]);
    world.sim.block_on(async {
        let pool = create(&world, "tank", GroupKind::Single, &[0], 12).await;
        let stream = std::fs::read(dir.join("full.zstream")).unwrap();
        let how = ReceiveOpts { resumable: true, ..ReceiveOpts::default() };
        receive(&pool, "tank/half@1", &stream[..stream.len() / 2], how.clone()).await.unwrap_err();
        let token = pool.dsl().resume_token(&pool.dsl().find("tank/half").unwrap()).await.unwrap().unwrap();
        let token = Token::parse(&token).unwrap();
        let elsewhere = resumed(&stream, token.object.0 - 1, 0);
        let e = receive(&pool, "tank/half@1", &elsewhere, how.clone()).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
        let e = receive(&pool, "tank/half@1", &stream, how.clone()).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
        receive(&pool, "tank/half@1", &resumed(&stream, token.object.0, token.offset), how.clone()).await.unwrap();
        receive(&pool, "tank/whole@1", &stream, how.clone()).await.unwrap();
        assert_same("half", &objects(&pool, "tank/whole@1").await, &objects(&pool, "tank/half@1").await);
        // A partial increment is given up.
        let more = std::fs::read(dir.join("incremental.zstream")).unwrap();
        receive(&pool, "tank/half@2", &more[..more.len() - 400], how.clone()).await.unwrap_err();
        pool.dsl().abort_receive("tank/half").await.unwrap();
        let head = pool.dsl().find("tank/half").unwrap();
        assert_eq!(pool.dsl().resume_token(&head).await.unwrap(), None);
        assert!(pool.dsl().abort_receive("tank/half").await.is_err());
        drop(head);
        check_dir(&pool.dsl().root());
        pool.export().await.unwrap();
    });
}

#[test]
fn random_file_systems_arrive_on_other_layouts() {
    for seed in 0..6u64 {
        let world = World::with_sizes(seed, &[192 << 20; 5]);
        let mut rng = Rng::new(seed);
        world.sim.block_on(async {
            let (kind, disks): (_, &[usize]) = match seed % 3 {
                0 => (GroupKind::Raidz(1), &[1, 2, 3, 4]),
                1 => (GroupKind::Mirror, &[1, 2]),
                _ => (GroupKind::Single, &[1]),
            };
            let to = create(&world, "to", kind, disks, if seed % 2 == 0 { 12 } else { 9 }).await;
            let props = [
                ("compression", rng.below(2) * 13 + 2),
                ("recordsize", [4096, 16384, 131_072, 1 << 20][rng.below(4) as usize]),
                ("xattr", 1 + rng.below(2)),
                ("dnodesize", rng.below(2)),
            ];
            let from = sender(&world, &mut rng, 9, Sent { props: &props, ..Sent::default() }, &[]).await;
            let how = letters(["", "L", "ce", "Lce", "Lc", "Le"][rng.below(6) as usize]);
            let (mut last, mut names) = (None, Vec::new());
            for n in 0..5 {
                let snap = format!("from/fs@{n}");
                snapshot(&from, "from/fs", &mut rng, &n.to_string()).await;
                if n > 0 && rng.percent(30) {
                    // One snapshot is passed over.
                    continue;
                }
                let stream = send(&from, &snap, last.as_deref(), how).await;
                let target = format!("to/fs@{n}");
                receive(&to, &target, &stream, ReceiveOpts::default()).await.unwrap();
                let what = format!("seed {seed}: {target}");
                let (theirs, ours) = (objects(&from, &snap).await, objects(&to, &target).await);
                if how.large_blocks {
                    assert_same(&what, &theirs, &ours);
                } else {
                    assert_eq!(theirs.keys().collect::<Vec<_>>(), ours.keys().collect::<Vec<_>>(), "{what}");
                }
                names.push(n.to_string());
                last = Some(snap);
                check_fs(to.dsl(), &to.dsl().find("to/fs").unwrap(), &names).await;
                check_dir(&to.dsl().root());
            }
            let before = objects(&to, &format!("to/fs@{}", names[0])).await;
            to.export().await.unwrap();
            let devices = disks.iter().map(|n| world.disks[*n].dev()).collect();
            let candidate = spa::scan(devices).await.remove(0);
            let to =
                Pool::import(world.sim.rt(), candidate, ImportOpts::default(), crate::common::opts()).await.unwrap();
            assert_same("again", &before, &objects(&to, &format!("to/fs@{}", names[0])).await);
            // What was received is a file system like others.
            change(&to, "to/fs", &mut rng, 20).await;
            check_fs(to.dsl(), &to.dsl().find("to/fs").unwrap(), &names).await;
            export([from, to]).await;
        });
    }
}

/// Pools `from` and `to`, with `from/fs` and its snapshots `a`, `b`, `c`.
async fn pair(world: &World, rng: &mut Rng) -> (Rc<Pool>, Rc<Pool>) {
    let from = sender(world, rng, 12, Sent::default(), &["a", "b", "c"]).await;
    (from, create(world, "to", GroupKind::Single, &[1], 12).await)
}

#[test]
fn a_target_must_fit_its_stream_unless_it_is_forced() {
    let world = World::with_sizes(3, &[128 << 20; 2]);
    let mut rng = Rng::new(3);
    world.sim.block_on(async {
        let (from, to) = pair(&world, &mut rng).await;
        let plain = SendOpts::default();
        let a = send(&from, "from/fs@a", None, plain).await;
        let b = send(&from, "from/fs@b", Some("from/fs@a"), plain).await;
        let c = send(&from, "from/fs@c", Some("from/fs@b"), plain).await;
        let refused = async |target: &str, stream: &[u8], how: ReceiveOpts, kind: ErrorKind, why: &str| {
            let history = to.dsl().root().phys();
            let e = receive(&to, target, stream, how).await.unwrap_err();
            assert!(e.kind() == kind && e.to_string().contains(why), "{target}: {e:?}");
            assert_eq!(to.dsl().root().phys(), history, "{target}: a refused stream changes nothing");
        };
        let no = ReceiveOpts::default;
        refused("to/fs@b", &b, no(), ErrorKind::NotFound, "destination 'to/fs' does not exist").await;
        refused("to/x/y@a", &a, no(), ErrorKind::NotFound, "destination 'to/x' does not exist").await;
        refused("to/fs@a b@", &a, no(), ErrorKind::Invalid, "invalid character").await;
        refused("to@a", &a, no(), ErrorKind::Exists, "must specify -F").await;
        receive(&to, "to/fs@a", &a, no()).await.unwrap();
        refused("to/fs@a", &a, no(), ErrorKind::Exists, "exists").await;
        refused("to/fs@z", &a, no(), ErrorKind::Exists, "must specify -F to overwrite it").await;
        refused("to/fs@z", &a, force(), ErrorKind::Exists, "destination has snapshots (eg. to/fs@a)").await;
        refused("to/fs@c", &c, no(), ErrorKind::NotFound, "does not\nmatch incremental source").await;
        // Changed meanwhile.
        change(&to, "to/fs", &mut rng, 5).await;
        refused("to/fs@b", &b, no(), ErrorKind::Busy, "has been modified\nsince most recent snapshot").await;
        to.dsl().snapshot(vec!["to/fs@own".into()], false, Vec::new()).await.unwrap();
        receive(&to, "to/fs@b", &b, force()).await.unwrap();
        assert!(to.dsl().find_snapshot("to/fs@own").await.is_err());
        assert_same("b", &objects(&from, "from/fs@b").await, &objects(&to, "to/fs@b").await);
        check_dir(&to.dsl().root());
        // While it is in use the end is refused, and nothing is left.
        let zfs = Zfs::open(&to.dsl().find("to/fs").unwrap(), MountOpts::default()).await.unwrap();
        let e = receive(&to, "to/fs@c", &c, no()).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
        zfs.unmount().await.unwrap();
        drop(zfs);
        assert!(to.dsl().find("to/fs").unwrap().dir().child(RECV).is_none());
        receive(&to, "to/fs@c", &c, no()).await.unwrap();
        assert_same("head", &objects(&from, "from/fs@c").await, &objects(&to, "to/fs").await);
        // A full stream over one without snapshots.
        to.dsl().create_fs("to/old", Vec::new(), world.new_fs()).await.unwrap();
        receive(&to, "to/old@a", &a, force()).await.unwrap();
        assert_same("old", &objects(&from, "from/fs@a").await, &objects(&to, "to/old@a").await);
        check_dir(&to.dsl().root());
        export([from, to]).await;
    });
}

#[test]
fn streams_become_clones() {
    let world = World::with_sizes(4, &[128 << 20; 2]);
    let mut rng = Rng::new(4);
    world.sim.block_on(async {
        let (from, to) = pair(&world, &mut rng).await;
        from.dsl().clone_snapshot("from/fs@b", "from/clone", Vec::new()).await.unwrap();
        snapshot(&from, "from/clone", &mut rng, "x").await;
        let plain = SendOpts::default();
        let (a, b) = (send(&from, "from/fs@a", None, plain).await, send(&from, "from/fs@b", None, plain).await);
        let x = send(&from, "from/clone@x", Some("from/fs@b"), plain).await;
        let no = ReceiveOpts::default;
        assert_eq!(receive(&to, "to/clone@x", &x, no()).await.unwrap_err().kind(), ErrorKind::NotFound);
        receive(&to, "to/fs@b", &b, no()).await.unwrap();
        // Its origin is found by its guid.
        receive(&to, "to/clone@x", &x, no()).await.unwrap();
        let origin =
            async |name: &str| to.dsl().origin_of(&to.dsl().find(name).unwrap()).await.unwrap().unwrap().name();
        assert_eq!(origin("to/clone").await, "to/fs@b");
        assert_same("clone", &objects(&from, "from/clone@x").await, &objects(&to, "to/clone@x").await);
        // A full stream as a clone: what the origin has beside it goes.
        let how = ReceiveOpts { origin: Some("to/clone@x".into()), ..no() };
        receive(&to, "to/other@a", &a, how).await.unwrap();
        assert_eq!(origin("to/other").await, "to/clone@x");
        assert_same("other", &objects(&from, "from/fs@a").await, &objects(&to, "to/other@a").await);
        check_dir(&to.dsl().root());
        to.dsl().destroy_snapshots(vec!["to/other@a".into()], false).await.unwrap();
        to.dsl().destroy_fs("to/other").await.unwrap();
        check_dir(&to.dsl().root());
        export([from, to]).await;
    });
}

#[test]
fn a_new_file_system_has_the_properties_it_is_given() {
    let world = World::with_sizes(5, &[128 << 20; 2]);
    let mut rng = Rng::new(5);
    world.sim.block_on(async {
        let (from, to) = pair(&world, &mut rng).await;
        let a = send(&from, "from/fs@a", None, SendOpts::default()).await;
        let props = vec![("compression".to_string(), PropValue::Num(15)), ("a:b".into(), PropValue::Text("c".into()))];
        let how = ReceiveOpts { props: props.clone(), ..ReceiveOpts::default() };
        receive(&to, "to/fs@a", &a, how).await.unwrap();
        let local = to.dsl().find("to/fs").unwrap().dir().local_props();
        assert_eq!(local, BTreeMap::from_iter(props));
        export([from, to]).await;
    });
}
