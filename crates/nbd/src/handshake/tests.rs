//! Tables of the handshake: what the client sends, what comes back.

use base::{Error, ErrorKind};

use super::*;
use crate::proto::{EXPORT_NAME_ZEROES, LIST_MAX, OPTION_REPLY_MAGIC};
use crate::wire::Put;

const FLAGS: &[u8] = &[0, 0, 0, 3];

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    out.u64(OPTION_MAGIC);
    out.u32(option);
    out.u32(data.len() as u32);
    out.raw(data);
    out
}

fn info(name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    out.u32(name.len() as u32);
    out.raw(name.as_bytes());
    out.u16(0);
    out
}

fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    out.u32(name.len() as u32);
    out.raw(name.as_bytes());
    out.u32(queries.len() as u32);
    for query in queries {
        out.u32(query.len() as u32);
        out.raw(query.as_bytes());
    }
    out
}

/// A server with the exports `v` (also the default), `plain` without block status, `secret`, which
/// nobody may have, and `odd`, which no client can be told of.
fn lookup(name: &str) -> EngineResult<Export> {
    let export = |name: &str| Export { block_status: true, ..Export::new(name, 1 << 20) };
    match name {
        "" | "v" => Ok(export("v")),
        "plain" => Ok(Export::new("plain", 4096)),
        "odd" => Ok(Export { block_min: 3, ..export("odd") }),
        "secret" => Err(Error::new(ErrorKind::Denied, "secret is not shared")),
        "late" => Err(Error::new(ErrorKind::Interrupted, "the server ends")),
        other => Err(Error::not_found(format!("there is no volume {other}"))),
    }
}

/// Runs a handshake: what it ended with, what was sent behind the greeting, bytes not taken.
fn run(input: &[u8]) -> (Result<Step, Fault>, Vec<u8>, usize) {
    let (mut shake, mut sent, mut at) = (Handshake::new(), Vec::new(), 0);
    let end = loop {
        match shake.take(&input[at..]) {
            Err(fault) => break Err(fault),
            Ok((n, step)) => {
                at += n;
                match step {
                    Step::Send => sent.extend(shake.output()),
                    Step::Find(name) => shake.found(lookup(&name)),
                    Step::List => {
                        let names = ["v", "plain"].map(|n| Listed { name: n.into(), description: String::new() });
                        shake.listed(Ok(&names));
                    }
                    Step::More if at < input.len() => panic!("bytes are left"),
                    step => break Ok(step),
                }
            }
        }
    };
    assert_eq!(&sent[..18], b"NBDMAGICIHAVEOPT\0\x03");
    (end, sent[18..].to_vec(), input.len() - at)
}

/// The types of the answers in `sent`, which is made of answers.
fn kinds(sent: &[u8]) -> Vec<(u32, u32)> {
    let (mut f, mut found) = (Fields::new(sent), Vec::new());
    while f.left() > 0 {
        assert_eq!(f.u64(), Some(OPTION_REPLY_MAGIC));
        found.push((f.u32().unwrap(), f.u32().unwrap()));
        let length = f.u32().unwrap();
        f.bytes(length).unwrap();
    }
    found
}

#[test]
fn go_starts_with_what_was_agreed_on() {
    let ask = option(opt::SET_META_CONTEXT, &contexts("", &["base:allocation"]));
    let structured = option(opt::STRUCTURED_REPLY, &[]);
    let go = option(opt::GO, &info("v"));
    let table = [
        (vec![go.clone()], false, false),
        (vec![structured.clone(), go.clone()], true, false),
        (vec![structured.clone(), ask.clone(), go.clone()], true, true),
        (vec![structured.clone(), ask.clone(), option(opt::GO, &info("plain"))], true, false),
        (vec![ask.clone(), structured.clone(), go.clone()], true, false),
        // The choice of contexts is forgotten: replaced, failed, unreadable.
        (vec![structured.clone(), ask.clone(), option(10, &contexts("v", &[])), go.clone()], true, false),
        (vec![structured.clone(), ask.clone(), option(10, &contexts("none", &[])), go.clone()], true, false),
        (vec![structured.clone(), ask.clone(), option(10, b"x"), go.clone()], true, false),
        (vec![structured.clone(), ask.clone(), option(9, &contexts("v", &[])), go.clone()], true, true),
    ];
    for (options, structured, block_status) in table {
        let (end, ..) = run(&[FLAGS, &options.concat()].concat());
        let Ok(Step::Start(terms)) = end else { panic!("{end:?}") };
        assert_eq!((terms.structured, terms.block_status), (structured, block_status), "{options:?}");
    }
}

#[test]
fn the_first_request_is_not_taken() {
    let (end, sent, left) = run(&[FLAGS, &option(opt::GO, &info("v")), &[7; 30]].concat());
    assert!(matches!(end, Ok(Step::Start(_))));
    assert_eq!((kinds(&sent), left), (vec![(7, 3), (7, 3), (7, 1)], 30));
}

#[test]
fn an_old_option_chooses_an_export() {
    for (flags, zeros) in [(0, EXPORT_NAME_ZEROES), (1, EXPORT_NAME_ZEROES), (2, 0), (3, 0)] {
        let (end, sent, left) = run(&[&[0, 0, 0, flags], &option(opt::EXPORT_NAME, b"v")[..], &[1; 5]].concat());
        assert!(matches!(end, Ok(Step::Start(_))));
        assert_eq!((sent.len(), left), (10 + zeros, 5));
    }
    let (end, ..) = run(&[FLAGS, &option(opt::EXPORT_NAME, b"none")].concat());
    assert_eq!(end, Err(Fault::NoExport("there is no volume none".into())));
    let (end, ..) = run(&[FLAGS, &option(opt::EXPORT_NAME, &[0xff])].concat());
    assert!(matches!(end, Err(Fault::NoExport(_))));
    let (end, ..) = run(&[FLAGS, &option(opt::EXPORT_NAME, &[b'a'; 4097])].concat());
    assert_eq!(end, Err(Fault::OptionTooLong { option: 1, length: 4097 }));
}

#[test]
fn each_option_has_its_answers() {
    let (unsup, policy, invalid) = (rep::ERR_UNSUP, rep::ERR_POLICY, rep::ERR_INVALID);
    let long = vec![0; OPTION_MAX as usize + 1];
    let table: [(u32, &[u8], &[u32]); 24] = [
        (opt::LIST, b"", &[rep::SERVER, rep::SERVER, rep::ACK]),
        (opt::LIST, b"x", &[invalid]),
        (opt::STARTTLS, b"", &[policy]),
        (opt::STARTTLS, b"x", &[invalid]),
        (opt::STRUCTURED_REPLY, b"", &[rep::ACK]),
        (opt::STRUCTURED_REPLY, b"xyz", &[invalid]),
        (opt::EXTENDED_HEADERS, b"", &[unsup]),
        (opt::EXTENDED_HEADERS, b"xyz", &[unsup]),
        (4, b"", &[unsup]),
        (12, &long, &[unsup]),
        (0xffff_ffff, b"abc", &[unsup]),
        (opt::INFO, &info("v"), &[rep::INFO, rep::INFO, rep::ACK]),
        (opt::INFO, &info("none"), &[rep::ERR_UNKNOWN]),
        (opt::GO, &info("none"), &[rep::ERR_UNKNOWN]),
        (opt::GO, &info("secret"), &[policy]),
        (opt::GO, &info("odd"), &[policy]),
        (opt::GO, &info("late"), &[rep::ERR_SHUTDOWN]),
        (opt::GO, b"", &[invalid]),
        (opt::INFO, &long, &[rep::ERR_TOO_BIG]),
        (opt::LIST_META_CONTEXT, &contexts("v", &[]), &[rep::META_CONTEXT, rep::ACK]),
        (opt::LIST_META_CONTEXT, &contexts("plain", &[]), &[rep::ACK]),
        (opt::SET_META_CONTEXT, &contexts("v", &["base:allocation"]), &[rep::META_CONTEXT, rep::ACK]),
        (opt::SET_META_CONTEXT, &contexts("none", &["base:allocation"]), &[rep::ERR_UNKNOWN]),
        (opt::SET_META_CONTEXT, &long, &[rep::ERR_TOO_BIG]),
    ];
    let structured = option(opt::STRUCTURED_REPLY, &[]);
    for (code, data, want) in table {
        // The abort behind it shows that the handshake did not lose its place.
        let (end, sent, left) = run(&[FLAGS, &structured, &option(code, data), &option(opt::ABORT, b"why")].concat());
        assert_eq!((end, left), (Ok(Step::End), 0), "{code}");
        let all: Vec<(u32, u32)> = want.iter().map(|kind| (code, *kind)).collect();
        assert_eq!(kinds(&sent), [&[(8, 1)], &all[..], &[(2, 1)]].concat(), "{code}");
    }
    for code in [opt::LIST_META_CONTEXT, opt::SET_META_CONTEXT] {
        let (_, sent, _) = run(&[FLAGS, &option(code, &contexts("v", &[]))].concat());
        assert_eq!(kinds(&sent), [(code, invalid)], "without structured replies");
    }
}

#[test]
fn faults_end_it() {
    let long = OPTION_SKIP_MAX + 1;
    let too_long = [&option(99, &[])[..12], &long.to_be_bytes()].concat();
    let table = [
        (vec![0, 0, 0, 4], Fault::ClientFlags(4)),
        (vec![0x80, 0, 0, 3], Fault::ClientFlags(0x8000_0003)),
        ([FLAGS, &[0; 16]].concat(), Fault::OptionMagic(0)),
        ([FLAGS, &too_long].concat(), Fault::OptionTooLong { option: 99, length: long }),
        ([&[0, 0, 0, 2], &option(opt::LIST, &[])[..]].concat(), Fault::NotFixed(3)),
        ([FLAGS, &option(77, &[]).repeat(257)].concat(), Fault::TooManyOptions),
    ];
    for (input, fault) in table {
        assert_eq!(run(&input).0, Err(fault));
    }
    let (end, sent, _) = run(&[FLAGS, &option(77, &[]).repeat(256)].concat());
    assert_eq!((end, kinds(&sent).len()), (Ok(Step::More), 256));
}

#[test]
fn nothing_is_taken_while_something_waits() {
    let input = [FLAGS, &option(opt::LIST, &[]), &option(opt::ABORT, &[])].concat();
    let mut shake = Handshake::new();
    for _ in 0..2 {
        assert_eq!(shake.take(&input), Ok((0, Step::Send)), "the greeting waits");
    }
    shake.output();
    for n in [20, 0] {
        assert_eq!(shake.take(&input), Ok((n, Step::List)), "the question is open");
    }
    shake.listed(Err(Error::new(ErrorKind::Denied, "the list is secret")));
    assert_eq!(shake.take(&input[20..]), Ok((0, Step::Send)), "the answer waits");
    assert_eq!(kinds(&shake.output()), [(3, rep::ERR_POLICY)]);
    assert_eq!(shake.take(&input[20..]), Ok((16, Step::Send)));
    assert_eq!(kinds(&shake.output()), [(2, rep::ACK)]);
    assert_eq!((shake.take(&input), shake.take(&[])), (Ok((0, Step::End)), Ok((0, Step::End))));
}

#[test]
fn long_lists_are_refused() {
    let mut shake = Handshake::new();
    shake.output();
    shake.take(&[FLAGS, &option(opt::LIST, &[])].concat()).unwrap();
    shake.listed(Ok(&vec![Listed { name: "a".into(), description: String::new() }; LIST_MAX + 1]));
    assert_eq!(kinds(&shake.output()), [(3, rep::ERR_TOO_BIG)]);
}

#[test]
#[should_panic(expected = "did not ask for")]
fn an_answer_without_a_question_is_a_bug() {
    Handshake::new().found(lookup("v"));
}
