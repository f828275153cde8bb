//! A small part of each long profile of `ztest`.

mod cuts;
mod encrypted;
mod layouts;
mod logs;
mod mutations;
mod scan;
mod snapshots;
mod states;
mod workloads;
