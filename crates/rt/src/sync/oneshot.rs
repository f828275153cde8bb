//! One value from one sender to one receiver.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

struct Slot<T> {
    value: Option<T>,
    waker: Option<Waker>,
    sender: bool,
    receiver: bool,
}

/// Sends the one value.
pub struct Sender<T>(Rc<RefCell<Slot<T>>>);

/// Awaits the one value: `None` if the sender was dropped without sending.
#[must_use = "a receiver gets its value only when awaited"]
pub struct Receiver<T>(Rc<RefCell<Slot<T>>>);

/// A sender and its receiver.
pub fn oneshot<T>() -> (Sender<T>, Receiver<T>) {
    let slot = Rc::new(RefCell::new(Slot { value: None, waker: None, sender: true, receiver: true }));
    (Sender(slot.clone()), Receiver(slot))
}

impl<T> Sender<T> {
    /// Sends; returns the value if the receiver is gone.
    pub fn send(self, value: T) -> Result<(), T> {
        let mut slot = self.0.borrow_mut();
        if !slot.receiver {
            return Err(value);
        }
        slot.value = Some(value);
        Ok(())
    }
    /// Whether the receiver is gone.
    pub fn is_closed(&self) -> bool {
        !self.0.borrow().receiver
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut slot = self.0.borrow_mut();
            slot.sender = false;
            slot.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Receiver<T> {
    /// The value, if it was sent already.
    pub fn try_recv(&mut self) -> Option<T> {
        self.0.borrow_mut().value.take()
    }
}

impl<T> Future for Receiver<T> {
    type Output = Option<T>;
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut slot = self.0.borrow_mut();
        if let Some(value) = slot.value.take() {
            return Poll::Ready(Some(value));
        }
        if !slot.sender {
            return Poll::Ready(None);
        }
        match &mut slot.waker {
            Some(old) => old.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let unread = {
            let mut slot = self.0.borrow_mut();
            slot.receiver = false;
            (slot.value.take(), slot.waker.take())
        };
        drop(unread);
    }
}
