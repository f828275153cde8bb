//! Damaged images that are written to: no checksum shows the damage, the pool is imported for
//! writing, and everything that changes a pool is tried on it.
//!
//! A victim is a pool with snapshots, clones, holds, bookmarks and blocks that wait to be freed.
//! One of its blocks is damaged and every checksum above it repaired ([`crate::mutate::repaired`]);
//! half of the time the damage is in the figures of a dataset or directory of the DSL, where
//! arithmetic goes on for long. Then: import, a dozen operations in seeded order, export, import
//! again. Each operation may fail, and writing may stop for good with an error; this campaign looks
//! for a panic, an operation that does not end, memory without bound, an error without a place, and
//! wrong bytes in a file that was made after the import.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use base::{ErrorKind, Nanos, Result};
use dsl::props::PropValue;
use ondisk::blkptr::BLKPTR_SIZE;
use ondisk::dnode::{DNODE_CORE, DNODE_SIZE};
use ondisk::object_type::ObjectType;
use rt::join::{Either, select2};
use sim::{DiskImage, Rng};
use spa::{DevSpec, Group, GroupKind, Pool};
use zpl::{Cred, MountOpts, Zfs};

use crate::campaign::panic_text;
use crate::devices::LabDoor;
use crate::lab::{Lab, Layout, new_fs};
use crate::mutate::{SPAN_MAX, STEPS_MAX, memory_fault, memory_peak, noise, repaired};
use crate::surgery::Patient;
use crate::{Check, Fault, snaps};

/// Operations on one damaged pool.
const STEPS: u64 = 14;
/// Virtual time that one operation may take; a scrub of such a pool takes seconds.
const STEP_SPAN: Nanos = Nanos::from_secs(600);
/// Virtual time in which all requests in flight end.
const SETTLE_SPAN: Nanos = Nanos::from_secs(10);
/// How a micro ZAP begins (format page 04).
const MICRO_ZAP: [u8; 8] = 0x8000_0000_0000_0003_u64.to_le_bytes();
/// Disks that the pool does not have at first.
const FREE_DISKS: usize = 2;

/// A pool to damage.
pub struct WriteVictim {
    patient: Patient,
    layout: Layout,
    /// Seeds it.
    pub seed: u64,
}

impl WriteVictim {
    /// Makes the pool and reads its tree.
    pub fn new(seed: u64) -> Check<WriteVictim> {
        let mut why = String::new();
        for run in 0..16 {
            let (images, layout) = snaps::images_after(seed + run * 1_000_000, 40, false)?;
            match Patient::open(images, layout.ashift) {
                Ok(patient) => return Ok(WriteVictim { patient, layout, seed }),
                Err(e) => why = e,
            }
        }
        Err(format!("seed {seed}: {why}"))
    }

    /// Bonus areas of datasets, directories and lists of blocks: block, first byte, length.
    fn figures(&self) -> Vec<(usize, usize, usize)> {
        let mut out = Vec::new();
        for (n, b) in self.patient.blocks.iter().enumerate() {
            if b.bp.otype() != ObjectType::DNODE || b.bp.level() > 0 {
                continue;
            }
            let mut at = 0;
            while at + DNODE_SIZE <= b.data.len() {
                let slots = usize::from(b.data[at + 12]) + 1;
                let bonus = at + DNODE_CORE + usize::from(b.data[at + 3]) * BLKPTR_SIZE;
                let end = (at + slots * DNODE_SIZE).min(b.data.len());
                let len = match ObjectType(b.data[at + 4]) {
                    ObjectType::DSL_DATASET | ObjectType::DSL_DIR => 256,
                    ObjectType::DEADLIST_HDR | ObjectType::BPOBJ_HDR | ObjectType::SPACE_MAP_HEADER => 64,
                    _ => 0,
                };
                if b.data[at] != 0 && len > 0 && bonus + len <= end {
                    out.push((n, bonus, len));
                }
                at = end;
            }
        }
        out
    }

    /// An entry of a micro ZAP is gone: a feature, a property, an object of the MOS directory.
    fn without_entry(&self, rng: &mut Rng) -> (Vec<DiskImage>, String) {
        let mut entries = Vec::new();
        for (n, b) in self.patient.blocks.iter().enumerate().filter(|(_, b)| b.data.starts_with(&MICRO_ZAP)) {
            let chunks = b.data.chunks_exact(64).enumerate().skip(1);
            entries.extend(chunks.filter(|(_, c)| c.iter().any(|b| *b != 0)).map(|(at, _)| (n, at * 64)));
        }
        if entries.is_empty() {
            return repaired(&self.patient, rng);
        }
        let (n, at) = entries[rng.below(entries.len() as u64) as usize];
        let mut data = self.patient.blocks[n].data.clone();
        let name = String::from_utf8_lossy(&data[at + 14..at + 64]).trim_end_matches('\0').to_string();
        data[at..at + 64].fill(0);
        (self.patient.with_content(n, data), format!("entry '{name}' of ZAP block {n} taken out"))
    }

    fn damaged(&self, rng: &mut Rng) -> (Vec<DiskImage>, String) {
        let figures = self.figures();
        if figures.is_empty() || rng.percent(50) {
            return repaired(&self.patient, rng);
        }
        if rng.percent(20) {
            return self.without_entry(rng);
        }
        let (n, at, len) = figures[rng.below(figures.len() as u64) as usize];
        let mut data = self.patient.blocks[n].data.clone();
        let mut words = Vec::new();
        for _ in 0..rng.between(1, 4) {
            let word = at + rng.below(len as u64 / 8) as usize * 8;
            noise(rng, &mut data[word..word + 8]);
            words.push(format!("{:#x}", word - at));
        }
        let name = format!("figures at {at:#x} of block {n}, bytes {}", words.join(" "));
        (self.patient.with_content(n, data), name)
    }
}

/// Counts of the outcomes.
#[derive(Clone, Copy, Default, Debug)]
pub struct WriteTally {
    /// Mutations.
    pub mutations: u64,
    /// The import was refused.
    pub refused: u64,
    /// Operations that worked.
    pub worked: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Pools that could not be written any more.
    pub stopped: u64,
    /// Pools that were exported and imported again.
    pub again: u64,
    /// Findings.
    pub bad: u64,
}

impl WriteTally {
    /// Adds up.
    pub fn add(&mut self, o: WriteTally) {
        self.mutations += o.mutations;
        self.refused += o.refused;
        self.worked += o.worked;
        self.failed += o.failed;
        self.stopped += o.stopped;
        self.again += o.again;
        self.bad += o.bad;
    }
    /// The figures without the findings, in the order of the fields.
    pub fn figures(&self) -> [u64; 6] {
        [self.mutations, self.refused, self.worked, self.failed, self.stopped, self.again]
    }
}

/// Damages the victim once and uses it.
pub fn mutate_write(v: &WriteVictim, number: u64, tally: &mut WriteTally) -> Option<Fault> {
    tally.mutations += 1;
    let mut rng = Rng::stream(v.seed.wrapping_mul(1 << 20).wrapping_add(number), 101);
    let (mut images, what) = v.damaged(&mut rng);
    let used = images.len();
    images.extend((0..FREE_DISKS).map(|_| DiskImage::zeroed(v.layout.devices[0])));
    if std::env::var_os("ZTEST_TRACE").is_some() {
        eprintln!("{number}: {what}");
    }
    let before = memory_peak();
    // Damaged space maps can cause double allocations, which are then written twice.
    let lab = Rc::new(Lab::with_hostile_images(number, images));
    lab.away.borrow_mut().extend(used..used + FREE_DISKS);
    lab.sim.stop_at_step(Some(STEPS_MAX));
    let mut user = User { lab: lab.clone(), used, rng, files: BTreeMap::new(), tally: WriteTally::default() };
    let result = catch_unwind(AssertUnwindSafe(|| {
        let rt = lab.sim.rt();
        let all = async {
            let out = user.all(v).await;
            // What a pool that is given up had sent to the disks comes back.
            rt.sleep(SETTLE_SPAN).await;
            out
        };
        let out = lab.sim.try_block_on_for(SPAN_MAX, all);
        out.map_err(|report| format!("stalled: {report}"))?
    }));
    tally.add(user.tally);
    let why = match result {
        Ok(Ok(())) => {
            if lab.disks.iter().any(|d| d.holders() > 0) {
                // A pool that is not dropped stays in memory, whatever its fate was.
                Some("something still holds devices of the pool".to_string())
            } else {
                memory_fault(before)
            }
        }
        Ok(Err(e)) => Some(e),
        Err(panic) => {
            std::mem::forget((user, lab));
            Some(format!("panic: {}", panic_text(&*panic)))
        }
    };
    why.map(|why| {
        tally.bad += 1;
        format!("victim {} mutation {number} ({what}): {why}", v.seed)
    })
}

/// The operations on one damaged pool.
struct User {
    lab: Rc<Lab>,
    /// Disks of the pool; those after them are free.
    used: usize,
    rng: Rng,
    /// Files that were made since the import, by file system.
    files: BTreeMap<String, Vec<u8>>,
    tally: WriteTally,
}

/// The file that [`User`] makes in file systems of its own.
const FILE: &[u8] = b"made-here";

impl User {
    async fn all(&mut self, v: &WriteVictim) -> Check {
        let Some(pool) = self.import(v).await? else {
            self.tally.refused += 1;
            return Ok(());
        };
        for _ in 0..STEPS {
            if !self.timed(&pool).await? {
                self.tally.stopped += 1;
                pool.give_up().await;
                return Ok(());
            }
        }
        self.check_files(&pool).await?;
        if let Err(e) = pool.export().await {
            placed(&e.to_string())?;
            self.tally.stopped += 1;
            pool.give_up().await;
            return Ok(());
        }
        drop(pool);
        let Some(pool) = self.import(v).await? else { return Ok(()) };
        self.tally.again += 1;
        self.check_files(&pool).await?;
        if let Err(e) = pool.export().await {
            placed(&e.to_string())?;
            pool.give_up().await;
        }
        Ok(())
    }

    async fn import(&mut self, v: &WriteVictim) -> Check<Option<Rc<Pool>>> {
        match self.lab.import(false, v.layout.opts()).await {
            Ok(pool) => {
                // I/O beyond a device's end must not block everything.
                pool.set_failmode(vdev::FailMode::Continue);
                pool.devices().set_door(Rc::new(LabDoor(self.lab.clone())));
                pool.dsl().set_freed_per_txg(1 + self.rng.below(200) as usize);
                Ok(Some(pool))
            }
            Err(e) => {
                if std::env::var_os("ZTEST_TRACE").is_some() {
                    eprintln!("  refused: {e}");
                }
                placed(&e.to_string())?;
                Ok(None)
            }
        }
    }

    /// One operation, which must end; false if the pool cannot be written any more.
    async fn timed(&mut self, pool: &Rc<Pool>) -> Check<bool> {
        let rt = self.lab.sim.rt();
        let kind = self.rng.below(100);
        match select2(self.step(pool, kind), rt.sleep(STEP_SPAN)).await {
            Either::First(Ok(())) => self.tally.worked += 1,
            Either::First(Err(e)) => {
                if std::env::var_os("ZTEST_TRACE").is_some() {
                    eprintln!("  operation {kind}: {e}");
                }
                placed(&e.to_string())?;
                self.tally.failed += 1;
            }
            Either::Second(()) if pool.suspended().is_some() => {}
            Either::Second(()) => return Err(format!("operation {kind} does not end")),
        }
        Ok(pool.suspended().is_none() && pool.txg().ended().is_none())
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> Option<T> {
        if of.is_empty() { None } else { Some(of[self.rng.below(of.len() as u64) as usize].clone()) }
    }

    async fn step(&mut self, pool: &Rc<Pool>, kind: u64) -> Result<()> {
        let dsl = pool.dsl().clone();
        let names: Vec<String> = dsl.all().iter().map(|d| d.name()).filter(|n| n != snaps::SPARE_FS).collect();
        let Some(name) = self.pick(&names) else { return Ok(()) };
        let head = dsl.find(&name)?;
        let snaps: Vec<String> = match kind {
            14..46 => dsl.snapshots(&head).await?.iter().map(|d| d.name()).collect(),
            _ => Vec::new(),
        };
        let snap = self.pick(&snaps);
        if std::env::var_os("ZTEST_TRACE").is_some() {
            eprintln!("  operation {kind} on {name} {snap:?}");
        }
        let n = self.rng.below(1 << 32);
        match (kind, snap) {
            (0..14, _) => {
                let recursive = self.rng.percent(30);
                dsl.snapshot(vec![format!("{name}@t{n}")], recursive, Vec::new()).await
            }
            (14..18, Some(snap)) => dsl.clone_snapshot(&snap, &format!("{name}/c{n}"), Vec::new()).await.map(drop),
            (18..26, Some(snap)) => dsl.destroy_snapshots(vec![snap], kind < 20).await,
            (26..32, Some(snap)) => dsl.rollback(&snap).await,
            (32..36, Some(snap)) => dsl.hold(&format!("tag{n}"), vec![snap], false).await,
            (36..39, Some(snap)) => {
                let tags: Vec<String> = match dsl.find_snapshot(&snap).await {
                    Ok(ds) => dsl.holds(&ds).await?.into_iter().map(|h| h.tag).collect(),
                    Err(e) => return Err(e),
                };
                match self.pick(&tags) {
                    Some(tag) => dsl.release(&tag, vec![snap], false).await,
                    None => Ok(()),
                }
            }
            (39..42, Some(snap)) => dsl.create_bookmark(&snap, &format!("{name}#b{n}")).await,
            (42..46, Some(snap)) => dsl.space_of_snapshots(&*dsl.find_snapshot(&snap).await?, &head).await.map(drop),
            (46..52, _) => dsl.promote(&name).await,
            (52..58, _) => dsl.destroy_fs(&name).await,
            (58..63, _) => dsl.rename(&name, &format!("{}/r{n}", dsl.root().name())).await,
            (63..72, _) => {
                let prop = ["quota", "refquota", "reservation", "refreservation", "recordsize"][n as usize % 5];
                let value = if prop == "recordsize" { 4096 } else { self.rng.below(64 << 20) };
                dsl.set_props(&name, vec![(prop.to_string(), PropValue::Num(value))]).await
            }
            (72..82, _) => self.make_file(pool, &name, n).await,
            (82..86, _) => self.overwrite(pool, &name).await,
            (86..89, _) => {
                pool.scan().start_scrub().await?;
                pool.scan().wait().await
            }
            (89..92, _) => self.change_devices(pool).await,
            (92..94, _) => pool.create_checkpoint().await,
            (94..96, _) => pool.discard_checkpoint().await,
            _ => pool.sync().await,
        }
    }

    /// A file system of its own, with a file whose content is known.
    async fn make_file(&mut self, pool: &Rc<Pool>, parent: &str, n: u64) -> Result<()> {
        let name = format!("{parent}/n{n}");
        let ds = pool.dsl().create_fs(&name, Vec::new(), new_fs(&self.lab.sim)).await?;
        let mut data = vec![0; [100, 5000, 300_000][n as usize % 3]];
        self.rng.fill(&mut data);
        let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await?;
        let written = async {
            let file = fs.create(fs.root(), FILE, 0o644, &Cred::new(0, 0), false).await?;
            let buf = bdev::Buf::copy_from(&data).freeze();
            let (done, _) = fs.write(file.obj, 0, vec![buf], false).await?;
            if done < data.len() as u64 { Err(ErrorKind::NoSpace.into()) } else { Ok::<(), base::Error>(()) }
        };
        let written = written.await;
        fs.unmount().await?;
        written?;
        self.files.insert(name, data);
        Ok(())
    }

    /// Every file of a file system gets other bytes: blocks are born and freed.
    async fn overwrite(&mut self, pool: &Rc<Pool>, name: &str) -> Result<()> {
        if self.files.contains_key(name) {
            return Ok(());
        }
        let ds = pool.dsl().find(name)?;
        let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await?;
        let done = async {
            for e in fs.readdir(fs.root(), 0, 20).await? {
                if !e.name.starts_with(b".") {
                    let buf = bdev::Buf::copy_from(&[7; 20_000]).freeze();
                    let _ = fs.write(e.obj, 0, vec![buf], false).await;
                }
            }
            Ok(())
        };
        let done = done.await;
        fs.unmount().await?;
        done
    }

    async fn change_devices(&mut self, pool: &Rc<Pool>) -> Result<()> {
        let mut away = self.lab.away.borrow().clone();
        let Some(free) = away.pop() else { return Ok(()) };
        let new = DevSpec { dev: self.lab.disks[free].dev(), is_disk: false };
        let target = format!("disk{}.img", self.rng.below(self.used as u64));
        // Used from now on, whether it works or not: an import looks at it.
        *self.lab.away.borrow_mut() = away;
        if self.rng.percent(50) {
            return pool.devices().attach(&target, new, None, false).await;
        }
        let groups = vec![Group { kind: GroupKind::Single, bias: spa::Bias::Normal, devices: vec![new] }];
        pool.devices().add(spa::Layout { groups, ..spa::Layout::default() }, None).await
    }

    /// Data written since the import is there, or reading it gives an error.
    async fn check_files(&self, pool: &Rc<Pool>) -> Check {
        for (name, data) in &self.files {
            let read = async {
                let ds = pool.dsl().find(name)?;
                let fs = Zfs::open(&ds, MountOpts { readonly: true, ..MountOpts::from_props(&ds) }).await?;
                let got = async {
                    let file = fs.lookup(fs.root(), FILE).await?;
                    let parts = fs.read(file.obj, 0, data.len() as u64 + 1).await?;
                    Ok::<Vec<u8>, base::Error>(parts.iter().flat_map(|p| p.iter().copied()).collect())
                };
                let got = got.await;
                fs.unmount().await?;
                got
            };
            match read.await {
                Ok(got) if got == *data => {}
                Ok(got) => return Err(format!("{name}: {} bytes are not the {} written", got.len(), data.len())),
                Err(e) => placed(&e.to_string())?,
            }
        }
        Ok(())
    }
}

/// An error must name its place.
fn placed(text: &str) -> Check {
    if text.len() < 8 { Err(format!("an error without a place: {text}")) } else { Ok(()) }
}
