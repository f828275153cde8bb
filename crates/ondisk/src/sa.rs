//! System attributes.
