//! Raw objects and ZAPs: batches are whole, checked first, and durable when acknowledged as such.

use openweir::{Batch, CreateOptions, Engine, ErrorKind, Object, Objects, Pool, Value};

fn pool() -> Pool {
    let engine = Engine::start().unwrap();
    let disk = engine.memory_device(256 << 20).wait().unwrap();
    engine.create_pool("tank", disk, CreateOptions::default()).wait().unwrap()
}

fn all(objects: &Objects, zap: Object) -> Vec<(Vec<u8>, Value)> {
    let (mut out, mut cookie) = (Vec::new(), 0);
    loop {
        let (entries, next) = objects.entries(zap, cookie, 100).wait().unwrap();
        out.extend(entries.into_iter().map(|e| (e.name, e.value)));
        match next {
            Some(next) => cookie = next,
            None => return out,
        }
    }
}

#[test]
fn a_batch_is_made_whole_or_not_at_all() {
    let pool = pool();
    let fs = pool.filesystem("tank").wait().unwrap();
    let objects = fs.objects().wait().unwrap();
    let root = objects.root();
    let mut batch = Batch::new();
    let (data, map) = (batch.create_data(4096), batch.create_zap());
    batch.write(data, 10_000, vec![9u8; 5000]);
    batch.insert(map, "bytes", &b"\0\xff"[..]);
    batch.insert(map, "numbers", Value::Numbers(vec![1, 2]));
    batch.insert(map, "empty", "");
    batch.insert(root, "data", data);
    batch.insert(root, "map", map);
    let done = objects.commit(batch).wait().unwrap();
    let (data, map) = (done.object(data).unwrap(), done.object(map).unwrap());
    assert_eq!(objects.get(root, "map").wait().unwrap().unwrap().number(), map.number());
    assert_eq!(objects.get(map, "bytes").wait().unwrap(), Some(Value::Bytes(vec![0, 255])));
    assert_eq!(objects.get(map, "numbers").wait().unwrap(), Some(Value::Numbers(vec![1, 2])));
    assert_eq!(objects.get(map, "empty").wait().unwrap(), Some(Value::Bytes(vec![])));
    assert_eq!(objects.get(map, "none").wait().unwrap(), None);
    let read = objects.read(data, 9_998, 6).wait().unwrap();
    assert_eq!(read, [0, 0, 9, 9, 9, 9]);
    let info = objects.info(data).wait().unwrap();
    assert_eq!((info.is_zap, info.block_size, info.size), (false, 4096, 16384));

    // Each of these fails at its last change; nothing of it may be there.
    type Last = fn(&mut Batch, Object, Object, Object);
    let fails: [(ErrorKind, Last); 9] = [
        (ErrorKind::Exists, |b, _, map, _| b.insert(map, "bytes", 1)),
        (ErrorKind::NotFound, |b, _, map, _| b.remove(map, "nothing")),
        (ErrorKind::NotFound, |b, _, map, _| {
            b.remove(map, "bytes");
            b.remove(map, "bytes");
        }),
        (ErrorKind::Conflict, |b, _, map, _| b.expect(map, "bytes", None)),
        (ErrorKind::Invalid, |b, root, _, _| b.free(root)),
        (ErrorKind::Invalid, |b, _, map, _| b.write(map, 0, "x")),
        (ErrorKind::TooBig, |b, _, map, _| b.set(map, "long", vec![0; openweir::VALUE_MAX + 1])),
        (ErrorKind::Denied, |b, _, _, _| b.free(Object::stored(1))),
        (ErrorKind::NotFound, |b, _, _, data| {
            b.free(data);
            b.write(data, 0, "x");
        }),
    ];
    let before = (all(&objects, root), all(&objects, map));
    for (kind, last) in fails {
        let mut batch = Batch::new();
        let new = batch.create_zap();
        batch.set(root, "new", new);
        batch.set(map, "bytes", 5);
        batch.write(data, 0, "changed");
        last(&mut batch, root, map, data);
        assert_eq!(objects.commit(batch).wait().unwrap_err().kind(), kind);
        assert_eq!((all(&objects, root), all(&objects, map)), before, "{kind:?}");
        assert_eq!(objects.read(data, 0, 7).wait().unwrap(), [0; 7]);
    }

    // They are part of the file system: snapshots keep them, rollbacks bring them back.
    pool.snapshot(&["tank@1"], false).wait().unwrap();
    let mut batch = Batch::new();
    batch.remove(map, "bytes");
    batch.free(data);
    batch.remove(root, "data");
    batch.expect(map, "bytes", Some(Value::Bytes(vec![0, 255])));
    objects.commit_durable(batch).wait().unwrap();
    assert_eq!(objects.read(data, 0, 1).wait().unwrap_err().kind(), ErrorKind::NotFound);
    let old = pool.filesystem("tank@1").wait().unwrap().objects().wait().unwrap();
    assert_eq!(old.root(), root);
    assert_eq!(all(&old, map), before.1);
    assert_eq!(old.commit(Batch::new()).wait().unwrap_err().kind(), ErrorKind::ReadOnly);
    pool.rollback("tank@1").wait().unwrap();
    assert_eq!(all(&objects, root), before.0);
    assert!(fs.readdir("/").wait().unwrap().is_empty());
}

#[test]
fn a_zap_grows_and_shrinks() {
    let pool = pool();
    let objects = pool.filesystem("tank").wait().unwrap().objects().wait().unwrap();
    let mut batch = Batch::new();
    let map = batch.create_zap();
    batch.set(objects.root(), "map", map);
    let map = objects.commit(batch).wait().unwrap().object(map).unwrap();
    for part in 0..5u64 {
        let mut batch = Batch::new();
        for n in 0..1000u64 {
            batch.insert(
                map,
                format!("key {:06}", part * 1000 + n),
                format!("value {n} {}", "x".repeat(n as usize % 90)).as_str(),
            );
        }
        objects.commit(batch).wait().unwrap();
    }
    assert_eq!(objects.count(map).wait().unwrap(), 5000);
    let mut names: Vec<_> = all(&objects, map).into_iter().map(|(name, _)| name).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 5000);
    for half in names.chunks(1000) {
        let mut batch = Batch::new();
        half.iter().for_each(|n| batch.remove(map, n.as_slice()));
        objects.commit(batch).wait().unwrap();
    }
    assert_eq!(objects.count(map).wait().unwrap(), 0);
    let mut batch = Batch::new();
    (0..=openweir::BATCH_CHANGES_MAX).for_each(|n| batch.set(map, format!("{n}"), 1));
    assert_eq!(objects.commit(batch).wait().unwrap_err().kind(), ErrorKind::TooBig);
}
