//! Planted bugs, each of which a campaign must find. Only in builds with the feature
//! `planted-bugs`.

/// A planted bug.
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
    /// Log blocks are freed before the txg of their records is on disk.
    FreedEarly,
    /// A commit without unpacked records does not wait for the blocks in flight that have them.
    UnderwayIgnored,
    /// A commit without unpacked records does not wait for records that another commit is packing.
    PackingIgnored,
    /// Only the device of the log block is flushed, not those of blocks that its records name.
    IndirectNotFlushed,
    /// A failed flush counts as a success.
    FlushErrorIgnored,
    /// Import does not claim: the blocks are allocated again.
    NoClaim,
    /// Replay applies records whose txg is on disk.
    OldReplayed,
    /// Replay does not go beyond the first block.
    ReplayStopsEarly,
    /// Import does not count the references of cloned blocks in a log.
    CloneNotClaimed,
    /// Import counts them twice.
    CloneClaimedTwice,
    /// A log that is freed keeps its references to cloned blocks.
    CloneNotFreed,
}

impl Bug {
    /// All of them, with the names that commands use.
    pub const ALL: [(&'static str, Bug); 15] = [
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
        ("clone-not-claimed", Bug::CloneNotClaimed),
        ("clone-claimed-twice", Bug::CloneClaimedTwice),
        ("clone-not-freed", Bug::CloneNotFreed),
    ];
}

thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug for all logs of this thread.
pub fn plant(bug: Option<Bug>) {
    PLANTED.with(|b| b.set(bug));
}

/// Whether that bug is planted.
pub(crate) fn planted(bug: Bug) -> bool {
    PLANTED.with(|b| b.get()) == Some(bug)
}
