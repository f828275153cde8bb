//! Snapshots, clones, promotions, rollbacks and destroys in random order, compared with a model and
//! with the independent checker.
//!
//! The model is a tree of file systems with the names and bytes of their files now and at each
//! snapshot, and with where clones come from. Every few operations everything is read back, and the
//! devices go to the checker of `zdb`, which recomputes every figure of space from the blocks.
//!
//! With [`cuts`] one destroy or rollback is recorded and cut at every completion: afterwards the
//! pool holds the state before or after it, the work goes on, and nothing is leaked.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;

use base::{ErrorKind, Nanos, ObjectId};
use dsl::crypto::KeyMaterial;
use dsl::props::PropValue;
use sim::{DiskImage, DiskLog, Rng};
use spa::Pool;
use zdb::device::{Device, Labeled, ReadAt};
use zdb::{CheckOpts, OpenOpts, PoolReader};
use zpl::{Cred, MountOpts, Zfs};

use crate::Check;
use crate::judge::{self, Scratch, Verdict};
use crate::lab::{Lab, Layout, POOL, new_fs};
use crate::reference::without_table;
use crate::surgery::SPARE;

/// Names and bytes of the files of a file system.
type Files = BTreeMap<String, Vec<u8>>;

/// A file system of the model.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Fs {
    files: Files,
    /// Snapshots, oldest first.
    snaps: Vec<Snap>,
    /// Identity of the snapshot that it was cloned from.
    origin: Option<u64>,
    bookmarks: BTreeMap<String, u64>,
    /// Not a file system that can be written: a volume, an old version.
    foreign: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Snap {
    id: u64,
    name: String,
    files: Files,
    holds: BTreeSet<String>,
    deferred: bool,
}

/// The model of a pool.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Model {
    fs: BTreeMap<String, Fs>,
}

impl Model {
    fn clones_of(&self, id: u64) -> Vec<String> {
        self.fs.iter().filter(|(_, f)| f.origin == Some(id)).map(|(n, _)| n.clone()).collect()
    }
    fn below(&self, name: &str) -> Vec<String> {
        let prefix = format!("{name}/");
        self.fs.keys().filter(|n| *n == name || n.starts_with(&prefix)).cloned().collect()
    }
    fn snap(&self, id: u64) -> Option<(&str, &Snap)> {
        self.fs.iter().find_map(|(n, f)| f.snaps.iter().find(|s| s.id == id).map(|s| (n.as_str(), s)))
    }
    /// Drops deferred snapshots that nothing needs any more.
    fn settle(&mut self) {
        let clones: BTreeSet<u64> = self.fs.values().filter_map(|f| f.origin).collect();
        for f in self.fs.values_mut() {
            f.snaps.retain(|s| !(s.deferred && s.holds.is_empty() && !clones.contains(&s.id)));
        }
    }
}

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

/// The same; true if a destroyed file system is freed in part. The checker does not walk the rest
/// of it, which then looks leaked: only zdb can judge that.
fn check_partly(images: &[DiskImage]) -> Check<bool> {
    let labeled = images.iter().enumerate().map(|(n, image)| {
        let (path, image) = (format!("disk{n}.img"), without_table(image));
        Labeled::scan(Rc::new(Device::over(Path::new(&path), image.size(), Box::new(Image(image)))))
    });
    let pool = PoolReader::from_devices(labeled.collect(), &OpenOpts::default()).map_err(|e| format!("zdb: {e}"))?;
    let report = zdb::check(&pool, &CheckOpts::default(), &mut |_| {});
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
    Ok(false)
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
    trace: Vec<String>,
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
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
            layout.features = ondisk::feature::default_features();
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
            trace: Vec::new(),
        }
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

    async fn write(&mut self) -> Check {
        let name = self.pick_fs();
        if self.model.fs[&name].foreign {
            return Ok(());
        }
        let rounds = 1 + self.rng.below(4);
        /// A file and its write (offset, data); None removes it.
        type Step = (String, Option<(u64, Vec<u8>)>);
        let mut plan: Vec<Step> = Vec::new();
        for _ in 0..rounds {
            let file = format!("f{}", self.rng.below(6));
            if self.rng.percent(20) {
                plan.push((file, None));
            } else {
                let len = [100, 5000, 140_000, 400_000][self.rng.below(4) as usize];
                let off = if self.rng.percent(50) { 0 } else { self.rng.below(300_000) };
                plan.push((file, Some((off, pattern(self.rng.next_u64(), len)))));
            }
        }
        self.note(format!(
            "write {name}: {:?}",
            plan.iter().map(|(f, p)| (f, p.as_ref().map(|p| (p.0, p.1.len())))).collect::<Vec<_>>()
        ));
        let root = Cred::new(0, 0);
        let full = self
            .with_fs(&name, async |fs| {
                let mut done = 0;
                for (file, what) in &plan {
                    let found = fs.lookup(fs.root(), file.as_bytes()).await;
                    let result = match what {
                        None if found.is_ok() => fs.unlink(fs.root(), file.as_bytes()).await,
                        None => Ok(()),
                        Some((off, data)) => {
                            let obj = match found {
                                Ok(a) => a.obj,
                                Err(_) => match fs.create(fs.root(), file.as_bytes(), 0o644, &root, false).await {
                                    Ok(a) => a.obj,
                                    Err(e) if is_full(&e) => return Ok(done),
                                    Err(e) => return Err(e),
                                },
                            };
                            match fs.write(obj, *off, vec![bdev::Buf::copy_from(data).freeze()], false).await {
                                Ok((n, _)) if n == data.len() as u64 => Ok(()),
                                Ok(_) => Err(ErrorKind::NoSpace.into()),
                                Err(e) => Err(e),
                            }
                        }
                    };
                    match result {
                        Ok(()) => done += 1,
                        Err(e) if is_full(&e) => return Ok(done),
                        Err(e) => return Err(e),
                    }
                }
                Ok(done)
            })
            .await?;
        let stopped = full < plan.len();
        let f = self.model.fs.get_mut(&name).expect("picked");
        for (file, what) in plan.into_iter().take(full) {
            match what {
                None => drop(f.files.remove(&file)),
                Some((off, data)) => {
                    let bytes = f.files.entry(file).or_default();
                    let end = off as usize + data.len();
                    if bytes.len() < end {
                        bytes.resize(end, 0);
                    }
                    bytes[off as usize..end].copy_from_slice(&data);
                }
            }
        }
        if stopped {
            // The last write may be partial: take over the actual content.
            let now = self.read_head(&name).await?;
            self.model.fs.get_mut(&name).expect("picked").files = now;
        }
        Ok(())
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

    /// Whether the engine and the model agree about success; running out of space is the engine's
    /// own affair.
    fn agree<T>(&self, what: &str, want: Result<(), ErrorKind>, got: base::Result<T>) -> Check<bool> {
        match (want, got) {
            (Ok(()), Ok(_)) => Ok(true),
            (_, Err(e)) if matches!(e.kind(), ErrorKind::NoSpace | ErrorKind::Quota) => Ok(false),
            (Err(kind), Err(e)) if e.kind() == kind => Ok(false),
            (want, Ok(_)) => Err(format!("{what}: succeeded, should be {want:?}")),
            (want, Err(e)) => Err(format!("{what}: {e:?}, should be {want:?}")),
        }
    }

    async fn snapshot(&mut self) -> Check {
        let name = self.pick_fs();
        let recursive = self.rng.percent(30);
        let snap = format!("s{}", self.rng.below(8));
        let all = if recursive { self.model.below(&name) } else { vec![name.clone()] };
        let taken = all.iter().any(|n| self.model.fs[n].snaps.iter().any(|s| s.name == snap));
        self.note(format!("snapshot {name}@{snap} recursive {recursive}"));
        let props =
            if self.rng.percent(20) { vec![("a:b".to_string(), PropValue::Text("c".into()))] } else { Vec::new() };
        let got = self.pool().dsl().snapshot(vec![format!("{name}@{snap}")], recursive, props).await;
        let want = if taken { Err(ErrorKind::Exists) } else { Ok(()) };
        if self.agree("snapshot", want, got)? {
            for n in all {
                let id = self.id();
                let f = self.model.fs.get_mut(&n).expect("listed");
                let files = f.files.clone();
                f.snaps.push(Snap { id, name: snap.clone(), files, holds: BTreeSet::new(), deferred: false });
            }
        }
        Ok(())
    }

    async fn destroy_snaps(&mut self) -> Check {
        let Some((name, at)) = self.pick_snap() else { return Ok(()) };
        let upto = if self.rng.percent(30) { self.model.fs[&name].snaps.len() - 1 } else { at };
        let defer = self.rng.percent(30);
        let snaps = self.model.fs[&name].snaps[at..=upto].to_vec();
        let busy = |s: &Snap| !s.holds.is_empty() || !self.model.clones_of(s.id).is_empty();
        let want = if !defer && snaps.iter().any(busy) { Err(ErrorKind::Busy) } else { Ok(()) };
        let names: Vec<String> = snaps.iter().map(|s| format!("{name}@{}", s.name)).collect();
        self.note(format!("destroy {names:?} defer {defer}"));
        let got = self.pool().dsl().destroy_snapshots(names, defer).await;
        if self.agree("destroy snapshots", want, got)? {
            let ids: BTreeSet<u64> = snaps.iter().map(|s| s.id).collect();
            for s in &mut self.model.fs.get_mut(&name).expect("picked").snaps {
                s.deferred |= ids.contains(&s.id);
            }
            self.model.settle();
        }
        Ok(())
    }

    async fn clone(&mut self) -> Check {
        let Some((from, at)) = self.pick_snap() else { return Ok(()) };
        let parent = self.pick_fs();
        let name = format!("{parent}/c{}", self.rng.below(5));
        if name.split('/').count() > 5 {
            return Ok(());
        }
        let snap = self.model.fs[&from].snaps[at].clone();
        let want = if self.model.fs.contains_key(&name) { Err(ErrorKind::Exists) } else { Ok(()) };
        self.note(format!("clone {from}@{} {name}", snap.name));
        let got = self.pool().dsl().clone_snapshot(&format!("{from}@{}", snap.name), &name, Vec::new()).await;
        if self.agree("clone", want, got)? {
            let foreign = self.is_foreign(&name).await?;
            let f = Fs { files: snap.files.clone(), origin: Some(snap.id), foreign, ..Fs::default() };
            self.model.fs.insert(name, f);
        }
        Ok(())
    }

    async fn create_fs(&mut self) -> Check {
        let parent = self.pick_fs();
        let name = format!("{parent}/n{}", self.rng.below(4));
        if name.split('/').count() > 5 {
            return Ok(());
        }
        let want = if self.model.fs.contains_key(&name) { Err(ErrorKind::Exists) } else { Ok(()) };
        self.note(format!("create {name}"));
        let got = self.pool().dsl().create_fs(&name, Vec::new(), new_fs(&self.lab.sim)).await;
        if self.agree("create", want, got)? {
            self.model.fs.insert(name, Fs::default());
        }
        Ok(())
    }

    /// The encryption root that a file system has its key from.
    fn key_of(&self, name: &str) -> Option<String> {
        let dsl = self.pool().dsl().clone();
        dsl.find_dir(name).ok().and_then(|dir| dsl.crypt_info(&dir)).map(|info| info.root)
    }

    async fn promote(&mut self) -> Check {
        let clones: Vec<String> =
            self.model.fs.iter().filter(|(_, f)| f.origin.is_some()).map(|(n, _)| n.clone()).collect();
        if clones.is_empty() {
            return Ok(());
        }
        let name = clones[self.rng.below(clones.len() as u64) as usize].clone();
        let id = self.model.fs[&name].origin.expect("a clone");
        let Some((old, _)) = self.model.snap(id) else { return Err(format!("model: {name} has a lost origin")) };
        let old = old.to_string();
        let at = self.model.fs[&old].snaps.iter().position(|s| s.id == id).expect("found");
        let moving = self.model.fs[&old].snaps[..=at].to_vec();
        let conflict = moving.iter().any(|m| self.model.fs[&name].snaps.iter().any(|s| s.name == m.name));
        let marks_conflict = self.model.fs[&old]
            .bookmarks
            .iter()
            .any(|(n, id)| moving.iter().any(|m| m.id >= *id) && self.model.fs[&name].bookmarks.contains_key(n));
        if marks_conflict {
            return Ok(());
        }
        // Keys come first: only a root moves with its key, anything else stays below its root.
        let roots = self.pool().dsl().encryption_roots(&self.root).map_err(|e| format!("{e:?}"))?;
        let apart = !roots.contains(&old)
            && self.key_of(&old).is_some()
            && self.key_of(parent_of(&name)) != self.key_of(parent_of(&old));
        let want = match (apart, conflict) {
            (true, _) => Err(ErrorKind::Denied),
            (_, true) => Err(ErrorKind::Exists),
            _ => Ok(()),
        };
        self.note(format!("promote {name} over {old}"));
        let got = self.pool().dsl().promote(&name).await;
        if self.agree("promote", want, got)? {
            let beyond = self.model.fs[&old].origin;
            let f = self.model.fs.get_mut(&old).expect("found");
            f.snaps.drain(..=at);
            f.origin = Some(id);
            let (go, stay): (BTreeMap<_, _>, BTreeMap<_, _>) =
                std::mem::take(&mut f.bookmarks).into_iter().partition(|(_, mark)| *mark <= id);
            f.bookmarks = stay;
            let f = self.model.fs.get_mut(&name).expect("picked");
            f.snaps.splice(0..0, moving);
            f.origin = beyond;
            f.bookmarks.extend(go);
        }
        Ok(())
    }

    async fn rollback(&mut self) -> Check {
        let Some((name, at)) = self.pick_snap() else { return Ok(()) };
        let f = &self.model.fs[&name];
        let snap = f.snaps[at].clone();
        let newer = at + 1 != f.snaps.len() || f.bookmarks.values().any(|id| *id > snap.id);
        let want = if newer { Err(ErrorKind::Exists) } else { Ok(()) };
        self.note(format!("rollback {name}@{}", snap.name));
        let got = self.pool().dsl().rollback(&format!("{name}@{}", snap.name)).await;
        if self.agree("rollback", want, got)? {
            let foreign = self.is_foreign(&name).await?;
            let f = self.model.fs.get_mut(&name).expect("picked");
            (f.files, f.foreign) = (snap.files, foreign);
        }
        Ok(())
    }

    /// Whether a dataset is none that can be written to as a file system: a volume, or of an old
    /// version.
    async fn is_foreign(&self, name: &str) -> Check<bool> {
        let ds = self.pool().dsl().find(name).map_err(|e| format!("{name}: {e:?}"))?;
        let Ok(fs) = Zfs::open(&ds, MountOpts::from_props(&ds)).await else { return Ok(true) };
        let readonly = fs.opts().readonly;
        fs.unmount().await.map_err(|e| format!("{name}: {e:?}"))?;
        Ok(readonly)
    }

    async fn destroy_fs(&mut self) -> Check {
        let name = self.pick_fs();
        if name == self.root {
            return Ok(());
        }
        let full = self.model.below(&name).len() > 1 || !self.model.fs[&name].snaps.is_empty();
        let want = if full { Err(ErrorKind::NotEmpty) } else { Ok(()) };
        self.note(format!("destroy {name}"));
        let got = self.pool().dsl().destroy_fs(&name).await;
        if self.agree("destroy", want, got)? {
            self.model.fs.remove(&name);
            self.model.settle();
        }
        Ok(())
    }

    async fn hold(&mut self) -> Check {
        let Some((name, at)) = self.pick_snap() else { return Ok(()) };
        let tag = format!("t{}", self.rng.below(2));
        let snap = self.model.fs[&name].snaps[at].clone();
        let full = vec![format!("{name}@{}", snap.name)];
        let dsl = self.pool().dsl().clone();
        let held = snap.holds.contains(&tag);
        let release = self.rng.percent(60);
        self.note(format!("{} {tag} {full:?}", if release { "release" } else { "hold" }));
        let (want, got) = if release {
            (if held { Ok(()) } else { Err(ErrorKind::NotFound) }, dsl.release(&tag, full, false).await)
        } else {
            (if held { Err(ErrorKind::Exists) } else { Ok(()) }, dsl.hold(&tag, full, false).await)
        };
        if self.agree("hold", want, got)? {
            let s = &mut self.model.fs.get_mut(&name).expect("picked").snaps[at];
            if release {
                s.holds.remove(&tag);
            } else {
                s.holds.insert(tag);
            }
            self.model.settle();
        }
        Ok(())
    }

    async fn bookmark(&mut self) -> Check {
        if !self.layout.features.contains(&ondisk::feature::FeatureId::Bookmarks) {
            return Ok(());
        }
        let dsl = self.pool().dsl().clone();
        let mark = format!("b{}", self.rng.below(4));
        if self.rng.percent(40) {
            let name = self.pick_fs();
            let there = self.model.fs[&name].bookmarks.contains_key(&mark);
            self.note(format!("destroy {name}#{mark}"));
            let got = dsl.destroy_bookmark(&format!("{name}#{mark}")).await;
            let want = if there { Ok(()) } else { Err(ErrorKind::NotFound) };
            if self.agree("destroy bookmark", want, got)? {
                self.model.fs.get_mut(&name).expect("picked").bookmarks.remove(&mark);
            }
            return Ok(());
        }
        let Some((name, at)) = self.pick_snap() else { return Ok(()) };
        let snap = self.model.fs[&name].snaps[at].clone();
        let there = self.model.fs[&name].bookmarks.contains_key(&mark);
        self.note(format!("bookmark {name}@{} #{mark}", snap.name));
        let got = dsl.create_bookmark(&format!("{name}@{}", snap.name), &format!("{name}#{mark}")).await;
        let want = if there { Err(ErrorKind::Exists) } else { Ok(()) };
        if self.agree("bookmark", want, got)? {
            self.model.fs.get_mut(&name).expect("picked").bookmarks.insert(mark, snap.id);
        }
        Ok(())
    }

    async fn rename(&mut self) -> Check {
        let dsl = self.pool().dsl().clone();
        if self.rng.percent(50) {
            let Some((name, at)) = self.pick_snap() else { return Ok(()) };
            let new = format!("s{}", self.rng.below(8));
            let old = self.model.fs[&name].snaps[at].name.clone();
            let taken = self.model.fs[&name].snaps.iter().any(|s| s.name == new);
            self.note(format!("rename {name}@{old} @{new}"));
            let got = dsl.rename_snapshot(&format!("{name}@{old}"), &format!("{name}@{new}"), false).await;
            let want = if taken { Err(ErrorKind::Exists) } else { Ok(()) };
            if self.agree("rename snapshot", want, got)? {
                self.model.fs.get_mut(&name).expect("picked").snaps[at].name = new;
            }
            return Ok(());
        }
        let (from, parent) = (self.pick_fs(), self.pick_fs());
        let to = format!("{parent}/r{}", self.rng.below(6));
        if from == self.root
            || self.model.fs.contains_key(&to)
            || format!("{parent}/").starts_with(&format!("{from}/"))
            || to.split('/').count() > 4
        {
            return Ok(());
        }
        let key = self.key_of(&from);
        let bound = key.as_ref().is_some_and(|root| *root != from) && self.key_of(&parent) != key;
        self.note(format!("rename {from} {to}"));
        let got = dsl.rename(&from, &to).await;
        if self.agree("rename", if bound { Err(ErrorKind::Invalid) } else { Ok(()) }, got)? {
            for name in self.model.below(&from) {
                let f = self.model.fs.remove(&name).expect("listed");
                self.model.fs.insert(format!("{to}{}", &name[from.len()..]), f);
            }
        }
        Ok(())
    }

    async fn limits(&mut self) -> Check {
        let name = self.pick_fs();
        let prop = ["reservation", "refreservation", "refquota"][self.rng.below(3) as usize];
        let value = [0, 1 << 20, 5 << 20][self.rng.below(3) as usize];
        let value = if prop == "refquota" && value != 0 { value * 4 } else { value };
        self.note(format!("set {prop}={value} {name}"));
        let got = self.pool().dsl().set_props(&name, vec![(prop.to_string(), PropValue::Num(value))]).await;
        self.agree("set", Ok(()), got).map(|_| ())
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

    /// Makes freeing in the background take many txgs.
    fn slow_down(&mut self, pool: &Pool) {
        if self.rng.percent(70) {
            pool.dsl().set_freed_per_txg(1 + self.rng.below(20) as usize);
        }
    }

    async fn step(&mut self) -> Check {
        match self.rng.below(100) {
            0..30 => self.write().await,
            30..47 => self.snapshot().await,
            47..57 => self.destroy_snaps().await,
            57..65 => self.clone().await,
            65..71 => self.promote().await,
            71..77 => self.rollback().await,
            77..81 => self.destroy_fs().await,
            81..84 => self.create_fs().await,
            84..88 => self.hold().await,
            88..92 => self.bookmark().await,
            92..96 => self.rename().await,
            96..99 => self.limits().await,
            _ => self.reimport().await,
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

fn is_full(e: &base::Error) -> bool {
    matches!(e.kind(), ErrorKind::NoSpace | ErrorKind::Quota)
}

async fn compare(pool: &Rc<Pool>, model: &Model, reader: &Snaps) -> Check {
    let dsl = pool.dsl();
    let got: Vec<String> = dsl.all().iter().map(|d| d.name()).collect();
    let want: BTreeSet<&String> = model.fs.keys().collect();
    if got.iter().collect::<BTreeSet<_>>() != want {
        return Err(format!("file systems are {got:?}, not {want:?}"));
    }
    for (name, f) in &model.fs {
        let ds = dsl.find(name).map_err(|e| format!("{name}: {e:?}"))?;
        if !f.foreign && reader.read_head(name).await? != f.files {
            return Err(format!("{name}: other files than there should be"));
        }
        let snaps = dsl.snapshots(&ds).await.map_err(|e| format!("{name}: {e:?}"))?;
        let names: Vec<String> = snaps.iter().map(|s| s.snapname()).collect();
        let want: Vec<String> = f.snaps.iter().map(|s| s.name.clone()).collect();
        if names != want {
            return Err(format!("{name}: snapshots are {names:?}, not {want:?}"));
        }
        for (snap, want) in snaps.iter().zip(&f.snaps).filter(|_| !f.foreign) {
            let fs =
                Zfs::open(snap, MountOpts::from_props(snap)).await.map_err(|e| format!("{}: {e:?}", snap.name()))?;
            let files = reader.read_files(&fs).await.map_err(|e| format!("{}: {e:?}", snap.name()))?;
            fs.unmount().await.map_err(|e| format!("{}: {e:?}", snap.name()))?;
            if files != want.files {
                return Err(format!("{}: other files than there should be", snap.name()));
            }
            let holds = dsl.holds(snap).await.map_err(|e| format!("{}: {e:?}", snap.name()))?;
            if holds.iter().map(|h| h.tag.clone()).collect::<BTreeSet<_>>() != want.holds {
                return Err(format!("{}: holds are {holds:?}", snap.name()));
            }
        }
        let marks = dsl.bookmarks(&ds).await.map_err(|e| format!("{name}: {e:?}"))?;
        if marks.iter().map(|m| m.name.clone()).collect::<BTreeSet<_>>() != f.bookmarks.keys().cloned().collect() {
            return Err(format!("{name}: bookmarks are {marks:?}"));
        }
        let origin = dsl.origin_of(&ds).await.map_err(|e| format!("{name}: {e:?}"))?.map(|s| s.name());
        let want = f.origin.and_then(|id| model.snap(id)).map(|(fs, s)| format!("{fs}@{}", s.name));
        if origin != want {
            return Err(format!("{name}: its origin is {origin:?}, not {want:?}"));
        }
    }
    Ok(())
}

/// The file system that one stands in.
fn parent_of(name: &str) -> &str {
    name.rsplit_once('/').map_or(name, |(parent, _)| parent)
}

/// Loads every key of a pool of the collection; pools that are made here have none.
async fn unlock(pool: &Pool) -> Check {
    let say = |e: base::Error| format!("{e:?}");
    let dsl = pool.dsl();
    for root in dsl.encryption_roots(&dsl.root().name()).map_err(say)? {
        let dir = dsl.find_dir(&root).map_err(say)?;
        let info = dsl.crypt_info(&dir).ok_or_else(|| format!("{root} is not encrypted"))?;
        let key = KeyMaterial::new(crate::reference::key(info.format).as_bytes());
        dsl.load_key(&root, &key, false).await.map_err(|e| format!("key of {root}: {e:?}"))?;
    }
    Ok(())
}

/// The longest that a seed may take, in virtual time.
const SPAN_MAX: Nanos = Nanos::from_secs(24 * 3600);

/// Runs a seed; its disks at the end, exported.
pub fn run_seed(seed: u64, ops: u64) -> Result<Vec<DiskImage>, String> {
    let mut snaps = Snaps::new(seed);
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

/// The disks after `ops` operations, and their layout. Blocks may still wait to be freed.
pub fn images_after(seed: u64, ops: u64) -> Check<(Vec<DiskImage>, Layout)> {
    let mut snaps = Snaps::new(seed);
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

/// The operation that [`cuts`] cuts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cut {
    /// Three snapshots are destroyed at once.
    Snapshots,
    /// A file system is taken back to its last snapshot.
    Rollback,
    /// A file system is destroyed.
    FileSystem,
    /// A clone that was written to is destroyed.
    Clone,
    /// A clone and its origin swap roles.
    Promote,
    /// A snapshot that has a clone is destroyed as soon as that is: both go together.
    Deferred,
}

/// Everything that [`cuts`] cuts.
pub const CUTS: [Cut; 6] = [Cut::Snapshots, Cut::Rollback, Cut::FileSystem, Cut::Clone, Cut::Promote, Cut::Deferred];

/// One operation, cut at every completion of a device.
pub fn cuts(seed: u64, what: Cut, every: usize) -> Result<u64, String> {
    let mut snaps = Snaps::new(seed);
    let lab = snaps.lab.clone();
    let prepared = lab.sim.try_block_on_for(SPAN_MAX, async {
        snaps.create().await?;
        let fs = format!("{POOL}/n0");
        snaps.pool().dsl().create_fs(&fs, Vec::new(), new_fs(&snaps.lab.sim)).await.map_err(|e| format!("{e:?}"))?;
        snaps.model.fs.insert(fs.clone(), Fs::default());
        for n in 0..6 {
            for _ in 0..5 {
                snaps.write().await?;
            }
            if n < 5 && what != Cut::FileSystem {
                let got = snaps.pool().dsl().snapshot(vec![format!("{fs}@s{n}")], false, Vec::new()).await;
                got.map_err(|e| format!("{e:?}"))?;
                let id = snaps.id();
                let f = snaps.model.fs.get_mut(&fs).expect("made");
                let files = f.files.clone();
                f.snaps.push(Snap { id, name: format!("s{n}"), files, holds: BTreeSet::new(), deferred: false });
            }
        }
        let copy = format!("{POOL}/c0");
        let say = |e: base::Error| format!("{e:?}");
        if matches!(what, Cut::Clone | Cut::Promote | Cut::Deferred) {
            let origin = format!("{fs}@s2");
            snaps.pool().dsl().clone_snapshot(&origin, &copy, Vec::new()).await.map_err(say)?;
            let snap = snaps.model.fs[&fs].snaps[2].clone();
            let f = Fs { files: snap.files, origin: Some(snap.id), ..Fs::default() };
            snaps.model.fs.insert(copy.clone(), f);
            for _ in 0..9 {
                snaps.write().await?;
            }
            if what == Cut::Deferred {
                snaps.pool().dsl().destroy_snapshots(vec![origin], true).await.map_err(say)?;
                snaps.model.fs.get_mut(&fs).expect("made").snaps[2].deferred = true;
            }
        }
        snaps.pool().sync().await.map_err(|e| format!("{e:?}"))?;
        for disk in &snaps.lab.disks {
            bdev::flush(disk).await.map_err(|e| format!("flush: {e:?}"))?;
            disk.start_log();
        }
        let before = snaps.model.clone();
        snaps.pool().dsl().set_freed_per_txg(5);
        let f = snaps.model.fs.get_mut(&fs).expect("made");
        if what == Cut::FileSystem {
            snaps.model.fs.remove(&fs);
            snaps.pool().dsl().destroy_fs(&fs).await.map_err(|e| format!("{e:?}"))?;
        } else if matches!(what, Cut::Clone | Cut::Deferred) {
            snaps.model.fs.remove(&copy);
            snaps.model.settle();
            snaps.pool().dsl().destroy_fs(&copy).await.map_err(say)?;
        } else if what == Cut::Promote {
            let moving: Vec<Snap> = f.snaps.drain(..3).collect();
            let beyond = f.origin.replace(moving[2].id);
            let c = snaps.model.fs.get_mut(&copy).expect("made");
            (c.snaps, c.origin) = (moving, beyond);
            snaps.pool().dsl().promote(&copy).await.map_err(say)?;
        } else if what == Cut::Rollback {
            f.files = f.snaps[4].files.clone();
            snaps.pool().dsl().rollback(&format!("{fs}@s4")).await.map_err(|e| format!("{e:?}"))?;
        } else {
            f.snaps.drain(1..4);
            let names = (1..4).map(|n| format!("{fs}@s{n}")).collect();
            snaps.pool().dsl().destroy_snapshots(names, false).await.map_err(|e| format!("{e:?}"))?;
        }
        snaps.drain().await?;
        Ok::<Model, String>(before)
    });
    let before = prepared.map_err(|report| format!("stalled: {report}"))??;
    let after = snaps.model.clone();
    let layout = snaps.layout.clone();
    let logs: Vec<DiskLog> = lab.disks.iter().filter_map(|d| d.take_log()).collect();
    lab.sim.crash();
    std::mem::forget((snaps, lab));
    let mut moments: Vec<u64> = logs.iter().flat_map(|l| l.completions()).collect();
    moments.sort_unstable();
    let mut replays: Vec<_> = logs.iter().map(DiskLog::replay).collect();
    let (mut count, mut asked) = (0, 0);
    for (n, seq) in moments.into_iter().enumerate().step_by(every) {
        let cut_seed = seed.wrapping_mul(1_000_003).wrapping_add(seq);
        let images: Vec<DiskImage> = replays
            .iter_mut()
            .enumerate()
            .map(|(d, replay)| {
                replay.to_seq(seq);
                replay.cut(sim::CutStyle::Seeded, cut_seed.wrapping_add((d as u64) << 40))
            })
            .collect();
        let in_part = check_partly(&images).map_err(|e| format!("seed {seed} cut {n}: at once: {e}"))?;
        if in_part && asked < 3 {
            asked += 1;
            let scratch = Scratch::new(&format!("snapcut-{seed}-{n}")).map_err(|e| e.to_string())?;
            judge::save(&images, scratch.path())?;
            if let Verdict::Bad(why) = judge::ask_zdb(scratch.path(), &["-bcc"]) {
                return Err(format!("seed {seed} cut {n}: freed in part: {why}"));
            }
        }
        let lab = Rc::new(Lab::with_images(cut_seed, images, true));
        let mut reader = Snaps::new(seed);
        reader.lab = lab.clone();
        reader.layout = layout.clone();
        let done = lab.sim.try_block_on_for(SPAN_MAX, async {
            let pool = lab.import(false, layout.opts()).await.map_err(|e| format!("import: {e:?}"))?;
            pool.dsl().set_freed_per_txg(7);
            reader.pool = Some(pool.clone());
            let first = compare(&pool, &before, &reader).await;
            if let Err(e) = &first {
                compare(&pool, &after, &reader).await.map_err(|f| format!("neither before ({e}) nor after ({f})"))?;
            }
            reader.drain().await?;
            pool.sync().await.map_err(|e| format!("sync: {e:?}"))?;
            reader.pool = None;
            pool.export().await.map_err(|e| format!("export: {e:?}"))
        });
        done.map_err(|report| format!("stalled: {report}"))
            .and_then(|r| r)
            .map_err(|e| format!("seed {seed} cut {n}: {e}"))?;
        check_images(&lab.images()).map_err(|e| format!("seed {seed} cut {n}: when done: {e}"))?;
        count += 1;
    }
    Ok(count)
}
