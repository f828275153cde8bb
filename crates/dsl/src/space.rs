//! How much space there is and who may use it: pure policy (format page 14, sections 1 and 2).
//!
//! * **dspace**: the normal class in deflated bytes.
//! * **slop**: the part of it that ordinary writes never get, so that freeing always has room to
//!   work in.
//! * **adjusted(check)**: what an operation of that kind may fill.
//! * A directory admits a transaction if, from the dataset up to the root, what is used on disk and
//!   what is in flight stay under the quota; the root's "quota" is the adjusted size of the pool.
//! * At the root there is also an end that nothing in flight may reach, since syncs must find room
//!   for what was admitted and for themselves: a quarter of the slop before what is really
//!   allocatable. Intent log blocks in the normal class, which no dataset is charged for, count
//!   against it.

use base::ErrorKind;

use crate::core::change;

/// Who asks for space (page 14 section 1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpaceCheck {
    /// Data transactions, creating datasets: the whole slop is kept away.
    Normal,
    /// Net-freeing transactions, renames, properties: half of the slop may be used.
    Reserved,
    /// Destroying, quotas, reservations: three quarters may be used.
    ExtraReserved,
    /// Everything.
    None,
}

/// The size of a pool as the sync loop last computed it, in deflated bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PoolSpace {
    /// Usable space of the normal class.
    pub dspace: u64,
    /// What deduplication saves: datasets are charged for it.
    pub dedup_saved: u64,
    /// What embedded log metaslabs take, already outside `dspace`.
    pub embedded_log: u64,
    /// Space that a checkpoint holds.
    pub checkpoint: u64,
    /// Bytes on the deferred-free list (`sync_bplist`).
    pub deferred_bpobj: u64,
    /// Freed within the last two txgs and not allocatable yet.
    pub deferred: u64,
    /// Allocated in the normal class, `deferred` included.
    pub alloc: u64,
    /// What the root directory used then. What a txg frees while it syncs is used until that has
    /// ended.
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

    /// What operations of this kind may fill.
    pub fn adjusted(&self, check: SpaceCheck) -> u64 {
        let slop = match check {
            SpaceCheck::Normal => self.slop(),
            SpaceCheck::Reserved => self.slop() / 2,
            SpaceCheck::ExtraReserved => self.slop() / 4,
            SpaceCheck::None => 0,
        };
        let dspace = self.dspace.saturating_add(self.dedup_saved);
        dspace.saturating_sub(self.checkpoint).saturating_sub(self.deferred_bpobj).saturating_sub(slop)
    }

    /// What can be allocated, where datasets use `used`, but for a part of the slop that syncs keep
    /// for themselves: a quarter, of which operations that give space back may take half.
    pub fn room(&self, used: u64, check: SpaceCheck) -> u64 {
        let kept = if check == SpaceCheck::Normal { self.slop() / 4 } else { self.slop() / 8 };
        let held = self.checkpoint.saturating_add(self.deferred_bpobj).saturating_add(self.deferred);
        let usable = self.dspace.saturating_add(self.dedup_saved).saturating_sub(used.saturating_add(held));
        usable.min(self.dspace.saturating_sub(self.alloc)).saturating_sub(kept)
    }
}

/// What one directory says to a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// There is room here; ask the parent.
    Admit,
    /// Something in flight or being freed may make room: try again in the next txg.
    Restart,
    /// There is none.
    Refuse(ErrorKind),
}

/// What the root directory knows besides.
#[derive(Clone, Copy, Debug)]
pub struct PoolRequest {
    /// The pool.
    pub pool: PoolSpace,
    /// What the transaction may fill.
    pub check: SpaceCheck,
    /// It replays a record of an intent log.
    pub replayed: bool,
}

/// What one directory knows when it decides.
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
    /// Of the root directory only.
    pub root: Option<PoolRequest>,
}

/// Decides for one directory (page 14 section 2). The new charge itself is not counted but at the
/// end of the pool: a transaction under the limit may go over it once.
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
            // One at a time, after everything else is on disk and what was freed has come back: its
            // worst case may be more than the room that the log has left, what it dirties was
            // beside the log before the crash.
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
        // Deferred frees come back by themselves in a txg or two: worth waiting if they cover the
        // excess.
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

/// Decides for a task of the syncing context that changes `blocks` blocks of the MOS, each of which
/// has three copies (page 14 section 2). OpenZFS refuses also where deferred frees are all that is
/// in the way; here the task waits for them, so that freeing works at any time.
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

/// Whether a log block of `bytes` leaves the syncs of what is in flight, and of itself, their room:
/// where it does not, commits wait for their txg.
pub fn log_block_fits(pool: PoolSpace, used: u64, in_flight: u64, bytes: u64) -> bool {
    in_flight.saturating_add(bytes) <= pool.room(used.max(pool.settled), SpaceCheck::Reserved)
}

/// By how much a directory's parent sees its use change, when the directory has a reservation (page
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
        // 1000 MiB with a slop of 128: writers fill 872, at 968 of what is allocatable nothing more
        // is taken.
        let refuse = Refuse(ErrorKind::NoSpace);
        for (used, in_flight, charge, deferred, alloc, want) in [
            (0, 0, 0, 0, 0, Admit),
            (871, 0, 90, 0, 871, Admit),
            (872, 0, 1, 0, 872, refuse),
            // What comes back is worth waiting for.
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
            // What a sync has given up so far is used until it has ended.
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
        // A replay waits for what is in flight, and is then admitted.
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
