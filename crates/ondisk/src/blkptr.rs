//! Block pointers: where a block is, how it was stored, and the checksum that it must have (format
//! page 02).
//!
//! A block pointer is 16 u64 words, held here as they are on disk (already in native order) with
//! accessors over the bit fields, so copying one is copying 128 bytes and nothing of a pointer
//! written by newer software is lost. There are four kinds:
//!
//! * a *hole* has no first DVA: nothing is stored and the block reads as zeros. One that replaced a
//!   block keeps size, type, level and the birth txg of the hole;
//! * an *embedded* pointer carries up to 112 bytes of (usually compressed) payload in place of DVAs
//!   and checksum;
//! * a *gang* pointer's DVAs name headers of up to three child pointers whose pieces, joined, are
//!   the block;
//! * everything else is a *regular* pointer of one to three copies.
//!
//! There are three kinds of *birth*, which are one txg for most blocks. `zfs rewrite -P` writes a
//! block anew without a change of its content: such a *rewritten* pointer has the bit R, and each
//! user of a birth must take the right one (format page 17 section 5):
//!
//! * [`Blkptr::logical_birth`], when the content changed, for what users see: streams, differences,
//!   redaction, the birth of holes;
//! * [`Blkptr::phys_birth`], when the bytes reached their place, for what lies on devices: dedup
//!   entries, caches, the error log, the width of RAID-Z, gang headers, resilvers;
//! * [`Blkptr::birth`], when the pointer got its space, for whether a snapshot references the
//!   block: what is freed and what goes into a deadlist and under which key, checkpoints, the range
//!   of scans, claims of logs.
//!
//! The normal path of a pointer that was read: [`Blkptr::parse`], then [`Blkptr::validate`] before
//! anything trusts its sizes or offsets. A pointer made by a write starts as [`Blkptr::hole`] and
//! is filled in with the `set_` methods.

use std::fmt;

use base::{Error, MAX_BLOCK, Result, Txg, VdevId};
use codec::{Checksum, ChecksumAlgo, CompressAlgo};

use crate::bytes::{get, le64_words, put_le64_words};
use crate::object_type::ObjectType;

/// Bytes of a block pointer on disk.
pub const BLKPTR_SIZE: usize = 128;
/// log2 of [`BLKPTR_SIZE`] (`SPA_BLKPTRSHIFT`).
pub const BLKPTR_SHIFT: u32 = 7;
/// Most bytes of payload that fit in an embedded pointer (format page 02 section 5).
pub const EMBEDDED_MAX: usize = 112;
/// Highest level that any block tree needs: 2^63 bytes in 512-byte blocks under 4 KiB indirect
/// blocks (format page 03 section 1).
pub const MAX_LEVELS: u8 = 12;
/// Raw checksum number "off".
pub const CHECKSUM_OFF: u8 = 2;
/// Raw compression number "off".
pub const COMPRESS_OFF: u8 = 2;
/// Raw compression number "empty": stored uncompressed unless all zero.
pub const COMPRESS_EMPTY: u8 = 4;
/// Highest checksum number defined (blake3).
const CHECKSUM_MAX: u8 = 14;
/// Highest compression number defined (zstd).
const COMPRESS_MAX: u8 = 16;

const W_PROP: usize = 6;
const W_PHYS_BIRTH: usize = 9;
/// Its top bit marks a rewritten block (format page 17 section 5); payload of an embedded one.
const W_REWRITTEN: usize = 7;
const W_BIRTH: usize = 10;
const W_FILL: usize = 11;
const W_CKSUM: usize = 12;
/// Bit R.
const REWRITTEN: u64 = 1 << 63;
/// Words of an embedded pointer that carry payload: all but prop and birth.
const PAYLOAD_WORDS: [usize; 14] = [0, 1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 14, 15];

/// A data virtual address: one copy's place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Dva {
    /// asize, grid and vdev.
    pub w0: u64,
    /// offset and gang bit.
    pub w1: u64,
}

impl Dva {
    /// The place of `asize` bytes at `offset` bytes of top-level `vdev`. Offset and asize must be
    /// multiples of 512 in the range of their fields.
    pub fn new(vdev: VdevId, offset: u64, asize: u64, gang: bool) -> Dva {
        assert!(
            offset.is_multiple_of(512) && asize.is_multiple_of(512) && asize >> 9 < 1 << 24 && vdev.0 < 1 << 24,
            "DVA out of range"
        );
        Dva { w0: (asize >> 9) | u64::from(vdev.0) << 32, w1: (offset >> 9) | u64::from(gang) << 63 }
    }
    /// The top-level vdev.
    pub fn vdev(self) -> VdevId {
        VdevId((self.w0 >> 32) as u32 & 0xff_ffff)
    }
    /// Bytes from the start of the vdev's allocatable space. A field of all ones does not fit in 64
    /// bits as bytes; [`Blkptr::validate`] refuses it.
    pub fn offset(self) -> u64 {
        self.w1 << 9
    }
    /// Allocated bytes, parity and padding included; of a gang header its children's as well.
    pub fn asize(self) -> u64 {
        (self.w0 & 0xff_ffff) << 9
    }
    /// Whether a gang header is here instead of data.
    pub fn gang(self) -> bool {
        self.w1 >> 63 != 0
    }
    /// Whether there is no copy here.
    pub fn is_empty(self) -> bool {
        self.w0 == 0 && self.w1 == 0
    }
}

impl fmt::Debug for Dva {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:x}:{:x}{}", self.vdev(), self.offset(), self.asize(), if self.gang() { ":gang" } else { "" })
    }
}
impl fmt::Display for Dva {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:x}:{:x}", self.vdev(), self.offset(), self.asize())
    }
}

/// A block pointer. See the module comment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Blkptr(pub [u64; 16]);

/// The limits of [`Blkptr::validate`] for a pointer read from disk.
#[derive(Clone, Copy, Debug)]
pub struct BpLimits<'a> {
    /// Largest logical size to accept, in bytes.
    pub max_block: u64,
    /// Allocatable bytes of each top-level vdev by id; 0 for an id without one. Empty: places are
    /// not checked.
    pub vdev_sizes: &'a [u64],
    /// No block may be born later than this.
    pub max_birth: Txg,
}

impl BpLimits<'_> {
    /// The limits of the format itself.
    pub const FORMAT: BpLimits<'static> = BpLimits { max_block: MAX_BLOCK, vdev_sizes: &[], max_birth: Txg(u64::MAX) };
}

impl Blkptr {
    /// A hole that never was anything else: all zero.
    pub const fn hole() -> Blkptr {
        Blkptr([0; 16])
    }
    /// A hole that took the place of a block in `birth` (feature hole_birth, format page 02 section
    /// 1).
    pub fn punched_hole(lsize: u64, otype: ObjectType, level: u8, birth: Txg) -> Blkptr {
        let mut bp = Blkptr::hole();
        bp.set_lsize(lsize);
        bp.set_otype(otype);
        bp.set_level(level);
        bp.0[W_BIRTH] = birth.0;
        bp
    }
    /// An embedded pointer that carries `payload` (at most [`EMBEDDED_MAX`] bytes, at least one),
    /// which decompresses by `compress` to `lsize` bytes.
    pub fn embedded(payload: &[u8], lsize: u64, compress: u8, otype: ObjectType, level: u8, birth: Txg) -> Blkptr {
        assert!(!payload.is_empty() && payload.len() <= EMBEDDED_MAX, "embedded payload of {} bytes", payload.len());
        assert!(lsize > 0 && lsize <= 1 << 25, "embedded lsize {lsize}");
        let mut raw = [0u8; EMBEDDED_MAX];
        raw[..payload.len()].copy_from_slice(payload);
        let words: [u64; 14] = le64_words(&raw);
        let mut bp = Blkptr::hole();
        for (w, i) in words.into_iter().zip(PAYLOAD_WORDS) {
            bp.0[i] = w;
        }
        bp.0[W_PROP] =
            (lsize - 1) | (payload.len() as u64 - 1) << 25 | u64::from(compress & 0x7f) << 32 | 1 << 39 | 1 << 63;
        bp.set_otype(otype);
        bp.set_level(level);
        bp.0[W_BIRTH] = birth.0;
        bp
    }

    /// The pointer in 128 bytes.
    pub fn from_bytes(b: &[u8; BLKPTR_SIZE]) -> Blkptr {
        Blkptr(le64_words(b))
    }
    /// The pointer at the start of `b`. Fails only when `b` is shorter than a pointer;
    /// [`Blkptr::validate`] checks its fields.
    pub fn parse(b: &[u8]) -> Result<Blkptr> {
        Blkptr::at(b, 0)
            .ok_or_else(|| Error::corrupt(format!("a block pointer needs 128 bytes, {} are there", b.len())))
    }
    /// Pointer number `index` of an indirect block, or `None` past its end.
    #[inline]
    pub fn at(block: &[u8], index: usize) -> Option<Blkptr> {
        get(block, index.checked_mul(BLKPTR_SIZE)?, BLKPTR_SIZE).map(|b| Blkptr(le64_words(b)))
    }
    /// All pointers of an indirect block in order.
    #[inline]
    pub fn iter_block(block: &[u8]) -> impl Iterator<Item = Blkptr> + '_ {
        block.chunks_exact(BLKPTR_SIZE).map(|b| Blkptr(le64_words(b)))
    }
    /// Stores the pointer in the first 128 bytes of `out`.
    pub fn write_to(&self, out: &mut [u8]) {
        put_le64_words(out, &self.0);
    }
    /// The pointer as bytes.
    pub fn to_bytes(&self) -> [u8; BLKPTR_SIZE] {
        let mut b = [0; BLKPTR_SIZE];
        self.write_to(&mut b);
        b
    }

    fn bits(&self, low: u32, len: u32) -> u64 {
        self.0[W_PROP] >> low & ((1 << len) - 1)
    }
    fn set_bits(&mut self, low: u32, len: u32, v: u64) {
        let mask = ((1u64 << len) - 1) << low;
        assert!(v < 1 << len, "value {v} does not fit its {len} bits of a block pointer");
        self.0[W_PROP] = self.0[W_PROP] & !mask | v << low;
    }

    /// Whether the payload is in the pointer itself.
    pub fn is_embedded(&self) -> bool {
        self.bits(39, 1) != 0
    }
    /// The embedded type: 0 data, 1 reserved, 2 a redacted block without payload. Meaningful only
    /// for embedded pointers.
    pub fn embedded_type(&self) -> u8 {
        self.bits(40, 8) as u8
    }
    /// Whether this is a block that redaction removed.
    pub fn is_redacted(&self) -> bool {
        self.is_embedded() && self.embedded_type() == 2
    }
    /// Whether nothing is stored.
    pub fn is_hole(&self) -> bool {
        !self.is_embedded() && self.0[0] == 0 && self.0[1] == 0
    }
    /// Whether the DVAs name gang headers.
    pub fn is_gang(&self) -> bool {
        !self.is_embedded() && self.0[1] >> 63 != 0
    }
    /// Whether DVA 2, the fill's upper half and half the checksum hold encryption parameters rather
    /// than their usual content.
    pub fn is_encrypted_data(&self) -> bool {
        self.encrypted() && self.level() == 0 && self.otype().is_encrypted_ok()
    }
    /// Copy `i` (0 to 2), empty when there is none. Not meaningful for embedded pointers.
    pub fn dva(&self, i: usize) -> Dva {
        Dva { w0: self.0[2 * i], w1: self.0[2 * i + 1] }
    }
    /// The copies, first one first; none for holes and embedded pointers.
    pub fn dvas(&self) -> impl DoubleEndedIterator<Item = Dva> + ExactSizeIterator + use<> {
        let bp = *self;
        (0..self.ndvas()).map(move |i| bp.dva(i))
    }
    /// Number of copies. A gap ends the count.
    pub fn ndvas(&self) -> usize {
        if self.is_embedded() {
            return 0;
        }
        let max = if self.is_encrypted_data() { 2 } else { 3 };
        (0..max).take_while(|&i| !self.dva(i).is_empty()).count()
    }
    /// Logical size in bytes; 0 for a hole that never was a block.
    pub fn lsize(&self) -> u64 {
        if self.is_embedded() {
            self.bits(0, 25) + 1
        } else if self.is_hole() && self.0[W_PROP] == 0 {
            0
        } else {
            (self.bits(0, 16) + 1) << 9
        }
    }
    /// Bytes stored, before allocation rounding; 0 for holes and embedded pointers.
    pub fn psize(&self) -> u64 {
        if self.is_embedded() || self.is_hole() { 0 } else { (self.bits(16, 16) + 1) << 9 }
    }
    /// Bytes of the embedded payload.
    pub fn embedded_psize(&self) -> usize {
        self.bits(25, 7) as usize + 1
    }
    /// The payload of an embedded pointer and how many bytes of it count (clipped to the maximum).
    pub fn payload(&self) -> ([u8; EMBEDDED_MAX], usize) {
        let mut raw = [0u8; EMBEDDED_MAX];
        let words = PAYLOAD_WORDS.map(|i| self.0[i]);
        put_le64_words(&mut raw, &words);
        (raw, self.embedded_psize().min(EMBEDDED_MAX))
    }
    /// The compression number (format page 02 section 4).
    pub fn compress_raw(&self) -> u8 {
        self.bits(32, 7) as u8
    }
    /// The checksum number (format page 02 section 3); "off" for embedded pointers.
    pub fn checksum_raw(&self) -> u8 {
        if self.is_embedded() { CHECKSUM_OFF } else { self.bits(40, 8) as u8 }
    }
    /// The compression algorithm; `None` for an undefined number.
    pub fn compress(&self) -> Option<CompressAlgo> {
        CompressAlgo::from_u8(self.compress_raw())
    }
    /// The checksum algorithm; `None` for an undefined number.
    pub fn checksum_algo(&self) -> Option<ChecksumAlgo> {
        ChecksumAlgo::from_u8(self.checksum_raw())
    }
    /// The checksum.
    pub fn checksum(&self) -> Checksum {
        Checksum(self.checksum_words())
    }
    /// The four checksum words.
    pub fn checksum_words(&self) -> [u64; 4] {
        [self.0[W_CKSUM], self.0[W_CKSUM + 1], self.0[W_CKSUM + 2], self.0[W_CKSUM + 3]]
    }
    /// The type of the object that the block belongs to.
    pub fn otype(&self) -> ObjectType {
        ObjectType(self.bits(48, 8) as u8)
    }
    /// 0 for data, above it the height of the indirect block.
    pub fn level(&self) -> u8 {
        self.bits(56, 5) as u8
    }
    /// Whether the block's content was written little-endian.
    pub fn is_little_endian(&self) -> bool {
        self.bits(63, 1) != 0
    }
    /// Whether the block must be converted with [`crate::byteswap::swap_block`] once read and
    /// decompressed.
    pub fn needs_swap(&self) -> bool {
        !self.is_hole() && !self.is_little_endian()
    }
    /// Whether a dedup table counts references to the block.
    pub fn dedup(&self) -> bool {
        self.bits(62, 1) != 0
    }
    /// Whether the block is encrypted or authenticated.
    pub fn encrypted(&self) -> bool {
        self.bits(61, 1) != 0
    }
    /// Txg in which the pointer got its space, as snapshots see it: a snapshot of an earlier txg
    /// does not reference the block. It is the physical birth of a rewritten block, else the
    /// logical one.
    pub fn birth(&self) -> Txg {
        if self.is_rewritten() { self.phys_birth() } else { self.logical_birth() }
    }
    /// Txg in which the content last changed; of a hole, in which it was made (0: not known).
    pub fn logical_birth(&self) -> Txg {
        Txg(self.0[W_BIRTH])
    }
    /// Txg in which the bytes reached their place: the logical birth unless the block was rewritten
    /// or dedup, cloning or device removal changed it.
    pub fn phys_birth(&self) -> Txg {
        if self.is_embedded() || self.0[W_PHYS_BIRTH] == 0 { self.logical_birth() } else { Txg(self.0[W_PHYS_BIRTH]) }
    }
    /// Whether the block was written anew without a change of its content (bit R, feature
    /// physical_rewrite).
    pub fn is_rewritten(&self) -> bool {
        !self.is_embedded() && self.0[W_REWRITTEN] & REWRITTEN != 0
    }
    /// Fill count: non-hole level-0 blocks below, or dnodes for a meta-dnode (format page 02
    /// section 1).
    pub fn fill(&self) -> u64 {
        if self.is_embedded() {
            1
        } else if self.is_hole() {
            0
        } else if self.is_encrypted_data() {
            self.0[W_FILL] & 0xffff_ffff
        } else {
            self.0[W_FILL]
        }
    }
    /// Salt and IV of a block for which [`Blkptr::is_encrypted_data`] holds (format page 02 section
    /// 8).
    pub fn salt_iv(&self) -> ([u8; 8], [u8; 12]) {
        let mut iv = [0u8; 12];
        iv[..8].copy_from_slice(&self.0[5].to_le_bytes());
        iv[8..].copy_from_slice(&((self.0[W_FILL] >> 32) as u32).to_le_bytes());
        (self.0[4].to_le_bytes(), iv)
    }

    /// Sets salt and IV of a block for which [`Blkptr::is_encrypted_data`] holds. The lower half of
    /// the fill stays.
    pub fn set_salt_iv(&mut self, salt: [u8; 8], iv: [u8; 12]) {
        assert!(self.is_encrypted_data(), "only encrypted data has a salt");
        let (high, low) = iv.split_at(8);
        self.0[4] = u64::from_le_bytes(salt);
        self.0[5] = u64::from_le_bytes(high.try_into().expect("8 bytes"));
        let low = u32::from_le_bytes(low.try_into().expect("4 bytes"));
        self.0[W_FILL] = self.0[W_FILL] & 0xffff_ffff | u64::from(low) << 32;
    }
    /// The tag, MAC or hash in the pointer of a block of an encrypted dataset; not meaningful for
    /// object sets.
    pub fn mac(&self) -> [u8; 16] {
        let mut mac = [0; 16];
        mac[..8].copy_from_slice(&self.0[W_CKSUM + 2].to_le_bytes());
        mac[8..].copy_from_slice(&self.0[W_CKSUM + 3].to_le_bytes());
        mac
    }
    /// Sets the tag, MAC or hash.
    pub fn set_mac(&mut self, mac: [u8; 16]) {
        let (a, b) = mac.split_at(8);
        self.0[W_CKSUM + 2] = u64::from_le_bytes(a.try_into().expect("8 bytes"));
        self.0[W_CKSUM + 3] = u64::from_le_bytes(b.try_into().expect("8 bytes"));
    }
    /// The word of properties as it is.
    pub fn prop_word(&self) -> u64 {
        self.0[W_PROP]
    }

    /// Sets copy `i` (0 to 2).
    pub fn set_dva(&mut self, i: usize, dva: Dva) {
        assert!(i < 3);
        self.0[2 * i] = dva.w0;
        self.0[2 * i + 1] = dva.w1;
    }
    /// Sets the logical size: a multiple of 512 up to 32 MiB. Not for embedded pointers.
    pub fn set_lsize(&mut self, lsize: u64) {
        assert!(lsize != 0 && lsize.is_multiple_of(512), "lsize {lsize}");
        self.set_bits(0, 16, (lsize >> 9) - 1);
    }
    /// Sets the stored size: a multiple of 512 up to 32 MiB. Not for embedded pointers.
    pub fn set_psize(&mut self, psize: u64) {
        assert!(psize != 0 && psize.is_multiple_of(512), "psize {psize}");
        self.set_bits(16, 16, (psize >> 9) - 1);
    }
    /// Sets the compression number.
    pub fn set_compress(&mut self, compress: u8) {
        self.set_bits(32, 7, u64::from(compress));
    }
    /// Sets the checksum number.
    pub fn set_checksum(&mut self, checksum: u8) {
        self.set_bits(40, 8, u64::from(checksum));
    }
    /// Sets the checksum words.
    pub fn set_checksum_words(&mut self, words: [u64; 4]) {
        self.0[W_CKSUM..].copy_from_slice(&words);
    }
    /// Sets the object type.
    pub fn set_otype(&mut self, otype: ObjectType) {
        self.set_bits(48, 8, u64::from(otype.0));
    }
    /// Sets the level.
    pub fn set_level(&mut self, level: u8) {
        self.set_bits(56, 5, u64::from(level));
    }
    /// Sets whether the content is little-endian.
    pub fn set_little_endian(&mut self, le: bool) {
        self.set_bits(63, 1, u64::from(le));
    }
    /// Sets the dedup bit.
    pub fn set_dedup(&mut self, dedup: bool) {
        self.set_bits(62, 1, u64::from(dedup));
    }
    /// Sets the encryption bit.
    pub fn set_encrypted(&mut self, encrypted: bool) {
        self.set_bits(61, 1, u64::from(encrypted));
    }
    /// Sets logical and physical birth; the latter is stored only where it differs.
    pub fn set_birth(&mut self, birth: Txg, phys: Txg) {
        self.0[W_BIRTH] = birth.0;
        self.0[W_PHYS_BIRTH] = if phys == birth { 0 } else { phys.0 };
    }
    /// Makes the pointer, which was written in `txg`, that of a rewritten block whose content is of
    /// `logical`. Not for holes and embedded pointers.
    pub fn set_rewritten(&mut self, logical: Txg, txg: Txg) {
        assert!(!self.is_hole() && !self.is_embedded(), "a rewritten block is stored somewhere");
        self.set_birth(logical, txg);
        self.0[W_REWRITTEN] |= REWRITTEN;
    }
    /// The pointer of a clone of this block, born in `txg`: all else stays, the place with it, and
    /// so does the txg that wrote it; a clone is not a rewritten block (format pages 17 section 5,
    /// 18 section 2). A hole without birth stays as it is.
    pub fn cloned_in(&self, txg: Txg) -> Blkptr {
        let mut bp = *self;
        if bp.is_embedded() {
            bp.0[W_BIRTH] = txg.0;
        } else if bp.is_hole() {
            bp.0[W_BIRTH] = if bp.0[W_BIRTH] == 0 { 0 } else { txg.0 };
        } else {
            bp.set_birth(txg, self.phys_birth());
            bp.0[W_REWRITTEN] &= !REWRITTEN;
        }
        bp
    }
    /// Sets the fill count. Of encrypted data only the low half is the count, and the IV's end is
    /// kept.
    pub fn set_fill(&mut self, fill: u64) {
        self.0[W_FILL] =
            if self.is_encrypted_data() { self.0[W_FILL] & !0xffff_ffff | fill & 0xffff_ffff } else { fill };
    }

    /// The pointer as a block pointer list stores it: no fill, and no checksum unless dedup needs
    /// it to find the entry; an embedded one keeps only its properties and birth (format page 05
    /// section 4).
    pub fn for_bpobj(&self) -> Blkptr {
        let mut bp = *self;
        if bp.is_embedded() {
            for i in PAYLOAD_WORDS {
                bp.0[i] = 0;
            }
            return bp;
        }
        bp.0[W_FILL] = 0;
        if !bp.dedup() {
            bp.set_checksum_words([0; 4]);
        }
        bp
    }

    /// The pointer as a livelist stores it: as [`Blkptr::for_bpobj`], with a mark if it says that
    /// the block was freed (format page 15 section 3).
    pub fn for_livelist(&self, freed: bool) -> Blkptr {
        let mut bp = self.for_bpobj();
        bp.0[W_FILL] = u64::from(freed);
        bp
    }

    /// Whether this entry of a livelist says that the block was freed.
    pub fn is_freed_entry(&self) -> bool {
        self.0[W_FILL] & 1 != 0
    }

    /// The block's share of a dataset's uncompressed sum (format page 05 section 5).
    pub fn ucsize(&self) -> u64 {
        let metadata = self.level() > 0 || self.otype().is_metadata();
        if self.is_hole() {
            0
        } else if metadata {
            self.psize()
        } else {
            self.lsize()
        }
    }

    /// Whether both pointers name the same stored bytes: all copies and the physical birth agree.
    pub fn same_place(&self, other: &Blkptr) -> bool {
        self.ndvas() > 0
            && self.0[..6] == other.0[..6]
            && !other.is_embedded()
            && self.phys_birth() == other.phys_birth()
    }

    /// Checks everything about a pointer from disk that does not need its block: numbers are
    /// defined, sizes are legal, copies lie on devices that exist.
    pub fn validate(&self, limits: &BpLimits<'_>) -> Result<()> {
        let bad = |what: &str| Err(Error::corrupt(format!("block pointer {self}: {what}")));
        if !self.otype().is_valid() {
            return bad("unknown object type");
        }
        if self.level() >= MAX_LEVELS {
            return bad("level is too high");
        }
        if self.logical_birth() > limits.max_birth {
            return bad("born in the future");
        }
        if self.is_hole() {
            if self.lsize() > limits.max_block {
                return bad("hole is larger than a block can be");
            }
            return Ok(());
        }
        if self.logical_birth().0 == 0 {
            return bad("no birth txg");
        }
        if !(COMPRESS_OFF..=COMPRESS_MAX).contains(&self.compress_raw()) {
            return bad("unknown compression");
        }
        if self.lsize() > limits.max_block {
            return bad("logical size is larger than a block can be");
        }
        if self.is_embedded() {
            return if self.embedded_type() > 2 {
                bad("unknown embedded type")
            } else if self.level() != 0 || self.otype().has_fill() {
                bad("this block cannot be embedded")
            } else if self.embedded_psize() > EMBEDDED_MAX && !self.is_redacted() {
                bad("embedded payload is too long")
            } else if self.compress_raw() == COMPRESS_OFF
                && self.embedded_psize() as u64 != self.lsize()
                && !self.is_redacted()
            {
                bad("embedded payload is not compressed and not as long as the block")
            } else {
                Ok(())
            };
        }
        if !(CHECKSUM_OFF..=CHECKSUM_MAX).contains(&self.checksum_raw()) {
            return bad("unknown checksum");
        }
        if self.psize() > self.lsize() {
            return bad("stored size is larger than logical size");
        }
        if matches!(self.compress_raw(), COMPRESS_OFF | COMPRESS_EMPTY) && self.psize() != self.lsize() {
            return bad("not compressed, yet stored in fewer bytes");
        }
        if self.0[W_PHYS_BIRTH] > limits.max_birth.0 {
            return bad("physically born in the future");
        }
        self.validate_place(limits)
    }

    /// The part of [`Blkptr::validate`] that checks the DVAs. Alone it is for the records of remap
    /// deadlists, which are pointers with only a DVA and a birth (format page 14 section 5).
    pub fn validate_place(&self, limits: &BpLimits<'_>) -> Result<()> {
        let bad = |what: &str| Err(Error::corrupt(format!("block pointer {self}: {what}")));
        let n = self.ndvas();
        let max = if self.is_encrypted_data() { 2 } else { 3 };
        if (n..max).any(|i| !self.dva(i).is_empty()) {
            return bad("gap between its copies");
        }
        for dva in self.dvas() {
            if dva.gang() != self.is_gang() {
                return bad("some copies are gang blocks and some are not");
            }
            if dva.w1 << 1 >> 1 >= 1 << 55 {
                return bad("offset is beyond any device");
            }
            if dva.asize() == 0 || !dva.gang() && dva.asize() < self.psize() {
                return bad("allocated size is smaller than stored size");
            }
            if !limits.vdev_sizes.is_empty() {
                let size = limits.vdev_sizes.get(dva.vdev().0 as usize).copied().unwrap_or(0);
                let len = if dva.gang() { 512 } else { dva.asize() };
                if size == 0 {
                    return bad("names a device that is not there");
                }
                if dva.offset().checked_add(len).is_none_or(|end| end > size) {
                    return bad("lies beyond the end of its device");
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for Blkptr {
    /// As `zdb` prints a pointer in a block tree.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_embedded() {
            return write!(
                f,
                "EMBEDDED et={} {:x}L/{:x}P B={}",
                self.embedded_type(),
                self.lsize(),
                self.embedded_psize(),
                self.logical_birth()
            );
        }
        for dva in self.dvas() {
            write!(f, "{dva} ")?;
        }
        if self.is_hole() {
            return write!(f, "HOLE {:x}L B={}", self.lsize(), self.logical_birth());
        }
        let [a, b, c, d] = self.checksum_words();
        write!(
            f,
            "{:x}L/{:x}P F={} B={}/{} cksum={a:x}:{b:x}:{c:x}:{d:x}",
            self.lsize(),
            self.psize(),
            self.fill(),
            self.logical_birth(),
            self.phys_birth()
        )
    }
}
impl fmt::Debug for Blkptr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[L{} {}] {self}", self.level(), self.otype())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Blkptr {
        let mut bp = Blkptr::hole();
        bp.set_dva(0, Dva::new(VdevId(3), 0x12_3400 << 9, 4096, false));
        bp.set_dva(1, Dva::new(VdevId(0), 512, 4096, false));
        bp.set_lsize(131072);
        bp.set_psize(4096);
        bp.set_compress(15);
        bp.set_checksum(7);
        bp.set_otype(ObjectType::PLAIN_FILE);
        bp.set_little_endian(true);
        bp.set_birth(Txg(77), Txg(77));
        bp.set_fill(1);
        bp.set_checksum_words([1, 2, 3, 4]);
        bp
    }

    #[test]
    fn fields_do_not_disturb_each_other() {
        let bp = sample();
        assert_eq!((bp.lsize(), bp.psize(), bp.compress_raw(), bp.checksum_raw()), (131072, 4096, 15, 7));
        assert_eq!(
            (bp.ndvas(), bp.dva(0).vdev(), bp.dva(0).offset(), bp.dva(0).asize()),
            (2, VdevId(3), 0x12_3400 << 9, 4096)
        );
        assert_eq!((bp.birth(), bp.phys_birth(), bp.0[9], bp.fill(), bp.ucsize()), (Txg(77), Txg(77), 0, 1, 131072));
        assert!(bp.is_little_endian() && !bp.dedup() && !bp.encrypted() && !bp.is_gang() && !bp.is_hole());
        bp.validate(&BpLimits::FORMAT).unwrap();
        let far = BpLimits { vdev_sizes: &[1 << 20], ..BpLimits::FORMAT };
        assert!(bp.validate(&far).is_err());
        assert_eq!(Blkptr::from_bytes(&bp.to_bytes()), bp);
        assert_eq!(bp.for_bpobj().checksum_words(), [0; 4]);
        assert!(bp.same_place(&bp.for_bpobj()));
        assert!(bp.for_livelist(true).is_freed_entry() && !bp.for_livelist(false).is_freed_entry());
        assert_eq!(bp.for_livelist(false), bp.for_bpobj());
    }

    #[test]
    fn clones_are_born_again_in_the_same_place() {
        let mut bp = sample();
        bp.0[7] = 1 << 63;
        let clone = bp.cloned_in(Txg(100));
        assert_eq!((clone.birth(), clone.phys_birth(), clone.0[7]), (Txg(100), Txg(77), 0));
        assert!(clone.same_place(&bp) && clone.checksum_words() == bp.checksum_words());
        assert_eq!(clone.cloned_in(Txg(101)).phys_birth(), Txg(77));
        let small = Blkptr::embedded(&[7; 100], 4096, 15, ObjectType::PLAIN_FILE, 0, Txg(9));
        let clone = small.cloned_in(Txg(100));
        assert_eq!((clone.birth(), clone.payload()), (Txg(100), small.payload()));
        assert_eq!(Blkptr::hole().cloned_in(Txg(100)), Blkptr::hole());
        let hole = Blkptr::punched_hole(4096, ObjectType::PLAIN_FILE, 0, Txg(9));
        assert_eq!(hole.cloned_in(Txg(100)), Blkptr::punched_hole(4096, ObjectType::PLAIN_FILE, 0, Txg(100)));
    }

    #[test]
    fn a_rewritten_block_has_three_births() {
        let mut bp = sample();
        bp.set_rewritten(Txg(77), Txg(90));
        assert_eq!((bp.logical_birth(), bp.phys_birth(), bp.birth()), (Txg(77), Txg(90), Txg(90)));
        assert!(bp.is_rewritten() && bp.0[7] == 1 << 63);
        bp.validate(&BpLimits::FORMAT).unwrap();
        assert_eq!(bp.for_bpobj().birth(), Txg(90), "a list of blocks keeps what tells births apart");
        // Of a clone, and of a block of a dedup table, the pointer is younger than the bytes.
        let clone = bp.cloned_in(Txg(100));
        assert_eq!((clone.logical_birth(), clone.phys_birth(), clone.birth()), (Txg(100), Txg(90), Txg(100)));
        // A later rewrite of the clone keeps its birth, not that of the source.
        let mut again = clone;
        again.set_rewritten(clone.logical_birth(), Txg(110));
        assert_eq!((again.logical_birth(), again.birth()), (Txg(100), Txg(110)));
        // Embedded pointers have payload where the bit is.
        let small = Blkptr::embedded(&[0xff; 112], 4096, 15, ObjectType::PLAIN_FILE, 0, Txg(9));
        assert!(!small.is_rewritten());
        assert_eq!((small.logical_birth(), small.phys_birth(), small.birth()), (Txg(9), Txg(9), Txg(9)));
    }

    #[test]
    fn holes() {
        assert!(Blkptr::hole().is_hole());
        assert_eq!(Blkptr::hole().lsize(), 0);
        let h = Blkptr::punched_hole(4096, ObjectType::DNODE, 2, Txg(9));
        assert!(h.is_hole());
        assert_eq!((h.lsize(), h.psize(), h.level(), h.birth(), h.ucsize(), h.ndvas()), (4096, 0, 2, Txg(9), 0, 0));
        h.validate(&BpLimits::FORMAT).unwrap();
    }

    proptest! {
        #[test]
        fn embedded_round_trip(payload in proptest::collection::vec(any::<u8>(), 1..=112), birth in 1u64..1 << 40) {
            let bp = Blkptr::embedded(&payload, 131072, 15, ObjectType::PLAIN_FILE, 0, Txg(birth));
            let (raw, len) = bp.payload();
            prop_assert_eq!(&raw[..len], &payload[..]);
            prop_assert!(raw[len..].iter().all(|&b| b == 0));
            prop_assert!(bp.is_embedded() && !bp.is_hole() && !bp.is_gang());
            prop_assert_eq!((bp.lsize(), bp.psize(), bp.birth(), bp.ndvas(), bp.fill()), (131072, 0, Txg(birth), 0, 1));
            bp.validate(&BpLimits::FORMAT).unwrap();
            prop_assert_eq!(bp.for_bpobj().birth(), Txg(birth));
        }

        #[test]
        fn hostile_pointers_never_panic(words in any::<[u64; 16]>()) {
            let bp = Blkptr(words);
            let sizes = [1 << 30, 0, 1 << 20];
            let _ = bp.validate(&BpLimits { vdev_sizes: &sizes, ..BpLimits::FORMAT });
            let _ = format!("{bp} {bp:?}");
            let _ = (bp.payload(), bp.ucsize(), bp.for_bpobj(), bp.salt_iv(), bp.fill(), bp.birth(), bp.needs_swap());
            prop_assert_eq!(Blkptr::parse(&bp.to_bytes()).unwrap(), bp);
        }
    }
}
