//! Notifications to the kernel: to drop pages of a file, or a name.
//!
//! The kernel writes dirty pages back before it drops them, by requests that the engine answers,
//! and waits for pages that are being read. So such a message goes out from a thread of its own,
//! never from the engine's.
//!
//! # After direct writes
//!
//! The kernel drops pages of a range before it sends a direct write (`O_DIRECT`), and again when
//! the call returns. An asynchronous write (AIO, io_uring) returns before it is done: a page read
//! meanwhile has the old data, and stays. So the reply to a direct write waits until the kernel has
//! dropped the pages once more, in this order:
//!
//! 1. the file system takes the data; every `READ` from now on is answered with them, and no lock
//!    of it is held any more;
//! 2. a thread makes the kernel drop the range, and waits. The kernel takes the lock of each page.
//!    Its holder waits for the answer to a `READ`, or to a `WRITE` of that page (a store to a
//!    mapping, a write through the cache). Both are answered by workers of the session, which do
//!    not wait here: the reply is in the hands of a task of its own;
//! 3. the reply.
//!
//! A request that holds pages locked itself must never wait for this: only writes of files that
//! were opened past the cache do (`FOPEN_DIRECT_IO`; those of other files fall back to the cache),
//! and no write from the cache. They do so only while the file is also open through the cache.

use std::io::IoSlice;
use std::os::fd::AsFd;
use std::rc::Rc;

use host::write_now;

use crate::proto;
use crate::session::Core;
use crate::wire::Small;

impl Core {
    /// Has the kernel write the changed pages of a file back and drop all of its pages, and waits
    /// for that. Pages that cannot be written back are lost.
    pub(crate) async fn drop_pages(self: &Rc<Self>, node: u64) {
        self.drop_pages_in(node, 0, 0).await;
    }

    /// The same for `len` bytes from `offset`; to the end of the file if `len` is 0.
    pub(crate) async fn drop_pages_in(self: &Rc<Self>, node: u64, offset: u64, len: u64) {
        let Some(fd) = self.device() else { return };
        // A descriptor that another thread may use.
        let Ok(fd) = fd.as_fd().try_clone_to_owned() else { return };
        let sent = host::blocking(move || {
            let mut message = Small::new();
            proto::put_drop_pages(&mut message, node, offset, len);
            write_now(fd.as_fd(), &[IoSlice::new(message.as_slice())])
        });
        // Errors mean that the kernel has no such node, or that the mount is over: then it has no
        // pages either.
        let _ = sent.await;
    }

    /// Has the kernel drop a name of a directory and its cached nodes below it, and waits for that.
    pub(crate) async fn drop_name(self: &Rc<Self>, dir: u64, name: &[u8]) {
        let Some(fd) = self.device() else { return };
        let Ok(fd) = fd.as_fd().try_clone_to_owned() else { return };
        let mut message = Vec::new();
        proto::put_drop_name(&mut message, dir, name);
        // It takes the lock of the directory, which a request under way may hold.
        let sent = host::blocking(move || write_now(fd.as_fd(), &[IoSlice::new(&message)]));
        // Errors mean that the kernel has no such name.
        let _ = sent.await;
    }
    /// Sends messages to the kernel, one after the other, and waits for that.
    pub(crate) async fn send_all(self: &Rc<Self>, messages: Vec<Vec<u8>>) {
        let Some(fd) = self.device() else { return };
        let Ok(fd) = fd.as_fd().try_clone_to_owned() else { return };
        let sent = host::blocking(move || {
            for message in messages {
                // An error means that the kernel has no such node or name.
                let _ = write_now(fd.as_fd(), &[IoSlice::new(&message)]);
            }
        });
        let _ = sent.await;
    }
}
