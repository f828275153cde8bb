//! Values that releases of OpenZFS keep for one another: properties with values that older ones do
//! not know, and the length of a checkpoint's uberblock.

use dmu::zap;

use dsl::props::{PropSource, PropValue};
use ondisk::feature::FeatureId;
use spa::{EngineOpts, ImportOpts, Pool};
use ztest::judge::{Level, Verdict};
use ztest::lab::{Lab, POOL};

use crate::newer::{create, world};

/// The numbers stored for a property of the root: under its plain name, and as a newer value.
async fn stored(pool: &Pool, prop: &str) -> [Option<u64>; 2] {
    let dsl = pool.dsl();
    let props = dsl.mos().hold(base::ObjectId(dsl.root().phys().props_zapobj)).await.unwrap();
    let plain = zap::lookup_u64(&props, prop.as_bytes()).await.unwrap();
    [plain, zap::lookup_u64(&props, format!("{prop}$iuv").as_bytes()).await.unwrap()]
}

#[test]
fn newer_values_have_a_name_of_their_own() {
    let (lab, layout) = world(91, &[]);
    lab.sim.block_on(async {
        let mut pool = create(&lab, &layout).await;
        for (prop, value, want) in [
            ("snapdir", Some(1), [Some(1), None]),
            ("snapdir", Some(2), [Some(0), Some(2)]),
            ("redundant_metadata", Some(3), [Some(0), Some(3)]),
            ("redundant_metadata", Some(2), [Some(0), Some(2)]),
            ("redundant_metadata", Some(1), [Some(1), None]),
            ("snapdir", None, [None, None]),
            ("snapdir", Some(2), [Some(0), Some(2)]),
            ("snapdir", Some(0), [Some(0), None]),
        ] {
            match value {
                Some(n) => pool.dsl().set_props(POOL, vec![(prop.into(), PropValue::Num(n))]).await.unwrap(),
                None => pool.dsl().inherit(POOL, prop, false).await.unwrap(),
            }
            assert_eq!(stored(&pool, prop).await, want, "{prop} {value:?}");
            for imported in [false, true] {
                if imported {
                    pool.export().await.unwrap();
                    pool = lab.import(false, layout.opts()).await.unwrap();
                }
                let (now, source) = pool.dsl().root().prop(prop);
                assert_eq!(now.num(), value.unwrap_or(0), "{prop} {value:?} {imported}");
                assert_eq!(source == PropSource::Local, value.is_some(), "{prop} {value:?} {imported}");
            }
        }
        pool.export().await.unwrap();
    });
    match ztest::judge::judge(&lab.images()[..2], Level::Zdb, "newer-values") {
        Verdict::Good => {}
        Verdict::Missing(what) => eprintln!("NOT JUDGED: {what}"),
        Verdict::Bad(why) => panic!("{why}"),
    }
}

#[test]
fn newer_values_of_the_kernel_are_read() {
    let Some(images) = ztest::reference::images_of("props24") else {
        eprintln!("SKIPPED: props24.tar.zst is not there");
        return;
    };
    let lab = Lab::with_images(92, images, true);
    lab.sim.block_on(async {
        let readonly = ImportOpts { readonly: true, ..ImportOpts::default() };
        let pool = lab.import_as(readonly, EngineOpts::for_memory(1 << 30)).await.unwrap();
        let (value, source) = pool.dsl().find("pp/x").unwrap().dir().prop("snapdir");
        assert_eq!((value.num(), source), (2, PropSource::Local));
        pool.export().await.unwrap();
    });
}

/// OpenZFS 2.3 reads a word more, which releases before it have no room for.
#[test]
fn checkpoints_have_the_words_that_their_readers_expect() {
    for (features, words) in [(&[][..], 26), (&[FeatureId::RaidzExpansion], 27)] {
        let (lab, layout) = world(93, features);
        lab.sim.block_on(async {
            let pool = create(&lab, &layout).await;
            pool.create_checkpoint().await.unwrap();
            let kept = zap::lookup(pool.dsl().directory(), b"com.delphix:zpool_checkpoint").await.unwrap().unwrap();
            let kept = kept.as_u64s().unwrap();
            assert_eq!((kept.len(), kept.get(26).copied().unwrap_or(0)), (words, 0));
            pool.export().await.unwrap();
            let back = ImportOpts { to_checkpoint: true, ..ImportOpts::default() };
            lab.import_as(back, layout.opts()).await.unwrap().export().await.unwrap();
        });
    }
}
