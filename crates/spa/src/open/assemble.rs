//! Builds the vdev tree from a configuration and the devices found.
//!
//! A device belongs to a leaf if its label has the leaf's guid; of several such devices the one
//! with the newest label is used (the others are copies or were away). If there is none, another
//! label of a device, which is not of the state, may have it. A leaf without a device
//! becomes an absent one, which the redundancy of its parents covers. [`check_complete`] then
//! decides whether the tree is complete enough to import.

use std::rc::Rc;

use base::{Error, Guid, Result, ResultExt, VdevId};
use ondisk::uberblock::Reflow as ReflowWord;
use ondisk::vdev_config::{VdevConfig, VdevKind as ConfigKind};
use rt::Rt;
use vdev::geometry::Draid;
use vdev::reflow::{self, Reflow};
use vdev::width::{Expansions, Progress};
use vdev::{
    Absent, Condition, DirtyGauge, DraidNode, Dspare, Health, Leaf, Mirror, MirrorRole, Raidz, Top, TopSpec, VdevKind,
    VdevTree, leaf_asize,
};

use crate::devices::state::FAULTED_BY_COMMAND;
use crate::open::import::FoundDevice;
use crate::pool::EngineOpts;

/// Most children of a vdev with parity (format page 09: weights of columns repeat beyond).
const CHILDREN_MAX: usize = 255;

/// The inputs of a tree.
pub(crate) struct Assembly<'a> {
    pub rt: &'a Rt,
    pub devices: &'a [FoundDevice],
    pub gauge: &'a DirtyGauge,
    pub opts: &'a EngineOpts,
    /// The progress of an expansion, as the uberblock of the state has it.
    pub reflow: ReflowWord,
}

impl Assembly<'_> {
    /// The tree of `tops`, each at the index of its id.
    pub(crate) fn tree(&self, root: Guid, tops: &[VdevConfig]) -> Result<Rc<VdevTree>> {
        let mut built = Vec::with_capacity(tops.len());
        for config in tops {
            let ashift = config.ashift.unwrap_or(9).clamp(9, 16) as u8;
            built.push(Top::new(TopSpec {
                id: VdevId(config.id as u32),
                ashift,
                asize: config.asize.unwrap_or(0),
                ms_shift: config.metaslab_shift.unwrap_or(0).min(40) as u8,
                ms_array: config.metaslab_array.unwrap_or_default(),
                is_log: config.is_log == Some(1),
                kind: self.top(config, ashift).at(|| format!("top-level vdev {}", config.id))?,
                config: config.clone(),
            }));
        }
        Ok(VdevTree::new(root, built))
    }

    fn top(&self, config: &VdevConfig, ashift: u8) -> Result<VdevKind> {
        let asize = config.asize.unwrap_or(0);
        // Devices must cover the metaslabs.
        let asize = match config.metaslab_shift {
            Some(shift @ 1..=62) => asize >> shift << shift,
            _ => asize,
        };
        match config.kind {
            ConfigKind::Hole => Ok(VdevKind::Hole),
            ConfigKind::Missing => Ok(VdevKind::Missing),
            ConfigKind::Indirect => Ok(VdevKind::Indirect(Rc::default())),
            ConfigKind::Raidz => {
                config.validate()?;
                self.check_count(config)?;
                let (children, parity) = (config.children.len() as u64, config.nparity.unwrap_or(1));
                let reflow = match config.raidz_expanding {
                    true => Some(Reflow::new(self.progress(config, ashift)?)),
                    false => None,
                };
                let expansions = Expansions { txgs: config.raidz_expand_txgs.clone(), reflow, ..Default::default() };
                let share = expansions.widths(children, parity).child_asize(asize);
                let (guid, children) = (config.guid, self.children(config, share)?);
                Ok(VdevKind::Raidz(Rc::new(Raidz { guid, parity, children, expansions, errors: Default::default() })))
            }
            ConfigKind::Draid => {
                config.validate()?;
                self.check_count(config)?;
                let layout = Draid::from_config(config, ashift)?;
                let children = self.children(config, layout.child_asize(asize))?;
                Ok(VdevKind::Draid(Rc::new(DraidNode {
                    guid: config.guid,
                    layout,
                    children,
                    errors: Default::default(),
                })))
            }
            _ => self.node(config, asize),
        }
    }

    /// How far the uberblock says that the expansion of a RAID-Z has come.
    fn progress(&self, config: &VdevConfig, ashift: u8) -> Result<Progress> {
        let offset = self.reflow.offset() >> ashift << ashift;
        let first = reflow::scratch_bytes(ashift) * config.children.len() as u64;
        if offset > config.asize.unwrap_or(0) || self.reflow.is_in_scratch() && offset != first {
            return Err(Error::corrupt(format!("the expansion of the raidz has come to {offset}, which cannot be")));
        }
        Ok(Progress { in_scratch: self.reflow.is_in_scratch(), ..Progress::at(offset) })
    }

    fn check_count(&self, config: &VdevConfig) -> Result<()> {
        if config.children.len() > CHILDREN_MAX {
            return Err(Error::corrupt(format!("a {} of {} devices", config.kind, config.children.len())));
        }
        Ok(())
    }

    fn children(&self, config: &VdevConfig, share: u64) -> Result<Vec<VdevKind>> {
        config
            .children
            .iter()
            .map(|c| if self.is_cut(c, share) { Ok(absent(c)) } else { self.node(c, share) })
            .collect()
    }

    /// Whether the device of a leaf has lost its end. As one that is missing, the others may do
    /// without it.
    fn is_cut(&self, config: &VdevConfig, asize: u64) -> bool {
        self.device_of(config).is_some_and(|found| leaf_asize(found.dev.size()) < asize)
    }

    fn device_of(&self, config: &VdevConfig) -> Option<&FoundDevice> {
        let newest = |d: &&FoundDevice| d.config.txg;
        let own = self.devices.iter().filter(|d| d.config.guid == config.guid).max_by_key(newest);
        own.or_else(|| self.devices.iter().filter(|d| d.was_or_will_be(config.guid)).max_by_key(newest))
    }

    /// A leaf, or a mirror, replacing or spare node, of at least `asize` bytes.
    fn node(&self, config: &VdevConfig, asize: u64) -> Result<VdevKind> {
        let role = match config.kind {
            ConfigKind::File | ConfigKind::Disk => return self.leaf(config, asize),
            ConfigKind::Dspare => {
                return Ok(VdevKind::Dspare(Rc::new(Dspare {
                    guid: config.guid,
                    path: config.path.clone().unwrap_or_else(|| "dspare".into()),
                    spare: config.dspare_id.unwrap_or(u64::MAX),
                    condition: Rc::default(),
                })));
            }
            ConfigKind::Mirror => MirrorRole::Mirror,
            ConfigKind::Replacing => MirrorRole::Replacing,
            ConfigKind::Spare => MirrorRole::Spare,
            ref other => {
                return Err(Error::unsupported(format!(
                    "the pool has a vdev of type '{}' where weir does not read one",
                    other.name()
                )));
            }
        };
        if config.children.is_empty() {
            return Err(Error::corrupt(format!("{} vdev {} has no children", config.kind, config.guid)));
        }
        let children = self.children(config, asize)?;
        Ok(VdevKind::Mirror(Rc::new(Mirror { guid: config.guid, role, children, errors: Default::default() })))
    }

    fn leaf(&self, config: &VdevConfig, asize: u64) -> Result<VdevKind> {
        let Some(found) = self.device_of(config) else { return Ok(absent(config)) };
        // An import examines the devices anew: only what the administrator said stays.
        let is_faulted = config.faulted && config.aux_state.as_deref() == Some(FAULTED_BY_COMMAND);
        let health = match () {
            () if config.offline => Health::Offline,
            () if is_faulted => Health::Faulted,
            () => Health::Online,
        };
        let condition = Rc::new(Condition::new(health));
        let info = found.dev.info();
        // It may have grown since it was opened.
        if leaf_asize(found.dev.size()) < asize {
            return Err(Error::corrupt(format!("device '{}' is smaller than its label says", info.path)));
        }
        let leaf = Leaf::with_condition(
            self.rt,
            config.guid,
            info.path.clone(),
            found.dev.clone(),
            self.gauge.clone(),
            self.opts.queue.clone(),
            condition,
        );
        leaf.note_labels(&found.labels);
        Ok(VdevKind::Leaf(leaf))
    }
}

/// A leaf whose device is of no use.
fn absent(config: &VdevConfig) -> VdevKind {
    let path = config.path.clone().unwrap_or_else(|| format!("guid {}", config.guid));
    let condition = Rc::new(Condition::new(if config.offline { Health::Offline } else { Health::Unavail }));
    VdevKind::Absent(Rc::new(Absent { guid: config.guid, path, condition }))
}

/// Paths of the devices below a vdev that are absent or not in use.
pub(crate) fn missing_paths(kind: &VdevKind) -> Vec<String> {
    match kind {
        VdevKind::Absent(a) => vec![a.path.clone()],
        VdevKind::Leaf(l) if !l.condition.health().is_open() => vec![l.path()],
        _ => kind.children().iter().flat_map(missing_paths).collect(),
    }
}

/// Whether all devices of a vdev are offline.
fn is_offline(config: &VdevConfig) -> bool {
    match &config.children[..] {
        [] => config.offline,
        children => children.iter().all(is_offline),
    }
}

/// Refuses a tree with an unreadable top-level vdev. Log vdevs are needed for writing only.
pub(crate) fn check_complete(tree: &VdevTree, without_log: bool) -> Result<()> {
    for top in tree.tops.borrow().iter() {
        let kind = top.kind();
        // A log vdev that was taken offline is empty.
        let is_needed = !top.is_log || !without_log && !is_offline(&top.config_ref());
        if kind.health().is_open() || !is_needed {
            continue;
        }
        let paths = missing_paths(&kind);
        let text = match &paths[..] {
            [] => {
                format!("the devices of top-level vdev {} are missing: name the folder that has them with -d", top.id)
            }
            [one] => format!("device '{one}' of the pool is missing: name the folder that has it with -d"),
            [first, ..] => format!(
                "{} devices of top-level vdev {} are missing, more than it can do without ('{first}' and others): name the folder that has them with -d",
                paths.len(),
                top.id
            ),
        };
        return Err(Error::not_found(text));
    }
    Ok(())
}

/// Updates the configuration for the devices found: which leaves are not present, and the paths
/// of the others, as every import does.
pub(crate) fn update_presence(tree: &VdevTree) {
    for top in tree.tops.borrow().iter() {
        let kind = top.kind();
        top.update_config(|config| {
            for (guid, _) in kind.conditions() {
                let Some(leaf) = config.find_mut(guid) else { continue };
                match kind.find(guid) {
                    Some(VdevKind::Absent(_)) => leaf.not_present = true,
                    Some(VdevKind::Leaf(l)) => {
                        leaf.not_present = false;
                        // Faults of the last import are detected anew, but those that a command
                        // made.
                        let is_faulted = l.condition.health() == Health::Faulted;
                        (leaf.faulted, leaf.degraded, leaf.removed) = (is_faulted, false, false);
                        leaf.aux_state.take_if(|_| !is_faulted);
                        leaf.path = Some(l.path());
                    }
                    _ => {}
                }
            }
        });
    }
}
