//! The requests under way, each with its user, its age and its present wait, for `weir daemon
//! status`: every wait has an owner.
//!
//! A thread that serves a request sets it as its current one ([`enter`]); a blocking call on that
//! thread records its wait ([`waiting`]), and restores the previous one when it returns.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Instant;

use host::PeerCred;

use crate::engine::Progress;

/// The longest command line that is shown, in bytes.
const COMMAND_MAX: usize = 200;

/// The wait of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wait {
    /// A thread that serves it.
    Worker,
    /// Another request that changes the set of pools.
    Namespace,
    /// The import of the pools that the last daemon left.
    Start,
    /// The engine on this thread.
    Engine(ThreadId),
    /// The client, which reads its stream.
    Client,
    /// Nothing: it runs.
    Nothing,
}

/// A request that is under way.
#[derive(Debug)]
pub struct Entry {
    /// The command line, or the title of the request.
    pub what: String,
    /// The sender.
    pub peer: PeerCred,
    /// Through the public socket.
    pub public: bool,
    /// When the message was complete.
    pub since: Instant,
    /// Its progress.
    pub progress: Arc<Progress>,
    wait: Mutex<Wait>,
}

impl Entry {
    /// Its present wait.
    pub fn wait(&self) -> Wait {
        lock(&self.wait).clone()
    }
}

/// All requests under way.
#[derive(Default, Debug)]
pub struct Requests {
    list: Mutex<(u64, BTreeMap<u64, Arc<Entry>>)>,
}

/// A request's place in the list; dropping it ends the request.
pub struct Ticket {
    all: Arc<Requests>,
    number: u64,
    entry: Arc<Entry>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    static MINE: RefCell<Option<Arc<Entry>>> = const { RefCell::new(None) };
}

impl Requests {
    /// A new request, which waits for a thread.
    pub fn begin(self: &Arc<Self>, what: &str, peer: PeerCred, public: bool) -> Ticket {
        let what: String = what.chars().take(COMMAND_MAX).map(|c| if c.is_control() { '?' } else { c }).collect();
        let wait = Mutex::new(Wait::Worker);
        let entry = Arc::new(Entry { what, peer, public, since: Instant::now(), progress: Progress::new(), wait });
        let mut list = lock(&self.list);
        list.0 += 1;
        let number = list.0;
        list.1.insert(number, entry.clone());
        Ticket { all: self.clone(), number, entry }
    }

    /// Those under way, the oldest first.
    pub fn all(&self) -> Vec<Arc<Entry>> {
        lock(&self.list).1.values().cloned().collect()
    }
}

impl Ticket {
    /// The request.
    pub fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }
}

/// Makes `entry` the request of this thread, which runs it now.
pub fn enter(entry: &Arc<Entry>) {
    *lock(&entry.wait) = Wait::Nothing;
    MINE.set(Some(entry.clone()));
}

impl Drop for Ticket {
    fn drop(&mut self) {
        lock(&self.all.list).1.remove(&self.number);
    }
}

/// Runs `f`, during which this thread's request (if it has one) waits for `wait`.
pub fn waiting<T>(wait: Wait, f: impl FnOnce() -> T) -> T {
    let mine = MINE.with_borrow(Clone::clone);
    let Some(entry) = mine else { return f() };
    let before = std::mem::replace(&mut *lock(&entry.wait), wait);
    let out = f();
    *lock(&entry.wait) = before;
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_seen_from_outside() {
        let all: Arc<Requests> = Arc::default();
        let ticket = all.begin("zpool\nlist", PeerCred { pid: 8, uid: 7, gid: 6 }, false);
        let seen = || all.all().iter().map(|e| (e.what.clone(), e.peer.uid, e.peer.pid, e.wait())).collect::<Vec<_>>();
        assert_eq!(seen(), [("zpool?list".to_string(), 7, 8, Wait::Worker)]);
        enter(ticket.entry());
        assert_eq!(seen()[0].3, Wait::Nothing);
        let inner = waiting(Wait::Namespace, || {
            waiting(Wait::Start, || assert_eq!(seen()[0].3, Wait::Start));
            seen()[0].3.clone()
        });
        assert_eq!(inner, Wait::Namespace);
        assert_eq!(seen()[0].3, Wait::Nothing);
        drop(ticket);
        assert!(all.all().is_empty());
    }
}
