//! Who may ask for what, and in which lane a request is served: one exhaustive match over all
//! requests.
//!
//! OpenZFS lets every user look at the system's pools (`zpool list`, `get`, `status`, `iostat`,
//! `wait`; `zfs list`, `get`, `holds`) and asks for root where a request changes something or tells
//! more than that (`history`, `events`, the names of damaged files in `status -v`); its table of
//! ioctls (`module/zfs/zfs_ioctl.c`) says so for each. Here the same holds for a daemon and its
//! owner. Those that anyone may ask come over a socket of their own ([`crate::front`]), on which
//! nothing else is served.

use crate::proto::{PoolView, Request};

/// Who may ask for something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Every user of the machine.
    Anyone,
    /// The user that the daemon runs as, and root.
    Owner,
}

/// Requests of one lane never wait for those of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    /// What tells about the daemon itself.
    Status,
    /// What ends waits: for devices, for the daemon.
    Control,
    /// Everything else.
    Work,
}

/// What is known of a request before it is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Class {
    /// Who may ask for it.
    pub access: Access,
    /// Where it is served.
    pub lane: Lane,
    /// Its name where no command line is known.
    pub name: &'static str,
}

/// The class of a request.
pub fn class(request: &Request) -> Class {
    let of = |access, lane, name| Class { access, lane, name };
    let anyone = |name| of(Access::Anyone, Lane::Work, name);
    let owner = |name| of(Access::Owner, Lane::Work, name);
    let control = |name| of(Access::Owner, Lane::Control, name);
    match request {
        Request::Info => of(Access::Owner, Lane::Status, "daemon status"),
        Request::Stop { .. } => control("daemon stop"),
        // The pools change, whatever the request is that the line belongs to.
        Request::Logged { request, .. } => Class { access: Access::Owner, ..class_of_logged(request) },
        Request::PoolClear { .. } => control("zpool clear"),
        Request::PoolExport { force: true, .. } => control("zpool export -f"),
        Request::PoolExport { force: false, .. } => owner("zpool export"),
        Request::Pools { .. } => anyone("zpool status"),
        Request::PoolIo { .. } => anyone("zpool iostat"),
        Request::PoolLatency { .. } => anyone("zpool iostat -w"),
        Request::PoolActivity { .. } => anyone("zpool wait"),
        Request::Datasets(_) => anyone("zfs list"),
        Request::Holds { .. } => anyone("zfs holds"),
        Request::Mounted => anyone("zfs mount"),
        Request::PoolCreate(_) => owner("zpool create"),
        Request::PoolDestroy { .. } => owner("zpool destroy"),
        Request::PoolScan(_) => owner("zpool import"),
        Request::PoolImport(_) => owner("zpool import"),
        Request::PoolCheckpoint { .. } => owner("zpool checkpoint"),
        Request::PoolHistory { .. } => owner("zpool history"),
        Request::PoolSet { .. } => owner("zpool set"),
        Request::PoolSync { .. } => owner("zpool sync"),
        Request::PoolAdd(_) => owner("zpool add"),
        Request::PoolAttach(_) => owner("zpool attach"),
        Request::PoolDetach { .. } => owner("zpool detach"),
        Request::PoolRemove { .. } => owner("zpool remove"),
        Request::PoolWork { initialize: true, .. } => owner("zpool initialize"),
        Request::PoolWork { initialize: false, .. } => owner("zpool trim"),
        Request::PoolFlow { .. } => owner("top"),
        Request::Tune { .. } => owner("tune"),
        Request::TuneSet { .. } => owner("tune set"),
        Request::TraceStart { .. } | Request::TraceTake { .. } => owner("trace"),
        Request::Events { .. } => owner("zpool events"),
        Request::EventsClear => owner("zpool events -c"),
        Request::PoolOffline { .. } => owner("zpool offline"),
        Request::PoolOnline { .. } => owner("zpool online"),
        Request::PoolScrub { .. } => owner("zpool scrub"),
        Request::PoolResilver { .. } => owner("zpool resilver"),
        Request::PoolWaitScan { .. } => owner("zpool wait"),
        Request::LabelClear { .. } => owner("zpool labelclear"),
        Request::FsCreate { .. } => owner("zfs create"),
        Request::Keys { .. } => owner("zfs load-key"),
        Request::LoadKey { .. } => owner("zfs load-key"),
        Request::UnloadKey { .. } => owner("zfs unload-key"),
        Request::ChangeKey { .. } => owner("zfs change-key"),
        Request::FsDestroy { .. } => owner("zfs destroy"),
        Request::FsSet { .. } => owner("zfs set"),
        Request::FsInherit { .. } => owner("zfs inherit"),
        Request::FsRename { .. } | Request::SnapRename { .. } => owner("zfs rename"),
        Request::Snapshot { .. } => owner("zfs snapshot"),
        Request::Rollback { .. } => owner("zfs rollback"),
        Request::Clone { .. } => owner("zfs clone"),
        Request::Promote { .. } => owner("zfs promote"),
        Request::Hold { release: false, .. } => owner("zfs hold"),
        Request::Hold { release: true, .. } => owner("zfs release"),
        Request::Bookmark { .. } => owner("zfs bookmark"),
        Request::Mount { .. } => owner("zfs mount"),
        Request::Unmount { .. } => owner("zfs unmount"),
    }
}

/// That of what is inside; one in another is refused when it is served, so its class does not
/// matter.
fn class_of_logged(request: &Request) -> Class {
    match request {
        Request::Logged { .. } => Class { access: Access::Owner, lane: Lane::Work, name: "unknown" },
        other => class(other),
    }
}

/// Names of the requests that anyone may ask, as they stand in messages: looked at before anything
/// else of a message of another user is.
const PUBLIC_KINDS: &[&str] = &["Pools", "PoolIo", "PoolLatency", "PoolActivity", "Datasets", "Holds", "Mounted"];

/// Whether a message asks for something that anyone may ask, by its first word alone.
pub fn is_public(message: &[u8]) -> bool {
    let text = message.trim_ascii_start();
    let text = text.strip_prefix(b"{").map_or(text, <[u8]>::trim_ascii_start);
    let Some(text) = text.strip_prefix(b"\"") else { return false };
    // Names have neither quotes nor escapes in them.
    let word = text.split(|c| *c == b'"').next().unwrap_or_default();
    PUBLIC_KINDS.iter().any(|k| k.as_bytes() == word)
}

/// Leaves out of what is told about a pool that only the owner may know: names of files.
pub fn redact(views: &mut [PoolView]) {
    views.iter_mut().for_each(|v| v.damaged.clear());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{PoolCreate, Select};
    use crate::temp_props::MountHow;

    #[test]
    fn first_words_and_classes_agree() {
        let public = [
            Request::Pools { names: vec![] },
            Request::PoolIo { names: vec![] },
            Request::PoolLatency { pool: String::new() },
            Request::PoolActivity { pool: String::new() },
            Request::Datasets(Select::default()),
            Request::Holds { names: vec![], recursive: false },
            Request::Mounted,
        ];
        assert_eq!(public.len(), PUBLIC_KINDS.len());
        for r in &public {
            let message = serde_json::to_vec(r).unwrap();
            assert!(is_public(&message) && class(r).access == Access::Anyone, "{r:?}");
            let logged = Request::Logged { command: "x".into(), request: Box::new(r.clone()) };
            let message = serde_json::to_vec(&logged).unwrap();
            assert!(!is_public(&message) && class(&logged).access == Access::Owner, "{r:?}");
        }
        for r in [
            Request::Info,
            Request::Stop { force: true },
            Request::PoolCreate(PoolCreate::default()),
            Request::PoolHistory { pool: "Pools".into() },
            Request::Events { after: 0, pool: None, wait: true },
            Request::Tune { pool: None },
            Request::Mount { name: None, how: MountHow::default() },
        ] {
            let message = serde_json::to_vec(&r).unwrap();
            assert!(!is_public(&message) && class(&r).access == Access::Owner, "{r:?}");
        }
    }

    #[test]
    fn a_first_word_is_a_whole_word_at_the_beginning() {
        for (message, public) in [
            (r#""Mounted""#, true),
            (r#" { "Pools" : {"names":[]}}"#, true),
            (r#"{"Stop":{"force":true},"Pools":{"names":[]}}"#, false),
            (r#"["Pools"]"#, false),
            (r#"{"Poolsx":1}"#, false),
            (r#"{"Pool"#, false),
            ("", false),
            ("{", false),
        ] {
            assert_eq!(is_public(message.as_bytes()), public, "{message}");
        }
    }
}
