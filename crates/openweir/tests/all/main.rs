//! The library, used as another program uses it.
#![allow(clippy::unwrap_used)]

mod basics;
mod examples;
mod handles;
mod judged;
mod objects;
mod simulated;
