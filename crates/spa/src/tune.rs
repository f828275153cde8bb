//! Changes of tunables while the pool runs.

use zio::ZioOpts;

use crate::pool::{EngineOpts, Pool};

impl Pool {
    /// Applies changed tunables of the throttle, the queues, the allocator, the block layer and
    /// scans. The broker sets the cache's limit, see [`arc::Arc::set_limit`].
    pub fn tune(&self, opts: &EngineOpts) {
        if self.txg().tunables() != opts.txg {
            self.txg().set_tunables(opts.txg);
        }
        self.alloc.set_tunables(&opts.alloc);
        self.set_scan_tunables(opts.scan, opts.arc_max);
        // Keep the pool's salt.
        let zio = self.ctx.zio();
        zio.set_opts(ZioOpts { gang_above: opts.zio.gang_above, ..zio.opts() });
        for leaf in self.tree().leaves() {
            if leaf.tunables() != opts.queue {
                leaf.set_tunables(opts.queue.clone());
            }
        }
    }
}
