//! Settings that change while the pool runs.

use crate::pool::{EngineOpts, Pool};

impl Pool {
    /// Takes over the throttle's and the queues' settings, as far as they differ. The cache's limit is the broker's, see [`arc::Arc::set_limit`].
    pub fn tune(&self, opts: &EngineOpts) {
        if self.txg().tunables() != opts.txg {
            self.txg().set_tunables(opts.txg);
        }
        for leaf in self.tree().leaves() {
            if leaf.tunables() != opts.queue {
                leaf.set_tunables(opts.queue.clone());
            }
        }
    }
}
