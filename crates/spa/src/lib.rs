//! Pools: create, import, export, and the loop that syncs txgs. Assembles the layers of the engine.
//!
//! Reading order: [`pool`] (the parts of a pool); `commit` (the sync of a txg, and what it keeps in
//! the MOS: space maps, dedup tables, the checkpoint, history, configuration); `open` (new and
//! existing pools: create, import, rewind, claimed intent logs); `devices` (how the tree changes:
//! add, attach, remove, expand; devices that fail and return; dirty time logs; trim and
//! initialize); `scan` (scrub and resilver); `zevent` (events); `tune` (tunables).

mod commit;
mod devices;
mod open;
mod pool;
mod scan;
mod tune;
mod zevent;

pub use devices::DeviceDoor;
pub use devices::attach::NewDevice;
pub use devices::aux::AuxDevices;
pub use devices::layout::{Bias, DEVICE_SIZE_MIN, DevSpec, Group, GroupKind, Layout};
pub use devices::leaf_work::{LeafWork, WorkCommand, WorkKind, WorkState};
pub use ondisk::label::PoolState;
pub use open::create::{PoolSpec, check_pool_name};
pub use open::explain::explain;
pub use open::import::{FoundDevice, ImportOpts, PoolCandidate, is_candidate, scan};
pub use open::rewind::Rewind;
pub use open::unsupported::{Unsupported, UnsupportedFeature};
pub use pool::{EngineOpts, Pool};
pub use scan::{ScanStatus, ScanTunables};
pub use zevent::EventSink;
