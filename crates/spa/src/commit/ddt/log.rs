//! The two logs of a dedup table (format page 20 section 6): their entries in memory, and their
//! objects.

use std::collections::BTreeMap;

use base::{Error, ObjectId, Result, ResultExt};
use dmu::{Dnode, Objset, zap};
use metaslab::ClassKind;
use ondisk::ddt::{Flat, LOG_BLOCK, LogHeader, LogRecord, log_records};

/// The state of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LogEntry {
    pub flat: Flat,
    /// The class of the ZAP that has an older state.
    pub class: Option<u8>,
}

/// One of the logs.
#[derive(Default)]
pub(super) struct Log {
    /// Its object; made with the first entry.
    pub dn: Option<Dnode>,
    pub header: LogHeader,
    /// What it says that is not in a ZAP yet, in the order of flushing.
    pub entries: BTreeMap<[u64; 5], LogEntry>,
}

impl Log {
    async fn read(mos: &Objset, object: ObjectId) -> Result<Log> {
        let dn = mos.hold(object).await?;
        dn.set_class(ClassKind::Dedup);
        let header = dn.with_bonus(LogHeader::parse)?;
        let blocks = header.length / LOG_BLOCK as u64;
        if header.length > 0 && (dn.block_size() as usize != LOG_BLOCK || blocks > dn.max_blkid() + 1) {
            return Err(Error::corrupt(format!(
                "object {object}: a log of {} bytes has no such blocks",
                header.length
            )));
        }
        let mut entries = BTreeMap::new();
        for blkid in 0..blocks {
            let block = dn.read_block(blkid).await?;
            for LogRecord { key, class, flat } in log_records(&block)? {
                if header.checkpoint.is_none_or(|last| key > last) {
                    entries.insert(key, LogEntry { flat, class });
                }
            }
        }
        Ok(Log { dn: Some(dn), header, entries })
    }
}

/// Both logs.
#[derive(Default)]
pub(super) struct Logs {
    /// Gets what changes.
    pub active: Log,
    /// Moves to the ZAPs.
    pub flushing: Log,
}

/// Names of the two objects in the directory of a table.
pub(super) fn names(checksum: &str) -> [String; 2] {
    [0, 1].map(|n| format!("DDT-log-{checksum}-{n}"))
}

impl Logs {
    /// Logs without objects.
    pub fn new() -> Logs {
        let mut logs = Logs::default();
        logs.flushing.header.flushing = true;
        logs
    }

    /// Reads the logs of the table of a checksum, whose directory is `dir`.
    pub async fn read(mos: &Objset, dir: &Dnode, checksum: &str) -> Result<Logs> {
        let mut logs = Logs::new();
        let mut found = Vec::new();
        for name in names(checksum) {
            let Some(object) = zap::lookup_u64(dir, name.as_bytes()).await? else { continue };
            found.push(Log::read(mos, ObjectId(object)).await.at(|| name)?);
        }
        match found.len() {
            0 => return Ok(logs),
            2 if found[0].header.flushing != found[1].header.flushing => {}
            _ => return Err(Error::corrupt(format!("the logs of the table DDT-{checksum} are no pair"))),
        }
        for log in found {
            if log.header.flushing { logs.flushing = log } else { logs.active = log }
        }
        // The active log is newer.
        let Logs { active, flushing } = &mut logs;
        flushing.entries.retain(|key, _| !active.entries.contains_key(key));
        Ok(logs)
    }

    /// The newest state of an entry.
    pub fn find(&self, key: &[u64; 5]) -> Option<LogEntry> {
        self.active.entries.get(key).or_else(|| self.flushing.entries.get(key)).copied()
    }

    /// How many entries there are in both.
    pub fn len(&self) -> usize {
        self.active.entries.len() + self.flushing.entries.len()
    }
}
