//! Roots: every uberblock that is left, of any label of any device, newest first.
//!
//! The size of a slot depends on the sector size of the vdev, which the label may not say any more;
//! all sizes are tried, and the checksum of a slot covers its place, so nothing else passes for an
//! uberblock.

use std::collections::BTreeSet;

use base::Txg;
use ondisk::blkptr::Blkptr;
use ondisk::label::{LABEL_SIZE, RING_OFFSET, RING_SIZE, label_offsets};
use ondisk::uberblock::{SLOT_SHIFT_MAX, SLOT_SHIFT_MIN, Uberblock, scan_ring};
use zdb::device::Labeled;

/// A root of the pool.
#[derive(Clone, Debug)]
pub struct Root {
    /// Its uberblock.
    pub ub: Uberblock,
    /// How many copies of it there are.
    pub copies: u64,
}

impl Root {
    /// Its txg.
    pub fn txg(&self) -> Txg {
        self.ub.txg
    }
    /// Pointer to the MOS.
    pub fn bp(&self) -> &Blkptr {
        &self.ub.rootbp
    }
}

/// How many slots of the rings are damaged wherever they are: each may have held a state that is
/// newer than those that are left. Slots of labels without any uberblock do not count: what is
/// there need not be a ring.
pub fn damaged_slots(devices: &[Labeled]) -> u64 {
    let (mut good, mut bad) = (BTreeSet::new(), BTreeSet::new());
    for d in devices {
        let is_ring = |label: usize| d.ring.iter().any(|e| e.label == label && e.ub.is_ok());
        // A new device has one block as large as the ring, with the txg 0: no slot has its
        // checksum.
        let is_template = |label: usize| {
            let head = label_offsets(d.dev.size).get(label).and_then(|at| d.dev.read(at + RING_OFFSET, 24).ok());
            head.is_some_and(|head| head[16..] == [0; 8])
        };
        let all = d.ring.iter().filter(|e| is_ring(e.label));
        for e in all.filter(|e| e.slot != 0 || e.ub.is_ok() || !is_template(e.label)) {
            if e.ub.is_ok() { &mut good } else { &mut bad }.insert(e.slot);
        }
    }
    bad.difference(&good).count() as u64
}

/// All roots on these devices, the newest first, each once.
pub fn roots(devices: &[Labeled]) -> Vec<Root> {
    let mut found: Vec<Root> = Vec::new();
    let mut places = BTreeSet::new();
    let mut add = |ub: Uberblock, device: usize, at: u64| {
        if !places.insert((device, at, ub.txg.0)) {
            return;
        }
        match found.iter_mut().find(|r| r.ub == ub) {
            Some(r) => r.copies += 1,
            None => found.push(Root { ub, copies: 1 }),
        }
    };
    for (n, d) in devices.iter().enumerate() {
        for entry in &d.ring {
            if let Ok(ub) = &entry.ub {
                add(ub.clone(), n, entry.label as u64 * RING_SIZE as u64 + entry.slot);
            }
        }
        // A label that says a wrong sector size, or none.
        if d.dev.size < 4 * LABEL_SIZE {
            continue;
        }
        for (label, at) in label_offsets(d.dev.size).into_iter().enumerate() {
            if d.ring.iter().any(|r| r.label == label && r.ub.is_ok()) {
                continue;
            }
            let Ok(ring) = d.dev.read(at + RING_OFFSET, RING_SIZE) else { continue };
            for shift in SLOT_SHIFT_MIN..=SLOT_SHIFT_MAX {
                for (slot, ub) in scan_ring(&ring, shift, at) {
                    if let Ok(ub) = ub {
                        add(ub, n, label as u64 * RING_SIZE as u64 + (slot << shift));
                    }
                }
            }
        }
    }
    found.sort_by_key(|r| std::cmp::Reverse(r.ub.rank()));
    found
}
