//! Block pointers from hostile bytes: validation, printing, and gang headers and log blocks that they name.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ondisk::blkptr::{BLKPTR_SIZE, Blkptr, BpLimits};
use ondisk::zil::{self, ZilChain};

fuzz_target!(|input: &[u8]| {
    let Ok(bp) = Blkptr::parse(input) else { return };
    let sizes = [1 << 30, 0, 1 << 40];
    let ok = bp.validate(&BpLimits { vdev_sizes: &sizes, ..BpLimits::FORMAT }).is_ok();
    let _ = format!("{bp} {bp:?}");
    let _ = (bp.payload(), bp.ucsize(), bp.fill(), bp.phys_birth(), bp.salt_iv(), bp.for_bpobj());
    if ok {
        assert!(bp.lsize() <= 16 << 20 && bp.psize() <= bp.lsize());
        for dva in bp.dvas() {
            let len = if dva.gang() { 512 } else { dva.asize() };
            assert!(dva.offset() + len <= sizes[dva.vdev().0 as usize]);
        }
    }
    assert_eq!(bp.to_bytes()[..], input[..BLKPTR_SIZE]);
    let rest = &input[BLKPTR_SIZE..];
    let _ = ondisk::gang::parse(rest, &bp);
    if let Ok(zc) = ZilChain::parse(rest, &bp) {
        assert!(zc.verified <= rest.len());
        assert!(zil::records(rest, zc.records).count() <= rest.len());
    }
});
