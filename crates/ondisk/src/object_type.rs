//! Object types.
