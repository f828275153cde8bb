//! Walking the chain of a log.
//!
//! A chain ends at a block that does not verify, or whose next pointer is a hole or lacks the same
//! checksum words with the next number. The last pointer names a block that is allocated and was
//! never written: it belongs to the chain. Pointers come from disk: a DVA seen before ends the
//! walk.

use std::collections::BTreeSet;

use base::Result;
use ondisk::blkptr::{Blkptr, Dva};
use zio::Zio;

use crate::block::{self, LogBlock};

/// Blocks followed at most: far more than a log has between two txgs.
const CHAIN_MAX: usize = 1 << 20;

/// A walk along a chain.
pub struct Walk {
    next: Option<Blkptr>,
    seen: BTreeSet<Dva>,
}

/// A block of a chain.
pub struct Step {
    /// Its pointer.
    pub bp: Blkptr,
    /// Its content; `None` for the last one, which was never written.
    pub block: Option<LogBlock>,
}

/// The number of a block in its chain.
pub fn seq_of(bp: &Blkptr) -> u64 {
    bp.checksum_words()[3]
}

/// Whether `next` is the pointer that follows `bp`.
pub fn follows(bp: &Blkptr, next: &Blkptr) -> bool {
    let (a, b) = (bp.checksum_words(), next.checksum_words());
    !next.is_hole() && a[..3] == b[..3] && b[3] == a[3].wrapping_add(1)
}

impl Walk {
    /// Starts at the block of `first`; a hole is an empty chain.
    pub fn new(first: Blkptr) -> Walk {
        Walk { next: (!first.is_hole()).then_some(first), seen: BTreeSet::new() }
    }

    /// The pointer of the next block.
    pub fn peek(&self) -> Option<Blkptr> {
        self.next
    }

    /// Ends the walk before the next block.
    pub fn stop(&mut self) {
        self.next = None;
    }

    /// Reads the next block; `None` at the end. An error if a device could not be read, or a
    /// pointer is invalid.
    pub async fn step(&mut self, zio: &Zio) -> Result<Option<Step>> {
        let Some(bp) = self.next.take() else { return Ok(None) };
        block::check_pointer(&bp)?;
        if !self.seen.insert(bp.dva(0)) || self.seen.len() > CHAIN_MAX {
            return Ok(None);
        }
        let block = block::read(zio, &bp).await?;
        self.next = block.as_ref().map(|b| b.chain.next).filter(|next| follows(&bp, next));
        Ok(Some(Step { bp, block }))
    }
}
