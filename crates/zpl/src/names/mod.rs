//! File names: valid names, comparison, lookup.

pub(crate) mod create;
pub(crate) mod path;
pub(crate) mod readdir;
pub(crate) mod remove;
pub(crate) mod rename;
pub(crate) mod tmpfile;

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::zap::{self, Match};
use ondisk::feature::FeatureId;
use ondisk::zap::{MAX_LONG_NAME, NORM_TOUPPER};
use ondisk::zpl::{Dirent, MAX_NAME};

use crate::fs::Zfs;
use crate::node::Node;
use crate::types::{Attr, Case, FileKind};

/// The flags of directory ZAPs (format page 16 section 6).
pub(crate) fn normflags(normalization: u64, case: Case) -> u64 {
    normalization | if case == Case::Sensitive { 0 } else { NORM_TOUPPER }
}

/// A directory entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    /// The stored name.
    pub name: Vec<u8>,
    pub entry: Dirent,
}

impl Found {
    pub fn obj(&self) -> ObjectId {
        ObjectId(self.entry.object)
    }
}

/// A name as text for messages.
pub(crate) fn show(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// The error for a missing name.
pub(crate) fn no_entry(name: &[u8]) -> Error {
    Error::not_found(format!("there is no '{}'", show(name)))
}

/// The error for an existing name.
pub(crate) fn entry_exists(name: &[u8]) -> Error {
    Error::new(ErrorKind::Exists, format!("'{}' exists already", show(name)))
}

fn check_length(name: &[u8], longest: usize) -> Result<()> {
    if name.len() > longest {
        return Err(Error::new(
            ErrorKind::NameTooLong,
            format!("a name of {} bytes is longer than {longest}", name.len()),
        ));
    }
    Ok(())
}

impl Zfs {
    /// The longest name that a new entry may have, in bytes.
    pub(crate) fn longest_name(&self) -> usize {
        let may = self.opts().longname && self.os.ctx().features().longname;
        if may { MAX_LONG_NAME } else { MAX_NAME }
    }

    /// Whether the dataset has had, on disk, a name of more than 255 bytes.
    fn ds_has_long_names(&self) -> bool {
        self.dataset().features().contains(FeatureId::Longname.get().guid)
    }

    /// Checks a name for a lookup: what is there can be read with any value of the property.
    pub(crate) fn check_name(&self, name: &[u8]) -> Result<()> {
        if name.len() > MAX_NAME {
            // A log that is replayed has names that were allowed when it was written.
            let has_long = self.long_names.get() || self.ds_has_long_names() || self.replaying.get().is_some();
            check_length(name, if has_long { MAX_LONG_NAME } else { self.longest_name() })?;
        }
        if name.is_empty() || name.iter().any(|&c| c == b'/' || c == 0) {
            return Err(Error::invalid(format!("'{}' cannot be the name of a file", show(name))));
        }
        Ok(())
    }

    /// Checks a name for a new entry.
    pub(crate) fn check_new_name(&self, name: &[u8]) -> Result<()> {
        if name.len() > MAX_NAME {
            // What was allowed when it was logged is replayed.
            if self.replaying.get().is_none() {
                check_length(name, self.longest_name())?;
            }
            self.long_names.set(true);
        }
        self.check_name(name)?;
        if name == b"." || name == b".." {
            return Err(entry_exists(name));
        }
        if self.utf8only && std::str::from_utf8(name).is_err() {
            return Err(Error::invalid(format!("'{}' is not UTF-8, which this file system asks for", show(name))));
        }
        Ok(())
    }

    /// Looks `name` up in a directory, by the file system's comparison.
    pub(crate) async fn find(&self, dir: &Node, name: &[u8]) -> Result<Option<Found>> {
        if self.normflags == 0 {
            let value = zap::lookup_u64(&dir.dn, name).await?;
            return Ok(value.map(|v| Found { name: name.to_vec(), entry: Dirent::unpack(v) }));
        }
        let how = match self.case {
            Case::Insensitive => Match::Folded,
            Case::Sensitive => Match::Normalised,
            Case::Mixed if self.normflags == NORM_TOUPPER => Match::Exact,
            Case::Mixed => Match::Normalised,
        };
        let Some(e) = zap::lookup_norm(&dir.dn, name, how).await? else { return Ok(None) };
        let value = e.value.as_u64().ok_or_else(|| {
            Error::corrupt(format!("the entry '{}' of directory {} is no object", show(&e.name), dir.obj()))
        })?;
        Ok(Some(Found { name: e.name, entry: Dirent::unpack(value) }))
    }

    /// As [`Zfs::find`]; an error if the name is missing.
    pub(crate) async fn find_entry(&self, dir: &Node, name: &[u8]) -> Result<Found> {
        self.find(dir, name).await?.ok_or_else(|| no_entry(name))
    }

    /// The attributes of the object `name` in a directory, `.` and `..` included.
    pub async fn lookup(&self, dir: ObjectId, name: &[u8]) -> Result<Attr> {
        self.check_name(name)?;
        let (d, a) = self.dir(dir).await?;
        let obj = match name {
            b"." => dir,
            b".." => ObjectId(a.parent),
            _ => self.find_entry(&d, name).await?.obj(),
        };
        self.getattr(obj).await
    }

    /// The type of an entry; in file systems of version 1 it is in the object only.
    pub(crate) async fn kind_of_entry(&self, e: Dirent) -> Result<FileKind> {
        match FileKind::from_dtype(e.dtype) {
            Some(kind) => Ok(kind),
            None => Ok(self.getattr(ObjectId(e.object)).await?.kind),
        }
    }
}
