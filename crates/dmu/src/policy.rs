//! The storage policy: compression, checksum, copies and class of a block, by its kind and the
//! properties of its object set (`dmu_write_policy`).
//!
//! [`ObjsetInner::policy`] decides for a kind of block, [`Policy::request`] makes the write of one
//! block of that kind: for the sync of an object, of an object set's own block, and for early
//! writes of an intent log.

use base::{BlkId, ObjectId, SYNC_PASS_DONT_COMPRESS, Txg};
use bdev::Bytes;
use codec::{ChecksumAlgo, CompressAlgo, Compression};
use ondisk::object_type::ObjectType;
use ondisk::version;
use zio::{ClassKind, DedupMode, Prio, WriteReq};

use crate::ctx::{DmuFeatures, ObjsetProps, RedundantMetadata};
use crate::objset::ObjsetInner;

/// A block as the storage policy sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockKind {
    /// Type of its object; for a spill block that of the bonus.
    pub otype: ObjectType,
    pub level: u8,
    /// It is the spill block of its object.
    pub spill: bool,
    /// Compression and checksum of the object's dnode (raw numbers, 0: inherited), used for data
    /// only.
    pub own: (u8, u8),
}

impl BlockKind {
    /// A block of an object without settings of its own.
    pub fn new(otype: ObjectType, level: u8) -> BlockKind {
        BlockKind { otype, level, spill: false, own: (0, 0) }
    }
    /// Whether type, level or spill make it metadata.
    fn is_metadata(&self) -> bool {
        self.level > 0 || self.spill || self.otype.is_metadata()
    }
}

/// How blocks of one kind are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Policy {
    pub kind: BlockKind,
    pub compression: Compression,
    pub checksum: ChecksumAlgo,
    pub copies: u8,
    pub embed: bool,
    /// Whether the block is metadata.
    pub metadata: bool,
    pub dedup: Option<DedupMode>,
    /// Whether an equal block in its place stays.
    pub nopwrite: bool,
    pub class: ClassKind,
    /// A block of at most this stored size goes to the special class.
    pub special_small: u32,
    /// The sync pass that it is for, from 1.
    pub pass: u32,
}

/// The storage policy of a block (format page 02 section 4) of an object set that is not encrypted.
/// `salted`: the pool has a salt. Without one, checksums that need it are not written, whatever a
/// damaged dnode or dataset says.
fn policy(props: &ObjsetProps, features: DmuFeatures, salted: bool, kind: BlockKind, pass: u32) -> Policy {
    let (otype, level, metadata) = (kind.otype, kind.level, kind.is_metadata());
    let best = Compression { algo: if features.lz4 { CompressAlgo::Lz4 } else { CompressAlgo::Lzjb }, level: 0 };
    let on = |c: Compression| if c.algo == CompressAlgo::On { best } else { c };
    let (mut compression, mut checksum, copies);
    let mut dedup = None;
    let usable = |c: ChecksumAlgo| salted || !c.is_salted();
    let set_checksum = match props.checksum {
        ChecksumAlgo::Inherit | ChecksumAlgo::On => ChecksumAlgo::Fletcher4,
        c if usable(c) => c,
        _ => ChecksumAlgo::Fletcher4,
    };
    if metadata {
        compression = best;
        checksum = if set_checksum.is_metadata_ok() { set_checksum } else { ChecksumAlgo::Fletcher4 };
        let extra = match props.redundant_metadata {
            RedundantMetadata::All => true,
            RedundantMetadata::Most => level >= 2 || otype.is_metadata() || kind.spill,
            RedundantMetadata::Some => level >= 2 && otype.is_metadata(),
            RedundantMetadata::None => false,
        };
        copies = props.copies + u8::from(extra);
    } else {
        let (own_compress, own_checksum) = kind.own;
        compression = match CompressAlgo::from_u8(own_compress) {
            Some(algo) if own_compress != 0 => on(Compression { algo, level: 0 }),
            _ => on(props.compression),
        };
        checksum = match ChecksumAlgo::from_u8(own_checksum) {
            Some(c) if own_checksum > ChecksumAlgo::On as u8 && c.is_for_data() && usable(c) => c,
            _ => set_checksum,
        };
        copies = props.copies;
        if let Some((algo, mode)) = props.dedup.filter(|(algo, _)| usable(*algo)) {
            (checksum, dedup) = (algo, Some(mode));
        }
    }
    let copies = if features.pool_version < version::DITTO { 1 } else { copies };
    let class = match otype {
        ObjectType::DDT_ZAP | ObjectType::DDT_STATS => ClassKind::Dedup,
        _ if metadata => ClassKind::Special,
        _ => ClassKind::Normal,
    };
    // The blocks that `special_small_blocks` is about; since 2.4 also those of volumes.
    let has_data = matches!(otype, ObjectType::PLAIN_FILE | ObjectType::ZVOL);
    if compression.algo == CompressAlgo::Inherit {
        compression.algo = CompressAlgo::Off;
    }
    if pass >= SYNC_PASS_DONT_COMPRESS {
        compression = Compression { algo: CompressAlgo::Off, level: 0 };
    }
    Policy {
        kind,
        compression,
        checksum,
        copies: copies.clamp(1, 3),
        embed: features.embedded_data && level == 0 && !otype.has_fill(),
        metadata,
        dedup,
        nopwrite: !metadata && dedup.is_none() && checksum.is_nopwrite_ok() && compression.algo != CompressAlgo::Off,
        class,
        special_small: if has_data && !metadata { props.special_small } else { 0 },
        pass,
    }
}

impl ObjsetInner {
    /// How blocks of `kind` are stored in sync pass `pass` of a txg.
    pub(crate) fn policy(&self, kind: BlockKind, pass: u32) -> Policy {
        let salted = self.ctx.zio().opts().salt.is_some();
        let p = policy(&self.props.get(), self.ctx.features(), salted, kind, pass);
        if self.ctx.key().is_some() || self.sealed { p.encrypted() } else { p }
    }
}

impl Policy {
    /// The policy with encryption (format page 12, section 5): at most two copies of encrypted
    /// blocks, no embedded data, no compression of dnodes and object sets.
    fn encrypted(mut self) -> Policy {
        let BlockKind { otype, level, .. } = self.kind;
        if otype.is_encrypted_ok() {
            self.copies = self.copies.min(zio::ENCRYPTED_COPIES_MAX);
            self.nopwrite = false;
        }
        self.embed = false;
        if level == 0 && matches!(otype, ObjectType::DNODE | ObjectType::OBJSET) {
            self.compression = Compression::OFF;
        }
        self
    }

    /// The request to store `data`, block `blkid` of `object` at the level of its kind, in `txg`.
    /// Its fill count is that of a data block.
    pub(crate) fn request(
        &self,
        os: &ObjsetInner,
        data: Bytes,
        (object, blkid): (ObjectId, u64),
        txg: Txg,
    ) -> WriteReq {
        let mut req = WriteReq::new(data, self.kind.otype, self.kind.level, txg);
        req.compression = self.compression;
        req.checksum = self.checksum;
        req.copies = self.copies;
        req.pass = self.pass;
        req.embed = self.embed;
        req.nopwrite = self.nopwrite;
        req.crypt = os.ctx.key().cloned();
        req.sealed = os.sealed;
        req.dedup = self.dedup.filter(|_| !os.sealed);
        req.prio = write_prio(os.id);
        req.class = self.class;
        req.special_small = self.special_small;
        req.objset = os.id;
        req.object = object;
        req.blkid = BlkId(blkid);
        req
    }
}

/// The priority of writes of an object set. The MOS is written in passes, which wait for blocks of
/// the pass before when they overwrite them; at the priority of data each pass would wait for all
/// data of the txg.
fn write_prio(objset: u64) -> Prio {
    if objset == 0 { Prio::SyncWrite } else { Prio::AsyncWrite }
}
