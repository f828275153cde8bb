//! Streams against those of a kernel: the pool `streams` of the collection has snapshots and the
//! streams that the kernel made of them, and weir's streams are the same bytes.
//!
//! The pools are in `../shared/pools` beside the project; without them a test says NOT RUN.

use std::future::Future;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::OnceLock;

use base::{ErrorKind, Guid, ObjectId};
use bdev::{BlockDev, Bytes};
use dsl::props::PropValue;
use dsl::send::{PackageOpts, SendOpts};
use ondisk::nvlist::NvList;
use ondisk::stream::record::{Begin, Range};
use ondisk::stream::{RECORD_SIZE, Record, StreamReader, Token, features};
use sim::{DiskImage, Model, Sim, SimConfig, SimDisk};
use spa::{ImportOpts, Pool};
use zpl::{Cred, MountOpts, Zfs};

use crate::common::{POOL, World};

use crate::streams::{Collect, unpack};

/// The unpacked pool, once for all tests; `None`, with a message, if that is impossible here.
fn unpacked() -> Option<PathBuf> {
    static ONCE: OnceLock<Option<PathBuf>> = OnceLock::new();
    ONCE.get_or_init(unpack).clone()
}

/// The first place where two streams differ, in words.
fn difference(ours: &[u8], theirs: &[u8]) -> Option<String> {
    if ours == theirs {
        return None;
    }
    let (mut a, mut b, mut at) = (StreamReader::without_sums(), StreamReader::without_sums(), 0);
    loop {
        let record = |reader: &mut StreamReader, bytes: &[u8], at: usize| {
            let head = bytes.get(at..at + RECORD_SIZE)?.try_into().unwrap();
            let frame = reader.record(head).unwrap();
            let len = reader.payload_left() as usize;
            let payload = bytes[at + RECORD_SIZE..at + RECORD_SIZE + len].to_vec();
            reader.payload(&payload);
            Some((frame.record, payload))
        };
        let (x, y) = (record(&mut a, ours, at), record(&mut b, theirs, at));
        if x != y {
            let name = |r: &Option<(ondisk::stream::Record, Vec<u8>)>| r.as_ref().map(|r| format!("{:?}", r.0));
            return Some(format!("at byte {at}: {:?} is to be {:?}", name(&x), name(&y)));
        }
        at += RECORD_SIZE + x.map_or(0, |r| r.1.len());
    }
}

/// Runs a test on the unpacked pool, which is imported read-only.
fn with_reference<F: Future<Output = ()>>(test: impl FnOnce(Rc<Pool>, PathBuf) -> F) {
    let Some(dir) = unpacked() else { return };
    let image = DiskImage::load(dir.join("d0.img")).unwrap();
    let sim = Sim::new(SimConfig::seeded(1));
    let disk = SimDisk::from_image(&sim.handle(), image, Model::random(), 1);
    sim.block_on(async {
        let devices: Vec<Rc<dyn BlockDev>> = vec![disk.dev()];
        let candidate = spa::scan(devices).await.remove(0);
        let import = ImportOpts { readonly: true, ..ImportOpts::default() };
        let pool = Pool::import(sim.rt(), candidate, import, spa::EngineOpts::for_memory(256 << 20)).await.unwrap();
        test(pool, dir).await;
    });
}

async fn sent(pool: &Pool, to: &str, from: Option<&str>, opts: SendOpts) -> Vec<u8> {
    let mut sink = Collect::default();
    let sent = pool.dsl().send(to, from, opts, &mut sink).await.unwrap();
    assert_eq!(sent.bytes, sink.0.len() as u64);
    sink.0
}

/// The records of a stream with their payloads, whose sums are checked; without END if it is not
/// `complete`.
fn records(stream: &[u8], complete: bool) -> Vec<(Record, Vec<u8>)> {
    let (mut reader, mut rest, mut out) = (StreamReader::new(), stream, Vec::new());
    while let Some((head, tail)) = rest.split_first_chunk::<RECORD_SIZE>() {
        let record = reader.record(head).unwrap().record;
        let (payload, tail) = tail.split_at(reader.payload_left() as usize);
        reader.payload(payload);
        rest = tail;
        out.push((record, payload.to_vec()));
    }
    assert_eq!(reader.end().is_ok(), complete);
    out
}

#[test]
fn streams_are_those_of_a_kernel() {
    with_reference(|pool, dir| async move {
        let mut out = Vec::new();
        let compressed = SendOpts { compressed: true, embedded: true, ..SendOpts::default() };
        for (file, to, from, opts) in [
            ("full", "str/src@1", None, SendOpts::default()),
            ("incremental", "str/src@2", Some("str/src@1"), SendOpts::default()),
            ("compressed", "str/src@1", None, compressed),
            ("raw", "str/enc@1", None, SendOpts { raw: true, ..SendOpts::default() }),
        ] {
            let ours = sent(&pool, to, from, opts).await;
            let theirs = std::fs::read(dir.join(format!("{file}.zstream"))).unwrap();
            out.extend(difference(&ours, &theirs).map(|d| format!("{file}: {d}")));
        }
        assert!(out.is_empty(), "{}", out.join("\n"));
    });
}

/// Where a record stands in a stream: object and offset.
fn place(record: &Record) -> Option<(u64, u64)> {
    Some(match record {
        Record::Object(r) => (r.object.0, 0),
        Record::Write(r) => (r.object.0, r.offset),
        Record::WriteEmbedded(r) => (r.to.object.0, r.to.offset),
        Record::Free(Range { object, offset, .. }) => (object.0, *offset),
        _ => return None,
    })
}

#[test]
fn a_token_gives_the_rest_of_a_stream() {
    with_reference(|pool, _| async move {
        let dsl = pool.dsl();
        for (to, from) in [("str/src@1", None), ("str/src@3", Some("str/src@1"))] {
            let whole = records(&sent(&pool, to, from, SendOpts::default()).await, true);
            let Record::Begin(begin) = whole[0].0.clone() else { panic!("{:?}", whole[0].0) };
            let writes: Vec<(u64, u64)> = whole
                .iter()
                .filter_map(|(r, _)| if let Record::Write(w) = r { Some((w.object.0, w.offset)) } else { None })
                .collect();
            for at in [0, 1, writes.len() / 3, writes.len() / 2, writes.len() - 1] {
                let (object, offset) = writes[at];
                let token = Token {
                    from_guid: Some(begin.from_guid).filter(|g| g.0 != 0),
                    object: ObjectId(object),
                    offset,
                    bytes: 1000,
                    to_guid: begin.to_guid,
                    // Found by its guid in the file system, whose received copies have it, too.
                    to_name: "str/src@renamed-since".into(),
                    ..Token::default()
                };
                let found = dsl.find_token(&token, SendOpts::default()).await.unwrap();
                assert_eq!((found.name.as_str(), found.from.as_deref()), (to, from));
                let mut sink = Collect::default();
                dsl.send_found(&found, &mut sink).await.unwrap();
                let rest = records(&sink.0, true);
                let (Record::Begin(head), list) = &rest[0] else { panic!("{:?}", rest[0].0) };
                assert_eq!(head.features(), begin.features() | features::RESUMING);
                assert_eq!((head.to_guid, head.from_guid), (begin.to_guid, begin.from_guid));
                let list = NvList::decode(list).unwrap();
                assert_eq!(list.names().collect::<Vec<_>>(), ["resume_object", "resume_offset"]);
                assert_eq!((list.u64("resume_object"), list.u64("resume_offset")), (Some(object), Some(offset)));
                // All that comes after that place, and the object's own records again. The first
                // FREE may join others that were sent before.
                let data = |records: &[(Record, Vec<u8>)]| -> Vec<(Record, Vec<u8>)> {
                    let is = |r: &Record| matches!(r, Record::Write(_) | Record::WriteEmbedded(_) | Record::Object(_));
                    records.iter().filter(|(r, _)| is(r)).cloned().collect()
                };
                let mut want = data(&whole);
                want.retain(|(r, _)| {
                    let of_object = matches!(r, Record::Object(o) if o.object.0 == object);
                    of_object || place(r).is_some_and(|p| p >= (object, offset))
                });
                assert!(data(&rest) == want, "{to} from {object}/{offset}");
                let frees = |records: &[(Record, Vec<u8>)]| {
                    records.iter().filter(|(r, _)| matches!(r, Record::Free(_))).count()
                };
                assert!(frees(&rest) <= frees(&whole) + 1);
            }
        }
        let gone = Token { to_guid: Guid(1), to_name: "str/src@1".into(), ..Token::default() };
        let e = dsl.find_token(&gone, SendOpts::default()).await.err().unwrap();
        assert!(e.to_string().ends_with("'str/src@1' is no longer the same snapshot used in the initial send"), "{e}");
        let gone = Token { to_name: "str/src@9".into(), ..gone };
        let e = dsl.find_token(&gone, SendOpts::default()).await.err().unwrap();
        assert_eq!(e.to_string(), "cannot resume send: 'str/src@9' used in the initial send no longer exists");
    });
}

/// What a kernel received in part is sent on as it is.
#[test]
fn saved_states_are_sent() {
    with_reference(|pool, _| async move {
        let dsl = pool.dsl();
        for (fs, of, from) in [("str/half", "str/src@1", None), ("str/full", "str/src@3", Some("str/full@2"))] {
            let (found, token) = dsl.find_saved(fs).await.unwrap();
            assert_eq!((found.name.as_str(), found.from.as_deref()), (fs, from));
            assert_eq!(token.to_name, of);
            let mut sink = Collect::default();
            dsl.send_found(&found, &mut sink).await.unwrap();
            let saved = records(&sink.0, false);
            let Record::Begin(begin) = &saved[0].0 else { panic!("{:?}", saved[0].0) };
            let snap = dsl.find_snapshot(of).await.unwrap().phys();
            assert_eq!((begin.to_guid.0, begin.to_name.as_slice()), (snap.guid, of.as_bytes()));
            assert_eq!((begin.from_guid, begin.flags & 1), (token.from_guid.unwrap_or(Guid(0)), 0));
            // Files that are complete have the bytes of the source.
            let start = if from.is_some() { Some("str/src@2") } else { None };
            let source = records(&sent(&pool, of, start, SendOpts::default()).await, true);
            let writes = |records: &[(Record, Vec<u8>)]| -> Vec<(u64, u64, Vec<u8>)> {
                let write = |(r, payload): &(Record, Vec<u8>)| match r {
                    Record::Write(w) if w.object_type == 19 && w.object.0 < token.object.0 => {
                        Some((w.object.0, w.offset, payload.clone()))
                    }
                    _ => None,
                };
                records.iter().filter_map(write).collect()
            };
            assert!(writes(&saved) == writes(&source), "{fs}");
            assert!(from.is_some() || !writes(&saved).is_empty());
        }
        for (fs, kind) in [("str/src", ErrorKind::NotFound), ("str/nothing", ErrorKind::NotFound)] {
            assert_eq!(dsl.find_saved(fs).await.err().unwrap().kind(), kind, "{fs}");
        }
    });
}

/// The names of the streams in a package, each compared with that of the snapshot alone.
async fn check_package(pool: &Pool, to: &str, from: Option<&str>, opts: &PackageOpts) -> (NvList, String) {
    let dsl = pool.dsl();
    let package = dsl.package(to, from, opts).await.unwrap();
    let send = SendOpts { raw: opts.raw, ..SendOpts::default() };
    let mut sink = Collect::default();
    let all = dsl.send_package(&package, send, &mut sink).await.unwrap();
    assert_eq!(all.bytes, sink.0.len() as u64);
    let whole = records(&sink.0, true);
    assert_eq!(all.records, whole.len() as u64);
    let (Record::Begin(begin), list) = &whole[0] else { panic!("{:?}", whole[0].0) };
    let has =
        Begin { payload_len: list.len() as u32, version_info: Begin::PACKAGE, to_name: to.into(), ..Begin::default() };
    assert_eq!(*begin, has.with_features(if opts.holds { features::HOLDS } else { 0 }));
    let mut at = 2 * RECORD_SIZE + list.len();
    for step in &package.steps {
        let alone = sent(pool, &step.name, step.from.as_deref(), send).await;
        assert!(sink.0[at..at + alone.len()] == alone, "{}", step.name);
        at += alone.len();
    }
    // The last END is empty.
    let mut end = [0; RECORD_SIZE];
    end[0] = 5;
    assert_eq!(sink.0[at..], end);
    let steps: Vec<String> =
        package.steps.iter().map(|s| format!("{}>{}", s.from.as_deref().unwrap_or("full"), s.name)).collect();
    let list = if list.is_empty() { NvList::new() } else { NvList::decode(list).unwrap() };
    (list, steps.join(" "))
}

/// The tree that a kernel replicated: its copy says what must have been sent.
#[test]
fn a_tree_of_a_kernel_is_packed() {
    with_reference(|pool, _| async move {
        let replicate = PackageOpts { replicate: true, ..PackageOpts::default() };
        let (list, steps) = check_package(&pool, "str/tree@q", None, &replicate).await;
        // The kernel received its streams one after the other: the copies' births tell their order.
        let dsl = pool.dsl();
        let of = |fs: &str, steps: &str| (dsl.find(fs).unwrap().phys().creation_txg, steps.to_string());
        let mut order = [
            of("str/copy", "full>str/tree@r str/tree@r>str/tree@q"),
            of("str/copy/a", "full>str/tree/a@r str/tree/a@r>str/tree/a@q"),
            of("str/copy/b", "full>str/tree/b@r str/tree/b@r>str/tree/b@q"),
            of("str/copy/c", "str/tree/a@r>str/tree/c@q"),
        ];
        order.sort();
        assert_eq!(steps, order.map(|(_, steps)| steps).join(" "));
        let fss = list.list("fss").unwrap();
        for (key, entry) in fss.iter() {
            let ondisk::nvlist::NvValue::List(entry) = entry else { panic!("{key}") };
            let name = entry.str("name").unwrap();
            let head = dsl.find(name).unwrap();
            assert_eq!(key, format!("{:#x}", head.phys().guid));
            // The copy has the same snapshots by guid, since a receive keeps them.
            let copy = dsl.find(&name.replace("str/tree", "str/copy")).unwrap();
            let guids: Vec<(String, u64)> =
                dsl.snapshots(&copy).await.unwrap().iter().map(|s| (s.snapname(), s.phys().guid)).collect();
            let snaps = entry.list("snaps").unwrap();
            let sent: Vec<(String, u64)> = snaps.names().map(|n| (n.to_string(), snaps.u64(n).unwrap())).collect();
            assert_eq!(sent, guids, "{name}");
            let origin = dsl.origin_of(&head).await.unwrap().map(|o| o.phys().guid);
            assert_eq!(entry.u64("origin"), origin);
            // Its received properties are those of the list.
            let received =
                copy.dir().local_props().into_keys().filter_map(|k| k.strip_suffix("$recvd").map(str::to_string));
            let props = entry.list("props").unwrap();
            assert_eq!(props.names().map(str::to_string).collect::<Vec<_>>(), received.collect::<Vec<_>>(), "{name}");
        }
        let since = PackageOpts { replicate: true, ..PackageOpts::default() };
        let (list, steps) = check_package(&pool, "str/tree@q", Some("str/tree@r"), &since).await;
        assert!(steps.contains("str/tree/a@r>str/tree/c@q") && !steps.contains("full"), "{steps}");
        assert_eq!(list.str("fromsnap"), Some("r"));
        let (list, steps) =
            check_package(&pool, "str/src@3", Some("str/src@1"), &PackageOpts { all: true, ..Default::default() })
                .await;
        assert!(list.is_empty());
        assert_eq!(steps, "str/src@1>str/src@2 str/src@2>str/src@3");
        let raw = PackageOpts { replicate: true, raw: true, ..PackageOpts::default() };
        let (list, _) = check_package(&pool, "str/enc@2", None, &raw).await;
        let fss = list.list("fss").unwrap();
        let entry = fss.list(fss.names().next().unwrap()).unwrap();
        assert_eq!(
            entry.names().collect::<Vec<_>>(),
            ["name", "parentfromsnap", "props", "is_encroot", "snaps", "snapprops"]
        );
        assert_eq!(entry.list("props").unwrap().str("keylocation"), Some("prompt"));
        let e = dsl.package("str/enc@2", None, &PackageOpts { props: true, ..Default::default() }).await.err().unwrap();
        assert_eq!(e.kind(), ErrorKind::Denied);
    });
}

#[test]
fn properties_and_holds_of_a_new_tree_are_packed() {
    let world = World::new(5, 1);
    world.sim.block_on(async {
        let pool = world.create().await;
        let dsl = pool.dsl();
        let (fs, child) = (format!("{POOL}/fs"), format!("{POOL}/fs/child"));
        let props =
            vec![("compression".to_string(), PropValue::Num(15)), ("org:x".into(), PropValue::Text("y".into()))];
        dsl.create_fs(&fs, props, world.new_fs()).await.unwrap();
        dsl.create_fs(&child, Vec::new(), world.new_fs()).await.unwrap();
        let zfs = Zfs::open(&dsl.find(&fs).unwrap(), MountOpts::default()).await.unwrap();
        for n in 0..3 {
            let name = format!("f{n}").into_bytes();
            let file = zfs.create(zfs.root(), &name, 0o644, &Cred::default(), true).await.unwrap().obj;
            zfs.write(file, 0, vec![Bytes::copy_from(&[n; 70_000])], false).await.unwrap();
            let user = vec![("org:n".to_string(), PropValue::Text(n.to_string()))];
            dsl.snapshot(vec![format!("{fs}@s{n}")], true, user).await.unwrap();
        }
        dsl.hold("keep", vec![format!("{fs}@s1")], false).await.unwrap();
        let clone = format!("{POOL}/clone");
        dsl.clone_snapshot(&format!("{child}@s1"), &clone, Vec::new()).await.unwrap();
        dsl.snapshot(vec![format!("{clone}@s2")], false, Vec::new()).await.unwrap();
        let opts = PackageOpts { replicate: true, holds: true, ..PackageOpts::default() };
        let (list, steps) = check_package(&pool, &format!("{fs}@s2"), Some(&format!("{fs}@s0")), &opts).await;
        assert_eq!(steps, "tank/fs@s0>tank/fs@s2 tank/fs/child@s0>tank/fs/child@s2");
        let fss = list.list("fss").unwrap();
        let entry = fss.list(&format!("{:#x}", dsl.find(&fs).unwrap().phys().guid)).unwrap();
        let props = entry.list("props").unwrap();
        assert_eq!((props.u64("compression"), props.str("org:x")), (Some(15), Some("y")));
        assert_eq!(entry.list("snapprops").unwrap().list("s1").unwrap().str("org:n"), Some("1"));
        let holds = entry.list("snapholds").unwrap();
        assert_eq!(holds.list("s1").unwrap().names().collect::<Vec<_>>(), ["keep"]);
        assert!(holds.list("s0").unwrap().is_empty());
        // Since the origin of a clone, and one with properties since a bookmark.
        let all = PackageOpts { all: true, ..PackageOpts::default() };
        let (_, steps) = check_package(&pool, &format!("{clone}@s2"), Some(&format!("{child}@s1")), &all).await;
        assert_eq!(steps, "tank/fs/child@s1>tank/clone@s2");
        dsl.create_bookmark(&format!("{fs}@s0"), &format!("{fs}#m")).await.unwrap();
        let one = PackageOpts { props: true, ..PackageOpts::default() };
        let (_, steps) = check_package(&pool, &format!("{fs}@s2"), Some(&format!("{fs}#m")), &one).await;
        assert_eq!(steps, "tank/fs#m>tank/fs@s2");
        // A bookmark in a clone, of its origin; not of a snapshot that came after that.
        let origin = dsl.create_bookmark(&format!("{child}@s1"), &format!("{clone}#origin")).await;
        origin.expect("the clone developed from it");
        let (_, steps) = check_package(&pool, &format!("{clone}@s2"), Some(&format!("{clone}#origin")), &one).await;
        assert_eq!(steps, "tank/clone#origin>tank/clone@s2");
        let later = dsl.create_bookmark(&format!("{child}@s2"), &format!("{clone}#later")).await;
        assert_eq!(later.unwrap_err().kind(), ErrorKind::Invalid);
        dsl.create_bookmark(&format!("{child}@s1"), &format!("{child}#old")).await.unwrap();
        dsl.create_bookmark(&format!("{child}@s2"), &format!("{child}#new")).await.unwrap();
        dsl.create_bookmark(&format!("{child}#old"), &format!("{clone}#copy")).await.expect("of the origin");
        let (_, steps) = check_package(&pool, &format!("{clone}@s2"), Some(&format!("{clone}#copy")), &one).await;
        assert_eq!(steps, "tank/clone#copy>tank/clone@s2");
        let later = dsl.create_bookmark(&format!("{child}#new"), &format!("{clone}#later")).await;
        assert_eq!(later.unwrap_err().kind(), ErrorKind::Invalid);
        // A planned package keeps its snapshots.
        let package = dsl.package(&format!("{fs}@s2"), None, &opts).await.unwrap();
        let busy = dsl.destroy_snapshots(vec![format!("{fs}@s0")], false).await;
        assert_eq!(busy.unwrap_err().kind(), ErrorKind::Busy);
        let sizes = dsl.package_sizes(&package, SendOpts::default()).await.unwrap();
        assert_eq!(sizes.len(), package.steps.len());
        drop(package);
        dsl.destroy_snapshots(vec![format!("{fs}@s0")], false).await.unwrap();
        for (to, from, kind) in [
            ("tank/fs@no", None, ErrorKind::NotFound),
            ("tank/fs@s2", Some("tank/fs@no"), ErrorKind::NotFound),
            ("tank/fs@s2", Some("tank/clone@s2"), ErrorKind::Invalid),
        ] {
            assert_eq!(dsl.package(to, from, &all).await.err().unwrap().kind(), kind, "{to} {from:?}");
        }
        zfs.unmount().await.unwrap();
        pool.export().await.unwrap();
    });
}
