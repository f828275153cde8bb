//! Gang blocks: a block in pieces, where no single run of free space is large enough (format page
//! 02 section 6).
//!
//! The copies of a gang pointer name headers of child pointers: 512 bytes for three of them, or,
//! with the feature `dynamic_gang_header`, a unit of allocation for as many as fit (format page 17
//! section 6). The children's data, joined in order, is the block as the gang pointer describes it
//! (stored size, compression, checksum); a child may be a gang again. A header is verified by a
//! SHA-256 seeded with its place.

use base::{Error, ErrorKind, Result};
use codec::Endian;
use codec::checksum::EMBEDDED_MAGIC;

use crate::blkptr::{BLKPTR_SIZE, Blkptr};
use crate::bytes::{le64_words, put_le64_words};
use crate::byteswap::swap_ints;
use crate::object_type::ObjectType;

/// Bytes of the smallest gang header, and of all of them without `dynamic_gang_header`.
pub const GANG_HEADER_SIZE: usize = 512;
/// Bytes of the largest header that is written or read: a unit of allocation of 2^16 bytes.
pub const GANG_HEADER_MAX: usize = 1 << 16;
/// Bytes of the embedded checksum at its end.
const ECK_SIZE: usize = 40;
/// Children of the smallest header.
pub const GANG_CHILDREN: usize = 3;
/// How deep gangs may nest before a reader takes it for damage: pieces of the largest block are at
/// least a sector long.
pub const GANG_MAX_DEPTH: u32 = 16;

/// The seed of the header's checksum: vdev and offset of the first copy of the pointer that names
/// it, and its physical birth.
pub fn verifier(parent: &Blkptr) -> [u64; 4] {
    let dva = parent.dva(0);
    [u64::from(dva.vdev().0), dva.offset(), parent.phys_birth().0, 0]
}

/// Whether the header of `parent` stores its checksum folded in two, to leave room for a MAC.
fn folded(parent: &Blkptr) -> bool {
    parent.encrypted() && parent.otype() != ObjectType::OBJSET
}

fn fold(sum: [u64; 4]) -> [u64; 4] {
    [sum[0] ^ sum[2], sum[1] ^ sum[3], 0, 0]
}

/// As `codec::embedded_sha256_verify`, for a header whose words are folded.
fn verify_folded(b: &[u8], verifier: [u64; 4]) -> Result<Endian> {
    let words = le64_words::<5>(&b[b.len() - ECK_SIZE..]);
    let (endian, stored) = match words[0] {
        EMBEDDED_MAGIC => (Endian::Little, words),
        m if m == EMBEDDED_MAGIC.swap_bytes() => (Endian::Big, words.map(u64::swap_bytes)),
        _ => return Err(Error::new(ErrorKind::Checksum, "block has no embedded checksum: its magic is missing")),
    };
    if stored[1..] == fold(codec::embedded_sha256(b, verifier, endian).0) {
        Ok(endian)
    } else {
        Err(Error::new(ErrorKind::Checksum, "embedded checksum does not match the block"))
    }
}

/// How many children a header of `size` bytes has room for: 3, 31, 63 for 512, 4096, 8192.
pub fn children_of(size: usize) -> usize {
    size.saturating_sub(ECK_SIZE) / BLKPTR_SIZE
}

/// Verifies the header of `parent` in `block` and gives its children, holes where there are fewer
/// than it has room for. A larger block may have an old header in its first 512 bytes. Either byte
/// order is read.
pub fn parse(block: &[u8], parent: &Blkptr) -> Result<Vec<Blkptr>> {
    if block.len() < GANG_HEADER_SIZE {
        return Err(Error::corrupt(format!("gang header of {} bytes", block.len())));
    }
    match parse_whole(block, parent) {
        Err(_) if block.len() > GANG_HEADER_SIZE => parse_whole(&block[..GANG_HEADER_SIZE], parent),
        parsed => parsed,
    }
}

/// As [`parse`] for a header of exactly the block's size.
fn parse_whole(block: &[u8], parent: &Blkptr) -> Result<Vec<Blkptr>> {
    let mut b = block.to_vec();
    let count = children_of(b.len());
    let verified = if folded(parent) {
        verify_folded(&b, verifier(parent))
    } else {
        codec::embedded_sha256_verify(&b, verifier(parent))
    };
    let endian = verified.map_err(|e| e.at(format_args!("gang header of {parent}")))?;
    if endian == Endian::Big {
        swap_ints::<8>(&mut b[..count * BLKPTR_SIZE]);
    }
    let children: Vec<Blkptr> =
        (0..count).map(|i| Blkptr::parse(&b[i * BLKPTR_SIZE..])).collect::<Result<Vec<Blkptr>>>()?;
    let sum: u64 = children.iter().map(Blkptr::psize).sum();
    if sum != parent.psize() {
        return Err(Error::corrupt(format!("gang block {parent}: its pieces hold {sum} bytes")));
    }
    Ok(children)
}

/// The header of `parent` with these children, sealed: `size` bytes, with room for all of them
/// ([`children_of`]).
pub fn build(children: &[Blkptr], parent: &Blkptr, size: usize) -> Vec<u8> {
    assert!(children.len() <= children_of(size), "{} children in {size} bytes", children.len());
    let mut b = vec![0u8; size];
    for (i, c) in children.iter().enumerate() {
        c.write_to(&mut b[i * BLKPTR_SIZE..]);
    }
    codec::embedded_sha256_seal(&mut b, verifier(parent));
    if folded(parent) {
        let at = size - ECK_SIZE + 8;
        let sum = fold(le64_words(&b[at..]));
        put_le64_words(&mut b[at..], &sum);
    }
    b
}

/// Sizes of at most `count` pieces of `psize` bytes, multiples of `unit` but for the last. A size
/// of at most one unit is divided into multiples of 512: space may be there in smaller units on
/// another vdev.
pub fn piece_sizes(psize: u64, unit: u64, count: usize) -> Vec<u64> {
    let unit = if psize <= unit { 512 } else { unit };
    let (mut left, mut out) = (psize, Vec::with_capacity(count));
    for g in 0..count as u64 {
        let piece = left.div_ceil(count as u64 - g).next_multiple_of(unit).min(left);
        if piece == 0 {
            break;
        }
        out.push(piece);
        left -= piece;
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::blkptr::Dva;
    use base::{Txg, VdevId};

    fn parent(psize: u64) -> Blkptr {
        let mut bp = Blkptr::hole();
        bp.set_dva(0, Dva::new(VdevId(1), 0x40_0000, 4096, true));
        bp.set_lsize(131072);
        bp.set_psize(psize);
        bp.set_birth(Txg(9), Txg(9));
        bp
    }

    #[test]
    fn round_trip_and_damage() {
        let p = parent(1024);
        let mut c = Blkptr::hole();
        c.set_dva(0, Dva::new(VdevId(0), 512, 512, false));
        c.set_lsize(512);
        c.set_psize(512);
        let children = [c, c, Blkptr::hole()];
        let mut b = build(&children, &p, GANG_HEADER_SIZE);
        assert_eq!(parse(&b, &p).unwrap(), children);
        assert!(parse(&b, &parent(1536)).is_err());
        let mut elsewhere = p;
        elsewhere.set_dva(0, Dva::new(VdevId(1), 0x80_0000, 4096, true));
        assert!(parse(&b, &elsewhere).is_err());
        b[5] ^= 1;
        assert!(parse(&b, &p).is_err());
        let mut enc = p;
        enc.set_otype(ObjectType::PLAIN_FILE);
        enc.set_encrypted(true);
        let mut b = build(&children, &enc, GANG_HEADER_SIZE);
        assert_eq!(b[512 - 16..], [0; 16]);
        assert_eq!(parse(&b, &enc).unwrap(), children);
        assert!(parse(&b, &p).is_err());
        b[5] ^= 1;
        assert!(parse(&b, &enc).is_err());
    }

    /// A header as large as a unit of allocation, and an old one at the beginning of such a unit.
    #[test]
    fn large_headers() {
        assert_eq!([512, 4096, 8192].map(children_of), [3, 31, 63]);
        let mut c = Blkptr::hole();
        c.set_dva(0, Dva::new(VdevId(0), 512, 512, false));
        c.set_lsize(512);
        c.set_psize(512);
        for count in [1, 20, 31] {
            let p = parent(512 * count);
            let children = vec![c; count as usize];
            let mut b = build(&children, &p, 4096);
            let read = parse(&b, &p).unwrap();
            assert_eq!((&read[..children.len()], read.len()), (&children[..], 31));
            assert!(read[children.len()..].iter().all(Blkptr::is_hole));
            assert!(parse(&b[..512], &p).is_err(), "half a header");
            b[4000] ^= 1;
            assert!(parse(&b, &p).is_err());
        }
        let p = parent(1024);
        let mut unit = build(&[c, c], &p, 512);
        unit.resize(4096, 0x55);
        assert_eq!(parse(&unit, &p).unwrap(), [c, c, Blkptr::hole()]);
        unit[100] ^= 1;
        assert!(parse(&unit, &p).is_err());
    }

    #[test]
    fn pieces() {
        assert_eq!(piece_sizes(131072, 512, 3), [44032, 43520, 43520]);
        assert_eq!(piece_sizes(512, 512, 3), [512]);
        assert_eq!(piece_sizes(1024, 512, 3), [512, 512]);
        assert_eq!(piece_sizes(16384, 4096, 3), [8192, 4096, 4096]);
        assert_eq!(piece_sizes(10240, 4096, 3), [4096, 4096, 2048]);
        assert_eq!(piece_sizes(4096, 4096, 3), [1536, 1536, 1024]);
        assert_eq!(piece_sizes(24576, 12288, 3), [12288, 12288], "a unit need not be a power of two");
        assert_eq!(piece_sizes(131072, 4096, 31), [vec![8192; 1], vec![4096; 30]].concat());
        for p in 1..300 {
            for count in [3, 31] {
                let pieces = piece_sizes(p * 512, 512, count);
                assert_eq!(pieces.iter().sum::<u64>(), p * 512);
                assert!(pieces.len() <= count && pieces.iter().all(|n| *n > 0));
            }
        }
    }
}
