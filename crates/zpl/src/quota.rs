//! Limits of users, groups and projects (format page 16 section 7).
//!
//! They are compared with the usage as of the last sync, so a txg's changes may exceed them.

use std::cell::{Cell, RefCell};

use base::{Error, ErrorKind, ObjectId, Result, ResultExt};
use dmu::sa::ZnodeAttrs;
use dmu::{Dnode, Objset, zap};
use ondisk::zpl::{master_key, pflags};

use crate::fs::Zfs;
use crate::types::StatFs;

const KINDS: [(&str, ObjectId); 3] =
    [("user", ObjectId::USERUSED), ("group", ObjectId::GROUPUSED), ("project", ObjectId::PROJECTUSED)];

/// Places in [`KINDS`].
pub(crate) const USER: usize = 0;
pub(crate) const GROUP: usize = 1;
pub(crate) const PROJECT: usize = 2;

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
        self.spawn_count();
        for (kind, id) in [(USER, a.uid), (GROUP, a.gid), (PROJECT, a.projid)] {
            self.check_quota_of(kind, id, objects).await?;
        }
        Ok(())
    }

    /// The same for a new owner, which gets the space and the objects.
    pub(crate) async fn check_new_owner(&self, kind: usize, id: u64) -> Result<()> {
        self.check_quota_of(kind, id, true).await?;
        self.check_quota_of(kind, id, false).await
    }

    async fn check_quota_of(&self, kind: usize, id: u64, objects: bool) -> Result<()> {
        let (name, what) = (KINDS[kind].0, if objects { "objects" } else { "space" });
        match self.quota_of(kind, id, objects).await? {
            Some((limit, used)) if used >= limit => {
                Err(Error::new(ErrorKind::Quota, format!("the quota of {what} of {name} {id} is used up")))
            }
            _ => Ok(()),
        }
    }

    /// The limit of an owner, and what it has used, if there is a limit.
    async fn quota_of(&self, kind: usize, id: u64, objects: bool) -> Result<Option<(u64, u64)>> {
        // What is replayed had room.
        if kind == PROJECT && id == 0 || self.replaying.get().is_some() {
            return Ok(None);
        }
        let index = kind + if objects { 3 } else { 0 };
        let own = match self.quotas.zap(index) {
            Some(limits) => zap::lookup_int(&limits, id).await?,
            None => None,
        };
        let limit = own.unwrap_or(self.quotas.defaults.get()[index]);
        if limit == 0 {
            return Ok(None);
        }
        let Some(used) = self.os.accounting(KINDS[kind].1) else { return Ok(None) };
        let key = if objects { format!("obj-{id:x}") } else { format!("{id:x}") };
        Ok(Some((limit, zap::lookup_u64(&used, key.as_bytes()).await?.unwrap_or(0))))
    }

    /// Space and objects of the file system, or of the project whose limits a directory hands down.
    pub async fn statfs_at(&self, obj: ObjectId) -> Result<StatFs> {
        let mut stat = self.statfs();
        if !self.projects.get() {
            return Ok(stat);
        }
        let a = self.attrs(&self.node(obj).await?).await?;
        if a.flags & pflags::PROJINHERIT == 0 {
            return Ok(stat);
        }
        if let Some((limit, used)) = self.quota_of(PROJECT, a.projid, false).await? {
            stat.blocks = limit / u64::from(stat.frsize);
            stat.free = limit.saturating_sub(used) / u64::from(stat.frsize);
            stat.avail = stat.free;
        }
        if let Some((limit, used)) = self.quota_of(PROJECT, a.projid, true).await? {
            stat.files = limit;
            stat.ffree = limit.saturating_sub(used);
        }
        Ok(stat)
    }
}
