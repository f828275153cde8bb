//! `weir lab run FILE`: workloads from files.
//!
//! A [`Workload`] is a pool, a time, and jobs: threads that read and write files of their own. It
//! is written as TOML or as a job file of fio, of which the part that has a meaning here is taken
//! ([`fio`]). Both are syntax only: they give [`Section`]s of keys and values with their lines, and
//! [`Workload::of`] gives those their meaning, so every mistake is one sentence with file, line and
//! key. What a workload does on the engine is in `run`.
//!
//! Keys of `[pool]`: `layout`, `device`, `size`, `log`, `memory`, `cores`, `recordsize`,
//! `compression`.
//! Of `[run]`: `seconds`, `warmup`. Of each `[[job]]`: `name`, `threads`, `block`, `pattern`,
//! `read`, `size`, `shared`, `sync`, `rate`, `compressible`.

pub mod fio;
mod run;
mod syntax;

use std::path::Path;

use base::{Error, Nanos, Result};
use sim::Model;

use crate::device::Device;
use crate::layout::LayoutSpec;

pub(crate) use run::{memory, once};
pub use run::{on_devices, study};
pub use syntax::{Entry, Place, Section};
pub(crate) use syntax::{line_of, section};

/// How fast the threads of a job go.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Rate {
    /// The next operation begins when the last has ended.
    Max,
    /// So many a second by each thread, evenly.
    Fixed(f64),
    /// So many a second by each thread on average, with the gaps of a Poisson process.
    Poisson(f64),
    /// So many at once by each thread, then nothing until the next burst.
    Bursts {
        /// Operations of a burst.
        count: u64,
        /// From begin to begin.
        every: Nanos,
    },
}

/// When a write is durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sync {
    /// When its txg is.
    None,
    /// Before it returns (`O_SYNC`).
    Each,
    /// `fsync` after so many.
    After(u64),
}

/// The order of offsets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// One after the other, from the begin again at the end.
    Sequential,
    /// Drawn evenly.
    Random,
}

/// Threads that do the same.
#[derive(Clone, PartialEq, Debug)]
pub struct Job {
    /// Its name, unique.
    pub name: String,
    /// Threads, each with a file of its own.
    pub threads: u32,
    /// Bytes of an operation.
    pub block: u64,
    /// The order of offsets.
    pub pattern: Pattern,
    /// Percentage of operations that read.
    pub read: u32,
    /// Bytes of each file, all of which are used.
    pub size: u64,
    /// All threads use one file; else each has its own.
    pub shared: bool,
    /// When writes are durable.
    pub sync: Sync,
    /// How fast it goes.
    pub rate: Rate,
    /// How many times smaller compression can make the data.
    pub compressible: f64,
}

/// The pool and its machine.
#[derive(Clone, PartialEq, Debug)]
pub struct PoolOf {
    /// Its layout.
    pub layout: LayoutSpec,
    /// Its devices.
    pub device: Device,
    /// Bytes of each device; none: room for everything many times, so that free space never runs
    /// short.
    pub size: Option<u64>,
    /// A log device.
    pub log: Option<Device>,
    /// Memory in bytes.
    pub memory: u64,
    /// Cores for compression and checksums.
    pub cores: u32,
    /// `recordsize` in bytes.
    pub recordsize: u64,
    /// `compression`.
    pub compression: String,
}

/// A workload.
#[derive(Clone, PartialEq, Debug)]
pub struct Workload {
    /// The pool.
    pub pool: PoolOf,
    /// Virtual seconds that count.
    pub seconds: u64,
    /// Virtual seconds before.
    pub warmup: u64,
    /// The jobs.
    pub jobs: Vec<Job>,
}

/// Memory that the contents of modelled devices may take.
const CONTENT_MAX: u64 = 2 << 30;

impl Default for Job {
    fn default() -> Job {
        Job {
            name: String::new(),
            threads: 1,
            block: 128 << 10,
            pattern: Pattern::Sequential,
            read: 0,
            size: 256 << 20,
            shared: false,
            sync: Sync::None,
            rate: Rate::Max,
            compressible: 1.0,
        }
    }
}

impl Default for PoolOf {
    fn default() -> PoolOf {
        PoolOf {
            layout: LayoutSpec::single(),
            device: Model::hdd().into(),
            size: None,
            log: None,
            memory: 8 << 30,
            cores: 4,
            recordsize: 128 << 10,
            compression: "off".into(),
        }
    }
}

impl Workload {
    /// Reads a file: TOML if its name ends in `.toml`, a job file of fio if in `.fio` or `.job`.
    pub fn read(path: &Path) -> Result<Workload> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|e| Error::invalid(format!("{name} cannot be read: {e}")))?;
        Workload::parse(&name, &text)
    }

    /// Parses the text of the file `name`.
    pub fn parse(name: &str, text: &str) -> Result<Workload> {
        let sections = match name.rsplit_once('.').map(|(_, end)| end) {
            Some("toml") => syntax::toml(name, text)?,
            Some("fio" | "job") => fio::sections(name, text)?,
            _ => {
                return Err(Error::invalid(format!(
                    "{name}: a workload is a TOML file (.toml) or a job file of fio (.fio, .job)"
                )));
            }
        };
        Workload::of(name, &sections)
    }

    /// Gives the sections of a file their meaning.
    pub fn of(name: &str, sections: &[Section]) -> Result<Workload> {
        let mut workload = Workload { pool: PoolOf::default(), seconds: 30, warmup: 5, jobs: Vec::new() };
        for section in sections {
            let mut job = Job { name: format!("job{}", workload.jobs.len() + 1), ..Job::default() };
            for entry in &section.entries {
                let place = Place { file: name, line: entry.line, key: &entry.key };
                let value = entry.value.as_str();
                match section.name.as_str() {
                    "pool" => workload.pool.set(&place, value)?,
                    "run" if entry.key == "seconds" => workload.seconds = place.number(value, 1, 3600)?,
                    "run" if entry.key == "warmup" => workload.warmup = place.number(value, 0, 3600)?,
                    "run" => return Err(place.unknown(&["seconds", "warmup"])),
                    _ => job.set(&place, value)?,
                }
            }
            if section.name == "job" {
                let place = Place { file: name, line: section.line, key: "name" };
                if workload.jobs.iter().any(|other| other.name == job.name) {
                    return Err(place.error(format!("there are two jobs '{}'", job.name)));
                }
                job.check(&Place { key: "job", ..place })?;
                workload.jobs.push(job);
            }
        }
        if workload.jobs.is_empty() {
            return Err(Error::invalid(format!("{name}: there is no job in it")));
        }
        let content = workload.content();
        if content > CONTENT_MAX {
            let mib = content >> 20;
            return Err(Error::invalid(format!(
                "{name}: the devices would hold {mib} MiB of data in memory, 2048 MiB are possible: lower size or threads"
            )));
        }
        Ok(workload)
    }

    /// Devices of its pool, the log device included.
    pub fn devices(&self) -> usize {
        self.pool.whole_layout().devices()
    }

    /// Gives its devices the size of the smallest of these that is no log device: free space has
    /// to be as on them. `sizes` are in the order of the devices.
    pub fn on_sizes(&mut self, sizes: &[u64]) {
        let layout = self.pool.whole_layout();
        let data = (0..).zip(sizes).filter(|(n, _)| !layout.is_log(*n)).map(|(_, &size)| size);
        self.pool.size = data.min();
    }

    /// Bytes of all files.
    pub fn files(&self) -> u64 {
        self.jobs.iter().map(Job::bytes).fold(0, u64::saturating_add)
    }

    /// Bytes of memory that the contents of the devices take: without compression, data is zeros,
    /// which take none.
    pub fn content(&self) -> u64 {
        if self.pool.compression == "off" {
            return 0;
        }
        let of = |j: &Job| (j.bytes() as f64 / j.compressible) as u64;
        self.jobs.iter().map(of).fold(0, u64::saturating_add).saturating_mul(self.pool.layout.copies())
    }
}

impl Job {
    /// Its files.
    fn files(&self) -> u32 {
        if self.shared { 1 } else { self.threads }
    }

    /// Bytes of its files.
    fn bytes(&self) -> u64 {
        self.size.saturating_mul(self.files().into())
    }

    fn set(&mut self, place: &Place, value: &str) -> Result<()> {
        match place.key {
            "name" => self.name = value.to_string(),
            "threads" => self.threads = place.number(value, 1, 4096)? as u32,
            "block" => self.block = place.size(value, 512, 16 << 20)?,
            "pattern" => {
                self.pattern = match value {
                    "sequential" => Pattern::Sequential,
                    "random" => Pattern::Random,
                    _ => return Err(place.error(format!("'{value}' is neither sequential nor random"))),
                }
            }
            "read" => self.read = place.number(value.trim_end_matches('%').trim(), 0, 100)? as u32,
            "size" => self.size = place.size(value, 512, 1 << 40)?,
            "shared" => {
                self.shared = match value {
                    "true" => true,
                    "false" => false,
                    _ => return Err(place.error(format!("'{value}' is neither true nor false"))),
                }
            }
            "sync" => {
                self.sync = match value {
                    "none" => Sync::None,
                    "each" => Sync::Each,
                    _ => match value.strip_prefix("after ") {
                        Some(n) => Sync::After(place.number(n.trim(), 1, 1_000_000)?),
                        None => return Err(place.error(format!("'{value}' is none of: none, each, after N"))),
                    },
                }
            }
            "rate" => self.rate = rate(place, value)?,
            "compressible" => self.compressible = place.real(value, 1.0, 1000.0)?,
            _ => {
                return Err(place.unknown(&[
                    "name",
                    "threads",
                    "block",
                    "pattern",
                    "read",
                    "size",
                    "shared",
                    "sync",
                    "rate",
                    "compressible",
                ]));
            }
        }
        Ok(())
    }

    /// Fails if keys do not go together.
    fn check(&self, place: &Place) -> Result<()> {
        if self.size < self.block {
            return Err(
                place.error(format!("its size of {} bytes is less than its block of {}", self.size, self.block))
            );
        }
        Ok(())
    }
}

/// `max`, `fixed 100`, `poisson 64`, `bursts 500 every 5s`.
fn rate(place: &Place, value: &str) -> Result<Rate> {
    let words: Vec<&str> = value.split_whitespace().collect();
    match words[..] {
        ["max"] => Ok(Rate::Max),
        ["fixed", n] => Ok(Rate::Fixed(place.real(n, 0.001, 1e6)?)),
        ["poisson", n] => Ok(Rate::Poisson(place.real(n, 0.001, 1e6)?)),
        ["bursts", n, "every", span] => {
            Ok(Rate::Bursts { count: place.number(n, 1, 1_000_000)?, every: place.span(span)? })
        }
        _ => Err(place.error(format!("'{value}' is none of: max, fixed N, poisson N, bursts N every TIME"))),
    }
}

impl PoolOf {
    /// The layout with the log device, which comes last if the layout has none of its own.
    fn whole_layout(&self) -> LayoutSpec {
        match self.log {
            Some(_) if !self.layout.has_log() => self.layout.clone().with_log(),
            _ => self.layout.clone(),
        }
    }

    fn set(&mut self, place: &Place, value: &str) -> Result<()> {
        match place.key {
            "layout" => self.layout = LayoutSpec::parse(value).map_err(|e| place.error(e))?,
            "device" => self.device = Device::of(value).map_err(|e| place.error(e))?,
            "size" => self.size = Some(place.size(value, spa::DEVICE_SIZE_MIN, 1 << 44)?),
            "log" => self.log = Some(Device::of(value).map_err(|e| place.error(e))?),
            "memory" => self.memory = place.size(value, 256 << 20, 1 << 40)?,
            "cores" => self.cores = place.number(value, 1, 1024)? as u32,
            "recordsize" => {
                self.recordsize = place.size(value, 512, base::MAX_BLOCK)?;
                if !self.recordsize.is_power_of_two() {
                    return Err(place.error(format!("'{value}' is not a power of two")));
                }
            }
            "compression" => {
                place.property(value)?;
                self.compression = value.to_string();
            }
            _ => {
                return Err(place.unknown(&[
                    "layout",
                    "device",
                    "size",
                    "log",
                    "memory",
                    "cores",
                    "recordsize",
                    "compression",
                ]));
            }
        }
        Ok(())
    }
}
