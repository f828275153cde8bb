//! Send streams from the client to an engine's task ([`Direction::FromClient`](super::Direction)).
//!
//! The thread of the request reads the stream and fills an *inlet* ([`Stream::fill`]), of which the
//! engine's task takes *pieces*. The payload of a record that is large is a piece of its own, in
//! memory of its own, so the task keeps it as it is: the copy, and the first touch of the memory,
//! which takes several times as long, are the thread's. All other bytes come as they arrive. The
//! thread reads the headers of records for their lengths alone. What it cannot read, it passes on:
//! the task checks the stream, and finds the same bytes however they were cut.
//!
//! At most [`INLET_MAX`] bytes of memory and one read wait between them: a task that does not take
//! stops the thread, and that the client. The thread ends when the client has closed its end, or
//! when the task has dropped the inlet: then what else comes is not read, and the client learns it
//! from the answer.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use base::Result;
use bdev::{Buf, Bytes};
use codec::checksum::Endian;
use ondisk::stream::{RECORD_SIZE, Record};

use super::Stream;

/// Bytes of memory that the thread may be ahead of the engine's task.
const INLET_MAX: usize = 1 << 20;
/// Payloads of at least this many bytes are pieces of their own, and no read of other bytes is
/// longer: such a payload never ends within it.
const LARGE: usize = 8 << 10;
/// Interval at which a thread whose client sends nothing looks whether the task is there.
const GONE_CHECK: Duration = Duration::from_millis(200);

/// Finds the payloads in a stream.
#[derive(Default)]
struct Framing {
    order: Option<Endian>,
    /// The record that is coming, as far as it came.
    head: Vec<u8>,
    /// Bytes of the last record's payload that have not come.
    left: usize,
    /// This is no send stream, or a record is malformed.
    lost: bool,
}

impl Framing {
    /// Takes the next bytes of the stream, and returns how many come before a large payload, whose
    /// length is `left` then; all, if none begins.
    fn pass(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() && !self.lost {
            let payload = self.left.min(bytes.len() - at);
            (at, self.left) = (at + payload, self.left - payload);
            let head = (RECORD_SIZE - self.head.len()).min(bytes.len() - at);
            self.head.extend_from_slice(&bytes[at..at + head]);
            at += head;
            if let Some(head) = self.head.first_chunk() {
                match payload_len(head, &mut self.order) {
                    Ok(len) => self.left = len,
                    Err(_) => self.lost = true,
                }
                self.head.clear();
                if self.left >= LARGE {
                    return at;
                }
            }
        }
        bytes.len()
    }

    /// The length of the payload that comes next, if it is large; it is passed.
    fn large(&mut self) -> Option<usize> {
        (self.left >= LARGE && !self.lost).then(|| std::mem::take(&mut self.left))
    }
}

/// The length of a record's payload, at most `PAYLOAD_MAX` or `LIST_MAX`; `order` is that of the
/// first record.
fn payload_len(head: &[u8; RECORD_SIZE], order: &mut Option<Endian>) -> Result<usize> {
    let order = match *order {
        Some(order) => order,
        None => *order.insert(Record::order_of(head)?),
    };
    Ok(Record::decode(head, order)?.payload_len() as usize)
}

#[derive(Default)]
struct State {
    pieces: VecDeque<Bytes>,
    /// Bytes of memory that they hold.
    bytes: usize,
    /// The thread gives no more.
    ended: bool,
    /// The task has dropped its half.
    gone: bool,
    /// The task, which waits for bytes.
    waker: Option<Waker>,
}

#[derive(Default)]
struct Between {
    state: Mutex<State>,
    changed: Condvar,
}

impl Between {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The task's half; dropping it ends the stream.
pub(crate) struct Inlet(Arc<Between>);

/// The thread's half; dropping it is the end of the stream.
pub(crate) struct Feeder(Arc<Between>);

/// An inlet, and where its bytes go in.
pub(crate) fn inlet() -> (Inlet, Feeder) {
    let between: Arc<Between> = Arc::default();
    (Inlet(between.clone()), Feeder(between))
}

impl Inlet {
    /// The next piece, which is not empty and has its memory alone; none at the end.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        poll_fn(|cx| {
            let mut state = self.0.lock();
            if let Some(piece) = state.pieces.pop_front() {
                state.bytes -= piece.footprint();
                self.0.changed.notify_one();
                return Poll::Ready(Some(piece));
            }
            if state.ended {
                return Poll::Ready(None);
            }
            state.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Feeder {
    /// Gives a piece when there is room for it. False if the task takes no more.
    fn give(&self, piece: Bytes) -> bool {
        let full = |s: &mut State| s.bytes >= INLET_MAX && !s.gone;
        let waited = self.0.changed.wait_while(self.0.lock(), full);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.gone {
            return false;
        }
        state.bytes += piece.footprint();
        state.pieces.push_back(piece);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        true
    }

    fn is_gone(&self) -> bool {
        self.0.lock().gone
    }
}

impl Drop for Inlet {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.gone = true;
        state.pieces.clear();
        self.0.changed.notify_one();
    }
}

impl Drop for Feeder {
    fn drop(&mut self) {
        let waker = {
            let mut state = self.0.lock();
            state.ended = true;
            state.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Stream {
    /// Carries what the client sends to an engine's task, until one of them has ended it.
    pub(crate) fn fill(&self, to: Feeder) {
        let mut framing = Framing::default();
        let mut bytes = [0; LARGE];
        while let Some(n @ 1..) = self.read(&mut bytes, &to) {
            let mut rest = &bytes[..n];
            while !rest.is_empty() {
                let (before, from) = rest.split_at(framing.pass(rest));
                if !before.is_empty() && !to.give(Buf::copy_from(before).freeze()) {
                    return;
                }
                rest = from;
                if let Some(len) = framing.large() {
                    let Some(piece) = self.payload(len, rest, &to) else { return };
                    let short = piece.len() < len;
                    if !piece.is_empty() && !to.give(piece) || short {
                        return;
                    }
                    rest = &[];
                }
            }
        }
    }

    /// A payload of `len` bytes of which `first` have come, all but one at most; shorter at the end
    /// of the stream. `None` if the task takes no more.
    fn payload(&self, len: usize, first: &[u8], to: &Feeder) -> Option<Bytes> {
        let mut piece = Buf::for_overwrite(len);
        let mut have = first.len();
        piece[..have].copy_from_slice(first);
        while have < len {
            match self.read(&mut piece[have..], to)? {
                0 => break,
                n => have += n,
            }
        }
        piece.truncate(have);
        Some(piece.freeze())
    }

    /// Fills `buf` with the next bytes, and returns how many; 0 at the end. `None` if the task
    /// takes no more.
    fn read(&self, buf: &mut [u8], to: &Feeder) -> Option<usize> {
        while !to.is_gone() {
            match self.read_within(buf, GONE_CHECK) {
                Ok(None) => {}
                Ok(Some(n)) => return Some(n),
                Err(_) => return Some(0),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::super::Direction;
    use ondisk::stream::record::{Begin, Range, Write as Block};

    use super::*;
    use crate::engine::EngineThread;

    fn stream() -> (Stream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Stream::take(Some(Direction::FromClient), vec![theirs.into()]).unwrap().unwrap(), ours)
    }

    #[test]
    fn a_task_gets_what_a_client_sends() {
        let thread = EngineThread::start(None).unwrap();
        let (mut inlet, feeder) = inlet();
        let call = thread.call(move |_| async move {
            let mut sum = 0u64;
            while let Some(piece) = inlet.next().await {
                sum += piece.iter().map(|b| u64::from(*b)).sum::<u64>();
            }
            sum
        });
        let (stream, mut ours) = stream();
        let carrier = std::thread::spawn(move || stream.fill(feeder));
        let bytes: Vec<u8> = (0..5_000_000u32).map(|n| (n % 251) as u8).collect();
        ours.write_all(&bytes).unwrap();
        drop(ours);
        assert_eq!(call.wait().unwrap(), bytes.iter().map(|b| u64::from(*b)).sum::<u64>());
        carrier.join().unwrap();
    }

    #[test]
    fn small_pieces_take_little_memory() {
        let thread = EngineThread::start(None).unwrap();
        let (mut inlet, feeder) = inlet();
        let call = thread.call(move |_| async move { inlet.next().await.map(|p| (p.len(), p.footprint())) });
        let (stream, mut ours) = stream();
        let carrier = std::thread::spawn(move || stream.fill(feeder));
        ours.write_all(b"1").unwrap();
        let (len, footprint) = call.wait().unwrap().unwrap();
        assert!(len == 1 && footprint <= bdev::PAGE, "{footprint} bytes for {len}");
        carrier.join().unwrap();
    }

    #[test]
    fn a_task_that_ends_ends_the_stream() {
        let thread = EngineThread::start(None).unwrap();
        for sends in [false, true] {
            let (mut inlet, feeder) = inlet();
            let call = thread.call(move |_| async move { inlet.next().await.map(|p| p.len()) });
            let (stream, mut ours) = stream();
            let carrier = std::thread::spawn(move || stream.fill(feeder));
            ours.write_all(b"first").unwrap();
            assert_eq!(call.wait().unwrap(), Some(5));
            // The client may send on, or wait: the carrier ends in both cases.
            while sends && ours.write_all(&[7; 65536]).is_ok() {}
            carrier.join().unwrap();
        }
    }

    #[test]
    fn a_task_that_does_not_take_stops_the_client() {
        let (inlet, feeder) = inlet();
        let (stream, ours) = stream();
        let carrier = std::thread::spawn(move || stream.fill(feeder));
        ours.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        let mut sent = 0;
        while let Ok(n) = (&ours).write(&[1; 65536]) {
            sent += n;
        }
        assert!((INLET_MAX..INLET_MAX + (2 << 20)).contains(&sent), "{sent} bytes were taken");
        drop(inlet);
        carrier.join().unwrap();
    }

    /// A stream of blocks with those sizes and other records between them, and the large payloads.
    fn send_stream(order: Endian, sizes: &[u32]) -> (Vec<u8>, Vec<Vec<u8>>) {
        let begin = Begin { version_info: Begin::SUBSTREAM, to_name: b"pool@one".into(), ..Begin::default() };
        let mut all = Record::Begin(begin).encode(order).to_vec();
        let mut large = Vec::new();
        for (n, &size) in sizes.iter().enumerate() {
            let write = Block { logical_size: size.into(), ..Block::default() };
            let payload: Vec<u8> = (0..size).map(|at| (at * 7 + n as u32) as u8).collect();
            all.extend(Record::Write(write).encode(order));
            all.extend(&payload);
            all.extend(Record::Free(Range::default()).encode(order));
            large.extend((payload.len() >= LARGE).then_some(payload));
        }
        (all, large)
    }

    /// The pieces that a task gets of a client that sends so many bytes at once.
    fn pieces(sent: Vec<u8>, at_once: usize) -> Vec<Bytes> {
        let thread = EngineThread::start(None).unwrap();
        let (mut inlet, feeder) = inlet();
        let call = thread.call(move |_| async move {
            let mut pieces = Vec::new();
            while let Some(piece) = inlet.next().await {
                pieces.push(piece);
            }
            pieces
        });
        let (stream, mut ours) = stream();
        let carrier = std::thread::spawn(move || stream.fill(feeder));
        sent.chunks(at_once).for_each(|some| ours.write_all(some).unwrap());
        drop(ours);
        carrier.join().unwrap();
        call.wait().unwrap()
    }

    fn all(pieces: &[Bytes]) -> Vec<u8> {
        pieces.iter().flat_map(|piece| piece.iter().copied()).collect()
    }

    #[test]
    fn large_payloads_are_pieces_of_their_own() {
        let sizes = [512, 8192, 131_072, 7680, 8192, 8704, 512, 1 << 20, 4096];
        for order in [Endian::Little, Endian::Big] {
            let (sent, large) = send_stream(order, &sizes);
            for at_once in [1 << 20, 8193, 8192, 8191, 313, 312, 311] {
                let got = pieces(sent.clone(), at_once);
                assert_eq!(all(&got), sent, "{at_once} bytes at once");
                let mut rest = got.iter();
                assert!(large.iter().all(|want| rest.any(|piece| **piece == **want)), "{at_once} bytes at once");
            }
        }
    }

    #[test]
    fn bytes_that_are_no_stream_come_as_they_are() {
        let (sent, _) = send_stream(Endian::Little, &[131_072, 512, 65_536]);
        for cut in [0, 100, 312, 320, 8504, 100_000, 131_696] {
            assert_eq!(all(&pieces(sent[..cut].into(), 1 << 20)), sent[..cut], "cut at {cut}");
            let mut bad = sent.clone();
            bad[cut..cut + 40].fill(0xff);
            assert_eq!(all(&pieces(bad.clone(), 5000)), bad, "damaged at {cut}");
        }
    }
}
