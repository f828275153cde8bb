//! The queue of changes of the device tree, from a command or a task to the txg that makes them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use base::{Error, ErrorKind, Result};
use bdev::BlockDev;
use dmu::Tx;
use ondisk::nvlist::NvList;
use rt::LocalBoxFuture;
use rt::sync::{Permit, Semaphore, oneshot};
use vdev::VdevKind;
use vdev::labels::init_labels;

use super::Devices;
use crate::stack::Stack;

/// The result of a change: an outer error means that the MOS is half changed, and ends the txg; an
/// inner one that nothing was changed.
pub(super) type Outcome<T> = Result<std::result::Result<T, Error>>;
type Change = Box<dyn for<'a> FnOnce(&'a Devices, &'a Tx) -> LocalBoxFuture<'a, Result<()>>>;

/// A label to write after a commit.
struct Relabel {
    dev: Rc<dyn BlockDev>,
    label: NvList,
}

/// The changes that wait for a txg, and what follows its commit.
pub(super) struct Changes {
    stack: Rc<Stack>,
    queue: RefCell<VecDeque<Change>>,
    relabel: RefCell<Vec<Relabel>>,
    /// One administrative change at a time.
    admin: Semaphore,
}

impl Changes {
    /// Nothing is under way.
    pub(super) fn new(stack: &Rc<Stack>) -> Rc<Changes> {
        let (queue, relabel) = (RefCell::default(), RefCell::default());
        Rc::new(Changes { stack: stack.clone(), queue, relabel, admin: Semaphore::new(1) })
    }

    /// Waits until no administrative change of the devices is under way, and blocks new ones.
    pub(super) async fn hold(&self) -> Permit {
        self.admin.acquire(1).await
    }

    /// Queues `change` for the next txg and waits until that is on disk.
    pub(super) async fn make<T: 'static>(
        &self,
        change: impl for<'a> FnOnce(&'a Devices, &'a Tx) -> LocalBoxFuture<'a, Outcome<T>> + 'static,
    ) -> Result<T> {
        let (outcome_tx, mut outcome_rx) = oneshot::oneshot();
        let boxed: Change = Box::new(move |devices, tx| {
            Box::pin(async move {
                let outcome = change(devices, tx).await?;
                // The caller may be gone; the change is made regardless.
                let _ = outcome_tx.send(outcome);
                Ok(())
            })
        });
        let txgs = &self.stack.txg;
        let (start, txg) = (self.stack.rt.now(), txgs.open_txg());
        self.queue.borrow_mut().push_back(boxed);
        txgs.wait_synced(txg).await?;
        txgs.admin_done(txg, start);
        outcome_rx.try_recv().ok_or_else(|| Error::new(ErrorKind::Interrupted, "the pool is being closed"))?
    }

    /// Queues `change` for the next txg that is synced, without a wait.
    pub(super) fn queue(
        &self,
        change: impl for<'a> FnOnce(&'a Devices, &'a Tx) -> LocalBoxFuture<'a, Result<()>> + 'static,
    ) {
        self.queue.borrow_mut().push_back(Box::new(change));
    }

    /// The next change to carry out.
    pub(super) fn next(&self) -> Option<Change> {
        self.queue.borrow_mut().pop_front()
    }

    /// Queues the new label of a leaf that left the tree; from the next commit on its device is not
    /// the pool's, or is a hot spare.
    pub(super) fn queue_relabel(&self, kind: &VdevKind, label: Option<NvList>) {
        if let (VdevKind::Leaf(leaf), Some(label)) = (kind, label) {
            self.relabel.borrow_mut().push(Relabel { dev: leaf.dev.clone(), label });
        }
    }

    /// Writes the new labels of devices that left the pool, after the commit.
    pub(super) async fn relabel(&self) {
        for r in self.relabel.take() {
            // The device may have left because it cannot be written.
            let _ = init_labels(&*r.dev, &r.label).await;
        }
    }
}
