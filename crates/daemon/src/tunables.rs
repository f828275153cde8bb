//! Tunables: the names and units of OpenZFS, where they come from, and how they are split over pools.
//!
//! Later sources win: the file `tunables.conf` in the state folder (`name=value` lines, `#` begins a comment), `$WEIR_TUNABLES` (`name=value`, separated by commas or
//! spaces), `weir daemon start -o name=value`. `zfs_arc_max` and `zfs_dirty_data_max` are limits of the whole process; [`Tunables::engine_opts`] gives each pool
//! its share.

use base::{Error, Nanos, Result};
use spa::EngineOpts;
use txg::TxgTunables;

/// A tunable's name, what it means, and its range.
struct Known {
    name: &'static str,
    meaning: &'static str,
    min: u64,
    max: u64,
}

const MIB: u64 = 1 << 20;

const KNOWN: &[Known] = &[
    Known {
        name: "zfs_arc_max",
        meaning: "most bytes that the caches of all pools hold",
        min: 16 * MIB,
        max: u64::MAX >> 1,
    },
    Known {
        name: "zfs_dirty_data_max",
        meaning: "most bytes of all pools that are written but not yet on disk",
        min: MIB,
        max: u64::MAX >> 1,
    },
    Known { name: "zfs_dirty_data_sync_percent", meaning: "share of it at which a txg is closed", min: 1, max: 100 },
    Known { name: "zfs_delay_min_dirty_percent", meaning: "share of it at which writes are delayed", min: 0, max: 100 },
    Known { name: "zfs_delay_scale", meaning: "how fast the delay grows, in ns", min: 1, max: 1_000_000_000 },
    Known { name: "zfs_delay_max_ns", meaning: "longest delay of a write, in ns", min: 0, max: 10_000_000_000 },
    Known { name: "zfs_txg_timeout", meaning: "seconds after which a txg is closed", min: 1, max: 3600 },
];

/// What is set, and the memory that the defaults are reckoned from.
#[derive(Clone, Debug)]
pub struct Tunables {
    physmem: u64,
    set: Vec<(&'static str, u64)>,
}

impl Tunables {
    /// The defaults on a machine with `physmem` bytes.
    pub fn for_memory(physmem: u64) -> Tunables {
        Tunables { physmem, set: Vec::new() }
    }

    /// Sets `name=value`.
    pub fn set(&mut self, assignment: &str) -> Result<()> {
        let (name, value) = assignment
            .split_once('=')
            .ok_or_else(|| Error::invalid(format!("'{assignment}' is not a tunable: write name=value")))?;
        let known = KNOWN.iter().find(|k| k.name == name.trim()).ok_or_else(|| {
            let all: Vec<&str> = KNOWN.iter().map(|k| k.name).collect();
            Error::invalid(format!("'{}' is not a tunable: there are {}", name.trim(), all.join(", ")))
        })?;
        let number = dsl::props::parse_size(value.trim()).map_err(|e| e.at(known.name))?;
        if !(known.min..=known.max).contains(&number) {
            let why = format!("{}={number} is out of range: it must be {} to {}", known.name, known.min, known.max);
            return Err(Error::invalid(why));
        }
        self.set.retain(|(n, _)| *n != known.name);
        self.set.push((known.name, number));
        Ok(())
    }

    /// Sets everything in a list separated by commas or white space.
    pub fn set_list(&mut self, list: &str) -> Result<()> {
        list.split([',', ' ', '\t', '\n']).filter(|a| !a.is_empty()).try_for_each(|a| self.set(a))
    }

    /// Sets everything in the text of a configuration file.
    pub fn set_file(&mut self, text: &str) -> Result<()> {
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or("").trim();
            if !line.is_empty() {
                self.set(line)?;
            }
        }
        Ok(())
    }

    fn get(&self, name: &str) -> Option<u64> {
        self.set.iter().find(|(n, _)| *n == name).map(|(_, v)| *v)
    }

    /// `zfs_arc_max` of the whole process.
    pub fn arc_max(&self) -> u64 {
        self.get("zfs_arc_max").unwrap_or_else(|| EngineOpts::for_memory(self.physmem).arc_max)
    }

    /// Dirty-data limits of one of `pools` pools.
    pub fn txg(&self, pools: usize) -> TxgTunables {
        let mut t = TxgTunables::for_memory(self.physmem);
        if let Some(v) = self.get("zfs_dirty_data_max") {
            t.dirty_data_max = v;
        }
        t.dirty_data_max = (t.dirty_data_max / pools.max(1) as u64).max(MIB);
        t.wrlog_data_max = t.dirty_data_max * 2;
        let percent = |name: &str, old: u32| self.get(name).map_or(old, |v| v as u32);
        t.dirty_data_sync_percent = percent("zfs_dirty_data_sync_percent", t.dirty_data_sync_percent);
        t.delay_min_dirty_percent = percent("zfs_delay_min_dirty_percent", t.delay_min_dirty_percent);
        t.delay_scale = self.get("zfs_delay_scale").unwrap_or(t.delay_scale);
        t.delay_max = self.get("zfs_delay_max_ns").map_or(t.delay_max, Nanos);
        t.txg_timeout = self.get("zfs_txg_timeout").map_or(t.txg_timeout, Nanos::from_secs);
        t
    }

    /// What one of `pools` pools gets.
    pub fn engine_opts(&self, pools: usize) -> EngineOpts {
        let mut opts = EngineOpts::for_memory(self.physmem);
        opts.arc_max = self.arc_max() / pools.max(1) as u64;
        opts.txg = self.txg(pools);
        opts
    }

    /// Every tunable with its value.
    pub fn all(&self) -> Vec<(String, u64)> {
        let t = self.txg(1);
        let value = |name: &str| match name {
            "zfs_arc_max" => self.arc_max(),
            "zfs_dirty_data_max" => t.dirty_data_max,
            "zfs_dirty_data_sync_percent" => u64::from(t.dirty_data_sync_percent),
            "zfs_delay_min_dirty_percent" => u64::from(t.delay_min_dirty_percent),
            "zfs_delay_scale" => t.delay_scale,
            "zfs_delay_max_ns" => t.delay_max.0,
            _ => t.txg_timeout.0 / 1_000_000_000,
        };
        KNOWN.iter().map(|k| (k.name.to_string(), value(k.name))).collect()
    }

    /// Names and meanings, for help.
    pub fn meanings() -> impl Iterator<Item = (&'static str, &'static str)> {
        KNOWN.iter().map(|k| (k.name, k.meaning))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_parsed_checked_and_split() {
        let mut t = Tunables::for_memory(8 << 30);
        assert_eq!(t.arc_max(), 4 << 30);
        t.set_file("# memory\nzfs_arc_max = 512M # half\n\nzfs_txg_timeout=30\n").unwrap();
        t.set_list("zfs_dirty_data_max=256M,zfs_arc_max=1G zfs_delay_scale=1000").unwrap();
        let opts = t.engine_opts(2);
        assert_eq!(opts.arc_max, 512 << 20);
        assert_eq!(opts.txg.dirty_data_max, 128 << 20);
        assert_eq!(opts.txg.txg_timeout, Nanos::from_secs(30));
        assert_eq!(opts.txg.delay_scale, 1000);
        assert_eq!(t.all().len(), KNOWN.len());
        for bad in ["zfs_arc_max", "zfs_arc_max=x", "zfs_arc_max=1", "nonsense=1", "zfs_dirty_data_sync_percent=101"] {
            assert!(t.set(bad).is_err(), "{bad}");
        }
        assert_eq!(t.arc_max(), 1 << 30);
    }
}
