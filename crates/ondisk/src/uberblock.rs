//! Uberblocks: the roots of the pool's tree, one per synced txg, in a ring in every label (format
//! page 01 section 6).
//!
//! The ring is 128 KiB of *slots* of 1 KiB to 8 KiB, by the top-level vdev's ashift. Txg N goes to
//! slot N modulo the number of slots, so a torn write costs the newest root only and the one before
//! it is still there. A slot ends in an embedded SHA-256 tied to its offset on the device.
//!
//! Import reads every slot of every label, drops those that do not verify, and takes the [`best`]:
//! highest txg, then time, then multihost sequence.

use base::{Error, Result, ResultExt, Txg};

use crate::blkptr::Blkptr;
use crate::bytes::{be64, le64, put_le64};
use crate::label::{ECK_SIZE, RING_OFFSET, RING_SIZE, verifier, version_supported};

/// First word of an uberblock.
pub const MAGIC: u64 = 0x00ba_b10c;
/// First word of the multihost fields.
pub const MMP_MAGIC: u64 = 0xa11c_ea11;
/// Smallest slot: log2 of 1 KiB.
pub const SLOT_SHIFT_MIN: u64 = 10;
/// Largest slot: log2 of 8 KiB.
pub const SLOT_SHIFT_MAX: u64 = 13;

/// Bytes of a slot that have a meaning, without the checksum.
const FIELDS: usize = 216;

/// A root of the pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Uberblock {
    /// Pool version: 1 to 28 or 5000.
    pub version: u64,
    /// The txg whose state this is the root of.
    pub txg: Txg,
    /// Sum of the guids of all vdevs, modulo 2^64.
    pub guid_sum: u64,
    /// Seconds since 1970 UTC when the txg was synced.
    pub timestamp: u64,
    /// The MOS; its birth may be older than `txg`.
    pub rootbp: Blkptr,
    /// Newest version that the writer supports.
    pub software_version: u64,
    /// [`MMP_MAGIC`], or 0 from writers without multihost.
    pub mmp_magic: u64,
    /// Nanoseconds between multihost writes, 0 when multihost is off.
    pub mmp_delay: u64,
    /// Multihost settings: bits 0 to 2 mark which of interval (ms, bits 8 to 31), sequence (32 to
    /// 47), fail intervals (48 to 63) are valid.
    pub mmp_config: u64,
    /// Txg of the pool's checkpoint, 0 when there is none.
    pub checkpoint_txg: u64,
    /// Progress of a raidz expansion (OpenZFS 2.3), 0 elsewhere.
    pub raidz_reflow: Reflow,
}

/// How far the sectors of a RAID-Z that is being expanded were moved (format page 19 section 3).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Reflow(pub u64);

impl Reflow {
    /// Bits of the word that count sectors of 512 bytes; those above are the scratch state.
    const OFFSET_BITS: u32 = 55;
    /// The scratch state in which the first part is valid only in the scratch area.
    const VALID: u64 = 1;

    /// A word of a scratch state and an offset, a multiple of 512.
    pub fn new(state: ScratchState, offset: u64) -> Reflow {
        Reflow((state as u64) << Self::OFFSET_BITS | offset >> 9)
    }

    /// Bytes of the vdev's address space from its start that were moved.
    pub fn offset(self) -> u64 {
        (self.0 & ((1 << Self::OFFSET_BITS) - 1)) << 9
    }

    /// Whether the moved part is in the scratch area, its place half overwritten.
    pub fn is_in_scratch(self) -> bool {
        self.0 >> Self::OFFSET_BITS == Self::VALID
    }
}

/// Words of an uberblock that a checkpoint keeps: all that OpenZFS knows before 2.3.
pub const KEPT_WORDS: usize = 26;

/// Bytes of a slot on a top-level vdev of `ashift`.
pub fn slot_size(ashift: u64) -> usize {
    1 << ashift.clamp(SLOT_SHIFT_MIN, SLOT_SHIFT_MAX)
}

/// Slots of the ring on a top-level vdev of `ashift`: 16 to 128.
pub fn slot_count(ashift: u64) -> u64 {
    (RING_SIZE / slot_size(ashift)) as u64
}

/// The slot of `txg`. With `multihost` the last slot is left to the heartbeat.
pub fn slot_for_txg(txg: Txg, ashift: u64, multihost: bool) -> u64 {
    txg.0 % (slot_count(ashift) - u64::from(multihost))
}

/// Device offset of slot `slot` of the label at `label_offset`.
pub fn slot_offset(label_offset: u64, ashift: u64, slot: u64) -> u64 {
    label_offset + RING_OFFSET + slot * slot_size(ashift) as u64
}

/// What the scratch area of a RAID-Z that is being expanded is for (format page 19 section 3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScratchState {
    /// Nothing: no expansion is under way, or nothing was moved.
    NotInUse = 0,
    /// The first part is valid there alone.
    Valid = 1,
    /// The first part was written to its place.
    Synced = 2,
    /// The expansion went on after that.
    SyncedReflow = 4,
}

/// No pool gets as far: a thousand txgs a second for a hundred million years. So the txgs after a
/// pool's txg cannot overflow.
const TXG_END: Txg = Txg(1 << 62);

impl Uberblock {
    /// An uberblock of a feature-flag pool without multihost or checkpoint.
    pub fn new(txg: Txg, guid_sum: u64, timestamp: u64, rootbp: Blkptr) -> Uberblock {
        Uberblock {
            version: crate::label::VERSION_FEATURES,
            txg,
            guid_sum,
            timestamp,
            rootbp,
            software_version: crate::label::VERSION_FEATURES,
            mmp_magic: MMP_MAGIC,
            mmp_delay: 0,
            mmp_config: 0,
            checkpoint_txg: 0,
            raidz_reflow: Reflow::default(),
        }
    }

    /// Reads a slot (its whole 1 to 8 KiB) that was read at `device_offset`, in either byte order.
    /// `None` for a slot that holds no uberblock (never written, or wiped). Errors: `Checksum`;
    /// `Unsupported` for a version that is not known; `Corrupt` for a root that is younger than its
    /// uberblock.
    pub fn parse(slot: &[u8], device_offset: u64) -> Result<Option<Uberblock>> {
        if slot.len() < FIELDS + ECK_SIZE {
            return Err(Error::invalid(format!("uberblock slot of {} bytes is too short", slot.len())));
        }
        let big = match le64(slot, 0) {
            MAGIC => false,
            m if m == MAGIC.swap_bytes() => true,
            _ => return Ok(None),
        };
        codec::embedded_sha256_verify(slot, verifier(device_offset))
            .at(|| format!("uberblock at {device_offset:#x}"))?;
        let ub = Uberblock::from_words(slot, big);
        if !version_supported(ub.version) {
            return Err(Error::unsupported(format!(
                "uberblock of txg {} has the unknown version {}",
                ub.txg, ub.version
            )));
        }
        if ub.txg >= TXG_END {
            return Err(Error::corrupt(format!("uberblock of txg {}, which no pool reaches", ub.txg)));
        }
        if ub.rootbp.birth() > ub.txg {
            return Err(Error::corrupt(format!(
                "uberblock of txg {} has a root born in txg {}",
                ub.txg,
                ub.rootbp.birth()
            )));
        }
        Ok(Some(ub))
    }

    fn from_words(slot: &[u8], big: bool) -> Uberblock {
        Uberblock::from_fields(|i| if big { be64(slot, 8 * i) } else { le64(slot, 8 * i) })
    }

    fn from_fields(word: impl Fn(usize) -> u64) -> Uberblock {
        Uberblock {
            version: word(1),
            txg: Txg(word(2)),
            guid_sum: word(3),
            timestamp: word(4),
            rootbp: Blkptr(std::array::from_fn(|i| word(5 + i))),
            software_version: word(21),
            mmp_magic: word(22),
            mmp_delay: word(23),
            mmp_config: word(24),
            checkpoint_txg: word(25),
            raidz_reflow: Reflow(word(26)),
        }
    }

    /// A slot of `slot_size` bytes with this uberblock, for `device_offset` (of the slot).
    pub fn seal(&self, slot_size: usize, device_offset: u64) -> Vec<u8> {
        assert!((1 << SLOT_SHIFT_MIN..=1 << SLOT_SHIFT_MAX).contains(&slot_size), "slot of {slot_size} bytes");
        let mut slot = vec![0; slot_size];
        let head = [MAGIC, self.version, self.txg.0, self.guid_sum, self.timestamp];
        let tail = [
            self.software_version,
            self.mmp_magic,
            self.mmp_delay,
            self.mmp_config,
            self.checkpoint_txg,
            self.raidz_reflow.0,
        ];
        for (i, word) in head.into_iter().chain(self.rootbp.0).chain(tail).enumerate() {
            put_le64(&mut slot, 8 * i, word);
        }
        codec::embedded_sha256_seal(&mut slot, verifier(device_offset));
        slot
    }

    /// The uberblock that a checkpoint keeps (format page 14 section 4); `None` if it is none.
    pub fn from_kept(words: &[u64; KEPT_WORDS]) -> Option<Uberblock> {
        let ub = Uberblock::from_fields(|i| words.get(i).copied().unwrap_or(0));
        let possible = version_supported(ub.version) && ub.txg < TXG_END && ub.rootbp.birth() <= ub.txg;
        (words[0] == MAGIC && possible).then_some(ub)
    }

    /// The words that a checkpoint keeps of it: with `expandable`, where a RAID-Z may be expanded,
    /// also the 27th of OpenZFS 2.3, which reads garbage if it is not there. Earlier releases have
    /// no room for it.
    pub fn to_kept(&self, expandable: bool) -> Vec<u64> {
        let slot = self.seal(1 << SLOT_SHIFT_MIN, 0);
        (0..KEPT_WORDS + usize::from(expandable)).map(|i| le64(&slot, 8 * i)).collect()
    }

    /// Whether its writer has `multihost` on.
    pub fn has_heartbeat(&self) -> bool {
        self.mmp_magic == MMP_MAGIC && self.mmp_delay != 0
    }

    /// A field of the multihost settings, if the bit `valid` says that it is there.
    fn mmp_field(&self, valid: u64, shift: u32, mask: u64) -> Option<u64> {
        (self.mmp_magic == MMP_MAGIC && self.mmp_config & valid != 0).then_some((self.mmp_config >> shift) & mask)
    }

    /// Milliseconds in which each device gets a heartbeat, if it says so.
    pub fn mmp_interval_ms(&self) -> Option<u64> {
        self.mmp_field(1, 8, 0xff_ffff)
    }

    /// Intervals without a heartbeat after which its writer suspends the pool, if it says so; 0:
    /// never.
    pub fn mmp_fail_intervals(&self) -> Option<u64> {
        self.mmp_field(4, 48, 0xffff)
    }

    /// Sets all multihost fields: nanoseconds between heartbeats, interval in milliseconds,
    /// sequence, intervals before the pool is suspended. Values that are too large for their fields
    /// are cut down.
    pub fn set_multihost(&mut self, delay: u64, interval_ms: u64, seq: u64, fail: u64) {
        self.mmp_magic = MMP_MAGIC;
        self.mmp_delay = delay;
        self.mmp_config = 7 | interval_ms.min(0xff_ffff) << 8 | seq.min(0xffff) << 32 | fail.min(0xffff) << 48;
    }

    /// Sets the multihost sequence alone.
    pub fn set_mmp_seq(&mut self, seq: u64) {
        self.mmp_config = self.mmp_config & !(0xffff << 32) | 2 | seq.min(0xffff) << 32;
    }

    /// The multihost sequence number, 0 when there is none.
    pub fn mmp_seq(&self) -> u64 {
        match self.mmp_magic == MMP_MAGIC && self.mmp_config & 2 != 0 {
            true => (self.mmp_config >> 32) & 0xffff,
            false => 0,
        }
    }

    /// The sort key of uberblocks: the highest is the newest.
    pub fn rank(&self) -> (Txg, u64, u64) {
        (self.txg, self.timestamp, self.mmp_seq())
    }
}

/// The newest of `uberblocks`; of several that rank the same, the first.
pub fn best(uberblocks: impl IntoIterator<Item = Uberblock>) -> Option<Uberblock> {
    uberblocks.into_iter().reduce(|a, b| if b.rank() > a.rank() { b } else { a })
}

/// Every slot of a ring ([`RING_SIZE`] bytes, of the label at `label_offset`) that holds an
/// uberblock or the remains of one.
pub fn scan_ring(ring: &[u8], ashift: u64, label_offset: u64) -> impl Iterator<Item = (u64, Result<Uberblock>)> {
    let size = slot_size(ashift);
    ring.chunks_exact(size).zip(0u64..).filter_map(move |(bytes, slot)| {
        Uberblock::parse(bytes, slot_offset(label_offset, ashift, slot)).transpose().map(|ub| (slot, ub))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multihost_fields_have_their_places() {
        let mut ub = Uberblock::new(Txg(7), 1, 2, Blkptr::hole());
        assert!(!ub.has_heartbeat() && ub.mmp_interval_ms().is_none() && ub.mmp_fail_intervals().is_none());
        ub.set_multihost(5, 1000, 3, 10);
        assert_eq!(ub.mmp_config, 0x000a_0003_0003_e807);
        assert!(ub.has_heartbeat());
        assert_eq!((ub.mmp_interval_ms(), ub.mmp_seq(), ub.mmp_fail_intervals()), (Some(1000), 3, Some(10)));
        ub.set_mmp_seq(0xffff);
        assert_eq!((ub.mmp_interval_ms(), ub.mmp_seq(), ub.mmp_fail_intervals()), (Some(1000), 0xffff, Some(10)));
        ub.mmp_magic = 0;
        assert!(!ub.has_heartbeat() && ub.mmp_seq() == 0 && ub.mmp_interval_ms().is_none());
    }

    #[test]
    fn the_progress_of_an_expansion_has_two_parts() {
        for (word, offset, scratch) in [
            (0, 0, false),
            (1 << 55 | 7, 7 << 9, true),
            (4 << 55 | 0xa000, 0xa000 << 9, false),
            (u64::MAX, u64::MAX << 9, false),
        ] {
            let reflow = Reflow(word);
            assert_eq!((reflow.offset(), reflow.is_in_scratch()), (offset, scratch), "{word:#x}");
        }
    }

    #[test]
    fn a_txg_has_one_after_it() {
        for (txg, good) in [(7, true), (TXG_END.0 - 1, true), (TXG_END.0, false), (u64::MAX, false)] {
            let ub = Uberblock::new(Txg(txg), 1, 2, Blkptr::hole());
            let read = Uberblock::parse(&ub.seal(1 << SLOT_SHIFT_MIN, 4096), 4096);
            assert_eq!(read.is_ok_and(|ub| ub.is_some()), good, "{txg}");
            for (expandable, words) in [(false, 26), (true, 27)] {
                let kept = ub.to_kept(expandable);
                assert_eq!(kept.len(), words);
                let first = kept.first_chunk().expect("26 words and more");
                assert_eq!(Uberblock::from_kept(first).is_some(), good, "{txg}");
            }
        }
    }
}
