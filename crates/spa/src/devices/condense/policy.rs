//! When a mapping is condensed, and with what (format page 23 section 7): pure functions.

use base::Nanos;
use ondisk::indirect::{MAPPING_ENTRY_SIZE, MappingEntry, is_kept};

/// Tunables of condensing, with OpenZFS's names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CondenseTunables {
    /// `zfs_condense_indirect_vdevs_enable`: mappings are condensed.
    pub enable: bool,
    /// `zfs_condense_indirect_obsolete_pct`: so many percent of what is mapped are obsolete.
    pub obsolete_pct: u64,
    /// `zfs_condense_min_mapping_bytes`: a mapping that is no longer stays as it is.
    pub min_mapping_bytes: u64,
    /// `zfs_condense_max_obsolete_bytes`: an obsolete map as long as this is reason enough.
    pub max_obsolete_bytes: u64,
    /// `zfs_condense_indirect_commit_entry_delay_ms`: a wait after each entry, for tests.
    pub entry_delay: Nanos,
}

impl Default for CondenseTunables {
    fn default() -> CondenseTunables {
        CondenseTunables {
            enable: true,
            obsolete_pct: 25,
            min_mapping_bytes: 128 << 10,
            max_obsolete_bytes: 1 << 30,
            entry_delay: Nanos(0),
        }
    }
}

/// A mapping that has an obsolete map.
#[derive(Clone, Copy, Debug)]
pub(super) struct MappingState {
    /// Its ranges.
    pub entries: u64,
    /// The bytes of them.
    pub mapped: u64,
    /// Bytes that became obsolete since it was written.
    pub obsolete: u64,
    /// Bytes of the obsolete map.
    pub map_length: u64,
}

/// Whether the mapping is condensed. The percentage is a whole number, rounded down.
pub(super) fn should_condense(state: &MappingState, t: &CondenseTunables) -> bool {
    // A mapping without entries has nothing that could be obsolete.
    if !t.enable || state.entries == 0 || state.mapped == 0 {
        return false;
    }
    let percent = u128::from(state.obsolete) * 100 / u128::from(state.mapped);
    let is_long = state.entries.saturating_mul(MAPPING_ENTRY_SIZE as u64) > t.min_mapping_bytes;
    (percent >= u128::from(t.obsolete_pct) && is_long) || state.map_length >= t.max_obsolete_bytes
}

/// The next entries of the new mapping, `most` of them, from entry `at` of the old one on, with
/// their obsolete bytes; and where to go on, at most `look` entries further.
pub(super) fn next_kept(
    old: &[MappingEntry],
    counts: &[u32],
    at: usize,
    (most, look): (usize, usize),
) -> (Vec<(MappingEntry, u32)>, usize) {
    let mut kept = Vec::new();
    let end = at.saturating_add(look).min(old.len());
    let mut next = at;
    while next < end && kept.len() < most {
        let (entry, count) = (old[next], counts.get(next).copied().unwrap_or(0));
        let is_dropped = planted!(CondensedLive) && u64::from(count) * 2 >= entry.len();
        if is_kept(&entry, count) && !is_dropped {
            kept.push((entry, count));
        }
        next += 1;
    }
    (kept, next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::VdevId;
    use ondisk::blkptr::Dva;

    #[test]
    fn mappings_are_condensed_when_it_is_worth_it() {
        let t = CondenseTunables::default();
        let state = |entries, mapped, obsolete, map_length| MappingState { entries, mapped, obsolete, map_length };
        // 128 KiB are 5461 entries of 24 bytes and a third.
        for (what, state, want) in [
            ("a quarter of a long one", state(5462, 1000, 250, 8), true),
            ("a quarter of a short one", state(5461, 1000, 250, 8), false),
            ("less than a quarter", state(5462, 1000, 249, 8), false),
            ("a long obsolete map", state(1, 1000, 1, 1 << 30), true),
            ("one that is nearly as long", state(1, 1000, 1, (1 << 30) - 8), false),
            ("all of it", state(1 << 30, u64::MAX, u64::MAX, 8), true),
            ("an empty mapping", state(0, 0, 0, 1 << 30), false),
            ("damaged figures", state(5462, 0, 5, 1 << 30), false),
        ] {
            assert_eq!(should_condense(&state, &t), want, "{what}");
            assert!(!should_condense(&state, &CondenseTunables { enable: false, ..t }), "{what}");
        }
        let low = CondenseTunables { obsolete_pct: 5, min_mapping_bytes: 1, ..t };
        assert!(should_condense(&state(1, 1000, 50, 8), &low) && !should_condense(&state(1, 1000, 49, 8), &low));
        assert!(should_condense(&state(1, 1000, 0, 0), &CondenseTunables { obsolete_pct: 0, ..low }));
    }

    #[test]
    fn entries_that_are_obsolete_are_left_out() {
        let entry = |n: u64| MappingEntry { src: n << 12, dst: Dva::new(VdevId(1), n << 20, 4096, false) };
        let old: Vec<MappingEntry> = (0..6).map(entry).collect();
        let counts = [0, 4096, 512, 4096, 4096, 3584];
        let all = vec![(entry(0), 0), (entry(2), 512), (entry(5), 3584)];
        assert_eq!(next_kept(&old, &counts, 0, (9, 9)), (all.clone(), 6));
        assert_eq!(next_kept(&old, &counts, 0, (1, 9)), (all[..1].to_vec(), 1));
        assert_eq!(next_kept(&old, &counts, 1, (1, 9)), (all[1..2].to_vec(), 3));
        assert_eq!(next_kept(&old, &counts, 3, (1, 2)), (vec![], 5));
        assert_eq!(next_kept(&old, &counts, 5, (1, 2)), (all[2..].to_vec(), 6));
        assert_eq!(next_kept(&old, &counts, 6, (1, 2)), (vec![], 6));
    }
}
