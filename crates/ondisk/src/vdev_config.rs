//! The vdev tree as labels and the configuration object describe it (format page 01 section 4).
//!
//! A pool's storage is a tree: one *root*, below it *top-level* vdevs (their index is the vdev
//! number in block pointers), below those redundancy (mirror, raidz, draid) and temporary interior
//! vdevs (replacing, spare), and *leaves* (disk, file) that are devices. The tree exists in three
//! forms: the *MOS* form is the whole tree with the objects of its ZAPs; a *label* holds only the
//! top-level vdev that its leaf is under, without ZAPs; the *aux* form is an entry in the lists of
//! spares and cache devices, without a place in the tree.
//!
//! [`VdevConfig::from_nvlist`] reads any of them and keeps unknown keys; the `to_` functions write
//! them in the order of OpenZFS. Reading checks types and bounds the size of the tree only, so that
//! a tool can show a damaged tree; [`VdevConfig::validate`] checks what an import relies on.

use std::collections::BTreeSet;

use base::{Error, Guid, ObjectId, Result, ResultExt, Txg};

use crate::nvlist::{NvList, NvValue};

/// Deepest tree that is read: root, top, spare or replacing within each other, leaf.
pub const MAX_TREE_DEPTH: usize = 10;
/// Most vdevs in one tree that is read.
pub const MAX_VDEVS: usize = 65_536;
/// Smallest and largest sector shift of a pool (format page 01 section 1).
pub const ASHIFT_RANGE: std::ops::RangeInclusive<u64> = 9..=16;
/// Smallest metaslab shift that is chosen at creation: 16 MiB (format page 01 section 8).
pub const METASLAB_SHIFT_MIN: u32 = 24;
/// Largest metaslab shift that is chosen while the count allows: 16 GiB.
pub const METASLAB_SHIFT_MAX: u32 = 34;
/// Most metaslabs that a top-level vdev gets, even if that makes them larger than
/// [`METASLAB_SHIFT_MAX`].
pub const METASLAB_COUNT_MAX: u64 = 131_072;

/// The kind of a vdev.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VdevKind {
    /// The root of the tree; its guid is the pool's.
    Root,
    /// A block device.
    Disk,
    /// A file.
    File,
    /// Every child holds everything.
    Mirror,
    /// Striped with 1 to 3 parities.
    Raidz,
    /// Declustered raidz with distributed spares.
    Draid,
    /// A distributed spare of a draid.
    Dspare,
    /// A leaf being replaced: acts as a mirror of old and new.
    Replacing,
    /// A leaf with a hot spare in use: acts as a mirror of the two.
    Spare,
    /// The place of a removed log vdev.
    Hole,
    /// A place whose device was not found.
    Missing,
    /// A removed vdev whose blocks were copied elsewhere.
    Indirect,
    /// Anything that is not known here.
    Other(String),
}

impl VdevKind {
    const NAMES: [(VdevKind, &'static str); 12] = [
        (VdevKind::Root, "root"),
        (VdevKind::Disk, "disk"),
        (VdevKind::File, "file"),
        (VdevKind::Mirror, "mirror"),
        (VdevKind::Raidz, "raidz"),
        (VdevKind::Draid, "draid"),
        (VdevKind::Dspare, "dspare"),
        (VdevKind::Replacing, "replacing"),
        (VdevKind::Spare, "spare"),
        (VdevKind::Hole, "hole"),
        (VdevKind::Missing, "missing"),
        (VdevKind::Indirect, "indirect"),
    ];

    /// The kind that the type string names.
    pub fn parse(name: &str) -> VdevKind {
        let found = Self::NAMES.iter().find(|(_, n)| *n == name);
        found.map_or_else(|| VdevKind::Other(name.to_owned()), |(k, _)| k.clone())
    }
    /// The type string.
    pub fn name(&self) -> &str {
        match self {
            VdevKind::Other(s) => s,
            kind => Self::NAMES.iter().find(|(k, _)| k == kind).map_or("", |(_, n)| n),
        }
    }
    /// A device of its own: disk or file.
    pub fn is_leaf_device(&self) -> bool {
        matches!(self, VdevKind::Disk | VdevKind::File)
    }
    /// A vdev that has children.
    pub fn is_interior(&self) -> bool {
        matches!(
            self,
            VdevKind::Root
                | VdevKind::Mirror
                | VdevKind::Raidz
                | VdevKind::Draid
                | VdevKind::Replacing
                | VdevKind::Spare
        )
    }
}

impl std::fmt::Display for VdevKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Which form of the tree to write; see the module's documentation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfigForm {
    /// The whole tree in the configuration object.
    Mos,
    /// One top-level vdev in a label: no ZAP objects.
    Label,
    /// An entry of the spare or cache list: no id, no creation txg, no ZAP objects.
    Aux,
}

/// A vdev and everything below it. Optional fields are keys that may be absent; each is named after
/// its key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VdevConfig {
    /// `type`.
    pub kind: VdevKind,
    /// `id`: its index among its parent's children; 0 in aux lists, where the key is absent.
    pub id: u64,
    /// `guid`: unique in the pool, 0 only for holes.
    pub guid: Guid,
    /// `path`: where a leaf was last seen; a hint.
    pub path: Option<String>,
    /// `devid`: a persistent name of the device.
    pub devid: Option<String>,
    /// `phys_path`: where the device is plugged in.
    pub phys_path: Option<String>,
    /// `vdev_enc_sysfs_path`: the enclosure slot.
    pub enc_sysfs_path: Option<String>,
    /// `fru`: field-replaceable unit.
    pub fru: Option<String>,
    /// `nparity`: 1 to 3, of raidz and draid.
    pub nparity: Option<u64>,
    /// `raidz_expanding`: the last child of the raidz is new, and sectors are being moved to it
    /// (format page 19).
    pub raidz_expanding: bool,
    /// `raidz_expand_txgs`: the first txg of the wider blocks of each expansion that ended, rising.
    pub raidz_expand_txgs: Vec<Txg>,
    /// `top_guid`: the draid that a distributed spare is in.
    pub dspare_top_guid: Option<Guid>,
    /// `spareid`: which of the draid's distributed spares.
    pub dspare_id: Option<u64>,
    /// `draid_ndata`: data columns of a redundancy group.
    pub draid_ndata: Option<u64>,
    /// `draid_nspares`: distributed spares.
    pub draid_nspares: Option<u64>,
    /// `draid_ngroups`: redundancy groups in a slice.
    pub draid_ngroups: Option<u64>,
    /// `whole_disk`: 1 if the pool owns the partition table.
    pub whole_disk: Option<u64>,
    /// `not_present`: the leaf could not be opened when the configuration was written.
    pub not_present: bool,
    /// `is_spare`: the leaf is a hot spare.
    pub is_spare: bool,
    /// `metaslab_array`: object with the space map of every metaslab; top-level only.
    pub metaslab_array: Option<ObjectId>,
    /// `metaslab_shift`: log2 of the metaslab size; top-level only.
    pub metaslab_shift: Option<u64>,
    /// `ashift`: log2 of the sector size; top-level only.
    pub ashift: Option<u64>,
    /// `asize`: allocatable bytes, a multiple of 256 KiB; top-level only.
    pub asize: Option<u64>,
    /// `min_alloc`: smallest allocation in bytes (OpenZFS 2.3); top-level only, informs.
    pub min_alloc: Option<u64>,
    /// `is_log`: 1 on log devices; top-level only.
    pub is_log: Option<u64>,
    /// `non_allocating`: nothing new is allocated here (`allocating=off`); top-level only.
    pub non_allocating: bool,
    /// `removing`: the vdev is being removed.
    pub removing: bool,
    /// `alloc_bias`: allocation class, in listings only (on disk it is in the vdev's ZAP).
    pub alloc_bias: Option<String>,
    /// `DTL`: space map of the txgs that the leaf misses.
    pub dtl: Option<ObjectId>,
    /// `com.delphix:indirect_object`: mapping of a removed vdev.
    pub indirect_object: Option<ObjectId>,
    /// `com.delphix:indirect_births`: births of the mapped segments.
    pub indirect_births: Option<ObjectId>,
    /// `com.delphix:prev_indirect_vdev`: the vdev that was removed before this one.
    pub prev_indirect_vdev: Option<u64>,
    /// `create_txg`: the txg that added the vdev.
    pub create_txg: Option<Txg>,
    /// `expansion_time`: when the vdev last grew, in seconds since 1970.
    pub expansion_time: Option<u64>,
    /// `com.klarasystems:vdev_zap_root`: the root's ZAP (feature `vdev_zaps_v2`); MOS form only.
    pub zap_root: Option<ObjectId>,
    /// `com.delphix:vdev_zap_leaf`: the leaf's ZAP; MOS form only.
    pub zap_leaf: Option<ObjectId>,
    /// `com.delphix:vdev_zap_top`: the top-level's ZAP; MOS form only.
    pub zap_top: Option<ObjectId>,
    /// `offline`: the administrator took the leaf out.
    pub offline: bool,
    /// `resilver_txg`: the leaf is being resilvered since.
    pub resilver_txg: Option<Txg>,
    /// `rebuild_txg`: the leaf is being rebuilt sequentially since.
    pub rebuild_txg: Option<Txg>,
    /// `com.datto:resilver_defer`: the leaf waits for the end of a running resilver (feature
    /// `resilver_defer`).
    pub resilver_defer: bool,
    /// `faulted`: the leaf was declared unusable.
    pub faulted: bool,
    /// `degraded`: the leaf was declared doubtful.
    pub degraded: bool,
    /// `removed`: the leaf was pulled out.
    pub removed: bool,
    /// `unspare`: the spare goes back when the resilver ends.
    pub unspare: bool,
    /// `is_hole`.
    pub is_hole: bool,
    /// `aux_state`: why the leaf is faulted, `err_exceeded` or `external`.
    pub aux_state: Option<String>,
    /// `children`.
    pub children: Vec<VdevConfig>,
    /// Every key not named above, in order.
    pub unknown: Vec<(String, NvValue)>,
}

impl VdevConfig {
    /// A vdev of `kind` with nothing set but its place and guid.
    pub fn new(kind: VdevKind, id: u64, guid: Guid) -> VdevConfig {
        VdevConfig {
            kind,
            id,
            guid,
            path: None,
            devid: None,
            phys_path: None,
            enc_sysfs_path: None,
            fru: None,
            nparity: None,
            raidz_expanding: false,
            raidz_expand_txgs: Vec::new(),
            dspare_top_guid: None,
            dspare_id: None,
            draid_ndata: None,
            draid_nspares: None,
            draid_ngroups: None,
            whole_disk: None,
            not_present: false,
            is_spare: false,
            metaslab_array: None,
            metaslab_shift: None,
            ashift: None,
            asize: None,
            min_alloc: None,
            is_log: None,
            non_allocating: false,
            removing: false,
            alloc_bias: None,
            dtl: None,
            indirect_object: None,
            indirect_births: None,
            prev_indirect_vdev: None,
            create_txg: None,
            expansion_time: None,
            zap_root: None,
            zap_leaf: None,
            zap_top: None,
            offline: false,
            resilver_txg: None,
            rebuild_txg: None,
            resilver_defer: false,
            faulted: false,
            degraded: false,
            removed: false,
            unspare: false,
            is_hole: false,
            aux_state: None,
            children: Vec::new(),
            unknown: Vec::new(),
        }
    }

    /// The placeholder of a removed log vdev at place `id` (format page 01 section 4).
    pub fn hole(id: u64) -> VdevConfig {
        let mut hole = VdevConfig::new(VdevKind::Hole, id, Guid(0));
        hole.metaslab_array = Some(ObjectId(0));
        hole.metaslab_shift = Some(0);
        hole.ashift = Some(0);
        hole.asize = Some(0);
        hole.is_log = Some(0);
        hole.is_hole = true;
        hole
    }

    /// Reads a tree in any of its forms. Errors name the place of the vdev in the tree.
    pub fn from_nvlist(list: &NvList) -> Result<VdevConfig> {
        let mut count = 0;
        Self::read(list, 0, &mut count).at(|| "vdev_tree")
    }

    fn read(list: &NvList, depth: usize, count: &mut usize) -> Result<VdevConfig> {
        *count += 1;
        if depth >= MAX_TREE_DEPTH || *count > MAX_VDEVS {
            return Err(Error::corrupt(format!(
                "the tree has more than {MAX_TREE_DEPTH} levels or more than {MAX_VDEVS} vdevs"
            )));
        }
        let kind = VdevKind::parse(list.require_str("type")?);
        let id = if list.contains("id") { list.require_u64("id")? } else { 0 };
        let mut v = VdevConfig::new(kind, id, Guid(list.require_u64("guid")?));
        // Of keys that are there twice the first counts, as everywhere.
        let mut seen = BTreeSet::new();
        for (name, value) in list.iter() {
            if seen.insert(name) && !v.read_key(name, value) {
                // A key that is named above with a type that it never has is kept, too, but means
                // nothing.
                v.unknown.push((name.to_owned(), value.clone()));
            }
        }
        // Before version 3 there was only single parity, and no key for it. OpenZFS, too, writes
        // the key to such pools from then on.
        if v.kind == VdevKind::Raidz && !seen.contains("nparity") {
            v.nparity = Some(1);
        }
        if list.contains("children") {
            let children = list.require_lists("children")?;
            for (i, child) in children.iter().enumerate() {
                v.children.push(Self::read(child, depth + 1, count).at(|| format!("children[{i}]"))?);
            }
        }
        Ok(v)
    }

    /// Takes one key in; false when it is not known.
    fn read_key(&mut self, name: &str, value: &NvValue) -> bool {
        match (name, value) {
            ("type" | "id" | "guid" | "children", _) => {}
            ("path", NvValue::String(s)) => self.path = Some(s.clone()),
            ("devid", NvValue::String(s)) => self.devid = Some(s.clone()),
            ("phys_path", NvValue::String(s)) => self.phys_path = Some(s.clone()),
            ("vdev_enc_sysfs_path", NvValue::String(s)) => self.enc_sysfs_path = Some(s.clone()),
            ("fru", NvValue::String(s)) => self.fru = Some(s.clone()),
            ("alloc_bias", NvValue::String(s)) => self.alloc_bias = Some(s.clone()),
            ("aux_state", NvValue::String(s)) => self.aux_state = Some(s.clone()),
            ("com.datto:resilver_defer", NvValue::Boolean) => self.resilver_defer = true,
            ("raidz_expanding", NvValue::Boolean) => self.raidz_expanding = true,
            ("raidz_expand_txgs", NvValue::Uint64Array(v)) => {
                self.raidz_expand_txgs = v.iter().copied().map(Txg).collect();
            }
            (_, NvValue::Uint64(n)) => return self.read_number(name, *n),
            _ => return false,
        }
        true
    }

    fn read_number(&mut self, name: &str, n: u64) -> bool {
        let object = Some(ObjectId(n));
        match name {
            "nparity" => self.nparity = Some(n),
            "top_guid" => self.dspare_top_guid = Some(Guid(n)),
            "spareid" => self.dspare_id = Some(n),
            "draid_ndata" => self.draid_ndata = Some(n),
            "draid_nspares" => self.draid_nspares = Some(n),
            "draid_ngroups" => self.draid_ngroups = Some(n),
            "whole_disk" => self.whole_disk = Some(n),
            "metaslab_array" => self.metaslab_array = object,
            "metaslab_shift" => self.metaslab_shift = Some(n),
            "ashift" => self.ashift = Some(n),
            "asize" => self.asize = Some(n),
            "min_alloc" => self.min_alloc = Some(n),
            "is_log" => self.is_log = Some(n),
            "DTL" => self.dtl = object,
            "com.delphix:indirect_object" => self.indirect_object = object,
            "com.delphix:indirect_births" => self.indirect_births = object,
            "com.delphix:prev_indirect_vdev" => self.prev_indirect_vdev = Some(n),
            "create_txg" => self.create_txg = Some(Txg(n)),
            "expansion_time" => self.expansion_time = Some(n),
            "com.klarasystems:vdev_zap_root" => self.zap_root = object,
            "com.delphix:vdev_zap_leaf" => self.zap_leaf = object,
            "com.delphix:vdev_zap_top" => self.zap_top = object,
            "resilver_txg" => self.resilver_txg = Some(Txg(n)),
            "rebuild_txg" => self.rebuild_txg = Some(Txg(n)),
            _ => {
                let flag = match name {
                    "not_present" => &mut self.not_present,
                    "is_spare" => &mut self.is_spare,
                    "non_allocating" => &mut self.non_allocating,
                    "removing" => &mut self.removing,
                    "offline" => &mut self.offline,
                    "faulted" => &mut self.faulted,
                    "degraded" => &mut self.degraded,
                    "removed" => &mut self.removed,
                    "unspare" => &mut self.unspare,
                    "is_hole" => &mut self.is_hole,
                    _ => return false,
                };
                *flag = n != 0;
            }
        }
        true
    }

    /// The tree in `form`, keys in the order of real code.
    pub fn to_nvlist(&self, form: ConfigForm) -> NvList {
        let mut l = NvList::new();
        let mos = form == ConfigForm::Mos;
        let placed = form != ConfigForm::Aux;
        l.put_str("type", self.kind.name());
        if placed {
            l.put_u64("id", self.id);
        }
        l.put_u64("guid", self.guid.0);
        let text = |l: &mut NvList, name: &str, v: &Option<String>| v.iter().for_each(|s| l.put_str(name, s.as_str()));
        let number = |l: &mut NvList, name: &str, v: Option<u64>| v.into_iter().for_each(|n| l.put_u64(name, n));
        let object = |l: &mut NvList, name: &str, v: Option<ObjectId>| number(l, name, v.map(|o| o.0));
        let flag = |l: &mut NvList, name: &str, v: bool| number(l, name, v.then_some(1));
        text(&mut l, "path", &self.path);
        text(&mut l, "devid", &self.devid);
        text(&mut l, "phys_path", &self.phys_path);
        text(&mut l, "vdev_enc_sysfs_path", &self.enc_sysfs_path);
        text(&mut l, "fru", &self.fru);
        number(&mut l, "top_guid", self.dspare_top_guid.map(|g| g.0));
        number(&mut l, "spareid", self.dspare_id);
        number(&mut l, "nparity", self.nparity);
        if self.raidz_expanding {
            l.put_flag("raidz_expanding");
        }
        if !self.raidz_expand_txgs.is_empty() {
            let txgs = self.raidz_expand_txgs.iter().map(|t| t.0).collect();
            l.put("raidz_expand_txgs", NvValue::Uint64Array(txgs));
        }
        number(&mut l, "draid_ndata", self.draid_ndata);
        number(&mut l, "draid_nspares", self.draid_nspares);
        number(&mut l, "draid_ngroups", self.draid_ngroups);
        number(&mut l, "whole_disk", self.whole_disk);
        flag(&mut l, "not_present", self.not_present);
        flag(&mut l, "is_spare", self.is_spare);
        object(&mut l, "metaslab_array", self.metaslab_array);
        number(&mut l, "metaslab_shift", self.metaslab_shift);
        number(&mut l, "ashift", self.ashift);
        number(&mut l, "asize", self.asize);
        number(&mut l, "min_alloc", self.min_alloc);
        number(&mut l, "is_log", self.is_log);
        flag(&mut l, "non_allocating", self.non_allocating);
        flag(&mut l, "removing", self.removing);
        text(&mut l, "alloc_bias", &self.alloc_bias);
        object(&mut l, "DTL", self.dtl);
        object(&mut l, "com.delphix:indirect_object", self.indirect_object);
        object(&mut l, "com.delphix:indirect_births", self.indirect_births);
        number(&mut l, "com.delphix:prev_indirect_vdev", self.prev_indirect_vdev);
        if placed {
            number(&mut l, "create_txg", self.create_txg.map(|t| t.0));
        }
        number(&mut l, "expansion_time", self.expansion_time);
        if mos {
            object(&mut l, "com.klarasystems:vdev_zap_root", self.zap_root);
            object(&mut l, "com.delphix:vdev_zap_leaf", self.zap_leaf);
            object(&mut l, "com.delphix:vdev_zap_top", self.zap_top);
        }
        flag(&mut l, "offline", self.offline);
        number(&mut l, "resilver_txg", self.resilver_txg.map(|t| t.0));
        number(&mut l, "rebuild_txg", self.rebuild_txg.map(|t| t.0));
        if self.resilver_defer {
            l.put_flag("com.datto:resilver_defer");
        }
        flag(&mut l, "faulted", self.faulted);
        flag(&mut l, "degraded", self.degraded);
        flag(&mut l, "removed", self.removed);
        flag(&mut l, "unspare", self.unspare);
        flag(&mut l, "is_hole", self.is_hole);
        text(&mut l, "aux_state", &self.aux_state);
        if !self.children.is_empty() {
            l.put_lists("children", self.children.iter().map(|c| c.to_nvlist(form)).collect());
        }
        // Pushed, not put: a known name here has a wrong type, and the typed field above takes
        // precedence.
        for (name, value) in &self.unknown {
            l.push(name.as_str(), value.clone());
        }
        l
    }

    /// The sum of the guids of this vdev and all below it, modulo 2^64. Over the root it is the
    /// uberblock's `guid_sum` (format page 01 section 6).
    pub fn guid_sum(&self) -> u64 {
        self.children.iter().fold(self.guid.0, |sum, c| sum.wrapping_add(c.guid_sum()))
    }

    /// This vdev and all below it, parents first.
    pub fn iter(&self) -> impl Iterator<Item = &VdevConfig> {
        let mut stack = vec![self];
        std::iter::from_fn(move || {
            let v = stack.pop()?;
            stack.extend(v.children.iter().rev());
            Some(v)
        })
    }

    /// The devices of the tree in order: disks, files, distributed spares.
    pub fn leaves(&self) -> impl Iterator<Item = &VdevConfig> {
        self.iter().filter(|v| v.kind.is_leaf_device() || v.kind == VdevKind::Dspare)
    }

    /// The vdev with `guid`, this one or below.
    pub fn find(&self, guid: Guid) -> Option<&VdevConfig> {
        self.iter().find(|v| v.guid == guid)
    }

    /// As [`VdevConfig::find`], to change it.
    pub fn find_mut(&mut self, guid: Guid) -> Option<&mut VdevConfig> {
        if self.guid == guid {
            return Some(self);
        }
        self.children.iter_mut().find_map(|c| c.find_mut(guid))
    }

    /// The number of metaslabs of a top-level vdev: whole ones only; 0 when size or shift are not
    /// set or make no sense.
    pub fn metaslab_count(&self) -> u64 {
        match (self.asize, self.metaslab_shift) {
            (Some(asize), Some(shift @ 1..=63)) => asize >> shift,
            _ => 0,
        }
    }

    /// Checks what an import relies on: `self` is a root, or a top-level vdev as a label holds it.
    /// Kinds, ids, guids, shapes and sizes must make sense; `Other` kinds and draid failures give
    /// `Unsupported` or `Corrupt` by name.
    pub fn validate(&self) -> Result<()> {
        let mut guids = BTreeSet::new();
        for v in self.iter() {
            // Holes have guid 0; placeholders of missing vdevs may have any.
            if v.guid.0 == 0 && !matches!(v.kind, VdevKind::Hole | VdevKind::Missing) {
                return Err(Error::corrupt(format!("{} vdev {} has guid 0", v.kind, v.id)));
            }
            if v.guid.0 != 0 && !guids.insert(v.guid) {
                return Err(Error::corrupt(format!("guid {} is in the vdev tree twice", v.guid)));
            }
            v.validate_shape()?;
        }
        match self.kind {
            VdevKind::Root => self.children.iter().enumerate().try_for_each(|(i, c)| {
                if c.id != i as u64 {
                    return Err(Error::corrupt(format!("vdev {} stands at place {i} of the root", c.id)));
                }
                c.validate_top()
            }),
            _ => self.validate_top(),
        }
    }

    fn validate_shape(&self) -> Result<()> {
        let bad =
            |what: String| Err(Error::corrupt(format!("{} vdev {} (guid {}) {what}", self.kind, self.id, self.guid)));
        if let VdevKind::Other(name) = &self.kind {
            return Err(Error::unsupported(format!("vdev {} has the unknown type '{name}'", self.guid)));
        }
        let n = self.children.len();
        if !self.kind.is_interior() && n != 0 {
            return bad(format!("has {n} children but cannot have any"));
        }
        if self.kind.is_interior() && n == 0 {
            return bad("has no children".into());
        }
        for (i, c) in self.children.iter().enumerate() {
            if c.kind == VdevKind::Root {
                return bad("has a root below it".into());
            }
            if c.id != i as u64 {
                return bad(format!("has child {} at place {i}", c.id));
            }
        }
        if matches!(self.kind, VdevKind::Raidz | VdevKind::Draid) {
            let parity = self.nparity.unwrap_or(0);
            if !(1..=3).contains(&parity) || n as u64 <= parity {
                return bad(format!("has parity {parity} with {n} children"));
            }
            // Each expansion added a child; the first width had a data column.
            let txgs = &self.raidz_expand_txgs;
            let expansions = txgs.len() + usize::from(self.raidz_expanding);
            if expansions as u64 >= n as u64 - parity || !txgs.is_sorted_by(|a, b| a < b) {
                return bad(format!("has {n} children after {expansions} expansions in txgs that do not fit"));
            }
        }
        if self.kind == VdevKind::Draid {
            let (data, spares) = (self.draid_ndata.unwrap_or(0), self.draid_nspares.unwrap_or(u64::MAX));
            let fits = self
                .nparity
                .and_then(|p| p.checked_add(data)?.checked_add(spares))
                .is_some_and(|used| data >= 1 && used <= n as u64 && n <= 255);
            if !fits || !(1..=255).contains(&self.draid_ngroups.unwrap_or(0)) {
                return bad(format!(
                    "has an impossible layout of {data} data columns and {spares} spares over {n} children"
                ));
            }
        }
        Ok(())
    }

    fn validate_top(&self) -> Result<()> {
        let bad = |what: String| Err(Error::corrupt(format!("top-level {} vdev {} {what}", self.kind, self.id)));
        match self.kind {
            VdevKind::Hole | VdevKind::Missing => return Ok(()),
            VdevKind::Root => return bad("is a root".into()),
            _ => {}
        }
        match self.ashift {
            Some(a) if ASHIFT_RANGE.contains(&a) => {}
            a => return bad(format!("has ashift {a:?}")),
        }
        let Some(asize) = self.asize else { return bad("has no asize".into()) };
        let shift = self.metaslab_shift.unwrap_or(0);
        let array = self.metaslab_array.map_or(0, |o| o.0);
        // Both are 0 on a vdev that was added but not yet synced.
        if shift == 0 && array == 0 {
            return Ok(());
        }
        if !(9..=62).contains(&shift) || asize > i64::MAX as u64 || asize >> shift > 1 << 24 {
            return bad(format!("has asize {asize} with metaslab shift {shift}"));
        }
        Ok(())
    }
}

/// 1-based index of the highest bit set, 0 for 0.
fn highbit64(v: u64) -> u32 {
    u64::BITS - v.leading_zeros()
}

/// How many metaslabs a new top-level vdev is to have, each at least 1; OpenZFS's defaults.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MetaslabCounts {
    /// So many at least, if they are not too small then (`zfs_vdev_min_ms_count`).
    pub min: u64,
    /// So many at most, if they are not too large then (`zfs_vdev_default_ms_count`).
    pub default: u64,
}

impl Default for MetaslabCounts {
    fn default() -> MetaslabCounts {
        MetaslabCounts { min: 16, default: 200 }
    }
}

/// log2 of the metaslab size for a new top-level vdev of `asize` bytes (format page 01 section 8):
/// about 16 to 200 metaslabs, 512 MiB each in between, never below 16 MiB, above 16 GiB only when
/// there would be more than [`METASLAB_COUNT_MAX`].
pub fn metaslab_shift_for(asize: u64) -> u32 {
    metaslab_shift_of(asize, MetaslabCounts::default())
}

/// As [`metaslab_shift_for`], with other numbers of metaslabs.
pub fn metaslab_shift_of(asize: u64, counts: MetaslabCounts) -> u32 {
    const DEFAULT_SHIFT: u32 = 29;
    let count = asize >> DEFAULT_SHIFT;
    let shift = if count < counts.min {
        highbit64(asize / counts.min.max(1))
    } else if count > counts.default {
        highbit64(asize / counts.default.max(1))
    } else {
        DEFAULT_SHIFT
    };
    if shift < METASLAB_SHIFT_MIN {
        METASLAB_SHIFT_MIN
    } else if shift <= METASLAB_SHIFT_MAX {
        shift
    } else if asize >> METASLAB_SHIFT_MAX > METASLAB_COUNT_MAX {
        highbit64(asize / METASLAB_COUNT_MAX)
    } else {
        METASLAB_SHIFT_MAX
    }
}
