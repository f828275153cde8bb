//! A file system that was closed while its front end had objects in use, and is opened again: the
//! same state, or another one after a rollback or a receive.
//!
//! Objects in use are counted as open before anything else happens, so that those without a name
//! are not freed by the drain of the unlinked set that each opening begins.

use std::collections::BTreeSet;
use std::rc::Rc;

use base::{ErrorKind, ObjectId, Result};
use dmu::zap;
use dsl::Dataset;

use crate::fs::Zfs;
use crate::types::MountOpts;

/// Names of a directory that are read at once.
const NAMES_PER_STEP: usize = 256;

/// An object that a front end has in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Its number.
    pub obj: ObjectId,
    /// Its generation: another object of the same number has another one.
    pub generation: u64,
    /// How often it is open ([`Zfs::open_file`]).
    pub opens: u32,
    /// It is a directory that was removed and is kept ([`Zfs::keep_removed_dirs`]).
    pub is_removed: bool,
}

impl Zfs {
    /// As [`Zfs::open`] for a front end that has objects in use; the numbers of those that are
    /// still there. They count as open, the others do not.
    pub async fn open_again(ds: &Rc<Dataset>, opts: MountOpts, held: &[Held]) -> Result<(Rc<Zfs>, BTreeSet<u64>)> {
        let fs = Zfs::load(ds, opts).await?;
        ds.begin_use();
        let mut kept = BTreeSet::new();
        for h in held {
            if fs.hold_again(*h).await? {
                kept.insert(h.obj.0);
            }
        }
        fs.begin_background().await?;
        Ok((fs, kept))
    }

    /// Goes on with the counts of another one ([`Zfs::io_counts`]).
    pub fn count_on(&self, before: &Zfs) {
        self.io.set(before.io.get());
    }

    async fn hold_again(&self, held: Held) -> Result<bool> {
        let n = match self.node(held.obj).await {
            Ok(n) => n,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(e),
        };
        if self.stored_attrs(&n).await?.generation != held.generation {
            return Ok(false);
        }
        for _ in 0..held.opens {
            self.hold_open(&n);
        }
        if held.is_removed {
            self.keep_removed_dirs();
            self.keep_removed(&n);
        }
        Ok(true)
    }

    /// The names in a directory, without an access to it.
    pub async fn names_of(&self, obj: ObjectId) -> Result<BTreeSet<Vec<u8>>> {
        let (dir, _) = self.dir(obj).await?;
        let mut cursor = zap::Cursor::new(&dir.dn);
        let mut names = BTreeSet::new();
        loop {
            let batch = cursor.next_batch(NAMES_PER_STEP).await?;
            if batch.is_empty() {
                return Ok(names);
            }
            for (e, _) in batch {
                self.rt.spend(rt::cost::ZPL_ENTRY).await;
                names.insert(e.name);
            }
        }
    }

    /// Directories that were removed and are kept.
    pub fn removed_dirs(&self) -> Vec<ObjectId> {
        self.removed.borrow().iter().copied().map(ObjectId).collect()
    }
}
