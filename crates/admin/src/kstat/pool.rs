//! Kstats of one pool: its state, its last txgs and heartbeats, and its object sets in use.

use spa::{Beat, BeatEnd};
use txg::{TxgRecord, TxgState};
use zil::ZilStats;

use crate::engine::PoolEngine;
use crate::kstat::figures::zil_lines;
use crate::kstat::text::{self, BeatLine, Times, TxgLine, Value};

/// `EIO`: what OpenZFS has of a heartbeat that was not written.
const EIO: u64 = 5;
/// `MMP_FAIL_NOT_WRITABLE` and `MMP_FAIL_WRITE_PENDING`.
const NOT_WRITABLE: u64 = 1;
const WRITE_PENDING: u64 = 2;

/// A file system that is mounted, or a volume that is open.
pub(crate) struct ObjsetFigures {
    pub(crate) object: u64,
    pub(crate) name: String,
    /// Reads, bytes read, writes, bytes written.
    pub(crate) io: [u64; 4],
    /// Objects that lost their last link, and those that were freed.
    pub(crate) unlinks: [u64; 2],
    pub(crate) zil: ZilStats,
}

/// The line of a txg; `hr` makes a time since the start of the machine of one of the engine.
fn txg_line(r: &TxgRecord, hr: impl Fn(u64) -> u64) -> TxgLine {
    let state = match r.state {
        TxgState::Open => 'O',
        TxgState::Quiescing => 'Q',
        TxgState::Quiesced => 'W',
        TxgState::Syncing => 'S',
        TxgState::Committed => 'C',
    };
    // From one moment to the next; 0 if the second has not come.
    let span = |from: base::Nanos, to: base::Nanos| if to.0 == 0 { 0 } else { to.since(from).0 };
    TxgLine {
        txg: r.txg.0,
        birth: hr(r.opened.0),
        state,
        dirty: r.dirty,
        io: [r.io.read_bytes, r.io.write_bytes, r.io.reads, r.io.writes],
        spans: [
            span(r.opened, r.closed),
            span(r.closed, r.quiesced),
            span(r.quiesced, r.sync_start),
            span(r.sync_start, r.synced),
        ],
    }
}

fn beat_line(beat: &Beat) -> BeatLine {
    let (error, took, skips) = match beat.end {
        BeatEnd::Writing => (0, 0, None),
        BeatEnd::Done { ok, took } => (if ok { 0 } else { EIO }, took.0, None),
        BeatEnd::Skipped { times, pending, took } => {
            (if pending { WRITE_PENDING } else { NOT_WRITABLE }, took.0, Some(times))
        }
    };
    let device = beat.device.as_ref();
    BeatLine {
        id: beat.id,
        txg: beat.txg.0,
        time: beat.time,
        error,
        is_skip: skips.is_some(),
        took,
        delay: beat.delay,
        guid: skips.unwrap_or_else(|| device.map_or(0, |(guid, ..)| guid.0)),
        label: device.map_or(0, |(.., label)| *label),
        path: device.map_or_else(|| "-".to_string(), |(_, path, _)| path.clone()),
    }
}

impl PoolEngine {
    /// `SUSPENDED`, or the health of its devices.
    pub(crate) fn state_name(&self) -> &'static str {
        match self.pool.suspended() {
            Some(_) => "SUSPENDED",
            None => self.pool.tree().health().name(),
        }
    }

    /// A kstat of the pool by its name.
    pub(crate) fn pool_kstat(&self, name: &str) -> String {
        match name {
            "state" => format!("{}\n", self.state_name()),
            "guid" => format!("{}\n", self.pool.guid().0),
            "txgs" => {
                let (now, up) = (self.pool.rt().now().0, host::uptime().0);
                let hr = |at: u64| up.saturating_sub(now.saturating_sub(at));
                let lines: Vec<TxgLine> = self.pool.txg().listed_history().iter().map(|r| txg_line(r, hr)).collect();
                text::txgs(&lines)
            }
            "multihost" => text::multihost(&self.pool.beats().iter().map(beat_line).collect::<Vec<BeatLine>>()),
            _ => String::new(),
        }
    }

    /// Empties a list.
    pub(crate) fn clear_kstat(&self, name: &str) {
        match name {
            "txgs" => self.pool.txg().clear_history(),
            "multihost" => self.pool.clear_beats(),
            _ => {}
        }
    }

    /// The object sets in use, in the order of their numbers.
    pub(crate) fn objset_kstats(&self) -> Vec<ObjsetFigures> {
        let mut all = self.mounts.objsets();
        all.extend(self.volumes.objsets());
        all.sort_by_key(|o| o.object);
        all
    }

    /// The counters of an object set in use.
    pub(crate) fn objset_kstat(&self, object: u64) -> Option<String> {
        let all = self.objset_kstats();
        let at = all.iter().position(|o| o.object == object)?;
        let o = &all[at];
        let n = Value::Number;
        let mut lines = vec![
            ("dataset_name", Value::Text(o.name.clone())),
            ("writes", n(o.io[2])),
            ("nwritten", n(o.io[3])),
            ("reads", n(o.io[0])),
            ("nread", n(o.io[1])),
            ("nunlinks", n(o.unlinks[0])),
            ("nunlinked", n(o.unlinks[1])),
        ];
        lines.extend(zil_lines(&o.zil).into_iter().map(|l| (l.name, n(l.value))));
        let (engine, up) = (self.pool.rt().now().0, host::uptime().0);
        let created = up.saturating_sub(engine.saturating_sub(self.since.0));
        Some(text::named(at, Times { created, now: up }, &lines))
    }
}

#[cfg(test)]
mod tests {
    use base::{Guid, Nanos, Txg};
    use txg::TxgIo;

    use super::*;

    #[test]
    fn spans_of_what_is_not_over_are_zero() {
        let io = TxgIo { reads: 1, read_bytes: 2, writes: 3, write_bytes: 4 };
        let record = TxgRecord {
            txg: Txg(9),
            state: TxgState::Syncing,
            opened: Nanos(100),
            closed: Nanos(150),
            quiesced: Nanos(151),
            sync_start: Nanos(160),
            synced: Nanos(0),
            dirty: 5,
            io,
            delayed: 0,
            delayed_time: Nanos(0),
        };
        let line = txg_line(&record, |at| at + 1000);
        let want = TxgLine { txg: 9, birth: 1100, state: 'S', dirty: 5, io: [2, 4, 1, 3], spans: [50, 1, 9, 0] };
        assert_eq!(line, want);
    }

    #[test]
    fn skipped_heartbeats_have_no_device() {
        let beat = |device, end| Beat { id: 3, txg: Txg(4), time: 5, delay: 6, device, end };
        let device = Some((Guid(77), "/dev/x".to_string(), 2));
        let line = beat_line(&beat(device, BeatEnd::Done { ok: false, took: Nanos(8) }));
        assert_eq!((line.error, line.is_skip, line.took, line.guid, line.label), (5, false, 8, 77, 2));
        let line = beat_line(&beat(None, BeatEnd::Skipped { times: 4, pending: true, took: Nanos(9) }));
        assert_eq!((line.error, line.is_skip, line.took, line.guid, line.path.as_str()), (2, true, 9, 4, "-"));
    }
}
