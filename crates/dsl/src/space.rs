//! Space of the pool and its admission: pure policy (format page 14, sections 1 and 2).
//!
//! * **dspace**: the normal class in deflated bytes.
//! * **slop**: the part of it that ordinary writes never get, so that frees always have room.
//! * **adjusted(check)**: the space that an operation of that kind may fill.
//! * A directory admits a transaction if, from the dataset up to the root, used space plus charges
//!   in flight stay under the quota; the root's "quota" is the adjusted size of the pool.
//! * At the root there is also a hard limit for charges in flight, since syncs must find room for
//!   admitted changes and their own blocks: the allocatable space less a quarter of the slop.
//!   Intent log blocks in the normal class, which no dataset is charged for, count against it.

use base::ErrorKind;

use crate::core::change;

/// The kind of a space check (page 14 section 1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpaceCheck {
    /// Data transactions, creating datasets: the whole slop is reserved.
    Normal,
    /// Net-freeing transactions, renames, properties: half of the slop may be used.
    Reserved,
    /// Destroying, quotas, reservations: three quarters may be used.
    ExtraReserved,
    /// The whole pool may be used.
    None,
}

/// The size of a pool as the sync loop last computed it, in deflated bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PoolSpace {
    /// Usable space of the normal class.
    pub dspace: u64,
    /// Space saved by deduplication and by cloned blocks: datasets are charged for it.
    pub shared_saved: u64,
    /// Space of embedded log metaslabs, not part of `dspace`.
    pub embedded_log: u64,
    /// Space that a checkpoint holds.
    pub checkpoint: u64,
    /// Bytes on the deferred-free list (`sync_bplist`).
    pub deferred_bpobj: u64,
    /// Freed within the last two txgs and not allocatable yet.
    pub deferred: u64,
    /// Allocated in the normal class, `deferred` included.
    pub alloc: u64,
    /// Space used by the root directory at that time. Space freed by a syncing txg counts as used
    /// until the sync has ended.
    pub settled: u64,
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

impl PoolSpace {
    /// The slop: 1/32 of the pool, at most 128 GiB, at least 128 MiB or half of a small pool
    /// (`spa_slop_shift` 5).
    pub fn slop(&self) -> u64 {
        let s = self.dspace;
        let mut slop = (s / 32).min(128 * GIB);
        slop -= self.embedded_log.min(slop / 2);
        slop.max((s / 2).min(128 * MIB))
    }

    /// The space that operations of this kind may fill.
    pub fn adjusted(&self, check: SpaceCheck) -> u64 {
        let slop = match check {
            SpaceCheck::Normal => self.slop(),
            SpaceCheck::Reserved => self.slop() / 2,
            SpaceCheck::ExtraReserved => self.slop() / 4,
            SpaceCheck::None => 0,
        };
        let dspace = self.dspace.saturating_add(self.shared_saved);
        dspace.saturating_sub(self.checkpoint).saturating_sub(self.deferred_bpobj).saturating_sub(slop)
    }

    /// Allocatable space if datasets use `used`, less the part of the slop that is reserved for
    /// syncs: a quarter, of which operations that free space may use half.
    pub fn room(&self, used: u64, check: SpaceCheck) -> u64 {
        let kept = if check == SpaceCheck::Normal { self.slop() / 4 } else { self.slop() / 8 };
        let held = self.checkpoint.saturating_add(self.deferred_bpobj).saturating_add(self.deferred);
        let usable = self.dspace.saturating_add(self.shared_saved).saturating_sub(used.saturating_add(held));
        usable.min(self.dspace.saturating_sub(self.alloc)).saturating_sub(kept)
    }
}

/// The answer of one directory to a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// There is room here; the parent decides next.
    Admit,
    /// Changes in flight or frees may make room: try again in the next txg.
    Restart,
    /// There is no room.
    Refuse(ErrorKind),
}

/// The additional input at the root directory.
#[derive(Clone, Copy, Debug)]
pub struct PoolRequest {
    /// The pool.
    pub pool: PoolSpace,
    /// The kind of check.
    pub check: SpaceCheck,
    /// It replays a record of an intent log.
    pub replayed: bool,
}

/// Input of the decision of one directory.
#[derive(Clone, Copy, Debug)]
pub struct SpaceRequest {
    /// Bytes used on disk, as of the last synced change.
    pub used: u64,
    /// Worst-case charges of the open txgs.
    pub in_flight: u64,
    /// Worst-case charge of this transaction.
    pub charge: u64,
    /// The directory's quota, 0 for none.
    pub quota: u64,
    /// The transaction frees more than it writes.
    pub net_free: bool,
    /// For the root directory only.
    pub root: Option<PoolRequest>,
}

/// Decides for one directory (page 14 section 2). The new charge itself counts only against the
/// hard limit of the pool: a transaction under a quota may exceed it once.
pub fn admit(a: SpaceRequest) -> Admission {
    let limit = if a.net_free || a.quota == 0 { u64::MAX } else { a.quota };
    let below = |limit: u64| a.used < limit;
    if !below(limit) {
        return Admission::Refuse(ErrorKind::Quota);
    }
    // Charges are worst cases: a little more than the limit may be in flight.
    if limit != u64::MAX && a.used.saturating_add(a.in_flight) >= limit.saturating_add(limit >> 5) {
        return Admission::Restart;
    }
    match a.root {
        None => Admission::Admit,
        Some(root) => match admit_to_pool(a, root) {
            // One at a time, after all other changes and frees are on disk: its worst case may
            // exceed the room beside the log, but its changes had room beside the log before the
            // crash.
            Admission::Refuse(_) if root.replayed => Admission::Admit,
            answer => answer,
        },
    }
}

fn admit_to_pool(a: SpaceRequest, root: PoolRequest) -> Admission {
    let pool = root.pool;
    let used = a.used.max(pool.settled);
    let limit = pool.adjusted(root.check).saturating_sub(pool.deferred);
    if used >= limit {
        // Deferred frees become allocatable in a txg or two: wait if they cover the excess.
        let back = used - limit < pool.deferred || a.used < limit;
        return if back { Admission::Restart } else { Admission::Refuse(ErrorKind::NoSpace) };
    }
    let quarter = pool.slop() / 4;
    if used.saturating_add(a.in_flight) >= limit.saturating_add((limit >> 5).min(quarter)) {
        return Admission::Restart;
    }
    let room = pool.room(used, root.check);
    if a.in_flight.saturating_add(a.charge) > room {
        let back = a.in_flight > 0 || pool.deferred > 0;
        return if back { Admission::Restart } else { Admission::Refuse(ErrorKind::NoSpace) };
    }
    Admission::Admit
}

/// Decides for a sync task that changes `blocks` blocks of the MOS, each with three copies (page 14
/// section 2). OpenZFS refuses even if deferred frees would make room; here the task waits for
/// them, so that freeing always works.
pub fn admit_task(pool: PoolSpace, used: u64, check: SpaceCheck, blocks: u64) -> Admission {
    let limit = pool.adjusted(check);
    let wanted = used.saturating_add(3 * (blocks << 14));
    if wanted <= limit.saturating_sub(pool.deferred) {
        Admission::Admit
    } else if wanted <= limit {
        Admission::Restart
    } else {
        Admission::Refuse(ErrorKind::NoSpace)
    }
}

/// Whether a log block of `bytes` leaves enough room for the syncs of charges in flight and its
/// own; if not, commits wait for their txg.
pub fn log_block_fits(pool: PoolSpace, used: u64, in_flight: u64, bytes: u64) -> bool {
    in_flight.saturating_add(bytes) <= pool.room(used.max(pool.settled), SpaceCheck::Reserved)
}

/// The change of a directory's use as its parent counts it, with the directory's reservation (page
/// 05 section 5).
pub fn parent_delta(used: u64, reserved: u64, delta: i64) -> i64 {
    let new = used.saturating_add_signed(delta);
    change(used.max(reserved), new.max(reserved))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(dspace: u64) -> PoolSpace {
        PoolSpace { dspace, ..PoolSpace::default() }
    }

    #[test]
    fn slop_follows_the_table() {
        for (dspace, slop) in [
            (100 * MIB, 50 * MIB),
            (256 * MIB, 128 * MIB),
            (GIB, 128 * MIB),
            (4 * GIB, 128 * MIB),
            (8 * GIB, 256 * MIB),
            (1024 * GIB, 32 * GIB),
            (8192 * GIB, 128 * GIB),
        ] {
            assert_eq!(pool(dspace).slop(), slop, "{dspace}");
        }
        let with_log = PoolSpace { dspace: 64 * GIB, embedded_log: GIB / 2, ..PoolSpace::default() };
        assert_eq!(with_log.slop(), 2 * GIB - GIB / 2);
    }

    #[test]
    fn checks_reach_deeper_into_the_slop() {
        let p = pool(8 * GIB);
        let got: Vec<u64> = [SpaceCheck::Normal, SpaceCheck::Reserved, SpaceCheck::ExtraReserved, SpaceCheck::None]
            .iter()
            .map(|c| (8 * GIB - p.adjusted(*c)) / MIB)
            .collect();
        assert_eq!(got, [256, 128, 64, 0]);
    }

    #[test]
    fn log_blocks_leave_syncs_their_room() {
        // 1000 MiB, of which 16 are kept, and 900 are used.
        let p = PoolSpace { alloc: 900 * MIB, ..pool(1000 * MIB) };
        for (used, in_flight, bytes, want) in [
            (900, 0, 84, true),
            (900, 0, 85, false),
            (900, 80, 4, true),
            (900, 80, 5, false),
            (0, 80, 5, false),
            (990, 0, 1, false),
        ] {
            assert_eq!(log_block_fits(p, used * MIB, in_flight * MIB, bytes * MIB), want, "{used} {in_flight} {bytes}");
        }
    }

    #[test]
    fn tasks_wait_for_what_was_freed() {
        use Admission::{Admit, Refuse, Restart};
        // 1000 MiB with a slop of 128: destroys fill 968, and each block takes 48 KiB.
        for (used, deferred, blocks, want) in [
            (968, 0, 0, Admit),
            (968, 0, 1, Refuse(ErrorKind::NoSpace)),
            (967, 0, 21, Admit),
            (967, 0, 22, Refuse(ErrorKind::NoSpace)),
            (500, 468, 0, Admit),
            (500, 469, 0, Restart),
            (967, 469, 21, Restart),
            (967, 469, 22, Refuse(ErrorKind::NoSpace)),
            (500, 2000, 0, Restart),
        ] {
            let pool = PoolSpace { deferred: deferred * MIB, ..pool(1000 * MIB) };
            let got = admit_task(pool, used * MIB, SpaceCheck::ExtraReserved, blocks);
            assert_eq!(got, want, "{used} {deferred} {blocks}");
        }
    }

    #[test]
    fn admission_cases() {
        let base = SpaceRequest { used: 50, in_flight: 0, charge: 0, quota: 100, net_free: false, root: None };
        assert_eq!(admit(base), Admission::Admit);
        assert_eq!(admit(SpaceRequest { charge: 1000, ..base }), Admission::Admit);
        assert_eq!(admit(SpaceRequest { used: 100, ..base }), Admission::Refuse(ErrorKind::Quota));
        assert_eq!(admit(SpaceRequest { used: 100, net_free: true, ..base }), Admission::Admit);
        assert_eq!(admit(SpaceRequest { in_flight: 52, ..base }), Admission::Admit);
        assert_eq!(admit(SpaceRequest { in_flight: 53, ..base }), Admission::Restart);
    }

    #[test]
    fn admission_to_the_pool() {
        use Admission::{Admit, Refuse, Restart};
        // 1000 MiB with a slop of 128: writers fill 872; the hard limit is 968 of the allocatable
        // space.
        let refuse = Refuse(ErrorKind::NoSpace);
        for (used, in_flight, charge, deferred, alloc, want) in [
            (0, 0, 0, 0, 0, Admit),
            (871, 0, 90, 0, 871, Admit),
            (872, 0, 1, 0, 872, refuse),
            // Deferred frees: wait for them.
            (865, 0, 1, 10, 875, Restart),
            (900, 0, 1, 10, 910, refuse),
            // In flight: up to a quarter of the slop beyond the limit, less where that is a 32nd of
            // it.
            (800, 99, 1, 0, 800, Admit),
            (800, 100, 1, 0, 800, Restart),
            // A large transaction.
            (800, 0, 168, 0, 800, Admit),
            (800, 0, 169, 0, 800, refuse),
            (800, 50, 119, 0, 800, Restart),
            (800, 0, 160, 10, 810, Restart),
            // Log blocks: allocated, and used by no dataset.
            (800, 0, 50, 0, 910, Admit),
            (800, 0, 59, 0, 910, refuse),
        ] {
            let [used, in_flight, charge, deferred, alloc] =
                [used, in_flight, charge, deferred, alloc].map(|n| n * MIB);
            let pool = PoolSpace { deferred, alloc, settled: used, ..pool(1000 * MIB) };
            let root = Some(PoolRequest { pool, check: SpaceCheck::Normal, replayed: false });
            let asking = SpaceRequest { used, in_flight, charge, quota: 0, net_free: false, root };
            let text = format!("{used} {in_flight} {charge} {deferred} {alloc}");
            assert_eq!(admit(asking), want, "{text}");
            // Space freed by a sync counts as used until the sync has ended.
            let early = SpaceRequest { used: used / 2, ..asking };
            let want = if used >= 872 * MIB - deferred { Restart } else { want };
            assert_eq!(admit(early), want, "{text}");
        }
        // Operations that give space back reach further.
        let full = PoolSpace { alloc: 930 * MIB, settled: 930 * MIB, ..pool(1000 * MIB) };
        let root = Some(PoolRequest { pool: full, check: SpaceCheck::Reserved, replayed: false });
        let asking = SpaceRequest { used: 930 * MIB, in_flight: 0, charge: 54 * MIB, quota: 1, net_free: true, root };
        assert_eq!(admit(asking), Admit);
        assert_eq!(admit(SpaceRequest { charge: 55 * MIB, ..asking }), refuse);
        // A replay waits for changes in flight, and is then admitted.
        let root = Some(PoolRequest { pool: full, check: SpaceCheck::Reserved, replayed: true });
        let replay = SpaceRequest { charge: 55 * MIB, root, ..asking };
        assert_eq!(admit(SpaceRequest { in_flight: MIB, ..replay }), Restart);
        assert_eq!(admit(replay), Admit);
    }

    #[test]
    fn reservations_hide_use_from_the_parent() {
        assert_eq!(parent_delta(0, 100, 50), 0);
        assert_eq!(parent_delta(50, 100, 70), 20);
        assert_eq!(parent_delta(120, 100, -70), -20);
        assert_eq!(parent_delta(120, 0, -70), -70);
        assert_eq!(parent_delta(u64::MAX, 0, i64::MIN), -i64::MAX, "figures that no pool has");
        assert_eq!(parent_delta(0, u64::MAX, 1), 0);
    }
}
