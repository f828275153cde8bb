//! Whether a file that is a device was truncated by another program, and perhaps grew again: then
//! part of the pool is gone, and reads of it give zeros where the file is long enough.
//!
//! A check costs two system calls without I/O, so it is done where it matters and seldom: with
//! writes to the last two labels, of which there are some in every txg. Those writes would make the
//! file as long as it was; nothing before them does. A file that was truncated and grew again has
//! its length already, but a hole where the label's configuration was. Older holes do not count: a
//! new device has no label yet.
//!
//! Once found it stays found: every operation on the device fails with [`base::ErrorKind::Corrupt`]
//! until it is opened again, because the file's content is gone, also the latest writes.

use std::cell::Cell;
use std::fs::File;

use rustix::fs::{SeekFrom, seek};

/// Bytes of a label, and of the two at the end (format page 01 section 1).
const LABEL_BYTES: u64 = 256 << 10;
/// Where the configuration stands in a label.
const CONFIG_OFFSET: u64 = 16 << 10;

/// The state known of a file.
#[derive(Default)]
pub(crate) struct Truncation {
    /// The place of the configuration in the third label has been seen to hold data.
    labelled: Cell<bool>,
    found: Cell<Option<Found>>,
}

/// The finding of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// Shorter than it was: bytes now, bytes expected.
    Shorter(u64, u64),
    /// As long as it was, but the label is a hole.
    Hole,
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Found::Shorter(now, was) => write!(f, "the file was truncated while in use: it has {now} bytes of {was}"),
            Found::Hole => write!(f, "the file was truncated and grew again while in use: its labels are gone"),
        }
    }
}

impl Truncation {
    /// The earlier finding, if any.
    pub(crate) fn found(&self) -> Option<Found> {
        self.found.get()
    }

    /// The size of the device is another from now on.
    pub(crate) fn resized(&self) {
        self.labelled.set(false);
    }

    /// Looks at the file before a write of `len` bytes at `offset`, if that is one to the last
    /// labels of a device of `size` bytes.
    pub(crate) fn look_before_write(&self, file: &File, size: u64, offset: u64, len: u64) -> Option<Found> {
        let labels = (size & !(LABEL_BYTES - 1)).checked_sub(2 * LABEL_BYTES)?;
        if offset.saturating_add(len) > labels { self.look(file, size, labels + CONFIG_OFFSET) } else { None }
    }

    /// Looks at the file after a read that it was too short for.
    pub(crate) fn look_after_short_read(&self, file: &File, size: u64) -> Option<Found> {
        self.look(file, size, size)
    }

    fn look(&self, file: &File, size: u64, config: u64) -> Option<Found> {
        if self.found.get().is_none() {
            let now = file.metadata().map_or(size, |m| m.len());
            if now < size {
                self.found.set(Some(Found::Shorter(now, size)));
            } else if config < size {
                let hole = is_hole(file, config);
                if hole && self.labelled.get() {
                    self.found.set(Some(Found::Hole));
                }
                self.labelled.set(!hole);
            }
        }
        self.found.get()
    }
}

/// Whether there is a hole at `offset`; false where the file system cannot tell.
fn is_hole(file: &File, offset: u64) -> bool {
    // Every transfer names its offset, so none cares where the file stands.
    seek(file, SeekFrom::Hole(offset)) == Ok(offset)
}
