//! What users, groups and projects use of a file system or snapshot, and the limits that they have
//! (format pages 08 section 7 and 16 section 7): reading both, and setting limits.
//!
//! Usage is that of the last sync. A limit is an entry in a ZAP that the master node names.

use std::collections::BTreeMap;

use base::{Error, ErrorKind, ObjectId, Result};
use dmu::{Dnode, Objset, zap};
use ondisk::object_type::ObjectType;
use ondisk::objset::{OBJSET_PROJECTQUOTA_COMPLETE, OBJSET_USERACCOUNTING_COMPLETE, OBJSET_USEROBJACCOUNTING_COMPLETE};
use ondisk::zpl::{MASTER_NODE_OBJ, master_key};

use crate::fs::Zfs;

/// What the name of an entry begins with that counts objects.
const OBJECTS: &str = "obj-";

/// By what space and objects are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OwnerKind {
    /// The owner of a file.
    User,
    /// Its group.
    Group,
    /// Its project.
    Project,
}

impl OwnerKind {
    /// All of them, in the order of their accounting objects.
    pub const ALL: [OwnerKind; 3] = [OwnerKind::User, OwnerKind::Group, OwnerKind::Project];

    /// The accounting object.
    fn used(self) -> ObjectId {
        [ObjectId::USERUSED, ObjectId::GROUPUSED, ObjectId::PROJECTUSED][self as usize]
    }

    /// The number of its limits in [`master_key::QUOTAS`].
    fn limits(self, objects: bool) -> usize {
        self as usize + if objects { 3 } else { 0 }
    }

    /// Whether usage is counted in this object set: of space, and of objects.
    fn counted(self, os: &Objset) -> (bool, bool) {
        let has = |flag: u64| os.flags() & flag != 0;
        let of_kind = self != OwnerKind::Project || has(OBJSET_PROJECTQUOTA_COMPLETE);
        (of_kind && has(OBJSET_USERACCOUNTING_COMPLETE), of_kind && has(OBJSET_USEROBJACCOUNTING_COMPLETE))
    }
}

/// The task that counts by owner what is there already.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum Count {
    /// There is none.
    #[default]
    Idle,
    /// It runs.
    Running,
    /// It ended with an error.
    Failed,
}

/// What one owner uses and may use; no limit is 0.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct OwnerUse {
    /// The user, group or project.
    pub id: u64,
    /// Bytes.
    pub used: u64,
    /// The limit of bytes.
    pub quota: u64,
    /// Objects; none where they are not counted.
    pub objused: Option<u64>,
    /// The limit of objects.
    pub objquota: Option<u64>,
}

/// The ZAP of limits.
async fn limits(os: &Objset, kind: OwnerKind, objects: bool) -> Result<Option<Dnode>> {
    let master = os.hold(ObjectId(MASTER_NODE_OBJ)).await?;
    match zap::lookup_u64(&master, master_key::QUOTAS[kind.limits(objects)].as_bytes()).await? {
        Some(obj) => Ok(Some(os.hold(ObjectId(obj)).await?)),
        None => Ok(None),
    }
}

fn not_counted(kind: OwnerKind) -> Error {
    let whose = match kind {
        OwnerKind::User => "users",
        OwnerKind::Group => "groups",
        OwnerKind::Project => "projects",
    };
    Error::unsupported(format!("the space of {whose} is not counted in this file system"))
}

/// All owners of a kind that use something or have a limit, in the order of their numbers.
/// `Unsupported` if this file system does not count them.
pub async fn owner_uses(os: &Objset, kind: OwnerKind) -> Result<Vec<OwnerUse>> {
    let (space, objects) = kind.counted(os);
    if !space {
        return Err(not_counted(kind));
    }
    let mut all: BTreeMap<u64, OwnerUse> = BTreeMap::new();
    let zero = objects.then_some(0);
    let fresh = |id: u64| OwnerUse { id, objused: zero, objquota: zero, ..OwnerUse::default() };
    if let Some(used) = os.accounting(kind.used()) {
        for e in zap::list(&used).await? {
            let value = e.value.as_u64().unwrap_or(0);
            match e.name.strip_prefix(OBJECTS.as_bytes()) {
                Some(id) => {
                    if let Some(id) = zap::parse_int_key(id).filter(|_| objects) {
                        all.entry(id).or_insert_with(|| fresh(id)).objused = Some(value);
                    }
                }
                None => {
                    if let Some(id) = zap::parse_int_key(&e.name) {
                        all.entry(id).or_insert_with(|| fresh(id)).used = value;
                    }
                }
            }
        }
    }
    for of_objects in [false, true] {
        // The limit of those that have none of their own.
        let usual = default_limit(os, kind, of_objects).await?;
        for o in all.values_mut() {
            match of_objects {
                false => o.quota = usual,
                true => o.objquota = o.objquota.map(|_| usual),
            }
        }
        let Some(limits) = limits(os, kind, of_objects).await? else { continue };
        for e in zap::list(&limits).await? {
            let (Some(id), Some(value)) = (zap::parse_int_key(&e.name), e.value.as_u64()) else { continue };
            match of_objects {
                false => all.entry(id).or_insert_with(|| fresh(id)).quota = value,
                true if objects => all.entry(id).or_insert_with(|| fresh(id)).objquota = Some(value),
                true => {}
            }
        }
    }
    Ok(all.into_values().collect())
}

/// The limit of owners that have none of their own (OpenZFS 2.4); 0: none.
async fn default_limit(os: &Objset, kind: OwnerKind, objects: bool) -> Result<u64> {
    let master = os.hold(ObjectId(MASTER_NODE_OBJ)).await?;
    let key = master_key::DEFAULT_QUOTAS[kind.limits(objects)];
    Ok(zap::lookup_u64(&master, key.as_bytes()).await?.unwrap_or(0))
}

/// What one owner uses, and the limits of its own, not those that hold for all others: so does
/// OpenZFS. `Unsupported` if this file system does not count it.
pub async fn owner_use(os: &Objset, kind: OwnerKind, id: u64) -> Result<OwnerUse> {
    let (space, objects) = kind.counted(os);
    if !space {
        return Err(not_counted(kind));
    }
    let mut out = OwnerUse { id, ..OwnerUse::default() };
    if let Some(used) = os.accounting(kind.used()) {
        out.used = zap::lookup_int(&used, id).await?.unwrap_or(0);
        if objects {
            out.objused = zap::lookup_u64(&used, format!("{OBJECTS}{id:x}").as_bytes()).await?;
        }
    }
    if objects {
        out.objused = out.objused.or(Some(0));
        out.objquota = Some(limit_of(os, kind, true, id).await?);
    }
    out.quota = limit_of(os, kind, false, id).await?;
    Ok(out)
}

async fn limit_of(os: &Objset, kind: OwnerKind, objects: bool, id: u64) -> Result<u64> {
    match limits(os, kind, objects).await? {
        Some(limits) => Ok(zap::lookup_int(&limits, id).await?.unwrap_or(0)),
        None => Ok(0),
    }
}

/// Whether a limit of that owner can be set: `Unsupported` if this file system does not count such
/// owners, `Invalid` if there can be none of that number.
pub fn check_limit(os: &Objset, kind: OwnerKind, id: u64) -> Result<()> {
    if !kind.counted(os).0 {
        return Err(not_counted(kind));
    }
    if kind == OwnerKind::Project && id >= u64::from(u32::MAX) {
        return Err(Error::invalid(format!("{id} is not the number of a project")));
    }
    Ok(())
}

impl Zfs {
    /// Counts by owner what the pool could count and this file system does not yet, in the
    /// background: it was made before the pool had the feature, or was received raw.
    pub(crate) fn spawn_count(&self) {
        let idle = self.counting.get() == Count::Idle && !self.opts().readonly;
        if !idle || self.replaying.get().is_some() || self.os.uncounted() == 0 {
            return;
        }
        if let Some(fs) = self.rc() {
            self.counting.set(Count::Running);
            self.rt.spawn("count owners", async move {
                let counted = fs.count().await;
                // After an error the next mount tries it again.
                fs.counting.set(if counted.is_ok() { Count::Idle } else { Count::Failed });
                fs.counted.notify_all();
            });
        }
    }

    /// As [`Zfs::spawn_count`], and waits for it.
    pub(crate) async fn count_owners(&self) -> Result<()> {
        loop {
            let done = self.counted.notified();
            if self.counting.get() != Count::Running {
                break;
            }
            done.await;
        }
        self.count().await
    }

    /// Whether files may belong to projects, which are counted first if they are not yet.
    pub(crate) async fn has_projects(&self) -> Result<bool> {
        if !self.projects.get() && self.os.uncounted() & OBJSET_PROJECTQUOTA_COMPLETE != 0 {
            self.count_owners().await?;
        }
        Ok(self.projects.get())
    }

    async fn count(&self) -> Result<()> {
        self.os.count_owners(async || self.enter_source()).await?;
        self.projects.set(self.sa.get().is_some() && self.os.flags() & OBJSET_PROJECTQUOTA_COMPLETE != 0);
        Ok(())
    }

    /// Sets what a user, group or project may use, in bytes or (`objects`) in objects; 0: no limit
    /// of its own. Callers set one limit of a file system after the other. Also of a file system
    /// that is mounted read-only. `Unsupported` if this file system does not count that.
    pub async fn set_quota(&self, kind: OwnerKind, objects: bool, id: u64, limit: u64) -> Result<()> {
        check_limit(&self.os, kind, id)?;
        if !self.os.is_writable() {
            return Err(Error::new(ErrorKind::ReadOnly, format!("file system '{}' is read-only", self.name())));
        }
        let _pass = self.enter_source()?;
        let (master, index) = (self.os.hold(ObjectId(MASTER_NODE_OBJ)).await?, kind.limits(objects));
        let known = self.quotas.zap(index);
        if known.is_none() && limit == 0 {
            return Ok(());
        }
        let plan = self.plan().reserved();
        let plan = match &known {
            Some(limits) => plan.zap(limits),
            None => plan.create(1).zap(&master),
        };
        let tx = plan.assign().await?;
        let limits = match known {
            Some(limits) => limits,
            None => {
                let made = zap::create(&self.os, ObjectType::USERGROUP_QUOTA, 0, &tx).await?;
                zap::add_u64(&master, master_key::QUOTAS[index].as_bytes(), made.object().0, &tx).await?;
                self.quotas.set_zap(index, made.clone());
                made
            }
        };
        match limit {
            0 => match zap::remove_int(&limits, id, &tx).await {
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                done => done?,
            },
            _ => zap::update_int(&limits, id, limit, &tx).await?,
        }
        self.finish(tx);
        Ok(())
    }

    /// Sets what owners may use that have no limit of their own, as [`Zfs::set_quota`] does; 0: no
    /// limit.
    pub async fn set_default_quota(&self, kind: OwnerKind, objects: bool, limit: u64) -> Result<()> {
        if !self.os.is_writable() {
            return Err(Error::new(ErrorKind::ReadOnly, format!("file system '{}' is read-only", self.name())));
        }
        let _pass = self.enter_source()?;
        let (master, index) = (self.os.hold(ObjectId(MASTER_NODE_OBJ)).await?, kind.limits(objects));
        let key = master_key::DEFAULT_QUOTAS[index].as_bytes();
        let tx = self.plan().reserved().zap(&master).assign().await?;
        match limit {
            0 => match zap::remove(&master, key, &tx).await {
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                done => done?,
            },
            _ => zap::update_u64(&master, key, limit, &tx).await?,
        }
        self.quotas.set_default(index, limit);
        self.finish(tx);
        Ok(())
    }
}
