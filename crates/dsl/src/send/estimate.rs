//! How long a stream will be (format page 25 section 2).

use base::{Result, ResultExt};
use ondisk::blkptr::BLKPTR_SIZE;
use ondisk::objset::ObjsetType;
use ondisk::stream::RECORD_SIZE;

use super::{Job, SendOpts, Start};
use crate::core::Space;
use crate::pool::DslPool;

/// BEGIN and END.
const FRAME_BYTES: u64 = 2 * RECORD_SIZE as u64;

/// The length of a stream with blocks that take `space`: a record of `record_bytes` has a pointer
/// on disk and a record in the stream.
fn estimate(space: Space, record_bytes: u64, compressed: bool) -> u64 {
    let bytes = |n: i64| n.max(0) as u64;
    let records = bytes(space.uncompressed) / record_bytes.max(1);
    let content = bytes(if compressed { space.compressed } else { space.uncompressed });
    content
        .saturating_sub(records.saturating_mul(BLKPTR_SIZE as u64))
        .saturating_add(records.saturating_mul(RECORD_SIZE as u64))
        .saturating_add(FRAME_BYTES)
}

impl DslPool {
    /// About how many bytes [`DslPool::send_redacted`], or for a head [`DslPool::send_head`], would
    /// send. Exact, and slower, from a bookmark whose snapshot is gone and with a redaction
    /// bookmark. Errors: those of [`DslPool::send_redacted`].
    pub async fn send_size(&self, to: &str, from: Option<&str>, book: Option<&str>, opts: SendOpts) -> Result<u64> {
        let ds = match to.contains('@') {
            true => self.find_snapshot(to).await?,
            false => self.find(to)?,
        };
        let size = async { self.job_size(&self.job_of(ds, from, book, opts).await?).await };
        size.await.at(|| format!("cannot send '{to}'"))
    }

    /// About how many bytes a stream has, from its first record on.
    pub(super) async fn job_size(&self, job: &Job) -> Result<u64> {
        let Job { ds, from, opts, redact, .. } = job;
        self.check_sendable(job).await?;
        let space = match from {
            _ if redact.is_some() => return self.send_job(job, None).await.map(|sent| sent.bytes),
            None => Space::referenced(&ds.phys()),
            Some(Start { object: Some(object), .. }) => {
                self.space_since(ds, &*self.hold_dataset(*object).await?).await?
            }
            Some(Start { object: None, .. }) => return self.send_job(job, None).await.map(|sent| sent.bytes),
        };
        // As in OpenZFS, which takes volumes to have blocks of the default size.
        let volume = ds.os_type().await? == ObjsetType::Zvol;
        let record = match self.core().estimate_record.get() {
            0 => ds.dir().prop(if volume { "volblocksize" } else { "recordsize" }).0.num(),
            record => record,
        };
        Ok(estimate(space, record, opts.compressed || opts.raw))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_a_pointer_on_disk_and_a_header_in_the_stream() {
        let space = |compressed, uncompressed| Space { used: 0, compressed, uncompressed };
        assert_eq!(estimate(space(0, 0), 131_072, false), 624);
        assert_eq!(estimate(space(0, 10 << 20), 131_072, false), (10 << 20) + 80 * (312 - 128) + 624);
        assert_eq!(estimate(space(5 << 20, 10 << 20), 131_072, true), (5 << 20) + 80 * (312 - 128) + 624);
        // Figures of a damaged pool.
        assert_eq!(estimate(space(-5, -5), 0, true), 624);
        assert_eq!(estimate(space(0, i64::MAX), 1, true), u64::MAX);
    }
}
