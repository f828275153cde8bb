//! The pool's history: a log of commands and events in a ring (format page 03 section 8, page 15
//! section 9).
//!
//! The history object's bonus is a [`HistoryPhys`]; its data is a log of records, each a u64 length
//! (little-endian always) and a native nvlist of that length. *Logical* offsets only grow: `bof` is
//! where the oldest record starts, `eof` where the next goes. The record of `zpool create` at the
//! front (`pool_create_len` bytes) is never overwritten; the rest is a ring of
//! `phys_max_off - pool_create_len` bytes.
//!
//! Appending: [`encode_record`], then for its length and for its body in turn: while
//! [`HistoryPhys::must_evict`], read the length of the record at `bof` and [`HistoryPhys::evict`]
//! it; write at the places that [`HistoryPhys::extents`] gives for `eof`; move `eof` on.
//!
//! Reading: the create record from 0, then from `bof` to `eof` through [`HistoryPhys::extents`];
//! [`Records`] splits the bytes into lists.

use base::{Error, ObjectId, Result, ResultExt, Txg};

use crate::bytes::{le64_words, put_le64_words, try_le64};
use crate::nvlist::NvList;

/// Size of the bonus of the history object, in bytes.
pub const PHYS_SIZE: usize = 40;
/// Bounds of the ring's size, in bytes.
pub const RING_RANGE: std::ops::RangeInclusive<u64> = (128 << 10)..=(1 << 30);
/// Longest record that is read, in bytes: a command line is at most some tens of KiB, an ioctl's
/// arguments may be more.
pub const MAX_RECORD: u64 = 16 << 20;

/// The bonus of the history object.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct HistoryPhys {
    /// End of the record of the pool's creation; 0 if none was logged.
    pub pool_create_len: u64,
    /// Physical size of the log, in bytes.
    pub phys_max_off: u64,
    /// Logical offset of the oldest record after the creation's.
    pub bof: u64,
    /// Logical offset after the newest record.
    pub eof: u64,
    /// Records overwritten so far.
    pub records_lost: u64,
}

impl HistoryPhys {
    /// An empty log for a pool of `pool_size` bytes: a thousandth of it within [`RING_RANGE`].
    pub fn new(pool_size: u64) -> HistoryPhys {
        let phys_max_off = (pool_size / 1000).clamp(*RING_RANGE.start(), *RING_RANGE.end());
        HistoryPhys { phys_max_off, ..HistoryPhys::default() }
    }

    /// Reads the bonus and checks that the offsets describe a ring.
    pub fn parse(bonus: &[u8]) -> Result<HistoryPhys> {
        if bonus.len() < PHYS_SIZE {
            return Err(Error::corrupt(format!("history bonus of {} bytes is shorter than {PHYS_SIZE}", bonus.len())));
        }
        let [pool_create_len, phys_max_off, bof, eof, records_lost] = le64_words(bonus);
        let h = HistoryPhys { pool_create_len, phys_max_off, bof, eof, records_lost };
        let sane = phys_max_off > 0
            && phys_max_off <= *RING_RANGE.end()
            && pool_create_len < phys_max_off
            && bof >= pool_create_len
            && eof >= bof
            && eof - bof <= h.ring_len();
        if !sane {
            return Err(Error::corrupt(format!("history log has impossible bounds: {h:?}")));
        }
        Ok(h)
    }

    /// The bonus as bytes.
    pub fn to_bytes(&self) -> [u8; PHYS_SIZE] {
        let mut b = [0; PHYS_SIZE];
        let words = [self.pool_create_len, self.phys_max_off, self.bof, self.eof, self.records_lost];
        put_le64_words(&mut b, &words);
        b
    }

    /// Bytes of the ring behind the creation's record.
    pub fn ring_len(&self) -> u64 {
        self.phys_max_off.saturating_sub(self.pool_create_len)
    }

    /// The physical offset of logical offset `logical`.
    pub fn physical(&self, logical: u64) -> u64 {
        if logical < self.pool_create_len {
            return logical;
        }
        match self.ring_len() {
            0 => self.pool_create_len,
            ring => (logical - self.pool_create_len) % ring + self.pool_create_len,
        }
    }

    /// Where `len` bytes from `logical` lie: `(physical offset, length)` of one extent, or of two
    /// when they wrap. `len` must not exceed the ring's.
    pub fn extents(&self, logical: u64, len: u64) -> [(u64, u64); 2] {
        assert!(len <= self.phys_max_off, "more than the whole history log");
        let start = self.physical(logical);
        let first = len.min(self.phys_max_off.saturating_sub(start));
        [(start, first), (self.pool_create_len, len - first)]
    }

    /// Whether the oldest record must go before `len` bytes are written at `eof`.
    pub fn must_evict(&self, len: u64) -> bool {
        self.bof < self.eof && self.ring_len().saturating_sub(self.eof - self.bof) <= len
    }

    /// Drops the oldest record, whose nvlist is `record_len` bytes long (the u64 read at `bof`).
    pub fn evict(&mut self, record_len: u64) -> Result<()> {
        let next = self.bof.checked_add(8).and_then(|o| o.checked_add(record_len)).filter(|&o| o <= self.eof);
        let Some(next) = next else {
            return Err(Error::corrupt(format!(
                "history record of {record_len} bytes at {} reaches past the end {}",
                self.bof, self.eof
            )));
        };
        self.bof = next;
        // A hostile pool may claim to have lost as many as can be counted.
        self.records_lost = self.records_lost.saturating_add(1);
        Ok(())
    }
}

/// A record as it is appended: its length and the native nvlist.
pub fn encode_record(record: &NvList) -> Vec<u8> {
    let body = record.encode_native();
    let mut out = (body.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(&body);
    out
}

/// Cuts consecutive logical bytes of the log into records. Ends at the first damaged one with its
/// error, and at a record that is not all there.
pub struct Records<'a> {
    bytes: &'a [u8],
    pos: usize,
}

impl<'a> Records<'a> {
    /// Over `bytes`, which start at a record.
    pub fn new(bytes: &'a [u8]) -> Records<'a> {
        Records { bytes, pos: 0 }
    }
    /// Bytes of whole records so far: where a reader that goes on must start.
    pub fn consumed(&self) -> usize {
        self.pos
    }
}

impl Iterator for Records<'_> {
    type Item = Result<NvList>;
    fn next(&mut self) -> Option<Result<NvList>> {
        let at = self.pos;
        let len = try_le64(self.bytes, at)?;
        if len == 0 || len > MAX_RECORD {
            self.pos = self.bytes.len();
            return Some(Err(Error::corrupt(format!("history record at {at} has the impossible length {len}"))));
        }
        let body = crate::bytes::get(self.bytes, at + 8, len as usize)?;
        let record = NvList::decode(body).at(|| format!("history record at {at}"));
        self.pos = if record.is_ok() { at + 8 + len as usize } else { self.bytes.len() };
        Some(record)
    }
}

/// User, host and time of the records below.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'a> {
    /// Seconds since 1970.
    pub time: u64,
    /// User id that gave the command.
    pub who: u64,
    /// Zone, `linux` on Linux.
    pub zone: &'a str,
    /// Host name.
    pub hostname: &'a str,
}

/// The record of a command line.
pub fn command_record(command: &str, origin: Origin<'_>) -> NvList {
    NvList::new()
        .with_str("history command", command)
        .with_str("history zone", origin.zone)
        .with_u64("history who", origin.who)
        .with_u64("history time", origin.time)
        .with_str("history hostname", origin.hostname)
}

/// The record of an internal event `name` in `txg`; `dataset` is the name and the object number (in
/// the MOS) of the dataset that it concerns.
pub fn event_record(name: &str, text: &str, txg: Txg, dataset: Option<(&str, ObjectId)>, origin: Origin<'_>) -> NvList {
    let mut l = NvList::new();
    if let Some((dsname, dsid)) = dataset {
        l.put_str("dsname", dsname);
        l.put_u64("dsid", dsid.0);
    }
    l.with_str("history internal str", text)
        .with_str("internal_name", name)
        .with_u64("history txg", txg.0)
        .with_u64("history time", origin.time)
        .with_str("history hostname", origin.hostname)
}
