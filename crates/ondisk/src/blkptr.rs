//! Block pointers.
