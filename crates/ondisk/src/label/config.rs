//! Label configs and the configuration object, typed (format page 01 section 4, page 10 section
//! 2.2).
//!
//! Reading requires the keys that an import needs and keeps unknown ones; writing puts keys in the
//! order of OpenZFS, so a config that OpenZFS wrote comes out byte for byte.

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};

use base::{Error, Guid, Result, ResultExt, Txg};

use crate::nvlist::{NvList, NvValue};
use crate::vdev_config::{ConfigForm, VdevConfig};

/// The pool version that stands for "look at the feature flags".
pub const VERSION_FEATURES: u64 = 5000;
/// The last version before feature flags.
pub const VERSION_MAX_LEGACY: u64 = 28;

/// Whether pools of `version` exist and are understood.
pub fn version_supported(version: u64) -> bool {
    (1..=VERSION_MAX_LEGACY).contains(&version) || version == VERSION_FEATURES
}

/// The state of a pool, or the use of a device, as labels state it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u64)]
pub enum PoolState {
    /// In use, or not exported when its machine stopped.
    Active = 0,
    /// Exported.
    Exported = 1,
    /// Destroyed; still importable by force.
    Destroyed = 2,
    /// A hot spare.
    Spare = 3,
    /// A cache device.
    L2cache = 4,
    /// Never on disk.
    Uninitialized = 5,
    /// Never on disk.
    Unavailable = 6,
    /// Never on disk.
    PotentiallyActive = 7,
}

impl PoolState {
    /// The state with number `n`.
    pub fn from_u64(n: u64) -> Option<PoolState> {
        use PoolState::*;
        [Active, Exported, Destroyed, Spare, L2cache, Uninitialized, Unavailable, PotentiallyActive]
            .into_iter()
            .find(|s| *s as u64 == n)
    }
    fn read(list: &NvList) -> Result<PoolState> {
        let n = list.require_u64("state")?;
        PoolState::from_u64(n).ok_or_else(|| Error::corrupt(format!("label has the unknown state {n}")))
    }
}

/// The keys that label configs and the configuration object begin with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigHead {
    /// Pool version: 1 to 28 or 5000.
    pub version: u64,
    /// Pool name.
    pub name: String,
    /// State of the pool when this was written.
    pub state: PoolState,
    /// Txg that wrote it; a label's is at most that of the uberblock it belongs to; 0 while the
    /// pool is being created.
    pub txg: Txg,
    /// Guid of the pool and of the root vdev.
    pub pool_guid: Guid,
    /// Known defect of the pool, 0 for none.
    pub errata: Option<u64>,
    /// The property `comment`.
    pub comment: Option<String>,
    /// The property `compatibility`.
    pub compatibility: Option<String>,
    /// Host that last imported the pool.
    pub hostid: Option<u64>,
    /// Its name.
    pub hostname: Option<String>,
}

impl ConfigHead {
    fn read(list: &NvList) -> Result<ConfigHead> {
        Ok(ConfigHead {
            version: read_version(list)?,
            name: list.require_str("name")?.to_owned(),
            state: PoolState::read(list)?,
            txg: Txg(list.require_u64("txg")?),
            pool_guid: Guid(list.require_u64("pool_guid")?),
            errata: list.u64("errata"),
            comment: optional_str(list, "comment"),
            compatibility: optional_str(list, "compatibility"),
            hostid: list.u64("hostid"),
            hostname: optional_str(list, "hostname"),
        })
    }
    fn put(&self, l: &mut NvList) {
        l.put_u64("version", self.version);
        l.put_str("name", self.name.as_str());
        l.put_u64("state", self.state as u64);
        l.put_u64("txg", self.txg.0);
        l.put_u64("pool_guid", self.pool_guid.0);
        self.errata.iter().for_each(|&e| l.put_u64("errata", e));
        self.comment.iter().for_each(|s| l.put_str("comment", s.as_str()));
        self.compatibility.iter().for_each(|s| l.put_str("compatibility", s.as_str()));
        self.hostid.iter().for_each(|&h| l.put_u64("hostid", h));
        self.hostname.iter().for_each(|s| l.put_str("hostname", s.as_str()));
    }
}

/// On disk the keys of the head stand in one list with the others, so their fields read as one.
macro_rules! begins_with_head {
    ($config:ty) => {
        impl Deref for $config {
            type Target = ConfigHead;
            fn deref(&self) -> &ConfigHead {
                &self.head
            }
        }
        impl DerefMut for $config {
            fn deref_mut(&mut self) -> &mut ConfigHead {
                &mut self.head
            }
        }
    };
}
begins_with_head!(LabelConfig);
begins_with_head!(MosConfig);

/// The config of a leaf that is part of a pool's vdev tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LabelConfig {
    /// What the configuration object begins with too; `state` is active, exported or destroyed.
    pub head: ConfigHead,
    /// Guid of the top-level vdev that the leaf is under.
    pub top_guid: Guid,
    /// Guid of the leaf.
    pub guid: Guid,
    /// The leaf is a hot spare in use.
    pub is_spare: bool,
    /// The leaf is itself a log top-level vdev.
    pub is_log: bool,
    /// Places of the root that are holes.
    pub hole_array: Vec<u64>,
    /// Top-level vdevs with holes; absent before 2010.
    pub vdev_children: Option<u64>,
    /// Pool that this one is being split from.
    pub split_guid: Option<Guid>,
    /// The top-level vdev that the leaf is under, with everything below it.
    pub vdev_tree: VdevConfig,
    /// Guids of the active features that are needed to read the MOS.
    pub features_for_read: Vec<String>,
    /// Only in labels of a device just initialised.
    pub create_txg: Option<Txg>,
    /// Every other key, in order.
    pub unknown: Vec<(String, NvValue)>,
}

/// The keys of [`LabelConfig`] and [`MosConfig`] that are not kept as unknown.
const LABEL_KEYS: [&str; 21] = [
    "version",
    "name",
    "state",
    "txg",
    "pool_guid",
    "errata",
    "comment",
    "compatibility",
    "hostid",
    "hostname",
    "top_guid",
    "guid",
    "is_spare",
    "is_log",
    "hole_array",
    "vdev_children",
    "split_guid",
    "vdev_tree",
    "features_for_read",
    "create_txg",
    HAS_VDEV_ZAPS,
];
const SPLIT: &str = "splitcfg";
const HAS_VDEV_ZAPS: &str = "com.delphix:has_per_vdev_zaps";

fn unknown_keys(list: &NvList, known: impl Fn(&str) -> bool) -> Vec<(String, NvValue)> {
    let mut seen = BTreeSet::new();
    list.iter().filter(|(n, _)| !known(n) && seen.insert(*n)).map(|(n, v)| (n.to_owned(), v.clone())).collect()
}

fn optional_str(list: &NvList, name: &str) -> Option<String> {
    list.str(name).map(str::to_owned)
}

/// `features_for_read`: required from version 5000 on.
fn read_features(list: &NvList, version: u64) -> Result<Vec<String>> {
    if version < VERSION_FEATURES && !list.contains("features_for_read") {
        return Ok(Vec::new());
    }
    let mut seen = BTreeSet::new();
    let names = list.require_list("features_for_read")?.names();
    Ok(names.filter(|n| seen.insert(*n)).map(str::to_owned).collect())
}

fn put_features(list: &mut NvList, features: &[String]) {
    let mut set = NvList::new();
    features.iter().for_each(|f| set.push(f.as_str(), NvValue::Boolean));
    list.put_list("features_for_read", set);
}

fn read_version(list: &NvList) -> Result<u64> {
    let version = list.require_u64("version")?;
    if !version_supported(version) {
        return Err(Error::unsupported(format!("pool version {version} is not known")));
    }
    Ok(version)
}

impl LabelConfig {
    /// Reads the config of a leaf in a pool; a spare's or cache device's lacks the keys, see
    /// [`DeviceLabel`].
    pub fn from_nvlist(list: &NvList) -> Result<LabelConfig> {
        let head = ConfigHead::read(list)?;
        let features_for_read = read_features(list, head.version)?;
        let guid = |name: &str| list.require_u64(name).map(Guid);
        Ok(LabelConfig {
            head,
            top_guid: guid("top_guid")?,
            guid: guid("guid")?,
            is_spare: list.u64("is_spare").is_some_and(|v| v != 0),
            is_log: list.u64("is_log").is_some_and(|v| v != 0),
            hole_array: list.u64s("hole_array").unwrap_or_default().to_vec(),
            vdev_children: list.u64("vdev_children"),
            split_guid: list.u64("split_guid").map(Guid),
            vdev_tree: VdevConfig::from_nvlist(list.require_list("vdev_tree")?)?,
            features_for_read,
            create_txg: list.u64("create_txg").map(Txg),
            unknown: unknown_keys(list, |n| LABEL_KEYS.contains(&n) && n != HAS_VDEV_ZAPS),
        })
    }

    /// The config as a list, in the order of real code.
    pub fn to_nvlist(&self) -> NvList {
        let mut l = NvList::new();
        self.head.put(&mut l);
        l.put_u64("top_guid", self.top_guid.0);
        l.put_u64("guid", self.guid.0);
        if self.is_spare {
            l.put_u64("is_spare", 1);
        }
        if self.is_log {
            l.put_u64("is_log", 1);
        }
        if !self.hole_array.is_empty() {
            l.put_u64s("hole_array", self.hole_array.clone());
        }
        self.vdev_children.iter().for_each(|&n| l.put_u64("vdev_children", n));
        self.split_guid.iter().for_each(|g| l.put_u64("split_guid", g.0));
        l.put_list("vdev_tree", self.vdev_tree.to_nvlist(ConfigForm::Label));
        put_features(&mut l, &self.features_for_read);
        self.create_txg.iter().for_each(|t| l.put_u64("create_txg", t.0));
        for (name, value) in &self.unknown {
            l.push(name.as_str(), value.clone());
        }
        l
    }

    /// Top-level vdevs of the pool with holes: the label's count, or the one that an old label
    /// without it implies (page 01 section 4).
    pub fn top_level_count(&self) -> u64 {
        self.vdev_children.unwrap_or_else(|| self.vdev_tree.id.saturating_add(1))
    }
}

/// `splitcfg`: a split of mirrors that is under way (format page 23 section 10); in the
/// configuration object only.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SplitConfig {
    /// `guid_list`, of the pool that is split: the leaves that leave it, by top-level vdev; 0 where
    /// none does.
    pub guid_list: Vec<Guid>,
    /// `split_guid`, of the new pool: the pool that it is split from. Labels have it, too.
    pub split_guid: Option<Guid>,
}

impl SplitConfig {
    fn read(list: &NvList) -> SplitConfig {
        let guids = list.u64s("guid_list").unwrap_or_default();
        SplitConfig {
            guid_list: guids.iter().map(|n| Guid(*n)).collect(),
            split_guid: list.u64("split_guid").map(Guid),
        }
    }

    fn to_nvlist(&self) -> NvList {
        let mut l = NvList::new();
        if !self.guid_list.is_empty() {
            l.put_u64s("guid_list", self.guid_list.iter().map(|g| g.0).collect());
        }
        self.split_guid.iter().for_each(|g| l.put_u64("split_guid", g.0));
        l
    }
}

/// The content of the MOS configuration object: the trusted config of the whole pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MosConfig {
    /// What labels begin with too.
    pub head: ConfigHead,
    /// Every vdev has its ZAP; must agree with the MOS directory's `com.delphix:vdev_zap_map`.
    pub has_per_vdev_zaps: bool,
    /// Top-level vdevs with holes.
    pub vdev_children: Option<u64>,
    /// A split that is under way.
    pub split: Option<SplitConfig>,
    /// The root with the whole tree.
    pub vdev_tree: VdevConfig,
    /// As in labels.
    pub features_for_read: Vec<String>,
    /// Every other key, in order.
    pub unknown: Vec<(String, NvValue)>,
}

impl MosConfig {
    /// Reads the list in the configuration object.
    pub fn from_nvlist(list: &NvList) -> Result<MosConfig> {
        let head = ConfigHead::read(list)?;
        let features_for_read = read_features(list, head.version)?;
        let in_label_only =
            |n: &str| matches!(n, "top_guid" | "guid" | "is_spare" | "is_log" | "hole_array" | "create_txg");
        Ok(MosConfig {
            head,
            has_per_vdev_zaps: list.bool_flag(HAS_VDEV_ZAPS),
            vdev_children: list.u64("vdev_children"),
            split: list.list(SPLIT).map(SplitConfig::read),
            vdev_tree: VdevConfig::from_nvlist(list.require_list("vdev_tree")?)?,
            features_for_read,
            unknown: unknown_keys(list, |n| n == SPLIT || LABEL_KEYS.contains(&n) && !in_label_only(n)),
        })
    }

    /// The list for the configuration object, in the order of real code.
    pub fn to_nvlist(&self) -> NvList {
        let mut l = NvList::new();
        self.head.put(&mut l);
        self.split.iter().for_each(|s| l.put_list(SPLIT, s.to_nvlist()));
        if self.has_per_vdev_zaps {
            l.put_flag(HAS_VDEV_ZAPS);
        }
        self.vdev_children.iter().for_each(|&n| l.put_u64("vdev_children", n));
        self.split_guid().iter().for_each(|g| l.put_u64("split_guid", g.0));
        l.put_list("vdev_tree", self.vdev_tree.to_nvlist(ConfigForm::Mos));
        put_features(&mut l, &self.features_for_read);
        for (name, value) in &self.unknown {
            l.push(name.as_str(), value.clone());
        }
        l
    }

    fn split_guid(&self) -> Option<Guid> {
        self.split.as_ref().and_then(|s| s.split_guid)
    }

    /// The config of the label of leaf `guid` under the top-level vdev at place `top`, in `state`
    /// as of `txg`. `None` when the leaf is not there.
    pub fn label_for(&self, top: usize, guid: Guid) -> Option<LabelConfig> {
        let tree = self.vdev_tree.children.get(top)?;
        let leaf = tree.find(guid)?;
        Some(LabelConfig {
            head: self.head.clone(),
            top_guid: tree.guid,
            guid,
            is_spare: leaf.is_spare,
            is_log: leaf.guid == tree.guid && tree.is_log == Some(1),
            hole_array: self.vdev_tree.children.iter().filter(|c| c.is_hole).map(|c| c.id).collect(),
            vdev_children: Some(self.vdev_tree.children.len() as u64),
            split_guid: self.split_guid(),
            vdev_tree: tree.clone(),
            features_for_read: self.features_for_read.clone(),
            create_txg: None,
            unknown: Vec::new(),
        })
    }
}

/// The role of a device by its label.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(clippy::large_enum_variant, reason = "one per device, and the large one is the common one")]
pub enum DeviceLabel {
    /// Part of a pool.
    Pool(LabelConfig),
    /// A hot spare that is not in use; which pools it belongs to is known to them only.
    Spare {
        /// Pool version.
        version: u64,
        /// Guid of the leaf.
        guid: Guid,
    },
    /// A cache device.
    Cache {
        /// Pool version.
        version: u64,
        /// Guid of the leaf.
        guid: Guid,
    },
}

impl DeviceLabel {
    /// Reads a label's config of any kind.
    pub fn from_nvlist(list: &NvList) -> Result<DeviceLabel> {
        let aux = || -> Result<(u64, Guid)> { Ok((read_version(list)?, Guid(list.require_u64("guid")?))) };
        let label = match PoolState::read(list)? {
            PoolState::Spare => aux().map(|(version, guid)| DeviceLabel::Spare { version, guid }),
            PoolState::L2cache => aux().map(|(version, guid)| DeviceLabel::Cache { version, guid }),
            _ => LabelConfig::from_nvlist(list).map(DeviceLabel::Pool),
        };
        label.at(|| "label config")
    }

    /// The config as a list.
    pub fn to_nvlist(&self) -> NvList {
        let aux = |version: u64, state: PoolState, guid: Guid| {
            NvList::new().with_u64("version", version).with_u64("state", state as u64).with_u64("guid", guid.0)
        };
        match self {
            DeviceLabel::Pool(config) => config.to_nvlist(),
            DeviceLabel::Spare { version, guid } => aux(*version, PoolState::Spare, *guid),
            DeviceLabel::Cache { version, guid } => aux(*version, PoolState::L2cache, *guid),
        }
    }

    /// Guid of the device.
    pub fn guid(&self) -> Guid {
        match self {
            DeviceLabel::Pool(config) => config.guid,
            DeviceLabel::Spare { guid, .. } | DeviceLabel::Cache { guid, .. } => *guid,
        }
    }
}
