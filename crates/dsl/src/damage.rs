//! Where a damaged block is: the datasets that share it (format page 17 section 2).
//!
//! The error log of OpenZFS 2.2 names a block by the *head* of the file system in which it was met,
//! its place (object, level, number) and its physical birth. Snapshots, clones and the file system
//! that a clone comes from may have the same block at the same place; which of them do is looked up
//! when the log is shown, so that it stays right while snapshots come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use base::{Error, ErrorKind, ObjectId, Result, Txg};
use dmu::Objset;
use ondisk::blkptr::Blkptr;
use ondisk::bpobj::Bookmark;

use crate::dataset::{Dataset, Use};
use crate::dir::Dir;
use crate::pool::DslPool;
use crate::walk::SPILL;

/// The pointer of a block of an object set, by its place below the root block.
async fn pointer_in(os: &Objset, at: &Bookmark) -> Result<Blkptr> {
    let dn = os.hold(ObjectId(at.object)).await?;
    if at.level == 0 && at.blkid == SPILL {
        return Ok(dn.spill_pointer().unwrap_or(Blkptr::hole()));
    }
    match u8::try_from(at.level) {
        Ok(level) => dn.pointer_at(level, at.blkid).await,
        Err(_) => Ok(Blkptr::hole()),
    }
}

/// Some blocks of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockRange {
    /// Their level.
    pub level: u8,
    /// Their numbers, or with `bytes` the bytes of the object below them.
    pub range: Range<u64>,
    /// Whether it is a range of bytes.
    pub bytes: bool,
}

impl DslPool {
    /// The head of the file system that the dataset `objset` belongs to; a dataset that cannot be
    /// opened is its own, and 0, the MOS, too.
    pub async fn head_of(&self, objset: u64) -> u64 {
        if objset == 0 {
            return 0;
        }
        match self.hold_dataset(ObjectId(objset)).await {
            Ok(ds) => ds.dir().phys().head_dataset_obj,
            Err(_) => objset,
        }
    }

    /// The physical birth of the block at a place, as of the last txg; None for a hole, an object
    /// or a dataset that is not there. Errors: those of the blocks above it.
    pub async fn block_birth(&self, at: &Bookmark) -> Result<Option<Txg>> {
        let found = async {
            if at.objset == 0 {
                return pointer_in(self.mos(), at).await;
            }
            let ds = self.hold_dataset(ObjectId(at.objset)).await?;
            let _use = Use::of(&ds);
            let root = ds.phys().bp;
            if at.level < 0 || root.is_hole() {
                return Ok(root);
            }
            pointer_in(&self.keyless_objset(&ds).await?, at).await
        };
        match found.await {
            Ok(bp) if bp.is_hole() || bp.is_embedded() => Ok(None),
            Ok(bp) => Ok(Some(bp.phys_birth())),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The pointers of blocks of `object` in the object set of a dataset, as of the last txg:
    /// numbers `range` of `level`, or with `bytes` those that hold such bytes of the object. More
    /// than `max` are `TooBig`. Errors: those of the blocks above them.
    pub async fn pointers(&self, objset: u64, object: ObjectId, which: &BlockRange, max: usize) -> Result<Vec<Blkptr>> {
        let ds = self.hold_dataset(ObjectId(objset)).await?;
        let _use = Use::of(&ds);
        let os = self.keyless_objset(&ds).await?;
        let dn = os.hold(object).await?;
        let phys = dn.committed();
        if which.level >= phys.nlevels {
            let why = format!("object {object} of object set {objset} has {} levels only", phys.nlevels);
            return Err(Error::new(ErrorKind::Range, why));
        }
        let above = u32::from(which.level) * phys.epb_shift();
        let number = |n: u64| n.checked_shr(above).unwrap_or(0);
        let last = number(dn.max_blkid());
        let (first, end) = match which.bytes {
            true => {
                let size = u64::from(dn.block_size()).max(1);
                (number(which.range.start / size), number(which.range.end.div_ceil(size).saturating_sub(1)))
            }
            false => (which.range.start, which.range.end.saturating_sub(1)),
        };
        let end = end.min(last);
        if end.saturating_sub(first) >= max as u64 {
            let why = format!("object {object} of object set {objset} has more than {max} blocks in that range");
            return Err(Error::new(ErrorKind::TooBig, why));
        }
        let mut out = Vec::new();
        for blkid in first..=end {
            out.push(dn.pointer_at(which.level, blkid).await?);
        }
        Ok(out)
    }

    /// The places of blocks that a log names by head and birth, in every dataset that has them. A
    /// block whose birth is not known (0), or of the MOS, is taken to be where it was met.
    pub async fn affected(&self, logged: &[(Bookmark, Txg)]) -> Result<BTreeSet<(u64, u64, i64, u64)>> {
        let mut clones: BTreeMap<u64, Vec<Rc<Dataset>>> = BTreeMap::new();
        let heads = self.all();
        for head in &heads {
            clones.entry(head.dir().phys().origin_obj).or_default().push(head.clone());
        }
        let search = Search { pool: self, clones, depth_max: heads.len() };
        let mut out = BTreeSet::new();
        for &(at, birth) in logged {
            let mut found = BTreeSet::new();
            match birth.0 == 0 || at.objset == 0 {
                true => found.extend([at.objset]),
                false => search.around(&at, birth, &mut found).await?,
            }
            out.extend(found.into_iter().map(|objset| (objset, at.object, at.level, at.blkid)));
        }
        Ok(out)
    }
}

/// A search for the datasets that have a block.
struct Search<'a> {
    pool: &'a DslPool,
    /// The heads of clones by their origin.
    clones: BTreeMap<u64, Vec<Rc<Dataset>>>,
    /// File systems on a path from clone to origin, at most.
    depth_max: usize,
}

impl Search<'_> {
    /// Finds all of them from the head that the log names: first the oldest file system that may
    /// have the block, then from there down to clones of clones.
    async fn around(&self, at: &Bookmark, birth: Txg, found: &mut BTreeSet<u64>) -> Result<()> {
        let head = match self.pool.hold_dataset(ObjectId(at.objset)).await {
            Ok(head) => head,
            // The file system is gone, and the block with it.
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(e),
        };
        let mut todo = vec![self.oldest(head.dir(), birth).await?];
        let mut seen = BTreeSet::new();
        while let Some(dir) = todo.pop() {
            if !seen.insert(dir.object) {
                continue;
            }
            let Some(head) = dir.head() else { continue };
            self.check(&head, at, birth, found).await;
            for snap in self.pool.snapshots(&head).await? {
                if snap.phys().creation_txg >= birth.0 && self.check(&snap, at, birth, found).await {
                    todo.extend(self.clones.get(&snap.object.0).into_iter().flatten().map(|c| c.dir()));
                }
            }
        }
        if !seen.contains(&head.dir().object) {
            self.check(&head, at, birth, found).await;
        }
        Ok(())
    }

    /// The file system at the beginning of the path from clone to origin along which the block may
    /// have been inherited.
    async fn oldest(&self, mut dir: Rc<Dir>, birth: Txg) -> Result<Rc<Dir>> {
        for _ in 0..=self.depth_max {
            let object = ObjectId(dir.phys().origin_obj);
            if object.0 == 0 || object == self.pool.origin_snap() {
                return Ok(dir);
            }
            let origin = self.pool.hold_dataset(object).await?;
            if origin.phys().creation_txg < birth.0 {
                return Ok(dir);
            }
            dir = origin.dir();
        }
        Err(Error::corrupt(format!("the origins of '{}' go in a circle", dir.full_name())))
    }

    /// Whether a dataset has the block. One whose metadata above it cannot be read counts as not
    /// having it: that metadata is in the log itself.
    async fn check(&self, ds: &Dataset, at: &Bookmark, birth: Txg, found: &mut BTreeSet<u64>) -> bool {
        let here = self.pool.block_birth(&Bookmark { objset: ds.object.0, ..*at }).await;
        let has = matches!(here, Ok(Some(b)) if b == birth);
        if has {
            found.insert(ds.object.0);
        }
        has
    }
}
