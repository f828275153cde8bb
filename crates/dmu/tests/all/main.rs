//! Objects, ZAPs and attributes, on pools in memory and on real ones.
#![allow(clippy::unwrap_used)]

mod bpobj;
mod common;
mod concurrent;
mod early;
mod model;
mod owners;
mod real;
mod real_upper;
mod sa;
mod tx;
mod zap;
