//! Tests of the parts that need no pool: lists, blocks in memory and on disk, headers.
#![allow(clippy::unwrap_used)]

mod block;
mod header;
mod itx;
mod lwb;

use base::{Txg, VdevId};
use ondisk::blkptr::{Blkptr, Dva};
use ondisk::object_type::ObjectType;
use ondisk::zil::CHECKSUM_ZILOG2;

/// The pointer of the block `seq` of a log, of `size` bytes.
pub(crate) fn pointer(seq: u64, size: u64) -> Blkptr {
    let mut bp = Blkptr::hole();
    bp.set_dva(0, Dva::new(VdevId(0), seq * (128 << 10), size, false));
    bp.set_lsize(size);
    bp.set_psize(size);
    bp.set_checksum(CHECKSUM_ZILOG2);
    bp.set_checksum_words([0x1111, 0x2222, 54, seq]);
    bp.set_otype(ObjectType::INTENT_LOG);
    bp.set_little_endian(true);
    bp.set_birth(Txg(9), Txg(9));
    bp
}
