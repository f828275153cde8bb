//! `zfs diff`: what changed in a file system since a snapshot, from the engine to the client.
//!
//! The present state of a file system changes while it is looked at, so a snapshot of it is made
//! for the time of the command, as in OpenZFS: after a crash it goes with the next import. A pool
//! that is imported read-only needs none.

use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;

use base::{Error, Result};
use dsl::Dataset;
use ondisk::zpl::{S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK};
use zpl::diff::{Change, Diff, Item, Line};
use zpl::{MountOpts, Zfs};

use crate::engine::PoolEngine;
use crate::request::stream::Outlet;
use crate::request::{DiffItem, DiffLine, check_not_suspended, escaped};

/// The first part of the name of the snapshot of a present state, and the tag of its hold.
const PREFIX: &str = "zfs-diff";
/// Where errors come from.
const PLACE: &str = "Unable to obtain diffs";

impl PoolEngine {
    /// Writes the changes between the snapshot `from` and `to`, a later one or a file system.
    pub(crate) async fn diff(&self, from: &str, to: &str, out: Outlet) -> Result<()> {
        let dsl = self.pool.dsl();
        let fs = to.split('@').next().unwrap_or_default();
        let head = self.find(fs)?;
        let earlier = dsl.find_snapshot(from).await?;
        let root = self.mounts.path_of(&head.name()).ok_or_else(|| {
            Error::invalid(format!(
                "Cannot diff an unmounted snapshot: '{fs}' is not mounted, 'zfs mount {fs}' does that"
            ))
        })?;
        // No double slash for a file system that is mounted as the root.
        let root = root.as_os_str().as_bytes();
        let root = if root == b"/" { &[][..] } else { root };
        if to.contains('@') {
            let later = dsl.find_snapshot(to).await?;
            return self.diff_of(&earlier, &later, root, out).await.map_err(|e| e.at(PLACE));
        }
        if !dsl.is_writable() {
            return self.diff_of(&earlier, &head, root, out).await.map_err(|e| e.at(PLACE));
        }
        check_not_suspended(self)?;
        // Before a snapshot is made for nothing.
        drop(dsl.changes(&earlier, &head).await.map_err(|e| e.at(PLACE))?);
        let snap = format!("{PREFIX}-{:016x}", self.pool.rt().rng_u64());
        let name = format!("{}@{snap}", head.name());
        {
            let _admin = self.admin.acquire(1).await;
            dsl.snapshot_temporary(&head.name(), &snap, PREFIX).await.map_err(|e| e.at(PLACE))?;
        }
        let done = async {
            let later = dsl.find_snapshot(&name).await?;
            self.diff_of(&earlier, &later, root, out).await
        };
        let done = done.await;
        let _admin = self.admin.acquire(1).await;
        let gone = dsl.release(PREFIX, vec![name], false).await;
        done.and(gone).map_err(|e| e.at(PLACE))
    }

    async fn diff_of(&self, from: &Rc<Dataset>, to: &Rc<Dataset>, root: &[u8], out: Outlet) -> Result<()> {
        let changes = self.pool.dsl().changes(from, to).await?;
        let opts = MountOpts { readonly: true, redacted: true, ..MountOpts::default() };
        let earlier = Zfs::open_uncounted(from, opts).await?;
        let later = match to.is_snapshot() {
            true => Zfs::open_uncounted(to, opts).await?,
            false => Zfs::open(to, opts).await?,
        };
        let mut diff = Diff::new(changes, earlier, later.clone());
        let done = async {
            while let Some(item) = diff.next().await? {
                out.item(self.pool.rt(), &item_of(item, root)).await?;
            }
            Ok(())
        };
        let done = done.await;
        drop(diff);
        done.and(later.unmount().await)
    }
}

fn item_of(item: Item, root: &[u8]) -> DiffItem {
    let whole = |path: &[u8]| escaped(&[root, path].concat());
    match item {
        Item::Line(Line { change, path, mode, ctime }) => {
            let (sign, links, renamed) = match change {
                Change::Added => ('+', 0, None),
                Change::Removed => ('-', 0, None),
                Change::Modified => ('M', 0, None),
                Change::Links(n) => ('M', n, None),
                Change::Renamed(to) => ('R', 0, Some(whole(&to))),
            };
            let ctime = (ctime.secs, ctime.nanos);
            DiffItem::Line(DiffLine { sign, kind: kind_of(mode), path: whole(&path), renamed, links, ctime })
        }
        Item::Failed { object, dataset, why } => {
            let text = format!("Unable to determine path or stats for object {object} in {dataset}: {why}");
            DiffItem::Failed(text)
        }
    }
}

/// The letter of a type.
fn kind_of(mode: u64) -> char {
    match mode & S_IFMT {
        S_IFBLK => 'B',
        S_IFCHR => 'C',
        S_IFDIR => '/',
        S_IFIFO => '|',
        S_IFLNK => '@',
        S_IFSOCK => '=',
        S_IFREG => 'F',
        _ => '?',
    }
}
