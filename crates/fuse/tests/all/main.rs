//! File systems mounted through the kernel.
#![allow(clippy::unwrap_used)]

mod acls;
mod common;
mod direct;
mod linux;
mod mounted;
mod nested;
mod nfs4;
mod privileges;
mod snapdir;
mod texts;
