//! Power cuts under the load of a volume: what was flushed is there, nothing is torn, nothing comes
//! from the future (docs/campaigns.md).
//!
//! The volume is divided into regions, each changed by one task: written, discarded, zeroed,
//! flushed. Regions begin and end anywhere in blocks, so that tasks change the same blocks. The
//! last region, the *tail*, begins with a block; its task also changes the size of the volume. A
//! region is judged as a file of the campaign of file systems is ([`crate::zilcuts`]), in units of
//! 4 KiB.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use base::{ErrorKind, Nanos};
use bdev::Bytes;
use dsl::crypto::{KeyFormat, NewCrypt, NewKey};
use dsl::props::PropValue;
use sim::{DiskLog, Rng, SimHandle};
use spa::{ImportOpts, Pool};
use zil::{CommitPolicy, ZilStats, ZilTunables};
use zio::crypto::Suite;
use zvol::{SyncMode, Volume, VolumeOpts, init_volume};

use crate::cutting::{Cutting, Recording, Subject, ZilTally, cut_recording, run_world};
use crate::lab::{Lab, Layout, POOL, Shape};
use crate::zilcuts::{SHAPES, key};
use crate::zilload::{History, UNIT, Units, text, unit_bytes, whose};
use crate::zilseen::{Unit, Wrong};
use crate::{Check, Fault};

/// Units of a region but the tail: an odd number, so that regions share blocks.
const REGION: u64 = 37;
/// Blocks of the tail at most.
const TAIL_BLOCKS: u64 = 8;

/// A part of the volume with its history.
struct Region {
    /// Names its units; not 0.
    id: u64,
    /// Its first unit.
    first: u64,
    /// Its length follows the size of the volume.
    tail: bool,
    units: RefCell<History<Units>>,
    versions: Cell<u32>,
}

impl Region {
    fn new(id: u64, first: u64, len: u64, tail: bool) -> Rc<Region> {
        let units = RefCell::new(History::new(vec![0; len as usize]));
        Rc::new(Region { id, first, tail, units, versions: Cell::new(0) })
    }
    fn len(&self) -> u64 {
        self.units.borrow().last().len() as u64
    }
    /// A change begins.
    fn begin(&self, at: u64, change: impl FnOnce(&mut Units)) {
        let mut h = self.units.borrow_mut();
        let mut units = h.last().clone();
        change(&mut units);
        h.begin(at, units);
    }
    /// Compares the region with the states allowed after a cut at `at`.
    fn judge(&self, seen: &Seen, at: u64) -> Result<(), Wrong> {
        let h = self.units.borrow();
        let (low, high) = h.window(at);
        let window = &h.steps[low..=high];
        let len = seen.size / UNIT - self.first.min(seen.size / UNIT);
        let has_len = |u: &Units| u.len() as u64 == len;
        if self.tail && !window.iter().any(|(_, _, u)| has_len(u)) {
            let why = format!("the volume has {} bytes, in none of its states {low} to {high}", seen.size);
            let later = h.steps.iter().skip(high + 1).any(|(_, _, u)| has_len(u));
            return Err(if later { Wrong::Future(why) } else { Wrong::Lost(why) });
        }
        let units = seen.units.as_ref().map_err(|e| Wrong::Torn(e.clone()))?;
        let most = window.iter().map(|(_, _, u)| u.len()).max().unwrap_or(0);
        for (n, unit) in units.iter().skip(self.first as usize).take(most).enumerate() {
            let version = match unit {
                None => 0,
                Some((id, place, version)) if (*id, *place) == (self.id, n as u64) => *version,
                Some((id, place, version)) => {
                    let why = format!("unit {n} of region {} is unit {place} of {id}, version {version}", self.id);
                    return Err(Wrong::Torn(why));
                }
            };
            let of = |u: &Units| u.get(n).copied().unwrap_or(0) == version;
            if window.iter().any(|(_, _, u)| of(u)) {
                continue;
            }
            let why = format!(
                "unit {n} of region {} is of version {version}, in none of its states {low} to {high}",
                self.id
            );
            let later = h.steps.iter().skip(high + 1).any(|(_, _, u)| of(u));
            return Err(if later { Wrong::Future(why) } else { Wrong::Lost(why) });
        }
        Ok(())
    }
}

/// The volume as it is there.
#[derive(PartialEq, Eq, Debug)]
struct Seen {
    size: u64,
    /// Its units, or the fault of one.
    units: Result<Vec<Unit>, Fault>,
}

/// The regions of the load.
struct Regions {
    all: Vec<Rc<Region>>,
    sealed: bool,
}

fn torn(what: &str, e: base::Error) -> Wrong {
    Wrong::Torn(format!("{what}: {e:?}"))
}

impl Subject for Regions {
    type Open = Rc<Volume>;
    type Seen = Seen;

    async fn open(&self, pool: &Rc<Pool>) -> Result<(Rc<Volume>, u64), Wrong> {
        let vol = open(pool, self.sealed, VolumeOpts::default()).await.map_err(|e| torn("open", e))?;
        let applied = vol.replayed().applied;
        Ok((vol, applied))
    }
    async fn look(&self, vol: &Rc<Volume>) -> Result<Seen, Wrong> {
        let mut all = Vec::with_capacity(vol.size() as usize);
        for part in vol.read(0, vol.size()).await.map_err(|e| torn("read", e))? {
            all.extend_from_slice(&part);
        }
        let units = all.chunks(UNIT as usize).enumerate();
        let units = units.map(|(n, bytes)| whose(bytes).map_err(|e| format!("unit {n} {e}"))).collect();
        Ok(Seen { size: vol.size(), units })
    }
    async fn close(&self, vol: Rc<Volume>) -> Result<(), Wrong> {
        vol.close().await.map_err(|e| torn("close", e))
    }
    fn judge(&self, seen: &Seen, at: u64) -> Result<(), Wrong> {
        self.all.iter().try_for_each(|r| r.judge(seen, at))
    }
}

/// The volume of the load.
const VOLUME: &str = "vol";

async fn open(pool: &Rc<Pool>, sealed: bool, how: VolumeOpts) -> base::Result<Rc<Volume>> {
    let name = format!("{POOL}/{VOLUME}");
    if sealed {
        match pool.dsl().load_key(&name, &key(), false).await {
            // Since it was created.
            Err(e) if e.kind() != ErrorKind::Exists => return Err(e),
            _ => {}
        }
    }
    Volume::open(&pool.dsl().find(&name)?, how).await
}

/// The parameters of a load.
#[derive(Clone, Copy)]
struct Load {
    seed: u64,
    /// Steps of each task.
    steps: u64,
    tun: ZilTunables,
    sealed: bool,
    /// `volblocksize`, at least a unit.
    block: u64,
    how: VolumeOpts,
}

/// A task at work.
struct Actor {
    vol: Rc<Volume>,
    pool: Rc<Pool>,
    sim: SimHandle,
    region: Rc<Region>,
    block: u64,
    always: bool,
    rng: Rng,
    acks: u64,
}

impl Actor {
    fn durable(&mut self) {
        self.acks += 1;
        self.region.units.borrow().durable(self.sim.io_seq());
    }

    /// A range of the region in units.
    fn range(&mut self, most: u64) -> (u64, u64) {
        let all = self.region.len();
        let from = self.rng.below(all);
        (from, 1 + self.rng.below(most.min(all - from)))
    }

    async fn step(&mut self) -> Check {
        let roll = self.rng.below(100);
        if self.region.tail && (roll < 12 || self.region.len() == 0) {
            return self.resize().await;
        }
        match roll {
            0..58 => self.write(roll < 22).await?,
            58..78 => {
                self.vol.flush().await.map_err(text)?;
                self.durable();
            }
            78..97 => {
                let (from, len) = self.range(9);
                self.region.begin(self.sim.io_seq(), |u| u[from as usize..(from + len) as usize].fill(0));
                let (off, bytes) = ((self.region.first + from) * UNIT, len * UNIT);
                match roll {
                    78..90 => self.vol.discard(off, bytes).await.map_err(text)?,
                    _ => self.vol.write_zeroes(off, bytes, roll < 93).await.map_err(text)?,
                }
                if self.always {
                    self.durable();
                }
            }
            _ => {
                let name = format!("{POOL}/{VOLUME}@s{}", self.rng.below(6));
                match self.pool.dsl().snapshot(vec![name], false, Vec::new()).await {
                    Err(e) if e.kind() != ErrorKind::Exists => return Err(text(e)),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    async fn write(&mut self, sync: bool) -> Check {
        let most = if self.rng.percent(15) { 48 } else { 3 };
        let (from, len) = self.range(most);
        let version = self.region.versions.get() + 1;
        self.region.versions.set(version);
        let mut data = vec![0; (len * UNIT) as usize];
        for (n, unit) in (from..).zip(data.chunks_mut(UNIT as usize)) {
            unit_bytes(self.region.id, n, version, unit);
        }
        self.region.begin(self.sim.io_seq(), |u| u[from as usize..(from + len) as usize].fill(version));
        let off = (self.region.first + from) * UNIT;
        let data = vec![Bytes::copy_from(&data)];
        if sync {
            self.vol.write_sync(off, data).await.map_err(text)?;
        } else {
            self.vol.write(off, data).await.map_err(text)?;
        }
        if sync || self.always {
            self.durable();
        }
        Ok(())
    }

    async fn resize(&mut self) -> Check {
        let blocks = self.rng.below(TAIL_BLOCKS + 1);
        let units = blocks * self.block / UNIT;
        self.region.begin(self.sim.io_seq(), |u| u.resize(units as usize, 0));
        let size = self.region.first * UNIT + blocks * self.block;
        // A size that changes is waited for, and with it all that was written before.
        let changes = size != self.vol.size();
        self.vol.set_size(size).await.map_err(text)?;
        if changes {
            self.durable();
        }
        Ok(())
    }

    /// Takes its steps; the commits that were acknowledged.
    async fn run(mut self, steps: u64, rt: rt::Rt) -> Check<u64> {
        for _ in 0..steps {
            self.step().await?;
            if self.rng.percent(10) {
                rt.sleep(Nanos::from_us(20 * self.rng.below(100))).await;
            }
            if self.rng.percent(4) {
                self.pool.txg().kick();
            }
            if self.rng.percent(2)
                && let Some(os) = self.vol.dataset().opened()
            {
                os.end_log_chain().await.map_err(text)?;
            }
        }
        Ok(self.acks)
    }
}

/// The logs of the disks, commits acknowledged, statistics of the log.
type Recorded = (Vec<DiskLog>, u64, ZilStats);

/// Makes the pool and the volume, and runs the load on logged disks.
async fn run_load(lab: &Lab, layout: &Layout, load: Load, regions: &Regions, rng: &mut Rng) -> Check<Recorded> {
    let mut pool = lab.create(layout, Vec::new()).await.map_err(text)?;
    pool.dsl().intent_logs().set_tunables(load.tun);
    let crypt = if load.sealed {
        let key = NewKey { format: KeyFormat::Hex, material: key(), iters: None, location: "prompt".into() };
        let suite = [Suite::Aes256Gcm, Suite::Aes128Ccm][rng.below(2) as usize];
        NewCrypt { suite: Some(Some(suite)), key: Some(key) }
    } else {
        NewCrypt::default()
    };
    let tail = regions.all.last().ok_or("no regions")?;
    let size = (tail.first + tail.len()) * UNIT;
    let compression = PropValue::Num([2, 15][rng.below(2) as usize]);
    let props = vec![("compression".to_string(), compression)];
    let name = format!("{POOL}/{VOLUME}");
    let init = init_volume(size, load.block as u32).map_err(text)?;
    pool.dsl().create_volume(&name, props, crypt, init).await.map_err(text)?;
    let mut vol = open(&pool, load.sealed, load.how).await.map_err(text)?;
    let actor = |n: usize, vol: &Rc<Volume>, pool: &Rc<Pool>, stream: u64| Actor {
        vol: vol.clone(),
        pool: pool.clone(),
        sim: lab.sim.handle(),
        region: regions.all[n].clone(),
        block: load.block,
        always: load.how.sync == SyncMode::Always,
        rng: Rng::stream(load.seed, stream + n as u64),
        acks: 0,
    };
    if rng.percent(30) {
        // Existing data with nothing in memory: logging must then read it first.
        for n in 0..regions.all.len() {
            actor(n, &vol, &pool, 2000).run(load.steps / 4, lab.sim.rt()).await?;
        }
        vol.close().await.map_err(text)?;
        drop(vol);
        pool.export().await.map_err(text)?;
        pool = lab.import(false, layout.opts()).await.map_err(text)?;
        pool.dsl().intent_logs().set_tunables(load.tun);
        vol = open(&pool, load.sealed, load.how).await.map_err(text)?;
    }
    pool.sync().await.map_err(text)?;
    let now = lab.sim.handle().io_seq();
    regions.all.iter().for_each(|r| r.units.borrow().durable(now));
    lab.start_logs(&pool).await?;
    let run = |n: usize| lab.sim.rt().spawn("actor", actor(n, &vol, &pool, 1000).run(load.steps, lab.sim.rt()));
    let joins: Vec<_> = (0..regions.all.len()).map(run).collect();
    let mut acks = 0;
    for join in joins {
        acks += join.await?;
    }
    let logs = lab.disks.iter().filter_map(|d| d.take_log()).collect();
    let stats = vol.log().ok_or("no log")?.stats();
    Ok((logs, acks, stats))
}

/// Runs the load of a seed and records the operations of the disks.
fn record(seed: u64, steps: u64) -> Check<Recording<Regions>> {
    let mut rng = Rng::stream(seed, 0x701);
    let mut layout = Layout::draw(&mut rng, 64 << 20);
    layout.features = ondisk::feature::features_of_2_1();
    let shape: &Shape = &SHAPES[rng.below(SHAPES.len() as u64) as usize];
    layout = layout.shaped(shape, &mut rng);
    let policy = CommitPolicy::ALL[rng.below(3) as usize];
    let mut tun = ZilTunables { policy, ..ZilTunables::default() };
    if rng.percent(30) {
        tun.maxblocksize = 8192 << rng.below(4);
    }
    let sync = if rng.percent(20) { SyncMode::Always } else { SyncMode::Standard };
    let how = VolumeOpts { sync, throughput: rng.percent(20), ..VolumeOpts::default() };
    let block = UNIT << rng.below(6);
    let (sealed, tasks) = (rng.percent(20), 1 + rng.below(5));
    let mut all: Vec<Rc<Region>> = (0..tasks).map(|t| Region::new(t + 1, t * REGION, REGION, false)).collect();
    let first = (tasks * REGION * UNIT).next_multiple_of(block) / UNIT;
    all.push(Region::new(tasks + 1, first, rng.below(TAIL_BLOCKS + 1) * block / UNIT, true));
    let regions = Regions { all, sealed };
    let with = if sealed { ", encrypted" } else { "" };
    let name = format!("seed {seed} ({}, {}, blocks of {block}{with})", shape.name, policy.name());
    let load = Load { seed, steps, tun, sealed, block, how };
    let ran = run_world(Lab::new(seed, &layout), async |lab| run_load(lab, &layout, load, &regions, &mut rng).await);
    let (logs, acks, stats) = ran.map_err(|e| format!("{name}: recording: {e}"))?;
    Ok(Recording { logs, layout, subject: regions, acks, stats, import: ImportOpts::default(), name })
}

/// Records a seed and cuts it.
pub fn cut_seed(seed: u64, how: Cutting) -> (ZilTally, Vec<Fault>) {
    cut_recording(seed, record(seed, how.steps), how)
}
