//! A bounded queue from many senders to one receiver.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::semaphore::Semaphore;

struct State<T> {
    queue: VecDeque<T>,
    senders: usize,
    receiver: bool,
    waker: Option<Waker>,
}

struct Shared<T> {
    state: RefCell<State<T>>,
    /// One unit per free place.
    places: Semaphore,
}

impl<T> Shared<T> {
    fn wake_receiver(&self) {
        let waker = self.state.borrow_mut().waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A queue of at most `capacity` (at least 1) values.
pub fn channel<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    assert!(capacity > 0, "a channel needs room for one value");
    let shared = Rc::new(Shared {
        state: RefCell::new(State { queue: VecDeque::new(), senders: 1, receiver: true, waker: None }),
        places: Semaphore::new(capacity as u64),
    });
    (Sender(shared.clone()), Receiver(shared))
}

/// Sends into a channel; clone it for another sender.
pub struct Sender<T>(Rc<Shared<T>>);

/// Why a value was not sent, and the value.
#[derive(Debug, PartialEq, Eq)]
pub enum TrySendError<T> {
    /// There is no free place, or another sender waits for one.
    Full(T),
    /// The receiver is gone.
    Closed(T),
}

impl<T> Sender<T> {
    /// Waits for a free place and sends. Gives the value back if the receiver is gone.
    pub async fn send(&self, value: T) -> Result<(), T> {
        let Some(permit) = self.0.places.acquire_unless_closed(1).await else { return Err(value) };
        permit.forget();
        self.0.state.borrow_mut().queue.push_back(value);
        self.0.wake_receiver();
        Ok(())
    }
    /// Sends without waiting.
    pub fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        if self.is_closed() {
            return Err(TrySendError::Closed(value));
        }
        let Some(permit) = self.0.places.try_acquire(1) else { return Err(TrySendError::Full(value)) };
        permit.forget();
        self.0.state.borrow_mut().queue.push_back(value);
        self.0.wake_receiver();
        Ok(())
    }
    /// Whether the receiver is gone.
    pub fn is_closed(&self) -> bool {
        !self.0.state.borrow().receiver
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.0.state.borrow_mut().senders += 1;
        Sender(self.0.clone())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let last = {
            let mut state = self.0.state.borrow_mut();
            state.senders -= 1;
            state.senders == 0
        };
        if last {
            self.0.wake_receiver();
        }
    }
}

/// Receives from a channel.
pub struct Receiver<T>(Rc<Shared<T>>);

impl<T> Receiver<T> {
    /// Waits for the next value: `None` when the queue is empty and every sender is gone.
    pub async fn recv(&mut self) -> Option<T> {
        std::future::poll_fn(|cx| {
            let value = {
                let mut state = self.0.state.borrow_mut();
                match state.queue.pop_front() {
                    Some(value) => value,
                    None if state.senders == 0 => return Poll::Ready(None),
                    None => {
                        state.waker = Some(cx.waker().clone());
                        return Poll::Pending;
                    }
                }
            };
            self.0.places.add(1);
            Poll::Ready(Some(value))
        })
        .await
    }
    /// The next value if there is one.
    pub fn try_recv(&mut self) -> Option<T> {
        let value = self.0.state.borrow_mut().queue.pop_front()?;
        self.0.places.add(1);
        Some(value)
    }
    /// Values in the queue.
    pub fn len(&self) -> usize {
        self.0.state.borrow().queue.len()
    }
    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let unread = {
            let mut state = self.0.state.borrow_mut();
            state.receiver = false;
            (std::mem::take(&mut state.queue), state.waker.take())
        };
        drop(unread);
        self.0.places.close();
    }
}
