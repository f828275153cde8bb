//! Where a flash disk has put its data, and what it must move before it can erase.
//!
//! Flash is written in one order, page after page, and erased in large blocks. So a disk keeps a
//! map from logical *units* to *slots* of the flash; a unit that is written again goes to the next
//! slot, and its old slot holds waste until its block is erased. Free slots come from the *oldest*
//! end: what still is valid there is moved to the newest end first (first in, first out, as the
//! cleaning policy with a known closed form). Moved units for each written one, plus one, are the
//! write amplification.
//!
//! In the steady state of random writes over the whole disk a share `v` of what is cleaned is still
//! valid: `v = exp(-t * (1 - v))` with `t` the slots for each logical unit ([`valid_when_cleaned`];
//! Desnoyers, "Analytic Modeling of SSD Write Performance", SYSTOR 2012). Data that is written in
//! order, and over again in the same order, is all waste when its turn comes: nothing is moved.
//! Moved data goes where new data goes, so a worn disk that is then written in order goes on moving
//! data; drives that keep both apart stop after some passes.
//!
//! A disk begins *fresh* (erased), or *worn*: the whole of it was written at random for long, as
//! test specifications ask for before they measure (SNIA Solid State Storage Performance Test
//! Specification, "workload dependent preconditioning"). What was there before has no map here; the
//! share of it that still is valid follows from its age.

/// Units of an entry of a table.
const CHUNK: usize = 4096;
/// Never written here.
const NONE: u32 = u32::MAX;
/// Discarded.
const TRIMMED: u32 = u32::MAX - 1;
/// In a slot: data from before the beginning that was moved.
const OLD: u32 = u32::MAX - 1;
/// Parts of the flash for which it is known when they were written.
const PARTS: usize = 1024;
/// Most units: those of 4 TiB by 4 KiB; larger disks have larger units.
const UNITS_MAX: u64 = 1 << 30;

/// An array in which what was never set is [`NONE`] and takes no memory.
#[derive(Default)]
struct Table(Vec<Option<Box<[u32; CHUNK]>>>);

impl Table {
    fn get(&self, at: u64) -> u32 {
        let (chunk, within) = (at as usize / CHUNK, at as usize % CHUNK);
        self.0.get(chunk).and_then(Option::as_ref).map_or(NONE, |values| values[within])
    }
    fn set(&mut self, at: u64, value: u32) {
        let (chunk, within) = (at as usize / CHUNK, at as usize % CHUNK);
        if chunk >= self.0.len() {
            self.0.resize_with(chunk + 1, || None);
        }
        self.0[chunk].get_or_insert_with(|| Box::new([NONE; CHUNK]))[within] = value;
    }
}

/// The share of what is cleaned that still is valid, for random writes over a whole disk with
/// `slots` slots for each logical unit.
pub(crate) fn valid_when_cleaned(slots: f64) -> f64 {
    // Converges from below for every ratio above 1.
    (0..400).fold(0.5, |v: f64, _| (-slots * (1.0 - v)).exp())
}

/// A flash disk's map.
pub(crate) struct Ftl {
    /// Bytes of a unit.
    unit: u64,
    /// Logical units.
    logical: u64,
    /// Physical units.
    slots: u64,
    /// It cleans when no more slots than this are free.
    reserve: u64,
    /// Units programmed so far; the next goes to slot `head % slots`.
    head: u64,
    /// Units cleaned so far.
    tail: u64,
    /// `head` at the beginning: slots below hold what was there before.
    head_before: u64,
    /// Logical unit to slot.
    map: Table,
    /// Slot to logical unit.
    owners: Table,
    /// Logical units that were written or discarded here.
    touched: u64,
    /// Valid share of what the steady state before cleaned.
    valid: f64,
    /// Share of a unit from before that is to be moved.
    carry: f64,
    /// The untouched share of the disk when the slots of each part of the flash were written.
    untouched_then: Vec<f64>,
}

impl Ftl {
    /// The map of a disk of `size` bytes with `spare` percent of flash beyond that, at most 100.
    pub(crate) fn new(size: u64, spare: u64, worn: bool) -> Ftl {
        let unit = 4096u64.max((size / UNITS_MAX).next_power_of_two());
        let logical = size.div_ceil(unit).max(1);
        let beyond = (logical * spare.min(100) / 100).max(64);
        let reserve = beyond / 8;
        let slots = logical + beyond;
        let head_before = if worn { slots - reserve } else { 0 };
        Ftl {
            unit,
            logical,
            slots,
            reserve,
            head: head_before,
            tail: 0,
            head_before,
            map: Table::default(),
            owners: Table::default(),
            touched: 0,
            valid: valid_when_cleaned((slots - reserve) as f64 / logical as f64),
            carry: 0.0,
            untouched_then: vec![1.0; PARTS],
        }
    }

    /// Takes a write in: bytes that must be moved for it.
    pub(crate) fn write(&mut self, offset: u64, len: u64) -> u64 {
        let mut moved = 0;
        for unit in offset / self.unit..(offset + len).div_ceil(self.unit) {
            moved += self.make_room();
            if self.map.get(unit) == NONE {
                self.touched += 1;
            }
            self.put(unit as u32);
        }
        moved * self.unit
    }

    /// Forgets whole units. Data from before the beginning is not known, so it stays.
    pub(crate) fn discard(&mut self, offset: u64, len: u64) {
        let (mut unit, end) = (offset.div_ceil(self.unit), (offset + len) / self.unit);
        while unit < end {
            let chunk = unit as usize / CHUNK;
            if self.map.0.get(chunk).is_some_and(Option::is_some) {
                if self.map.get(unit) != NONE {
                    self.map.set(unit, TRIMMED);
                }
                unit += 1;
            } else {
                unit = (chunk as u64 + 1) * CHUNK as u64;
            }
        }
    }

    fn put(&mut self, owner: u32) {
        let slot = self.head % self.slots;
        self.owners.set(slot, owner);
        if owner == OLD {
            let part = self.part(slot);
            self.untouched_then[part] = self.untouched();
        } else {
            self.map.set(u64::from(owner), slot as u32);
        }
        self.head += 1;
    }

    /// Cleans the oldest slots until there is room: units that were moved.
    fn make_room(&mut self) -> u64 {
        let mut moved = 0;
        while self.slots - (self.head - self.tail) <= self.reserve {
            let slot = self.tail % self.slots;
            let known = self.tail >= self.head_before;
            let owner = if known { self.owners.get(slot) } else { OLD };
            let keep = match owner {
                OLD => self.old_is_valid(known.then_some(slot)),
                unit => self.map.get(u64::from(unit)) == slot as u32,
            };
            self.tail += 1;
            if keep {
                self.put(owner);
                moved += 1;
            }
        }
        moved
    }

    /// The share of the disk that was neither written nor discarded here.
    fn untouched(&self) -> f64 {
        1.0 - self.touched as f64 / self.logical as f64
    }
    fn part(&self, slot: u64) -> usize {
        (slot * PARTS as u64 / self.slots) as usize
    }

    /// Whether the oldest slot, which holds data from before the beginning, is valid: of many, the
    /// expected share. `moved`: its slot, if the data was moved there, when it was valid.
    fn old_is_valid(&mut self, moved: Option<u64>) -> bool {
        let age = self.head_before.saturating_sub(self.tail) as f64;
        let valid = match moved {
            Some(slot) => self.untouched() / self.untouched_then[self.part(slot)].max(1e-9),
            None => self.untouched() * (-age * (1.0 - self.valid) / self.logical as f64).exp(),
        };
        self.carry += valid;
        let keep = self.carry >= 1.0;
        if keep {
            self.carry -= 1.0;
        }
        keep
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;

    const MIB: u64 = 1 << 20;

    /// Bytes programmed for each byte written, by `count` random writes of 4 KiB.
    fn amplification(ftl: &mut Ftl, size: u64, count: u64, seed: u64) -> f64 {
        let mut rng = Rng::new(seed);
        let moved: u64 = (0..count).map(|_| ftl.write(rng.below(size / 4096) * 4096, 4096)).sum();
        1.0 + moved as f64 / (count * 4096) as f64
    }

    #[test]
    fn steady_random_writes_have_the_amplification_of_the_closed_form() {
        let size = 64 * MIB;
        for (spare, want) in [(7, 8.0), (28, 2.7), (60, 1.75)] {
            let mut ftl = Ftl::new(size, spare, false);
            let units = size / 4096;
            // Fresh flash is written without moving anything.
            assert_eq!(amplification(&mut ftl, size, units / 2, 1), 1.0);
            // Long enough for the steady state, then measured.
            amplification(&mut ftl, size, units * 6, 2);
            let steady = amplification(&mut ftl, size, units * 2, 3);
            let slots = (ftl.slots - ftl.reserve) as f64 / ftl.logical as f64;
            let closed = 1.0 / (1.0 - valid_when_cleaned(slots));
            assert!((steady / closed - 1.0).abs() < 0.05, "{spare} %: {steady} for {closed}");
            assert!((closed / want - 1.0f64).abs() < 0.15, "{spare} %: {closed} for {want}");
            // A worn disk is there from the beginning, and stays there.
            let mut worn = Ftl::new(size, spare, true);
            for round in 0..6 {
                let seen = amplification(&mut worn, size, units / 2, 10 + round);
                assert!((seen / closed - 1.0).abs() < 0.12, "{spare} %, round {round}: {seen} for {closed}");
            }
        }
    }

    #[test]
    fn writes_in_order_move_nothing() {
        let size = 16 * MIB;
        let mut ftl = Ftl::new(size, 10, false);
        let moved: u64 = (0..10 * size / (128 << 10)).map(|n| ftl.write(n * (128 << 10) % size, 128 << 10)).sum();
        assert_eq!(moved, 0);
        // On a worn disk, what was there before is moved.
        let mut ftl = Ftl::new(size, 30, true);
        let moved: u64 = (0..size / 4096).map(|n| ftl.write(n * 4096, 4096)).sum();
        assert!(moved > size / 2, "{moved}");
    }

    #[test]
    fn discarded_data_is_not_moved() {
        let size = 16 * MIB;
        let run = |discard: bool| {
            let mut ftl = Ftl::new(size, 10, false);
            // Half of it stays, the other half is written at random.
            let mut moved = ftl.write(0, size);
            if discard {
                ftl.discard(0, size / 2);
            }
            let mut rng = Rng::new(1);
            for _ in 0..size * 3 / 4096 {
                moved += ftl.write(size / 2 + rng.below(size / 8192) * 4096, 4096);
            }
            moved
        };
        assert!(run(true) * 4 < run(false), "{} {}", run(true), run(false));
    }
}
