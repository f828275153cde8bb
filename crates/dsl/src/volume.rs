//! Volumes: making them, the default size of their blocks, and the space that a volume reserves.
//!
//! A volume is *thick* if its refreservation covers the writing of every block, with the indirect
//! blocks above; `refreservation=auto` stands for that figure. It is computed as by OpenZFS
//! (`zvol_volsize_to_reservation`, format page 16 section 8), so that programs of both recognise a
//! thick volume by it.

use std::rc::Rc;

use base::{Error, OLD_MAX_BLOCK, Result, Txg};
use ondisk::objset::ObjsetType;

use crate::create::{Init, NewHead, ROOT};
use crate::crypto::NewCrypt;
use crate::dataset::Dataset;
use crate::dir::Dir;
use crate::pool::DslPool;
use crate::props::PropValue;

/// Default `volblocksize` in bytes, since OpenZFS 2.2; 8 KiB before.
pub const BLOCK_SIZE: u32 = 16 << 10;

/// Bytes of an indirect block.
const INDIRECT: u128 = 128 << 10;
/// Pointers in an indirect block.
const FANOUT: u128 = 1024;
/// Blocks of a meta-dnode at most, one for each level.
const META_BLOCKS: u128 = 7;
/// Most copies of a block.
const COPIES_MAX: u128 = 3;

/// Allocated bytes of a block of the volume and of one of 128 KiB, by which space is measured, on a
/// top-level vdev with parity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct OnParity {
    block: u64,
    of_128k: u64,
}

/// The space that a volume of `size` bytes in blocks of `block` bytes needs when all is written, on
/// the most expensive vdev.
fn reservation(size: u64, block: u64, copies: u64, tops: &[OnParity]) -> u64 {
    let mut blocks = u128::from(size / block.max(1));
    // In units of 512 bytes: OpenZFS rounds here.
    let on = |t: &OnParity| {
        blocks * u128::from(t.block) / u128::from(t.of_128k >> 9).max(1) * u128::from(OLD_MAX_BLOCK >> 9)
    };
    let data = tops.iter().map(on).max().unwrap_or(blocks * u128::from(block));
    let mut indirects = META_BLOCKS;
    while blocks > 1 {
        blocks = blocks.div_ceil(FANOUT);
        indirects += blocks;
    }
    let copies = u128::from(copies);
    let all = data * copies + indirects * INDIRECT * COPIES_MAX.min(copies + 1);
    u64::try_from(all).unwrap_or(u64::MAX)
}

/// The default block size where the largest unit of allocation has `unit` bytes of data.
fn block_size_for(unit: u64) -> u32 {
    let mut size = BLOCK_SIZE;
    while u64::from(size) * 2 <= unit.min(OLD_MAX_BLOCK) {
        size *= 2;
    }
    size
}

impl DslPool {
    /// The refreservation of a thick volume of `size` bytes in blocks of `block_size` bytes and
    /// `copies` copies.
    pub fn volume_reservation(&self, size: u64, block_size: u32, copies: u64) -> u64 {
        // As of now: an expansion makes blocks no larger.
        let now = Txg(u64::MAX);
        let tops = self.ctx().zio().tree().tops.borrow();
        let all = tops.iter().filter(|t| t.is_concrete());
        let on: Vec<OnParity> = all
            .map(|t| OnParity {
                block: t.asize_of(u64::from(block_size), now),
                of_128k: t.asize_of(OLD_MAX_BLOCK, now),
            })
            .filter(|t| t.of_128k > OLD_MAX_BLOCK)
            .collect();
        drop(tops);
        reservation(size, u64::from(block_size), copies, &on)
    }

    /// The default block size of new volumes: [`BLOCK_SIZE`], more where a dRAID allocates more at
    /// once; and that unit of allocation, in bytes of data.
    pub fn default_volblocksize(&self) -> (u32, u64) {
        let tops = self.ctx().zio().tree().tops.borrow();
        let unit = tops.iter().filter(|t| !t.is_log && t.is_concrete()).map(|t| t.min_alloc()).max().unwrap_or(512);
        (block_size_for(unit), unit)
    }

    /// Creates the volume `name` with these properties; `init` makes its objects. The parent must
    /// exist. It is encrypted if its parent is, or as `crypt` says.
    pub async fn create_volume(
        self: &Rc<Self>,
        name: &str,
        props: Vec<(String, PropValue)>,
        crypt: NewCrypt,
        init: Init,
    ) -> Result<Rc<Dataset>> {
        let os_type = ObjsetType::Zvol;
        self.create_dataset(name, NewHead { os_type, props, crypt, ..NewHead::plain_fs(ROOT, init) }).await
    }

    /// Fails if `dir` is that of a volume, which has no children.
    pub(crate) async fn check_parent(&self, dir: &Rc<Dir>) -> Result<()> {
        match dir.head() {
            Some(head) if head.os_type().await? == ObjsetType::Zvol => {
                Err(Error::invalid("parent is not a filesystem"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn reservations_are_those_of_openzfs() {
        let z1 = OnParity { block: 24 << 10, of_128k: 176 << 10 };
        for (size, block, copies, tops, want) in [
            // The volume of the reference pool `zil`.
            (16 * MIB, 8 << 10, 1, &[][..], 19_398_656),
            (16 * MIB, 16 << 10, 1, &[], 16 * MIB + 2 * 8 * 131_072),
            // 2048 blocks: two indirect blocks, and one above.
            (32 * MIB, 16 << 10, 2, &[], 2 * 32 * MIB + 3 * 10 * 131_072),
            (16 << 10, 16 << 10, 3, &[], (48 << 10) + 3 * 7 * 131_072),
            // Four data columns and one of parity with sectors of 4 KiB: 6 sectors for 4, and 44
            // for 32.
            (16 * MIB, 16 << 10, 1, &[z1], 1024 * (24 << 10) / 352 * 256 + 2 * 8 * 131_072),
            (u64::MAX, 512, 3, &[z1], u64::MAX),
        ] {
            assert_eq!(reservation(size, block, copies, tops), want, "{size} {block} {copies}");
        }
    }

    #[test]
    fn blocks_are_no_smaller_than_half_a_unit_of_allocation() {
        for (unit, want) in
            [(512, 16), (4096, 16), (16 << 10, 16), (31 << 10, 16), (32 << 10, 32), (200 << 10, 128), (1 << 30, 128)]
        {
            assert_eq!(block_size_for(unit), want << 10, "{unit}");
        }
    }
}
