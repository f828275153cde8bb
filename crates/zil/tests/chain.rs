//! The walk along a chain on a device, against the blocks that were put there.
#![allow(clippy::unwrap_used)]

#[path = "../../zio/tests/common/mod.rs"]
mod common;

use base::{Txg, VdevId};
use common::{DATA_START, Lab};
use ondisk::blkptr::{Blkptr, Dva};
use ondisk::object_type::ObjectType;
use ondisk::zil::{CHECKSUM_ZILOG2, ZIL_CHAIN_SIZE};
use proptest::prelude::*;
use zil::block::seal;
use zil::chain::{Walk, seq_of};

const SIZE: u64 = 4096;

/// Pointer of the block `seq` at `place`.
fn pointer(seq: u64, place: u64) -> Blkptr {
    let mut bp = Blkptr::hole();
    bp.set_dva(0, Dva::new(VdevId(0), place * SIZE, SIZE, false));
    bp.set_lsize(SIZE);
    bp.set_psize(SIZE);
    bp.set_checksum(CHECKSUM_ZILOG2);
    bp.set_checksum_words([0x1111, 0x2222, 54, seq]);
    bp.set_otype(ObjectType::INTENT_LOG);
    bp.set_little_endian(true);
    bp.set_birth(Txg(9), Txg(9));
    bp
}

fn put(lab: &Lab, bp: &Blkptr, next: &Blkptr) {
    let mut block = vec![0; SIZE as usize];
    seal(&mut block, bp, next, ZIL_CHAIN_SIZE, None).unwrap();
    lab.devs[0].poke(DATA_START + bp.dva(0).offset(), &block);
}

/// The way in which a chain is not whole.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    /// A byte of the block is wrong.
    Rot,
    /// Its next pointer has another number.
    Gap,
    /// It names the first block as its next one.
    Circle,
    /// It has no next block.
    Hole,
}

/// Numbers of the blocks that a walk gives, each with whether it has a content.
fn walk(lab: &Lab, first: Blkptr) -> Vec<(u64, bool)> {
    lab.sim.block_on(async {
        let mut walk = Walk::new(first);
        let mut out = Vec::new();
        while let Some(peeked) = walk.peek() {
            let Some(step) = walk.step(&lab.zio).await.unwrap() else { break };
            assert_eq!(step.bp, peeked);
            out.push((seq_of(&step.bp), step.block.is_some()));
        }
        assert!(walk.step(&lab.zio).await.unwrap().is_none(), "an ended walk goes on");
        out
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_walk_ends_where_the_chain_does(
        count in 1u64..8,
        at in 0u64..8,
        fault in prop_oneof![
            Just(Fault::None), Just(Fault::Rot), Just(Fault::Gap), Just(Fault::Circle), Just(Fault::Hole),
        ],
        seed in 1u64..1000,
    ) {
        let at = at % count;
        let lab = Lab::new(1, 8 << 20, 12);
        let blocks: Vec<Blkptr> = (0..=count).map(|n| pointer(seed + n, (n * 7) % 1000)).collect();
        for n in 0..count {
            let (bp, next) = (blocks[n as usize], blocks[n as usize + 1]);
            let mut given = next;
            if n == at {
                match fault {
                    Fault::Gap => given.set_checksum_words([0x1111, 0x2222, 54, seed + n + 2]),
                    Fault::Circle => given.set_dva(0, blocks[0].dva(0)),
                    Fault::Hole => given = Blkptr::hole(),
                    Fault::None | Fault::Rot => {}
                }
            }
            put(&lab, &bp, &given);
        }
        if let Fault::Rot = fault {
            lab.spoil(blocks[at as usize].dva(0), 100);
        }
        let whole = |to: u64| (0..to).map(|n| (seed + n, true)).collect::<Vec<_>>();
        let want = match fault {
            // The last pointer names a block that was never written.
            Fault::None => [whole(count), vec![(seed + count, false)]].concat(),
            Fault::Rot => [whole(at), vec![(seed + at, false)]].concat(),
            Fault::Gap | Fault::Circle | Fault::Hole => whole(at + 1),
        };
        prop_assert_eq!(walk(&lab, blocks[0]), want);
    }
}

#[test]
fn a_walk_can_be_stopped_and_an_empty_chain_has_no_block() {
    let lab = Lab::new(1, 8 << 20, 12);
    let (a, b) = (pointer(1, 0), pointer(2, 1));
    put(&lab, &a, &b);
    lab.sim.block_on(async {
        let mut walk = Walk::new(a);
        assert!(walk.step(&lab.zio).await.unwrap().is_some_and(|s| s.block.is_some()));
        assert_eq!(walk.peek(), Some(b));
        walk.stop();
        assert!(walk.peek().is_none() && walk.step(&lab.zio).await.unwrap().is_none());
        assert!(Walk::new(Blkptr::hole()).peek().is_none());
    });
}

#[test]
fn an_invalid_pointer_is_an_error() {
    let lab = Lab::new(1, 8 << 20, 12);
    let (a, mut b) = (pointer(1, 0), pointer(2, 1));
    b.set_dva(1, Dva::new(VdevId(0), 9 * SIZE, SIZE, false));
    put(&lab, &a, &b);
    lab.sim.block_on(async {
        let mut walk = Walk::new(a);
        assert!(walk.step(&lab.zio).await.is_ok());
        assert!(walk.step(&lab.zio).await.is_err());
    });
}
