//! How long operations take.
//!
//! A model is independent of contents and durability. It takes submissions, computes the time of
//! its next completion, and lists the operations completed by now. It keeps its own schedule: a
//! late query (the engine's core was busy) does not make the device slower.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use base::Nanos;

use super::fault::OpKind;
use super::hdd::{Hdd, HddModel};
use super::ssd::{Ssd, SsdModel};
use crate::Rng;

/// A disk's timing.
#[derive(Clone, PartialEq, Debug)]
pub enum Model {
    /// One pipe: transfers queue for the bandwidth, then each takes the latency. The two-number
    /// disk, for correctness runs and for arithmetic that one can do by hand.
    Fixed {
        /// Added to every operation.
        latency: Nanos,
        /// Bytes a second.
        bandwidth: u64,
    },
    /// Every operation takes a time of its own, drawn from the disk's seed, whatever else is in
    /// flight: completions come in any order. For correctness runs.
    Random {
        /// The shortest.
        min: Nanos,
        /// The longest.
        max: Nanos,
    },
    /// A disk of a virtual machine whose host keeps writes in memory: as [`Model::Fixed`], but a
    /// flush takes time for each byte written since the one before, and holds up what comes later.
    Virtual {
        /// Added to every operation.
        latency: Nanos,
        /// Bytes a second.
        bandwidth: u64,
        /// Bytes a second of a flush.
        flush_bandwidth: u64,
    },
    /// A spinning disk.
    Hdd(HddModel),
    /// Flash.
    Ssd(SsdModel),
}

impl Model {
    /// Completions in any order within 10 to 500 us.
    pub fn random() -> Model {
        Model::Random { min: Nanos::from_us(10), max: Nanos::from_us(500) }
    }
    /// A 7200 rpm disk of the nearline kind, write cache on.
    pub fn hdd() -> Model {
        Model::Hdd(HddModel::nearline_7200())
    }
    /// A data centre NVMe disk without protection against power loss.
    pub fn nvme() -> Model {
        Model::Ssd(SsdModel::nvme())
    }
    /// A SATA SSD.
    pub fn sata_ssd() -> Model {
        Model::Ssd(SsdModel::sata())
    }
    /// Whether distance costs time.
    pub fn rotational(&self) -> bool {
        matches!(self, Model::Hdd(_))
    }
    /// The unit that the medium writes without reading, in bytes.
    pub(crate) fn physical_sector(&self) -> u32 {
        match self {
            Model::Hdd(_) | Model::Ssd(_) => 4096,
            _ => 512,
        }
    }
}

/// How long operations keep the engine's thread: system calls, doorbells, interrupts, and on a
/// virtual machine what the host does meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostCpu {
    /// A read without its bytes.
    pub read: Nanos,
    /// Bytes a second of a read; 0: they take nothing.
    pub read_rate: u64,
    /// A write without its bytes.
    pub write: Nanos,
    /// Bytes a second of a write; 0: they take nothing.
    pub write_rate: u64,
    /// A flush.
    pub flush: Nanos,
}

impl HostCpu {
    /// The time for an operation of `len` bytes.
    pub fn cost(&self, kind: OpKind, len: u64) -> Nanos {
        let bytes = |rate: u64| if rate == 0 { Nanos(0) } else { transfer(len, rate) };
        match kind {
            OpKind::Read => self.read + bytes(self.read_rate),
            OpKind::Write => self.write + bytes(self.write_rate),
            OpKind::Flush => self.flush,
            OpKind::Discard => Nanos(0),
        }
    }
}

/// Time from a disk's completion until the engine hears of it: interrupt, hypervisor, the waking of
/// threads. Operations pass it side by side, but for `cpu`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostLatency {
    /// What operations take of the engine's thread.
    pub cpu: HostCpu,
    /// The shortest.
    pub wake: Nanos,
    /// The mean of what is added, exponentially distributed.
    pub jitter: Nanos,
    /// Of a million operations so many take longer: a thread that did not get its core, a device
    /// that tidies up.
    pub rare_per_million: u64,
    /// How much longer those take on average, exponentially distributed.
    pub rare: Nanos,
}

/// A model's view of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) op: u64,
    pub(crate) kind: OpKind,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// Operations whose moment of completion is known: the earliest first, then in the order of
/// submission.
pub(crate) struct Finishing {
    heap: BinaryHeap<Reverse<(Nanos, u64)>>,
    host: HostLatency,
    rng: Rng,
}

impl Finishing {
    pub(crate) fn push(&mut self, at: Nanos, op: u64) {
        let HostLatency { wake, jitter, rare_per_million, rare, .. } = self.host;
        let mut later = wake;
        if jitter.0 > 0 {
            later = later + exponential(jitter, self.rng.next_u64());
        }
        if rare_per_million > 0 && self.rng.below(1_000_000) < rare_per_million {
            later = later + exponential(rare, self.rng.next_u64());
        }
        self.heap.push(Reverse((at + later, op)));
    }
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }
    pub(crate) fn pop_due(&mut self, now: Nanos) -> Option<u64> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, op))| op)
    }
}

/// A time of an exponential distribution, from a uniform random number.
pub(crate) fn exponential(mean: Nanos, drawn: u64) -> Nanos {
    // 53 bits, never 0: its logarithm is finite.
    let even = ((drawn >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    Nanos((-even.ln() * mean.0 as f64) as u64)
}

/// The time that `len` bytes take at `rate` bytes a second.
pub(crate) fn transfer(len: u64, rate: u64) -> Nanos {
    Nanos((u128::from(len) * 1_000_000_000 / u128::from(rate.max(1))) as u64)
}

/// A model at work.
pub(crate) struct Timing {
    kind: Kind,
    finishing: Finishing,
    rng: Rng,
}

enum Kind {
    Fixed(Pipe),
    Virtual { pipe: Pipe, flush_bandwidth: u64, unflushed: u64 },
    Random { min: Nanos, max: Nanos },
    Hdd(Box<Hdd>),
    Ssd(Box<Ssd>),
}

/// Transfers one after the other, each with a latency after it.
struct Pipe {
    latency: Nanos,
    bandwidth: u64,
    free_at: Nanos,
}

impl Pipe {
    fn new(latency: Nanos, bandwidth: u64) -> Pipe {
        Pipe { latency, bandwidth, free_at: Nanos(0) }
    }
    fn submit(&mut self, now: Nanos, len: u64, bandwidth: u64) -> Nanos {
        self.free_at = self.free_at.max(now) + transfer(len, bandwidth);
        self.free_at + self.latency
    }
}

impl Timing {
    pub(crate) fn new(model: &Model, size: u64, host: HostLatency, rng: Rng) -> Timing {
        // Streams that do not repeat one another.
        let own = |purpose| Rng::stream(rng.clone().next_u64(), purpose);
        let kind = match model {
            Model::Fixed { latency, bandwidth } => Kind::Fixed(Pipe::new(*latency, *bandwidth)),
            Model::Virtual { latency, bandwidth, flush_bandwidth } => {
                Kind::Virtual { pipe: Pipe::new(*latency, *bandwidth), flush_bandwidth: *flush_bandwidth, unflushed: 0 }
            }
            Model::Random { min, max } => Kind::Random { min: *min, max: *max },
            Model::Hdd(model) => Kind::Hdd(Box::new(Hdd::new(model.clone(), size, own(1)))),
            Model::Ssd(model) => Kind::Ssd(Box::new(Ssd::new(model.clone(), size, own(3)))),
        };
        let finishing = Finishing { heap: BinaryHeap::new(), host, rng: own(2) };
        Timing { kind, finishing, rng }
    }
    /// Takes an operation in. [`Timing::advance`] must have been called up to `now`.
    pub(crate) fn submit(&mut self, now: Nanos, shape: Shape) {
        let moved = if shape.kind == OpKind::Discard { 0 } else { shape.len };
        let at = match &mut self.kind {
            Kind::Fixed(pipe) => pipe.submit(now, moved, pipe.bandwidth),
            Kind::Virtual { pipe, flush_bandwidth, unflushed } => {
                if shape.kind == OpKind::Flush {
                    pipe.submit(now, std::mem::take(unflushed), *flush_bandwidth)
                } else {
                    *unflushed += if shape.kind == OpKind::Write { moved } else { 0 };
                    pipe.submit(now, moved, pipe.bandwidth)
                }
            }
            Kind::Random { min, max } => now + Nanos(self.rng.between(min.0, max.0)),
            Kind::Ssd(ssd) => ssd.submit(now, shape),
            Kind::Hdd(hdd) => return hdd.submit(now, shape),
        };
        self.finishing.push(at, shape.op);
    }
    /// Follows the device's own schedule up to `now`.
    pub(crate) fn advance(&mut self, now: Nanos) {
        if let Kind::Hdd(hdd) = &mut self.kind {
            hdd.advance(now, &mut self.finishing);
        }
    }
    /// The next operation that has completed by `now`, in the order of completion.
    pub(crate) fn pop(&mut self, now: Nanos) -> Option<u64> {
        self.finishing.pop_due(now)
    }
    /// When something will happen next.
    pub(crate) fn next(&self) -> Option<Nanos> {
        let inner = if let Kind::Hdd(hdd) = &self.kind { hdd.next() } else { None };
        match (inner, self.finishing.next()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}
