//! A stream as text, as `zstream dump` of OpenZFS prints it (format page 25 section 11).
//!
//! Without options: each BEGIN with its list, each END, and a summary. `-v`: every record; `-vv`:
//! the sum after each; `-d`: payloads as well. Line for line the text is that of release 2.4, so
//! that scripts and comparisons keep working.

use std::io::{Read, Write};

use base::{Error, ErrorKind, Result};
use ondisk::nvlist::NvList;
use ondisk::stream::record::{Begin, Crypt, TYPE_NAMES};
use ondisk::stream::{Frame, RECORD_SIZE, Record, words};

use crate::input::Input;

/// What to print.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DumpOpts {
    /// Every record (`-v`).
    pub records: bool,
    /// The sum of each record (`-vv`).
    pub sums: bool,
    /// Payloads (`-d`).
    pub data: bool,
    /// Sums are not checked (`-C`).
    pub ignore_sums: bool,
}

/// Types in the order of the summary (format page 25 section 11).
const SUMMARY: [usize; 9] = [0, 5, 1, 2, 3, 6, 8, 4, 7];
/// Bytes of a line of payload.
const LINE: usize = 16;
/// Bytes of payload between two additional spaces.
const GROUP: usize = 4;

/// Records and bytes of payload of one type.
#[derive(Clone, Copy, Default)]
struct Count {
    records: u64,
    payload: u64,
}

/// Prints the stream `from` on `out`. Gives what is missing if the input ends within the stream.
/// Errors: those of [`Input::record`]; `Io` if `out` cannot be written.
pub fn dump(from: &mut dyn Read, out: &mut dyn Write, opts: DumpOpts) -> Result<Option<Error>> {
    let mut input = if opts.ignore_sums { Input::without_sums(from) } else { Input::new(from) };
    let mut counts = [Count::default(); TYPE_NAMES.len()];
    while let Some(frame) = input.record()? {
        let payload = input.payload();
        let count = &mut counts[frame.record.type_id() as usize];
        count.records += 1;
        count.payload += payload.len() as u64;
        print(out, &frame, payload, opts).map_err(unwritable)?;
    }
    summary(out, &counts).and_then(|()| out.flush()).map_err(unwritable)?;
    Ok(input.incomplete().cloned())
}

/// The error of an output that cannot be written.
pub(crate) fn unwritable(e: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("the output cannot be written: {e}"))
}

fn summary(out: &mut dyn Write, counts: &[Count]) -> std::io::Result<()> {
    writeln!(out, "SUMMARY:")?;
    for id in SUMMARY {
        let Count { records, payload } = counts[id];
        writeln!(out, "\tTotal DRR_{} records = {records} ({payload} bytes)", TYPE_NAMES[id])?;
    }
    let records: u64 = counts.iter().map(|c| c.records).sum();
    let payload: u64 = counts.iter().map(|c| c.payload).sum();
    let headers = records * RECORD_SIZE as u64;
    writeln!(out, "\tTotal records = {records}")?;
    for (what, bytes) in [("payload size", payload), ("header overhead", headers), ("stream length", payload + headers)]
    {
        writeln!(out, "\tTotal {what} = {bytes} (0x{bytes:x})")?;
    }
    Ok(())
}

fn print(out: &mut dyn Write, frame: &Frame, payload: &[u8], opts: DumpOpts) -> std::io::Result<()> {
    match &frame.record {
        Record::Begin(r) => return begin(out, r, payload, opts),
        Record::End(r) => writeln!(out, "END checksum = {}", words(r.checksum))?,
        record if opts.records => writeln!(out, "{}", line(record, payload.len()))?,
        _ => {}
    }
    if opts.data && !payload.is_empty() {
        block(out, payload)?;
    }
    if opts.sums {
        writeln!(out, "    checksum = {}", words(frame.sum))?;
    }
    Ok(())
}

fn begin(out: &mut dyn Write, r: &Begin, payload: &[u8], opts: DumpOpts) -> std::io::Result<()> {
    writeln!(out, "BEGIN record\n\thdrtype = {}\n\tfeatures = {:x}", r.header_type(), r.features())?;
    writeln!(out, "\tmagic = {:x}\n\tcreation_time = {:x}", ondisk::stream::MAGIC, r.creation_time)?;
    writeln!(out, "\ttype = {}\n\tflags = 0x{:x}", r.objset_type, r.flags)?;
    writeln!(out, "\ttoguid = {:x}\n\tfromguid = {:x}", r.to_guid.0, r.from_guid.0)?;
    out.write_all(b"\ttoname = ")?;
    out.write_all(&r.to_name)?;
    writeln!(out, "\n\tpayloadlen = {}", r.payload_len)?;
    if opts.records {
        writeln!(out)?;
    }
    if payload.is_empty() {
        return Ok(());
    }
    match NvList::decode(payload) {
        Ok(list) => write!(out, "{}", list.tabbed()),
        Err(e) => writeln!(out, "the list cannot be read: {e}"),
    }
}

/// A record but BEGIN and END on a line.
fn line(record: &Record, payload: usize) -> String {
    match record {
        Record::Begin(_) | Record::End(_) => String::new(),
        Record::Object(r) => format!(
            "OBJECT object = {} type = {} bonustype = {} blksz = {} bonuslen = {} dn_slots = {} raw_bonuslen = {} \
             flags = {} maxblkid = {} indblkshift = {} nlevels = {} nblkptr = {}",
            r.object,
            r.object_type,
            r.bonus_type,
            r.block_size,
            r.bonus_len,
            r.dn_slots,
            r.raw_bonus_len,
            r.flags,
            r.max_block_id,
            r.indirect_shift,
            r.levels,
            r.block_pointers
        ),
        Record::FreeObjects(r) => format!("FREEOBJECTS firstobj = {} numobjs = {}", r.first, r.count),
        Record::Write(r) => format!(
            "WRITE object = {} type = {} checksum type = {} compression type = {} flags = {} offset = {} \
             logical_size = {} compressed_size = {} payload_size = {payload} props = {:x} {}",
            r.object,
            r.object_type,
            r.checksum_type,
            r.compression,
            r.flags,
            r.offset,
            r.logical_size,
            r.compressed_size,
            r.key_prop,
            crypt(&r.crypt)
        ),
        Record::WriteByRef(r) => format!(
            "WRITE_BYREF object = {} checksum type = {} props = {:x} offset = {} length = {} toguid = {:x} \
             refguid = {:x} refobject = {} refoffset = {}",
            r.to.object,
            r.checksum_type,
            r.key_prop,
            r.to.offset,
            r.to.length,
            r.to.to_guid.0,
            r.ref_guid.0,
            r.ref_object,
            r.ref_offset
        ),
        // OpenZFS prints the length of a FREE with a sign: to the end is -1.
        Record::Free(r) => {
            format!("FREE object = {} offset = {} length = {}", r.object, r.offset, r.length.cast_signed())
        }
        Record::Spill(r) => format!(
            "SPILL block for object = {} length = {} flags = {} compression type = {} compressed_size = {} \
             payload_size = {payload} {}",
            r.object,
            r.length,
            r.flags,
            r.compression,
            r.compressed_size,
            crypt(&r.crypt)
        ),
        Record::WriteEmbedded(r) => format!(
            "WRITE_EMBEDDED object = {} offset = {} length = {} toguid = {:x} comp = {} etype = {} lsize = {} \
             psize = {}",
            r.to.object,
            r.to.offset,
            r.to.length,
            r.to.to_guid.0,
            r.compression,
            r.embedded_type,
            r.logical_size,
            r.physical_size
        ),
        Record::ObjectRange(r) => format!(
            "OBJECT_RANGE firstobj = {} numslots = {} flags = {} {}",
            r.first,
            r.slots,
            r.flags,
            crypt(&r.crypt)
        ),
        Record::Redact(r) => format!("REDACT object = {} offset = {} length = {}", r.object, r.offset, r.length),
    }
}

fn crypt(c: &Crypt) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    format!("salt = {} iv = {} mac = {}", hex(&c.salt), hex(&c.iv), hex(&c.mac))
}

/// A payload in hexadecimal digits and characters.
fn block(out: &mut dyn Write, payload: &[u8]) -> std::io::Result<()> {
    for bytes in payload.chunks(LINE) {
        let gap = |i: usize| if i.is_multiple_of(GROUP) { " " } else { "" };
        let digits: String = bytes.iter().enumerate().map(|(i, b)| format!("{}{b:02x} ", gap(i))).collect();
        let printable = |b: u8| if b == b' ' || b.is_ascii_graphic() { char::from(b) } else { '.' };
        let text: String = bytes
            .iter()
            .enumerate()
            .map(|(i, b)| format!("{}{}", if i > 0 { gap(i) } else { "" }, printable(*b)))
            .collect();
        writeln!(out, "{digits:<width$}{text}", width = LINE * 3 + LINE / GROUP + 2)?;
    }
    Ok(())
}
