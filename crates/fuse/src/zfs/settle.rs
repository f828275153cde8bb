//! The space that files take, as the kernel caches it.
//!
//! It is known when the last change of a file is on disk. Until then the kernel gets that of before
//! and may keep it for [`SHORT`]. A program that asks again right after a sync would still see it:
//! `mv` and `cp` take a file that seems to have less space than bytes for one with holes. So the
//! files whose attributes went out shortly before a txg was synced are remembered, and the kernel
//! is told then that what it has of them is stale.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use base::Nanos;
use rt::Rt;
use zpl::Zfs;

use super::SHORT;
use crate::session::Kernel;

/// Most files that are remembered; those before them are found out by the kernel after [`SHORT`].
const FILES_MAX: usize = 4096;

/// Files of which the kernel caches attributes for [`SHORT`].
#[derive(Default)]
pub(super) struct Unsettled {
    /// When the attributes went out, and the node; oldest first.
    files: RefCell<VecDeque<(Nanos, u64)>>,
    /// A task waits for the txg.
    is_watched: Cell<bool>,
}

impl Unsettled {
    /// Attributes of a file that changed recently go out.
    pub(super) fn add(self: &Rc<Self>, rt: &Rt, zfs: &Zfs, kernel: &Kernel, node: u64) {
        let now = rt.now();
        self.forget_before(now);
        let mut files = self.files.borrow_mut();
        // The kernel keeps what it got last.
        files.pop_back_if(|(_, last)| *last == node);
        files.push_back((now, node));
        if files.len() > FILES_MAX {
            files.pop_front();
        }
        if self.is_watched.replace(true) {
            return;
        }
        let (unsettled, rt, synced, kernel) = (Rc::downgrade(self), rt.clone(), zfs.when_synced(), kernel.clone());
        rt.clone().spawn("fuse_settle", async move {
            // An error means that the pool has ended.
            let is_synced = synced.await.is_ok();
            let Some(unsettled) = unsettled.upgrade() else { return };
            unsettled.forget_before(rt.now());
            unsettled.is_watched.set(false);
            let files = unsettled.files.take();
            for (_, node) in files.into_iter().filter(|_| is_synced) {
                kernel.attrs_changed(node);
            }
        });
    }

    fn forget_before(&self, now: Nanos) {
        let mut files = self.files.borrow_mut();
        while files.front().is_some_and(|(at, _)| now.since(*at).0 > SHORT.as_nanos() as u64) {
            files.pop_front();
        }
    }
}
