//! Tables of the policy on requests.

use super::*;
use crate::export::Export;
use crate::wire::Put;

const FUA: u16 = cmd_flag::FUA;
const NO_HOLE: u16 = cmd_flag::NO_HOLE;
const DF: u16 = cmd_flag::DF;
const REQ_ONE: u16 = cmd_flag::REQ_ONE;
const FAST: u16 = cmd_flag::FAST_ZERO;
const SIZE: u64 = 128 << 20;

/// Terms with every feature, blocks of 512 bytes and payloads of 1 MiB.
fn full() -> Terms {
    let export = Export {
        block_min: 512,
        block_max: 1 << 20,
        flush: true,
        fua: true,
        trim: true,
        write_zeroes: true,
        fast_zero: true,
        cache: true,
        block_status: true,
        ..Export::new("v", SIZE)
    };
    Terms { export, structured: true, block_status: true }
}

/// The same with changes.
fn with(change: impl Fn(&mut Terms)) -> Terms {
    let mut terms = full();
    change(&mut terms);
    terms
}

fn judged(terms: &Terms, kind: u16, flags: u16, offset: u64, length: u32) -> Result<Verdict, Fault> {
    terms.judge(&Header { flags, kind, cookie: 77, offset, length })
}

/// The code of a refusal; `None`: it is served.
fn code(terms: &Terms, kind: u16, flags: u16, offset: u64, length: u32) -> Option<Code> {
    match judged(terms, kind, flags, offset, length).unwrap() {
        Verdict::Serve(request) => {
            assert_eq!(request.cookie, 77);
            assert_eq!(request.payload(), if kind == cmd::WRITE { length } else { 0 });
            None
        }
        Verdict::Refuse(refusal) => {
            assert_eq!(refusal.cookie, 77);
            assert_eq!(refusal.skip, if kind == cmd::WRITE { length } else { 0 });
            Some(refusal.code)
        }
        Verdict::Disconnect => panic!("{kind} disconnects"),
    }
}

#[test]
fn headers_have_their_layout() {
    let mut bytes = Vec::new();
    bytes.u32(0x2560_9513);
    bytes.u16(1);
    bytes.u16(2);
    bytes.u64(3);
    bytes.u64(4);
    bytes.u32(5);
    let mut bytes: [u8; 28] = bytes.try_into().unwrap();
    let want = Header { flags: 1, kind: 2, cookie: 3, offset: 4, length: 5 };
    assert_eq!(Header::parse(&bytes), Ok(want));
    bytes[3] = 0x14;
    assert_eq!(Header::parse(&bytes), Err(Fault::RequestMagic(0x2560_9514)));
}

#[test]
fn commands_carry_their_flags() {
    let span = Span { offset: 512, length: 1024 };
    let table = [
        (cmd::READ, 0, Command::Read { span, whole: false }),
        (cmd::READ, DF | FUA, Command::Read { span, whole: true }),
        (cmd::WRITE, 0, Command::Write { span, durable: false }),
        (cmd::WRITE, FUA, Command::Write { span, durable: true }),
        (cmd::TRIM, FUA, Command::Trim { span, durable: true }),
        (cmd::CACHE, FUA, Command::Cache { span }),
        (cmd::WRITE_ZEROES, 0, Command::WriteZeroes { span, durable: false, no_hole: false, fast: false }),
        (cmd::WRITE_ZEROES, NO_HOLE, Command::WriteZeroes { span, durable: false, no_hole: true, fast: false }),
        (cmd::WRITE_ZEROES, FAST | FUA, Command::WriteZeroes { span, durable: true, no_hole: false, fast: true }),
        (cmd::BLOCK_STATUS, 0, Command::BlockStatus { span, one: false }),
        (cmd::BLOCK_STATUS, REQ_ONE, Command::BlockStatus { span, one: true }),
    ];
    for (kind, flags, command) in table {
        let want = Verdict::Serve(Request { cookie: 77, command });
        assert_eq!(judged(&full(), kind, flags, 512, 1024), Ok(want), "{kind} {flags}");
    }
    let flush = Verdict::Serve(Request { cookie: 77, command: Command::Flush });
    assert_eq!(judged(&full(), cmd::FLUSH, FUA, 0, 0), Ok(flush));
    for (offset, length) in [(0, 0), (7, 9)] {
        assert_eq!(judged(&full(), cmd::DISC, 0xffff, offset, length), Ok(Verdict::Disconnect));
    }
}

#[test]
fn flags_belong_to_commands() {
    for kind in 0..=7 {
        if kind == cmd::DISC {
            continue;
        }
        for bit in 0..16 {
            let flag = 1 << bit;
            let allowed = match kind {
                cmd::READ => FUA | DF,
                cmd::WRITE_ZEROES => FUA | NO_HOLE | FAST,
                cmd::BLOCK_STATUS => FUA | REQ_ONE,
                _ => FUA,
            };
            let (offset, length) = if kind == cmd::FLUSH { (0, 0) } else { (0, 512) };
            let want = (allowed & flag == 0).then_some(Code::Invalid);
            assert_eq!(code(&full(), kind, flag, offset, length), want, "{kind} {flag:#x}");
        }
    }
    let simple = with(|t| t.structured = false);
    assert_eq!(code(&simple, cmd::READ, DF, 0, 512), Some(Code::Invalid));
    let no_fua = with(|t| t.export.fua = false);
    assert_eq!(code(&no_fua, cmd::WRITE, FUA, 0, 512), Some(Code::Invalid));
    let slow = with(|t| t.export.fast_zero = false);
    assert_eq!(code(&slow, cmd::WRITE_ZEROES, FAST, 0, 512), Some(Code::Invalid));
}

#[test]
fn only_what_was_offered_is_served() {
    type Change = fn(&mut Terms);
    let table: [(u16, Change); 5] = [
        (cmd::FLUSH, |t| t.export.flush = false),
        (cmd::TRIM, |t| t.export.trim = false),
        (cmd::CACHE, |t| t.export.cache = false),
        (cmd::WRITE_ZEROES, |t| t.export.write_zeroes = false),
        (cmd::BLOCK_STATUS, |t| t.block_status = false),
    ];
    for (kind, change) in table {
        let length = if kind == cmd::FLUSH { 0 } else { 512 };
        assert_eq!(code(&full(), kind, 0, 0, length), None, "{kind}");
        assert_eq!(code(&with(change), kind, 0, 0, length), Some(Code::Invalid), "{kind}");
    }
    for kind in [cmd::RESIZE, 9, 0x1234, 0xffff] {
        assert_eq!(code(&full(), kind, 0, 0, 512), Some(Code::Invalid), "{kind}");
    }
}

#[test]
fn read_only_exports_are_not_written() {
    let terms = with(|t| t.export.read_only = true);
    for kind in [cmd::WRITE, cmd::TRIM, cmd::WRITE_ZEROES] {
        assert_eq!(code(&terms, kind, 0, 0, 512), Some(Code::Denied), "{kind}");
        assert_eq!(code(&terms, kind, 0, SIZE, 512), Some(Code::Denied), "{kind}");
    }
    for kind in [cmd::READ, cmd::CACHE, cmd::BLOCK_STATUS] {
        assert_eq!(code(&terms, kind, 0, 0, 512), None, "{kind}");
    }
    assert_eq!(code(&terms, cmd::FLUSH, 0, 0, 0), None);
}

#[test]
fn ranges_are_aligned_and_within_the_export() {
    let ranged = [cmd::READ, cmd::WRITE, cmd::TRIM, cmd::CACHE, cmd::WRITE_ZEROES, cmd::BLOCK_STATUS];
    for kind in ranged {
        let beyond = match kind {
            cmd::WRITE | cmd::WRITE_ZEROES => Some(Code::NoSpace),
            _ => Some(Code::Invalid),
        };
        let table = [
            (0, 512, None),
            (SIZE - 512, 512, None),
            (0, 0, Some(Code::Invalid)),
            (SIZE, 0, Some(Code::Invalid)),
            (1, 512, Some(Code::Invalid)),
            (512, 511, Some(Code::Invalid)),
            (SIZE, 512, beyond),
            (SIZE - 512, 1024, beyond),
            (u64::MAX - 511, 512, beyond),
            (u64::MAX - 511, 1024, beyond),
        ];
        for (offset, length, want) in table {
            assert_eq!(code(&full(), kind, 0, offset, length), want, "{kind} {offset} {length}");
        }
    }
    let bytes = with(|t| t.export.block_min = 1);
    assert_eq!(code(&bytes, cmd::READ, 0, SIZE - 1, 1), None);
    for (offset, length) in [(1, 0), (0, 1), (512, 0), (0, 512)] {
        assert_eq!(code(&full(), cmd::FLUSH, 0, offset, length), Some(Code::Invalid));
    }
}

#[test]
fn payloads_have_two_limits() {
    let max = 1 << 20;
    let simple = with(|t| t.structured = false);
    let table = [
        (&full(), cmd::READ, max, None),
        (&full(), cmd::READ, max + 512, Some(Code::TooLong)),
        (&simple, cmd::READ, max + 512, Some(Code::Invalid)),
        (&full(), cmd::WRITE, max, None),
        (&full(), cmd::WRITE, max + 512, Some(Code::Invalid)),
        (&full(), cmd::WRITE, 32 << 20, Some(Code::Invalid)),
        (&full(), cmd::WRITE_ZEROES, 128 << 20, None),
        (&full(), cmd::TRIM, 128 << 20, None),
        (&full(), cmd::CACHE, 128 << 20, None),
        (&full(), cmd::BLOCK_STATUS, 128 << 20, None),
    ];
    for (terms, kind, length, want) in table {
        assert_eq!(code(terms, kind, 0, 0, length), want, "{kind} {length}");
    }
    let (length, max) = ((32 << 20) + 1, 32 << 20);
    assert_eq!(judged(&full(), cmd::WRITE, 0, 0, length), Err(Fault::PayloadTooLong { length, max }));
    let large = with(|t| t.export.block_max = 64 << 20);
    assert_eq!(code(&large, cmd::WRITE, 0, 0, 64 << 20), None);
    assert!(judged(&large, cmd::WRITE, 0, 0, (64 << 20) + 512).is_err());
}
