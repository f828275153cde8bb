//! Pools that use features which weir lacks: refused or opened for reading only, by name, and never
//! changed.

use dmu::zap;
use ondisk::feature::{FEATURES, FeatureId, FeatureZap, Release, Support};
use ondisk::label::{CONFIG_SIZE, config_offset, label_offsets, parse_config, seal_config};
use sim::{DiskImage, Rng};
use spa::{ImportOpts, Pool, States, Unsupported};
use zpl::{Cred, MountOpts, Zfs};
use ztest::lab::{Lab, Layout, POOL, SHAPES};
use ztest::snaps::check_images;

/// A feature of the future.
const NEW: &str = "com.example:time_travel";
const ABOUT: &str = "Blocks that are written before they are asked for.";
const DATA: &[u8] = b"what was written must be read";

fn world(seed: u64) -> (Lab, Layout) {
    let mut rng = Rng::new(seed);
    let mut layout = Layout::draw(&mut rng, 64 << 20);
    layout.features = ondisk::feature::features_of_2_1();
    let shape = SHAPES.iter().find(|s| s.name == "mirror").expect("a known shape");
    let layout = layout.shaped(shape, &mut rng);
    (Lab::new(seed, &layout), layout)
}

/// A pool with a file.
async fn make(lab: &Lab, layout: &Layout) -> std::rc::Rc<Pool> {
    let pool = lab.create(layout, Vec::new()).await.unwrap();
    let ds = pool.dsl().find(POOL).unwrap();
    let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await.unwrap();
    let file = fs.create(fs.root(), b"file", 0o644, &Cred::new(0, 0), false).await.unwrap().obj;
    fs.write(file, 0, vec![bdev::Buf::copy_from(DATA).freeze()], false).await.unwrap();
    fs.unmount().await.unwrap();
    pool
}

async fn read(pool: &Pool) {
    let ds = pool.dsl().find(POOL).unwrap();
    let fs = Zfs::open(&ds, MountOpts { readonly: true, ..MountOpts::from_props(&ds) }).await.unwrap();
    let file = fs.lookup(fs.root(), b"file").await.unwrap().obj;
    let mut got = Vec::new();
    fs.read(file, 0, DATA.len() as u64).await.unwrap().iter().for_each(|b| got.extend_from_slice(b));
    assert_eq!(got, DATA);
    fs.unmount().await.unwrap();
}

/// Counts a feature that weir does not support.
async fn plant(pool: &Pool, zap: FeatureZap, count: u64) {
    let (mos, directory) = (pool.mos().clone(), pool.dsl().directory().clone());
    let planted = pool.dsl().sync_task(move |_, tx| {
        Box::pin(async move {
            let list: &[u8] = match zap {
                FeatureZap::Read => b"features_for_read",
                FeatureZap::Write => b"features_for_write",
            };
            let object = async |name: &[u8]| {
                let object = zap::lookup_u64(&directory, name).await?.expect("there");
                mos.hold(base::ObjectId(object)).await
            };
            zap::update_u64(&object(list).await?, NEW.as_bytes(), count, &tx).await?;
            zap::update_text(&object(b"feature_descriptions").await?, NEW.as_bytes(), ABOUT, &tx).await
        })
    });
    planted.await.unwrap();
}

/// Enables a known feature and sets its count, whether or not anything uses it.
async fn pretend(pool: &Pool, id: FeatureId, count: u64) {
    let (features, directory) = (pool.features().clone(), pool.dsl().directory().clone());
    let done = pool.dsl().sync_task(move |_, tx| {
        Box::pin(async move {
            for id in ondisk::feature::enable_closure_ids(&[id]) {
                features.enable(id, &directory, &tx).await?;
            }
            let more = count.saturating_sub(features.count(id.get().guid).unwrap_or(0));
            features.add(id, more as i64, &tx).await
        })
    });
    done.await.unwrap();
}

fn same(a: &[DiskImage], b: &[DiskImage]) -> bool {
    let whole = |i: &DiskImage| i.read_vec(0, i.size() as usize);
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.size() == b.size() && whole(a) == whole(b))
}

/// Imports with `how`, and with all options that force an import: a rewind behind the feature would
/// lose later writes.
async fn refused(lab: &Lab, layout: &Layout, how: ImportOpts) -> String {
    let mut said = String::new();
    for how in [how.clone(), ImportOpts { force: true, states: States::Last, missing_log: true, ..how }] {
        let e = lab.import_as(how, layout.opts()).await.map(drop).expect_err("it must be refused");
        assert_eq!(e.kind(), base::ErrorKind::Unsupported, "{e}");
        said = e.to_string();
        assert!(said.starts_with(&format!("cannot import '{POOL}': the pool uses ")), "{said}");
    }
    let found = lab.find().await.unwrap();
    if said.contains("cannot read") {
        assert!(Pool::rewind_of(lab.sim.rt(), &found, States::Last, layout.opts()).await.is_err());
    }
    said
}

fn readonly() -> ImportOpts {
    ImportOpts { readonly: true, ..ImportOpts::default() }
}

async fn examine(lab: &Lab, layout: &Layout) -> Unsupported {
    Pool::unsupported(&lab.sim.rt(), &lab.find().await.unwrap(), &layout.opts()).await.unwrap()
}

fn names(list: &[spa::UnsupportedFeature]) -> Vec<&str> {
    list.iter().map(|f| f.guid.as_str()).collect()
}

/// Checks a pool that can be read and not written.
async fn reads_only(lab: &Lab, layout: &Layout, guid: &str) {
    let before = lab.images();
    let said = refused(lab, layout, ImportOpts::default()).await;
    assert!(said.contains(guid) && said.ends_with("import it with -o readonly=on"), "{said}");
    let found = examine(lab, layout).await;
    assert_eq!((names(&found.read), names(&found.write)), (vec![], vec![guid]));
    let pool = lab.import_as(readonly(), layout.opts()).await.unwrap();
    read(&pool).await;
    pool.export().await.unwrap();
    assert!(same(&before, &lab.images()), "{guid}: devices were written");
}

/// Checks a pool that cannot be read.
async fn reads_not(lab: &Lab, layout: &Layout, guid: &str) -> String {
    let before = lab.images();
    let said = refused(lab, layout, ImportOpts::default()).await;
    assert!(said.contains(guid) && said.contains("cannot read: import it with "), "{said}");
    assert_eq!(refused(lab, layout, readonly()).await, said);
    assert_eq!(names(&examine(lab, layout).await.read), [guid]);
    assert!(same(&before, &lab.images()), "{guid}: devices were written");
    said
}

#[test]
fn unknown_features_refuse_by_name_and_touch_nothing() {
    for (seed, zap, count) in
        [(1, FeatureZap::Read, 1), (2, FeatureZap::Write, 3), (3, FeatureZap::Read, 0), (4, FeatureZap::Write, 0)]
    {
        let (lab, layout) = world(seed);
        lab.sim.block_on(async {
            let pool = make(&lab, &layout).await;
            plant(&pool, zap, count).await;
            pool.export().await.unwrap();
            drop(pool);
            match (zap, count) {
                (_, 0) => {
                    // Enabled only: nothing on disk differs, the pool is written, and the entry
                    // stays as it is.
                    assert_eq!(examine(&lab, &layout).await, Unsupported::default());
                    for _ in 0..2 {
                        let pool = lab.import_as(ImportOpts::default(), layout.opts()).await.unwrap();
                        assert_eq!(pool.features().count(NEW), Some(0));
                        read(&pool).await;
                        plant(&pool, zap, 0).await;
                        pool.export().await.unwrap();
                    }
                    check_images(&lab.images()).unwrap();
                }
                (FeatureZap::Read, _) => {
                    reads_not(&lab, &layout, NEW).await;
                    assert_eq!(examine(&lab, &layout).await.read[0].description, ABOUT);
                }
                (FeatureZap::Write, _) => {
                    reads_only(&lab, &layout, NEW).await;
                    assert_eq!(examine(&lab, &layout).await.write[0].description, ABOUT);
                }
            }
        });
    }
}

/// Newer than OpenZFS 2.1, each by itself: enabled, then active.
#[test]
fn newer_features_are_read_where_they_can_be() {
    let newer = FEATURES.iter().filter(|f| f.release >= Release::OpenZfs22);
    for (seed, feature) in (10..).zip(newer) {
        let (lab, layout) = world(seed);
        lab.sim.block_on(async {
            let pool = make(&lab, &layout).await;
            pretend(&pool, feature.id, 0).await;
            pool.export().await.unwrap();
            drop(pool);
            if feature.activate_on_enable && feature.support == Support::Write {
                let pool = lab.import_as(ImportOpts::default(), layout.opts()).await.unwrap();
                assert!(pool.features().is_active(feature.id));
                read(&pool).await;
                return pool.export().await.unwrap();
            }
            if feature.activate_on_enable {
                return reads_only(&lab, &layout, feature.guid).await;
            }
            let pool = lab.import_as(ImportOpts::default(), layout.opts()).await.unwrap();
            // Whoever writes the pool brings this one into use.
            let used = feature.id == FeatureId::VdevZapsV2;
            assert_eq!(pool.features().count(feature.guid), Some(u64::from(used)), "{}", feature.guid);
            read(&pool).await;
            pretend(&pool, feature.id, 1).await;
            pool.export().await.unwrap();
            drop(pool);
            let listed = lab.find().await.unwrap().config.features_for_read;
            assert_eq!(
                listed.iter().any(|f| f == feature.guid),
                feature.mos,
                "{}: labels list {listed:?}",
                feature.guid
            );
            match feature.support {
                Support::Write => {
                    let pool = lab.import_as(ImportOpts::default(), layout.opts()).await.unwrap();
                    read(&pool).await;
                    pool.export().await.unwrap();
                }
                Support::Read | Support::Partial => reads_only(&lab, &layout, feature.guid).await,
                Support::None => {
                    let said = reads_not(&lab, &layout, feature.guid).await;
                    let release = match feature.release {
                        Release::OpenZfs23 => "OpenZFS 2.3 or newer",
                        Release::OpenZfs24 => "OpenZFS 2.4 or newer",
                        _ => "the software that wrote it, or a newer release of weir",
                    };
                    assert!(said.ends_with(release), "{said}");
                }
            }
        });
    }
}

/// The features in the labels are needed to follow a single pointer: the import is refused before
/// it follows one.
#[test]
fn labels_are_asked_before_the_pool() {
    let (lab, layout) = world(40);
    let mut images = lab.sim.block_on(async {
        make(&lab, &layout).await.export().await.unwrap();
        lab.images()
    });
    let root = lab.sim.block_on(async {
        lab.find().await.unwrap().devices[0].labels.uberblocks.iter().max_by_key(|u| u.ub.txg).unwrap().ub.rootbp
    });
    for image in &mut images {
        for label in label_offsets(image.size()) {
            let at = config_offset(label);
            let list = parse_config(&image.read_vec(at, CONFIG_SIZE), at).unwrap();
            let mut config = ondisk::label::LabelConfig::from_nvlist(&list).unwrap();
            config.features_for_read.push(NEW.into());
            image.write(at, &seal_config(&config.to_nvlist(), at).unwrap());
        }
        for dva in root.dvas() {
            image.corrupt(dva.offset() + ondisk::label::DATA_START, dva.asize());
        }
    }
    let lab = Lab::with_images(41, images, true);
    lab.sim.block_on(async { reads_not(&lab, &layout, NEW).await });
}
