//! Initialization of a new volume: its two objects (format page 08 section 10).

use std::rc::Rc;

use base::{Error, MAX_BLOCK, Result};
use dmu::{ObjSpec, Objset, Tx, zap};
use ondisk::object_type::ObjectType;

use crate::size::check_size;
use crate::{DATA_OBJ, PROPS_OBJ, SIZE_KEY};

/// Bytes of a block of a ZAP.
const ZAP_BLOCK: u32 = 512;

/// The initialization to pass to the DSL, of a volume of `size` bytes in blocks of `block_size`
/// bytes.
///
/// # Errors
/// `Invalid` if a volume cannot have them ([`check_size`]).
pub fn init_volume(size: u64, block_size: u32) -> Result<dsl::Init> {
    if !block_size.is_power_of_two() || !(512..=MAX_BLOCK).contains(&u64::from(block_size)) {
        return Err(Error::invalid(format!("a volume has no blocks of {block_size} bytes")));
    }
    check_size(size, block_size)?;
    Ok(Box::new(move |os, tx| Box::pin(fill(os, tx, size, block_size))))
}

async fn fill(os: Objset, tx: Rc<Tx>, size: u64, block_size: u32) -> Result<()> {
    os.alloc_at(DATA_OBJ, ObjSpec::new(ObjectType::ZVOL, block_size), &tx).await?;
    let spec = ObjSpec::new(ObjectType::ZVOL_PROP, ZAP_BLOCK);
    let props = zap::create_at(&os, PROPS_OBJ, spec, 0, &tx).await?;
    zap::add_u64(&props, SIZE_KEY.as_bytes(), size, &tx).await
}
