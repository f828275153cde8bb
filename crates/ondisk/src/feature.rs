//! Feature names and guids.
