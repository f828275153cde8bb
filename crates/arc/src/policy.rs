//! The decisions of the cache as functions of numbers: which list loses its oldest block, and how
//! the target moves.

/// Share of the limit up to which metadata is kept in preference to data, in percent
/// (`zfs_arc_meta_limit_percent`).
pub(crate) const META_PERCENT: u64 = 75;
/// A second look at a block within this time does not make it frequent: one reader often takes a
/// block in several bites (`ARC_MINTIME`, 62 ms).
pub(crate) const FREQUENT_AFTER_MS: u32 = 62;
/// Blocks larger than this share of the limit are not kept.
pub(crate) const LARGEST_SHARE: u64 = 4;
/// Blocks that are not kept ([`State::Uncached`]) may take this share of the limit for a moment,
/// and at most [`UNCACHED_MAX`].
pub(crate) const UNCACHED_SHARE: u64 = 16;
/// Bytes of data, and of metadata, that are not kept: twice what is read ahead of one reader.
pub(crate) const UNCACHED_MAX: u64 = 16 << 20;
/// Headers of ghosts may take this share of the limit.
pub(crate) const GHOST_HEADER_SHARE: u64 = 16;

/// Where an entry is. Those with data come first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum State {
    Mru = 0,
    Mfu = 1,
    /// Wanted once: the oldest goes first of all, and leaves no ghost.
    Uncached = 2,
    MruGhost = 3,
    MfuGhost = 4,
}

/// The most bytes of data, or of metadata, that are here without being kept.
pub(crate) fn uncached_max(limit: u64) -> u64 {
    (limit / UNCACHED_SHARE).min(UNCACHED_MAX)
}

/// Bytes of the live lists.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Live {
    pub(crate) mru_data: u64,
    pub(crate) mru_meta: u64,
    pub(crate) mfu_data: u64,
    pub(crate) mfu_meta: u64,
}

impl Live {
    pub(crate) fn mru(&self) -> u64 {
        self.mru_data + self.mru_meta
    }
    pub(crate) fn meta(&self) -> u64 {
        self.mru_meta + self.mfu_meta
    }
    pub(crate) fn data(&self) -> u64 {
        self.mru_data + self.mfu_data
    }
}

/// The list that gives up its oldest block, and whether it is the one of metadata; `None` if there
/// is nothing to give up.
pub(crate) fn victim(live: &Live, target_mru: u64, limit: u64) -> Option<(State, bool)> {
    let meta_max = limit / 100 * META_PERCENT;
    let meta = if live.meta() > 0 && (live.data() == 0 || live.meta() > meta_max) {
        true
    } else if live.data() > 0 {
        false
    } else {
        return None;
    };
    let (mru, mfu) = if meta { (live.mru_meta, live.mfu_meta) } else { (live.mru_data, live.mfu_data) };
    let from_mru = if mru == 0 {
        false
    } else if mfu == 0 {
        true
    } else {
        live.mru() > target_mru
    };
    Some((if from_mru { State::Mru } else { State::Mfu }, meta))
}

/// The target of the MRU's bytes after a read met a ghost of `weight` bytes; `ghosts` is the bytes
/// of (MRU ghosts, MFU ghosts). A hit in the smaller of the two ghost lists weighs more: a hit in
/// it is the less likely.
pub(crate) fn adapt(target_mru: u64, hit: State, weight: u64, ghosts: (u64, u64), limit: u64) -> u64 {
    let scaled = |mine: u64, other: u64| weight.saturating_mul((other / mine.max(1)).max(1));
    match hit {
        State::MruGhost => target_mru.saturating_add(scaled(ghosts.0, ghosts.1)).min(limit),
        State::MfuGhost => target_mru.saturating_sub(scaled(ghosts.1, ghosts.0)),
        State::Mru | State::Mfu | State::Uncached => target_mru,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_goes_before_metadata_within_its_share() {
        let live = Live { mru_data: 10, mru_meta: 70, mfu_data: 10, mfu_meta: 5 };
        assert_eq!(victim(&live, 0, 100), Some((State::Mru, false)));
        let live = Live { mru_meta: 75, ..live };
        assert_eq!(victim(&live, 0, 100), Some((State::Mru, true)), "metadata beyond its share");
        let live = Live { mru_data: 0, mru_meta: 1, mfu_data: 0, mfu_meta: 0 };
        assert_eq!(victim(&live, 50, 100), Some((State::Mru, true)), "nothing else is left");
        assert_eq!(victim(&Live::default(), 50, 100), None);
    }

    #[test]
    fn the_target_decides_between_recent_and_frequent() {
        let live = Live { mru_data: 30, mfu_data: 70, ..Live::default() };
        assert_eq!(victim(&live, 29, 100), Some((State::Mru, false)));
        assert_eq!(victim(&live, 30, 100), Some((State::Mfu, false)));
        let live = Live { mfu_data: 0, ..live };
        assert_eq!(victim(&live, 100, 100), Some((State::Mru, false)), "the other is empty");
    }

    #[test]
    fn ghosts_move_the_target() {
        assert_eq!(adapt(10, State::MruGhost, 4, (8, 8), 100), 14);
        assert_eq!(adapt(10, State::MruGhost, 4, (8, 80), 100), 50);
        assert_eq!(adapt(10, State::MruGhost, 4, (1, 80), 100), 100, "never above the limit");
        assert_eq!(adapt(10, State::MfuGhost, 4, (8, 8), 100), 6);
        assert_eq!(adapt(10, State::MfuGhost, 4, (80, 8), 100), 0);
        assert_eq!(adapt(10, State::Mfu, 4, (80, 8), 100), 10);
    }
}
