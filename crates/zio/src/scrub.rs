//! Scrub and resilver of one copy of a block.
//!
//! All replicas and parity of the copy are read and compared, and wrong ones are rewritten; if the
//! vdev cannot reconstruct the copy, it is rewritten from the block's other copies. Nothing is
//! unpacked or decrypted: the checksum is over the stored bytes, so no key is needed.

use base::{Error, ErrorKind, Txg};
use bdev::Bytes;
use ondisk::blkptr::{Blkptr, Dva};
use vdev::{BlockPlace, FirstRead, Place, Prio, Repair, Verify};

use crate::read::{Unpacking, place_of, validate};
use crate::zio::{Inner, Zio};

/// Called for each freed DVA; its space is not reused for two txgs.
pub trait FreeObserver {
    /// The copy at `dva` was freed.
    fn freed(&self, dva: Dva);
}

/// The result of scrubbing a copy.
#[derive(Debug, Default)]
pub struct Scrubbed {
    /// Bytes rewritten on devices.
    pub repaired: u64,
    /// The error, if neither this copy nor another is readable.
    pub error: Option<Error>,
}

impl Inner {
    /// The stored bytes of a copy, after reading, comparing and repairing all its replicas; also
    /// the bytes rewritten.
    async fn read_replicas(
        &self,
        place: BlockPlace,
        prio: Prio,
        verify: Option<&Verify>,
        repair: Repair<'_>,
    ) -> (Result<Bytes, Error>, u64) {
        if !self.tree.is_redundant(place.vdev) {
            let read = self.tree.read(place, prio).await;
            let data = match read {
                Ok(FirstRead { data, .. }) => data,
                Err(e) => return (Err(e), 0),
            };
            if let Some(verify) = verify
                && !verify.check(&self.rt, &data, prio).await
            {
                return (Err(Error::new(ErrorKind::Checksum, "wrong checksum")), 0);
            }
            return (Ok(data), 0);
        }
        match self.tree.arbitrate_with(place, prio, verify, repair).await {
            Ok(verdict) => {
                // The device notes failed writes.
                let _ = verdict.done.await;
                self.count(|s| s.repaired += u64::from(verdict.repaired > 0));
                (verdict.data, verdict.repaired)
            }
            Err(e) => (Err(e), 0),
        }
    }

    /// The error on purpose of reading the copy at `dva`.
    fn fault_of(&self, bp: &Blkptr, dva: Dva, prio: Prio) -> Option<Error> {
        let number = bp.dvas().position(|d| d == dva)?;
        self.fault_of_copy(bp, number, dva, prio)
    }

    /// The error on purpose of reading the copy number `number`, at `dva`. The devices that have it
    /// count one that says that it cannot be read.
    pub(crate) fn fault_of_copy(&self, bp: &Blkptr, number: usize, dva: Dva, prio: Prio) -> Option<Error> {
        let error = self.faults.of_copy(&self.rt, bp, number)?;
        if error.kind() == ErrorKind::Io
            && let Ok(top) = self.tree.top(dva.vdev())
        {
            let leaves = top.open_leaves();
            for leaf in leaves.iter().filter(|l| !l.condition.misses(bp.phys_birth())) {
                leaf.count_read_error(prio, dva.offset(), dva.asize());
            }
        }
        Some(error)
    }

    async fn scrub(
        &self,
        bp: &Blkptr,
        dva: Dva,
        psize: u64,
        prio: Prio,
        verify: Option<&Verify>,
        repair: Repair<'_>,
    ) -> Scrubbed {
        let read = async |d: Dva| match self.fault_of(bp, d, prio) {
            Some(e) => (Err(e), 0),
            None => self.read_replicas(place_of(bp, d, psize), prio, verify, repair).await,
        };
        let (found, mut repaired) = read(dva).await;
        let mut error = match found {
            Ok(_) => return Scrubbed { repaired, error: None },
            Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::Unsupported) => {
                return Scrubbed { repaired, error: Some(e) };
            }
            Err(e) => e,
        };
        self.note_bad_copy(bp, dva, error.kind());
        for other in bp.dvas().filter(|d| *d != dva) {
            let (found, more) = read(other).await;
            repaired += more;
            match found {
                Ok(raw) => {
                    repaired += self.rewrite_copy(dva, bp.phys_birth(), &raw, repair).await;
                    return Scrubbed { repaired, error: None };
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => return Scrubbed { repaired, error: Some(e) },
                Err(e) => error = e,
            }
        }
        Scrubbed { repaired, error: Some(error) }
    }

    /// Rewrites a copy; returns the bytes written.
    pub(crate) async fn rewrite_copy(&self, dva: Dva, birth: Txg, raw: &Bytes, repair: Repair<'_>) -> u64 {
        let Some(prio) = repair() else { return 0 };
        let places = self.tree.places(dva.vdev(), dva.offset(), raw.len() as u64).unwrap_or_default();
        let parts: Vec<_> = places
            .iter()
            .map(|Place { top, offset, len, at }| {
                top.write(*offset, raw.slice(*at as usize..(*at + *len) as usize), birth, prio)
            })
            .collect();
        match vdev::WriteDone::join(parts).await {
            Ok(()) => {
                self.count(|s| s.repaired += 1);
                raw.len() as u64
            }
            Err(_) => 0,
        }
    }

    /// Calls the observer for a freed DVA.
    pub(crate) fn notify_freed(&self, dva: Dva) {
        if let Some(observer) = &*self.free_observer.borrow() {
            observer.freed(dva);
        }
    }
}

impl Zio {
    /// Sets the observer of freed DVAs.
    pub fn set_free_observer(&self, observer: Option<std::rc::Rc<dyn FreeObserver>>) {
        *self.0.free_observer.borrow_mut() = observer;
    }

    /// Scrubs the copy of `bp` at `dva`, one of its DVAs; of a gang block its header, whose pieces
    /// [`Zio::gang_pieces`] returns. `repair` is called before a rewrite, and must return none once
    /// the place was freed.
    pub async fn scrub_copy(&self, bp: &Blkptr, dva: Dva, prio: Prio, repair: Repair<'_>) -> Scrubbed {
        if let Err(e) = validate(bp) {
            return Scrubbed { repaired: 0, error: Some(e) };
        }
        if bp.is_gang() {
            let size = self.0.header_size_of(bp);
            let verify = crate::gang::verifier(bp, size);
            return self.0.scrub(bp, dva, size, prio, Some(&verify), repair).await;
        }
        let what = match Unpacking::new(bp, self.0.opts.get().salt, None) {
            Ok(what) => what,
            Err(e) => return Scrubbed { repaired: 0, error: Some(e) },
        };
        self.0.scrub(bp, dva, bp.psize(), prio, what.verifier().as_ref(), repair).await
    }

    /// As [`Zio::scrub_copy`], for a block with one copy whose checksum is not only in its pointer:
    /// `verify` tests whether bytes are the block.
    pub async fn scrub_with(&self, bp: &Blkptr, prio: Prio, verify: &Verify, repair: Repair<'_>) -> Scrubbed {
        if let Err(e) = validate(bp) {
            return Scrubbed { repaired: 0, error: Some(e) };
        }
        self.0.scrub(bp, bp.dva(0), bp.psize(), prio, Some(verify), repair).await
    }

    /// The pieces in the header of a gang block, which may be gang blocks themselves.
    pub async fn gang_pieces(&self, bp: &Blkptr, prio: Prio) -> Result<Vec<Blkptr>, Error> {
        validate(bp)?;
        self.0.gang_children(bp, prio, 0).await
    }
}
