//! Freeing in the background: the blocks of a destroyed snapshot or file system are freed over the
//! following txgs (format page 15 section 4).
//!
//! Blocks of destroyed snapshots wait in the list `free_bpobj`, whole trees of destroyed file
//! systems in the *bptree*, an array of entries {root, minimal birth, bookmark of progress}. Their
//! space belongs to the hidden directory `$FREE` meanwhile; the property `freeing` shows it. Each
//! txg frees a bounded number of blocks and stores its progress in the same txg, so that after a
//! power cut no block is freed twice or lost.
//!
//! A tree is walked ([`crate::walk`]) children first. The bookmark of an entry names the next block
//! to free; all blocks below it are freed already. The order is that of OpenZFS, which may continue
//! the work of weir: the bookmark is a block of level 0, never an indirect block or an object set,
//! as OpenZFS asserts. Clones with a livelist are freed from that ([`crate::free::livelist`]). The
//! blocks below an unreadable block are leaked; their space then belongs to
//! `$LEAK`.

use std::cell::{Cell, RefCell};

use base::{Error, Nanos, ObjectId, Result, ResultExt, Txg};
use bdev::Bytes;
use dmu::bpobj::Bpobj;
use dmu::{ObjSpec, Tx, zap};
use ondisk::blkptr::Blkptr;
use ondisk::bpobj::{BPOBJ_BLKSZ, BPTREE_ENTRY_SIZE, BPTREE_SIZE, Bookmark, BptreeEntry, BptreePhys};
use ondisk::feature::FeatureId;
use ondisk::object_type::ObjectType;
use rt::cost::FREE;
use rt::{LocalBoxFuture, Rt};

use crate::core::Space;
use crate::dir::Used;
use crate::pool::DslPool;
use crate::walk::{self, Child, DNODES, Order, Step, Visitor, span};

/// Blocks of the list freed in one batch.
const FREES: usize = 128;
/// The object set in the bookmark of an entry (`ZB_DESTROYED_OBJSET`).
const DESTROYED: u64 = u64::MAX;

/// Blocks and trees to free.
#[derive(Default)]
pub(crate) struct Freeing {
    list: Cell<Option<ObjectId>>,
    tree: Cell<Option<ObjectId>>,
    pending: Cell<bool>,
    /// Txg of the last tree added: its blocks may not be on disk yet.
    added: Cell<Txg>,
    stuck: RefCell<Option<Error>>,
}

impl DslPool {
    /// Sets how many blocks are freed in one txg at most (`zfs_async_block_max_blocks` of OpenZFS).
    pub fn set_freed_per_txg(&self, blocks: usize) {
        self.core().freed_per_txg.set(blocks.max(1));
    }

    /// Loads the list and trees that an earlier import left.
    pub(crate) async fn load_freeing(&self) -> Result<()> {
        let list = zap::lookup_u64(self.directory(), b"free_bpobj").await?.map(ObjectId);
        let tree = zap::lookup_u64(self.directory(), b"bptree_obj").await?.map(ObjectId);
        self.freeing.list.set(list);
        self.freeing.tree.set(tree);
        let mut pending = tree.is_some() | self.load_deleted_clones().await?;
        if let Some(list) = list {
            pending |= !Bpobj::open(self.mos(), list).await.at(|| "free_bpobj")?.is_empty()?;
        }
        self.freeing.pending.set(pending && self.is_writable());
        Ok(())
    }
    pub(crate) fn set_free_list(&self, list: ObjectId) {
        self.freeing.list.set(Some(list));
    }

    /// True if blocks wait and no damage has stopped freeing.
    pub fn has_freeing(&self) -> bool {
        self.freeing.pending.get() && self.freeing.stuck.borrow().is_none()
    }
    /// Bytes to free (the pool property `freeing`).
    pub fn freeing(&self) -> u64 {
        self.root().child("$FREE").map_or(0, |d| d.phys().used_bytes)
    }

    /// Bytes that damage keeps from being freed (the pool property `leaked`).
    pub fn leaked(&self) -> u64 {
        self.root().child("$LEAK").map_or(0, |d| d.phys().used_bytes)
    }

    /// The list for blocks of destroyed snapshots; none before pool version 26.
    pub(crate) async fn free_list(&self) -> Result<Option<Bpobj>> {
        match self.freeing.list.get() {
            Some(object) => Ok(Some(Bpobj::open(self.mos(), object).await.at(|| "free_bpobj")?)),
            None => Ok(None),
        }
    }
    /// Blocks or a tree were added.
    pub(crate) fn begin_freeing(&self) {
        self.freeing.pending.set(true);
    }

    pub(crate) fn charge_free(&self, space: Space) {
        if let Some(dir) = self.root().child("$FREE") {
            dir.did_use(Used::Head, space);
        }
    }
    /// Charges the space of an added list or tree to `$FREE`.
    pub(crate) fn charge_freeing(&self, space: Space) {
        self.charge_free(space);
        self.begin_freeing();
    }

    /// Adds a tree: all blocks below `root` born after `after` are freed in the background. `space`
    /// is their space (syncing context).
    pub(crate) async fn add_tree(&self, root: Blkptr, after: u64, space: Space, tx: &Tx) -> Result<()> {
        let dn = match self.freeing.tree.get() {
            Some(object) => self.mos().hold(object).await?,
            None => {
                let kind = ObjectType::OTN_U64_METADATA;
                let dn = self.mos().alloc(ObjSpec::new(kind, BPOBJ_BLKSZ).bonus(kind, BPTREE_SIZE as u16), tx).await?;
                dn.set_bonus(&[0; BPTREE_SIZE], tx)?;
                zap::add_u64(self.directory(), b"bptree_obj", dn.object().0, tx).await?;
                self.features().add(FeatureId::AsyncDestroy, 1, tx).await?;
                self.freeing.tree.set(Some(dn.object()));
                dn
            }
        };
        let mut h = dn.with_bonus(BptreePhys::parse)?;
        let entry = BptreeEntry { bp: root, birth_txg: Txg(after), bookmark: Bookmark::default() };
        let mut bytes = [0; BPTREE_ENTRY_SIZE];
        entry.write_to(&mut bytes);
        dn.write(h.end * BPTREE_ENTRY_SIZE as u64, &bytes, tx).await?;
        h.end += 1;
        h.bytes = h.bytes.saturating_add_signed(space.used);
        h.comp = h.comp.saturating_add_signed(space.compressed);
        h.uncomp = h.uncomp.saturating_add_signed(space.uncompressed);
        let mut bonus = [0; BPTREE_SIZE];
        h.write_to(&mut bonus);
        dn.set_bonus(&bonus, tx)?;
        self.freeing.added.set(tx.txg());
        self.charge_freeing(space);
        Ok(())
    }

    /// Frees some of the waiting blocks (`dsl_process_async_destroys`). Damage in the lists stops
    /// it until the next import, but not the pool.
    pub(crate) async fn process_async_destroys(&self, tx: &Tx) -> Result<()> {
        if !self.has_freeing() {
            return Ok(());
        }
        let mut left = self.core().freed_per_txg.get();
        let result = async {
            self.free_from_list(&mut left, tx).await?;
            let trees_done = self.free_from_tree(&mut left, tx).await?;
            Ok::<bool, Error>(self.free_from_livelists(&mut left, tx).await? && trees_done)
        };
        match result.await {
            Ok(done) => self.freeing.pending.set(!done),
            Err(e) => *self.freeing.stuck.borrow_mut() = Some(e.at("freeing in the background")),
        }
        Ok(())
    }

    async fn free_from_list(&self, left: &mut usize, tx: &Tx) -> Result<()> {
        let Some(list) = self.free_list().await? else { return Ok(()) };
        let zio = self.core().zio.clone();
        while *left > 0 && !list.is_empty()? {
            let bps = list.drain((*left).min(4096), tx, &|bp| zio.dsize(bp)).await?;
            // Dropping empty sub-lists counts as progress, too.
            *left -= bps.len().max(1);
            for some in bps.chunks(FREES) {
                self.ctx().rt().spend(Nanos(FREE.0 * some.len() as u64)).await;
                let mut freed = Space::default();
                for bp in some {
                    freed.add(Space::of(bp, &zio));
                    self.core().free(bp, tx.txg());
                }
                self.charge_free(freed.negated());
            }
        }
        Ok(())
    }

    /// True if no tree is left.
    async fn free_from_tree(&self, left: &mut usize, tx: &Tx) -> Result<bool> {
        let list_empty = match self.free_list().await? {
            Some(list) => list.is_empty()?,
            None => true,
        };
        let Some(object) = self.freeing.tree.get() else { return Ok(list_empty) };
        if self.freeing.added.get() == tx.txg() {
            return Ok(false);
        }
        let dn = self.mos().hold(object).await.at(|| "bptree")?;
        let mut h = dn.with_bonus(BptreePhys::parse)?;
        let mut lost = false;
        while *left > 0 && h.begin < h.end {
            let at = h.begin * BPTREE_ENTRY_SIZE as u64;
            let mut bytes = [0; BPTREE_ENTRY_SIZE];
            dn.read(at, &mut bytes).await.at(|| "bptree")?;
            let mut entry = BptreeEntry::parse(&bytes)?;
            let resume = (entry.bookmark != Bookmark::default()).then_some(entry.bookmark);
            let mut walk = TreeWalk::new(self, tx, entry.birth_txg.0, resume, left);
            walk::walk(&mut walk, entry.bp, DESTROYED).await;
            let (freed, stopped) = (walk.freed, walk.stopped);
            lost |= walk.lost;
            self.charge_free(freed.negated());
            h.bytes = h.bytes.saturating_add_signed(-freed.used);
            h.comp = h.comp.saturating_add_signed(-freed.compressed);
            h.uncomp = h.uncomp.saturating_add_signed(-freed.uncompressed);
            match stopped {
                Some(place) => {
                    entry.bookmark = place;
                    entry.write_to(&mut bytes);
                }
                None => {
                    h.begin += 1;
                    bytes.fill(0);
                }
            }
            dn.write(at, &bytes, tx).await?;
        }
        if h.begin < h.end {
            let mut bonus = [0; BPTREE_SIZE];
            h.write_to(&mut bonus);
            dn.set_bonus(&bonus, tx)?;
            return Ok(false);
        }
        if lost || h.bytes > 0 {
            let rest = Space::of_figures(h.bytes, h.comp, h.uncomp);
            self.charge_leak(rest, tx).await?;
        }
        drop(dn);
        self.mos().free(object, tx).await?;
        zap::remove(self.directory(), b"bptree_obj", tx).await?;
        self.features().add(FeatureId::AsyncDestroy, -1, tx).await?;
        self.freeing.tree.set(None);
        Ok(list_empty)
    }

    /// Frees a tree at once, in a pool that has no list of trees.
    pub(crate) async fn free_tree_now(&self, root: Blkptr, after: u64, tx: &Tx) -> Result<()> {
        let mut left = usize::MAX;
        let mut walk = TreeWalk::new(self, tx, after, None, &mut left);
        walk::walk(&mut walk, root, DESTROYED).await;
        Ok(())
    }

    /// Blocks that could not be found stay allocated; their space moves to `$LEAK`.
    async fn charge_leak(&self, space: Space, tx: &Tx) -> Result<()> {
        let root = self.root();
        let leak = match root.child("$LEAK") {
            Some(dir) => dir,
            None => self.make_dir(Some(&root), "$LEAK", tx).await?,
        };
        self.charge_free(space.negated());
        leak.did_use(Used::Head, space);
        Ok(())
    }
}

/// A walk of one tree that frees its blocks.
struct TreeWalk<'a> {
    pool: &'a DslPool,
    tx: &'a Tx,
    after: u64,
    /// The bookmark to continue at; `None` after it was reached.
    resume: Option<Bookmark>,
    left: &'a mut usize,
    freed: Space,
    stopped: Option<Bookmark>,
    lost: bool,
}

fn is_same_bookmark(a: &Bookmark, b: &Bookmark) -> bool {
    (a.object, a.level, a.blkid) == (b.object, b.level, b.blkid)
}

/// The range of objects that a block belongs to or that are below it.
fn objects(at: &Bookmark, meta_shift: u8) -> (u128, u128) {
    if at.object == 0 && at.level >= 0 {
        let (start, end) = span(at.level, at.blkid, meta_shift);
        (start.saturating_mul(DNODES.into()), end.saturating_mul(DNODES.into()))
    } else {
        (u128::from(at.object), u128::from(at.object) + 1)
    }
}

/// Whether a block and all blocks below it are freed already.
fn is_freed(at: &Bookmark, resume: &Bookmark, shift: u8, meta_shift: u8) -> bool {
    if at.level < 0 {
        return false;
    }
    if resume.level < 0 {
        return true;
    }
    let ((from, to), (rfrom, rto)) = (objects(at, meta_shift), objects(resume, meta_shift));
    if to <= rfrom {
        return true;
    }
    if from >= rto {
        return false;
    }
    match (at.object == 0, resume.object == 0) {
        (true, false) => false,
        (false, true) => true,
        (true, true) => at.level < resume.level,
        (false, false) => {
            let ((from, to), (rfrom, rto)) = (span(at.level, at.blkid, shift), span(resume.level, resume.blkid, shift));
            to <= rfrom || (from < rto && at.level < resume.level)
        }
    }
}

impl<'a> TreeWalk<'a> {
    fn new(pool: &'a DslPool, tx: &'a Tx, after: u64, resume: Option<Bookmark>, left: &'a mut usize) -> TreeWalk<'a> {
        TreeWalk { pool, tx, after, resume, left, freed: Space::default(), stopped: None, lost: false }
    }

    fn is_born_after(&self, bp: &Blkptr) -> bool {
        !bp.is_hole() && !bp.is_redacted() && bp.birth().0 > self.after
    }
}

impl Visitor for TreeWalk<'_> {
    fn order(&self) -> Order {
        Order::ChildrenFirst
    }
    fn rt(&self) -> &Rt {
        self.pool.ctx().rt()
    }
    fn enter(&mut self, child: &Child, meta_shift: u8) -> Step {
        if !self.is_born_after(&child.bp) {
            return Step::Skip;
        }
        match self.resume {
            None => Step::Subtree,
            Some(resume) if is_same_bookmark(&resume, &child.at) => {
                self.resume = None;
                Step::BlockOnly
            }
            Some(resume) if is_freed(&child.at, &resume, child.shift, meta_shift) => Step::Skip,
            Some(_) => Step::Subtree,
        }
    }
    fn visit(&mut self, child: &Child) {
        // OpenZFS continues at blocks of level 0 only.
        if *self.left == 0 && child.at.level == 0 {
            self.stopped = Some(Bookmark { objset: DESTROYED, ..child.at });
            return;
        }
        *self.left = self.left.saturating_sub(1);
        self.freed.add(Space::of(&child.bp, &self.pool.core().zio));
        self.pool.core().free(&child.bp, self.tx.txg());
    }
    fn will_read(&self, child: &Child, meta_shift: u8) -> bool {
        let freed = self
            .resume
            .is_some_and(|r| is_freed(&child.at, &r, child.shift, meta_shift) || is_same_bookmark(&r, &child.at));
        self.is_born_after(&child.bp) && !freed
    }
    fn read<'a>(&'a self, bp: &'a Blkptr) -> LocalBoxFuture<'a, Result<Bytes>> {
        // Pointers are not encrypted: no key is needed.
        Box::pin(async move {
            if bp.is_encrypted_data() {
                self.pool.core().zio.read_sealed(bp, zio::Prio::SyncRead).await
            } else {
                self.pool.ctx().read(bp).await
            }
        })
    }
    fn lost(&mut self, _child: &Child) {
        self.lost = true;
    }
    fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }
}
