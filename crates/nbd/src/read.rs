//! Answers to reads: heads, and between them what the caller sends from its own buffers.
//!
//! **Run**: a stretch of data, or of zeros that nobody stored. The caller lists the runs of the
//! range and gets [`Part`]s, which it sends in order.
//!
//! Rules (NBD protocol document, section "Request types", `READ`): with simple replies everything
//! is data. With chunks, data and holes have chunks of their own, and the last one is marked, since
//! the caller has the data in hand. With the flag `DF` there is one chunk: a hole if all of it is
//! one, else data with zeros in it. Neighbours of one kind are joined, and holes shorter than
//! [`HOLE_MIN`] beside data are sent as zeros in that chunk, so the number of chunks is bounded by
//! the length of the read however many runs there are.

use crate::proto::HOLE_MIN;
use crate::reply::Head;
use crate::request::Span;
use crate::terms::Terms;

/// A stretch of a read, in bytes. Empty ones are allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Run {
    /// Data.
    Data(u32),
    /// Zeros.
    Hole(u32),
}

/// A piece of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Send these bytes.
    Head(Head),
    /// Send the data of this range of the export.
    Data(Span),
    /// Send so many zeros.
    Zeros(u32),
}

impl Terms {
    /// The answer to a read of `span`; `whole`: the request has the flag `DF`. The runs must add
    /// up to the span.
    pub fn read_answer(&self, cookie: u64, span: Span, whole: bool, runs: &[Run]) -> Vec<Part> {
        let runs = joined(runs);
        let sum: u64 = runs.iter().map(|run| u64::from(length(run))).sum();
        assert_eq!(sum, u64::from(span.length), "the runs of a read cover it");
        let chunks = match (self.structured, &runs[..]) {
            (false, _) => vec![&runs[..]],
            (true, _) if whole => vec![&runs[..]],
            _ => cut_chunks(&runs),
        };
        let (mut parts, mut offset) = (Vec::new(), span.offset);
        let last = chunks.len().saturating_sub(1);
        for (n, chunk) in chunks.into_iter().enumerate() {
            // Within the span, whose length is 32 bits.
            let here = Span { offset, length: chunk.iter().map(length).sum() };
            match (self.structured, chunk) {
                (true, [Run::Hole(_)]) => {
                    parts.push(Part::Head(Head::hole(cookie, here, n == last)));
                    offset += u64::from(here.length);
                    continue;
                }
                (true, _) => parts.push(Part::Head(Head::data(cookie, here, n == last))),
                (false, _) => parts.push(Part::Head(Head::simple_data(cookie))),
            }
            for run in chunk {
                parts.push(match *run {
                    Run::Data(length) => Part::Data(Span { offset, length }),
                    Run::Hole(length) => Part::Zeros(length),
                });
                offset += u64::from(length(run));
            }
        }
        parts
    }
}

fn length(run: &Run) -> u32 {
    match *run {
        Run::Data(n) | Run::Hole(n) => n,
    }
}

/// The runs without empty ones, neighbours of one kind joined.
fn joined(runs: &[Run]) -> Vec<Run> {
    let mut out: Vec<Run> = Vec::new();
    for run in runs.iter().filter(|run| length(run) > 0) {
        match (out.last_mut(), run) {
            (Some(Run::Data(sum)), Run::Data(n)) | (Some(Run::Hole(sum)), Run::Hole(n)) => {
                *sum = sum.saturating_add(*n)
            }
            _ => out.push(*run),
        }
    }
    out
}

/// Groups runs into chunks: a long hole is one, and what lies between long holes is one. Short
/// holes have data beside them, unless the whole read is one.
fn cut_chunks(runs: &[Run]) -> Vec<&[Run]> {
    let is_long = |run: &Run| matches!(run, Run::Hole(n) if *n >= HOLE_MIN);
    runs.chunk_by(|a, b| !is_long(a) && !is_long(b)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::Export;
    use Run::{Data, Hole};

    fn terms(structured: bool) -> Terms {
        Terms { export: Export::new("v", 1 << 30), structured, block_status: false }
    }

    /// The parts in short: `D8!` a data chunk of 8 bytes that is the last, `H` a hole, `S` a simple
    /// reply; `d`, `z` data and zeros.
    fn short(parts: &[Part]) -> String {
        let one = |part: &Part| match part {
            Part::Data(span) => format!("d{}@{}", span.length, span.offset),
            Part::Zeros(n) => format!("z{n}"),
            Part::Head(head) => {
                let b = head.as_slice();
                let number = |at: usize| u32::from_be_bytes(b[at..at + 4].try_into().unwrap());
                let done = if b[5] == 1 { "!" } else { "" };
                match b.len() {
                    16 => "S".to_string(),
                    28 => format!("D{}{done}", number(16) - 8),
                    _ => format!("H{}{done}", number(28)),
                }
            }
        };
        parts.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn runs_become_chunks() {
        let (simple, chunks, whole) = ((false, false), (true, false), (true, true));
        let k = |n: u32| n << 10;
        let table: [((bool, bool), &[Run], &str); 13] = [
            (simple, &[Data(9)], "S d9@100"),
            (simple, &[Hole(9)], "S z9"),
            (simple, &[Data(1), Hole(k(8)), Data(2)], "S d1@100 z8192 d2@8293"),
            (chunks, &[Data(9)], "D9! d9@100"),
            (chunks, &[Data(4), Hole(0), Data(5)], "D9! d9@100"),
            (chunks, &[Hole(9)], "H9!"),
            (chunks, &[Hole(4), Hole(5)], "H9!"),
            (chunks, &[Data(1), Hole(k(4))], "D1 d1@100 H4096!"),
            (chunks, &[Hole(k(4)), Data(1), Hole(512), Data(2)], "H4096 D515! d1@4196 z512 d2@4709"),
            (chunks, &[Hole(512), Data(2), Hole(k(8)), Data(3)], "D514 z512 d2@612 H8192 D3! d3@8806"),
            (whole, &[Data(1), Hole(k(8)), Data(2)], "D8195! d1@100 z8192 d2@8293"),
            (whole, &[Hole(k(8))], "H8192!"),
            (whole, &[Data(9)], "D9! d9@100"),
        ];
        for ((structured, whole), runs, want) in table {
            let span = Span { offset: 100, length: runs.iter().map(length).sum() };
            assert_eq!(short(&terms(structured).read_answer(7, span, whole, runs)), want, "{runs:?}");
        }
    }

    #[test]
    #[should_panic(expected = "the runs of a read cover it")]
    fn runs_that_do_not_cover_the_read_are_a_bug() {
        terms(true).read_answer(1, Span { offset: 0, length: 10 }, false, &[Data(9)]);
    }
}
