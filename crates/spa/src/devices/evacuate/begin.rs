//! The beginning of a removal: its conditions, and the txg that makes the mapping (format page 23
//! sections 1 and 2).

use std::rc::Rc;

use base::{Error, ErrorKind, Result, ResultExt, TXG_CONCURRENT, TXG_DEFER};
use dmu::Tx;
use metaslab::ClassKind;
use ondisk::feature::FeatureId;
use ondisk::indirect::{MAPPING_ENTRY_SIZE, RemovalState, Removing};
use vdev::{Condition, Top, VdevKind};
use zil::replay::{blocks_of, is_needed};

use super::mapping::MappingObjects;
use super::{Job, NOTICE};
use crate::devices::Devices;
use crate::devices::find::matches_name;

/// What the removal of a vdev takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemovalEstimate {
    /// Memory for its mapping, in bytes.
    pub memory: u64,
}

fn out_of_space() -> Error {
    Error::new(ErrorKind::NoSpace, "out of space: the other devices have less room than this one has in all")
}

fn bad_layout() -> Error {
    Error::invalid("invalid config; all top-level vdevs must have the same sector size and not be raidz.")
}

impl Devices {
    /// Refuses a removal that cannot be done.
    fn check_removal(&self, top: &Rc<Top>) -> Result<()> {
        if !top.is_concrete() || top.is_log {
            return Err(Error::unsupported("only top-level vdevs with data, logs, caches and spares are removed"));
        }
        if !self.stack.features.is_enabled(FeatureId::DeviceRemoval) {
            let why = "the pool's feature 'device_removal' is not enabled: 'zpool set feature@device_removal=enabled' enables it";
            return Err(Error::unsupported(why));
        }
        let counted = self.stack.features.is_enabled(FeatureId::ObsoleteCounts);
        if counted && top.config_ref().zap_top.is_none_or(|o| o.0 == 0) {
            return Err(Error::unsupported("the vdev has no ZAP to keep in what of it is obsolete"));
        }
        if top.config_ref().removing {
            return Err(Error::new(ErrorKind::Busy, "removal for this vdev is already in progress."));
        }
        let tops = self.stack.tree.tops.borrow();
        let spaces = self.stack.alloc.top_spaces();
        let class_of = |id| spaces.iter().find(|s| s.vdev == id).map(|s| s.class);
        let own = spaces.iter().find(|s| s.vdev == top.id).ok_or_else(bad_layout)?;
        if own.class != ClassKind::Normal {
            let (alloc, total) = self.stack.alloc.class_use(ClassKind::Normal);
            if total.saturating_sub(alloc) < own.alloc {
                return Err(out_of_space());
            }
        } else if !top.config_ref().non_allocating && self.stack.dsl().root().available() < top.dsize(own.total) {
            return Err(out_of_space());
        }
        if self.evacuator.is_busy() {
            return Err(Error::new(ErrorKind::Busy, "Pool busy; removal may already be in progress"));
        }
        if self.expander.is_busy() {
            return Err(bad_layout());
        }
        if !top.is_usable() {
            return Err(Error::new(ErrorKind::Io, "its devices are not there"));
        }
        // The others are not read.
        let is_complete = |c: &Condition| c.health().is_open() && c.missing().is_empty();
        if !top.kind().conditions().iter().any(|(_, c)| is_complete(c)) {
            let why =
                "Pool busy; its devices miss some of its data: 'zpool wait -t resilver' waits until they are complete";
            return Err(Error::new(ErrorKind::Busy, why));
        }
        for other in tops.iter().filter(|t| t.is_concrete() && !t.is_log) {
            if other.ashift != top.ashift {
                return Err(bad_layout());
            }
        }
        for other in tops.iter().filter(|t| t.is_concrete()) {
            let fits = match other.kind() {
                VdevKind::Mirror(m) => m.children.iter().all(VdevKind::is_leaf),
                VdevKind::Raidz(_) | VdevKind::Draid(_) => false,
                _ => true,
            };
            if !fits {
                return Err(bad_layout());
            }
        }
        let takes = |t: &&Rc<Top>| t.id != top.id && t.is_usable() && !t.config_ref().non_allocating;
        if !tops.iter().filter(takes).any(|t| class_of(t.id) == Some(ClassKind::Normal)) {
            return Err(Error::invalid("it is the last vdev that takes new blocks"));
        }
        Ok(())
    }

    /// What the removal of a vdev would take (`zpool remove -n`); spares, caches and logs take
    /// nothing. Error: `NotFound` if there is no such device.
    pub fn estimate_removal(&self, name: &str) -> Result<Option<RemovalEstimate>> {
        let aux = self.aux.get();
        if aux.spares.iter().chain(&aux.caches).any(|c| matches_name(c, name)) {
            return Ok(None);
        }
        let (top, guid) = self.find(name)?;
        if guid != top.guid() || !top.is_concrete() || top.is_log {
            return Ok(None);
        }
        let t = self.evacuator.tunables.get();
        let spaces = self.stack.alloc.top_spaces();
        let mut to_copy = spaces.iter().find(|s| s.vdev == top.id).map_or(0, |s| s.alloc);
        // There are as many ranges in use as free ones; small free ones are copied with the others.
        let mut entries = 0u64;
        for (log2, count) in self.stack.alloc.free_histogram(top.id).into_iter().enumerate() {
            if (1u64 << (log2 + 1).min(63)) < t.max_span {
                to_copy = to_copy.saturating_add(count << (log2 + 1));
            } else {
                entries += count;
            }
        }
        entries += to_copy / t.max_segment.max(1);
        Ok(Some(RemovalEstimate { memory: entries * MAPPING_ENTRY_SIZE as u64 }))
    }

    /// Begins to remove a top-level vdev with data; the rest is done in the background.
    pub(in crate::devices) async fn remove_data(&self, top: &Rc<Top>) -> Result<()> {
        self.check_removal(top)?;
        let before = top.config_ref().non_allocating;
        top.update_config(|c| c.non_allocating = true);
        self.stack.alloc.set_passive(top.id, true);
        let begun = self.begin_removal(top).await;
        if begun.is_err() && self.stack.txg.ended().is_none() {
            top.update_config(|c| c.non_allocating = before);
            self.stack.alloc.set_passive(top.id, before);
            self.works.release(top);
            // It may be in the configuration on disk meanwhile.
            self.config.mark_dirty();
        }
        begun
    }

    async fn begin_removal(&self, top: &Rc<Top>) -> Result<()> {
        // Blocks of intent logs are written long after they got their places: no log may have one
        // there.
        for ds in self.stack.dsl().all() {
            if let Some(os) = ds.opened() {
                os.end_log_chain().await?;
            }
        }
        for _ in 0..TXG_CONCURRENT + TXG_DEFER {
            self.stack.sync().await?;
        }
        self.check_logs(top).await?;
        self.works.hold(top).await;
        self.check_removal(top)?;
        // As in OpenZFS, also if the removal is cancelled later.
        top.leaves().iter().for_each(|leaf| self.works.cancel(leaf.guid()));
        let top = top.clone();
        self.changes
            .make(move |devices, tx| {
                Box::pin(async move {
                    devices.make_mapping(&top, tx).await?;
                    Ok(Ok(()))
                })
            })
            .await?;
        self.evacuator.run();
        Ok(())
    }

    /// Refuses logs that have to be replayed, and such with a block on the vdev.
    async fn check_logs(&self, top: &Top) -> Result<()> {
        for ds in self.stack.dsl().all() {
            let header = ds.zil_header().await.at(|| ds.name())?;
            if header.is_empty() {
                continue;
            }
            let blocks = blocks_of(self.stack.zio(), &header).await.unwrap_or_default();
            let first = std::iter::once(header.log).filter(|bp| !bp.is_hole());
            let is_there = first.chain(blocks).any(|bp| bp.dvas().any(|dva| dva.vdev() == top.id));
            if is_needed(&header) || is_there {
                let why =
                    format!("Mount encrypted datasets to replay logs. That of '{}' is not replayed yet", ds.name());
                return Err(Error::new(ErrorKind::Busy, why));
            }
        }
        Ok(())
    }

    /// Makes an empty mapping and the record of the removal.
    async fn make_mapping(&self, top: &Rc<Top>, tx: &Tx) -> Result<()> {
        let stack = &self.stack;
        let to_copy = stack.alloc.live_bytes(top.id);
        let objects = MappingObjects::create(stack, top, tx).await?;
        top.update_config(|c| c.removing = true);
        let prev = self.evacuator.record.get().filter(|r| r.state != RemovalState::None).and_then(|r| r.prev);
        let record = Removing {
            state: RemovalState::Active,
            vdev: top.id,
            prev,
            start: stack.rt.wall_clock().secs.max(0) as u64,
            end: 0,
            to_copy,
            copied: 0,
        };
        self.evacuator.write_record(record, tx).await?;
        // The mapping is found through the directory, so that must not be on the vdev.
        stack.directory.rewrite_blocks(0..stack.directory.max_blkid() + 1, false, tx).await?;
        self.evacuator.notices.drop_about(NOTICE);
        let job = Job::new(stack, top, objects);
        stack.zio().set_evacuation(Some(job.clone()));
        *self.evacuator.job.borrow_mut() = Some(job);
        let path = top.config_ref().path.clone().unwrap_or_else(|| "-".into());
        let text = format!("{} vdev {} {path}", self.config.name(), top.id);
        stack.core.log_internal("vdev remove started", text, tx.txg());
        self.config.mark_dirty();
        Ok(())
    }
}
