//! Dirty data blocks of an object in one txg: their content, and the pointers of those that were
//! stored before the sync.
//!
//! # States
//!
//! A dirty block is in one of these states ([`DirtyBlk`]):
//!
//! * `Mut`: its content is in memory that nothing else uses; it can be changed without a copy.
//! * `Frozen`: the content is shared, with readers, with its writer, or with an early write.
//!   Changing it copies it first, so shared content never changes.
//! * `Overridden` (`DR_OVERRIDDEN` of OpenZFS): frozen, and stored already, by the rules that the
//!   sync would follow, as a block born in this txg. The sync of the txg puts that pointer into the
//!   tree and writes nothing.
//! * `Rewritten` (`dr_rewrite`): frozen, and nothing but what the block holds already: the sync
//!   writes it anew, with its logical birth or a new one, and does not leave an equal block where
//!   it is. It has no early write. A change makes it `Mut`.
//! * `Packed`: frozen, with its stored form settled.
//! * `Cloned`: the block is that of another file, whose pointer the sync puts into the tree (module
//!   `clone`). Its content is not in memory; a change reads it first and makes it `Mut`.
//!
//! An early write in progress is not a state: it works on shared content, so the block may be
//! changed, freed or shared meanwhile. When its DVA is allocated, and only if the block still has
//! *the same memory* as content, the block becomes overridden ([`DirtyBlocks::override_with`]).
//! Shared memory never changes, so equal memory is equal content.
//!
//! # Transitions
//!
//! | event | `Mut`, `Frozen` | `Overridden` |
//! |---|---|---|
//! | an early write of this content has its DVA | `Overridden` | refused: the second write is given up |
//! | written, in whole or in part | `Mut` or `Frozen` | the same, the pointer is given up |
//! | the block size changes | `Mut` | the same, the pointer is given up |
//! | its range, or the object, is freed | gone | gone, the pointer is given up |
//! | the txg syncs | written | the pointer goes into the tree |
//! | the txg syncs, the early write had failed | written | given up, and written as if never stored |
//! | the txg fails, or the power | gone | gone: no space map on disk has the DVA |
//!
//! A pointer that is *given up* (`dbuf_unoverride`) is freed by the sync of the same txg, in which
//! it was born. So it was never part of the object: it is charged to no dataset, is in no snapshot,
//! and goes into no deadlist. Its DVA is not allocated again before that txg is on disk, so a log
//! record that names it can be replayed as long as the record is needed. A pointer that becomes
//! part of the object is accounted by the sync once, like any block.
//!
//! The early write holds the txg until its device writes end. Therefore all early writes have ended
//! when the sync begins, their results are known, and the flush before the uberblock covers them.
//!
//! A clone has a reference to its block from the txg on. Where it is replaced, resized or freed in
//! that txg, the reference is *given up* instead of a pointer.
//!
//! A newer txg that changes the block has its own version of it; the older version keeps its
//! content and pointer.

use std::collections::BTreeMap;
use std::ops::RangeBounds;
use std::rc::Rc;

use arc::Keep;
use bdev::{Buf, Bytes};
use ondisk::blkptr::Blkptr;
use rt::cost::COPY;
use zio::{Packed, WriteDone};

/// A block that was stored before the sync of its txg.
#[derive(Clone)]
pub(crate) struct Stored {
    /// Its pointer; may be a hole or embedded.
    pub bp: Blkptr,
    /// Its device writes.
    pub done: WriteDone,
    /// Whether it stays in the cache.
    pub keep: Keep,
}

impl Stored {
    /// Whether the write has ended and no device has the block.
    fn has_failed(&self) -> bool {
        self.done.result().is_some_and(|r| r.is_err())
    }
}

/// The content of a dirty block.
pub(crate) enum DirtyBlk {
    /// Changeable without a copy.
    Mut(Buf),
    /// Shared with readers, a writer or the sync.
    Frozen(Bytes),
    /// Shared, and stored already.
    Overridden(Bytes, Box<Stored>),
    /// Shared, and what the block holds already. The flag: it keeps its logical birth.
    Rewritten(Bytes, bool),
    /// Shared, and stored in that form.
    Packed(Bytes, Rc<Packed>),
    /// The block at this pointer, without its content.
    Cloned(Box<Blkptr>),
}

/// What the sync of a txg has to free, because it was replaced before it became part of the object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GivenUp {
    /// The block of an early write.
    Stored(Blkptr),
    /// A reference to a cloned block.
    Clone(Blkptr),
}

impl DirtyBlk {
    /// The content; none of a clone.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            DirtyBlk::Mut(b) => b,
            DirtyBlk::Frozen(b) | DirtyBlk::Rewritten(b, _) | DirtyBlk::Overridden(b, _) | DirtyBlk::Packed(b, _) => b,
            DirtyBlk::Cloned(_) => &[],
        }
    }
    /// The bytes that count as dirty: those in memory.
    pub fn in_memory(&self) -> u64 {
        self.as_slice().len() as u64
    }
    /// The content for sharing; later changes copy it if it is still shared then. None of a clone.
    pub fn share(&mut self) -> Option<Bytes> {
        if let DirtyBlk::Mut(b) = self {
            *self = DirtyBlk::Frozen(std::mem::take(b).freeze());
        }
        match self {
            DirtyBlk::Frozen(b) | DirtyBlk::Rewritten(b, _) | DirtyBlk::Overridden(b, _) | DirtyBlk::Packed(b, _) => {
                Some(b.clone())
            }
            DirtyBlk::Mut(_) => unreachable!("just frozen"),
            DirtyBlk::Cloned(_) => None,
        }
    }
    /// The content to change, and the pointer of the old content, to be given up.
    fn make_mut(&mut self) -> (&mut Buf, Option<Blkptr>) {
        let gone = match self {
            DirtyBlk::Mut(_) => None,
            DirtyBlk::Cloned(bp) => unreachable!("the content of the clone {bp} is read before it is changed"),
            DirtyBlk::Frozen(b) | DirtyBlk::Rewritten(b, _) | DirtyBlk::Packed(b, _) => {
                *self = DirtyBlk::Mut(std::mem::take(b).into_buf());
                None
            }
            DirtyBlk::Overridden(b, stored) => {
                let bp = stored.bp;
                *self = DirtyBlk::Mut(std::mem::take(b).into_buf());
                Some(bp)
            }
        };
        match self {
            DirtyBlk::Mut(b) => (b, gone),
            _ => unreachable!("just thawed"),
        }
    }
    /// What is given up if it is replaced.
    fn to_give_up(&self) -> Option<GivenUp> {
        match self {
            DirtyBlk::Overridden(_, stored) => Some(GivenUp::Stored(stored.bp)),
            DirtyBlk::Cloned(bp) => zio::is_cloneable(bp).then_some(GivenUp::Clone(**bp)),
            _ => None,
        }
    }
}

/// Whether a copy of that many bytes is work for the CPU pool.
pub(crate) fn is_large(len: usize) -> bool {
    rt::place_of(COPY.cost(len as u64)) == rt::Place::Pool
}

/// A copy of `data`, cut or padded with zeros to `len`.
pub(crate) fn resized(data: &[u8], len: usize) -> Buf {
    let mut b = Buf::for_overwrite(len);
    let n = data.len().min(len);
    b[..n].copy_from_slice(&data[..n]);
    b[n..].fill(0);
    b
}

/// `data` itself when it is `len` long, else a copy cut or padded.
pub(crate) fn fit(data: Bytes, len: usize) -> Bytes {
    if data.len() == len { data } else { resized(&data, len).freeze() }
}

/// Whether both are the same memory.
pub(crate) fn is_same(a: &Bytes, b: &Bytes) -> bool {
    std::ptr::eq(&a[..], &b[..]) && a.memory_id() == b.memory_id()
}

/// The blocks that one txg writes, by block id.
#[derive(Default)]
pub(crate) struct DirtyBlocks {
    blocks: BTreeMap<u64, DirtyBlk>,
    /// Early writes and clones that were replaced.
    given_up: Vec<GivenUp>,
}

impl DirtyBlocks {
    pub fn contains(&self, blkid: u64) -> bool {
        self.blocks.contains_key(&blkid)
    }
    /// Bytes of a block in memory: none of a clone.
    pub fn len_of(&self, blkid: u64) -> Option<u64> {
        self.blocks.get(&blkid).map(DirtyBlk::in_memory)
    }
    /// The pointer of a block that is a clone.
    pub fn cloned(&self, blkid: u64) -> Option<Blkptr> {
        match self.blocks.get(&blkid)? {
            DirtyBlk::Cloned(bp) => Some(**bp),
            _ => None,
        }
    }
    /// Whether a block is written anew without a change.
    pub fn is_rewritten(&self, blkid: u64) -> bool {
        matches!(self.blocks.get(&blkid), Some(DirtyBlk::Rewritten(..)))
    }
    /// Whether a block is written anew as it was, with its logical birth.
    pub fn keeps_birth(&self, blkid: u64) -> bool {
        matches!(self.blocks.get(&blkid), Some(DirtyBlk::Rewritten(_, true)))
    }
    /// The first block in a range.
    pub fn first_in(&self, range: impl RangeBounds<u64>) -> Option<u64> {
        self.blocks.range(range).next().map(|(&b, _)| b)
    }
    /// The last block.
    pub fn last(&self) -> Option<u64> {
        self.blocks.last_key_value().map(|(&b, _)| b)
    }
    /// Whether there are two blocks or more in a range.
    pub fn has_two_in(&self, range: impl RangeBounds<u64>) -> bool {
        self.blocks.range(range).nth(1).is_some()
    }

    /// Gives a block new content. Returns the bytes in memory that it had; none if it was not dirty
    /// before.
    pub fn put(&mut self, blkid: u64, blk: DirtyBlk) -> Option<u64> {
        let old = self.blocks.insert(blkid, blk)?;
        self.given_up.extend(old.to_give_up());
        Some(old.in_memory())
    }
    /// The content of a block for sharing; none if it is not dirty, or a clone.
    pub fn share(&mut self, blkid: u64) -> Option<Bytes> {
        self.blocks.get_mut(&blkid)?.share()
    }
    /// The settled stored form of a block.
    pub fn packed(&self, blkid: u64) -> Option<Rc<Packed>> {
        match self.blocks.get(&blkid)? {
            DirtyBlk::Packed(_, packed) => Some(packed.clone()),
            _ => None,
        }
    }
    /// The content of a block if others share it: a change must copy it.
    pub fn shared(&self, blkid: u64) -> Option<Bytes> {
        match self.blocks.get(&blkid)? {
            DirtyBlk::Mut(_) | DirtyBlk::Cloned(_) => None,
            DirtyBlk::Frozen(b) | DirtyBlk::Rewritten(b, _) | DirtyBlk::Overridden(b, _) | DirtyBlk::Packed(b, _) => {
                (!b.is_unique()).then(|| b.clone())
            }
        }
    }
    /// The content of a block to be changed.
    pub fn make_mut(&mut self, blkid: u64) -> Option<&mut Buf> {
        let (buf, gone) = self.blocks.get_mut(&blkid)?.make_mut();
        self.given_up.extend(gone.map(GivenUp::Stored));
        Some(buf)
    }
    /// Truncates a block or pads it with zeros, if it is dirty and no clone. `copies` are such
    /// copies of content, each made before. Returns its old length.
    pub fn resize(&mut self, blkid: u64, len: usize, copies: &mut Vec<(Bytes, Buf)>) -> Option<u64> {
        let blk = self.blocks.get(&blkid).filter(|b| !matches!(b, DirtyBlk::Cloned(_)))?;
        let old = blk.as_slice();
        let old_len = old.len() as u64;
        if old.len() != len {
            let made = match blk {
                DirtyBlk::Mut(_) | DirtyBlk::Cloned(_) => None,
                DirtyBlk::Frozen(b)
                | DirtyBlk::Rewritten(b, _)
                | DirtyBlk::Overridden(b, _)
                | DirtyBlk::Packed(b, _) => copies.iter().position(|(of, _)| is_same(of, b)),
            };
            let new = match made.map(|i| copies.swap_remove(i).1) {
                Some(copy) if copy.len() == len => copy,
                _ => resized(old, len),
            };
            self.put(blkid, DirtyBlk::Mut(new));
        }
        Some(old_len)
    }
    /// Drops the blocks `first..end` (`u64::MAX`: all from there on). Returns the sum of their
    /// bytes in memory.
    pub fn free(&mut self, first: u64, end: u64) -> u64 {
        let mut gone = self.blocks.split_off(&first);
        if end != u64::MAX {
            self.blocks.append(&mut gone.split_off(&end));
        }
        self.given_up.extend(gone.values().filter_map(DirtyBlk::to_give_up));
        gone.values().map(DirtyBlk::in_memory).sum()
    }

    /// `data` was stored as block `blkid`. If that is still the block's content, and it has no
    /// early write yet, the sync will use that pointer; else false: the caller frees it.
    pub fn override_with(&mut self, blkid: u64, data: &Bytes, stored: Stored) -> bool {
        let Some(blk) = self.blocks.get_mut(&blkid) else { return false };
        let unchanged = matches!(blk, DirtyBlk::Frozen(b) if is_same(b, data));
        if unchanged {
            *blk = DirtyBlk::Overridden(data.clone(), Box::new(stored));
        }
        unchanged
    }
    /// The early write of `data`, if that is the block's content.
    pub fn stored(&self, blkid: u64, data: &Bytes) -> Option<Stored> {
        match self.blocks.get(&blkid) {
            Some(DirtyBlk::Overridden(b, stored)) if is_same(b, data) && !stored.has_failed() => {
                Some((**stored).clone())
            }
            _ => None,
        }
    }
    /// For the sync: the pointer to use instead of writing the block, if there is a usable one.
    /// `is_usable` checks it against the object. Repeated calls give the same answer.
    pub fn overridden(&mut self, blkid: u64, is_usable: impl FnOnce(&Blkptr, u64) -> bool) -> Option<Blkptr> {
        let DirtyBlk::Overridden(data, stored) = self.blocks.get(&blkid)? else { return None };
        assert!(stored.done.is_done(), "the txg was held until block {blkid} was stored");
        let bp = stored.bp;
        if !stored.has_failed() && is_usable(&bp, data.len() as u64) {
            return Some(bp);
        }
        let again = DirtyBlk::Frozen(data.clone());
        self.put(blkid, again);
        None
    }
    /// Whether the content of a block with an early write stays in the cache.
    pub fn keep(&self, blkid: u64) -> Keep {
        match self.blocks.get(&blkid) {
            Some(DirtyBlk::Overridden(_, stored)) => stored.keep,
            _ => Keep::Cached,
        }
    }
    /// Drops up to `n` blocks, which are on disk; false if none is left.
    pub fn drop_some(&mut self, n: usize) -> bool {
        (0..n).for_each(|_| drop(self.blocks.pop_first()));
        !self.blocks.is_empty()
    }
    /// Takes what is to be freed in this txg.
    pub fn take_given_up(&mut self) -> Vec<GivenUp> {
        std::mem::take(&mut self.given_up)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Error;
    use ondisk::blkptr::Dva;

    fn stored(n: u64) -> Stored {
        let mut bp = Blkptr::hole();
        bp.set_dva(0, Dva::new(base::VdevId(0), n << 12, 4096, false));
        Stored { bp, done: WriteDone::ready(Ok(())), keep: Keep::Cached }
    }
    fn frozen(fill: u8) -> DirtyBlk {
        DirtyBlk::Frozen(Buf::copy_from(&[fill; 512]).freeze())
    }

    #[test]
    fn a_pointer_lasts_as_long_as_its_content() {
        type Change = fn(&mut DirtyBlocks);
        let change: [(&str, Change); 6] = [
            ("written", |b| assert_eq!(b.put(3, frozen(2)), Some(512))),
            ("cloned over", |b| assert_eq!(b.put(3, clone_of(9)), Some(512))),
            ("changed", |b| b.make_mut(3).expect("dirty")[0] = 9),
            ("resized", |b| assert_eq!(b.resize(3, 1024, &mut Vec::new()), Some(512))),
            ("freed", |b| assert_eq!(b.free(3, 4), 512)),
            ("cut", |b| assert_eq!(b.free(0, u64::MAX), 512)),
        ];
        for (what, f) in change {
            let mut b = DirtyBlocks::default();
            assert!(b.put(3, frozen(1)).is_none());
            let data = b.share(3).expect("dirty");
            let s = stored(7);
            let bp = s.bp;
            assert!(b.override_with(3, &data, s), "{what}");
            assert!(!b.override_with(3, &data, stored(8)), "{what}: stored twice");
            assert_eq!(b.stored(3, &data).map(|s| s.bp), Some(bp), "{what}");
            assert_eq!(b.resize(3, 512, &mut Vec::new()), Some(512));
            assert_eq!(b.overridden(3, |_, len| len == 512), Some(bp), "{what}");
            assert!(b.take_given_up().is_empty(), "{what}");
            f(&mut b);
            assert_eq!(b.take_given_up(), [GivenUp::Stored(bp)], "{what}");
            assert!(b.stored(3, &data).is_none() && b.overridden(3, |_, _| true).is_none(), "{what}");
            assert!(data.iter().all(|&x| x == 1), "{what}: shared content changed");
        }
    }

    #[test]
    fn a_rewritten_block_is_one_until_it_changes() {
        type Change = fn(&mut DirtyBlocks);
        let change: [(&str, Change); 4] = [
            ("written", |b| assert_eq!(b.put(3, frozen(1)), Some(512))),
            ("changed", |b| b.make_mut(3).expect("dirty")[0] = 9),
            ("resized", |b| assert_eq!(b.resize(3, 1024, &mut Vec::new()), Some(512))),
            ("freed", |b| assert_eq!(b.free(3, 4), 512)),
        ];
        for (what, f) in change {
            let mut b = DirtyBlocks::default();
            b.put(3, DirtyBlk::Rewritten(Buf::copy_from(&[1; 512]).freeze(), true));
            let data = b.share(3).expect("dirty");
            assert_eq!(b.resize(3, 512, &mut Vec::new()), Some(512));
            assert!(!b.override_with(3, &data, stored(1)), "an early write would be born in this txg");
            assert!(b.keeps_birth(3) && b.is_rewritten(3) && !b.is_rewritten(4), "{what}");
            f(&mut b);
            assert!(!b.is_rewritten(3) && b.take_given_up().is_empty(), "{what}");
        }
    }

    fn clone_of(n: u64) -> DirtyBlk {
        let mut bp = stored(n).bp;
        bp.set_otype(ondisk::object_type::ObjectType::PLAIN_FILE);
        bp.set_lsize(512);
        DirtyBlk::Cloned(Box::new(bp))
    }

    #[test]
    fn a_clone_lasts_until_it_is_replaced() {
        type Change = fn(&mut DirtyBlocks);
        let change: [(&str, Change); 4] = [
            ("written", |b| assert_eq!(b.put(3, frozen(2)), Some(0))),
            ("cloned over", |b| assert_eq!(b.put(3, clone_of(9)), Some(0))),
            ("freed", |b| assert_eq!(b.free(3, 4), 0)),
            ("cut", |b| assert_eq!(b.free(0, u64::MAX), 0)),
        ];
        for (what, f) in change {
            let mut b = DirtyBlocks::default();
            assert!(b.put(3, clone_of(7)).is_none());
            let bp = b.cloned(3).expect("a clone");
            assert!(b.contains(3) && b.share(3).is_none() && b.shared(3).is_none() && b.len_of(3) == Some(0));
            assert_eq!(b.resize(3, 1024, &mut Vec::new()), None, "{what}");
            assert!(b.overridden(3, |_, _| true).is_none() && b.take_given_up().is_empty(), "{what}");
            f(&mut b);
            assert_eq!(b.take_given_up(), [GivenUp::Clone(bp)], "{what}");
        }
        // What lies in its pointer has no reference.
        let small = Blkptr::embedded(&[1; 20], 512, 2, ondisk::object_type::ObjectType::PLAIN_FILE, 0, base::Txg(5));
        let mut b = DirtyBlocks::default();
        b.put(3, DirtyBlk::Cloned(Box::new(small)));
        b.put(3, frozen(1));
        assert!(b.take_given_up().is_empty());
    }

    #[test]
    fn other_content_is_not_overridden() {
        let mut b = DirtyBlocks::default();
        b.put(0, frozen(1));
        let old = b.share(0).expect("dirty");
        b.make_mut(0).expect("dirty")[0] = 1;
        assert!(!b.override_with(0, &old, stored(1)), "equal bytes, but another version");
        assert!(!b.override_with(1, &old, stored(1)), "not dirty");
        assert!(b.take_given_up().is_empty(), "those are the caller's");
    }

    #[test]
    fn what_failed_or_does_not_fit_is_written_by_the_sync() {
        for (result, usable) in [(Err(Error::invalid("broken")), true), (Ok(()), false)] {
            let mut b = DirtyBlocks::default();
            b.put(5, frozen(4));
            let data = b.share(5).expect("dirty");
            let s = Stored { done: WriteDone::ready(result), ..stored(2) };
            let bp = s.bp;
            assert!(b.override_with(5, &data, s));
            for _ in 0..2 {
                assert!(b.overridden(5, |_, _| usable).is_none());
            }
            assert_eq!(b.take_given_up(), [GivenUp::Stored(bp)]);
            assert_eq!(b.share(5).as_deref(), Some(&[4; 512][..]));
        }
    }
}
