//! Synchronous writes of whole records reach the device once; docs/lab.md has the full table.
#![allow(clippy::unwrap_used)]

use lab::sync_bytes::Cell;

#[test]
fn records_that_the_log_only_names_are_written_once() {
    for cell in Cell::TABLE {
        let seen = cell.run(16 << 20, 2).unwrap();
        eprintln!("{cell:?}: {seen:?}, {:.3} per byte", seen.per_byte());
        let copied = seen.copied > 0;
        assert_eq!(copied, !cell.throughput && cell.write < 32 << 10);
        if cell.write >= cell.recordsize && !copied {
            assert!(seen.per_byte() < 1.25, "{cell:?}: {seen:?}");
        }
    }
}
