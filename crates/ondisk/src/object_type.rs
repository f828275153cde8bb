//! Object types: the kind of content of a block or bonus buffer, stored in dnodes and block
//! pointers (format page 02 section 2).
//!
//! Types 0 to 53 are fixed numbers. Newer structures use the self-describing `DMU_OTN` form,
//! `0x80 | 0x40 metadata | 0x20 encrypted | byteswap index`, which holds all that generic code
//! needs: whether the block is metadata (compression and copies policy, accounting), whether an
//! encrypted dataset encrypts it, and how to convert it from the other byte order.

use std::fmt;

/// An object type as stored in dnodes and block pointers. Any byte can be held;
/// [`ObjectType::is_valid`] is true if the format defines it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ObjectType(pub u8);

/// How a block of some type is converted from the other byte order (format page 02 section 7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SwapClass {
    /// Bytes: nothing to do.
    U8,
    /// Array of u16.
    U16,
    /// Array of u32.
    U32,
    /// Array of u64.
    U64,
    /// A micro ZAP, or a header, table or leaf block of a fat ZAP.
    Zap,
    /// Dnodes.
    Dnode,
    /// An object set.
    Objset,
    /// A znode of file systems before version 5.
    Znode,
    /// ACEs of 12 bytes of ZPL versions 1 and 2.
    OldAcl,
    /// ACEs of variable length.
    Acl,
}

const M: u8 = 1;
const E: u8 = 2;

struct Info {
    name: &'static str,
    flags: u8,
    class: SwapClass,
}

macro_rules! types {
    ($($num:literal $konst:ident $name:literal $flags:expr, $class:ident, $doc:literal;)*) => {
        #[allow(missing_docs)]
        impl ObjectType {
            $(#[doc = $doc] pub const $konst: ObjectType = ObjectType($num);)*
        }
        const TABLE: &[Info] = &[$(Info { name: $name, flags: $flags, class: SwapClass::$class },)*];
    };
}

types! {
    0 NONE "unallocated" M, U8, "No object, or no bonus.";
    1 OBJECT_DIRECTORY "object directory" M, Zap, "The directory of the MOS.";
    2 OBJECT_ARRAY "object array" M, U64, "Object numbers, such as the metaslab array.";
    3 PACKED_NVLIST "packed nvlist" M, U8, "A packed name-value list.";
    4 PACKED_NVLIST_SIZE "packed nvlist size" M, U64, "Bonus: bytes of the packed list.";
    5 BPOBJ "bpobj" M, U64, "A list of block pointers.";
    6 BPOBJ_HDR "bpobj header" M, U64, "Bonus of a block pointer list.";
    7 SPACE_MAP_HEADER "SPA space map header" M, U64, "Bonus of a space map.";
    8 SPACE_MAP "SPA space map" M, U64, "A space map.";
    9 INTENT_LOG "ZIL intent log" M | E, U64, "A block of an intent log.";
    10 DNODE "DMU dnode" M | E, Dnode, "Dnodes: the contents of a meta-dnode.";
    11 OBJSET "DMU objset" M, Objset, "An object set block.";
    12 DSL_DIR "DSL directory" M, U64, "Bonus of a DSL directory.";
    13 DSL_DIR_CHILD_MAP "DSL directory child map" M, Zap, "Names of child directories.";
    14 DSL_DS_SNAP_MAP "DSL dataset snap map" M, Zap, "Names of snapshots.";
    15 DSL_PROPS "DSL props" M, Zap, "Properties.";
    16 DSL_DATASET "DSL dataset" M, U64, "Bonus of a dataset.";
    17 ZNODE "ZFS znode" M | E, Znode, "Bonus of a file before ZPL version 5.";
    18 OLDACL "ZFS V0 ACL" M | E, OldAcl, "External ACL of ZPL versions 1 and 2.";
    19 PLAIN_FILE "ZFS plain file" E, U8, "File contents.";
    20 DIRECTORY "ZFS directory" M | E, Zap, "A directory.";
    21 MASTER_NODE "ZFS master node" M, Zap, "Object 1 of a file system.";
    22 UNLINKED_SET "ZFS delete queue" M | E, Zap, "Files without a name that wait to be freed.";
    23 ZVOL "zvol object" E, U8, "Volume contents.";
    24 ZVOL_PROP "zvol prop" M, Zap, "Volume properties.";
    25 OTHER_U8 "other uint8[]" E, U8, "Other bytes.";
    26 OTHER_U64 "other uint64[]" E, U64, "Other u64s.";
    27 OTHER_ZAP "other ZAP" M, Zap, "Other ZAP.";
    28 ERROR_LOG "persistent error log" M, Zap, "Blocks that could not be read.";
    29 SPA_HISTORY "SPA history" M, U8, "The pool's history.";
    30 SPA_HISTORY_OFFSETS "SPA history offsets" M, U64, "Bonus of the history.";
    31 POOL_PROPS "Pool properties" M, Zap, "Pool properties.";
    32 DSL_PERMS "DSL permissions" M, Zap, "Delegated permissions.";
    33 ACL "ZFS ACL" M | E, Acl, "External ACL of ZPL versions 3 and 4.";
    34 SYSACL "ZFS SYSACL" M | E, U8, "Bonus of an external ACL.";
    35 FUID "FUID table" M | E, U8, "Domains of foreign ids.";
    36 FUID_SIZE "FUID table size" M, U64, "Bonus of the domain table.";
    37 NEXT_CLONES "DSL dataset next clones" M, Zap, "Clones of a snapshot.";
    38 SCAN_QUEUE "scan work queue" M, Zap, "Datasets that a scan has yet to visit.";
    39 USERGROUP_USED "ZFS user/group/project used" M | E, Zap, "Space by owner.";
    40 USERGROUP_QUOTA "ZFS user/group/project quota" M | E, Zap, "Quotas by owner.";
    41 USERREFS "snapshot refcount tags" M, Zap, "Holds of a snapshot.";
    42 DDT_ZAP "DDT ZAP algorithm" M, Zap, "A dedup table.";
    43 DDT_STATS "DDT statistics" M, Zap, "Histograms of dedup tables.";
    44 SA "System attributes" M | E, U8, "Bonus or spill block with system attributes.";
    45 SA_MASTER_NODE "SA master node" M | E, Zap, "Where attribute registry and layouts are.";
    46 SA_ATTR_REGISTRATION "SA attr registration" M | E, Zap, "Attribute names and numbers.";
    47 SA_ATTR_LAYOUTS "SA attr layouts" M | E, Zap, "Attribute sequences.";
    48 SCAN_XLATE "scan translations" M, Zap, "Scan translations.";
    49 DEDUP "deduplicated block" E, U8, "Never stored.";
    50 DEADLIST "DSL deadlist map" M, Zap, "A deadlist.";
    51 DEADLIST_HDR "DSL deadlist map hdr" M, U64, "Bonus of a deadlist.";
    52 DSL_CLONES "DSL dir clones" M, Zap, "Clones of a directory's snapshots.";
    53 BPOBJ_SUBOBJ "bpobj subobj" M, U64, "Lists inside a block pointer list.";
}

const CLASSES: [(SwapClass, &str); 10] = [
    (SwapClass::U8, "uint8"),
    (SwapClass::U16, "uint16"),
    (SwapClass::U32, "uint32"),
    (SwapClass::U64, "uint64"),
    (SwapClass::Zap, "zap"),
    (SwapClass::Dnode, "dnode"),
    (SwapClass::Objset, "objset"),
    (SwapClass::Znode, "znode"),
    (SwapClass::OldAcl, "oldacl"),
    (SwapClass::Acl, "acl"),
];

impl ObjectType {
    /// A self-describing byte array, data.
    pub const OTN_U8_DATA: ObjectType = ObjectType(0x80);
    /// A self-describing byte array, metadata.
    pub const OTN_U8_METADATA: ObjectType = ObjectType(0xC0);
    /// A self-describing u32 array, metadata.
    pub const OTN_U32_METADATA: ObjectType = ObjectType(0xC2);
    /// A self-describing u64 array, metadata.
    pub const OTN_U64_METADATA: ObjectType = ObjectType(0xC3);
    /// A self-describing ZAP, metadata: feature ZAPs, vdev ZAPs, zapified directories and datasets.
    pub const OTN_ZAP_METADATA: ObjectType = ObjectType(0xC4);

    fn info(self) -> Option<&'static Info> {
        TABLE.get(usize::from(self.0))
    }
    fn otn_class(self) -> Option<(SwapClass, &'static str)> {
        if self.0 & 0x80 == 0 { None } else { CLASSES.get(usize::from(self.0 & 0x1f)).copied() }
    }
    /// Whether the format defines this number.
    pub fn is_valid(self) -> bool {
        self.info().is_some() || self.otn_class().is_some()
    }
    /// Whether blocks of this type are metadata: compressed by the metadata rule, one more copy,
    /// psize in the uncompressed sums.
    pub fn is_metadata(self) -> bool {
        if self.0 & 0x80 != 0 { self.0 & 0x40 != 0 } else { self.info().is_none_or(|i| i.flags & M != 0) }
    }
    /// Whether an encrypted dataset encrypts level-0 blocks of this type.
    pub fn is_encrypted_ok(self) -> bool {
        if self.0 & 0x80 != 0 { self.0 & 0x20 != 0 } else { self.info().is_some_and(|i| i.flags & E != 0) }
    }
    /// Whether the fill count of a level-0 block counts dnodes rather than blocks; such blocks are
    /// never embedded.
    pub fn has_fill(self) -> bool {
        self == ObjectType::DNODE || self == ObjectType::OBJSET
    }
    /// Whether data of this type is a ZAP.
    pub fn is_zap(self) -> bool {
        self.swap_class() == SwapClass::Zap
    }
    /// How blocks of this type are converted from the other byte order; undefined numbers are taken
    /// as bytes.
    pub fn swap_class(self) -> SwapClass {
        match (self.info(), self.otn_class()) {
            (Some(i), _) => i.class,
            (None, Some((class, _))) => class,
            (None, None) => SwapClass::U8,
        }
    }
    /// The name as `zdb` prints it.
    pub fn name(self) -> &'static str {
        match (self.info(), self.otn_class()) {
            (Some(i), _) => i.name,
            (None, Some((_, name))) => name,
            (None, None) => "UNKNOWN",
        }
    }
}

impl fmt::Display for ObjectType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
impl fmt::Debug for ObjectType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.0, self.name())
    }
}
impl From<u8> for ObjectType {
    fn from(v: u8) -> ObjectType {
        ObjectType(v)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_matches_page_02() {
        assert_eq!(TABLE.len(), 54);
        assert_eq!(ObjectType::BPOBJ_SUBOBJ.0, 53);
        let data: Vec<u8> = (0..54).filter(|&t| !ObjectType(t).is_metadata()).collect();
        assert_eq!(data, [19, 23, 25, 26, 49]);
        let enc: Vec<u8> = (0..54).filter(|&t| ObjectType(t).is_encrypted_ok()).collect();
        assert_eq!(enc, [9, 10, 17, 18, 19, 20, 22, 23, 25, 26, 33, 34, 35, 39, 40, 44, 45, 46, 47, 49]);
    }

    #[test]
    fn self_describing_types() {
        let t = ObjectType::OTN_ZAP_METADATA;
        assert!(t.is_valid() && t.is_metadata() && !t.is_encrypted_ok() && t.is_zap());
        assert_eq!(t.name(), "zap");
        assert!(!ObjectType::OTN_U8_DATA.is_metadata());
        assert!(!ObjectType(0x8a).is_valid());
        assert!(!ObjectType(54).is_valid());
    }
}
