//! Reading: from an unchecked pointer to lsize bytes in native order, or a typed error naming vdev
//! and offset.

use std::cell::Cell;
use std::fmt::Write;

use base::{Error, ErrorKind, MAX_BLOCK, Nanos, Result, SECTOR, Txg};
use bdev::{Buf, Bytes};
use codec::{ChecksumAlgo, CompressAlgo};
use ondisk::blkptr::{Blkptr, BpLimits, Dva};
use ondisk::byteswap::swap_block;
use ondisk::object_type::ObjectType;
use vdev::{BlockPlace, FailMode, FirstRead, Place, Prio, Verify};

use crate::cost;
use crate::crypt::{self, DataKey, Seal};
use crate::zio::{Inner, Zio};

/// The errors of the copies of one block.
#[derive(Default)]
pub(crate) struct CopyErrors {
    kind: Option<ErrorKind>,
    text: String,
}

impl CopyErrors {
    pub(crate) fn add(&mut self, dva: Dva, e: Error) {
        // A wrong checksum outranks other errors: the device returned data.
        if self.kind.is_none() || e.kind() == ErrorKind::Checksum {
            self.kind = Some(e.kind());
        }
        let _ = write!(self.text, "; vdev {} offset {:#x}: {e}", dva.vdev(), dva.offset());
    }

    pub(crate) fn into_error(self, bp: &Blkptr, what: &str) -> Error {
        let kind = self.kind.unwrap_or(ErrorKind::Corrupt);
        Error::new(kind, format!("{what} {bp}: no copy is readable{}", self.text))
    }
}

/// Whether the pointer has a checksum by which its stored bytes can be told from others.
pub fn has_checksum(bp: &Blkptr) -> bool {
    !bp.is_hole()
        && !bp.is_embedded()
        && bp.checksum_algo().is_some_and(|c| !matches!(c, ChecksumAlgo::Off | ChecksumAlgo::NoParity))
}

/// Validates a pointer alone. Its DVAs are checked copy by copy, since a bad one does not affect
/// the others.
pub(crate) fn validate(bp: &Blkptr) -> Result<()> {
    bp.validate(&BpLimits { max_block: MAX_BLOCK, ..BpLimits::FORMAT })
}

/// The copy of a block at `dva`, `psize` bytes of which are stored.
pub(crate) fn place_of(bp: &Blkptr, dva: Dva, psize: u64) -> BlockPlace {
    // On RAID-Z its width is that of the txg in which it got its place.
    let birth = if planted!(WidthOfContent) { bp.logical_birth() } else { bp.phys_birth() };
    BlockPlace::new(dva, psize, birth)
}

/// The compression and checksum algorithms of a validated pointer.
fn algorithms(bp: &Blkptr) -> Result<(CompressAlgo, ChecksumAlgo)> {
    match (CompressAlgo::from_u8(bp.compress_raw()), ChecksumAlgo::from_u8(bp.checksum_raw())) {
        (Some(c), Some(s)) => Ok((c, s)),
        _ => Err(Error::corrupt(format!("block {bp}: unknown compression or checksum"))),
    }
}

/// How to verify and unpack a stored block: the input of a CPU job.
#[derive(Clone)]
pub(crate) struct Unpacking {
    bp: Blkptr,
    compress: CompressAlgo,
    checksum: ChecksumAlgo,
    salt: Option<[u8; 32]>,
    /// How to open the block, if its dataset is encrypted and the key is loaded.
    seal: Option<Seal>,
}

impl Unpacking {
    pub(crate) fn new(bp: &Blkptr, salt: Option<[u8; 32]>, key: Option<&DataKey>) -> Result<Unpacking> {
        let (compress, checksum) = algorithms(bp)?;
        if matches!(
            checksum,
            ChecksumAlgo::Label | ChecksumAlgo::GangHeader | ChecksumAlgo::Zilog | ChecksumAlgo::Zilog2
        ) {
            return Err(Error::unsupported(format!("block {bp}: checksum {} is inside of the block", checksum.name())));
        }
        let seal = match key {
            Some(key) => key.opening(bp)?,
            None => None,
        };
        Ok(Unpacking { bp: *bp, compress, checksum, salt, seal })
    }

    fn cost(&self) -> Nanos {
        let seal = self.seal.as_ref().map_or(Nanos(0), |s| s.cost(self.bp.psize()));
        cost::unpack(self.compress, self.checksum, self.bp.psize(), self.bp.lsize()) + seal
    }

    /// A test whether bytes are the stored block; none if it has no checksum.
    pub(crate) fn verifier(&self) -> Option<Verify> {
        let what = self.clone();
        let cost = cost::checksum(self.checksum, self.bp.psize());
        self.is_verified().then(|| Verify::new(cost, move |raw| what.verify(raw).is_ok()))
    }

    fn is_plain(&self) -> bool {
        matches!(self.compress, CompressAlgo::Off | CompressAlgo::Empty)
    }

    /// Whether there is a checksum to verify.
    pub(crate) fn is_verified(&self) -> bool {
        !matches!(self.checksum, ChecksumAlgo::Off | ChecksumAlgo::NoParity)
    }

    /// Verifies the checksum of `raw` against the pointer.
    pub(crate) fn verify(&self, raw: &[u8]) -> Result<()> {
        if !self.is_verified() {
            return Ok(());
        }
        let sum = codec::compute(self.checksum, raw, !self.bp.is_little_endian(), self.salt.as_ref())?.0;
        let want = self.bp.checksum_words();
        let same = if self.bp.encrypted() && self.bp.otype() != ObjectType::OBJSET {
            // Half of the checksum words hold the MAC.
            crypt::halved(sum, self.checksum) == want[..2]
        } else {
            sum == want
        };
        if same { Ok(()) } else { Err(Error::new(ErrorKind::Checksum, "wrong checksum")) }
    }

    /// Decrypts or authenticates `raw`.
    fn open(&self, seal: &Seal, raw: Bytes) -> Result<Bytes> {
        if seal.changes_bytes() {
            let mut buf = raw.into_buf();
            seal.open(&mut buf)?;
            return Ok(buf.freeze());
        }
        seal.check(Some(&raw), self.is_plain().then_some(&raw[..]))?;
        Ok(raw)
    }

    /// Unpacks `raw`, whose checksum is right. `room`: lsize bytes for a compressed block.
    fn unpack(&self, mut raw: Bytes, room: Option<Buf>) -> Result<Bytes> {
        let swap = self.bp.needs_swap();
        let place = |e: Error| e.at(format_args!("block {}", self.bp));
        let unsealed = |e: Error| match e.kind() {
            ErrorKind::Checksum => place(Error::new(ErrorKind::Forged, e.to_string())),
            _ => place(e),
        };
        if let Some(seal) = &self.seal {
            raw = self.open(seal, raw).map_err(unsealed)?;
        }
        let Some(mut room) = room else {
            if !swap {
                return Ok(raw);
            }
            let mut buf = raw.into_buf();
            swap_block(self.bp.otype(), self.bp.level(), &mut buf);
            return Ok(buf.freeze());
        };
        codec::decompress(self.compress, &raw, &mut room).map_err(place)?;
        if let Some(seal) = &self.seal {
            seal.check(None, Some(&room)).map_err(unsealed)?;
        }
        if swap {
            swap_block(self.bp.otype(), self.bp.level(), &mut room);
        }
        Ok(room.freeze())
    }
}

/// The outcome of reading one copy.
enum Copy {
    Bad(Error),
    /// The checksum was right; every good copy gives this result.
    Good(Result<Bytes>),
}

impl Inner {
    /// Reads a copy of a block, unverified.
    pub(crate) async fn read_copy(&self, place: BlockPlace, prio: Prio) -> Result<FirstRead> {
        let first = self.tree.read(place, prio).await?;
        assert_eq!(first.data.len() as u64, place.psize, "a vdev gives what it was asked for");
        Ok(first)
    }

    /// The class of repair writes for a copy of `bp`, or none if the place may have been
    /// reallocated; `since` is the last txg on disk before the read. Freed space is not allocated
    /// again before two more txgs are on disk.
    fn may_repair(&self, bp: &Blkptr, since: Txg) -> Option<Prio> {
        let now = self.tree.committed.get();
        (since.0 != 0 && now.0 <= since.0 + 1 && bp.phys_birth() <= since).then_some(Prio::AsyncWrite)
    }

    /// Reconstructs the stored bytes of a copy with a wrong checksum or a failed device, and
    /// rewrites bad replicas. Errors as of reading.
    pub(crate) async fn reconstruct_and_repair(
        &self,
        bp: &Blkptr,
        dva: Dva,
        psize: u64,
        since: Txg,
        prio: Prio,
        verify: Option<&Verify>,
    ) -> Result<Bytes> {
        let place = place_of(bp, dva, psize);
        // Called after all reads: the place may have been freed and reallocated meanwhile.
        let verdict = self.tree.arbitrate_with(place, prio, verify, &|| self.may_repair(bp, since)).await?;
        if verdict.data.is_ok() {
            self.count(|s| s.repaired += u64::from(verdict.repaired > 0));
        }
        verdict.data
    }

    /// Verifies and unpacks, in the CPU pool if costly.
    async fn check(&self, what: &Unpacking, raw: Bytes, prio: Prio) -> Copy {
        let cost = what.cost();
        if rt::place_of(cost) == rt::Place::Here {
            self.rt.spend(rt::cost::ZIO_READ + cost).await;
            return match what.verify(&raw) {
                Err(e) => Copy::Bad(e),
                Ok(()) => Copy::Good(what.unpack(raw, self.decompress_buf(what))),
            };
        }
        self.rt.spend(rt::cost::ZIO_READ).await;
        let job = what.clone();
        let (room, mine) = (self.decompress_buf(what), raw.clone());
        let copy = self
            .rt
            .cpu_as(prio.cpu_class(), cost, move || match job.verify(&raw) {
                Err(e) => Copy::Bad(e),
                Ok(()) => Copy::Good(job.unpack(raw, room)),
            })
            .await;
        // Drop it on this thread, whose free lists own the memory.
        drop(mine);
        copy
    }

    /// Reads one copy, by reconstruction if needed. With `keep` also returns its stored bytes.
    async fn try_copy(
        &self,
        bp: &Blkptr,
        dva: Dva,
        what: &Unpacking,
        since: Txg,
        keep: bool,
        prio: Prio,
    ) -> (Copy, Option<Bytes>) {
        let psize = bp.psize();
        let mut error = match self.read_copy(place_of(bp, dva, psize), prio).await {
            Ok(FirstRead { data, failed }) => {
                let raw = keep.then(|| data.clone());
                match self.check(what, data, prio).await {
                    Copy::Good(result) => {
                        if failed {
                            // The block is known: rewrite the part that a device failed to read.
                            // Without a checksum trust the bytes read.
                            let known = || Verify::new(Nanos(0), |_| true);
                            let verify = what.verifier().unwrap_or_else(known);
                            let _ = self.reconstruct_and_repair(bp, dva, psize, since, prio, Some(&verify)).await;
                        }
                        return (Copy::Good(result), raw);
                    }
                    Copy::Bad(e) => e,
                }
            }
            Err(e) => e,
        };
        if error.kind() == ErrorKind::Unsupported || !self.tree.is_redundant(dva.vdev()) {
            return (Copy::Bad(error), None);
        }
        if error.kind() == ErrorKind::Checksum || error.kind() == ErrorKind::Io {
            let verify = what.verifier();
            match self.reconstruct_and_repair(bp, dva, psize, since, prio, verify.as_ref()).await {
                Ok(raw) => {
                    let kept = keep.then(|| raw.clone());
                    return (self.check(what, raw, prio).await, kept);
                }
                Err(e) => error = e,
            }
        }
        (Copy::Bad(error), None)
    }

    /// Rewrites the bad copies of `bp`: those before the good one at `good`.
    fn rewrite(&self, bp: &Blkptr, good: Dva, raw: &Bytes, since: Txg) {
        let Some(prio) = self.may_repair(bp, since) else { return };
        for dva in bp.dvas().take_while(|d| *d != good) {
            let places = self.tree.places(dva.vdev(), dva.offset(), raw.len() as u64);
            for Place { top, offset, len, at } in places.unwrap_or_default() {
                let part = raw.slice(at as usize..(at + len) as usize);
                // Not awaited: if it fails, the next read repairs again.
                drop(top.write(offset, part, bp.phys_birth(), prio));
            }
            self.count(|s| s.repaired += 1);
        }
    }

    fn decompress_buf(&self, what: &Unpacking) -> Option<Buf> {
        (!what.is_plain()).then(|| Buf::for_overwrite(what.bp.lsize() as usize))
    }

    /// Whether a failed read waits for `zpool clear`: with `failmode=wait`, if all vdevs of the
    /// block are unreachable. Scans do not wait.
    async fn waits_for_devices(&self, bp: &Blkptr, e: &Error, prio: Prio) -> bool {
        let gate = &self.tree.gate;
        if e.kind() != ErrorKind::Io || prio == Prio::Scrub || !gate.holds() || gate.mode() == FailMode::Continue {
            return false;
        }
        for dva in bp.dvas() {
            let Ok(places) = self.tree.places(dva.vdev(), dva.offset(), SECTOR) else { continue };
            for place in places {
                if !place.top.is_unreachable().await {
                    return false;
                }
            }
        }
        true
    }

    /// Reads a validated regular or gang pointer: tries the copies in order and returns the
    /// unpacked block.
    /// `stored` gets its stored bytes.
    pub(crate) async fn read_stored(
        &self,
        bp: &Blkptr,
        key: Option<&DataKey>,
        prio: Prio,
        depth: u32,
        stored: Option<&Cell<Option<Bytes>>>,
    ) -> Result<Bytes> {
        let what = Unpacking::new(bp, self.opts.get().salt, key)?;
        let psize = bp.psize();
        if bp.is_gang() {
            let raw = self.read_gang(bp, prio, depth).await?;
            stored.inspect(|s| s.set(Some(raw.clone())));
            return match self.check(&what, raw, prio).await {
                Copy::Good(result) => result,
                Copy::Bad(e) => {
                    self.count(|s| s.unreadable += 1);
                    Err(e.at(format_args!("gang block {bp}")))
                }
            };
        }
        let since = self.tree.committed.get();
        let mut errors = CopyErrors::default();
        for (number, dva) in bp.dvas().enumerate() {
            let repairs = !errors.text.is_empty();
            let (copy, raw) = match self.fault_of_copy(bp, number, dva, prio) {
                Some(e) => (Copy::Bad(e), None),
                None => self.try_copy(bp, dva, &what, since, repairs || stored.is_some(), prio).await,
            };
            match copy {
                Copy::Good(result) => {
                    if let Some(e) = self.faults.of_content(&self.rt, bp) {
                        self.count(|s| s.unreadable += 1);
                        return Err(e.at(format_args!("block {bp}")));
                    }
                    self.count(|s| (s.reads, s.read_bytes) = (s.reads + 1, s.read_bytes + psize));
                    if let Some(raw) = raw {
                        if repairs {
                            self.rewrite(bp, dva, &raw, since);
                        }
                        stored.inspect(|s| s.set(Some(raw)));
                    }
                    return result;
                }
                // Not an error of the copy.
                Copy::Bad(e) if e.kind() == ErrorKind::Unsupported => return Err(e.at(format_args!("block {bp}"))),
                Copy::Bad(e) => {
                    self.note_bad_copy(bp, dva, e.kind());
                    errors.add(dva, e);
                }
            }
        }
        self.count(|s| s.unreadable += 1);
        Err(errors.into_error(bp, "block"))
    }
}

/// Fills `out`, of lsize bytes, with the block in an embedded pointer.
fn unpack_embedded(bp: &Blkptr, compress: CompressAlgo, out: &mut Buf) -> Result<()> {
    let (payload, len) = bp.payload();
    match compress {
        // The payload is the block, as written by a raw receive.
        CompressAlgo::Off | CompressAlgo::Empty => {
            if len != out.len() {
                return Err(Error::corrupt(format!("block {bp}: the payload is not as long as the block")));
            }
            out.copy_from_slice(&payload[..len]);
        }
        algo => codec::decompress(algo, &payload[..len], out).map_err(|e| e.at(format_args!("block {bp}")))?,
    }
    if bp.needs_swap() {
        swap_block(bp.otype(), bp.level(), out);
    }
    Ok(())
}

impl Inner {
    /// The block in an embedded pointer: up to 16 MiB, which may compress to this.
    async fn read_embedded(&self, bp: &Blkptr, prio: Prio) -> Result<Bytes> {
        if bp.is_redacted() {
            return Err(Error::new(ErrorKind::Io, format!("block {bp} was removed by redaction")));
        }
        if bp.embedded_type() != 0 {
            return Err(Error::corrupt(format!("block {bp}: nothing is known to be embedded like this")));
        }
        let (compress, _) = algorithms(bp)?;
        let cost = cost::unpack(compress, ChecksumAlgo::Off, 0, bp.lsize());
        let (own, mut out) = (*bp, Buf::for_overwrite(bp.lsize() as usize));
        let job = move || (unpack_embedded(&own, compress, &mut out), out);
        let (result, out) = self.rt.cpu_as(prio.cpu_class(), cost, job).await;
        result.map(|()| out.freeze())
    }
}

impl Zio {
    /// Reads a block: lsize bytes in native order, zeros for a hole. All copies are tried. Errors:
    /// `Checksum` if a copy was read and none was right, `Io` if none could be read or the block is
    /// redacted, `Corrupt` if the pointer or the compressed stream violates the format,
    /// `Unsupported` if the block is encrypted, or needs a checksum that weir cannot compute.
    pub async fn read(&self, bp: &Blkptr, prio: Prio) -> Result<Bytes> {
        self.read_with(bp, None, prio).await
    }

    /// As [`Zio::read`] with the key of the block's dataset if that is encrypted. Then MACs are
    /// checked too: a wrong one is an error of kind `Forged`.
    pub async fn read_with(&self, bp: &Blkptr, key: Option<&DataKey>, prio: Prio) -> Result<Bytes> {
        if key.is_none() && bp.is_encrypted_data() {
            validate(bp)?;
            return Err(Error::unsupported(format!("block {bp} is encrypted")));
        }
        self.read_any(bp, key, prio, None).await
    }

    /// As [`Zio::read_with`]; gives the stored bytes as well, those that the checksum covers.
    pub async fn read_both(&self, bp: &Blkptr, key: Option<&DataKey>, prio: Prio) -> Result<(Bytes, Option<Bytes>)> {
        let stored = Cell::new(None);
        if key.is_none() && bp.is_encrypted_data() {
            return Ok((self.read_with(bp, key, prio).await?, None));
        }
        let data = self.read_any(bp, key, prio, Some(&stored)).await?;
        Ok((data, stored.into_inner()))
    }

    /// Unpacks the stored bytes of a block that were kept elsewhere than at its places, as
    /// [`Zio::read_with`] does after it has read them. Errors: `Checksum` if they are not those of
    /// the block; `Unsupported` if it has no checksum that tells, or its key is not given.
    pub async fn unpack(&self, bp: &Blkptr, key: Option<&DataKey>, stored: Bytes, prio: Prio) -> Result<Bytes> {
        validate(bp)?;
        if !has_checksum(bp) || key.is_none() && bp.is_encrypted_data() {
            return Err(Error::unsupported(format!("block {bp} cannot be verified")));
        }
        let what = Unpacking::new(bp, self.0.opts.get().salt, key)?;
        if stored.len() as u64 != bp.psize() {
            return Err(Error::new(ErrorKind::Checksum, "another length"));
        }
        if planted!(L2Unverified) {
            return what.unpack(stored, self.0.decompress_buf(&what));
        }
        match self.0.check(&what, stored, prio).await {
            Copy::Good(result) => result,
            Copy::Bad(e) => Err(e),
        }
    }

    /// As [`Zio::read`], but encrypted data is returned as stored; of dnodes only the bonus areas
    /// are encrypted. For walks through datasets whose keys may not be loaded.
    pub async fn read_sealed(&self, bp: &Blkptr, prio: Prio) -> Result<Bytes> {
        if bp.is_encrypted_data() && bp.psize() != bp.lsize() {
            validate(bp)?;
            return Err(Error::unsupported(format!("block {bp} is encrypted and compressed")));
        }
        self.read_any(bp, None, prio, None).await
    }

    async fn read_any(
        &self,
        bp: &Blkptr,
        key: Option<&DataKey>,
        prio: Prio,
        stored: Option<&Cell<Option<Bytes>>>,
    ) -> Result<Bytes> {
        validate(bp)?;
        if bp.is_hole() {
            return Ok(Bytes::zeroed(bp.lsize() as usize));
        }
        if bp.is_embedded() {
            return Box::pin(self.0.read_embedded(bp, prio)).await;
        }
        loop {
            let result = self.0.read_stored(bp, key, prio, 0, stored).await;
            let Err(e) = &result else { return result };
            // Boxed, so that this rare path does not enlarge the future of every read.
            if !Box::pin(self.0.waits_for_devices(bp, e, prio)).await {
                return result;
            }
            Box::pin(self.0.tree.gate.suspend(e)).await?;
        }
    }

    /// Whether a copy of the block has the right checksum; nothing is decrypted, and nothing
    /// decompressed but blocks without a checksum. An error if no copy could be read.
    pub async fn verify(&self, bp: &Blkptr, prio: Prio) -> Result<bool> {
        validate(bp)?;
        if bp.is_hole() || bp.is_embedded() {
            return Ok(true);
        }
        let mut stored = *bp;
        // Without a checksum only decompression shows whether the block was written.
        let unsure = matches!(bp.checksum_algo(), Some(ChecksumAlgo::Off | ChecksumAlgo::NoParity));
        if !unsure || bp.is_encrypted_data() {
            stored.set_compress(CompressAlgo::Off as u8);
            stored.set_lsize(bp.psize());
        }
        match self.read_any(&stored, None, prio, None).await {
            Ok(_) => Ok(true),
            Err(e) if matches!(e.kind(), ErrorKind::Checksum | ErrorKind::Corrupt | ErrorKind::Forged) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Reads the stored bytes of one copy as they are on disk, unverified, of a block born in
    /// `birth` that may have been written later: log blocks. `psize` is a multiple of 512 up to 16
    /// MiB.
    pub async fn read_raw(&self, dva: Dva, psize: u64, birth: Txg, prio: Prio) -> Result<Bytes> {
        if psize == 0 || psize > MAX_BLOCK || !psize.is_multiple_of(SECTOR) {
            return Err(Error::invalid(format!("{psize} bytes is no size of a block")));
        }
        let place = BlockPlace { written: Txg(0), ..BlockPlace::new(dva, psize, birth) };
        Ok(self.0.read_copy(place, prio).await?.data)
    }
}
