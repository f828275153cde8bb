//! What the tests of streams share: sinks and sources, pools with random file systems, and object
//! sets in a form that can be compared.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result};
use bdev::Bytes;
use codec::checksum::{Checksum, Endian};
use dmu::Objset;
use dsl::crypto::{KeyFormat, KeyMaterial, NewCrypt, NewKey};
use dsl::props::PropValue;
use dsl::receive::{Input, ReceiveOpts, Received, Source};
use dsl::send::{SendOpts, Sink};
use ondisk::feature::FeatureId;
use ondisk::stream::record::{Begin, End};
use ondisk::stream::{RECORD_SIZE, Record, StreamReader, StreamWriter, Token, features};
use rt::LocalBoxFuture;
use sim::Rng;
use spa::{Bias, Group, GroupKind, Layout, Pool, PoolSpec};
use zpl::{Cred, Fallocate, MountOpts, SetXattr, Zfs};

use crate::common::{World, opts};

/// Collects a stream.
#[derive(Default)]
pub struct Collect(pub Vec<u8>);

impl Sink for Collect {
    fn put(&mut self, record: [u8; RECORD_SIZE], payload: Bytes) -> LocalBoxFuture<'_, Result<()>> {
        self.0.extend(record);
        self.0.extend(&payload[..]);
        Box::pin(async { Ok(()) })
    }
}

/// Gives the bytes of a stream.
pub struct Feed<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Feed<'a> {
    pub fn new(bytes: &'a [u8]) -> Feed<'a> {
        Feed { bytes, at: 0 }
    }
}

impl Source for Feed<'_> {
    fn take(&mut self, len: usize) -> LocalBoxFuture<'_, Result<Bytes>> {
        let end = self.bytes.len().min(self.at + len);
        let part = Bytes::copy_from(&self.bytes[self.at..end]);
        self.at = end;
        Box::pin(async move { Ok(part) })
    }
}

/// The unpacked pool `streams` of the reference collection; `None`, with a message, if that is
/// impossible here.
pub fn unpack() -> Option<PathBuf> {
    let tar = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/pools/streams.tar.zst");
    // Tests run at once: each has its own copy.
    let thread = format!("{:?}", std::thread::current().id());
    let name: String = thread.chars().filter(char::is_ascii_digit).collect();
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("dsl-streams-{name}"));
    if !tar.exists() {
        eprintln!("NOT RUN: {} is not there", tar.display());
        return None;
    }
    std::fs::create_dir_all(&to).unwrap();
    let untar = std::process::Command::new("tar").arg("--zstd").arg("-xf").arg(&tar).arg("-C").arg(&to).status();
    if !untar.is_ok_and(|s| s.success()) {
        eprintln!("NOT RUN: tar --zstd does not work here");
        return None;
    }
    Some(to.join("streams"))
}

/// A pool on those of the disks.
pub async fn create(world: &World, name: &str, kind: GroupKind, disks: &[usize], ashift: u8) -> Rc<Pool> {
    create_with(world, name, kind, disks, ashift, &[]).await
}

/// The same with more features than the default ones.
pub async fn create_with(
    world: &World,
    name: &str,
    kind: GroupKind,
    disks: &[usize],
    ashift: u8,
    more: &[FeatureId],
) -> Rc<Pool> {
    let features = ondisk::feature::features_of_2_1().into_iter().chain(more.iter().copied()).collect();
    create_of(world, name, kind, disks, ashift, features).await
}

/// The same with exactly those features.
pub async fn create_of(
    world: &World,
    name: &str,
    kind: GroupKind,
    disks: &[usize],
    ashift: u8,
    features: Vec<FeatureId>,
) -> Rc<Pool> {
    let devices = disks.iter().map(|n| world.dev(*n)).collect();
    let spec = PoolSpec {
        version: None,
        name: name.into(),
        devices: Layout { groups: vec![Group { kind, bias: Bias::Normal, devices }], ..Layout::default() },
        ashift: Some(ashift),
        features,
        comment: None,
        // What compresses is part of the tests.
        fs_props: vec![("compression".into(), dsl::props::PropValue::Num(2))],
        init: world.new_fs(),
    };
    Pool::create(world.sim.rt(), spec, opts()).await.unwrap()
}

/// The key of encrypted file systems of tests.
const KEY: &[u8; 32] = b"0123456789abcdefFEDCBA9876543210";

/// Loads it.
pub async fn load_key(pool: &Pool, name: &str) -> Result<()> {
    pool.dsl().load_key(name, &KeyMaterial::new(KEY), false).await
}

/// What the file system `from/fs`, whose snapshots are sent, is.
#[derive(Clone, Copy, Default)]
pub struct Sent<'a> {
    /// Its properties.
    pub props: &'a [(&'a str, u64)],
    /// It has a key of its own ([`load_key`]).
    pub encrypted: bool,
}

/// The pool `from` on the first disk, with `from/fs` and these snapshots of it, each with random
/// changes before it.
pub async fn sender(world: &World, rng: &mut Rng, ashift: u8, sent: Sent<'_>, names: &[&str]) -> Rc<Pool> {
    let pool = create(world, "from", GroupKind::Single, &[0], ashift).await;
    let props = sent.props.iter().map(|(name, value)| (name.to_string(), PropValue::Num(*value))).collect();
    let dsl = pool.dsl();
    match sent.encrypted {
        false => drop(dsl.create_fs("from/fs", props, world.new_fs()).await.unwrap()),
        true => create_encrypted(world, &pool, "from/fs", props).await,
    }
    for name in names {
        snapshot(&pool, "from/fs", rng, name).await;
    }
    pool
}

/// A file system with a key of its own ([`load_key`]).
pub async fn create_encrypted(world: &World, pool: &Pool, name: &str, props: Vec<(String, PropValue)>) {
    let material = KeyMaterial::new(KEY);
    let key = NewKey { format: KeyFormat::Raw, material, iters: None, location: "prompt".into() };
    let crypt = NewCrypt { suite: Some(Some(codec::crypto::Suite::Aes256Gcm)), key: Some(key) };
    drop(pool.dsl().create_fs_encrypted(name, props, crypt, world.new_fs()).await.unwrap());
}

/// Changes a file system at random and takes a snapshot of it.
pub async fn snapshot(pool: &Pool, fs: &str, rng: &mut Rng, name: &str) {
    change(pool, fs, rng, 40).await;
    pool.dsl().snapshot(vec![format!("{fs}@{name}")], false, Vec::new()).await.unwrap();
}

/// Changes a file system at random.
pub async fn change(pool: &Pool, fs: &str, rng: &mut Rng, steps: usize) {
    let zfs = Zfs::open(&pool.dsl().find(fs).unwrap(), MountOpts::default()).await.unwrap();
    scribble(&zfs, rng, steps).await;
    zfs.unmount().await.unwrap();
    drop(zfs);
    pool.sync().await.unwrap();
}

/// Exports pools.
pub async fn export<const N: usize>(pools: [Rc<Pool>; N]) {
    for pool in pools {
        pool.export().await.unwrap();
    }
}

/// Sends a snapshot.
pub async fn send(pool: &Pool, to: &str, from: Option<&str>, opts: SendOpts) -> Vec<u8> {
    let mut sink = Collect::default();
    pool.dsl().send(to, from, opts, &mut sink).await.unwrap();
    sink.0
}

/// Sends a snapshot by a redaction bookmark.
pub async fn send_redacted(pool: &Pool, to: &str, from: Option<&str>, book: &str, opts: SendOpts) -> Vec<u8> {
    let mut sink = Collect::default();
    pool.dsl().send_redacted(to, from, Some(book), opts, &mut sink).await.unwrap();
    sink.0
}

/// Receives a stream of one snapshot.
pub async fn receive(pool: &Pool, target: &str, stream: &[u8], opts: ReceiveOpts) -> Result<Received> {
    let mut feed = Feed::new(stream);
    receive_from(pool, target, &mut feed, opts).await
}

/// The same from any source.
pub async fn receive_from(pool: &Pool, target: &str, source: &mut dyn Source, opts: ReceiveOpts) -> Result<Received> {
    let mut input = Input::new(pool.dsl().ctx().rt().clone(), source);
    let head = input.begin().await?.ok_or_else(|| Error::new(ErrorKind::Corrupt, "nothing came"))?;
    pool.dsl().receive(target, head, opts, &mut input).await
}

/// An object as a stream carries it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Object {
    otype: u8,
    block_size: u32,
    bonus_type: u8,
    bonus: Vec<u8>,
    spill: Option<Vec<u8>>,
    slots: u32,
    /// Sums of the blocks that are not all zero.
    pub blocks: Vec<(u64, Checksum)>,
}

/// All objects of a snapshot or head.
pub async fn objects(pool: &Pool, name: &str) -> BTreeMap<u64, Object> {
    let dsl = pool.dsl();
    let os = match name.contains('@') {
        true => dsl.find_snapshot(name).await.unwrap().objset().await.unwrap(),
        false => dsl.find(name).unwrap().objset().await.unwrap(),
    };
    objects_of(&os).await
}

async fn objects_of(os: &Objset) -> BTreeMap<u64, Object> {
    let mut out = BTreeMap::new();
    let mut from = ObjectId(1);
    while let Some(object) = os.objects(from).await.unwrap() {
        from = ObjectId(object.0 + 1);
        let dn = os.hold(object).await.unwrap();
        let size = u64::from(dn.block_size());
        let (mut blocks, mut at) = (Vec::new(), 0);
        while let Some(data) = dn.next_data(at).await.unwrap() {
            let block = dn.read_block(data / size).await.unwrap();
            if block.iter().any(|b| *b != 0) {
                blocks.push((data / size, codec::fletcher::fletcher4(&block)));
            }
            at = (data / size + 1) * size;
        }
        let spill = dn.spill().await.unwrap().map(|b| b.to_vec());
        let object = Object {
            otype: dn.otype().0,
            block_size: dn.block_size(),
            bonus_type: dn.bonus_type().0,
            bonus: dn.bonus().to_vec(),
            spill,
            slots: dn.dnode_size(),
            blocks,
        };
        out.insert(from.0 - 1, object);
    }
    out
}

/// Asserts that two snapshots have the same objects.
pub fn assert_same(what: &str, a: &BTreeMap<u64, Object>, b: &BTreeMap<u64, Object>) {
    assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>(), "{what}: object numbers");
    for (object, x) in a {
        let y = &b[object];
        if x != y {
            let block = x.blocks.iter().zip(&y.blocks).position(|(p, q)| p != q);
            let short = |o: &Object| Object { blocks: Vec::new(), ..o.clone() };
            panic!(
                "{what}: object {object}: {:?} {} blocks, {:?} {} blocks, the first that differs is {block:?}",
                short(x),
                x.blocks.len(),
                short(y),
                y.blocks.len()
            );
        }
    }
}

/// The records of a stream with their payloads.
pub fn parts(stream: &[u8]) -> Vec<(Record, Vec<u8>)> {
    let (mut reader, mut rest, mut out) = (StreamReader::without_sums(), stream, Vec::new());
    while let Some((head, tail)) = rest.split_first_chunk::<RECORD_SIZE>() {
        let frame = reader.record(head).unwrap();
        let (payload, tail) = tail.split_at(reader.payload_left() as usize);
        reader.payload(payload);
        out.push((frame.record, payload.to_vec()));
        rest = tail;
    }
    out
}

/// A stream of these records, with right sums.
pub fn joined(parts: &[(Record, Vec<u8>)]) -> Vec<u8> {
    let mut writer = StreamWriter::new(Endian::Little);
    let mut out = Vec::new();
    for (record, payload) in parts {
        out.extend(writer.record(record, payload));
        out.extend(payload);
    }
    out
}

/// The records without what depends on the pool that sends: names, and the checksums of blocks.
pub fn portable(stream: &[u8]) -> Vec<(Record, Vec<u8>)> {
    let mut parts = parts(stream);
    for (record, _) in &mut parts {
        match record {
            Record::Begin(begin) => begin.to_name = Vec::new(),
            Record::Write(w) => (w.key, w.key_prop, w.checksum_type, w.flags) = Default::default(),
            Record::End(End { checksum, .. }) => *checksum = Checksum::default(),
            _ => {}
        }
    }
    parts
}

/// Asserts that two streams have the same records, but for [`portable`].
pub fn assert_alike(what: &str, a: &[u8], b: &[u8]) {
    let (a, b) = (portable(a), portable(b));
    for (n, (x, y)) in a.iter().zip(&b).enumerate() {
        assert!(x.0 == y.0, "{what}: record {n}: {:?} and {:?}", x.0, y.0);
        assert!(x.1 == y.1, "{what}: the payloads of record {n}, {:?}, differ", x.0);
    }
    assert_eq!(a.len(), b.len(), "{what}: records");
}

/// What a sender makes of a token.
pub async fn rest(pool: &Pool, token: &Token) -> Vec<u8> {
    let mut sink = Collect::default();
    let found = pool.dsl().find_token(token, SendOpts::default()).await.unwrap();
    pool.dsl().send_found(&found, &mut sink).await.unwrap();
    sink.0
}

/// The part of `stream` that is still to come after a receive stopped at that place: what a sender
/// makes of a token.
pub fn resumed(stream: &[u8], object: u64, offset: u64) -> Vec<u8> {
    let mut out = Vec::new();
    for (record, payload) in parts(stream) {
        let keep = match &record {
            Record::Begin(_) | Record::End(_) => true,
            Record::Object(o) => o.object.0 >= object,
            Record::FreeObjects(f) => f.first.0 > object,
            Record::Write(w) => (w.object.0, w.offset) >= (object, offset),
            Record::WriteEmbedded(w) => (w.to.object.0, w.to.offset) >= (object, offset),
            Record::Free(f) => (f.object.0, f.offset) >= (object, offset),
            Record::Spill(s) => s.object.0 >= object,
            Record::ObjectRange(r) => r.first.0 + 32 > object,
            other => panic!("{other:?}"),
        };
        if !keep {
            continue;
        }
        match record {
            Record::Begin(begin) => {
                let list = if payload.is_empty() {
                    ondisk::nvlist::NvList::new()
                } else {
                    ondisk::nvlist::NvList::decode(&payload).unwrap()
                };
                let list = list
                    .with("resume_object", ondisk::nvlist::NvValue::Uint64(object))
                    .with("resume_offset", ondisk::nvlist::NvValue::Uint64(offset))
                    .encode_native();
                let has = begin.features() | features::RESUMING;
                let begin = Begin { payload_len: list.len() as u32, ..begin }.with_features(has);
                out.push((Record::Begin(begin), list));
            }
            record => out.push((record, payload)),
        }
    }
    joined(&out)
}

/// Changes a file system at random.
pub async fn scribble(zfs: &Zfs, rng: &mut Rng, steps: usize) {
    let cred = Cred::default();
    for _ in 0..steps {
        let name = format!("f{}", rng.below(24)).into_bytes();
        let found = zfs.lookup(zfs.root(), &name).await.ok();
        match (rng.below(10), found) {
            (0, Some(_)) => {
                let _ = zfs.unlink(zfs.root(), &name).await;
                let _ = zfs.rmdir(zfs.root(), &name).await;
            }
            (_, None) => match rng.below(5) {
                0 => drop(zfs.mkdir(zfs.root(), &name, 0o755, &cred).await.unwrap()),
                1 => {
                    let target = vec![b'x'; 1 + rng.below(900) as usize];
                    zfs.symlink(zfs.root(), &name, &target, &cred).await.unwrap();
                }
                _ => write(zfs, rng, &name).await,
            },
            (1, Some(found)) => {
                let size = rng.below(600_000);
                let _ = zfs.truncate(found.obj, size).await;
            }
            (2, Some(found)) => {
                let (at, len) = (rng.below(300_000), 1 + rng.below(400_000));
                let _ = zfs.fallocate(found.obj, Fallocate::PunchHole, at, len).await;
            }
            (3, Some(found)) => {
                let name = format!("user.{}", rng.below(6)).into_bytes();
                let value = vec![rng.below(256) as u8; 1 + rng.below(3000) as usize];
                let _ = zfs.setxattr(found.obj, &name, &value, SetXattr::Any).await;
            }
            (4, Some(found)) => {
                let name = format!("user.{}", rng.below(6)).into_bytes();
                let _ = zfs.removexattr(found.obj, &name).await;
            }
            (5, Some(found)) => {
                for n in 0..rng.below(200) {
                    let name = format!("entry {n} {}", rng.below(1000)).into_bytes();
                    let _ = zfs.create(found.obj, &name, 0o644, &cred, true).await;
                }
            }
            (_, Some(_)) => write(zfs, rng, &name).await,
        }
    }
}

async fn write(zfs: &Zfs, rng: &mut Rng, name: &[u8]) {
    let file = match zfs.lookup(zfs.root(), name).await {
        Ok(found) => found.obj,
        Err(_) => zfs.create(zfs.root(), name, 0o644, &Cred::default(), true).await.unwrap().obj,
    };
    let len = match rng.below(4) {
        0 => 1 + rng.below(100),
        1 => 1 + rng.below(5000),
        _ => 1 + rng.below(700_000),
    };
    let mut data = vec![0; len as usize];
    match rng.below(3) {
        0 => rng.fill(&mut data),
        1 => data.fill(7),
        _ => {
            let half = data.len() / 2;
            rng.fill(&mut data[..half]);
        }
    }
    let at = if rng.percent(10) { rng.below(1 << 34) } else { rng.below(4) * 70_000 };
    // A folder cannot be written to.
    let _ = zfs.write(file, at, vec![Bytes::copy_from(&data)], false).await;
}
