//! The attributes that nearly every operation on a file needs, as one struct.

use ondisk::bytes::{le16, le32, le64, put_le64};
use ondisk::sa::Attr;
use ondisk::zpl::ZNODE_SIZE;

/// A time as stored: seconds since 1970 and nanoseconds.
pub type Times = [u64; 2];

/// The attributes of fixed length. Those that an object does not have are 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ZnodeAttrs {
    /// Mode with type.
    pub mode: u64,
    /// Size in bytes; of a directory its entries + 2.
    pub size: u64,
    /// Txg of creation.
    pub generation: u64,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Parent directory.
    pub parent: u64,
    /// Flags (`ondisk::zpl::pflags`).
    pub flags: u64,
    /// Access time.
    pub atime: Times,
    /// Modification time.
    pub mtime: Times,
    /// Change time.
    pub ctime: Times,
    /// Creation time.
    pub crtime: Times,
    /// Links.
    pub links: u64,
    /// Xattr directory, 0 without one.
    pub xattr: u64,
    /// Device number, 0 if the file is no device.
    pub rdev: u64,
    /// Project, 0 by default.
    pub projid: u64,
    /// Number of entries of the ACL.
    pub dacl_count: u64,
}

/// A field of the struct: one word or a time.
enum Field<'a> {
    Word(&'a mut u64),
    Time(&'a mut Times),
}

impl ZnodeAttrs {
    /// A directory loses `gone` entries and gets `added`. A damaged one may have any size: it stays
    /// in its range.
    pub fn change_entries(&mut self, gone: u64, added: u64) {
        self.size = self.size.saturating_sub(gone).saturating_add(added);
    }
    /// A directory loses `gone` subdirectories, which link to it, and gets `added`; as
    /// [`ZnodeAttrs::change_entries`] in any state.
    pub fn change_subfolders(&mut self, gone: u64, added: u64) {
        self.links = self.links.saturating_sub(gone).saturating_add(added);
    }
    fn field(&mut self, attr: Attr) -> Option<Field<'_>> {
        use Field::{Time, Word};
        Some(match attr {
            Attr::Mode => Word(&mut self.mode),
            Attr::Size => Word(&mut self.size),
            Attr::Gen => Word(&mut self.generation),
            Attr::Uid => Word(&mut self.uid),
            Attr::Gid => Word(&mut self.gid),
            Attr::Parent => Word(&mut self.parent),
            Attr::Flags => Word(&mut self.flags),
            Attr::Atime => Time(&mut self.atime),
            Attr::Mtime => Time(&mut self.mtime),
            Attr::Ctime => Time(&mut self.ctime),
            Attr::Crtime => Time(&mut self.crtime),
            Attr::Links => Word(&mut self.links),
            Attr::Xattr => Word(&mut self.xattr),
            Attr::Rdev => Word(&mut self.rdev),
            Attr::Projid => Word(&mut self.projid),
            Attr::DaclCount => Word(&mut self.dacl_count),
            _ => return None,
        })
    }
    /// Loads an attribute's bytes; attributes outside the struct are ignored.
    pub(super) fn load(&mut self, attr: Attr, v: &[u8]) {
        match self.field(attr) {
            Some(Field::Word(w)) if v.len() == 8 => *w = le64(v, 0),
            Some(Field::Time(t)) if v.len() == 16 => *t = [le64(v, 0), le64(v, 8)],
            _ => {}
        }
    }
    /// Stores an attribute's bytes into `out`; false if it is not in the struct.
    pub(super) fn store(&mut self, attr: Attr, out: &mut [u8]) -> bool {
        match self.field(attr) {
            Some(Field::Word(w)) if out.len() == 8 => put_le64(out, 0, *w),
            Some(Field::Time(t)) if out.len() == 16 => {
                put_le64(out, 0, t[0]);
                put_le64(out, 8, t[1]);
            }
            _ => return false,
        }
        true
    }
    /// The bytes of an attribute of the struct.
    pub(super) fn bytes(&mut self, attr: Attr) -> Option<Vec<u8>> {
        Some(match self.field(attr)? {
            Field::Word(w) => w.to_le_bytes().to_vec(),
            Field::Time(t) => t.iter().flat_map(|w| w.to_le_bytes()).collect(),
        })
    }

    /// From a znode, which has been checked to be long enough.
    pub(super) fn from_znode(b: &[u8]) -> ZnodeAttrs {
        let mut a = ZnodeAttrs::default();
        for (attr, at) in ZNODE_FIELDS {
            match a.field(attr) {
                Some(Field::Word(w)) => *w = le64(b, at),
                Some(Field::Time(t)) => *t = [le64(b, at), le64(b, at + 8)],
                None => {}
            }
        }
        // Old ACLs have their number of entries where newer ones have their size (format page 16
        // section 3).
        a.dacl_count = if le16(b, 188) == 0 { u64::from(le32(b, 184)) } else { u64::from(le16(b, 190)) };
        a
    }
    /// Changes the fields of a znode; project and ACL are ignored.
    pub(super) fn to_znode(mut self, b: &mut [u8]) {
        assert!(b.len() >= ZNODE_SIZE, "znode of {} bytes", b.len());
        for (attr, at) in ZNODE_FIELDS {
            match self.field(attr) {
                Some(Field::Word(w)) => put_le64(b, at, *w),
                Some(Field::Time(t)) => {
                    put_le64(b, at, t[0]);
                    put_le64(b, at + 8, t[1]);
                }
                None => {}
            }
        }
    }
}

/// Where fields are in a znode (format page 08 section 9).
const ZNODE_FIELDS: [(Attr, usize); 14] = [
    (Attr::Atime, 0),
    (Attr::Mtime, 16),
    (Attr::Ctime, 32),
    (Attr::Crtime, 48),
    (Attr::Gen, 64),
    (Attr::Mode, 72),
    (Attr::Size, 80),
    (Attr::Parent, 88),
    (Attr::Links, 96),
    (Attr::Xattr, 104),
    (Attr::Rdev, 112),
    (Attr::Flags, 120),
    (Attr::Uid, 128),
    (Attr::Gid, 136),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_damaged_directories_stay_in_range() {
        for (size, gone, added, want) in [
            (2, 0, 1, 3),
            (3, 1, 0, 2),
            (3, 1, 1, 3),
            (0, 1, 0, 0),
            (0, 1, 1, 1),
            (u64::MAX, 0, 1, u64::MAX),
            (u64::MAX, 1, 1, u64::MAX),
            (u64::MAX, 1, 0, u64::MAX - 1),
        ] {
            let mut a = ZnodeAttrs { size, links: size, ..ZnodeAttrs::default() };
            a.change_entries(gone, added);
            a.change_subfolders(gone, added);
            assert_eq!((a.size, a.links), (want, want), "{size} {gone} {added}");
        }
    }

    #[test]
    fn znode_round_trip() {
        let b: Vec<u8> = (0..=255).chain(0..8).collect();
        let a = ZnodeAttrs::from_znode(&b);
        assert_eq!(a.atime[1], le64(&b, 8));
        assert_eq!(a.gid, le64(&b, 136));
        let mut out = vec![0; 264];
        a.to_znode(&mut out);
        assert_eq!(out[..144], b[..144]);
        assert!(out[144..].iter().all(|&x| x == 0));
    }
}
