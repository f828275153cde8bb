//! Intent log.
