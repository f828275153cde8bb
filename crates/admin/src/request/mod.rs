//! The requests of commands to the process with the pools, one type for each.
//!
//! **Words.** A [`Request`] is a type: its fields are the arguments, [`Request::Reply`] the answer.
//! Its trait has the rest: the rights it needs ([`Request::RIGHTS`]), the pools it changes
//! ([`Request::changes`]), the lane it is served in ([`Request::lane`]), and the work itself
//! ([`Request::run`]). A [`Call`] is a request on the wire. A [`Kind`] is a type of request as a
//! value: its name, its rights and its parser. [`KINDS`] lists all kinds, by file; each file lists
//! its own. An [`AnyRequest`] is a request whose type is known to the registry only.
//!
//! **Normal path.** The client makes a [`Call`] of its request; [`Changes`] says whether the
//! command line goes with it. The server finds the kind by the name, checks the rights, and only
//! then parses the arguments. [`perform`] checks the pools that will change, runs the request, and
//! records the command line in their histories.
//!
//! **One hop.** A pool lives on its engine thread, and a visit there costs two switches of threads.
//! A request that changes one pool returns [`Changes::Pool`] and does its work in one visit
//! ([`Cx::on_pool`], [`Cx::on_dataset`]): the check that the pool is not suspended, the work, and
//! the record in the history are one closure. Several pools ([`Changes::Pools`]) are all checked
//! before the first one changes, and record the command when all of them have done it.
//!
//! **Invariants.** Rights depend on the name alone, so that they are checked before any argument is
//! parsed. Arguments that do not parse are errors, never panics. A read-only request
//! ([`Changes::Nothing`]) carries no command line.
//!
//! **Streams.** A request whose answer does not fit into a message, or comes as time passes,
//! declares a stream ([`Request::STREAM`]) and writes to that of its [`Cx`]; [`stream`] has the
//! rules.
//!
//! **A new request** is a type with its `impl`, and a line in the list of its file.

mod allow;
mod call;
mod cx;
mod devices;
mod diff;
mod fs;
mod inject;
pub(crate) mod inlet;
mod keys;
mod mounts;
mod nbd;
mod needs;
mod pools;
mod process;
mod program;
mod receive;
mod record;
mod scan;
mod secret;
mod send;
mod shares;
mod snaps;
pub mod stream;
mod watch;

use std::collections::BTreeSet;
use std::fmt;

use base::Result;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use call::Call;
pub(crate) use cx::check_not_suspended;
pub use cx::{Caller, Cx, perform};
pub use dsl::deleg::Identity;
pub use needs::{Need, denied};
pub(crate) use needs::{denied_for, moves_mounts, to_set};
pub use secret::Secret;
pub use stream::{Direction, Report, Stream};

// Globs, so that only its own file names a new request.
pub use {
    allow::*, devices::*, diff::*, fs::*, inject::*, keys::*, mounts::*, nbd::*, pools::*, process::*, program::*,
    receive::*, record::*, scan::*, send::*, shares::*, snaps::*, watch::*,
};

/// A request of a command.
pub trait Request: Serialize + DeserializeOwned + fmt::Debug + Send + 'static {
    /// Its name on the wire: letters, unique.
    const NAME: &'static str;
    /// Its name in messages if no command line is known: `zpool scrub`.
    const TITLE: &'static str;
    /// The rights that it needs.
    const RIGHTS: Rights = Rights::Owner;
    /// Where the bytes of its stream go, if it has one.
    const STREAM: Option<Direction> = None;
    /// The answer.
    type Reply: Serialize + DeserializeOwned + Send + 'static;

    /// The pools that it changes, whose histories record it.
    fn changes(&self) -> Changes;

    /// The lane that it is served in.
    fn lane(&self) -> Lane {
        if Self::STREAM.is_some() { Lane::Stream } else { Lane::Work }
    }

    /// Its name in messages, if that depends on the arguments.
    fn title(&self) -> &'static str {
        Self::TITLE
    }

    /// Whether it waits until the pools of the last daemon are imported.
    fn waits_for_pools(&self) -> bool {
        true
    }

    /// What it needs of this user, who does not own the daemon, if its rights can be delegated.
    fn needs(&self, _who: &Identity) -> Vec<Need> {
        vec![Need::Owner]
    }

    /// Does the work, on a thread of its own. After an error nothing is changed.
    fn run(self, cx: &Cx<'_>) -> Result<Self::Reply>;
}

/// The rights to a request.
///
/// OpenZFS lets every user look at the system's pools (`zpool list`, `get`, `status`, `iostat`,
/// `wait`; `zfs list`, `get`, `holds`) and requires root for requests that change something or
/// reveal more (`history`, `events`, the names of damaged files in `status -v`); its table of
/// ioctls (`module/zfs/zfs_ioctl.c`) has the policy of each. Here a daemon and its owner have the
/// same policy. Public requests, and those of users with permissions, come over a socket of their
/// own, which serves nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rights {
    /// Every user of the machine.
    Anyone,
    /// The owner, and every user to whom `zfs allow` gives the permissions that it needs
    /// ([`Request::needs`]).
    Delegable,
    /// The user that the daemon runs as, and root.
    Owner,
}

/// Requests of one lane never wait for those of another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    /// Requests about the daemon itself.
    Status,
    /// Requests that end waits: for devices, for the daemon.
    Control,
    /// Requests with a stream, whose clients may take their time.
    Stream,
    /// Everything else.
    Work,
}

/// The changes of a request. All except [`Changes::Nothing`] carry the command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Changes {
    /// Nothing: it is read-only.
    Nothing,
    /// Nothing that the history of a pool records: mounts, loaded keys, labels of free devices.
    Unrecorded,
    /// This pool, in one visit to its engine ([`Cx::on_pool`], [`Cx::on_dataset`]): refused while
    /// the pool is suspended, recorded when it is done.
    Pool(String),
    /// These pools, or one pool in several visits: refused while one of them is suspended, recorded
    /// in each when all is done.
    Pools(BTreeSet<String>),
    /// This pool, suspended or not, in one visit: recorded when it is done.
    Resumes(String),
    /// These pools, which are exported or destroyed: recorded before.
    Exports(BTreeSet<String>),
    /// Imported pools: recorded in those that are new afterwards.
    Imports,
}

impl Changes {
    /// The pools of these datasets.
    pub fn pools_of<'a>(names: impl IntoIterator<Item = &'a String>) -> Changes {
        let mut pools: BTreeSet<String> = names.into_iter().map(|n| pool_part(n).to_string()).collect();
        match pools.len() {
            1 => pools.pop_first().map_or(Changes::Unrecorded, Changes::Pool),
            _ => Changes::Pools(pools),
        }
    }

    /// The pool of a dataset, in one visit.
    pub fn pool_of(name: &str) -> Changes {
        Changes::Pool(pool_part(name).to_string())
    }

    /// One pool in several visits.
    pub fn visits_to(pool: &str) -> Changes {
        Changes::Pools(BTreeSet::from([pool.to_string()]))
    }
}

/// The pool in a dataset's name.
pub fn pool_part(name: &str) -> &str {
    name.split(['/', '@', '#']).next().unwrap_or(name)
}

/// A request without its type, which only its [`Kind`] knows.
pub trait AnyRequest: fmt::Debug + Send {
    /// [`Request::NAME`]
    fn name(&self) -> &'static str;
    /// [`Request::title`]
    fn title(&self) -> &'static str;
    /// [`Request::STREAM`]
    fn stream(&self) -> Option<Direction>;
    /// [`Request::RIGHTS`]
    fn rights(&self) -> Rights;
    /// [`Request::needs`]
    fn needs(&self, who: &Identity) -> Vec<Need>;
    /// [`Request::lane`]
    fn lane(&self) -> Lane;
    /// [`Request::changes`]
    fn changes(&self) -> Changes;
    /// [`Request::waits_for_pools`]
    fn waits_for_pools(&self) -> bool;
    /// [`Request::run`], with the reply as JSON.
    fn run(self: Box<Self>, cx: &Cx<'_>) -> Result<Value>;
    /// The same request on the wire.
    fn call(&self, command: Option<&str>) -> Result<Call>;
}

impl<R: Request> AnyRequest for R {
    fn name(&self) -> &'static str {
        R::NAME
    }
    fn title(&self) -> &'static str {
        Request::title(self)
    }
    fn stream(&self) -> Option<Direction> {
        R::STREAM
    }
    fn rights(&self) -> Rights {
        R::RIGHTS
    }
    fn needs(&self, who: &Identity) -> Vec<Need> {
        Request::needs(self, who)
    }
    fn lane(&self) -> Lane {
        Request::lane(self)
    }
    fn changes(&self) -> Changes {
        Request::changes(self)
    }
    fn waits_for_pools(&self) -> bool {
        Request::waits_for_pools(self)
    }
    fn run(self: Box<Self>, cx: &Cx<'_>) -> Result<Value> {
        crate::pool_set::json(&Request::run(*self, cx)?)
    }
    fn call(&self, command: Option<&str>) -> Result<Call> {
        Call::of(self, command)
    }
}

/// A type of request, as a value.
#[derive(Clone, Copy)]
pub struct Kind {
    /// [`Request::NAME`]
    pub name: &'static str,
    /// [`Request::RIGHTS`]
    pub rights: Rights,
    /// [`Request::STREAM`]
    pub stream: Option<Direction>,
    parse: fn(&[u8]) -> serde_json::Result<Box<dyn AnyRequest>>,
}

impl Kind {
    /// The kind of `R`.
    const fn of<R: Request>() -> Kind {
        Kind { name: R::NAME, rights: R::RIGHTS, stream: R::STREAM, parse: parse::<R> }
    }

    /// The kind with that name.
    pub fn named(name: &[u8]) -> Option<&'static Kind> {
        KINDS.iter().flat_map(|list| list.iter()).find(|k| k.name.as_bytes() == name)
    }
}

fn parse<R: Request>(args: &[u8]) -> serde_json::Result<Box<dyn AnyRequest>> {
    Ok(Box::new(serde_json::from_slice::<R>(args)?))
}

/// All kinds.
const KINDS: &[&[Kind]] = &[
    process::KINDS,
    inject::KINDS,
    pools::KINDS,
    devices::KINDS,
    scan::KINDS,
    watch::KINDS,
    record::KINDS,
    fs::KINDS,
    receive::KINDS,
    send::KINDS,
    diff::KINDS,
    snaps::KINDS,
    keys::KINDS,
    allow::KINDS,
    mounts::KINDS,
    shares::KINDS,
    nbd::KINDS,
    program::KINDS,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_words() {
        let names: Vec<&str> = KINDS.iter().flat_map(|list| list.iter()).map(|k| k.name).collect();
        let unique: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(unique.len(), names.len());
        assert!(names.iter().all(|n| !n.is_empty() && n.chars().all(|c| c.is_ascii_alphabetic())));
    }

    #[test]
    fn others_may_ask_what_only_looks() {
        let public = KINDS.iter().flat_map(|list| list.iter()).filter(|k| k.rights == Rights::Anyone);
        let names: Vec<&str> = public.map(|k| k.name).collect();
        let looks = [
            "PoolDedup",
            "PoolUpgradable",
            "Pools",
            "VdevGet",
            "PoolActivity",
            "DeviceLatency",
            "PoolIo",
            "Datasets",
            "FsDeleteQueue",
            "Holds",
            "Allowed",
            "Mounted",
        ];
        assert_eq!(names, looks);
    }

    #[test]
    fn streams_are_not_for_everybody() {
        let streams = KINDS.iter().flat_map(|list| list.iter()).filter(|k| k.stream.is_some());
        assert!(streams.clone().count() > 0);
        assert!(streams.clone().all(|k| k.rights != Rights::Anyone));
    }

    #[test]
    fn permissions_are_about_datasets() {
        let of = |rights| {
            let all = KINDS.iter().flat_map(|list| list.iter()).filter(move |k| k.rights == rights);
            all.map(|k| k.name).collect::<Vec<&str>>()
        };
        let delegable = [
            "FsCreate",
            "FsDestroy",
            "FsSet",
            "FsUpgrade",
            "FsInherit",
            "FsRename",
            "OwnerUses",
            "ReceiveStream",
            "ReceiveAbort",
            "SendStream",
            "SendSize",
            "FsDiff",
            "Snapshot",
            "Rollback",
            "FsClone",
            "Promote",
            "Hold",
            "Bookmark",
            "SnapRename",
            "Keys",
            "LoadKey",
            "UnloadKey",
            "ChangeKey",
            "Allow",
            "Unallow",
            "Share",
            "Unshare",
        ];
        assert_eq!(of(Rights::Delegable), delegable);
        assert!(of(Rights::Owner).iter().all(|name| name.starts_with("Pool") || !name.starts_with("Fs")));
    }

    #[test]
    fn changes_name_pools() {
        let of = |names: &[&str]| Changes::pools_of(&names.iter().map(|n| n.to_string()).collect::<Vec<_>>());
        assert_eq!(of(&["tank/a@s", "tank"]), Changes::Pool("tank".into()));
        assert_eq!(of(&["a/b", "c#d"]), Changes::Pools(BTreeSet::from(["a".to_string(), "c".to_string()])));
        assert_eq!(of(&[]), Changes::Pools(BTreeSet::new()));
        assert_eq!(Changes::pool_of("a/b@c"), Changes::Pool("a".into()));
    }
}
