//! A write's request, its state between the two halves, and its result.

use std::rc::Rc;

use base::{BlkId, ObjectId, Txg};
use bdev::Bytes;
use codec::crypto::{IV_LEN, SALT_LEN, TAG_LEN};
use codec::{ChecksumAlgo, CompressAlgo, Compression};
use metaslab::ClassKind;
use ondisk::blkptr::Blkptr;
use ondisk::object_type::ObjectType;
use vdev::{Prio, WriteDone};

use crate::crypt::{DataKey, Seal};

/// How equal blocks are recognized (property `dedup`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DedupMode {
    /// By their checksum, which must be a strong one.
    Checksum,
    /// By their checksum and their bytes.
    Verify,
}

/// A block as it is to be stored, which another pool has packed: a compressed or raw send stream
/// carries blocks so.
#[derive(Clone, Debug)]
pub struct Packed {
    /// The stored bytes: a multiple of 512, at most the block's own length.
    pub data: Bytes,
    /// How they are compressed.
    pub compress: CompressAlgo,
    /// How they are protected, if their dataset is encrypted; then they are stored byte by byte as
    /// they are, without a key.
    pub mark: Option<SealMark>,
}

/// The protection of a block that somebody else has encrypted or authenticated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SealMark {
    /// Salt and IV of an encrypted block; none if it is authenticated only.
    pub salt_iv: Option<([u8; SALT_LEN], [u8; IV_LEN])>,
    /// The authentication code.
    pub mac: [u8; TAG_LEN],
}

/// A block to write, with its options. Start from [`WriteReq::new`] and change fields.
#[derive(Clone, Debug)]
pub struct WriteReq {
    /// The block: lsize bytes, a multiple of 512 up to 16 MiB, in native order. Stored uncompressed
    /// it goes to the device without a copy.
    pub data: Bytes,
    /// Type of the object that the block belongs to.
    pub otype: ObjectType,
    /// Level in the block tree.
    pub level: u8,
    /// The compression; not `inherit` or `on`.
    pub compression: Compression,
    /// The checksum; not `inherit` or `on`.
    pub checksum: ChecksumAlgo,
    /// Copies wanted, 1 to 3. There may be fewer in the result if space is short.
    pub copies: u8,
    /// The syncing txg: the birth of the block.
    pub txg: Txg,
    /// Its sync pass, from 1.
    pub pass: u32,
    /// The pointer to replace. If it was born in this txg and has the same size, it is overwritten
    /// in place from the second pass on; otherwise the caller frees it.
    pub rewrite: Option<Blkptr>,
    /// The pointer to a block with the same content, which this one takes the place of: the new
    /// pointer keeps its logical birth, and of encrypted data salt, IV and MAC. It does not if the
    /// block becomes a hole, an embedded or a gang block, an encrypted one that is packed in
    /// another way, or a reference to another block of a dedup table; if that table gives the block
    /// at this pointer, the pointer stays as it is.
    pub keeps_birth_of: Option<Box<Blkptr>>,
    /// Whether a block that is in its place already, by the checksum, stays there
    /// ([`crate::Zio::issue_over`]). Only with compression and a checksum that
    /// [`ChecksumAlgo::is_nopwrite_ok`] names, as in OpenZFS.
    pub nopwrite: bool,
    /// Whether up to 112 bytes may be embedded in the pointer (feature embedded_data, and the
    /// caller allows it).
    pub embed: bool,
    /// The key of the dataset if it is encrypted; then `copies` is at most 2 and nothing is
    /// embedded.
    pub crypt: Option<Rc<DataKey>>,
    /// The block belongs to an encrypted dataset but is written without its key: an object set
    /// contains its MACs already, an indirect block needs none, and others are
    /// [`WriteReq::packed`].
    pub sealed: bool,
    /// How it is stored, if that is settled: neither zeros are looked for, nor is it compressed or
    /// encrypted.
    pub packed: Option<Rc<Packed>>,
    /// Fill count of the pointer, if it is neither a hole nor embedded.
    pub fill: u64,
    /// Whether and how the block is deduplicated.
    pub dedup: Option<DedupMode>,
    /// Class of the device writes.
    pub prio: Prio,
    /// Where to allocate.
    pub class: ClassKind,
    /// A block of the normal class stored in at most this many bytes goes to the special class
    /// while that has room (`special_small_blocks`).
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
            keeps_birth_of: None,
            nopwrite: false,
            embed: false,
            crypt: None,
            sealed: false,
            packed: None,
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

/// A block after [`crate::Zio::prepare`], without a place.
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
    /// Sets [`WriteReq::keeps_birth_of`], which the first half does not need.
    pub fn keep_birth_of(&mut self, old: Blkptr) {
        self.req.keeps_birth_of = Some(Box::new(old));
    }
    /// The request.
    pub fn request(&self) -> &WriteReq {
        &self.req
    }
}

/// The result of a write.
#[derive(Debug)]
#[must_use = "the write is not done before `done` is"]
pub struct WriteOut {
    /// The pointer, final.
    pub bp: Blkptr,
    /// Resolves when the devices have the block (without a flush); at once for holes and embedded
    /// blocks.
    pub done: WriteDone,
    /// Whether [`WriteReq::rewrite`] was overwritten in place, or what the pointer was to replace
    /// stays as it is: nothing was allocated, the caller frees nothing.
    pub rewritten_in_place: bool,
    /// The bytes as they are stored, of a block that was written.
    pub stored: Option<Bytes>,
}

impl WriteOut {
    /// One that stored nothing of its own.
    pub(crate) fn of(bp: Blkptr, done: WriteDone) -> WriteOut {
        WriteOut { bp, done, rewritten_in_place: false, stored: None }
    }
}
