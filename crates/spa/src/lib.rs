//! Pools: create, import, export, and the loop that syncs txgs. Assembles the layers of the engine.
//!
//! Reading order: [`pool`] (the parts of a pool), `sync` (the sync of a txg), `create` and `layout`
//! (new pools), `import`, `assemble` and `removed` (existing pools), `dtl` (dirty time logs), `aux`
//! (spares, caches), `state` (offline, online, clear), `devices` (how the tree changes), `add`,
//! `attach`, `remove`, `expand` (the changes), `presence` (devices that fail and return),
//! `leaf_work` (trim, initialize), `scan` (scrub and resilver), `explain` and `partition` (devices
//! without a pool), `rewind` (older states), `claim` (intent logs), `space_map`, `store`, `logs`,
//! `ddt`, `checkpoint`, `history` and `config` (objects of the MOS).

mod add;
mod assemble;
mod attach;
mod aux;
mod checkpoint;
mod claim;
mod config;
mod create;
mod ddt;
mod devices;
mod dtl;
mod expand;
mod explain;
mod history;
mod import;
mod layout;
mod leaf_work;
mod logs;
mod partition;
mod pool;
mod presence;
mod remove;
mod removed;
mod rewind;
mod scan;
mod space_map;
mod state;
mod store;
mod sync;
mod tune;
mod unsupported;
mod zevent;

pub use attach::NewDevice;
pub use aux::AuxDevices;
pub use create::{PoolSpec, check_pool_name};
pub use devices::DeviceDoor;
pub use explain::explain;
pub use import::{FoundDevice, ImportOpts, PoolCandidate, is_candidate, scan};
pub use layout::{Bias, DEVICE_SIZE_MIN, DevSpec, Group, GroupKind, Layout};
pub use leaf_work::{LeafWork, WorkCommand, WorkKind, WorkState};
pub use ondisk::label::PoolState;
pub use pool::{EngineOpts, Pool};
pub use rewind::Rewind;
pub use scan::{ScanStatus, ScanTunables};
pub use unsupported::{Unsupported, UnsupportedFeature};
pub use zevent::EventSink;
