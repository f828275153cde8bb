//! Layouts and device models by name, for replays.

use base::{Error, Nanos, Result};
use sim::{HddModel, Model, SimDisk, SsdModel};
use spa::{Bias, Group, GroupKind, Layout};

use crate::stage;

/// Most devices of a layout.
const DEVICES_MAX: usize = 256;

/// A top-level vdev.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Top {
    kind: GroupKind,
    bias: Bias,
    devices: usize,
}

/// Top-level vdevs in order: `single`, `mirror:N`, `raidz1:N` to `raidz3:N`, each with `log-` or
/// `special-` before it if it is one, with commas between them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayoutSpec(Vec<Top>);

impl LayoutSpec {
    /// By its text.
    ///
    /// # Errors
    /// `Invalid`, with the part that is wrong.
    pub fn parse(text: &str) -> Result<LayoutSpec> {
        let tops = text.split(',').map(|word| top(word.trim())).collect::<Result<Vec<_>>>()?;
        let spec = LayoutSpec(tops);
        match spec.devices() {
            n if n > DEVICES_MAX => {
                Err(Error::invalid(format!("the layout '{text}' has {n} devices: at most {DEVICES_MAX}")))
            }
            _ => Ok(spec),
        }
    }

    /// How many devices it has.
    pub fn devices(&self) -> usize {
        self.0.iter().map(|t| t.devices).sum()
    }

    /// The layout on `disks`, as many as it has devices.
    pub fn on(&self, disks: &[SimDisk]) -> Layout {
        let mut disks = disks.iter();
        let group = |t: &Top| {
            let devices = disks.by_ref().take(t.devices).map(stage::device).collect();
            Group { kind: t.kind, bias: t.bias, devices }
        };
        Layout { groups: self.0.iter().map(group).collect(), ..Layout::default() }
    }
}

fn top(word: &str) -> Result<Top> {
    let bad = || {
        let known = "single, mirror:N, raidz1:N, raidz2:N, raidz3:N, also with log- or special- before";
        Error::invalid(format!("'{word}' is no vdev of a layout: there are {known}"))
    };
    let (bias, shape) = match word.split_once('-') {
        Some(("log", rest)) => (Bias::Log, rest),
        Some(("special", rest)) => (Bias::Special, rest),
        _ => (Bias::Normal, word),
    };
    let (name, devices) = match shape.split_once(':') {
        Some((name, n)) => (name, n.parse().ok().filter(|n| (2..=DEVICES_MAX).contains(n)).ok_or_else(bad)?),
        None => (shape, 1),
    };
    let kind = match name {
        "single" if devices == 1 => GroupKind::Single,
        "mirror" if devices > 1 => GroupKind::Mirror,
        "raidz1" | "raidz2" | "raidz3" if devices > 1 => GroupKind::Raidz(name.as_bytes()[5] - b'0'),
        _ => return Err(bad()),
    };
    Ok(Top { kind, bias, devices })
}

/// The model of that name; the disk has this seed.
///
/// # Errors
/// `Invalid` if there is none.
pub fn model(name: &str, seed: u64) -> Result<Model> {
    Ok(match name {
        "nvme" => Model::nvme(),
        "sata-ssd" => Model::sata_ssd(),
        "sas-ssd" => Model::Ssd(SsdModel::enterprise_sas()),
        "hdd" => Model::Hdd(HddModel::nearline_7200().one_of(seed)),
        "hdd-10k" => Model::Hdd(HddModel::enterprise_10k().without_write_cache().one_of(seed)),
        _ => {
            let numbers = name.strip_prefix("fixed:").and_then(|rest| rest.split_once(':'));
            let fixed = numbers.and_then(|(us, mb)| Some((us.parse::<u64>().ok()?, mb.parse::<u64>().ok()?)));
            match fixed {
                Some((us @ ..=10_000_000, mb @ 1..=1_000_000)) => {
                    Model::Fixed { latency: Nanos::from_us(us), bandwidth: mb << 20 }
                }
                _ => {
                    let known = "nvme, sata-ssd, sas-ssd, hdd, hdd-10k and fixed:MICROSECONDS:MIB_A_SECOND";
                    return Err(Error::invalid(format!("'{name}' is no model of a device: there are {known}")));
                }
            }
        }
    })
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
        for bad in ["", "mirror", "mirror:1", "single:2", "raidz4:5", "raidz1:x", "cache-single", "draid1:4"] {
            assert!(LayoutSpec::parse(bad).unwrap_err().to_string().contains("no vdev of a layout"), "{bad}");
        }
        assert!(LayoutSpec::parse("mirror:200,mirror:200").is_err());
        for name in ["nvme", "sata-ssd", "sas-ssd", "hdd", "hdd-10k", "fixed:50:100"] {
            assert!(model(name, 1).is_ok(), "{name}");
        }
        for bad in ["tape", "fixed:50", "fixed:50:0", "fixed:x:1"] {
            assert!(model(bad, 1).unwrap_err().to_string().contains("no model"), "{bad}");
        }
    }
}
