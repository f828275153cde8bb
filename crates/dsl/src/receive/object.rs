//! OBJECT records: an object is made, or one that exists gets its new shape (format page 25 section
//! 7).
//!
//! A number may stand for another object than before. Where the shape of an object changed in a way
//! that only a new object can, its old data go first: the stream has all of the new ones.

use base::{Error, ErrorKind, MAX_BLOCK, OLD_MAX_BLOCK, ObjectId, Result, SECTOR, Txg};
use codec::{ChecksumAlgo, CompressAlgo};
use dmu::{Dnode, ObjSpec, Tx, TxPlan};
use ondisk::bytes::{try_le16, try_le32, try_le64};
use ondisk::dnode::{DNODE_SIZE, DNODES_PER_BLOCK, nblkptr_for};
use ondisk::object_type::ObjectType;
use ondisk::stream::record::Object;
use ondisk::stream::record_flags;

use super::apply::Writer;
use super::unpack::Item;
use crate::props::{PropValue, check_feature};

/// Magic of an attribute buffer (format page 08 section 3).
const SA_MAGIC: u32 = 0x002F_505A;
/// The place of the generation of a file in its attributes (format page 08 section 3).
const SA_GENERATION: usize = 16;
/// The same in a znode (format page 08 section 4).
const ZNODE_GENERATION: usize = 64;

/// What an OBJECT record asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Shape {
    spec: ObjSpec,
    slots: usize,
    has_spill: bool,
}

/// What has to be done with an object that exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    /// It is freed, and made anew.
    Anew,
    /// All its data go.
    Empty,
    /// It keeps its data, and the size of its blocks.
    Keep,
}

/// An object that exists, as far as a change of its shape looks at it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Existing {
    slots: usize,
    block_pointers: u8,
    block_size: u32,
    is_file: bool,
    one_block: bool,
    /// The generation of the file, if there is one.
    generation: Option<u64>,
}

/// Decides about an object that exists. `generation` is that of the object in the stream. Error:
/// `Corrupt` if blocks of the same file became smaller.
fn change(is_full: bool, old: Existing, new: &Shape, generation: Option<u64>) -> Result<Change> {
    let pointers = nblkptr_for(new.slots, new.spec.bonustype, usize::from(new.spec.bonuslen));
    if new.slots != old.slots || pointers < old.block_pointers {
        return Ok(Change::Anew);
    }
    if new.spec.blksz == old.block_size {
        return Ok(Change::Keep);
    }
    let is_file = old.is_file && new.spec.otype == ObjectType::PLAIN_FILE;
    if is_full || !is_file || old.one_block || generation != old.generation {
        return Ok(Change::Empty);
    }
    // The stream has large blocks, and the one before cut them.
    if new.spec.blksz > old.block_size {
        return Ok(Change::Keep);
    }
    Err(Error::corrupt(format!("blocks of {} bytes became blocks of {}", old.block_size, new.spec.blksz)))
}

/// The generation in a file's attributes, by which two files of one number are told apart.
fn generation(bonustype: ObjectType, bonus: &[u8]) -> Option<u64> {
    match bonustype {
        ObjectType::SA if try_le32(bonus, 0)? == SA_MAGIC => {
            let header = usize::from(try_le16(bonus, 4)? >> 10) * 8;
            try_le64(bonus, header + SA_GENERATION)
        }
        ObjectType::ZNODE => try_le64(bonus, ZNODE_GENERATION),
        _ => None,
    }
}

impl Writer {
    /// Checks an OBJECT record of a stream that is not raw.
    fn shape(&self, r: &Object) -> Result<Shape> {
        let bad = |what: String| Err(Error::corrupt(format!("object {}: {what}", r.object)));
        let typed = |n: u32| u8::try_from(n).ok().map(ObjectType).filter(|t| t.is_valid());
        let (Some(otype), Some(bonustype)) = (typed(r.object_type), typed(r.bonus_type)) else {
            return bad(format!("types {} and {} do not exist", r.object_type, r.bonus_type));
        };
        let slots = usize::from(r.dn_slots.max(1));
        if slots > DNODES_PER_BLOCK || (slots > 1 && !self.form.large_dnodes) {
            return bad(format!("a dnode of {slots} slots"));
        }
        if r.object.0 % DNODES_PER_BLOCK as u64 + slots as u64 > DNODES_PER_BLOCK as u64 {
            return bad(format!("a dnode of {slots} slots crosses blocks"));
        }
        let size = u64::from(r.block_size);
        if !(SECTOR..=MAX_BLOCK).contains(&size) || !size.is_multiple_of(SECTOR) {
            return bad(format!("blocks of {size} bytes"));
        }
        let most = if self.form.large_blocks { MAX_BLOCK } else { OLD_MAX_BLOCK };
        if size > most {
            return bad(format!("blocks of {size} bytes in a stream without large blocks"));
        }
        let has_spill = r.flags & record_flags::OBJECT_SPILL != 0;
        if has_spill && !self.form.spill_flags {
            return bad("a flag that the stream does not have".into());
        }
        if r.raw_bonus_len != 0 || r.indirect_shift != 0 || r.levels != 0 || r.block_pointers != 0 {
            return bad("fields of raw streams".into());
        }
        // One pointer is the fewest.
        let room = slots * DNODE_SIZE - ondisk::dnode::DNODE_CORE - ondisk::blkptr::BLKPTR_SIZE;
        let bonuslen = match u16::try_from(r.bonus_len) {
            Ok(len) if usize::from(len) <= room && (len == 0 || bonustype != ObjectType::NONE) => len,
            _ => return bad(format!("a bonus of {} bytes", r.bonus_len)),
        };
        let spec = ObjSpec {
            dnodesize: (slots * DNODE_SIZE) as u32,
            compress: r.compress,
            checksum: r.checksum,
            ..ObjSpec::new(otype, r.block_size)
        };
        Ok(Shape { spec: spec.bonus(bonustype, bonuslen), slots, has_spill })
    }

    /// Refuses an object with a compression or a checksum of its own that this pool does not write.
    pub(super) fn check_own(&self, r: &Object) -> Result<()> {
        let bad = |what: &str, n: u8| Err(Error::corrupt(format!("object {}: {what} {n} does not exist", r.object)));
        let is_one = |c: ChecksumAlgo| c.is_for_data() || c == ChecksumAlgo::Inherit;
        if CompressAlgo::from_u8(r.compress).is_none() {
            return bad("compression", r.compress);
        }
        let Some(checksum) = ChecksumAlgo::from_u8(r.checksum).filter(|c| is_one(*c)) else {
            return bad("checksum", r.checksum);
        };
        let pool = &self.pool;
        for (name, value) in [("compression", r.compress), ("checksum", r.checksum)] {
            let value = PropValue::Num(u64::from(value));
            check_feature(name, &value, |id| pool.features().is_enabled(id))
                .map_err(|e| e.at(format_args!("object {}", r.object)))?;
        }
        // A pool gets its salt when a dataset is set to such a checksum.
        if checksum.is_salted() && pool.ctx().zio().opts().salt.is_none() {
            let why = "its checksum is keyed by the pool's salt, and this pool has none: set a file system to that checksum first";
            return Err(Error::unsupported(format!("object {}: {why}", r.object)));
        }
        Ok(())
    }

    /// Applies an OBJECT record.
    pub(super) async fn object(&mut self, r: &Object, item: &Item) -> Result<()> {
        let shape = self.shape(r)?;
        self.check_own(r)?;
        let bonus = &item.content[..usize::from(shape.spec.bonuslen)];
        match self.os.hold(r.object).await {
            Ok(dn) => {
                let new = generation(shape.spec.bonustype, bonus);
                match change(self.form.is_full, existing(&dn), &shape, new)? {
                    Change::Anew => {
                        drop(dn);
                        self.free_object(r.object).await?;
                    }
                    how => return self.reshape(&dn, &shape, how, bonus, item.end).await,
                }
            }
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        self.make(r.object, &shape, bonus, item.end).await
    }

    /// Gives an object that exists its new shape.
    async fn reshape(&self, dn: &Dnode, shape: &Shape, how: Change, bonus: &[u8], end: u64) -> Result<()> {
        let spec = &shape.spec;
        let mut plan = TxPlan::new(&self.os).bonus(dn).write(dn, 0, 1);
        if how == Change::Empty {
            plan = plan.write_blocks(dn, 0, 1, u64::from(spec.blksz));
        }
        let tx = plan.assign().await?;
        if how == Change::Empty {
            dn.free_range(0, u64::MAX, &tx).await?;
            dn.set_block_size(spec.blksz, &tx)?;
        }
        if self.form.spill_flags && !shape.has_spill && dn.has_spill() {
            dn.set_spill(None, &tx)?;
        }
        if dn.otype() != spec.otype {
            dn.set_type(spec.otype, &tx)?;
        }
        dn.set_bonus_typed(spec.bonustype, bonus, &tx)?;
        dn.set_own(spec.compress, spec.checksum, &tx)?;
        self.note(dn.object(), 0, end, &tx);
        Ok(())
    }

    /// Frees the objects that begin in the slots of `object` after the first.
    pub(super) async fn free_slots(&self, object: ObjectId, slots: u64) -> Result<()> {
        for slot in 1..slots {
            if self.os.hold(ObjectId(object.0 + slot)).await.is_ok() {
                self.free_object(ObjectId(object.0 + slot)).await?;
            }
        }
        Ok(())
    }

    /// Makes an object. Its slots may belong to objects that the stream has freed before, or does
    /// not have any more.
    async fn make(&self, object: ObjectId, shape: &Shape, bonus: &[u8], end: u64) -> Result<()> {
        self.free_slots(object, shape.slots as u64).await?;
        let (dn, tx) = self.create_in_tx(async |tx| self.os.alloc_at(object, shape.spec, tx).await).await?;
        dn.set_bonus_typed(shape.spec.bonustype, bonus, &tx)?;
        self.note(object, 0, end, &tx);
        Ok(())
    }

    /// Creates an object, and gives the transaction for the rest. A number that was freed a moment
    /// ago can be used once that is on disk: it is waited for once.
    pub(super) async fn create_in_tx(&self, alloc: impl AsyncFn(&Tx) -> Result<Dnode>) -> Result<(Dnode, Tx)> {
        let mut waited = false;
        loop {
            let tx = TxPlan::new(&self.os).create(1).assign().await?;
            match alloc(&tx).await {
                Ok(dn) => return Ok((dn, tx)),
                Err(e) if matches!(e.kind(), ErrorKind::Busy | ErrorKind::Exists) && !waited => {
                    waited = true;
                    drop(tx);
                    self.os.ctx().txg().wait_synced(Txg(0)).await?;
                }
                Err(e) => return Err(e),
            }
        }
    }
}

fn existing(dn: &Dnode) -> Existing {
    Existing {
        slots: dn.dnode_size() as usize / DNODE_SIZE,
        block_pointers: dn.block_pointers(),
        block_size: dn.block_size(),
        is_file: dn.otype() == ObjectType::PLAIN_FILE,
        one_block: dn.max_blkid() == 0,
        generation: dn.with_bonus(|bonus| generation(dn.bonus_type(), bonus)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_keeps_its_data_unless_it_is_another_one() {
        let file = Existing {
            slots: 1,
            block_pointers: 1,
            block_size: 131_072,
            is_file: true,
            one_block: false,
            generation: Some(7),
        };
        let small = Existing { one_block: true, ..file };
        let folder = Existing { is_file: false, block_size: 16384, ..file };
        let shape = |otype, blksz, slots: usize| {
            let spec = ObjSpec::new(otype, blksz).bonus(ObjectType::SA, 168).dnodesize((slots * DNODE_SIZE) as u32);
            Shape { spec, slots, has_spill: false }
        };
        let (f, d) = (ObjectType::PLAIN_FILE, ObjectType::DIRECTORY);
        for (is_full, old, new, generation, want) in [
            (false, file, shape(f, 131_072, 1), Some(7), Some(Change::Keep)),
            (false, file, shape(f, 131_072, 1), Some(8), Some(Change::Keep)),
            (false, file, shape(f, 131_072, 2), Some(7), Some(Change::Anew)),
            (false, file, shape(f, 1 << 20, 1), Some(7), Some(Change::Keep)),
            (false, file, shape(f, 1 << 20, 1), Some(8), Some(Change::Empty)),
            (true, file, shape(f, 1 << 20, 1), Some(7), Some(Change::Empty)),
            (false, file, shape(f, 65_536, 1), Some(7), None),
            (false, file, shape(f, 65_536, 1), Some(9), Some(Change::Empty)),
            (false, small, shape(f, 65_536, 1), Some(7), Some(Change::Empty)),
            (false, file, shape(d, 65_536, 1), Some(7), Some(Change::Empty)),
            (false, folder, shape(d, 131_072, 1), Some(7), Some(Change::Empty)),
        ] {
            assert_eq!(change(is_full, old, &new, generation).ok(), want, "{old:?} {new:?}");
        }
        // Fewer pointers: another object. More: the bonus became smaller.
        let pointers = |n| Existing { block_pointers: n, ..folder };
        let bare = Shape { spec: ObjSpec::new(d, 16384), slots: 1, has_spill: false };
        assert_eq!(change(false, pointers(3), &shape(d, 16384, 1), None).unwrap(), Change::Anew);
        assert_eq!(change(false, pointers(1), &bare, None).unwrap(), Change::Keep);
    }

    #[test]
    fn generations_are_found_where_the_format_has_them() {
        let mut sa = vec![0; 64];
        sa[..4].copy_from_slice(&SA_MAGIC.to_le_bytes());
        sa[4..6].copy_from_slice(&(1u16 << 10 | 2).to_le_bytes());
        sa[8 + 16..8 + 24].copy_from_slice(&77u64.to_le_bytes());
        assert_eq!(generation(ObjectType::SA, &sa), Some(77));
        assert_eq!(generation(ObjectType::SA, &sa[..20]), None);
        assert_eq!(generation(ObjectType::SA, &[0; 64]), None);
        let mut znode = vec![0; 264];
        znode[64..72].copy_from_slice(&5u64.to_le_bytes());
        assert_eq!(generation(ObjectType::ZNODE, &znode), Some(5));
        assert_eq!(generation(ObjectType::NONE, &[]), None);
    }
}
