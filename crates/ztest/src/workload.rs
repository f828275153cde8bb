//! Seeded operations, done to a pool and to the model, which must agree on every outcome.
//!
//! A [`Runner`] draws one operation after the other. The frequency of each kind is drawn once for
//! each seed (*swarm*): most seeds lack some kinds altogether, which reaches states that an even
//! mixture never does. An operation is first decided by the model (`Ok` or the kind of error), then
//! done by the engine; both must agree, except that the engine may run out of space. Times come
//! from the engine: each must lie within the operation, and those that the operation should not
//! touch must not change.

mod attrs;
mod bulk;
mod clones;
mod data;
mod datasets;
mod names;
mod owners;

use std::collections::BTreeMap;
use std::rc::Rc;

use base::{ErrorKind, Nanos, ObjectId, WallTime};
use bdev::Bytes;
use dsl::props::PropValue;
use rt::join::join_all;
use sim::Rng;
use spa::Pool;
use zpl::{Attr, Cred, Fallocate, FileKind, MountOpts, RenameFlags, SetAttr, SetTime, SetXattr, Zfs};

use crate::Check;
use crate::lab::{Lab, Layout, POOL, Shape, new_fs};
use crate::model::{Body, Content, DsModel, FsModel, Inode, PoolModel, check_name};
use crate::tree;

/// The kind of pool of a seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Profile {
    /// A small pool and a bit of everything.
    Small,
    /// Filled to ENOSPC, then a fifth deleted.
    Full,
    /// Larger files under all codecs, record sizes and checksums.
    Codecs,
    /// Thousands of files in a directory.
    Many,
    /// Files that are holes for the most part.
    Sparse,
    /// Few small changes in each txg, each within one transaction: for power cuts.
    Cuts,
}

impl Profile {
    /// The profile of a seed.
    pub fn of(seed: u64) -> Profile {
        match seed % 8 {
            0..=2 => Profile::Small,
            3 | 4 => Profile::Codecs,
            5 => Profile::Full,
            6 => Profile::Many,
            _ => Profile::Sparse,
        }
    }
}

/// Kinds of operations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    Create,
    Mkdir,
    Symlink,
    Mknod,
    Link,
    Unlink,
    Rmdir,
    Rename,
    Write,
    Append,
    Truncate,
    Fallocate,
    Rewrite,
    Setattr,
    Setxattr,
    Removexattr,
    Read,
    Fsync,
    Sync,
    Kick,
    Rest,
    Ghost,
    Parallel,
    CreateFs,
    DestroyFs,
    RenameFs,
    SetProp,
    InheritProp,
    Remount,
    /// Only in pools with the feature: [`Runner::have_all_features`] gives it a weight.
    Clone,
    /// These only with [`Runner::have_owners`].
    Owner,
    Limit,
    Snapshot,
    Rollback,
}

const KINDS: [(Kind, u64); 29] = [
    (Kind::Create, 120),
    (Kind::Mkdir, 30),
    (Kind::Symlink, 12),
    (Kind::Mknod, 6),
    (Kind::Link, 25),
    (Kind::Unlink, 50),
    (Kind::Rmdir, 15),
    (Kind::Rename, 50),
    (Kind::Write, 150),
    (Kind::Append, 60),
    (Kind::Truncate, 40),
    (Kind::Fallocate, 25),
    (Kind::Rewrite, 20),
    (Kind::Setattr, 30),
    (Kind::Setxattr, 40),
    (Kind::Removexattr, 15),
    (Kind::Read, 30),
    (Kind::Fsync, 6),
    (Kind::Sync, 12),
    (Kind::Kick, 25),
    (Kind::Rest, 15),
    (Kind::Ghost, 12),
    (Kind::Parallel, 15),
    (Kind::CreateFs, 6),
    (Kind::DestroyFs, 3),
    (Kind::RenameFs, 3),
    (Kind::SetProp, 14),
    (Kind::InheritProp, 3),
    (Kind::Remount, 4),
];

const A: u8 = 1;
const M: u8 = 2;
const C: u8 = 4;

/// A file without a name that is still open.
struct Ghost {
    ds: String,
    ino: u64,
    inode: Inode,
}

/// The place and the time of an operation.
struct Turn {
    ds: String,
    fs: Rc<Zfs>,
    start: WallTime,
}

/// Draws operations and does them.
pub struct Runner {
    /// The world.
    pub lab: Rc<Lab>,
    /// The pool, while it is imported.
    pub pool: Option<Rc<Pool>>,
    /// Its file systems in use.
    pub mounted: BTreeMap<String, Rc<Zfs>>,
    /// Its expected content.
    pub model: PoolModel,
    /// The devices and limits.
    pub layout: Layout,
    /// How often the engine ran out of space.
    pub full: u64,
    /// Operations so far.
    pub ops: u64,
    /// Changes so far: counts on when an operation changed something.
    pub changes: u64,
    /// Ranges cloned so far.
    pub clones: u64,
    /// The last operations.
    pub trace: std::collections::VecDeque<String>,
    profile: Profile,
    rng: Rng,
    weights: Vec<(Kind, u64)>,
    ghosts: Vec<Ghost>,
    /// The states of snapshots by file system, those of the oldest first.
    snaps: BTreeMap<String, Vec<Rc<DsModel>>>,
    /// Bytes of content that the model may hold; more makes deleting likely.
    budget: u64,
    write_max: u64,
    /// Everything gets a checksum.
    checksums: bool,
    print: bool,
}

fn nanos(t: WallTime) -> i128 {
    i128::from(t.secs) * 1_000_000_000 + i128::from(t.nanos)
}

fn text(name: &[u8]) -> String {
    let s = String::from_utf8_lossy(name).into_owned();
    if s.len() > 24 { format!("{}...({})", s.chars().take(12).collect::<String>(), name.len()) } else { s }
}

impl Runner {
    /// A world and an empty pool for the seed.
    pub fn new(seed: u64, profile: Profile) -> Check<Runner> {
        let mut rng = Rng::stream(seed, 77);
        let size = match profile {
            Profile::Full => (64 + rng.below(100)) << 20,
            Profile::Small => (64 + rng.below(200)) << 20,
            Profile::Cuts => 64 << 20,
            _ => (300 + rng.below(700)) << 20,
        };
        let mut layout = Layout::draw(&mut rng, size);
        if profile == Profile::Cuts {
            layout.dirty_max = 64 << 20;
        }
        let lab = Rc::new(Lab::new(seed, &layout));
        let mut weights = Vec::new();
        for (kind, usual) in KINDS {
            let needed = matches!(kind, Kind::Create | Kind::Write);
            let weight = match rng.below(10) {
                0 | 1 if !needed => 0,
                2 | 3 => usual * 3,
                4 => usual.div_ceil(3),
                _ => usual,
            };
            let weight = match (profile, kind) {
                (Profile::Cuts, Kind::Ghost | Kind::Parallel | Kind::Remount | Kind::Fallocate) => 0,
                (Profile::Cuts, Kind::Kick | Kind::Rest) => usual,
                (Profile::Many, Kind::Create) => usual * 8,
                (Profile::Many, Kind::Write | Kind::Append) => weight / 4 + 1,
                (Profile::Sparse, Kind::Fallocate | Kind::Truncate) => usual * 3,
                _ => weight,
            };
            weights.push((kind, weight));
        }
        let budget = match profile {
            Profile::Full => u64::MAX,
            Profile::Codecs => 60 << 20,
            Profile::Cuts => 2 << 20,
            _ => 10 << 20,
        };
        let write_max = match profile {
            Profile::Codecs | Profile::Full => 3 << 20,
            Profile::Cuts => 100 << 10,
            Profile::Many => 8 << 10,
            _ => 400 << 10,
        };
        Ok(Runner {
            lab,
            pool: None,
            mounted: BTreeMap::new(),
            model: PoolModel::default(),
            layout,
            full: 0,
            ops: 0,
            changes: 0,
            clones: 0,
            trace: std::collections::VecDeque::new(),
            profile,
            rng,
            weights,
            ghosts: Vec::new(),
            snaps: BTreeMap::new(),
            budget,
            write_max,
            checksums: false,
            print: std::env::var_os("ZTEST_TRACE").is_some(),
        })
    }

    /// The pool, which is still to be made, has every feature that weir writes. Names have up to
    /// 1023 bytes then, and files are cloned.
    pub fn have_all_features(&mut self) {
        self.layout.features = crate::lab::all_features();
        let weight = [20, 60, 150][self.rng.below(3) as usize];
        self.weights.push((Kind::Clone, weight));
    }

    /// A runner on a pool of that content, which is imported in that world.
    pub fn on(seed: u64, lab: &Rc<Lab>, pool: Rc<Pool>, model: PoolModel, layout: &Layout) -> Check<Runner> {
        let (lab, layout) = (lab.clone(), layout.clone());
        Ok(Runner { lab, pool: Some(pool), model, layout, ..Runner::new(seed, Profile::Cuts)? })
    }

    /// Nothing waits for the intent log any more: the state after an import is that of a txg.
    pub fn no_logs(&mut self) {
        self.weights.retain(|(kind, _)| *kind != Kind::Fsync);
    }

    /// Longest name in bytes.
    fn longest_name(&self) -> usize {
        if self.layout.features.contains(&ondisk::feature::FeatureId::Longname) { 1023 } else { 255 }
    }

    /// Has all blocks get a checksum from now on: without one rot cannot be detected.
    pub fn keep_checksums(&mut self) {
        self.checksums = true;
    }

    /// Makes an encrypted file system with that hexadecimal key, and no more file systems after it;
    /// false if the pool has no encryption. The key stays loaded.
    pub async fn seal(&mut self, name: &str, key: &'static [u8]) -> Check<bool> {
        use dsl::crypto::{KeyFormat, KeyMaterial, NewCrypt, NewKey};
        self.weights.retain(|(k, _)| !matches!(k, Kind::CreateFs | Kind::DestroyFs | Kind::RenameFs));
        let enabled = ondisk::feature::enable_closure_ids(&self.layout.features);
        if !enabled.contains(&ondisk::feature::FeatureId::Encryption) {
            return Ok(false);
        }
        let (format, material) = (KeyFormat::Hex, KeyMaterial::new(key));
        let key = Some(NewKey { format, material, iters: None, location: "prompt".into() });
        let crypt = NewCrypt { suite: Some(Some(zio::crypto::Suite::Aes256Gcm)), key };
        self.note(format!("zfs create -o encryption=on {name}"));
        let made = self.pool().dsl().create_fs_encrypted(name, Vec::new(), crypt, new_fs(&self.lab.sim)).await;
        made.map_err(|e| format!("create {name}: {e:?}"))?;
        self.enter_dataset(name.into(), Vec::new()).await?;
        self.refresh();
        Ok(true)
    }

    /// The same with devices that stand together in that shape.
    pub fn shaped(mut self, seed: u64, shape: &'static Shape) -> Runner {
        let mut rng = Rng::stream(seed, 78);
        self.layout = self.layout.shaped(shape, &mut rng);
        self.lab = Rc::new(Lab::new(seed, &self.layout));
        self
    }

    fn note(&mut self, what: String) {
        if self.print {
            eprintln!("{:6} {what}", self.ops);
        }
        if self.trace.len() >= 12 {
            self.trace.pop_front();
        }
        self.trace.push_back(what);
    }

    /// The pool; it must be imported.
    pub fn pool(&self) -> Rc<Pool> {
        self.pool.clone().expect("the pool is imported")
    }
    fn now(&self) -> WallTime {
        self.lab.sim.rt().wall_clock()
    }

    /// Makes the pool.
    pub async fn create(&mut self) -> Check {
        let mut props: Vec<(String, PropValue)> = Vec::new();
        if self.rng.percent(85) {
            props.push(("atime".into(), PropValue::Num(0)));
        }
        for _ in 0..self.rng.below(4) {
            let (name, value) = self.draw_prop();
            let enabled = self.unsupported(name, &value).is_ok();
            if enabled && !["quota", "reservation", "readonly"].contains(&name) && !props.iter().any(|(n, _)| n == name)
            {
                props.push((name.into(), value));
            }
        }
        self.note(format!("create pool {:?} ashift {} {props:?}", self.layout.devices, self.layout.ashift));
        if self.longest_name() > 255 {
            props.push(("longname".into(), PropValue::Num(1)));
        }
        let props = crate::lab::plain(props);
        let pool = self.lab.create(&self.layout, props.clone()).await.map_err(|e| format!("create: {e:?}"))?;
        self.pool = Some(pool);
        self.enter_dataset(POOL.into(), props).await?;
        self.refresh();
        Ok(())
    }

    /// Whether the pool's features allow the value.
    fn unsupported(&self, prop: &str, value: &PropValue) -> Result<(), ErrorKind> {
        let enabled = ondisk::feature::enable_closure_ids(&self.layout.features);
        match dsl::props::needed_feature(prop, value) {
            Some(id) if !enabled.contains(&id) => Err(ErrorKind::Unsupported),
            _ => Ok(()),
        }
    }

    /// Takes a new, empty dataset into the model.
    async fn enter_dataset(&mut self, name: String, props: Vec<(String, PropValue)>) -> Check {
        let fs = self.mount(&name).await?;
        let root = fs.root();
        let a = fs.getattr(root).await.map_err(|e| format!("root of {name}: {e:?}"))?;
        let inode = Inode { mode: 0o755, ..made(&a, Body::Dir { parent: root.0, entries: BTreeMap::new() }) };
        let model =
            FsModel { root: root.0, inodes: BTreeMap::from([(root.0, Rc::new(inode))]), longest: self.longest_name() };
        let ds = DsModel { props: props.into_iter().collect(), fs: model, quotas: BTreeMap::new(), atime: false };
        self.model.datasets.insert(name, Rc::new(ds));
        Ok(())
    }

    async fn mount(&mut self, name: &str) -> Check<Rc<Zfs>> {
        if let Some(fs) = self.mounted.get(name) {
            return Ok(fs.clone());
        }
        let ds = self.pool().dsl().find(name).map_err(|e| format!("{name}: {e:?}"))?;
        let fs = Zfs::open(&ds, MountOpts::from_props(&ds)).await.map_err(|e| format!("mount {name}: {e:?}"))?;
        self.mounted.insert(name.into(), fs.clone());
        Ok(fs)
    }
    async fn unmount(&mut self, name: &str) -> Check {
        self.ghosts.retain(|g| g.ds != name);
        if let Some(fs) = self.mounted.remove(name) {
            fs.unmount().await.map_err(|e| format!("unmount {name}: {e:?}"))?;
        }
        Ok(())
    }

    /// Pushes changed properties where they count.
    fn refresh(&mut self) {
        self.changes += 1;
        let names: Vec<String> = self.model.datasets.keys().cloned().collect();
        for name in names {
            if self.model.prop(&name, "atime") != 0 {
                self.model.ds_mut(&name).atime = true;
            }
            if let Some(fs) = self.mounted.get(&name) {
                fs.set_opts(MountOpts::from_props(fs.dataset()));
            }
        }
    }

    /// Unmounts everything and exports the pool.
    pub async fn export(&mut self) -> Check {
        self.note("export".into());
        let names: Vec<String> = self.mounted.keys().cloned().collect();
        for name in names {
            self.unmount(&name).await?;
        }
        if let Some(pool) = self.pool.take() {
            pool.export().await.map_err(|e| format!("export: {e:?}"))?;
        }
        Ok(())
    }
    /// Unmounts everything and brings it to the disks; the pool stays imported.
    pub async fn settle(&mut self) -> Check {
        let names: Vec<String> = self.mounted.keys().cloned().collect();
        for name in names {
            self.unmount(&name).await?;
        }
        self.pool().sync().await.map_err(|e| format!("sync: {e:?}"))
    }
    /// Drops the pool without closing it: its world has ended.
    pub fn forget(&mut self) {
        self.ghosts.clear();
        self.mounted.clear();
        self.pool = None;
    }
    /// Imports the pool again.
    pub async fn import(&mut self) -> Check {
        self.import_cut().await?;
        match self.pool().notices() {
            notices if notices.is_empty() => Ok(()),
            notices => Err(format!("import: {notices:?}")),
        }
    }
    /// The same after a power cut: labels may be newer than the last uberblock.
    pub async fn import_cut(&mut self) -> Check {
        self.note("import".into());
        let pool = self.lab.import(false, self.layout.opts()).await.map_err(|e| format!("import: {e:?}"))?;
        self.pool = Some(pool);
        Ok(())
    }
    /// Compares everything.
    pub async fn compare(&mut self) -> Check {
        self.note("compare".into());
        tree::compare_pool(&self.pool(), &self.model, &self.mounted).await
    }

    // --- drawing ---

    fn draw_kind(&mut self) -> Kind {
        let footprint: u64 = self.model.datasets.values().map(|d| d.fs.footprint()).sum();
        if footprint > self.budget && self.rng.percent(40) {
            return if self.rng.percent(60) { Kind::Unlink } else { Kind::Truncate };
        }
        let total: u64 = self.weights.iter().map(|(_, w)| w).sum();
        let mut at = self.rng.below(total);
        for (kind, weight) in &self.weights {
            if at < *weight {
                return *kind;
            }
            at -= weight;
        }
        Kind::Sync
    }

    async fn turn(&mut self) -> Check<Turn> {
        let names: Vec<String> = self.model.datasets.keys().cloned().collect();
        let ds = names[self.rng.below(names.len() as u64) as usize].clone();
        let fs = self.mount(&ds).await?;
        Ok(Turn { ds, fs, start: self.now() })
    }
    fn fs(&self, t: &Turn) -> &FsModel {
        &self.model.datasets[&t.ds].fs
    }
    fn fs_mut(&mut self, t: &Turn) -> &mut FsModel {
        &mut self.model.ds_mut(&t.ds).fs
    }

    fn pick(&mut self, t: &Turn, want: impl Fn(&Inode) -> bool) -> Option<u64> {
        let highest = *self.fs(t).inodes.keys().next_back()?;
        for _ in 0..24 {
            let from = self.rng.below(highest + 1);
            let (ino, inode) = self.fs(t).inodes.range(from..).next()?;
            if want(inode) {
                return Some(*ino);
            }
        }
        None
    }
    fn pick_dir(&mut self, t: &Turn) -> u64 {
        if self.rng.percent(25) {
            return self.fs(t).root;
        }
        self.pick(t, Inode::is_dir).unwrap_or(self.fs(t).root)
    }
    fn pick_file(&mut self, t: &Turn) -> Option<u64> {
        self.pick(t, |i| i.kind == FileKind::File)
    }
    fn pick_entry(&mut self, t: &Turn) -> Option<(u64, Vec<u8>)> {
        for _ in 0..8 {
            let dir = self.pick_dir(t);
            let name = self.draw_name();
            let entries = self.fs(t).get(dir).entries()?;
            if let Some((name, _)) = entries.range(name..).next().or_else(|| entries.iter().next()) {
                return Some((dir, name.clone()));
            }
        }
        None
    }
    fn draw_name(&mut self) -> Vec<u8> {
        match self.rng.below(100) {
            0 => [&b""[..], b".", b"..", b"a/b", b"nul\0"][self.rng.below(5) as usize].to_vec(),
            1 => vec![b'x'; self.longest_name() + 1 + self.rng.below(10) as usize],
            2..=4 => {
                let len = self.rng.between(60, self.longest_name() as u64) as usize;
                vec![b'l' + self.rng.below(4) as u8; len]
            }
            5..=7 => format!("\u{e4}\u{f6}{}\u{4e2d}", self.rng.below(20)).into_bytes(),
            8 => vec![0xff, 0xfe, b'0' + self.rng.below(10) as u8],
            _ if self.profile == Profile::Many => format!("file-{:06}", self.rng.below(20_000)).into_bytes(),
            _ => format!("n{}", self.rng.below(40)).into_bytes(),
        }
    }
    fn draw_data(&mut self, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        if self.draws_few_sectors(&mut data) {
            return data;
        }
        match self.rng.below(7) {
            0 => self.rng.fill(&mut data),
            1 => data.fill(self.rng.below(256) as u8),
            2 => {}
            3 => {
                let word = format!("line {} of a text that repeats itself; ", self.rng.below(1000));
                data.iter_mut().zip(word.bytes().cycle()).for_each(|(d, s)| *d = s);
            }
            4 => {
                // Compressible in parts: every other KiB is noise.
                for (n, part) in data.chunks_mut(1024).enumerate() {
                    if n % 2 == 0 {
                        self.rng.fill(part);
                    }
                }
            }
            5 => {
                let step = self.rng.between(1, 9) as usize;
                data.iter_mut().enumerate().for_each(|(i, d)| *d = (i / step) as u8);
            }
            _ => {
                // A few bytes in zeros.
                for _ in 0..self.rng.between(1, 5) {
                    if let Some(d) = (!data.is_empty()).then(|| self.rng.below(len as u64) as usize) {
                        data[d] = self.rng.between(1, 255) as u8;
                    }
                }
            }
        }
        data
    }
    fn draw_len(&mut self) -> u64 {
        match self.rng.below(10) {
            0 => self.rng.below(4),
            1..=3 => self.rng.between(1, 600),
            4..=6 => self.rng.between(1, 20_000.min(self.write_max)),
            7 => [512, 4096, 8192, 16384, 131_072][self.rng.below(5) as usize].min(self.write_max),
            _ => self.rng.between(1, self.write_max),
        }
    }
    fn draw_offset(&mut self, size: u64) -> u64 {
        let off = match self.rng.below(10) {
            0 | 1 => 0,
            2..=6 => self.rng.below(size + 1),
            7 => size,
            _ => match self.profile {
                Profile::Sparse => {
                    let bits = self.rng.between(10, 46);
                    self.rng.below(1 << bits)
                }
                Profile::Cuts => self.rng.below(size + 50_000),
                _ => self.rng.below(size + 3_000_000),
            },
        };
        if self.rng.percent(40) { off & !([511, 4095, 131_071][self.rng.below(3) as usize]) } else { off }
    }
    fn draw_cred(&mut self) -> Cred {
        let id = |rng: &mut Rng| [0, 1000, 1001, 65_534, 4_000_000_000][rng.below(5) as usize];
        Cred::new(id(&mut self.rng), id(&mut self.rng))
    }
    fn draw_time(&mut self) -> WallTime {
        let secs = match self.rng.below(4) {
            0 => 0,
            1 => -(self.rng.below(1 << 40) as i64),
            2 => self.rng.below(1 << 33) as i64,
            _ => self.rng.below(2_000_000_000) as i64,
        };
        WallTime { secs, nanos: self.rng.below(1_000_000_000) as u32 }
    }
    fn draw_prop(&mut self) -> (&'static str, PropValue) {
        const PROPS: [(&str, &[&str]); 8] = [
            (
                "compression",
                &[
                    "on",
                    "off",
                    "lz4",
                    "lzjb",
                    "zle",
                    "gzip",
                    "gzip-1",
                    "gzip-2",
                    "gzip-5",
                    "gzip-9",
                    "zstd",
                    "zstd-1",
                    "zstd-3",
                    "zstd-19",
                    "zstd-fast",
                    "zstd-fast-10",
                    "zstd-fast-1000",
                ],
            ),
            (
                "recordsize",
                &["512", "1K", "2K", "4K", "8K", "16K", "32K", "64K", "128K", "256K", "512K", "1M", "4M", "16M"],
            ),
            ("checksum", &["on", "fletcher2", "fletcher4", "sha256", "sha512", "off"]),
            ("copies", &["1", "2", "3"]),
            ("xattr", &["sa", "dir", "sa"]),
            ("redundant_metadata", &["all", "most"]),
            ("dnodesize", &["legacy", "1k", "2k", "4k", "16k", "auto"]),
            ("user:note", &["one", "two", ""]),
        ];
        if let Some(dedup) = self.draw_dedup() {
            return dedup;
        }
        let roll = self.rng.below(20);
        let (name, values) = match roll {
            0..=5 => PROPS[0],
            6..=10 => PROPS[1],
            11 | 12 => PROPS[2],
            13 => PROPS[3],
            14 | 15 => PROPS[4],
            16 => PROPS[5],
            17 => PROPS[6],
            18 => PROPS[7],
            _ => {
                return match self.rng.below(6) {
                    0 => {
                        ("quota", PropValue::Num(if self.rng.percent(50) { 0 } else { self.rng.between(1, 64) << 20 }))
                    }
                    1 => {
                        ("reservation", PropValue::Num(if self.rng.percent(50) { 0 } else { self.rng.below(16) << 20 }))
                    }
                    2 => ("atime", PropValue::Num(self.rng.below(2))),
                    3 => ("primarycache", PropValue::Num(self.rng.below(3))),
                    4 => ("direct", PropValue::Num(self.rng.below(3))),
                    _ => ("relatime", PropValue::Num(self.rng.below(2))),
                };
            }
        };
        let value = values[self.rng.below(values.len() as u64) as usize];
        let value = if self.checksums && name == "checksum" && value == "off" { "on" } else { value };
        let parsed = match dsl::props::find(name) {
            Some(p) => p.parse(value).expect("the table has valid words"),
            None => PropValue::Text(value.into()),
        };
        (name, parsed)
    }

    // --- comparing outcomes ---

    /// Model and engine must agree; returns the value if both succeeded. The engine may lack space.
    fn agree<G>(&mut self, what: &str, want: Result<(), ErrorKind>, got: base::Result<G>) -> Check<Option<G>> {
        match (want, got) {
            (Ok(()), Ok(v)) => Ok(Some(v)),
            (Err(k), Err(e)) if e.kind() == k => Ok(None),
            // The model does not count space: the engine may lack it in any operation.
            (_, Err(e)) if matches!(e.kind(), ErrorKind::NoSpace | ErrorKind::Quota) => {
                self.full += 1;
                self.note(format!("  no space: {e}"));
                let space = self.pool().allocator().space(metaslab_class());
                let free = space.total.saturating_sub(space.alloc);
                let quotas =
                    self.model.datasets.values().any(|d| d.props.keys().any(|k| k == "quota" || k == "reservation"));
                // A reservation may be of any size, and a quota may be less than the space in use.
                if free > 200 << 20 && !quotas && !matches!(what, "fallocate" | "set") {
                    return Err(format!("{what}: no space although {free} bytes are free: {e:?}"));
                }
                Ok(None)
            }
            (Ok(()), Err(e)) => Err(format!("{what}: {e:?}, should be done")),
            (Err(k), Err(e)) => Err(format!("{what}: {e:?}, should be {k:?}")),
            (Err(k), Ok(_)) => Err(format!("{what}: done, should be {k:?}")),
        }
    }

    /// Compares an object's attributes; those times that the operation sets must lie within it and
    /// are taken over.
    async fn adopt(&mut self, t: &Turn, ino: u64, mask: u8) -> Check {
        let a = t.fs.getattr(ObjectId(ino)).await.map_err(|e| format!("getattr {ino}: {e:?}"))?;
        self.adopt_attr(t, ino, mask, &a)
    }
    fn adopt_attr(&mut self, t: &Turn, ino: u64, mask: u8, a: &Attr) -> Check {
        let (start, end) = (nanos(t.start), nanos(self.now()));
        self.changes += u64::from(mask != 0);
        for (bit, what, time) in [(A, "atime", a.atime), (M, "mtime", a.mtime), (C, "ctime", a.ctime)] {
            if mask & bit != 0 && !(start..=end).contains(&nanos(time)) {
                return Err(format!(
                    "object {ino}: {what} {time:?} is not within the operation ({:?} to {:?})",
                    t.start,
                    self.now()
                ));
            }
        }
        let atime = self.model.datasets[&t.ds].atime;
        let m = self.fs_mut(t).get_mut(ino);
        if mask & A != 0 || atime {
            m.atime = a.atime;
        }
        if mask & M != 0 {
            m.mtime = a.mtime;
        }
        if mask & C != 0 {
            m.ctime = a.ctime;
        }
        tree::compare_attr(a, ino, m, atime)
    }

    /// Does one operation.
    pub async fn step(&mut self) -> Check {
        self.ops += 1;
        let kind = self.draw_kind();
        self.do_kind(kind).await.map_err(|e| format!("{kind:?}: {e}"))
    }

    /// Rewrites a part of a file.
    pub async fn rewrite_one(&mut self) -> Check {
        self.ops += 1;
        self.do_kind(Kind::Rewrite).await.map_err(|e| format!("Rewrite: {e}"))
    }

    async fn do_kind(&mut self, kind: Kind) -> Check {
        match kind {
            Kind::Create | Kind::Mkdir | Kind::Symlink | Kind::Mknod => self.make(kind).await,
            Kind::Link => self.link().await,
            Kind::Unlink | Kind::Rmdir => self.remove(kind == Kind::Rmdir).await,
            Kind::Rename => self.rename().await,
            Kind::Write | Kind::Append => self.write(kind == Kind::Append).await,
            Kind::Truncate => self.truncate().await,
            Kind::Fallocate => self.fallocate().await,
            Kind::Rewrite => self.rewrite().await,
            Kind::Clone => self.clone_range().await,
            Kind::Owner => self.change_owner().await,
            Kind::Limit => self.set_limit().await,
            Kind::Snapshot => self.make_snapshot().await,
            Kind::Rollback => self.roll_back().await,
            Kind::Setattr => self.setattr().await,
            Kind::Setxattr => self.setxattr().await,
            Kind::Removexattr => self.removexattr().await,
            Kind::Read => self.read().await,
            Kind::Fsync => {
                let t = self.turn().await?;
                let Some(ino) = self.pick_file(&t) else { return Ok(()) };
                self.note(format!("fsync {ino}"));
                t.fs.fsync(ObjectId(ino)).await.map_err(|e| format!("{e:?}"))
            }
            Kind::Sync => {
                self.note("sync".into());
                self.pool().sync().await.map_err(|e| format!("{e:?}"))
            }
            Kind::Kick => {
                self.note("kick".into());
                self.pool().txg().kick();
                Ok(())
            }
            Kind::Rest => {
                let span = Nanos::from_us(self.rng.below(3000));
                self.lab.sim.rt().sleep(span).await;
                Ok(())
            }
            Kind::Ghost => self.ghost().await,
            Kind::Parallel => self.parallel().await,
            Kind::CreateFs => self.create_fs().await,
            Kind::DestroyFs => self.destroy_fs().await,
            Kind::RenameFs => self.rename_fs().await,
            Kind::SetProp | Kind::InheritProp => self.set_prop(kind == Kind::InheritProp).await,
            Kind::Remount => {
                let t = self.turn().await?;
                self.note(format!("remount {}", t.ds));
                let name = t.ds.clone();
                drop(t);
                self.unmount(&name).await
            }
        }
    }
}

fn metaslab_class() -> metaslab::ClassKind {
    metaslab::ClassKind::Normal
}

/// The model of an object that was just made.
fn made(a: &Attr, body: Body) -> Inode {
    Inode {
        kind: a.kind,
        mode: a.mode & 0o7777,
        uid: a.uid,
        gid: a.gid,
        nlink: if a.kind == FileKind::Dir { 2 } else { 1 },
        rdev: a.rdev,
        generation: a.generation,
        atime: a.atime,
        mtime: a.mtime,
        ctime: a.ctime,
        crtime: a.crtime,
        xattrs: BTreeMap::new(),
        body,
    }
}
