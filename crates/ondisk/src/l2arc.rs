//! What a cache device holds beside its labels: the device header, log blocks and their entries
//! (format page 22).
//!
//! A device is a ring of addresses, bytes from its beginning. Buffers are written one after the
//! other; after each [`DevHeader::log_entries`] of them a log block names them, so that they are
//! found again after an import. Log blocks are two chains that alternate, headed by the two
//! pointers of the device header. Nothing here is needed to read a pool: what does not fit is an
//! error, and the cache begins empty.

use base::{Error, ErrorKind, Guid, Result, Txg};
use codec::{ChecksumAlgo, CompressAlgo, Compression, Endian};

use crate::blkptr::Dva;
use crate::bytes::{le64, le64_words, put_le64, put_le64_words};
use crate::byteswap::swap_ints;
use crate::label::DATA_START;

/// Where the device header is: behind the first two labels and the boot area.
pub const HEADER_OFFSET: u64 = DATA_START;
/// Bytes of the header's fields; what is written is a sector, at least this.
pub const HEADER_SIZE: usize = 512;
/// The largest sector of a header: a unit of 2^16 bytes.
pub const HEADER_MAX: usize = 1 << 16;
/// Bytes of an unpacked log block.
pub const LOG_BLOCK_SIZE: usize = 64 << 10;
/// Most entries of a log block.
pub const LOG_ENTRIES_MAX: u64 = 1022;
/// The version of header and log blocks.
const VERSION: u64 = 1;
const HEADER_MAGIC: u64 = 0x5a46_5343_4143_4845;
const LOG_MAGIC: u64 = 0x4c4f_4742_4c4b_4844;
/// Flag of the header: the device was not filled once yet.
const FIRST_SWEEP: u64 = 1;
const POINTER_SIZE: usize = 64;
const ENTRY_SIZE: usize = 64;
/// Where the entries of a log block begin.
const ENTRIES_AT: usize = 128;

/// The word of properties in pointers to log blocks and in entries.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Prop(pub u64);

impl Prop {
    /// Those of stored content: sizes in bytes, multiples of 512 up to 32 MiB.
    ///
    /// # Panics
    /// If a size is out of range.
    pub fn new(lsize: u64, psize: u64, compress: u8) -> Prop {
        let field = |size: u64| {
            assert!(size != 0 && size.is_multiple_of(512) && size >> 9 <= 1 << 16, "{size} bytes cannot be noted");
            (size >> 9) - 1
        };
        Prop(field(lsize) | field(psize) << 16 | u64::from(compress & 0x7f) << 32)
    }
    fn bits(self, shift: u32, count: u32) -> u64 {
        self.0 >> shift & ((1 << count) - 1)
    }
    /// Bytes unpacked.
    pub fn lsize(self) -> u64 {
        (self.bits(0, 16) + 1) << 9
    }
    /// Bytes stored; of a log block with the zeros that fill its last sector.
    pub fn psize(self) -> u64 {
        (self.bits(16, 16) + 1) << 9
    }
    /// The number of the compression.
    pub fn compress(self) -> u8 {
        self.bits(32, 7) as u8
    }
    /// The block was read ahead and not wanted yet.
    pub fn is_prefetched(self) -> bool {
        self.bits(39, 1) != 0
    }
    /// The number of the checksum.
    pub fn checksum(self) -> u8 {
        self.bits(40, 8) as u8
    }
    /// Whether the block is metadata.
    pub fn is_metadata(self) -> bool {
        self.bits(48, 8) == 2
    }
    /// Whether it is encrypted or authenticated.
    pub fn is_protected(self) -> bool {
        self.bits(56, 1) != 0
    }
    /// The list of the cache in memory that it came from: 1 recent, 3 frequent.
    pub fn list(self) -> u8 {
        self.bits(57, 4) as u8
    }
    /// With the number of a checksum.
    #[must_use]
    pub fn with_checksum(self, checksum: u8) -> Prop {
        Prop(self.0 & !(0xff << 40) | u64::from(checksum) << 40)
    }
    /// With what entries say of the block.
    #[must_use]
    pub fn with_content(self, is_metadata: bool, is_protected: bool, list: u8) -> Prop {
        let kind = if is_metadata { 2 } else { 1 };
        let rest = self.0 & !(0x1fff << 48);
        Prop(rest | kind << 48 | u64::from(is_protected) << 56 | u64::from(list & 15) << 57)
    }
}

/// A pointer to a log block.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LogPtr {
    /// Its address.
    pub addr: u64,
    /// Bytes on the device of the buffers that it lists.
    pub payload_asize: u64,
    /// The address of the first of them.
    pub payload_start: u64,
    /// Sizes, compression and checksum of the log block.
    pub prop: Prop,
    /// Fletcher-4 over the log block as it is stored.
    pub checksum: [u64; 4],
}

/// The addresses that decide which log blocks count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ring {
    /// The first address for buffers.
    pub start: u64,
    /// The first address after them.
    pub end: u64,
    /// The next address that is written.
    pub hand: u64,
    /// The address up to which older content was given up.
    pub evict: u64,
    /// The device was not filled once yet.
    pub first: bool,
}

/// Whether `at` lies between two addresses of a ring, going round.
fn is_between(bottom: u64, top: u64, at: u64) -> bool {
    match bottom.cmp(&top) {
        std::cmp::Ordering::Less => bottom <= at && at <= top,
        std::cmp::Ordering::Greater => at <= top || bottom <= at,
        std::cmp::Ordering::Equal => at == top,
    }
}

impl LogPtr {
    fn parse(b: &[u8]) -> LogPtr {
        let [addr, payload_asize, payload_start, prop, a, b, c, d] = le64_words::<8>(b);
        LogPtr { addr, payload_asize, payload_start, prop: Prop(prop), checksum: [a, b, c, d] }
    }
    fn write_to(&self, b: &mut [u8]) {
        let [k, l, m, n] = self.checksum;
        put_le64_words(b, &[self.addr, self.payload_asize, self.payload_start, self.prop.0, k, l, m, n]);
    }
    /// Bytes of the log block on the device.
    pub fn asize(&self) -> u64 {
        self.prop.psize()
    }
    /// Whether it points to a log block that is within the ring and not given up, with all that it
    /// lists (`l2arc_log_blkptr_valid` of 2.4). After the first sweep what it lists may go round
    /// the end of the ring.
    pub fn is_valid(&self, ring: &Ring) -> bool {
        let (asize, from) = (self.asize(), self.payload_start);
        let Some(last) = self.addr.checked_add(asize - 1) else { return false };
        if asize > LOG_BLOCK_SIZE as u64 || from < ring.start || last > ring.end {
            return false;
        }
        if ring.first {
            return from <= self.addr && last < ring.hand;
        }
        let is_within = |at| is_between(from, last, at);
        let is_given_up = |at| is_between(ring.hand, ring.evict, at);
        !is_within(ring.hand) && !is_within(ring.evict) && !is_given_up(from) && !is_given_up(last)
    }
}

/// The header of a cache device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DevHeader {
    /// The pool.
    pub pool: Guid,
    /// The device.
    pub vdev: Guid,
    /// Entries in each log block; 0: there are no log blocks.
    pub log_entries: u64,
    /// [`Ring::evict`].
    pub evict: u64,
    /// [`Ring::first`].
    pub first: bool,
    /// [`Ring::start`].
    pub start: u64,
    /// [`Ring::end`].
    pub end: u64,
    /// Pointers to the newest log block and to the one before.
    pub log: [LogPtr; 2],
    /// Bytes on the device of the log blocks that count.
    pub log_asize: u64,
    /// How many these are.
    pub log_count: u64,
    /// When the whole device was trimmed last.
    pub trim_time: u64,
    /// The state of that trim; 0: none, 4: complete.
    pub trim_state: u64,
}

impl DevHeader {
    /// Parses a header of exactly the bytes that are written: a sector, 512 bytes at least. Errors:
    /// `Checksum`, or `Corrupt` for another kind of block or version.
    pub fn parse(block: &[u8]) -> Result<DevHeader> {
        if block.len() < HEADER_SIZE {
            return Err(Error::corrupt(format!("a device header of {} bytes", block.len())));
        }
        let mut b = [0; HEADER_SIZE];
        b.copy_from_slice(&block[..HEADER_SIZE]);
        if codec::embedded_sha256_verify(block, [HEADER_OFFSET, 0, 0, 0])? == Endian::Big {
            swap_ints::<8>(&mut b);
        }
        if le64(&b, 0) != HEADER_MAGIC || le64(&b, 8) != VERSION {
            return Err(Error::corrupt("no header of a cache device, or one of another version"));
        }
        Ok(DevHeader {
            pool: Guid(le64(&b, 16)),
            vdev: Guid(le64(&b, 24)),
            log_entries: le64(&b, 32),
            evict: le64(&b, 40),
            first: le64(&b, 48) & FIRST_SWEEP != 0,
            start: le64(&b, 56),
            end: le64(&b, 64),
            log: [LogPtr::parse(&b[72..]), LogPtr::parse(&b[72 + POINTER_SIZE..])],
            log_asize: le64(&b, 200),
            log_count: le64(&b, 208),
            trim_time: le64(&b, 216),
            trim_state: le64(&b, 224),
        })
    }

    /// Fills `block`, a sector of 512 bytes at least, with the header and its checksum.
    ///
    /// # Panics
    /// If the block is shorter.
    pub fn write_to(&self, block: &mut [u8]) {
        assert!(block.len() >= HEADER_SIZE, "a device header takes {HEADER_SIZE} bytes");
        block.fill(0);
        let flags = if self.first { FIRST_SWEEP } else { 0 };
        let head = [HEADER_MAGIC, VERSION, self.pool.0, self.vdev.0, self.log_entries, self.evict, flags];
        put_le64_words(block, &head);
        put_le64_words(&mut block[56..], &[self.start, self.end]);
        self.log[0].write_to(&mut block[72..]);
        self.log[1].write_to(&mut block[72 + POINTER_SIZE..]);
        put_le64_words(&mut block[200..], &[self.log_asize, self.log_count, self.trim_time, self.trim_state]);
        codec::embedded_sha256_seal(block, [HEADER_OFFSET, 0, 0, 0]);
    }
}

/// How many entries a log block of a device has whose ring takes `bytes` bytes; 0 for a device
/// below `least` bytes, which keeps nothing over an import (`l2arc_rebuild_blocks_min_l2size`).
pub fn entries_of(bytes: u64, least: u64) -> u64 {
    if bytes < least { 0 } else { (bytes >> 24).min(LOG_ENTRIES_MAX) }
}

/// A buffer on the device, as a log block lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogEntry {
    /// The first copy of the block.
    pub dva: Dva,
    /// Its physical birth.
    pub birth: Txg,
    /// Sizes, compression, content.
    pub prop: Prop,
    /// The address of the buffer.
    pub addr: u64,
    /// The level byte of zstd.
    pub level: u64,
}

/// A log block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogBlock {
    /// The log block two before this one.
    pub prev: LogPtr,
    /// What it lists, from the lowest address to the highest.
    pub entries: Vec<LogEntry>,
}

impl LogBlock {
    /// The block as it is stored, filled with zeros to a multiple of `sector` bytes, and its sizes,
    /// compression and checksum.
    ///
    /// # Panics
    /// If there are more than [`LOG_ENTRIES_MAX`] entries.
    pub fn pack(&self, sector: usize) -> (Vec<u8>, Prop, [u64; 4]) {
        assert!(self.entries.len() as u64 <= LOG_ENTRIES_MAX, "a log block has {LOG_ENTRIES_MAX} entries at most");
        let mut b = vec![0; LOG_BLOCK_SIZE];
        put_le64(&mut b, 0, LOG_MAGIC);
        self.prev.write_to(&mut b[8..]);
        for (entry, to) in self.entries.iter().zip(b[ENTRIES_AT..].chunks_exact_mut(ENTRY_SIZE)) {
            let words = [entry.dva.w0, entry.dva.w1, entry.birth.0, entry.prop.0, entry.addr, entry.level];
            put_le64_words(to, &words);
        }
        let mut algo = CompressAlgo::Off;
        let mut packed = vec![0; LOG_BLOCK_SIZE];
        let limit = LOG_BLOCK_SIZE.saturating_sub(sector);
        if let Some(len) = codec::compress(Compression { algo: CompressAlgo::Lz4, level: 0 }, &b, &mut packed, limit) {
            packed[len..].fill(0);
            packed.truncate(len.next_multiple_of(sector));
            (b, algo) = (packed, CompressAlgo::Lz4);
        }
        let sum = fletcher4(&b);
        let prop = Prop::new(LOG_BLOCK_SIZE as u64, b.len() as u64, algo as u8);
        (b, prop.with_checksum(ChecksumAlgo::Fletcher4 as u8), sum)
    }

    /// The log block behind `ptr`, whose stored bytes these are, with `count` entries at most.
    /// Errors: `Checksum`, `Corrupt`.
    pub fn unpack(stored: &[u8], ptr: &LogPtr, count: u64) -> Result<LogBlock> {
        if fletcher4(stored) != ptr.checksum {
            return Err(Error::new(ErrorKind::Checksum, "wrong checksum of a log block"));
        }
        let mut b = vec![0; LOG_BLOCK_SIZE];
        match CompressAlgo::from_u8(ptr.prop.compress()) {
            Some(algo @ (CompressAlgo::Off | CompressAlgo::Lz4)) => codec::decompress(algo, stored, &mut b)?,
            _ => return Err(Error::corrupt("a log block that is compressed in another way than with LZ4")),
        }
        match le64(&b, 0) {
            LOG_MAGIC => {}
            magic if magic == LOG_MAGIC.swap_bytes() => swap_ints::<8>(&mut b),
            _ => return Err(Error::corrupt("no log block")),
        }
        let count = count.min(LOG_ENTRIES_MAX) as usize;
        let entries = b[ENTRIES_AT..].chunks_exact(ENTRY_SIZE).take(count).map(|e| {
            let [w0, w1, birth, prop, addr, level] = le64_words::<6>(e);
            LogEntry { dva: Dva { w0, w1 }, birth: Txg(birth), prop: Prop(prop), addr, level }
        });
        Ok(LogBlock { prev: LogPtr::parse(&b[8..]), entries: entries.collect() })
    }
}

fn fletcher4(b: &[u8]) -> [u64; 4] {
    codec::compute(ChecksumAlgo::Fletcher4, b, false, None).map(|sum| sum.0).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn pointer() -> impl Strategy<Value = LogPtr> {
        (any::<[u64; 3]>(), any::<u64>(), any::<[u64; 4]>()).prop_map(|([addr, payload_asize, payload_start], p, c)| {
            LogPtr { addr, payload_asize, payload_start, prop: Prop(p), checksum: c }
        })
    }

    fn entry() -> impl Strategy<Value = LogEntry> {
        any::<[u64; 6]>().prop_map(|[w0, w1, birth, prop, addr, level]| LogEntry {
            dva: Dva { w0, w1 },
            birth: Txg(birth),
            prop: Prop(prop),
            addr,
            level,
        })
    }

    proptest! {
        #[test]
        fn headers_come_back(w in any::<[u64; 8]>(), first: bool, a in pointer(), b in pointer(), big in 0u32..8) {
            let [pool, vdev, log_entries, evict, start, end, log_asize, log_count] = w;
            let header = DevHeader {
                pool: Guid(pool), vdev: Guid(vdev), log_entries, evict, first, start, end, log: [a, b], log_asize,
                log_count, trim_time: 7, trim_state: 4,
            };
            let mut block = vec![1; 512 << big];
            header.write_to(&mut block);
            prop_assert_eq!(DevHeader::parse(&block).unwrap(), header);
            // Any other byte is noticed.
            let at = (w[0] % block.len() as u64) as usize;
            block[at] ^= 1 << (w[1] % 8);
            prop_assert!(DevHeader::parse(&block).is_err());
        }

        #[test]
        fn log_blocks_come_back(prev in pointer(), entries in prop::collection::vec(entry(), 0..1023), shift in 9u32..14) {
            let block = LogBlock { prev, entries };
            let (stored, prop, checksum) = block.pack(1 << shift);
            prop_assert_eq!(stored.len() as u64, prop.psize());
            prop_assert!(stored.len().is_multiple_of(1 << shift) && stored.len() <= LOG_BLOCK_SIZE);
            let ptr = LogPtr { prop, checksum, ..LogPtr::default() };
            let count = block.entries.len() as u64;
            prop_assert_eq!(&LogBlock::unpack(&stored, &ptr, count).unwrap(), &block);
            let mut wrong = stored.clone();
            wrong[count as usize % stored.len()] ^= 4;
            prop_assert!(LogBlock::unpack(&wrong, &ptr, count).is_err());
        }

        #[test]
        fn hostile_bytes_are_errors(bytes in prop::collection::vec(any::<u8>(), 0..2000), p in pointer(), ring in any::<[u64; 4]>(), first: bool) {
            prop_assert!(DevHeader::parse(&bytes).is_err());
            let honest = LogPtr { checksum: fletcher4(&bytes), ..p };
            let _ = LogBlock::unpack(&bytes, &honest, u64::MAX);
            let [start, end, hand, evict] = ring;
            let ring = Ring { start, end, hand, evict, first };
            if p.is_valid(&ring) {
                prop_assert!(p.payload_start >= start && p.addr + p.asize() - 1 <= end);
            }
        }

        #[test]
        fn properties_keep_their_places(l in 1u64..=1 << 16, p in 1u64..=1 << 16, c in 0u8..128, meta: bool, sealed: bool, list in 0u8..16) {
            let prop = Prop::new(l << 9, p << 9, c).with_checksum(7).with_content(meta, sealed, list);
            prop_assert_eq!((prop.lsize(), prop.psize(), prop.compress(), prop.checksum()), (l << 9, p << 9, c, 7));
            prop_assert_eq!((prop.is_metadata(), prop.is_protected(), prop.list()), (meta, sealed, list));
            prop_assert!(!prop.is_prefetched());
        }
    }

    /// The cases of the rule by hand: 100 to 1,000 is the ring, a log block of 512 bytes.
    #[test]
    fn pointers_count_until_they_are_given_up() {
        let ptr = |from: u64, addr: u64| LogPtr {
            addr,
            payload_start: from,
            prop: Prop::new(512, 512, 2),
            ..LogPtr::default()
        };
        let ring = |hand, evict, first| Ring { start: 4096, end: 40_960, hand, evict, first };
        let first = ring(10_000, 4096, true);
        assert!(ptr(4096, 8192).is_valid(&first));
        assert!(!ptr(4096, 9728).is_valid(&first), "it ends behind the hand");
        assert!(!ptr(0, 8192).is_valid(&first), "a pointer of zeros begins before the ring");
        assert!(!ptr(9000, 8192).is_valid(&first), "it begins behind its own log block");
        let later = ring(10_000, 20_000, false);
        assert!(ptr(4096, 8192).is_valid(&later), "before the hand");
        assert!(ptr(20_480, 30_720).is_valid(&later), "behind what is given up");
        assert!(!ptr(9728, 10_240).is_valid(&later), "the hand is in it");
        assert!(!ptr(15_000, 30_720).is_valid(&later), "its first buffers are given up");
        assert!(!ptr(12_000, 13_000).is_valid(&later), "all of it is");
        assert!(!ptr(30_720, 40_900).is_valid(&later), "it ends behind the ring");
        assert_eq!((entries_of(1 << 29, 1 << 30), entries_of(1 << 30, 1 << 30), entries_of(1 << 40, 0)), (0, 64, 1022));
    }
}
