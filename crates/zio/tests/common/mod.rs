//! A pool of memory devices without anything above `zio`.
#![allow(dead_code, clippy::unwrap_used)]

use std::rc::Rc;

use base::{Guid, ObjectId, Result, VdevId};
use bdev::{BlockDev, MemDev};
use metaslab::{AllocTunables, Allocator, ClassKind, LoadedMap, MsSummary, SpaceMapStore};
use ondisk::vdev_config::{VdevConfig, VdevKind as ConfigKind};
use rt::{LocalBoxFuture, Rt};
use sim::{Sim, SimConfig};
use vdev::{DirtyGauge, Leaf, QueueTunables, Top, TopSpec, VdevKind, VdevTree};
use zio::{Zio, ZioOpts};

/// No metaslab was ever used, so none is loaded.
struct NoMaps;

impl SpaceMapStore for NoMaps {
    fn load<'a>(&'a self, _: VdevId, _: u64) -> LocalBoxFuture<'a, Result<LoadedMap>> {
        unreachable!("there are no space maps")
    }
}

pub struct Lab {
    pub sim: Sim,
    pub rt: Rt,
    pub devs: Vec<Rc<MemDev>>,
    pub tree: Rc<VdevTree>,
    pub alloc: Rc<Allocator>,
    pub zio: Zio,
}

/// Where the allocatable space of a device begins.
pub const DATA_START: u64 = 0x40_0000;

impl Lab {
    /// `count` devices of `size` allocatable bytes each.
    pub fn new(count: u32, size: u64, ashift: u8) -> Lab {
        Lab::with(SimConfig::seeded(1), count, size, ashift)
    }

    pub fn with(config: SimConfig, count: u32, size: u64, ashift: u8) -> Lab {
        let mut devs = Vec::new();
        let mut lab = Lab::over(config, count, size, ashift, |sim, bytes| {
            let dev = Rc::new(MemDev::new(&sim.rt(), bytes));
            devs.push(dev.clone());
            dev
        });
        lab.devs = devs;
        lab
    }

    /// The same over any devices; `make` is given their size.
    pub fn over(
        config: SimConfig,
        count: u32,
        size: u64,
        ashift: u8,
        mut make: impl FnMut(&Sim, u64) -> Rc<dyn BlockDev>,
    ) -> Lab {
        let sim = Sim::new(config);
        let rt = sim.rt();
        let devs: Vec<Rc<dyn BlockDev>> = (0..count).map(|_| make(&sim, size + DATA_START + (1 << 20))).collect();
        let top = |(i, dev): (u32, &Rc<dyn BlockDev>)| {
            let guid = Guid(u64::from(i) + 100);
            let leaf =
                Leaf::new(&rt, guid, format!("mem{i}"), dev.clone(), DirtyGauge::default(), QueueTunables::default());
            Top::new(TopSpec {
                id: VdevId(i),
                ashift,
                asize: size,
                ms_shift: size.ilog2() as u8 - 3,
                ms_array: ObjectId(0),
                is_log: false,
                kind: VdevKind::Leaf(leaf),
                config: VdevConfig::new(ConfigKind::File, u64::from(i), guid),
            })
        };
        let tops: Vec<Rc<Top>> = (0..count).zip(&devs).map(top).collect();
        let alloc = Allocator::new(Rc::new(NoMaps), AllocTunables::default());
        for t in &tops {
            alloc.add_top(t.clone(), ClassKind::Normal, vec![MsSummary::default(); t.ms_count() as usize]).unwrap();
        }
        let tree = VdevTree::new(Guid(1), tops);
        let zio = Zio::new(rt.clone(), tree.clone(), alloc.clone(), ZioOpts::default());
        Lab { sim, rt, devs: Vec::new(), tree, alloc, zio }
    }

    /// Spoils one byte of a copy.
    pub fn spoil(&self, dva: ondisk::blkptr::Dva, at: u64) {
        let dev = &self.devs[dva.vdev().0 as usize];
        let mut b = [0u8];
        dev.peek(DATA_START + dva.offset() + at, &mut b);
        dev.poke(DATA_START + dva.offset() + at, &[b[0] ^ 0x55]);
    }
}

/// Data that compresses to about a third.
pub fn text(seed: u64, len: usize) -> bdev::Bytes {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(len + 16);
    while out.len() < len {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        out.extend_from_slice(&(x >> 40).to_le_bytes()[..3]);
        out.extend_from_slice(b"the quick fox");
    }
    out.truncate(len);
    bdev::Bytes::copy_from(&out)
}

/// Data that does not compress.
pub fn noise(seed: u64, len: usize) -> bdev::Bytes {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = vec![0u8; len];
    for b in &mut out {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        *b = (x >> 24) as u8;
    }
    bdev::Bytes::copy_from(&out)
}
