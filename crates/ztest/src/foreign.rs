//! Pools that the real `ztest` left behind, of random layouts and in the middle of operations:
//! imported, and verified to the last block. The findings must be those of `zdb -cc`.
//!
//! A third of the seeds damages one device (which redundancy must make good), another third all of
//! them (blocks are lost, and both must report the same ones). A pool that nothing is wrong with is
//! then changed by random operations and judged.
//!
//! Two releases make such pools ([`Maker`]); that of 2.4 also leaves RAID-Z that is expanded or is
//! being expanded.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;

use base::{ErrorKind, Nanos};
use sim::{DiskImage, Rng};
use spa::{EngineOpts, ImportOpts, Pool};

use crate::judge::{self, Level, Scratch};
use crate::lab::Lab;
use crate::reference::judge_change;
use crate::zdb_run;
use crate::{Check, Fault};

/// The name that `ztest` gives its pool.
const POOL: &str = "ztest";
/// The raw key that `ztest` encrypts file systems with (OpenZFS 2.4.4, ztest_wkeydata).
pub(crate) const KEY: &str = "abcdefghijklmnopqrstuvwxyz012345";
/// The longest that anything here may take, in virtual time.
const SPAN_MAX: Nanos = Nanos::from_secs(24 * 3600);
/// Bytes of a sector of the modelled disks.
const SECTOR: u64 = 512;
/// Random operations on a pool without damage.
const OPS: u64 = 40;

/// The options of a layout: mirror copies (0: none; else `ztest` makes mirrors of RAID-Z, which no
/// pool has), RAID disks, parity, kind, top-level vdevs.
type Layout = (&'static str, &'static str, &'static str, &'static str, &'static str);

/// Layouts by seed.
const LAYOUTS: [Layout; 8] = [
    ("2", "1", "1", "raidz", "2"),
    ("0", "4", "1", "raidz", "2"),
    ("0", "5", "2", "raidz", "1"),
    ("0", "6", "3", "raidz", "1"),
    ("0", "7", "1", "draid", "1"),
    ("3", "1", "1", "raidz", "1"),
    ("0", "9", "2", "draid", "1"),
    ("0", "1", "1", "raidz", "3"),
];

/// Layouts that 2.4 has beside them. `eraidz` is a RAID-Z that is expanded now and then.
const LAYOUTS_24: [Layout; 3] =
    [("0", "4", "1", "eraidz", "2"), ("0", "5", "2", "eraidz", "1"), ("0", "4", "1", EXPANDING, "1")];

/// Not a kind of `ztest`: `eraidz` with the option `-X`, which does little but expand.
const EXPANDING: &str = "expanding";

/// The `ztest` that makes the pools, and the zdb of the same release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Maker {
    /// The installed one.
    Installed,
    /// That of OpenZFS 2.4, which `shared/judges/get-zfs24` unpacks.
    V24,
}

impl Maker {
    fn layout(self, seed: u64) -> Layout {
        let seed = seed as usize;
        match self {
            Maker::V24 if seed % 2 == 1 => LAYOUTS_24[seed / 2 % LAYOUTS_24.len()],
            Maker::V24 => LAYOUTS[seed / 2 % LAYOUTS.len()],
            Maker::Installed => LAYOUTS[seed % LAYOUTS.len()],
        }
    }

    fn ztest(self) -> Option<Command> {
        match self {
            Maker::Installed => Some(Command::new("ztest")),
            Maker::V24 => zdb_run::program24("ztest24").map(Command::new),
        }
    }

    fn zdb(self, args: &[&str]) -> Option<(i32, String)> {
        match self {
            Maker::Installed => zdb_run::zdb(args),
            Maker::V24 => zdb_run::zdb24(args),
        }
    }
}

/// A damaged block: object set, object, level, number.
type Place = (u64, u64, i64, u64);

/// The outcome of a seed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Both found the same so many damaged blocks; how far it was written to.
    Same(usize, Wrote),
    /// Neither can open it.
    Refused,
    /// A program that is needed is not there, or a judge could not look at everything.
    Missing(String),
}

/// How far weir wrote to a pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wrote {
    /// Not at all: it can be imported for reading only, for this reason.
    ReadOnly(String),
    /// Imported, scrubbed twice and exported.
    Scrubbed,
    /// Also changed and judged. A note.
    Changed(String),
}

/// Lets the real `ztest` make a pool in `dir`.
fn make(maker: Maker, seed: u64, dir: &Path) -> Check<bool> {
    let (mirrors, disks, parity, kind, vdevs) = maker.layout(seed);
    let ashift = ["9", "12", "0"][(seed / 8) as usize % 3];
    let Some(mut c) = maker.ztest() else { return Ok(false) };
    let kind = if kind == EXPANDING {
        c.arg("-X");
        "eraidz"
    } else {
        kind
    };
    c.args(["-m", mirrors, "-r", disks, "-R", parity, "-K", kind, "-v", vdevs, "-a", ashift]);
    c.args(["-T", "12", "-P", "6", "-t", "8", "-d", "3", "-s", "128m", "-D", "3", "-S", "1", "-f"]).arg(dir);
    let Some((_, text)) = zdb_run::run(c) else { return Ok(false) };
    let any = std::fs::read_dir(dir).map_err(|e| e.to_string())?.count() > 0;
    // Its exit status does not matter: it kills itself again and again.
    if any { Ok(true) } else { Err(format!("ztest made nothing: {}", text.lines().last().unwrap_or(""))) }
}

fn load(dir: &Path) -> Check<Vec<DiskImage>> {
    let say = |e: std::io::Error| format!("{}: {e}", dir.display());
    let mut paths: Vec<_> = std::fs::read_dir(dir).map_err(say)?.filter_map(|e| Some(e.ok()?.path())).collect();
    paths.retain(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("ztest.")));
    paths.sort();
    paths.iter().map(|p| DiskImage::load(p).map(whole_sectors).map_err(say)).collect()
}

/// The real `ztest` grows its files by a third, to any length; a device ends with a whole sector.
fn whole_sectors(mut image: DiskImage) -> DiskImage {
    image.resize(image.size() / SECTOR * SECTOR);
    image
}

/// Overwrites `count` places of 4 KiB.
fn damage(image: &mut DiskImage, count: u64, rng: &mut Rng) {
    let room = image.size().saturating_sub(6 << 20) / 4096;
    for _ in 0..count {
        let noise: Vec<u8> = (0..512).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
        // Pools fill their devices from the front.
        let at = rng.below(room.max(1)) * rng.below(100) / 100;
        image.write((4 << 20) + at * 4096, &noise);
    }
}

/// The findings of `zdb`; `None` if it cannot open the pool.
fn ask_zdb(maker: Maker, dir: &Path) -> Check<Option<BTreeSet<Place>>> {
    let (_, text) = maker.zdb(&["-e", "-p", judge::utf8(dir)?, "-cc", POOL]).ok_or("zdb is not there")?;
    let mut out = BTreeSet::new();
    for line in text.split(['\n', '\r']).filter(|l| l.contains("Got error")) {
        let inner = line.split_once('<').and_then(|(_, rest)| rest.split_once('>')).map(|(inner, _)| inner);
        let parse = |s: &str| -> Option<Place> {
            let w: Vec<&str> = s.split(',').map(str::trim).collect();
            let [a, b, c, d] = w[..] else { return None };
            Some((a.parse().ok()?, b.parse().ok()?, c.parse().ok()?, u64::from_str_radix(d, 16).ok()?))
        };
        out.insert(inner.and_then(parse).ok_or_else(|| format!("zdb says: {line}"))?);
    }
    Ok(text.contains("Traversing all blocks").then_some(out))
}

async fn import(lab: &Lab, readonly: bool) -> Result<Rc<Pool>, base::Error> {
    let found = spa::scan(lab.disks.iter().map(sim::SimDisk::dev).collect()).await;
    let found = found.into_iter().filter(|c| c.name == POOL).max_by_key(|c| c.config.txg);
    let found = found.ok_or_else(|| base::Error::not_found("no pool is on the disks"))?;
    let import = ImportOpts { readonly, force: true, ..ImportOpts::default() };
    let mut opts = EngineOpts::for_memory(1 << 30);
    opts.arc_max = 64 << 20;
    Pool::import(lab.sim.rt(), found, import, opts).await
}

fn places(found: Vec<ondisk::bpobj::Bookmark>) -> BTreeSet<Place> {
    found.into_iter().map(|b| (b.objset, b.object, b.level, b.blkid)).collect()
}

/// Makes the pool of a seed and compares the findings.
pub fn run_seed(maker: Maker, seed: u64, level: Level) -> Check<Outcome> {
    let scratch = Scratch::new(&format!("foreign{seed}")).map_err(|e| e.to_string())?;
    if !make(maker, seed, scratch.path())? {
        let what = match maker {
            Maker::Installed => "ztest (zfs-test)",
            Maker::V24 => "ztest of OpenZFS 2.4 (shared/judges/get-zfs24)",
        };
        return Ok(Outcome::Missing(what.into()));
    }
    let mut images = load(scratch.path())?;
    let mut rng = Rng::new(seed);
    match seed % 3 {
        1 => {
            let n = rng.below(images.len() as u64) as usize;
            damage(&mut images[n], 300, &mut rng);
        }
        2 => images.iter_mut().for_each(|i| damage(i, 40, &mut rng)),
        _ => {}
    }
    if !seed.is_multiple_of(3) {
        let named = std::fs::read_dir(scratch.path()).map_err(|e| e.to_string())?;
        let mut paths: Vec<_> = named.filter_map(|e| Some(e.ok()?.path())).collect();
        paths.retain(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("ztest.")));
        paths.sort();
        for (path, image) in paths.iter().zip(&images) {
            image.save(path).map_err(|e| e.to_string())?;
        }
    }
    let theirs = ask_zdb(maker, scratch.path())?;
    let bad = |images: &[DiskImage], why: Fault| {
        format!("{why}\n    {}: ztest makes another one each time", judge::keep(images, &format!("foreign{seed}")))
    };
    let (same, exported) = compare(maker, seed, images.clone(), theirs).map_err(|why| bad(&images, why))?;
    if !matches!(same, Outcome::Same(0, Wrote::Scrubbed)) || !seed.is_multiple_of(3) {
        return Ok(same);
    }
    match judge_change(exported.clone(), seed, OPS, level, &format!("foreign{seed}")) {
        crate::reference::Outcome::Good(note) => Ok(Outcome::Same(0, Wrote::Changed(note))),
        crate::reference::Outcome::ReadOnly(why) => {
            Err(bad(&exported, format!("it was imported for writing, and now: {why}")))
        }
        crate::reference::Outcome::Missing(what) => Ok(Outcome::Missing(what)),
        crate::reference::Outcome::Bad(why) => Err(bad(&exported, why)),
    }
}

/// Compares the findings, and writes to the pool. Also returns its disks at the end.
fn compare(
    maker: Maker,
    seed: u64,
    images: Vec<DiskImage>,
    theirs: Option<BTreeSet<Place>>,
) -> Check<(Outcome, Vec<DiskImage>)> {
    let lab = Lab::with_images(seed, images.clone(), true);
    let ours = lab.sim.try_block_on_for(SPAN_MAX, async {
        let pool = import(&lab, true).await.map_err(|e| format!("{e}"))?;
        let s = pool.verify().await.map_err(|e| format!("verify: {e}"))?;
        let found = places(pool.scan().damaged_blocks().await.map_err(|e| format!("damaged blocks: {e}"))?);
        if found.len() as u64 != s.phys.errors {
            return Err(format!("{} errors and {} damaged blocks", s.phys.errors, found.len()));
        }
        Ok::<_, Fault>(found)
    });
    let ours = ours.map_err(|report| format!("stalled: {report}"))?;
    let (ours, theirs) = match (ours, theirs) {
        (Err(_), None) => return Ok((Outcome::Refused, images)),
        (Err(e), Some(_)) => return Err(format!("zdb opens it, and weir says: {e}")),
        (Ok(_), None) => return Err("weir opens it, and zdb does not".into()),
        (Ok(a), Some(b)) => (a, b),
    };
    if ours != theirs {
        let only = |a: &BTreeSet<Place>, b: &BTreeSet<Place>| {
            a.difference(b).take(5).map(|p| format!("{p:?}")).collect::<Vec<_>>().join(" ")
        };
        let (we, they) = (only(&ours, &theirs), only(&theirs, &ours));
        return Err(format!("{} blocks to zdb's {}: only weir {we}; only zdb {they}", ours.len(), theirs.len()));
    }
    let lab = Lab::with_images(seed ^ 1, images, true);
    let wrote = lab.sim.try_block_on_for(SPAN_MAX, async {
        let pool = match import(&lab, false).await {
            Ok(pool) => pool,
            // Refused with an error, and nothing was written.
            Err(e) if e.kind() == ErrorKind::Unsupported => return Ok(Wrote::ReadOnly(e.to_string())),
            Err(e) => return Err(format!("import for writing: {e}")),
        };
        crate::scan::wait(&pool).await?;
        let first = crate::scan::scrub(&pool).await?;
        let found = pool.scan().damaged_blocks().await.map_err(|e| format!("damaged blocks: {e}"))?.len();
        if first.phys.errors > ours.len() as u64 {
            return Err(format!("a scrub found {found} damaged blocks, before there were {}", ours.len()));
        }
        let second = crate::scan::scrub(&pool).await?;
        if second.phys.processed != 0 || second.phys.errors != first.phys.errors {
            return Err(format!("the second scrub: {:?}, the first: {:?}", second.phys, first.phys));
        }
        pool.export().await.map_err(|e| format!("export: {e}"))?;
        Ok(Wrote::Scrubbed)
    });
    let wrote = wrote.map_err(|report| format!("stalled: {report}"))??;
    let after = lab.images();
    if wrote == Wrote::Scrubbed && ours.is_empty() {
        let scratch = Scratch::new(&format!("foreign{seed}-after")).map_err(|e| e.to_string())?;
        judge::save(&after, scratch.path())?;
        match ask_zdb(maker, scratch.path())? {
            Some(found) if found.is_empty() => {}
            other => return Err(format!("after weir's scrub zdb finds {other:?}")),
        }
    }
    Ok((Outcome::Same(ours.len(), wrote), after))
}
