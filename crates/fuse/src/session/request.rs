//! Requests of a session: the buffers that they are read into, and the leader's read of one.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;

use bdev::{Buf, Bytes};
use host::FdFuture;

use super::{DATA_BUF, FIRST_BUF, HEAD, IO_MAX, READ_ERRORS_MAX, Session};
use crate::errno::{Errno, INVALID};
use crate::handler::Handler;
use crate::proto::{IN_HEADER, InHeader, opcode};

/// The buffers that a request is read into; none until the first read.
#[derive(Default)]
pub(super) struct Request {
    pub(super) head: Buf,
    pub(super) data: Vec<Buf>,
    pub(super) len: usize,
}

impl Request {
    /// Makes buffers in place of those that are not there, or went with a write: small ones for the
    /// first request, `INIT`.
    fn refill(&mut self, is_first: bool) {
        if self.head.len() != HEAD {
            self.head = Buf::zeroed(HEAD);
        }
        if is_first {
            self.data = vec![Buf::for_overwrite(FIRST_BUF)];
            return;
        }
        self.data.resize_with(IO_MAX / DATA_BUF, Buf::default);
        for buf in self.data.iter_mut().filter(|b| b.len() != DATA_BUF) {
            *buf = Buf::for_overwrite(DATA_BUF);
        }
    }

    /// Whether the buffers are those of the first request.
    fn is_first(&self) -> bool {
        self.data.first().is_some_and(|b| b.len() == FIRST_BUF)
    }

    /// The arguments behind the header, copied together where they lie in two buffers.
    pub(super) fn args<'a>(&'a self, h: &InHeader, copy: &'a mut Vec<u8>) -> Result<&'a [u8], Errno> {
        let end = self.len.checked_sub(h.ext).filter(|end| *end >= IN_HEADER).ok_or(INVALID)?;
        if end <= HEAD || h.opcode == opcode::WRITE {
            return Ok(&self.head[IN_HEADER..end.min(HEAD)]);
        }
        copy.reserve_exact(end - IN_HEADER);
        copy.extend_from_slice(&self.head[IN_HEADER..]);
        for part in &self.data {
            let n = part.len().min(end - IN_HEADER - copy.len());
            copy.extend_from_slice(&part[..n]);
        }
        Ok(copy)
    }
}

/// Takes the first `size` bytes of the data out. A buffer that is at least half full goes as it is
/// and leaves an empty one; the data of any other is copied, so that few bytes do not hold much
/// memory.
pub(super) fn take_data(bufs: &mut [Buf], size: usize) -> Vec<Bytes> {
    let mut left = size;
    let mut out = Vec::with_capacity(size.div_ceil(DATA_BUF));
    for buf in bufs {
        let n = left.min(buf.len());
        if n == 0 {
            break;
        }
        if n * 2 >= DATA_BUF {
            let mut full = std::mem::take(buf);
            full.truncate(n);
            out.push(full.freeze());
        } else {
            out.push(Bytes::copy_from(&buf[..n]));
        }
        left -= n;
    }
    out
}

impl<H: Handler> Session<H> {
    /// Reads a request. False: there will be no more.
    pub(super) async fn read(self: &Rc<Self>, request: &mut Request) -> bool {
        let core = &self.core;
        let Some(fd) = core.fd.borrow().clone() else { return false };
        let mut errors = 0;
        while errors <= READ_ERRORS_MAX {
            if core.initialized.get() && request.is_first() {
                // A file system that is mounted is seldom used at once.
                core.is_cool.set(true);
                *request = Request::default();
            }
            if core.is_cool.get() {
                let ready = self.unless_stopped(pin!(self.io.readable(&fd)), |_| ()).await;
                let Some(ready) = ready else { return false };
                errors += u32::from(ready.is_err());
                self.warm_up();
                continue;
            }
            request.refill(!core.initialized.get());
            let head = std::mem::take(&mut request.head);
            let data = std::mem::take(&mut request.data);
            let reading = pin!(self.io.readv_hot(&fd, head, data));
            let cool = |reading: Pin<&mut FdFuture>| {
                if core.to_cool.take() {
                    reading.cancel();
                }
            };
            let Some(done) = self.unless_stopped(reading, cool).await else { return false };
            match done.result {
                Ok(n) if n >= IN_HEADER => {
                    (request.head, request.data, request.len) = (done.header, done.payload, n);
                    return true;
                }
                Ok(_) => errors += 1,
                Err(e) => match e.raw_os_error() {
                    // The request went away before it was read.
                    Some(libc::ENOENT | libc::EINTR | libc::EAGAIN) => {}
                    // Nothing came for a while: the buffers go, too.
                    Some(libc::ECANCELED) => {
                        core.is_cool.set(true);
                        drop(self.spare.take());
                        drop(core.idle.take());
                        continue;
                    }
                    // Unmounted, or aborted.
                    Some(libc::ENODEV | libc::ECONNABORTED) => return false,
                    _ => errors += 1,
                },
            }
            (request.head, request.data) = (done.header, done.payload);
        }
        false
    }

    /// The result of an operation of the leader, or none once no more requests are to be read.
    /// `turn` is called in each poll.
    async fn unless_stopped<F: Future>(&self, mut op: Pin<&mut F>, turn: impl Fn(Pin<&mut F>)) -> Option<F::Output> {
        poll_fn(|cx| {
            if self.core.stopping.get() {
                return Poll::Ready(None);
            }
            turn(op.as_mut());
            let done = op.as_mut().poll(cx).map(Some);
            if done.is_pending() {
                self.core.leader.replace(Some(cx.waker().clone()));
            }
            done
        })
        .await
    }
}
