//! Versions of pools from before feature flags, and what came with each (format page 01 section 5,
//! `SPA_VERSION_*`); the versions of file systems that they may have.

/// Feature flags: what a pool has beyond version 28 is said by name.
pub const FEATURES: u64 = 5000;
/// The last version before feature flags.
pub const LAST: u64 = 28;
/// Several copies of metadata, and the property `copies`.
pub const DITTO: u64 = 2;
/// Hot spares.
pub const SPARES: u64 = 3;
/// RAID-Z with double parity.
pub const RAIDZ2: u64 = 3;
/// RAID-Z is charged as other vdevs are: `deflate` in the MOS directory.
pub const DEFLATE: u64 = 3;
/// Dnodes have their space in bytes, not in sectors.
pub const DNODE_BYTES: u64 = 3;
/// Compression with gzip.
pub const GZIP: u64 = 5;
/// The property `bootfs`.
pub const BOOTFS: u64 = 6;
/// Log devices.
pub const SLOGS: u64 = 7;
/// Permissions (`zfs allow`).
pub const PERMISSIONS: u64 = 8;
/// `refquota` and `refreservation`.
pub const REFQUOTA: u64 = 9;
/// Unique space of heads is exact.
pub const UNIQUE: u64 = 9;
/// Cache devices.
pub const CACHES: u64 = 10;
/// `$ORIGIN`, and snapshots list their clones.
pub const ORIGIN: u64 = 11;
/// Properties of snapshots.
pub const SNAP_PROPS: u64 = 12;
/// Directories have the breakdown of their space.
pub const BREAKDOWN: u64 = 13;
/// `aclinherit=passthrough-x`.
pub const PASSTHROUGH_X: u64 = 14;
/// Space of owners.
pub const USERSPACE: u64 = 15;
/// RAID-Z with triple parity.
pub const RAIDZ3: u64 = 17;
/// Holds of snapshots.
pub const HOLDS: u64 = 18;
/// Log devices can be removed.
pub const HOLES: u64 = 19;
/// Compression with zle.
pub const ZLE: u64 = 20;
/// Deduplication.
pub const DEDUP: u64 = 21;
/// Received properties.
pub const RECEIVED_PROPS: u64 = 22;
/// The slim form of log blocks.
pub const SLIM_ZIL: u64 = 23;
/// Keyed deadlists, the list of blocks to be freed, lists of the clones of directories.
pub const DEADLISTS: u64 = 26;

/// The newest version of file systems in pools of this version (`zfs_zpl_version_map`).
pub fn zpl_of(pool: u64) -> u64 {
    match pool {
        0..9 => 2,
        9..15 => 3,
        15..24 => 4,
        _ => 5,
    }
}

/// The pool version that file systems of this version need (`zfs_spa_version_map`).
pub fn needed_by_zpl(version: u64) -> u64 {
    match version {
        0..3 => 1,
        3 => 9,
        4 => USERSPACE,
        _ => 24,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_file_systems() {
        for (pool, zpl) in [(1, 2), (8, 2), (9, 3), (14, 3), (15, 4), (23, 4), (24, 5), (28, 5), (5000, 5)] {
            assert_eq!(zpl_of(pool), zpl, "{pool}");
        }
        for pool in (1..=LAST).chain([FEATURES]) {
            for zpl in 1..=5 {
                assert_eq!(needed_by_zpl(zpl) <= pool, zpl <= zpl_of(pool), "{pool} {zpl}");
            }
        }
    }
}
