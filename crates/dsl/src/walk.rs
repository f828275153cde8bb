//! The walk of a block tree: from the root block of an object set to all blocks below it, in the
//! order of OpenZFS, in pieces.
//!
//! Below the root block are the meta-dnode and the accounting objects; below the meta-dnode the
//! blocks of dnodes; below these all other objects. A walk goes *parents first* (scans) or
//! *children first* (freeing). The [`Visitor`] handles each block, skips blocks, and ends a piece;
//! positions ([`Bookmark`]) are those that pools store, so that OpenZFS can continue a walk of weir
//! and weir one of OpenZFS.
//!
//! Blocks with children are read ahead, several at once. The visitor is told of unreadable blocks,
//! and the walk continues after them.

use base::{Error, ObjectId, Result};
use bdev::Bytes;
use ondisk::blkptr::{BLKPTR_SIZE, Blkptr};
use ondisk::bpobj::Bookmark;
use ondisk::dnode::{DNODE_SIZE, DnodePhys};
use ondisk::object_type::ObjectType;
use ondisk::objset::ObjsetPhys;
use rt::cost::SCAN_VISIT;
use rt::join::join_all;
use rt::{LocalBoxFuture, Rt};

/// Block id of a spill block in a bookmark.
pub const SPILL: u64 = u64::MAX;
/// Dnodes of a block of the meta-dnode.
pub const DNODES: u64 = 32;
/// log2 of the bytes of an indirect block of a meta-dnode, before one is known.
const META_SHIFT: u8 = 14;
/// Blocks read ahead at once.
const READS_MAX: usize = 32;
/// Deepest tree: levels of the meta-dnode, of an object, and the object set's block.
const DEPTH_MAX: u32 = 40;

/// The order of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// A block comes before its children; the accounting objects in the order groups, users,
    /// projects.
    ParentsFirst,
    /// A block comes after its children; the accounting objects in the order projects, groups,
    /// users.
    ChildrenFirst,
}

/// A block of the tree.
#[derive(Clone, Copy, Debug)]
pub struct Child {
    /// Its pointer.
    pub bp: Blkptr,
    /// Its position.
    pub at: Bookmark,
    /// log2 of the bytes of an indirect block of its object.
    pub shift: u8,
}

/// The action for a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// It and the blocks below it are skipped.
    Skip,
    /// It is visited, the blocks below it are not.
    BlockOnly,
    /// It and the blocks below it are visited.
    Subtree,
}

/// The callbacks of a walk.
pub trait Visitor {
    /// The order of the walk.
    fn order(&self) -> Order;
    /// The runtime, for turns.
    fn rt(&self) -> &Rt;
    /// Decides the action for the next block. `meta_shift` is the shift of the meta-dnode.
    fn enter(&mut self, child: &Child, meta_shift: u8) -> Step;
    /// Visits a block.
    fn visit(&mut self, child: &Child);
    /// Whether a block with children will be read, as far as known beforehand: it is then read
    /// ahead.
    fn will_read(&self, child: &Child, meta_shift: u8) -> bool;
    /// Reads a block for its pointers.
    fn read<'a>(&'a self, bp: &'a Blkptr) -> LocalBoxFuture<'a, Result<Bytes>>;
    /// The blocks below a block cannot be found.
    fn lost(&mut self, child: &Child);
    /// Whether the piece has ended.
    fn is_stopped(&self) -> bool;
}

/// The range that a block covers, in blocks of level 0: start and end, exclusive.
pub fn span(level: i64, blkid: u64, shift: u8) -> (u128, u128) {
    let bits = (level.clamp(0, 16) as u32) * u32::from(shift.saturating_sub(7));
    let size = 1u128 << bits.min(100);
    let start = u128::from(blkid).saturating_mul(size);
    (start, start.saturating_add(size))
}

/// Whether it may have children.
pub fn has_children(bp: &Blkptr) -> bool {
    bp.level() > 0 || !bp.is_embedded() && (bp.otype() == ObjectType::DNODE || bp.otype() == ObjectType::OBJSET)
}

fn push_dnode(dn: &DnodePhys, objset: u64, object: u64, out: &mut Vec<Child>) {
    let shift = dn.indblkshift;
    let level = i64::from(dn.nlevels) - 1;
    for (blkid, bp) in dn.bps().iter().enumerate() {
        out.push(Child { bp: *bp, at: Bookmark { objset, object, level, blkid: blkid as u64 }, shift });
    }
    if let Some(spill) = dn.spill {
        out.push(Child { bp: spill, at: Bookmark { objset, object, level: 0, blkid: SPILL }, shift });
    }
}

/// A walk in progress.
struct Walk<'v, V> {
    visitor: &'v mut V,
    meta_shift: u8,
}

/// Walks the tree below the root block `root` of an object set, which has the number `objset` in
/// bookmarks.
pub async fn walk<V: Visitor>(visitor: &mut V, root: Blkptr, objset: u64) {
    let at = Bookmark { objset, object: 0, level: -1, blkid: 0 };
    let mut walk = Walk { visitor, meta_shift: META_SHIFT };
    walk.visit_block(Child { bp: root, at, shift: 7 }, None, 0).await;
}

impl<V: Visitor> Walk<'_, V> {
    fn visit_block<'a>(&'a mut self, child: Child, block: Option<Result<Bytes>>, depth: u32) -> LocalBoxFuture<'a, ()> {
        Box::pin(async move {
            if self.visitor.is_stopped() {
                return;
            }
            let below = match self.visitor.enter(&child, self.meta_shift) {
                Step::Skip => return,
                Step::BlockOnly => false,
                Step::Subtree => has_children(&child.bp),
            };
            let order = self.visitor.order();
            if order == Order::ParentsFirst {
                self.visit(&child).await;
            }
            if below {
                self.descend(&child, block, depth).await;
            }
            if order == Order::ChildrenFirst && !self.visitor.is_stopped() {
                self.visit(&child).await;
            }
        })
    }

    async fn visit(&mut self, child: &Child) {
        self.visitor.rt().spend(SCAN_VISIT).await;
        self.visitor.visit(child);
    }

    async fn descend(&mut self, child: &Child, block: Option<Result<Bytes>>, depth: u32) {
        let children = match depth > DEPTH_MAX {
            true => Err(Error::corrupt("a tree of blocks is nested too deep")),
            false => {
                let block = match block {
                    Some(block) => block,
                    None => self.visitor.read(&child.bp).await,
                };
                block.and_then(|b| self.children(child, &b))
            }
        };
        let Ok(mut children) = children else { return self.visitor.lost(child) };
        while !self.visitor.is_stopped() {
            let now = children.take(child);
            if now.is_empty() {
                return;
            }
            let wanted: Vec<bool> =
                now.iter().map(|c| has_children(&c.bp) && self.visitor.will_read(c, self.meta_shift)).collect();
            let visitor = &*self.visitor;
            let reads = now.iter().zip(&wanted).filter(|(_, w)| **w).map(|(c, _)| visitor.read(&c.bp)).collect();
            let mut blocks = join_all(reads).await.into_iter();
            for (c, wanted) in now.iter().zip(&wanted) {
                let block = if *wanted { blocks.next() } else { None };
                self.visit_block(*c, block, depth + 1).await;
            }
        }
    }

    fn children(&mut self, child: &Child, block: &Bytes) -> Result<Children> {
        let Child { bp, at, .. } = child;
        if i64::from(bp.level()) != at.level.max(0) {
            return Err(Error::corrupt(format!("block {bp} has level {}, not {}", bp.level(), at.level)));
        }
        if bp.level() > 0 {
            return Ok(Children::Pointers { block: block.clone(), next: 0 });
        }
        let mut out = Vec::new();
        if bp.otype() == ObjectType::OBJSET {
            let os = ObjsetPhys::parse(block)?;
            self.meta_shift = os.meta_dnode.indblkshift;
            push_dnode(&os.meta_dnode, at.objset, 0, &mut out);
            let group = (&os.groupused, ObjectId::GROUPUSED);
            let user = (&os.userused, ObjectId::USERUSED);
            let project = (&os.projectused, ObjectId::PROJECTUSED);
            let used = match self.visitor.order() {
                Order::ParentsFirst => [group, user, project],
                Order::ChildrenFirst => [project, group, user],
            };
            for (dn, object) in used {
                if let Some(dn) = dn {
                    push_dnode(dn, at.objset, object.0, &mut out);
                }
            }
        } else {
            let mut slot = 0;
            while slot < block.len() / DNODE_SIZE {
                let dn = DnodePhys::parse_slot(block, slot)?;
                let object = at.blkid.wrapping_mul(DNODES).wrapping_add(slot as u64);
                slot += dn.as_ref().map_or(1, DnodePhys::num_slots);
                if let Some(dn) = dn {
                    push_dnode(&dn, at.objset, object, &mut out);
                }
            }
        }
        Ok(Children::Listed(out.into_iter()))
    }
}

/// The blocks below a block, in order.
enum Children {
    /// Those of an indirect block, which may be a thousand: they are taken from it in pieces.
    Pointers { block: Bytes, next: usize },
    /// Those of dnodes.
    Listed(std::vec::IntoIter<Child>),
}

impl Children {
    /// The next of them below `parent`, [`READS_MAX`] at most; none at the end.
    fn take(&mut self, parent: &Child) -> Vec<Child> {
        let (block, next) = match self {
            Children::Listed(list) => return list.take(READS_MAX).collect(),
            Children::Pointers { block, next } => (block, next),
        };
        let Child { at, shift, .. } = *parent;
        let from = *next;
        let bytes = block.get(from * BLKPTR_SIZE..).unwrap_or_default();
        let per = 1u64 << shift.saturating_sub(7).min(57);
        let children = Blkptr::iter_block(bytes).take(READS_MAX).enumerate().map(|(i, bp)| {
            let blkid = at.blkid.wrapping_mul(per).wrapping_add((from + i) as u64);
            Child { bp, at: Bookmark { level: at.level - 1, blkid, ..at }, shift }
        });
        let children: Vec<Child> = children.collect();
        *next += children.len();
        children
    }
}
