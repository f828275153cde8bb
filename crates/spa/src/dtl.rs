//! Dirty time logs on disk: a space map of txgs for each leaf that misses some (format page 09
//! section 6).

use std::rc::Rc;

use base::{Error, Guid, ObjectId, Result, ResultExt, Txg};
use dmu::{Objset, Tx};
use ondisk::feature::FeatureId;
use ondisk::space_map::{Encoder, Entry, HISTOGRAM_BUCKETS, MapType, SpaceMapPhys, entries};
use vdev::{Condition, Health, Top, TxgSet, VdevTree};

use crate::import::FoundDevice;
use crate::pool::Pool;
use crate::space_map::{alloc_space_map, free_space_map, set_header};

/// Block size of such a space map (format page 09 section 6).
const DTL_BLKSZ: u32 = 4096;

/// Longest log that is read, in bytes.
const DTL_MAX: u64 = 64 << 20;

/// The txgs in such an object.
async fn read_dtl(mos: &Objset, object: ObjectId) -> Result<TxgSet> {
    let dn = mos.hold(object).await?;
    let phys = SpaceMapPhys::parse(&dn.bonus())?;
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

/// Every leaf, there or not, of every top-level vdev: its dirty time log object and its condition.
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

/// Reads what every leaf misses. A log that cannot be read says nothing, and then the leaf may miss
/// anything; what was wrong comes back.
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

/// Devices whose newest uberblock is older than that of others of the same top-level vdev missed
/// the txgs between, whatever the logs say: who wrote without them may have been cut off before it
/// could log that. A rewind to an older state does not count.
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

impl Pool {
    /// Whether some leaf failed to write that is thought to be good, and that is not in its log
    /// yet. Those with more errors than that would keep the pool busy with them.
    pub(crate) fn has_failed_writes(&self) -> bool {
        let tops = self.tree.tops.borrow();
        let mut all = tops.iter().flat_map(|top| top.kind().conditions());
        all.any(|(_, condition)| condition.has_failed_write() && condition.health() == Health::Online)
    }

    /// At the beginning of the sync of `txg`, in which something is written: leaves that are away
    /// miss it, those that failed to write may miss it, and what has changed is written.
    pub(crate) async fn sync_dtls(&self, txg: Txg, tx: &Tx) -> Result<()> {
        let tops = self.tree.tops.borrow().clone();
        // Failures since then have not been asked about; txgs without changes do not ask.
        let asked = self.devices.dtls_checked.replace(txg);
        for top in tops.iter().filter(|t| !t.is_hole() && !t.is_indirect()) {
            for (guid, condition) in top.kind().conditions() {
                if !condition.health().is_open() {
                    // Without a gap after what it missed before: it has been away since.
                    // The txg before was syncing when it went, perhaps.
                    let start = condition
                        .missing()
                        .bounds()
                        .map_or(txg.0.saturating_sub(1), |(_, last)| last.0.saturating_add(1));
                    condition.miss(start.min(txg.0), txg.0 + 1);
                }
                if condition.take_failed_write() {
                    // Of the writes of those txgs, or of log blocks of those that are open.
                    condition.miss(asked.0.min(txg.0.saturating_sub(1)), txg.0 + 3);
                }
                if condition.take_dirty() {
                    self.write_dtl(top, guid, &condition.missing(), tx).await?;
                }
            }
        }
        Ok(())
    }

    async fn write_dtl(&self, top: &Rc<Top>, guid: Guid, set: &TxgSet, tx: &Tx) -> Result<()> {
        let old = top.config_ref().find(guid).and_then(|c| c.dtl).filter(|o| o.0 != 0);
        let set_object = |object: Option<ObjectId>| {
            top.update_config(|c| {
                if let Some(leaf) = c.find_mut(guid) {
                    leaf.dtl = object;
                }
            });
            self.dirty_config();
        };
        if set.is_empty() {
            if let Some(object) = old {
                free_space_map(&self.mos, &self.features, object, tx).await?;
                set_object(None);
            }
            return Ok(());
        }
        let dn = match old {
            Some(object) => self.mos.hold(object).await?,
            None => {
                let dn = alloc_space_map(&self.mos, &self.features, DTL_BLKSZ, tx).await?;
                set_object(Some(dn.object()));
                dn
            }
        };
        let mut encoder = Encoder::new(0, u64::from(DTL_BLKSZ), 0, self.features.is_active(FeatureId::SpacemapV2));
        encoder.group(MapType::Alloc, 1, tx.txg().0);
        let mut total = 0i64;
        for &(start, end) in set.runs() {
            // What may be anything cannot be written down; the whole past is as good.
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
