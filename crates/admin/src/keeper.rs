//! The interface of pools to their process: a log, mounts, and a list of pools that outlives it.

use std::rc::Rc;
use std::sync::Arc;

use base::Result;
use ondisk::nvlist::NvList;
use serde::{Deserialize, Serialize};

use crate::fs::front_end::FrontEnd;
use crate::kstat::messages::Messages;
use crate::pool_set::PoolSet;
use crate::request::NbdStart;
use crate::view::{DaemonInfo, NbdView};

/// The level of a line in the log: syslog's levels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// Something is lost or does not work.
    Err = 3,
    /// Something will not work if nothing is done.
    Warning = 4,
    /// Information that administrators need later.
    Notice = 5,
}

/// A pool in the keeper's list.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct KnownPool {
    /// Its name.
    pub name: String,
    /// Its guid.
    pub guid: u64,
    /// Paths of its devices.
    pub devices: Vec<String>,
    /// It is imported, or was when the daemon ended.
    pub imported: bool,
    /// `altroot`
    #[serde(default)]
    pub altroot: Option<String>,
    /// It was imported read-only.
    #[serde(default)]
    pub readonly: bool,
}

/// The process that keeps the pools.
pub trait Keeper: Send + Sync {
    /// Writes a line to the log.
    fn say(&self, level: Level, text: &str);
    /// The newest lines of the log, and others that are not in it.
    fn messages(&self) -> &Messages;
    /// Logs an event of a pool, if administrators need it.
    fn event(&self, class: &str, payload: &NvList);
    /// The front end that mounts file systems. Called on the thread that uses it.
    fn front_end(&self) -> Rc<dyn FrontEnd>;
    /// The status of the process.
    fn info(&self, pools: &PoolSet) -> DaemonInfo;

    /// Begins to serve volumes over NBD.
    fn nbd_start(&self, pools: &Arc<PoolSet>, what: NbdStart) -> Result<NbdView>;
    /// Ends the servers at these addresses, or all if there are none. `force`: also those with
    /// clients.
    fn nbd_stop(&self, at: &[String], force: bool) -> Result<()>;
    /// The servers, in order of address.
    fn nbd_list(&self) -> Vec<NbdView>;

    /// The list of pools.
    fn remembered(&self) -> Vec<KnownPool>;
    /// Paths of all known devices.
    fn remembered_paths(&self) -> Vec<String>;
    /// Adds a pool, or replaces the entry with its guid.
    fn remember(&self, pool: KnownPool) -> Result<()>;
    /// Sets the devices of a pool in the list.
    fn set_devices(&self, guid: u64, devices: Vec<String>) -> Result<()>;
    /// The pool `old` has the guid `new` now.
    fn change_guid(&self, old: u64, new: u64) -> Result<()>;
    /// The pool is not imported any more.
    fn exported(&self, guid: u64) -> Result<()>;
    /// The pool does not exist any more.
    fn forget(&self, guid: u64) -> Result<()>;
    /// Saves a tunable (`[pool:]name=value`) for later processes.
    fn save_tunable(&self, assignment: &str) -> Result<()>;
}
