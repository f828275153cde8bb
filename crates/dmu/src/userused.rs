//! Space and objects by owner: each sync updates objects -1 (users), -2 (groups) and -3 (projects),
//! format pages 08 section 7 and 16 section 7.
//!
//! Every object whose bonus has a file's attributes counts 512 bytes plus its charged space, and
//! one object. A sync subtracts the old figures of an object from its old owners and adds the new
//! ones to its new owners. The sums are applied once per sync.

use std::collections::BTreeMap;

use base::{ObjectId, Result, Txg};
use ondisk::bytes::{try_le16, try_le32, try_le64};
use ondisk::dnode::{DNODE_USEROBJUSED_ACCOUNTED, DNODE_USERUSED_ACCOUNTED, DnodePhys};
use ondisk::object_type::ObjectType;
use ondisk::objset::{OBJSET_PROJECTQUOTA_COMPLETE, OBJSET_USERACCOUNTING_COMPLETE, OBJSET_USEROBJACCOUNTING_COMPLETE};

use crate::dnode::Dnode;
use crate::objset::Objset;
use crate::sync_dnode::Synced;
use crate::tx::Tx;
use crate::zap;

/// Bytes counted for an object beside its blocks, for any dnode size.
const DNODE_CHARGE: i64 = 512;
/// Magic of an attribute buffer, format page 08 section 3.
const SA_MAGIC: u32 = 0x002F_505A;
/// Flag of a file that has a project id.
const ZFS_PROJID: u64 = 0x8000 << 32;

/// The owners of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Owners {
    pub user: u64,
    pub group: u64,
    pub project: u64,
}

/// The owners in an attribute buffer; `None` if it is no attribute buffer.
fn owners_in_sa(b: &[u8]) -> Option<Owners> {
    if try_le32(b, 0)? != SA_MAGIC {
        return None;
    }
    let header = usize::from(try_le16(b, 4)? >> 10) * 8;
    let word = |at: usize| try_le64(b, header + at).unwrap_or(0);
    let project = if word(48) & ZFS_PROJID != 0 { word(128) } else { 0 };
    Some(Owners { user: word(24), group: word(32), project })
}

/// The owners in the bonus; `None` for objects without owners.
fn owners_in_bonus(bonustype: ObjectType, bonus: &[u8]) -> Option<Owners> {
    match bonustype {
        ObjectType::SA => Some(owners_in_sa(bonus).unwrap_or_default()),
        ObjectType::ZNODE => Some(Owners {
            user: try_le64(bonus, 128).unwrap_or(0),
            group: try_le64(bonus, 136).unwrap_or(0),
            project: 0,
        }),
        _ => None,
    }
}

/// Changes by kind (index into objects -1, -2, -3) and owner: bytes and objects.
pub(crate) struct Deltas {
    /// What is counted of every object: flags `OBJSET_*_COMPLETE`.
    complete: u64,
    /// What is counted of those objects that [`crate::count`] has come to, and of new ones.
    counting: u64,
    /// It has come to those below.
    upto: u64,
    sums: BTreeMap<(usize, u64), (i64, i64)>,
}

/// What the sums have of an object.
#[derive(Clone, Copy)]
struct Counted {
    bytes: i64,
    objects: i64,
    of_project: bool,
}

impl Deltas {
    pub fn new(complete: u64, counting: u64, upto: u64) -> Deltas {
        Deltas { complete, counting, upto, sums: BTreeMap::new() }
    }

    /// The owners as of the committed dnode.
    pub async fn owners_before(&self, dn: &Dnode) -> Result<Option<Owners>> {
        let phys = {
            let st = dn.n.st.borrow();
            if !st.on_disk {
                return Ok(None);
            }
            st.phys.clone()
        };
        self.owners(dn, &phys).await
    }

    /// The owners of a dnode, from its bonus or, if that has no attributes, from its spill block.
    async fn owners(&self, dn: &Dnode, phys: &DnodePhys) -> Result<Option<Owners>> {
        let Some(mut owners) = owners_in_bonus(phys.bonustype, phys.bonus()) else { return Ok(None) };
        if phys.bonustype == ObjectType::SA
            && phys.bonuslen == 0
            && let Some(bp) = phys.spill.filter(|bp| !bp.is_hole())
        {
            owners = owners_in_sa(&dn.os.ctx.read(&bp).await?).unwrap_or_default();
        }
        Ok(Some(owners))
    }

    fn add(&mut self, o: Owners, counted: Counted, sign: i64) {
        let kinds = [Some(o.user), Some(o.group), counted.of_project.then_some(o.project)];
        for (kind, id) in kinds.into_iter().enumerate() {
            if let Some(id) = id {
                let sum = self.sums.entry((kind, id)).or_default();
                let (bytes, objects) = (sign * counted.bytes, sign * counted.objects);
                *sum = (sum.0.saturating_add(bytes), sum.1.saturating_add(objects));
            }
        }
    }

    /// What the sums have of an object with this dnode. `complete` are the kinds that have it
    /// because they have every object, `reached` says whether counting has come to it.
    fn counted(&self, phys: &DnodePhys, complete: u64, reached: bool) -> Counted {
        let kinds = complete | if reached { self.counting } else { 0 };
        let has = |flag: u64| kinds & flag != 0;
        let bytes = DNODE_CHARGE.saturating_add_unsigned(phys.used_bytes());
        Counted {
            bytes: if has(OBJSET_USERACCOUNTING_COMPLETE) { bytes } else { 0 },
            objects: i64::from(has(OBJSET_USEROBJACCOUNTING_COMPLETE)),
            of_project: has(OBJSET_PROJECTQUOTA_COMPLETE),
        }
    }

    /// Counts one object's change. `before` are its owners as of the last sync.
    pub async fn note(&mut self, dn: &Dnode, synced: &Synced, before: Option<Owners>) -> Result<()> {
        let object = dn.n.obj.0;
        let (was, is) = {
            let mut counting = dn.os.counting.borrow_mut();
            match counting.as_mut().filter(|_| self.counting != 0) {
                None => (false, false),
                Some(c) => {
                    let was = c.was_counted(object);
                    (was, synced.after.is_some() && c.is_counted(object, self.upto, synced.before.is_none()))
                }
            }
        };
        let after = match &synced.after {
            Some(phys) => self.owners(dn, phys).await?,
            None => None,
        };
        let before = if planted!(OldOwnerKept) { after.or(before) } else { before };
        if let (Some(phys), Some(owners)) = (&synced.before, before) {
            // A dnode without its flags was written when nothing was counted.
            let mut complete = self.complete & OBJSET_PROJECTQUOTA_COMPLETE;
            for (flag, kind) in [
                (DNODE_USERUSED_ACCOUNTED, OBJSET_USERACCOUNTING_COMPLETE),
                (DNODE_USEROBJUSED_ACCOUNTED, OBJSET_USEROBJACCOUNTING_COMPLETE),
            ] {
                if phys.flags & flag != 0 {
                    complete |= kind & !self.counting;
                }
            }
            self.add(owners, self.counted(phys, complete, was), -1);
        }
        if let Some(phys) = &synced.after
            && let Some(owners) = after
        {
            self.add(owners, self.counted(phys, self.complete, is), 1);
        }
        Ok(())
    }

    /// Adds the sums to the accounting objects.
    pub async fn apply(self, os: &Objset, txg: Txg) -> Result<()> {
        let tx = Tx::syncing(txg);
        for ((kind, id), (bytes, objects)) in self.sums {
            if bytes == 0 && objects == 0 {
                continue;
            }
            let (dn, fresh) = os.accounting_for(ObjectId(u64::MAX - kind as u64), &tx);
            if fresh {
                zap::init(&dn, 0, &tx).await?;
            }
            if bytes != 0 {
                zap::increment(&dn, format!("{id:x}").as_bytes(), bytes, &tx).await?;
            }
            if objects != 0 {
                zap::increment(&dn, format!("obj-{id:x}").as_bytes(), objects, &tx).await?;
            }
        }
        Ok(())
    }
}
