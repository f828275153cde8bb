//! Seeded operations, done to a pool and to the model, which must agree on every outcome.
//!
//! A [`Runner`] draws one operation after the other. Which kinds come how often is drawn once for each seed (*swarm*): most seeds lack some kinds altogether, which reaches
//! states that an even mixture never does. An operation is first decided by the model (`Ok` or the kind of error), then done by the engine; both must say the same, except
//! that the engine may run out of space. Times come from the engine: each must lie within the operation, and those that the operation should not touch must not change.

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

/// What kind of pool a seed is about.
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
            0 | 1 | 2 => Profile::Small,
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
}

const KINDS: [(Kind, u64); 28] = [
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
    /// What must be in it.
    pub model: PoolModel,
    /// The devices and limits.
    pub layout: Layout,
    /// How often the engine ran out of space.
    pub full: u64,
    /// Operations so far.
    pub ops: u64,
    /// Changes so far: counts on when an operation changed something.
    pub changes: u64,
    /// What was done last.
    pub trace: std::collections::VecDeque<String>,
    profile: Profile,
    rng: Rng,
    weights: Vec<(Kind, u64)>,
    ghosts: Vec<Ghost>,
    /// Bytes of content that the model may hold; more makes deleting likely.
    budget: u64,
    write_max: u64,
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
            trace: std::collections::VecDeque::new(),
            profile,
            rng,
            weights,
            ghosts: Vec::new(),
            budget,
            write_max,
            print: std::env::var_os("ZTEST_TRACE").is_some(),
        })
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
        let model = FsModel { root: root.0, inodes: BTreeMap::from([(root.0, Rc::new(inode))]) };
        let ds = DsModel { props: props.into_iter().collect(), fs: model, atime: false };
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
    /// Forgets the pool, whose world has ended.
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
            1 => vec![b'x'; 256 + self.rng.below(10) as usize],
            2..=4 => {
                let len = self.rng.between(60, 255) as usize;
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
            ("recordsize", &["512", "1K", "2K", "4K", "8K", "16K", "32K", "64K", "128K", "256K", "512K", "1M"]),
            ("checksum", &["on", "fletcher2", "fletcher4", "sha256", "sha512", "off"]),
            ("copies", &["1", "2", "3"]),
            ("xattr", &["sa", "dir", "sa"]),
            ("redundant_metadata", &["all", "most"]),
            ("dnodesize", &["legacy", "1k", "2k", "4k", "16k", "auto"]),
            ("user:note", &["one", "two", ""]),
        ];
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
                return match self.rng.below(4) {
                    0 => {
                        ("quota", PropValue::Num(if self.rng.percent(50) { 0 } else { self.rng.between(1, 64) << 20 }))
                    }
                    1 => {
                        ("reservation", PropValue::Num(if self.rng.percent(50) { 0 } else { self.rng.below(16) << 20 }))
                    }
                    2 => ("atime", PropValue::Num(self.rng.below(2))),
                    _ => ("relatime", PropValue::Num(self.rng.below(2))),
                };
            }
        };
        let value = values[self.rng.below(values.len() as u64) as usize];
        let parsed = match dsl::props::find(name) {
            Some(p) => p.parse(value).expect("the table has valid words"),
            None => PropValue::Text(value.into()),
        };
        (name, parsed)
    }

    // --- comparing outcomes ---

    /// Both must say the same; the value if both say that it was done. The engine may lack space.
    fn agree<G>(&mut self, what: &str, want: Result<(), ErrorKind>, got: base::Result<G>) -> Check<Option<G>> {
        match (want, got) {
            (Ok(()), Ok(v)) => Ok(Some(v)),
            (Err(k), Err(e)) if e.kind() == k => Ok(None),
            // Before it says that something is not there it may say that the name cannot be.
            (_, Err(e)) if matches!(e.kind(), ErrorKind::NoSpace | ErrorKind::Quota) => {
                self.full += 1;
                self.note(format!("  no space: {e}"));
                let space = self.pool().allocator().space(metaslab_class());
                let free = space.total.saturating_sub(space.alloc);
                let quotas =
                    self.model.datasets.values().any(|d| d.props.keys().any(|k| k == "quota" || k == "reservation"));
                // Reserving may ask for any amount.
                if free > 200 << 20 && !quotas && what != "fallocate" {
                    return Err(format!("{what}: no space although {free} bytes are free: {e:?}"));
                }
                Ok(None)
            }
            (Ok(()), Err(e)) => Err(format!("{what}: {e:?}, should be done")),
            (Err(k), Err(e)) => Err(format!("{what}: {e:?}, should be {k:?}")),
            (Err(k), Ok(_)) => Err(format!("{what}: done, should be {k:?}")),
        }
    }

    /// Compares an object's attributes; those times that the operation sets must lie within it and are taken over.
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

    async fn do_kind(&mut self, kind: Kind) -> Check {
        match kind {
            Kind::Create | Kind::Mkdir | Kind::Symlink | Kind::Mknod => self.make(kind).await,
            Kind::Link => self.link().await,
            Kind::Unlink | Kind::Rmdir => self.remove(kind == Kind::Rmdir).await,
            Kind::Rename => self.rename().await,
            Kind::Write | Kind::Append => self.write(kind == Kind::Append).await,
            Kind::Truncate => self.truncate().await,
            Kind::Fallocate => self.fallocate().await,
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

    // --- names ---

    async fn make(&mut self, kind: Kind) -> Check {
        let t = self.turn().await?;
        let dir = self.pick_dir(&t);
        let name = self.draw_name();
        let mut cred = self.draw_cred();
        let mode = [0o644, 0o600, 0o755, 0o000, 0o777, 0o4755, 0o1777, 0o2755][self.rng.below(8) as usize];
        cred.uid = if mode & 0o2000 != 0 { 0 } else { cred.uid };
        let mut want = match self.fs(&t).check_new(dir, &name) {
            Ok(()) if name == b"." || name == b".." => Err(ErrorKind::Exists),
            other => other,
        };
        let d = ObjectId(dir);
        self.note(format!("{kind:?} {dir}/{} mode {mode:o}", text(&name)));
        let (got, body, mode) = match kind {
            Kind::Create => {
                let exclusive = self.rng.percent(70);
                if !exclusive && want == Err(ErrorKind::Exists) {
                    let there = self.fs(&t).lookup(dir, &name);
                    if let Some(there) = there {
                        let is_dir = self.fs(&t).get(there).is_dir();
                        let got = t.fs.create(d, &name, mode, &cred, false).await;
                        let want = if is_dir { Err(ErrorKind::IsDir) } else { Ok(()) };
                        if let Some(a) = self.agree("create what is there", want, got)? {
                            self.adopt_attr(&t, there, 0, &a)?;
                        }
                        return Ok(());
                    }
                }
                (t.fs.create(d, &name, mode, &cred, exclusive).await, Body::File(Content::default()), mode)
            }
            Kind::Mkdir => {
                (t.fs.mkdir(d, &name, mode, &cred).await, Body::Dir { parent: dir, entries: BTreeMap::new() }, mode)
            }
            Kind::Symlink => {
                let len = [1, 10, 60, 150, 300, 1000, 4095, 4096][self.rng.below(8) as usize];
                let target = vec![b'/' + self.rng.below(20) as u8; len];
                if len > 4095 && check_name(&name).is_ok() {
                    want = Err(ErrorKind::NameTooLong);
                } else if len > 4095 {
                    return Ok(());
                }
                (t.fs.symlink(d, &name, &target, &cred).await, Body::Symlink(target), 0o777)
            }
            _ => {
                let (bits, rdev) =
                    [(0o010000, 0), (0o140000, 0), (0o020000, 5 << 20 | 1), (0o060000, 259 << 20 | 70_000)]
                        [self.rng.below(4) as usize];
                (t.fs.mknod(d, &name, mode | bits, rdev, &cred).await, Body::Special, mode)
            }
        };
        let Some(a) = self.agree("make", want, got)? else { return Ok(()) };
        let parent = self.fs(&t).get(dir).clone();
        let mut inode = made(&a, body);
        (inode.mode, inode.uid, inode.gid) = (mode, cred.uid, cred.gid);
        if parent.mode & 0o2000 != 0 {
            inode.gid = parent.gid;
            if kind == Kind::Mkdir {
                inode.mode |= 0o2000;
            }
            // A set-group-id bit for a group that the maker is not in is a matter of its own: he is root here.
        }
        self.fs_mut(&t).insert(dir, &name, a.obj.0, inode);
        self.adopt_attr(&t, a.obj.0, A | M | C, &a)?;
        if a.crtime != a.mtime {
            return Err(format!("object {}: made at {:?}, changed at {:?}", a.obj, a.crtime, a.mtime));
        }
        self.adopt(&t, a.obj.0, 0).await?;
        self.adopt(&t, dir, M | C).await
    }

    async fn link(&mut self) -> Check {
        let t = self.turn().await?;
        let Some(ino) = self.pick(&t, |_| true) else { return Ok(()) };
        let dir = self.pick_dir(&t);
        let name = self.draw_name();
        if name == b"." || name == b".." {
            return Ok(());
        }
        let want = self.fs(&t).check_link(ino, dir, &name);
        self.note(format!("link {ino} {dir}/{}", text(&name)));
        let got = t.fs.link(ObjectId(ino), ObjectId(dir), &name).await;
        if self.agree("link", want, got)?.is_some() {
            self.fs_mut(&t).link(ino, dir, &name);
            self.adopt(&t, ino, C).await?;
            self.adopt(&t, dir, M | C).await?;
        }
        Ok(())
    }

    async fn remove(&mut self, want_dir: bool) -> Check {
        let t = self.turn().await?;
        let Some((dir, name)) = self.pick_entry(&t) else { return Ok(()) };
        // Mostly what can be done.
        let ino = self.fs(&t).lookup(dir, &name).expect("picked");
        let want_dir = if self.rng.percent(90) { self.fs(&t).get(ino).is_dir() } else { want_dir };
        self.remove_one(&t, dir, &name, want_dir).await.map(drop)
    }

    async fn remove_one(&mut self, t: &Turn, dir: u64, name: &[u8], want_dir: bool) -> Check<bool> {
        let want = self.fs(t).check_remove(dir, name, want_dir).map(drop);
        self.note(format!("remove {dir}/{} dir {want_dir}", text(name)));
        let d = ObjectId(dir);
        let got = if want_dir { t.fs.rmdir(d, name).await } else { t.fs.unlink(d, name).await };
        if self.agree("remove", want, got)?.is_none() {
            return Ok(false);
        }
        let ino = self.fs(t).lookup(dir, name).expect("checked");
        if self.fs_mut(t).remove(dir, name).is_none() {
            self.adopt(t, ino, C).await?;
        }
        self.adopt(t, dir, M | C).await?;
        Ok(true)
    }

    async fn rename(&mut self) -> Check {
        let t = self.turn().await?;
        let Some((dir, name)) = self.pick_entry(&t) else { return Ok(()) };
        let (to, new) = match self.pick_entry(&t) {
            Some(there) if self.rng.percent(40) => there,
            _ => (if self.rng.percent(40) { dir } else { self.pick_dir(&t) }, self.draw_name()),
        };
        if new == b"." || new == b".." {
            return Ok(());
        }
        let mut flags = RenameFlags::default();
        match self.rng.below(6) {
            0 => flags.noreplace = true,
            1 => flags.exchange = true,
            _ => {}
        }
        let want = self.fs(&t).check_rename((dir, &name), (to, &new), flags);
        self.note(format!("rename {dir}/{} to {to}/{} {flags:?}", text(&name), text(&new)));
        let got = t.fs.rename(ObjectId(dir), &name, ObjectId(to), &new, flags).await;
        if self.agree("rename", want.map(drop), got)?.is_none() || want == Ok(false) {
            return Ok(());
        }
        let (source, target) = self.fs_mut(&t).rename((dir, &name), (to, &new), flags.exchange);
        for ino in [Some(source), target].into_iter().flatten() {
            if self.fs(&t).inodes.contains_key(&ino) && ino != dir && ino != to {
                self.adopt(&t, ino, C).await?;
            }
        }
        self.adopt(&t, dir, M | C).await?;
        self.adopt(&t, to, M | C).await
    }

    // --- data ---

    async fn write(&mut self, append: bool) -> Check {
        let t = self.turn().await?;
        let Some(ino) = self.pick_file(&t) else { return self.make(Kind::Create).await };
        let size = self.fs(&t).get(ino).size();
        let off = if append { size } else { self.draw_offset(size) };
        let len = self.draw_len() as usize;
        let data = self.draw_data(len);
        self.note(format!("write {ino} {off}+{len} append {append} size {size}"));
        let got = t.fs.write(ObjectId(ino), off, self.pieces(&data), append).await;
        let Some((done, new_size)) = self.agree("write", Ok(()), got)? else { return Ok(()) };
        self.wrote(&t, ino, off, &data, done, new_size)?;
        self.adopt(&t, ino, if done == 0 { 0 } else { M | C }).await
    }

    fn wrote(&mut self, t: &Turn, ino: u64, off: u64, data: &[u8], done: u64, new_size: u64) -> Check {
        if done > data.len() as u64 || (done == 0 && !data.is_empty()) {
            return Err(format!("object {ino}: {done} of {} bytes were written", data.len()));
        }
        if done < data.len() as u64 {
            self.full += 1;
        }
        let Body::File(c) = &mut self.fs_mut(t).get_mut(ino).body else { unreachable!("picked as a file") };
        if done > 0 {
            c.write(off, &data[..done as usize]);
        }
        if c.size != new_size {
            return Err(format!("object {ino}: the size is said to be {new_size}, not {}", c.size));
        }
        Ok(())
    }

    /// The data in one or several slices.
    fn pieces(&mut self, data: &[u8]) -> Vec<Bytes> {
        let whole = Bytes::copy_from(data);
        if data.len() < 2 || self.rng.percent(60) {
            return vec![whole];
        }
        let at = self.rng.between(1, data.len() as u64 - 1) as usize;
        vec![whole.slice(..at), whole.slice(at..)]
    }

    async fn truncate(&mut self) -> Check {
        let t = self.turn().await?;
        let Some(ino) = self.pick_file(&t) else { return Ok(()) };
        let size = self.fs(&t).get(ino).size();
        let new = match self.rng.below(6) {
            0 => 0,
            1 => self.draw_offset(size),
            2 => size,
            _ => self.rng.below(size + 1),
        };
        self.note(format!("truncate {ino} from {size} to {new}"));
        let got = if self.rng.percent(50) {
            t.fs.truncate(ObjectId(ino), new).await
        } else {
            t.fs.setattr(ObjectId(ino), SetAttr { size: Some(new), ..SetAttr::default() }).await.map(drop)
        };
        if self.agree("truncate", Ok(()), got)?.is_some() {
            if let Body::File(c) = &mut self.fs_mut(&t).get_mut(ino).body {
                c.truncate(new);
            }
            self.adopt(&t, ino, M | C).await?;
        }
        Ok(())
    }

    async fn fallocate(&mut self) -> Check {
        let t = self.turn().await?;
        let Some(ino) = self.pick_file(&t) else { return Ok(()) };
        let size = self.fs(&t).get(ino).size();
        let off = self.draw_offset(size);
        let len = if self.rng.percent(30) { self.rng.between(1, size + 1) } else { self.draw_len().max(1) };
        let keep_size = self.rng.percent(50);
        let what = match self.rng.below(3) {
            0 => Fallocate::PunchHole,
            1 => Fallocate::ZeroRange { keep_size },
            _ => Fallocate::Allocate { keep_size },
        };
        self.note(format!("fallocate {ino} {what:?} {off}+{len} size {size}"));
        let got = t.fs.fallocate(ObjectId(ino), what, off, len).await;
        if self.agree("fallocate", Ok(()), got)?.is_none() {
            // Nothing, or the zeros without the new size.
            let a = t.fs.getattr(ObjectId(ino)).await.map_err(|e| format!("{e:?}"))?;
            if a.mtime != self.fs(&t).get(ino).mtime {
                return Err(format!("object {ino}: changed although fallocate failed"));
            }
            return Ok(());
        }
        let end = off + len;
        let mut changed = false;
        if let Body::File(c) = &mut self.fs_mut(&t).get_mut(ino).body {
            if !matches!(what, Fallocate::Allocate { .. }) && off < c.size {
                c.zero(off, end);
                changed = true;
            }
            let grow =
                matches!(what, Fallocate::ZeroRange { keep_size: false } | Fallocate::Allocate { keep_size: false });
            if grow && end > c.size {
                c.truncate(end);
                changed = true;
            }
        }
        self.adopt(&t, ino, if changed { M | C } else { 0 }).await
    }

    async fn read(&mut self) -> Check {
        let t = self.turn().await?;
        let Some(ino) = self.pick_file(&t) else { return Ok(()) };
        let size = self.fs(&t).get(ino).size();
        let (off, len) = (self.draw_offset(size), self.draw_len());
        self.note(format!("read {ino} {off}+{len}"));
        let got = t.fs.read(ObjectId(ino), off, len).await.map_err(|e| format!("read {ino}: {e:?}"))?;
        let total: u64 = got.iter().map(|b| b.len() as u64).sum();
        if total != len.min(size.saturating_sub(off)) {
            return Err(format!("object {ino}: {total} bytes of {len} at {off}, size {size}"));
        }
        let mut at = off;
        for part in got {
            if let Some(d) = self.fs(&t).get(ino).content().and_then(|c| c.difference(at, &part)) {
                return Err(format!("object {ino}: byte {d} is wrong"));
            }
            at += part.len() as u64;
        }
        Ok(())
    }

    // --- attributes ---

    async fn setattr(&mut self) -> Check {
        let t = self.turn().await?;
        let Some(ino) = self.pick(&t, |_| true) else { return Ok(()) };
        let mut set = SetAttr::default();
        let mut mask = C;
        if self.rng.percent(40) {
            set.mode = Some([0o644, 0o755, 0o7777, 0, 0o500][self.rng.below(5) as usize]);
        }
        if self.rng.percent(30) {
            let cred = self.draw_cred();
            (set.uid, set.gid) = (Some(cred.uid), if self.rng.percent(50) { Some(cred.gid) } else { None });
        }
        if self.rng.percent(30) {
            set.mtime = Some(SetTime::At(self.draw_time()));
        } else if self.rng.percent(10) {
            set.mtime = Some(SetTime::Now);
            mask |= M;
        }
        if self.rng.percent(30) {
            set.atime = Some(SetTime::At(self.draw_time()));
        }
        if set == SetAttr::default() {
            set.mode = Some(0o700);
        }
        self.note(format!("setattr {ino} {set:?}"));
        let got = t.fs.setattr(ObjectId(ino), set).await;
        let Some(a) = self.agree("setattr", Ok(()), got)? else { return Ok(()) };
        let m = self.fs_mut(&t).get_mut(ino);
        m.mode = set.mode.unwrap_or(m.mode);
        m.uid = set.uid.unwrap_or(m.uid);
        m.gid = set.gid.unwrap_or(m.gid);
        if let Some(SetTime::At(time)) = set.mtime {
            m.mtime = time;
        }
        if let Some(SetTime::At(time)) = set.atime {
            m.atime = time;
        }
        self.adopt_attr(&t, ino, mask, &a)
    }

    async fn setxattr(&mut self) -> Check {
        let t = self.turn().await?;
        let Some(ino) = self.pick(&t, |_| true) else { return Ok(()) };
        let name = format!("user.x{}", self.rng.below(6)).into_bytes();
        let len = match self.rng.below(10) {
            0 => 0,
            1..=5 => self.rng.below(100),
            6 | 7 => self.rng.below(3000),
            8 => self.rng.below(20_000),
            _ => self.rng.between(30_000, 65_536),
        };
        let value = self.draw_data(len as usize);
        let there = self.fs(&t).get(ino).xattrs.contains_key(&name);
        let (how, want) = match self.rng.below(5) {
            0 => (SetXattr::Create, if there { Err(ErrorKind::Exists) } else { Ok(()) }),
            1 => (SetXattr::Replace, if there { Ok(()) } else { Err(ErrorKind::NoAttr) }),
            _ => (SetXattr::Any, Ok(())),
        };
        self.note(format!("setxattr {ino} {} {len} {how:?}", text(&name)));
        let got = t.fs.setxattr(ObjectId(ino), &name, &value, how).await;
        let done = self.agree("setxattr", want, got)?.is_some();
        if done {
            self.fs_mut(&t).get_mut(ino).xattrs.insert(name, Rc::new(value));
        } else if want.is_ok() {
            self.reread_xattr(&t, ino, &name, &value).await?;
        }
        self.adopt_maybe(&t, ino, want.is_ok()).await
    }

    /// After a change that ran out of space half-way: the old value or the new one.
    async fn reread_xattr(&mut self, t: &Turn, ino: u64, name: &[u8], new: &[u8]) -> Check {
        let now = match t.fs.getxattr(ObjectId(ino), name).await {
            Ok(v) => Some(v),
            Err(e) if e.kind() == ErrorKind::NoAttr => None,
            Err(e) => return Err(format!("getxattr {ino}: {e:?}")),
        };
        let old = self.fs(t).get(ino).xattrs.get(name).map(|v| v.to_vec());
        if now != old && now.as_deref() != Some(new) {
            return Err(format!("object {ino}: extended attribute is neither old nor new after a lack of space"));
        }
        if let Some(now) = now {
            self.fs_mut(t).get_mut(ino).xattrs.insert(name.to_vec(), Rc::new(now));
        }
        Ok(())
    }

    /// Takes over the change time if it lies within the operation, else it must be as it was.
    async fn adopt_maybe(&mut self, t: &Turn, ino: u64, may: bool) -> Check {
        let a = t.fs.getattr(ObjectId(ino)).await.map_err(|e| format!("getattr {ino}: {e:?}"))?;
        let changed = a.ctime != self.fs(t).get(ino).ctime;
        self.adopt_attr(t, ino, if may && changed { C } else { 0 }, &a)
    }

    async fn removexattr(&mut self) -> Check {
        let t = self.turn().await?;
        let Some(ino) = self.pick(&t, |i| !i.xattrs.is_empty()).or_else(|| self.pick(&t, |_| true)) else {
            return Ok(());
        };
        let name = format!("user.x{}", self.rng.below(6)).into_bytes();
        let there = self.fs(&t).get(ino).xattrs.contains_key(&name);
        self.note(format!("removexattr {ino} {}", text(&name)));
        let got = t.fs.removexattr(ObjectId(ino), &name).await;
        let want = if there { Ok(()) } else { Err(ErrorKind::NoAttr) };
        if self.agree("removexattr", want, got)?.is_some() {
            self.fs_mut(&t).get_mut(ino).xattrs.remove(&name);
        }
        self.adopt_maybe(&t, ino, want.is_ok()).await
    }

    // --- open without a name ---

    async fn ghost(&mut self) -> Check {
        if !self.ghosts.is_empty() && self.rng.percent(60) {
            let n = self.rng.below(self.ghosts.len() as u64) as usize;
            let mut g = self.ghosts.remove(n);
            let fs = self.mount(&g.ds.clone()).await?;
            let a = fs.getattr(ObjectId(g.ino)).await.map_err(|e| format!("open without a name: {e:?}"))?;
            if a.nlink != 0 || a.size != g.inode.size() {
                return Err(format!(
                    "open without a name: nlink {} size {}, not 0 and {}",
                    a.nlink,
                    a.size,
                    g.inode.size()
                ));
            }
            if let Body::File(c) = &mut g.inode.body {
                let data = self.draw_data(5000);
                let off = c.size / 2;
                self.note(format!("ghost {} write {off}", g.ino));
                let got = fs.write(ObjectId(g.ino), off, vec![Bytes::copy_from(&data)], false).await;
                if let Some((done, _)) = self.agree("write without a name", Ok(()), got)? {
                    c.write(off, &data[..done as usize]);
                }
                tree::compare_content(&fs, g.ino, c).await?;
            }
            if self.rng.percent(70) {
                self.note(format!("ghost {} release", g.ino));
                fs.release(ObjectId(g.ino)).await;
            } else {
                self.ghosts.push(g);
            }
            return Ok(());
        }
        let t = self.turn().await?;
        let Some((dir, name)) = self.pick_entry(&t) else { return Ok(()) };
        let ino = self.fs(&t).lookup(dir, &name).expect("picked");
        let inode = self.fs(&t).get(ino).clone();
        if inode.kind != FileKind::File {
            return Ok(());
        }
        self.note(format!("open {ino}"));
        t.fs.open_file(ObjectId(ino)).await.map_err(|e| format!("open {ino}: {e:?}"))?;
        let gone = inode.nlink == 1 && self.remove_one(&t, dir, &name, false).await?;
        if gone {
            self.ghosts.push(Ghost { ds: t.ds.clone(), ino, inode });
        } else {
            t.fs.release(ObjectId(ino)).await;
        }
        Ok(())
    }

    // --- side by side ---

    async fn parallel(&mut self) -> Check {
        let t = self.turn().await?;
        let mut files = Vec::new();
        for _ in 0..6 {
            if let Some(ino) = self.pick_file(&t)
                && !files.contains(&ino)
            {
                files.push(ino);
            }
        }
        let mut jobs = Vec::new();
        let mut plans = Vec::new();
        for ino in files {
            let size = self.fs(&t).get(ino).size();
            let len = self.draw_len() as usize;
            let (off, data) = (self.draw_offset(size), self.draw_data(len));
            let pieces = self.pieces(&data);
            let fs = t.fs.clone();
            jobs.push(async move { fs.write(ObjectId(ino), off, pieces, false).await });
            plans.push((ino, off, data));
        }
        self.note(format!(
            "{} writes side by side: {:?}",
            plans.len(),
            plans.iter().map(|(i, o, d)| (*i, *o, d.len())).collect::<Vec<_>>()
        ));
        for (got, (ino, off, data)) in join_all(jobs).await.into_iter().zip(plans) {
            if let Some((done, size)) = self.agree("write side by side", Ok(()), got)? {
                self.wrote(&t, ino, off, &data, done, size)?;
                self.adopt(&t, ino, if done == 0 { 0 } else { M | C }).await?;
            }
        }
        // Names in one directory.
        let dir = self.pick_dir(&t);
        let mut names: Vec<Vec<u8>> = (0..5).map(|_| self.draw_name()).collect();
        names.retain(|n| self.fs(&t).check_new(dir, n).is_ok() && n != b"." && n != b"..");
        names.sort();
        names.dedup();
        let cred = self.draw_cred();
        let fs = &t.fs;
        let jobs = names.iter().map(|n| fs.create(ObjectId(dir), n, 0o640, &cred, true)).collect();
        self.note(format!("{} files side by side in {dir}", names.len()));
        let got: Vec<_> = join_all(jobs).await;
        for (got, name) in got.into_iter().zip(&names) {
            if let Some(a) = self.agree("create side by side", Ok(()), got)? {
                let inode = made(&a, Body::File(Content::default()));
                self.fs_mut(&t).insert(dir, name, a.obj.0, inode);
            }
        }
        let inos: Vec<u64> = names.iter().filter_map(|n| self.fs(&t).lookup(dir, n)).collect();
        for ino in inos {
            self.adopt(&t, ino, A | M | C).await?;
        }
        let a = t.fs.getattr(ObjectId(dir)).await.map_err(|e| format!("{e:?}"))?;
        let changed = a.mtime != self.fs(&t).get(dir).mtime;
        self.adopt_attr(&t, dir, if changed { M | C } else { 0 }, &a)
    }

    // --- datasets ---

    async fn create_fs(&mut self) -> Check {
        if self.model.datasets.len() >= 12 {
            return Ok(());
        }
        let names: Vec<String> = self.model.datasets.keys().cloned().collect();
        let parent = &names[self.rng.below(names.len() as u64) as usize];
        let name = format!("{parent}/fs{}", self.rng.below(8));
        let mut props = Vec::new();
        for _ in 0..self.rng.below(3) {
            let (p, v) = self.draw_prop();
            if !props.iter().any(|(n, _)| n == p) {
                props.push((p.to_string(), v));
            }
        }
        let want = if self.model.datasets.contains_key(&name) {
            Err(ErrorKind::Exists)
        } else {
            props.iter().try_for_each(|(p, v)| self.unsupported(p, v))
        };
        self.note(format!("zfs create {name} {props:?}"));
        let got = self.pool().dsl().create_fs(&name, props.clone(), new_fs(&self.lab.sim)).await;
        if self.agree("create_fs", want, got)?.is_some() {
            self.enter_dataset(name, props).await?;
            self.refresh();
        }
        Ok(())
    }

    async fn destroy_fs(&mut self) -> Check {
        let names: Vec<String> = self.model.datasets.keys().cloned().collect();
        let name = names[self.rng.below(names.len() as u64) as usize].clone();
        if name == POOL || self.rng.percent(30) {
            return Ok(());
        }
        let children = self.model.below(&name).len() > 1;
        let busy = self.mounted.contains_key(&name) && self.rng.percent(15);
        if !busy {
            self.unmount(&name).await?;
        }
        let want = match (busy, children) {
            (true, _) => Err(ErrorKind::Busy),
            (_, true) => Err(ErrorKind::NotEmpty),
            _ => Ok(()),
        };
        self.note(format!("zfs destroy {name}"));
        let got = self.pool().dsl().destroy_fs(&name).await;
        if self.agree("destroy", want, got)?.is_some() {
            self.changes += 1;
            self.model.datasets.remove(&name);
        }
        Ok(())
    }

    async fn rename_fs(&mut self) -> Check {
        let names: Vec<String> = self.model.datasets.keys().cloned().collect();
        let from = names[self.rng.below(names.len() as u64) as usize].clone();
        let parent = names[self.rng.below(names.len() as u64) as usize].clone();
        let to = format!("{parent}/fs{}", self.rng.below(8));
        if from == POOL {
            return Ok(());
        }
        let want = if parent == from || parent.starts_with(&format!("{from}/")) {
            Err(ErrorKind::Invalid)
        } else if self.model.datasets.contains_key(&to) {
            Err(ErrorKind::Exists)
        } else {
            Ok(())
        };
        self.note(format!("zfs rename {from} {to}"));
        let got = self.pool().dsl().rename(&from, &to).await;
        if self.agree("rename_fs", want, got)?.is_some() {
            for old in self.model.below(&from) {
                let new = format!("{to}{}", &old[from.len()..]);
                if let Some(ds) = self.model.datasets.remove(&old) {
                    self.model.datasets.insert(new.clone(), ds);
                }
                if let Some(fs) = self.mounted.remove(&old) {
                    self.mounted.insert(new.clone(), fs);
                }
                for g in self.ghosts.iter_mut().filter(|g| g.ds == old) {
                    g.ds = new.clone();
                }
            }
            self.refresh();
        }
        Ok(())
    }

    async fn set_prop(&mut self, inherit: bool) -> Check {
        let names: Vec<String> = self.model.datasets.keys().cloned().collect();
        let name = names[self.rng.below(names.len() as u64) as usize].clone();
        let (prop, value) = self.draw_prop();
        if inherit {
            if matches!(prop, "quota" | "reservation") {
                return Ok(());
            }
            self.note(format!("zfs inherit {prop} {name}"));
            let got = self.pool().dsl().inherit(&name, prop).await;
            if self.agree("inherit", Ok(()), got)?.is_some() {
                self.model.ds_mut(&name).props.remove(prop);
            }
        } else {
            self.note(format!("zfs set {prop}={value:?} {name}"));
            let got = self.pool().dsl().set_props(&name, vec![(prop.into(), value.clone())]).await;
            let want = self.unsupported(prop, &value);
            if self.agree("set", want, got)?.is_some() {
                self.model.ds_mut(&name).props.insert(prop.into(), value);
            }
        }
        self.refresh();
        Ok(())
    }

    // --- a large directory ---

    /// Makes `count` files in one directory, and takes about half of them away again.
    pub async fn crowd(&mut self, count: u64) -> Check {
        let t = self.turn().await?;
        let dir = self.pick_dir(&t);
        self.note(format!("crowd of {count} in {dir}"));
        let cred = Cred::default();
        let mut names = Vec::new();
        for n in 0..count {
            let name = format!("crowd {} of {n}", self.ops).into_bytes();
            let got = t.fs.create(ObjectId(dir), &name, 0o644, &cred, true).await;
            let Some(a) = self.agree("crowd: create", Ok(()), got)? else { break };
            self.fs_mut(&t).insert(dir, &name, a.obj.0, made(&a, Body::File(Content::default())));
            names.push(name);
        }
        if names.is_empty() {
            return Ok(());
        }
        self.adopt(&t, dir, M | C).await?;
        self.compare().await?;
        for name in names {
            if self.rng.percent(50) {
                let got = t.fs.unlink(ObjectId(dir), &name).await;
                if self.agree("crowd: unlink", Ok(()), got)?.is_some() {
                    self.fs_mut(&t).remove(dir, &name);
                }
            }
        }
        self.adopt(&t, dir, M | C).await
    }

    // --- a full pool ---

    /// Writes until there is no space, deletes a fifth of the files, and writes again.
    pub async fn fill(&mut self) -> Check {
        let t = self.turn().await?;
        let dir = self.fs(&t).root;
        let mut made_files = Vec::new();
        let mut refused = 0;
        for n in 0..4000u64 {
            let name = format!("fill{}-{n}", self.ops).into_bytes();
            let cred = Cred::default();
            let t = Turn { ds: t.ds.clone(), fs: t.fs.clone(), start: self.now() };
            let got = t.fs.create(ObjectId(dir), &name, 0o644, &cred, true).await;
            let want = self.fs(&t).check_new(dir, &name);
            let Some(a) = self.agree("fill: create", want, got)? else {
                refused += 1;
                if refused > 3 {
                    break;
                }
                continue;
            };
            self.fs_mut(&t).insert(dir, &name, a.obj.0, made(&a, Body::File(Content::default())));
            self.adopt(&t, dir, M | C).await?;
            made_files.push(name);
            let mut data = vec![0; self.rng.between(1, 1 << 20) as usize];
            self.rng.fill(&mut data);
            let got = t.fs.write(a.obj, 0, vec![Bytes::copy_from(&data)], false).await;
            match self.agree("fill: write", Ok(()), got)? {
                Some((done, size)) => {
                    self.wrote(&t, a.obj.0, 0, &data, done, size)?;
                    self.adopt(&t, a.obj.0, M | C).await?;
                }
                None => {
                    refused += 1;
                    if refused > 3 {
                        break;
                    }
                }
            }
        }
        self.note(format!("filled with {} files", made_files.len()));
        if refused <= 3 {
            return Err("the pool does not get full".into());
        }
        self.pool().sync().await.map_err(|e| format!("sync of a full pool: {e:?}"))?;
        let space = self.pool().allocator().space(metaslab_class());
        if space.alloc * 3 < space.total
            && self
                .model
                .datasets
                .values()
                .all(|d| !d.props.contains_key("quota") && !d.props.contains_key("reservation"))
        {
            return Err(format!("the pool is full with {} of {} bytes allocated", space.alloc, space.total));
        }
        let count = made_files.len() / 5;
        for name in made_files.iter().filter(|_| true).take(count.max(1)) {
            let t = Turn { ds: t.ds.clone(), fs: t.fs.clone(), start: self.now() };
            if !self.remove_one(&t, dir, name, false).await? {
                return Err("a file cannot be deleted in a full pool".into());
            }
        }
        // What was freed comes back after its txg and two more.
        for _ in 0..4 {
            self.pool().sync().await.map_err(|e| format!("sync after deleting: {e:?}"))?;
        }
        if count >= 3 {
            let t = Turn { ds: t.ds.clone(), fs: t.fs.clone(), start: self.now() };
            let before = self.full;
            let name = format!("after fill {}", self.ops).into_bytes();
            let got = t.fs.create(ObjectId(dir), &name, 0o644, &Cred::default(), true).await;
            if let Some(a) = self.agree("create after deleting", Ok(()), got)? {
                self.fs_mut(&t).insert(dir, &name, a.obj.0, made(&a, Body::File(Content::default())));
                self.adopt(&t, dir, M | C).await?;
                let data = vec![7; 1000];
                let got = t.fs.write(a.obj, 0, vec![Bytes::copy_from(&data)], false).await;
                if let Some((done, size)) = self.agree("write after deleting", Ok(()), got)? {
                    self.wrote(&t, a.obj.0, 0, &data, done, size)?;
                    self.adopt(&t, a.obj.0, M | C).await?;
                }
            }
            if self.full != before {
                return Err(format!("{count} files were deleted, and still nothing can be written"));
            }
        }
        Ok(())
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
