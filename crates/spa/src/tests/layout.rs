//! Layouts of new pools: what is refused, and the vdevs that are made.

use ondisk::feature::FeatureId;
use ondisk::vdev_config::MetaslabCounts;
use rt::Rt;
use vdev::{DirtyGauge, QueueTunables, VdevKind};

use super::{device, world};
use crate::devices::layout::{AutoAshift, LeafMaker, ashift_for, make_top};
use crate::{Bias, DEVICE_SIZE_MIN, DevSpec, Group, GroupKind, Layout};

fn group(kind: GroupKind, bias: Bias, devices: Vec<DevSpec>) -> Group {
    Group { kind, bias, devices }
}

fn maker(rt: Rt) -> LeafMaker {
    LeafMaker {
        rt,
        gauge: DirtyGauge::default(),
        queue: QueueTunables::default(),
        counts: MetaslabCounts::default(),
        ashift: AutoAshift::default(),
    }
}

const DRAID: GroupKind = GroupKind::Draid { parity: 1, data: Some(2), spares: 1 };

#[test]
fn groups_have_enough_devices_and_a_sensible_use() {
    let sim = world();
    let plain = || group(GroupKind::Single, Bias::Normal, vec![device(&sim, "a", DEVICE_SIZE_MIN, 512)]);
    for (kind, bias, count, want) in [
        (GroupKind::Single, Bias::Normal, 1, true),
        (GroupKind::Single, Bias::Normal, 2, false),
        (GroupKind::Mirror, Bias::Normal, 1, false),
        (GroupKind::Mirror, Bias::Log, 2, true),
        (GroupKind::Mirror, Bias::Normal, 256, false),
        (GroupKind::Raidz(0), Bias::Normal, 3, false),
        (GroupKind::Raidz(1), Bias::Normal, 1, false),
        (GroupKind::Raidz(1), Bias::Normal, 2, true),
        (GroupKind::Raidz(3), Bias::Normal, 3, false),
        (GroupKind::Raidz(3), Bias::Special, 4, true),
        (GroupKind::Raidz(4), Bias::Normal, 9, false),
        (GroupKind::Raidz(1), Bias::Log, 3, false),
        (DRAID, Bias::Normal, 5, true),
        (DRAID, Bias::Log, 5, false),
        (DRAID, Bias::Special, 5, false),
        (DRAID, Bias::Dedup, 5, true),
    ] {
        let devices = (0..count).map(|n| device(&sim, &format!("d{n}"), DEVICE_SIZE_MIN, 512)).collect();
        let layout = Layout { groups: vec![plain(), group(kind, bias, devices)], ..Layout::default() };
        assert_eq!(layout.check().is_ok(), want, "{kind:?} {bias:?} {count}");
    }
}

#[test]
fn a_pool_needs_a_normal_vdev_and_large_devices() {
    let sim = world();
    let single = |bias, size| group(GroupKind::Single, bias, vec![device(&sim, "a", size, 512)]);
    let layout = |groups| Layout { groups, ..Layout::default() };
    assert!(layout(vec![]).check().is_err());
    assert!(layout(vec![single(Bias::Log, DEVICE_SIZE_MIN)]).check().is_err());
    assert!(layout(vec![single(Bias::Normal, DEVICE_SIZE_MIN)]).check().is_ok());
    let small = DEVICE_SIZE_MIN - 4096;
    assert!(layout(vec![single(Bias::Normal, small)]).check().is_err());
    // A spare must be as large.
    let mut with_spare = layout(vec![single(Bias::Normal, DEVICE_SIZE_MIN)]);
    with_spare.spares = vec![device(&sim, "spare", small, 512)];
    let text = with_spare.check().unwrap_err().to_string();
    assert!(text.contains("'spare' is too small"), "{text}");
    assert_eq!(with_spare.devices().count(), 2);
}

#[test]
fn features_follow_from_the_layout() {
    let sim = world();
    let some = |n: usize| (0..n).map(|i| device(&sim, &format!("{i}"), DEVICE_SIZE_MIN, 512)).collect::<Vec<_>>();
    let plain: Layout = some(2).into();
    assert_eq!((plain.groups.len(), plain.features()), (2, vec![]));
    let mut all = plain;
    all.groups.push(group(GroupKind::Single, Bias::Special, some(1)));
    all.groups.push(group(GroupKind::Single, Bias::Dedup, some(1)));
    assert_eq!(all.features(), [FeatureId::AllocationClasses]);
    all.groups.push(group(DRAID, Bias::Normal, some(5)));
    assert_eq!(all.features(), [FeatureId::AllocationClasses, FeatureId::Draid]);
    assert_eq!((all.feature_count(FeatureId::AllocationClasses), all.feature_count(FeatureId::Draid)), (2, 1));
}

#[test]
fn the_allocation_unit_holds_a_sector() {
    let sim = world();
    for (sector, wanted, want) in [
        (512, None, Some(12)),
        (4096, None, Some(12)),
        (16384, None, Some(14)),
        (512, Some(9), Some(9)),
        (4096, Some(9), None),
        (512, Some(8), None),
        (512, Some(16), Some(16)),
        (512, Some(17), None),
    ] {
        let dev = device(&sim, "a", DEVICE_SIZE_MIN, sector).dev;
        assert_eq!(ashift_for(&*dev, wanted, AutoAshift::default()).ok(), want, "{sector} {wanted:?}");
    }
    // Arrays of disks have large physical sectors.
    for (logical, physical, want) in [(512, 16384, 14), (512, 32768, 12), (4096, 1 << 20, 12), (32768, 1 << 20, 15)] {
        let info = bdev::BlockDev::info(&*device(&sim, "a", DEVICE_SIZE_MIN, 512).dev).clone();
        let info = bdev::DevInfo { logical_sector: logical, physical_sector: physical, ..info };
        let dev = bdev::MemDev::with_info(&sim.rt(), info);
        assert_eq!(ashift_for(&dev, None, AutoAshift::default()).ok(), Some(want), "{logical} {physical}");
        let free = AutoAshift { min: 9, max: 16 };
        let want = (physical.min(1 << 16) / 512).max(logical / 512).ilog2() + 9;
        let want = if physical > 1 << 16 { logical.ilog2() } else { want };
        assert_eq!(ashift_for(&dev, None, free).ok(), Some(want as u8), "{logical} {physical}");
    }
}

#[test]
fn vdevs_are_as_large_as_their_smallest_device_allows() {
    let sim = world();
    let maker = maker(sim.rt());
    let sizes = |sizes: &[u64]| -> Vec<DevSpec> {
        sizes.iter().enumerate().map(|(i, n)| device(&sim, &format!("d{i}"), n << 20, 512)).collect()
    };
    let least = vdev::leaf_asize(100 << 20);
    for (kind, devices, asize) in [
        (GroupKind::Single, sizes(&[100]), least),
        (GroupKind::Mirror, sizes(&[200, 100, 300]), least),
        (GroupKind::Raidz(1), sizes(&[100, 110, 120]), 3 * least),
        (GroupKind::Raidz(2), sizes(&[300, 100, 120, 130]), 4 * least),
    ] {
        let count = devices.len();
        let top = make_top(&maker, 3, &group(kind, Bias::Normal, devices), None).unwrap();
        let config = top.config();
        assert_eq!((config.id, config.asize, config.ashift), (3, Some(asize), Some(12)), "{kind:?}");
        let children = if kind == GroupKind::Single { 0 } else { count };
        assert_eq!((config.children.len(), top.leaves().len()), (children, count), "{kind:?}");
        assert!((0..).zip(&config.children).all(|(n, c)| c.id == n && c.create_txg.is_some()));
        let parity = if let GroupKind::Raidz(p) = kind { Some(u64::from(p)) } else { None };
        assert_eq!(config.nparity, parity);
        // Metaslabs cover the vdev, but for a rest smaller than one.
        let metaslab = 1u64 << config.metaslab_shift.unwrap();
        assert!(asize / metaslab >= 1 && !top.is_log);
    }
    let log = make_top(&maker, 0, &group(GroupKind::Single, Bias::Log, sizes(&[100])), None).unwrap();
    assert!(log.is_log && log.config().is_log == Some(1));
}

#[test]
fn a_draid_has_its_spares_and_a_least_size() {
    let sim = world();
    let maker = maker(sim.rt());
    let make = |mib: u64| {
        let devices = (0..5).map(|i| device(&sim, &format!("d{i}"), mib << 20, 512)).collect();
        make_top(&maker, 0, &group(DRAID, Bias::Normal, devices), None)
    };
    let top = make(100).unwrap();
    let VdevKind::Draid(draid) = top.kind() else { panic!("it is no draid") };
    assert_eq!((draid.layout.parity, draid.layout.spares, draid.children.len()), (1, 1, 5));
    let config = top.config();
    assert_eq!((config.draid_ndata, config.draid_nspares, config.nparity), (Some(2), Some(1), Some(1)));
    assert!(make(8).is_err());
}
