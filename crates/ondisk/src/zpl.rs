//! Constants and small structures of file systems: modes, flags, directory entries, access control
//! entries, znodes of old versions (format pages 08 and 16).

use base::{Error, Result};

use crate::bytes::{le16, le32, le64, put_le16, put_le32};

/// Newest ZPL version.
pub const ZPL_VERSION: u64 = 5;
/// ZPL version with system attributes.
pub const ZPL_VERSION_SA: u64 = 5;
/// ZPL version with user space accounting.
pub const ZPL_VERSION_USERSPACE: u64 = 4;
/// ZPL version with normalisation, FUIDs and version 1 ACLs.
pub const ZPL_VERSION_FUID: u64 = 3;
/// ZPL version whose directory entries carry a type.
pub const ZPL_VERSION_DIRENT: u64 = 2;
/// The object number of the master node.
pub const MASTER_NODE_OBJ: u64 = 1;
/// Longest name of a directory entry in bytes.
pub const MAX_NAME: usize = 255;

/// Keys of the master node.
pub mod master_key {
    /// ZPL version.
    pub const VERSION: &str = "VERSION";
    /// Root directory.
    pub const ROOT: &str = "ROOT";
    /// ZAP of unlinked files.
    pub const DELETE_QUEUE: &str = "DELETE_QUEUE";
    /// SA master node.
    pub const SA_ATTRS: &str = "SA_ATTRS";
    /// Normalisation form.
    pub const NORMALIZATION: &str = "normalization";
    /// Whether names must be UTF-8.
    pub const UTF8ONLY: &str = "utf8only";
    /// 0 sensitive, 1 insensitive, 2 mixed.
    pub const CASESENSITIVITY: &str = "casesensitivity";
    /// Hidden directory of SMB shares.
    pub const SHARES: &str = "SHARES";
    /// Table of foreign domains.
    pub const FUID: &str = "FUID";
    /// Limits of ids without an entry in the ZAPs of [`QUOTAS`], in the same order (OpenZFS 2.4).
    pub const DEFAULT_QUOTAS: [&str; 6] = [
        "defaultuserquota",
        "defaultgroupquota",
        "defaultprojectquota",
        "defaultuserobjquota",
        "defaultgroupobjquota",
        "defaultprojectobjquota",
    ];
    /// Per-id limits of space: `userquota@`, `groupquota@`, `projectquota@`, then of objects.
    pub const QUOTAS: [&str; 6] =
        ["userquota@", "groupquota@", "projectquota@", "userobjquota@", "groupobjquota@", "projectobjquota@"];
}

/// Mask of the type in a mode.
pub const S_IFMT: u64 = 0o170000;
/// FIFO.
pub const S_IFIFO: u64 = 0o010000;
/// Character device.
pub const S_IFCHR: u64 = 0o020000;
/// Directory.
pub const S_IFDIR: u64 = 0o040000;
/// Block device.
pub const S_IFBLK: u64 = 0o060000;
/// Regular file.
pub const S_IFREG: u64 = 0o100000;
/// Symbolic link.
pub const S_IFLNK: u64 = 0o120000;
/// Socket.
pub const S_IFSOCK: u64 = 0o140000;

/// Bits of the FLAGS attribute.
pub mod pflags {
    /// An xattr directory or one of its files.
    pub const XATTR: u64 = 0x1;
    /// Has inheritable ACEs.
    pub const INHERIT_ACE: u64 = 0x2;
    /// The ACL is equivalent to the mode.
    pub const ACL_TRIVIAL: u64 = 0x4;
    /// Has object ACEs.
    pub const ACL_OBJ_ACE: u64 = 0x8;
    /// ACL is protected.
    pub const ACL_PROTECTED: u64 = 0x10;
    /// ACL is defaulted.
    pub const ACL_DEFAULTED: u64 = 0x20;
    /// ACL is inherited automatically.
    pub const ACL_AUTO_INHERIT: u64 = 0x40;
    /// A scan stamp follows the znode.
    pub const BONUS_SCANSTAMP: u64 = 0x80;
    /// No ACE denies execution.
    pub const NO_EXECS_DENIED: u64 = 0x100;
    /// DOS read-only.
    pub const READONLY: u64 = 0x1 << 32;
    /// DOS hidden.
    pub const HIDDEN: u64 = 0x2 << 32;
    /// DOS system.
    pub const SYSTEM: u64 = 0x4 << 32;
    /// DOS archive.
    pub const ARCHIVE: u64 = 0x8 << 32;
    /// Nothing may change.
    pub const IMMUTABLE: u64 = 0x10 << 32;
    /// May not be unlinked.
    pub const NOUNLINK: u64 = 0x20 << 32;
    /// Only appending is allowed.
    pub const APPENDONLY: u64 = 0x40 << 32;
    /// Not to be dumped.
    pub const NODUMP: u64 = 0x80 << 32;
    /// Opaque.
    pub const OPAQUE: u64 = 0x100 << 32;
    /// Quarantined by a virus scanner.
    pub const AV_QUARANTINED: u64 = 0x200 << 32;
    /// Changed since the last virus scan.
    pub const AV_MODIFIED: u64 = 0x400 << 32;
    /// Reparse point.
    pub const REPARSE: u64 = 0x800 << 32;
    /// Offline.
    pub const OFFLINE: u64 = 0x1000 << 32;
    /// Sparse.
    pub const SPARSE: u64 = 0x2000 << 32;
    /// New children take the project id.
    pub const PROJINHERIT: u64 = 0x4000 << 32;
    /// Has a project id.
    pub const PROJID: u64 = 0x8000 << 32;
}

/// The flags that a change of content sets in a file system of ZPL version `version`.
pub fn modified_pflags(version: u64) -> u64 {
    if version < ZPL_VERSION_FUID { 0 } else { pflags::ARCHIVE | pflags::AV_MODIFIED }
}

/// FLAGS of a new object with this mode. `projid`: it has a project id attribute (files and
/// directories of pools with project quotas).
pub fn new_pflags(mode: u64, projid: bool, version: u64) -> u64 {
    let mut f = pflags::ACL_TRIVIAL | modified_pflags(version);
    if mode & S_IFMT == S_IFDIR {
        f |= pflags::ACL_AUTO_INHERIT;
    }
    if mode & 0o111 == 0o111 {
        f |= pflags::NO_EXECS_DENIED;
    }
    if projid {
        f |= pflags::PROJID;
    }
    f
}

/// A directory entry's value: type and object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Dirent {
    /// The mode's type bits shifted right by 12; 0 in file systems of version 1.
    pub dtype: u8,
    /// Object number, below 2^48.
    pub object: u64,
}

impl Dirent {
    /// The entry for an object with this mode.
    pub fn new(mode: u64, object: u64) -> Dirent {
        Dirent { dtype: ((mode & S_IFMT) >> 12) as u8, object }
    }
    /// The stored value.
    pub fn pack(self) -> u64 {
        assert!(self.object < 1 << 48 && self.dtype < 16, "directory entry out of range");
        u64::from(self.dtype) << 60 | self.object
    }
    /// From the stored value. Bits 48 to 59 do not count.
    pub fn unpack(v: u64) -> Dirent {
        Dirent { dtype: (v >> 60) as u8, object: v & ((1 << 48) - 1) }
    }
}

/// ACE type: allow.
pub const ACE_ALLOW: u16 = 0;
/// ACE type: deny.
pub const ACE_DENY: u16 = 1;
/// ACE flag: identifies a group.
pub const ACE_IDENTIFIER_GROUP: u16 = 0x40;
/// ACE flag: the owner.
pub const ACE_OWNER: u16 = 0x1000;
/// ACE flag: the owning group; comes with [`ACE_IDENTIFIER_GROUP`].
pub const ACE_GROUP: u16 = 0x2000;
/// ACE flag: everyone.
pub const ACE_EVERYONE: u16 = 0x4000;

/// ACE mask: read, or list.
pub const ACE_READ_DATA: u32 = 0x1;
/// ACE mask: write, or add files.
pub const ACE_WRITE_DATA: u32 = 0x2;
/// ACE mask: append, or add directories.
pub const ACE_APPEND_DATA: u32 = 0x4;
/// ACE mask: execute, or search.
pub const ACE_EXECUTE: u32 = 0x20;
/// ACE mask: delete children.
pub const ACE_DELETE_CHILD: u32 = 0x40;

/// Access that the owner always has: read and write xattrs, attributes, ACL and owner, and
/// synchronise.
const OWNER_ALWAYS: u32 = 0x1E_0198;
/// Access that everyone always has: read xattrs, attributes and ACL, and synchronise.
const ALWAYS: u32 = 0x12_0088;

/// An access control entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ace {
    /// `ACE_ALLOW`, `ACE_DENY`, 2 audit, 3 alarm, 5 to 8 object forms.
    pub kind: u16,
    /// Kind of subject, and inheritance.
    pub flags: u16,
    /// Which accesses.
    pub mask: u32,
    /// Uid or gid, when the flags name no class.
    pub who: Option<u64>,
}

/// Bytes of an ACE with this type and these flags.
pub fn ace_len(kind: u16, flags: u16) -> usize {
    const WHO: u16 = ACE_OWNER | ACE_GROUP | ACE_EVERYONE | ACE_IDENTIFIER_GROUP;
    if (5..=8).contains(&kind) {
        return 48;
    }
    match flags & WHO {
        w if w == ACE_OWNER || w == ACE_GROUP | ACE_IDENTIFIER_GROUP || w == ACE_EVERYONE => 8,
        _ => 16,
    }
}

/// The ACEs in the bytes of a DACL_ACES attribute.
pub fn parse_aces(b: &[u8]) -> Result<Vec<Ace>> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < b.len() {
        let left = b.len() - at;
        let len = if left < 8 { 8 } else { ace_len(le16(b, at), le16(b, at + 2)) };
        if left < len {
            return Err(Error::corrupt(format!("ACL entry of {len} bytes where {left} are left")));
        }
        let who = (len >= 16).then(|| le64(b, at + 8));
        out.push(Ace { kind: le16(b, at), flags: le16(b, at + 2), mask: le32(b, at + 4), who });
        at += len;
    }
    Ok(out)
}

/// The bytes of ACEs without object forms.
pub fn aces_to_bytes(aces: &[Ace]) -> Vec<u8> {
    let mut b = Vec::new();
    for a in aces {
        let mut e = [0u8; 8];
        put_le16(&mut e, 0, a.kind);
        put_le16(&mut e, 2, a.flags);
        put_le32(&mut e, 4, a.mask);
        b.extend_from_slice(&e);
        if ace_len(a.kind, a.flags) > 8 {
            b.extend_from_slice(&a.who.unwrap_or(0).to_le_bytes());
        }
    }
    b
}

/// The ACL that is equivalent to a mode (format page 08 section 4). `delete_child`: writing
/// includes deleting children, as OpenZFS 2.1 writes it for new objects.
pub fn trivial_acl(mode: u64, delete_child: bool) -> Vec<Ace> {
    let bits = |shift: u32| -> u32 {
        let m = mode >> shift;
        let mut v = 0;
        if m & 4 != 0 {
            v |= ACE_READ_DATA;
        }
        if m & 2 != 0 {
            v |= ACE_WRITE_DATA | ACE_APPEND_DATA | if delete_child { ACE_DELETE_CHILD } else { 0 };
        }
        if m & 1 != 0 {
            v |= ACE_EXECUTE;
        }
        v
    };
    let (user, group, other) = (bits(6), bits(3), bits(0));
    let ace = |kind, flags, mask| Ace { kind, flags, mask, who: None };
    let (owner, owning_group) = (ACE_OWNER, ACE_GROUP | ACE_IDENTIFIER_GROUP);
    let first = [
        ace(ACE_ALLOW, owner, user & !group & other),
        ace(ACE_DENY, owner, !user & (group | other)),
        ace(ACE_DENY, owning_group, !group & other),
    ];
    let mut out: Vec<Ace> = first.into_iter().filter(|a| a.mask != 0).collect();
    out.push(ace(ACE_ALLOW, owner, OWNER_ALWAYS | user));
    out.push(ace(ACE_ALLOW, owning_group, ALWAYS | group));
    out.push(ace(ACE_ALLOW, ACE_EVERYONE, ALWAYS | other));
    out
}

/// Bytes of a znode.
pub const ZNODE_SIZE: usize = 264;
/// Bytes of the scan stamp that may follow it.
pub const SCANSTAMP_SIZE: usize = 32;

/// Where the ACL is in a znode (format page 16 section 3).
pub const ZNODE_ACL: usize = 176;
/// Bytes of ACEs that a znode has room for.
const ZNODE_ACES: usize = 72;
/// Bytes of an ACE of ZPL versions 1 and 2.
const OLD_ACE_SIZE: usize = 12;

/// The ACL of a znode in a file system of ZPL version `version`, before 5; none if there is no room
/// for it.
pub fn znode_acl(aces: &[Ace], version: u64) -> Option<[u8; ZNODE_SIZE - ZNODE_ACL]> {
    let mut out = [0; ZNODE_SIZE - ZNODE_ACL];
    let is_new = version >= ZPL_VERSION_FUID;
    let bytes = match is_new {
        true => aces_to_bytes(aces),
        false => {
            let mut bytes = vec![0; aces.len() * OLD_ACE_SIZE];
            for (b, ace) in bytes.chunks_mut(OLD_ACE_SIZE).zip(aces) {
                b[..4].copy_from_slice(&u32::try_from(ace.who.unwrap_or(0)).ok()?.to_le_bytes());
                b[4..8].copy_from_slice(&ace.mask.to_le_bytes());
                b[8..10].copy_from_slice(&ace.flags.to_le_bytes());
                b[10..].copy_from_slice(&ace.kind.to_le_bytes());
            }
            bytes
        }
    };
    let (size, count) = (u16::try_from(bytes.len()).ok()?, u16::try_from(aces.len()).ok()?);
    // Number and size change places between the forms.
    let (first, second) = if is_new { (size, count) } else { (count, size) };
    out[8..12].copy_from_slice(&u32::from(first).to_le_bytes());
    out[12..14].copy_from_slice(&u16::from(is_new).to_le_bytes());
    out[14..16].copy_from_slice(&second.to_le_bytes());
    out[16..].get_mut(..bytes.len()).filter(|_| bytes.len() <= ZNODE_ACES)?.copy_from_slice(&bytes);
    Some(out)
}

/// The entries of the ACL of a znode; none if it is in an object of its own, or damaged.
pub fn znode_aces(acl: &[u8]) -> Option<Vec<Ace>> {
    let acl = acl.get(..ZNODE_SIZE - ZNODE_ACL).filter(|acl| le64(acl, 0) == 0)?;
    let is_new = le16(acl, 12) != 0;
    let (first, second) = (le32(acl, 8) as usize, usize::from(le16(acl, 14)));
    let (size, count) = if is_new { (first, second) } else { (second, first) };
    let bytes = acl.get(16..16usize.checked_add(size)?)?;
    if is_new {
        return parse_aces(bytes).ok().filter(|aces| aces.len() == count);
    }
    let aces: Vec<Ace> = bytes.chunks_exact(OLD_ACE_SIZE).map(old_ace).collect();
    Some(aces).filter(|aces| aces.len() == count && bytes.len() == count * OLD_ACE_SIZE)
}

/// An ACE of ZPL versions 1 and 2.
fn old_ace(b: &[u8]) -> Ace {
    let (flags, kind) = (le16(b, 8), le16(b, 10));
    let names = ace_len(kind, flags) > 8;
    Ace { kind, flags, mask: le32(b, 4), who: names.then(|| le32(b, 0).into()) }
}

/// The bonus of a file before ZPL version 5.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ZnodePhys {
    /// Access time: seconds, nanoseconds.
    pub atime: [u64; 2],
    /// Modification time.
    pub mtime: [u64; 2],
    /// Change time.
    pub ctime: [u64; 2],
    /// Creation time.
    pub crtime: [u64; 2],
    /// Txg of creation.
    pub generation: u64,
    /// Mode with type.
    pub mode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Parent directory.
    pub parent: u64,
    /// Links.
    pub links: u64,
    /// Xattr directory or 0.
    pub xattr: u64,
    /// Device number.
    pub rdev: u64,
    /// [`pflags`].
    pub flags: u64,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// The ACL's 88 bytes (format page 16 section 3).
    pub acl: Vec<u8>,
    /// The bytes after it: a symlink's target, or a scan stamp.
    pub tail: Vec<u8>,
}

impl ZnodePhys {
    /// The znode in bonus `b`.
    pub fn parse(b: &[u8]) -> Result<ZnodePhys> {
        if b.len() < ZNODE_SIZE {
            return Err(Error::corrupt(format!("znode of {} bytes", b.len())));
        }
        let time = |at: usize| [le64(b, at), le64(b, at + 8)];
        Ok(ZnodePhys {
            atime: time(0),
            mtime: time(16),
            ctime: time(32),
            crtime: time(48),
            generation: le64(b, 64),
            mode: le64(b, 72),
            size: le64(b, 80),
            parent: le64(b, 88),
            links: le64(b, 96),
            xattr: le64(b, 104),
            rdev: le64(b, 112),
            flags: le64(b, 120),
            uid: le64(b, 128),
            gid: le64(b, 136),
            acl: b[ZNODE_ACL..ZNODE_SIZE].to_vec(),
            tail: b[ZNODE_SIZE..].to_vec(),
        })
    }
    /// The target of a symbolic link, when it is in the bonus.
    pub fn symlink_target(&self) -> Option<&[u8]> {
        if self.mode & S_IFMT != S_IFLNK {
            return None;
        }
        self.tail.get(..usize::try_from(self.size).ok()?).filter(|t| !t.is_empty())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn flags_of_new_objects() {
        assert_eq!(new_pflags(S_IFDIR | 0o755, false, 5), 0x408_0000_0144);
        assert_eq!(new_pflags(S_IFDIR | 0o755, true, 5), 0x8408_0000_0144);
        assert_eq!(new_pflags(S_IFREG | 0o644, true, 5), 0x8408_0000_0004);
        assert_eq!(new_pflags(S_IFREG | 0o644, false, 2), 0x4);
    }

    #[test]
    fn trivial_acls_of_real_pools() {
        let masks = |mode, dc| trivial_acl(mode, dc).iter().map(|a| (a.kind, a.flags, a.mask)).collect::<Vec<_>>();
        assert_eq!(masks(0o755, false), [(0, 0x1000, 0x1E01BF), (0, 0x2040, 0x1200A9), (0, 0x4000, 0x1200A9)]);
        assert_eq!(masks(0o644, false), [(0, 0x1000, 0x1E019F), (0, 0x2040, 0x120089), (0, 0x4000, 0x120089)]);
        assert_eq!(masks(0o644, true)[0].2, 0x1E01DF);
        assert_eq!(
            masks(0o604, false),
            [(0, 0x1000, 1), (1, 0x2040, 1), (0, 0x1000, 0x1E019F), (0, 0x2040, 0x120088), (0, 0x4000, 0x120089)]
        );
        assert_eq!(masks(0o070, false)[0], (1, 0x1000, 0x27));
    }

    #[test]
    fn acls_of_znodes() {
        let le32 = |b: &[u8], at: usize| u32::from_le_bytes(b[at..at + 4].try_into().unwrap());
        // The words of a trivial ACL in reference pools.
        let new = znode_acl(&trivial_acl(0o755, false), 3).unwrap();
        assert_eq!((le32(&new, 8), le16(&new, 12), le16(&new, 14)), (24, 1, 3));
        assert_eq!(parse_aces(&new[16..40]).unwrap(), trivial_acl(0o755, false));
        let old = znode_acl(&trivial_acl(0o755, false), 1).unwrap();
        assert_eq!((le32(&old, 8), le16(&old, 12), le16(&old, 14)), (3, 0, 36));
        assert_eq!((le32(&old, 16), le32(&old, 20), le16(&old, 24), le16(&old, 26)), (0, 0x1E_01BF, 0x1000, 0));
        // All that a mode comes to fits, and is found again.
        for mode in 0..0o1000 {
            for version in 1..5 {
                let aces = trivial_acl(mode, version % 2 == 0);
                assert_eq!(znode_aces(&znode_acl(&aces, version).unwrap()), Some(aces));
            }
            assert!(
                znode_acl(&trivial_acl(mode, false), 2).is_some() && znode_acl(&trivial_acl(mode, true), 4).is_some()
            );
        }
        let seven = vec![trivial_acl(0o755, false)[0]; 7];
        assert!(znode_acl(&seven, 1).is_none() && znode_acl(&seven, 3).is_some());
    }

    #[test]
    fn dirents() {
        let d = Dirent::new(S_IFREG | 0o644, 0x1234);
        assert_eq!((d.dtype, d.pack()), (8, 8 << 60 | 0x1234));
        assert_eq!(Dirent::unpack(d.pack()), d);
    }

    proptest! {
        #[test]
        fn aces_round_trip(list in proptest::collection::vec((0u16..5, any::<u16>(), any::<u32>(), any::<u64>()), 0..20)) {
            let aces: Vec<Ace> = list.into_iter()
                .map(|(kind, flags, mask, who)| Ace { kind, flags, mask, who: (ace_len(kind, flags) > 8).then_some(who) })
                .collect();
            prop_assert_eq!(parse_aces(&aces_to_bytes(&aces)).unwrap(), aces);
        }

        #[test]
        fn hostile_bytes_never_panic(b in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = (parse_aces(&b), znode_aces(&b));
            if let Ok(z) = ZnodePhys::parse(&b) {
                let _ = z.symlink_target();
            }
        }
    }
}
