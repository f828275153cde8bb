//! The policy of the log: pure functions with the rules and defaults of OpenZFS (`zil.c`).

use base::Nanos;

use ondisk::zil_record::WRITE_SIZE;

use crate::block::BLOCK_MAX;
use crate::log::RECORD_DATA_MAX;

/// How commits share log blocks and flushes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CommitPolicy {
    /// Before illumos 8585: one batch at a time; all its blocks are written, then the devices are
    /// flushed once, then all waiters are woken.
    Batched,
    /// As of 2017: a block is issued when it is full or when its timer ends, a share of the time of
    /// the last block; each block waits for its own write, flush and predecessor, and wakes its
    /// waiters.
    Batchless2017,
    /// As of 2024: a single writer does not wait for others, block sizes follow the last bursts,
    /// and a block without waiters defers its flush to the next. Weir's addition: a block that is
    /// not full waits while each top-level vdev has one in flight ([`in_flight_max`]).
    #[default]
    Modern,
}

impl CommitPolicy {
    /// All of them, oldest first.
    pub const ALL: [CommitPolicy; 3] = [CommitPolicy::Batched, CommitPolicy::Batchless2017, CommitPolicy::Modern];

    /// The policy of that name.
    pub fn by_name(name: &str) -> Option<CommitPolicy> {
        CommitPolicy::ALL.into_iter().find(|p| p.name() == name)
    }
    /// The name that commands use.
    pub const fn name(self) -> &'static str {
        match self {
            CommitPolicy::Batched => "batched",
            CommitPolicy::Batchless2017 => "batchless-2017",
            CommitPolicy::Modern => "modern",
        }
    }
}

/// When changes must be durable (property `sync`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SyncMode {
    /// When that is asked for: fsync, synchronous writes, flushes.
    #[default]
    Standard,
    /// Before the operation ends.
    Always,
    /// With their txg, also if it is asked for.
    Disabled,
}

impl SyncMode {
    /// From the number of the property.
    pub const fn from_number(n: u64) -> SyncMode {
        match n {
            0 => SyncMode::Standard,
            1 => SyncMode::Always,
            _ => SyncMode::Disabled,
        }
    }
}

/// The tunables of intent logs, by the names of OpenZFS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZilTunables {
    /// How commits share blocks and flushes.
    pub policy: CommitPolicy,
    /// `zfs_commit_timeout_pct`: how long a block stays open for more records, in percent of the
    /// time that the last block took. 10 since 2.2.1, 5 before.
    pub commit_timeout_pct: u64,
    /// `zil_slog_bulk`: a burst of more bytes than this goes to a log device with low priority.
    pub slog_bulk: u64,
    /// `zil_maxblocksize`: largest log block, 4 KiB to 128 KiB.
    pub maxblocksize: u64,
    /// `zil_maxcopied`: data up to this many bytes are kept with the record if they are committed
    /// at once.
    pub maxcopied: u64,
    /// `zfs_immediate_write_sz`: writes of at least this many bytes are stored in blocks of their
    /// own, unless there is a log device.
    pub immediate_write_sz: u64,
    /// `zfs_zil_saxattr`: extended attributes in system attributes have records of their own where
    /// the pool has the feature `zilsaxattr`. Without them a commit waits for the txg.
    pub saxattr: bool,
}

impl Default for ZilTunables {
    fn default() -> ZilTunables {
        ZilTunables {
            policy: CommitPolicy::Modern,
            commit_timeout_pct: 10,
            slog_bulk: 64 << 20,
            maxblocksize: BLOCK_MAX,
            maxcopied: 7680,
            immediate_write_sz: 32 << 10,
            saxattr: true,
        }
    }
}

/// How the data of a write get into the log (`itx_wr_state_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteState {
    /// With the record (`WR_COPIED`).
    Copied,
    /// In the file; copied when the record is packed (`WR_NEED_COPY`).
    NeedCopy,
    /// In the file; stored in a block of their own when the record is packed (`WR_INDIRECT`).
    Indirect,
}

/// Input of [`write_state`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteFacts {
    /// Bytes.
    pub size: u64,
    /// Block size of the file.
    pub blocksize: u64,
    /// It is committed at once.
    pub commit: bool,
    /// `logbias=throughput`.
    pub throughput: bool,
    /// There is a log device.
    pub has_slog: bool,
}

/// The state of a write (`zfs_log_write`).
pub fn write_state(w: &WriteFacts, t: &ZilTunables) -> WriteState {
    let large = w.size >= t.immediate_write_sz && (w.size >= w.blocksize / 2 || !w.commit);
    if w.throughput || (large && !w.has_slog) {
        WriteState::Indirect
    } else if w.commit && w.size <= t.maxcopied.min(data_max(t)) {
        WriteState::Copied
    } else {
        WriteState::NeedCopy
    }
}

/// Bursts remembered (`ZIL_BURSTS`).
pub const BURSTS: usize = 8;
/// Sizes that blocks had before bursts were remembered (format page 07 section 2).
const BUCKETS: [u64; 5] = [4096, 8192 + 4096, 32768 + 4096, 65536 + 4096, 128 << 10];
/// Bytes of a block that hold no records.
const OVERHEAD: u64 = ondisk::zil::ZIL_CHAIN_SIZE as u64;

/// The largest log block that the settings allow for several records together.
fn block_max(t: &ZilTunables) -> u64 {
    (t.maxblocksize & !4095).clamp(4096, BLOCK_MAX)
}

/// Bytes of data of one write record at most: with its fixed part it fits into the largest block
/// that the settings allow.
pub fn data_max(t: &ZilTunables) -> u64 {
    (block_max(t) - OVERHEAD - WRITE_SIZE as u64).min(RECORD_DATA_MAX)
}

/// Granularity of the part of an unacknowledged write that survives a crash: a page.
const PAGE: u64 = 4096;

/// Bytes of the next record of a write whose rest is `at..end`; a record takes at most `most`. A
/// crash may keep only the first records of an unacknowledged write: they end at a page boundary,
/// if a record takes a page at all. (OpenZFS cuts anywhere.)
pub fn record_len(at: u64, end: u64, most: u64) -> u64 {
    let length = most.min(end - at);
    let page = (at + length) & !(PAGE - 1);
    if at + length < end && page > at { page - at } else { length }
}

/// The size of the next block: `bursts` are the bytes of records of the last bursts, and the next
/// record has `want` bytes. That record always gets room, even in a block larger than the tunables
/// allow.
pub fn block_size(bursts: &[u64], want: u64, t: &ZilTunables) -> u64 {
    let max = block_max(t);
    let most = bursts.iter().copied().max().unwrap_or(0);
    let room = max - OVERHEAD;
    let size = if t.policy == CommitPolicy::Modern {
        let blocks = most.div_ceil(room).max(1);
        if blocks <= 8 { most.div_ceil(blocks) + OVERHEAD } else { max }
    } else {
        let need = most + OVERHEAD;
        BUCKETS.into_iter().find(|&b| b >= need).unwrap_or(max)
    };
    size.next_multiple_of(4096).min(max).max((want + OVERHEAD).next_multiple_of(4096).min(BLOCK_MAX))
}

/// When an open block with the records of a commit is issued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closing {
    /// It is issued now.
    Now,
    /// It waits for more records, but no longer than this.
    After(Nanos),
}

/// When an open block is issued, if the last block took `latency`; `parallel` is the measure of
/// parallel commits ([`parallel_after`]).
pub fn closing(parallel: u32, latency: Nanos, t: &ZilTunables) -> Closing {
    match t.policy {
        CommitPolicy::Batched => Closing::Now,
        CommitPolicy::Modern if parallel == 0 => Closing::Now,
        _ => Closing::After(Nanos(latency.0 * t.commit_timeout_pct / 100)),
    }
}

/// Blocks in flight from which on a block that is not full waits for more records, with blocks on
/// `tops` top-level vdevs; `None`: never. A device with more blocks than it makes durable in
/// parallel takes longer for each, and each flush covers few writes: with many writers throughput
/// falls and latency grows. (OpenZFS goes by time alone.)
pub fn in_flight_max(policy: CommitPolicy, tops: usize) -> Option<usize> {
    (policy == CommitPolicy::Modern).then_some(tops.max(1))
}

/// The measure of parallel commits when a commit begins (`zl_parallel`): `open` means an open block
/// with records, `busy` that the block before it is not FLUSH_DONE.
pub fn parallel_after(parallel: u32, open: bool, busy: bool) -> u32 {
    let bursts = BURSTS as u32;
    match (open, busy) {
        (true, _) => bursts,
        (false, true) => parallel.max(bursts / 2),
        _ => parallel,
    }
}

/// Bursts remembered with a policy ([`block_size`]).
pub fn bursts_kept(policy: CommitPolicy) -> usize {
    match policy {
        CommitPolicy::Modern => BURSTS,
        CommitPolicy::Batched | CommitPolicy::Batchless2017 => 16,
    }
}

/// The time that blocks take (`zl_last_lwb_latency`) after one that took `took`: the last with the
/// policy of 2017, else an average.
pub fn latency_after(policy: CommitPolicy, latency: Nanos, took: Nanos) -> Nanos {
    match policy {
        CommitPolicy::Batchless2017 => took,
        _ if latency.0 == 0 => took,
        _ => Nanos((latency.0 * 7 + took.0) / 8),
    }
}

/// Whether a block goes to its device with low priority, in a burst of `burst` bytes so far.
pub fn is_bulk(on_log_device: bool, burst: u64, t: &ZilTunables) -> bool {
    on_log_device && burst > t.slog_bulk
}

/// Whether a commit of an object all of whose records are in blocks packs nothing. (OpenZFS before
/// 2017 always packs.)
pub fn may_skip_packing(policy: CommitPolicy) -> bool {
    policy == CommitPolicy::Modern
}

/// Input of [`flush_of`], about a block that is issued now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockFacts {
    /// The block before it is being written, and no commit waits for that one.
    pub before_unawaited: bool,
    /// Commits wait for it, and nothing needs a flush for them but its own write.
    pub own_write_only: bool,
    /// Its device can make a single write durable.
    pub writes_durably: bool,
}

/// How a block becomes durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flush {
    /// It flushes after its write.
    Own,
    /// Its batch flushes for it.
    Batch,
    /// It flushes after its write, for the block before it, too (`lwb_flush_defer`).
    TakesOver,
    /// Its write is durable; nothing is flushed.
    Durable,
}

/// How a block becomes durable that is issued now.
pub fn flush_of(policy: CommitPolicy, b: &BlockFacts) -> Flush {
    match policy {
        CommitPolicy::Batched => Flush::Batch,
        CommitPolicy::Batchless2017 => Flush::Own,
        CommitPolicy::Modern if b.before_unawaited => Flush::TakesOver,
        CommitPolicy::Modern if b.own_write_only && b.writes_durably => Flush::Durable,
        CommitPolicy::Modern => Flush::Own,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_classed_as_in_openzfs() {
        let t = ZilTunables::default();
        let w = WriteFacts { size: 8192, blocksize: 128 << 10, commit: false, throughput: false, has_slog: false };
        for (facts, want) in [
            (w, WriteState::NeedCopy),
            (WriteFacts { commit: true, ..w }, WriteState::NeedCopy),
            (WriteFacts { commit: true, size: 4096, ..w }, WriteState::Copied),
            (WriteFacts { throughput: true, size: 512, ..w }, WriteState::Indirect),
            (WriteFacts { size: 32 << 10, ..w }, WriteState::Indirect),
            (WriteFacts { size: 32 << 10, commit: true, ..w }, WriteState::NeedCopy),
            (WriteFacts { size: 64 << 10, commit: true, ..w }, WriteState::Indirect),
            (WriteFacts { size: 64 << 10, commit: true, has_slog: true, ..w }, WriteState::NeedCopy),
        ] {
            assert_eq!(write_state(&facts, &t), want, "{facts:?}");
        }
    }

    #[test]
    fn blocks_are_as_large_as_bursts() {
        let t = ZilTunables::default();
        for (bursts, want, size) in [
            (&[][..], 0, 4096),
            (&[300], 0, 4096),
            (&[8400, 100], 0, 12288),
            (&[0], 9000, 12288),
            (&[140_000], 0, 73728),
            (&[9 << 20], 0, 128 << 10),
            (&[0], 1 << 20, 128 << 10),
        ] {
            assert_eq!(block_size(bursts, want, &t), size, "{bursts:?} {want}");
        }
        let small = ZilTunables { maxblocksize: 8192, ..t };
        for (want, size) in [(data_max(&small) + WRITE_SIZE as u64, 8192), (60_000, 61440), (1 << 20, 128 << 10)] {
            assert_eq!(block_size(&[1 << 20], want, &small), size, "{want}");
        }
        let old = ZilTunables { policy: CommitPolicy::Batchless2017, ..t };
        for (burst, size) in [(100, 4096), (8400, 12288), (13000, 36864), (50_000, 69632), (90_000, 131_072)] {
            assert_eq!(block_size(&[burst], 0, &old), size);
        }
    }

    #[test]
    fn writes_are_cut_between_pages() {
        for (at, end, most, want) in [
            (0, 100, 7816, 100),
            (0, 8192, 7816, 4096),
            (4096, 8192, 7816, 4096),
            (100, 20_000, 7816, 4096 - 100),
            (100, 20_000, 8192, 8192 - 100),
            (12_288, 262_144, 130_696, 126_976),
            (5000, 20_000, 3000, 3000),
            (4000, 20_000, 3000, 96),
            (0, 20_000, 3000, 3000),
        ] {
            assert_eq!(record_len(at, end, most), want, "{at} {end} {most}");
        }
    }

    #[test]
    fn each_top_level_vdev_has_a_block_in_flight() {
        let of = |tops| CommitPolicy::ALL.map(|p| in_flight_max(p, tops));
        assert_eq!(of(0), [None, None, Some(1)]);
        assert_eq!(of(4), [None, None, Some(4)]);
    }

    #[test]
    fn a_lone_writer_does_not_wait() {
        let t = ZilTunables::default();
        let us = Nanos::from_us;
        assert_eq!(closing(0, us(1000), &t), Closing::Now);
        assert_eq!(closing(4, us(1000), &t), Closing::After(us(100)));
        let old = ZilTunables { policy: CommitPolicy::Batchless2017, commit_timeout_pct: 5, ..t };
        assert_eq!(closing(0, us(1000), &old), Closing::After(us(50)));
        assert_eq!(
            (parallel_after(0, false, false), parallel_after(0, false, true), parallel_after(1, true, true)),
            (0, 4, 8)
        );
    }

    #[test]
    fn blocks_share_flushes_by_policy() {
        let facts = |b: [bool; 3]| BlockFacts { before_unawaited: b[0], own_write_only: b[1], writes_durably: b[2] };
        for (bits, modern) in [
            ([false, false, false], Flush::Own),
            ([false, false, true], Flush::Own),
            ([false, true, false], Flush::Own),
            ([false, true, true], Flush::Durable),
            ([true, false, false], Flush::TakesOver),
            ([true, false, true], Flush::TakesOver),
            ([true, true, false], Flush::TakesOver),
            // The block before needs a flush anyway.
            ([true, true, true], Flush::TakesOver),
        ] {
            let of = CommitPolicy::ALL.map(|p| flush_of(p, &facts(bits)));
            assert_eq!(of, [Flush::Batch, Flush::Own, modern], "{bits:?}");
        }
    }

    #[test]
    fn latencies_are_averaged_but_with_the_policy_of_2017() {
        for (latency, took, want) in [
            (0, 800, [800, 800, 800]),
            (800, 800, [800, 800, 800]),
            (800, 0, [700, 0, 700]),
            (800, 1600, [900, 1600, 900]),
            (1, 0, [0, 0, 0]),
        ] {
            let after = CommitPolicy::ALL.map(|p| latency_after(p, Nanos(latency), Nanos(took)).0);
            assert_eq!(after, want, "{latency} {took}");
        }
    }

    #[test]
    fn policies_remember_bursts_and_skip_packing() {
        assert_eq!(CommitPolicy::ALL.map(bursts_kept), [16, 16, BURSTS]);
        assert_eq!(CommitPolicy::ALL.map(may_skip_packing), [false, false, true]);
    }

    #[test]
    fn large_bursts_are_bulk_on_log_devices() {
        let t = ZilTunables { slog_bulk: 1000, ..ZilTunables::default() };
        for (on_log, burst, bulk) in
            [(false, 0, false), (false, 1001, false), (true, 0, false), (true, 1000, false), (true, 1001, true)]
        {
            assert_eq!(is_bulk(on_log, burst, &t), bulk, "{on_log} {burst}");
        }
    }
}
