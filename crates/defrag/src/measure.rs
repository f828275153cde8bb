//! What became of the files of a run, by the maps of the pool after it.
//!
//! The same as in a plan, of the places as they are: runs, the time of reading the same share of
//! each file in the simulator, bytes, free space.

use base::{Nanos, Result};
use zdb::PoolReader;
use zdb::dsl::Dsl;

use crate::extents::{Runs, total};
use crate::pool_plan::{FreeSpace, Opts, Prediction, Sample, Windows};
use crate::predict::read_times;
use crate::space;
use crate::survey::{each_place, heads, snapshot_of};
use crate::tops::Layout;

/// What there is after a run.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Measured {
    /// Files that could be read.
    pub(crate) files: u64,
    /// Their runs.
    pub(crate) runs: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// The time of reading a sample of them; `now` and `after` are the same.
    pub(crate) read: Option<Prediction>,
    /// Free space.
    pub(crate) free: FreeSpace,
}

/// Looks at the files with these numbers in a plan, datasets' objects and objects.
///
/// # Errors
/// As [`crate::plan()`].
pub(crate) fn measure(pool: &PoolReader, files: &[(usize, (u64, u64))], opts: &Opts) -> Result<Measured> {
    let layout = Layout::of(pool);
    let free = FreeSpace::of(&space::load(pool, &layout)?);
    let dsl = Dsl::load(pool)?;
    let heads = heads(&dsl);
    let object = |id: (u64, u64)| {
        let head = heads.iter().find(|d| d.obj == id.0)?;
        let os = pool.open_dataset(&head.name, head.obj, &head.phys.bp).ok()?;
        Some((os.object(id.1).ok()?, snapshot_of(head)))
    };
    let mut found = Vec::new();
    for &(n, id) in files {
        let Some((obj, snapshot)) = object(id) else { continue };
        let mut runs = Runs::default();
        let walked = each_place(pool, &obj, snapshot, &mut |place| {
            runs.push(place, false);
            Ok(())
        });
        if walked.is_ok() {
            found.push((n, id, runs));
        }
    }
    let blocks = total(found.iter().map(|f| f.2.blocks));
    let mut sample = Sample::default();
    for (n, id, _) in found.iter().filter(|_| opts.disk.is_some()) {
        let Some((obj, snapshot)) = object(*id) else { continue };
        let mut windows = Windows::new(*n as u64, (opts.sample, blocks));
        each_place(pool, &obj, snapshot, &mut |place| {
            windows.push(&mut sample, place, place);
            Ok(())
        })?;
    }
    let read = match &opts.disk {
        Some(disk) if sample.blocks > 0 => {
            let bytes = total(sample.now.iter().flatten().map(|p| p.lsize));
            let now = Nanos(read_times(&layout, disk, &sample.now)?.iter().map(|t| t.0).sum());
            Some(Prediction { model: disk.name.clone(), blocks: sample.blocks, bytes, now, after: now })
        }
        _ => None,
    };
    let sum = |f: fn(&Runs) -> u64| total(found.iter().map(|r| f(&r.2)));
    Ok(Measured { files: found.len() as u64, runs: sum(|r| r.runs), bytes: sum(|r| r.bytes), read, free })
}
