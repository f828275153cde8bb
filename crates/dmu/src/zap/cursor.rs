//! Walks over a ZAP in (hash, cd) order, resumable by a number (format page 04 section 7).
//!
//! The order does not depend on the form of the ZAP or on its other entries: an entry that exists
//! all the time is given exactly once, with any additions and removals meanwhile, even if the walk
//! is resumed from its number after another import of the pool.

use base::{Error, Result, ResultExt};
use bdev::Bytes;
use ondisk::zap::{Leaf, LeafEntry, cookie, from_cookie};

use super::fat::FatForm;
use super::{Form, ZapEntry, ZapState, place};
use crate::Dnode;

enum Place {
    /// Not yet translated: the ZAP determines the number of hash bits.
    Cookie(u64),
    /// The first entry at or after this is next.
    At(u64, u32),
    End,
}

/// A leaf read ahead.
struct Batch {
    /// The ZAP's count of changes when it was read.
    changes: u64,
    leaf: Bytes,
    entries: Vec<LeafEntry>,
    /// Index of the next entry.
    next: usize,
    /// First hash of the next leaf.
    next_hash: Option<u64>,
}

/// A walk over the entries of a ZAP.
pub struct Cursor {
    dn: Dnode,
    place: Place,
    batch: Option<Batch>,
}

impl Cursor {
    /// From the first entry.
    pub fn new(dn: &Dnode) -> Cursor {
        Cursor::at(dn, 0)
    }
    /// From a cookie: 0 is the beginning, `u64::MAX` the end.
    pub fn at(dn: &Dnode, serialized: u64) -> Cursor {
        Cursor { dn: dn.clone(), place: Place::Cookie(serialized), batch: None }
    }
    /// The next entry, and the cookie that resumes after it. `None` at the end, and from then on.
    #[allow(clippy::should_implement_trait)]
    pub async fn next(&mut self) -> Result<Option<(ZapEntry, u64)>> {
        let st = ZapState::of(&self.dn);
        let _lock = st.lock.read().await;
        self.step(&st).await.at(|| place(&self.dn))
    }
    /// Up to `max` next entries under one lock, as [`Cursor::next`] would give them; empty at the
    /// end.
    pub async fn next_batch(&mut self, max: usize) -> Result<Vec<(ZapEntry, u64)>> {
        let st = ZapState::of(&self.dn);
        let _lock = st.lock.read().await;
        let mut out = Vec::new();
        while out.len() < max {
            match self.step(&st).await.at(|| place(&self.dn))? {
                Some(e) => out.push(e),
                None => break,
            }
        }
        Ok(out)
    }

    async fn step(&mut self, st: &ZapState) -> Result<Option<(ZapEntry, u64)>> {
        if matches!(self.place, Place::End) {
            return Ok(None);
        }
        let form = st.form(&self.dn).await?;
        let bits = match &*form {
            Form::Micro(m) => m.hash_bits(),
            Form::Fat(f) => f.header().params.hash_bits(),
        };
        let (hash, cd) = match self.place {
            Place::At(hash, cd) => (hash, cd),
            Place::Cookie(c) => match from_cookie(c, bits) {
                Some(at) => at,
                None => return self.end(),
            },
            Place::End => return self.end(),
        };
        let found = match &*form {
            Form::Micro(m) => m.next_from(&self.dn, hash, cd).await?,
            Form::Fat(f) => self.fat_next(f, st, hash, cd).await?,
        };
        let Some((hash, cd, entry)) = found else { return self.end() };
        let resume = match cd.checked_add(1) {
            Some(cd) => Some((hash, cd)),
            None => hash.checked_add(1 << (64 - bits)).map(|h| (h, 0)),
        };
        let serialized = match resume {
            Some((h, c)) => {
                self.place = Place::At(h, c);
                cookie(h, c, bits)
            }
            None => {
                self.place = Place::End;
                u64::MAX
            }
        };
        Ok(Some((entry, serialized)))
    }

    fn end<T>(&mut self) -> Result<Option<T>> {
        self.place = Place::End;
        self.batch = None;
        Ok(None)
    }

    async fn fat_next(
        &mut self,
        f: &FatForm,
        st: &ZapState,
        mut hash: u64,
        mut cd: u32,
    ) -> Result<Option<(u64, u32, ZapEntry)>> {
        let kind = f.header().params.key_kind();
        loop {
            let batch = match self.batch.take() {
                Some(b) if b.changes == st.changes.get() => b,
                _ => {
                    let (_, bytes) = f.leaf(&self.dn, hash).await?;
                    let leaf = Leaf::open(&bytes[..], kind)?;
                    let (mut entries, next_hash) = (leaf.entries()?, leaf.next_hash());
                    // Entries outside the leaf's range would move the walk back.
                    if let Some(e) = entries.iter().find(|e| !leaf.covers(e.hash)) {
                        return Err(Error::corrupt(format!(
                            "fat ZAP leaf has an entry with foreign hash {:#x}",
                            e.hash
                        )));
                    }
                    entries.retain(|e| (e.hash, e.cd) >= (hash, cd));
                    Batch { changes: st.changes.get(), leaf: bytes, entries, next: 0, next_hash }
                }
            };
            let batch = self.batch.insert(batch);
            if let Some(e) = batch.entries.get(batch.next) {
                batch.next += 1;
                let leaf = Leaf::open(&batch.leaf[..], kind)?;
                let entry = ZapEntry { name: leaf.key(e)?, value: leaf.value(e)? };
                return Ok(Some((e.hash, e.cd, entry)));
            }
            // The leaf covers `hash`, so the next hash is larger: the walk ends.
            match batch.next_hash {
                Some(next) => (hash, cd) = (next, 0),
                None => return Ok(None),
            }
            self.batch = None;
        }
    }
}
