//! The control socket: frames, the client's side, and the daemon's: who may ask, which thread does
//! the work, and the answer.

pub mod client;
pub(crate) mod lanes;
pub(crate) mod listener;
pub mod proto;
pub(crate) mod serve;
