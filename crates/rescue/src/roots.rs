//! Roots: every uberblock that is left, of any label of any device, newest first.
//!
//! The size of a slot depends on the sector size of the vdev, which the label may not say any more;
//! all sizes are tried, and the checksum of a slot covers its place, so nothing else passes for an
//! uberblock.

use std::collections::BTreeSet;

use base::Txg;
use ondisk::blkptr::Blkptr;
use ondisk::label::{ECK_SIZE, LABEL_SIZE, RING_OFFSET, RING_SIZE, label_offsets};
use ondisk::uberblock::{SLOT_SHIFT_MAX, SLOT_SHIFT_MIN, Uberblock, scan_ring, slot_offset};
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
/// newer than those that are left. A slot that was never written is zero; one that is neither zero
/// nor an uberblock is damaged, whatever is in it. Rings without any uberblock do not count: what
/// is there need not be a ring.
pub fn damaged_slots(devices: &[Labeled]) -> u64 {
    let (mut good, mut bad) = (BTreeSet::new(), BTreeSet::new());
    for d in devices.iter().filter(|d| d.dev.size >= 4 * LABEL_SIZE) {
        for at in label_offsets(d.dev.size) {
            let Ok(ring) = d.dev.read(at + RING_OFFSET, RING_SIZE) else { continue };
            let Some(shift) = slot_shift(&ring, at) else { continue };
            for (slot, bytes) in (0u64..).zip(ring.chunks_exact(1 << shift)) {
                match Uberblock::parse(bytes, slot_offset(at, shift, slot)) {
                    Ok(Some(_)) => good.insert((shift, slot)),
                    _ if is_unwritten(bytes, slot == 0, (slot + 1) << shift == RING_SIZE as u64) => false,
                    _ => bad.insert((shift, slot)),
                };
            }
        }
    }
    bad.difference(&good).count() as u64
}

/// log2 of the size of the slots of a ring: that with which it has the most uberblocks; `None`
/// without any.
fn slot_shift(ring: &[u8], label_offset: u64) -> Option<u64> {
    let good = |shift: u64| scan_ring(ring, shift, label_offset).filter(|(_, ub)| ub.is_ok()).count();
    let most = (SLOT_SHIFT_MIN..=SLOT_SHIFT_MAX).rev().max_by_key(|shift| good(*shift))?;
    (good(most) > 0).then_some(most)
}

/// Whether a slot is as a new device has it: zero, but for an uberblock of the txg 0 that is as
/// large as the ring, with its head in the first slot and its checksum in the last one.
fn is_unwritten(slot: &[u8], is_first: bool, is_last: bool) -> bool {
    let end = if is_last { slot.len() - ECK_SIZE } else { slot.len() };
    codec::is_zero(&slot[..end]) || is_first && slot[16..24] == [0; 8]
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

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::rc::Rc;

    use zdb::device::Device;

    use super::*;

    /// A device whose rings have uberblocks of these txgs in slots of 1 << `shift` bytes, changed
    /// by `f` at each ring.
    fn device(shift: u64, txgs: &[u64], f: impl Fn(&mut [u8])) -> Labeled {
        let mut bytes = vec![0; 8 << 20];
        for at in label_offsets(bytes.len() as u64) {
            let ring = (at + RING_OFFSET) as usize;
            for txg in txgs {
                let slot = txg % (RING_SIZE as u64 >> shift);
                let (from, size) = (slot_offset(at, shift, slot), 1 << shift);
                let ub = Uberblock::new(Txg(*txg), 1, 2, Blkptr::hole());
                bytes[from as usize..from as usize + size].copy_from_slice(&ub.seal(size, from));
            }
            f(&mut bytes[ring..ring + RING_SIZE]);
        }
        let size = bytes.len() as u64;
        Labeled::scan(Rc::new(Device::over(Path::new("d"), size, Box::new(bytes))))
    }

    #[test]
    fn slots_that_are_neither_written_nor_new_are_damaged() {
        for shift in SLOT_SHIFT_MIN..=SLOT_SHIFT_MAX {
            let whole = device(shift, &[4, 5, 6], |_| {});
            assert_eq!(roots(std::slice::from_ref(&whole)).len(), 3, "no label says the size of a slot");
            assert_eq!(damaged_slots(std::slice::from_ref(&whole)), 0);
            // The head of a new ring, and the checksum at its end.
            let new = device(shift, &[4, 5], |ring| {
                ring[..8].copy_from_slice(&ondisk::uberblock::MAGIC.to_le_bytes());
                ring[RING_SIZE - ECK_SIZE..].fill(0xee);
            });
            assert_eq!(damaged_slots(&[new]), 0, "{shift}");
            // Nothing in a slot says that there was an uberblock.
            let torn = device(shift, &[4, 5, 6], |ring| ring[6 << shift..7 << shift].fill(0x5a));
            assert_eq!(damaged_slots(std::slice::from_ref(&torn)), 1, "{shift}");
            assert_eq!(damaged_slots(&[torn, whole]), 0, "another device has it");
            assert_eq!(damaged_slots(&[device(shift, &[], |ring| ring.fill(0x5a))]), 0, "no ring");
        }
    }
}
