//! The state of a receive that can be resumed: entries of the dataset that receives, and the token
//! that names them (format pages 21 section 4 and 25 section 6).
//!
//! Each txg in which a record was applied writes where it stopped, together with what was applied
//! ([`Dataset::note_progress`]): so after a power cut the state says exactly what is there.

use std::rc::Rc;

use base::{Error, ErrorKind, Guid, ObjectId, Result, Txg};
use dmu::Tx;
use dmu::zap::{self, ZapEntry};
use ondisk::object_type::ObjectType;
use ondisk::stream::{Token, features};
use ondisk::zap::ZapValue;

use super::RECV;
use super::begin::SNAPS_MAX;
use super::input::Head;
use crate::dataset::Dataset;
use crate::pool::DslPool;

const FROM_GUID: &[u8] = b"com.delphix:resume_fromguid";
const TO_GUID: &[u8] = b"com.delphix:resume_toguid";
const TO_NAME: &[u8] = b"com.delphix:resume_toname";
const OBJECT: &[u8] = b"com.delphix:resume_object";
const OFFSET: &[u8] = b"com.delphix:resume_offset";
const BYTES: &[u8] = b"com.delphix:resume_bytes";
/// Guids of the snapshots that a dataset is redacted by.
const REDACTED: &[u8] = b"com.delphix:redacted_datasets";
/// Guids of the snapshots that what the stream starts from is redacted by.
const BOOK_REDACT_SNAPS: &[u8] = b"com.delphix:resume_redact_book_snaps";
/// What the stream may have, by presence.
const OKS: [(&[u8], u64); 4] = [
    (b"com.delphix:resume_largeblockok", features::LARGE_BLOCKS),
    (b"com.delphix:resume_embedok", features::EMBED_DATA),
    (b"com.delphix:resume_compressok", features::COMPRESSED),
    (b"com.datto:resume_rawok", features::RAW),
];

/// How far a receive has come.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Progress {
    /// The object that was received last.
    pub object: ObjectId,
    /// Where in it to go on, in bytes.
    pub offset: u64,
    /// Bytes of the stream so far.
    pub bytes: u64,
}

impl DslPool {
    /// Makes the state of a dataset that begins to receive (syncing context).
    pub(super) async fn save_begin(&self, ds: &Dataset, head: &Head, tx: &Tx) -> Result<()> {
        let begin = &head.begin;
        let dn = self.zapify(ds.object, tx).await?;
        if begin.from_guid.0 != 0 {
            zap::add_u64(&dn, FROM_GUID, begin.from_guid.0, tx).await?;
        }
        zap::add_u64(&dn, TO_GUID, begin.to_guid.0, tx).await?;
        zap::add_text(&dn, TO_NAME, &String::from_utf8_lossy(&begin.to_name), tx).await?;
        for (name, value) in [(OBJECT, 1), (OFFSET, 0), (BYTES, 0)] {
            zap::add_u64(&dn, name, value, tx).await?;
        }
        for (name, feature) in OKS {
            if begin.features() & feature != 0 {
                zap::add_u64(&dn, name, 1, tx).await?;
            }
        }
        // As many as a ZAP has no room for fit no snapshot here.
        if let Some(snaps) = head.list.u64s("redact_from_snaps").filter(|s| (1..=SNAPS_MAX).contains(&s.len())) {
            zap::add(&dn, BOOK_REDACT_SNAPS, &ZapValue::from_u64s(snaps), tx).await?;
        }
        Ok(())
    }

    /// Writes how far the receive into `ds` came in `txg` (syncing context).
    pub(crate) async fn write_progress(&self, ds: &Dataset, txg: Txg, tx: &Tx) -> Result<()> {
        let Some(progress) = ds.take_progress(txg) else { return Ok(()) };
        let dn = self.mos().hold(ds.object).await?;
        zap::update_u64(&dn, OBJECT, progress.object.0, tx).await?;
        zap::update_u64(&dn, OFFSET, progress.offset, tx).await?;
        zap::update_u64(&dn, BYTES, progress.bytes, tx).await
    }

    /// The receive is complete: drops the state (syncing context).
    pub(super) async fn drop_saved(&self, ds: &Dataset, tx: &Tx) -> Result<()> {
        let dn = self.mos().hold(ds.object).await?;
        if dn.otype() != ObjectType::OTN_ZAP_METADATA {
            return Ok(());
        }
        // OpenZFS leaves those of `OKS`; nothing reads them without the others.
        let oks = OKS.iter().map(|(name, _)| *name);
        for name in [FROM_GUID, TO_GUID, TO_NAME, OBJECT, OFFSET, BYTES, BOOK_REDACT_SNAPS].into_iter().chain(oks) {
            match zap::remove(&dn, name, tx).await {
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// The state of a dataset that has received a part of a stream; none if it is no such dataset.
    pub(crate) async fn saved(&self, ds: &Dataset) -> Result<Option<Token>> {
        if !ds.is_partial() {
            return Ok(None);
        }
        let dn = self.mos().hold(ds.object).await?;
        if dn.otype() != ObjectType::OTN_ZAP_METADATA {
            return Ok(None);
        }
        Ok(token_of(&zap::list(&dn).await?))
    }

    /// The dataset with the state of an interrupted receive into `head`: its hidden child, or
    /// itself.
    pub(crate) fn receiver_of(&self, head: &Rc<Dataset>) -> Rc<Dataset> {
        head.dir().child(RECV).and_then(|d| d.head()).unwrap_or_else(|| head.clone())
    }

    /// The token with which an interrupted receive into `head` is resumed (property
    /// `receive_resume_token`); none if there is no such receive.
    pub async fn resume_token(&self, head: &Rc<Dataset>) -> Result<Option<String>> {
        Ok(self.saved(&self.receiver_of(head)).await?.map(|token| token.encode()))
    }

    /// Gives up an interrupted receive into `name` (`zfs receive -A`): destroys what it received.
    /// Error: `Invalid` if there is none.
    pub async fn abort_receive(self: &Rc<Self>, name: &str) -> Result<()> {
        let none = || Error::invalid(format!("'{name}' does not have any resumable receive state to abort"));
        let head = self.find(name)?;
        let ds = self.receiver_of(&head);
        if self.saved(&ds).await?.is_none() {
            return Err(none());
        }
        self.destroy_received(&ds).await
    }
}

/// The token in the ZAP of a dataset; `None` without the guid of a snapshot, or a place to go on.
fn token_of(entries: &[ZapEntry]) -> Option<Token> {
    let get = |name: &[u8]| entries.iter().find(|e| e.name == name).map(|e| &e.value);
    let number = |name: &[u8]| get(name).and_then(ZapValue::as_u64);
    let guids = |name: &[u8]| get(name)?.as_u64s();
    let has = |feature: u64| OKS.iter().any(|(name, of)| *of == feature && get(name).is_some());
    Some(Token {
        from_guid: number(FROM_GUID).map(Guid),
        object: ObjectId(number(OBJECT)?),
        offset: number(OFFSET)?,
        bytes: number(BYTES).unwrap_or(0),
        to_guid: Guid(number(TO_GUID)?),
        to_name: get(TO_NAME).and_then(ZapValue::as_text).unwrap_or_default(),
        large_block_ok: has(features::LARGE_BLOCKS),
        embed_ok: has(features::EMBED_DATA),
        compress_ok: has(features::COMPRESSED),
        raw_ok: has(features::RAW),
        redact_snaps: guids(REDACTED),
        book_redact_snaps: guids(BOOK_REDACT_SNAPS),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_dataset_is_a_token() {
        let entry = |name: &str, value: ZapValue| ZapEntry { name: name.into(), value };
        let number = |name: &str, n| entry(&format!("com.delphix:resume_{name}"), ZapValue::from_u64(n));
        let mut entries = vec![
            number("toguid", 7),
            entry("com.delphix:resume_toname", ZapValue::from_str_nul("p/f@s")),
            number("object", 3),
            number("offset", 131_072),
            number("bytes", 99),
            number("embedok", 1),
            entry("com.datto:resume_rawok", ZapValue::from_u64(1)),
        ];
        let want = Token {
            object: ObjectId(3),
            offset: 131_072,
            bytes: 99,
            to_guid: Guid(7),
            to_name: "p/f@s".into(),
            embed_ok: true,
            raw_ok: true,
            ..Token::default()
        };
        assert_eq!(token_of(&entries), Some(want.clone()));
        entries.push(number("fromguid", 5));
        assert_eq!(token_of(&entries), Some(Token { from_guid: Some(Guid(5)), ..want }));
        // Without one of these nothing can go on.
        for needed in [0, 2, 3] {
            let mut entries = entries.clone();
            entries.remove(needed);
            assert_eq!(token_of(&entries), None);
        }
    }
}
