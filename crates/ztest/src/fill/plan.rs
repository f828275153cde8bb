//! What a seed draws: the parameters of the pool, and how often each kind of operation comes.
//!
//! Parameters are drawn in a fixed order, and a new one is drawn last, so that older seeds keep
//! their pools.

use sim::Rng;

use crate::lab::POOL;

/// The parameters of a pool.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Bytes of a unit of the files.
    pub recordsize: u64,
    /// Of data.
    pub copies: u64,
    /// The value of `compression`.
    pub compression: &'static str,
    /// Blocks are deduplicated.
    pub dedup: bool,
    /// Snapshots are taken while it fills.
    pub snapshots: bool,
    /// Power cuts near its end.
    pub cuts: bool,
    /// Blocks stored in more bytes than this are gang blocks; 0: none but where space is in pieces.
    pub gang_above: u64,
    /// The files are encrypted.
    pub sealed: bool,
    /// The other limit of the files.
    pub limit: Limit,
    /// How often each kind of [`KINDS`] comes.
    pub weights: [u64; KINDS.len()],
    /// In a pool nearly full more is written over again within one txg than the log has room for,
    /// and then made durable.
    pub rewrites: bool,
}

/// A limit of the files besides the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// The pool alone.
    Pool,
    /// A quota of so many bytes.
    Quota(u64),
    /// A refquota of so many bytes.
    Refquota(u64),
    /// The reservation of another file system.
    Reserved(u64),
}

/// An operation that takes space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Appends to a large file.
    Append,
    /// A new small file.
    Small,
    /// Overwrites a part of a file.
    Overwrite,
    /// A synchronous append.
    Sync,
    /// An attribute.
    Xattr,
    /// A file system with a file.
    FileSystem,
    /// Every other one of a few new files is removed.
    Holes,
    /// A new name.
    Rename,
    /// A folder.
    Folder,
    /// Appends to several files at once.
    Burst,
}

/// All kinds.
pub const KINDS: [Kind; 10] = [
    Kind::Append,
    Kind::Small,
    Kind::Overwrite,
    Kind::Sync,
    Kind::Xattr,
    Kind::FileSystem,
    Kind::Holes,
    Kind::Rename,
    Kind::Folder,
    Kind::Burst,
];

impl Plan {
    /// Draws one.
    pub fn draw(rng: &mut Rng) -> Plan {
        const COMPRESSION: [&str; 4] = ["off", "off", "lz4", "zstd"];
        let mut weights = [30, 10, 15, 8, 5, 1, 5, 3, 2, 6];
        for w in &mut weights[1..] {
            match rng.below(5) {
                0 => *w = 0,
                1 => *w *= 6,
                _ => {}
            }
        }
        Plan {
            recordsize: 512 << rng.below(12),
            copies: 1 + rng.below(3),
            compression: COMPRESSION[rng.below(4) as usize],
            dedup: rng.percent(10),
            snapshots: rng.percent(50),
            cuts: rng.percent(50),
            gang_above: if rng.percent(40) { 512 << rng.below(7) } else { 0 },
            sealed: rng.percent(20),
            limit: match rng.below(10) {
                0 => Limit::Quota(rng.between(8, 40) << 20),
                1 => Limit::Refquota(rng.between(8, 40) << 20),
                2 => Limit::Reserved(rng.between(1, 16) << 20),
                _ => Limit::Pool,
            },
            weights,
            // The last to be drawn: seeds without it stay as they were.
            rewrites: rng.percent(25),
        }
    }

    /// Appends to large files only.
    pub fn appends(recordsize: u64, copies: u64) -> Plan {
        let mut weights = [0; KINDS.len()];
        for (w, kind) in weights.iter_mut().zip(KINDS) {
            *w = u64::from(kind == Kind::Append);
        }
        Plan {
            recordsize,
            copies,
            compression: "off",
            dedup: false,
            snapshots: false,
            cuts: false,
            gang_above: 0,
            sealed: false,
            limit: Limit::Pool,
            weights,
            rewrites: false,
        }
    }

    /// The file system that is filled.
    pub(super) fn home(&self) -> String {
        match self.limit {
            Limit::Pool | Limit::Reserved(_) if !self.sealed => POOL.to_string(),
            _ => format!("{POOL}/home"),
        }
    }
}
