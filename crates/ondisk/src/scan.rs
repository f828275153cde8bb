//! The record of a pool's last or running scan: entry `scan` of the MOS directory, 24 words (format
//! page 09 section 7).
//!
//! The *bookmark* of a running scan names the block that is visited next; the *queue*, a ZAP of
//! datasets with the txg after which their blocks are theirs to be visited, exists only while the
//! scan runs. A bookmark of zeros is the beginning of the MOS, with which every scan starts.

use base::{ObjectId, Txg};

use crate::bpobj::Bookmark;

/// Words of the record (`SCAN_PHYS_NUMINTS`).
pub const SCAN_WORDS: usize = 24;
/// The object set in a bookmark while no dataset is under way (`ZB_DESTROYED_OBJSET`).
pub const NO_OBJSET: u64 = u64::MAX;
/// Flag: the dataset under way is to be visited once more from its beginning
/// (`DSF_VISIT_DS_AGAIN`).
pub const VISIT_AGAIN: u64 = 1;
/// Flag: the scrub is paused (`DSF_SCRUB_PAUSED`).
pub const PAUSED: u64 = 2;

/// The function of a scan.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ScanFunc {
    /// There was none.
    #[default]
    None,
    /// Reads everything.
    Scrub,
    /// Reads the blocks that a device may miss.
    Resilver,
}

/// How far a scan is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ScanState {
    /// There was none.
    #[default]
    None,
    /// It runs, or is paused.
    Scanning,
    /// It came to its end.
    Finished,
    /// It was stopped.
    Canceled,
}

/// The record.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ScanPhys {
    /// Its function.
    pub func: ScanFunc,
    /// How far it is.
    pub state: ScanState,
    /// ZAP of datasets that are to be visited; 0 unless it runs.
    pub queue_obj: ObjectId,
    /// Blocks born in this txg or before are left out.
    pub min_txg: Txg,
    /// Blocks born after this txg are left out.
    pub max_txg: Txg,
    /// The same for the dataset under way.
    pub cur_min_txg: Txg,
    /// The same for the dataset under way.
    pub cur_max_txg: Txg,
    /// Seconds since 1970.
    pub start_time: u64,
    /// Seconds since 1970; 0 while it runs.
    pub end_time: u64,
    /// Allocated bytes of the pool when it began.
    pub to_examine: u64,
    /// Allocated bytes of the blocks visited.
    pub examined: u64,
    /// Bytes to be repaired; not used.
    pub to_process: u64,
    /// Bytes rewritten.
    pub processed: u64,
    /// Blocks that could not be had.
    pub errors: u64,
    /// Classes of dedup tables whose entries are visited before the datasets: those up to this one.
    pub ddt_class_max: u64,
    /// Where among them it is: class, type, checksum, cursor.
    pub ddt_bookmark: [u64; 4],
    /// The block that is visited next.
    pub bookmark: Bookmark,
    /// `VISIT_AGAIN`, `PAUSED`.
    pub flags: u64,
}

impl ScanPhys {
    /// Reads a record; missing words are 0, unknown functions and states `None`.
    pub fn from_words(words: &[u64]) -> ScanPhys {
        let w = |i: usize| words.get(i).copied().unwrap_or(0);
        ScanPhys {
            func: match w(0) {
                1 => ScanFunc::Scrub,
                2 => ScanFunc::Resilver,
                _ => ScanFunc::None,
            },
            state: match w(1) {
                1 => ScanState::Scanning,
                2 => ScanState::Finished,
                3 => ScanState::Canceled,
                _ => ScanState::None,
            },
            queue_obj: ObjectId(w(2)),
            min_txg: Txg(w(3)),
            max_txg: Txg(w(4)),
            cur_min_txg: Txg(w(5)),
            cur_max_txg: Txg(w(6)),
            start_time: w(7),
            end_time: w(8),
            to_examine: w(9),
            examined: w(10),
            to_process: w(11),
            processed: w(12),
            errors: w(13),
            ddt_class_max: w(14),
            ddt_bookmark: [w(15), w(16), w(17), w(18)],
            bookmark: Bookmark { objset: w(19), object: w(20), level: w(21) as i64, blkid: w(22) },
            flags: w(23),
        }
    }

    /// The record as it is stored.
    pub fn to_words(&self) -> [u64; SCAN_WORDS] {
        let [d0, d1, d2, d3] = self.ddt_bookmark;
        let b = self.bookmark;
        [
            match self.func {
                ScanFunc::None => 0,
                ScanFunc::Scrub => 1,
                ScanFunc::Resilver => 2,
            },
            match self.state {
                ScanState::None => 0,
                ScanState::Scanning => 1,
                ScanState::Finished => 2,
                ScanState::Canceled => 3,
            },
            self.queue_obj.0,
            self.min_txg.0,
            self.max_txg.0,
            self.cur_min_txg.0,
            self.cur_max_txg.0,
            self.start_time,
            self.end_time,
            self.to_examine,
            self.examined,
            self.to_process,
            self.processed,
            self.errors,
            self.ddt_class_max,
            d0,
            d1,
            d2,
            d3,
            b.objset,
            b.object,
            b.level as u64,
            b.blkid,
            self.flags,
        ]
    }

    /// Whether the scan is paused.
    pub fn is_paused(&self) -> bool {
        self.state == ScanState::Scanning && self.flags & PAUSED != 0
    }
}

/// Words of the record of an error scrub (`ERRORSCRUB_PHYS_NUMINTS`).
pub const ERROR_SCRUB_WORDS: usize = 9;
/// The function of an error scrub (`POOL_SCAN_ERRORSCRUB`), and its state while it runs
/// (`DSS_ERRORSCRUBBING`).
const ERROR_SCRUB: u64 = 3;
const ERROR_SCRUBBING: u64 = 4;

/// The record of the last or running scrub of the blocks in the error log: entry `error_scrub` of
/// the MOS directory, 9 words (format page 17 section 2).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ErrorScrubPhys {
    /// How far it is; `None`: there was none, or a scan has begun since.
    pub state: ScanState,
    /// Place in the error log, as a serialized cursor; 0: its beginning.
    pub cursor: u64,
    /// Seconds since 1970.
    pub start_time: u64,
    /// Seconds since 1970; 0 while it runs.
    pub end_time: u64,
    /// Blocks of the log that are still to be read.
    pub to_examine: u64,
    /// Blocks that were read.
    pub examined: u64,
    /// Blocks that are still damaged.
    pub errors: u64,
    /// Whether it is paused.
    pub paused: bool,
}

impl ErrorScrubPhys {
    /// Reads a record; missing words are 0, unknown functions and states `None`.
    pub fn from_words(words: &[u64]) -> ErrorScrubPhys {
        let w = |i: usize| words.get(i).copied().unwrap_or(0);
        ErrorScrubPhys {
            state: match (w(0), w(1)) {
                (ERROR_SCRUB, ERROR_SCRUBBING) => ScanState::Scanning,
                (ERROR_SCRUB, 2) => ScanState::Finished,
                (ERROR_SCRUB, 3) => ScanState::Canceled,
                _ => ScanState::None,
            },
            cursor: w(2),
            start_time: w(3),
            end_time: w(4),
            to_examine: w(5),
            examined: w(6),
            errors: w(7),
            paused: w(8) != 0,
        }
    }

    /// The record as it is stored.
    pub fn to_words(&self) -> [u64; ERROR_SCRUB_WORDS] {
        let (func, state) = match self.state {
            ScanState::None => return [0; ERROR_SCRUB_WORDS],
            ScanState::Scanning => (ERROR_SCRUB, ERROR_SCRUBBING),
            ScanState::Finished => (ERROR_SCRUB, 2),
            ScanState::Canceled => (ERROR_SCRUB, 3),
        };
        let paused = u64::from(self.paused);
        [func, state, self.cursor, self.start_time, self.end_time, self.to_examine, self.examined, self.errors, paused]
    }

    /// Whether it runs, or is paused.
    pub fn is_running(&self) -> bool {
        self.state == ScanState::Scanning
    }
}

/// Entry in the ZAP of a top-level vdev: the record of its last sequential rebuild
/// (`vdev_rebuild.h` of OpenZFS 2.0).
pub const REBUILD_KEY: &[u8] = b"org.openzfs:vdev_rebuild";
/// Words of that record.
pub const REBUILD_WORDS: usize = 12;

/// The record of the sequential rebuild of a top-level vdev that is under way, or of the last one.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RebuildPhys {
    /// How far it is.
    pub state: ScanState,
    /// Everything below this offset of the vdev is rebuilt.
    pub last_offset: u64,
    /// Txgs after this one were missing.
    pub min_txg: Txg,
    /// Txgs before this one were missing.
    pub max_txg: Txg,
    /// Seconds since 1970.
    pub start_time: u64,
    /// Seconds since 1970; 0 while it runs.
    pub end_time: u64,
    /// Milliseconds that it took, without the time in which the pool was not imported.
    pub time_ms: u64,
    /// Allocated bytes that it has looked at.
    pub scanned: u64,
    /// Of these, bytes that it has read.
    pub issued: u64,
    /// Bytes that it has written.
    pub rebuilt: u64,
    /// Bytes to look at in all, by estimate.
    pub estimate: u64,
    /// Ranges that it could not rebuild.
    pub errors: u64,
}

impl RebuildPhys {
    /// Reads a record; missing words are 0, an unknown state is `None`.
    pub fn from_words(words: &[u64]) -> RebuildPhys {
        let w = |i: usize| words.get(i).copied().unwrap_or(0);
        RebuildPhys {
            state: match w(0) {
                1 => ScanState::Scanning,
                2 => ScanState::Canceled,
                3 => ScanState::Finished,
                _ => ScanState::None,
            },
            last_offset: w(1),
            min_txg: Txg(w(2)),
            max_txg: Txg(w(3)),
            start_time: w(4),
            end_time: w(5),
            time_ms: w(6),
            scanned: w(7),
            issued: w(8),
            rebuilt: w(9),
            estimate: w(10),
            errors: w(11),
        }
    }

    /// The record as it is stored.
    pub fn to_words(&self) -> [u64; REBUILD_WORDS] {
        let state = match self.state {
            ScanState::None => 0,
            ScanState::Scanning => 1,
            ScanState::Canceled => 2,
            ScanState::Finished => 3,
        };
        let (min, max) = (self.min_txg.0, self.max_txg.0);
        let times = [self.start_time, self.end_time, self.time_ms];
        let bytes = [self.scanned, self.issued, self.rebuilt, self.estimate];
        let mut out = [0; REBUILD_WORDS];
        let all = [state, self.last_offset, min, max].into_iter().chain(times).chain(bytes).chain([self.errors]);
        out.iter_mut().zip(all).for_each(|(to, word)| *to = word);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back() {
        let words: Vec<u64> = (0..SCAN_WORDS as u64).map(|i| if i < 2 { i + 1 } else { i * 1000 }).collect();
        let phys = ScanPhys::from_words(&words);
        assert_eq!((phys.func, phys.state), (ScanFunc::Scrub, ScanState::Finished));
        assert_eq!(phys.to_words()[..], words);
        assert_eq!(ScanPhys::from_words(&[]), ScanPhys::default());
    }

    #[test]
    fn records_of_rebuilds_come_back() {
        for state in 0..4 {
            let words: Vec<u64> = (0..REBUILD_WORDS as u64).map(|i| if i == 0 { state } else { i * 100 }).collect();
            assert_eq!(RebuildPhys::from_words(&words).to_words()[..], words);
        }
        assert_eq!(RebuildPhys::from_words(&[7]), RebuildPhys::default());
    }

    #[test]
    fn records_of_error_scrubs_come_back() {
        for state in [2, 3, 4] {
            let words = [3, state, 20, 30, 40, 50, 60, 70, 1];
            assert_eq!(ErrorScrubPhys::from_words(&words).to_words(), words);
        }
        for none in [&[][..], &[0; 9], &[3, 1, 5], &[1, 4, 5]] {
            assert_eq!(ErrorScrubPhys::from_words(none).to_words(), [0; ERROR_SCRUB_WORDS]);
        }
        assert!(ErrorScrubPhys::from_words(&[3, 4]).is_running());
    }
}
