//! Features: recounts the refcounts of the feature objects.

use std::collections::BTreeMap;

use base::Result;
use ondisk::bpobj::BpobjPhys;
use ondisk::object_type::ObjectType;
use ondisk::space_map::SPACE_MAP_SIZE;
use ondisk::vdev_config::VdevKind;

use super::report::Sink;
use crate::bpobj::for_each_record;
use crate::pool::PoolReader;
use crate::zap;

/// Features that datasets carry one by one.
const PER_DATASET: [&str; 15] = [
    "org.open-zfs:large_blocks",
    "org.zfsonlinux:large_dnode",
    "org.illumos:sha512",
    "org.illumos:skein",
    "org.illumos:edonr",
    "org.openzfs:blake3",
    "org.zfsonlinux:userobj_accounting",
    "org.zfsonlinux:project_quota",
    "com.datto:encryption",
    "org.freebsd:zstd_compress",
    "com.delphix:redacted_datasets",
    "org.openzfs:zilsaxattr",
    "org.zfsonlinux:longname",
    "com.klarasystems:large_microzap",
    "com.truenas:physical_rewrite",
];
/// Others whose counts can be recomputed.
const POOL_WIDE: [&str; 17] = [
    "com.delphix:extensible_dataset",
    "com.delphix:bookmarks",
    "com.datto:bookmark_v2",
    "com.delphix:bookmark_written",
    "com.delphix:redaction_bookmarks",
    "com.delphix:spacemap_histogram",
    "com.delphix:empty_bpobj",
    "com.delphix:async_destroy",
    "com.delphix:livelist",
    "com.delphix:log_spacemap",
    "com.delphix:zpool_checkpoint",
    "com.delphix:device_removal",
    "org.zfsonlinux:allocation_classes",
    "org.openzfs:draid",
    "com.klarasystems:vdev_zaps_v2",
    "com.fudosecurity:block_cloning",
    "com.klarasystems:fast_dedup",
];

type Counts = BTreeMap<&'static str, u64>;

fn inc(c: &mut Counts, key: &'static str, n: u64) {
    *c.entry(key).or_default() += n;
}

/// The counts as the pool's contents make them.
pub fn count(pool: &PoolReader, sink: &mut Sink<'_>) -> Counts {
    let mut c: Counts = PER_DATASET.iter().chain(&POOL_WIDE).map(|k| (*k, 0)).collect();
    let mut objects = Vec::new();
    pool.mos.for_each_object(&mut |r| {
        if let Ok(o) = r {
            let dn = &o.dn;
            let wanted = dn.otype == ObjectType::DEADLIST
                || dn.otype == ObjectType::BPOBJ
                || dn.bonustype == ObjectType::SPACE_MAP_HEADER
                || dn.otype.is_zap() && matches!(dn.bonustype, ObjectType::DSL_DIR | ObjectType::DSL_DATASET);
            if wanted {
                objects.push(o.num);
            }
        }
    });
    for num in objects {
        let r = count_object(pool, num, &mut c);
        sink.take(r);
    }
    for (key, feature) in [
        ("bptree_obj", "com.delphix:async_destroy"),
        ("com.delphix:log_spacemap_zap", "com.delphix:log_spacemap"),
        ("com.delphix:zpool_checkpoint", "com.delphix:zpool_checkpoint"),
    ] {
        inc(&mut c, feature, u64::from(pool.directory.contains_key(key)));
    }
    let tables = pool.directory.keys().filter(|k| k.starts_with(ondisk::brt::DIRECTORY_PREFIX)).count();
    inc(&mut c, "com.fudosecurity:block_cloning", tables as u64);
    inc(&mut c, "com.klarasystems:fast_dedup", super::ddt::directories(pool));
    if let Some(Some(z)) = sink.take(pool.entry_object("com.delphix:deleted_clones"))
        && let Some(m) = sink.take(zap::map_u64(&z))
    {
        inc(&mut c, "com.delphix:livelist", m.len() as u64);
    }
    inc(&mut c, "com.klarasystems:vdev_zaps_v2", u64::from(pool.config.vdev_tree.zap_root.is_some()));
    for top in &pool.config.vdev_tree.children {
        match top.kind {
            VdevKind::Indirect => inc(&mut c, "com.delphix:device_removal", 1),
            VdevKind::Draid => inc(&mut c, "org.openzfs:draid", 1),
            _ => inc(&mut c, "com.delphix:device_removal", u64::from(top.removing)),
        }
        let Some(z) = top.zap_top else { continue };
        let bias = pool.mos.object(z.0).and_then(|o| zap::lookup(&o, b"org.zfsonlinux:allocation_bias"));
        if let Some(Some(v)) = sink.take(bias)
            && matches!(v.as_text().as_deref(), Some("special" | "dedup"))
        {
            inc(&mut c, "org.zfsonlinux:allocation_classes", 1);
        }
    }
    c
}

fn count_object(pool: &PoolReader, num: u64, c: &mut Counts) -> Result<()> {
    let o = pool.mos.object(num)?;
    let empty = pool.entry("empty_bpobj");
    match (o.dn.otype, o.dn.bonustype) {
        (t, ObjectType::DSL_DIR) if t.is_zap() => {
            inc(c, "com.delphix:extensible_dataset", 1);
            let z = zap::map(&o)?;
            inc(c, "com.delphix:livelist", u64::from(z.contains_key("com.delphix:livelist")));
        }
        (t, ObjectType::DSL_DATASET) if t.is_zap() => {
            inc(c, "com.delphix:extensible_dataset", 1);
            let z = zap::map(&o)?;
            for f in PER_DATASET {
                inc(c, f, u64::from(z.contains_key(f)));
            }
            if let Some(b) = z.get("com.delphix:bookmarks").and_then(|v| v.as_u64()) {
                inc(c, "com.delphix:bookmarks", 1);
                for v in zap::map(&pool.mos.object(b)?)?.values() {
                    let w = v.as_u64s().unwrap_or_default();
                    if w.len() > 3 {
                        inc(c, "com.datto:bookmark_v2", 1);
                        inc(c, "com.delphix:bookmark_written", w.get(4).copied().unwrap_or(0) & 1);
                        inc(c, "com.delphix:redaction_bookmarks", u64::from(w[3] != 0));
                    }
                }
            }
        }
        (_, ObjectType::SPACE_MAP_HEADER) => {
            let long = usize::from(o.dn.bonuslen) >= SPACE_MAP_SIZE;
            inc(c, "com.delphix:spacemap_histogram", u64::from(long));
        }
        (ObjectType::DEADLIST, _) => {
            let shared = zap::int_map(&o)?.values().filter(|v| empty == Some(**v)).count();
            inc(c, "com.delphix:empty_bpobj", shared as u64);
        }
        (ObjectType::BPOBJ, _) => {
            let phys = BpobjPhys::parse(o.dn.bonus())?;
            if phys.has_subobjs() && phys.num_subobjs != 0 && empty.is_some() {
                let mut shared = 0;
                for_each_record(&pool.mos.object(phys.subobjs)?, phys.num_subobjs, 8, &mut |b| {
                    shared += u64::from(Some(ondisk::bytes::le64(b, 0)) == empty);
                    Ok(())
                })?;
                inc(c, "com.delphix:empty_bpobj", shared);
            }
        }
        _ => {}
    }
    Ok(())
}

/// Compares the feature objects with the content of the pool.
pub fn check(pool: &PoolReader, sink: &mut Sink<'_>) {
    if pool.version() < ondisk::label::VERSION_FEATURES {
        return;
    }
    let mut have: BTreeMap<String, u64> = BTreeMap::new();
    for key in ["features_for_read", "features_for_write"] {
        let Some(obj) = sink.take(pool.entry_object(key)) else { continue };
        let Some(obj) = obj else {
            sink.error(format!("the MOS directory has no entry {key}"));
            continue;
        };
        for (f, n) in sink.take(zap::map_u64(&obj)).unwrap_or_default() {
            if have.insert(f.clone(), n).is_some() {
                sink.error(format!("feature {f} is in both feature objects"));
            }
        }
    }
    if let Some(Some(obj)) = sink.take(pool.entry_object("feature_descriptions")) {
        let described = sink.take(zap::map(&obj)).unwrap_or_default();
        for f in have.keys().filter(|f| !described.contains_key(*f)) {
            sink.error(format!("feature {f} has no description"));
        }
    } else {
        sink.error("the MOS directory has no entry feature_descriptions");
    }
    let gone = pool.config.vdev_tree.children.iter().any(|c| matches!(c.kind, VdevKind::Indirect | VdevKind::Hole));
    for (f, n) in count(pool, sink) {
        // Destroying a file system leaves the counts of its v2 bookmarks; removing a vdev may leave
        // its class.
        let at_least = f == "com.datto:bookmark_v2" || f == "org.zfsonlinux:allocation_classes" && gone;
        match have.get(f) {
            None if n != 0 => sink.error(format!("feature {f} is not enabled, but used {n} times")),
            Some(&h) if h != n && !(at_least && h > n) => {
                sink.error(format!("feature {f} has count {h}, it is used {n} times"))
            }
            _ => {}
        }
    }
    // Either all tables of cloned blocks are independent of the byte order, or none.
    let tables = have.get("com.fudosecurity:block_cloning").copied().unwrap_or(0);
    if let Some(&n) = have.get("com.truenas:block_cloning_endian").filter(|n| **n != 0 && **n != tables) {
        sink.error(format!("feature com.truenas:block_cloning_endian has count {n}, there are {tables} tables"));
    }
    if let Some(Some(obj)) = sink.take(pool.entry_object("feature_enabled_txg")) {
        let txgs = sink.take(zap::map_u64(&obj)).unwrap_or_default();
        for (f, t) in &txgs {
            if !have.contains_key(f) || *t > pool.txg().0 {
                sink.error(format!("feature_enabled_txg has {f} enabled in txg {t}"));
            }
        }
        let count = have.get("com.delphix:enabled_txg").copied().unwrap_or(0);
        if count != txgs.len() as u64 {
            sink.error(format!("feature com.delphix:enabled_txg has count {count}, it is used {} times", txgs.len()));
        }
    } else if have.get("com.delphix:enabled_txg").is_some_and(|&n| n != 0) {
        sink.error("feature com.delphix:enabled_txg is active without its object");
    }
    for (f, &n) in have.iter().filter(|(_, n)| **n != 0) {
        if ondisk::feature::FeatureId::by_guid(f).is_none() {
            sink.note(format!("feature {f} is active ({n}) and not known here"));
        }
    }
    // The label lists the features that are needed to read the MOS.
    let listed: std::collections::BTreeSet<&str> = pool.config.features_for_read.iter().map(String::as_str).collect();
    for f in listed.iter().filter(|f| have.get(**f).is_none_or(|n| *n == 0)) {
        sink.error(format!("the configuration lists feature {f}, which is not active"));
    }
    for f in [
        "com.delphix:hole_birth",
        "com.delphix:embedded_data",
        "com.delphix:device_removal",
        "org.openzfs:draid",
        "com.klarasystems:vdev_zaps_v2",
    ] {
        if have.get(f).is_some_and(|&n| n != 0) && !listed.contains(f) {
            sink.error(format!("the configuration does not list feature {f}, which is active"));
        }
    }
}
