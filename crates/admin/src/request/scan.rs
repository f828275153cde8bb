//! Requests about scrubs, resilvers and other work in the background.

use base::Result;
use serde::{Deserialize, Serialize};

use super::{Changes, Cx, Kind, Request, Rights};
use crate::view::ActivityView;

/// The requests of this file.
pub(super) const KINDS: &[Kind] =
    &[Kind::of::<PoolScrub>(), Kind::of::<PoolResilver>(), Kind::of::<PoolWaitScan>(), Kind::of::<PoolActivity>()];

/// The action of `zpool scrub`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ScrubAction {
    /// Begin, or go on after a pause.
    Start,
    /// Pause.
    Pause,
    /// Stop.
    Stop,
}

/// The blocks of `zpool scrub`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub enum ScrubOf {
    /// All.
    #[default]
    All,
    /// `-e`: those of the error log.
    Errors,
    /// `-C`: those that no scrub has read yet.
    SinceLast,
    /// `-S`, `-E`: those written between two times, in seconds since 1970.
    Between {
        /// `-S`
        from: Option<u64>,
        /// `-E`
        until: Option<u64>,
    },
}

/// `zpool scrub`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolScrub {
    /// The pools.
    pub pools: Vec<String>,
    /// The action.
    pub action: ScrubAction,
    /// Answer when the scrub has ended.
    pub wait: bool,
    /// The blocks of one that begins.
    #[serde(default)]
    pub of: ScrubOf,
}

impl Request for PoolScrub {
    const NAME: &'static str = "PoolScrub";
    const TITLE: &'static str = "zpool scrub";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::pools_of(&self.pools)
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        let PoolScrub { pools, action, wait, of } = self;
        if let [pool] = pools.as_slice() {
            return cx.on_pool(pool, move |e| async move {
                e.scrub(action, of).await?;
                if wait { e.pool.scan().wait().await } else { Ok(()) }
            });
        }
        // All begin before the first is waited for.
        let mut begun = Vec::new();
        let mut errors = Vec::new();
        for pool in &pools {
            match cx.on_pool(pool, move |e| async move { e.scrub(action, of).await }) {
                Ok(()) => begun.push(pool),
                Err(e) => errors.push(e),
            }
        }
        for pool in begun.into_iter().filter(|_| wait) {
            cx.on_pool(pool, |e| async move { e.pool.scan().wait().await })?;
        }
        crate::pool_set::join_errors(errors)
    }
}

/// `zpool resilver`: restart the resilver.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolResilver {
    /// The pools.
    pub pools: Vec<String>,
}

impl Request for PoolResilver {
    const NAME: &'static str = "PoolResilver";
    const TITLE: &'static str = "zpool resilver";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::pools_of(&self.pools)
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        cx.on_pools(&self.pools, |e| async move { e.resilver() })
    }
}

/// Wait until no scrub and no resilver runs (`zpool wait -t scrub,resilver`).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolWaitScan {
    /// The pool.
    pub pool: String,
}

impl Request for PoolWaitScan {
    const NAME: &'static str = "PoolWaitScan";
    const TITLE: &'static str = "zpool wait";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::Unrecorded
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        cx.on_pool(&self.pool, |e| async move { e.pool.scan().wait().await })
    }
}

/// The background work of a pool (`zpool wait`), one view for each kind of work.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolActivity {
    /// The pool.
    pub pool: String,
}

impl Request for PoolActivity {
    const NAME: &'static str = "PoolActivity";
    const TITLE: &'static str = "zpool wait";
    const RIGHTS: Rights = Rights::Anyone;
    type Reply = Vec<ActivityView>;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<Vec<ActivityView>> {
        cx.on_pool(&self.pool, |e| async move { Ok(e.activity()) })
    }
}
