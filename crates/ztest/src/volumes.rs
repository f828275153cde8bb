//! Volumes in random order of everything that can be done with them, compared with a model and with
//! the independent checker.
//!
//! The model has the bytes of each volume, now and at each snapshot. Some volumes stay open over
//! many operations, snapshots and other volumes' rollbacks among them; those cannot be destroyed or
//! rolled back. Every few operations everything is read back, holes are looked for, and the devices
//! go to the checker of `zdb`, which recomputes every figure of space from the blocks.

use std::collections::BTreeMap;
use std::rc::Rc;

use base::ErrorKind;
use bdev::Bytes;
use dsl::crypto::NewCrypt;
use dsl::props::PropValue;
use sim::{DiskImage, Rng};
use spa::Pool;
use zvol::{Volume, VolumeOpts, init_volume};

use crate::Check;
use crate::lab::{Lab, Layout, POOL, Shape};
use crate::snaps::{SPAN_MAX, agree, check_images, is_full, pattern};

/// Volumes at most.
const VOLUMES_MAX: usize = 6;
/// Bytes of a volume at most.
const SIZE_MAX: u64 = 2 << 20;

#[derive(Clone)]
struct Snap {
    id: u64,
    name: String,
    data: Vec<u8>,
}

/// A volume of the model.
struct Vol {
    block: u64,
    data: Vec<u8>,
    /// Oldest first.
    snaps: Vec<Snap>,
    /// Identity of the snapshot that it was cloned from.
    origin: Option<u64>,
    open: Option<Rc<Volume>>,
}

/// A seed's pool and model.
struct Volumes {
    lab: Rc<Lab>,
    layout: Layout,
    pool: Option<Rc<Pool>>,
    rng: Rng,
    model: BTreeMap<String, Vol>,
    next: u64,
    trace: Vec<String>,
}

fn say(what: &str) -> impl Fn(base::Error) -> String + '_ {
    move |e| format!("{what}: {e:?}")
}

fn joined(parts: &[Bytes]) -> Vec<u8> {
    parts.iter().flat_map(|p| p.iter().copied()).collect()
}

impl Volumes {
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
    fn pick(&mut self) -> Option<String> {
        let n = self.rng.below(self.model.len().max(1) as u64) as usize;
        self.model.keys().nth(n).cloned()
    }
    /// A snapshot: its volume and place.
    fn pick_snap(&mut self) -> Option<(String, usize)> {
        let name = self.pick()?;
        let n = self.model[&name].snaps.len() as u64;
        (n > 0).then(|| (name, self.rng.below(n) as usize))
    }
    fn vol(&mut self, name: &str) -> &mut Vol {
        self.model.get_mut(name).expect("picked")
    }
    fn has_clones(&self, id: u64) -> bool {
        self.model.values().any(|v| v.origin == Some(id))
    }

    async fn open(&mut self, name: &str) -> Check<Rc<Volume>> {
        if let Some(open) = &self.model[name].open {
            return Ok(open.clone());
        }
        let ds = self.pool().dsl().find(name).map_err(say(name))?;
        let how = VolumeOpts { throughput: self.rng.percent(20), ..VolumeOpts::from_props(&ds) };
        Volume::open(&ds, how).await.map_err(say(name))
    }
    /// Keeps the volume open, or closes it.
    async fn done_with(&mut self, name: &str, vol: Rc<Volume>) -> Check {
        if self.rng.percent(50) {
            self.vol(name).open = Some(vol);
            return Ok(());
        }
        self.vol(name).open = None;
        vol.close().await.map_err(say("close"))
    }
    async fn close_all(&mut self) -> Check {
        for (name, v) in &mut self.model {
            if let Some(vol) = v.open.take() {
                vol.close().await.map_err(say(name))?;
            }
        }
        Ok(())
    }

    async fn step(&mut self) -> Check {
        if self.model.is_empty() {
            return self.create().await;
        }
        match self.rng.below(100) {
            0..45 => self.change().await,
            45..52 => self.create().await,
            52..58 => self.resize().await,
            58..72 => self.snapshot().await,
            72..78 => self.destroy_snap().await,
            78..83 => self.clone().await,
            83..86 => self.promote().await,
            86..91 => self.rollback().await,
            91..94 => self.destroy().await,
            94..96 => self.rename().await,
            96..98 => self.reserve().await,
            _ => self.reimport().await,
        }
    }

    async fn create(&mut self) -> Check {
        if self.model.len() >= VOLUMES_MAX {
            return Ok(());
        }
        let name = format!("{POOL}/v{}", self.id());
        let block = 512 << self.rng.below(9);
        let size = block * (1 + self.rng.below(SIZE_MAX / block));
        let mut props = vec![("compression".to_string(), PropValue::Num([2, 3][self.rng.below(2) as usize]))];
        let copies = 1 + self.rng.below(3) / 2;
        props.push(("copies".to_string(), PropValue::Num(copies)));
        let dsl = self.pool().dsl().clone();
        if self.rng.percent(30) {
            let reserved = dsl.volume_reservation(size, block as u32, copies);
            props.push(("refreservation".to_string(), PropValue::Num(reserved)));
        }
        self.note(format!("create {name} of {size} in blocks of {block}, {copies} copies"));
        let init = init_volume(size, block as u32).map_err(say("volume"))?;
        let made = dsl.create_volume(&name, props, NewCrypt::default(), init).await;
        if agree("create", Ok(()), made)? {
            let data = vec![0; size as usize];
            self.model.insert(name, Vol { block, data, snaps: Vec::new(), origin: None, open: None });
        }
        Ok(())
    }

    /// Some writes, discards, zeroes and flushes of one volume.
    async fn change(&mut self) -> Check {
        let Some(name) = self.pick() else { return Ok(()) };
        let vol = self.open(&name).await?;
        let size = vol.size();
        let block = u64::from(vol.block_size());
        for _ in 0..1 + self.rng.below(6) {
            let mut off = self.rng.below(size);
            let most = [4096, 100_000, SIZE_MAX][self.rng.below(3) as usize];
            let mut len = 1 + self.rng.below((size - off).min(most));
            if self.rng.percent(40) {
                // Whole blocks.
                off -= off % block;
                len = len.next_multiple_of(block).min(size - off);
            }
            let range = off as usize..(off + len) as usize;
            let roll = self.rng.below(100);
            self.note(format!("change {roll} {name}: {len} at {off}"));
            let zeros = vec![0; len as usize];
            let (done, now) = match roll {
                0..55 => {
                    let data = pattern(self.rng.next_u64(), len as usize);
                    let at = self.rng.below(len + 1) as usize;
                    let parts = vec![Bytes::copy_from(&data[..at]), Bytes::copy_from(&data[at..])];
                    let done = if roll < 15 { vol.write_sync(off, parts).await } else { vol.write(off, parts).await };
                    (done, data)
                }
                55..75 => (vol.discard(off, len).await, zeros),
                75..85 => (vol.write_zeroes(off, len, roll < 80).await, zeros),
                _ => {
                    let before = self.model[&name].data[range.clone()].to_vec();
                    (vol.flush().await, before)
                }
            };
            match done {
                Ok(()) => self.vol(&name).data[range].copy_from_slice(&now),
                Err(e) if is_full(&e) => {
                    // A part may be written: takes over the actual content.
                    let all = vol.read(0, size).await.map_err(say(&name))?;
                    self.vol(&name).data = joined(&all);
                    break;
                }
                Err(e) => return Err(format!("{name}: {e:?}")),
            }
        }
        if vol.write(size, vec![Bytes::zeroed(1)]).await.is_ok() || vol.discard(size - 1, 2).await.is_ok() {
            return Err(format!("{name}: a change beyond its end"));
        }
        self.done_with(&name, vol).await
    }

    async fn resize(&mut self) -> Check {
        let Some(name) = self.pick() else { return Ok(()) };
        let vol = self.open(&name).await?;
        let block = self.model[&name].block;
        let size = block * (1 + self.rng.below(SIZE_MAX / block));
        self.note(format!("resize {name} to {size}"));
        if vol.set_size(size + block / 2).await.is_ok() {
            return Err(format!("{name}: a size of no whole blocks"));
        }
        if agree("resize", Ok(()), vol.set_size(size).await)? {
            self.vol(&name).data.resize(size as usize, 0);
        }
        self.done_with(&name, vol).await
    }

    async fn snapshot(&mut self) -> Check {
        let Some(name) = self.pick() else { return Ok(()) };
        let snap = format!("s{}", self.rng.below(8));
        let taken = self.model[&name].snaps.iter().any(|s| s.name == snap);
        self.note(format!("snapshot {name}@{snap}"));
        let got = self.pool().dsl().snapshot(vec![format!("{name}@{snap}")], false, Vec::new()).await;
        if agree("snapshot", if taken { Err(ErrorKind::Exists) } else { Ok(()) }, got)? {
            let id = self.id();
            let v = self.vol(&name);
            v.snaps.push(Snap { id, name: snap, data: v.data.clone() });
        }
        Ok(())
    }

    async fn destroy_snap(&mut self) -> Check {
        let Some((name, at)) = self.pick_snap() else { return Ok(()) };
        let snap = self.model[&name].snaps[at].clone();
        let full = format!("{name}@{}", snap.name);
        self.note(format!("destroy {full}"));
        let want = if self.has_clones(snap.id) { Err(ErrorKind::Busy) } else { Ok(()) };
        let got = self.pool().dsl().destroy_snapshots(vec![full], false).await;
        if agree("destroy snapshot", want, got)? {
            self.vol(&name).snaps.remove(at);
        }
        Ok(())
    }

    async fn clone(&mut self) -> Check {
        let Some((from, at)) = self.pick_snap() else { return Ok(()) };
        if self.model.len() >= VOLUMES_MAX {
            return Ok(());
        }
        let name = format!("{POOL}/c{}", self.id());
        let snap = self.model[&from].snaps[at].clone();
        let block = self.model[&from].block;
        self.note(format!("clone {from}@{} {name}", snap.name));
        let dsl = self.pool().dsl().clone();
        let origin = format!("{from}@{}", snap.name);
        if dsl.clone_snapshot(&origin, &format!("{from}/below"), Vec::new()).await.is_ok() {
            return Err(format!("{from}: a volume with a child"));
        }
        if agree("clone", Ok(()), dsl.clone_snapshot(&origin, &name, Vec::new()).await)? {
            let v = Vol { block, data: snap.data, snaps: Vec::new(), origin: Some(snap.id), open: None };
            self.model.insert(name, v);
        }
        Ok(())
    }

    async fn promote(&mut self) -> Check {
        let Some(name) = self.pick() else { return Ok(()) };
        let Some(id) = self.model[&name].origin else { return Ok(()) };
        let found = self.model.iter().find_map(|(n, v)| v.snaps.iter().position(|s| s.id == id).map(|at| (n, at)));
        let Some((old, at)) = found.map(|(n, at)| (n.clone(), at)) else {
            return Err(format!("model: {name} has a lost origin"));
        };
        let moving = &self.model[&old].snaps[..=at];
        let conflict = moving.iter().any(|m| self.model[&name].snaps.iter().any(|s| s.name == m.name));
        self.note(format!("promote {name} over {old}"));
        let got = self.pool().dsl().promote(&name).await;
        if agree("promote", if conflict { Err(ErrorKind::Exists) } else { Ok(()) }, got)? {
            let v = self.vol(&old);
            let moving: Vec<Snap> = v.snaps.drain(..=at).collect();
            let beyond = v.origin.replace(id);
            let v = self.vol(&name);
            v.snaps.splice(0..0, moving);
            v.origin = beyond;
        }
        Ok(())
    }

    async fn rollback(&mut self) -> Check {
        let Some((name, at)) = self.pick_snap() else { return Ok(()) };
        let v = &self.model[&name];
        let (newer, open) = (at + 1 != v.snaps.len(), v.open.is_some());
        let snap = v.snaps[at].clone();
        self.note(format!("rollback {name}@{}", snap.name));
        let want = match (newer, open) {
            (true, _) => Err(ErrorKind::Exists),
            (_, true) => Err(ErrorKind::Busy),
            _ => Ok(()),
        };
        let got = self.pool().dsl().rollback(&format!("{name}@{}", snap.name)).await;
        if agree("rollback", want, got)? {
            self.vol(&name).data = snap.data;
        }
        Ok(())
    }

    async fn destroy(&mut self) -> Check {
        let Some(name) = self.pick() else { return Ok(()) };
        let v = &self.model[&name];
        let want = match (v.snaps.is_empty(), v.open.is_some()) {
            (_, true) => Err(ErrorKind::Busy),
            (false, false) => Err(ErrorKind::NotEmpty),
            (true, false) => Ok(()),
        };
        self.note(format!("destroy {name}"));
        if agree("destroy", want, self.pool().dsl().destroy_fs(&name).await)? {
            self.model.remove(&name);
        }
        Ok(())
    }

    async fn rename(&mut self) -> Check {
        let Some(name) = self.pick() else { return Ok(()) };
        let to = format!("{POOL}/r{}", self.id());
        self.note(format!("rename {name} {to}"));
        if agree("rename", Ok(()), self.pool().dsl().rename(&name, &to).await)? {
            let v = self.model.remove(&name).expect("picked");
            self.model.insert(to, v);
        }
        Ok(())
    }

    /// Makes the volume thick or thin.
    async fn reserve(&mut self) -> Check {
        let Some(name) = self.pick() else { return Ok(()) };
        let dsl = self.pool().dsl().clone();
        let v = &self.model[&name];
        let (size, block) = (v.data.len() as u64, v.block as u32);
        let copies = dsl.find_dir(&name).map_err(say(&name))?.prop("copies").0.num();
        let reserved = if self.rng.percent(50) { dsl.volume_reservation(size, block, copies) } else { 0 };
        self.note(format!("refreservation={reserved} {name}"));
        let got = dsl.set_props(&name, vec![("refreservation".to_string(), PropValue::Num(reserved))]).await;
        agree("set", Ok(()), got).map(|_| ())
    }

    async fn reimport(&mut self) -> Check {
        self.note("export, import".into());
        self.close_all().await?;
        let pool = self.pool.take().expect("a pool is made first");
        pool.export().await.map_err(say("export"))?;
        drop(pool);
        self.pool = Some(self.lab.import(false, self.layout.opts()).await.map_err(say("import"))?);
        Ok(())
    }

    /// Reads everything and compares.
    async fn compare(&self) -> Check {
        let dsl = self.pool().dsl().clone();
        let got: Vec<String> = dsl.all().iter().map(|d| d.name()).filter(|n| n != POOL).collect();
        if got.iter().ne(self.model.keys()) {
            return Err(format!("volumes are {got:?}, not {:?}", self.model.keys()));
        }
        for (name, v) in &self.model {
            let ds = dsl.find(name).map_err(say(name))?;
            match &v.open {
                Some(vol) => same(name, vol, v, &v.data).await?,
                None => {
                    let vol = Volume::open(&ds, VolumeOpts::from_props(&ds)).await.map_err(say(name))?;
                    same(name, &vol, v, &v.data).await?;
                    vol.close().await.map_err(say(name))?;
                }
            }
            let snaps = dsl.snapshots(&ds).await.map_err(say(name))?;
            let names: Vec<String> = snaps.iter().map(|s| s.snapname()).collect();
            if names.iter().ne(v.snaps.iter().map(|s| &s.name)) {
                return Err(format!("{name}: snapshots are {names:?}"));
            }
            for (snap, want) in snaps.iter().zip(&v.snaps) {
                let vol = Volume::open(snap, VolumeOpts::default()).await.map_err(say(&snap.name()))?;
                same(&snap.name(), &vol, v, &want.data).await?;
                if vol.write(0, vec![Bytes::zeroed(1)]).await.is_ok() {
                    return Err(format!("{} was written", snap.name()));
                }
                vol.close().await.map_err(say(&snap.name()))?;
            }
        }
        Ok(())
    }

    /// The devices as they are now, judged.
    async fn check(&self) -> Check {
        self.pool().sync().await.map_err(say("sync"))?;
        if self.layout.shape.is_read_by_checker() { check_images(&self.lab.images()) } else { Ok(()) }
    }

    async fn run(&mut self, ops: u64) -> Check {
        self.pool = Some(self.lab.create(&self.layout, Vec::new()).await.map_err(say("create"))?);
        for n in 0..ops {
            self.step().await.map_err(|e| format!("operation {n}: {e}"))?;
            if n % 8 == 7 {
                self.compare().await.map_err(|e| format!("after operation {n}: {e}"))?;
                self.check().await.map_err(|e| format!("after operation {n}: {e}"))?;
            }
        }
        self.reimport().await?;
        self.compare().await?;
        while self.pool().dsl().has_freeing() {
            self.pool().sync().await.map_err(say("sync"))?;
        }
        self.check().await?;
        self.pool.take().expect("there").export().await.map_err(say("export"))
    }
}

/// Compares a volume with its bytes; holes are zeros.
async fn same(name: &str, vol: &Volume, v: &Vol, data: &[u8]) -> Check {
    if (vol.size(), u64::from(vol.block_size())) != (data.len() as u64, v.block) {
        return Err(format!("{name}: {} bytes, not {}", vol.size(), data.len()));
    }
    let got = joined(&vol.read(0, u64::MAX).await.map_err(say(name))?);
    if let Some(at) = got.iter().zip(data).position(|(a, b)| a != b) {
        return Err(format!("{name}: byte {at} is {}, not {}", got[at], data[at]));
    }
    if got.len() != data.len() {
        return Err(format!("{name}: {} bytes were read, not {}", got.len(), data.len()));
    }
    let mut at = 0;
    while let Some(from) = vol.next_data(at).await.map_err(say(name))? {
        if data[at as usize..from as usize].iter().any(|b| *b != 0) {
            return Err(format!("{name}: {at} to {from} is no hole"));
        }
        at = vol.next_hole(from).await.map_err(say(name))?;
        if at <= from {
            return Err(format!("{name}: a hole begins at {at}, data at {from}"));
        }
    }
    if data[at as usize..].iter().any(|b| *b != 0) { Err(format!("{name}: there is data after {at}")) } else { Ok(()) }
}

/// Runs a seed on a layout; its disks at the end, exported.
pub fn run_seed(seed: u64, shape: &'static Shape, ops: u64) -> Result<Vec<DiskImage>, String> {
    let mut rng = Rng::new(seed ^ 0x701_cafe);
    let mut layout = Layout::draw(&mut rng, 128 << 20);
    layout.features = ondisk::feature::features_of_2_1();
    layout = layout.shaped(shape, &mut rng);
    let lab = Rc::new(Lab::new(seed, &layout));
    let mut volumes =
        Volumes { lab: lab.clone(), layout, pool: None, rng, model: BTreeMap::new(), next: 0, trace: Vec::new() };
    let run = std::panic::AssertUnwindSafe(|| {
        lab.sim.try_block_on_for(SPAN_MAX, volumes.run(ops)).map_err(|report| format!("stalled: {report}"))?
    });
    let why = match std::panic::catch_unwind(run) {
        Ok(Ok(())) => return Ok(lab.images()),
        Ok(Err(e)) => e,
        Err(panic) => format!("panic: {}", crate::campaign::panic_text(&*panic)),
    };
    let why = format!("seed {seed} ({}): {why}\n    after: {}", shape.name, volumes.trace.join("\n           "));
    std::mem::forget((volumes, lab));
    Err(why)
}
