//! Block pointer lists.
