//! The reflow of a RAID-Z: its sectors are moved while the pool is in use (format page 19 sections
//! 3 to 5).
//!
//! n is the number of children before the expansion, n + 1 that of now. Sector S of the address
//! space is *at its old place* on child S mod n, *at its new place* on child S mod (n + 1). Two
//! offsets say which of them is valid ([`Progress`]): U, `committed`, and N, `next`, N >= U.
//!
//! | sectors | old place | new place |
//! |---|---|---|
//! | of rows that end at or below U | may be overwritten | valid |
//! | of other rows, below N | valid | as good, once the copy has ended |
//! | of other rows, at or above N | valid | holds something else |
//!
//! A copy takes the sectors from N on: it locks their range against all I/O, moves N behind them,
//! reads the old places, writes the new ones. From then on whoever writes such a sector writes both
//! places, so that both are the same at any time. U follows when an uberblock with the new offset
//! is on disk, once more with the range locked: what began before reads and writes the old places
//! until it is over.
//!
//! Invariant: *an uberblock that may be imported reads valid sectors.* Its offset is U, or the one
//! that a commit is writing, between U and N: either reads the same bytes. A new place is an old
//! place of a lower sector, so a copy may go only to where all old places that it overwrites belong
//! to rows below U: sectors below U + U div n - n ([`limit`]). Older uberblocks are refused.
//!
//! The first copy would overwrite itself: U is 0. So the first part goes through the *scratch
//! area*, the boot area of each child: copied there and made durable; then an uberblock says that
//! the part is in the scratch area ([`Progress::in_scratch`]: U is at its end, its new places are
//! in the scratch area); only then the real places are written, and an uberblock says that they are
//! good.
//!
//! Copies need every child to be healthy ([`is_ready`]): what a child misses is on the others only
//! as long as its place does not change, and dirty time logs tell nothing of copies. `spa` decides
//! when to copy, commits, and starts again at the last offset that may be on disk if a child fails.

use std::cell::Cell;
use std::rc::Rc;

use base::{Error, ErrorKind, Nanos, Result};
use bdev::{Buf, Bytes};
use ondisk::label::DATA_START;
use rt::cost::COPY;
use rt::join::join_all;
use rt::sync::{RangeGuard, RangeLock, Rank};

use crate::dtl::Health;
use crate::leaf::Leaf;
use crate::node::{Raidz, VdevKind};
use crate::policy::Prio;
use crate::width::Progress;

/// Device byte at which the scratch area of a child begins: the boot area (format page 19 section
/// 3).
const SCRATCH_START: u64 = 512 << 10;
/// Bytes of the scratch area of a child at most: up to the first data.
pub const SCRATCH_SIZE: u64 = DATA_START - SCRATCH_START;
/// Bytes by which the scratch area of a child is before the places that it stands for.
pub(crate) const SCRATCH_BACK: u64 = DATA_START - SCRATCH_START;
/// How the boot program begins that FreeBSD keeps in the boot area of a disk with an MBR: a jump,
/// and the name of its server (`BTX`; OpenZFS 2.4.4, `vdev_check_boot_reserve` of FreeBSD).
pub const BOOT_PROGRAM: [u8; 5] = [0xeb, 0x0e, b'B', b'T', b'X'];

/// I/O holds it while it waits for devices alone, so it comes after all other locks.
const RANGES: Rank = Rank(900, "ranges of a raidz that is being expanded");

/// The progress of an expansion in memory, and the ranges that are in use.
pub struct Reflow {
    progress: Cell<Progress>,
    ranges: RangeLock,
}

impl std::fmt::Debug for Reflow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.progress.get().fmt(f)
    }
}

impl Reflow {
    /// One with that progress, and no range in use.
    pub fn new(progress: Progress) -> Rc<Reflow> {
        Rc::new(Reflow { progress: Cell::new(progress), ranges: RangeLock::new(RANGES) })
    }
    /// The progress now; that of a range stays while it is locked.
    pub fn progress(&self) -> Progress {
        self.progress.get()
    }
    /// Keeps `len` bytes from `start` from being moved, for I/O.
    pub async fn share(&self, start: u64, len: u64) -> RangeGuard {
        self.ranges.read(start, len).await
    }
    /// The same if that is possible without waiting.
    pub fn try_share(&self, start: u64, len: u64) -> Option<RangeGuard> {
        self.ranges.try_lock(start, len, false)
    }
    /// Waits until no I/O uses `len` bytes from `start`, and holds it off.
    pub async fn exclude(&self, start: u64, len: u64) -> RangeGuard {
        self.ranges.write(start, len).await
    }
    /// Sets the progress; what changes for a range, changes while it is locked by
    /// [`Reflow::exclude`].
    pub fn set(&self, progress: Progress) {
        assert!(progress.next >= progress.committed, "copies are ahead of what is committed");
        self.progress.set(progress);
    }
}

/// The sector up to which copies may go if all rows below sector `committed` are at their new
/// places; `old` children were there before. 0 if the first part was not moved.
pub fn limit(committed: u64, old: u64) -> u64 {
    (committed + committed / old).saturating_sub(old)
}

/// Bytes of the scratch area of each child that are used: whole sectors.
pub fn scratch_bytes(ashift: u8) -> u64 {
    SCRATCH_SIZE >> ashift << ashift
}

/// Whether sectors may be copied: every child is a device, in use, and misses nothing.
pub fn is_ready(raidz: &Raidz) -> bool {
    raidz.children.iter().all(|child| match child {
        VdevKind::Leaf(leaf) => {
            let c = &leaf.condition;
            matches!(c.health(), Health::Online | Health::Degraded) && !c.has_failed_write() && c.missing().is_empty()
        }
        _ => false,
    })
}

/// The first device with a boot program in the area that the first part goes through, which would
/// overwrite it.
pub async fn boot_program(raidz: &Raidz, ashift: u8) -> Result<Option<Rc<Leaf>>> {
    for child in 0..raidz.children.len() {
        let leaf = leaf(raidz, child)?;
        let sector = leaf.read(SCRATCH_START, 1 << ashift, Prio::SyncRead).await?;
        if sector.starts_with(&BOOT_PROGRAM) {
            return Ok(Some(leaf.clone()));
        }
    }
    Ok(None)
}

/// Sectors of child `child` of `children` among those from `first` to `end`: the first row, and how
/// many rows.
fn rows_of(child: u64, children: u64, first: u64, end: u64) -> (u64, u64) {
    let row = |sector: u64| sector / children + u64::from(sector % children > child);
    let start = row(first);
    (start, row(end) - start)
}

fn leaf(raidz: &Raidz, child: usize) -> Result<&Rc<Leaf>> {
    match raidz.children.get(child) {
        Some(VdevKind::Leaf(leaf)) if leaf.condition.health().is_open() => Ok(leaf),
        _ => Err(Error::new(ErrorKind::Io, format!("device {child} of the raidz is not there"))),
    }
}

/// Reads the sectors from `first` to `end` (not included) at their old places, and puts together
/// what each child has of them at their new places: the first row, and the bytes.
async fn read_moved(raidz: &Raidz, ashift: u8, first: u64, end: u64) -> Result<Vec<(u64, Bytes)>> {
    let new = raidz.children.len() as u64;
    let old = new - 1;
    let mut reads = Vec::new();
    for child in 0..old {
        let (row, rows) = rows_of(child, old, first, end);
        let from = leaf(raidz, child as usize)?.clone();
        reads.push(async move {
            match rows {
                0 => Ok(None),
                _ => from.read(DATA_START + (row << ashift), rows << ashift, Prio::Removal).await.map(Some),
            }
        });
    }
    let mut parts = Vec::new();
    for part in join_all(reads).await {
        parts.push(part?);
    }
    let job = move || {
        let mut out: Vec<(u64, Buf)> = (0..new)
            .map(|child| {
                let (row, rows) = rows_of(child, new, first, end);
                (row, Buf::for_overwrite((rows << ashift) as usize))
            })
            .collect();
        let size = 1usize << ashift;
        for sector in first..end {
            let (from, to) = (sector % old, &mut out[(sector % new) as usize]);
            let at = ((sector / old - rows_of(from, old, first, end).0) << ashift) as usize;
            let there = ((sector / new - to.0) << ashift) as usize;
            if let Some(part) = &parts[from as usize] {
                to.1[there..there + size].copy_from_slice(&part[at..at + size]);
            }
        }
        (out, parts)
    };
    let rt = leaf(raidz, 0)?.rt();
    let (out, _parts) = rt.cpu(Nanos(2 * COPY.cost((end - first) << ashift).0), job).await;
    Ok(out.into_iter().map(|(row, buf)| (row, buf.freeze())).collect())
}

/// Writes to each child at the device byte of its row 0, which is `base`.
async fn write_rows(raidz: &Raidz, ashift: u8, base: u64, parts: &[(u64, Bytes)]) -> Result<()> {
    let mut writes = Vec::new();
    for (child, (row, bytes)) in parts.iter().enumerate().filter(|(_, (_, bytes))| !bytes.is_empty()) {
        writes.push(leaf(raidz, child)?.write(base + (row << ashift), bytes.clone(), 0, Prio::Removal));
    }
    // Every write is waited for: a range is not given free while one of them is on its way.
    let mut result = Ok(());
    for write in writes {
        result = result.and(write.await);
    }
    result
}

/// Copies the sectors from `first` to `end` to their new places, which the caller has locked. After
/// an error the new places hold anything.
pub async fn copy(raidz: &Raidz, ashift: u8, first: u64, end: u64) -> Result<()> {
    let parts = read_moved(raidz, ashift, first, end).await?;
    write_rows(raidz, ashift, DATA_START, &parts).await
}

/// The part of each child that goes through the scratch area.
pub struct ScratchPart(Vec<(u64, Bytes)>);

impl ScratchPart {
    /// Reads it at the old places.
    pub async fn read_old(raidz: &Raidz, ashift: u8) -> Result<ScratchPart> {
        let end = (scratch_bytes(ashift) >> ashift) * raidz.children.len() as u64;
        read_moved(raidz, ashift, 0, end).await.map(ScratchPart)
    }
    /// Reads it from the scratch area.
    pub async fn read_scratch(raidz: &Raidz, ashift: u8) -> Result<ScratchPart> {
        let mut reads = Vec::new();
        for child in 0..raidz.children.len() {
            reads.push(leaf(raidz, child)?.read(SCRATCH_START, scratch_bytes(ashift), Prio::Removal));
        }
        let mut parts = Vec::new();
        let mut result = Ok(());
        for read in reads {
            match read.await {
                Ok(bytes) => parts.push((0, bytes)),
                Err(e) => result = result.and(Err(e)),
            }
        }
        result.map(|()| ScratchPart(parts))
    }
    /// Writes it to the scratch area.
    pub async fn write_scratch(&self, raidz: &Raidz, ashift: u8) -> Result<()> {
        write_rows(raidz, ashift, SCRATCH_START, &self.0).await
    }
    /// Writes it to the new places.
    pub async fn write_new(&self, raidz: &Raidz, ashift: u8) -> Result<()> {
        write_rows(raidz, ashift, DATA_START, &self.0).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No copy below the limit overwrites an old place of a row that is read there.
    #[test]
    fn copies_overwrite_nothing_that_is_read() {
        for old in 2..9u64 {
            for committed in 1..2000u64 {
                // The first sector of the first row that is at its old place, at the worst.
                let first = (committed + 1).saturating_sub(old);
                for sector in committed..limit(committed, old) {
                    let (child, row) = (sector % (old + 1), sector / (old + 1));
                    if child < old {
                        let overwritten = row * old + child;
                        assert!(overwritten < first, "{old} children, {committed}: {sector} to {overwritten}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_scratch_area_is_enough_to_go_on() {
        for (old, ashift) in [(2u64, 9u8), (3, 12), (50, 12), (54, 16)] {
            let committed = (scratch_bytes(ashift) >> ashift) * (old + 1);
            let first = limit(committed, old);
            assert!(first > committed, "{old} children of 2^{ashift}: {committed} to {first}");
        }
        assert_eq!(limit(0, 3), 0);
    }

    #[test]
    fn rows_of_children_add_up() {
        for children in 1..8 {
            for (first, end) in [(0, 0), (0, 5), (3, 4), (7, 40), (12, 13)] {
                let rows: Vec<(u64, u64)> = (0..children).map(|c| rows_of(c, children, first, end)).collect();
                assert_eq!(rows.iter().map(|r| r.1).sum::<u64>(), end - first);
                for sector in first..end {
                    let (row, n) = rows[(sector % children) as usize];
                    assert!((row..row + n).contains(&(sector / children)));
                }
            }
        }
    }
}
