//! The table of tunables: name, unit, range, origin, meaning and field of each.

use base::Nanos;
use host::KeepAwake;
use txg::ThrottlePolicy;
use vdev::{Prio, Scheduler};
use zil::CommitPolicy;

use crate::tunables::{Place, Tunable, Unit};

const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;
const SEC: u64 = 1_000_000_000;

const OZ: &str = "OpenZFS 2.1";
const OZ2: &str = "OpenZFS 2.2";
const OZ3: &str = "OpenZFS 2.3";
const OLD: &str = "OpenZFS before 2013";
const WEIR: &str = "weir";
const U32: u64 = u32::MAX as u64;
const HALF: u64 = u64::MAX >> 1;

macro_rules! field {
    ($name:literal, $unit:expr, $min:expr, $max:expr, $origin:expr, $meaning:literal, |$o:ident| $get:expr, |$m:ident, $v:ident| $set:expr) => {
        Tunable {
            name: $name,
            unit: $unit,
            min: $min,
            max: $max,
            meaning: $meaning,
            origin: $origin,
            place: Place::Field(|$o| $get, |$m, $v| $set),
        }
    };
}

const fn class(name: &'static str, prio: Prio, is_max: bool, meaning: &'static str) -> Tunable {
    let place = if is_max { Place::ClassMax(prio) } else { Place::ClassMin(prio) };
    Tunable { name, unit: Unit::Count, min: 0, max: U32, meaning, origin: OZ, place }
}

/// The names of all values of a type, in the order of their numbers.
macro_rules! names {
    ($kind:ty) => {{
        let mut names = [""; <$kind>::ALL.len()];
        let mut i = 0;
        while i < names.len() {
            names[i] = <$kind>::ALL[i].name();
            i += 1;
        }
        names
    }};
}

const POLICIES: [&str; ThrottlePolicy::ALL.len()] = names!(ThrottlePolicy);
const SCHEDULERS: [&str; Scheduler::ALL.len()] = names!(Scheduler);
const COMMITS: [&str; CommitPolicy::ALL.len()] = names!(CommitPolicy);
const AWAKE: &[&str] = &["off", "auto"];
const AWAKE_VALUES: [KeepAwake; 2] = [KeepAwake::Off, KeepAwake::Auto];

/// All tunables.
pub const TABLE: &[Tunable] = &[
    field!(
        "zfs_arc_max",
        Unit::Bytes,
        16 * MIB,
        HALF,
        OZ,
        "most bytes that the caches of all pools hold",
        |o| o.engine.arc_max,
        |o, v| o.engine.arc_max = v
    ),
    field!(
        "zfs_arc_min",
        Unit::Bytes,
        0,
        HALF,
        OZ,
        "bytes of the caches that pools get in equal shares, whatever their demand; 0: a quarter of zfs_arc_max",
        |o| o.arc_min,
        |o, v| o.arc_min = v
    ),
    field!(
        "zfs_zevent_len_max",
        Unit::Count,
        0,
        100_000,
        OZ,
        "events that are kept for 'zpool events', of all pools",
        |o| o.zevent_len_max,
        |o, v| o.zevent_len_max = v
    ),
    field!(
        "zfs_allow_redacted_dataset_mount",
        Unit::Count,
        0,
        1,
        OZ,
        "with 1 what was received redacted is mounted without -f, too",
        |o| u64::from(o.allow_redacted_mount),
        |o, v| o.allow_redacted_mount = v != 0
    ),
    field!(
        "zfs_lua_max_instrlimit",
        Unit::Count,
        0,
        HALF,
        OZ,
        "the most instructions that 'zfs program -t' may allow",
        |o| o.program_limits.instructions,
        |o, v| o.program_limits.instructions = v
    ),
    field!(
        "zfs_lua_max_memlimit",
        Unit::Bytes,
        0,
        1 << 40,
        OZ,
        "the most memory that 'zfs program -m' may allow",
        |o| o.program_limits.memory,
        |o, v| o.program_limits.memory = v
    ),
    field!(
        "zfs_vdev_min_auto_ashift",
        Unit::Count,
        9,
        16,
        OZ,
        "log2 of the least allocation unit of new vdevs on disks, where -o ashift does not say it (OpenZFS: 9)",
        |o| o.engine.auto_ashift.min.into(),
        |o, v| o.engine.auto_ashift.min = v as u8
    ),
    field!(
        "zfs_vdev_max_auto_ashift",
        Unit::Count,
        9,
        16,
        OZ,
        "log2 of the largest physical sector that new vdevs have as their unit; beyond it the logical one counts",
        |o| o.engine.auto_ashift.max.into(),
        |o, v| o.engine.auto_ashift.max = v as u8
    ),
    field!(
        "vdev_file_physical_ashift",
        Unit::Count,
        9,
        16,
        OZ,
        "log2 of the allocation unit of new vdevs on files, where -o ashift does not say it (OpenZFS: 9)",
        |o| o.file_ashift.into(),
        |o, v| o.file_ashift = v as u8
    ),
    field!(
        "zfs_dirty_data_max",
        Unit::Bytes,
        MIB,
        HALF,
        OZ,
        "most bytes of all pools that are written but not yet on disk",
        |o| o.engine.txg.dirty_data_max,
        |o, v| {
            // The log's limit is twice that unless it was set.
            if o.engine.txg.wrlog_data_max == o.engine.txg.dirty_data_max.saturating_mul(2) {
                o.engine.txg.wrlog_data_max = v.saturating_mul(2);
            }
            o.engine.txg.dirty_data_max = v;
        }
    ),
    field!(
        "zfs_dirty_data_sync_percent",
        Unit::Percent,
        1,
        100,
        OZ,
        "share of it at which a txg is closed",
        |o| o.engine.txg.dirty_data_sync_percent.into(),
        |o, v| o.engine.txg.dirty_data_sync_percent = v as u32
    ),
    field!(
        "zfs_delay_min_dirty_percent",
        Unit::Percent,
        0,
        100,
        OZ,
        "share of it at which writes are delayed",
        |o| o.engine.txg.delay_min_dirty_percent.into(),
        |o, v| o.engine.txg.delay_min_dirty_percent = v as u32
    ),
    field!(
        "zfs_delay_scale",
        Unit::Ns,
        1,
        SEC,
        OZ,
        "delay of a write in the middle between that share and the limit",
        |o| o.engine.txg.delay_scale,
        |o, v| o.engine.txg.delay_scale = v
    ),
    field!(
        "zfs_delay_max_ns",
        Unit::Ns,
        0,
        10 * SEC,
        OZ,
        "longest delay of a write",
        |o| o.engine.txg.delay_max.0,
        |o, v| { o.engine.txg.delay_max = Nanos(v) }
    ),
    field!(
        "zfs_wrlog_data_max",
        Unit::Bytes,
        MIB,
        HALF,
        OZ,
        "most bytes of intent logs that are not yet synced",
        |o| o.engine.txg.wrlog_data_max,
        |o, v| o.engine.txg.wrlog_data_max = v
    ),
    field!(
        "zfs_txg_timeout",
        Unit::Seconds,
        1,
        U32,
        OZ,
        "seconds after which a txg is closed",
        |o| o.engine.txg.txg_timeout.0 / SEC,
        |o, v| o.engine.txg.txg_timeout = Nanos::from_secs(v)
    ),
    field!(
        "zfs_txg_history",
        Unit::Count,
        0,
        10_000,
        OZ,
        "txgs that the kstat 'txgs' of a pool lists",
        |o| o.engine.txg.history as u64,
        |o, v| o.engine.txg.history = v as usize
    ),
    field!(
        "txg_idle_ms",
        Unit::Ms,
        0,
        3_600_000,
        WEIR,
        "ms after its first change when a txg is closed if no more changes come; 0: never",
        |o| o.engine.txg.txg_idle_timeout.0 / MS,
        |o, v| o.engine.txg.txg_idle_timeout = Nanos::from_ms(v)
    ),
    field!(
        "throttle",
        Unit::Word(&POLICIES),
        0,
        POLICIES.len() as u64 - 1,
        WEIR,
        "which write throttle",
        |o| place_of(&ThrottlePolicy::ALL, &o.engine.txg.policy),
        |o, v| o.engine.txg.policy = ThrottlePolicy::ALL[v as usize]
    ),
    field!(
        "zfs_write_smoothing",
        Unit::Seconds,
        0,
        3600,
        "a proposal of 2021",
        "policy smoothing: how long delays go on after the dirty share fell",
        |o| o.engine.txg.write_smoothing.0 / SEC,
        |o, v| o.engine.txg.write_smoothing = Nanos::from_secs(v)
    ),
    field!(
        "zfs_smoothing_scale",
        Unit::Ns,
        0,
        SEC,
        "a proposal of 2021",
        "policy smoothing: those delays where half of the limit is dirty",
        |o| o.engine.txg.smoothing_scale,
        |o, v| o.engine.txg.smoothing_scale = v
    ),
    field!(
        "zfs_txg_synctime_ms",
        Unit::Ms,
        1,
        3_600_000,
        OLD,
        "policy legacy-2008: how long a sync should take",
        |o| o.engine.txg.txg_synctime.0 / MS,
        |o, v| o.engine.txg.txg_synctime = Nanos::from_ms(v)
    ),
    field!(
        "zfs_write_limit_min",
        Unit::Bytes,
        MIB,
        HALF,
        OLD,
        "policy legacy-2008: least bytes of a txg",
        |o| o.engine.txg.write_limit_min,
        |o, v| o.engine.txg.write_limit_min = v
    ),
    field!(
        "zfs_write_limit_max",
        Unit::Bytes,
        MIB,
        HALF,
        OLD,
        "policy legacy-2008: most bytes of a txg",
        |o| o.engine.txg.write_limit_max,
        |o, v| o.engine.txg.write_limit_max = v
    ),
    field!(
        "zfs_write_limit_override",
        Unit::Bytes,
        0,
        HALF,
        OLD,
        "policy legacy-2008: bytes of a txg for good, 0 to learn them",
        |o| o.engine.txg.write_limit_override,
        |o, v| o.engine.txg.write_limit_override = v
    ),
    field!(
        "zfs_throttle_delay",
        Unit::Ms,
        0,
        1000,
        OLD,
        "policy legacy-2008: what a write sleeps in the last eighth of a txg",
        |o| o.engine.txg.throttle_delay.0 / MS,
        |o, v| o.engine.txg.throttle_delay = Nanos::from_ms(v)
    ),
    field!(
        "scheduler",
        Unit::Word(&SCHEDULERS),
        0,
        SCHEDULERS.len() as u64 - 1,
        WEIR,
        "which I/O scheduler",
        |o| place_of(&Scheduler::ALL, &o.engine.queue.scheduler),
        |o, v| o.engine.queue.scheduler = Scheduler::ALL[v as usize]
    ),
    field!(
        "zfs_vdev_max_active",
        Unit::Count,
        1,
        U32,
        OZ,
        "most operations at one device",
        |o| o.engine.queue.max_active.into(),
        |o, v| o.engine.queue.max_active = v as u32
    ),
    class(
        "zfs_vdev_sync_read_min_active",
        Prio::SyncRead,
        false,
        "reads that are waited for: served first up to this many",
    ),
    class("zfs_vdev_sync_read_max_active", Prio::SyncRead, true, "reads that are waited for: the most at one device"),
    class(
        "zfs_vdev_sync_write_min_active",
        Prio::SyncWrite,
        false,
        "writes that are waited for: served first up to this many",
    ),
    class(
        "zfs_vdev_sync_write_max_active",
        Prio::SyncWrite,
        true,
        "writes that are waited for: the most at one device",
    ),
    class("zfs_vdev_async_read_min_active", Prio::AsyncRead, false, "prefetch: served first up to this many"),
    class("zfs_vdev_async_read_max_active", Prio::AsyncRead, true, "prefetch: the most at one device"),
    class("zfs_vdev_async_write_min_active", Prio::AsyncWrite, false, "writes of txgs: as many while little is dirty"),
    class("zfs_vdev_async_write_max_active", Prio::AsyncWrite, true, "writes of txgs: as many while much is dirty"),
    class("zfs_vdev_scrub_min_active", Prio::Scrub, false, "scrub and resilver: served first up to this many"),
    class("zfs_vdev_scrub_max_active", Prio::Scrub, true, "scrub and resilver: the most at one device"),
    class("zfs_vdev_removal_min_active", Prio::Removal, false, "device removal: served first up to this many"),
    class("zfs_vdev_removal_max_active", Prio::Removal, true, "device removal: the most at one device"),
    class("zfs_vdev_initializing_min_active", Prio::Initializing, false, "initializing: served first up to this many"),
    class("zfs_vdev_initializing_max_active", Prio::Initializing, true, "initializing: the most at one device"),
    class("zfs_vdev_trim_min_active", Prio::Trim, false, "trim: served first up to this many"),
    class("zfs_vdev_trim_max_active", Prio::Trim, true, "trim: the most at one device"),
    class("zfs_vdev_rebuild_min_active", Prio::Rebuild, false, "sequential rebuild: served first up to this many"),
    class("zfs_vdev_rebuild_max_active", Prio::Rebuild, true, "sequential rebuild: the most at one device"),
    field!(
        "zfs_scan_vdev_limit",
        Unit::Bytes,
        64 << 10,
        1 << 30,
        OZ,
        "scrub and resilver: bytes on their way for each device, from the next round on",
        |o| o.engine.scan.vdev_limit,
        |o, v| o.engine.scan.vdev_limit = v
    ),
    field!(
        "zfs_scan_mem_lim_fact",
        Unit::Count,
        1,
        1 << 20,
        OZ,
        "scrub and resilver: blocks found but not looked at may take one part in so many of the cache's limit; at most 64 MiB with the default",
        |o| o.engine.scan.mem_lim_fact,
        |o, v| o.engine.scan.mem_lim_fact = v
    ),
    field!(
        "zfs_scrub_min_time_ms",
        Unit::Ms,
        1,
        60_000,
        OZ,
        "how long a txg looks for the blocks of a scrub",
        |o| o.engine.scan.scrub_min_time.0 / MS,
        |o, v| o.engine.scan.scrub_min_time = Nanos::from_ms(v)
    ),
    field!(
        "zfs_resilver_min_time_ms",
        Unit::Ms,
        1,
        60_000,
        OZ,
        "how long a txg looks for the blocks of a resilver",
        |o| o.engine.scan.resilver_min_time.0 / MS,
        |o, v| o.engine.scan.resilver_min_time = Nanos::from_ms(v)
    ),
    field!(
        "zfs_scan_suspend_progress",
        Unit::Count,
        0,
        1,
        OZ,
        "with 1 scrub and resilver stay where they are until it is 0 again",
        |o| u64::from(o.engine.scan.suspend_progress),
        |o, v| o.engine.scan.suspend_progress = v != 0
    ),
    field!(
        "zfs_resilver_disable_defer",
        Unit::Count,
        0,
        1,
        OZ,
        "with 1 a device that comes late restarts the running resilver",
        |o| u64::from(o.engine.scan.defer_off),
        |o, v| o.engine.scan.defer_off = v != 0
    ),
    field!(
        "zfs_scan_legacy",
        Unit::Count,
        0,
        1,
        OZ,
        "with 1 a scan looks at what each txg's traversal found before the next, and needs less memory",
        |o| u64::from(o.engine.scan.legacy),
        |o, v| o.engine.scan.legacy = v != 0
    ),
    field!(
        "zfs_rebuild_max_segment",
        Unit::Bytes,
        512,
        base::MAX_BLOCK,
        OZ,
        "sequential rebuild: bytes that are read at once, on each device of a draid",
        |o| o.engine.rebuild.max_segment,
        |o, v| o.engine.rebuild.max_segment = v
    ),
    field!(
        "zfs_rebuild_vdev_limit",
        Unit::Bytes,
        1 << 20,
        HALF,
        OZ,
        "sequential rebuild: bytes in flight at each device at most",
        |o| o.engine.rebuild.vdev_limit,
        |o, v| o.engine.rebuild.vdev_limit = v
    ),
    field!(
        "zfs_rebuild_scrub_enabled",
        Unit::Count,
        0,
        1,
        OZ,
        "with 1 a scrub follows a sequential rebuild, which verifies nothing",
        |o| u64::from(o.engine.rebuild.scrub_after),
        |o, v| o.engine.rebuild.scrub_after = v != 0
    ),
    field!(
        "raidz_expand_max_copy_bytes",
        Unit::Bytes,
        4096,
        1 << 40,
        OZ,
        "expansion of a raidz: bytes that are copied at a time at most; no I/O in their range meanwhile",
        |o| o.engine.expand.max_copy_bytes,
        |o, v| o.engine.expand.max_copy_bytes = v
    ),
    field!(
        "raidz_expand_max_reflow_bytes",
        Unit::Bytes,
        0,
        u64::MAX,
        OZ,
        "expansion of a raidz: rests when so many bytes are copied, until it is changed; 0: it does not",
        |o| o.engine.expand.max_reflow_bytes,
        |o, v| o.engine.expand.max_reflow_bytes = v
    ),
    field!(
        "l2arc_write_max",
        Unit::Bytes,
        0,
        HALF,
        OZ,
        "cache devices: bytes that one feed writes; 0: the default",
        |o| o.engine.l2.write_max,
        |o, v| o.engine.l2.write_max = v
    ),
    field!(
        "l2arc_write_boost",
        Unit::Bytes,
        0,
        HALF,
        OZ,
        "cache devices: bytes that a feed writes more until memory was full once",
        |o| o.engine.l2.write_boost,
        |o, v| o.engine.l2.write_boost = v
    ),
    field!(
        "l2arc_feed_secs",
        Unit::Seconds,
        1,
        U32,
        OZ,
        "cache devices: the time between feeds",
        |o| o.engine.l2.feed_interval.0 / SEC,
        |o, v| o.engine.l2.feed_interval = Nanos::from_secs(v)
    ),
    field!(
        "l2arc_feed_again",
        Unit::Count,
        0,
        1,
        OZ,
        "cache devices: with 1 the next feed comes sooner where there is much to write",
        |o| u64::from(o.engine.l2.feed_again),
        |o, v| o.engine.l2.feed_again = v != 0
    ),
    field!(
        "l2arc_feed_min_ms",
        Unit::Ms,
        1,
        U32,
        OZ,
        "cache devices: how soon that is",
        |o| o.engine.l2.feed_min.0 / MS,
        |o, v| o.engine.l2.feed_min = Nanos::from_ms(v)
    ),
    field!(
        "l2arc_noprefetch",
        Unit::Count,
        0,
        1,
        OZ,
        "cache devices: with 1 they do not get what was only read ahead",
        |o| u64::from(o.engine.l2.no_prefetch),
        |o, v| o.engine.l2.no_prefetch = v != 0
    ),
    field!(
        "l2arc_mfuonly",
        Unit::Count,
        0,
        2,
        OZ,
        "cache devices: 1: they get what was wanted twice; 2: that, and all metadata",
        |o| o.engine.l2.mfu_only,
        |o, v| o.engine.l2.mfu_only = v
    ),
    field!(
        "l2arc_exclude_special",
        Unit::Count,
        0,
        1,
        OZ2,
        "cache devices: with 1 they do not get what is on special and dedup vdevs",
        |o| u64::from(o.engine.l2.exclude_special),
        |o, v| o.engine.l2.exclude_special = v != 0
    ),
    field!(
        "l2arc_norw",
        Unit::Count,
        0,
        1,
        OZ,
        "cache devices: with 1 one that is being written is not read",
        |o| u64::from(o.engine.l2.no_rw),
        |o, v| o.engine.l2.no_rw = v != 0
    ),
    field!(
        "l2arc_meta_percent",
        Unit::Percent,
        0,
        100,
        OZ,
        "cache devices: share of the cache's memory that the index of them takes at most",
        |o| o.engine.l2.meta_percent,
        |o, v| o.engine.l2.meta_percent = v
    ),
    field!(
        "l2arc_rebuild_enabled",
        Unit::Count,
        0,
        1,
        OZ,
        "cache devices: with 1 what is on them is found again when a pool is imported",
        |o| u64::from(o.engine.l2.rebuild),
        |o, v| o.engine.l2.rebuild = v != 0
    ),
    field!(
        "l2arc_rebuild_blocks_min_l2size",
        Unit::Bytes,
        0,
        HALF,
        OZ,
        "cache devices: below this size they keep nothing for the next import",
        |o| o.engine.l2.rebuild_min_size,
        |o, v| o.engine.l2.rebuild_min_size = v
    ),
    field!(
        "zfs_removal_ignore_errors",
        Unit::Count,
        0,
        1,
        OZ,
        "with 1 the removal of a device goes on when it cannot copy something, which is lost",
        |o| u64::from(o.engine.removal.ignore_errors),
        |o, v| o.engine.removal.ignore_errors = v != 0
    ),
    field!(
        "zfs_removal_suspend_progress",
        Unit::Count,
        0,
        1,
        OZ,
        "with 1 the removal of a device stays where it is until this is 0 again",
        |o| u64::from(o.engine.removal.suspend),
        |o, v| o.engine.removal.suspend = v != 0
    ),
    field!(
        "zfs_remove_max_segment",
        Unit::Bytes,
        512,
        16 << 20,
        OZ,
        "removal of a device: bytes that get one place elsewhere at most",
        |o| o.engine.removal.max_segment,
        |o, v| o.engine.removal.max_segment = v
    ),
    field!(
        "vdev_removal_max_span",
        Unit::Bytes,
        0,
        16 << 20,
        OZ,
        "removal of a device: free space up to so many bytes is taken along",
        |o| o.engine.removal.max_span,
        |o, v| o.engine.removal.max_span = v
    ),
    field!(
        "zfs_condense_indirect_vdevs_enable",
        Unit::Count,
        0,
        1,
        OZ,
        "with 0 the maps of removed devices keep what is not needed any more",
        |o| u64::from(o.engine.condense.enable),
        |o, v| o.engine.condense.enable = v != 0
    ),
    field!(
        "zfs_condense_indirect_obsolete_pct",
        Unit::Percent,
        0,
        100,
        OZ,
        "the map of a removed device is condensed once so much of what it maps is not needed any more",
        |o| o.engine.condense.obsolete_pct,
        |o, v| o.engine.condense.obsolete_pct = v
    ),
    field!(
        "zfs_condense_min_mapping_bytes",
        Unit::Bytes,
        0,
        HALF,
        OZ,
        "the map of a removed device that takes no more memory than this is not condensed for it",
        |o| o.engine.condense.min_mapping_bytes,
        |o, v| o.engine.condense.min_mapping_bytes = v
    ),
    field!(
        "zfs_condense_max_obsolete_bytes",
        Unit::Bytes,
        1,
        HALF,
        OZ,
        "the map of a removed device is condensed once the list of what is not needed is as long as this",
        |o| o.engine.condense.max_obsolete_bytes,
        |o, v| o.engine.condense.max_obsolete_bytes = v
    ),
    field!(
        "zfs_condense_indirect_commit_entry_delay_ms",
        Unit::Ms,
        0,
        3_600_000,
        OZ,
        "a wait after each range of a map that is condensed, for tests",
        |o| o.engine.condense.entry_delay.0 / MS,
        |o, v| o.engine.condense.entry_delay = Nanos::from_ms(v)
    ),
    field!(
        "zfs_initialize_chunk_size",
        Unit::Bytes,
        512,
        16 << 20,
        OZ,
        "initialize: bytes of a write at most",
        |o| o.engine.works.initialize_bytes_max,
        |o, v| o.engine.works.initialize_bytes_max = v
    ),
    field!(
        "zfs_initialize_value",
        Unit::Count,
        0,
        u64::MAX,
        OZ,
        "initialize: the number of 64 bits that is written over free space",
        |o| o.engine.works.initialize_value,
        |o, v| o.engine.works.initialize_value = v
    ),
    field!(
        "zfs_trim_extent_bytes_max",
        Unit::Bytes,
        64 << 10,
        HALF,
        OZ,
        "trim: bytes of a discard at most",
        |o| o.engine.works.trim_bytes_max,
        |o, v| o.engine.works.trim_bytes_max = v
    ),
    field!(
        "zfs_trim_extent_bytes_min",
        Unit::Bytes,
        0,
        HALF,
        OZ,
        "trim: shorter ranges of free space are left",
        |o| o.engine.works.trim_bytes_min,
        |o, v| o.engine.works.trim_bytes_min = v
    ),
    field!(
        "zfs_trim_txg_batch",
        Unit::Count,
        1,
        U32,
        OZ,
        "autotrim: transaction groups in which it goes once round all metaslabs",
        |o| o.engine.works.trim_txg_batch,
        |o, v| o.engine.works.trim_txg_batch = v
    ),
    field!(
        "fault_diagnosis",
        Unit::Count,
        0,
        1,
        WEIR,
        "with 1 devices with many errors are degraded or faulted and spares stand in for them, as zed has it",
        |o| u64::from(o.engine.fault_diagnosis),
        |o, v| o.engine.fault_diagnosis = v != 0
    ),
    field!(
        "zfs_async_block_max_blocks",
        Unit::Count,
        1,
        U32,
        OZ,
        "blocks of what was destroyed that are freed in one transaction group at most",
        |o| o.engine.freed_per_txg as u64,
        |o, v| o.engine.freed_per_txg = v as usize
    ),
    field!(
        "zfs_livelist_max_entries",
        Unit::Count,
        1,
        U32,
        OZ,
        "blocks in a part of a clone's livelist with which the next part begins",
        |o| o.engine.livelist_entries,
        |o, v| o.engine.livelist_entries = v
    ),
    field!(
        "zfs_livelist_min_percent_shared",
        Unit::PercentOrNever,
        0,
        100,
        OZ,
        "a clone that shares no more percent with its origin loses its livelist; -1: never",
        |o| o.engine.livelist_shared.unwrap_or(super::NEVER),
        |o, v| o.engine.livelist_shared = (v <= 100).then_some(v)
    ),
    field!(
        "spa_asize_inflation",
        Unit::Count,
        0,
        1000,
        OZ,
        "a received snapshot may exceed the refquota of its file system by so many times 64 MiB",
        |o| o.engine.asize_inflation,
        |o, v| o.engine.asize_inflation = v
    ),
    field!(
        "zfs_max_dataset_nesting",
        Unit::Count,
        1,
        dsl::NESTING_MOST as u64,
        OZ,
        "levels that the names of new datasets may have",
        |o| o.engine.nesting as u64,
        |o, v| o.engine.nesting = v as usize
    ),
    field!(
        "zfs_unlink_suspend_progress",
        Unit::Count,
        0,
        1,
        OZ,
        "with 1 removed files keep their space until a mount after it is 0 again",
        |o| u64::from(o.engine.unlink_suspended),
        |o, v| o.engine.unlink_suspended = v != 0
    ),
    field!(
        "zfs_override_estimate_recordsize",
        Unit::Bytes,
        0,
        HALF,
        OZ,
        "estimates of streams ('zfs send -n') take records to have so many bytes; 0: as the dataset says",
        |o| o.engine.estimate_record,
        |o, v| o.engine.estimate_record = v
    ),
    field!(
        "zfs_disable_ivset_guid_check",
        Unit::Count,
        0,
        1,
        OZ,
        "raw increments are received whatever set of IVs they start from: only to copy snapshots that have no guid of theirs (errata 4)",
        |o| u64::from(o.engine.ivsets_unchecked),
        |o, v| o.engine.ivsets_unchecked = v != 0
    ),
    field!(
        "zfs_spa_discard_memory_limit",
        Unit::Bytes,
        0,
        HALF,
        OZ,
        "bytes of the space maps of a discarded checkpoint that one txg frees from, at least one block of a map",
        |o| o.engine.discard_per_txg,
        |o, v| o.engine.discard_per_txg = v
    ),
    field!(
        "zfs_checksum_events_per_second",
        Unit::Count,
        0,
        U32,
        OZ,
        "events of wrong checksums and failed operations of a device that are posted in a second at most",
        |o| o.engine.events.errors_per_second.into(),
        |o, v| o.engine.events.errors_per_second = v as u32
    ),
    field!(
        "zfs_slow_io_events_per_second",
        Unit::Count,
        0,
        U32,
        OZ,
        "events of slow operations of a device that are posted in a second at most",
        |o| o.engine.events.slow_per_second.into(),
        |o, v| o.engine.events.slow_per_second = v as u32
    ),
    field!(
        "zfs_prefetch_disable",
        Unit::Count,
        0,
        1,
        OZ,
        "with 1 nothing is read ahead for sequential readers",
        |o| u64::from(o.engine.dmu.prefetch_disable),
        |o, v| o.engine.dmu.prefetch_disable = v != 0
    ),
    field!(
        "zfs_scrub_after_expand",
        Unit::Count,
        0,
        1,
        OZ,
        "with 1 a scrub begins when the expansion of a raidz has ended",
        |o| u64::from(o.engine.expand.scrub_after),
        |o, v| o.engine.expand.scrub_after = v != 0
    ),
    field!(
        "zfs_vdev_async_write_active_min_dirty_percent",
        Unit::Percent,
        0,
        100,
        OZ,
        "dirty share up to which writes of txgs have their minimum",
        |o| o.engine.queue.async_write_min_dirty_percent.into(),
        |o, v| o.engine.queue.async_write_min_dirty_percent = v as u32
    ),
    field!(
        "zfs_vdev_async_write_active_max_dirty_percent",
        Unit::Percent,
        0,
        100,
        OZ,
        "dirty share from which they have their maximum",
        |o| o.engine.queue.async_write_max_dirty_percent.into(),
        |o, v| o.engine.queue.async_write_max_dirty_percent = v as u32
    ),
    field!(
        "zfs_vdev_nia_delay",
        Unit::Count,
        0,
        U32,
        OZ,
        "completions without interactive work before scrub and the like get their maximum",
        |o| o.engine.queue.nia_delay.into(),
        |o, v| o.engine.queue.nia_delay = v as u32
    ),
    field!(
        "zfs_vdev_nia_credit",
        Unit::Count,
        0,
        U32,
        OZ,
        "operations of scrub and the like between two interactive ones",
        |o| o.engine.queue.nia_credit.into(),
        |o, v| o.engine.queue.nia_credit = v as u32
    ),
    field!(
        "zfs_vdev_aggregation_limit",
        Unit::Bytes,
        0,
        16 * MIB,
        OZ,
        "longest gathered operation of rotating devices",
        |o| o.engine.queue.aggregation_limit,
        |o, v| o.engine.queue.aggregation_limit = v
    ),
    field!(
        "zfs_vdev_aggregation_limit_non_rotating",
        Unit::Bytes,
        0,
        16 * MIB,
        OZ,
        "longest gathered operation of other devices",
        |o| o.engine.queue.aggregation_limit_non_rotating,
        |o, v| o.engine.queue.aggregation_limit_non_rotating = v
    ),
    field!(
        "vdev_shared_aggregation_limit",
        Unit::Bytes,
        0,
        16 * MIB,
        WEIR,
        "the same for what no program waits for, at fast devices that programs use meanwhile",
        |o| o.engine.queue.aggregation_limit_shared,
        |o, v| o.engine.queue.aggregation_limit_shared = v
    ),
    field!(
        "vdev_shared_async_write_active",
        Unit::Count,
        1,
        1000,
        WEIR,
        "writes of txgs at fast devices that programs use meanwhile, until 90% of the limit is dirty",
        |o| o.engine.queue.async_write_shared_active.into(),
        |o, v| o.engine.queue.async_write_shared_active = v as u32
    ),
    field!(
        "zfs_vdev_read_gap_limit",
        Unit::Bytes,
        0,
        16 * MIB,
        OZ,
        "gap between reads that are gathered all the same",
        |o| o.engine.queue.read_gap,
        |o, v| o.engine.queue.read_gap = v
    ),
    field!(
        "zio_slow_io_ms",
        Unit::Count,
        1,
        U32,
        OZ,
        "operations that take more ms at a device are slow ('zpool status -s')",
        |o| o.engine.queue.slow_io_ms.into(),
        |o, v| o.engine.queue.slow_io_ms = v as u32
    ),
    field!(
        "zfs_deadman_enabled",
        Unit::Count,
        0,
        1,
        OZ,
        "with 1 operations that a device does not end are events (ereport.fs.zfs.deadman)",
        |o| u64::from(o.engine.events.deadman),
        |o, v| o.engine.events.deadman = v != 0
    ),
    field!(
        "zfs_deadman_ziotime_ms",
        Unit::Count,
        1,
        U32,
        OZ,
        "operations that take more ms at a device hang",
        |o| o.engine.queue.hung_io_ms.into(),
        |o, v| o.engine.queue.hung_io_ms = v as u32
    ),
    field!(
        "zfs_deadman_synctime_ms",
        Unit::Count,
        1,
        U32,
        OZ,
        "while a txg is written for more ms, operations that are at a device for as long hang",
        |o| o.engine.events.hung_sync_ms.into(),
        |o, v| o.engine.events.hung_sync_ms = v as u32
    ),
    field!(
        "zfs_deadman_checktime_ms",
        Unit::Count,
        1,
        U32,
        OZ,
        "ms between two looks for operations that hang",
        |o| o.engine.events.deadman_check_ms.into(),
        |o, v| o.engine.events.deadman_check_ms = v as u32
    ),
    field!(
        "zfs_deadman_events_per_second",
        Unit::Count,
        0,
        U32,
        OZ,
        "events of operations of a device that hang that are posted in a second at most",
        |o| o.engine.events.hung_per_second.into(),
        |o, v| o.engine.events.hung_per_second = v as u32
    ),
    field!(
        "zfs_deadman_failmode",
        Unit::Word(&["wait"]),
        0,
        0,
        OZ,
        "what becomes of operations that hang: they are waited for",
        |_o| 0,
        |_o, _v| ()
    ),
    field!(
        "zfs_vdev_min_pending",
        Unit::Count,
        1,
        U32,
        OLD,
        "scheduler deadline: operations at a device up to which one that comes is issued at once",
        |o| o.engine.queue.min_pending.into(),
        |o, v| o.engine.queue.min_pending = v as u32
    ),
    field!(
        "zfs_vdev_max_pending",
        Unit::Count,
        1,
        U32,
        OLD,
        "scheduler deadline: most operations at a device",
        |o| o.engine.queue.max_pending.into(),
        |o, v| o.engine.queue.max_pending = v as u32
    ),
    field!(
        "zfs_vdev_ramp_rate",
        Unit::Count,
        1,
        U32,
        OLD,
        "scheduler deadline: how many are issued when one is over",
        |o| o.engine.queue.ramp_rate.into(),
        |o, v| o.engine.queue.ramp_rate = v as u32
    ),
    field!(
        "zfs_vdev_time_shift",
        Unit::Count,
        0,
        63,
        OLD,
        "scheduler deadline: how coarse its time is, as a power of two of ns",
        |o| o.engine.queue.time_shift.into(),
        |o, v| o.engine.queue.time_shift = v as u32
    ),
    field!(
        "zio_taskq_batch_pct",
        Unit::Percent,
        1,
        100,
        OZ,
        "threads for compression, checksums and encryption of a pool, of the machine's cores",
        |o| o.batch_pct.into(),
        |o, v| o.batch_pct = v as u32
    ),
    field!(
        "keep_awake",
        Unit::Word(AWAKE),
        0,
        1,
        WEIR,
        "whether idle cores are kept awake while many short requests come (machines of up to 8 cores, as root)",
        |o| place_of(&AWAKE_VALUES, &o.keep_awake),
        |o, v| o.keep_awake = AWAKE_VALUES[v as usize]
    ),
    field!(
        "zil_commit_policy",
        Unit::Word(&COMMITS),
        0,
        COMMITS.len() as u64 - 1,
        WEIR,
        "how synchronous commits share log blocks and flushes",
        |o| place_of(&CommitPolicy::ALL, &o.engine.zil.policy),
        |o, v| o.engine.zil.policy = CommitPolicy::ALL[v as usize]
    ),
    field!(
        "zfs_commit_timeout_pct",
        Unit::Percent,
        0,
        10_000,
        OZ2,
        "how long a log block stays open for more, of what the last one took",
        |o| o.engine.zil.commit_timeout_pct,
        |o, v| o.engine.zil.commit_timeout_pct = v
    ),
    field!(
        "zil_slog_bulk",
        Unit::Bytes,
        0,
        HALF,
        OZ2,
        "a burst of more than this goes to a log device with low priority",
        |o| o.engine.zil.slog_bulk,
        |o, v| o.engine.zil.slog_bulk = v
    ),
    field!(
        "zfs_multihost_interval",
        Unit::Ms,
        100,
        3_600_000,
        OZ,
        "time in which each device of a pool with multihost gets a heartbeat",
        |o| o.engine.multihost.interval.0 / MS,
        |o, v| o.engine.multihost.interval = Nanos::from_ms(v)
    ),
    field!(
        "zfs_multihost_fail_intervals",
        Unit::Count,
        0,
        65_535,
        OZ,
        "intervals without a heartbeat after which a pool with multihost is suspended; 0: never",
        |o| o.engine.multihost.fail_intervals,
        |o, v| o.engine.multihost.fail_intervals = v
    ),
    field!(
        "zfs_multihost_import_intervals",
        Unit::Count,
        1,
        65_535,
        OZ,
        "intervals that an import watches a pool with multihost, if the pool does not say how long",
        |o| o.engine.multihost.import_intervals,
        |o, v| o.engine.multihost.import_intervals = v
    ),
    field!(
        "zfs_multihost_history",
        Unit::Count,
        0,
        10_000,
        OZ,
        "heartbeats that the kstat 'multihost' of a pool lists",
        |o| o.engine.multihost.history as u64,
        |o, v| o.engine.multihost.history = v as usize
    ),
    field!(
        "zil_maxblocksize",
        Unit::Bytes,
        4 << 10,
        128 << 10,
        OZ,
        "largest log block",
        |o| o.engine.zil.maxblocksize,
        |o, v| o.engine.zil.maxblocksize = v
    ),
    field!(
        "zil_maxcopied",
        Unit::Bytes,
        0,
        128 << 10,
        OZ2,
        "data up to this size are kept with the record when they are to be committed at once",
        |o| o.engine.zil.maxcopied,
        |o, v| o.engine.zil.maxcopied = v
    ),
    field!(
        "zfs_zil_saxattr",
        Unit::Count,
        0,
        1,
        OZ2,
        "1: changes of extended attributes with xattr=sa are logged where the pool has the feature zilsaxattr; 0: commits wait for the txg",
        |o| o.engine.zil.saxattr.into(),
        |o, v| o.engine.zil.saxattr = v == 1
    ),
    field!(
        "zfs_immediate_write_sz",
        Unit::Bytes,
        0,
        HALF,
        OZ,
        "synchronous writes of at least this size are stored in blocks of their own where there is no log device",
        |o| o.engine.zil.immediate_write_sz,
        |o, v| o.engine.zil.immediate_write_sz = v
    ),
    field!(
        "zfs_vdev_min_ms_count",
        Unit::Count,
        1,
        1 << 17,
        OZ,
        "metaslabs of a new top-level vdev at least, of 16 MiB or more",
        |o| o.engine.alloc.counts.min,
        |o, v| o.engine.alloc.counts.min = v
    ),
    field!(
        "zfs_vdev_default_ms_count",
        Unit::Count,
        1,
        1 << 17,
        OZ,
        "metaslabs of a new top-level vdev at most, of 16 GiB or less",
        |o| o.engine.alloc.counts.default,
        |o, v| o.engine.alloc.counts.default = v
    ),
    field!(
        "metaslab_aliquot",
        Unit::Bytes,
        512,
        HALF,
        OZ,
        "what a top-level vdev gets before the next one's turn",
        |o| o.engine.alloc.aliquot,
        |o, v| o.engine.alloc.aliquot = v
    ),
    field!(
        "metaslab_df_max_search",
        Unit::Bytes,
        0,
        HALF,
        OZ,
        "how far from the cursor first fit searches",
        |o| o.engine.alloc.df_max_search,
        |o, v| o.engine.alloc.df_max_search = v
    ),
    field!(
        "metaslab_df_alloc_threshold",
        Unit::Bytes,
        0,
        HALF,
        OZ,
        "best fit instead of first fit when the largest free segment of a metaslab is smaller",
        |o| o.engine.alloc.df_alloc_threshold,
        |o, v| o.engine.alloc.df_alloc_threshold = v
    ),
    field!(
        "metaslab_df_free_pct",
        Unit::Percent,
        0,
        100,
        OZ,
        "best fit instead of first fit when less of a metaslab is free",
        |o| o.engine.alloc.df_free_pct,
        |o, v| o.engine.alloc.df_free_pct = v
    ),
    field!(
        "metaslab_unload_delay",
        Unit::Count,
        0,
        U32,
        OZ,
        "transaction groups after which an idle metaslab is unloaded",
        |o| o.engine.alloc.unload_delay,
        |o, v| o.engine.alloc.unload_delay = v
    ),
    field!(
        "zap_micro_max_size",
        Unit::Bytes,
        512,
        MIB,
        OZ3,
        "largest directory or other table in one block, which costs less to read than to change; above 128 KiB needs the feature large_microzap",
        |o| o.engine.dmu.zap_micro_max.into(),
        |o, v| o.engine.dmu.zap_micro_max = v as u32
    ),
    field!(
        "metaslab_force_ganging",
        Unit::Bytes,
        0,
        HALF,
        OZ,
        "blocks stored in more than this become gang blocks although there is space; 0: none",
        |o| o.engine.zio.gang_above,
        |o, v| o.engine.zio.gang_above = v
    ),
    field!(
        "zfs_admin_snapshot",
        Unit::Count,
        0,
        1,
        OZ,
        "whether folders made, removed and renamed in .zfs/snapshot are snapshots",
        |o| u64::from(o.engine.admin_snapshot),
        |o, v| o.engine.admin_snapshot = v != 0
    ),
    field!(
        "zfs_bclone_enabled",
        Unit::Count,
        0,
        1,
        OZ2,
        "whether copies of files may share their blocks (copy_file_range; needs block_cloning)",
        |o| u64::from(!o.engine.zio.clones_off),
        |o, v| o.engine.zio.clones_off = v == 0
    ),
    field!(
        "zfs_bclone_wait_dirty",
        Unit::Count,
        0,
        1,
        OZ2,
        "whether cloning waits for blocks that are not on disk yet; 0: these are copied",
        |o| u64::from(!o.engine.zio.clones_wait_off),
        |o, v| o.engine.zio.clones_wait_off = v == 0
    ),
    field!(
        "zfs_condense_pct",
        Unit::Percent,
        100,
        U32,
        OZ,
        "a space map is rewritten when it is this long, of its shortest form",
        |o| o.engine.alloc.condense_pct,
        |o, v| o.engine.alloc.condense_pct = v
    ),
    field!(
        "zfs_mg_fragmentation_threshold",
        Unit::Percent,
        0,
        100,
        OZ,
        "top-level vdevs more fragmented than this are left out as long as there are others",
        |o| o.engine.alloc.mg_fragmentation_threshold.into(),
        |o, v| o.engine.alloc.mg_fragmentation_threshold = v as u8
    ),
];

/// Tunables of OpenZFS that can have one value only here, that value, and why. Programs and scripts
/// may read them, and set them to what they are.
pub(crate) const FIXED: &[(&str, u64, &str)] = &[
    ("zfs_compressed_arc_enabled", 0, "the cache holds unpacked blocks"),
    ("vdev_file_logical_ashift", 12, "vdevs on files have units of 4 KiB at least, unless -o ashift says otherwise"),
    ("zfs_dmu_offset_next_sync", 1, "holes of files that were just written are found without a wait"),
    (
        "send_holes_without_birth_time",
        0,
        "streams have the holes that are younger than what they start from: their birth times can be relied on",
    ),
    (NO_VDEV_CACHE, 0, "there is no cache of a device"),
];

/// A parameter of OpenZFS until 2.1, which `arc_summary` ends without.
pub(crate) const NO_VDEV_CACHE: &str = "zfs_vdev_cache_size";

/// Tunables of OpenZFS that mean nothing here, and why.
pub(crate) const MEANINGLESS: &[(&str, &str)] = &[
    ("l2arc_headroom", "cache devices get what is read and written when it passes by, so no list is searched"),
    ("l2arc_trim_ahead", "cache devices are not trimmed"),
    ("zfs_keep_log_spacemaps_at_export", "log space maps of others go to the metaslabs' own with the first txg"),
    ("zvol_inhibit_dev", "volumes have files instead of devices: volmode=none hides one"),
];

fn place_of<T: PartialEq>(all: &[T], value: &T) -> u64 {
    all.iter().position(|v| v == value).unwrap_or(0) as u64
}
