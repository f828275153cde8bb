//! Redaction: what a redacted copy holds, which increments fit it, and redactions that were
//! interrupted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;

use base::{ErrorKind, Nanos, ObjectId};
use bdev::{BlockDev, Bytes};
use dmu::zap;
use dsl::receive::ReceiveOpts;
use dsl::send::SendOpts;
use ondisk::blkptr::Blkptr;
use ondisk::stream::record::Begin;
use ondisk::stream::{Record, Token, features};
use sim::{DiskImage, Rng};
use spa::{EngineOpts, GroupKind, ImportOpts, Pool};
use zpl::{Cred, MountOpts, Zfs};

use crate::common::World;
use crate::snapshots::check_dir;
use crate::streams::{
    Object, assert_same, create, create_with, objects, parts, receive, rest, scribble, send, send_redacted, unpack,
};

const BOOKMARKS: &str = "com.delphix:redaction_bookmarks";
const DATASETS: &str = "com.delphix:redacted_datasets";

fn large() -> SendOpts {
    SendOpts { large_blocks: true, ..SendOpts::default() }
}

async fn change(pool: &Pool, fs: &str, snap: &str, rng: &mut Rng, steps: usize) {
    let zfs = Zfs::open(&pool.dsl().find(fs).unwrap(), MountOpts::default()).await.unwrap();
    scribble(&zfs, rng, steps).await;
    zfs.unmount().await.unwrap();
    pool.sync().await.unwrap();
    pool.dsl().snapshot(vec![format!("{fs}@{snap}")], false, Vec::new()).await.unwrap();
}

/// A pool with `from/fs@base` and clones of it that were changed: `from/c0@x`, `from/c1@x` ...
async fn sender(world: &World, rng: &mut Rng, clones: usize) -> Rc<Pool> {
    let from = create(world, "from", GroupKind::Single, &[0], 9).await;
    from.dsl().create_fs("from/fs", Vec::new(), world.new_fs()).await.unwrap();
    change(&from, "from/fs", "base", rng, 60).await;
    for n in 0..clones {
        from.dsl().clone_snapshot("from/fs@base", &format!("from/c{n}"), Vec::new()).await.unwrap();
        change(&from, &format!("from/c{n}"), "x", rng, 25).await;
    }
    from
}

/// The pointers of the data blocks of a snapshot's files, with or without those that have no name.
async fn pointers(pool: &Pool, name: &str, with_unlinked: bool) -> BTreeMap<(u64, u64), Blkptr> {
    let snap = pool.dsl().find_snapshot(name).await.unwrap();
    let os = snap.objset().await.unwrap();
    let (mut out, mut from) = (BTreeMap::new(), ObjectId(1));
    // Files without a name are gone, even if their blocks are still there.
    let master = os.hold(ObjectId(1)).await.unwrap();
    let queue = zap::lookup_u64(&master, b"DELETE_QUEUE").await.unwrap().unwrap();
    let queued = zap::list(&os.hold(ObjectId(queue)).await.unwrap()).await.unwrap();
    let unlinked: BTreeSet<u64> = queued.iter().filter_map(|e| e.value.as_u64()).collect();
    while let Some(object) = os.objects(from).await.unwrap() {
        from = ObjectId(object.0 + 1);
        let dn = os.hold(object).await.unwrap().committed();
        if dn.otype.is_metadata() || (!with_unlinked && unlinked.contains(&object.0)) {
            continue;
        }
        let mut todo: Vec<(u8, u64, Blkptr)> = Vec::new();
        todo.extend((0..).zip(dn.bps()).map(|(n, bp)| (dn.nlevels - 1, n, *bp)));
        while let Some((level, blkid, bp)) = todo.pop() {
            if bp.is_hole() {
                continue;
            }
            if level == 0 {
                out.insert((object.0, blkid), bp);
                continue;
            }
            let block = os.ctx().read(&bp).await.unwrap();
            let per = (block.len() / 128) as u64;
            todo.extend((0..).zip(Blkptr::iter_block(&block)).map(|(n, bp)| (level - 1, blkid * per + n, bp)));
        }
    }
    out
}

/// What a copy of `name` must hold if it is redacted by the snapshots `by`: blocks to which none of
/// these refers are left out.
async fn expected(pool: &Pool, name: &str, by: &[&str]) -> BTreeMap<u64, Object> {
    let mut all = objects(pool, name).await;
    let mut kept = BTreeSet::new();
    let own = pointers(pool, name, true).await;
    for snap in by {
        let theirs = pointers(pool, snap, false).await;
        kept.extend(own.iter().filter(|(at, bp)| theirs.get(at) == Some(bp)).map(|(at, _)| *at));
    }
    for (object, content) in &mut all {
        let is_file = |blkid: &u64| own.contains_key(&(*object, *blkid));
        content.blocks.retain(|(blkid, _)| !is_file(blkid) || kept.contains(&(*object, *blkid)));
    }
    all
}

fn begin_of(stream: &[u8]) -> (Begin, ondisk::nvlist::NvList) {
    let all = parts(stream);
    let (Record::Begin(begin), payload) = &all[0] else { panic!("no BEGIN") };
    (begin.clone(), ondisk::nvlist::NvList::decode(payload).unwrap())
}

async fn guid(pool: &Pool, snap: &str) -> u64 {
    pool.dsl().find_snapshot(snap).await.unwrap().phys().guid
}

fn count(pool: &Pool, feature: &str) -> u64 {
    pool.dsl().features().count(feature).unwrap()
}

async fn redact(pool: &Pool, snap: &str, book: &str, by: &[&str]) -> base::Result<()> {
    let by: Vec<String> = by.iter().map(|name| name.to_string()).collect();
    pool.dsl().redact(snap, book, &by).await
}

#[test]
fn a_redacted_copy_has_what_a_redaction_snapshot_has() {
    for seed in 0..8 {
        let world = World::with_sizes(seed, &[192 << 20; 2]);
        let mut rng = Rng::new(seed);
        world.sim.block_on(async {
            let clones = 1 + rng.below(3) as usize;
            let from = sender(&world, &mut rng, clones).await;
            let to = create(&world, "to", GroupKind::Single, &[1], 12).await;
            let by: Vec<String> = (0..clones).map(|n| format!("from/c{n}@x")).collect();
            let by: Vec<&str> = by.iter().map(String::as_str).collect();
            redact(&from, "from/fs@base", "book", &by).await.unwrap();
            assert_eq!(count(&from, BOOKMARKS), 1);
            let how = SendOpts { compressed: seed % 2 == 0, embedded: seed % 3 == 0, ..large() };
            let stream = send_redacted(&from, "from/fs@base", None, "book", how).await;
            let (begin, list) = begin_of(&stream);
            assert!(begin.features() & features::REDACTED != 0);
            let mut guids = Vec::new();
            for snap in &by {
                guids.push(guid(&from, snap).await);
            }
            assert_eq!(list.u64s("redact_snaps"), Some(&guids[..]));
            receive(&to, "to/fs@base", &stream, ReceiveOpts::default()).await.unwrap();
            let want = expected(&from, "from/fs@base", &by).await;
            assert_same(&format!("seed {seed}"), &want, &objects(&to, "to/fs@base").await);
            let copy = to.dsl().find_snapshot("to/fs@base").await.unwrap();
            assert_eq!(copy.redaction(), Some(guids.clone()));
            assert_eq!(count(&to, DATASETS), 2);
            assert!(Zfs::open(&to.dsl().find("to/fs").unwrap(), MountOpts::default()).await.is_err());
            // The redaction snapshots themselves arrive whole, as clones of it.
            for (n, snap) in by.iter().enumerate() {
                let stream = send(&from, snap, Some("from/fs@base"), how).await;
                receive(&to, &format!("to/c{n}@x"), &stream, ReceiveOpts::default()).await.unwrap();
                let same = (objects(&from, snap).await, objects(&to, &format!("to/c{n}@x")).await);
                assert_same(&format!("seed {seed}: {snap}"), &same.0, &same.1);
                assert_eq!(to.dsl().find(&format!("to/c{n}")).unwrap().redaction(), None);
            }
            assert_eq!(count(&to, DATASETS), 2);
            // Sent on it says that it is redacted.
            let again = send(&to, "to/fs@base", None, how).await;
            let (begin, list) = begin_of(&again);
            assert!(begin.features() & features::REDACTED != 0 && list.u64s("redact_snaps") == Some(&guids[..]));
            receive(&to, "to/again@base", &again, ReceiveOpts::default()).await.unwrap();
            assert_eq!(to.dsl().find("to/again").unwrap().redaction(), Some(guids));
            to.dsl().destroy_snapshots(vec!["to/again@base".into()], false).await.unwrap();
            to.dsl().destroy_fs("to/again").await.unwrap();
            assert_eq!(count(&to, DATASETS), 2);
            from.dsl().destroy_bookmark("from/fs#book").await.unwrap();
            assert_eq!(count(&from, BOOKMARKS), 0);
            for pool in [from, to] {
                check_dir(&pool.dsl().root());
                pool.export().await.unwrap();
            }
        });
    }
}

#[test]
fn increments_fill_what_was_left_out() {
    for seed in 20..26 {
        let world = World::with_sizes(seed, &[192 << 20; 2]);
        let mut rng = Rng::new(seed);
        world.sim.block_on(async {
            let from = sender(&world, &mut rng, 2).await;
            let to = create(&world, "to", GroupKind::Single, &[1], 9).await;
            let by = ["from/c0@x", "from/c1@x"];
            redact(&from, "from/fs@base", "book", &by).await.unwrap();
            redact(&from, "from/fs@base", "one", &by[..1]).await.unwrap();
            let stream = send_redacted(&from, "from/fs@base", None, "book", large()).await;
            for target in ["to/fs@base", "to/same@base"] {
                receive(&to, target, &stream, ReceiveOpts::default()).await.unwrap();
            }
            change(&from, "from/fs", "next", &mut rng, 20).await;
            // A plain increment lacks what the copy lacks.
            let plain = send(&from, "from/fs@next", Some("from/fs@base"), large()).await;
            let e = receive(&to, "to/fs@next", &plain, ReceiveOpts::default()).await.unwrap_err();
            assert!(e.kind() == ErrorKind::Invalid && e.to_string().contains("was received redacted"), "{e}");
            assert!(to.dsl().find("to/fs").unwrap().dir().children().is_empty());
            // By one of the snapshots more is redacted than by both: the rest comes.
            let less = send(&from, "from/fs@next", Some("from/fs#one"), large()).await;
            let (begin, list) = begin_of(&less);
            assert_eq!(begin.features() & features::REDACTED, 0);
            assert_eq!(list.u64s("redact_from_snaps").unwrap().len(), 1);
            receive(&to, "to/fs@next", &less, ReceiveOpts::default()).await.unwrap();
            let want = objects(&from, "from/fs@next").await;
            assert_same(&format!("seed {seed}: next"), &want, &objects(&to, "to/fs@next").await);
            assert_eq!(to.dsl().find("to/fs").unwrap().redaction(), None);
            Zfs::open(&to.dsl().find("to/fs").unwrap(), MountOpts::default()).await.unwrap().unmount().await.unwrap();
            // The rest of the very snapshot.
            let fill = send(&from, "from/fs@base", Some("from/fs#book"), large()).await;
            receive(&to, "to/same@full", &fill, ReceiveOpts::default()).await.unwrap();
            let whole = objects(&from, "from/fs@base").await;
            assert_same(&format!("seed {seed}: base"), &whole, &objects(&to, "to/same@full").await);
            // Taken back to the redacted snapshot, it is redacted again.
            to.dsl().destroy_snapshots(vec!["to/same@full".into()], false).await.unwrap();
            to.dsl().rollback("to/same@base").await.unwrap();
            assert!(to.dsl().find("to/same").unwrap().redaction().is_some());
            // From one redaction to another.
            from.dsl().clone_snapshot("from/fs@next", "from/d", Vec::new()).await.unwrap();
            change(&from, "from/d", "y", &mut rng, 10).await;
            redact(&from, "from/fs@next", "after", &["from/d@y"]).await.unwrap();
            let both = send_redacted(&from, "from/fs@next", Some("from/fs#book"), "after", large()).await;
            receive(&to, "to/same@next", &both, ReceiveOpts::default()).await.unwrap();
            let want = expected(&from, "from/fs@next", &["from/d@y"]).await;
            assert_same(&format!("seed {seed}: both"), &want, &objects(&to, "to/same@next").await);
            let head = to.dsl().find("to/same").unwrap();
            assert_eq!(head.redaction(), Some(vec![guid(&from, "from/d@y").await]));
            for pool in [from, to] {
                check_dir(&pool.dsl().root());
                pool.export().await.unwrap();
            }
        });
    }
}

#[test]
fn a_redacted_stream_that_broke_off_goes_on() {
    for seed in 40..44 {
        let world = World::with_sizes(seed, &[192 << 20; 2]);
        let mut rng = Rng::new(seed);
        world.sim.block_on(async {
            let from = sender(&world, &mut rng, 2).await;
            let to = create(&world, "to", GroupKind::Single, &[1], 12).await;
            let by = ["from/c0@x", "from/c1@x"];
            redact(&from, "from/fs@base", "book", &by).await.unwrap();
            change(&from, "from/fs", "next", &mut rng, 20).await;
            let first = send_redacted(&from, "from/fs@base", None, "book", large()).await;
            let second = send(&from, "from/fs@next", Some("from/fs#book"), large()).await;
            let how = || ReceiveOpts { resumable: true, ..ReceiveOpts::default() };
            for (target, stream) in [("to/fs@base", &first), ("to/fs@next", &second)] {
                let (mut next, mut stops) = (stream.clone(), 0);
                loop {
                    let cut = if stops < 6 { rng.below(next.len() as u64) as usize } else { next.len() };
                    if receive(&to, target, &next[..cut], how()).await.is_ok() {
                        break;
                    }
                    stops += 1;
                    let token = match to.dsl().find("to/fs") {
                        Ok(head) => to.dsl().resume_token(&head).await.unwrap(),
                        Err(_) => None,
                    };
                    let Some(token) = token else { continue };
                    let token = Token::parse(&token).unwrap();
                    assert_eq!(token.redact_snaps.is_some(), target == "to/fs@base", "{token:?}");
                    assert_eq!(token.book_redact_snaps.is_some(), target == "to/fs@next", "{token:?}");
                    next = rest(&from, &token).await;
                }
            }
            let want = expected(&from, "from/fs@base", &by).await;
            assert_same(&format!("seed {seed}: base"), &want, &objects(&to, "to/fs@base").await);
            let want = objects(&from, "from/fs@next").await;
            assert_same(&format!("seed {seed}: next"), &want, &objects(&to, "to/fs@next").await);
            // Without its bookmark the stream cannot go on.
            receive(&to, "to/b@base", &first[..first.len() / 2], how()).await.unwrap_err();
            let token = to.dsl().resume_token(&to.dsl().find("to/b").unwrap()).await.unwrap().unwrap();
            from.dsl().destroy_bookmark("from/fs#book").await.unwrap();
            let e = from.dsl().find_token(&Token::parse(&token).unwrap(), large()).await.err().unwrap();
            assert!(e.to_string().contains("no appropriate redaction bookmark exists"), "{e}");
            to.dsl().abort_receive("to/b").await.unwrap();
            assert_eq!(count(&to, DATASETS), 1);
            for pool in [from, to] {
                check_dir(&pool.dsl().root());
                pool.export().await.unwrap();
            }
        });
    }
}

/// A volume-like file with thousands of blocks, every other one of which is overwritten in a clone.
async fn striped(world: &World) -> Rc<Pool> {
    use dsl::props::PropValue;
    let from = create(world, "from", GroupKind::Single, &[0], 9).await;
    let props = vec![("recordsize".to_string(), PropValue::Num(512))];
    from.dsl().create_fs("from/fs", props, world.new_fs()).await.unwrap();
    let blocks = 10_000u64;
    for (fs, fill, step) in [("from/fs", 1u8, 1usize), ("from/c", 2, 2)] {
        if fs == "from/c" {
            from.dsl().clone_snapshot("from/fs@a", fs, Vec::new()).await.unwrap();
        }
        let zfs = Zfs::open(&from.dsl().find(fs).unwrap(), MountOpts::default()).await.unwrap();
        let file = match zfs.lookup(zfs.root(), b"file").await {
            Ok(found) => found.obj,
            Err(_) => zfs.create(zfs.root(), b"file", 0o644, &Cred::default(), true).await.unwrap().obj,
        };
        if step == 1 {
            zfs.write(file, 0, vec![Bytes::copy_from(&vec![fill; 512 * blocks as usize])], false).await.unwrap();
        }
        for block in (0..blocks).step_by(2).filter(|_| step == 2) {
            zfs.write(file, block * 512, vec![Bytes::copy_from(&[fill; 512])], false).await.unwrap();
        }
        zfs.unmount().await.unwrap();
        from.sync().await.unwrap();
        from.dsl().snapshot(vec![format!("{fs}@a")], false, Vec::new()).await.unwrap();
    }
    from
}

#[test]
fn an_interrupted_redaction_goes_on() {
    let world = World::with_sizes(60, &[192 << 20]);
    world.sim.block_on(async {
        let from = striped(&world).await;
        let dsl = from.dsl();
        redact(&from, "from/fs@a", "whole", &["from/c@a"]).await.unwrap();
        let want = send_redacted(&from, "from/fs@a", None, "whole", SendOpts::default()).await;
        let redacted = parts(&want).iter().filter(|(r, _)| matches!(r, Record::Redact(_))).count();
        assert_eq!(redacted, 5000);
        // It is cut off at any moment; once its bookmark exists it can go on.
        let mut stopped = 0;
        for n in 0..60u64 {
            let book = format!("part{n}");
            let work = redact(&from, "from/fs@a", &book, &["from/c@a"]);
            let done = world.sim.rt().timeout(Nanos(50_000 << (n / 4)), work).await;
            from.sync().await.unwrap();
            let head = dsl.find("from/fs").unwrap();
            let mark = dsl.bookmarks(&head).await.unwrap().into_iter().find(|m| m.name == book);
            let Some(mark) = mark else { continue };
            if dsl.redaction_of(&mark).await.unwrap().unwrap().is_complete {
                assert!(done.is_some());
                let e = redact(&from, "from/fs@a", &book, &["from/c@a"]).await.unwrap_err();
                assert_eq!(e.kind(), ErrorKind::Exists, "{e}");
                dsl.destroy_bookmark(&format!("from/fs#{book}")).await.unwrap();
                continue;
            }
            stopped += 1;
            let mut sink = crate::streams::Collect::default();
            let sent = dsl.send_redacted("from/fs@a", None, Some(&book), SendOpts::default(), &mut sink).await;
            assert!(sent.unwrap_err().to_string().contains("incomplete redaction bookmark provided"));
            if n % 3 == 0 {
                // Given up.
                dsl.destroy_bookmark(&format!("from/fs#{book}")).await.unwrap();
                continue;
            }
            redact(&from, "from/fs@a", &book, &["from/c@a"]).await.unwrap();
            let stream = send_redacted(&from, "from/fs@a", None, &book, SendOpts::default()).await;
            assert!(stream == want, "{n}");
            dsl.destroy_bookmark(&format!("from/fs#{book}")).await.unwrap();
        }
        assert!(stopped > 3, "{stopped}");
        assert_eq!(count(&from, BOOKMARKS), 1);
        dsl.destroy_bookmark("from/fs#whole").await.unwrap();
        assert_eq!(count(&from, BOOKMARKS), 0);
        from.export().await.unwrap();
    });
}

#[test]
fn what_cannot_be_redacted_is_refused() {
    let world = World::with_sizes(61, &[192 << 20; 2]);
    let mut rng = Rng::new(61);
    world.sim.block_on(async {
        let from = sender(&world, &mut rng, 2).await;
        change(&from, "from/fs", "later", &mut rng, 5).await;
        from.dsl().create_fs("from/other", Vec::new(), world.new_fs()).await.unwrap();
        change(&from, "from/other", "x", &mut rng, 5).await;
        redact(&from, "from/fs@base", "book", &["from/c0@x"]).await.unwrap();
        from.dsl().create_bookmark("from/fs@base", "from/fs#plain").await.unwrap();
        for (snap, book, by, kind, why) in [
            ("from/fs@base", "b", "from/other@x", ErrorKind::Invalid, "must be descendent"),
            ("from/fs@base", "b", "from/fs@base", ErrorKind::Invalid, "must be descendent"),
            ("from/fs@later", "b", "from/c0@x", ErrorKind::Invalid, "must be descendent"),
            ("from/fs@base", "b", "from/c0@y", ErrorKind::NotFound, "provided snapshot from/c0@y does not exist"),
            ("from/fs@none", "b", "from/c0@x", ErrorKind::NotFound, "provided snapshot from/fs@none does not exist"),
            ("from/fs", "b", "from/c0@x", ErrorKind::Invalid, "not the name of a snapshot"),
            ("from/fs@base", "fs#b", "from/c0@x", ErrorKind::Invalid, "must not contain '#'"),
            ("from/fs@base", "plain", "from/c0@x", ErrorKind::Exists, "(plain) provided already exists"),
            ("from/fs@base", "book", "from/c0@x", ErrorKind::Exists, "(book) provided already exists"),
            ("from/fs@base", "book", "from/c1@x", ErrorKind::Invalid, "mismatched redaction list"),
        ] {
            let e = redact(&from, snap, book, &[by]).await.unwrap_err();
            assert!(e.kind() == kind && e.to_string().contains(why), "{snap} {book} {by}: {e}");
        }
        assert_eq!(count(&from, BOOKMARKS), 1);
        // Streams by the wrong bookmark.
        let e = async |to: &str, book: &str, how: SendOpts| {
            let mut sink = crate::streams::Collect::default();
            from.dsl().send_redacted(to, None, Some(book), how, &mut sink).await.unwrap_err().to_string()
        };
        assert!(e("from/fs@base", "plain", large()).await.contains("not a redaction bookmark"));
        assert!(e("from/fs@later", "book", large()).await.contains("not a redaction bookmark of this snapshot"));
        assert!(e("from/fs@base", "none", large()).await.contains("does not exist"));
        assert!(e("from/fs@base", "book", SendOpts { raw: true, ..large() }).await.contains("may not be redacted"));
        // A copy of a redaction bookmark is an ordinary one.
        from.dsl().create_bookmark("from/fs#book", "from/fs#copy").await.unwrap();
        assert!(e("from/fs@base", "copy", large()).await.contains("not a redaction bookmark"));
        assert_eq!(count(&from, BOOKMARKS), 1);
        // What was received redacted is not redacted again; its bookmark says what it lacks.
        let to = create(&world, "to", GroupKind::Single, &[1], 12).await;
        let stream = send_redacted(&from, "from/fs@base", None, "from/fs#book", large()).await;
        receive(&to, "to/fs@base", &stream, ReceiveOpts::default()).await.unwrap();
        to.dsl().clone_snapshot("to/fs@base", "to/clone", Vec::new()).await.unwrap();
        assert!(to.dsl().find("to/clone").unwrap().redaction().is_some());
        to.dsl().snapshot(vec!["to/clone@x".into()], false, Vec::new()).await.unwrap();
        let e = redact(&to, "to/fs@base", "b", &["to/clone@x"]).await.unwrap_err();
        assert!(e.to_string().contains("attempted to redact redacted dataset"), "{e}");
        to.dsl().create_bookmark("to/fs@base", "to/fs#mark").await.unwrap();
        let mark = to.dsl().bookmarks(&to.dsl().find("to/fs").unwrap()).await.unwrap().remove(0);
        let says = to.dsl().redaction_of(&mark).await.unwrap().unwrap();
        assert!(says.is_complete && says.snaps == vec![guid(&from, "from/c0@x").await]);
        // Promotion takes the bookmark along, and destroying a file system its bookmarks.
        from.dsl().promote("from/c1").await.unwrap();
        assert_eq!((count(&from, BOOKMARKS), count(&to, BOOKMARKS)), (1, 1));
        let moved = from.dsl().bookmarks(&from.dsl().find("from/c1").unwrap()).await.unwrap();
        assert!(moved.iter().any(|m| m.name == "book" && m.redaction_obj().is_some()));
        to.dsl().destroy_snapshots(vec!["to/clone@x".into()], false).await.unwrap();
        to.dsl().destroy_fs("to/clone").await.unwrap();
        to.dsl().destroy_snapshots(vec!["to/fs@base".into()], false).await.unwrap();
        to.dsl().destroy_fs("to/fs").await.unwrap();
        assert_eq!((count(&to, BOOKMARKS), count(&to, DATASETS)), (0, 0));
        for pool in [from, to] {
            check_dir(&pool.dsl().root());
            pool.export().await.unwrap();
        }
    });
}

/// The pool of a kernel, imported to be read.
async fn kernels(world: &World, dir: &Path) -> Rc<Pool> {
    assert!(dir.exists());
    let devices: Vec<Rc<dyn BlockDev>> = vec![world.disks[0].dev()];
    let candidate = spa::scan(devices).await.remove(0);
    let import = ImportOpts { readonly: true, ..ImportOpts::default() };
    Pool::import(world.sim.rt(), candidate, import, EngineOpts::for_memory(256 << 20)).await.unwrap()
}

/// More snapshots than the bonus of the list has room for.
#[test]
fn many_snapshots_decide_what_is_left_out() {
    const SPILL: &str = "com.delphix:redaction_list_spill";
    let world = World::with_sizes(62, &[192 << 20; 2]);
    let mut rng = Rng::new(62);
    world.sim.block_on(async {
        let from =
            create_with(&world, "from", GroupKind::Single, &[0], 9, &[ondisk::feature::FeatureId::RedactionListSpill])
                .await;
        from.dsl().create_fs("from/fs", Vec::new(), world.new_fs()).await.unwrap();
        change(&from, "from/fs", "base", &mut rng, 30).await;
        // One has changes, and so have all that are cloned from it.
        from.dsl().clone_snapshot("from/fs@base", "from/c", Vec::new()).await.unwrap();
        change(&from, "from/c", "x", &mut rng, 10).await;
        let names: Vec<String> = (0..40).map(|n| format!("from/c{n}@x")).collect();
        for name in &names {
            from.dsl().clone_snapshot("from/c@x", name.trim_end_matches("@x"), Vec::new()).await.unwrap();
            from.dsl().snapshot(vec![name.clone()], false, Vec::new()).await.unwrap();
        }
        let by: Vec<&str> = names.iter().map(String::as_str).chain(["from/c@x"]).collect();
        redact(&from, "from/fs@base", "few", &by[..36]).await.unwrap();
        assert_eq!((count(&from, BOOKMARKS), count(&from, SPILL)), (1, 0), "they have room in the bonus");
        redact(&from, "from/fs@base", "many", &by).await.unwrap();
        assert_eq!((count(&from, BOOKMARKS), count(&from, SPILL)), (2, 1));
        from.export().await.unwrap();
        let candidate = world.find(&[0]).await;
        let from = Pool::import(world.sim.rt(), candidate, ImportOpts::default(), EngineOpts::for_memory(256 << 20));
        let from = from.await.unwrap();
        let mark = async |name: &str| {
            let marks = from.dsl().bookmarks(&from.dsl().find("from/fs").unwrap()).await.unwrap();
            from.dsl().redaction_of(marks.iter().find(|m| m.name == name).unwrap()).await.unwrap().unwrap()
        };
        assert!(mark("many").await.is_complete && mark("many").await.snaps.len() == 41);
        // It leaves out what the one snapshot with changes leaves out.
        let stream = send_redacted(&from, "from/fs@base", None, "many", large()).await;
        let redacted = parts(&stream).iter().filter(|(r, _)| matches!(r, Record::Redact(_))).count();
        redact(&from, "from/fs@base", "one", &["from/c@x"]).await.unwrap();
        let alone = send_redacted(&from, "from/fs@base", None, "one", large()).await;
        assert_eq!(parts(&alone).iter().filter(|(r, _)| matches!(r, Record::Redact(_))).count(), redacted);
        assert!(redacted > 0);
        from.dsl().destroy_bookmark("from/fs#many").await.unwrap();
        assert_eq!((count(&from, BOOKMARKS), count(&from, SPILL)), (2, 0));
        // Without the feature they are too many.
        let to = create(&world, "to", GroupKind::Single, &[1], 9).await;
        to.dsl().create_fs("to/fs", Vec::new(), world.new_fs()).await.unwrap();
        to.dsl().snapshot(vec!["to/fs@a".into()], false, Vec::new()).await.unwrap();
        let mut by = Vec::new();
        for n in 0..37 {
            to.dsl().clone_snapshot("to/fs@a", &format!("to/c{n}"), Vec::new()).await.unwrap();
            to.dsl().snapshot(vec![format!("to/c{n}@x")], false, Vec::new()).await.unwrap();
            by.push(format!("to/c{n}@x"));
        }
        let e = to.dsl().redact("to/fs@a", "many", &by).await.unwrap_err();
        assert!(e.kind() == ErrorKind::TooBig && e.to_string().contains("at most 36"), "{e}");
    });
}

#[test]
fn a_kernels_redacted_stream_becomes_the_kernels_copy() {
    let Some(dir) = unpack() else { return };
    let images = vec![DiskImage::load(dir.join("d0.img")).unwrap(), DiskImage::zeroed(256 << 20)];
    let world = World::over(62, images);
    world.sim.block_on(async {
        let from = kernels(&world, &dir).await;
        let pool = create(&world, "tank", GroupKind::Single, &[1], 9).await;
        let stream = std::fs::read(dir.join("redacted.zstream")).unwrap();
        let (begin, list) = begin_of(&stream);
        let copies = from.dsl().snapshots(&from.dsl().find("str/redacted").unwrap()).await.unwrap();
        let theirs = copies.iter().find(|s| s.phys().guid == begin.to_guid.0).unwrap();
        let name = theirs.name();
        receive(&pool, "tank/redacted@x", &stream, ReceiveOpts::default()).await.unwrap();
        assert_same(&name, &objects(&from, &name).await, &objects(&pool, "tank/redacted@x").await);
        let by = pool.dsl().find("tank/redacted").unwrap().redaction();
        let says = from.dsl().dataset_redaction(theirs).await.unwrap();
        assert!(by.is_some() && by == says && by.as_deref() == list.u64s("redact_snaps"), "{by:?} {says:?}");
        pool.export().await.unwrap();
        from.export().await.unwrap();
    });
}
