//! Rescues: pools damaged so that no import takes them, and copied by `rescue` all the same.
//!
//! A workload makes a pool and a model of its content. Then two kinds of damage are done to its
//! images, each with full knowledge of what it does:
//!
//! * *survivable*: within redundancy: whole devices overwritten, or the sides of a mirror in turns,
//!   or single columns and sectors of blocks ([`plan::survivable`]);
//! * *deadly*: all copies of chosen blocks, with their parity: the newest MOS, the configuration
//!   object, object sets, dnodes, folders, anything; labels and uberblocks, whole devices, the ends
//!   of devices ([`plan::Deadly`]). It goes on until the engine does not import the pool any more.
//!
//! Some pools have an encrypted file system, whose key the rescue is given.
//!
//! From the blocks that were killed it follows which files are *intact*: every block from the
//! object set of the file system down to the last byte of the file is there. The rescue must then
//!
//! * bring back every intact file with every byte, wherever the MOS went;
//! * call nothing good that is not: a file without a finding is as the model has it; a damaged one
//!   is so outside its missing ranges; an older one is as some earlier state has it;
//! * report every file that is not there.
//!
//! That the judge notices what is missing or wrong is tried with planted mistakes ([`Spoil`]).
//!
//! Pools of single devices are made hostile as well ([`crate::surgery`]): whatever is in them, a
//! rescue ends.

mod blocks;
mod judge;
mod plan;

use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use base::Result;
use rescue::{Opts, ScanWhen, Summary};
use sim::{DiskImage, Rng};
use spa::EngineOpts;
use zdb::device::{Device, Labeled, ReadAt};

use crate::campaign::{drive, panic_text};
use crate::judge::Scratch;
use crate::lab::{Lab, POOL, SHAPES, Shape};
use crate::model::PoolModel;
use crate::mutate::{SPAN_MAX, STEPS_MAX, repaired};
use crate::surgery::Patient;
use crate::workload::{Profile, Runner};
use crate::{Check, Fault};
use blocks::Map;
use plan::{Damage, Deadly};

/// Hostile images that are made of a pool.
const HOSTILE: u64 = 12;
/// The longest that a look at one may take.
const HOSTILE_MAX: Duration = Duration::from_secs(120);

/// What the seeds met.
#[derive(Clone, Copy, Default, Debug)]
pub struct Met {
    /// Files of the newest state.
    pub files: u64,
    /// Those whose blocks are all there.
    pub intact: u64,
    /// Those that came back as they were last.
    pub good: u64,
    /// Those that came back older or in part.
    pub partly: u64,
    /// Rescues without any label.
    pub unlabelled: u64,
    /// Pools that the engine does not import any more.
    pub stopped: u64,
    /// Encrypted file systems.
    pub sealed: u64,
}

/// A mistake on purpose, after the rescue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spoil {
    /// A file is removed.
    Remove,
    /// A byte of a file is another one.
    Flip,
    /// A file is longer.
    Lengthen,
    /// The report has no findings.
    Untell,
}

impl Met {
    /// In the order of its fields.
    pub fn figures(&self) -> Vec<u64> {
        vec![self.files, self.intact, self.good, self.partly, self.unlabelled, self.stopped, self.sealed]
    }
}

/// The image of a disk as a device.
pub(crate) struct Image(pub DiskImage);

impl ReadAt for Image {
    fn read_at(&self, off: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.0.read(off, buf);
        Ok(())
    }
}

fn name_of(n: usize) -> PathBuf {
    PathBuf::from(format!("disk{n}.img"))
}

/// An image with its labels.
pub(crate) fn labeled(n: usize, image: &DiskImage) -> Labeled {
    Labeled::scan(Rc::new(Device::over(&name_of(n), image.size(), Box::new(Image(image.clone())))))
}

/// A pool, and its content now and before.
struct Victim {
    images: Vec<DiskImage>,
    /// The newest state last.
    states: Vec<PoolModel>,
    ashift: u8,
    sealed: bool,
}

/// The key of encrypted file systems.
const KEY: &[u8] = b"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
/// One seed in so many has one.
const SEALED: u64 = 4;

fn make(runner: &mut Runner, rng: &mut Rng) -> Check<Victim> {
    let mut states = Vec::new();
    let rounds = rng.between(3, 6);
    let seal = rng.below(SEALED) == 0;
    let sealed = drive(runner, async |r: &mut Runner| {
        r.create().await?;
        let sealed = seal && r.seal(&format!("{POOL}/sealed"), KEY).await?;
        for _ in 0..rounds {
            for _ in 0..rng.between(10, 40) {
                r.step().await?;
                // A txg may end at any time.
                states.push(r.model.clone());
            }
            r.settle().await?;
        }
        r.export().await?;
        states.push(r.model.clone());
        Ok(sealed)
    })?;
    Ok(Victim { images: runner.lab.images(), states, ashift: runner.layout.ashift, sealed })
}

/// Runs a seed on a pool of that shape.
pub fn run_shape(seed: u64, shape: &'static Shape, met: &mut Met) -> Check {
    run(seed, shape, met, None)
}

/// Runs a seed on a pool of that shape, whose labels are gone, and spoils what was rescued; the
/// judge's verdict.
pub fn run_spoilt(seed: u64, shape: &'static Shape, how: Spoil) -> Check {
    run(seed, shape, &mut Met::default(), Some(how))
}

fn run(seed: u64, shape: &'static Shape, met: &mut Met, spoil: Option<Spoil>) -> Check {
    let mut rng = Rng::stream(seed, 0x7e5c);
    let mut runner = Runner::new(seed, Profile::Cuts)?.shaped(seed, shape);
    // Of blocks without a checksum nothing can be said.
    runner.keep_checksums();
    let made = catch_unwind(AssertUnwindSafe(|| make(&mut runner, &mut rng)));
    let victim = match made {
        Ok(Ok(victim)) => victim,
        Ok(Err(e)) => {
            std::mem::forget(runner);
            return Err(e);
        }
        Err(panic) => {
            std::mem::forget(runner);
            return Err(format!("panic: {}", panic_text(&*panic)));
        }
    };
    drop(runner);
    let map = Map::of(&victim.images, shape)?;
    let mut damage = Damage::new(victim.images.clone(), shape, victim.ashift);
    let mut panics = Ok(());
    let mut imports = |damage: &Damage| match imports(damage, seed) {
        Ok(so) => so,
        Err(e) => {
            panics = Err(e);
            false
        }
    };
    match spoil {
        None => {
            plan::survivable(&mut damage, &map, &mut rng);
            plan::deadly(&mut damage, &map, &mut rng, seed / SHAPES.len() as u64 + seed, &mut imports);
            met.stopped += u64::from(!imports(&damage));
        }
        Some(Spoil::Untell) => plan::apply(&mut damage, &map, &mut rng, &[Deadly::Blocks, Deadly::Folders]),
        Some(_) => plan::apply(&mut damage, &map, &mut rng, &[Deadly::Configs]),
    }
    let what = damage.told.join(", ");
    panics.map_err(|e: Fault| format!("{what}: {e}"))?;
    let scratch = Scratch::new(&format!("rescue{seed}")).map_err(|e| e.to_string())?;
    met.unlabelled += u64::from(damage.unlabelled);
    met.sealed += u64::from(victim.sealed);
    let result = catch_unwind(AssertUnwindSafe(|| start(&damage, shape, scratch.path())));
    let result = result.map_err(|p| format!("{what}: panic: {}", panic_text(&*p)))?;
    if let (Some(how), Ok(summary)) = (spoil, &result) {
        apply(how, scratch.path(), summary).map_err(|e| format!("spoiling: {e}"))?;
    }
    judge::judge(&victim.states, &map, &damage, result, scratch.path(), met).map_err(|e| format!("{what}: {e}"))?;
    if shape.groups.is_empty() && spoil.is_none() { hostile(&victim, &mut rng, seed) } else { Ok(()) }
}

/// Whether the engine imports the pool all the same, for reading at least. An error if it panics.
fn imports(damage: &Damage, seed: u64) -> Check<bool> {
    let lab = Lab::with_hostile_images(seed, damage.images.clone());
    lab.sim.stop_at_step(Some(STEPS_MAX));
    let opts = EngineOpts::for_memory(1 << 30);
    let run = catch_unwind(AssertUnwindSafe(|| {
        lab.sim.try_block_on_for(SPAN_MAX, async {
            match lab.import(true, opts).await {
                Ok(pool) => {
                    let _ = pool.export().await;
                    true
                }
                Err(_) => false,
            }
        })
    }));
    match run {
        Ok(done) => Ok(done.unwrap_or(false)),
        Err(panic) => {
            std::mem::forget(lab);
            Err(format!("the import panics: {}", panic_text(&*panic)))
        }
    }
}

/// Makes a mistake in what was rescued: in the first file that has content, or in the report.
fn apply(how: Spoil, dir: &Path, summary: &Summary) -> std::io::Result<()> {
    if how == Spoil::Untell {
        let text = std::fs::read_to_string(&summary.json)?;
        let head = text.split("\"findings\"").next().unwrap_or_default();
        return std::fs::write(&summary.json, format!("{head}\"findings\": []}}"));
    }
    let mut todo = vec![dir.to_owned()];
    while let Some(folder) = todo.pop() {
        let mut entries: Vec<PathBuf> =
            std::fs::read_dir(&folder)?.map(|e| e.map(|e| e.path())).collect::<std::io::Result<_>>()?;
        entries.sort();
        for path in entries.into_iter().filter(|p| !p.ends_with(rescue::rescue::RECORD)) {
            let meta = std::fs::symlink_metadata(&path)?;
            if meta.is_dir() {
                todo.push(path);
                continue;
            }
            if !meta.is_file() || meta.len() == 0 {
                continue;
            }
            let file = || std::fs::File::options().read(true).write(true).open(&path);
            return match how {
                Spoil::Remove => std::fs::remove_file(&path),
                Spoil::Lengthen => file()?.set_len(meta.len() + 1),
                _ => {
                    let (file, mut byte) = (file()?, [0]);
                    file.read_exact_at(&mut byte, 0)?;
                    file.write_all_at(&[byte[0] ^ 1], 0)
                }
            };
        }
    }
    Err(std::io::Error::other("no file has content"))
}

/// Images with damage that no checksum shows: a rescue ends, in some way, in time.
fn hostile(victim: &Victim, rng: &mut Rng, seed: u64) -> Check {
    let Ok(patient) = Patient::open(victim.images.clone(), victim.ashift) else { return Ok(()) };
    for n in 0..HOSTILE {
        let (images, what) = repaired(&patient, rng);
        let scratch = Scratch::new(&format!("hostile{seed}-{n}")).map_err(|e| e.to_string())?;
        let devices = images.iter().enumerate().map(|(n, i)| labeled(n, i)).collect();
        let opts = Opts { dir: scratch.path().to_owned(), dry_run: true, scan: ScanWhen::Always, ..Opts::default() };
        let begun = Instant::now();
        let mut open = |_: &Path| Err(base::Error::not_found("no such disk"));
        let run = AssertUnwindSafe(|| rescue::rescue(devices, &mut open, &opts, &mut |_| {}).map(drop));
        if let Err(p) = catch_unwind(run) {
            return Err(format!("hostile {n}: {what}: panic: {}", panic_text(&*p)));
        }
        if begun.elapsed() > HOSTILE_MAX {
            return Err(format!("hostile {n}: {what}: took {} s", begun.elapsed().as_secs()));
        }
    }
    Ok(())
}

/// Starts the rescue.
fn start(damage: &Damage, shape: &Shape, dir: &Path) -> Result<Summary> {
    let images = &damage.images;
    let key = Scratch::new("key").map_err(|e| base::Error::new(base::ErrorKind::Io, e.to_string()))?;
    let key_file = key.path().join("key");
    std::fs::write(&key_file, KEY).map_err(|e| base::Error::new(base::ErrorKind::Io, e.to_string()))?;
    let opts = Opts {
        dir: dir.to_owned(),
        key_files: vec![key_file],
        layout: if damage.unlabelled { plan::words(shape, images.len()) } else { Vec::new() },
        scan: ScanWhen::Auto,
        ..Opts::default()
    };
    let mut open = |path: &Path| {
        let n = (0..images.len()).find(|&n| path == name_of(n));
        n.map(|n| labeled(n, damage.image(n))).ok_or_else(|| base::Error::not_found("no such disk"))
    };
    let devices = (0..images.len()).map(|n| labeled(n, damage.image(n))).collect();
    rescue::rescue(devices, &mut open, &opts, &mut |_| {})
}
