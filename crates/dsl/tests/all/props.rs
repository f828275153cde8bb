//! Inheritance of properties in a tree of file systems, against a map.

use std::collections::BTreeMap;

use crate::common::{POOL, World};
use dsl::DslPool;
use dsl::props::{PropSource, PropValue, find};
use sim::Rng;
use spa::ImportOpts;

/// Properties of each kind: inherited, for one dataset only, of the user.
const NAMES: [&str; 5] = ["atime", "recordsize", "canmount", "quota", "test:note"];

/// The local values of every file system.
type Model = BTreeMap<String, BTreeMap<&'static str, PropValue>>;

fn value(rng: &mut Rng, name: &str) -> PropValue {
    match name {
        "recordsize" => PropValue::Num(512 << rng.below(9)),
        "quota" => PropValue::Num((40 + rng.below(9)) << 20),
        "canmount" => PropValue::Num(rng.below(3)),
        "atime" => PropValue::Num(rng.below(2)),
        _ => PropValue::Text(format!("note {}", rng.below(100))),
    }
}

/// The value and its source by the rules: its own, the nearest one above, the default.
fn want(model: &Model, fs: &str, name: &str) -> (PropValue, PropSource) {
    if let Some(own) = model[fs].get(name) {
        return (own.clone(), PropSource::Local);
    }
    let mut above = fs;
    while let Some((parent, _)) = above.rsplit_once('/').filter(|_| !matches!(name, "canmount" | "quota")) {
        if let Some(value) = model[parent].get(name) {
            return (value.clone(), PropSource::Inherited(parent.to_string()));
        }
        above = parent;
    }
    let default = find(name).map_or(PropValue::Text(String::new()), |p| p.default_value());
    (default, PropSource::Default)
}

fn compare(dsl: &DslPool, model: &Model) {
    for fs in model.keys() {
        let dir = dsl.find_dir(fs).unwrap();
        for name in NAMES {
            assert_eq!(dir.prop(name), want(model, fs, name), "{fs} {name}");
        }
    }
    assert_eq!(dsl.all().len(), model.len());
}

#[test]
fn values_come_from_the_nearest_that_has_one() {
    for seed in 0..3 {
        let world = World::new(seed, 1);
        let mut rng = Rng::new(seed);
        let mut model: Model = [(POOL.to_string(), BTreeMap::new())].into();
        world.sim.block_on(async {
            let pool = world.create().await;
            let dsl = pool.dsl().clone();
            for n in 0..60 {
                let names: Vec<String> = model.keys().cloned().collect();
                let fs = names[rng.below(names.len() as u64) as usize].clone();
                let name = NAMES[rng.below(5) as usize];
                match rng.below(8) {
                    0 | 1 if names.len() < 9 => {
                        let new = format!("{fs}/f{n}");
                        dsl.create_fs(&new, Vec::new(), world.new_fs()).await.unwrap();
                        model.insert(new, BTreeMap::new());
                    }
                    2 | 3 => {
                        let inherits = !matches!(name, "canmount" | "quota");
                        assert_eq!(dsl.inherit(&fs, name, false).await.is_ok(), inherits, "{name}");
                        if inherits {
                            model.get_mut(&fs).unwrap().remove(name);
                        }
                    }
                    4 if fs != POOL => {
                        // To another parent, with all below it.
                        let (_, last) = fs.rsplit_once('/').unwrap();
                        let parents: Vec<&String> =
                            names.iter().filter(|p| !format!("{p}/").starts_with(&format!("{fs}/"))).collect();
                        let to = format!("{}/{last}", parents[rng.below(parents.len() as u64) as usize]);
                        let free = to != fs;
                        assert_eq!(dsl.rename(&fs, &to).await.is_ok(), free, "{fs} to {to}");
                        if free {
                            let below = format!("{fs}/");
                            model = model
                                .into_iter()
                                .map(|(k, v)| {
                                    let moved = k == fs || k.starts_with(&below);
                                    (if moved { format!("{to}{}", &k[fs.len()..]) } else { k }, v)
                                })
                                .collect();
                        }
                    }
                    _ => {
                        let value = value(&mut rng, name);
                        // A quota must leave room for what is used below.
                        dsl.set_props(&fs, vec![(name.to_string(), value.clone())]).await.unwrap();
                        model.get_mut(&fs).unwrap().insert(name, value);
                    }
                }
                compare(&dsl, &model);
            }
            drop(dsl);
            pool.export().await.unwrap();
            drop(pool);
            let pool = world.import(ImportOpts::default()).await.unwrap();
            compare(pool.dsl(), &model);
            pool.export().await.unwrap();
        });
    }
}

#[test]
fn what_cannot_be_set_is_refused_and_changes_nothing() {
    let world = World::new(9, 1);
    world.sim.block_on(async {
        let pool = world.create().await;
        let dsl = pool.dsl();
        let before = dsl.root().local_props();
        for (name, value) in [
            ("used", PropValue::Num(1)),
            ("volblocksize", PropValue::Num(8192)),
            ("nonsense", PropValue::Num(1)),
            ("quota", PropValue::Num(1)),
            ("reservation", PropValue::Num(1 << 40)),
            ("refreservation", PropValue::Num(1 << 40)),
        ] {
            // The first value is good, and is not set either.
            let both = vec![("atime".to_string(), PropValue::Num(0)), (name.to_string(), value)];
            assert!(dsl.set_props(POOL, both).await.is_err(), "{name}");
            assert_eq!(dsl.root().local_props(), before, "{name}");
        }
        pool.export().await.unwrap();
    });
}
