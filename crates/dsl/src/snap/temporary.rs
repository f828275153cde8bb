//! Temporary snapshots: for a command that needs a file system to stand still while it works.
//!
//! Such a snapshot is made with a hold and marked for deferred destruction, all in one txg, so it
//! goes when the hold is released. The hold is *temporary* (format page 15 section 6): the pool
//! lists it, and whoever imports the pool after a crash releases it.

use std::rc::Rc;

use base::{ErrorKind, ObjectId, Result};
use dmu::{Tx, zap};
use ondisk::dsl::DS_FLAG_DEFER_DESTROY;
use ondisk::object_type::ObjectType;
use rt::LocalBoxFuture;

use crate::dataset::Dataset;
use crate::pool::DslPool;
use crate::space::SpaceCheck;

/// The list of temporary holds in the directory of the MOS.
const LIST: &[u8] = b"tmp_userrefs";

/// The name of a hold in the list.
fn list_key(snap: ObjectId, tag: &str) -> String {
    format!("{:x}-{tag}", snap.0)
}

/// The snapshot and the tag of a name in the list.
fn parse_list_key(key: &str) -> Option<(ObjectId, &str)> {
    let (object, tag) = key.split_once('-')?;
    Some((ObjectId(u64::from_str_radix(object, 16).ok()?), tag))
}

impl DslPool {
    /// Makes the snapshot `fs@snap`, which goes when its hold `tag` is released
    /// ([`DslPool::release`]), or after a crash with the next import.
    pub async fn snapshot_temporary(self: &Rc<Self>, fs: &str, snap: &str, tag: &str) -> Result<()> {
        let (fs, snap, tag) = (fs.to_string(), snap.to_string(), tag.to_string());
        self.sync_task_again(move |pool, tx| -> LocalBoxFuture<'static, Result<()>> {
            let (fs, snap, tag) = (fs.clone(), snap.clone(), tag.clone());
            Box::pin(async move {
                let head = pool.find(&fs)?;
                pool.check_snapshot(&head, &snap, &tx).await?;
                pool.check_space(SpaceCheck::Normal, 6)?;
                let made = async {
                    let ds = pool.make_snapshot(&head, &snap, &[], &tx).await?;
                    pool.hold_temporarily(&ds, &tag, &tx).await?;
                    ds.change(|p| p.flags |= DS_FLAG_DEFER_DESTROY);
                    pool.core().log_internal_ds("defer_destroy", (ds.name(), ds.object), String::new(), &tx);
                    Ok(())
                };
                pool.fail_txg_on_error(made.await)
            })
        })
        .await
    }

    async fn hold_temporarily(&self, snap: &Dataset, tag: &str, tx: &Tx) -> Result<()> {
        let now = self.ctx().rt().wall_clock().secs.max(0) as u64;
        let dn = zap::create(self.mos(), ObjectType::USERREFS, 0, tx).await?;
        snap.change(|p| p.userrefs_obj = dn.object().0);
        zap::add_u64(&dn, tag.as_bytes(), now, tx).await?;
        let list = match zap::lookup_u64(self.directory(), LIST).await? {
            Some(object) => self.mos().hold(ObjectId(object)).await?,
            None => {
                let dn = zap::create(self.mos(), ObjectType::USERREFS, 0, tx).await?;
                zap::add_u64(self.directory(), LIST, dn.object().0, tx).await?;
                dn
            }
        };
        zap::add_u64(&list, list_key(snap.object, tag).as_bytes(), now, tx).await?;
        self.core().log_internal_ds("hold", (snap.name(), snap.object), format!("tag={tag} temp=1 refs=1"), tx);
        Ok(())
    }

    /// Takes a released hold off the list, if it is there.
    pub(crate) async fn forget_temporary(&self, snap: ObjectId, tag: &str, tx: &Tx) -> Result<()> {
        let Some(list) = zap::lookup_u64(self.directory(), LIST).await? else { return Ok(()) };
        let dn = self.mos().hold(ObjectId(list)).await?;
        match zap::remove(&dn, list_key(snap, tag).as_bytes(), tx).await {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Releases the temporary holds that a crash left, for the import of a pool. What cannot be
    /// released stays.
    pub async fn release_temporary(self: &Rc<Self>) -> Result<()> {
        let Some(list) = zap::lookup_u64(self.directory(), LIST).await? else { return Ok(()) };
        for entry in zap::list(&self.mos().hold(ObjectId(list)).await?).await? {
            let key = String::from_utf8_lossy(&entry.name).into_owned();
            let Some((object, tag)) = parse_list_key(&key) else { continue };
            let Ok(snap) = self.hold_dataset(object).await else { continue };
            if let Some(head) = snap.dir().head().filter(|_| snap.is_snapshot()) {
                let name = self.name_of_snapshot(&head, object).await?;
                snap.set_snapname(&name);
                let _ = self.release(tag, vec![snap.name()], false).await;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_the_list_have_the_object_and_the_tag() {
        assert_eq!(list_key(ObjectId(0x1a2), ".send-7-1"), "1a2-.send-7-1");
        assert_eq!(parse_list_key("1a2-.send-7-1"), Some((ObjectId(0x1a2), ".send-7-1")));
        for key in ["", "1a2", "x-tag", "-tag"] {
            assert_eq!(parse_list_key(key), None, "{key}");
        }
    }
}
