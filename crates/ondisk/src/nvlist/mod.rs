//! Name-value lists: the self-describing records of labels, the pool's configuration, its history
//! and send streams.
//!
//! An *nvlist* is an ordered list of *pairs*: a name, one of 27 types, a value. Values may be
//! nvlists again. Two packed forms exist on disk (format page 01 section 3): *XDR* (big-endian,
//! 4-byte units: labels, the configuration object) and *native* (the writer's byte order and
//! structure layout: history records). [`NvList::decode`] tells them apart by the first header byte
//! and reads either in both byte orders; [`NvList::encode_xdr`] and [`NvList::encode_native`] write
//! them as a little-endian host does. Order is kept, so a list that OpenZFS packed and weir
//! unpacked packs to the same bytes again.
//!
//! Packed bytes are hostile. Every size is checked against the rest of the input before it is used,
//! nesting ends at [`MAX_DEPTH`], no allocation is larger than a small multiple of the input, and
//! errors name the key and offset.
//!
//! Names are unique by convention (flag 1). Lists that break it decode, and a look-up gives the
//! first; [`NvList::put`] replaces.

mod native;
mod print;
mod xdr;

use base::{Error, ErrorKind, Result};

/// Deepest nesting of lists that is read: real configurations stay below 8, the kernel refuses more
/// than 20.
pub const MAX_DEPTH: u32 = 32;
/// Largest packed list that is read, in bytes: far above any that real code writes.
pub const MAX_PACKED: usize = 64 << 20;
/// Longest name, in bytes: the limit of the native form's 16-bit name size.
pub const MAX_NAME: usize = i16::MAX as usize - 1;
/// The flag of a list whose names are unique (`NV_UNIQUE_NAME`, format page 01 section 3).
pub const UNIQUE_NAME: u32 = 1;

/// An ordered list of named, typed values.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NvList {
    flags: u32,
    pairs: Vec<(String, NvValue)>,
}

/// A value: the 27 types of format page 01 section 3, and [`NvValue::RawString`] for strings that
/// are not UTF-8.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NvValue {
    /// Type 1: its presence is the value.
    Boolean,
    /// Type 2.
    Byte(u8),
    /// Type 3.
    Int16(i16),
    /// Type 4.
    Uint16(u16),
    /// Type 5.
    Int32(i32),
    /// Type 6.
    Uint32(u32),
    /// Type 7.
    Int64(i64),
    /// Type 8, by far the most common.
    Uint64(u64),
    /// Type 9. Ends at its first NUL when it is packed.
    String(String),
    /// Type 9, bytes that are not UTF-8. Never contains a NUL when it was decoded.
    RawString(Vec<u8>),
    /// Type 10.
    ByteArray(Vec<u8>),
    /// Type 11.
    Int16Array(Vec<i16>),
    /// Type 12.
    Uint16Array(Vec<u16>),
    /// Type 13.
    Int32Array(Vec<i32>),
    /// Type 14.
    Uint32Array(Vec<u32>),
    /// Type 15.
    Int64Array(Vec<i64>),
    /// Type 16.
    Uint64Array(Vec<u64>),
    /// Type 17.
    StringArray(Vec<String>),
    /// Type 18: nanoseconds.
    Hrtime(i64),
    /// Type 19.
    List(NvList),
    /// Type 20.
    ListArray(Vec<NvList>),
    /// Type 21: true or false, unlike [`NvValue::Boolean`].
    BooleanValue(bool),
    /// Type 22.
    Int8(i8),
    /// Type 23.
    Uint8(u8),
    /// Type 24.
    BooleanArray(Vec<bool>),
    /// Type 25.
    Int8Array(Vec<i8>),
    /// Type 26.
    Uint8Array(Vec<u8>),
    /// Type 27: the bits of an IEEE double, see [`f64::from_bits`].
    Double(u64),
}

impl NvValue {
    /// The type's number on disk, 1 to 27.
    pub fn type_id(&self) -> u32 {
        match self {
            NvValue::Boolean => 1,
            NvValue::Byte(_) => 2,
            NvValue::Int16(_) => 3,
            NvValue::Uint16(_) => 4,
            NvValue::Int32(_) => 5,
            NvValue::Uint32(_) => 6,
            NvValue::Int64(_) => 7,
            NvValue::Uint64(_) => 8,
            NvValue::String(_) | NvValue::RawString(_) => 9,
            NvValue::ByteArray(_) => 10,
            NvValue::Int16Array(_) => 11,
            NvValue::Uint16Array(_) => 12,
            NvValue::Int32Array(_) => 13,
            NvValue::Uint32Array(_) => 14,
            NvValue::Int64Array(_) => 15,
            NvValue::Uint64Array(_) => 16,
            NvValue::StringArray(_) => 17,
            NvValue::Hrtime(_) => 18,
            NvValue::List(_) => 19,
            NvValue::ListArray(_) => 20,
            NvValue::BooleanValue(_) => 21,
            NvValue::Int8(_) => 22,
            NvValue::Uint8(_) => 23,
            NvValue::BooleanArray(_) => 24,
            NvValue::Int8Array(_) => 25,
            NvValue::Uint8Array(_) => 26,
            NvValue::Double(_) => 27,
        }
    }

    /// The number of elements as the packed pair states it: 0 for a presence, 1 for a scalar, the
    /// length of an array.
    fn nelem(&self) -> usize {
        match self {
            NvValue::Boolean => 0,
            NvValue::ByteArray(a) | NvValue::Uint8Array(a) => a.len(),
            NvValue::Int16Array(a) => a.len(),
            NvValue::Uint16Array(a) => a.len(),
            NvValue::Int32Array(a) => a.len(),
            NvValue::Uint32Array(a) => a.len(),
            NvValue::Int64Array(a) => a.len(),
            NvValue::Uint64Array(a) => a.len(),
            NvValue::StringArray(a) => a.len(),
            NvValue::ListArray(a) => a.len(),
            NvValue::BooleanArray(a) => a.len(),
            NvValue::Int8Array(a) => a.len(),
            _ => 1,
        }
    }

    /// Bytes that the value occupies in the native layout, before rounding up to 8 (format page 01
    /// section 3).
    fn native_size(&self) -> usize {
        match self {
            NvValue::Boolean => 0,
            NvValue::Byte(_) | NvValue::Int8(_) | NvValue::Uint8(_) => 1,
            NvValue::Int16(_) | NvValue::Uint16(_) => 2,
            NvValue::Int32(_) | NvValue::Uint32(_) | NvValue::BooleanValue(_) => 4,
            NvValue::Int64(_) | NvValue::Uint64(_) | NvValue::Hrtime(_) | NvValue::Double(_) => 8,
            NvValue::String(s) => c_string(s.as_bytes()).len() + 1,
            NvValue::RawString(s) => c_string(s).len() + 1,
            NvValue::ByteArray(a) | NvValue::Uint8Array(a) => a.len(),
            NvValue::Int8Array(a) => a.len(),
            NvValue::Int16Array(a) => 2 * a.len(),
            NvValue::Uint16Array(a) => 2 * a.len(),
            NvValue::Int32Array(a) => 4 * a.len(),
            NvValue::Uint32Array(a) => 4 * a.len(),
            NvValue::BooleanArray(a) => 4 * a.len(),
            NvValue::Int64Array(a) => 8 * a.len(),
            NvValue::Uint64Array(a) => 8 * a.len(),
            NvValue::StringArray(a) => 8 * a.len() + a.iter().map(|s| c_string(s.as_bytes()).len() + 1).sum::<usize>(),
            NvValue::List(_) => LIST_STRUCT,
            NvValue::ListArray(a) => (8 + LIST_STRUCT) * a.len(),
        }
    }

    /// The value as any integer type, widened.
    pub fn as_integer(&self) -> Option<i128> {
        Some(match self {
            NvValue::Byte(v) | NvValue::Uint8(v) => i128::from(*v),
            NvValue::Int8(v) => i128::from(*v),
            NvValue::Int16(v) => i128::from(*v),
            NvValue::Uint16(v) => i128::from(*v),
            NvValue::Int32(v) => i128::from(*v),
            NvValue::Uint32(v) => i128::from(*v),
            NvValue::Int64(v) | NvValue::Hrtime(v) => i128::from(*v),
            NvValue::Uint64(v) => i128::from(*v),
            _ => return None,
        })
    }
}

/// Size of an nvlist as a value in the native layout, in bytes (format page 01 section 3).
const LIST_STRUCT: usize = 24;

/// The size of a pair as unpackers count it: fixed part, name with NUL, value, each rounded up
/// to 8.
fn decoded_size(name_len: usize, value_size: usize) -> usize {
    (16 + name_len + 1).next_multiple_of(8) + value_size.next_multiple_of(8)
}

/// A string as C sees it: up to its first NUL.
fn c_string(s: &[u8]) -> &[u8] {
    &s[..s.iter().position(|&b| b == 0).unwrap_or(s.len())]
}

/// A decoded string value; strings with a NUL inside cannot exist in either packed form's C
/// original.
fn string_value(bytes: &[u8], at: usize) -> Result<NvValue> {
    if bytes.contains(&0) {
        return Err(Error::corrupt(format!("string at offset {at} has a NUL inside")));
    }
    Ok(match std::str::from_utf8(bytes) {
        Ok(s) => NvValue::String(s.to_owned()),
        Err(_) => NvValue::RawString(bytes.to_vec()),
    })
}

/// A decoded string that must be UTF-8: names, and elements of string arrays.
fn utf8(bytes: &[u8], at: usize) -> Result<String> {
    match string_value(bytes, at)? {
        NvValue::String(s) => Ok(s),
        _ => Err(Error::corrupt(format!("name or array string at offset {at} is not UTF-8"))),
    }
}

/// Checks the number of elements against the type's, if that is fixed.
fn check_nelem(type_id: u32, nelem: usize, at: usize) -> Result<()> {
    let want = match type_id {
        1 => 0,
        2..=9 | 18 | 19 | 21..=23 | 27 => 1,
        10..=17 | 20 | 24..=26 => return Ok(()),
        _ => return Err(Error::corrupt(format!("pair at offset {at} has the unknown type {type_id}"))),
    };
    if nelem != want {
        return Err(Error::corrupt(format!(
            "pair at offset {at} of type {type_id} has {nelem} elements instead of {want}"
        )));
    }
    Ok(())
}

impl Default for NvList {
    fn default() -> Self {
        NvList::new()
    }
}

impl NvList {
    /// An empty list with unique names.
    pub fn new() -> NvList {
        NvList { flags: UNIQUE_NAME, pairs: Vec::new() }
    }
    /// The flags as packed; [`UNIQUE_NAME`] on every list that real code writes.
    pub fn flags(&self) -> u32 {
        self.flags
    }
    /// The number of pairs.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }
    /// Whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }
    /// The pairs in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &NvValue)> {
        self.pairs.iter().map(|(n, v)| (n.as_str(), v))
    }
    /// The names in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.pairs.iter().map(|(n, _)| n.as_str())
    }

    /// Unpacks a list in either form and byte order. Bytes after its end are ignored (labels are
    /// padded with zeros).
    pub fn decode(packed: &[u8]) -> Result<NvList> {
        Ok(NvList::decode_prefix(packed)?.0)
    }
    /// As [`NvList::decode`], and the number of bytes that the list occupied.
    pub fn decode_prefix(packed: &[u8]) -> Result<(NvList, usize)> {
        if packed.len() < 12 {
            return Err(Error::corrupt(format!("packed nvlist of {} bytes is shorter than its header", packed.len())));
        }
        if packed.len() > MAX_PACKED {
            return Err(Error::new(
                ErrorKind::TooBig,
                format!("packed nvlist of {} bytes is larger than {MAX_PACKED}", packed.len()),
            ));
        }
        let decoded = match (packed[0], packed[1]) {
            (0, 0) => native::decode(packed, true),
            (0, 1) => native::decode(packed, false),
            (1, 0 | 1) => xdr::decode(packed),
            (e, o) => Err(Error::corrupt(format!("unknown encoding {e} with byte order {o}"))),
        };
        decoded.map_err(|e| e.at("nvlist"))
    }
    /// Packs in XDR form, the form of labels and configuration objects.
    pub fn encode_xdr(&self) -> Vec<u8> {
        xdr::encode(self)
    }
    /// Packs in native form of a little-endian host, the form of history records.
    pub fn encode_native(&self) -> Vec<u8> {
        native::encode(self)
    }

    /// The value of `name`, the first if there are several.
    pub fn get(&self, name: &str) -> Option<&NvValue> {
        self.pairs.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }
    /// Whether `name` is there with any type.
    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }
    /// Sets `name`, in place if it is there and at the end otherwise.
    pub fn put(&mut self, name: &str, value: NvValue) {
        match self.pairs.iter_mut().find(|(n, _)| n == name) {
            Some((_, v)) => *v = value,
            None => self.pairs.push((name.to_owned(), value)),
        }
    }
    /// Appends without looking for `name`: for long lists; the caller guarantees that the name is
    /// new.
    pub fn push(&mut self, name: impl Into<String>, value: NvValue) {
        self.pairs.push((name.into(), value));
    }
    /// [`NvList::put`] for building in one expression.
    pub fn with(mut self, name: &str, value: NvValue) -> NvList {
        self.put(name, value);
        self
    }
    /// Removes `name` and gives its value.
    pub fn remove(&mut self, name: &str) -> Option<NvValue> {
        let i = self.pairs.iter().position(|(n, _)| n == name)?;
        Some(self.pairs.remove(i).1)
    }

    /// Whether `name` is present as type 1, or is a true [`NvValue::BooleanValue`].
    pub fn bool_flag(&self, name: &str) -> bool {
        matches!(self.get(name), Some(NvValue::Boolean | NvValue::BooleanValue(true)))
    }
    /// Any integer type, widened.
    pub fn integer(&self, name: &str) -> Option<i128> {
        self.get(name)?.as_integer()
    }
    /// Sets the presence `name` (type 1).
    pub fn put_flag(&mut self, name: &str) {
        self.put(name, NvValue::Boolean);
    }
    /// [`NvList::put_flag`] for building in one expression.
    pub fn with_flag(self, name: &str) -> NvList {
        self.with(name, NvValue::Boolean)
    }

    /// An error that names the key: absent, or there with another type than `want`.
    fn missing(&self, name: &str, want: &str) -> Error {
        match self.get(name) {
            None => Error::corrupt(format!("nvlist has no key '{name}' ({want})")),
            Some(v) => Error::corrupt(format!("nvlist key '{name}' has type {} instead of {want}", v.type_id())),
        }
    }
}

macro_rules! typed {
    ($($get:ident $require:ident $put:ident $with:ident $variant:ident $ref:ty, $arg:ty, |$v:ident| $conv:expr, |$a:ident| $own:expr, $what:literal;)*) => {
        impl NvList {$(
            #[doc = concat!("The value of `name` if it is ", $what, ".")]
            pub fn $get(&self, name: &str) -> Option<$ref> {
                match self.get(name) { Some(NvValue::$variant($v)) => Some($conv), _ => None }
            }
            #[doc = concat!("The value of `name`; an error that names it if it is not ", $what, ".")]
            pub fn $require(&self, name: &str) -> Result<$ref> {
                self.$get(name).ok_or_else(|| self.missing(name, $what))
            }
            #[doc = concat!("Sets `name` to ", $what, ", in place or at the end.")]
            pub fn $put(&mut self, name: &str, $a: $arg) {
                self.put(name, NvValue::$variant($own));
            }
            #[doc = concat!("As `", stringify!($put), "`, for building in one expression.")]
            pub fn $with(mut self, name: &str, value: $arg) -> NvList {
                self.$put(name, value);
                self
            }
        )*}
    };
}

typed! {
    u64 require_u64 put_u64 with_u64 Uint64 u64, u64, |v| *v, |a| a, "a uint64";
    i64 require_i64 put_i64 with_i64 Int64 i64, i64, |v| *v, |a| a, "an int64";
    u32 require_u32 put_u32 with_u32 Uint32 u32, u32, |v| *v, |a| a, "a uint32";
    i32 require_i32 put_i32 with_i32 Int32 i32, i32, |v| *v, |a| a, "an int32";
    bool_value require_bool_value put_bool_value with_bool_value BooleanValue bool, bool, |v| *v, |a| a, "a boolean value";
    str require_str put_str with_str String &str, impl Into<String>, |v| v.as_str(), |a| a.into(), "a UTF-8 string";
    list require_list put_list with_list List &NvList, NvList, |v| v, |a| a, "an nvlist";
    lists require_lists put_lists with_lists ListArray &[NvList], Vec<NvList>, |v| v.as_slice(), |a| a, "an nvlist array";
    u64s require_u64s put_u64s with_u64s Uint64Array &[u64], Vec<u64>, |v| v.as_slice(), |a| a, "a uint64 array";
    strs require_strs put_strs with_strs StringArray &[String], Vec<String>, |v| v.as_slice(), |a| a, "a string array";
    bytes require_bytes put_bytes with_bytes Uint8Array &[u8], Vec<u8>, |v| v.as_slice(), |a| a, "a uint8 array";
}

impl IntoIterator for NvList {
    type Item = (String, NvValue);
    type IntoIter = std::vec::IntoIter<(String, NvValue)>;
    fn into_iter(self) -> Self::IntoIter {
        self.pairs.into_iter()
    }
}

impl FromIterator<(String, NvValue)> for NvList {
    /// Collects pairs; the caller guarantees that their names differ.
    fn from_iter<I: IntoIterator<Item = (String, NvValue)>>(pairs: I) -> NvList {
        NvList { flags: UNIQUE_NAME, pairs: pairs.into_iter().collect() }
    }
}
