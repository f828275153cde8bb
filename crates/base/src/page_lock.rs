//! The seam to the operating system for memory that holds keys.

/// Keeps pages out of swap and core files.
pub trait PageLock: Send + Sync {
    /// Locks `pages`, which begin and end at page boundaries. False if the system refuses; the
    /// memory can be used all the same.
    fn lock(&self, pages: &[u8]) -> bool;
    /// Undoes [`PageLock::lock`] before the memory goes back to the allocator.
    fn unlock(&self, pages: &[u8]);
}
