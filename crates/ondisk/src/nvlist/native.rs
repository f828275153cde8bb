//! The native form (format page 01 section 3): the C structures as they lie in memory, pointers
//! zeroed, in the writer's byte order.
//!
//! A pair is `{i32 size, i16 name size with NUL, i16 0, i32 elements, i32 type}`, the name, zeros
//! up to a multiple of 8, the value, zeros again. Nested lists leave a 24-byte structure as value;
//! their pairs follow the pair that holds them. A list ends with an i32 0.

use base::{Error, Result};

use super::{
    LIST_STRUCT, MAX_DEPTH, MAX_NAME, NvList, NvValue, c_string, check_nelem, decoded_size, string_value, utf8,
};
use crate::bytes::get;

struct Reader<'a> {
    buf: &'a [u8],
    pos: usize,
    big: bool,
}

/// A value's bytes within one pair; `at` is where they start in the whole input.
#[derive(Clone, Copy)]
struct Value<'a> {
    buf: &'a [u8],
    at: usize,
    big: bool,
}

fn int<const N: usize>(b: &[u8], big: bool) -> u64 {
    let mut w = [0u8; 8];
    if big {
        w[8 - N..].copy_from_slice(&b[..N]);
        u64::from_be_bytes(w)
    } else {
        w[..N].copy_from_slice(&b[..N]);
        u64::from_le_bytes(w)
    }
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let s = get(self.buf, self.pos, n)
            .ok_or_else(|| Error::corrupt(format!("{n} bytes at offset {} reach past the end", self.pos)))?;
        self.pos += n;
        Ok(s)
    }
    fn u32(&mut self) -> Result<u32> {
        let big = self.big;
        Ok(int::<4>(self.take(4)?, big) as u32)
    }
}

impl<'a> Value<'a> {
    fn take(&self, off: usize, n: usize) -> Result<&'a [u8]> {
        get(self.buf, off, n)
            .ok_or_else(|| Error::corrupt(format!("value at offset {} is longer than its pair", self.at)))
    }
    fn scalar<const N: usize>(&self) -> Result<u64> {
        Ok(int::<N>(self.take(0, N)?, self.big))
    }
    fn array<const N: usize, T>(&self, n: usize, f: impl Fn(u64) -> T) -> Result<Vec<T>> {
        let bytes = self.take(0, n.saturating_mul(N))?;
        Ok(bytes.chunks_exact(N).map(|c| f(int::<N>(c, self.big))).collect())
    }
    /// The NUL-terminated string at `off`.
    fn string(&self, off: usize) -> Result<&'a [u8]> {
        let rest = self.buf.get(off..).unwrap_or(&[]);
        let end = rest.iter().position(|&b| b == 0);
        end.map(|e| &rest[..e])
            .ok_or_else(|| Error::corrupt(format!("string at offset {} does not end in its pair", self.at + off)))
    }
}

/// Unpacks; `packed` is at least 12 bytes long.
pub(super) fn decode(packed: &[u8], big: bool) -> Result<(NvList, usize)> {
    let mut r = Reader { buf: packed, pos: 4, big };
    let version = r.u32()?;
    let flags = r.u32()?;
    let list = decode_pairs(&mut r, version, flags, 0)?;
    Ok((list, r.pos))
}

fn decode_pairs(r: &mut Reader<'_>, version: u32, flags: u32, depth: u32) -> Result<NvList> {
    if depth >= MAX_DEPTH {
        return Err(Error::corrupt(format!("lists at offset {} are nested more than {MAX_DEPTH} deep", r.pos)));
    }
    if version != 0 {
        return Err(Error::corrupt(format!("list at offset {} has the unknown version {version}", r.pos)));
    }
    let mut list = NvList { flags, pairs: Vec::new() };
    loop {
        let at = r.pos;
        let size = r.u32()? as usize;
        if size == 0 {
            return Ok(list);
        }
        if size < 24 || !size.is_multiple_of(8) || size > i32::MAX as usize {
            return Err(Error::corrupt(format!("pair at offset {at} has the impossible size {size}")));
        }
        r.pos = at;
        let pair = r.take(size)?;
        let name_size = int::<2>(&pair[4..], r.big) as usize;
        let nelem = int::<4>(&pair[8..], r.big) as usize;
        let kind = int::<4>(&pair[12..], r.big) as u32;
        let name = match get(pair, 16, name_size) {
            Some([name @ .., 0]) if name.len() <= MAX_NAME => {
                utf8(name, at + 16).map_err(|e| e.at(format!("pair at offset {at}")))?
            }
            _ => return Err(Error::corrupt(format!("pair at offset {at} has a name that does not end"))),
        };
        let start = (16 + name_size).next_multiple_of(8);
        let value = Value { buf: pair.get(start..).unwrap_or(&[]), at: at + start, big: r.big };
        let value = check_nelem(kind, nelem, at)
            .and_then(|()| decode_value(r, value, kind, nelem, depth))
            .map_err(|e| e.at(format!("'{name}'")))?;
        list.pairs.push((name, value));
    }
}

fn decode_value(r: &mut Reader<'_>, v: Value<'_>, kind: u32, n: usize, depth: u32) -> Result<NvValue> {
    Ok(match kind {
        1 => NvValue::Boolean,
        2 => NvValue::Byte(v.scalar::<1>()? as u8),
        3 => NvValue::Int16(v.scalar::<2>()? as i16),
        4 => NvValue::Uint16(v.scalar::<2>()? as u16),
        5 => NvValue::Int32(v.scalar::<4>()? as i32),
        6 => NvValue::Uint32(v.scalar::<4>()? as u32),
        7 => NvValue::Int64(v.scalar::<8>()? as i64),
        8 => NvValue::Uint64(v.scalar::<8>()?),
        9 => string_value(v.string(0)?, v.at)?,
        10 => NvValue::ByteArray(v.take(0, n)?.to_vec()),
        11 => NvValue::Int16Array(v.array::<2, _>(n, |x| x as i16)?),
        12 => NvValue::Uint16Array(v.array::<2, _>(n, |x| x as u16)?),
        13 => NvValue::Int32Array(v.array::<4, _>(n, |x| x as i32)?),
        14 => NvValue::Uint32Array(v.array::<4, _>(n, |x| x as u32)?),
        15 => NvValue::Int64Array(v.array::<8, _>(n, |x| x as i64)?),
        16 => NvValue::Uint64Array(v.array::<8, _>(n, |x| x)?),
        17 => {
            let mut off = v.take(0, n.saturating_mul(8))?.len();
            let mut strings = Vec::with_capacity(n);
            for _ in 0..n {
                let s = v.string(off)?;
                strings.push(utf8(s, v.at + off)?);
                off += s.len() + 1;
            }
            NvValue::StringArray(strings)
        }
        18 => NvValue::Hrtime(v.scalar::<8>()? as i64),
        19 => NvValue::List(decode_child(r, v.take(0, LIST_STRUCT)?, depth)?),
        20 => {
            let structs = v.take(n.saturating_mul(8), n.saturating_mul(LIST_STRUCT))?;
            let children = structs.chunks_exact(LIST_STRUCT).map(|s| decode_child(r, s, depth));
            NvValue::ListArray(children.collect::<Result<_>>()?)
        }
        21 => NvValue::BooleanValue(v.scalar::<4>()? != 0),
        22 => NvValue::Int8(v.scalar::<1>()? as i8),
        23 => NvValue::Uint8(v.scalar::<1>()? as u8),
        24 => NvValue::BooleanArray(v.array::<4, _>(n, |x| x != 0)?),
        25 => NvValue::Int8Array(v.array::<1, _>(n, |x| x as i8)?),
        26 => NvValue::Uint8Array(v.take(0, n)?.to_vec()),
        _ => NvValue::Double(v.scalar::<8>()?),
    })
}

/// A nested list: its version and flags stand in the pair, its pairs at the reader's position.
fn decode_child(r: &mut Reader<'_>, header: &[u8], depth: u32) -> Result<NvList> {
    let (version, flags) = (int::<4>(header, r.big) as u32, int::<4>(&header[4..], r.big) as u32);
    decode_pairs(r, version, flags, depth + 1)
}

/// Packs as a little-endian host does.
pub(super) fn encode(list: &NvList) -> Vec<u8> {
    let mut out = vec![0, 1, 0, 0, 0, 0, 0, 0];
    out.extend_from_slice(&list.flags.to_le_bytes());
    encode_pairs(&mut out, list);
    out
}

fn encode_pairs(out: &mut Vec<u8>, list: &NvList) {
    for (name, value) in &list.pairs {
        let name = c_string(name.as_bytes());
        assert!(name.len() <= MAX_NAME, "nvlist names are short");
        let start = out.len();
        let size = decoded_size(name.len(), value.native_size());
        out.extend_from_slice(&(size as u32).to_le_bytes());
        out.extend_from_slice(&((name.len() + 1) as u16).to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&(value.nelem() as u32).to_le_bytes());
        out.extend_from_slice(&value.type_id().to_le_bytes());
        out.extend_from_slice(name);
        out.resize(start + (16 + name.len() + 1).next_multiple_of(8), 0);
        encode_value(out, value);
        out.resize(start + size, 0);
        match value {
            NvValue::List(l) => encode_pairs(out, l),
            NvValue::ListArray(a) => a.iter().for_each(|l| encode_pairs(out, l)),
            _ => {}
        }
    }
    out.extend_from_slice(&[0; 4]);
}

fn put_list_struct(out: &mut Vec<u8>, list: &NvList) {
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&list.flags.to_le_bytes());
    out.extend_from_slice(&[0; 16]);
}

fn encode_value(out: &mut Vec<u8>, value: &NvValue) {
    macro_rules! all {
        ($a:expr) => {
            $a.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes()))
        };
    }
    match value {
        NvValue::Boolean => {}
        NvValue::Byte(v) | NvValue::Uint8(v) => out.push(*v),
        NvValue::Int8(v) => out.push(*v as u8),
        NvValue::Int16(v) => out.extend_from_slice(&v.to_le_bytes()),
        NvValue::Uint16(v) => out.extend_from_slice(&v.to_le_bytes()),
        NvValue::Int32(v) => out.extend_from_slice(&v.to_le_bytes()),
        NvValue::Uint32(v) => out.extend_from_slice(&v.to_le_bytes()),
        NvValue::BooleanValue(v) => out.extend_from_slice(&u32::from(*v).to_le_bytes()),
        NvValue::Int64(v) | NvValue::Hrtime(v) => out.extend_from_slice(&v.to_le_bytes()),
        NvValue::Uint64(v) | NvValue::Double(v) => out.extend_from_slice(&v.to_le_bytes()),
        NvValue::String(s) => out.extend_from_slice(c_string(s.as_bytes())),
        NvValue::RawString(s) => out.extend_from_slice(c_string(s)),
        NvValue::ByteArray(a) | NvValue::Uint8Array(a) => out.extend_from_slice(a),
        NvValue::Int8Array(a) => all!(a),
        NvValue::BooleanArray(a) => a.iter().for_each(|&v| out.extend_from_slice(&u32::from(v).to_le_bytes())),
        NvValue::Int16Array(a) => all!(a),
        NvValue::Uint16Array(a) => all!(a),
        NvValue::Int32Array(a) => all!(a),
        NvValue::Uint32Array(a) => all!(a),
        NvValue::Int64Array(a) => all!(a),
        NvValue::Uint64Array(a) => all!(a),
        NvValue::StringArray(a) => {
            out.resize(out.len() + 8 * a.len(), 0);
            for s in a {
                out.extend_from_slice(c_string(s.as_bytes()));
                out.push(0);
            }
        }
        NvValue::List(l) => put_list_struct(out, l),
        NvValue::ListArray(a) => {
            out.resize(out.len() + 8 * a.len(), 0);
            a.iter().for_each(|l| put_list_struct(out, l));
        }
    }
}
