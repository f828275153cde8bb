//! The header of a cache device that OpenZFS wrote.

use base::Guid;
use ondisk::l2arc::DevHeader;

use crate::golden;

/// Every field reads as it should, and written again each byte is as it was, checksum included.
#[test]
fn the_header_of_a_real_cache_round_trips() {
    let block = golden("cache-header.hex");
    let header = DevHeader::parse(&block).unwrap();
    assert_eq!((header.pool, header.vdev), (Guid(18_061_947_762_356_557_253), Guid(16_161_582_005_560_225_555)));
    // The ring of a file of 96 MiB with sectors of 512 bytes, empty, and too small for log blocks.
    let start = (4 << 20) + 512;
    assert_eq!((header.start, header.end, header.evict, header.first), (start, 0x5f8_0000, start, true));
    assert_eq!((header.log_entries, header.log_count, header.log[0].addr), (0, 0, 0));
    let mut again = vec![1; block.len()];
    header.write_to(&mut again);
    assert_eq!(again, block);
}
