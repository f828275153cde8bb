//! Limits on how many file systems and snapshots there are below a dataset (properties
//! `filesystem_limit` and `snapshot_limit`, feature `filesystem_limits`; format page 24 section 3).
//!
//! A directory that *counts* has two numbers as named values: the directories below it, and the
//! snapshots of its head and of all heads below. Counting begins where a limit is set first, there
//! and below, and never ends; from then on all new directories of the pool count. Hidden
//! directories (`$MOS` and the like) and those of receives (`%recv`) are not counted, nor are
//! temporary snapshots when counting begins.
//!
//! Invariant: if a directory counts, so does everything below it. A change is added to the
//! directory and to those above it, up to the first that does not count.
//!
//! Limits bind users who have permissions only, never the owner of the pool: the check is for
//! commands of such users, and each level is judged by itself (`DslPool::check_limit`).

use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::{Tx, zap};
use ondisk::feature::FeatureId;
use ondisk::object_type::ObjectType;
use rt::LocalBoxFuture;

use crate::dir::Dir;
use crate::pool::DslPool;

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counted {
    /// File systems and volumes.
    FileSystems,
    /// Snapshots.
    Snapshots,
}

impl Counted {
    /// Both.
    pub const ALL: [Counted; 2] = [Counted::FileSystems, Counted::Snapshots];

    fn key(self) -> &'static [u8] {
        match self {
            Counted::FileSystems => b"com.joyent:filesystem_count",
            Counted::Snapshots => b"com.joyent:snapshot_count",
        }
    }

    /// The property with the limit.
    pub fn limit(self) -> &'static str {
        match self {
            Counted::FileSystems => "filesystem_limit",
            Counted::Snapshots => "snapshot_limit",
        }
    }

    /// The property with the number.
    pub fn count(self) -> &'static str {
        match self {
            Counted::FileSystems => "filesystem_count",
            Counted::Snapshots => "snapshot_count",
        }
    }
}

/// Whether a directory of that name is one of those that are counted.
fn is_counted(name: &str) -> bool {
    !name.starts_with(['$', '%'])
}

impl DslPool {
    /// The numbers of a directory, in the order of [`Counted::ALL`]; none if it does not count.
    pub async fn counts(&self, dir: &Dir) -> Result<Option<[u64; 2]>> {
        if !self.features().is_active(FeatureId::FilesystemLimits) {
            return Ok(None);
        }
        let dn = self.mos().hold(dir.object).await?;
        if dn.otype() != ObjectType::OTN_ZAP_METADATA {
            return Ok(None);
        }
        let mut out = [0; 2];
        for (n, what) in out.iter_mut().zip(Counted::ALL) {
            match zap::lookup_u64(&dn, what.key()).await? {
                Some(count) => *n = count,
                None => return Ok(None),
            }
        }
        Ok(Some(out))
    }

    /// Adds to the numbers of a directory and of those above it (syncing context).
    pub(crate) async fn count(&self, what: Counted, dir: &Rc<Dir>, delta: i64, tx: &Tx) -> Result<()> {
        let mut at = Some(dir.clone());
        while let Some(dir) = at.filter(|_| delta != 0) {
            let Some(counts) = self.counts(&dir).await? else { break };
            // In pools that earlier versions wrote a number may be too small.
            let new = counts[what as usize].saturating_add_signed(delta);
            zap::update_u64(&self.mos().hold(dir.object).await?, what.key(), new, tx).await?;
            at = dir.parent();
        }
        Ok(())
    }

    /// A directory was made, or is to go: counts it above (syncing context).
    pub(crate) async fn count_dir(&self, name: &str, parent: &Rc<Dir>, delta: i64, tx: &Tx) -> Result<()> {
        match is_counted(name) {
            true => self.count(Counted::FileSystems, parent, delta, tx).await,
            false => Ok(()),
        }
    }

    /// A new directory counts from the beginning, if any counts (syncing context).
    pub(crate) async fn count_from_now(&self, dir: &Dir, tx: &Tx) -> Result<()> {
        if !dir.is_hidden() && self.features().is_active(FeatureId::FilesystemLimits) {
            self.set_counts(dir, [0; 2], tx).await?;
        }
        Ok(())
    }

    async fn set_counts(&self, dir: &Dir, counts: [u64; 2], tx: &Tx) -> Result<()> {
        let dn = self.zapify(dir.object, tx).await?;
        for (what, n) in Counted::ALL.into_iter().zip(counts) {
            zap::update_u64(&dn, what.key(), n, tx).await?;
        }
        Ok(())
    }

    /// A limit is set on a directory: it counts from now on, and all below it (syncing context).
    pub(crate) async fn begin_counting(&self, dir: &Rc<Dir>, tx: &Tx) -> Result<()> {
        if !self.features().is_active(FeatureId::FilesystemLimits) {
            self.features().add(FeatureId::FilesystemLimits, 1, tx).await?;
        }
        self.counts_below(dir, tx).await.map(drop)
    }

    /// The numbers of a directory, which are made if it has none.
    fn counts_below<'a>(&'a self, dir: &'a Rc<Dir>, tx: &'a Tx) -> LocalBoxFuture<'a, Result<[u64; 2]>> {
        Box::pin(async move {
            if let Some(counts) = self.counts(dir).await? {
                return Ok(counts);
            }
            let mut counts = [0; 2];
            for child in dir.children().into_iter().filter(|c| !c.is_hidden()) {
                let [dirs, snaps] = self.counts_below(&child, tx).await?;
                counts = [counts[0] + dirs + 1, counts[1] + snaps];
            }
            if let Some(head) = dir.head() {
                let names = self.mos().hold(ObjectId(head.phys().snapnames_zapobj)).await?;
                let names = zap::list(&names).await?;
                counts[1] += names.iter().filter(|e| !e.name.starts_with(b"%")).count() as u64;
            }
            self.set_counts(dir, counts, tx).await?;
            Ok(counts)
        })
    }

    /// A directory moves from one parent to another, at which it still is (syncing context).
    pub(crate) async fn move_counts(&self, dir: &Rc<Dir>, from: &Rc<Dir>, to: &Rc<Dir>, tx: &Tx) -> Result<()> {
        if Rc::ptr_eq(from, to) || !self.features().is_active(FeatureId::FilesystemLimits) {
            return Ok(());
        }
        let own = match self.counts(to).await? {
            Some(_) => Some(self.counts_below(dir, tx).await?),
            None => self.counts(dir).await?,
        };
        // What does not count has no parent that does.
        let Some([dirs, snaps]) = own else { return Ok(()) };
        for (what, n) in [(Counted::FileSystems, dirs.saturating_add(1)), (Counted::Snapshots, snaps)] {
            let n = i64::try_from(n).map_err(|_| Error::corrupt(format!("'{}' counts {n}", dir.full_name())))?;
            self.count(what, from, -n, tx).await?;
            self.count(what, to, n, tx).await?;
        }
        Ok(())
    }

    /// Fails if `more` would be too many for a directory or one above it, but for those that
    /// `is_free` of their limits. Error: `Quota`.
    pub async fn check_limit(
        &self,
        what: Counted,
        dir: &Rc<Dir>,
        more: u64,
        mut is_free: impl AsyncFnMut(&Rc<Dir>) -> Result<bool>,
    ) -> Result<()> {
        let mut at = Some(dir.clone());
        while let Some(dir) = at {
            let Some(counts) = self.counts(&dir).await? else { return Ok(()) };
            let limit = dir.prop(what.limit()).0.num();
            let after = counts[what as usize].saturating_add(more);
            if after > limit && !is_free(&dir).await? {
                let why = format!("the {} of '{}' is {limit}", what.limit(), dir.full_name());
                return Err(Error::new(ErrorKind::Quota, why));
            }
            at = dir.parent();
        }
        Ok(())
    }
}
