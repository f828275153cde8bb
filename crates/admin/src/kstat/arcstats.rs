//! `arcstats`: the cache in memory and the cache devices.
//!
//! The lines are those of OpenZFS 2.4 in its order, and those of 2.1 that its programs read. What
//! differs here: the cache holds unpacked blocks, so compressed and uncompressed size are the same;
//! one target (`p`) divides recent and frequent blocks of data and metadata alike, so `pd` and
//! `pm` are equal; the target of the whole, `c`, is the limit.

use arc::{Accesses, ArcStats, Want};

use crate::kstat::figures::{Line, PoolFigures, counter, none, size};
use crate::kstat::text::Value;

/// Share of the limit up to which metadata is kept in preference to data, in percent
/// (`zfs_arc_meta_limit_percent`).
const META_PERCENT: u64 = 75;
/// Fractions have 32 bits after the point.
const ONE: u64 = 1 << 32;

/// The lines of one pool.
pub(crate) fn lines(f: &PoolFigures) -> Vec<Line> {
    let mut out = accesses(&f.arc);
    out.extend(memory(f));
    out.extend(devices(f));
    out.extend(machine(f));
    out
}

fn accesses(a: &ArcStats) -> Vec<Line> {
    let of = |want, meta| a.of(want, meta);
    let three = |names: [&'static str; 3], n: Accesses| {
        let [hits, iohits, misses] = names;
        [counter(hits, n.hits), counter(iohits, n.coalesced), counter(misses, n.misses)]
    };
    let mut out = vec![counter("hits", a.hits), counter("iohits", a.coalesced), counter("misses", a.misses)];
    out.extend(three(["demand_data_hits", "demand_data_iohits", "demand_data_misses"], of(Want::Demand, false)));
    out.extend(three(
        ["demand_metadata_hits", "demand_metadata_iohits", "demand_metadata_misses"],
        of(Want::Demand, true),
    ));
    out.extend(three(["prefetch_data_hits", "prefetch_data_iohits", "prefetch_data_misses"], of(Want::Ahead, false)));
    out.extend(three(
        ["prefetch_metadata_hits", "prefetch_metadata_iohits", "prefetch_metadata_misses"],
        of(Want::Ahead, true),
    ));
    out.extend([
        counter("mru_hits", a.mru_hits),
        counter("mru_ghost_hits", a.mru_ghost_hits),
        counter("mfu_hits", a.mfu_hits),
        counter("mfu_ghost_hits", a.mfu_ghost_hits),
        counter("uncached_hits", a.uncached_hits),
        counter("deleted", a.evicted),
        none("mutex_miss"),
        none("evict_skip"),
        none("evict_l2_cached"),
        none("evict_l2_eligible"),
        none("evict_l2_eligible_mfu"),
        none("evict_l2_eligible_mru"),
        none("evict_l2_ineligible"),
        none("evict_l2_skip"),
        size("hash_elements", a.blocks + a.ghosts),
        size("hash_elements_max", a.entries_max),
        none("hash_collisions"),
        none("hash_chains"),
        none("hash_chain_max"),
    ]);
    out
}

fn memory(f: &PoolFigures) -> Vec<Line> {
    let a = &f.arc;
    let blocks = a.data_bytes + a.meta_bytes + a.uncached_bytes;
    vec![
        // Of the sum of all pools: see `complete`.
        size("meta", 0),
        size("pd", 0),
        size("pm", 0),
        size("p", a.target_mru),
        size("c", a.limit),
        size("c_min", 0),
        size("c_max", 0),
        size("size", a.size),
        size("compressed_size", blocks),
        size("uncompressed_size", blocks),
        none("overhead_size"),
        size("hdr_size", a.header_memory),
        size("data_size", a.data_bytes + a.uncached_bytes - a.uncached_meta_bytes),
        size("metadata_size", a.meta_bytes + a.uncached_meta_bytes),
        none("dbuf_size"),
        size("dnode_size", f.dnodes),
        none("bonus_size"),
        none("anon_data"),
        none("anon_metadata"),
        size("mru_size", a.mru_bytes),
        size("mru_data", a.mru_bytes - a.mru_meta_bytes),
        size("mru_metadata", a.mru_meta_bytes),
        // Everything may be dropped.
        size("mru_evictable_data", a.mru_bytes - a.mru_meta_bytes),
        size("mru_evictable_metadata", a.mru_meta_bytes),
        size("mru_ghost_size", a.mru_ghost_bytes),
        size("mru_ghost_data", a.mru_ghost_bytes - a.mru_ghost_meta_bytes),
        size("mru_ghost_metadata", a.mru_ghost_meta_bytes),
        size("mfu_size", a.mfu_bytes),
        size("mfu_data", a.mfu_bytes - a.mfu_meta_bytes),
        size("mfu_metadata", a.mfu_meta_bytes),
        size("mfu_evictable_data", a.mfu_bytes - a.mfu_meta_bytes),
        size("mfu_evictable_metadata", a.mfu_meta_bytes),
        size("mfu_ghost_size", a.mfu_ghost_bytes),
        size("mfu_ghost_data", a.mfu_ghost_bytes - a.mfu_ghost_meta_bytes),
        size("mfu_ghost_metadata", a.mfu_ghost_meta_bytes),
        size("uncached_size", a.uncached_bytes),
        size("uncached_data", a.uncached_bytes - a.uncached_meta_bytes),
        size("uncached_metadata", a.uncached_meta_bytes),
    ]
}

fn devices(f: &PoolFigures) -> Vec<Line> {
    let s = &f.l2;
    let h = &s.held;
    vec![
        counter("l2_hits", s.hits),
        counter("l2_misses", s.misses),
        size("l2_prefetch_asize", h.ahead),
        size("l2_mru_asize", h.recent),
        size("l2_mfu_asize", h.frequent),
        size("l2_bufc_data_asize", h.asize - h.meta),
        size("l2_bufc_metadata_asize", h.meta),
        counter("l2_feeds", s.feeds),
        counter("l2_rw_clash", s.rw_clash),
        counter("l2_read_bytes", s.read_bytes),
        counter("l2_write_bytes", s.write_bytes),
        // Feeds, as OpenZFS counts them: one that fails is done, too.
        counter("l2_writes_sent", s.feeds),
        counter("l2_writes_done", s.feeds),
        counter("l2_writes_error", s.writes_error),
        none("l2_evict_lock_retry"),
        none("l2_evict_reading"),
        none("l2_evict_l1cached"),
        none("l2_free_on_write"),
        counter("l2_abort_lowmem", s.abort_lowmem),
        counter("l2_cksum_bad", s.cksum_bad),
        counter("l2_io_error", s.io_error),
        size("l2_size", h.lsize),
        size("l2_asize", h.asize),
        size("l2_hdr_size", s.hdr_size),
        counter("l2_log_blk_writes", s.log_blk_writes),
        size("l2_log_blk_avg_asize", s.log_blk_asize.checked_div(s.log_blk_count).unwrap_or(0)),
        size("l2_log_blk_asize", s.log_blk_asize),
        size("l2_log_blk_count", s.log_blk_count),
        size("l2_data_to_meta_ratio", h.asize.checked_div(s.log_blk_asize).unwrap_or(0)),
        counter("l2_rebuild_success", s.rebuild_success),
        counter("l2_rebuild_unsupported", s.rebuild_unsupported),
        counter("l2_rebuild_io_errors", s.rebuild_io_errors),
        counter("l2_rebuild_dh_errors", s.rebuild_dh_errors),
        counter("l2_rebuild_cksum_lb_errors", s.rebuild_cksum_lb_errors),
        counter("l2_rebuild_lowmem", s.rebuild_lowmem),
        counter("l2_rebuild_size", s.rebuild_size),
        counter("l2_rebuild_asize", s.rebuild_asize),
        counter("l2_rebuild_bufs", s.rebuild_bufs),
        counter("l2_rebuild_bufs_precached", s.rebuild_bufs_precached),
        counter("l2_rebuild_log_blks", s.rebuild_log_blks),
    ]
}

fn machine(f: &PoolFigures) -> Vec<Line> {
    let a = &f.arc;
    let ahead = |n: Accesses| n.hits + n.coalesced + n.misses;
    let blocks = a.data_bytes + a.meta_bytes + a.uncached_bytes;
    vec![
        none("memory_throttle_count"),
        none("memory_direct_count"),
        none("memory_indirect_count"),
        size("memory_all_bytes", 0),
        size("memory_free_bytes", 0),
        size("memory_available_bytes", 0),
        // The cache does not shrink when memory is short: its limit is that.
        none("arc_no_grow"),
        size("arc_meta_used", a.meta_bytes + a.uncached_meta_bytes + a.header_memory + a.charged),
        size("arc_meta_limit", a.limit / 100 * META_PERCENT),
        none("arc_dnode_limit"),
        counter("predictive_prefetch", ahead(a.of(Want::Ahead, false)) + ahead(a.of(Want::Ahead, true))),
        counter("demand_hit_predictive_prefetch", a.ahead_used),
        none("demand_iohit_predictive_prefetch"),
        none("prescient_prefetch"),
        none("demand_hit_prescient_prefetch"),
        none("demand_iohit_prescient_prefetch"),
        none("arc_need_free"),
        none("arc_sys_free"),
        size("abd_chunk_waste_size", a.block_memory.saturating_sub(blocks)),
    ]
}

/// Memory of the machine, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Machine {
    all: u64,
    free: u64,
    available: u64,
}

impl Machine {
    /// As it is now.
    pub(crate) fn now() -> Machine {
        Machine::of(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default())
    }

    fn of(meminfo: &str) -> Machine {
        let line = |name: &str| {
            let kb = meminfo.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')?.strip_suffix("kB"));
            kb.and_then(|n| n.trim().parse::<u64>().ok()).unwrap_or(0).saturating_mul(1024)
        };
        Machine { all: line("MemTotal"), free: line("MemFree"), available: line("MemAvailable") }
    }
}

/// Sets the lines that are of the process: the limits of the cache are `limits`.
pub(crate) fn complete(values: &mut [(&str, Value)], machine: &Machine, limits: (u64, u64)) {
    let (min, max) = limits;
    let number = |values: &[(&str, Value)], wanted: &str| {
        let found = values.iter().find(|(name, _)| *name == wanted);
        if let Some((_, Value::Number(n))) = found { *n } else { 0 }
    };
    let (p, c) = (number(values, "p"), number(values, "c"));
    let recent = (u128::from(p) * u128::from(ONE)).checked_div(u128::from(c)).unwrap_or(0) as u64;
    for (name, value) in values {
        match *name {
            // Before there is a pool nothing is cached, and all of it may be.
            "c" if c == 0 => *value = Value::Number(max),
            "c_min" => *value = Value::Number(min),
            "c_max" => *value = Value::Number(max),
            "pd" | "pm" => *value = Value::Number(recent),
            "meta" => *value = Value::Number(ONE / 100 * META_PERCENT),
            "memory_all_bytes" => *value = Value::Number(machine.all),
            "memory_free_bytes" => *value = Value::Number(machine.free),
            "memory_available_bytes" => *value = Value::Signed(machine.available.try_into().unwrap_or(i64::MAX)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use arc::{Held, L2Stats};

    use super::*;

    fn value(lines: &[Line], name: &str) -> u64 {
        lines.iter().find(|l| l.name == name).unwrap_or_else(|| panic!("{name}")).value
    }

    #[test]
    fn lines_add_up() {
        let by_kind = [1, 2, 3, 4].map(|n| Accesses { hits: n, coalesced: 10 * n, misses: 100 * n });
        let arc = ArcStats {
            hits: 10,
            coalesced: 100,
            misses: 1000,
            by_kind,
            mru_bytes: 50,
            mru_meta_bytes: 20,
            uncached_bytes: 7,
            uncached_meta_bytes: 3,
            data_bytes: 30,
            meta_bytes: 20,
            ..ArcStats::default()
        };
        let held = Held { lsize: 900, asize: 500, recent: 300, frequent: 150, ahead: 50, meta: 100 };
        let l2 = L2Stats { held, log_blk_count: 2, log_blk_asize: 100, ..L2Stats::default() };
        let lines = lines(&PoolFigures { arc, l2, ..PoolFigures::default() });
        let sum = |names: &[&str]| names.iter().map(|n| value(&lines, n)).sum::<u64>();
        for (total, parts) in [
            ("hits", ["demand_data_hits", "demand_metadata_hits", "prefetch_data_hits", "prefetch_metadata_hits"]),
            (
                "iohits",
                ["demand_data_iohits", "demand_metadata_iohits", "prefetch_data_iohits", "prefetch_metadata_iohits"],
            ),
            (
                "misses",
                ["demand_data_misses", "demand_metadata_misses", "prefetch_data_misses", "prefetch_metadata_misses"],
            ),
        ] {
            assert_eq!(value(&lines, total), sum(&parts), "{total}");
        }
        assert_eq!(value(&lines, "predictive_prefetch"), 777);
        assert_eq!(sum(&["mru_data", "mru_metadata"]), value(&lines, "mru_size"));
        assert_eq!((value(&lines, "data_size"), value(&lines, "metadata_size")), (34, 23));
        assert_eq!(sum(&["l2_mru_asize", "l2_mfu_asize", "l2_prefetch_asize"]), value(&lines, "l2_asize"));
        assert_eq!((value(&lines, "l2_data_to_meta_ratio"), value(&lines, "l2_log_blk_avg_asize")), (5, 50));
    }

    #[test]
    fn limits_and_memory_are_of_the_process() {
        let meminfo = "MemTotal:       1000 kB\nMemFree:         300 kB\nMemAvailable:    500 kB\nMemFree2: 1 kB\n";
        let machine = Machine::of(meminfo);
        assert_eq!(machine, Machine { all: 1_024_000, free: 307_200, available: 512_000 });
        let mut values: Vec<(&str, Value)> =
            ["p", "c", "c_min", "c_max", "pd", "meta", "memory_available_bytes", "hits"]
                .map(|name| (name, Value::Number(if name == "p" { 25 } else { 100 })))
                .to_vec();
        complete(&mut values, &machine, (5, 200));
        let n = Value::Number;
        let want = [n(25), n(100), n(5), n(200), n(1 << 30), n(ONE / 100 * 75), Value::Signed(512_000), n(100)];
        assert_eq!(values.iter().map(|(_, v)| v.clone()).collect::<Vec<Value>>(), want);
        let mut none = vec![("c", n(0)), ("pd", n(7))];
        complete(&mut none, &Machine::of("nothing"), (5, 200));
        assert_eq!(none, [("c", n(200)), ("pd", n(0))]);
    }
}
