//! What all commands about recordings have in common: options, the file, and the replay that they
//! describe.

use std::io::Read;

use admin::tunables::{Tunables, find};
use base::{Error, ErrorKind};
use lab::device::Device;
use lab::replay::{LayoutSpec, Recording, Replay, Thread};

use super::study::{number, size};
use crate::Fail;
use crate::opts::Parsed;

/// Memory of the machine if nothing is said: half is the cache's, a tenth may be dirty.
const MEM: u64 = 8 << 30;
/// The model of devices if nothing is said.
pub(crate) const MODEL: &str = "nvme";

/// Long options of every command about a recording; those of one command come before them.
macro_rules! replay_options {
    ($($own:expr),* $(,)?) => {
        &[
            $($own,)*
            ("layout", true, 'l'),
            ("model", true, 'm'),
            ("log-model", true, 'L'),
            ("tunable", true, 't'),
            ("mem", true, 'M'),
            ("cores", true, 'c'),
            ("seed", true, 'S'),
            ("warm", false, 'W'),
            ("json", false, 'j'),
        ]
    };
}
pub(crate) use replay_options;

/// Their letters.
macro_rules! replay_letters {
    ($own:literal) => {
        concat!($own, "l:m:L:t:M:c:S:Wj")
    };
}
pub(crate) use replay_letters;

/// Bytes of memory of the machine that `--mem` names.
pub(crate) fn memory(p: &Parsed, default: u64) -> Result<u64, Fail> {
    match size(p, 'M', "mem", default)? {
        mem if (256 << 20..=1 << 40).contains(&mem) => Ok(mem),
        _ => Err(Error::invalid("a replay needs 256M to 1T of memory").into()),
    }
}

/// The machine of a replay.
pub(crate) struct Machine {
    /// Bytes of memory.
    pub(crate) mem: u64,
    /// The model of its devices.
    pub(crate) model: String,
    /// That of log devices; none: the same.
    pub(crate) log_model: Option<String>,
}

impl Machine {
    /// As the options say.
    pub(crate) fn of(p: &Parsed) -> Result<Machine, Fail> {
        let model = p.value('m').unwrap_or(MODEL).to_string();
        Ok(Machine { mem: memory(p, MEM)?, model, log_model: p.value('L').map(String::from) })
    }

    /// Fails if there is no such model.
    pub(crate) fn check(&self) -> Result<(), Fail> {
        self.log_model.iter().chain([&self.model]).try_for_each(|name| Device::of(name).map(drop))?;
        Ok(())
    }
}

/// A recording, and what names it among others: a checksum of its bytes.
pub(crate) struct Recorded {
    pub(crate) recording: Recording,
    pub(crate) key: String,
}

impl Recorded {
    /// By its bytes; `path` names it in errors.
    pub(crate) fn of(bytes: &[u8], path: &str) -> Result<Recorded, Fail> {
        let recording = lab::replay::parse(bytes).map_err(|e| e.at(format!("'{path}'")))?;
        Ok(Recorded { recording, key: format!("{:016x}", codec::sha256(bytes).0[0]) })
    }

    /// The one in a file.
    pub(crate) fn read(path: &str) -> Result<Recorded, Fail> {
        let failed = |e: std::io::Error| Error::new(ErrorKind::Io, format!("cannot read '{path}': {e}"));
        let file = std::fs::File::open(path).map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(lab::replay::FILE_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > lab::replay::FILE_MAX {
            return Err(Error::invalid(format!("'{path}' is longer than 1G, the longest recording")).into());
        }
        Recorded::of(&bytes, path)
    }
}

/// The settings of the recorded pool with those that the options change, and its replay on a
/// machine, on `layout` in place of its own. `path` names the recording in errors.
pub(crate) fn replay(
    p: &Parsed,
    recording: &Recording,
    path: &str,
    machine: &Machine,
    layout: Option<&str>,
) -> Result<(Tunables, Replay), Fail> {
    let mut tunables = Tunables::for_memory(machine.mem);
    for (key, value) in &recording.header.pairs {
        if let Some(name) = key.strip_prefix("tunable.")
            && find(name).is_ok()
        {
            tunables.set(&format!("{name}={value}")).map_err(|e| e.at(format!("'{path}'")))?;
        }
    }
    let recorded = tunables.settings("lab", 1).engine;
    p.values('t').try_for_each(|assignment| tunables.set(assignment))?;
    let layout = match (layout, recording.header.get("layout")) {
        (Some(text), _) => LayoutSpec::parse(text)?,
        (None, Some(text)) => {
            LayoutSpec::parse(text).map_err(|e| e.at(format!("'{path}'; choose one with --layout")))?
        }
        (None, None) => LayoutSpec::single(),
    };
    let replay = Replay {
        layout,
        model: machine.model.clone(),
        log_model: machine.log_model.clone(),
        props: Vec::new(),
        opts: tunables.settings("lab", 1).engine,
        cores: number(p, 'c', "cores", 2, 1, 1024)? as usize,
        ashift: recording.header.get("ashift").and_then(|text| text.parse().ok()).unwrap_or(12),
        seed: 0,
        warm: p.has('W'),
        thread: Thread::default(),
    };
    replay.check()?;
    // The recorded pool's own: what it did tells how fast its engine's thread was.
    let own = recording.header.get("layout").and_then(|text| LayoutSpec::parse(text).ok());
    let own = Replay { opts: recorded, layout: own.unwrap_or_else(|| replay.layout.clone()), ..replay.clone() };
    let replay = Replay { thread: own.recorded_thread(recording)?, ..replay };
    Ok((tunables, replay))
}
