//! Condensing of the mappings of removed vdevs (format page 23 section 7).
//!
//! The mapping of a removed vdev keeps an entry for each range that was copied, also when no block
//! pointer names the range any more. *Condensing* writes a new mapping without the entries that
//! are *obsolete* as a whole, so that it takes less memory. One mapping is condensed at a time.
//!
//! The normal path ([`Condenser`]):
//!
//! 1. The sync of a txg after one that wrote to an obsolete map looks at the figures of all removed
//!    vdevs ([`policy`]). If one is worth it, the txg takes the obsolete map off the vdev, as the
//!    *old map*, makes an empty new mapping, and notes both in the MOS directory. What becomes
//!    obsolete from then on goes to an obsolete map of its own.
//! 2. The task sums up the counts of the old mapping and the ranges of the old map, entry by entry.
//!    It gives entries that are needed to the open txg, some at a time; the sync of the txg appends
//!    them to the new mapping, with their obsolete bytes ([`Condenser::sync`]).
//! 3. A txg makes the new mapping that of the vdev, and frees the old one, its counts and the old
//!    map. Reads and frees use the old mapping until then.
//!
//! Invariants: everything that a block pointer names is in both mappings, since obsolete ranges
//! never get block pointers again; the new mapping on disk is always a beginning of the whole one,
//! so an import goes on behind its last entry; each obsolete byte is counted once. An older state
//! of the pool, a checkpoint too, has its own mapping, whose blocks are freed by the rules for all
//! blocks: condensing needs to know nothing of it.
//!
//! An export stops the task between two pieces, a suspended pool lets it wait for its txg.
//! Read-only pools are not condensed.

mod policy;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Error, Nanos, ObjectId, Result, ResultExt, Txg, VdevId};
use dmu::{Tx, zap};
use ondisk::feature::FeatureId;
use ondisk::indirect::{CONDENSING_KEY, Condensing, MappingEntry, add_obsolete, first_after};
use ondisk::space_map::{Entry, MapType, entries};
use ondisk::zap::ZapValue;
use rt::JoinHandle;
use rt::cost::SPACE_RUN;
use rt::sync::Notify;
use vdev::{Indirect, IndirectMap, Top, VdevKind};

use super::Devices;
use super::changes::{Changes, Outcome};
use crate::commit::removed::{Mapping, MappingObject, OBSOLETE_KEY};
use crate::commit::space_map::{free_space_map, header};
use crate::notices::Notices;
use crate::stack::Stack;
use policy::{MappingState, next_kept, should_condense};

pub use policy::CondenseTunables;

/// Entries that are given to a txg at once.
const BATCH: usize = 1024;
/// Old entries that are looked at at once.
const LOOK: usize = 2048;
/// Entries that one txg appends at most: 1.5 MiB of the mapping. More wait for the next one.
const TXG_ENTRIES: usize = 64 << 10;
/// Bytes of the old map that are read at once, at least: whole blocks, which hold whole entries.
const PART: u64 = 1 << 20;
/// Ranges of the old map that are counted between two charges.
const RUNS: usize = 512;
/// How long the task waits before it looks again at what holds it.
const RETRY: Nanos = Nanos::from_secs(1);

/// A mapping that is being condensed.
struct Job {
    record: Condensing,
    top: Rc<Top>,
    /// The mapping before, which is used until the end.
    old: Rc<dyn IndirectMap>,
    object: MappingObject,
    /// The new mapping as far as it is on disk, or part of the txg that is being synced.
    entries: RefCell<Vec<MappingEntry>>,
    /// Entries of txgs that are not synced yet.
    pending: RefCell<BTreeMap<Txg, Vec<(MappingEntry, u32)>>>,
}

fn indirect_of(top: &Top) -> Option<Rc<Indirect>> {
    match top.kind() {
        VdevKind::Indirect(indirect) => Some(indirect),
        _ => None,
    }
}

impl Job {
    fn new(top: Rc<Top>, record: Condensing, object: MappingObject, entries: Vec<MappingEntry>) -> Result<Rc<Job>> {
        let old = indirect_of(&top).and_then(|i| i.map());
        let old = old.ok_or_else(|| Error::corrupt("the vdev was not removed, or its mapping is not there"))?;
        let (entries, pending) = (RefCell::new(entries), RefCell::default());
        Ok(Rc::new(Job { record, top, old, object, entries, pending }))
    }

    /// The one of that record.
    async fn open(stack: &Stack, record: Condensing) -> Result<Rc<Job>> {
        let top = stack.tree.top(record.vdev)?;
        let object = MappingObject::open(&stack.mos, record.mapping).await?;
        let mapping = Mapping::read(&stack.mos, record.mapping).await?;
        if mapping.end() != object.phys().max_offset {
            return Err(Error::corrupt("the new mapping does not end with its last entry"));
        }
        let entries = mapping.entries().to_vec();
        Job::new(top, record, object, entries)
    }

    /// Gives entries to a txg that is open; false if it has as many as it may have.
    fn add(&self, txg: Txg, entries: Vec<(MappingEntry, u32)>) -> bool {
        let mut pending = self.pending.borrow_mut();
        let all = pending.entry(txg).or_default();
        all.extend(entries);
        all.len() < TXG_ENTRIES
    }

    /// Appends the entries of the txg that is being synced.
    async fn append(&self, tx: &Tx) -> Result<()> {
        let new = self.pending.borrow_mut().remove(&tx.txg()).unwrap_or_default();
        self.object.append(&new, tx).await?;
        self.entries.borrow_mut().extend(new.iter().map(|(entry, _)| *entry));
        Ok(())
    }
}

/// Condenses the mappings of the removed vdevs of a pool, one at a time.
pub struct Condenser {
    stack: Rc<Stack>,
    changes: Rc<Changes>,
    notices: Rc<Notices>,
    tunables: Cell<CondenseTunables>,
    record: Cell<Option<Condensing>>,
    job: RefCell<Option<Rc<Job>>>,
    /// The next txg looks at the mappings.
    due: Cell<bool>,
    /// Mappings that were condensed since the import.
    ended: Cell<u64>,
    closing: Cell<bool>,
    task: RefCell<Option<JoinHandle<()>>>,
    changed: Rc<Notify>,
}

impl Condenser {
    pub(super) fn new(stack: &Rc<Stack>, changes: &Rc<Changes>, notices: &Rc<Notices>) -> Rc<Condenser> {
        Rc::new(Condenser {
            stack: stack.clone(),
            changes: changes.clone(),
            notices: notices.clone(),
            tunables: Cell::default(),
            record: Cell::default(),
            job: RefCell::default(),
            due: Cell::new(true),
            ended: Cell::new(0),
            closing: Cell::new(false),
            task: RefCell::default(),
            changed: Rc::default(),
        })
    }

    /// Reads the record of a mapping that was being condensed.
    pub(crate) async fn load(&self) -> Result<()> {
        let Some(value) = zap::lookup(&self.stack.directory, CONDENSING_KEY).await? else { return Ok(()) };
        self.record.set(Some(Condensing::parse(&value.as_u64s().unwrap_or_default())?));
        Ok(())
    }

    /// The vdev whose mapping is being condensed.
    pub fn vdev(&self) -> Option<VdevId> {
        self.record.get().map(|r| r.vdev)
    }

    /// How many mappings were condensed since the import.
    pub fn condensed(&self) -> u64 {
        self.ended.get()
    }

    /// Waits until no mapping is being condensed, or the pool is closed.
    pub async fn wait(&self) -> Result<()> {
        while self.record.get().is_some() && !self.stack.readonly {
            if let Some(e) = self.stack.txg.ended() {
                return Err(e);
            }
            self.rest(RETRY).await;
        }
        Ok(())
    }

    /// Changes the tunables.
    pub(crate) fn set_tunables(&self, t: CondenseTunables) {
        if self.tunables.replace(t) == t {
            return;
        }
        self.changed.notify_all();
        let is_any_removed = self.stack.tree.tops.borrow().iter().any(|t| t.is_indirect());
        if is_any_removed && !self.stack.readonly {
            self.look();
            self.stack.txg.kick();
        }
    }

    /// Obsolete maps changed: the next txg looks at the mappings.
    pub(crate) fn look(&self) {
        self.due.set(true);
    }

    /// Whether the next txg has something to look at.
    pub(crate) fn wants_txg(&self) -> bool {
        self.due.get() && self.record.get().is_none() && !self.closing.get()
    }

    /// Goes on with what an import found.
    pub(crate) async fn resume(self: &Rc<Self>) {
        let Some(record) = self.record.get() else { return };
        // A txg that was synced since the pool was opened may have begun one.
        if self.job.borrow().is_some() {
            return;
        }
        match Job::open(&self.stack, record).await {
            Ok(job) => self.run(job),
            // The mapping before is whole.
            Err(e) => self.give_up(record, &e),
        }
    }

    /// Lets the task end after the piece that is under way.
    pub(crate) fn close(&self) {
        self.closing.set(true);
        self.changed.notify_all();
    }

    /// Ends the task; it goes on after the next import.
    pub(crate) async fn stop(&self) {
        self.close();
        let task = self.task.borrow_mut().take();
        if let Some(task) = task {
            task.await;
        }
    }

    fn give_up(&self, record: Condensing, e: &Error) {
        self.notices.push(format!("the mapping of the removed vdev {} is not condensed: {e}", record.vdev));
    }

    fn run(self: &Rc<Self>, job: Rc<Job>) {
        if self.closing.get() || self.stack.readonly {
            return;
        }
        *self.job.borrow_mut() = Some(job.clone());
        let condenser = self.clone();
        let task = self.stack.rt.spawn("condense_indirect", async move {
            if let Err(e) = condenser.work(&job).await
                && !condenser.is_over()
            {
                condenser.give_up(job.record, &e);
            }
            condenser.changed.notify_all();
        });
        *self.task.borrow_mut() = Some(task);
    }

    fn is_over(&self) -> bool {
        self.closing.get() || self.stack.txg.ended().is_some()
    }

    /// Waits for a change, or a while.
    async fn rest(&self, time: Nanos) {
        let changed = self.changed.notified();
        let _ = self.stack.rt.timeout(time, changed).await;
    }

    /// The wait after an entry (`zfs_condense_indirect_commit_entry_delay_ms`).
    async fn pause(&self) {
        let start = self.stack.rt.now();
        while !self.is_over() {
            let passed = Nanos(self.stack.rt.now().0.saturating_sub(start.0));
            let left = Nanos(self.tunables.get().entry_delay.0.saturating_sub(passed.0));
            if left == Nanos(0) {
                break;
            }
            self.rest(left.min(RETRY)).await;
        }
    }

    /// The part of the sync of a txg: appends what the task gave to it, or looks for a mapping to
    /// condense.
    pub(crate) async fn sync(self: &Rc<Self>, tx: &Tx) -> Result<()> {
        let job = self.job.borrow().clone();
        if let Some(job) = job {
            return job.append(tx).await.at(|| format!("new mapping of removed vdev {}", job.top.id));
        }
        if !self.wants_txg() {
            return Ok(());
        }
        self.due.set(false);
        let tops: Vec<Rc<Top>> = self.stack.tree.tops.borrow().iter().filter(|t| t.is_indirect()).cloned().collect();
        for top in tops {
            // A mapping that cannot be read stays as it is.
            let Ok(Some((map, state))) = self.state_of(&top).await else { continue };
            if should_condense(&state, &self.tunables.get()) {
                return self.begin(&top, map, tx).await.at(|| format!("mapping of removed vdev {}", top.id));
            }
        }
        Ok(())
    }

    /// The obsolete map of a removed vdev, if it has one, and the figures of its mapping.
    async fn state_of(&self, top: &Top) -> Result<Option<(ObjectId, MappingState)>> {
        let (zap_object, mapping) = (top.config_ref().zap_top, top.config_ref().indirect_object);
        let (Some(zap_object), Some(mapping)) = (zap_object.filter(|o| o.0 != 0), mapping) else { return Ok(None) };
        let mos = &self.stack.mos;
        let map = zap::lookup_u64(&mos.hold(zap_object).await?, OBSOLETE_KEY).await?;
        let Some(map) = map.map(ObjectId) else { return Ok(None) };
        let obsolete = header(&mos.hold(map).await?)?;
        let phys = MappingObject::open(mos, mapping).await?.phys();
        let state = MappingState {
            entries: phys.num_entries,
            mapped: phys.bytes_mapped,
            obsolete: obsolete.alloc.max(0) as u64,
            map_length: obsolete.length,
        };
        Ok(Some((map, state)))
    }

    /// Begins to condense the mapping of a vdev whose obsolete map is `map`.
    async fn begin(self: &Rc<Self>, top: &Rc<Top>, map: ObjectId, tx: &Tx) -> Result<()> {
        let stack = &self.stack;
        let object = MappingObject::create(stack, tx).await?;
        let zap_object = top.config_ref().zap_top.unwrap_or_default();
        zap::remove(&stack.mos.hold(zap_object).await?, OBSOLETE_KEY, tx).await?;
        let record = Condensing { vdev: top.id, old_map: map, mapping: object.object() };
        zap::update(&stack.directory, CONDENSING_KEY, &ZapValue::from_u64s(&record.to_words()), tx).await?;
        self.record.set(Some(record));
        self.run(Job::new(top.clone(), record, object, Vec::new())?);
        Ok(())
    }

    /// The task.
    async fn work(&self, job: &Rc<Job>) -> Result<()> {
        let counts = self.count_obsolete(job).await?;
        let mut at = first_after(&job.old.entries(), job.object.phys().max_offset);
        while at < counts.len() {
            if self.is_over() {
                return Ok(());
            }
            let is_slow = self.tunables.get().entry_delay > Nanos(0);
            let most = if is_slow { 1 } else { BATCH };
            let hold = self.stack.txg.hold_open().await;
            let (kept, next) = next_kept(&job.old.entries(), &counts, at, (most, LOOK));
            let looked = (next - at) as u64;
            at = next;
            let any = !kept.is_empty();
            let has_room = !any || job.add(hold.txg, kept);
            drop(hold);
            self.stack.rt.spend(Nanos(SPACE_RUN.0 * looked)).await;
            if !has_room {
                self.stack.sync().await?;
            }
            if any {
                self.pause().await;
            }
        }
        drop(counts);
        self.stack.sync().await?;
        if self.is_over() {
            return Ok(());
        }
        let job = job.clone();
        self.changes.make(move |devices, tx| Box::pin(async move { devices.take_condensed(&job, tx).await })).await
    }

    /// The obsolete bytes of each entry of the old mapping.
    async fn count_obsolete(&self, job: &Job) -> Result<Vec<u32>> {
        let mos = &self.stack.mos;
        let object = job.top.config_ref().indirect_object.unwrap_or_default();
        let mut counts = MappingObject::open(mos, object).await?.read_counts().await?;
        counts.resize(job.old.entries().len(), 0);
        if planted!(ObsoleteForgotten) {
            return Ok(counts);
        }
        let dn = mos.hold(job.record.old_map).await?;
        let length = header(&dn)?.length;
        let part = PART.next_multiple_of(u64::from(dn.block_size()));
        let mut at = 0;
        while at < length {
            let mut runs = Vec::new();
            for data in dn.read_range(at, part.min(length - at)).await.at(|| "obsolete map")? {
                for entry in entries(&data, 0) {
                    let Entry::Run { kind, offset, size, .. } = entry.at(|| "obsolete map")? else { continue };
                    if kind != MapType::Alloc {
                        return Err(Error::corrupt("its obsolete map takes something back"));
                    }
                    runs.push((offset, size));
                }
            }
            for some in runs.chunks(RUNS) {
                {
                    let old = job.old.entries();
                    some.iter().try_for_each(|(offset, size)| add_obsolete(&old, &mut counts, *offset, *size))?;
                }
                self.stack.rt.spend(Nanos(SPACE_RUN.0 * some.len() as u64)).await;
            }
            at += part;
        }
        Ok(counts)
    }
}

impl Devices {
    /// The new mapping is whole: the vdev takes it.
    async fn take_condensed(&self, job: &Rc<Job>, tx: &Tx) -> Outcome<()> {
        let (stack, top, condenser) = (&self.stack, &job.top, &self.condenser);
        assert!(job.pending.borrow().is_empty(), "every entry is on disk");
        let before = top.config_ref().indirect_object.unwrap_or_default();
        let (old, indirect) = match (MappingObject::open(&stack.mos, before).await, indirect_of(top)) {
            (Ok(old), Some(indirect)) => (old, indirect),
            (Err(e), _) => return Ok(Err(e)),
            (_, None) => return Ok(Err(Error::corrupt("the vdev was not removed"))),
        };
        old.free(stack, tx).await?;
        free_space_map(&stack.mos, &stack.features, job.record.old_map, tx).await?;
        stack.features.add(FeatureId::ObsoleteCounts, -1, tx).await?;
        zap::remove(&stack.directory, CONDENSING_KEY, tx).await?;
        top.update_config(|c| c.indirect_object = Some(job.record.mapping));
        indirect.set_map(Rc::new(Mapping::of(job.entries.take())));
        self.config.mark_dirty();
        condenser.record.set(None);
        condenser.ended.set(condenser.ended.get() + 1);
        condenser.job.borrow_mut().take();
        // Another one may have waited, or what became obsolete meanwhile is much already.
        condenser.look();
        condenser.changed.notify_all();
        Ok(Ok(()))
    }
}
