//! A pool, opened for reading from the devices at hand.
//!
//! The order of an import, without its promises: labels of every device; the requested pool, or the
//! only one; for each top-level vdev the newest label that describes it; the newest uberblock; the
//! MOS; the configuration object, which then replaces the labels' configuration; the mappings of
//! removed vdevs. Devices that are missing are no error until a block needs them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;

use base::{Error, Guid, Result, ResultExt, Txg};
use ondisk::indirect::{MAPPING_ENTRY_SIZE, MappingPhys, parse_mapping};
use ondisk::label::{LabelConfig, MosConfig};
use ondisk::nvlist::NvList;
use ondisk::uberblock::{Reflow, Uberblock};
use ondisk::vdev_config::{VdevConfig, VdevKind};
use ondisk::zap::ZapValue;

use crate::blocks::BlockReader;
use crate::device::Labeled;
use crate::objset::{Object, Objset, packed_nvlist};
use crate::vdev::Vdev;
use crate::zap;

/// Object of the MOS directory.
pub const MOS_DIRECTORY: u64 = 1;
/// More top-level vdevs than any pool has.
const MAX_TOPS: u64 = 65_536;
/// Most entries of a removed vdev's mapping that are read.
const MAX_MAPPING: u64 = 1 << 26;

/// Which pool, and which of its states.
#[derive(Clone, Debug, Default)]
pub struct OpenOpts {
    /// Name or guid; needed when the devices are of several pools.
    pub pool: Option<String>,
    /// Open the newest state that is not newer than this.
    pub txg: Option<u64>,
}

/// An open pool.
pub struct PoolReader {
    /// Devices of this pool with their labels.
    pub devices: Vec<Labeled>,
    /// The uberblock that was chosen.
    pub ub: Uberblock,
    /// The configuration object, as a list.
    pub config_list: NvList,
    /// The configuration object.
    pub config: MosConfig,
    /// Reads its blocks.
    pub io: Rc<BlockReader>,
    /// The meta object set.
    pub mos: Objset,
    /// The MOS directory.
    pub directory: BTreeMap<String, ZapValue>,
}

impl std::fmt::Debug for PoolReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PoolReader({} at txg {})", self.config.name, self.ub.txg)
    }
}

/// Opens every file that can be opened; fails when none can.
pub fn scan(files: &[PathBuf]) -> Result<Vec<Labeled>> {
    let mut found = Vec::new();
    let mut failed = None;
    for f in files {
        match Labeled::open(f) {
            Ok(v) => found.extend(v),
            Err(e) => failed = Some(e),
        }
    }
    match failed {
        // A label may be where nothing could be read.
        Some(e) if found.iter().all(|d| d.best().is_none()) => Err(e),
        None if found.is_empty() => Err(Error::not_found("no devices were given")),
        _ => Ok(found),
    }
}

impl PoolReader {
    /// Opens the pool on these devices; they must all be of one pool.
    pub fn open(files: &[PathBuf]) -> Result<PoolReader> {
        PoolReader::open_with(files, &OpenOpts::default())
    }
    /// As [`PoolReader::open`], with a choice.
    pub fn open_with(files: &[PathBuf], opts: &OpenOpts) -> Result<PoolReader> {
        PoolReader::from_devices(scan(files)?, opts)
    }
    /// Opens a pool from devices whose labels were read.
    pub fn from_devices(all: Vec<Labeled>, opts: &OpenOpts) -> Result<PoolReader> {
        let devices = choose(all, opts)?;
        let devs: BTreeMap<Guid, _> = {
            let mut newest: BTreeMap<Guid, &Labeled> = BTreeMap::new();
            for d in &devices {
                let Some(guid) = d.best().and_then(|l| l.u64("guid")).map(Guid) else { continue };
                let older = newest.get(&guid).is_none_or(|o| o.txg() < d.txg());
                if older {
                    newest.insert(guid, d);
                }
            }
            newest.into_iter().map(|(g, d)| (g, d.dev.clone())).collect()
        };
        let limit = opts.txg.unwrap_or(u64::MAX);
        let ub = devices
            .iter()
            .flat_map(|d| &d.ring)
            .filter_map(|r| r.ub.as_ref().ok())
            .filter(|u| u.txg.0 <= limit)
            .max_by_key(|u| u.rank())
            .cloned()
            .ok_or_else(|| Error::not_found("no valid uberblock on any device"))?;

        // Sectors may have been moved since an older state.
        let reflow = devices.iter().flat_map(|d| &d.ring).filter_map(|r| r.ub.as_ref().ok()).max_by_key(|u| u.rank());
        if reflow.is_some_and(|newest| newest.raidz_reflow != ub.raidz_reflow) {
            let why = format!("the state of txg {} is from before the last progress of an expansion", ub.txg);
            return Err(Error::unsupported(why));
        }
        let tops = tops_of_labels(&devices, (&devs, ub.raidz_reflow), limit)?;
        let io = Rc::new(BlockReader::new(tops, ub.txg));
        let mos = Objset::open(&io, &ub.rootbp, "mos", 0)?;
        let directory = zap::map(&mos.object(MOS_DIRECTORY)?)?;
        let config_list = config_of(&mos, &directory)?;
        let config = MosConfig::from_nvlist(&config_list).at(|| "configuration object")?;

        // The configuration object decides: only it lists removed vdevs and holes.
        let mut tops: Vec<Option<Vdev>> = Vec::new();
        for (i, c) in config.vdev_tree.children.iter().enumerate() {
            tops.push(match c.kind {
                VdevKind::Hole | VdevKind::Missing => None,
                _ if c.id != i as u64 => {
                    return Err(Error::corrupt(format!("vdev {i} of the configuration says that it is {}", c.id)));
                }
                _ => Some(Vdev::build(c, &devs, ub.raidz_reflow)?),
            });
        }
        let io = Rc::new(BlockReader::new(tops, ub.txg));
        io.deflate.set(directory.contains_key("deflate"));
        let mos = Objset::open(&io, &ub.rootbp, "mos", 0)?;
        let pool = PoolReader { devices, ub, config_list, config, io, mos, directory };
        pool.load_mappings()?;
        Ok(pool)
    }

    /// Reads the mappings of removed vdevs. One may need another's, so this goes on while there is
    /// progress.
    fn load_mappings(&self) -> Result<()> {
        let removed: Vec<(usize, u64)> = self
            .config
            .vdev_tree
            .children
            .iter()
            .enumerate()
            .filter(|(_, c)| c.kind == VdevKind::Indirect || c.removing)
            .filter_map(|(i, c)| Some((i, c.indirect_object?.0)))
            .collect();
        let mut left = removed.len() + 1;
        loop {
            let mut failed = None;
            let before = left;
            left = 0;
            for &(i, obj) in &removed {
                let Some(top) = self.io.tops[i].as_ref().filter(|t| t.mapping.get().is_none()) else { continue };
                let load = || -> Result<_> {
                    let obj = self.mos.object(obj)?;
                    let phys = MappingPhys::parse(obj.dn.bonus())?;
                    if phys.num_entries > MAX_MAPPING || phys.num_entries * 24 > obj.dn.data_len() {
                        return Err(Error::corrupt(format!("mapping with {} entries", phys.num_entries)));
                    }
                    parse_mapping(&obj.read(0, phys.num_entries as usize * MAPPING_ENTRY_SIZE)?)
                };
                match load().at(|| format!("removed vdev {i}")) {
                    // Only this loop sets it, and only once.
                    Ok(m) => drop(top.mapping.set(m)),
                    Err(e) => {
                        left += 1;
                        failed = Some(e);
                    }
                }
            }
            match failed {
                None => return Ok(()),
                Some(e) if left >= before => return Err(e),
                Some(_) => {}
            }
        }
    }

    /// The pool's name.
    pub fn name(&self) -> &str {
        &self.config.name
    }
    /// Txg of the state that is read.
    pub fn txg(&self) -> Txg {
        self.ub.txg
    }
    /// Pool version.
    pub fn version(&self) -> u64 {
        self.ub.version
    }
    /// An entry of the MOS directory that is one number.
    pub fn entry(&self, name: &str) -> Option<u64> {
        self.directory.get(name).and_then(ZapValue::as_u64)
    }
    /// The object that an entry of the MOS directory names; `None` without the entry or when it
    /// is 0.
    pub fn entry_object(&self, name: &str) -> Result<Option<Object>> {
        match self.entry(name) {
            None | Some(0) => Ok(None),
            Some(o) => self.mos.object(o).map(Some).at(|| format!("entry {name} of the MOS directory")),
        }
    }
    /// Opens the object set of a dataset.
    pub fn open_dataset(&self, name: &str, dsobj: u64, bp: &ondisk::blkptr::Blkptr) -> Result<Objset> {
        Objset::open(&self.io, bp, name, dsobj)
    }
}

/// The devices of the pool that was asked for.
fn choose(all: Vec<Labeled>, opts: &OpenOpts) -> Result<Vec<Labeled>> {
    let mut pools: BTreeMap<Guid, (String, Txg)> = BTreeMap::new();
    for d in &all {
        if let (Some(g), Some(l)) = (d.pool_guid(), d.best())
            && l.contains("vdev_tree")
        {
            let e = pools.entry(g).or_insert_with(|| (String::new(), Txg(0)));
            if d.txg() >= e.1 {
                *e = (l.str("name").unwrap_or("").to_owned(), d.txg());
            }
        }
    }
    let wanted: Vec<Guid> = pools
        .iter()
        .filter(|(g, (n, _))| opts.pool.as_ref().is_none_or(|p| p == n || *p == g.0.to_string()))
        .map(|(g, _)| *g)
        .collect();
    match wanted[..] {
        [guid] => Ok(all.into_iter().filter(|d| d.pool_guid() == Some(guid)).collect()),
        [] => Err(Error::not_found(match &opts.pool {
            Some(p) => format!("no device is of a pool '{p}'"),
            None => "no device has a label of a pool".to_owned(),
        })),
        _ => {
            let names: Vec<String> = pools.iter().map(|(g, (n, _))| format!("{n} ({g})")).collect();
            Err(Error::invalid(format!("the devices are of several pools: {}; name one", names.join(", "))))
        }
    }
}

/// The top-level vdevs as the newest labels describe them.
fn tops_of_labels(
    devices: &[Labeled],
    (devs, reflow): (&BTreeMap<Guid, Rc<crate::device::Device>>, Reflow),
    limit: u64,
) -> Result<Vec<Option<Vdev>>> {
    let mut best: BTreeMap<u64, (Txg, VdevConfig)> = BTreeMap::new();
    let mut count = 0;
    for list in devices.iter().flat_map(|d| d.labels.iter()).filter_map(|l| l.good()) {
        let Ok(cfg) = LabelConfig::from_nvlist(list) else { continue };
        let id = cfg.vdev_tree.id;
        if id >= MAX_TOPS || cfg.txg.0 > limit.saturating_add(1) {
            continue;
        }
        count = count.max(cfg.vdev_children.unwrap_or(0).min(MAX_TOPS)).max(id + 1);
        if best.get(&id).is_none_or(|b| b.0 < cfg.txg) {
            best.insert(id, (cfg.txg, cfg.vdev_tree));
        }
    }
    let mut tops: Vec<Option<Vdev>> = (0..count).map(|_| None).collect();
    for (id, (_, cfg)) in &best {
        tops[*id as usize] = Some(Vdev::build(cfg, devs, reflow)?);
    }
    Ok(tops)
}

fn config_of(mos: &Objset, directory: &BTreeMap<String, ZapValue>) -> Result<NvList> {
    let obj = directory
        .get("config")
        .and_then(ZapValue::as_u64)
        .ok_or_else(|| Error::corrupt("the MOS directory has no entry 'config'"))?;
    packed_nvlist(&mos.object(obj)?).at(|| "configuration object")
}
