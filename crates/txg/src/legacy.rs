//! The write throttle of 2008 to 2013, for comparison (behaviour section 3.3).
//!
//! Each txg may grow to a *write limit*: the bytes that the pool writes in `zfs_txg_synctime_ms` at
//! its smoothed throughput. In the last eighth of it every transaction sleeps one tick;
//! transactions beyond the limit wait for the next txg. Its quirks are kept: each thread sleeps its
//! tick on its own, so a thousand threads are hardly slowed down; none sleeps when the txg before
//! is syncing or has synced already, so the ticks only apply when three txgs exist; and a late
//! transaction waits for a whole sync.

use base::{Nanos, Txg};

use crate::policy::TxgTunables;

/// Syncs that took no longer do not count for the throughput.
const WRITE_TIME_MIN: Nanos = Nanos(1_000_000);

/// The measured throughput and the write limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteLimit {
    /// Smoothed throughput of syncs, bytes a millisecond; 0 as long as nothing is known.
    pub throughput: u64,
    /// Most bytes that a txg may have.
    pub limit: u64,
}

impl WriteLimit {
    /// Before the first sync: the least that there is.
    pub fn new(t: &TxgTunables) -> WriteLimit {
        WriteLimit { throughput: 0, limit: t.write_limit_min }
    }

    /// After a sync that wrote `data` bytes in `time`: three parts old, one part new; syncs with
    /// too little data or time do not count.
    pub fn after_sync(self, data: u64, time: Nanos, t: &TxgTunables) -> WriteLimit {
        if data <= t.write_limit_min / 8 || time <= WRITE_TIME_MIN {
            return self;
        }
        let new = data / (time.0 / 1_000_000);
        let throughput = if self.throughput == 0 { new } else { new / 4 + self.throughput / 4 * 3 };
        let wanted = throughput.saturating_mul(t.txg_synctime.0 / 1_000_000);
        WriteLimit { throughput, limit: wanted.max(t.write_limit_min).min(t.write_limit_max) }
    }

    /// The limit in force: the override, if there is one. Never 0: some limit must hold.
    pub fn effective(&self, t: &TxgTunables) -> u64 {
        if t.write_limit_override > 0 { t.write_limit_override } else { self.limit.max(1) }
    }
}

/// The decision for a transaction that would join the open txg.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// Goes on.
    Go,
    /// Sleeps one tick, then goes on.
    Tick,
    /// Waits for the next txg and tries again.
    NextTxg,
}

/// Input of the decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AdmitState {
    /// The open txg.
    pub open: Txg,
    /// The last txg whose sync has begun.
    pub syncing: Txg,
    /// Bytes dirtied in the open txg so far.
    pub towrite: u64,
    /// Bytes that transactions in the open txg may still write, at worst.
    pub tempreserved: u64,
}

/// Whether a transaction may join the open txg. A limit of 0 is none.
pub fn admit(m: &AdmitState, limit: u64) -> Admission {
    let reserved = m.towrite.saturating_add(m.tempreserved / 2);
    if limit == 0 || reserved == 0 {
        return Admission::Go;
    }
    if reserved > limit {
        return Admission::NextTxg;
    }
    // The tick makes sense only while the txg before is quiesced and waits for one that syncs.
    let three_txgs = m.syncing.0 + 1 < m.open.0;
    if reserved > limit - limit / 8 && three_txgs { Admission::Tick } else { Admission::Go }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    fn t() -> TxgTunables {
        TxgTunables::for_memory(8 << 30)
    }

    #[test]
    fn limits_follow_throughput() {
        let t = t();
        assert_eq!((t.write_limit_min, t.write_limit_max, t.txg_synctime), (32 * MB, 1 << 30, Nanos::from_secs(5)));
        let first = WriteLimit::new(&t);
        assert_eq!(first, WriteLimit { throughput: 0, limit: 32 * MB });
        let ms = Nanos::from_ms;
        // (data, time, throughput, limit), each row after the one before.
        let mut w = first;
        for (data, time, throughput, limit) in [
            // Not more than an eighth of the least limit.
            (4 * MB, ms(100), 0, 32 * MB),
            // Too short.
            (4 * MB + 1, Nanos(1_000_000), 0, 32 * MB),
            // The first one counts in full: 100,000 B/ms for 5 s.
            (32_000_000, ms(320), 100_000, 500_000_000),
            // 25,000 + 75,000, then 50,000 + 75,000.
            (500_000_000, ms(5_000), 100_000, 500_000_000),
            (500_000_000, ms(2_500), 125_000, 625_000_000),
            // 125,000 + 93,750; an eighth of memory is the most.
            (625_000_000, ms(1_250), 218_750, 1 << 30),
            // 250 + 164,061 (218,750 / 4 = 54,687).
            (10_000_000, ms(10_000), 164_311, 821_555_000),
        ] {
            w = w.after_sync(data, time, &t);
            assert_eq!(w, WriteLimit { throughput, limit }, "{data} bytes in {} ms", time.0 / 1_000_000);
        }
        let slow = first.after_sync(10 * MB, Nanos::from_secs(100), &t);
        assert_eq!((slow.throughput, slow.limit), (104, 32 * MB), "the least limit");
        let over = TxgTunables { write_limit_override: 7, ..t };
        assert_eq!((w.effective(&t), w.effective(&over)), (821_555_000, 7));
        let wild = TxgTunables { txg_synctime: Nanos(u64::MAX), ..t };
        assert_eq!(first.after_sync(u64::MAX, ms(2), &wild).limit, 1 << 30, "no overflow");
    }

    #[test]
    fn who_goes_who_ticks_and_who_waits() {
        let limit = 800 * MB;
        let m = |towrite: u64, tempreserved: u64, syncing: u64| {
            let m = AdmitState {
                open: Txg(12),
                syncing: Txg(syncing),
                towrite: towrite * MB,
                tempreserved: tempreserved * MB,
            };
            admit(&m, limit)
        };
        use Admission::*;
        // Txg 10 syncs, 11 is quiesced, 12 is open.
        assert_eq!(
            [m(0, 0, 10), m(700, 0, 10), m(701, 0, 10), m(800, 0, 10), m(801, 0, 10)],
            [Go, Go, Tick, Tick, NextTxg]
        );
        // Half of the reservation counts.
        assert_eq!([m(600, 200, 10), m(600, 204, 10), m(600, 404, 10)], [Go, Tick, NextTxg]);
        // With 11 syncing or synced there are no ticks; the limit stays.
        assert_eq!([m(799, 0, 11), m(801, 0, 11)], [Go, NextTxg]);
        assert_eq!(admit(&AdmitState { open: Txg(12), syncing: Txg(10), towrite: u64::MAX, tempreserved: 9 }, 0), Go);
        assert_eq!(
            admit(&AdmitState { open: Txg(12), syncing: Txg(10), towrite: u64::MAX, tempreserved: 9 }, 7),
            NextTxg
        );
        assert_eq!(
            admit(&AdmitState { open: Txg(12), syncing: Txg(10), towrite: 0, tempreserved: 1 }, 1),
            Go,
            "a lone one"
        );
    }
}
