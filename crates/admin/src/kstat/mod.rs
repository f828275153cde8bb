//! Kstats: the counters of the running pools as the files that OpenZFS has of them below `/proc`
//! and `/sys` on Linux, for programs that read those (`arcstat`, `arc_summary`, exporters of
//! metrics).
//!
//! **Words.** The *tree* is the set of paths; a *kstat* is one of its files.
//! [`PoolSet::kstat_node`] says what is at a path, [`PoolSet::kstat_names`] lists a folder,
//! [`PoolSet::kstat_text`] makes the text of a file.
//!
//! There is no state behind a file: the daemon makes the text when a program opens it (`--kstat`,
//! which mounts the tree), `weir kstat` when it prints one, so that what is read is of one moment,
//! however it is read.
//!
//! **Paths** are those of Linux without `/proc` and `/sys`:
//!
//! | path | what |
//! |---|---|
//! | `spl/kstat/zfs/NAME` | counters of the process: all pools together ([`figures`]) |
//! | `spl/kstat/zfs/dbgmsg` | messages of the log and commands, the newest ([`messages`]) |
//! | `spl/kstat/zfs/POOL/NAME` | of one pool: its state, txgs, heartbeats ([`pool`]) |
//! | `spl/kstat/zfs/POOL/objset-0xN` | of a mounted file system or an open volume |
//! | `module/zfs/parameters/NAME` | a tunable; what is written to it is set, as by `weir tune set` |
//! | `module/zfs/features.*`, `module/zfs/properties.*` | features and properties ([`module`]) |
//! | `module/zfs/version`, `module/spl` | what `arc_summary` looks for |
//!
//! **Figures are real.** A line is there if weir has that counter, and with 0 if a program ends
//! without the line and the thing does not exist here; the rest of OpenZFS's lines is left out.
//! Those lines are marked where they are made. Files that would have nothing else are left out,
//! too: `abdstats`, `dbufstats`, `dnodestats`, `fletcher_4_bench`, `vdev_mirror_stats`, `fm` and
//! others. `vdev_cache_stats` and the parameter `zfs_vdev_cache_size` are there since `arc_summary`
//! of 2.1 ends without them, `dbufs` has its heading only.
//!
//! **Formats** are those of OpenZFS, byte for byte ([`text`]). Counters never run backwards: what a
//! pool counted stays when it is exported ([`figures::Past`]); sizes are of what runs now. Times
//! are of the clock since the machine was started, as those of OpenZFS are.
//!
//! A text needs a visit to each pool that it is about. A pool whose engine does not answer within
//! [`PATIENCE`] costs the file an error, not the reader its time.

pub(crate) mod arcstats;
pub(crate) mod figures;
pub mod messages;
pub(crate) mod module;
pub(crate) mod pool;
pub(crate) mod text;

use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use base::{Error, ErrorKind, Result};

use crate::engine::{PoolEngine, current};
use crate::pool_set::{PoolSet, Running, lock};
use crate::tunables::{FIXED, TABLE, Tunables};

/// Where counters are in the tree.
pub const COUNTERS: &str = "spl/kstat/zfs";
/// Where tunables are in the tree.
pub const PARAMETERS: &str = "module/zfs/parameters";
/// The file that lists messages.
const MESSAGES: &str = "dbgmsg";
/// Time for a pool's engine to give its counters.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// What is at a path of the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Node {
    /// A folder.
    Folder,
    /// A file that only its owner reads.
    Private,
    /// A file that only its owner reads; anything that is written to it empties it.
    PrivateList,
    /// A file that everybody reads.
    Public,
    /// A file that everybody reads; anything that is written to it empties it.
    List,
    /// A tunable: everybody reads it, its owner sets it.
    Parameter,
}

impl Node {
    /// Permission bits.
    pub fn mode(self) -> u32 {
        match self {
            Node::Folder => 0o555,
            Node::Private => 0o400,
            Node::PrivateList => 0o600,
            Node::Public => 0o444,
            Node::List | Node::Parameter => 0o644,
        }
    }
}

/// The folders that are always there, each with the one that it is in.
const FOLDERS: &[(&str, &str)] = &[
    ("", "spl"),
    ("spl", "kstat"),
    ("spl/kstat", "zfs"),
    ("", "module"),
    ("module", "spl"),
    ("module", "zfs"),
    ("module/spl", "parameters"),
    ("module/zfs", "parameters"),
];

/// Kstats of the process, in the order of their numbers.
const OF_PROCESS: &[(&str, Node)] = &[
    ("arcstats", Node::Public),
    ("zil", Node::Public),
    ("zfetchstats", Node::Public),
    ("dmu_tx", Node::Public),
    ("vdev_cache_stats", Node::Public),
    ("dbufs", Node::Private),
    (MESSAGES, Node::PrivateList),
];

/// Kstats of each pool.
const OF_POOL: &[(&str, Node)] =
    &[("state", Node::Public), ("guid", Node::Public), ("txgs", Node::List), ("multihost", Node::List)];

/// A path of the tree in its parts.
enum Place<'a> {
    Folder,
    /// A kstat of the process.
    Process(&'static str, Node),
    /// The folder of a pool.
    Pool(&'a str),
    /// A kstat of a pool.
    OfPool(&'a str, &'static str, Node),
    /// The counters of an object set.
    Objset(&'a str, u64),
    /// A tunable.
    Parameter(&'a str),
    /// The version of a module.
    Version,
    /// Of a feature or a property.
    Module(Node),
    Nothing,
}

fn place(path: &str) -> Place<'_> {
    if path.is_empty() || FOLDERS.iter().any(|(at, name)| join(at, name) == path) {
        return Place::Folder;
    }
    if let Some(name) = path.strip_prefix(PARAMETERS).and_then(|p| p.strip_prefix('/')) {
        let is_known = Tunables::fixed(name).is_some() || TABLE.iter().any(|t| t.name == name);
        return if is_known { Place::Parameter(name) } else { Place::Nothing };
    }
    if matches!(path, "module/zfs/version" | "module/spl/version") {
        return Place::Version;
    }
    if let Some(node) = module::node(path) {
        return Place::Module(node);
    }
    let Some(rest) = path.strip_prefix(COUNTERS).and_then(|p| p.strip_prefix('/')) else { return Place::Nothing };
    let named = |list: &'static [(&'static str, Node)], name: &str| list.iter().find(|(n, _)| *n == name);
    match rest.split_once('/') {
        // A pool of such a name is hidden.
        None => named(OF_PROCESS, rest).map_or(Place::Pool(rest), |(name, node)| Place::Process(name, *node)),
        Some((pool, name)) => match (named(OF_POOL, name), name.strip_prefix("objset-0x")) {
            (Some((name, node)), _) => Place::OfPool(pool, name, *node),
            (None, Some(hex)) => match u64::from_str_radix(hex, 16) {
                // One name for each, as the folder lists it.
                Ok(object) if format!("{object:x}") == hex => Place::Objset(pool, object),
                _ => Place::Nothing,
            },
            (None, None) => Place::Nothing,
        },
    }
}

/// What is asked about a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Question {
    /// What it is.
    Node,
    /// The names in it.
    Names,
    /// Its text.
    Text,
}

/// Whether the answer waits for the engine of a pool.
pub fn waits(path: &str, question: Question) -> bool {
    match place(path) {
        Place::Objset(..) => true,
        Place::Pool(_) => question == Question::Names,
        Place::OfPool(..) | Place::Process(..) => question == Question::Text,
        Place::Folder | Place::Parameter(_) | Place::Version | Place::Module(_) | Place::Nothing => false,
    }
}

fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() { name.to_string() } else { format!("{folder}/{name}") }
}

fn missing(path: &str) -> Error {
    Error::not_found(format!("'{path}' is not a kstat: 'weir kstat' lists those that there are"))
}

/// The engine of a pool for a look at it; an error if it takes too long.
pub(crate) fn visit<T, F, Fut>(running: &Running, f: F) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce(Rc<PoolEngine>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<T>> + 'static,
{
    let call = running.thread.call(move |_| async move { f(current()?).await });
    call.wait_for(PATIENCE).unwrap_or_else(|_| {
        Err(Error::new(ErrorKind::Busy, format!("the engine of pool '{}' does not answer", running.name)))
    })?
}

impl PoolSet {
    /// What is at a path of the tree.
    pub fn kstat_node(&self, path: &str) -> Result<Option<Node>> {
        Ok(match place(path) {
            Place::Folder => Some(Node::Folder),
            Place::Process(_, node) => Some(node),
            Place::Pool(pool) => self.running(pool).map(|_| Node::Folder),
            Place::OfPool(pool, _, node) => self.running(pool).map(|_| node),
            Place::Objset(pool, object) => match self.running(pool) {
                Some(running) => {
                    let found = visit(&running, move |e| async move { Ok(e.objset_kstat(object)) })?;
                    found.map(|_| Node::Public)
                }
                None => None,
            },
            Place::Parameter(_) => Some(Node::Parameter),
            Place::Version => Some(Node::Public),
            Place::Module(node) => Some(node),
            Place::Nothing => None,
        })
    }

    /// The names in a folder of the tree, each with what it is.
    pub fn kstat_names(&self, folder: &str) -> Result<Vec<(String, Node)>> {
        let own = |(name, node): &(&str, Node)| (name.to_string(), *node);
        if let Place::Pool(pool) = place(folder) {
            let running = self.running(pool).ok_or_else(|| missing(folder))?;
            let objsets = visit(&running, |e| async move { Ok(e.objset_kstats()) })?;
            let mut out: Vec<(String, Node)> = OF_POOL.iter().map(own).collect();
            out.extend(objsets.iter().map(|o| (format!("objset-{:#x}", o.object), Node::Public)));
            return Ok(out);
        }
        if let Place::Module(Node::Folder) = place(folder) {
            return Ok(module::list(folder));
        }
        if !matches!(place(folder), Place::Folder) {
            return Err(missing(folder));
        }
        let mut out: Vec<(String, Node)> = Vec::new();
        out.extend(FOLDERS.iter().filter(|(at, _)| *at == folder).map(|(_, name)| (name.to_string(), Node::Folder)));
        match folder {
            COUNTERS => {
                out.extend(OF_PROCESS.iter().map(own));
                let pools =
                    self.running_names().into_iter().filter(|n| matches!(place(&join(COUNTERS, n)), Place::Pool(_)));
                out.extend(pools.map(|name| (name, Node::Folder)));
            }
            PARAMETERS => {
                let mut names: Vec<&str> = TABLE.iter().map(|t| t.name).chain(FIXED.iter().map(|(n, ..)| *n)).collect();
                names.sort_unstable();
                out.extend(names.into_iter().map(|n| (n.to_string(), Node::Parameter)));
            }
            "module/zfs" | "module/spl" => {
                out.push(("version".to_string(), Node::Public));
                out.extend(module::list(folder));
            }
            _ => {}
        }
        Ok(out)
    }

    /// Every file of counters and tunables, by the part of its path that tells it apart:
    /// `arcstats`, `tank/txgs`, `parameters/zfs_arc_max`.
    pub(crate) fn kstat_list(&self) -> Result<Vec<String>> {
        let mut out = Vec::new();
        for (name, node) in self.kstat_names(COUNTERS)? {
            match node {
                Node::Folder => {
                    // It may have been exported meanwhile.
                    let of_pool = self.kstat_names(&join(COUNTERS, &name)).or_else(|e| match e.kind() {
                        ErrorKind::NotFound => Ok(Vec::new()),
                        _ => Err(e),
                    })?;
                    out.extend(of_pool.into_iter().map(|(n, _)| format!("{name}/{n}")));
                }
                _ => out.push(name),
            }
        }
        out.extend(self.kstat_names(PARAMETERS)?.into_iter().map(|(n, _)| format!("parameters/{n}")));
        Ok(out)
    }

    /// The text of a kstat by the name that [`PoolSet::kstat_list`] gives it, or by its path.
    pub(crate) fn kstat_named(&self, name: &str) -> Result<String> {
        let path = match name.strip_prefix("parameters/") {
            Some(parameter) => join(PARAMETERS, parameter),
            None if name.starts_with("spl/") || name.starts_with("module/") => name.to_string(),
            None => join(COUNTERS, name),
        };
        let text = self.kstat_text(&path)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// The text of the file at a path, as it is now.
    pub fn kstat_text(&self, path: &str) -> Result<Vec<u8>> {
        let of_pool = |pool: &str| self.running(pool).ok_or_else(|| missing(path));
        let text = match place(path) {
            Place::Folder | Place::Pool(_) | Place::Module(Node::Folder) => {
                return Err(Error::new(ErrorKind::IsDir, format!("'{path}' is a folder")));
            }
            Place::Nothing => return Err(missing(path)),
            Place::Module(_) => module::text(path).ok_or_else(|| missing(path))?,
            Place::Version => format!("{}\n", self.module_version()),
            Place::Parameter(name) => {
                let all = lock(&self.tunables).all();
                let set = all.into_iter().find(|(n, _)| n == name).map(|(_, value)| value);
                let value = set.or_else(|| Tunables::fixed(name).map(|value| value.to_string()));
                format!("{}\n", value.ok_or_else(|| missing(path))?)
            }
            Place::Process(MESSAGES, _) => self.keeper.messages().text(),
            Place::Process(name, _) => self.process_kstat(name)?,
            Place::OfPool(pool, name, _) => {
                let running = of_pool(pool)?;
                visit(&running, move |e| async move { Ok(e.pool_kstat(name)) })?
            }
            Place::Objset(pool, object) => {
                let running = of_pool(pool)?;
                let found = visit(&running, move |e| async move { Ok(e.objset_kstat(object)) })?;
                found.ok_or_else(|| missing(path))?
            }
        };
        Ok(text.into_bytes())
    }

    /// Takes what was written to the file at a path: the value of a tunable, or anything for a list
    /// that is to be emptied.
    pub fn kstat_write(&self, path: &str, written: &str) -> Result<()> {
        match place(path) {
            Place::Parameter(name) => self.tune(&format!("{name}={}", written.trim()), false),
            Place::Process(MESSAGES, _) => {
                self.keeper.messages().clear();
                Ok(())
            }
            Place::OfPool(pool, name, Node::List) => {
                let running = self.running(pool).ok_or_else(|| missing(path))?;
                visit(&running, move |e| async move {
                    e.clear_kstat(name);
                    Ok(())
                })
            }
            Place::Nothing => Err(missing(path)),
            _ => Err(Error::new(ErrorKind::Denied, format!("'{path}' cannot be written"))),
        }
    }

    /// A command has changed a pool.
    pub(crate) fn note_command(&self, line: &str) {
        self.keeper.messages().add(&format!("command: {line}"));
    }

    /// The version that programs read: that of weir, with its name, so that nobody takes it for
    /// OpenZFS's.
    fn module_version(&self) -> String {
        format!("weir-{}", env!("CARGO_PKG_VERSION"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_thing() {
        let kind = |path: &str| match place(path) {
            Place::Folder => "folder".to_string(),
            Place::Process(name, _) => format!("process {name}"),
            Place::Pool(pool) => format!("pool {pool}"),
            Place::OfPool(pool, name, _) => format!("{name} of {pool}"),
            Place::Objset(pool, object) => format!("objset {object} of {pool}"),
            Place::Parameter(name) => format!("parameter {name}"),
            Place::Version => "version".to_string(),
            Place::Module(Node::Folder) => "folder of a module".to_string(),
            Place::Module(_) => "file of a module".to_string(),
            Place::Nothing => "nothing".to_string(),
        };
        for (path, want) in [
            ("", "folder"),
            ("spl", "folder"),
            ("spl/kstat/zfs", "folder"),
            ("module/zfs/parameters", "folder"),
            ("module/spl/parameters", "folder"),
            ("spl/kstat/zfs/arcstats", "process arcstats"),
            ("spl/kstat/zfs/tank", "pool tank"),
            ("spl/kstat/zfs/tank/txgs", "txgs of tank"),
            ("spl/kstat/zfs/tank/objset-0x36", "objset 54 of tank"),
            ("spl/kstat/zfs/tank/objset-0x036", "nothing"),
            ("spl/kstat/zfs/tank/objset-0x+36", "nothing"),
            ("spl/kstat/zfs/tank/objset-0xFF", "nothing"),
            ("spl/kstat/zfs/tank/x", "nothing"),
            ("spl/kstat/zfs/tank/txgs/x", "nothing"),
            ("module/zfs/parameters/zfs_arc_max", "parameter zfs_arc_max"),
            ("module/zfs/parameters/zfs_arc_maxx", "nothing"),
            ("module/zfs/version", "version"),
            ("module/zfs/features.pool", "folder of a module"),
            ("module/zfs/properties.pool/size", "folder of a module"),
            ("module/zfs/properties.pool/size/type", "file of a module"),
            ("module/spl/features.pool", "nothing"),
            ("module", "folder"),
            ("modules", "nothing"),
            ("/spl", "nothing"),
            ("spl/", "nothing"),
        ] {
            assert_eq!(kind(path), want, "{path}");
        }
    }

    #[test]
    fn only_counters_wait_for_pools() {
        for (path, want) in [
            ("module/zfs/parameters/zfs_arc_max", [false; 3]),
            ("spl/kstat/zfs", [false; 3]),
            ("spl/kstat/zfs/arcstats", [false, false, true]),
            ("spl/kstat/zfs/tank", [false, true, false]),
            ("spl/kstat/zfs/tank/objset-0x36", [true; 3]),
        ] {
            assert_eq!([Question::Node, Question::Names, Question::Text].map(|q| waits(path, q)), want, "{path}");
        }
    }

    #[test]
    fn every_folder_is_in_a_folder() {
        for (at, name) in FOLDERS {
            assert!(
                matches!(place(at), Place::Folder) && matches!(place(&join(at, name)), Place::Folder),
                "{at} {name}"
            );
        }
    }
}
