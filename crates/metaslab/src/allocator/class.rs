//! Allocation classes, their groups, and the fall-back from one class to the next.
//!
//! A *group* is the set of metaslabs that one top-level vdev gives to one class. A class visits its
//! groups by a *rotor*, which moves on when a group has had its share ([`super::search`]).

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::rc::Rc;

use base::{Txg, VdevId};
use vdev::Top;

use crate::weight::Weight;

/// The purpose of space.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ClassKind {
    /// Data and metadata.
    Normal,
    /// The intent log, on log devices.
    Log,
    /// The intent log, on the metaslab that a large normal vdev reserves for it (format page 14
    /// section 1).
    EmbeddedLog,
    /// Metadata and small blocks, on special devices.
    Special,
    /// Deduplication tables, on dedup devices.
    Dedup,
}

/// Number of classes.
pub(super) const CLASSES: usize = 5;

impl ClassKind {
    /// The classes that may hold blocks of this class, in order of preference (format page 06
    /// section 5).
    pub(super) fn choices(self) -> &'static [ClassKind] {
        use ClassKind::*;
        match self {
            Normal => &[Normal],
            Log | EmbeddedLog => &[Log, EmbeddedLog, Normal],
            Special => &[Special, Normal],
            Dedup => &[Dedup, Special, Normal],
        }
    }
}

/// The metaslabs that one vdev gives to one class.
pub(super) struct Group {
    pub(super) vdev: VdevId,
    pub(super) class: ClassKind,
    pub(super) top: Rc<Top>,
    pub(super) total: u64,
    pub(super) alloc: u64,
    pub(super) deferred: u64,
    pub(super) by_weight: BTreeSet<(Reverse<Weight>, u64)>,
    /// The metaslab in use for the first, second and third copy, and its weight when it was chosen.
    pub(super) active: [Option<(u64, Weight)>; 3],
    /// Number of metaslabs with known fragmentation, and the sum of their percentages.
    pub(super) known: (u64, u64),
}

#[derive(Default)]
pub(super) struct Class {
    pub(super) groups: Vec<usize>,
    pub(super) rotor: usize,
    /// Bytes allocated from the group at the rotor since the rotor reached it.
    pub(super) used: u64,
    /// The last txg of which an allocation found no room here.
    pub(super) left: Option<Txg>,
}

impl Group {
    pub(super) fn new(class: ClassKind, top: &Rc<Top>) -> Group {
        Group {
            vdev: top.id,
            class,
            top: top.clone(),
            total: 0,
            alloc: 0,
            deferred: 0,
            by_weight: BTreeSet::new(),
            active: [None; 3],
            known: (0, 0),
        }
    }

    pub(super) fn fragmentation(&self) -> Option<u8> {
        let count = self.by_weight.len() as u64;
        let (known, sum) = self.known;
        (known > 0 && known * 2 > count).then(|| (sum / known) as u8)
    }
}
