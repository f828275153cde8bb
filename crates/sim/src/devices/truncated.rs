//! A file that is a device and is truncated by another program, and perhaps grows again, as the
//! devices of `host` see it.
//!
//! Data behind the cut is gone: reads give zeros where the file is long enough, and fail where it
//! is not. The device finds out by such a read, or with a write to the last two labels, before
//! which it looks. From then on every operation fails with [`base::ErrorKind::Corrupt`] until the
//! device is opened again.

use bdev::Op;

/// Bytes of the two labels at the end of a device (format page 01 section 1).
const LAST_LABELS: u64 = 512 << 10;

/// State of the truncated file.
pub(crate) struct Truncated {
    /// Bytes that it has now.
    pub(crate) len: u64,
    /// The device has found out.
    pub(crate) is_known: bool,
}

impl Truncated {
    /// Whether an operation on a device of `size` bytes fails.
    pub(crate) fn fails(&mut self, op: &Op, size: u64) -> bool {
        let end = op.offset().saturating_add(op.len());
        let finds_out = match op {
            Op::Read { .. } => end > self.len,
            Op::Write { .. } => end > size.saturating_sub(LAST_LABELS),
            _ => false,
        };
        self.is_known |= finds_out;
        if !self.is_known && matches!(op, Op::Write { .. }) {
            self.len = self.len.max(end);
        }
        self.is_known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(offset: u64) -> Op {
        Op::Read { offset, bufs: vec![bdev::Buf::zeroed(4096)] }
    }
    fn write(offset: u64) -> Op {
        Op::Write { offset, bufs: vec![bdev::Buf::zeroed(4096).freeze()], durable: false }
    }

    #[test]
    fn what_leads_past_the_end_or_to_the_last_labels_finds_out() {
        let size = 64 << 20;
        let short = || Truncated { len: 1 << 20, is_known: false };
        assert!(!short().fails(&read(0), size) && short().fails(&read(1 << 20), size));
        assert!(!short().fails(&write(8 << 20), size) && short().fails(&write(size - (256 << 10)), size));
        let mut written = short();
        assert!(
            !written.fails(&write(8 << 20), size) && !written.fails(&read(2 << 20), size),
            "as long as the write made it"
        );
        assert!(
            written.fails(&read(9 << 20), size) && written.fails(&read(0), size) && written.fails(&Op::Flush, size)
        );
    }
}
