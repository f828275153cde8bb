//! Requests of a session: the buffers that they are read into, and the leader's read of one.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use bdev::{Buf, Bytes};

use super::{DATA_BUF, HEAD, IO_MAX, READ_ERRORS_MAX, Session};
use crate::errno::{Errno, INVALID};
use crate::handler::Handler;
use crate::proto::{IN_HEADER, InHeader, opcode};

/// The buffers that a request is read into.
pub(super) struct Request {
    pub(super) head: Buf,
    pub(super) data: Vec<Buf>,
    pub(super) len: usize,
}

impl Request {
    pub(super) fn new() -> Request {
        Request { head: Buf::zeroed(HEAD), data: Vec::new(), len: 0 }
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
    pub(super) async fn read(&self, request: &mut Request) -> bool {
        let Some(fd) = self.core.fd.borrow().clone() else { return false };
        let mut errors = 0;
        loop {
            // Buffers that went with a write are replaced.
            request.data.resize_with(IO_MAX / DATA_BUF, Buf::default);
            for buf in request.data.iter_mut().filter(|b| b.len() != DATA_BUF) {
                *buf = Buf::for_overwrite(DATA_BUF);
            }
            let head = std::mem::take(&mut request.head);
            let data = std::mem::take(&mut request.data);
            let mut reading = pin!(self.io.readv_hot(&fd, head, data));
            let done = poll_fn(|cx| {
                if self.core.stopping.get() {
                    return Poll::Ready(None);
                }
                let done = reading.as_mut().poll(cx).map(Some);
                if done.is_pending() {
                    self.core.leader.replace(Some(cx.waker().clone()));
                }
                done
            });
            let Some(done) = done.await else { return false };
            (request.head, request.data) = (done.header, done.payload);
            match done.result {
                Ok(n) if n >= IN_HEADER => {
                    request.len = n;
                    return true;
                }
                Ok(_) => errors += 1,
                Err(e) => match e.raw_os_error() {
                    // The request went away before it was read.
                    Some(libc::ENOENT | libc::EINTR | libc::EAGAIN) => {}
                    // Unmounted, or aborted.
                    Some(libc::ENODEV | libc::ECONNABORTED) => return false,
                    _ => errors += 1,
                },
            }
            if errors > READ_ERRORS_MAX || request.head.len() != HEAD {
                return false;
            }
        }
    }
}
