//! Blocks: from a pointer to verified, decrypted, decompressed bytes in this machine's order.
//!
//! Every copy that a pointer names is asked for ([`crate::vdevs`]), until one content has the
//! pointer's checksum. Pointers are hostile: each is validated first, so that sizes are bounded by
//! the format's largest block and places by the devices. Metadata stays in a small cache.
//!
//! Checksums that need the pool's salt cannot be verified before the salt is known (it is in the
//! MOS directory); data without a checksum is taken as it is and counted ([`Blocks::unverified`]).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Error, ErrorKind, Result, ResultExt};
use codec::{ChecksumAlgo, CompressAlgo};
use ondisk::blkptr::{Blkptr, BpLimits};
use ondisk::byteswap::swap_block;
use ondisk::gang::{self, GANG_HEADER_SIZE, GANG_MAX_DEPTH};
use ondisk::object_type::ObjectType;
use zio::DataKey;

use crate::vdevs::Vdevs;

/// Bytes of one of the cache's two generations.
const CACHE_HALF: usize = 32 << 20;

/// What identifies a block in the cache: its first place and its checksum.
type CacheKey = [u64; 4];

/// Two generations of blocks: when the young one is full it replaces the old one.
#[derive(Default)]
struct Cache {
    young: BTreeMap<CacheKey, Rc<[u8]>>,
    old: BTreeMap<CacheKey, Rc<[u8]>>,
    bytes: usize,
}

impl Cache {
    fn get(&mut self, key: &CacheKey) -> Option<Rc<[u8]>> {
        if let Some(b) = self.young.get(key) {
            return Some(b.clone());
        }
        let b = self.old.remove(key)?;
        self.put(*key, b.clone());
        Some(b)
    }
    fn put(&mut self, key: CacheKey, b: Rc<[u8]>) {
        if self.bytes + b.len() > CACHE_HALF {
            self.old = std::mem::take(&mut self.young);
            self.bytes = 0;
        }
        self.bytes += b.len();
        self.young.insert(key, b);
    }
}

/// Reads blocks of one pool.
pub struct Blocks {
    /// Where they are.
    pub vdevs: Vdevs,
    /// Salt of salted checksums, once it is known.
    pub salt: Cell<Option<[u8; 32]>>,
    /// Blocks that no checksum covers, taken as they are.
    pub unverified: Cell<u64>,
    cache: RefCell<Cache>,
}

fn key_of(bp: &Blkptr) -> CacheKey {
    [bp.0[0], bp.0[1], bp.0[10], bp.0[12]]
}

impl Blocks {
    /// Over these vdevs.
    pub fn new(vdevs: Vdevs) -> Blocks {
        Blocks { vdevs, salt: Cell::new(None), unverified: Cell::new(0), cache: RefCell::default() }
    }

    /// Validates a pointer without reading its block.
    pub fn validate(&self, bp: &Blkptr) -> Result<()> {
        // Places are checked copy by copy: one on a device that is gone says nothing of the others.
        bp.validate(&BpLimits::FORMAT)
    }

    /// The content of a block; a hole is zeros. `key` opens encrypted blocks. Errors: `Checksum` if
    /// no copy is right, `Denied` without the key, `Corrupt` for an impossible pointer.
    pub fn read(&self, bp: &Blkptr, key: Option<&DataKey>) -> Result<Rc<[u8]>> {
        self.validate(bp)?;
        if bp.is_hole() {
            return Ok(vec![0; bp.lsize() as usize].into());
        }
        if bp.is_redacted() {
            return Err(Error::new(ErrorKind::Io, format!("block {bp} was redacted")));
        }
        if bp.is_embedded() {
            let (payload, n) = bp.payload();
            return Ok(logical(bp, &payload[..n])?.into());
        }
        let metadata = bp.level() > 0 || bp.otype().is_metadata();
        if metadata
            && let Some(b) = self.cache.borrow_mut().get(&key_of(bp))
            && b.len() as u64 == bp.lsize()
        {
            return Ok(b);
        }
        let mut raw = self.stored(bp, 0)?;
        if bp.is_encrypted_data() {
            let key = key.ok_or_else(|| Error::new(ErrorKind::Denied, "its key is not known"))?;
            key.open_stored(bp, &mut raw).at(|| format!("block {bp}"))?;
        }
        let b: Rc<[u8]> = logical(bp, &raw)?.into();
        if metadata {
            self.cache.borrow_mut().put(key_of(bp), b.clone());
        }
        Ok(b)
    }

    /// Whether a block can be read; does not decompress.
    pub fn is_readable(&self, bp: &Blkptr) -> bool {
        let stored = bp.is_hole() || bp.is_embedded() && !bp.is_redacted();
        self.validate(bp).is_ok() && (stored || !bp.is_redacted() && self.stored(bp, 0).is_ok())
    }

    /// The bytes of a validated pointer as they are stored, from the first copy that is right.
    fn stored(&self, bp: &Blkptr, depth: u32) -> Result<Vec<u8>> {
        let algo = bp.checksum_algo().ok_or_else(|| Error::corrupt(format!("block {bp}: unknown checksum")))?;
        if algo.is_salted() && self.salt.get().is_none() {
            return Err(Error::unsupported(format!("block {bp}: its checksum needs the pool's salt, which is lost")));
        }
        let unchecked = matches!(algo, ChecksumAlgo::Off | ChecksumAlgo::NoParity);
        for dva in bp.dvas() {
            let found = if dva.gang() {
                self.gang(bp, dva.vdev().0, dva.offset(), depth).filter(|b| self.is_right(bp, algo, b))
            } else {
                let size = bp.psize() as usize;
                self.vdevs.read(dva.vdev().0, dva.offset(), size, bp.phys_birth(), &mut |b| self.is_right(bp, algo, b))
            };
            if let Some(b) = found {
                self.unverified.set(self.unverified.get() + u64::from(unchecked));
                return Ok(b);
            }
        }
        Err(Error::new(ErrorKind::Checksum, format!("no copy of block {bp} is right")))
    }

    /// A gang block put together from the pieces that its header names.
    fn gang(&self, bp: &Blkptr, vdev: u32, off: u64, depth: u32) -> Option<Vec<u8>> {
        if depth >= GANG_MAX_DEPTH {
            return None;
        }
        let accept = &mut |b: &[u8]| gang::parse(b, bp).is_ok();
        // The smallest unit of allocation among the copies; an old header is its first 512 bytes.
        let units = bp.dvas().filter_map(|d| Some(self.vdevs.top(d.vdev().0)?.gang_header()));
        let size = units.min().unwrap_or(GANG_HEADER_SIZE);
        let header = self.vdevs.read(vdev, off, size, bp.phys_birth(), accept)?;
        let mut out = Vec::with_capacity(bp.psize() as usize);
        for child in gang::parse(&header, bp).ok()?.iter().filter(|c| !c.is_hole()) {
            if child.is_embedded() || self.validate(child).is_err() {
                return None;
            }
            out.extend_from_slice(&self.stored(child, depth + 1).ok()?);
        }
        Some(out)
    }

    /// Whether stored bytes have the pointer's checksum.
    fn is_right(&self, bp: &Blkptr, algo: ChecksumAlgo, data: &[u8]) -> bool {
        if matches!(algo, ChecksumAlgo::Off | ChecksumAlgo::NoParity) {
            return true;
        }
        let salt = self.salt.get();
        let Ok(sum) = codec::compute(algo, data, !bp.is_little_endian(), salt.as_ref()) else { return false };
        let (sum, want) = (sum.0, bp.checksum_words());
        if bp.encrypted() && bp.otype() != ObjectType::OBJSET {
            // Half of the words hold a MAC; weak sums are folded into the other half.
            return match algo {
                ChecksumAlgo::Fletcher2 | ChecksumAlgo::Fletcher4 | ChecksumAlgo::Edonr => {
                    [sum[0] ^ sum[2], sum[1] ^ sum[3]] == want[..2]
                }
                _ => sum[..2] == want[..2],
            };
        }
        sum == want
    }
}

/// From stored bytes to content.
fn logical(bp: &Blkptr, raw: &[u8]) -> Result<Vec<u8>> {
    let mut out = vec![0u8; bp.lsize() as usize];
    match bp.compress() {
        Some(CompressAlgo::Empty | CompressAlgo::Off) => codec::decompress(CompressAlgo::Off, raw, &mut out),
        Some(c) => codec::decompress(c, raw, &mut out),
        None => Err(Error::corrupt("unknown compression")),
    }
    .at(|| format!("block {bp}"))?;
    if bp.needs_swap() {
        swap_block(bp.otype(), bp.level(), &mut out);
    }
    Ok(out)
}
