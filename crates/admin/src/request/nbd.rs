//! Requests about servers of NBD. The process has the servers; the keeper is its interface.

use base::Result;
use serde::{Deserialize, Serialize};

use super::{Changes, Cx, Kind, Lane, Request};
use crate::view::NbdView;

/// The requests of this file.
pub(super) const KINDS: &[Kind] = &[Kind::of::<NbdStart>(), Kind::of::<NbdStop>(), Kind::of::<NbdList>()];

/// `weir nbd start`.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct NbdStart {
    /// Where: `unix:PATH` or `127.0.0.1:PORT`; none: a socket in the runtime folder.
    pub at: Option<String>,
    /// Volumes and snapshots of volumes.
    pub names: Vec<String>,
    /// All volumes of all pools, also those that come later.
    pub all: bool,
    /// Clients may not write.
    pub read_only: bool,
}

impl Request for NbdStart {
    const NAME: &'static str = "NbdStart";
    const TITLE: &'static str = "nbd start";
    type Reply = NbdView;
    fn changes(&self) -> Changes {
        Changes::Unrecorded
    }
    fn run(self, cx: &Cx<'_>) -> Result<NbdView> {
        cx.pools.keeper.nbd_start(cx.pools, self)
    }
}

/// `weir nbd stop`.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct NbdStop {
    /// Their addresses; none for all.
    pub at: Vec<String>,
    /// Also if clients are connected.
    pub force: bool,
}

impl Request for NbdStop {
    const NAME: &'static str = "NbdStop";
    const TITLE: &'static str = "nbd stop";
    type Reply = ();
    fn changes(&self) -> Changes {
        Changes::Unrecorded
    }
    fn lane(&self) -> Lane {
        if self.force { Lane::Control } else { Lane::Work }
    }
    fn waits_for_pools(&self) -> bool {
        false
    }
    fn run(self, cx: &Cx<'_>) -> Result<()> {
        cx.pools.keeper.nbd_stop(&self.at, self.force)
    }
}

/// `weir nbd list`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NbdList;

impl Request for NbdList {
    const NAME: &'static str = "NbdList";
    const TITLE: &'static str = "nbd list";
    type Reply = Vec<NbdView>;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn waits_for_pools(&self) -> bool {
        false
    }
    fn run(self, cx: &Cx<'_>) -> Result<Vec<NbdView>> {
        Ok(cx.pools.keeper.nbd_list())
    }
}
