//! The vdev specification of `zpool create` and `zpool add`.
//!
//! A list goes from left to right. `log`, `special`, `dedup`, `spare` and `cache` begin a section
//! that lasts until the next of these words; `mirror`, `raidz`, `raidz1` to `raidz3` and `draid...`
//! begin a group that lasts until the next word of either sort. Devices outside a group are single
//! vdevs.

use base::{Error, Result};
use ondisk::feature::FeatureId;
use spa::{Bias, GroupKind};

/// Words that begin a section or a group.
const WORDS: &[&str] = &["mirror", "raidz", "raidz1", "raidz2", "raidz3", "spare", "log", "cache", "special", "dedup"];

/// The vdev word of an argument, if it is one.
pub fn vdev_word(arg: &str) -> Option<&'static str> {
    let head = arg.split(':').next().unwrap_or(arg);
    if head.strip_prefix("draid").is_some_and(|rest| rest.is_empty() || rest.parse::<u8>().is_ok()) {
        return Some("draid");
    }
    WORDS.iter().find(|w| **w == arg).copied()
}

/// A top-level vdev, with its devices by path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupPaths {
    /// Its type.
    pub kind: GroupKind,
    /// Its class.
    pub bias: Bias,
    /// Its devices.
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

/// The section of the next device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Tops(Bias),
    Spares,
    Caches,
}

fn bad<T>(why: impl std::fmt::Display) -> Result<T> {
    Err(Error::invalid(format!("invalid vdev specification: {why}")))
}

/// The vdev type of a word, with the number of children of a draid word.
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
        // Whether a group is open, and its required number of devices.
        let mut open: Option<Option<usize>> = None;
        for word in ["log", "spare", "cache"] {
            if args.iter().filter(|a| *a == word).count() > 1 {
                return bad(format!("'{word}' can be specified only once"));
            }
        }
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
                // As in OpenZFS: a group after spares or caches is one of the pool.
                let bias = match section {
                    Section::Tops(bias) => bias,
                    Section::Spares if out.spares.is_empty() => return bad("spare requires at least 1 devices"),
                    Section::Caches if out.caches.is_empty() => return bad("cache requires at least 1 devices"),
                    Section::Spares | Section::Caches => Bias::Normal,
                };
                section = Section::Tops(bias);
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

    /// Checks a complete group.
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

    /// Features that these vdevs need.
    pub fn features(&self) -> Vec<FeatureId> {
        let classes = self.groups.iter().any(|g| matches!(g.bias, Bias::Special | Bias::Dedup));
        let draid = self.groups.iter().any(|g| matches!(g.kind, GroupKind::Draid { .. }));
        let all = [(classes, FeatureId::AllocationClasses), (draid, FeatureId::Draid)];
        all.into_iter().filter(|(needed, _)| *needed).map(|(_, id)| id).collect()
    }

    /// The top-level vdevs of a section (`dedup`, `special`, `logs`; empty for the normal ones):
    /// the name of a group in listings, none for a single device, and its devices.
    pub fn section(&self, class: &str) -> Vec<(Option<String>, &[String])> {
        let of = |g: &&GroupPaths| {
            let own = match g.bias {
                Bias::Normal => "",
                Bias::Log => "logs",
                Bias::Special => "special",
                Bias::Dedup => "dedup",
            };
            own == class
        };
        let name = |g: &GroupPaths| match g.kind {
            GroupKind::Single => None,
            GroupKind::Mirror => Some("mirror".to_string()),
            GroupKind::Raidz(p) => Some(format!("raidz{p}")),
            GroupKind::Draid { parity, data, spares } => {
                let n = g.paths.len();
                let data = data.map_or_else(|| default_data(n, parity, spares), usize::from);
                Some(format!("draid{parity}:{data}d:{n}c:{spares}s"))
            }
        };
        self.groups.iter().filter(of).map(|g| (name(g), g.paths.as_slice())).collect()
    }

    /// Every device.
    pub fn paths(&self) -> impl Iterator<Item = &String> {
        self.groups.iter().flat_map(|g| &g.paths).chain(&self.spares).chain(&self.caches)
    }

    /// Refuses mismatched replication (`-f` permits it): devices of unequal sizes, or files and
    /// disks, in one vdev; vdevs with unequal redundancy. `pool` is the replication of an existing
    /// pool. OpenZFS's rules (behaviour of `zpool create` and `add`); logs are not checked.
    pub fn check_replication(&self, leaf: &dyn Fn(&str) -> Option<LeafInfo>, pool: &[Replication]) -> Result<()> {
        let mut all = Vec::new();
        for group in self.groups.iter().filter(|g| g.bias != Bias::Log) {
            let leaves: Vec<LeafInfo> = group.paths.iter().filter_map(|p| leaf(p)).collect();
            let rep = Replication::of_group(group, leaves.first().is_none_or(|l| !l.is_disk));
            if group.kind != GroupKind::Single {
                check_leaves(rep.word, &leaves)?;
            }
            all.push(rep);
        }
        let force = "use -f to have it all the same";
        for pair in all.windows(2) {
            if let Some((a, b)) = pair[0].mismatch_beside(&pair[1]) {
                return bad(format!("mismatched replication level: both {a} and {b} vdevs are present: {force}"));
            }
        }
        // A pool that is mismatched already takes any vdev.
        let is_even = pool.windows(2).all(|p| p[0].mismatch_beside(&p[1]).is_none());
        if let (Some(old), Some(new), true) = (pool.last(), all.last(), is_even)
            && let Some((a, b)) = old.mismatch(new)
        {
            return bad(format!("mismatched replication level: pool uses {a} and new vdev is {b}: {force}"));
        }
        Ok(())
    }
}

/// Default data devices of a dRAID group: 8, or as many as there are (`VDEV_DRAID_MAXDATA...` of
/// OpenZFS's `zpool create`).
fn default_data(devices: usize, parity: u8, spares: u8) -> usize {
    devices.saturating_sub(usize::from(parity) + usize::from(spares)).clamp(1, 8)
}

/// Bytes by which the devices of a vdev may differ (`ZPOOL_FUZZ`).
const SIZE_FUZZ: u64 = 16 << 20;

/// The properties of a device for the check of redundancy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeafInfo {
    /// A block device, not a file.
    pub is_disk: bool,
    /// Bytes.
    pub size: u64,
}

/// The replication of a top-level vdev.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replication {
    /// `disk`, `file`, `mirror`, `raidz`, `draid`.
    pub word: &'static str,
    /// Parity columns.
    pub parity: u8,
    /// Devices.
    pub children: usize,
}

impl Replication {
    fn of_group(group: &GroupPaths, is_file: bool) -> Replication {
        let (word, parity) = match group.kind {
            GroupKind::Single if is_file => ("file", 0),
            GroupKind::Single => ("disk", 0),
            GroupKind::Mirror => ("mirror", 0),
            GroupKind::Raidz(p) => ("raidz", p),
            GroupKind::Draid { parity, .. } => ("draid", parity),
        };
        Replication { word, parity, children: group.paths.len() }
    }

    /// Devices that it can lose.
    fn losses(&self) -> usize {
        if self.word == "mirror" { self.children.saturating_sub(1) } else { usize::from(self.parity) }
    }

    /// As [`Replication::mismatch`], of vdevs that stand beside each other: those with parity match
    /// if it is the same.
    fn mismatch_beside(&self, other: &Replication) -> Option<(String, String)> {
        let has_parity = |r: &Replication| matches!(r.word, "raidz" | "draid");
        if has_parity(self) && has_parity(other) && self.parity == other.parity {
            return None;
        }
        self.mismatch(other)
    }

    /// Descriptions of both, if they differ: mirrors and vdevs with parity match if they can lose
    /// as many devices.
    fn mismatch(&self, other: &Replication) -> Option<(String, String)> {
        let redundant = |r: &Replication| matches!(r.word, "mirror" | "raidz" | "draid");
        let both = |f: &dyn Fn(&Replication) -> String| Some((f(self), f(other)));
        if self.word != other.word && redundant(self) && redundant(other) {
            return match self.losses() == other.losses() {
                true => None,
                false => both(&|r| format!("{} that can lose {}", r.word, r.losses())),
            };
        }
        if self.word != other.word {
            return both(&|r| r.word.to_string());
        }
        if self.parity != other.parity {
            return both(&|r| format!("{} device parity {}", r.parity, r.word));
        }
        if self.children == other.children { None } else { both(&|r| format!("{}-way {}", r.children, r.word)) }
    }
}

/// Refuses files beside disks, and unequal sizes, within a vdev.
fn check_leaves(word: &str, leaves: &[LeafInfo]) -> Result<()> {
    let known: Vec<&LeafInfo> = leaves.iter().filter(|l| l.size > 0).collect();
    for pair in known.windows(2) {
        if pair[0].is_disk != pair[1].is_disk {
            let why = "contains both files and devices: use -f to have it all the same";
            return bad(format!("mismatched replication level: {word} {why}"));
        }
        if pair[0].size.abs_diff(pair[1].size) > SIZE_FUZZ {
            return bad(format!("{word} contains devices of different sizes: use -f to have it all the same"));
        }
    }
    Ok(())
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
        assert_eq!(
            shape("mirror a b spare c d mirror e f cache g raidz h i"),
            "Mirror/Normal:a,b Mirror/Normal:e,f Raidz(1)/Normal:h,i | c,d | g"
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
            ("mirror a b cache mirror c d", "cache requires at least 1"),
            ("mirror a b spare raidz c d", "spare requires at least 1"),
            ("mirror", "at least 2"),
            ("log", "no device"),
        ] {
            match parse(text) {
                Err(e) => assert!(e.to_string().contains(word), "{text}: {e}"),
                Ok(_) => panic!("{text} is taken"),
            }
        }
    }

    /// Devices that begin with `d` are disks, others files; a digit at the end is the size in units
    /// of 100 MiB.
    fn facts(path: &str) -> Option<LeafInfo> {
        let digit = path.bytes().last().filter(u8::is_ascii_digit).map_or(1, |d| u64::from(d - b'0'));
        Some(LeafInfo { is_disk: path.starts_with('d'), size: digit * (100 << 20) })
    }

    fn rep(word: &'static str, parity: u8, children: usize) -> Replication {
        Replication { word, parity, children }
    }

    #[test]
    fn new_vdevs_are_to_be_like_the_pool() {
        for (text, pool, good) in [
            ("mirror a b", rep("mirror", 0, 2), true),
            ("a", rep("mirror", 0, 2), false),
            ("mirror a b c", rep("mirror", 0, 2), false),
            ("raidz a b c", rep("raidz", 1, 3), true),
            ("raidz2 a b c", rep("raidz", 1, 3), false),
            ("raidz a b c e", rep("raidz", 1, 3), false),
            ("special mirror a b", rep("raidz", 1, 3), true),
            ("mirror a b", rep("raidz", 1, 3), true),
            ("mirror a b c", rep("raidz", 1, 3), false),
            ("raidz2 a b c e", rep("mirror", 0, 3), true),
            ("special a", rep("raidz", 1, 3), false),
            ("log a spare b cache c", rep("raidz", 1, 3), true),
            ("a b", rep("file", 0, 1), true),
            ("a b", rep("disk", 0, 1), false),
            ("d", rep("disk", 0, 1), true),
        ] {
            assert_eq!(parse(text).unwrap().check_replication(&facts, &[pool]).is_ok(), good, "{text}");
        }
        // A pool with mismatched vdevs takes any vdev.
        let uneven = [rep("mirror", 0, 2), rep("file", 0, 1)];
        assert!(parse("raidz a b c").unwrap().check_replication(&facts, &uneven).is_ok());
    }

    #[test]
    fn unequal_groups_need_force() {
        for (text, good) in [
            ("mirror a b mirror c e log f", true),
            ("mirror a b raidz c e f", true),
            ("raidz a b c raidz e f g h", true),
            ("draid a b c draid e f g h special mirror i j", true),
            ("raidz a b draid2 c e f g", false),
            ("mirror a b raidz2 c e f", false),
            ("mirror a b c raidz2 e f g h", true),
            ("a b c", true),
            ("a d", false),
            ("mirror a b c", true),
            ("mirror a b c e mirror f g", false),
            ("raidz a b c raidz2 e f g", false),
            ("raidz a b c special mirror e f", true),
            ("raidz a b c special e", false),
            ("a b c special mirror e f", false),
            ("mirror a b log c", true),
            ("mirror a1 b2", false),
            ("raidz a1 b1 c2", false),
            ("raidz a1 b1 c1 log mirror e1 f2", true),
            ("mirror a d", false),
            ("a1 b2", true),
        ] {
            let e = parse(text).unwrap().check_replication(&facts, &[]);
            assert_eq!(e.is_ok(), good, "{text}: {e:?}");
        }
    }

    #[test]
    fn sections_come_once() {
        for text in ["a log b log c", "a spare b spare c", "a cache b cache c"] {
            assert!(parse(text).err().unwrap().to_string().contains("can be specified only once"), "{text}");
        }
        assert!(parse("a special b special c dedup e dedup f").is_ok());
    }
}
