//! OpenZFS pools as a library (first steps).
#![forbid(unsafe_code)]
#![deny(missing_docs)]

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
mod objects;
mod pool;
pub mod sim;

pub use call::{Call, block_on};
pub use dataset::{DatasetInfo, DatasetKind, Property, Source};
pub use device::{DEVICE_SIZE_MIN, Device, Layout, Vdev};
pub use engine::{DROP_WAIT, Engine};
pub use error::{Error, ErrorKind, Result};
pub use events::{Event, Events, FieldValue, QUEUE_MAX, Zevent};
pub use file::File;
pub use fs::{Change, DirEntry, FileKind, FileSystem, OpenOptions, Space, Stat};
pub use objects::{
    BATCH_BYTES_MAX, BATCH_CHANGES_MAX, Batch, Committed, Entry, NAME_MAX, Object, ObjectInfo, Objects, VALUE_MAX,
    Value,
};
pub use pool::{
    CreateOptions, DeviceStatus, FoundPool, Health, ImportOptions, MEMORY, Pool, PoolStatus, ScanPhase, ScanStatus,
};
