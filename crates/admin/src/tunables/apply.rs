//! Applies tunables: the values of each pool, and its share of memory.

use std::rc::Rc;

use arc::MemBroker;
use base::Result;
use spa::EngineOpts;

use crate::engine::PoolEngine;
use crate::pool_set::{PoolSet, lock};
use crate::view::TunableView;

impl PoolSet {
    /// All tunables with their values.
    pub fn tunables_in_effect(&self) -> Vec<(String, String)> {
        lock(&self.tunables).all()
    }

    /// Options of a pool (by name, empty if not known yet) when `more` pools are about to run
    /// beside the running ones.
    pub(crate) fn engine_opts(&self, name: &str, more: usize) -> EngineOpts {
        let pools = self.len() + more;
        // The others shrink before the new one grows.
        self.limit_all(pools);
        lock(&self.tunables).settings(name, pools).engine
    }

    /// The most that programs on a pool may be allowed.
    pub(crate) fn program_limits(&self, pool: &str) -> program::Limits {
        lock(&self.tunables).settings(pool, self.len()).program_limits
    }

    /// `vdev_file_physical_ashift` of a pool, if it is set.
    pub(crate) fn file_ashift(&self, pool: &str) -> Option<u8> {
        lock(&self.tunables).file_ashift(pool)
    }

    /// Limits the running pools to their share among `pools`.
    fn limit_all(&self, pools: usize) {
        for running in self.all_running() {
            let settings = lock(&self.tunables).settings(&running.name, pools);
            let _ = running.thread.with_pool(move |e| async move {
                e.pool.arc().set_limit(settings.engine.arc_max.min(e.pool.arc().limit()));
                e.tune(&settings);
                Ok(())
            });
        }
    }

    /// Tunables of a pool, or of the daemon.
    pub(crate) fn tunables_of(&self, pool: Option<&str>) -> Result<Vec<TunableView>> {
        if let Some(pool) = pool {
            self.need_running(pool)?;
        }
        let pools = self.len();
        Ok(lock(&self.tunables).views(pool, pools))
    }

    /// Sets a tunable (`[pool:]name=value`) for the running pools and those to come; with `save`
    /// for later daemons as well.
    pub(crate) fn tune(&self, assignment: &str, save: bool) -> Result<()> {
        // Applied only after it is checked and saved.
        let mut new = lock(&self.tunables).clone();
        new.set(assignment)?;
        if let Some((pool, _)) = assignment.split_once(':').filter(|(pool, _)| !save && !pool.contains('=')) {
            self.need_running(pool)?;
        }
        if save {
            self.keeper.save_tunable(assignment)?;
        }
        let arc = (new.arc_min(), new.arc_max());
        self.events.set_max(new.zevent_len_max());
        let changed = {
            let mut old = lock(&self.tunables);
            let changed = arc != (old.arc_min(), old.arc_max());
            *old = new;
            changed
        };
        if changed {
            *lock(&self.broker) = MemBroker::new(arc.0, arc.1);
        }
        self.balance();
        Ok(())
    }

    /// Splits the limits over the running pools by the demand of their caches.
    pub fn balance(&self) {
        let running = self.all_running();
        for r in &running {
            let look = |e: Rc<PoolEngine>| async move {
                e.follow_probes();
                Ok(e.pool.arc().demand())
            };
            let guid = r.guid();
            if let Ok(demand) = r.thread.with_pool(look) {
                lock(&self.broker).report(guid, demand);
            }
            if r.guid() != guid {
                lock(&self.broker).remove(guid);
            }
        }
        let limits = lock(&self.broker).limits();
        // Those that shrink go first, so that the sum never exceeds the limit.
        for shrink in [true, false] {
            for r in &running {
                let Some((_, limit)) = limits.iter().find(|(guid, _)| *guid == r.guid()).copied() else { continue };
                let settings = lock(&self.tunables).settings(&r.name, running.len());
                let _ = r.thread.with_pool(move |e| async move {
                    if (limit < e.pool.arc().limit()) == shrink {
                        e.pool.arc().set_limit(limit);
                    }
                    e.tune(&settings);
                    Ok(())
                });
            }
        }
    }
}
