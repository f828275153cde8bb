//! Redaction lists: objects of the MOS that redaction bookmarks name.
//!
//! A list that something reads or makes is in use: its bookmark cannot be destroyed meanwhile.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result};
use bdev::Bytes;
use dmu::{Dnode, ObjSpec, Tx};
use ondisk::feature::FeatureId;
use ondisk::object_type::ObjectType;
use ondisk::redact::{
    REDACTED_RANGE_SIZE, REDACTION_BLOCK, REDACTION_SNAPS_MAX, REDACTION_SNAPS_MAX_SPILL, RedactedRange,
    RedactionHeader,
};

use super::merge::Place;
use crate::pool::DslPool;

/// Entries that are read at once.
const READ_MAX: u64 = 1024;

/// The lists of a pool that are in use, with the number of their users.
pub(crate) type ListsInUse = Rc<RefCell<BTreeMap<ObjectId, u32>>>;

/// A list that is in use as long as this lives.
pub(crate) struct ListUse {
    list: ObjectId,
    all: ListsInUse,
}

impl Drop for ListUse {
    fn drop(&mut self) {
        let mut all = self.all.borrow_mut();
        if let Some(users) = all.get_mut(&self.list) {
            *users -= 1;
            if *users == 0 {
                all.remove(&self.list);
            }
        }
    }
}

/// The entries of a list, one after the other.
pub(crate) struct ListReader {
    dn: Dnode,
    entries: u64,
    next: u64,
    read: VecDeque<RedactedRange>,
    /// What lies before is not given.
    from: Place,
    _use: ListUse,
}

impl ListReader {
    /// The next entry. Error: `Corrupt` if they do not ascend.
    pub(crate) async fn next(&mut self) -> Result<Option<RedactedRange>> {
        loop {
            if self.read.is_empty() && !self.fill().await? {
                return Ok(None);
            }
            let Some(mut range) = self.read.pop_front() else { return Ok(None) };
            let place = (range.object.0, range.blkid);
            if range.object.0 < self.from.0 || (range.object.0 == self.from.0 && range.end() <= self.from.1) {
                continue;
            }
            if place < self.from {
                // The receiver has the beginning of this one.
                range.count = range.end() - self.from.1;
                range.blkid = self.from.1;
            }
            self.from = (range.object.0, range.end());
            return Ok(Some(range));
        }
    }

    /// Reads the next entries.
    async fn fill(&mut self) -> Result<bool> {
        let count = READ_MAX.min(self.entries - self.next);
        if count == 0 {
            return Ok(false);
        }
        let size = REDACTED_RANGE_SIZE as u64;
        let mut bytes = vec![0; (count * size) as usize];
        self.dn.read(self.next * size, &mut bytes).await?;
        self.next += count;
        let mut last = None;
        for range in bytes.chunks_exact(REDACTED_RANGE_SIZE).filter_map(RedactedRange::parse) {
            let place = (range.object.0, range.blkid);
            if last.is_some_and(|last| place < last) || range.blkid.checked_add(range.count).is_none() {
                return Err(Error::corrupt(format!("the redaction list {} is not in order", self.dn.object())));
            }
            last = Some((range.object.0, range.end()));
            self.read.push_back(range);
        }
        Ok(true)
    }
}

impl DslPool {
    /// Begins a use of a list.
    pub(crate) fn use_list(&self, list: ObjectId) -> ListUse {
        *self.lists_in_use.borrow_mut().entry(list).or_insert(0) += 1;
        ListUse { list, all: self.lists_in_use.clone() }
    }

    /// Whether a list is being made or read.
    pub(crate) fn is_list_used(&self, list: ObjectId) -> bool {
        self.lists_in_use.borrow().contains_key(&list)
    }

    /// The object of a list, and its header.
    pub(crate) async fn redaction_list(&self, list: ObjectId) -> Result<(Dnode, RedactionHeader)> {
        let read = async {
            let dn = self.mos().hold(list).await?;
            if dn.otype() != ObjectType::OTN_U64_METADATA {
                return Err(Error::corrupt(format!("object {list} has the type {}", dn.otype())));
            }
            let header = match dn.spill().await? {
                Some(spill) => RedactionHeader::parse(&spill)?,
                None => dn.with_bonus(RedactionHeader::parse)?,
            };
            let bytes = dn.max_blkid().saturating_add(1).saturating_mul(u64::from(dn.block_size()));
            let room = bytes / REDACTED_RANGE_SIZE as u64;
            if header.entries > room {
                let text = format!("object {list} has {} entries where {room} have room", header.entries);
                return Err(Error::corrupt(text));
            }
            Ok::<_, Error>((dn, header))
        };
        read.await.map_err(|e| e.at("redaction list"))
    }

    /// The entries of a complete list from a place on. Error: `Invalid` if it is not complete.
    pub(crate) async fn read_redactions(&self, list: ObjectId, from: Place) -> Result<ListReader> {
        let list_use = self.use_list(list);
        let (dn, header) = self.redaction_list(list).await?;
        if !header.is_complete() {
            return Err(Error::invalid("incomplete redaction bookmark provided"));
        }
        Ok(ListReader { dn, entries: header.entries, next: 0, read: VecDeque::new(), from, _use: list_use })
    }

    /// Makes an empty list for snapshots with these guids (syncing context). Errors: `Unsupported`
    /// without the feature, `TooBig` for too many snapshots.
    pub(crate) async fn make_redaction_list(&self, header: &RedactionHeader, tx: &Tx) -> Result<ObjectId> {
        self.check_redaction_list(header.snaps.len())?;
        let bytes = header.to_bytes();
        let plain = ObjSpec::new(ObjectType::OTN_U64_METADATA, REDACTION_BLOCK);
        let spills = header.snaps.len() > REDACTION_SNAPS_MAX;
        let (spec, bonus) = if spills { (plain.spills(), 0) } else { (plain, bytes.len() as u16) };
        let dn = self.mos().alloc(spec.bonus(ObjectType::OTN_U64_METADATA, bonus), tx).await?;
        if spills {
            dn.set_spill(Some(Bytes::copy_from(&bytes)), tx)?;
            self.features().add(FeatureId::RedactionListSpill, 1, tx).await?;
        } else {
            dn.set_bonus(&bytes, tx)?;
        }
        self.features().add(FeatureId::RedactionBookmarks, 1, tx).await?;
        Ok(dn.object())
    }

    /// Whether a list for so many snapshots can be made. Errors: as
    /// [`DslPool::make_redaction_list`].
    pub(crate) fn check_redaction_list(&self, snaps: usize) -> Result<()> {
        if !self.features().is_enabled(FeatureId::RedactionBookmarks) {
            return Err(Error::unsupported("redaction bookmarks feature not enabled"));
        }
        let spills = self.features().is_enabled(FeatureId::RedactionListSpill);
        let most = if spills { REDACTION_SNAPS_MAX_SPILL } else { REDACTION_SNAPS_MAX };
        if snaps > most {
            let text = format!("too many redaction snapshots specified: at most {most} are possible");
            return Err(Error::new(ErrorKind::TooBig, text));
        }
        Ok(())
    }

    /// Appends entries to a list that is made up to `last` then (syncing context).
    pub(crate) async fn append_redactions(
        &self,
        list: ObjectId,
        entries: &[RedactedRange],
        last: Option<Place>,
        tx: &Tx,
    ) -> Result<()> {
        let (dn, mut header) = self.redaction_list(list).await?;
        let bytes: Vec<u8> = entries.iter().flat_map(RedactedRange::to_bytes).collect();
        if !bytes.is_empty() {
            let at = header.entries.saturating_mul(REDACTED_RANGE_SIZE as u64);
            dn.write(at, &bytes, tx).await?;
        }
        header.entries += entries.len() as u64;
        match last {
            Some(place) => header.last = place,
            None => header.complete(),
        }
        match dn.has_spill() {
            true => dn.set_spill(Some(Bytes::copy_from(&header.to_bytes())), tx),
            false => dn.set_bonus(&header.to_bytes(), tx),
        }
    }

    /// Frees a list (syncing context).
    pub(crate) async fn free_redaction_list(&self, list: ObjectId, tx: &Tx) -> Result<()> {
        if self.mos().hold(list).await?.has_spill() {
            self.features().add(FeatureId::RedactionListSpill, -1, tx).await?;
        }
        self.mos().free(list, tx).await?;
        self.features().add(FeatureId::RedactionBookmarks, -1, tx).await
    }
}
