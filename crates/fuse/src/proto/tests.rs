//! Layouts as `linux/fuse.h` has them, and hostile requests.

use std::time::Duration;

use super::request::{
    FATTR_ATIME, FATTR_FH, FATTR_MODE, FATTR_MTIME_NOW, FATTR_SIZE, O_DIRECT, OPEN_KILL_SUIDGID, WRITE_KILL_SUIDGID,
};
use super::*;
use crate::errno::{Errno, INVALID};
use crate::handler::{Attr, Caller, Entry, Opened, SetAttr, SetTime, StatFs, Time};
use crate::wire::Small;

fn words(list: &[u64]) -> Vec<u8> {
    list.iter().flat_map(|v| v.to_ne_bytes()).collect()
}
fn halves(list: &[u32]) -> Vec<u8> {
    list.iter().flat_map(|v| v.to_ne_bytes()).collect()
}
fn body(put: impl FnOnce(&mut Small)) -> Vec<u8> {
    let mut s = Small::new();
    put(&mut s);
    s.as_slice().to_vec()
}

#[test]
fn headers() {
    let mut bytes = halves(&[56, 3]);
    bytes.extend(words(&[0x1122, 34]));
    bytes.extend(halves(&[1000, 100, 4242]));
    bytes.extend([2u16.to_ne_bytes(), 0u16.to_ne_bytes()].concat());
    assert_eq!(bytes.len(), IN_HEADER);
    let h = InHeader::parse(&bytes).expect("a header");
    let caller = Caller { uid: 1000, gid: 100, pid: 4242, umask: 0 };
    assert_eq!(h, InHeader { len: 56, opcode: 3, unique: 0x1122, node: 34, caller, ext: 16 });
    assert_eq!(InHeader::parse(&bytes[..39]), Err(INVALID));
    let out = body(|s| put_header(s, 7, Some(Errno(2)), 0));
    assert_eq!(out, [halves(&[16, -2i32 as u32]), words(&[7])].concat());
    assert_eq!(body(|s| put_header(s, 9, None, 128))[..8], halves(&[144, 0]));
}

#[test]
fn names() {
    let p = |code, args: &'static [u8]| Op::parse(code, args, true);
    assert_eq!(p(opcode::LOOKUP, b"abc\0"), Ok(Op::Lookup { name: b"abc" }));
    assert_eq!(p(opcode::LOOKUP, b"abc"), Err(INVALID));
    assert_eq!(p(opcode::LOOKUP, b"\0"), Err(INVALID));
    assert_eq!(p(opcode::LOOKUP, b"a/b\0"), Err(INVALID));
    assert_eq!(p(opcode::SYMLINK, b"a\0/x/y\0"), Ok(Op::Symlink { name: b"a", target: b"/x/y" }));
    let mut rename = words(&[77]);
    rename.extend(halves(&[1, 0]));
    rename.extend(b"old\0new\0");
    let want = Op::Rename { name: b"old", new_dir: 77, new_name: b"new", flags: 1 };
    assert_eq!(Op::parse(opcode::RENAME2, &rename, true), Ok(want));
    assert_eq!(Op::parse(opcode::RENAME2, &rename[..rename.len() - 1], true), Err(INVALID));
}

#[test]
fn files_without_a_name() {
    let mut args = halves(&[libc::O_RDWR as u32, 0o600, 0o22, OPEN_KILL_SUIDGID]);
    let want = Op::TmpFile { mode: 0o600, umask: 0o22, flags: libc::O_RDWR as u32, kill_suidgid: true };
    assert_eq!(Op::parse(opcode::TMPFILE, &args, true), Ok(want.clone()));
    // Linux sends the name of the root, which no file can have.
    args.extend(b"/\0");
    assert_eq!(Op::parse(opcode::TMPFILE, &args, true), Ok(want));
    assert_eq!(Op::parse(opcode::TMPFILE, &args[..12], true), Err(INVALID));
}

#[test]
fn set_attributes() {
    let mut args = halves(&[FATTR_MODE | FATTR_SIZE | FATTR_ATIME | FATTR_MTIME_NOW | FATTR_FH, 0]);
    args.extend(words(&[5, 4096, 0, -1i64 as u64, 2, 3]));
    args.extend(halves(&[10, 11, 12, 0o644, 0, 1, 2, 0]));
    assert_eq!(args.len(), 88);
    let want = SetAttr {
        mode: Some(0o644),
        size: Some(4096),
        atime: Some(SetTime::At(Time { secs: -1, nanos: 10 })),
        mtime: Some(SetTime::Now),
        fh: Some(5),
        ..SetAttr::default()
    };
    assert_eq!(Op::parse(opcode::SETATTR, &args, true), Ok(Op::SetAttr(want)));
    args[56..60].copy_from_slice(&1_000_000_000u32.to_ne_bytes());
    assert_eq!(Op::parse(opcode::SETATTR, &args, true), Err(INVALID));
}

#[test]
fn data_and_attributes() {
    let mut args = words(&[3, 1 << 40]);
    args.extend(halves(&[4096, WRITE_KILL_SUIDGID, 0, 0, 0, 0]));
    assert_eq!(args.len(), WRITE_ARGS);
    for direct in [false, true] {
        let flags = if direct { O_DIRECT } else { 0 };
        args[32..36].copy_from_slice(&flags.to_ne_bytes());
        let (fh, offset, size, kill_suidgid) = (3, 1 << 40, 4096, true);
        let want = Op::Write { fh, offset, size, kill_suidgid, from_cache: false, sync: false, direct };
        assert_eq!(Op::parse(opcode::WRITE, &args, true), Ok(want));
    }
    let mut args = halves(&[3, 1, 1, 0]);
    args.extend(b"user.x\0abc");
    let set = |kill_sgid| Op::SetXattr { name: b"user.x", value: b"abc", flags: 1, kill_sgid };
    assert_eq!(Op::parse(opcode::SETXATTR, &args, true), Ok(set(true)));
    assert_eq!(Op::parse(opcode::SETXATTR, &args[..args.len() - 1], true), Err(INVALID));
    let old = [&args[..8], &args[16..]].concat();
    assert_eq!(Op::parse(opcode::SETXATTR, &old, false), Ok(set(false)));
    // A size beyond the data sent.
    args[..4].copy_from_slice(&u32::MAX.to_ne_bytes());
    assert_eq!(Op::parse(opcode::SETXATTR, &args, true), Err(INVALID));
}

#[test]
fn forgetting() {
    let mut args = halves(&[2, 0]);
    args.extend(words(&[5, 1, 6, 2]));
    let Ok(Op::BatchForget { list }) = Op::parse(opcode::BATCH_FORGET, &args, true) else { panic!("two nodes") };
    assert_eq!(forgets(list).collect::<Vec<_>>(), [(5, 1), (6, 2)]);
    args[..4].copy_from_slice(&3u32.to_ne_bytes());
    assert_eq!(Op::parse(opcode::BATCH_FORGET, &args, true), Err(INVALID));
    args[..4].copy_from_slice(&u32::MAX.to_ne_bytes());
    assert_eq!(Op::parse(opcode::BATCH_FORGET, &args, true), Err(INVALID));
}

#[test]
fn beginnings() {
    let mut args = halves(&[7, 45, 131_072, init::INIT_EXT as u32 | 1, 0x10]);
    args.resize(64, 0);
    let want = Init { major: 7, minor: 45, max_readahead: 131_072, flags: init::INIT_EXT | 1 | 0x10 << 32 };
    assert_eq!(Op::parse(opcode::INIT, &args, true), Ok(Op::Init(want)));
    assert_eq!(Op::parse(opcode::INIT, &args[..12], true), Err(INVALID));
    assert!(matches!(Op::parse(opcode::INIT, &halves(&[8, 0]), true), Ok(Op::Init(Init { major: 8, .. }))));
    let r = InitReply {
        minor: 39,
        max_readahead: 1,
        flags: 2 | 3 << 32,
        max_background: 4,
        congestion: 5,
        max_write: 6,
        max_pages: 256,
    };
    let out = body(|s| put_init(s, &r));
    assert_eq!(out.len(), 64);
    assert_eq!(out[..16], halves(&[7, 39, 1, 2]));
    assert_eq!(out[16..20], [4u16.to_ne_bytes(), 5u16.to_ne_bytes()].concat());
    assert_eq!(out[20..28], halves(&[6, 1]));
    assert_eq!(out[28..32], [256u16.to_ne_bytes(), 0u16.to_ne_bytes()].concat());
    assert_eq!(out[32..36], halves(&[3]));
}

#[test]
fn dropping_pages() {
    let out = body(|s| put_drop_pages(s, 77, 0, 0));
    assert_eq!(out, [halves(&[40, 2]), words(&[0, 77, 0, 0])].concat());
    let out = body(|s| put_drop_pages(s, 77, 4096, 100));
    assert_eq!(out[24..], words(&[4096, 100]));
    let mut out = Vec::new();
    put_drop_name(&mut out, 77, b"abc");
    assert_eq!(out, [halves(&[36, 3]), words(&[0, 77]), halves(&[3, 0]), b"abc\0".to_vec()].concat());
    let mut out = Vec::new();
    put_expire_name(&mut out, 77, b"abc");
    assert_eq!(out[16..], [words(&[77]), halves(&[3, 1]), b"abc\0".to_vec()].concat());
}

#[test]
fn attributes_and_entries() {
    let t = |n: i64| Time { secs: n, nanos: n as u32 + 100 };
    let a = Attr {
        ino: 34,
        size: 1 << 33,
        blocks: 9,
        atime: t(1),
        mtime: t(2),
        ctime: t(3),
        crtime: t(4),
        mode: 0o100644,
        nlink: 2,
        uid: 1000,
        gid: 100,
        rdev: (0x123, 0x45678),
        blksize: 131_072,
        ttl: Duration::new(5, 6),
    };
    let out = body(|s| put_attr(s, &a));
    assert_eq!(out.len(), 88);
    let rdev = 0x78 | 0x123 << 8 | 0x45600 << 12;
    let want = [words(&[34, 1 << 33, 9, 1, 2, 3]), halves(&[101, 102, 103, 0o100644, 2, 1000, 100, rdev, 131_072, 0])];
    assert_eq!(out, want.concat());
    assert_eq!(rdev_from_wire(rdev), (0x123, 0x45678));
    let e = Entry { node: 34, generation: 8, ttl: Duration::from_millis(1500), attr: a };
    let out = body(|s| put_entry(s, &e));
    assert_eq!(out.len(), 128);
    assert_eq!(out[..40], [words(&[34, 8, 1, 5]), halves(&[500_000_000, 6])].concat());
    assert_eq!(body(|s| put_attr_reply(s, &a)).len(), 104);
    assert_eq!(body(|s| put_open(s, &Opened { fh: 1, flags: 2 })), [words(&[1]), halves(&[2, 0])].concat());
    assert_eq!(body(|s| put_statfs(s, &StatFs::default())).len(), 80);
    let out = body(|s| put_statx_reply(s, &a));
    assert_eq!(out.len(), 288);
    assert_eq!(out[32..40], halves(&[0xfff, 131_072]));
    // The creation time is the second of the four.
    assert_eq!(out[32 + 64 + 16..][..12], [words(&[4]), halves(&[104])].concat());
    assert_eq!(out[32 + 128..][..8], halves(&[0x123, 0x45678]));
}

/// The parser refuses malformed requests and never panics.
#[test]
fn hostile_arguments() {
    let mut z = 1u64;
    let mut next = || {
        z = z.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        z >> 33
    };
    for round in 0..20_000 {
        let len = (next() % 120) as usize;
        let fill = next();
        let args: Vec<u8> = (0..len).map(|_| if fill & 1 == 0 { next() as u8 } else { 0xff }).collect();
        let code = if round % 8 == 0 { next() as u32 } else { (next() % 56) as u32 };
        if let Ok(Op::BatchForget { list }) = Op::parse(code, &args, round & 1 == 0) {
            forgets(list).for_each(drop);
        }
        let _ = InHeader::parse(&args);
    }
    // Every request cut short at every place.
    let full = [0x41u8; 200];
    for code in 0..60 {
        for n in 0..full.len() {
            let mut args = full[..n].to_vec();
            if let Some(last) = args.last_mut() {
                *last = 0;
            }
            let _ = Op::parse(code, &args, true);
        }
    }
}
