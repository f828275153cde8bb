//! Planted bugs of reading blocks, each of which a campaign must find. Only in builds with the
//! feature `planted-bugs`.

/// A planted bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// The width of a block goes by the birth of its content, not by that of its place.
    WidthOfContent,
    /// What a cache device holds is taken for the block without a look at its checksum.
    L2Unverified,
}

impl Bug {
    /// All of them, with the names that commands use.
    pub const ALL: [(&'static str, Bug); 2] =
        [("width-of-content", Bug::WidthOfContent), ("l2-unverified", Bug::L2Unverified)];
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
