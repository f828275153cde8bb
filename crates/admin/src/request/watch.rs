//! Requests that watch pools: counters, events, traces.

use base::Result;
use serde::{Deserialize, Serialize};

use super::{Changes, Cx, Direction, Kind, Report, Request, Rights};
use crate::view::{EventView, FlowView, IoView, PoolLatency, TraceView};

/// The requests of this file.
pub(super) const KINDS: &[Kind] = &[
    Kind::of::<DeviceLatency>(),
    Kind::of::<PoolIo>(),
    Kind::of::<PoolFlow>(),
    Kind::of::<TraceStart>(),
    Kind::of::<TraceTake>(),
    Kind::of::<Events>(),
    Kind::of::<EventsClear>(),
];

/// Latencies of a pool's devices.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceLatency {
    /// The pool.
    pub pool: String,
}

impl Request for DeviceLatency {
    const NAME: &'static str = "DeviceLatency";
    const TITLE: &'static str = "zpool iostat -w";
    const RIGHTS: Rights = Rights::Anyone;
    type Reply = PoolLatency;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<PoolLatency> {
        cx.on_pool(&self.pool, |e| async move { Ok(e.latency()) })
    }
}

/// Counters of the devices of these pools (all if empty).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolIo {
    /// Their names.
    pub names: Vec<String>,
}

impl Request for PoolIo {
    const NAME: &'static str = "PoolIo";
    const TITLE: &'static str = "zpool iostat";
    const RIGHTS: Rights = Rights::Anyone;
    type Reply = Vec<IoView>;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<Vec<IoView>> {
        let chosen = cx.pools.chosen(&self.names)?;
        chosen.iter().map(|running| cx.on(running, |e| async move { Ok(e.io_view()) })).collect()
    }
}

/// The data flow through these pools (all if empty).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolFlow {
    /// Their names.
    pub names: Vec<String>,
}

impl Request for PoolFlow {
    const NAME: &'static str = "PoolFlow";
    const TITLE: &'static str = "top";
    type Reply = Vec<FlowView>;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<Vec<FlowView>> {
        cx.pools.flows(&self.names)
    }
}

/// Begin to count trace events of a pool. The answer is the number of the session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TraceStart {
    /// The pool.
    pub pool: String,
    /// `dirty`, `txg`, `io`, `queue`, `delay`, `zil`, `turns` or `all`.
    pub what: String,
}

impl Request for TraceStart {
    const NAME: &'static str = "TraceStart";
    const TITLE: &'static str = "trace";
    type Reply = u64;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<u64> {
        let TraceStart { pool, what } = self;
        cx.on_pool(&pool, move |e| async move { e.traces.start(e.pool.rt(), &what) })
    }
}

/// The counts since the last request. A session without a request for a minute ends.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TraceTake {
    /// The pool.
    pub pool: String,
    /// The number.
    pub id: u64,
    /// Also end the session.
    pub end: bool,
}

impl Request for TraceTake {
    const NAME: &'static str = "TraceTake";
    const TITLE: &'static str = "trace";
    type Reply = TraceView;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<TraceView> {
        let TraceTake { pool, id, end } = self;
        cx.on_pool(&pool, move |e| async move {
            let mut view = e.traces.take(e.pool.rt().now(), id, end)?;
            let txg = e.pool.txg().tunables();
            (view.log_blocks.limit, view.log_blocks.txg_ns) = (txg.wrlog_data_max, txg.txg_timeout.0);
            view.slow_tasks = crate::pool::trace::slow_tasks(e.pool.rt());
            Ok(view)
        })
    }
}

/// `zpool events`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Events {
    /// Of this pool; none: of all.
    pub pool: Option<String>,
    /// Go on with those that come.
    pub follow: bool,
}

impl Request for Events {
    const NAME: &'static str = "Events";
    const TITLE: &'static str = "zpool events";
    const STREAM: Option<Direction> = Some(Direction::ToClient);
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let stream = cx.stream()?;
        // It may end later: the events of its end follow.
        if let Some(pool) = &self.pool {
            cx.pools.need_running(pool)?;
        }
        stream.begin()?;
        let (mut last, mut wait) = (0, false);
        while !stream.is_closed() {
            let events = cx.pools.events.after(last, self.pool.as_deref(), wait);
            events.events.iter().try_for_each(|e| stream.item(e))?;
            (last, wait) = (events.last, !events.more);
            if wait && !self.follow {
                break;
            }
        }
        Ok(())
    }
}

impl Report for Events {
    type Item = EventView;
}

/// `zpool events -c`: drop all events. The answer is their number.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EventsClear;

impl Request for EventsClear {
    const NAME: &'static str = "EventsClear";
    const TITLE: &'static str = "zpool events -c";
    type Reply = u64;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<u64> {
        Ok(cx.pools.events.clear())
    }
}
