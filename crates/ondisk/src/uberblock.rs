//! Uberblocks.
