//! The history object.
