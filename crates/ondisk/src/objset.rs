//! Object sets: the block under which all objects of a dataset, volume or the MOS hang (format page
//! 03 section 4).
//!
//! It embeds the meta-dnode, whose data are the dnodes of all other objects, the intent log's
//! header, and, since pool version 15, the dnodes of the accounting objects -1, -2 and (in the
//! 4096-byte form) -3. The block has one of three sizes by the time that it was made; all are read,
//! and each is written back in its own size.

use base::{Error, Result};

use crate::bytes::{le64, put_le64};
use crate::dnode::{DNODE_SIZE, DnodePhys};
use crate::feature::FeatureId;
use crate::object_type::ObjectType;
use crate::zil::{ZIL_HEADER_SIZE, ZilHeader};

/// Block size before pool version 15: no accounting.
pub const OBJSET_SIZE_V1: usize = 1024;
/// Block size with user and group accounting.
pub const OBJSET_SIZE_V2: usize = 2048;
/// Block size with project accounting too; new object sets have it.
pub const OBJSET_SIZE_V3: usize = 4096;

/// Object set flag: user and group space accounting is complete.
pub const OBJSET_USERACCOUNTING_COMPLETE: u64 = 1;
/// Object set flag: user and group object accounting is complete.
pub const OBJSET_USEROBJACCOUNTING_COMPLETE: u64 = 2;
/// Object set flag: project accounting is complete.
pub const OBJSET_PROJECTQUOTA_COMPLETE: u64 = 4;
/// The accounting that needs a feature of the pool, which the dataset then has (format page 16
/// section 7).
pub const ACCOUNTING_FEATURES: [(u64, FeatureId); 2] = [
    (OBJSET_USEROBJACCOUNTING_COMPLETE, FeatureId::UserobjAccounting),
    (OBJSET_PROJECTQUOTA_COMPLETE, FeatureId::ProjectQuota),
];

/// Type of an object set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u64)]
pub enum ObjsetType {
    /// Nothing yet.
    #[default]
    None = 0,
    /// The pool's meta object set.
    Meta = 1,
    /// A file system.
    Zfs = 2,
    /// A volume.
    Zvol = 3,
    /// Something else, made by tests.
    Other = 4,
}

impl ObjsetType {
    /// The type with this number.
    pub fn from_u64(v: u64) -> Option<ObjsetType> {
        [ObjsetType::None, ObjsetType::Meta, ObjsetType::Zfs, ObjsetType::Zvol, ObjsetType::Other]
            .into_iter()
            .find(|&t| t as u64 == v)
    }
    /// The name as `zdb` prints it.
    pub fn name(self) -> &'static str {
        match self {
            ObjsetType::None => "NONE",
            ObjsetType::Meta => "META",
            ObjsetType::Zfs => "ZPL",
            ObjsetType::Zvol => "ZVOL",
            ObjsetType::Other => "OTHER",
        }
    }
}

/// An object set block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjsetPhys {
    /// Bytes of the block: one of the `OBJSET_SIZE_*`.
    pub size: usize,
    /// The meta-dnode.
    pub meta_dnode: DnodePhys,
    /// The intent log's header; ignored in snapshots.
    pub zil_header: ZilHeader,
    /// Type of the object set.
    pub os_type: ObjsetType,
    /// `OBJSET_*` flags.
    pub flags: u64,
    /// MAC over the fields that are the same on every machine (encryption).
    pub portable_mac: [u8; 32],
    /// MAC over the rest (encryption).
    pub local_mac: [u8; 32],
    /// Object -1; `None` when it has not been made or the block is too short for it.
    pub userused: Option<DnodePhys>,
    /// Object -2.
    pub groupused: Option<DnodePhys>,
    /// Object -3.
    pub projectused: Option<DnodePhys>,
}

const OFF_ZIL: usize = 512;
const OFF_TYPE: usize = 704;
const OFF_FLAGS: usize = 712;
const OFF_PORTABLE: usize = 720;
const OFF_LOCAL: usize = 752;
const OFF_USERUSED: usize = 1024;
const OFF_GROUPUSED: usize = 1536;
const OFF_PROJECTUSED: usize = 2048;

impl ObjsetPhys {
    /// A new, empty object set of the size written today. `meta_levels` is the height of the
    /// meta-dnode: 1 for the MOS, 6 for datasets.
    pub fn new(os_type: ObjsetType, meta_levels: u8) -> ObjsetPhys {
        ObjsetPhys {
            size: OBJSET_SIZE_V3,
            meta_dnode: DnodePhys::new_meta(meta_levels),
            zil_header: ZilHeader::default(),
            os_type,
            flags: 0,
            portable_mac: [0; 32],
            local_mac: [0; 32],
            userused: None,
            groupused: None,
            projectused: None,
        }
    }

    /// The object set in `b`, a whole block.
    pub fn parse(b: &[u8]) -> Result<ObjsetPhys> {
        if !matches!(b.len(), OBJSET_SIZE_V1 | OBJSET_SIZE_V2 | OBJSET_SIZE_V3) {
            return Err(Error::corrupt(format!("object set block of {} bytes", b.len())));
        }
        let dnode = |at: usize, name: &str| -> Result<Option<DnodePhys>> {
            match b.get(at..at + DNODE_SIZE) {
                None => Ok(None),
                Some(d) => DnodePhys::parse(d).map_err(|e| e.at(format_args!("object set's {name}"))),
            }
        };
        let Some(meta_dnode) = dnode(0, "meta-dnode")? else {
            return Err(Error::corrupt("object set without a meta-dnode"));
        };
        if meta_dnode.otype != ObjectType::DNODE || !(meta_dnode.datablksz() as usize).is_multiple_of(DNODE_SIZE) {
            return Err(Error::corrupt(format!("object set's meta-dnode has type {:?}", meta_dnode.otype)));
        }
        let os_type = le64(b, OFF_TYPE);
        let Some(os_type) = ObjsetType::from_u64(os_type) else {
            return Err(Error::corrupt(format!("object set of unknown type {os_type}")));
        };
        let (mut portable_mac, mut local_mac) = ([0; 32], [0; 32]);
        portable_mac.copy_from_slice(&b[OFF_PORTABLE..OFF_PORTABLE + 32]);
        local_mac.copy_from_slice(&b[OFF_LOCAL..OFF_LOCAL + 32]);
        Ok(ObjsetPhys {
            size: b.len(),
            meta_dnode,
            zil_header: ZilHeader::parse(&b[OFF_ZIL..OFF_ZIL + ZIL_HEADER_SIZE])?,
            os_type,
            flags: le64(b, OFF_FLAGS),
            portable_mac,
            local_mac,
            userused: dnode(OFF_USERUSED, "user accounting")?,
            groupused: dnode(OFF_GROUPUSED, "group accounting")?,
            projectused: dnode(OFF_PROJECTUSED, "project accounting")?,
        })
    }

    /// The block's bytes, [`ObjsetPhys::size`] of them. An accounting dnode that does not fit in
    /// the size must be absent.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut b = vec![0u8; self.size];
        self.meta_dnode.write_to(&mut b);
        self.zil_header.write_to(&mut b[OFF_ZIL..]);
        put_le64(&mut b, OFF_TYPE, self.os_type as u64);
        put_le64(&mut b, OFF_FLAGS, self.flags);
        b[OFF_PORTABLE..OFF_PORTABLE + 32].copy_from_slice(&self.portable_mac);
        b[OFF_LOCAL..OFF_LOCAL + 32].copy_from_slice(&self.local_mac);
        for (at, dn) in
            [(OFF_USERUSED, &self.userused), (OFF_GROUPUSED, &self.groupused), (OFF_PROJECTUSED, &self.projectused)]
        {
            if let Some(dn) = dn {
                dn.write_to(&mut b[at..]);
            }
        }
        b
    }

    /// Whether there is room for the user and group accounting dnodes.
    pub fn has_user_accounting(&self) -> bool {
        self.size >= OBJSET_SIZE_V2
    }
    /// Whether there is room for the project accounting dnode.
    pub fn has_project_accounting(&self) -> bool {
        self.size >= OBJSET_SIZE_V3
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn round_trip_in_every_size() {
        for size in [OBJSET_SIZE_V1, OBJSET_SIZE_V2, OBJSET_SIZE_V3] {
            let mut os = ObjsetPhys::new(ObjsetType::Zfs, 6);
            os.size = size;
            os.flags = 7;
            os.portable_mac = [3; 32];
            os.zil_header.flags = 2;
            if os.has_user_accounting() {
                os.userused = Some(DnodePhys::new(ObjectType::USERGROUP_USED, 512, 17, ObjectType::NONE, 0, 1));
            }
            if os.has_project_accounting() {
                os.projectused = os.userused.clone();
            }
            assert_eq!(ObjsetPhys::parse(&os.to_bytes()).unwrap(), os);
        }
    }

    #[test]
    fn refuses_what_is_no_object_set() {
        assert!(ObjsetPhys::parse(&[0; 1000]).is_err());
        assert!(ObjsetPhys::parse(&[0; 4096]).is_err());
        let mut b = ObjsetPhys::new(ObjsetType::Meta, 1).to_bytes();
        b[OFF_TYPE] = 9;
        assert!(ObjsetPhys::parse(&b).is_err());
    }
}
