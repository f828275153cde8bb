//! The top-level vdevs of a pool as the engine has them, with other leaves than its devices.
//!
//! Without leaves they tell what a block takes and where metaslabs begin; over modelled disks they
//! are read from by the engine's own queues, mirrors and geometry.

use std::rc::Rc;

use base::{Error, Result, ResultExt, VdevId};
use ondisk::label::DATA_START;
use ondisk::vdev_config::{VdevConfig, VdevKind as ConfigKind};
use vdev::geometry::Draid;
use vdev::reflow::Reflow;
use vdev::width::{Expansions, Progress};
use vdev::{DraidNode, Mirror, MirrorRole, Raidz, Top, TopSpec, VdevKind};
use zdb::PoolReader;

/// Bytes of a disk beyond what its vdev allocates.
const BEYOND: u64 = 8 << 20;
/// Most bytes of a vdev: sums with offsets in it are numbers.
const SIZE_MAX: u64 = 1 << 56;
/// Most children of a vdev with parity.
const CHILDREN_MAX: usize = 255;

/// What the vdevs of a pool are made of.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Layout {
    /// Their configurations, each at the index of its id.
    pub(crate) configs: Vec<VdevConfig>,
    /// Bytes that an expansion under way has moved.
    pub(crate) moved: u64,
}

impl Layout {
    /// Of an open pool.
    pub(crate) fn of(pool: &PoolReader) -> Layout {
        Layout { configs: pool.config.vdev_tree.children.clone(), moved: pool.ub.raidz_reflow.offset() }
    }

    /// The vdevs, with a leaf of `leaf` for each device, which gets its bytes.
    ///
    /// # Errors
    /// `Corrupt` if a configuration makes no sense.
    pub(crate) fn tops(&self, leaf: &mut dyn FnMut(u64) -> VdevKind) -> Result<Vec<Rc<Top>>> {
        let one = |c: &VdevConfig| self.top(c, leaf).at(|| format!("vdev {}", c.id));
        self.configs.iter().map(one).collect()
    }

    fn top(&self, config: &VdevConfig, leaf: &mut dyn FnMut(u64) -> VdevKind) -> Result<Rc<Top>> {
        let ashift = config.ashift.unwrap_or(9).clamp(9, 16) as u8;
        let asize = config.asize.unwrap_or(0).min(SIZE_MAX);
        if config.children.len() > CHILDREN_MAX {
            return Err(Error::corrupt(format!("a {} of {} devices", config.kind, config.children.len())));
        }
        let kind = match config.kind {
            ConfigKind::Hole => VdevKind::Hole,
            ConfigKind::Missing => VdevKind::Missing,
            ConfigKind::Indirect => VdevKind::Indirect(Rc::default()),
            ConfigKind::Raidz => {
                config.validate()?;
                let reflow = config.raidz_expanding.then(|| Reflow::new(Progress::at(self.moved)));
                let expansions = Expansions { txgs: config.raidz_expand_txgs.clone(), reflow, ..Default::default() };
                let (children, parity) = (config.children.len() as u64, config.nparity.unwrap_or(1));
                let share = expansions.widths(children, parity).child_asize(asize);
                let children = config.children.iter().map(|c| node(c, share, leaf)).collect();
                let (guid, errors) = (config.guid, Default::default());
                VdevKind::Raidz(Rc::new(Raidz { guid, parity, children, expansions, errors }))
            }
            ConfigKind::Draid => {
                config.validate()?;
                let layout = Draid::from_config(config, ashift)?;
                let share = layout.child_asize(asize);
                let children = config.children.iter().map(|c| node(c, share, leaf)).collect();
                let (guid, errors) = (config.guid, Default::default());
                VdevKind::Draid(Rc::new(DraidNode { guid, layout, children, errors }))
            }
            _ => node(config, asize, leaf),
        };
        Ok(Top::new(TopSpec {
            id: VdevId(config.id as u32),
            ashift,
            asize,
            ms_shift: config.metaslab_shift.unwrap_or(0).min(62) as u8,
            ms_array: config.metaslab_array.unwrap_or_default(),
            is_log: config.is_log == Some(1),
            kind,
            config: config.clone(),
        }))
    }
}

/// A device of `size` allocatable bytes, or the mirror in its place.
fn node(config: &VdevConfig, size: u64, leaf: &mut dyn FnMut(u64) -> VdevKind) -> VdevKind {
    let sides = matches!(config.kind, ConfigKind::Mirror | ConfigKind::Replacing | ConfigKind::Spare);
    if !sides || config.children.is_empty() || config.children.len() > CHILDREN_MAX {
        return leaf((size + DATA_START + BEYOND) & !4095);
    }
    let children = config.children.iter().map(|c| node(c, size, leaf)).collect();
    let (guid, role, errors) = (config.guid, MirrorRole::Mirror, Default::default());
    VdevKind::Mirror(Rc::new(Mirror { guid, role, children, errors }))
}

#[cfg(test)]
pub(crate) mod tests {
    use base::{Guid, Txg};

    use super::*;

    /// A vdev of `kind` with so many children.
    pub(crate) fn config(kind: ConfigKind, id: u64, children: u64, asize: u64) -> VdevConfig {
        let mut c = VdevConfig::new(kind, id, Guid(100 * (id + 1)));
        let child = |n| VdevConfig::new(ConfigKind::Disk, n, Guid(100 * (id + 1) + 1 + n));
        c.children = (0..children).map(child).collect();
        (c.ashift, c.asize) = (Some(12), Some(asize));
        if c.kind == ConfigKind::Raidz {
            c.nparity = Some(1);
        }
        c
    }

    #[test]
    fn vdevs_of_configurations() {
        let (k, g) = (1u64 << 10, 1u64 << 30);
        let configs = vec![
            config(ConfigKind::Disk, 0, 0, g),
            config(ConfigKind::Mirror, 1, 2, g),
            config(ConfigKind::Raidz, 2, 5, 5 * g),
            config(ConfigKind::Hole, 3, 0, 0),
        ];
        let layout = Layout { configs, moved: 0 };
        let mut sizes = Vec::new();
        let tops = layout
            .tops(&mut |size| {
                sizes.push(size);
                VdevKind::Missing
            })
            .unwrap();
        assert_eq!(sizes.len(), 8);
        assert!(sizes.iter().all(|s| (g..g + 16 * k * k).contains(s)), "{sizes:?}");
        let asize = |i: usize| tops[i].asize_of(128 * k, Txg(9));
        assert_eq!([asize(0), asize(1), asize(2)], [128 * k, 128 * k, 160 * k]);
        let mut bad = config(ConfigKind::Raidz, 0, 2, g);
        bad.nparity = Some(7);
        assert!(Layout { configs: vec![bad], moved: 0 }.tops(&mut |_| VdevKind::Missing).is_err());
    }
}
