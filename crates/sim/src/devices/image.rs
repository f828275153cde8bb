//! [`DiskImage`]: the bytes of a disk, sparse and shared.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Bytes that are shared, copied and left out together.
const CHUNK: usize = 16 << 10;

static ZEROS: [u8; CHUNK] = [0; CHUNK];

type Chunk = Arc<[u8; CHUNK]>;

/// The contents of a disk. Parts never written are zeros and take no memory; a clone shares all
/// memory until one of the two is changed.
#[derive(Clone, Default)]
pub struct DiskImage {
    size: u64,
    chunks: BTreeMap<u64, Chunk>,
}

impl std::fmt::Debug for DiskImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DiskImage({} bytes, {} in memory)", self.size, self.chunks.len() * CHUNK)
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
        (self.chunks.len() * CHUNK) as u64
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
                Some(chunk) => out.copy_from_slice(&chunk[within..within + part]),
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
            match self.chunks.get_mut(&number) {
                Some(chunk) => Arc::make_mut(chunk)[within..within + part].copy_from_slice(data),
                None if is_zero(data) => {}
                None => {
                    let mut chunk: Chunk = Arc::new([0; CHUNK]);
                    let bytes = Arc::get_mut(&mut chunk).expect("a new chunk is not shared");
                    bytes[within..within + part].copy_from_slice(data);
                    self.chunks.insert(number, chunk);
                }
            }
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
            if let Some(chunk) = self.chunks.get_mut(&number) {
                Arc::make_mut(chunk)[within..within + part].fill(0);
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
            if !is_zero(&chunk[..len]) {
                each(offset, &chunk[..len])?;
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
        let zeros: Chunk = Arc::new([0; CHUNK]);
        for number in numbers {
            let a = self.chunks.get(&number).unwrap_or(&zeros);
            let b = other.chunks.get(&number).unwrap_or(&zeros);
            if !Arc::ptr_eq(a, b)
                && let Some(at) = a.iter().zip(b.iter()).position(|(a, b)| a != b)
            {
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
            match (self.chunks.get(&number), other.chunks.get(&number)) {
                (None, None) => true,
                (Some(a), Some(b)) => Arc::ptr_eq(a, b) || a[within..within + part] == b[within..within + part],
                (Some(one), None) | (None, Some(one)) => is_zero(&one[within..within + part]),
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
