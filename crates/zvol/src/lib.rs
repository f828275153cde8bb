//! Volumes: an object set with one array of blocks (format pages 08 section 10 and 16 section 8).
//!
//! A *volume* is a disk inside a pool. Object 1 of its object set is the data, in blocks of
//! `volblocksize`, which never changes; object 2 is a ZAP whose entry `size` is the length in
//! bytes, a multiple of the block size. Blocks never written, or discarded, are holes and read as
//! zeros.
//!
//! Volumes are read-only so far, but opening one replays its intent log. The normal path of a read:
//! truncate the range at the end of the volume, read its blocks.

mod replay;

use std::rc::Rc;

use base::{Error, MAX_BLOCK, ObjectId, Result, ResultExt};
use bdev::Bytes;
use dmu::{Dnode, zap};
use dsl::Dataset;
use ondisk::object_type::ObjectType;
use ondisk::objset::ObjsetType;

/// The object with the data.
pub const DATA_OBJ: ObjectId = ObjectId(1);
/// The ZAP with the size.
pub const PROPS_OBJ: ObjectId = ObjectId(2);
/// The entry of [`PROPS_OBJ`] that is the size in bytes.
pub const SIZE_KEY: &str = "size";
/// Largest volume in bytes.
pub const SIZE_MAX: u64 = i64::MAX as u64;

/// A volume in use: its dataset is busy until this is dropped. All operations may run concurrently.
pub struct Zvol {
    ds: Rc<Dataset>,
    data: Dnode,
    size: u64,
}

impl Zvol {
    /// Opens the volume of a dataset: of a head or of a snapshot.
    pub async fn open(ds: &Rc<Dataset>) -> Result<Rc<Zvol>> {
        let place = || format!("volume '{}'", ds.name());
        ds.check_complete()?;
        let os = ds.objset().await?;
        if os.os_type() != ObjsetType::Zvol {
            return Err(Error::invalid(format!("dataset '{}' is no volume", ds.name())));
        }
        let data = os.hold(DATA_OBJ).await.at(place)?;
        if data.otype() != ObjectType::ZVOL {
            return Err(Error::corrupt(format!("{}: object {DATA_OBJ} has the type {}", place(), data.otype())));
        }
        let props = os.hold(PROPS_OBJ).await.at(place)?;
        let size = zap::lookup_u64(&props, SIZE_KEY.as_bytes()).await.at(place)?;
        let size = size.ok_or_else(|| Error::corrupt(format!("{} says no size", place())))?;
        let block = u64::from(data.block_size());
        if !block.is_power_of_two() || block > MAX_BLOCK {
            return Err(Error::corrupt(format!("{} has blocks of {block} bytes", place())));
        }
        if size == 0 || size > SIZE_MAX || !size.is_multiple_of(block) {
            return Err(Error::corrupt(format!("{} has {size} bytes in blocks of {block}", place())));
        }
        if ds.is_writable() && os.is_writable() {
            let target = replay::Target { os: &os, data: &data, size };
            let done = zil::replay::replay(&os, &target).await.at(|| format!("{}: its intent log", place()))?;
            if let Some(e) = done.failed {
                return Err(e.at(format!("{}: replay", place())));
            }
        }
        ds.begin_use();
        Ok(Rc::new(Zvol { ds: ds.clone(), data, size }))
    }

    /// Its dataset.
    pub fn dataset(&self) -> &Rc<Dataset> {
        &self.ds
    }
    /// The dataset's name.
    pub fn name(&self) -> String {
        self.ds.name()
    }
    /// Its length in bytes, a multiple of [`Zvol::block_size`].
    pub fn size(&self) -> u64 {
        self.size
    }
    /// `volblocksize`: bytes of a block, a power of two from 512 to 16 MiB.
    pub fn block_size(&self) -> u32 {
        self.data.block_size()
    }
    /// Up to `len` bytes from `off`, fewer at the end of the volume, as slices of blocks.
    pub async fn read(&self, off: u64, len: u64) -> Result<Vec<Bytes>> {
        let len = len.min(self.size.saturating_sub(off));
        if len == 0 {
            return Ok(Vec::new());
        }
        self.data.read_range(off, len).await.at(|| format!("volume '{}'", self.name()))
    }

    /// The first offset at or after `off` with data; none if only holes follow.
    pub async fn next_data(&self, off: u64) -> Result<Option<u64>> {
        Ok(self.data.next_data(off).await?.filter(|&at| at < self.size))
    }
    /// The first offset at or after `off` in a hole, at most the end of the volume.
    pub async fn next_hole(&self, off: u64) -> Result<u64> {
        Ok(self.data.next_hole(off).await?.min(self.size))
    }
}

impl Drop for Zvol {
    fn drop(&mut self) {
        self.ds.end_use();
    }
}
