//! A device that keeps writes in memory until a flush: a model of a volatile write cache that
//! exposes missing flushes.
//!
//! **Purpose.** A program that is killed loses nothing on a plain file, because the page cache
//! keeps its writes. Behind this device it loses everything since the last flush, as a power cut
//! would take it from a disk. Tests that kill the program find missing flushes with it.
//!
//! **The normal path.** A write is copied, sector by sector, and completes. A flush takes all
//! sectors held at that moment, writes them in order of offset, flushes the device below, and
//! completes. A durable write is kept too, and taken below by itself before it completes. A read
//! reads the device below and overlays the held sectors.
//!
//! **Invariants.** A sector is given up only once the device below has written it, so a read finds
//! the newest bytes at any moment. One flush at a time: two that write the same sector would have
//! no order. Sectors of a failed flush stay held, and the next flush tries again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use base::Result;
use rt::sync::Mutex;
use rt::{Rank, Rt};

use crate::{BlockDev, Buf, Bytes, Completion, DevInfo, Done, MAX_SEGMENTS, Op, flush, readv, run, writev};

/// Bytes of one write to the device below at most.
const RUN_BYTES_MAX: usize = 1 << 20;

/// A device behind a volatile cache that only a flush empties. It does not discard.
pub struct HeldDev {
    rt: Rt,
    info: DevInfo,
    shared: Rc<Shared>,
}

struct Shared {
    below: Rc<dyn BlockDev>,
    sector: u64,
    /// Sectors not written below yet, by offset.
    held: RefCell<BTreeMap<u64, Bytes>>,
    /// Held while a flush is under way.
    flushing: Mutex<()>,
}

impl HeldDev {
    /// `below` with such a cache in front.
    pub fn new(rt: &Rt, below: Rc<dyn BlockDev>) -> HeldDev {
        let info = DevInfo { supports_discard: false, ..below.info().clone() };
        let sector = u64::from(info.logical_sector);
        let shared =
            Shared { below, sector, held: RefCell::default(), flushing: Mutex::new(Rank(u16::MAX, "held device"), ()) };
        HeldDev { rt: rt.clone(), info, shared: Rc::new(shared) }
    }
}

impl Shared {
    /// Keeps a write: the memory that holds all of it.
    fn keep(&self, offset: u64, bufs: &[Bytes]) -> Bytes {
        let mut all = Vec::with_capacity(bufs.iter().map(|b| b.len()).sum());
        bufs.iter().for_each(|b| all.extend_from_slice(b));
        // One copy for all its sectors: they share the memory.
        let all = Bytes::copy_from(&all);
        let sector = self.sector as usize;
        let mut held = self.held.borrow_mut();
        for (n, at) in (0..all.len()).step_by(sector).enumerate() {
            held.insert(offset + n as u64 * self.sector, all.slice(at..at + sector));
        }
        drop(held);
        all
    }
    /// `bytes` of the sector at `at` are below; newer ones stay.
    fn release(&self, at: u64, bytes: &Bytes) {
        let mut held = self.held.borrow_mut();
        if held.get(&at).is_some_and(|now| now.memory_id() == bytes.memory_id()) {
            held.remove(&at);
        }
    }

    async fn read(&self, offset: u64, bufs: Vec<Buf>) -> Result<Vec<Buf>> {
        let len: u64 = bufs.iter().map(|b| b.len() as u64).sum();
        // A snapshot before the read: sectors that a flush writes below meanwhile come from here.
        let over: Vec<(u64, Bytes)> =
            self.held.borrow().range(offset..offset + len).map(|(&at, b)| (at, b.clone())).collect();
        let mut bufs = readv(&*self.below, offset, bufs).await?;
        for (at, bytes) in over {
            lay_over(&mut bufs, (at - offset) as usize, &bytes);
        }
        Ok(bufs)
    }

    /// Takes one write below, and makes it durable.
    async fn write_durably(&self, offset: u64, bufs: Vec<Bytes>) -> Result<()> {
        let all = self.keep(offset, &bufs);
        // After a flush that took older bytes of the same place.
        let _one = self.flushing.lock().await;
        run(&*self.below, Op::Write { offset, bufs, durable: true }).await?;
        for at in (0..all.len() as u64).step_by(self.sector as usize) {
            self.release(offset + at, &all);
        }
        Ok(())
    }

    async fn flush(&self) -> Result<()> {
        // Before anything waits: writes that complete later are not this flush's.
        let taken = self.held.borrow().clone();
        let _one = self.flushing.lock().await;
        for (offset, run) in runs(&taken, self.sector) {
            writev(&*self.below, offset, run).await?;
        }
        flush(&*self.below).await?;
        taken.iter().for_each(|(&at, bytes)| self.release(at, bytes));
        Ok(())
    }
}

/// Copies `bytes` into a list of buffers at `at`.
fn lay_over(bufs: &mut [Buf], at: usize, bytes: &[u8]) {
    let (mut start, mut done) = (0, 0);
    for b in bufs {
        let end = start + b.len();
        while done < bytes.len() && at + done >= start && at + done < end {
            let within = at + done - start;
            let n = (bytes.len() - done).min(b.len() - within);
            b[within..within + n].copy_from_slice(&bytes[done..done + n]);
            done += n;
        }
        start = end;
    }
}

/// The held sectors as writes: neighbours together, as many as one operation carries.
fn runs(held: &BTreeMap<u64, Bytes>, sector: u64) -> Vec<(u64, Vec<Bytes>)> {
    let most = MAX_SEGMENTS.min(RUN_BYTES_MAX / sector as usize).max(1);
    let mut out: Vec<(u64, Vec<Bytes>)> = Vec::new();
    for (&at, bytes) in held {
        match out.last_mut() {
            Some((offset, run)) if run.len() < most && *offset + run.len() as u64 * sector == at => {
                run.push(bytes.clone());
            }
            _ => out.push((at, vec![bytes.clone()])),
        }
    }
    out
}

impl BlockDev for HeldDev {
    fn info(&self) -> &DevInfo {
        &self.info
    }

    fn submit(&self, op: Op, done: Completion) {
        let valid = op.check(&self.info, self.size());
        let shared = self.shared.clone();
        let work = async move {
            valid?;
            let bufs = match op {
                Op::Read { offset, bufs } => shared.read(offset, bufs).await?,
                Op::Write { offset, bufs, durable: true } => {
                    shared.write_durably(offset, bufs).await?;
                    Vec::new()
                }
                Op::Write { offset, bufs, durable: false } => {
                    shared.keep(offset, &bufs);
                    Vec::new()
                }
                Op::Flush => {
                    shared.flush().await?;
                    Vec::new()
                }
                Op::Discard { .. } => unreachable!("refused by the check"),
            };
            Ok(Done { bufs })
        };
        self.rt.world().spawn("held device", Box::pin(async move { done(work.await) }));
    }

    fn size(&self) -> u64 {
        self.shared.below.size()
    }

    fn refresh_size(&self) -> Result<u64> {
        self.shared.below.refresh_size()
    }
}
