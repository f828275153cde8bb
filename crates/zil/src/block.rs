//! One log block: making its bytes, and reading it back.
//!
//! A block is verified by the four checksum words of its pointer ([`ondisk::zil`]). In the log of
//! an encrypted dataset the pointer has salt and IV, the bodies of the records are encrypted, and
//! the fields that a claim without the key reads are authenticated (format page 12 section 8).

use std::ops::Range;

use base::{Error, ErrorKind, Result, Txg};
use codec::{ChecksumAlgo, compute};
use ondisk::blkptr::Blkptr;
use ondisk::bytes::{put_le64, put_le64_words};
use ondisk::zil::{CHECKSUM_ZILOG2, ECK_MAGIC, RECORD_HEADER_SIZE, ZIL_CHAIN_SIZE, ZilChain, records};
use ondisk::zil_record::{encrypted_parts, pointer_part};
use vdev::{BlockPlace, Verify};
use zio::{AreaSeal, DataKey, Prio, Zio};

/// Largest log block in bytes.
pub const BLOCK_MAX: u64 = 128 << 10;
/// Log blocks are written and checksummed in units of this many bytes.
pub const BLOCK_UNIT: usize = 4096;
/// Authenticated bytes of the chain part: all before the checksum.
const CHAIN_AAD: usize = 144;

/// A log block read from disk.
pub struct LogBlock {
    /// Its bytes; still encrypted if the dataset is.
    pub bytes: Vec<u8>,
    /// Its chain part.
    pub chain: ZilChain,
}

/// An error unless `bp` can be the pointer of a log block.
pub fn check_pointer(bp: &Blkptr) -> Result<()> {
    let bad = |what: &str| Err(Error::corrupt(format!("intent log block {bp}: {what}")));
    if bp.is_hole() || bp.is_embedded() || bp.is_gang() || bp.ndvas() != 1 {
        return bad("it has not exactly one place");
    }
    if bp.level() != 0 || bp.psize() != bp.lsize() || bp.lsize() > BLOCK_MAX || bp.lsize() < ZIL_CHAIN_SIZE as u64 {
        return bad("it has a size that log blocks do not have");
    }
    if bp.needs_swap() {
        return Err(Error::unsupported("the intent log was written by a big-endian machine"));
    }
    Ok(())
}

/// The checksum of a block that holds the pointer's words in place of its own checksum.
fn sum(block: &[u8], chain: &ZilChain, bp: &Blkptr) -> Result<[u64; 4]> {
    let algo = if bp.checksum_raw() == CHECKSUM_ZILOG2 { ChecksumAlgo::Zilog2 } else { ChecksumAlgo::Zilog };
    Ok(compute(algo, &block[..chain.verified], bp.needs_swap(), None)?.0)
}

/// The chain part of `block`, if the block verifies against `bp`.
pub fn verify(block: &[u8], bp: &Blkptr) -> Option<ZilChain> {
    let chain = ZilChain::parse(block, bp).ok()?;
    let mut check = block[..chain.verified].to_vec();
    put_le64_words(&mut check[chain.cksum_at..], &bp.checksum_words());
    let sum = sum(&check, &chain, bp).ok()?;
    let right = if bp.encrypted() { folded(sum) == chain.cksum[..2] } else { sum == chain.cksum };
    right.then_some(chain)
}

/// The check of bytes against `bp`, for reads with reconstruction.
pub fn verifier(bp: &Blkptr) -> Verify {
    let own = *bp;
    Verify::new(rt::cost::FLETCHER.cost(bp.psize()), move |bytes| verify(bytes, &own).is_some())
}

fn folded(sum: [u64; 4]) -> [u64; 2] {
    [sum[0] ^ sum[2], sum[1] ^ sum[3]]
}

/// Reads a log block; `None` if it was never written, or only in part: the normal end of a chain.
/// An error if no device could be read.
pub async fn read(zio: &Zio, bp: &Blkptr) -> Result<Option<LogBlock>> {
    check_pointer(bp)?;
    let dva = bp.dva(0);
    let found = |bytes: &[u8]| verify(bytes, bp).map(|chain| LogBlock { bytes: bytes.to_vec(), chain });
    let first = zio.read_raw(dva, bp.psize(), bp.phys_birth(), Prio::SyncRead).await;
    let error = match first {
        Ok(bytes) => match found(&bytes) {
            Some(block) => return Ok(Some(block)),
            None => None,
        },
        Err(e) if e.kind() == ErrorKind::Interrupted => return Err(e),
        Err(e) => Some(e),
    };
    if zio.tree().is_redundant(dva.vdev()) {
        // Another child may have it: one that was offline during the write does not.
        let place = BlockPlace { written: Txg(0), ..BlockPlace::new(dva, bp.psize(), bp.phys_birth()) };
        let verdict = zio.tree().arbitrate(place, Prio::SyncRead, Some(&verifier(bp)), None).await?;
        return match verdict.data {
            Ok(bytes) => Ok(found(&bytes)),
            Err(e) if matches!(e.kind(), ErrorKind::Checksum | ErrorKind::Corrupt) => Ok(None),
            Err(e) => Err(e),
        };
    }
    match error {
        Some(e) => Err(e),
        None => Ok(None),
    }
}

/// The encrypted parts of a block, and its other authenticated bytes.
fn areas(block: &[u8], range: (usize, usize)) -> Result<(Vec<u8>, Vec<Range<usize>>)> {
    let mut aad = block[..CHAIN_AAD].to_vec();
    let mut areas = Vec::new();
    let mut at = range.0;
    for record in records(block, range) {
        let record = record?;
        let len = record.bytes.len();
        aad.extend_from_slice(&record.bytes[..RECORD_HEADER_SIZE]);
        if let Some((from, to)) = pointer_part(record.txtype, len) {
            aad.extend_from_slice(&record.bytes[from..to]);
        }
        areas.extend(
            encrypted_parts(record.txtype, len).into_iter().filter(|(a, b)| a < b).map(|(a, b)| at + a..at + b),
        );
        at += len;
    }
    Ok((aad, areas))
}

/// Decrypts the records of a block of an encrypted dataset; does nothing for others. An error of
/// kind `Checksum` if the block was changed without the key.
pub fn open(block: &mut LogBlock, bp: &Blkptr, key: Option<&DataKey>) -> Result<()> {
    if !bp.encrypted() {
        return Ok(());
    }
    let Some(key) = key else {
        return Err(Error::new(ErrorKind::Denied, "the intent log is encrypted, and its key is not loaded"));
    };
    let (aad, areas) = areas(&block.bytes, block.chain.records)?;
    let mut tag = [0; 16];
    tag.copy_from_slice(&block.bytes[block.chain.cksum_at + 16..block.chain.cksum_at + 32]);
    key.open_areas(bp.salt_iv(), &aad, &mut block.bytes, &areas, &tag).map_err(|e| e.at("intent log block"))
}

/// Completes a slim block for `bp`: `block` has room for the chain part, then the records, `nused`
/// bytes in all, and zeros up to whole units. Writes the chain part, encrypts, checksums.
pub fn seal(block: &mut [u8], bp: &Blkptr, next: &Blkptr, nused: usize, key: Option<&AreaSeal>) -> Result<()> {
    block[..ZIL_CHAIN_SIZE].fill(0);
    next.write_to(&mut block[8..]);
    put_le64(block, 136, nused as u64);
    put_le64(block, CHAIN_AAD, ECK_MAGIC);
    let mut tag = [0; 16];
    if let Some(key) = key {
        let (aad, areas) = areas(block, (ZIL_CHAIN_SIZE, nused))?;
        tag = key.seal(&aad, block, &areas)?;
    }
    let chain = ZilChain::parse(block, bp)?;
    put_le64_words(&mut block[chain.cksum_at..], &bp.checksum_words());
    let sum = sum(block, &chain, bp)?;
    if key.is_some() {
        let [a, b] = folded(sum);
        put_le64_words(&mut block[chain.cksum_at..], &[a, b]);
        block[chain.cksum_at + 16..chain.cksum_at + 32].copy_from_slice(&tag);
    } else {
        put_le64_words(&mut block[chain.cksum_at..], &sum);
    }
    Ok(())
}
