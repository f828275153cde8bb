//! Space maps as objects of the MOS (format page 06 section 2): creation, header, free.
//!
//! Metaslabs, the checkpoint, dirty time logs and log space maps all store their entries in such
//! objects. The header is the bonus; it is long, with a histogram, if the feature
//! `spacemap_histogram` was enabled when the object was created, and the feature counts the objects
//! with a long one.

use base::{Error, ObjectId, Result};
use dmu::{Dnode, ObjSpec, Objset, Tx};
use dsl::features::Features;
use ondisk::feature::FeatureId;
use ondisk::object_type::ObjectType;
use ondisk::space_map::{HISTOGRAM_BUCKETS, SPACE_MAP_INDBLKSHIFT, SPACE_MAP_SIZE, SPACE_MAP_SIZE_V0, SpaceMapPhys};

/// Whether the header of a space map has a histogram.
fn has_histogram(map: &Dnode) -> bool {
    map.bonus().len() >= SPACE_MAP_SIZE
}

/// Creates an empty space map with blocks of `block_size` bytes.
pub(crate) async fn alloc_space_map(mos: &Objset, features: &Features, block_size: u32, tx: &Tx) -> Result<Dnode> {
    let long = features.is_enabled(FeatureId::SpacemapHistogram);
    let bonus = if long { SPACE_MAP_SIZE } else { SPACE_MAP_SIZE_V0 };
    let spec = ObjSpec::new(ObjectType::SPACE_MAP, block_size).bonus(ObjectType::SPACE_MAP_HEADER, bonus as u16);
    let map = mos.alloc(spec.indblkshift(SPACE_MAP_INDBLKSHIFT), tx).await?;
    if long {
        features.add(FeatureId::SpacemapHistogram, 1, tx).await?;
    }
    set_header(&map, 0, 0, [0; HISTOGRAM_BUCKETS], tx)?;
    Ok(map)
}

/// The header of a space map. Error: `Corrupt` if it is malformed, or counts more bytes of entries
/// than its object has blocks for: entries are appended at that place.
pub(crate) fn header(map: &Dnode) -> Result<SpaceMapPhys> {
    let phys = map.with_bonus(SpaceMapPhys::parse)?;
    let blocks = map.max_blkid().saturating_add(1);
    let most = blocks.saturating_mul(u64::from(map.block_size())).min(i64::MAX as u64);
    if phys.length > most {
        return Err(Error::corrupt(format!(
            "space map {} of {} bytes is longer than its object, {most} bytes",
            map.object(),
            phys.length
        )));
    }
    Ok(phys)
}

/// Writes the header: bytes of entries, allocated bytes, the histogram. Returns the stored
/// histogram: None for a short header.
pub(crate) fn set_header(
    map: &Dnode,
    length: u64,
    alloc: i64,
    histogram: [u64; HISTOGRAM_BUCKETS],
    tx: &Tx,
) -> Result<Option<[u64; HISTOGRAM_BUCKETS]>> {
    let histogram = has_histogram(map).then_some(histogram);
    let phys = SpaceMapPhys { object: map.object().0, length, alloc, histogram };
    let mut bonus = vec![0; phys.size()];
    phys.write_to(&mut bonus);
    map.set_bonus(&bonus, tx)?;
    Ok(histogram)
}

/// Frees a space map.
pub(crate) async fn free_space_map(mos: &Objset, features: &Features, object: ObjectId, tx: &Tx) -> Result<()> {
    let long = has_histogram(&mos.hold(object).await?);
    mos.free(object, tx).await?;
    if long {
        features.add(FeatureId::SpacemapHistogram, -1, tx).await?;
    }
    Ok(())
}
