//! Copies from a vdev that is being removed to other vdevs (format page 23 section 3).
//!
//! The blocks in a range are not known, so no checksum is verified. Child i of the destination is
//! therefore filled from child i of the source (modulo its children): unnoticed damage of one side
//! of a mirror stays on one side. A child that cannot be read, or misses something, is replaced by
//! the next one.
//!
//! A resilver does not visit the copies by the txg in which they were made, so a copy counts only
//! if every device of the destination has it.

use std::rc::Rc;

use base::{Error, ErrorKind, Result, Txg};
use bdev::Bytes;
use rt::join::join_all;

use crate::leaf::Leaf;
use crate::node::VdevKind;
use crate::policy::Prio;
use crate::tree::Top;

/// Bytes that are read and written at once.
const PIECE: u64 = 1 << 20;

/// A range to copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moved {
    /// Where it is on the source, in bytes.
    pub from: u64,
    /// Where it comes to on the destination.
    pub to: u64,
    /// Bytes, in whole sectors.
    pub len: u64,
}

/// The devices of a vdev without parity, by the child; none for one that is not in use.
fn sides(kind: &VdevKind) -> Result<Vec<Option<Rc<Leaf>>>> {
    let side = |node: &VdevKind| match node {
        VdevKind::Leaf(leaf) if leaf.condition.health().is_open() => Some(leaf.clone()),
        _ => None,
    };
    match kind {
        VdevKind::Mirror(m) => Ok(m.children.iter().map(side).collect()),
        VdevKind::Leaf(_) | VdevKind::Absent(_) => Ok(vec![side(kind)]),
        _ => Err(Error::unsupported("only single devices and mirrors are evacuated, and take what is")),
    }
}

/// Reads a piece from side `first` of the source, or from one of the others. A side that misses
/// anything may have something older in its place, which only a checksum would tell.
async fn read(sides: &[Option<Rc<Leaf>>], first: usize, from: u64, len: u64) -> Result<Bytes> {
    let turned = (0..sides.len()).filter_map(|i| sides[(first + i) % sides.len()].as_ref());
    let mut error = Error::new(ErrorKind::Io, "no device of the vdev that is being removed has all of its data");
    for leaf in turned.filter(|leaf| !leaf.condition.misses(Txg(0))) {
        match leaf.read_data(from, len, Prio::Removal).await {
            Ok(data) => return Ok(data),
            Err(e) if e.kind() == ErrorKind::Interrupted => return Err(e),
            Err(e) => error = e,
        }
    }
    Err(error)
}

/// Copies ranges of `source`. After an error the destination holds anything. Errors: that of a
/// range that no device of the source can read, or that a device of the destination did not take.
pub async fn copy(source: &Top, destination: &Top, ranges: &[Moved]) -> Result<()> {
    let (from, to) = (sides(&source.kind())?, sides(&destination.kind())?);
    let lost = || Error::new(ErrorKind::Io, format!("a device of top-level vdev {} is not there", destination.id));
    let to: Vec<Rc<Leaf>> = to.into_iter().collect::<Option<_>>().ok_or_else(lost)?;
    let mut copies = Vec::new();
    for range in ranges {
        let mut at = 0;
        while at < range.len {
            let len = PIECE.min(range.len - at);
            for first in 0..from.len().min(to.len()) {
                copies.push(piece(&from, &to, first, Moved { from: range.from + at, to: range.to + at, len }));
            }
            at += len;
        }
    }
    join_all(copies).await.into_iter().collect()
}

/// Copies a piece to those devices that take it from side `first`.
async fn piece(from: &[Option<Rc<Leaf>>], to: &[Rc<Leaf>], first: usize, piece: Moved) -> Result<()> {
    let data = read(from, first, piece.from, piece.len).await?;
    let takers = to.iter().skip(first).step_by(from.len());
    let writes: Vec<_> = takers.map(|leaf| leaf.write_data(piece.to, data.clone(), 0, Prio::Removal)).collect();
    // Every write is waited for: a range is not given free while one of them is on its way.
    let mut result = Ok(());
    for write in writes {
        result = result.and(write.await);
    }
    result
}
