//! Tunables: names and units of OpenZFS, sources of values, and shares of pools.
//!
//! Later sources win: the file `tunables.conf` in the state folder (`name=value` lines, or
//! `pool:name=value` for one pool; `#` begins a comment), `$WEIR_TUNABLES` (the same, separated by
//! commas or spaces), `weir daemon start -o name=value`, `weir tune set`. A value for one pool wins
//! over a value for all. `zfs_arc_max` and `zfs_dirty_data_max` are limits of the whole process;
//! [`Tunables::settings`] gives each pool its share.
//!
//! [`TABLE`] is the only place that knows a tunable: its name, unit, range, meaning, where it comes
//! from, and where its value lives in [`Settings`].

mod apply;
mod table;

use base::{Error, Nanos, Result};
use host::KeepAwake;
use spa::EngineOpts;
use strsim::levenshtein;
use txg::TxgTunables;
use vdev::Prio;

use crate::view::TunableView;

pub(crate) use crate::tunables::table::FIXED;
use crate::tunables::table::MEANINGLESS;
pub use crate::tunables::table::TABLE;

const MIB: u64 = 1 << 20;
/// The value -1 of [`Unit::PercentOrNever`].
const NEVER: u64 = u64::MAX;

/// The unit of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Percent.
    Percent,
    /// Percent, or -1 for never, stored as [`NEVER`].
    PercentOrNever,
    /// Nanoseconds.
    Ns,
    /// Milliseconds.
    Ms,
    /// Seconds.
    Seconds,
    /// A plain number.
    Count,
    /// One of these words, stored as its index.
    Word(&'static [&'static str]),
}

impl Unit {
    fn name(self) -> &'static str {
        match self {
            Unit::Bytes => "bytes",
            Unit::Percent | Unit::PercentOrNever => "percent",
            Unit::Ns => "ns",
            Unit::Ms => "ms",
            Unit::Seconds => "s",
            Unit::Count => "",
            Unit::Word(_) => "word",
        }
    }
}

/// The settings of one pool.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Settings of the engine's layers.
    pub engine: EngineOpts,
    /// Whether idle cores may be kept awake while many short requests come.
    pub keep_awake: KeepAwake,
    /// Threads for heavy CPU work, in percent of the machine's cores.
    pub batch_pct: u32,
    /// `zfs_arc_min`: what of the cache pools get in equal shares; 0: a quarter.
    pub arc_min: u64,
    /// Events that the daemon keeps for `zpool events`.
    pub zevent_len_max: u64,
    /// File systems that were received redacted are mounted without `-f`, too.
    pub allow_redacted_mount: bool,
    /// The most that channel programs may be allowed.
    pub program_limits: program::Limits,
    /// log2 of the allocation unit of new vdevs whose devices are files.
    pub file_ashift: u8,
}

impl Settings {
    /// The defaults on a machine with `physmem` bytes.
    pub fn for_memory(physmem: u64) -> Settings {
        let mut engine = EngineOpts::for_memory(physmem);
        // `sync` of Linux does not reach most FUSE mounts: an idle pool must sync its dirty data
        // soon.
        engine.txg.txg_idle_timeout = Nanos::from_secs(1);
        let zevent_len_max = crate::pool::zevents::LEN_MAX;
        Settings {
            engine,
            keep_awake: KeepAwake::Auto,
            batch_pct: 80,
            arc_min: 0,
            zevent_len_max,
            allow_redacted_mount: false,
            program_limits: program::Limits::MOST,
            file_ashift: FILE_ASHIFT,
        }
    }

    /// Threads for heavy CPU work on a machine with `cores`: at least one.
    pub fn cpu_threads(&self, cores: usize) -> usize {
        (cores * self.batch_pct as usize).div_ceil(100).max(1)
    }
}

/// Default of [`Settings::file_ashift`]: 4 KiB.
const FILE_ASHIFT: u8 = 12;

/// The field of [`Settings`] that stores a value.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    Field(fn(&Settings) -> u64, fn(&mut Settings, u64)),
    ClassMin(Prio),
    ClassMax(Prio),
}

impl Place {
    fn get(self, o: &Settings) -> u64 {
        match self {
            Place::Field(get, _) => get(o),
            Place::ClassMin(p) => o.engine.queue.classes[p.index()].min_active.into(),
            Place::ClassMax(p) => o.engine.queue.classes[p.index()].max_active.into(),
        }
    }
    fn set(self, o: &mut Settings, v: u64) {
        match self {
            Place::Field(_, set) => set(o, v),
            Place::ClassMin(p) => o.engine.queue.classes[p.index()].min_active = v as u32,
            Place::ClassMax(p) => o.engine.queue.classes[p.index()].max_active = v as u32,
        }
    }
}

/// One tunable.
pub struct Tunable {
    /// Its name.
    pub name: &'static str,
    /// Its unit.
    pub unit: Unit,
    /// The least.
    pub min: u64,
    /// The most.
    pub max: u64,
    /// Its meaning, for help.
    pub meaning: &'static str,
    /// Its origin: a release of OpenZFS, or weir.
    pub origin: &'static str,
    pub(crate) place: Place,
}

/// The tunable of that name; the error suggests a similar name.
pub fn find(name: &str) -> Result<&'static Tunable> {
    if let Some(found) = TABLE.iter().find(|t| t.name == name) {
        return Ok(found);
    }
    if let Some((_, value, why)) = FIXED.iter().find(|(n, ..)| *n == name) {
        return Err(Error::unsupported(format!("{name} can only be {value}: {why}")));
    }
    if let Some((_, why)) = MEANINGLESS.iter().find(|(n, _)| *n == name) {
        return Err(Error::unsupported(format!("{name} means nothing here: {why}")));
    }
    // Without the prefix, or a part of the name, or a few letters wrong.
    let bare = name.trim_start_matches("zfs_");
    let far = |t: &Tunable| if !bare.is_empty() && t.name.ends_with(bare) { 0 } else { levenshtein(name, t.name) };
    let near = TABLE.iter().map(|t| (far(t), t));
    let guess = near.min_by_key(|(d, _)| *d).filter(|(d, _)| *d <= (name.chars().count() / 3).clamp(2, 8));
    let hint = match guess {
        Some((_, t)) => format!("did you mean '{}'?", t.name),
        None => "'weir tune list' lists all of them".to_string(),
    };
    Err(Error::invalid(format!("'{name}' is not a tunable: {hint}")))
}

impl Tunable {
    /// Parses a value.
    pub fn parse(&self, text: &str) -> Result<u64> {
        if let Unit::Word(words) = self.unit {
            let at = words.iter().position(|w| *w == text);
            return at.map(|i| i as u64).ok_or_else(|| {
                Error::invalid(format!("{}={text}: it must be one of {}", self.name, words.join(", ")))
            });
        }
        if self.unit == Unit::PercentOrNever && text == "-1" {
            return Ok(NEVER);
        }
        let number = dsl::props::parse_size(text).map_err(|_| {
            let (min, max) = (self.min, self.max);
            let kind = match self.unit {
                Unit::Bytes => "a size in bytes such as 65536, 128K or 1.5G",
                Unit::Percent => "a percentage",
                Unit::PercentOrNever => "a percentage or -1",
                Unit::Ns => "a number of nanoseconds",
                Unit::Ms => "a number of milliseconds",
                Unit::Seconds => "a number of seconds",
                Unit::Count | Unit::Word(_) => "a number",
            };
            Error::invalid(format!("{}={text}: it must be {kind}, {min} to {max}", self.name))
        })?;
        if !(self.min..=self.max).contains(&number) {
            let unit = self.unit.name();
            let (min, max) = (self.min, self.max);
            // The nearer end of the range.
            let near = if number < min { min } else { max };
            return Err(Error::invalid(format!(
                "{}={number} is out of range: it must be {min} to {max}{}{unit}; {near} is the nearest that can be",
                self.name,
                if unit.is_empty() { "" } else { " " }
            )));
        }
        Ok(number)
    }

    /// A value as text.
    pub fn format(&self, value: u64) -> String {
        match self.unit {
            Unit::Word(words) => words.get(value as usize).unwrap_or(&"?").to_string(),
            Unit::PercentOrNever if value == NEVER => "-1".to_string(),
            _ => value.to_string(),
        }
    }

    /// Sets its value, which must be in its range.
    pub fn put(&self, settings: &mut Settings, value: u64) {
        self.place.set(settings, value);
    }

    /// Its value in these settings.
    pub fn get(&self, opts: &Settings) -> u64 {
        self.place.get(opts)
    }
}

/// A value that was set, for one pool or for all.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Setting {
    pool: Option<String>,
    name: &'static str,
    value: u64,
}

/// The values that were set, and the memory that defaults depend on.
#[derive(Clone, Debug)]
pub struct Tunables {
    physmem: u64,
    set: Vec<Setting>,
}

/// An assignment; no value: the default.
struct Assignment {
    pool: Option<String>,
    name: &'static str,
    value: Option<u64>,
}

/// Parses and checks `[pool:]name=value`.
fn assignment(text: &str) -> Result<Assignment> {
    let (name, value) =
        text.split_once('=').ok_or_else(|| Error::invalid(format!("'{text}' is not a tunable: write name=value")))?;
    let (pool, name) = match name.trim().split_once(':') {
        Some((pool, name)) => (Some(pool.to_string()), name),
        None => (None, name.trim()),
    };
    let known = find(name)?;
    if pool.is_some() && matches!(known.name, "zfs_arc_max" | "zfs_arc_min" | "zfs_zevent_len_max") {
        return Err(Error::invalid(format!("{} is one limit for all pools: set it without a pool", known.name)));
    }
    let value = if value.trim() == "default" { None } else { Some(known.parse(value.trim())?) };
    Ok(Assignment { pool, name: known.name, value })
}

/// Whether a tunable that can have one value only is set to that.
fn is_fixed(text: &str) -> bool {
    let Some((name, value)) = text.split_once('=') else { return false };
    let name = name.rsplit(':').next().unwrap_or(name).trim();
    let found = FIXED.iter().find(|(n, ..)| *n == name);
    found.is_some_and(|(_, only, _)| matches!(value.trim(), "default") || value.trim().parse() == Ok(*only))
}

impl Tunables {
    /// The defaults on a machine with `physmem` bytes.
    pub fn for_memory(physmem: u64) -> Tunables {
        Tunables { physmem, set: Vec::new() }
    }

    /// Sets `name=value`, or `pool:name=value`. The value `default` removes the setting.
    pub fn set(&mut self, text: &str) -> Result<()> {
        if is_fixed(text) {
            return Ok(());
        }
        let new = assignment(text)?;
        self.set.retain(|s| s.pool != new.pool || s.name != new.name);
        if let Some(value) = new.value {
            self.set.push(Setting { pool: new.pool, name: new.name, value });
        }
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

    fn apply(&self, opts: &mut Settings, pool: Option<&str>) {
        for known in TABLE {
            for s in self.set.iter().filter(|s| s.name == known.name && s.pool.as_deref() == pool) {
                known.place.set(opts, s.value);
            }
        }
    }

    /// Settings of a process with one pool.
    fn whole(&self) -> Settings {
        let mut opts = Settings::for_memory(self.physmem);
        self.apply(&mut opts, None);
        opts
    }

    /// `zfs_arc_max` of the whole process.
    pub fn arc_max(&self) -> u64 {
        self.whole().engine.arc_max
    }

    /// `zfs_arc_min` of the whole process: what is set, or a quarter of the most.
    pub fn arc_min(&self) -> u64 {
        let whole = self.whole();
        let most = whole.engine.arc_max;
        if whole.arc_min == 0 { most / 4 } else { whole.arc_min.min(most) }
    }

    /// `zfs_zevent_len_max`.
    pub fn zevent_len_max(&self) -> u64 {
        self.whole().zevent_len_max
    }

    /// `vdev_file_physical_ashift` of a pool; none without a setting, and for one that is larger
    /// than is chosen by itself, when the devices decide.
    pub fn file_ashift(&self, pool: &str) -> Option<u8> {
        let settings = self.settings(pool, 1);
        let wanted = settings.file_ashift;
        (wanted != FILE_ASHIFT && wanted <= settings.engine.auto_ashift.max).then_some(wanted)
    }

    /// The settings of `pool`, one of `pools`.
    pub fn settings(&self, pool: &str, pools: usize) -> Settings {
        let mut opts = self.whole();
        let n = pools.max(1) as u64;
        opts.engine.arc_max /= n;
        let txg: &mut TxgTunables = &mut opts.engine.txg;
        txg.dirty_data_max = (txg.dirty_data_max / n).max(MIB);
        txg.wrlog_data_max = (txg.wrlog_data_max / n).max(MIB);
        self.apply(&mut opts, Some(pool));
        opts
    }

    /// Every tunable with its value for the process.
    pub fn all(&self) -> Vec<(String, String)> {
        let opts = self.whole();
        TABLE.iter().map(|t| (t.name.to_string(), t.format(t.get(&opts)))).collect()
    }

    /// The views of all tunables: of the process, or of one of `pools` pools.
    pub fn views(&self, pool: Option<&str>, pools: usize) -> Vec<TunableView> {
        let opts = pool.map_or_else(|| self.whole(), |p| self.settings(p, pools));
        let default = Settings::for_memory(self.physmem);
        let is_set =
            |t: &Tunable, pool: Option<&str>| self.set.iter().any(|s| s.name == t.name && s.pool.as_deref() == pool);
        let view = |t: &Tunable| TunableView {
            name: t.name.into(),
            value: t.format(t.get(&opts)),
            default: t.format(t.get(&default)),
            unit: t.unit.name().into(),
            range: if let Unit::Word(words) = t.unit { words.join("|") } else { format!("{}..{}", t.min, t.max) },
            meaning: t.meaning.into(),
            origin: t.origin.into(),
            source: match pool {
                Some(p) if is_set(t, Some(p)) => "pool",
                _ if is_set(t, None) => "set",
                _ => "default",
            }
            .into(),
        };
        TABLE.iter().map(view).collect()
    }

    /// The value of a tunable that can have one only.
    pub fn fixed(name: &str) -> Option<u64> {
        FIXED.iter().find(|(n, ..)| *n == name).map(|(_, value, _)| *value)
    }

    /// Names and meanings, for help.
    pub fn meanings() -> impl Iterator<Item = (&'static str, &'static str)> {
        TABLE.iter().map(|t| (t.name, t.meaning))
    }
}

/// The text of a configuration file with `assignment` in place of an older one of the same name;
/// the value `default` only removes the older one.
pub fn saved(text: &str, assignment: &str) -> String {
    let key = |line: &str| {
        let line = line.split('#').next().unwrap_or("");
        line.split_once('=').map(|(name, _)| name.trim().to_string())
    };
    let wanted = key(assignment);
    let mut out: String =
        text.lines().filter(|l| key(l).is_none() || key(l) != wanted).map(|l| format!("{l}\n")).collect();
    if !assignment.trim_end().ends_with("=default") {
        out.push_str(assignment);
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use base::Nanos;
    use txg::ThrottlePolicy;

    use super::*;

    #[test]
    fn values_are_parsed_checked_and_split() {
        let mut t = Tunables::for_memory(8 << 30);
        assert_eq!(t.arc_max(), 4 << 30);
        t.set_file("# memory\nzfs_arc_max = 512M # half\n\nzfs_txg_timeout=30\n").unwrap();
        t.set_list("zfs_dirty_data_max=256M,zfs_arc_max=1G zfs_delay_scale=1000").unwrap();
        let opts = t.settings("p", 2).engine;
        assert_eq!(opts.arc_max, 512 << 20);
        assert_eq!((opts.txg.dirty_data_max, opts.txg.wrlog_data_max), (128 << 20, 256 << 20));
        assert_eq!(opts.txg.txg_timeout, Nanos::from_secs(30));
        assert_eq!(opts.txg.delay_scale, 1000);
        assert_eq!(t.all().len(), TABLE.len());
        for bad in [
            "zfs_arc_max",
            "zfs_arc_max=x",
            "zfs_arc_max=1",
            "nonsense=1",
            "zfs_dirty_data_sync_percent=101",
            "p:zfs_arc_max=1G",
        ] {
            assert!(t.set(bad).is_err(), "{bad}");
        }
        assert_eq!(t.arc_max(), 1 << 30);
        // One pool has its own.
        t.set_list("p:zfs_vdev_async_write_max_active=3 zfs_vdev_async_write_max_active=7 p:throttle=legacy-2008")
            .unwrap();
        let writes =
            |t: &Tunables, pool: &str| t.settings(pool, 2).engine.queue.classes[Prio::AsyncWrite.index()].max_active;
        assert_eq!((writes(&t, "p"), writes(&t, "q")), (3, 7));
        assert_eq!(t.settings("p", 2).engine.txg.policy, ThrottlePolicy::Legacy2008);
        assert_eq!(t.settings("q", 2).engine.txg.policy, ThrottlePolicy::OpenZfs);
        let view = |t: &Tunables, pool, name: &str| {
            t.views(pool, 2).into_iter().find(|v| v.name == name).map(|v| (v.value, v.source))
        };
        let some = |v: &str, s: &str| Some((v.to_string(), s.to_string()));
        assert_eq!(view(&t, Some("p"), "throttle"), some("legacy-2008", "pool"));
        assert_eq!(view(&t, Some("q"), "zfs_vdev_async_write_max_active"), some("7", "set"));
        assert_eq!(view(&t, None, "zfs_vdev_scrub_max_active"), some("3", "default"));
        t.set_list("p:throttle=default zfs_vdev_async_write_max_active=default keep_awake=off").unwrap();
        assert_eq!(view(&t, Some("p"), "throttle"), some("openzfs", "default"));
        assert_eq!((writes(&t, "p"), writes(&t, "q")), (3, 10));
        assert_eq!(t.settings("q", 1).keep_awake, KeepAwake::Off);
        // Without a setting the devices decide.
        assert_eq!(t.file_ashift("p"), None);
        t.set("p:vdev_file_physical_ashift=14").unwrap();
        assert_eq!((t.file_ashift("p"), t.file_ashift("q")), (Some(14), None));
        t.set("p:vdev_file_physical_ashift=16").unwrap();
        assert_eq!(t.file_ashift("p"), None);
    }

    #[test]
    fn batch_threads_are_a_share_of_the_cores() {
        let mut s = Settings::for_memory(1 << 30);
        assert_eq!([1, 2, 4, 8].map(|n| s.cpu_threads(n)), [1, 2, 4, 7]);
        s.batch_pct = 1;
        assert_eq!([1, 8, 128].map(|n| s.cpu_threads(n)), [1, 1, 2]);
    }

    #[test]
    fn every_tunable_keeps_what_it_is_given_and_its_default_is_in_range() {
        for (i, t) in TABLE.iter().enumerate() {
            let mut opts = Settings::for_memory(8 << 30);
            let default = t.get(&opts);
            assert!((t.min..=t.max).contains(&default), "{}: default {default}", t.name);
            assert_eq!(t.parse(&t.format(default)).unwrap(), default, "{}", t.name);
            for v in [t.min, t.max] {
                let others: Vec<u64> = TABLE.iter().map(|o| o.get(&opts)).collect();
                t.place.set(&mut opts, v);
                assert_eq!(t.get(&opts), v, "{}", t.name);
                for (j, o) in TABLE.iter().enumerate() {
                    let follows = t.name == "zfs_dirty_data_max" && o.name == "zfs_wrlog_data_max";
                    assert!(j == i || follows || o.get(&opts) == others[j], "{} changes {}", t.name, o.name);
                }
            }
            assert_eq!(TABLE.iter().filter(|o| o.name == t.name).count(), 1, "{}", t.name);
            if let Unit::Word(words) = t.unit {
                assert_eq!(words.len() as u64, t.max + 1);
            }
        }
    }

    #[test]
    fn what_was_meant_is_suggested() {
        let hint = |name: &str| find(name).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(hint("zfs_dirty_data_mx").contains("'zfs_dirty_data_max'"), "{}", hint("zfs_dirty_data_mx"));
        assert!(hint("zfs_async_write_max_active").contains("'zfs_vdev_async_write_max_active'"));
        assert!(hint("txg_timeout").contains("'zfs_txg_timeout'"));
        assert!(hint("compression").contains("weir tune list"), "{}", hint("compression"));
        assert!(hint("").contains("weir tune list"));
        let e = find("zfs_txg_timeout").unwrap().parse("0").unwrap_err().to_string();
        assert!(e.contains("1 to 4294967295 s; 1 is the nearest"), "{e}");
        let text = |name: &str, value: &str| find(name).unwrap().parse(value).unwrap_err().to_string();
        let huge = "9".repeat(40);
        assert_eq!(
            text("zfs_txg_timeout", &huge),
            format!("zfs_txg_timeout={huge}: it must be a number of seconds, 1 to 4294967295")
        );
        assert!(text("zfs_dirty_data_max", "much").contains("it must be a size in bytes such as"), "bytes");
        assert!(text("zfs_delay_min_dirty_percent", "x").contains("it must be a percentage, "), "percent");
        let e = find("scheduler").unwrap().parse("fifo").unwrap_err().to_string();
        assert!(e.contains("auto, on, off, deadline"), "{e}");
    }

    #[test]
    fn what_means_nothing_here_is_refused_with_the_reason() {
        let mut t = Tunables::for_memory(8 << 30);
        let mut said = |text: &str| t.set(text).err().map_or(String::new(), |e| e.to_string());
        assert_eq!(said("zfs_compressed_arc_enabled=0"), "");
        assert_eq!(said("zfs_compressed_arc_enabled=default"), "");
        let why = "zfs_compressed_arc_enabled can only be 0: the cache holds unpacked blocks";
        assert_eq!(
            (said("zfs_compressed_arc_enabled=1"), said("p:zfs_compressed_arc_enabled=1")),
            (why.into(), why.into())
        );
        assert!(said("l2arc_headroom=1").contains("l2arc_headroom means nothing here: cache devices get"));
        assert!(said("zfs_compressed_arc_enabled").contains("write name=value"));
        assert_eq!((Tunables::fixed("zfs_dmu_offset_next_sync"), Tunables::fixed("zfs_arc_max")), (Some(1), None));
        let other = FIXED.iter().map(|(n, ..)| n).chain(MEANINGLESS.iter().map(|(n, _)| n));
        assert!(other.clone().all(|n| TABLE.iter().all(|t| t.name != *n)) && other.count() > 5);
    }

    #[test]
    fn a_saved_setting_takes_the_place_of_the_old_one() {
        let old = "# mine\nzfs_txg_timeout = 30 # slow\np:zfs_txg_timeout=7\n";
        let new = saved(old, "zfs_txg_timeout=9");
        assert_eq!(new, "# mine\np:zfs_txg_timeout=7\nzfs_txg_timeout=9\n");
        let mut t = Tunables::for_memory(8 << 30);
        t.set_file(&new).unwrap();
        assert_eq!(
            (t.settings("p", 1).engine.txg.txg_timeout, t.settings("q", 1).engine.txg.txg_timeout),
            (Nanos::from_secs(7), Nanos::from_secs(9))
        );
        assert_eq!(saved("", "a=1"), "a=1\n");
        assert_eq!(saved("a=1\nb=2\n", "a=default"), "b=2\n");
    }
}
