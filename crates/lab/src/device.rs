//! Devices of studies: a model with what the host adds to it, by a name or from a file.
//!
//! A model file is TOML with one of the tables `[hdd]`, `[ssd]`, `[fixed]` and `[virtual]`, and
//! possibly `[host]`; `weir lab calibrate` writes one. Keys are the fields of the models; times are
//! text such as '62us', rates are bytes a second, sizes are bytes or text such as '16k'. What is
//! left out is as in `hdd` (a nearline disk) or `nvme`. `[fit]` says how well the model fits and is
//! not read.

use std::fmt::Write as _;
use std::path::Path;

use base::{Error, Nanos, Result};
use sim::{HddModel, HostLatency, Model, SsdModel};
use toml::de::{DeTable, DeValue};

use crate::layout;
use crate::workload::{Place, line_of, section};

/// The tables of a model file.
const TABLES: &[&str] = &["[hdd]", "[ssd]", "[fixed]", "[virtual]", "[host]", "[fit]"];
/// The longest model file in bytes.
const FILE_MAX: u64 = 1 << 20;

/// A device.
#[derive(Clone, PartialEq, Debug)]
pub struct Device {
    /// Its name in reports.
    pub name: String,
    /// How long operations take.
    pub model: Model,
    /// What the host adds.
    pub host: HostLatency,
}

impl From<Model> for Device {
    fn from(model: Model) -> Device {
        Device { name: "model".into(), model, host: HostLatency::default() }
    }
}

/// A field of a model.
enum Field<'a> {
    Time(&'a mut Nanos),
    /// With its least and largest value.
    Number(&'a mut u64, u64, u64),
    Count(&'a mut usize),
    Flag(&'a mut bool),
}

/// Largest rate in bytes a second.
pub(crate) const RATE_MAX: u64 = 1 << 40;

fn hdd_fields(m: &mut HddModel) -> Vec<(&'static str, Field<'_>)> {
    use Field::{Count, Number, Time};
    vec![
        ("rpm", Number(&mut m.rpm, 1000, 100_000)),
        ("seek_min", Time(&mut m.seek_min)),
        ("seek_max", Time(&mut m.seek_max)),
        ("outer_rate", Number(&mut m.outer_rate, 1 << 16, RATE_MAX)),
        ("inner_rate", Number(&mut m.inner_rate, 1 << 16, RATE_MAX)),
        ("link", Number(&mut m.link, 1 << 16, RATE_MAX)),
        ("command", Time(&mut m.command)),
        ("switch", Time(&mut m.switch)),
        ("settle", Time(&mut m.settle)),
        ("lead", Time(&mut m.lead)),
        ("read_ahead", Number(&mut m.read_ahead, 0, 1 << 32)),
        ("write_cache", Number(&mut m.write_cache, 0, 1 << 40)),
        ("queue", Count(&mut m.queue)),
        ("patience", Time(&mut m.patience)),
    ]
}

fn ssd_fields(m: &mut SsdModel) -> Vec<(&'static str, Field<'_>)> {
    use Field::{Count, Flag, Number, Time};
    vec![
        ("dies", Count(&mut m.dies)),
        ("channels", Count(&mut m.channels)),
        ("planes", Number(&mut m.planes, 1, 64)),
        ("page", Number(&mut m.page, 512, 1 << 24)),
        ("block_pages", Number(&mut m.block_pages, 1, 1 << 20)),
        ("channel_rate", Number(&mut m.channel_rate, 1 << 16, RATE_MAX)),
        ("read", Time(&mut m.read)),
        ("program", Time(&mut m.program)),
        ("erase", Time(&mut m.erase)),
        ("suspend", Time(&mut m.suspend)),
        ("suspend_erase", Time(&mut m.suspend_erase)),
        ("link", Number(&mut m.link, 1 << 16, RATE_MAX)),
        ("write_path", Number(&mut m.write_path, 0, RATE_MAX)),
        ("read_path", Number(&mut m.read_path, 0, RATE_MAX)),
        ("command", Time(&mut m.command)),
        ("buffer", Number(&mut m.buffer, 0, 1 << 40)),
        ("read_each", Time(&mut m.read_each)),
        ("write_each", Time(&mut m.write_each)),
        ("flush", Time(&mut m.flush)),
        ("protected", Flag(&mut m.protected)),
        ("spare", Number(&mut m.spare, 1, 100)),
        ("capacity", Number(&mut m.capacity, 0, 1 << 50)),
        ("worn", Flag(&mut m.worn)),
        ("slow_per_million", Number(&mut m.slow_per_million, 0, 1_000_000)),
        ("slow_read", Time(&mut m.slow_read)),
        ("slow_write", Time(&mut m.slow_write)),
    ]
}

fn fixed_fields<'a>(latency: &'a mut Nanos, bandwidth: &'a mut u64) -> Vec<(&'static str, Field<'a>)> {
    vec![("latency", Field::Time(latency)), ("bandwidth", Field::Number(bandwidth, 1 << 16, RATE_MAX))]
}

fn virtual_fields<'a>(
    latency: &'a mut Nanos,
    bandwidth: &'a mut u64,
    flush_bandwidth: &'a mut u64,
) -> Vec<(&'static str, Field<'a>)> {
    let mut fields = fixed_fields(latency, bandwidth);
    fields.push(("flush_bandwidth", Field::Number(flush_bandwidth, 1 << 16, RATE_MAX)));
    fields
}

/// The fields of a model; none for [`Model::Random`].
fn model_fields(model: &mut Model) -> Vec<(&'static str, Field<'_>)> {
    match model {
        Model::Hdd(m) => hdd_fields(m),
        Model::Ssd(m) => ssd_fields(m),
        Model::Fixed { latency, bandwidth } => fixed_fields(latency, bandwidth),
        Model::Virtual { latency, bandwidth, flush_bandwidth } => virtual_fields(latency, bandwidth, flush_bandwidth),
        Model::Random { .. } => Vec::new(),
    }
}

fn host_fields(h: &mut HostLatency) -> Vec<(&'static str, Field<'_>)> {
    vec![
        ("read_cpu", Field::Time(&mut h.cpu.read)),
        ("read_cpu_rate", Field::Number(&mut h.cpu.read_rate, 0, RATE_MAX)),
        ("write_cpu", Field::Time(&mut h.cpu.write)),
        ("write_cpu_rate", Field::Number(&mut h.cpu.write_rate, 0, RATE_MAX)),
        ("flush_cpu", Field::Time(&mut h.cpu.flush)),
        ("wake", Field::Time(&mut h.wake)),
        ("jitter", Field::Time(&mut h.jitter)),
        ("rare_per_million", Field::Number(&mut h.rare_per_million, 0, 1_000_000)),
        ("rare", Field::Time(&mut h.rare)),
    ]
}

impl Field<'_> {
    fn set(&mut self, place: &Place, value: &str) -> Result<()> {
        match self {
            Field::Time(t) => **t = if value == "0" { Nanos(0) } else { place.span(value)? },
            Field::Number(n, least, most) => **n = place.size(value, *least, *most)?,
            Field::Count(n) => **n = place.number(value, 1, 65_536)? as usize,
            Field::Flag(b) => {
                **b = match value {
                    "true" => true,
                    "false" => false,
                    _ => return Err(place.error(format!("'{value}' is neither true nor false"))),
                }
            }
        }
        Ok(())
    }
    fn text(&self) -> String {
        match self {
            Field::Time(Nanos(0)) => "0".into(),
            Field::Time(t) => format!("'{}ns'", t.0),
            Field::Number(n, ..) => n.to_string(),
            Field::Count(n) => n.to_string(),
            Field::Flag(b) => b.to_string(),
        }
    }
}

/// A disk of a study: one of the `chosen` device, else a nearline disk.
pub fn disk(chosen: Option<&Device>, seed: u64) -> Device {
    chosen.map_or_else(|| Model::hdd().into(), |device| device.one_of(seed))
}

impl Device {
    /// By the name of a model ([`layout::device`]), or from a model file.
    ///
    /// # Errors
    /// `Invalid` if it is neither, with the line of a mistake in the file.
    pub fn of(name: &str) -> Result<Device> {
        match layout::device(name) {
            Ok(model) => Ok(Device { name: name.into(), ..model.into() }),
            Err(_) if Path::new(name).is_file() => {
                let bad = |e: std::io::Error| Error::invalid(format!("the model file {name} cannot be read: {e}"));
                if std::fs::metadata(name).map_err(bad)?.len() > FILE_MAX {
                    return Err(Error::invalid(format!("the model file {name} has more than 1M")));
                }
                Device::parse(name, &std::fs::read_to_string(name).map_err(bad)?)
            }
            Err(e) => Err(Error::invalid(format!("{e}, or a model file"))),
        }
    }

    /// From the text of a model file; `file` is its name.
    ///
    /// # Errors
    /// `Invalid`, with the line of the mistake.
    pub fn parse(file: &str, text: &str) -> Result<Device> {
        let all = DeTable::parse(text).map_err(|e| {
            let line = line_of(text, e.span().map_or(0, |s| s.start));
            Error::invalid(format!("{file}:{line}: {}", e.message().replace('\n', ", ")))
        })?;
        let (mut model, mut host) = (None, HostLatency::default());
        for (key, value) in all.get_ref() {
            let name: &str = key.get_ref();
            let place = Place { file, line: line_of(text, key.span().start), key: name };
            let DeValue::Table(table) = value.get_ref() else {
                return Err(place.unknown(TABLES));
            };
            if name == "fit" {
                continue;
            }
            let section = section(&place, text, table)?;
            let fill = |fields: &mut Vec<(&'static str, Field<'_>)>| {
                section.entries.iter().try_for_each(|entry| {
                    let place = Place { file, line: entry.line, key: &entry.key };
                    let known: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
                    let field = fields.iter_mut().find(|(name, _)| *name == entry.key);
                    field.ok_or_else(|| place.unknown(&known))?.1.set(&place, &entry.value)
                })
            };
            let found = match name {
                "host" => {
                    fill(&mut host_fields(&mut host))?;
                    continue;
                }
                "hdd" => {
                    let mut m = HddModel::nearline_7200();
                    fill(&mut hdd_fields(&mut m))?;
                    if m.inner_rate > m.outer_rate || m.seek_min > m.seek_max {
                        return Err(place.error("its largest rate or seek is less than its smallest"));
                    }
                    Model::Hdd(m)
                }
                "ssd" => {
                    let mut m = SsdModel::nvme();
                    fill(&mut ssd_fields(&mut m))?;
                    Model::Ssd(m)
                }
                "fixed" => {
                    let (mut latency, mut bandwidth) = (Nanos(0), 1 << 30);
                    fill(&mut fixed_fields(&mut latency, &mut bandwidth))?;
                    Model::Fixed { latency, bandwidth }
                }
                "virtual" => {
                    let (mut latency, mut bandwidth, mut flush_bandwidth) = (Nanos(0), 1 << 30, 1 << 30);
                    fill(&mut virtual_fields(&mut latency, &mut bandwidth, &mut flush_bandwidth))?;
                    Model::Virtual { latency, bandwidth, flush_bandwidth }
                }
                _ => return Err(place.unknown(TABLES)),
            };
            if model.replace(found).is_some() {
                return Err(place.error("a file has one model"));
            }
        }
        let model = model
            .ok_or_else(|| Error::invalid(format!("{file}: there is no [hdd], [ssd], [fixed] or [virtual] in it")))?;
        Ok(Device { name: file.into(), model, host })
    }

    /// The text of its model file.
    ///
    /// # Errors
    /// `Invalid` for [`Model::Random`], which has none.
    pub fn text(&self) -> Result<String> {
        let (mut model, mut host) = (self.model.clone(), self.host);
        let name = match &model {
            Model::Hdd(_) => "hdd",
            Model::Ssd(_) => "ssd",
            Model::Fixed { .. } => "fixed",
            Model::Virtual { .. } => "virtual",
            Model::Random { .. } => return Err(Error::invalid("a random model has no file")),
        };
        let mut out = String::new();
        for (name, fields) in [(name, model_fields(&mut model)), ("host", host_fields(&mut host))] {
            let _ = writeln!(out, "[{name}]");
            for (key, field) in fields {
                let _ = writeln!(out, "{key} = {}", field.text());
            }
            out.push('\n');
        }
        Ok(out)
    }

    /// Names of the fields that [`Device::scaled`] changes.
    pub fn scalable(&self) -> Vec<&'static str> {
        let (mut model, mut host) = (self.model.clone(), self.host);
        let all = model_fields(&mut model).into_iter().chain(host_fields(&mut host));
        all.filter(|(_, field)| matches!(field, Field::Time(_) | Field::Number(..))).map(|(name, _)| name).collect()
    }

    /// With one field multiplied by `factor`, within its bounds.
    pub fn scaled(&self, name: &str, factor: f64) -> Device {
        let mut device = self.clone();
        let fields = model_fields(&mut device.model).into_iter().chain(host_fields(&mut device.host));
        for (_, field) in fields.filter(|(own, _)| *own == name) {
            match field {
                Field::Time(t) => *t = Nanos((t.0 as f64 * factor) as u64),
                Field::Number(n, least, most) => *n = ((*n as f64 * factor) as u64).clamp(least, most),
                Field::Count(_) | Field::Flag(_) => {}
            }
        }
        device
    }

    /// One of several: no two spinning disks turn in step.
    pub fn one_of(&self, seed: u64) -> Device {
        let model = match &self.model {
            Model::Hdd(hdd) => Model::Hdd(hdd.clone().one_of(seed)),
            other => other.clone(),
        };
        Device { model, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use sim::HostCpu;

    use super::*;

    #[test]
    fn a_model_comes_back_from_its_file() {
        let cpu = HostCpu { read: Nanos(900), write_rate: 1 << 30, flush: Nanos(1), ..HostCpu::default() };
        let host = HostLatency { cpu, wake: Nanos(20_000), jitter: Nanos(7), rare_per_million: 3, rare: Nanos(0) };
        for name in ["hdd", "hdd-10k", "nvme", "sas-ssd", "fixed 1ms 100M"] {
            let device = Device { host, ..Device::of(name).unwrap() };
            let again = Device::parse(name, &device.text().unwrap()).unwrap();
            assert_eq!(again, device, "{name}");
        }
        let part = Device::parse("x", "[ssd]\nread = '80us'\nbuffer = '64M'\nprotected = true\n[fit]\nnote = [1]\n");
        let want = SsdModel { read: Nanos(80_000), buffer: 64 << 20, protected: true, ..SsdModel::nvme() };
        assert_eq!(part.unwrap().model, Model::Ssd(want));
        assert!(Device::from(Model::random()).text().is_err());
        let disks = [1, 2].map(|seed| Device::of("hdd").unwrap().one_of(seed));
        assert_ne!(disks[0], disks[1]);
    }

    #[test]
    fn mistakes_have_their_line() {
        for (text, want) in [
            ("", "m.toml: there is no [hdd], [ssd], [fixed] or [virtual] in it"),
            ("[hdd]\nrpm = 7200\n[ssd]\n", "a file has one model"),
            ("[hdd]\n\nrpm = 7\n", "m.toml:3: rpm: '7' is not a size from 1000 to 100000 bytes"),
            ("[hdd]\nspeed = 7\n", "m.toml:2: speed: there is no such key here, only rpm, "),
            ("[ssd]\nread = 'soon'\n", "m.toml:2: read: 'soon' is not a time"),
            ("[ssd]\nprotected = 'maybe'\n", "m.toml:2: protected: 'maybe' is neither"),
            ("[ssd]\ndies = 0\n", "m.toml:2: dies: '0' is not a number from 1 to 65536"),
            ("[hdd]\ninner_rate = 1000000000\n", "m.toml:1: hdd: its largest rate"),
            ("[tape]\n", "m.toml:1: tape: there is no such key"),
            ("hdd = 1\n", "m.toml:1: hdd: there is no such key"),
            ("[ssd\n", "m.toml:1: "),
        ] {
            let e = Device::parse("m.toml", text).unwrap_err().to_string();
            assert!(e.contains(want), "{text:?}: {e}");
        }
        let e = Device::of("/nonexistent/model").unwrap_err().to_string();
        assert!(e.ends_with("or a model file"), "{e}");
    }
}
