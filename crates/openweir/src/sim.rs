//! A pool in a simulation: for tests of programs that use this crate.
//!
//! A [`Simulator`] is an engine in virtual time. Its disks are modelled (they take time, they have
//! volatile caches), its clock moves only during calls or by [`Simulator::advance`], and all random
//! choices come from one seed: the same calls, one after the other, give the same run. Handles that
//! are dropped between calls are closed during the next one. Pools on it are used through the same
//! handles as real ones.
//!
//! The power can be cut, now ([`Simulator::power_cut`]) or in the middle of something
//! ([`Simulator::cut_after`]): every call under way gives [`ErrorKind::EngineGone`], each disk
//! keeps the data that a real one might have kept, and the next life begins with that.
//!
//! ```
//! use openweir::{CreateOptions, ImportOptions, OpenOptions, sim::{DiskKind, Simulator}};
//!
//! # fn main() -> openweir::Result<()> {
//! let sim = Simulator::new(7)?;
//! let disk = sim.disk(256 << 20, DiskKind::Nvme).wait()?;
//! let pool = sim.engine().create_pool("tank", disk.clone(), CreateOptions::default()).wait()?;
//! let file = pool.filesystem("tank").wait()?.open("ledger", OpenOptions::new().create(0o600)).wait()?;
//! file.append("paid 5").wait()?;
//! file.sync().wait()?;
//! let sim = sim.power_cut(1)?;
//! let pool = sim.engine().import_pool(vec![disk], ImportOptions::default()).wait()?;
//! assert_eq!(pool.filesystem("tank").wait()?.read("ledger").wait()?, b"paid 5");
//! # Ok(())
//! # }
//! ```
//!
//! Not simulated: files of this machine as devices, and the time that the program itself takes.
//! Calls of several threads at once arrive in an order that the operating system decides; such a
//! run is not repeatable.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::rc::Rc;
use std::sync::mpsc::{self, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::sim::{CutStyle, DiskConfig, DiskImage, Model, Sim, SimConfig, SimDisk, StallCause};
use base::Nanos;
use rt::sync::{Gate, oneshot};

use crate::call::{Call, Fate, Reply};
use crate::device::{Device, Kind};
use crate::engine::{Attended, Door, Ended, Engine, Job, panic_text, set_here};
use crate::error::{Error, ErrorKind, Result};
use crate::inside::{InnerDev, Inside};

/// Virtual time between checks for messages.
const SLICE: Nanos = Nanos::from_ms(10);
/// Virtual time that closing everything may take.
const CLOSE_MAX: Nanos = Nanos::from_secs(120);

/// The kind of a simulated disk. All of them have volatile caches, which lose unflushed writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DiskKind {
    /// A data centre NVMe disk without protection against power loss.
    Nvme,
    /// A SATA SSD.
    SataSsd,
    /// A 7200 rpm disk.
    Hdd,
    /// Operations take 10 to 500 microseconds each and end in any order: finds the most mistakes.
    Random,
}

impl DiskKind {
    fn model(self) -> Model {
        match self {
            DiskKind::Nvme => Model::nvme(),
            DiskKind::SataSsd => Model::sata_ssd(),
            DiskKind::Hdd => Model::hdd(),
            DiskKind::Random => Model::random(),
        }
    }
}

/// The unflushed writes that a power cut loses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Loss {
    /// Any of it, sector by sector, drawn from the seed.
    #[default]
    Random,
    /// All of it.
    Everything,
}

/// A disk between two lives.
struct Kept {
    id: u64,
    kind: DiskKind,
    image: DiskImage,
}

enum Msg {
    Job(Job, Attended),
    Advance(Nanos, Reply<()>),
    AddDisk(u64, DiskKind, Reply<Device>),
    CutAfter(u64, u64, Reply<()>),
    Cut(Loss, u64),
    Stop,
}

struct SimDoor(mpsc::Sender<Msg>);

impl Door for SimDoor {
    fn post(&self, job: Job, attended: Attended) {
        // A world that has ended drops the job, which answers it.
        let _ = self.0.send(Msg::Job(job, attended));
    }
    fn stop(&self) {
        let _ = self.0.send(Msg::Stop);
    }
}

/// A simulated world with one engine and its disks. Dropping it ends the world as [`Engine`] does:
/// in order.
pub struct Simulator {
    engine: Engine,
    send: mpsc::Sender<Msg>,
    fate: Arc<Fate>,
    ended: Ended,
    kept: Arc<Mutex<Vec<Kept>>>,
    identity: u64,
    seed: u64,
    life: u64,
}

impl std::fmt::Debug for Simulator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Simulator(seed {}, life {})", self.seed, self.life)
    }
}

impl Simulator {
    /// A world at time 0 without disks. [`ErrorKind::Other`] if the system gives no thread.
    pub fn new(seed: u64) -> Result<Simulator> {
        Simulator::begin(seed, 0, Inside::new_identity(), Vec::new())
    }

    fn begin(seed: u64, life: u64, identity: u64, disks: Vec<Kept>) -> Result<Simulator> {
        let (fate, ended) = (Arc::<Fate>::default(), Ended::default());
        let kept: Arc<Mutex<Vec<Kept>>> = Arc::default();
        let (send, receive) = mpsc::channel();
        let (thread_fate, thread_ended, thread_kept) = (fate.clone(), ended.clone(), kept.clone());
        let run = move || {
            let left = Life::run(seed.wrapping_add(life << 40), identity, disks, receive, &thread_fate);
            *thread_kept.lock().unwrap_or_else(PoisonError::into_inner) = left;
            thread_ended.tell();
        };
        let thread = std::thread::Builder::new().name("openweir-sim".into()).spawn(run);
        thread.map_err(|e| Error::new(ErrorKind::Other, format!("no thread can be started: {e}")))?;
        let engine = Engine::over(Box::new(SimDoor(send.clone())), fate.clone(), ended.clone());
        Ok(Simulator { engine, send, fate, ended, kept, identity, seed, life })
    }

    /// Its engine: pools are created and imported on that.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }
    /// The seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    fn send<T>(&self, msg: impl FnOnce(Reply<T>) -> Msg) -> Call<T> {
        let (call, reply) = Call::new(&self.fate);
        let _ = self.send.send(msg(reply));
        call
    }

    /// A disk of `bytes` bytes (whole multiples of 4096; at least 64 MiB for a pool), zero at
    /// first. It goes on through all lives of this world.
    pub fn disk(&self, bytes: u64, kind: DiskKind) -> Call<Device> {
        self.send(|reply| Msg::AddDisk(bytes & !4095, kind, reply))
    }

    /// Lets time pass: timers fire, txgs are written, a scrub goes on.
    pub fn advance(&self, span: Duration) -> Call<()> {
        let span = Nanos(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
        self.send(|reply| Msg::Advance(span, reply))
    }

    /// The time in this life.
    pub fn now(&self) -> Call<Duration> {
        self.engine.run(|inside| {
            let now = Duration::from_nanos(inside.rt().now().0);
            async move { Ok(now) }
        })
    }

    /// Steps that this life has taken: polls of tasks and events of devices and timers. The unit of
    /// [`Simulator::cut_after`].
    pub fn steps(&self) -> Call<u64> {
        self.engine.run(|inside| {
            let steps = inside.sim().map_or(0, ::sim::SimHandle::step);
            async move { Ok(steps) }
        })
    }

    /// A number that is equal for two runs that went the same way.
    pub fn digest(&self) -> Call<u64> {
        self.engine.run(|inside| {
            let digest = inside.sim().map_or(0, ::sim::SimHandle::digest);
            async move { Ok(digest) }
        })
    }

    /// Cuts the power when `steps` more steps were taken, in the middle of any operation. `seed`
    /// draws the writes that the disks keep. Go on with [`Simulator::power_cut`], whose seed does
    /// not count then.
    pub fn cut_after(&self, steps: u64, seed: u64) -> Call<()> {
        self.send(|reply| Msg::CutAfter(steps, seed, reply))
    }

    /// Cuts the power now and begins the next life, with the data that the disks kept, drawn by
    /// `seed`. Handles of this life give [`ErrorKind::EngineGone`]; devices stay good.
    pub fn power_cut(self, seed: u64) -> Result<Simulator> {
        self.power_cut_with(Loss::Random, seed)
    }

    /// As [`Simulator::power_cut`], with a choice of the losses.
    pub fn power_cut_with(self, loss: Loss, seed: u64) -> Result<Simulator> {
        let _ = self.send.send(Msg::Cut(loss, seed));
        self.next_life()
    }

    /// Ends this life in order, and begins the next: as a machine that is shut down and started.
    pub fn restart(self) -> Result<Simulator> {
        self.engine.stop().wait()?;
        self.next_life()
    }

    fn next_life(self) -> Result<Simulator> {
        if !self.ended.wait_for_end() {
            return Err(Error::new(ErrorKind::Other, "the simulated world does not come to an end"));
        }
        let kept = std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        Simulator::begin(self.seed, self.life + 1, self.identity, kept)
    }

    /// Inverts the bits of `len` bytes at `offset` of a disk, for good: damage that a checksum must
    /// find. [`ErrorKind::Invalid`] beyond its end.
    pub fn corrupt(&self, disk: &Device, offset: u64, len: u64) -> Call<()> {
        self.with_disk(disk, move |disk| {
            if offset.checked_add(len).is_none_or(|end| end > disk.image().size()) {
                return Err(Error::invalid("beyond the end of the disk"));
            }
            disk.corrupt(offset, len);
            Ok(())
        })
    }

    /// Writes the content of a disk as a sparse file, which any OpenZFS can open.
    pub fn save(&self, disk: &Device, path: impl AsRef<Path>) -> Call<()> {
        let path = path.as_ref().to_path_buf();
        self.with_disk(disk, move |disk| {
            let saved = disk.image().save(&path);
            saved.map_err(|e| Error::new(ErrorKind::Io, e.to_string()).about(path.display().to_string()))
        })
    }

    fn with_disk<T: Send + 'static>(
        &self,
        disk: &Device,
        f: impl FnOnce(&SimDisk) -> Result<T> + Send + 'static,
    ) -> Call<T> {
        let wanted = disk.inner_id();
        self.engine.run(move |inside| {
            let disk = inside.sim_disks().into_iter().find(|(id, _)| Some(*id) == wanted);
            let result = match disk {
                Some((_, disk)) => f(&disk),
                None => Err(Error::invalid("it is no disk of this simulation")),
            };
            async move { result }
        })
    }
}

/// How a run of the world went on.
enum Next {
    Go,
    /// Nothing can run before something is sent.
    Stuck,
    /// The step of the cut has come.
    Cut,
    Broken(String),
}

/// One life of a world, on its thread.
struct Life {
    sim: Sim,
    inside: Rc<Inside>,
    kinds: Vec<(u64, DiskKind)>,
    identity: u64,
    seed: u64,
    /// Jobs under way.
    jobs: Gate,
    /// The seed of the requested cut, and its step.
    cut: Option<(u64, u64)>,
}

impl Life {
    fn run(seed: u64, identity: u64, disks: Vec<Kept>, receive: mpsc::Receiver<Msg>, fate: &Arc<Fate>) -> Vec<Kept> {
        let sim = Sim::new(SimConfig::seeded(seed));
        let (inside, stopped) = Inside::new(sim.rt(), Some((identity, sim.handle())));
        let mut life = Life { sim, inside, kinds: Vec::new(), identity, seed, jobs: Gate::new(), cut: None };
        for kept in disks {
            life.add_disk(kept.id, kept.kind, kept.image);
        }
        set_here(Some(life.inside.clone()));
        let end = catch_unwind(AssertUnwindSafe(|| life.live(&receive, stopped)));
        let cut = match end {
            Ok(cut) => cut,
            Err(panic) => {
                fate.seal(panic_text(&*panic));
                Some((Loss::Random, seed))
            }
        };
        if cut.is_some() {
            fate.seal("the power was cut");
        } else {
            fate.seal("the engine has ended");
        }
        let disks = life.inside.sim_disks();
        let style = match cut {
            Some((Loss::Random, _)) => CutStyle::Seeded,
            _ => CutStyle::KeepStable,
        };
        let cut_seed = cut.map_or(0, |(_, seed)| seed);
        let mut left = Vec::new();
        for (id, disk) in disks {
            let kind = life.kinds.iter().find(|(k, _)| *k == id).map_or(DiskKind::Nvme, |(_, kind)| *kind);
            let image = match cut {
                Some(_) => disk.power_cut_with(style, cut_seed.wrapping_add(id << 32)),
                None => disk.image(),
            };
            left.push(Kept { id, kind, image });
        }
        let _ = catch_unwind(AssertUnwindSafe(|| life.sim.crash()));
        let _ = catch_unwind(AssertUnwindSafe(|| life.inside.clear()));
        set_here(None);
        let _ = catch_unwind(AssertUnwindSafe(|| drop(life)));
        left
    }

    /// Serves messages until the end; returns how the power was cut, if it was.
    fn live(&mut self, receive: &mpsc::Receiver<Msg>, mut stopped: oneshot::Receiver<()>) -> Option<(Loss, u64)> {
        let mut stuck = false;
        loop {
            if stopped.try_recv().is_some() {
                return self.close();
            }
            let idle = self.jobs.count() == 0 || stuck;
            let msg = match idle {
                true => receive.recv().map_err(|_| TryRecvError::Disconnected),
                false => receive.try_recv(),
            };
            stuck = false;
            match msg {
                Ok(Msg::Job(job, attended)) => {
                    // The others go on beside the next job that is waited for.
                    let pass = (attended == Attended::Yes).then(|| self.jobs.enter());
                    let inside = self.inside.clone();
                    let fut = job(&inside);
                    drop(self.sim.rt().spawn("openweir job", async move {
                        fut.await;
                        drop(pass);
                    }));
                    continue;
                }
                Ok(Msg::AddDisk(bytes, kind, reply)) => {
                    let id = self.inside.next_id();
                    match bytes {
                        0 => reply.send(Err(Error::invalid("a disk has at least 4096 bytes"))),
                        _ => {
                            self.add_disk(id, kind, DiskImage::zeroed(bytes));
                            reply.send(Ok(Device(Kind::Inner { engine: self.identity, id })));
                        }
                    }
                    continue;
                }
                Ok(Msg::CutAfter(steps, seed, reply)) => {
                    let at = self.sim.step().saturating_add(steps);
                    self.sim.stop_at_step(Some(at));
                    self.cut = Some((seed, at));
                    reply.send(Ok(()));
                    continue;
                }
                Ok(Msg::Advance(span, reply)) => {
                    self.sim.run_for(span);
                    if let Some(cut) = self.cut_due() {
                        return Some(cut);
                    }
                    reply.send(Ok(()));
                    continue;
                }
                Ok(Msg::Cut(loss, seed)) => return Some((loss, seed)),
                Ok(Msg::Stop) | Err(TryRecvError::Disconnected) => return self.close(),
                Err(TryRecvError::Empty) => {}
            }
            match self.slice() {
                Next::Go => {}
                Next::Stuck => stuck = true,
                Next::Cut => return self.cut_due().or(Some((Loss::Random, self.seed))),
                Next::Broken(why) => panic!("{why}"),
            }
        }
    }

    /// Runs the world until no job is under way, but not for long.
    fn slice(&self) -> Next {
        match self.sim.try_block_on_for(SLICE, self.jobs.wait()) {
            Ok(()) => Next::Go,
            Err(report) => match report.cause {
                StallCause::TimeLimit => Next::Go,
                StallCause::Blocked => Next::Stuck,
                StallCause::StepLimit => Next::Cut,
                _ => Next::Broken(report.to_string()),
            },
        }
    }

    fn cut_due(&self) -> Option<(Loss, u64)> {
        self.cut.filter(|(_, at)| self.sim.step() >= *at).map(|(seed, _)| (Loss::Random, seed))
    }

    /// Closes all pools. The requested cut may come meanwhile.
    fn close(&self) -> Option<(Loss, u64)> {
        let _ = self.sim.try_block_on_for(CLOSE_MAX, self.inside.close_all());
        self.cut_due()
    }

    fn add_disk(&mut self, id: u64, kind: DiskKind, image: DiskImage) {
        let config = DiskConfig {
            name: format!("disk{id}"),
            logical_sector: 512,
            ..DiskConfig::new(image, kind.model(), self.seed ^ id)
        };
        let disk = SimDisk::with(&self.sim, config);
        self.inside.add_device(id, InnerDev::Sim(disk));
        self.kinds.push((id, kind));
    }
}
