//! Records for the intent log: one for each write and each freed range, added within its
//! transaction and under its lock, so that the records are in the order of the changes. All are
//! records of the one object with data, which every flush commits.

use std::rc::Rc;

use base::{Error, Result};
use bdev::Bytes;
use dmu::Tx;
use ondisk::zil_record::Op;
use rt::LocalBoxFuture;
use zil::{GetData, StoredBlock, SyncMode, Zilog};

use crate::DATA_OBJ;
use crate::volume::Volume;

impl Volume {
    fn active_log(&self) -> Option<Zilog> {
        if self.opts().sync == SyncMode::Disabled { None } else { self.log() }
    }

    /// Logs a write; `commit`: the data are to be durable at once.
    pub(crate) fn log_write(&self, off: u64, data: &[Bytes], commit: bool, tx: &Tx) {
        let Some(log) = self.active_log() else { return };
        log.write(DATA_OBJ, off, data, u64::from(self.block_size()), commit, false, tx.txg());
    }

    /// Logs that a range reads as zeros. `len` is not 0, which would mean all that follows.
    pub(crate) fn log_free(&self, off: u64, len: u64, tx: &Tx) {
        let Some(log) = self.active_log() else { return };
        match (Op::Truncate { object: DATA_OBJ.0, offset: off, length: len }).encode() {
            Ok(record) => log.record(record, Some(DATA_OBJ), tx.txg()),
            Err(_) => log.barrier(Some(DATA_OBJ), tx.txg()),
        }
    }
}

impl GetData for Volume {
    fn copy(&self, _object: u64, offset: u64, length: u64) -> LocalBoxFuture<'_, Result<Option<Vec<Bytes>>>> {
        Box::pin(async move {
            let _range = self.ranges.read(offset, length).await;
            let length = length.min(self.size().saturating_sub(offset));
            if length == 0 {
                return Ok(None);
            }
            self.data.read_range(offset, length).await.map(Some)
        })
    }

    fn store(&self, object: u64, offset: u64, length: u64) -> LocalBoxFuture<'_, Result<Option<StoredBlock>>> {
        Box::pin(async move {
            let blksz = u64::from(self.block_size());
            if offset % blksz + length > blksz {
                return Err(Error::invalid(format!(
                    "{length} bytes at {offset} of object {object} are several blocks"
                )));
            }
            let blkid = offset / blksz;
            let block = {
                let _range = self.ranges.read(blkid * blksz, blksz).await;
                if offset >= self.size() {
                    return Ok(None);
                }
                self.data.read_block(blkid).await?
            };
            StoredBlock::store(&self.os, &self.data, blkid, block).await.map(Some)
        })
    }
}

/// Checks that `Rc<Volume>` coerces to the log's data source.
const _: fn(Rc<Volume>) -> Rc<dyn GetData> = |vol| vol;
