//! Answers to options: every one is a header, which repeats the option, and data.
//!
//! Layouts: NBD protocol document, section "Option reply types". An option gets any number of
//! answers and then a last one, which is `ACK` or an error; only `EXPORT_NAME` has an answer of its
//! own shape. An error has a sentence for the client's user.

use base::{Error, ErrorKind};

use crate::export::Export;
use crate::proto::{
    ALLOCATION, EXPORT_NAME_ZEROES, GREETING_MAGIC, LIST_MAX, OPTION_MAGIC, OPTION_REPLY_MAGIC, STRING_MAX, hello,
    info, opt, rep,
};
use crate::wire::{Put, cut};

/// An export in the answer to `LIST`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// The name to ask for it.
    pub name: String,
    /// A text for humans, or nothing.
    pub description: String,
}

/// The greeting, with which the server begins (section "Newstyle negotiation").
pub(crate) fn greeting(out: &mut Vec<u8>) {
    out.u64(GREETING_MAGIC);
    out.u64(OPTION_MAGIC);
    out.u16(hello::FIXED_NEWSTYLE | hello::NO_ZEROES);
}

/// One answer: `kind` is one of [`rep`], `parts` its data.
fn answer(out: &mut Vec<u8>, option: u32, kind: u32, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|p| p.len()).sum();
    out.u64(OPTION_REPLY_MAGIC);
    out.u32(option);
    out.u32(kind);
    // Strings are bounded, so that an answer is shorter than 16 KiB.
    out.u32(length as u32);
    parts.iter().for_each(|part| out.raw(part));
}

/// The last answer to an option that was carried out.
pub(crate) fn ack(out: &mut Vec<u8>, option: u32) {
    answer(out, option, rep::ACK, &[]);
}

/// The last answer to an option that was not.
pub(crate) fn refuse(out: &mut Vec<u8>, option: u32, kind: u32, why: &str) {
    answer(out, option, kind, &[cut(why, STRING_MAX).as_bytes()]);
}

/// The type of answer for an error of the caller.
pub(crate) fn kind_of(error: &Error) -> u32 {
    match error.kind() {
        ErrorKind::NotFound => rep::ERR_UNKNOWN,
        ErrorKind::Interrupted => rep::ERR_SHUTDOWN,
        _ => rep::ERR_POLICY,
    }
}

/// The answer to `EXPORT_NAME`.
pub(crate) fn chosen(out: &mut Vec<u8>, export: &Export, structured: bool, no_zeroes: bool) {
    out.u64(export.size_bytes);
    out.u16(export.flags(structured));
    if !no_zeroes {
        out.raw(&[0; EXPORT_NAME_ZEROES]);
    }
}

/// The answers to `INFO` and `GO`. Sizes of blocks go out unasked: they hold in any case.
pub(crate) fn described(out: &mut Vec<u8>, option: u32, export: &Export, structured: bool, name: bool, text: bool) {
    let (size, flags) = (export.size_bytes.to_be_bytes(), export.flags(structured).to_be_bytes());
    answer(out, option, rep::INFO, &[&info::EXPORT.to_be_bytes(), &size, &flags]);
    if name {
        answer(out, option, rep::INFO, &[&info::NAME.to_be_bytes(), export.name.as_bytes()]);
    }
    if text && !export.description.is_empty() {
        answer(out, option, rep::INFO, &[&info::DESCRIPTION.to_be_bytes(), export.description.as_bytes()]);
    }
    let [min, preferred, max] = [export.block_min, export.block_preferred, export.block_max].map(u32::to_be_bytes);
    answer(out, option, rep::INFO, &[&info::BLOCK_SIZE.to_be_bytes(), &min, &preferred, &max]);
    ack(out, option);
}

/// The answers to `LIST`. Names that are no strings of the protocol are left out.
pub(crate) fn listed(out: &mut Vec<u8>, list: &[Listed]) {
    if list.len() > LIST_MAX {
        let why = format!("there are {} exports and at most {LIST_MAX} are listed: ask for one by name", list.len());
        return refuse(out, opt::LIST, rep::ERR_TOO_BIG, &why);
    }
    for Listed { name, description } in list {
        if crate::options::is_string(name.as_bytes()) {
            let length = (name.len() as u32).to_be_bytes();
            let text = cut(description, STRING_MAX);
            answer(out, opt::LIST, rep::SERVER, &[&length, name.as_bytes(), text.as_bytes()]);
        }
    }
    ack(out, opt::LIST);
}

/// The answers to `LIST_META_CONTEXT` and `SET_META_CONTEXT`; `id`: of `base:allocation`, if it is
/// among them.
pub(crate) fn contexts(out: &mut Vec<u8>, option: u32, id: Option<u32>) {
    if let Some(id) = id {
        answer(out, option, rep::META_CONTEXT, &[&id.to_be_bytes(), ALLOCATION.as_bytes()]);
    }
    ack(out, option);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Fields;

    /// The answers in `out`: option, type and data.
    fn answers(out: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
        let (mut f, mut found) = (Fields::new(out), Vec::new());
        while f.left() > 0 {
            assert_eq!(f.u64(), Some(0x3e889045565a9));
            let (option, kind, length) = (f.u32().unwrap(), f.u32().unwrap(), f.u32().unwrap());
            found.push((option, kind, f.bytes(length).unwrap().to_vec()));
        }
        found
    }

    #[test]
    fn the_greeting_offers_both_flags() {
        let mut out = Vec::new();
        greeting(&mut out);
        assert_eq!(out, b"NBDMAGICIHAVEOPT\x00\x03");
    }

    #[test]
    fn information_has_its_layout() {
        let mut export = Export { description: "a disk".into(), ..Export::new("v", 0x1000) };
        let mut out = Vec::new();
        described(&mut out, 7, &export, false, true, true);
        let block = [0u8, 3, 0, 0, 0, 1, 0, 0, 16, 0, 2, 0, 0, 0].to_vec();
        let size = [0u8, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 1].to_vec();
        let want = [(3, size), (3, b"\0\x01v".to_vec()), (3, b"\0\x02a disk".to_vec()), (3, block), (1, Vec::new())];
        assert_eq!(answers(&out), want.map(|(kind, data)| (7, kind, data)));
        export.description.clear();
        for (name, text, n) in [(false, false, 3), (true, false, 4), (false, true, 3)] {
            out.clear();
            described(&mut out, 6, &export, true, name, text);
            assert_eq!(answers(&out).len(), n);
        }
    }

    #[test]
    fn zeros_follow_a_chosen_export_unless_spared() {
        for (no_zeroes, length) in [(false, 134), (true, 10)] {
            let mut out = Vec::new();
            chosen(&mut out, &Export::new("v", 7), false, no_zeroes);
            assert_eq!((out.len(), &out[..10]), (length, &[0, 0, 0, 0, 0, 0, 0, 7, 0, 1][..]));
        }
    }

    #[test]
    fn lists_are_bounded() {
        let entry = |name: &str| Listed { name: name.to_string(), description: "d".into() };
        let mut out = Vec::new();
        listed(&mut out, &[entry("ab"), entry("x\0"), entry("")]);
        let want = [(2, b"\0\0\0\x02abd".to_vec()), (2, b"\0\0\0\0d".to_vec()), (1, Vec::new())];
        assert_eq!(answers(&out), want.map(|(kind, data)| (3, kind, data)));
        out.clear();
        listed(&mut out, &vec![entry("a"); LIST_MAX + 1]);
        let all = answers(&out);
        assert_eq!((all.len(), all[0].1), (1, 0x8000_0009));
    }

    #[test]
    fn errors_have_their_types_and_a_bounded_text() {
        let table = [
            (ErrorKind::NotFound, 0x8000_0006u32),
            (ErrorKind::Interrupted, 0x8000_0007),
            (ErrorKind::Denied, 0x8000_0002),
            (ErrorKind::Io, 0x8000_0002),
        ];
        for (kind, want) in table {
            assert_eq!(kind_of(&Error::new(kind, "x")), want, "{kind:?}");
        }
        let mut out = Vec::new();
        refuse(&mut out, 5, 0x8000_0001, &"x".repeat(5000));
        assert_eq!(answers(&out)[0].2.len(), 4096);
    }

    #[test]
    fn contexts_have_an_id() {
        let mut out = Vec::new();
        contexts(&mut out, 10, Some(1));
        assert_eq!(answers(&out), [(10, 4, b"\0\0\0\x01base:allocation".to_vec()), (10, 1, Vec::new())]);
        out.clear();
        contexts(&mut out, 9, None);
        assert_eq!(answers(&out), [(9, 1, Vec::new())]);
    }
}
