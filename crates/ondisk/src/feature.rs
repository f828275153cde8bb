//! Feature flags: the format extensions of pools of version 5000, one table row each (format page
//! 10 section 3, OpenZFS `zfeature_common.c`).
//!
//! A feature is *enabled* when it has an entry in one of the MOS's two feature ZAPs,
//! `features_for_read` (without it the pool cannot be read) or `features_for_write` (without it the
//! pool can be read only), and *active* while that entry, its reference count, is not 0. Active
//! features that are needed to read the MOS itself are listed in the labels, too
//! ([`Feature::mos`]).
//!
//! [`FEATURES`] is closed: it names every feature up to OpenZFS 2.4. A feature that is not in it is
//! unknown: active and needed for reading, it stops an import by name.

use base::{Error, Result};

/// Which ZAP counts the feature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FeatureZap {
    /// `features_for_read`: software without the feature cannot read the pool while it is active.
    Read,
    /// `features_for_write`: such software can read the pool but not write it.
    Write,
}

/// weir's support for a pool in which the feature is active. Ordered: more is greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Support {
    /// The pool is refused.
    None,
    /// The pool opens read-only; datasets and blocks that need the feature are refused where they
    /// are met.
    Partial,
    /// The pool opens read-only and everything in it reads.
    Read,
    /// Everything.
    Write,
}

/// The first release that had the feature (on Linux); ordered by time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[allow(missing_docs, reason = "the names say it all")]
pub enum Release {
    Zol061,
    Zol064,
    Zol065,
    Zol07,
    Zol08,
    OpenZfs20,
    OpenZfs21,
    OpenZfs22,
    OpenZfs23,
    OpenZfs24,
    Master,
}

/// A row of the table.
#[derive(Debug)]
pub struct Feature {
    /// Its own id.
    pub id: FeatureId,
    /// The short name, as in `feature@NAME`.
    pub name: &'static str,
    /// The name in the ZAPs and labels, `ORIGIN:NAME`.
    pub guid: &'static str,
    /// Which ZAP counts it.
    pub zap: FeatureZap,
    /// Needed to read the MOS: listed in labels while active.
    pub mos: bool,
    /// Activated per dataset: key `guid` in the dataset's ZAP, counted once for each.
    pub per_dataset: bool,
    /// Becomes active (count 1) by being enabled.
    pub activate_on_enable: bool,
    /// Features that must be enabled before it; theirs follow from the table.
    pub depends: &'static [FeatureId],
    /// The first release with it.
    pub release: Release,
    /// weir's support for pools where it is active.
    pub support: Support,
    /// Its purpose, as stored in `feature_descriptions`.
    pub description: &'static str,
}

macro_rules! features {
    ($($id:ident $name:literal $guid:literal $zap:ident [$($flag:ident),*] [$($dep:ident),*] $release:ident $support:ident $desc:literal;)*) => {
        /// Every known feature; `id.get()` is its row of the table.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum FeatureId {
            $(#[doc = $desc] $id,)*
        }
        /// The table, in the order of [`FeatureId`].
        pub static FEATURES: &[Feature] = &[$({
            #[allow(unused_mut, reason = "rows without flags")]
            let mut f = Feature {
                id: FeatureId::$id,
                name: $name,
                guid: $guid,
                zap: FeatureZap::$zap,
                mos: false,
                per_dataset: false,
                activate_on_enable: false,
                depends: &[$(FeatureId::$dep),*],
                release: Release::$release,
                support: Support::$support,
                description: $desc,
            };
            $(f.$flag = true;)*
            f
        }),*];
    };
}

features! {
    AsyncDestroy "async_destroy" "com.delphix:async_destroy" Write [] [] Zol061 Write "Destroys datasets in the background.";
    EmptyBpobj "empty_bpobj" "com.delphix:empty_bpobj" Write [] [] Zol061 Write "Shares one object among all empty lists of blocks.";
    Lz4Compress "lz4_compress" "org.illumos:lz4_compress" Read [activate_on_enable] [] Zol061 Write "LZ4 compression.";
    MultiVdevCrashDump "multi_vdev_crash_dump" "com.joyent:multi_vdev_crash_dump" Read [] [] Zol07 Write "Crash dumps to pools of several vdevs.";
    SpacemapHistogram "spacemap_histogram" "com.delphix:spacemap_histogram" Write [] [] Zol064 Write "Space maps keep a histogram of their free segments.";
    EnabledTxg "enabled_txg" "com.delphix:enabled_txg" Write [] [] Zol064 Write "Remembers the txg in which each feature was enabled.";
    HoleBirth "hole_birth" "com.delphix:hole_birth" Read [mos, activate_on_enable] [EnabledTxg] Zol064 Write "Holes remember the txg that punched them.";
    ExtensibleDataset "extensible_dataset" "com.delphix:extensible_dataset" Read [] [] Zol064 Write "Datasets and directories can carry further attributes.";
    EmbeddedData "embedded_data" "com.delphix:embedded_data" Read [mos, activate_on_enable] [] Zol064 Write "Blocks that compress very well live in their block pointer.";
    Bookmarks "bookmarks" "com.delphix:bookmarks" Write [] [ExtensibleDataset] Zol064 Write "Bookmarks: incremental sends from snapshots that are gone.";
    FilesystemLimits "filesystem_limits" "com.joyent:filesystem_limits" Write [] [ExtensibleDataset] Zol065 Write "Limits on the number of file systems and snapshots.";
    LargeBlocks "large_blocks" "org.open-zfs:large_blocks" Read [per_dataset] [ExtensibleDataset] Zol065 Write "Blocks larger than 128 KiB.";
    LargeDnode "large_dnode" "org.zfsonlinux:large_dnode" Read [per_dataset] [ExtensibleDataset] Zol07 Write "Dnodes larger than 512 bytes.";
    Sha512 "sha512" "org.illumos:sha512" Read [per_dataset] [ExtensibleDataset] Zol07 Write "SHA-512/256 checksums.";
    Skein "skein" "org.illumos:skein" Read [per_dataset] [ExtensibleDataset] Zol07 Write "Skein checksums.";
    Edonr "edonr" "org.illumos:edonr" Read [per_dataset] [ExtensibleDataset] Zol07 Write "Edon-R checksums.";
    UserobjAccounting "userobj_accounting" "org.zfsonlinux:userobj_accounting" Write [per_dataset] [ExtensibleDataset] Zol07 Write "Counts objects by user and group.";
    Encryption "encryption" "com.datto:encryption" Read [per_dataset] [ExtensibleDataset, BookmarkV2] Zol08 Write "Encrypted datasets.";
    ProjectQuota "project_quota" "org.zfsonlinux:project_quota" Write [per_dataset] [ExtensibleDataset] Zol08 Write "Counts space and objects by project.";
    DeviceRemoval "device_removal" "com.delphix:device_removal" Read [mos] [] Zol08 Write "Top-level vdevs can be removed; their blocks are reached through a mapping.";
    ObsoleteCounts "obsolete_counts" "com.delphix:obsolete_counts" Write [] [ExtensibleDataset, DeviceRemoval] Zol08 Write "Counts which parts of a removed vdev's mapping are still in use.";
    ZpoolCheckpoint "zpool_checkpoint" "com.delphix:zpool_checkpoint" Write [] [] Zol08 Write "The pool's state can be kept and gone back to.";
    SpacemapV2 "spacemap_v2" "com.delphix:spacemap_v2" Write [activate_on_enable] [] Zol08 Write "Space map entries for large segments.";
    AllocationClasses "allocation_classes" "org.zfsonlinux:allocation_classes" Write [] [] Zol08 Write "Separate vdevs for metadata, small blocks and dedup tables.";
    ResilverDefer "resilver_defer" "com.datto:resilver_defer" Write [] [] Zol08 Write "A resilver that comes while another runs waits for it.";
    BookmarkV2 "bookmark_v2" "com.datto:bookmark_v2" Read [] [ExtensibleDataset, Bookmarks] Zol08 Write "Larger bookmarks.";
    RedactionBookmarks "redaction_bookmarks" "com.delphix:redaction_bookmarks" Read [] [BookmarkV2, ExtensibleDataset, Bookmarks] OpenZfs20 Write "Bookmarks that list redacted blocks.";
    RedactedDatasets "redacted_datasets" "com.delphix:redacted_datasets" Read [per_dataset] [ExtensibleDataset] OpenZfs20 Write "Datasets received from redacted streams.";
    BookmarkWritten "bookmark_written" "com.delphix:bookmark_written" Read [] [BookmarkV2, ExtensibleDataset, Bookmarks] OpenZfs20 Write "Bookmarks keep the accounting that written@ needs.";
    LogSpacemap "log_spacemap" "com.delphix:log_spacemap" Write [] [SpacemapV2] OpenZfs20 Write "Allocations are logged for the whole pool and reach the metaslabs' space maps later.";
    Livelist "livelist" "com.delphix:livelist" Write [] [ExtensibleDataset] OpenZfs20 Write "Clones list their own blocks, so that they are destroyed fast.";
    DeviceRebuild "device_rebuild" "org.openzfs:device_rebuild" Write [] [] OpenZfs20 Write "Mirrors and draids can be rebuilt in the order of their space.";
    ZstdCompress "zstd_compress" "org.freebsd:zstd_compress" Read [per_dataset] [ExtensibleDataset] OpenZfs20 Write "Zstandard compression.";
    Draid "draid" "org.openzfs:draid" Read [mos] [] OpenZfs21 Write "Declustered RAID-Z with distributed spares.";
    HeadErrlog "head_errlog" "com.delphix:head_errlog" Read [activate_on_enable] [] OpenZfs22 Write "The error log names damaged blocks by dataset head.";
    Blake3 "blake3" "org.openzfs:blake3" Read [per_dataset] [ExtensibleDataset] OpenZfs22 Write "BLAKE3 checksums.";
    BlockCloning "block_cloning" "com.fudosecurity:block_cloning" Write [] [] OpenZfs22 Write "Files can share blocks by reference counts.";
    VdevZapsV2 "vdev_zaps_v2" "com.klarasystems:vdev_zaps_v2" Read [mos] [] OpenZfs22 Write "The root vdev has a ZAP, too.";
    Zilsaxattr "zilsaxattr" "org.openzfs:zilsaxattr" Write [per_dataset] [ExtensibleDataset] OpenZfs22 Write "The intent log knows extended attributes kept as system attributes.";
    RedactionListSpill "redaction_list_spill" "com.delphix:redaction_list_spill" Read [] [RedactionBookmarks] OpenZfs23 Write "Redaction lists may name many snapshots.";
    RaidzExpansion "raidz_expansion" "org.openzfs:raidz_expansion" Read [mos] [] OpenZfs23 Write "A raidz can grow by a device.";
    FastDedup "fast_dedup" "com.klarasystems:fast_dedup" Write [] [] OpenZfs23 Write "Dedup tables with a log.";
    Longname "longname" "org.zfsonlinux:longname" Read [per_dataset] [ExtensibleDataset] OpenZfs23 Write "File names up to 1023 bytes.";
    LargeMicrozap "large_microzap" "com.klarasystems:large_microzap" Write [per_dataset] [ExtensibleDataset, LargeBlocks] OpenZfs23 Write "Micro ZAPs larger than 128 KiB.";
    BlockCloningEndian "block_cloning_endian" "com.truenas:block_cloning_endian" Write [] [] OpenZfs24 Write "The table of shared blocks in one byte order everywhere.";
    DynamicGangHeader "dynamic_gang_header" "com.klarasystems:dynamic_gang_header" Read [mos] [] OpenZfs24 Write "Gang headers as large as the pool's sectors.";
    PhysicalRewrite "physical_rewrite" "com.truenas:physical_rewrite" Write [per_dataset] [ExtensibleDataset] OpenZfs24 Write "Blocks can be rewritten and keep their logical birth.";
    DraidFailureDomains "draid_failure_domains" "com.seagate:draid_failure_domains" Read [mos] [Draid] Master None "Draids that survive the loss of an enclosure.";
}

impl Feature {
    /// Whether weir may enable it: it writes pools in which the feature is active.
    pub fn may_be_enabled(&self) -> bool {
        self.support >= Support::Write
    }
}

impl FeatureId {
    /// Its row of the table.
    pub fn get(self) -> &'static Feature {
        &FEATURES[self as usize]
    }
    /// The feature with this short name or guid.
    pub fn lookup(name: &str) -> Option<FeatureId> {
        FEATURES.iter().find(|f| f.name == name || f.guid == name).map(|f| f.id)
    }
    /// The feature with this guid.
    pub fn by_guid(guid: &str) -> Option<FeatureId> {
        FEATURES.iter().find(|f| f.guid == guid).map(|f| f.id)
    }
}

impl std::fmt::Display for FeatureId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.get().name)
    }
}

/// `wanted` and everything that it depends on, each once, dependencies first: the order to enable
/// them in.
pub fn enable_closure_ids(wanted: &[FeatureId]) -> Vec<FeatureId> {
    fn add(id: FeatureId, out: &mut Vec<FeatureId>) {
        // The table has no cycles (a test), so this ends.
        if !out.contains(&id) {
            id.get().depends.iter().for_each(|&d| add(d, out));
            out.push(id);
        }
    }
    let mut out = Vec::new();
    wanted.iter().for_each(|&id| add(id, &mut out));
    out
}

/// As [`enable_closure_ids`] for short names or guids. Errors: `Invalid` for a name that is not
/// known.
pub fn enable_closure<S: AsRef<str>>(names: &[S]) -> Result<Vec<FeatureId>> {
    let lookup = |n: &S| {
        FeatureId::lookup(n.as_ref()).ok_or_else(|| Error::invalid(format!("there is no feature '{}'", n.as_ref())))
    };
    Ok(enable_closure_ids(&names.iter().map(lookup).collect::<Result<Vec<_>>>()?))
}

/// The features that weir enables on a new pool, dependencies first: those of releases of OpenZFS,
/// as there, that it can write.
pub fn default_features() -> Vec<FeatureId> {
    writable(|f| f.release < Release::Master)
}

/// The features that tools of OpenZFS 2.1 know, and blake3, which they miss only once it is used;
/// dependencies first.
pub fn features_of_2_1() -> Vec<FeatureId> {
    writable(|f| f.release <= Release::OpenZfs21 || f.id == FeatureId::Blake3)
}

fn writable(is_wanted: impl Fn(&Feature) -> bool) -> Vec<FeatureId> {
    let wanted = FEATURES.iter().filter(|f| f.may_be_enabled() && is_wanted(f));
    enable_closure_ids(&wanted.map(|f| f.id).collect::<Vec<_>>())
}

/// The features that `compatibility=NAME` allows, in the order of the table; `None` for a name that
/// is not known. `off` allows all, `legacy` none.
pub fn compatibility_set(name: &str) -> Option<Vec<FeatureId>> {
    use FeatureId::*;
    let up_to = |r: Release| Some(FEATURES.iter().filter(|f| f.release <= r).map(|f| f.id).collect::<Vec<_>>());
    match name {
        "off" => up_to(Release::Master),
        "legacy" => Some(Vec::new()),
        "zol-0.6.1" => up_to(Release::Zol061),
        "zol-0.6.4" => up_to(Release::Zol064),
        "zol-0.6.5" | "grub2" | "compat-2018" | "2018" => up_to(Release::Zol065),
        "zol-0.7" => up_to(Release::Zol07),
        "compat-2019" | "2019" | "compat-2020" | "2020" => {
            let later = [MultiVdevCrashDump, Sha512, Skein];
            up_to(Release::Zol07).map(|s| keep(s, |f| f.get().release <= Release::Zol065 || later.contains(&f)))
        }
        "compat-2021" | "2021" => {
            let later = [MultiVdevCrashDump, Sha512, Skein, DeviceRemoval, ObsoleteCounts, SpacemapV2, ZpoolCheckpoint];
            up_to(Release::Zol08).map(|s| keep(s, |f| f.get().release <= Release::Zol065 || later.contains(&f)))
        }
        "zol-0.8" => up_to(Release::Zol08),
        "openzfs-2.0-linux" => up_to(Release::OpenZfs20),
        "openzfs-2.1-linux" => up_to(Release::OpenZfs21),
        "openzfs-2.2" | "openzfs-2.2-linux" => up_to(Release::OpenZfs22),
        "openzfs-2.3" | "openzfs-2.3-linux" => up_to(Release::OpenZfs23),
        "openzfs-2.4" | "openzfs-2.4-linux" => up_to(Release::OpenZfs24),
        _ => None,
    }
}

fn keep(set: Vec<FeatureId>, f: impl Fn(FeatureId) -> bool) -> Vec<FeatureId> {
    set.into_iter().filter(|&id| f(id)).collect()
}

/// weir's support for a pool in which the features with `guids` are active, and the guids that
/// limit it (the worst first). `zap` is where they are counted: an unknown feature stops reading
/// only in `features_for_read`.
pub fn support_of<'a>(zap: FeatureZap, guids: impl IntoIterator<Item = &'a str>) -> (Support, Vec<&'a str>) {
    let one = |guid: &str| match FeatureId::by_guid(guid) {
        Some(id) => id.get().support,
        None if zap == FeatureZap::Write => Support::Read,
        None => Support::None,
    };
    let mut limits: Vec<(Support, &str)> =
        guids.into_iter().map(|g| (one(g), g)).filter(|(s, _)| *s < Support::Write).collect();
    limits.sort();
    let worst = limits.first().map_or(Support::Write, |l| l.0);
    (worst, limits.into_iter().map(|l| l.1).collect())
}
