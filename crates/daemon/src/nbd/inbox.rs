//! Requests as they come from a client.
//!
//! The reader reads into a buffer of its own, which takes many short requests at once; what a write
//! of more bytes lacks goes straight into the memory that the engine keeps, and behind it, in the
//! same call, what comes next goes into the buffer. While writes are long that buffer is a short
//! one, so that few bytes of the next are copied out of it. The memory of the engine is cut at
//! multiples of a few blocks of the volume, so that whole blocks are taken as they are
//! (`dmu::Dnode::write_bytes`).
//!
//! Invariant: before the reader waits, for bytes or for room, every answer that is ready has been
//! sent as far as possible: a client may send its next request only then.

use std::io::ErrorKind;

use bdev::{Buf, Bytes};
use nbd::{Command, Intake, Request, Taken};
use rt::cost::COPY;

use super::conn::Conn;
use super::outbox::{Front, Permits};

/// Bytes of the buffer: a thousand requests without payload, or seven of 4 KiB.
const BUFFER: usize = 32 << 10;
/// Bytes of the short one, with room for a few headers.
const SHORT_BUFFER: usize = 512;
/// Blocks of a volume in one piece of a payload: the most at which a block keeps its memory without
/// a copy.
const PIECE_BLOCKS: usize = 8;
/// Smallest piece of a payload.
const PIECE_MIN: usize = 32 << 10;
/// Most pieces of a payload.
const PIECES_MAX: usize = 512;
/// Bytes that the answer to a block status counts as.
const STATUS_COST: u64 = 64 << 10;

/// A request with all that it needs to be served.
pub(super) struct Job {
    pub(super) request: Request,
    pub(super) payload: Vec<Bytes>,
    pub(super) permits: Permits,
}

/// The reading side of a connection.
pub(super) struct Reader {
    intake: Intake,
    /// The buffer that was read into last.
    buf: Buf,
    /// The other one of the two.
    idle: Buf,
    /// The last request was a write of more bytes than the buffer has: the next is likely one too.
    long: bool,
    /// What is left in the buffer.
    at: usize,
    have: usize,
}

/// Bytes that a request of a volume with blocks of `block` bytes holds while it is under way: a
/// read keeps whole blocks until its answer has left.
fn cost(request: &Request, block: u64) -> u64 {
    match request.command {
        Command::Read { span, .. } => {
            let end = (span.offset + u64::from(span.length)).div_ceil(block).saturating_mul(block);
            end - span.offset / block * block
        }
        Command::Write { span, .. } => span.length.into(),
        Command::BlockStatus { .. } => STATUS_COST,
        _ => 0,
    }
}

/// Where a payload of `len` bytes for the volume's offset `at` is cut: the lengths of its pieces.
fn pieces(at: u64, len: usize, block: usize) -> Vec<usize> {
    let most = (block * PIECE_BLOCKS).max(PIECE_MIN).max(len.div_ceil(PIECES_MAX - 1).next_power_of_two());
    let first = most - (at % most as u64) as usize;
    let (mut out, mut left) = (Vec::new(), len);
    let mut next = first;
    while left > 0 {
        let n = next.min(left);
        out.push(n);
        left -= n;
        next = most;
    }
    out
}

impl Reader {
    /// `first` are the bytes that came behind the handshake: at most a few KiB.
    pub(super) fn new(first: &[u8]) -> Reader {
        let mut buf = Buf::zeroed(BUFFER.max(first.len()));
        buf[..first.len()].copy_from_slice(first);
        Reader { intake: Intake::new(), buf, idle: Buf::zeroed(SHORT_BUFFER), long: false, at: 0, have: first.len() }
    }

    /// The next request to serve. None: there will be no more.
    pub(super) async fn next(&mut self, conn: &Conn) -> Option<Job> {
        loop {
            while self.at < self.have {
                let taken = self.intake.take(conn.terms(), &self.buf[self.at..self.have]);
                let (n, taken) = taken.map_err(|fault| conn.note_fault(&fault)).ok()?;
                self.at += n;
                match taken {
                    Taken::More => {}
                    Taken::End => return None,
                    Taken::Refuse(refusal) => {
                        let permits = conn.admit(0).await;
                        conn.push(Front::Text(conn.terms().refuse(&refusal)), Vec::new(), permits);
                    }
                    Taken::Serve(request) => {
                        let permits = conn.admit(cost(&request, conn.block_size() as u64)).await;
                        let payload = self.payload(conn, &request).await?;
                        return Some(Job { request, payload, permits });
                    }
                }
            }
            let n = self.read(conn, Vec::new(), 0).await?.1;
            (self.at, self.have) = (0, n);
        }
    }

    /// The payload of a write.
    async fn payload(&mut self, conn: &Conn, request: &Request) -> Option<Vec<Bytes>> {
        let Command::Write { span, .. } = request.command else {
            self.long = false;
            return Some(Vec::new());
        };
        let len = span.length as usize;
        self.long = len > BUFFER;
        let cut = pieces(span.offset, len, conn.block_size());
        let mut bufs: Vec<Buf> = cut.into_iter().map(Buf::for_overwrite).collect();
        let mut filled = 0;
        for buf in &mut bufs {
            let n = buf.len().min(self.have - self.at);
            buf[..n].copy_from_slice(&self.buf[self.at..self.at + n]);
            self.at += n;
            filled += n;
            if n < buf.len() {
                break;
            }
        }
        while filled < len {
            let n;
            (bufs, n) = self.read(conn, bufs, filled).await?;
            let more = n.min(len - filled);
            filled += more;
            (self.at, self.have) = (0, n - more);
        }
        Some(bufs.into_iter().map(Buf::freeze).collect())
    }

    /// Reads at least a byte into `bufs` behind `skip` bytes, and what comes behind them into the
    /// buffer, all of which was used; how many. None: the client is gone.
    async fn read(&mut self, conn: &Conn, mut bufs: Vec<Buf>, skip: usize) -> Option<(Vec<Buf>, usize)> {
        if self.long != (self.buf.len() == SHORT_BUFFER) {
            std::mem::swap(&mut self.buf, &mut self.idle);
        }
        bufs.push(std::mem::take(&mut self.buf));
        let result;
        match conn.receive_now(&mut bufs, skip) {
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                conn.flush().await;
                (bufs, result) = conn.receive(bufs, skip).await;
            }
            now => result = now,
        }
        self.buf = bufs.pop()?;
        match result {
            Ok(n) if n > 0 => {
                // Without it a client that keeps sending would keep the engine's thread.
                conn.spend(COPY.cost(n as u64)).await;
                Some((bufs, n))
            }
            _ => {
                conn.note_gone();
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use nbd::Span;

    use super::*;

    #[test]
    fn reads_hold_whole_blocks() {
        let of = |command| cost(&Request { cookie: 0, command }, 16 << 10);
        for (offset, length, want) in [(0, 16 << 10, 16 << 10), (1, 1, 16 << 10), ((16 << 10) - 1, 2, 32 << 10)] {
            let span = Span { offset, length };
            assert_eq!(of(Command::Read { span, whole: false }), want, "{offset} {length}");
            assert_eq!(of(Command::Write { span, durable: true }), u64::from(length));
        }
        assert_eq!(of(Command::Flush), 0);
    }

    #[test]
    fn payloads_are_cut_at_blocks() {
        const K: usize = 1024;
        let table: [(u64, usize, usize, &[usize]); 6] = [
            (0, 4 * K, 16 * K, &[4 * K]),
            (0, 256 * K, 16 * K, &[128 * K, 128 * K]),
            (120 * K as u64, 136 * K, 16 * K, &[8 * K, 128 * K]),
            (127 * K as u64 + 1023, 2, 16 * K, &[1, 1]),
            (1 << 40, 40 * K, 512, &[32 * K, 8 * K]),
            (u64::MAX - 5, 5, 128 * K, &[5]),
        ];
        for (at, len, block, want) in table {
            assert_eq!(pieces(at, len, block), want, "{at} {len} {block}");
        }
        for (at, block) in [(0, 512), (1, 512), (77, 4096), (3 << 20, 128 << 10)] {
            let cut = pieces(at, 32 << 20, block);
            assert!(cut.len() <= PIECES_MAX && cut.iter().sum::<usize>() == 32 << 20, "{}", cut.len());
        }
    }
}
