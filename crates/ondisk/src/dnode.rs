//! Dnodes: the head of every object, one to 32 slots of 512 bytes in a block of the meta-dnode
//! (format page 03).
//!
//! A dnode holds the shape of the object (block sizes, levels), up to three block pointers at the
//! top of its block tree, a *bonus* of bytes that belong to the object's owner (a file's
//! attributes, a DSL directory), and when those outgrow it, one *spill* pointer in its last 128
//! bytes.
//!
//! [`DnodePhys`] is an owned copy with named fields; [`DnodePhys::parse`] checks every field that a
//! size or a shift is computed from, so the helpers below it can neither overflow nor run past the
//! bonus. [`slots`] walks a block of dnodes: only the walk can separate the inner slots of a large
//! dnode from dnodes. [`DnodePhys::write_to`] is the reverse; it zeroes the bytes that no field
//! covers.

use base::{Error, Result, align_up};

use crate::blkptr::{BLKPTR_SHIFT, BLKPTR_SIZE, Blkptr, MAX_LEVELS};
use crate::bytes::{le16, le64, put_le16, put_le64};
use crate::object_type::ObjectType;

/// Bytes of one dnode slot.
pub const DNODE_SIZE: usize = 512;
/// log2 of [`DNODE_SIZE`].
pub const DNODE_SHIFT: u32 = 9;
/// Bytes of a block of dnodes; a dnode never crosses one.
pub const DNODE_BLOCK_SIZE: usize = 16 << 10;
/// Dnode slots in a block of dnodes.
pub const DNODES_PER_BLOCK: usize = DNODE_BLOCK_SIZE / DNODE_SIZE;
/// Bytes before the first block pointer.
pub const DNODE_CORE: usize = 64;
/// Smallest indirect block shift.
pub const MIN_INDBLKSHIFT: u8 = 12;
/// Largest, and default, indirect block shift.
pub const MAX_INDBLKSHIFT: u8 = 17;
/// Largest number of an object (exclusive): 2^48 dnodes (format page 03 section 3).
pub const MAX_OBJECT: u64 = 1 << 48;

/// Flag: `used` counts bytes, not sectors.
pub const DNODE_USED_BYTES: u8 = 1;
/// Flag: user space accounting has counted this object.
pub const DNODE_USERUSED_ACCOUNTED: u8 = 2;
/// Flag: the last 128 bytes are the spill pointer.
pub const DNODE_SPILL_BLKPTR: u8 = 4;
/// Flag: object accounting has counted this object.
pub const DNODE_USEROBJUSED_ACCOUNTED: u8 = 8;

/// A dnode that is in use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DnodePhys {
    /// Type of the object's data; never `NONE`.
    pub otype: ObjectType,
    /// log2 of the size of indirect blocks, 12 to 17.
    pub indblkshift: u8,
    /// Height of the block tree: 1 means that the pointers name data.
    pub nlevels: u8,
    /// Number of block pointers, 1 to 3, fixed when the object is made.
    pub nblkptr: u8,
    /// Type of the bonus; `NONE` without one.
    pub bonustype: ObjectType,
    /// Checksum number, 0 inherits.
    pub checksum: u8,
    /// Compression number, 0 inherits.
    pub compress: u8,
    /// `DNODE_*` bits. The spill bit is not kept here: it is whether `spill` is there.
    pub flags: u8,
    /// Data block size in 512-byte sectors, 1 to 32768.
    pub datablkszsec: u16,
    /// Bytes of the bonus in use.
    pub bonuslen: u16,
    /// Slots after the first one, 0 to 31.
    pub extra_slots: u8,
    /// Highest block id ever written; 0 also when nothing was.
    pub maxblkid: u64,
    /// Space charged, in the unit that [`DNODE_USED_BYTES`] selects; see [`DnodePhys::used_bytes`].
    pub used: u64,
    /// Block pointers; those from `nblkptr` on are not stored.
    pub blkptr: [Blkptr; 3],
    /// Every byte after the pointers, the spill pointer's place included. Always [`bonus_area`]
    /// long.
    pub bonus_area: Vec<u8>,
    /// The spill pointer.
    pub spill: Option<Blkptr>,
}

/// A slot of a block of dnodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slot {
    /// Nothing is here.
    Free,
    /// A dnode of that many slots begins here.
    Dnode(u8),
    /// Part of the dnode that began before.
    Interior,
}

/// Bytes from the end of the pointers to the end of a dnode of `slots` slots.
pub fn bonus_area(slots: usize, nblkptr: u8) -> usize {
    (slots * DNODE_SIZE).saturating_sub(DNODE_CORE + usize::from(nblkptr) * BLKPTR_SIZE)
}

/// How many block pointers a new dnode gets (format page 03 section 1): as many as the bonus leaves
/// room for, one for system attributes.
pub fn nblkptr_for(slots: usize, bonustype: ObjectType, bonuslen: usize) -> u8 {
    if bonustype == ObjectType::SA {
        return 1;
    }
    let room = (slots * DNODE_SIZE).saturating_sub(DNODE_CORE + BLKPTR_SIZE + bonuslen) >> BLKPTR_SHIFT;
    (1 + room).min(3) as u8
}

/// log2 of the pointers in an indirect block.
pub fn epb_shift(indblkshift: u8) -> u32 {
    u32::from(indblkshift).saturating_sub(BLKPTR_SHIFT)
}

/// Number of block ids that `nblkptr` pointers at the top of `nlevels` levels can name; saturates
/// at `u64::MAX`.
pub fn reach(nlevels: u8, nblkptr: u8, indblkshift: u8) -> u64 {
    let shift = u32::from(nlevels.saturating_sub(1)) * epb_shift(indblkshift);
    if shift >= 62 { u64::MAX } else { u64::from(nblkptr) << shift }
}

/// Smallest number of levels with which block `maxblkid` can be named.
pub fn nlevels_for(maxblkid: u64, nblkptr: u8, indblkshift: u8) -> u8 {
    let mut n = 1;
    while n < MAX_LEVELS && maxblkid >= reach(n, nblkptr, indblkshift) {
        n += 1;
    }
    n
}

/// Which slots of a block of dnodes begin a dnode. Fails when a dnode runs past the end of the
/// block.
pub fn slots(block: &[u8]) -> Result<Vec<Slot>> {
    let count = block.len() / DNODE_SIZE;
    let mut out = Vec::with_capacity(count);
    while out.len() < count {
        let s = out.len();
        let d = &block[s * DNODE_SIZE..];
        if d[0] == 0 {
            out.push(Slot::Free);
            continue;
        }
        let n = usize::from(d[12]) + 1;
        if s + n > count {
            return Err(Error::corrupt(format!(
                "dnode in slot {s} has {n} slots and runs past the end of its block of {count}"
            )));
        }
        out.push(Slot::Dnode(n as u8));
        out.extend(std::iter::repeat_n(Slot::Interior, n - 1));
    }
    Ok(out)
}

impl DnodePhys {
    /// A new object without blocks. `blksz` is a multiple of 512 up to 16 MiB; `bonuslen` fits the
    /// room in `slots`.
    pub fn new(
        otype: ObjectType,
        blksz: u32,
        indblkshift: u8,
        bonustype: ObjectType,
        bonuslen: u16,
        slots: u8,
    ) -> DnodePhys {
        assert!(blksz != 0 && blksz.is_multiple_of(512) && blksz <= 16 << 20, "block size {blksz}");
        assert!((1..=32).contains(&slots) && (MIN_INDBLKSHIFT..=MAX_INDBLKSHIFT).contains(&indblkshift));
        let nblkptr = nblkptr_for(usize::from(slots), bonustype, usize::from(bonuslen));
        let area = bonus_area(usize::from(slots), nblkptr);
        assert!(usize::from(bonuslen) <= area, "bonus of {bonuslen} bytes in {slots} slots");
        DnodePhys {
            otype,
            indblkshift,
            nlevels: 1,
            nblkptr,
            bonustype,
            checksum: 0,
            compress: 0,
            flags: 0,
            datablkszsec: (blksz >> 9) as u16,
            bonuslen,
            extra_slots: slots - 1,
            maxblkid: 0,
            used: 0,
            blkptr: [Blkptr::hole(); 3],
            bonus_area: vec![0; area],
            spill: None,
        }
    }

    /// A new meta-dnode of `nlevels` levels: 1 for the MOS, 6 for datasets (format page 03 section
    /// 3).
    pub fn new_meta(nlevels: u8) -> DnodePhys {
        let mut dn =
            DnodePhys::new(ObjectType::DNODE, DNODE_BLOCK_SIZE as u32, MAX_INDBLKSHIFT, ObjectType::NONE, 0, 1);
        dn.nlevels = nlevels;
        dn
    }

    /// The dnode at the start of `b`, which holds its slots and perhaps more; `None` for a free
    /// slot.
    pub fn parse(b: &[u8]) -> Result<Option<DnodePhys>> {
        let bad = |what: String| Err(Error::corrupt(format!("dnode: {what}")));
        if b.len() < DNODE_SIZE {
            return bad(format!("needs 512 bytes, {} are there", b.len()));
        }
        if b[0] == 0 {
            return Ok(None);
        }
        let (otype, bonustype) = (ObjectType(b[0]), ObjectType(b[4]));
        let (indblkshift, nlevels, mut nblkptr, extra_slots) = (b[1], b[2], b[3], b[12]);
        let (datablkszsec, bonuslen) = (le16(b, 8), le16(b, 10));
        let (maxblkid, used) = (le64(b, 16), le64(b, 24));
        if !otype.is_valid() {
            return bad(format!("unknown object type {}", otype.0));
        }
        if !bonustype.is_valid() {
            return bad(format!("unknown bonus type {}", bonustype.0));
        }
        if !(MIN_INDBLKSHIFT..=MAX_INDBLKSHIFT).contains(&indblkshift) {
            return bad(format!(
                "indirect block shift {indblkshift} is not within {MIN_INDBLKSHIFT} to {MAX_INDBLKSHIFT}"
            ));
        }
        if nlevels == 0 || nlevels > MAX_LEVELS {
            return bad(format!("{nlevels} levels"));
        }
        if nblkptr == 0 || nblkptr > 3 {
            return bad(format!("{nblkptr} block pointers"));
        }
        if datablkszsec == 0 || datablkszsec > 32768 {
            return bad(format!("block size of {datablkszsec} sectors"));
        }
        let size = (usize::from(extra_slots) + 1) * DNODE_SIZE;
        if extra_slots > 31 || size > b.len() {
            return bad(format!("{extra_slots} extra slots do not fit"));
        }
        let has_spill = b[7] & DNODE_SPILL_BLKPTR != 0;
        if has_spill {
            // OpenZFS gives a redaction list with a spill block three pointers, as to any object
            // without a bonus; the spill pointer lies on the third.
            nblkptr = nblkptr.min(((size - DNODE_CORE) / BLKPTR_SIZE - 1).min(3) as u8);
        }
        let bonus_at = DNODE_CORE + usize::from(nblkptr) * BLKPTR_SIZE;
        let capacity = size.checked_sub(bonus_at + if has_spill { BLKPTR_SIZE } else { 0 });
        if capacity.is_none_or(|c| usize::from(bonuslen) > c) {
            return bad(format!("bonus of {bonuslen} bytes does not fit"));
        }
        if maxblkid >= reach(nlevels, nblkptr, indblkshift) {
            return bad(format!("highest block {maxblkid} cannot be reached with {nlevels} levels"));
        }
        if (maxblkid + 1).checked_mul(u64::from(datablkszsec) << 9).is_none() {
            return bad(format!("highest block {maxblkid} ends beyond 2^64 bytes"));
        }
        let mut blkptr = [Blkptr::hole(); 3];
        for (i, bp) in blkptr.iter_mut().enumerate().take(usize::from(nblkptr)) {
            *bp = Blkptr::parse(&b[DNODE_CORE + i * BLKPTR_SIZE..])?;
        }
        let spill = if has_spill { Some(Blkptr::parse(&b[size - BLKPTR_SIZE..])?) } else { None };
        Ok(Some(DnodePhys {
            otype,
            indblkshift,
            nlevels,
            nblkptr,
            bonustype,
            checksum: b[5],
            compress: b[6],
            flags: b[7] & !DNODE_SPILL_BLKPTR,
            datablkszsec,
            bonuslen,
            extra_slots,
            maxblkid,
            used,
            blkptr,
            bonus_area: b[bonus_at..size].to_vec(),
            spill,
        }))
    }

    /// The dnode that begins in `slot` of a block of dnodes; `None` for a free slot. An inner slot
    /// of a large dnode is an error.
    pub fn parse_slot(block: &[u8], slot: usize) -> Result<Option<DnodePhys>> {
        let kinds = slots(block)?;
        match kinds.get(slot) {
            None => {
                Err(Error::corrupt(format!("dnode slot {slot} is past the end of a block of {} slots", kinds.len())))
            }
            Some(Slot::Free) => Ok(None),
            Some(Slot::Interior) => Err(Error::corrupt(format!("dnode slot {slot} is inside a large dnode"))),
            Some(Slot::Dnode(_)) => {
                DnodePhys::parse(&block[slot * DNODE_SIZE..]).map_err(|e| e.at(format_args!("slot {slot}")))
            }
        }
    }

    /// Stores the dnode in the first [`DnodePhys::size`] bytes of `out`.
    pub fn write_to(&self, out: &mut [u8]) {
        let out = &mut out[..self.size()];
        out.fill(0);
        out[0] = self.otype.0;
        out[1] = self.indblkshift;
        out[2] = self.nlevels;
        out[3] = self.nblkptr;
        out[4] = self.bonustype.0;
        out[5] = self.checksum;
        out[6] = self.compress;
        out[7] = self.flags & !DNODE_SPILL_BLKPTR | if self.spill.is_some() { DNODE_SPILL_BLKPTR } else { 0 };
        put_le16(out, 8, self.datablkszsec);
        put_le16(out, 10, self.bonuslen);
        out[12] = self.extra_slots;
        put_le64(out, 16, self.maxblkid);
        put_le64(out, 24, self.used);
        for (i, bp) in self.blkptr.iter().enumerate().take(usize::from(self.nblkptr)) {
            bp.write_to(&mut out[DNODE_CORE + i * BLKPTR_SIZE..]);
        }
        let bonus_at = DNODE_CORE + usize::from(self.nblkptr) * BLKPTR_SIZE;
        out[bonus_at..].copy_from_slice(&self.bonus_area);
        if let Some(bp) = &self.spill {
            let at = out.len() - BLKPTR_SIZE;
            bp.write_to(&mut out[at..]);
        }
    }

    /// Slots that the dnode owns, 1 to 32.
    pub fn num_slots(&self) -> usize {
        usize::from(self.extra_slots) + 1
    }
    /// Bytes that the dnode owns.
    pub fn size(&self) -> usize {
        self.num_slots() * DNODE_SIZE
    }
    /// Data block size in bytes.
    pub fn datablksz(&self) -> u32 {
        u32::from(self.datablkszsec) << 9
    }
    /// Sets the data block size: a multiple of 512 up to 16 MiB.
    pub fn set_datablksz(&mut self, blksz: u32) {
        assert!(blksz != 0 && blksz.is_multiple_of(512) && blksz <= 16 << 20, "block size {blksz}");
        self.datablkszsec = (blksz >> 9) as u16;
    }
    /// Indirect block size in bytes.
    pub fn indblksz(&self) -> u32 {
        1 << self.indblkshift
    }
    /// log2 of the pointers in an indirect block.
    pub fn epb_shift(&self) -> u32 {
        epb_shift(self.indblkshift)
    }
    /// Space charged, in bytes.
    pub fn used_bytes(&self) -> u64 {
        if self.flags & DNODE_USED_BYTES != 0 { self.used } else { self.used.saturating_mul(512) }
    }
    /// Sets the space charged, in bytes, and [`DNODE_USED_BYTES`].
    pub fn set_used_bytes(&mut self, used: u64) {
        self.used = used;
        self.flags |= DNODE_USED_BYTES;
    }
    /// Sets the space charged as pools before version 3 have it: in sectors.
    pub fn set_used_sectors(&mut self, used: u64) {
        self.used = used / 512;
        self.flags &= !DNODE_USED_BYTES;
    }
    /// The pointers in use.
    pub fn bps(&self) -> &[Blkptr] {
        &self.blkptr[..usize::from(self.nblkptr)]
    }
    /// Allocated blocks below, or objects where this is a meta dnode; pointers of a damaged pool
    /// may count more than there can be.
    pub fn fill(&self) -> u64 {
        self.bps().iter().fold(0, |sum, bp| sum.saturating_add(bp.fill()))
    }
    /// The bonus bytes in use.
    pub fn bonus(&self) -> &[u8] {
        &self.bonus_area[..usize::from(self.bonuslen)]
    }
    /// The bonus bytes in use, to change.
    pub fn bonus_mut(&mut self) -> &mut [u8] {
        &mut self.bonus_area[..usize::from(self.bonuslen)]
    }
    /// Most bytes that the bonus can hold now: less with a spill pointer.
    pub fn bonus_capacity(&self) -> usize {
        self.bonus_area.len() - if self.spill.is_some() { BLKPTR_SIZE } else { 0 }
    }
    /// Replaces the bonus; bytes after it become zero. It must fit.
    pub fn set_bonus(&mut self, bonustype: ObjectType, bytes: &[u8]) {
        assert!(bytes.len() <= self.bonus_capacity(), "bonus of {} bytes", bytes.len());
        self.bonustype = bonustype;
        self.bonuslen = bytes.len() as u16;
        self.bonus_area[..bytes.len()].copy_from_slice(bytes);
        self.bonus_area[bytes.len()..].fill(0);
    }
    /// Number of block ids at `level` that blocks 0 to `maxblkid` need.
    pub fn blocks_at_level(&self, level: u8) -> u64 {
        (self.maxblkid.checked_shr(u32::from(level) * self.epb_shift()).unwrap_or(0)).saturating_add(1)
    }
    /// The id at `level` of the block above (or at) data block `blkid`.
    pub fn blkid_at_level(&self, blkid: u64, level: u8) -> u64 {
        blkid.checked_shr(u32::from(level) * self.epb_shift()).unwrap_or(0)
    }
    /// Levels needed to name `maxblkid`, never fewer than there are.
    pub fn nlevels_needed(&self, maxblkid: u64) -> u8 {
        nlevels_for(maxblkid, self.nblkptr, self.indblkshift).max(self.nlevels)
    }
    /// Bytes up to the end of the highest block ever written.
    pub fn data_len(&self) -> u64 {
        (self.maxblkid + 1).saturating_mul(u64::from(self.datablksz()))
    }
}

/// Bytes that a spill block needs for `len` bytes of content.
pub fn spill_blksz(len: usize) -> u64 {
    align_up(len.max(1) as u64, 512)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use base::Txg;
    use proptest::prelude::*;

    #[test]
    fn pointer_count_rule() {
        use ObjectType as T;
        let cases = [
            (256, T::DSL_DIR, 1),
            (320, T::DSL_DATASET, 1),
            (0, T::NONE, 3),
            (8, T::OTHER_U64, 3),
            (24, T::SPACE_MAP_HEADER, 3),
        ];
        for (len, t, n) in cases {
            assert_eq!(nblkptr_for(1, t, len), n, "bonus {len}");
        }
        assert_eq!(nblkptr_for(1, T::OTHER_U64, 64), 3);
        assert_eq!(nblkptr_for(1, T::OTHER_U64, 65), 2);
        assert_eq!(nblkptr_for(1, T::OTHER_U64, 192), 2);
        assert_eq!(nblkptr_for(1, T::ZNODE, 264), 1);
        assert_eq!(nblkptr_for(1, T::SA, 0), 1);
    }

    #[test]
    fn levels() {
        assert_eq!(nlevels_for(2, 3, 17), 1);
        assert_eq!(nlevels_for(3, 3, 17), 2);
        assert_eq!(nlevels_for(3 * 1024, 3, 17), 3);
        assert_eq!(nlevels_for((1 << 43) - 1, 3, 17), 6);
        let dn = DnodePhys::new(ObjectType::PLAIN_FILE, 512, 12, ObjectType::SA, 0, 1);
        assert_eq!(nlevels_for(u64::MAX >> 9, dn.nblkptr, 12), 12);
        let meta = DnodePhys::new_meta(6);
        let mut b = [0u8; 512];
        meta.write_to(&mut b);
        assert_eq!(DnodePhys::parse(&b).unwrap().unwrap(), meta);
    }

    #[test]
    fn slot_walk() {
        let mut block = vec![0u8; DNODE_BLOCK_SIZE];
        let big = DnodePhys::new(ObjectType::PLAIN_FILE, 512, 17, ObjectType::SA, 168, 4);
        big.write_to(&mut block[8 * 512..]);
        let s = slots(&block).unwrap();
        assert_eq!(
            &s[7..13],
            &[Slot::Free, Slot::Dnode(4), Slot::Interior, Slot::Interior, Slot::Interior, Slot::Free]
        );
        assert_eq!(DnodePhys::parse_slot(&block, 8).unwrap(), Some(big));
        assert!(DnodePhys::parse_slot(&block, 9).is_err());
        assert_eq!(DnodePhys::parse_slot(&block, 0).unwrap(), None);
        block[31 * 512] = 19;
        block[31 * 512 + 12] = 1;
        assert!(slots(&block).is_err());
    }

    #[test]
    fn a_spill_pointer_takes_the_place_of_the_last_pointer() {
        let mut dn = DnodePhys::new(ObjectType::OTN_U64_METADATA, 131072, 17, ObjectType::OTN_U64_METADATA, 0, 1);
        assert_eq!(dn.nblkptr, 3);
        let bp = Blkptr::embedded(b"block", 131072, 15, ObjectType::OTN_U64_METADATA, 0, Txg(6));
        dn.blkptr[1] = bp;
        let mut b = vec![0u8; 512];
        dn.write_to(&mut b);
        let spill = Blkptr::embedded(b"spill", 512, 15, ObjectType::OTN_U64_METADATA, 0, Txg(6));
        spill.write_to(&mut b[384..]);
        b[7] |= DNODE_SPILL_BLKPTR;
        let mut read = DnodePhys::parse(&b).unwrap().unwrap();
        assert_eq!((read.nblkptr, read.blkptr[1], read.spill), (2, bp, Some(spill)));
        read.maxblkid = 1;
        read.write_to(&mut b);
        assert_eq!(DnodePhys::parse(&b).unwrap().unwrap(), read);
        // The third block has no place.
        b[16] = 2;
        assert!(DnodePhys::parse(&b).is_err());
    }

    proptest! {
        #[test]
        fn round_trip(slots in 1u8..=32, bonus in proptest::collection::vec(any::<u8>(), 0..192), spill in any::<bool>(), maxblkid in 0u64..1 << 46, used: u64) {
            let mut dn = DnodePhys::new(ObjectType::PLAIN_FILE, 131072, 17, ObjectType::SA, 0, slots);
            dn.set_bonus(ObjectType::SA, &bonus);
            dn.maxblkid = maxblkid;
            dn.nlevels = dn.nlevels_needed(maxblkid);
            dn.set_used_bytes(used);
            dn.blkptr[0] = Blkptr::embedded(b"payload", 131072, 15, ObjectType::PLAIN_FILE, 0, Txg(5));
            if spill {
                let bp = Blkptr::embedded(b"spill", 512, 15, ObjectType::SA, 0, Txg(6));
                dn.spill = Some(bp);
                let at = dn.bonus_area.len() - 128;
                bp.write_to(&mut dn.bonus_area[at..]);
            }
            let mut b = vec![0xffu8; dn.size()];
            dn.write_to(&mut b);
            prop_assert_eq!(DnodePhys::parse(&b).unwrap().unwrap(), dn);
        }

        #[test]
        fn hostile_bytes_never_panic(mut b in proptest::collection::vec(any::<u8>(), 512..2048), legal in any::<bool>()) {
            if legal {
                // Enough legal fields that the later checks are reached.
                b[0] = 19; b[1] = 12 + b[1] % 6; b[2] = 1 + b[2] % 6; b[3] = 1 + b[3] % 3; b[4] = 44; b[9] &= 1; b[11] &= 1; b[12] %= 4;
            }
            let _ = slots(&b);
            if let Ok(Some(dn)) = DnodePhys::parse(&b) {
                let _ = (dn.bonus(), dn.bonus_capacity(), dn.used_bytes(), dn.data_len(), dn.datablksz());
                for l in 0..16 { let _ = dn.blocks_at_level(l); }
                let mut out = vec![0; dn.size()];
                dn.write_to(&mut out);
                prop_assert_eq!(DnodePhys::parse(&out).unwrap().unwrap(), dn);
            }
        }
    }
}
