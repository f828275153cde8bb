//! Copies from a vdev that is being removed to other vdevs (format page 23 section 3).
//!
//! The blocks in a range are not known, so no checksum is verified. Child i of the destination is
//! therefore filled from child i of the source (modulo its children): unnoticed damage of one side
//! of a mirror stays on one side. A child that is not in use, or misses something, is replaced by
//! the next one. So is one that fails to read, but that is an error of the copy all the same.
//!
//! A device of the destination that is not in use gets nothing. It misses copies of blocks of any
//! birth, which its dirty time log says until a resilver that begins after the removal
//! ([`crate::Condition::miss_copies`]).

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
        VdevKind::Leaf(leaf) => Ok(Some(leaf.clone()).filter(|leaf| leaf.condition.health().is_open())),
        VdevKind::Absent(_) => Ok(None),
        _ => Err(Error::unsupported("only single devices and mirrors are evacuated, and take what is")),
    };
    match kind {
        VdevKind::Mirror(m) => m.children.iter().map(side).collect(),
        _ => Ok(vec![side(kind)?]),
    }
}

/// Reads a piece from side `first` of the source, or from one of the others. A side that misses
/// anything may have something older in its place, which only a checksum would tell. Also returns
/// the error of a side that was to be read.
async fn read(sides: &[Option<Rc<Leaf>>], first: usize, from: u64, len: u64) -> Result<(Bytes, Result<()>)> {
    let turned = (0..sides.len()).filter_map(|i| sides[(first + i) % sides.len()].as_ref());
    let mut failed = Ok(());
    for leaf in turned.filter(|leaf| !leaf.condition.misses(Txg(0))) {
        match leaf.read_data(from, len, Prio::Removal).await {
            Ok(data) => return Ok((data, failed)),
            Err(e) if e.kind() == ErrorKind::Interrupted => return Err(e),
            Err(e) => failed = Err(e),
        }
    }
    failed?;
    Err(Error::new(ErrorKind::Io, "no device of the vdev that is being removed has all of its data"))
}

/// Copies ranges of `source`, to places of `txg`. After an error the destination has what could be
/// copied, on the devices that took it. Errors: those of devices in use, of the source also if
/// another one was read, of the destination also if another one took the copy.
pub async fn copy(source: &Top, destination: &Top, ranges: &[Moved], txg: Txg) -> Result<()> {
    let (from, to) = (sides(&source.kind())?, sides(&destination.kind())?);
    if to.iter().all(Option::is_none) {
        let why = format!("no device of top-level vdev {} is there", destination.id);
        return Err(Error::new(ErrorKind::Io, why));
    }
    for (_, condition) in destination.kind().conditions() {
        if !condition.health().is_open() {
            condition.miss_copies(txg);
        }
    }
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
async fn piece(from: &[Option<Rc<Leaf>>], to: &[Option<Rc<Leaf>>], first: usize, piece: Moved) -> Result<()> {
    let takers: Vec<&Rc<Leaf>> = to.iter().skip(first).step_by(from.len()).flatten().collect();
    if takers.is_empty() {
        return Ok(());
    }
    let (data, mut result) = read(from, first, piece.from, piece.len).await?;
    let write = |leaf: &Rc<Leaf>| leaf.write_data(piece.to, data.clone(), 0, Prio::Removal);
    let writes: Vec<_> = takers.into_iter().map(write).collect();
    // Every write is waited for: a range is not given free while one of them is on its way.
    for write in writes {
        result = result.and(write.await);
    }
    result
}
