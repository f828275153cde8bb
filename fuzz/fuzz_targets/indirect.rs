//! Mappings and births of removed devices from hostile bytes: the mapping of a range comes piece by
//! piece, without gaps.
//!
//! Input: offset and size to be looked up (4 bytes each, in units of 512 bytes), then the entries.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ondisk::blkptr::Dva;
use ondisk::indirect::{MAPPING_ENTRY_SIZE, MappingPhys, parse_births, parse_mapping, remap};
use weir_fuzz::{after, seeds};

fn make_seeds() -> Vec<Vec<u8>> {
    let entry = |src: u64, dst: u64, len: u64| {
        let dva = Dva::new(base::VdevId(1), dst, len, false);
        [src >> 9, dva.w0, dva.w1].map(u64::to_le_bytes).concat()
    };
    let mapping = [entry(0x1000, 0x8000, 0x1000), entry(0x2000, 0x200, 0x400), entry(0x3000, 0, 0x1000)].concat();
    let words = |w: &[u64]| w.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
    vec![
        after(&[0xc, 0, 0, 0, 5, 0, 0, 0], &mapping),
        after(&[0; 8], &words(&[0x4000, 0x2400, 3, 17])),
        after(&[0; 8], &words(&[0x4000, 77])),
    ]
}

fuzz_target!(init: seeds(make_seeds), |input: &[u8]| {
    let Some((&[o0, o1, o2, o3, s0, s1, s2, s3], data)) = input.split_first_chunk() else { return };
    let offset = u64::from(u32::from_le_bytes([o0, o1, o2, o3])) << 9;
    let size = u64::from(u32::from_le_bytes([s0, s1, s2, s3])) << 9;
    if let Ok(h) = MappingPhys::parse(data) {
        let _ = h.num_entries * MAPPING_ENTRY_SIZE as u64;
    }
    assert!(parse_births(data).len() <= data.len() / 16);
    let Ok(mapping) = parse_mapping(data) else { return };
    assert!(mapping.windows(2).all(|w| w[0].src + w[0].len() <= w[1].src));
    for (at, len) in [(offset, size), (u64::MAX - offset, size), (offset, u64::MAX)] {
        let Ok(pieces) = remap(&mapping, at, len) else { continue };
        let mut end = 0;
        for (from, _, _, n) in pieces {
            assert!(from == end && n > 0);
            end += n;
        }
        assert_eq!(end, len);
    }
});
