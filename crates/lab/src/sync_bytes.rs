//! Write amplification of synchronous writes: bytes that the device writes for each byte that a
//! program writes, including intent log, txgs and labels.
//!
//! One writer overwrites a file from its beginning, each write durable before the next, on one
//! flash device without redundancy; the bytes do not compress. The count runs from the first write
//! until all data is in its txg. A write that the log copies is written twice (log block, then its
//! place in the file); one that the log only names (`WR_INDIRECT`) is in its place already when its
//! txg syncs.

use std::rc::Rc;

use base::Result;
use bdev::{Buf, Bytes};
use sim::{DiskImage, Model, Rng, Sim, SimConfig, SimDisk, SsdModel};
use spa::{EngineOpts, Pool};
use zpl::Zfs;

use crate::stage;

/// Bytes of memory of the machine.
const MEM: u64 = 4 << 30;
/// Bytes of the device.
const DISK: u64 = 16 << 30;

/// One run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    /// `logbias=throughput` rather than `latency`.
    pub throughput: bool,
    /// `recordsize` in bytes.
    pub recordsize: u64,
    /// Bytes of one write, a multiple or a part of a record.
    pub write: u64,
}

/// The result of a run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Outcome {
    /// Bytes that the program wrote.
    pub written: u64,
    /// Bytes that the device wrote.
    pub device: u64,
    /// Records of the log that name a block.
    pub indirect: u64,
    /// Records of the log that hold their data.
    pub copied: u64,
}

impl Outcome {
    /// Bytes written to the device for each byte of the program.
    pub fn per_byte(&self) -> f64 {
        self.device as f64 / self.written.max(1) as f64
    }
}

impl Cell {
    /// The runs of the table in `docs/lab.md`.
    pub const TABLE: [Cell; 8] = [
        Cell { throughput: true, recordsize: 128 << 10, write: 128 << 10 },
        Cell { throughput: true, recordsize: 128 << 10, write: 1 << 20 },
        Cell { throughput: true, recordsize: 1 << 20, write: 1 << 20 },
        Cell { throughput: true, recordsize: 128 << 10, write: 8 << 10 },
        Cell { throughput: false, recordsize: 64 << 10, write: 64 << 10 },
        Cell { throughput: false, recordsize: 128 << 10, write: 128 << 10 },
        Cell { throughput: false, recordsize: 1 << 20, write: 1 << 20 },
        Cell { throughput: false, recordsize: 8 << 10, write: 8 << 10 },
    ];

    /// Runs it for `total` bytes, whole MiB.
    pub fn run(&self, total: u64, seed: u64) -> Result<Outcome> {
        let sim = Sim::new(SimConfig { physmem: MEM, polls_per_instant_max: u64::MAX, ..SimConfig::seeded(seed) });
        let model = Model::Ssd(SsdModel::enterprise_sas());
        let disk = stage::disk(&sim.handle(), DiskImage::zeroed(DISK), model, seed);
        let seen = sim.block_on(self.write(&sim, &disk, total, seed))?;
        sim.crash();
        Ok(seen)
    }

    async fn write(&self, sim: &Sim, disk: &SimDisk, total: u64, seed: u64) -> Result<Outcome> {
        let recordsize = self.recordsize.to_string();
        let logbias = if self.throughput { "throughput" } else { "latency" };
        let props = [("compression", "off"), ("atime", "off"), ("recordsize", &*recordsize), ("logbias", logbias)];
        let opts = EngineOpts::for_memory(MEM);
        let disks = [disk.clone()];
        let (_pool, fs): (Rc<Pool>, Rc<Zfs>) = stage::new_fs(&sim.handle(), &disks, opts, 12, &props).await?;
        let file = stage::new_file(&fs, "file").await?;
        let mut rng = Rng::stream(seed, 1);
        let mut noise = |len: u64| -> Bytes {
            let mut buf = Buf::for_overwrite(len as usize);
            buf.chunks_mut(8).for_each(|c| c.copy_from_slice(&rng.next_u64().to_le_bytes()[..c.len()]));
            buf.freeze()
        };
        // The file exists before the count begins.
        for at in (0..total).step_by(1 << 20) {
            fs.write(file, at, vec![noise(1 << 20)], false).await?;
        }
        fs.sync_all().await?;
        let stats = || fs.log().map(|log| log.stats()).unwrap_or_default();
        let (before, log_before) = (disk.counters().write_bytes, stats());
        for at in (0..total).step_by(self.write as usize) {
            fs.write_sync(file, at, vec![noise(self.write)], false).await?;
        }
        let log = stats();
        fs.sync_all().await?;
        Ok(Outcome {
            written: total,
            device: disk.counters().write_bytes - before,
            indirect: log.indirect - log_before.indirect,
            copied: log.copied - log_before.copied,
        })
    }
}
