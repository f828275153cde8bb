//! What the kernel is told without having asked: that it must drop pages of a file.
//!
//! The kernel writes dirty pages back before it drops them, by requests that the engine answers, and waits for pages
//! that are being read. So such a message goes out from a thread of its own, never from the engine's.

use std::io::IoSlice;
use std::os::fd::AsFd;
use std::rc::Rc;

use host::write_now;

use crate::proto;
use crate::session::Core;
use crate::wire::Small;

impl Core {
    /// Has the kernel write the changed pages of a file back and drop all of its pages, and waits for that. What
    /// cannot be written back is lost.
    pub(crate) async fn drop_pages(self: &Rc<Self>, node: u64) {
        let Some(fd) = self.device() else { return };
        // A descriptor that another thread may use.
        let Ok(fd) = fd.as_fd().try_clone_to_owned() else { return };
        let told = host::blocking(move || {
            let mut message = Small::new();
            proto::put_drop_pages(&mut message, node);
            write_now(fd.as_fd(), &[IoSlice::new(message.as_slice())])
        });
        // Errors mean that the kernel does not know the node, or that the mount is over: then it has no pages either.
        let _ = told.await;
    }
}
