//! Opening files: the flags of the handle, the use of the kernel's cache, and the counts of open
//! files that depend on it.

use super::ZfsHandler;
use crate::errno::Errno;
use crate::handler::{Caller, Opened};
use crate::proto::{FOPEN_DIRECT_IO, FOPEN_KEEP_CACHE, FOPEN_NOFLUSH, FOPEN_PARALLEL_DIRECT_WRITES};
use crate::snapdir::{read_only, slot_of};

/// Bit in the handle of files whose access time reading leaves alone (`O_NOATIME`).
pub(super) const NOATIME: u64 = 1;
/// Bit in the handle of a file open for reading and writing, which can be mapped to be changed. The
/// mapping keeps the file open.
const MAPPABLE: u64 = 2;
/// Bit of a handle: reads and writes go past the kernel's cache.
pub(super) const PAST_CACHE: u64 = 4;
/// Bit in the handle of files that are open for writing.
pub(super) const WRITABLE: u64 = 8;
/// Bit in the handle of files that are open for reading.
pub(super) const READABLE: u64 = 16;
/// Bit in the handle of files whose writes go to the end.
pub(super) const APPENDS: u64 = 32;

impl ZfsHandler {
    pub(super) async fn opened(&self, who: Caller, node: u64, flags: u32, kill_suidgid: bool) -> Result<Opened, Errno> {
        let (zfs, obj) = self.at(node)?;
        let changes = flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32 || flags & libc::O_TRUNC as u32 != 0;
        if changes && slot_of(node) != 0 {
            return Err(read_only());
        }
        if flags & libc::O_ACCMODE as u32 == libc::O_RDONLY as u32 {
            zfs.open_file(obj).await?;
        } else {
            zfs.open_file_to_write(obj, flags & libc::O_APPEND as u32 != 0).await?;
        }
        if flags & libc::O_TRUNC as u32 != 0 {
            let done = match self.kill_privileges(who, node, kill_suidgid).await {
                Ok(_) => self.truncate(node).await,
                Err(e) => Err(e),
            };
            if let Err(e) = done {
                zfs.release(obj).await;
                return Err(e);
            }
        }
        let mut answer = FOPEN_KEEP_CACHE | FOPEN_NOFLUSH | FOPEN_PARALLEL_DIRECT_WRITES;
        let writes = match flags as i32 & libc::O_ACCMODE {
            // With all writes past its cache, the kernel drops pages around them; see `notify`.
            _ if flags as i32 & libc::O_DIRECT != 0 => true,
            libc::O_RDONLY => false,
            // Through its cache the kernel would send an fsync after each write.
            _ if flags as i32 & libc::O_DSYNC != 0 => true,
            // Not O_RDWR: a page that a store to a mapping brings in beside a write past the cache
            // may be of before the write, and undoes it when it is written back.
            how => how == libc::O_WRONLY,
        };
        if writes {
            // A write-only file gains little from the kernel's page cache: every write is a request
            // anyway. Without it the data is copied once less, is in memory once (in our cache),
            // and the kernel does not read capabilities before the first write.
            answer |= FOPEN_DIRECT_IO;
        }
        let noatime = flags & libc::O_NOATIME as u32 != 0;
        let mappable = flags as i32 & libc::O_ACCMODE == libc::O_RDWR;
        if flags as i32 & libc::O_ACCMODE != libc::O_WRONLY && !noatime && zfs.is_atime_due_on_read(obj).await {
            // Reads from the kernel's cache do not reach us. Of an empty file it sends no read at
            // all.
            answer &= !FOPEN_KEEP_CACHE;
            if !mappable && zfs.getattr(obj).await.is_ok_and(|a| a.size == 0) {
                answer |= FOPEN_DIRECT_IO;
            }
        }
        let past_cache = answer & FOPEN_DIRECT_IO != 0;
        let bit = |is: bool, bit: u64| if is { bit } else { 0 };
        let writable = flags as i32 & libc::O_ACCMODE != libc::O_RDONLY;
        let readable = flags as i32 & libc::O_ACCMODE != libc::O_WRONLY;
        let fh = bit(noatime, NOATIME)
            | bit(mappable, MAPPABLE)
            | bit(past_cache, PAST_CACHE)
            | bit(writable, WRITABLE)
            | bit(readable, READABLE)
            | bit(flags & libc::O_APPEND as u32 != 0, APPENDS);
        Ok(Opened { fh: self.switch.opened(node, fh, mappable, !past_cache), flags: answer })
    }

    /// Takes a closed handle out of the counts. False if it leads nowhere.
    pub(super) fn uncount(&self, node: u64, fh: u64) -> bool {
        self.switch.closed(node, fh, fh & MAPPABLE != 0, fh & PAST_CACHE == 0)
    }
}
