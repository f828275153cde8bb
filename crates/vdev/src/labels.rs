//! The parts of a leaf outside the address space: four labels, each with a config and a ring of
//! uberblocks (format page 01).
//!
//! Reading is tolerant: the result has every readable part, and an error in place of every other;
//! the caller judges. Writing goes through the leaf's queue and fails only if *no* copy could be
//! written, as the commit needs; the leaf counts single failures. The order of a commit (one pair
//! of labels, uberblocks, the other pair, flushes in between) is the caller's.
//!
//! A failed write, or one interrupted by a power cut, may leave a torn label. A device without a
//! label belongs to no pool, and losing a log device loses acknowledged writes. So a leaf tracks
//! which of its labels are *safe* (whole and durable), and a pair is written concurrently only
//! while the other pair has a safe one. Otherwise its labels are written one after the other, torn
//! ones first, each made durable before the next; the last safe label is not overwritten.
//!
//! The first 8 KiB of every label belong to partition tables and are never touched.

use base::{Error, ErrorKind, Guid, Result, ResultExt, Txg};
use bdev::{BlockDev, Bytes};
use ondisk::label::{
    BOOT_ENV_OFFSET, CONFIG_OFFSET, CONFIG_SIZE, ConfigRegion, DATA_START, LABEL_SIZE, LABELS, LabelConfig, PoolState,
    RING_OFFSET, RING_SIZE, config_offset, fresh_label, label_offsets, parse_config_with,
};
use ondisk::nvlist::NvList;
use ondisk::uberblock::{
    SLOT_SHIFT_MAX, SLOT_SHIFT_MIN, Uberblock, scan_ring, slot_count, slot_for_txg, slot_offset, slot_size,
};
use std::cell::Cell;
use std::rc::Rc;

use crate::done::WriteDone;
use crate::leaf::Leaf;
use crate::policy::Prio;

/// An uberblock and its place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UberblockFound {
    /// The label, 0 to 3.
    pub label: usize,
    /// The slot of its ring.
    pub slot: u64,
    /// The uberblock.
    pub ub: Uberblock,
}

/// The labels of one device, as read.
#[derive(Clone, Debug)]
pub struct LeafLabels {
    /// The config of every label, or the error, with the label's number, 0 to 3 in order.
    pub configs: Vec<(usize, Result<NvList>)>,
    /// Every intact uberblock, by label and slot.
    pub uberblocks: Vec<UberblockFound>,
    /// Errors of the rings: label and error. Slots never written are not errors.
    pub damage: Vec<(usize, Error)>,
}

impl LeafLabels {
    /// The parsed config with the highest txg; of equals the first. `None` if no label has a valid
    /// one.
    pub fn best_config(&self) -> Option<LabelConfig> {
        let parsed = self.configs.iter().filter_map(|(_, c)| LabelConfig::from_nvlist(c.as_ref().ok()?).ok());
        parsed.reduce(|a, b| if b.txg > a.txg { b } else { a })
    }
    /// The parsed config of that pool with the highest txg that is not above `committed`; of equals
    /// the first. A power cut between the labels and the uberblock of a txg leaves L0 and L2 ahead:
    /// they tell of a tree, and perhaps of a guid of the device, that never came to be. If all are
    /// above, the highest. `None` if no label of the pool is valid.
    pub fn config_at(&self, pool: Guid, committed: Txg) -> Option<LabelConfig> {
        let parsed = self.configs.iter().filter_map(|(_, c)| LabelConfig::from_nvlist(c.as_ref().ok()?).ok());
        let rank = |c: &LabelConfig| (c.txg <= committed, c.txg);
        parsed.filter(|c| c.pool_guid == pool).reduce(|a, b| if rank(&b) > rank(&a) { b } else { a })
    }
    /// If all labels of the pool `unborn` are above `committed`: the newest one of another pool
    /// that is not.
    pub fn config_before(&self, unborn: Guid, committed: Txg) -> Option<LabelConfig> {
        let parsed = self.configs.iter().filter_map(|(_, c)| LabelConfig::from_nvlist(c.as_ref().ok()?).ok());
        let (own, others): (Vec<_>, Vec<_>) = parsed.partition(|c| c.pool_guid == unborn);
        if own.iter().any(|c| c.txg <= committed) {
            return None;
        }
        others.into_iter().filter(|c| c.txg <= committed).reduce(|a, b| if b.txg > a.txg { b } else { a })
    }
    /// The txg that these labels prove to have been committed: L1 and L3 are written after the
    /// uberblock of their txg was flushed. L0 and L2 are written before it, and prove the txg
    /// before theirs: they count only if neither L1 nor L3 is readable, as two power cuts may leave
    /// them.
    pub fn committed_txg(&self) -> Option<Txg> {
        let newest = |pair: LabelPair| {
            let these = self.configs.iter().filter(|(label, _)| pair.has(*label));
            these.filter_map(|(_, c)| Some(LabelConfig::from_nvlist(c.as_ref().ok()?).ok()?.txg)).max()
        };
        let before = |txg: Txg| Txg(txg.0.saturating_sub(1));
        newest(LabelPair::Second).or_else(|| newest(LabelPair::First).map(before))
    }
    /// Whether both labels at the end of the device have uberblocks.
    fn last_have_rings(&self) -> bool {
        (LABELS / 2..LABELS).all(|label| self.uberblocks.iter().any(|u| u.label == label))
    }
    /// Whether the device belonged to a pool: some label has a guid.
    pub fn any(&self) -> bool {
        self.configs.iter().any(|(_, c)| c.as_ref().is_ok_and(|c| c.contains("guid")))
    }
    /// The guid of the device itself, of the first label that has one.
    pub fn guid(&self) -> Option<Guid> {
        self.configs.iter().filter_map(|(_, c)| c.as_ref().ok()?.integer("guid")).map(|n| Guid(n as u64)).next()
    }
}

/// The device offsets of the labels; an error if the device is too small.
pub(crate) fn offsets(dev: &dyn BlockDev) -> Result<[u64; LABELS]> {
    let size = dev.size();
    if size < LABELS as u64 * LABEL_SIZE {
        return Err(Error::invalid(format!("{}: {size} bytes are too small for labels", dev.info().path)));
    }
    Ok(label_offsets(size))
}

/// Reads all labels and uberblock rings of a device. An error only if the device is too small for
/// labels; other errors are in the result.
pub async fn read_labels(dev: &dyn BlockDev) -> Result<LeafLabels> {
    let at = offsets(dev)?;
    let reads = at.map(|o| bdev::read(dev, o + CONFIG_OFFSET, (LABEL_SIZE - CONFIG_OFFSET) as usize));
    let regions = rt::join::join_all(reads.into_iter().collect()).await;
    let mut out = LeafLabels { configs: Vec::new(), uberblocks: Vec::new(), damage: Vec::new() };
    let mut ashift = None;
    let mut sums = codec::EmbeddedVerifier::default();
    for (i, region) in regions.iter().enumerate() {
        let config = match region {
            Ok(r) => parse_config_with(&r[..CONFIG_SIZE], config_offset(at[i]), &mut sums),
            Err(e) => Err(e.clone()),
        }
        .at(|| format!("{}: label {i}", dev.info().path));
        if let Ok(c) = &config {
            ashift = ashift.or_else(|| c.integer_in("vdev_tree", "ashift"));
        }
        out.configs.push((i, config));
    }
    for (i, region) in regions.iter().enumerate() {
        let ring = match region {
            Ok(r) => &r[(RING_OFFSET - CONFIG_OFFSET) as usize..],
            Err(e) => {
                out.damage.push((i, e.clone()));
                continue;
            }
        };
        let before = out.uberblocks.len();
        if let Some(ashift) = ashift {
            for (slot, found) in scan_ring(ring, ashift, at[i]) {
                match found {
                    Ok(ub) => out.uberblocks.push(UberblockFound { label: i, slot, ub }),
                    Err(e) => out.damage.push((i, e)),
                }
            }
        }
        // The slot size is unknown or wrong: try all, only the right one gives matching checksums.
        for shift in SLOT_SHIFT_MIN..=SLOT_SHIFT_MAX {
            if out.uberblocks.len() == before {
                let found = scan_ring(ring, shift, at[i]);
                out.uberblocks
                    .extend(found.filter_map(|(slot, ub)| Some(UberblockFound { label: i, slot, ub: ub.ok()? })));
            }
        }
    }
    Ok(out)
}

/// An integer of a nested list.
trait IntegerIn {
    fn integer_in(&self, list: &str, name: &str) -> Option<u64>;
}
impl IntegerIn for NvList {
    fn integer_in(&self, list: &str, name: &str) -> Option<u64> {
        match self.get(list)? {
            ondisk::nvlist::NvValue::List(l) => u64::try_from(l.integer(name)?).ok(),
            _ => None,
        }
    }
}

/// The labels to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LabelPair {
    /// L0 and L2: before the uberblock.
    First,
    /// L1 and L3: after it.
    Second,
    /// All four.
    All,
}

impl LabelPair {
    fn has(self, label: usize) -> bool {
        match self {
            LabelPair::First => label.is_multiple_of(2),
            LabelPair::Second => !label.is_multiple_of(2),
            LabelPair::All => true,
        }
    }
}

/// The labels of a leaf that are safe.
#[derive(Debug)]
pub(crate) struct SafeLabels {
    /// For each label the number of the leaf's writes that a flush must cover to make it safe;
    /// [`TORN`] if it may be torn.
    flush_upto: Cell<[u64; LABELS]>,
    /// Size of the device in bytes at that time, which determines the place of the last two labels.
    size: Cell<u64>,
    /// Size of the device in bytes when the last two labels had the rings of uberblocks; 0 if they
    /// had none.
    ring_size: Cell<u64>,
}

/// Torn, or unknown.
const TORN: u64 = u64::MAX;

impl SafeLabels {
    /// All labels are safe, as after [`init_labels`].
    pub(crate) fn all(size: u64) -> SafeLabels {
        SafeLabels { flush_upto: Cell::new([0; LABELS]), size: Cell::new(size), ring_size: Cell::new(size) }
    }
    fn set(&self, label: usize, flush_upto: u64) {
        let mut all = self.flush_upto.get();
        all[label] = flush_upto;
        self.flush_upto.set(all);
    }
    /// The safe labels of a device of `size` bytes, of whose writes flushes covered `flushed`.
    fn get(&self, size: u64, flushed: u64) -> [bool; LABELS] {
        if self.size.replace(size) != size {
            (LABELS / 2..LABELS).for_each(|label| self.set(label, TORN));
        }
        self.flush_upto.get().map(|upto| upto != TORN && upto <= flushed)
    }
}

impl Leaf {
    /// Notes the safe labels, as read from the device.
    pub fn note_labels(&self, found: &LeafLabels) {
        let own = |c: &Result<NvList>| c.as_ref().is_ok_and(|c| c.integer("guid") == Some(self.guid().0 as i128));
        let labels = self.safe_labels();
        labels.size.set(self.dev.size());
        let (first, last) = (found.uberblocks.iter().any(|u| u.label == 0), found.last_have_rings());
        labels.ring_size.set(if first && !last { 0 } else { self.dev.size() });
        found.configs.iter().for_each(|(label, c)| labels.set(*label, if own(c) { 0 } else { TORN }));
    }
    fn safe(&self) -> [bool; LABELS] {
        self.safe_labels().get(self.dev.size(), self.flushed())
    }
}

/// Waits for all writes; fails only if all failed, with the first error.
async fn any_success(writes: Vec<impl Future<Output = Result<()>>>) -> Result<()> {
    let (mut good, mut error) = (false, None);
    for w in writes {
        match w.await {
            Ok(()) => good = true,
            Err(e) => error = error.or(Some(e)),
        }
    }
    match error {
        Some(e) if !good => Err(e),
        _ => Ok(()),
    }
}

/// Writes `config` into the config regions of a pair of labels; without a flush, unless the other
/// pair has no safe label.
pub async fn write_config(leaf: &Rc<Leaf>, pair: LabelPair, config: &mut ConfigRegion) -> Result<()> {
    let places = offsets(&*leaf.dev)?;
    let safe = leaf.safe();
    let mut these: Vec<usize> = (0..LABELS).filter(|l| pair.has(*l)).collect();
    if (0..LABELS).any(|l| !pair.has(l) && safe[l]) {
        let writes = these.iter().map(|l| write_one(leaf, *l, places[*l], config));
        return any_success(writes.collect()).await;
    }
    these.sort_by_key(|l| safe[*l]);
    let (mut good, mut error) = (false, None);
    for l in these {
        let alone = !(0..LABELS).any(|other| other != l && leaf.safe()[other]);
        if leaf.safe()[l] && alone {
            continue;
        }
        let write = write_one(leaf, l, places[l], config);
        let durable = async {
            write.await?;
            leaf.flush().await
        };
        match durable.await {
            Ok(()) => good = true,
            Err(e) => error = error.or(Some(e)),
        }
    }
    match error {
        _ if good => Ok(()),
        Some(e) => Err(e),
        None => Err(Error::new(ErrorKind::Io, format!("{}: no label could be written", leaf.path()))),
    }
}

/// Submits the write of the label whose area begins at `at`; it counts as torn until that succeeds.
fn write_one(
    leaf: &Rc<Leaf>,
    label: usize,
    at: u64,
    config: &mut ConfigRegion,
) -> impl Future<Output = Result<()>> + use<> {
    let at = config_offset(at);
    leaf.safe_labels().set(label, TORN);
    let done = leaf.write(at, Bytes::copy_from(config.at(at)), 0, Prio::SyncWrite);
    let leaf = leaf.clone();
    async move {
        done.await?;
        leaf.safe_labels().set(label, leaf.written());
        Ok(())
    }
}

/// Writes `ub` into its slot of all four rings, without a flush: that of its txg, or of the one
/// before if it tells of a scratch area, so that the uberblock of the same txg without it stays
/// (format page 19 section 5). `ashift` is the top-level vdev's.
pub async fn write_uberblock(leaf: &Rc<Leaf>, ashift: u8, ub: &Uberblock) -> Result<()> {
    let ashift = u64::from(ashift);
    if leaf.safe_labels().ring_size.replace(leaf.dev.size()) != leaf.dev.size() {
        // The uberblock is written in any case; the labels at the front have the others.
        let _ = copy_rings(leaf, ashift).await;
    }
    let txg = Txg(ub.txg.0 - u64::from(ub.raidz_reflow.is_in_scratch() && ub.txg.0 > 0));
    let slot = slot_for_txg(txg, ashift, ub.mmp_delay != 0);
    let writes = offsets(&*leaf.dev)?.map(|at| {
        let at = slot_offset(at, ashift, slot);
        let bytes = ub.seal(slot_size(ashift), at);
        leaf.write(at, Bytes::copy_from(&bytes), 0, Prio::SyncWrite)
    });
    any_success(writes.into_iter().collect::<Vec<WriteDone>>()).await
}

/// Writes the uberblocks of the first label into the last two, whose place has others or none after
/// the device has grown, and zeros into their other slots.
async fn copy_rings(leaf: &Rc<Leaf>, ashift: u64) -> Result<()> {
    let places = offsets(&*leaf.dev)?;
    let ring = bdev::read(&*leaf.dev, places[0] + RING_OFFSET, RING_SIZE).await?;
    let known: Vec<_> = scan_ring(&ring, ashift, places[0]).filter_map(|(slot, ub)| Some((slot, ub.ok()?))).collect();
    let writes = places[LABELS / 2..].iter().map(|at| {
        let mut ring = vec![0; RING_SIZE];
        for (slot, ub) in &known {
            let place = slot_offset(*at, ashift, *slot);
            let start = (place - at - RING_OFFSET) as usize;
            ring[start..start + slot_size(ashift)].copy_from_slice(&ub.seal(slot_size(ashift), place));
        }
        leaf.write(at + RING_OFFSET, Bytes::copy_from(&ring), 0, Prio::SyncWrite)
    });
    any_success(writes.collect::<Vec<WriteDone>>()).await
}

/// Writes `ub` into the last slot of the ring of one label (0 to 3), which no txg uses while
/// `multihost` is on; without a flush. `ashift` is the top-level vdev's.
pub async fn write_heartbeat(leaf: &Rc<Leaf>, ashift: u8, label: usize, ub: &Uberblock) -> Result<()> {
    let ashift = u64::from(ashift);
    let at = slot_offset(offsets(&*leaf.dev)?[label % LABELS], ashift, slot_count(ashift) - 1);
    let bytes = ub.seal(slot_size(ashift), at);
    leaf.write(at, Bytes::copy_from(&bytes), 0, Prio::SyncWrite).await
}

/// Writes a part of every label, all of which must succeed, and makes it durable.
async fn overwrite(dev: &dyn BlockDev, from: u64, part: impl Fn(u64) -> Result<Bytes>) -> Result<()> {
    let mut writes = Vec::new();
    for at in offsets(dev)? {
        writes.push(bdev::write(dev, at + from, part(at)?));
    }
    write_durably(dev, writes).await
}

/// Waits for writes of labels, then flushes.
async fn write_durably(dev: &dyn BlockDev, writes: Vec<impl Future<Output = Result<()>>>) -> Result<()> {
    let place = || dev.info().path.clone();
    for r in rt::join::join_all(writes).await {
        r.map_err(|e| Error::new(ErrorKind::Io, format!("label write failed: {e}"))).at(place)?;
    }
    bdev::flush(dev).await.at(place)
}

/// Makes four fresh labels: `config`, an empty boot environment, empty rings. Durable on return.
pub async fn init_labels(dev: &dyn BlockDev, config: &NvList) -> Result<()> {
    overwrite(dev, BOOT_ENV_OFFSET, |at| Ok(Bytes::copy_from(&fresh_label(config, at)?[BOOT_ENV_OFFSET as usize..])))
        .await
}

/// Wipes all four labels, rings included. Durable on return.
pub async fn clear_labels(dev: &dyn BlockDev) -> Result<()> {
    overwrite(dev, BOOT_ENV_OFFSET, |_| Ok(Bytes::zeroed((LABEL_SIZE - BOOT_ENV_OFFSET) as usize))).await
}

/// Bytes of the header of a cache device, at the start of the data area (format page 22).
const CACHE_HEADER_SIZE: usize = 512;

/// Wipes the labels that are valid (a config with a guid and a known state), but for their first 16
/// KiB, and the header of a cache device (`zpool labelclear`). Other data in the place of a label
/// stays. Returns the number of labels. Durable on return.
pub async fn clear_valid_labels(dev: &dyn BlockDev) -> Result<usize> {
    let labels = read_labels(dev).await?;
    let at = offsets(dev)?;
    let (mut writes, mut is_cache) = (Vec::new(), false);
    for (i, config) in &labels.configs {
        let Ok(config) = config else { continue };
        let state = config.integer("state").and_then(|n| PoolState::from_u64(n as u64));
        let state = state.filter(|s| *s <= PoolState::L2cache);
        let (Some(state), true) = (state, config.integer("guid").is_some_and(|g| g != 0)) else { continue };
        is_cache |= state == PoolState::L2cache;
        writes.push(bdev::write(dev, at[*i] + CONFIG_OFFSET, Bytes::zeroed((LABEL_SIZE - CONFIG_OFFSET) as usize)));
    }
    let cleared = writes.len();
    if is_cache {
        let sector = dev.info().logical_sector as usize;
        writes.push(bdev::write(dev, DATA_START, Bytes::zeroed(CACHE_HEADER_SIZE.max(sector))));
    }
    write_durably(dev, writes).await?;
    Ok(cleared)
}

/// Wipes the uberblock rings. Durable on return.
pub async fn zero_ring(dev: &dyn BlockDev) -> Result<()> {
    overwrite(dev, RING_OFFSET, |_| Ok(Bytes::zeroed(RING_SIZE))).await
}
