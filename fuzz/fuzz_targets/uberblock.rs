//! Uberblocks from hostile bytes: slots in both byte orders, whole rings, checkpoints.
//!
//! Input: the kind of test (1 byte), ashift (1 byte), then slots, which get right checksums.
#![no_main]

use base::Txg;
use libfuzzer_sys::fuzz_target;
use ondisk::label::RING_SIZE;
use ondisk::object_type::ObjectType;
use ondisk::uberblock::{KEPT_WORDS, MAGIC, Uberblock, best, scan_ring, slot_for_txg, slot_offset, slot_size};
use weir_fuzz::{after, pointer, seeds};

fn make_seeds() -> Vec<Vec<u8>> {
    let ub = Uberblock::new(Txg(77), 5, 1_700_000_000, pointer(ObjectType::OBJSET));
    let mut big = ub.seal(1024, 0);
    big[..216].chunks_exact_mut(8).for_each(<[u8]>::reverse);
    let kept: Vec<u8> = ub.to_kept(true).iter().flat_map(|w| w.to_le_bytes()).collect();
    let two = [ub.seal(1024, 0), Uberblock { txg: Txg(78), ..ub.clone() }.seal(1024, 0)].concat();
    vec![
        after(&[0, 10], &ub.seal(1024, 0)[..984]),
        after(&[0, 10], &big[..984]),
        after(&[1, 10], &two),
        after(&[2, 0], &kept),
    ]
}

fuzz_target!(init: seeds(make_seeds), |input: &[u8]| {
    let Some((&[what, ashift], data)) = input.split_first_chunk() else { return };
    let ashift = u64::from(ashift % 20);
    let size = slot_size(ashift);
    match what % 3 {
        0 => {
            let at = slot_offset(0, ashift, 0);
            let mut slot = data.to_vec();
            slot.resize(size, 0);
            if what & 4 != 0 {
                slot[..8].copy_from_slice(&MAGIC.to_le_bytes());
            }
            codec::embedded_sha256_seal(&mut slot, [at, 0, 0, 0]);
            let Ok(Some(ub)) = Uberblock::parse(&slot, at) else { return };
            assert!(ub.rootbp.birth() <= ub.txg);
            assert!(slot_for_txg(ub.txg, ashift, true) < RING_SIZE as u64 / size as u64);
            let again = Uberblock::parse(&ub.seal(size, at), at).expect("what we wrote").expect("an uberblock");
            assert_eq!(again, ub);
            let _ = (ub.rank(), ub.mmp_seq(), format!("{ub:?}"));
        }
        1 => {
            let mut ring = data.to_vec();
            ring.truncate(RING_SIZE);
            for (slot, n) in ring.chunks_exact_mut(size).zip(0u64..).take(8) {
                codec::embedded_sha256_seal(slot, [slot_offset(0, ashift, n), 0, 0, 0]);
            }
            let found: Vec<Uberblock> = scan_ring(&ring, ashift, 0).filter_map(|(_, ub)| ub.ok()).collect();
            let rank = found.iter().map(Uberblock::rank).max();
            assert_eq!(best(found).map(|ub| ub.rank()), rank);
        }
        _ => {
            let word = |i: usize| data.get(8 * i..8 * i + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().expect("8 bytes")));
            let words: [u64; KEPT_WORDS] = std::array::from_fn(word);
            if let Some(ub) = Uberblock::from_kept(&words) {
                let kept = ub.to_kept(words[2] % 2 == 0);
                assert_eq!(Uberblock::from_kept(kept.first_chunk().expect("26 words")), Some(ub));
            }
        }
    }
});
