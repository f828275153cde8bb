//! Timing of flash: many dies that read and program by themselves, one link to the host, a write
//! buffer.
//!
//! A write is done when the buffer took it; it is programmed later, die after die in turn (flash
//! translation spreads small writes), so a burst beyond the buffer runs at the speed of the dies. A
//! read goes to the die that its address names and waits at most half a program there: flash
//! suspends programs for reads. A flush waits for the buffer. The state at submission determines
//! everything, so a completion's moment is computed once.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use base::Nanos;

use super::fault::OpKind;
use super::model::{Shape, transfer};

/// Parameters of a flash disk.
#[derive(Clone, PartialEq, Debug)]
pub struct SsdModel {
    /// Dies that work at the same time.
    pub dies: usize,
    /// Bytes that a die reads or programs at once.
    pub page: u64,
    /// Time to read a page.
    pub read: Nanos,
    /// Time to program a page.
    pub program: Nanos,
    /// Bytes a second between host and disk, for each direction.
    pub link: u64,
    /// Time from submission to the disk's beginning.
    pub command: Nanos,
    /// Bytes of the write buffer; 0 makes each write wait for its program.
    pub buffer: u64,
    /// Time that the controller needs for each read, one after the other: its inverse is the most
    /// that any queue depth gives. 0: no such limit.
    pub read_each: Nanos,
    /// The same for writes.
    pub write_each: Nanos,
    /// Time of a flush beside what it waits for.
    pub flush: Nanos,
    /// Whether the buffer survives a power cut, so that a flush costs only the command. (The disk's
    /// `volatile` decides what a cut loses.)
    pub protected: bool,
}

impl SsdModel {
    /// NVMe: 2.6 GB/s written, 3.2 GB/s read, about 75 us for a 4 KiB read, 12 us for a buffered
    /// write.
    pub fn nvme() -> SsdModel {
        SsdModel {
            dies: 64,
            page: 16 << 10,
            read: Nanos::from_us(62),
            program: Nanos::from_us(400),
            link: 3_200_000_000,
            command: Nanos::from_us(10),
            buffer: 32 << 20,
            read_each: Nanos(0),
            write_each: Nanos(0),
            flush: Nanos(0),
            protected: false,
        }
    }
    /// SATA: 550 MB/s, about 100 us for a 4 KiB read.
    pub fn sata() -> SsdModel {
        SsdModel {
            dies: 24,
            page: 16 << 10,
            read: Nanos::from_us(75),
            program: Nanos::from_us(700),
            link: 550_000_000,
            command: Nanos::from_us(20),
            buffer: 16 << 20,
            ..SsdModel::nvme()
        }
    }
}

impl SsdModel {
    /// A SAS SSD of 12 Gb/s with protection against power loss, as data sheets of 2014 to 2017
    /// describe them (HGST Ultrastar SSD1600MM, Samsung PM1633, Toshiba PX04S: 1.1 to 1.9 GB/s
    /// read, 0.7 to 1.0 GB/s written): 0.95 GB/s written here.
    pub fn enterprise_sas() -> SsdModel {
        SsdModel {
            dies: 32,
            page: 16 << 10,
            read: Nanos::from_us(75),
            program: Nanos::from_us(550),
            link: 1_100_000_000,
            command: Nanos::from_us(25),
            protected: true,
            ..SsdModel::nvme()
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Die {
    reads_until: Nanos,
    programs_until: Nanos,
}

pub(crate) struct Ssd {
    model: SsdModel,
    dies: Vec<Die>,
    next_die: usize,
    /// When the controller has taken all reads and writes so far.
    commands_until: Nanos,
    in_until: Nanos,
    out_until: Nanos,
    /// (when it is programmed, bytes) of the writes in the buffer.
    buffered: BinaryHeap<Reverse<(Nanos, u64)>>,
    buffered_bytes: u64,
}

impl Ssd {
    pub(crate) fn new(model: SsdModel) -> Ssd {
        assert!(model.dies > 0 && model.page > 0, "a flash disk needs dies and pages");
        Ssd {
            dies: vec![Die::default(); model.dies],
            next_die: 0,
            commands_until: Nanos(0),
            in_until: Nanos(0),
            out_until: Nanos(0),
            buffered: BinaryHeap::new(),
            buffered_bytes: 0,
            model,
        }
    }
    /// When the operation will complete.
    pub(crate) fn submit(&mut self, now: Nanos, shape: Shape) -> Nanos {
        let each = match shape.kind {
            OpKind::Read => self.model.read_each,
            OpKind::Write => self.model.write_each,
            OpKind::Flush | OpKind::Discard => Nanos(0),
        };
        self.commands_until = self.commands_until.max(now) + each;
        let begin = self.commands_until + self.model.command;
        match shape.kind {
            OpKind::Read => self.read(begin, shape.offset, shape.len),
            OpKind::Write => self.write(begin, shape.len),
            OpKind::Flush if self.model.protected => begin + self.model.flush,
            OpKind::Flush => {
                self.dies.iter().fold(begin, |until, die| until.max(die.programs_until)) + self.model.flush
            }
            OpKind::Discard => begin,
        }
    }
    fn read(&mut self, begin: Nanos, offset: u64, len: u64) -> Nanos {
        let mut ready = begin;
        let (first, last) = (offset / self.model.page, (offset + len).div_ceil(self.model.page));
        for page in first..last {
            let die = &mut self.dies[(page % self.model.dies as u64) as usize];
            let mut start = begin.max(die.reads_until);
            if die.programs_until > start {
                let wait = (die.programs_until - start).min(Nanos(self.model.program.0 / 2));
                start = start + wait;
                die.programs_until = die.programs_until + self.model.read;
            }
            die.reads_until = start + self.model.read;
            ready = ready.max(die.reads_until);
        }
        self.out_until = self.out_until.max(ready) + transfer(len, self.model.link);
        self.out_until
    }
    fn write(&mut self, begin: Nanos, len: u64) -> Nanos {
        self.in_until = self.in_until.max(begin) + transfer(len, self.model.link);
        let mut accepted = self.in_until;
        self.drain(accepted);
        while self.buffered_bytes > 0 && self.buffered_bytes + len > self.model.buffer {
            let Some(Reverse((at, _))) = self.buffered.peek().copied() else { break };
            accepted = accepted.max(at);
            self.drain(accepted);
        }
        // The buffer is first in, first out: later writes wait behind this one.
        self.in_until = accepted;
        let mut left = len;
        let mut programmed = accepted;
        while left > 0 {
            let part = left.min(self.model.page);
            left -= part;
            let die = &mut self.dies[self.next_die];
            self.next_die = (self.next_die + 1) % self.model.dies;
            // Small writes share a page, hence the share of a program.
            let cost =
                Nanos((u128::from(self.model.program.0) * u128::from(part) / u128::from(self.model.page)) as u64);
            die.programs_until = die.programs_until.max(accepted) + cost;
            programmed = programmed.max(die.programs_until);
            self.buffered.push(Reverse((die.programs_until, part)));
            self.buffered_bytes += part;
        }
        if self.model.buffer == 0 { programmed } else { accepted }
    }
    fn drain(&mut self, until: Nanos) {
        while let Some(Reverse((at, bytes))) = self.buffered.peek().copied() {
            if at > until {
                break;
            }
            self.buffered.pop();
            self.buffered_bytes -= bytes;
        }
    }
}
