//! Figures of space, and the properties of admission.

use base::ErrorKind;
use proptest::prelude::*;

use crate::core::{Space, change, signed};
use crate::space::{Admission, PoolRequest, PoolSpace, SpaceCheck, SpaceRequest, admit, admit_task, parent_delta};

/// Most bytes of a figure here: sums of some of them fit.
const MOST: u64 = 1 << 50;

fn pool_space() -> impl Strategy<Value = PoolSpace> {
    (0..MOST, 0..MOST, 0..MOST, 0..MOST, 0..MOST, 0..MOST).prop_map(|(dspace, a, b, c, d, e)| {
        let part = |n: u64| n % (dspace / 4 + 1);
        PoolSpace {
            dspace,
            shared_saved: part(a),
            embedded_log: part(b),
            checkpoint: part(c),
            deferred_bpobj: 0,
            deferred: part(d),
            alloc: part(e).saturating_add(part(d)),
            settled: 0,
        }
    })
}

/// 0 for an admission, 2 for a refusal: larger is stricter.
fn strictness(a: Admission) -> u32 {
    match a {
        Admission::Admit => 0,
        Admission::Restart => 1,
        Admission::Refuse(_) => 2,
    }
}

proptest! {
    #[test]
    fn a_change_leads_from_the_old_figure_to_the_new(old in any::<u64>(), new in any::<u64>()) {
        let delta = change(old, new);
        let reached = old.saturating_add_signed(delta);
        // Figures that are further apart than an i64 cannot be real: the change is the largest.
        prop_assert_eq!(reached == new, old.abs_diff(new) <= i64::MAX as u64);
        prop_assert_eq!(signed(new) as u64, new.min(i64::MAX as u64));
    }

    #[test]
    fn a_change_and_its_opposite_cancel(used in any::<i64>(), compressed in -1000i64..1000, uncompressed in any::<i64>()) {
        let one = Space { used, compressed, uncompressed };
        let mut sum = one;
        sum.add(one.negated());
        // Only the least i64 has no opposite.
        let rest = |n: i64| if n == i64::MIN { -1 } else { 0 };
        prop_assert_eq!(sum, Space { used: rest(used), compressed: 0, uncompressed: rest(uncompressed) });
    }

    /// The parent counts the use or the reservation, whichever is larger, however a directory got
    /// there.
    #[test]
    fn the_parent_counts_use_or_reservation(reserved in 0..MOST, steps in proptest::collection::vec(-(1i64 << 40)..1 << 40, 0..20)) {
        let mut used = 1u64 << 45;
        let before = used.max(reserved);
        let mut parent = before;
        for delta in steps {
            parent = parent.saturating_add_signed(parent_delta(used, reserved, delta));
            used = used.saturating_add_signed(delta);
            prop_assert_eq!(parent, used.max(reserved));
        }
    }

    #[test]
    fn operations_that_free_reach_at_least_as_far(pool in pool_space()) {
        let all = [SpaceCheck::Normal, SpaceCheck::Reserved, SpaceCheck::ExtraReserved, SpaceCheck::None];
        let limits = all.map(|c| pool.adjusted(c));
        prop_assert!(limits.windows(2).all(|w| w[0] <= w[1]), "{:?}", limits);
        prop_assert!(limits[3] <= pool.dspace + pool.shared_saved);
        prop_assert!(pool.slop() <= pool.dspace / 2 + 1);
    }

    /// More use, more charges in flight and a larger charge never turn a refusal into an admission.
    #[test]
    fn admission_grows_stricter(pool in pool_space(), used in 0..MOST, in_flight in 0..MOST, charge in 0..MOST, more in 0..MOST, quota in 0..MOST) {
        let root = Some(PoolRequest { pool, check: SpaceCheck::Normal, replayed: false });
        for root in [None, root] {
            let asked = SpaceRequest { used, in_flight, charge, quota, net_free: false, root };
            let strict = |request| strictness(admit(request));
            let now = strict(asked);
            let (charged, flying) = (strict(SpaceRequest { charge: charge + more, ..asked }), strict(SpaceRequest { in_flight: in_flight + more, ..asked }));
            prop_assert!(charged >= now);
            prop_assert!(flying >= now.min(1));
            if root.is_none() {
                let fuller = strict(SpaceRequest { used: used + more, ..asked });
                prop_assert!(fuller >= now);
                // What frees space passes every quota.
                prop_assert_eq!(admit(SpaceRequest { net_free: true, ..asked }), Admission::Admit);
            }
        }
    }

    /// A task that is refused has no room even with everything that was freed.
    #[test]
    fn tasks_are_refused_only_without_hope(pool in pool_space(), used in 0..MOST, blocks in 0u64..1 << 20) {
        let settled = PoolSpace { deferred: 0, ..pool };
        let (now, later) = (admit_task(pool, used, SpaceCheck::Reserved, blocks), admit_task(settled, used, SpaceCheck::Reserved, blocks));
        match now {
            Admission::Refuse(kind) => prop_assert_eq!((kind, later), (ErrorKind::NoSpace, now)),
            Admission::Restart | Admission::Admit => prop_assert_eq!(later, Admission::Admit),
        }
    }
}
