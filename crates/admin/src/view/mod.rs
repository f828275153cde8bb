//! Views: pools and datasets as plain data, which the commands print.
//!
//! [`types`] and [`figures`] are the data; the other files make them on the engine thread of a
//! pool.

pub mod figures;
pub mod flow;
pub mod fmt;
pub mod fs;
pub mod io;
pub mod pool;
pub mod types;

pub use figures::{
    ActivityView, DatasetIo, Dist, EventView, EventsView, FieldView, FlowView, IoStats, IoView, LogView, PoolLatency,
    RecordedView, SlowTaskView, TraceView, TurnView, TxgSpan, TxgView,
};
pub use types::{
    Candidate, CheckpointView, Created, DaemonInfo, DatasetView, DedupView, Destroyed, ErrorScrubView, ExpandView,
    HistoryLine, HoldView, Imported, KeyView, LeafWorkView, NbdView, PoolView, PropView, RebuildView, RemovalView,
    RequestView, ScanView, SplitDone, TunableView, VdevProps, VdevView,
};
