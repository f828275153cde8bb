//! The rest of the MOS: vdev ZAPs, space maps that no metaslab owns, history, and
//! objects that nothing names.

use std::collections::{BTreeMap, BTreeSet};

use base::{Error, Result, ResultExt};
use ondisk::bpobj::BpobjPhys;
use ondisk::bytes::{le64, try_le64};
use ondisk::history::{HistoryPhys, Records};
use ondisk::object_type::ObjectType;
use ondisk::space_map::{Entry, MapType, SpaceMapPhys};
use ondisk::vdev_config::VdevConfig;

use super::report::Sink;
use super::space::{MAX_OTHER_MAP, Space, for_each_entry};
use crate::bpobj::{deadlist, for_each_record};
use crate::dsl::Dsl;
use crate::pool::{MOS_DIRECTORY, PoolReader};
use crate::zap;

/// Largest history log that is read.
const MAX_HISTORY: u64 = 1 << 30;

/// Every vdev of the configuration.
fn vdevs(v: &VdevConfig) -> Vec<&VdevConfig> {
    let mut out = vec![v];
    out.extend(v.children.iter().flat_map(vdevs));
    out
}

/// ZAPs that the configuration gives to vdevs.
fn vdev_zaps(pool: &PoolReader) -> Vec<u64> {
    let all = vdevs(&pool.config.vdev_tree);
    let mut zaps: Vec<u64> =
        all.iter().flat_map(|v| [v.zap_root, v.zap_top, v.zap_leaf]).flatten().map(|o| o.0).collect();
    zaps.sort_unstable();
    zaps
}

/// The list of all vdev ZAPs against the configuration.
pub fn check_vdev_zaps(pool: &PoolReader, sink: &mut Sink<'_>) {
    let zaps = vdev_zaps(pool);
    match sink.take(pool.entry_object("com.delphix:vdev_zap_map")) {
        Some(Some(avz)) => {
            if let Some(map) = sink.take(zap::int_map(&avz)) {
                let mut have: Vec<u64> = map.values().copied().collect();
                have.sort_unstable();
                if have != zaps {
                    sink.error(format!("the list of vdev ZAPs has {have:?}, the configuration {zaps:?}"));
                }
                for (k, v) in map.iter().filter(|(k, v)| k != v) {
                    sink.error(format!("the list of vdev ZAPs has {v} under {k:x}"));
                }
            }
            if !pool.config.has_per_vdev_zaps {
                sink.error("there is a list of vdev ZAPs, but the configuration does not say so");
            }
        }
        Some(None) if !zaps.is_empty() || pool.config.has_per_vdev_zaps => {
            sink.error("the configuration names vdev ZAPs, but there is no list of them");
        }
        _ => {}
    }
    for z in zaps {
        sink.take(pool.mos.object(z).at(|| "vdev ZAP"));
    }
}

/// Space maps of DTLs, logs and the like: their own figures.
pub fn check_space_maps(pool: &PoolReader, space: &Space, sink: &mut Sink<'_>) {
    let mut maps = Vec::new();
    pool.mos.for_each_object(&mut |r| {
        if let Ok(o) = r
            && o.dn.otype == ObjectType::SPACE_MAP
        {
            maps.push(o.num);
        }
    });
    for num in maps {
        let check = || -> Result<Option<String>> {
            let obj = pool.mos.object(num)?;
            let phys = SpaceMapPhys::parse(obj.dn.bonus()).at(|| obj.place())?;
            if phys.length > obj.dn.data_len() {
                return Err(Error::corrupt(format!(
                    "{}: {} bytes of entries in {}",
                    obj.place(),
                    phys.length,
                    obj.dn.data_len()
                )));
            }
            if phys.object != num && phys.object != 0 {
                return Ok(Some(format!("space map {num}: says that it is object {}", phys.object)));
            }
            if space.owners.contains_key(&num) {
                return Ok(None);
            }
            if phys.histogram.is_some_and(|h| h.iter().any(|n| *n != 0)) {
                return Ok(Some(format!("space map {num}: no metaslab's, yet with a histogram")));
            }
            let mut sum = 0i128;
            for_each_entry(&obj, 0, MAX_OTHER_MAP, &mut |e| {
                if let Entry::Run { kind, size, .. } = e {
                    sum += if kind == MapType::Alloc { i128::from(size) } else { -i128::from(size) };
                }
                Ok(())
            })?;
            // In units that depend on whose map it is.
            let alloc = i128::from(phys.alloc);
            let right = if sum == 0 { alloc == 0 } else { alloc % sum == 0 && alloc / sum >= 0 };
            Ok((!right).then(|| format!("space map {num}: says {alloc}, its entries {sum}")))
        };
        match check() {
            Ok(None) => {}
            Ok(Some(e)) => sink.error(e),
            Err(e) => sink.error(e.to_string()),
        }
    }
}

/// All records of the history, oldest first; the first fault ends them.
pub fn history(pool: &PoolReader) -> Result<(Vec<ondisk::nvlist::NvList>, Option<Error>)> {
    let Some(obj) = pool.entry_object("history")? else { return Ok((Vec::new(), None)) };
    let read = || -> Result<_> {
        let phys = HistoryPhys::parse(obj.dn.bonus())?;
        let live = phys.eof.saturating_sub(phys.bof);
        if live > phys.phys_max_off || phys.phys_max_off > MAX_HISTORY || phys.pool_create_len > phys.phys_max_off {
            return Err(Error::corrupt(format!("history of {live} bytes in {}", phys.phys_max_off)));
        }
        let mut bytes = obj.read(0, phys.pool_create_len as usize)?;
        let create = bytes.len();
        for (at, len) in phys.extents(phys.bof, live) {
            bytes.extend(obj.read(at, len as usize)?);
        }
        let mut out = Vec::new();
        // The creation's record and the ring are read apart: the ring begins at a record of its
        // own.
        let starts = if phys.bof < phys.pool_create_len {
            vec![&bytes[..create]]
        } else {
            vec![&bytes[..create], &bytes[create..]]
        };
        for part in starts {
            let mut records = Records::new(part);
            for r in records.by_ref() {
                match r {
                    Ok(r) => out.push(r),
                    Err(e) => return Ok((out, Some(e))),
                }
            }
            if records.consumed() != part.len() {
                return Ok((out, Some(Error::corrupt("the last history record is cut off"))));
            }
        }
        Ok((out, None))
    };
    read().at(|| "history")
}

/// Every object of the MOS that something names.
fn referenced(pool: &PoolReader, dsl: &Dsl) -> Result<BTreeSet<u64>> {
    let mos = &pool.mos;
    let mut r = BTreeSet::from([MOS_DIRECTORY]);
    // Every number in the directory that is an object; the others are known.
    for (k, v) in &pool.directory {
        if !matches!(k.as_str(), "deflate" | "creation_version" | "last_scrubbed_txg") {
            r.extend(v.as_u64());
        }
    }
    if let Some(o) = pool.entry_object("com.delphix:log_spacemap_zap")? {
        r.extend(zap::map_u64(&o)?.into_values());
    }
    if let Some(o) = pool.entry_object("com.delphix:deleted_clones")? {
        for list in zap::map_u64(&o)?.into_values() {
            list_objects(pool, list, &mut r)?;
        }
    }
    r.extend(super::brt::objects(pool)?.into_iter().map(|(_, _, entries)| entries));
    r.extend(super::ddt::objects(pool)?);
    // Error logs with heads have a ZAP for each.
    for key in ["errlog_last", "errlog_scrub"] {
        if let Some(o) = pool.entry_object(key)? {
            r.extend(zap::map(&o)?.values().filter_map(|v| v.as_u64()));
        }
    }
    // The queue of a scan under way.
    if let Some(w) = pool.directory.get("scan").and_then(|v| v.as_u64s()) {
        r.extend(w.get(2).filter(|_| w.get(1) == Some(&1)));
    }
    // A mapping being condensed: vdev, the new mapping, the obsolete map before it.
    if let Some(w) = pool.directory.get("com.delphix:condensing_indirect").and_then(|v| v.as_u64s()) {
        if let Some(new) = w.get(2) {
            r.extend(ondisk::indirect::MappingPhys::parse(mos.object(*new)?.dn.bonus())?.counts_object);
        }
        r.extend(w.into_iter().skip(1));
    }
    for v in vdevs(&pool.config.vdev_tree) {
        for o in [v.zap_root, v.zap_top, v.zap_leaf, v.dtl, v.metaslab_array, v.indirect_object, v.indirect_births] {
            r.extend(o.map(|o| o.0));
        }
        if let Some(z) = v.zap_top {
            let z = zap::map_u64(&mos.object(z.0)?)?;
            for k in [
                "com.delphix:ms_unflushed_phys_txgs",
                "com.delphix:pool_checkpoint_sm",
                "com.delphix:indirect_obsolete_sm",
            ] {
                r.extend(z.get(k));
            }
        }
        if let Some(o) = v.indirect_object {
            let m = ondisk::indirect::MappingPhys::parse(mos.object(o.0)?.dn.bonus())?;
            r.extend(m.counts_object);
        }
        if let (Some(a), Some(shift), Some(asize)) = (v.metaslab_array, v.metaslab_shift, v.asize)
            && a.0 != 0
            && shift < 63
        {
            let obj = mos.object(a.0)?;
            let n = (asize >> shift).min(obj.dn.data_len() / 8);
            r.extend(obj.read(0, n as usize * 8)?.chunks_exact(8).map(|b| le64(b, 0)));
        }
    }
    for d in dsl.dirs.values() {
        let p = &d.phys;
        r.extend([d.obj, p.head_dataset_obj, p.child_dir_zapobj, p.props_zapobj, p.deleg_zapobj, p.clones]);
        if p.deleg_zapobj != 0 {
            r.extend(zap::map_u64(&mos.object(p.deleg_zapobj)?)?.into_values());
        }
        if d.zapified {
            let z = zap::map_u64(&mos.object(d.obj)?)?;
            if let Some(l) = z.get("com.delphix:livelist") {
                list_objects(pool, *l, &mut r)?;
            }
            r.extend(z.get("com.datto:crypto_key_obj"));
        }
    }
    for d in dsl.datasets.values() {
        let p = &d.phys;
        r.extend([d.obj, p.snapnames_zapobj, p.next_clones_obj, p.props_obj, p.userrefs_obj]);
        if p.deadlist_obj != 0 {
            list_objects(pool, p.deadlist_obj, &mut r)?;
        }
        if d.zapified {
            let z = zap::map_u64(&mos.object(d.obj)?)?;
            if let Some(l) = z.get("com.delphix:remap_deadlist") {
                list_objects(pool, *l, &mut r)?;
            }
            if let Some(b) = z.get("com.delphix:bookmarks") {
                r.insert(*b);
                for v in zap::map(&mos.object(*b)?)?.values() {
                    r.extend(v.as_u64s().and_then(|w| w.get(3).copied()));
                }
            }
        }
    }
    for k in ["free_bpobj", "sync_bplist", "com.delphix:obsolete_bpobj"] {
        if let Some(o) = pool.entry(k) {
            list_objects(pool, o, &mut r)?;
        }
    }
    r.remove(&0);
    Ok(r)
}

/// A list or deadlist with everything below it.
fn list_objects(pool: &PoolReader, obj: u64, r: &mut BTreeSet<u64>) -> Result<()> {
    let mut todo = vec![obj];
    while let Some(o) = todo.pop() {
        let fresh = r.insert(o);
        let object = pool.mos.object(o)?;
        if object.dn.otype == ObjectType::DEADLIST {
            if fresh {
                todo.extend(deadlist(pool, o)?.unwrap_or_default().into_values());
            }
        } else if object.dn.otype == ObjectType::BPOBJ {
            let phys = BpobjPhys::parse(object.dn.bonus())?;
            if phys.has_subobjs() && phys.subobjs != 0 && r.insert(phys.subobjs) {
                for_each_record(&pool.mos.object(phys.subobjs)?, phys.num_subobjs, 8, &mut |b| {
                    todo.push(le64(b, 0));
                    Ok(())
                })?;
            }
        }
    }
    Ok(())
}

/// Objects of the MOS that nothing names, and names without objects.
pub fn check_references(pool: &PoolReader, dsl: &Dsl, sink: &mut Sink<'_>) {
    let refs = match referenced(pool, dsl) {
        Ok(r) => r,
        Err(e) => {
            // The object's own check reports the error; the set would be incomplete.
            sink.note(format!("objects that nothing names were not looked for: {e}"));
            return;
        }
    };
    let mut here: BTreeMap<u64, ObjectType> = BTreeMap::new();
    pool.mos.for_each_object(&mut |r| {
        if let Ok(o) = r {
            here.insert(o.num, o.dn.otype);
        }
    });
    for (o, t) in here.iter().filter(|(o, _)| !refs.contains(o)) {
        sink.error(format!("mos object {o} ({t}) belongs to nothing"));
    }
    for o in refs.iter().filter(|o| !here.contains_key(o)) {
        sink.error(format!("mos object {o} is named, but not there"));
    }
}

/// Claims blocks that only the pool's checkpoint still holds: they are allocated and in no tree.
pub fn claim_checkpoint(pool: &PoolReader, space: &mut Space, sink: &mut Sink<'_>) {
    for (id, top) in pool.config.vdev_tree.children.iter().enumerate() {
        let Some(z) = top.zap_top else { continue };
        let map = pool.mos.object(z.0).and_then(|o| zap::lookup(&o, b"com.delphix:pool_checkpoint_sm"));
        let Some(Some(v)) = sink.take(map) else { continue };
        let Some(o) = v.as_u64() else { continue };
        let ashift = top.ashift.unwrap_or(9).clamp(9, 16) as u32;
        let mut errors = Vec::new();
        let r = pool.mos.object(o).and_then(|obj| {
            for_each_entry(&obj, ashift, MAX_OTHER_MAP, &mut |e| {
                if let Entry::Run { offset, size, .. } = e
                    && let Err(e) = space.claim_piecewise(id as u32, offset, size)
                    && errors.len() < 20
                {
                    errors.push(format!("checkpoint space map: {e}"));
                }
                Ok(())
            })
        });
        errors.into_iter().for_each(|e| sink.error(e));
        sink.take(r);
    }
}

/// Everything in this module but references and the checkpoint.
pub fn check(pool: &PoolReader, sink: &mut Sink<'_>) {
    check_vdev_zaps(pool, sink);
    if let Some((_, Some(e))) = sink.take(history(pool)) {
        sink.error(format!("history: {e}"));
    }
    for key in ["root_dataset", "config", "sync_bplist"] {
        if !pool.directory.contains_key(key) && (key != "sync_bplist" || pool.version() >= 5000) {
            sink.error(format!("the MOS directory has no entry {key}"));
        }
    }
    for key in ["spares", "l2cache"] {
        if let Some(Some(o)) = sink.take(pool.entry_object(key)) {
            sink.take(crate::objset::packed_nvlist(&o));
        }
    }
    if let Some(Some(o)) = sink.take(pool.entry_object("config"))
        && let Some(len) = try_le64(o.dn.bonus(), 0)
        && len == 0
    {
        sink.error("the configuration object is empty");
    }
}
