//! The names of vdevs in commands.

use std::rc::Rc;

use base::{Error, Guid, Result};
use ondisk::vdev_config::{VdevConfig, VdevKind as ConfigKind};
use vdev::{Top, VdevTree};

use crate::commit::config::Config;

/// Finds the vdev that a command names: by path, by the last part of a path, by its name in
/// listings, or by guid.
pub(super) fn find_vdev(tree: &VdevTree, config: &Config, name: &str) -> Result<(Rc<Top>, Guid)> {
    let tops = tree.tops.borrow();
    // Leaves before interior vdevs, and names before guids.
    let interior = |c: &VdevConfig| match c.kind {
        ConfigKind::Raidz | ConfigKind::Draid => {
            name == format!("{}{}-{}", c.kind, c.nparity.unwrap_or(1), c.id) || name == format!("{}-{}", c.kind, c.id)
        }
        _ => c.kind.is_interior() && name == format!("{}-{}", c.kind, c.id),
    };
    let is_leaf = |c: &&VdevConfig| !c.kind.is_interior();
    for top in tops.iter() {
        let shape = top.config_ref();
        if let Some(found) = shape.iter().filter(is_leaf).find(|c| c.path.as_deref() == Some(name)) {
            return Ok((top.clone(), found.guid));
        }
    }
    for top in tops.iter() {
        let shape = top.config_ref();
        let leaf = shape.iter().filter(is_leaf).find(|c| matches_name(c, name));
        let above = || shape.iter().find(|c| interior(c) || name.parse() == Ok(c.guid.0));
        if let Some(found) = leaf.or_else(above) {
            return Ok((top.clone(), found.guid));
        }
    }
    Err(Error::not_found(format!("no such device in pool '{}': {name}", config.name())))
}

/// Whether a command's argument names the device: by path, last part of the path, or guid.
pub(super) fn matches_name(c: &VdevConfig, name: &str) -> bool {
    let path = c.path.as_deref();
    path == Some(name) || path.is_some_and(|p| p.rsplit('/').next() == Some(name)) || name.parse() == Ok(c.guid.0)
}

/// Whether the tree has a vdev with that guid.
pub(super) fn in_tree(tree: &VdevTree, guid: Guid) -> bool {
    tree.tops.borrow().iter().any(|t| t.kind().find(guid).is_some())
}
