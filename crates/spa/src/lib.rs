//! Pools: create, import, export, and the loop that syncs txgs. Assembles the layers of the engine.
//!
//! Reading order: [`pool`] (what a pool is made of), `sync` (what happens to a txg), `create`, `import`, `explain` (devices without a pool), `store` and `config` (what the layers below ask for).

mod config;
mod create;
mod explain;
mod import;
mod pool;
mod store;
mod sync;

pub use create::{DEVICE_SIZE_MIN, DevSpec, PoolSpec, check_pool_name};
pub use explain::explain;
pub use import::{FoundDevice, ImportOpts, PoolCandidate, scan};
pub use ondisk::label::PoolState;
pub use pool::{EngineOpts, Pool};
