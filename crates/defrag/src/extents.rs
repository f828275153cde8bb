//! The places of a file's blocks, and the runs that they make.
//!
//! Vocabulary. A *place* is where the first copy of a block lies: a top-level vdev, an offset and
//! the allocated bytes there. A *run* is a sequence of blocks of a file, in file order, each right
//! behind the one before on the same vdev; a reader of the file moves the head once for each run. A
//! gang block is in pieces, so it is a run of its own. A block is *held* if rewriting the file does
//! not give its space back: a snapshot has it, or it was cloned from another file. A block is
//! *fixed* if rewriting does not move it: its dedup table leads back to the old place.
//!
//! [`Runs::push`] takes the blocks of a file one by one and keeps sums only, so a file of any
//! length costs the same memory.

use base::{Error, Result, Txg};
use ondisk::blkptr::Blkptr;

/// Where a block lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// Top-level vdev.
    pub(crate) vdev: u32,
    /// First byte in it.
    pub(crate) offset: u64,
    /// Bytes that it takes there.
    pub(crate) asize: u64,
    /// Bytes that are stored, the same on any vdev.
    pub(crate) psize: u64,
    /// Bytes of its content.
    pub(crate) lsize: u64,
    /// When it was written there, which decides its layout on RAID-Z.
    pub(crate) birth: Txg,
    /// Whether it is in pieces.
    pub(crate) gang: bool,
    /// Whether its space stays allocated when it is rewritten.
    pub(crate) held: bool,
    /// Whether it stays where it is when it is rewritten.
    pub(crate) fixed: bool,
}

impl Place {
    /// Of a pointer to a data block of a head whose newest snapshot was made in txg `snapshot` (0:
    /// there is none). `None` for what takes no space: holes, blocks within their pointer.
    pub(crate) fn of(bp: &Blkptr, snapshot: Txg) -> Result<Option<Place>> {
        if bp.is_hole() || bp.is_embedded() || bp.is_redacted() {
            return Ok(None);
        }
        let dva = bp.dva(0);
        let (offset, asize) = (dva.offset(), dva.asize());
        if asize == 0 || offset.checked_add(asize).is_none() {
            return Err(Error::corrupt(format!("block {bp} has no place")));
        }
        // A clone is younger than its bytes; a block that was rewritten in place is older.
        let (birth, phys) = (bp.birth(), bp.phys_birth());
        Ok(Some(Place {
            vdev: dva.vdev().0,
            offset,
            asize,
            psize: bp.psize(),
            lsize: bp.lsize(),
            birth: phys,
            gang: dva.gang(),
            held: birth.max(phys) <= snapshot || phys < birth,
            fixed: bp.dedup(),
        }))
    }

    /// Whether `self` begins where `before` ends.
    fn follows(&self, before: &Place) -> bool {
        self.vdev == before.vdev && before.offset.checked_add(before.asize) == Some(self.offset)
    }
}

/// A sum that stops at the end of numbers: what is added comes from disk.
pub(crate) fn total(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

/// Sums over the blocks of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Runs {
    /// Blocks that take space.
    pub(crate) blocks: u64,
    /// Their allocated bytes.
    pub(crate) bytes: u64,
    /// Their stored bytes, which a reader reads.
    pub(crate) stored: u64,
    /// Runs that they make.
    pub(crate) runs: u64,
    /// Runs that begin at a block that stays where it is, or right behind one.
    pub(crate) fixed_runs: u64,
    /// Bytes that stay allocated when the file is rewritten.
    pub(crate) held: u64,
    /// Bytes in fragmented metaslabs.
    pub(crate) fragmented: u64,
    /// The last block, to see whether the next one is right behind it.
    pub(crate) last: Option<Place>,
}

impl Runs {
    /// Takes the next block.
    pub(crate) fn push(&mut self, place: Place, is_fragmented: bool) {
        self.blocks += 1;
        self.bytes = self.bytes.saturating_add(place.asize);
        self.stored = self.stored.saturating_add(place.psize);
        let goes_on = self.last.is_some_and(|l| place.follows(&l) && !l.gang && !place.gang);
        if !goes_on {
            self.runs += 1;
            self.fixed_runs += u64::from(place.fixed || self.last.is_some_and(|l| l.fixed));
        }
        if place.held && !place.fixed {
            self.held = self.held.saturating_add(place.asize);
        }
        if is_fragmented {
            self.fragmented = self.fragmented.saturating_add(place.asize);
        }
        self.last = Some(place);
    }
}

/// A block of `size` bytes there, of a vdev without parity.
pub(crate) const fn at(vdev: u32, offset: u64, size: u64) -> Place {
    let (birth, gang, held, fixed) = (Txg(u64::MAX), false, false, false);
    Place { vdev, offset, asize: size, psize: size, lsize: size, birth, gang, held, fixed }
}

#[cfg(test)]
mod tests {
    use base::VdevId;
    use ondisk::blkptr::Dva;
    use ondisk::object_type::ObjectType;

    use super::*;

    fn runs(places: &[Place]) -> Runs {
        let mut r = Runs::default();
        places.iter().for_each(|p| r.push(*p, p.vdev == 1));
        r
    }

    #[test]
    fn runs_break_where_a_block_is_not_right_behind() {
        assert_eq!(runs(&[]).runs, 0);
        let r = runs(&[at(0, 0, 8), at(0, 8, 4), at(0, 12, 8), at(0, 24, 8), at(1, 32, 8), at(1, 24, 8)]);
        assert_eq!((r.blocks, r.bytes, r.runs, r.fragmented), (6, 44, 4, 16));
        let gang = Place { gang: true, ..at(0, 8, 8) };
        assert_eq!(runs(&[at(0, 0, 8), gang, at(0, 16, 8)]).runs, 3, "a gang block is a run of its own");
        let end = at(0, u64::MAX - 8, 8);
        assert_eq!(runs(&[end, at(0, 0, 8)]).runs, 2, "no wrap at the end of numbers");
    }

    #[test]
    fn what_stays_is_counted() {
        let held = Place { held: true, ..at(0, 8, 8) };
        let fixed = Place { fixed: true, held: true, ..at(0, 32, 8) };
        let r = runs(&[at(0, 0, 8), held, fixed, at(0, 64, 8), at(0, 128, 8)]);
        assert_eq!((r.runs, r.held, r.fixed_runs), (4, 8, 2), "a fixed block is not written anew");
    }

    #[test]
    fn pointers_tell_what_holds_them() {
        let bp = |birth: u64, phys: u64| {
            let mut bp = Blkptr::hole();
            bp.set_lsize(4096);
            bp.set_psize(4096);
            bp.set_otype(ObjectType(19));
            bp.set_dva(0, Dva::new(VdevId(3), 8192, 4096, false));
            bp.set_birth(Txg(birth), Txg(phys));
            bp
        };
        let held = |birth, phys, snapshot| Place::of(&bp(birth, phys), Txg(snapshot)).unwrap().unwrap().held;
        assert!(!held(10, 10, 0) && !held(10, 10, 9) && held(10, 10, 10) && held(10, 10, 11));
        assert!(held(10, 4, 0), "cloned");
        assert!(!held(4, 10, 7), "rewritten after the snapshot with its birth kept");
        let p = Place::of(&bp(10, 10), Txg(0)).unwrap().unwrap();
        assert_eq!((p.vdev, p.offset, p.asize, p.psize), (3, 8192, 4096, 4096));
        assert_eq!(Place::of(&Blkptr::hole(), Txg(0)).unwrap(), None);
        let mut bad = bp(1, 1);
        bad.set_dva(0, Dva::new(VdevId(0), 512, 0, false));
        assert!(Place::of(&bad, Txg(0)).is_err());
    }
}
