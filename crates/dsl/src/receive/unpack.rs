//! Payloads made ready to be applied: unpacked, and in this machine's byte order. It is work on
//! bytes alone, so several records are unpacked at once, ahead of the one that is applied.

use base::{Error, ErrorKind, MAX_BLOCK, Result, SECTOR};
use bdev::{Buf, Bytes};
use codec::checksum::Endian;
use codec::compress::CompressAlgo;
use ondisk::byteswap::swap_block;
use ondisk::object_type::ObjectType;
use ondisk::stream::Record;
use rt::Rt;
use zio::Packed;

use super::input::Incoming;

/// Most bytes that lie in a pointer.
const EMBEDDED_MAX: usize = ondisk::blkptr::EMBEDDED_MAX;

/// A record with what is to be applied.
pub(super) struct Item {
    pub record: Record,
    /// The payload: of a block that came packed its content.
    pub content: Bytes,
    /// How the block is stored, if that stays as it came.
    pub stored: Stored,
    /// Where the record begins in the stream.
    pub offset: u64,
    /// Where the next record begins.
    pub end: u64,
}

/// The stored form of a block that came packed.
pub(super) enum Stored {
    /// It is packed anew.
    Anew,
    /// As it came.
    Packed(Packed),
    /// In its pointer: the payload, and how that is packed.
    Embedded(Bytes, u8),
}

/// What a record says about its packed payload: algorithm, length of the content, and type.
fn packing(record: &Record) -> Result<Option<(u8, u64, ObjectType)>> {
    let typed = |n: u32| match u8::try_from(n).map(ObjectType) {
        Ok(t) if t.is_valid() => Ok(t),
        _ => Err(Error::corrupt(format!("object type {n} does not exist"))),
    };
    Ok(match record {
        Record::Write(w) => {
            let otype = typed(w.object_type)?;
            (w.compression != 0).then_some((w.compression, w.logical_size, otype))
        }
        Record::Spill(s) if s.compression != 0 => Some((s.compression, s.length, ObjectType::SA)),
        Record::WriteEmbedded(e) => Some((e.compression, u64::from(e.logical_size), ObjectType::PLAIN_FILE)),
        _ => None,
    })
}

/// The type of a payload that is not packed; none if it is bytes in any case.
fn plain_type(record: &Record) -> Option<ObjectType> {
    let otype = match record {
        Record::Write(w) => w.object_type,
        Record::Object(o) => o.bonus_type,
        _ => return None,
    };
    u8::try_from(otype).ok().map(ObjectType)
}

/// Makes the payload of a record ready. Errors: `Corrupt` for sizes and algorithms that no sender
/// writes, and for payloads that do not unpack.
pub(super) async fn unpack(rt: &Rt, order: Endian, raw: bool, incoming: Incoming) -> Result<Item> {
    let Incoming { record, payload, offset } = incoming;
    let end = offset + (ondisk::stream::RECORD_SIZE + payload.len()) as u64;
    let made = match packing(&record) {
        // Nothing is unpacked on its way.
        Ok(_) if raw => Ok((payload, Stored::Anew)),
        Ok(Some(packing)) => unpacked(rt, order, &record, payload, packing).await,
        Ok(None) => Ok((swapped(rt, order, &record, payload).await, Stored::Anew)),
        Err(e) => Err(e),
    };
    let (content, stored) = made.map_err(|e| e.at(format_args!("record at byte {offset} of the stream")))?;
    Ok(Item { record, content, stored, offset, end })
}

/// A payload that is not packed, in this machine's byte order.
async fn swapped(rt: &Rt, order: Endian, record: &Record, payload: Bytes) -> Bytes {
    let Some(otype) = plain_type(record).filter(|_| order == Endian::Big) else { return payload };
    let swap = move || {
        let mut bytes = payload.into_buf();
        swap_block(otype, 0, &mut bytes);
        bytes.freeze()
    };
    let len = record.payload_len();
    rt.cpu(rt::cost::COPY.cost(2 * len), swap).await
}

async fn unpacked(
    rt: &Rt,
    order: Endian,
    record: &Record,
    payload: Bytes,
    (algo, lsize, otype): (u8, u64, ObjectType),
) -> Result<(Bytes, Stored)> {
    let known = CompressAlgo::from_u8(algo)
        .filter(|a| !matches!(a, CompressAlgo::Inherit | CompressAlgo::On | CompressAlgo::Off | CompressAlgo::Empty));
    let known = known.ok_or_else(|| Error::corrupt(format!("the payload is packed by algorithm {algo}")))?;
    if lsize == 0 || lsize > MAX_BLOCK || !lsize.is_multiple_of(SECTOR) {
        return Err(Error::corrupt(format!("a block of {lsize} bytes does not exist")));
    }
    let embedded = match record {
        Record::WriteEmbedded(e) => {
            let len = e.physical_size as usize;
            if e.embedded_type != 0 || len == 0 || len > EMBEDDED_MAX {
                return Err(Error::corrupt(format!("{len} bytes of kind {} lie in no pointer", e.embedded_type)));
            }
            Some(payload.slice(..len))
        }
        _ => None,
    };
    let stored = payload.clone();
    let mut room = Buf::for_overwrite(lsize as usize);
    let unpack = move || {
        let done = codec::decompress(known, &payload, &mut room);
        if order == Endian::Big && done.is_ok() {
            swap_block(otype, 0, &mut room);
        }
        (done, room, payload)
    };
    let (done, room, _payload) = rt.cpu(cost(known, lsize), unpack).await;
    done.map_err(|e| Error::new(ErrorKind::Corrupt, format!("the payload does not unpack: {e}")))?;
    let content = room.freeze();
    // What another machine packed in its byte order is packed anew.
    let is_native = order == Endian::Little || otype.swap_class() == ondisk::object_type::SwapClass::U8;
    let stored = match (embedded, record) {
        (Some(payload), _) => Stored::Embedded(payload, algo),
        (None, Record::Write(_))
            if is_native && stored.len() as u64 <= lsize && (stored.len() as u64).is_multiple_of(SECTOR) =>
        {
            Stored::Packed(Packed { data: stored, compress: known, mark: None })
        }
        _ => Stored::Anew,
    };
    Ok((content, stored))
}

/// What unpacking costs.
fn cost(algo: CompressAlgo, lsize: u64) -> base::Nanos {
    use rt::cost::{UNGZIP, UNLZ4, UNLZJB, UNZLE, UNZSTD};
    let rate = match algo {
        CompressAlgo::Lz4 => UNLZ4,
        CompressAlgo::Lzjb => UNLZJB,
        CompressAlgo::Zle => UNZLE,
        CompressAlgo::Zstd => UNZSTD,
        _ => UNGZIP,
    };
    rate.cost(lsize)
}
