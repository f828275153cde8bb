//! Gang blocks: writing a block in pieces, reading it back, freeing it (format page 02 section 6).
//!
//! A write has two steps, so that no device write is in flight when space runs out half-way: first
//! all headers and pieces are allocated (a [`Gang`], a tree of at most [`GANG_MAX_DEPTH`] levels),
//! then all are written. Gang blocks are rare; this code is simple rather than fast. A piece may
//! have a third of 16 MiB: its checksum and the joining of pieces are CPU jobs.
//!
//! While the feature `dynamic_gang_header` is active a header has the size of a unit of allocation,
//! of the smallest one among its copies, so that a block needs headers below headers only where
//! space is in smaller pieces still (format page 17 section 6). Headers of 512 bytes stay valid.

use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Error, ErrorKind, Result, Txg};
use bdev::{Buf, Bytes};
use codec::CompressAlgo;
use ondisk::blkptr::{Blkptr, Dva};
use ondisk::gang::{self, GANG_CHILDREN, GANG_HEADER_MAX, GANG_HEADER_SIZE, GANG_MAX_DEPTH};
use ondisk::object_type::ObjectType;
use rt::LocalBoxFuture;
use rt::cost::COPY;
use rt::join::join_all;
use vdev::{Prio, Verify, WriteDone};

use crate::cost;
use crate::read::place_of;
use crate::request::WriteReq;
use crate::write::{MAX_COPIES, Places};
use crate::zio::{Inner, Zio};

/// A block with its places, not yet written.
struct Gang {
    bp: Blkptr,
    /// The places of `body`, as allocated: copies of the data, or of the header.
    places: Places,
    body: GangBody,
}

enum GangBody {
    Data(Bytes),
    /// The pieces, and the bytes of the header.
    Header(Vec<Gang>, usize),
}

/// How many pieces are tried one after the other, before the pieces become gang blocks: few large
/// ones are read faster. `most` is the room of the header.
fn piece_counts(most: usize) -> Vec<usize> {
    let mut out = vec![GANG_CHILDREN];
    while let Some(last) = out.last().copied().filter(|n| *n < most) {
        out.push((last * 2 + 1).min(most));
    }
    out
}

/// A test whether bytes are the header of the gang block `bp`, which has `size` bytes.
pub(crate) fn verifier(bp: &Blkptr, size: u64) -> Verify {
    let own = *bp;
    let cost = rt::cost::SHA256.cost(size);
    Verify::new(cost, move |raw| gang::parse(raw, &own).is_ok())
}

impl Gang {
    /// Every place in the tree.
    fn collect(&self, out: &mut Vec<Dva>) {
        out.extend_from_slice(self.places.as_slice());
        if let GangBody::Header(children, _) = &self.body {
            children.iter().for_each(|c| c.collect(out));
        }
    }
}

/// The places of a gang block, for overwriting it in place.
pub(crate) struct GangPlaces {
    psize: u64,
    /// As allocated: places of the data, or of the header if there are pieces.
    places: Places,
    pieces: Vec<GangPlaces>,
    /// Bytes of the header.
    header: usize,
}

impl GangPlaces {
    fn of(gang: &Gang) -> GangPlaces {
        let (pieces, header) = match &gang.body {
            GangBody::Data(_) => (Vec::new(), 0),
            GangBody::Header(children, size) => (children.iter().map(GangPlaces::of).collect(), *size),
        };
        GangPlaces { psize: gang.bp.psize(), places: gang.places, pieces, header }
    }
}

/// Metadata gang blocks written so far in this txg, by the first DVA of their header. Later passes
/// of the txg overwrite them, as other blocks: freeing them instead would lengthen the list of
/// frees in each pass, and syncing would not converge.
#[derive(Default)]
pub(crate) struct Rewritable {
    txg: Txg,
    gangs: BTreeMap<Dva, Rc<GangPlaces>>,
}

impl Rewritable {
    fn remember(&mut self, txg: Txg, gang: &Gang) {
        if self.txg != txg {
            *self = Rewritable { txg, ..Rewritable::default() };
        }
        self.gangs.insert(gang.bp.dva(0), Rc::new(GangPlaces::of(gang)));
    }

    /// The places of the block at `old` if it can be overwritten in `txg` by one stored in `psize`
    /// bytes.
    pub(crate) fn find(&self, txg: Txg, old: &Blkptr, psize: u64) -> Option<Rc<GangPlaces>> {
        let found = self.gangs.get(&old.dva(0)).filter(|_| self.txg == txg)?;
        (found.psize == psize).then(|| found.clone())
    }
}

/// Sets the DVAs of a header in its pointer: their sizes are those of the header and of all pieces
/// below.
fn set_header_dvas(bp: &mut Blkptr, places: &Places, children: &[Gang]) {
    for (i, dva) in places.as_slice().iter().enumerate() {
        let pieces: u64 = children.iter().map(|c| c.bp.dva(i).asize()).sum();
        bp.set_dva(i, Dva::new(dva.vdev(), dva.offset(), dva.asize() + pieces, true));
    }
}

/// `out` filled with `parts`, one after the other.
fn join_parts(mut out: Buf, parts: &[Bytes]) -> Buf {
    let mut at = 0;
    for part in parts {
        out[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    assert_eq!(at, out.len(), "the header's sizes were checked");
    out
}

impl Inner {
    /// Writes `data` in pieces; `bp` describes the whole block and gets the DVAs of the header.
    pub(crate) async fn write_gang(self: &Rc<Self>, req: &WriteReq, bp: &mut Blkptr, data: Bytes) -> Result<WriteDone> {
        let gang = self.plan_header(req, *bp, data, 0).await?;
        if req.otype.is_metadata() || req.level > 0 {
            self.rewritable.borrow_mut().remember(req.txg, &gang);
        }
        self.write_planned(req, bp, gang)
    }

    /// Overwrites the gang block at `places` in its own txg.
    pub(crate) async fn rewrite_gang(
        self: &Rc<Self>,
        req: &WriteReq,
        bp: &mut Blkptr,
        data: Bytes,
        places: &GangPlaces,
    ) -> Result<WriteDone> {
        let gang = self.plan_rewrite(req, *bp, data, places).await?;
        self.write_planned(req, bp, gang)
    }

    /// Plans `data` at the places of an older gang block of the same size.
    fn plan_rewrite<'a>(
        &'a self,
        req: &'a WriteReq,
        mut bp: Blkptr,
        data: Bytes,
        at: &'a GangPlaces,
    ) -> LocalBoxFuture<'a, Result<Gang>> {
        Box::pin(async move {
            if at.pieces.is_empty() {
                at.places.as_slice().iter().enumerate().for_each(|(i, dva)| bp.set_dva(i, *dva));
                return Ok(Gang { bp, places: at.places, body: GangBody::Data(data) });
            }
            let (mut children, mut from) = (Vec::with_capacity(at.pieces.len()), 0);
            for piece in &at.pieces {
                let part = data.slice(from..from + piece.psize as usize);
                from += piece.psize as usize;
                let pointer = self.piece_pointer(req, &part).await?;
                children.push(self.plan_rewrite(req, pointer, part, piece).await?);
            }
            set_header_dvas(&mut bp, &at.places, &children);
            Ok(Gang { bp, places: at.places, body: GangBody::Header(children, at.header) })
        })
    }

    fn write_planned(self: &Rc<Self>, req: &WriteReq, bp: &mut Blkptr, gang: Gang) -> Result<WriteDone> {
        *bp = gang.bp;
        let mut dones = Vec::new();
        self.write_plan(req, gang, &mut dones)?;
        Ok(WriteDone::join(dones))
    }

    /// Allocates the header of `bp` and the pieces of its `data`.
    fn plan_header<'a>(
        &'a self,
        req: &'a WriteReq,
        mut bp: Blkptr,
        data: Bytes,
        depth: u32,
    ) -> LocalBoxFuture<'a, Result<Gang>> {
        Box::pin(async move {
            let psize = data.len() as u64;
            if depth >= GANG_MAX_DEPTH || psize <= GANG_HEADER_SIZE as u64 {
                return Err(Error::new(ErrorKind::NoSpace, format!("no place for {psize} bytes, not even in pieces")));
            }
            let most =
                if req.crypt.is_some() || req.sealed { usize::from(crate::ENCRYPTED_COPIES_MAX) } else { MAX_COPIES };
            let copies = (usize::from(req.copies) + 1).min(most);
            let places = self.alloc_copies(req, GANG_HEADER_SIZE as u64, copies).await?;
            let size = self.header_size(places.as_slice().iter().copied());
            let mut failed = Error::new(ErrorKind::NoSpace, "no pieces were tried");
            let counts = piece_counts(gang::children_of(size as usize));
            for (n, count) in (1..).zip(&counts) {
                let nested = (n == counts.len()).then_some(depth);
                match self.plan_pieces(req, &data, *count, nested).await {
                    Ok(children) => {
                        set_header_dvas(&mut bp, &places, &children);
                        return Ok(Gang { bp, places, body: GangBody::Header(children, size as usize) });
                    }
                    Err(e) => failed = e,
                }
                if failed.kind() != ErrorKind::NoSpace {
                    break;
                }
            }
            self.unalloc_copies(places.as_slice(), req);
            Err(failed)
        })
    }

    /// Allocates at most `count` pieces of `data`, all or none. Those for which there is no place
    /// become gang blocks below a header of level `nested`, if there is one.
    async fn plan_pieces(&self, req: &WriteReq, data: &Bytes, count: usize, nested: Option<u32>) -> Result<Vec<Gang>> {
        let (mut children, mut at) = (Vec::with_capacity(count), 0usize);
        for piece in gang::piece_sizes(data.len() as u64, self.tree.piece_unit(), count) {
            let part = data.slice(at..at + piece as usize);
            at += piece as usize;
            match self.plan_piece(req, part, nested).await {
                Ok(child) => children.push(child),
                Err(e) => {
                    let mut taken = Vec::new();
                    children.iter().for_each(|c: &Gang| c.collect(&mut taken));
                    self.unalloc_copies(&taken, req);
                    return Err(e);
                }
            }
        }
        Ok(children)
    }

    /// Bytes of the header whose copies have these DVAs.
    fn header_size(&self, dvas: impl Iterator<Item = Dva>) -> u64 {
        let old = GANG_HEADER_SIZE as u64;
        if !self.opts.get().large_gang_headers {
            return old;
        }
        let units = dvas.map(|dva| self.tree.top(dva.vdev()).map_or(old, |top| top.min_alloc()));
        units.min().unwrap_or(old).clamp(old, GANG_HEADER_MAX as u64)
    }

    /// Bytes of the header of a gang block, or of the unit with an old header.
    pub(crate) fn header_size_of(&self, bp: &Blkptr) -> u64 {
        self.header_size(bp.dvas())
    }

    /// The pointer of a piece, without DVAs.
    async fn piece_pointer(&self, req: &WriteReq, data: &Bytes) -> Result<Blkptr> {
        let psize = data.len() as u64;
        let mut bp = Blkptr::hole();
        bp.set_lsize(psize);
        bp.set_psize(psize);
        bp.set_compress(CompressAlgo::Off as u8);
        bp.set_checksum(req.checksum as u8);
        bp.set_otype(ObjectType::NONE);
        bp.set_little_endian(true);
        bp.set_birth(req.txg, req.txg);
        let (algo, salt, part) = (req.checksum, self.opts.get().salt, data.clone());
        let job = move || codec::compute(algo, &part, false, salt.as_ref());
        let sum = self.rt.cpu_as(req.prio.cpu_class(), cost::checksum(algo, psize), job).await?;
        bp.set_checksum_words(sum.0);
        Ok(bp)
    }

    /// Allocates one piece, or splits it further.
    async fn plan_piece(&self, req: &WriteReq, data: Bytes, nested: Option<u32>) -> Result<Gang> {
        let psize = data.len() as u64;
        let mut bp = self.piece_pointer(req, &data).await?;
        if !self.is_forced_gang(psize) {
            match self.alloc_copies(req, psize, usize::from(req.copies)).await {
                Ok(places) => {
                    for (i, dva) in places.as_slice().iter().enumerate() {
                        bp.set_dva(i, *dva);
                    }
                    return Ok(Gang { bp, places, body: GangBody::Data(data) });
                }
                Err(e) if e.kind() == ErrorKind::NoSpace && nested.is_some() => {}
                Err(e) => return Err(e),
            }
        }
        match nested {
            Some(depth) => self.plan_header(req, bp, data, depth + 1).await,
            None => Err(Error::new(ErrorKind::NoSpace, format!("no place for {psize} bytes in one piece"))),
        }
    }

    /// Queues the writes of a planned tree.
    fn write_plan(self: &Rc<Self>, req: &WriteReq, gang: Gang, dones: &mut Vec<WriteDone>) -> Result<()> {
        let body = match gang.body {
            GangBody::Data(data) => data,
            GangBody::Header(children, size) => {
                let bps: Vec<Blkptr> = children.iter().map(|c| c.bp).collect();
                for child in children {
                    self.write_plan(req, child, dones)?;
                }
                Buf::copy_from(&gang::build(&bps, &gang.bp, size)).freeze()
            }
        };
        dones.push(self.write_copies(req, gang.places.as_slice(), &body)?);
        Ok(())
    }

    /// The children named by the header of `bp`, from the first copy that is intact.
    pub(crate) async fn read_gang_header(&self, bp: &Blkptr, prio: Prio) -> Result<Vec<Blkptr>> {
        let since = self.tree.committed.get();
        let size = self.header_size_of(bp);
        let mut errors = crate::read::CopyErrors::default();
        for dva in bp.dvas() {
            let first = self.read_copy(place_of(bp, dva, size), prio).await;
            let mut result = first.and_then(|first| gang::parse(&first.data, bp));
            if result.is_err() && self.tree.is_redundant(dva.vdev()) {
                let verify = verifier(bp, size);
                let again = self.reconstruct_and_repair(bp, dva, size, since, prio, Some(&verify)).await;
                result = again.and_then(|block| gang::parse(&block, bp));
            }
            match result {
                Ok(children) => return Ok(children),
                Err(e) => {
                    self.note_bad_copy(bp, dva, e.kind());
                    errors.add(dva, e);
                }
            }
        }
        self.count(|s| s.unreadable += 1);
        Err(errors.into_error(bp, "gang header"))
    }

    /// The stored bytes of a gang block, joined; the checksums of the pieces are verified, its own
    /// is not.
    pub(crate) fn read_gang<'a>(&'a self, bp: &'a Blkptr, prio: Prio, depth: u32) -> LocalBoxFuture<'a, Result<Bytes>> {
        Box::pin(async move {
            let children = self.gang_children(bp, prio, depth).await?;
            // Allocated and dropped on this thread, whose free lists own the memory.
            let out = Buf::for_overwrite(bp.psize() as usize);
            let parts = join_all(children.iter().map(|c| self.read_piece(c, prio, depth)).collect()).await;
            let parts = parts.into_iter().collect::<Result<Vec<Bytes>>>()?;
            let job = move || (join_parts(out, &parts), parts);
            let (out, _parts) = self.rt.cpu_as(prio.cpu_class(), COPY.cost(bp.psize()), job).await;
            Ok(out.freeze())
        })
    }

    async fn read_piece(&self, bp: &Blkptr, prio: Prio, depth: u32) -> Result<Bytes> {
        self.read_stored(bp, None, prio, depth + 1, None).await
    }

    /// The children of a gang block that are not holes, each checked: uncompressed, no larger than
    /// the whole (a copy may have its header and one piece), adding up to it.
    pub(crate) async fn gang_children(&self, bp: &Blkptr, prio: Prio, depth: u32) -> Result<Vec<Blkptr>> {
        if depth >= GANG_MAX_DEPTH {
            return Err(Error::corrupt(format!("gang block {bp}: nested more than {GANG_MAX_DEPTH} deep")));
        }
        let children = self.read_gang_header(bp, prio).await?;
        let children: Vec<Blkptr> = children.into_iter().filter(|c| !c.is_hole()).collect();
        for c in &children {
            crate::read::validate(c).map_err(|e| e.at(format_args!("gang block {bp}")))?;
            let plain = c.compress_raw() == CompressAlgo::Off as u8 && c.level() == 0 && !c.is_embedded();
            if !plain || c.psize() > bp.psize() {
                return Err(Error::corrupt(format!("gang block {bp}: {c} cannot be a piece of it")));
            }
        }
        // The header's parser has checked the sum over all slots; holes store nothing.
        let sum: u64 = children.iter().map(Blkptr::psize).sum();
        if sum != bp.psize() {
            return Err(Error::corrupt(format!("gang block {bp}: its pieces hold {sum} bytes")));
        }
        Ok(children)
    }

    pub(crate) fn claim_tree(&self, bp: Blkptr, txg: Txg, depth: u32) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(async move {
            if bp.is_gang() {
                for child in self.gang_children(&bp, Prio::SyncRead, depth).await? {
                    self.claim_tree(child, txg, depth + 1).await?;
                }
            }
            for dva in bp.dvas() {
                let dva = if dva.gang() { self.header_place(dva, bp.phys_birth())? } else { dva };
                self.space.claim(dva, txg).await?;
            }
            Ok(())
        })
    }

    fn free_tree<'a>(&'a self, zio: &'a Zio, bp: Blkptr, txg: Txg, depth: u32) -> LocalBoxFuture<'a, Result<()>> {
        Box::pin(async move {
            if !bp.is_gang() {
                return zio.free_copies(&bp, txg);
            }
            for child in self.gang_children(&bp, Prio::AsyncRead, depth).await? {
                self.free_tree(zio, child, txg, depth + 1).await?;
            }
            let mut result = Ok(());
            for dva in bp.dvas() {
                self.notify_freed(dva);
                result = result.and(self.free_dva(self.header_place(dva, bp.phys_birth())?, bp.phys_birth(), txg));
            }
            result
        })
    }
}

impl Zio {
    /// Frees a block of any kind in `txg`; of a gang block also its pieces, for which it reads the
    /// headers. A gang block whose header cannot be read is not freed at all.
    pub async fn free_gang(&self, bp: &Blkptr, txg: Txg) -> Result<()> {
        if bp.dedup() {
            return self.0.free_dedup(bp, txg);
        }
        if self.0.is_referenced(bp, txg) {
            return Ok(());
        }
        self.free_unshared(bp, txg).await
    }

    /// As [`Zio::free_gang`] for a block that has no other reference: no table is asked.
    pub async fn free_unshared(&self, bp: &Blkptr, txg: Txg) -> Result<()> {
        self.0.free_tree(self, *bp, txg, 0).await
    }
}
