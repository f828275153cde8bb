//! [`Gate`]: counts what is going on and waits until nothing is.

use std::cell::Cell;
use std::rc::Rc;

use super::notify::Notify;

struct State {
    count: Cell<u64>,
    zero: Notify,
}

/// A count of holders, which can be waited for to reach zero. A clone is the same gate.
#[derive(Clone)]
pub struct Gate(Rc<State>);

impl Default for Gate {
    fn default() -> Gate {
        Gate::new()
    }
}

impl Gate {
    /// A gate that nobody holds.
    pub fn new() -> Gate {
        Gate(Rc::new(State { count: Cell::new(0), zero: Notify::new() }))
    }
    /// Counts one up until the pass is dropped.
    pub fn enter(&self) -> Pass {
        self.up(1);
        Pass(self.clone())
    }
    /// Counts `n` up.
    pub fn up(&self, n: u64) {
        self.0.count.set(self.0.count.get().checked_add(n).expect("fewer than 2^64 hold a gate"));
    }
    /// Counts `n` down, which must have been counted up.
    pub fn down(&self, n: u64) {
        let count = self.0.count.get();
        self.0.count.set(count.checked_sub(n).expect("no more leave a gate than entered"));
        if n > 0 && count == n {
            self.0.zero.notify_all();
        }
    }
    /// The count.
    pub fn count(&self) -> u64 {
        self.0.count.get()
    }
    /// Waits until the count has been zero once since the call (at once if it is).
    pub async fn wait(&self) {
        if self.count() > 0 {
            self.0.zero.notified().await;
        }
    }
}

/// One count of a [`Gate`], counted down when dropped.
#[must_use = "the count goes down at once if its pass is dropped"]
pub struct Pass(Gate);

impl Drop for Pass {
    fn drop(&mut self) {
        self.0.down(1);
    }
}
