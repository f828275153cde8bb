//! Receiving: a stream becomes a snapshot (format pages 11, 21 and 25).
//!
//! **Normal path.** The caller reads the BEGIN of the stream from its [`Input`] and names a target.
//! [`DslPool::begin_receive`] checks both and makes the dataset that receives (`begin`).
//! [`Receiving::data`] takes record after record (`input`), unpacks their payloads (`unpack`) and
//! applies them in order (`apply`, `object`). [`Receiving::finish`] makes the snapshot and shows it
//! (`end`). [`Receiving::give_up`] ends a receive that failed.
//!
//! **Words.** A *full* stream has all of a snapshot, an *incremental* one what changed since the
//! *from* snapshot. What receives is *hidden*: a file system that exists is replaced at the end by
//! its child [`RECV`], a clone of the from snapshot; a new one is marked inconsistent until then.
//! So nothing of a snapshot is seen before all of it is there, also after a power cut: a hidden
//! dataset without a saved state is destroyed at the next import ([`DslPool::destroy_unfinished`]).
//!
//! A receive that can be *resumed* keeps where it stopped with what it received (`resume`).
//!
//! A *redacted* stream leaves out blocks, which are holes here. What it is redacted by is kept with
//! the dataset: it decides which increments fit it, and that it is not shown.
//!
//! Invariants. Streams are hostile: every length is bounded before it is used, objects and offsets
//! ascend, and what does not fit is an error that names the byte of the stream. Blocks that come
//! compressed are stored as they came, after they were unpacked once: so a payload that does not
//! unpack is refused here, and not found years later. Records ahead of the one that is applied take
//! at most [`AHEAD_BYTES`].

mod apply;
mod begin;
mod end;
mod heal;
mod input;
mod object;
mod raw;
mod resume;
mod unpack;

use std::collections::VecDeque;
use std::rc::Rc;

use base::{MAX_BLOCK, Result, ResultExt, Txg};
use ondisk::dnode::MAX_OBJECT;
use ondisk::stream::{Record, begin_flags, features};
use rt::LocalBoxFuture;
use rt::join::Pipeline;

use self::apply::{Form, Writer};
use self::begin::{Begun, Wanted};
pub use self::heal::{Healed, Healing};
use self::input::Incoming;
pub use self::input::{Head, Input, Source};
pub(crate) use self::resume::Progress;
use self::unpack::{Item, unpack};
use crate::crypto::NewCrypt;
use crate::dataset::{Dataset, Use};
use crate::pool::DslPool;
use crate::props::PropValue;

/// The name of the hidden child that receives (`recv_clone_name` of OpenZFS).
pub const RECV: &str = "%recv";
/// Records that are unpacked at once.
const AHEAD: usize = 16;
/// Bytes of payloads that are in memory at once.
const AHEAD_BYTES: u64 = 32 << 20;

/// How a stream is received.
#[derive(Clone, Default, Debug)]
pub struct ReceiveOpts {
    /// `-F`: a target that exists is rolled back to the from snapshot, or replaced.
    pub force: bool,
    /// `-s`: what was received of a stream that breaks off is kept.
    pub resumable: bool,
    /// `-o origin=`: the snapshot that a new target becomes a clone of.
    pub origin: Option<String>,
    /// How a new target is encrypted; the default is as its parent. What is raw or a clone has a
    /// key already.
    pub crypt: NewCrypt,
    /// Values that a new target gets, by the names under which they are stored.
    pub props: Vec<(String, PropValue)>,
    /// The user who makes a new target, and gets what is granted to creators.
    pub creator: u32,
}

/// What has been received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Received {
    /// The full name of the snapshot.
    pub snapshot: String,
    /// Bytes of the stream, its BEGIN included.
    pub bytes: u64,
}

/// A receive that has begun.
pub struct Receiving {
    pool: Rc<DslPool>,
    wanted: Rc<Wanted>,
    ds: Use,
    /// The head that `ds` replaces.
    target: Option<Rc<Dataset>>,
    /// Where an interrupted receive goes on.
    start: Progress,
}

impl Receiving {
    fn new(pool: Rc<DslPool>, wanted: Rc<Wanted>, begun: Begun, start: Progress) -> Receiving {
        Receiving { pool, wanted, ds: begun.ds, target: begun.target, start }
    }

    /// The head that is replaced at the end; it must not be in use then. None: the target is new.
    pub fn target(&self) -> Option<&Rc<Dataset>> {
        self.target.as_ref()
    }

    fn form(&self) -> Form {
        let begin = &self.wanted.head.begin;
        let has = |feature| begin.features() & feature != 0;
        Form {
            is_full: begin.from_guid.0 == 0,
            spill_flags: begin.flags & begin_flags::SPILL_BLOCK != 0,
            large_blocks: has(features::LARGE_BLOCKS),
            raw: has(features::RAW),
            redacted: self.wanted.redaction.is_some(),
            large_dnodes: has(features::LARGE_DNODE),
            resumable: self.wanted.opts.resumable,
        }
    }

    /// Takes the records up to the END of this part of the stream and applies them. Errors: those
    /// of the stream (`Corrupt`, `Checksum`, `Unsupported`), of space (`NoSpace`, `Quota`), of
    /// reads and of the source. What was applied before an error stays.
    pub async fn data(&self, input: &mut Input<'_>) -> Result<()> {
        self.take(input).await.at(|| self.wanted.what())
    }

    async fn take(&self, input: &mut Input<'_>) -> Result<()> {
        let os = match &self.wanted.keys {
            Some(keys) => self.pool.raw_objset(self.ds.dataset(), keys).await?,
            None => self.ds.objset().await?,
        };
        let (rt, order, form) = (self.pool.ctx().rt().clone(), input.order(), self.form());
        let mut writer = Writer::new(self.pool.clone(), self.ds.dataset().clone(), os, (form, self.start));
        let mut ahead: Ahead<'_, Result<Item>> = Ahead::default();
        let end = loop {
            let incoming = match input.next().await {
                Ok(Some(incoming)) => incoming,
                Ok(None) => break Err(input.cut_off()),
                Err(e) => break Err(e),
            };
            if matches!(incoming.record, Record::End(_)) {
                break Ok(());
            }
            let size = room_of(&incoming);
            while !ahead.has_room(size) {
                let Some(item) = ahead.next().await else { break };
                writer.apply(item?).await?;
            }
            ahead.push(size, Box::pin(unpack(&rt, order, form.raw, incoming))).await;
        };
        // What came before the stream broke off is good.
        while let Some(item) = ahead.next().await {
            writer.apply(item?).await?;
        }
        writer.flush().await?;
        end?;
        if form.is_full && self.wanted.opts.origin.is_some() {
            writer.free_numbers(writer.max_object.0 + 1, MAX_OBJECT).await?;
        }
        Ok(())
    }

    /// Makes the snapshot, after all records were applied, and shows it. After an error the receive
    /// can be given up.
    ///
    /// # Errors
    /// `Busy` if the target is in use or was changed; `Quota`, `NoSpace` if it has no room; those
    /// of the pool.
    pub async fn finish(&self) -> Result<Received> {
        let place = || self.wanted.what();
        let pool = &self.pool;
        pool.txg().wait_synced(Txg(0)).await.at(place)?;
        if let Some(target) = &self.target {
            pool.free_log(target).await.at(place)?;
        }
        let (wanted, ds, target) = (self.wanted.clone(), self.ds.dataset().clone(), self.target.clone());
        let snap = pool
            .sync_task_again(move |pool, tx| -> LocalBoxFuture<'static, Result<Rc<Dataset>>> {
                let (wanted, ds, target) = (wanted.clone(), ds.clone(), target.clone());
                Box::pin(async move {
                    match target {
                        Some(target) => pool.end_over(&wanted, &ds, &target, &tx).await,
                        None => pool.end_new(&wanted, &ds, &tx).await,
                    }
                })
            })
            .await
            .at(place)?;
        Ok(Received { snapshot: snap.name(), bytes: 0 })
    }

    /// Ends a receive that failed: what was received is destroyed, or kept if it can be resumed.
    /// True if it is kept. Errors: those of the pool; then an import destroys it.
    pub async fn give_up(self) -> Result<bool> {
        let Receiving { pool, wanted, ds, start, .. } = self;
        pool.txg().wait_synced(Txg(0)).await?;
        let hidden = ds.dataset().clone();
        drop(ds);
        let kept = match pool.saved(&hidden).await? {
            Some(saved) => wanted.opts.resumable && (saved.bytes > 0 || start != Progress::default()),
            None => false,
        };
        if !kept {
            pool.destroy_received(&hidden).await?;
        }
        Ok(kept)
    }
}

/// Records that are worked on at once, with their results in the order of the stream.
struct Ahead<'a, T> {
    window: Pipeline<LocalBoxFuture<'a, T>>,
    /// The bytes of each, and of all.
    sizes: VecDeque<u64>,
    bytes: u64,
}

impl<T> Default for Ahead<'_, T> {
    fn default() -> Self {
        Ahead { window: Pipeline::new(AHEAD), sizes: VecDeque::new(), bytes: 0 }
    }
}

impl<'a, T> Ahead<'a, T> {
    /// Whether a record of `size` bytes may join; one may in any case.
    fn has_room(&self, size: u64) -> bool {
        !self.window.is_full() && (self.sizes.is_empty() || self.bytes + size <= AHEAD_BYTES)
    }
    /// Adds the work on a record, for which there is room.
    async fn push(&mut self, size: u64, work: LocalBoxFuture<'a, T>) {
        self.sizes.push_back(size);
        self.bytes += size;
        let done = self.window.push(work).await;
        assert!(done.is_none(), "there is room for one more");
    }
    /// The result of the oldest one; none if there is none.
    async fn next(&mut self) -> Option<T> {
        let done = self.window.next().await?;
        self.bytes -= self.sizes.pop_front().unwrap_or(0);
        Some(done)
    }
}

/// Bytes that a record takes until it is applied.
fn room_of(incoming: &Incoming) -> u64 {
    let unpacked = match &incoming.record {
        Record::Write(w) if w.compression != 0 => w.logical_size.min(MAX_BLOCK),
        _ => 0,
    };
    incoming.payload.len() as u64 + unpacked
}

impl DslPool {
    /// Receives the part of a stream whose BEGIN is `head` as the snapshot `target`: all steps of
    /// it. Errors: those of the steps; then nothing of it is left unless it can be resumed.
    pub async fn receive(
        self: &Rc<Self>,
        target: &str,
        head: Head,
        opts: ReceiveOpts,
        input: &mut Input<'_>,
    ) -> Result<Received> {
        let receiving = self.begin_receive(target, head, opts).await?;
        let done = match receiving.data(input).await {
            Ok(()) => receiving.finish().await,
            Err(e) => Err(e),
        };
        match done {
            Ok(received) => Ok(Received { bytes: input.offset(), ..received }),
            Err(e) => {
                // The first error is the one to tell.
                let _ = receiving.give_up().await;
                Err(e)
            }
        }
    }

    /// Destroys what interrupted receives left that cannot be resumed; to be called after an import
    /// for writing.
    pub async fn destroy_unfinished(self: &Rc<Self>) -> Result<()> {
        for head in self.all() {
            if head.is_partial() && !planted!(PartLeft) && self.saved(&head).await?.is_none() {
                self.destroy_received(&head).await?;
            }
        }
        Ok(())
    }
}
