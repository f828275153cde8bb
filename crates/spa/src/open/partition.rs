//! Disks with a GUID partition table: each partition as a device.

use std::rc::Rc;

use bdev::{BlockDev, Completion, DevInfo, Op};
use ondisk::bytes::{le32, le64};

/// The signature of a GUID partition table, in sector 1.
pub(crate) const GPT_SIGNATURE: &[u8; 8] = b"EFI PART";
/// Possible sector sizes of a table: those of an image may differ from those of its original disk.
pub(crate) const SECTORS: [usize; 2] = [512, 4096];
/// Most bytes of entries that are read; usual are 128 entries of 128 bytes.
const ENTRIES_MAX: u64 = 128 << 10;

/// A range of a device.
struct Partition {
    whole: Rc<dyn BlockDev>,
    start: u64,
    info: DevInfo,
}

impl BlockDev for Partition {
    fn info(&self) -> &DevInfo {
        &self.info
    }
    fn submit(&self, mut op: Op, done: Completion) {
        let (len, mut at) = (op.len(), op.offset());
        if !matches!(op, Op::Flush) {
            // Moves an operation beyond the partition beyond the device, which refuses it.
            let inside = at.checked_add(len).is_some_and(|end| end <= self.info.size_bytes);
            at = if inside { self.start + at } else { u64::MAX - (u64::MAX % 4096) };
        }
        match &mut op {
            Op::Read { offset, .. } | Op::Write { offset, .. } | Op::Discard { offset, .. } => *offset = at,
            Op::Flush => {}
        }
        self.whole.submit(op, done);
    }
}

/// The partitions of a device, in the order of its table; none without a valid GUID partition
/// table.
pub(crate) async fn partitions(dev: &Rc<dyn BlockDev>) -> Vec<Rc<dyn BlockDev>> {
    let mut out: Vec<Rc<dyn BlockDev>> = Vec::new();
    let whole = dev.info();
    let Ok(head) = bdev::read(&**dev, 0, 2 * SECTORS[1]).await else { return out };
    let has_table = |s: &&usize| head.get(**s..**s + GPT_SIGNATURE.len()) == Some(GPT_SIGNATURE);
    let Some(&sector) = SECTORS.iter().find(has_table) else { return out };
    let header = &head[sector..];
    let (first, count, size) = (le64(header, 72), le32(header, 80), le32(header, 84));
    let bytes = u64::from(count) * u64::from(size);
    if size < 128 || bytes == 0 || bytes > ENTRIES_MAX {
        return out;
    }
    let Some(at) = first.checked_mul(sector as u64) else { return out };
    let padded = bytes.next_multiple_of(u64::from(whole.logical_sector));
    let Ok(entries) = bdev::read(&**dev, at, padded as usize).await else { return out };
    for (i, entry) in entries[..bytes as usize].chunks_exact(size as usize).enumerate() {
        let (first, last) = (le64(entry, 32), le64(entry, 40));
        if entry[..16] == [0; 16] || last < first {
            continue;
        }
        let range = first.checked_mul(sector as u64).zip((last - first + 1).checked_mul(sector as u64));
        let Some((start, len)) = range else { continue };
        let aligned = (start | len).is_multiple_of(u64::from(whole.logical_sector));
        if !aligned || start.checked_add(len).is_none_or(|end| end > dev.size()) {
            continue;
        }
        let info = DevInfo { path: format!("{}-part{}", whole.path, i + 1), size_bytes: len, ..whole.clone() };
        out.push(Rc::new(Partition { whole: dev.clone(), start, info }));
    }
    out
}
