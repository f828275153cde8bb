//! Planted bugs of cache devices, each of which a campaign must find. Only in builds with the
//! feature `planted-bugs`.

/// A planted bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// What the ring of a cache device overwrites stays in the index.
    L2OverwrittenKept,
}

impl Bug {
    /// All of them, with the names that commands use.
    pub const ALL: [(&'static str, Bug); 1] = [("l2-overwritten-kept", Bug::L2OverwrittenKept)];
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
