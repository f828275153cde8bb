//! Corrective receive (`zfs receive -c`): damaged blocks of a snapshot are rewritten from a stream
//! of the same snapshot (format page 21 section 3).
//!
//! **Normal path.** [`DslPool::begin_heal`] finds the snapshot and checks that the stream is one of
//! it. [`Healing::data`] takes the WRITEs of the stream, several at once, and looks up the block
//! that each names. One of which a copy on the devices is right is left alone: the cache does not
//! count, since what is cached may be damaged below. The others are healed (`zio`'s `heal`): a
//! pointer says what its block has to be, so nothing is written that is not that very block, and
//! no pointer, no dataset and no txg changes.
//!
//! Only blocks of data can be healed, and only those that the stream has. A block that cannot be
//! healed is no reason to leave the others as they are: the first such one is the error at the end
//! ([`Healed::error`]).
//!
//! Lists of damaged blocks are the pool's: [`DslPool::is_sound`] tells which entries are done with.

use std::rc::Rc;

use base::{Error, ErrorKind, Guid, ObjectId, Result, ResultExt, Txg};
use bdev::Bytes;
use codec::Compression;
use codec::checksum::Endian;
use dmu::Objset;
use ondisk::bpobj::Bookmark;
use ondisk::feature::FeatureId;
use ondisk::stream::Record;
use ondisk::stream::features;
use ondisk::stream::record::Write;
use zio::{DataKey, Prio, Remedy};

use super::begin::{check_stream, partial};
use super::input::{Head, Incoming, Input};
use super::unpack::{Item, Stored, unpack};
use super::{Ahead, RECV, raw, room_of};
use crate::crypto::ReceivedKeys;
use crate::dataset::{Dataset, Use};
use crate::pool::DslPool;

/// A snapshot that is being healed.
pub struct Healing {
    pool: Rc<DslPool>,
    ds: Use,
    os: Objset,
    /// The key of blocks that the stream has in clear.
    key: Option<Rc<DataKey>>,
    raw: bool,
    compression: Compression,
}

/// What became of the blocks of a stream.
#[derive(Debug, Default)]
pub struct Healed {
    /// Blocks that were rewritten.
    pub blocks: Vec<Bookmark>,
    /// Blocks that are damaged still.
    pub lost: u64,
    /// The error of the first of them, or that which the stream broke off with.
    pub error: Option<Error>,
}

/// What became of a block.
enum Outcome {
    /// It was not damaged.
    Sound,
    Healed(Bookmark),
    Lost(Error),
}

impl Healed {
    fn add(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Sound => {}
            Outcome::Healed(at) => self.blocks.push(at),
            Outcome::Lost(e) => {
                self.lost += 1;
                self.error.get_or_insert(e);
            }
        }
    }
}

impl DslPool {
    /// Begins to heal the snapshot `target`, a full name `fs@snap`, from the stream that begins
    /// with `head`.
    ///
    /// # Errors
    /// `NotFound` if there is no such snapshot; `Invalid` if the stream is one of another, or does
    /// not fit its dataset; `Busy` while a receive into it was not finished; `Denied` if a key is
    /// missing or another one; `Unsupported` for features that weir or the pool does not have;
    /// `ReadOnly`.
    pub async fn begin_heal(self: &Rc<Self>, target: &str, head: &Head) -> Result<Healing> {
        let what = super::begin::what(&head.begin);
        self.begin_heal_of(target, head).await.at(|| what)
    }

    async fn begin_heal_of(self: &Rc<Self>, target: &str, head: &Head) -> Result<Healing> {
        let begin = &head.begin;
        let has = |feature| begin.features() & feature != 0;
        let os_type = check_stream(begin, |id: FeatureId| self.features().is_enabled(id))?;
        if has(features::RESUMING) {
            return Err(Error::invalid("the rest of a stream, made by a token, heals nothing: send all of it"));
        }
        if !self.is_writable() {
            let text = format!("pool '{}' is imported read-only", self.root().name());
            return Err(Error::new(ErrorKind::ReadOnly, text));
        }
        let ds = self.find_snapshot(target).await.map_err(|e| match e.kind() {
            ErrorKind::NotFound => {
                Error::not_found(format!("corrective recv must specify an existing snapshot to heal, not '{target}'"))
            }
            _ => e,
        })?;
        let ds = Use::of(&ds);
        if Guid(ds.phys().guid) != begin.to_guid {
            return Err(Error::invalid(format!(
                "local snapshot '{target}' doesn't match the snapshot in the provided stream"
            )));
        }
        let dir = ds.dir();
        if dir.child(RECV).is_some() || dir.head().is_some_and(|head| head.is_partial()) {
            return Err(partial(&dir.full_name()));
        }
        let is_raw = has(features::RAW);
        if is_raw {
            self.check_received_crypt(&dir, &ReceivedKeys::parse(&head.list)?)?;
        }
        if dir.is_encrypted() && has(features::EMBED_DATA) {
            return Err(Error::invalid("incompatible embedded data stream feature with encrypted receive."));
        }
        if ds.os_type().await? != os_type {
            return Err(Error::invalid(format!("'{target}' is not of the type that the stream has")));
        }
        // Blocks of a snapshot that was just made may not be on disk yet.
        self.txg().wait_synced(Txg(0)).await?;
        let (os, key) = match is_raw {
            true => (self.keyless_objset(ds.dataset()).await?, None),
            false => {
                let ctx = ds.keyed_ctx().map_err(|_| {
                    let text = "key must be loaded to do a non-raw corrective recv on an encrypted dataset.";
                    Error::new(ErrorKind::Denied, text)
                })?;
                (ds.objset().await?, ctx.key().cloned())
            }
        };
        let compression = ds.objset_props().compression;
        Ok(Healing { pool: self.clone(), ds, os, key, raw: is_raw, compression })
    }

    /// The object set of a dataset without its key, to look at its trees.
    pub(crate) async fn keyless_objset(&self, ds: &Dataset) -> Result<Objset> {
        let (ctx, bp) = (ds.sealed_ctx(), ds.phys().bp);
        Objset::open_keyless(ctx, ds.object.0, bp, ds.objset_props(), ds.hooks()).await.at(|| {
            let name = ds.name();
            format!("dataset '{name}'")
        })
    }

    /// Whether a block of data of a list of damaged ones can be read. Errors: those of the blocks
    /// above it; `NotFound` if its dataset or its object is gone.
    pub async fn is_sound(&self, at: &Bookmark) -> Result<bool> {
        if at.objset == 0 || at.level != 0 {
            return Ok(false);
        }
        let ds = self.hold_dataset(ObjectId(at.objset)).await?;
        let _use = Use::of(&ds);
        let dn = self.keyless_objset(&ds).await?.hold(ObjectId(at.object)).await?;
        let bp = dn.block_pointer(at.blkid).await?;
        self.ctx().zio().verify(&bp, Prio::SyncRead).await
    }
}

impl Healing {
    /// Takes the records up to the END of this part of the stream, and heals what is damaged. What
    /// was healed before an error stays, and is told with it.
    pub async fn data(&self, input: &mut Input<'_>) -> Healed {
        let mut healed = Healed::default();
        let mut ahead = Ahead::default();
        let mut end = self.take(input, &mut ahead, &mut healed).await;
        while let Some(outcome) = ahead.next().await {
            match outcome {
                Ok(outcome) => healed.add(outcome),
                Err(e) => end = end.and(Err(e)),
            }
        }
        drop(ahead);
        if let Err(e) = end {
            healed.error = Some(e);
        } else if let Some(e) = healed.error.take() {
            let blocks = if healed.lost == 1 { "a block".into() } else { format!("{} blocks", healed.lost) };
            let text = format!("corrective receive was not able to reconstruct the data needed for healing {blocks}");
            healed.error = Some(e.at(text));
        }
        healed
    }

    async fn take<'a>(
        &'a self,
        input: &mut Input<'_>,
        ahead: &mut Ahead<'a, Result<Outcome>>,
        healed: &mut Healed,
    ) -> Result<()> {
        let order = input.order();
        loop {
            let Some(incoming) = input.next().await? else { return Err(input.cut_off()) };
            match &incoming.record {
                Record::End(_) => return Ok(()),
                Record::Write(_) => {}
                Record::WriteByRef(_) => {
                    let text = "deduplicated streams are no longer supported: 'zstream redup' converts this one";
                    return Err(Error::unsupported(text));
                }
                _ => continue,
            }
            let size = room_of(&incoming);
            while !ahead.has_room(size) {
                let Some(outcome) = ahead.next().await else { break };
                healed.add(outcome?);
            }
            ahead.push(size, Box::pin(self.block(order, incoming))).await;
        }
    }

    /// Heals the block that a WRITE names, if it is damaged. Errors: `Corrupt` if there is no such
    /// object, and those of devices.
    async fn block(&self, order: Endian, incoming: Incoming) -> Result<Outcome> {
        let Record::Write(w) = incoming.record.clone() else { unreachable!("only WRITEs are taken") };
        let offset = incoming.offset;
        let healed = self.block_of(order, incoming, &w).await;
        healed.map_err(|e| e.at(format_args!("record at byte {offset} of the stream")))
    }

    async fn block_of(&self, order: Endian, incoming: Incoming, w: &Write) -> Result<Outcome> {
        // Where a pointer or a dnode is damaged nothing below it can be healed.
        let lost = |e: Error| match e.kind() {
            ErrorKind::Checksum | ErrorKind::Corrupt | ErrorKind::Forged => {
                let place = format!("metadata above offset {} of object {} cannot be healed", w.offset, w.object);
                Ok(Outcome::Lost(e.at(place)))
            }
            _ => Err(e),
        };
        let dn = match self.os.hold(w.object).await {
            Ok(dn) => dn,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let name = self.ds.name();
                return Err(Error::corrupt(format!("it names object {}, which '{name}' does not have", w.object)));
            }
            Err(e) => return lost(e),
        };
        let size = u64::from(dn.block_size());
        let bp = match dn.block_pointer(w.offset / size).await {
            Ok(bp) => bp,
            Err(e) => return lost(e),
        };
        let zio = self.pool.ctx().zio();
        match zio.verify(&bp, Prio::SyncRead).await {
            Ok(true) => return Ok(Outcome::Sound),
            Ok(false) => {}
            Err(e) => return lost(e),
        }
        let place = || format!("offset {} of object {}", w.offset, w.object);
        if w.logical_size != size || !w.offset.is_multiple_of(size) {
            let text =
                format!("stream is not compatible with the data in the pool: {} bytes for {size}", w.logical_size);
            return Ok(Outcome::Lost(Error::unsupported(text).at(place())));
        }
        let remedy = self.remedy(order, incoming, w).await?;
        match zio.heal(&bp, &remedy, self.key.as_deref()).await {
            Ok(true) => {
                let (objset, object) = (self.ds.object.0, w.object.0);
                Ok(Outcome::Healed(Bookmark { objset, object, level: 0, blkid: w.offset / size }))
            }
            Ok(false) => {
                let text = "packed as the damaged block is, the block of the stream has another checksum";
                Ok(Outcome::Lost(Error::new(ErrorKind::Checksum, text).at(place())))
            }
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::Checksum | ErrorKind::Corrupt | ErrorKind::Forged | ErrorKind::Unsupported
                ) =>
            {
                Ok(Outcome::Lost(e.at(place())))
            }
            Err(e) => Err(e.at(place())),
        }
    }

    /// The block of a WRITE.
    async fn remedy(&self, order: Endian, incoming: Incoming, w: &Write) -> Result<Remedy> {
        let Item { content, stored, .. } = unpack(self.pool.ctx().rt(), order, self.raw, incoming).await?;
        let (content, stored): (Option<Bytes>, _) = match (self.raw, stored) {
            (true, _) => {
                raw::check_order(w.flags)?;
                let otype = ondisk::object_type::ObjectType(u8::try_from(w.object_type).unwrap_or(0));
                let packed = raw::packed(content, w.compression, w.logical_size, &w.crypt, otype)?;
                (None, Some(packed))
            }
            (false, Stored::Packed(packed)) => (Some(content), Some(packed)),
            (false, _) => (Some(content), None),
        };
        Ok(Remedy { content, stored, compression: self.compression })
    }
}
