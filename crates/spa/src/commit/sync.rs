//! Syncing a txg: from dirty memory to a new uberblock (format pages 01 section 7 and 06 section
//! 9).
//!
//! 1. Pass by pass: the DSL writes dirty object sets and runs sync tasks; freed blocks go back to
//!    their metaslabs (first pass) or to the deferred list; changed metaslabs append to their space
//!    maps (in the first txg after an import also the log space maps' changes); the MOS is written.
//!    Writing the MOS allocates, which changes space maps, which dirties the MOS: from the second
//!    pass on blocks born in this txg are overwritten in place, from the eighth compression is off,
//!    so it converges after a few passes.
//! 2. All device writes are awaited once, then the devices flush: everything of the txg is on disk
//!    but not reachable.
//! 3. If the configuration changed: labels L0 and L2, flush. The uberblock into all four labels,
//!    flush: the txg is committed. Labels L1 and L3.
//!
//! A block, a flush or a label that no device accepts suspends the pool; the txg continues from
//! there when `zpool clear` resumes it ([`vdev::FailGate`]). Any other error, and dropping the
//! unwritten changes, ends it: the state on disk stays that of the last committed txg.
//!
//! In a frozen pool (`Pool::freeze`) the sync ends with step 1, and nothing is freed: labels and
//! uberblocks stay those of its last txg, and what is written since goes to free space.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use base::{Error, ErrorKind, Guid, Nanos, ObjectId, Result, ResultExt, SYNC_PASS_DEFERRED_FREE, Txg, VdevId};
use dmu::Tx;
use dmu::bpobj::Bpobj;
use metaslab::Run;
use ondisk::blkptr::Blkptr;
use ondisk::feature::FeatureId;
use ondisk::label::{ConfigRegion, MosConfig, PoolState};
use ondisk::space_map::{Encoder, MapType};
use ondisk::uberblock::{Reflow, Uberblock};
use rt::cost::{FREE, METASLAB, REAP, SPACE_RUN};
use vdev::Top;
use vdev::labels::{LabelPair, write_config, write_uberblock};
use zio::{References, WriteDone};

use super::Commit;
use crate::commit::checkpoint;
use crate::commit::removed::sync_obsolete;
use crate::commit::space_map::{alloc_space_map, set_header};
use crate::commit::store::Committed;
use crate::devices::objects::make_root_zap;

/// Block size of a metaslab's space map without log space maps (format page 06 section 2).
const SPACE_MAP_BLKSZ: u32 = 16 << 10;
/// More passes are a defect of weir; OpenZFS needs 3 to 8, beyond 8 nothing is compressed.
const PASSES_MAX: u32 = 60;
/// How often a txg notes writes that failed during its sync. More go to the next one.
const NOTES_MAX: u32 = 4;
/// Entries taken from the deferred list at once.
const DEFERRED_BATCH: usize = 4096;
/// Runs of a space map encoded between two charges.
const SPACE_RUNS: usize = 512;

impl Commit {
    /// Syncs `txg`. Only the sync loop calls this.
    pub(crate) async fn sync_txg(&self, txg: Txg) -> Result<()> {
        let tx = Tx::syncing(txg);
        let mut done: Vec<WriteDone> = Vec::new();
        let mut root: Option<Blkptr> = None;
        self.devices.take_changes(&tx).await?;
        self.devices.condenser().sync(&tx).await?;
        self.scan.defer_resilvers(&tx).await?;
        self.move_first_part().await?;
        self.brt.apply(txg, &self.ddt).await?;
        self.devices.expander().save(&tx).await?;
        self.devices.evacuator().save(&tx).await?;
        // Requests during this sync are for the next txg.
        let requested = self.config.is_dirty() || self.checkpoint.is_dirty() || self.history.is_dirty();
        let written = requested || self.is_dirty(txg);
        if written || self.devices.dtls().has_failed_writes() {
            self.devices.dtls().sync(txg, &tx).await?;
        }
        // Changes of the configuration from now on are for the next txg.
        let mut config = self.config.take_dirty(txg);
        if let Some(config) = &config {
            self.config.write(config, &tx).await?;
        }
        self.history.sync(&tx).await?;
        if written {
            let now = self.stack.rt.wall_clock().secs.max(0) as u64;
            let last = config.is_some() && self.config.state() != PoolState::Active;
            self.times.sync((&self.stack.directory, &self.stack.features), now, last, &tx).await?;
        }
        let committed = self.uberblock();
        self.checkpoint.begin(&checkpoint::Cx::of(&self.stack), &committed, &tx).await?;
        let (mut pass, mut notes) = (0, 0);
        loop {
            pass += 1;
            assert!(
                pass <= PASSES_MAX,
                "txg {txg} does not converge after {PASSES_MAX} passes: {:?}",
                self.dirty_part(txg)
            );
            done.extend(self.stack.dsl().sync(txg, pass).await?);
            if pass == 1 {
                self.scan.sync(txg, committed.rootbp, (&self.ddt, &self.brt), &tx).await?;
                self.history.sync_events(&tx).await?;
                make_root_zap(&self.stack, &self.config, &tx).await?;
            }
            if self.stack.features.take_label_changed() {
                let new = self.config.at(txg);
                self.config.write(&new, &tx).await?;
                config = Some(new);
            }
            self.process_frees(txg, pass, &tx).await?;
            if pass == 1 {
                if !self.is_dirty(txg) && !self.is_flush_due(txg) {
                    // Nothing to commit, but charges end and deferred space ages by a txg.
                    self.finish_txg(txg).await?;
                    return Ok(());
                }
                self.process_deferred(txg, &tx).await?;
            }
            self.sync_references(txg, pass, &tx).await?;
            if pass == 1 {
                self.flush_logs(txg, &tx).await?;
            }
            self.checkpoint.sync(&checkpoint::Cx::of(&self.stack), pass, &tx).await?;
            if sync_obsolete(&self.stack, pass, &tx).await? {
                self.devices.condenser().look();
            }
            self.devices.evacuator().save_counts(&tx).await?;
            self.sync_metaslabs(txg, pass, &tx).await?;
            if let Some(synced) = self.stack.mos.sync(txg, pass).await? {
                root = Some(synced.bp);
                done.extend(synced.done);
            }
            if self.is_dirty(txg) {
                continue;
            }
            for write in done.drain(..) {
                self.stack.rt.spend(REAP).await;
                write.await?;
            }
            // A write that failed is noted in the same txg: the device may be there again when its
            // uberblock is written, and then tells after a crash of nothing that it missed.
            if notes == NOTES_MAX || !self.devices.dtls().has_unnoted(txg) {
                break;
            }
            notes += 1;
            self.devices.dtls().sync(txg, &tx).await?;
            let new = self.config.at(txg);
            self.config.write(&new, &tx).await?;
            config = Some(new);
        }
        if let Some(error) = self.stack.core.take_error() {
            return Err(error);
        }
        let root = root.unwrap_or_else(|| self.uberblock.borrow().rootbp);
        while let Err(e) = self.commit(txg, root, &config).await {
            // Retry everything from the flush on: the txg must not be reachable before all of its
            // blocks are on disk.
            self.stack.tree.gate.suspend(&e).await?;
        }
        self.stack.store.commit();
        if config.is_some() {
            self.events.post("config_sync");
        }
        if !self.stack.txg.is_frozen(txg) {
            self.devices.relabel().await;
        }
        self.finish_txg(txg).await?;
        self.devices.works().autotrim_due();
        Ok(())
    }

    /// Ends the txg: its deferred space becomes available to later ones.
    async fn finish_txg(&self, txg: Txg) -> Result<()> {
        let mut done = None;
        while self.stack.alloc.sync_done_next(txg, &mut done) {
            self.stack.rt.spend(METASLAB).await;
        }
        self.stack.alloc.sync_done_end(txg);
        let deferred = Bpobj::open(&self.stack.mos, self.sync_bplist).await?.space()?.bytes;
        // Before its charges end: either of the two counts the txg's space.
        self.push_space(deferred);
        self.stack.dsl().synced(txg);
        self.ddt.synced();
        self.brt.synced();
        let wanted = self.scan.wants_txg() || self.devices.condenser().wants_txg();
        if wanted || self.devices.dtls().has_failed_writes() {
            self.stack.txg.kick();
        }
        Ok(())
    }

    /// Whether the txg has more to write. Checkpoint requests during its passes are for the next
    /// txg.
    fn is_dirty(&self, txg: Txg) -> bool {
        self.dirty_part(txg).is_some()
    }

    /// The first part that the txg has still to write.
    fn dirty_part(&self, txg: Txg) -> Option<&'static str> {
        let dirt: [(&dyn Fn() -> bool, &str); 9] = [
            (&|| self.stack.mos.is_dirty(txg), "the MOS"),
            (&|| self.stack.dsl().is_dirty(txg), "a dataset"),
            (&|| self.stack.core.has_frees(), "frees"),
            (&|| !self.stack.alloc.dirty_metaslabs(txg).is_empty(), "a metaslab"),
            (&|| !self.logs.borrow().is_empty(), "a log space map"),
            (&|| self.ddt.is_dirty(txg), "a deduplication table"),
            (&|| self.brt.is_dirty(txg), "a block reference table"),
            (&|| self.stack.alloc.has_held_back(), "what a checkpoint holds back"),
            (&|| self.stack.zio().has_obsolete(), "obsolete ranges"),
        ];
        dirt.into_iter().find(|(there, _)| there()).map(|d| d.1)
    }

    /// Frees the pass's freed blocks: at once in the first pass, onto the deferred list later.
    async fn process_frees(&self, txg: Txg, pass: u32, tx: &Tx) -> Result<()> {
        let frees = self.stack.core.take_frees();
        if frees.is_empty() {
            return Ok(());
        }
        if pass < SYNC_PASS_DEFERRED_FREE {
            for bp in &frees {
                self.stack.rt.spend(FREE).await;
                self.free_now(bp, txg).await?;
            }
            return Ok(());
        }
        let zio = self.stack.zio();
        let entries: Vec<(Blkptr, u64)> = frees.iter().map(|bp| (*bp, zio.dsize(bp))).collect();
        Bpobj::open(&self.stack.mos, self.sync_bplist).await?.enqueue(&entries, tx).await
    }

    async fn free_now(&self, bp: &Blkptr, txg: Txg) -> Result<()> {
        if bp.is_gang() { self.stack.zio().free_gang(bp, txg).await } else { self.stack.zio().free(bp, txg) }
    }

    /// Frees the blocks that earlier txgs deferred.
    async fn process_deferred(&self, txg: Txg, tx: &Tx) -> Result<()> {
        let list = Bpobj::open(&self.stack.mos, self.sync_bplist).await?;
        let zio = self.stack.zio().clone();
        while !list.is_empty()? {
            for bp in list.drain(DEFERRED_BATCH, tx, &|bp| zio.dsize(bp)).await? {
                self.stack.rt.spend(FREE).await;
                self.free_now(&bp, txg).await?;
            }
        }
        Ok(())
    }

    /// Whether the logs of dedup tables are to be flushed although nothing else is written. The
    /// last txg leaves them as they are.
    fn is_flush_due(&self, txg: Txg) -> bool {
        self.config.state() == PoolState::Active && self.ddt.wants_flush(txg)
    }

    /// Updates the references in the dedup tables and in the block reference table, and frees the
    /// blocks without any.
    async fn sync_references(&self, txg: Txg, pass: u32, tx: &Tx) -> Result<()> {
        let flush = pass == 1 && self.is_flush_due(txg);
        if !flush && !self.ddt.is_dirty(txg) && !self.brt.is_dirty(txg) {
            return Ok(());
        }
        let dropped = self.ddt.take_frees(txg).await?;
        self.free_all(&dropped.gone, txg).await?;
        // A pointer that no dedup table has may be a clone. In a pool with fast dedup it may also
        // be a block whose entry was pruned; without it, as OpenZFS 2.1 has it, nothing is freed.
        let pruned = self.stack.features.is_enabled(FeatureId::FastDedup);
        for bp in &dropped.unknown {
            if self.brt.may_have(bp) {
                self.brt.free(bp, txg);
            } else if pruned {
                self.stack.rt.spend(FREE).await;
                self.stack.zio().free_unshared(bp, txg).await?;
            }
        }
        for bp in self.brt.take_frees(txg).await?.iter().filter(|bp| pruned || !bp.dedup()) {
            self.stack.rt.spend(FREE).await;
            self.stack.zio().free_unshared(bp, txg).await?;
        }
        self.brt.sync(tx).await?;
        let gone = self.ddt.sync(flush, tx).await?;
        self.free_all(&gone, txg).await
    }

    async fn free_all(&self, blocks: &[Blkptr], txg: Txg) -> Result<()> {
        for bp in blocks {
            self.stack.rt.spend(FREE).await;
            self.free_now(bp, txg).await?;
        }
        Ok(())
    }

    /// Flushes the log space maps of other writers to the metaslabs' own maps, and frees the logs.
    async fn flush_logs(&self, txg: Txg, tx: &Tx) -> Result<()> {
        let logs = self.logs.take();
        if logs.is_empty() {
            return Ok(());
        }
        for (vdev, ms) in self.stack.store.unflushed_metaslabs() {
            // Load the metaslab, so that damage shows before anything is written, and the histogram
            // is that of the free segments.
            self.stack.alloc.load(vdev, ms).await?;
            self.sync_metaslab(vdev, ms, txg, 1, tx)
                .await
                .map_err(|e| e.at(format!("metaslab {ms} of vdev {vdev}")))?;
        }
        logs.retire(&self.stack.mos, &self.stack.features, tx).await
    }

    async fn sync_metaslabs(&self, txg: Txg, pass: u32, tx: &Tx) -> Result<()> {
        for (vdev, ms) in self.stack.alloc.dirty_metaslabs(txg) {
            self.sync_metaslab(vdev, ms, txg, pass, tx)
                .await
                .map_err(|e| e.at(format!("metaslab {ms} of vdev {vdev}")))?;
        }
        Ok(())
    }

    /// Appends the changes of one metaslab to its space map, or rewrites the map if that is much
    /// shorter.
    async fn sync_metaslab(&self, vdev: VdevId, ms: u64, txg: Txg, pass: u32, tx: &Tx) -> Result<()> {
        let changes = self.stack.alloc.take_changes(vdev, ms, txg);
        let geometry = self.stack.store.geometry(vdev);
        let object = match changes.object {
            Some(object) => object,
            None => self.create_space_map(vdev, ms, tx).await?,
        };
        let dn = self.stack.mos.hold(object).await?;
        let old = self.stack.store.newest(vdev, ms).map_or(0, |c| c.length);
        let v2 = self.stack.features.is_active(FeatureId::SpacemapV2);
        let start = if changes.condense.is_some() { 0 } else { old };
        let mut encoder = Encoder::new(u32::from(geometry.ashift), u64::from(dn.block_size()), start, v2);
        let base = geometry.range(ms).start;
        let mut groups: Vec<(MapType, Vec<Run>)> = Vec::new();
        let unflushed = self.stack.store.flush(vdev, ms);
        match changes.condense.clone() {
            Some(all) => groups.push((MapType::Alloc, all)),
            None => {
                if let Some(u) = unflushed {
                    groups.push((MapType::Alloc, u.allocs.iter().collect()));
                    groups.push((MapType::Free, u.frees.iter().collect()));
                }
                groups.push((MapType::Alloc, changes.allocs));
                groups.push((MapType::Free, changes.frees));
            }
        }
        self.stack.rt.spend(METASLAB).await;
        for (kind, runs) in groups.into_iter().filter(|(_, runs)| !runs.is_empty()) {
            encoder.group(kind, pass, txg.0);
            for some in runs.chunks(SPACE_RUNS) {
                self.stack.rt.spend(Nanos(SPACE_RUN.0 * some.len() as u64)).await;
                some.iter().for_each(|run| encoder.run(kind, run.start - base, run.size));
            }
        }
        let length = encoder.length();
        let bytes = encoder.finish();
        if changes.condense.is_some() {
            dn.free_range(0, u64::MAX, tx).await?;
        }
        dn.write(start, &bytes, tx).await?;
        let histogram = set_header(&dn, length, changes.alloc_after, changes.histogram, tx)?;
        self.stack.alloc.set_length(vdev, ms, length);
        self.stack.store.note(vdev, ms, Committed { object, length, alloc: changes.alloc_after, histogram });
        Ok(())
    }

    async fn create_space_map(&self, vdev: VdevId, ms: u64, tx: &Tx) -> Result<ObjectId> {
        let dn = alloc_space_map(&self.stack.mos, &self.stack.features, SPACE_MAP_BLKSZ, tx).await?;
        let top = self.stack.tree.top(vdev)?;
        let array = self.stack.mos.hold(top.ms_array.get()).await?;
        array.write(ms * 8, &dn.object().0.to_le_bytes(), tx).await?;
        self.stack.alloc.set_object(vdev, ms, dn.object());
        Ok(dn.object())
    }

    /// Commits the txg: flush, labels, uberblock, flush, labels.
    async fn commit(&self, txg: Txg, rootbp: Blkptr, config: &Option<MosConfig>) -> Result<()> {
        if self.stack.txg.is_frozen(txg) {
            let mut ub = self.uberblock.borrow_mut();
            (ub.txg, ub.rootbp) = (txg, rootbp);
            return Ok(());
        }
        let copied = self.devices.expander().copied();
        self.stack.tree.flush_all().await?;
        let timestamp = self.stack.rt.wall_clock().secs.max(0) as u64;
        let mut ub = Uberblock::new(txg, self.stack.tree.guid_sum(), timestamp, rootbp);
        ub.version = self.config.version();
        let copied = if planted!(ReflowUnflushed) { self.devices.expander().copied() } else { copied };
        ub.raidz_reflow = self.devices.expander().word(copied);
        self.heartbeat.stamp(&mut ub)?;
        let mut regions = BTreeMap::new();
        if let Some(config) = config {
            self.write_labels(LabelPair::First, config, &mut regions).await?;
            self.stack.tree.flush_all().await?;
        }
        self.write_uberblock(&ub).await?;
        if let Some(config) = config {
            self.write_labels(LabelPair::Second, config, &mut regions).await?;
            self.stack.tree.flush_all().await?;
        }
        self.devices.expander().committed(ub.raidz_reflow);
        self.heartbeat.committed(&ub);
        *self.uberblock.borrow_mut() = ub;
        self.stack.tree.set_committed(txg);
        Ok(())
    }

    /// Writes an uberblock to all devices, durably.
    async fn write_uberblock(&self, ub: &Uberblock) -> Result<()> {
        let tops = self.stack.tree.tops.borrow().clone();
        for top in &tops {
            let mut results = Vec::new();
            for leaf in top.open_leaves() {
                results.push(write_uberblock(&leaf, top.ashift, ub).await);
            }
            check_any_written(top, results)?;
        }
        self.stack.tree.flush_all().await
    }

    /// Moves the first part of a RAID-Z whose expansion waits for that: in the sync of a txg, so
    /// that the last uberblock is not replaced meanwhile but by itself.
    async fn move_first_part(&self) -> Result<()> {
        // The uberblock could not tell of it.
        if self.stack.txg.is_frozen(self.stack.txg.open_txg()) {
            return Ok(());
        }
        let Some(part) = self.devices.expander().first_part().await else { return Ok(()) };
        self.rewrite_uberblock(part.valid()).await?;
        if part.write_back().await {
            self.rewrite_uberblock(part.synced()).await?;
            part.end();
        }
        Ok(())
    }

    /// Writes the last uberblock again with other progress of an expansion, so that it counts as
    /// newer. Heartbeats tell it first: none with the old progress is newer than it.
    async fn rewrite_uberblock(&self, word: Option<Reflow>) -> Result<()> {
        let Some(word) = word else { return Ok(()) };
        let mut ub = self.uberblock();
        let now = self.stack.rt.wall_clock().secs.max(0) as u64;
        (ub.raidz_reflow, ub.timestamp) = (word, ub.timestamp.max(now) + 1);
        self.heartbeat.stamp(&mut ub)?;
        self.heartbeat.committed(&ub);
        while let Err(e) = self.write_uberblock(&ub).await {
            self.stack.tree.gate.suspend(&e).await?;
        }
        *self.uberblock.borrow_mut() = ub;
        Ok(())
    }

    /// After [`crate::Pool::give_up`]: marks the pool as destroyed in the labels of every device
    /// that answers.
    pub(crate) async fn mark_destroyed(&self) {
        self.config.update(|c| c.state = PoolState::Destroyed);
        let config = self.config.at(self.stack.tree.committed.get());
        let tops = self.stack.tree.tops.borrow().clone();
        for (index, top) in tops.iter().enumerate() {
            for leaf in top.open_leaves() {
                let label = config.label_for(index, leaf.guid()).map(|label| ConfigRegion::new(&label.to_nvlist()));
                let Some(Ok(mut region)) = label else { continue };
                for pair in [LabelPair::First, LabelPair::Second] {
                    // A device that does not answer keeps its labels.
                    let _ = write_config(&leaf, pair, &mut region).await;
                }
            }
        }
        let _ = self.stack.tree.flush_all().await;
    }

    /// `regions`: the encoded labels, by the devices' guids; the second pair reuses those of the
    /// first.
    async fn write_labels(
        &self,
        pair: LabelPair,
        config: &MosConfig,
        regions: &mut BTreeMap<Guid, ConfigRegion>,
    ) -> Result<()> {
        let tops = self.stack.tree.tops.borrow().clone();
        for (index, top) in tops.iter().enumerate() {
            let mut results = Vec::new();
            for leaf in top.open_leaves() {
                let region = match regions.entry(leaf.guid()) {
                    Entry::Occupied(made) => made.into_mut(),
                    Entry::Vacant(place) => {
                        let label = config.label_for(index, leaf.guid()).ok_or_else(|| {
                            Error::corrupt(format!("device '{}' is not in the pool's configuration", leaf.path()))
                        })?;
                        place.insert(ConfigRegion::new(&label.to_nvlist()).at(|| leaf.path())?)
                    }
                };
                results.push(write_config(&leaf, pair, region).await);
            }
            check_any_written(top, results)?;
        }
        Ok(())
    }
}

/// The labels of a top-level vdev count as written if those of one of its devices are (format page
/// 01 section 7); a log vdev is not required.
fn check_any_written(top: &Top, results: Vec<Result<()>>) -> Result<()> {
    let good = top.is_log || results.is_empty() || results.iter().any(Result::is_ok);
    let mut errors = results.into_iter().filter_map(Result::err);
    match errors.find(|e| !good || e.kind() == ErrorKind::Interrupted) {
        Some(e) => Err(e),
        None => Ok(()),
    }
}
