//! Replies of a session: the bodies, and their one system call each.

use std::io::IoSlice;

use bdev::Bytes;

use super::{Core, SLICES_MAX};
use crate::errno::{Errno, IO, RANGE};
use crate::handler::{Attr, Entry, Opened};
use crate::proto::{self, OUT_HEADER};
use crate::wire::{Put, Small};

/// Bodies of replies.
#[expect(clippy::large_enum_variant, reason = "short lived, and a small body needs no allocation")]
pub(super) enum Reply {
    /// There is no reply at all.
    Nothing,
    /// A header alone.
    Empty,
    Small(Small),
    Bytes(Vec<u8>),
    /// With room for the header in front.
    Listing(Vec<u8>),
    Data(Vec<Bytes>),
}

impl Reply {
    pub(super) fn small(put: impl FnOnce(&mut Small)) -> Reply {
        let mut s = Small::new();
        put(&mut s);
        Reply::Small(s)
    }
    pub(super) fn entry(e: &Entry) -> Reply {
        Reply::small(|s| proto::put_entry(s, e))
    }
    pub(super) fn attr(a: &Attr) -> Reply {
        Reply::small(|s| proto::put_attr_reply(s, a))
    }
    pub(super) fn statx(a: &Attr) -> Reply {
        Reply::small(|s| proto::put_statx_reply(s, a))
    }
    pub(super) fn opened(o: &Opened) -> Reply {
        Reply::small(|s| proto::put_open(s, o))
    }
}

impl Core {
    pub(super) fn reply(&self, unique: u64, reply: Reply) {
        let mut head = Small::new();
        let sent = match reply {
            Reply::Nothing => return,
            Reply::Empty => {
                proto::put_header(&mut head, unique, None, 0);
                self.send(&[IoSlice::new(head.as_slice())])
            }
            Reply::Small(body) => {
                let body = body.as_slice();
                proto::put_header(&mut head, unique, None, body.len());
                head.raw(body);
                self.send(&[IoSlice::new(head.as_slice())])
            }
            Reply::Bytes(body) => {
                proto::put_header(&mut head, unique, None, body.len());
                self.send(&[IoSlice::new(head.as_slice()), IoSlice::new(&body)])
            }
            Reply::Listing(mut whole) => {
                proto::put_header(&mut head, unique, None, whole.len() - OUT_HEADER);
                whole[..OUT_HEADER].copy_from_slice(head.as_slice());
                self.send(&[IoSlice::new(&whole)])
            }
            Reply::Data(parts) => {
                proto::put_header(&mut head, unique, None, parts.iter().map(|p| p.len()).sum());
                if parts.len() < SLICES_MAX {
                    let mut slices = Vec::with_capacity(parts.len() + 1);
                    slices.push(IoSlice::new(head.as_slice()));
                    slices.extend(parts.iter().map(|p| IoSlice::new(p)));
                    self.send(&slices)
                } else {
                    let mut whole = Vec::with_capacity(parts.iter().map(|p| p.len()).sum());
                    parts.iter().for_each(|p| whole.raw(p));
                    self.send(&[IoSlice::new(head.as_slice()), IoSlice::new(&whole)])
                }
            }
        };
        if sent.is_err() {
            self.send_error(unique, IO);
        }
    }
}

pub(super) fn empty(r: Result<(), Errno>) -> Result<Reply, Errno> {
    r.map(|()| Reply::Empty)
}

/// The answer to a caller with a buffer of `size` bytes; 0 is a query of the length only.
pub(super) fn sized(value: Vec<u8>, size: u32) -> Result<Reply, Errno> {
    let len = u32::try_from(value.len()).map_err(|_| RANGE)?;
    match size {
        0 => Ok(Reply::small(|s| {
            s.u32(len);
            s.u32(0);
        })),
        _ if len > size => Err(RANGE),
        _ => Ok(Reply::Bytes(value)),
    }
}
