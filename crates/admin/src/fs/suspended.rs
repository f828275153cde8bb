//! Changes of a file system below its users: `zfs rollback` and `zfs receive` into what is mounted.
//!
//! The front end suspends it ([`super::front_end::ActiveMount::suspend`]): its requests wait, while
//! it is closed, changed and opened again. Neither shares nor mounts below change. No path may be
//! looked up meanwhile, since the way may lead through it: whatever else a command destroys or
//! unmounts comes before.

use std::collections::BTreeSet;
use std::rc::Rc;

use base::{Error, ErrorKind, Result};
use zpl::Held;

use crate::engine::{PoolEngine, say};
use crate::fs::files::{self, Zfs};
use crate::fs::mounts::Force;
use crate::fs::temp_props::TempProps;
use crate::keeper::Level;

impl PoolEngine {
    /// Whether `name` is mounted, and can be changed without an unmount.
    pub(super) fn can_suspend(&self, name: &str) -> bool {
        self.mounts.active.borrow().get(name).is_some_and(|m| m.front.can_suspend())
    }

    /// Makes a change while `name` is suspended, if it is mounted. Afterwards it is served as it is
    /// then, also if the change failed. If it cannot be opened any more it is unmounted by force.
    pub(super) async fn while_suspended<T>(&self, name: &str, change: impl Future<Output = Result<T>>) -> Result<T> {
        if !self.can_suspend(name) {
            return change.await;
        }
        let found = self.mounts.active.borrow().get(name).map(|m| (m.front.clone(), m.zfs.clone(), m.temp));
        let Some((front, zfs, temp)) = found else { return change.await };
        let suspension = front.suspend().await.map_err(|e| match e.kind() {
            ErrorKind::Busy => Error::new(ErrorKind::Busy, format!("pool or dataset is busy: {e}")),
            _ => e,
        })?;
        let done = match files::close(zfs).await {
            Ok(()) => change.await,
            Err(e) => Err(e),
        };
        match self.open_suspended(name, temp, &suspension.held).await {
            Ok((zfs, kept)) => {
                if let Some(m) = self.mounts.active.borrow_mut().get_mut(name) {
                    zfs.count_on(&m.zfs);
                    m.zfs = zfs.clone();
                }
                (suspension.resume)(zfs, kept).await;
                done
            }
            Err(e) => {
                // Requests fail from now on.
                drop(suspension);
                let e = e.at(format!("'{name}' cannot be opened again, so it is unmounted by force"));
                if let Err(e) = self.unmount_one(name, Force::Full, false).await {
                    say(Level::Err, &e.to_string());
                }
                done.and(Err(e))
            }
        }
    }

    async fn open_suspended(&self, name: &str, temp: TempProps, held: &[Held]) -> Result<(Rc<Zfs>, BTreeSet<u64>)> {
        let ds = self.pool.dsl().find(name)?;
        let (zfs, kept) = files::open_again(&ds, temp, held).await?;
        self.watch_acls(&zfs, &ds).await;
        Ok((zfs, kept))
    }
}
