//! Receives that go wrong: streams that break off and go on, hostile streams, a power cut.

use std::cell::Cell;
use std::rc::Rc;

use base::{ErrorKind, Guid, ObjectId, Result};
use bdev::Bytes;
use dsl::props::PropValue;
use dsl::receive::{RECV, ReceiveOpts, Source};
use dsl::send::SendOpts;
use ondisk::stream::record::{FreeObjects, Range};
use ondisk::stream::{Record, Token};
use rt::LocalBoxFuture;
use sim::Rng;
use spa::{GroupKind, ImportOpts, Pool};

use crate::common::World;
use crate::snapshots::check_dir;
use crate::streams::{
    Feed, Sent, assert_same, create, export, joined, objects, parts, receive, receive_from, rest, resumed, send, sender,
};

/// A pool with snapshots `@a` and `@b`, and a full and an incremental stream of them.
async fn with_streams(world: &World, rng: &mut Rng) -> (Rc<Pool>, [Vec<u8>; 2]) {
    let from = sender(world, rng, 9, Sent::default(), &["a", "b"]).await;
    let a = send(&from, "from/fs@a", None, SendOpts::default()).await;
    let b = send(&from, "from/fs@b", Some("from/fs@a"), SendOpts::default()).await;
    (from, [a, b])
}

#[test]
fn a_stream_that_broke_off_goes_on_where_it_stopped() {
    for seed in 0..4 {
        let world = World::with_sizes(seed, &[160 << 20; 2]);
        let mut rng = Rng::new(seed);
        world.sim.block_on(async {
            let (from, streams) = with_streams(&world, &mut rng).await;
            let to = create(&world, "to", GroupKind::Single, &[1], 12).await;
            let how = || ReceiveOpts { resumable: true, ..ReceiveOpts::default() };
            for (name, stream) in ["a", "b"].into_iter().zip(&streams) {
                let target = format!("to/fs@{name}");
                let (mut next, mut stops) = (stream.clone(), 0);
                loop {
                    let cut = if stops < 6 { rng.below(next.len() as u64) as usize } else { next.len() };
                    let Err(e) = receive(&to, &target, &next[..cut], how()).await else { break };
                    assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
                    stops += 1;
                    assert!(to.dsl().find_snapshot(&target).await.is_err());
                    let token = match to.dsl().find("to/fs") {
                        Ok(head) => to.dsl().resume_token(&head).await.unwrap(),
                        Err(_) => None,
                    };
                    // Nothing was kept of a stream without a record.
                    let Some(token) = token else { continue };
                    let token = Token::parse(&token).unwrap();
                    let Record::Begin(begin) = &parts(stream)[0].0 else { panic!("no BEGIN") };
                    assert_eq!(token.to_guid, begin.to_guid);
                    assert_eq!(token.from_guid, Some(begin.from_guid).filter(|g| g.0 != 0));
                    assert_eq!(token.to_name.as_bytes(), begin.to_name);
                    next = rest(&from, &token).await;
                }
                let same = (objects(&from, &format!("from/fs@{name}")).await, objects(&to, &target).await);
                assert_same(&format!("seed {seed}, {name}, {stops} stops"), &same.0, &same.1);
                check_dir(&to.dsl().root());
            }
            export([from, to]).await;
        });
    }
}

#[test]
fn without_being_asked_nothing_is_kept() {
    let world = World::with_sizes(9, &[160 << 20; 2]);
    let mut rng = Rng::new(9);
    world.sim.block_on(async {
        let (from, [a, b]) = with_streams(&world, &mut rng).await;
        let to = create(&world, "to", GroupKind::Single, &[1], 12).await;
        let no = ReceiveOpts::default;
        assert!(receive(&to, "to/fs@a", &a[..a.len() / 2], no()).await.is_err());
        assert!(to.dsl().find("to/fs").is_err());
        receive(&to, "to/fs@a", &a, no()).await.unwrap();
        assert!(receive(&to, "to/fs@b", &b[..b.len() - 1], no()).await.is_err());
        assert!(to.dsl().find("to/fs").unwrap().dir().child(RECV).is_none());
        receive(&to, "to/fs@b", &b, no()).await.unwrap();
        check_dir(&to.dsl().root());
        export([from, to]).await;
    });
}

/// Changes a record in one field at random.
fn mutate(parts: &mut [(Record, Vec<u8>)], rng: &mut Rng) -> String {
    let last = parts.len() - 1;
    let at = 1 + rng.below(last as u64 - 1) as usize;
    let number = |rng: &mut Rng| match rng.below(6) {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << rng.below(64),
        3 => rng.below(1 << 20) * 512,
        4 => rng.below(100),
        _ => (1 << 48) + rng.below(3) - 1,
    };
    let n = number(rng);
    let (record, payload) = &mut parts[at];
    let field = rng.below(6);
    match record {
        Record::Object(o) => match field {
            0 => o.object = ObjectId(n),
            1 => o.object_type = n as u32,
            2 => o.bonus_type = n as u32,
            3 => o.block_size = n as u32,
            4 => o.dn_slots = n as u8,
            _ => (o.indirect_shift, o.levels, o.flags) = (n as u8, n as u8, n as u8),
        },
        Record::Write(w) => match field {
            0 => w.object = ObjectId(n),
            1 => w.offset = n,
            2 => w.object_type = n as u32,
            3 => {
                // As long as it says.
                w.compression = 15;
                w.compressed_size = payload.len() as u64;
                w.logical_size = n;
            }
            _ => payload.iter_mut().for_each(|b| *b ^= n as u8),
        },
        Record::Free(r) => match field {
            0 | 1 => r.object = ObjectId(n),
            2 | 3 => r.offset = n,
            _ => r.length = n,
        },
        Record::FreeObjects(r) => match field {
            0..3 => r.first = ObjectId(n),
            _ => r.count = n,
        },
        Record::Spill(s) if field < 3 => s.object = ObjectId(n),
        Record::Spill(_) => payload.fill(n as u8),
        Record::WriteEmbedded(w) => match field {
            0 => w.to.object = ObjectId(n),
            1 => w.to.offset = n,
            2 => w.to.length = n,
            3 => w.logical_size = n as u32,
            4 => w.embedded_type = n as u8,
            _ => w.compression = n as u8,
        },
        _ => {}
    }
    format!("record {at}: {record:?}")
}

#[test]
fn hostile_streams_are_errors_and_leave_a_pool_that_works() {
    let world = World::with_sizes(11, &[160 << 20; 2]);
    let mut rng = Rng::new(11);
    world.sim.block_on(async {
        let (from, _) = with_streams(&world, &mut rng).await;
        let how = SendOpts { large_blocks: true, embedded: true, compressed: true, raw: false };
        let a = send(&from, "from/fs@a", None, how).await;
        let b = send(&from, "from/fs@b", Some("from/fs@a"), how).await;
        let to = create(&world, "to", GroupKind::Single, &[1], 12).await;
        receive(&to, "to/base@a", &a, ReceiveOpts::default()).await.unwrap();
        let (mut refused, mut taken) = (0, 0);
        for n in 0..160 {
            let (target, stream) = if n % 2 == 0 { ("to/base@b", &b) } else { ("to/new@a", &a) };
            let mut parts = parts(stream);
            let what = mutate(&mut parts, &mut rng);
            let stream = joined(&parts);
            match receive(&to, target, &stream, ReceiveOpts::default()).await {
                Ok(_) => {
                    taken += 1;
                    to.dsl().destroy_snapshots(vec![target.into()], false).await.unwrap();
                    if target == "to/new@a" {
                        to.dsl().destroy_fs("to/new").await.unwrap();
                    } else {
                        to.dsl().rollback("to/base@a").await.unwrap();
                    }
                }
                Err(e) => {
                    refused += 1;
                    let kinds = [ErrorKind::Corrupt, ErrorKind::Invalid, ErrorKind::TooBig, ErrorKind::NotFound];
                    assert!(kinds.contains(&e.kind()) && e.to_string().contains("at byte"), "{what}: {e:?}");
                    assert!(to.dsl().find("to/new").is_err(), "{what}");
                }
            }
            assert!(to.dsl().find("to/base").unwrap().dir().child(RECV).is_none(), "{what}");
        }
        assert!(refused > 40 && taken > 10, "{refused} refused, {taken} taken");
        check_dir(&to.dsl().root());
        receive(&to, "to/base@b", &b, ReceiveOpts::default()).await.unwrap();
        assert_same("b", &objects(&from, "from/fs@b").await, &objects(&to, "to/base@b").await);
        export([from, to]).await;
    });
}

#[test]
fn records_that_no_sender_writes_are_refused() {
    let world = World::with_sizes(12, &[160 << 20; 2]);
    let mut rng = Rng::new(12);
    world.sim.block_on(async {
        let (from, [a, _]) = with_streams(&world, &mut rng).await;
        let to = create(&world, "to", GroupKind::Single, &[1], 12).await;
        let good = parts(&a);
        let range = Range { object: ObjectId(1), offset: 0, length: 512, to_guid: Guid(1) };
        let more = [
            (Record::Redact(range), "not redacted"),
            (Record::ObjectRange(Default::default()), "raw streams"),
            (Record::WriteByRef(Default::default()), "deduplicated"),
            (Record::Free(Range { offset: u64::MAX, length: 2, ..range }), "overflow"),
            (Record::Free(Range { object: ObjectId(1 << 40), ..range }), "does not exist"),
            (Record::FreeObjects(FreeObjects { first: ObjectId(9), count: u64::MAX, to_guid: Guid(1) }), "overflow"),
        ];
        for (record, why) in more {
            let mut parts = good.clone();
            parts.insert(parts.len() - 1, (record, Vec::new()));
            let e = receive(&to, "to/fs@a", &joined(&parts), ReceiveOpts::default()).await.unwrap_err();
            assert!(e.to_string().contains(why), "{e}");
            assert!(to.dsl().find("to/fs").is_err());
        }
        // Blocks out of order could not be resumed.
        let mut parts = good.clone();
        let writes: Vec<usize> = (0..parts.len()).filter(|n| matches!(parts[*n].0, Record::Write(_))).collect();
        let (x, y) = (writes[0], *writes.last().unwrap());
        parts.swap(x, y);
        let e = receive(&to, "to/fs@a", &joined(&parts), ReceiveOpts::default()).await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{e}");
        // Ways to store an object that this pool does not have, or none has.
        for (compress, checksum, why) in [
            (0, 12, "this pool has none"),
            (0, 3, "checksum 3 does not exist"),
            (0, 200, "checksum 200 does not exist"),
            (200, 0, "compression 200 does not exist"),
        ] {
            let mut parts = good.clone();
            let object = parts.iter_mut().find_map(|p| if let Record::Object(o) = &mut p.0 { Some(o) } else { None });
            let object = object.unwrap();
            (object.compress, object.checksum) = (compress, checksum);
            let e = receive(&to, "to/fs@a", &joined(&parts), ReceiveOpts::default()).await.unwrap_err();
            assert!(e.to_string().contains(why), "{e}");
        }
        // A dataset whose blocks are deduplicated by a keyed checksum makes the pool's salt.
        let salted = |pool: &Pool| pool.dsl().ctx().zio().opts().salt.is_some();
        assert!(!salted(&to));
        to.dsl().set_props("to", vec![("dedup".to_string(), PropValue::Num(12))]).await.unwrap();
        assert!(salted(&to));
        // A flipped bit is found by its sum.
        let mut flipped = a.clone();
        let at = a.len() / 2;
        flipped[at] ^= 4;
        let e = receive(&to, "to/fs@a", &flipped, ReceiveOpts::default()).await.unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::Checksum | ErrorKind::Corrupt), "{e}");
        export([from, to]).await;
    });
}

/// A stream that stops for ever after some bytes.
struct Stalls {
    feed: Feed<'static>,
    left: usize,
    stalled: Rc<Cell<bool>>,
}

impl Source for Stalls {
    fn take(&mut self, len: usize) -> LocalBoxFuture<'_, Result<Bytes>> {
        if self.left < len {
            self.stalled.set(true);
            return Box::pin(std::future::pending());
        }
        self.left -= len;
        self.feed.take(len)
    }
}

#[test]
fn after_a_power_cut_no_half_snapshot_is_seen() {
    for (seed, resumable) in [(21, false), (22, true), (23, false), (24, true)] {
        let mut rng = Rng::new(seed);
        let world = World::with_sizes(seed, &[160 << 20; 2]);
        let (streams, images) = {
            let streams = world.sim.block_on(async {
                let (from, streams) = with_streams(&world, &mut rng).await;
                from.export().await.unwrap();
                let to = create(&world, "to", GroupKind::Single, &[1], 12).await;
                let [a, b] = streams.clone();
                receive(&to, "to/fs@a", &a, ReceiveOpts::default()).await.unwrap();
                // One new file system, one that exists: both stop half way.
                for (target, stream) in [("to/fs@b", b), ("to/new@a", a)] {
                    let stalled = Rc::new(Cell::new(false));
                    let left = stream.len() / 2;
                    let feed = Feed::new(Box::leak(stream.into_boxed_slice()));
                    let mut source = Stalls { feed, left, stalled: stalled.clone() };
                    let pool = to.clone();
                    drop(world.sim.rt().spawn("receive", async move {
                        let how = ReceiveOpts { resumable, ..ReceiveOpts::default() };
                        let _ = receive_from(&pool, target, &mut source, how).await;
                    }));
                    while !stalled.get() {
                        world.sim.rt().sleep(base::Nanos::from_us(100)).await;
                    }
                    to.sync().await.unwrap();
                }
                streams
            });
            let World { sim, disks } = world;
            (streams, sim.power_cut(&disks, seed))
        };
        let world = World::over(seed, images);
        world.sim.block_on(async {
            let candidate = world.find(&[1]).await;
            let to =
                Pool::import(world.sim.rt(), candidate, ImportOpts::default(), crate::common::opts()).await.unwrap();
            let dsl = to.dsl();
            for gone in ["to/fs@b", "to/new@a"] {
                assert!(dsl.find_snapshot(gone).await.is_err(), "{gone}");
            }
            assert!(dsl.find_snapshot("to/fs@a").await.is_ok());
            check_dir(&dsl.root());
            if !resumable {
                assert!(dsl.find("to/new").is_err());
                assert!(dsl.find("to/fs").unwrap().dir().child(RECV).is_none());
            }
            for (target, stream) in [("to/fs@b", &streams[1]), ("to/new@a", &streams[0])] {
                let head = dsl.find(&target[..target.len() - 2]);
                let token = match &head {
                    Ok(head) => dsl.resume_token(head).await.unwrap(),
                    Err(_) => None,
                };
                assert_eq!(token.is_some(), resumable, "{target}");
                let next = match token.map(|t| Token::parse(&t).unwrap()) {
                    Some(token) => resumed(stream, token.object.0, token.offset),
                    None => stream.clone(),
                };
                drop(head);
                let how = ReceiveOpts { resumable, ..ReceiveOpts::default() };
                receive(&to, target, &next, how).await.unwrap();
            }
            let a = objects(&to, "to/fs@a").await;
            assert_same("new", &a, &objects(&to, "to/new@a").await);
            check_dir(&dsl.root());
            to.export().await.unwrap();
        });
    }
}
