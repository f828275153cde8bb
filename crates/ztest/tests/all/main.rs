//! A small part of each long profile of `ztest`.

mod cuts;
mod devices;
mod encrypted;
mod layouts;
mod logs;
mod mutations;
mod presence;
mod scan;
mod snapshots;
mod states;
mod workloads;
mod zil;
