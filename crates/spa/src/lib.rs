//! Pools: create, import, export, and the loop that syncs txgs. Assembles the layers of the engine.
//!
//! Reading order: [`pool`] (what a pool is made of), `sync` (what happens to a txg), `create` and `layout` (new pools), `import`, `assemble` and `removed` (known ones), `dtl` (what devices missed), `aux` (spares, caches), `state` (devices taken out and back), `scan` (scrub and resilver), `explain` and `partition` (devices without a pool), `rewind` (older states), `claim` (intent logs), `store`, `logs`, `ddt`, `checkpoint` and `config` (what the layers below ask for).

mod assemble;
mod aux;
mod checkpoint;
mod claim;
mod config;
mod create;
mod ddt;
mod dtl;
mod explain;
mod import;
mod layout;
mod logs;
mod partition;
mod pool;
mod removed;
mod rewind;
mod scan;
mod state;
mod store;
mod sync;

pub use aux::AuxDevices;
pub use create::{PoolSpec, check_pool_name};
pub use explain::explain;
pub use import::{FoundDevice, ImportOpts, PoolCandidate, is_candidate, scan};
pub use layout::{Bias, DEVICE_SIZE_MIN, DevSpec, Group, GroupKind, Layout};
pub use ondisk::label::PoolState;
pub use pool::{EngineOpts, Pool};
pub use scan::ScanStatus;
