//! The devices of a new pool: their groups and the use of each.

use std::cell::Cell;
use std::rc::Rc;

use base::{Error, ErrorKind, Guid, ObjectId, Result, TXG_INITIAL, VdevId};
use bdev::BlockDev;
use ondisk::feature::FeatureId;
use ondisk::vdev_config::{MetaslabCounts, VdevConfig, VdevKind as ConfigKind, metaslab_shift_of};
use ondisk::version;
use rt::Rt;
use vdev::geometry::Draid;
use vdev::width::Expansions;
use vdev::{
    Condition, DirtyGauge, DraidNode, Leaf, Mirror, MirrorRole, QueueTunables, Raidz, Top, TopSpec, VdevKind,
    leaf_asize,
};

/// Smallest device of a pool, in bytes (`SPA_MINDEVSIZE`, format page 01).
pub const DEVICE_SIZE_MIN: u64 = 64 << 20;

/// A device of a new pool.
#[derive(Clone)]
pub struct DevSpec {
    /// The device.
    pub dev: Rc<dyn BlockDev>,
    /// A disk, or a file if not.
    pub is_disk: bool,
}

/// The redundancy of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupKind {
    /// A single device.
    Single,
    /// Each device holds all data.
    Mirror,
    /// RAID-Z with that many parity columns, 1 to 3.
    Raidz(u8),
    /// dRAID.
    Draid {
        /// Parity columns, 1 to 3.
        parity: u8,
        /// Data columns of a group; by default up to 8.
        data: Option<u8>,
        /// Distributed spares.
        spares: u8,
    },
}

/// The allocation class of a group.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Bias {
    /// Everything.
    #[default]
    Normal,
    /// The intent log.
    Log,
    /// Metadata and small blocks.
    Special,
    /// Dedup tables.
    Dedup,
}

impl Bias {
    /// The value in the vdev's ZAP; None for normal vdevs (format page 06 section 1).
    pub(crate) fn word(self) -> Option<&'static str> {
        match self {
            Bias::Normal => None,
            Bias::Log => Some("log"),
            Bias::Special => Some("special"),
            Bias::Dedup => Some("dedup"),
        }
    }
}

/// A new top-level vdev.
#[derive(Clone)]
pub struct Group {
    /// Its redundancy.
    pub kind: GroupKind,
    /// Its allocation class.
    pub bias: Bias,
    /// Its devices.
    pub devices: Vec<DevSpec>,
}

/// All devices of a new pool.
#[derive(Clone, Default)]
pub struct Layout {
    /// The top-level vdevs, in order.
    pub groups: Vec<Group>,
    /// Hot spares.
    pub spares: Vec<DevSpec>,
    /// Cache devices.
    pub caches: Vec<DevSpec>,
}

/// Single devices, striped.
impl From<Vec<DevSpec>> for Layout {
    fn from(devices: Vec<DevSpec>) -> Layout {
        let single = |d| Group { kind: GroupKind::Single, bias: Bias::Normal, devices: vec![d] };
        Layout { groups: devices.into_iter().map(single).collect(), ..Layout::default() }
    }
}

impl Layout {
    /// Every device.
    pub fn devices(&self) -> impl Iterator<Item = &DevSpec> {
        self.groups.iter().flat_map(|g| &g.devices).chain(&self.spares).chain(&self.caches)
    }

    /// Features that the layout requires.
    pub(crate) fn features(&self) -> Vec<FeatureId> {
        let mut out = Vec::new();
        if self.groups.iter().any(|g| matches!(g.bias, Bias::Special | Bias::Dedup)) {
            out.push(FeatureId::AllocationClasses);
        }
        if self.groups.iter().any(|g| matches!(g.kind, GroupKind::Draid { .. })) {
            out.push(FeatureId::Draid);
        }
        out
    }

    /// How many of its vdevs a feature counts.
    pub(crate) fn feature_count(&self, id: FeatureId) -> i64 {
        let counts = |g: &&Group| match id {
            FeatureId::AllocationClasses => matches!(g.bias, Bias::Special | Bias::Dedup),
            _ => matches!(g.kind, GroupKind::Draid { .. }),
        };
        self.groups.iter().filter(counts).count() as i64
    }

    /// Refuses what pools of this version cannot have.
    pub(crate) fn check_version(&self, version: u64) -> Result<()> {
        let kind = |parity: u8| self.groups.iter().any(|g| matches!(g.kind, GroupKind::Raidz(n) if n == parity));
        for (there, needed, what) in [
            (kind(2), version::RAIDZ2, "double-parity raidz"),
            (kind(3), version::RAIDZ3, "triple-parity raidz"),
            (self.groups.iter().any(|g| g.bias == Bias::Log), version::SLOGS, "log devices"),
            (!self.spares.is_empty(), version::SPARES, "hot spares"),
            (!self.caches.is_empty(), version::CACHES, "cache devices"),
        ] {
            if there && version < needed {
                let why = format!("pools of version {version} have no {what}, which came with version {needed}");
                return Err(Error::unsupported(why));
            }
        }
        Ok(())
    }

    /// Refuses devices and groups that cannot be part of a pool.
    pub(crate) fn check_devices(&self) -> Result<()> {
        for g in &self.groups {
            g.check()?;
        }
        for d in self.devices() {
            let info = d.dev.info();
            if info.size_bytes < DEVICE_SIZE_MIN {
                let why = format!("device '{}' is too small: a pool needs at least 64M on each device", info.path);
                return Err(Error::new(ErrorKind::Range, why));
            }
        }
        Ok(())
    }

    /// Refuses a layout that cannot be a pool.
    pub(crate) fn check(&self) -> Result<()> {
        if !self.groups.iter().any(|g| g.bias == Bias::Normal) {
            return Err(Error::invalid("a pool needs at least one device"));
        }
        self.check_devices()
    }
}

impl Group {
    fn check(&self) -> Result<()> {
        let n = self.devices.len();
        let (min, max, what) = match self.kind {
            GroupKind::Single => (1, 1, "a device by itself"),
            GroupKind::Mirror => (2, 255, "a mirror"),
            GroupKind::Raidz(p @ 1..=3) => (usize::from(p) + 1, 255, "a raidz"),
            GroupKind::Raidz(p) => return Err(Error::invalid(format!("a raidz cannot have {p} parity columns"))),
            GroupKind::Draid { .. } => (2, 255, "a draid"),
        };
        if n < min || n > max {
            return Err(Error::invalid(format!("{what} needs {min} to {max} devices and has {n}")));
        }
        if self.bias == Bias::Log && matches!(self.kind, GroupKind::Raidz(_) | GroupKind::Draid { .. }) {
            return Err(Error::invalid("a log can be devices and mirrors of devices, nothing with parity"));
        }
        if self.bias == Bias::Special && matches!(self.kind, GroupKind::Draid { .. }) {
            return Err(Error::invalid("a draid cannot be a special vdev"));
        }
        Ok(())
    }
}

/// What devices choose as their ashift (`zfs_vdev_min_auto_ashift`, `zfs_vdev_max_auto_ashift`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AutoAshift {
    /// The least: 12, since many disks with sectors of 4 KiB say 512 bytes (9 in OpenZFS).
    pub min: u8,
    /// The largest that a physical sector chooses.
    pub max: u8,
}

impl Default for AutoAshift {
    fn default() -> AutoAshift {
        AutoAshift { min: 12, max: 14 }
    }
}

/// The ashift of a device. One whose physical sector is very large, as that of an array of disks
/// may be, has that of its logical sector.
pub(crate) fn ashift_for(dev: &dyn BlockDev, wanted: Option<u8>, auto: AutoAshift) -> Result<u8> {
    let info = dev.info();
    let sector = match info.physical_sector {
        large if large > 1 << auto.max => info.logical_sector,
        physical => physical,
    };
    let ashift = wanted.unwrap_or_else(|| sector.max(1 << auto.min).ilog2() as u8);
    if !(9..=16).contains(&ashift) {
        return Err(Error::invalid(format!("ashift {ashift} is out of range: it must be 9 to 16")));
    }
    if u64::from(info.logical_sector) > 1 << ashift {
        let why = format!(
            "device '{}' has sectors of {} bytes, larger than ashift={ashift} allows",
            info.path, info.logical_sector
        );
        return Err(Error::invalid(why));
    }
    Ok(ashift)
}

/// A leaf's configuration outside of a tree.
pub(crate) fn leaf_config(rt: &Rt, spec: &DevSpec, id: u64) -> VdevConfig {
    let kind = if spec.is_disk { ConfigKind::Disk } else { ConfigKind::File };
    let mut config = VdevConfig::new(kind, id, rt.new_guid());
    config.path = Some(spec.dev.info().path.clone());
    config.whole_disk = spec.is_disk.then_some(0);
    config
}

/// An entry of the lists of spares and caches.
pub(crate) fn aux_config(rt: &Rt, spec: &DevSpec, is_spare: bool) -> VdevConfig {
    let mut config = leaf_config(rt, spec, 0);
    config.is_spare = is_spare;
    config
}

/// The entries in the list of spares for the distributed spares of the dRAIDs among `tops` (format
/// page 09 section 10).
pub(crate) fn dspare_configs(rt: &Rt, tops: &[Rc<Top>]) -> Vec<VdevConfig> {
    let mut out = Vec::new();
    for top in tops {
        let VdevKind::Draid(draid) = top.kind() else { continue };
        for k in 0..draid.layout.spares {
            let mut config = VdevConfig::new(ConfigKind::Dspare, 0, rt.new_guid());
            config.path = Some(format!("draid{}-{}-{k}", draid.layout.parity, top.id));
            config.dspare_top_guid = Some(draid.guid);
            config.dspare_id = Some(k);
            config.is_spare = true;
            out.push(config);
        }
    }
    out
}

/// The settings of new leaves.
#[derive(Clone)]
pub(crate) struct LeafMaker {
    pub rt: Rt,
    pub gauge: DirtyGauge,
    pub queue: QueueTunables,
    pub counts: MetaslabCounts,
    pub ashift: AutoAshift,
}

impl LeafMaker {
    /// A leaf over `dev`.
    pub(crate) fn leaf(&self, guid: Guid, path: String, dev: Rc<dyn BlockDev>, condition: Rc<Condition>) -> Rc<Leaf> {
        Leaf::with_condition(&self.rt, guid, path, dev, self.gauge.clone(), self.queue.clone(), condition)
    }
}

/// Makes the top-level vdev `id` of a group.
pub(crate) fn make_top(maker: &LeafMaker, id: u32, group: &Group, wanted: Option<u8>) -> Result<Rc<Top>> {
    let rt = &maker.rt;
    let mut ashift = 9;
    for d in &group.devices {
        // The unit of files is not that of a disk.
        let min = if d.is_disk { maker.ashift.min } else { maker.ashift.min.max(AutoAshift::default().min) };
        ashift = ashift.max(ashift_for(&*d.dev, wanted, AutoAshift { min, ..maker.ashift })?);
    }
    let leaves: Vec<VdevConfig> = (0..).zip(&group.devices).map(|(i, d)| leaf_config(rt, d, i)).collect();
    let nodes: Vec<VdevKind> = leaves
        .iter()
        .zip(&group.devices)
        .map(|(c, d)| {
            let path = d.dev.info().path.clone();
            VdevKind::Leaf(maker.leaf(c.guid, path, d.dev.clone(), Rc::default()))
        })
        .collect();
    let smallest = group.devices.iter().map(|d| leaf_asize(d.dev.info().size_bytes)).min().unwrap_or(0);
    let guid = rt.new_guid();
    let n = nodes.len() as u64;
    let interior = |kind: ConfigKind| {
        let mut config = VdevConfig::new(kind, u64::from(id), guid);
        config.children = leaves.clone();
        for leaf in &mut config.children {
            leaf.create_txg = Some(TXG_INITIAL);
        }
        config
    };
    let (mut config, kind, asize) = match group.kind {
        GroupKind::Single => {
            let mut config = leaves[0].clone();
            config.id = u64::from(id);
            (config, nodes[0].clone(), smallest)
        }
        GroupKind::Mirror => {
            let mirror = Mirror { guid, role: MirrorRole::Mirror, children: nodes, errors: Cell::default() };
            (interior(ConfigKind::Mirror), VdevKind::Mirror(Rc::new(mirror)), smallest)
        }
        GroupKind::Raidz(parity) => {
            let parity = u64::from(parity);
            let mut config = interior(ConfigKind::Raidz);
            config.nparity = Some(parity);
            let raidz =
                Raidz { guid, parity, children: nodes, expansions: Expansions::default(), errors: Cell::default() };
            (config, VdevKind::Raidz(Rc::new(raidz)), smallest * n)
        }
        GroupKind::Draid { parity, data, spares } => {
            let (parity, spares) = (u64::from(parity), u64::from(spares));
            let most = n.saturating_sub(parity + spares);
            let data = data.map_or(most.min(8), u64::from);
            let layout = Draid::new(parity, data, n, spares, ashift)?;
            let mut config = interior(ConfigKind::Draid);
            config.nparity = Some(parity);
            config.draid_ndata = Some(data);
            config.draid_nspares = Some(spares);
            config.draid_ngroups = Some(layout.groups());
            let asize = layout.asize_from_child(smallest);
            // OpenZFS's least size of a vdev: a device of the least size without its labels.
            if asize < leaf_asize(DEVICE_SIZE_MIN) {
                return Err(Error::new(ErrorKind::Range, "the devices are too small for a draid"));
            }
            let draid = DraidNode { guid, layout, children: nodes, errors: Cell::default() };
            (config, VdevKind::Draid(Rc::new(draid)), asize)
        }
    };
    let ms_shift = metaslab_shift_of(asize, maker.counts) as u8;
    let is_log = group.bias == Bias::Log;
    config.ashift = Some(u64::from(ashift));
    config.asize = Some(asize);
    config.is_log = Some(u64::from(is_log));
    config.metaslab_shift = Some(u64::from(ms_shift));
    config.metaslab_array = Some(ObjectId(0));
    config.create_txg = Some(TXG_INITIAL);
    let top =
        Top::new(TopSpec { id: VdevId(id), ashift, asize, ms_shift, ms_array: ObjectId(0), is_log, kind, config });
    let unit = top.min_alloc();
    top.update_config(|c| c.min_alloc = Some(unit));
    Ok(top)
}
