//! The end of a removal: the vdev becomes an indirect one, or stays as it was (format page 23
//! sections 4 and 5).

use std::rc::Rc;

use base::{Error, ObjectId, Result, ResultExt, TXG_INITIAL};
use dmu::{Tx, zap};
use metaslab::Run;
use ondisk::indirect::{RemovalState, Removing};
use ondisk::vdev_config::{VdevConfig, VdevKind as ConfigKind};
use vdev::reshape::Shape;
use vdev::{Indirect, VdevKind};

use super::{Evacuator, Job, NOTICE, top_name};
use crate::commit::space_map::free_space_map;
use crate::devices::Devices;
use crate::devices::changes::Outcome;
use crate::devices::objects::{free_arrays, free_leaf_objects};

impl Evacuator {
    /// Everything is copied: the vdev becomes an indirect one.
    pub(super) async fn finish(&self, job: &Rc<Job>) -> Result<()> {
        let job = job.clone();
        self.changes.make(move |devices, tx| Box::pin(async move { devices.make_indirect(&job, tx).await })).await
    }

    /// Cancels the removal (`zpool remove -s`). Error: `NotFound` if there is none.
    pub async fn cancel(self: &Rc<Self>) -> Result<()> {
        let none = || Error::not_found("there is no removal in progress");
        let job = self.job().ok_or_else(none)?;
        job.stopping.set(true);
        self.changed.notify_all();
        self.ended().await;
        if !self.is_busy() {
            return Err(none());
        }
        let called_off = self.call_off(&job).await;
        if called_off.is_err() {
            job.stopping.set(false);
            self.run();
        }
        called_off
    }

    /// Undoes a removal whose task has ended.
    pub(super) async fn call_off(&self, job: &Rc<Job>) -> Result<()> {
        // Chunks of txgs under way get their entries, or give up their places.
        self.stack.sync().await?;
        let job = job.clone();
        self.changes.make(move |devices, tx| Box::pin(async move { devices.keep_vdev(&job, tx).await })).await
    }
}

impl Devices {
    async fn make_indirect(&self, job: &Rc<Job>, tx: &Tx) -> Outcome<()> {
        if let Some(e) = job.failed.borrow().clone() {
            return Ok(Err(e));
        }
        let (stack, top, evacuator) = (&self.stack, &job.top, &self.evacuator);
        let Some(record) = evacuator.record.get() else { return Ok(Err(Error::corrupt("the removal has no record"))) };
        assert!(job.flights.borrow().is_empty(), "nothing is copied any more");
        job.note_missed(stack, tx.txg());
        for leaf in top.leaves() {
            self.changes.queue_relabel(&VdevKind::Leaf(leaf.clone()), self.config.blank_label(top, leaf.guid()));
        }
        self.events.post_vdev("vdev_remove_dev", top.guid());
        let text = format!("{} vdev {}", self.config.name(), top.id);
        stack.core.log_internal("vdev remove completed", text, tx.txg());
        let old = top.config();
        for object in stack.alloc.space_maps(top.id) {
            free_space_map(&stack.mos, &stack.features, object, tx).await?;
        }
        free_arrays(stack, &old, tx).await?;
        for leaf in old.leaves() {
            free_leaf_objects(stack, leaf, tx).await?;
        }
        stack.alloc.forget_top(top.id);
        stack.store.forget(top.id);
        let indirect = Indirect::default();
        indirect.set_map(job.objects.entries().clone());
        let mut config = VdevConfig::new(ConfigKind::Indirect, u64::from(top.id.0), stack.rt.new_guid());
        (config.asize, config.ashift) = (old.asize, old.ashift);
        (config.metaslab_array, config.metaslab_shift) = (Some(ObjectId(0)), old.metaslab_shift);
        (config.is_log, config.zap_top, config.create_txg) = (old.is_log, old.zap_top, old.create_txg);
        // As vdevs in memory have it in OpenZFS.
        config.whole_disk = Some(0);
        (config.indirect_object, config.indirect_births) = (old.indirect_object, old.indirect_births);
        config.prev_indirect_vdev = record.prev.map(|v| u64::from(v.0));
        top.ms_array.set(ObjectId(0));
        top.set_shape(Shape { kind: VdevKind::Indirect(Rc::new(indirect)), config });
        let now = stack.rt.wall_clock().secs.max(0) as u64;
        let rest = job.ledger.borrow_mut().take_all_done();
        let copied = record.copied.saturating_add(rest);
        let record = Removing { state: RemovalState::Finished, prev: Some(top.id), end: now, copied, ..record };
        self.end_removal(record, tx).await?;
        Ok(Ok(()))
    }

    /// Frees the copies, and gives the vdev new blocks again.
    async fn keep_vdev(&self, job: &Rc<Job>, tx: &Tx) -> Outcome<()> {
        let (stack, top, evacuator) = (&self.stack, &job.top, &self.evacuator);
        let Some(record) = evacuator.record.get() else { return Ok(Err(Error::corrupt("the removal has no record"))) };
        assert!(job.flights.borrow().is_empty(), "nothing is copied any more");
        let mut copies = Vec::new();
        let end = job.objects.max_offset();
        for ms in 0..top.ms_count() {
            let (start, _) = top.ms_range(ms);
            if start >= end {
                break;
            }
            let found = async {
                for run in stack.alloc.live(top.id, ms).await? {
                    let upto = run.end().min(end);
                    if run.start < upto {
                        let run = Run { start: run.start, size: upto - run.start };
                        copies.extend(job.objects.copies(run.start, run.size, tx.txg())?);
                    }
                }
                Ok::<_, Error>(())
            };
            // Nothing was changed yet.
            if let Err(e) = found.await {
                return Ok(Err(e));
            }
        }
        for copy in &copies {
            stack.alloc.free(copy.to, TXG_INITIAL, tx.txg()).at(|| "a copy")?;
        }
        job.objects.free(stack, top, tx).await?;
        let zap_object = top.config_ref().zap_top.filter(|o| o.0 != 0);
        let off = match zap_object {
            Some(object) => zap::lookup_u64(&stack.mos.hold(object).await?, b"allocating").await? == Some(0),
            None => false,
        };
        top.update_config(|c| (c.removing, c.non_allocating) = (false, off));
        stack.alloc.set_passive(top.id, off);
        self.works.release(top);
        let path = top.config_ref().path.clone().unwrap_or_else(|| "-".into());
        let text = format!("{} vdev {} {path}", self.config.name(), top.id);
        stack.core.log_internal("vdev remove canceled", text, tx.txg());
        let now = stack.rt.wall_clock().secs.max(0) as u64;
        if let Some(e) = &*job.failed.borrow() {
            evacuator.notices.push(format!("{NOTICE}{} was cancelled: {e}", top_name(top)));
        }
        self.end_removal(Removing { state: RemovalState::Cancelled, end: now, ..record }, tx).await?;
        Ok(Ok(()))
    }

    async fn end_removal(&self, record: Removing, tx: &Tx) -> Result<()> {
        self.stack.zio().set_evacuation(None);
        self.evacuator.job.borrow_mut().take();
        self.evacuator.write_record(record, tx).await?;
        self.config.mark_dirty();
        self.evacuator.changed.notify_all();
        // Devices that were away when copies were made, and are back.
        let tops = self.stack.tree.tops.borrow().clone();
        let all: Vec<_> = tops.iter().flat_map(|top| top.kind().conditions()).collect();
        if all.iter().filter(|(_, c)| c.copies_are_data() && c.health().is_open()).count() > 0 {
            self.scan.request_resilver();
        }
        Ok(())
    }
}
