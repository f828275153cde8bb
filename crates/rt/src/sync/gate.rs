//! [`Gate`]: counts operations in progress and waits until there are none.

use std::cell::Cell;
use std::rc::Rc;

use super::notify::Notify;

struct State {
    count: Cell<u64>,
    zero: Notify,
}

/// A count of holders; tasks can wait until it is zero. A clone is the same gate.
#[derive(Clone)]
pub struct Gate(Rc<State>);

impl Default for Gate {
    fn default() -> Gate {
        Gate::new()
    }
}

impl Gate {
    /// A gate with count 0.
    pub fn new() -> Gate {
        Gate(Rc::new(State { count: Cell::new(0), zero: Notify::new() }))
    }
    /// Adds one to the count until the pass is dropped.
    pub fn enter(&self) -> Pass {
        self.up(1);
        Pass(self.clone())
    }
    /// Adds `n`.
    pub fn up(&self, n: u64) {
        self.0.count.set(self.0.count.get().checked_add(n).expect("fewer than 2^64 hold a gate"));
    }
    /// Subtracts `n`, which must have been added.
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
    /// Waits until the count has been zero once since the call; not at all if it is zero.
    pub async fn wait(&self) {
        if self.count() > 0 {
            self.0.zero.notified().await;
        }
    }
}

/// One count of a [`Gate`], subtracted when dropped.
#[must_use = "the count goes down at once if its pass is dropped"]
pub struct Pass(Gate);

impl Drop for Pass {
    fn drop(&mut self) {
        self.0.down(1);
    }
}
