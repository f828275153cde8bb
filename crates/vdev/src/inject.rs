//! Faults on purpose (`zinject`): errors, changed bytes and delays of one device.
//!
//! A [`DeviceFault`] says what befalls which operations of a device, and how often. The [`Faults`]
//! of a device are a part of its [`crate::Condition`], so that they stay when it is closed and
//! opened again. The [`crate::Leaf`] asks them where it gives an operation to the device: the first
//! fault that matches the operation and whose chance comes up is what befalls it. As in OpenZFS
//! (`module/zfs/zio_inject.c`) an operation that *fails* was carried out, and only its result is
//! another; and labels are spared, unless the fault is about a part of them.
//!
//! Faults of chance want each operation alone, so while there are any the queue gathers none.
//! Chance comes from the generator of the world and delays from its clock, so a simulation repeats
//! both. A device without faults pays one comparison for each operation.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use base::Nanos;
use ondisk::label::{BOOT_ENV_OFFSET, CONFIG_OFFSET, DATA_START, LABEL_SIZE, RING_OFFSET, label_offsets};
use rt::Rt;

/// The chance of a fault that befalls every operation; others are parts of it.
pub const ALWAYS: u32 = 1_000_000;
/// Bound on the lanes of a delay (OpenZFS takes fewer than 2^16).
pub const LANES_MAX: u32 = 65_535;

/// What befalls an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// It is carried out and fails all the same (`io`).
    Fail,
    /// As [`Trouble::Fail`]; and the device does not answer to a probe, nor can it be opened
    /// (`nxio`).
    Gone,
    /// A read succeeds with one bit changed (`corrupt`).
    FlipBit,
    /// It is not carried out, and succeeds (`noop`); a read gives zeros.
    Skip,
    /// It is not carried out, and fails (`io-prefail`).
    Refuse,
    /// It goes through one of so many lanes, which take one operation at a time and so long for
    /// each.
    Delay {
        /// The time.
        span: Nanos,
        /// The number of lanes, 1 to [`LANES_MAX`].
        lanes: u32,
    },
}

/// The operations that a fault is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultyOps {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Flushes.
    Flush,
    /// Probes of whether the device is there.
    Probe,
    /// All except probes.
    All,
}

impl FaultyOps {
    /// Whether a fault about `self` is about an operation of the kind `op`.
    fn has(self, op: FaultyOps) -> bool {
        self == op || self == FaultyOps::All && op != FaultyOps::Probe
    }
}

/// A part of a label (format page 01).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LabelPart {
    /// The first blank part, 8 KiB.
    Pad1,
    /// The second one, which holds the boot environment.
    Pad2,
    /// The configuration.
    Nvlist,
    /// The ring of uberblocks.
    Uberblocks,
}

impl LabelPart {
    fn range(self) -> Range<u64> {
        match self {
            LabelPart::Pad1 => 0..BOOT_ENV_OFFSET,
            LabelPart::Pad2 => BOOT_ENV_OFFSET..CONFIG_OFFSET,
            LabelPart::Nvlist => CONFIG_OFFSET..RING_OFFSET,
            LabelPart::Uberblocks => RING_OFFSET..LABEL_SIZE,
        }
    }

    /// Whether a device of `size` bytes has this part of a label at `offset`.
    fn is_at(self, offset: u64, size: u64) -> bool {
        label_offsets(size).iter().any(|at| offset.checked_sub(*at).is_some_and(|o| self.range().contains(&o)))
    }
}

/// Whether a device of `size` bytes has something else than labels at `offset`.
fn is_data(offset: u64, size: u64) -> bool {
    offset >= DATA_START && offset < label_offsets(size)[2]
}

/// How often a fault comes up, and how often it did.
#[derive(Debug)]
pub struct Odds {
    chance: u32,
    matched: Cell<u64>,
    hits: Cell<u64>,
}

impl Odds {
    /// So many of [`ALWAYS`] operations.
    pub fn new(chance: u32) -> Odds {
        Odds { chance, matched: Cell::default(), hits: Cell::default() }
    }
    /// The chance, of [`ALWAYS`].
    pub fn chance(&self) -> u32 {
        self.chance
    }
    /// Operations that the fault is about, so far.
    pub fn matched(&self) -> u64 {
        self.matched.get()
    }
    /// Operations that it befell.
    pub fn hits(&self) -> u64 {
        self.hits.get()
    }
    /// An operation that the fault is about: whether it befalls it.
    pub fn befall(&self, rt: &Rt) -> bool {
        let hit = self.comes_up(rt);
        if hit {
            self.count_hit();
        }
        hit
    }
    /// As [`Odds::befall`], where it was decided before.
    pub fn repeat(&self, hit: bool) -> bool {
        self.matched.set(self.matched.get() + 1);
        if hit {
            self.count_hit();
        }
        hit
    }
    fn comes_up(&self, rt: &Rt) -> bool {
        self.matched.set(self.matched.get() + 1);
        self.chance >= ALWAYS || rt.rng_below(ALWAYS.into()) < self.chance.into()
    }
    fn count_hit(&self) {
        self.hits.set(self.hits.get() + 1);
    }
}

/// A fault of a device.
#[derive(Debug)]
pub struct DeviceFault {
    /// What befalls an operation.
    pub trouble: Trouble,
    /// The operations.
    pub ops: FaultyOps,
    /// The part of the labels that it is about; none: everything but labels.
    pub part: Option<LabelPart>,
    /// How often.
    pub odds: Odds,
    /// When each lane of a delay is free.
    lanes: RefCell<Vec<Nanos>>,
}

impl DeviceFault {
    /// A fault that has befallen nothing yet.
    pub fn new(trouble: Trouble, ops: FaultyOps, part: Option<LabelPart>, chance: u32) -> Rc<DeviceFault> {
        let lanes = match trouble {
            Trouble::Delay { lanes, .. } => vec![Nanos(0); lanes.clamp(1, LANES_MAX) as usize],
            _ => Vec::new(),
        };
        Rc::new(DeviceFault { trouble, ops, part, odds: Odds::new(chance), lanes: RefCell::new(lanes) })
    }

    fn is_delay(&self) -> bool {
        matches!(self.trouble, Trouble::Delay { .. })
    }

    /// The lane that is free first, and when it is.
    fn first_free(&self) -> (usize, Nanos) {
        let lanes = self.lanes.borrow();
        lanes.iter().copied().enumerate().min_by_key(|(_, at)| *at).unwrap_or_default()
    }
}

/// An operation that is given to a device.
#[derive(Clone, Copy)]
pub(crate) struct Given {
    /// Its kind.
    pub op: FaultyOps,
    /// Where it begins, of a read or write.
    pub offset: Option<u64>,
    /// Size of the device in bytes.
    pub size: u64,
}

/// The faults of a device, in the order in which they were added.
#[derive(Default, Debug)]
pub struct Faults {
    all: RefCell<Vec<Rc<DeviceFault>>>,
    is_active: Cell<bool>,
}

impl Faults {
    /// Adds a fault.
    pub fn add(&self, fault: Rc<DeviceFault>) {
        self.all.borrow_mut().push(fault);
        self.is_active.set(true);
    }
    /// Takes a fault away; operations that it delays still wait.
    pub fn remove(&self, fault: &Rc<DeviceFault>) {
        let mut all = self.all.borrow_mut();
        all.retain(|f| !Rc::ptr_eq(f, fault));
        self.is_active.set(!all.is_empty());
    }
    /// Whether there are any.
    pub(crate) fn is_active(&self) -> bool {
        self.is_active.get()
    }
    /// Whether the device must be given each operation alone.
    pub(crate) fn wants_single(&self) -> bool {
        self.is_active.get() && self.all.borrow().iter().any(|f| !f.is_delay())
    }

    /// What befalls an operation, but for delays.
    pub(crate) fn befalls(&self, rt: &Rt, given: Given) -> Option<Trouble> {
        if !self.is_active.get() {
            return None;
        }
        let is_there = |f: &DeviceFault| match (given.offset, f.part) {
            (Some(offset), Some(part)) => part.is_at(offset, given.size),
            (Some(offset), None) => is_data(offset, given.size),
            (None, part) => part.is_none(),
        };
        let all = self.all.borrow();
        let about = |f: &&Rc<DeviceFault>| {
            let ops = f.ops.has(given.op) || given.op == FaultyOps::Probe && f.trouble == Trouble::Gone;
            let flips = f.trouble != Trouble::FlipBit || given.op == FaultyOps::Read;
            ops && flips && !f.is_delay() && is_there(f)
        };
        let fault = all.iter().filter(about).find(|f| f.odds.befall(rt))?;
        Some(fault.trouble)
    }

    /// When an operation may be over at the earliest, by the delays; it takes a lane until then.
    pub(crate) fn delays(&self, rt: &Rt, op: FaultyOps) -> Option<Nanos> {
        if !self.is_active.get() {
            return None;
        }
        let (all, now) = (self.all.borrow(), rt.now());
        let mut best: Option<(Nanos, usize, &Rc<DeviceFault>)> = None;
        for fault in all.iter().filter(|f| f.ops.has(op)) {
            let Trouble::Delay { span, .. } = fault.trouble else { continue };
            if !fault.odds.comes_up(rt) {
                continue;
            }
            let (lane, free) = fault.first_free();
            let over = free.max(now) + span;
            if best.is_none_or(|(first, ..)| over < first) {
                best = Some((over, lane, fault));
            }
        }
        let (over, lane, fault) = best?;
        fault.lanes.borrow_mut()[lane] = over;
        fault.odds.count_hit();
        Some(over)
    }

    /// Whether the device cannot be opened.
    pub fn refuses_open(&self) -> bool {
        self.is_active.get() && self.all.borrow().iter().any(|f| f.trouble == Trouble::Gone)
    }
}
