//! Where the time of a run goes: waits in the parts of the engine, counted from its trace events.
//!
//! A part has figures of three kinds, by its name ([`PARTS`]): `NAME.mean_us` and `NAME.p99_us` of
//! its events, and `NAME.op_us`, the sum over all of them for each operation of the clients. They
//! are not shares of a whole: parts overlap, and a client waits for some of them only. Beside them
//! are figures that explain waits: [`DEPTH`], [`READ`], [`WRITTEN`] and [`TXGS`].

use std::cell::RefCell;
use std::rc::Rc;

use base::Nanos;
use rt::Rt;
use rt::trace::{Event, Groups, Listening, LogPhase, TxgPhase};
use vdev::Prio;

use crate::hist::percentile;
use crate::study::Seen;

/// The parts: name, and what waits there, with braces for how long.
pub const PARTS: &[(&str, &str)] = &[
    ("throttle", "writes wait {} for the write throttle"),
    ("log_queue", "blocks of the intent log wait {} for further records"),
    ("log_write", "writing a block of the intent log takes {}"),
    ("log_flush", "flushes behind blocks of the intent log take {}"),
    ("log_order", "blocks of the intent log wait {} for those before them"),
    ("read_queue", "reads wait {} in the queues of the devices"),
    ("read_disk", "reads take {} at the devices"),
    ("ahead", "reads ahead take {} with their wait in the queues of the devices"),
    ("write_queue", "synchronous writes wait {} in the queues of the devices"),
    ("write_disk", "synchronous writes take {} at the devices"),
];

/// Asynchronous writes at a device whenever one is issued, on average.
pub const DEPTH: &str = "async_depth";
/// Bytes that devices read for each byte that clients read or write.
pub const READ: &str = "device_read_ratio";
/// Bytes that devices write for each of those.
pub const WRITTEN: &str = "device_write_ratio";
/// Txgs that came to the disk, in a second.
pub const TXGS: &str = "txgs_per_s";

/// The names of all figures.
pub fn figures() -> impl Iterator<Item = String> {
    let of_parts =
        PARTS.iter().flat_map(|(name, _)| ["mean_us", "p99_us", "op_us"].map(|kind| format!("{name}.{kind}")));
    of_parts.chain([DEPTH, READ, WRITTEN, TXGS].map(String::from))
}

/// Places in [`PARTS`].
const THROTTLE: usize = 0;
const LOG: usize = 1;
const READS: usize = 5;
const AHEAD: usize = 7;
const WRITES: usize = 8;

/// What a run counted.
#[derive(Default)]
struct Counts {
    /// Of each part: the events' spans in ns, and their sum, each with its weight.
    parts: [(Vec<u64>, f64); PARTS.len()],
    /// Asynchronous writes that were issued, and the sum of those at their device.
    depth: (u64, u64),
    read: u64,
    written: u64,
    txgs: u64,
}

impl Counts {
    fn add(&mut self, part: usize, span: Nanos, weight: f64) {
        self.parts[part].0.push(span.0);
        self.parts[part].1 += span.0 as f64 * weight;
    }

    fn note(&mut self, event: &Event) {
        let is = |class: u8, prio: Prio| usize::from(class) == prio.index();
        match *event {
            Event::Admitted { waited, .. } => self.add(THROTTLE, waited, 1.0),
            Event::Log { phase: LogPhase::Done, waiters, times: t, .. } => {
                for (n, span) in [t.queue, t.write, t.flush, t.order].into_iter().enumerate() {
                    self.add(LOG + n, span, f64::from(waiters));
                }
            }
            Event::Issued { class, write: true, active, .. } if is(class, Prio::AsyncWrite) => {
                self.depth = (self.depth.0 + 1, self.depth.1 + u64::from(active));
            }
            Event::Done { class, write, len, total, disk, .. } => {
                *(if write { &mut self.written } else { &mut self.read }) += len;
                let queue = Nanos(total.0.saturating_sub(disk.0));
                match () {
                    () if is(class, Prio::SyncRead) => {
                        self.add(READS, queue, 1.0);
                        self.add(READS + 1, disk, 1.0);
                    }
                    () if is(class, Prio::AsyncRead) => self.add(AHEAD, total, 1.0),
                    () if is(class, Prio::SyncWrite) => {
                        self.add(WRITES, queue, 1.0);
                        self.add(WRITES + 1, disk, 1.0);
                    }
                    () => {}
                }
            }
            Event::Txg { phase: TxgPhase::Synced, .. } => self.txgs += 1,
            _ => {}
        }
    }
}

/// Counts from now on.
pub(crate) struct Watch {
    counts: Rc<RefCell<Counts>>,
    _listening: Listening,
}

impl Watch {
    /// Begins.
    pub(crate) fn begin(rt: &Rt) -> Watch {
        let counts = Rc::new(RefCell::new(Counts::default()));
        let noted = counts.clone();
        let groups = Groups::TXG.and(Groups::DELAY).and(Groups::IO).and(Groups::QUEUE).and(Groups::LOG);
        let listening = rt.tracer().listen(groups, move |_, event| noted.borrow_mut().note(event));
        Watch { counts, _listening: listening }
    }

    /// Ends, with the figures of a run of so many seconds in which clients did so many operations
    /// and read and wrote so many bytes.
    pub(crate) fn end(self, seconds: f64, ops: u64, bytes: f64) -> Seen {
        let mut counts = self.counts.take();
        let mut seen = Seen::default();
        for ((name, _), (spans, sum)) in PARTS.iter().zip(&mut counts.parts) {
            spans.sort_unstable();
            let all = spans.iter().map(|&ns| ns as f64).sum::<f64>();
            seen.set(&format!("{name}.mean_us"), all / 1e3 / spans.len().max(1) as f64);
            seen.set(&format!("{name}.p99_us"), percentile(spans, 990) as f64 / 1e3);
            seen.set(&format!("{name}.op_us"), *sum / 1e3 / ops.max(1) as f64);
        }
        let (issued, active) = counts.depth;
        seen.set(DEPTH, active as f64 / issued.max(1) as f64);
        seen.set(READ, counts.read as f64 / bytes.max(1.0));
        seen.set(WRITTEN, counts.written as f64 / bytes.max(1.0));
        seen.set(TXGS, counts.txgs as f64 / seconds.max(1e-9));
        seen
    }
}

#[cfg(test)]
mod tests {
    use rt::trace::LogTimes;

    use super::*;

    #[test]
    fn waits_are_counted_by_part() {
        let mut c = Counts::default();
        let ms = Nanos::from_ms;
        for n in 0..100 {
            let waited = if n < 2 { ms(50) } else { Nanos(0) };
            c.note(&Event::Admitted { txg: 1, waited, delay: waited });
        }
        let times = LogTimes { queue: ms(1), write: ms(2), flush: ms(3), order: ms(0) };
        c.note(&Event::Log { objset: 1, phase: LogPhase::Done, bytes: 1, size: 1, waiters: 4, times });
        let (read, asynchronous) = (Prio::SyncRead.index() as u8, Prio::AsyncWrite.index() as u8);
        c.note(&Event::Done { leaf: 1, class: read, write: false, len: 4096, total: ms(5), disk: ms(4), ok: true });
        for active in [1, 3] {
            let (leaf, class, offset, len, items, queued) = (1, asynchronous, 0, 8192, 1, 0);
            c.note(&Event::Issued { leaf, class, write: true, offset, len, items, queued, active });
        }
        let sim = crate::stage::world(0, 1 << 30, 1);
        let watch = Watch::begin(&sim.rt());
        watch.counts.replace(c);
        let seen = watch.end(2.0, 10, 8192.0);
        for (figure, want) in [
            ("throttle.p99_us", 50_000.0),
            ("throttle.mean_us", 1000.0),
            ("throttle.op_us", 10_000.0),
            ("log_flush.mean_us", 3000.0),
            ("log_flush.op_us", 1200.0),
            ("read_queue.mean_us", 1000.0),
            ("read_disk.p99_us", 4000.0),
            ("ahead.mean_us", 0.0),
            (DEPTH, 2.0),
            (READ, 0.5),
            (WRITTEN, 0.0),
        ] {
            assert_eq!(seen.values.get(figure), Some(&want), "{figure}");
        }
        assert!(figures().all(|name| seen.values.contains_key(&name)) && seen.values.len() == figures().count());
        assert!(PARTS.iter().all(|(_, phrase)| phrase.matches("{}").count() == 1));
    }
}
