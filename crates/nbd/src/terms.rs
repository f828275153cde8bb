//! What client and server agreed on in the handshake.

use crate::export::Export;

/// The terms of a connection. Requests are judged by them ([`Terms::judge`]) and answers built
/// ([`Terms::done`], [`Terms::error`], [`Terms::read_answer`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Terms {
    /// The export in use.
    pub export: Export,
    /// Answers to reads are chunks, and errors have a text.
    pub structured: bool,
    /// The client chose the metadata context `base:allocation`.
    pub block_status: bool,
}
