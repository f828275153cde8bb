//! Timing of flash: dies behind channels, one link to the host, a controller, a write buffer.
//!
//! **Writes.** The controller takes command after command (`write_each`), then data, one after the
//! other at the slower one of the host's link and its own path (`write_path`: encryption, parity,
//! copying; reads have a `read_path`). A write is done when the buffer took it. It is programmed
//! later, die after die in turn (flash translation spreads small writes): over the channel of the
//! die, then for the time of a program, of which a small write has its share. A burst beyond the
//! buffer runs at the speed of the dies. After each block's worth of bytes a die erases one. What
//! the map of the disk ([`Ftl`]) must move for a write (garbage collection) is read and programmed
//! by the same dies.
//!
//! **Reads** go to the die that their address names. One that is programming is interrupted, which
//! takes `suspend` at most, one that is erasing `suspend_erase`.
//!
//! **Flushes** of a protected buffer cost a command. Others wait until the buffer is programmed,
//! and then for `flush`: the map's journal.
//!
//! **Tails.** Beside waits for dies a few commands take longer for reasons inside (refresh, wear
//! levelling, retries): `slow_per_million` of them, by `slow_read` or `slow_write` on average.
//!
//! The state at submission determines everything, so a completion's moment is computed once.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use base::Nanos;

use super::fault::OpKind;
use super::ftl::Ftl;
use super::model::{Shape, exponential, transfer};
use crate::Rng;

/// Parameters of a flash disk.
#[derive(Clone, PartialEq, Debug)]
pub struct SsdModel {
    /// Dies that work at the same time.
    pub dies: usize,
    /// Channels that the dies share evenly.
    pub channels: usize,
    /// Planes of a die, which read and program together.
    pub planes: u64,
    /// Bytes of a page: what a plane reads or programs at once.
    pub page: u64,
    /// Pages of a block: what a plane erases at once.
    pub block_pages: u64,
    /// Bytes a second of a channel.
    pub channel_rate: u64,
    /// Time to read a page of each plane.
    pub read: Nanos,
    /// Time to program a page of each plane.
    pub program: Nanos,
    /// Time to erase a block of each plane.
    pub erase: Nanos,
    /// Longest wait of a read for a program to be interrupted.
    pub suspend: Nanos,
    /// Longest wait of a read for an erasure to be interrupted.
    pub suspend_erase: Nanos,
    /// Bytes a second between host and disk, for each direction.
    pub link: u64,
    /// Bytes a second that the controller takes in, whatever the link can do. 0: as many as the
    /// link.
    pub write_path: u64,
    /// Bytes a second that the controller gives out, whatever the link can do. 0: as many as the
    /// link.
    pub read_path: u64,
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
    /// Flash beyond the capacity, in percent of it.
    pub spare: u64,
    /// Bytes of the whole disk, if the device is only a part of it: the rest is as if erased. A
    /// larger device is the whole disk.
    pub capacity: u64,
    /// Whether the whole disk was written at random for long; else it is erased.
    pub worn: bool,
    /// Of a million commands so many take longer.
    pub slow_per_million: u64,
    /// How much longer those take on average if they read, exponentially distributed.
    pub slow_read: Nanos,
    /// The same for writes and flushes.
    pub slow_write: Nanos,
}

/// A mean such that of [`SLOW_PER_MILLION`] late commands half are late by more than `late_us`:
/// then that is the 99.9th percentile of all.
const fn slow_mean(late_us: u64) -> Nanos {
    // 1 / ln 2
    Nanos(late_us * 1443)
}

/// Late commands in a million, twice those beyond the 99.9th percentile that data sheets name.
const SLOW_PER_MILLION: u64 = 2_000;

impl SsdModel {
    /// NVMe of the data centre, without protection against power loss, as drives of 2015 to 2018
    /// with 3D TLC (Intel DC P4500 and P4510: 3.2 GB/s read, up to 645,000 random reads a second,
    /// 13 us for a sequential write, 85 us for a random read of 4 KiB; two generations on, 1.8 to
    /// 2.9 GB/s written): 2.6 GB/s written, about 75 us for a 4 KiB read, 12 us for a buffered
    /// write. The channels are of NV-DDR2 with 533 MT/s. Times of suspension as MQSim has them
    /// (FAST 2018). The tail of reads is that of the same flash in Intel's S4600 (300 us); of
    /// writes none is published, so they have the same.
    pub fn nvme() -> SsdModel {
        SsdModel {
            dies: 64,
            channels: 16,
            planes: 2,
            page: 16 << 10,
            block_pages: 512,
            channel_rate: 533_000_000,
            read: Nanos::from_us(62),
            program: Nanos::from_us(800),
            erase: Nanos::from_us(5_000),
            suspend: Nanos::from_us(100),
            suspend_erase: Nanos::from_us(700),
            link: 3_200_000_000,
            write_path: 0,
            read_path: 0,
            command: Nanos::from_us(10),
            buffer: 32 << 20,
            read_each: Nanos(1_550),
            write_each: Nanos(1_550),
            flush: Nanos::from_us(400),
            protected: false,
            spare: 12,
            capacity: 0,
            worn: false,
            slow_per_million: SLOW_PER_MILLION,
            slow_read: slow_mean(225),
            slow_write: slow_mean(225),
        }
    }
    /// SATA, as Intel's DC S4500 and S4600 (2017): 500 MB/s, 72,000 random reads a second, 110 us
    /// for a 4 KiB read and 52 us for a write, of which here a part is the host's; 99.9 % of reads
    /// within 300 us, of writes within 800 us. Without protection against power loss here.
    pub fn sata() -> SsdModel {
        SsdModel {
            dies: 24,
            channels: 8,
            read: Nanos::from_us(75),
            program: Nanos::from_us(1_400),
            link: 550_000_000,
            command: Nanos::from_us(20),
            buffer: 16 << 20,
            read_each: Nanos(10_000),
            write_each: Nanos(10_000),
            flush: Nanos::from_us(700),
            slow_read: slow_mean(190),
            slow_write: slow_mean(750),
            ..SsdModel::nvme()
        }
    }
    /// A SAS SSD of 12 Gb/s with protection against power loss, as data sheets of 2014 to 2017
    /// describe them (HGST Ultrastar SSD1600MM, Samsung PM1633, Toshiba PX04S: 1.1 to 1.9 GB/s
    /// read, 0.7 to 1.0 GB/s written, 130,000 to 200,000 random reads a second). Their rates of
    /// sequential writes are nearly the same for all capacities, so it is the controller's path and
    /// not the dies that limits them: 0.95 GB/s. Flash of the time as in MQSim's example of an
    /// enterprise drive (FAST 2018): MLC, two planes, 8 KiB pages, 75 us, 750 us, 3.8 ms, 8
    /// channels of 333 MT/s; 400 GB of 512 GiB. 99.9 % within 500 us, as Intel's DC S3700 (MLC,
    /// 2012) has it for reads and writes.
    pub fn enterprise_sas() -> SsdModel {
        SsdModel {
            dies: 64,
            channels: 8,
            page: 8 << 10,
            block_pages: 256,
            channel_rate: 333_000_000,
            read: Nanos::from_us(75),
            program: Nanos::from_us(750),
            erase: Nanos::from_us(3_800),
            link: 1_100_000_000,
            write_path: 950_000_000,
            read_path: 0,
            command: Nanos::from_us(25),
            read_each: Nanos(5_000),
            write_each: Nanos(5_000),
            flush: Nanos(0),
            protected: true,
            spare: 37,
            slow_read: slow_mean(400),
            slow_write: slow_mean(450),
            ..SsdModel::nvme()
        }
    }
    /// The same after long random writes over all of it, the state in which data sheets give rates
    /// of random writes.
    pub fn worn(self) -> SsdModel {
        SsdModel { worn: true, ..self }
    }
    /// Bytes that a die programs at once.
    fn stripe(&self) -> u64 {
        self.planes * self.page
    }
    /// Bytes a second over the link and a path of the controller, of which 0 has no limit.
    fn path(&self, path: u64) -> u64 {
        if path == 0 { self.link } else { path.min(self.link) }
    }
}

#[derive(Clone, Copy, Default)]
struct Die {
    reads_until: Nanos,
    /// When all programs and erasures so far are over.
    busy_until: Nanos,
    /// The last erasure.
    erase: (Nanos, Nanos),
    /// Bytes programmed since.
    programmed: u64,
}

pub(crate) struct Ssd {
    model: SsdModel,
    rng: Rng,
    ftl: Ftl,
    dies: Vec<Die>,
    next_die: usize,
    /// When each channel has moved all bytes of reads so far, and of programs. Reads go first, so
    /// they do not wait for programs that the buffer owes.
    channels: [Vec<Nanos>; 2],
    /// When the controller has taken all commands so far.
    commands_until: Nanos,
    in_until: Nanos,
    out_until: Nanos,
    /// (when it is programmed, bytes) of the writes in the buffer.
    buffered: BinaryHeap<Reverse<(Nanos, u64)>>,
    buffered_bytes: u64,
    /// Bytes to move that do not fill a stripe yet.
    to_move: u64,
}

impl Ssd {
    pub(crate) fn new(model: SsdModel, size: u64, rng: Rng) -> Ssd {
        assert!(model.dies > 0 && model.channels > 0 && model.stripe() > 0, "a flash disk needs dies and pages");
        Ssd {
            rng,
            ftl: Ftl::new(size.max(model.capacity), model.spare, model.worn),
            dies: vec![Die::default(); model.dies],
            next_die: 0,
            channels: [vec![Nanos(0); model.channels], vec![Nanos(0); model.channels]],
            commands_until: Nanos(0),
            in_until: Nanos(0),
            out_until: Nanos(0),
            buffered: BinaryHeap::new(),
            buffered_bytes: 0,
            to_move: 0,
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
        let done = match shape.kind {
            OpKind::Read => self.read(begin, shape.offset, shape.len),
            OpKind::Write => self.write(begin, shape.offset, shape.len),
            OpKind::Flush if self.model.protected => begin + self.model.flush,
            OpKind::Flush => self.dies.iter().fold(begin, |until, die| until.max(die.busy_until)) + self.model.flush,
            OpKind::Discard => {
                self.ftl.discard(shape.offset, shape.len);
                return begin;
            }
        };
        done + self.slow(shape.kind)
    }
    fn slow(&mut self, kind: OpKind) -> Nanos {
        let mean = if kind == OpKind::Read { self.model.slow_read } else { self.model.slow_write };
        if self.model.slow_per_million == 0 || self.rng.below(1_000_000) >= self.model.slow_per_million {
            return Nanos(0);
        }
        exponential(mean, self.rng.next_u64())
    }
    /// Books `len` bytes of a read or a program on a channel from `from` on: when they have passed.
    fn pass(&mut self, program: bool, channel: usize, from: Nanos, len: u64) -> Nanos {
        let until = &mut self.channels[usize::from(program)][channel];
        *until = (*until).max(from) + transfer(len, self.model.channel_rate);
        *until
    }
    fn read(&mut self, begin: Nanos, offset: u64, len: u64) -> Nanos {
        let stripe = self.model.stripe();
        let mut ready = begin;
        let end = offset + len;
        for row in offset / stripe..end.div_ceil(stripe) {
            let at = (row % self.model.dies as u64) as usize;
            let bytes = end.min((row + 1) * stripe) - offset.max(row * stripe);
            let die = &mut self.dies[at];
            let mut start = begin.max(die.reads_until);
            if die.busy_until > start {
                let erasing = die.erase.0 <= start && start < die.erase.1;
                let suspend = if erasing { self.model.suspend_erase } else { self.model.suspend };
                start = start + (die.busy_until - start).min(suspend);
                die.busy_until = die.busy_until + self.model.read;
            }
            die.reads_until = start + self.model.read;
            let there = die.reads_until + transfer(bytes, self.model.channel_rate);
            // Booked at the beginning: a die that is late does not hold up those beside it.
            ready = ready.max(self.pass(false, at % self.model.channels, begin, bytes).max(there));
        }
        self.out_until = self.out_until.max(ready) + transfer(len, self.model.path(self.model.read_path));
        self.out_until
    }
    fn write(&mut self, begin: Nanos, offset: u64, len: u64) -> Nanos {
        self.in_until = self.in_until.max(begin) + transfer(len, self.model.path(self.model.write_path));
        let mut accepted = self.in_until;
        self.drain(accepted);
        while self.buffered_bytes > 0 && self.buffered_bytes + len > self.model.buffer {
            let Some(Reverse((at, _))) = self.buffered.peek().copied() else { break };
            accepted = accepted.max(at);
            self.drain(accepted);
        }
        // The buffer is first in, first out: later writes wait behind this one.
        self.in_until = accepted;
        let stripe = self.model.stripe();
        self.to_move += self.ftl.write(offset, len);
        while self.to_move >= stripe {
            self.to_move -= stripe;
            self.program(accepted, stripe, true);
        }
        let mut left = len;
        let mut programmed = accepted;
        while left > 0 {
            let part = left.min(stripe);
            left -= part;
            let until = self.program(accepted, part, false);
            programmed = programmed.max(until);
            self.buffered.push(Reverse((until, part)));
            self.buffered_bytes += part;
        }
        if self.model.buffer == 0 { programmed } else { accepted }
    }
    /// Has the next die program `part` bytes; if they are `moved`, they were read from flash. The
    /// time when it is done.
    fn program(&mut self, from: Nanos, part: u64, moved: bool) -> Nanos {
        let at = self.next_die;
        self.next_die = (at + 1) % self.model.dies;
        let there = self.pass(true, at % self.model.channels, from, if moved { 2 * part } else { part });
        let stripe = self.model.stripe();
        // Small writes share a page, hence the share of a program.
        let share = |time: Nanos| Nanos((u128::from(time.0) * u128::from(part) / u128::from(stripe)) as u64);
        let cost = share(self.model.program) + if moved { share(self.model.read) } else { Nanos(0) };
        let block = stripe * self.model.block_pages.max(1);
        let die = &mut self.dies[at];
        die.busy_until = die.busy_until.max(there) + cost;
        let done = die.busy_until;
        die.programmed += part;
        if die.programmed >= block {
            die.programmed -= block;
            die.busy_until = done + self.model.erase;
            die.erase = (done, die.busy_until);
        }
        done
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
