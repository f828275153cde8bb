//! A pool's checkpoint, dedup tables and history, for commands.

use base::{Error, ErrorKind, Result};
use ondisk::nvlist::NvList;
use spa::PruneBy;

use crate::engine::PoolEngine;
use crate::request::stream::Outlet;
use crate::view::HistoryLine;

/// Seconds.
const DAY: u64 = 86_400;

impl PoolEngine {
    /// `zpool checkpoint`: takes or discards one.
    pub(crate) async fn checkpoint(&self, discard: bool, wait: bool) -> Result<()> {
        let at = |e: Error| {
            let what = if discard { "discard checkpoint in" } else { "checkpoint" };
            let why = match e.kind() {
                ErrorKind::Exists => Error::new(ErrorKind::Exists, "checkpoint exists: discard it first (-d)"),
                ErrorKind::NotFound => Error::not_found("checkpoint does not exist"),
                _ => e,
            };
            why.at(format!("cannot {what} '{}'", self.pool.name()))
        };
        if !discard {
            return self.pool.create_checkpoint().await.map_err(at);
        }
        self.pool.discard_checkpoint().await.map_err(at)?;
        if wait { self.pool.wait_discarded().await } else { Ok(()) }
    }

    /// `zpool ddtprune`: drops entries of dedup tables.
    pub(crate) async fn ddt_prune(&self, days: Option<u64>, percent: Option<u64>) -> Result<()> {
        let by = match (days, percent) {
            (Some(days), None) if days > 0 => PruneBy::Age(days.saturating_mul(DAY)),
            (None, Some(percent @ 1..=100)) => PruneBy::Percent(percent),
            _ => return Err(Error::invalid("either days (-d) or 1 to 100 percent (-p) are needed")),
        };
        let done = self.pool.prune_dedup(by).await;
        done.map(drop).map_err(|e| e.at(format!("cannot prune dedup tables of '{}'", self.pool.name())))
    }

    /// `zpool history`: everything, oldest first.
    pub(crate) async fn history(&self, to: Outlet) -> Result<()> {
        let rt = self.pool.rt();
        match self.pool.read_history(async |record| to.item(rt, &line(&record)).await).await? {
            Some(e) => {
                let text = format!("the rest cannot be read: {e}");
                to.item(rt, &HistoryLine { text, ..HistoryLine::default() }).await
            }
            None => Ok(()),
        }
    }
}

fn line(record: &NvList) -> HistoryLine {
    let text = |key: &str| record.str(key).map(str::to_string);
    let internal = record.str("history command").is_none();
    let action = match (text("history command"), record.str("internal_name"), record.str("ioctl")) {
        (Some(command), ..) => command,
        (None, Some(name), _) => {
            let txg = record.u64("history txg").unwrap_or(0);
            let of = record.str("dsname").map(|d| format!(" {d} ({})", record.u64("dsid").unwrap_or(0)));
            let what = record.str("history internal str").unwrap_or("");
            format!("[txg:{txg}] {name}{} {what}", of.unwrap_or_default()).trim_end().to_string()
        }
        (None, None, Some(ioctl)) => format!("ioctl {ioctl}\n{}", record.indented(4).to_string().trim_end()),
        _ => format!("unrecognized record:\n{}", record.indented(4).to_string().trim_end()),
    };
    HistoryLine {
        time: record.u64("history time").unwrap_or(0),
        text: action,
        internal,
        who: record.u64("history who"),
        host: text("history hostname"),
        zone: text("history zone"),
    }
}
