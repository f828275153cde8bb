//! Counters of a leaf, as `zpool status` and `zpool iostat` show them.

use base::Nanos;

use crate::policy::{CLASSES, Prio};

/// Buckets of a latency histogram: bucket b counts 2^b .. 2^(b+1) ns, the last one everything above (137 s), as in `zpool iostat -w`.
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

/// Counters of a leaf since it was opened. Operations and bytes are those that the layers above asked for; the device saw `device_ops`, fewer and larger.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeafStats {
    /// Errors.
    pub errors: IoErrors,
    /// Reads.
    pub read_ops: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub write_ops: u64,
    /// Bytes written, padding included.
    pub write_bytes: u64,
    /// Flushes that went to the device.
    pub flushes: u64,
    /// Reads and writes that went to the device after gathering.
    pub device_ops: u64,
    /// Operations per class (by [`Prio::index`]) by the time from the queue's entry to completion (`total_wait`).
    pub latency: [[u64; LATENCY_BUCKETS]; CLASSES],
    /// The same by the time at the device (`disk_wait`).
    pub disk_latency: [[u64; LATENCY_BUCKETS]; CLASSES],
}

impl Default for LeafStats {
    fn default() -> LeafStats {
        LeafStats {
            errors: IoErrors::default(),
            read_ops: 0,
            read_bytes: 0,
            write_ops: 0,
            write_bytes: 0,
            flushes: 0,
            device_ops: 0,
            latency: [[0; LATENCY_BUCKETS]; CLASSES],
            disk_latency: [[0; LATENCY_BUCKETS]; CLASSES],
        }
    }
}

fn bucket(span: Nanos) -> usize {
    (span.0.max(1).ilog2() as usize).min(LATENCY_BUCKETS - 1)
}

impl LeafStats {
    pub(crate) fn count(&mut self, prio: Prio, write: bool, bytes: u64, total: Nanos, disk: Nanos) {
        if write {
            self.write_ops += 1;
            self.write_bytes += bytes;
        } else {
            self.read_ops += 1;
            self.read_bytes += bytes;
        }
        self.latency[prio.index()][bucket(total)] += 1;
        self.disk_latency[prio.index()][bucket(disk)] += 1;
    }
}

/// What is in a leaf's queue now, by [`Prio::index`] (`zpool iostat -q`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct QueueDepth {
    /// Operations that wait.
    pub queued: [u32; CLASSES],
    /// Operations at the device.
    pub active: [u32; CLASSES],
}
