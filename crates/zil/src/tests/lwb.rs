//! Log blocks in memory: packing, their states, and what they tell waiters.

use std::rc::Rc;

use base::{Nanos, Txg};
use bdev::Bytes;
use ondisk::blkptr::Blkptr;
use ondisk::zil::{ZIL_CHAIN_SIZE, records};
use proptest::prelude::*;

use super::pointer;
use crate::block::{seal, verify};
use crate::itx::{Waiter, WaiterState};
use crate::lwb::{Lwb, LwbState};

/// A record with `kind` as its type and `extra` bytes behind its header, of one value.
fn fixed(kind: u64, extra: usize) -> Vec<u8> {
    let mut out = kind.to_le_bytes().to_vec();
    out.resize(32, 0);
    out.resize(32 + extra, kind as u8);
    out
}

proptest! {
    /// Records that fit come back from the sealed block as they were pushed, padded with zeros.
    #[test]
    fn pushed_records_come_back(sizes in proptest::collection::vec((0usize..900, proptest::collection::vec(0usize..700, 0..3)), 0..12)) {
        const SIZE: u64 = 8192;
        let lwb = Lwb::new(pointer(1, SIZE), Txg(9));
        let mut want: Vec<(u64, u64, Vec<u8>)> = Vec::new();
        for (seq, (extra, parts)) in (1u64..).zip(sizes) {
            let head = fixed(seq, extra);
            let data: Vec<Bytes> = parts.iter().map(|n| Bytes::copy_from(&vec![0xa0 | seq as u8; *n])).collect();
            let mut whole = head.clone();
            data.iter().for_each(|d| whole.extend_from_slice(d));
            whole.resize(whole.len().next_multiple_of(8), 0);
            let used: usize = ZIL_CHAIN_SIZE + want.iter().map(|w| w.2.len()).sum::<usize>();
            prop_assert_eq!(lwb.fits(whole.len()), used + whole.len() <= SIZE as usize);
            if lwb.fits(whole.len()) {
                let txg = 20 - seq;
                lwb.push(&head, &data, Txg(txg), 100 + seq);
                want.push((txg, 100 + seq, whole));
            }
            prop_assert_eq!(lwb.has_records(), !want.is_empty());
        }
        let newest = want.iter().map(|w| w.0).max().unwrap_or(0).max(9);
        prop_assert_eq!(lwb.max_txg.get(), Txg(newest));
        let used = lwb.used.get();
        let mut bytes = lwb.take_bytes(SIZE as usize);
        prop_assert!(bytes[used..].iter().all(|b| *b == 0));
        seal(&mut bytes, &lwb.bp, &pointer(2, 4096), used, None).unwrap();
        let chain = verify(&bytes, &lwb.bp).expect("it verifies");
        prop_assert_eq!(chain.next, pointer(2, 4096));
        let got: Vec<_> = records(&bytes, chain.records).collect::<base::Result<_>>().unwrap();
        prop_assert_eq!(got.len(), want.len());
        for (got, (txg, seq, whole)) in got.iter().zip(&want) {
            prop_assert_eq!((got.txg.0, got.seq), (*txg, *seq));
            // The header has length, txg and number; the rest is as pushed.
            prop_assert_eq!(&got.bytes[..8], &whole[..8]);
            prop_assert_eq!(&got.bytes[32..], &whole[32..]);
        }
    }
}

#[test]
fn a_block_without_records_is_written_as_zeros() {
    let lwb = Lwb::new(pointer(1, 4096), Txg(9));
    assert!(lwb.is_open() && !lwb.has_records() && lwb.seq() == 1);
    assert!(lwb.take_bytes(4096)[ZIL_CHAIN_SIZE..].iter().all(|b| *b == 0));
}

#[test]
fn waiters_get_the_result_of_their_block() {
    for good in [true, false] {
        let lwb = Lwb::new(pointer(1, 4096), Txg(9));
        let (early, late): (Rc<Waiter>, Rc<Waiter>) = Default::default();
        lwb.link(&early);
        assert_eq!(early.state.get(), WaiterState::Linked);
        assert!(lwb.needs_own_flush_only());
        lwb.set_state(LwbState::Issued);
        lwb.set_state(LwbState::WriteDone);
        assert!(!early.is_done(), "a written block is not durable");
        lwb.finish(good);
        assert!(lwb.is_flush_done() && lwb.failed.get() != good);
        // A commit that comes when the block is over gets the same answer.
        lwb.link(&late);
        let want = if good { WaiterState::Done } else { WaiterState::Failed };
        assert_eq!((early.state.get(), late.state.get()), (want, want));
    }
}

#[test]
fn a_block_that_failed_cannot_end_well() {
    let lwb = Lwb::new(pointer(1, 4096), Txg(9));
    let w: Rc<Waiter> = Rc::default();
    lwb.link(&w);
    lwb.failed.set(true);
    lwb.finish(true);
    assert_eq!(w.state.get(), WaiterState::Failed);
}

#[test]
fn only_a_block_with_waiters_and_nothing_else_to_flush_is_alone() {
    let other = |lwb: &Lwb| lwb.vdevs.borrow_mut().insert(base::VdevId(7));
    let lwb = Lwb::new(pointer(1, 4096), Txg(9));
    assert!(!lwb.needs_own_flush_only(), "it has no waiters");
    lwb.link(&Rc::default());
    assert!(lwb.needs_own_flush_only());
    other(&lwb);
    assert!(!lwb.needs_own_flush_only(), "a block on another vdev is to be flushed");
}

#[test]
fn phases_add_up_to_the_whole() {
    let lwb = Lwb::new(pointer(1, 4096), Txg(9));
    let us = Nanos::from_us;
    lwb.opened.set(us(10));
    lwb.issued.set(us(25));
    lwb.written.set(us(65));
    let t = lwb.times(us(100), us(30));
    assert_eq!((t.queue, t.write, t.flush, t.order), (us(15), us(40), us(30), us(5)));
    let mut stats = crate::ZilStats::default();
    stats.block_done(3, t);
    stats.block_done(1, t);
    assert_eq!((stats.waiters, stats.queue_time, stats.total_time), (4, us(30), us(150)));
    // A flush that began before the write ended leaves no negative rest.
    assert_eq!(lwb.times(us(70), us(30)).order, Nanos(0));
    assert_ne!(lwb.bp, Blkptr::hole());
}
