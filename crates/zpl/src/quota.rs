//! Limits of users, groups and projects (format page 16 section 7).
//!
//! They are compared with the usage as of the last sync, so a txg's changes may exceed them.

use std::cell::{Cell, RefCell};

use base::{Error, ErrorKind, ObjectId, Result, ResultExt};
use dmu::sa::ZnodeAttrs;
use dmu::{Dnode, Objset, zap};
use ondisk::zpl::master_key;

use crate::fs::Zfs;

const KINDS: [(&str, ObjectId); 3] =
    [("user", ObjectId::USERUSED), ("group", ObjectId::GROUPUSED), ("project", ObjectId::PROJECTUSED)];

/// The ZAPs of limits, of bytes and then of objects: users, groups, projects. Each kind may have a
/// limit for ids without an entry of their own (OpenZFS 2.4, format page 17 section 8); 0: none.
/// Files of project 0 belong to no project, so that nothing limits them.
pub(crate) struct Quotas {
    zaps: RefCell<[Option<Dnode>; 6]>,
    defaults: Cell<[u64; 6]>,
}

impl Quotas {
    pub async fn load(os: &Objset, master: &Dnode) -> Result<Quotas> {
        let (mut zaps, mut defaults) = ([const { None }; 6], [0; 6]);
        for (limit, key) in defaults.iter_mut().zip(master_key::DEFAULT_QUOTAS) {
            *limit = zap::lookup_u64(master, key.as_bytes()).await?.unwrap_or(0);
        }
        for (z, key) in zaps.iter_mut().zip(master_key::QUOTAS) {
            if let Some(obj) = zap::lookup_u64(master, key.as_bytes()).await? {
                *z = Some(os.hold(ObjectId(obj)).await.at(|| key)?);
            }
        }
        Ok(Quotas { zaps: RefCell::new(zaps), defaults: Cell::new(defaults) })
    }

    /// A ZAP of limits, by its number in [`master_key::QUOTAS`].
    pub fn zap(&self, index: usize) -> Option<Dnode> {
        self.zaps.borrow()[index].clone()
    }

    /// The limit of ids without one of their own, by its number in [`master_key::DEFAULT_QUOTAS`],
    /// was changed.
    pub fn set_default(&self, index: usize, limit: u64) {
        let mut all = self.defaults.get();
        all[index] = limit;
        self.defaults.set(all);
    }

    /// One was made.
    pub fn set_zap(&self, index: usize, limits: Dnode) {
        self.zaps.borrow_mut()[index] = Some(limits);
    }
}

impl Zfs {
    /// An error of kind `Quota` if an owner of an object with these attributes has used up a limit:
    /// of bytes, or (`objects`) of objects.
    pub(crate) async fn check_quota(&self, a: &ZnodeAttrs, objects: bool) -> Result<()> {
        let offset = if objects { 3 } else { 0 };
        for (i, (kind, used)) in KINDS.into_iter().enumerate() {
            let id = [a.uid, a.gid, a.projid][i];
            if kind == "project" && id == 0 {
                continue;
            }
            let own = match self.quotas.zap(i + offset) {
                Some(limits) => zap::lookup_int(&limits, id).await?,
                None => None,
            };
            let limit = own.unwrap_or(self.quotas.defaults.get()[i + offset]);
            if limit == 0 {
                continue;
            }
            let Some(used) = self.os.accounting(used) else { continue };
            let key = if objects { format!("obj-{id:x}") } else { format!("{id:x}") };
            if zap::lookup_u64(&used, key.as_bytes()).await?.unwrap_or(0) >= limit {
                let what = if objects { "objects" } else { "space" };
                return Err(Error::new(ErrorKind::Quota, format!("the quota of {what} of {kind} {id} is used up")));
            }
        }
        Ok(())
    }
}
