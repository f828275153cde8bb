//! Damaged blocks: those that scans find are counted, and listed in the error log
//! ([`super::errlog`]) of the running scan and that of the last complete one. Those that programs
//! could not read, which the object sets note, are listed beside them.

use std::collections::BTreeSet;
use std::rc::Rc;

use base::{ObjectId, Result, ResultExt, Txg};
use dmu::{Tx, zap};
use ondisk::bpobj::Bookmark;
use ondisk::feature::FeatureId;
use rt::trace::{Event, Groups};

use super::errlog::{Damage, ErrorLog, LAST, OF_SCAN};
use super::{Phase, Scan};

/// Most listed blocks of one scan; the count goes on.
const DAMAGED_MAX: usize = 100_000;

/// A place as the sets of damaged blocks have it: object set, object, level, number.
pub(super) type Place = (u64, u64, i64, u64);

fn place(at: &Bookmark) -> Place {
    (at.objset, at.object, at.level, at.blkid)
}

fn bookmark(&(objset, object, level, blkid): &Place) -> Bookmark {
    Bookmark { objset, object, level, blkid }
}

/// What happens to heads during a txg, for the error log.
#[derive(Clone, Copy, Debug)]
pub(super) enum HeadChange {
    /// It was destroyed.
    Gone(u64),
    /// Snapshots of `from` moved to `to`, those up to that of txg `youngest`.
    Promoted { from: u64, to: u64, youngest: Txg },
}

impl Scan {
    /// Records a damaged block, which was born in `birth` (0: not known): its data, or the blocks
    /// below it, cannot be read.
    pub(super) fn note_damage(&self, at: Bookmark, birth: Txg) {
        let mut damaged = self.damaged.borrow_mut();
        if damaged.len() >= DAMAGED_MAX || damaged.insert(place(&at), birth).is_none() {
            self.now.borrow_mut().phys.errors += 1;
            let Bookmark { objset, object, level, blkid } = at;
            self.stack.rt.trace(Groups::FAULT, || Event::Damaged { objset, object, level, blkid, forged: false });
            if damaged.len() < DAMAGED_MAX {
                self.damaged_new.borrow_mut().push(Damage { at, birth });
            }
        }
    }

    pub(super) fn log(&self, entry: &'static [u8]) -> ErrorLog<'_> {
        ErrorLog { stack: &self.stack, entry, heads: self.log_has_heads.get() }
    }

    /// Writes the damage found since the last txg, and what happened to heads.
    pub(super) async fn write_damage(&self, tx: &Tx) -> Result<()> {
        if !self.log_has_heads.get() && self.stack.features.is_enabled(FeatureId::HeadErrlog) {
            // The feature was enabled in this txg.
            self.log_has_heads.set(true);
            for entry in [LAST, OF_SCAN] {
                self.log(entry).convert(tx).await?;
            }
        }
        for change in self.head_changes.take() {
            for entry in [LAST, OF_SCAN] {
                match change {
                    HeadChange::Gone(head) => self.log(entry).forget_head(head, tx).await?,
                    HeadChange::Promoted { from, to, youngest } => {
                        self.log(entry).promoted(from, to, youngest, tx).await?;
                    }
                }
            }
        }
        self.write_read_damage(if self.phase.get() == Phase::Idle { LAST } else { OF_SCAN }, tx).await?;
        let new = self.damaged_new.take();
        self.log(OF_SCAN).add(&new, tx).await
    }

    /// What programs could not read, and no log has yet.
    fn read_damage(&self) -> Vec<Damage> {
        let met = self.stack.mos.ctx().damaged().into_iter();
        met.map(|(at, birth)| Damage { at, birth }).collect()
    }

    /// Writes what programs could not read to one of the logs.
    async fn write_read_damage(&self, entry: &'static [u8], tx: &Tx) -> Result<()> {
        let read = self.read_damage();
        self.stack.mos.ctx().forget_damaged(|_| false);
        self.log(entry).add(&read, tx).await
    }

    /// Drops the errors of an incomplete scan, when a new one begins. What could not be read before
    /// is for the scan to verify.
    pub(super) async fn drop_scan_errors(&self, tx: &Tx) -> Result<()> {
        self.write_read_damage(LAST, tx).await?;
        self.log(OF_SCAN).free(tx).await
    }

    /// Rotates the lists at the end of a scan. A complete one replaces the earlier errors, except
    /// those of blocks that a scrub of some txgs has not read; those of a stopped one are added to
    /// them.
    pub(super) async fn rotate_errors(&self, complete: bool, tx: &Tx) -> Result<()> {
        self.write_damage(tx).await?;
        if complete {
            let unread = self.unread_errors().await?;
            let found = self.log(OF_SCAN).open().await?;
            self.log(LAST).free(tx).await?;
            if let Some(log) = found {
                zap::update_u64(&self.stack.directory, LAST, log.object().0, tx).await?;
                zap::update_u64(&self.stack.directory, OF_SCAN, 0, tx).await?;
            }
            self.log(LAST).add(&unread, tx).await?;
            return Ok(());
        }
        let all = self.log(OF_SCAN).list().await.unwrap_or_default();
        self.log(LAST).add(&all, tx).await?;
        self.log(OF_SCAN).free(tx).await
    }

    /// The blocks of the logs and of memory. With heads, `objset` of those is a head.
    async fn logged(&self) -> Result<Vec<Damage>> {
        let mut out = self.log(LAST).list().await?;
        out.extend(self.log(OF_SCAN).list().await?);
        let mut found: Vec<Damage> =
            self.damaged.borrow().iter().map(|(at, birth)| Damage { at: bookmark(at), birth: *birth }).collect();
        found.extend(self.read_damage());
        for mut d in found {
            // A verification of a pool that is imported read-only says where exactly.
            if self.log_has_heads.get() && !self.stack.readonly {
                d.at.objset = self.stack.dsl().head_of(d.at.objset).await;
            }
            out.push(d);
        }
        out.sort_by_key(|d| (place(&d.at), d.birth));
        out.dedup();
        Ok(out)
    }

    /// The places of logged blocks: in every snapshot and clone that has them, if the log has
    /// heads.
    async fn places(&self, logged: &[Damage]) -> Result<BTreeSet<Place>> {
        if !self.log_has_heads.get() {
            return Ok(logged.iter().map(|d| place(&d.at)).collect());
        }
        let named: Vec<(Bookmark, Txg)> = logged.iter().map(|d| (d.at, d.birth)).collect();
        self.stack.dsl().affected(&named).await
    }

    /// Takes blocks off the lists that can be read again: those at the places of `healed`, in
    /// whichever dataset they are listed, for a block has several. Returns how many. Errors: those
    /// of reading the lists, and of the txg.
    pub async fn forget_healed(self: &Rc<Self>, healed: &[Bookmark]) -> Result<u64> {
        let at: BTreeSet<(u64, u64)> = healed.iter().map(|b| (b.object, b.blkid)).collect();
        let (mut off, mut sound) = (Vec::new(), BTreeSet::new());
        for d in self.logged().await.at(|| "the list of damaged blocks")? {
            if d.at.level != 0 || !at.contains(&(d.at.object, d.at.blkid)) {
                continue;
            }
            let places = self.places(&[d]).await?;
            let mut all = true;
            for p in &places {
                // One that cannot be looked at stays.
                all &= self.stack.dsl().is_sound(&bookmark(p)).await.unwrap_or(false);
            }
            if all {
                sound.extend(places);
                off.push(d);
            }
        }
        if !off.is_empty() {
            self.sync_task(move |scan, tx| Box::pin(async move { scan.take_off(&off, &tx).await })).await?;
        }
        Ok(sound.len() as u64)
    }

    /// Takes blocks off the lists (syncing context).
    pub(super) async fn take_off(&self, all: &[Damage], tx: &Tx) -> Result<()> {
        for d in all {
            for entry in [LAST, OF_SCAN] {
                self.log(entry).remove(d, tx).await?;
            }
        }
        let off: BTreeSet<(Place, Txg)> = all.iter().map(|d| (place(&d.at), d.birth)).collect();
        let places: BTreeSet<Place> = all.iter().map(|d| place(&d.at)).collect();
        let found: Vec<(Place, Txg)> = self.damaged.borrow().iter().map(|(at, birth)| (*at, *birth)).collect();
        for (at, birth) in found {
            let mut d = Damage { at: bookmark(&at), birth };
            if self.log_has_heads.get() {
                d.at.objset = self.stack.dsl().head_of(at.0).await;
            }
            let at_head = place(&d.at);
            if off.contains(&(at_head, birth)) || !self.log_has_heads.get() && places.contains(&at_head) {
                self.damaged.borrow_mut().remove(&at);
            }
        }
        let off: BTreeSet<(u64, i64, u64)> = all.iter().map(|d| (d.at.object, d.at.level, d.at.blkid)).collect();
        self.stack.mos.ctx().forget_damaged(|at| !off.contains(&(at.object, at.level, at.blkid)));
        let left = self.damaged.borrow();
        self.damaged_new.borrow_mut().retain(|d| left.contains_key(&place(&d.at)));
        Ok(())
    }

    /// The damaged blocks, in order: those of the last complete scan, of the running or last one,
    /// and those that programs could not read. With the feature `head_errlog` each is named in
    /// every dataset that has it: file systems, their snapshots, clones; blocks that were
    /// overwritten everywhere are not named any more.
    pub async fn damaged_blocks(&self) -> Result<Vec<Bookmark>> {
        let listed = async { self.places(&self.logged().await?).await };
        Ok(listed.await.at(|| "the list of damaged blocks")?.iter().map(bookmark).collect())
    }

    /// Notes what happens to a head, for the error log.
    pub(super) fn note_head(&self, change: HeadChange) {
        if self.log_has_heads.get() {
            self.head_changes.borrow_mut().push(change);
        }
    }

    /// The head of a destroyed file system.
    pub(super) fn head_gone(&self, object: ObjectId) {
        self.note_head(HeadChange::Gone(object.0));
    }
}
