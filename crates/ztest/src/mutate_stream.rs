//! Damaged streams: what is received is a whole snapshot or nothing.
//!
//! A victim is a pool that has the snapshots that increments start from, one of them encrypted and
//! received raw, and a handful of recorded streams. One of these is damaged: bits and pieces of it
//! without regard to its sums, or its records (fields, lengths, order, payloads, other streams'
//! records, the byte order) with right sums. Then the pool is imported and receives it.
//!
//! The campaign looks for a panic, a receive that does not end, memory without bound, an error
//! without a place, anything that is seen of a snapshot after an error, a hidden dataset that
//! stays, and a pool that is not whole afterwards: the undamaged stream must still be received.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use base::{Nanos, Result};
use codec::checksum::{Checksum, Endian};
use codec::fletcher::fletcher4_update;
use dsl::Dataset;
use dsl::crypto::{KeyFormat, KeyMaterial, NewCrypt, NewKey};
use dsl::receive::{RECV, ReceiveOpts};
use dsl::send::SendOpts;
use ondisk::stream::{RECORD_SIZE, Record, SUM_AT, StreamReader};
use sim::{DiskImage, Rng};
use spa::Pool;
use zpl::{Cred, MountOpts, SetXattr, Zfs};

use crate::campaign::panic_text;
use crate::lab::{Lab, Layout, POOL, new_fs};
use crate::mutate::{STEPS_MAX, memory_fault, memory_peak, noise};
use crate::receives::{Collect, Feed, Objects, objects_of, receive, within};
use crate::{Check, Fault, snaps};

/// Virtual time that one damaged stream may take: txgs take five seconds each.
const SPAN_MAX: Nanos = Nanos::from_secs(3600);
/// Virtual time in which all requests in flight end.
const SETTLE_SPAN: Nanos = Nanos::from_secs(10);
/// Mutations after which the devices go to the checker, if the damaged stream was not received:
/// what is in that need not be a file system.
const CHECK_EVERY: u64 = 16;
/// The longest payload that a record gets.
const PAYLOAD_MAX: u64 = 1 << 20;
const KEY: &[u8; 32] = b"0123456789abcdefFEDCBA9876543210";

/// A recorded stream.
struct Recorded {
    /// What it is received as.
    target: &'static str,
    bytes: Vec<u8>,
    parts: Vec<Part>,
    /// What the snapshot has, if that can be read without a key.
    objects: Option<Objects>,
}

/// The bytes of a record, and its payload.
type Part = ([u8; RECORD_SIZE], Vec<u8>);

/// A pool that receives, and the streams.
pub struct StreamVictim {
    images: Vec<DiskImage>,
    layout: Layout,
    streams: Vec<Recorded>,
    /// Seeds it.
    pub seed: u64,
}

/// Counts of the outcomes.
#[derive(Clone, Copy, Default, Debug)]
pub struct StreamTally {
    /// Mutations.
    pub mutations: u64,
    /// The stream was refused.
    pub refused: u64,
    /// A part was received, and is kept for resuming.
    pub kept: u64,
    /// It was received.
    pub received: u64,
    /// Findings.
    pub bad: u64,
}

fn split(stream: &[u8]) -> Check<Vec<Part>> {
    let (mut reader, mut rest, mut out) = (StreamReader::without_sums(), stream, Vec::new());
    while let Some((head, tail)) = rest.split_first_chunk::<RECORD_SIZE>() {
        reader.record(head).map_err(|e| e.to_string())?;
        let (payload, tail) = tail.split_at(reader.payload_left() as usize);
        reader.payload(payload);
        out.push((*head, payload.to_vec()));
        rest = tail;
    }
    Ok(out)
}

/// A stream of these records, with right sums.
fn join(parts: &[Part], order: Endian) -> Vec<u8> {
    let (mut out, mut sum, big) = (Vec::new(), Checksum::default(), order == Endian::Big);
    for (head, payload) in parts {
        let mut bytes = match Record::decode(head, Endian::Little) {
            Ok(Record::End(end)) => Record::End(ondisk::stream::record::End { checksum: sum, ..end }).encode(order),
            Ok(record) => record.encode(order),
            Err(_) => *head,
        };
        let is_begin = bytes[..4] == [0; 4];
        if is_begin {
            sum = Checksum::default();
            fletcher4_update(&mut sum, &bytes, big);
        } else {
            fletcher4_update(&mut sum, &bytes[..SUM_AT], big);
            for (n, word) in sum.0.iter().enumerate() {
                let word = if big { word.to_be_bytes() } else { word.to_le_bytes() };
                bytes[SUM_AT + n * 8..SUM_AT + n * 8 + 8].copy_from_slice(&word);
            }
            fletcher4_update(&mut sum, &bytes[SUM_AT..], big);
        }
        fletcher4_update(&mut sum, &payload[..payload.len() & !3], big);
        out.extend(bytes);
        out.extend(payload);
    }
    out
}

/// Files of all kinds, small ones.
async fn fill(zfs: &Zfs, rng: &mut Rng) -> Result<()> {
    let cred = Cred::default();
    for n in 0..14 {
        let name = format!("f{}", rng.below(20)).into_bytes();
        if rng.percent(15) {
            let _ = zfs.unlink(zfs.root(), &name).await;
            let _ = zfs.rmdir(zfs.root(), &name).await;
        }
        let found = zfs.lookup(zfs.root(), &name).await.ok();
        if n % 7 == 3 && found.is_none() {
            let dir = zfs.mkdir(zfs.root(), &name, 0o755, &cred).await?.obj;
            for k in 0..rng.below(60) {
                let _ = zfs.create(dir, format!("a name of some length {k}").as_bytes(), 0o644, &cred, true).await?;
            }
            continue;
        }
        let obj = match found {
            Some(found) => found.obj,
            None => zfs.create(zfs.root(), &name, 0o644, &cred, true).await?.obj,
        };
        let mut data = vec![7; [60, 3000, 40_000, 300_000][rng.below(4) as usize]];
        let random = data.len() / 3;
        rng.fill(&mut data[..random]);
        let _ = zfs.write(obj, rng.below(3) * 65_536, vec![bdev::Bytes::copy_from(&data)], false).await;
        if rng.percent(40) {
            let _ = zfs.setxattr(obj, b"user.a", &vec![3; 1 + rng.below(2000) as usize], SetXattr::Any).await;
        }
    }
    Ok(())
}

fn letters(text: &str) -> SendOpts {
    let has = |letter| text.contains(letter);
    SendOpts { large_blocks: has('L'), embedded: has('e'), compressed: has('c'), raw: has('w') }
}

/// The streams that are damaged: of which snapshot, since which one, with which letters, to where.
const STREAMS: [(&str, Option<&str>, &str, &str); 7] = [
    ("lab/plain@a", None, "", "lab/new@a"),
    ("lab/plain@a", None, "ecL", "lab/new@a"),
    ("lab/plain@b", Some("lab/plain@a"), "", "lab/base@b"),
    ("lab/plain@b", Some("lab/plain@a"), "ecL", "lab/base@b"),
    ("lab/clone@c", Some("lab/plain@a"), "c", "lab/new@c"),
    ("lab/secret@a", None, "w", "lab/new@a"),
    ("lab/secret@b", Some("lab/secret@a"), "w", "lab/locked@b"),
];

impl StreamVictim {
    /// Makes both pools and records the streams.
    pub fn new(seed: u64) -> Check<StreamVictim> {
        let mut rng = Rng::stream(seed, 0x57e);
        let mut layout = Layout::draw(&mut rng, 96 << 20);
        layout.features = ondisk::feature::features_of_2_1();
        let from = Lab::new(seed, &layout);
        let streams = within(&from, async {
            let pool = from.create(&layout, Vec::new()).await?;
            let streams = record(&from, &pool, &mut rng).await?;
            pool.export().await?;
            Ok(streams)
        })?;
        let to = Lab::new(seed ^ 0xfeed, &layout);
        let bases = [("lab/base@a", &streams[0].0), ("lab/locked@a", &streams[5].0)];
        within(&to, async {
            let pool = to.create(&layout, Vec::new()).await?;
            for (target, bytes) in bases {
                receive(&pool, target, &mut Feed::whole(bytes), ReceiveOpts::default()).await?;
            }
            pool.export().await
        })?;
        let recorded = STREAMS
            .iter()
            .zip(streams)
            .map(|((.., target), (bytes, objects))| Ok(Recorded { target, parts: split(&bytes)?, bytes, objects }));
        Ok(StreamVictim { images: to.images(), layout, streams: recorded.collect::<Check<_>>()?, seed })
    }
}

/// Fills the pool that sends, and sends.
async fn record(lab: &Lab, pool: &Rc<Pool>, rng: &mut Rng) -> Result<Vec<(Vec<u8>, Option<Objects>)>> {
    let dsl = pool.dsl();
    let material = KeyMaterial::new(KEY);
    let key = NewKey { format: KeyFormat::Raw, material, iters: None, location: "prompt".into() };
    let crypt = NewCrypt { suite: Some(Some(codec::crypto::Suite::Aes256Gcm)), key: Some(key) };
    dsl.create_fs(&format!("{POOL}/plain"), Vec::new(), new_fs(&lab.sim)).await?;
    dsl.create_fs_encrypted(&format!("{POOL}/secret"), Vec::new(), crypt, new_fs(&lab.sim)).await?;
    for fs in ["plain", "secret"] {
        let zfs = Zfs::open(&dsl.find(&format!("{POOL}/{fs}"))?, MountOpts::default()).await?;
        for name in ["a", "b"] {
            fill(&zfs, rng).await?;
            pool.sync().await?;
            dsl.snapshot(vec![format!("{POOL}/{fs}@{name}")], false, Vec::new()).await?;
        }
        zfs.unmount().await?;
    }
    dsl.clone_snapshot(&format!("{POOL}/plain@a"), &format!("{POOL}/clone"), Vec::new()).await?;
    let zfs = Zfs::open(&dsl.find(&format!("{POOL}/clone"))?, MountOpts::default()).await?;
    fill(&zfs, rng).await?;
    zfs.unmount().await?;
    pool.sync().await?;
    dsl.snapshot(vec![format!("{POOL}/clone@c")], false, Vec::new()).await?;
    let mut out = Vec::new();
    for (name, from, how, _) in STREAMS {
        let mut sink = Collect::default();
        dsl.send(name, from, letters(how), &mut sink).await?;
        let objects = match how {
            "w" => None,
            _ => Some(objects_of(&*dsl.find_snapshot(name).await?).await?),
        };
        out.push((sink.0, objects));
    }
    Ok(out)
}

/// Damage without regard to sums.
fn damaged_bytes(rng: &mut Rng, stream: &[u8]) -> (Vec<u8>, String) {
    let mut out = stream.to_vec();
    let len = out.len() as u64;
    let what = match rng.below(5) {
        0 => {
            out.truncate(rng.below(len) as usize);
            format!("cut to {} bytes", out.len())
        }
        1 => {
            let from = rng.below(len) as usize;
            let upto = (from + 1 + rng.below(5000) as usize).min(out.len());
            out.drain(from..upto);
            format!("bytes {from}..{upto} taken out")
        }
        2 => {
            let from = rng.below(len) as usize;
            let upto = (from + 1 + rng.below(5000) as usize).min(out.len());
            let piece = out[from..upto].to_vec();
            let at = rng.below(len) as usize;
            out.splice(at..at, piece);
            format!("bytes {from}..{upto} put in at {at}")
        }
        _ => {
            let from = rng.below(len) as usize;
            let upto = (from + 1 + rng.below(400) as usize).min(out.len());
            noise(rng, &mut out[from..upto]);
            format!("noise in {from}..{upto}")
        }
    };
    (out, what)
}

/// A number of the kind that finds mistakes.
fn number(rng: &mut Rng) -> u64 {
    match rng.below(9) {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << rng.below(64),
        3 => (1u64 << rng.below(64)).wrapping_sub(1),
        4 => rng.below(1 << 20) * 512,
        5 => rng.below(300),
        6 => (1 << 48) - 1 + rng.below(3),
        7 => u64::MAX - rng.below(1 << 20),
        _ => rng.next_u64(),
    }
}

/// Changes fields of a record, and its payload to the length that it then has.
fn damage_record(rng: &mut Rng, (head, payload): &mut Part) -> String {
    let at = match rng.below(4) {
        0 => 4 * rng.below(SUM_AT as u64 / 4) as usize,
        // Most fields are in the front.
        _ => 8 + 4 * rng.below(24) as usize,
    };
    match rng.below(4) {
        0 => {
            let wide = number(rng).to_le_bytes();
            head[at..at + 8].copy_from_slice(&wide);
        }
        1 => head[at..at + 4].copy_from_slice(&(number(rng) as u32).to_le_bytes()),
        2 => head[at + rng.below(4) as usize] = number(rng) as u8,
        _ => noise(rng, &mut head[at..at + 8]),
    }
    let is_begin = head[..4] == [0; 4];
    if let Ok(record) = Record::decode(head, Endian::Little)
        && record.payload_len() <= PAYLOAD_MAX
        && (is_begin || rng.percent(80))
    {
        payload.resize(record.payload_len() as usize, rng.below(256) as u8);
    }
    format!("field {at:#x}")
}

/// Damage of records, with right sums.
fn damaged_records(rng: &mut Rng, v: &StreamVictim, of: &Recorded) -> (Vec<u8>, String) {
    let mut parts = of.parts.clone();
    let mut what = Vec::new();
    for _ in 0..1 + rng.below(3) {
        let len = parts.len() as u64;
        let at = rng.below(len) as usize;
        what.push(match rng.below(12) {
            0 => {
                let other = rng.below(len) as usize;
                parts.swap(at, other);
                format!("records {at} and {other} swapped")
            }
            1 => {
                let copy = parts[rng.below(len) as usize].clone();
                parts.insert(at, copy);
                format!("a record twice, at {at}")
            }
            2 => {
                parts.remove(at);
                format!("record {at} taken out")
            }
            3 => {
                let other = &v.streams[rng.below(v.streams.len() as u64) as usize].parts;
                parts.insert(at, other[rng.below(other.len() as u64) as usize].clone());
                format!("a record of another stream at {at}")
            }
            4 | 5 => {
                noise(rng, &mut parts[at].1);
                format!("noise in the payload of record {at}")
            }
            6 => format!("record 0, {}", damage_record(rng, &mut parts[0])),
            _ => format!("record {at}, {}", damage_record(rng, &mut parts[at])),
        });
        if parts.is_empty() {
            break;
        }
    }
    let order = if rng.percent(5) { Endian::Big } else { Endian::Little };
    (join(&parts, order), format!("{} ({order:?})", what.join("; ")))
}

/// Damages one of the victim's streams and receives it.
pub fn mutate_stream(v: &StreamVictim, number: u64, tally: &mut StreamTally) -> Option<Fault> {
    tally.mutations += 1;
    let mut rng = Rng::stream(v.seed.wrapping_mul(1 << 20).wrapping_add(number), 103);
    let at = rng.below(v.streams.len() as u64) as usize;
    let of = &v.streams[at];
    let (stream, what) = match rng.percent(30) {
        true => damaged_bytes(&mut rng, &of.bytes),
        false => damaged_records(&mut rng, v, of),
    };
    let opts = ReceiveOpts { resumable: rng.percent(30), force: rng.percent(20), ..ReceiveOpts::default() };
    if std::env::var_os("ZTEST_TRACE").is_some() {
        eprintln!("{number}: stream {at}, {what}, {opts:?}");
    }
    let before = memory_peak();
    let lab = Lab::with_images(number, v.images.clone(), true);
    lab.sim.stop_at_step(Some(STEPS_MAX));
    let mut outcome = StreamTally::default();
    let result = catch_unwind(AssertUnwindSafe(|| {
        let rt = lab.sim.rt();
        let all = async {
            let out = try_one(&lab, v, of, &stream, opts, &mut outcome).await;
            rt.sleep(SETTLE_SPAN).await;
            out
        };
        lab.sim.try_block_on_for(SPAN_MAX, all).map_err(|report| format!("stalled: {report}"))?
    }));
    let why = match result {
        Ok(Ok(())) => {
            if lab.disks.iter().any(|d| d.holders() > 0) {
                Some("something still holds devices of the pool".to_string())
            } else if let Some(why) = memory_fault(before) {
                Some(why)
            } else if number.is_multiple_of(CHECK_EVERY) && outcome.received == 0 {
                snaps::check_images(&lab.images()).err()
            } else {
                None
            }
        }
        Ok(Err(e)) => Some(e),
        Err(panic) => {
            std::mem::forget(lab);
            Some(format!("panic: {}", panic_text(&*panic)))
        }
    };
    tally.refused += outcome.refused;
    tally.kept += outcome.kept;
    tally.received += outcome.received;
    why.map(|why| {
        tally.bad += 1;
        format!("victim {} mutation {number} (stream {at}, {what}): {why}", v.seed)
    })
}

fn say(e: base::Error) -> String {
    format!("{e:?}")
}

/// Receives a damaged stream, looks at the pool, and receives the whole one.
async fn try_one(
    lab: &Lab,
    v: &StreamVictim,
    of: &Recorded,
    stream: &[u8],
    opts: ReceiveOpts,
    outcome: &mut StreamTally,
) -> Check {
    let pool = lab.import(false, v.layout.opts()).await.map_err(say)?;
    let dsl = pool.dsl();
    let fs = of.target.split('@').next().unwrap_or_default();
    let before = listed(&pool).await.map_err(say)?;
    let done = receive(&pool, of.target, &mut Feed::whole(stream), opts.clone()).await;
    let hidden = dsl.all().iter().any(|d| d.name().contains(RECV));
    let token = match dsl.find(fs) {
        Ok(head) => dsl.resume_token(&head).await.map_err(say)?,
        Err(_) => None,
    };
    match done {
        Ok(()) => {
            outcome.received += 1;
            if hidden || token.is_some() {
                return Err("something hidden stays of a stream that was received".into());
            }
            look(&*dsl.find_snapshot(of.target).await.map_err(say)?).await;
        }
        Err(e) => {
            let placed = ["cannot receive", "at byte", "not a send stream", "nothing came"];
            if !placed.iter().any(|place| e.to_string().contains(place)) {
                return Err(format!("an error without a place: {e:?}"));
            }
            if token.is_some() && !opts.resumable {
                return Err("a part is kept though nobody asked for it".into());
            }
            if dsl.find_snapshot(of.target).await.is_ok() {
                return Err(format!("the snapshot is seen after {e:?}"));
            }
            match token {
                Some(_) => outcome.kept += 1,
                None => outcome.refused += 1,
            }
            if token.is_some() {
                dsl.abort_receive(fs).await.map_err(say)?;
            }
            let after = listed(&pool).await.map_err(say)?;
            if after != before {
                return Err(format!("after {e:?} there is {after:?}, before {before:?}"));
            }
            receive(&pool, of.target, &mut Feed::whole(&of.bytes), ReceiveOpts::default()).await.map_err(say)?;
            if let Some(objects) = &of.objects
                && objects_of(&*dsl.find_snapshot(of.target).await.map_err(say)?).await.map_err(say)? != *objects
            {
                return Err("afterwards the whole stream became another snapshot".into());
            }
        }
    }
    pool.export().await.map_err(say)
}

/// What a user sees of the pool: names, roots and space of everything.
async fn listed(pool: &Pool) -> Result<Vec<String>> {
    let mut out = Vec::new();
    for head in pool.dsl().all() {
        let phys = head.phys();
        out.push(format!("{} {} {:x}", head.name(), phys.referenced_bytes, phys.guid));
        for snap in pool.dsl().snapshots(&head).await? {
            out.push(format!("{} {:x} {}", snap.name(), snap.phys().guid, snap.phys().bp));
        }
    }
    out.sort();
    Ok(out)
}

/// Reads what was received: it may be anything, and each error is one.
async fn look(snap: &Dataset) {
    let _ = objects_of(snap).await;
}
