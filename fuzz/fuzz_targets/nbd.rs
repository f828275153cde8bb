//! Connections of NBD clients from hostile bytes: a handshake with all its options, then requests
//! and their answers, served as the engine would serve them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nbd::proto::{OPTION_MAGIC, REQUEST_MAGIC, cmd, opt};
use nbd::{Code, Command, Export, Extents, Handshake, Intake, Listed, Part, Request, Run, State, Step, Taken, Terms};
use weir_fuzz::seeds;

const SIZE: u64 = 1 << 20;

fn option(code: u32, data: &[u8]) -> Vec<u8> {
    [&OPTION_MAGIC.to_be_bytes()[..], &code.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
}

fn request(kind: u16, flags: u16, offset: u64, length: u32) -> Vec<u8> {
    let mut out = REQUEST_MAGIC.to_be_bytes().to_vec();
    out.extend([flags.to_be_bytes(), kind.to_be_bytes()].concat());
    out.extend([7, offset].map(u64::to_be_bytes).concat());
    out.extend(length.to_be_bytes());
    out.extend(vec![1; if kind == cmd::WRITE { length as usize } else { 0 }]);
    out
}

fn make_seeds() -> Vec<Vec<u8>> {
    let go = option(opt::GO, b"\0\0\0\x01v\0\x03\0\x01\0\x02\0\x03");
    let context = b"\0\0\0\x01v\0\0\0\x01\0\0\0\x0fbase:allocation";
    let structured = option(opt::STRUCTURED_REPLY, &[]);
    let set = option(opt::SET_META_CONTEXT, context);
    let begin = [vec![16, 0, 0, 0, 3], structured.clone(), set, go.clone()].concat();
    let mut out = vec![[vec![16, 0, 0, 0, 0], option(opt::EXPORT_NAME, b"v"), request(cmd::READ, 0, 0, 512)].concat()];
    for code in 1..=12 {
        out.push([vec![99, 0, 0, 0, 3], structured.clone(), option(code, context), go.clone()].concat());
    }
    for kind in 0..=8 {
        let (offset, length) = if kind == cmd::FLUSH { (0, 0) } else { (512, 1024) };
        out.push([begin.clone(), request(kind, 0, offset, length), request(cmd::DISC, 0, 0, 0)].concat());
        out.push([begin.clone(), request(kind, 1, SIZE, length), request(kind, 0x1e, offset, length)].concat());
    }
    out
}

fn lookup(name: &str) -> base::Result<Export> {
    match name {
        "" | "v" => Ok(Export {
            description: "a volume".into(),
            block_min: 512,
            flush: true,
            fua: true,
            trim: true,
            write_zeroes: true,
            fast_zero: true,
            cache: true,
            block_status: true,
            ..Export::new("v", SIZE)
        }),
        "r" => Ok(Export { read_only: true, ..Export::new("r", SIZE) }),
        _ => Err(base::Error::not_found(format!("there is no export {name}"))),
    }
}

/// Answers a request; the length of the answer must be what its header announces.
fn serve(terms: &Terms, request: &Request) {
    let cookie = request.cookie;
    let inside = |offset: u64, length: u32| {
        assert!(length > 0 && offset + u64::from(length) <= terms.export.size_bytes);
    };
    match request.command {
        Command::Read { span, whole } => {
            inside(span.offset, span.length);
            let third = span.length / 3;
            let runs = [Run::Data(third), Run::Hole(third), Run::Data(span.length - 2 * third)];
            let (mut data, mut heads) = (0, 0);
            for part in terms.read_answer(cookie, span, whole, &runs) {
                match part {
                    Part::Head(head) if head.as_slice().len() == 32 => data += third,
                    Part::Head(_) => heads += 1,
                    Part::Data(part) => data += part.length,
                    Part::Zeros(n) => data += n,
                }
            }
            assert!(data == span.length && heads > 0 && (!whole || heads == 1));
        }
        Command::BlockStatus { span, one } => {
            inside(span.offset, span.length);
            let mut extents = Extents::new(span, one);
            while extents.push(4096, State::Data) && extents.push(512, State::Hole) {}
            assert_eq!(extents.finish(cookie).len() % 8, 0);
        }
        Command::Write { span, .. } | Command::Trim { span, .. } | Command::WriteZeroes { span, .. } => {
            assert!(!terms.export.read_only);
            inside(span.offset, span.length);
            terms.error(cookie, Code::NoSpace, "full", Some(span.offset));
        }
        Command::Cache { .. } | Command::Flush => drop(terms.done(cookie)),
    }
}

/// Runs a connection whose bytes come in pieces; gives all that is sent in the handshake, and how
/// many requests were answered.
fn run(bytes: &[u8], piece: usize) -> (Vec<u8>, usize) {
    let (mut shake, mut sent, mut at) = (Handshake::new(), Vec::new(), 0);
    let terms = loop {
        let input = &bytes[at..bytes.len().min(at + piece)];
        let Ok((n, step)) = shake.take(input) else { return (sent, 0) };
        at += n;
        match step {
            Step::More if at == bytes.len() => return (sent, 0),
            Step::More => assert_eq!(n, input.len()),
            Step::Send => sent.extend(shake.output()),
            Step::Find(name) => shake.found(lookup(&name)),
            Step::List => shake.listed(Ok(&[Listed { name: "v".into(), description: "a volume".into() }])),
            Step::Start(terms) => break terms,
            Step::End => return (sent, 0),
        }
    };
    let (mut intake, mut served) = (Intake::new(), 0);
    loop {
        let input = &bytes[at..bytes.len().min(at + piece)];
        let Ok((n, taken)) = intake.take(&terms, input) else { return (sent, served) };
        at += n;
        match taken {
            Taken::More if at == bytes.len() => return (sent, served),
            Taken::More => {
                assert_eq!(n, input.len());
                continue;
            }
            Taken::End => return (sent, served),
            Taken::Refuse(refusal) => drop(terms.refuse(&refusal)),
            Taken::Serve(request) => {
                at += request.payload() as usize;
                if at > bytes.len() {
                    return (sent, served);
                }
                serve(&terms, &request);
            }
        }
        served += 1;
    }
}

fuzz_target!(init: seeds(make_seeds), |input: &[u8]| {
    let Some((piece, bytes)) = input.split_first() else { return };
    assert!(run(bytes, usize::from(*piece).max(1)) == run(bytes, usize::MAX / 2), "pieces change nothing");
});
