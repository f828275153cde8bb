//! Why a simulation stopped before the awaited future was ready, and the waiting tasks.

use std::fmt;

use base::Nanos;
use rt::{Rank, TaskId};

/// Why it stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StallCause {
    /// No task is ready and no event is to come: the tasks wait for each other, or their wakers are
    /// gone.
    Blocked,
    /// The virtual time allowed has passed.
    TimeLimit,
    /// The turn set by [`crate::Sim::stop_at_step`] was reached.
    StepLimit,
    /// Tasks were polled very often without time moving: a busy loop around `yield_now` or a waker
    /// that is called all the time.
    Livelock,
    /// The world was ended by [`crate::SimHandle::crash`].
    Crashed,
}

/// A task that has not ended.
#[derive(Clone, Debug)]
pub struct BlockedTask {
    /// Its id.
    pub id: TaskId,
    /// The name given when it was spawned.
    pub name: &'static str,
    /// When it was last polled; `None` if never.
    pub polled_at: Option<Nanos>,
    /// The locks it holds.
    pub holds: Vec<Rank>,
}

/// The state of a simulation that stopped early. Failing tests print its `Display`.
#[derive(Clone, Debug)]
pub struct StallReport {
    /// Why it stopped.
    pub cause: StallCause,
    /// The seed of the run.
    pub seed: u64,
    /// The virtual time.
    pub now: Nanos,
    /// The turn.
    pub step: u64,
    /// Every task that has not ended, by id.
    pub tasks: Vec<BlockedTask>,
}

impl StallReport {
    /// Whether a task of that name is among them.
    pub fn names(&self, name: &str) -> bool {
        self.tasks.iter().any(|task| task.name == name)
    }
}

impl fmt::Display for StallReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = match self.cause {
            StallCause::Blocked => "nothing can run any more",
            StallCause::TimeLimit => "the time allowed is over",
            StallCause::StepLimit => "the turn to stop at is reached",
            StallCause::Livelock => "tasks run without time moving",
            StallCause::Crashed => "the world has ended",
        };
        write!(f, "{why} at {:.9} s, turn {}, seed {}", self.now.as_secs_f64(), self.step, self.seed)?;
        // Many tasks of one name (writers, say) are one line.
        let mut shown: Vec<(&'static str, Vec<&BlockedTask>)> = Vec::new();
        for task in &self.tasks {
            match shown.iter_mut().find(|(name, _)| *name == task.name) {
                Some((_, tasks)) => tasks.push(task),
                None => shown.push((task.name, vec![task])),
            }
        }
        for (name, tasks) in shown {
            write!(f, "\n  {name}")?;
            if tasks.len() > 1 {
                write!(f, " x{}", tasks.len())?;
            }
            write!(f, ": task")?;
            for task in tasks.iter().take(4) {
                write!(f, " {}", task.id)?;
                match task.polled_at {
                    Some(at) => write!(f, " (polled at {:.9} s", at.as_secs_f64())?,
                    None => write!(f, " (never polled")?,
                }
                for rank in &task.holds {
                    write!(f, ", holds {rank}")?;
                }
                write!(f, ")")?;
            }
            if tasks.len() > 4 {
                write!(f, " ...")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for StallReport {}
