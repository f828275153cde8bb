//! The configuration of a pool: the nvlist in the MOS and the one in each label, both derived from
//! the vdev tree and the pool's state.

use base::{Error, ObjectId, Result, ResultExt};
use dmu::{ObjSpec, Objset, Tx};
use ondisk::bytes::le64;
use ondisk::nvlist::NvList;
use ondisk::object_type::ObjectType;

/// Block size of packed nvlist objects (format page 03 section 7).
const PACKED_BLKSZ: u32 = 16 << 10;
/// Largest packed nvlist that is read, in bytes; typical ones have a few KiB to a few hundred.
const PACKED_MAX: u64 = 64 << 20;

/// Creates an object for a packed nvlist.
pub(crate) async fn create_packed(mos: &Objset, tx: &Tx) -> Result<ObjectId> {
    let spec = ObjSpec::new(ObjectType::PACKED_NVLIST, PACKED_BLKSZ).bonus(ObjectType::PACKED_NVLIST_SIZE, 8);
    Ok(mos.alloc(spec, tx).await?.object())
}

/// Replaces the list in such an object.
pub(crate) async fn write_packed(mos: &Objset, object: ObjectId, list: &NvList, tx: &Tx) -> Result<()> {
    let dn = mos.hold(object).await?;
    let bytes = list.encode_xdr();
    dn.write(0, &bytes, tx).await?;
    dn.set_bonus(&(bytes.len() as u64).to_le_bytes(), tx)
}

/// Reads the list of such an object.
pub(crate) async fn read_packed(mos: &Objset, object: ObjectId) -> Result<NvList> {
    let place = || format!("packed nvlist object {object}");
    let dn = mos.hold(object).await.at(place)?;
    let len = dn.with_bonus(|b| if b.len() >= 8 { le64(b, 0) } else { 0 });
    if len == 0 || len > PACKED_MAX {
        return Err(Error::corrupt(format!("{} says that it has {len} bytes", place())));
    }
    let mut bytes = vec![0; len as usize];
    dn.read(0, &mut bytes).await.at(place)?;
    NvList::decode(&bytes).at(place)
}
