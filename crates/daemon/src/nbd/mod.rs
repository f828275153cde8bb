//! Volumes over NBD: servers on Unix sockets and loopback ports.
//!
//! **Server**: an address and what is served there ([`server`]). **Client**: a connection.
//! **Export**: a volume under the name of its dataset, or a snapshot of one (`crate nbd` has the
//! protocol).
//!
//! The normal path: a thread of the server accepts a connection; a thread of the connection leads
//! the handshake ([`hello`]), which is slow and rare and asks several pools. Then the socket moves
//! to the engine thread of the volume's pool, where it stays ([`conn`]): the thread that reads a
//! request from its ring also serves it and answers, as for FUSE. A request that must wait for a
//! device or a transaction waits as a task of its own while others go on, and replies leave in the
//! order in which they are ready ([`outbox`]).
//!
//! Invariants:
//! * Only the owner and root reach a Unix socket (mode, and the kernel's word on the peer); a port
//!   is on a loopback address.
//! * Bounded are the connections of a server, those in their handshake and the time of it, and for
//!   each connection the requests under way and the bytes that they hold, until the answer has
//!   left. A client that does not read its answers stops its own connection only.
//! * A client makes its pool busy (`admin::fs::volumes`).
//! * What a client sends gives an answer or ends its connection.

mod conn;
mod hello;
mod inbox;
mod outbox;
mod server;

pub(crate) use server::Servers;
