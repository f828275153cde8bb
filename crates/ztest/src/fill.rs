//! Pools are filled to the last block, in every way at once, and must say ENOSPC: never be suspended, never lose what was written.
//!
//! A seed draws a layout, an allocation unit, record size, copies, compression and the mixture of what fills: large files, thousands of small ones, file systems,
//! attributes, overwriting what a snapshot holds, synchronous writes, files between which others are removed so that free space is in pieces (gang blocks). A *round*:
//!
//! 1. operations until every kind that takes space was refused several times in a row;
//! 2. of some seeds, power cuts at completions of operations on the full pool, with synchronous appends under way: the pool imports, and holds every append that was
//!    acknowledged;
//! 3. snapshots are destroyed, a tenth of the files is removed or truncated, properties change, all of which must work; then writing must work again.
//!
//! Everything is compared with the model, with nothing in the cache, and after an export and an import.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use base::{ErrorKind, Nanos, ObjectId};
use bdev::Bytes;
use dsl::props::PropValue;
use sim::{DiskImage, DiskLog, Rng, SimHandle};
use spa::Pool;
use zpl::{Cred, MountOpts, RenameFlags, SetXattr, Zfs};

use crate::campaign::panic_text;
use crate::lab::{Lab, Layout, POOL, Shape};
use crate::losses::cold;
use crate::{Check, Fault};

/// The most simulated time that a seed may take.
const SPAN_MAX: Nanos = Nanos::from_secs(24 * 3600);
/// Refusals in a row of a kind after which it counts as filled.
const REFUSALS: u64 = 4;
/// Operations of a fill at most.
const OPS_MAX: u64 = 60_000;
/// Txgs within which what was removed can be written again: what is freed is held back for two, and large files are freed in the background.
const TXGS_BACK: u64 = 12;
/// Power cuts of one seed.
const CUTS: u64 = 6;

/// What many seeds met.
#[derive(Clone, Copy, Default, Debug)]
pub struct Met {
    /// Operations that were refused for want of space.
    pub refused: u64,
    /// Gang blocks written.
    pub gangs: u64,
    /// Power cuts.
    pub cuts: u64,
    /// Appends acknowledged before a cut.
    pub acks: u64,
}

impl Met {
    /// The figures as a state file has them.
    pub fn figures(&self) -> Vec<u64> {
        vec![self.refused, self.gangs, self.cuts, self.acks]
    }
}

/// What a pool is like.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Bytes of a unit of the files.
    pub recordsize: u64,
    /// Of data.
    pub copies: u64,
    /// The value of `compression`.
    pub compression: &'static str,
    /// Blocks are deduplicated.
    pub dedup: bool,
    /// Snapshots are taken while it fills.
    pub snapshots: bool,
    /// Power cuts near its end.
    pub cuts: bool,
    /// How often each kind of [`KINDS`] comes.
    pub weights: [u64; KINDS.len()],
}

/// What takes space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Appends to a large file.
    Append,
    /// A new small file.
    Small,
    /// Overwrites a part of a file.
    Overwrite,
    /// A synchronous append.
    Sync,
    /// An attribute.
    Xattr,
    /// A file system with a file.
    FileSystem,
    /// Every other one of a few new files is removed.
    Holes,
    /// A new name.
    Rename,
    /// A folder.
    Folder,
}

/// All kinds.
pub const KINDS: [Kind; 9] = [
    Kind::Append,
    Kind::Small,
    Kind::Overwrite,
    Kind::Sync,
    Kind::Xattr,
    Kind::FileSystem,
    Kind::Holes,
    Kind::Rename,
    Kind::Folder,
];

impl Plan {
    /// Draws one.
    pub fn draw(rng: &mut Rng) -> Plan {
        const COMPRESSION: [&str; 4] = ["off", "off", "lz4", "zstd"];
        let mut weights = [30, 10, 15, 8, 5, 1, 5, 3, 2];
        for w in &mut weights[1..] {
            match rng.below(5) {
                0 => *w = 0,
                1 => *w *= 6,
                _ => {}
            }
        }
        Plan {
            recordsize: 512 << rng.below(12),
            copies: 1 + rng.below(3),
            compression: COMPRESSION[rng.below(4) as usize],
            dedup: rng.percent(10),
            snapshots: rng.percent(50),
            cuts: rng.percent(30),
            weights,
        }
    }
}

struct File {
    obj: ObjectId,
    data: Vec<u8>,
    xattr: Option<Vec<u8>>,
}

/// A file that grows by synchronous appends while power cuts are recorded: from which completion on how much of it is durable.
struct Grown {
    name: Vec<u8>,
    data: Vec<u8>,
    durable: Vec<(u64, usize)>,
}

struct Filler {
    lab: Rc<Lab>,
    handle: SimHandle,
    layout: Layout,
    plan: Plan,
    rng: Rng,
    pool: Rc<Pool>,
    fs: Rc<Zfs>,
    files: BTreeMap<Vec<u8>, File>,
    others: Vec<String>,
    snapshots: Vec<String>,
    next: u64,
    met: Met,
}

fn is_full(e: &base::Error) -> bool {
    e.kind() == ErrorKind::NoSpace
}

fn told(what: &'static str) -> impl FnOnce(base::Error) -> Fault {
    move |e| format!("{what}: {e:?}")
}

async fn mount(pool: &Rc<Pool>) -> Check<Rc<Zfs>> {
    let ds = pool.dsl().find(POOL).map_err(told("find"))?;
    Zfs::open(&ds, MountOpts::from_props(&ds)).await.map_err(told("mount"))
}

impl Filler {
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut data = vec![0; len];
        self.rng.fill(&mut data);
        if self.plan.compression != "off" && self.rng.percent(30) {
            // Half of it compresses.
            data[..len / 2].fill(7);
        }
        data
    }

    fn name(&mut self) -> Vec<u8> {
        self.next += 1;
        format!("f{:06}", self.next).into_bytes()
    }

    fn pick(&mut self) -> Option<Vec<u8>> {
        if self.files.is_empty() {
            return None;
        }
        let at = self.rng.below(self.files.len() as u64) as usize;
        self.files.keys().nth(at).cloned()
    }

    fn alive(&self) -> Check {
        match self.pool.suspended() {
            Some(e) => Err(format!("the pool is suspended: {e:?}")),
            None => Ok(()),
        }
    }

    /// Writes, and notes how much was written; false if nothing was for want of space.
    async fn put(&mut self, name: &[u8], off: u64, data: Vec<u8>, sync: bool) -> Check<bool> {
        let file = self.files.get_mut(name).expect("only files of the model are written");
        let buf = Bytes::copy_from(&data);
        let got = match sync {
            true => self.fs.write_sync(file.obj, off, vec![buf], false).await,
            false => self.fs.write(file.obj, off, vec![buf], false).await,
        };
        match got {
            Ok((done, _)) => {
                let (off, done) = (off as usize, done as usize);
                if file.data.len() < off + done {
                    file.data.resize(off + done, 0);
                }
                file.data[off..off + done].copy_from_slice(&data[..done]);
                Ok(done > 0)
            }
            Err(e) if is_full(&e) => Ok(false),
            Err(e) => Err(format!("write: {e:?}")),
        }
    }

    async fn create(&mut self) -> Check<Option<Vec<u8>>> {
        let name = self.name();
        match self.fs.create(self.fs.root(), &name, 0o644, &Cred::new(0, 0), true).await {
            Ok(a) => {
                self.files.insert(name.clone(), File { obj: a.obj, data: Vec::new(), xattr: None });
                Ok(Some(name))
            }
            Err(e) if is_full(&e) => Ok(None),
            Err(e) => Err(format!("create: {e:?}")),
        }
    }

    async fn remove(&mut self, name: &[u8]) -> Check {
        self.fs.unlink(self.fs.root(), name).await.map_err(told("unlink on a full pool"))?;
        self.files.remove(name);
        Ok(())
    }

    /// One operation; false if it was refused for want of space.
    async fn step(&mut self, kind: Kind) -> Check<bool> {
        match kind {
            Kind::Append | Kind::Sync => {
                let name = match self.pick() {
                    Some(name) if self.rng.percent(90) => name,
                    _ => match self.create().await? {
                        Some(name) => name,
                        None => return Ok(false),
                    },
                };
                let most = if kind == Kind::Sync { 64 << 10 } else { 2 << 20 };
                let data = match self.rng.below(3) {
                    0 => self.plan.recordsize,
                    1 => self.rng.between(1, 8192),
                    _ => self.rng.between(1, most),
                };
                let data = self.bytes(data as usize);
                let off = self.files[&name].data.len() as u64;
                self.put(&name, off, data, kind == Kind::Sync).await
            }
            Kind::Small => {
                let Some(name) = self.create().await? else { return Ok(false) };
                let len = self.rng.between(1, 3000) as usize;
                let data = self.bytes(len);
                self.put(&name, 0, data, false).await
            }
            Kind::Overwrite => {
                let Some(name) = self.pick() else { return Ok(true) };
                let len = self.files[&name].data.len() as u64;
                if len == 0 {
                    return Ok(true);
                }
                let off = self.rng.below(len);
                let most = (len - off).min(512 << 10);
                let n = self.rng.between(1, most);
                let data = self.bytes(n as usize);
                self.put(&name, off, data, false).await
            }
            Kind::Xattr => {
                let Some(name) = self.pick() else { return Ok(true) };
                let len = if self.rng.percent(50) { self.rng.between(1, 200) } else { self.rng.between(1, 40_000) };
                let value = self.bytes(len as usize);
                let file = self.files.get_mut(&name).expect("picked");
                match self.fs.setxattr(file.obj, b"user.x", &value, SetXattr::Any).await {
                    Ok(()) => {
                        file.xattr = Some(value);
                        Ok(true)
                    }
                    // The old one may be gone: replacing an attribute in a file of its own is not one transaction.
                    Err(e) if is_full(&e) => {
                        file.xattr = None;
                        Ok(false)
                    }
                    Err(e) => Err(format!("setxattr: {e:?}")),
                }
            }
            Kind::FileSystem => {
                let name = format!("{POOL}/fs{}", self.others.len());
                if self.others.len() >= 200 {
                    return Ok(false);
                }
                match self.pool.dsl().create_fs(&name, Vec::new(), new_fs_of(&self.handle)).await {
                    Ok(_) => {}
                    Err(e) if is_full(&e) => return Ok(false),
                    Err(e) => return Err(format!("create_fs: {e:?}")),
                }
                self.others.push(name.clone());
                let ds = self.pool.dsl().find(&name).map_err(told("find"))?;
                let fs =
                    Zfs::open(&ds, MountOpts::from_props(&ds)).await.map_err(told("mount of a new file system"))?;
                let made = fs.create(fs.root(), b"file", 0o644, &Cred::new(0, 0), true).await;
                let made = match made {
                    Ok(a) => fs.write(a.obj, 0, vec![Bytes::copy_from(&self.bytes(4000))], false).await.map(|_| ()),
                    Err(e) => Err(e),
                };
                fs.unmount().await.map_err(told("unmount of a new file system"))?;
                match made {
                    Ok(()) => Ok(true),
                    Err(e) if is_full(&e) => Ok(false),
                    Err(e) => Err(format!("a file of a new file system: {e:?}")),
                }
            }
            Kind::Holes => {
                let (mut names, mut all) = (Vec::new(), true);
                for _ in 0..24 {
                    let Some(name) = self.create().await? else { return Ok(false) };
                    let len = self.plan.recordsize.min(16 << 10) as usize;
                    let data = self.bytes(len);
                    all &= self.put(&name, 0, data, false).await?;
                    names.push(name);
                }
                for name in names.iter().step_by(2) {
                    self.remove(name).await?;
                }
                Ok(all)
            }
            Kind::Rename => {
                let Some(name) = self.pick() else { return Ok(true) };
                let (root, to) = (self.fs.root(), self.name());
                match self.fs.rename(root, &name, root, &to, RenameFlags::default()).await {
                    Ok(()) => {
                        let file = self.files.remove(&name).expect("picked");
                        self.files.insert(to, file);
                        Ok(true)
                    }
                    Err(e) if is_full(&e) => Ok(false),
                    Err(e) => Err(format!("rename: {e:?}")),
                }
            }
            Kind::Folder => {
                let name = [b"dir-", &self.name()[..]].concat();
                match self.fs.mkdir(self.fs.root(), &name, 0o755, &Cred::new(0, 0)).await {
                    Ok(_) => Ok(true),
                    Err(e) if is_full(&e) => Ok(false),
                    Err(e) => Err(format!("mkdir: {e:?}")),
                }
            }
        }
    }

    /// Operations until each kind was refused several times in a row.
    async fn fill(&mut self) -> Check {
        let mut refused = [0u64; KINDS.len()];
        let total: u64 = self.plan.weights.iter().sum();
        for n in 0..OPS_MAX {
            let mut at = self.rng.below(total);
            let mut k = 0;
            while at >= self.plan.weights[k] {
                at -= self.plan.weights[k];
                k += 1;
            }
            match self.step(KINDS[k]).await {
                Ok(true) => refused[k] = 0,
                Ok(false) => {
                    refused[k] += 1;
                    self.met.refused += 1;
                }
                Err(e) => return Err(format!("operation {n}, {:?}: {e}", KINDS[k])),
            }
            self.alive()?;
            match self.rng.below(400) {
                0 => self.pool.sync().await.map_err(told("sync"))?,
                1..=9 => self.pool.txg().kick(),
                10 if self.plan.snapshots => self.snapshot().await?,
                11 => self.tidy().await?,
                _ => {}
            }
            let takes = |k: usize| self.plan.weights[k] > 0 && KINDS[k] != Kind::Rename;
            let full = (0..KINDS.len()).all(|k| !takes(k) || refused[k] >= REFUSALS);
            if full {
                return Ok(());
            }
        }
        // Small changes may be taken for ever where compression or overwriting makes them free.
        Ok(())
    }

    async fn snapshot(&mut self) -> Check {
        let name = format!("{POOL}@s{}", self.snapshots.len());
        match self.pool.dsl().snapshot(vec![name.clone()], false, Vec::new()).await {
            Ok(()) => self.snapshots.push(name),
            Err(e) if is_full(&e) => self.met.refused += 1,
            Err(e) => return Err(format!("snapshot: {e:?}")),
        }
        Ok(())
    }

    /// What an administrator does to a full pool.
    async fn tidy(&mut self) -> Check {
        if let Some(name) = self.pick() {
            let len = self.files[&name].data.len() / 2;
            let file = self.files.get_mut(&name).expect("picked");
            self.fs.truncate(file.obj, len as u64).await.map_err(told("truncate"))?;
            file.data.truncate(len);
        }
        let value = PropValue::Num(0);
        self.pool.dsl().set_props(POOL, vec![("quota".into(), value)]).await.map_err(told("setting a property"))
    }

    async fn compare(&mut self) -> Check {
        cold(&self.pool);
        for (name, file) in &self.files {
            let text = String::from_utf8_lossy(name);
            let a = self.fs.lookup(self.fs.root(), name).await.map_err(|e| format!("{text}: {e:?}"))?;
            if a.size != file.data.len() as u64 {
                return Err(format!("{text} has {} bytes, should have {}", a.size, file.data.len()));
            }
            let parts = self.fs.read(a.obj, 0, a.size).await.map_err(|e| format!("{text}: {e:?}"))?;
            let mut at = 0;
            for part in parts {
                if part[..] != file.data[at..at + part.len()] {
                    return Err(format!("{text}: other bytes after {at}"));
                }
                at += part.len();
            }
            if let Some(value) = &file.xattr {
                match self.fs.getxattr(a.obj, b"user.x").await {
                    Ok(got) if got == *value => {}
                    got => {
                        return Err(format!("{text}: attribute of {} bytes: {:?}", value.len(), got.map(|g| g.len())));
                    }
                }
            }
        }
        Ok(())
    }

    /// Synchronous appends on the full pool, recorded; what reaches the disks.
    async fn record(&mut self) -> Check<(Vec<DiskLog>, Vec<Grown>)> {
        let mut grown: Vec<Grown> = Vec::new();
        for name in self.files.keys().take(6) {
            let data = self.files[name].data.clone();
            grown.push(Grown { name: name.clone(), data, durable: Vec::new() });
        }
        self.pool.sync().await.map_err(told("sync"))?;
        loop {
            self.pool.sync().await.map_err(told("sync"))?;
            for disk in &self.lab.disks {
                bdev::flush(disk).await.map_err(told("flush"))?;
            }
            if self.lab.disks.iter().all(|d| d.is_settled()) {
                break;
            }
        }
        self.lab.disks.iter().for_each(|d| d.start_log());
        for g in &mut grown {
            g.durable.push((self.handle.io_seq(), g.data.len()));
        }
        for _ in 0..40 {
            if grown.is_empty() {
                break;
            }
            let n = self.rng.below(grown.len() as u64) as usize;
            let len = self.rng.between(1, 20_000) as usize;
            let (name, data) = (grown[n].name.clone(), self.bytes(len));
            let off = grown[n].data.len() as u64;
            if self.put(&name, off, data, true).await? {
                let g = &mut grown[n];
                g.data = self.files[&name].data.clone();
                g.durable.push((self.handle.io_seq(), g.data.len()));
                self.met.acks += 1;
            } else if self.rng.percent(50) {
                // Others are removed meanwhile, so that some room comes back.
                let free = self.pick().filter(|n| grown.iter().all(|g| g.name != *n));
                if let Some(free) = free {
                    self.remove(&free).await?;
                }
            }
            if self.rng.percent(10) {
                self.pool.txg().kick();
            }
            self.alive()?;
        }
        let logs = self.lab.disks.iter().filter_map(|d| d.take_log()).collect();
        Ok((logs, grown))
    }

    /// Makes room, which must work, and uses it.
    async fn relieve(&mut self) -> Check {
        self.pool.sync().await.map_err(told("sync of a full pool"))?;
        let snapshots = std::mem::take(&mut self.snapshots);
        if !snapshots.is_empty() {
            // Removing what snapshots hold frees nothing, and must work all the same.
            if let Some(name) = self.pick() {
                self.remove(&name).await?;
            }
            self.pool.dsl().destroy_snapshots(snapshots, false).await.map_err(told("destroying snapshots"))?;
        }
        let names: Vec<Vec<u8>> = self.files.keys().cloned().collect();
        let tenth = names.len().div_ceil(10);
        // The largest are among them: what is removed must be worth something.
        let mut by_size = names.clone();
        by_size.sort_by_key(|n| std::cmp::Reverse(self.files[n].data.len()));
        for name in by_size.iter().take(tenth) {
            self.remove(name).await?;
        }
        for name in self.others.split_off(self.others.len() / 2) {
            self.pool.dsl().destroy_fs(&name).await.map_err(told("destroying a file system"))?;
        }
        self.tidy().await?;
        self.alive()?;
        for _ in 0..TXGS_BACK {
            self.pool.sync().await.map_err(told("sync after removing"))?;
            self.handle.rt().sleep(Nanos::from_ms(50)).await;
        }
        let Some(name) = self.create().await? else {
            return Err(format!("no file can be made after a tenth of the files is gone: {}", self.space()));
        };
        let data = self.bytes(4096);
        if !self.put(&name, 0, data, false).await? {
            return Err(format!("nothing can be written after a tenth of the files is gone: {}", self.space()));
        }
        self.pool.sync().await.map_err(told("sync"))?;
        self.alive()
    }

    fn space(&self) -> String {
        let dsl = self.pool.dsl();
        format!("{:?}, used {}", dsl.space(), dsl.root().phys().used_bytes)
    }
}

fn new_fs_of(sim: &SimHandle) -> dsl::Init {
    let time = sim.rt().wall_clock();
    zpl::init_fs(zpl::InitOwner { uid: 0, gid: 0, mode: 0o755, time }, zpl::FsCreateProps::default())
}

/// The layout of a seed in that shape.
pub fn layout(rng: &mut Rng, shape: &'static Shape) -> Layout {
    let size = (64 + rng.below(64)) << 20;
    let mut layout = Layout::draw(rng, size);
    layout.features = ondisk::feature::default_features();
    layout = layout.shaped(shape, rng);
    layout.ashift = 9 + rng.below(5) as u8;
    layout
}

/// Imports a pool after a power cut, and looks for what was durable.
fn recover(images: Vec<DiskImage>, layout: &Layout, grown: &[Grown], at: u64, seed: u64) -> Check {
    let lab = Lab::with_images(seed, images, true);
    let work = async {
        let pool = lab.import(false, layout.opts()).await.map_err(told("import"))?;
        let fs = mount(&pool).await?;
        if let Some(e) = fs.replayed().failed {
            return Err(format!("replay: {e:?}"));
        }
        for g in grown {
            let text = String::from_utf8_lossy(&g.name);
            let least = g.durable.iter().filter(|(seq, _)| *seq <= at).map(|d| d.1).max().unwrap_or(0);
            let a = fs.lookup(fs.root(), &g.name).await.map_err(|e| format!("{text}: {e:?}"))?;
            if a.size < least as u64 || a.size > g.data.len() as u64 {
                return Err(format!("{text} has {} bytes, {least} were acknowledged of {}", a.size, g.data.len()));
            }
            let parts = fs.read(a.obj, 0, a.size).await.map_err(|e| format!("{text}: {e:?}"))?;
            let got: Vec<u8> = parts.iter().flat_map(|p| p.to_vec()).collect();
            if got[..] != g.data[..got.len()] {
                return Err(format!("{text}: other bytes"));
            }
        }
        pool.sync().await.map_err(told("sync"))?;
        if let Some(e) = pool.suspended() {
            return Err(format!("the pool is suspended: {e:?}"));
        }
        fs.unmount().await.map_err(told("unmount"))?;
        pool.export().await.map_err(told("export"))
    };
    let result = lab.sim.try_block_on_for(SPAN_MAX, work);
    lab.sim.crash();
    result.map_err(|report| format!("stalled: {report}"))?
}

async fn live(lab: Rc<Lab>, layout: Layout, plan: Plan, rng: Rng, met: &mut Met) -> Check<(Vec<DiskLog>, Vec<Grown>)> {
    let mut props: Vec<(String, PropValue)> = vec![
        ("atime".into(), PropValue::Num(0)),
        ("recordsize".into(), PropValue::Num(plan.recordsize)),
        ("copies".into(), PropValue::Num(plan.copies)),
    ];
    let parse = |name: &str, value: &str| dsl::props::find(name).expect("known").parse(value).expect("a value of it");
    props.push(("compression".into(), parse("compression", plan.compression)));
    if plan.dedup {
        props.push(("dedup".into(), parse("dedup", "on")));
    }
    let pool = lab.create(&layout, props).await.map_err(told("create"))?;
    let fs = mount(&pool).await?;
    let handle = lab.sim.handle();
    let mut f = Filler {
        lab: lab.clone(),
        handle,
        layout,
        plan,
        rng,
        pool,
        fs,
        files: BTreeMap::new(),
        others: Vec::new(),
        snapshots: Vec::new(),
        next: 0,
        met: *met,
    };
    let done = rounds(&mut f).await;
    f.met.gangs += f.pool.zio().stats().gangs;
    *met = f.met;
    let recorded = done.map_err(|e| format!("{e}\n    {}", f.space()))?;
    f.fs.unmount().await.map_err(told("unmount"))?;
    f.pool.export().await.map_err(told("export"))?;
    f.pool = lab.import(false, f.layout.opts()).await.map_err(told("import"))?;
    f.fs = mount(&f.pool).await?;
    f.compare().await.map_err(|e| format!("imported: {e}"))?;
    f.fs.unmount().await.map_err(told("unmount"))?;
    f.pool.export().await.map_err(told("export"))?;
    Ok(recorded)
}

async fn rounds(f: &mut Filler) -> Check<(Vec<DiskLog>, Vec<Grown>)> {
    let mut recorded = (Vec::new(), Vec::new());
    for round in 0..2 {
        f.fill().await.map_err(|e| format!("round {round}: {e}"))?;
        f.compare().await.map_err(|e| format!("round {round}, full: {e}"))?;
        if round == 0 && f.plan.cuts {
            recorded = f.record().await.map_err(|e| format!("synchronous appends: {e}"))?;
        }
        f.relieve().await.map_err(|e| format!("round {round}, making room: {e}"))?;
        f.compare().await.map_err(|e| format!("round {round}, with room: {e}"))?;
    }
    Ok(recorded)
}

/// Runs a seed; its disks at the end, exported.
pub fn run_seed(seed: u64, shape: &'static Shape, met: &mut Met) -> Check<Vec<DiskImage>> {
    let mut rng = Rng::stream(seed, 0xf111);
    let (layout, plan) = (layout(&mut rng, shape), Plan::draw(&mut rng));
    run(seed, layout, plan, met)
}

/// Runs a seed on such a pool.
pub fn run(seed: u64, layout: Layout, plan: Plan, met: &mut Met) -> Check<Vec<DiskImage>> {
    let rng = Rng::stream(seed, 0xf112);
    let text = format!("{} of {:?}, ashift {}, {plan:?}", layout.shape.name, layout.devices, layout.ashift);
    let lab = Rc::new(Lab::new(seed, &layout));
    let result = catch_unwind(AssertUnwindSafe(|| {
        let work = live(lab.clone(), layout.clone(), plan, rng, met);
        lab.sim.try_block_on_for(SPAN_MAX, work).map_err(|report| format!("stalled: {report}"))?
    }));
    let (logs, grown) = match result {
        Ok(Ok(recorded)) => recorded,
        Ok(Err(e)) => {
            std::mem::forget(lab);
            return Err(format!("{text}: {e}"));
        }
        Err(panic) => {
            std::mem::forget(lab);
            return Err(format!("{text}: panic: {}", panic_text(&*panic)));
        }
    };
    let mut moments: Vec<u64> = logs.iter().flat_map(|l| l.completions()).collect();
    moments.sort_unstable();
    let mut rng = Rng::stream(seed, 0xf113);
    for _ in 0..if moments.is_empty() { 0 } else { CUTS } {
        let at = moments[rng.below(moments.len() as u64) as usize];
        let images = (0..).zip(&logs).map(|(d, l)| l.cut_at(at, seed ^ (d << 33))).collect();
        met.cuts += 1;
        let cut = catch_unwind(AssertUnwindSafe(|| recover(images, &layout, &grown, at, rng.next_u64())));
        let cut = cut.unwrap_or_else(|p| Err(format!("panic: {}", panic_text(&*p))));
        cut.map_err(|e| format!("{text}: power cut at {at}: {e}"))?;
    }
    Ok(lab.images())
}
