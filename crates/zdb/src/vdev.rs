//! From the places that block pointers name to bytes of devices.
//!
//! A top-level vdev answers three questions: how many bytes an allocation of some size takes ([`Vdev::asize`]), in how many ways the bytes of a range can be
//! had ([`Vdev::sides`]: one of a plain device, one for each child of a mirror), and what the bytes are on one of those sides ([`Vdev::read`]). A reader
//! tries the sides until a checksum is right; the checker reads every one of them.
//!
//! RAID-Z is read by its data columns, on one side; reconstruction would be further sides. A removed vdev is its mapping: each piece is read where it went.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Error, ErrorKind, Guid, Result};
use ondisk::indirect::{MappingEntry, remap};
use ondisk::label::DATA_START;
use ondisk::vdev_config::{VdevConfig, VdevKind};

use crate::device::Device;

/// Removed vdevs may map into removed vdevs, each older than the next; no pool has this many in a row.
const MAX_REMAPS: u32 = 64;
/// Most sides of one range that are tried.
const MAX_SIDES: usize = 64;

/// A vdev: a device, or children under a rule.
#[derive(Debug)]
pub struct Vdev {
    /// What it is.
    pub kind: VdevKind,
    /// Its identity.
    pub guid: Guid,
    /// log2 of the sector size of the top-level vdev.
    pub ashift: u32,
    /// Allocatable bytes of the top-level vdev.
    pub asize: u64,
    /// Parity columns of RAID-Z.
    pub nparity: u64,
    /// Whether the configuration says that this device may miss blocks: it is out, faulted, or has a list of txgs that it missed.
    pub doubtful: bool,
    /// Path that the configuration gives.
    pub path: String,
    /// Below it.
    pub children: Vec<Vdev>,
    /// The device of a leaf, when it is there.
    pub dev: Option<Rc<Device>>,
    /// The mapping of a removed vdev, set once the MOS can be read.
    pub mapping: OnceCell<Vec<MappingEntry>>,
}

impl Vdev {
    /// The tree of a top-level vdev over the devices that were found.
    pub fn build(cfg: &VdevConfig, devices: &BTreeMap<Guid, Rc<Device>>) -> Result<Vdev> {
        let ashift = cfg.ashift.unwrap_or(0);
        if ashift > 16 || ashift != 0 && ashift < 9 {
            return Err(Error::corrupt(format!("vdev {}: ashift {ashift}", cfg.id)));
        }
        Vdev::node(cfg, devices, ashift as u32, cfg.asize.unwrap_or(0))
    }
    fn node(cfg: &VdevConfig, devices: &BTreeMap<Guid, Rc<Device>>, ashift: u32, asize: u64) -> Result<Vdev> {
        let children: Result<Vec<Vdev>> = cfg.children.iter().map(|c| Vdev::node(c, devices, ashift, asize)).collect();
        let mut children = children?;
        if matches!(cfg.kind, VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare) {
            // Sides that the configuration distrusts are tried last.
            children.sort_by_key(|c| c.doubtful);
        }
        let nparity = cfg.nparity.unwrap_or(1);
        if cfg.kind == VdevKind::Raidz && (!(1..=3).contains(&nparity) || children.len() as u64 <= nparity) {
            return Err(Error::corrupt(format!(
                "vdev {}: raidz of {} children with parity {nparity}",
                cfg.id,
                children.len()
            )));
        }
        Ok(Vdev {
            kind: cfg.kind.clone(),
            guid: cfg.guid,
            ashift,
            asize,
            nparity,
            doubtful: children.is_empty() && !devices.contains_key(&cfg.guid)
                || cfg.offline
                || cfg.faulted
                || cfg.removed
                || cfg.not_present
                || cfg.dtl.is_some()
                || cfg.resilver_txg.is_some()
                || cfg.rebuild_txg.is_some(),
            path: cfg.path.clone().unwrap_or_default(),
            dev: devices.get(&cfg.guid).filter(|_| children.is_empty()).cloned(),
            children,
            mapping: OnceCell::new(),
        })
    }

    /// Whether allocations can be here: not a removed vdev or a hole.
    pub fn is_concrete(&self) -> bool {
        !matches!(self.kind, VdevKind::Hole | VdevKind::Missing | VdevKind::Indirect)
    }
    fn is_mirror(&self) -> bool {
        matches!(self.kind, VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare)
    }

    /// Bytes that an allocation of `psize` stored bytes takes.
    pub fn asize(&self, psize: u64) -> u64 {
        let sectors = psize.div_ceil(1 << self.ashift);
        if self.kind == VdevKind::Raidz {
            let (n, p) = (self.children.len() as u64, self.nparity);
            let t = sectors + p * sectors.div_ceil(n - p);
            return (t.div_ceil(p + 1) * (p + 1)) << self.ashift;
        }
        sectors << self.ashift
    }
    /// How many 512-byte units of use a unit of allocation is charged as: what RAID-Z costs at 128 KiB blocks (format page 05 section 5).
    pub fn deflate_ratio(&self) -> u64 {
        (1 << 17) / (self.asize(1 << 17) >> 9).max(1)
    }
    /// In how many ways a range can be read.
    pub fn sides(&self, tops: &[Option<Vdev>]) -> usize {
        let n = if self.is_mirror() {
            self.children.iter().map(|c| c.sides(tops)).sum()
        } else if self.kind == VdevKind::Indirect {
            let concrete = tops.iter().flatten().filter(|t| t.is_concrete());
            concrete.map(|t| t.sides(tops)).max().unwrap_or(1)
        } else {
            1
        };
        n.clamp(1, MAX_SIDES)
    }
    /// The leaves in order.
    pub fn leaves(&self) -> Vec<&Vdev> {
        if self.children.is_empty() { vec![self] } else { self.children.iter().flat_map(Vdev::leaves).collect() }
    }
    /// What one side of a range is called in messages.
    pub fn side_name(&self, side: usize) -> String {
        match self.leaves().get(side) {
            Some(l) if self.is_mirror() || self.children.is_empty() => l.leaf_name(),
            _ => format!("{} {}", self.kind, self.guid),
        }
    }
    /// Whether the configuration says that a side may miss blocks.
    pub fn side_doubtful(&self, side: usize) -> bool {
        (self.is_mirror() || self.children.is_empty()) && self.leaves().get(side).is_some_and(|l| l.doubtful)
    }
    fn leaf_name(&self) -> String {
        self.dev.as_ref().map_or_else(|| format!("{} (not there)", self.path), |d| d.name())
    }

    /// `size` bytes at `off` of the vdev's space, as `side` has them.
    pub fn read(&self, tops: &[Option<Vdev>], side: usize, off: u64, size: usize) -> Result<Vec<u8>> {
        let mut buf = vec![0; size];
        self.read_into(tops, side, off, &mut buf, 0)?;
        Ok(buf)
    }

    fn read_into(&self, tops: &[Option<Vdev>], side: usize, off: u64, buf: &mut [u8], depth: u32) -> Result<()> {
        if self.is_mirror() {
            let mut left = side;
            for c in &self.children {
                let n = c.sides(tops);
                if left < n {
                    return c.read_into(tops, left, off, buf, depth);
                }
                left -= n;
            }
            return Err(Error::invalid(format!("mirror {} has no side {side}", self.guid)));
        }
        match self.kind {
            VdevKind::Raidz => self.read_raidz(tops, off, buf),
            VdevKind::Indirect => {
                let mapping = self.mapping.get().ok_or_else(|| {
                    Error::new(ErrorKind::Io, format!("the mapping of removed vdev {} is not loaded", self.guid))
                })?;
                if depth >= MAX_REMAPS {
                    return Err(Error::corrupt("mappings of removed vdevs lead to each other"));
                }
                for (start, vdev, at, len) in remap(mapping, off, buf.len() as u64)? {
                    let to = top(tops, vdev.0)?;
                    let piece = &mut buf[start as usize..(start + len) as usize];
                    to.read_into(tops, side % to.sides(tops), at, piece, depth + 1)?;
                }
                Ok(())
            }
            VdevKind::Disk | VdevKind::File => match &self.dev {
                Some(d) => {
                    let at = off.checked_add(DATA_START).ok_or_else(|| Error::corrupt(format!("offset {off:#x}")))?;
                    d.read_at(at, buf)
                }
                None => Err(Error::new(ErrorKind::Io, format!("device {} is not there", self.path))),
            },
            _ => Err(Error::unsupported(format!("reading from a vdev of type {} is not supported", self.kind))),
        }
    }

    /// The data columns of a RAID-Z row: child, offset there, bytes (format page 09 section 3).
    fn raidz_data_columns(&self, off: u64, size: u64) -> Vec<(usize, u64, u64)> {
        let (n, p, sh) = (self.children.len() as u64, self.nparity, self.ashift);
        let (b, s) = (off >> sh, size.div_ceil(1 << sh));
        let (first, row) = (b % n, (b / n) << sh);
        let (q, r) = (s / (n - p), s % (n - p));
        let big = if r == 0 { 0 } else { r + p };
        let cols = if q == 0 { big } else { n };
        let mut out: Vec<(usize, u64, u64)> = (0..cols)
            .map(|c| {
                let child = (first + c) % n;
                let at = row + if first + c >= n { 1 << sh } else { 0 };
                (child as usize, at, (q + u64::from(c < big)) << sh)
            })
            .collect();
        if p == 1 && off & (1 << 20) != 0 && out.len() > 1 {
            let (a, b) = (out[0], out[1]);
            out[0] = (b.0, b.1, a.2);
            out[1] = (a.0, a.1, b.2);
        }
        out.split_off((p as usize).min(out.len()))
    }
    fn read_raidz(&self, tops: &[Option<Vdev>], off: u64, buf: &mut [u8]) -> Result<()> {
        let mut at = 0usize;
        for (child, o, len) in self.raidz_data_columns(off, buf.len() as u64) {
            let take = (buf.len() - at).min(len as usize);
            self.children[child].read_into(tops, 0, o, &mut buf[at..at + take], 0)?;
            at += take;
        }
        Ok(())
    }

    /// The ranges on vdevs with allocations of their own that a range here stands for: itself, or where a removed vdev's blocks went.
    pub fn places(&self, tops: &[Option<Vdev>], vdev: u32, off: u64, size: u64) -> Result<Vec<(u32, u64, u64)>> {
        let mut out = Vec::new();
        let mut todo = vec![(vdev, off, size, 0)];
        while let Some((v, off, size, depth)) = todo.pop() {
            let t = top(tops, v)?;
            if t.kind != VdevKind::Indirect {
                out.push((v, off, size));
                continue;
            }
            if depth >= MAX_REMAPS {
                return Err(Error::corrupt("mappings of removed vdevs lead to each other"));
            }
            let mapping = t.mapping.get().ok_or_else(|| Error::corrupt("a removed vdev has no mapping"))?;
            todo.extend(remap(mapping, off, size)?.into_iter().map(|(_, v, at, len)| (v.0, at, len, depth + 1)));
        }
        Ok(out)
    }
}

/// Top-level vdev `id`.
pub fn top(tops: &[Option<Vdev>], id: u32) -> Result<&Vdev> {
    tops.get(id as usize)
        .and_then(Option::as_ref)
        .ok_or_else(|| Error::new(ErrorKind::Io, format!("there is no top-level vdev {id}")))
}
