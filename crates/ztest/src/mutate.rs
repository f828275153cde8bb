//! Damaged images: with any content on disk, importing and reading it ends in an error that names
//! its place or in the original data.
//!
//! The images of a few recorded runs are damaged in seeded ways. Half of the damage is left visible
//! to checksums; then a read must give an error or exactly the state of the txg that the import
//! chose, and an import of an older state must report it. The other half repairs every checksum
//! above (`surgery`), so that parsers see the damage; then any content may come out, but no panic,
//! no hang and no unbounded memory.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use base::{Nanos, ObjectId, Txg};
use ondisk::label::{LABELS, label_offsets};
use ondisk::object_type::ObjectType;
use sim::{DiskImage, Rng};
use spa::Pool;
use zpl::{FileKind, MountOpts, Zfs};

use crate::campaign::panic_text;
use crate::cuts::{Recording, record};
use crate::lab::Lab;
use crate::surgery::Patient;
use crate::{Check, Fault, tree};

/// Virtual time that a look at an image may take.
pub(crate) const SPAN_MAX: Nanos = Nanos::from_secs(3600);
/// Turns that it may take.
pub(crate) const STEPS_MAX: u64 = 20_000_000;
/// Bytes of resident memory that it may need.
const MEMORY_MAX: u64 = 1 << 30;
/// Entries that are read of one directory, bytes of one file.
const ENTRIES_MAX: usize = 2000;
const BYTES_MAX: u64 = 8 << 20;
/// Objects that are looked at.
const OBJECTS_MAX: usize = 3000;

/// A pool to damage.
pub struct Victim {
    rec: Recording,
    patient: Patient,
    /// Seeds it.
    pub seed: u64,
}

impl Victim {
    /// Records a run and reads its tree.
    pub fn new(seed: u64) -> Check<Victim> {
        // Damage to data without checksums shows nowhere: a run with such data is no victim,
        // another takes its place.
        for run in 0..16 {
            let rec = record(seed + run * 1_000_000, 12, false)?;
            let patient = Patient::open(rec.images.clone(), rec.layout.ashift)?;
            if !patient.unchecked && !rec.lacks_checksums() {
                return Ok(Victim { rec, patient, seed });
            }
        }
        Err(format!("seed {seed}: every run writes data without checksums"))
    }
}

/// Counts of the outcomes.
#[derive(Clone, Copy, Default, Debug)]
pub struct MutateTally {
    /// Mutations.
    pub mutations: u64,
    /// The import was refused.
    pub refused: u64,
    /// Imported, something could not be read.
    pub errors: u64,
    /// Imported and all as it was.
    pub intact: u64,
    /// Repaired damage that led to other content without an error.
    pub other: u64,
    /// Findings.
    pub bad: u64,
}

impl MutateTally {
    /// Adds up.
    pub fn add(&mut self, o: MutateTally) {
        self.mutations += o.mutations;
        self.refused += o.refused;
        self.errors += o.errors;
        self.intact += o.intact;
        self.other += o.other;
        self.bad += o.bad;
    }
}

pub(crate) fn noise(rng: &mut Rng, data: &mut [u8]) {
    if data.is_empty() {
        return;
    }
    let len = data.len() as u64;
    match rng.below(6) {
        0 | 1 => {
            for _ in 0..rng.between(1, 6) {
                let at = rng.below(len) as usize;
                data[at] ^= 1 << rng.below(8);
            }
        }
        2 | 3 => {
            // A field: a number that parsers may not expect.
            let words = (len / 8).max(1);
            let at = (rng.below(words) * 8) as usize;
            let bytes = (1usize << rng.below(4)).min(data.len() - at);
            let old = data[at..at + bytes].iter().rev().fold(0u64, |v, b| v << 8 | u64::from(*b));
            let values = [
                0,
                1,
                u64::MAX,
                1 << 63,
                0x7fff_ffff,
                old.wrapping_add(1),
                old.wrapping_sub(1),
                old << 1,
                rng.next_u64(),
            ];
            let value = values[rng.below(values.len() as u64) as usize];
            data[at..at + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
        }
        4 => {
            let at = rng.below(len) as usize;
            let end = (at + rng.between(1, 512) as usize).min(data.len());
            rng.fill(&mut data[at..end]);
        }
        _ => {
            let at = rng.below(len) as usize;
            let end = (at + rng.between(1, 512) as usize).min(data.len());
            data[at..end].fill(if rng.percent(50) { 0 } else { 0xff });
        }
    }
}

/// A field in the part of a block that is in use: zeros are the larger part of most.
fn noise_in_use(rng: &mut Rng, data: &mut [u8]) {
    let used: Vec<usize> =
        data.chunks(64).enumerate().filter(|(_, c)| c.iter().any(|b| *b != 0)).map(|(n, _)| n * 64).collect();
    if used.is_empty() || rng.percent(20) {
        return noise(rng, data);
    }
    let at = used[rng.below(used.len() as u64) as usize];
    let end = (at + 64).min(data.len());
    noise(rng, &mut data[at..end]);
}

/// Damage that checksums see.
fn plain(v: &Victim, rng: &mut Rng) -> (Vec<DiskImage>, String) {
    let mut images = v.patient.images.clone();
    let mut what = Vec::new();
    for _ in 0..rng.between(1, 4) {
        let disk = rng.below(images.len() as u64) as usize;
        let size = images[disk].size();
        // Where something is: a block, a label, or anywhere.
        let (at, len) = match rng.below(10) {
            0..=6 => {
                let block = &v.patient.blocks[rng.below(v.patient.blocks.len() as u64) as usize];
                let dvas: Vec<_> = block.bp.dvas().filter(|d| d.vdev().0 as usize == disk).collect();
                match dvas.get(rng.below(3) as usize % dvas.len().max(1)) {
                    Some(d) => (d.offset() + ondisk::label::DATA_START, block.bp.psize()),
                    None => continue,
                }
            }
            7 | 8 => {
                let label = label_offsets(size)[rng.below(LABELS as u64) as usize];
                (label + (16 << 10) + rng.below(200 << 10), 4096)
            }
            _ => (rng.below(size - 131_072), rng.between(1, 131_072)),
        };
        let len = len.min(size - at);
        match rng.below(10) {
            0..=4 => {
                let mut bytes = images[disk].read_vec(at, len as usize);
                noise(rng, &mut bytes);
                images[disk].write(at, &bytes);
                what.push(format!("noise at {at:#x} of disk {disk}"));
            }
            5 | 6 => {
                let mut bytes = vec![0; len as usize];
                if rng.percent(70) {
                    rng.fill(&mut bytes);
                }
                images[disk].write(at, &bytes);
                what.push(format!("{len} bytes overwritten at {at:#x} of disk {disk}"));
            }
            7 | 8 => {
                let other = &v.patient.blocks[rng.below(v.patient.blocks.len() as u64) as usize];
                let d = other.bp.dva(0);
                let (od, oat) = (d.vdev().0 as usize, d.offset() + ondisk::label::DATA_START);
                let len = len.min(other.bp.psize()) as usize;
                let (a, b) = (images[disk].read_vec(at, len), images[od].read_vec(oat, len));
                images[disk].write(at, &b);
                images[od].write(oat, &a);
                what.push(format!("{len} bytes at {at:#x} of disk {disk} and {oat:#x} of disk {od} swapped"));
            }
            _ if rng.percent(30) => {
                let left = rng.below(size) & !511;
                images[disk].resize(left);
                what.push(format!("disk {disk} cut off at {left:#x}"));
                break;
            }
            _ => {
                // All copies of a block.
                let n = rng.below(v.patient.blocks.len() as u64) as usize;
                let bp = v.patient.blocks[n].bp;
                for d in bp.dvas() {
                    images[d.vdev().0 as usize].corrupt(d.offset() + ondisk::label::DATA_START, 64.min(bp.psize()));
                }
                what.push(format!("all copies of block {n} ({} level {})", bp.otype(), bp.level()));
            }
        }
    }
    (images, what.join(", "))
}

/// Damage that they do not see.
pub(crate) fn repaired(p: &Patient, rng: &mut Rng) -> (Vec<DiskImage>, String) {
    match rng.below(20) {
        0 => {
            let seed = rng.next_u64();
            let images = p.with_uberblock(|slot| noise(&mut Rng::new(seed), &mut slot[8..216]));
            return (images, "uberblock".into());
        }
        1 | 2 => {
            let seed = rng.next_u64();
            let all = rng.percent(50);
            let labels = std::array::from_fn(|_| all || rng.percent(50));
            let images = p.with_labels(labels, |region| {
                let used = region.iter().rposition(|b| *b != 0).map_or(64, |n| n.min(4000) + 1);
                noise(&mut Rng::new(seed), &mut region[..used]);
            });
            return (images, format!("label configurations {labels:?}"));
        }
        _ => {}
    }
    // Each kind of block alike, not each block: most are indirect or dnodes.
    let mut kinds: BTreeMap<(u8, u8), Vec<usize>> = BTreeMap::new();
    for (n, b) in p.blocks.iter().enumerate() {
        kinds.entry((b.bp.otype().0, b.bp.level().min(2))).or_default().push(n);
    }
    let kinds: Vec<_> = kinds.into_iter().collect();
    let (_, list) = &kinds[rng.below(kinds.len() as u64) as usize];
    let n = list[rng.below(list.len() as u64) as usize];
    let bp = p.blocks[n].bp;
    let name = format!("block {n} ({} level {})", bp.otype(), bp.level());
    if bp.compress_raw() != ondisk::blkptr::COMPRESS_OFF && rng.percent(25) {
        let images = p.with_stored(n, |raw| {
            let head = raw.len().min(64);
            if rng.percent(50) { noise(rng, &mut raw[..head]) } else { noise(rng, raw) }
        });
        return (images, format!("{name}, compressed bytes"));
    }
    let mut data = p.blocks[n].data.clone();
    match rng.below(12) {
        0 => {
            let other = &p.blocks[rng.below(p.blocks.len() as u64) as usize].data;
            let len = data.len().min(other.len());
            data[..len].copy_from_slice(&other[..len]);
            return (p.with_content(n, data), format!("{name}, content of another"));
        }
        1 => {
            data.fill(0);
            return (p.with_content(n, data), format!("{name}, zeros"));
        }
        2 if data.len() >= 1024 => {
            let units = data.len() as u64 / 512;
            let (a, b) = (rng.below(units) as usize * 512, rng.below(units) as usize * 512);
            for i in 0..512 {
                data.swap(a + i, b + i);
            }
            return (p.with_content(n, data), format!("{name}, two parts swapped"));
        }
        _ => {}
    }
    for _ in 0..rng.between(1, 3) {
        noise_in_use(rng, &mut data);
    }
    (p.with_content(n, data), name)
}

/// Reads everything and goes on after errors; returns the errors.
async fn read_all(pool: &Rc<Pool>) -> Vec<String> {
    let mut errors = Vec::new();
    let mut seen = 0;
    for ds in pool.dsl().all() {
        let name = ds.name();
        if let Err(e) = pool.dsl().snapshots(&ds).await {
            errors.push(format!("{name}: snapshots: {e}"));
        }
        let _ = (ds.available(), ds.phys(), ds.dir().local_props(), ds.objset_props());
        let opts = MountOpts { readonly: true, ..MountOpts::from_props(&ds) };
        let fs = match Zfs::open(&ds, opts).await {
            Ok(fs) => fs,
            Err(e) => {
                errors.push(format!("{name}: {e}"));
                continue;
            }
        };
        let _ = fs.statfs();
        let mut todo = vec![fs.root()];
        let mut known = std::collections::BTreeSet::from([fs.root()]);
        while let Some(obj) = todo.pop() {
            seen += 1;
            if seen > OBJECTS_MAX {
                break;
            }
            read_object(&fs, obj, &mut errors, &mut |child| {
                if known.insert(child) {
                    todo.push(child);
                }
            })
            .await;
        }
        // Objects that no name leads to.
        let mut at = ObjectId(0);
        for _ in 0..OBJECTS_MAX {
            match fs.objset().objects(at).await {
                Ok(Some(obj)) if obj >= at => {
                    at = ObjectId(obj.0.saturating_add(1));
                    if let Err(e) = fs.objset().hold(obj).await {
                        errors.push(format!("{name}: {e}"));
                    }
                }
                Ok(Some(obj)) => {
                    errors.push(format!("{name}: object {obj} comes after {at}"));
                    break;
                }
                Ok(None) => break,
                Err(e) => {
                    errors.push(format!("{name}: {e}"));
                    break;
                }
            }
        }
        if let Err(e) = fs.unmount().await {
            errors.push(format!("{name}: {e}"));
        }
    }
    errors
}

async fn read_object(fs: &Zfs, obj: ObjectId, errors: &mut Vec<String>, child: &mut dyn FnMut(ObjectId)) {
    let a = match fs.getattr(obj).await {
        Ok(a) => a,
        Err(e) => return errors.push(format!("object {obj}: {e}")),
    };
    match a.kind {
        FileKind::Dir => {
            let mut cookie = 0;
            let mut count = 0;
            loop {
                match fs.readdir(obj, cookie, 100).await {
                    Ok(list) if list.is_empty() => break,
                    Ok(list) => {
                        for e in &list {
                            if e.name != b".." {
                                child(e.obj);
                            }
                            count += 1;
                            if count < 200
                                && let Err(e) = fs.lookup(obj, &e.name).await
                            {
                                errors.push(format!("object {obj}: {e}"));
                            }
                        }
                        let next = list.last().map_or(0, |e| e.next_cookie);
                        if next == cookie || count > ENTRIES_MAX {
                            break;
                        }
                        cookie = next;
                    }
                    Err(e) => {
                        errors.push(format!("object {obj}: {e}"));
                        break;
                    }
                }
            }
        }
        FileKind::File => {
            let mut at = 0;
            let mut total = 0;
            // Blocks may have any size: read in small pieces.
            while at < a.size && total < BYTES_MAX {
                match fs.seek_data(obj, at).await {
                    Ok(Some(data)) => at = data.max(at),
                    Ok(None) => break,
                    Err(e) => {
                        errors.push(format!("object {obj}: {e}"));
                        break;
                    }
                }
                if let Err(e) = fs.read(obj, at, 128 << 10).await {
                    errors.push(format!("object {obj}: {e}"));
                }
                at = at.saturating_add(128 << 10);
                total += 128 << 10;
            }
        }
        FileKind::Symlink => {
            if let Err(e) = fs.readlink(obj).await {
                errors.push(format!("object {obj}: {e}"));
            }
        }
        _ => {}
    }
    match fs.listxattr(obj).await {
        Ok(names) => {
            for name in names.iter().take(50) {
                if let Err(e) = fs.getxattr(obj, name).await {
                    errors.push(format!("object {obj}: {e}"));
                }
            }
        }
        Err(e) => errors.push(format!("object {obj}: {e}")),
    }
}

/// Compares the readable data with the model; returns how much is unreadable.
async fn compare(pool: &Rc<Pool>, rec: &Recording, txg: Txg) -> Check<u64> {
    let mut last = Err(format!("no state of txg {txg} is known"));
    for state in rec.states(txg) {
        last = compare_state(pool, state).await;
        if last.is_ok() {
            return last;
        }
    }
    last
}

async fn compare_state(pool: &Rc<Pool>, state: &crate::model::PoolModel) -> Check<u64> {
    tree::compare_datasets(pool, state)?;
    let mut errors = 0;
    for (name, ds) in &state.datasets {
        let opened = async {
            let handle = pool.dsl().find(name)?;
            let opts = MountOpts { readonly: true, ..MountOpts::from_props(&handle) };
            Zfs::open(&handle, opts).await
        };
        let Ok(fs) = opened.await else {
            errors += 1;
            continue;
        };
        for (ino, m) in &ds.fs.inodes {
            match tree::compare_inode(&fs, *ino, m, ds.atime).await {
                Ok(()) => {}
                Err(e) if tree::is_refusal(&e) => errors += 1,
                Err(e) => return Err(format!("{name}: {e}")),
            }
        }
        let _ = fs.unmount().await;
    }
    Ok(errors)
}

/// Resident memory at its highest, in bytes, since it was last reset.
pub(crate) fn memory_peak() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Why too much memory was used, if so, since the peak was `before`.
pub(crate) fn memory_fault(before: u64) -> Option<String> {
    let peak = memory_peak();
    (peak > before + MEMORY_MAX).then(|| format!("{} MiB of memory", peak >> 20))
}

enum Outcome {
    Refused,
    Errors,
    Intact,
    Other,
}

/// Damages the victim once and looks.
pub fn mutate(v: &Victim, number: u64, tally: &mut MutateTally) -> Option<Fault> {
    tally.mutations += 1;
    let mut rng = Rng::stream(v.seed.wrapping_mul(1 << 20).wrapping_add(number), 99);
    let repair = number % 2 == 1;
    let (images, what) = if repair { repaired(&v.patient, &mut rng) } else { plain(v, &mut rng) };
    let writable = rng.percent(20);
    if std::env::var_os("ZTEST_TRACE").is_some() {
        eprintln!("{number}: {what}");
    }
    let before = memory_peak();
    let sims = images.len();
    let lab = Lab::with_images(number, images, true);
    lab.sim.stop_at_step(Some(STEPS_MAX));
    let result = catch_unwind(AssertUnwindSafe(|| {
        let out = lab.sim.try_block_on_for(SPAN_MAX, look(&lab, v, repair, writable));
        out.map_err(|report| format!("stalled: {report}"))?
    }));
    let why = match result {
        Ok(Ok(outcome)) => {
            match outcome {
                Outcome::Refused => tally.refused += 1,
                Outcome::Errors => tally.errors += 1,
                Outcome::Intact => tally.intact += 1,
                Outcome::Other => tally.other += 1,
            }
            memory_fault(before)
        }
        Ok(Err(e)) => Some(e),
        Err(panic) => {
            std::mem::forget(lab);
            Some(format!("panic: {}", panic_text(&*panic)))
        }
    };
    let how = if writable { "read-write" } else { "read-only" };
    why.map(|why| {
        tally.bad += 1;
        format!("victim {} mutation {number} ({how}, {sims} disks; {what}): {why}", v.seed)
    })
}

async fn look(lab: &Lab, v: &Victim, repair: bool, writable: bool) -> Check<Outcome> {
    let devices: Vec<Rc<dyn bdev::BlockDev>> = lab.disks.iter().map(|d| d.dev()).collect();
    // The newest txg that the intact labels prove committed.
    let mut newest = Txg(0);
    for dev in &devices {
        if let Ok(labels) = spa_labels(&**dev).await {
            newest = newest.max(labels);
        }
    }
    let pool = match lab.import(!writable, v.rec.layout.opts()).await {
        Ok(pool) => pool,
        Err(e) if e.to_string().len() < 8 => return Err(format!("an error without a place: {e:?}")),
        Err(e) => {
            if std::env::var_os("ZTEST_TRACE").is_some() {
                eprintln!("  refused: {e}");
            }
            return Ok(Outcome::Refused);
        }
    };
    // An import for writing has begun a txg of its own.
    let mut txg = pool.uberblock().txg;
    if writable {
        let states = (0..4).map(|n| Txg(txg.0.saturating_sub(n)));
        txg = states.into_iter().find(|t| *t <= v.rec.last()).unwrap_or(txg);
    }
    let outcome = if repair {
        let errors = read_all(&pool).await;
        if std::env::var_os("ZTEST_TRACE").is_some() {
            eprintln!("  errors: {errors:?}");
        }
        if let Some(e) = errors.iter().find(|e| e.len() < 12) {
            return Err(format!("an error without a place: {e}"));
        }
        if errors.is_empty() { Outcome::Other } else { Outcome::Errors }
    } else {
        if !writable && txg < newest && pool.notices().is_empty() {
            return Err(format!("txg {txg} was imported, the newest label is of {newest}, and nothing was said"));
        }
        match compare(&pool, &v.rec, txg).await {
            Ok(0) => Outcome::Intact,
            Ok(_) => Outcome::Errors,
            Err(e) if tree::is_refusal(&e) => Outcome::Errors,
            Err(e) => return Err(format!("txg {txg}: {e}")),
        }
    };
    if writable {
        // Whether it goes or not: it must end.
        let _ = pool.export().await;
    }
    Ok(outcome)
}

async fn spa_labels(dev: &dyn bdev::BlockDev) -> base::Result<Txg> {
    let labels = vdev::labels::read_labels(dev).await?;
    Ok(labels.committed_txg().unwrap_or_default())
}

/// Checks that repairing works: blocks rewritten as they are lead to the same content.
pub fn check_surgery(v: &Victim) -> Check {
    let mut done = std::collections::BTreeSet::new();
    for (n, b) in v.patient.blocks.iter().enumerate() {
        if !done.insert((b.bp.otype().0, b.bp.level())) {
            continue;
        }
        for images in [v.patient.with_content(n, b.data.clone()), v.patient.with_stored(n, |_| {})] {
            let lab = Lab::with_images(1, images, true);
            let out = lab.sim.try_block_on(look(&lab, v, false, false)).map_err(|r| r.to_string())?;
            let name = format!("block {n} ({} level {})", b.bp.otype(), b.bp.level());
            if !matches!(out.map_err(|e| format!("{name}: {e}"))?, Outcome::Intact) {
                return Err(format!("{name}: rewritten as it was, it cannot be read"));
            }
        }
    }
    Ok(())
}

/// Kinds of blocks that the victim has, for reports.
pub fn kinds(v: &Victim) -> Vec<(ObjectType, u8, usize)> {
    let mut map: BTreeMap<(u8, u8), usize> = BTreeMap::new();
    for b in &v.patient.blocks {
        *map.entry((b.bp.otype().0, b.bp.level())).or_default() += 1;
    }
    map.into_iter().map(|((t, l), n)| (ObjectType(t), l, n)).collect()
}
