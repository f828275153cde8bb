//! Requests of the kernel from hostile bytes: header, extensions and arguments, taken apart as a
//! session does it.
#![no_main]

use fuse::proto::{IN_HEADER, InHeader, Op, forgets, opcode, rdev_from_wire, rdev_to_wire};
use libfuzzer_sys::fuzz_target;
use weir_fuzz::seeds;

/// Operation codes of the protocol end well below this.
const CODES: u32 = 60;

fn request(code: u32, args: &[u8]) -> Vec<u8> {
    let mut out = ((IN_HEADER + args.len()) as u32).to_ne_bytes().to_vec();
    out.extend(code.to_ne_bytes());
    out.extend([7u64, 1].iter().flat_map(|w| w.to_ne_bytes()));
    out.extend([0; IN_HEADER - 24]);
    out.extend(args);
    out
}

fn make_seeds() -> Vec<Vec<u8>> {
    // Two names behind every length of fixed arguments that there is.
    let mut args = vec![1; 88];
    args.extend(b"name\0other\0");
    let mut out: Vec<Vec<u8>> = (0..CODES).map(|code| request(code, &args)).collect();
    for code in [opcode::LOOKUP, opcode::SYMLINK, opcode::UNLINK, opcode::REMOVEXATTR] {
        out.push(request(code, b"name\0other\0"));
    }
    for (code, fixed) in [(opcode::MKDIR, 8), (opcode::MKNOD, 16), (opcode::RENAME2, 16), (opcode::CREATE, 16)] {
        out.push(request(code, &[&vec![0; fixed][..], b"name\0other\0"].concat()));
    }
    out.push(request(opcode::BATCH_FORGET, &[&[2, 0, 0, 0, 0, 0, 0, 0][..], &[9; 32]].concat()));
    out.push(request(opcode::SETXATTR, &[&[3, 0, 0, 0, 0, 0, 0, 0][..], &[0; 8], b"user.a\0abc"].concat()));
    out
}

fuzz_target!(init: seeds(make_seeds), |input: &[u8]| {
    let Ok(h) = InHeader::parse(input) else { return };
    let Some(end) = input.len().checked_sub(h.ext).filter(|end| *end >= IN_HEADER) else { return };
    let args = &input[IN_HEADER..end];
    for ext in [false, true] {
        let Ok(op) = Op::parse(h.opcode, args, ext) else { continue };
        let _ = format!("{op:?}");
        match op {
            Op::BatchForget { list } => assert_eq!(forgets(list).count(), list.len() / 16),
            Op::Lookup { name } | Op::Unlink { name } | Op::MkDir { name, .. } | Op::Create { name, .. } => {
                assert!(!name.is_empty() && !name.contains(&b'/') && !name.contains(&0));
            }
            Op::MkNod { rdev, .. } => assert_eq!(rdev_from_wire(rdev_to_wire(rdev)), rdev),
            Op::SetXattr { value, .. } => assert!(value.len() <= args.len()),
            _ => {}
        }
    }
});
