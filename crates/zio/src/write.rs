//! The second half of a write: allocate places, make the pointer, queue the device writes.

use std::cell::Cell;
use std::rc::Rc;

use base::{Error, ErrorKind, Result, SYNC_PASS_REWRITE, Txg};
use bdev::Bytes;
use metaslab::ClassKind;
use ondisk::blkptr::{Blkptr, Dva};
use vdev::{Prio, WriteDone};

use crate::CompressAlgo;
use crate::crypt::{Seal, halved};
use crate::dedup::DedupAnswer;
use crate::request::{Body, DedupMode, Packed, Prepared, SealMark, WriteOut, WriteReq};
use crate::zio::{Inner, Zio};

/// Maximum number of copies of a block.
pub(crate) const MAX_COPIES: usize = 3;

/// Copies of one block in flight.
struct AnyOf {
    left: Cell<usize>,
    good: Cell<bool>,
    completer: Cell<Option<vdev::Completer>>,
}

/// The places allocated for the copies of one block.
#[derive(Clone, Copy, Default)]
pub(crate) struct Places {
    dvas: [Dva; MAX_COPIES],
    len: usize,
}

impl Places {
    pub(crate) fn as_slice(&self) -> &[Dva] {
        &self.dvas[..self.len]
    }
}

/// Percent of the special class reserved for metadata, not used by small file blocks
/// (`zfs_special_class_metadata_reserve_pct`).
const SPECIAL_RESERVE_PCT: u64 = 25;

impl Inner {
    /// Whether the special class has room for file blocks.
    fn special_has_room(&self) -> bool {
        let (alloc, total) = self.space.class_use(ClassKind::Special);
        u128::from(alloc) * 100 < u128::from(total) * u128::from(100 - SPECIAL_RESERVE_PCT)
    }

    /// Allocates one copy of `psize` bytes, away from the copies `avoid`.
    async fn alloc_one(&self, req: &WriteReq, psize: u64, avoid: &[Dva]) -> Result<Dva> {
        // Metadata goes to special vdevs; without any the special class falls back to normal.
        let class = match req.class {
            ClassKind::Normal if req.level > 0 || req.otype.is_metadata() => ClassKind::Special,
            class => class,
        };
        // The first call neither waits nor allocates memory; space that must be loaded is the
        // exception.
        match self.space.try_alloc(class, psize, req.txg, avoid)? {
            Some(dva) => Ok(dva),
            None => self.space.alloc(class, psize, req.txg, avoid).await,
        }
    }

    /// Allocates up to `copies` places of `psize` bytes, at least one; `NoSpace` if there is none.
    pub(crate) async fn alloc_copies(&self, req: &WriteReq, psize: u64, copies: usize) -> Result<Places> {
        let mut places = Places::default();
        while places.len < copies.clamp(1, MAX_COPIES) {
            match self.alloc_one(req, psize, places.as_slice()).await {
                Ok(dva) => {
                    places.dvas[places.len] = dva;
                    places.len += 1;
                }
                Err(e) if e.kind() == ErrorKind::NoSpace && places.len > 0 => {
                    self.count(|s| s.copies_short += 1);
                    break;
                }
                Err(e) => {
                    self.unalloc_copies(places.as_slice(), req);
                    return Err(e);
                }
            }
        }
        Ok(places)
    }

    /// Returns places allocated for `req` that will not be written.
    pub(crate) fn unalloc_copies(&self, places: &[Dva], req: &WriteReq) {
        for dva in places {
            self.space.unalloc(*dva, req.txg).expect("what was just allocated can be given back");
        }
    }

    /// Queues a write of `data` to every copy. Resolves when all copies have completed; an error
    /// only if every copy failed. While the pool's gate holds, a failed write is retried each time
    /// the pool is resumed, until it succeeds or the pool is given up.
    pub(crate) fn write_copies(self: &Rc<Self>, req: &WriteReq, places: &[Dva], data: &Bytes) -> Result<WriteDone> {
        let (txg, prio) = (req.txg, req.prio);
        let first = self.write_once(places, data, txg, prio)?;
        if !self.tree.gate.holds() || first.result().is_some_and(|r| r.is_ok()) {
            return Ok(first);
        }
        let (done, completer) = WriteDone::pending();
        let mut own = Places { len: places.len(), ..Places::default() };
        own.dvas[..places.len()].copy_from_slice(places);
        let (inner, data) = (self.clone(), data.clone());
        done.set_parts(vec![first.clone()]);
        first.on_done(move |result| match result {
            Err(e) if e.kind() == ErrorKind::Io => {
                let (rt, cause) = (inner.rt.clone(), e.clone());
                rt.spawn("write again", async move {
                    completer.complete(inner.write_again(own.as_slice(), &data, txg, prio, cause).await);
                });
            }
            other => completer.complete(other.clone()),
        });
        Ok(done)
    }

    async fn write_again(
        self: &Rc<Self>,
        places: &[Dva],
        data: &Bytes,
        txg: Txg,
        prio: Prio,
        mut cause: Error,
    ) -> Result<()> {
        loop {
            self.tree.gate.suspend(&cause).await?;
            match self.write_once(places, data, txg, prio)?.await {
                Err(e) if e.kind() == ErrorKind::Io => cause = e,
                other => return other,
            }
        }
    }

    fn write_once(self: &Rc<Self>, places: &[Dva], data: &Bytes, txg: Txg, prio: Prio) -> Result<WriteDone> {
        let write = |dva: &Dva| Ok(self.tree.top(dva.vdev())?.write(dva.offset(), data.clone(), txg, prio));
        if let [one] = places {
            return write(one);
        }
        let parts = places.iter().map(write).collect::<Result<Vec<_>>>()?;
        Ok(self.any_of(parts))
    }

    /// Resolves when all `parts`, the copies of one block, have completed; an error only if every
    /// one failed. Failed copies are counted.
    fn any_of(self: &Rc<Self>, parts: Vec<WriteDone>) -> WriteDone {
        let (any, completer) = WriteDone::pending();
        let state = Rc::new(AnyOf {
            left: Cell::new(parts.len()),
            good: Cell::new(false),
            completer: Cell::new(Some(completer)),
        });
        for part in &parts {
            let (state, inner) = (state.clone(), self.clone());
            part.on_done(move |r| {
                if r.is_err() {
                    inner.count(|s| s.write_errors += 1);
                }
                state.good.set(state.good.get() || r.is_ok());
                state.left.set(state.left.get() - 1);
                if state.left.get() == 0
                    && let Some(c) = state.completer.take()
                {
                    // The last error is the result.
                    c.complete(if state.good.get() { Ok(()) } else { r.clone() });
                }
            });
        }
        any.set_parts(parts);
        any
    }

    /// Allocates places for `data`, in one piece or as a gang block, sets them in `bp`, and queues
    /// the writes.
    async fn store(self: &Rc<Self>, req: &WriteReq, bp: &mut Blkptr, data: Bytes) -> Result<WriteDone> {
        let psize = data.len() as u64;
        if !self.is_forced_gang(psize) {
            match self.alloc_copies(req, psize, usize::from(req.copies)).await {
                Ok(places) => {
                    places.as_slice().iter().enumerate().for_each(|(i, dva)| bp.set_dva(i, *dva));
                    return self.write_copies(req, places.as_slice(), &data);
                }
                Err(e) if e.kind() == ErrorKind::NoSpace => {}
                Err(e) => return Err(e),
            }
        }
        self.count(|s| s.gangs += 1);
        self.write_gang(req, bp, data).await
    }

    /// Whether both are the same bytes.
    async fn is_equal(&self, a: Bytes, b: Bytes) -> bool {
        let cost = rt::cost::COPY.cost(a.len() as u64);
        // Returned: this thread's free lists own the memory.
        let (equal, _both) = self.rt.cpu(cost, move || (a[..] == b[..], (a, b))).await;
        equal
    }

    /// A pointer for `req` without DVAs.
    fn pointer(req: &WriteReq, psize: u64, compress: CompressAlgo, checksum: [u64; 4], seal: Option<&Seal>) -> Blkptr {
        let mut bp = Blkptr::hole();
        bp.set_lsize(req.data.len() as u64);
        bp.set_psize(psize);
        bp.set_compress(compress as u8);
        bp.set_checksum(req.checksum as u8);
        bp.set_otype(req.otype);
        bp.set_level(req.level);
        bp.set_little_endian(true);
        bp.set_birth(req.txg, req.txg);
        bp.set_fill(req.fill);
        bp.set_checksum_words(checksum);
        if req.crypt.is_some() || req.sealed {
            bp.set_encrypted(true);
        }
        if let Some(seal) = seal {
            let [a, b] = halved(checksum, req.checksum);
            bp.set_checksum_words([a, b, 0, 0]);
            seal.mark(&mut bp);
        }
        bp
    }
}

/// Whether a block of `psize` bytes for `req` may overwrite the one at `old`
/// (`zio_write_compress`): no committed txg refers to it. For a gang block the places of its
/// pieces must be known too.
fn may_rewrite(req: &WriteReq, old: &Blkptr, psize: u64) -> bool {
    req.pass >= SYNC_PASS_REWRITE
        && old.logical_birth() == req.txg
        && old.phys_birth() == req.txg
        && !old.is_hole()
        && !old.is_embedded()
        && !old.dedup()
        && old.psize() == psize
        && (old.is_gang() || old.ndvas() == usize::from(req.copies))
}

/// Whether what would be stored for `req` is stored at `old` already (`zio_nop_write`).
fn is_stored_at(req: &WriteReq, body: &Body, old: &Blkptr) -> bool {
    let Body::Stored { data, compress, checksum, seal: None } = body else { return false };
    let is_plain = req.crypt.is_none() && !req.sealed && !old.encrypted() && !old.is_gang();
    let is_counted = req.dedup.is_some() || old.dedup() || req.keeps_birth_of.is_some();
    is_plain
        && !is_counted
        && !old.is_hole()
        && !old.is_embedded()
        && old.is_little_endian()
        && (old.otype(), old.level()) == (req.otype, req.level)
        && (old.checksum_raw(), old.checksum_words()) == (req.checksum as u8, *checksum)
        && (old.compress_raw(), old.psize(), old.lsize()) == (*compress as u8, data.len() as u64, req.data.len() as u64)
        && old.ndvas() == usize::from(req.copies)
}

impl Zio {
    /// Whether the block at `old` may stay in place of a prepared one ([`WriteReq::nopwrite`]):
    /// it is the same, and not on a vdev that was removed.
    pub fn stays(&self, prepared: &Prepared, old: &Blkptr) -> Result<bool> {
        if !prepared.req.nopwrite || !is_stored_at(&prepared.req, &prepared.body, old) {
            return Ok(false);
        }
        for dva in old.dvas() {
            if self.0.tree.top(dva.vdev())?.is_indirect() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// As [`Zio::issue`] for a block that takes the place of the one at `old`, which may stay.
    pub async fn issue_over(&self, prepared: Prepared, old: &Blkptr) -> Result<WriteOut> {
        if self.stays(&prepared, old)? {
            self.0.count(|s| s.nopwrites += 1);
            let done = WriteDone::ready(Ok(()));
            return Ok(WriteOut { rewritten_in_place: true, ..WriteOut::of(*old, done) });
        }
        self.issue(prepared).await
    }

    /// Both halves of a write: [`Zio::prepare`], then [`Zio::issue`].
    pub async fn write(&self, req: WriteReq) -> Result<WriteOut> {
        let prepared = self.prepare(req).await?;
        self.issue(prepared).await
    }

    /// For an encrypted block that keeps its logical birth: it keeps salt, IV and MAC as well,
    /// since a raw stream leaves it out, and carries MACs that depend on its own. So the bytes that
    /// are stored are stored again. A block that cannot be read, or is to be packed in another way,
    /// keeps no birth.
    async fn keep_seal(&self, mut req: WriteReq, body: Body) -> Result<(WriteReq, Body)> {
        let (Some(old), Body::Stored { data, compress, .. }) = (req.keeps_birth_of.as_deref().copied(), &body) else {
            return Ok((req, body));
        };
        let is_alike = old.is_encrypted_data()
            && old.compress_raw() == *compress as u8
            && old.psize() == data.len() as u64
            && old.lsize() == req.data.len() as u64;
        let bytes = if is_alike { self.read_as_stored(&old).await.ok() } else { None };
        let Some(data) = bytes else {
            req.keeps_birth_of = None;
            return Ok((req, body));
        };
        let mark = Some(SealMark { salt_iv: Some(old.salt_iv()), mac: old.mac() });
        let packed = Some(Rc::new(Packed { data, compress: *compress, mark }));
        let again = WriteReq { packed, crypt: None, sealed: true, dedup: None, ..req };
        let Prepared { req, body } = self.prepare(again).await?;
        Ok((req, body))
    }

    /// The stored bytes of a block, neither opened nor decompressed.
    async fn read_as_stored(&self, bp: &Blkptr) -> Result<Bytes> {
        // As one that is not compressed its bytes come as they are stored.
        let mut stored = *bp;
        stored.set_lsize(bp.psize());
        stored.set_compress(CompressAlgo::Off as u8);
        self.read_sealed(&stored, Prio::SyncRead).await
    }

    /// Whether the block at `bp`, which has the checksum and the sizes of `data`, is stored as
    /// that. One that cannot be read is not.
    async fn is_stored(&self, bp: &Blkptr, data: &Bytes) -> bool {
        match self.read_as_stored(bp).await {
            Ok(found) => self.0.is_equal(found, data.clone()).await,
            Err(_) => false,
        }
    }

    /// The second half of a write: allocates the copies, makes the pointer, queues the device
    /// writes, and returns without waiting for them. Waits only when a metaslab has to be loaded,
    /// and for the checksums of the pieces of a gang block.
    /// Errors: `NoSpace` when nothing fits, not even in pieces.
    pub async fn issue(&self, prepared: Prepared) -> Result<WriteOut> {
        let Prepared { mut req, mut body } = prepared;
        let z = &self.0;
        // The same bytes to be deduplicated again have the same salt and IV anyway.
        let must_keep_seal = |old: &Blkptr| req.crypt.is_some() && !(old.dedup() && req.dedup.is_some());
        if req.keeps_birth_of.as_deref().is_some_and(must_keep_seal) {
            // Boxed, so that this rare path does not enlarge the future of every write.
            (req, body) = Box::pin(self.keep_seal(req, body)).await?;
        }
        let (data, compress, checksum, seal) = match body {
            Body::Hole => {
                return Ok(WriteOut::of(Blkptr::hole(), WriteDone::ready(Ok(()))));
            }
            Body::Embedded(bp) => {
                return Ok(WriteOut::of(bp, WriteDone::ready(Ok(()))));
            }
            Body::Stored { data, compress, checksum, seal } => (data, compress, checksum, seal),
        };
        let psize = data.len() as u64;
        z.count(|s| (s.writes, s.write_bytes) = (s.writes + 1, s.write_bytes + psize));
        if req.class == ClassKind::Normal && psize <= u64::from(req.special_small) && z.special_has_room() {
            req.class = ClassKind::Special;
        }
        let stored = Some(data.clone());
        let mut bp = Inner::pointer(&req, psize, compress, checksum, seal.as_deref());

        let rewrite = req.rewrite.filter(|old| may_rewrite(&req, old, psize));
        if let Some(old) = rewrite.filter(Blkptr::is_gang) {
            let known = z.rewritable.borrow().find(req.txg, &old, psize);
            if let Some(places) = known {
                z.count(|s| s.rewrites += 1);
                let done = z.rewrite_gang(&req, &mut bp, data, &places).await?;
                return Ok(WriteOut { bp, done, rewritten_in_place: true, stored });
            }
        }
        if let Some(old) = rewrite.filter(|old| !old.is_gang()) {
            let mut places = Places::default();
            for (i, dva) in old.dvas().enumerate() {
                bp.set_dva(i, dva);
                places.dvas[i] = dva;
                places.len = i + 1;
            }
            z.count(|s| s.rewrites += 1);
            let done = z.write_copies(&req, places.as_slice(), &data)?;
            return Ok(WriteOut { bp, done, rewritten_in_place: true, stored });
        }

        let dedup = z.dedup.borrow().clone();
        // What is authenticated only belongs to its dataset.
        let mode = req.dedup.filter(|_| !bp.encrypted() || bp.is_encrypted_data());
        if let (Some(mode), Some(tables)) = (mode, dedup) {
            match tables.ask(&bp, usize::from(req.copies), req.txg).await? {
                DedupAnswer::Known { bp: stored, done, accept } => {
                    let same = match mode {
                        DedupMode::Checksum => true,
                        DedupMode::Verify => {
                            if let Some(done) = done {
                                done.await?;
                            }
                            self.is_stored(&stored, &data).await
                        }
                    };
                    if same {
                        stored.dvas().enumerate().for_each(|(i, dva)| bp.set_dva(i, dva));
                        bp.set_birth(req.txg, stored.phys_birth());
                        bp.set_dedup(true);
                        let is_it = |old: &Blkptr| bp.same_place(old) && bp.prop_word() == old.prop_word();
                        if let Some(old) = req.keeps_birth_of.as_deref().copied().filter(is_it) {
                            // The reference is counted already.
                            let done = WriteDone::ready(Ok(()));
                            return Ok(WriteOut { rewritten_in_place: true, ..WriteOut::of(old, done) });
                        }
                        accept();
                        z.count(|s| s.deduped += 1);
                        return Ok(WriteOut::of(bp, WriteDone::ready(Ok(()))));
                    }
                }
                DedupAnswer::Apart => {}
                DedupAnswer::New(fill) => {
                    bp.set_dedup(true);
                    let done = z.store(&req, &mut bp, data).await?;
                    fill(&bp, &done);
                    return Ok(WriteOut { bp, done, rewritten_in_place: false, stored });
                }
            }
        }
        let done = z.store(&req, &mut bp, data).await?;
        let has_seal_of = |old: &Blkptr| !bp.is_encrypted_data() || bp.mac() == old.mac();
        let is_kept = |old: &&Blkptr| !bp.is_gang() && has_seal_of(old);
        if let Some(old) = req.keeps_birth_of.as_deref().filter(is_kept) {
            bp.set_rewritten(old.logical_birth(), req.txg);
        }
        Ok(WriteOut { bp, done, rewritten_in_place: false, stored })
    }
}
