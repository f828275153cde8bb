//! NFSv4 ACLs (RFC 7530 section 6): what they say about one caller.
//!
//! Pools of FreeBSD and illumos have such ACLs. Every object stores one in `DACL_ACES`; the flag
//! `ACL_TRIVIAL` says that it is the one of the mode, and then nothing is evaluated. Linux has no
//! interface for these ACLs. The kernel checks the mode first, so an ACL can only take access away.
//! OpenZFS on Linux leaves all accesses to that check except one: who removes or renames an object
//! must not be denied it by the ACL of the object or of the directory (format page 16 section 4).
//!
//! Entries count in their order. Each bit that was asked for is decided by the first entry that is
//! for the caller and has the bit; what no entry decides is left open. Entries of audits and alarms
//! decide nothing, nor do those of a directory that are there for its children only.

use base::{Error, ErrorKind, ObjectId, Result, ResultExt};
use dmu::sa::{SaAttr, SaHandle, ZnodeAttrs};
use ondisk::zpl::{
    ACE_ALLOW, ACE_DELETE_CHILD, ACE_DENY, ACE_EVERYONE, ACE_GROUP, ACE_IDENTIFIER_GROUP, ACE_OWNER, ACE_WRITE_DATA,
    Ace, parse_aces, pflags,
};

use crate::fs::Zfs;
use crate::node::{Node, kind_of};
use crate::types::{Cred, FileKind};

/// ACE mask: delete the object itself.
const ACE_DELETE: u32 = 0x1_0000;
/// ACE flag: for children only.
const ACE_INHERIT_ONLY: u16 = 0x8;
/// Flags that name the subject.
const SUBJECT: u16 = ACE_OWNER | ACE_GROUP | ACE_EVERYONE | ACE_IDENTIFIER_GROUP;

/// The object that an ACL belongs to.
#[derive(Clone, Copy, Debug)]
struct Of {
    uid: u64,
    gid: u64,
    is_dir: bool,
}

/// What an ACL says of the bits that were asked for. A bit in neither is granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Verdict {
    denied: u32,
    open: u32,
}

/// Whether an entry is for the caller. An error if its flags name no subject.
fn is_for(ace: &Ace, of: Of, who: &Cred) -> Result<bool> {
    // An id of another domain is above 32 bits: no caller has it.
    let id = ace.who.unwrap_or(u64::MAX);
    match ace.flags & SUBJECT {
        ACE_OWNER => Ok(u64::from(who.uid) == of.uid),
        f if f == ACE_GROUP | ACE_IDENTIFIER_GROUP => Ok(who.is_member(of.gid)),
        ACE_IDENTIFIER_GROUP => Ok(who.is_member(id)),
        ACE_EVERYONE => Ok(true),
        0 => Ok(u64::from(who.uid) == id),
        f => Err(Error::corrupt(format!("ACL entry with the flags {f:#x}, which name no subject"))),
    }
}

/// Evaluates an ACL for the bits `want`.
fn evaluate(aces: &[Ace], of: Of, who: &Cred, want: u32) -> Result<Verdict> {
    let mut v = Verdict { denied: 0, open: want };
    for ace in aces {
        let bits = ace.mask & v.open;
        let is_idle = of.is_dir && ace.flags & ACE_INHERIT_ONLY != 0;
        if bits == 0 || is_idle || !matches!(ace.kind, ACE_ALLOW | ACE_DENY) || !is_for(ace, of, who)? {
            continue;
        }
        v.open &= !bits;
        if ace.kind == ACE_DENY {
            v.denied |= bits;
        }
    }
    Ok(v)
}

/// Whether a caller may remove an object from its directory, as far as their ACLs say; `None` for
/// an ACL that is the one of the mode. The object's own ACL goes first: what it grants the
/// directory cannot deny. What both leave open is the mode's business.
fn may_delete(object: Option<(&[Ace], Of)>, dir: Option<(&[Ace], Of)>, who: &Cred) -> Result<bool> {
    if let Some((aces, of)) = object {
        let v = evaluate(aces, of, who, ACE_DELETE)?;
        if v.open == 0 {
            return Ok(v.denied == 0);
        }
    }
    match dir {
        // Older entries that let write a directory lack the bit for its children.
        Some((aces, of)) => Ok(evaluate(aces, of, who, ACE_DELETE_CHILD | ACE_WRITE_DATA)?.denied == 0),
        None => Ok(true),
    }
}

impl Zfs {
    /// Whether an object with an NFSv4 ACL beyond the mode was met since it was opened. Attributes
    /// of an object are read before anything is asked of it.
    pub fn has_foreign_acls(&self) -> bool {
        self.foreign_acls.get()
    }

    /// The object's ACL if it says more than the mode. Znodes (ZPL versions before 5) count as if
    /// they had none.
    async fn foreign_acl(&self, n: &Node, a: &ZnodeAttrs) -> Result<Option<Vec<Ace>>> {
        if a.flags & (pflags::ACL_TRIVIAL | pflags::XATTR) != 0 {
            return Ok(None);
        }
        let sa = SaHandle::open(&n.dn, self.sa.get())?;
        if sa.is_znode() {
            return Ok(None);
        }
        let Some(bytes) = sa.get(SaAttr::DaclAces).await? else { return Ok(None) };
        parse_aces(&bytes).map(Some).at(|| format!("object {}", n.obj()))
    }

    /// Whether NFSv4 ACLs let `who` remove the entry `name` of a directory, or rename it. A missing
    /// entry may be removed: that it is missing is found later. User 0 may do everything.
    pub async fn may_delete(&self, dir: ObjectId, name: &[u8], who: &Cred) -> Result<bool> {
        if who.uid == 0 || !self.has_foreign_acls() {
            return Ok(true);
        }
        let child = match self.lookup(dir, name).await {
            Ok(child) => child.obj,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(true),
            Err(e) => return Err(e),
        };
        let mut acls = [None, None];
        for (acl, obj) in acls.iter_mut().zip([child, dir]) {
            let n = self.node(obj).await?;
            let a = self.attrs(&n).await?;
            let of = Of { uid: a.uid, gid: a.gid, is_dir: kind_of(obj, a.mode)? == FileKind::Dir };
            *acl = self.foreign_acl(&n, &a).await?.map(|aces| (aces, of));
        }
        let [child, dir] = acls.each_ref().map(|acl| acl.as_ref().map(|(aces, of)| (&aces[..], *of)));
        may_delete(child, dir, who)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FILE: Of = Of { uid: 10, gid: 20, is_dir: false };
    const DIR: Of = Of { is_dir: true, ..FILE };
    const OWNING_GROUP: u16 = ACE_GROUP | ACE_IDENTIFIER_GROUP;

    fn ace(kind: u16, flags: u16, mask: u32, who: Option<u64>) -> Ace {
        Ace { kind, flags, mask, who }
    }
    fn user(uid: u32, gid: u32, groups: &[u32]) -> Cred {
        Cred { groups: groups.to_vec(), ..Cred::new(uid, gid) }
    }

    #[test]
    fn entries_are_for_their_subjects() {
        let who = user(10, 5, &[20, 30]);
        let stranger = user(11, 6, &[]);
        for (flags, id, is_who, is_stranger) in [
            (ACE_OWNER, None, true, false),
            (OWNING_GROUP, None, true, false),
            (ACE_EVERYONE, None, true, true),
            (0, Some(10), true, false),
            (0, Some(11), false, true),
            (0, Some(1 << 32 | 10), false, false),
            (ACE_IDENTIFIER_GROUP, Some(30), true, false),
            (ACE_IDENTIFIER_GROUP, Some(6), false, true),
            (ACE_IDENTIFIER_GROUP, Some(1 << 32 | 6), false, false),
        ] {
            let e = ace(ACE_DENY, flags, 1, id);
            assert_eq!(is_for(&e, FILE, &who).unwrap(), is_who, "{e:?}");
            assert_eq!(is_for(&e, FILE, &stranger).unwrap(), is_stranger, "{e:?}");
        }
        for flags in [ACE_GROUP, ACE_OWNER | ACE_EVERYONE, ACE_OWNER | ACE_IDENTIFIER_GROUP] {
            let e = is_for(&ace(ACE_ALLOW, flags, 1, None), FILE, &who).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Corrupt);
        }
    }

    #[test]
    fn the_object_goes_before_its_directory() {
        let who = user(1, 1, &[]);
        let all = |kind, mask| vec![ace(kind, ACE_EVERYONE, mask, None)];
        let (grants, denies, silent) = (all(ACE_ALLOW, ACE_DELETE), all(ACE_DENY, ACE_DELETE), Vec::new());
        for mask in [ACE_DELETE_CHILD, ACE_WRITE_DATA] {
            let (dir_grants, dir_denies) = (all(ACE_ALLOW, mask), all(ACE_DENY, mask));
            for (object, dir, want) in [
                (Some(&grants), Some(&dir_grants), true),
                (Some(&grants), Some(&dir_denies), true),
                (Some(&grants), None, true),
                (Some(&denies), Some(&dir_grants), false),
                (Some(&denies), Some(&dir_denies), false),
                (Some(&denies), None, false),
                (Some(&silent), Some(&dir_grants), true),
                (Some(&silent), Some(&dir_denies), false),
                (Some(&silent), Some(&silent), true),
                (None, Some(&dir_grants), true),
                (None, Some(&dir_denies), false),
                (None, None, true),
            ] {
                let got = may_delete(object.map(|a| (&a[..], FILE)), dir.map(|a| (&a[..], DIR)), &who).unwrap();
                assert_eq!(got, want, "{object:?} {dir:?}");
            }
        }
    }

    /// RFC 7530 section 6.2.1, bit by bit: the first entry that has the bit and the caller as its
    /// subject decides.
    fn slow(aces: &[Ace], of: Of, who: &Cred, bit: u32) -> Option<bool> {
        let counts = |e: &&Ace| {
            let subject = match (e.flags & SUBJECT, e.who) {
                (0, id) => id == Some(who.uid.into()),
                (ACE_IDENTIFIER_GROUP, id) => id.is_some_and(|g| who.is_member(g)),
                (ACE_OWNER, _) => of.uid == u64::from(who.uid),
                (ACE_EVERYONE, _) => true,
                _ => who.is_member(of.gid),
            };
            subject && e.mask & bit != 0 && e.kind < 2 && !(of.is_dir && e.flags & ACE_INHERIT_ONLY != 0)
        };
        aces.iter().find(counts).map(|e| e.kind == ACE_ALLOW)
    }

    fn any_ace() -> impl Strategy<Value = Ace> {
        let subject = prop::sample::select(vec![0, ACE_IDENTIFIER_GROUP, ACE_OWNER, OWNING_GROUP, ACE_EVERYONE]);
        let inherit = prop::sample::select(vec![0, ACE_INHERIT_ONLY, 3]);
        (0u16..4, subject, inherit, 0u32..16, 0u64..4).prop_map(|(kind, subject, inherit, mask, id)| {
            let who = matches!(subject, 0 | ACE_IDENTIFIER_GROUP).then_some(id);
            ace(kind, subject | inherit, mask, who)
        })
    }

    proptest! {
        #[test]
        fn each_bit_is_decided_by_the_first_entry_for_the_caller(
            aces in prop::collection::vec(any_ace(), 0..8),
            (uid, gid, group, owner, owning) in (0u32..4, 0u32..4, 0u32..4, 0u64..4, 0u64..4),
            is_dir: bool,
            want in 0u32..16,
        ) {
            let (of, who) = (Of { uid: owner, gid: owning, is_dir }, user(uid, gid, &[group]));
            let v = evaluate(&aces, of, &who, want).unwrap();
            for bit in [1, 2, 4, 8].into_iter().filter(|b| want & b != 0) {
                let got = if v.open & bit != 0 { None } else { Some(v.denied & bit == 0) };
                prop_assert_eq!(got, slow(&aces, of, &who, bit));
            }
            prop_assert_eq!((v.denied | v.open) & !want, 0);
        }

        #[test]
        fn hostile_bytes_are_errors_at_most(bytes in prop::collection::vec(any::<u8>(), 0..96), is_dir: bool) {
            let of = Of { is_dir, ..FILE };
            let done = parse_aces(&bytes).and_then(|aces| evaluate(&aces, of, &user(10, 20, &[]), u32::MAX));
            prop_assert!(done.is_ok() || done.is_err_and(|e| e.kind() == ErrorKind::Corrupt));
        }
    }
}
