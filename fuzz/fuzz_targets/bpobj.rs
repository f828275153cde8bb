//! Lists of block pointers from hostile bytes: headers in every form, pointers, numbers of
//! sub-objects, deadlists, trees to be freed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ondisk::blkptr::{BLKPTR_SIZE, Blkptr, BpLimits};
use ondisk::bpobj::{BPTREE_ENTRY_SIZE, BPTREE_SIZE, BpobjPhys, BptreeEntry, BptreePhys, DEADLIST_SIZE, DeadlistPhys};
use ondisk::byteswap::swap_block;
use ondisk::object_type::ObjectType;
use ondisk::zap::{int_key, parse_int_key};
use weir_fuzz::{after, pointer, seeds};

fn make_seeds() -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for size in [16, 32, 48, 56] {
        let mut h = BpobjPhys::new(size);
        (h.num_blkptrs, h.bytes) = (2, 8192);
        if size >= 48 {
            (h.subobjs, h.num_subobjs) = (7, 1);
        }
        let mut b = vec![0; size];
        h.write_to(&mut b);
        out.push(after(&[0], &b));
    }
    out.push(after(&[1], &pointer(ObjectType::PLAIN_FILE).for_bpobj().to_bytes().repeat(2)));
    let mut b = [0; DEADLIST_SIZE];
    DeadlistPhys { used: 1, comp: 2, uncomp: 3 }.write_to(&mut b);
    out.push(after(&[2], &b));
    let mut b = [0; BPTREE_SIZE];
    BptreePhys { begin: 1, end: 2, bytes: 3, comp: 4, uncomp: 5 }.write_to(&mut b);
    out.push(after(&[3], &b));
    let mut b = [0; BPTREE_ENTRY_SIZE];
    b[..BLKPTR_SIZE].copy_from_slice(&pointer(ObjectType::OBJSET).to_bytes());
    out.push(after(&[4], &b));
    out.push(after(&[5], b"4d"));
    out
}

fuzz_target!(init: seeds(make_seeds), |input: &[u8]| {
    let Some((&what, data)) = input.split_first() else { return };
    match what % 7 {
        0 => {
            let Ok(h) = BpobjPhys::parse(data) else { return };
            // Readers go to these places.
            let _ = (h.num_blkptrs * BLKPTR_SIZE as u64, h.num_subobjs * 8, h.is_empty());
            assert!(h.has_subobjs() || h.subobjs == 0);
            let mut out = vec![0; h.size];
            h.write_to(&mut out);
            assert_eq!(out, data[..h.size]);
        }
        1 => {
            for bp in Blkptr::iter_block(data) {
                let _ = (bp.validate(&BpLimits::FORMAT), bp.ucsize(), bp.psize(), bp.to_string());
                assert_eq!(bp.for_bpobj().for_bpobj(), bp.for_bpobj());
            }
        }
        2 => {
            let Ok(h) = DeadlistPhys::parse(data) else { return };
            let mut out = [0; DEADLIST_SIZE];
            h.write_to(&mut out);
            assert_eq!(DeadlistPhys::parse(&out).expect("what we wrote"), h);
        }
        3 => {
            let Ok(h) = BptreePhys::parse(data) else { return };
            let _ = (h.end - h.begin, h.end * BPTREE_ENTRY_SIZE as u64);
            let mut out = [0; BPTREE_SIZE];
            h.write_to(&mut out);
            assert_eq!(out, data[..BPTREE_SIZE]);
        }
        4 => {
            for entry in data.chunks(BPTREE_ENTRY_SIZE) {
                let Ok(e) = BptreeEntry::parse(entry) else { return };
                let mut out = [0; BPTREE_ENTRY_SIZE];
                e.write_to(&mut out);
                assert_eq!(out, entry);
            }
        }
        // Keys of a deadlist are txgs in hexadecimal.
        5 => {
            if let Some(txg) = parse_int_key(data) {
                assert_eq!(parse_int_key(int_key(txg).as_bytes()), Some(txg));
            }
        }
        _ => {
            for kind in [ObjectType::BPOBJ, ObjectType::BPOBJ_HDR, ObjectType::BPOBJ_SUBOBJ, ObjectType::DEADLIST] {
                let mut block = data.to_vec();
                swap_block(kind, 0, &mut block);
            }
        }
    }
});
