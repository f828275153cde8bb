//! A small part of each long profile of `ztest`.

mod cuts;
mod devices;
mod encrypted;
mod imports;
mod layouts;
mod logs;
mod mutations;
mod presence;
mod reference;
mod scan;
mod snapshots;
mod states;
mod workloads;
mod zil;
