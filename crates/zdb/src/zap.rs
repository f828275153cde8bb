//! ZAPs as a whole: all entries in cursor order, one entry by name, and a check of everything that
//! a lookup relies on.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use base::{Error, Result, ResultExt};
use ondisk::bytes::{get, le64};
use ondisk::object_type::ObjectType;
use ondisk::zap::{
    FLAG_PRE_HASHED_KEY, Header, KeyKind, Leaf, MICRO_MAX_LARGE, Match, MicroZap, ZapKind, ZapParams, ZapValue, kind,
    parse_int_key,
};

use crate::objset::Object;

/// An entry.
#[derive(Clone, Debug)]
pub struct ZapEntry {
    /// Name without NUL, or words as big-endian bytes.
    pub key: Vec<u8>,
    /// Value.
    pub value: ZapValue,
    /// Hash of the key.
    pub hash: u64,
    /// Collision differentiator.
    pub cd: u32,
}

impl ZapEntry {
    /// The name as text; bytes that are not UTF-8 are replaced.
    pub fn name(&self) -> String {
        String::from_utf8_lossy(&self.key).into_owned()
    }
    /// The value if it is one u64.
    pub fn u64(&self) -> Option<u64> {
        self.value.as_u64()
    }
}

fn micro_entries(block: &[u8]) -> Result<Vec<ZapEntry>> {
    let mz = MicroZap::open(block)?;
    let params = mz.params();
    let mut out = Vec::new();
    for e in mz.entries() {
        let e = e?;
        let hash = params.hash(e.name);
        out.push(ZapEntry { key: e.name.to_vec(), value: ZapValue::from_u64(e.value), hash, cd: e.cd });
    }
    out.sort_by(|a, b| (a.hash, a.cd, &a.key).cmp(&(b.hash, b.cd, &b.key)));
    Ok(out)
}

/// Tables larger than this (2^26 leaves, billions of entries) are taken for damage: a hostile one
/// need not have blocks of its own.
const MAX_TABLE_SHIFT: u32 = 26;

/// Each leaf of a fat ZAP once, in order of hash, with its first table index and how many indices
/// name it.
fn leaf_ids(obj: &Object, block0: &[u8], h: &Header) -> Result<Vec<(u64, u64, u64)>> {
    if h.table_shift > MAX_TABLE_SHIFT {
        return Err(Error::corrupt(format!("ZAP pointer table of 2^{} entries", h.table_shift)));
    }
    let mut out: Vec<(u64, u64, u64)> = Vec::new();
    let mut seen = HashSet::new();
    let mut take = |index: u64, id: u64| -> Result<()> {
        match out.last_mut() {
            Some(last) if last.0 == id => last.2 += 1,
            _ => {
                if !seen.insert(id) {
                    return Err(Error::corrupt(format!("ZAP leaf {id} is at two places of the pointer table")));
                }
                out.push((id, index, 1));
            }
        }
        Ok(())
    };
    let check = |id: u64| {
        if id == 0 || id >= h.freeblk || id > obj.dn.maxblkid {
            return Err(Error::corrupt(format!("ZAP pointer table names block {id}, of {} in use", h.freeblk)));
        }
        Ok(id)
    };
    if h.table_numblks == 0 {
        let half = block0.len() / 2;
        for i in 0..h.table_len() {
            let at = half + 8 * i as usize;
            let word = get(block0, at, 8).map(|b| le64(b, 0)).unwrap_or(0);
            take(i, check(word)?)?;
        }
    } else {
        let per = block0.len() as u64 / 8;
        for b in 0..h.table_numblks {
            let block = obj.block(h.table_blk + b)?;
            for (i, w) in block.chunks_exact(8).enumerate() {
                take(b * per + i as u64, check(le64(w, 0))?)?;
            }
        }
    }
    Ok(out)
}

/// Whether a leaf's prefix is that of the table entries which name it.
fn in_place(leaf: &Leaf<&[u8]>, h: &Header, first: u64, span: u64) -> bool {
    ondisk::zap::table_range(leaf.prefix(), leaf.prefix_len(), h.table_shift) == Some((first, span))
}

fn leaf_entries(leaf: &Leaf<&[u8]>) -> Result<Vec<ZapEntry>> {
    let entries = leaf.entries()?;
    entries.iter().map(|e| Ok(ZapEntry { key: leaf.key(e)?, value: leaf.value(e)?, hash: e.hash, cd: e.cd })).collect()
}

/// All entries of a ZAP, in order of (hash, cd). An object without data has none.
pub fn entries(obj: &Object) -> Result<Vec<ZapEntry>> {
    let all = || -> Result<Vec<ZapEntry>> {
        if obj.is_empty() {
            return Ok(Vec::new());
        }
        let b0 = obj.block(0)?;
        if kind(&b0)? == ZapKind::Micro {
            return micro_entries(&b0);
        }
        let h = Header::parse(&b0)?;
        let mut out = Vec::new();
        for (id, first, span) in leaf_ids(obj, &b0, &h)? {
            let block = obj.block(id)?;
            let leaf = Leaf::open(&block[..], h.params.key_kind())?;
            // So each leaf can be only where it belongs, and the same block under many ids is
            // noticed at the second.
            if !in_place(&leaf, &h, first, span) {
                return Err(Error::corrupt(format!("ZAP leaf {id} is not for its place in the pointer table")));
            }
            out.extend(leaf_entries(&leaf)?);
        }
        Ok(out)
    };
    all().at(|| format!("{} (ZAP)", obj.place()))
}

/// The value of `name`, found as a lookup finds it: by its hash.
pub fn lookup(obj: &Object, name: &[u8]) -> Result<Option<ZapValue>> {
    let find = || -> Result<Option<ZapValue>> {
        if obj.is_empty() {
            return Ok(None);
        }
        let b0 = obj.block(0)?;
        if kind(&b0)? == ZapKind::Micro {
            return Ok(MicroZap::open(&b0[..])?.find(name, Match::Exact)?.map(|e| ZapValue::from_u64(e.value)));
        }
        let h = Header::parse(&b0)?;
        let hash = h.params.hash(name);
        let slot = h.locate(hash);
        let table = obj.block(slot.blk)?;
        let block = obj.block(h.load(&table, slot)?)?;
        let leaf = Leaf::open(&block[..], h.params.key_kind())?;
        leaf.find(hash, name)?.map(|e| leaf.value(&e)).transpose()
    };
    find().at(|| format!("{} (ZAP)", obj.place()))
}

/// Entries whose values are one u64, by name; others are left out.
pub fn map_u64(obj: &Object) -> Result<BTreeMap<String, u64>> {
    Ok(entries(obj)?.into_iter().filter_map(|e| Some((e.name(), e.u64()?))).collect())
}
/// All entries by name.
pub fn map(obj: &Object) -> Result<BTreeMap<String, ZapValue>> {
    Ok(entries(obj)?.into_iter().map(|e| (e.name(), e.value)).collect())
}
/// Entries of a ZAP with integer names and values of one u64.
pub fn int_map(obj: &Object) -> Result<BTreeMap<u64, u64>> {
    let mut out = BTreeMap::new();
    for e in entries(obj)? {
        match (parse_int_key(&e.key), e.u64()) {
            (Some(k), Some(v)) => {
                out.insert(k, v);
            }
            _ => {
                return Err(Error::corrupt(format!("{}: entry {:?} is not of integers", obj.place(), e.name())));
            }
        }
    }
    Ok(out)
}

/// Verifies a whole ZAP; passes each fault to `bad`. Returns the number of entries.
pub fn check(obj: &Object, bad: &mut dyn FnMut(String)) -> u64 {
    if obj.is_empty() {
        return 0;
    }
    match check_inner(obj, bad) {
        Ok(n) => n,
        Err(e) => {
            bad(e.to_string());
            0
        }
    }
}

fn check_names<'a>(entries: impl Iterator<Item = &'a ZapEntry>, params: &ZapParams, bad: &mut dyn FnMut(String)) {
    let mut names: BTreeSet<&[u8]> = BTreeSet::new();
    let mut places = BTreeSet::new();
    for e in entries {
        if !names.insert(&e.key) {
            bad(format!("name {:?} is there twice", e.name()));
        }
        if !places.insert((e.hash, e.cd)) {
            bad(format!("entry {:?} has the hash and cd of another", e.name()));
        }
        if params.flags & FLAG_PRE_HASHED_KEY == 0 && params.hash(&e.key) != e.hash {
            bad(format!("entry {:?} has hash {:x}, its name's is {:x}", e.name(), e.hash, params.hash(&e.key)));
        }
    }
}

fn check_inner(obj: &Object, bad: &mut dyn FnMut(String)) -> Result<u64> {
    let b0 = obj.block(0)?;
    if kind(&b0)? == ZapKind::Micro {
        if obj.dn.maxblkid != 0 {
            bad("micro ZAP of more than one block".into());
        }
        if b0.len() > MICRO_MAX_LARGE {
            bad(format!("micro ZAP of {} bytes", b0.len()));
        }
        let params = MicroZap::open(&b0[..])?.params();
        if params.salt == 0 {
            bad("micro ZAP with salt 0".into());
        }
        let all = micro_entries(&b0)?;
        check_names(all.iter(), &params, bad);
        return Ok(all.len() as u64);
    }
    let h = Header::parse(&b0)?;
    if h.freeblk > obj.dn.maxblkid + 1 {
        bad(format!("{} blocks in use, the object has {}", h.freeblk, obj.dn.maxblkid + 1));
    }
    // Whether the dataset has the feature is a question of its own.
    let longest = match obj.dn.otype {
        ObjectType::DIRECTORY => ondisk::zap::MAX_LONG_NAME,
        _ => ondisk::zap::MAX_NAME,
    };
    let ids = leaf_ids(obj, &b0, &h)?;
    if ids.len() as u64 != h.num_leafs {
        bad(format!("{} leaves, the header says {}", ids.len(), h.num_leafs));
    }
    let mut count = 0;
    for (id, first, span) in ids {
        let block = obj.block(id)?;
        let leaf = match Leaf::open(&block[..], h.params.key_kind()) {
            Ok(l) => l,
            Err(e) => {
                bad(format!("leaf {id}: {e}"));
                continue;
            }
        };
        if !in_place(&leaf, &h, first, span) {
            bad(format!("leaf {id}: prefix {:x} of {} bits at table {first}+{span}", leaf.prefix(), leaf.prefix_len()));
            // The same block under many ids would be checked as often.
            continue;
        }
        if let Err(e) = leaf.check() {
            bad(format!("leaf {id}: {e}"));
        }
        match leaf_entries(&leaf) {
            Ok(all) => {
                count += all.len() as u64;
                // Equal names have equal hashes, so they would be in the same leaf.
                check_names(all.iter(), &h.params, &mut |s| bad(format!("leaf {id}: {s}")));
                for e in all.iter().filter(|_| h.params.key_kind() == KeyKind::String) {
                    if e.key.len() > longest || e.key.is_empty() {
                        bad(format!("leaf {id}: name of {} bytes", e.key.len()));
                    }
                }
            }
            Err(e) => bad(format!("leaf {id}: {e}")),
        }
    }
    if count != h.num_entries {
        bad(format!("{count} entries, the header says {}", h.num_entries));
    }
    Ok(count)
}
