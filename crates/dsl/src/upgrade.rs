//! Versions of pools from before feature flags: what a pool must have for a value or an operation,
//! and the steps of an upgrade (format pages 05 sections 4 and 7, 15).
//!
//! An upgrade is one sync task. The new version counts from its first line on, so that all that
//! is made in it has the new form. What exists keeps its form: flat deadlists, directories
//! without a breakdown, object sets without the space of owners.

use std::collections::BTreeSet;
use std::rc::Rc;

use base::{Error, ObjectId, Result};
use codec::{CompressAlgo, Compression};
use dmu::{Tx, zap};
use ondisk::version;

use crate::dataset::Dataset;
use crate::pool::DslPool;
use crate::props::{self, PropValue};

/// The pool version that a value of a property needs.
fn needed_version(name: &str, value: &PropValue) -> u64 {
    let n = value.num();
    match name {
        "compression" => match Compression::from_prop(n).map(|c| c.algo) {
            Some(CompressAlgo::Zle) => version::ZLE,
            Some(algo) if (CompressAlgo::Gzip1 as u8..=CompressAlgo::Gzip9 as u8).contains(&(algo as u8)) => {
                version::GZIP
            }
            _ => 1,
        },
        "copies" => version::DITTO,
        "dedup" => version::DEDUP,
        "refquota" | "refreservation" => version::REFQUOTA,
        "aclinherit" if n == 5 => version::PASSTHROUGH_X,
        _ => 1,
    }
}

/// Refuses a value that pools of `version` cannot have.
pub fn check_version(name: &str, value: &PropValue, version: u64) -> Result<()> {
    if needed_version(name, value) <= version {
        return Ok(());
    }
    let why = format!("property '{name}': pool and or dataset must be upgraded to set this property or value");
    Err(Error::unsupported(why))
}

impl DslPool {
    /// Refuses a value that the pool is too old for, or whose feature is not enabled.
    pub(crate) fn check_value(&self, name: &str, value: &PropValue) -> Result<()> {
        check_version(name, value, self.version())?;
        props::check_feature(name, value, |id| self.features().is_enabled(id))
    }

    /// Fails with `why` in a pool before version `needed`.
    pub(crate) fn check_version(&self, needed: u64, why: &'static str) -> Result<()> {
        if self.version() >= needed { Ok(()) } else { Err(Error::unsupported(why)) }
    }

    /// Makes what pools of version `to`, which is newer than that of this one, have beyond it
    /// (syncing context). `deflate`: blocks of all vdevs are charged alike from version 3 on.
    pub async fn upgrade(&self, to: u64, deflate: bool, tx: &Tx) -> Result<()> {
        let done = self.upgrade_steps(to, deflate, tx).await;
        self.fail_txg_on_error(done)
    }

    async fn upgrade_steps(&self, to: u64, deflate: bool, tx: &Tx) -> Result<()> {
        let from = self.version();
        let comes = |with: u64| from < with && to >= with;
        if comes(version::DEFLATE) && deflate {
            zap::add_u64(self.directory(), b"deflate", 1, tx).await?;
        }
        self.features().set_version(to, self.directory(), tx).await?;
        self.ctx().set_features(self.features().for_dmu());
        let root = self.root();
        if comes(version::ORIGIN) {
            self.make_origin(&root, tx).await?;
            for head in self.heads() {
                self.link_to_origin(&head, tx).await?;
            }
        }
        if comes(version::DEADLISTS) {
            self.make_free_list(&root, tx).await?;
            for head in self.heads() {
                if let object @ 1.. = head.dir().phys().origin_obj {
                    let origin = self.hold_dataset(ObjectId(object)).await?;
                    self.add_clone(&origin.dir(), head.object, tx).await?;
                }
            }
        }
        Ok(())
    }

    /// All heads but that of `$ORIGIN`.
    fn heads(&self) -> Vec<Rc<Dataset>> {
        let dirs = self.root().subtree().into_iter().filter(|d| !d.name().starts_with('$'));
        dirs.filter_map(|d| d.head()).collect()
    }

    /// Of a pool from before version 11: the first dataset of a chain that is no clone follows
    /// `$ORIGIN` from now on, and the snapshot that the first one follows lists it.
    async fn link_to_origin(&self, head: &Rc<Dataset>, tx: &Tx) -> Result<()> {
        let mut first = head.clone();
        let mut seen = BTreeSet::new();
        let from = loop {
            let before = ObjectId(first.phys().prev_snap_obj);
            if before.0 == 0 {
                break None;
            }
            if !seen.insert(before) {
                return Err(Error::corrupt(format!("the snapshots of '{}' go in a circle", head.name())));
            }
            let before = self.hold_dataset(before).await?;
            if before.phys().next_snap_obj != first.object.0 {
                break Some(before);
            }
            first = before;
        };
        let from = match from {
            Some(from) => from,
            None => {
                let origin = self.hold_dataset(self.origin_snap()).await?;
                let at = origin.phys().creation_txg;
                first.change(|p| (p.prev_snap_obj, p.prev_snap_txg) = (origin.object.0, at));
                first.dir().change(|p| p.origin_obj = origin.object.0);
                origin.change(|p| p.num_children += 1);
                origin
            }
        };
        self.add_next_clone(&from, first.object, tx).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_need_versions() {
        let is_good = |name: &str, word: &str, version| {
            let prop = props::find(name).expect(name);
            check_version(name, &prop.parse(word).expect(word), version).is_ok()
        };
        for (name, word, first) in [
            ("compression", "on", 1),
            ("compression", "lzjb", 1),
            ("compression", "gzip-9", 5),
            ("compression", "zle", 20),
            ("copies", "1", 2),
            ("dedup", "off", 21),
            ("refquota", "1G", 9),
            ("refreservation", "none", 9),
            ("aclinherit", "discard", 1),
            ("aclinherit", "passthrough-x", 14),
            ("quota", "1G", 1),
        ] {
            for version in (1..=version::LAST).chain([version::FEATURES]) {
                assert_eq!(is_good(name, word, version), version >= first, "{name}={word} {version}");
            }
        }
    }
}
