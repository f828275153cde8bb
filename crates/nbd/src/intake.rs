//! The stream of requests: cuts the client's bytes into headers, and skips the payloads of refused
//! ones.
//!
//! The normal path: the caller hands bytes to [`Intake::take`] until it gives a [`Taken`] that is
//! not [`Taken::More`]. Behind a write that is to be served, the next [`Request::payload`] bytes of
//! the stream are the caller's: it reads them into its own buffers, from what it has in hand and
//! from the socket, and gives the bytes behind them to `take` again. [`Intake::wanted`] is how many
//! bytes `take` can use for certain: a caller that reads no more gets payloads straight from the
//! socket.
//!
//! Invariants: an intake holds one header at most. A refusal comes out behind its payload: libnbd
//! does not know the cookie of a request that it has not sent to the end, and gives up the
//! connection. For the same reason answer a write when all of its payload has come. After
//! [`Taken::End`] or a fault an intake takes nothing.

use crate::fault::Fault;
use crate::proto::REQUEST_HEADER;
use crate::request::{Header, Refusal, Request, Verdict};
use crate::terms::Terms;

/// What came out of the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// Nothing yet: read more bytes. If the client closed the connection, it is over.
    More,
    /// A request to serve.
    Serve(Request),
    /// A request to answer with [`Terms::refuse`]. Its payload has been skipped.
    Refuse(Refusal),
    /// The client disconnects: answer what is under way, then close.
    End,
}

/// The state of one stream of requests.
#[derive(Clone, Debug)]
pub struct Intake {
    header: [u8; REQUEST_HEADER],
    have: usize,
    /// A refusal, and how many bytes of its payload are still to come.
    refused: Option<(Refusal, u32)>,
    /// How it ended.
    end: Option<Result<(), Fault>>,
}

impl Default for Intake {
    fn default() -> Intake {
        Intake::new()
    }
}

impl Intake {
    /// Before the first request.
    pub fn new() -> Intake {
        Intake { header: [0; REQUEST_HEADER], have: 0, refused: None, end: None }
    }

    /// Bytes that the next calls of [`Intake::take`] use up for certain: what is missing of a
    /// header, or of a payload to skip. 0: the stream is over.
    pub fn wanted(&self) -> usize {
        match (&self.end, self.refused) {
            (Some(_), _) => 0,
            (None, Some((_, left))) => left as usize,
            (None, None) => REQUEST_HEADER - self.have,
        }
    }

    /// Takes bytes of the stream: how many of them, and what they were. At most one request is
    /// taken. A fault means to close the connection.
    pub fn take(&mut self, terms: &Terms, input: &[u8]) -> Result<(usize, Taken), Fault> {
        match &self.end {
            Some(Ok(())) => return Ok((0, Taken::End)),
            Some(Err(fault)) => return Err(fault.clone()),
            None => {}
        }
        let mut used = 0;
        if self.refused.is_none() {
            used = (REQUEST_HEADER - self.have).min(input.len());
            self.header[self.have..self.have + used].copy_from_slice(&input[..used]);
            self.have += used;
            if self.have < REQUEST_HEADER {
                return Ok((used, Taken::More));
            }
            self.have = 0;
            match Header::parse(&self.header).and_then(|header| terms.judge(&header)) {
                Ok(Verdict::Serve(request)) => return Ok((used, Taken::Serve(request))),
                Ok(Verdict::Refuse(refusal)) => self.refused = Some((refusal, refusal.skip)),
                Ok(Verdict::Disconnect) => {
                    self.end = Some(Ok(()));
                    return Ok((used, Taken::End));
                }
                Err(fault) => {
                    self.end = Some(Err(fault.clone()));
                    return Err(fault);
                }
            }
        }
        let taken = match &mut self.refused {
            Some((refusal, left)) => {
                let n = (*left as usize).min(input.len() - used);
                used += n;
                // No more than what was left, which is 32 bits.
                *left -= n as u32;
                if *left > 0 { Taken::More } else { Taken::Refuse(*refusal) }
            }
            None => Taken::More,
        };
        if taken != Taken::More {
            self.refused = None;
        }
        Ok((used, taken))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::Code;
    use crate::export::Export;
    use crate::proto::{REQUEST_MAGIC, cmd};
    use crate::request::{Command, Span};
    use crate::wire::Put;

    fn header(kind: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
        let mut out = Vec::new();
        out.u32(REQUEST_MAGIC);
        out.u16(0);
        out.u16(kind);
        out.u64(cookie);
        out.u64(offset);
        out.u32(length);
        out
    }

    fn terms() -> Terms {
        Terms { export: Export::new("v", 1 << 20), structured: false, block_status: false }
    }

    #[test]
    fn refused_payloads_are_skipped_for_any_cut() {
        // A write beyond the end, whose payload looks like a request; a read; the end; more.
        let payload = header(cmd::READ, 9, 0, 512);
        let all = [
            header(cmd::WRITE, 1, 1 << 20, payload.len() as u32),
            payload,
            header(cmd::READ, 2, 512, 7),
            header(cmd::DISC, 3, 0, 0),
            vec![1; 9],
        ]
        .concat();
        for piece in 1..all.len() {
            let (mut intake, mut found, mut at) = (Intake::new(), Vec::new(), 0);
            loop {
                let wanted = intake.wanted();
                let input = &all[at..all.len().min(at + piece)];
                let (n, taken) = intake.take(&terms(), input).unwrap();
                assert!(n >= wanted.min(input.len()));
                at += n;
                match taken {
                    Taken::More => continue,
                    other => found.push(other),
                }
                if taken == Taken::End {
                    break;
                }
            }
            assert_eq!((at, intake.wanted()), (all.len() - 9, 0));
            assert_eq!(intake.take(&terms(), &[1]), Ok((0, Taken::End)));
            let [Taken::Refuse(refusal), Taken::Serve(request), Taken::End] = found[..] else { panic!("{found:?}") };
            assert_eq!((refusal.cookie, refusal.code, refusal.skip), (1, Code::NoSpace, 28));
            let read = Command::Read { span: Span { offset: 512, length: 7 }, whole: false };
            assert_eq!(request, Request { cookie: 2, command: read });
        }
    }

    #[test]
    fn faults_are_final() {
        let mut intake = Intake::new();
        let fault = Fault::RequestMagic(0x0101_0101);
        assert_eq!(intake.take(&terms(), &[1; 28]), Err(fault.clone()));
        assert_eq!(intake.take(&terms(), &header(cmd::READ, 1, 0, 1)), Err(fault));
        assert_eq!(intake.wanted(), 0);
    }
}
