//! [`Sim`]: a world and the running of it.

use std::cell::Cell;
use std::future::Future;
use std::ops::Deref;
use std::pin::pin;

use base::Nanos;

use crate::report::{StallCause, StallReport};
use crate::world::{SimConfig, SimHandle, SimWorld};
use crate::{CutStyle, DiskImage, SimDisk};

/// A simulated world. Dropping it ends it, see [`SimHandle::crash`].
pub struct Sim {
    handle: SimHandle,
    running: Cell<bool>,
}

impl Deref for Sim {
    type Target = SimHandle;
    fn deref(&self) -> &SimHandle {
        &self.handle
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        self.handle.crash();
    }
}

impl Sim {
    /// A world at time 0 without tasks.
    pub fn new(config: SimConfig) -> Sim {
        Sim { handle: SimHandle(SimWorld::new(config)), running: Cell::new(false) }
    }
    /// A handle for tasks and devices.
    pub fn handle(&self) -> SimHandle {
        self.handle.clone()
    }
    /// Runs the world until `fut` is ready. Other tasks stay as they are and go on with the next
    /// call.
    ///
    /// # Panics
    /// With the report of the blocked tasks if `fut` can never be ready.
    pub fn block_on<T>(&self, fut: impl Future<Output = T>) -> T {
        match self.try_block_on(fut) {
            Ok(value) => value,
            Err(report) => panic!("{report}"),
        }
    }
    /// Like [`Sim::block_on`], with the report as an error.
    pub fn try_block_on<T>(&self, fut: impl Future<Output = T>) -> Result<T, StallReport> {
        self.drive_root(fut, None)
    }
    /// Like [`Sim::try_block_on`], for at most `span` of virtual time.
    pub fn try_block_on_for<T>(&self, span: Nanos, fut: impl Future<Output = T>) -> Result<T, StallReport> {
        self.drive_root(fut, Some(self.now() + span))
    }
    /// Runs the world up to the moment `at`, which is `now` afterwards.
    ///
    /// # Panics
    /// On a livelock.
    pub fn run_until(&self, at: Nanos) {
        match self.drive(None, Some(at)) {
            Err(report) if report.cause == StallCause::Livelock => panic!("{report}"),
            _ => {}
        }
    }
    /// Runs the world for `span`.
    pub fn run_for(&self, span: Nanos) {
        self.run_until(self.now() + span);
    }
    /// Runs the world until nothing can run any more, and reports the remaining tasks. Tasks that
    /// sleep in a loop never end it.
    pub fn run_until_idle(&self) -> StallReport {
        self.drive(None, None).expect_err("without an awaited future only a report ends a run")
    }
    /// Makes every run stop (with [`StallCause::StepLimit`]) once so many turns were taken since
    /// the beginning; `None` lets them go on. For cutting the power at any poll and any completion.
    pub fn stop_at_step(&self, step: Option<u64>) {
        self.handle.0.stop_at.set(step);
    }
    /// Cuts the power: `seed` draws the writes that each disk keeps, then the world ends. The
    /// images are in the order of the disks.
    pub fn power_cut(self, disks: &[SimDisk], seed: u64) -> Vec<DiskImage> {
        self.power_cut_with(disks, CutStyle::Seeded, seed)
    }
    /// Like [`Sim::power_cut`], with a given style of loss.
    pub fn power_cut_with(self, disks: &[SimDisk], style: CutStyle, seed: u64) -> Vec<DiskImage> {
        let images =
            disks.iter().zip(0u64..).map(|(disk, n)| disk.power_cut_with(style, seed.wrapping_add(n << 32))).collect();
        self.crash();
        images
    }

    fn drive_root<T>(&self, fut: impl Future<Output = T>, until: Option<Nanos>) -> Result<T, StallReport> {
        let mut value = None;
        {
            let mut root = pin!(async { value = Some(fut.await) });
            self.drive(Some(root.as_mut()), until)?;
        }
        Ok(value.expect("the root has ended"))
    }
    fn drive(
        &self,
        root: Option<std::pin::Pin<&mut dyn Future<Output = ()>>>,
        until: Option<Nanos>,
    ) -> Result<(), StallReport> {
        struct Stop<'a>(&'a Cell<bool>);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.set(false);
            }
        }
        assert!(!self.running.replace(true), "a world is not run from within itself");
        let _stop = Stop(&self.running);
        self.handle.0.drive(root, until)
    }
}
