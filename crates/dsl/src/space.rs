//! How much space there is and who may use it: pure policy (format page 14, sections 1 and 2).
//!
//! * **dspace**: the normal class in deflated bytes.
//! * **slop**: the part of it that ordinary writes never get, so that freeing always has room to work in.
//! * **adjusted(check)**: what an operation of that kind may fill.
//! * A directory admits a transaction if, from the dataset up to the root, what is used on disk and what is in flight stay under the
//!   quota; the root's "quota" is the adjusted size of the pool.

use base::ErrorKind;

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
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

impl PoolSpace {
    /// The slop: 1/32 of the pool, at most 128 GiB, at least 128 MiB or half of a small pool (`spa_slop_shift` 5).
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

/// What one directory knows when it decides.
#[derive(Clone, Copy, Debug)]
pub struct Asking {
    /// Bytes used on disk, as of the last synced change.
    pub used: u64,
    /// Worst-case charges of the open txgs.
    pub in_flight: u64,
    /// The directory's quota, 0 for none.
    pub quota: u64,
    /// The transaction frees more than it writes.
    pub net_free: bool,
    /// `adjusted` of the pool if this is the root directory.
    pub root_limit: Option<u64>,
    /// Space freed recently that will come back soon (root only).
    pub deferred: u64,
}

/// Decides for one directory (page 14 section 2). The new charge itself is not counted: whoever is under the limit may go over it once.
pub fn admit(a: Asking) -> Admission {
    let mut limit = if a.net_free || a.quota == 0 { u64::MAX } else { a.quota };
    let mut refusal = ErrorKind::Quota;
    if let Some(root) = a.root_limit {
        let root = root.saturating_sub(a.deferred);
        if root < limit {
            limit = root;
            refusal = ErrorKind::NoSpace;
        }
    }
    if a.used >= limit {
        // Deferred frees come back by themselves in a txg or two: worth waiting if they cover the excess.
        if refusal == ErrorKind::NoSpace && a.used - limit < a.deferred {
            return Admission::Restart;
        }
        return Admission::Refuse(refusal);
    }
    let slack = if limit == u64::MAX { 0 } else { limit >> 5 };
    if limit != u64::MAX && a.used.saturating_add(a.in_flight) >= limit.saturating_add(slack) {
        return Admission::Restart;
    }
    Admission::Admit
}

/// By how much a directory's parent sees its use change, when the directory has a reservation (page 05 section 5).
pub fn parent_delta(used: u64, reserved: u64, delta: i64) -> i64 {
    let new = used.saturating_add_signed(delta);
    new.max(reserved) as i64 - used.max(reserved) as i64
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
    fn admission_cases() {
        let base = Asking { used: 50, in_flight: 0, quota: 100, net_free: false, root_limit: None, deferred: 0 };
        assert_eq!(admit(base), Admission::Admit);
        assert_eq!(admit(Asking { used: 100, ..base }), Admission::Refuse(ErrorKind::Quota));
        assert_eq!(admit(Asking { used: 100, net_free: true, ..base }), Admission::Admit);
        assert_eq!(admit(Asking { in_flight: 52, ..base }), Admission::Admit);
        assert_eq!(admit(Asking { in_flight: 53, ..base }), Admission::Restart);
        let root = Asking { quota: 0, root_limit: Some(100), ..base };
        assert_eq!(admit(root), Admission::Admit);
        assert_eq!(admit(Asking { used: 100, ..root }), Admission::Refuse(ErrorKind::NoSpace));
        assert_eq!(admit(Asking { used: 95, deferred: 10, ..root }), Admission::Restart);
        assert_eq!(admit(Asking { used: 120, deferred: 10, ..root }), Admission::Refuse(ErrorKind::NoSpace));
        assert_eq!(admit(Asking { net_free: true, in_flight: 200, ..root }), Admission::Restart);
    }

    #[test]
    fn reservations_hide_use_from_the_parent() {
        assert_eq!(parent_delta(0, 100, 50), 0);
        assert_eq!(parent_delta(50, 100, 70), 20);
        assert_eq!(parent_delta(120, 100, -70), -20);
        assert_eq!(parent_delta(120, 0, -70), -70);
    }
}
