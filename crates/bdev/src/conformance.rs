//! Checks of the contract on [`BlockDev`], for any implementation.
//!
//! [`run`] writes all over the area it is given and asserts (panics) at the first breach, with the
//! name of the check. Two runs with the same options do the same, so a simulated world repeats a
//! failure. Checks that need a power cut are in the simulator's own tests; of a flush this suite
//! checks only that it ends and orders nothing away.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use base::{ErrorKind, Result};
use rt::Rt;
use rt::join::join_all;

use crate::{BlockDev, Buf, Bytes, Done, MAX_SEGMENTS, Op, discard, flush, read, readv, run as start, write, writev};

/// Operations that the suite may use, and its length.
#[derive(Clone, Debug)]
pub struct Opts {
    /// The bytes of the device that it may destroy, whole physical sectors, at least 8 MiB; the
    /// whole device by default (an empty range).
    pub area: Range<u64>,
    /// Seed of the choices made.
    pub seed: u64,
    /// Operations of the random part.
    pub random_ops: usize,
    /// Operations in flight in the random part.
    pub depth: usize,
}

impl Default for Opts {
    fn default() -> Opts {
        Opts { area: 0..0, seed: 1, random_ops: 400, depth: 16 }
    }
}

/// Runs every check on `dev`. Leaves the area with no defined content.
pub async fn run(rt: &Rt, dev: Rc<dyn BlockDev>, opts: Opts) {
    let area = if opts.area.is_empty() { 0..dev.size() } else { opts.area.clone() };
    let s =
        Suite { rt: rt.clone(), sector: dev.info().logical_sector as usize, dev, area, rng: Cell::new(opts.seed | 1) };
    s.describes_itself();
    s.refuses_nonsense().await;
    if !s.dev.info().writable {
        s.read_only().await;
        return;
    }
    s.completes_later_and_once().await;
    s.round_trips().await;
    s.gathers_and_scatters().await;
    s.most_segments().await;
    s.flushes().await;
    s.survives_lost_interest().await;
    s.writes_durably().await;
    s.discards().await;
    s.matches_a_model(opts.random_ops, opts.depth).await;
    s.refuses_nonsense().await;
}

struct Suite {
    rt: Rt,
    dev: Rc<dyn BlockDev>,
    sector: usize,
    area: Range<u64>,
    rng: Cell<u64>,
}

impl Suite {
    fn dev(&self) -> &dyn BlockDev {
        &*self.dev
    }

    /// xorshift64*: a fixed sequence per seed.
    fn rand(&self, below: u64) -> u64 {
        let mut x = self.rng.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.rng.set(x);
        (x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % below
    }

    fn pattern(&self, len: usize) -> Vec<u8> {
        let mut v = Vec::with_capacity(len + 8);
        while v.len() < len {
            v.extend_from_slice(&self.rand(u64::MAX).to_le_bytes());
        }
        v.truncate(len);
        v
    }

    fn describes_itself(&self) {
        let i = self.dev.info();
        assert!(
            i.logical_sector.is_power_of_two() && (512..=65536).contains(&i.logical_sector),
            "logical sector: {i:?}"
        );
        assert!(i.physical_sector.is_power_of_two() && i.physical_sector >= i.logical_sector, "physical sector: {i:?}");
        assert_eq!(i.size_bytes % i.logical_sector as u64, 0, "size in sectors: {i:?}");
        assert!(!i.path.is_empty(), "a name");
        assert_eq!(
            self.dev.refresh_size().expect("the size can be asked for"),
            self.dev.size(),
            "nothing has resized it"
        );
        assert!(self.area.end <= self.dev.size() && self.area.end - self.area.start >= 8 << 20, "the area is usable");
    }

    async fn expect_kind(&self, what: &str, op: Op, kind: ErrorKind) {
        let e = start(self.dev(), op).await.expect_err(what);
        assert_eq!(e.kind(), kind, "{what}: {e}");
        assert!(e.to_string().contains(&self.dev.info().path), "{what}: the message names the device: {e}");
    }

    async fn refuses_nonsense(&self) {
        let (s, end) = (self.sector, self.dev.size());
        let rd =
            |offset: u64, lens: &[usize]| Op::Read { offset, bufs: lens.iter().map(|&l| Buf::zeroed(l)).collect() };
        let wr = |offset: u64, lens: &[usize]| Op::Write {
            offset,
            bufs: lens.iter().map(|&l| Bytes::zeroed(l)).collect(),
            durable: false,
        };
        let edge = end - s as u64;
        let before = read(self.dev(), edge, s).await.expect("the last sector reads");
        for (what, offset, lens) in [
            ("past the end", end, vec![s]),
            ("across the end", edge, vec![s, s]),
            ("offset overflow", u64::MAX - (s as u64 - 1), vec![s]),
            ("odd offset", 1, vec![s]),
            ("odd length", 0, vec![s - 1]),
            ("no segments", 0, vec![]),
            ("an empty segment", 0, vec![s, 0]),
            ("too many segments", 0, vec![s; MAX_SEGMENTS + 1]),
        ] {
            self.expect_kind(what, rd(offset, &lens), ErrorKind::Invalid).await;
            let kind = if self.dev.info().writable { ErrorKind::Invalid } else { ErrorKind::ReadOnly };
            self.expect_kind(what, wr(offset, &lens), kind).await;
        }
        let after = read(self.dev(), edge, s).await.expect("the last sector still reads");
        assert_eq!(before, after, "a refused write touches nothing");
    }

    async fn read_only(&self) {
        let (at, s) = (self.area.start, self.sector);
        let before = read(self.dev(), at, s).await.expect("reads work");
        self.expect_kind(
            "write",
            Op::Write { offset: at, bufs: vec![Bytes::zeroed(s)], durable: false },
            ErrorKind::ReadOnly,
        )
        .await;
        self.expect_kind("discard", Op::Discard { offset: at, len: s as u64 }, ErrorKind::ReadOnly).await;
        flush(self.dev()).await.expect("a flush has nothing to do");
        assert_eq!(before, read(self.dev(), at, s).await.expect("reads work"));
    }

    async fn completes_later_and_once(&self) {
        let ops = [
            Op::Write { offset: self.area.start, bufs: vec![Bytes::zeroed(self.sector)], durable: false },
            Op::Read { offset: self.area.start, bufs: vec![Buf::zeroed(self.sector)] },
            Op::Flush,
            // An operation that is refused completes later, too.
            Op::Read { offset: 1, bufs: vec![Buf::zeroed(self.sector)] },
        ];
        let borrowed = Rc::new(RefCell::new(0u32));
        for op in ops {
            let (tx, rx) = rt::sync::oneshot::<Result<Done>>();
            let before = *borrowed.borrow();
            {
                let _held = borrowed.borrow_mut();
                let theirs = borrowed.clone();
                self.dev.submit(
                    op,
                    Box::new(move |r| {
                        *theirs.try_borrow_mut().expect("a completion never runs inside submit") += 1;
                        let _ = tx.send(r);
                    }),
                );
            }
            let _ = rx.await.expect("a completion is called, not dropped");
            assert_eq!(*borrowed.borrow(), before + 1, "once");
        }
    }

    async fn round_trips(&self) {
        let s = self.sector;
        for len in [s, 4096.max(s), 8192.max(s), 128 << 10, (1 << 20) + s] {
            for at in [self.area.start, self.area.start + 3 * s as u64, self.area.end - len as u64] {
                let data = Bytes::from(self.pattern(len));
                write(self.dev(), at, data.clone()).await.expect("write");
                let got = read(self.dev(), at, len).await.expect("read");
                assert!(got[..] == data[..], "round trip of {len} bytes at {at}");
            }
        }
    }

    /// Splits `len` bytes into segments of odd and even lengths, `n` at most.
    fn split(&self, len: usize, n: usize) -> Vec<usize> {
        let mut cuts: Vec<usize> = (1..n).map(|_| 1 + self.rand(len as u64 - 1) as usize).collect();
        cuts.extend([0, len]);
        cuts.sort_unstable();
        cuts.dedup();
        cuts.windows(2).map(|w| w[1] - w[0]).collect()
    }

    /// The same bytes as segments whose memory starts anywhere: in vectors, buffers and slices of
    /// either.
    fn scattered(&self, data: &[u8], lens: &[usize]) -> Vec<Bytes> {
        let mut rest = data;
        let mut segments = Vec::new();
        for &len in lens {
            let (part, tail) = rest.split_at(len);
            rest = tail;
            segments.push(match self.rand(4) {
                0 => Bytes::copy_from(part),
                1 => Bytes::from(part.to_vec()),
                2 => Bytes::copy_from(&[&[0xee; 7], part, &[0xee; 5]].concat()).slice(7..7 + len),
                _ => Bytes::from([&[0xee; 512], part].concat()).slice(512..),
            });
        }
        segments
    }

    async fn gathers_and_scatters(&self) {
        let s = self.sector;
        for round in 0..24usize {
            let len = s * (1 + self.rand(300) as usize);
            let at = self.area.start + s as u64 * self.rand(64);
            let data = self.pattern(len);
            // Whole sectors first, odd lengths later: both sides of a device's copy or not.
            let lens = if round % 2 == 0 {
                let sectors = self.split((len / s).max(2), 9);
                let mut lens: Vec<usize> = sectors.iter().map(|n| n * s).collect();
                if len == s {
                    lens = vec![s];
                }
                lens
            } else {
                self.split(len, 9)
            };
            writev(self.dev(), at, self.scattered(&data, &lens)).await.expect("gathered write");
            let lens = if round % 3 == 0 { lens } else { self.split(len, 7) };
            let bufs: Vec<Buf> = lens.iter().map(|&l| Buf::for_overwrite(l)).collect();
            let places: Vec<usize> = bufs.iter().map(|b| b.as_ptr() as usize).collect();
            let got = readv(self.dev(), at, bufs).await.expect("scattered read");
            assert_eq!(
                places,
                got.iter().map(|b| b.as_ptr() as usize).collect::<Vec<_>>(),
                "the same memory, in order"
            );
            assert_eq!(lens, got.iter().map(|b| b.len()).collect::<Vec<_>>(), "of the same lengths");
            let flat: Vec<u8> = got.iter().flat_map(|b| b.iter().copied()).collect();
            assert!(flat == data, "round {round}: {len} bytes at {at} in {lens:?}");
        }
    }

    async fn most_segments(&self) {
        let s = self.sector;
        let data = self.pattern(s * MAX_SEGMENTS);
        let segments: Vec<Bytes> = data.chunks(s).map(Bytes::copy_from).collect();
        writev(self.dev(), self.area.start, segments).await.expect("a write of the most segments");
        let bufs = (0..MAX_SEGMENTS).map(|_| Buf::for_overwrite(s)).collect();
        let got = readv(self.dev(), self.area.start, bufs).await.expect("a read of the most segments");
        assert!(got.iter().flat_map(|b| b.iter()).eq(data.iter()), "every segment in its place");
    }

    async fn flushes(&self) {
        flush(self.dev()).await.expect("a flush of nothing");
        let s = self.sector;
        let data = Bytes::from(self.pattern(64 << 10));
        // Writes and flushes in flight together: all end, every write is seen.
        let mut ops = Vec::new();
        for i in 0..32u64 {
            let at = self.area.start + i * (64 << 10);
            ops.push(start(self.dev(), Op::Write { offset: at, bufs: vec![data.clone()], durable: false }));
            if i % 5 == 0 {
                ops.push(start(self.dev(), Op::Flush));
            }
        }
        for r in join_all(ops).await {
            r.expect("writes and flushes beside each other");
        }
        for i in 0..32u64 {
            let got = read(self.dev(), self.area.start + i * (64 << 10), s).await.expect("read");
            assert!(got[..] == data[..s], "write {i} beside flushes");
        }
    }

    async fn survives_lost_interest(&self) {
        let (s, len) = (self.sector, 64 << 10);
        // Aligned: of other memory a device may take a copy, and gives it back before the write is
        // through.
        let data = Buf::copy_from(&self.pattern(len)).freeze();
        write(self.dev(), self.area.start, data.clone()).await.expect("write");
        for i in 0..64u64 {
            let at = self.area.start + (1 << 20) + i * len as u64;
            drop(start(self.dev(), Op::Read { offset: self.area.start, bufs: vec![Buf::for_overwrite(len)] }));
            drop(start(self.dev(), Op::Write { offset: at, bufs: vec![data.clone()], durable: false }));
            // Memory that the dropped operations still use must not be handed out again.
            let mut other = Buf::for_overwrite(len);
            other.fill(0x55);
            self.rt.yield_now().await;
            assert!(other.iter().all(|&b| b == 0x55), "a device wrote into memory that it does not own");
        }
        // The dropped writes have no waiter; a range that they do not touch is not disturbed.
        let got = read(self.dev(), self.area.start, s).await.expect("read");
        assert!(got[..] == data[..s]);
        // Their handles on the data go away once they are through.
        while !data.is_unique() {
            flush(self.dev()).await.expect("flush");
            self.rt.yield_now().await;
        }
        for i in 0..64u64 {
            let got = read(self.dev(), self.area.start + (1 << 20) + i * len as u64, len).await.expect("read");
            assert!(got[..] == data[..], "a write without a waiter happens all the same");
        }
    }

    async fn writes_durably(&self) {
        let at = self.area.start;
        let op = |data: &Bytes| Op::Write { offset: at, bufs: vec![data.clone()], durable: true };
        let data = Bytes::from(self.pattern(9 * self.sector));
        if !self.dev.info().writes_durably {
            self.expect_kind("durable write", op(&data), ErrorKind::Unsupported).await;
            return;
        }
        write(self.dev(), at, Bytes::zeroed(4 * self.sector)).await.expect("a write before it");
        start(self.dev(), op(&data)).await.expect("a durable write");
        let got = read(self.dev(), at, data.len()).await.expect("read");
        assert!(got[..] == data[..], "a durable write is a write");
        write(self.dev(), at, data.slice(self.sector..2 * self.sector)).await.expect("a write after it");
        flush(self.dev()).await.expect("flush");
        let got = read(self.dev(), at, data.len()).await.expect("read");
        assert!(got[..self.sector] == data[self.sector..2 * self.sector] && got[self.sector..] == data[self.sector..]);
    }

    async fn discards(&self) {
        let phys = self.dev.info().physical_sector as u64;
        let at = self.area.start.next_multiple_of(phys);
        if !self.dev.info().supports_discard {
            self.expect_kind("discard", Op::Discard { offset: at, len: phys }, ErrorKind::Unsupported).await;
            return;
        }
        self.expect_kind("empty discard", Op::Discard { offset: at, len: 0 }, ErrorKind::Invalid).await;
        self.expect_kind(
            "discard past the end",
            Op::Discard { offset: self.dev.size(), len: phys },
            ErrorKind::Invalid,
        )
        .await;
        let unit = phys.max(4096) as usize;
        let data = Bytes::from(self.pattern(32 * unit));
        write(self.dev(), at, data.clone()).await.expect("write");
        discard(self.dev(), at + 8 * unit as u64, 16 * unit as u64).await.expect("discard");
        let got = read(self.dev(), at, 32 * unit).await.expect("discarded bytes read as something");
        assert!(got[..8 * unit] == data[..8 * unit] && got[24 * unit..] == data[24 * unit..], "neighbours stay");
        write(self.dev(), at + 10 * unit as u64, data.slice(..unit)).await.expect("write again");
        let got = read(self.dev(), at + 10 * unit as u64, unit).await.expect("read");
        assert!(got[..] == data[..unit], "discarded space is as good as new");
    }

    /// Random writes, reads and flushes, `depth` in flight on ranges that do not meet, against a
    /// copy in memory.
    async fn matches_a_model(&self, ops: usize, depth: usize) {
        let s = self.sector;
        let lane = ((4usize << 20) / depth.max(1)) / s * s;
        assert!(lane >= 8 * s, "depth leaves each lane some sectors");
        let lanes = (0..depth).map(|i| {
            let base = self.area.start + (i * lane) as u64;
            async move {
                let mut model = vec![0u8; lane];
                write(self.dev(), base, Bytes::zeroed(lane)).await.expect("write zeros");
                for op in 0..ops / depth.max(1) {
                    let from = s * self.rand((lane / s) as u64) as usize;
                    let most = (lane - from).min(160 << 10) / s;
                    let len = s * (1 + self.rand(most as u64) as usize);
                    let at = base + from as u64;
                    match self.rand(9) {
                        0..4 => {
                            let data = self.pattern(len);
                            let lens = if self.rand(3) == 0 { self.split(len.max(2), 4) } else { vec![len] };
                            model[from..from + len].copy_from_slice(&data);
                            writev(self.dev(), at, self.scattered(&data, &lens)).await.expect("write");
                        }
                        4..8 => {
                            let got = read(self.dev(), at, len).await.expect("read");
                            assert!(
                                got[..] == model[from..from + len],
                                "lane {i}, operation {op}: {len} bytes at {at}"
                            );
                        }
                        _ => flush(self.dev()).await.expect("flush"),
                    }
                }
                let got = read(self.dev(), base, lane).await.expect("read all");
                assert!(got[..] == model[..], "lane {i} as a whole");
            }
        });
        join_all(lanes.collect()).await;
    }
}
