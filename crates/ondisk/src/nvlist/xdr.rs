//! The XDR form (format page 01 section 3): big-endian, everything a multiple of 4 bytes, every
//! pair with its packed and its unpacked size.
//!
//! A pair is decoded from exactly the slice that its packed size gives it, so nothing inside can
//! read its neighbour, and it must use that slice up.

use base::{Error, Result};

use super::{
    LIST_STRUCT, MAX_DEPTH, MAX_NAME, NvList, NvValue, c_string, check_nelem, decoded_size, string_value, utf8,
};
use crate::bytes::{be32, be64, get};

/// A cursor over packed bytes; `base` is where `buf` starts in the whole input, for messages.
struct Reader<'a> {
    buf: &'a [u8],
    pos: usize,
    base: usize,
}

impl<'a> Reader<'a> {
    fn at(&self) -> usize {
        self.base + self.pos
    }
    fn left(&self) -> usize {
        self.buf.len() - self.pos
    }
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let s = get(self.buf, self.pos, n)
            .ok_or_else(|| Error::corrupt(format!("{n} bytes at offset {} reach past the end", self.at())))?;
        self.pos += n;
        Ok(s)
    }
    fn u32(&mut self) -> Result<u32> {
        Ok(be32(self.take(4)?, 0))
    }
    fn u64(&mut self) -> Result<u64> {
        Ok(be64(self.take(8)?, 0))
    }
    /// Bytes padded with anything up to a multiple of 4.
    fn opaque(&mut self, n: usize) -> Result<&'a [u8]> {
        let padded = n.checked_next_multiple_of(4).unwrap_or(usize::MAX);
        Ok(&self.take(padded)?[..n])
    }
    fn string(&mut self) -> Result<&'a [u8]> {
        let n = self.u32()? as usize;
        self.opaque(n)
    }
    /// The counter in front of an array's elements; it must repeat the pair's element count and fit
    /// in the rest.
    fn counted(&mut self, nelem: usize, width: usize) -> Result<()> {
        let at = self.at();
        let n = self.u32()? as usize;
        if n != nelem || n > self.left() / width {
            return Err(Error::corrupt(format!("array at offset {at} counts {n} elements, its pair {nelem}")));
        }
        Ok(())
    }
    fn array32<T>(&mut self, nelem: usize, f: impl Fn(u32) -> T) -> Result<Vec<T>> {
        self.counted(nelem, 4)?;
        (0..nelem).map(|_| self.u32().map(&f)).collect()
    }
    fn array64<T>(&mut self, nelem: usize, f: impl Fn(u64) -> T) -> Result<Vec<T>> {
        self.counted(nelem, 8)?;
        (0..nelem).map(|_| self.u64().map(&f)).collect()
    }
}

/// Unpacks; `packed` is at least 12 bytes long.
pub(super) fn decode(packed: &[u8]) -> Result<(NvList, usize)> {
    let mut r = Reader { buf: packed, pos: 4, base: 0 };
    let list = decode_list(&mut r, 0)?;
    Ok((list, r.pos))
}

fn decode_list(r: &mut Reader<'_>, depth: u32) -> Result<NvList> {
    if depth >= MAX_DEPTH {
        return Err(Error::corrupt(format!("lists at offset {} are nested more than {MAX_DEPTH} deep", r.at())));
    }
    let at = r.at();
    let version = r.u32()?;
    if version != 0 {
        return Err(Error::corrupt(format!("list at offset {at} has the unknown version {version}")));
    }
    let mut list = NvList { flags: r.u32()?, pairs: Vec::new() };
    loop {
        let at = r.at();
        let (packed, unpacked) = (r.u32()? as usize, r.u32()? as usize);
        if packed == 0 && unpacked == 0 {
            return Ok(list);
        }
        // The smallest pair: two sizes, an empty name's length, type, element count.
        if packed < 20 {
            return Err(Error::corrupt(format!("pair at offset {at} has the impossible size {packed}")));
        }
        let base = r.at();
        let mut p = Reader { buf: r.take(packed - 8)?, pos: 0, base };
        let name = p.string().and_then(|s| utf8(s, at)).map_err(|e| e.at(format!("pair at offset {at}")))?;
        if name.len() > MAX_NAME {
            return Err(Error::corrupt(format!("pair at offset {at} has a name of {} bytes", name.len())));
        }
        let value = decode_value(&mut p, depth).map_err(|e| e.at(format!("'{name}'")))?;
        if p.left() != 0 {
            return Err(Error::corrupt(format!(
                "'{name}' at offset {at} ends {} bytes before its size {packed}",
                p.left()
            )));
        }
        if decoded_size(name.len(), value.native_size()) > unpacked {
            return Err(Error::corrupt(format!(
                "'{name}' at offset {at} does not fit in its unpacked size {unpacked}"
            )));
        }
        list.pairs.push((name, value));
    }
}

fn decode_value(p: &mut Reader<'_>, depth: u32) -> Result<NvValue> {
    let at = p.at();
    let (kind, n) = (p.u32()?, p.u32()? as usize);
    check_nelem(kind, n, at)?;
    Ok(match kind {
        1 => NvValue::Boolean,
        2 => NvValue::Byte(p.u32()? as u8),
        3 => NvValue::Int16(p.u32()? as i16),
        4 => NvValue::Uint16(p.u32()? as u16),
        5 => NvValue::Int32(p.u32()? as i32),
        6 => NvValue::Uint32(p.u32()?),
        7 => NvValue::Int64(p.u64()? as i64),
        8 => NvValue::Uint64(p.u64()?),
        9 => string_value(p.string()?, at)?,
        10 => NvValue::ByteArray(p.opaque(n)?.to_vec()),
        11 => NvValue::Int16Array(p.array32(n, |v| v as i16)?),
        12 => NvValue::Uint16Array(p.array32(n, |v| v as u16)?),
        13 => NvValue::Int32Array(p.array32(n, |v| v as i32)?),
        14 => NvValue::Uint32Array(p.array32(n, |v| v)?),
        15 => NvValue::Int64Array(p.array64(n, |v| v as i64)?),
        16 => NvValue::Uint64Array(p.array64(n, |v| v)?),
        17 => {
            if n > p.left() / 4 {
                return Err(Error::corrupt(format!("{n} strings do not fit in {} bytes", p.left())));
            }
            NvValue::StringArray((0..n).map(|_| utf8(p.string()?, at)).collect::<Result<_>>()?)
        }
        18 => NvValue::Hrtime(p.u64()? as i64),
        19 => NvValue::List(decode_list(p, depth + 1)?),
        20 => {
            // The smallest list is its header and its end.
            if n > p.left() / 16 {
                return Err(Error::corrupt(format!("{n} lists do not fit in {} bytes", p.left())));
            }
            NvValue::ListArray((0..n).map(|_| decode_list(p, depth + 1)).collect::<Result<_>>()?)
        }
        21 => NvValue::BooleanValue(p.u32()? != 0),
        22 => NvValue::Int8(p.u32()? as i8),
        23 => NvValue::Uint8(p.u32()? as u8),
        24 => NvValue::BooleanArray(p.array32(n, |v| v != 0)?),
        25 => NvValue::Int8Array(p.array32(n, |v| v as i8)?),
        26 => NvValue::Uint8Array(p.array32(n, |v| v as u8)?),
        _ => NvValue::Double(p.u64()?),
    })
}

/// Packs.
pub(super) fn encode(list: &NvList) -> Vec<u8> {
    let mut out = vec![1, 1, 0, 0];
    encode_list(&mut out, list);
    out
}

fn put32(out: &mut Vec<u8>, v: u32) {
    out.extend_from_slice(&v.to_be_bytes());
}
fn put64(out: &mut Vec<u8>, v: u64) {
    out.extend_from_slice(&v.to_be_bytes());
}
fn put_opaque(out: &mut Vec<u8>, b: &[u8]) {
    out.extend_from_slice(b);
    out.resize(out.len().next_multiple_of(4), 0);
}
fn put_string(out: &mut Vec<u8>, s: &[u8]) {
    let s = c_string(s);
    put32(out, s.len() as u32);
    put_opaque(out, s);
}
fn put_array<T: Copy>(out: &mut Vec<u8>, a: &[T], f: impl Fn(&mut Vec<u8>, T)) {
    put32(out, a.len() as u32);
    for &v in a {
        f(out, v);
    }
}

// Every nested list and pair starts at a multiple of 4 from the start of `out`, so padding to the
// length of `out` is right.
fn encode_list(out: &mut Vec<u8>, list: &NvList) {
    put32(out, 0);
    put32(out, list.flags);
    for (name, value) in &list.pairs {
        let start = out.len();
        put64(out, 0);
        put_string(out, name.as_bytes());
        put32(out, value.type_id());
        put32(out, value.nelem() as u32);
        encode_value(out, value);
        let packed = (out.len() - start) as u32;
        let unpacked = decoded_size(c_string(name.as_bytes()).len(), value.native_size()) as u32;
        out[start..start + 4].copy_from_slice(&packed.to_be_bytes());
        out[start + 4..start + 8].copy_from_slice(&unpacked.to_be_bytes());
    }
    put64(out, 0);
}

fn encode_value(out: &mut Vec<u8>, value: &NvValue) {
    match value {
        NvValue::Boolean => {}
        NvValue::Byte(v) | NvValue::Uint8(v) => put32(out, u32::from(*v)),
        NvValue::Int8(v) => put32(out, *v as u32),
        NvValue::Int16(v) => put32(out, *v as u32),
        NvValue::Uint16(v) => put32(out, u32::from(*v)),
        NvValue::Int32(v) => put32(out, *v as u32),
        NvValue::Uint32(v) => put32(out, *v),
        NvValue::BooleanValue(v) => put32(out, u32::from(*v)),
        NvValue::Int64(v) | NvValue::Hrtime(v) => put64(out, *v as u64),
        NvValue::Uint64(v) | NvValue::Double(v) => put64(out, *v),
        NvValue::String(s) => put_string(out, s.as_bytes()),
        NvValue::RawString(s) => put_string(out, s),
        NvValue::ByteArray(a) => put_opaque(out, a),
        NvValue::Int8Array(a) => put_array(out, a, |o, v| put32(o, v as u32)),
        NvValue::Uint8Array(a) => put_array(out, a, |o, v| put32(o, u32::from(v))),
        NvValue::BooleanArray(a) => put_array(out, a, |o, v| put32(o, u32::from(v))),
        NvValue::Int16Array(a) => put_array(out, a, |o, v| put32(o, v as u32)),
        NvValue::Uint16Array(a) => put_array(out, a, |o, v| put32(o, u32::from(v))),
        NvValue::Int32Array(a) => put_array(out, a, |o, v| put32(o, v as u32)),
        NvValue::Uint32Array(a) => put_array(out, a, put32),
        NvValue::Int64Array(a) => put_array(out, a, |o, v| put64(o, v as u64)),
        NvValue::Uint64Array(a) => put_array(out, a, put64),
        NvValue::StringArray(a) => a.iter().for_each(|s| put_string(out, s.as_bytes())),
        NvValue::List(l) => encode_list(out, l),
        NvValue::ListArray(a) => a.iter().for_each(|l| encode_list(out, l)),
    }
}

const _: () = assert!(LIST_STRUCT.is_multiple_of(8), "lists keep the native layout aligned");
