//! Trace events of operations: what a request does, noted before it is served, posted when it is
//! answered. Without a listener both ends cost one comparison.

use base::Nanos;
use rt::trace::{Event, FsOp, Groups, OpKind};

use super::Session;
use crate::handler::Handler;
use crate::proto::{InHeader, Op};

/// An operation that is being served, and when it began.
pub(super) struct Begun(FsOp, Nanos);

/// Kind, offset, length, whether it is durable when it ends, and the other node of an operation.
/// `None` for requests about the session.
fn parts(op: &Op<'_>) -> Option<(OpKind, u64, u64, bool, u64)> {
    let plain = |kind| Some((kind, 0, 0, false, 0));
    match *op {
        Op::Lookup { .. } => plain(OpKind::Lookup),
        Op::GetAttr { .. } | Op::Statx { .. } => plain(OpKind::GetAttr),
        Op::SetAttr(set) => match set.size {
            Some(size) => Some((OpKind::Truncate, size, 0, false, 0)),
            None => plain(OpKind::SetAttr),
        },
        Op::Symlink { .. } | Op::MkNod { .. } | Op::Create { .. } | Op::TmpFile { .. } => plain(OpKind::Create),
        Op::MkDir { .. } => plain(OpKind::MakeDir),
        Op::Unlink { .. } => plain(OpKind::Remove),
        Op::RmDir { .. } => plain(OpKind::RemoveDir),
        Op::Rename { new_dir, .. } => Some((OpKind::Rename, 0, 0, false, new_dir)),
        Op::Link { node, .. } => Some((OpKind::Link, 0, 0, false, node)),
        Op::Open { .. } => plain(OpKind::Open),
        Op::Release { .. } => plain(OpKind::Release),
        Op::Read { offset, size, .. } => Some((OpKind::Read, offset, size.into(), false, 0)),
        Op::Write { offset, size, sync, .. } => Some((OpKind::Write, offset, size.into(), sync, 0)),
        Op::Fsync { .. } | Op::FsyncDir { .. } => plain(OpKind::Fsync),
        Op::ReadDir { .. } => plain(OpKind::ReadDir),
        Op::Fallocate { offset, len, .. } => Some((OpKind::Allocate, offset, len, false, 0)),
        Op::SetXattr { .. } | Op::GetXattr { .. } | Op::ListXattr { .. } | Op::RemoveXattr { .. } => {
            plain(OpKind::Xattr)
        }
        Op::SyncFs => plain(OpKind::SyncFs),
        _ => None,
    }
}

impl<H: Handler> Session<H> {
    /// Notes an operation if somebody listens to them.
    #[inline(always)]
    pub(super) fn op_begun(&self, h: &InHeader, op: &Op<'_>) -> Option<Begun> {
        if self.rt.tracer().wants(Groups::OP) { self.note_op(h, op) } else { None }
    }

    #[cold]
    #[inline(never)]
    fn note_op(&self, h: &InHeader, op: &Op<'_>) -> Option<Begun> {
        let (kind, offset, len, sync, other) = parts(op)?;
        let (dataset, object) = self.handler.traced(h.node)?;
        let target = self.traced_object(other);
        let client = h.caller.pid;
        let op = FsOp { kind, client, dataset, object, target, offset, len, sync, ok: false, took: Nanos(0) };
        Some(Begun(op, self.rt.now()))
    }

    /// Posts an operation that was answered; `found` is the node in its answer, or 0.
    #[inline(always)]
    pub(super) fn op_done(&self, begun: Option<Begun>, found: u64, ok: bool) {
        if let Some(begun) = begun {
            self.post_op(begun, found, ok);
        }
    }

    #[cold]
    #[inline(never)]
    fn post_op(&self, Begun(op, at): Begun, found: u64, ok: bool) {
        let now = self.rt.now();
        let target = if op.target != 0 { op.target } else { self.traced_object(found) };
        let op = FsOp { target, ok, took: now.since(at), ..op };
        self.rt.trace_at(now, Groups::OP, || Event::Op(op));
    }

    fn traced_object(&self, node: u64) -> u64 {
        if node == 0 { 0 } else { self.handler.traced(node).map_or(0, |(_, object)| object) }
    }
}
