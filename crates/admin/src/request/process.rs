//! Requests about the process itself: its status, its end, its tunables.

use base::Result;
use serde::{Deserialize, Serialize};

use super::{Changes, Cx, Kind, Lane, Request};
use crate::view::{DaemonInfo, TunableView};

/// The requests of this file.
pub(super) const KINDS: &[Kind] = &[
    Kind::of::<Info>(),
    Kind::of::<Stop>(),
    Kind::of::<Tune>(),
    Kind::of::<TuneSet>(),
    Kind::of::<KstatNames>(),
    Kind::of::<Kstat>(),
];

/// `weir daemon status`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Info;

impl Request for Info {
    const NAME: &'static str = "Info";
    const TITLE: &'static str = "daemon status";
    type Reply = DaemonInfo;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn lane(&self) -> Lane {
        Lane::Status
    }
    fn waits_for_pools(&self) -> bool {
        false
    }
    fn run(self, cx: &Cx<'_>) -> Result<DaemonInfo> {
        Ok(cx.pools.keeper.info(cx.pools))
    }
}

/// `weir daemon stop`: unmount, sync, leave the pools imported for the next start. The server ends
/// the process when the reply is sent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stop {
    /// Also if something is in use.
    pub force: bool,
}

impl Request for Stop {
    const NAME: &'static str = "Stop";
    const TITLE: &'static str = "daemon stop";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn lane(&self) -> Lane {
        Lane::Control
    }
    fn waits_for_pools(&self) -> bool {
        !self.force
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        if self.force { Ok(()) } else { cx.pools.stop() }
    }
}

/// Tunables, of the daemon or of a pool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Tune {
    /// The pool; none: the daemon.
    pub pool: Option<String>,
}

impl Request for Tune {
    const NAME: &'static str = "Tune";
    const TITLE: &'static str = "tune";
    type Reply = Vec<TunableView>;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<Vec<TunableView>> {
        cx.pools.tunables_of(self.pool.as_deref())
    }
}

/// Set a tunable.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TuneSet {
    /// `[pool:]name=value`
    pub assignment: String,
    /// Also for later daemons.
    pub save: bool,
}

impl Request for TuneSet {
    const NAME: &'static str = "TuneSet";
    const TITLE: &'static str = "tune set";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        cx.pools.tune(&self.assignment, self.save)
    }
}

/// The names of all kstats.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KstatNames;

impl Request for KstatNames {
    const NAME: &'static str = "KstatNames";
    const TITLE: &'static str = "kstat";
    type Reply = Vec<String>;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<Vec<String>> {
        cx.pools.kstat_list()
    }
}

/// The text of a kstat.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Kstat {
    /// One of [`KstatNames`], or a path of the tree.
    pub name: String,
}

impl Request for Kstat {
    const NAME: &'static str = "Kstat";
    const TITLE: &'static str = "kstat";
    type Reply = String;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<String> {
        cx.pools.kstat_named(&self.name)
    }
}
