//! Loading and unloading of metaslabs.
//!
//! A metaslab is loaded by the first allocation or claim that needs it; others that need it
//! meanwhile wait for the same load. A load that fails marks the metaslab as broken for good. Idle
//! metaslabs are unloaded at the end of a txg.

use std::rc::Rc;

use base::{Error, Result, ResultExt, Txg, VdevId};
use rt::sync::Notify;

use super::{Allocator, Inner};
use crate::metaslab::{Metaslab, State};
use crate::store::LoadedMap;

impl Inner {
    pub(super) fn finish_load(&mut self, vdev: VdevId, ms: u64, map: Result<Option<LoadedMap>>) -> Result<()> {
        let r = self.change(vdev, ms, |m| m.finish_load(map)).at(|| format!("metaslab {ms} of top-level vdev {vdev}"));
        if r.is_ok() {
            self.loaded.insert((vdev, ms));
        }
        r
    }

    fn is_active(&self, vdev: VdevId, ms: u64) -> bool {
        self.groups.iter().any(|g| g.vdev == vdev && g.active.iter().flatten().any(|&(m, _)| m == ms))
    }

    pub(super) fn memory(&self) -> usize {
        let one = |&(vdev, ms): &(VdevId, u64)| {
            let top = self.tops[vdev.0 as usize].as_ref();
            top.and_then(|t| t.metaslabs[ms as usize].loaded()).map_or(0, |l| l.free.footprint())
        };
        self.loaded.iter().map(one).sum()
    }

    /// Unloads metaslabs that were idle for the delay; above the memory limit all idle ones, the
    /// longest idle first.
    pub(super) fn unload_idle(&mut self, txg: Txg) {
        let (limit, delay) = (self.tunables.memory_limit, self.tunables.unload_delay);
        let mut memory = self.memory();
        let mut idle: Vec<(Txg, VdevId, u64)> = Vec::new();
        for (vdev, ms) in self.loaded.clone() {
            let active = self.is_active(vdev, ms);
            let m = self.ms(vdev, ms);
            if !active && !m.has_pending() {
                idle.push((m.used, vdev, ms));
            }
        }
        idle.sort();
        for (used, vdev, ms) in idle {
            if used.0 + delay >= txg.0 && memory <= limit {
                continue;
            }
            let freed = self.ms(vdev, ms).loaded().map_or(0, |l| l.free.footprint());
            if self.change(vdev, ms, Metaslab::unload) {
                self.loaded.remove(&(vdev, ms));
                memory = memory.saturating_sub(freed);
            }
        }
    }
}

impl Allocator {
    /// Loads a metaslab unless it is loaded. A metaslab that fails to load stays unloaded for good,
    /// and returns the same error again.
    pub async fn load(&self, vdev: VdevId, ms: u64) -> Result<()> {
        loop {
            let waits = {
                let mut inner = self.inner.borrow_mut();
                let m = inner.ms(vdev, ms);
                if let Some(e) = &m.broken {
                    return Err(e.clone());
                }
                match &m.state {
                    State::Loaded(_) => return Ok(()),
                    State::Loading(n) => Some(n.clone()),
                    State::Unloaded if m.object.is_none() => return inner.finish_load(vdev, ms, Ok(None)),
                    State::Unloaded => {
                        m.state = State::Loading(Rc::new(Notify::new()));
                        None
                    }
                }
            };
            if let Some(n) = waits {
                n.notified().await;
                continue;
            }
            let guard = LoadGuard { allocator: self, vdev, ms };
            let map = self.store.load(vdev, ms).await;
            return guard.finish(map);
        }
    }

    /// The metaslabs that failed to load, with their errors.
    pub fn broken_metaslabs(&self) -> Vec<(VdevId, u64, Error)> {
        let inner = self.inner.borrow();
        let mut out = Vec::new();
        for top in inner.tops.iter().flatten() {
            for (i, m) in top.metaslabs.iter().enumerate() {
                out.extend(m.broken.clone().map(|e| (top.top.id, i as u64, e)));
            }
        }
        out
    }

    /// Number of loaded metaslabs, and their memory in bytes.
    pub fn loaded(&self) -> (usize, usize) {
        let inner = self.inner.borrow();
        (inner.loaded.len(), inner.memory())
    }
}

/// Ends a load: with its result, or, if the loading future is dropped, by waking the waiters to
/// retry.
struct LoadGuard<'a> {
    allocator: &'a Allocator,
    vdev: VdevId,
    ms: u64,
}

impl LoadGuard<'_> {
    fn finish(self, map: Result<LoadedMap>) -> Result<()> {
        let notify = self.leave();
        let r = self.allocator.inner.borrow_mut().finish_load(self.vdev, self.ms, map.map(Some));
        notify.into_iter().for_each(|n| n.notify_all());
        r
    }

    /// Sets the state to unloaded; returns the waiters.
    fn leave(&self) -> Option<Rc<Notify>> {
        let mut inner = self.allocator.inner.borrow_mut();
        let m = inner.ms(self.vdev, self.ms);
        match std::mem::replace(&mut m.state, State::Unloaded) {
            State::Loading(n) => Some(n),
            other => {
                m.state = other;
                None
            }
        }
    }
}

impl Drop for LoadGuard<'_> {
    fn drop(&mut self) {
        self.leave().into_iter().for_each(|n| n.notify_all());
    }
}
