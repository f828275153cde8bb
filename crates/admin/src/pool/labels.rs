//! The owner of a device, from its labels and the imported pools; `zpool labelclear`.
//!
//! A device of an imported pool is never free. One of an exported pool, or of a pool that another
//! machine may have imported, needs `-f`. All others are free: devices removed from their pool,
//! those of destroyed pools, and spares and caches, whose labels do not name a pool.

use std::collections::BTreeSet;
use std::path::Path;

use base::{Error, ErrorKind, Result, ResultExt};
use bdev::BlockDev;
use ondisk::label::{DeviceLabel, PoolState};
use vdev::labels::{clear_valid_labels, read_labels};

use crate::engine::EngineThread;
use crate::pool::create::{open_device, same_file};
use crate::pool_set::PoolSet;

/// The imported pools and their devices.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct InUse {
    /// Guids of the pools.
    pools: BTreeSet<u64>,
    parts: Vec<Part>,
}

/// A member, spare or cache of an imported pool.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Part {
    guid: u64,
    path: Option<String>,
    pool: String,
    /// The word in messages of `labelclear`.
    state: &'static str,
    /// The pool uses it now; spares and caches count as used.
    is_open: bool,
}

/// The owner of a device by one of its labels.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Owner {
    /// Part of an imported pool.
    Here(Part),
    /// Part of a pool that is not imported here: `exported` or `potentially active`, and its name.
    Elsewhere(&'static str, String),
    /// No owner.
    Free,
}

impl InUse {
    fn owner(&self, label: &DeviceLabel) -> Owner {
        if let Some(part) = self.parts.iter().find(|p| p.guid == label.guid().0) {
            return Owner::Here(part.clone());
        }
        match label {
            // Removed from its pool, or never added to one.
            DeviceLabel::Pool(c) if c.txg.0 == 0 => Owner::Free,
            // The pool is imported here and has removed the device, perhaps while it was missing.
            DeviceLabel::Pool(c) if self.pools.contains(&c.pool_guid.0) => Owner::Free,
            DeviceLabel::Pool(c) => match c.state {
                PoolState::Exported => Owner::Elsewhere("exported", c.name.clone()),
                PoolState::Active => Owner::Elsewhere("potentially active", c.name.clone()),
                _ => Owner::Free,
            },
            DeviceLabel::Spare { .. } | DeviceLabel::Cache { .. } => Owner::Free,
        }
    }

    /// The strongest owner among all labels: an imported pool, then another pool. Of the labels of
    /// one pool the newest counts: a device that grew and shrank again has older ones at its end.
    async fn owner_of(&self, dev: &dyn BlockDev) -> Result<Owner> {
        let labels = read_labels(dev).await?;
        let parsed = labels.configs.iter().filter_map(|(_, c)| DeviceLabel::from_nvlist(c.as_ref().ok()?).ok());
        let mut best = Owner::Free;
        for owner in newest_of_each(parsed.collect()).iter().map(|l| self.owner(l)) {
            match (&owner, &best) {
                (Owner::Here(..), _) => return Ok(owner),
                (Owner::Elsewhere(..), Owner::Free) => best = owner,
                _ => {}
            }
        }
        Ok(best)
    }

    /// Fails if a device belongs to a pool: always if that is imported here, else unless `force`.
    pub async fn check(&self, dev: &dyn BlockDev, force: bool) -> Result<()> {
        let path = dev.info().path.clone();
        match self.owner_of(dev).await? {
            Owner::Here(part) => {
                Err(Error::new(ErrorKind::Busy, format!("'{path}' is part of active pool '{}'", part.pool)))
            }
            Owner::Elsewhere(state, pool) if !force => {
                let why = format!("'{path}' is part of {state} pool '{pool}': use -f to take it all the same");
                Err(Error::new(ErrorKind::Busy, why))
            }
            _ => Ok(()),
        }
    }
}

/// The labels without those of a pool that has a newer one.
fn newest_of_each(all: Vec<DeviceLabel>) -> Vec<DeviceLabel> {
    let of = |l: &DeviceLabel| match l {
        DeviceLabel::Pool(c) => Some((c.pool_guid, c.guid, c.txg)),
        _ => None,
    };
    let keys: Vec<_> = all.iter().filter_map(of).collect();
    let is_old = |(pool, guid, txg)| keys.iter().any(|(p, g, t)| (*p, *g) == (pool, guid) && *t > txg);
    all.into_iter().filter(|l| !of(l).is_some_and(is_old)).collect()
}

/// Fails if a device of an imported pool keeps its label. An offline one loses it with `force`.
fn keep(path: &str, part: &Part, force: bool) -> Result<()> {
    if force && !part.is_open {
        return Ok(());
    }
    let advice = if force && part.state == "ACTIVE" { ": offline the disk first to clear its label" } else { "" };
    let why = format!("{path} is a member ({}) of pool \"{}\"{advice}", part.state, part.pool);
    Err(Error::new(ErrorKind::Busy, why))
}

impl PoolSet {
    /// Collects the devices of every imported pool.
    pub(crate) fn in_use(&self) -> InUse {
        let mut out = InUse::default();
        for running in self.all_running() {
            out.pools.insert(running.guid());
            let parts = running.thread.with_pool(|e| async move {
                let pool = &e.pool;
                let aux = pool.devices().aux();
                let open: BTreeSet<u64> = pool.tree().leaves().iter().map(|l| l.guid().0).collect();
                let mut parts = Vec::new();
                let members = pool.mos_config().vdev_tree.leaves().cloned().collect::<Vec<_>>();
                for (list, state) in [(members, "ACTIVE"), (aux.spares, "SPARE"), (aux.caches, "L2CACHE")] {
                    for c in list {
                        let is_open = state != "ACTIVE" || open.contains(&c.guid.0);
                        parts.push((c.guid.0, c.path.clone(), state, is_open));
                    }
                }
                Ok(parts)
            });
            for (guid, path, state, is_open) in parts.unwrap_or_default() {
                out.parts.push(Part { guid, path, pool: running.name.clone(), state, is_open });
            }
        }
        out
    }

    /// `zpool labelclear`.
    pub(crate) fn label_clear(&self, path: &str, force: bool) -> Result<()> {
        let _namespace = self.namespace();
        let in_use = self.in_use();
        let same = |p: &&Part| p.path.as_ref().is_some_and(|p| same_file(Path::new(p), Path::new(path)));
        if let Some(part) = in_use.parts.iter().find(same) {
            keep(path, part, force)?;
        }
        let path = path.to_string();
        let thread = EngineThread::start(Some(self.keeper.clone()))?;
        let call = thread.call(move |rt| {
            let rt = rt.clone();
            async move {
                let place = || format!("failed to clear label for {path}");
                let (dev, _) = open_device(&rt, &path, true).at(place)?;
                match in_use.owner_of(&*dev).await.at(place)? {
                    Owner::Here(part) => keep(&path, &part, force)?,
                    Owner::Elsewhere(state, pool) if !force => {
                        let why =
                            format!("{path} is a member of {state} pool \"{pool}\": use -f to clear it all the same");
                        return Err(Error::new(ErrorKind::Busy, why));
                    }
                    _ => {}
                }
                match clear_valid_labels(&*dev).await.at(place)? {
                    0 => Err(Error::not_found("it has no valid label").at(place())),
                    _ => Ok(()),
                }
            }
        });
        call.wait()?
    }
}

#[cfg(test)]
mod tests {
    use base::Guid;

    use super::*;

    #[test]
    fn spares_and_caches_are_free_unless_an_imported_pool_has_them() {
        let mut here = InUse::default();
        let part = Part { guid: 7, path: None, pool: "tank".into(), state: "L2CACHE", is_open: true };
        here.parts.push(part.clone());
        let cache = |guid| DeviceLabel::Cache { version: 5000, guid: Guid(guid) };
        let spare = |guid| DeviceLabel::Spare { version: 5000, guid: Guid(guid) };
        assert_eq!(here.owner(&cache(7)), Owner::Here(part));
        assert_eq!(here.owner(&cache(8)), Owner::Free);
        assert_eq!(here.owner(&spare(9)), Owner::Free);
    }
}
