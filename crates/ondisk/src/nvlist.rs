//! Name-value lists.
