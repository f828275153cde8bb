//! What pools ask of the process that keeps them: a log, mounts, a memory that outlives it.

use std::rc::Rc;

use base::Result;
use ondisk::nvlist::NvList;
use serde::{Deserialize, Serialize};

use crate::fs::front_end::FrontEnd;
use crate::pool_set::PoolSet;
use crate::view::DaemonInfo;

/// How much a line of the log matters: syslog's levels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// Something is lost or does not work.
    Err = 3,
    /// Something will not work if nothing is done.
    Warning = 4,
    /// Something that an administrator wants to find later.
    Notice = 5,
}

/// A remembered pool.
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
    /// Writes to the log what an event of a pool says, if an administrator wants to find it.
    fn event(&self, class: &str, payload: &NvList);
    /// What makes file systems visible. Called on the thread that is to use it.
    fn front_end(&self) -> Rc<dyn FrontEnd>;
    /// The process as it is shown.
    fn info(&self, pools: &PoolSet) -> DaemonInfo;

    /// The pools that are remembered.
    fn remembered(&self) -> Vec<KnownPool>;
    /// Paths at which devices were seen.
    fn remembered_paths(&self) -> Vec<String>;
    /// Remembers a pool in place of what was known of the same guid.
    fn remember(&self, pool: KnownPool) -> Result<()>;
    /// The devices of a remembered pool are these now.
    fn set_devices(&self, guid: u64, devices: Vec<String>) -> Result<()>;
    /// The pool is not imported any more.
    fn exported(&self, guid: u64) -> Result<()>;
    /// The pool does not exist any more.
    fn forget(&self, guid: u64) -> Result<()>;
    /// Keeps a tunable (`[pool:]name=value`) for later processes.
    fn save_tunable(&self, assignment: &str) -> Result<()>;
}
