//! Byte order conversion.
