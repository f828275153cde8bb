//! DSL directories and datasets: bonus buffers of the MOS objects that tie object sets to names and
//! space (format page 05 sections 1 and 2).
//!
//! A *directory* is a node of the pool's name tree with its space limits and properties; a
//! *dataset* is one object set, a head or a snapshot, linked to its neighbours in time. Both are
//! arrays of u64 of fixed length. The padding of both is kept, so that fields of newer software
//! survive a rewrite.

use base::{Error, Result};

use crate::blkptr::Blkptr;
use crate::bytes::{le64_words, put_le64_words};

/// Bytes of a directory's bonus.
pub const DSL_DIR_SIZE: usize = 256;
/// Bytes of a dataset's bonus.
pub const DSL_DATASET_SIZE: usize = 320;

/// Directory flag: the breakdown of used space is kept.
pub const DD_FLAG_USED_BREAKDOWN: u64 = 1;
/// Dataset flag: received in part.
pub const DS_FLAG_INCONSISTENT: u64 = 1;
/// Dataset flag: cannot be promoted.
pub const DS_FLAG_NOPROMOTE: u64 = 2;
/// Dataset flag: `unique_bytes` is exact.
pub const DS_FLAG_UNIQUE_ACCURATE: u64 = 4;
/// Dataset flag: destroyed when the last hold or clone goes.
pub const DS_FLAG_DEFER_DESTROY: u64 = 8;
/// Dataset flag: names are looked up without case.
pub const DS_FLAG_CI_DATASET: u64 = 0x1_0000;

/// Shares of a directory's used space, as indexes of [`DslDirPhys::used_breakdown`] (`dd_used_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Used {
    /// Blocks of the head dataset.
    Head = 0,
    /// Blocks that only snapshots hold.
    Snap = 1,
    /// Space used by children.
    Child = 2,
    /// Reservations of children beyond their use.
    ChildRsrv = 3,
    /// Unused refreservation.
    RefRsrv = 4,
}

/// Entries of the breakdown.
pub const DD_USED_NUM: usize = 5;

macro_rules! words {
    ($(#[$doc:meta])* $name:ident, $n:literal, { $($(#[$fdoc:meta])* $field:ident = $word:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name {
            $($(#[$fdoc])* pub $field: u64,)*
            /// Every word as it was read; named fields override theirs when written.
            raw: [u64; $n],
        }
        impl $name {
            fn from_words(raw: [u64; $n]) -> $name {
                $name { $($field: raw[$word],)* raw }
            }
            fn merged(&self) -> [u64; $n] {
                let mut w = self.raw;
                $(w[$word] = self.$field;)*
                w
            }
        }
    };
}

words! {
    /// The bonus of a DSL directory.
    DslDirWords, 32, {
        /// Seconds since 1970.
        creation_time = 0;
        /// The dataset that is its head; 0 for `$MOS` and `$FREE`.
        head_dataset_obj = 1;
        /// Parent directory; 0 for the root.
        parent_obj = 2;
        /// Snapshot that the head was made from.
        origin_obj = 3;
        /// ZAP of child directories.
        child_dir_zapobj = 4;
        /// Space of everything here and below, reservations included.
        used_bytes = 5;
        /// Sum of stored sizes.
        compressed_bytes = 6;
        /// Sum of uncompressed sizes.
        uncompressed_bytes = 7;
        /// Most that `used_bytes` may become; 0 for no limit.
        quota = 8;
        /// Space kept for this directory.
        reserved = 9;
        /// ZAP of properties.
        props_zapobj = 10;
        /// ZAP of delegated permissions, or 0.
        deleg_zapobj = 11;
        /// `DD_FLAG_*`.
        flags = 12;
        /// ZAP of datasets cloned from snapshots here, or 0.
        clones = 18;
    }
}

words! {
    /// The bonus of a dataset without its root pointer.
    DslDatasetWords, 40, {
        /// Directory.
        dir_obj = 0;
        /// Most recent snapshot, or the origin.
        prev_snap_obj = 1;
        /// Creation txg of that.
        prev_snap_txg = 2;
        /// Next newer snapshot or the head; 0 in a head.
        next_snap_obj = 3;
        /// ZAP of snapshot names; 0 in a snapshot.
        snapnames_zapobj = 4;
        /// 1 and the number of clones in a snapshot, 0 in a head.
        num_children = 5;
        /// Seconds since 1970.
        creation_time = 6;
        /// Txg of creation.
        creation_txg = 7;
        /// Deadlist.
        deadlist_obj = 8;
        /// Space of all blocks reachable.
        referenced_bytes = 9;
        /// Sum of stored sizes.
        compressed_bytes = 10;
        /// Sum of uncompressed sizes.
        uncompressed_bytes = 11;
        /// Space that only this dataset holds.
        unique_bytes = 12;
        /// Identity for NFS, 56 bits.
        fsid_guid = 13;
        /// Identity.
        guid = 14;
        /// `DS_FLAG_*`.
        flags = 15;
        /// ZAP of clones' next datasets, or 0.
        next_clones_obj = 32;
        /// ZAP of a snapshot's properties, or 0.
        props_obj = 33;
        /// ZAP of holds, or 0.
        userrefs_obj = 34;
    }
}

/// A DSL directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DslDirPhys {
    /// The plain fields, reached as if they were here.
    pub w: DslDirWords,
    /// Where `used_bytes` comes from: the shares of [`Used`], which add up to it.
    pub used_breakdown: [u64; DD_USED_NUM],
}

impl Default for DslDirPhys {
    fn default() -> DslDirPhys {
        DslDirPhys { w: DslDirWords::from_words([0; 32]), used_breakdown: [0; DD_USED_NUM] }
    }
}
impl std::ops::Deref for DslDirPhys {
    type Target = DslDirWords;
    fn deref(&self) -> &DslDirWords {
        &self.w
    }
}
impl std::ops::DerefMut for DslDirPhys {
    fn deref_mut(&mut self) -> &mut DslDirWords {
        &mut self.w
    }
}

impl DslDirPhys {
    /// The directory in bonus `b`.
    pub fn parse(b: &[u8]) -> Result<DslDirPhys> {
        if b.len() < DSL_DIR_SIZE {
            return Err(Error::corrupt(format!("DSL directory with a bonus of {} bytes", b.len())));
        }
        let w: [u64; 32] = le64_words(b);
        Ok(DslDirPhys { w: DslDirWords::from_words(w), used_breakdown: [w[13], w[14], w[15], w[16], w[17]] })
    }
    /// Stores the directory in the first [`DSL_DIR_SIZE`] bytes of `out`.
    pub fn write_to(&self, out: &mut [u8]) {
        let mut w = self.w.merged();
        w[13..18].copy_from_slice(&self.used_breakdown);
        put_le64_words(out, &w);
    }
    /// The bonus as bytes.
    pub fn to_bytes(&self) -> [u8; DSL_DIR_SIZE] {
        let mut b = [0; DSL_DIR_SIZE];
        self.write_to(&mut b);
        b
    }
}

/// A dataset: a head or a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DslDatasetPhys {
    /// The plain fields, reached as if they were here.
    pub w: DslDatasetWords,
    /// Root of the object set; a hole only in `$ORIGIN`.
    pub bp: Blkptr,
}

impl Default for DslDatasetPhys {
    fn default() -> DslDatasetPhys {
        DslDatasetPhys { w: DslDatasetWords::from_words([0; 40]), bp: Blkptr::hole() }
    }
}
impl std::ops::Deref for DslDatasetPhys {
    type Target = DslDatasetWords;
    fn deref(&self) -> &DslDatasetWords {
        &self.w
    }
}
impl std::ops::DerefMut for DslDatasetPhys {
    fn deref_mut(&mut self) -> &mut DslDatasetWords {
        &mut self.w
    }
}

impl DslDatasetPhys {
    /// The dataset in bonus `b`.
    pub fn parse(b: &[u8]) -> Result<DslDatasetPhys> {
        if b.len() < DSL_DATASET_SIZE {
            return Err(Error::corrupt(format!("dataset with a bonus of {} bytes", b.len())));
        }
        let w: [u64; 40] = le64_words(b);
        Ok(DslDatasetPhys { w: DslDatasetWords::from_words(w), bp: Blkptr::parse(&b[128..])? })
    }
    /// Stores the dataset in the first [`DSL_DATASET_SIZE`] bytes of `out`.
    pub fn write_to(&self, out: &mut [u8]) {
        let mut w = self.w.merged();
        w[16..32].copy_from_slice(&self.bp.0);
        put_le64_words(out, &w);
    }
    /// The bonus as bytes.
    pub fn to_bytes(&self) -> [u8; DSL_DATASET_SIZE] {
        let mut b = [0; DSL_DATASET_SIZE];
        self.write_to(&mut b);
        b
    }
    /// Whether this is a snapshot.
    pub fn is_snapshot(&self) -> bool {
        self.num_children != 0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_word_survives(words in any::<[[u64; 20]; 2]>(), used: u64, obj: u64) {
            let all: Vec<u64> = words.concat();
            let mut b = vec![0u8; DSL_DATASET_SIZE];
            put_le64_words(&mut b, &all);
            let mut ds = DslDatasetPhys::parse(&b).unwrap();
            prop_assert_eq!(&ds.to_bytes()[..], &b[..]);
            ds.referenced_bytes = used;
            ds.userrefs_obj = obj;
            let again = DslDatasetPhys::parse(&ds.to_bytes()).unwrap();
            prop_assert_eq!((again.referenced_bytes, again.userrefs_obj, again.guid, again.bp), (used, obj, all[14], ds.bp));
            let mut dd = DslDirPhys::parse(&b).unwrap();
            prop_assert_eq!(&dd.to_bytes()[..], &b[..DSL_DIR_SIZE]);
            dd.used_breakdown[Used::RefRsrv as usize] = used;
            dd.clones = obj;
            let again = DslDirPhys::parse(&dd.to_bytes()).unwrap();
            prop_assert_eq!((again.used_breakdown, again.clones, again.head_dataset_obj), (dd.used_breakdown, obj, all[1]));
        }
    }

    #[test]
    fn short_bonus_is_refused() {
        assert!(DslDirPhys::parse(&[0; 255]).is_err());
        assert!(DslDatasetPhys::parse(&[0; 319]).is_err());
    }
}
