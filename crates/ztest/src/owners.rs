//! Space and objects by owner: what a file system says of its users, groups and projects against
//! its dnodes, and its limits against the model.
//!
//! Counted is every object whose bonus has a file's attributes (system attributes, or a znode of
//! before): files, directories, links, devices, and also hidden directories of extended attributes
//! and the files in them, and files that were unlinked and wait to be freed. Each is one object,
//! and 512 bytes and its charged space. Not counted are the master node, the delete queue, tables
//! of attributes and of owners, lists of limits, and the accounting objects themselves.
//!
//! Both sides are as of the last sync, so nothing may be written meanwhile.

use std::collections::BTreeMap;
use std::rc::Rc;

use base::{ErrorKind, ObjectId};
use dmu::Objset;
use dsl::Dataset;
use ondisk::dnode::{DNODE_USEROBJUSED_ACCOUNTED, DNODE_USERUSED_ACCOUNTED};
use ondisk::object_type::ObjectType;
use ondisk::objset::ObjsetType;
use ondisk::sa::{owner_ids, znode_owner_ids};
use spa::Pool;
use zpl::{OwnerKind, owner_uses};

use crate::Check;
use crate::model::{DsModel, PoolModel};
use crate::scan::told;

/// The most snapshots of a file system that a workload makes.
pub(crate) const SNAPSHOTS: u64 = 3;

/// The name of a snapshot that a workload makes.
pub(crate) fn snapshot(ds: &str, n: u64) -> String {
    format!("{ds}@q{n}")
}

/// Bytes and objects of owners.
type Sums = BTreeMap<u64, (u64, u64)>;

/// The sums of all dnodes: users, groups, projects.
async fn recount(os: &Objset) -> Check<[Sums; 3]> {
    let mut sums: [Sums; 3] = Default::default();
    let mut from = ObjectId(0);
    while let Some(object) = os.objects(from).await.map_err(told("objects"))? {
        from = ObjectId(object.0 + 1);
        let phys = os.hold(object).await.map_err(told("a dnode"))?.committed();
        let ids = match phys.bonustype {
            ObjectType::SA => owner_ids(phys.bonus()),
            ObjectType::ZNODE => znode_owner_ids(phys.bonus()),
            _ => continue,
        };
        let ids = ids.map_err(told("owners"))?;
        let (bytes, objects) =
            (phys.flags & DNODE_USERUSED_ACCOUNTED != 0, phys.flags & DNODE_USEROBJUSED_ACCOUNTED != 0);
        for (sums, id) in sums.iter_mut().zip([ids.uid, ids.gid, ids.projid]) {
            let sum = sums.entry(id).or_default();
            sum.0 += if bytes { 512 + phys.used_bytes() } else { 0 };
            sum.1 += u64::from(objects);
        }
    }
    Ok(sums)
}

async fn check_dataset(ds: &Dataset, model: Option<&DsModel>) -> Check {
    let os = ds.objset().await.map_err(told("the object set"))?;
    if os.os_type() != ObjsetType::Zfs || os.is_sealed() {
        return Ok(());
    }
    let sums = recount(&os).await?;
    for (kind, want) in OwnerKind::ALL.into_iter().zip(sums) {
        let uses = match owner_uses(&os, kind).await {
            Err(e) if e.kind() == ErrorKind::Unsupported => continue,
            uses => uses.map_err(told("owners"))?,
        };
        let got: Sums = uses.iter().map(|u| (u.id, (u.used, u.objused.unwrap_or(0)))).collect();
        for id in got.keys().chain(want.keys()) {
            let of = |sums: &Sums| sums.get(id).copied().unwrap_or_default();
            if of(&got) != of(&want) {
                let (got, want) = (of(&got), of(&want));
                return Err(format!("{kind:?} {id} uses (bytes, objects) {got:?}, its objects are {want:?}"));
            }
        }
        let Some(model) = model else { continue };
        let limits = uses.iter().flat_map(|u| [(false, u.id, u.quota), (true, u.id, u.objquota.unwrap_or(0))]);
        let got: Vec<_> = limits.filter(|(.., limit)| *limit != 0).collect();
        let got: BTreeMap<_, _> = got.into_iter().map(|(objects, id, limit)| ((objects, id), limit)).collect();
        let of_kind = model.quotas.iter().filter(|((of, ..), _)| *of == kind as usize);
        let want: BTreeMap<_, _> = of_kind.map(|((_, objects, id), limit)| ((*objects, *id), *limit)).collect();
        if got != want {
            return Err(format!("limits of {kind:?} are {got:?}, not {want:?}"));
        }
    }
    Ok(())
}

/// Checks all file systems of a pool that has nothing unwritten, and the snapshots that workloads
/// make; limits only with a model.
pub async fn check_owners(pool: &Rc<Pool>, model: Option<&PoolModel>) -> Check {
    for ds in pool.dsl().all() {
        let name = ds.name();
        let of_ds = model.and_then(|m| m.datasets.get(&name)).map(|ds| &**ds);
        check_dataset(&ds, of_ds).await.map_err(|e| format!("{name}: {e}"))?;
        for snapshot in (0..SNAPSHOTS).map(|n| snapshot(&name, n)) {
            match pool.dsl().find_snapshot(&snapshot).await {
                Err(e) if e.kind() == ErrorKind::NotFound => break,
                found => {
                    let found = found.map_err(told(&snapshot))?;
                    check_dataset(&found, None).await.map_err(|e| format!("{snapshot}: {e}"))?;
                }
            }
        }
    }
    Ok(())
}
