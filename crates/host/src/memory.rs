//! Memory for buffers: chunks straight from the kernel.
//!
//! No huge pages are asked for: where a hypervisor has to supply the memory under them, a first
//! touch was measured to cost several times that of small pages, which the kernel takes from
//! recently used memory.

use std::ptr::NonNull;

use bdev::{CHUNK, ChunkSource};
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Maps a chunk: twice the size, of which the aligned part stays.
fn map() -> Option<NonNull<u8>> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at a place of the kernel's choice.
    let p = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), 2 * CHUNK, prot, MapFlags::PRIVATE) }.ok()?;
    let head = p.addr().next_multiple_of(CHUNK) - p.addr();
    // SAFETY: `head` is below CHUNK, so all three parts lie within the mapping; none of it has been
    // used.
    unsafe {
        let chunk = p.byte_add(head);
        if head > 0 {
            let _ = rustix::mm::munmap(p, head);
        }
        let _ = rustix::mm::munmap(chunk.byte_add(CHUNK), CHUNK - head);
        NonNull::new(chunk.cast())
    }
}

/// Lets the kernel have the memory of a chunk when it is short of it.
///
/// # Safety
/// The chunk came from [`map`], and nothing refers to it.
unsafe fn idle(chunk: NonNull<u8>) {
    // SAFETY: the caller's word.
    let _ = unsafe { rustix::mm::madvise(chunk.as_ptr().cast(), CHUNK, Advice::LinuxFree) };
}

/// Makes all buffers of the process come from here.
pub(crate) fn install() {
    bdev::set_chunk_source(ChunkSource { map, idle });
}
