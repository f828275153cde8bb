//! Dnodes.
