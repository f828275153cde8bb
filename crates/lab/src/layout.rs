//! Layouts and device models by their names: one grammar for workload files and replays.
//!
//! A layout is vdevs with commas between them, a device model a name with numbers. Words and
//! numbers may be parted by a colon, as in arguments of commands, or by spaces, as in files.

use base::{Error, Nanos, Result};
use sim::{HddModel, Model, SsdModel};
use spa::{Bias, DevSpec, Group, GroupKind, Layout};

/// Most devices of a layout.
const DEVICES_MAX: usize = 256;
/// Data columns of a group of a dRAID that names none, if it has so many children
/// (zpoolconcepts(7) of OpenZFS 2.4).
const DRAID_DATA_DEFAULT: usize = 8;

/// A top-level vdev.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Top {
    kind: GroupKind,
    bias: Bias,
    devices: usize,
}

/// Top-level vdevs in order, with commas between them: `single` (or `disk`), `stripe N`, `mirror
/// N`, `mirrors N of M`, `raidz1 N` (or `raidz N`) to `raidz3 N`, `draid2:4d:11c:1s` as for `zpool
/// create` with the children named, each with `log-`, `special-` or `dedup-` before it if it is
/// one; `mirror:N` is `mirror N`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayoutSpec(Vec<Top>);

impl LayoutSpec {
    /// By its text.
    ///
    /// # Errors
    /// `Invalid`, with the part that is wrong.
    pub fn parse(text: &str) -> Result<LayoutSpec> {
        let tops = text.split(',').map(|word| tops(word.trim())).collect::<Result<Vec<_>>>()?;
        let spec = LayoutSpec(tops.concat());
        match spec.devices() {
            n if n > DEVICES_MAX => {
                Err(Error::invalid(format!("the layout '{text}' has {n} devices: at most {DEVICES_MAX}")))
            }
            _ => Ok(spec),
        }
    }

    /// One device.
    pub fn single() -> LayoutSpec {
        LayoutSpec(vec![Top { kind: GroupKind::Single, bias: Bias::Normal, devices: 1 }])
    }

    /// With a log device after its vdevs.
    pub fn with_log(mut self) -> LayoutSpec {
        self.0.push(Top { kind: GroupKind::Single, bias: Bias::Log, devices: 1 });
        self
    }

    /// Most copies of a block that redundancy may need, as a bound for memory.
    pub fn copies(&self) -> u64 {
        let of = |t: &Top| if t.kind == GroupKind::Mirror { t.devices as u64 } else { 2 };
        self.0.iter().map(of).max().unwrap_or(1)
    }

    /// Its text, as [`LayoutSpec::parse`] takes it: `mirror:2,raidz1:4,log-single`.
    pub fn text(&self) -> String {
        let of = |t: &Top| {
            let bias = match t.bias {
                Bias::Log => "log-",
                Bias::Special => "special-",
                Bias::Dedup => "dedup-",
                Bias::Normal => "",
            };
            match t.kind {
                GroupKind::Mirror => format!("{bias}mirror:{}", t.devices),
                GroupKind::Raidz(parity) => format!("{bias}raidz{parity}:{}", t.devices),
                GroupKind::Draid { parity, data, spares } => {
                    let data = data.map_or(String::new(), |d| format!(":{d}d"));
                    format!("{bias}draid{parity}{data}:{}c:{spares}s", t.devices)
                }
                GroupKind::Single => format!("{bias}single"),
            }
        };
        self.0.iter().map(of).collect::<Vec<_>>().join(",")
    }

    /// Vdevs that hold data, not logs.
    fn data(&self) -> impl Iterator<Item = &Top> {
        self.0.iter().filter(|t| t.bias != Bias::Log)
    }

    /// Room for data, in devices.
    pub fn data_devices(&self) -> f64 {
        let of = |t: &Top| match t.kind {
            GroupKind::Mirror => 1.0,
            GroupKind::Raidz(parity) => (t.devices - usize::from(parity)) as f64,
            GroupKind::Draid { parity, data, spares } => {
                let (active, parity) = (t.devices - usize::from(spares), usize::from(parity));
                let data = data.map_or((active - parity).min(DRAID_DATA_DEFAULT), usize::from);
                active as f64 * data as f64 / (data + parity) as f64
            }
            GroupKind::Single => t.devices as f64,
        };
        self.data().filter(|t| t.bias == Bias::Normal).map(of).sum()
    }

    /// Lost devices, whichever they are, that no data are lost with.
    pub fn survives(&self) -> usize {
        let of = |t: &Top| match t.kind {
            GroupKind::Mirror => t.devices - 1,
            GroupKind::Raidz(parity) | GroupKind::Draid { parity, .. } => usize::from(parity),
            GroupKind::Single => 0,
        };
        self.data().map(of).min().unwrap_or(0)
    }

    /// Whether device `n` is one of a log.
    pub fn is_log(&self, n: usize) -> bool {
        let mut end = 0;
        let top = self.0.iter().find(|t| {
            end += t.devices;
            n < end
        });
        top.is_some_and(|t| t.bias == Bias::Log)
    }

    /// Whether it has a log device.
    pub fn has_log(&self) -> bool {
        self.0.iter().any(|t| t.bias == Bias::Log)
    }

    /// How many devices it has.
    pub fn devices(&self) -> usize {
        self.0.iter().map(|t| t.devices).sum()
    }

    /// The layout on `devices`, as many as it has.
    pub fn on(&self, devices: Vec<DevSpec>) -> Layout {
        let mut devices = devices.into_iter();
        let group = |t: &Top| {
            let devices = devices.by_ref().take(t.devices).collect();
            Group { kind: t.kind, bias: t.bias, devices }
        };
        Layout { groups: self.0.iter().map(group).collect(), ..Layout::default() }
    }
}

/// The words of a text, parted by colons and spaces.
fn words(text: &str) -> Vec<&str> {
    text.split(|c: char| c == ':' || c.is_whitespace()).filter(|w| !w.is_empty()).collect()
}

/// The vdevs of one part of a layout.
fn tops(word: &str) -> Result<Vec<Top>> {
    let bad = || {
        let known = "single, stripe N, mirror N, mirrors N of M, raidz1 N, raidz2 N, raidz3 N, draid1:Dd:Cc:Ss, also with log-, special- or dedup- before";
        Error::invalid(format!("'{word}' is no vdev of a layout: there are {known}"))
    };
    let (bias, shape) = match word.split_once('-') {
        Some(("log", rest)) => (Bias::Log, rest),
        Some(("special", rest)) => (Bias::Special, rest),
        Some(("dedup", rest)) => (Bias::Dedup, rest),
        _ => (Bias::Normal, word),
    };
    let number = |text: &str, least: usize| {
        text.parse::<usize>().ok().filter(|n| (least..=DEVICES_MAX).contains(n)).ok_or_else(bad)
    };
    let (count, kind, devices) = match words(shape)[..] {
        ["single" | "disk"] => (1, GroupKind::Single, 1),
        ["stripe", n] => (number(n, 1)?, GroupKind::Single, 1),
        ["mirror", n] => (1, GroupKind::Mirror, number(n, 2)?),
        ["mirrors", n, "of", m] => (number(n, 1)?, GroupKind::Mirror, number(m, 2)?),
        ["raidz" | "raidz1", n] => (1, GroupKind::Raidz(1), number(n, 2)?),
        ["raidz2", n] => (1, GroupKind::Raidz(2), number(n, 3)?),
        ["raidz3", n] => (1, GroupKind::Raidz(3), number(n, 4)?),
        [head, ref rest @ ..] if head.starts_with("draid") => {
            let (kind, devices) = draid(head, rest).ok_or_else(bad)?;
            (1, kind, devices)
        }
        _ => return Err(bad()),
    };
    Ok(vec![Top { kind, bias, devices }; count])
}

/// A dRAID and its number of devices, by the words of `draidP:Dd:Cc:Ss`, of which `Dd` and `Ss` may
/// be missing. None if it is not one that can be.
fn draid(head: &str, rest: &[&str]) -> Option<(GroupKind, usize)> {
    let parity = match head.strip_prefix("draid")? {
        "" => 1,
        n => n.parse::<u8>().ok().filter(|p| (1..=3).contains(p))?,
    };
    let (mut data, mut children, mut spares) = (None, 0usize, 0u8);
    for word in rest {
        let unit = word.chars().next_back()?;
        let n = word.strip_suffix(unit)?.parse::<u8>().ok()?;
        match unit {
            'd' if n > 0 => data = Some(n),
            'c' => children = n.into(),
            's' => spares = n,
            _ => return None,
        }
    }
    let least = usize::from(parity) + usize::from(spares) + data.map_or(1, usize::from);
    (children >= least.max(2)).then_some((GroupKind::Draid { parity, data, spares }, children))
}

/// The model of that name: `nvme`, `sata-ssd` (or `ssd`), `sas-ssd`, each also with `worn` behind
/// it, `hdd`, `hdd-10k`, or `fixed LATENCY BANDWIDTH`, a time such as 1ms (without a unit:
/// microseconds) and a size a second such as 100M (without a unit: MiB).
///
/// # Errors
/// `Invalid` if there is none.
pub fn device(name: &str) -> Result<Model> {
    let bad = || {
        let known = "nvme, ssd, sata-ssd, sas-ssd (also with worn behind), hdd, hdd-10k and fixed LATENCY BANDWIDTH";
        Error::invalid(format!("'{name}' is no model of a device: there are {known}"))
    };
    Ok(match words(name)[..] {
        ["nvme"] => Model::nvme(),
        ["ssd" | "sata-ssd"] => Model::sata_ssd(),
        ["sas-ssd"] => Model::Ssd(SsdModel::enterprise_sas()),
        [flash @ ("nvme" | "ssd" | "sata-ssd" | "sas-ssd"), "worn"] => match device(flash)? {
            Model::Ssd(model) => Model::Ssd(model.worn()),
            other => other,
        },
        ["hdd"] => Model::hdd(),
        // As shipped (mode page 08h, WCE of 1) and as `lab zil` has them: its cache is on.
        ["hdd-10k"] => Model::Hdd(HddModel::enterprise_10k()),
        ["fixed", latency, bandwidth] => {
            let us = latency.parse::<u64>().ok().and_then(|us| us.checked_mul(1000)).map(Nanos);
            let latency = us.or_else(|| parse_span(latency)).filter(|l| l.0 <= 10_000_000_000).ok_or_else(bad)?;
            let mib = bandwidth.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << 20));
            let bandwidth = mib.or_else(|| dsl::props::parse_size(bandwidth).ok());
            let bandwidth = bandwidth.filter(|b| (1 << 16..=1 << 40).contains(b)).ok_or_else(bad)?;
            Model::Fixed { latency, bandwidth }
        }
        _ => return Err(bad()),
    })
}

/// A time such as 5s, 100ms or 50us, up to an hour.
pub fn parse_span(text: &str) -> Option<Nanos> {
    let units = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000u64)];
    let found = units.iter().find_map(|(unit, ns)| {
        let n = text.strip_suffix(unit)?.trim().parse::<u64>().ok()?;
        n.checked_mul(*ns).filter(|ns| (1..=3600 * 1_000_000_000).contains(ns))
    });
    found.map(Nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_and_models_have_names() {
        let spec = LayoutSpec::parse("mirror:2, raidz2:6,log-single,special-mirror:3").unwrap();
        assert_eq!(spec.devices(), 12);
        let kinds: Vec<_> = spec.0.iter().map(|t| (t.kind, t.bias)).collect();
        let want = [
            (GroupKind::Mirror, Bias::Normal),
            (GroupKind::Raidz(2), Bias::Normal),
            (GroupKind::Single, Bias::Log),
            (GroupKind::Mirror, Bias::Special),
        ];
        assert_eq!(kinds, want);
        for bad in [
            "",
            "mirror",
            "mirror:1",
            "single:2",
            "raidz4:5",
            "raidz1:x",
            "cache-single",
            "draid1:4",
            "draid4:11c",
            "draid2:8d:10c:1s",
            "draid1:4d:8x",
            "stripe 0",
            "mirrors 2 of 1",
            "raidz2 2",
        ] {
            assert!(LayoutSpec::parse(bad).unwrap_err().to_string().contains("no vdev of a layout"), "{bad}");
        }
        assert!(LayoutSpec::parse("mirror:200,mirror:200").is_err());
        assert_eq!(LayoutSpec::parse(&spec.text()).unwrap(), spec);
        assert_eq!((spec.data_devices(), spec.survives(), spec.has_log()), (5.0, 1, true));
        assert_eq!([7, 8, 9].map(|n| spec.is_log(n)), [false, true, false]);
        let spread = LayoutSpec::parse("draid2:4d:11c:2s,draid:9c,dedup-single").unwrap();
        let kinds: Vec<_> = spread.0.iter().map(|t| (t.kind, t.bias, t.devices)).collect();
        let draid = |parity, data, spares| GroupKind::Draid { parity, data, spares };
        let want = [
            (draid(2, Some(4), 2), Bias::Normal, 11),
            (draid(1, None, 0), Bias::Normal, 9),
            (GroupKind::Single, Bias::Dedup, 1),
        ];
        assert_eq!(kinds, want);
        assert_eq!(spread.data_devices(), 6.0 + 8.0);
        assert_eq!(LayoutSpec::parse(&spread.text()).unwrap(), spread);
        // Both ways to write it mean the same.
        for (a, b) in [
            ("disk", "single"),
            ("stripe 3", "single,single,single"),
            ("mirrors 2 of 3", "mirror:3,mirror 3"),
            ("raidz 4, log-stripe 2", "raidz1:4,log-single,log-disk"),
        ] {
            assert_eq!(LayoutSpec::parse(a).unwrap(), LayoutSpec::parse(b).unwrap(), "{a}");
        }
        assert_eq!(["stripe 3", "mirrors 2 of 3"].map(|l| LayoutSpec::parse(l).unwrap().copies()), [2, 3]);
        for (a, b) in [("fixed:50:100", "fixed 50us 100M"), ("fixed 1ms 1G", "fixed:1000:1024"), ("ssd", "sata-ssd")] {
            assert_eq!(device(a).unwrap(), device(b).unwrap(), "{a}");
        }
        for name in ["nvme", "sata-ssd", "sas-ssd", "hdd", "hdd-10k", "fixed:50:100"] {
            assert!(device(name).is_ok(), "{name}");
        }
        assert!(matches!(device("nvme:worn"), Ok(Model::Ssd(m)) if m.worn));
        for bad in ["tape", "fixed:50", "fixed:50:0", "fixed:x:1", "hdd worn"] {
            assert!(device(bad).unwrap_err().to_string().contains("no model"), "{bad}");
        }
    }
}
