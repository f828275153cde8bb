//! Importing a pool that has the property `multihost` (MMP): only if no other host uses it (format
//! page 17 section 4).
//!
//! First the pool is watched: for as long as its heartbeat may take at most no uberblock may
//! change. Then, for an import that writes, it is claimed: the newest uberblock is written ten
//! times with a higher sequence, and must be the newest one an interval later. Of two hosts that do
//! so at the same time at most one goes on. At last the uberblock is written as it was: a crash in
//! between does no harm.

use std::rc::Rc;

use base::{Error, ErrorKind, Nanos, Result};
use ondisk::label::PoolState;
use ondisk::uberblock::Uberblock;
use ondisk::vdev_config::{VdevConfig, VdevKind};
use rt::Rt;
use vdev::labels::{read_labels, write_heartbeat};
use vdev::{Leaf, VdevTree};

use crate::commit::heartbeat::MultihostTunables;
use crate::open::import::PoolCandidate;

/// How often the uberblocks are looked at while a pool is watched.
const LOOK: Nanos = Nanos::from_secs(1);
/// Longest time that a pool is watched: no setting that makes sense asks for more.
const WATCH_MAX: Nanos = Nanos::from_secs(3600);
/// Rounds of a claim.
const CLAIMS: u32 = 10;
/// Largest sequence.
const SEQ_MAX: u64 = 0xffff;

/// Whether another host may use a pool with this newest uberblock: it has heartbeats, and it was
/// not exported by this host, or destroyed.
pub(crate) fn may_be_used(ub: &Uberblock, state: PoolState, hostid: Option<u64>, ours: u64) -> bool {
    let ended_here = state == PoolState::Exported && hostid == Some(ours);
    ub.has_heartbeat() && state != PoolState::Destroyed && !ended_here
}

/// How long a pool is watched at least.
pub(crate) fn watch_span(ub: &Uberblock, t: &MultihostTunables) -> Nanos {
    let ms = |n: u64| Nanos(n.saturating_mul(1_000_000));
    match (ub.mmp_interval_ms(), ub.mmp_fail_intervals()) {
        // It was suspended if it had no heartbeat for so long; twice that for clocks and queues.
        (Some(interval), Some(fail)) if fail > 0 => ms(interval.saturating_mul(fail).saturating_mul(2)),
        (interval, _) => {
            let own = Nanos(t.interval.0.saturating_mul(t.import_intervals)).max(Nanos::from_secs(1));
            let once = ms(interval.unwrap_or(t.interval_ms())).0.saturating_add(ub.mmp_delay);
            own.max(Nanos(once.saturating_mul(t.import_intervals)))
        }
    }
}

/// Devices that must take a claim: enough of each top-level vdev that a host that has others of
/// them finds one of these.
fn needed(top: &VdevConfig) -> usize {
    let is_out = |v: &VdevConfig| v.offline || v.faulted || v.removed;
    match top.kind {
        VdevKind::Raidz | VdevKind::Draid => top.nparity.unwrap_or(1) as usize + 1,
        VdevKind::Mirror => top.children.iter().filter(|c| !is_out(c)).count().max(1),
        VdevKind::Disk | VdevKind::File | VdevKind::Replacing | VdevKind::Spare => 1,
        _ => 0,
    }
}

/// The newest uberblock on the devices now.
async fn newest(candidate: &PoolCandidate) -> Option<Uberblock> {
    let mut all = Vec::new();
    for device in &candidate.devices {
        // One that does not answer has no newer uberblock for anybody.
        let Ok(labels) = read_labels(&*device.dev).await else { continue };
        all.extend(labels.uberblocks.into_iter().map(|found| found.ub));
    }
    ondisk::uberblock::best(all)
}

fn in_use(candidate: &PoolCandidate) -> Error {
    let host = candidate.hostname.as_deref().unwrap_or("unknown");
    let hostid = candidate.hostid.unwrap_or(0);
    let why = format!("the pool is in use by host '{host}' (hostid {hostid:x}): export it there first");
    Error::new(ErrorKind::Busy, why)
}

/// The check of one import.
pub(crate) struct Activity<'a> {
    pub rt: &'a Rt,
    pub candidate: &'a PoolCandidate,
    /// The newest uberblock when the devices were scanned.
    pub ub: &'a Uberblock,
    pub tunables: MultihostTunables,
}

impl Activity<'_> {
    /// Whether the check is needed. Error: `Denied` without a host id.
    pub(crate) fn is_due(&self) -> Result<bool> {
        let ours = self.rt.host_identity().hostid;
        if !may_be_used(self.ub, self.candidate.state, self.candidate.hostid, ours) {
            return Ok(false);
        }
        if ours == 0 {
            let why = "the pool has the property multihost on, and this host has no id: set one with zgenhostid";
            return Err(Error::new(ErrorKind::Denied, why));
        }
        Ok(true)
    }

    /// Watches the pool. Error: `Busy` if another host uses it.
    pub(crate) async fn watch(&self) -> Result<()> {
        let span = watch_span(self.ub, &self.tunables);
        if span > WATCH_MAX {
            let why = format!("the uberblock tells of heartbeats that may be {} seconds apart", span.0 / 1_000_000_000);
            return Err(Error::corrupt(why));
        }
        // Up to a quarter more, so that two hosts do not go in step.
        let until = Nanos(self.rt.now().0 + span.0 + self.rt.rng_below(span.0 / 4 + 1));
        while self.rt.now() < until {
            self.rt.sleep(LOOK).await;
            self.check(self.ub).await?;
        }
        Ok(())
    }

    async fn check(&self, ours: &Uberblock) -> Result<()> {
        match newest(self.candidate).await {
            Some(ub) if ub.rank() == ours.rank() => Ok(()),
            _ => Err(in_use(self.candidate)),
        }
    }

    /// Claims the pool, whose devices are those of `tree`. Errors: `Busy` if another host uses it;
    /// `Io` if too few devices can be written.
    pub(crate) async fn claim(&self, tree: &Rc<VdevTree>) -> Result<()> {
        let is_whole = self.ub.mmp_config & 7 == 7;
        if newest(self.candidate).await.as_ref() != Some(self.ub) || !is_whole {
            return Err(in_use(self.candidate));
        }
        let tops: Vec<_> = tree.tops.borrow().iter().filter(|t| !t.is_log && t.is_concrete()).cloned().collect();
        let needed: usize = tops.iter().map(|t| needed(&t.config())).sum();
        let leaves: Vec<(u8, Rc<Leaf>)> =
            tops.iter().flat_map(|t| t.open_leaves().into_iter().map(|l| (t.ashift, l))).collect();
        let claimed = self.rounds(&leaves, needed).await;
        let restored = write_all(&leaves, self.ub).await;
        claimed?;
        match restored >= needed {
            true => Ok(()),
            false => Err(too_few(restored, needed)),
        }
    }

    async fn rounds(&self, leaves: &[(u8, Rc<Leaf>)], needed: usize) -> Result<()> {
        let mut ub = self.ub.clone();
        let pause = Nanos(self.ub.mmp_interval_ms().unwrap_or(0) * 1_000_000);
        for _ in 0..CLAIMS {
            let old = ub.mmp_seq() % SEQ_MAX;
            ub.set_mmp_seq(old + 1 + self.rt.rng_below(SEQ_MAX - old));
            let written = write_all(leaves, &ub).await;
            if written < needed {
                return Err(too_few(written, needed));
            }
            self.rt.sleep(pause).await;
            self.check(&ub).await?;
        }
        Ok(())
    }
}

fn too_few(written: usize, needed: usize) -> Error {
    let why = format!(
        "the pool has the property multihost on, and {written} of its devices can be written where {needed} must be: bring the others back"
    );
    Error::new(ErrorKind::Io, why)
}

/// Writes the uberblock to the first label of these devices; returns on how many it is durable.
async fn write_all(leaves: &[(u8, Rc<Leaf>)], ub: &Uberblock) -> usize {
    let mut good = 0;
    for (ashift, leaf) in leaves {
        let durable = async {
            write_heartbeat(leaf, *ashift, 0, ub).await?;
            leaf.flush().await
        };
        good += usize::from(durable.await.is_ok());
    }
    good
}

#[cfg(test)]
mod tests {
    use base::{Guid, Txg};
    use ondisk::blkptr::Blkptr;

    use super::*;

    fn ub(delay: u64, config: Option<(u64, u64)>) -> Uberblock {
        let mut ub = Uberblock::new(Txg(9), 1, 2, Blkptr::hole());
        match config {
            Some((interval, fail)) => ub.set_multihost(delay, interval, 7, fail),
            None => ub.mmp_delay = delay,
        }
        ub
    }

    #[test]
    fn pools_are_watched_as_long_as_they_say() {
        let t = MultihostTunables::default();
        let secs = |n: u64| Nanos::from_secs(n);
        for (delay, config, want) in [
            // Ten intervals of a second, twice.
            (1, Some((1000, 10)), secs(20)),
            (1, Some((500, 4)), secs(4)),
            // Without a limit: twenty of an interval and a delay.
            (2_000_000_000, Some((1000, 0)), secs(60)),
            (1, Some((100, 0)), secs(20)),
            // From before uberblocks said more than the delay.
            (3_000_000_000, None, secs(80)),
        ] {
            let span = watch_span(&ub(delay, config), &t);
            assert!(span >= want && span.0 - want.0 < 1000, "{delay} {config:?}: {span:?}");
        }
        assert!(watch_span(&ub(u64::MAX, None), &t) > WATCH_MAX);
    }

    #[test]
    fn exported_here_or_destroyed_is_free() {
        use PoolState::*;
        let on = ub(1, Some((1000, 10)));
        for (state, hostid, want) in [
            (Active, Some(7), true),
            (Active, Some(8), true),
            (Active, None, true),
            (Exported, Some(7), false),
            (Exported, Some(8), true),
            (Destroyed, Some(8), false),
        ] {
            assert_eq!(may_be_used(&on, state, hostid, 7), want, "{state:?} {hostid:?}");
            assert!(!may_be_used(&ub(0, None), state, hostid, 7));
        }
    }

    #[test]
    fn claims_need_devices_of_every_vdev() {
        let mut mirror = VdevConfig::new(VdevKind::Mirror, 0, Guid(1));
        mirror.children = (0..3).map(|n| VdevConfig::new(VdevKind::File, n, Guid(n + 2))).collect();
        assert_eq!(needed(&mirror), 3);
        mirror.children[0].offline = true;
        mirror.children[1].faulted = true;
        assert_eq!(needed(&mirror), 1);
        mirror.children[2].removed = true;
        assert_eq!(needed(&mirror), 1);
        let mut raidz = VdevConfig::new(VdevKind::Raidz, 0, Guid(1));
        raidz.nparity = Some(2);
        assert_eq!(needed(&raidz), 3);
        assert_eq!(needed(&mirror.children[0]), 1);
        assert_eq!(needed(&VdevConfig::hole(1)), 0);
    }
}
