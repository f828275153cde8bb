//! Damaged blocks: counted, and listed in two ZAPs of the MOS, for the running scan and for the
//! last complete one (format page 15 section 10).

use std::collections::BTreeSet;
use std::rc::Rc;

use base::{ErrorKind, ObjectId, Result, ResultExt};
use dmu::{Dnode, Tx, zap};
use ondisk::bpobj::Bookmark;
use ondisk::object_type::ObjectType;
use rt::trace::{Event, Groups};

use super::Scan;

/// Entries of the MOS directory: errors of the running scan, errors before it.
const OF_SCAN: &[u8] = b"errlog_scrub";
const LAST: &[u8] = b"errlog_last";
/// Most listed blocks of one scan; the count goes on.
const DAMAGED_MAX: usize = 100_000;

fn name(at: &Bookmark) -> String {
    format!("{:x}:{:x}:{:x}:{:x}", at.objset, at.object, at.level, at.blkid)
}

fn parse(name: &[u8]) -> Option<Bookmark> {
    let text = std::str::from_utf8(name).ok()?.trim_end_matches('\0');
    let mut words = text.split(':').map(|w| u64::from_str_radix(w, 16));
    let mut next = || words.next()?.ok();
    Some(Bookmark { objset: next()?, object: next()?, level: next()? as i64, blkid: next()? })
}

impl Scan {
    /// Records a damaged block: its data, or the blocks below it, cannot be read.
    pub(super) fn note_damage(&self, at: Bookmark) {
        let mut damaged = self.damaged.borrow_mut();
        if damaged.len() >= DAMAGED_MAX || damaged.insert((at.objset, at.object, at.level, at.blkid)) {
            self.now.borrow_mut().phys.errors += 1;
            let Bookmark { objset, object, level, blkid } = at;
            self.stack.rt.trace(Groups::FAULT, || Event::Damaged { objset, object, level, blkid });
            if damaged.len() < DAMAGED_MAX {
                self.damaged_new.borrow_mut().push(at);
            }
        }
    }

    async fn log(&self, entry: &[u8]) -> Result<Option<Dnode>> {
        match zap::lookup_u64(&self.stack.directory, entry).await?.filter(|o| *o != 0) {
            // A damaged list counts as missing.
            Some(object) => {
                Ok(self.stack.mos.hold(ObjectId(object)).await.ok().filter(|dn| dn.otype() == ObjectType::ERROR_LOG))
            }
            None => Ok(None),
        }
    }

    async fn add_to(&self, entry: &[u8], all: &[Bookmark], tx: &Tx) -> Result<()> {
        if all.is_empty() {
            return Ok(());
        }
        let log = match self.log(entry).await? {
            Some(log) => log,
            None => {
                let log = zap::create(&self.stack.mos, ObjectType::ERROR_LOG, 0, tx).await?;
                zap::update_u64(&self.stack.directory, entry, log.object().0, tx).await?;
                log
            }
        };
        for at in all {
            zap::update_text(&log, name(at).as_bytes(), "", tx).await?;
        }
        Ok(())
    }

    /// Writes the damage found since the last txg.
    pub(super) async fn write_damage(&self, tx: &Tx) -> Result<()> {
        let new = self.damaged_new.take();
        self.add_to(OF_SCAN, &new, tx).await
    }

    async fn free_log(&self, entry: &[u8], tx: &Tx) -> Result<()> {
        if let Some(log) = self.log(entry).await? {
            let object = log.object();
            drop(log);
            zap::update_u64(&self.stack.directory, entry, 0, tx).await?;
            self.stack.mos.free(object, tx).await?;
        }
        Ok(())
    }

    /// Drops the errors of an incomplete scan, when a new one begins.
    pub(super) async fn drop_scan_errors(&self, tx: &Tx) -> Result<()> {
        self.free_log(OF_SCAN, tx).await
    }

    /// Rotates the lists at the end of a scan. A complete one replaces the earlier errors; those of
    /// a stopped one are added to them.
    pub(super) async fn rotate_errors(&self, complete: bool, tx: &Tx) -> Result<()> {
        self.write_damage(tx).await?;
        let found = self.log(OF_SCAN).await?;
        if complete {
            self.free_log(LAST, tx).await?;
            if let Some(log) = found {
                zap::update_u64(&self.stack.directory, LAST, log.object().0, tx).await?;
                zap::update_u64(&self.stack.directory, OF_SCAN, 0, tx).await?;
            }
            return Ok(());
        }
        if let Some(log) = found {
            let all: Vec<Bookmark> =
                zap::list(&log).await.unwrap_or_default().iter().filter_map(|e| parse(&e.name)).collect();
            drop(log);
            self.add_to(LAST, &all, tx).await?;
            self.free_log(OF_SCAN, tx).await?;
        }
        Ok(())
    }

    async fn listed(&self) -> Result<Vec<Bookmark>> {
        let mut out = Vec::new();
        for entry in [LAST, OF_SCAN] {
            if let Some(log) = self.log(entry).await? {
                out.extend(zap::list(&log).await?.iter().filter_map(|e| parse(&e.name)));
            }
        }
        let found = self.damaged.borrow();
        out.extend(found.iter().map(|&(objset, object, level, blkid)| Bookmark { objset, object, level, blkid }));
        let key = |b: &Bookmark| (b.objset, b.object, b.level, b.blkid);
        out.sort_by_key(key);
        out.dedup_by_key(|b| key(b));
        Ok(out)
    }

    /// Takes blocks off the lists that can be read again: those at the places of `healed`, in
    /// whichever dataset they are listed, for a block has several. Returns how many. Errors: those
    /// of reading the lists, and of the txg.
    pub async fn forget_healed(self: &Rc<Self>, healed: &[Bookmark]) -> Result<u64> {
        let places: BTreeSet<(u64, u64)> = healed.iter().map(|b| (b.object, b.blkid)).collect();
        let mut sound = Vec::new();
        for at in self.damaged_blocks().await? {
            if at.level == 0 && places.contains(&(at.object, at.blkid)) {
                // One that cannot be looked at stays.
                if self.stack.dsl().is_sound(&at).await.unwrap_or(false) {
                    sound.push(at);
                }
            }
        }
        let count = sound.len() as u64;
        if count > 0 {
            self.sync_task(move |scan, tx| Box::pin(async move { scan.take_off(&sound, &tx).await })).await?;
        }
        Ok(count)
    }

    async fn take_off(&self, all: &[Bookmark], tx: &Tx) -> Result<()> {
        for entry in [LAST, OF_SCAN] {
            let Some(log) = self.log(entry).await? else { continue };
            for at in all {
                match zap::remove(&log, name(at).as_bytes(), tx).await {
                    Err(e) if e.kind() == ErrorKind::NotFound => {}
                    other => other?,
                }
            }
        }
        self.damaged_new.borrow_mut().retain(|at| !all.contains(at));
        let mut damaged = self.damaged.borrow_mut();
        for at in all {
            damaged.remove(&(at.objset, at.object, at.level, at.blkid));
        }
        Ok(())
    }

    /// The damaged blocks that scans found, in order: those of the last complete scan, and of the
    /// running or last one.
    pub async fn damaged_blocks(&self) -> Result<Vec<Bookmark>> {
        self.listed().await.at(|| "the list of damaged blocks")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        for at in [
            Bookmark { objset: 0, object: 0, level: -1, blkid: 0 },
            Bookmark { objset: 0x36, object: 7, level: 1, blkid: u64::MAX },
        ] {
            assert_eq!(parse(name(&at).as_bytes()), Some(at));
        }
        assert_eq!(name(&Bookmark { objset: 54, object: 7, level: -1, blkid: 2 }), "36:7:ffffffffffffffff:2");
        assert_eq!(parse(b"1:2:3"), None);
        assert_eq!(parse(b"1:2:3:x"), None);
    }
}
