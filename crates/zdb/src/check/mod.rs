//! The checker: everything that the format keeps twice is recomputed and compared.
//!
//! In order: space maps are replayed; every block of the MOS and of all datasets is read in all its
//! copies and claimed from the replayed space, while each dataset's figures are summed; then intent
//! logs, lists of blocks waiting to be freed and the checkpoint claim theirs; the rest is leaked.
//! With the sums come the accounting of datasets and directories, feature counts, labels, and in
//! file systems links and parents.
//!
//! Errors are facts about the pool, each with its place. A pool of which a part cannot be read is
//! checked as far as it goes.

mod brt;
pub(crate) mod ddt;
mod dsl;
mod features;
mod files;
mod labels;
mod livelist;
pub mod mos;
mod obsolete;
mod removal;
mod report;
pub mod space;
mod walk;

use std::collections::{BTreeMap, BTreeSet};

use base::ResultExt;
use ondisk::bpobj::{BPTREE_ENTRY_SIZE, Bookmark, BptreeEntry, BptreePhys};
use ondisk::dsl::DS_FLAG_INCONSISTENT;
use ondisk::objset::ObjsetType;

use brt::Brt;
use ddt::Ddt;
use report::Sink;
pub use report::{CheckReport, Finding, TypeStat};
use space::Space;
use walk::{Births, Walk, add3};

use crate::bpobj;
use crate::dsl::Dsl;
use crate::pool::PoolReader;
use crate::zap;

/// The key of datasets with rewritten blocks.
const PHYSICAL_REWRITE: &str = "com.truenas:physical_rewrite";

/// Scope of a check.
#[derive(Clone, Copy, Debug)]
pub struct CheckOpts {
    /// Compare folders with files in every file system and snapshot.
    pub files: bool,
    /// Compare labels with the configuration.
    pub labels: bool,
    /// Most leaked ranges that are listed one by one.
    pub max_leaks: usize,
}

impl Default for CheckOpts {
    fn default() -> CheckOpts {
        CheckOpts { files: true, labels: true, max_leaks: 1000 }
    }
}

/// Checks the pool. `listen` gets each finding when it is made.
pub fn check(pool: &PoolReader, opts: &CheckOpts, listen: &mut dyn FnMut(Finding<'_>)) -> CheckReport {
    let mut sink = Sink::new(pool.name(), listen);
    sink.progress("space maps");
    let space = Space::load(pool, &mut sink);
    space.check_headers(pool, &mut sink);
    mos::check_space_maps(pool, &space, &mut sink);
    let brt = Brt::load(pool, &mut sink);
    let ddt = Ddt::load(pool, &mut sink);
    let mut walk = Walk::new(pool.io.clone(), space, (brt, ddt), pool.version());
    let mut births: BTreeMap<u64, Births> = BTreeMap::new();
    let mut skipped = BTreeSet::new();
    let mut is_remapped = pool.directory.contains_key("com.delphix:obsolete_bpobj");
    sink.progress("mos");
    births.insert(0, walk.objset(&pool.mos, 0, false, &mut sink));

    let dsl = sink.take(Dsl::load(pool)).unwrap_or_default();
    dsl.errors.iter().for_each(|e| sink.error(e.clone()));
    // Snapshots before their clones: the errors of a shared block are then reported for its owner.
    for ds in dsl.by_name() {
        if ds.phys.bp.is_hole() {
            continue;
        }
        sink.progress(&ds.name);
        let os = match pool.open_dataset(&ds.name, ds.obj, &ds.phys.bp) {
            Ok(os) => os,
            Err(e) => {
                sink.error(e.to_string());
                skipped.insert(ds.obj);
                continue;
            }
        };
        let keys = match ds.zapified {
            true => sink.take(pool.mos.object(ds.obj).and_then(|o| zap::map(&o))).unwrap_or_default(),
            false => BTreeMap::new(),
        };
        is_remapped |= keys.contains_key("com.delphix:remap_deadlist");
        walk.has_rewritten = false;
        births.insert(ds.obj, walk.objset(&os, ds.phys.prev_snap_txg, ds.snapshot, &mut sink));
        if walk.has_rewritten && !keys.contains_key(PHYSICAL_REWRITE) {
            sink.error(format!("{}: it has rewritten blocks, but not the key {PHYSICAL_REWRITE}", ds.name));
        }
        let readable = !ds.phys.bp.encrypted() && ds.phys.flags & DS_FLAG_INCONSISTENT == 0;
        if opts.files && os.phys.os_type == ObjsetType::Zfs && readable {
            if os.bp.fill() == 0 {
                sink.note(format!("{}: a file system without any object", ds.name));
            } else {
                sink.rep.filesystems += 1;
                files::check(&os, &keys.into_keys().collect(), &mut sink);
            }
        }
    }

    sink.progress("deferred frees");
    let freeing = claim_pending(pool, &mut walk, &mut sink);
    let freeing = add3(freeing, livelist::claim(pool, &mut walk, &mut sink));
    for bp in walk.ddt.waiting() {
        sink.rep.waiting += bp.dvas().map(|d| d.asize()).sum::<u64>();
        walk.claim(&bp, &|| "a dedup table's block without references".to_owned(), &mut sink);
    }
    mos::claim_checkpoint(pool, &mut walk.space, &mut sink);
    removal::claim(pool, &mut walk.space, &mut sink);
    obsolete::check(pool, &walk.space.named, walk.brt.is_partial || is_remapped, &mut sink);
    sink.progress("accounting");
    dsl::DslCheck { pool, dsl: &dsl, births: &births, skipped: &skipped, freeing }.run(&mut sink);
    livelist::check(pool, &dsl, &births, &skipped, &mut sink);
    features::check(pool, &mut sink);
    mos::check(pool, &mut sink);
    walk.brt.check(pool, &mut sink);
    walk.ddt.check(pool, walk.brt.is_partial, &mut sink);
    mos::check_references(pool, &dsl, &mut sink);
    if opts.labels {
        labels::check(pool, &mut sink);
    }
    tell_leaks(&walk.space, opts, &mut sink);
    if sink.rep.missed != 0 {
        let n = sink.rep.missed;
        sink.note(format!("{n} copies are wrong on devices that the configuration knows to miss some"));
    }
    let unverified = pool.io.unverified.get();
    if unverified != 0 {
        sink.note(format!(
            "{unverified} reads of blocks with skein, edonr or blake3 checksums, which are not computed here"
        ));
    }
    sink.rep
}

/// Loads the space maps alone, for display.
pub fn load_space(pool: &PoolReader, listen: &mut dyn FnMut(Finding<'_>)) -> Space {
    Space::load(pool, &mut Sink::new(pool.name(), listen))
}

/// Claims blocks on the pool's lists of blocks to be freed. Returns the space charged to the
/// `$FREE` directory.
fn claim_pending(pool: &PoolReader, walk: &mut Walk, sink: &mut Sink<'_>) -> [u64; 3] {
    let mut freeing = [0; 3];
    for key in ["sync_bplist", "free_bpobj", "com.delphix:obsolete_bpobj"] {
        let Some(obj) = pool.entry(key).filter(|o| *o != 0) else { continue };
        let r = bpobj::for_each(pool, obj, &mut |bp| {
            if key == "free_bpobj" {
                freeing = add3(freeing, pool.io.charge(bp));
            }
            // Obsolete ranges of removed vdevs are in no space map.
            if key != "com.delphix:obsolete_bpobj" {
                walk.claim(bp, &|| key.to_owned(), sink);
            }
        });
        sink.take(r.at(|| key));
    }
    // Trees of destroyed datasets that are freed in the background.
    let Some(Some(obj)) = sink.take(pool.entry_object("bptree_obj")) else { return freeing };
    let Some(phys) = sink.take(BptreePhys::parse(obj.dn.bonus()).at(|| "bptree")) else { return freeing };
    for i in phys.begin..phys.end {
        let at = i.saturating_mul(BPTREE_ENTRY_SIZE as u64);
        if at >= obj.dn.data_len() {
            sink.error(format!("bptree: entry {i} lies beyond its object"));
            break;
        }
        let entry = obj.read(at, BPTREE_ENTRY_SIZE).and_then(|b| BptreeEntry::parse(&b));
        let Some(entry) = sink.take(entry.at(|| format!("bptree entry {i}"))) else { continue };
        let name = format!("bptree entry {i}");
        if entry.bookmark != Bookmark::default() {
            sink.note(format!("{name}: freed in part; its blocks are not walked and may show as leaked"));
            walk.brt.is_partial = true;
            continue;
        }
        if let Some(os) = sink.take(pool.open_dataset(&name, 0, &entry.bp)) {
            walk.destroyed(&os, entry.birth_txg.0, sink);
        }
    }
    add3(freeing, [phys.bytes, phys.comp, phys.uncomp])
}

fn tell_leaks(space: &Space, opts: &CheckOpts, sink: &mut Sink<'_>) {
    let mut told = 0;
    let mut ranges = 0u64;
    for (id, v) in &space.vdevs {
        for (at, n) in v.left.iter() {
            sink.rep.leaked += n;
            ranges += 1;
            if told < opts.max_leaks {
                sink.error(format!("leaked: vdev {id}, offset {at:#x}, size {n:#x}"));
                told += 1;
            }
        }
    }
    if ranges > told as u64 {
        sink.error(format!("leaked: {} more ranges", ranges - told as u64));
    }
}
