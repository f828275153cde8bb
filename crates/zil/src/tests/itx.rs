//! The lists of records against a plain list of all operations.

use std::rc::Rc;

use base::Txg;
use proptest::prelude::*;

use crate::itx::{Itx, ItxKind, Lists, Waiter, WaiterState};

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
            let got: Vec<Option<u64>> = lists.sync.iter().map(number).collect();
            prop_assert_eq!(got, sync.iter().map(|r| r.n).collect::<Vec<_>>());
            for object in 0..4 {
                let got: Vec<Option<u64>> = lists.by_object.get(&object).into_iter().flatten().map(number).collect();
                let want: Vec<Option<u64>> = waiting.iter().filter(|r| r.object == Some(object)).map(|r| r.n).collect();
                prop_assert_eq!(got, want, "object {}", object);
            }
            prop_assert!(lists.by_object.values().all(|l| clean == 0 || !l.is_empty()), "an empty list stays");
        }
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
