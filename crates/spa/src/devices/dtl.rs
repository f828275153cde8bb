//! Dirty time logs on disk: a space map of missing txgs for each leaf (format page 09 section 6).

use std::cell::Cell;
use std::rc::Rc;

use base::{Error, Guid, ObjectId, Result, ResultExt, Txg};
use dmu::{Objset, Tx};
use ondisk::feature::FeatureId;
use ondisk::space_map::{Encoder, Entry, HISTOGRAM_BUCKETS, MapType, entries};
use vdev::{Condition, Health, Top, TxgSet, VdevTree};

use crate::commit::config::Config;
use crate::commit::space_map::{alloc_space_map, free_space_map, header, set_header};
use crate::open::import::FoundDevice;
use crate::stack::Stack;

/// Block size of such a space map (format page 09 section 6).
const DTL_BLKSZ: u32 = 4096;

/// Longest log that is read, in bytes.
const DTL_MAX: u64 = 64 << 20;

/// The txgs in such an object.
async fn read_dtl(mos: &Objset, object: ObjectId) -> Result<TxgSet> {
    let dn = mos.hold(object).await?;
    let phys = header(&dn)?;
    if phys.length > DTL_MAX {
        return Err(Error::corrupt(format!("it has {} bytes", phys.length)));
    }
    let mut data = vec![0; phys.length as usize];
    if !data.is_empty() {
        dn.read(0, &mut data).await?;
    }
    let mut set = TxgSet::new();
    for entry in entries(&data, 0) {
        let Entry::Run { kind, offset, size, .. } = entry? else { continue };
        match kind {
            MapType::Alloc => set.add(offset, offset.saturating_add(size)),
            MapType::Free => set.remove(offset, offset.saturating_add(size)),
        }
    }
    Ok(set)
}

/// Every leaf, present or not, of every top-level vdev: its dirty time log object and its
/// condition.
fn logs(tree: &VdevTree) -> Vec<(Option<ObjectId>, Rc<Condition>)> {
    let mut out = Vec::new();
    for top in tree.tops.borrow().iter() {
        let config = top.config_ref();
        for (guid, condition) in top.kind().conditions() {
            out.push((config.find(guid).and_then(|c| c.dtl), condition));
        }
    }
    out
}

/// Reads the missing txgs of every leaf. A leaf with an unreadable log is taken to miss everything;
/// the errors are returned.
pub(crate) async fn load_dtls(mos: &Objset, tree: &VdevTree) -> Vec<Error> {
    let mut errors = Vec::new();
    for (object, condition) in logs(tree) {
        let Some(object) = object.filter(|o| o.0 != 0) else { continue };
        match read_dtl(mos, object).await.at(|| format!("dirty time log object {object}")) {
            Ok(set) => condition.set_missing(set),
            Err(e) => {
                let mut all = TxgSet::new();
                all.add(0, u64::MAX);
                condition.set_missing(all);
                errors.push(e);
            }
        }
    }
    errors
}

/// Adds the txgs after a device's newest uberblock to its dirty time log, if other devices of its
/// top-level vdev have newer ones, regardless of the logs: a writer without the device may have
/// crashed before it wrote them. Txgs that a rewind dropped do not count.
pub(crate) fn note_stale(devices: &[FoundDevice], tree: &VdevTree, synced: Txg) {
    for top in tree.tops.borrow().iter() {
        let newest = |guid: Guid| {
            let of = devices.iter().filter(|d| d.config.guid == guid).flat_map(|d| &d.labels.uberblocks);
            of.map(|u| u.ub.txg).filter(|txg| *txg <= synced).max()
        };
        let kind = top.kind();
        let seen: Vec<(Guid, Txg)> = kind.leaves().iter().filter_map(|l| Some((l.guid(), newest(l.guid())?))).collect();
        let Some(best) = seen.iter().map(|(_, txg)| *txg).max() else { continue };
        for (guid, condition) in kind.conditions() {
            if let Some((_, txg)) = seen.iter().find(|(g, txg)| *g == guid && *txg < best) {
                condition.miss(txg.0 + 1, best.0 + 1);
            }
        }
    }
}

/// The dirty time logs of an imported pool.
pub(crate) struct Dtls {
    stack: Rc<Stack>,
    config: Rc<Config>,
    /// The last txg whose sync checked the leaves for failed writes.
    checked: Cell<Txg>,
}

impl Dtls {
    pub(super) fn new(stack: &Rc<Stack>, config: &Rc<Config>) -> Dtls {
        Dtls { stack: stack.clone(), config: config.clone(), checked: Cell::new(Txg(u64::MAX)) }
    }

    /// Whether an online leaf has failed writes that are not in its log yet. Leaves with too many
    /// errors are excluded, since they would keep the pool busy.
    pub(crate) fn has_failed_writes(&self) -> bool {
        let tops = self.stack.tree.tops.borrow();
        let mut all = tops.iter().flat_map(|top| top.kind().conditions());
        all.any(|(_, condition)| condition.has_failed_write() && condition.health() == Health::Online)
    }

    /// Whether a leaf did not take writes, or was not there, and its log does not say so of `txg`.
    pub(crate) fn has_unnoted(&self, txg: Txg) -> bool {
        let tops = self.stack.tree.tops.borrow();
        let mut all = tops.iter().filter(|t| !t.is_hole() && !t.is_indirect()).flat_map(|top| top.kind().conditions());
        all.any(|(_, c)| (c.has_failed_write() || !c.health().is_open()) && !c.missing().contains(txg))
    }

    /// At the beginning of the sync of a `txg` with changes, and at its end if there are
    /// [`Dtls::has_unnoted`]: adds it to the logs of closed leaves, adds the possible txgs of
    /// failed writes, and writes the logs that changed.
    pub(crate) async fn sync(&self, txg: Txg, tx: &Tx) -> Result<()> {
        let tops = self.stack.tree.tops.borrow().clone();
        // Failed writes may be of any txg since the last check; txgs without changes do not check.
        let last_check = self.checked.replace(txg);
        for top in tops.iter().filter(|t| !t.is_hole() && !t.is_indirect()) {
            for (guid, condition) in top.kind().conditions() {
                if !condition.health().is_open() {
                    // Without a gap after its last missing txg: it was closed since. Otherwise from
                    // the txg before, which may have been syncing when it was closed.
                    let start = condition
                        .missing()
                        .bounds()
                        .map_or(txg.0.saturating_sub(1), |(_, last)| last.0.saturating_add(1));
                    condition.miss(start.min(txg.0), txg.0 + 1);
                }
                if condition.take_failed_write() {
                    // Writes of those txgs, or of log blocks in the open ones.
                    condition.miss(last_check.0.min(txg.0.saturating_sub(1)), txg.0 + 3);
                }
                if condition.take_dirty() {
                    self.write(top, guid, &condition.missing(), tx).await?;
                }
            }
        }
        Ok(())
    }

    async fn write(&self, top: &Rc<Top>, guid: Guid, set: &TxgSet, tx: &Tx) -> Result<()> {
        let old = top.config_ref().find(guid).and_then(|c| c.dtl).filter(|o| o.0 != 0);
        let set_object = |object: Option<ObjectId>| {
            top.update_config(|c| {
                if let Some(leaf) = c.find_mut(guid) {
                    leaf.dtl = object;
                }
            });
            self.config.mark_dirty();
        };
        if set.is_empty() {
            if let Some(object) = old {
                free_space_map(&self.stack.mos, &self.stack.features, object, tx).await?;
                set_object(None);
            }
            return Ok(());
        }
        let dn = match old {
            Some(object) => self.stack.mos.hold(object).await?,
            None => {
                let dn = alloc_space_map(&self.stack.mos, &self.stack.features, DTL_BLKSZ, tx).await?;
                set_object(Some(dn.object()));
                dn
            }
        };
        let mut encoder =
            Encoder::new(0, u64::from(DTL_BLKSZ), 0, self.stack.features.is_active(FeatureId::SpacemapV2));
        encoder.group(MapType::Alloc, 1, tx.txg().0);
        let mut total = 0i64;
        for &(start, end) in set.runs() {
            // A log without an end is written up to the txgs that may be in flight.
            let end = end.min(tx.txg().0 + 4);
            if start < end {
                encoder.run(MapType::Alloc, start, end - start);
                total += (end - start) as i64;
            }
        }
        let length = encoder.length();
        let bytes = encoder.finish();
        dn.free_range(0, u64::MAX, tx).await?;
        dn.write(0, &bytes, tx).await?;
        set_header(&dn, length, total, [0; HISTOGRAM_BUCKETS], tx).map(drop)
    }
}
