//! The data of views: pools, datasets and their properties.

use serde::{Deserialize, Serialize};

/// An encrypted dataset and its key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KeyView {
    /// Its name.
    pub name: String,
    /// Its encryption root.
    pub root: String,
    /// `passphrase`, `hex` or `raw`.
    pub format: String,
    /// Where the key is kept.
    pub location: String,
    /// Whether it is loaded.
    pub available: bool,
}

/// The last or running scan of a pool. Times are in seconds since 1970, sizes in bytes.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct ScanView {
    /// SCRUB or RESILVER.
    pub function: String,
    /// SCANNING, FINISHED or CANCELED.
    pub state: String,
    /// When it began.
    pub start: u64,
    /// When it ended.
    pub end: u64,
    /// Bytes allocated in the pool.
    pub to_examine: u64,
    /// Bytes examined.
    pub examined: u64,
    /// Bytes issued.
    pub issued: u64,
    /// Bytes rewritten.
    pub processed: u64,
    /// Blocks that could not be read or repaired.
    pub errors: u64,
    /// Start of this pass: of the scan or the import.
    pub pass_start: u64,
    /// Start of the pause; 0: not paused.
    pub paused_at: u64,
    /// Seconds of this pass that it was paused.
    pub pass_paused: u64,
    /// Bytes examined in this pass.
    pub pass_examined: u64,
    /// Bytes issued in this pass.
    pub pass_issued: u64,
    /// The time of this answer.
    pub now: u64,
}

/// The last or running sequential rebuild of a top-level vdev (`zpool attach -s`).
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct RebuildView {
    /// The name of the vdev.
    pub vdev: String,
    /// SCANNING, FINISHED or CANCELED.
    pub state: String,
    /// When it began.
    pub start: u64,
    /// When it ended.
    pub end: u64,
    /// Milliseconds that it took so far.
    pub time_ms: u64,
    /// Bytes to examine, by estimate.
    pub to_examine: u64,
    /// Bytes examined.
    pub examined: u64,
    /// Bytes issued.
    pub issued: u64,
    /// Bytes written.
    pub processed: u64,
    /// Ranges that could not be rebuilt.
    pub errors: u64,
}

/// The last or running scrub of what is in the error log (`zpool scrub -e`).
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct ErrorScrubView {
    /// ERRORSCRUBBING, FINISHED or CANCELED.
    pub state: String,
    /// When it began.
    pub start: u64,
    /// When it ended.
    pub end: u64,
    /// Blocks that were read.
    pub examined: u64,
    /// Blocks that are to be read still.
    pub to_examine: u64,
    /// Start of the pause; 0: not paused.
    pub paused_at: u64,
}

/// The result of a [`PoolCreate`](crate::request::PoolCreate).
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Created {
    /// The devices as the pool names them.
    pub devices: Vec<String>,
    /// Warnings, one sentence each.
    #[serde(default)]
    pub notices: Vec<String>,
}

/// A line of a pool's history.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct HistoryLine {
    /// When, in seconds since 1970.
    pub time: u64,
    /// The command or event; several lines for arguments of an ioctl.
    pub text: String,
    /// Whether it is an internal event, which only `-i` shows.
    pub internal: bool,
    /// The user that gave the command.
    pub who: Option<u64>,
    /// The host.
    pub host: Option<String>,
    /// The zone, `linux` on Linux.
    pub zone: Option<String>,
}

/// The result of a [`PoolImport`](crate::request::PoolImport).
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Imported {
    /// Names of the pools that are imported now.
    pub pools: Vec<String>,
    /// Notices of the imports, one sentence each.
    pub notices: Vec<String>,
    /// Pools of `-a` that could not be imported, one sentence each.
    pub failures: Vec<String>,
    /// File systems of imported pools that could not be mounted, one sentence each.
    #[serde(default)]
    pub unmounted: Vec<String>,
}

/// The result of a [`PoolSplit`](crate::request::PoolSplit).
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct SplitDone {
    /// The layout that the new pool would have, as `zpool create` takes it.
    pub layout: Vec<String>,
    /// The import of the new pool.
    pub imported: Imported,
}

/// A pool that could be imported, or why not.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Candidate {
    /// Its name.
    pub name: String,
    /// Its guid.
    pub guid: u64,
    /// ONLINE, DEGRADED or UNAVAIL, its state after an import.
    pub state: String,
    /// It was destroyed.
    pub destroyed: bool,
    /// A paragraph about its problem.
    pub status: Option<String>,
    /// Features that the status refers to, each with its description in the pool.
    pub features: Vec<String>,
    /// The recommended action.
    pub action: String,
    /// Its devices.
    pub vdevs: VdevView,
}

/// A vdev with its figures.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct VdevView {
    /// Kind in the configuration: `root`, `disk`, `file`, `mirror`, `missing`, `hole` ...
    pub kind: String,
    /// Full path of a leaf; the pool's name of the root; `mirror-0` of others.
    pub name: String,
    /// Its guid.
    pub guid: u64,
    /// ONLINE and so on.
    pub state: String,
    /// Why it is not online, in a few words.
    pub why: Option<String>,
    /// Errors of reads, writes and checksums.
    pub errors: [u64; 3],
    /// Operations of a leaf that took longer than `zio_slow_io_ms`.
    #[serde(default)]
    pub slow_ios: u64,
    /// Bytes in its metaslabs; 0 below the top level.
    pub space: u64,
    /// Bytes of the device, 0 if not a leaf.
    pub psize: u64,
    /// Bytes allocated.
    pub alloc: u64,
    /// How far it is trimmed.
    #[serde(default)]
    pub trim: Option<LeafWorkView>,
    /// How far it is initialized.
    #[serde(default)]
    pub init: Option<LeafWorkView>,
    /// A leaf that cannot be trimmed, or was not opened yet.
    #[serde(default)]
    pub no_trim: bool,
    /// A leaf that a resilver repairs.
    #[serde(default)]
    pub resilvering: bool,
    /// A leaf whose resilver is deferred.
    #[serde(default)]
    pub deferred: bool,
    /// A leaf that a scrub repairs.
    #[serde(default)]
    pub repairing: bool,
    /// The top-level vdev is being removed.
    #[serde(default)]
    pub removing: bool,
    /// The top-level vdev gets no new blocks.
    #[serde(default)]
    pub noalloc: bool,
    /// Bytes that the vdev could grow by.
    #[serde(default)]
    pub expandable: u64,
    /// Fragmentation in percent.
    pub frag: Option<u8>,
    /// It is a log device.
    pub is_log: bool,
    /// `special` or `dedup`, else empty; top level only.
    #[serde(default)]
    pub bias: String,
    /// Parity columns of a RAID-Z or dRAID, else 0.
    #[serde(default)]
    pub parity: u64,
    /// Its child vdevs.
    pub children: Vec<VdevView>,
}

/// Trimming or initializing a device.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct LeafWorkView {
    /// `ACTIVE`, `SUSPENDED` or `COMPLETE`.
    pub state: String,
    /// Percent done.
    pub percent: u64,
    /// When it came to this state, in seconds since 1970.
    pub time: u64,
}

/// The checkpoint of a pool.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct CheckpointView {
    /// When it was made, in seconds since 1970.
    pub start: u64,
    /// Bytes of the devices that only it uses.
    pub space: u64,
    /// It was discarded, and its space is being freed.
    pub discarding: bool,
}

/// The expansion of a RAID-Z.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct ExpandView {
    /// The RAID-Z, as `zpool status` names it.
    pub vdev: String,
    /// Its number in the pool.
    pub id: u64,
    /// Whether it ended.
    pub finished: bool,
    /// When it began, in seconds since 1970.
    pub start: u64,
    /// When it ended; 0 before.
    pub end: u64,
    /// The time now.
    pub now: u64,
    /// Bytes that were copied.
    pub copied: u64,
    /// Bytes that are allocated.
    pub total: u64,
    /// It waits until all devices of the RAID-Z are healthy.
    pub waiting: bool,
}

/// The removal of a top-level vdev with data.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct RemovalView {
    /// The vdev, as `zpool status` names it.
    pub vdev: String,
    /// Its number in the pool.
    pub id: u64,
    /// `SCANNING`, `FINISHED` or `CANCELED`.
    pub state: String,
    /// When it began, in seconds since 1970.
    pub start: u64,
    /// When it ended; 0 before.
    pub end: u64,
    /// The time now.
    pub now: u64,
    /// Bytes to copy in all.
    pub to_copy: u64,
    /// Bytes that were copied, or freed meanwhile.
    pub copied: u64,
    /// Memory for the mappings of all removed vdevs, in bytes.
    pub memory: u64,
}

/// A property.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct PropView {
    /// Its name.
    pub name: String,
    /// Its value for people.
    pub value: String,
    /// Its exact value (`-p`).
    pub exact: String,
    /// Its source: `-`, `default`, `local`, `received`, `temporary`,
    /// `inherited from NAME`.
    pub source: String,
}

/// The properties of a vdev.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct VdevProps {
    /// Full path of a leaf; `mirror-0` or `root-0` of others.
    pub name: String,
    /// Kind in the configuration: `root`, `disk`, `file`, `mirror` ...
    pub kind: String,
    /// All of them, user properties last.
    pub props: Vec<PropView>,
}

/// Everything about an imported pool.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct PoolView {
    /// Its name.
    pub name: String,
    /// Its guid.
    pub guid: u64,
    /// ONLINE, DEGRADED, SUSPENDED.
    pub state: String,
    /// The last txg on disk.
    pub txg: u64,
    /// A paragraph about its problem.
    pub status: Option<String>,
    /// The recommended action.
    pub action: Option<String>,
    /// OpenZFS's name of the problem, for its page of help.
    #[serde(default)]
    pub msgid: Option<String>,
    /// Properties in the order of `zpool get all`.
    pub props: Vec<PropView>,
    /// Its devices.
    pub vdevs: VdevView,
    /// Top-level vdevs that were removed, each with the number of those in `vdevs` before it.
    #[serde(default)]
    pub removed: Vec<(usize, VdevView)>,
    /// Cache devices.
    #[serde(default)]
    pub caches: Vec<VdevView>,
    /// Hot spares.
    #[serde(default)]
    pub spares: Vec<VdevView>,
    /// Blocks that could not be read.
    pub data_errors: u64,
    /// Damaged files and objects, by path or number.
    #[serde(default)]
    pub damaged: Vec<String>,
    /// The last or running scan; none if there never was one.
    #[serde(default)]
    pub scan: Option<ScanView>,
    /// Sequential rebuilds: those that are under way, and the last ones.
    pub rebuilds: Vec<RebuildView>,
    /// The scrub of errors that began after the last scan.
    #[serde(default)]
    pub error_scrub: Option<ErrorScrubView>,
    /// Its checkpoint.
    #[serde(default)]
    pub checkpoint: Option<CheckpointView>,
    /// The expansion of a RAID-Z that is under way, or that ended last.
    #[serde(default)]
    pub expand: Option<ExpandView>,
    /// The removal that is under way, or the last one.
    #[serde(default)]
    pub removal: Option<RemovalView>,
}

/// The dedup tables of a pool.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct DedupView {
    /// Entries.
    pub entries: u64,
    /// Their bytes on disk.
    pub disk: u64,
    /// Their bytes in memory, if all of them were there.
    pub memory: u64,
    /// By the power of two of references: blocks, their logical, stored and allocated bytes; then
    /// the same times references.
    pub histogram: Vec<[u64; 8]>,
}

/// The datasets that were destroyed, or would be.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Destroyed {
    /// Names in the order of destruction.
    pub names: Vec<String>,
    /// Bytes that the destroyed snapshots free.
    pub reclaim: Option<u64>,
}

/// A hold on a snapshot.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct HoldView {
    /// The snapshot.
    pub name: String,
    /// The hold's name.
    pub tag: String,
    /// Seconds since 1970.
    pub time: u64,
}

/// Everything about a dataset.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct DatasetView {
    /// Its full name.
    pub name: String,
    /// `filesystem`, `volume` or `snapshot`.
    pub kind: String,
    /// Properties in the order of `zfs get all`.
    pub props: Vec<PropView>,
}

/// A tunable.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct TunableView {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Its default.
    pub default: String,
    /// Its unit.
    pub unit: String,
    /// Its range.
    pub range: String,
    /// Its meaning.
    pub meaning: String,
    /// Its origin: a release of OpenZFS, or weir.
    pub origin: String,
    /// `default`, `set` or `pool`.
    pub source: String,
}

/// The status of a daemon.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct DaemonInfo {
    /// Its process.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// Names of the imported pools.
    pub pools: Vec<String>,
    /// Names of mounted file systems and where.
    pub mounts: Vec<(String, String)>,
    /// Tunables in effect.
    pub tunables: Vec<(String, String)>,
    /// Peak memory of the process in bytes.
    pub peak_memory: u64,
    /// Pools that were remembered but could not be imported at the start, one sentence each.
    pub failures: Vec<String>,
    /// Its socket.
    #[serde(default)]
    pub socket: String,
    /// Its log.
    #[serde(default)]
    pub log: String,
    /// The state of each of `pools`, in the same order: ONLINE and so on, SUSPENDED, or why it is
    /// not known.
    #[serde(default)]
    pub states: Vec<String>,
    /// Requests under way, the oldest first, without the status request.
    #[serde(default)]
    pub requests: Vec<RequestView>,
}

/// A request under way.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct RequestView {
    /// The command line, or the name of the request.
    pub what: String,
    /// The user that asked.
    pub uid: u32,
    /// The process that asked.
    pub pid: i32,
    /// Its age in milliseconds.
    pub age_ms: u64,
    /// Its present wait.
    pub wait: String,
    /// Its progress, if it counts.
    pub progress: Option<String>,
}

/// A server of NBD.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct NbdView {
    /// `unix:PATH` or `127.0.0.1:PORT`.
    pub at: String,
    /// Clients may not write.
    pub read_only: bool,
    /// All volumes of all pools.
    pub all: bool,
    /// The volumes that it serves, if not all; as they were named.
    pub names: Vec<String>,
    /// Their addresses as clients take them, in the same order; with `all`, that of the server.
    pub uris: Vec<String>,
    /// Connections that use a volume.
    pub clients: u64,
    /// Connections that ended because the client broke the rules of the protocol.
    pub faults: u64,
    /// The last of those: why.
    pub last_fault: Option<String>,
}
