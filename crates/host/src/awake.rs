//! Keeping cores out of idle states while short requests come and go.
//!
//! An idle core is halted, and waking it costs 1 to 100 us, on virtual machines around 50: several
//! times the cost of a request. Each client that waits for us pays it, each time, since its own
//! core is idle meanwhile. Linux has an interface against that, `/dev/cpu_dma_latency`
//! (Documentation/power/pm_qos_interface): as long as the file is open, idle cores obey the latency
//! written into it, and 0 lets them poll. Measured on two virtual cores with 20,000 creations
//! through FUSE: 350 us each without, 175 with it.
//!
//! Vocabulary: a *wait* is the time that the engine was idle; it is *short* up to [`SHORT`].
//!
//! The normal path: waits that end are reported ([`Awake::waited`]); [`STREAK`] short ones on end
//! open the file, which stays open until a wait lasts [`QUIET`]. The engine cuts its waits to that
//! while the file is open ([`Awake::limit`]).
//!
//! Invariants: an idle pool, a slow disk or a slow client never hold the request; a machine of more
//! than [`CORES_MAX`] cores is left alone, because all its cores would burn power for the sake of
//! one; without permission nothing happens, and it is not tried again.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::time::Duration;

/// Where the request is made.
const FILE: &str = "/dev/cpu_dma_latency";
/// The longest wait that a request in a dense sequence explains: a handful of wake-ups.
pub(crate) const SHORT: Duration = Duration::from_micros(500);
/// A wait of this length ends the sequence.
pub(crate) const QUIET: Duration = Duration::from_millis(5);
/// Short waits on end that make a sequence.
const STREAK: u32 = 64;
/// Machines with more cores are left alone.
const CORES_MAX: usize = 8;

/// Whether idle cores may be kept awake.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum KeepAwake {
    /// Never.
    Off,
    /// While many short requests come, on machines of up to 8 cores.
    #[default]
    Auto,
}

/// The request and the history of waits that decides on it.
#[derive(Debug)]
pub(crate) struct Awake {
    mode: KeepAwake,
    allowed: bool,
    streak: u32,
    held: Option<File>,
}

impl Awake {
    pub(crate) fn new(mode: KeepAwake) -> Awake {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        Awake { mode, allowed: mode == KeepAwake::Auto && cores <= CORES_MAX, streak: 0, held: None }
    }

    /// Changes the mode; the request begins and ends with it.
    pub(crate) fn set(&mut self, mode: KeepAwake) {
        if mode != self.mode {
            *self = Awake::new(mode);
        }
    }

    /// Counts a wait; returns the change of the request.
    fn judge(&mut self, wait: Duration) -> Verdict {
        self.streak = if wait <= SHORT { (self.streak + 1).min(STREAK) } else { 0 };
        match (self.held.is_some(), wait >= QUIET, self.streak >= STREAK) {
            (true, true, _) => Verdict::Release,
            (false, _, true) => Verdict::Hold,
            _ => Verdict::Keep,
        }
    }

    /// A wait of that length is over.
    pub(crate) fn waited(&mut self, wait: Duration) {
        if !self.allowed {
            return;
        }
        match self.judge(wait) {
            Verdict::Keep => {}
            Verdict::Release => self.held = None,
            Verdict::Hold => {
                let open = || -> std::io::Result<File> {
                    let mut file = OpenOptions::new().write(true).open(FILE)?;
                    file.write_all(&0i32.to_ne_bytes())?;
                    Ok(file)
                };
                self.held = open().ok();
                self.allowed = self.held.is_some();
            }
        }
    }

    /// The longest wait before [`Awake::waited`] must be called.
    pub(crate) fn limit(&self) -> Option<Duration> {
        self.held.as_ref().map(|_| QUIET)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Hold,
    Release,
    Keep,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some_file() -> Option<File> {
        Some(File::open("/dev/null").expect("/dev/null"))
    }

    #[test]
    fn only_a_dense_sequence_holds_the_request() {
        let mut a = Awake { mode: KeepAwake::Auto, allowed: true, streak: 0, held: None };
        for _ in 0..1000 {
            // A slow disk now and then breaks the sequence.
            for _ in 0..STREAK - 1 {
                assert_eq!(a.judge(SHORT), Verdict::Keep);
            }
            assert_eq!(a.judge(SHORT * 2), Verdict::Keep);
        }
        for _ in 0..STREAK - 1 {
            assert_eq!(a.judge(Duration::ZERO), Verdict::Keep);
        }
        assert_eq!(a.judge(SHORT), Verdict::Hold);
    }

    #[test]
    fn silence_releases_it() {
        let mut a = Awake { mode: KeepAwake::Auto, allowed: true, streak: STREAK, held: some_file() };
        assert_eq!(a.limit(), Some(QUIET));
        assert_eq!(a.judge(QUIET / 2), Verdict::Keep);
        assert_eq!(a.judge(QUIET), Verdict::Release);
        a.held = None;
        assert_eq!(a.limit(), None);
        assert_eq!(a.judge(SHORT), Verdict::Keep);
    }

    #[test]
    fn switching_it_off_releases_it() {
        let mut a = Awake { mode: KeepAwake::Auto, allowed: true, streak: STREAK, held: some_file() };
        a.set(KeepAwake::Off);
        assert!(a.held.is_none() && !a.allowed);
    }

    #[test]
    fn off_means_off() {
        let mut a = Awake::new(KeepAwake::Off);
        for _ in 0..=STREAK {
            a.waited(Duration::ZERO);
        }
        assert!(a.held.is_none());
    }
}
