//! The vdev words of `zpool create` and `zpool add`: which devices stand together.
//!
//! A list goes from left to right. `log`, `special`, `dedup`, `spare` and `cache` begin a section that lasts until the next of these words; `mirror`, `raidz`, `raidz1`
//! to `raidz3` and `draid...` begin a group that lasts until the next word of either sort. Devices outside of a group stand by themselves.

use base::{Error, Result};
use spa::{Bias, GroupKind};

/// Words that begin a section or a group.
const WORDS: &[&str] = &["mirror", "raidz", "raidz1", "raidz2", "raidz3", "spare", "log", "cache", "special", "dedup"];

/// The word of a device list that names a kind of vdev, if it is one.
pub fn vdev_word(arg: &str) -> Option<&'static str> {
    let head = arg.split(':').next().unwrap_or(arg);
    if head.strip_prefix("draid").is_some_and(|rest| rest.is_empty() || rest.parse::<u8>().is_ok()) {
        return Some("draid");
    }
    WORDS.iter().find(|w| **w == arg).copied()
}

/// Devices that stand together, by path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupPaths {
    /// How.
    pub kind: GroupKind,
    /// What for.
    pub bias: Bias,
    /// Which.
    pub paths: Vec<String>,
}

/// A parsed list.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct VdevSpec {
    /// The top-level vdevs.
    pub groups: Vec<GroupPaths>,
    /// Hot spares.
    pub spares: Vec<String>,
    /// Cache devices.
    pub caches: Vec<String>,
}

/// Where the next device goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Tops(Bias),
    Spares,
    Caches,
}

fn bad<T>(why: impl std::fmt::Display) -> Result<T> {
    Err(Error::invalid(format!("invalid vdev specification: {why}")))
}

/// The kind that a word begins, with the number of children that a draid word tells.
fn group_kind(word: &str) -> Result<Option<(GroupKind, Option<usize>)>> {
    Ok(Some(match word {
        "mirror" => (GroupKind::Mirror, None),
        "raidz" | "raidz1" => (GroupKind::Raidz(1), None),
        "raidz2" => (GroupKind::Raidz(2), None),
        "raidz3" => (GroupKind::Raidz(3), None),
        _ if vdev_word(word) == Some("draid") => return draid(word).map(Some),
        _ => return Ok(None),
    }))
}

/// `draid[PARITY][:DATAd][:CHILDRENc][:SPARESs]`.
fn draid(word: &str) -> Result<(GroupKind, Option<usize>)> {
    let mut parts = word.split(':');
    let head = parts.next().unwrap_or(word).trim_start_matches("draid");
    let parity = if head.is_empty() { 1 } else { head.parse().unwrap_or(0) };
    if !(1..=3).contains(&parity) {
        return bad(format!("'{word}': the parity of a draid is 1 to 3"));
    }
    let (mut data, mut children, mut spares) = (None, None, 0);
    for part in parts {
        let (number, unit) = part.split_at(part.len().saturating_sub(1));
        let Ok(n) = number.parse::<u8>() else {
            return bad(format!("'{word}': '{part}' is not a number and d, c or s"));
        };
        match unit {
            "d" if n > 0 => data = Some(n),
            "c" => children = Some(usize::from(n)),
            "s" => spares = n,
            _ => return bad(format!("'{word}': '{part}' is not a number and d, c or s")),
        }
    }
    Ok((GroupKind::Draid { parity, data, spares }, children))
}

impl VdevSpec {
    /// Parses a list of words and paths.
    pub fn parse(args: &[String]) -> Result<VdevSpec> {
        let mut out = VdevSpec::default();
        let mut section = Section::Tops(Bias::Normal);
        // The group that devices go to, and how many it is to have.
        let mut open: Option<Option<usize>> = None;
        for arg in args {
            let next = match arg.as_str() {
                "log" => Some(Section::Tops(Bias::Log)),
                "special" => Some(Section::Tops(Bias::Special)),
                "dedup" => Some(Section::Tops(Bias::Dedup)),
                "spare" => Some(Section::Spares),
                "cache" => Some(Section::Caches),
                _ => None,
            };
            if let Some(next) = next {
                out.close(open.take())?;
                section = next;
                continue;
            }
            if let Some((kind, count)) = group_kind(arg)? {
                out.close(open.take())?;
                let Section::Tops(bias) = section else {
                    return bad(format!("spares and caches are single devices, not a '{arg}'"));
                };
                out.groups.push(GroupPaths { kind, bias, paths: Vec::new() });
                open = Some(count);
                continue;
            }
            match section {
                Section::Spares => out.spares.push(arg.clone()),
                Section::Caches => out.caches.push(arg.clone()),
                Section::Tops(bias) => match (open, out.groups.last_mut()) {
                    (Some(_), Some(group)) => group.paths.push(arg.clone()),
                    _ => out.groups.push(GroupPaths { kind: GroupKind::Single, bias, paths: vec![arg.clone()] }),
                },
            }
        }
        out.close(open)?;
        if out.paths().next().is_none() {
            return bad("no device is named");
        }
        Ok(out)
    }

    /// A group is complete.
    fn close(&self, open: Option<Option<usize>>) -> Result<()> {
        let (Some(count), Some(group)) = (open, self.groups.last()) else { return Ok(()) };
        let n = group.paths.len();
        let (min, what) = match group.kind {
            GroupKind::Single => (1, "device".to_string()),
            GroupKind::Mirror => (2, "mirror".to_string()),
            GroupKind::Raidz(p) => (usize::from(p) + 1, format!("raidz{p}")),
            GroupKind::Draid { parity, data, spares } => {
                let data = usize::from(data.unwrap_or(1));
                (usize::from(parity) + data + usize::from(spares), format!("draid{parity}"))
            }
        };
        if n < min.max(2) && group.kind != GroupKind::Single {
            return bad(format!("{what} requires at least {} devices", min.max(2)));
        }
        if let Some(count) = count.filter(|c| *c != n) {
            return bad(format!("the {what} is to have {count} devices and {n} are named"));
        }
        if group.bias == Bias::Log && !matches!(group.kind, GroupKind::Single | GroupKind::Mirror) {
            return bad(format!("a log can be devices and mirrors, not a {what}"));
        }
        Ok(())
    }

    /// Every device.
    pub fn paths(&self) -> impl Iterator<Item = &String> {
        self.groups.iter().flat_map(|g| &g.paths).chain(&self.spares).chain(&self.caches)
    }

    /// As [`VdevSpec::check_replication`], against what the pool has: the word, parity and number of devices of its vdevs.
    pub fn check_against(&self, kind: &str, parity: u8, devices: usize) -> Result<()> {
        for group in self.groups.iter().filter(|g| g.bias != Bias::Log) {
            let (own, own_parity) = match group.kind {
                GroupKind::Single => ("disk", 0),
                GroupKind::Mirror => ("mirror", 0),
                GroupKind::Raidz(p) => ("raidz", p),
                GroupKind::Draid { parity, .. } => ("draid", parity),
            };
            let beside = matches!((kind, own), ("raidz" | "draid", "mirror") | ("mirror", "raidz" | "draid"));
            let n = group.paths.len();
            let why = if beside && group.bias != Bias::Normal {
                // Special and dedup vdevs may be mirrors beside raidz.
                continue;
            } else if own != kind {
                format!("pool uses {kind} and new vdev is {own}")
            } else if own_parity != parity {
                format!("pool uses {parity} device parity and new vdev uses {own_parity}")
            } else if n != devices && group.bias == Bias::Normal {
                format!("pool uses {devices}-way {kind} and new vdev uses {n}-way {own}")
            } else {
                continue;
            };
            return bad(format!("mismatched replication level: {why}: use -f to have it all the same"));
        }
        Ok(())
    }

    /// Refuses normal vdevs that survive unequal losses, as nobody wants that (`-f`: somebody does).
    pub fn check_replication(&self) -> Result<()> {
        let name = |kind: GroupKind| match kind {
            GroupKind::Single => "disk".to_string(),
            GroupKind::Mirror => "mirror".to_string(),
            GroupKind::Raidz(_) => "raidz".to_string(),
            GroupKind::Draid { .. } => "draid".to_string(),
        };
        let parity = |kind: GroupKind| match kind {
            GroupKind::Raidz(p) | GroupKind::Draid { parity: p, .. } => p,
            _ => 0,
        };
        let mut first: Option<&GroupPaths> = None;
        for group in self.groups.iter().filter(|g| g.bias != Bias::Log) {
            let Some(old) = first else {
                first = Some(group);
                continue;
            };
            let (a, b) = (name(old.kind), name(group.kind));
            let why = if a != b {
                // Special and dedup vdevs may be mirrors beside raidz.
                if group.bias != Bias::Normal && group.kind == GroupKind::Mirror {
                    continue;
                }
                format!("both {a} and {b} vdevs are present")
            } else if parity(old.kind) != parity(group.kind) {
                format!("both {} and {} device parity {a} vdevs are present", parity(old.kind), parity(group.kind))
            } else if old.paths.len() != group.paths.len() && group.bias == Bias::Normal {
                format!("both {}-way and {}-way {a} vdevs are present", old.paths.len(), group.paths.len())
            } else {
                continue;
            };
            return bad(format!("mismatched replication level: {why}: use -f to have it all the same"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(text: &str) -> Result<VdevSpec> {
        VdevSpec::parse(&text.split_whitespace().map(str::to_string).collect::<Vec<_>>())
    }

    fn shape(text: &str) -> String {
        let spec = parse(text).unwrap();
        let groups: Vec<String> =
            spec.groups.iter().map(|g| format!("{:?}/{:?}:{}", g.kind, g.bias, g.paths.join(","))).collect();
        format!("{} | {} | {}", groups.join(" "), spec.spares.join(","), spec.caches.join(","))
    }

    #[test]
    fn words_make_groups() {
        assert_eq!(shape("a b"), "Single/Normal:a Single/Normal:b |  | ");
        assert_eq!(
            shape("mirror a b mirror c d log mirror e f spare g h cache i"),
            "Mirror/Normal:a,b Mirror/Normal:c,d Mirror/Log:e,f | g,h | i"
        );
        assert_eq!(
            shape("raidz a b c special mirror d e dedup f log g h"),
            "Raidz(1)/Normal:a,b,c Mirror/Special:d,e Single/Dedup:f Single/Log:g Single/Log:h |  | "
        );
        let draid = parse("draid2:4d:9c:1s a b c d e f g h i").unwrap();
        assert_eq!(draid.groups[0].kind, GroupKind::Draid { parity: 2, data: Some(4), spares: 1 });
        assert_eq!(parse("draid a b c").unwrap().groups[0].kind, GroupKind::Draid { parity: 1, data: None, spares: 0 });
        for (text, word) in [
            ("mirror a", "at least 2"),
            ("raidz2 a b", "at least 3"),
            ("draid2:4d:9c:1s a b c d e f g h", "9 devices"),
            ("draid4 a b", "1 to 3"),
            ("draid:4x a b c", "'4x'"),
            ("log raidz a b c", "a log can be"),
            ("spare mirror a b", "single devices"),
            ("mirror", "at least 2"),
            ("log", "no device"),
        ] {
            match parse(text) {
                Err(e) => assert!(e.to_string().contains(word), "{text}: {e}"),
                Ok(_) => panic!("{text} is taken"),
            }
        }
    }

    #[test]
    fn new_vdevs_are_to_be_like_the_pool() {
        for (text, pool, good) in [
            ("mirror a b", ("mirror", 0, 2), true),
            ("a", ("mirror", 0, 2), false),
            ("mirror a b c", ("mirror", 0, 2), false),
            ("raidz a b c", ("raidz", 1, 3), true),
            ("raidz2 a b c", ("raidz", 1, 3), false),
            ("special mirror a b", ("raidz", 1, 3), true),
            ("special a", ("raidz", 1, 3), false),
            ("log a spare b cache c", ("raidz", 1, 3), true),
            ("a b", ("disk", 0, 1), true),
        ] {
            assert_eq!(parse(text).unwrap().check_against(pool.0, pool.1, pool.2).is_ok(), good, "{text}");
        }
    }

    #[test]
    fn unequal_groups_need_force() {
        for (text, good) in [
            ("mirror a b mirror c d log e", true),
            ("mirror a b raidz c d e", false),
            ("a b c", true),
            ("mirror a b c", true),
            ("mirror a b c d mirror e f", false),
            ("raidz a b c raidz2 d e f", false),
            ("raidz a b c special mirror d e", true),
            ("raidz a b c special d", false),
            ("mirror a b c log d", true),
        ] {
            assert_eq!(parse(text).unwrap().check_replication().is_ok(), good, "{text}");
        }
    }
}
