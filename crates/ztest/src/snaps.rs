//! Snapshots, clones, promotions, rollbacks and destroys in random order, compared with a model and
//! with the independent checker.
//!
//! The model is a tree of file systems with the names and bytes of their files now and at each
//! snapshot, and with where clones come from. Every few operations everything is read back, and the
//! devices go to the checker of `zdb`, which recomputes every figure of space from the blocks.
//!
//! In half of the pools files are also written anew and keep the logical births of their blocks:
//! then the stream between a snapshot before and one after it has none of them. In a third of them
//! vdevs with data are removed meanwhile.
//!
//! With [`cuts`] one destroy or rollback is recorded and cut at every completion: afterwards the
//! pool holds the state before or after it, the work goes on, and nothing is leaked.

mod cut;
mod foreign;
mod model;
mod ops;
mod removal;
mod rewrite;

use std::path::Path;
use std::rc::Rc;

use base::{ErrorKind, Nanos};
use dsl::crypto::KeyMaterial;
use dsl::props::PropValue;
use sim::{DiskImage, Rng};
use spa::Pool;
use zdb::device::{Device, Labeled, ReadAt};
use zdb::{CheckOpts, CheckReport, OpenOpts, PoolReader};
use zpl::{Cred, MountOpts, Zfs};

pub use self::cut::{CUTS, Cut, cuts};
pub use self::foreign::{Changed, load_images, run_named, run_on};
pub use self::model::Model;
use self::model::{Files, Fs, compare};
use crate::Check;
use crate::judge::{self, Level, Verdict};
use crate::lab::{Lab, Layout, POOL, new_fs};
use crate::reference::without_table;
use crate::surgery::SPARE;

struct Image(DiskImage);

impl ReadAt for Image {
    fn read_at(&self, off: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.0.read(off, buf);
        Ok(())
    }
}

/// Runs the independent checker on these disks.
pub fn check_images(images: &[DiskImage]) -> Check {
    check_partly(images).map(|_| ())
}

/// The same; true if a destroyed file system or clone is freed in part. The checker does not walk
/// the rest of a file system, which then looks leaked: only zdb can judge that.
pub(crate) fn check_partly(images: &[DiskImage]) -> Check<bool> {
    judge_partly(report_on(images)?)
}

/// The same in a txg that changes labels: a cut may leave some torn, or newer than the uberblock.
pub(crate) fn check_between_labels(images: &[DiskImage]) -> Check<bool> {
    let mut report = report_on(images)?;
    let all = report.errors.len();
    report.errors.retain(|e| !e.contains(".img label "));
    report.error_count -= (all - report.errors.len()) as u64;
    judge_partly(report)
}

fn judge_partly(report: CheckReport) -> Check<bool> {
    let in_part = report.notes.iter().any(|n| n.contains("freed in part"));
    if in_part && report.errors.iter().all(|e| e.starts_with("leaked: ")) {
        return Ok(true);
    }
    if report.error_count > 0 || report.leaked > 0 {
        let some: Vec<String> = report.errors.into_iter().take(12).collect();
        return Err(format!(
            "checker: {} errors, {} bytes leaked: {}",
            report.error_count,
            report.leaked,
            some.join(" | ")
        ));
    }
    Ok(report.notes.iter().any(|n| n.contains("of a destroyed clone")))
}

/// Bytes of blocks without references that wait in the logs of dedup tables, in a pool in which the
/// checker finds nothing wrong; 0 if it finds something. None if it cannot read the pool.
pub(crate) fn waiting(images: &[DiskImage]) -> Option<u64> {
    let report = report_on(images).ok()?;
    Some(if report.is_clean() { report.waiting } else { 0 })
}

/// What the independent checker finds on these disks; an error if it cannot open the pool.
fn report_on(images: &[DiskImage]) -> Check<CheckReport> {
    let labeled = images.iter().enumerate().map(|(n, image)| {
        let (path, image) = (format!("disk{n}.img"), without_table(image));
        Labeled::scan(Rc::new(Device::over(Path::new(&path), image.size(), Box::new(Image(image)))))
    });
    let pool = PoolReader::from_devices(labeled.collect(), &OpenOpts::default()).map_err(|e| format!("zdb: {e}"))?;
    Ok(zdb::check(&pool, &CheckOpts::default(), &mut |_| {}))
}

/// A seed's pool and model.
pub struct Snaps {
    lab: Rc<Lab>,
    layout: Layout,
    pool: Option<Rc<Pool>>,
    rng: Rng,
    model: Model,
    /// Name of the pool.
    root: String,
    next: u64,
    /// Of pools that vdevs are removed from: draws that.
    removals: Option<Rng>,
    trace: Vec<String>,
}

pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    // Half of it compresses.
    (0..len).map(|i| if i % 512 < 256 { rng.next_u64() as u8 } else { 7 }).collect()
}

impl Snaps {
    /// A new world.
    pub fn new(seed: u64) -> Snaps {
        let mut rng = Rng::new(seed ^ 0x5eed_cafe);
        let mut layout = Layout::draw(&mut rng, 128 << 20);
        if rng.percent(60) {
            layout.features = ondisk::feature::features_of_2_1();
            if rng.percent(50) {
                use ondisk::feature::FeatureId::{BookmarkV2, BookmarkWritten};
                layout.features.extend([BookmarkV2, BookmarkWritten]);
            }
        }
        let lab = Rc::new(Lab::new(seed, &layout));
        Snaps {
            lab,
            layout,
            pool: None,
            rng,
            model: Model::default(),
            root: POOL.to_string(),
            next: 1,
            removals: None,
            trace: Vec::new(),
        }
    }

    /// The same; if [`has_rewrites`], with the feature physical_rewrite.
    fn with_rewrites(mut self, seed: u64) -> Snaps {
        let more = has_rewrites(seed).then_some(ondisk::feature::FeatureId::PhysicalRewrite);
        self.layout.features.extend(more);
        self
    }

    fn pool(&self) -> Rc<Pool> {
        self.pool.clone().expect("a pool is made first")
    }
    fn note(&mut self, what: String) {
        if std::env::var_os("ZTEST_TRACE").is_some() {
            eprintln!("{what}");
        }
        self.trace.push(what);
        let excess = self.trace.len().saturating_sub(40);
        self.trace.drain(..excess);
    }
    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    async fn create(&mut self) -> Check {
        // The algorithm that the pool supports: lz4 or lzjb.
        let lz4 = self.layout.features.contains(&ondisk::feature::FeatureId::Lz4Compress);
        let props = vec![("compression".to_string(), PropValue::Num(if lz4 { 15 } else { 3 }))];
        let pool = self.lab.create(&self.layout, props).await.map_err(|e| format!("create: {e:?}"))?;
        self.slow_down(&pool);
        self.pool = Some(pool);
        self.model.fs.insert(POOL.to_string(), Fs::default());
        Ok(())
    }

    fn pick_fs(&mut self) -> String {
        let names: Vec<String> = self.model.fs.keys().cloned().collect();
        names[self.rng.below(names.len() as u64) as usize].clone()
    }
    /// A snapshot: its file system and place.
    fn pick_snap(&mut self) -> Option<(String, usize)> {
        let all: Vec<(String, usize)> =
            self.model.fs.iter().flat_map(|(n, f)| (0..f.snaps.len()).map(move |i| (n.clone(), i))).collect();
        if all.is_empty() { None } else { Some(all[self.rng.below(all.len() as u64) as usize].clone()) }
    }

    async fn with_fs<T>(&self, name: &str, f: impl AsyncFnOnce(&Zfs) -> base::Result<T>) -> Check<T> {
        let ds = self.pool().dsl().find(name).map_err(|e| format!("{name}: {e:?}"))?;
        let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await.map_err(|e| format!("{name}: open: {e:?}"))?;
        let got = f(&fs).await.map_err(|e| format!("{name}: {e:?}"))?;
        fs.unmount().await.map_err(|e| format!("{name}: unmount: {e:?}"))?;
        Ok(got)
    }

    async fn read_files(&self, fs: &Zfs) -> base::Result<Files> {
        let mut out = Files::new();
        for n in 0..6 {
            let file = format!("f{n}");
            let Ok(attr) = fs.lookup(fs.root(), file.as_bytes()).await else { continue };
            let mut bytes = Vec::new();
            while (bytes.len() as u64) < attr.size {
                let parts = fs.read(attr.obj, bytes.len() as u64, attr.size - bytes.len() as u64).await?;
                let before = bytes.len();
                parts.iter().for_each(|p| bytes.extend_from_slice(p));
                if bytes.len() == before {
                    break;
                }
            }
            out.insert(file, bytes);
        }
        Ok(out)
    }
    async fn read_head(&self, name: &str) -> Check<Files> {
        self.with_fs(name, async |fs| self.read_files(fs).await).await
    }

    /// Reads everything and compares.
    async fn compare(&self) -> Check {
        compare(&self.pool(), &self.model, self).await
    }

    fn agree<T>(&self, what: &str, want: Result<(), ErrorKind>, got: base::Result<T>) -> Check<bool> {
        agree(what, want, got)
    }

    async fn reimport(&mut self) -> Check {
        self.note("export, import".into());
        let pool = self.pool.take().expect("a pool is made first");
        pool.export().await.map_err(|e| format!("export: {e:?}"))?;
        drop(pool);
        let pool = self.lab.import(false, self.layout.opts()).await.map_err(|e| format!("import: {e:?}"))?;
        unlock(&pool).await?;
        self.slow_down(&pool);
        self.pool = Some(pool);
        Ok(())
    }

    /// Makes freeing in the background take many txgs, and the livelists of clones have many small
    /// parts.
    fn slow_down(&mut self, pool: &Pool) {
        if self.rng.percent(70) {
            let blocks = 1 + self.rng.below(20);
            pool.dsl().set_freed_per_txg(blocks as usize);
            let core = pool.dsl().core();
            core.livelist_entries.set(2 * blocks);
            core.livelist_shared.set(if blocks.is_multiple_of(3) { Some(50) } else { None });
        }
    }

    /// The devices as they are now, judged.
    async fn check(&self) -> Check {
        self.pool().sync().await.map_err(|e| format!("sync: {e:?}"))?;
        check_images(&self.lab.images())
    }

    async fn run(&mut self, ops: u64) -> Check {
        self.create().await?;
        for n in 0..ops {
            self.step().await.map_err(|e| format!("operation {n}: {e}"))?;
            if n % 6 == 5 {
                self.change_removal().await.map_err(|e| format!("after operation {n}: {e}"))?;
            }
            if n % 8 == 7 {
                self.compare().await.map_err(|e| format!("after operation {n}: {e}"))?;
                self.check().await.map_err(|e| format!("after operation {n}: {e}"))?;
            }
        }
        self.reimport().await?;
        self.drain().await?;
        self.compare().await?;
        self.check().await?;
        self.pool.take().expect("there").export().await.map_err(|e| format!("export: {e:?}"))
    }

    /// Waits until nothing is freed in the background any more.
    async fn drain(&self) -> Check {
        for _ in 0..10_000 {
            if !self.pool().dsl().has_freeing() {
                return Ok(());
            }
            self.pool().sync().await.map_err(|e| format!("sync: {e:?}"))?;
        }
        Err("freeing in the background does not end".into())
    }
}

/// Whether the engine and the model agree about success; running out of space is the engine's own
/// affair.
pub(crate) fn agree<T>(what: &str, want: Result<(), ErrorKind>, got: base::Result<T>) -> Check<bool> {
    match (want, got) {
        (Ok(()), Ok(_)) => Ok(true),
        (_, Err(e)) if is_full(&e) => Ok(false),
        (Err(kind), Err(e)) if e.kind() == kind => Ok(false),
        (want, Ok(_)) => Err(format!("{what}: succeeded, should be {want:?}")),
        (want, Err(e)) => Err(format!("{what}: {e:?}, should be {want:?}")),
    }
}

pub(crate) fn is_full(e: &base::Error) -> bool {
    matches!(e.kind(), ErrorKind::NoSpace | ErrorKind::Quota)
}

/// Loads every key of a pool of the collection; pools that are made here have none.
async fn unlock(pool: &Pool) -> Check {
    let say = |e: base::Error| format!("{e:?}");
    let dsl = pool.dsl();
    for root in dsl.encryption_roots(&dsl.root().name()).map_err(say)? {
        let dir = dsl.find_dir(&root).map_err(say)?;
        let info = dsl.crypt_info(&dir).ok_or_else(|| format!("{root} is not encrypted"))?;
        let load = async |key: &'static str| dsl.load_key(&root, &KeyMaterial::new(key.as_bytes()), false).await;
        if load(crate::reference::key(info.format)).await.is_err() {
            load(crate::foreign::KEY).await.map_err(|e| format!("key of {root}: {e:?}"))?;
        }
    }
    Ok(())
}

/// The longest that a seed may take, in virtual time.
pub(crate) const SPAN_MAX: Nanos = Nanos::from_secs(24 * 3600);

/// Whether the pool of a seed has the feature physical_rewrite, which the zdb of 2.1 does not know.
pub fn has_rewrites(seed: u64) -> bool {
    Rng::stream(seed, 0x5041).percent(50)
}

/// Judges the disks of a seed, with a zdb that knows what is on them.
pub fn judge(images: &[DiskImage], level: Level, seed: u64) -> Verdict {
    let name = format!("snaps{seed}");
    match level {
        Level::Zdb | Level::Full if has_rewrites(seed) => judge::judge24(images, &name, POOL),
        _ => judge::judge(images, level, &name),
    }
}

/// Runs a seed; its disks at the end, exported.
pub fn run_seed(seed: u64, ops: u64) -> Result<Vec<DiskImage>, String> {
    let mut snaps = Snaps::new(seed).with_rewrites(seed).with_removals(seed);
    let lab = snaps.lab.clone();
    let run = std::panic::AssertUnwindSafe(|| {
        lab.sim.try_block_on_for(SPAN_MAX, snaps.run(ops)).map_err(|report| format!("stalled: {report}"))?
    });
    let why = match std::panic::catch_unwind(run) {
        Ok(Ok(())) => return Ok(lab.images()),
        Ok(Err(e)) => e,
        Err(panic) => format!("panic: {}", crate::campaign::panic_text(&*panic)),
    };
    let why = format!("seed {seed}: {why}\n    after: {}", snaps.trace.join("\n           "));
    std::mem::forget((snaps, lab));
    Err(why)
}

/// The disks after `ops` operations, and their layout. Blocks may still wait to be freed.
/// `rewrites`: if [`has_rewrites`], the pool has the feature for them.
pub fn images_after(seed: u64, ops: u64, rewrites: bool) -> Check<(Vec<DiskImage>, Layout)> {
    let mut snaps = Snaps::new(seed);
    if rewrites {
        snaps = snaps.with_rewrites(seed);
    }
    let lab = snaps.lab.clone();
    let ran = lab.sim.try_block_on_for(SPAN_MAX, async {
        snaps.create().await?;
        for n in 0..ops {
            snaps.step().await.map_err(|e| format!("operation {n}: {e}"))?;
        }
        let pool = snaps.pool.take().expect("there");
        spare_space(&pool, &lab, seed).await.map_err(|e| format!("spare space: {e:?}"))?;
        pool.export().await.map_err(|e| format!("export: {e:?}"))
    });
    ran.map_err(|report| format!("stalled: {report}"))??;
    Ok((lab.images(), snaps.layout.clone()))
}

/// The file system of [`images_after`] whose space is there for rewritten blocks.
pub const SPARE_FS: &str = "lab/spare";

async fn spare_space(pool: &Rc<Pool>, lab: &Lab, seed: u64) -> base::Result<()> {
    let ds = pool.dsl().create_fs(SPARE_FS, Vec::new(), new_fs(&lab.sim)).await?;
    let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await?;
    let file = fs.create(fs.root(), b"spare", 0o644, &Cred::new(0, 0), false).await?;
    let mut data = pattern(seed, 2 << 20);
    data.chunks_mut(128 << 10).for_each(|record| record[..SPARE.len()].copy_from_slice(SPARE));
    let written = fs.write(file.obj, 0, vec![bdev::Buf::copy_from(&data).freeze()], false).await;
    fs.unmount().await?;
    written.map(drop)
}
