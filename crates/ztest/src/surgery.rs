//! Damage that no checksum shows: the block tree of a pool's images, and rewriting blocks with
//! everything above them up to the uberblock.
//!
//! This is a small reader and writer of its own, beside the engine: it handles block pointers,
//! dnodes and object sets only. A rewritten block is stored uncompressed in a place that nothing
//! uses; its pointer changes in the block above, which is rewritten in turn, up to the uberblock,
//! which is sealed again in all labels. Space maps are left as they are: where the pool has a file
//! of records that begin with [`SPARE`], new blocks go into those, which are allocated, so that the
//! pool can free them again.

use codec::ChecksumAlgo;
use ondisk::blkptr::{BLKPTR_SIZE, Blkptr, CHECKSUM_OFF, Dva};
use ondisk::dnode::{DNODE_CORE, DNODE_SIZE, DnodePhys};
use ondisk::label::{DATA_START, LABELS, label_offsets};
use ondisk::object_type::ObjectType;
use ondisk::uberblock::{self, Uberblock};
use sim::DiskImage;

use crate::Check;

/// How each record of a file begins whose space is there for rewritten blocks.
pub const SPARE: &[u8; 16] = b"spare space here";

/// A block that a pointer leads to.
#[derive(Clone, Debug)]
pub struct Block {
    /// The block that holds the pointer, and where in it; none for the root.
    pub parent: Option<(usize, usize)>,
    /// The pointer.
    pub bp: Blkptr,
    /// The content, decompressed.
    pub data: Vec<u8>,
}

/// The images of a pool and all metadata blocks in them (of data blocks a few).
pub struct Patient {
    /// The disks.
    pub images: Vec<DiskImage>,
    /// The root first, every block after the one that holds its pointer.
    pub blocks: Vec<Block>,
    /// The newest uberblock.
    pub ub: Uberblock,
    /// Whether there is data that no checksum covers.
    pub unchecked: bool,
    ashift: u64,
    spare: Spare,
}

/// Places for rewritten blocks on the first device.
#[derive(Clone, Default)]
struct Spare {
    /// Offset and bytes of allocated records that are given up for this.
    records: Vec<(u64, u64)>,
    /// The end of a place that nothing uses.
    end: u64,
}

impl Spare {
    fn take(&mut self, asize: u64) -> u64 {
        if let Some(record) = self.records.iter_mut().find(|r| r.1 >= asize) {
            record.1 -= asize;
            return record.0 + record.1;
        }
        self.end -= asize;
        self.end
    }
}

/// Data blocks that are kept: more would only be more of the same.
const DATA_MAX: usize = 4000;

fn read(images: &[DiskImage], bp: &Blkptr) -> Option<Vec<u8>> {
    let dva = bp.dva(0);
    let image = images.get(dva.vdev().0 as usize)?;
    if dva.gang() || bp.is_embedded() || bp.is_hole() {
        return None;
    }
    let at = dva.offset() + DATA_START;
    if at + bp.psize() > image.size() {
        return None;
    }
    let raw = image.read_vec(at, bp.psize() as usize);
    match bp.compress()? {
        codec::CompressAlgo::Off => Some(raw),
        algo => {
            let mut out = vec![0; bp.lsize() as usize];
            codec::decompress(algo, &raw, &mut out).ok()?;
            Some(out)
        }
    }
}

/// Places of block pointers in a dnode at `at`.
fn dnode_pointers(block: &[u8], at: usize, mos: bool, out: &mut Vec<usize>) -> usize {
    let slots = usize::from(block[at + 12]) + 1;
    let size = slots * DNODE_SIZE;
    if block[at] == 0 || at + size > block.len() || DnodePhys::parse(&block[at..at + size]).is_err() {
        return 1;
    }
    let nblkptr = usize::from(block[at + 3]);
    let first = at + DNODE_CORE;
    out.extend((0..nblkptr).map(|i| first + i * BLKPTR_SIZE));
    if block[at + 7] & ondisk::dnode::DNODE_SPILL_BLKPTR != 0 {
        out.push(at + size - BLKPTR_SIZE);
    }
    // The object set of a dataset is named in the bonus.
    let bonus = first + nblkptr * BLKPTR_SIZE;
    if mos && block[at + 4] == ObjectType::DSL_DATASET.0 && bonus + 256 <= at + size {
        out.push(bonus + 128);
    }
    slots
}

/// Places of block pointers in a block.
fn pointers(bp: &Blkptr, data: &[u8], mos: bool) -> Vec<usize> {
    let mut out = Vec::new();
    if bp.level() > 0 {
        out.extend((0..data.len() / BLKPTR_SIZE).map(|i| i * BLKPTR_SIZE));
    } else if bp.otype() == ObjectType::OBJSET {
        dnode_pointers(data, 0, false, &mut out);
        for at in [1024, 1536, 2048] {
            if at + DNODE_SIZE <= data.len() {
                dnode_pointers(data, at, false, &mut out);
            }
        }
    } else if bp.otype() == ObjectType::DNODE {
        let mut at = 0;
        while at < data.len() {
            at += dnode_pointers(data, at, mos, &mut out) * DNODE_SIZE;
        }
    }
    out
}

impl Patient {
    /// Reads the tree.
    pub fn open(images: Vec<DiskImage>, ashift: u8) -> Check<Patient> {
        let ashift = u64::from(ashift);
        let label = label_offsets(images[0].size())[0];
        let ring = images[0].read_vec(label + ondisk::label::RING_OFFSET, ondisk::label::RING_SIZE);
        let found = uberblock::scan_ring(&ring, ashift, label).filter_map(|(_, u)| u.ok());
        let ub = uberblock::best(found).ok_or("no uberblock")?;
        let mut patient = Patient { spare: Spare::default(), unchecked: false, images, blocks: Vec::new(), ub, ashift };
        let root = patient.ub.rootbp;
        let data = read(&patient.images, &root).ok_or("the root cannot be read")?;
        patient.blocks.push(Block { parent: None, bp: root, data });
        let mut data_blocks = 0;
        let mut next = 0;
        // Whether a block belongs to the MOS.
        let mut in_mos = vec![true];
        let mut highest = 0;
        while next < patient.blocks.len() {
            let block = patient.blocks[next].clone();
            for at in pointers(&block.bp, &block.data, in_mos[next]) {
                let Some(bp) =
                    Blkptr::parse(&block.data[at..at + BLKPTR_SIZE]).ok().filter(|b| !b.is_hole() && !b.is_embedded())
                else {
                    continue;
                };
                for dva in bp.dvas() {
                    if dva.vdev().0 == 0 {
                        highest = highest.max(dva.offset() + dva.asize());
                    }
                }
                let plain = bp.level() == 0 && bp.otype() == ObjectType::PLAIN_FILE;
                data_blocks += usize::from(plain);
                patient.unchecked |= bp.checksum_raw() == CHECKSUM_OFF;
                if plain && data_blocks > DATA_MAX {
                    continue;
                }
                let Some(data) = read(&patient.images, &bp) else { continue };
                if plain && data.starts_with(SPARE) {
                    let of = bp.dvas().find(|d| d.vdev().0 == 0);
                    patient.spare.records.extend(of.map(|d| (d.offset(), d.asize())));
                    continue;
                }
                patient.blocks.push(Block { parent: Some((next, at)), bp, data });
                in_mos.push(in_mos[next] && bp.otype() != ObjectType::OBJSET);
            }
            next += 1;
        }
        let usable = patient.images[0].size() - DATA_START - ondisk::label::END_RESERVED;
        // Within the last metaslab, so that freeing such a block is no error by itself.
        let usable = usable & !(ondisk::label::LABEL_SIZE - 1);
        let ms_shift = ondisk::vdev_config::metaslab_shift_for(usable);
        patient.spare.end = usable >> ms_shift << ms_shift;
        if highest + (4 << 20) > patient.spare.end {
            return Err("no spare room".into());
        }
        Ok(patient)
    }

    /// A copy of the images with block `n` having this content, all checksums above repaired.
    pub fn with_content(&self, n: usize, data: Vec<u8>) -> Vec<DiskImage> {
        let mut images = self.images.clone();
        let mut spare = self.spare.clone();
        let bp = self.store(&mut images, &mut spare, &self.blocks[n].bp, &data);
        self.with_pointer(images, spare, n, bp)
    }

    /// As `with_content`, for the bytes as they are stored, in place.
    pub fn with_stored(&self, n: usize, change: impl FnOnce(&mut Vec<u8>)) -> Vec<DiskImage> {
        let mut images = self.images.clone();
        let mut bp = self.blocks[n].bp;
        let dva = bp.dva(0);
        let mut raw = images[dva.vdev().0 as usize].read_vec(dva.offset() + DATA_START, bp.psize() as usize);
        change(&mut raw);
        raw.resize(bp.psize() as usize, 0);
        for dva in bp.dvas() {
            images[dva.vdev().0 as usize].write(dva.offset() + DATA_START, &raw);
        }
        seal(&mut bp, &raw);
        self.with_pointer(images, self.spare.clone(), n, bp)
    }

    fn store(&self, images: &mut [DiskImage], spare: &mut Spare, old: &Blkptr, data: &[u8]) -> Blkptr {
        let asize = (data.len() as u64).next_multiple_of(1 << self.ashift);
        let at = spare.take(asize);
        images[0].write(at + DATA_START, data);
        let mut bp = *old;
        for i in 0..3 {
            bp.set_dva(i, Dva::default());
        }
        bp.set_dva(0, Dva::new(base::VdevId(0), at, asize, false));
        bp.set_psize(data.len() as u64);
        bp.set_compress(ondisk::blkptr::COMPRESS_OFF);
        seal(&mut bp, data);
        bp
    }

    fn with_pointer(&self, mut images: Vec<DiskImage>, mut spare: Spare, n: usize, bp: Blkptr) -> Vec<DiskImage> {
        let (mut n, mut bp) = (n, bp);
        while let Some((parent, at)) = self.blocks[n].parent {
            let mut data = self.blocks[parent].data.clone();
            bp.write_to(&mut data[at..at + BLKPTR_SIZE]);
            bp = self.store(&mut images, &mut spare, &self.blocks[parent].bp, &data);
            n = parent;
        }
        let ub = Uberblock { rootbp: bp, ..self.ub.clone() };
        self.seal_uberblock(&mut images, |slot_size, at| ub.seal(slot_size, at));
        images
    }

    /// The images with another uberblock, sealed.
    pub fn with_uberblock(&self, change: impl Fn(&mut Vec<u8>)) -> Vec<DiskImage> {
        let mut images = self.images.clone();
        self.seal_uberblock(&mut images, |slot_size, at| {
            let mut slot = self.ub.seal(slot_size, at);
            change(&mut slot);
            codec::embedded_sha256_seal(&mut slot, [at, 0, 0, 0]);
            slot
        });
        images
    }

    fn seal_uberblock(&self, images: &mut [DiskImage], make: impl Fn(usize, u64) -> Vec<u8>) {
        let slot = uberblock::slot_for_txg(self.ub.txg, self.ashift, false);
        for image in images.iter_mut() {
            for label in label_offsets(image.size()) {
                let at = uberblock::slot_offset(label, self.ashift, slot);
                image.write(at, &make(uberblock::slot_size(self.ashift), at));
            }
        }
    }

    /// The images with changed label configurations, sealed.
    pub fn with_labels(&self, labels: [bool; LABELS], change: impl Fn(&mut [u8])) -> Vec<DiskImage> {
        let mut images = self.images.clone();
        for image in images.iter_mut() {
            for (label, _) in label_offsets(image.size()).into_iter().zip(labels).filter(|(_, on)| *on) {
                let at = ondisk::label::config_offset(label);
                let mut region = image.read_vec(at, ondisk::label::CONFIG_SIZE);
                change(&mut region);
                codec::embedded_sha256_seal(&mut region, [at, 0, 0, 0]);
                image.write(at, &region);
            }
        }
        images
    }
}

/// Sets the pointer's checksum from the stored bytes.
fn seal(bp: &mut Blkptr, raw: &[u8]) {
    let algo = bp.checksum_algo().unwrap_or(ChecksumAlgo::Fletcher4);
    if let Ok(sum) = codec::checksum::compute(algo, raw, !bp.is_little_endian(), None) {
        bp.set_checksum_words(sum.0);
    }
}
