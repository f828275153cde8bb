//! The formats of kstats, as OpenZFS writes them on Linux.

use std::fmt::Write as _;

/// Bytes of a named value in the kernel: a name of 255 letters, a type, 16 bytes of value.
const NAMED_SIZE: usize = 272;
/// `KSTAT_TYPE_NAMED`: lines of name, type and value.
const NAMED: u8 = 1;
/// `KSTAT_TYPE_RAW`: a text of its own.
const RAW: u8 = 0;
/// `KSTAT_FLAG_VIRTUAL`.
const VIRTUAL: u8 = 1;

/// The heading of `dbufs`.
const DBUFS_HEADING: &str = concat!(
    "dbuf                                                                                             | ",
    "arcbuf                                                                                                                  | ",
    "dnode\n",
    "pool             objset   object   level    blkid    offset     dbsize   meta  state dbholds dbc | ",
    "list  atype flags     count  asize    access       mru    gmru   mfu    gmfu   l2     l2_dattr l2_asize l2_comp  aholds | ",
    "dtype  btype  data_bs  meta_bs  bsize  lvls   dholds blocks   dsize   \n",
);

/// A value with its type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Value {
    /// `KSTAT_DATA_INT64`
    Signed(i64),
    /// `KSTAT_DATA_UINT64`
    Number(u64),
    /// `KSTAT_DATA_STRING`
    Text(String),
}

impl Value {
    fn kind(&self) -> u8 {
        match self {
            Value::Signed(_) => 3,
            Value::Number(_) => 4,
            Value::Text(_) => 7,
        }
    }
}

/// A moment: when a kstat came to be, and now, in nanoseconds since the machine was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Times {
    pub(crate) created: u64,
    pub(crate) now: u64,
}

/// A kstat of named values with its number, `module/zfs` of those of the process.
pub(crate) fn named(id: usize, times: Times, lines: &[(&str, Value)]) -> String {
    let size = lines.len() * NAMED_SIZE;
    let mut out = format!("{id} {NAMED} 0x{VIRTUAL:02x} {} {size} {} {}\n", lines.len(), times.created, times.now);
    let _ = writeln!(out, "{:<31} {:<4} data", "name", "type");
    for (name, value) in lines {
        let _ = write!(out, "{name:<31} {:<4} ", value.kind());
        let _ = match value {
            Value::Signed(n) => writeln!(out, "{n}"),
            Value::Number(n) => writeln!(out, "{n}"),
            Value::Text(text) => writeln!(out, "{text}"),
        };
    }
    out
}

/// `dbufs` without a line.
pub(crate) fn dbufs(id: usize, times: Times) -> String {
    format!("{id} {RAW} 0x{VIRTUAL:02x} 0 0 {} {}\n{DBUFS_HEADING}", times.created, times.now)
}

/// A line of `txgs`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TxgLine {
    pub(crate) txg: u64,
    pub(crate) birth: u64,
    /// `O`, `Q`, `W`, `S` or `C`.
    pub(crate) state: char,
    pub(crate) dirty: u64,
    /// Bytes read and written, reads, writes.
    pub(crate) io: [u64; 4],
    /// How long it was open, quiescing, waiting and syncing; 0 of what is not over.
    pub(crate) spans: [u64; 4],
}

/// `txgs`
pub(crate) fn txgs(lines: &[TxgLine]) -> String {
    let mut out = format!(
        "{:<8} {:<16} {:<5} {:<12} {:<12} {:<12} {:<8} {:<8} {:<12} {:<12} {:<12} {:<12}\n",
        "txg", "birth", "state", "ndirty", "nread", "nwritten", "reads", "writes", "otime", "qtime", "wtime", "stime"
    );
    for TxgLine { txg, birth, state, dirty, io: [nread, nwritten, reads, writes], spans: [o, q, w, s] } in lines {
        let _ = writeln!(
            out,
            "{txg:<8} {birth:<16} {state:<5} {dirty:<12} {nread:<12} {nwritten:<12} {reads:<8} {writes:<8} {o:<12} {q:<12} {w:<12} {s:<12}"
        );
    }
    out
}

/// A line of `multihost`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BeatLine {
    pub(crate) id: u64,
    pub(crate) txg: u64,
    /// Seconds since 1970.
    pub(crate) time: u64,
    /// An error number, or why none was written.
    pub(crate) error: u64,
    pub(crate) is_skip: bool,
    pub(crate) took: u64,
    pub(crate) delay: u64,
    /// Of the device; how many were skipped.
    pub(crate) guid: u64,
    pub(crate) label: usize,
    pub(crate) path: String,
}

/// `multihost`
pub(crate) fn multihost(lines: &[BeatLine]) -> String {
    let mut out = format!(
        "{:<10} {:<10} {:<10} {:<6} {:<10} {:<12} {:<24} {:<10} vdev_path\n",
        "id", "txg", "timestamp", "error", "duration", "mmp_delay", "vdev_guid", "vdev_label"
    );
    for l in lines {
        let error = if l.is_skip { format!("{:#x}", l.error) } else { l.error.to_string() };
        let (id, txg, time, took, delay, guid, label, path) =
            (l.id, l.txg, l.time, l.took, l.delay, l.guid, l.label, &l.path);
        let _ = writeln!(
            out,
            "{id:<10} {txg:<10} {time:>10} {error:>6} {took:>10} {delay:>12} {guid:<24} {label:<10} {path}"
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_values_are_lines_of_columns() {
        let lines = [
            ("hits", Value::Number(7)),
            ("memory_available_bytes", Value::Signed(-3)),
            ("dataset_name", Value::Text("tank/a b".into())),
        ];
        let want = "5 1 0x01 3 816 1000 2000\n\
                    name                            type data\n\
                    hits                            4    7\n\
                    memory_available_bytes          3    -3\n\
                    dataset_name                    7    tank/a b\n";
        assert_eq!(named(5, Times { created: 1000, now: 2000 }, &lines), want);
    }

    #[test]
    fn txgs_and_heartbeats_are_tables() {
        let line = TxgLine { txg: 4, birth: 17, state: 'C', dirty: 5, io: [1, 2, 3, 4], spans: [6, 7, 8, 9] };
        let want = "txg      birth            state ndirty       nread        nwritten     reads    writes   otime        qtime        wtime        stime       \n\
                    4        17               C     5            1            2            3        4        6            7            8            9           \n";
        assert_eq!(txgs(&[line]), want);
        let done = BeatLine {
            id: 0,
            txg: 12,
            time: 1_700_000_000,
            error: 0,
            is_skip: false,
            took: 345,
            delay: 1_000_000_000,
            guid: 77,
            label: 3,
            path: "/dev/x".into(),
        };
        let skip = BeatLine { id: 1, error: 2, is_skip: true, guid: 4, label: 0, path: "-".into(), ..done.clone() };
        let want = "id         txg        timestamp  error  duration   mmp_delay    vdev_guid                vdev_label vdev_path\n\
                    0          12         1700000000      0        345   1000000000 77                       3          /dev/x\n\
                    1          12         1700000000    0x2        345   1000000000 4                        0          -\n";
        assert_eq!(multihost(&[done, skip]), want);
    }

    #[test]
    fn the_heading_of_dbufs_has_three_parts_above_each_other() {
        let lines: Vec<&str> = DBUFS_HEADING.lines().collect();
        let bars = |l: &str| l.match_indices('|').map(|(at, _)| at).collect::<Vec<usize>>();
        assert_eq!((lines.len(), bars(lines[0])), (2, bars(lines[1])));
        assert_eq!(bars(lines[0]), [97, 219]);
    }
}
