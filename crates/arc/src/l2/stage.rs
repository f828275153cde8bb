//! Blocks that wait to be written to a cache device, in a bounded amount of memory.

use std::collections::BTreeMap;

use bdev::{Bytes, PAGE};
use ondisk::blkptr::Blkptr;

use crate::core::Key;

/// A block as it is stored in the pool.
#[derive(Clone)]
pub(crate) struct Offer {
    pub(crate) key: Key,
    pub(crate) bp: Blkptr,
    /// Its stored bytes: psize of them.
    pub(crate) stored: Bytes,
    pub(crate) meta: bool,
    /// It was read again after it had left memory.
    pub(crate) again: bool,
    /// It was read ahead.
    pub(crate) ahead: bool,
    /// Its number, given by [`Stage::put`]: a later offer of the same block has another content if
    /// that was overwritten.
    pub(crate) number: u64,
}

impl Offer {
    /// Bytes of memory that it takes here.
    fn weight(&self) -> u64 {
        (self.stored.footprint().max(self.stored.len()) + OFFER_COST) as u64
    }
}

/// Bytes of an offer beside its content: the offer, and a slot in each of two trees.
const OFFER_COST: usize = 2 * size_of::<Offer>();

/// Offers by age; those that were read again stay longer than others.
#[derive(Default)]
pub(crate) struct Stage {
    offers: BTreeMap<(bool, u64), Offer>,
    by_key: BTreeMap<Key, (bool, u64)>,
    next: u64,
    memory: u64,
}

impl Stage {
    /// Bytes of memory.
    pub(crate) fn memory(&self) -> u64 {
        self.memory
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.offers.is_empty()
    }

    /// Takes an offer in place of an older one of the same block; drops the oldest ones down to
    /// `max` bytes. A part of a larger allocation is copied, so as not to keep all of it.
    pub(crate) fn put(&mut self, mut offer: Offer, max: u64) {
        self.forget(&offer.key);
        if offer.stored.footprint() > offer.stored.len() + offer.stored.len() / 4 + PAGE {
            offer.stored = Bytes::copy_from(&offer.stored);
        }
        let at = (offer.again, self.next);
        offer.number = self.next;
        self.next += 1;
        self.memory += offer.weight();
        self.by_key.insert(offer.key, at);
        self.offers.insert(at, offer);
        while self.memory > max {
            let Some((_, oldest)) = self.offers.pop_first() else { break };
            self.memory -= oldest.weight();
            self.by_key.remove(&oldest.key);
        }
    }

    /// Drops a block; false if it is not here.
    pub(crate) fn forget(&mut self, key: &Key) -> bool {
        let Some(at) = self.by_key.remove(key) else { return false };
        let offer = self.offers.remove(&at).expect("both maps have the same offers");
        self.memory -= offer.weight();
        true
    }

    /// Every offer, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Offer> {
        self.offers.values()
    }

    /// Takes an offer out.
    pub(crate) fn take(&mut self, key: &Key) -> Option<Offer> {
        let at = self.by_key.remove(key)?;
        let offer = self.offers.remove(&at)?;
        self.memory -= offer.weight();
        Some(offer)
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        *self = Stage { next: self.next, ..Stage::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(n: u64, again: bool, stored: Bytes) -> Offer {
        Offer {
            key: Key { place: n, birth: 1, vdev: 0 },
            bp: Blkptr::hole(),
            stored,
            meta: false,
            again,
            ahead: false,
            number: 0,
        }
    }

    #[test]
    fn the_oldest_go_first_and_memory_is_counted() {
        let mut s = Stage::default();
        let block = || Bytes::copy_from(&[7; 4096]);
        let one = offer(0, false, block()).weight();
        for n in 0..10 {
            s.put(offer(n, n == 0, block()), 4 * one);
            assert!(s.memory() <= 4 * one);
        }
        let left: Vec<u64> = s.iter().map(|o| o.key.place).collect();
        assert_eq!(left, [7, 8, 9, 0], "what was read again stays longest");
        s.put(offer(8, false, block()), 4 * one);
        assert_eq!(s.memory(), 4 * one, "a block is here once");
        assert!(s.forget(&offer(9, false, block()).key) && !s.forget(&offer(1, false, block()).key));
        assert_eq!(s.take(&offer(8, false, block()).key).map(|o| o.key.place), Some(8));
        s.clear();
        assert!(s.is_empty() && s.memory() == 0);
        let part = Bytes::copy_from(&[1; 1 << 20]).slice(0..512);
        s.put(offer(1, false, part), 1 << 20);
        assert!(s.memory() < 64 << 10, "not all of the allocation is kept");
    }
}
