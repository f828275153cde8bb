//! Livelists of clones (format page 15 section 3): what they say lives must be what the clone has
//! beyond its origin. Those of destroyed clones claim what is to be freed.

use std::collections::{BTreeMap, BTreeSet};

use base::{Error, Result, ResultExt};
use ondisk::blkptr::Blkptr;
use ondisk::bpobj::DeadlistPhys;

use super::report::Sink;
use super::walk::{Births, Walk, add3};
use crate::bpobj;
use crate::dsl::{Dir, Dsl};
use crate::pool::PoolReader;
use crate::zap;

const LIVELIST: &str = "com.delphix:livelist";

/// The blocks that a livelist says live, and their sums.
fn living(pool: &PoolReader, list: u64, f: &mut dyn FnMut(&Blkptr)) -> Result<[u64; 3]> {
    let lists = bpobj::deadlist(pool, list)?.ok_or_else(|| Error::corrupt("a livelist without keys"))?;
    let order: Vec<u64> = lists.keys().copied().collect();
    let mut sum = [0; 3];
    for (i, (&key, &part)) in lists.iter().enumerate() {
        let next = order.get(i + 1).copied().unwrap_or(u64::MAX);
        let mut strays = 0u64;
        // ALLOC entries without a FREE, by place: cloned and deduplicated blocks have several.
        let mut live: BTreeMap<(u32, u64), Vec<Blkptr>> = BTreeMap::new();
        let mut unknown = 0u64;
        bpobj::for_each(pool, part, &mut |bp| {
            strays += u64::from(bp.birth().0 <= key || bp.birth().0 > next);
            let place = (bp.dva(0).vdev().0, bp.dva(0).offset());
            if !bp.is_freed_entry() {
                live.entry(place).or_default().push(*bp);
            } else if live.get_mut(&place).and_then(Vec::pop).is_none() {
                unknown += 1;
            }
        })?;
        if strays != 0 || unknown != 0 {
            return Err(Error::corrupt(format!(
                "key {key}: {strays} blocks with births of other keys, {unknown} freed that were not there"
            )));
        }
        for bp in live.values().flatten() {
            sum = add3(sum, pool.io.charge(bp));
            f(bp);
        }
    }
    let head = DeadlistPhys::parse(pool.mos.object(list)?.dn.bonus())?;
    let have = [head.used, head.comp, head.uncomp];
    if have != sum {
        return Err(Error::corrupt(format!("it says {have:?}, what lives in it is {sum:?}")));
    }
    Ok(sum)
}

/// Checks the livelists of all clones against their trees.
pub fn check(
    pool: &PoolReader,
    dsl: &Dsl,
    births: &BTreeMap<u64, Births>,
    skipped: &BTreeSet<u64>,
    sink: &mut Sink<'_>,
) {
    for dir in dsl.dirs.values().filter(|d| d.zapified) {
        let checked = check_dir(pool, dsl, dir, births, skipped);
        sink.take(checked.at(|| format!("{}: livelist", dir.name)));
    }
}

fn check_dir(
    pool: &PoolReader,
    dsl: &Dsl,
    dir: &Dir,
    births: &BTreeMap<u64, Births>,
    skipped: &BTreeSet<u64>,
) -> Result<()> {
    let list = zap::map_u64(&pool.mos.object(dir.obj)?)?.get(LIVELIST).copied();
    let Some(list) = list else { return Ok(()) };
    let have = living(pool, list, &mut |_| {})?;
    let head = dir.phys.head_dataset_obj;
    let origin = dsl.datasets.get(&dir.phys.origin_obj);
    let (Some(births), Some(origin), false) = (births.get(&head), origin, skipped.contains(&head)) else {
        return Ok(());
    };
    let want = births.range(origin.phys.creation_txg + 1..).fold([0; 3], |t, (_, z)| add3(t, *z));
    // Embedded blocks are in the uncompressed sum of a tree, and in no list.
    if have[..2] != want[..2] || have[2] > want[2] {
        return Err(Error::corrupt(format!("{have:?} lives in it, in the clone {want:?}")));
    }
    Ok(())
}

/// Claims the blocks of destroyed clones; their space, which `$FREE` has.
pub fn claim(pool: &PoolReader, walk: &mut Walk, sink: &mut Sink<'_>) -> [u64; 3] {
    let Some(Some(obj)) = sink.take(pool.entry_object("com.delphix:deleted_clones")) else { return [0; 3] };
    let Some(lists) = sink.take(zap::map_u64(&obj)) else { return [0; 3] };
    let mut sum = [0; 3];
    for (_, list) in lists {
        sink.note(format!("livelist {list}: of a destroyed clone"));
        let mut blocks = Vec::new();
        let read = living(pool, list, &mut |bp| blocks.push(*bp)).at(|| format!("livelist {list}"));
        sum = sink.take(read).map_or(sum, |z| add3(sum, z));
        for bp in blocks {
            walk.claim(&bp, &|| format!("livelist {list}"), sink);
        }
    }
    sum
}
