//! Whether a sector size that is only tried is the right one.
//!
//! On RAID-Z and dRAID ("striped" vdevs) the sector size decides where the parts of a block are. On
//! any other vdev it does not matter for reading, so that what can be read there proves nothing: a
//! special class of mirrors has all metadata, readable with any size. A block of each object is
//! looked at that lies on a striped vdev. A wrong size reads few of these, small ones that happen
//! to lie alike with both sizes.
//!
//! Blocks are damaged with the right size too. Only with [`RIGHT_MIN`] right ones for each wrong
//! one is it sure ([`Evidence::is_sure`]); the other sizes are tried as well otherwise, which costs
//! a search of the devices for each, and the one with the largest [`Evidence::sum`] is taken.

use std::rc::Rc;

use base::Error;
use codec::ChecksumAlgo;
use ondisk::blkptr::Blkptr;

use crate::blocks::Blocks;
use crate::catalog::Catalog;
use crate::finds::Finds;
use crate::tree::{Object, Objset, Part};
use crate::vdevs::Top;

/// States of the MOS that are looked at.
const STATES_MAX: usize = 8;
/// Objects of the smallest MOS that tells it alone.
const WHOLE_MIN: u64 = 16;
/// Blocks that are read.
const SAMPLES_MAX: u64 = 256;
/// Right blocks for each wrong one.
const RIGHT_MIN: u64 = 4;

/// What can be read with a sector size.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Evidence {
    /// Objects of some states of the MOS.
    objects: u64,
    /// Whether a MOS of some size has lost nothing.
    whole: bool,
    /// Whether all vdevs are striped, so that the MOS is, too.
    all_striped: bool,
    /// Blocks on striped vdevs.
    right: u64,
    /// Blocks on striped vdevs that cannot be read.
    wrong: u64,
}

impl Evidence {
    /// Reads some states of the MOS, and a block of each of the first objects of all datasets.
    pub fn of(io: &Rc<Blocks>, stack: &[Objset], finds: &Finds, catalog: &Catalog, all_striped: bool) -> Evidence {
        let mut out = Evidence { all_striped, ..Evidence::default() };
        for ds in &catalog.datasets {
            // Any state will do, and so do encrypted blocks: their checksums need no key.
            let older = || ds.known_views(stack, finds, None).0.into_iter().next();
            let Some(os) = Objset::open(io, &ds.bp).ok().or_else(older) else { continue };
            os.for_each(&mut |o| {
                if out.right + out.wrong < SAMPLES_MAX
                    && let Ok(o) = o
                    && let Some(bp) = sample(io, &o)
                {
                    *(if io.is_readable(&bp) { &mut out.right } else { &mut out.wrong }) += 1;
                }
            });
        }
        for mos in stack.iter().take(STATES_MAX) {
            let (mut good, mut lost) = (0, 0);
            mos.for_each(&mut |o| match o {
                Ok(_) => good += 1,
                Err((_, count, _)) => lost += count,
            });
            out.objects += good;
            out.whole |= lost == 0 && good >= WHOLE_MIN;
        }
        out
    }

    /// The more, the likelier.
    pub fn sum(&self) -> u64 {
        self.objects + self.right
    }

    /// Whether no other size can be right.
    pub fn is_sure(&self) -> bool {
        let tells = self.all_striped || self.right > 0;
        self.whole && tells && self.right >= RIGHT_MIN.saturating_mul(self.wrong)
    }
}

/// The first block of an object that is on a striped vdev: of its tree's root, or of its data.
fn sample(io: &Blocks, o: &Object) -> Option<Blkptr> {
    let is_striped = |bp: &Blkptr| bp.dvas().filter_map(|dva| io.vdevs.top(dva.vdev().0)).any(Top::is_striped);
    let is_proof = |bp: &Blkptr| {
        let unchecked = matches!(bp.checksum_algo(), Some(ChecksumAlgo::Off | ChecksumAlgo::NoParity));
        !bp.is_hole() && !bp.is_embedded() && !unchecked && is_striped(bp)
    };
    let root = o.dn.bps().iter().find(|bp| !bp.is_hole())?;
    if is_proof(root) {
        return Some(*root);
    }
    let mut first = None;
    let _ = o.for_each(&mut |part| {
        if let Part::Block(_, bp) = part {
            first = Some(bp);
        }
        // One is enough.
        Err(Error::not_found("more"))
    });
    first.filter(is_proof)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_on_mirrors_is_no_proof() {
        let mirrors = Evidence { objects: 200, whole: true, ..Evidence::default() };
        assert!(!mirrors.is_sure());
        assert!(Evidence { all_striped: true, ..mirrors }.is_sure());
        assert!(Evidence { right: 1, ..mirrors }.is_sure());
        assert!(!Evidence { right: 1, wrong: 1, ..mirrors }.is_sure());
        assert!(!Evidence { right: 7, wrong: 2, all_striped: true, ..mirrors }.is_sure());
        assert!(Evidence { right: 8, wrong: 2, ..mirrors }.is_sure());
        assert!(!Evidence { right: 8, whole: false, ..mirrors }.is_sure());
        assert_eq!(Evidence { right: 8, ..mirrors }.sum(), 208);
    }
}
