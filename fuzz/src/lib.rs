//! Shared by the fuzz targets: seeds, made by the encoders of the crates.

use std::path::Path;

use base::{Guid, ObjectId, Txg, VdevId};
use codec::{ChecksumAlgo, CompressAlgo};
use ondisk::blkptr::{Blkptr, Dva};
use ondisk::nvlist::NvList;
use ondisk::object_type::ObjectType;
use ondisk::vdev_config::{ConfigForm, VdevConfig, VdevKind};

/// Stores the seeds of a target in the folder that `FUZZ_SEEDS` names, and ends the program; does
/// nothing without it. A target calls it before it begins.
pub fn seeds(make: impl FnOnce() -> Vec<Vec<u8>>) {
    let Some(dir) = std::env::var_os("FUZZ_SEEDS") else { return };
    for (n, seed) in make().into_iter().enumerate() {
        let path = Path::new(&dir).join(format!("seed-{n}"));
        std::fs::write(&path, seed).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
    std::process::exit(0);
}

/// `head` and then `body`: most targets take a few bytes that choose, and the rest.
pub fn after(head: &[u8], body: &[u8]) -> Vec<u8> {
    [head, body].concat()
}

/// A pointer to a block of `otype` with one copy.
pub fn pointer(otype: ObjectType) -> Blkptr {
    let mut bp = Blkptr::hole();
    bp.set_dva(0, Dva::new(VdevId(0), 0x4000, 0x2000, false));
    bp.set_lsize(8192);
    bp.set_psize(4096);
    bp.set_compress(CompressAlgo::Lz4 as u8);
    bp.set_checksum(ChecksumAlgo::Fletcher4 as u8);
    bp.set_otype(otype);
    bp.set_little_endian(true);
    bp.set_birth(Txg(77), Txg(77));
    bp.set_fill(3);
    bp
}

/// The root of a tree of a mirror.
pub fn vdev_tree() -> VdevConfig {
    let mut root = VdevConfig::new(VdevKind::Root, 0, Guid(1));
    let mut mirror = VdevConfig::new(VdevKind::Mirror, 0, Guid(2));
    (mirror.metaslab_array, mirror.metaslab_shift, mirror.ashift, mirror.asize) =
        (Some(ObjectId(256)), Some(24), Some(12), Some(1 << 30));
    for n in 0..2u32 {
        let mut leaf = VdevConfig::new(VdevKind::File, u64::from(n), Guid(u64::from(n) + 3));
        leaf.path = Some(format!("/d{n}"));
        leaf.create_txg = Some(Txg(4));
        mirror.children.push(leaf);
    }
    root.children.push(mirror);
    root
}

/// Label config or configuration object of a pool with that tree.
pub fn pool_config(label: bool) -> NvList {
    let tree = vdev_tree();
    let list = NvList::new()
        .with_u64("version", 5000)
        .with_str("name", "tank")
        .with_u64("state", 0)
        .with_u64("txg", 77)
        .with_u64("pool_guid", 1)
        .with_u64("hostid", 9)
        .with_str("hostname", "host")
        .with_u64("vdev_children", 1)
        .with_list("features_for_read", NvList::new().with_flag("com.delphix:hole_birth"));
    match label {
        true => list
            .with_u64("top_guid", 2)
            .with_u64("guid", 3)
            .with_list("vdev_tree", tree.children[0].to_nvlist(ConfigForm::Label)),
        false => list.with_list("vdev_tree", tree.to_nvlist(ConfigForm::Mos)),
    }
}
