//! ZAPs.
