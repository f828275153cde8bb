//! Counters of a log, and of all logs of a pool.

use std::cell::Cell;

use base::Nanos;
use rt::trace::LogTimes;

use crate::policy::ZilTunables;

/// Counters of a log since it came into use.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ZilStats {
    /// Commits that had to wait.
    pub commits: u64,
    /// Of these, those that had records to write out; the others waited for blocks under way.
    pub writers: u64,
    /// Records packed.
    pub records: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of these, writes with their data.
    pub copied: u64,
    /// Bytes of those data.
    pub copied_bytes: u64,
    /// Writes whose data are in blocks of their own.
    pub indirect: u64,
    /// Bytes of those data.
    pub indirect_bytes: u64,
    /// Blocks issued.
    pub blocks: u64,
    /// Bytes of them that were written.
    pub block_bytes: u64,
    /// Bytes of them that were in use: records and what chains the blocks.
    pub used_bytes: u64,
    /// Blocks issued to log devices.
    pub slog_blocks: u64,
    /// Bytes of these that were written.
    pub slog_block_bytes: u64,
    /// Bytes of these that were in use.
    pub slog_used_bytes: u64,
    /// Blocks issued because the next record did not fit.
    pub full: u64,
    /// Blocks issued by a timer.
    pub timeouts: u64,
    /// Blocks that left their flush to the next.
    pub deferred: u64,
    /// Flushes of top-level vdevs.
    pub flushes: u64,
    /// Commits that blocks served.
    pub waiters: u64,
    /// Times that commits waited for a txg because an operation has no record.
    pub barriers: u64,
    /// Times that a record could not be logged, and commits waited for their txg.
    pub stalls: u64,
    /// Blocks that failed.
    pub failures: u64,
    /// Commits that waited for a txg because of that.
    pub fallbacks: u64,
    /// Time that blocks were open with records in them.
    pub queue_time: Nanos,
    /// Time that their writes took.
    pub write_time: Nanos,
    /// Time that flushes took; a flush for several blocks counts for each.
    pub flush_time: Nanos,
    /// Time from issue to FLUSH_DONE: write, flush, the wait for the block before.
    pub total_time: Nanos,
}

/// What the logs of a pool share: their tunables, and the counters of all of them together, also of
/// those that are closed.
#[derive(Default, Debug)]
pub struct PoolLogs {
    tunables: Cell<ZilTunables>,
    total: Cell<ZilStats>,
}

impl PoolLogs {
    /// No log yet.
    pub fn new(tunables: ZilTunables) -> PoolLogs {
        PoolLogs { tunables: Cell::new(tunables), total: Cell::default() }
    }
    /// The tunables.
    pub fn tunables(&self) -> ZilTunables {
        self.tunables.get()
    }
    /// Changes them: open logs follow from their next decision on.
    pub fn set_tunables(&self, tunables: ZilTunables) {
        self.tunables.set(tunables);
    }
    /// Counters of all logs since the pool was opened.
    pub fn total(&self) -> ZilStats {
        self.total.get()
    }
    pub(crate) fn count(&self, f: impl Fn(&mut ZilStats)) {
        let mut s = self.total.get();
        f(&mut s);
        self.total.set(s);
    }
}

impl ZilStats {
    /// Counts a block that is done, and the commits that waited for it.
    pub(crate) fn block_done(&mut self, waiters: usize, t: LogTimes) {
        self.waiters += waiters as u64;
        self.queue_time = self.queue_time + t.queue;
        self.write_time = self.write_time + t.write;
        self.flush_time = self.flush_time + t.flush;
        self.total_time = self.total_time + t.write + t.flush + t.order;
    }
}
