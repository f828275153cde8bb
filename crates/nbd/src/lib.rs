//! The server side of NBD, the protocol that lends a block device over a socket, without the
//! socket: bytes come in, decisions and bytes go out.
//!
//! **Export**: a device that a client may ask for by name ([`Export`]). **Handshake**: the first
//! phase, in which the client sends *options* and in the end chooses an export ([`Handshake`]).
//! **Terms**: what was agreed on ([`Terms`]). **Transmission**: the second phase, *requests* and
//! *replies*. **Cookie**: the number that a reply repeats so that the client knows its request.
//! **Chunk**: a part of a structured reply. **Payload**: the data behind the header of a write or
//! in the answer to a read.
//!
//! The normal path: [`Handshake::take`] eats what the client sends and says what comes next: send
//! the output, find an export, list exports, or start. From then on [`Intake::take`] eats headers
//! of requests and yields each one as [`Taken::Serve`] or [`Taken::Refuse`]. The caller serves it
//! and answers with [`Terms::done`], [`Terms::read_answer`], [`Extents`] or [`Terms::error`].
//!
//! Invariants:
//! * The payload of a write is never in here: its length is in the request, and the caller takes
//!   the bytes from the stream into its own buffers. The answer to a read is a list of [`Part`]s:
//!   headers, and spans of the export that the caller sends from its own buffers.
//! * How the bytes are cut into pieces changes no result.
//! * Whatever a client sends gives an answer or a [`Fault`], and a fault ends the connection.
//! * A handshake holds one option and the answers to one option; an intake holds one header.
//!
//! The source of all numbers is the NBD protocol document (`doc/proto.md` of
//! `NetworkBlockDevice/nbd`). There is no TLS and there are no extended headers: clients that ask
//! for them are told so. [`proto`] has the constants and the limits, `wire` the fields.

mod code;
mod export;
mod fault;
mod handshake;
mod intake;
mod option_reply;
mod options;
pub mod proto;
mod read;
mod reply;
mod request;
mod status;
mod terms;
mod wire;

pub use code::Code;
pub use export::Export;
pub use fault::Fault;
pub use handshake::{Handshake, Step};
pub use intake::{Intake, Taken};
pub use option_reply::Listed;
pub use read::{Part, Run};
pub use reply::Head;
pub use request::{Command, Header, Refusal, Request, Span, Verdict};
pub use status::{Extents, State};
pub use terms::Terms;
