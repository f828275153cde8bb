//! OpenZFS pools as a library (first steps).
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![allow(dead_code, reason = "the simulator and raw objects follow")]

mod call;
mod dataset;
mod device;
mod engine;
mod error;
mod events;
mod file;
mod fs;
mod inside;
pub mod local;
mod pool;

pub use call::{Call, block_on};
pub use dataset::{DatasetInfo, DatasetKind, Property, Source};
pub use device::{DEVICE_SIZE_MIN, Device, Layout, Vdev};
pub use engine::{DROP_WAIT, Engine};
pub use error::{Error, ErrorKind, Result};
pub use events::{Event, Events, FieldValue, QUEUE_MAX, Zevent};
pub use file::File;
pub use fs::{Change, DirEntry, FileKind, FileSystem, OpenOptions, Space, Stat};
pub use pool::{
    CreateOptions, DeviceStatus, FoundPool, Health, ImportOptions, MEMORY, Pool, PoolStatus, ScanPhase, ScanStatus,
};
