//! Recordings of operations: the bytes of a file that `weir trace record` writes and
//! `weir lab replay` reads. docs/recordings.md has the format.
//!
//! **Words.** A *recording* is a magic number and *blocks*; a block is a length and *records*: one
//! header, operations, losses, one end. Numbers are little-endian; in records they are *varints*,
//! seven bits a byte, least significant first, the high bit set in all but the last.
//!
//! **Writing.** A [`Writer`] encodes operations into a buffer of at most [`BUFFER_MAX`] bytes,
//! which its owner takes as blocks ([`Writer::take`]). Operations that find the buffer full are
//! counted, and the next block says how many there were.
//!
//! **Reading.** [`parse`] takes any bytes. Memory is bounded by the length of the input; errors
//! name the byte. A recording whose last block is cut, or that has no end, was interrupted: it is
//! read up to there ([`Recording::is_complete`]).
//!
//! A recording has no names and no contents: files are numbers, and texts are properties.

use base::{Error, Nanos, Result};

use crate::trace::{FsOp, OpKind};

/// The first bytes; the last of them is the version of the format.
pub const MAGIC: [u8; 8] = *b"WEIROPS\x01";
/// Most bytes that a writer holds.
pub const BUFFER_MAX: usize = 1 << 20;
/// Most bytes of records in a block: the buffer and the records around it.
pub const BLOCK_MAX: usize = BUFFER_MAX + (256 << 10);
/// Most bytes of a recording that is read.
pub const FILE_MAX: u64 = 1 << 30;
/// Properties of file systems that change how operations travel: those that a header has.
pub const PROPS: &[&str] = &[
    "recordsize",
    "compression",
    "checksum",
    "copies",
    "sync",
    "logbias",
    "atime",
    "relatime",
    "primarycache",
    "dnodesize",
    "redundant_metadata",
];
/// Most bytes of the header's text.
const HEADER_MAX: usize = 128 << 10;
/// Longest record of an operation: tag, kind and seven varints of at most ten bytes.
const RECORD_MAX: usize = 1 + 8 * 10;

/// Tags of records. Those below [`TAG_WORKED`] are operations: the kind.
const TAG_WORKED: u8 = 28;
const TAG_HEADER: u8 = 29;
const TAG_LOST: u8 = 30;
const TAG_END: u8 = 31;
/// Bits beside the kind of an operation.
const SYNC: u8 = 0x20;
const FAILED: u8 = 0x40;

/// What was recorded about the pool, as pairs of key and value: see docs/recordings.md.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// In the order of the file. Neither part has a line break, keys have no `=`.
    pub pairs: Vec<(String, String)>,
}

impl Header {
    /// The first value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    fn text(&self) -> String {
        let mut out = String::new();
        for (key, value) in &self.pairs {
            let line = format!("{}={}\n", key.replace(['\n', '='], " "), value.replace('\n', " "));
            if out.len() + line.len() <= HEADER_MAX {
                out.push_str(&line);
            }
        }
        out
    }

    fn parse(text: &str) -> Option<Header> {
        let pair = |line: &str| line.split_once('=').map(|(k, v)| (k.to_string(), v.to_string()));
        Some(Header { pairs: text.lines().map(pair).collect::<Option<_>>()? })
    }
}

/// An operation in a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpRecord {
    /// When it was answered, since the recording began.
    pub end: Nanos,
    /// The operation.
    pub op: FsOp,
}

impl OpRecord {
    /// When it was asked for, since the recording began; 0 if that was earlier.
    pub fn begin(&self) -> Nanos {
        Nanos(self.end.0.saturating_sub(self.op.took.0))
    }
}

/// A recording.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Recording {
    /// About the pool.
    pub header: Header,
    /// Operations, in the order in which they ended.
    pub ops: Vec<OpRecord>,
    /// Operations that were lost because the reader was slow.
    pub lost: u64,
    /// How long it was recorded, if the recording has its end.
    pub span: Option<Nanos>,
    /// How long the engine's thread worked meanwhile, if that is recorded.
    pub worked: Option<Nanos>,
}

impl Recording {
    /// Whether it has its end: otherwise it was interrupted.
    pub fn is_complete(&self) -> bool {
        self.span.is_some()
    }
}

fn put(out: &mut Vec<u8>, mut v: u64) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

/// Encodes a recording as its operations come.
#[derive(Debug)]
pub struct Writer {
    begun: Nanos,
    /// The time of the last record.
    last: Nanos,
    buffer: Vec<u8>,
    ops: u64,
    lost: u64,
    /// Of them, those that no record tells of yet.
    untold: u64,
}

impl Writer {
    /// A recording that begins at `now`, with the bytes before its first block in the buffer.
    pub fn new(now: Nanos) -> Writer {
        Writer { begun: now, last: now, buffer: Vec::new(), ops: 0, lost: 0, untold: 0 }
    }

    /// Notes an operation that ended at `now`; times must not go back. One that finds no room is
    /// counted as lost.
    pub fn note(&mut self, now: Nanos, op: &FsOp) {
        if self.buffer.len() + RECORD_MAX > BUFFER_MAX {
            (self.lost, self.untold) = (self.lost + 1, self.untold + 1);
            return;
        }
        self.tell_lost();
        let tag = op.kind as u8 | if op.sync { SYNC } else { 0 } | if op.ok { 0 } else { FAILED };
        self.buffer.push(tag);
        put(&mut self.buffer, now.since(self.last).0);
        for v in [op.took.0, op.client.into(), op.dataset, op.object, op.target, op.offset, op.len] {
            put(&mut self.buffer, v);
        }
        (self.last, self.ops) = (self.last.max(now), self.ops + 1);
    }

    fn tell_lost(&mut self) {
        if self.untold > 0 {
            self.buffer.push(TAG_LOST);
            put(&mut self.buffer, std::mem::take(&mut self.untold));
        }
    }

    /// Operations noted, and those lost, so far.
    pub fn counts(&self) -> (u64, u64) {
        (self.ops, self.lost)
    }

    /// The bytes that a file begins with.
    pub fn head(header: &Header) -> Vec<u8> {
        let text = header.text();
        let mut records = vec![TAG_HEADER];
        put(&mut records, text.len() as u64);
        records.extend(text.as_bytes());
        [&MAGIC[..], &block(records)].concat()
    }

    /// Takes what was noted since the last time, as a block; it may be empty.
    pub fn take(&mut self) -> Vec<u8> {
        self.tell_lost();
        block(std::mem::take(&mut self.buffer))
    }

    /// The last block: what was noted, how long the engine's thread worked, and the end of the
    /// recording.
    pub fn end(&mut self, now: Nanos, worked: Nanos) -> Vec<u8> {
        self.tell_lost();
        self.buffer.push(TAG_WORKED);
        put(&mut self.buffer, worked.0);
        self.buffer.push(TAG_END);
        put(&mut self.buffer, now.since(self.begun).0);
        block(std::mem::take(&mut self.buffer))
    }
}

fn block(records: Vec<u8>) -> Vec<u8> {
    // At most BLOCK_MAX, which is below 4 GiB.
    let len = u32::try_from(records.len()).unwrap_or(u32::MAX);
    [&len.to_le_bytes()[..], &records].concat()
}

/// Bytes that are read from the front.
struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
}

impl Input<'_> {
    fn bad(&self, what: &str) -> Error {
        Error::corrupt(format!("the recording is damaged at byte {}: {what}", self.at))
    }

    fn byte(&mut self) -> Result<u8> {
        let byte = self.bytes[..self.end].get(self.at).copied();
        let byte = byte.ok_or_else(|| self.bad("its block ends within a record"))?;
        self.at += 1;
        Ok(byte)
    }

    fn number(&mut self) -> Result<u64> {
        let mut v = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            v |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(v);
            }
        }
        Err(self.bad("a number has more than 64 bits"))
    }

    fn header(&mut self) -> Result<Header> {
        let len = self.number()?;
        let room = self.end - self.at;
        let len = usize::try_from(len).ok().filter(|len| *len <= room && *len <= HEADER_MAX);
        let len = len.ok_or_else(|| self.bad("the text of its header is longer than its block"))?;
        let text = std::str::from_utf8(&self.bytes[self.at..self.at + len]).ok().and_then(Header::parse);
        let header = text.ok_or_else(|| self.bad("its header is no list of keys and values"))?;
        self.at += len;
        Ok(header)
    }

    fn op(&mut self, tag: u8, last: &mut Nanos) -> Result<OpRecord> {
        let kind = OpKind::ALL.get(usize::from(tag & 0x1f)).copied().filter(|_| tag & 0x80 == 0);
        let kind = kind.ok_or_else(|| self.bad("there is no such record"))?;
        let gap = self.number()?;
        let end = last.0.checked_add(gap).map(Nanos).ok_or_else(|| self.bad("its time is out of range"))?;
        *last = end;
        let took = Nanos(self.number()?);
        let client = self.number()?;
        let client = u32::try_from(client).map_err(|_| self.bad("a thread has more than 32 bits"))?;
        let [mut dataset, mut object, mut target, mut offset, mut len] = [0; 5];
        for field in [&mut dataset, &mut object, &mut target, &mut offset, &mut len] {
            *field = self.number()?;
        }
        let (sync, ok) = (tag & SYNC != 0, tag & FAILED == 0);
        Ok(OpRecord { end, op: FsOp { kind, client, dataset, object, target, offset, len, sync, ok, took } })
    }
}

/// Reads a recording.
///
/// # Errors
/// `Corrupt`, with the byte, if it is no recording or damaged; `Unsupported` for another version.
pub fn parse(bytes: &[u8]) -> Result<Recording> {
    let mut input = Input { bytes, at: 0, end: bytes.len() };
    if bytes.len() < MAGIC.len() || bytes[..7] != MAGIC[..7] {
        return Err(input.bad("it does not begin as one that 'weir trace record' made"));
    }
    if bytes[7] != MAGIC[7] {
        let text = format!("the recording has version {} of its format: this program reads version 1", bytes[7]);
        return Err(Error::unsupported(text));
    }
    input.at = MAGIC.len();
    let (mut out, mut last, mut headed) = (Recording::default(), Nanos(0), false);
    // Less is a block that was cut.
    while let Some(len) = bytes.get(input.at..input.at + 4) {
        let len = len.iter().rev().fold(0usize, |n, b| n << 8 | usize::from(*b));
        if len > BLOCK_MAX {
            return Err(input.bad("a block is longer than blocks are"));
        }
        if out.is_complete() {
            return Err(input.bad("it goes on after its end"));
        }
        let whole = bytes.len() - input.at - 4 >= len;
        if !whole {
            break;
        }
        (input.at, input.end) = (input.at + 4, input.at + 4 + len);
        while input.at < input.end {
            if out.is_complete() {
                return Err(input.bad("it goes on after its end"));
            }
            match input.byte()? {
                TAG_HEADER if !headed => (out.header, headed) = (input.header()?, true),
                _ if !headed => return Err(input.bad("it does not begin with its header")),
                TAG_LOST => out.lost = out.lost.saturating_add(input.number()?),
                TAG_WORKED => out.worked = Some(Nanos(input.number()?)),
                TAG_END => out.span = Some(Nanos(input.number()?)),
                tag => out.ops.push(input.op(tag, &mut last)?),
            }
        }
    }
    if !headed {
        return Err(input.bad("it has no header"));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::*;

    fn op(n: u64) -> FsOp {
        FsOp {
            kind: OpKind::ALL[n as usize % OpKind::ALL.len()],
            client: n as u32,
            dataset: n % 3,
            object: n * n,
            target: n % 2,
            offset: n.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            len: n << 12,
            sync: n.is_multiple_of(5),
            ok: !n.is_multiple_of(7),
            took: Nanos(n * 1000),
        }
    }

    fn header() -> Header {
        Header { pairs: vec![("layout".into(), "mirror 2".into()), ("dataset.54.recordsize".into(), "8192".into())] }
    }

    /// A recording of `n` operations in several blocks.
    fn recording(n: u64) -> Vec<u8> {
        let mut bytes = Writer::head(&header());
        let mut w = Writer::new(Nanos(500));
        for i in 0..n {
            w.note(Nanos(500 + i * 100_000), &op(i));
            if i % 10 == 9 {
                bytes.extend(w.take());
            }
        }
        bytes.extend(w.take());
        bytes.extend(w.end(Nanos(9_000_500), Nanos(77_000)));
        bytes
    }

    #[test]
    fn what_is_written_is_read() {
        let r = parse(&recording(57)).unwrap();
        assert_eq!((&r.header, r.lost, r.span), (&header(), 0, Some(Nanos(9_000_000))));
        assert_eq!(r.worked, Some(Nanos(77_000)));
        assert_eq!(r.header.get("layout"), Some("mirror 2"));
        let want: Vec<OpRecord> = (0..57).map(|i| OpRecord { end: Nanos(i * 100_000), op: op(i) }).collect();
        assert_eq!(r.ops, want);
        assert_eq!(r.ops[2].begin(), Nanos(198_000));
    }

    #[test]
    fn a_full_buffer_loses_operations_and_says_so() {
        let mut w = Writer::new(Nanos(0));
        let n = 100_000;
        (0..n).for_each(|i| w.note(Nanos(i), &op(i)));
        let (kept, lost) = w.counts();
        assert!(kept > 10_000 && lost > 0 && kept + lost == n, "{kept} {lost}");
        let mut bytes = Writer::head(&Header::default());
        let taken = w.take();
        assert!(taken.len() <= BLOCK_MAX);
        bytes.extend(taken);
        w.note(Nanos(n), &op(1));
        bytes.extend(w.end(Nanos(n), Nanos(0)));
        let r = parse(&bytes).unwrap();
        assert_eq!((r.ops.len() as u64, r.lost), (kept + 1, lost));
        assert_eq!(r.ops.last().map(|o| o.end), Some(Nanos(n)), "times go on after a loss");
    }

    #[test]
    fn an_interrupted_recording_is_read_up_to_there() {
        let whole = recording(57);
        let head = Writer::head(&header()).len();
        let mut last = 0;
        for cut in head..whole.len() {
            let r = parse(&whole[..cut]).unwrap();
            assert!(!r.is_complete() && r.ops.len() >= last, "{cut}");
            last = r.ops.len();
        }
        assert_eq!(last, 57);
        for cut in 0..head {
            assert_eq!(parse(&whole[..cut]).unwrap_err().kind(), ErrorKind::Corrupt, "{cut}");
        }
    }

    #[test]
    fn damage_is_an_error_with_its_place_or_another_recording() {
        let whole = recording(40);
        let mut seed = 1u64;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize
        };
        let mut refused = 0;
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            for _ in 0..1 + next() % 4 {
                match next() % 3 {
                    0 => {
                        let at = next() % bytes.len();
                        bytes[at] ^= 1 << (next() % 8);
                    }
                    1 => {
                        let at = next() % bytes.len();
                        bytes[at] = 0xff;
                    }
                    _ => bytes.truncate(bytes.len() - next() % bytes.len().min(20)),
                }
            }
            match parse(&bytes) {
                Ok(r) => assert!(r.ops.len() <= bytes.len() / 9),
                Err(e) => {
                    refused += 1;
                    let text = e.to_string();
                    assert!(text.contains("at byte ") || text.contains("has version"), "{text}");
                }
            }
        }
        assert!(refused > 1000, "{refused}");
        let bad = |records: &[u8]| {
            let bytes = [Writer::head(&header()), block(records.to_vec())].concat();
            parse(&bytes).unwrap_err().to_string()
        };
        let head = Writer::head(&header()).len();
        assert_eq!(bad(&[27]), format!("the recording is damaged at byte {}: there is no such record", head + 5));
        assert!(bad(&[12, 0, 0]).contains("ends within a record"));
        assert!(bad(&[30, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2]).contains("more than 64 bits"));
        assert!(bad(&[31, 5, 31, 5]).contains("goes on after its end"));
        assert!(bad(&[29, 0]).contains("no such record"), "a second header");
        let long = [Writer::head(&header()), vec![255; 9]].concat();
        assert!(parse(&long).unwrap_err().to_string().contains("longer than blocks are"));
        let mut newer = whole;
        newer[7] = 2;
        assert_eq!(parse(&newer).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
