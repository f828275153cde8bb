//! Object sets.
