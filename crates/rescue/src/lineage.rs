//! Which object sets are states of one file system.
//!
//! An object set has no name and no guid in it. Two of them have the same *origin* if they have the
//! same master node, which is written once ([`origin`]): they are states of one file system, of its
//! snapshots, or of clones of those. Of two with the same origin the younger one *descends* from
//! the older one if it can have been made of it by writing: a block of dnodes that is no younger
//! than the older state is the one that the older state has at this place
//! ([`Lineage::descends_from`]). A state of a clone descends from no state that its origin had
//! after they parted, unless neither wrote any dnode in between. A file system that was rolled back
//! does not descend from what it was in between.
//!
//! Only blocks are compared whose pointers are left, and at most [`COMPARED_MAX`] of them.

use std::collections::BTreeMap;

use base::{Error, Txg};

use crate::tree::{Lookup, Objset, Part};

/// Blocks of dnodes that are compared.
const COMPARED_MAX: usize = 4096;

/// The pointer of the master node of an object set: the same for all states of a file system and
/// of its clones.
pub fn origin(os: &Objset) -> Option<[u64; 16]> {
    match os.find(ondisk::zpl::MASTER_NODE_OBJ) {
        Lookup::There(o) if !o.dn.blkptr[0].is_hole() => Some(o.dn.blkptr[0].0),
        _ => None,
    }
}

/// Where a block of dnodes is, and its birth.
type Place = ([u64; 2], Txg);

/// What tells the states of clones apart.
pub struct Lineage {
    /// The birth of the newest block.
    txg: Txg,
    /// Places of blocks of dnodes by number.
    blocks: BTreeMap<u64, Place>,
    /// Blocks whose pointers are lost: first and end.
    lost: Vec<(u64, u64)>,
}

impl Lineage {
    /// That of an object set.
    pub fn of(os: &Objset) -> Lineage {
        let mut it = Lineage { txg: os.txg, blocks: BTreeMap::new(), lost: Vec::new() };
        let _ = os.meta().for_each(&mut |part| {
            match part {
                Part::Block(blk, bp) => {
                    it.blocks.insert(blk, ([bp.0[0], bp.0[1]], bp.birth()));
                }
                Part::Lost(blk, count, _) => it.lost.push((blk, blk.saturating_add(count))),
            }
            if it.blocks.len() + it.lost.len() < COMPARED_MAX { Ok(()) } else { Err(Error::invalid("enough")) }
        });
        if it.blocks.len() + it.lost.len() >= COMPARED_MAX {
            let end = it.blocks.last_key_value().map_or(0, |(blk, _)| blk + 1);
            it.lost.push((end, u64::MAX));
        }
        it
    }

    fn is_lost(&self, blk: u64) -> bool {
        self.lost.iter().any(|(from, to)| (*from..*to).contains(&blk))
    }

    /// Whether this can be a later state of `older`, or the same.
    pub fn descends_from(&self, older: &Lineage) -> bool {
        self.txg >= older.txg
            && self.blocks.iter().filter(|(_, (_, birth))| *birth <= older.txg).all(|(blk, place)| {
                match older.blocks.get(blk) {
                    Some(other) => other == place,
                    None => older.is_lost(*blk),
                }
            })
    }

    /// Whether one can be a later state of the other.
    pub fn is_of_line(&self, other: &Lineage) -> bool {
        self.descends_from(other) || other.descends_from(self)
    }

    /// How many blocks both have.
    pub fn in_common(&self, other: &Lineage) -> usize {
        self.blocks.iter().filter(|(blk, place)| other.blocks.get(blk) == Some(place)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(txg: u64, blocks: &[(u64, u64)]) -> Lineage {
        let place = |(blk, birth): &(u64, u64)| (*blk, ([*blk, *birth], Txg(*birth)));
        Lineage { txg: Txg(txg), blocks: blocks.iter().map(place).collect(), lost: Vec::new() }
    }

    #[test]
    fn clones_do_not_descend_from_each_other() {
        let snap = line(10, &[(0, 10), (1, 5), (2, 7)]);
        let head = line(20, &[(0, 20), (1, 5), (2, 7)]);
        let clone = line(18, &[(0, 10), (1, 18), (2, 7)]);
        assert!(head.descends_from(&snap) && clone.descends_from(&snap));
        assert!(!head.is_of_line(&clone) && !snap.descends_from(&head));
        // The clone wrote only after the state of the head: its old block 0 was not there any more.
        let late = line(30, &[(0, 10), (1, 25), (2, 7)]);
        assert!(!late.is_of_line(&head) && late.is_of_line(&snap));
        assert_eq!((head.in_common(&clone), head.in_common(&snap)), (1, 2));
    }

    #[test]
    fn what_is_removed_or_lost_contradicts_nothing() {
        let old = line(10, &[(0, 10), (1, 5), (2, 7)]);
        assert!(line(20, &[(0, 20)]).descends_from(&old), "blocks were freed");
        let mut torn = line(10, &[(0, 10)]);
        let now = line(20, &[(0, 20), (1, 5)]);
        assert!(!now.descends_from(&torn), "a block that is older than the state and not in it");
        torn.lost.push((1, 5));
        assert!(now.descends_from(&torn));
    }
}
