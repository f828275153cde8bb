//! What a write is asked for, what it is between its two halves, and what comes out.

use std::rc::Rc;

use base::{BlkId, ObjectId, Txg};
use bdev::Bytes;
use codec::{ChecksumAlgo, CompressAlgo, Compression};
use metaslab::ClassKind;
use ondisk::blkptr::Blkptr;
use ondisk::object_type::ObjectType;
use vdev::{Prio, WriteDone};

use crate::crypt::{DataKey, Seal};

/// How blocks are told to be the same (property `dedup`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DedupMode {
    /// By their checksum, which must be a strong one.
    Checksum,
    /// By their bytes, too.
    Verify,
}

/// A block to be written, and how. Start from [`WriteReq::new`] and change what differs.
#[derive(Clone, Debug)]
pub struct WriteReq {
    /// The block: lsize bytes, a multiple of 512 up to 16 MiB, in native order. Stored uncompressed
    /// it goes to the device as it is.
    pub data: Bytes,
    /// Type of the object that the block belongs to.
    pub otype: ObjectType,
    /// Level in the block tree.
    pub level: u8,
    /// How to compress; not `inherit` or `on`.
    pub compression: Compression,
    /// How to sum up; not `inherit` or `on`.
    pub checksum: ChecksumAlgo,
    /// Copies wanted, 1 to 3. There may be fewer in the result if space is short.
    pub copies: u8,
    /// The txg that is synced: the birth of the block.
    pub txg: Txg,
    /// Its sync pass, from 1.
    pub pass: u32,
    /// The pointer that this one replaces. If it was born in this txg and its place fits, it is
    /// overwritten in place from the second pass on; otherwise the caller kills it.
    pub rewrite: Option<Blkptr>,
    /// Whether 112 bytes and less may go into the pointer (feature embedded_data is on, and the
    /// caller does not object).
    pub embed: bool,
    /// Whether a hole keeps size, type, level and birth (feature hole_birth is active and the
    /// pointer replaced had a birth).
    pub hole_birth: bool,
    /// The key of the dataset if it is encrypted; then `copies` is at most 2 and nothing is
    /// embedded.
    pub crypt: Option<Rc<DataKey>>,
    /// The block belongs to an encrypted dataset, is none of those that a key is needed for (an
    /// object set), and its codes are in it already.
    pub sealed: bool,
    /// Fill count of the pointer, if it is neither a hole nor embedded.
    pub fill: u64,
    /// Whether the block may share its place with others like it that a dedup table knows.
    pub dedup: Option<DedupMode>,
    /// Class of the device writes.
    pub prio: Prio,
    /// Where to allocate.
    pub class: ClassKind,
    /// Stored in no more bytes than this, a block of the normal class goes to the special one while
    /// that has room to spare.
    pub special_small: u32,
    /// Object set, 0 for the MOS; for messages.
    pub objset: u64,
    /// Object; for messages.
    pub object: ObjectId,
    /// Block number at its level; for messages.
    pub blkid: BlkId,
}

impl WriteReq {
    /// An uncompressed block with fletcher4, one copy, in the first pass of `txg`.
    pub fn new(data: Bytes, otype: ObjectType, level: u8, txg: Txg) -> WriteReq {
        WriteReq {
            data,
            otype,
            level,
            compression: Compression::OFF,
            checksum: ChecksumAlgo::Fletcher4,
            copies: 1,
            txg,
            pass: 1,
            rewrite: None,
            embed: false,
            hole_birth: false,
            crypt: None,
            sealed: false,
            fill: 1,
            dedup: None,
            prio: Prio::AsyncWrite,
            class: ClassKind::Normal,
            special_small: 0,
            objset: 0,
            object: ObjectId(0),
            blkid: BlkId(0),
        }
    }
}

/// A block that has been through the CPU half: it only needs a place.
pub struct Prepared {
    pub(crate) req: WriteReq,
    pub(crate) body: Body,
}

pub(crate) enum Body {
    /// All zero: nothing is stored.
    Hole,
    /// The payload is in the pointer.
    Embedded(Blkptr),
    /// `data` (psize bytes, zero tail included) goes to disk.
    Stored { data: Bytes, compress: CompressAlgo, checksum: [u64; 4], seal: Option<Box<Seal>> },
}

impl Prepared {
    /// Bytes that each copy stores; 0 for holes and embedded blocks.
    pub fn psize(&self) -> u64 {
        match &self.body {
            Body::Stored { data, .. } => data.len() as u64,
            _ => 0,
        }
    }
    /// The request.
    pub fn request(&self) -> &WriteReq {
        &self.req
    }
}

/// A block that has its pointer.
#[derive(Debug)]
#[must_use = "the write is not done before `done` is"]
pub struct WriteOut {
    /// The pointer, final.
    pub bp: Blkptr,
    /// Ready when the devices have the block (no flush is implied); at once for holes and embedded
    /// blocks.
    pub done: WriteDone,
    /// Whether the place of [`WriteReq::rewrite`] was used again: nothing was allocated, nothing is
    /// to be freed.
    pub rewritten_in_place: bool,
}
