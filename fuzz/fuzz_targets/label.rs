//! Label configs, configuration objects, boot environments, uberblocks, history logs and feature
//! lists from hostile bytes.
//!
//! The first byte chooses; regions with a checksum get a right one, so that the parsers behind it
//! are reached.
#![no_main]

use base::Txg;
use libfuzzer_sys::fuzz_target;
use ondisk::history::{HistoryPhys, Origin, Records, command_record, encode_record};
use ondisk::label::{self, DeviceLabel, MosConfig};
use ondisk::nvlist::NvList;
use ondisk::object_type::ObjectType;
use ondisk::uberblock::Uberblock;
use ondisk::vdev_config::VdevConfig;
use weir_fuzz::{after, pool_config, seeds};

fn sealed(payload: &[u8], size: usize) -> Vec<u8> {
    let mut block = payload.to_vec();
    block.resize(size, 0);
    codec::embedded_sha256_seal(&mut block, [0x4000, 0, 0, 0]);
    block
}

fn tree(tree: &VdevConfig) {
    let _ = (tree.validate(), tree.guid_sum(), tree.leaves().count(), tree.metaslab_count());
}

fn make_seeds() -> Vec<Vec<u8>> {
    let ub = Uberblock::new(Txg(77), 5, 1_700_000_000, weir_fuzz::pointer(ObjectType::OBJSET));
    let origin = Origin { time: 1, who: 0, zone: "linux", hostname: "host" };
    vec![
        after(&[0], &pool_config(true).encode_xdr()),
        after(&[1], &pool_config(false).encode_xdr()),
        after(&[1], &pool_config(false).encode_native()),
        after(&[3], &ub.seal(1024, 0x4000)[..984]),
        after(&[4], &encode_record(&command_record("zpool create tank", origin))),
    ]
}

fuzz_target!(init: seeds(make_seeds), |input: &[u8]| {
    let Some((choice, data)) = input.split_first() else { return };
    match choice % 5 {
        0 => {
            let Ok(list) = label::parse_config(&sealed(data, label::CONFIG_SIZE), 0x4000) else { return };
            if let Ok(config) = DeviceLabel::from_nvlist(&list) {
                if let DeviceLabel::Pool(pool) = &config {
                    tree(&pool.vdev_tree);
                }
                let again = config.to_nvlist();
                assert_eq!(DeviceLabel::from_nvlist(&again).expect("what we wrote"), config);
            }
        }
        1 => {
            let Ok(list) = NvList::decode(data) else { return };
            if let Ok(config) = MosConfig::from_nvlist(&list) {
                tree(&config.vdev_tree);
                for (i, top) in config.vdev_tree.children.iter().enumerate() {
                    let _ = config.label_for(i, top.guid).map(|l| l.to_nvlist().encode_xdr());
                }
            }
        }
        2 => {
            let _ = label::parse_boot_env(&sealed(data, label::BOOT_ENV_SIZE), 0x4000);
        }
        3 => {
            if let Ok(Some(ub)) = Uberblock::parse(&sealed(data, 1024), 0x4000) {
                assert_eq!(Uberblock::parse(&ub.seal(1024, 0), 0).expect("what we wrote"), Some(ub));
            }
        }
        _ => {
            if let Ok(mut phys) = HistoryPhys::parse(data) {
                let _ = phys.extents(phys.bof, phys.eof - phys.bof);
                let _ = phys.must_evict(data.len() as u64);
                let _ = phys.evict(data.len() as u64);
            }
            for record in Records::new(data) {
                let _ = record.map(|r| r.to_string());
            }
        }
    }
});
