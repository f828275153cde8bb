//! Looking at one copy of a block wherever the devices have something of it: what scrub and
//! resilver do with each place.
//!
//! Everything that redundancy has of the copy is read and compared, wrong parts are rewritten; what
//! the vdev alone cannot settle is had from the block's other copies. Nothing is unpacked or
//! decrypted: the checksum is over the stored bytes, so no key is needed.

use base::{Error, ErrorKind, Txg};
use bdev::Bytes;
use ondisk::blkptr::{Blkptr, Dva};
use ondisk::gang::GANG_HEADER_SIZE;
use vdev::{BlockPlace, FirstRead, Place, Prio, Repair, Verify};

use crate::read::{Unpacking, validate};
use crate::zio::{Inner, Zio};

/// Hears of every place that is freed, when it is: it stays as it is for two more txgs.
pub trait FreeObserver {
    /// The place at `dva` was freed.
    fn freed(&self, dva: Dva);
}

/// What a look at a copy gave.
#[derive(Debug, Default)]
pub struct Scrubbed {
    /// Bytes that were rewritten on devices.
    pub repaired: u64,
    /// Why the block cannot be had, not from its other copies either.
    pub error: Option<Error>,
}

impl Inner {
    /// The stored bytes of a copy, after a look at everything that there is of it.
    async fn read_replicas(
        &self,
        place: BlockPlace,
        prio: Prio,
        verify: Option<&Verify>,
        repair: Repair<'_>,
    ) -> (Result<Bytes, Error>, u64) {
        if !self.tree.is_redundant(place.vdev) {
            let read = self.tree.read(place.vdev, place.offset, place.psize, place.birth, prio).await;
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
                // What fails is noted at the device.
                let _ = verdict.done.await;
                self.count(|s| s.repaired += u64::from(verdict.repaired > 0));
                (verdict.data, verdict.repaired)
            }
            Err(e) => (Err(e), 0),
        }
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
        let at = |d: Dva, birth: Txg| BlockPlace { vdev: d.vdev(), offset: d.offset(), psize, birth };
        let (found, mut repaired) = self.read_replicas(at(dva, bp.phys_birth()), prio, verify, repair).await;
        let mut error = match found {
            Ok(_) => return Scrubbed { repaired, error: None },
            Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::Unsupported) => {
                return Scrubbed { repaired, error: Some(e) };
            }
            Err(e) => e,
        };
        self.note_bad_copy(bp, dva, error.kind());
        for other in bp.dvas().filter(|d| *d != dva) {
            let (found, more) = self.read_replicas(at(other, bp.phys_birth()), prio, verify, repair).await;
            repaired += more;
            match found {
                Ok(raw) => {
                    repaired += self.rewrite_copy(dva, &raw, repair).await;
                    return Scrubbed { repaired, error: None };
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => return Scrubbed { repaired, error: Some(e) },
                Err(e) => error = e,
            }
        }
        Scrubbed { repaired, error: Some(error) }
    }

    /// Writes a copy anew; the bytes that were written.
    async fn rewrite_copy(&self, dva: Dva, raw: &Bytes, repair: Repair<'_>) -> u64 {
        let Some(prio) = repair() else { return 0 };
        let places = self.tree.places(dva.vdev(), dva.offset(), raw.len() as u64).unwrap_or_default();
        let parts: Vec<_> = places
            .iter()
            .map(|Place { top, offset, len, at }| {
                top.write(*offset, raw.slice(*at as usize..(*at + *len) as usize), prio)
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

    /// A place was freed.
    pub(crate) fn notify_freed(&self, dva: Dva) {
        if let Some(observer) = &*self.free_observer.borrow() {
            observer.freed(dva);
        }
    }
}

impl Zio {
    /// Who hears of freed places from now on.
    pub fn set_free_observer(&self, observer: Option<std::rc::Rc<dyn FreeObserver>>) {
        *self.0.free_observer.borrow_mut() = observer;
    }

    /// Looks at the copy of `bp` at `dva`, one of its DVAs: of a gang block at its header, whose
    /// pieces [`Zio::gang_pieces`] names. `repair` is asked before anything is rewritten; it must
    /// say no once the place was freed.
    pub async fn scrub_copy(&self, bp: &Blkptr, dva: Dva, prio: Prio, repair: Repair<'_>) -> Scrubbed {
        if let Err(e) = validate(bp) {
            return Scrubbed { repaired: 0, error: Some(e) };
        }
        if bp.is_gang() {
            let verify = crate::gang::verifier(bp);
            return self.0.scrub(bp, dva, GANG_HEADER_SIZE as u64, prio, Some(&verify), repair).await;
        }
        let what = match Unpacking::new(bp, self.0.opts.get().salt, None) {
            Ok(what) => what,
            Err(e) => return Scrubbed { repaired: 0, error: Some(e) },
        };
        self.0.scrub(bp, dva, bp.psize(), prio, what.verifier().as_ref(), repair).await
    }

    /// As [`Zio::scrub_copy`] of a block that has one place and whose checksum is not in its
    /// pointer alone: `verify` says whether bytes are the block.
    pub async fn scrub_with(&self, bp: &Blkptr, prio: Prio, verify: &Verify, repair: Repair<'_>) -> Scrubbed {
        if let Err(e) = validate(bp) {
            return Scrubbed { repaired: 0, error: Some(e) };
        }
        self.0.scrub(bp, bp.dva(0), bp.psize(), prio, Some(verify), repair).await
    }

    /// The pieces that the header of a gang block names; pieces may be gang blocks themselves.
    pub async fn gang_pieces(&self, bp: &Blkptr, prio: Prio) -> Result<Vec<Blkptr>, Error> {
        validate(bp)?;
        self.0.gang_children(bp, prio, 0).await
    }
}
