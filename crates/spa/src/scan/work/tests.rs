//! The queues of copies against a plain map.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// A block with a copy at each of these places (vdev, offset), in units of 4 KiB.
fn block(places: &[(u32, u64)]) -> Blkptr {
    let mut bp = Blkptr::hole();
    for (i, (vdev, at)) in places.iter().enumerate() {
        bp.set_dva(i, Dva::new(VdevId(*vdev), at * 4096, 8192, false));
    }
    bp.set_lsize(8192);
    bp.set_psize(8192);
    bp.set_birth(base::Txg(5), base::Txg(5));
    bp
}

#[derive(Clone, Debug)]
enum Step {
    Add(Vec<(u32, u64)>),
    Pop(u32),
    /// The oldest copy of that vdev that is being issued is done.
    Done(u32),
    Clear,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = (0u32..2, 0u64..12);
    let step = prop_oneof![
        6 => proptest::collection::vec(place, 1..4).prop_map(Step::Add),
        5 => (0u32..2).prop_map(Step::Pop),
        3 => (0u32..2).prop_map(Step::Done),
        1 => Just(Step::Clear),
    ];
    proptest::collection::vec(step, 0..80)
}

proptest! {
    #[test]
    fn copies_are_issued_by_offset_and_once(steps in steps()) {
        let work = Work::default();
        let at = Bookmark::default();
        let mut queued: [BTreeSet<u64>; 2] = Default::default();
        let mut head = [0u64; 2];
        let mut active: [Vec<(Entry, Rc<Cell<bool>>)>; 2] = Default::default();
        for step in steps {
            match step {
                Step::Add(places) => {
                    work.add(&block(&places), at);
                    for (vdev, offset) in places {
                        queued[vdev as usize].insert(offset * 4096);
                    }
                }
                Step::Pop(vdev) => {
                    let v = vdev as usize;
                    // Those of before a clear do not count.
                    let is_active = |offset: u64| active[v].iter().any(|(e, alive)| alive.get() && e.dva.offset() == offset);
                    let want = loop {
                        let next = queued[v].range(head[v]..).next().or_else(|| queued[v].first()).copied();
                        let Some(offset) = next else { break None };
                        queued[v].remove(&offset);
                        head[v] = offset;
                        if !is_active(offset) {
                            break Some(offset);
                        }
                    };
                    let got = work.pop(VdevId(vdev));
                    prop_assert_eq!(got.as_ref().map(|(e, _)| e.dva.offset()), want);
                    active[v].extend(got);
                }
                Step::Done(vdev) => {
                    if !active[vdev as usize].is_empty() {
                        let (entry, alive) = active[vdev as usize].remove(0);
                        work.done(&entry, &alive);
                    }
                }
                Step::Clear => {
                    work.clear();
                    queued = Default::default();
                    // New queues begin at offset 0.
                    head = [0; 2];
                    prop_assert!(active.iter().flatten().all(|(_, alive)| !alive.get()));
                }
            }
            let count = queued.iter().map(BTreeSet::len).sum::<usize>() as u64;
            prop_assert_eq!((work.count.get(), work.bytes.get()), (count, 8192 * count));
            prop_assert_eq!(work.is_full(ENTRY_BYTES * 5), count >= 5);
            let want: Vec<(VdevId, usize)> = (0u32..).map(VdevId).zip(queued.iter().map(BTreeSet::len)).filter(|(_, n)| *n > 0).collect();
            prop_assert_eq!(work.vdevs(), want);
        }
    }
}

#[test]
fn a_round_is_bounded_in_bytes() {
    let work = Work::default();
    work.add(&block(&[(0, 0)]), Bookmark::default());
    assert!(!work.is_full(u64::MAX));
    work.bytes.set(ROUND_BYTES);
    assert!(work.is_full(u64::MAX));
}
