//! Counters of the process: those of all pools together, and those of pools that are gone.
//!
//! [`PoolFigures`] is what one pool counts, as plain data. A kstat makes lines of them; a line is
//! the sum over the running pools and, if it counts events, what [`Past`] has of pools that are
//! not imported any more.

use std::collections::BTreeMap;
use std::sync::Mutex;

use arc::{ArcStats, L2Stats, MemKind};
use base::Result;
use dmu::ReadAheadStats;
use txg::TxgStats;
use zil::ZilStats;

use crate::engine::PoolEngine;
use crate::kstat::text::{self, Times, Value};
use crate::kstat::{OF_PROCESS, arcstats, visit};
use crate::pool_set::{PoolSet, Running, lock};

/// What a pool counts.
#[derive(Clone, Default, Debug)]
pub(crate) struct PoolFigures {
    pub(crate) arc: ArcStats,
    pub(crate) l2: L2Stats,
    pub(crate) txg: TxgStats,
    pub(crate) zil: ZilStats,
    pub(crate) ahead: ReadAheadStats,
    /// Bytes of dnodes in memory.
    pub(crate) dnodes: u64,
}

/// How values of several pools come together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// It counts events: their sum, also of pools that are gone.
    Counter,
    /// A size: the sum of those that run.
    Size,
}

/// A line of a kstat of one pool.
pub(crate) struct Line {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) value: u64,
}

/// Events.
pub(crate) fn counter(name: &'static str, value: u64) -> Line {
    Line { name, kind: Kind::Counter, value }
}

/// A size.
pub(crate) fn size(name: &'static str, value: u64) -> Line {
    Line { name, kind: Kind::Size, value }
}

/// A line for programs that end without it: there is no such thing here.
pub(crate) fn none(name: &'static str) -> Line {
    Line { name, kind: Kind::Size, value: 0 }
}

/// What pools counted that are not imported any more, by the names of file and line.
#[derive(Default, Debug)]
pub(crate) struct Past(Mutex<BTreeMap<(&'static str, &'static str), u64>>);

impl Past {
    /// Adds those of a pool that ends.
    pub(crate) fn keep(&self, figures: &PoolFigures) {
        let mut past = lock(&self.0);
        for (file, _) in OF_PROCESS {
            for line in lines(file, figures).into_iter().filter(|l| l.kind == Kind::Counter) {
                *past.entry((file, line.name)).or_default() += line.value;
            }
        }
    }

    fn of(&self, file: &'static str, line: &Line) -> u64 {
        lock(&self.0).get(&(file, line.name)).copied().unwrap_or(0)
    }
}

/// The lines of a kstat of the process, of one pool.
fn lines(file: &str, f: &PoolFigures) -> Vec<Line> {
    match file {
        "arcstats" => arcstats::lines(f),
        "zil" => zil_lines(&f.zil),
        "zfetchstats" => vec![
            counter("hits", f.ahead.hits),
            none("future"),
            none("stride"),
            none("past"),
            counter("misses", f.ahead.misses),
            none("max_streams"),
            counter("io_issued", f.ahead.issued),
            none("io_active"),
        ],
        "dmu_tx" => vec![
            counter("dmu_tx_assigned", f.txg.assigned),
            counter("dmu_tx_dirty_throttle", f.txg.blocked),
            counter("dmu_tx_dirty_delay", f.txg.delayed),
        ],
        // OpenZFS had such a cache until 2.1.
        "vdev_cache_stats" => vec![none("delegations"), none("hits"), none("misses")],
        _ => Vec::new(),
    }
}

/// Counters of intent logs.
pub(crate) fn zil_lines(s: &ZilStats) -> Vec<Line> {
    vec![
        counter("zil_commit_count", s.commits),
        counter("zil_commit_writer_count", s.writers),
        counter("zil_commit_error_count", s.fallbacks),
        counter("zil_commit_stall_count", s.stalls),
        counter("zil_itx_count", s.records),
        counter("zil_itx_indirect_count", s.indirect),
        counter("zil_itx_indirect_bytes", s.indirect_bytes),
        counter("zil_itx_copied_count", s.copied),
        counter("zil_itx_copied_bytes", s.copied_bytes),
        counter("zil_itx_metaslab_normal_count", s.blocks - s.slog_blocks),
        counter("zil_itx_metaslab_normal_bytes", s.used_bytes - s.slog_used_bytes),
        counter("zil_itx_metaslab_normal_write", s.block_bytes - s.slog_block_bytes),
        counter("zil_itx_metaslab_slog_count", s.slog_blocks),
        counter("zil_itx_metaslab_slog_bytes", s.slog_used_bytes),
        counter("zil_itx_metaslab_slog_write", s.slog_block_bytes),
    ]
}

impl PoolEngine {
    /// What the pool counts, now.
    pub(crate) fn figures(&self) -> PoolFigures {
        let pool = &self.pool;
        PoolFigures {
            arc: pool.arc().stats(),
            l2: pool.arc().l2_stats(),
            txg: pool.txg().stats(),
            zil: pool.dsl().intent_logs().total(),
            ahead: pool.mos().ctx().read_ahead_stats(),
            dnodes: pool.arc().charged(MemKind::Dnode),
        }
    }
}

impl PoolSet {
    /// The figures of all pools that run.
    fn all_figures(&self) -> Result<Vec<PoolFigures>> {
        self.all_running().iter().map(|r| visit(r, |e| async move { Ok(e.figures()) })).collect()
    }

    /// A pool ends: what it counted stays.
    pub(crate) fn keep_figures(&self, running: &Running) {
        if let Ok(figures) = visit(running, |e| async move { Ok(e.figures()) }) {
            self.past.keep(&figures);
        }
    }

    /// The text of a kstat of the process.
    pub(crate) fn process_kstat(&self, file: &'static str) -> Result<String> {
        let id = OF_PROCESS.iter().position(|(name, _)| *name == file).unwrap_or(0);
        if file == "dbufs" {
            return Ok(text::dbufs(id, self.kstat_times()));
        }
        let mut sum: Vec<Line> = lines(file, &PoolFigures::default());
        for figures in self.all_figures()? {
            let more = lines(file, &figures);
            sum.iter_mut().zip(more).for_each(|(sum, line)| sum.value = sum.value.saturating_add(line.value));
        }
        for line in sum.iter_mut().filter(|l| l.kind == Kind::Counter) {
            line.value = line.value.saturating_add(self.past.of(file, line));
        }
        let mut values: Vec<(&str, Value)> = sum.into_iter().map(|l| (l.name, Value::Number(l.value))).collect();
        if file == "arcstats" {
            let tunables = lock(&self.tunables);
            arcstats::complete(&mut values, &arcstats::Machine::now(), (tunables.arc_min(), tunables.arc_max()));
        }
        Ok(text::named(id, self.kstat_times(), &values))
    }

    /// When kstats of the process came to be, and now.
    pub(crate) fn kstat_times(&self) -> Times {
        Times { created: self.since.0, now: host::uptime().0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_outlive_their_pool_and_sizes_do_not() {
        let arc = ArcStats { hits: 5, size: 7, ..ArcStats::default() };
        let zil = ZilStats { commits: 3, blocks: 4, slog_blocks: 1, ..ZilStats::default() };
        let figures = PoolFigures { arc, zil, ..PoolFigures::default() };
        let past = Past::default();
        past.keep(&figures);
        past.keep(&figures);
        let of = |file, name| {
            let line = lines(file, &PoolFigures::default()).into_iter().find(|l| l.name == name).unwrap();
            past.of(file, &line)
        };
        assert_eq!((of("arcstats", "hits"), of("arcstats", "size")), (10, 0));
        assert_eq!((of("zil", "zil_commit_count"), of("zil", "zil_itx_metaslab_normal_count")), (6, 6));
    }

    #[test]
    fn every_line_has_a_name_of_its_own() {
        for (file, _) in OF_PROCESS {
            let names: Vec<&str> = lines(file, &PoolFigures::default()).iter().map(|l| l.name).collect();
            let mut unique = names.clone();
            unique.sort_unstable();
            unique.dedup();
            assert_eq!(unique.len(), names.len(), "{file}");
        }
    }
}
