//! Streams of random pools, compared byte by byte with those that OpenZFS's own code makes of the
//! same pool.
//!
//! A pool gets files, snapshots, clones, promotions and rollbacks ([`snaps`]). Then pairs of
//! snapshots are drawn: one that is sent, and none or an earlier one to start from, with letters of
//! `zfs send`. weir's stream and that of `zlab`, a program on OpenZFS's library, must have the same
//! records and payloads. Sends of raw and encrypted snapshots are in the reference pools
//! (`dsl/tests/all/send.rs`).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::OnceLock;

use base::Nanos;
use bdev::Bytes;
use dsl::send::{SendOpts, Sink};
use ondisk::stream::record::End;
use ondisk::stream::{RECORD_SIZE, Record, StreamReader, features};
use rt::LocalBoxFuture;
use sim::Rng;
use spa::Pool;

use crate::Check;
use crate::judge::{self, Scratch};
use crate::lab::Lab;
use crate::{snaps, zdb_run};

/// Streams of one pool.
const STREAMS: usize = 6;
/// Operations on a pool before.
const OPS: u64 = 60;
/// The longest that the sends of a pool may take, in virtual time.
const SPAN_MAX: Nanos = Nanos::from_secs(24 * 3600);
/// Letters as `zlab` has them: embedded, large blocks, compressed.
const LETTERS: [&str; 6] = ["", "e", "c", "l", "ec", "ecl"];

/// The outcome of a seed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// So many streams of so many bytes are the same.
    Same(usize, u64),
    /// A program that is needed is not there.
    Missing(String),
}

/// A stream to make: what is sent, from which snapshot, and the letters.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Wanted {
    to: String,
    from: Option<String>,
    letters: &'static str,
}

/// Collects a stream.
#[derive(Default)]
struct Collect(Vec<u8>);

impl Sink for Collect {
    fn put(&mut self, record: [u8; RECORD_SIZE], payload: Bytes) -> LocalBoxFuture<'_, base::Result<()>> {
        self.0.extend(record);
        self.0.extend(&payload[..]);
        Box::pin(async { Ok(()) })
    }
}

/// `zlab`, compiled once; the error says what is missing.
fn zlab() -> Result<&'static Path, String> {
    static PROGRAM: OnceLock<Result<(Scratch, PathBuf), String>> = OnceLock::new();
    let made = PROGRAM.get_or_init(|| {
        let source = judge::judges().ok_or("the judges are not there")?.join("zlab.c");
        let dir = Scratch::new("zlab").map_err(|e| e.to_string())?;
        let program = dir.path().join("zlab");
        let mut c = Command::new("gcc");
        c.args([
            "-g",
            "-w",
            "-D_GNU_SOURCE",
            "-D_LARGEFILE64_SOURCE",
            "-I/usr/include/libzfs",
            "-I/usr/include/libspl",
        ]);
        c.args(["-idirafter", "/usr/src/zfs-2.1.11/include"]).arg(&source).arg("-o").arg(&program);
        c.args(["-lzpool", "-lzfs", "-lzfs_core", "-lnvpair"]);
        match zdb_run::run(c) {
            Some((0, _)) => Ok((dir, program)),
            Some((_, text)) => Err(format!("zlab does not compile: {}", text.lines().last().unwrap_or_default())),
            None => Err("gcc is not installed".to_string()),
        }
    });
    made.as_ref().map(|(_, program)| program.as_path()).map_err(String::clone)
}

/// Draws streams of the pool.
async fn draw(pool: &Rc<Pool>, rng: &mut Rng) -> base::Result<Vec<Wanted>> {
    let dsl = pool.dsl();
    let mut chains: Vec<Vec<String>> = Vec::new();
    for head in dsl.all() {
        let snapshots: Vec<String> = dsl.snapshots(&head).await?.iter().map(|d| d.name()).collect();
        if !snapshots.is_empty() {
            chains.push(snapshots);
        }
    }
    let mut out = Vec::new();
    for _ in 0..STREAMS.min(chains.len() * 3) {
        let chain = &chains[rng.below(chains.len() as u64) as usize];
        let at = rng.below(chain.len() as u64) as usize;
        let from = (at > 0 && rng.percent(60)).then(|| chain[rng.below(at as u64) as usize].clone());
        let letters = LETTERS[rng.below(LETTERS.len() as u64) as usize];
        out.push(Wanted { to: chain[at].clone(), from, letters });
    }
    Ok(out)
}

/// weir's streams of a pool.
async fn ours(lab: &Lab, opts: spa::EngineOpts, rng: &mut Rng) -> base::Result<Vec<(Wanted, Vec<u8>)>> {
    let pool = lab.import(true, opts).await?;
    let mut out = Vec::new();
    for wanted in draw(&pool, rng).await? {
        let has = |letter| wanted.letters.contains(letter);
        let opts = SendOpts { large_blocks: has('l'), embedded: has('e'), compressed: has('c'), raw: false };
        let mut sink = Collect::default();
        pool.dsl().send(&wanted.to, wanted.from.as_deref(), opts, &mut sink).await?;
        out.push((wanted, sink.0));
    }
    pool.export().await?;
    Ok(out)
}

/// The records of a stream with their payloads. Without what differs outside of a kernel: OpenZFS
/// names SA_SPILL there only, and so all sums are others.
fn parts(stream: &[u8]) -> Check<Vec<(Record, Vec<u8>)>> {
    let (mut reader, mut rest, mut out) = (StreamReader::new(), stream, Vec::new());
    while let Some((head, tail)) = rest.split_first_chunk::<RECORD_SIZE>() {
        let frame = reader.record(head).map_err(|e| e.to_string())?;
        let (payload, tail) = tail.split_at_checked(reader.payload_left() as usize).ok_or("the stream is cut off")?;
        reader.payload(payload);
        rest = tail;
        let record = match frame.record {
            Record::Begin(begin) => {
                let features = begin.features() & !features::SA_SPILL;
                Record::Begin(begin.with_features(features))
            }
            Record::End(end) => Record::End(End { checksum: Default::default(), ..end }),
            record => record,
        };
        out.push((record, payload.to_vec()));
    }
    reader.end().map_err(|e| e.to_string())?;
    Ok(out)
}

/// One seed.
pub fn run_seed(seed: u64) -> Check<Outcome> {
    let program = match zlab() {
        Ok(program) => program,
        Err(why) => return Ok(Outcome::Missing(why)),
    };
    let (images, layout) = snaps::images_after(seed, OPS, false)?;
    let dir = Scratch::new(&format!("sends-{seed}")).map_err(|e| e.to_string())?;
    judge::save(&images, dir.path())?;
    let lab = Lab::with_images(seed, images, false);
    let mut rng = Rng::stream(seed, 0x5e4d);
    let sent = lab.sim.try_block_on_for(SPAN_MAX, ours(&lab, layout.opts(), &mut rng));
    let sent = sent.map_err(|report| format!("stalled: {report}"))?.map_err(|e| e.to_string())?;
    let file = |n: usize| dir.path().join(format!("{n}.zstream"));
    let mut c = Command::new(program);
    c.arg("-d").arg(dir.path()).args(["-p", "lab", "run"]);
    for (n, (wanted, _)) in sent.iter().enumerate() {
        let from = wanted.from.as_deref().unwrap_or("-");
        c.arg(format!("send {} {from} {} {}", wanted.to, file(n).display(), wanted.letters));
    }
    match zdb_run::run(c) {
        None => return Ok(Outcome::Missing("zlab cannot be run".to_string())),
        Some((0, _)) => {}
        Some((code, text)) => return Err(format!("zlab: code {code}: {}", text.lines().last().unwrap_or_default())),
    }
    let mut bytes = 0;
    for (n, (wanted, stream)) in sent.iter().enumerate() {
        let theirs = std::fs::read(file(n)).map_err(|e| format!("{wanted:?}: {e}"))?;
        let (a, b) = (parts(stream)?, parts(&theirs)?);
        if let Some((a, b)) = a.iter().zip(&b).find(|(a, b)| a != b) {
            return Err(format!("{wanted:?}: {:?} is to be {:?}", a.0, b.0));
        }
        if a.len() != b.len() {
            return Err(format!("{wanted:?}: {} records, {} of OpenZFS", a.len(), b.len()));
        }
        bytes += stream.len() as u64;
    }
    Ok(Outcome::Same(sent.len(), bytes))
}
