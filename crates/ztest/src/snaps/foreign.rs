//! Operations on pools of other systems: the model adopts what the pool has, and the checker must
//! find after the operations what it found before.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use base::ObjectId;
use sim::DiskImage;

use super::model::{Files, Fs, Snap};
use super::{SPAN_MAX, Snaps, check_images, unlock};
use crate::Check;
use crate::lab::Lab;

impl Snaps {
    /// Fills the model from an imported pool: names of file systems and snapshots, and the origins
    /// of clones. Existing files are ignored.
    async fn adopt(&mut self) -> Check {
        let pool = self.lab.import(false, self.layout.opts()).await.map_err(|e| match e.to_string() {
            why if why.contains("readonly=on") => format!("read-only: {why}"),
            _ => format!("import: {e:?}"),
        })?;
        unlock(&pool).await?;
        let dsl = pool.dsl().clone();
        self.root = pool.name();
        self.layout.features.retain(|f| pool.features().is_enabled(*f));
        self.pool = Some(pool);
        let say = |e: base::Error| format!("{e:?}");
        let mut ids: BTreeMap<ObjectId, u64> = BTreeMap::new();
        let mut snaps: Vec<(u64, ObjectId, String)> = Vec::new();
        for ds in dsl.all() {
            for snap in dsl.snapshots(&ds).await.map_err(say)? {
                snaps.push((snap.phys().creation_txg, snap.object, snap.name()));
            }
        }
        // Identities follow time, so that bookmarks stand between the right snapshots.
        snaps.sort();
        for (n, (txg, object, _)) in snaps.iter().enumerate() {
            ids.insert(*object, (txg << 16) + n as u64 + 1);
        }
        self.next = (dsl.txg().open_txg().0 + 1000) << 16;
        for ds in dsl.all() {
            let mut f = Fs { foreign: self.is_foreign(&ds.name()).await?, ..Fs::default() };
            for snap in dsl.snapshots(&ds).await.map_err(say)? {
                let holds = dsl.holds(&snap).await.map_err(say)?.into_iter().map(|h| h.tag).collect();
                let deferred = snap.phys().flags & ondisk::dsl::DS_FLAG_DEFER_DESTROY != 0;
                let id = ids[&snap.object];
                f.snaps.push(Snap { id, name: snap.snapname(), files: Files::new(), holds, deferred });
            }
            if let Some(origin) = dsl.origin_of(&ds).await.map_err(say)? {
                f.origin = ids.get(&origin.object).copied();
            }
            for mark in dsl.bookmarks(&ds).await.map_err(say)? {
                f.bookmarks.insert(mark.name.clone(), mark.creation_txg() << 16);
            }
            self.model.fs.insert(ds.name(), f);
        }
        Ok(())
    }
}

/// The disk images in a folder, in order of name.
pub fn load_images(dir: &Path) -> Result<Vec<DiskImage>, String> {
    let say = |e: std::io::Error| format!("{}: {e}", dir.display());
    let mut paths: Vec<_> = std::fs::read_dir(dir).map_err(say)?.filter_map(|e| Some(e.ok()?.path())).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "img"));
    paths.sort();
    let mut out = Vec::new();
    for path in paths {
        let mut image = DiskImage::load(&path).map_err(say)?;
        // A file may end in the middle of a sector, a disk of the laboratory does not; nothing is
        // there.
        image.resize(image.size() / 512 * 512);
        out.push(image);
    }
    Ok(out)
}

/// A foreign pool, after operations.
pub struct Changed {
    /// Its disks, exported.
    pub images: Vec<DiskImage>,
    /// Its name.
    pub pool: String,
}

/// The checker's message for an unsupported layout.
const UNREAD: &str = "is not supported";

/// Disks beside a foreign pool.
const BLANKS: usize = 3;

/// Random operations on a foreign pool; returns its disks at the end, exported.
pub fn run_on(images: Vec<DiskImage>, seed: u64, ops: u64) -> Result<Vec<DiskImage>, String> {
    run_named(images, seed, ops).map(|changed| changed.images)
}

/// The same, with the pool's name. If it cannot be written an error that begins with `read-only: `.
pub fn run_named(images: Vec<DiskImage>, seed: u64, ops: u64) -> Result<Changed, String> {
    let known = check_images(&images).err();
    let mut snaps = Snaps::new(seed);
    let came = images.len();
    // Disks to put in for those that are not there.
    let largest = images.iter().map(DiskImage::size).max().unwrap_or_default();
    let blanks = std::iter::repeat_n(DiskImage::zeroed(largest), BLANKS);
    snaps.lab = Rc::new(Lab::with_images(seed, images.into_iter().chain(blanks).collect(), true));
    snaps.layout.arc_max = 64 << 20;
    let lab = snaps.lab.clone();
    let run = async {
        snaps.adopt().await?;
        for n in 0..ops {
            snaps.step().await.map_err(|e| format!("operation {n}: {e}"))?;
            if n % 10 == 9 {
                snaps.compare().await.map_err(|e| format!("after operation {n}: {e}"))?;
                match snaps.check().await.err() {
                    Some(e) if known.is_none() => return Err(format!("after operation {n}: {e}")),
                    _ => {}
                }
            }
        }
        snaps.reimport().await?;
        snaps.drain().await?;
        if crate::scan::make_whole(&snaps.lab, &snaps.pool()).await.map_err(|e| format!("made whole: {e}"))? {
            for n in 0..ops / 4 {
                snaps.step().await.map_err(|e| format!("operation {n} of the whole pool: {e}"))?;
            }
            snaps.drain().await?;
        }
        snaps.compare().await?;
        snaps.pool.take().expect("there").export().await.map_err(|e| format!("export: {e:?}"))
    };
    let done = std::panic::AssertUnwindSafe(|| {
        lab.sim.try_block_on_for(SPAN_MAX, run).map_err(|report| format!("stalled: {report}"))?
    });
    let why = match std::panic::catch_unwind(done) {
        Ok(Ok(())) => {
            let mut images = lab.images();
            let unused = |image: &DiskImage| image.read_vec(0, 256 << 10).iter().all(|b| *b == 0);
            let put_in: Vec<DiskImage> = images.split_off(came).into_iter().filter(|i| !unused(i)).collect();
            images.extend(put_in);
            let changed = Changed { images, pool: snaps.root.clone() };
            return match (check_images(&changed.images), known) {
                (Ok(()), _) => Ok(changed),
                (Err(now), Some(before)) if now == before => Ok(changed),
                // Pools that the checker cannot read (dRAID) are for the other judges.
                (Err(now), Some(before)) if [&now, &before].iter().all(|e| e.ends_with(UNREAD)) => Ok(changed),
                (Err(now), before) => Err(format!("seed {seed}: {now} (before: {before:?})")),
            };
        }
        Ok(Err(e)) if e.starts_with("read-only: ") => return Err(e),
        Ok(Err(e)) => e,
        Err(panic) => format!("panic: {}", crate::campaign::panic_text(&*panic)),
    };
    let why = format!("seed {seed}: {why}\n    after: {}", snaps.trace.join("\n           "));
    std::mem::forget((snaps, lab));
    Err(why)
}
