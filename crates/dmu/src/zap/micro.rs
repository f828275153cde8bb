//! Micro ZAPs: one block of entries, indexed in memory by hash.
//!
//! The entries in the block have no order, so without an index every operation would scan up to
//! 2047 entries, or 16383 where the tunable `zap_micro_max_size` and the feature `large_microzap`
//! let a block have more than 128 KiB. The index and the set of free slots change in the same step
//! as the block, after the last wait, so they always agree.

use std::cell::{Cell, RefCell};

use base::Result;
use ondisk::zap::{
    MICRO_MAX_LARGE, MICRO_MAX_NAME, MICRO_MAX_SIZE, Match, MicroEntry, MicroIndex, MicroZap, ZapParams, ZapValue,
};
use rt::cost::ZAP_INDEX;

use super::{ZapEntry, ZapState, exists, missing};
use crate::{DmuCtx, Dnode, Tx};

/// Bytes by which the block grows.
const GROW: usize = 512;

/// Whether an existing name is an error.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Put {
    Add,
    Update,
}

/// The result of a change.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    /// The ZAP must become fat first; nothing was changed.
    DoesNotFit,
}

/// Free slots as a bit each; the lowest is taken first.
#[derive(Default)]
struct FreeSlots {
    words: Vec<u64>,
    /// No word before this one has a free slot.
    first: usize,
}

impl FreeSlots {
    fn release(&mut self, slot: u16) {
        let word = usize::from(slot) / 64;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (slot % 64);
        self.first = self.first.min(word);
    }
    fn lowest(&mut self) -> Option<u16> {
        while let Some(&w) = self.words.get(self.first) {
            if w != 0 {
                return Some((self.first * 64) as u16 + w.trailing_zeros() as u16);
            }
            self.first += 1;
        }
        None
    }
    fn take(&mut self, slot: u16) {
        self.words[usize::from(slot) / 64] &= !(1 << (slot % 64));
    }
}

/// The cached form of a micro ZAP.
pub(super) struct MicroForm {
    params: ZapParams,
    index: RefCell<MicroIndex>,
    free: RefCell<FreeSlots>,
    capacity: Cell<usize>,
    /// Accounts for the memory of the index.
    arc: arc::Arc,
}

/// Bytes charged for the index of a block with room for `capacity` entries.
fn memory(capacity: usize) -> i64 {
    256 + 40 * capacity as i64
}

impl Drop for MicroForm {
    fn drop(&mut self) {
        self.arc.charge(arc::MemKind::ZapIndex, -memory(self.capacity.get()));
    }
}

/// The size up to which a micro ZAP of a dataset or the MOS grows. `tunable`: `zap_micro_max_size`;
/// `large`: the feature `large_microzap` is enabled and it is a dataset's.
fn largest(tunable: u32, large: bool) -> usize {
    let most = if large { MICRO_MAX_LARGE } else { MICRO_MAX_SIZE };
    (tunable as usize).next_multiple_of(GROW).min(most)
}

impl MicroForm {
    pub async fn build(block: &[u8], ctx: &DmuCtx) -> Result<MicroForm> {
        let (rt, arc) = (ctx.rt(), ctx.arc());
        let mz = MicroZap::open(block)?;
        let (mut index, mut free) = (MicroIndex::default(), FreeSlots::default());
        for slot in 0..mz.capacity() as u16 {
            match mz.entry(slot)? {
                Some(e) => {
                    rt.spend(ZAP_INDEX).await;
                    index.add(&mz, &e)?;
                }
                None => free.release(slot),
            }
        }
        arc.charge(arc::MemKind::ZapIndex, memory(mz.capacity()));
        Ok(MicroForm {
            params: mz.params(),
            capacity: Cell::new(mz.capacity()),
            arc: arc.clone(),
            index: RefCell::new(index),
            free: RefCell::new(free),
        })
    }
    pub fn len(&self) -> usize {
        self.index.borrow().len()
    }
    pub fn hash_bits(&self) -> u32 {
        self.params.hash_bits()
    }

    /// Calls `f` with the entry `name`.
    async fn with<R>(
        &self,
        dn: &Dnode,
        name: &[u8],
        how: Match,
        f: impl FnOnce(MicroEntry<'_>) -> R,
    ) -> Result<Option<R>> {
        if how == Match::Exact && name.len() > MICRO_MAX_NAME {
            return Ok(None);
        }
        let block = dn.read_block(0).await?;
        let mz = MicroZap::open(&block[..])?;
        let Some(slot) = self.index.borrow().find(&mz, name, how)? else { return Ok(None) };
        Ok(mz.entry(slot)?.map(f))
    }
    pub async fn lookup(&self, dn: &Dnode, name: &[u8]) -> Result<Option<u64>> {
        self.with(dn, name, Match::Exact, |e| e.value).await
    }
    pub async fn find(&self, dn: &Dnode, name: &[u8], how: Match) -> Result<Option<ZapEntry>> {
        self.with(dn, name, how, |e| ZapEntry { name: e.name.to_vec(), value: ZapValue::from_u64(e.value) }).await
    }
    /// The first entry at or after a (hash, cd), and its (hash, cd).
    pub async fn next_from(&self, dn: &Dnode, hash: u64, cd: u32) -> Result<Option<(u64, u32, ZapEntry)>> {
        let Some((hash, cd, slot)) = self.index.borrow().next_from(hash, cd) else { return Ok(None) };
        let block = dn.read_block(0).await?;
        let mz = MicroZap::open(&block[..])?;
        let e = mz.entry(slot)?.map(|e| ZapEntry { name: e.name.to_vec(), value: ZapValue::from_u64(e.value) });
        Ok(e.map(|e| (hash, cd, e)))
    }

    pub async fn put(
        &self,
        dn: &Dnode,
        st: &ZapState,
        name: &[u8],
        value: &ZapValue,
        how: Put,
        tx: &Tx,
    ) -> Result<Outcome> {
        let old = self.with(dn, name, Match::Exact, |e| (e.slot, e.value)).await?;
        if old.is_some() && how == Put::Add {
            return Err(exists(name));
        }
        let Some(value) = value.as_u64() else { return Ok(Outcome::DoesNotFit) };
        if let Some((slot, before)) = old {
            if before != value {
                dn.update_block(0, tx, |b| MicroZap::open(b).map(|mut mz| mz.set_value(slot, value))).await??;
                st.changed();
            }
            return Ok(Outcome::Done);
        }
        if name.len() > MICRO_MAX_NAME {
            return Ok(Outcome::DoesNotFit);
        }
        if self.free.borrow_mut().lowest().is_none() && !self.grow(dn, tx)? {
            return Ok(Outcome::DoesNotFit);
        }
        let Some(slot) = self.free.borrow_mut().lowest() else { return Ok(Outcome::DoesNotFit) };
        let hash = self.params.hash(name);
        let cd = self.index.borrow().free_cd(hash);
        dn.update_block(0, tx, |b| MicroZap::open(b).map(|mut mz| mz.put(slot, name, value, cd))).await??;
        self.free.borrow_mut().take(slot);
        self.index.borrow_mut().insert(hash, cd, slot);
        st.changed();
        Ok(Outcome::Done)
    }

    /// Grows the block; false if it has its largest size.
    fn grow(&self, dn: &Dnode, tx: &Tx) -> Result<bool> {
        let size = dn.block_size() as usize + GROW;
        let os = dn.objset();
        let ctx = os.ctx();
        let large = ctx.features().large_microzap && os.is_dataset();
        if size > largest(ctx.tunables().zap_micro_max, large) {
            return Ok(false);
        }
        dn.set_block_size(size as u32, tx)?;
        let capacity = size / 64 - 1;
        let mut free = self.free.borrow_mut();
        for slot in self.capacity.get()..capacity {
            free.release(slot as u16);
        }
        self.arc.charge(arc::MemKind::ZapIndex, memory(capacity) - memory(self.capacity.get()));
        self.capacity.set(capacity);
        Ok(true)
    }

    pub async fn remove(&self, dn: &Dnode, st: &ZapState, name: &[u8], tx: &Tx) -> Result<()> {
        let Some((slot, cd)) = self.with(dn, name, Match::Exact, |e| (e.slot, e.cd)).await? else {
            return Err(missing(name));
        };
        dn.update_block(0, tx, |b| MicroZap::open(b).map(|mut mz| mz.remove(slot))).await??;
        self.index.borrow_mut().remove(self.params.hash(name), cd);
        self.free.borrow_mut().release(slot);
        st.changed();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn micro_zaps_grow_to_the_tunable_within_the_features_limit() {
        for (tunable, large, want) in [
            (128 << 10, false, 128 << 10),
            (128 << 10, true, 128 << 10),
            (256 << 10, false, 128 << 10),
            (256 << 10, true, 256 << 10),
            ((256 << 10) + 1, true, (256 << 10) + 512),
            (u32::MAX, true, 1 << 20),
            (512, true, 512),
            (0, false, 0),
        ] {
            assert_eq!(largest(tunable, large), want, "{tunable} {large}");
        }
    }
}
