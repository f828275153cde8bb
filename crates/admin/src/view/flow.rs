//! A pool's data flow at one moment: dirty data, throttle, txgs, cache, queues of devices, I/O of
//! datasets.
//!
//! `weir top` and the metrics endpoint use the same view; `weir top` computes rates from two views.

use base::Nanos;
use txg::TxgState;
use txg::throttle::{self, Load};

use crate::engine::PoolEngine;
use crate::view::{DatasetIo, FlowView, TxgSpan};

/// Txgs that are shown.
const TXGS: usize = 12;

impl PoolEngine {
    /// The picture.
    pub fn flow_view(&self) -> FlowView {
        let (txg, arc) = (self.pool.txg(), self.pool.arc().stats());
        let (t, stats, now) = (txg.tunables(), txg.stats(), self.pool.rt().now());
        let load = Load { dirty: stats.dirty, wrlog: 0, above: None, now };
        let history = txg.history();
        let span = |from: Nanos, to: Nanos| match (from.0, to.0) {
            (0, _) => 0,
            (_, 0) => now.since(from).0,
            _ => to.since(from).0,
        };
        let txgs = history[history.len().saturating_sub(TXGS)..].iter().map(|r| TxgSpan {
            txg: r.txg.0,
            state: match r.state {
                TxgState::Open => "open",
                TxgState::Quiescing => "quiescing",
                TxgState::Quiesced => "quiesced",
                TxgState::Syncing => "syncing",
                TxgState::Committed => "synced",
            }
            .into(),
            dirty: r.dirty,
            delayed: r.delayed,
            spans: [
                span(r.opened, r.closed),
                if r.closed.0 == 0 { 0 } else { span(r.closed, r.sync_start) },
                if r.sync_start.0 == 0 { 0 } else { span(r.sync_start, r.synced) },
            ],
        });
        let admin = txg.admin_stats();
        let mounted = self.mounts.counted().into_iter().map(|(name, io)| DatasetIo { name, io });
        let datasets = mounted.chain(self.volumes.list().into_iter().map(|v| DatasetIo { name: v.name, io: v.io }));
        FlowView {
            io: self.io_view(),
            throttle: t.policy.name().into(),
            dirty: stats.dirty,
            dirty_max: t.dirty_data_max,
            delay_from: t.delay_min(),
            sync_from: t.sync_min(),
            delay_ns: throttle::delay(&load, &t).0,
            delayed: stats.delayed,
            delayed_ns: stats.delayed_time.0,
            blocked: stats.blocked,
            blocked_now: stats.blocked_now,
            admin: admin.buckets.to_vec(),
            admin_ns: admin.time.0,
            synced: stats.synced,
            txgs: txgs.collect(),
            arc: [arc.size, arc.limit, arc.hits, arc.misses],
            datasets: datasets.collect(),
        }
    }
}
