//! The data of options: bytes of the client into names and wishes.
//!
//! Everything here is a pure function over the data of one option. What does not parse is an error
//! with a sentence for the client (NBD protocol document, section "Option types": such options get
//! `NBD_REP_ERR_INVALID`). Unknown kinds of information and contexts of unknown namespaces are
//! ignored, as the document demands.

use crate::proto::{ALLOCATION, STRING_MAX, info};
use crate::wire::Fields;

/// Why an option does not parse.
pub(crate) type Bad = &'static str;

/// The data end before what they announce, or go on behind it.
const LENGTHS: Bad = "the lengths within the option do not add up to its length";

/// Whether `bytes` can be sent as a string (NBD protocol document, section "Conventions").
pub(crate) fn is_string(bytes: &[u8]) -> bool {
    bytes.len() <= STRING_MAX && !bytes.contains(&0) && std::str::from_utf8(bytes).is_ok()
}

/// A string of the client.
pub(crate) fn string(bytes: &[u8]) -> Result<String, Bad> {
    match std::str::from_utf8(bytes) {
        Ok(text) if is_string(bytes) => Ok(text.to_string()),
        _ => Err("a string must be at most 4096 bytes of UTF-8 without a NUL"),
    }
}

/// The data of `INFO` and `GO`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct InfoWish {
    /// Name of the export.
    pub(crate) name: String,
    /// Its proper name is wanted.
    pub(crate) wants_name: bool,
    /// Its description is wanted.
    pub(crate) wants_description: bool,
}

impl InfoWish {
    /// Parses the data of the option.
    pub(crate) fn parse(data: &[u8]) -> Result<InfoWish, Bad> {
        let mut f = Fields::new(data);
        let name = f.u32().and_then(|n| f.bytes(n)).ok_or(LENGTHS)?;
        let count = f.u16().ok_or(LENGTHS)?;
        if f.left() != usize::from(count) * 2 {
            return Err(LENGTHS);
        }
        let mut wish = InfoWish { name: string(name)?, wants_name: false, wants_description: false };
        while let Some(kind) = f.u16() {
            wish.wants_name |= kind == info::NAME;
            wish.wants_description |= kind == info::DESCRIPTION;
        }
        Ok(wish)
    }
}

/// The data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ContextWish {
    /// Name of the export.
    pub(crate) name: String,
    /// `base:allocation` is among the answers.
    pub(crate) allocation: bool,
}

impl ContextWish {
    /// Parses the data of an option; `set`: contexts are chosen, so that wildcards mean nothing.
    pub(crate) fn parse(data: &[u8], set: bool) -> Result<ContextWish, Bad> {
        let mut f = Fields::new(data);
        let name = f.u32().and_then(|n| f.bytes(n)).ok_or(LENGTHS)?;
        let count = f.u32().ok_or(LENGTHS)?;
        let mut wish = ContextWish { name: string(name)?, allocation: !set && count == 0 };
        for _ in 0..count {
            let query = string(f.u32().and_then(|n| f.bytes(n)).ok_or(LENGTHS)?)?;
            if !query.contains(':') {
                return Err("a query for metadata must begin with a namespace and a colon");
            }
            wish.allocation |= query == ALLOCATION || !set && query == "base:";
        }
        if f.left() == 0 { Ok(wish) } else { Err(LENGTHS) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Put;

    fn info_data(name: &[u8], kinds: &[u16]) -> Vec<u8> {
        let mut out = Vec::new();
        out.u32(name.len() as u32);
        out.raw(name);
        out.u16(kinds.len() as u16);
        kinds.iter().for_each(|k| out.u16(*k));
        out
    }

    fn context_data(name: &[u8], queries: &[&str]) -> Vec<u8> {
        let mut out = Vec::new();
        out.u32(name.len() as u32);
        out.raw(name);
        out.u32(queries.len() as u32);
        for q in queries {
            out.u32(q.len() as u32);
            out.raw(q.as_bytes());
        }
        out
    }

    #[test]
    fn wishes_for_information() {
        let table: [(&[u8], &[u16], bool, bool); 4] = [
            (b"", &[], false, false),
            (b"tank/vol", &[3], false, false),
            (b"a", &[1, 999, 2], true, true),
            ("\u{e4}".as_bytes(), &[2, 2], false, true),
        ];
        for (name, kinds, wants_name, wants_description) in table {
            let name_text = String::from_utf8(name.to_vec()).unwrap();
            let want = InfoWish { name: name_text, wants_name, wants_description };
            assert_eq!(InfoWish::parse(&info_data(name, kinds)), Ok(want));
        }
        let good = info_data(b"abc", &[1, 2]);
        for end in 0..good.len() {
            assert_eq!(InfoWish::parse(&good[..end]), Err(LENGTHS), "{end}");
        }
        assert!(InfoWish::parse(&[&good[..], &[0]].concat()).is_err());
        for name in [&b"a\0b"[..], &[0xff], &[b'a'; 4097]] {
            assert!(InfoWish::parse(&info_data(name, &[])).is_err());
        }
        assert!(InfoWish::parse(&info_data(&[b'a'; 4096], &[])).is_ok());
        assert_eq!(InfoWish::parse(&[0xff; 12]), Err(LENGTHS));
    }

    #[test]
    fn wishes_for_contexts() {
        let table: [(&[&str], bool, bool); 7] = [
            (&[], true, false),
            (&["base:allocation"], true, true),
            (&["base:"], true, false),
            (&["base:other"], false, false),
            (&["qemu:dirty-bitmap:x", "x-a:b"], false, false),
            (&["qemu:x", "base:allocation", "base:allocation"], true, true),
            (&["base:allocation", "base:"], true, true),
        ];
        for (queries, listed, set) in table {
            let data = context_data(b"v", queries);
            assert_eq!(ContextWish::parse(&data, false).unwrap().allocation, listed, "{queries:?}");
            assert_eq!(ContextWish::parse(&data, true).unwrap().allocation, set, "{queries:?}");
        }
        let good = context_data(b"abc", &["base:allocation", "x:y"]);
        for end in 0..good.len() {
            assert_eq!(ContextWish::parse(&good[..end], true), Err(LENGTHS), "{end}");
        }
        assert!(ContextWish::parse(&[&good[..], &[0]].concat(), true).is_err());
        assert!(ContextWish::parse(&context_data(b"v", &["base"]), true).is_err());
        assert!(ContextWish::parse(&context_data(b"v", &[""]), false).is_err());
    }
}
