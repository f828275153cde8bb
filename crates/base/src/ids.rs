//! Identities: small integers that must not be mixed up.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $int:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
        pub struct $name(pub $int);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { self.0.fmt(f) }
        }
        impl From<$int> for $name {
            fn from(v: $int) -> Self { Self(v) }
        }
    };
}

id!(
    /// A transaction group number.
    Txg, u64
);
id!(
    /// A globally unique id of a pool, vdev, dataset or snapshot; never 0 when assigned.
    Guid, u64
);
id!(
    /// An object (dnode) number within an object set; 0 is the meta-dnode.
    ObjectId, u64
);
id!(
    /// A block number within one level of one object.
    BlkId, u64
);
id!(
    /// The index of a top-level vdev, as block pointers name it.
    VdevId, u32
);
id!(
    /// A level of a block tree: 0 is data, above it indirect blocks.
    Level, u8
);

impl Txg {
    /// The next transaction group.
    pub fn next(self) -> Txg {
        Txg(self.0 + 1)
    }
    /// The slot of per-txg state in an array of [`crate::TXG_SIZE`] entries.
    pub fn slot(self) -> usize {
        (self.0 & 3) as usize
    }
}

impl ObjectId {
    /// The meta-dnode.
    pub const META: ObjectId = ObjectId(0);
    /// The user space accounting object (-1), format page 08.
    pub const USERUSED: ObjectId = ObjectId(u64::MAX);
    /// The group space accounting object (-2).
    pub const GROUPUSED: ObjectId = ObjectId(u64::MAX - 1);
    /// The project space accounting object (-3).
    pub const PROJECTUSED: ObjectId = ObjectId(u64::MAX - 2);
}
