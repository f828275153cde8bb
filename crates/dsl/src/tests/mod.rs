//! Tests of policy: names, properties, space.
#![allow(clippy::unwrap_used)]

mod names;
mod props;
mod space;
