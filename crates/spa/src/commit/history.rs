//! The pool's history: commands and internal events (format page 03 section 8, page 15 section 9).
//!
//! A command waits in memory until the next txg that is written, which appends it to the ring in
//! the history object; a pool without one gets it with its first record. Internal events (`zpool
//! history -i`: create, destroy, set, scan, with their txgs) are collected while a txg is synced
//! ([`dsl::core::Core::log_internal`]) and appended by the same txg, in its first pass.
//!
//! The command that created the pool, or the first recorded one, stays at the front permanently,
//! with the events before it; when the ring is full the oldest records behind it are overwritten.

use std::cell::RefCell;
use std::rc::Rc;

use base::{Error, ObjectId, Result, ResultExt};
use dmu::{Dnode, ObjSpec, Tx, zap};
use ondisk::bytes::le64;
use ondisk::history::{
    HistoryPhys, MAX_RECORD, Origin, PHYS_SIZE, Records, command_record, encode_record, event_record,
};
use ondisk::nvlist::NvList;
use ondisk::object_type::ObjectType;

use crate::commit::config::Config;
use crate::stack::Stack;
use crate::zevent::Events;

/// Entry of the MOS directory.
const ENTRY: &[u8] = b"history";
/// Block size of the history object (format page 03 section 6).
const BLKSZ: u32 = 128 << 10;
/// Bytes of the log that are read at once.
const PIECE: u64 = 128 << 10;
/// Longest recorded command line, in bytes; longer ones are cut.
const COMMAND_MAX: usize = 16 << 10;
/// Most waiting records: more than any script issues between two txgs.
const WAITING_MAX: usize = 4096;
/// The permanent front ends with the first command, or without one at this size, in bytes.
const FRONT_MAX: u64 = 8 << 10;
/// Oldest pool version with a history.
const VERSION_HISTORY: u64 = 4;

/// The history of a pool.
pub(crate) struct History {
    stack: Rc<Stack>,
    config: Rc<Config>,
    events: Rc<Events>,
    /// Records of commands, for the next txg.
    waiting: RefCell<Vec<NvList>>,
}

impl History {
    /// The history of a pool that is being opened.
    pub(crate) fn new(stack: &Rc<Stack>, config: &Rc<Config>, events: &Rc<Events>) -> History {
        let waiting = RefCell::default();
        History { stack: stack.clone(), config: config.clone(), events: events.clone(), waiting }
    }

    /// Whether records wait.
    pub(crate) fn is_dirty(&self) -> bool {
        !self.waiting.borrow().is_empty()
    }

    /// Records a command line with the next txg that is written. `who` is its user id.
    pub(crate) fn log_command(&self, command: &str, who: u64) {
        if self.stack.readonly || self.waiting.borrow().len() >= WAITING_MAX || !self.is_kept() {
            return;
        }
        let end = (0..=COMMAND_MAX.min(command.len())).rev().find(|&n| command.is_char_boundary(n)).unwrap_or(0);
        let host = self.stack.rt.host_identity().hostname;
        self.waiting.borrow_mut().push(command_record(&command[..end], self.origin(who, &host)));
    }

    /// The origin of a record: the current time, `who`, `hostname`.
    fn origin<'a>(&self, who: u64, hostname: &'a str) -> Origin<'a> {
        Origin { time: self.stack.rt.wall_clock().secs.max(0) as u64, who, zone: "linux", hostname }
    }

    fn is_kept(&self) -> bool {
        self.config.version() >= VERSION_HISTORY
    }

    /// Notes the creation or import of the pool, and the software's version.
    pub(crate) fn note_opening(&self, how: &'static str) {
        let host = self.stack.rt.host_identity().hostname;
        let version = self.config.version();
        let text = format!("pool version {version}; software version weir-{}; uts {host}", env!("CARGO_PKG_VERSION"));
        self.stack.core.log_internal(how, text, self.stack.txg.open_txg());
    }

    /// Gives all records to `each`, oldest first, and returns the first error of unreadable ones,
    /// if any. The log is read in pieces, so that no more than one is in memory while `each` waits;
    /// records that are overwritten meanwhile are left out.
    pub(crate) async fn read(&self, mut each: impl AsyncFnMut(NvList) -> Result<()>) -> Result<Option<Error>> {
        let waiting = self.waiting.borrow().clone();
        let mut fault = None;
        if let Some(dn) = self.object().await? {
            let phys = HistoryPhys::parse(&dn.bonus()).at(|| "history")?;
            for (from, to) in [(0, phys.pool_create_len), (phys.bof, phys.eof)] {
                fault = read_range(&dn, &phys, from, to, &mut each).await?.or(fault);
            }
        }
        for record in waiting {
            each(record).await?;
        }
        Ok(fault)
    }

    async fn object(&self) -> Result<Option<Dnode>> {
        match zap::lookup_u64(&self.stack.directory, ENTRY).await? {
            Some(object) if object != 0 => Ok(Some(self.stack.mos.hold(ObjectId(object)).await.at(|| "history")?)),
            _ => Ok(None),
        }
    }

    /// Appends the events noted so far in the txg that is being synced.
    pub(crate) async fn sync_events(&self, tx: &Tx) -> Result<()> {
        let events = self.stack.core.take_events();
        self.events.post_history(&events);
        if events.is_empty() || !self.is_kept() {
            return Ok(());
        }
        let host = self.stack.rt.host_identity().hostname;
        let origin = self.origin(0, &host);
        let record = |e: &dsl::core::Event| {
            let dataset = e.dataset.as_ref().map(|(name, object)| (name.as_str(), *object));
            event_record(e.name, &e.text, e.txg, dataset, origin)
        };
        self.append(events.iter().map(record).collect(), tx).await
    }

    /// Appends the waiting records. An invalid history is left alone: it is informational only.
    pub(crate) async fn sync(&self, tx: &Tx) -> Result<()> {
        let waiting = self.waiting.take();
        if waiting.is_empty() { Ok(()) } else { self.append(waiting, tx).await }
    }

    async fn append(&self, records: Vec<NvList>, tx: &Tx) -> Result<()> {
        let dn = match self.object().await? {
            Some(dn) => dn,
            None => self.create(tx).await?,
        };
        let Ok(mut phys) = HistoryPhys::parse(&dn.bonus()) else { return Ok(()) };
        for record in records {
            let bytes = encode_record(&record);
            if bytes.len() as u64 > phys.ring_len() / 2 || append_record(&dn, &mut phys, &bytes, tx).await.is_err() {
                break;
            }
            let is_command = record.str("history command").is_some();
            if phys.pool_create_len == 0 && (is_command || phys.eof > FRONT_MAX) {
                (phys.pool_create_len, phys.bof) = (phys.eof, phys.eof);
            }
        }
        dn.set_bonus(&phys.to_bytes(), tx)
    }

    async fn create(&self, tx: &Tx) -> Result<Dnode> {
        let spec =
            ObjSpec::new(ObjectType::SPA_HISTORY, BLKSZ).bonus(ObjectType::SPA_HISTORY_OFFSETS, PHYS_SIZE as u16);
        let dn = self.stack.mos.alloc(spec, tx).await?;
        let size = self.stack.alloc.space(metaslab::ClassKind::Normal).total;
        dn.set_bonus(&HistoryPhys::new(size).to_bytes(), tx)?;
        zap::add_u64(&self.stack.directory, ENTRY, dn.object().0, tx).await?;
        Ok(dn)
    }
}

/// Gives the records of a range of logical offsets to `each`, up to the first unreadable one, whose
/// error is returned.
async fn read_range(
    dn: &Dnode,
    phys: &HistoryPhys,
    from: u64,
    to: u64,
    each: &mut impl AsyncFnMut(NvList) -> Result<()>,
) -> Result<Option<Error>> {
    // The bytes that are not given yet, from the beginning of a record, and where they end.
    let (mut bytes, mut at) = (Vec::new(), from);
    while at < to {
        let len = (to - at).min(PIECE);
        for (place, part) in phys.extents(at, len).into_iter().filter(|(_, part)| *part > 0) {
            let start = bytes.len();
            bytes.resize(start + part as usize, 0);
            dn.read(place, &mut bytes[start..]).await.at(|| "history")?;
        }
        at += len;
        // The front stays; of the ring what is before `bof` now may be overwritten.
        let now = HistoryPhys::parse(&dn.bonus()).at(|| "history")?;
        let oldest = if now.pool_create_len == phys.pool_create_len { now.bof } else { 0 };
        if to > phys.pool_create_len && oldest > at - bytes.len() as u64 {
            bytes.clear();
            at = oldest;
            continue;
        }
        let mut records = Records::new(&bytes);
        for record in records.by_ref() {
            match record {
                Ok(record) => each(record).await?,
                Err(e) => return Ok(Some(e)),
            }
        }
        let given = records.consumed();
        bytes.drain(..given);
    }
    Ok(None)
}

/// Appends a record, after making room: first for its length, then for its body.
async fn append_record(dn: &Dnode, phys: &mut HistoryPhys, bytes: &[u8], tx: &Tx) -> Result<()> {
    let (length, body) = bytes.split_at(8);
    for part in [length, body] {
        while phys.must_evict(part.len() as u64) {
            let mut oldest = [0; 8];
            let mut done = 0;
            for (at, len) in phys.extents(phys.bof, 8) {
                if len > 0 {
                    dn.read(at, &mut oldest[done..done + len as usize]).await?;
                    done += len as usize;
                }
            }
            let len = le64(&oldest, 0);
            if len > MAX_RECORD {
                return Err(Error::corrupt(format!("history record of {len} bytes")));
            }
            phys.evict(len)?;
        }
        let mut done = 0;
        for (at, len) in phys.extents(phys.eof, part.len() as u64) {
            if len > 0 {
                dn.write(at, &part[done..done + len as usize], tx).await?;
                done += len as usize;
            }
        }
        phys.eof += part.len() as u64;
    }
    Ok(())
}
