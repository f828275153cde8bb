use std::collections::BTreeSet;

use ondisk::feature::{
    FEATURES, FeatureId, FeatureZap, Release, Support, compatibility_set, default_features, enable_closure,
    enable_closure_ids, features_of_2_1, support_of,
};

#[test]
fn the_table_is_consistent() {
    let mut names = BTreeSet::new();
    for (i, f) in FEATURES.iter().enumerate() {
        assert_eq!(f.id as usize, i);
        assert!(names.insert(f.name) && names.insert(f.guid), "{}", f.name);
        assert_eq!(f.guid.split_once(':').unwrap().1, f.name);
        assert_eq!(FeatureId::lookup(f.name), Some(f.id));
        assert_eq!(FeatureId::by_guid(f.guid), Some(f.id));
        assert!(f.may_be_enabled() || f.release > Release::OpenZfs21, "{}: those of 2.1 are written", f.name);
        assert!(f.zap == FeatureZap::Read || f.support >= Support::Read, "{} cannot hinder reading", f.name);
        assert!(!f.mos || f.zap == FeatureZap::Read, "{} is in labels", f.name);
        if f.per_dataset {
            assert!(f.depends.contains(&FeatureId::ExtensibleDataset), "{} needs a place for its key", f.name);
        }
        // No cycles: everything that a feature needs comes before it, and the feature last.
        let closure = enable_closure_ids(&[f.id]);
        assert_eq!(closure.last(), Some(&f.id));
        assert!(f.depends.iter().all(|d| d.get().release <= f.release), "{}", f.name);
    }
    assert_eq!(FeatureId::lookup("nonsense"), None);
}

#[test]
fn flags_of_page_10() {
    let with = |p: fn(&ondisk::feature::Feature) -> bool| -> Vec<&str> {
        compatibility_set("openzfs-2.1-linux").unwrap().iter().filter(|f| p(f.get())).map(|f| f.get().name).collect()
    };
    assert_eq!(with(|f| f.mos), ["hole_birth", "embedded_data", "device_removal", "draid"]);
    assert_eq!(with(|f| f.activate_on_enable), ["lz4_compress", "hole_birth", "embedded_data", "spacemap_v2"]);
    assert_eq!(
        with(|f| f.zap == FeatureZap::Write),
        [
            "async_destroy",
            "empty_bpobj",
            "spacemap_histogram",
            "enabled_txg",
            "bookmarks",
            "filesystem_limits",
            "userobj_accounting",
            "project_quota",
            "obsolete_counts",
            "zpool_checkpoint",
            "spacemap_v2",
            "allocation_classes",
            "resilver_defer",
            "log_spacemap",
            "livelist",
            "device_rebuild",
        ]
    );
}

#[test]
fn closures_put_dependencies_first() {
    let names = |v: Vec<FeatureId>| v.iter().map(|f| f.get().name).collect::<Vec<_>>();
    assert_eq!(names(enable_closure(&["hole_birth"]).unwrap()), ["enabled_txg", "hole_birth"]);
    assert_eq!(
        names(enable_closure(&["com.datto:encryption", "bookmarks"]).unwrap()),
        ["extensible_dataset", "bookmarks", "bookmark_v2", "encryption"]
    );
    assert!(enable_closure(&["lz5"]).unwrap_err().to_string().contains("lz5"));
    let on = default_features();
    assert!(on.iter().all(|f| f.get().may_be_enabled()));
    assert!(on.contains(&FeatureId::HeadErrlog) && !on.contains(&FeatureId::DraidFailureDomains));
    let old = features_of_2_1();
    assert!(old.contains(&FeatureId::LogSpacemap) && !old.contains(&FeatureId::HeadErrlog));
    let may = |id: FeatureId| id.get().may_be_enabled();
    assert!(!may(FeatureId::DraidFailureDomains) && may(FeatureId::RedactedDatasets));
}

#[test]
fn support_is_the_weakest_of_all() {
    let (s, why) =
        support_of(FeatureZap::Read, ["org.illumos:lz4_compress", "com.seagate:draid_failure_domains", "x:y"]);
    assert_eq!((s, why), (Support::None, vec!["com.seagate:draid_failure_domains", "x:y"]));
    assert_eq!(support_of(FeatureZap::Write, ["x:y"]), (Support::Read, vec!["x:y"]));
    assert_eq!(support_of(FeatureZap::Write, ["com.delphix:spacemap_histogram"]).0, Support::Write);
    assert_eq!(support_of(FeatureZap::Read, []).0, Support::Write);
}

/// The lists that OpenZFS installs, where it is installed.
#[test]
fn compatibility_sets_are_those_of_openzfs() {
    assert_eq!(compatibility_set("openzfs-2.1-linux").unwrap().len(), 34);
    assert_eq!(compatibility_set("legacy").unwrap(), []);
    assert_eq!(compatibility_set("off").unwrap().len(), FEATURES.len());
    assert!(compatibility_set("../etc/passwd").is_none());
    let dir = std::path::Path::new("/usr/share/zfs/compatibility.d");
    if !dir.exists() {
        eprintln!("SKIPPED: OpenZFS is not installed, its compatibility lists are not compared");
        return;
    }
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let Some(ours) = compatibility_set(&name) else { continue };
        let text = std::fs::read_to_string(entry.path()).unwrap();
        let theirs: BTreeSet<&str> = text
            .lines()
            .map(|l| l.split('#').next().unwrap())
            .flat_map(|l| l.split([',', ' ', '\t']))
            .filter(|w| !w.is_empty())
            .collect();
        let ours: BTreeSet<&str> = ours.iter().map(|f| f.get().name).collect();
        assert_eq!(ours, theirs, "{name}");
    }
}
