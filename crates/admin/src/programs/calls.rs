//! The calls of a program, except those about properties.

use std::rc::Rc;

use base::{Error, ErrorKind, Result};
use dmu::Tx;
use dsl::Dataset;
use dsl::props::{self, PropValue};
use program::{Answer, Call, Change, Errno, List, Value};

use super::desk::Asked;
use crate::engine::{PoolEngine, say};
use crate::keeper::Level;
use crate::request::pool_part;

/// Bytes of a name of a property (`ZAP_MAXNAMELEN`).
const PROP_NAME_MAX: usize = 256;
/// Bytes of the value of a user property with its end (`ZAP_MAXVALUELEN`).
const PROP_VALUE_MAX: usize = 8192;
const EBUSY: Errno = 16;
const EEXIST: Errno = 17;
const EXDEV: Errno = 18;
const EINVAL: Errno = 22;
/// What a change says that is tried with `-n`.
const NO_CHANGES: &str = "running functions from the zfs.sync submodule requires passing sync=TRUE to lzc_channel_program() (i.e. do not specify the \"-n\" command line argument)";

/// The number that OpenZFS has for an error.
fn errno(kind: ErrorKind) -> Errno {
    match kind {
        ErrorKind::NotFound => 2,
        ErrorKind::Io | ErrorKind::Corrupt | ErrorKind::Checksum | ErrorKind::Forged => 5,
        ErrorKind::TooBig => 7,
        ErrorKind::Restart => 11,
        ErrorKind::Denied => 1,
        ErrorKind::Busy | ErrorKind::NotEmpty => EBUSY,
        ErrorKind::Exists => EEXIST,
        ErrorKind::CrossDevice => EXDEV,
        ErrorKind::NoSpace => 28,
        ErrorKind::ReadOnly => 30,
        ErrorKind::NameTooLong => 36,
        ErrorKind::Unsupported => 95,
        ErrorKind::Quota => 122,
        _ => EINVAL,
    }
}

/// A refusal that has a number only.
fn refusal(kind: ErrorKind) -> Error {
    Error::new(kind, "the program asks for what cannot be done")
}

impl PoolEngine {
    /// Answers a call.
    pub(super) async fn answer(self: &Rc<Self>, asked: Asked, changes: bool, tx: &Rc<Tx>) -> Answer {
        let call = match asked {
            Asked::Call(call) => call,
            Asked::Exists(name) => {
                return match self.there(&name).await {
                    true => Answer::Values(Vec::new()),
                    false => Answer::Done(0, None),
                };
            }
        };
        match call {
            Call::Debug(text) => {
                say(Level::Notice, &format!("txg {} program of pool '{}': {text}", tx.txg(), self.pool.name()));
                Answer::Values(Vec::new())
            }
            Call::Exists(name) => {
                if pool_part(&name) != self.pool.name() {
                    return Answer::Error(format!("dataset '{name}' is not in the target pool"));
                }
                Answer::Values(vec![Value::Bool(self.there(&name).await)])
            }
            Call::GetProp { dataset, property } => self.program_prop(&dataset, &property).await,
            Call::SystemProps(name) => match self.held(&name).await {
                Ok(ds) => self.system_props(&ds).await,
                Err(answer) => answer,
            },
            Call::List(list, name) => match self.held(&name).await {
                Ok(ds) => self.items(list, &name, &ds).await,
                Err(answer) => answer,
            },
            Call::Change(change, wanted) => {
                let (result, details) = self.change(&change, !(wanted && changes), tx).await;
                let number = match result {
                    Ok(()) => 0,
                    Err(e) if errno(e.kind()) == 5 => {
                        return Answer::Error(format!("I/O error while accessing a dataset: {e}"));
                    }
                    Err(e) => errno(e.kind()),
                };
                match wanted && !changes {
                    true => Answer::Error(NO_CHANGES.to_string()),
                    false => Answer::Done(number, details),
                }
            }
        }
    }

    /// Whether a dataset, snapshot or bookmark is there.
    async fn there(&self, name: &str) -> bool {
        let dsl = self.pool.dsl();
        if let Some((fs, mark)) = name.split_once('#') {
            let Ok(head) = dsl.find(fs) else { return false };
            return dsl.bookmarks(&head).await.is_ok_and(|all| all.iter().any(|m| m.name == mark));
        }
        match name.contains('@') {
            true => dsl.find_snapshot(name).await.is_ok(),
            false => dsl.find(name).is_ok(),
        }
    }

    /// A dataset or snapshot, or the error that ends the program.
    pub(super) async fn held(&self, name: &str) -> std::result::Result<Rc<Dataset>, Answer> {
        let pool = self.pool.name();
        if pool_part(name) != pool {
            let why = format!("dataset '{name}' is not in the target pool '{pool}'");
            return Err(Answer::BadArgument(why));
        }
        let dsl = self.pool.dsl();
        let found = match name.contains('@') {
            true => dsl.find_snapshot(name).await,
            false => dsl.find(name),
        };
        found.map_err(|e| match e.kind() {
            ErrorKind::NotFound => Answer::BadArgument(format!("no such dataset '{name}'")),
            _ => Answer::Error(format!("error while accessing dataset '{name}': {e}")),
        })
    }

    async fn items(&self, list: List, name: &str, ds: &Rc<Dataset>) -> Answer {
        let bad = |why: String| Answer::BadArgument(why);
        match list {
            List::Clones | List::Holds if !ds.is_snapshot() => return bad(format!("{name} is not a snapshot")),
            List::Bookmarks if ds.is_snapshot() => return bad(format!("{name} is a snapshot")),
            List::Children | List::Snapshots if ds.is_snapshot() => {
                return bad(format!("argument {name} cannot be a snapshot"));
            }
            _ => {}
        }
        match self.items_of(list, ds).await {
            Ok(items) => Answer::Items(items),
            Err(e) => Answer::Error(format!("error while accessing dataset '{name}': {e}")),
        }
    }

    async fn items_of(&self, list: List, ds: &Rc<Dataset>) -> Result<Vec<Vec<Value>>> {
        let dsl = self.pool.dsl();
        let one = |name: String| vec![Value::Text(name)];
        Ok(match list {
            List::Children => {
                let dirs = ds.dir().children().into_iter().filter(|d| !d.is_hidden() && d.head().is_some());
                dirs.map(|d| one(d.full_name())).collect()
            }
            List::Snapshots => dsl.snapshots(ds).await?.iter().map(|s| one(s.name())).collect(),
            List::Clones => {
                let clones = dsl.clones_of(ds).await?;
                clones.iter().filter(|c| !c.dir().is_hidden()).map(|c| one(c.name())).collect()
            }
            List::Bookmarks => {
                dsl.bookmarks(ds).await?.iter().map(|m| one(format!("{}#{}", ds.name(), m.name))).collect()
            }
            List::Holds => {
                let holds = dsl.holds(ds).await?.into_iter();
                holds.map(|h| vec![Value::Text(h.tag), Value::Int(h.time.cast_signed())]).collect()
            }
            List::UserProps => self.user_props(ds).await,
        })
    }

    /// Makes a change, or with `trial` its checks; with what else is to be said.
    async fn change(&self, change: &Change, trial: bool, tx: &Rc<Tx>) -> (Result<()>, Option<Value>) {
        if !self.is_ours(change) {
            return (Err(refusal(ErrorKind::CrossDevice)), None);
        }
        let dsl = self.pool.dsl();
        match change {
            Change::Promote(name) => {
                let done = dsl.promote_in(name, trial, tx).await;
                let exists = done.as_ref().is_err_and(|e| e.kind() == ErrorKind::Exists);
                let details = if exists { self.conflicts(name).await.ok() } else { None };
                (done, details)
            }
            Change::Rollback(name) => match self.last_snapshot(name).await {
                Ok(snap) => {
                    let done = dsl.rollback_in(&snap, trial, tx).await;
                    (done, Some(Value::Table(vec![("target".to_string(), Value::Text(snap))])))
                }
                Err(e) => (Err(e), None),
            },
            other => (self.plain_change(other, trial, tx).await, None),
        }
    }

    /// Whether a change is about this pool.
    fn is_ours(&self, change: &Change) -> bool {
        let (name, other) = match change {
            Change::Clone { snapshot, name } => (snapshot, Some(name)),
            Change::Bookmark { from, to } => (from, Some(to)),
            Change::Destroy { name, .. }
            | Change::Promote(name)
            | Change::Rollback(name)
            | Change::RenameSnapshot { dataset: name, .. }
            | Change::Inherit { dataset: name, .. }
            | Change::SetProp { dataset: name, .. } => (name, None),
            // Malformed names are something else.
            Change::Snapshot(name) if !name.contains('@') => return true,
            Change::Snapshot(name) => (name, None),
        };
        let pool = self.pool.name();
        pool_part(name) == pool && other.is_none_or(|name| pool_part(name) == pool)
    }

    async fn plain_change(&self, change: &Change, trial: bool, tx: &Rc<Tx>) -> Result<()> {
        let dsl = self.pool.dsl();
        match change {
            Change::Clone { snapshot, name } => {
                dsl::check_name(name)?;
                dsl.clone_snapshot_in(snapshot, name, &[], trial, tx).await.map(drop)
            }
            Change::Destroy { name, .. } if name.contains('#') => Err(refusal(ErrorKind::Invalid)),
            Change::Destroy { name, defer } if name.contains('@') => {
                dsl.destroy_snapshots_in(std::slice::from_ref(name), *defer, true, trial, tx).await
            }
            Change::Destroy { name, .. } => {
                let head = dsl.find(name)?;
                if head.dir().children().iter().any(|c| !c.is_hidden()) {
                    return Err(refusal(ErrorKind::Exists));
                }
                dsl.destroy_fs_in(name, trial, tx).await
            }
            Change::Snapshot(name) => {
                let Some((fs, _)) = name.split_once('@') else { return Err(refusal(ErrorKind::Invalid)) };
                dsl::check_name(fs)?;
                dsl.snapshot_in(std::slice::from_ref(name), false, &[], trial, tx).await
            }
            Change::RenameSnapshot { dataset, from, to } => {
                let (from, to) = (format!("{dataset}@{from}"), format!("{dataset}@{to}"));
                dsl.rename_snapshot_in(&from, &to, false, trial, tx).await
            }
            Change::Bookmark { from, to } => dsl.create_bookmark_in(from, to, trial, tx).await,
            Change::Inherit { dataset, property } => self.program_inherit(dataset, property, trial, tx).await,
            Change::SetProp { dataset, property, value } => {
                if !property.contains(':') || !property.bytes().all(is_user_byte) {
                    return Err(refusal(ErrorKind::Invalid));
                }
                if property.len() >= PROP_NAME_MAX {
                    return Err(refusal(ErrorKind::NameTooLong));
                }
                if value.len() >= PROP_VALUE_MAX {
                    return Err(refusal(ErrorKind::TooBig));
                }
                let value = PropValue::Text(value.clone());
                match dataset.contains('@') {
                    true => dsl.set_snapshot_props_in(dataset, &[(property.clone(), Some(value))], trial, tx).await,
                    false => dsl.set_props_in(dataset, &[(property.clone(), value)], trial, tx).await,
                }
            }
            Change::Promote(_) | Change::Rollback(_) => Err(refusal(ErrorKind::Invalid)),
        }
    }

    async fn program_inherit(&self, dataset: &str, property: &str, trial: bool, tx: &Rc<Tx>) -> Result<()> {
        let dsl = self.pool.dsl();
        match props::find(property) {
            Some(known) if !known.settable() || !known.inheritable() => return Err(refusal(ErrorKind::Invalid)),
            None if !props::is_user_prop(property) => return Err(refusal(ErrorKind::Invalid)),
            _ => {}
        }
        if dataset.contains('@') {
            return dsl.set_snapshot_props_in(dataset, &[(property.to_string(), None)], trial, tx).await;
        }
        let property = props::find(property).map_or(property, |p| p.name);
        dsl.find(dataset)?;
        if trial { Ok(()) } else { dsl.inherit_in(dataset, property, false, tx).await }
    }

    /// The last snapshot of a dataset.
    async fn last_snapshot(&self, name: &str) -> Result<String> {
        if name.contains(['@', '#']) {
            return Err(refusal(ErrorKind::Invalid));
        }
        let dsl = self.pool.dsl();
        let head = dsl.find(name)?;
        let last = dsl.snapshots(&head).await?.into_iter().max_by_key(|s| s.phys().creation_txg);
        last.map(|s| s.name()).ok_or_else(|| refusal(ErrorKind::Invalid))
    }

    /// The names of the snapshots that a clone and what it was made from have both.
    async fn conflicts(&self, name: &str) -> Result<Value> {
        let dsl = self.pool.dsl();
        let head = dsl.find(name)?;
        let origin = dsl.origin_of(&head).await?.ok_or_else(|| refusal(ErrorKind::Invalid))?;
        let old = origin.dir().head().ok_or_else(|| refusal(ErrorKind::NotFound))?;
        let own: Vec<String> = dsl.snapshots(&head).await?.iter().map(|s| s.snapname()).collect();
        let upto = origin.phys().creation_txg;
        let moving = dsl.snapshots(&old).await?.into_iter().filter(|s| s.phys().creation_txg <= upto);
        let both = moving.map(|s| s.snapname()).filter(|n| own.contains(n));
        Ok(Value::List(both.map(Value::Text).collect()))
    }
}

/// A byte of the name of a user property.
fn is_user_byte(c: u8) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || b"-_.:".contains(&c)
}
