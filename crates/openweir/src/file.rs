//! [`File`]: a regular file that is open.

use std::rc::Rc;
use std::sync::Arc;

use base::ObjectId;
use zpl::{Fallocate, Zfs};

use crate::call::Call;
use crate::engine::Attended;
use crate::error::{Error, ErrorKind, Result};
use crate::fs::{FsInner, Stat, about, read_all, write_all};
use crate::inside::FsState;

/// An open file. Cheap to clone; there is no position, every operation names its offset in bytes.
/// It keeps its file system open. Writes are visible to every reader when their call ends, and
/// durable when a [`File::sync`] that began later has ended.
#[derive(Clone)]
pub struct File(Arc<FileInner>);

struct FileInner {
    fs: Arc<FsInner>,
    object: ObjectId,
    /// The state of the file system that it was opened in.
    epoch: u64,
    path: Vec<u8>,
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "File({})", String::from_utf8_lossy(&self.0.path))
    }
}

impl Drop for FileInner {
    fn drop(&mut self) {
        let (object, epoch) = (self.object, self.epoch);
        let job = move |fs: Rc<Zfs>, state: Rc<FsState>| async move {
            if state.epoch.get() == epoch {
                fs.release(object).await;
            }
            Ok(())
        };
        drop(self.fs.send(job, Attended::No));
    }
}

impl File {
    /// A file that counts as open already.
    pub(crate) fn new(fs: Arc<FsInner>, object: ObjectId, epoch: u64, path: &[u8]) -> File {
        File(Arc::new(FileInner { fs, object, epoch, path: path.to_vec() }))
    }

    fn call<T, F, Fut>(&self, f: F) -> Call<T>
    where
        T: Send + 'static,
        F: FnOnce(Rc<Zfs>, ObjectId) -> Fut + Send + 'static,
        Fut: Future<Output = base::Result<T>> + 'static,
    {
        let (object, epoch, path) = (self.0.object, self.0.epoch, self.0.path.clone());
        self.0.fs.call(move |fs, state| async move {
            let stale = || -> Result<T> {
                let why = "the file system was rolled back since the file was opened";
                Err(Error::new(ErrorKind::Stale, why).about(String::from_utf8_lossy(&path)))
            };
            if state.epoch.get() != epoch {
                return stale();
            }
            about(&path, f(fs, object).await)
        })
    }

    /// Its object number.
    pub fn object(&self) -> u64 {
        self.0.object.0
    }

    /// Up to `len` bytes from `offset`: fewer only where the file ends.
    pub fn read_at(&self, offset: u64, len: usize) -> Call<Vec<u8>> {
        self.call(move |fs, obj| async move { read_all(&fs, obj, offset, len as u64).await })
    }

    /// Writes all of `data` at `offset`. The gap between the end of the file and there reads as
    /// zeros. One write of up to a record (property `recordsize`) within one record is there or not
    /// after a power cut; a longer one may be there in part.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] and [`ErrorKind::Quota`], [`ErrorKind::ReadOnly`],
    /// [`ErrorKind::TooBig`] beyond 2^63 bytes. Part of a write of more than 1 MiB may have been
    /// done then.
    pub fn write_at(&self, offset: u64, data: impl Into<Vec<u8>>) -> Call<()> {
        let data = data.into();
        self.call(move |fs, obj| async move { write_all(&fs, obj, offset, data, false).await.map(drop) })
    }

    /// Writes all of `data` at the end of the file, wherever that is then; where it begins. Appends
    /// at once to one file do not mix, up to 1 MiB each.
    pub fn append(&self, data: impl Into<Vec<u8>>) -> Call<u64> {
        let data = data.into();
        self.call(move |fs, obj| async move { write_all(&fs, obj, 0, data, true).await })
    }

    /// Sets its length in bytes: data behind it is lost, an extension reads as zeros.
    pub fn set_len(&self, bytes: u64) -> Call<()> {
        self.call(move |fs, obj| async move { fs.truncate(obj, bytes).await })
    }

    /// Its attributes.
    pub fn stat(&self) -> Call<Stat> {
        self.call(|fs, obj| async move { fs.getattr(obj).await.map(Stat::from) })
    }

    /// Makes everything durable that was written to it before (also by others), with its attributes
    /// and names, and all names that changed before. With `sync=disabled` it does nothing.
    pub fn sync(&self) -> Call<()> {
        self.call(|fs, obj| async move { fs.fsync(obj).await })
    }

    /// Frees `len` bytes from `offset`: they read as zeros. The length stays.
    pub fn punch_hole(&self, offset: u64, len: u64) -> Call<()> {
        self.call(move |fs, obj| async move { fs.fallocate(obj, Fallocate::PunchHole, offset, len).await })
    }

    /// The first byte at or after `offset` that may be data; None when there is none before the
    /// end.
    pub fn next_data(&self, offset: u64) -> Call<Option<u64>> {
        self.call(move |fs, obj| async move { fs.seek_data(obj, offset).await })
    }

    /// The first byte at or after `offset` that begins a hole, the end of the file at the latest;
    /// None when `offset` is not within the file.
    pub fn next_hole(&self, offset: u64) -> Call<Option<u64>> {
        self.call(move |fs, obj| async move { fs.seek_hole(obj, offset).await })
    }
}
