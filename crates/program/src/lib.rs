//! Channel programs: Lua 5.2 in a sandbox, with the calls and limits of `zfs program`.
//!
//! **Words.** A *program* is a text in Lua. Its *calls* are the functions of the table `zfs`
//! ([`Call`]); the *host* ([`Host`]) does them. A [`Value`] is what goes in or comes out. The
//! *limits* ([`Limits`]) bound instructions and memory.
//!
//! **Normal path.** [`run`] makes a state with the libraries of OpenZFS's channel programs, gives
//! it the arguments and runs it on the caller's thread until it ends; each call of `zfs` is checked
//! (`args`), asked of the host, and its [`Answer`] becomes results or an error. The one result of
//! the program becomes a [`Value`] in [`End`].
//!
//! **Numbers** are whole and of 64 bits, and wrap around, as in OpenZFS: `lua/numbers.h` replaces
//! the definitions of the unchanged sources of Lua in the crate `lua-src`.
//!
//! **Invariants.** Errors of Lua jump over C frames only: Rust is called from `lua/glue.c` and
//! returns a number that says whether an error is to be raised, and its own calls of Lua allocate
//! without the limit, so that none of them raises. Panics of a host end at the boundary. A script
//! gets no finalizers, which would run outside the limit on instructions. Only text is compiled.
#![allow(unsafe_code)]

mod args;
mod call;
mod errno;
mod ffi;
mod machine;
mod value;

pub use call::{Answer, Call, Change, Host, List};
pub use errno::{Errno, NAMES};
pub use machine::{End, Limits, run};
pub use value::{DEPTH_MAX, Value};

#[cfg(test)]
mod tests;
