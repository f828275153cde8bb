//! How much of the logs of a dedup table moves to its ZAPs, and when the logs change roles.

use base::{Nanos, Txg};

/// Txgs after which an active log is flushed (`zfs_dedup_log_txg_max`).
const LOG_TXGS_MAX: u64 = 8;
/// Fewest entries that are flushed in a txg (`zfs_dedup_log_flush_entries_min`).
const FLUSH_MIN: usize = 200;
/// Txgs in which the whole backlog would be flushed (`zfs_dedup_log_flush_txgs`).
const FLUSH_TXGS: usize = 100;
/// Time that a flush may take once it has done what it must
/// (`zfs_dedup_log_flush_min_time_ms`, that of a busy pool).
const FLUSH_TIME: Nanos = Nanos::from_ms(1000);
/// Bytes of memory for an entry of a log: key, slot, class, its share of the map's nodes.
pub(super) const ENTRY_BYTES: u64 = 200;
/// Least memory for the logs of all tables (`zfs_dedup_log_mem_max`: at least 1 MiB).
const MEMORY_MIN: u64 = 1 << 20;
/// Share of the cache's limit that the logs may have: OpenZFS gives them a percent of the memory,
/// of which the cache has half.
const MEMORY_SHARE: u64 = 50;

/// Values of the property `dedup_table_quota` that are no sizes: no limit, and one that the devices
/// for tables set.
pub const QUOTA_NONE: u64 = 0;
/// See [`QUOTA_NONE`].
pub const QUOTA_AUTO: u64 = u64::MAX;
/// What large devices for tables keep free (`ddt_special_over_quota`).
const CLASS_SPARE: u64 = 8 << 30;
/// And in percent of smaller ones, what may be in use.
const CLASS_PCT: u64 = 85;
/// Txgs without new entries after an allocation that had to leave the devices
/// (`dedup_class_wait_txgs`).
const CLASS_WAIT: u64 = 5;

/// Whether the devices for tables, of `total` bytes, have no room for new entries. Never without
/// any.
pub(super) fn is_class_full(alloc: u64, total: u64) -> bool {
    let limit = (u128::from(total) * u128::from(CLASS_PCT) / 100).max(total.saturating_sub(CLASS_SPARE).into());
    total > 0 && u128::from(alloc) >= limit
}

/// Whether an allocation that left the devices for tables in txg `left` holds off new entries in
/// `txg`: what was freed there may be on its way.
pub(super) fn is_recent(left: Txg, txg: Txg) -> bool {
    txg.0 <= left.0.saturating_add(CLASS_WAIT)
}

/// Most entries in the logs of a table, with a cache of `arc_limit` bytes.
pub(super) fn entries_max(arc_limit: u64) -> usize {
    ((arc_limit / MEMORY_SHARE).max(MEMORY_MIN) / ENTRY_BYTES) as usize
}

/// How many entries a txg flushes: at least the first number, at most the second if there is time.
/// What is above `most`, the memory's limit, is flushed in any case.
pub(super) fn flush_goal(backlog: usize, most: usize) -> (usize, usize) {
    let least = (backlog / FLUSH_TXGS).max(FLUSH_MIN);
    let over = backlog.saturating_sub(most);
    (least.max(over), (least * 5 / 4).max(over))
}

/// Whether a flush that wrote `done` entries in `time` has done enough.
pub(super) fn is_enough(done: usize, (least, most): (usize, usize), time: Nanos) -> bool {
    done >= most || (done > least && time >= FLUSH_TIME)
}

/// Whether the active log is to be flushed from now on: it has many entries, or is old.
pub(super) fn swap_is_due(entries: usize, most: usize, first: Txg, txg: Txg) -> bool {
    entries > 0 && (entries >= most / 2 || txg.0 >= first.0.saturating_add(LOG_TXGS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_keep_up() {
        for (backlog, most, goal) in [
            (0, 10_000, (200, 250)),
            (20_000, 50_000, (200, 250)),
            (30_000, 50_000, (300, 375)),
            (60_000, 50_000, (10_000, 10_000)),
            (5_000, 1_000, (4_000, 4_000)),
        ] {
            assert_eq!(flush_goal(backlog, most), goal, "{backlog} of {most}");
        }
        let goal = (200, 250);
        for (done, ms, enough) in [(250, 0, true), (249, 999, false), (200, 5000, false), (201, 1000, true)] {
            assert_eq!(is_enough(done, goal, Nanos::from_ms(ms)), enough, "{done} in {ms} ms");
        }
    }

    #[test]
    fn logs_change_roles() {
        for (entries, age, due) in [(0, 100, false), (1, 7, false), (1, 8, true), (500, 0, true), (499, 0, false)] {
            assert_eq!(swap_is_due(entries, 1000, Txg(50), Txg(50 + age)), due, "{entries} entries, {age} txgs");
        }
    }

    #[test]
    fn devices_for_tables_keep_room() {
        const G: u64 = 1 << 30;
        for (alloc, total, full) in [
            (0, 0, false),
            (84, 100, false),
            (85, 100, true),
            (85 * G, 100 * G, false),
            (91 * G, 100 * G, false),
            (92 * G, 100 * G, true),
            (34 * G, 40 * G, true),
        ] {
            assert_eq!(is_class_full(alloc, total), full, "{alloc} of {total}");
        }
    }

    #[test]
    fn what_left_the_devices_holds_off_new_entries() {
        for (left, txg, recent) in [(10, 10, true), (10, 15, true), (10, 16, false), (u64::MAX, 20, true)] {
            assert_eq!(is_recent(Txg(left), Txg(txg)), recent, "{left} {txg}");
        }
    }

    #[test]
    fn memory_is_a_share_of_the_cache() {
        assert_eq!(entries_max(0), 5242);
        assert_eq!(entries_max(1 << 30), 107_374);
    }
}
