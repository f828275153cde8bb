//! Modelled disks.
//!
//! A [`SimDisk`] has three independent parts: the *medium* ([`DiskImage`]: sparse bytes, cheap to
//! clone), the *durability* of writes (which bytes a power cut may lose) and the *timing* of
//! operations ([`Model`]). Faults sit in front of all three.

mod disk;
mod durability;
mod fault;
mod ftl;
mod hdd;
mod image;
mod log;
mod model;
mod ssd;
mod truncated;

pub use disk::{Counters, DiskConfig, SimDisk};
pub use durability::CutStyle;
pub use fault::{Fault, FaultId, OpKind};
pub use hdd::HddModel;
pub use image::DiskImage;
pub use log::{DiskLog, Replay};
pub use model::{HostCpu, HostLatency, Model};
pub use ssd::SsdModel;
