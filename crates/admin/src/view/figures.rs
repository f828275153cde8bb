//! Statistics of the data flow: latencies, queues, transaction groups, the throttle. Counters are
//! totals since the pool was opened; the difference of two views gives rates. Times are in
//! nanoseconds unless a field says otherwise.

use serde::{Deserialize, Serialize};

/// Latency histograms: bucket b counts operations of 2^b to 2^(b+1) ns.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct PoolLatency {
    /// Names of the classes.
    pub classes: Vec<String>,
    /// Per class, from the queue's entry to completion.
    pub total: Vec<Vec<u64>>,
    /// Per class, at the device.
    pub disk: Vec<Vec<u64>>,
}

/// Counters of a device, or of all devices below a vdev together.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct IoStats {
    /// Reads and writes requested.
    pub ops: [u64; 2],
    /// Their bytes.
    pub bytes: [u64; 2],
    /// Flushes.
    pub flushes: u64,
    /// Per class: operations, bytes, ns from the queue's entry to the end, ns at the device.
    pub class: Vec<[u64; 4]>,
    /// Per class: operations by time from the queue's entry to the end; bucket b: 2^b ns and more.
    pub total: Vec<Vec<u64>>,
    /// Per class: by time at the device.
    pub disk: Vec<Vec<u64>>,
    /// Per class: by time in the queue.
    #[serde(default)]
    pub queue: Vec<Vec<u64>>,
    /// Flushes by time.
    pub flush: Vec<u64>,
    /// Per class: device operations that were not aggregated, by size; bucket b: 2^(b+9) bytes and
    /// more.
    pub ind: Vec<Vec<u64>>,
    /// Per class: aggregated device operations by size.
    pub agg: Vec<Vec<u64>>,
    /// Per class: operations in the queue now.
    pub queued: Vec<u64>,
    /// Per class: operations at the device now.
    pub active: Vec<u64>,
}

/// A pool or vdev with its counters.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct IoView {
    /// Its name; the full path of a device.
    pub name: String,
    /// Its kind in the configuration: `root`, `mirror`, `disk`, `file` ...
    #[serde(default)]
    pub kind: String,
    /// Its guid.
    #[serde(default)]
    pub guid: u64,
    /// The section of a top-level vdev: `dedup`, `special`, `logs`, `cache`, or empty.
    #[serde(default)]
    pub class: String,
    /// Bytes in use; only pools and top-level vdevs have it.
    pub alloc: Option<u64>,
    /// Bytes free.
    pub free: Option<u64>,
    /// Time of the view, on the engine's clock in ns; the same for all vdevs of a pool.
    pub at: u64,
    /// Start of the counters, on the same clock.
    pub since: u64,
    /// The counters.
    pub stats: IoStats,
    /// Its child vdevs.
    pub children: Vec<IoView>,
}

/// A txg's life so far.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct TxgSpan {
    /// Which.
    pub txg: u64,
    /// `open`, `quiescing`, `quiesced`, `syncing`, `synced`.
    pub state: String,
    /// Bytes made dirty in it.
    pub dirty: u64,
    /// Transactions delayed or blocked while it was open.
    pub delayed: u64,
    /// Time open, waiting and syncing, in ns.
    pub spans: [u64; 3],
}

/// I/O through the mount of a file system.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct DatasetIo {
    /// Its name.
    pub name: String,
    /// Reads, their bytes, writes, their bytes.
    pub io: [u64; 4],
}

/// The data flow through a pool.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct FlowView {
    /// Its devices, with the pool's name and the time of the view.
    pub io: IoView,
    /// The throttle's policy.
    pub throttle: String,
    /// Dirty bytes.
    pub dirty: u64,
    /// Their limit.
    pub dirty_max: u64,
    /// Dirty bytes at which the delay of writes begins.
    pub delay_from: u64,
    /// Dirty bytes at which a txg is closed.
    pub sync_from: u64,
    /// The delay of a write now, in ns.
    pub delay_ns: u64,
    /// Transactions that were delayed.
    pub delayed: u64,
    /// How long, in ns.
    pub delayed_ns: u64,
    /// Transactions blocked at the limit.
    pub blocked: u64,
    /// Transactions blocked now.
    pub blocked_now: u64,
    /// Administrative operations since the import, by the time until they were on disk; bucket b:
    /// 2^b us and more.
    #[serde(default)]
    pub admin: Vec<u64>,
    /// Their total time, in ns.
    #[serde(default)]
    pub admin_ns: u64,
    /// Txgs on disk since the import.
    pub synced: u64,
    /// The last txgs, the open one last.
    pub txgs: Vec<TxgSpan>,
    /// The cache: bytes, limit, hits, misses.
    pub arc: [u64; 4],
    /// Mounted file systems.
    pub datasets: Vec<DatasetIo>,
}

/// A distribution with its sums. Bucket b counts values of 2^b up to twice that; bucket 0 also 0.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Dist {
    /// Counts.
    pub buckets: Vec<u64>,
    /// Values.
    pub count: u64,
    /// Their sum.
    pub sum: f64,
    /// The sum of their squares.
    pub squares: f64,
    /// Bytes of these operations.
    pub bytes: u64,
}

/// A txg, as an instrument recorded it.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct TxgView {
    /// Which.
    pub txg: u64,
    /// Dirty bytes of the pool when its sync began.
    pub dirty: u64,
    /// The dirty limit then.
    pub limit: u64,
    /// Bytes made dirty in it.
    pub of_txg: u64,
    /// Times open, quiescing, waiting and syncing, in ns; none for a phase that began before the
    /// trace.
    pub spans: [Option<u64>; 4],
}

/// What was recorded of the operations of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct RecordedView {
    /// Operations.
    pub ops: u64,
    /// Operations that were lost because the recording was not taken fast enough.
    pub lost: u64,
    /// Bytes of the recording.
    pub bytes: u64,
    /// How long it took, in nanoseconds.
    pub span: u64,
}

/// The counts of trace events.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct TraceView {
    /// Its interval, in ns.
    pub span: u64,
    /// Number of all events.
    pub events: u64,
    /// Txgs that began to sync (dirty) or are on disk (txg), the last thousand.
    pub txgs: Vec<TxgView>,
    /// Latencies in us: read, write, flush, trim, then each class by name.
    pub io: Vec<(String, Dist)>,
    /// Depth of the queue of async writes at each issue, per txg that was syncing.
    pub queue: Vec<(u64, Dist)>,
    /// Writes that passed the throttle without waiting.
    pub undelayed: u64,
    /// Waits of the others in us.
    pub delay: Dist,
    /// Blocks of intent logs: from their first record until they were durable, in us; bytes are
    /// those of records.
    pub log: Dist,
    /// Further figures of these blocks.
    #[serde(default)]
    pub log_blocks: LogView,
    /// Administrative operations: from the request until they were on disk, in us.
    #[serde(default)]
    pub admin: Dist,
    /// Turns of the pool's thread, that is polls of tasks, in ns.
    #[serde(default)]
    pub turns: Dist,
    /// The same without the time for which the thread had no processor.
    #[serde(default)]
    pub turns_on_cpu: Dist,
    /// The longest of them, the longest first.
    #[serde(default)]
    pub longest_turns: Vec<TurnView>,
    /// The one that used a processor for longest.
    #[serde(default)]
    pub longest_on_cpu: Option<TurnView>,
    /// Tasks with turns of 1 ms or longer since the pool's thread started.
    #[serde(default)]
    pub slow_tasks: Vec<SlowTaskView>,
}

/// A turn of a task.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct TurnView {
    /// The name of the task.
    pub task: String,
    /// How long it took, in ns.
    pub took: u64,
    /// The part of it for which the thread had a processor, in ns.
    #[serde(default)]
    pub on_cpu: u64,
}

/// Tasks of one name with slow turns.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct SlowTaskView {
    /// Their name.
    pub task: String,
    /// Number of slow turns.
    pub turns: u64,
    /// The longest, in ns.
    pub longest: u64,
}

/// A kind of background work.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct ActivityView {
    /// Its name, as `zpool wait -t` has it.
    pub name: String,
    /// Some of it is under way.
    pub busy: bool,
    /// Bytes left, if known.
    pub left: u64,
}

/// An event of a pool.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct EventView {
    /// Its number; the first of a daemon has 1.
    pub eid: u64,
    /// The class, by OpenZFS's name.
    pub class: String,
    /// Its time in seconds since 1970.
    pub secs: i64,
    /// And nanoseconds.
    pub nanos: u32,
    /// The pool.
    pub pool: String,
    /// Its payload.
    pub fields: Vec<(String, FieldView)>,
}

/// A field of an event, by its kind.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FieldView {
    /// Yes or no.
    Flag(bool),
    /// A number of 32 bits with a sign.
    Int32(i32),
    /// A number with a sign.
    Int64(i64),
    /// A number without one.
    Uint64(u64),
    /// Text of limited length, on one line.
    Text(String),
    /// Several numbers.
    Int64s(Vec<i64>),
    /// Several numbers without a sign.
    Uint64s(Vec<u64>),
    /// Several texts.
    Texts(Vec<String>),
    /// Fields within the field.
    Fields(Vec<(String, FieldView)>),
    /// Of a kind that events do not have.
    Other,
}

/// Events, oldest first.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct EventsView {
    /// The events.
    pub events: Vec<EventView>,
    /// The number to continue after.
    pub last: u64,
    /// There are more at once.
    pub more: bool,
}

/// Sums over the blocks of intent logs that became durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LogView {
    /// Their sizes in bytes.
    pub size: u64,
    /// Commits that waited for one of them.
    pub waiters: u64,
    /// Time in ns from the first record until a block went to its device.
    pub queue: u64,
    /// Time of writes.
    pub write: u64,
    /// Time of flushes; a flush for several blocks counts for each.
    pub flush: u64,
    /// Further time that blocks waited for earlier blocks or their batch.
    pub order: u64,
    /// Bytes that may be in logs and not on disk yet (`zfs_wrlog_data_max`).
    #[serde(default)]
    pub limit: u64,
    /// Time in ns after which a txg is synced (`zfs_txg_timeout`).
    #[serde(default)]
    pub txg_ns: u64,
}

impl LogView {
    /// Adds another.
    pub fn merge(&mut self, other: &LogView) {
        self.size += other.size;
        self.waiters += other.waiters;
        self.queue += other.queue;
        self.write += other.write;
        self.flush += other.flush;
        self.order += other.order;
        (self.limit, self.txg_ns) = (self.limit.max(other.limit), self.txg_ns.max(other.txg_ns));
    }
}
