//! Log blocks on disk: what verifies, and which pointers may name one.

use base::{Txg, VdevId};
use ondisk::blkptr::{Blkptr, Dva};
use ondisk::zil::ZIL_CHAIN_SIZE;
use proptest::prelude::*;

use super::pointer;
use crate::block::{BLOCK_MAX, check_pointer, seal, verify};
use crate::chain::{follows, seq_of};

fn sealed(bp: &Blkptr, nused: usize) -> Vec<u8> {
    let mut block = vec![0; bp.lsize() as usize];
    for (n, b) in (0u8..=255).cycle().zip(&mut block[ZIL_CHAIN_SIZE..nused]) {
        *b = n;
    }
    seal(&mut block, bp, &pointer(seq_of(bp) + 1, 4096), nused, None).unwrap();
    block
}

proptest! {
    /// Any changed bit of the written part is noticed; what lies behind it does not count.
    #[test]
    fn a_changed_bit_is_noticed(nused in ZIL_CHAIN_SIZE..20_000usize, at in 0usize..(32 << 10), bit in 0u32..8) {
        let bp = pointer(3, 32 << 10);
        let mut block = sealed(&bp, nused);
        let chain = verify(&block, &bp).expect("it verifies");
        prop_assert_eq!(chain.records, (ZIL_CHAIN_SIZE, nused));
        block[at] ^= 1 << bit;
        // The first word of the chain part is unused, but it is under the checksum.
        prop_assert_eq!(verify(&block, &bp).is_none(), at < nused.next_multiple_of(4096));
    }
}

#[test]
fn a_block_of_another_place_in_the_chain_does_not_verify() {
    let bp = pointer(3, 8192);
    let block = sealed(&bp, 5000);
    assert!(verify(&block, &bp).is_some());
    for at in 0..4 {
        let mut words = bp.checksum_words();
        words[at] += 1;
        let mut other = bp;
        other.set_checksum_words(words);
        assert!(verify(&block, &other).is_none(), "word {at}");
    }
    assert!(verify(&[0; 8192], &bp).is_none(), "never written");
}

#[test]
fn only_the_next_number_of_the_same_log_follows() {
    let bp = pointer(3, 4096);
    assert!(follows(&bp, &pointer(4, 128 << 10)));
    assert!(!follows(&bp, &pointer(5, 4096)) && !follows(&bp, &bp) && !follows(&bp, &pointer(2, 4096)));
    let mut hole = Blkptr::hole();
    hole.set_checksum_words(pointer(4, 4096).checksum_words());
    assert!(!follows(&bp, &hole));
    for at in 0..3 {
        let mut other = pointer(4, 4096);
        let mut words = other.checksum_words();
        words[at] ^= 1;
        other.set_checksum_words(words);
        assert!(!follows(&bp, &other), "word {at}");
    }
    // The number wraps around: a disk may say anything.
    assert!(follows(&pointer_numbered(u64::MAX), &pointer_numbered(0)));
}

fn pointer_numbered(seq: u64) -> Blkptr {
    let mut bp = pointer(1, 4096);
    bp.set_checksum_words([1, 2, 3, seq]);
    bp
}

#[test]
fn pointers_of_log_blocks_have_one_place_and_a_plain_size() {
    type Change = fn(&mut Blkptr);
    let dva = |gang| Dva::new(VdevId(0), 4096, 4096, gang);
    let cases: [(&str, bool, Change); 8] = [
        ("as it is", true, |_| {}),
        ("the largest", true, |bp| (bp.set_lsize(BLOCK_MAX), bp.set_psize(BLOCK_MAX)).1),
        ("too large", false, |bp| (bp.set_lsize(2 * BLOCK_MAX), bp.set_psize(2 * BLOCK_MAX)).1),
        ("compressed", false, |bp| bp.set_psize(2048)),
        ("an indirect block", false, |bp| bp.set_level(1)),
        ("big-endian", false, |bp| bp.set_little_endian(false)),
        ("a hole", false, |bp| *bp = Blkptr::hole()),
        ("embedded", false, |bp| {
            *bp = Blkptr::embedded(&[1], 512, 2, ondisk::object_type::ObjectType::INTENT_LOG, 0, Txg(9));
        }),
    ];
    for (what, want, change) in cases {
        let mut bp = pointer(1, 4096);
        change(&mut bp);
        assert_eq!(check_pointer(&bp).is_ok(), want, "{what}");
    }
    let mut two = pointer(1, 4096);
    two.set_dva(1, dva(false));
    assert!(check_pointer(&two).is_err(), "two places");
    let mut gang = pointer(1, 4096);
    gang.set_dva(0, dva(true));
    assert!(check_pointer(&gang).is_err(), "a gang block");
}
