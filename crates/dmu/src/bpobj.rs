//! Lists of block pointers (bpobj): deadlists and deferred frees consist of them (format pages 05
//! section 4, 15 section 1).
//!
//! A list is an object with packed block pointers as data; its bonus has their number and space. It
//! may own other lists (*sub-lists*), whose numbers are in an array object; the space figures
//! include those. Lists are filled at the end and drained from the end: first the pointers of the
//! list itself, last one first, then its sub-lists, last one first; so draining may stop and go on
//! in any txg.
//!
//! Only for syncing context. A [`Bpobj`] is a handle without state of its own; any number of them
//! may exist for one list. One lock per list serialises changes.

use std::rc::Rc;

use base::{Error, Nanos, ObjectId, Result, ResultExt, Txg};
use ondisk::blkptr::{BLKPTR_SIZE, Blkptr};
use ondisk::bpobj::{BPOBJ_BLKSZ, BPOBJ_SIZE_V3, BpobjPhys, header_size};
use ondisk::object_type::ObjectType;
use rt::LocalBoxFuture;
use rt::cost::DMU_POINTER;
use rt::sync::{Mutex, OwnedMutexGuard};

use crate::{Dnode, ObjSpec, Objset, Tx, ranks};

/// Bytes of a block pointer.
const BP: u64 = BLKPTR_SIZE as u64;
/// Bytes of a sub-list's number.
const SUB: u64 = 8;
/// Most nesting of lists; more is damage.
const MAX_DEPTH: u32 = 64;
/// A list with at most this many sub-lists hands them over when it becomes one itself, so that
/// nesting stays flat.
const MOVE_UP_MAX: u64 = 64;

/// The space of the pointers of a list, sub-lists included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BpobjSpace {
    /// Space as datasets count it (dsize).
    pub bytes: u64,
    /// Stored bytes (psize).
    pub comp: u64,
    /// Uncompressed bytes.
    pub uncomp: u64,
}

impl BpobjSpace {
    fn of(bp: &Blkptr, dsize: u64) -> BpobjSpace {
        BpobjSpace { bytes: dsize, comp: bp.psize(), uncomp: bp.ucsize() }
    }
    fn add(&mut self, o: BpobjSpace) {
        self.bytes = self.bytes.saturating_add(o.bytes);
        self.comp = self.comp.saturating_add(o.comp);
        self.uncomp = self.uncomp.saturating_add(o.uncomp);
    }
}

fn add_space(h: &mut BpobjPhys, s: BpobjSpace) {
    h.bytes = h.bytes.saturating_add(s.bytes);
    h.comp = h.comp.saturating_add(s.comp);
    h.uncomp = h.uncomp.saturating_add(s.uncomp);
}

/// Totals of damaged lists may be too small: they stop at 0. Those of an empty list are 0.
fn sub_space(h: &mut BpobjPhys, s: BpobjSpace) {
    h.bytes = h.bytes.saturating_sub(s.bytes);
    h.comp = h.comp.saturating_sub(s.comp);
    h.uncomp = h.uncomp.saturating_sub(s.uncomp);
    if h.is_empty() {
        (h.bytes, h.comp, h.uncomp) = (0, 0, 0);
    }
}

/// Makes an empty list with blocks of `blksz` bytes (`BPOBJ_BLKSZ`, or `SYNC_BPLIST_BLKSZ` for
/// deferred frees).
pub async fn create(os: &Objset, blksz: u32, tx: &Tx) -> Result<ObjectId> {
    create_with_header(os, blksz, header_size(os.ctx().features().pool_version), tx).await
}

/// As [`create`], with a header of `size` bytes (one of `BPOBJ_SIZE_*`), not that of the pool's
/// version.
pub async fn create_with_header(os: &Objset, blksz: u32, size: usize, tx: &Tx) -> Result<ObjectId> {
    let spec = ObjSpec::new(ObjectType::BPOBJ, blksz).bonus(ObjectType::BPOBJ_HDR, size as u16);
    let dn = os.alloc(spec, tx).await?;
    let mut bonus = [0; BPOBJ_SIZE_V3];
    BpobjPhys::new(size).write_to(&mut bonus);
    dn.set_bonus(&bonus[..size], tx)?;
    Ok(dn.object())
}

/// Makes an empty part of a livelist.
pub async fn create_live(os: &Objset, tx: &Tx) -> Result<ObjectId> {
    create_with_header(os, BPOBJ_BLKSZ, BPOBJ_SIZE_V3, tx).await
}

/// Frees a list and its sub-lists, but not the blocks that they name.
pub async fn free(os: &Objset, obj: ObjectId, tx: &Tx) -> Result<()> {
    // A freed object is not found again, so a cycle of lists ends with an error.
    let mut todo = vec![obj];
    while let Some(obj) = todo.pop() {
        let list = Bpobj::open(os, obj).await?;
        let h = list.header()?;
        if h.subobjs != 0 {
            todo.extend(list.sub_numbers(&h, 0, h.num_subobjs).await?);
            os.free(ObjectId(h.subobjs), tx).await?;
        }
        drop(list);
        os.free(obj, tx).await?;
    }
    Ok(())
}

/// A list of block pointers.
#[derive(Clone)]
pub struct Bpobj {
    os: Objset,
    dn: Dnode,
}

impl Bpobj {
    /// The list in `obj`.
    pub async fn open(os: &Objset, obj: ObjectId) -> Result<Bpobj> {
        let dn = os.hold(obj).await.at(|| "block pointer list")?;
        if dn.otype() != ObjectType::BPOBJ {
            return Err(Error::corrupt(format!("object {obj} is {:?}, not a list of block pointers", dn.otype())));
        }
        let list = Bpobj { os: os.clone(), dn };
        let (h, dn) = (list.header()?, &list.dn);
        let room = dn.max_blkid().saturating_add(1).saturating_mul(u64::from(dn.block_size())) / BP;
        if h.num_blkptrs > room {
            return Err(Error::corrupt(format!(
                "{} has {} pointers where {room} have room",
                list.place(),
                h.num_blkptrs
            )));
        }
        if h.num_subobjs > 0 && h.subobjs == 0 {
            // Such a list would never become empty.
            return Err(Error::corrupt(format!("{} has {} lists and none to name them", list.place(), h.num_subobjs)));
        }
        Ok(list)
    }
    /// Its object number.
    pub fn object(&self) -> ObjectId {
        self.dn.object()
    }
    /// The current header.
    pub fn header(&self) -> Result<BpobjPhys> {
        self.dn.with_bonus(BpobjPhys::parse).at(|| self.place())
    }
    /// The space of its pointers.
    pub fn space(&self) -> Result<BpobjSpace> {
        let h = self.header()?;
        Ok(BpobjSpace { bytes: h.bytes, comp: h.comp, uncomp: h.uncomp })
    }
    /// Whether there are no pointers and no sub-lists.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.header()?.is_empty())
    }
    fn place(&self) -> String {
        format!("block pointer list {}", self.dn.object())
    }
    fn set_header(&self, h: &BpobjPhys, tx: &Tx) -> Result<()> {
        let mut b = self.dn.bonus().to_vec();
        h.write_to(&mut b);
        self.dn.set_bonus(&b, tx)
    }
    /// The list's lock. Outer lists are locked before inner ones.
    async fn lock(&self) -> OwnedMutexGuard<()> {
        struct Lock(Rc<Mutex<()>>);
        let lock = self.dn.attach(|| Lock(Rc::new(Mutex::new(ranks::BPOBJ, ()))));
        lock.0.lock_same_rank_owned().await
    }

    /// Adds pointers, each with its dsize. Holes are skipped.
    pub async fn enqueue(&self, bps: &[(Blkptr, u64)], tx: &Tx) -> Result<()> {
        let _lock = self.lock().await;
        let mut h = self.header()?;
        let mut data = Vec::with_capacity(bps.len() * BLKPTR_SIZE);
        let mut total = BpobjSpace::default();
        for (bp, dsize) in bps.iter().filter(|(bp, _)| !bp.is_hole()) {
            data.extend_from_slice(&bp.for_bpobj().to_bytes());
            total.add(BpobjSpace::of(bp, *dsize));
        }
        self.append(&mut h, &data, tx).await?;
        add_space(&mut h, total);
        self.set_header(&h, tx)
    }

    /// Adds entries to a part of a livelist, each with its dsize and whether the block was freed. A
    /// freed one takes its space off the sums.
    pub async fn enqueue_live(&self, entries: &[(Blkptr, u64, bool)], tx: &Tx) -> Result<()> {
        let _lock = self.lock().await;
        let mut h = self.live_header()?;
        let mut data = Vec::with_capacity(entries.len() * BLKPTR_SIZE);
        for (bp, dsize, freed) in entries {
            data.extend_from_slice(&bp.for_livelist(*freed).to_bytes());
            let space = BpobjSpace::of(bp, *dsize);
            if *freed {
                h.num_freed += 1;
                (h.bytes, h.comp, h.uncomp) = (
                    h.bytes.saturating_sub(space.bytes),
                    h.comp.saturating_sub(space.comp),
                    h.uncomp.saturating_sub(space.uncomp),
                );
            } else {
                add_space(&mut h, space);
            }
        }
        self.append(&mut h, &data, tx).await?;
        self.set_header(&h, tx)
    }

    /// The header of a part of a livelist, which counts its frees and has no lists below.
    pub fn live_header(&self) -> Result<BpobjPhys> {
        let h = self.header()?;
        if h.size < BPOBJ_SIZE_V3 || h.num_subobjs != 0 || h.num_freed > h.num_blkptrs {
            return Err(Error::corrupt(format!("{} is not a part of a livelist", self.place())));
        }
        Ok(h)
    }

    /// Entries before `to`, from the beginning of the block with the last of them or from `from` if
    /// that is later; and the place of the first.
    pub async fn entries_before(&self, from: u64, to: u64) -> Result<(u64, Vec<Blkptr>)> {
        let start = (to.saturating_sub(1) / self.per_block() * self.per_block()).max(from);
        let data = self.pointers(start, to).await?;
        Ok((start, Blkptr::iter_block(&data).collect()))
    }

    /// Writes packed pointers behind the last one; only `h` is changed, without the space.
    async fn append(&self, h: &mut BpobjPhys, data: &[u8], tx: &Tx) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        self.dn.write(h.num_blkptrs * BP, data, tx).await.at(|| self.place())?;
        h.num_blkptrs += data.len() as u64 / BP;
        Ok(())
    }

    /// Pointers `from..to` of the list itself.
    async fn pointers(&self, from: u64, to: u64) -> Result<Vec<u8>> {
        let mut data = Vec::with_capacity(((to - from) * BP) as usize);
        for part in self.dn.read_range(from * BP, (to - from) * BP).await.at(|| self.place())? {
            data.extend_from_slice(&part);
        }
        Ok(data)
    }
    /// Pointers per block: how many are read at a time.
    fn per_block(&self) -> u64 {
        (u64::from(self.dn.block_size()) / BP).max(1)
    }

    /// Numbers `from..to` of the sub-lists.
    async fn sub_numbers(&self, h: &BpobjPhys, from: u64, to: u64) -> Result<Vec<ObjectId>> {
        let dn = self.os.hold(ObjectId(h.subobjs)).await.at(|| self.place())?;
        // Checked against the size of the object, so that a wrong number cannot take all memory.
        let room = (dn.max_blkid().saturating_add(1)).saturating_mul(u64::from(dn.block_size())) / SUB;
        if to > room {
            return Err(Error::corrupt(format!("{} has {to} lists where {room} have room", self.place())));
        }
        let mut out = Vec::new();
        let mut raw = Vec::new();
        for part in dn.read_range(from * SUB, (to - from) * SUB).await.at(|| self.place())? {
            raw.extend_from_slice(&part);
        }
        for w in raw.chunks_exact(SUB as usize) {
            out.push(ObjectId(ondisk::bytes::le64(w, 0)));
        }
        Ok(out)
    }

    /// Calls `f` with every pointer: those of the list itself from first to last, then those of the
    /// sub-lists.
    pub async fn iterate(&self, f: &mut dyn FnMut(&Blkptr) -> Result<()>) -> Result<()> {
        self.iterate_at(f, 0).await
    }

    fn iterate_at<'a>(
        &'a self,
        f: &'a mut dyn FnMut(&Blkptr) -> Result<()>,
        depth: u32,
    ) -> LocalBoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.check_depth(depth)?;
            let h = self.header()?;
            let mut at = 0;
            while at < h.num_blkptrs {
                let to = (at + self.per_block()).min(h.num_blkptrs);
                let pointers = self.pointers(at, to).await?;
                self.os.ctx().rt().spend(Nanos(DMU_POINTER.0 * (to - at))).await;
                for bp in Blkptr::iter_block(&pointers) {
                    if !bp.is_hole() {
                        f(&bp)?;
                    }
                }
                at = to;
            }
            if h.subobjs != 0 {
                let mut i = 0;
                while i < h.num_subobjs {
                    let to = (i + 1024).min(h.num_subobjs);
                    for sub in self.sub_numbers(&h, i, to).await? {
                        Bpobj::open(&self.os, sub).await?.iterate_at(&mut *f, depth + 1).await?;
                    }
                    i = to;
                }
            }
            Ok(())
        })
    }

    /// The space of pointers born after `min` and not after `max`.
    pub async fn space_born(&self, min: Txg, max: Txg, dsize: &dyn Fn(&Blkptr) -> u64) -> Result<BpobjSpace> {
        let mut total = BpobjSpace::default();
        self.iterate(&mut |bp| {
            if bp.birth() > min && bp.birth() <= max {
                total.add(BpobjSpace::of(bp, dsize(bp)));
            }
            Ok(())
        })
        .await?;
        Ok(total)
    }

    fn check_depth(&self, depth: u32) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(Error::corrupt(format!("{} is nested too deep", self.place())));
        }
        Ok(())
    }

    /// Takes up to `max` pointers off the end. `dsize` gives the size that each was counted with.
    /// Sub-lists that become empty are freed. Fewer than `max` means that the list is empty now.
    pub async fn drain(&self, max: usize, tx: &Tx, dsize: &dyn Fn(&Blkptr) -> u64) -> Result<Vec<Blkptr>> {
        let mut out = Vec::new();
        self.drain_at(max, tx, dsize, &mut out, 0).await?;
        Ok(out)
    }

    fn drain_at<'a>(
        &'a self,
        max: usize,
        tx: &'a Tx,
        dsize: &'a dyn Fn(&Blkptr) -> u64,
        out: &'a mut Vec<Blkptr>,
        depth: u32,
    ) -> LocalBoxFuture<'a, Result<BpobjSpace>> {
        Box::pin(async move {
            self.check_depth(depth)?;
            let _lock = self.lock().await;
            let mut h = self.header()?;
            let mut total = BpobjSpace::default();
            let mut left = h.num_blkptrs;
            while left > 0 && out.len() < max {
                // A block at a time from the end.
                let from = (left - 1) / self.per_block() * self.per_block();
                let from = from.max(left.saturating_sub((max - out.len()) as u64));
                let data = self.pointers(from, left).await?;
                for i in (0..(left - from) as usize).rev() {
                    let bp = Blkptr::at(&data, i).expect("just read");
                    if !bp.is_hole() {
                        total.add(BpobjSpace::of(&bp, dsize(&bp)));
                        out.push(bp);
                    }
                }
                left = from;
            }
            if left < h.num_blkptrs {
                self.cut(left, h.num_blkptrs, tx).await?;
                h.num_blkptrs = left;
                h.num_freed = h.num_freed.min(left);
            }
            while h.num_subobjs > 0 && h.subobjs != 0 && out.len() < max {
                let last = h.num_subobjs - 1;
                let Some(&obj) = self.sub_numbers(&h, last, last + 1).await?.first() else { break };
                let sub = Bpobj::open(&self.os, obj).await?;
                total.add(sub.drain_at(max, tx, dsize, &mut *out, depth + 1).await?);
                if !sub.is_empty()? {
                    break;
                }
                drop(sub);
                free(&self.os, obj, tx).await?;
                h.num_subobjs = last;
                if last == 0 {
                    self.os.free(ObjectId(h.subobjs), tx).await?;
                    h.subobjs = 0;
                }
            }
            sub_space(&mut h, total);
            self.set_header(&h, tx)?;
            Ok(total)
        })
    }

    /// Frees the blocks behind the first `left` pointers. Old pointers in the rest of the last
    /// block are never read.
    async fn cut(&self, left: u64, before: u64, tx: &Tx) -> Result<()> {
        let size = u64::from(self.dn.block_size());
        let keep = (left * BP).div_ceil(size);
        if keep < (before * BP).div_ceil(size) {
            self.dn.free_range(keep * size, u64::MAX, tx).await.at(|| self.place())?;
        }
        Ok(())
    }

    /// Adds the list `sub`, which nothing else refers to: a small one is copied and freed, else it
    /// becomes a sub-list. It must not be the shared empty list.
    pub async fn enqueue_subobj(&self, sub: ObjectId, tx: &Tx) -> Result<()> {
        if sub == self.object() {
            return Err(Error::invalid(format!("{} cannot be a part of itself", self.place())));
        }
        let _lock = self.lock().await;
        let list = Bpobj::open(&self.os, sub).await?;
        let mut h = self.header()?;
        let mut s = list.header()?;
        let space = list.space()?;
        if h.has_subobjs() && s.subobjs != 0 && s.num_subobjs <= MOVE_UP_MAX {
            // Its sub-lists move to this list, with their space.
            let numbers = list.sub_numbers(&s, 0, s.num_subobjs).await?;
            let mut moved = BpobjSpace::default();
            for &n in &numbers {
                moved.add(Bpobj::open(&self.os, n).await?.space()?);
            }
            self.append_subobjs(&mut h, &numbers, tx).await?;
            self.os.free(ObjectId(s.subobjs), tx).await?;
            (s.subobjs, s.num_subobjs) = (0, 0);
            sub_space(&mut s, moved);
            list.set_header(&s, tx)?;
        }
        if s.num_subobjs == 0 && s.num_blkptrs <= self.per_block() || !h.has_subobjs() {
            // Old forms have no sub-lists: everything is copied.
            let mut data = Vec::new();
            list.iterate(&mut |bp| {
                data.extend_from_slice(&bp.to_bytes());
                Ok(())
            })
            .await?;
            self.append(&mut h, &data, tx).await?;
            drop(list);
            free(&self.os, sub, tx).await?;
        } else {
            self.append_subobjs(&mut h, &[sub], tx).await?;
        }
        add_space(&mut h, space);
        self.set_header(&h, tx)
    }

    async fn append_subobjs(&self, h: &mut BpobjPhys, subs: &[ObjectId], tx: &Tx) -> Result<()> {
        if subs.is_empty() {
            return Ok(());
        }
        let dn = if h.subobjs == 0 {
            let dn = self.os.alloc(ObjSpec::new(ObjectType::BPOBJ_SUBOBJ, BPOBJ_BLKSZ), tx).await?;
            (h.subobjs, h.num_subobjs) = (dn.object().0, 0);
            dn
        } else {
            self.os.hold(ObjectId(h.subobjs)).await.at(|| self.place())?
        };
        let data: Vec<u8> = subs.iter().flat_map(|s| s.0.to_le_bytes()).collect();
        dn.write(h.num_subobjs * SUB, &data, tx).await.at(|| self.place())?;
        h.num_subobjs += subs.len() as u64;
        Ok(())
    }
}
