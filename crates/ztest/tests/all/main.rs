//! A small part of each long profile of `ztest`.
#![allow(clippy::unwrap_used)]

mod classes;
mod clones;
mod cuts;
mod dedup;
mod devices;
mod encrypted;
mod events;
mod expansions;
mod failmode;
mod features;
mod fill;
mod growth;
mod history;
mod images;
mod imports;
mod kinds;
mod layouts;
mod logs;
mod losses;
mod mutations;
mod mutations_stream;
mod mutations_write;
mod newer;
mod old;
mod presence;
mod receives;
mod reference;
mod rescues;
mod scan;
mod snapshots;
mod states;
mod volumes;
mod workloads;
mod works;
mod zil;
