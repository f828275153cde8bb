//! [`DiskImage`]: the bytes of a disk, sparse and shared.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Bytes that are shared and copied together.
const CHUNK: usize = 16 << 10;
/// Bytes of a chunk that take no memory if they are zeros: a block of the intent log is a header
/// for each record, and a small block of a test a few bytes, between data that are left zero.
const PIECE: usize = 64;
/// Pieces of a chunk.
const PIECES: usize = CHUNK / PIECE;
/// Bits of one word of a [`Packed`].
const WORD: usize = u64::BITS as usize;

static ZEROS: [u8; CHUNK] = [0; CHUNK];

/// A part of a disk without its pieces of zeros.
#[derive(Clone)]
struct Packed {
    /// A bit for each piece that is there.
    there: [u64; PIECES / WORD],
    /// Those pieces, in order.
    bytes: Vec<u8>,
}

type Chunk = Arc<Packed>;

impl Packed {
    /// Without pieces of zeros; none if there is nothing else.
    fn pack(plain: &[u8; CHUNK]) -> Option<Packed> {
        let mut there = [0; PIECES / WORD];
        for (n, piece) in plain.chunks_exact(PIECE).enumerate() {
            there[n / WORD] |= u64::from(!is_zero(piece)) << (n % WORD);
        }
        let mut packed = Packed { there, bytes: Vec::new() };
        packed.bytes.reserve_exact(packed.place(PIECES));
        // Runs of pieces are copied at once.
        let mut n = 0;
        while n < PIECES {
            let (is_there, end) = packed.run(n, PIECES);
            if is_there {
                packed.bytes.extend_from_slice(&plain[n * PIECE..end * PIECE]);
            }
            n = end;
        }
        (!packed.bytes.is_empty()).then_some(packed)
    }
    /// Where piece `n` is in `bytes`, or would be.
    fn place(&self, n: usize) -> usize {
        let whole = self.there[..n / WORD].iter().map(|word| word.count_ones()).sum::<u32>();
        let part = self.there.get(n / WORD).map_or(0, |word| (word & ((1 << (n % WORD)) - 1)).count_ones());
        (whole + part) as usize * PIECE
    }
    /// Whether piece `n` is there, and the first piece from it on, up to `end`, of which the
    /// opposite is true.
    fn run(&self, n: usize, end: usize) -> (bool, usize) {
        let is_there = self.there[n / WORD] >> (n % WORD) & 1 == 1;
        let mut at = n;
        while at < end {
            let word = self.there[at / WORD];
            let others = if is_there { !word } else { word };
            let same = (others >> (at % WORD)).trailing_zeros() as usize;
            let left = WORD - at % WORD;
            at += same.min(left);
            if same < left {
                break;
            }
        }
        (is_there, at.min(end))
    }
    /// Fills `out` from `within` on.
    fn read(&self, within: usize, out: &mut [u8]) {
        let end = within + out.len();
        let mut at = within;
        while at < end {
            let (is_there, next) = self.run(at / PIECE, end.div_ceil(PIECE));
            let stop = (next * PIECE).min(end);
            let out = &mut out[at - within..stop - within];
            match is_there {
                true => {
                    let from = self.place(at / PIECE) + at % PIECE;
                    out.copy_from_slice(&self.bytes[from..from + out.len()]);
                }
                false => out.fill(0),
            }
            at = stop;
        }
    }
    fn plain(&self) -> [u8; CHUNK] {
        let mut plain = [0; CHUNK];
        self.read(0, &mut plain);
        plain
    }
    /// Whether every piece that the range touches is there, and those stand one after the other.
    fn holds(&self, within: usize, len: usize) -> bool {
        let end = (within + len).div_ceil(PIECE);
        self.run(within / PIECE, end) == (true, end)
    }
}

/// The contents of a disk. Parts never written are zeros and take no memory; a clone shares all
/// memory until one of the two is changed.
#[derive(Clone, Default)]
pub struct DiskImage {
    size: u64,
    chunks: BTreeMap<u64, Chunk>,
}

impl std::fmt::Debug for DiskImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DiskImage({} bytes, {} in memory)", self.size, self.footprint())
    }
}

/// (chunk number, offset within it, length) of each part of `len` bytes at `offset`.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let mut done = 0usize;
    std::iter::from_fn(move || {
        if done >= len {
            return None;
        }
        let at = offset + done as u64;
        let within = (at % CHUNK as u64) as usize;
        let part = (CHUNK - within).min(len - done);
        done += part;
        Some((at / CHUNK as u64, within, part))
    })
}

fn is_zero(bytes: &[u8]) -> bool {
    // By comparison of memory: a loop over bytes crawls without optimisation.
    bytes == &ZEROS[..bytes.len()]
}

impl DiskImage {
    /// A disk of `size` zero bytes.
    pub fn zeroed(size: u64) -> DiskImage {
        DiskImage { size, chunks: BTreeMap::new() }
    }
    /// Bytes of the disk.
    pub fn size(&self) -> u64 {
        self.size
    }
    /// Makes the disk larger (with zeros) or smaller.
    pub fn resize(&mut self, size: u64) {
        if size < self.size {
            let tail = self.size - size;
            self.zero(size, tail);
            self.chunks.split_off(&size.div_ceil(CHUNK as u64));
        }
        self.size = size;
    }
    /// Bytes of memory for written parts, shared ones included.
    pub fn footprint(&self) -> u64 {
        self.chunks.values().map(|chunk| chunk.bytes.len() as u64).sum()
    }
    /// Fills `out` from `offset` on.
    ///
    /// # Panics
    /// Beyond the end of the disk, as all accesses here.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        self.check(offset, out.len() as u64);
        let mut done = 0;
        for (number, within, part) in parts(offset, out.len()) {
            let out = &mut out[done..done + part];
            match self.chunks.get(&number) {
                Some(chunk) => chunk.read(within, out),
                None => out.fill(0),
            }
            done += part;
        }
    }
    /// `len` bytes at `offset`.
    pub fn read_vec(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        self.read(offset, &mut out);
        out
    }
    /// Stores `data` at `offset`.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        self.check(offset, data.len() as u64);
        let mut done = 0;
        for (number, within, part) in parts(offset, data.len()) {
            let data = &data[done..done + part];
            done += part;
            self.put(number, within, data);
        }
    }
    /// Stores `data` within a chunk.
    fn put(&mut self, number: u64, within: usize, data: &[u8]) {
        let Some(chunk) = self.chunks.get_mut(&number) else {
            if !is_zero(data) {
                let mut plain = [0; CHUNK];
                plain[within..within + data.len()].copy_from_slice(data);
                self.chunks.extend(Packed::pack(&plain).map(|packed| (number, Arc::new(packed))));
            }
            return;
        };
        if chunk.holds(within, data.len()) && !is_zero(data) {
            let chunk = Arc::make_mut(chunk);
            let at = chunk.place(within / PIECE) + within % PIECE;
            chunk.bytes[at..at + data.len()].copy_from_slice(data);
            return;
        }
        let mut plain = chunk.plain();
        plain[within..within + data.len()].copy_from_slice(data);
        match Packed::pack(&plain) {
            Some(packed) => *chunk = Arc::new(packed),
            None => drop(self.chunks.remove(&number)),
        }
    }
    /// Makes `len` bytes at `offset` zero.
    pub fn zero(&mut self, offset: u64, len: u64) {
        self.check(offset, len);
        let end = offset + len;
        let first_whole = offset.div_ceil(CHUNK as u64);
        let last_whole = end / CHUNK as u64;
        if first_whole < last_whole {
            let mut tail = self.chunks.split_off(&first_whole);
            self.chunks.append(&mut tail.split_off(&last_whole));
            self.zero_within(offset, first_whole * CHUNK as u64 - offset);
            self.zero_within(last_whole * CHUNK as u64, end - last_whole * CHUNK as u64);
        } else {
            self.zero_within(offset, len);
        }
    }
    fn zero_within(&mut self, offset: u64, len: u64) {
        for (number, within, part) in parts(offset, len as usize) {
            if self.chunks.contains_key(&number) {
                self.put(number, within, &ZEROS[..part]);
            }
        }
    }
    /// Inverts every bit of `len` bytes at `offset`: damage that no checksum misses.
    pub fn corrupt(&mut self, offset: u64, len: u64) {
        let mut bytes = self.read_vec(offset, len as usize);
        bytes.iter_mut().for_each(|b| *b = !*b);
        self.write(offset, &bytes);
    }
    /// Calls `each` with offset and bytes of every part in memory, in order; the rest is zeros.
    pub fn for_each_part(&self, mut each: impl FnMut(u64, &[u8]) -> io::Result<()>) -> io::Result<()> {
        for (number, chunk) in &self.chunks {
            let offset = number * CHUNK as u64;
            let len = (self.size - offset).min(CHUNK as u64) as usize;
            let plain = chunk.plain();
            if !is_zero(&plain[..len]) {
                each(offset, &plain[..len])?;
            }
        }
        Ok(())
    }
    /// Writes the disk as a sparse file, replacing an old file.
    pub fn save(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let mut file = File::create(path)?;
        file.set_len(self.size)?;
        self.for_each_part(|offset, bytes| {
            file.seek(SeekFrom::Start(offset))?;
            file.write_all(bytes)
        })
    }
    /// The disk whose bytes are those of a file.
    pub fn load(path: impl AsRef<Path>) -> io::Result<DiskImage> {
        let mut file = File::open(path)?;
        let size = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(0))?;
        let mut image = DiskImage::zeroed(size);
        let mut buf = vec![0; 1 << 20];
        let mut offset = 0;
        while offset < size {
            let len = (size - offset).min(buf.len() as u64) as usize;
            file.read_exact(&mut buf[..len])?;
            image.write(offset, &buf[..len]);
            offset += len as u64;
        }
        Ok(image)
    }
    /// The first byte in which two disks of one size differ.
    pub fn first_difference(&self, other: &DiskImage) -> Option<u64> {
        assert_eq!(self.size, other.size, "disks of different sizes are not compared");
        let numbers: BTreeSet<u64> = self.chunks.keys().chain(other.chunks.keys()).copied().collect();
        let plain = |chunk: Option<&Chunk>| chunk.map_or(ZEROS, |chunk| chunk.plain());
        for number in numbers {
            let (a, b) = (self.chunks.get(&number), other.chunks.get(&number));
            if matches!((a, b), (Some(a), Some(b)) if Arc::ptr_eq(a, b)) {
                continue;
            }
            if let Some(at) = plain(a).iter().zip(&plain(b)).position(|(a, b)| a != b) {
                return Some(number * CHUNK as u64 + at as u64);
            }
        }
        None
    }
    /// Whether two disks hold the same `len` bytes at `offset`; no further than the first that
    /// differs, and without a look at memory that they share.
    pub fn same_at(&self, other: &DiskImage, offset: u64, len: u64) -> bool {
        self.check(offset, len);
        other.check(offset, len);
        parts(offset, len as usize).all(|(number, within, part)| {
            let range = within..within + part;
            match (self.chunks.get(&number), other.chunks.get(&number)) {
                (None, None) => true,
                (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a.plain()[range.clone()] == b.plain()[range],
                (Some(one), None) | (None, Some(one)) => is_zero(&one.plain()[range]),
            }
        })
    }
    /// The chunks that a range touches.
    pub(crate) fn chunk_numbers(offset: u64, len: u64) -> Range<u64> {
        offset / CHUNK as u64..(offset + len).div_ceil(CHUNK as u64)
    }
    /// Takes over from `other` (of which this is an older state) everything in chunks that touch
    /// the range.
    pub(crate) fn share(&mut self, other: &DiskImage, offset: u64, len: u64) {
        for number in DiskImage::chunk_numbers(offset, len) {
            match other.chunks.get(&number) {
                Some(chunk) => self.chunks.insert(number, chunk.clone()),
                None => self.chunks.remove(&number),
            };
        }
    }
    fn check(&self, offset: u64, len: u64) {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.size);
        assert!(fits, "{len} bytes at {offset} are not on a disk of {} bytes", self.size);
    }
}

impl PartialEq for DiskImage {
    fn eq(&self, other: &DiskImage) -> bool {
        self.size == other.size && self.first_difference(other).is_none()
    }
}
impl Eq for DiskImage {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;

    #[test]
    fn an_image_is_an_array_whatever_is_written_where() {
        let size = 5 * CHUNK + 1024;
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let (mut image, mut plain) = (DiskImage::zeroed(size as u64), vec![0u8; size]);
            let mut before = (image.clone(), plain.clone());
            for _ in 0..300 {
                let at = rng.below(size as u64) as usize;
                let most = [64, 700, 5000, 40_000][rng.below(4) as usize];
                let len = (1 + rng.below(most) as usize).min(size - at);
                let mut data = vec![0; len];
                match rng.below(4) {
                    0 => image.zero(at as u64, len as u64),
                    1 => image.write(at as u64, &data),
                    // Something within zeros.
                    2 => {
                        data[rng.below(len as u64) as usize] = 7;
                        image.write(at as u64, &data);
                    }
                    _ => {
                        rng.fill(&mut data);
                        image.write(at as u64, &data);
                    }
                }
                plain[at..at + len].copy_from_slice(&data);
                if rng.one_in(50) {
                    before = (image.clone(), plain.clone());
                }
            }
            assert_eq!(image.read_vec(0, size), plain);
            assert_eq!(before.0.read_vec(0, size), before.1, "a clone keeps its bytes");
            let differs = before.1.iter().zip(&plain).position(|(a, b)| a != b).map(|at| at as u64);
            assert_eq!(image.first_difference(&before.0), differs);
            for _ in 0..100 {
                let at = rng.below(size as u64) as usize;
                let len = (1 + rng.below(9000) as usize).min(size - at);
                let same = before.1[at..at + len] == plain[at..at + len];
                assert_eq!(image.same_at(&before.0, at as u64, len as u64), same);
            }
        }
    }

    #[test]
    fn zeros_take_no_memory() {
        let mut image = DiskImage::zeroed(1 << 30);
        let mut block = vec![0; 128 << 10];
        // A header for each record of 8 KiB.
        (0..16).for_each(|n| block[n * 8192..n * 8192 + 192].fill(1));
        (0..16).for_each(|n| image.write(n * (128 << 10), &block));
        assert_eq!(image.footprint(), 16 * 16 * 192);
        (0..16).for_each(|n| image.write(n * (128 << 10), &vec![0; 128 << 10]));
        assert_eq!(image.footprint(), 0);
    }
}
