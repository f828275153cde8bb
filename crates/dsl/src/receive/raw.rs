//! Raw streams: what is encrypted stays so, and is stored byte for byte as it lies in the sender's
//! pool (format page 12 section 11; `dmu`'s `raw` has how it is written without the key).
//!
//! OBJECT_RANGE comes before the objects of each block of dnodes and says how that is encrypted;
//! its mark is set with the first object after it. An object gets exactly the shape that OBJECT
//! says; one that exists and cannot be given that shape is made anew.

use std::rc::Rc;

use base::{Error, ErrorKind, Result};
use bdev::Bytes;
use codec::compress::CompressAlgo;
use dmu::{Dnode, Objset, Shape, Tx, TxPlan};
use ondisk::dnode::{DNODE_SIZE, DNODES_PER_BLOCK};
use ondisk::object_type::ObjectType;
use ondisk::objset::ObjsetType;
use ondisk::stream::record::{Crypt, Object, ObjectRange, Range, Spill, TO_THE_END, Write};
use ondisk::stream::record_flags;
use zio::{Packed, SealMark};

use super::apply::Writer;
use super::unpack::Item;
use crate::crypto::ReceivedKeys;
use crate::dataset::Dataset;
use crate::pool::DslPool;

/// The mark of a block in a raw stream; `is_encrypted`: else it is authenticated only.
fn mark(crypt: &Crypt, is_encrypted: bool) -> SealMark {
    SealMark { salt_iv: is_encrypted.then_some((crypt.salt, crypt.iv)), mac: crypt.mac }
}

/// The stored form of a block in a raw stream.
pub(super) fn packed(data: Bytes, compression: u8, lsize: u64, crypt: &Crypt, otype: ObjectType) -> Result<Packed> {
    let algo = CompressAlgo::from_u8(compression)
        .filter(|a| !matches!(a, CompressAlgo::Inherit | CompressAlgo::On | CompressAlgo::Empty))
        .ok_or_else(|| Error::corrupt(format!("a raw block is packed by algorithm {compression}")))?;
    let len = data.len() as u64;
    let fits = len > 0 && len.is_multiple_of(base::SECTOR) && len <= lsize;
    if !fits || (algo == CompressAlgo::Off && len != lsize) {
        return Err(Error::corrupt(format!("{len} bytes are stored for a block of {lsize}")));
    }
    Ok(Packed { data, compress: algo, mark: Some(mark(crypt, otype.is_encrypted_ok())) })
}

/// Refuses blocks that were written on a machine of the other byte order.
pub(super) fn check_order(flags: u8) -> Result<()> {
    match flags & record_flags::RAW_BYTESWAP {
        0 => Ok(()),
        _ => Err(Error::unsupported("raw streams of big-endian datasets are not received")),
    }
}

impl DslPool {
    /// The object set of a dataset that receives raw, without its key.
    pub(super) async fn raw_objset(&self, ds: &Rc<Dataset>, keys: &ReceivedKeys) -> Result<Objset> {
        if let Some(os) = ds.opened().filter(Objset::is_raw) {
            return Ok(os);
        }
        ds.load_features().await?;
        let os =
            Objset::open_raw(ds.sealed_ctx(), ds.object.0, ds.phys().bp, ds.objset_props(), ds.hooks(), &keys.meta);
        let os = os.await?;
        ds.set_objset(Some(os.clone()));
        Ok(os)
    }

    /// Makes the empty object set of a new head that receives raw (syncing context).
    pub(super) fn make_raw_objset(
        &self,
        ds: &Rc<Dataset>,
        os_type: ObjsetType,
        keys: &ReceivedKeys,
        tx: &Tx,
    ) -> Result<()> {
        use dmu::FeatureUse;
        ds.account().activate(ondisk::feature::FeatureId::Encryption.get().guid, tx.txg());
        let (props, hooks) = (ds.objset_props(), ds.hooks());
        let os = Objset::create_raw(ds.sealed_ctx(), ds.object.0, os_type, props, hooks, tx.txg(), &keys.meta)?;
        ds.set_objset(Some(os));
        Ok(())
    }
}

impl Writer {
    /// Takes an OBJECT_RANGE.
    pub(super) fn range(&mut self, r: &ObjectRange) -> Result<()> {
        check_order(r.flags)?;
        let per = DNODES_PER_BLOCK as u64;
        if r.slots != per || !r.first.0.is_multiple_of(per) || r.first.0 >= ondisk::dnode::MAX_OBJECT {
            return Err(Error::corrupt(format!("a range of {} objects from {}", r.slots, r.first)));
        }
        self.range = Some((r.first, Some(mark(&r.crypt, true))));
        Ok(())
    }

    /// Applies an OBJECT record of a raw stream.
    pub(super) async fn raw_object(&mut self, r: &Object, item: &Item) -> Result<()> {
        let shape = self.raw_shape(r, &item.content)?;
        self.check_own(r)?;
        match self.os.hold(r.object).await {
            Ok(dn) if is_kept(&dn, &shape) => return self.raw_reshape(&dn, &shape, item.end).await,
            Ok(_) => self.free_object(r.object).await?,
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        self.free_slots(r.object, u64::from(shape.slots)).await?;
        let (dn, tx) = self.create_in_tx(async |tx| self.os.alloc_shaped(r.object, &shape, tx).await).await?;
        dn.set_shape(&shape, &tx)?;
        self.set_mark(&tx);
        self.note(r.object, 0, item.end, &tx);
        Ok(())
    }

    fn raw_shape(&self, r: &Object, bonus: &[u8]) -> Result<Shape> {
        check_order(r.flags)?;
        let first = self.range.map(|(first, _)| first.0);
        let per = DNODES_PER_BLOCK as u64;
        let slots = r.dn_slots.max(1);
        if first != Some(r.object.0 - r.object.0 % per) || r.object.0 % per + u64::from(slots) > per {
            return Err(Error::corrupt(format!("object {} does not lie in the range before it", r.object)));
        }
        let typed = |n: u32| u8::try_from(n).map(ObjectType).unwrap_or(ObjectType(0x7f));
        let shape = Shape {
            otype: typed(r.object_type),
            bonustype: typed(r.bonus_type),
            bonuslen: u16::try_from(r.bonus_len).unwrap_or(u16::MAX),
            bonus: bonus[..r.raw_bonus_len as usize].to_vec(),
            blksz: r.block_size,
            indblkshift: r.indirect_shift,
            levels: r.levels,
            max_blkid: r.max_block_id,
            own: (r.compress, r.checksum),
            slots,
            has_spill: r.flags & record_flags::OBJECT_SPILL != 0,
        };
        shape.check()?;
        if shape.block_pointers() != r.block_pointers {
            return Err(Error::corrupt(format!("object {} has {} pointers", r.object, r.block_pointers)));
        }
        if slots > 1 && !self.form.large_dnodes {
            return Err(Error::corrupt(format!("object {} has {slots} slots", r.object)));
        }
        Ok(shape)
    }

    /// Gives an object that exists its new shape.
    async fn raw_reshape(&mut self, dn: &Dnode, shape: &Shape, end: u64) -> Result<()> {
        let tx = TxPlan::new(&self.os).bonus(dn).free(dn).assign().await?;
        let size = u64::from(dn.block_size());
        let moved = shape.blksz != dn.block_size();
        let from = if moved { 0 } else { (shape.max_blkid + 1).saturating_mul(size) };
        dn.punch_blocks(from, u64::MAX, &tx)?;
        dn.set_shape(shape, &tx)?;
        self.set_mark(&tx);
        self.note(dn.object(), 0, end, &tx);
        Ok(())
    }

    /// The first object of a range: its block is encrypted as the range says.
    fn set_mark(&mut self, tx: &Tx) {
        if let Some((first, mark)) = &mut self.range
            && let Some(mark) = mark.take()
        {
            self.os.mark_dnodes(*first, mark, tx);
        }
    }

    /// Applies a WRITE of a raw stream.
    pub(super) fn raw_write(&self, dn: &Dnode, w: &Write, data: Bytes, tx: &Tx) -> Result<()> {
        check_order(w.flags)?;
        let size = u64::from(dn.block_size());
        if w.logical_size != size || !w.offset.is_multiple_of(size) || w.offset / size > dn.max_blkid() {
            return Err(Error::corrupt(format!(
                "{} bytes at {} are no block of object {}",
                w.logical_size, w.offset, w.object
            )));
        }
        let packed = packed(data, w.compression, size, &w.crypt, dn.otype())?;
        // The content is not known here.
        dn.write_packed(w.offset, Bytes::zeroed(size as usize), packed, tx)
    }

    /// Applies a SPILL of a raw stream.
    pub(super) async fn raw_spill(&self, r: &Spill, data: Bytes) -> Result<()> {
        check_order(r.flags)?;
        let dn = self.hold(r.object).await?;
        let packed = packed(data, r.compression, r.length, &r.crypt, dn.bonus_type())?;
        let tx = TxPlan::new(&self.os).spill(&dn).assign().await?;
        dn.set_spill_packed(r.length as usize, packed, &tx)
    }

    /// Applies a FREE of a raw stream: the last block keeps its number.
    pub(super) async fn raw_free(&self, r: &Range) -> Result<()> {
        let dn = self.hold(r.object).await?;
        let tx = TxPlan::new(&self.os).free(&dn).net_free().assign().await?;
        let size = u64::from(dn.block_size());
        // What goes to the end may begin behind the last block, anywhere.
        let off = if r.length == TO_THE_END {
            r.offset.checked_next_multiple_of(size).unwrap_or(u64::MAX - u64::MAX % size)
        } else {
            r.offset
        };
        dn.punch_blocks(off, r.length, &tx)
    }
}

/// Whether an object can be given that shape; else it is made anew.
fn is_kept(dn: &Dnode, shape: &Shape) -> bool {
    let levels = dn.levels();
    dn.dnode_size() as usize == usize::from(shape.slots) * DNODE_SIZE
        && dn.block_pointers() == shape.block_pointers()
        && levels <= shape.levels
        && (levels == 1 || dn.indblkshift() == shape.indblkshift)
}
