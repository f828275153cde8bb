//! From the places that block pointers name to bytes of devices.
//!
//! A top-level vdev gives three things: the bytes that an allocation of some size takes
//! ([`Vdev::asize`]), the number of ways to read a range ([`Vdev::sides`]: one of a plain device,
//! one for each child of a mirror), and the bytes of one of those sides ([`Vdev::read`]). A reader
//! tries the sides until a checksum is right; the checker reads every one of them.
//!
//! RAID-Z is read by its data columns; its further sides compute lost columns from parity, and the
//! checker compares every column with its expected content. A block that is older than an expansion
//! lies sector by sector (format page 19): its further sides take children for lost, and compute
//! each row of sectors by itself. A removed vdev is its mapping: each piece is read where it went.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Error, ErrorKind, Guid, Result, Txg};
use ondisk::indirect::{MappingEntry, remap};
use ondisk::label::DATA_START;
use ondisk::uberblock::Reflow;
use ondisk::vdev_config::{VdevConfig, VdevKind};

use crate::device::Device;
use crate::raidz::{self, Column, Part, Shape};

/// Removed vdevs may map into removed vdevs, each older than the next; no pool has this many in a
/// row.
const MAX_REMAPS: u32 = 64;
/// Most sides of one range that are tried.
const MAX_SIDES: usize = 20_001;
/// Widest RAID-Z that is read.
const MAX_COLUMNS: usize = 255;

/// A vdev: a device, or children under a rule.
#[derive(Debug)]
pub struct Vdev {
    /// Its kind.
    pub kind: VdevKind,
    /// Its identity.
    pub guid: Guid,
    /// log2 of the sector size of the top-level vdev.
    pub ashift: u32,
    /// Allocatable bytes of the top-level vdev.
    pub asize: u64,
    /// Parity columns of RAID-Z.
    pub nparity: u64,
    /// Whether this device may miss blocks by the configuration: it is offline, faulted, or has a
    /// DTL (txgs that it missed).
    pub doubtful: bool,
    /// Path that the configuration gives.
    pub path: String,
    /// Below it.
    pub children: Vec<Vdev>,
    /// The device of a leaf, when it is there.
    pub dev: Option<Rc<Device>>,
    /// Ways to read a RAID-Z row with columns lost.
    attempts: Vec<raidz::Attempt>,
    /// The first txg of the wider blocks of each expansion of a RAID-Z.
    expand_txgs: Vec<Txg>,
    /// While it is being expanded: sectors before this one were moved.
    moved: Option<u64>,
    /// Sets of children that may be lost, if it was or is being expanded.
    losses: Vec<Vec<usize>>,
    /// The mapping of a removed vdev, set once the MOS can be read.
    pub mapping: OnceCell<Vec<MappingEntry>>,
}

impl Vdev {
    /// The tree of a top-level vdev over the devices that were found.
    /// `reflow`: the progress of an expansion by the uberblock of the state.
    pub fn build(cfg: &VdevConfig, devices: &BTreeMap<Guid, Rc<Device>>, reflow: Reflow) -> Result<Vdev> {
        let ashift = cfg.ashift.unwrap_or(0);
        if ashift > 16 || ashift != 0 && ashift < 9 {
            return Err(Error::corrupt(format!("vdev {}: ashift {ashift}", cfg.id)));
        }
        let mut vdev = Vdev::node(cfg, devices, ashift as u32, cfg.asize.unwrap_or(0))?;
        if cfg.kind == VdevKind::Raidz && (cfg.raidz_expanding || !cfg.raidz_expand_txgs.is_empty()) {
            cfg.validate()?;
            if cfg.raidz_expanding && reflow.is_in_scratch() {
                let why = format!("vdev {}: its expansion broke off with the first part in the scratch area", cfg.id);
                return Err(Error::unsupported(why));
            }
            vdev.expand_txgs = cfg.raidz_expand_txgs.clone();
            vdev.moved = cfg.raidz_expanding.then_some(reflow.offset() >> ashift);
            let n = vdev.children.len();
            vdev.losses = (1..=vdev.nparity as usize).flat_map(|k| raidz::choices(n, k)).collect();
        }
        Ok(vdev)
    }
    fn node(cfg: &VdevConfig, devices: &BTreeMap<Guid, Rc<Device>>, ashift: u32, asize: u64) -> Result<Vdev> {
        let children: Result<Vec<Vdev>> = cfg.children.iter().map(|c| Vdev::node(c, devices, ashift, asize)).collect();
        let mut children = children?;
        if matches!(cfg.kind, VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare) {
            // Sides that the configuration distrusts are tried last.
            children.sort_by_key(|c| c.doubtful);
        }
        let nparity = cfg.nparity.unwrap_or(1);
        if cfg.kind == VdevKind::Raidz
            && (!(1..=3).contains(&nparity) || children.len() as u64 <= nparity || children.len() > MAX_COLUMNS)
        {
            return Err(Error::corrupt(format!(
                "vdev {}: raidz of {} children with parity {nparity}",
                cfg.id,
                children.len()
            )));
        }
        let attempts = match cfg.kind {
            VdevKind::Raidz => raidz::attempts(children.len() - nparity as usize, nparity as usize),
            _ => Vec::new(),
        };
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
            attempts,
            expand_txgs: Vec::new(),
            moved: None,
            losses: Vec::new(),
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

    /// How a block born in `birth` lies on a RAID-Z.
    fn shape(&self, birth: Txg) -> Shape {
        let physical = self.children.len() as u64;
        let later = self.expand_txgs.iter().filter(|t| **t > birth).count() as u64;
        let logical = physical - u64::from(self.moved.is_some()) - later;
        Shape { logical, physical, moved: self.moved, parity: self.nparity, ashift: self.ashift }
    }

    /// Bytes that an allocation of `psize` stored bytes took in txg `birth`.
    pub fn asize(&self, psize: u64, birth: Txg) -> u64 {
        let sectors = psize.div_ceil(1 << self.ashift);
        if self.kind == VdevKind::Raidz {
            let (n, p) = (self.shape(birth).logical, self.nparity);
            let t = sectors + p * sectors.div_ceil(n - p);
            return (t.div_ceil(p + 1) * (p + 1)) << self.ashift;
        }
        sectors << self.ashift
    }
    /// Bytes of the headers of gang blocks here: a unit of allocation (format page 17 section 6).
    pub fn gang_header(&self) -> usize {
        1 << self.ashift.clamp(9, 16)
    }
    /// How many 512-byte units of use a unit of allocation is charged as: the cost of RAID-Z at 128
    /// KiB blocks of the original width (format page 05 section 5).
    pub fn deflate_ratio(&self) -> u64 {
        (1 << 17) / (self.asize(1 << 17, Txg(0)) >> 9).max(1)
    }
    /// In how many ways a range can be read.
    pub fn sides(&self, tops: &[Option<Vdev>]) -> usize {
        let n = if self.is_mirror() {
            self.children.iter().map(|c| c.sides(tops)).sum()
        } else if self.kind == VdevKind::Indirect {
            let concrete = tops.iter().flatten().filter(|t| t.is_concrete());
            concrete.map(|t| t.sides(tops)).max().unwrap_or(1)
        } else if self.kind == VdevKind::Raidz {
            1 + self.attempts.len().max(self.losses.len())
        } else {
            1
        };
        n.clamp(1, MAX_SIDES)
    }
    /// The leaves in order.
    pub fn leaves(&self) -> Vec<&Vdev> {
        if self.children.is_empty() { vec![self] } else { self.children.iter().flat_map(Vdev::leaves).collect() }
    }
    /// The name of one side of a range in messages.
    pub fn side_name(&self, side: usize) -> String {
        match self.leaves().get(side) {
            Some(l) if self.is_mirror() || self.children.is_empty() => l.leaf_name(),
            _ => format!("{} {}", self.kind, self.guid),
        }
    }
    /// Whether a side may miss blocks by the configuration.
    pub fn side_doubtful(&self, side: usize) -> bool {
        (self.is_mirror() || self.children.is_empty()) && self.leaves().get(side).is_some_and(|l| l.doubtful)
    }
    fn leaf_name(&self) -> String {
        self.dev.as_ref().map_or_else(|| format!("{} (not there)", self.path), |d| d.name())
    }

    /// `size` bytes at `off` of the vdev's space, written in `birth`, as `side` has them.
    pub fn read(&self, tops: &[Option<Vdev>], side: usize, off: u64, size: usize, birth: Txg) -> Result<Vec<u8>> {
        let mut buf = vec![0; size];
        self.read_into(tops, side, off, &mut buf, birth, 0)?;
        Ok(buf)
    }

    fn read_into(
        &self,
        tops: &[Option<Vdev>],
        side: usize,
        off: u64,
        buf: &mut [u8],
        birth: Txg,
        depth: u32,
    ) -> Result<()> {
        if self.is_mirror() {
            let mut left = side;
            for c in &self.children {
                let n = c.sides(tops);
                if left < n {
                    return c.read_into(tops, left, off, buf, birth, depth);
                }
                left -= n;
            }
            return Err(Error::invalid(format!("mirror {} has no side {side}", self.guid)));
        }
        match self.kind {
            VdevKind::Raidz => self.read_raidz(tops, side, off, buf, birth),
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
                    to.read_into(tops, side % to.sides(tops), at, piece, birth, depth + 1)?;
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

    fn part(&self, tops: &[Option<Vdev>], p: &Part) -> Result<Vec<u8>> {
        let mut b = vec![0; p.size as usize];
        self.children[p.child].read_into(tops, 0, p.offset, &mut b, Txg(0), 0)?;
        Ok(b)
    }
    fn column(&self, tops: &[Option<Vdev>], c: &Column) -> Result<Vec<u8>> {
        c.parts.iter().try_fold(Vec::with_capacity(c.size as usize), |mut all, p| {
            all.extend(self.part(tops, p)?);
            Ok(all)
        })
    }
    /// Side 0 are the data columns as they are; on the others some columns are computed from
    /// parity.
    fn read_raidz(&self, tops: &[Option<Vdev>], side: usize, off: u64, buf: &mut [u8], birth: Txg) -> Result<()> {
        let shape = self.shape(birth);
        let cols = raidz::columns(shape, off, buf.len() as u64);
        let content = if side > 0 && (shape.moved.is_some() || shape.logical != shape.physical) {
            self.rows_without(tops, &cols, side)?
        } else {
            self.columns_without(tops, &cols, side)?
        };
        let mut at = 0usize;
        for c in &content {
            let take = (buf.len() - at).min(c.len());
            buf[at..at + take].copy_from_slice(&c[..take]);
            at += take;
        }
        Ok(())
    }
    /// The content of the data columns, some of them computed.
    fn columns_without(&self, tops: &[Option<Vdev>], cols: &[Column], side: usize) -> Result<Vec<Vec<u8>>> {
        let (parity, data) = cols.split_at((self.nparity as usize).min(cols.len()));
        let (lost, rows) = match side {
            0 => (Vec::new(), Vec::new()),
            s => self
                .attempts
                .get(s - 1)
                .cloned()
                .filter(|(lost, _)| lost.iter().all(|&x| x < data.len()))
                .ok_or_else(|| Error::new(ErrorKind::Io, "no more ways to reconstruct it"))?,
        };
        let mut content = Vec::with_capacity(data.len());
        for (i, c) in data.iter().enumerate() {
            content.push(if lost.contains(&i) { vec![0; c.size as usize] } else { self.column(tops, c)? });
        }
        if !lost.is_empty() {
            let known: Vec<Option<Vec<u8>>> = parity
                .iter()
                .enumerate()
                .map(|(y, c)| if rows.contains(&y) { self.column(tops, c).ok() } else { None })
                .collect();
            if !raidz::reconstruct(&mut content, &lost, &known, &rows) {
                return Err(Error::new(ErrorKind::Io, "it cannot be reconstructed"));
            }
        }
        Ok(content)
    }
    /// The content of the data columns without some children, row by row: of a block of another
    /// width a child has a sector of any column.
    fn rows_without(&self, tops: &[Option<Vdev>], cols: &[Column], side: usize) -> Result<Vec<Vec<u8>>> {
        let gone = self.losses.get(side - 1);
        let gone = gone.ok_or_else(|| Error::new(ErrorKind::Io, "no more ways to reconstruct it"))?;
        let is_gone = |p: &Part| gone.contains(&p.child);
        let (parity, data) = cols.split_at((self.nparity as usize).min(cols.len()));
        let mut out = vec![Vec::new(); data.len()];
        for row in 0..parity.first().map_or(0, |c| c.parts.len()) {
            let cells: Vec<Option<&Part>> = data.iter().map(|c| c.parts.get(row)).collect();
            let mut content = Vec::with_capacity(cells.len());
            for cell in &cells {
                // A column without a sector in the last row counts as zeros.
                content.push(match cell {
                    Some(p) if !is_gone(p) => self.part(tops, p)?,
                    _ => vec![0; 1 << self.ashift],
                });
            }
            let lost: Vec<usize> = (0..cells.len()).filter(|i| cells[*i].is_some_and(is_gone)).collect();
            let known: Vec<Option<Vec<u8>>> = parity
                .iter()
                .map(|c| c.parts.get(row).filter(|p| !lost.is_empty() && !is_gone(p)))
                .map(|p| p.and_then(|p| self.part(tops, p).ok()))
                .collect();
            let rows: Vec<usize> = (0..known.len()).filter(|y| known[*y].is_some()).take(lost.len()).collect();
            if !raidz::reconstruct(&mut content, &lost, &known, &rows) {
                return Err(Error::new(ErrorKind::Io, "it cannot be reconstructed"));
            }
            for ((column, bytes), _) in out.iter_mut().zip(content).zip(&cells).filter(|(_, cell)| cell.is_some()) {
                column.extend(bytes);
            }
        }
        Ok(out)
    }
    /// Compares every column of a block on RAID-Z with the one computed from the good `content`.
    /// Each that differs is passed to `bad`, with whether its device may miss blocks. Returns the
    /// number of columns.
    pub fn audit_raidz(
        &self,
        tops: &[Option<Vdev>],
        (off, birth): (u64, Txg),
        content: &[u8],
        bad: &mut dyn FnMut(Error, bool),
    ) -> u64 {
        let cols = raidz::columns(self.shape(birth), off, content.len() as u64);
        let (parity, data) = cols.split_at((self.nparity as usize).min(cols.len()));
        let mut at = 0usize;
        let mut want: Vec<Vec<u8>> = Vec::with_capacity(cols.len());
        for c in data {
            let take = (content.len() - at).min(c.size as usize);
            let mut b = content[at..at + take].to_vec();
            b.resize(c.size as usize, 0);
            want.push(b);
            at += take;
        }
        let rows: Vec<Vec<u8>> =
            parity.iter().enumerate().map(|(y, c)| raidz::parity_row(&want, y, c.size as usize)).collect();
        for (c, (want, what)) in parity
            .iter()
            .zip(rows.iter().map(|r| (r, "parity")))
            .chain(data.iter().zip(want.iter().map(|d| (d, "data"))))
        {
            let mut rest = &want[..];
            for p in &c.parts {
                let child = &self.children[p.child];
                let (want, behind) = rest.split_at(p.size as usize);
                rest = behind;
                match self.part(tops, p) {
                    Ok(have) if have == *want => {}
                    r => {
                        let why = r.err().map_or("differs from what it should be".to_owned(), |e| e.to_string());
                        let place = format!("{what} column at {:#x} on {}: {why}", p.offset, child.side_name(0));
                        bad(Error::new(ErrorKind::Checksum, place), child.doubtful);
                    }
                }
            }
        }
        cols.len() as u64
    }

    /// The ranges on vdevs with allocations of their own that a range here stands for: itself, or
    /// where a removed vdev's blocks went.
    pub fn places(&self, tops: &[Option<Vdev>], vdev: u32, off: u64, size: u64) -> Result<Vec<(u32, u64, u64)>> {
        self.places_by(tops, vdev, off, size, &mut |_, _, _| {})
    }

    /// The same; `removed` gets the ranges of removed vdevs on the way: vdev, offset, length.
    pub fn places_by(
        &self,
        tops: &[Option<Vdev>],
        vdev: u32,
        off: u64,
        size: u64,
        removed: &mut dyn FnMut(u32, u64, u64),
    ) -> Result<Vec<(u32, u64, u64)>> {
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
            removed(v, off, size);
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
