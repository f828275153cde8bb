//! Keys and entries of dedup tables, in memory and as values of ZAPs.

use base::{Result, Txg};
use ondisk::blkptr::{Blkptr, Dva};
use ondisk::ddt::{FLAT_WORDS, Flat, pack, unpack};
use ondisk::object_type::ObjectType;
use ondisk::zap::ZapValue;
use zio::WriteDone;

pub(super) const DUPLICATE: usize = 1;
pub(super) const UNIQUE: usize = 2;
pub(super) const SLOTS: usize = 4;
/// The slot of a flat entry.
pub(super) const FLAT_SLOT: usize = 1;
/// Words of a legacy entry: of each slot three DVAs, references, birth.
const LEGACY_WORDS: usize = SLOTS * 8;
/// The word of a block pointer with its sizes and compression, and their bits (format page 02
/// section 1).
const PROP_WORD: usize = 6;
const SIZES_AND_COMPRESSION: u64 = (1 << 39) - 1;
/// Bit of the last word of a key: the block is encrypted.
const ENCRYPTED: u64 = 1 << 39;

/// How a table stores its entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// A slot for each number of copies, no logs.
    Legacy,
    /// One slot, logs before the ZAPs.
    Flat,
}

/// The key of an entry: the checksum's words; sizes and compression.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Key {
    pub checksum: u8,
    pub words: [u64; 5],
}

impl Key {
    pub fn of(bp: &Blkptr) -> Key {
        let [a, b, c, d] = bp.checksum_words();
        // The block may have no DVA yet.
        let prop = bp.0[PROP_WORD] & SIZES_AND_COMPRESSION | if bp.encrypted() { ENCRYPTED } else { 0 };
        Key { checksum: bp.checksum_raw(), words: [a, b, c, d, prop] }
    }
    /// From the name of an entry in a ZAP; none if it is no key.
    pub fn parse(checksum: u8, name: &[u8]) -> Option<Key> {
        let (words, rest) = name.as_chunks::<8>();
        let words: [u64; 5] = words.iter().map(|w| u64::from_be_bytes(*w)).collect::<Vec<_>>().try_into().ok()?;
        rest.is_empty().then_some(Key { checksum, words })
    }
    pub fn name(&self) -> Vec<u8> {
        self.words.iter().flat_map(|w| w.to_be_bytes()).collect()
    }
    pub fn lsize(&self) -> u64 {
        ((self.words[4] & 0xffff) + 1) * 512
    }
    pub fn psize(&self) -> u64 {
        ((self.words[4] >> 16 & 0xffff) + 1) * 512
    }
    /// A pointer to the block in `slot`, without the dedup bit.
    pub fn pointer(&self, slot: &Slot) -> Blkptr {
        let mut bp = Blkptr::hole();
        bp.set_lsize(self.lsize());
        bp.set_psize(self.psize());
        bp.set_compress((self.words[4] >> 32 & 0x7f) as u8);
        bp.set_checksum(self.checksum);
        bp.set_otype(ObjectType::PLAIN_FILE);
        bp.set_little_endian(true);
        bp.set_encrypted(self.words[4] & ENCRYPTED != 0);
        bp.set_checksum_words([self.words[0], self.words[1], self.words[2], self.words[3]]);
        slot.dvas.iter().enumerate().for_each(|(i, dva)| bp.set_dva(i, *dva));
        bp.set_birth(Txg(slot.birth), Txg(slot.birth));
        bp.set_fill(1);
        bp
    }
}

/// A block: in a legacy entry that for one number of copies.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Slot {
    pub dvas: [Dva; 3],
    pub refs: u64,
    /// Txg; 0: not in use.
    pub birth: u64,
}

pub(super) type Slots = [Slot; SLOTS];

/// Flat slots as those of an entry.
pub(super) fn slots_of(flat: &Flat) -> Slots {
    let mut slots = Slots::default();
    slots[FLAT_SLOT] = Slot { dvas: flat.dvas, refs: flat.refs, birth: flat.birth };
    slots
}

/// The flat slot of an entry that changed at `now`, in seconds since 1970.
pub(super) fn flat_of(slots: &Slots, now: u64) -> Flat {
    let Slot { dvas, refs, birth } = slots[FLAT_SLOT];
    // An empty slot has no age either.
    Flat { dvas, refs, birth, class_start: if birth == 0 { 0 } else { now } }
}

/// All references of an entry.
pub(super) fn references(slots: &Slots) -> u64 {
    slots[1..].iter().fold(0u64, |n, s| n.saturating_add(s.refs))
}

/// The class of an entry with so many references; none without any.
pub(super) fn class_for(references: u64) -> Option<usize> {
    match references {
        0 => None,
        1 => Some(UNIQUE),
        _ => Some(DUPLICATE),
    }
}

/// The slots of a stored entry.
pub(super) fn parse(form: Form, value: &ZapValue) -> Result<Slots> {
    if form == Form::Flat {
        return Ok(slots_of(&Flat::from_words(&unpack::<FLAT_WORDS>(value)?)));
    }
    let words = unpack::<LEGACY_WORDS>(value)?;
    Ok(std::array::from_fn(|s| {
        let w = &words[s * 8..s * 8 + 8];
        Slot { dvas: std::array::from_fn(|d| Dva { w0: w[d * 2], w1: w[d * 2 + 1] }), refs: w[6], birth: w[7] }
    }))
}

/// The value of a legacy entry.
pub(super) fn store_legacy(slots: &Slots) -> ZapValue {
    let words = slots.iter().flat_map(|s| s.dvas.iter().flat_map(|d| [d.w0, d.w1]).chain([s.refs, s.birth]));
    pack(&words.collect::<Vec<u64>>())
}

/// An entry in memory.
#[derive(Default)]
pub(super) struct LiveEntry {
    pub slots: Slots,
    /// The slots on disk: those of the log, or of the ZAP if no log has the entry.
    pub base: Slots,
    /// The class of the ZAP that has a state of it.
    pub class: Option<usize>,
    /// A log has the newest state.
    pub logged: bool,
    /// Writes of this txg that are under way, by slot.
    pub writes: [Option<WriteDone>; SLOTS],
}

impl LiveEntry {
    /// An entry as it is on disk.
    pub fn stored(slots: Slots, class: Option<usize>, logged: bool) -> LiveEntry {
        LiveEntry { slots, base: slots, class, logged, ..LiveEntry::default() }
    }

    /// The slot of the block at `bp`, if it has references. After an entry was pruned another block
    /// may have its key: only the DVAs tell.
    pub fn slot_of(&self, bp: &Blkptr) -> Option<usize> {
        let is_it = |s: &Slot| {
            let same = bp.dvas().enumerate().all(|(i, dva)| s.dvas[i] == dva);
            s.birth == bp.phys_birth().0 && s.birth != 0 && same && s.refs > 0
        };
        (1..SLOTS).find(|at| is_it(&self.slots[*at]))
    }

    pub fn is_dirty(&self) -> bool {
        self.base != self.slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::VdevId;
    use codec::{ChecksumAlgo, CompressAlgo};

    fn dva(n: u64) -> Dva {
        Dva::new(VdevId(0), n << 20, 8192, false)
    }

    #[test]
    fn entries_keep_what_they_say() {
        let mut slots = Slots::default();
        assert_eq!(parse(Form::Legacy, &store_legacy(&slots)).expect("own bytes"), slots);
        slots[1] = Slot { dvas: [dva(1), Dva::default(), Dva::default()], refs: 3, birth: 77 };
        slots[3] = Slot { dvas: [dva(2), dva(3), dva(4)], refs: u64::MAX, birth: 1 << 40 };
        let value = store_legacy(&slots);
        assert_eq!(value.as_bytes().map(|b| b[0]), Some(0x8e));
        assert_eq!(parse(Form::Legacy, &value).expect("own bytes"), slots);
        assert!(parse(Form::Flat, &ZapValue::from_bytes(&[0x82, 1])).is_err());
        let flat = flat_of(&slots, 99);
        assert_eq!((flat.class_start, flat.refs, flat.birth), (99, 3, 77));
        slots[3] = Slot::default();
        assert_eq!(parse(Form::Flat, &pack(&flat.to_words())).expect("own bytes"), slots);
        assert_eq!(flat_of(&Slots::default(), 99), Flat::default());
    }

    #[test]
    fn keys_name_blocks() {
        let mut bp = Blkptr::hole();
        bp.set_lsize(128 << 10);
        bp.set_psize(512);
        bp.set_compress(CompressAlgo::Lz4 as u8);
        bp.set_checksum(ChecksumAlgo::Sha256 as u8);
        bp.set_checksum_words([1, 2, 3, 4]);
        let key = Key::of(&bp);
        assert_eq!(key.words, [1, 2, 3, 4, 255 | (CompressAlgo::Lz4 as u64) << 32]);
        assert_eq!(Key::parse(key.checksum, &key.name()), Some(key));
        assert_eq!(Key::parse(key.checksum, &key.name()[1..]), None);
        let slot = Slot { dvas: [dva(0), Dva::default(), Dva::default()], refs: 1, birth: 5 };
        let back = key.pointer(&slot);
        assert_eq!(Key::of(&back), key);
        assert_eq!((back.lsize(), back.psize(), back.ndvas(), back.phys_birth()), (128 << 10, 512, 1, Txg(5)));
        // The third DVA of an encrypted block is none.
        bp.set_encrypted(true);
        let key = Key::of(&bp);
        let back = key.pointer(&Slot { dvas: [dva(1), dva(2), dva(3)], ..slot });
        assert_eq!((Key::of(&back), back.ndvas()), (key, 2));
    }

    #[test]
    fn pointers_belong_to_the_slot_with_their_copies() {
        let slot = |a: u64, b: u64, refs: u64| Slot { dvas: [dva(a), dva(b), Dva::default()], refs, birth: 5 };
        let key = Key { checksum: ChecksumAlgo::Sha256 as u8, words: [1, 2, 3, 4, 5] };
        let entry = |slot: Slot| {
            let mut slots = Slots::default();
            slots[FLAT_SLOT] = slot;
            LiveEntry::stored(slots, None, true)
        };
        let bp = |a: u64, b: Option<u64>, birth: u64| {
            let dvas = [dva(a), b.map_or(Dva::default(), dva), Dva::default()];
            key.pointer(&Slot { dvas, refs: 1, birth })
        };
        // A pointer from before the entry got a second copy, all copies, a second copy elsewhere,
        // another block, another birth; and an entry without references.
        for (bp, refs, found) in [
            (bp(1, None, 5), 2, true),
            (bp(1, Some(2), 5), 2, true),
            (bp(1, Some(3), 5), 2, false),
            (bp(2, None, 5), 2, false),
            (bp(1, None, 6), 2, false),
            (bp(1, None, 5), 0, false),
        ] {
            assert_eq!(entry(slot(1, 2, refs)).slot_of(&bp).is_some(), found, "{bp}");
        }
    }
}
