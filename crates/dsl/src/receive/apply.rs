//! Records applied to the dataset that receives.
//!
//! Each record is one transaction, WRITEs of one object that follow each other are one together
//! (up to [`BATCH_BYTES`]). Transactions pass the write throttle as those of users do, so a receive
//! is as fast as the devices and no faster. The dataset notes with each transaction how far the
//! stream is applied.
//!
//! A number that was freed is free only after its txg has synced: an object that needs it at once
//! waits for that, as in OpenZFS.

use std::rc::Rc;

use base::{Error, ErrorKind, MAX_BLOCK, ObjectId, Result, SECTOR};
use bdev::{Buf, Bytes};
use dmu::{Dnode, Objset, TxPlan};
use ondisk::dnode::MAX_OBJECT;
use ondisk::stream::Record;
use ondisk::stream::record::{FreeObjects, Range, Spill, TO_THE_END};
use ondisk::stream::record_flags;
use rt::cost::DMU_OBJECT;
use zio::SealMark;

use super::resume::Progress;
use super::unpack::{Item, Stored};
use crate::dataset::Dataset;
use crate::pool::DslPool;

/// Bytes of WRITEs in one transaction.
const BATCH_BYTES: u64 = 1 << 20;
/// WRITEs in one transaction.
const BATCH_RECORDS: usize = 64;
/// Largest spill block (`SPA_OLD_MAXBLOCKSIZE`).
const SPILL_MAX: u64 = 128 << 10;

/// What decides how records are applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Form {
    /// The stream is full: what it names is replaced.
    pub is_full: bool,
    /// OBJECT says whether there is a spill block.
    pub spill_flags: bool,
    /// Blocks may be larger than 128 KiB.
    pub large_blocks: bool,
    /// Dnodes may have several slots.
    pub large_dnodes: bool,
    /// Blocks come as they lie in the sender's pool.
    pub raw: bool,
    /// Blocks may be left out.
    pub redacted: bool,
    /// Progress is kept, so that the receive can be resumed.
    pub resumable: bool,
}

/// Applies records in order.
pub(super) struct Writer {
    pub(super) pool: Rc<DslPool>,
    pub(super) ds: Rc<Dataset>,
    pub(super) os: Objset,
    pub(super) form: Form,
    /// The object and offset of the last WRITE: they ascend.
    last: (ObjectId, u64),
    /// The highest object number so far.
    pub(super) max_object: ObjectId,
    batch: Vec<Item>,
    batch_bytes: u64,
    /// Of a raw stream: the objects whose block of dnodes comes, and its mark until it is set.
    pub(super) range: Option<(ObjectId, Option<SealMark>)>,
    /// Bytes of the stream before this part of it.
    bytes_before: u64,
}

/// `content`, cut or padded with zeros to `len`: that of an embedded block may be shorter than its
/// place.
fn fit(content: Bytes, len: usize) -> Bytes {
    if content.len() >= len {
        return content.slice(..len);
    }
    let mut padded = Buf::zeroed(len);
    padded[..content.len()].copy_from_slice(&content);
    padded.freeze()
}

fn malformed(text: String) -> Error {
    Error::new(ErrorKind::Corrupt, text)
}

/// Users have no others: 0 is the meta-dnode, the highest are for accounting.
fn check_number(object: ObjectId) -> Result<()> {
    match object.0 {
        1..MAX_OBJECT => Ok(()),
        _ => Err(malformed(format!("{object} is no object number"))),
    }
}

impl Writer {
    /// For a dataset whose receive goes on from `start`.
    pub(super) fn new(pool: Rc<DslPool>, ds: Rc<Dataset>, os: Objset, (form, start): (Form, Progress)) -> Writer {
        Writer {
            pool,
            ds,
            os,
            form,
            // A resumed stream repeats the record of its first object.
            last: (start.object, 0),
            max_object: start.object,
            batch: Vec::new(),
            batch_bytes: 0,
            range: None,
            bytes_before: start.bytes,
        }
    }

    /// Applies a record.
    pub(super) async fn apply(&mut self, item: Item) -> Result<()> {
        let offset = item.offset;
        let place = |e: Error| e.at(format_args!("record at byte {offset} of the stream"));
        if let Record::Write(w) = &item.record {
            self.check_order(w.object, w.offset).map_err(place)?;
            let joins =
                self.batch.last().is_some_and(|last| matches!(&last.record, Record::Write(l) if l.object == w.object));
            let full = self.batch_bytes >= BATCH_BYTES || self.batch.len() >= BATCH_RECORDS;
            if !joins || full {
                self.flush().await?;
            }
            self.batch_bytes += item.content.len() as u64;
            self.batch.push(item);
            return Ok(());
        }
        self.flush().await?;
        self.apply_one(item).await.map_err(place)
    }

    async fn apply_one(&mut self, item: Item) -> Result<()> {
        match &item.record {
            Record::Object(object) => {
                self.check_order(object.object, 0)?;
                match self.form.raw {
                    true => self.raw_object(object, &item).await,
                    false => self.object(object, &item).await,
                }
            }
            Record::FreeObjects(r) => self.free_objects(*r).await,
            Record::Free(r) => self.free(*r).await,
            Record::Spill(r) => self.spill(*r, item.content.clone()).await,
            Record::WriteEmbedded(r) => {
                self.check_order(r.to.object, r.to.offset)?;
                self.flush_writes(vec![item]).await
            }
            Record::WriteByRef(_) => Err(Error::unsupported(
                "deduplicated streams are no longer supported: 'zstream redup' converts this one",
            )),
            // A redacted part is a hole, as in OpenZFS: ranges may be huge.
            Record::Redact(r) if self.form.redacted => self.free(*r).await,
            Record::Redact(_) => Err(malformed("a part is left out of a stream that is not redacted".into())),
            Record::ObjectRange(r) if self.form.raw => self.range(r),
            Record::ObjectRange(_) => Err(malformed("OBJECT_RANGE belongs into raw streams".into())),
            Record::Write(_) | Record::Begin(_) | Record::End(_) => unreachable!("taken apart before"),
        }
    }

    /// Objects and offsets ascend; else a receive could not be resumed.
    fn check_order(&mut self, object: ObjectId, offset: u64) -> Result<()> {
        check_number(object)?;
        if (object, offset) < self.last {
            return Err(malformed(format!(
                "offset {offset} of object {object} comes after offset {} of object {}",
                self.last.1, self.last.0
            )));
        }
        self.last = (object, offset);
        self.max_object = self.max_object.max(object);
        Ok(())
    }

    /// Notes that the stream is applied up to `end`, in the txg of `tx`.
    pub(super) fn note(&self, object: ObjectId, offset: u64, end: u64, tx: &dmu::Tx) {
        if self.form.resumable {
            let bytes = self.bytes_before.saturating_add(end);
            self.ds.note_progress(Progress { object, offset, bytes }, tx.txg());
        }
    }

    /// The object that a record names.
    pub(super) async fn hold(&self, object: ObjectId) -> Result<Dnode> {
        check_number(object)?;
        self.os.hold(object).await.map_err(|e| match e.kind() {
            ErrorKind::NotFound => malformed(format!("it names object {object}, which does not exist")),
            _ => e,
        })
    }

    /// Applies the WRITEs that wait.
    pub(super) async fn flush(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        let Some(first) = batch.first() else { return Ok(()) };
        let offset = first.offset;
        self.flush_writes(batch).await.map_err(|e| e.at(format_args!("records at byte {offset} of the stream")))
    }

    /// Applies blocks of one object in one transaction.
    async fn flush_writes(&self, batch: Vec<Item>) -> Result<()> {
        let place = |item: &Item| match &item.record {
            Record::Write(w) => (w.object, w.offset, w.logical_size),
            Record::WriteEmbedded(e) => (e.to.object, e.to.offset, e.to.length),
            _ => unreachable!("only writes are batched"),
        };
        let (object, ..) = place(&batch[0]);
        let dn = self.hold(object).await?;
        let mut plan = TxPlan::new(&self.os);
        for item in &batch {
            let (_, offset, len) = place(item);
            if len == 0 || len > MAX_BLOCK || offset.checked_add(len).is_none() {
                return Err(malformed(format!("{len} bytes at {offset} of object {object} are no block")));
            }
            plan = plan.write(&dn, offset, len);
        }
        let tx = plan.assign().await?;
        // What is to be encrypted is packed anew.
        let encrypted = self.ds.dir().is_encrypted();
        for item in batch {
            let (_, offset, len) = place(&item);
            if self.form.raw {
                let Record::Write(w) = &item.record else {
                    return Err(malformed("raw streams have no embedded blocks".into()));
                };
                self.raw_write(&dn, w, item.content, &tx)?;
                self.note(object, offset, item.end, &tx);
                continue;
            }
            let size = u64::from(dn.block_size());
            let whole = len == size && offset.is_multiple_of(size) && item.content.len() as u64 == size;
            match item.stored {
                Stored::Packed(packed) if whole && !encrypted => dn.write_packed(offset, item.content, packed, &tx)?,
                Stored::Embedded(payload, compress) if whole && !encrypted => {
                    dn.write_embedded(offset, item.content, &payload, compress, &tx)?;
                }
                _ => dn.write_bytes(offset, fit(item.content, len as usize), &tx).await?,
            }
            self.note(object, offset, item.end, &tx);
        }
        Ok(())
    }

    async fn free(&self, r: Range) -> Result<()> {
        if r.length != TO_THE_END && r.offset.checked_add(r.length).is_none() {
            return Err(malformed(format!("{} bytes at {} of object {} overflow", r.length, r.offset, r.object)));
        }
        if self.form.raw {
            return self.raw_free(&r).await;
        }
        let dn = self.hold(r.object).await?;
        // Most files end where the stream says so.
        let end = dn.max_blkid().saturating_add(1).saturating_mul(u64::from(dn.block_size()));
        if r.offset >= end || r.length == 0 {
            return Ok(());
        }
        let tx = TxPlan::new(&self.os).write(&dn, r.offset, 1).write(&dn, r.offset, 1).net_free().assign().await?;
        dn.free_range(r.offset, r.length, &tx).await
    }

    async fn free_objects(&self, r: FreeObjects) -> Result<()> {
        let end = r.first.0.checked_add(r.count);
        let end = end.ok_or_else(|| malformed(format!("{} objects from {} overflow", r.count, r.first)))?;
        self.free_numbers(r.first.0.max(1), end).await
    }

    /// Frees all objects from `first` to below `end`.
    pub(super) async fn free_numbers(&self, first: u64, end: u64) -> Result<()> {
        let mut next = first;
        while next < end.min(MAX_OBJECT) {
            self.os.ctx().rt().spend(DMU_OBJECT).await;
            let Some(object) = self.os.objects(ObjectId(next)).await?.filter(|o| o.0 < end) else { return Ok(()) };
            self.free_object(object).await?;
            next = object.0 + 1;
        }
        Ok(())
    }

    pub(super) async fn free_object(&self, object: ObjectId) -> Result<()> {
        let dn = self.os.hold(object).await?;
        let tx = TxPlan::new(&self.os).free(&dn).net_free().assign().await?;
        self.os.free(object, &tx).await
    }

    async fn spill(&self, r: Spill, content: Bytes) -> Result<()> {
        if r.length < SECTOR || r.length > SPILL_MAX || !r.length.is_multiple_of(SECTOR) {
            return Err(malformed(format!("a spill block of {} bytes does not exist", r.length)));
        }
        if self.form.spill_flags && r.flags & record_flags::SPILL_UNMODIFIED != 0 {
            return Ok(());
        }
        if self.form.raw {
            return self.raw_spill(&r, content).await;
        }
        let dn = self.hold(r.object).await?;
        let tx = TxPlan::new(&self.os).spill(&dn).assign().await?;
        dn.set_spill(Some(content), &tx)
    }
}
