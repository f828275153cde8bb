//! The first half of a write, CPU work: from lsize bytes to the stored bytes (format page 02
//! section 4, "Write pipeline rules").

use base::{MAX_BLOCK, Result, SECTOR};
use bdev::{Buf, Bytes};
use codec::{ChecksumAlgo, CompressAlgo, Compression};
use ondisk::blkptr::{Blkptr, EMBEDDED_MAX};
use ondisk::object_type::ObjectType;
use rt::cost::COPY;
use rt::{Place, place_of};

use crate::cost;
use crate::crypt::{Seal, Sealing};
use crate::request::{Body, Prepared, WriteReq};
use crate::zio::{Inner, Zio};

/// How to pack a block: the input of a CPU job.
struct Packing {
    compression: Compression,
    checksum: ChecksumAlgo,
    /// Stored sizes are multiples of this.
    min_alloc: u64,
    embeddable: bool,
    salt: Option<[u8; 32]>,
    seal: Option<Sealing>,
}

/// A packed block.
enum Packed {
    Embedded {
        payload: [u8; EMBEDDED_MAX],
        len: usize,
    },
    /// Other bytes than the block's own are stored: compressed or encrypted.
    Stored {
        data: Bytes,
        compressed: bool,
        sum: [u64; 4],
        seal: Option<Seal>,
    },
    /// The block itself is stored.
    Plain {
        sum: [u64; 4],
        seal: Option<Seal>,
    },
}

impl Packing {
    /// Bytes that [`Packing::run`] needs for the compressed block; `None` if it will not compress.
    fn room(&self, lsize: u64) -> Option<usize> {
        let compresses = !matches!(self.compression.algo, CompressAlgo::Off | CompressAlgo::Empty);
        // Compression of a block of one allocation unit saves nothing unless it fits in the
        // pointer.
        let may_gain = self.embeddable || lsize > self.min_alloc;
        (compresses && may_gain).then(|| (limit(lsize) as u64).next_multiple_of(self.min_alloc).min(lsize) as usize)
    }

    /// Packs `data`. `room` has the bytes of [`Packing::room`]; it is returned if unused.
    fn run(self, data: &[u8], room: Option<Buf>) -> (Result<Packed>, Option<Buf>) {
        let Some(mut room) = room else { return (self.plain(data), None) };
        let Some(n) = codec::compress(self.compression, data, &mut room, limit(data.len() as u64)) else {
            return (self.plain(data), Some(room));
        };
        if self.embeddable && n <= EMBEDDED_MAX {
            let mut payload = [0; EMBEDDED_MAX];
            payload[..n].copy_from_slice(&room[..n]);
            return (Ok(Packed::Embedded { payload, len: n }), Some(room));
        }
        let psize = (n as u64).next_multiple_of(self.min_alloc) as usize;
        if psize >= data.len() {
            return (self.plain(data), Some(room));
        }
        room[n..psize].fill(0);
        room.truncate(psize);
        (self.stored(room, true, data), None)
    }

    fn sum(&self, bytes: &[u8]) -> Result<[u64; 4]> {
        codec::compute(self.checksum, bytes, false, self.salt.as_ref()).map(|c| c.0)
    }

    /// Packs the block uncompressed, encrypted if its class is.
    fn plain(mut self, data: &[u8]) -> Result<Packed> {
        if self.seal.as_ref().is_some_and(Sealing::changes_bytes) {
            return self.stored(Buf::copy_from(data), false, data);
        }
        let seal = self.seal.take().map(|s| s.authenticate(data, data));
        Ok(Packed::Plain { sum: self.sum(data)?, seal })
    }

    /// Packs `bytes` to be stored for the block `data`, encrypted if its class is.
    fn stored(mut self, mut bytes: Buf, compressed: bool, data: &[u8]) -> Result<Packed> {
        let seal = match self.seal.take() {
            Some(seal) if seal.changes_bytes() => Some(seal.close(&mut bytes)?),
            Some(seal) => Some(seal.authenticate(&bytes, data)),
            None => None,
        };
        let sum = self.sum(&bytes)?;
        Ok(Packed::Stored { data: bytes.freeze(), compressed, sum, seal })
    }
}

/// Longest compressed size worth storing: at least an eighth must be saved.
fn limit(lsize: u64) -> usize {
    (lsize - (lsize >> 3)) as usize
}

impl Inner {
    /// Whether `data` is all zeros. Most blocks that are not show it in their first bytes.
    async fn is_zero(&self, data: &Bytes) -> bool {
        let head = data.len().min(SECTOR as usize);
        if !codec::is_zero(&data[..head]) {
            return false;
        }
        let rest = data.slice(head..);
        let cost = COPY.cost(rest.len() as u64);
        // Returned: this thread's free lists own the memory.
        let (zero, _rest) = self.rt.cpu(cost, move || (codec::is_zero(&rest), rest)).await;
        zero
    }
}

impl Zio {
    /// The first half of a write: hole detection, compression, checksum. Costly work runs in the
    /// CPU pool, so several may run concurrently. `Unsupported` for checksums that weir cannot
    /// compute.
    ///
    /// # Panics
    /// If the request's size is not a multiple of 512 from 512 to 16 MiB, or its compression is
    /// `inherit` or `on`.
    pub async fn prepare(&self, req: WriteReq) -> Result<Prepared> {
        let lsize = req.data.len() as u64;
        assert!(
            lsize > 0 && lsize <= MAX_BLOCK && lsize.is_multiple_of(SECTOR),
            "a block of {lsize} bytes cannot be written"
        );
        if let Some(packed) = req.packed.clone() {
            return self.prepare_packed(req, &packed).await;
        }
        let algo = req.compression.algo;
        let seal = match &req.crypt {
            Some(key) => key.seal(req.level, req.otype, req.dedup.is_some(), &self.0.rt),
            None if req.sealed && req.level > 0 => Some(Seal::keyless_indirect()),
            None => None,
        };
        // Encrypted dnodes are never compressed, but they may be holes.
        let may_be_hole = algo != CompressAlgo::Off || seal.is_some() && req.otype == ObjectType::DNODE;
        if may_be_hole && self.0.is_zero(&req.data).await {
            self.0.count(|s| s.holes += 1);
            return Ok(Prepared { req, body: Body::Hole });
        }
        let packing = Packing {
            compression: req.compression,
            checksum: req.checksum,
            min_alloc: self.0.min_alloc(),
            embeddable: req.embed && req.level == 0 && !req.otype.has_fill() && req.crypt.is_none(),
            salt: self.0.opts.get().salt,
            seal,
        };
        let room = packing.room(lsize);
        let mut cost = cost::pack(if room.is_some() { req.compression } else { Compression::OFF }, req.checksum, lsize);
        let mut cheap = cost::is_cheap(algo, req.checksum) && lsize <= cost::CHEAP_INLINE_MAX;
        if let Some(seal) = &packing.seal {
            let sealing = seal.cost(lsize);
            cheap &= place_of(sealing) == Place::Here;
            cost = cost + sealing;
        }
        let inline = cheap || place_of(cost) == Place::Here;
        // Allocate and drop the buffers on this thread, whose free lists own them.
        let room = room.map(Buf::for_overwrite);
        let (packed, _unused) = if inline {
            self.0.rt.spend(cost).await;
            packing.run(&req.data, room)
        } else {
            let data = req.data.clone();
            let job = move || {
                let (packed, room) = packing.run(&data, room);
                ((packed, room), data)
            };
            self.0.rt.cpu(cost, job).await.0
        };
        let body = match packed? {
            Packed::Plain { sum, seal } => Body::Stored {
                data: req.data.clone(),
                compress: CompressAlgo::Off,
                checksum: sum,
                seal: seal.map(Box::new),
            },
            Packed::Stored { data, compressed, sum, seal } => Body::Stored {
                data,
                compress: if compressed { algo } else { CompressAlgo::Off },
                checksum: sum,
                seal: seal.map(Box::new),
            },
            Packed::Embedded { payload, len } => {
                self.0.count(|s| s.embedded += 1);
                Body::Embedded(Blkptr::embedded(&payload[..len], lsize, algo as u8, req.otype, req.level, req.txg))
            }
        };
        Ok(Prepared { req, body })
    }

    /// As [`Zio::prepare`] for a block whose stored bytes are settled: they are summed up. Those of
    /// a block that is not encrypted are padded to the allocation unit, as ours are.
    async fn prepare_packed(&self, req: WriteReq, packed: &crate::request::Packed) -> Result<Prepared> {
        let (lsize, psize) = (req.data.len(), packed.data.len());
        assert!(
            psize > 0 && psize <= lsize && (psize as u64).is_multiple_of(SECTOR),
            "{psize} bytes cannot be stored for a block of {lsize}"
        );
        let padded = match packed.mark {
            Some(_) => psize,
            None => (psize as u64).next_multiple_of(self.0.min_alloc()).min(lsize as u64) as usize,
        };
        let data = if padded == psize {
            packed.data.clone()
        } else {
            self.0.rt.spend(COPY.cost(padded as u64)).await;
            let mut room = Buf::for_overwrite(padded);
            room[..psize].copy_from_slice(&packed.data);
            room[psize..].fill(0);
            room.freeze()
        };
        let (algo, salt) = (req.checksum, self.0.opts.get().salt);
        let summed = data.clone();
        let sum = move || (codec::compute(algo, &summed, false, salt.as_ref()).map(|c| c.0), summed);
        let (checksum, _summed) = self.0.rt.cpu(cost::checksum(algo, padded as u64), sum).await;
        let seal = packed.mark.map(|mark| Box::new(Seal::given(mark)));
        let body = Body::Stored { data, compress: packed.compress, checksum: checksum?, seal };
        Ok(Prepared { req, body })
    }
}
