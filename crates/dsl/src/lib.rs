//! Datasets and directories.
pub mod props;
pub mod space;
