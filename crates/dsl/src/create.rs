//! Making directories and datasets: the skeleton of a new pool and new file systems (format pages
//! 05 sections 3 and 7, 10 section 2).
//!
//! In the format every head is a clone of a snapshot: ordinary file systems are clones of the empty
//! snapshot `$ORIGIN@$ORIGIN`, which pools have since version 11. A new head gets a new object set
//! that its initialiser fills in the same txg.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result, TXG_INITIAL};
use dmu::{FeatureUse, ObjSpec, Objset, Tx, zap};
use ondisk::dsl::{
    DD_FLAG_USED_BREAKDOWN, DS_FLAG_CI_DATASET, DS_FLAG_INCONSISTENT, DS_FLAG_UNIQUE_ACCURATE, DslDatasetPhys,
    DslDirPhys,
};
use ondisk::feature::FeatureId;
use ondisk::object_type::ObjectType;
use ondisk::objset::ObjsetType;
use ondisk::version;
use rt::LocalBoxFuture;

use crate::crypto::NewCrypt;
use crate::dataset::Dataset;
use crate::dir::Dir;
use crate::free::deadlist::Deadlist;
use crate::pool::{DslPool, DslSetup, NAME_MAX};
use crate::props::{self, PropKind, PropValue};
use crate::space::SpaceCheck;

/// The user who makes datasets if nobody says who does.
pub(crate) const ROOT: u32 = 0;

/// Fills a new object set, in syncing context.
pub type Init = Box<dyn FnOnce(Objset, Rc<Tx>) -> LocalBoxFuture<'static, Result<()>>>;

/// A file system or volume that does not exist yet.
pub struct NewHead {
    /// A file system or a volume.
    pub os_type: ObjsetType,
    /// Its properties, which can be set.
    pub props: Vec<(String, PropValue)>,
    /// The choice of encryption; by default that of the parent.
    pub crypt: NewCrypt,
    /// The user who makes it, who gets what is granted to creators.
    pub creator: u32,
    /// Fills it.
    pub init: Init,
}

impl NewHead {
    /// A file system without properties of its own, encrypted if its parent is.
    pub fn plain_fs(creator: u32, init: Init) -> NewHead {
        NewHead { os_type: ObjsetType::Zfs, props: Vec::new(), crypt: NewCrypt::default(), creator, init }
    }
}

/// Fails for a name of a dataset or snapshot with too many bytes.
pub(crate) fn check_len(name: &str) -> Result<()> {
    if name.len() <= NAME_MAX {
        return Ok(());
    }
    let why = format!("name is too long: '{name}' has more than {NAME_MAX} bytes");
    Err(Error::new(ErrorKind::NameTooLong, why))
}

/// Checks a full dataset name: parts of letters, digits and `-_.: `, at most 255 bytes.
pub fn check_name(name: &str) -> Result<()> {
    check_len(name)?;
    for part in name.split('/') {
        if part.is_empty() {
            return Err(Error::invalid(empty_part(name)));
        }
        if let Some(c) = part.chars().find(|c| !(c.is_ascii_alphanumeric() || "-_.: ".contains(*c))) {
            return Err(Error::invalid(match c {
                '@' => format!("snapshot delimiter '@' is not expected here, in '{name}'"),
                '#' => format!("bookmark delimiter '#' is not expected here, in '{name}'"),
                _ => format!("invalid character '{c}' in name '{name}'"),
            }));
        }
        match part {
            "." => return Err(Error::invalid(format!("self reference, '.' is found in name '{name}'"))),
            ".." => return Err(Error::invalid(format!("parent reference, '..' is found in name '{name}'"))),
            _ => {}
        }
    }
    Ok(())
}

/// Fails unless the parent has the space that a new dataset reserves: a reservation includes the
/// refreservation.
pub(crate) fn check_reservation(parent: &Dir, props: &[(String, PropValue)]) -> Result<()> {
    let of = |name: &str| props.iter().find(|(n, _)| n == name).map_or(0, |(_, v)| v.num());
    let (reserved, available) = (of("reservation").max(of("refreservation")), parent.available());
    if reserved <= available {
        return Ok(());
    }
    let why = format!("out of space: {reserved} bytes cannot be reserved, {available} are available");
    Err(Error::new(ErrorKind::NoSpace, why))
}

/// Describes the place of the empty part of a name.
fn empty_part(name: &str) -> String {
    match name {
        n if n.starts_with('/') => format!("leading slash in name '{n}'"),
        n if n.ends_with('/') => format!("trailing slash in name '{n}'"),
        n => format!("empty component in name '{n}'"),
    }
}

impl DslPool {
    /// Makes the DSL of a new pool: the hidden directories and the root file system (syncing
    /// context of the first txg), which `crypt` may encrypt.
    pub async fn create(
        setup: DslSetup,
        pool_name: &str,
        props: Vec<(String, PropValue)>,
        crypt: NewCrypt,
        init: Init,
        tx: Rc<Tx>,
    ) -> Result<Rc<DslPool>> {
        let pool = DslPool::bare(setup);
        let crypt = pool.plan_crypt(pool_name, None, &pool.prepare_crypt(crypt).await?)?;
        let root = pool.make_dir(None, pool_name, &tx).await?;
        if let Some(crypt) = crypt {
            pool.make_crypt(&root, crypt, &tx).await?;
        }
        zap::add_u64(pool.directory(), b"root_dataset", root.object.0, &tx).await?;
        pool.set_root(root.clone());
        pool.make_dir(Some(&root), "$MOS", &tx).await?;
        if pool.version() >= version::DEADLISTS {
            pool.make_free_list(&root, &tx).await?;
        }
        if pool.version() >= version::ORIGIN {
            pool.make_origin(&root, &tx).await?;
        }
        let origin = pool.hold_origin().await?;
        let head = pool.make_head(&root, origin.as_ref(), &tx).await?;
        pool.fill_head(ObjsetType::Zfs, &head, props, init, tx).await?;
        Ok(pool)
    }

    /// The list of blocks to be freed in the background, and the directory of their space.
    pub(crate) async fn make_free_list(&self, root: &Rc<Dir>, tx: &Tx) -> Result<()> {
        self.make_dir(Some(root), "$FREE", tx).await?;
        let free = dmu::bpobj::create(self.mos(), ondisk::bpobj::BPOBJ_BLKSZ, tx).await?;
        zap::add_u64(self.directory(), b"free_bpobj", free.0, tx).await?;
        self.set_free_list(free);
        Ok(())
    }

    // The fields are those of a record inside it.
    #[expect(clippy::field_reassign_with_default)]
    pub(crate) async fn make_dir(&self, parent: Option<&Rc<Dir>>, name: &str, tx: &Tx) -> Result<Rc<Dir>> {
        let mos = self.mos();
        let spec = ObjSpec::new(ObjectType::DSL_DIR, 512).bonus(ObjectType::DSL_DIR, ondisk::dsl::DSL_DIR_SIZE as u16);
        let dn = mos.alloc(spec, tx).await?;
        let props = zap::create(mos, ObjectType::DSL_PROPS, 0, tx).await?;
        let children = zap::create(mos, ObjectType::DSL_DIR_CHILD_MAP, 0, tx).await?;
        let mut phys = DslDirPhys::default();
        phys.creation_time = self.ctx().rt().wall_clock().secs.max(0) as u64;
        phys.parent_obj = parent.map_or(0, |p| p.object.0);
        phys.props_zapobj = props.object().0;
        phys.child_dir_zapobj = children.object().0;
        if self.version() >= version::BREAKDOWN {
            phys.flags = DD_FLAG_USED_BREAKDOWN;
        }
        dn.set_bonus(&phys.to_bytes(), tx)?;
        if let Some(parent) = parent {
            let map = mos.hold(ObjectId(parent.phys().child_dir_zapobj)).await?;
            zap::add_u64(&map, name.as_bytes(), dn.object().0, tx).await?;
            self.count_dir(name, parent, 1, tx).await?;
        }
        let dir = self.new_dir(dn.object(), name.to_string(), parent, phys, Default::default());
        self.count_from_now(&dir, tx).await?;
        Ok(dir)
    }

    // As above.
    #[expect(clippy::field_reassign_with_default)]
    pub(crate) fn new_dataset_phys(&self, dir: &Dir, tx: &Tx) -> DslDatasetPhys {
        let rt = self.ctx().rt();
        let mut phys = DslDatasetPhys::default();
        phys.dir_obj = dir.object.0;
        phys.creation_time = rt.wall_clock().secs.max(0) as u64;
        phys.creation_txg = if tx.txg() == TXG_INITIAL { 1 } else { tx.txg().0 };
        phys.fsid_guid = (rt.new_guid().0 >> 8).max(1);
        phys.guid = rt.new_guid().0;
        if self.version() >= version::UNIQUE {
            phys.flags = DS_FLAG_UNIQUE_ACCURATE;
        }
        phys
    }

    pub(crate) async fn write_new_dataset(&self, phys: &DslDatasetPhys, tx: &Tx) -> Result<ObjectId> {
        let spec = ObjSpec::new(ObjectType::DSL_DATASET, 512)
            .bonus(ObjectType::DSL_DATASET, ondisk::dsl::DSL_DATASET_SIZE as u16);
        let dn = self.mos().alloc(spec, tx).await?;
        dn.set_bonus(&phys.to_bytes(), tx)?;
        Ok(dn.object())
    }

    /// `$ORIGIN` and its snapshot, both without an object set.
    pub(crate) async fn make_origin(&self, root: &Rc<Dir>, tx: &Tx) -> Result<()> {
        let mos = self.mos();
        let dir = self.make_dir(Some(root), "$ORIGIN", tx).await?;
        let snapnames = zap::create(mos, ObjectType::DSL_DS_SNAP_MAP, 2, tx).await?;
        let mut snap = self.new_dataset_phys(&dir, tx);
        // Older than any block, also if an upgrade makes it.
        snap.creation_txg = 1;
        snap.num_children = 1;
        snap.deadlist_obj = Deadlist::create(self, [], tx).await?.object.0;
        snap.next_clones_obj = zap::create(mos, ObjectType::NEXT_CLONES, 0, tx).await?.object().0;
        let snap_obj = self.write_new_dataset(&snap, tx).await?;
        let mut head = self.new_dataset_phys(&dir, tx);
        head.prev_snap_obj = snap_obj.0;
        head.prev_snap_txg = snap.creation_txg;
        head.snapnames_zapobj = snapnames.object().0;
        head.deadlist_obj = Deadlist::create(self, [0], tx).await?.object.0;
        let head_obj = self.write_new_dataset(&head, tx).await?;
        snap.next_snap_obj = head_obj.0;
        mos.hold(snap_obj).await?.set_bonus(&snap.to_bytes(), tx)?;
        zap::add_u64(&snapnames, b"$ORIGIN", snap_obj.0, tx).await?;
        let clones = match self.version() >= version::DEADLISTS {
            true => zap::create(mos, ObjectType::DSL_CLONES, 0, tx).await?.object().0,
            false => 0,
        };
        dir.change(|p| {
            p.head_dataset_obj = head_obj.0;
            p.clones = clones;
        });
        let ds = self.new_dataset(head_obj, head, Some(Default::default()), dir.clone(), false);
        dir.set_head(Some(ds));
        self.set_origin_snap(snap_obj);
        Ok(())
    }

    /// Makes a head in `dir` from the snapshot `origin`: with its content and features, or, from
    /// `$ORIGIN`, without an object set yet. Before pool version 11 there is no `$ORIGIN`: none.
    pub(crate) async fn make_head(&self, dir: &Rc<Dir>, origin: Option<&Rc<Dataset>>, tx: &Tx) -> Result<Rc<Dataset>> {
        let mos = self.mos();
        let Some(origin) = origin else {
            let mut phys = self.new_dataset_phys(dir, tx);
            phys.snapnames_zapobj = zap::create(mos, ObjectType::DSL_DS_SNAP_MAP, 2, tx).await?.object().0;
            phys.deadlist_obj = Deadlist::create(self, [0], tx).await?.object.0;
            let object = self.write_new_dataset(&phys, tx).await?;
            dir.change(|p| p.head_dataset_obj = object.0);
            let ds = self.new_dataset(object, phys, Some(BTreeMap::new()), dir.clone(), true);
            dir.set_head(Some(ds.clone()));
            return Ok(ds);
        };
        let from = origin.phys();
        let children = from.num_children.checked_add(1).ok_or_else(|| {
            Error::corrupt(format!("snapshot '{}' has a count of clones that cannot grow", origin.name()))
        })?;
        let mut phys = self.new_dataset_phys(dir, tx);
        phys.prev_snap_obj = origin.object.0;
        phys.prev_snap_txg = from.creation_txg;
        let origin_dir = origin.dir();
        let is_clone = origin.object != self.origin_snap();
        phys.snapnames_zapobj = zap::create(mos, ObjectType::DSL_DS_SNAP_MAP, 2, tx).await?.object().0;
        let mut features = BTreeMap::new();
        let mut keys = vec![0];
        if is_clone {
            phys.bp = from.bp;
            phys.referenced_bytes = from.referenced_bytes;
            phys.compressed_bytes = from.compressed_bytes;
            phys.uncompressed_bytes = from.uncompressed_bytes;
            phys.flags |= from.flags & (DS_FLAG_INCONSISTENT | DS_FLAG_CI_DATASET);
            features = origin.load_features().await?;
            keys = self.keys_below(&origin_dir, origin).await?;
        }
        phys.deadlist_obj = Deadlist::create(self, keys, tx).await?.object.0;
        let object = self.write_new_dataset(&phys, tx).await?;
        origin.change(|p| p.num_children = children);
        if self.version() >= version::ORIGIN {
            self.add_next_clone(origin, object, tx).await?;
        }
        self.add_clone(&origin_dir, object, tx).await?;
        dir.change(|p| {
            p.head_dataset_obj = object.0;
            p.origin_obj = origin.object.0;
        });
        dir.set_origin_txg(if is_clone { from.creation_txg } else { 0 });
        self.copy_features(object, &features, tx).await?;
        let ds = self.new_dataset(object, phys, Some(features), dir.clone(), true);
        dir.set_head(Some(ds.clone()));
        Ok(ds)
    }

    /// Adds a dataset to the list of those that follow a snapshot as clones; makes the list if
    /// there is none.
    pub(crate) async fn add_next_clone(&self, snap: &Dataset, object: ObjectId, tx: &Tx) -> Result<()> {
        let mos = self.mos();
        if snap.phys().next_clones_obj == 0 {
            let clones = zap::create(mos, ObjectType::NEXT_CLONES, 0, tx).await?.object().0;
            snap.change(|p| p.next_clones_obj = clones);
        }
        zap::add_int(&mos.hold(ObjectId(snap.phys().next_clones_obj)).await?, object.0, object.0, tx).await
    }

    /// Adds a head to the list of clones of a directory's snapshots; makes the list if there is
    /// none. Pools before version 26 have no such lists.
    pub(crate) async fn add_clone(&self, origin_dir: &Rc<Dir>, head: ObjectId, tx: &Tx) -> Result<()> {
        if self.version() < version::DEADLISTS {
            return Ok(());
        }
        if origin_dir.phys().clones == 0 {
            let clones = zap::create(self.mos(), ObjectType::DSL_CLONES, 0, tx).await?.object().0;
            origin_dir.change(|p| p.clones = clones);
        }
        zap::add_int(&self.mos().hold(ObjectId(origin_dir.phys().clones)).await?, head.0, head.0, tx).await
    }

    /// Copies the features of a dataset to a new one made from it.
    pub(crate) async fn copy_features(
        &self,
        object: ObjectId,
        features: &BTreeMap<String, zap::ZapValue>,
        tx: &Tx,
    ) -> Result<()> {
        if features.is_empty() {
            return Ok(());
        }
        let dn = self.zapify(object, tx).await?;
        for (guid, value) in features {
            zap::add(&dn, guid.as_bytes(), value, tx).await?;
            if let Some(id) = FeatureId::by_guid(guid) {
                self.features().add(id, 1, tx).await?;
            }
        }
        Ok(())
    }

    /// Sets the properties and makes the object set of a new head.
    async fn fill_head(
        &self,
        os_type: ObjsetType,
        head: &Rc<Dataset>,
        props: Vec<(String, PropValue)>,
        init: Init,
        tx: Rc<Tx>,
    ) -> Result<()> {
        let dir = head.dir();
        for (name, value) in &props {
            self.write_prop(&dir, name, Some(value), &tx).await?;
        }
        let os = self.make_objset(head, os_type, &tx).await?;
        init(os, tx).await
    }

    /// Makes the empty object set of a new head (syncing context).
    pub(crate) async fn make_objset(&self, head: &Rc<Dataset>, os_type: ObjsetType, tx: &Tx) -> Result<Objset> {
        let account = head.account().clone();
        let mut flags = 0;
        // Only file systems account for owners.
        if os_type == ObjsetType::Zfs && self.version() >= version::USERSPACE {
            flags = ondisk::objset::OBJSET_USERACCOUNTING_COMPLETE;
            for (flag, id) in ondisk::objset::ACCOUNTING_FEATURES {
                if self.features().is_enabled(id) {
                    flags |= flag;
                    account.activate(id.get().guid, tx.txg());
                }
            }
        }
        let ctx = match head.dir().crypt().and_then(|c| c.data_key()) {
            Some(key) => {
                account.activate(FeatureId::Encryption.get().guid, tx.txg());
                self.ctx().with_key(key)
            }
            None => self.ctx().clone(),
        };
        let props = head.objset_props();
        let os = Objset::create(ctx, head.object.0, os_type, props, head.hooks(), tx.txg());
        os.set_flags(flags, tx);
        head.set_objset(Some(os.clone()));
        self.activate_features(head, tx).await?;
        Ok(os)
    }

    /// Creates the file system `name` with these properties; `init` fills it. The parent must
    /// exist. It is encrypted if its parent is.
    pub async fn create_fs(
        self: &Rc<Self>,
        name: &str,
        props: Vec<(String, PropValue)>,
        init: Init,
    ) -> Result<Rc<Dataset>> {
        self.create_fs_encrypted(name, props, NewCrypt::default(), init).await
    }

    /// As [`DslPool::create_fs`], with the choice of encryption.
    pub async fn create_fs_encrypted(
        self: &Rc<Self>,
        name: &str,
        props: Vec<(String, PropValue)>,
        crypt: NewCrypt,
        init: Init,
    ) -> Result<Rc<Dataset>> {
        self.create_dataset(name, NewHead { props, crypt, ..NewHead::plain_fs(ROOT, init) }).await
    }

    /// Creates a file system or volume. The parent must exist.
    pub async fn create_dataset(self: &Rc<Self>, name: &str, new: NewHead) -> Result<Rc<Dataset>> {
        let NewHead { os_type, props, crypt, creator, init } = new;
        self.check_new_name(name)?;
        for (prop, _) in &props {
            let known = props::find(prop).is_some_and(|p| p.settable() || p.kind == PropKind::Once);
            let inside = matches!(prop.as_str(), "volsize" | "volblocksize");
            if inside || !known && !props::is_user_prop(prop) {
                return Err(Error::invalid(format!("'{prop}' is not a property that can be set")));
            }
        }
        let name = name.to_string();
        let crypt = Rc::new(self.prepare_crypt(crypt).await?);
        // Taken by the attempt that passes the checks.
        let init = Rc::new(Cell::new(Some(init)));
        let object = self
            .sync_task_again(move |pool, tx| -> LocalBoxFuture<'static, Result<Rc<Dataset>>> {
                let (name, props, crypt, init) = (name.clone(), props.clone(), crypt.clone(), init.clone());
                Box::pin(async move {
                    let (parent, last) = pool.parent_for_new(&name)?;
                    pool.check_parent(&parent).await?;
                    for (prop, value) in &props {
                        pool.check_value(prop, value)?;
                    }
                    pool.check_space(SpaceCheck::Normal, 20)?;
                    let crypt = pool.plan_crypt(&name, parent.crypt(), &crypt)?;
                    check_reservation(&parent, &props)?;
                    let grants = pool.grants_at_creation(&parent, creator).await?;
                    let init = init.take().ok_or_else(|| Error::invalid("the dataset was already made"))?;
                    let dir = pool.make_dir(Some(&parent), &last, &tx).await?;
                    if let Some(crypt) = crypt {
                        pool.make_crypt(&dir, crypt, &tx).await?;
                    }
                    pool.give_grants(&dir, grants, &tx).await?;
                    let origin = pool.hold_origin().await?;
                    let head = pool.make_head(&dir, origin.as_ref(), &tx).await?;
                    pool.core().log_internal_ds("create", (name, head.object), String::new(), &tx);
                    pool.fill_head(os_type, &head, props, init, tx).await?;
                    Ok(head)
                })
            })
            .await?;
        Ok(object)
    }

    /// Splits a new name into its parent, which must be a file system, and its last part, which
    /// must be free.
    pub(crate) fn parent_for_new(&self, name: &str) -> Result<(Rc<Dir>, String)> {
        if self.find_dir(name).is_ok() {
            return Err(Error::new(ErrorKind::Exists, format!("dataset already exists: '{name}'")));
        }
        let (parent, last) = name
            .rsplit_once('/')
            .ok_or_else(|| Error::invalid(format!("'{name}' is the name of a pool, not of a new dataset")))?;
        let dir = self
            .find_dir(parent)
            .map_err(|_| Error::not_found(format!("parent does not exist: there is no '{parent}'")))?;
        Ok((dir, last.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for good in ["tank", "tank/a", "tank/a b/c-d_e.f:g"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
        for bad in ["", "tank/", "/tank", "tank//a", "tank/a@b", "tank/ä", "tank/.."] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
        assert!(check_name(&"a".repeat(256)).is_err());
    }
}
