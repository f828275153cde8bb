//! The DSL: directories and datasets, their names, properties and space accounting, and the sync tasks that change them.
//!
//! Reading order: [`props`] and [`space`] (policy), [`core`] (where freed blocks go), [`dir`], [`dataset`], [`features`], [`pool`] (the tree and what happens
//! in a txg), then `create`, `change`, `destroy`.

mod change;
pub mod core;
mod create;
pub mod dataset;
mod destroy;
pub mod dir;
pub mod features;
pub mod pool;
pub mod props;
pub mod space;

pub use create::{Init, check_name};
pub use dataset::Dataset;
pub use dir::Dir;
pub use pool::{DslPool, DslSetup};
