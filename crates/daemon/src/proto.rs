//! What commands and the daemon say to each other.
//!
//! A connection carries one request and its answer. A message is a length (4 bytes, little endian)
//! and that many bytes. The client sends one [`Call`](crate::request::Call); the daemon sends any
//! number of [`Reply::Progress`] and then [`Reply::Done`] or [`Reply::Failed`], all JSON. What is
//! in `Done` is the [`Reply`](crate::request::Request::Reply) of the request. Paths in requests are
//! absolute: the daemon has its own working folder.
//!
//! Both ends bound what they read: a request may have [`REQUEST_MAX`] bytes, a reply [`REPLY_MAX`].

use std::io::{self, Read, Write};

use base::{Error, ErrorKind};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use crate::proto_flow::{
    ActivityView, DatasetIo, Dist, EventView, EventsView, FlowView, IoStats, IoView, LogView, PoolLatency,
    SlowTaskView, TraceView, TurnView, TxgSpan, TxgView,
};

/// Longest request in bytes.
pub const REQUEST_MAX: usize = 4 << 20;
/// Longest reply in bytes.
pub const REPLY_MAX: usize = 256 << 20;

pub use crate::proto_secret::Secret;

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
    /// What is allocated in the pool.
    pub to_examine: u64,
    /// What was met.
    pub examined: u64,
    /// What was looked at.
    pub issued: u64,
    /// What was rewritten.
    pub processed: u64,
    /// Blocks that could not be had.
    pub errors: u64,
    /// When this pass began: with the scan or with the import.
    pub pass_start: u64,
    /// Since when it is paused; 0: it is not.
    pub paused_at: u64,
    /// Seconds of this pass that it was paused.
    pub pass_paused: u64,
    /// Met in this pass.
    pub pass_examined: u64,
    /// Looked at in this pass.
    pub pass_issued: u64,
    /// The time of this answer.
    pub now: u64,
}

/// What became of a [`PoolCreate`](crate::request::PoolCreate).
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
    /// The command, or what happened; several lines for arguments of an ioctl.
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

/// What became of a [`PoolImport`](crate::request::PoolImport).
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Imported {
    /// Names of the pools that are imported now.
    pub pools: Vec<String>,
    /// What the imports had to say, one sentence each.
    pub notices: Vec<String>,
    /// Pools of `-a` that could not be imported, one sentence each.
    pub failures: Vec<String>,
    /// File systems of imported pools that could not be mounted, one sentence each.
    #[serde(default)]
    pub unmounted: Vec<String>,
}

/// A pool that could be imported, or why not.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Candidate {
    /// Its name.
    pub name: String,
    /// Its guid.
    pub guid: u64,
    /// ONLINE, DEGRADED or UNAVAIL, as it would come up.
    pub state: String,
    /// It was destroyed.
    pub destroyed: bool,
    /// A paragraph about what is unusual.
    pub status: Option<String>,
    /// Features that the status tells of, each with what the pool says about it.
    pub features: Vec<String>,
    /// What to do.
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
    /// A word on why it is not online.
    pub why: Option<String>,
    /// Errors of reads, writes and checksums.
    pub errors: [u64; 3],
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
    /// A leaf that a resilver brings what it misses.
    #[serde(default)]
    pub resilvering: bool,
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
    /// The vdevs that it is made of.
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
    /// It was given up, and its space comes free.
    pub discarding: bool,
}

/// A property as it is shown.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct PropView {
    /// Its name.
    pub name: String,
    /// Its value for people.
    pub value: String,
    /// Its exact value (`-p`).
    pub exact: String,
    /// Where it comes from: `-`, `default`, `local`, `received`, `temporary`,
    /// `inherited from NAME`.
    pub source: String,
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
    /// A paragraph about what is unusual.
    pub status: Option<String>,
    /// What to do about it.
    pub action: Option<String>,
    /// Properties in the order of `zpool get all`.
    pub props: Vec<PropView>,
    /// Its devices.
    pub vdevs: VdevView,
    /// Cache devices.
    #[serde(default)]
    pub caches: Vec<VdevView>,
    /// Hot spares.
    #[serde(default)]
    pub spares: Vec<VdevView>,
    /// Blocks that could not be read.
    pub data_errors: u64,
    /// What is damaged: paths, or what stands for them.
    #[serde(default)]
    pub damaged: Vec<String>,
    /// The last or running scan; none if there never was one.
    #[serde(default)]
    pub scan: Option<ScanView>,
    /// Its checkpoint.
    #[serde(default)]
    pub checkpoint: Option<CheckpointView>,
}

/// What was destroyed, or would be.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Destroyed {
    /// Names in the order in which they go.
    pub names: Vec<String>,
    /// Bytes that come free with snapshots.
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
    /// What it would be if nobody had set it.
    pub default: String,
    /// What it is counted in.
    pub unit: String,
    /// What it may be.
    pub range: String,
    /// What it means.
    pub meaning: String,
    /// Where it comes from.
    pub origin: String,
    /// `default`, `set` or `pool`.
    pub source: String,
}

/// What a daemon says about itself.
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
    /// The state of each of `pools`, in the same order: ONLINE and so on, SUSPENDED, or what keeps
    /// it from being known.
    #[serde(default)]
    pub states: Vec<String>,
    /// Requests under way, the oldest first; this one is left out.
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
    /// Since when, in milliseconds.
    pub age_ms: u64,
    /// What it waits for.
    pub wait: String,
    /// How far it is, if it counts.
    pub progress: Option<String>,
}

/// What the daemon sends.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The request is under way.
    Progress {
        /// What is counted.
        what: String,
        /// How much is done.
        done: u64,
        /// Of how much; 0 if not known.
        total: u64,
    },
    /// It is done.
    Done(serde_json::Value),
    /// It could not be done.
    Failed {
        /// The kind of error, as [`kind_name`] spells it.
        kind: String,
        /// The sentence.
        message: String,
    },
}

/// Kinds of errors that cross the socket with a name; the others become `Io`.
const KINDS: &[(&str, ErrorKind)] = &[
    ("not_found", ErrorKind::NotFound),
    ("exists", ErrorKind::Exists),
    ("no_space", ErrorKind::NoSpace),
    ("quota", ErrorKind::Quota),
    ("read_only", ErrorKind::ReadOnly),
    ("corrupt", ErrorKind::Corrupt),
    ("checksum", ErrorKind::Checksum),
    ("io", ErrorKind::Io),
    ("unsupported", ErrorKind::Unsupported),
    ("invalid", ErrorKind::Invalid),
    ("not_empty", ErrorKind::NotEmpty),
    ("name_too_long", ErrorKind::NameTooLong),
    ("busy", ErrorKind::Busy),
    ("denied", ErrorKind::Denied),
    ("range", ErrorKind::Range),
    ("suspended", ErrorKind::Suspended),
    ("interrupted", ErrorKind::Interrupted),
];

/// The name of a kind in [`Reply::Failed`].
pub fn kind_name(kind: ErrorKind) -> &'static str {
    KINDS.iter().find(|(_, k)| *k == kind).map_or("io", |(n, _)| n)
}

/// The kind with that name.
pub fn kind_named(name: &str) -> ErrorKind {
    KINDS.iter().find(|(n, _)| *n == name).map_or(ErrorKind::Io, |(_, k)| *k)
}

impl Reply {
    /// The answer that says `error`.
    pub fn failed(error: &Error) -> Reply {
        Reply::Failed { kind: kind_name(error.kind()).to_string(), message: error.to_string() }
    }
}

fn bad_data(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Writes one message.
pub fn send<T: Serialize>(to: &mut impl Write, message: &T) -> io::Result<()> {
    let body = serde_json::to_vec(message).map_err(|e| bad_data(e.to_string()))?;
    let len = u32::try_from(body.len()).map_err(|_| bad_data("the message is too long".to_string()))?;
    let mut bytes = len.to_le_bytes().to_vec();
    bytes.extend_from_slice(&body);
    to.write_all(&bytes)?;
    to.flush()
}

/// Reads one message of at most `max` bytes; none if the other end closed before its first byte.
pub fn receive<T: DeserializeOwned>(from: &mut impl Read, max: usize) -> io::Result<Option<T>> {
    let mut len = [0; 4];
    match from.read(&mut len)? {
        0 => return Ok(None),
        n => from.read_exact(&mut len[n..])?,
    }
    let len = u32::from_le_bytes(len) as usize;
    if len > max {
        return Err(bad_data(format!("a message of {len} bytes is longer than {max}")));
    }
    // Memory grows with what really comes, not with what the length promises.
    let mut body = Vec::new();
    from.take(len as u64).read_to_end(&mut body)?;
    if body.len() < len {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
    }
    serde_json::from_slice(&body).map(Some).map_err(|e| bad_data(format!("a message that makes no sense: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back() {
        let replies = [
            Reply::Progress { what: "mounting".into(), done: 1, total: 2 },
            Reply::Done(serde_json::Value::Null),
            Reply::failed(&Error::not_found("no such pool")),
        ];
        let mut wire = Vec::new();
        for r in &replies {
            send(&mut wire, r).unwrap();
        }
        let mut from = wire.as_slice();
        for r in &replies {
            assert_eq!(receive::<Reply>(&mut from, REPLY_MAX).unwrap().as_ref(), Some(r));
        }
        assert!(receive::<Reply>(&mut from, REPLY_MAX).unwrap().is_none());
    }

    #[test]
    fn hostile_messages_are_errors() {
        let huge = [0xff; 16];
        assert!(receive::<Reply>(&mut huge.as_slice(), REPLY_MAX).is_err());
        let cut = [10, 0, 0, 0, b'{'];
        assert!(receive::<Reply>(&mut cut.as_slice(), REPLY_MAX).is_err());
        let short = [1, 0];
        assert!(receive::<Reply>(&mut short.as_slice(), REPLY_MAX).is_err());
        let nonsense = [2, 0, 0, 0, b'{', b'}'];
        assert!(receive::<Reply>(&mut nonsense.as_slice(), REPLY_MAX).is_err());
        let deep = {
            let mut v = 200_000u32.to_le_bytes().to_vec();
            v.extend(std::iter::repeat_n(b'[', 200_000));
            v
        };
        assert!(receive::<Reply>(&mut deep.as_slice(), REPLY_MAX).is_err());
    }

    #[test]
    fn kinds_have_names_of_their_own() {
        for (name, kind) in KINDS {
            assert_eq!(kind_named(name), *kind);
            assert_eq!(kind_name(*kind), *name);
        }
        assert_eq!(kind_named("nonsense"), ErrorKind::Io);
    }
}
