//! A small part of each long profile of `ztest`.

mod cuts;
mod encrypted;
mod layouts;
mod mutations;
mod snapshots;
mod workloads;
