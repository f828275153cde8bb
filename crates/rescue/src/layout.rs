//! Which devices stand where: from labels, or as the user names it.
//!
//! Every readable label of every device counts, also one whose checksum is wrong. For each
//! top-level vdev the newest description wins; the configuration object of a readable MOS adds what
//! only it knows (removed vdevs) and what is newer ([`Layout::learn`]). A device without labels is
//! offered for every place that has no device: the place whose file name it has first. That needs
//! no proof, since nothing is taken from a device but bytes with the right checksum.
//!
//! Where no label is left the user names the layout as for `zpool create`, in the order of the
//! pool's vdevs, with `-` for a device that is gone ([`Layout::named`]).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;

use base::{Error, Guid, Result, Txg};
use ondisk::label::{LabelConfig, MosConfig};
use ondisk::nvlist::NvList;
use ondisk::vdev_config::{VdevConfig, VdevKind};
use vdev::geometry::Draid;
use zdb::device::{Device, LabelState, Labeled};

use crate::vdevs::{Devices, Top, Vdevs};

/// More top-level vdevs than any pool has.
const TOPS_MAX: u64 = 4096;
/// Most devices without labels that are offered for every free place.
const STRAYS_MAX: usize = 8;

/// Devices and places of a pool.
pub struct Layout {
    /// The pool's name.
    pub name: String,
    /// The pool's guid; 0 where no label says it.
    pub guid: Guid,
    /// Everything about it that the user should know.
    pub notes: Vec<String>,
    /// The devices that uberblocks are looked for on.
    pub devices: Vec<Labeled>,
    /// Top-level vdevs by number, and the txg of the description.
    tops: BTreeMap<u64, (Txg, VdevConfig)>,
    /// Devices by leaf.
    leaves: Devices,
    /// Devices whose labels are gone.
    strays: Vec<Rc<Device>>,
    /// Whether the user named it: then leaves have made-up guids.
    is_named: bool,
}

/// The lists on a device, the best first: right checksums before wrong ones, newer before older.
fn lists(d: &Labeled) -> Vec<&NvList> {
    let mut all: Vec<(bool, u64, &NvList)> = d
        .labels
        .iter()
        .filter_map(|l| match l {
            LabelState::Good(l) => Some((true, l.u64("txg").unwrap_or(0), l)),
            LabelState::BadChecksum(l) => Some((false, l.u64("txg").unwrap_or(0), l)),
            LabelState::None(_) => None,
        })
        .collect();
    all.sort_by_key(|&(good, txg, _)| std::cmp::Reverse((good, txg)));
    all.into_iter().map(|(.., l)| l).collect()
}

/// The guid of the pool that a device belongs to, by its best label that says one.
fn pool_of(d: &Labeled) -> Option<Guid> {
    lists(d).into_iter().find(|l| l.contains("vdev_tree")).and_then(|l| l.u64("pool_guid")).map(Guid)
}

impl Layout {
    /// The layout of the pool that the labels describe; `wanted` is its name or guid where the
    /// devices are of several. Errors: no label of it, or several pools.
    pub fn of_labels(all: Vec<Labeled>, wanted: Option<&str>) -> Result<Layout> {
        let mut pools: BTreeMap<Guid, (String, u64)> = BTreeMap::new();
        for d in &all {
            let Some(guid) = pool_of(d) else { continue };
            for l in lists(d) {
                let (name, txg) = (l.str("name").unwrap_or(""), l.u64("txg").unwrap_or(0));
                let known = pools.entry(guid).or_default();
                if known.0.is_empty() || txg > known.1 {
                    *known = (name.to_owned(), txg);
                }
            }
        }
        let fits = |guid: &Guid, name: &str| wanted.is_none_or(|w| w == name || w == guid.0.to_string());
        let chosen: Vec<Guid> = pools.iter().filter(|(g, (n, _))| fits(g, n)).map(|(g, _)| *g).collect();
        let guid = match chosen[..] {
            [guid] => guid,
            [] => {
                return Err(Error::not_found(match wanted {
                    Some(w) => format!("no device has a label of a pool '{w}'; name its layout (weir help rescue)"),
                    None => "no device has a readable label; name the layout (weir help rescue)".to_owned(),
                }));
            }
            _ => {
                let names: Vec<String> = pools.iter().map(|(g, (n, _))| format!("{n} ({g})")).collect();
                return Err(Error::invalid(format!(
                    "the devices are of several pools, {}: name one",
                    names.join(", ")
                )));
            }
        };
        let name = pools.get(&guid).map(|p| p.0.clone()).filter(|n| !n.is_empty()).unwrap_or_else(|| "pool".into());
        let mut it = Layout {
            name,
            guid,
            notes: Vec::new(),
            devices: Vec::new(),
            tops: BTreeMap::new(),
            leaves: Devices::new(),
            strays: Vec::new(),
            is_named: false,
        };
        let mut ranked: BTreeMap<Guid, Vec<(u64, Rc<Device>)>> = BTreeMap::new();
        for d in all {
            match pool_of(&d) {
                Some(g) if g == guid => it.take_labels(&d, &mut ranked),
                Some(_) => {
                    it.notes.push(format!("{} belongs to another pool and is left out", d.dev.name()));
                    continue;
                }
                None => {
                    it.notes.push(format!("{} has no readable label", d.dev.name()));
                    it.strays.push(d.dev.clone());
                }
            }
            it.devices.push(d);
        }
        for (guid, mut devices) in ranked {
            devices.sort_by_key(|d| std::cmp::Reverse(d.0));
            it.leaves.insert(guid, devices.into_iter().map(|d| d.1).collect());
        }
        Ok(it)
    }

    fn take_labels(&mut self, d: &Labeled, ranked: &mut BTreeMap<Guid, Vec<(u64, Rc<Device>)>>) {
        let all = lists(d);
        let own = all.iter().find_map(|l| Some((l.u64("guid")?, l.u64("txg").unwrap_or(0))));
        if let Some((guid, txg)) = own {
            ranked.entry(Guid(guid)).or_default().push((txg, d.dev.clone()));
        }
        for list in all {
            let Ok(cfg) = LabelConfig::from_nvlist(list) else { continue };
            self.describe(cfg.vdev_tree.id, cfg.head.txg, cfg.vdev_tree);
        }
    }

    fn describe(&mut self, id: u64, txg: Txg, tree: VdevConfig) {
        if id < TOPS_MAX && self.tops.get(&id).is_none_or(|t| t.0 < txg) {
            self.tops.insert(id, (txg, tree));
        }
    }

    /// Takes the configuration object into account; true if something is new.
    pub fn learn(&mut self, config: &MosConfig) -> bool {
        let before = self.tops.clone();
        for (id, tree) in config.vdev_tree.children.iter().enumerate() {
            // Of equal age the configuration object knows more: mappings of removed vdevs.
            let id = id as u64;
            let newer = |t: &(Txg, VdevConfig)| t.0 <= config.head.txg && !self.is_named;
            if id < TOPS_MAX && self.tops.get(&id).is_none_or(newer) {
                self.tops.insert(id, (config.head.txg, tree.clone()));
            }
        }
        if self.guid.0 == 0 {
            self.guid = config.head.pool_guid;
            self.name = config.head.name.clone();
        }
        before.iter().map(|(id, t)| (id, &t.1)).ne(self.tops.iter().map(|(id, t)| (id, &t.1)))
    }

    /// A layout in words, as `zpool create` takes them. `ashift` is log2 of the sector size.
    pub fn named(words: &[String], ashift: u8, open: &mut dyn FnMut(&Path) -> Result<Labeled>) -> Result<Layout> {
        let mut it = Layout {
            name: "pool".into(),
            guid: Guid(0),
            notes: Vec::new(),
            devices: Vec::new(),
            tops: BTreeMap::new(),
            leaves: Devices::new(),
            strays: Vec::new(),
            is_named: true,
        };
        let mut groups: Vec<(Option<Redundancy>, Vec<VdevConfig>)> = Vec::new();
        let mut next = 1u64;
        let mut current: Option<Redundancy> = None;
        let mut fresh = true;
        for word in words {
            if matches!(word.as_str(), "stripe" | "special" | "dedup" | "log") {
                (current, fresh) = (None, true);
                continue;
            }
            if let Some(kind) = Redundancy::parse(word)? {
                (current, fresh) = (Some(kind), true);
                continue;
            }
            let mut leaf = VdevConfig::new(VdevKind::Disk, 0, Guid(next));
            next += 1;
            if word != "-" {
                let device = open(Path::new(word))?;
                leaf.path = Some(word.clone());
                it.leaves.insert(leaf.guid, vec![device.dev.clone()]);
                it.devices.push(device);
            }
            match groups.last_mut() {
                Some((_, leaves)) if !fresh && current.is_some() => leaves.push(leaf),
                _ => groups.push((current, vec![leaf])),
            }
            fresh = false;
        }
        for (id, (kind, leaves)) in groups.into_iter().enumerate() {
            let tree = top_of(kind, leaves, Guid(next), id as u64, ashift)?;
            next += 1;
            it.tops.insert(id as u64, (Txg(0), tree));
        }
        if it.devices.is_empty() {
            return Err(Error::invalid("no device is named"));
        }
        Ok(it)
    }

    /// Whether the pool has a vdev on which the sector size matters for reading.
    pub fn is_striped(&self) -> bool {
        self.tops.values().any(|(_, t)| is_striped(&t.kind))
    }
    /// Whether it matters on all of them.
    pub fn is_all_striped(&self) -> bool {
        self.tops.values().all(|(_, t)| is_striped(&t.kind))
    }

    /// The object with the mapping of each removed vdev, by number.
    pub fn mappings(&self) -> Vec<(u64, u64)> {
        let removed = self.tops.iter().filter(|(_, (_, t))| t.kind == VdevKind::Indirect);
        removed.filter_map(|(id, (_, t))| Some((*id, t.indirect_object?.0))).collect()
    }

    /// Builds the vdevs; those that cannot be are left out with a note.
    pub fn build(&mut self) -> Vdevs {
        let leaves = self.with_strays();
        let count = self.tops.keys().next_back().map_or(0, |n| n + 1);
        let mut tops: Vec<Option<Top>> = (0..count).map(|_| None).collect();
        for (id, (_, cfg)) in &self.tops {
            if matches!(cfg.kind, VdevKind::Hole | VdevKind::Missing) {
                continue;
            }
            match Top::build(cfg, &leaves) {
                Ok(top) => tops[*id as usize] = Some(top),
                Err(e) => self.notes.push(format!("top-level vdev {id} cannot be read: {e}")),
            }
        }
        for (id, (_, cfg)) in &self.tops {
            let mut all = Vec::new();
            leaf_configs(cfg, &mut all);
            for leaf in all.into_iter().filter(|l| !leaves.contains_key(&l.guid)) {
                let path = leaf.path.clone().unwrap_or_else(|| leaf.guid.to_string());
                let note = format!("{path} of top-level vdev {id} is not there");
                if !self.notes.contains(&note) {
                    self.notes.push(note);
                }
            }
        }
        Vdevs::new(tops)
    }

    /// The devices of each leaf, with devices without labels at the places that have none.
    fn with_strays(&self) -> Devices {
        let mut leaves = self.leaves.clone();
        let mut free: Vec<&VdevConfig> = Vec::new();
        for (_, cfg) in self.tops.values() {
            leaf_configs(cfg, &mut free);
        }
        free.retain(|l| !leaves.contains_key(&l.guid));
        let file = |p: &Path| p.file_name().map(|n| n.to_string_lossy().into_owned());
        let mut placed: BTreeSet<usize> = BTreeSet::new();
        for leaf in &free {
            let name = leaf.path.as_deref().and_then(|p| file(Path::new(p)));
            let found = self
                .strays
                .iter()
                .enumerate()
                .find(|(n, d)| !placed.contains(n) && name.is_some() && file(&d.path) == name);
            if let Some((n, d)) = found {
                placed.insert(n);
                leaves.insert(leaf.guid, vec![d.clone()]);
            }
        }
        let rest: Vec<&Rc<Device>> =
            self.strays.iter().enumerate().filter(|(n, _)| !placed.contains(n)).map(|(_, d)| d).collect();
        free.retain(|l| !leaves.contains_key(&l.guid));
        for (i, leaf) in free.iter().enumerate() {
            let mut offered: Vec<Rc<Device>> = Vec::new();
            offered.extend(rest.get(i).map(|d| (*d).clone()));
            if rest.len() <= STRAYS_MAX {
                offered.extend(rest.iter().enumerate().filter(|(n, _)| *n != i).map(|(_, d)| (*d).clone()));
            }
            if !offered.is_empty() {
                leaves.insert(leaf.guid, offered);
            }
        }
        leaves
    }
}

/// Whether a block lies in columns, which the sector size decides.
fn is_striped(kind: &VdevKind) -> bool {
    matches!(kind, VdevKind::Raidz | VdevKind::Draid)
}

/// All leaves below a configuration.
fn leaf_configs<'a>(cfg: &'a VdevConfig, out: &mut Vec<&'a VdevConfig>) {
    if cfg.kind.is_leaf_device() {
        out.push(cfg);
    }
    cfg.children.iter().for_each(|c| leaf_configs(c, out));
}

/// A word of a layout that is no device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Redundancy {
    Mirror,
    Raidz(u64),
    Draid { parity: u64, data: Option<u64>, children: Option<u64>, spares: u64 },
}

impl Redundancy {
    fn parse(word: &str) -> Result<Option<Redundancy>> {
        Ok(match word {
            "mirror" => Some(Redundancy::Mirror),
            "raidz" | "raidz1" => Some(Redundancy::Raidz(1)),
            "raidz2" => Some(Redundancy::Raidz(2)),
            "raidz3" => Some(Redundancy::Raidz(3)),
            _ if word.starts_with("draid") && !word.contains(['/', '.']) => Some(Redundancy::draid(word)?),
            _ => None,
        })
    }
    /// `draid[parity][:<data>d][:<children>c][:<spares>s]`
    fn draid(word: &str) -> Result<Redundancy> {
        let bad = || Error::invalid(format!("'{word}' is no layout: draid[parity][:<n>d][:<n>c][:<n>s]"));
        let mut parts = word.split(':');
        let first = parts.next().and_then(|p| p.strip_prefix("draid")).unwrap_or("");
        let parity = if first.is_empty() { 1 } else { first.parse().map_err(|_| bad())? };
        let (mut data, mut children, mut spares) = (None, None, 0);
        for part in parts {
            let n: u64 = part.get(..part.len().saturating_sub(1)).and_then(|n| n.parse().ok()).ok_or_else(bad)?;
            match part.chars().last() {
                Some('d') => data = Some(n),
                Some('c') => children = Some(n),
                Some('s') => spares = n,
                _ => return Err(bad()),
            }
        }
        Ok(Redundancy::Draid { parity, data, children, spares })
    }
}

/// The configuration of a named top-level vdev.
fn top_of(
    kind: Option<Redundancy>,
    mut leaves: Vec<VdevConfig>,
    guid: Guid,
    id: u64,
    ashift: u8,
) -> Result<VdevConfig> {
    leaves.iter_mut().zip(0..).for_each(|(l, n)| l.id = n);
    let count = leaves.len() as u64;
    let mut top = match kind {
        None => {
            let mut leaf = leaves.pop().ok_or_else(|| Error::invalid("a vdev without devices"))?;
            leaf.id = id;
            leaf.ashift = Some(u64::from(ashift));
            return Ok(leaf);
        }
        Some(Redundancy::Mirror) => VdevConfig::new(VdevKind::Mirror, id, guid),
        Some(Redundancy::Raidz(parity)) => {
            let mut top = VdevConfig::new(VdevKind::Raidz, id, guid);
            top.nparity = Some(parity);
            top
        }
        Some(Redundancy::Draid { parity, data, children, spares }) => {
            if children.is_some_and(|c| c != count) {
                return Err(Error::invalid(format!(
                    "a draid of {} devices is named with {count}",
                    children.unwrap_or(0)
                )));
            }
            // The default of `zpool create`: eight data columns, or as many as there is room for.
            let room = count.saturating_sub(spares + parity);
            let data = data.unwrap_or(room.min(8));
            let mut top = VdevConfig::new(VdevKind::Draid, id, guid);
            top.nparity = Some(parity);
            top.draid_ndata = Some(data);
            top.draid_nspares = Some(spares);
            top.draid_ngroups = Some(Draid::new(parity, data, count, spares, ashift)?.groups());
            top
        }
    };
    top.ashift = Some(u64::from(ashift));
    top.children = leaves;
    Ok(top)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(n: u64) -> VdevConfig {
        VdevConfig::new(VdevKind::Disk, 0, Guid(n))
    }

    #[test]
    fn words_of_layouts() {
        let kind = |w: &str| Redundancy::parse(w).unwrap();
        assert_eq!(kind("mirror"), Some(Redundancy::Mirror));
        assert_eq!(kind("raidz3"), Some(Redundancy::Raidz(3)));
        let draid = Redundancy::Draid { parity: 2, data: Some(4), children: Some(9), spares: 1 };
        assert_eq!(kind("draid2:4d:9c:1s"), Some(draid));
        assert_eq!((kind("disk.img"), kind("/dev/sda"), kind("draid.img")), (None, None, None));
        assert!(Redundancy::parse("draid2:4x").is_err() && Redundancy::parse("draid:").is_err());
    }

    #[test]
    fn tops_of_words() {
        let five = || (1..=5).map(leaf).collect::<Vec<_>>();
        let top = top_of(Redundancy::parse("draid").unwrap(), five(), Guid(9), 1, 12).unwrap();
        assert_eq!((top.nparity, top.draid_ndata, top.ashift), (Some(1), Some(4), Some(12)));
        assert!(top_of(Redundancy::parse("draid2:9d").unwrap(), five(), Guid(9), 1, 12).is_err());
        assert_eq!(top_of(None, vec![leaf(1)], Guid(9), 3, 9).unwrap().id, 3);
    }
}
