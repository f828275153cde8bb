//! A world in virtual time.
