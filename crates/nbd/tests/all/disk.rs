//! A sparse disk in memory.

use nbd::{Run, Span, State};

/// Bytes that are allocated together.
const BLOCK: usize = 512;

#[derive(Clone, Debug)]
pub struct Disk {
    pub bytes: Vec<u8>,
    allocated: Vec<bool>,
}

impl Disk {
    pub fn new(size: usize) -> Disk {
        Disk { bytes: vec![0; size], allocated: vec![false; size.div_ceil(BLOCK)] }
    }
    fn range(span: Span) -> std::ops::Range<usize> {
        span.offset as usize..span.offset as usize + span.length as usize
    }
    pub fn read(&self, span: Span) -> &[u8] {
        &self.bytes[Disk::range(span)]
    }
    /// The stretches of a span: bytes, and whether they are allocated.
    fn stretches(&self, span: Span) -> impl Iterator<Item = (u32, bool)> + '_ {
        let range = Disk::range(span);
        let mut at = range.start;
        std::iter::from_fn(move || {
            let end = range.end.min((at / BLOCK + 1) * BLOCK);
            let found = (at < range.end).then(|| ((end - at) as u32, self.allocated[at / BLOCK]));
            at = end;
            found
        })
    }
    pub fn runs(&self, span: Span) -> Vec<Run> {
        self.stretches(span).map(|(n, data)| if data { Run::Data(n) } else { Run::Hole(n) }).collect()
    }
    pub fn states(&self, span: Span) -> impl Iterator<Item = (u64, State)> + '_ {
        let mut at = span.offset as usize;
        self.stretches(span).map(move |(n, data)| {
            let zeros = self.bytes[at..at + n as usize].iter().all(|b| *b == 0);
            at += n as usize;
            let state = match (data, zeros) {
                (false, _) => State::Hole,
                (true, true) => State::Zeros,
                (true, false) => State::Data,
            };
            (u64::from(n), state)
        })
    }
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let range = Disk::range(Span { offset, length: data.len() as u32 });
        self.allocated[range.start / BLOCK..range.end.div_ceil(BLOCK)].fill(true);
        self.bytes[range].copy_from_slice(data);
    }
    /// Zeros a span; whole blocks of it become holes unless `keep` is set.
    pub fn zero(&mut self, span: Span, keep: bool) {
        let range = Disk::range(span);
        self.bytes[range.clone()].fill(0);
        if keep {
            self.allocated[range.start / BLOCK..range.end.div_ceil(BLOCK)].fill(true);
        } else {
            let (first, end) = (range.start.div_ceil(BLOCK), range.end / BLOCK);
            self.allocated[first.min(end)..end].fill(false);
        }
    }
}
