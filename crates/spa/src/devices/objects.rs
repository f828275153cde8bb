//! The objects of vdevs in the MOS (format page 06 section 1): ZAPs with the list of them, metaslab
//! arrays, dirty time logs.

use std::rc::Rc;

use base::{Guid, ObjectId, Result};
use dmu::{Dnode, ObjSpec, Objset, Tx, zap};
use ondisk::bytes::le64;
use ondisk::feature::FeatureId;
use ondisk::object_type::ObjectType;
use ondisk::vdev_config::VdevConfig;
use vdev::Top;

use crate::commit::config::Config;
use crate::commit::space_map::free_space_map;
use crate::stack::{BIAS_KEY, METASLABS_MAX, Stack};

/// Entry of the MOS directory: the list of all ZAPs of vdevs.
pub(crate) const ZAP_MAP: &[u8] = b"com.delphix:vdev_zap_map";

/// Entries of a top-level vdev's ZAP that name objects of the vdev.
const OWN_MAPS: [&[u8]; 1] = [b"com.delphix:pool_checkpoint_sm"];
const OWN_ARRAYS: [&[u8]; 1] = [b"com.delphix:ms_unflushed_phys_txgs"];

/// The list of the ZAPs of all vdevs, if the pool has them.
pub(crate) async fn zap_map(stack: &Stack) -> Result<Option<Dnode>> {
    match zap::lookup_u64(&stack.directory, ZAP_MAP).await? {
        Some(object) => Ok(Some(stack.mos.hold(ObjectId(object)).await?)),
        None => Ok(None),
    }
}

/// Frees the objects of a leaf that left the tree: its ZAP, its dirty time log.
pub(crate) async fn free_leaf_objects(stack: &Stack, config: &VdevConfig, tx: &Tx) -> Result<()> {
    if let Some(object) = config.zap_leaf.filter(|o| o.0 != 0) {
        free_vdev_zap(stack, object, tx).await?;
    }
    if let Some(object) = config.dtl.filter(|o| o.0 != 0) {
        free_space_map(&stack.mos, &stack.features, object, tx).await?;
    }
    Ok(())
}

/// Frees a vdev's ZAP.
pub(crate) async fn free_vdev_zap(stack: &Stack, object: ObjectId, tx: &Tx) -> Result<()> {
    if let Some(map) = zap_map(stack).await? {
        zap::remove_int(&map, object.0, tx).await?;
    }
    stack.mos.free(object, tx).await
}

/// The space maps of a top-level vdev, by its configuration.
pub(crate) async fn space_maps_of(stack: &Stack, config: &VdevConfig) -> Result<Vec<ObjectId>> {
    let Some(array) = config.metaslab_array.filter(|o| o.0 != 0) else { return Ok(Vec::new()) };
    let (asize, shift) = (config.asize.unwrap_or(0), config.metaslab_shift.unwrap_or(u64::MAX));
    let count = u32::try_from(shift).ok().and_then(|shift| asize.checked_shr(shift)).unwrap_or(0).min(METASLABS_MAX);
    let mut bytes = vec![0; count as usize * 8];
    stack.mos.hold(array).await?.read(0, &mut bytes).await?;
    Ok((0..count as usize).map(|n| ObjectId(le64(&bytes, n * 8))).filter(|object| object.0 != 0).collect())
}

/// Frees the arrays of a top-level vdev that name its space maps and the txgs of their flushes.
pub(crate) async fn free_arrays(stack: &Stack, config: &VdevConfig, tx: &Tx) -> Result<()> {
    if let Some(array) = config.metaslab_array.filter(|o| o.0 != 0) {
        stack.mos.free(array, tx).await?;
    }
    let Some(own) = config.zap_top.filter(|o| o.0 != 0) else { return Ok(()) };
    let dn = stack.mos.hold(own).await?;
    for key in OWN_ARRAYS {
        if let Some(array) = zap::lookup_u64(&dn, key).await? {
            stack.mos.free(ObjectId(array), tx).await?;
            zap::remove(&dn, key, tx).await?;
        }
    }
    Ok(())
}

/// Frees the objects of an empty top-level vdev, with these space maps, and of the leaves in it.
pub(crate) async fn free_top_objects(
    stack: &Stack,
    config: &VdevConfig,
    space_maps: Vec<ObjectId>,
    tx: &Tx,
) -> Result<()> {
    for object in space_maps {
        free_space_map(&stack.mos, &stack.features, object, tx).await?;
    }
    free_arrays(stack, config, tx).await?;
    for leaf in config.leaves() {
        free_leaf_objects(stack, leaf, tx).await?;
    }
    if let Some(object) = config.zap_top.filter(|o| o.0 != 0) {
        let dn = stack.mos.hold(object).await?;
        for key in OWN_MAPS {
            if let Some(map) = zap::lookup_u64(&dn, key).await? {
                free_space_map(&stack.mos, &stack.features, ObjectId(map), tx).await?;
            }
        }
        free_vdev_zap(stack, object, tx).await?;
    }
    Ok(())
}

/// Creates the metaslab array of a new top-level vdev, and a ZAP for every vdev in it if `map`, the
/// list of them, exists (format page 06 section 1).
pub(crate) async fn create_top_objects(mos: &Objset, map: Option<&Dnode>, top: &Rc<Top>, tx: &Tx) -> Result<()> {
    let array = mos.alloc(ObjSpec::new(ObjectType::OBJECT_ARRAY, 512), tx).await?.object();
    let mut config = top.config();
    // On disk the bias is in the ZAP alone.
    let bias = config.alloc_bias.take();
    if let Some(map) = map {
        let guids: Vec<Guid> = config.leaves().map(|l| l.guid).collect();
        for guid in guids {
            let object = create_vdev_zap(mos, map, tx).await?.object();
            config.find_mut(guid).expect("its own leaves").zap_leaf = Some(object);
        }
        let own = create_vdev_zap(mos, map, tx).await?;
        if let Some(bias) = bias {
            zap::add_text(&own, BIAS_KEY, &bias, tx).await?;
        }
        config.zap_top = Some(own.object());
    }
    config.metaslab_array = Some(array);
    top.ms_array.set(array);
    top.update_config(|c| *c = config);
    Ok(())
}

/// Creates a ZAP for a vdev and adds it to the list of them.
pub(crate) async fn create_vdev_zap(mos: &Objset, map: &Dnode, tx: &Tx) -> Result<Dnode> {
    let dn = zap::create(mos, ObjectType::OTN_ZAP_METADATA, 0, tx).await?;
    zap::add_int(map, dn.object().0, dn.object().0, tx).await?;
    Ok(dn)
}

/// Gives the root vdev its ZAP once the feature `vdev_zaps_v2` is enabled, in a new pool as well as
/// in an older one (format page 17 section 4). The labels list the feature from then on, so the
/// caller has to write the configuration.
pub(crate) async fn make_root_zap(stack: &Stack, config: &Config, tx: &Tx) -> Result<()> {
    if config.root_zap().is_some() || !stack.features.is_enabled(FeatureId::VdevZapsV2) {
        return Ok(());
    }
    // A pool from before vdevs had ZAPs gets none.
    let Some(map) = zap_map(stack).await? else { return Ok(()) };
    let object = create_vdev_zap(&stack.mos, &map, tx).await?.object();
    stack.features.add(FeatureId::VdevZapsV2, 1, tx).await?;
    config.update(|c| c.vdev_tree.zap_root = Some(object));
    Ok(())
}
