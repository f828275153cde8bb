//! Active features that weir does not support: found before any write, and reported by name with a
//! remedy.
//!
//! The labels list the features needed to read the MOS; a pool with an unknown one there is refused
//! before its block pointers are followed, for their meaning may differ. The MOS counts all other
//! features. A feature that is enabled and not active does not change the format.

use base::{Error, ObjectId, Result, ResultExt, Txg};
use dmu::{Objset, ObjsetProps};
use dsl::features::Features;
use ondisk::feature::{FeatureId, FeatureZap, Release, Support, support_of};
use ondisk::label::{LabelConfig, VERSION_FEATURES};
use rt::Rt;
use vdev::DirtyGauge;

use crate::commit::removed::load_mappings;
use crate::open::import::{ImportOpts, PoolCandidate, open_state, opts_for};
use crate::open::rewind;
use crate::pool::{EngineOpts, Pool};
use crate::stack::{Layers, mos_hooks};

/// A feature in the pool's own terms.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct UnsupportedFeature {
    /// `ORIGIN:NAME`.
    pub guid: String,
    /// Its description in the pool; empty if there is none.
    pub description: String,
}

/// The features that prevent reading or writing a pool.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Unsupported {
    /// Active features without which the pool cannot be read.
    pub read: Vec<UnsupportedFeature>,
    /// Active features that allow reading only.
    pub write: Vec<UnsupportedFeature>,
}

impl Unsupported {
    /// Adds the unsupported ones of these active features.
    fn add<'a>(&mut self, zap: FeatureZap, active: impl IntoIterator<Item = &'a str>) {
        for guid in active {
            let feature = UnsupportedFeature { guid: guid.to_string(), description: String::new() };
            match support_of(zap, [guid]).0 {
                Support::Write => {}
                Support::None => self.read.push(feature),
                Support::Partial | Support::Read => self.write.push(feature),
            }
        }
    }

    /// The unsupported features in the MOS, with descriptions.
    pub(crate) async fn in_mos(features: &Features) -> Result<Unsupported> {
        let mut out = Unsupported::default();
        for (zap, counts) in
            [(FeatureZap::Read, features.read_counts().await?), (FeatureZap::Write, features.write_counts().await?)]
        {
            out.add(zap, counts.iter().filter(|(_, n)| *n > 0).map(|(guid, _)| guid.as_str()));
        }
        for f in out.read.iter_mut().chain(&mut out.write) {
            // Informational: an unreadable description is left empty.
            let text = features.description(&f.guid).await.ok().flatten().unwrap_or_default();
            f.description = text.chars().filter(|c| !c.is_control()).collect();
        }
        out.read.sort();
        out.write.sort();
        Ok(out)
    }

    /// The unsupported features in the label for a state: the newest that is not newer than it.
    fn in_labels(candidate: &PoolCandidate, txg: Txg) -> Unsupported {
        let labels = candidate.devices.iter().flat_map(|d| d.labels.configs.iter());
        let labels = labels.filter_map(|(_, c)| LabelConfig::from_nvlist(c.as_ref().ok()?).ok());
        let best = labels.filter(|c| c.pool_guid == candidate.guid).max_by_key(|c| (c.txg <= txg, c.txg));
        let mut out = Unsupported::default();
        let best = best.as_ref().unwrap_or(&candidate.config);
        out.add(FeatureZap::Read, best.features_for_read.iter().map(String::as_str));
        out
    }

    /// Refuses to read, or to write unless `readonly`, if features prevent it.
    pub(crate) fn check(&self, readonly: bool) -> Result<()> {
        let names = |list: &[UnsupportedFeature]| list.iter().map(|f| f.guid.clone()).collect::<Vec<_>>().join(", ");
        if !self.read.is_empty() {
            let with = match release_of(&self.read) {
                Some(release) => format!("OpenZFS {release} or newer"),
                None => "the software that wrote it, or a newer release of weir".to_string(),
            };
            let why = format!("the pool uses {}, which weir cannot read: import it with {with}", names(&self.read));
            return Err(Error::unsupported(why));
        }
        if !self.write.is_empty() && !readonly {
            let names = names(&self.write);
            let why = format!("the pool uses {names}, which weir cannot write yet: import it with -o readonly=on");
            return Err(Error::unsupported(why));
        }
        Ok(())
    }
}

/// The first release of OpenZFS with all of these; None if unknown.
fn release_of(features: &[UnsupportedFeature]) -> Option<&'static str> {
    let releases: Option<Vec<Release>> =
        features.iter().map(|f| FeatureId::by_guid(&f.guid).map(|id| id.get().release)).collect();
    match releases?.into_iter().max()? {
        Release::OpenZfs22 => Some("2.2"),
        Release::OpenZfs23 => Some("2.3"),
        Release::OpenZfs24 => Some("2.4"),
        // Not released yet, or older than the features that weir lacks.
        _ => None,
    }
}

/// Refuses a state if a feature in its labels prevents reading the MOS.
pub(crate) fn check_labels(candidate: &PoolCandidate, txg: Txg) -> Result<()> {
    let readonly = true;
    Unsupported::in_labels(candidate, txg).check(readonly)
}

impl Pool {
    /// The features that prevent an import, or an import for writing; reads only. An error if the
    /// newest state cannot be opened for another reason.
    pub async fn unsupported(rt: &Rt, candidate: &PoolCandidate, opts: &EngineOpts) -> Result<Unsupported> {
        let import = ImportOpts { readonly: true, ..ImportOpts::default() };
        let ub = rewind::choices(candidate, rewind::States::Newest).into_iter().next();
        let ub = ub.ok_or_else(|| Error::corrupt("no device has an intact uberblock"))?;
        let listed = Unsupported::in_labels(candidate, ub.txg);
        if !listed.read.is_empty() {
            return Ok(listed);
        }
        let gauge = DirtyGauge::default();
        let opts = &opts_for(candidate, opts);
        let (ub, config, tree) = open_state(rt, candidate, ub, &import, &gauge, opts).await?;
        if config.version != VERSION_FEATURES {
            return Ok(Unsupported::default());
        }
        let layers = Layers::new(rt, tree, ub.txg.next(), gauge, opts);
        let hooks = mos_hooks(&layers.core);
        let mos =
            Objset::open(layers.ctx.clone(), 0, ub.rootbp, ObjsetProps::mos(), hooks, false).await.at(|| "MOS")?;
        let directory = mos.hold(ObjectId(1)).await.at(|| "MOS directory")?;
        load_mappings(&mos, &layers.tree).await?;
        Unsupported::in_mos(&Features::load(&mos, &directory).await?).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_what_to_do() {
        let said = |read: &[&str], write: &[&str], readonly| {
            let mut u = Unsupported::default();
            u.add(FeatureZap::Read, read.iter().copied());
            u.add(FeatureZap::Write, write.iter().copied());
            u.check(readonly).err().map(|e| e.to_string()).unwrap_or_default()
        };
        assert_eq!(said(&["org.illumos:lz4_compress"], &["com.delphix:livelist"], false), "");
        for readonly in [false, true] {
            assert_eq!(
                said(&["com.delphix:redaction_bookmarks", "x:y", "com.delphix:draid2"], &["x:z"], readonly),
                "the pool uses x:y, com.delphix:draid2, which weir cannot read: import it with the software that wrote it, or a newer release of weir"
            );
        }
        assert_eq!(
            said(&["com.seagate:draid_failure_domains", "org.openzfs:raidz_expansion"], &[], true),
            "the pool uses com.seagate:draid_failure_domains, which weir cannot read: import it with the software that wrote it, or a newer release of weir"
        );
        assert_eq!(
            said(&["com.delphix:redaction_list_spill"], &["x:y", "x:z"], false),
            "the pool uses x:y, x:z, which weir cannot write yet: import it with -o readonly=on"
        );
        assert_eq!(said(&["com.delphix:redaction_list_spill"], &["x:y"], true), "");
    }
}
