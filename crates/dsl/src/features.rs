//! Feature flags of one pool: enabled features and their counts, stored in the MOS (format page 15
//! section 8). Pools older than feature flags (versions 1 to 28) have no features and none of these
//! objects.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;

use base::{Error, ObjectId, Result};
use dmu::{DmuFeatures, Dnode, Objset, Tx, zap};
use ondisk::feature::{Feature, FeatureId, FeatureZap};
use ondisk::object_type::ObjectType;
use ondisk::version;

/// Names of the MOS directory entries.
const FOR_READ: &[u8] = b"features_for_read";
const FOR_WRITE: &[u8] = b"features_for_write";
const DESCRIPTIONS: &[u8] = b"feature_descriptions";
const ENABLED_TXG: &[u8] = b"feature_enabled_txg";

/// The two ZAPs of counts, and the one of descriptions.
struct Zaps {
    read: Dnode,
    write: Dnode,
    descriptions: Dnode,
}

/// The features of a pool.
pub struct Features {
    mos: Objset,
    /// Version of the pool: 1 to 28, or 5000 with feature flags.
    version: Cell<u64>,
    /// Empty in a pool without feature flags.
    zaps: OnceCell<Zaps>,
    enabled_txg: RefCell<Option<Dnode>>,
    counts: RefCell<BTreeMap<String, u64>>,
    label_changed: Cell<bool>,
}

impl Features {
    /// No features, for a pool of a version from before feature flags, or a new one.
    pub fn none(mos: &Objset, version: u64) -> Features {
        Features {
            mos: mos.clone(),
            version: Cell::new(version),
            zaps: OnceCell::new(),
            enabled_txg: RefCell::new(None),
            counts: RefCell::default(),
            label_changed: Cell::new(false),
        }
    }

    /// Version of the pool: 1 to 28, or 5000 with feature flags.
    pub fn version(&self) -> u64 {
        self.version.get()
    }

    /// The pool has this version from now on. With feature flags makes the three ZAPs and their
    /// entries in the MOS directory (syncing context).
    pub async fn set_version(&self, version: u64, directory: &Dnode, tx: &Tx) -> Result<()> {
        self.version.set(version);
        // The labels have it, too.
        self.label_changed.set(true);
        if version < version::FEATURES || self.zaps.get().is_some() {
            return Ok(());
        }
        let mut made = Vec::new();
        for name in [FOR_READ, FOR_WRITE, DESCRIPTIONS] {
            let dn = zap::create(&self.mos, ObjectType::OTN_ZAP_METADATA, 0, tx).await?;
            zap::add_u64(directory, name, dn.object().0, tx).await?;
            made.push(dn);
        }
        let [read, write, descriptions] = <[Dnode; 3]>::try_from(made).expect("three were made");
        let _ = self.zaps.set(Zaps { read, write, descriptions });
        Ok(())
    }

    /// Reads them from the MOS directory.
    pub async fn load(mos: &Objset, directory: &Dnode) -> Result<Features> {
        let open = async |name: &[u8]| -> Result<Dnode> {
            let what = String::from_utf8_lossy(name).into_owned();
            let obj = zap::lookup_u64(directory, name).await?;
            let obj = obj.ok_or_else(|| Error::corrupt(format!("the MOS directory has no entry {what}")))?;
            mos.hold(ObjectId(obj)).await.map_err(|e| e.at(what))
        };
        let (read, write, descriptions) = (open(FOR_READ).await?, open(FOR_WRITE).await?, open(DESCRIPTIONS).await?);
        let enabled_txg = match zap::lookup_u64(directory, ENABLED_TXG).await? {
            Some(obj) => Some(mos.hold(ObjectId(obj)).await?),
            None => None,
        };
        let mut counts = BTreeMap::new();
        for dn in [&read, &write] {
            for entry in zap::list(dn).await? {
                counts.insert(String::from_utf8_lossy(&entry.name).into_owned(), entry.value.as_u64().unwrap_or(0));
            }
        }
        Ok(Features {
            mos: mos.clone(),
            version: Cell::new(version::FEATURES),
            zaps: OnceCell::from(Zaps { read, write, descriptions }),
            enabled_txg: RefCell::new(enabled_txg),
            counts: RefCell::new(counts),
            label_changed: Cell::new(false),
        })
    }

    /// Features of the read ZAP with their counts, unknown ones included.
    pub async fn read_counts(&self) -> Result<Vec<(String, u64)>> {
        Self::counts_of(self.zaps.get().map(|z| &z.read)).await
    }
    /// Features of the write ZAP with their counts, unknown ones included.
    pub async fn write_counts(&self) -> Result<Vec<(String, u64)>> {
        Self::counts_of(self.zaps.get().map(|z| &z.write)).await
    }

    /// The pool's description of a feature, by guid, if there is one.
    pub async fn description(&self, guid: &str) -> Result<Option<String>> {
        let Some(zaps) = self.zaps.get() else { return Ok(None) };
        let text = zap::lookup(&zaps.descriptions, guid.as_bytes()).await?;
        Ok(text.and_then(|v| v.as_text()))
    }

    async fn counts_of(dn: Option<&Dnode>) -> Result<Vec<(String, u64)>> {
        let Some(dn) = dn else { return Ok(Vec::new()) };
        let all = zap::list(dn).await?.into_iter();
        Ok(all.map(|e| (String::from_utf8_lossy(&e.name).into_owned(), e.value.as_u64().unwrap_or(0))).collect())
    }

    /// The count of an enabled feature, by guid.
    pub fn count(&self, guid: &str) -> Option<u64> {
        self.counts.borrow().get(guid).copied()
    }
    /// True if enabled (count 0 or more).
    pub fn is_enabled(&self, id: FeatureId) -> bool {
        self.count(id.get().guid).is_some()
    }
    /// True if its count is not 0.
    pub fn is_active(&self, id: FeatureId) -> bool {
        self.count(id.get().guid).is_some_and(|n| n > 0)
    }
    /// Those that change what the DMU writes: for a pool that is made, imported, or gets features.
    pub fn for_dmu(&self) -> DmuFeatures {
        DmuFeatures {
            pool_version: self.version(),
            hole_birth: self.is_active(FeatureId::HoleBirth),
            embedded_data: self.is_active(FeatureId::EmbeddedData),
            lz4: self.is_active(FeatureId::Lz4Compress),
            zilsaxattr: self.is_enabled(FeatureId::Zilsaxattr),
            longname: self.is_enabled(FeatureId::Longname),
            large_microzap: self.is_enabled(FeatureId::LargeMicrozap),
            physical_rewrite: self.is_enabled(FeatureId::PhysicalRewrite),
            userobj_accounting: self.is_enabled(FeatureId::UserobjAccounting),
            project_quota: self.is_enabled(FeatureId::ProjectQuota),
        }
    }
    /// True once if a feature in the labels became active or inactive since the last call.
    pub fn take_label_changed(&self) -> bool {
        self.label_changed.replace(false)
    }

    /// Guids for the labels: active features with the MOS flag.
    pub fn for_labels(&self) -> Vec<String> {
        let listed = ondisk::feature::FEATURES.iter().filter(|f| f.mos && self.count(f.guid).is_some_and(|n| n > 0));
        listed.map(|f| f.guid.to_string()).collect()
    }

    fn zaps(&self) -> Result<&Zaps> {
        self.zaps.get().ok_or_else(|| Error::unsupported("the pool is older than feature flags: upgrade it first"))
    }

    fn zap_of(&self, feature: &Feature) -> Result<&Dnode> {
        let zaps = self.zaps()?;
        Ok(if feature.zap == FeatureZap::Read { &zaps.read } else { &zaps.write })
    }

    /// Changes the count of an enabled feature (syncing context).
    pub async fn add(&self, id: FeatureId, delta: i64, tx: &Tx) -> Result<()> {
        let feature = id.get();
        // A damaged pool may use a feature that is not enabled.
        let old = self.count(feature.guid).ok_or_else(|| {
            Error::corrupt(format!("the pool uses the feature {}, which is not enabled in it", feature.guid))
        })?;
        // The count comes from disk, and may be too low.
        let new = old.checked_add_signed(delta).ok_or_else(|| {
            Error::corrupt(format!("feature {} is counted {old} times, {delta} are to be added", feature.guid))
        })?;
        zap::update_u64(self.zap_of(feature)?, feature.guid.as_bytes(), new, tx).await?;
        self.counts.borrow_mut().insert(feature.guid.to_string(), new);
        if feature.mos && (old == 0) != (new == 0) {
            self.label_changed.set(true);
        }
        Ok(())
    }

    /// Enables a feature whose dependencies are enabled already (syncing context). Enabling twice
    /// does nothing.
    pub async fn enable(&self, id: FeatureId, directory: &Dnode, tx: &Tx) -> Result<()> {
        let feature = id.get();
        if self.is_enabled(id) {
            return Ok(());
        }
        let start = u64::from(feature.activate_on_enable);
        let zaps = self.zaps()?;
        self.counts.borrow_mut().insert(feature.guid.to_string(), start);
        zap::add_u64(self.zap_of(feature)?, feature.guid.as_bytes(), start, tx).await?;
        zap::update_text(&zaps.descriptions, feature.guid.as_bytes(), feature.description, tx).await?;
        if feature.mos && start > 0 {
            self.label_changed.set(true);
        }
        if id == FeatureId::EnabledTxg {
            let dn = zap::create(&self.mos, ObjectType::OTN_ZAP_METADATA, 0, tx).await?;
            zap::add_u64(directory, ENABLED_TXG, dn.object().0, tx).await?;
            *self.enabled_txg.borrow_mut() = Some(dn);
        }
        let record = self.enabled_txg.borrow().clone();
        if let Some(record) = record {
            zap::add_u64(&record, feature.guid.as_bytes(), tx.txg().0, tx).await?;
            self.add(FeatureId::EnabledTxg, 1, tx).await?;
        }
        Ok(())
    }
}
