//! Micro ZAPs: one block of fixed entries (format page 04 section 1).

use std::collections::BTreeMap;

use base::{Error, Result};

use super::{BLOCK_MICRO, MICRO_MAX_NAME, MICRO_MAX_SIZE, Match, ZapParams};
use crate::bytes::{le32, le64, put_le16, put_le32, put_le64};

const ENTRY: usize = 64;
const NAME_AT: usize = 14;
const NAME_LEN: usize = 50;

/// A micro ZAP over a block's bytes, borrowed or owned.
#[derive(Clone, Debug)]
pub struct MicroZap<B> {
    b: B,
}

/// An entry of a micro ZAP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MicroEntry<'a> {
    /// Its slot, from 0.
    pub slot: u16,
    /// Name without NUL, 1 to 49 bytes.
    pub name: &'a [u8],
    /// Value.
    pub value: u64,
    /// Collision differentiator.
    pub cd: u32,
}

/// The result of an insertion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MicroInsert {
    /// Done, in this slot.
    Done(u16),
    /// No slot is free: grow the block or make the ZAP fat.
    Full,
}

impl<B: AsRef<[u8]>> MicroZap<B> {
    /// Takes a block for a micro ZAP, if its first word and size are those of one. Entries are
    /// checked as they are read.
    pub fn open(b: B) -> Result<MicroZap<B>> {
        let bytes = b.as_ref();
        if bytes.len() < 2 * ENTRY || !bytes.len().is_multiple_of(ENTRY) || bytes.len() > 16 << 20 {
            return Err(Error::corrupt(format!("micro ZAP of {} bytes", bytes.len())));
        }
        if le64(bytes, 0) != BLOCK_MICRO {
            return Err(Error::corrupt(format!("micro ZAP begins with {:#x}", le64(bytes, 0))));
        }
        Ok(MicroZap { b })
    }
    /// The block.
    pub fn into_inner(self) -> B {
        self.b
    }
    /// The block's bytes.
    pub fn bytes(&self) -> &[u8] {
        self.b.as_ref()
    }
    /// Salt and normalisation.
    pub fn params(&self) -> ZapParams {
        ZapParams { salt: le64(self.bytes(), 8), normflags: le64(self.bytes(), 16), flags: 0 }
    }
    /// How many entries the block has room for.
    pub fn capacity(&self) -> usize {
        (self.bytes().len() / ENTRY - 1).min(usize::from(u16::MAX))
    }
    fn raw(&self, slot: usize) -> &[u8] {
        &self.bytes()[(slot + 1) * ENTRY..(slot + 2) * ENTRY]
    }
    /// The entry in `slot`, `None` when it is free.
    pub fn entry(&self, slot: u16) -> Result<Option<MicroEntry<'_>>> {
        if usize::from(slot) >= self.capacity() {
            return Err(Error::invalid(format!("micro ZAP has no slot {slot}")));
        }
        let e = self.raw(usize::from(slot));
        let name = &e[NAME_AT..NAME_AT + NAME_LEN];
        if name[0] == 0 {
            return Ok(None);
        }
        match name.iter().position(|&c| c == 0) {
            Some(n) => Ok(Some(MicroEntry { slot, name: &name[..n], value: le64(e, 0), cd: le32(e, 8) })),
            None => Err(Error::corrupt(format!("micro ZAP entry {slot} has a name without end"))),
        }
    }
    /// All entries, in slot order.
    pub fn entries(&self) -> impl Iterator<Item = Result<MicroEntry<'_>>> + '_ {
        (0..self.capacity() as u16).filter_map(|s| self.entry(s).transpose())
    }
    /// Number of entries in use.
    pub fn count(&self) -> usize {
        (0..self.capacity()).filter(|&s| self.raw(s)[NAME_AT] != 0).count()
    }
    /// Whether every slot is in use.
    pub fn is_full(&self) -> bool {
        (0..self.capacity()).all(|s| self.raw(s)[NAME_AT] != 0)
    }
    /// The entry with this name, by linear search; of several that match the one with the lowest
    /// cd.
    pub fn find(&self, name: &[u8], how: Match) -> Result<Option<MicroEntry<'_>>> {
        let params = self.params();
        let mut best: Option<MicroEntry<'_>> = None;
        for s in 0..self.capacity() {
            // Compare in place first: most entries are not it and need no parsing.
            if how == Match::Exact {
                let n = &self.raw(s)[NAME_AT..];
                if name.len() > MICRO_MAX_NAME || name.is_empty() || n[..name.len()] != *name || n[name.len()] != 0 {
                    continue;
                }
            }
            if let Some(e) = self.entry(s as u16)?
                && params.matches(e.name, name, how)
                && best.is_none_or(|b| e.cd < b.cd)
            {
                best = Some(e);
            }
        }
        Ok(best)
    }
}

impl<B: AsRef<[u8]> + AsMut<[u8]>> MicroZap<B> {
    /// Makes `b` an empty micro ZAP. Its size is a multiple of 512 up to 128 KiB, the salt not 0.
    pub fn init(mut b: B, salt: u64, normflags: u64) -> MicroZap<B> {
        let bytes = b.as_mut();
        assert!(
            bytes.len().is_multiple_of(512) && !bytes.is_empty() && bytes.len() <= MICRO_MAX_SIZE,
            "micro ZAP of {} bytes",
            bytes.len()
        );
        assert!(salt != 0, "ZAP salt is zero");
        bytes.fill(0);
        put_le64(bytes, 0, BLOCK_MICRO);
        put_le64(bytes, 8, salt);
        put_le64(bytes, 16, normflags);
        MicroZap { b }
    }
    fn raw_mut(&mut self, slot: u16) -> &mut [u8] {
        let at = (usize::from(slot) + 1) * ENTRY;
        &mut self.b.as_mut()[at..at + ENTRY]
    }
    /// Stores an entry in the first free slot. The caller guarantees that the name is absent and
    /// passes the lowest `cd` free for its hash ([`MicroIndex::free_cd`]).
    pub fn insert(&mut self, name: &[u8], value: u64, cd: u32) -> MicroInsert {
        assert!(
            !name.is_empty() && name.len() <= MICRO_MAX_NAME && !name.contains(&0),
            "name does not fit a micro ZAP"
        );
        let Some(slot) = (0..self.capacity()).find(|&s| self.raw(s)[NAME_AT] == 0) else {
            return MicroInsert::Full;
        };
        self.put(slot as u16, name, value, cd);
        MicroInsert::Done(slot as u16)
    }
    /// Stores an entry in `slot`, which must be free; otherwise as [`MicroZap::insert`].
    pub fn put(&mut self, slot: u16, name: &[u8], value: u64, cd: u32) {
        assert!(
            !name.is_empty() && name.len() <= MICRO_MAX_NAME && !name.contains(&0),
            "name does not fit a micro ZAP"
        );
        let e = self.raw_mut(slot);
        e.fill(0);
        put_le64(e, 0, value);
        put_le32(e, 8, cd);
        put_le16(e, 12, 0);
        e[NAME_AT..NAME_AT + name.len()].copy_from_slice(name);
    }
    /// Changes the value in `slot`.
    pub fn set_value(&mut self, slot: u16, value: u64) {
        put_le64(self.raw_mut(slot), 0, value);
    }
    /// Frees `slot`.
    pub fn remove(&mut self, slot: u16) {
        self.raw_mut(slot).fill(0);
    }
}

/// The entries of a micro ZAP by (hash, cd): for lookups, free collision numbers, and walks in
/// cursor order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MicroIndex {
    map: BTreeMap<(u64, u32), u16>,
}

impl MicroIndex {
    /// Indexes all entries. Two with the same hash and cd, or the same name, are damage.
    pub fn build<B: AsRef<[u8]>>(mz: &MicroZap<B>) -> Result<MicroIndex> {
        let mut ix = MicroIndex::default();
        for e in mz.entries() {
            ix.add(mz, &e?)?;
        }
        Ok(ix)
    }
    /// Indexes one more entry of `mz`, with the checks of [`MicroIndex::build`].
    pub fn add<B: AsRef<[u8]>>(&mut self, mz: &MicroZap<B>, e: &MicroEntry<'_>) -> Result<()> {
        let hash = mz.params().hash(e.name);
        if self.same_hash(hash).any(|(_, s)| matches!(mz.entry(s), Ok(Some(o)) if o.name == e.name)) {
            return Err(Error::corrupt(format!("micro ZAP has the name {:?} twice", String::from_utf8_lossy(e.name))));
        }
        if self.map.insert((hash, e.cd), e.slot).is_some() {
            return Err(Error::corrupt(format!("micro ZAP entries share hash {hash:#x} and cd {}", e.cd)));
        }
        Ok(())
    }
    /// cd and slot of every entry with this hash, lowest cd first.
    pub fn same_hash(&self, hash: u64) -> impl Iterator<Item = (u32, u16)> + '_ {
        self.map.range((hash, 0)..=(hash, u32::MAX)).map(|(&(_, cd), &slot)| (cd, slot))
    }
    /// The lowest cd that no entry with this hash has.
    pub fn free_cd(&self, hash: u64) -> u32 {
        let mut want = 0;
        for (cd, _) in self.same_hash(hash) {
            if cd != want {
                break;
            }
            want += 1;
        }
        want
    }
    /// Slot of the entry with this name.
    pub fn find<B: AsRef<[u8]>>(&self, mz: &MicroZap<B>, name: &[u8], how: Match) -> Result<Option<u16>> {
        let params = mz.params();
        for (_, slot) in self.same_hash(params.hash(name)) {
            if let Some(e) = mz.entry(slot)?
                && params.matches(e.name, name, how)
            {
                return Ok(Some(slot));
            }
        }
        Ok(None)
    }
    /// The first entry at or after a place: hash, cd and slot.
    pub fn next_from(&self, hash: u64, cd: u32) -> Option<(u64, u32, u16)> {
        self.map.range((hash, cd)..).next().map(|(&(h, c), &s)| (h, c, s))
    }
    /// Notes an entry.
    pub fn insert(&mut self, hash: u64, cd: u32, slot: u16) {
        self.map.insert((hash, cd), slot);
    }
    /// Removes an entry.
    pub fn remove(&mut self, hash: u64, cd: u32) -> Option<u16> {
        self.map.remove(&(hash, cd))
    }
    /// Number of entries.
    pub fn len(&self) -> usize {
        self.map.len()
    }
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::zap::NORM_TOUPPER;
    use proptest::prelude::*;

    #[test]
    fn folding_lookup() {
        let mut mz = MicroZap::init(vec![0u8; 512], 99, NORM_TOUPPER);
        let mut ix = MicroIndex::default();
        let h = mz.params().hash(b"snap");
        for name in [&b"snap"[..], b"SNAP", b"Snap"] {
            assert_eq!(mz.params().hash(name), h);
            let cd = ix.free_cd(h);
            let MicroInsert::Done(slot) = mz.insert(name, u64::from(cd) + 10, cd) else { panic!() };
            ix.insert(h, cd, slot);
        }
        assert_eq!(mz.find(b"sNAP", Match::Folded).unwrap().unwrap().value, 10);
        assert_eq!(mz.find(b"Snap", Match::Exact).unwrap().unwrap().value, 12);
        assert!(mz.find(b"sNAP", Match::Exact).unwrap().is_none());
        ix.remove(h, 1);
        assert_eq!(ix.free_cd(h), 1);
        assert_eq!(MicroIndex::build(&mz).unwrap().len(), 3);
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(ops in proptest::collection::vec((0u8..12, any::<u64>(), 0u8..4), 1..120)) {
            let mut mz = MicroZap::init(vec![0u8; 512], 0x1234_5677, 0);
            let mut ix = MicroIndex::default();
            let mut model: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
            for (k, v, op) in ops {
                let name = format!("key{k}").into_bytes();
                let hash = mz.params().hash(&name);
                let slot = ix.find(&mz, &name, Match::Exact).unwrap();
                prop_assert_eq!(slot.is_some(), model.contains_key(&name));
                match (slot, op) {
                    (Some(s), 0 | 1) => {
                        let cd = mz.entry(s).unwrap().unwrap().cd;
                        mz.remove(s);
                        ix.remove(hash, cd);
                        model.remove(&name);
                    }
                    (Some(s), _) => { mz.set_value(s, v); model.insert(name, v); }
                    (None, _) => {
                        let cd = ix.free_cd(hash);
                        match mz.insert(&name, v, cd) {
                            MicroInsert::Done(s) => { ix.insert(hash, cd, s); model.insert(name, v); }
                            MicroInsert::Full => prop_assert_eq!(model.len(), 7),
                        }
                    }
                }
            }
            let mz = MicroZap::open(mz.into_inner()).unwrap();
            let got: BTreeMap<Vec<u8>, u64> = mz.entries().map(|e| e.map(|e| (e.name.to_vec(), e.value))).collect::<Result<_>>().unwrap();
            prop_assert_eq!(&got, &model);
            prop_assert_eq!(MicroIndex::build(&mz).unwrap(), ix);
            prop_assert_eq!(mz.is_full(), model.len() == 7);
        }

        #[test]
        fn hostile_bytes_never_panic(mut b in proptest::collection::vec(any::<u8>(), 0..1024)) {
            b.truncate(b.len() / 64 * 64);
            if b.len() >= 8 { put_le64(&mut b, 0, BLOCK_MICRO); }
            if let Ok(mz) = MicroZap::open(&b) {
                let _ = MicroIndex::build(&mz);
                let _ = mz.find(b"x", Match::Exact);
                let _ = mz.count();
            }
        }
    }
}
