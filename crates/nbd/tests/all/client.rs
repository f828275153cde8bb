//! A naive client: numbers of the protocol document written down once more, every answer checked.

use std::collections::VecDeque;

use crate::rng::Rng;
use crate::server::Server;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const ZEROES: u16 = 6;
pub const STATUS: u16 = 7;

/// An option as it is sent.
pub fn option(code: u32, data: &[u8]) -> Vec<u8> {
    [b"IHAVEOPT", &code.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
}

/// A string with its length.
pub fn text(s: &str) -> Vec<u8> {
    [&(s.len() as u32).to_be_bytes()[..], s.as_bytes()].concat()
}

/// The data of `INFO` and `GO`.
pub fn info(name: &str, kinds: &[u16]) -> Vec<u8> {
    let kinds_bytes: Vec<u8> = kinds.iter().flat_map(|k| k.to_be_bytes()).collect();
    [text(name), (kinds.len() as u16).to_be_bytes().to_vec(), kinds_bytes].concat()
}

/// The data of the options about contexts.
pub fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let all: Vec<u8> = queries.iter().flat_map(|q| text(q)).collect();
    [text(name), (queries.len() as u32).to_be_bytes().to_vec(), all].concat()
}

/// A request as it is sent.
pub fn request(kind: u16, flags: u16, cookie: u64, offset: u64, length: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = 0x2560_9513_u32.to_be_bytes().to_vec();
    out.extend([flags.to_be_bytes(), kind.to_be_bytes()].concat());
    out.extend([cookie.to_be_bytes(), offset.to_be_bytes()].concat());
    out.extend(length.to_be_bytes());
    out.extend(payload);
    out
}

/// A connection of this client, whose bytes travel in random pieces.
pub struct Link {
    server: Server,
    rng: Rng,
    came: VecDeque<u8>,
    /// All that was sent, and all that came.
    pub sent: Vec<u8>,
    pub received: Vec<u8>,
}

impl Link {
    pub fn new(server: Server, rng: Rng) -> Link {
        let mut it = Link { server, rng, came: VecDeque::new(), sent: Vec::new(), received: Vec::new() };
        it.feed(&[]);
        it
    }
    fn feed(&mut self, piece: &[u8]) {
        let out = self.server.feed(piece);
        self.received.extend(&out);
        self.came.extend(out);
    }
    pub fn send(&mut self, bytes: &[u8]) {
        self.sent.extend(bytes);
        for piece in self.rng.clone().pieces(bytes) {
            self.feed(piece);
        }
        self.rng.next();
    }
    pub fn server(&self) -> &Server {
        &self.server
    }
    /// Bytes that came and were not read.
    pub fn left(&self) -> usize {
        self.came.len()
    }
    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        assert!(self.came.len() >= n, "{n} bytes are expected and {} came", self.came.len());
        self.came.drain(..n).collect()
    }
    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.bytes(2).try_into().unwrap())
    }
    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.bytes(4).try_into().unwrap())
    }
    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.bytes(8).try_into().unwrap())
    }

    /// Sends an option and reads all its answers: types and data.
    pub fn ask(&mut self, code: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send(&option(code, data));
        let mut all = Vec::new();
        loop {
            assert_eq!((self.u64(), self.u32()), (0x0003_e889_0455_65a9, code));
            let (kind, length) = (self.u32(), self.u32());
            all.push((kind, self.bytes(length as usize)));
            if kind == 1 || kind >> 31 == 1 {
                return all;
            }
        }
    }

    /// Reads the answer to a request without data: the error, 0 if there is none.
    pub fn plain_answer(&mut self, cookie: u64) -> u32 {
        match self.u32() {
            0x6744_6698 => {
                let error = self.u32();
                assert_eq!(self.u64(), cookie);
                error
            }
            0x668e_33ef => {
                let (done, kind, came, length) = (self.u16(), self.u16(), self.u64(), self.u32());
                assert_eq!((done, came), (1, cookie));
                self.error_chunk(kind, length)
            }
            odd => panic!("{odd:#x} is no reply"),
        }
    }
    fn error_chunk(&mut self, kind: u16, length: u32) -> u32 {
        let (error, n) = (self.u32(), self.u16());
        let why = String::from_utf8(self.bytes(usize::from(n))).unwrap();
        assert!(error != 0 && !why.is_empty() && !why.contains('\n'), "{why}");
        let fixed = match kind {
            0x8001 => 6,
            0x8002 => {
                self.u64();
                14
            }
            odd => panic!("{odd:#x} is no error"),
        };
        assert_eq!(length, fixed + u32::from(n));
        error
    }

    /// Reads the answer to a read.
    pub fn read_answer(&mut self, structured: bool, one: bool, cookie: u64, at: u64, n: u32) -> Result<Vec<u8>, u32> {
        if !structured {
            assert_eq!(self.u32(), 0x6744_6698);
            let error = self.u32();
            assert_eq!(self.u64(), cookie);
            return if error == 0 { Ok(self.bytes(n as usize)) } else { Err(error) };
        }
        let mut found: Vec<Option<u8>> = vec![None; n as usize];
        let mut chunks = 0;
        loop {
            assert_eq!(self.u32(), 0x668e_33ef);
            let (done, kind, came, length) = (self.u16(), self.u16(), self.u64(), self.u32());
            assert_eq!(came, cookie);
            let (offset, data) = match kind {
                1 => {
                    assert!(length > 8);
                    (self.u64(), self.bytes(length as usize - 8))
                }
                2 => {
                    assert_eq!(length, 12);
                    (self.u64(), vec![0; self.u32() as usize])
                }
                _ => {
                    assert_eq!((done, chunks), (1, 0));
                    return Err(self.error_chunk(kind, length));
                }
            };
            let start = (offset - at) as usize;
            for (place, byte) in found[start..start + data.len()].iter_mut().zip(&data) {
                assert_eq!(place.replace(*byte), None, "chunks overlap");
            }
            chunks += 1;
            assert!(!data.is_empty() && (!one || chunks == 1));
            if done == 1 {
                return Ok(found.into_iter().map(|b| b.expect("chunks cover the range")).collect());
            }
        }
    }

    /// Reads the answer to a block status: lengths and states.
    pub fn status_answer(&mut self, cookie: u64, context: u32) -> Result<Vec<(u32, u32)>, u32> {
        assert_eq!(self.u32(), 0x668e_33ef);
        let (done, kind, came, length) = (self.u16(), self.u16(), self.u64(), self.u32());
        assert_eq!((done, came), (1, cookie));
        if kind != 5 {
            return Err(self.error_chunk(kind, length));
        }
        assert!(length >= 12 && length % 8 == 4);
        assert_eq!(self.u32(), context);
        Ok((0..length / 8).map(|_| (self.u32(), self.u32())).collect())
    }
}
