//! Checksum algorithms by number and name, and the checksum that a block carries inside itself.
//!
//! Vocabulary. A *checksum* is four u64 words as a block pointer holds them in memory. The words of
//! the fletchers and of SHA-256 are numbers (SHA-256: big-endian words of the digest); those of the
//! newer hashes are the first 32 digest bytes copied as they are, so on a block that a big-endian
//! host wrote they read byte-swapped (format page 02, section 3). An *embedded* checksum (`eck`) is
//! the last 40 bytes of a label region, an uberblock slot or a gang header: a magic and four words.
//! Before hashing, the words hold a *verifier* that ties the block to its place (the offset on the
//! device; for gang headers vdev, offset and txg), so that a good block read from a wrong place
//! does not pass (format page 01, section 2; page 02, section 6).

use std::cell::Cell;

use base::{Error, ErrorKind, Result};
use sha2::{Digest, Sha256, Sha512_256};

use crate::edonr::{edonr_512, key_block};
use crate::fletcher::{fletcher2, fletcher2_be, fletcher4, fletcher4_be};
use crate::skein::skein_512_256;

/// The four checksum words of a block pointer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Checksum(pub [u64; 4]);

/// A byte order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Endian {
    /// Least significant byte first; weir writes this.
    Little,
    /// Most significant byte first; pools written on SPARC and the like.
    Big,
}

/// A checksum algorithm; the numbers are those of block pointers and of the `checksum` property
/// (format page 02).
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ChecksumAlgo {
    /// Property only: as the parent dataset.
    Inherit = 0,
    /// Property only: fletcher4.
    On = 1,
    /// No checksum, words 0.
    Off = 2,
    /// SHA-256 embedded in label regions and uberblocks.
    Label = 3,
    /// SHA-256 embedded in gang headers.
    GangHeader = 4,
    /// fletcher2 embedded at the end of old log blocks.
    Zilog = 5,
    /// fletcher2.
    Fletcher2 = 6,
    /// fletcher4, the default.
    Fletcher4 = 7,
    /// SHA-256.
    Sha256 = 8,
    /// fletcher4 embedded in the header of log blocks.
    Zilog2 = 9,
    /// As off, and RAID-Z does not try to reconstruct by checksum.
    NoParity = 10,
    /// SHA-512/256 (feature `sha512`).
    Sha512 = 11,
    /// Skein-512-256 keyed with the pool's salt (feature `skein`).
    Skein = 12,
    /// Edon-R 512, first 32 bytes, keyed with the pool's salt (feature `edonr`).
    Edonr = 13,
    /// BLAKE3 keyed with the pool's salt (feature `blake3`, OpenZFS 2.2).
    Blake3 = 14,
}

impl ChecksumAlgo {
    /// Every algorithm, in the order of its number.
    pub const ALL: [ChecksumAlgo; 15] = [
        ChecksumAlgo::Inherit,
        ChecksumAlgo::On,
        ChecksumAlgo::Off,
        ChecksumAlgo::Label,
        ChecksumAlgo::GangHeader,
        ChecksumAlgo::Zilog,
        ChecksumAlgo::Fletcher2,
        ChecksumAlgo::Fletcher4,
        ChecksumAlgo::Sha256,
        ChecksumAlgo::Zilog2,
        ChecksumAlgo::NoParity,
        ChecksumAlgo::Sha512,
        ChecksumAlgo::Skein,
        ChecksumAlgo::Edonr,
        ChecksumAlgo::Blake3,
    ];

    /// The algorithm with this number, `None` if there is none.
    pub fn from_u8(number: u8) -> Option<ChecksumAlgo> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// The name that OpenZFS prints, also the property value where it is one.
    pub fn name(self) -> &'static str {
        match self {
            ChecksumAlgo::Inherit => "inherit",
            ChecksumAlgo::On => "on",
            ChecksumAlgo::Off => "off",
            ChecksumAlgo::Label => "label",
            ChecksumAlgo::GangHeader => "gang_header",
            ChecksumAlgo::Zilog => "zilog",
            ChecksumAlgo::Fletcher2 => "fletcher2",
            ChecksumAlgo::Fletcher4 => "fletcher4",
            ChecksumAlgo::Sha256 => "sha256",
            ChecksumAlgo::Zilog2 => "zilog2",
            ChecksumAlgo::NoParity => "noparity",
            ChecksumAlgo::Sha512 => "sha512",
            ChecksumAlgo::Skein => "skein",
            ChecksumAlgo::Edonr => "edonr",
            ChecksumAlgo::Blake3 => "blake3",
        }
    }

    /// The algorithm with this name, of those that the `checksum` property takes; the embedded ones
    /// and `inherit` are not among them.
    pub fn parse(name: &str) -> Option<ChecksumAlgo> {
        Self::ALL.into_iter().find(|a| a.name() == name && a.is_for_data())
    }

    /// True if a dataset may have it: it is none of those that lie within their block.
    pub fn is_for_data(self) -> bool {
        !matches!(self, ChecksumAlgo::Inherit | ChecksumAlgo::Label | ChecksumAlgo::GangHeader) && !self.is_log()
    }

    /// True if metadata may be written with it; otherwise metadata of the dataset gets fletcher4
    /// (format page 02, "Policy").
    pub fn is_metadata_ok(self) -> bool {
        matches!(
            self,
            ChecksumAlgo::Fletcher4
                | ChecksumAlgo::Sha256
                | ChecksumAlgo::Sha512
                | ChecksumAlgo::Skein
                | ChecksumAlgo::Edonr
                | ChecksumAlgo::Blake3
        )
    }

    /// True if a block whose place holds one with an equal checksum need not be written
    /// (`ZCHECKSUM_FLAG_NOPWRITE` of OpenZFS).
    pub fn is_nopwrite_ok(self) -> bool {
        matches!(
            self,
            ChecksumAlgo::Sha256
                | ChecksumAlgo::Sha512
                | ChecksumAlgo::Skein
                | ChecksumAlgo::Edonr
                | ChecksumAlgo::Blake3
        )
    }

    /// True if equal checksums may be taken for equal data without comparing it (format page 13:
    /// not edonr).
    pub fn is_dedup_strong(self) -> bool {
        matches!(self, ChecksumAlgo::Sha256 | ChecksumAlgo::Sha512 | ChecksumAlgo::Skein | ChecksumAlgo::Blake3)
    }

    /// True if [`compute`] needs the pool's salt (format page 03, `org.illumos:checksum_salt`).
    pub fn is_salted(self) -> bool {
        matches!(self, ChecksumAlgo::Skein | ChecksumAlgo::Edonr | ChecksumAlgo::Blake3)
    }

    fn is_log(self) -> bool {
        matches!(self, ChecksumAlgo::Zilog | ChecksumAlgo::Zilog2)
    }
}

/// The checksum of `data`, the bytes as stored on disk, by `algo`. `big_endian` is the byte order
/// of the block (bit 63 of the block pointer's prop word, negated); `salt` is the pool's.
///
/// For the embedded algorithms this is the plain sum over `data`, in which the caller has put the
/// verifier already; see [`embedded_sha256_verify`] for those that end with the block. Errors:
/// `Corrupt` for a salted algorithm without salt, `Invalid` for the property values inherit and on,
/// which no block has.
pub fn compute(algo: ChecksumAlgo, data: &[u8], big_endian: bool, salt: Option<&[u8; 32]>) -> Result<Checksum> {
    let raw = |digest: &[u8; 32]| {
        let words = be_words(digest);
        Checksum(if big_endian { words } else { words.map(u64::swap_bytes) })
    };
    let salt = || {
        salt.ok_or_else(|| Error::corrupt(format!("checksum {} needs the pool's salt, which is missing", algo.name())))
    };
    Ok(match algo {
        ChecksumAlgo::Off | ChecksumAlgo::NoParity => Checksum::default(),
        ChecksumAlgo::Fletcher2 | ChecksumAlgo::Zilog => {
            if big_endian {
                fletcher2_be(data)
            } else {
                fletcher2(data)
            }
        }
        ChecksumAlgo::Fletcher4 | ChecksumAlgo::Zilog2 => {
            if big_endian {
                fletcher4_be(data)
            } else {
                fletcher4(data)
            }
        }
        ChecksumAlgo::Sha256 | ChecksumAlgo::Label | ChecksumAlgo::GangHeader => sha256(data),
        ChecksumAlgo::Sha512 => raw(&Sha512_256::digest(data).into()),
        ChecksumAlgo::Skein => raw(&skein_512_256(Some(salt()?), data)),
        ChecksumAlgo::Edonr => {
            let digest = edonr_512(&edonr_key(salt()?), data);
            raw(digest.first_chunk().expect("64 bytes have 32"))
        }
        ChecksumAlgo::Blake3 => raw(blake3::keyed_hash(salt()?, data).as_bytes()),
        ChecksumAlgo::Inherit | ChecksumAlgo::On => {
            return Err(Error::invalid(format!("checksum {} is a property value, no algorithm", algo.name())));
        }
    })
}

/// The key block of Edon-R for a salt. A pool has one salt, so the last one made is kept, for each
/// thread.
fn edonr_key(salt: &[u8; 32]) -> [u8; 128] {
    thread_local! {
        static LAST: Cell<Option<([u8; 32], [u8; 128])>> = const { Cell::new(None) };
    }
    match LAST.get() {
        Some((of, key)) if of == *salt => key,
        _ => {
            let key = key_block(salt);
            LAST.set(Some((*salt, key)));
            key
        }
    }
}

/// SHA-256; the words are the digest's in big-endian order.
pub fn sha256(data: &[u8]) -> Checksum {
    Checksum(be_words(&Sha256::digest(data).into()))
}

/// SHA-512/256; the words are the digest's in little-endian order, which stores the digest byte by
/// byte.
pub fn sha512_256(data: &[u8]) -> Checksum {
    let digest: [u8; 32] = Sha512_256::digest(data).into();
    Checksum(be_words(&digest).map(u64::swap_bytes))
}

fn be_words(digest: &[u8; 32]) -> [u64; 4] {
    let (words, _) = digest.as_chunks::<8>();
    std::array::from_fn(|i| u64::from_be_bytes(words[i]))
}

/// The magic of an embedded checksum (format page 01, section 2).
pub const EMBEDDED_MAGIC: u64 = 0x0210_da7a_b10c_7a11;

/// Bytes of an embedded checksum: the magic and four words.
const ECK_SIZE: usize = 40;

impl Endian {
    fn bytes(self, word: u64) -> [u8; 8] {
        match self {
            Endian::Little => word.to_le_bytes(),
            Endian::Big => word.to_be_bytes(),
        }
    }
    fn word(self, bytes: [u8; 8]) -> u64 {
        match self {
            Endian::Little => u64::from_le_bytes(bytes),
            Endian::Big => u64::from_be_bytes(bytes),
        }
    }
}

/// Most of the work of an embedded SHA-256, which blocks that differ only in their place share:
/// everything but their last 40 bytes, hashed.
#[derive(Clone)]
pub struct EmbeddedHash(Sha256);

impl EmbeddedHash {
    /// Of a block; the content of its last 40 bytes does not matter.
    ///
    /// # Panics
    /// If `block` is shorter than 40 bytes.
    pub fn new(block: &[u8]) -> EmbeddedHash {
        EmbeddedHash(Sha256::new_with_prefix(&block[..block.len() - ECK_SIZE]))
    }

    /// The words that belong into the last 32 bytes of the block at the place that `verifier`
    /// stands for, in the byte order `endian`.
    pub fn sum(&self, verifier: [u64; 4], endian: Endian) -> Checksum {
        let mut hash = self.0.clone();
        hash.update(endian.bytes(EMBEDDED_MAGIC));
        for word in verifier {
            hash.update(endian.bytes(word));
        }
        Checksum(be_words(&hash.finalize().into()))
    }

    /// Fills the last 40 bytes of the block, little-endian.
    ///
    /// # Panics
    /// If `block` is shorter than 40 bytes.
    pub fn seal(&self, block: &mut [u8], verifier: [u64; 4]) {
        let Checksum(sum) = self.sum(verifier, Endian::Little);
        let at = block.len() - ECK_SIZE;
        let words = std::iter::once(EMBEDDED_MAGIC).chain(sum);
        for (slot, word) in block[at..].as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *slot = word.to_le_bytes();
        }
    }
}

/// The words that belong into the last 32 bytes of `block`: SHA-256 over the block with the magic
/// and `verifier` in its last 40 bytes, in the byte order `endian`. The old content there does not
/// matter.
///
/// # Panics
/// If `block` is shorter than 40 bytes.
pub fn embedded_sha256(block: &[u8], verifier: [u64; 4], endian: Endian) -> Checksum {
    EmbeddedHash::new(block).sum(verifier, endian)
}

/// Checks embedded SHA-256s of blocks of which many may be the same but for their place, as the
/// labels of a device are: those are hashed once.
#[derive(Default)]
pub struct EmbeddedVerifier<'a> {
    last: Option<(&'a [u8], EmbeddedHash)>,
}

impl<'a> EmbeddedVerifier<'a> {
    /// As [`embedded_sha256_verify`].
    pub fn verify(&mut self, block: &'a [u8], verifier: [u64; 4]) -> Result<Endian> {
        let fail = |what: &'static str| Error::new(ErrorKind::Checksum, what);
        let Some((content, eck)) = block.split_last_chunk::<ECK_SIZE>() else {
            return Err(fail("block is too short to hold an embedded checksum"));
        };
        let (words, _) = eck.as_chunks::<8>();
        let endian = match u64::from_le_bytes(words[0]) {
            EMBEDDED_MAGIC => Endian::Little,
            magic if magic == EMBEDDED_MAGIC.swap_bytes() => Endian::Big,
            _ => return Err(fail("block has no embedded checksum: its magic is missing")),
        };
        let stored = Checksum(std::array::from_fn(|i| endian.word(words[i + 1])));
        if self.last.as_ref().is_none_or(|(last, _)| *last != content) {
            self.last = Some((content, EmbeddedHash::new(block)));
        }
        let right = self.last.as_ref().is_some_and(|(_, hash)| stored == hash.sum(verifier, endian));
        if right { Ok(endian) } else { Err(fail("embedded checksum does not match the block")) }
    }
}

/// Checks the embedded SHA-256 of a label region, uberblock slot or gang header and returns the
/// byte order of the host that wrote it. `verifier`: binds the block to its place, for labels
/// `[offset on the device, 0, 0, 0]`.
///
/// Errors: `Checksum`, also if there is no magic, as in a place never written.
pub fn embedded_sha256_verify(block: &[u8], verifier: [u64; 4]) -> Result<Endian> {
    EmbeddedVerifier::default().verify(block, verifier)
}

/// Fills the last 40 bytes of `block` with its embedded SHA-256, little-endian; the counterpart of
/// [`embedded_sha256_verify`].
///
/// # Panics
/// If `block` is shorter than 40 bytes.
pub fn embedded_sha256_seal(block: &mut [u8], verifier: [u64; 4]) {
    EmbeddedHash::new(block).seal(block, verifier);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_round_trip() {
        for (i, algo) in ChecksumAlgo::ALL.into_iter().enumerate() {
            assert_eq!(algo as usize, i);
            assert_eq!(ChecksumAlgo::from_u8(i as u8), Some(algo));
            let parsed = ChecksumAlgo::parse(algo.name());
            let is_property = !matches!(i, 0 | 3 | 4 | 5 | 9);
            assert_eq!(parsed, is_property.then_some(algo), "{}", algo.name());
        }
        assert_eq!(ChecksumAlgo::from_u8(15), None);
        assert_eq!(ChecksumAlgo::from_u8(255), None);
        assert_eq!(ChecksumAlgo::parse("crc32"), None);
    }

    #[test]
    fn sha_of_published_vectors() {
        // FIPS 180 examples for "abc".
        assert_eq!(sha256(b"abc").0, [0xba7816bf8f01cfea, 0x414140de5dae2223, 0xb00361a396177a9c, 0xb410ff61f20015ad]);
        let words = [0x53048e2681941ef9u64, 0x9b2e29b76b4c7dab, 0xe4c2d0c634fc6d46, 0xe0e2f13107e7af23];
        assert_eq!(sha512_256(b"abc").0, words.map(u64::swap_bytes));
        assert_eq!(compute(ChecksumAlgo::Sha512, b"abc", false, None).unwrap().0, words.map(u64::swap_bytes));
        assert_eq!(compute(ChecksumAlgo::Sha512, b"abc", true, None).unwrap().0, words);
        assert_eq!(compute(ChecksumAlgo::Sha256, b"abc", true, None).unwrap(), sha256(b"abc"));
    }

    #[test]
    fn compute_follows_the_byte_order() {
        let le: Vec<u8> = (0..1024u32).flat_map(|w| w.to_le_bytes()).collect();
        let be: Vec<u8> = (0..1024u32).flat_map(|w| w.to_be_bytes()).collect();
        for algo in [ChecksumAlgo::Fletcher4, ChecksumAlgo::Zilog2] {
            assert_eq!(compute(algo, &le, false, None).unwrap(), compute(algo, &be, true, None).unwrap());
            assert_ne!(compute(algo, &le, false, None).unwrap(), compute(algo, &be, false, None).unwrap());
        }
        assert_eq!(compute(ChecksumAlgo::Off, &le, false, None).unwrap(), Checksum::default());
    }

    #[test]
    fn salted_algorithms_need_and_use_the_salt() {
        let data: Vec<u8> = (0..4096u32).map(|i| (i * i / 3) as u8).collect();
        for algo in [ChecksumAlgo::Skein, ChecksumAlgo::Edonr, ChecksumAlgo::Blake3] {
            let e = compute(algo, &data, false, None).unwrap_err();
            assert!(e.kind() == ErrorKind::Corrupt && e.to_string().contains(algo.name()));
            let sum = |big, salt: u8| compute(algo, &data, big, Some(&[salt; 32])).unwrap().0;
            assert_eq!(sum(false, 7), sum(true, 7).map(u64::swap_bytes));
            assert_ne!(sum(false, 7), sum(false, 8));
            assert_eq!(sum(false, 7), sum(false, 7));
        }
        assert_eq!(compute(ChecksumAlgo::On, &[], false, None).unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[test]
    fn blake3_of_a_published_vector() {
        // The test vectors of BLAKE3: the key below, an input of one byte 0.
        let key = b"whats the Elvish word for friend";
        let words = compute(ChecksumAlgo::Blake3, &[0], true, Some(key)).unwrap().0;
        assert_eq!(words[0], 0x6d78_78df_ff2f_4856);
    }

    #[test]
    fn embedded_seal_then_verify() {
        let mut block: Vec<u8> = (0..1024u32).map(|i| (i * 7) as u8).collect();
        let place = [0x20000, 0, 0, 0];
        embedded_sha256_seal(&mut block, place);
        assert_eq!(block[984..992], [0x11, 0x7a, 0x0c, 0xb1, 0x7a, 0xda, 0x10, 0x02]);
        assert_eq!(embedded_sha256_verify(&block, place).unwrap(), Endian::Little);
        // The wrong place fails, and so does every single flipped bit of the last 64 bytes and some
        // before.
        assert!(embedded_sha256_verify(&block, [0x20400, 0, 0, 0]).is_err());
        for bit in (0..8 * 960).step_by(97).chain(8 * 960..8 * 1024) {
            let mut bad = block.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(embedded_sha256_verify(&bad, place).unwrap_err().kind(), ErrorKind::Checksum, "bit {bit}");
        }
    }

    #[test]
    fn embedded_of_a_big_endian_host() {
        let mut block = vec![0x5au8; 8192];
        let place = [0x4000u64, 1, 2, 3];
        block[8152..8160].copy_from_slice(&EMBEDDED_MAGIC.to_be_bytes());
        for (i, w) in place.iter().enumerate() {
            block[8160 + 8 * i..8168 + 8 * i].copy_from_slice(&w.to_be_bytes());
        }
        let sum = sha256(&block);
        for (i, w) in sum.0.iter().enumerate() {
            block[8160 + 8 * i..8168 + 8 * i].copy_from_slice(&w.to_be_bytes());
        }
        assert_eq!(embedded_sha256_verify(&block, place).unwrap(), Endian::Big);
        assert!(embedded_sha256_verify(&block, [0; 4]).is_err());
    }

    #[test]
    fn embedded_in_short_or_blank_blocks_is_an_error() {
        for len in [0, 1, 39, 40, 1024] {
            assert_eq!(embedded_sha256_verify(&vec![0; len], [0; 4]).unwrap_err().kind(), ErrorKind::Checksum);
        }
        let mut tiny = [0u8; 40];
        embedded_sha256_seal(&mut tiny, [9, 0, 0, 0]);
        assert!(embedded_sha256_verify(&tiny, [9, 0, 0, 0]).is_ok());
    }
}
