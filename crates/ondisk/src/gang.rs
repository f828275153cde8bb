//! Gang headers.
