//! [`Events`]: a pool's events as they occur.
//!
//! Two sources feed one stream: the pool's events in OpenZFS's classes
//! (`sysevent.fs.zfs.scrub_finish`, `ereport.fs.zfs.checksum`, `resource.fs.zfs.statechange` ...,
//! those that `zpool events` shows), and the numbers of the txgs that came to disk. A stream holds
//! the events since it was made, [`QUEUE_MAX`] at most; events not fetched in time are counted and
//! left out. A stream does not keep its pool open.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base::WallTime;
use ondisk::nvlist::{NvList, NvValue};
use rt::sync::Notify;
use rt::trace::{Event as Trace, Groups, Listening, TxgPhase};
use spa::EventSink;

/// Events that wait in a stream at most.
pub const QUEUE_MAX: usize = 4096;

/// Something that happened to a pool.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// This txg, and all before it, is on disk.
    Txg(u64),
    /// An event of OpenZFS's kind.
    Zevent(Zevent),
    /// So many events were left out here, since they were not fetched in time.
    Lost(u64),
}

/// An event as `zpool events -v` shows it.
#[derive(Clone, PartialEq, Debug)]
pub struct Zevent {
    /// When it happened.
    pub time: SystemTime,
    /// Its class, `sysevent.fs.zfs.config_sync` for example.
    pub class: String,
    /// Its particulars, in their order: `pool`, `pool_guid`, `vdev_path` ...
    pub fields: Vec<(String, FieldValue)>,
}

impl Zevent {
    /// The field of that name.
    pub fn field(&self, name: &str) -> Option<&FieldValue> {
        self.fields.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }
}

/// The value of a field.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum FieldValue {
    /// Yes or no.
    Flag(bool),
    /// A number that is not negative.
    Number(u64),
    /// A number with a sign.
    Signed(i64),
    /// Text; bytes that are not UTF-8 are replaced.
    Text(String),
    /// Several numbers.
    Numbers(Vec<u64>),
    /// Several texts.
    Texts(Vec<String>),
    /// Fields within the field.
    Fields(Vec<(String, FieldValue)>),
    /// Anything else, as the engine prints it.
    Other(String),
}

fn value(v: &NvValue) -> FieldValue {
    match v {
        NvValue::Boolean => FieldValue::Flag(true),
        NvValue::BooleanValue(b) => FieldValue::Flag(*b),
        NvValue::Byte(n) => FieldValue::Number((*n).into()),
        NvValue::Uint16(n) => FieldValue::Number((*n).into()),
        NvValue::Uint32(n) => FieldValue::Number((*n).into()),
        NvValue::Uint64(n) => FieldValue::Number(*n),
        NvValue::Int16(n) => FieldValue::Signed((*n).into()),
        NvValue::Int32(n) => FieldValue::Signed((*n).into()),
        NvValue::Int64(n) | NvValue::Hrtime(n) => FieldValue::Signed(*n),
        NvValue::String(s) => FieldValue::Text(s.clone()),
        NvValue::RawString(b) => FieldValue::Text(String::from_utf8_lossy(b).into_owned()),
        NvValue::Uint64Array(n) => FieldValue::Numbers(n.clone()),
        NvValue::StringArray(s) => FieldValue::Texts(s.clone()),
        NvValue::List(list) => FieldValue::Fields(fields(list)),
        other => FieldValue::Other(format!("{other:?}")),
    }
}

fn fields(list: &NvList) -> Vec<(String, FieldValue)> {
    list.iter().map(|(name, v)| (name.to_string(), value(v))).collect()
}

/// A moment of the engine's wall clock.
pub(crate) fn system_time(t: WallTime) -> SystemTime {
    let nanos = Duration::from_nanos(t.nanos.into());
    match u64::try_from(t.secs) {
        Ok(secs) => UNIX_EPOCH + Duration::from_secs(secs) + nanos,
        Err(_) => UNIX_EPOCH - Duration::from_secs(t.secs.unsigned_abs()) + nanos,
    }
}

#[derive(Default)]
struct State {
    events: VecDeque<Event>,
    lost: u64,
    closed: bool,
    waker: Option<Waker>,
}

#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn change(&self, f: impl FnOnce(&mut State)) {
        let waker = {
            let mut state = self.lock();
            f(&mut state);
            state.waker.take()
        };
        self.changed.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
    fn push(&self, event: Event) {
        self.change(|s| {
            if s.events.len() >= QUEUE_MAX {
                s.events.pop_front();
                s.lost += 1;
            }
            s.events.push_back(event);
        });
    }
}

impl State {
    /// The next event, or none so far; the end as `Some(None)`.
    fn take(&mut self) -> Option<Option<Event>> {
        if self.lost > 0 {
            return Some(Some(Event::Lost(std::mem::take(&mut self.lost))));
        }
        match self.events.pop_front() {
            Some(event) => Some(Some(event)),
            None if self.closed => Some(None),
            None => None,
        }
    }
}

/// A stream of events of one pool: see [`crate::Pool::events`]. Ends when the pool is closed.
pub struct Events(Arc<Queue>);

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Events({} waiting)", self.0.lock().events.len())
    }
}

impl Events {
    /// A stream with its end to put events in.
    pub(crate) fn new() -> (Events, Arc<Queue>) {
        let queue: Arc<Queue> = Arc::default();
        (Events(queue.clone()), queue)
    }
    /// Waits for the next event; None at the end. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Event> {
        poll_fn(|cx| {
            let mut state = self.0.lock();
            match state.take() {
                Some(next) => Poll::Ready(next),
                None => {
                    state.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
    /// Blocks for the next event, at most for `span`; None if there was none, or at the end.
    pub fn wait(&mut self, span: Duration) -> Option<Event> {
        let end = Instant::now() + span;
        let mut state = self.0.lock();
        loop {
            if let Some(next) = state.take() {
                return next;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            state = self.0.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
    /// The next event if there is one already.
    pub fn try_next(&mut self) -> Option<Event> {
        self.0.lock().take().flatten()
    }
    /// Whether the pool is closed and everything was fetched.
    pub fn is_ended(&self) -> bool {
        let state = self.0.lock();
        state.closed && state.events.is_empty() && state.lost == 0
    }
}

/// The listeners of one pool, on its thread.
pub(crate) struct Subscribers {
    list: Rc<List>,
    _listening: Listening,
}

#[derive(Default)]
struct List {
    queues: RefCell<Vec<Weak<Queue>>>,
    /// A txg of some pool of this world came to disk, or the pool is closed.
    synced: Notify,
    closed: std::cell::Cell<bool>,
}

impl List {
    fn push(&self, event: &Event) {
        self.queues.borrow_mut().retain(|q| match q.upgrade() {
            Some(queue) => {
                queue.push(event.clone());
                true
            }
            None => false,
        });
    }
    fn close(&self) {
        self.closed.set(true);
        self.synced.notify_all();
        for queue in self.queues.take().iter().filter_map(Weak::upgrade) {
            queue.change(|s| s.closed = true);
        }
    }
}

struct Sink(Rc<List>);

impl EventSink for Sink {
    fn post(&self, class: String, time: WallTime, payload: NvList) {
        if self.0.queues.borrow().is_empty() {
            return;
        }
        self.0.push(&Event::Zevent(Zevent { time: system_time(time), class, fields: fields(&payload) }));
    }
}

impl Subscribers {
    /// None yet; `opened` is the way the pool was opened (`pool_create`, `pool_import`).
    pub(crate) fn of(pool: &Rc<spa::Pool>, opened: &str) -> Subscribers {
        let list: Rc<List> = Rc::default();
        pool.set_event_sink(Rc::new(Sink(list.clone())), opened);
        // A listener is called in the middle of an operation and must not access the pool: a task
        // does.
        let theirs = list.clone();
        let listening = pool.rt().tracer().listen(Groups::TXG, move |_, event| {
            if matches!(event, Trace::Txg { phase: TxgPhase::Synced, .. }) && !theirs.queues.borrow().is_empty() {
                theirs.synced.notify_one();
            }
        });
        let (txg, theirs) = (pool.txg().clone(), list.clone());
        drop(pool.rt().spawn("openweir txgs", async move {
            let mut told = txg.last_synced();
            while !theirs.closed.get() {
                theirs.synced.notified().await;
                let now = txg.last_synced();
                if now > told {
                    told = now;
                    theirs.push(&Event::Txg(now.0));
                }
            }
        }));
        Subscribers { list, _listening: listening }
    }
    pub(crate) fn add(&self, queue: &Arc<Queue>) {
        self.list.queues.borrow_mut().push(Arc::downgrade(queue));
    }
    pub(crate) fn close(&self) {
        self.list.close();
    }
}

impl Drop for Subscribers {
    fn drop(&mut self) {
        self.list.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_bounded_and_says_what_it_left_out() {
        let (mut events, queue) = Events::new();
        assert_eq!(events.wait(Duration::from_millis(1)), None);
        (0..QUEUE_MAX as u64 + 3).for_each(|n| queue.push(Event::Txg(n)));
        assert_eq!(events.try_next(), Some(Event::Lost(3)));
        assert_eq!(crate::block_on(events.next()), Some(Event::Txg(3)));
        queue.change(|s| s.closed = true);
        assert!(!events.is_ended());
        assert_eq!(std::iter::from_fn(|| events.try_next()).count(), QUEUE_MAX - 1);
        assert!(events.is_ended() && crate::block_on(events.next()).is_none());
    }

    #[test]
    fn times_before_1970_are_times() {
        let t = system_time(WallTime { secs: -2, nanos: 500_000_000 });
        assert_eq!(UNIX_EPOCH.duration_since(t).unwrap(), Duration::from_millis(1500));
    }
}
