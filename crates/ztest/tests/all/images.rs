//! Disks of a world for the checker that shares no code with the engine, and disks from the
//! fixtures.

use std::path::Path;
use std::rc::Rc;

use ondisk::blkptr::Blkptr;
use sim::DiskImage;
use zdb::PoolReader;
use zdb::device::{Device, Labeled, ReadAt};
use zdb::objset::{Object, Objset};

#[path = "../../../zvol/tests/all/common/archive.rs"]
#[allow(clippy::unwrap_used, dead_code)]
mod archive;

struct Image(DiskImage);

impl ReadAt for Image {
    fn read_at(&self, off: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.0.read(off, buf);
        Ok(())
    }
}

/// The disks of a pool of `tests/fixtures`.
pub fn fixture(pool: &str) -> Vec<DiskImage> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/fixtures/{pool}.tar.zst"));
    let disks = archive::unpack(&path).into_iter().filter(|(name, _)| name.ends_with(".img"));
    disks
        .map(|(_, file)| {
            let mut image = DiskImage::zeroed(file.size);
            file.parts.iter().for_each(|(at, part)| image.write(*at, part));
            image
        })
        .collect()
}

/// The checker's view of the pool on these disks.
pub fn reader(images: &[DiskImage]) -> PoolReader {
    let labeled = images.iter().map(|image| {
        Labeled::scan(Rc::new(Device::over(Path::new("image"), image.size(), Box::new(Image(image.clone())))))
    });
    PoolReader::from_devices(labeled.collect(), &zdb::OpenOpts::default()).expect("the images have a pool")
}

/// A block and its owner.
pub struct Block {
    /// Its pointer.
    pub bp: Blkptr,
    /// The dataset, `mos` for the MOS.
    pub set: String,
    /// The object; 0 is the meta-dnode, and the object set's own block.
    pub object: u64,
}

fn add(object: &Object, bp: &Blkptr, out: &mut Vec<Block>) {
    if bp.is_hole() || bp.is_embedded() {
        return;
    }
    out.push(Block { bp: *bp, set: object.set.to_string(), object: object.num });
    if bp.level() > 0 {
        let block = object.indirect(bp, bp.level()).expect("readable");
        Blkptr::iter_block(&block).for_each(|child| add(object, &child, out));
    }
}

fn add_set(set: &Objset, out: &mut Vec<Block>) {
    out.push(Block { bp: set.bp, set: set.name.to_string(), object: 0 });
    let mut objects = vec![set.meta()];
    objects.extend(set.accounting().into_iter().flatten());
    set.for_each_object(&mut |o| objects.push(o.expect("readable")));
    for object in &objects {
        object.dn.bps().iter().for_each(|bp| add(object, bp, out));
        object.dn.spill.iter().for_each(|bp| add(object, bp, out));
    }
}

/// Every block of the MOS and of all datasets.
pub fn blocks(reader: &PoolReader) -> Vec<Block> {
    let mut out = Vec::new();
    add_set(&reader.mos, &mut out);
    let dsl = zdb::dsl::Dsl::load(reader).expect("readable");
    for ds in dsl.datasets.values().filter(|d| !d.phys.bp.is_hole()) {
        add_set(&reader.open_dataset(&ds.name, ds.obj, &ds.phys.bp).expect("readable"), &mut out);
    }
    out
}
