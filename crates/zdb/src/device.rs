//! Devices: image files and block devices, read with positioned reads, and the labels on them.
//!
//! The source need not be a file: anything that can be read at an offset will do ([`ReadAt`]), such
//! as the image of a modelled disk.
//!
//! A device is opened read-only and never locked: the checker is for exported pools, and tolerates
//! being run on an imported one.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use base::{Error, ErrorKind, Guid, Result, Txg};
use ondisk::label::{self, LABELS, RING_SIZE};
use ondisk::nvlist::NvList;
use ondisk::uberblock::{self, Uberblock};

/// Bytes that can be read at an offset.
pub trait ReadAt {
    /// Fills `buf` from byte `off`, all of it or with an error.
    fn read_at(&self, off: u64, buf: &mut [u8]) -> std::io::Result<()>;
}

impl ReadAt for File {
    fn read_at(&self, off: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.read_exact_at(buf, off)
    }
}

impl ReadAt for Vec<u8> {
    fn read_at(&self, off: u64, buf: &mut [u8]) -> std::io::Result<()> {
        let from = usize::try_from(off).ok().and_then(|off| ondisk::bytes::get(self, off, buf.len()));
        match from {
            Some(b) => buf.copy_from_slice(b),
            None => return Err(std::io::ErrorKind::UnexpectedEof.into()),
        }
        Ok(())
    }
}

/// A file or block device, or a partition inside one.
pub struct Device {
    /// Where it was opened.
    pub path: PathBuf,
    /// Bytes.
    pub size: u64,
    /// First byte within the file: not 0 for a partition of a whole disk.
    pub start: u64,
    source: Box<dyn ReadAt>,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({} of {:#x} bytes)", self.path.display(), self.size)
    }
}

/// Content of one of the four label places.
#[derive(Clone, Debug)]
pub enum LabelState {
    /// A label whose checksum is right.
    Good(NvList),
    /// A list that can be unpacked, but the checksum is wrong.
    BadChecksum(NvList),
    /// Nothing that can be read as a label.
    None(Error),
}

impl LabelState {
    /// The list, whatever its checksum.
    pub fn list(&self) -> Option<&NvList> {
        match self {
            LabelState::Good(l) | LabelState::BadChecksum(l) => Some(l),
            LabelState::None(_) => None,
        }
    }
    /// The list, if its checksum is right.
    pub fn good(&self) -> Option<&NvList> {
        match self {
            LabelState::Good(l) => Some(l),
            _ => None,
        }
    }
}

/// An uberblock slot that holds something.
#[derive(Clone, Debug)]
pub struct RingEntry {
    /// Which label, 0 to 3.
    pub label: usize,
    /// Which slot of its ring.
    pub slot: u64,
    /// The uberblock, or its error.
    pub ub: Result<Uberblock>,
}

/// A device with its labels.
#[derive(Clone, Debug)]
pub struct Labeled {
    /// The device.
    pub dev: Rc<Device>,
    /// The four labels.
    pub labels: [LabelState; LABELS],
    /// All uberblocks of all four rings.
    pub ring: Vec<RingEntry>,
}

impl Device {
    /// Opens a file or device for reading.
    pub fn open(path: &Path) -> Result<Device> {
        let io = |e: std::io::Error| Error::new(ErrorKind::Io, format!("{}: {e}", path.display()));
        let mut file = File::open(path).map_err(io)?;
        // The end of a block device is found by seeking; its metadata has size 0.
        let size = file.seek(SeekFrom::End(0)).map_err(io)?;
        Ok(Device::over(path, size, Box::new(file)))
    }
    /// A device of `size` bytes over anything that can be read; `path` is its name in messages.
    pub fn over(path: &Path, size: u64, source: Box<dyn ReadAt>) -> Device {
        Device { path: path.to_owned(), size, start: 0, source }
    }
    /// Fills `buf` from byte `off`.
    pub fn read_at(&self, off: u64, buf: &mut [u8]) -> Result<()> {
        let fail = |what: String| Error::new(ErrorKind::Io, format!("{} at {off:#x}: {what}", self.path.display()));
        let end = off.checked_add(buf.len() as u64).filter(|&e| e <= self.size);
        if end.is_none() {
            return Err(fail(format!("{} bytes reach beyond the device's {:#x}", buf.len(), self.size)));
        }
        self.source.read_at(self.start + off, buf).map_err(|e| fail(e.to_string()))
    }
    /// `len` bytes from byte `off`.
    pub fn read(&self, off: u64, len: usize) -> Result<Vec<u8>> {
        let mut b = vec![0; len];
        self.read_at(off, &mut b)?;
        Ok(b)
    }
    /// The file's name without its folder.
    pub fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or(self.path.as_os_str()).to_string_lossy().into_owned();
        if self.start == 0 { name } else { format!("{name}+{:#x}", self.start) }
    }
    /// The partitions of a disk with a GPT: where each starts and how long it is, in bytes.
    fn partitions(&self) -> Vec<(u64, u64)> {
        for sector in [512u64, 4096] {
            let Ok(head) = self.read(sector, 92) else { continue };
            if &head[..8] != b"EFI PART" {
                continue;
            }
            let lba = ondisk::bytes::le64(&head, 72);
            let count = ondisk::bytes::le32(&head, 80).min(128) as usize;
            let size = ondisk::bytes::le32(&head, 84) as usize;
            if !(128..=4096).contains(&size) {
                return Vec::new();
            }
            let Some(table) = lba.checked_mul(sector).and_then(|at| self.read(at, count * size).ok()) else {
                return Vec::new();
            };
            let bounds = table.chunks_exact(size).map(|e| (ondisk::bytes::le64(e, 32), ondisk::bytes::le64(e, 40)));
            return bounds
                .filter(|&(a, b)| b > a && b < u64::MAX / sector - 1)
                .map(|(a, b)| (a * sector, (b - a + 1) * sector))
                .filter(|&(at, len)| at.checked_add(len).is_some_and(|end| end <= self.size))
                .collect();
        }
        Vec::new()
    }
}

impl Labeled {
    /// Reads all labels of a device. Never fails: read errors are in the result.
    pub fn scan(dev: Rc<Device>) -> Labeled {
        let mut labels: [LabelState; LABELS] = std::array::from_fn(|_| LabelState::None(ErrorKind::Io.into()));
        let mut ring = Vec::new();
        if dev.size >= 4 * label::LABEL_SIZE {
            let offsets = label::label_offsets(dev.size);
            for (i, &at) in offsets.iter().enumerate() {
                labels[i] = read_label(&dev, at);
            }
            let ashift = labels
                .iter()
                .filter_map(LabelState::list)
                .find_map(|l| l.list("vdev_tree").and_then(|t| t.u64("ashift")))
                .unwrap_or(0);
            for (i, &at) in offsets.iter().enumerate() {
                let Ok(bytes) = dev.read(at + label::RING_OFFSET, RING_SIZE) else { continue };
                ring.extend(uberblock::scan_ring(&bytes, ashift, at).map(|(slot, ub)| RingEntry {
                    label: i,
                    slot,
                    ub,
                }));
            }
        }
        Labeled { dev, labels, ring }
    }
    /// Opens `path` and reads its labels; of a whole disk without labels, those of its partitions
    /// that have some.
    pub fn open(path: &Path) -> Result<Vec<Labeled>> {
        let dev = Device::open(path)?;
        let parts = dev.partitions();
        let whole = Labeled::scan(Rc::new(dev));
        if whole.best().is_some() || parts.is_empty() {
            return Ok(vec![whole]);
        }
        let mut found = Vec::new();
        for (start, size) in parts {
            let part = Labeled::scan(Rc::new(Device { start, size, ..Device::open(path)? }));
            if part.best().is_some() {
                found.push(part);
            }
        }
        Ok(if found.is_empty() { vec![whole] } else { found })
    }
    /// The good label with the highest txg.
    pub fn best(&self) -> Option<&NvList> {
        self.labels.iter().filter_map(LabelState::good).max_by_key(|l| l.u64("txg").unwrap_or(0))
    }
    /// The pool that the device belongs to.
    pub fn pool_guid(&self) -> Option<Guid> {
        self.best().and_then(|l| l.u64("pool_guid")).map(Guid)
    }
    /// The best label's txg.
    pub fn txg(&self) -> Txg {
        Txg(self.best().and_then(|l| l.u64("txg")).unwrap_or(0))
    }
}

fn read_label(dev: &Device, at: u64) -> LabelState {
    let offset = label::config_offset(at);
    let region = match dev.read(offset, label::CONFIG_SIZE) {
        Ok(r) => r,
        Err(e) => return LabelState::None(e),
    };
    match label::parse_config(&region, offset) {
        Ok(l) => LabelState::Good(l),
        Err(e) => match label::parse_config_unchecked(&region) {
            Ok(l) if !l.is_empty() => LabelState::BadChecksum(l),
            _ => LabelState::None(e),
        },
    }
}

/// The files of a folder that may be devices of a pool: at least as large as the smallest device,
/// in order of name. Of `/dev`, block devices count.
pub fn candidates(dir: &Path) -> Result<Vec<PathBuf>> {
    let io = |e: std::io::Error| Error::new(ErrorKind::Io, format!("{}: {e}", dir.display()));
    if !dir.is_dir() {
        return Ok(vec![dir.to_owned()]);
    }
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        let path = entry.map_err(io)?.path();
        let Ok(meta) = std::fs::metadata(&path) else { continue };
        use std::os::unix::fs::FileTypeExt;
        if meta.file_type().is_block_device() || meta.is_file() && meta.len() >= label::MIN_DEVICE_SIZE {
            out.push(path);
        }
    }
    out.sort();
    Ok(out)
}
