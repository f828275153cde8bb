//! Planted bugs, only in builds with the feature `planted-bugs`: of redaction, each of which
//! `ztest --receives` must find, of changes and receives, for `ztest --recvcuts`, and of deadlists,
//! for `ztest --snapshots`.

/// A planted bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// A block is redacted as soon as the first redaction snapshot gave it up.
    FirstDecides,
    /// Blocks after the last of a file that was cut off, or took over a number, are sent.
    TailSent,
    /// The last entry of a redaction list is lost.
    LastEntryLost,
    /// A stream from a redaction bookmark has only what is new.
    NothingAgain,
    /// What a stream is redacted by is not kept.
    MarkLost,
    /// A change is told to be made before its txg is on disk.
    ToldEarly,
    /// An import keeps what is left of a receive that cannot be resumed.
    PartLeft,
    /// A deadlist takes a block that was rewritten for as old as its content.
    RewriteIgnored,
    /// A livelist is not told of killed blocks.
    KillUnlisted,
    /// What is freed of a livelist in one txg is not noted for the next import.
    FreedUnnoted,
}

impl Bug {
    /// All of them, with the names that commands use.
    pub const ALL: [(&'static str, Bug); 10] = [
        ("first-decides", Bug::FirstDecides),
        ("tail-sent", Bug::TailSent),
        ("last-entry-lost", Bug::LastEntryLost),
        ("nothing-again", Bug::NothingAgain),
        ("mark-lost", Bug::MarkLost),
        ("told-early", Bug::ToldEarly),
        ("part-left", Bug::PartLeft),
        ("rewrite-ignored", Bug::RewriteIgnored),
        ("kill-unlisted", Bug::KillUnlisted),
        ("freed-unnoted", Bug::FreedUnnoted),
    ];
}

thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug for all pools of this thread.
pub fn plant(bug: Option<Bug>) {
    PLANTED.with(|b| b.set(bug));
}

/// Whether that bug is planted.
pub(crate) fn planted(bug: Bug) -> bool {
    PLANTED.with(|b| b.get()) == Some(bug)
}
