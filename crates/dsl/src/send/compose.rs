//! From what a walk finds to records: which record stands for a block, and neighbours that become
//! one record (format page 25 section 1).
//!
//! At most one FREE, FREEOBJECTS or REDACT is *pending*: what joins it makes it longer, everything
//! else pushes it out. A FREE to the end of an object never waits.

use base::{Guid, ObjectId};
use codec::checksum::{Checksum, ChecksumAlgo};
use codec::compress::CompressAlgo;
use ondisk::blkptr::Blkptr;
use ondisk::dnode::DnodePhys;
use ondisk::object_type::ObjectType;
use ondisk::stream::Record;
use ondisk::stream::record::{Crypt, FreeObjects, Object, Range, Spill, TO_THE_END, Write, WriteEmbedded};
use ondisk::stream::{features, record_flags};

/// Largest block of a stream without LARGE_BLOCKS (`SPA_OLD_MAXBLOCKSIZE`).
pub(super) const OLD_BLOCK_MAX: u64 = 128 << 10;
/// The number of "off" as a checksum in streams: the sender has none of these bytes.
const CHECKSUM_OFF: u8 = 2;
/// The unit of sizes in the key of a WRITE.
const SECTOR: u64 = 512;

/// Collects the records of a sub-stream.
pub(super) struct Composer {
    to_guid: Guid,
    /// Object numbers that can exist at the receiver: those within the meta-dnode.
    objects: u64,
    pending: Option<Record>,
}

impl Composer {
    /// For a snapshot whose meta-dnode has room for that many objects.
    pub(super) fn new(to_guid: Guid, objects: u64) -> Composer {
        Composer { to_guid, objects, pending: None }
    }

    /// The record that waits, because another one comes.
    pub(super) fn push_out(&mut self) -> Option<Record> {
        self.pending.take()
    }

    /// A part of an object has no data. Gives what has to be sent now, in order.
    pub(super) fn free(&mut self, object: ObjectId, offset: u64, length: u64) -> Vec<Record> {
        let to_guid = self.to_guid;
        let length = if offset.checked_add(length).is_none() { TO_THE_END } else { length };
        if let Some(Record::Free(r)) = &mut self.pending
            && joins(r, object, offset)
        {
            r.length = r.length.checked_add(length).filter(|_| length != TO_THE_END).unwrap_or(TO_THE_END);
            return Vec::new();
        }
        let mut out: Vec<Record> = self.push_out().into_iter().collect();
        let free = Record::Free(Range { object, offset, length, to_guid });
        if length == TO_THE_END {
            out.push(free);
        } else {
            self.pending = Some(free);
        }
        out
    }

    /// A part of an object was left out when this snapshot was received. Gives what has to be sent
    /// now.
    pub(super) fn redact(&mut self, object: ObjectId, offset: u64, length: u64) -> Vec<Record> {
        if let Some(Record::Redact(r)) = &mut self.pending
            && joins(r, object, offset)
        {
            r.length = r.length.saturating_add(length);
            return Vec::new();
        }
        let out = self.push_out().into_iter().collect();
        self.pending = Some(Record::Redact(Range { object, offset, length, to_guid: self.to_guid }));
        out
    }

    /// Object numbers are not in use. Gives what has to be sent now.
    pub(super) fn free_objects(&mut self, first: u64, count: u64) -> Vec<Record> {
        // Old receivers look at every number: those that cannot exist there are left out.
        let count = count.min(self.objects.saturating_sub(first));
        if count == 0 {
            return Vec::new();
        }
        if let Some(Record::FreeObjects(r)) = &mut self.pending
            && r.first.0.checked_add(r.count) == Some(first)
        {
            r.count += count;
            return Vec::new();
        }
        let out = self.push_out().into_iter().collect();
        self.pending = Some(Record::FreeObjects(FreeObjects { first: first.into(), count, to_guid: self.to_guid }));
        out
    }
}

fn joins(r: &Range, object: ObjectId, offset: u64) -> bool {
    r.object == object && r.offset.checked_add(r.length) == Some(offset)
}

/// How blocks are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Form {
    /// The features of the stream.
    pub features: u64,
    /// The snapshot that is sent.
    pub to_guid: Guid,
}

/// How the payload of a block is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Payload {
    /// Its content.
    Content,
    /// As it is stored: compressed, in a raw stream encrypted too.
    Stored,
    /// What lies in its pointer.
    Embedded,
    /// Its content in pieces of [`OLD_BLOCK_MAX`].
    Pieces,
}

impl Form {
    fn has(self, feature: u64) -> bool {
        self.features & feature != 0
    }

    /// Whether blocks are sent as they lie on disk.
    pub(super) fn is_raw(self) -> bool {
        self.has(features::RAW)
    }

    /// OBJECT of `dn`, and its payload.
    pub(super) fn object(self, object: ObjectId, dn: &DnodePhys, swapped: bool) -> (Object, Vec<u8>) {
        let most = if self.has(features::LARGE_BLOCKS) { u64::MAX } else { OLD_BLOCK_MAX };
        let mut record = Object {
            object,
            object_type: u32::from(dn.otype.0),
            bonus_type: u32::from(dn.bonustype.0),
            block_size: u64::from(dn.datablksz()).min(most) as u32,
            bonus_len: u32::from(dn.bonuslen),
            checksum: dn.checksum,
            compress: dn.compress,
            dn_slots: dn.extra_slots + 1,
            flags: if dn.spill.is_some() { record_flags::OBJECT_SPILL } else { 0 },
            to_guid: self.to_guid,
            ..Object::default()
        };
        let mut bonus = dn.bonus().to_vec();
        if self.is_raw() {
            record.flags |= if swapped { record_flags::RAW_BYTESWAP } else { 0 };
            record.max_block_id = dn.maxblkid;
            record.indirect_shift = dn.indblkshift;
            record.levels = dn.nlevels;
            record.block_pointers = dn.nblkptr;
            if dn.bonuslen != 0 {
                // All of the area is encrypted, so all of it is sent.
                let capacity = dn.bonus_capacity();
                record.raw_bonus_len = capacity as u32;
                bonus = dn.bonus_area[..capacity].to_vec();
            }
        }
        bonus.resize(Record::Object(record).payload_len() as usize, 0);
        (record, bonus)
    }

    /// How a data block of an object with blocks of `block_size` bytes is sent.
    pub(super) fn payload(self, bp: &Blkptr, block_size: u64) -> Payload {
        if self.embeds(bp) {
            return Payload::Embedded;
        }
        if self.is_raw() {
            return Payload::Stored;
        }
        if block_size > OLD_BLOCK_MAX && !self.has(features::LARGE_BLOCKS) {
            return Payload::Pieces;
        }
        let stored = self.has(features::COMPRESSED)
            && !bp.needs_swap()
            && !bp.is_embedded()
            && !bp.otype().is_metadata()
            && bp.compress() != Some(CompressAlgo::Off);
        if stored { Payload::Stored } else { Payload::Content }
    }

    /// Whether a block is sent as WRITE_EMBEDDED.
    fn embeds(self, bp: &Blkptr) -> bool {
        let known = match bp.compress_raw() {
            c if c < CompressAlgo::Lz4 as u8 => true,
            c if c == CompressAlgo::Zstd as u8 => self.has(features::LZ4) && self.has(features::ZSTD),
            _ => self.has(features::LZ4),
        };
        bp.is_embedded() && bp.embedded_type() == 0 && self.has(features::EMBED_DATA) && known
    }

    /// WRITE_EMBEDDED of a block.
    pub(super) fn embedded(self, object: ObjectId, offset: u64, block_size: u64, bp: &Blkptr) -> WriteEmbedded {
        WriteEmbedded {
            to: Range { object, offset, length: block_size, to_guid: self.to_guid },
            compression: bp.compress_raw(),
            embedded_type: bp.embedded_type(),
            logical_size: bp.lsize() as u32,
            physical_size: bp.embedded_psize() as u32,
        }
    }

    /// WRITE of a whole block.
    pub(super) fn write(
        self,
        (object, otype): (ObjectId, ObjectType),
        offset: u64,
        block_size: u64,
        bp: &Blkptr,
    ) -> Write {
        let mut record = self.piece((object, otype), offset, block_size);
        if self.payload(bp, block_size) == Payload::Stored {
            record.compression = bp.compress_raw();
            record.compressed_size = bp.psize();
        }
        if self.is_raw() {
            record.flags |= if bp.needs_swap() { record_flags::RAW_BYTESWAP } else { 0 };
            record.crypt = crypt_of(bp);
        }
        // What is embedded or sent as plain text has no checksum of its own.
        if !bp.is_embedded() && (self.is_raw() || !bp.encrypted()) {
            record.checksum_type = bp.checksum_raw();
            if bp.checksum_algo().is_some_and(ChecksumAlgo::is_dedup_strong) {
                record.flags |= record_flags::CHECKSUM_DEDUP;
            }
            record.key = Checksum(bp.checksum_words());
            record.key_prop = key_prop(bp);
        }
        record
    }

    /// WRITE of a part of a block.
    pub(super) fn piece(self, (object, otype): (ObjectId, ObjectType), offset: u64, len: u64) -> Write {
        Write {
            object,
            object_type: u32::from(otype.0),
            offset,
            logical_size: len,
            to_guid: self.to_guid,
            checksum_type: CHECKSUM_OFF,
            ..Write::default()
        }
    }

    /// SPILL of a spill block, which is as old as `unmodified` says.
    pub(super) fn spill(self, object: ObjectId, bp: &Blkptr, unmodified: bool) -> Spill {
        let mut record = Spill { object, length: bp.lsize(), to_guid: self.to_guid, ..Spill::default() };
        if unmodified {
            record.flags |= record_flags::SPILL_UNMODIFIED;
        }
        if self.is_raw() {
            record.flags |= if bp.needs_swap() { record_flags::RAW_BYTESWAP } else { 0 };
            record.compression = bp.compress_raw();
            record.compressed_size = bp.psize();
            record.crypt = crypt_of(bp);
        }
        record
    }
}

/// Sizes and compression as the key of a dedup table has them (format page 13).
fn key_prop(bp: &Blkptr) -> u64 {
    let sectors = |bytes: u64| (bytes / SECTOR).wrapping_sub(1) & 0xffff;
    sectors(bp.lsize())
        | sectors(bp.psize()) << 16
        | u64::from(bp.compress_raw() & 0x7f) << 32
        | u64::from(bp.encrypted()) << 39
}

/// How a block of a raw stream is encrypted or authenticated.
pub(super) fn crypt_of(bp: &Blkptr) -> Crypt {
    if bp.is_encrypted_data() {
        let (salt, iv) = bp.salt_iv();
        return Crypt { salt, iv, mac: bp.mac() };
    }
    Crypt { mac: bp.mac(), ..Crypt::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(object: u64, offset: u64, length: u64) -> Record {
        Record::Free(Range { object: object.into(), offset, length, to_guid: Guid(9) })
    }

    #[test]
    fn neighbours_become_one_record() {
        let mut c = Composer::new(Guid(9), 96);
        assert_eq!(c.free(1.into(), 512, 512), []);
        assert_eq!(c.free(1.into(), 1024, 1024), []);
        assert_eq!(c.free(1.into(), 4096, 512), [free(1, 512, 1536)]);
        assert_eq!(c.free(2.into(), 4608, 512), [free(1, 4096, 512)]);
        assert_eq!(c.redact(2.into(), 5120, 512), [free(2, 4608, 512)]);
        assert_eq!(c.redact(2.into(), 5632, 512), []);
        let redact = Record::Redact(Range { object: 2.into(), offset: 5120, length: 1024, to_guid: Guid(9) });
        assert_eq!(c.free_objects(3, 2), [redact]);
        assert_eq!(c.free_objects(5, 1), []);
        let objects = Record::FreeObjects(FreeObjects { first: 3.into(), count: 3, to_guid: Guid(9) });
        assert_eq!(c.push_out(), Some(objects));
        assert_eq!(c.push_out(), None);
    }

    #[test]
    fn a_free_to_the_end_does_not_wait() {
        let mut c = Composer::new(Guid(9), 96);
        assert_eq!(c.free(1.into(), 512, TO_THE_END), [free(1, 512, TO_THE_END)]);
        assert_eq!(c.free(1.into(), 512, 512), []);
        // Joined, it stays pending: the record that waits gets longer.
        assert_eq!(c.free(1.into(), 1024, TO_THE_END), []);
        assert_eq!(c.push_out(), Some(free(1, 512, TO_THE_END)));
        assert_eq!(c.free(1.into(), u64::MAX - 5, 100), [free(1, u64::MAX - 5, TO_THE_END)]);
    }

    #[test]
    fn objects_that_cannot_exist_are_not_freed() {
        let mut c = Composer::new(Guid(9), 96);
        assert_eq!(c.free_objects(96, 32), []);
        assert_eq!(c.free_objects(90, 1 << 40), []);
        let objects = Record::FreeObjects(FreeObjects { first: 90.into(), count: 6, to_guid: Guid(9) });
        assert_eq!(c.push_out(), Some(objects));
        assert_eq!(c.free_objects(u64::MAX, u64::MAX), []);
    }

    #[test]
    fn which_payload_stands_for_a_block() {
        use features::*;
        let form = |features| Form { features, to_guid: Guid(9) };
        let mut stored = Blkptr::hole();
        stored.set_lsize(16 << 10);
        stored.set_psize(4 << 10);
        stored.set_compress(CompressAlgo::Lz4 as u8);
        stored.set_otype(ObjectType::PLAIN_FILE);
        stored.set_little_endian(true);
        stored.set_birth(base::Txg(5), base::Txg(5));
        let mut plain = stored;
        plain.set_compress(CompressAlgo::Off as u8);
        let mut directory = stored;
        directory.set_otype(ObjectType::DIRECTORY);
        let embedded =
            Blkptr::embedded(&[1; 17], 512, CompressAlgo::Lz4 as u8, ObjectType::PLAIN_FILE, 0, base::Txg(5));
        for (bp, size, features, payload) in [
            (stored, 16 << 10, 0, Payload::Content),
            (stored, 16 << 10, COMPRESSED | LZ4, Payload::Stored),
            (plain, 16 << 10, COMPRESSED | LZ4, Payload::Content),
            (directory, 16 << 10, COMPRESSED | LZ4, Payload::Content),
            (directory, 16 << 10, RAW | COMPRESSED, Payload::Stored),
            (stored, 1 << 20, COMPRESSED | LZ4, Payload::Pieces),
            (stored, 1 << 20, COMPRESSED | LZ4 | LARGE_BLOCKS, Payload::Stored),
            (embedded, 512, COMPRESSED | LZ4, Payload::Content),
            (embedded, 512, EMBED_DATA, Payload::Content),
            (embedded, 512, EMBED_DATA | LZ4, Payload::Embedded),
        ] {
            assert_eq!(form(features).payload(&bp, size), payload, "{bp} {features:x}");
        }
    }
}
