//! Active features that weir cannot keep correct: found before anything is written, named, and with
//! what to do about them.
//!
//! The labels list what is needed to read the MOS; a pool that lists more there than weir knows is
//! refused before its block pointers are followed, for they may mean something else. All other
//! features are counted in the MOS. A feature that is enabled and not active changes nothing on
//! disk and hinders nothing.

use base::{Error, ObjectId, Result, ResultExt, Txg};
use dmu::{Objset, ObjsetProps};
use dsl::features::Features;
use ondisk::feature::{FeatureId, FeatureZap, Release, Support, support_of};
use ondisk::label::{LabelConfig, VERSION_FEATURES};
use rt::Rt;
use vdev::DirtyGauge;

use crate::import::{ImportOpts, PoolCandidate, open_state};
use crate::pool::{EngineOpts, Pool, Stack, mos_hooks};
use crate::rewind;

/// A feature as the pool names it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct UnsupportedFeature {
    /// `ORIGIN:NAME`.
    pub guid: String,
    /// What the pool says about it; empty if it says nothing.
    pub description: String,
}

/// What keeps a pool from being read or written here.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Unsupported {
    /// Active features without which the pool cannot be read.
    pub read: Vec<UnsupportedFeature>,
    /// Active features with which it can be read, but not written.
    pub write: Vec<UnsupportedFeature>,
}

impl Unsupported {
    /// The limits that these features of one kind set.
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

    /// Those that the MOS counts, with descriptions.
    pub(crate) async fn in_mos(features: &Features) -> Result<Unsupported> {
        let mut out = Unsupported::default();
        for (zap, counts) in
            [(FeatureZap::Read, features.read_counts().await?), (FeatureZap::Write, features.write_counts().await?)]
        {
            out.add(zap, counts.iter().filter(|(_, n)| *n > 0).map(|(guid, _)| guid.as_str()));
        }
        for f in out.read.iter_mut().chain(&mut out.write) {
            // It is for people only: one that cannot be read is none.
            let text = features.description(&f.guid).await.ok().flatten().unwrap_or_default();
            f.description = text.chars().filter(|c| !c.is_control()).collect();
        }
        out.read.sort();
        out.write.sort();
        Ok(out)
    }

    /// Those that the label for a state lists: the newest that is not newer than it.
    fn in_labels(candidate: &PoolCandidate, txg: Txg) -> Unsupported {
        let labels = candidate.devices.iter().flat_map(|d| d.labels.configs.iter());
        let labels = labels.filter_map(|(_, c)| LabelConfig::from_nvlist(c.as_ref().ok()?).ok());
        let best = labels.filter(|c| c.pool_guid == candidate.guid).max_by_key(|c| (c.txg <= txg, c.txg));
        let mut out = Unsupported::default();
        let best = best.as_ref().unwrap_or(&candidate.config);
        out.add(FeatureZap::Read, best.features_for_read.iter().map(String::as_str));
        out
    }

    /// Refuses what cannot be done with the pool.
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

/// The first release of OpenZFS that has all of these; none if that is not known.
fn release_of(features: &[UnsupportedFeature]) -> Option<&'static str> {
    let releases: Option<Vec<Release>> =
        features.iter().map(|f| FeatureId::by_guid(&f.guid).map(|id| id.get().release)).collect();
    match releases?.into_iter().max()? {
        Release::OpenZfs22 => Some("2.2"),
        Release::OpenZfs23 => Some("2.3"),
        Release::OpenZfs24 => Some("2.4"),
        // Not released yet, or so old that weir should have it.
        _ => None,
    }
}

/// Refuses a state whose labels say that its MOS cannot be read.
pub(crate) fn check_labels(candidate: &PoolCandidate, txg: Txg) -> Result<()> {
    let readonly = true;
    Unsupported::in_labels(candidate, txg).check(readonly)
}

impl Pool {
    /// Which features keep a pool from being imported, or imported for writing; reads only. An
    /// error if its newest state cannot be opened for another reason.
    pub async fn unsupported(rt: &Rt, candidate: &PoolCandidate, opts: &EngineOpts) -> Result<Unsupported> {
        let import = ImportOpts { readonly: true, ..ImportOpts::default() };
        let ub = rewind::choices(candidate, false).into_iter().next();
        let ub = ub.ok_or_else(|| Error::corrupt("no device has an intact uberblock"))?;
        let listed = Unsupported::in_labels(candidate, ub.txg);
        if !listed.read.is_empty() {
            return Ok(listed);
        }
        let gauge = DirtyGauge::default();
        let (ub, config, tree) = open_state(rt, candidate, ub, &import, &gauge, opts).await?;
        if config.version != VERSION_FEATURES {
            return Ok(Unsupported::default());
        }
        let stack = Stack::new(rt, tree, ub.txg.next(), gauge, opts);
        let hooks = mos_hooks(&stack.core);
        let mos = Objset::open(stack.ctx.clone(), 0, ub.rootbp, ObjsetProps::mos(), hooks, false).await.at(|| "MOS")?;
        let directory = mos.hold(ObjectId(1)).await.at(|| "MOS directory")?;
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
                said(&["com.delphix:head_errlog", "x:y", "com.delphix:draid2"], &["x:z"], readonly),
                "the pool uses x:y, com.delphix:draid2, which weir cannot read: import it with the software that wrote it, or a newer release of weir"
            );
        }
        assert_eq!(
            said(&["org.openzfs:raidz_expansion", "com.klarasystems:dynamic_gang_header"], &[], true),
            "the pool uses org.openzfs:raidz_expansion, com.klarasystems:dynamic_gang_header, which weir cannot read: import it with OpenZFS 2.4 or newer"
        );
        assert_eq!(
            said(&["com.delphix:head_errlog"], &["x:y"], false),
            "the pool uses com.delphix:head_errlog, x:y, which weir cannot write yet: import it with -o readonly=on"
        );
        assert_eq!(said(&["com.delphix:head_errlog"], &["x:y"], true), "");
    }
}
