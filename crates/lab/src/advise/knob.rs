//! What an advice may change: tunables, properties and layouts, and what each change costs.
//!
//! Steps are few and far apart: a search that tries ten values of everything finds what fits its
//! seeds, and a setting that only helps within a few percent of its value helps nobody. Tunables
//! have OpenZFS's names and meanings (`zfs(4)`); what one costs is said in a sentence beside its
//! values. Which values there are follows from what is set now ([`changes`]).

use crate::layout::LayoutSpec;

/// Where a setting is made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// A tunable of the engine, for one pool or all.
    Tunable,
    /// A property of the file system.
    Property,
    /// The vdevs: another pool.
    Layout,
}

/// A value to try.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// This one.
    To(&'static str),
    /// What is set now, times the first by the second.
    Times(u64, u64),
}

/// Something that can be set.
struct Knob {
    kind: Kind,
    name: &'static str,
    steps: &'static [Step],
    /// What a larger value costs.
    up: &'static str,
    /// What a smaller one costs.
    down: &'static str,
}

/// One setting that differs from what is set now.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Change {
    /// Where.
    pub kind: Kind,
    /// The name of a tunable or property; `layout` for vdevs.
    pub name: String,
    /// The value.
    pub value: String,
    /// What was set before.
    pub before: String,
    /// What it costs, a sentence.
    pub cost: String,
}

/// Settings beside those of now; without any, those.
pub type Candidate = Vec<Change>;

const QUEUE_UP: &str = "operations wait longer at the device, so other classes of operations wait longer behind them";
const QUEUE_DOWN: &str = "devices that do many operations at once are used less";

const KNOBS: &[Knob] = &[
    Knob {
        kind: Kind::Tunable,
        name: "zfs_dirty_data_max",
        steps: &[Step::Times(1, 4), Step::Times(4, 1)],
        up: "up to so much memory holds data that are not on disk: a crash loses more of what was not made durable, and exports take longer",
        down: "bursts of writes are delayed sooner, and blocks that are written again and again are written more often",
    },
    Knob {
        kind: Kind::Tunable,
        name: "zfs_dirty_data_sync_percent",
        steps: &[Step::To("5"), Step::To("50")],
        up: "txgs are larger: their writes come in longer bursts",
        down: "txgs are smaller: metadata are written more often",
    },
    Knob {
        kind: Kind::Tunable,
        name: "zfs_txg_timeout",
        steps: &[Step::To("1"), Step::To("15"), Step::To("30")],
        up: "a crash loses up to so many seconds of what was not made durable",
        down: "metadata are written more often",
    },
    Knob {
        kind: Kind::Tunable,
        name: "zfs_delay_scale",
        steps: &[Step::Times(1, 5), Step::Times(5, 1)],
        up: "writers are slowed down earlier than devices need it",
        down: "writers run against the limit of dirty data, where some wait for long",
    },
    Knob {
        kind: Kind::Tunable,
        name: "zfs_vdev_async_write_min_active",
        steps: &[Step::To("1"), Step::To("5")],
        up: QUEUE_UP,
        down: QUEUE_DOWN,
    },
    Knob {
        kind: Kind::Tunable,
        name: "zfs_vdev_async_write_max_active",
        steps: &[Step::To("3"), Step::To("30")],
        up: QUEUE_UP,
        down: QUEUE_DOWN,
    },
    Knob {
        kind: Kind::Tunable,
        name: "zfs_vdev_sync_write_max_active",
        steps: &[Step::To("3"), Step::To("32")],
        up: QUEUE_UP,
        down: QUEUE_DOWN,
    },
    Knob {
        kind: Kind::Tunable,
        name: "zfs_vdev_sync_read_max_active",
        steps: &[Step::To("3"), Step::To("32")],
        up: QUEUE_UP,
        down: QUEUE_DOWN,
    },
    Knob {
        kind: Kind::Tunable,
        name: "zfs_vdev_async_read_max_active",
        steps: &[Step::To("1"), Step::To("10")],
        up: QUEUE_UP,
        down: "prefetch comes later",
    },
    Knob {
        kind: Kind::Tunable,
        name: "zfs_commit_timeout_pct",
        steps: &[Step::To("1"), Step::To("50")],
        up: "a synchronous write waits longer for others to share its log block",
        down: "log blocks are smaller and more: the log device does more operations",
    },
    Knob {
        kind: Kind::Tunable,
        name: "zfs_immediate_write_sz",
        steps: &[Step::To("4096"), Step::To("131072")],
        up: "larger synchronous writes are written twice, to the log and with their txg",
        down: "smaller synchronous writes are stored as whole records at once, before they return",
    },
    Knob {
        kind: Kind::Tunable,
        name: "zfs_vdev_aggregation_limit",
        steps: &[Step::To("131072")],
        up: "long operations make others wait",
        down: "spinning disks do more operations for the same bytes",
    },
    Knob {
        kind: Kind::Property,
        name: "recordsize",
        steps: &[Step::To("8192"), Step::To("16384"), Step::To("131072"), Step::To("1048576")],
        up: "small writes and reads move whole records; only files written from then on have it",
        down: "more metadata, less compression; only files written from then on have it",
    },
    Knob {
        kind: Kind::Property,
        name: "logbias",
        steps: &[Step::To("throughput")],
        up: "synchronous writes store whole records at once and leave fragmented free space",
        down: "synchronous writes store whole records at once and leave fragmented free space",
    },
];

/// Every change of one setting from what is set now. `now` gives the value of a tunable or property
/// as a number; what it does not know is not changed. `layouts` are vdevs to try in place of
/// `layout`.
pub fn changes(now: &dyn Fn(Kind, &str) -> Option<u64>, layout: &LayoutSpec, layouts: &[LayoutSpec]) -> Vec<Change> {
    let mut out = Vec::new();
    for knob in KNOBS {
        let Some(old) = now(knob.kind, knob.name) else { continue };
        for step in knob.steps {
            let (value, up) = match *step {
                Step::Times(by, of) => {
                    let value = old / of * by;
                    (value.to_string(), value > old)
                }
                Step::To(text) => (text.into(), text.parse::<u64>().map_or(true, |new| new > old)),
            };
            if value == old.to_string() || value == "0" {
                continue;
            }
            let before = if knob.name == "logbias" { "latency".into() } else { old.to_string() };
            let cost = if up { knob.up } else { knob.down };
            out.push(Change { kind: knob.kind, name: knob.name.into(), value, before, cost: cost.into() });
        }
    }
    for other in layouts.iter().filter(|other| *other != layout) {
        out.push(Change {
            kind: Kind::Layout,
            name: "layout".into(),
            value: other.text(),
            before: layout.text(),
            cost: layout_cost(layout, other),
        });
    }
    out
}

/// What another layout costs.
fn layout_cost(old: &LayoutSpec, new: &LayoutSpec) -> String {
    let more = new.devices() as i64 - old.devices() as i64;
    let mut cost = String::from("another pool, to which everything is copied");
    if more > 0 {
        cost += &format!(", with {more} more device{}", if more == 1 { "" } else { "s" });
    }
    let (a, b) = (old.data_devices(), new.data_devices());
    if b < a - 1e-9 {
        cost += &format!(", with room for {:.0} % of the data", b / a * 100.0);
    }
    let (a, b) = (old.survives(), new.survives());
    if b < a {
        cost += &format!(", which survives {b} lost device{} in place of {a}", if b == 1 { "" } else { "s" });
    }
    cost
}

/// Command lines that make a change: of weir, of OpenZFS on Linux and of OpenZFS on FreeBSD. `pool`
/// is the pool, or for a property its file system.
pub fn lines(change: &Change, pool: &str) -> Vec<String> {
    let Change { name, value, .. } = change;
    match change.kind {
        Kind::Tunable => vec![
            format!("weir tune set --save -p {pool} {name}={value}"),
            format!("echo {value} > /sys/module/zfs/parameters/{name}"),
            format!("sysctl {}={value}", sysctl(name)),
        ],
        Kind::Property => vec![format!("zfs set {name}={value} {pool}")],
        Kind::Layout => {
            vec![format!("zpool create NEW {}    # with devices in place of numbers", value.replace(',', " "))]
        }
    }
}

/// The name of a tunable on FreeBSD: its module's part of the name has a dot behind it.
fn sysctl(name: &str) -> String {
    let known =
        [("zfs_vdev_", "vfs.zfs.vdev."), ("zfs_txg_", "vfs.zfs.txg."), ("zil_", "vfs.zfs.zil."), ("zfs_", "vfs.zfs.")];
    let found = known.iter().find_map(|(prefix, node)| Some(format!("{node}{}", name.strip_prefix(prefix)?)));
    found.unwrap_or_else(|| format!("vfs.zfs.{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(kind: Kind, name: &str) -> Option<u64> {
        match (kind, name) {
            (Kind::Tunable, "zfs_dirty_data_max") => Some(400),
            (Kind::Tunable, "zfs_txg_timeout") => Some(15),
            (Kind::Property, "recordsize") => Some(131_072),
            (Kind::Property, "logbias") => Some(0),
            _ => None,
        }
    }

    #[test]
    fn changes_differ_from_what_is_set() {
        let layout = |text: &str| LayoutSpec::parse(text).unwrap();
        let mirrors = layout("mirrors 2 of 2");
        let all = changes(&now, &mirrors, &[mirrors.clone(), layout("raidz1 4"), layout("stripe 5")]);
        let seen: Vec<(&str, &str)> = all.iter().map(|c| (c.name.as_str(), c.value.as_str())).collect();
        let want = [
            ("zfs_dirty_data_max", "100"),
            ("zfs_dirty_data_max", "1600"),
            ("zfs_txg_timeout", "1"),
            ("zfs_txg_timeout", "30"),
            ("recordsize", "8192"),
            ("recordsize", "16384"),
            ("recordsize", "1048576"),
            ("logbias", "throughput"),
            ("layout", "raidz1:4"),
            ("layout", "single,single,single,single,single"),
        ];
        assert_eq!(seen, want);
        // Up and down cost different things.
        assert!(all[0].cost.contains("delayed sooner") && all[1].cost.contains("memory"));
        assert_eq!(all[8].cost, "another pool, to which everything is copied");
        let stripe = &all[9].cost;
        assert!(
            stripe.contains("1 more device") && stripe.contains("survives 0 lost devices in place of 1"),
            "{stripe}"
        );
        let less = layout_cost(&layout("raidz1 4"), &mirrors);
        assert!(less.contains("room for 67 %"), "{less}");
    }

    #[test]
    fn lines_are_those_of_each_system() {
        let change = |kind, name: &str, value: &str| Change {
            kind,
            name: name.into(),
            value: value.into(),
            before: String::new(),
            cost: String::new(),
        };
        for (name, sysctl) in [
            ("zfs_txg_timeout", "vfs.zfs.txg.timeout"),
            ("zfs_vdev_async_write_max_active", "vfs.zfs.vdev.async_write_max_active"),
            ("zfs_dirty_data_max", "vfs.zfs.dirty_data_max"),
            ("zil_slog_bulk", "vfs.zfs.zil.slog_bulk"),
        ] {
            let lines = lines(&change(Kind::Tunable, name, "7"), "tank");
            assert_eq!(lines[0], format!("weir tune set --save -p tank {name}=7"));
            assert_eq!(lines[1], format!("echo 7 > /sys/module/zfs/parameters/{name}"));
            assert_eq!(lines[2], format!("sysctl {sysctl}=7"));
        }
        assert_eq!(lines(&change(Kind::Property, "recordsize", "8192"), "tank")[..], ["zfs set recordsize=8192 tank"]);
    }

    #[test]
    fn every_knob_says_what_it_costs() {
        for (at, knob) in KNOBS.iter().enumerate() {
            assert!(!knob.up.is_empty() && !knob.down.is_empty() && !knob.steps.is_empty(), "{}", knob.name);
            assert!(KNOBS[..at].iter().all(|other| other.name != knob.name), "{} is there twice", knob.name);
        }
    }
}
