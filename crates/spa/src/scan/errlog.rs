//! The error log on disk: the damaged blocks that scans found, in the MOS (format pages 15 section
//! 10 and 17 section 2).
//!
//! There are two of them, for the running scan and for the time before it, each with an entry of
//! the MOS directory. In the *old form* a ZAP has a name for each block, with the dataset in which
//! it was met. With the feature `head_errlog` the ZAP has an object for each head, and that one,
//! the *inner* ZAP, a name for each block with its physical birth: which snapshots and clones have
//! the block is found when the log is read ([`dsl::DslPool::affected`]). Enabling the feature
//! converts the logs.

use std::rc::Rc;

use base::{ErrorKind, ObjectId, Result, Txg};
use dmu::{Dnode, Tx, zap};
use ondisk::bpobj::Bookmark;
use ondisk::object_type::ObjectType;

use crate::stack::Stack;

/// Entries of the MOS directory: errors of the running scan, errors before it.
pub(super) const OF_SCAN: &[u8] = b"errlog_scrub";
pub(super) const LAST: &[u8] = b"errlog_last";

/// A damaged block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Damage {
    /// Its place; `objset` is the dataset in which it was met, in a log with heads its head.
    pub at: Bookmark,
    /// Its physical birth; 0 if it is not known.
    pub birth: Txg,
}

/// A name of four numbers.
fn name([a, b, c, d]: [u64; 4]) -> String {
    format!("{a:x}:{b:x}:{c:x}:{d:x}")
}

/// The name of a block in the old form.
fn old_name(at: &Bookmark) -> String {
    name([at.objset, at.object, at.level as u64, at.blkid])
}

/// The name of a block in an inner ZAP.
fn inner_name(d: &Damage) -> String {
    name([d.at.object, d.at.level as u64, d.at.blkid, d.birth.0])
}

/// The numbers of a [`name`].
fn four(name: &[u8]) -> Option<[u64; 4]> {
    let text = std::str::from_utf8(name).ok()?.trim_end_matches('\0');
    let words: Option<Vec<u64>> = text.split(':').map(|w| u64::from_str_radix(w, 16).ok()).collect();
    words?.try_into().ok()
}

fn parse_old(name: &[u8]) -> Option<Damage> {
    let [objset, object, level, blkid] = four(name)?;
    Some(Damage { at: Bookmark { objset, object, level: level as i64, blkid }, birth: Txg(0) })
}

fn parse_inner(head: u64, name: &[u8]) -> Option<Damage> {
    let [object, level, blkid, birth] = four(name)?;
    Some(Damage { at: Bookmark { objset: head, object, level: level as i64, blkid }, birth: Txg(birth) })
}

/// Whether entries of a head go with its snapshots to the clone that is promoted: those of blocks
/// born before the youngest snapshot that moves.
fn moves(birth: Txg, youngest: Txg) -> bool {
    birth < youngest
}

/// One of the two logs.
pub(super) struct ErrorLog<'a> {
    pub stack: &'a Rc<Stack>,
    /// Its entry of the MOS directory.
    pub entry: &'static [u8],
    /// The form with heads.
    pub heads: bool,
}

impl ErrorLog<'_> {
    async fn hold(&self, object: u64) -> Option<Dnode> {
        // A damaged log counts as missing.
        let dn = self.stack.mos.hold(ObjectId(object)).await.ok()?;
        Some(dn).filter(|dn| dn.otype() == ObjectType::ERROR_LOG)
    }

    /// Its ZAP.
    pub(super) async fn open(&self) -> Result<Option<Dnode>> {
        match zap::lookup_u64(&self.stack.directory, self.entry).await?.filter(|o| *o != 0) {
            Some(object) => Ok(self.hold(object).await),
            None => Ok(None),
        }
    }

    async fn open_or_make(&self, tx: &Tx) -> Result<Dnode> {
        if let Some(log) = self.open().await? {
            return Ok(log);
        }
        let log = zap::create(&self.stack.mos, ObjectType::ERROR_LOG, 0, tx).await?;
        zap::update_u64(&self.stack.directory, self.entry, log.object().0, tx).await?;
        Ok(log)
    }

    /// The inner ZAP of a head.
    async fn inner(&self, log: &Dnode, head: u64) -> Result<Option<Dnode>> {
        match zap::lookup_int(log, head).await? {
            Some(object) => Ok(self.hold(object).await),
            None => Ok(None),
        }
    }

    /// Adds blocks, each named by the dataset in which it was met.
    pub(super) async fn add(&self, all: &[Damage], tx: &Tx) -> Result<()> {
        if all.is_empty() {
            return Ok(());
        }
        let log = self.open_or_make(tx).await?;
        for d in all {
            if !self.heads {
                zap::update_text(&log, old_name(&d.at).as_bytes(), "", tx).await?;
                continue;
            }
            let head = self.stack.dsl().head_of(d.at.objset).await;
            let inner = match self.inner(&log, head).await? {
                Some(inner) => inner,
                None => {
                    let inner = zap::create(&self.stack.mos, ObjectType::ERROR_LOG, 0, tx).await?;
                    zap::update_int(&log, head, inner.object().0, tx).await?;
                    inner
                }
            };
            zap::update_text(&inner, inner_name(d).as_bytes(), "", tx).await?;
        }
        Ok(())
    }

    /// The heads in it with their inner ZAPs.
    async fn inner_zaps(&self, log: &Dnode) -> Result<Vec<(u64, u64)>> {
        let all = zap::list(log).await?;
        Ok(all.iter().filter_map(|e| Some((zap::parse_int_key(&e.name)?, e.value.as_u64()?))).collect())
    }

    /// Its blocks. In the form with heads `objset` is the head.
    pub(super) async fn list(&self) -> Result<Vec<Damage>> {
        let Some(log) = self.open().await? else { return Ok(Vec::new()) };
        if !self.heads {
            return Ok(zap::list(&log).await?.iter().filter_map(|e| parse_old(&e.name)).collect());
        }
        let mut out = Vec::new();
        for (head, object) in self.inner_zaps(&log).await? {
            let Some(inner) = self.hold(object).await else { continue };
            out.extend(zap::list(&inner).await?.iter().filter_map(|e| parse_inner(head, &e.name)));
        }
        Ok(out)
    }

    /// Frees it with its inner ZAPs.
    pub(super) async fn free(&self, tx: &Tx) -> Result<()> {
        let Some(log) = self.open().await? else { return Ok(()) };
        if self.heads {
            // What cannot be read is left behind.
            for (_, object) in self.inner_zaps(&log).await.unwrap_or_default() {
                if self.hold(object).await.is_some() {
                    self.stack.mos.free(ObjectId(object), tx).await?;
                }
            }
        }
        let object = log.object();
        drop(log);
        zap::update_u64(&self.stack.directory, self.entry, 0, tx).await?;
        self.stack.mos.free(object, tx).await
    }

    /// Takes a block off that is listed as `d`.
    pub(super) async fn remove(&self, d: &Damage, tx: &Tx) -> Result<()> {
        let Some(log) = self.open().await? else { return Ok(()) };
        let (zap, name) = match self.heads {
            false => (Some(log), old_name(&d.at)),
            true => (self.inner(&log, d.at.objset).await?, inner_name(d)),
        };
        let Some(zap) = zap else { return Ok(()) };
        match zap::remove(&zap, name.as_bytes(), tx).await {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// The head `head` is gone: so are its blocks.
    pub(super) async fn forget_head(&self, head: u64, tx: &Tx) -> Result<()> {
        let Some(log) = self.open().await?.filter(|_| self.heads) else { return Ok(()) };
        let Some(inner) = self.inner(&log, head).await? else { return Ok(()) };
        let object = inner.object();
        drop(inner);
        zap::remove_int(&log, head, tx).await?;
        self.stack.mos.free(object, tx).await
    }

    /// Snapshots of the head `from` moved to the head `to`, up to that of `youngest`; their blocks
    /// go with them.
    pub(super) async fn promoted(&self, from: u64, to: u64, youngest: Txg, tx: &Tx) -> Result<()> {
        let Some(log) = self.open().await?.filter(|_| self.heads) else { return Ok(()) };
        let Some(inner) = self.inner(&log, from).await? else { return Ok(()) };
        let all = zap::list(&inner).await?;
        let moving: Vec<Damage> = all.iter().filter_map(|e| parse_inner(from, &e.name)).collect();
        let moving: Vec<Damage> = moving.into_iter().filter(|d| moves(d.birth, youngest)).collect();
        for d in &moving {
            zap::remove(&inner, inner_name(d).as_bytes(), tx).await?;
        }
        let to = |d: &Damage| Damage { at: Bookmark { objset: to, ..d.at }, ..*d };
        self.add(&moving.iter().map(to).collect::<Vec<_>>(), tx).await
    }

    /// Brings it from the old form into the one with heads. Blocks that are not there any more are
    /// left out.
    pub(super) async fn convert(&self, tx: &Tx) -> Result<()> {
        let old = ErrorLog { stack: self.stack, entry: self.entry, heads: false };
        let mut all = old.list().await.unwrap_or_default();
        let dsl = self.stack.dsl();
        let mut kept = Vec::new();
        for d in all.drain(..) {
            match dsl.block_birth(&d.at).await {
                Ok(None) => {}
                Ok(Some(birth)) => kept.push(Damage { birth, ..d }),
                Err(_) => kept.push(d),
            }
        }
        old.free(tx).await?;
        self.add(&kept, tx).await
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
            assert_eq!(parse_old(old_name(&at).as_bytes()), Some(Damage { at, birth: Txg(0) }));
            let d = Damage { at, birth: Txg(0x4d2) };
            assert_eq!(parse_inner(at.objset, inner_name(&d).as_bytes()), Some(d));
        }
        let at = Bookmark { objset: 54, object: 7, level: -1, blkid: 2 };
        assert_eq!(old_name(&at), "36:7:ffffffffffffffff:2");
        assert_eq!(inner_name(&Damage { at, birth: Txg(255) }), "7:ffffffffffffffff:2:ff");
        for bad in ["1:2:3", "1:2:3:x", "1:2:3:4:5", ""] {
            assert_eq!(parse_old(bad.as_bytes()), None, "{bad}");
            assert_eq!(parse_inner(1, bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn a_promotion_takes_what_the_snapshots_have() {
        assert!(moves(Txg(9), Txg(10)) && !moves(Txg(10), Txg(10)) && !moves(Txg(11), Txg(10)));
    }
}
