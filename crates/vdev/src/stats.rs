//! Counters of a leaf, as `zpool status` and `zpool iostat` show them.

use base::{Log2, Nanos, SECTOR};

use crate::policy::{CLASSES, Prio};

/// Buckets of a latency histogram in ns: the last one counts 69 s and more, as in
/// `zpool iostat -w`.
pub const LATENCY_BUCKETS: usize = 37;

/// Errors of a leaf since it was opened or cleared.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct IoErrors {
    /// Reads that the device failed.
    pub read: u64,
    /// Writes and flushes that the device failed.
    pub write: u64,
    /// Blocks whose checksum did not match.
    pub cksum: u64,
}

/// Counters of a leaf since it was opened. Operations and bytes are those as requested by the
/// layers above; the device saw `device_ops`, fewer and larger.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeafStats {
    /// Errors.
    pub errors: IoErrors,
    /// Operations that took longer than `zio_slow_io_ms`, since it was opened or cleared.
    pub slow_ios: u64,
    /// Reads.
    pub read_ops: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub write_ops: u64,
    /// Bytes written, padding included.
    pub write_bytes: u64,
    /// Flushes issued to the device.
    pub flushes: u64,
    /// Reads, writes and discards issued to the device, after aggregation.
    pub device_ops: u64,
    /// Operations per class (by [`Prio::index`]) by the time from the queue's entry to completion
    /// (`total_wait`).
    pub latency: [Log2<LATENCY_BUCKETS>; CLASSES],
    /// The same by the time at the device (`disk_wait`).
    pub disk_latency: [Log2<LATENCY_BUCKETS>; CLASSES],
    /// The same of the time in the queue.
    pub queue_latency: [Log2<LATENCY_BUCKETS>; CLASSES],
    /// Flushes by duration.
    pub flush_latency: Log2<LATENCY_BUCKETS>,
    /// Sums over the operations of each class.
    pub class: [ClassSums; CLASSES],
    /// Operations of each class by size in sectors of 512 bytes.
    pub size_ind: [Log2<SIZE_BUCKETS>; CLASSES],
    /// Aggregated operations, by total size and the class of the leading operation.
    pub size_agg: [Log2<SIZE_BUCKETS>; CLASSES],
}

/// Buckets of a histogram of sizes: 512 bytes to 16 MiB, as in `zpool iostat -r`.
pub const SIZE_BUCKETS: usize = 16;

/// Sums over the operations of one class.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ClassSums {
    /// Operations.
    pub ops: u64,
    /// Bytes.
    pub bytes: u64,
    /// From the queue's entry to completion, in ns.
    pub total_ns: u64,
    /// At the device, in ns.
    pub disk_ns: u64,
}

impl Default for LeafStats {
    fn default() -> LeafStats {
        LeafStats {
            errors: IoErrors::default(),
            slow_ios: 0,
            read_ops: 0,
            read_bytes: 0,
            write_ops: 0,
            write_bytes: 0,
            flushes: 0,
            device_ops: 0,
            latency: [Log2::default(); CLASSES],
            disk_latency: [Log2::default(); CLASSES],
            queue_latency: [Log2::default(); CLASSES],
            flush_latency: Log2::default(),
            class: [ClassSums::default(); CLASSES],
            size_ind: [Log2::default(); CLASSES],
            size_agg: [Log2::default(); CLASSES],
        }
    }
}

impl LeafStats {
    /// Counts an operation of `bytes` issued to the device, aggregated from `items`.
    pub(crate) fn issued(&mut self, prio: Prio, bytes: u64, items: usize) {
        self.device_ops += 1;
        let sizes = if items > 1 { &mut self.size_agg } else { &mut self.size_ind };
        sizes[prio.index()].add(bytes / SECTOR);
    }
    /// Counts a completed flush.
    pub(crate) fn flushed(&mut self, total: Nanos) {
        self.flush_latency.add(total.0);
    }
    /// Counts a completed operation; `write`: none of a discard, which is neither read nor write.
    pub(crate) fn count(&mut self, prio: Prio, write: Option<bool>, bytes: u64, total: Nanos, disk: Nanos) {
        if write == Some(true) {
            self.write_ops += 1;
            self.write_bytes += bytes;
        } else if write == Some(false) {
            self.read_ops += 1;
            self.read_bytes += bytes;
        }
        let class = &mut self.class[prio.index()];
        class.ops += 1;
        class.bytes += bytes;
        class.total_ns = class.total_ns.saturating_add(total.0);
        class.disk_ns = class.disk_ns.saturating_add(disk.0);
        self.latency[prio.index()].add(total.0);
        self.disk_latency[prio.index()].add(disk.0);
        self.queue_latency[prio.index()].add(total.0.saturating_sub(disk.0));
    }
}

/// Operations in a leaf's queue now, by [`Prio::index`] (`zpool iostat -q`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct QueueDepth {
    /// Waiting operations.
    pub queued: [u32; CLASSES],
    /// Operations at the device.
    pub active: [u32; CLASSES],
}
