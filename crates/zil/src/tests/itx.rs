//! The lists of records against a plain list of all operations.

use std::rc::Rc;

use base::Txg;
use proptest::prelude::*;

use crate::itx::{Itx, ItxKind, ItxList, Lists, Waiter, WaiterState};

/// An operation: its txg, its owner and whether only a commit of the owner carries it. The number
/// of the operation is in the record.
#[derive(Clone, Debug)]
enum Step {
    Sync { owner: Option<u64> },
    Async { object: u64 },
    Commit,
    NextTxg,
    Synced { behind: u64 },
    ToSync { object: Option<u64> },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => proptest::option::of(0u64..4).prop_map(|owner| Step::Sync { owner }),
        6 => (0u64..4).prop_map(|object| Step::Async { object }),
        1 => Just(Step::Commit),
        2 => Just(Step::NextTxg),
        1 => (0u64..3).prop_map(|behind| Step::Synced { behind }),
        3 => proptest::option::of(0u64..4).prop_map(|object| Step::ToSync { object }),
    ];
    proptest::collection::vec(step, 0..80)
}

/// The number in a record; `None` for a commit.
fn number(itx: &Itx) -> Option<u64> {
    match &itx.kind {
        ItxKind::Record(bytes) => Some(u64::from_le_bytes(bytes[..8].try_into().unwrap())),
        _ => None,
    }
}

/// A record of the model: its number, its txg, and its object while it is in an async list.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Noted {
    n: Option<u64>,
    txg: u64,
    object: Option<u64>,
}

proptest! {
    #[test]
    fn lists_keep_the_order_of_operations(steps in steps()) {
        let mut lists = Lists::default();
        // The sync list first, in its order, then the async records in the order of operations.
        let (mut sync, mut waiting): (Vec<Noted>, Vec<Noted>) = Default::default();
        let mut txg = 5;
        let mut clean = 0;
        for (n, step) in (0u64..).zip(steps) {
            let record = |owner| Itx { txg: Txg(txg), owner, kind: ItxKind::Record(n.to_le_bytes().to_vec()) };
            match step {
                Step::Sync { owner } => {
                    lists.sync.push_back(record(owner));
                    sync.push(Noted { n: Some(n), txg, object: None });
                }
                Step::Async { object } => {
                    lists.by_object.entry(object).or_default().push_back(record(Some(object)));
                    waiting.push(Noted { n: Some(n), txg, object: Some(object) });
                }
                Step::Commit => {
                    lists.sync.push_back(Itx { txg: Txg(txg), owner: None, kind: ItxKind::Commit(Rc::default()) });
                    sync.push(Noted { n: None, txg, object: None });
                }
                Step::NextTxg => txg += 1,
                Step::Synced { behind } => {
                    let synced = txg - 1 - behind;
                    lists.drop_synced(Txg(synced));
                    clean = clean.max(synced);
                    sync.retain(|r| r.txg > clean || r.n.is_none());
                    waiting.retain(|r| r.txg > clean);
                }
                Step::ToSync { object } => {
                    lists.async_to_sync(object);
                    let (mut moved, kept): (Vec<Noted>, Vec<Noted>) =
                        waiting.into_iter().partition(|r| object.is_none() || r.object == object);
                    // Objects have no order among them but that of their numbers.
                    moved.sort_by_key(|r| r.object);
                    sync.extend(moved);
                    waiting = kept;
                }
            }
            // Records of txgs on disk may stay for a while.
            let current = |i: &&Itx| i.txg.0 > clean || matches!(i.kind, ItxKind::Commit(_));
            let got: Vec<Option<u64>> = lists.sync.iter().filter(current).map(number).collect();
            prop_assert_eq!(got, sync.iter().map(|r| r.n).collect::<Vec<_>>());
            for object in 0..4 {
                let list = lists.by_object.get(&object).into_iter().flat_map(ItxList::iter);
                let got: Vec<Option<u64>> = list.filter(current).map(number).collect();
                let want: Vec<Option<u64>> = waiting.iter().filter(|r| r.object == Some(object)).map(|r| r.n).collect();
                prop_assert_eq!(got, want, "object {}", object);
            }
            prop_assert!(lists.by_object.values().all(|l| !l.is_empty()), "an empty list stays");
        }
    }
}

#[test]
fn all_old_records_are_dropped_while_new_ones_come() {
    let record = |txg, object| Itx { txg: Txg(txg), owner: Some(object), kind: ItxKind::Record(Vec::new()) };
    let mut lists = Lists::default();
    let of = |lists: &Lists| lists.by_object.values().flat_map(ItxList::iter).map(|i| i.txg.0).collect::<Vec<u64>>();
    for n in 0..20_000 {
        lists.by_object.entry(n % 100).or_default().push_back(record(1, n % 100));
        lists.by_object.entry(1000 + n).or_default().push_back(record(1, 1000 + n));
        lists.sync.push_back(record(1, n));
    }
    lists.remove_async(7);
    // A third of a percent of what is there: 256 entries of long lists, or 16 lists, with each.
    for n in 0..2_000 {
        lists.drop_synced(Txg(1));
        lists.by_object.entry(100_000 + n).or_default().push_back(record(2, 100_000 + n));
    }
    assert!(of(&lists).iter().all(|t| *t == 2), "records of objects stay");
    assert_eq!(of(&lists).len(), 2_000);
    assert!(lists.sync.is_empty());
}

#[test]
fn a_piece_of_dropping_is_small() {
    let mut lists = Lists::default();
    for n in 0..10_000 {
        lists.by_object.entry(n % 3).or_default().push_back(Itx {
            txg: Txg(1),
            owner: Some(n % 3),
            kind: ItxKind::Record(Vec::new()),
        });
    }
    let count = |lists: &Lists| lists.by_object.values().flat_map(ItxList::iter).count();
    let mut before = count(&lists);
    while before > 0 {
        lists.drop_synced(Txg(1));
        let left = count(&lists);
        assert!(left < before && before - left <= 256 + 127, "{before} became {left}");
        before = left;
    }
}

#[test]
fn a_commit_carries_its_own_records_and_those_of_all() {
    let record = |owner| Itx { txg: Txg(1), owner, kind: ItxKind::Record(Vec::new()) };
    for (owner, object, want) in [(None, 7, true), (Some(7), 7, true), (Some(8), 7, false)] {
        assert_eq!(record(owner).concerns(object), want, "{owner:?} {object}");
    }
    let barrier = Itx { txg: Txg(1), owner: None, kind: ItxKind::Barrier };
    assert!(barrier.concerns(7));
    let commit = Itx { txg: Txg(1), owner: None, kind: ItxKind::Commit(Rc::default()) };
    assert!(!commit.concerns(7), "another commit is no record");
}

#[test]
fn a_waiter_is_finished_once() {
    let w = Waiter::default();
    assert!(w.state.get() == WaiterState::Queued && !w.is_done());
    w.finish(false);
    assert!(w.is_done());
    w.finish(true);
    assert_eq!(w.state.get(), WaiterState::Failed, "the first result stays");
}
