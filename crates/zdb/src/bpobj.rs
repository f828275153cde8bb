//! Lists of block pointers, and the deadlists made of them.

use std::collections::{BTreeMap, HashSet};

use base::{Error, Result, ResultExt};
use ondisk::blkptr::{BLKPTR_SIZE, Blkptr};
use ondisk::bpobj::BpobjPhys;
use ondisk::bytes::le64;
use ondisk::object_type::ObjectType;

use crate::objset::Object;
use crate::pool::PoolReader;
use crate::zap;

/// Lists within lists go no deeper than this.
const MAX_DEPTH: u32 = 64;
/// Bytes of a list that are read at once.
const PIECE: u64 = 1 << 20;

/// The sums over the pointers of a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListSum {
    /// dsize, psize, ucsize; frees of a live list taken off.
    pub space: [u64; 3],
    /// Entries that are frees (live lists).
    pub freed: u64,
}

/// Every pointer of list `obj`, those of lists within it included. The header comes back.
pub fn for_each(pool: &PoolReader, obj: u64, f: &mut dyn FnMut(&Blkptr)) -> Result<BpobjPhys> {
    walk(pool, obj, 0, &mut HashSet::new(), f)
}

fn walk(
    pool: &PoolReader,
    num: u64,
    depth: u32,
    seen: &mut HashSet<u64>,
    f: &mut dyn FnMut(&Blkptr),
) -> Result<BpobjPhys> {
    let obj = pool.mos.object(num).at(|| "block pointer list")?;
    if obj.dn.otype != ObjectType::BPOBJ {
        return Err(Error::corrupt(format!("{}: a block pointer list of type {}", obj.place(), obj.dn.otype)));
    }
    // The shared empty list may be there many times: it has nothing in it.
    let phys = BpobjPhys::parse(obj.dn.bonus()).at(|| obj.place())?;
    if phys.is_empty() {
        return Ok(phys);
    }
    if depth > MAX_DEPTH || !seen.insert(num) {
        return Err(Error::corrupt(format!("{}: block pointer lists contain each other", obj.place())));
    }
    for_each_record(&obj, phys.num_blkptrs, BLKPTR_SIZE as u64, &mut |b| {
        f(&Blkptr::parse(b)?);
        Ok(())
    })?;
    if phys.has_subobjs() && phys.num_subobjs != 0 {
        let sub = pool.mos.object(phys.subobjs).at(|| obj.place())?;
        let mut nums = Vec::new();
        for_each_record(&sub, phys.num_subobjs, 8, &mut |b| {
            nums.push(le64(b, 0));
            Ok(())
        })?;
        for n in nums {
            walk(pool, n, depth + 1, seen, f)?;
        }
    }
    Ok(phys)
}

/// Hands the first `count` records of `size` bytes of an object to `f`; a record in a hole is an
/// error.
pub fn for_each_record(obj: &Object, count: u64, size: u64, f: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let total = count.checked_mul(size).filter(|&t| t <= obj.dn.data_len());
    // The blocks of a list are stored somewhere: at best compressed 64-fold, or the same block is
    // listed repeatedly.
    let room: u64 = obj.io.tops.iter().flatten().fold(0, |s, t| s.saturating_add(t.asize));
    let Some(total) = total.filter(|t| t / 64 <= room) else {
        return Err(Error::corrupt(format!(
            "{}: {count} records in an object of {} bytes",
            obj.place(),
            obj.dn.data_len()
        )));
    };
    let piece = PIECE / size * size;
    let mut at = 0;
    while at < total {
        let first = at / u64::from(obj.dn.datablksz());
        if obj.bp(first)?.is_hole() {
            return Err(Error::corrupt(format!("{}: block {first} of a list is not there", obj.place())));
        }
        let n = piece.min(total - at);
        let data = obj.read(at, n as usize)?;
        for b in data.chunks_exact(size as usize) {
            f(b)?;
        }
        at += n;
    }
    Ok(())
}

/// The sums over the pointers of a list, and its header.
pub fn sum(pool: &PoolReader, obj: u64) -> Result<(ListSum, BpobjPhys)> {
    let mut s = ListSum::default();
    let live = {
        let o = pool.mos.object(obj)?;
        BpobjPhys::parse(o.dn.bonus()).is_ok_and(|p| p.num_freed != 0)
    };
    let phys = for_each(pool, obj, &mut |bp| {
        let z = pool.io.charge(bp);
        let free = live && bp.0[11] & 1 != 0;
        s.freed += u64::from(free);
        for (sum, z) in s.space.iter_mut().zip(z) {
            *sum = if free { sum.wrapping_sub(z) } else { sum.wrapping_add(z) };
        }
    })?;
    Ok((s, phys))
}

/// The lists of a deadlist by key; `None` of one that is a single list (made before pool version
/// 26).
pub fn deadlist(pool: &PoolReader, obj: u64) -> Result<Option<BTreeMap<u64, u64>>> {
    let o = pool.mos.object(obj).at(|| "deadlist")?;
    match o.dn.otype {
        ObjectType::DEADLIST => zap::int_map(&o).map(Some),
        ObjectType::BPOBJ => Ok(None),
        t => Err(Error::corrupt(format!("{}: a deadlist of type {t}", o.place()))),
    }
}
