//! The progress of a scan while datasets come and go, and its memory.

use proptest::prelude::*;

use super::*;

fn running(objset: u64, queue: &[(u64, u64)]) -> Progress {
    let bookmark = Bookmark { objset, ..Bookmark::default() };
    let phys = ScanPhys { func: ScanFunc::Scrub, state: ScanState::Scanning, bookmark, ..ScanPhys::default() };
    Progress { phys, queue: queue.iter().copied().collect() }
}

#[test]
fn a_destroyed_dataset_passes_its_place_on() {
    // A snapshot that is traversed: what follows it has its blocks.
    let mut p = running(7, &[(9, 40)]);
    p.destroyed(7, Some(8));
    assert_eq!((p.phys.bookmark.objset, p.phys.flags & VISIT_AGAIN), (8, VISIT_AGAIN));
    assert_eq!(p.queue, BTreeMap::from([(9, 40)]));
    // A head that is traversed: nothing has its blocks.
    p.destroyed(8, None);
    assert_eq!(p.phys.bookmark, Bookmark { objset: NO_OBJSET, ..Bookmark::default() });
    // Queued ones.
    p.destroyed(9, Some(10));
    assert_eq!(p.queue, BTreeMap::from([(10, 40)]));
    p.destroyed(10, None);
    assert!(p.queue.is_empty());
}

#[test]
fn a_snapshot_takes_over_the_place_of_its_head() {
    let mut p = running(7, &[(9, 40)]);
    p.snapshotted(7, 17);
    p.snapshotted(9, 19);
    assert_eq!((p.phys.bookmark.objset, p.phys.flags & VISIT_AGAIN), (17, 0), "its blocks are the same");
    assert_eq!(p.queue, BTreeMap::from([(19, 40)]));
}

#[test]
fn a_finished_scan_follows_nothing() {
    let mut p = running(7, &[]);
    p.phys.state = ScanState::Finished;
    let before = p.phys;
    p.destroyed(7, Some(8));
    p.snapshotted(7, 9);
    assert_eq!(p.phys, before);
}

proptest! {
    /// The traversed dataset and the queued ones stay different datasets, none is lost but with a
    /// destroyed head, and each keeps its txg.
    #[test]
    fn no_dataset_is_forgotten(steps in proptest::collection::vec((any::<bool>(), 0usize..6, any::<bool>()), 0..40)) {
        let mut p = running(1, &[(2, 20), (3, 30), (4, 40)]);
        let mut live = vec![1u64, 2, 3, 4];
        let mut next = 100;
        let mut mins = BTreeMap::from([(2, 20), (3, 30), (4, 40)]);
        for (snapshot, which, is_head) in steps {
            if live.is_empty() {
                break;
            }
            let which = which % live.len();
            let object = live[which];
            next += 1;
            if snapshot {
                p.snapshotted(object, next);
            } else {
                p.destroyed(object, (!is_head).then_some(next));
            }
            let min = mins.remove(&object);
            if snapshot || !is_head {
                live[which] = next;
                mins.extend(min.map(|m| (next, m)));
            } else {
                live.remove(which);
            }
            prop_assert_eq!(&p.queue, &mins);
            let current = p.phys.bookmark.objset;
            prop_assert!(current == NO_OBJSET || live.contains(&current) && !mins.contains_key(&current));
        }
    }
}

#[test]
fn memory_is_a_share_of_the_cache_within_bounds() {
    let default = ScanTunables::default();
    for (fact, arc_max, want) in [
        (16, 0, MEMORY_MIN),
        (16, 160 << 20, 10 << 20),
        (16, 64 << 30, MEMORY_MAX),
        // An administrator's choice has no upper bound.
        (4, 64 << 30, 16 << 30),
        (0, 2 << 20, 2 << 20),
        (1000, 2 << 20, MEMORY_MIN),
    ] {
        let t = ScanTunables { mem_lim_fact: fact, ..default };
        assert_eq!(t.memory(arc_max), want, "{fact} {arc_max}");
    }
}
