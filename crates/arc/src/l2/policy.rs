//! The decisions of feeding as functions of numbers (format page 22 sections 4 and 6).

use base::Nanos;
use ondisk::l2arc::{LOG_BLOCK_SIZE, Ring};

/// Settings of cache devices, by the names that OpenZFS gives them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct L2Tunables {
    /// `l2arc_write_max`: bytes of a feed.
    pub write_max: u64,
    /// `l2arc_write_boost`: bytes added until memory is full for the first time.
    pub write_boost: u64,
    /// `l2arc_feed_secs`: the time between feeds.
    pub feed_interval: Nanos,
    /// `l2arc_feed_again`: the next feed comes sooner where there is much to write.
    pub feed_again: bool,
    /// `l2arc_feed_min_ms`: how soon.
    pub feed_min: Nanos,
    /// `l2arc_noprefetch`: what was only read ahead is not written.
    pub no_prefetch: bool,
    /// `l2arc_mfuonly`: 1: only blocks that were wanted more than once; 2: those, and all metadata.
    pub mfu_only: u64,
    /// `l2arc_exclude_special`: not what is on special and dedup vdevs.
    pub exclude_special: bool,
    /// `l2arc_norw`: a device that is being written is not read.
    pub no_rw: bool,
    /// `l2arc_meta_percent`: the largest share of the cache's limit that the index of what is on
    /// the devices takes.
    pub meta_percent: u64,
    /// `l2arc_rebuild_enabled`: what is on a device is found again when it is opened.
    pub rebuild: bool,
    /// `l2arc_rebuild_blocks_min_l2size`: devices below this size get no log blocks, so that
    /// nothing is found again.
    pub rebuild_min_size: u64,
}

impl Default for L2Tunables {
    /// OpenZFS 2.4's.
    fn default() -> L2Tunables {
        L2Tunables {
            write_max: 32 << 20,
            write_boost: 32 << 20,
            feed_interval: Nanos::from_secs(1),
            feed_again: true,
            feed_min: Nanos::from_ms(200),
            no_prefetch: true,
            mfu_only: 0,
            exclude_special: false,
            no_rw: false,
            meta_percent: 33,
            rebuild: true,
            rebuild_min_size: 1 << 30,
        }
    }
}

/// The most bytes that one feed writes to a device with this ring, whose log blocks have `entries`
/// entries; `warm`: memory was full once.
pub(crate) fn feed_size(t: &L2Tunables, warm: bool, ring: &Ring, entries: u64) -> u64 {
    let max = if t.write_max == 0 { L2Tunables::default().write_max } else { t.write_max };
    let size = if warm { max } else { max.saturating_add(t.write_boost) };
    let logs = if entries == 0 { 0 } else { (size >> 9).div_ceil(entries).saturating_mul(LOG_BLOCK_SIZE as u64) };
    size.saturating_add(logs).min((ring.end - ring.start) / 4)
}

/// Time until the next feed after one that wrote `wrote` of at most `size` bytes.
pub(crate) fn interval(t: &L2Tunables, wrote: u64, size: u64) -> Nanos {
    if t.feed_again && wrote > size / 2 { t.feed_min.min(t.feed_interval) } else { t.feed_interval }
}

/// What is known of a block that may be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    pub(crate) meta: bool,
    /// More than once: in the list of frequent blocks, or read again after it had left memory.
    pub(crate) frequent: bool,
    /// It was only read ahead so far.
    pub(crate) ahead: bool,
}

/// How many ranks there are.
pub(crate) const RANKS: usize = 4;

/// Its place in the order of a feed, lowest first: frequent metadata, recent metadata, frequent
/// data, recent data. None: not this time.
pub(crate) fn rank(t: &L2Tunables, w: Wanted) -> Option<u8> {
    let is_kept_out = match t.mfu_only {
        0 => false,
        1 => !w.frequent,
        _ => !w.frequent && !w.meta,
    };
    if is_kept_out || w.ahead && t.no_prefetch {
        return None;
    }
    Some(u8::from(!w.meta) * 2 + u8::from(!w.frequent))
}

/// Makes room for `need` bytes at the hand, which is at most what the ring holds: the ring then,
/// and the ranges of addresses whose content is given up. In the first sweep nothing is there yet.
pub(crate) fn advance(mut ring: Ring, need: u64) -> (Ring, Vec<(u64, u64)>) {
    assert!(need <= ring.end - ring.start, "a feed is smaller than the device");
    let mut gone = Vec::new();
    if ring.hand + need > ring.end {
        if !ring.first {
            gone.push((ring.hand, ring.end));
        }
        (ring.hand, ring.evict, ring.first) = (ring.start, ring.start, false);
    }
    if !ring.first {
        ring.evict = ring.evict.max(ring.hand + need);
        gone.push((ring.hand, ring.evict));
    }
    (ring, gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feed_is_bounded_by_the_device() {
        let (t, mut ring) = (L2Tunables::default(), Ring { start: 0, end: 1 << 40, hand: 0, evict: 0, first: true });
        assert_eq!(feed_size(&t, true, &ring, 0), 32 << 20);
        assert_eq!(feed_size(&t, false, &ring, 0), 64 << 20);
        assert_eq!(feed_size(&t, true, &ring, 1022), (32 << 20) + 65 * (64 << 10));
        assert_eq!(feed_size(&L2Tunables { write_max: 0, ..t }, true, &ring, 0), 32 << 20);
        ring.end = 64 << 20;
        assert_eq!(feed_size(&t, true, &ring, 4), 16 << 20);
        assert_eq!(feed_size(&L2Tunables { write_max: u64::MAX, ..t }, false, &ring, 1), 16 << 20);
    }

    #[test]
    fn much_to_write_comes_sooner() {
        let t = L2Tunables::default();
        assert_eq!(interval(&t, 51, 100), Nanos::from_ms(200));
        assert_eq!(interval(&t, 50, 100), Nanos::from_secs(1));
        assert_eq!(interval(&L2Tunables { feed_again: false, ..t }, 51, 100), Nanos::from_secs(1));
    }

    #[test]
    fn what_is_wanted_more_comes_first() {
        let t = L2Tunables::default();
        let w = |meta, frequent, ahead| Wanted { meta, frequent, ahead };
        let ranks = [(true, true), (true, false), (false, true), (false, false)].map(|(m, f)| rank(&t, w(m, f, false)));
        assert_eq!(ranks, [Some(0), Some(1), Some(2), Some(3)]);
        assert_eq!(rank(&t, w(true, true, true)), None);
        assert_eq!(rank(&L2Tunables { no_prefetch: false, ..t }, w(false, false, true)), Some(3));
        let one = L2Tunables { mfu_only: 1, ..t };
        assert_eq!((rank(&one, w(true, false, false)), rank(&one, w(false, true, false))), (None, Some(2)));
        let two = L2Tunables { mfu_only: 2, ..t };
        assert_eq!((rank(&two, w(true, false, false)), rank(&two, w(false, false, false))), (Some(1), None));
    }

    #[test]
    fn the_hand_goes_round() {
        let ring = |hand, evict, first| Ring { start: 10, end: 100, hand, evict, first };
        assert_eq!(advance(ring(10, 10, true), 90), (ring(10, 10, true), vec![]), "nothing is there yet");
        assert_eq!(advance(ring(50, 10, true), 60), (ring(10, 70, false), vec![(10, 70)]));
        assert_eq!(advance(ring(20, 30, false), 30), (ring(20, 50, false), vec![(20, 50)]));
        assert_eq!(advance(ring(20, 80, false), 30), (ring(20, 80, false), vec![(20, 80)]));
        assert_eq!(advance(ring(90, 95, false), 30), (ring(10, 40, false), vec![(90, 100), (10, 40)]));
        assert_eq!(advance(ring(70, 75, false), 30), (ring(70, 100, false), vec![(70, 100)]));
    }
}
