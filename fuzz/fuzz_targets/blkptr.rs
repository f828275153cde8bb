//! Block pointers from hostile bytes: validation, printing, and gang headers and log blocks that
//! they name.
#![no_main]

use base::{Txg, VdevId};
use libfuzzer_sys::fuzz_target;
use ondisk::blkptr::{BLKPTR_SIZE, Blkptr, BpLimits, Dva};
use ondisk::object_type::ObjectType;
use ondisk::zil::{self, ZilChain};
use weir_fuzz::{after, pointer, seeds};

fn make_seeds() -> Vec<Vec<u8>> {
    let data = pointer(ObjectType::PLAIN_FILE);
    let embedded = Blkptr::embedded(b"payload", 512, 3, ObjectType::PLAIN_FILE, 0, Txg(5));
    let hole = Blkptr::punched_hole(4096, ObjectType::PLAIN_FILE, 0, Txg(5));
    let mut crypt = data;
    crypt.set_encrypted(true);
    let mut gang = data;
    gang.set_dva(0, Dva::new(VdevId(0), 0x4000, 0x2000, true));
    let header = ondisk::gang::build(&[data, data, hole], &gang, 512);
    let mut out: Vec<Vec<u8>> = [data, embedded, hole, crypt].iter().map(|bp| bp.to_bytes().to_vec()).collect();
    out.push(after(&gang.to_bytes(), &header));
    out
}

fuzz_target!(init: seeds(make_seeds), |input: &[u8]| {
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
