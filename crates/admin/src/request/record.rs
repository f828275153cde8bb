//! Requests about recordings of operations.

use base::{Error, Nanos, Result};
use serde::{Deserialize, Serialize};

use super::{Changes, Cx, Direction, Kind, Request};
use crate::view::RecordedView;

/// The requests of this file.
pub(super) const KINDS: &[Kind] = &[Kind::of::<TraceRecord>(), Kind::of::<TraceRecordEnd>()];

/// Longest recording in seconds: a day.
pub const SECONDS_MAX: u64 = 86_400;

/// `weir trace record`: the operations of a pool's users, as a stream of bytes
/// (docs/recordings.md).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TraceRecord {
    /// The pool.
    pub pool: String,
    /// End after so many seconds, 1 to [`SECONDS_MAX`].
    pub seconds: Option<u64>,
    /// A number by which [`TraceRecordEnd`] ends it.
    pub token: u64,
}

impl Request for TraceRecord {
    const NAME: &'static str = "TraceRecord";
    const TITLE: &'static str = "trace record";
    const STREAM: Option<Direction> = Some(Direction::ToClient);
    type Reply = RecordedView;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<RecordedView> {
        let TraceRecord { pool, seconds, token } = self;
        if seconds.is_some_and(|n| !(1..=SECONDS_MAX).contains(&n)) {
            return Err(Error::invalid(format!("a recording takes 1 to {SECONDS_MAX} seconds")));
        }
        let tunables = cx.pools.tunables_of(Some(&pool))?;
        let span = seconds.map(Nanos::from_secs);
        cx.report_on_pool(&pool, move |e, to| async move { e.record(span, token, &tunables, to).await })
    }
}

/// Has a recording end now. The answer says whether there was one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TraceRecordEnd {
    /// The pool.
    pub pool: String,
    /// The number of the recording.
    pub token: u64,
}

impl Request for TraceRecordEnd {
    const NAME: &'static str = "TraceRecordEnd";
    const TITLE: &'static str = "trace record";
    type Reply = bool;
    fn changes(&self) -> Changes {
        Changes::Nothing
    }
    fn run(self, cx: &Cx<'_>) -> Result<bool> {
        let TraceRecordEnd { pool, token } = self;
        cx.on_pool(&pool, move |e| async move { Ok(e.recordings.end(token)) })
    }
}
