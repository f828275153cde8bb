//! A client's connection on the engine thread of its volume's pool.
//!
//! Tasks, the *workers*, take turns as in a FUSE session: one of them has the reader, takes
//! requests from it and begins to serve each at once. Most need no wait (a block in the cache, a
//! write with room in the txg): the worker answers and takes the next one, in its own poll, without
//! a task or a message. When a request must wait the worker first gives the reader to another one.
//! The answers of a worker that did not wait are sent together when the reader finds nothing more;
//! those of one that did are sent by the sender's task, which comes after all workers that became
//! ready in the same turn.
//!
//! Invariants: one worker has the reader until the connection is over. A request holds a place and
//! its bytes until its answer has left ([`Permits`]). Nothing is sent once the other end is gone.
//! The volume is used until every request has ended and every answer that can leave has left.
//!
//! Knobs: [`PLACES`], [`WINDOW`].

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use admin::fs::open_volumes::VolumeHold;
use base::{Error, ErrorKind, Nanos, Result};
use bdev::{Buf, Bytes};
use host::{Fd, FdIo};
use nbd::proto::WHOLE_MIN;
use nbd::{Code, Command, Extents, Fault, Part, Request, Run, Span, State, Terms};
use rt::Rt;
use rt::cost::{COPY, ZVOL_OP};
use rt::join::select2;
use rt::sync::oneshot::{Sender, oneshot};
use rt::sync::{Gate, Notify, Semaphore};
use zvol::Volume;

use super::hello::Client;
use super::inbox::{Job, Reader};
use super::outbox::{Answer, Front, Outbox, Permits, Sent};

/// Requests under way at most: clients keep up to 64 (qemu 16, the kernel 128 in all).
const PLACES: u64 = 128;
/// Bytes that they may hold: the largest payload ([`super::hello::PAYLOAD_MAX`]).
pub(super) const WINDOW: u64 = super::hello::PAYLOAD_MAX as u64;
/// Workers that wait to be given the reader; more of them end.
const IDLE_MAX: usize = 16;
/// A request, without its work on blocks.
const REQUEST: Nanos = Nanos(1_500);
/// Stretches of one answer to a block status.
const STRETCHES_MAX: usize = 4096;
/// Bytes that are zeroed or trimmed at a time, a multiple of every block: a client that is gone
/// leaves no more than that to be done for each of its requests.
const PART: u64 = 64 << 20;

/// A connection in its transmission phase.
pub(super) struct Conn {
    rt: Rt,
    io: FdIo,
    fd: Fd,
    terms: Terms,
    volume: Rc<Volume>,
    block_size: usize,
    client: Client,
    places: Semaphore,
    window: Semaphore,
    outbox: RefCell<Outbox>,
    /// The sender waits for room in the socket.
    full: Cell<bool>,
    /// A request is polled by the worker that has the reader, which will send its answer.
    inline: Cell<bool>,
    /// Wakes the sender.
    ready: Notify,
    idle: RefCell<Vec<Sender<Box<Reader>>>>,
    workers: Gate,
    /// There are no more requests.
    read_out: Cell<bool>,
    /// They ended without a word of the client.
    gone: Cell<bool>,
    /// There are no more answers.
    served_out: Cell<bool>,
}

/// Serves a connection until it is over: `fd` is its socket, which does not block, `terms` what the
/// handshake agreed on, `first` what came behind it.
pub(super) async fn serve(rt: Rt, fd: OwnedFd, terms: Terms, first: Vec<u8>, client: Client) {
    let fd: Fd = Rc::new(fd);
    let Ok((hold, io)) = open(&rt, &terms).await else { return };
    let volume = hold.volume().clone();
    let conn = Rc::new(Conn {
        rt: rt.clone(),
        io,
        fd,
        terms,
        block_size: volume.block_size() as usize,
        volume,
        client,
        places: Semaphore::new(PLACES),
        window: Semaphore::new(WINDOW),
        outbox: RefCell::default(),
        full: Cell::new(false),
        inline: Cell::new(false),
        ready: Notify::new(),
        idle: RefCell::default(),
        workers: Gate::new(),
        read_out: Cell::new(false),
        gone: Cell::new(false),
        served_out: Cell::new(false),
    });
    conn.client.begins();
    let sender = rt.spawn("nbd send", conn.clone().send_all());
    conn.spawn_worker(Box::new(Reader::new(&first)));
    let served = async {
        conn.workers.wait().await;
        conn.served_out.set(true);
        conn.ready.notify_one();
        sender.await;
    };
    let revoked = async {
        hold.revoked().await;
        // The reader finds the end, and the sender that nobody reads.
        conn.note_gone();
        host::end_connection(&conn.fd);
        std::future::pending::<()>().await;
    };
    select2(served, revoked).await;
    host::end_connection(&conn.fd);
    if let Err(e) = hold.release().await {
        conn.client.say(&format!("closing volume '{}': {e}", conn.terms.export.name));
    }
}

/// Opens the volume. It may have changed since the handshake asked about it: then the client is to
/// connect again.
async fn open(rt: &Rt, terms: &Terms) -> Result<(VolumeHold, FdIo)> {
    let name = &terms.export.name;
    let hold = admin::engine::current()?.open_volume(name, "a client over NBD").await?;
    let volume = hold.volume();
    if volume.size() < terms.export.size_bytes || volume.is_read_only() && !terms.export.read_only {
        return Err(Error::new(ErrorKind::Busy, format!("volume '{name}' has changed")));
    }
    Ok((hold, FdIo::new(rt)?))
}

impl Conn {
    pub(super) fn terms(&self) -> &Terms {
        &self.terms
    }
    pub(super) fn block_size(&self) -> usize {
        self.block_size
    }
    pub(super) fn note_fault(&self, fault: &Fault) {
        self.client.note_fault(fault);
    }

    /// The client has left without a word, or was made to.
    pub(super) fn note_gone(&self) {
        self.gone.set(true);
    }

    /// Reads into `bufs` behind `skip` bytes what is there; `WouldBlock` if nothing is.
    pub(super) fn receive_now(&self, bufs: &mut [Buf], skip: usize) -> io::Result<usize> {
        let mut skip = skip;
        let mut slices = Vec::with_capacity(bufs.len());
        for buf in bufs {
            let filled = skip.min(buf.len());
            skip -= filled;
            if filled < buf.len() {
                slices.push(IoSliceMut::new(&mut buf[filled..]));
            }
        }
        host::read_now(self.fd.as_fd(), &mut slices)
    }

    /// Reads into `bufs` behind `skip` bytes, and waits for them.
    pub(super) async fn receive(&self, bufs: Vec<Buf>, skip: usize) -> (Vec<Buf>, io::Result<usize>) {
        let done = self.io.read_behind(&self.fd, bufs, skip).await;
        (done.payload, done.result)
    }

    /// Spends of the turn; before it waits for the next one it sends what is ready.
    pub(super) async fn spend(&self, cost: Nanos) {
        if !self.rt.try_spend(cost) {
            self.flush().await;
            self.rt.spend(cost).await;
        }
    }

    /// A place for a request that will hold that many bytes.
    pub(super) async fn admit(&self, bytes: u64) -> Permits {
        self.spend(REQUEST).await;
        let bytes = bytes.min(WINDOW);
        if let Some(place) = self.places.try_acquire(1)
            && let Some(bytes) = self.window.try_acquire(bytes)
        {
            return Permits { _place: place, bytes };
        }
        self.flush().await;
        let place = self.places.acquire(1).await;
        Permits { _place: place, bytes: self.window.acquire(bytes).await }
    }

    /// Queues an answer.
    pub(super) fn push(&self, front: Front, data: Vec<Bytes>, permits: Permits) {
        self.outbox.borrow_mut().push(Answer { front, data, _permits: permits });
        if !self.inline.get() {
            self.ready.notify_one();
        }
    }

    /// Sends what is ready, as far as the socket takes it.
    pub(super) async fn flush(&self) {
        while !self.full.get() {
            let bytes = self.outbox.borrow().next_bytes();
            if bytes == 0 {
                return;
            }
            self.rt.spend(COPY.cost(bytes as u64)).await;
            match self.send_once() {
                Sent::All => return,
                Sent::Some => {}
                Sent::Full => return self.ready.notify_one(),
            }
        }
    }

    fn send_once(&self) -> Sent {
        let mut done = Vec::new();
        let (sent, broken) = {
            let mut outbox = self.outbox.borrow_mut();
            (outbox.send(self.fd.as_fd(), &mut done), outbox.is_broken())
        };
        if broken {
            self.note_gone();
        }
        // Their permits wake others.
        drop(done);
        sent
    }

    /// The life of the sender.
    async fn send_all(self: Rc<Self>) {
        loop {
            let bytes = self.outbox.borrow().next_bytes();
            if bytes == 0 {
                if self.served_out.get() {
                    return;
                }
                self.ready.notified().await;
                continue;
            }
            self.rt.spend(COPY.cost(bytes as u64)).await;
            if self.send_once() == Sent::Full {
                self.full.set(true);
                // The next call tells of an error.
                let _ = self.io.writable(&self.fd).await;
                self.full.set(false);
            }
        }
    }

    fn spawn_worker(self: &Rc<Self>, reader: Box<Reader>) {
        let (conn, pass) = (self.clone(), self.workers.enter());
        self.rt.spawn("nbd", async move {
            conn.work(reader).await;
            drop(pass);
        });
    }

    /// The life of a worker; it begins with the reader.
    async fn work(self: &Rc<Self>, mut reader: Box<Reader>) {
        loop {
            let Some(job) = reader.next(self).await else {
                self.read_out.set(true);
                drop(self.idle.take());
                return;
            };
            {
                let mut serving = pin!(self.serve(job));
                let done = poll_fn(|cx| {
                    self.inline.set(true);
                    let poll = serving.as_mut().poll(cx);
                    self.inline.set(false);
                    Poll::Ready(poll.is_ready())
                });
                if done.await {
                    continue;
                }
                self.give(reader);
                serving.await;
            }
            if self.read_out.get() || self.idle.borrow().len() >= IDLE_MAX {
                return;
            }
            let (tx, rx) = oneshot();
            self.idle.borrow_mut().push(tx);
            match rx.await {
                Some(next) => reader = next,
                None => return,
            }
        }
    }

    /// Gives the reader to another worker.
    fn give(self: &Rc<Self>, mut reader: Box<Reader>) {
        loop {
            let next = self.idle.borrow_mut().pop();
            let Some(tx) = next else { return self.spawn_worker(reader) };
            match tx.send(reader) {
                Ok(()) => return,
                Err(back) => reader = back,
            }
        }
    }

    /// Serves a request, its answer included.
    async fn serve(&self, job: Job) {
        let Job { request, payload, mut permits } = job;
        let is_write = request.payload() > 0;
        let (front, data) = match self.carry_out(&request, payload).await {
            Ok(answer) => answer,
            Err(Failed { code, why }) => (Front::Text(self.terms.error(request.cookie, code, &why, None)), Vec::new()),
        };
        if is_write {
            // The payload is the engine's now.
            let held = permits.bytes.units();
            permits.bytes.release(held);
        }
        self.push(front, data, permits);
    }

    async fn carry_out(
        &self,
        request: &Request,
        payload: Vec<Bytes>,
    ) -> std::result::Result<(Front, Vec<Bytes>), Failed> {
        let (volume, cookie) = (&self.volume, request.cookie);
        let durable = match request.command {
            Command::Read { span, whole } => return self.read(cookie, span, whole).await,
            Command::BlockStatus { span, one } => {
                let extents = extents(&self.rt, volume, span, one).await?;
                return Ok((Front::Text(extents.finish(cookie)), Vec::new()));
            }
            Command::Write { span, durable } => {
                match durable {
                    true => volume.write_sync(span.offset, payload).await?,
                    false => volume.write(span.offset, payload).await?,
                }
                false
            }
            Command::Trim { span, durable } => {
                self.in_parts(span, |at, len| volume.discard(at, len)).await?;
                durable
            }
            Command::WriteZeroes { no_hole: true, fast: true, .. } => {
                let why = "zeros that take space are not faster than data: allow holes".to_string();
                return Err(Failed { code: Code::Unsupported, why });
            }
            Command::WriteZeroes { span, durable, no_hole, .. } => {
                self.in_parts(span, |at, len| volume.write_zeroes(at, len, !no_hole)).await?;
                durable
            }
            Command::Cache { .. } => false,
            Command::Flush => true,
        };
        if durable {
            volume.flush().await?;
        }
        Ok((Front::Head(self.terms.done(cookie)), Vec::new()))
    }

    /// Does `work` on one part of a range after the other.
    async fn in_parts<F: Future<Output = Result<()>>>(&self, span: Span, work: impl Fn(u64, u64) -> F) -> Result<()> {
        for (at, len) in parts(span) {
            if self.gone.get() {
                let why = format!("the client of volume '{}' is gone", self.terms.export.name);
                return Err(Error::new(ErrorKind::Interrupted, why));
            }
            work(at, len).await?;
        }
        Ok(())
    }

    async fn read(&self, cookie: u64, span: Span, whole: bool) -> std::result::Result<(Front, Vec<Bytes>), Failed> {
        let data = self.volume.read(span.offset, span.length.into()).await?;
        if data.iter().map(|d| d.len() as u64).sum::<u64>() != u64::from(span.length) {
            return Err(Error::new(ErrorKind::Io, "the volume is shorter than it was: connect again").into());
        }
        // One run of data makes one head.
        let parts = self.terms.read_answer(cookie, span, whole, &[Run::Data(span.length)]);
        match parts.first() {
            Some(Part::Head(head)) => Ok((Front::Head(*head), data)),
            _ => Err(Error::invalid("an answer without a head").into()),
        }
    }
}

/// Why a request failed.
struct Failed {
    code: Code,
    why: String,
}

impl From<Error> for Failed {
    fn from(e: Error) -> Failed {
        Failed { code: e.kind().into(), why: e.to_string() }
    }
}

/// A range in parts, which end at multiples of [`PART`]: offset and length of each.
fn parts(span: Span) -> impl Iterator<Item = (u64, u64)> {
    let (mut at, end) = (span.offset, span.offset + u64::from(span.length));
    std::iter::from_fn(move || {
        let len = (PART - at % PART).min(end - at);
        at += len;
        (len > 0).then_some((at - len, len))
    })
}

/// What is allocated of a range: as much of it as is told in one answer.
async fn extents(rt: &Rt, volume: &Volume, span: Span, one: bool) -> Result<Extents> {
    let mut extents = Extents::new(span, one);
    let (mut at, end) = (span.offset, span.offset + u64::from(span.length));
    for _ in 0..STRETCHES_MAX {
        rt.spend(ZVOL_OP).await;
        let (to, state) = match volume.next_data(at).await? {
            None => (end, State::Hole),
            Some(data) if data > at => (data.min(end), State::Hole),
            Some(_) => (volume.next_hole(at).await?.clamp(at + 1, end), State::Data),
        };
        let more = extents.push(to - at, state);
        at = to;
        if !more || at >= end {
            break;
        }
    }
    Ok(extents)
}

// A connection can always take a request of any size that it was told of.
const _: () = assert!(WINDOW >= WHOLE_MIN as u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_a_range_once() {
        let (mib, long) = (1 << 20, u32::MAX);
        for (offset, length) in [(0, 0), (0, 1), (0, 64 * mib), (63 << 20, 2 * mib), (77, long), (u64::MAX >> 1, long)]
        {
            let (mut at, mut n) = (offset, 0);
            for (from, len) in parts(Span { offset, length }) {
                assert!(from == at && (1..=PART).contains(&len), "{offset} {length}");
                at += len;
                n += 1;
                assert!(at % PART == 0 || at == offset + u64::from(length));
            }
            assert!(at == offset + u64::from(length) && n <= 66, "{offset} {length}: {n}");
        }
    }
}
