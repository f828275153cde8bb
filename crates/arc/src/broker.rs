//! One limit for several pools.
//!
//! Each pool's cache lives on its own thread and reports its size and its ghost hits ([`Demand`], a
//! plain value); the owner of the pools passes the reports to the broker and sets each cache to the
//! resulting limit.

use std::collections::BTreeMap;

/// The memory demand of a pool's cache.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Demand {
    /// Bytes that it holds.
    pub size: u64,
    /// Bytes that it read again soon after it had dropped them, since its last report: a larger
    /// limit would have kept them.
    pub missed: u64,
}

/// Splits one limit over pools by demand.
#[derive(Debug, Default)]
pub struct MemBroker {
    least: u64,
    total: u64,
    pools: BTreeMap<u64, Demand>,
}

/// Weight of a missed byte against a held one: misses are counted over a short time.
const MISSED_WEIGHT: u64 = 4;

/// The limits of pools with these demands: together exactly `total` (nothing for no pools). They
/// have equal parts of `least` of it, whatever their demand.
pub fn split(least: u64, total: u64, demands: &[Demand]) -> Vec<u64> {
    let Ok(n) = u64::try_from(demands.len()) else { return Vec::new() };
    if n == 0 {
        return Vec::new();
    }
    let floor = least.min(total) / n;
    let rest = total - floor * n;
    // One byte each keeps the sum from being 0.
    let want = |d: &Demand| d.size.saturating_add(d.missed.saturating_mul(MISSED_WEIGHT)).saturating_add(1);
    let wants: Vec<u128> = demands.iter().map(|d| u128::from(want(d))).collect();
    let sum: u128 = wants.iter().sum();
    let mut limits: Vec<u64> = wants.iter().map(|w| floor + (u128::from(rest) * w / sum) as u64).collect();
    let given: u64 = limits.iter().sum();
    limits[0] += total - given;
    limits
}

impl MemBroker {
    /// A broker of `total` bytes, of which `least` are split equally.
    pub fn new(least: u64, total: u64) -> MemBroker {
        MemBroker { least, total, pools: BTreeMap::new() }
    }
    /// Changes the total.
    pub fn set_total(&mut self, total: u64) {
        self.total = total;
    }
    /// The report of pool `id` (any number that is its own, such as its guid), or its arrival.
    pub fn report(&mut self, id: u64, demand: Demand) {
        self.pools.insert(id, demand);
    }
    /// Pool `id` is gone.
    pub fn remove(&mut self, id: u64) {
        self.pools.remove(&id);
    }
    /// The limit of each pool, by id.
    pub fn limits(&self) -> Vec<(u64, u64)> {
        let demands: Vec<Demand> = self.pools.values().copied().collect();
        self.pools.keys().copied().zip(split(self.least, self.total, &demands)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_add_up_and_follow_demand() {
        assert!(split(25, 100, &[]).is_empty());
        assert_eq!(split(250, 1000, &[Demand::default()]), [1000]);
        let two = split(250, 1000, &[Demand { size: 100, missed: 0 }, Demand { size: 100, missed: 0 }]);
        assert_eq!(two, [500, 500]);
        let busy = split(
            1 << 28,
            1 << 30,
            &[Demand { size: 1 << 28, missed: 1 << 28 }, Demand { size: 1 << 28, missed: 0 }, Demand::default()],
        );
        assert_eq!(busy.iter().sum::<u64>(), 1 << 30);
        assert!(busy[0] > 3 * busy[1] && busy[2] >= (1 << 30) / 12, "{busy:?}");
        assert_eq!(split(1000, 1000, &[Demand { size: 700, missed: 9 }, Demand::default()]), [500, 500]);
        let huge = split(u64::MAX, u64::MAX, &[Demand { size: u64::MAX, missed: u64::MAX }; 3]);
        assert_eq!(huge.iter().map(|&l| u128::from(l)).sum::<u128>(), u128::from(u64::MAX));
    }

    #[test]
    fn pools_come_and_go() {
        let mut b = MemBroker::new(250, 1000);
        b.report(7, Demand { size: 10, missed: 0 });
        b.report(3, Demand { size: 10, missed: 0 });
        assert_eq!(b.limits(), [(3, 500), (7, 500)]);
        b.remove(3);
        b.set_total(10);
        assert_eq!(b.limits(), [(7, 10)]);
    }
}
