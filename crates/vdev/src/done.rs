//! Completions of operations: cheap futures over shared state, resolved inside a device's
//! completion callback.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use base::{Error, ErrorKind, Result};
use bdev::Bytes;

type Hook = Box<dyn FnOnce(&Result<()>)>;

/// The error of an operation whose world ended before it completed.
pub(crate) fn interrupted() -> Error {
    Error::new(ErrorKind::Interrupted, "the device went away before it completed an operation")
}

/// Resolves once every device of a write has completed it; durable only after a flush.
///
/// `'static` and clonable; the write proceeds without being polled. Await many of them one after
/// the other: each is then polled at most twice.
#[derive(Clone)]
pub struct WriteDone(State);

#[derive(Clone)]
enum State {
    Ready(Result<()>),
    Waits(Rc<Shared>),
}

#[derive(Default)]
struct Shared {
    result: RefCell<Option<Result<()>>>,
    wakers: RefCell<Vec<Waker>>,
    hooks: RefCell<Vec<Hook>>,
    /// Its parts, until it completes.
    parts: RefCell<Vec<WriteDone>>,
}

impl Shared {
    fn finish(&self, result: Result<()>) {
        // Parts hold a reference to the whole: break the cycle.
        drop(self.parts.take());
        *self.result.borrow_mut() = Some(result.clone());
        for hook in self.hooks.take() {
            hook(&result);
        }
        for waker in self.wakers.take() {
            waker.wake();
        }
    }
}

impl WriteDone {
    /// A completed write.
    pub fn ready(result: Result<()>) -> WriteDone {
        WriteDone(State::Ready(result))
    }

    /// A write, and its completer.
    pub fn pending() -> (WriteDone, Completer) {
        let shared = Rc::new(Shared::default());
        (WriteDone(State::Waits(shared.clone())), Completer(Some(shared)))
    }

    /// Completes when all of `parts` have; of several errors the first to arrive is the result.
    pub fn join(parts: impl IntoIterator<Item = WriteDone>) -> WriteDone {
        let mut waiting: Vec<WriteDone> = Vec::new();
        let mut error = None;
        for part in parts {
            match part.result() {
                Some(Ok(())) => {}
                Some(Err(e)) => error = error.or(Some(e)),
                None => waiting.push(part),
            }
        }
        match (waiting.len(), &error) {
            (0, _) => return WriteDone::ready(error.map_or(Ok(()), Err)),
            (1, None) => return waiting.swap_remove(0),
            _ => {}
        }
        WriteDone::gather(waiting, 0, error)
    }

    /// Completes when all of `parts` have; an error, the first beyond the tolerated ones, if more
    /// than `tolerates` failed.
    pub fn quorum(parts: Vec<WriteDone>, tolerates: usize) -> WriteDone {
        if tolerates == 0 {
            return WriteDone::join(parts);
        }
        if parts.is_empty() {
            return WriteDone::ready(Ok(()));
        }
        WriteDone::gather(parts, tolerates, None)
    }

    /// Completes when all of `parts`, at least one, have; `error` is an earlier error.
    fn gather(parts: Vec<WriteDone>, tolerates: usize, error: Option<Error>) -> WriteDone {
        let (all, completer) = WriteDone::pending();
        let gathered = Rc::new(Gathered {
            left: Cell::new(parts.len()),
            tolerates,
            failed: Cell::new(0),
            error: RefCell::new(error),
            completer: RefCell::new(Some(completer)),
        });
        for part in &parts {
            let gathered = gathered.clone();
            part.on_done(move |r| gathered.part_done(r));
        }
        all.set_parts(parts);
        all
    }

    /// Sets the parts of a pending write, for [`WriteDone::on_parts`].
    pub fn set_parts(&self, parts: Vec<WriteDone>) {
        if let State::Waits(shared) = &self.0
            && shared.result.borrow().is_none()
        {
            *shared.parts.borrow_mut() = parts;
        }
    }

    fn leaf_parts(&self, out: &mut Vec<WriteDone>) {
        match &self.0 {
            State::Waits(shared) if !shared.parts.borrow().is_empty() => {
                shared.parts.borrow().iter().for_each(|p| p.leaf_parts(out));
            }
            _ => out.push(self.clone()),
        }
    }

    /// Calls `f` as each device write of this write completes, with its place in the order of
    /// completion from 0, the number of device writes, and its result. Device writes that had
    /// completed when the write was joined are not counted.
    pub fn on_parts(&self, f: impl Fn(u64, u64, &Result<()>) + 'static) {
        let mut parts = Vec::new();
        self.leaf_parts(&mut parts);
        let (f, over, of) = (Rc::new(f), Rc::new(Cell::new(0)), parts.len() as u64);
        for part in parts {
            let (f, over) = (f.clone(), over.clone());
            part.on_done(move |r| {
                let nth = over.get();
                over.set(nth + 1);
                f(nth, of, r);
            });
        }
    }

    /// Calls `f` once, inside the completion, when the write completes; at once if it has. `f` may
    /// start other operations but must be short.
    pub fn on_done(&self, f: impl FnOnce(&Result<()>) + 'static) {
        match &self.0 {
            State::Ready(r) => f(r),
            State::Waits(shared) => {
                let over = shared.result.borrow().clone();
                match over {
                    Some(r) => f(&r),
                    None => shared.hooks.borrow_mut().push(Box::new(f)),
                }
            }
        }
    }

    /// Whether it has completed.
    pub fn is_done(&self) -> bool {
        match &self.0 {
            State::Ready(_) => true,
            State::Waits(shared) => shared.result.borrow().is_some(),
        }
    }

    /// The result, once it has completed.
    pub fn result(&self) -> Option<Result<()>> {
        match &self.0 {
            State::Ready(r) => Some(r.clone()),
            State::Waits(shared) => shared.result.borrow().clone(),
        }
    }
}

impl Future for WriteDone {
    type Output = Result<()>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if let Some(r) = self.result() {
            return Poll::Ready(r);
        }
        if let State::Waits(shared) = &self.0 {
            let mut wakers = shared.wakers.borrow_mut();
            if !wakers.iter().any(|w| w.will_wake(cx.waker())) {
                wakers.push(cx.waker().clone());
            }
        }
        Poll::Pending
    }
}

impl fmt::Debug for WriteDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriteDone({:?})", self.result())
    }
}

/// Completes a [`WriteDone`]. Dropped before that, the result is an error of kind `Interrupted`:
/// the world ended.
pub struct Completer(Option<Rc<Shared>>);

impl Completer {
    /// Completes the write.
    pub fn complete(mut self, result: Result<()>) {
        if let Some(shared) = self.0.take() {
            shared.finish(result);
        }
    }
}

impl Drop for Completer {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take() {
            shared.finish(Err(interrupted()));
        }
    }
}

struct Gathered {
    /// Pending parts.
    left: Cell<usize>,
    /// Parts that may fail.
    tolerates: usize,
    /// Parts that failed.
    failed: Cell<usize>,
    error: RefCell<Option<Error>>,
    completer: RefCell<Option<Completer>>,
}

impl Gathered {
    fn part_done(&self, result: &Result<()>) {
        if let Err(e) = result {
            self.note_error(e);
        }
        self.left.set(self.left.get() - 1);
        if self.left.get() == 0 {
            let completer = self.completer.take();
            let error = self.error.take();
            if let Some(c) = completer {
                c.complete(error.map_or(Ok(()), Err));
            }
        }
    }

    fn note_error(&self, e: &Error) {
        if self.tolerates > 0 && e.kind() == ErrorKind::Interrupted {
            // The end of the world is no failure of a device.
            *self.error.borrow_mut() = Some(e.clone());
            return;
        }
        self.failed.set(self.failed.get() + 1);
        if self.failed.get() > self.tolerates {
            self.error.borrow_mut().get_or_insert_with(|| e.clone());
        }
    }
}

#[derive(Default)]
struct ReadShared {
    result: Option<Result<Bytes>>,
    waker: Option<Waker>,
}

/// Resolves to the bytes. Dropping it discards only the result.
pub struct ReadDone(Rc<RefCell<ReadShared>>);

impl ReadDone {
    pub(crate) fn pending() -> (ReadDone, ReadCompleter) {
        let shared = Rc::new(RefCell::new(ReadShared::default()));
        (ReadDone(shared.clone()), ReadCompleter(Some(shared)))
    }
    pub(crate) fn ready(result: Result<Bytes>) -> ReadDone {
        ReadDone(Rc::new(RefCell::new(ReadShared { result: Some(result), waker: None })))
    }
}

impl Future for ReadDone {
    type Output = Result<Bytes>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Bytes>> {
        let mut shared = self.0.borrow_mut();
        if let Some(r) = shared.result.take() {
            return Poll::Ready(r);
        }
        shared.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

pub(crate) struct ReadCompleter(Option<Rc<RefCell<ReadShared>>>);

impl ReadCompleter {
    pub(crate) fn complete(mut self, result: Result<Bytes>) {
        self.finish(result);
    }
    fn finish(&mut self, result: Result<Bytes>) {
        if let Some(shared) = self.0.take() {
            let waker = {
                let mut s = shared.borrow_mut();
                s.result = Some(result);
                s.waker.take()
            };
            if let Some(w) = waker {
                w.wake();
            }
        }
    }
}

impl Drop for ReadCompleter {
    fn drop(&mut self) {
        self.finish(Err(interrupted()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn join_waits_for_all_and_keeps_the_first_error() {
        let (a, ca) = WriteDone::pending();
        let (b, cb) = WriteDone::pending();
        let heard = Rc::new(Cell::new(0));
        let all = WriteDone::join([WriteDone::ready(Ok(())), a, b]);
        let h = heard.clone();
        all.on_done(move |r| h.set(if r.is_err() { 2 } else { 1 }));
        ca.complete(Err(Error::new(ErrorKind::Io, "first")));
        assert!(!all.is_done());
        cb.complete(Err(Error::new(ErrorKind::Io, "second")));
        assert_eq!(heard.get(), 2);
        assert_eq!(all.result().expect("over").expect_err("failed").to_string(), "first");
        assert!(WriteDone::join([]).is_done());
        for (failures, tolerates, good) in [(0, 1, true), (1, 1, true), (2, 1, false), (2, 2, true), (3, 2, false)] {
            let (parts, ends): (Vec<_>, Vec<_>) = (0..3).map(|_| WriteDone::pending()).unzip();
            let all = WriteDone::quorum(parts, tolerates);
            for (i, end) in ends.into_iter().enumerate() {
                assert!(!all.is_done());
                end.complete(if i < failures { Err(Error::new(ErrorKind::Io, "lost")) } else { Ok(()) });
            }
            assert_eq!(all.result().expect("over").is_ok(), good);
        }
        // Two copies, one of them on a mirror: three devices. The whole completes after the last
        // one is reported.
        let (parts, mut ends): (Vec<_>, Vec<_>) = (0..3).map(|_| WriteDone::pending()).unzip();
        let mirror = WriteDone::quorum(parts[..2].to_vec(), 1);
        let (both, end) = WriteDone::pending();
        both.set_parts(vec![mirror, parts[2].clone()]);
        let told: Rc<RefCell<Vec<(u64, u64, bool)>>> = Rc::default();
        let t = told.clone();
        both.on_parts(move |nth, of, r| t.borrow_mut().push((nth, of, r.is_ok())));
        ends.remove(2).complete(Ok(()));
        ends.remove(0).complete(Err(Error::new(ErrorKind::Io, "lost")));
        ends.remove(0).complete(Ok(()));
        assert_eq!(*told.borrow(), [(0, 3, true), (1, 3, false), (2, 3, true)]);
        end.complete(Ok(()));
        assert_eq!(Rc::strong_count(&told), 1, "nothing keeps the parts alive");
        let (c, cc) = WriteDone::pending();
        drop(cc);
        assert_eq!(c.result().expect("over").expect_err("gone").kind(), ErrorKind::Interrupted);
    }
}
