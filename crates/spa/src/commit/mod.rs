//! The commit of a txg: the sync loop's work, and the objects of the MOS that it keeps.
//!
//! [`Commit`] owns what only the sync of a txg changes: the uberblock, the list of deferred frees,
//! log space maps that are still to be flushed. It calls the others in the order of a txg (`sync`):
//! devices for their queued changes and dirty time logs, the configuration, the history, the
//! checkpoint, the datasets, the scan, the dedup tables, the block reference table, the metaslabs.

pub(crate) mod brt;
pub(crate) mod checkpoint;
pub(crate) mod config;
pub(crate) mod ddt;
pub(crate) mod heartbeat;
pub(crate) mod history;
pub(crate) mod logs;
pub(crate) mod removed;
pub(crate) mod space_map;
pub(crate) mod store;
mod sync;
pub(crate) mod time_log;

use std::cell::RefCell;
use std::rc::Rc;

use base::ObjectId;
use dsl::space::PoolSpace;
use metaslab::ClassKind;
use ondisk::uberblock::Uberblock;

use crate::devices::Devices;
use crate::scan::Scan;
use crate::stack::Stack;
use crate::zevent::Events;
use brt::Brt;
use checkpoint::Checkpoint;
use config::Config;
use ddt::Ddt;
use heartbeat::Heartbeat;
use history::History;
use logs::Logs;
use time_log::TimeLog;

/// The state on disk, and the objects that a txg writes.
pub(crate) struct Commit {
    stack: Rc<Stack>,
    config: Rc<Config>,
    events: Rc<Events>,
    checkpoint: Rc<Checkpoint>,
    history: Rc<History>,
    ddt: Rc<Ddt>,
    brt: Rc<Brt>,
    scan: Rc<Scan>,
    devices: Rc<Devices>,
    heartbeat: Rc<Heartbeat>,
    /// Log space maps of the previous writer, until the first txg has flushed them to the
    /// metaslabs.
    logs: RefCell<Logs>,
    /// The list of deferred frees.
    sync_bplist: ObjectId,
    uberblock: RefCell<Uberblock>,
    times: TimeLog,
}

/// The objects that a txg writes.
pub(crate) struct Parts<'a> {
    pub stack: &'a Rc<Stack>,
    pub config: &'a Rc<Config>,
    pub events: &'a Rc<Events>,
    pub checkpoint: &'a Rc<Checkpoint>,
    pub history: &'a Rc<History>,
    pub ddt: &'a Rc<Ddt>,
    pub brt: &'a Rc<Brt>,
    pub scan: &'a Rc<Scan>,
    pub devices: &'a Rc<Devices>,
    pub heartbeat: &'a Rc<Heartbeat>,
}

impl Commit {
    /// The commit of a pool whose state on disk is that of `uberblock`.
    pub(crate) fn new(parts: &Parts<'_>, logs: Logs, sync_bplist: ObjectId, uberblock: Uberblock) -> Commit {
        Commit {
            stack: parts.stack.clone(),
            config: parts.config.clone(),
            events: parts.events.clone(),
            checkpoint: parts.checkpoint.clone(),
            history: parts.history.clone(),
            ddt: parts.ddt.clone(),
            brt: parts.brt.clone(),
            scan: parts.scan.clone(),
            devices: parts.devices.clone(),
            heartbeat: parts.heartbeat.clone(),
            logs: RefCell::new(logs),
            sync_bplist,
            uberblock: RefCell::new(uberblock),
            times: TimeLog::default(),
        }
    }

    /// The uberblock on disk.
    pub(crate) fn uberblock(&self) -> Uberblock {
        self.uberblock.borrow().clone()
    }

    /// The dedup tables.
    pub(crate) fn ddt(&self) -> &Ddt {
        &self.ddt
    }

    /// The block reference tables.
    pub(crate) fn brt(&self) -> &Brt {
        &self.brt
    }

    /// Bytes of cloned blocks, and bytes that cloning saves.
    pub(crate) fn cloned(&self) -> (u64, u64) {
        self.brt.figures()
    }

    /// Space of the vdevs that get no new blocks, for datasets: it is not part of the pool
    /// (`spa_nonallocating_dspace`).
    fn not_allocating(&self) -> u64 {
        let tops = self.stack.tree.tops.borrow();
        // Most pools have none, and this is asked in every txg.
        if !tops.iter().any(|top| top.config_ref().non_allocating) {
            return 0;
        }
        let spaces = self.stack.alloc.top_spaces();
        let normal = spaces.iter().filter(|s| s.class == ClassKind::Normal);
        let passive = normal.filter_map(|s| Some((s, tops.get(s.vdev.0 as usize)?)));
        passive.filter(|(_, top)| top.config_ref().non_allocating).map(|(s, top)| top.dsize(s.total)).sum()
    }

    /// Updates the size of the pool that datasets see.
    pub(crate) fn push_space(&self, deferred_bpobj: u64) {
        let space = self.stack.alloc.space(ClassKind::Normal);
        self.stack.dsl().set_space(PoolSpace {
            dspace: space.total.saturating_sub(self.not_allocating()),
            shared_saved: self.ddt.saved().saturating_add(self.brt.figures().1),
            embedded_log: self.stack.alloc.space(ClassKind::EmbeddedLog).total,
            checkpoint: self.checkpoint.held(&self.stack.tree),
            deferred_bpobj,
            deferred: space.deferred,
            alloc: space.alloc,
            ..PoolSpace::default()
        });
    }
}
