//! The device trait, its contract, and futures over it.

use std::cell::RefCell;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use base::{Error, ErrorKind, Result};

use crate::{Buf, Bytes};

/// Most segments that one operation may carry.
pub const MAX_SEGMENTS: usize = 1024;

/// Identity and abilities of a device, as found when it was opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DevInfo {
    /// The name that messages call it by: its path, or a made-up name of a model.
    pub path: String,
    /// Usable bytes when it was opened, a multiple of `logical_sector`; see [`BlockDev::size`] for
    /// now.
    pub size_bytes: u64,
    /// The unit of offsets and lengths, in bytes: a power of two, 512 to 64 KiB.
    pub logical_sector: u32,
    /// The unit that it writes without reading first, in bytes: a power of two, at least
    /// `logical_sector`.
    pub physical_sector: u32,
    /// Whether distance costs time.
    pub rotational: bool,
    /// Whether writes and discards are allowed.
    pub writable: bool,
    /// Whether [`Op::Discard`] works.
    pub supports_discard: bool,
    /// Whether a write may be asked to be durable by itself ([`Op::Write`]).
    pub writes_durably: bool,
}

/// One operation, with the memory it works on.
#[derive(Debug)]
pub enum Op {
    /// Fill `bufs`, one after the other, from `offset` on.
    Read {
        /// Where to start, in bytes.
        offset: u64,
        /// The buffers to fill; come back in [`Done::bufs`].
        bufs: Vec<Buf>,
    },
    /// Store `bufs`, one after the other, at `offset`.
    Write {
        /// Where to start, in bytes.
        offset: u64,
        /// The data to write.
        bufs: Vec<Bytes>,
        /// Whether these bytes must be durable by the time the write completes, as after a flush,
        /// of which nothing else may be concluded.
        durable: bool,
    },
    /// Make every write that has completed durable.
    Flush,
    /// Discard (TRIM) these bytes; reads return anything until they are written again.
    Discard {
        /// Where to start, in bytes.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
}

/// The result of a completed operation.
#[derive(Default, Debug)]
pub struct Done {
    /// The buffers of a read, in their order and filled to their length; empty for other
    /// operations.
    pub bufs: Vec<Buf>,
}

/// The callback of an operation; the device calls it once the operation is over.
pub type Completion = Box<dyn FnOnce(Result<Done>)>;

/// A leaf device: bytes in sectors, with a flush.
///
/// # Contract
/// For the caller and every implementation; [`crate::conformance`] checks what can be checked.
///
/// * **Ownership.** The device owns the buffers from `submit` until the completion runs. A caller
///   that loses interest just drops its end; the operation still happens.
/// * **Completion.** It runs exactly once, on the engine's thread, and *never inside `submit`*:
///   callers may submit while they hold a borrow that the completion takes. Only a world that ends
///   may drop completions without calling them.
/// * **Alignment.** Offset and total length are multiples of the logical sector; the length is
///   not 0. Segments have any length but 0 and any address; page-aligned segments that are whole
///   sectors go to the medium without a copy, others may be copied. At most [`MAX_SEGMENTS`]
///   segments. Anything else is [`ErrorKind::Invalid`].
/// * **Bounds.** An operation that does not lie within [`BlockDev::size`] fails whole with
///   [`ErrorKind::Invalid`] and touches nothing. A write or discard on a device that is not
///   writable is [`ErrorKind::ReadOnly`]; a discard, or a durable write, that the device cannot do
///   is [`ErrorKind::Unsupported`].
/// * **All or error.** A completed read filled every buffer, a completed write stored every byte:
///   short transfers are continued inside. After a failed write the range holds old bytes, new
///   bytes or a mixture by sector.
/// * **Order.** None between operations in flight. A read submitted after a write completed sees
///   the write, flushed or not. Overlapping operations in flight, at least one of them a write,
///   have no defined result: the caller must not submit them.
/// * **Flush.** A completed flush made durable every write that had *completed before the flush was
///   submitted*, and nothing else may be concluded from it: a write in flight at that moment may be
///   lost by a power cut even if it completes before the flush does. Without a flush a completed
///   write may be lost, or survive, sector by sector. Whether a failed flush lost earlier writes is
///   unknown: the caller must treat them as lost.
/// * **Durable writes.** A durable write that completed is itself as after a flush. It makes no
///   other write durable; an earlier write of the same bytes is superseded. A durable write that
///   failed counts as a failed write.
/// * **Depth.** Any number of operations may be submitted; the device queues those that the medium
///   cannot take at once. Keeping the number small is the vdev queue's job.
pub trait BlockDev {
    /// Identity and abilities of the device.
    fn info(&self) -> &DevInfo;

    /// Starts `op`; `done` gets its result later. See the contract above.
    fn submit(&self, op: Op, done: Completion);

    /// Usable bytes now: the size that [`BlockDev::refresh_size`] found last, else the size when
    /// opened.
    fn size(&self) -> u64 {
        self.info().size_bytes
    }

    /// Looks at the medium again, for a file or disk that has grown, and gives the size that counts
    /// from now on.
    fn refresh_size(&self) -> Result<u64> {
        Ok(self.size())
    }
}

impl Op {
    /// The length in bytes; 0 for a flush. Saturates where segments add up to nonsense.
    pub fn len(&self) -> u64 {
        match self {
            Op::Read { bufs, .. } => bufs.iter().fold(0, |n: u64, b| n.saturating_add(b.len() as u64)),
            Op::Write { bufs, .. } => bufs.iter().fold(0, |n: u64, b| n.saturating_add(b.len() as u64)),
            Op::Flush => 0,
            Op::Discard { len, .. } => *len,
        }
    }

    /// Whether there is nothing to transfer (always for a flush).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The offset in bytes; 0 for a flush.
    pub fn offset(&self) -> u64 {
        match self {
            Op::Read { offset, .. } | Op::Write { offset, .. } | Op::Discard { offset, .. } => *offset,
            Op::Flush => 0,
        }
    }

    /// The operation's name in messages.
    pub fn verb(&self) -> &'static str {
        match self {
            Op::Read { .. } => "read",
            Op::Write { .. } => "write",
            Op::Flush => "flush",
            Op::Discard { .. } => "discard",
        }
    }

    /// Checks the operation against the contract's rules of alignment, bounds and permission, for a
    /// device described by `info` that has `size` bytes now. Every implementation calls this first.
    pub fn check(&self, info: &DevInfo, size: u64) -> Result<()> {
        let bad = |kind: ErrorKind, why: String| {
            Err(Error::new(
                kind,
                format!("{}: {} of {} bytes at {}: {why}", info.path, self.verb(), self.len(), self.offset()),
            ))
        };
        let (segments, empty_segment) = match self {
            Op::Flush => return Ok(()),
            Op::Read { bufs, .. } => (bufs.len(), bufs.iter().any(|b| b.is_empty())),
            Op::Write { bufs, .. } => (bufs.len(), bufs.iter().any(|b| b.is_empty())),
            Op::Discard { .. } => (1, false),
        };
        if !matches!(self, Op::Read { .. }) && !info.writable {
            return bad(ErrorKind::ReadOnly, "the device was opened read-only".into());
        }
        if matches!(self, Op::Write { durable: true, .. }) && !info.writes_durably {
            return bad(ErrorKind::Unsupported, "the device cannot make a write durable by itself".into());
        }
        if matches!(self, Op::Discard { .. }) && !info.supports_discard {
            return bad(ErrorKind::Unsupported, "the device cannot discard".into());
        }
        let (offset, len, sector) = (self.offset(), self.len(), info.logical_sector as u64);
        if segments == 0 || empty_segment || len == 0 {
            return bad(ErrorKind::Invalid, "an empty transfer or segment".into());
        }
        if segments > MAX_SEGMENTS {
            return bad(ErrorKind::Invalid, format!("{segments} segments, at most {MAX_SEGMENTS} are allowed"));
        }
        if !offset.is_multiple_of(sector) || !len.is_multiple_of(sector) {
            return bad(ErrorKind::Invalid, format!("not whole sectors of {sector} bytes"));
        }
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return bad(ErrorKind::Invalid, format!("beyond the end of the device at {size}"));
        }
        Ok(())
    }
}

/// Where a completion leaves its result for the future that waits.
struct Slot {
    result: Option<Result<Done>>,
    waker: Option<Waker>,
    /// The completion ran or was dropped.
    over: bool,
}

/// The completing end; its drop wakes the waiter, which fails if there is no result.
struct Finish(Rc<RefCell<Slot>>);

impl Drop for Finish {
    fn drop(&mut self) {
        let waker = {
            let mut slot = self.0.borrow_mut();
            slot.over = true;
            slot.waker.take()
        };
        if let Some(w) = waker {
            w.wake();
        }
    }
}

/// Submits `op` at once and resolves to its result. Dropping the future abandons the result only.
pub fn run(dev: &dyn BlockDev, op: Op) -> impl Future<Output = Result<Done>> + use<> {
    let slot = Rc::new(RefCell::new(Slot { result: None, waker: None, over: false }));
    let finish = Finish(slot.clone());
    dev.submit(
        op,
        Box::new(move |result| {
            finish.0.borrow_mut().result = Some(result);
            drop(finish);
        }),
    );
    poll_fn(move |cx| {
        let mut slot = slot.borrow_mut();
        if let Some(result) = slot.result.take() {
            return Poll::Ready(result);
        }
        if slot.over {
            return Poll::Ready(Err(Error::new(
                ErrorKind::Interrupted,
                "the device went away before it completed an operation",
            )));
        }
        slot.waker = Some(cx.waker().clone());
        Poll::Pending
    })
}

/// Reads `len` bytes at `offset` into one buffer.
pub async fn read(dev: &dyn BlockDev, offset: u64, len: usize) -> Result<Buf> {
    let mut bufs = readv(dev, offset, vec![Buf::for_overwrite(len)]).await?;
    Ok(bufs.pop().expect("a read gives its buffers back"))
}

/// Reads into `bufs`, one after the other, from `offset` on, and gives them back.
pub async fn readv(dev: &dyn BlockDev, offset: u64, bufs: Vec<Buf>) -> Result<Vec<Buf>> {
    let count = bufs.len();
    let done = run(dev, Op::Read { offset, bufs }).await?;
    assert_eq!(done.bufs.len(), count, "a device gives back the buffers it was given");
    Ok(done.bufs)
}

/// Writes `data` at `offset`.
pub async fn write(dev: &dyn BlockDev, offset: u64, data: Bytes) -> Result<()> {
    writev(dev, offset, vec![data]).await
}

/// Writes `bufs`, one after the other, from `offset` on.
pub async fn writev(dev: &dyn BlockDev, offset: u64, bufs: Vec<Bytes>) -> Result<()> {
    run(dev, Op::Write { offset, bufs, durable: false }).await.map(drop)
}

/// Makes every write durable that has completed by now.
pub async fn flush(dev: &dyn BlockDev) -> Result<()> {
    run(dev, Op::Flush).await.map(drop)
}

/// Discards `len` bytes at `offset`.
pub async fn discard(dev: &dyn BlockDev, offset: u64, len: u64) -> Result<()> {
    run(dev, Op::Discard { offset, len }).await.map(drop)
}
