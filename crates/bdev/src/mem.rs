//! A device in memory: for tests, tools and pools that need not last.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use base::Result;
use rt::Rt;

use crate::{BlockDev, Buf, Bytes, Completion, DevInfo, Done, Op};

/// Granule of the backing memory, in bytes.
const CHUNK: usize = 64 << 10;

/// A writable device of fixed sectors whose bytes live in memory, allocated as they are written;
/// the rest reads as zero.
///
/// Every operation takes effect and completes in a later turn of the world. A completed write is as
/// durable as the device itself: there is no volatile cache to lose (the models of `sim` have one).
pub struct MemDev {
    rt: Rt,
    info: DevInfo,
    state: Rc<State>,
}

struct State {
    size: Cell<u64>,
    chunks: RefCell<BTreeMap<u64, Buf>>,
}

impl MemDev {
    /// An empty device of `size` bytes (rounded down to sectors of 512), called `mem`.
    pub fn new(rt: &Rt, size: u64) -> MemDev {
        MemDev::with_info(
            rt,
            DevInfo {
                path: "mem".into(),
                size_bytes: size & !511,
                logical_sector: 512,
                physical_sector: 4096,
                rotational: false,
                writable: true,
                supports_discard: true,
                writes_durably: true,
            },
        )
    }

    /// An empty device that describes itself as `info` does; its size is a multiple of its logical
    /// sector.
    pub fn with_info(rt: &Rt, info: DevInfo) -> MemDev {
        assert!(info.logical_sector.is_power_of_two() && info.size_bytes.is_multiple_of(info.logical_sector as u64));
        let state = State { size: Cell::new(info.size_bytes), chunks: RefCell::default() };
        MemDev { rt: rt.clone(), info, state: Rc::new(state) }
    }

    /// A device with the content of `image` (its last partial sector, if any, is filled up with
    /// zeros).
    pub fn from_image(rt: &Rt, image: &[u8]) -> MemDev {
        let dev = MemDev::new(rt, (image.len() as u64).next_multiple_of(512));
        dev.poke(0, image);
        dev
    }

    /// Copies the bytes at `offset` out, at once and whatever is in flight. Bytes beyond the end
    /// read as zero.
    pub fn peek(&self, offset: u64, out: &mut [u8]) {
        self.state.read(offset, out);
    }

    /// Changes the bytes at `offset`, at once: damage for tests, or content to start with.
    pub fn poke(&self, offset: u64, data: &[u8]) {
        self.state.write(offset, data);
    }

    /// Grows the device; [`BlockDev::size`] is larger at once. A device never shrinks.
    pub fn grow(&self, size: u64) {
        assert!(size >= self.state.size.get() && size.is_multiple_of(self.info.logical_sector as u64));
        self.state.size.set(size);
    }

    /// Bytes of memory that written parts take.
    pub fn footprint(&self) -> u64 {
        self.state.chunks.borrow().len() as u64 * CHUNK as u64
    }
}

/// Calls `f(chunk number, range within the chunk, range within the whole)` for each piece of
/// `offset..offset + len`.
fn pieces(offset: u64, len: u64, mut f: impl FnMut(u64, std::ops::Range<usize>, std::ops::Range<usize>)) {
    let mut done = 0u64;
    while done < len {
        let at = offset + done;
        let within = (at % CHUNK as u64) as usize;
        let n = (CHUNK - within).min(usize::try_from(len - done).unwrap_or(CHUNK));
        f(at / CHUNK as u64, within..within + n, done as usize..done as usize + n);
        done += n as u64;
    }
}

impl State {
    fn read(&self, offset: u64, out: &mut [u8]) {
        let chunks = self.chunks.borrow();
        pieces(offset, out.len() as u64, |chunk, from, to| match chunks.get(&chunk) {
            Some(c) => out[to].copy_from_slice(&c[from]),
            None => out[to].fill(0),
        });
    }

    fn write(&self, offset: u64, data: &[u8]) {
        let mut chunks = self.chunks.borrow_mut();
        pieces(offset, data.len() as u64, |chunk, to, from| {
            chunks.entry(chunk).or_insert_with(|| Buf::zeroed(CHUNK))[to].copy_from_slice(&data[from]);
        });
    }

    fn discard(&self, offset: u64, len: u64) {
        let mut chunks = self.chunks.borrow_mut();
        let (first, last) = (offset / CHUNK as u64, (offset + len - 1) / CHUNK as u64);
        let gone: Vec<u64> = chunks.range(first..=last).map(|(&c, _)| c).collect();
        for chunk in gone {
            let start = chunk * CHUNK as u64;
            let from = offset.saturating_sub(start) as usize;
            let to = (offset + len - start).min(CHUNK as u64) as usize;
            if from == 0 && to == CHUNK {
                chunks.remove(&chunk);
            } else if let Some(c) = chunks.get_mut(&chunk) {
                c[from..to].fill(0);
            }
        }
    }

    fn perform(&self, op: Op) -> Done {
        match op {
            Op::Read { mut offset, mut bufs } => {
                for b in &mut bufs {
                    self.read(offset, b);
                    offset += b.len() as u64;
                }
                return Done { bufs };
            }
            Op::Write { mut offset, bufs, .. } => {
                for b in bufs {
                    let b: Bytes = b;
                    self.write(offset, &b);
                    offset += b.len() as u64;
                }
            }
            Op::Flush => {}
            Op::Discard { offset, len } => self.discard(offset, len),
        }
        Done::default()
    }
}

impl BlockDev for MemDev {
    fn info(&self) -> &DevInfo {
        &self.info
    }

    fn submit(&self, op: Op, done: Completion) {
        let valid = op.check(&self.info, self.size());
        let state = self.state.clone();
        self.rt.world().spawn("memory device", Box::pin(async move { done(valid.map(|()| state.perform(op))) }));
    }

    fn size(&self) -> u64 {
        self.state.size.get()
    }

    fn refresh_size(&self) -> Result<u64> {
        Ok(self.size())
    }
}
