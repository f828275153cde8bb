use base::{ErrorKind, Guid, ObjectId, Txg};
use ondisk::label::MosConfig;
use ondisk::nvlist::NvList;
use ondisk::vdev_config::{ConfigForm, VdevConfig, VdevKind, metaslab_shift_for};
use proptest::prelude::*;

use crate::golden;

#[test]
fn metaslab_sizes_are_those_that_openzfs_chooses() {
    // asize as configs of real pools have it, and their metaslab_shift.
    for (asize, shift) in [
        (62_390_272, 24),
        (129_499_136, 24),
        (263_716_864, 24),
        (287_834_112, 25),
        (330_825_728, 25),
        (388_497_408, 25),
        (402_653_184, 25),
        (479_723_520, 25),
        (575_668_224, 26),
        (647_495_680, 26),
        (671_612_928, 26),
        (3_216_506_880, 28),
    ] {
        assert_eq!(metaslab_shift_for(asize), shift, "{asize}");
    }
    // Behaviour 3.5: size of the file, metaslab size, number of metaslabs.
    const M: u64 = 1 << 20;
    const G: u64 = 1 << 30;
    for (size, metaslab, count) in [
        (64 * M, 16 * M, 3),
        (256 * M, 16 * M, 15),
        (G, 64 * M, 15),
        (4 * G, 256 * M, 15),
        (8 * G, 512 * M, 15),
        (16 * G, 512 * M, 31),
        (32 * G, 512 * M, 63),
        (64 * G, 512 * M, 127),
        (128 * G, G, 127),
    ] {
        let asize = ondisk::label::usable_size(size);
        let shift = metaslab_shift_for(asize);
        assert_eq!((1 << shift, asize >> shift), (metaslab, count), "{size}");
    }
    assert_eq!(metaslab_shift_for(0), 24);
    assert_eq!(metaslab_shift_for(1 << 50), 34);
    assert_eq!(metaslab_shift_for(1 << 52), 36);
    assert_eq!(metaslab_shift_for(u64::MAX), 47);
}

/// A valid pool: a mirror of two, a raidz1 of three.
fn pool() -> VdevConfig {
    let mut next = 100;
    let mut leaf = |id| {
        next += 1;
        let mut v = VdevConfig::new(VdevKind::File, id, Guid(next));
        v.path = Some(format!("/img/{next}"));
        v.create_txg = Some(Txg(4));
        v.zap_leaf = Some(ObjectId(next));
        v
    };
    let mut top = |kind, id, n: u64| {
        let mut v = VdevConfig::new(kind, id, Guid(10 + id));
        v.metaslab_array = Some(ObjectId(34));
        v.metaslab_shift = Some(24);
        v.ashift = Some(12);
        v.asize = Some(129_499_136);
        v.is_log = Some(0);
        v.zap_top = Some(ObjectId(50 + id));
        v.children = (0..n).map(&mut leaf).collect();
        v
    };
    let mut root = VdevConfig::new(VdevKind::Root, 0, Guid(1));
    root.children = vec![top(VdevKind::Mirror, 0, 2), top(VdevKind::Raidz, 1, 3)];
    root.children[1].nparity = Some(1);
    root
}

#[test]
fn forms_keep_what_they_should() {
    let root = pool();
    let mos = root.to_nvlist(ConfigForm::Mos);
    assert_eq!(VdevConfig::from_nvlist(&mos).unwrap(), root);
    let label = VdevConfig::from_nvlist(&root.children[1].to_nvlist(ConfigForm::Label)).unwrap();
    assert!(label.iter().all(|v| v.zap_leaf.is_none() && v.zap_top.is_none()));
    assert_eq!(label.children.len(), 3);
    let aux = golden("aux-spares.hex");
    let list = NvList::decode(&aux).unwrap();
    let spares: Vec<_> = list.lists("spares").unwrap().iter().map(|l| VdevConfig::from_nvlist(l).unwrap()).collect();
    assert!(spares[0].is_spare && spares[0].kind == VdevKind::Disk);
    let again = NvList::new().with_lists("spares", spares.iter().map(|s| s.to_nvlist(ConfigForm::Aux)).collect());
    assert_eq!(again.encode_xdr(), aux);
}

/// As the kernel writes them: a flag by its presence, an array, after the parity.
#[test]
fn expansions_are_kept() {
    let mut root = pool();
    let raidz = &mut root.children[1];
    raidz.raidz_expanding = true;
    raidz.raidz_expand_txgs = vec![];
    for form in [ConfigForm::Mos, ConfigForm::Label] {
        let list = raidz.to_nvlist(form);
        let keys: Vec<&str> = list.iter().map(|(k, _)| k).collect();
        let at = keys.iter().position(|k| *k == "nparity").unwrap();
        assert_eq!(keys[at + 1..at + 3], ["raidz_expanding", "metaslab_array"]);
        assert!(VdevConfig::from_nvlist(&list).unwrap().raidz_expanding);
    }
    raidz.raidz_expanding = false;
    raidz.raidz_expand_txgs = vec![Txg(61)];
    root.validate().unwrap();
    let mos = root.to_nvlist(ConfigForm::Mos);
    assert_eq!(VdevConfig::from_nvlist(&mos).unwrap(), root);
    assert!(!mos.lists("children").unwrap()[1].contains("raidz_expanding"));
}

#[test]
fn walking() {
    let root = pool();
    let guids: Vec<u64> = root.iter().map(|v| v.guid.0).collect();
    assert_eq!(guids, [1, 10, 101, 102, 11, 103, 104, 105]);
    assert_eq!(root.leaves().count(), 5);
    assert_eq!(root.guid_sum(), guids.iter().sum::<u64>());
    assert_eq!(root.find(Guid(104)).unwrap().id, 1);
    let mut root = root;
    root.find_mut(Guid(104)).unwrap().offline = true;
    assert!(root.children[1].children[1].offline);
    assert_eq!(root.children[0].metaslab_count(), 7);
    root.children[0].guid = Guid(u64::MAX);
    let _ = root.guid_sum();
}

#[test]
fn hostile_trees_are_refused_by_name() {
    pool().validate().unwrap();
    pool().children[1].validate().unwrap();
    let refused = |what: &str, change: &dyn Fn(&mut VdevConfig)| {
        let mut p = pool();
        change(&mut p);
        let e = p.validate().expect_err(what);
        assert!(matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported), "{what}: {e}");
    };
    refused("duplicate guid", &|p| p.children[0].children[0].guid = Guid(105));
    refused("guid 0", &|p| p.children[0].children[0].guid = Guid(0));
    refused("wrong place", &|p| p.children[1].id = 0);
    refused("wrong place of a leaf", &|p| p.children[1].children[2].id = 3);
    refused("parity", &|p| p.children[1].nparity = Some(3));
    refused("no parity", &|p| p.children[1].nparity = None);
    refused("more expansions than data columns", &|p| p.children[1].raidz_expand_txgs = vec![Txg(5), Txg(6)]);
    refused("an expansion too many", &|p| {
        p.children[1].raidz_expand_txgs = vec![Txg(5)];
        p.children[1].raidz_expanding = true;
    });
    refused("empty mirror", &|p| p.children[0].children.clear());
    refused("leaf with children", &|p| p.children[0].kind = VdevKind::Disk);
    refused("unknown kind", &|p| p.children[0].kind = VdevKind::Other("tape".into()));
    refused("ashift", &|p| p.children[0].ashift = Some(8));
    refused("no ashift", &|p| p.children[0].ashift = None);
    refused("asize", &|p| p.children[0].asize = Some(u64::MAX));
    refused("shift 0", &|p| p.children[0].metaslab_shift = Some(0));
    refused("shift 64", &|p| p.children[0].metaslab_shift = Some(64));
    refused("too many metaslabs", &|p| {
        p.children[0].metaslab_shift = Some(9);
        p.children[0].asize = Some(1 << 40);
    });
    refused("nested root", &|p| p.children[0].children[0].kind = VdevKind::Root);
    refused("draid", &|p| {
        p.children[1].kind = VdevKind::Draid;
        p.children[1].draid_ndata = Some(u64::MAX);
    });
    // A hole has guid 0 and nothing else; a vdev not yet synced has neither array nor shift.
    let mut p = pool();
    p.children.push(VdevConfig::hole(2));
    p.children[0].metaslab_array = Some(ObjectId(0));
    p.children[0].metaslab_shift = Some(0);
    p.validate().unwrap();
}

#[test]
fn size_of_a_tree_is_bounded_on_reading() {
    let leaf = || NvList::new().with_str("type", "file").with_u64("id", 0).with_u64("guid", 1);
    let deep = (0..20).fold(leaf(), |l, _| leaf().with_lists("children", vec![l]));
    assert!(VdevConfig::from_nvlist(&deep).unwrap_err().to_string().contains("children[0]"));
    let wide = leaf().with_lists("children", vec![leaf(); 66_000]);
    assert!(VdevConfig::from_nvlist(&wide).is_err());
    assert!(VdevConfig::from_nvlist(&leaf().with_u64("children", 1)).is_err());
    assert!(VdevConfig::from_nvlist(&NvList::new().with_str("type", "file")).is_err());
}

#[test]
fn unknown_and_mistyped_keys_survive() {
    let l = NvList::new()
        .with_str("type", "tape")
        .with_u64("id", 3)
        .with_u64("guid", 9)
        .with_str("ashift", "not a number")
        .with_u64("org.example:new", 1);
    let v = VdevConfig::from_nvlist(&l).unwrap();
    assert_eq!((v.kind.name(), v.ashift, v.unknown.len()), ("tape", None, 2));
    assert_eq!(v.to_nvlist(ConfigForm::Mos), l);
}

#[test]
fn indirect_vdevs_of_a_real_pool() {
    let c = MosConfig::from_nvlist(&NvList::decode(&golden("config-removed.hex")).unwrap()).unwrap();
    let gone: Vec<_> = c.vdev_tree.children.iter().filter(|v| v.kind == VdevKind::Indirect).collect();
    assert_eq!(gone.len(), 2);
    assert_eq!((gone[0].indirect_object, gone[0].prev_indirect_vdev), (Some(ObjectId(150)), Some(3)));
    assert_eq!(gone[1].prev_indirect_vdev, None);
}

proptest! {
    #[test]
    fn every_vdev_gets_a_sane_number_of_metaslabs(asize in (50u64 << 20)..(1 << 60)) {
        let shift = metaslab_shift_for(asize);
        let count = asize >> shift;
        prop_assert!((24..=47).contains(&shift));
        prop_assert!((1..=131_072).contains(&count), "{count}");
    }
}
