//! Space maps.
