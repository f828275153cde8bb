//! Faults on purpose (`zinject`): errors of reading chosen blocks of an object.
//!
//! Reads know a block by its pointer, not by the place in its object. So a fault has the pointers
//! of its blocks, which are looked up when it is added: a block that is written later is another
//! one, with another pointer, and is spared. An error may be of chosen copies only: then the others
//! are read, and mend the block, as with a real error. An error of content is of the block: chance
//! says at the first read whether it has one, and later reads of it get the same answer, since the
//! kernel reads again what it could not read ahead. Without faults a read pays one comparison.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Error, ErrorKind, Txg};
use ondisk::blkptr::{Blkptr, Dva};
use rt::Rt;
use vdev::Odds;

/// What goes wrong with a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataTrouble {
    /// Its copies cannot be read (`io`).
    Io,
    /// The checksums of its copies are wrong (`checksum`).
    Checksum,
    /// It does not decompress (`decompress`).
    Decompress,
    /// It cannot be authenticated (`decrypt`).
    Decrypt,
}

impl DataTrouble {
    fn is_of_copies(self) -> bool {
        matches!(self, DataTrouble::Io | DataTrouble::Checksum)
    }

    fn error(self) -> Error {
        let (kind, what) = match self {
            DataTrouble::Io => (ErrorKind::Io, "an error"),
            DataTrouble::Checksum => (ErrorKind::Checksum, "a wrong checksum"),
            DataTrouble::Decompress => (ErrorKind::Corrupt, "wrong compressed data"),
            DataTrouble::Decrypt => (ErrorKind::Forged, "a wrong authentication code"),
        };
        Error::new(kind, format!("{what} on purpose (zinject)"))
    }
}

/// What a block is known by: the place of its first copy and when that was written.
type Key = (Dva, Txg);

fn key_of(bp: &Blkptr) -> Key {
    (bp.dva(0), bp.phys_birth())
}

/// A fault of blocks.
#[derive(Debug)]
pub struct DataFault {
    /// What goes wrong.
    pub trouble: DataTrouble,
    /// The copies, a bit for each from the lowest; 0: all.
    pub copies: u8,
    /// How often.
    pub odds: Odds,
    /// The blocks; what their content is like, once that was decided.
    blocks: RefCell<BTreeMap<Key, Option<bool>>>,
}

impl DataFault {
    /// A fault of these blocks. Holes and blocks in their pointers are not read, and left out.
    pub fn new(trouble: DataTrouble, copies: u8, chance: u32, blocks: &[Blkptr]) -> Rc<DataFault> {
        let stored = blocks.iter().filter(|bp| !bp.is_hole() && !bp.is_embedded());
        Rc::new(DataFault {
            trouble,
            copies,
            odds: Odds::new(chance),
            blocks: RefCell::new(stored.map(|bp| (key_of(bp), None)).collect()),
        })
    }

    /// Whether a read of this block has the error.
    fn befalls(&self, rt: &Rt, key: &Key) -> bool {
        let mut blocks = self.blocks.borrow_mut();
        let Some(decided) = blocks.get_mut(key) else { return false };
        match *decided {
            Some(is_bad) if !self.trouble.is_of_copies() => self.odds.repeat(is_bad),
            _ => *decided.insert(self.odds.befall(rt)),
        }
    }
}

/// The faults of the blocks of a pool, in the order in which they were added.
#[derive(Default, Debug)]
pub struct DataFaults {
    all: RefCell<Vec<Rc<DataFault>>>,
    is_active: Cell<bool>,
}

impl DataFaults {
    /// Adds a fault.
    pub fn add(&self, fault: Rc<DataFault>) {
        self.all.borrow_mut().push(fault);
        self.is_active.set(true);
    }
    /// Takes a fault away.
    pub fn remove(&self, fault: &Rc<DataFault>) {
        let mut all = self.all.borrow_mut();
        all.retain(|f| !Rc::ptr_eq(f, fault));
        self.is_active.set(!all.is_empty());
    }

    /// The error of reading the copy number `copy` of a block, if there is to be one.
    pub(crate) fn of_copy(&self, rt: &Rt, bp: &Blkptr, copy: usize) -> Option<Error> {
        let chosen =
            |f: &DataFault| f.copies == 0 || 1u8.checked_shl(copy as u32).is_some_and(|bit| f.copies & bit != 0);
        self.find(rt, bp, |f| f.trouble.is_of_copies() && chosen(f))
    }
    /// The error of unpacking a block, if there is to be one.
    pub(crate) fn of_content(&self, rt: &Rt, bp: &Blkptr) -> Option<Error> {
        self.find(rt, bp, |f| match f.trouble {
            DataTrouble::Decompress => bp.compress_raw() != codec::CompressAlgo::Off as u8,
            DataTrouble::Decrypt => bp.encrypted(),
            DataTrouble::Io | DataTrouble::Checksum => false,
        })
    }

    fn find(&self, rt: &Rt, bp: &Blkptr, is_about: impl Fn(&DataFault) -> bool) -> Option<Error> {
        if !self.is_active.get() {
            return None;
        }
        let (all, key) = (self.all.borrow(), key_of(bp));
        let fault = all.iter().filter(|f| is_about(f)).find(|f| f.befalls(rt, &key))?;
        Some(fault.trouble.error())
    }
}
