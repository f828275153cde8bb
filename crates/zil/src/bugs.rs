//! Mistakes on purpose: a campaign that does not find each of them proves nothing. Only in builds
//! with the feature `planted-bugs`.

/// A mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// Log blocks are not flushed.
    NoFlush,
    /// Waiters are woken when the block is written, before the flush.
    WakeBeforeFlush,
    /// Waiters are woken without waiting for the block before.
    WakeBeforePredecessor,
    /// A commit leaves the records of its object in the async list.
    AsyncLeft,
    /// Log blocks are given up before the txg of their records is on disk.
    FreedEarly,
    /// A commit with nothing to say does not wait for blocks under way that say it.
    UnderwayIgnored,
    /// A commit with nothing to say does not wait for records that another commit is packing.
    PackingIgnored,
    /// Only the device of the log block is flushed, not those of blocks that its records name.
    IndirectNotFlushed,
    /// A failed flush counts as a success.
    FlushErrorIgnored,
    /// Import does not claim: the blocks are given to others.
    NoClaim,
    /// Replay applies records whose txg is on disk.
    OldReplayed,
    /// Replay does not go beyond the first block.
    ReplayStopsEarly,
}

impl Bug {
    /// All of them, with the names that commands use.
    pub const ALL: [(&'static str, Bug); 12] = [
        ("no-flush", Bug::NoFlush),
        ("wake-before-flush", Bug::WakeBeforeFlush),
        ("wake-before-predecessor", Bug::WakeBeforePredecessor),
        ("async-left", Bug::AsyncLeft),
        ("freed-early", Bug::FreedEarly),
        ("underway-ignored", Bug::UnderwayIgnored),
        ("packing-ignored", Bug::PackingIgnored),
        ("indirect-not-flushed", Bug::IndirectNotFlushed),
        ("flush-error-ignored", Bug::FlushErrorIgnored),
        ("no-claim", Bug::NoClaim),
        ("old-replayed", Bug::OldReplayed),
        ("replay-stops-early", Bug::ReplayStopsEarly),
    ];
}

thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// From now on everything on this thread makes that mistake.
pub fn plant(bug: Option<Bug>) {
    PLANTED.with(|b| b.set(bug));
}

/// Whether that mistake is to be made.
pub(crate) fn planted(bug: Bug) -> bool {
    PLANTED.with(|b| b.get()) == Some(bug)
}
