//! Tests of the parts that need no pool: layouts, partition tables, the choice of a state, notices.
#![allow(clippy::unwrap_used)]

mod layout;
mod notices;
mod partition;
mod rewind;

use std::rc::Rc;

use bdev::{DevInfo, MemDev};
use sim::{Sim, SimConfig};

use crate::DevSpec;

/// A world without devices.
fn world() -> Sim {
    Sim::new(SimConfig::seeded(1))
}

/// An empty device in memory with sectors of `sector` bytes.
fn device(sim: &Sim, name: &str, size: u64, sector: u32) -> DevSpec {
    let plain = MemDev::new(&sim.rt(), size);
    let info = bdev::BlockDev::info(&plain).clone();
    let info = DevInfo { path: name.into(), logical_sector: sector, physical_sector: sector, ..info };
    DevSpec { dev: Rc::new(MemDev::with_info(&sim.rt(), info)), is_disk: false }
}
