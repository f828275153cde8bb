//! Features of OpenZFS 2.2 and later that weir writes, on pools of its own: brought into use on new
//! and on old pools, kept through changes of the devices, judged by the zdb of 2.4.

use std::rc::Rc;

use base::ObjectId;
use dmu::zap;
use ondisk::feature::FeatureId;
use ondisk::vdev_config::VdevConfig;
use sim::{DiskImage, Rng};
use spa::{Bias, DevSpec, Group, GroupKind, ImportOpts, NewDevice, Pool};
use ztest::judge::{Verdict, judge24};
use ztest::lab::{Lab, Layout, POOL, SHAPES};
use ztest::snaps::check_images;

fn world(seed: u64, features: &[FeatureId]) -> (Lab, Layout) {
    let mut rng = Rng::new(seed);
    let mut layout = Layout::draw(&mut rng, 64 << 20);
    layout.features = ondisk::feature::default_features();
    layout.features.extend(features);
    let shape = SHAPES.iter().find(|s| s.name == "mirror").expect("a known shape");
    let layout = layout.shaped(shape, &mut rng);
    let mut images: Vec<DiskImage> = layout.devices.iter().map(|n| DiskImage::zeroed(*n)).collect();
    // Two more for changes of the devices.
    let most = *layout.devices.iter().max().expect("some");
    images.extend([DiskImage::zeroed(most), DiskImage::zeroed(most)]);
    (Lab::with_images(seed, images, true), layout)
}

/// A mirror of the first two disks.
async fn create(lab: &Lab, layout: &Layout) -> Rc<Pool> {
    let devices = (0..2).map(|n| dev(lab, n)).collect();
    let devices = spa::Layout {
        groups: vec![Group { kind: GroupKind::Mirror, bias: Bias::Normal, devices }],
        ..spa::Layout::default()
    };
    let spec = spa::PoolSpec {
        name: POOL.into(),
        devices,
        ashift: Some(layout.ashift),
        features: layout.features.clone(),
        comment: None,
        fs_props: Vec::new(),
        init: ztest::lab::new_fs(&lab.sim),
    };
    Pool::create(lab.sim.rt(), spec, layout.opts()).await.unwrap()
}

fn dev(lab: &Lab, n: usize) -> DevSpec {
    DevSpec { dev: lab.disks[n].dev(), is_disk: false }
}

/// Enables a feature as `zpool set feature@NAME=enabled` does.
async fn enable(pool: &Pool, id: FeatureId) {
    let done = pool.dsl().sync_task(move |dsl, tx| {
        Box::pin(async move {
            for id in ondisk::feature::enable_closure_ids(&[id]) {
                dsl.features().enable(id, dsl.directory(), &tx).await?;
            }
            Ok(())
        })
    });
    done.await.unwrap();
}

/// The ZAPs of a vdev and of those below it.
fn zaps(v: &VdevConfig) -> Vec<u64> {
    let own = [v.zap_root, v.zap_top, v.zap_leaf].into_iter().flatten().map(|o| o.0);
    let mut out: Vec<u64> = own.chain(v.children.iter().flat_map(zaps)).collect();
    out.sort_unstable();
    out
}

/// The list of all vdev ZAPs has those of the configuration, that of the root among them, which is
/// `root` if it was there before.
async fn check_zaps(pool: &Pool, root: Option<ObjectId>) -> ObjectId {
    let tree = pool.mos_config().vdev_tree;
    let have = tree.zap_root.expect("the root has a ZAP");
    assert!(root.is_none_or(|r| r == have), "the ZAP of the root changed from {root:?} to {have}");
    let map = zap::lookup_u64(pool.dsl().directory(), b"com.delphix:vdev_zap_map").await.unwrap().unwrap();
    let map = pool.mos().hold(ObjectId(map)).await.unwrap();
    let mut listed: Vec<u64> = zap::list(&map).await.unwrap().iter().map(|e| e.value.as_u64().unwrap()).collect();
    listed.sort_unstable();
    assert_eq!(listed, zaps(&tree));
    assert_eq!(pool.features().count(FeatureId::VdevZapsV2.get().guid), Some(1));
    have
}

fn judge(lab: &Lab, disks: &[usize], name: &str) {
    let all = lab.images();
    let images: Vec<DiskImage> = disks.iter().map(|n| all[*n].clone()).collect();
    check_images(&images).unwrap();
    match judge24(&images, name, POOL) {
        Verdict::Good => {}
        Verdict::Missing(what) => eprintln!("NOT JUDGED: {what} is missing"),
        Verdict::Bad(why) => panic!("{name}: {why}"),
    }
}

/// The root's ZAP comes with the creation of a pool, or with the feature, and stays through every
/// change of the devices.
#[test]
fn the_root_vdev_has_a_zap() {
    for (seed, at_creation) in [(1, true), (2, false)] {
        let with: &[FeatureId] = if at_creation { &[FeatureId::VdevZapsV2] } else { &[] };
        let (lab, layout) = world(seed, with);
        lab.sim.block_on(async {
            let pool = create(&lab, &layout).await;
            if !at_creation {
                assert_eq!(pool.mos_config().vdev_tree.zap_root, None);
                enable(&pool, FeatureId::VdevZapsV2).await;
            }
            let root = Some(check_zaps(&pool, None).await);
            pool.devices().attach("disk1.img", dev(&lab, 2), None).await.unwrap();
            pool.scan().wait().await.unwrap();
            check_zaps(&pool, root).await;
            pool.devices().detach("disk0.img").await.unwrap();
            check_zaps(&pool, root).await;
            pool.devices().replace("disk1.img", NewDevice::Device(dev(&lab, 3)), None).await.unwrap();
            pool.scan().wait().await.unwrap();
            pool.sync().await.unwrap();
            check_zaps(&pool, root).await;
            let log = Group { kind: GroupKind::Single, bias: Bias::Log, devices: vec![dev(&lab, 0)] };
            pool.devices().add(spa::Layout { groups: vec![log], ..spa::Layout::default() }, None).await.unwrap();
            check_zaps(&pool, root).await;
            pool.devices().remove("disk0.img").await.unwrap();
            check_zaps(&pool, root).await;
            pool.export().await.unwrap();
            drop(pool);
            judge(&lab, &[2, 3], &format!("root-zap-{seed}"));
            let listed = lab.find().await.unwrap().config.features_for_read;
            assert!(listed.iter().any(|f| f == FeatureId::VdevZapsV2.get().guid), "labels list {listed:?}");
            let pool = lab.import_as(ImportOpts::default(), layout.opts()).await.unwrap();
            check_zaps(&pool, root).await;
            pool.export().await.unwrap();
        });
    }
}
