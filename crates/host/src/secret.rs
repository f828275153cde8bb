//! Memory for keys on a real machine: locked (`mlock`), left out of core files, overwritten.
//!
//! Engines lock their key memory with [`SystemPageLock`]. [`SecretBytes`] is a buffer for incoming
//! keys: the bytes that a command reads from a prompt or a file, the message that carries them, the
//! request made of it. It has pages of its own, so that locking and unlocking concern no other
//! memory.
//!
//! The system may refuse to lock (`RLIMIT_MEMLOCK`). The memory is used all the same.

use std::ops::Deref;
use std::ptr::NonNull;

use base::PageLock;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap_anonymous, munlock, munmap};
use rustix::process::Resource;

use crate::process::raise_limit;

/// Locks with `mlock` and leaves the pages out of core files.
pub(crate) struct SystemPageLock;

impl PageLock for SystemPageLock {
    fn lock(&self, pages: &[u8]) -> bool {
        let (at, len) = (pages.as_ptr().cast_mut().cast(), pages.len());
        // SAFETY: the range is memory of ours; neither call changes its contents.
        unsafe {
            let _ = madvise(at, len, Advice::LinuxDontDump);
            mlock(at, len).is_ok()
        }
    }

    fn unlock(&self, pages: &[u8]) {
        let (at, len) = (pages.as_ptr().cast_mut().cast(), pages.len());
        // SAFETY: as for `lock`.
        unsafe {
            let _ = munlock(at, len);
            let _ = madvise(at, len, Advice::LinuxDoDump);
        }
    }
}

/// Bytes of a page: mappings have whole ones.
const PAGE: usize = 4096;

/// Bytes that are or may be a key: locked in memory if the system allows it, and overwritten when
/// dropped or moved to a larger place.
pub struct SecretBytes {
    at: NonNull<u8>,
    len: usize,
    /// Bytes of the mapping; 0: there is none.
    room: usize,
}

// SAFETY: the mapping belongs to this value alone.
unsafe impl Send for SecretBytes {}
// SAFETY: shared references only read.
unsafe impl Sync for SecretBytes {}

impl Default for SecretBytes {
    fn default() -> SecretBytes {
        SecretBytes { at: NonNull::dangling(), len: 0, room: 0 }
    }
}

impl std::fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretBytes")
    }
}

impl SecretBytes {
    /// Room for `room` bytes. Panics if the system has no memory left, as allocations do.
    pub fn with_room(room: usize) -> SecretBytes {
        if room == 0 {
            return SecretBytes::default();
        }
        let room = room.next_multiple_of(PAGE);
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place of the kernel's choice.
        let p = unsafe { mmap_anonymous(std::ptr::null_mut(), room, prot, MapFlags::PRIVATE) };
        let Ok(p) = p else { panic!("no memory for {room} bytes") };
        let at = NonNull::new(p.cast()).expect("a mapping is never at 0");
        // SAFETY: the mapping is that long and filled with zeros.
        SystemPageLock.lock(unsafe { std::slice::from_raw_parts(at.as_ptr(), room) });
        SecretBytes { at, len: 0, room }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` bytes were written; with none the place is dangling, which an empty slice
        // may be.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }

    /// Bytes that fit in without a move.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Moves to a place with room for `more` further bytes unless they fit in.
    pub fn reserve(&mut self, more: usize) {
        let need = self.len + more;
        if need > self.room {
            let mut larger = SecretBytes::with_room(need.max(2 * self.room));
            larger.push(self.as_slice());
            *self = larger;
        }
    }

    /// Appends bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len());
        // SAFETY: there is room for them behind `len`; `bytes` is no part of this mapping, which is
        // borrowed alone.
        unsafe { self.at.add(self.len).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        self.len += bytes.len();
    }

    /// Appends the bytes of one `read`, at most `max`; returns their number. No other copy of them
    /// is kept.
    pub fn read_from(&mut self, from: &mut impl std::io::Read, max: usize) -> std::io::Result<usize> {
        self.reserve(max);
        // SAFETY: the bytes behind `len` are in the mapping and initialised (a mapping begins with
        // zeros).
        let free = unsafe { std::slice::from_raw_parts_mut(self.at.add(self.len).as_ptr(), max) };
        let n = from.read(free)?.min(max);
        self.len += n;
        Ok(n)
    }

    /// Cuts to the first `len` bytes and wipes the rest.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len {
            self.wipe(len);
            self.len = len;
        }
    }

    /// Overwrites the bytes from `from` on.
    fn wipe(&mut self, from: usize) {
        for n in from..self.len {
            // SAFETY: within the mapping. Volatile, since nothing reads them again.
            unsafe { self.at.add(n).write_volatile(0) };
        }
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
    }
}

impl Drop for SecretBytes {
    fn drop(&mut self) {
        self.wipe(0);
        if self.room > 0 {
            // SAFETY: the mapping is ours, and nothing refers to it any more; its lock ends with
            // it.
            let _ = unsafe { munmap(self.at.as_ptr().cast(), self.room) };
        }
    }
}

impl Clone for SecretBytes {
    fn clone(&self) -> SecretBytes {
        SecretBytes::from(self.as_slice())
    }
}

impl PartialEq for SecretBytes {
    fn eq(&self, other: &SecretBytes) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for SecretBytes {}

impl Deref for SecretBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsRef<[u8]> for SecretBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<&[u8]> for SecretBytes {
    fn from(bytes: &[u8]) -> SecretBytes {
        let mut out = SecretBytes::with_room(bytes.len());
        out.push(bytes);
        out
    }
}

impl std::io::Write for SecretBytes {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.push(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Allows this process to lock as much memory as the system lets it (`RLIMIT_MEMLOCK`, the hard
/// limit).
pub fn raise_locked_memory() {
    raise_limit(Resource::Memlock);
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn secrets_grow_shrink_and_compare() {
        let mut s = SecretBytes::default();
        assert!(s.is_empty() && s == SecretBytes::with_room(1));
        s.write_all(b"a passphrase").unwrap();
        let copy = s.clone();
        assert_eq!(s.read_from(&mut &[7u8; 10_000][..], 9_000).unwrap(), 9_000);
        assert_eq!((&s[..12], s.len(), s[9_011]), (&b"a passphrase"[..], 9_012, 7));
        s.truncate(12);
        assert!(s == copy);
        assert_eq!(format!("{s:?}"), "SecretBytes");
    }

    /// The flags of the mapping at this address (proc_pid_smaps(5), VmFlags).
    fn flags_at(addr: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|r| r.split_once('-'));
            if let Some((Ok(from), Ok(to))) =
                range.map(|(f, t)| (usize::from_str_radix(f, 16), usize::from_str_radix(t, 16)))
            {
                inside = (from..to).contains(&addr);
            } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| inside) {
                return flags.to_string();
            }
        }
        panic!("no mapping at {addr:x}");
    }

    #[test]
    fn secrets_are_locked_and_in_no_core_file() {
        let s = SecretBytes::from(&[1u8; 100][..]);
        let flags = flags_at(s.as_ptr().addr());
        assert!(flags.contains(" lo") && flags.contains(" dd"), "{flags}");
        let plain = vec![0u8; 1 << 20];
        let flags = flags_at(plain.as_ptr().addr());
        assert!(!flags.contains(" lo") && !flags.contains(" dd"), "{flags}");
    }
}
