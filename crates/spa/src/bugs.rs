//! Planted bugs of the block reference table, of dedup tables, expansions, removals, condensing,
//! trims and splits, each of which a campaign must find. Only in builds with the feature
//! `planted-bugs`.

/// A planted bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// A free does not ask the table: the block of another file is freed.
    BrtNotAsked,
    /// Entries that leave the log of a dedup table do not reach its ZAPs.
    DedupFlushLost,
    /// The log of a dedup table lacks a record.
    DedupRecordLost,
    /// An uberblock counts copies that ended after its flush.
    ReflowUnflushed,
    /// Blocks of txgs that are open when an expansion ends count as wider ones.
    ExpandedEarly,
    /// What was freed while it was copied stays allocated at its new place.
    MappingNotFreed,
    /// Copies have no births.
    BirthsUnwritten,
    /// Entries are written before their copies are complete.
    CopyNotAwaited,
    /// Condensing drops entries half of which are obsolete.
    CondensedLive,
    /// Condensing forgets what became obsolete since the mapping was written.
    ObsoleteForgotten,
    /// Space is allocated while it is being trimmed.
    TrimNotDisabled,
    /// Labels of a pool that has no uberblock take its devices.
    UnbornTaken,
}

impl Bug {
    /// All of them, with the names that commands use.
    pub const ALL: [(&'static str, Bug); 12] = [
        ("brt-not-asked", Bug::BrtNotAsked),
        ("dedup-flush-lost", Bug::DedupFlushLost),
        ("dedup-record-lost", Bug::DedupRecordLost),
        ("reflow-unflushed", Bug::ReflowUnflushed),
        ("expanded-early", Bug::ExpandedEarly),
        ("mapping-not-freed", Bug::MappingNotFreed),
        ("births-unwritten", Bug::BirthsUnwritten),
        ("copy-not-awaited", Bug::CopyNotAwaited),
        ("condensed-live", Bug::CondensedLive),
        ("obsolete-forgotten", Bug::ObsoleteForgotten),
        ("trim-not-disabled", Bug::TrimNotDisabled),
        ("unborn-taken", Bug::UnbornTaken),
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
