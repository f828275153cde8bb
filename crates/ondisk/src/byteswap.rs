//! Conversion of blocks that a machine of the other byte order wrote (format page 02 section 7).
//!
//! A block pointer records its block's byte order. After decompression [`swap_block`] converts such
//! a block in place, by its level and object type, and everything above sees little-endian bytes
//! only. Arrays of bytes (file data, packed lists, system attributes) stay as they are; system
//! attributes carry their own magic number and are converted where they are read, since their
//! widths are in the registry ([`crate::sa`]).
//!
//! Malformed blocks are converted as far as they make sense: the parser validates the result.
//! Nothing here fails, and every loop is bounded by the block.

use crate::blkptr::BLKPTR_SIZE;
use crate::dnode::{DNODE_CORE, DNODE_SIZE, DNODE_SPILL_BLKPTR};
use crate::object_type::{ObjectType, SwapClass};
use crate::zap;

/// Reverses every whole `N`-byte integer of `b`.
pub fn swap_ints<const N: usize>(b: &mut [u8]) {
    for w in b.chunks_exact_mut(N) {
        w.reverse();
    }
}

/// Reverses the `n` bytes at `off`, if all are inside.
fn swap_at(b: &mut [u8], off: usize, n: usize) {
    if let Some(w) = b.get_mut(off..off + n) {
        w.reverse();
    }
}

/// Converts a decompressed block between byte orders in place.
pub fn swap_block(otype: ObjectType, level: u8, b: &mut [u8]) {
    if level > 0 { swap_ints::<8>(b) } else { swap_class(otype.swap_class(), b) }
}

/// Converts bytes of a class between byte orders in place.
pub fn swap_class(class: SwapClass, b: &mut [u8]) {
    match class {
        SwapClass::U8 => {}
        SwapClass::U16 => swap_ints::<2>(b),
        SwapClass::U32 => swap_ints::<4>(b),
        SwapClass::U64 => swap_ints::<8>(b),
        SwapClass::Zap => swap_zap(b),
        SwapClass::Dnode => swap_dnodes(b),
        SwapClass::Objset => swap_objset(b),
        SwapClass::Znode => swap_znode(b),
        SwapClass::OldAcl => swap_old_aces(b),
        SwapClass::Acl => swap_aces(b),
    }
}

fn swap_zap(b: &mut [u8]) {
    if b.len() < 8 {
        return;
    }
    let mut first = [0u8; 8];
    first.copy_from_slice(&b[..8]);
    match u64::from_be_bytes(first) {
        zap::BLOCK_MICRO => {
            let (head, entries) = b.split_at_mut(b.len().min(64));
            let n = head.len().min(24);
            swap_ints::<8>(&mut head[..n]);
            for e in entries.chunks_exact_mut(64) {
                e[0..8].reverse();
                e[8..12].reverse();
                e[12..14].reverse();
            }
        }
        zap::BLOCK_LEAF if b.len().is_power_of_two() && b.len() >= 512 => swap_leaf(b),
        _ => swap_ints::<8>(b),
    }
}

fn swap_leaf(b: &mut [u8]) {
    swap_ints::<8>(&mut b[..24]);
    b[24..28].reverse();
    swap_ints::<2>(&mut b[28..36]);
    let hash_end = 48 + b.len() / 16;
    swap_ints::<2>(&mut b[48..hash_end]);
    for c in b[hash_end..].chunks_exact_mut(24) {
        if c[0] == 252 {
            swap_ints::<2>(&mut c[2..12]);
            c[12..16].reverse();
            c[16..24].reverse();
        } else {
            c[22..24].reverse();
        }
    }
}

/// One or more dnodes, large ones among them.
fn swap_dnodes(b: &mut [u8]) {
    let mut at = 0;
    while let Some(d) = b.get_mut(at..) {
        if d.len() < DNODE_SIZE {
            break;
        }
        let size = ((usize::from(d[12]) + 1) * DNODE_SIZE).min(d.len());
        if d[0] == 0 {
            at += DNODE_SIZE;
            continue;
        }
        swap_dnode(&mut d[..size]);
        at += size;
    }
}

fn swap_dnode(d: &mut [u8]) {
    d[8..10].reverse();
    d[10..12].reverse();
    d[16..24].reverse();
    d[24..32].reverse();
    let bonus_at = (DNODE_CORE + usize::from(d[3]) * BLKPTR_SIZE).min(d.len());
    swap_ints::<8>(&mut d[DNODE_CORE..bonus_at]);
    let bonuslen = usize::from(u16::from_le_bytes([d[10], d[11]]));
    let bonustype = ObjectType(d[4]);
    let spill = d[7] & DNODE_SPILL_BLKPTR != 0;
    let end = d.len() - if spill { BLKPTR_SIZE } else { 0 };
    if bonus_at < end && !matches!(bonustype.swap_class(), SwapClass::Dnode | SwapClass::Objset) {
        let bonus_end = (bonus_at + bonuslen).min(end);
        swap_class(bonustype.swap_class(), &mut d[bonus_at..bonus_end]);
    }
    if spill {
        swap_ints::<8>(&mut d[end..]);
    }
}

fn swap_objset(b: &mut [u8]) {
    if b.len() < 720 {
        return swap_ints::<8>(b);
    }
    swap_dnodes(&mut b[..512]);
    swap_ints::<8>(&mut b[512..720]);
    if let Some(rest) = b.get_mut(1024..) {
        for d in rest.chunks_exact_mut(DNODE_SIZE).take(3) {
            swap_dnodes(d);
        }
    }
}

/// A znode: u64 fields, then its ACL by version (format page 16 section 3). A symlink's target or
/// scan stamp after it are bytes.
fn swap_znode(b: &mut [u8]) {
    let n = b.len().min(184);
    swap_ints::<8>(&mut b[..n]);
    if b.len() < 264 {
        return;
    }
    b[184..188].reverse();
    b[188..190].reverse();
    b[190..192].reverse();
    let version = u16::from_le_bytes([b[188], b[189]]);
    if version == 0 { swap_old_aces(&mut b[192..264]) } else { swap_aces(&mut b[192..264]) }
}

fn swap_old_aces(b: &mut [u8]) {
    for ace in b.chunks_exact_mut(12) {
        swap_ints::<4>(&mut ace[..8]);
        swap_ints::<2>(&mut ace[8..]);
    }
}

/// ACEs of the current form (format page 08 section 4).
pub fn swap_aces(b: &mut [u8]) {
    let mut at = 0;
    while at + 8 <= b.len() {
        swap_at(b, at, 2);
        swap_at(b, at + 2, 2);
        swap_at(b, at + 4, 4);
        let len =
            crate::zpl::ace_len(u16::from_le_bytes([b[at], b[at + 1]]), u16::from_le_bytes([b[at + 2], b[at + 3]]));
        if len > 8 {
            swap_at(b, at + 8, 8);
        }
        at += len;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::bytes::{put_le32, put_le64};
    use crate::dnode::DnodePhys;
    use crate::objset::{ObjsetPhys, ObjsetType};
    use proptest::prelude::*;

    #[test]
    fn dnode_block_there_and_back() {
        let mut dn = DnodePhys::new(ObjectType::DSL_DIR, 512, 17, ObjectType::DSL_DIR, 256, 1);
        dn.bonus_mut()[0..8].copy_from_slice(&0x0102_0304_0506_0708u64.to_le_bytes());
        dn.maxblkid = 0;
        dn.set_used_bytes(0x1234);
        let mut big = DnodePhys::new(ObjectType::PLAIN_FILE, 131072, 17, ObjectType::ZNODE, 300, 3);
        big.bonus_mut()[0..8].copy_from_slice(&99u64.to_le_bytes());
        big.spill = Some(crate::blkptr::Blkptr([7; 16]));
        let at = big.bonus_area.len() - 128;
        crate::blkptr::Blkptr([7; 16]).write_to(&mut big.bonus_area[at..]);
        let mut block = vec![0u8; 16384];
        dn.write_to(&mut block[512..]);
        big.write_to(&mut block[1024..]);
        let native = block.clone();
        // The block as a big-endian machine writes it; check the first dnode's fields by hand.
        swap_block_to_be(&mut block);
        assert_eq!(block[512 + 8..512 + 10], [0, 1]);
        assert_eq!(block[512 + 192..512 + 200], [1, 2, 3, 4, 5, 6, 7, 8]);
        swap_block(ObjectType::DNODE, 0, &mut block);
        assert_eq!(block, native);
    }

    /// The reverse direction of a dnode block: lengths must be read before they are swapped, so
    /// only tests need it.
    fn swap_block_to_be(b: &mut [u8]) {
        let mut at = 0;
        while at < b.len() {
            if b[at] == 0 {
                at += 512;
                continue;
            }
            let size = (usize::from(b[at + 12]) + 1) * 512;
            let d = &mut b[at..at + size];
            let spill = d[7] & 4 != 0;
            let bonuslen = usize::from(u16::from_le_bytes([d[10], d[11]]));
            let bonus_at = 64 + usize::from(d[3]) * 128;
            swap_ints::<8>(&mut d[64..bonus_at]);
            let (end, class) = (size - if spill { 128 } else { 0 }, ObjectType(d[4]).swap_class());
            if spill {
                swap_ints::<8>(&mut d[end..]);
            }
            let bonus = &mut d[bonus_at..(bonus_at + bonuslen).min(end)];
            if class == SwapClass::U64 {
                swap_ints::<8>(bonus);
            } else {
                swap_ints::<8>(&mut bonus[..184]);
                put_le32(bonus, 184, u32::from_be_bytes([bonus[184], bonus[185], bonus[186], bonus[187]]));
                bonus[188..190].reverse();
                bonus[190..192].reverse();
            }
            d[8..10].reverse();
            d[10..12].reverse();
            d[16..24].reverse();
            d[24..32].reverse();
            at += size;
        }
    }

    #[test]
    fn object_set_swaps_its_words() {
        let native = ObjsetPhys::new(ObjsetType::Zvol, 6).to_bytes();
        let mut b = native.clone();
        b[8..10].reverse();
        b[10..12].reverse();
        b[16..24].reverse();
        b[24..32].reverse();
        swap_ints::<8>(&mut b[64..448]);
        swap_ints::<8>(&mut b[512..720]);
        swap_block(ObjectType::OBJSET, 0, &mut b);
        assert_eq!(b, native);
    }

    #[test]
    fn leaf_there_and_back() {
        let mut leaf = zap::Leaf::init(vec![0u8; 16384], zap::KeyKind::String, 0, 0, false);
        for i in 0..20u64 {
            let name = format!("name-{i}");
            leaf.insert(name.as_bytes(), i << 60, None, &zap::ZapValue::from_u64(i)).unwrap();
        }
        let native = leaf.into_inner();
        let mut b = native.clone();
        // Misread as a table: its first word is not a leaf's in the other order.
        swap_block(ObjectType::OTN_ZAP_METADATA, 0, &mut b);
        b = native.clone();
        swap_leaf(&mut b);
        assert_ne!(b, native);
        swap_block(ObjectType::OTN_ZAP_METADATA, 0, &mut b);
        assert_eq!(b, native);
    }

    proptest! {
        #[test]
        fn hostile_blocks_never_panic(mut b in proptest::collection::vec(any::<u8>(), 0..2048), t in 0u8..54, first in 0usize..4, level in 0u8..2) {
            if b.len() >= 8 {
                let w = [zap::BLOCK_MICRO, zap::BLOCK_LEAF, zap::BLOCK_HEADER, 5][first];
                put_le64(&mut b, 0, w.swap_bytes());
            }
            swap_block(ObjectType(t), level, &mut b);
        }
    }
}
