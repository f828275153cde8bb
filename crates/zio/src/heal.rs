//! A damaged block, none of whose copies is right, is rewritten in place by somebody who has its
//! content from elsewhere (`zfs receive -c`; format page 21 section 3).
//!
//! The pointer decides: what is offered is packed as the block was, by the pointer's compression,
//! salt and IV, and is written only if checksum and MAC are those of the pointer. So no offer can
//! change what a block means. How a block was compressed is not wholly known (the level of zstd is
//! in the damaged bytes): several forms are tried ([`forms`]).
//!
//! The caller holds the snapshot that the block belongs to, so that its place is not freed
//! meanwhile.

use base::{Error, ErrorKind, Nanos, Result};
use bdev::{Buf, Bytes};
use codec::{CompressAlgo, Compression};
use ondisk::blkptr::Blkptr;
use ondisk::byteswap::swap_block;
use rt::LocalBoxFuture;
use vdev::Prio;

use crate::cost;
use crate::crypt::{DataKey, Seal};
use crate::read::{Unpacking, validate};
use crate::request::Packed;
use crate::zio::{Inner, Zio};

/// A block as somebody else has it.
#[derive(Clone, Debug)]
pub struct Remedy {
    /// Its content, as many bytes as the block has, in native order; none if that is not known.
    pub content: Option<Bytes>,
    /// How it is stored elsewhere.
    pub stored: Option<Packed>,
    /// The compression of its dataset: a block of that algorithm may have its level.
    pub compression: Compression,
}

/// A way to make the stored bytes of a block.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Form {
    /// As they came.
    Given(Bytes),
    /// As they came and padded with zeros, then encrypted.
    Padded(Bytes),
    /// The content, then encrypted.
    Plain(Bytes),
    /// The content compressed and padded, then encrypted.
    Compressed(Bytes, Compression),
}

/// The forms in which `remedy` may be the block `bp`, the likeliest first.
fn forms(bp: &Blkptr, remedy: &Remedy) -> Vec<Form> {
    let Some(algo) = CompressAlgo::from_u8(bp.compress_raw()) else { return Vec::new() };
    let mut out = Vec::new();
    if let Some(Packed { data, mark, .. }) = remedy.stored.as_ref().filter(|stored| stored.compress == algo) {
        let len = data.len() as u64;
        match mark {
            Some(mark) if len == bp.psize() && mark.mac == bp.mac() => out.push(Form::Given(data.clone())),
            None if len <= bp.psize() => out.push(Form::Padded(data.clone())),
            _ => {}
        }
    }
    let Some(content) = remedy.content.as_ref().filter(|c| c.len() as u64 == bp.lsize()) else { return out };
    match algo {
        CompressAlgo::Inherit | CompressAlgo::On => {}
        CompressAlgo::Off | CompressAlgo::Empty => out.push(Form::Plain(content.clone())),
        CompressAlgo::Zstd => {
            let own = (remedy.compression.algo == algo).then_some(remedy.compression.level);
            for level in own.into_iter().chain([0]) {
                let form = Form::Compressed(content.clone(), Compression { algo, level });
                if !out.contains(&form) {
                    out.push(form);
                }
            }
        }
        _ => out.push(Form::Compressed(content.clone(), Compression { algo, level: 0 })),
    }
    out
}

impl Form {
    fn compression(&self) -> Compression {
        match self {
            Form::Compressed(_, c) => *c,
            _ => Compression::OFF,
        }
    }

    /// Fills `room`, which has the stored length; false if this form does not fit.
    fn fill(&self, bp: &Blkptr, room: &mut [u8]) -> bool {
        let native = |content: &Bytes| {
            let mut bytes = Buf::copy_from(content);
            if bp.needs_swap() {
                swap_block(bp.otype(), bp.level(), &mut bytes);
            }
            bytes
        };
        match self {
            Form::Given(data) | Form::Padded(data) => {
                room[..data.len()].copy_from_slice(data);
                room[data.len()..].fill(0);
                true
            }
            Form::Plain(content) => {
                room.copy_from_slice(&native(content));
                true
            }
            Form::Compressed(content, c) => {
                let limit = room.len();
                let Some(n) = codec::compress(*c, &native(content), room, limit) else { return false };
                room[n..].fill(0);
                true
            }
        }
    }
}

/// What a CPU job needs to make and check a form.
struct Trial {
    what: Unpacking,
    bp: Blkptr,
    form: Form,
    seal: Option<Seal>,
}

impl Trial {
    fn cost(&self) -> Nanos {
        let seal = self.seal.as_ref().map_or(Nanos(0), |s| s.cost(self.bp.psize()));
        let sum = self.bp.checksum_algo().unwrap_or(codec::ChecksumAlgo::Fletcher4);
        cost::pack(self.form.compression(), sum, self.bp.lsize()) + seal
    }

    /// Makes the stored bytes in `room`; whether they are those of the block.
    fn run(&self, room: &mut [u8]) -> Result<bool> {
        if !self.form.fill(&self.bp, room) {
            return Ok(false);
        }
        if let Some(seal) = self.seal.as_ref().filter(|_| !matches!(self.form, Form::Given(_)))
            && !seal.closes(room)?
        {
            return Ok(false);
        }
        Ok(self.what.verify(room).is_ok())
    }
}

impl Inner {
    /// The stored bytes of `bp`, if one of the forms of `remedy` gives them.
    async fn stored_of(&self, bp: &Blkptr, remedy: &Remedy, key: Option<&DataKey>) -> Result<Option<Bytes>> {
        let what = Unpacking::new(bp, self.opts.get().salt, None)?;
        if !what.is_verified() {
            return Ok(None);
        }
        let seal = match key {
            Some(key) => key.opening(bp)?,
            None => None,
        };
        for form in forms(bp, remedy) {
            // Without the key only what came encrypted can be right.
            if seal.is_none() && bp.is_encrypted_data() && !matches!(form, Form::Given(_)) {
                continue;
            }
            let trial = Trial { what: what.clone(), bp: *bp, form, seal: seal.clone() };
            let (cost, mut room) = (trial.cost(), Buf::for_overwrite(bp.psize() as usize));
            // All of it comes back: this thread's free lists own the memory.
            let job = move || (trial.run(&mut room), room, trial);
            let (fits, room, _trial) = self.rt.cpu(cost, job).await;
            if fits? {
                return Ok(Some(room.freeze()));
            }
        }
        Ok(None)
    }

    /// Writes the stored bytes of a block to all its places.
    fn put_back<'a>(&'a self, zio: &'a Zio, bp: Blkptr, raw: Bytes, depth: u32) -> LocalBoxFuture<'a, Result<()>> {
        Box::pin(async move {
            if !bp.is_gang() {
                let repair = || Some(Prio::AsyncWrite);
                let mut written = 0;
                for dva in bp.dvas() {
                    written += self.rewrite_copy(dva, bp.phys_birth(), &raw, &repair).await;
                }
                return match written {
                    0 => Err(Error::new(ErrorKind::Io, format!("block {bp}: no device took it"))),
                    _ => Ok(()),
                };
            }
            let mut at = 0;
            for piece in self.gang_children(&bp, Prio::SyncRead, depth).await? {
                let part = raw.slice(at..at + piece.psize() as usize);
                at += piece.psize() as usize;
                if zio.verify(&piece, Prio::SyncRead).await? {
                    continue;
                }
                Unpacking::new(&piece, self.opts.get().salt, None)?
                    .verify(&part)
                    .map_err(|e| e.at(format_args!("piece {piece}")))?;
                self.put_back(zio, piece, part, depth + 1).await?;
            }
            Ok(())
        })
    }
}

impl Zio {
    /// Rewrites a block, no copy of which is right, in its place, if `remedy` is that block: its
    /// checksum and, of an encrypted one, its MAC are those of the pointer. `key` is that of the
    /// block's dataset, if it is encrypted and the remedy is not. False, and nothing is written,
    /// if it is another block, or one whose checksum cannot tell. The block must be on disk, and
    /// may not be freed meanwhile.
    ///
    /// # Errors
    /// `Io` if no device takes it; `Checksum` if it cannot be read afterwards, or if the header of
    /// a gang block is damaged.
    pub async fn heal(&self, bp: &Blkptr, remedy: &Remedy, key: Option<&DataKey>) -> Result<bool> {
        validate(bp)?;
        if bp.is_hole() || bp.is_embedded() {
            return Ok(false);
        }
        let Some(raw) = self.0.stored_of(bp, remedy, key).await? else { return Ok(false) };
        self.0.put_back(self, *bp, raw, 0).await?;
        if !self.verify(bp, Prio::SyncRead).await? {
            return Err(Error::new(ErrorKind::Checksum, format!("block {bp} was written again and is still damaged")));
        }
        self.0.count(|s| s.repaired += 1);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use base::VdevId;
    use codec::crypto::{IV_LEN, SALT_LEN, TAG_LEN};
    use ondisk::blkptr::Dva;

    use super::*;
    use crate::request::SealMark;

    fn pointer(compress: CompressAlgo, psize: u64) -> Blkptr {
        let mut bp = Blkptr::hole();
        bp.set_dva(0, Dva::new(VdevId(0), 4096, psize, false));
        bp.set_lsize(8192);
        bp.set_psize(psize);
        bp.set_compress(compress as u8);
        bp
    }

    #[test]
    fn forms_follow_the_pointer() {
        let content = Bytes::zeroed(8192);
        let packed = |len: usize, compress, mark| Some(Packed { data: Bytes::zeroed(len), compress, mark });
        let remedy = |stored| Remedy {
            content: Some(content.clone()),
            stored,
            compression: Compression { algo: CompressAlgo::Zstd, level: 9 },
        };
        let anew = |algo, level| Form::Compressed(content.clone(), Compression { algo, level });
        let (off, lz4, zstd) = (CompressAlgo::Off, CompressAlgo::Lz4, CompressAlgo::Zstd);
        for (bp, remedy, want) in [
            (pointer(off, 8192), remedy(None), vec![Form::Plain(content.clone())]),
            (pointer(lz4, 4096), remedy(None), vec![anew(lz4, 0)]),
            (pointer(zstd, 4096), remedy(None), vec![anew(zstd, 9), anew(zstd, 0)]),
            // What came packed in the same way is tried first, if there is room for it.
            (pointer(lz4, 4096), remedy(packed(512, lz4, None)), {
                vec![Form::Padded(Bytes::zeroed(512)), anew(lz4, 0)]
            }),
            (pointer(lz4, 4096), remedy(packed(4608, lz4, None)), vec![anew(lz4, 0)]),
            (pointer(lz4, 4096), remedy(packed(512, zstd, None)), vec![anew(lz4, 0)]),
            // A block of another size is not it.
            (pointer(off, 8192), Remedy { content: Some(Bytes::zeroed(4096)), ..remedy(None) }, vec![]),
        ] {
            assert_eq!(forms(&bp, &remedy), want, "{bp}");
        }
        let mark = |tag: u8| Some(SealMark { salt_iv: Some(([0; SALT_LEN], [0; IV_LEN])), mac: [tag; TAG_LEN] });
        let mut sealed = pointer(lz4, 4096);
        sealed.set_mac([7; TAG_LEN]);
        let raw = |stored| Remedy { content: None, ..remedy(stored) };
        assert_eq!(forms(&sealed, &raw(packed(4096, lz4, mark(7)))), [Form::Given(Bytes::zeroed(4096))]);
        for other in [packed(4096, lz4, mark(8)), packed(4096, off, mark(7)), packed(512, lz4, mark(7))] {
            assert_eq!(forms(&sealed, &raw(other)), []);
        }
    }
}
