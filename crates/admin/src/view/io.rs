//! Counters of devices, for `zpool iostat`.

use std::collections::BTreeMap;

use base::Log2;
use vdev::{Leaf, Prio};

use crate::engine::PoolEngine;
use crate::view::{IoStats, IoView, VdevView};

fn stats_of(leaf: &Leaf) -> IoStats {
    let s = leaf.stats();
    let depth = leaf.depth();
    let lists = |all: &[Log2<{ vdev::LATENCY_BUCKETS }>]| all.iter().map(|h| h.to_vec()).collect();
    let sizes = |all: &[Log2<{ vdev::SIZE_BUCKETS }>]| all.iter().map(|h| h.to_vec()).collect();
    IoStats {
        ops: [s.read_ops, s.write_ops],
        bytes: [s.read_bytes, s.write_bytes],
        flushes: s.flushes,
        class: s.class.iter().map(|c| [c.ops, c.bytes, c.total_ns, c.disk_ns]).collect(),
        total: lists(&s.latency),
        disk: lists(&s.disk_latency),
        queue: lists(&s.queue_latency),
        flush: s.flush_latency.to_vec(),
        ind: sizes(&s.size_ind),
        agg: sizes(&s.size_agg),
        queued: depth.queued.iter().map(|&n| n.into()).collect(),
        active: depth.active.iter().map(|&n| n.into()).collect(),
    }
}

impl IoStats {
    /// Zero for every class.
    pub fn nothing() -> IoStats {
        let n = Prio::ALL.len();
        let (times, sizes) = (vec![vec![0; vdev::LATENCY_BUCKETS]; n], vec![vec![0; vdev::SIZE_BUCKETS]; n]);
        IoStats {
            class: vec![[0; 4]; n],
            total: times.clone(),
            disk: times.clone(),
            queue: times,
            flush: vec![0; vdev::LATENCY_BUCKETS],
            ind: sizes.clone(),
            agg: sizes,
            queued: vec![0; n],
            active: vec![0; n],
            ..IoStats::default()
        }
    }

    /// Combines every counter with the other's by `f`.
    fn zip(&mut self, other: &IoStats, f: impl Fn(u64, u64) -> u64 + Copy) {
        let one = |a: &mut u64, b: &u64| *a = f(*a, *b);
        let list = |a: &mut [u64], b: &[u64]| a.iter_mut().zip(b).for_each(|(a, b)| *a = f(*a, *b));
        let lists = |a: &mut [Vec<u64>], b: &[Vec<u64>]| a.iter_mut().zip(b).for_each(|(a, b)| list(a, b));
        list(&mut self.ops, &other.ops);
        list(&mut self.bytes, &other.bytes);
        one(&mut self.flushes, &other.flushes);
        self.class.iter_mut().zip(&other.class).for_each(|(a, b)| list(a, b));
        lists(&mut self.total, &other.total);
        lists(&mut self.disk, &other.disk);
        lists(&mut self.queue, &other.queue);
        list(&mut self.flush, &other.flush);
        lists(&mut self.ind, &other.ind);
        lists(&mut self.agg, &other.agg);
    }

    /// Both together.
    pub fn add(&mut self, other: &IoStats) {
        self.zip(other, |a, b| a.saturating_add(b));
        self.queued.iter_mut().zip(&other.queued).for_each(|(a, b)| *a += b);
        self.active.iter_mut().zip(&other.active).for_each(|(a, b)| *a += b);
    }

    /// The difference from `earlier`; depths of queues are the present ones.
    pub fn since(&self, earlier: &IoStats) -> IoStats {
        let mut out = self.clone();
        out.zip(earlier, |a, b| a.saturating_sub(b));
        out
    }
}

impl PoolEngine {
    /// The pool's devices with their counters. An interior vdev has the sums of its devices: a
    /// mirror counts each write once per device.
    pub fn io_view(&self) -> IoView {
        let leaves: BTreeMap<u64, IoStats> =
            self.pool.tree().leaves().iter().map(|l| (l.guid().0, stats_of(l))).collect();
        let mut view = self.build(&self.vdev_views(), &leaves, true);
        let tops = &view.children;
        view.alloc = Some(tops.iter().filter_map(|t| t.alloc).sum());
        view.free = Some(tops.iter().filter_map(|t| t.free).sum());
        let figures = self.pool.arc().caches();
        for cache in self.cache_views() {
            let mut cache = IoView { class: "cache".into(), ..self.build(&cache, &leaves, false) };
            if let Some(f) = figures.iter().find(|f| f.guid.0 == cache.guid) {
                cache.stats.ops = [f.reads, f.writes];
                cache.stats.bytes = [f.read_bytes, f.write_bytes];
            }
            view.children.push(cache);
        }
        view
    }

    fn build(&self, view: &VdevView, leaves: &BTreeMap<u64, IoStats>, root: bool) -> IoView {
        let children: Vec<IoView> = view.children.iter().map(|c| self.build(c, leaves, false)).collect();
        let mut stats = IoStats::nothing();
        children.iter().for_each(|c| stats.add(&c.stats));
        if let Some(own) = leaves.get(&view.guid) {
            stats.add(own);
        }
        let has_space = !root && view.space > 0;
        IoView {
            name: view.name.clone(),
            kind: view.kind.clone(),
            guid: view.guid,
            class: if view.is_log { "logs".into() } else { view.bias.clone() },
            alloc: has_space.then_some(view.alloc),
            free: has_space.then(|| view.space.saturating_sub(view.alloc)),
            at: self.pool.rt().now().0,
            since: self.since.0,
            stats,
            children,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_differences() {
        let mut a = IoStats::nothing();
        a.ops = [3, 4];
        a.class[2] = [1, 2, 3, 4];
        a.total[1][5] = 7;
        a.queued[0] = 2;
        let mut both = a.clone();
        both.add(&a);
        assert_eq!((both.ops, both.class[2], both.total[1][5], both.queued[0]), ([6, 8], [2, 4, 6, 8], 14, 4));
        let d = both.since(&a);
        assert_eq!((d.ops, d.total[1][5], d.queued[0]), ([3, 4], 7, 4));
        assert_eq!(a.since(&both).ops, [0, 0]);
    }
}
