use base::{ErrorKind, Guid, Txg};
use codec::Endian;
use ondisk::blkptr::Blkptr;
use ondisk::label::{self, BootEnv, CONFIG_SIZE, DeviceLabel, LabelConfig, MosConfig, PoolState};
use ondisk::nvlist::NvList;
use ondisk::uberblock::{self, Reflow, Uberblock};
use proptest::prelude::*;

use crate::{golden, mutations};

#[test]
fn geometry_of_page_01() {
    let size = 128 << 20;
    assert_eq!(label::label_offsets(size), [0, 0x4_0000, size - 0x8_0000, size - 0x4_0000]);
    // The remainder above a multiple of 256 KiB is not used.
    assert_eq!(label::label_offsets(size + 0x3_ffff), label::label_offsets(size));
    assert_eq!(label::usable_size(size), 129_499_136);
    assert_eq!(label::usable_size(256 << 20), 263_716_864);
    assert_eq!(label::usable_size(1 << 20), 0);
    assert_eq!(label::device_size_for(129_499_136), size);
    assert_eq!(label::device_size_for(129_499_135), size);
    assert_eq!(label::label_offsets(u64::MAX)[3], u64::MAX - 0x7_ffff);
}

#[test]
fn config_region_is_tied_to_its_place() {
    let config = NvList::decode(&golden("label-single.hex")).unwrap();
    let region = label::seal_config(&config, 0x4_4000).unwrap();
    assert_eq!(region.len(), CONFIG_SIZE);
    assert_eq!(label::parse_config(&region, 0x4_4000).unwrap(), config);
    assert_eq!(label::parse_config(&region, 0x4000).unwrap_err().kind(), ErrorKind::Checksum);
    assert_eq!(label::parse_config_unchecked(&region).unwrap(), config);
    assert_eq!(label::parse_config(&[0; CONFIG_SIZE], 0).unwrap_err().kind(), ErrorKind::Checksum);
    assert_eq!(label::parse_config(&[0; 512], 0).unwrap_err().kind(), ErrorKind::Invalid);
    for at in [0, 500, CONFIG_SIZE - 41, CONFIG_SIZE - 1] {
        let mut bad = region.clone();
        bad[at] ^= 4;
        assert_eq!(label::parse_config(&bad, 0x4_4000).unwrap_err().kind(), ErrorKind::Checksum, "{at}");
    }
    let huge = config.with_str("comment", "x".repeat(CONFIG_SIZE));
    assert_eq!(label::seal_config(&huge, 0).unwrap_err().kind(), ErrorKind::TooBig);
}

#[test]
fn boot_environment_round_trips() {
    for env in [
        BootEnv::Raw(Vec::new()),
        BootEnv::Raw(b"grub".to_vec()),
        BootEnv::List(NvList::new().with_u64("version", 1).with_str("freebsd:bootonce", "zfs:x")),
    ] {
        let block = label::seal_boot_env(&env, 0x2000).unwrap();
        assert_eq!(label::parse_boot_env(&block, 0x2000).unwrap(), env);
        assert!(label::parse_boot_env(&block, 0x4_2000).is_err());
    }
    assert!(label::seal_boot_env(&BootEnv::Raw(vec![1; 8192]), 0).is_err());
}

#[test]
fn fresh_label_has_every_region() {
    let config = NvList::decode(&golden("label-single.hex")).unwrap();
    let l = label::fresh_label(&config, 0x4_0000).unwrap();
    assert_eq!(l.len() as u64, label::LABEL_SIZE);
    assert_eq!(label::parse_config(&l[0x4000..0x2_0000], 0x4_4000).unwrap(), config);
    assert_eq!(label::parse_boot_env(&l[0x2000..0x4000], 0x4_2000).unwrap(), BootEnv::Raw(Vec::new()));
    assert_eq!(uberblock::scan_ring(&l[0x2_0000..], 12, 0x4_0000).count(), 0);
}

#[test]
fn typed_configs_of_real_pools_round_trip() {
    for name in ["label-single.hex", "label-spare-leaf.hex", "label-cache.hex"] {
        let packed = golden(name);
        let typed = DeviceLabel::from_nvlist(&NvList::decode(&packed).unwrap()).unwrap();
        assert_eq!(typed.to_nvlist().encode_xdr(), packed, "{name}");
    }
    let packed = golden("config-removed.hex");
    let typed = MosConfig::from_nvlist(&NvList::decode(&packed).unwrap()).unwrap();
    assert_eq!(typed.to_nvlist().encode_xdr(), packed);
    typed.vdev_tree.validate().unwrap();
    assert!(typed.has_per_vdev_zaps);
    let cache = DeviceLabel::from_nvlist(&NvList::decode(&golden("label-cache.hex")).unwrap()).unwrap();
    assert_eq!(cache, DeviceLabel::Cache { version: 5000, guid: Guid(16_161_582_005_560_225_555) });
}

#[test]
fn label_fields_and_unknown_keys() {
    let list = NvList::decode(&golden("label-single.hex")).unwrap();
    let c = LabelConfig::from_nvlist(&list).unwrap();
    assert_eq!((c.name.as_str(), c.state, c.txg), ("tank", PoolState::Exported, Txg(74)));
    assert_eq!((c.top_guid, c.guid), (c.vdev_tree.guid, c.vdev_tree.guid));
    assert_eq!(c.features_for_read, ["com.delphix:hole_birth", "com.delphix:embedded_data"]);
    assert_eq!(c.top_level_count(), 1);
    let odd = list.clone().with_str("org.example:later", "kept").with_u64s("hole_array", vec![1]);
    let typed = LabelConfig::from_nvlist(&odd).unwrap();
    assert_eq!(typed.hole_array, [1]);
    assert_eq!(typed.to_nvlist().str("org.example:later"), Some("kept"));
    for key in ["version", "name", "state", "txg", "pool_guid", "guid", "top_guid", "vdev_tree", "features_for_read"] {
        let mut l = list.clone();
        l.remove(key);
        let e = DeviceLabel::from_nvlist(&l).unwrap_err();
        assert!(e.to_string().contains(&format!("'{key}'")), "{key}: {e}");
    }
    let newer = DeviceLabel::from_nvlist(&list.clone().with_u64("version", 5001)).unwrap_err();
    assert_eq!(newer.kind(), ErrorKind::Unsupported);
    assert!(DeviceLabel::from_nvlist(&list.with_u64("state", 8)).is_err());
}

#[test]
fn label_of_a_leaf_comes_from_the_pools_config() {
    let mos = MosConfig::from_nvlist(&NvList::decode(&golden("config-removed.hex")).unwrap()).unwrap();
    let top = &mos.vdev_tree.children[1];
    let l = mos.label_for(1, top.guid).unwrap();
    assert_eq!((l.guid, l.top_guid, l.vdev_children), (top.guid, top.guid, Some(4)));
    let list = l.to_nvlist();
    let tree = list.list("vdev_tree").unwrap();
    assert!(!tree.contains("com.delphix:vdev_zap_top") && tree.contains("metaslab_array"));
    assert!(mos.label_for(9, top.guid).is_none() && mos.label_for(0, top.guid).is_none());
}

#[test]
fn real_uberblock_parses_and_seals_to_the_same_bytes() {
    let slot = golden("uberblock-single.hex");
    let offset = uberblock::slot_offset(0, 9, uberblock::slot_for_txg(Txg(74), 9, false));
    let ub = Uberblock::parse(&slot, offset).unwrap().unwrap();
    assert_eq!((ub.txg, ub.version, ub.mmp_magic, ub.mmp_seq()), (Txg(74), 5000, uberblock::MMP_MAGIC, 0));
    assert_eq!(ub.guid_sum, 4_271_266_945_430_352_225u64.wrapping_add(3_859_197_255_546_657_163));
    assert_eq!(ub.rootbp.birth(), Txg(74));
    assert_eq!(ub.seal(1024, offset), slot);
    assert_eq!(Uberblock::parse(&slot, offset + 1024).unwrap_err().kind(), ErrorKind::Checksum);
    for bad in mutations(&slot, 3, 500) {
        // Any change is noticed; one in the magic makes it no uberblock.
        assert!(bad == slot || !matches!(Uberblock::parse(&bad, offset), Ok(Some(_))));
    }
}

#[test]
fn big_endian_uberblock_reads() {
    let ub = Uberblock::parse(&golden("uberblock-single.hex"), 0x20000 + 74 * 1024).unwrap().unwrap();
    let mut slot = ub.seal(2048, 0x2_0800);
    for word in slot.as_chunks_mut::<8>().0 {
        word.reverse();
    }
    let at = slot.len() - 40;
    slot[at..at + 8].copy_from_slice(&codec::EMBEDDED_MAGIC.to_be_bytes());
    let sum = codec::embedded_sha256(&slot, [0x2_0800, 0, 0, 0], Endian::Big);
    for (i, w) in sum.0.iter().enumerate() {
        slot[at + 8 + 8 * i..at + 16 + 8 * i].copy_from_slice(&w.to_be_bytes());
    }
    assert_eq!(Uberblock::parse(&slot, 0x2_0800).unwrap().unwrap(), ub);
}

#[test]
fn slots_follow_the_ashift() {
    for (ashift, size, count) in [(9, 1024, 128), (10, 1024, 128), (12, 4096, 32), (13, 8192, 16), (16, 8192, 16)] {
        assert_eq!((uberblock::slot_size(ashift), uberblock::slot_count(ashift)), (size, count));
    }
    assert_eq!(uberblock::slot_for_txg(Txg(33), 12, false), 1);
    assert_eq!(uberblock::slot_for_txg(Txg(31), 12, true), 0);
    assert_eq!(uberblock::slot_offset(0x4_0000, 12, 3), 0x6_3000);
}

#[test]
fn bad_versions_and_roots_are_refused() {
    let good = Uberblock::new(Txg(9), 1, 2, Blkptr::hole());
    let parse = |ub: &Uberblock| Uberblock::parse(&ub.seal(1024, 0), 0);
    assert_eq!(parse(&good).unwrap().as_ref(), Some(&good));
    assert_eq!(parse(&Uberblock { version: 29, ..good.clone() }).unwrap_err().kind(), ErrorKind::Unsupported);
    let root = Uberblock::parse(&golden("uberblock-single.hex"), 0x20000 + 74 * 1024).unwrap().unwrap().rootbp;
    let young = Uberblock { rootbp: root, ..good };
    assert_eq!(parse(&young).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(Uberblock::parse(&[0; 1024], 0).unwrap(), None);
    assert!(Uberblock::parse(&[0; 100], 0).is_err());
}

#[test]
fn best_is_by_txg_then_time_then_multihost() {
    let ub = |txg, time, mmp_config| Uberblock { mmp_config, ..Uberblock::new(Txg(txg), 0, time, Blkptr::hole()) };
    let seq = |n: u64| 2 | n << 32;
    let order = [ub(4, 9, 0), ub(5, 1, 0), ub(5, 2, 0), ub(5, 2, seq(1)), ub(5, 2, seq(7))];
    for n in 1..=order.len() {
        assert_eq!(uberblock::best(order[..n].to_vec()).unwrap(), order[n - 1]);
        assert_eq!(uberblock::best(order[..n].iter().rev().cloned()).unwrap(), order[n - 1]);
    }
    // A sequence without its valid bit does not count; of equals the first wins.
    assert_eq!(uberblock::best([ub(5, 2, 0), ub(5, 2, 9 << 32)]).unwrap().mmp_config, 0);
    assert_eq!(uberblock::best([]), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn uberblocks_round_trip(words in any::<[u64; 10]>(), shift in 10u64..14, offset in any::<u64>(), legacy in 1u64..29) {
        let ub = Uberblock {
            version: if words[9] & 1 == 0 { 5000 } else { legacy },
            // Those from 2^62 on are refused (`uberblock::tests`).
            txg: Txg(words[0] >> 2),
            guid_sum: words[1],
            timestamp: words[2],
            rootbp: Blkptr::hole(),
            software_version: words[3],
            mmp_magic: words[4],
            mmp_delay: words[5],
            mmp_config: words[6],
            checkpoint_txg: words[7],
            raidz_reflow: Reflow(words[8]),
        };
        let slot = ub.seal(1 << shift, offset);
        prop_assert_eq!(Uberblock::parse(&slot, offset).unwrap(), Some(ub));
    }

    #[test]
    fn damaged_configs_never_panic(seed in any::<u64>()) {
        for name in ["label-spare-leaf.hex", "label-cache.hex", "config-removed.hex"] {
            for hostile in mutations(&golden(name), seed, 40) {
                if let Ok(list) = NvList::decode(&hostile) {
                    if let Ok(DeviceLabel::Pool(c)) = DeviceLabel::from_nvlist(&list) {
                        let _ = (c.vdev_tree.validate(), c.to_nvlist().encode_xdr(), c.top_level_count());
                    }
                    if let Ok(c) = MosConfig::from_nvlist(&list) {
                        let _ = (c.vdev_tree.validate(), c.to_nvlist().encode_xdr(), c.vdev_tree.guid_sum());
                    }
                }
            }
        }
    }
}
