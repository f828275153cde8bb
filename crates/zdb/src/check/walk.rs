//! The block walk: every block of the MOS, of every dataset and snapshot, read in all copies and
//! claimed once.
//!
//! A dataset's walk claims only blocks younger than its previous snapshot, which owns the older
//! ones; for the accounting all are visited, as far as that needs indirect blocks. Each object's
//! tree is compared with its dnode, each pointer with the block below it.

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

use base::{Error, Result, ResultExt, Txg};
use ondisk::blkptr::{BLKPTR_SIZE, Blkptr};
use ondisk::dnode::{
    DNODE_CORE, DNODE_USEROBJUSED_ACCOUNTED, DNODE_USERUSED_ACCOUNTED, DnodePhys, MIN_INDBLKSHIFT, Slot, slots,
};
use ondisk::object_type::ObjectType;
use ondisk::objset::ObjsetType;
use ondisk::sa::{OwnerIds, owner_ids, znode_owner_ids};
use ondisk::zil::{ZIL_CLAIM_LR_SEQ_VALID, ZilHeader, records};
use ondisk::zil_record::{ClonedBlocks, WRITE_SIZE, tx};

use super::brt::Brt;
use super::ddt::{Ddt, Visit};
use super::report::{Sink, TypeStat};
use super::space::Space;
use crate::blocks::BlockReader;
use crate::objset::{Object, Objset};
use crate::vdev::top;
use crate::{zap, zil};

/// Space by birth txg: dsize, psize, ucsize.
pub type Births = BTreeMap<u64, [u64; 3]>;

/// Adds two sums.
pub fn add3(a: [u64; 3], b: [u64; 3]) -> [u64; 3] {
    std::array::from_fn(|i| a[i].wrapping_add(b[i]))
}

/// The walk's state over the whole pool.
pub struct Walk {
    /// Reads blocks.
    pub io: Rc<BlockReader>,
    /// Allocated ranges still unclaimed.
    pub space: Space,
    /// Blocks with more than one reference.
    pub brt: Brt,
    /// Blocks that dedup tables count.
    pub ddt: Ddt,
    /// Pool version, by which old object sets are judged.
    pub version: u64,
    /// Whether the walk met a block that was rewritten and keeps its logical birth.
    pub has_rewritten: bool,
}

/// Sums of one object's tree.
struct Tree {
    used: u64,
    indirects: HashSet<(u64, u64)>,
}

/// Space and objects of one owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Owned {
    bytes: u64,
    objects: u64,
}

impl Walk {
    /// A walk that claims from `space`.
    pub fn new(io: Rc<BlockReader>, space: Space, (brt, ddt): (Brt, Ddt), version: u64) -> Walk {
        Walk { io, space, brt, ddt, version, has_rewritten: false }
    }

    /// Claims the space of a block. False when another pointer claimed it before (one with the
    /// dedup bit, or a clone), or when it is damaged: then it is not read again.
    pub fn claim(&mut self, bp: &Blkptr, place: &dyn Fn() -> String, sink: &mut Sink<'_>) -> bool {
        if bp.is_hole() {
            return false;
        }
        sink.rep.blocks += 1;
        // Pieces of gangs have no type: they are counted with the block that they are of.
        if bp.otype() != ObjectType::NONE {
            let stat =
                TypeStat { count: 1, lsize: bp.lsize(), psize: bp.psize(), asize: bp.dvas().map(|d| d.asize()).sum() };
            sink.rep.types.entry((bp.otype(), bp.level().min(1))).or_default().add(&stat);
        }
        if bp.is_embedded() {
            sink.rep.embedded += 1;
            return true;
        }
        let all;
        let bp = match self.ddt.visit(bp) {
            Visit::Ordinary if self.brt.visit(bp, self.io.charge(bp)[0]) => return false,
            Visit::Ordinary => bp,
            Visit::Again => return false,
            Visit::First(with_all_copies) => {
                all = with_all_copies;
                &*all
            }
        };
        let mut fresh = true;
        let children = if bp.is_gang() {
            sink.rep.ganged += 1;
            match self.io.gang_children(bp) {
                Ok(c) => c,
                Err(e) => {
                    sink.error(format!("{}: {e}", place()));
                    Vec::new()
                }
            }
        } else {
            Vec::new()
        };
        for (i, dva) in bp.dvas().enumerate() {
            let r = self.claim_dva(bp, i, &children);
            if let Err(e) = r {
                sink.error(format!("{}: {e}", place()));
                fresh = false;
            } else {
                let own = if dva.gang() { self.gang_header_asize(dva.vdev().0) } else { dva.asize() };
                sink.rep.bytes += own;
            }
        }
        for c in &children {
            if self.claim(c, &|| format!("{} gang piece", place()), sink) {
                self.read_every(c, place, sink);
            }
            // Pieces are not blocks of their own in the count.
            sink.rep.blocks -= 1;
        }
        fresh
    }
    fn gang_header_asize(&self, vdev: u32) -> u64 {
        top(&self.io.tops, vdev).map_or(0, |t| t.asize(512, Txg(0)))
    }
    fn claim_dva(&mut self, bp: &Blkptr, i: usize, children: &[Blkptr]) -> Result<()> {
        let io = self.io.clone();
        let dva = bp.dva(i);
        let t = top(&io.tops, dva.vdev().0)?;
        let size = if dva.gang() {
            let header = t.asize(512, bp.phys_birth());
            // Of the pieces those count that have a copy of this number.
            let pieces: u64 = children.iter().filter(|c| c.ndvas() > i).map(|c| c.dva(i).asize()).sum();
            if dva.asize() != header + pieces {
                return Err(Error::corrupt(format!(
                    "gang block {bp} has asize {:#x}, header and pieces {:#x}",
                    dva.asize(),
                    header + pieces
                )));
            }
            header
        } else {
            let want = t.asize(bp.psize(), bp.phys_birth());
            if dva.asize() != want {
                return Err(Error::corrupt(format!("block {bp} has asize {:#x} instead of {want:#x}", dva.asize(),)));
            }
            dva.asize()
        };
        let named = &mut self.space.named;
        let mut name = |vdev, offset, size| {
            // What is named twice is claimed twice.
            named.entry(vdev).or_default().add(offset, size);
        };
        for (v, o, n) in t.places_by(&io.tops, dva.vdev().0, dva.offset(), size, &mut name)? {
            self.space.claim(v, o, n).at(|| format!("block {bp}"))?;
        }
        Ok(())
    }

    /// Walks an object set; `mintxg` is the creation of the snapshot before it. Space by birth
    /// comes back.
    pub fn objset(&mut self, os: &Objset, mintxg: u64, snapshot: bool, sink: &mut Sink<'_>) -> Births {
        let mut births = Births::new();
        let place = || format!("{} object set", os.name);
        births.insert(os.bp.birth().0, self.io.charge(&os.bp));
        if let Err(e) = self.io.validate(&os.bp) {
            sink.error(format!("{}: {e}", place()));
            return births;
        }
        if os.bp.birth().0 > mintxg && self.claim(&os.bp, &place, sink) {
            self.read_every(&os.bp, &place, sink);
        }
        self.object(&os.meta(), mintxg, &mut births, sink);
        for obj in os.accounting().iter().flatten() {
            self.object(obj, mintxg, &mut births, sink);
        }
        let mut owners: [BTreeMap<u64, Owned>; 3] = Default::default();
        let mut count = 0;
        let mut objects = Vec::new();
        // Objects are taken a block of dnodes at a time: the walk over them reads the meta-dnode,
        // not the objects.
        os.for_each_object(&mut |r| {
            match r {
                Ok(obj) => {
                    count += 1;
                    objects.push(obj);
                }
                Err(e) => sink.error(e.to_string()),
            }
            if objects.len() >= 256 {
                for o in objects.drain(..) {
                    self.one_object(os, &o, mintxg, &mut births, &mut owners, sink);
                }
            }
        });
        for o in objects.drain(..) {
            self.one_object(os, &o, mintxg, &mut births, &mut owners, sink);
        }
        sink.rep.objects += count;
        // Object sets older than pool version 15 count the meta-dnode.
        let fill = os.bp.fill();
        if fill != count && !(self.version < 15 && fill == count + 1) {
            sink.error(format!("{}: fill {fill}, there are {count} objects", place()));
        }
        if !os.bp.encrypted() {
            self.check_owners(os, &owners, sink);
        }
        if !snapshot {
            self.log(os, sink);
        }
        births
    }

    /// Walks the tree of a destroyed head: what was born after `mintxg` alone is still its. The
    /// rest was that of snapshots, and may have been freed with them. Its log went when it was
    /// destroyed.
    pub fn destroyed(&mut self, os: &Objset, mintxg: u64, sink: &mut Sink<'_>) {
        let place = || format!("{} object set", os.name);
        if let Err(e) = self.io.validate(&os.bp) {
            sink.error(format!("{}: {e}", place()));
            return;
        }
        if os.bp.birth().0 > mintxg && self.claim(&os.bp, &place, sink) {
            self.read_every(&os.bp, &place, sink);
        }
        self.destroyed_object(os, &os.meta().dn, mintxg, sink);
        for obj in os.accounting().iter().flatten() {
            self.destroyed_object(os, &obj.dn, mintxg, sink);
        }
    }

    fn destroyed_object(&mut self, os: &Objset, dn: &DnodePhys, mintxg: u64, sink: &mut Sink<'_>) {
        for bp in dn.bps().iter().chain(&dn.spill) {
            self.destroyed_block(os, dn, bp, mintxg, sink);
        }
    }

    fn destroyed_block(&mut self, os: &Objset, dn: &DnodePhys, bp: &Blkptr, mintxg: u64, sink: &mut Sink<'_>) {
        if bp.is_hole() || bp.birth().0 <= mintxg {
            return;
        }
        let place = || format!("{} block {bp}", os.name);
        if let Err(e) = self.io.validate(bp) {
            sink.error(format!("{}: {e}", place()));
            return;
        }
        if bp.level() >= dn.nlevels {
            sink.error(format!("{}: its object has {} levels", place(), dn.nlevels));
            return;
        }
        let is_dnodes = bp.level() == 0 && bp.otype() == ObjectType::DNODE;
        let mut tree = Tree { used: 0, indirects: HashSet::new() };
        let need = bp.level() > 0 || is_dnodes;
        let Some(data) = self.visit(bp, &place, mintxg, need, &mut tree, &mut Births::new(), sink) else { return };
        if bp.level() > 0 {
            for child in Blkptr::iter_block(&data).filter(|child| child.0 != [0; 16]) {
                // The level falls with each step, so that a loop of pointers ends.
                match child.level() < bp.level() {
                    true => self.destroyed_block(os, dn, &child, mintxg, sink),
                    false => sink.error(format!("{}: a child has level {}", place(), child.level())),
                }
            }
        } else if is_dnodes && let Some(kinds) = sink.take(slots(&data).at(place)) {
            let begins = kinds.iter().enumerate().filter(|(_, kind)| matches!(kind, Slot::Dnode(_)));
            for (n, _) in begins {
                let dn = sink.take(DnodePhys::parse_slot(&data, n).at(place)).flatten();
                if let Some(dn) = dn.filter(|dn| dn.otype != ObjectType::DNODE) {
                    self.destroyed_object(os, &dn, mintxg, sink);
                }
            }
        }
    }

    fn one_object(
        &mut self,
        os: &Objset,
        obj: &Object,
        mintxg: u64,
        births: &mut Births,
        owners: &mut [BTreeMap<u64, Owned>; 3],
        sink: &mut Sink<'_>,
    ) {
        self.object(obj, mintxg, births, sink);
        let dn = &obj.dn;
        let room = dn.bonus_capacity();
        if usize::from(dn.bonuslen) > room {
            sink.error(format!("{}: bonus of {} bytes in {room}", obj.place(), dn.bonuslen));
        }
        if DNODE_CORE + dn.bps().len() * BLKPTR_SIZE > dn.size() {
            sink.error(format!("{}: {} pointers do not fit", obj.place(), dn.nblkptr));
        }
        if os.bp.encrypted() {
            return;
        }
        if dn.otype.is_zap() {
            zap::check(obj, &mut |e| sink.error(format!("{} (ZAP): {e}", obj.place())));
        }
        self.count_owner(obj, owners, sink);
    }

    /// Walks one object's tree and compares it with the dnode.
    fn object(&mut self, obj: &Object, mintxg: u64, births: &mut Births, sink: &mut Sink<'_>) {
        let dn = &obj.dn;
        if dn.indblkshift < MIN_INDBLKSHIFT {
            sink.error(format!("{}: indirect blocks of 2^{} bytes", obj.place(), dn.indblkshift));
            return;
        }
        let mut tree = Tree { used: 0, indirects: HashSet::new() };
        for (i, bp) in dn.bps().iter().enumerate() {
            self.block(obj, bp, dn.nlevels - 1, i as u64, mintxg, &mut tree, births, sink);
        }
        if let Some(bp) = &dn.spill {
            self.spill(obj, bp, mintxg, &mut tree, births, sink);
        }
        if tree.used != dn.used_bytes() {
            sink.error(format!("{}: dn_used {}, its blocks take {}", obj.place(), dn.used_bytes(), tree.used));
        }
    }

    /// Reads all copies; the stored bytes of a good one.
    fn read_every(&mut self, bp: &Blkptr, place: &dyn Fn() -> String, sink: &mut Sink<'_>) -> Option<Vec<u8>> {
        let mut errors = Vec::new();
        let raw = self.io.read_every(bp, &mut sink.rep.copies, &mut |e, doubtful| errors.push((e, doubtful)));
        for (e, doubtful) in errors {
            // A device that may miss blocks may miss this one, as long as another has it.
            if doubtful && raw.is_some() {
                sink.rep.missed += 1;
            } else {
                sink.error(format!("{}: {e}", place()));
            }
        }
        raw
    }

    /// Charges, claims and reads a block; its content, when it was needed and can be had.
    #[allow(clippy::too_many_arguments)]
    fn visit(
        &mut self,
        bp: &Blkptr,
        place: &dyn Fn() -> String,
        mintxg: u64,
        need: bool,
        tree: &mut Tree,
        births: &mut Births,
        sink: &mut Sink<'_>,
    ) -> Option<Rc<[u8]>> {
        self.has_rewritten |= bp.is_rewritten();
        let z = self.io.charge(bp);
        tree.used = tree.used.wrapping_add(z[0]);
        let sum = births.entry(bp.birth().0).or_default();
        *sum = add3(*sum, z);
        let new = bp.birth().0 > mintxg;
        let opaque = bp.is_encrypted_data() && bp.otype() != ObjectType::DNODE || bp.is_redacted();
        let got = if new && self.claim(bp, place, sink) {
            let raw = if bp.is_embedded() { Vec::new() } else { self.read_every(bp, place, sink)? };
            if opaque {
                return None;
            }
            let io = self.io.clone();
            io.logical(bp, &raw).map(|b| {
                let b: Rc<[u8]> = b.into();
                io.keep(bp, &b);
                b
            })
        } else if need && !opaque {
            self.io.read(bp)
        } else {
            return None;
        };
        sink.take(got.at(place))
    }

    fn spill(
        &mut self,
        obj: &Object,
        bp: &Blkptr,
        mintxg: u64,
        tree: &mut Tree,
        births: &mut Births,
        sink: &mut Sink<'_>,
    ) {
        if bp.is_hole() {
            return;
        }
        let place = || format!("{} spill block", obj.place());
        if let Err(e) = self.io.validate(bp) {
            sink.error(format!("{}: {e}", place()));
            return;
        }
        if bp.level() != 0 || bp.otype() != obj.dn.bonustype {
            sink.error(format!("{}: level {}, type {}", place(), bp.level(), bp.otype()));
        }
        if bp.fill() != 1 {
            sink.error(format!("{}: fill {}", place(), bp.fill()));
        }
        self.visit(bp, &place, mintxg, false, tree, births, sink);
    }

    #[allow(clippy::too_many_arguments)]
    fn block(
        &mut self,
        obj: &Object,
        bp: &Blkptr,
        level: u8,
        blkid: u64,
        mintxg: u64,
        tree: &mut Tree,
        births: &mut Births,
        sink: &mut Sink<'_>,
    ) {
        if bp.is_hole() {
            return;
        }
        let dn = &obj.dn;
        let place = || format!("{} level {level} block {blkid}", obj.place());
        if let Err(e) = self.io.validate(bp) {
            sink.error(format!("{}: {e}", place()));
            return;
        }
        if bp.level() != level || bp.otype() != dn.otype {
            sink.error(format!("{}: pointer has level {}, type {}", place(), bp.level(), bp.otype()));
            return;
        }
        let want = if level == 0 { u64::from(dn.datablksz()) } else { u64::from(dn.indblksz()) };
        if bp.lsize() != want {
            sink.error(format!("{}: {:#x} bytes instead of {want:#x}", place(), bp.lsize()));
            return;
        }
        if blkid > dn.blkid_at_level(dn.maxblkid, level) {
            sink.error(format!("{}: lies beyond the highest block {}", place(), dn.maxblkid));
            return;
        }
        if level > 0 && !tree.indirects.insert((bp.0[0], bp.0[1])) {
            sink.error(format!("{}: the block is there twice", place()));
            return;
        }
        let is_dnodes = level == 0 && dn.otype == ObjectType::DNODE;
        let data = self.visit(bp, &place, mintxg, level > 0 || is_dnodes, tree, births, sink);
        if level > 0 {
            let Some(data) = data else { return };
            let mut fill = 0u64;
            for (i, child) in Blkptr::iter_block(&data).enumerate() {
                if child.0 == [0; 16] {
                    continue;
                }
                fill = fill.wrapping_add(child.fill());
                if child.birth() > bp.birth() {
                    sink.error(format!("{}: child {i} is born in {} after it", place(), child.birth()));
                }
                let id = (blkid << dn.epb_shift()) + i as u64;
                self.block(obj, &child, level - 1, id, mintxg, tree, births, sink);
            }
            if fill != bp.fill() {
                sink.error(format!("{}: fill {}, its children have {fill}", place(), bp.fill()));
            }
        } else if is_dnodes {
            let Some(data) = data else { return };
            if let Some(kinds) = sink.take(slots(&data).at(place)) {
                let fill = kinds.iter().filter(|k| matches!(k, Slot::Dnode(_))).count() as u64;
                if fill != bp.fill() {
                    sink.error(format!("{}: fill {}, it has {fill} dnodes", place(), bp.fill()));
                }
            }
        } else if bp.fill() != 1 {
            sink.error(format!("{}: fill {}", place(), bp.fill()));
        }
    }

    fn count_owner(&mut self, obj: &Object, owners: &mut [BTreeMap<u64, Owned>; 3], sink: &mut Sink<'_>) {
        let dn = &obj.dn;
        if dn.flags & DNODE_USERUSED_ACCOUNTED == 0 {
            return;
        }
        let ids = match dn.bonustype {
            ObjectType::SA if ondisk::sa::is_swapped(dn.bonus()) => return,
            ObjectType::SA => owner_ids(dn.bonus()),
            ObjectType::ZNODE => znode_owner_ids(dn.bonus()),
            _ => return,
        };
        let Some(OwnerIds { uid, gid, projid }) = sink.take(ids.at(|| obj.place())) else { return };
        for (map, id) in owners.iter_mut().zip([uid, gid, projid]) {
            let o = map.entry(id).or_default();
            o.bytes = o.bytes.wrapping_add(512).wrapping_add(dn.used_bytes());
            o.objects += u64::from(dn.flags & DNODE_USEROBJUSED_ACCOUNTED != 0);
        }
    }

    /// Compares the accounting objects with the sums.
    fn check_owners(&mut self, os: &Objset, owners: &[BTreeMap<u64, Owned>; 3], sink: &mut Sink<'_>) {
        for (i, obj) in os.accounting().into_iter().enumerate() {
            let Some(obj) = obj else { continue };
            zap::check(&obj, &mut |e| sink.error(format!("{} (ZAP): {e}", obj.place())));
            let Some(entries) = sink.take(zap::entries(&obj)) else { continue };
            let mut have: BTreeMap<u64, Owned> = BTreeMap::new();
            for e in entries {
                let objects = e.key.strip_prefix(b"obj-");
                let id = ondisk::zap::parse_int_key(objects.unwrap_or(&e.key));
                match (id, e.u64()) {
                    (Some(id), Some(v)) if objects.is_some() => have.entry(id).or_default().objects = v,
                    (Some(id), Some(v)) => have.entry(id).or_default().bytes = v,
                    _ => sink.error(format!("{}: entry {:?}", obj.place(), e.name())),
                }
            }
            have.retain(|_, o| *o != Owned::default());
            let ids: std::collections::BTreeSet<u64> = have.keys().chain(owners[i].keys()).copied().collect();
            for id in ids {
                let (h, w) =
                    (have.get(&id).copied().unwrap_or_default(), owners[i].get(&id).copied().unwrap_or_default());
                if h != w {
                    sink.error(format!(
                        "{}: id {id} has {} bytes and {} objects, its files {} and {}",
                        obj.place(),
                        h.bytes,
                        h.objects,
                        w.bytes,
                        w.objects
                    ));
                }
            }
        }
    }

    /// Claims the intent log: blocks that synced txgs allocated, or all of a claimed chain.
    fn log(&mut self, os: &Objset, sink: &mut Sink<'_>) {
        let header: &ZilHeader = &os.phys.zil_header;
        if header.log.is_hole() || os.phys.os_type == ObjsetType::Meta {
            return;
        }
        let claimed = header.claim_txg.0 != 0;
        let place = || format!("{} intent log", os.name);
        for b in zil::chain(&self.io, header) {
            if !claimed && b.bp.birth() > self.io.txg {
                break;
            }
            if claimed && b.bp.checksum_words()[3] > header.claim_blk_seq {
                break;
            }
            self.claim(&b.bp, &place, sink);
            let Some((data, zc)) = &b.data else { break };
            for r in records(data, zc.records).flatten() {
                let is_over = header.flags & ZIL_CLAIM_LR_SEQ_VALID != 0 && r.seq > header.claim_lr_seq;
                if !claimed || is_over {
                    continue;
                }
                // Pointers are clear in the records of encrypted logs too. Each block of a record
                // of clones has a reference from it.
                let clones = sink.take(ClonedBlocks::of(&r)).flatten();
                for c in clones.iter().flat_map(ClonedBlocks::iter).filter(|c| !c.is_hole() && !c.is_embedded()) {
                    if self.claim(&c, &place, sink) {
                        self.read_every(&c, &place, sink);
                    }
                }
                if r.txtype != tx::WRITE || r.bytes.len() < WRITE_SIZE {
                    continue;
                }
                let Ok(w) = Blkptr::parse(&r.bytes[64..WRITE_SIZE]) else { continue };
                if !w.is_hole() && !w.is_embedded() && w.birth() >= header.claim_txg && self.io.validate_log(&w).is_ok()
                {
                    self.claim(&w, &place, sink);
                }
            }
        }
    }
}
