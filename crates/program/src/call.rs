//! What a program asks of its host, and the answers.

use crate::errno::Errno;
use crate::value::Value;

/// A list that a program walks over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum List {
    /// Direct children of a dataset.
    Children,
    /// Snapshots of a dataset.
    Snapshots,
    /// Clones of a snapshot.
    Clones,
    /// User properties with value and source.
    UserProps,
    /// Bookmarks of a dataset.
    Bookmarks,
    /// Holds on a snapshot, each with its time.
    Holds,
}

/// A change of `zfs.sync`, which `zfs.check` only tries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Make a dataset from a snapshot.
    Clone {
        /// The snapshot.
        snapshot: String,
        /// The new dataset.
        name: String,
    },
    /// Destroy a dataset or snapshot.
    Destroy {
        /// Its name.
        name: String,
        /// Defer that of a snapshot with holds or clones.
        defer: bool,
    },
    /// Promote a clone.
    Promote(String),
    /// Roll a dataset back to its last snapshot.
    Rollback(String),
    /// Make a snapshot.
    Snapshot(String),
    /// Rename a snapshot.
    RenameSnapshot {
        /// The dataset.
        dataset: String,
        /// The part behind `@`.
        from: String,
        /// The new part behind `@`.
        to: String,
    },
    /// Drop the local value of a property.
    Inherit {
        /// The dataset.
        dataset: String,
        /// The property.
        property: String,
    },
    /// Make a bookmark.
    Bookmark {
        /// A snapshot or bookmark.
        from: String,
        /// The new bookmark.
        to: String,
    },
    /// Set a user property.
    SetProp {
        /// The dataset or snapshot.
        dataset: String,
        /// The property.
        property: String,
        /// Its value.
        value: String,
    },
}

/// A call of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Call {
    /// A message for the log.
    Debug(String),
    /// Whether a dataset exists.
    Exists(String),
    /// Value and source of a property.
    GetProp {
        /// The dataset.
        dataset: String,
        /// The property.
        property: String,
    },
    /// The items of a list.
    List(List, String),
    /// The names of the native properties of a dataset.
    SystemProps(String),
    /// A change, or with `false` the attempt of one.
    Change(Change, bool),
}

/// The answer to a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Results of the function.
    Values(Vec<Value>),
    /// The items of a list, each with its values.
    Items(Vec<Vec<Value>>),
    /// The number of a change, and details of its error.
    Done(Errno, Option<Value>),
    /// The program ends with this error.
    Error(String),
    /// As [`Answer::Error`], about the first argument.
    BadArgument(String),
}

/// Does the calls of a program.
pub trait Host {
    /// Does a call and waits for it.
    fn call(&mut self, call: Call) -> Answer;
    /// Whether a dataset, snapshot or bookmark of that name is there still, for walks over lists.
    fn exists(&mut self, name: &str) -> bool;
}
