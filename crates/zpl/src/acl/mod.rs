//! POSIX ACLs (`acltype=posix`): encoding, validity, and their relation to the mode.
//!
//! An ACL is the value of the extended attribute `system.posix_acl_access` or, for directories,
//! `system.posix_acl_default`, in the encoding of Linux (`linux/posix_acl_xattr.h`): a version,
//! then entries of tag, permissions and id. It is stored like any other extended attribute (format
//! page 16 section 4). acl(5) and POSIX.1e draft 17, section 23, define its meaning.
//!
//! The mode and the access ACL agree: the mode's bits for the owner and for others are those of the
//! ACL, and its group bits are the mask if there is one. An access ACL equivalent to a mode is not
//! stored.

pub(crate) mod nfs4;
pub(crate) mod ops;
pub(crate) mod privileges;

use base::{Error, Result};

/// `POSIX_ACL_XATTR_VERSION` of Linux.
const VERSION: u32 = 2;
/// Bytes of the version.
const HEADER: usize = 4;
/// Bytes of an entry.
const ENTRY: usize = 8;
/// The id of entries without a user or group.
const NO_ID: u32 = u32::MAX;

/// The two ACLs of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AclKind {
    /// Permissions of the object.
    Access,
    /// Permissions that new objects inherit from a directory.
    Default,
}

impl AclKind {
    /// The name of its extended attribute.
    pub fn xattr_name(self) -> &'static [u8] {
        match self {
            AclKind::Access => b"system.posix_acl_access",
            AclKind::Default => b"system.posix_acl_default",
        }
    }
    /// The ACL of an extended attribute's name.
    pub fn from_xattr_name(name: &[u8]) -> Option<AclKind> {
        [AclKind::Access, AclKind::Default].into_iter().find(|k| k.xattr_name() == name)
    }
}

/// The subject of an entry. The numbers are those of Linux; an ACL has its entries in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum AclTag {
    /// The owner.
    UserObj = 0x1,
    /// A user.
    User = 0x2,
    /// The object's group.
    GroupObj = 0x4,
    /// A group.
    Group = 0x8,
    /// Upper limit for users, groups and the object's group.
    Mask = 0x10,
    /// Everyone else.
    Other = 0x20,
}

impl AclTag {
    fn has_id(self) -> bool {
        matches!(self, AclTag::User | AclTag::Group)
    }
}

/// An entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AclEntry {
    /// The subject.
    pub tag: AclTag,
    /// Bits: 4 read, 2 write, 1 execute.
    pub perm: u8,
    /// User or group; unused for other tags.
    pub id: u32,
}

/// A valid ACL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Acl(Vec<AclEntry>);

impl Acl {
    /// Parses the value of an extended attribute. `Invalid` if it is not a valid ACL
    /// (acl_valid(3)).
    pub fn parse(bytes: &[u8]) -> Result<Acl> {
        let bad = |why: &str| Err(Error::invalid(format!("an access control list {why}")));
        let Some((version, rest)) = bytes.split_first_chunk::<HEADER>() else {
            return bad("of less than a header");
        };
        if u32::from_le_bytes(*version) != VERSION {
            return bad("of an unknown version");
        }
        let (entries, []) = rest.as_chunks::<ENTRY>() else { return bad("with part of an entry") };
        let mut list = Vec::with_capacity(entries.len());
        for &[t0, t1, p0, p1, id @ ..] in entries {
            let tag = match u16::from_le_bytes([t0, t1]) {
                0x1 => AclTag::UserObj,
                0x2 => AclTag::User,
                0x4 => AclTag::GroupObj,
                0x8 => AclTag::Group,
                0x10 => AclTag::Mask,
                0x20 => AclTag::Other,
                _ => return bad("with an unknown tag"),
            };
            if p0 > 7 || p1 != 0 {
                return bad("with unknown permissions");
            }
            let id = if tag.has_id() { u32::from_le_bytes(id) } else { NO_ID };
            if tag.has_id() && id == NO_ID {
                return bad("with an entry for nobody");
            }
            list.push(AclEntry { tag, perm: p0, id });
        }
        let count = |tag: AclTag| list.iter().filter(|e| e.tag == tag).count();
        if !list.is_sorted_by_key(|e| e.tag) {
            return bad("whose entries are not in order");
        }
        if [AclTag::UserObj, AclTag::GroupObj, AclTag::Other].iter().any(|&t| count(t) != 1) {
            return bad("without one entry each for owner, group and others");
        }
        let masks = count(AclTag::Mask);
        let named = count(AclTag::User) + count(AclTag::Group);
        if masks > 1 || named > 0 && masks == 0 {
            return bad("without a mask");
        }
        Ok(Acl(list))
    }

    /// The value of the extended attribute.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for e in &self.0 {
            out.extend((e.tag as u16).to_le_bytes());
            out.extend(u16::from(e.perm).to_le_bytes());
            out.extend(e.id.to_le_bytes());
        }
        out
    }

    /// Its entries.
    pub fn entries(&self) -> &[AclEntry] {
        &self.0
    }

    fn perm(&self, tag: AclTag) -> Option<u8> {
        self.0.iter().find(|e| e.tag == tag).map(|e| e.perm)
    }
    fn perm_mut(&mut self, tag: AclTag) -> Option<&mut u8> {
        self.0.iter_mut().find(|e| e.tag == tag).map(|e| &mut e.perm)
    }
    /// The entry that the group bits of the mode correspond to.
    fn group_class(&self) -> AclTag {
        if self.perm(AclTag::Mask).is_some() { AclTag::Mask } else { AclTag::GroupObj }
    }

    /// The permission bits of the mode for this access ACL.
    pub fn mode(&self) -> u32 {
        let bits = |tag| u32::from(self.perm(tag).unwrap_or(0));
        bits(AclTag::UserObj) << 6 | bits(self.group_class()) << 3 | bits(AclTag::Other)
    }

    /// Whether it is equivalent to its mode.
    pub fn is_trivial(&self) -> bool {
        self.0.len() == 3
    }

    /// Changes it to agree with the permission bits of `mode` (chmod(2)).
    pub fn set_mode(&mut self, mode: u32) {
        let class = self.group_class();
        for (tag, shift) in [(AclTag::UserObj, 6), (class, 3), (AclTag::Other, 0)] {
            if let Some(perm) = self.perm_mut(tag) {
                *perm = (mode >> shift & 7) as u8;
            }
        }
    }

    /// The access ACL of a new object with `mode` in a directory with this default ACL: permissions
    /// that both grant.
    pub fn inherited(&self, mode: u32) -> Acl {
        let mut acl = self.clone();
        acl.set_mode(self.mode() & mode);
        acl
    }

    /// A mode that grants no user more than the ACL, for the time when the mode is on disk without
    /// the ACL.
    pub fn restricted_mode(&self) -> u32 {
        let mask = self.perm(AclTag::Mask).unwrap_or(7);
        let users = self.0.iter().filter(|e| e.tag == AclTag::User).fold(7, |all, e| all & e.perm & mask);
        let groups = self.0.iter().filter(|e| e.tag == AclTag::Group).fold(7, |all, e| all & e.perm & mask);
        let group = self.perm(AclTag::GroupObj).unwrap_or(0) & mask & users;
        let other = self.perm(AclTag::Other).unwrap_or(0) & users & groups;
        self.mode() & 0o700 | u32::from(group) << 3 | u32::from(other)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use AclTag::{Group, GroupObj, Mask, Other, User, UserObj};

    pub(crate) fn acl(list: &[(AclTag, u8, u32)]) -> Acl {
        Acl(list.iter().map(|&(tag, perm, id)| AclEntry { tag, perm, id }).collect())
    }

    #[test]
    fn the_form_is_that_of_linux() {
        let a = acl(&[
            (UserObj, 7, NO_ID),
            (User, 6, 1000),
            (GroupObj, 5, NO_ID),
            (Group, 4, 70_000),
            (Mask, 6, NO_ID),
            (Other, 0, NO_ID),
        ]);
        let bytes = a.to_bytes();
        let mut want = vec![2, 0, 0, 0];
        want.extend([1, 0, 7, 0, 255, 255, 255, 255]);
        want.extend([2, 0, 6, 0, 0xe8, 3, 0, 0]);
        want.extend([4, 0, 5, 0, 255, 255, 255, 255]);
        want.extend([8, 0, 4, 0, 0x70, 0x11, 1, 0]);
        want.extend([0x10, 0, 6, 0, 255, 255, 255, 255]);
        want.extend([0x20, 0, 0, 0, 255, 255, 255, 255]);
        assert_eq!(bytes, want);
        assert_eq!(Acl::parse(&bytes).unwrap(), a);
    }

    #[test]
    fn what_is_no_acl_is_refused() {
        let base = [(UserObj, 7, NO_ID), (GroupObj, 5, NO_ID), (Other, 0, NO_ID)];
        let parse = |list: &[(AclTag, u8, u32)]| Acl::parse(&acl(list).to_bytes());
        assert!(parse(&base).is_ok());
        assert!(parse(&[]).is_err());
        for missing in 0..3 {
            let mut list = base.to_vec();
            list.remove(missing);
            assert!(parse(&list).is_err());
        }
        let user = (User, 7, 1000);
        let mask = (Mask, 7, NO_ID);
        assert!(parse(&[base[0], user, base[1], base[2]]).is_err(), "no mask");
        assert!(parse(&[base[0], user, base[1], mask, base[2]]).is_ok());
        assert!(parse(&[base[0], base[1], mask, base[2]]).is_ok());
        assert!(parse(&[base[0], base[1], user, mask, base[2]]).is_err(), "order");
        assert!(parse(&[base[0], base[1], mask, mask, base[2]]).is_err());
        assert!(parse(&[base[0], (User, 7, NO_ID), base[1], mask, base[2]]).is_err());
        let good = acl(&base).to_bytes();
        for n in 0..good.len() {
            assert!(Acl::parse(&good[..n]).is_err(), "{n}");
        }
        for (at, value) in [(0, 1), (4, 3), (6, 8), (7, 1)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert!(Acl::parse(&bad).is_err(), "{at}");
        }
    }

    #[test]
    fn modes_go_with_acls() {
        let small = acl(&[(UserObj, 7, NO_ID), (GroupObj, 5, NO_ID), (Other, 1, NO_ID)]);
        assert_eq!((small.mode(), small.is_trivial()), (0o751, true));
        let mut big =
            acl(&[(UserObj, 7, NO_ID), (User, 7, 1000), (GroupObj, 5, NO_ID), (Mask, 6, NO_ID), (Other, 1, NO_ID)]);
        assert_eq!((big.mode(), big.is_trivial()), (0o761, false));
        let made = big.inherited(0o640);
        assert_eq!(made.mode(), 0o640);
        assert_eq!(made.perm(GroupObj), Some(5), "only the mask follows the mode");
        assert_eq!(small.inherited(0o777).mode(), 0o751);
        assert_eq!(small.inherited(0o666).mode(), 0o640);
        big.set_mode(0o7604);
        assert_eq!((big.mode(), big.perm(GroupObj)), (0o604, Some(5)));
    }

    #[test]
    fn a_mode_alone_gives_no_more() {
        for (list, want) in [
            (&[(UserObj, 7, NO_ID), (GroupObj, 5, NO_ID), (Other, 1, NO_ID)][..], 0o751),
            // The mask would be the mode's group bits.
            (&[(UserObj, 6, NO_ID), (User, 6, 5), (GroupObj, 4, NO_ID), (Mask, 6, NO_ID), (Other, 4, NO_ID)], 0o644),
            // A user who is denied by name must not fall into the class of others.
            (&[(UserObj, 6, NO_ID), (User, 0, 5), (GroupObj, 4, NO_ID), (Mask, 6, NO_ID), (Other, 4, NO_ID)], 0o600),
            (&[(UserObj, 6, NO_ID), (GroupObj, 4, NO_ID), (Group, 0, 5), (Mask, 6, NO_ID), (Other, 4, NO_ID)], 0o640),
            (&[(UserObj, 6, NO_ID), (GroupObj, 4, NO_ID), (Mask, 0, NO_ID), (Other, 4, NO_ID)], 0o604),
        ] {
            assert_eq!(acl(list).restricted_mode(), want, "{list:?}");
        }
    }
}
