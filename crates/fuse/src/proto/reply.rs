//! Replies and notifications: their layout, without the rules of when they are sent.

use super::{MAJOR, OUT_HEADER, rdev_to_wire};
use crate::errno::Errno;
use crate::handler::{Attr, Entry, Opened, StatFs};
use crate::wire::Put;

/// The reply to INIT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InitReply {
    /// Minor version that is spoken.
    pub minor: u32,
    /// Most bytes to read ahead.
    pub max_readahead: u32,
    /// The abilities in use, see [`super::init`].
    pub flags: u64,
    /// Requests of the background (readahead, direct I/O) that may be under way.
    pub max_background: u16,
    /// From how many on the kernel holds back.
    pub congestion: u16,
    /// Most bytes of a write.
    pub max_write: u32,
    /// Most pages of a request.
    pub max_pages: u16,
}

/// Adds the answer to `INIT` (64 bytes).
pub fn put_init(out: &mut impl Put, r: &InitReply) {
    out.u32(MAJOR);
    out.u32(r.minor);
    out.u32(r.max_readahead);
    out.u32(r.flags as u32);
    out.u16(r.max_background);
    out.u16(r.congestion);
    out.u32(r.max_write);
    // Times are exact to one nanosecond.
    out.u32(1);
    out.u16(r.max_pages);
    out.u16(0);
    out.u32((r.flags >> 32) as u32);
    out.zeros(28);
}

/// Adds the header of a reply with a body of `body` bytes.
pub fn put_header(out: &mut impl Put, unique: u64, error: Option<Errno>, body: usize) {
    out.u32(u32::try_from(OUT_HEADER + body).expect("replies are at most a few MiB"));
    out.u32(error.map_or(0, |e| (-e.0) as u32));
    out.u64(unique);
}

/// Adds a notification: the kernel must drop a node's cached attributes and ACLs. Cached data stay
/// (`FUSE_NOTIFY_INVAL_INODE` with a negative offset).
pub fn put_attrs_stale(out: &mut impl Put, node: u64) {
    put_inval_inode(out, node, -1, 0);
}

/// Adds a notification: the kernel must drop pages of a node, `len` bytes from `offset`, or all
/// from there on if `len` is 0 (`FUSE_NOTIFY_INVAL_INODE`).
pub fn put_drop_pages(out: &mut impl Put, node: u64, offset: u64, len: u64) {
    // Files end below 2^63.
    put_inval_inode(out, node, offset.cast_signed(), len.cast_signed());
}

/// Adds a notification: the kernel must drop a name of a directory, and its cached nodes below it
/// (`FUSE_NOTIFY_INVAL_ENTRY`).
pub fn put_drop_name(out: &mut impl Put, dir: u64, name: &[u8]) {
    put_inval_entry(out, dir, name, 0);
}

/// Adds a notification: the kernel must look a name of a directory up again before it uses it, and
/// keeps it until then (`FUSE_EXPIRE_ONLY`, since 7.38).
pub fn put_expire_name(out: &mut impl Put, dir: u64, name: &[u8]) {
    put_inval_entry(out, dir, name, 1);
}

fn put_inval_entry(out: &mut impl Put, dir: u64, name: &[u8], flags: u32) {
    const NOTIFY_INVAL_ENTRY: u32 = 3;
    const BODY: usize = 16;
    out.u32((OUT_HEADER + BODY + name.len() + 1) as u32);
    out.u32(NOTIFY_INVAL_ENTRY);
    out.u64(0);
    out.u64(dir);
    out.u32(name.len() as u32);
    out.u32(flags);
    out.raw(name);
    out.raw(&[0]);
}

/// A negative offset means no data, a length of 0 all to the end.
fn put_inval_inode(out: &mut impl Put, node: u64, offset: i64, len: i64) {
    const NOTIFY_INVAL_INODE: u32 = 2;
    const BODY: usize = 24;
    out.u32((OUT_HEADER + BODY) as u32);
    out.u32(NOTIFY_INVAL_INODE);
    out.u64(0);
    out.u64(node);
    out.i64(offset);
    out.i64(len);
}

/// Adds attributes (88 bytes).
pub fn put_attr(out: &mut impl Put, a: &Attr) {
    for v in [a.ino, a.size, a.blocks, a.atime.secs as u64, a.mtime.secs as u64, a.ctime.secs as u64] {
        out.u64(v);
    }
    let ids = [a.mode, a.nlink, a.uid, a.gid, rdev_to_wire(a.rdev), a.blksize, 0];
    for v in [a.atime.nanos, a.mtime.nanos, a.ctime.nanos].into_iter().chain(ids) {
        out.u32(v);
    }
}

/// Adds the entry of a name (128 bytes).
pub fn put_entry(out: &mut impl Put, e: &Entry) {
    out.u64(e.node);
    out.u64(e.generation);
    out.u64(e.ttl.as_secs());
    out.u64(e.attr.ttl.as_secs());
    out.u32(e.ttl.subsec_nanos());
    out.u32(e.attr.ttl.subsec_nanos());
    put_attr(out, &e.attr);
}

/// Adds the answer to `GETATTR` and `SETATTR` (104 bytes).
pub fn put_attr_reply(out: &mut impl Put, a: &Attr) {
    out.u64(a.ttl.as_secs());
    out.u32(a.ttl.subsec_nanos());
    out.u32(0);
    put_attr(out, a);
}

/// Adds the answer to `STATX` (288 bytes).
pub fn put_statx_reply(out: &mut impl Put, a: &Attr) {
    /// `STATX_BASIC_STATS | STATX_BTIME`.
    const MASK: u32 = 0xfff;
    out.u64(a.ttl.as_secs());
    out.u32(a.ttl.subsec_nanos());
    out.zeros(4 + 16);
    out.u32(MASK);
    out.u32(a.blksize);
    out.u64(0);
    out.u32(a.nlink);
    out.u32(a.uid);
    out.u32(a.gid);
    out.u16(a.mode as u16);
    out.u16(0);
    out.u64(a.ino);
    out.u64(a.size);
    out.u64(a.blocks);
    out.u64(0);
    for t in [a.atime, a.crtime, a.ctime, a.mtime] {
        out.i64(t.secs);
        out.u32(t.nanos);
        out.u32(0);
    }
    out.u32(a.rdev.0);
    out.u32(a.rdev.1);
    out.zeros(8 + 112);
}

/// Adds the answer to `OPEN` (16 bytes).
pub fn put_open(out: &mut impl Put, o: &Opened) {
    out.u64(o.fh);
    out.u32(o.flags);
    out.u32(0);
}

/// Adds the answer to `STATFS` (80 bytes).
pub fn put_statfs(out: &mut impl Put, s: &StatFs) {
    for v in [s.blocks, s.bfree, s.bavail, s.files, s.ffree] {
        out.u64(v);
    }
    out.u32(s.bsize);
    out.u32(s.namelen);
    out.u32(s.frsize);
    out.zeros(28);
}
