//! What a search of the devices is good for: states of the MOS and of datasets that no uberblock
//! leads to, and blocks of dnodes for those that are lost.
//!
//! * A MOS that was found is one more state of the pool ([`Finds::moses`]), and so are the datasets
//!   in blocks of dnodes of some MOS ([`Finds::datasets`]).
//! * An object set of a file system has no name in it. It belongs to the dataset whose master node
//!   it has, if it can be a state of it ([`Lineage`]); of clones, which have the same one, to that
//!   of which it is a known state, or else to that with which it has more blocks in common than
//!   with any other ([`Finds::share_out`]). What belongs to none is copied by itself
//!   ([`Finds::ownerless`]).
//! * A block of dnodes has no number in it. It is taken for a lost one if folders that can be read
//!   have names for its files, and the files say that they are in those folders ([`adopt`]). Such
//!   files are reported as *found*: what they contain is verified, that they belong here is not.
//!
//! Of several candidates the one with the most agreement wins, then the newest.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::Txg;
use ondisk::blkptr::Blkptr;
use ondisk::dnode::{DNODE_SIZE, DnodePhys, Slot, slots};
use ondisk::dsl::DslDatasetPhys;
use ondisk::object_type::ObjectType;
use ondisk::objset::ObjsetType;
use zio::DataKey;

use crate::blocks::Blocks;
use crate::catalog::Dataset;
use crate::fs::Zpl;
use crate::lineage::{Lineage, origin};
use crate::scan::{Content, Hit, content};
use crate::tree::{Lookup, Objset, Part};

/// Most states of the MOS that are kept.
const MOSES_MAX: usize = 128;
/// Most object sets of datasets that are kept.
const OBJSETS_MAX: usize = 4096;
/// Most object sets of unknown datasets that are copied.
const OWNERLESS_MAX: usize = 256;
/// Most dataset records that are kept.
const DATASETS_MAX: usize = 1 << 20;
/// Most comparisons of found blocks with lost ones.
const VOTES_MAX: usize = 50_000_000;

/// What was found.
#[derive(Default)]
pub struct Finds {
    /// Where blocks are read.
    pub io: Option<Rc<Blocks>>,
    /// Whether states may be younger than the newest MOS that can be opened.
    pub beyond: bool,
    /// States of the MOS.
    pub moses: Vec<Objset>,
    /// Datasets in blocks of dnodes, each state of each once.
    pub datasets: Vec<DslDatasetPhys>,
    objsets: Vec<Objset>,
    /// Of object sets (by number) whose master node several datasets have: the guid of that which
    /// it belongs to, if that can be told.
    owners: BTreeMap<usize, Option<u64>>,
    /// Blocks of dnodes with files.
    files: Vec<(Hit, Txg)>,
}

/// The newest birth among the pointers of dnodes.
fn newest(dnodes: &[(usize, DnodePhys)]) -> Txg {
    let all = dnodes.iter().flat_map(|(_, d)| d.bps().iter().chain(&d.spill));
    all.filter(|bp| !bp.is_hole()).map(Blkptr::birth).max().unwrap_or_default()
}

/// The dnodes of a block with their slots.
fn dnodes(block: &[u8]) -> Vec<(usize, DnodePhys)> {
    let kinds = slots(block).unwrap_or_default();
    let all = kinds.iter().enumerate().filter(|(_, k)| matches!(k, Slot::Dnode(_)));
    all.filter_map(|(n, _)| Some((n, DnodePhys::parse(&block[n * DNODE_SIZE..]).ok()??))).collect()
}

impl Finds {
    /// Sorts the hits of a search. Nothing is younger than `limit`, the newest uberblock that is
    /// left.
    pub fn sort<'a>(io: &Rc<Blocks>, hits: impl IntoIterator<Item = &'a Hit>, limit: Txg) -> Finds {
        let mut it = Finds { io: Some(io.clone()), ..Finds::default() };
        let mut known = BTreeSet::new();
        for hit in hits {
            match content(&io.vdevs, hit) {
                Some(Content::Objset(os)) => {
                    let kind = os.os_type;
                    let os = Objset::found(io, *os);
                    let list = if kind == ObjsetType::Meta { &mut it.moses } else { &mut it.objsets };
                    if os.txg <= limit && list.iter().all(|o| !o.same_as(&os)) {
                        list.push(os);
                    }
                }
                Some(Content::Dnodes(block)) => it.take_dnodes(*hit, &dnodes(&block), limit, &mut known),
                None => {}
            }
            for (list, max) in [(&mut it.moses, MOSES_MAX), (&mut it.objsets, OBJSETS_MAX)] {
                if list.len() > 2 * max {
                    list.sort_by_key(|o| std::cmp::Reverse(o.txg));
                    list.truncate(max);
                }
            }
        }
        it.moses.sort_by_key(|o| std::cmp::Reverse(o.txg));
        it.moses.truncate(MOSES_MAX);
        it.objsets.sort_by_key(|o| std::cmp::Reverse(o.txg));
        it.objsets.truncate(OBJSETS_MAX);
        it
    }

    fn take_dnodes(
        &mut self,
        hit: Hit,
        all: &[(usize, DnodePhys)],
        limit: Txg,
        known: &mut BTreeSet<(u64, [u64; 16])>,
    ) {
        let mut files = false;
        for (_, dn) in all {
            match dn.bonustype {
                ObjectType::DSL_DATASET => {
                    let Ok(phys) = DslDatasetPhys::parse(dn.bonus()) else { continue };
                    let fits = phys.bp.birth() <= limit && phys.guid != 0 && self.datasets.len() < DATASETS_MAX;
                    if fits && known.insert((phys.guid, phys.bp.0)) {
                        self.datasets.push(phys);
                    }
                }
                ObjectType::SA | ObjectType::ZNODE => files = true,
                _ => {}
            }
        }
        if files {
            self.files.push((hit, newest(all)));
        }
    }

    /// Object sets no younger than `limit` that were found for a dataset with these views, the
    /// newest first.
    pub fn of_dataset(&self, ds: &Dataset, views: &[Objset], limit: Txg, key: Option<&Rc<DataKey>>) -> Vec<Objset> {
        let Some(newest) = views.first().filter(|_| !ds.snapshot) else { return Vec::new() };
        let ids: Vec<[u64; 16]> = views.iter().filter_map(origin).collect();
        let mut line = vec![Lineage::of(newest)];
        let mut out = Vec::new();
        let possible = |n: &usize| self.owners.get(n).is_none_or(|owner| *owner == Some(ds.guid));
        for (_, os) in self.objsets.iter().enumerate().filter(|(n, os)| possible(n) && os.txg <= limit) {
            let os = os.clone().with_key(key.cloned());
            if !origin(&os).is_some_and(|id| ids.contains(&id)) {
                continue;
            }
            // A state of a clone that is gone is of no line with the dataset, or with a younger
            // state of it.
            let own = Lineage::of(&os);
            if line.iter().all(|l| own.is_of_line(l)) {
                line.push(own);
                out.push(os);
            }
        }
        out
    }

    /// Shares out the object sets among clones: each dataset is given with its guid and its known
    /// views, the newest first.
    pub fn share_out(&mut self, known: &[(u64, Vec<Objset>)]) {
        let mut groups: BTreeMap<[u64; 16], Vec<&(u64, Vec<Objset>)>> = BTreeMap::new();
        for ds in known {
            if let Some(id) = ds.1.first().and_then(origin) {
                groups.entry(id).or_default().push(ds);
            }
        }
        self.owners.clear();
        for (id, group) in groups.iter().filter(|(_, g)| g.len() > 1) {
            let key = group.iter().find_map(|(_, views)| views.first()?.key.clone());
            let lines: Vec<_> = group.iter().map(|(guid, views)| (*guid, Lineage::of(&views[0]))).collect();
            for (n, os) in self.objsets.iter().enumerate() {
                if origin(&os.clone().with_key(key.clone())) != Some(*id) {
                    continue;
                }
                let same = group.iter().find(|(_, views)| views.iter().any(|v| v.same_as(os)));
                let owner = same.map(|(guid, _)| *guid).or_else(|| {
                    let own = Lineage::of(os);
                    let possible = lines.iter().filter(|(_, l)| own.is_of_line(l));
                    let mut common: Vec<(usize, u64)> = possible.map(|(guid, l)| (own.in_common(l), *guid)).collect();
                    common.sort_unstable();
                    let most = common.pop()?;
                    (common.last().is_none_or(|next| next.0 < most.0)).then_some(most.1)
                });
                self.owners.insert(n, owner);
            }
        }
    }

    /// Object sets that are neither among these nor older states of them; of each line the newest
    /// one.
    pub fn ownerless(&self, known: &[Objset]) -> Vec<Objset> {
        let mut lines: BTreeMap<[u64; 16], Vec<Lineage>> = BTreeMap::new();
        for os in known {
            if let Some(id) = origin(os) {
                lines.entry(id).or_default().push(Lineage::of(os));
            }
        }
        let mut out = Vec::new();
        for os in self.objsets.iter().filter(|os| known.iter().all(|k| !k.same_as(os))) {
            let Some(id) = origin(os) else { continue };
            let (line, own) = (lines.entry(id).or_default(), Lineage::of(os));
            if line.iter().all(|l| !l.descends_from(&own)) {
                line.push(own);
                out.push(os.clone());
            }
            if out.len() >= OWNERLESS_MAX {
                break;
            }
        }
        out
    }

    /// Whether blocks of dnodes of files were found.
    pub fn has_files(&self) -> bool {
        !self.files.is_empty()
    }
}

/// Whether an object is in a folder: its slot in its block, and the folder.
type Claim = (usize, u64);

/// The blocks of dnodes that are lost in the newest state of a file system.
pub fn lost_blocks(os: &Objset, max: usize) -> BTreeSet<u64> {
    let per = os.per_block();
    let mut out = BTreeSet::new();
    os.for_each(&mut |o| {
        if let Err((first, count, _)) = o {
            let end = first.saturating_add(count).div_ceil(per);
            (first / per..end).take(max.saturating_sub(out.len())).for_each(|b| {
                out.insert(b);
            });
        }
    });
    out
}

/// Takes blocks of dnodes that were found for those that are lost of a file system. `live`: places
/// of the blocks of dnodes of all datasets, which are no candidates. Returns how many were taken.
pub fn adopt(zpl: &mut Zpl, finds: &Finds, lost: &BTreeSet<u64>, live: &BTreeSet<(u32, u64)>) -> usize {
    let Some(io) = finds.io.clone().filter(|_| !lost.is_empty() && finds.has_files()) else { return 0 };
    let claims = claims(zpl, lost);
    if claims.is_empty() || claims.len().saturating_mul(finds.files.len()) > VOTES_MAX {
        return 0;
    }
    let key = zpl.newest().key.clone();
    let per = zpl.newest().per_block();
    /// Votes, the newest txg, and the block.
    type Best = ((usize, Txg), Rc<[u8]>);
    let mut best: BTreeMap<u64, Best> = BTreeMap::new();
    for (hit, txg) in finds.files.iter().filter(|(h, _)| !live.contains(&(h.top, h.off))) {
        let Some(Content::Dnodes(block)) = content(&io.vdevs, hit) else { continue };
        let os = zpl.newest().clone().with_key(key.clone());
        let mut parents: BTreeMap<usize, u64> = BTreeMap::new();
        for (slot, _) in dnodes(&block) {
            if let Lookup::There(o) = os.adopt(slot as u64, &block)
                && let Ok(a) = zpl.attrs(&o).or_else(|_| zpl.attrs_without_spill(&o))
            {
                parents.insert(slot, a.parent);
            }
        }
        if parents.is_empty() || block.len() as u64 / DNODE_SIZE as u64 != per {
            continue;
        }
        for (blk, claims) in &claims {
            let agree = claims.iter().filter(|(slot, dir)| parents.get(slot) == Some(dir)).count();
            let contradict = claims.iter().filter(|(slot, dir)| parents.get(slot).is_some_and(|p| p != dir)).count();
            let rank = (agree, *txg);
            if agree > contradict && best.get(blk).is_none_or(|b| b.0 < rank) {
                best.insert(*blk, (rank, block.clone()));
            }
        }
    }
    let count = best.len();
    for (blk, ((_, txg), block)) in best {
        zpl.adopt(blk, txg, block);
    }
    count
}

/// What folders say of the objects in lost blocks.
fn claims(zpl: &Zpl, lost: &BTreeSet<u64>) -> BTreeMap<u64, Vec<Claim>> {
    let per = zpl.newest().per_block();
    let mut out: BTreeMap<u64, Vec<Claim>> = BTreeMap::new();
    zpl.newest().for_each(&mut |o| {
        let Ok(dir) = o else { return };
        if dir.dn.otype != ObjectType::DIRECTORY {
            return;
        }
        for item in zpl.list(&dir).0 {
            let blk = item.object / per;
            if lost.contains(&blk) {
                out.entry(blk).or_default().push(((item.object % per) as usize, dir.num));
            }
        }
    });
    out
}

/// The places of the blocks of dnodes of an object set.
pub fn places(os: &Objset, out: &mut BTreeSet<(u32, u64)>) {
    let _ = os.meta().for_each(&mut |part| {
        if let Part::Block(_, bp) = part {
            out.extend(bp.dvas().map(|d| (d.vdev().0, d.offset())));
        }
        Ok(())
    });
}
